//! A change of several blocks, prepared in memory and then written as one.
//!
//! # Invariants
//! * Nothing is written before [`Stage::commit`]. Blocks are written in the order in which
//!   they were named, the header last unless [`Stage::header`] gave it a position; blocks
//!   become holes after all of it.
//! * When an edit fails, the blocks that were edited get their old content back.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;

use base::{Buf, Error, ErrorKind, Result};
use ondisk::zap::FatPhys;
use ondisk::zap::leafmut::set_embedded_pointers;

use super::fat::Fat;
use super::{ZapStore, micro};

/// Largest block id, as [`FatPhys`] allows it.
const FREEBLK_MAX: u64 = 1 << 48;

struct Staged {
    /// The old content; `None` if no pointer referred to the block.
    old: Option<Buf>,
    new: Vec<u8>,
}

/// See the module head.
pub(super) struct Stage {
    /// The header's new fields.
    pub(super) phys: FatPhys,
    pointers: Vec<(Range<u64>, u64)>,
    blocks: BTreeMap<u64, Staged>,
    /// Block ids in the order of writing.
    order: Vec<u64>,
    freed: Vec<(u64, u64)>,
}

impl Stage {
    /// No change yet.
    pub(super) fn new(phys: FatPhys) -> Stage {
        Stage {
            phys,
            pointers: Vec::new(),
            blocks: BTreeMap::new(),
            order: Vec::new(),
            freed: Vec::new(),
        }
    }

    /// Takes `count` block ids that were never used.
    pub(super) fn take(&mut self, count: u64) -> Result<u64> {
        let first = self.phys.freeblk;
        let end = first.checked_add(count).filter(|end| *end <= FREEBLK_MAX);
        let full = || Error::new(ErrorKind::NoSpace, "the ZAP has no more block numbers");
        self.phys.freeblk = end.ok_or_else(full)?;
        Ok(first)
    }

    /// The whole new content of a block; `old` is the content before.
    pub(super) fn put(&mut self, blkid: u64, old: Option<Buf>, new: Vec<u8>) {
        self.blocks.insert(blkid, Staged { old, new });
        self.order.push(blkid);
    }

    /// A block of the ZAP, to be edited.
    pub(super) fn edit<S: ZapStore + ?Sized>(
        &mut self,
        zap: &Fat<'_, S>,
        blkid: u64,
    ) -> Result<&mut [u8]> {
        let staged = match self.blocks.entry(blkid) {
            Entry::Occupied(o) => o.into_mut(),
            Entry::Vacant(v) => {
                let old = zap.block(blkid)?;
                let new = old.to_vec();
                self.order.push(blkid);
                v.insert(Staged { old: Some(old), new })
            }
        };
        Ok(&mut staged.new)
    }

    /// Sets pointers of the embedded table.
    pub(super) fn point_embedded(&mut self, range: Range<u64>, leaf: u64) {
        self.pointers.push((range, leaf));
    }

    /// Puts the header here in the order of writing; without this call it is last.
    pub(super) fn header(&mut self) {
        self.order.push(0);
    }

    /// Makes blocks holes once no pointer refers to them.
    pub(super) fn free(&mut self, blkid: u64, count: u64) {
        self.freed.push((blkid, count));
    }

    /// Writes everything. On an error the ZAP is as before, unless restoring a
    /// block failed as well.
    pub(super) fn commit<S: ZapStore + ?Sized>(mut self, zap: &mut Fat<'_, S>) -> Result<()> {
        let store = zap.store;
        let header = zap.header()?;
        zap.renew(zap.phys);
        if !self.order.contains(&0) {
            self.header();
        }
        let write = |blkid: u64| match self.blocks.get(&blkid) {
            Some(staged) => store.edit(blkid, &mut |b| micro::copy(b, &staged.new)),
            None => store.edit(0, &mut |b| {
                self.phys.encode(b)?;
                self.pointers
                    .iter()
                    .try_for_each(|(range, leaf)| set_embedded_pointers(b, range.clone(), *leaf))
            }),
        };
        for (n, blkid) in self.order.iter().enumerate() {
            let Err(e) = write(*blkid) else { continue };
            for blkid in self.order[..n].iter().rev() {
                let old = match self.blocks.get(blkid) {
                    Some(staged) => staged.old.as_ref(),
                    None => Some(&header),
                };
                if let Some(old) = old {
                    // The caller gets the first error, not one of restoring.
                    drop(store.edit(*blkid, &mut |b| micro::copy(b, old)));
                }
            }
            return Err(e);
        }
        zap.renew(self.phys);
        for (blkid, count) in self.freed {
            // No pointer refers to these blocks: they only cost space.
            drop(store.free_block(blkid, count));
        }
        Ok(())
    }
}
