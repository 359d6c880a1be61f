//! Changes of ZAPs that are objects: [`crate::zap_write`] over an object and a transaction.
//!
//! A change of a ZAP depends on its newest content. So no newer txg may have changed the
//! ZAP before a transaction of an older txg does. A caller ensures this by taking its own
//! lock first and opening the transaction afterwards.

use std::sync::Arc;

use base::{Buf, Error, ObjectId, Result};
use ondisk::ObjType;
use ondisk::zap::ZapValue;

use crate::live::ObjectSpec;
use crate::objset::Objset;
use crate::tx::Tx;
use crate::zap_write::{Index, ZapMut, ZapStore};

/// A ZAP object within a transaction.
pub struct ObjectStore<'a> {
    os: &'a Arc<Objset>,
    tx: &'a Tx,
    id: ObjectId,
}

impl<'a> ObjectStore<'a> {
    /// The ZAP `id`, to be changed in `tx`.
    pub fn new(os: &'a Arc<Objset>, tx: &'a Tx, id: ObjectId) -> ObjectStore<'a> {
        ObjectStore { os, tx, id }
    }
}

impl ZapStore for ObjectStore<'_> {
    fn block_size(&self) -> Result<u32> {
        self.os.head(self.tx, self.id, |head| head.block_size)
    }

    fn read(&self, blkid: u64) -> Result<Buf> {
        let io = self.tx.io();
        self.os.any_object(self.id, io)?.read_little(blkid, io)
    }

    fn edit(&self, blkid: u64, f: &mut dyn FnMut(&mut [u8]) -> Result<()>) -> Result<()> {
        self.os.edit_block(self.tx, self.id, blkid, f)
    }

    fn edit_checked(
        &self,
        blkid: u64,
        f: &mut dyn FnMut(&mut [u8], bool) -> Result<()>,
    ) -> Result<()> {
        self.os.edit_checked(self.tx, self.id, blkid, f)
    }

    fn set_block_size(&self, size: u32) -> Result<()> {
        self.os.set_block_size(self.tx, self.id, size, 0)
    }

    fn free_block(&self, blkid: u64, count: u64) -> Result<()> {
        let past = blkid.saturating_add(count);
        let last = self.os.head(self.tx, self.id, |head| head.max_blkid)?;
        self.os.free_blocks(self.tx, self.id, blkid, past, past > last)
    }

    fn recall(&self) -> (u64, Option<Index>) {
        self.os.recall(self.id)
    }

    fn keep(&self, changes: u64, known: Index) {
        self.os.keep(self.id, changes, known);
    }
}

/// A salt: any non-zero value (chapter 03 §13).
fn salt(os: &Objset, id: ObjectId) -> u64 {
    let random = base::rt::random_u64().unwrap_or(os.id() ^ id.0);
    random | 1
}

/// Makes a new ZAP.
///
/// # Errors
/// Those of [`Objset::allocate`].
pub fn create(
    os: &Arc<Objset>,
    tx: &Tx,
    object_type: ObjType,
    bonus_type: ObjType,
    bonus: &[u8],
    normflags: u64,
) -> Result<ObjectId> {
    let bonus = bonus.to_vec();
    let id =
        os.allocate(tx, &ObjectSpec { object_type, bonus_type, bonus, ..Default::default() })?;
    init(os, tx, id, normflags)?;
    Ok(id)
}

/// Makes an object an empty ZAP.
///
/// # Errors
/// Those of writing block 0.
pub fn init(os: &Arc<Objset>, tx: &Tx, id: ObjectId, normflags: u64) -> Result<()> {
    ZapMut::new(&ObjectStore::new(os, tx, id)).init(salt(os, id), normflags, 0)
}

/// Makes an object an empty fat ZAP with these `zap_flags` (chapter 03 §14.1).
///
/// # Errors
/// `Invalid` for unknown flags; those of writing its blocks.
pub fn init_as(os: &Arc<Objset>, tx: &Tx, id: ObjectId, flags: u64) -> Result<()> {
    ZapMut::new(&ObjectStore::new(os, tx, id)).init(salt(os, id), 0, flags)
}

/// Adds an entry.
///
/// # Errors
/// `Exists` when the name is there; those of reading and changing the ZAP.
pub fn add(os: &Arc<Objset>, tx: &Tx, id: ObjectId, name: &[u8], value: &ZapValue) -> Result<()> {
    ZapMut::new(&ObjectStore::new(os, tx, id)).add(name, value).map_err(|e| e.in_object(id))
}

/// Adds or replaces an entry.
///
/// # Errors
/// Those of reading and changing the ZAP.
pub fn update(
    os: &Arc<Objset>,
    tx: &Tx,
    id: ObjectId,
    name: &[u8],
    value: &ZapValue,
) -> Result<()> {
    ZapMut::new(&ObjectStore::new(os, tx, id)).update(name, value).map_err(|e| e.in_object(id))
}

/// Removes an entry.
///
/// # Errors
/// `NotFound` when the name is not there; those of reading and changing the ZAP.
pub fn remove(os: &Arc<Objset>, tx: &Tx, id: ObjectId, name: &[u8]) -> Result<()> {
    ZapMut::new(&ObjectStore::new(os, tx, id)).remove(name).map_err(|e| e.in_object(id))
}

/// Adds to a number, modulo 2^64, and returns the new value. An entry that becomes 0 is
/// removed.
///
/// # Errors
/// Those of reading and changing the ZAP.
pub(crate) fn increment(
    os: &Arc<Objset>,
    tx: &Tx,
    id: ObjectId,
    name: &[u8],
    delta: i64,
) -> Result<u64> {
    ZapMut::new(&ObjectStore::new(os, tx, id)).increment(name, delta).map_err(|e| e.in_object(id))
}

/// A number in the ZAP.
///
/// # Errors
/// Those of reading; `Corrupt` when the entry is something else.
pub fn lookup_u64(os: &Arc<Objset>, tx: &Tx, id: ObjectId, name: &[u8]) -> Result<Option<u64>> {
    let value = ZapMut::new(&ObjectStore::new(os, tx, id)).lookup(name)?;
    let number = |v: ZapValue| {
        v.as_u64().ok_or_else(|| Error::corrupt("a ZAP entry is not a number").in_object(id))
    };
    value.map(number).transpose()
}

/// The value under a key of 64-bit words.
///
/// # Errors
/// Those of reading; `Invalid` for a ZAP whose keys are names.
pub fn lookup_words(
    os: &Arc<Objset>,
    tx: &Tx,
    id: ObjectId,
    key: &[u64],
) -> Result<Option<ZapValue>> {
    ZapMut::new(&ObjectStore::new(os, tx, id)).lookup_words(key).map_err(|e| e.in_object(id))
}

/// Adds or replaces an entry under a key of 64-bit words.
///
/// # Errors
/// Those of reading and changing the ZAP; `Invalid` for a ZAP whose keys are names.
pub fn update_words(
    os: &Arc<Objset>,
    tx: &Tx,
    id: ObjectId,
    key: &[u64],
    value: &ZapValue,
) -> Result<()> {
    ZapMut::new(&ObjectStore::new(os, tx, id)).update_words(key, value).map_err(|e| e.in_object(id))
}

/// Removes the entry under a key of 64-bit words.
///
/// # Errors
/// `NotFound` when there is none; those of reading and changing the ZAP; `Invalid` for a ZAP
/// whose keys are names.
pub fn remove_words(os: &Arc<Objset>, tx: &Tx, id: ObjectId, key: &[u64]) -> Result<()> {
    ZapMut::new(&ObjectStore::new(os, tx, id)).remove_words(key).map_err(|e| e.in_object(id))
}

/// The number of entries.
///
/// # Errors
/// Those of reading.
pub fn len(os: &Arc<Objset>, tx: &Tx, id: ObjectId) -> Result<u64> {
    ZapMut::new(&ObjectStore::new(os, tx, id)).len().map_err(|e| e.in_object(id))
}
