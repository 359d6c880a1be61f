//! The interface between the writing half of the DSL and the meta object set: objects,
//! their bonus buffers, blocks and ZAPs.
//!
//! # Theory
//! Every change that the DSL makes to a pool is an edit of MOS objects in syncing context.
//! [`MosRead`] suffices for the checker, so that it runs on pools that are open read-only;
//! [`MosStore`] adds the edits. The engine implements both over the DMU, tests over a map
//! in memory.
//!
//! # Invariants
//! * Bytes passed to a store (bonus buffers, blocks under edit) are little endian; bytes
//!   read are returned with their byte order.
//! * Reads see every edit made before.

use base::{Buf, Error, ObjectId, Result};
use ondisk::dslphys::{DslDatasetPhys, DslDirPhys};
use ondisk::zap::ZapValue;
use ondisk::{Endian, ObjType};

use crate::mos::Mos;

/// The object directory.
pub const DIRECTORY: u64 = 1;

/// The properties of an object that the DSL uses.
#[derive(Clone, Debug)]
pub struct ObjectInfo {
    /// Its type; [`ObjType::OTN_ZAP_METADATA`] once zapified (chapter 04 §0).
    pub object_type: ObjType,
    /// The type of its bonus buffer.
    pub bonus_type: ObjType,
    /// The bonus buffer, in byte order `endian`.
    pub bonus: Vec<u8>,
    /// Byte order of the bonus buffer.
    pub endian: Endian,
    /// Bytes of a data block.
    pub block_size: u64,
    /// Blocks, holes included: one more than the highest block id.
    pub blocks: u64,
}

/// Parameters of a new object.
#[derive(Clone, Debug)]
pub struct NewObject {
    /// Its type.
    pub object_type: ObjType,
    /// Bytes of a data block.
    pub block_size: u32,
    /// Type of the bonus buffer.
    pub bonus_type: ObjType,
    /// The bonus buffer, little endian.
    pub bonus: Vec<u8>,
    /// Compression id of the dnode; 0 is the MOS's own policy.
    pub compression: u8,
}

impl NewObject {
    /// An object with blocks of `block_size` bytes and no bonus.
    pub fn plain(object_type: ObjType, block_size: u32) -> NewObject {
        NewObject {
            object_type,
            block_size,
            bonus_type: ObjType::NONE,
            bonus: Vec::new(),
            compression: 0,
        }
    }

    /// The same with a bonus buffer.
    #[must_use]
    pub(crate) fn with_bonus(mut self, bonus_type: ObjType, bonus: Vec<u8>) -> NewObject {
        (self.bonus_type, self.bonus) = (bonus_type, bonus);
        self
    }
}

/// Reading the MOS.
pub trait MosRead {
    /// An object's dnode. `NotFound` when there is none.
    ///
    /// # Errors
    /// Those of reading the MOS.
    fn info(&self, id: u64) -> Result<ObjectInfo>;

    /// A block of an object that was written, and its byte order.
    ///
    /// # Errors
    /// Those of reading the MOS.
    fn read_block(&self, id: u64, blkid: u64) -> Result<(Buf, Endian)>;

    /// A value in a ZAP; the name must match exactly.
    ///
    /// # Errors
    /// Those of reading the MOS.
    fn zap_lookup(&self, id: u64, name: &[u8]) -> Result<Option<ZapValue>>;

    /// The entry whose name is `name` without regard to case (normalisation flag 2).
    ///
    /// # Errors
    /// Those of reading the MOS.
    fn zap_lookup_folded(&self, id: u64, name: &[u8]) -> Result<Option<(Vec<u8>, ZapValue)>>;

    /// All entries of a ZAP, in any order.
    ///
    /// # Errors
    /// Those of reading the MOS.
    fn zap_entries(&self, id: u64) -> Result<Vec<(Vec<u8>, ZapValue)>>;
}

/// Changing the MOS, in syncing context.
pub trait MosStore: MosRead {
    /// A new object with any free id, one level, indirect blocks of 128 KiB, one slot.
    ///
    /// # Errors
    /// Those of the DMU.
    fn allocate(&self, object: &NewObject) -> Result<u64>;

    /// A new object with this id.
    ///
    /// # Errors
    /// Those of the DMU; `Exists`.
    fn claim(&self, id: u64, object: &NewObject) -> Result<()>;

    /// Frees an object with all its blocks.
    ///
    /// # Errors
    /// Those of the DMU.
    fn free_object(&self, id: u64) -> Result<()>;

    /// Changes a block in place; a new or freed one begins as zeros. The object grows
    /// as needed.
    ///
    /// # Errors
    /// Those of the DMU and those of `edit`.
    fn edit_block(
        &self,
        id: u64,
        blkid: u64,
        edit: &mut dyn FnMut(&mut [u8]) -> Result<()>,
    ) -> Result<()>;

    /// Frees the blocks from byte `offset` (a multiple of the block size) on.
    ///
    /// # Errors
    /// Those of the DMU.
    fn free_from(&self, id: u64, offset: u64) -> Result<()>;

    /// Replaces the bonus buffer; its length may change.
    ///
    /// # Errors
    /// Those of the DMU.
    fn set_bonus(&self, id: u64, bonus: &[u8]) -> Result<()>;

    /// Changes the object's type.
    ///
    /// # Errors
    /// Those of the DMU.
    fn set_object_type(&self, id: u64, object_type: ObjType) -> Result<()>;

    /// Writes an empty microzap as block 0.
    ///
    /// # Errors
    /// Those of the DMU.
    fn zap_init(&self, id: u64, normflags: u64) -> Result<()>;

    /// Adds an entry or replaces its value.
    ///
    /// # Errors
    /// Those of the DMU; `NameTooLong`.
    fn zap_update(&self, id: u64, name: &[u8], value: &ZapValue) -> Result<()>;

    /// Removes an entry; `NotFound` when there is none.
    ///
    /// # Errors
    /// Those of the DMU.
    fn zap_remove(&self, id: u64, name: &[u8]) -> Result<()>;
}

impl MosRead for Mos {
    fn info(&self, id: u64) -> Result<ObjectInfo> {
        let object = self.object(id)?;
        let dnode = object.dnode();
        Ok(ObjectInfo {
            object_type: dnode.object_type,
            bonus_type: dnode.bonus_type,
            bonus: dnode.bonus.clone(),
            endian: dnode.endian,
            block_size: object.block_size(),
            blocks: dnode.max_blkid.saturating_add(1),
        })
    }

    fn read_block(&self, id: u64, blkid: u64) -> Result<(Buf, Endian)> {
        self.object(id)?.read_written(blkid, self.io())
    }

    fn zap_lookup(&self, id: u64, name: &[u8]) -> Result<Option<ZapValue>> {
        self.zap(id)?.lookup(name)
    }

    fn zap_lookup_folded(&self, id: u64, name: &[u8]) -> Result<Option<(Vec<u8>, ZapValue)>> {
        let found = self.zap(id)?.lookup_as(name, dmu::Match::Normalize)?;
        Ok(found.map(|e| (e.name, e.value)))
    }

    fn zap_entries(&self, id: u64) -> Result<Vec<(Vec<u8>, ZapValue)>> {
        let entries = self.zap(id)?.entries()?;
        Ok(entries.into_iter().map(|e| (e.name, e.value)).collect())
    }
}

/// Methods that are the same for every implementation.
impl dyn MosRead + '_ {
    /// A number in a ZAP.
    ///
    /// # Errors
    /// Those of reading; `Corrupt` when the value is something else.
    pub fn number(&self, zap: u64, name: &str) -> Result<Option<u64>> {
        let Some(value) = self.zap_lookup(zap, name.as_bytes())? else { return Ok(None) };
        let odd = || Error::corrupt(format!("the entry {name} is not a number"));
        value.as_u64().map(Some).ok_or_else(|| odd().in_object(ObjectId(zap)))
    }

    /// A number in the object directory.
    ///
    /// # Errors
    /// As `number`.
    pub fn directory(&self, name: &str) -> Result<Option<u64>> {
        self.number(DIRECTORY, name)
    }

    /// A number in the object directory that must be there.
    ///
    /// # Errors
    /// As `number`; `Corrupt` when it is missing.
    pub fn required(&self, name: &str) -> Result<u64> {
        self.directory(name)?
            .ok_or_else(|| Error::corrupt(format!("the object directory lacks {name}")))
    }

    /// All entries of a ZAP of numbers; none for object 0.
    ///
    /// # Errors
    /// Those of reading; `Corrupt` when a value is something else.
    pub fn numbers(&self, zap: u64) -> Result<Vec<(String, u64)>> {
        if zap == 0 {
            return Ok(Vec::new());
        }
        let odd = || Error::corrupt("a value is not a number").in_object(ObjectId(zap));
        let entries = self.zap_entries(zap)?.into_iter().map(|(name, value)| {
            let name = String::from_utf8_lossy(&name).into_owned();
            value.as_u64().map(|v| (name, v)).ok_or_else(odd)
        });
        entries.collect()
    }

    /// The structure of a directory.
    ///
    /// # Errors
    /// Those of reading; `Corrupt` when the object is none.
    pub fn dir(&self, object: u64) -> Result<DslDirPhys> {
        let info = self.info(object)?;
        if info.bonus_type != ObjType::DSL_DIR {
            let e = Error::corrupt("object is not a dataset directory");
            return Err(e.in_object(ObjectId(object)));
        }
        DslDirPhys::parse(&info.bonus, info.endian).map_err(|e| e.in_object(ObjectId(object)))
    }

    /// The structure of a dataset.
    ///
    /// # Errors
    /// Those of reading; `Corrupt` when the object is none.
    pub fn dataset(&self, object: u64) -> Result<DslDatasetPhys> {
        let info = self.info(object)?;
        if info.bonus_type != ObjType::DSL_DATASET {
            return Err(Error::corrupt("object is not a dataset").in_object(ObjectId(object)));
        }
        DslDatasetPhys::parse(&info.bonus, info.endian).map_err(|e| e.in_object(ObjectId(object)))
    }

    /// Whether named attributes can be attached to the object as it is.
    ///
    /// # Errors
    /// Those of reading.
    pub(crate) fn is_zapified(&self, object: u64) -> Result<bool> {
        Ok(self.info(object)?.object_type == ObjType::OTN_ZAP_METADATA)
    }

    /// An attribute of a directory or dataset.
    ///
    /// # Errors
    /// Those of reading.
    pub fn attribute(&self, object: u64, key: &str) -> Result<Option<ZapValue>> {
        if self.is_zapified(object)? { self.zap_lookup(object, key.as_bytes()) } else { Ok(None) }
    }

    /// A number attached to a directory or dataset.
    ///
    /// # Errors
    /// Those of reading; `Corrupt` when the value is no number.
    pub fn attribute_u64(&self, object: u64, key: &str) -> Result<Option<u64>> {
        if self.is_zapified(object)? { self.number(object, key) } else { Ok(None) }
    }
}
