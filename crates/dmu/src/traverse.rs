//! The traversal of every block pointer of an object set.
//!
//! # Theory
//! Threads share a stack of tasks; their number is the number of reads that the caller
//! wants in flight. Each thread takes the newest task (depth first, so that the stack stays
//! short), passes its pointer to the [`Visitor`], reads the block if the walk continues
//! below it, and pushes the pointers found there. Data pointers of one indirect block stay
//! together in runs, so that one lock acquisition serves many pointers. The order of visits
//! is not defined. A caller that needs an order walks with one thread and sorts.
//!
//! # Invariants
//! * Every pointer reachable from the root with a birth above the limit is visited exactly
//!   once, unless an ancestor of it was reported as unreadable or skipped by the visitor.
//! * Depth is bounded by the levels checked in each dnode.

use std::sync::Arc;

use base::rt::{Condvar, Mutex};
use base::{Buf, Error, Result, Txg};
use ondisk::dnode::{DNODES_PER_BLOCK, Dnode, dnodes_in_block};
use ondisk::{BlkPtr, Endian, ObjType, ObjsetPhys};
use zio::{Io, Zio};

/// Block id of a spill block in bookmarks (chapter 03 §4.2).
pub const SPILL_BLKID: u64 = u64::MAX - 1;
/// Level of the object set's own block in bookmarks.
pub const ROOT_LEVEL: i8 = -1;
/// Data pointers per task.
const LEAF_RUN: usize = 64;

/// The position of a pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bookmark {
    /// Object set.
    pub objset: u64,
    /// Object; 0 is the meta-dnode.
    pub object: u64,
    /// Level, or [`ROOT_LEVEL`].
    pub level: i8,
    /// Block, or [`SPILL_BLKID`].
    pub blkid: u64,
}

/// What to do below a pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Continue below.
    Descend,
    /// Skip the subtree.
    Skip,
}

/// Receives every pointer; called from many threads at once.
pub trait Visitor: Sync {
    /// Called with a pointer whose birth is above the limit; holes with a birth included.
    ///
    /// # Errors
    /// Any error ends the walk, which returns it.
    fn visit(&self, bp: &BlkPtr, at: Bookmark) -> Result<Flow>;

    /// Called with a dnode, before its pointers are visited.
    ///
    /// # Errors
    /// As [`Visitor::visit`].
    fn dnode(&self, _objset: u64, _object: u64, _dnode: &Dnode) -> Result<()> {
        Ok(())
    }

    /// Called when a block of the walk could not be read or parsed.
    ///
    /// # Errors
    /// Return the error to end the walk; `Ok` to continue without that subtree.
    fn unreadable(&self, error: Error, _at: Bookmark) -> Result<()> {
        Err(error)
    }
}

/// How to walk.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Only blocks born after this txg.
    pub min_txg: Txg,
    /// Threads, that is reads in flight.
    pub threads: usize,
    /// How blocks are read.
    pub io: Io,
}

impl Default for Options {
    fn default() -> Self {
        Options { min_txg: Txg::ZERO, threads: 16, io: Io::SCAN }
    }
}

enum WalkTask {
    /// One pointer that may have something below it.
    Node { bp: BlkPtr, at: Bookmark, dnode: Arc<Dnode> },
    /// A run of pointers to data blocks, in an indirect block already read.
    Leaves { block: Buf, endian: Endian, first: usize, count: usize, at: Bookmark },
}

struct Stack {
    tasks: Vec<WalkTask>,
    /// Threads that may still push tasks.
    busy: usize,
    error: Option<Error>,
}

struct TraverseWalk<'a, V> {
    zio: &'a Zio,
    visitor: &'a V,
    options: Options,
    stack: Mutex<Stack>,
    changed: Condvar,
}

/// Walks the object set at `root` (`objset` is its id in bookmarks).
///
/// # Errors
/// The first error that the visitor returned.
pub fn traverse<V: Visitor>(
    zio: &Zio,
    objset: u64,
    root: &BlkPtr,
    visitor: &V,
    options: Options,
) -> Result<()> {
    let at = Bookmark { objset, object: 0, level: ROOT_LEVEL, blkid: 0 };
    if skip(root, options.min_txg) || visitor.visit(root, at)? == Flow::Skip || root.is_hole() {
        return Ok(());
    }
    let phys = match zio.read(root, options.io).and_then(|b| ObjsetPhys::parse(&b, root.endian())) {
        Ok(phys) => phys,
        Err(e) => return visitor.unreadable(e, at),
    };
    let walk = TraverseWalk {
        zio,
        visitor,
        options,
        stack: Mutex::new(Stack { tasks: Vec::new(), busy: 0, error: None }),
        changed: Condvar::new(),
    };
    let mut tasks = Vec::new();
    let special = [
        (0, Some(&phys.meta_dnode)),
        (u64::MAX, phys.user_used.as_ref()),
        (u64::MAX - 1, phys.group_used.as_ref()),
        (u64::MAX - 2, phys.project_used.as_ref()),
    ];
    for (object, dnode) in special {
        if let Some(dnode) = dnode {
            visitor.dnode(objset, object, dnode)?;
            walk.push_dnode(&mut tasks, objset, object, &Arc::new(dnode.clone()));
        }
    }
    walk.stack.lock().tasks = tasks;
    base::rt::fan_out(options.threads.clamp(1, 256), |_| walk.work());
    let error = walk.stack.lock().error.take();
    error.map_or(Ok(()), Err)
}

fn skip(bp: &BlkPtr, min_txg: Txg) -> bool {
    // A zero pointer was never written; all others are decided by their births. A block that
    // was moved without logical change counts by the txg that moved it, as its space does.
    bp.birth() == Txg::ZERO || bp.allocation_birth() <= min_txg
}

/// Releases the other threads when a visitor panics. Otherwise they would wait for this one
/// forever.
struct Unwinding<'a, 'b, V>(&'a TraverseWalk<'b, V>);

impl<V> Drop for Unwinding<'_, '_, V> {
    fn drop(&mut self) {
        let mut stack = self.0.stack.lock();
        stack.busy -= 1;
        stack.error.get_or_insert(Error::bug("a walk ended in a panic"));
        self.0.changed.notify_all();
    }
}

impl<V: Visitor> TraverseWalk<'_, V> {
    fn work(&self) {
        let mut found = Vec::new();
        let mut stack = self.stack.lock();
        loop {
            if stack.error.is_some() {
                return;
            }
            let Some(task) = stack.tasks.pop() else {
                if stack.busy == 0 {
                    self.changed.notify_all();
                    return;
                }
                self.changed.wait(&mut stack);
                continue;
            };
            stack.busy += 1;
            drop(stack);
            let unwinding = Unwinding(self);
            let result = self.run(task, &mut found);
            std::mem::forget(unwinding);
            stack = self.stack.lock();
            stack.busy -= 1;
            if let Err(e) = result {
                stack.error.get_or_insert(e);
            }
            let wake = !found.is_empty() || stack.busy == 0 || stack.error.is_some();
            stack.tasks.append(&mut found);
            if wake {
                self.changed.notify_all();
            }
        }
    }

    fn run(&self, task: WalkTask, found: &mut Vec<WalkTask>) -> Result<()> {
        match task {
            WalkTask::Node { bp, at, dnode } => self.node(&bp, at, &dnode, found),
            WalkTask::Leaves { block, endian, first, count, at } => {
                for i in first..first + count {
                    let at = Bookmark { blkid: at.blkid + (i - first) as u64, ..at };
                    match BlkPtr::parse_nth(&block, i, endian) {
                        Ok(bp) if skip(&bp, self.options.min_txg) => {}
                        Ok(bp) => {
                            self.visitor.visit(&bp, at)?;
                        }
                        Err(e) => self.visitor.unreadable(e, at)?,
                    }
                }
                Ok(())
            }
        }
    }

    fn node(
        &self,
        bp: &BlkPtr,
        at: Bookmark,
        dnode: &Arc<Dnode>,
        found: &mut Vec<WalkTask>,
    ) -> Result<()> {
        if skip(bp, self.options.min_txg) {
            return Ok(());
        }
        if self.visitor.visit(bp, at)? == Flow::Skip || bp.is_hole() {
            return Ok(());
        }
        let dnodes = at.object == 0 && at.level == 0 && dnode.object_type == ObjType::DNODE;
        if at.level <= 0 && !dnodes {
            return Ok(());
        }
        let head = bp.head();
        if i16::from(at.level) != i16::from(head.level)
            || head.lsize.0 != dnode.block_size(head.level)
        {
            let e = Error::corrupt("block pointer of the wrong level or size for its position");
            return self.visitor.unreadable(e, at);
        }
        let read = if dnodes { Zio::read_dnodes } else { Zio::read };
        match read(self.zio, bp, self.options.io) {
            Ok(block) if dnodes => self.dnode_block(&block, bp.endian(), at, found),
            Ok(block) => self.indirect(&block, bp.endian(), at, dnode, found),
            Err(e) => self.visitor.unreadable(e, at),
        }
    }

    fn indirect(
        &self,
        block: &Buf,
        endian: Endian,
        at: Bookmark,
        dnode: &Arc<Dnode>,
        found: &mut Vec<WalkTask>,
    ) -> Result<()> {
        let count = 1usize << dnode.epb_shift();
        let level = at.level - 1;
        let first = at.blkid.saturating_mul(count as u64);
        if level == 0 && at.object != 0 {
            for run in (0..count).step_by(LEAF_RUN) {
                found.push(WalkTask::Leaves {
                    block: block.clone(),
                    endian,
                    first: run,
                    count: LEAF_RUN.min(count - run),
                    at: Bookmark { level, blkid: first + run as u64, ..at },
                });
            }
            return Ok(());
        }
        for i in (0..count).rev() {
            let at = Bookmark { level, blkid: first + i as u64, ..at };
            match BlkPtr::parse_nth(block, i, endian) {
                Ok(bp) if skip(&bp, self.options.min_txg) => {}
                Ok(bp) => found.push(WalkTask::Node { bp, at, dnode: Arc::clone(dnode) }),
                Err(e) => self.visitor.unreadable(e, at)?,
            }
        }
        Ok(())
    }

    fn dnode_block(
        &self,
        block: &Buf,
        endian: Endian,
        at: Bookmark,
        found: &mut Vec<WalkTask>,
    ) -> Result<()> {
        for (slot, dnode) in dnodes_in_block(block, endian) {
            let object = at.blkid.saturating_mul(DNODES_PER_BLOCK) + slot;
            match dnode {
                Ok(dnode) => {
                    self.visitor.dnode(at.objset, object, &dnode)?;
                    self.push_dnode(found, at.objset, object, &Arc::new(dnode));
                }
                Err(e) => self.visitor.unreadable(e, Bookmark { object, ..at })?,
            }
        }
        Ok(())
    }

    fn push_dnode(&self, tasks: &mut Vec<WalkTask>, objset: u64, object: u64, dnode: &Arc<Dnode>) {
        let level = dnode.levels as i8 - 1;
        for (i, bp) in dnode.blkptrs.iter().enumerate() {
            if !skip(bp, self.options.min_txg) {
                let at = Bookmark { objset, object, level, blkid: i as u64 };
                tasks.push(WalkTask::Node { bp: *bp, at, dnode: Arc::clone(dnode) });
            }
        }
        if let Some(spill) = dnode.spill
            && !skip(&spill, self.options.min_txg)
        {
            let at = Bookmark { objset, object, level: 0, blkid: SPILL_BLKID };
            tasks.push(WalkTask::Node { bp: spill, at, dnode: Arc::clone(dnode) });
        }
    }
}
