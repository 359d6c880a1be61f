//! Invalidation of pages that the kernel reads during a write that bypasses its cache.
//!
//! # Theory
//! The kernel drops the pages of a range before a direct write. After the write it drops them
//! only if the write is synchronous. A page that was read during an asynchronous write is
//! outdated, and stays. So before a direct write of a file that is also read through the cache
//! is answered, its range is invalidated again from here.
//!
//! An invalidation waits for pages that are being read, and so for our own answers: only some
//! of the threads may wait in one at a time. Ranges beyond that are invalidated soon after
//! their answers, by a thread of their own.
//!
//! # Invariants
//! * Fewer requests wait here than a mount serves at one time, so threads remain to answer
//!   reads.
//!
//! Lock order: `late` is a leaf.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicUsize};

use base::rt::{Instant, Mutex};
use fuse::Notifier;

/// Threads that may invalidate pages at one time, of the 128 requests that a mount serves.
const INVALIDATORS_MAX: usize = 16;
/// Number of marks; beyond that files share marks.
const MARKS: usize = 1024;
/// Seconds for which a file that was read through the cache is assumed to be in it; a direct
/// write is answered sooner.
const RECENT: u32 = 120;
/// Files whose pages are to be invalidated later; beyond them none is recorded.
const LATE_MAX: usize = 4096;

/// Records which files are read through the kernel's cache.
pub(super) struct Pages {
    start: Instant,
    /// Second of the last such read, by node; 0 means never.
    reads: Box<[AtomicU32]>,
    tellers: AtomicUsize,
    late: Mutex<DelayedInvalidations>,
}

#[derive(Default)]
struct DelayedInvalidations {
    nodes: HashSet<u64>,
    running: bool,
}

impl Default for Pages {
    fn default() -> Self {
        Pages {
            start: base::rt::now(),
            reads: (0..MARKS).map(|_| AtomicU32::new(0)).collect(),
            tellers: AtomicUsize::new(0),
            late: Mutex::default(),
        }
    }
}

impl Pages {
    fn mark(&self, node: u64) -> &AtomicU32 {
        &self.reads[(node.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54) as usize % MARKS]
    }

    fn now(&self) -> u32 {
        u32::try_from(self.start.elapsed().as_secs() + 1).unwrap_or(u32::MAX)
    }

    /// Records that a file will be read into the kernel's cache.
    pub(super) fn mark_read(&self, node: u64) {
        let (mark, now) = (self.mark(node), self.now());
        if mark.load(Relaxed) != now {
            mark.store(now, SeqCst);
        }
    }

    fn may_be_there(&self, node: u64) -> bool {
        let last = self.mark(node).load(SeqCst);
        last != 0 && self.now().saturating_sub(last) <= RECENT
    }

    /// Invalidates a range that was written past the cache; the writer has no answer yet.
    pub(super) fn invalidate_written(
        self: &Arc<Self>,
        notifier: Option<&Notifier>,
        node: u64,
        offset: u64,
        len: usize,
    ) {
        let Some(notifier) = notifier.filter(|_| len > 0 && self.may_be_there(node)) else {
            return;
        };
        let (Ok(at), Ok(len)) = (i64::try_from(offset), i64::try_from(len)) else { return };
        if self.tellers.fetch_add(1, SeqCst) < INVALIDATORS_MAX {
            // A kernel that does not know the node has no pages of it.
            let _unknown = notifier.inval_inode(node, at, len);
        } else {
            self.drop_later(notifier, node);
        }
        self.tellers.fetch_sub(1, SeqCst);
    }

    fn drop_later(self: &Arc<Self>, notifier: &Notifier, node: u64) {
        let mut late = self.late.lock();
        if late.nodes.len() < LATE_MAX {
            late.nodes.insert(node);
        }
        if late.running {
            return;
        }
        late.running = true;
        drop(late);
        let (pages, notifier) = (Arc::clone(self), notifier.clone());
        let work = move || {
            loop {
                let nodes = {
                    let mut late = pages.late.lock();
                    late.running = !late.nodes.is_empty();
                    if !late.running {
                        return;
                    }
                    std::mem::take(&mut late.nodes)
                };
                for node in nodes {
                    let _unknown = notifier.inval_inode(node, 0, 0);
                }
            }
        };
        if base::rt::spawn("pages", work).is_err() {
            self.late.lock().running = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_read_are_known() {
        let pages = Pages::default();
        assert!(!(1..5000).any(|node| pages.may_be_there(node)));
        pages.mark_read(77);
        assert!(pages.may_be_there(77));
        let others = (1..5000).filter(|node| pages.may_be_there(*node)).count();
        assert!((1..=30).contains(&others), "{others}");
    }
}
