//! Leaves that are taken out of use: what they took and did not make durable.
//!
//! # Theory
//! A write counts as done when its leaves have accepted it; it is durable when the commit of
//! its txg has flushed them. A leaf that is out of use by then is not flushed. So from the moment
//! it leaves it lacks, perhaps, every txg that is not on disk, though all its writes succeeded.
//!
//! # Invariants
//! * The txgs are noted before a tree without the leaf is published, and the commit of a txg
//!   flushes the leaves of a tree that was current when the missing txgs were collected for the
//!   last time ([`super::super::sync`]): a txg is durable with its DTLs, or flushed.
//! * A leaf without which its top-level vdev is unavailable misses nothing: the pool waits for it.

use std::sync::Arc;

use base::{Guid, Txg};
use vdev::{Node, Tree, VdevKind};

use super::super::Writer;

/// The leaves in use that a new tree does not use although it has them, and the distributed
/// spares with data on them.
fn leaving(old: &Tree, new: &Tree) -> Vec<Guid> {
    let mut out = Vec::new();
    for (_, node) in old.leaves().filter(|(_, node)| node.readable()) {
        let Some(now) = new.find(node.guid()).filter(|now| !now.readable()) else { continue };
        let Ok(top) = new.top(now.top()) else { continue };
        if !top.readable() {
            continue;
        }
        out.push(node.guid());
        let on_it = |n: &&Node| match n.kind() {
            VdevKind::DraidSpare { draid, .. } => *draid == top.guid(),
            _ => false,
        };
        out.extend(new.nodes().map(|(_, n)| n).filter(on_it).map(Node::guid));
    }
    out
}

impl Writer {
    /// Publishes a tree as the successor of `old`; false if another one was published since.
    pub(in crate::engine) fn replace_tree(&self, old: &Arc<Tree>, tree: Arc<Tree>) -> bool {
        let leaving = leaving(old, &tree);
        let note = |first: Txg, last: Txg| {
            for guid in &leaving {
                tree.add_missing_range(*guid, first, last);
            }
        };
        let (first, last) = (self.txgs.synced_txg().next(), self.txgs.open_txg());
        note(first, last);
        let done = self.zio.replace_tree(old, Arc::clone(&tree));
        let open = self.txgs.open_txg();
        if done && open > last {
            note(last.next(), open);
        }
        done
    }

    /// Publishes what `change` makes of the tree; nothing for `None`. It is called again if
    /// another tree was published meanwhile. Returns whether a tree was published.
    pub(in crate::engine) fn change_tree(
        &self,
        mut change: impl FnMut(&Arc<Tree>) -> Option<Arc<Tree>>,
    ) -> bool {
        loop {
            let old = self.zio.tree();
            let Some(tree) = change(&old) else { return false };
            if self.replace_tree(&old, tree) {
                return true;
            }
        }
    }
}
