//! Walks over destroyed object sets, children before parents, with resumption
//! (chapter 04 §9.4).
//!
//! # Theory
//! Freed blocks must not be read any more, so a block comes after all blocks below it. The
//! order is fixed: objects by id, the blocks of each by position. So a position says how
//! far a walk has come. A resumed walk descends to that position and skips everything
//! before it without reading it.
//!
//! # Invariants
//! * A walk resumed after a position visits exactly the blocks that were not visited up to
//!   it.
//! * Depth is bounded by the levels checked in each dnode; a pointer whose level or size
//!   does not fit its position ends the walk.

use std::sync::Arc;

use base::{Buf, Error, Result, Txg};
use dmu::traverse::SPILL_BLKID;
use dmu::{Io, OutagePolicy};
use ondisk::dnode::{DNODES_PER_BLOCK, Dnode, dnodes_in_block};
use ondisk::dslphys::BookmarkPlace;
use ondisk::{BlkPtr, ObjType, ObjsetPhys};
use zio::Zio;

use super::birth;

/// `objset` of positions in a destroyed object set.
const DESTROYED: u64 = u64::MAX;
/// The sync thread walks; no other reader needs the blocks.
const WALK_IO: Io = Io::SCAN.with_outage(OutagePolicy::WaitAlways);
/// Level of the object set's own block.
const ROOT_LEVEL: i64 = -1;

/// How a walk ended.
#[derive(Debug)]
pub enum Walked {
    /// Every block was visited.
    All,
    /// The callback stopped it.
    Stopped,
    /// A block could not be read; all blocks before it were visited.
    Failed(Error),
}

/// Walks trees of blocks.
pub trait Trees {
    /// Calls `f` with every block below `root`, and `root` itself, that was born after
    /// `min`: children first, in a fixed order, those behind `after`. `f` returns whether
    /// to continue; the block it was called with counts as visited either way.
    fn walk(
        &self,
        root: &BlkPtr,
        min: Txg,
        after: Option<&BookmarkPlace>,
        f: &mut dyn FnMut(&BlkPtr, BookmarkPlace) -> bool,
    ) -> Walked;
}

/// The trees of a pool, for the sync thread.
impl Trees for Arc<Zio> {
    fn walk(
        &self,
        root: &BlkPtr,
        min: Txg,
        after: Option<&BookmarkPlace>,
        f: &mut dyn FnMut(&BlkPtr, BookmarkPlace) -> bool,
    ) -> Walked {
        let read = |bp: &BlkPtr, dnodes: bool| {
            if dnodes { self.read_dnodes(bp, WALK_IO) } else { Zio::read(self, bp, WALK_IO) }
        };
        walk_with(&read, root, min, after, f)
    }
}

/// Reads a block; the second argument says that it holds dnodes.
type BlockReader<'a> = &'a dyn Fn(&BlkPtr, bool) -> Result<Buf>;

/// [`Trees::walk`] with the block reader `read`.
pub(crate) fn walk_with(
    read: BlockReader<'_>,
    root: &BlkPtr,
    min: Txg,
    after: Option<&BookmarkPlace>,
    f: &mut dyn FnMut(&BlkPtr, BookmarkPlace) -> bool,
) -> Walked {
    let mut walk = TreeWalk { read, min, after: after.copied(), f };
    match walk.root(root) {
        Ok(true) => Walked::All,
        Ok(false) => Walked::Stopped,
        Err(e) => Walked::Failed(e),
    }
}

struct TreeWalk<'a> {
    read: BlockReader<'a>,
    min: Txg,
    /// The position where the previous walk stopped, until it is reached.
    after: Option<BookmarkPlace>,
    f: &'a mut dyn FnMut(&BlkPtr, BookmarkPlace) -> bool,
}

fn position(object: u64, level: i64, blkid: u64) -> BookmarkPlace {
    BookmarkPlace { objset: DESTROYED, object, level, blkid }
}

impl TreeWalk<'_> {
    fn skips(&self, bp: &BlkPtr) -> bool {
        bp.is_hole() || birth(bp) <= self.min
    }

    /// Visits a block whose children are done. Returns whether to continue.
    fn show(&mut self, bp: &BlkPtr, at: BookmarkPlace) -> bool {
        if let Some(after) = self.after {
            if (after.object, after.level, after.blkid) == (at.object, at.level, at.blkid) {
                self.after = None;
            }
            return true;
        }
        (self.f)(bp, at)
    }

    /// Whether all blocks below `at` are before the position where the walk resumes.
    fn is_before(&self, at: &BookmarkPlace, dnode: &Dnode) -> bool {
        self.after.is_some_and(|after| !contains(at, dnode, &after))
    }

    fn root(&mut self, bp: &BlkPtr) -> Result<bool> {
        if self.skips(bp) {
            return Ok(true);
        }
        let block = (self.read)(bp, false)?;
        let phys = ObjsetPhys::parse(&block, bp.endian())?;
        let special = [
            (0, Some(&phys.meta_dnode)),
            (u64::MAX, phys.user_used.as_ref()),
            (u64::MAX - 1, phys.group_used.as_ref()),
            (u64::MAX - 2, phys.project_used.as_ref()),
        ];
        for (object, dnode) in special {
            if let Some(dnode) = dnode
                && !self.dnode(object, dnode)?
            {
                return Ok(false);
            }
        }
        let go = self.show(bp, position(0, ROOT_LEVEL, 0));
        if self.after.is_some() {
            return Err(Error::corrupt("a destroyed dataset lacks the block to resume from"));
        }
        Ok(go)
    }

    fn dnode(&mut self, object: u64, dnode: &Dnode) -> Result<bool> {
        let level = i64::from(dnode.levels) - 1;
        for (i, bp) in dnode.blkptrs.iter().enumerate() {
            if !self.node(bp, position(object, level, i as u64), dnode)? {
                return Ok(false);
            }
        }
        match &dnode.spill {
            Some(spill) if !self.skips(spill) => {
                Ok(self.show(spill, position(object, 0, SPILL_BLKID)))
            }
            _ => Ok(true),
        }
    }

    fn node(&mut self, bp: &BlkPtr, at: BookmarkPlace, dnode: &Dnode) -> Result<bool> {
        if self.skips(bp) || self.is_before(&at, dnode) {
            return Ok(true);
        }
        let dnodes = at.object == 0 && at.level == 0 && dnode.object_type == ObjType::DNODE;
        if at.level > 0 || dnodes {
            let head = bp.head();
            let fits =
                i64::from(head.level) == at.level && head.lsize.0 == dnode.block_size(head.level);
            if !fits {
                return Err(Error::corrupt("block pointer of the wrong level or size"));
            }
            let here = self
                .after
                .is_some_and(|a| (a.object, a.level, a.blkid) == (at.object, at.level, at.blkid));
            // All blocks below the position where the walk resumes are done and may be
            // freed.
            if !here {
                let block = (self.read)(bp, dnodes)?;
                let go = if dnodes {
                    self.dnode_block(&block, bp, at)?
                } else {
                    self.indirect(&block, bp, at, dnode)?
                };
                if !go {
                    return Ok(false);
                }
            }
        }
        Ok(self.show(bp, at))
    }

    fn indirect(
        &mut self,
        block: &Buf,
        bp: &BlkPtr,
        at: BookmarkPlace,
        dnode: &Dnode,
    ) -> Result<bool> {
        let count = 1usize << dnode.epb_shift();
        let first = at.blkid.saturating_mul(count as u64);
        for i in 0..count {
            let child = BlkPtr::parse_nth(block, i, bp.endian())?;
            let at = position(at.object, at.level - 1, first.saturating_add(i as u64));
            if !self.node(&child, at, dnode)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn dnode_block(&mut self, block: &Buf, bp: &BlkPtr, at: BookmarkPlace) -> Result<bool> {
        for (slot, dnode) in dnodes_in_block(block, bp.endian()) {
            let object = at.blkid.saturating_mul(DNODES_PER_BLOCK).saturating_add(slot);
            if self.after.is_some_and(|a| a.object > object && !is_special(a.object)) {
                continue;
            }
            if !self.dnode(object, &dnode?)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

fn is_special(object: u64) -> bool {
    object >= u64::MAX - 2
}

/// Whether the position `inner` is that of a block at or below the one at `at`.
fn contains(at: &BookmarkPlace, dnode: &Dnode, inner: &BookmarkPlace) -> bool {
    let shift = dnode.epb_shift();
    let up = |blkid: u64, levels: i64| {
        let bits = u32::try_from(levels).ok().map(|n| n.saturating_mul(shift));
        bits.filter(|b| *b < 64).map_or(0, |b| blkid >> b)
    };
    if inner.object == at.object {
        let spill = inner.blkid == SPILL_BLKID && inner.level == 0;
        return !spill
            && inner.level <= at.level
            && inner.level >= 0
            && up(inner.blkid, at.level - inner.level) == at.blkid;
    }
    at.object == 0
        && !is_special(inner.object)
        && up(inner.object / DNODES_PER_BLOCK, at.level) == at.blkid
}
