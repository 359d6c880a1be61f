//! One dirty object: what each group makes of its dnode and of its blocks.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use base::rt::Mutex;
use base::{Buf, BufMut, Error, ErrorKind, Result, Txg};
use ondisk::{Dnode, ObjType};

use super::ranges::BlockRanges;

/// Groups that may have dirty data at a time: open, quiescing, syncing, and one to
/// spare (chapter 05).
pub(crate) const TXG_SLOTS: usize = 4;

/// What becomes of the spill block.
#[derive(Clone, Debug)]
pub(crate) enum Spill {
    /// Stays as it is on disk.
    Keep,
    /// Gets this content.
    Set(Buf),
    /// Goes.
    Remove,
}

/// A dnode without its tree: what a transaction changes at once.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    /// False once the object was freed.
    pub(crate) allocated: bool,
    pub(crate) object_type: ObjType,
    pub(crate) bonus_type: ObjType,
    pub(crate) bonus: Vec<u8>,
    pub(crate) block_size: u32,
    pub(crate) indirect_shift: u8,
    pub(crate) checksum: u8,
    pub(crate) compression: u8,
    pub(crate) slots: u8,
    pub(crate) nblkptr: u8,
    pub(crate) levels: u8,
    pub(crate) max_blkid: u64,
    pub(crate) spill: Spill,
}

impl Head {
    pub(crate) fn of(dn: &Dnode) -> Head {
        Head {
            allocated: true,
            object_type: dn.object_type,
            bonus_type: dn.bonus_type,
            bonus: dn.bonus.clone(),
            block_size: dn.data_block_size,
            indirect_shift: dn.indirect_shift,
            checksum: dn.checksum,
            compression: dn.compression,
            slots: dn.slots,
            nblkptr: dn.blkptrs.len() as u8,
            levels: dn.levels,
            max_blkid: dn.max_blkid,
            spill: Spill::Keep,
        }
    }
}

/// A block's content in one group.
pub(crate) enum Content {
    /// Still changing.
    Open(BufMut),
    /// The group is being written: never changes again.
    Frozen(Buf),
}

impl Content {
    fn part(&self, range: Range<usize>) -> Buf {
        match self {
            Content::Open(buf) => Buf::copy_of(buf.get(range).unwrap_or_default()),
            Content::Frozen(buf) => buf.slice(range),
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Content::Open(buf) => buf.len(),
            Content::Frozen(buf) => buf.len(),
        }
    }
}

/// What one group does to the object.
pub(crate) struct Slot {
    pub(crate) txg: Txg,
    pub(crate) head: Head,
    /// Level-0 blocks written.
    pub(crate) data: BTreeMap<u64, Content>,
    /// Blocks freed; those written afterwards are in `data`, too.
    pub(crate) freed: BlockRanges,
    /// Memory of `data`.
    pub(crate) bytes: u64,
}

/// The newest state of a block that is not (only) on disk.
pub(crate) enum Dirty {
    Data(Buf),
    Hole,
}

pub(crate) struct Inner {
    /// The dnode as the last written group left it; `None` if it is not on disk.
    pub(crate) disk: Option<Arc<Dnode>>,
    pub(crate) slots: [Option<Slot>; TXG_SLOTS],
    /// The table dropped this handle: find the object again.
    pub(crate) dead: bool,
}

/// One object with dirty state.
pub(crate) struct Handle {
    pub(crate) state: Mutex<Inner>,
}

pub(crate) fn slot_of(txg: Txg) -> usize {
    txg.0 as usize % TXG_SLOTS
}

impl Handle {
    pub(crate) fn new(disk: Option<Arc<Dnode>>) -> Handle {
        Handle {
            state: Mutex::new(Inner { disk, slots: std::array::from_fn(|_| None), dead: false }),
        }
    }

    /// The first block at or after `from` that an unwritten group wrote.
    pub(crate) fn next_written(&self, from: u64) -> Option<u64> {
        let inner = self.state.lock();
        let first = |s: &Slot| s.data.range(from..).next().map(|(&b, _)| b);
        inner.slots.iter().flatten().filter_map(first).min()
    }
}

impl Inner {
    /// The newest group's slot up to `txg`.
    pub(crate) fn newest(&self, txg: Txg) -> Option<&Slot> {
        self.slots.iter().flatten().filter(|s| s.txg <= txg).max_by_key(|s| s.txg)
    }

    pub(crate) fn is_clean(&self) -> bool {
        self.slots.iter().all(Option::is_none)
    }

    /// What groups up to `txg` made of a block; `None` if none touched it.
    pub(crate) fn block(&self, txg: Txg, blkid: u64, range: Range<usize>) -> Option<Dirty> {
        let mut slots: Vec<&Slot> = self.slots.iter().flatten().filter(|s| s.txg <= txg).collect();
        slots.sort_unstable_by_key(|s| std::cmp::Reverse(s.txg));
        for slot in slots {
            if let Some(content) = slot.data.get(&blkid) {
                // A block that grew since then reads as zeros behind its old end.
                if range.end <= content.len() {
                    return Some(Dirty::Data(content.part(range)));
                }
                let mut whole = BufMut::zeroed(range.end);
                let n = content.len();
                whole[..n].copy_from_slice(&content.part(0..n));
                return Some(Dirty::Data(whole.freeze().slice(range)));
            }
            if slot.freed.contains(blkid) || !slot.head.allocated {
                return Some(Dirty::Hole);
            }
        }
        None
    }

    /// The slot of `txg`, begun from the newest older state if need be. True if it is new.
    pub(crate) fn slot(&mut self, txg: Txg) -> Result<(&mut Slot, bool)> {
        let at = slot_of(txg);
        if self.slots[at].as_ref().is_some_and(|s| s.txg != txg) {
            return Err(Error::bug("a group begins before its slot is free"));
        }
        let fresh = self.slots[at].is_none();
        if fresh {
            let older = self.newest(txg).map(|s| s.head.clone());
            let head = match (older, &self.disk) {
                // What an older group does with the spill block, it does itself.
                (Some(head), _) => Head { spill: Spill::Keep, ..head },
                (None, Some(dn)) => Head::of(dn),
                (None, None) => {
                    return Err(Error::new(ErrorKind::NotFound, "no such object"));
                }
            };
            self.slots[at] = Some(Slot {
                txg,
                head,
                data: BTreeMap::new(),
                freed: BlockRanges::default(),
                bytes: 0,
            });
        }
        let slot = self.slots[at].as_mut().ok_or_else(|| Error::bug("a slot vanished"))?;
        Ok((slot, fresh))
    }

    /// Applies `change` to the dnode in `txg` and in what newer groups made of it.
    pub(crate) fn change(&mut self, txg: Txg, mut change: impl FnMut(&mut Head)) -> Result<bool> {
        let (slot, fresh) = self.slot(txg)?;
        change(&mut slot.head);
        for newer in self.slots.iter_mut().flatten().filter(|s| s.txg > txg) {
            change(&mut newer.head);
        }
        Ok(fresh)
    }
}
