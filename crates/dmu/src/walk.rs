//! The walk over an object set in a fixed order, which can stop at any block and continue
//! there later (chapter 04 §17).
//!
//! # Theory
//! [`crate::traverse`] visits in any order, so there is no position before which everything
//! was visited. This walk is in preorder: the object set's own block, the tree of the
//! meta-dnode with each object's tree after the block of its dnode, and the objects of the
//! accounting last. A list has what is still to visit, in order. Its first element is
//! visited and replaced by what is below it.
//!
//! One thread walks. It would wait for each metadata block in turn, so the blocks of the
//! first elements of the list are read ahead by a few other threads. These are the blocks
//! that the walk needs next, whatever level they are on.
//!
//! The position is the bookmark of the first element. To continue, the walk leaves out every
//! subtree that lies before it. Blocks above the position are visited again; they are not
//! progress. A walk that continues stops at the earliest behind the first block that was not
//! visited before: otherwise a visitor that stops after a few blocks, or after a time in which a
//! slow device reads no more than these, would never get further.
//!
//! # Invariants
//! * A walk that is not interrupted ends, or stops at a later position than the one at which it
//!   began.
//! * If no ancestor is unreadable, each pointer whose birth is above the limit is visited
//!   exactly once between the start and the end of a walk that is not interrupted, and at
//!   least once in a walk that is.
//! * The list has at most one indirect block's pointers for each level, and one block's
//!   dnodes.
//!
//! Lock order: the lock of the reads is a leaf.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use base::rt::{Condvar, Mutex};
use base::{Buf, Error, Result, Txg};
use ondisk::dnode::{DNODES_PER_BLOCK, Dnode, OBJECT_SHIFT_MAX, dnodes_in_block};
use ondisk::{BlkPtr, Endian, ObjType, ObjsetPhys};

use crate::traverse::{Bookmark, ROOT_LEVEL, SPILL_BLKID};

/// Elements of the list among which blocks are read ahead.
const LOOK_AHEAD: usize = 128;

/// What a walk does after an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnError {
    /// It leaves the subtree out.
    Skip,
    /// It stops before the block.
    Stop,
}

/// Receives the pointers, in order.
pub trait WalkVisitor {
    /// A pointer to a block or an embedded one.
    fn visit(&mut self, bp: &BlkPtr, at: Bookmark);

    /// A block could not be read or parsed.
    fn unreadable(&mut self, error: Error, at: Bookmark) -> OnError;

    /// Asked before each visit, once the walk has got further than where it began: whether to
    /// stop here.
    fn stop(&mut self) -> bool;

    /// Asked before each visit: whether to stop here, though the walk may have got no further.
    fn interrupted(&mut self) -> bool {
        false
    }
}

/// Reads a block; the flag is set for blocks of dnodes, which may be in stored form.
pub type WalkRead<'a> = &'a (dyn Fn(&BlkPtr, bool) -> Result<Buf> + Sync);

/// A walk to make.
pub struct OrderedWalk<'a> {
    /// The object set's id in bookmarks.
    pub objset: u64,
    /// Its own block.
    pub root: &'a BlkPtr,
    /// Where to begin: the position of a walk that stopped, or object 0, level 0, block 0.
    pub from: Bookmark,
    /// Only blocks allocated after this txg.
    pub min_txg: Txg,
    /// Reads in flight.
    pub threads: usize,
    /// Reads a metadata block.
    pub read: WalkRead<'a>,
}

enum WalkStep {
    /// A pointer, with the number of its read.
    Node { bp: BlkPtr, at: Bookmark, dnode: Arc<Dnode>, read: Option<u64> },
    /// Pointers to data in an indirect block.
    Leaves { block: Buf, endian: Endian, at: Bookmark, first: usize, count: usize },
}

impl WalkStep {
    fn at(&self) -> Bookmark {
        match self {
            WalkStep::Node { at, .. } | WalkStep::Leaves { at, .. } => *at,
        }
    }
}

#[derive(Default)]
struct Reads {
    wanted: VecDeque<(u64, BlkPtr, bool)>,
    done: HashMap<u64, Result<Buf>>,
    /// Wanted or being read.
    open: usize,
    ended: bool,
}

struct Ahead<'a> {
    read: WalkRead<'a>,
    reads: Mutex<Reads>,
    /// There is a wanted block, or the walk has ended.
    wanted: Condvar,
    /// A block was read.
    done: Condvar,
}

/// Ends the other threads, also when the walking one panics.
struct EndsReads<'a, 'b>(&'a Ahead<'b>);

impl Drop for EndsReads<'_, '_> {
    fn drop(&mut self) {
        self.0.reads.lock().ended = true;
        self.0.wanted.notify_all();
    }
}

impl Ahead<'_> {
    fn serve(&self) {
        let mut reads = self.reads.lock();
        loop {
            if reads.ended {
                return;
            }
            let Some((id, bp, dnodes)) = reads.wanted.pop_front() else {
                self.wanted.wait(&mut reads);
                continue;
            };
            drop(reads);
            let result = (self.read)(&bp, dnodes);
            reads = self.reads.lock();
            reads.done.insert(id, result);
            reads.open -= 1;
            self.done.notify_all();
        }
    }

    /// The result of a read that was ordered; the walking thread makes it if no other has
    /// begun it.
    fn take(&self, id: u64, bp: &BlkPtr, dnodes: bool) -> Result<Buf> {
        let mut reads = self.reads.lock();
        if let Some(at) = reads.wanted.iter().position(|w| w.0 == id) {
            reads.wanted.remove(at);
            reads.open -= 1;
            drop(reads);
            return (self.read)(bp, dnodes);
        }
        loop {
            if let Some(result) = reads.done.remove(&id) {
                return result;
            }
            self.done.wait(&mut reads);
        }
    }
}

/// Walks; returns the position at which the visitor stopped, `None` at the end.
pub fn walk<V: WalkVisitor + Send>(what: &OrderedWalk<'_>, visitor: &mut V) -> Option<Bookmark> {
    let ahead = Ahead {
        read: what.read,
        reads: Mutex::default(),
        wanted: Condvar::new(),
        done: Condvar::new(),
    };
    let walker = Walker { what, ahead: &ahead, list: VecDeque::new(), next: 0 };
    let work = Mutex::new(Some((walker, visitor)));
    let result = Mutex::new(None);
    base::rt::fan_out(what.threads.clamp(1, 64), |i| {
        if i > 0 {
            return ahead.serve();
        }
        let _ends = EndsReads(&ahead);
        let taken = work.lock().take();
        if let Some((mut walker, visitor)) = taken {
            let position = walker.run(visitor);
            *result.lock() = position;
        }
    });
    result.into_inner()
}

struct Walker<'a, 'b> {
    what: &'a OrderedWalk<'a>,
    ahead: &'a Ahead<'b>,
    list: VecDeque<WalkStep>,
    /// Number of the next read.
    next: u64,
}

/// The object ids of the accounting, which no dnode block has, begin here.
const SPECIAL: u64 = 1 << OBJECT_SHIFT_MAX;

/// First data block below a block, and the first one after it.
fn span(dnode: &Dnode, level: i64, blkid: u64) -> (u64, u64) {
    if level <= 0 {
        return (blkid, blkid.saturating_add(1));
    }
    let shift = u64::from(dnode.epb_shift()).saturating_mul(level.cast_unsigned());
    let scale = |n: u64| match u32::try_from(shift) {
        Ok(shift) if shift <= n.leading_zeros() => n << shift,
        _ if n == 0 => 0,
        _ => u64::MAX,
    };
    (scale(blkid), scale(blkid.saturating_add(1)))
}

impl Walker<'_, '_> {
    fn run<V: WalkVisitor>(&mut self, visitor: &mut V) -> Option<Bookmark> {
        let what = self.what;
        let root_at = Bookmark { objset: what.objset, object: 0, level: ROOT_LEVEL, blkid: 0 };
        if visitor.interrupted() {
            return Some(what.from);
        }
        if self.is_old(what.root) || what.root.is_hole() {
            return None;
        }
        visitor.visit(what.root, root_at);
        let read = (what.read)(what.root, false);
        let phys = match read.and_then(|b| ObjsetPhys::parse(&b, what.root.endian())) {
            Ok(phys) => phys,
            Err(e) => {
                let stops = visitor.unreadable(e, root_at) == OnError::Stop;
                return stops.then_some(what.from);
            }
        };
        let special = [
            (0, Some(&phys.meta_dnode)),
            (u64::MAX, phys.user_used.as_ref()),
            (u64::MAX - 1, phys.group_used.as_ref()),
            (u64::MAX - 2, phys.project_used.as_ref()),
        ];
        let mut found = Vec::new();
        for (object, dnode) in special {
            if let Some(dnode) = dnode {
                self.add_dnode(&mut found, object, &Arc::new(dnode.clone()));
            }
        }
        self.put_first(found);
        let mut further = false;
        while let Some(first) = self.list.pop_front() {
            if visitor.interrupted() || (further && visitor.stop()) {
                return Some(if further { first.at() } else { what.from });
            }
            match first {
                WalkStep::Node { bp, at, dnode, read } => {
                    further |= self.is_new(at, &dnode);
                    if !self.node(visitor, &bp, at, &dnode, read) {
                        return Some(if further { at } else { what.from });
                    }
                }
                WalkStep::Leaves { block, endian, at, first, count } => {
                    for i in first..first + count {
                        let at = Bookmark { blkid: at.blkid + (i - first) as u64, ..at };
                        match BlkPtr::parse_nth(&block, i, endian) {
                            Ok(bp) if self.is_old(&bp) || bp.is_hole() => continue,
                            Ok(_) if further && visitor.stop() => return Some(at),
                            Ok(bp) => {
                                visitor.visit(&bp, at);
                                further = true;
                            }
                            Err(e) => {
                                if visitor.unreadable(e, at) == OnError::Stop {
                                    return Some(at);
                                }
                            }
                        }
                    }
                }
            }
        }
        None
    }

    fn is_old(&self, bp: &BlkPtr) -> bool {
        bp.birth() == Txg::ZERO || bp.allocation_birth() <= self.what.min_txg
    }

    /// Whether a block is at the position at which the walk begins, or comes later.
    fn is_new(&self, at: Bookmark, dnode: &Dnode) -> bool {
        let from = self.what.from;
        if from.level == ROOT_LEVEL || from.level == -2 {
            return true;
        }
        let (start, _) = span(dnode, at.level.into(), at.blkid);
        if at.object == from.object {
            let (first, _) = span(dnode, from.level.into(), from.blkid);
            // In preorder a block comes after those above it, which begin at the same place.
            let same = start == first && at.level <= from.level;
            return from.level < 0 || start > first || same;
        }
        match (at.object, from.object) {
            // The accounting is visited from its beginning, in descending order of the ids.
            (SPECIAL.., SPECIAL..) => at.object < from.object,
            // In the meta-dnode: whether it leads to the object.
            (0, object) => start > object / DNODES_PER_BLOCK,
            _ => true,
        }
    }

    /// Whether a subtree lies before the position at which the walk begins.
    fn is_before(&self, at: Bookmark, dnode: &Dnode) -> bool {
        let from = self.what.from;
        // The accounting is visited again from its beginning.
        if from.object >= SPECIAL {
            return at.object == 0;
        }
        if at.object >= SPECIAL || from.level == ROOT_LEVEL || from.level == -2 {
            return false;
        }
        let (start, end) = span(dnode, at.level.into(), at.blkid);
        let level = i64::from(from.level);
        if at.object == 0 {
            // In the meta-dnode: which dnodes it leads to.
            return match from.object {
                0 => end <= span(dnode, level, from.blkid).0,
                object => end <= object / DNODES_PER_BLOCK,
            };
        }
        if at.object != from.object {
            return at.object < from.object;
        }
        // Level -3 is the dnode itself, which comes before its blocks.
        let first = if level < 0 { 0 } else { span(dnode, level, from.blkid).0 };
        start != SPILL_BLKID && end <= first
    }

    fn add_dnode(&self, to: &mut Vec<WalkStep>, object: u64, dnode: &Arc<Dnode>) {
        let level = dnode.levels as i8 - 1;
        let objset = self.what.objset;
        let tree = dnode.blkptrs.iter().enumerate().map(|(i, bp)| (*bp, level, i as u64));
        let spill = dnode.spill.map(|bp| (bp, 0, SPILL_BLKID));
        for (bp, level, blkid) in tree.chain(spill) {
            let at = Bookmark { objset, object, level, blkid };
            if !self.is_old(&bp) && !bp.is_hole() && !self.is_before(at, dnode) {
                to.push(WalkStep::Node { bp, at, dnode: Arc::clone(dnode), read: None });
            }
        }
    }

    /// Puts elements before the others, and orders the reads of the first ones.
    fn put_first(&mut self, found: Vec<WalkStep>) {
        found.into_iter().rev().for_each(|pending| self.list.push_front(pending));
        let mut reads = self.ahead.reads.lock();
        let before = reads.wanted.len();
        for pending in self.list.iter_mut().take(LOOK_AHEAD) {
            // What is read and not yet used counts, so that memory is bounded.
            if reads.open + reads.done.len() + 1 >= 2 * self.what.threads {
                break;
            }
            if let WalkStep::Node { bp, at, dnode, read: read @ None } = pending
                && leads_on(*at, dnode)
            {
                *read = Some(self.next);
                reads.wanted.push_back((self.next, *bp, is_dnodes(*at, dnode)));
                reads.open += 1;
                self.next += 1;
            }
        }
        if reads.wanted.len() > before {
            self.ahead.wanted.notify_all();
        }
    }

    /// Visits a pointer and lists what is below it; false to stop before it.
    fn node<V: WalkVisitor>(
        &mut self,
        visitor: &mut V,
        bp: &BlkPtr,
        at: Bookmark,
        dnode: &Arc<Dnode>,
        read: Option<u64>,
    ) -> bool {
        visitor.visit(bp, at);
        if !leads_on(at, dnode) {
            return true;
        }
        let head = bp.head();
        if i16::from(at.level) != i16::from(head.level)
            || head.lsize.0 != dnode.block_size(head.level)
        {
            let e = Error::corrupt("block pointer of the wrong level or size for its position");
            return visitor.unreadable(e, at) == OnError::Skip;
        }
        let dnodes = is_dnodes(at, dnode);
        let block = match read {
            Some(id) => self.ahead.take(id, bp, dnodes),
            None => (self.what.read)(bp, dnodes),
        };
        let block = match block {
            Ok(block) => block,
            Err(e) => return visitor.unreadable(e, at) == OnError::Skip,
        };
        let mut found = Vec::new();
        let mut failed = Vec::new();
        if dnodes {
            for (slot, parsed) in dnodes_in_block(&block, bp.endian()) {
                let object = at.blkid.saturating_mul(DNODES_PER_BLOCK) + slot;
                match parsed {
                    Ok(dnode) => self.add_dnode(&mut found, object, &Arc::new(dnode)),
                    Err(e) => failed.push((e, Bookmark { object, ..at })),
                }
            }
        } else {
            self.below(&block, bp.endian(), at, dnode, &mut found, &mut failed);
        }
        for (error, at) in failed {
            if visitor.unreadable(error, at) == OnError::Stop {
                return false;
            }
        }
        self.put_first(found);
        true
    }

    fn below(
        &self,
        block: &Buf,
        endian: Endian,
        at: Bookmark,
        dnode: &Arc<Dnode>,
        found: &mut Vec<WalkStep>,
        failed: &mut Vec<(Error, Bookmark)>,
    ) {
        let count = 1usize << dnode.epb_shift();
        let level = at.level - 1;
        let first = at.blkid.saturating_mul(count as u64);
        let child = |i: usize| Bookmark { level, blkid: first.saturating_add(i as u64), ..at };
        if level == 0 && at.object != 0 {
            let skipped = (0..count).take_while(|&i| self.is_before(child(i), dnode)).count();
            let (block, at) = (block.clone(), child(skipped));
            found.push(WalkStep::Leaves {
                block,
                endian,
                at,
                first: skipped,
                count: count - skipped,
            });
            return;
        }
        for i in 0..count {
            let at = child(i);
            match BlkPtr::parse_nth(block, i, endian) {
                Ok(bp) if self.is_old(&bp) || bp.is_hole() || self.is_before(at, dnode) => {}
                Ok(bp) => {
                    found.push(WalkStep::Node { bp, at, dnode: Arc::clone(dnode), read: None });
                }
                Err(e) => failed.push((e, at)),
            }
        }
    }
}

fn is_dnodes(at: Bookmark, dnode: &Dnode) -> bool {
    at.object == 0 && at.level == 0 && dnode.object_type == ObjType::DNODE
}

/// Whether there are pointers in the block.
fn leads_on(at: Bookmark, dnode: &Dnode) -> bool {
    at.level > 0 || is_dnodes(at, dnode)
}
