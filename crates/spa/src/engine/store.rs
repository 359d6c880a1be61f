//! The store that the writing half of the DSL edits: the live MOS within one txg.

use base::{Buf, ObjectId, Result};
use dmu::{ObjectSpec, Tx, zaps};
use dsl::Mos;
use dsl::write::{MosRead, MosStore, NewObject, ObjectInfo};
use ondisk::zap::ZapValue;
use ondisk::{Endian, ObjType};

/// The MOS and the txg in which it is edited.
pub(crate) struct Store<'a> {
    pub(crate) mos: &'a Mos,
    pub(crate) tx: &'a Tx,
}

impl MosRead for Store<'_> {
    fn info(&self, id: u64) -> Result<ObjectInfo> {
        self.mos.info(id)
    }
    fn read_block(&self, id: u64, blkid: u64) -> Result<(Buf, Endian)> {
        MosRead::read_block(self.mos, id, blkid)
    }
    fn zap_lookup(&self, id: u64, name: &[u8]) -> Result<Option<ZapValue>> {
        self.mos.zap_lookup(id, name)
    }
    fn zap_lookup_folded(&self, id: u64, name: &[u8]) -> Result<Option<(Vec<u8>, ZapValue)>> {
        self.mos.zap_lookup_folded(id, name)
    }
    fn zap_entries(&self, id: u64) -> Result<Vec<(Vec<u8>, ZapValue)>> {
        MosRead::zap_entries(self.mos, id)
    }
}

fn spec(object: &NewObject) -> ObjectSpec {
    ObjectSpec {
        object_type: object.object_type,
        block_size: object.block_size,
        bonus_type: object.bonus_type,
        bonus: object.bonus.clone(),
        ..ObjectSpec::default()
    }
}

impl Store<'_> {
    fn compress(&self, id: ObjectId, object: &NewObject) -> Result<()> {
        match object.compression {
            0 => Ok(()),
            to => self.mos.objset().set_compression(self.tx, id, to),
        }
    }
}

impl MosStore for Store<'_> {
    fn allocate(&self, object: &NewObject) -> Result<u64> {
        let id = self.mos.objset().allocate(self.tx, &spec(object))?;
        self.compress(id, object)?;
        Ok(id.0)
    }
    fn claim(&self, id: u64, object: &NewObject) -> Result<()> {
        self.mos.objset().claim(self.tx, ObjectId(id), &spec(object))?;
        self.compress(ObjectId(id), object)
    }
    fn free_object(&self, id: u64) -> Result<()> {
        self.mos.objset().free_object(self.tx, ObjectId(id))
    }
    fn edit_block(
        &self,
        id: u64,
        blkid: u64,
        edit: &mut dyn FnMut(&mut [u8]) -> Result<()>,
    ) -> Result<()> {
        self.mos.objset().edit_block(self.tx, ObjectId(id), blkid, edit)
    }
    fn free_from(&self, id: u64, offset: u64) -> Result<()> {
        self.mos.objset().free_range(self.tx, ObjectId(id), offset, u64::MAX)
    }
    fn set_bonus(&self, id: u64, bonus: &[u8]) -> Result<()> {
        self.mos.objset().set_bonus(self.tx, ObjectId(id), bonus)
    }
    fn set_object_type(&self, id: u64, object_type: ObjType) -> Result<()> {
        self.mos.objset().set_object_type(self.tx, ObjectId(id), object_type)
    }
    fn zap_init(&self, id: u64, normflags: u64) -> Result<()> {
        zaps::init(self.mos.objset(), self.tx, ObjectId(id), normflags)
    }
    fn zap_update(&self, id: u64, name: &[u8], value: &ZapValue) -> Result<()> {
        zaps::update(self.mos.objset(), self.tx, ObjectId(id), name, value)
    }
    fn zap_remove(&self, id: u64, name: &[u8]) -> Result<()> {
        zaps::remove(self.mos.objset(), self.tx, ObjectId(id), name)
    }
}
