//! A MOS in memory, for tests. It fails where the real one would be damaged.

use std::cell::RefCell;
use std::collections::BTreeMap;

use base::{Buf, Error, ErrorKind, ObjectId, Result};
use ondisk::zap::ZapValue;
use ondisk::{Endian, ObjType};

use super::store::{MosRead, MosStore, NewObject, ObjectInfo};

struct MemObject {
    new: NewObject,
    blocks: BTreeMap<u64, Vec<u8>>,
    zap: Option<BTreeMap<Vec<u8>, ZapValue>>,
}

#[derive(Default)]
struct MemState {
    objects: BTreeMap<u64, MemObject>,
    next: u64,
}

/// The store.
#[derive(Default)]
pub(crate) struct MemMos(RefCell<MemState>);

impl MemMos {
    pub(crate) fn objects(&self) -> Vec<u64> {
        self.0.borrow().objects.keys().copied().collect()
    }

    fn with<T>(&self, id: u64, f: impl FnOnce(&mut MemObject) -> Result<T>) -> Result<T> {
        let mut state = self.0.borrow_mut();
        let missing = || Error::not_found("no such object").in_object(ObjectId(id));
        f(state.objects.get_mut(&id).ok_or_else(missing)?)
    }

    fn with_zap<T>(
        &self,
        id: u64,
        f: impl FnOnce(&mut BTreeMap<Vec<u8>, ZapValue>) -> Result<T>,
    ) -> Result<T> {
        self.with(id, |o| {
            assert!(o.new.object_type.is_zap(), "{id} is {:?}", o.new.object_type);
            f(o.zap.as_mut().ok_or_else(|| Error::corrupt("not a ZAP"))?)
        })
    }
}

impl MosRead for MemMos {
    fn info(&self, id: u64) -> Result<ObjectInfo> {
        self.with(id, |o| {
            Ok(ObjectInfo {
                object_type: o.new.object_type,
                bonus_type: o.new.bonus_type,
                bonus: o.new.bonus.clone(),
                endian: Endian::Little,
                block_size: u64::from(o.new.block_size),
                blocks: o.blocks.keys().next_back().map_or(1, |b| b + 1),
            })
        })
    }

    fn read_block(&self, id: u64, blkid: u64) -> Result<(Buf, Endian)> {
        self.with(id, |o| {
            let empty = vec![0; o.new.block_size as usize];
            Ok((Buf::copy_of(o.blocks.get(&blkid).unwrap_or(&empty)), Endian::Little))
        })
    }

    fn zap_lookup(&self, id: u64, name: &[u8]) -> Result<Option<ZapValue>> {
        self.with_zap(id, |z| Ok(z.get(name).cloned()))
    }

    fn zap_lookup_folded(&self, id: u64, name: &[u8]) -> Result<Option<(Vec<u8>, ZapValue)>> {
        self.with_zap(id, |z| {
            let mut found = z.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name));
            Ok(found.next().map(|(n, v)| (n.clone(), v.clone())))
        })
    }

    fn zap_entries(&self, id: u64) -> Result<Vec<(Vec<u8>, ZapValue)>> {
        self.with_zap(id, |z| Ok(z.iter().map(|(n, v)| (n.clone(), v.clone())).collect()))
    }
}

impl MosStore for MemMos {
    fn allocate(&self, object: &NewObject) -> Result<u64> {
        let id = {
            let mut state = self.0.borrow_mut();
            state.next = state.next.max(31) + 1;
            state.next
        };
        self.claim(id, object)?;
        Ok(id)
    }

    fn claim(&self, id: u64, object: &NewObject) -> Result<()> {
        assert!(object.bonus.len() <= 320, "a MOS dnode has one slot");
        let object = MemObject { new: object.clone(), blocks: BTreeMap::new(), zap: None };
        match self.0.borrow_mut().objects.insert(id, object) {
            None => Ok(()),
            Some(_) => Err(Error::new(ErrorKind::Exists, "the object exists")),
        }
    }

    fn free_object(&self, id: u64) -> Result<()> {
        let missing = || Error::not_found("no such object").in_object(ObjectId(id));
        self.0.borrow_mut().objects.remove(&id).map(|_| ()).ok_or_else(missing)
    }

    fn edit_block(
        &self,
        id: u64,
        blkid: u64,
        edit: &mut dyn FnMut(&mut [u8]) -> Result<()>,
    ) -> Result<()> {
        self.with(id, |o| {
            let size = o.new.block_size as usize;
            edit(o.blocks.entry(blkid).or_insert_with(|| vec![0; size]))
        })
    }

    fn free_from(&self, id: u64, offset: u64) -> Result<()> {
        self.with(id, |o| {
            let size = u64::from(o.new.block_size);
            assert_eq!(offset % size, 0);
            o.blocks.retain(|blkid, _| *blkid < offset / size);
            Ok(())
        })
    }

    fn set_bonus(&self, id: u64, bonus: &[u8]) -> Result<()> {
        self.with(id, |o| {
            o.new.bonus = bonus.to_vec();
            Ok(())
        })
    }

    fn set_object_type(&self, id: u64, object_type: ObjType) -> Result<()> {
        self.with(id, |o| {
            o.new.object_type = object_type;
            Ok(())
        })
    }

    fn zap_init(&self, id: u64, _normflags: u64) -> Result<()> {
        self.with(id, |o| {
            assert!(o.zap.is_none() && o.new.object_type.is_zap());
            o.zap = Some(BTreeMap::new());
            Ok(())
        })
    }

    fn zap_update(&self, id: u64, name: &[u8], value: &ZapValue) -> Result<()> {
        self.with_zap(id, |z| {
            z.insert(name.to_vec(), value.clone());
            Ok(())
        })
    }

    fn zap_remove(&self, id: u64, name: &[u8]) -> Result<()> {
        let missing = || Error::not_found("no such entry").in_object(ObjectId(id));
        self.with_zap(id, |z| z.remove(name).map(|_| ()).ok_or_else(missing))
    }
}
