//! What follows from the end of a resilver: predecessors and spares leave.
//!
//! # Theory
//! A predecessor below a `replacing` vdev leaves when its successor misses nothing, and a spare
//! when its original does (`unspare`, chapter 01 §4.2), and no data is on the leaving device
//! alone. Of a predecessor with a spare, the spare leaves first. A thread of its own detaches
//! them like a user would, because detaching waits for txgs, and the sync thread cannot. It
//! ends when nothing is left to do. The state is in the configuration and the DTLs, so an
//! import finds what a crash interrupted.
//!
//! # Invariants
//! * At most one such thread runs; a request made while it ends is not lost.
//! * None runs after [`Writer::end_settling`]: a pool that is closed is used by no thread.
//!
//! Lock order: `settler`, then `settling`.

use std::sync::Arc;

use base::Guid;
use ondisk::config::{VdevConfig, VdevType};
use vdev::{State, Tree};

use super::super::Writer;
use super::required;

/// Whether all leaves of a vdev are in use and miss nothing.
fn complete(tree: &Tree, vdev: &VdevConfig) -> bool {
    vdev.leaves().all(|leaf| {
        tree.find(leaf.guid).is_some_and(|n| n.state() == State::Online && !n.is_behind())
    })
}

/// The leaf below a vdev that leaves first: the spare, which returns to the list, before the device
/// in whose place it is.
fn first_to_leave(vdev: &VdevConfig) -> &VdevConfig {
    let mut at = vdev;
    while let Some(last) = at.children.last() {
        at = last;
    }
    at
}

/// A leaf that is no longer needed.
pub(super) fn superfluous(root: &VdevConfig, tree: &Tree) -> Option<Guid> {
    let spare_free = |leaf: &&VdevConfig| !required(tree, leaf.guid);
    root.walk().find_map(|vdev| {
        let (first, last) = (vdev.children.first()?, vdev.children.last()?);
        let candidates = match vdev.kind {
            VdevType::Replacing if complete(tree, last) => {
                &vdev.children[..vdev.children.len() - 1]
            }
            VdevType::Spare if first.leaf.unspare && complete(tree, first) => &vdev.children[1..],
            _ => return None,
        };
        candidates.iter().map(first_to_leave).find(spare_free).map(|leaf| leaf.guid)
    })
}

/// The thread that completes changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Settling {
    /// There is none.
    #[default]
    Idle,
    /// It runs.
    Running,
    /// It runs, and something may have changed since it looked.
    Again,
    /// None may run: the pool is being closed.
    Closed,
}

impl Writer {
    /// Completes what waited for a resilver: replacements, and spares whose original is well
    /// again. It returns at once; a thread does the work.
    pub fn topology_settled(&self) {
        let work = {
            let config = Arc::clone(&self.published.read().config);
            superfluous(&config.vdev_tree, &self.zio.tree()).is_some() || self.may_expand(&config)
        };
        let Some(writer) = self.topology.writer().filter(|_| work) else { return };
        let mut settler = self.topology.settler.lock();
        {
            let mut state = self.topology.settling.lock();
            match *state {
                Settling::Idle => *state = Settling::Running,
                Settling::Running | Settling::Again => {
                    *state = Settling::Again;
                    return;
                }
                Settling::Closed => return,
            }
        }
        // The last one has ended, or is about to.
        let last = settler.take();
        let run = move || {
            if let Some(last) = last {
                last.join();
            }
            while writer.settle() {}
        };
        match base::rt::spawn("topology", run) {
            Ok(thread) => *settler = Some(thread),
            // The next resilver, or the next import, tries again.
            Err(_) => *self.topology.settling.lock() = Settling::Idle,
        }
    }

    /// Ends the thread, before the pool is closed.
    pub(in crate::engine) fn end_settling(&self) {
        *self.topology.settling.lock() = Settling::Closed;
        let settler = self.topology.settler.lock().take();
        if let Some(settler) = settler {
            settler.join();
        }
    }

    /// Allows the thread again, because the pool stays open.
    pub(in crate::engine) fn resume_settling(&self) {
        *self.topology.settling.lock() = Settling::Idle;
    }

    /// Completes what can be completed; true if something may have changed meanwhile.
    fn settle(&self) -> bool {
        let mut last = None;
        while *self.topology.settling.lock() != Settling::Closed {
            let config = Arc::clone(&self.published.read().config);
            let Some(guid) = superfluous(&config.vdev_tree, &self.zio.tree()) else { break };
            // The pool is suspended or closed, or the leaf is needed after all.
            if last == Some(guid) || self.detach(guid, None).is_err() {
                break;
            }
            last = Some(guid);
        }
        self.expand_automatically();
        let mut state = self.topology.settling.lock();
        *state = match *state {
            Settling::Again => Settling::Running,
            Settling::Running | Settling::Idle => Settling::Idle,
            Settling::Closed => return false,
        };
        *state == Settling::Running
    }
}
