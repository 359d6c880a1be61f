//! The ZAP over an object: look up, list, resume from a cookie.
//!
//! # Theory
//! Block 0 has the form. A microzap is searched in place; a fat ZAP is searched from hash
//! to pointer to leaf. Listing follows (hash, cd), so a cookie stays valid while the ZAP
//! grows, splits or turns fat (chapter 03 §19).
//!
//! # Invariants
//! * A lookup reads at most three blocks. A listing reads each leaf once, and every step
//!   moves the cursor forward, so no image can make it endless.

use base::{Buf, Error, Result};
use ondisk::normalize::{self, NameKey};
use ondisk::zap::{
    Cursor, FatHeader, HASH_BITS, MicroZap, NAME_MAX, NAME_MAX_LONG, PointerLocation, ZapBlock,
    ZapValue,
};

use ondisk::ObjType;
pub use ondisk::normalize::MatchType as Match;
use ondisk::zapleaf::Leaf;
use zio::Io;

use crate::object::Object;

/// The most consecutive pointers without a leaf, or leaves without an entry. A table of
/// 2^40 holes takes no space on disk, but a walk over it would not end in practice.
const EMPTY_STEPS_MAX: usize = 1 << 20;
/// Pointers examined for leaves to read ahead.
const POINTERS_AHEAD: usize = 512;

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZapEntry {
    /// The stored name, without its NUL.
    pub name: Vec<u8>,
    /// The value.
    pub value: ZapValue,
    /// Position of this entry.
    pub hash: u64,
    /// Collision differentiator.
    pub cd: u32,
}

/// A ZAP object, its first block read.
pub struct Zap {
    object: Object,
    block: Buf,
    endian: ondisk::Endian,
    io: Io,
}

enum ZapView<'a> {
    Micro(MicroZap<'a>),
    Fat(FatHeader<'a>),
}

impl Zap {
    /// Opens the ZAP in `object`; every later read is made as `io` says.
    ///
    /// # Errors
    /// `Corrupt` when the object is no ZAP; those of reading block 0.
    pub fn open(object: Object, io: Io) -> Result<Zap> {
        if !object.object_type().is_zap() {
            return Err(Error::corrupt("object is not a ZAP").in_object(object.id()));
        }
        let block = object.read_block(0, io)?;
        let endian = object.block_endian(0, io)?;
        let zap = Zap { object, block, endian, io };
        zap.form()?;
        Ok(zap)
    }

    fn fail(&self, e: Error) -> Error {
        e.in_object(self.object.id())
    }

    fn form(&self) -> Result<ZapView<'_>> {
        match ZapBlock::parse(&self.block, self.endian).map_err(|e| self.fail(e))? {
            ZapBlock::Micro(m) => Ok(ZapView::Micro(m)),
            ZapBlock::FatHeader(h) => Ok(ZapView::Fat(h)),
            ZapBlock::Leaf(_) => Err(self.fail(Error::corrupt("a ZAP begins with a leaf"))),
        }
    }

    /// The object that holds it.
    pub fn object(&self) -> &Object {
        &self.object
    }

    /// Flags for names (chapter 03 §16).
    ///
    /// # Errors
    /// `Corrupt` when block 0 is damaged.
    pub fn normflags(&self) -> Result<u64> {
        Ok(match self.form()? {
            ZapView::Micro(m) => m.normflags,
            ZapView::Fat(h) => h.phys.normflags,
        })
    }

    /// Significant bits of this ZAP's hashes, as [`Cursor`] needs them.
    ///
    /// # Errors
    /// `Corrupt` when block 0 is damaged.
    pub fn hash_bits(&self) -> Result<u32> {
        Ok(match self.form()? {
            ZapView::Micro(_) => HASH_BITS,
            ZapView::Fat(h) => h.phys.hash_bits(),
        })
    }

    /// Whether keys are arrays of 64-bit words instead of names.
    ///
    /// # Errors
    /// `Corrupt` when block 0 is damaged.
    pub fn has_word_keys(&self) -> Result<bool> {
        Ok(matches!(self.form()?, ZapView::Fat(h) if h.phys.has_word_keys()))
    }

    /// The header of a fat ZAP (zdb's statistics); `None` for a microzap.
    ///
    /// # Errors
    /// `Corrupt` when block 0 is damaged.
    pub fn fat_header(&self) -> Result<Option<ondisk::zap::FatPhys>> {
        Ok(match self.form()? {
            ZapView::Micro(_) => None,
            ZapView::Fat(h) => Some(h.phys),
        })
    }

    /// The value under `name`.
    ///
    /// # Errors
    /// Those of reading, or `Corrupt`.
    pub fn lookup(&self, name: &[u8]) -> Result<Option<ZapValue>> {
        Ok(self.lookup_as(name, Match::Exact)?.map(|e| e.value))
    }

    /// The number under `name`; a value of another shape is `Corrupt`.
    ///
    /// # Errors
    /// As [`Zap::lookup`].
    pub fn lookup_u64(&self, name: &str) -> Result<Option<u64>> {
        let Some(value) = self.lookup(name.as_bytes())? else { return Ok(None) };
        let odd = || self.fail(Error::corrupt(format!("the entry {name} is not a number")));
        value.as_u64().map(Some).ok_or_else(odd)
    }

    /// The string under `name`.
    ///
    /// # Errors
    /// As [`Zap::lookup`].
    pub fn lookup_str(&self, name: &str) -> Result<Option<String>> {
        let value = self.lookup(name.as_bytes())?;
        Ok(value
            .as_ref()
            .and_then(ZapValue::as_str_bytes)
            .map(|b| String::from_utf8_lossy(b).into_owned()))
    }

    /// The entry that `name` finds under the rules of `how`.
    ///
    /// # Errors
    /// As [`Zap::lookup`].
    pub fn lookup_as(&self, name: &[u8], how: Match) -> Result<Option<ZapEntry>> {
        let max = if self.object.object_type() == ObjType::DIRECTORY_CONTENTS {
            NAME_MAX_LONG - 1
        } else {
            NAME_MAX - 1
        };
        match self.form()? {
            ZapView::Micro(zap) => {
                let key = NameKey::new(name, zap.normflags, how, max)?;
                Ok(find_micro(&zap, &key))
            }
            ZapView::Fat(header) => {
                let key = NameKey::new(name, header.phys.normflags, how, max)?;
                let hash = header.phys.hash_name(key.hash_form());
                let Some((block, endian)) = self.leaf_for(&header, hash)? else {
                    return Ok(None);
                };
                let leaf = Leaf::parse(&block, endian).map_err(|e| self.fail(e))?;
                let found = leaf
                    .lookup(hash, |e| match how {
                        Match::Exact => e.name_is(name),
                        _ => Ok(key.matches(&e.name()?)),
                    })
                    .map_err(|e| self.fail(e))?;
                found.map(|e| entry_of(&e)).transpose().map_err(|e| self.fail(e))
            }
        }
    }

    /// The value under a key of 64-bit words.
    ///
    /// # Errors
    /// As [`Zap::lookup`].
    pub fn lookup_words(&self, key: &[u64]) -> Result<Option<ZapValue>> {
        let ZapView::Fat(header) = self.form()? else { return Ok(None) };
        let hash = header.phys.hash_words(key);
        let Some((block, endian)) = self.leaf_for(&header, hash)? else { return Ok(None) };
        let leaf = Leaf::parse(&block, endian).map_err(|e| self.fail(e))?;
        let found = leaf.lookup(hash, |e| Ok(e.key_words()? == key)).map_err(|e| self.fail(e))?;
        found.map(|e| e.value()).transpose().map_err(|e| self.fail(e))
    }

    fn leaf_for(&self, header: &FatHeader<'_>, hash: u64) -> Result<Option<(Buf, ondisk::Endian)>> {
        let location = header.pointer_location(hash).map_err(|e| self.fail(e))?;
        let blkid = match location {
            PointerLocation::Embedded(blkid) => blkid,
            PointerLocation::External { blkid, index } => {
                let (table, endian) = self.block(blkid)?;
                header.read_pointer(&table, index, endian).map_err(|e| self.fail(e))?
            }
        };
        if blkid == 0 { Ok(None) } else { self.block(blkid).map(Some) }
    }

    fn block(&self, blkid: u64) -> Result<(Buf, ondisk::Endian)> {
        let endian = self.object.block_endian(blkid, self.io)?;
        Ok((self.object.read_block(blkid, self.io)?, endian))
    }

    /// The blocks of up to `max` leaves from `hash` on, with the hash behind each; empty
    /// for a microzap. Only pointers already in memory are used. One call examines a
    /// bounded number of pointers.
    ///
    /// # Errors
    /// `Corrupt` when block 0 or a pointer is damaged.
    pub(crate) fn leaves_from(&self, hash: u64, max: usize) -> Result<Vec<(u64, u64)>> {
        let ZapView::Fat(header) = self.form()? else { return Ok(Vec::new()) };
        let Some(step) = 1u64.checked_shl(64 - header.phys.zt_shift as u32) else {
            return Ok(Vec::new());
        };
        let mut found: Vec<(u64, u64)> = Vec::new();
        let mut at = Some(hash & !(step - 1));
        for _ in 0..POINTERS_AHEAD {
            let Some(hash) = at else { break };
            let location = header.pointer_location(hash).map_err(|e| self.fail(e))?;
            let leaf = match location {
                PointerLocation::Embedded(blkid) => blkid,
                PointerLocation::External { blkid, index } => {
                    let Ok(table) = self.object.read_block(blkid, Io::MEMORY) else { break };
                    let endian = self.object.block_endian(blkid, Io::MEMORY)?;
                    header.read_pointer(&table, index, endian).map_err(|e| self.fail(e))?
                }
            };
            at = hash.checked_add(step);
            let end = at.unwrap_or(u64::MAX);
            // Neighbouring pointers share a leaf.
            if let Some(last) = found.last_mut().filter(|last| last.0 == leaf) {
                last.1 = end;
            } else if leaf != 0 {
                if found.len() == max {
                    break;
                }
                found.push((leaf, end));
            }
        }
        Ok(found)
    }

    /// The part of the hash space that a leaf spans on average.
    ///
    /// # Errors
    /// `Corrupt` when block 0 is damaged.
    pub fn leaf_span(&self) -> Result<u64> {
        Ok(match self.form()? {
            ZapView::Micro(_) => u64::MAX,
            ZapView::Fat(h) => u64::MAX / h.phys.num_leafs.max(1),
        })
    }

    /// Every entry, in cursor order. Meant for ZAPs of bounded size; directories
    /// are listed with [`Zap::list_from`].
    ///
    /// # Errors
    /// As [`Zap::lookup`].
    pub fn entries(&self) -> Result<Vec<ZapEntry>> {
        let mut all = Vec::new();
        self.for_each(|e| {
            all.push(e);
            Ok(())
        })?;
        Ok(all)
    }

    /// Calls `f` with every entry, in cursor order.
    ///
    /// # Errors
    /// As [`Zap::lookup`], and those of `f`.
    pub fn for_each(&self, mut f: impl FnMut(ZapEntry) -> Result<()>) -> Result<()> {
        let mut cursor = Some(Cursor::default());
        let mut empty = 0;
        while let Some(at) = cursor {
            let (batch, next) = self.list_from(at, usize::MAX)?;
            empty = if batch.is_empty() { empty + 1 } else { 0 };
            if empty > EMPTY_STEPS_MAX {
                return Err(self.fail(Error::limit("a ZAP's pointers lead to nothing, on and on")));
            }
            for entry in batch {
                f(entry)?;
            }
            cursor = next;
        }
        Ok(())
    }

    /// Entries at or after `from`, at most one leaf's worth and about `max` of them, and
    /// the cursor to continue from; `None` at the end.
    ///
    /// # Errors
    /// As [`Zap::lookup`].
    pub fn list_from(&self, from: Cursor, max: usize) -> Result<(Vec<ZapEntry>, Option<Cursor>)> {
        match self.form()? {
            ZapView::Micro(zap) => Ok(list_micro(&zap, from, max)),
            ZapView::Fat(header) => self.list_fat(&header, from, max),
        }
    }

    fn list_fat(
        &self,
        header: &FatHeader<'_>,
        from: Cursor,
        max: usize,
    ) -> Result<(Vec<ZapEntry>, Option<Cursor>)> {
        let words = header.phys.has_word_keys();
        let Some((block, endian)) = self.leaf_for(header, from.hash)? else {
            // No leaf for this pointer: continue with the next pointer.
            let step = 1u64.checked_shl(64 - header.phys.zt_shift as u32).unwrap_or(0);
            let next = (from.hash & !step.wrapping_sub(1)).checked_add(step).filter(|_| step > 0);
            return Ok((Vec::new(), next.map(|hash| Cursor { hash, cd: 0 })));
        };
        let leaf = Leaf::parse(&block, endian).map_err(|e| self.fail(e))?;
        if !leaf.header().covers(from.hash) {
            return Err(self.fail(Error::corrupt("ZAP pointer leads to the wrong leaf")));
        }
        let mut out = Vec::new();
        let entries = leaf.entries().map_err(|e| self.fail(e))?;
        let mut rest = entries.iter().filter(|e| (e.hash, e.cd) >= (from.hash, from.cd));
        for e in rest.by_ref().take(max) {
            let entry = if words {
                let key = e.key_words().map_err(|e| self.fail(e))?;
                let name = key.iter().flat_map(|w| w.to_be_bytes()).collect();
                let value = e.value().map_err(|e| self.fail(e))?;
                ZapEntry { name, value, hash: e.hash, cd: e.cd }
            } else {
                entry_of(e).map_err(|e| self.fail(e))?
            };
            out.push(entry);
        }
        let next = match rest.next() {
            Some(e) => Some(Cursor { hash: e.hash, cd: e.cd }),
            None => leaf.header().next_hash().map(|hash| Cursor { hash, cd: 0 }),
        };
        Ok((out, next))
    }
}

fn entry_of(e: &ondisk::zap::LeafEntry<'_>) -> Result<ZapEntry> {
    Ok(ZapEntry { name: e.name()?, value: e.value()?, hash: e.hash, cd: e.cd })
}

fn micro_entry(e: &ondisk::zap::MicroEntry<'_>, hash: u64) -> ZapEntry {
    ZapEntry { name: e.name.to_vec(), value: ZapValue::from_u64(e.value), hash, cd: e.cd }
}

fn micro_hash(zap: &MicroZap<'_>, name: &[u8]) -> u64 {
    normalize::hash_name(zap.salt, name, zap.normflags, HASH_BITS)
}

fn find_micro(zap: &MicroZap<'_>, key: &NameKey<'_>) -> Option<ZapEntry> {
    let found = zap.find_key(key)?;
    Some(micro_entry(&found, key.hash(zap.salt, HASH_BITS)))
}

fn list_micro(zap: &MicroZap<'_>, from: Cursor, max: usize) -> (Vec<ZapEntry>, Option<Cursor>) {
    let index = zap.index(|name| micro_hash(zap, name));
    let rest = index.from(from.hash, from.cd);
    let out = rest
        .iter()
        .take(max)
        .filter_map(|k| zap.slot(k.slot as usize).map(|e| micro_entry(&e, k.hash)))
        .collect();
    let next = rest.get(max).map(|k| Cursor { hash: k.hash, cd: k.cd });
    (out, next)
}
