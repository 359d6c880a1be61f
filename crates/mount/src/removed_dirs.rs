//! Attributes of removed directories that may still be open.
//!
//! # Theory
//! The kernel opens directories without a request to the server, so they cannot be held as
//! files are. The attributes that `fstat` must still report are kept from the removal until the
//! kernel forgets the node, which it does when the last user closes it.
//!
//! # Invariants
//! * An entry is made before the reply to the removal, so before the kernel can forget the
//!   node.

use std::collections::HashMap;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Release};

use base::rt::Mutex;
use fuse::Attr;

/// Attributes of removed directories, by node; see the module.
#[derive(Default)]
pub(super) struct RemovedDirs {
    nodes: Mutex<HashMap<u64, Attr>>,
    /// The number of entries: most forgotten nodes were never removed, and need no lock.
    count: AtomicUsize,
}

impl RemovedDirs {
    /// Adds a directory that is about to be removed.
    pub(super) fn put(&self, node: u64, attr: Attr) {
        let mut nodes = self.nodes.lock();
        nodes.insert(node, Attr { nlink: 0, size: 0, ..attr });
        self.count.store(nodes.len(), Release);
    }

    /// Drops an entry: the kernel forgot the node, or the removal failed.
    pub(super) fn take(&self, node: u64) {
        if self.count.load(Acquire) == 0 {
            return;
        }
        let mut nodes = self.nodes.lock();
        nodes.remove(&node);
        self.count.store(nodes.len(), Release);
    }

    /// The attributes of a removed node.
    pub(super) fn get(&self, node: u64) -> Option<Attr> {
        self.nodes.lock().get(&node).copied()
    }
}
