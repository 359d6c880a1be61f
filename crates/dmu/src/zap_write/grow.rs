//! The structure of a fat ZAP: splitting leaves, growing the pointer table, merging empty
//! leaves (chapter 03 §14.2, §17).
//!
//! # Theory
//! A split needs a pointer for each half of a leaf's range: the table must be deeper than
//! the leaf. The table is doubled one block at a time, along with additions, and completely
//! when a split needs it at once. Each step leaves a valid ZAP.
//!
//! # Invariants
//! * One operation writes at most [`POINTERS_MAX`] pointers and copies at most
//!   [`TABLE_BLOCKS_MAX`] blocks of a table.

use std::ops::Range;

use base::{Error, ErrorKind, Result};
use ondisk::zap::FatPhys;
use ondisk::zap::leafmut::LeafMut;
use ondisk::zapleaf::Leaf;

use super::fat::Fat;
use super::stage::Stage;
use super::{LE, ZapStore};

/// Pointers that one split or merge may set: 64 MiB of a table.
const POINTERS_MAX: u64 = 1 << 23;
/// Blocks of a pointer table that one split may copy: 2^26 pointers in the
/// smallest blocks.
const TABLE_BLOCKS_MAX: u64 = 1 << 20;
/// Blocks of a pointer table that are searched for the highest leaf.
const SEARCH_BLOCKS_MAX: u64 = 1 << 12;
/// The table starts to grow when a leaf as deep as the table has fewer free chunks.
const LOW_CHUNKS: usize = 20;

impl<S: ZapStore + ?Sized> Fat<'_, S> {
    /// Called after an addition to a leaf of this depth and that many free chunks. Begins
    /// to grow the table, or takes a step if it is growing. The addition is complete, so an
    /// error here is ignored; it will return in an operation that needs the step.
    pub(super) fn grow_ahead(&mut self, depth: u64, nfree: usize) {
        let growing = self.phys.zt_nextblk != 0;
        let full = self.phys.zt_shift >= u64::from(self.shift_max());
        if growing || (depth == self.phys.zt_shift && nfree < LOW_CHUNKS && !full) {
            drop(self.grow_step());
        }
    }

    /// Splits a leaf; the entries with the next hash bit set move to a new one.
    pub(super) fn split(&mut self, blkid: u64, block: base::Buf) -> Result<()> {
        let header = *Leaf::parse(&block, LE)?.header();
        let depth = u64::from(header.prefix_len);
        if depth > self.phys.zt_shift {
            return Err(Error::corrupt("a ZAP leaf is deeper than the pointer table"));
        }
        while depth == self.phys.zt_shift {
            if self.phys.zt_numblks > TABLE_BLOCKS_MAX {
                return Err(Error::limit("a ZAP's pointer table is too large to grow at once"));
            }
            self.grow_step()?;
        }
        let mut stage = Stage::new(self.phys);
        let fresh = stage.take(1)?;
        let mut lower = block.to_vec();
        let mut upper = vec![0; lower.len()];
        LeafMut::open(&mut lower, self.key_size())?.split_into(&mut upper, self.phys.normflags)?;
        stage.phys.num_leafs += 1;
        // The old leaf is written last: until then it has every entry.
        stage.put(fresh, None, upper);
        stage.header();
        let width = 1 << (self.phys.zt_shift - depth - 1);
        let start = (2 * header.prefix + 1) * width;
        self.point(&mut stage, start..start + width, fresh)?;
        stage.put(blkid, Some(block), lower);
        stage.commit(self)
    }

    /// Sets pointers to `leaf`, in a growing table's copied blocks too.
    fn point(&self, stage: &mut Stage, range: Range<u64>, leaf: u64) -> Result<()> {
        let phys = self.phys;
        if range.end - range.start > POINTERS_MAX {
            return Err(Error::limit("too many pointers of a ZAP lead to one leaf"));
        }
        if phys.zt_numblks == 0 {
            stage.point_embedded(range, leaf);
            return Ok(());
        }
        self.fill(stage, phys.zt_blk, range.clone(), leaf)?;
        if phys.zt_nextblk != 0 {
            // Blocks still to be copied will be overwritten as a whole.
            let copied = phys.zt_blks_copied << (self.bs - 3);
            let next = 2 * range.start.min(copied)..2 * range.end.min(copied);
            self.fill(stage, phys.zt_nextblk, next, leaf)?;
        }
        Ok(())
    }

    /// Sets pointers of the external table at `table`.
    fn fill(&self, stage: &mut Stage, table: u64, range: Range<u64>, leaf: u64) -> Result<()> {
        let per = 1u64 << (self.bs - 3);
        let mut at = range.start;
        while at < range.end {
            let end = range.end.min((at / per + 1) * per);
            let words = stage.edit(self, table + at / per)?.as_chunks_mut::<8>().0;
            let first = (at % per) as usize;
            words[first..first + (end - at) as usize].fill(leaf.to_le_bytes());
            at = end;
        }
        Ok(())
    }

    /// One step of doubling the table: from embedded to external, or one block.
    fn grow_step(&mut self) -> Result<()> {
        if self.phys.zt_shift >= u64::from(self.shift_max()) {
            return Err(Error::new(ErrorKind::NoSpace, "a ZAP's pointer table cannot grow"));
        }
        let size = 1usize << self.bs;
        let mut stage = Stage::new(self.phys);
        if self.phys.zt_numblks == 0 {
            let fresh = stage.take(1)?;
            let header = self.header()?;
            stage.put(fresh, None, doubled(&header[size / 2..]));
            stage.phys.zt_blk = fresh;
            stage.phys.zt_numblks = 1;
            stage.phys.zt_shift += 1;
            return stage.commit(self);
        }
        let blocks = self.phys.zt_numblks;
        if self.phys.zt_nextblk == 0 {
            stage.phys.zt_nextblk = stage.take(2 * blocks)?;
            stage.phys.zt_blks_copied = 0;
        }
        let (next, copied) = (stage.phys.zt_nextblk, stage.phys.zt_blks_copied);
        let old = self.block(self.phys.zt_blk + copied)?;
        stage.put(next + 2 * copied, None, doubled(&old[..size / 2]));
        stage.put(next + 2 * copied + 1, None, doubled(&old[size / 2..]));
        stage.phys.zt_blks_copied += 1;
        if stage.phys.zt_blks_copied == blocks {
            stage.free(self.phys.zt_blk, blocks);
            stage.phys.zt_blk = next;
            stage.phys.zt_numblks = 2 * blocks;
            stage.phys.zt_shift += 1;
            stage.phys.zt_nextblk = 0;
            stage.phys.zt_blks_copied = 0;
        }
        stage.commit(self)
    }

    /// Merges the leaf for `hash`, which is empty, with its sibling as long as that
    /// is empty too.
    pub(super) fn shrink(&mut self, hash: u64) -> Result<()> {
        let mut lower_freeblk = false;
        while let Some(freed) = self.merge(hash)? {
            lower_freeblk |= freed + 1 == self.phys.freeblk;
        }
        if lower_freeblk { self.lower_freeblk() } else { Ok(()) }
    }

    /// Merges once; the block that became free, or `None` if nothing was to be done.
    fn merge(&mut self, hash: u64) -> Result<Option<u64>> {
        let Some((blkid, block)) = self.leaf(hash)? else { return Ok(None) };
        let header = *Leaf::parse(&block, LE)?.header();
        let depth = u64::from(header.prefix_len);
        if header.nentries != 0 || depth == 0 || depth > self.phys.zt_shift {
            return Ok(None);
        }
        let width = 1u64 << (self.phys.zt_shift - depth);
        let twin = self.pointer((header.prefix ^ 1) * width)?;
        if twin == 0 || twin == blkid {
            return Ok(None);
        }
        let twin_block = self.block(twin)?;
        let twin_leaf = Leaf::parse(&twin_block, LE)?;
        let other = twin_leaf.header();
        if other.prefix_len != header.prefix_len
            || other.prefix != header.prefix ^ 1
            || other.nentries != 0
        {
            return Ok(None);
        }
        // A leaf that is counted as empty but has entries is damaged.
        twin_leaf.verify(self.key_size())?;
        Leaf::parse(&block, LE)?.verify(self.key_size())?;
        let (keep, keep_block, unused) =
            if header.prefix & 1 == 0 { (blkid, block, twin) } else { (twin, twin_block, blkid) };
        let mut merged = vec![0; keep_block.len()];
        let sorted = self.phys.normflags != 0;
        let len = header.prefix_len - 1;
        LeafMut::init(&mut merged, header.prefix >> 1, len, sorted, self.key_size())?;
        let mut stage = Stage::new(self.phys);
        stage.put(keep, Some(keep_block), merged);
        let odd = || Error::corrupt("a ZAP's count of leaves is wrong");
        stage.phys.num_leafs = self.phys.num_leafs.checked_sub(1).ok_or_else(odd)?;
        let start = (header.prefix | 1) * width;
        self.point(&mut stage, start..start + width, keep)?;
        stage.free(unused, 1);
        stage.commit(self)?;
        Ok(Some(unused))
    }

    /// Makes `zap_freeblk` one more than the highest block in use.
    fn lower_freeblk(&mut self) -> Result<()> {
        let phys = self.phys;
        let mut highest = 0;
        let mut search = |table: &[u8]| {
            let ids = table.as_chunks::<8>().0.iter().map(|w| u64::from_le_bytes(*w));
            highest = highest.max(ids.max().unwrap_or(0));
        };
        if phys.zt_numblks == 0 {
            search(&self.header()?[1 << (self.bs - 1)..]);
        } else if phys.zt_numblks > SEARCH_BLOCKS_MAX {
            return Ok(());
        }
        for blkid in phys.zt_blk..phys.zt_blk + phys.zt_numblks {
            search(&self.block(blkid)?);
        }
        let mut freeblk = (highest + 1).max(phys.zt_blk + phys.zt_numblks);
        if phys.zt_nextblk != 0 {
            freeblk = freeblk.max(phys.zt_nextblk + 2 * phys.zt_numblks);
        }
        if freeblk < phys.freeblk {
            self.set_header(FatPhys { freeblk, ..phys })?;
        }
        Ok(())
    }
}

/// Each pointer twice.
fn doubled(pointers: &[u8]) -> Vec<u8> {
    pointers.as_chunks::<8>().0.iter().flat_map(|p| [*p, *p]).flatten().collect()
}
