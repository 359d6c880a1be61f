//! Changing a ZAP: add, update, remove, increment (chapter 03 §13–§17).
//!
//! # Theory
//! A [`ZapMut`] works on blocks that a [`ZapStore`] gives it, inside one transaction. A
//! microzap (`micro`) is changed in place, grows by 512 bytes and turns fat when it must.
//! In a fat ZAP (`fat`) an entry is added to one leaf and counted in the header. A full
//! leaf is split, and the table of pointers grows by one block per added entry, so that no
//! single operation bears the whole cost (`grow`).
//!
//! # Invariants
//! * An operation reads and checks before it changes anything. `Exists`, `NotFound`,
//!   `Limit`, `Corrupt` and failed reads leave the ZAP as it was. (`NoSpace` and `Limit` of
//!   a leaf that cannot be split any further may leave more leaves than before, with the
//!   same entries.)
//! * A leaf is verified whole ([`ondisk::zapleaf::Leaf::verify`]) before it is changed, once for
//!   many changes that follow each other in memory ([`ZapStore::edit_checked`]); every walk is
//!   bounded. A table larger than hashes of 28 bits can need is not grown or
//!   written across (`Limit`).
//! * (hash, cd) of an entry never changes while it exists: cookies stay valid.
//!
//! # When an edit fails
//! Changes of several blocks (split, growth, merge, conversion) are prepared in memory,
//! written one after the other, and undone when an edit fails. Adding and removing update
//! the count in the header first and restore it if the leaf edit fails. Only if undoing
//! fails too, damage remains, and the ZAP is still readable: a count of entries that is off
//! by one, or leaves with entries of both halves of a split. The exception is the
//! conversion of a microzap of more than 16 KiB: when its restoring fails, entries are
//! lost. Blocks at and beyond `zap_freeblk` may hold anything; they are overwritten when
//! they come into use. Growing ahead of need, merging empty leaves and freeing blocks
//! follow the operation proper, which is complete by then. Their errors are not reported,
//! and a later operation tries again.
//!
//! # Departures
//! * A name that exists is refused before a full microzap grows or turns fat.
//! * Free microzap slots are taken first-fit.
//! * Pointers are not stored into blocks of a growing table that are still to be copied:
//!   copying overwrites them.
//! * An entry for which splits cannot make room (too many entries of one hash) is refused
//!   at once, not after the table grew to its limit.
//! * The index of a microzap's entries is kept with the object's dirty state
//!   ([`ZapStore::keep`]). The first change in a txg, and the first after a change by other
//!   means, hashes every entry.
//!
//! Lock order: none taken here. The caller has exclusive write access to the object.

mod fat;
mod grow;
mod micro;
mod stage;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_store;
#[cfg(test)]
mod tests_words;

use base::{Buf, Error, ErrorKind, Result};
use ondisk::Endian;
use ondisk::normalize::NameKey;
use ondisk::zap::leafmut::check_value;
use ondisk::zap::{MicroIndex, MicroZap, NAME_MAX, ZapBlock, ZapValue};

use crate::zap::{Match, ZapEntry};
use fat::{Fat, FatKey};
use micro::Put;

const LE: Endian = Endian::Little;

/// The blocks of one object, open for change in the current transaction. All
/// content is little endian.
pub trait ZapStore {
    /// Bytes of a block.
    ///
    /// # Errors
    /// Those of the object.
    fn block_size(&self) -> Result<u32>;

    /// A block as it is now, changes of this transaction included.
    ///
    /// # Errors
    /// Those of reading.
    fn read(&self, blkid: u64) -> Result<Buf>;

    /// Changes a whole block. A block beyond the end, or a hole, is zeros before. When `f`
    /// fails it changed nothing, and its error is the result.
    ///
    /// # Errors
    /// Those of reading the block and of space, and those of `f`.
    fn edit(&self, blkid: u64, f: &mut dyn FnMut(&mut [u8]) -> Result<()>) -> Result<()>;

    /// As [`ZapStore::edit`], for an `f` that checks a block whole before it changes it. `f` is
    /// told whether the content is what an earlier such edit of the transaction left, without
    /// another change since. A store may always say no.
    ///
    /// # Errors
    /// As [`ZapStore::edit`].
    fn edit_checked(
        &self,
        blkid: u64,
        f: &mut dyn FnMut(&mut [u8], bool) -> Result<()>,
    ) -> Result<()> {
        self.edit(blkid, &mut |content| f(content, false))
    }

    /// Changes the size of the only block; its content is kept as far as it fits,
    /// and the rest is zeros.
    ///
    /// # Errors
    /// `Invalid` when there are more blocks; those of the object.
    fn set_block_size(&self, size: u32) -> Result<()>;

    /// Makes holes of blocks.
    ///
    /// # Errors
    /// Those of the object.
    fn free_block(&self, blkid: u64, count: u64) -> Result<()>;

    /// The change count of the content, and the index that [`ZapStore::keep`] stored if it
    /// is still valid. The stored index is removed.
    fn recall(&self) -> (u64, Option<Index>) {
        (0, None)
    }

    /// Stores an index that is valid after `changes` changes, unless there were more
    /// changes since.
    fn keep(&self, _changes: u64, _known: Index) {}
}

/// An index of a microzap's entries, so that a change need not hash them all. It takes 16
/// bytes per entry, a quarter of the entry itself.
#[derive(Clone, Debug, Default)]
pub struct Index {
    keys: MicroIndex,
    /// No slot before this one is free.
    free_from: usize,
}

impl Index {
    /// Whether the index matches the microzap in a little-endian block.
    ///
    /// # Errors
    /// `Corrupt` when the block is no microzap.
    pub fn is_of(&self, block: &Buf) -> Result<bool> {
        let zap = MicroZap::parse(block, LE)?;
        let free = zap.free_slot(0).is_none_or(|free| free >= self.free_from);
        Ok(free && self.keys == micro::index_of(&zap).keys)
    }
}

/// Limits of a ZAP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZapLimits {
    /// Bytes of the largest microzap: `zap_micro_max_size`, 131072; up to 1 MiB
    /// with feature large_microzap.
    pub micro_max: u32,
    /// Bytes of the longest name without its NUL: 255, or 1023 for directories
    /// with feature longname.
    pub name_max: usize,
    /// Merge empty leaves: `zap_shrink_enabled`.
    pub shrink: bool,
}

impl Default for ZapLimits {
    fn default() -> ZapLimits {
        ZapLimits { micro_max: 128 << 10, name_max: NAME_MAX - 1, shrink: true }
    }
}

/// A ZAP that is being changed.
pub struct ZapMut<'a, S: ZapStore + ?Sized> {
    store: &'a S,
    limits: ZapLimits,
}

enum OpenZap<'a, S: ZapStore + ?Sized> {
    Micro(Buf),
    Fat(Fat<'a, S>),
}

#[cold]
fn exists() -> Error {
    Error::new(ErrorKind::Exists, "the ZAP has an entry of this name")
}

#[cold]
fn absent() -> Error {
    Error::not_found("the ZAP has no entry of this name")
}

impl<'a, S: ZapStore + ?Sized> ZapMut<'a, S> {
    /// The ZAP in `store`, with the usual limits.
    pub fn new(store: &'a S) -> ZapMut<'a, S> {
        ZapMut::with_limits(store, ZapLimits::default())
    }

    /// The ZAP in `store`.
    pub fn with_limits(store: &'a S, limits: ZapLimits) -> ZapMut<'a, S> {
        ZapMut { store, limits }
    }

    /// Formats an empty ZAP: a microzap, or with `flags` a fat ZAP, in blocks of
    /// the store's size.
    ///
    /// # Errors
    /// `Invalid` for a salt of 0, unknown flags or a block size that a ZAP of this
    /// form cannot have; those of the store.
    pub fn init(&self, salt: u64, normflags: u64, flags: u64) -> Result<()> {
        if flags != 0 {
            return self.init_fat(salt, normflags, flags);
        }
        let size = self.store.block_size()?;
        if salt == 0 || size > self.limits.micro_max {
            return Err(Error::invalid("salt or size of a new microzap"));
        }
        self.store.edit(0, &mut |b| ondisk::zap::micro_init(b, salt, normflags))
    }

    /// Formats an empty fat ZAP in blocks of the store's size.
    ///
    /// # Errors
    /// As [`ZapMut::init`].
    pub(crate) fn init_fat(&self, salt: u64, normflags: u64, flags: u64) -> Result<()> {
        fat::init(self.store, salt, normflags, flags)
    }

    fn form(&self) -> Result<OpenZap<'a, S>> {
        let block = self.store.read(0)?;
        match ZapBlock::parse(&block, LE)? {
            ZapBlock::Micro(_) => Ok(OpenZap::Micro(block)),
            ZapBlock::FatHeader(h) => {
                let phys = h.phys;
                Ok(OpenZap::Fat(Fat::new(self.store, block, phys, self.limits)))
            }
            ZapBlock::Leaf(_) => Err(Error::corrupt("a ZAP begins with a leaf")),
        }
    }

    fn key<'n>(&self, name: &'n [u8], normflags: u64, how: Match) -> Result<NameKey<'n>> {
        if name.is_empty() || name.contains(&0) {
            return Err(Error::invalid("this name cannot be in a ZAP"));
        }
        NameKey::new(name, normflags, how, self.limits.name_max)
    }

    fn micro_key<'n>(&self, block: &Buf, name: &'n [u8], how: Match) -> Result<NameKey<'n>> {
        self.key(name, MicroZap::parse(block, LE)?.normflags, how)
    }

    /// Entries in the ZAP.
    ///
    /// # Errors
    /// Those of reading, or `Corrupt`.
    pub fn len(&self) -> Result<u64> {
        Ok(match self.form()? {
            OpenZap::Micro(block) => MicroZap::parse(&block, LE)?.entries().count() as u64,
            OpenZap::Fat(fat) => fat.phys().num_entries,
        })
    }

    /// Whether the ZAP has no entries.
    ///
    /// # Errors
    /// As [`ZapMut::len`].
    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }

    /// The value under `name`.
    ///
    /// # Errors
    /// Those of reading, `Invalid` or `NameTooLong` for the name, `Corrupt`.
    pub fn lookup(&self, name: &[u8]) -> Result<Option<ZapValue>> {
        Ok(self.lookup_as(name, Match::Exact)?.map(|e| e.value))
    }

    /// The entry that `name` finds under the rules of `how` (§16).
    ///
    /// # Errors
    /// As [`ZapMut::lookup`]; `Unsupported` for a normalising match in a ZAP that
    /// does not normalise.
    pub fn lookup_as(&self, name: &[u8], how: Match) -> Result<Option<ZapEntry>> {
        match self.form()? {
            OpenZap::Micro(block) => {
                let key = self.micro_key(&block, name, how)?;
                micro::lookup(&block, &key)
            }
            OpenZap::Fat(mut fat) => {
                let key = self.key(name, fat.phys().normflags, how)?;
                fat.lookup(&FatKey::name(fat.phys(), name, &key, how)?)
            }
        }
    }

    /// Adds an entry.
    ///
    /// # Errors
    /// `Exists`; `Limit` for an entry larger than a leaf or a value of more than
    /// 8192 bytes; `NoSpace` when too many names have this hash; `Invalid` and
    /// `NameTooLong` for the name or a malformed value; `Corrupt`; those of the
    /// store.
    pub fn add(&self, name: &[u8], value: &ZapValue) -> Result<()> {
        self.put(name, value, false)
    }

    /// Adds an entry or replaces the value of the one that is there.
    ///
    /// # Errors
    /// As [`ZapMut::add`], without `Exists`.
    pub fn update(&self, name: &[u8], value: &ZapValue) -> Result<()> {
        self.put(name, value, true)
    }

    fn put(&self, name: &[u8], value: &ZapValue, replace: bool) -> Result<()> {
        check_value(value)?;
        let known = self.store.recall();
        let mut form = self.form()?;
        if let OpenZap::Micro(block) = form {
            let key = self.micro_key(&block, name, Match::Exact)?;
            let entry = micro::NewEntry { name, value, replace };
            match micro::put(self.store, block, known, &key, &entry, &self.limits)? {
                Put::Done => return Ok(()),
                Put::Convert(block) => micro::convert(self.store, block)?,
            }
            form = self.form()?;
        }
        let OpenZap::Fat(mut fat) = form else {
            return Err(base::bug!("a microzap did not turn fat"));
        };
        let key = self.key(name, fat.phys().normflags, Match::Exact)?;
        let key = FatKey::name(fat.phys(), name, &key, Match::Exact)?;
        fat.put(&key, None, value, replace)
    }

    /// Removes the entry of exactly this name.
    ///
    /// # Errors
    /// `NotFound`; as [`ZapMut::lookup`]; those of the store.
    pub fn remove(&self, name: &[u8]) -> Result<()> {
        self.remove_as(name, Match::Exact)
    }

    /// Removes the entry that [`ZapMut::lookup_as`] finds.
    ///
    /// # Errors
    /// As [`ZapMut::remove`] and [`ZapMut::lookup_as`].
    pub(crate) fn remove_as(&self, name: &[u8], how: Match) -> Result<()> {
        let known = self.store.recall();
        match self.form()? {
            OpenZap::Micro(block) => {
                let key = self.micro_key(&block, name, how)?;
                micro::remove(self.store, block, known, &key)
            }
            OpenZap::Fat(mut fat) => {
                let key = self.key(name, fat.phys().normflags, how)?;
                let key = FatKey::name(fat.phys(), name, &key, how)?;
                fat.remove(&key)
            }
        }
    }

    /// A ZAP whose keys are words is always fat.
    fn with_words(&self) -> Result<Fat<'a, S>> {
        match self.form()? {
            OpenZap::Fat(fat) => Ok(fat),
            OpenZap::Micro(_) => Err(Error::invalid("the keys of this ZAP are not words")),
        }
    }

    /// The value under a key of 64-bit words.
    ///
    /// # Errors
    /// As [`ZapMut::lookup`]; `Invalid` for a ZAP whose keys are names.
    pub(crate) fn lookup_words(&self, key: &[u64]) -> Result<Option<ZapValue>> {
        let mut fat = self.with_words()?;
        fat.value(&FatKey::words(fat.phys(), key)?)
    }

    /// Adds an entry under a key of 64-bit words, or replaces its value.
    ///
    /// # Errors
    /// As [`ZapMut::update`] and [`ZapMut::lookup_words`].
    pub(crate) fn update_words(&self, key: &[u64], value: &ZapValue) -> Result<()> {
        check_value(value)?;
        let mut fat = self.with_words()?;
        let key = FatKey::words(fat.phys(), key)?;
        fat.put(&key, None, value, true)
    }

    /// Removes the entry under a key of 64-bit words.
    ///
    /// # Errors
    /// As [`ZapMut::remove`] and [`ZapMut::lookup_words`].
    pub(crate) fn remove_words(&self, key: &[u64]) -> Result<()> {
        let mut fat = self.with_words()?;
        let key = FatKey::words(fat.phys(), key)?;
        fat.remove(&key)
    }

    /// Adds `delta` to the number under `name`, modulo 2^64; a missing entry counts
    /// as 0, and an entry that becomes 0 is removed (§17). Returns the new number.
    ///
    /// # Errors
    /// `Invalid` when the value is not one 64-bit number; as [`ZapMut::update`].
    pub(crate) fn increment(&self, name: &[u8], delta: i64) -> Result<u64> {
        let old = match self.lookup(name)? {
            None => None,
            Some(v) => {
                let odd = || Error::invalid("the value under this name is not a number");
                Some(v.as_u64().ok_or_else(odd)?)
            }
        };
        let new = old.unwrap_or(0).wrapping_add_signed(delta);
        match (old, new) {
            (None, 0) => {}
            (Some(_), 0) => self.remove(name)?,
            _ if delta == 0 => {}
            _ => self.update(name, &ZapValue::from_u64(new))?,
        }
        Ok(new)
    }
}
