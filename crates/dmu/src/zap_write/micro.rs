//! Changing a microzap, and turning it into a fat ZAP (chapter 03 §13).

use std::cell::RefCell;

use base::{Buf, BufMut, Error, ErrorKind, Result};
use ondisk::normalize::{self, NameKey};
use ondisk::zap::{
    HASH_BITS, MICRO_NAME_MAX, MicroKey, MicroZap, ZapBlock, ZapValue, micro_clear, micro_set,
};
use ondisk::zapleaf::Leaf;

use super::fat::{self, Fat, FatKey};
use super::{Index, LE, ZapLimits, ZapStore, absent, exists};
use crate::zap::ZapEntry;

/// Bytes that a full microzap grows by.
const GROW: usize = 512;
/// Block size of a fat ZAP that was a microzap.
const FAT_BLOCK: u32 = 16 << 10;
/// Chunks of a leaf of [`FAT_BLOCK`] bytes; an entry of a microzap takes up to 5.
const FAT_CHUNKS: usize = 638;

/// What [`put`] did.
pub(super) enum Put {
    /// All of it.
    Done,
    /// Nothing: the microzap, handed back, must turn fat first.
    Convert(Buf),
}

fn hash_of(zap: &MicroZap<'_>, name: &[u8]) -> u64 {
    normalize::hash_name(zap.salt, name, zap.normflags, HASH_BITS)
}

/// The entry that `key` finds.
pub(super) fn lookup(block: &Buf, key: &NameKey<'_>) -> Result<Option<ZapEntry>> {
    let zap = MicroZap::parse(block, LE)?;
    let found = zap.find_key(key);
    Ok(found.map(|e| ZapEntry {
        name: e.name.to_vec(),
        value: ZapValue::from_u64(e.value),
        hash: key.hash(zap.salt, HASH_BITS),
        cd: e.cd,
    }))
}

/// An entry to add.
pub(super) struct NewEntry<'a> {
    pub(super) name: &'a [u8],
    pub(super) value: &'a ZapValue,
    /// It may replace the value of one that is there.
    pub(super) replace: bool,
}

/// The change count of a store's content, and the index that is valid for it.
type KnownIndex = (u64, Option<Index>);

pub(super) fn index_of(zap: &MicroZap<'_>) -> Index {
    Index { keys: zap.index(|name| hash_of(zap, name)), free_from: 0 }
}

/// Adds an entry, or replaces a value.
pub(super) fn put<S: ZapStore + ?Sized>(
    store: &S,
    block: Buf,
    (changes, index): KnownIndex,
    key: &NameKey<'_>,
    entry: &NewEntry<'_>,
    limits: &ZapLimits,
) -> Result<Put> {
    let zap = MicroZap::parse(&block, LE)?;
    let mut index = index.unwrap_or_else(|| index_of(&zap));
    let hash = key.hash(zap.salt, HASH_BITS);
    let is_it = |k: &&MicroKey| zap.slot(k.slot as usize).is_some_and(|e| e.name == entry.name);
    let found = index.keys.with_hash(hash).iter().find(is_it).copied();
    if found.is_some() && !entry.replace {
        store.keep(changes, index);
        return Err(exists());
    }
    let number = entry.value.as_u64().filter(|_| entry.name.len() <= MICRO_NAME_MAX);
    let Some(number) = number else { return Ok(Put::Convert(block)) };
    let (slot, cd, size) = match found {
        Some(k) => (k.slot as usize, k.cd, block.len()),
        None => match place(&zap, &index, hash, block.len(), limits) {
            Some(place) => place,
            None => return Ok(Put::Convert(block)),
        },
    };
    let grown = size != block.len();
    // No other reference to the block remains, so the store need not copy it.
    drop(block);
    if grown {
        store.set_block_size(size as u32)?;
    }
    store.edit(0, &mut |b| micro_set(b, slot, entry.name, number, cd))?;
    if found.is_none() {
        index.keys.insert(MicroKey { hash, cd, slot: slot as u32 });
        index.free_from = slot + 1;
    }
    store.keep(changes + 1 + u64::from(grown), index);
    Ok(Put::Done)
}

/// Slot and differentiator for a new entry, and the size of the block that has them; `None`
/// when a microzap has no room.
fn place(
    zap: &MicroZap<'_>,
    index: &Index,
    hash: u64,
    size: usize,
    limits: &ZapLimits,
) -> Option<(usize, u32, usize)> {
    if 5 * (index.keys.with_hash(hash).len() + 1) >= FAT_CHUNKS {
        return None;
    }
    let cd = index.keys.free_cd(hash);
    match zap.free_slot(index.free_from) {
        Some(slot) => Some((slot, cd, size)),
        None if size + GROW <= limits.micro_max as usize => Some((zap.slots(), cd, size + GROW)),
        None => None,
    }
}

/// Removes the entry that `key` finds.
pub(super) fn remove<S: ZapStore + ?Sized>(
    store: &S,
    block: Buf,
    (changes, index): KnownIndex,
    key: &NameKey<'_>,
) -> Result<()> {
    let zap = MicroZap::parse(&block, LE)?;
    let mut index = index.unwrap_or_else(|| index_of(&zap));
    let hash = key.hash(zap.salt, HASH_BITS);
    let matches = |k: &&MicroKey| zap.slot(k.slot as usize).is_some_and(|e| key.matches(e.name));
    // Of several entries that normalise alike, the one with the lowest differentiator.
    let found = index.keys.with_hash(hash).iter().find(matches).copied();
    let Some(MicroKey { slot, .. }) = found else {
        store.keep(changes, index);
        return Err(absent());
    };
    drop(block);
    store.edit(0, &mut |b| micro_clear(b, slot as usize))?;
    index.keys.remove(hash, slot);
    index.free_from = index.free_from.min(slot as usize);
    store.keep(changes + 1, index);
    Ok(())
}

/// Turns the microzap in block 0 into a fat ZAP with the same salt, flags and
/// differentiators.
pub(super) fn convert<S: ZapStore + ?Sized>(store: &S, old: Buf) -> Result<()> {
    let blocks = fat_blocks(&MicroZap::parse(&old, LE)?)?;
    let size = store.block_size()?;
    store.set_block_size(FAT_BLOCK)?;
    // Block 0 is written last: until then the object is a microzap.
    let mut done = Ok(());
    for (blkid, block) in blocks.iter().enumerate().rev() {
        // Blocks that growing tables left behind stay holes.
        if block.iter().any(|b| *b != 0) {
            done = store.edit(blkid as u64, &mut |b| copy(b, block));
        }
        if done.is_err() {
            break;
        }
    }
    if done.is_err() {
        let undone = store
            .free_block(1, blocks.len() as u64 - 1)
            .and_then(|()| store.set_block_size(size))
            .and_then(|()| store.edit(0, &mut |b| copy(b, &old)));
        // The caller gets the first error, not one of undoing.
        drop(undone);
    }
    done
}

pub(super) fn copy(to: &mut [u8], from: &[u8]) -> Result<()> {
    if to.len() != from.len() {
        return Err(Error::bug("a block of a ZAP has another size than the ZAP"));
    }
    to.copy_from_slice(from);
    Ok(())
}

/// The blocks of the fat ZAP with these entries, added in slot order.
fn fat_blocks(zap: &MicroZap<'_>) -> Result<Vec<Buf>> {
    let scratch = ScratchBlocks::new(FAT_BLOCK);
    fat::init_any_salt(&scratch, zap.salt, zap.normflags, 0)?;
    let limits = ZapLimits::default();
    let header = scratch.read(0)?;
    let ZapBlock::FatHeader(h) = ZapBlock::parse(&header, LE)? else {
        return Err(base::bug!("a new fat ZAP has no header"));
    };
    let mut fat = Fat::new(&scratch, header.clone(), h.phys, limits);
    drop(header);
    for e in zap.entries() {
        let key = FatKey::stored(hash_of(zap, e.name), e.name);
        fat.put(&key, Some(e.cd), &ZapValue::from_u64(e.value), false).map_err(|e| {
            match e.kind() {
                ErrorKind::Exists => Error::corrupt("a microzap has two entries of one name"),
                _ => e,
            }
        })?;
    }
    drop(fat);
    let blocks = scratch.blocks.into_inner();
    for block in &blocks {
        // A hostile microzap may have had two entries of one hash and cd.
        if let Ok(leaf) = Leaf::parse(block, LE) {
            leaf.verify(1)?;
        }
    }
    Ok(blocks)
}

/// Blocks in memory.
pub(super) struct ScratchBlocks {
    size: u32,
    blocks: RefCell<Vec<Buf>>,
}

impl ScratchBlocks {
    pub(super) fn new(size: u32) -> ScratchBlocks {
        ScratchBlocks { size, blocks: RefCell::default() }
    }
}

impl ZapStore for ScratchBlocks {
    fn block_size(&self) -> Result<u32> {
        Ok(self.size)
    }

    fn read(&self, blkid: u64) -> Result<Buf> {
        let blocks = self.blocks.borrow();
        let block = usize::try_from(blkid).ok().and_then(|i| blocks.get(i));
        block.cloned().ok_or_else(|| base::bug!("no such block in memory"))
    }

    fn edit(&self, blkid: u64, f: &mut dyn FnMut(&mut [u8]) -> Result<()>) -> Result<()> {
        let mut blocks = self.blocks.borrow_mut();
        let at = usize::try_from(blkid).map_err(|_| base::bug!("no such block in memory"))?;
        if at >= blocks.len() {
            blocks.resize(at + 1, Buf::zeros(self.size as usize));
        }
        let block = std::mem::take(&mut blocks[at]);
        let mut block = block.try_unfreeze().unwrap_or_else(|shared| BufMut::copy_of(&shared));
        let done = f(&mut block);
        blocks[at] = block.freeze();
        done
    }

    fn set_block_size(&self, _: u32) -> Result<()> {
        Err(base::bug!("blocks in memory keep their size"))
    }

    fn free_block(&self, blkid: u64, count: u64) -> Result<()> {
        for block in self.blocks.borrow_mut().iter_mut().skip(blkid as usize).take(count as usize) {
            *block = Buf::zeros(self.size as usize);
        }
        Ok(())
    }
}
