//! The meta object set and its object directory (chapter 04 §1).

use std::sync::Arc;

use base::{Error, ObjectId, Result};
use dmu::{Io, Object, Objset, OutagePolicy, Zap, ZapEntry};
use nvlist::NvList;
use ondisk::objtype::ObjType;

/// The object directory's id.
const DIRECTORY_OBJECT: ObjectId = ObjectId(1);

/// A handle of an open MOS, with the policy of its reads for absent devices.
#[derive(Clone)]
pub struct Mos {
    objset: Arc<Objset>,
    io: Io,
}

impl Mos {
    /// Wraps the pool's meta object set. Reads through the handle, and through all that is
    /// opened with it, fail when devices are absent.
    ///
    /// # Errors
    /// `Corrupt` when it is not one.
    pub fn new(objset: Arc<Objset>) -> Result<Mos> {
        if objset.kind() != ondisk::objset::ObjsetType::Meta {
            return Err(Error::corrupt("the root block is not a meta object set"));
        }
        Ok(Mos { objset, io: Io::WAIT })
    }

    /// A handle of the same MOS, whose reads have this policy for absent devices.
    #[must_use]
    pub fn with_outage(&self, outage: OutagePolicy) -> Mos {
        Mos { objset: Arc::clone(&self.objset), io: Io::WAIT.with_outage(outage) }
    }

    /// The handle for the sync thread: its reads wait for absent devices.
    #[must_use]
    pub fn for_sync(&self) -> Mos {
        self.with_outage(OutagePolicy::WaitAlways)
    }

    /// How this handle reads.
    pub fn io(&self) -> Io {
        self.io
    }

    /// The object set.
    pub fn objset(&self) -> &Arc<Objset> {
        &self.objset
    }

    /// Opens an object of the MOS.
    ///
    /// # Errors
    /// Those of reading the dnode; `NotFound` when there is none.
    pub fn object(&self, id: u64) -> Result<Object> {
        self.objset.object(ObjectId(id), self.io)
    }

    /// Opens a ZAP of the MOS.
    ///
    /// # Errors
    /// As [`Mos::object`]; `Corrupt` when it is no ZAP.
    pub fn zap(&self, id: u64) -> Result<Zap> {
        Zap::open(self.object(id)?, self.io)
    }

    /// Every entry of a ZAP of the MOS; none for object 0.
    ///
    /// # Errors
    /// As [`Mos::zap`].
    pub fn zap_entries(&self, id: u64) -> Result<Vec<ZapEntry>> {
        if id == 0 { Ok(Vec::new()) } else { self.zap(id)?.entries() }
    }

    /// The object directory.
    ///
    /// # Errors
    /// As [`Mos::zap`].
    pub fn directory(&self) -> Result<Zap> {
        self.zap(DIRECTORY_OBJECT.0)
    }

    /// A number in the object directory.
    ///
    /// # Errors
    /// As [`Mos::zap`]; `Corrupt` when the entry is not a number.
    pub fn lookup(&self, name: &str) -> Result<Option<u64>> {
        self.directory()?.lookup_u64(name)
    }

    /// An array of numbers in the object directory.
    ///
    /// # Errors
    /// As [`Mos::zap`]; `Corrupt` when the entry is something else.
    pub fn lookup_words(&self, name: &str) -> Result<Option<Vec<u64>>> {
        let Some(value) = self.directory()?.lookup(name.as_bytes())? else { return Ok(None) };
        let odd = || Error::corrupt(format!("the entry {name} is not an array of numbers"));
        value.u64s().map(Some).ok_or_else(odd)
    }

    /// A packed nvlist object (`config`, `spares`, `l2cache`; chapter 01 §9.6).
    ///
    /// # Errors
    /// `Corrupt` when it is something else; those of reading it.
    pub fn packed_nvlist(&self, id: u64) -> Result<NvList> {
        let object = self.object(id)?;
        let dnode = object.dnode();
        if dnode.object_type != ObjType::PACKED_NVLIST {
            return Err(Error::corrupt("object is not a packed nvlist").in_object(object.id()));
        }
        let size = dnode
            .endian
            .u64(&dnode.bonus, 0)
            .filter(|&n| n <= base::limits::NVLIST_SIZE_MAX as u64)
            .filter(|&n| n <= (dnode.max_blkid + 1).saturating_mul(object.block_size()))
            .ok_or_else(|| Error::corrupt("packed nvlist of impossible size"))?;
        let mut bytes = vec![0; size as usize];
        object.read_into(0, &mut bytes, self.io)?;
        NvList::unpack(&bytes).map_err(|e| e.in_object(object.id()))
    }

    /// Reads an object that is an array of 64-bit words, at most `max` of them.
    ///
    /// # Errors
    /// Those of reading it; `Limit` beyond `max`.
    pub fn words(&self, id: u64, count: u64, max: u64) -> Result<Vec<u64>> {
        let object = self.object(id)?;
        if count > max {
            return Err(Error::limit("array object is too long").in_object(object.id()));
        }
        let capacity = (object.dnode().max_blkid + 1).saturating_mul(object.block_size()) / 8;
        let mut out = Vec::with_capacity(count.min(capacity) as usize);
        let per_block = object.block_size() / 8;
        let mut blkid = 0;
        while (out.len() as u64) < count {
            let block = object.read_block(blkid, self.io)?;
            let endian = object.block_endian(blkid, self.io)?;
            let take = per_block.min(count - out.len() as u64);
            out.extend((0..take as usize).filter_map(|i| endian.u64(&block, i * 8)));
            blkid += 1;
        }
        Ok(out)
    }
}
