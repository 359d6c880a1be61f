//! Directories that were removed while somebody may have them open.
//!
//! # Theory
//! The kernel opens directories without a word to the server, so that none can be held as
//! files are. What `fstat` must still tell of one is kept from its removal until the
//! kernel forgets its node, which it does when the last user is gone.
//!
//! # Invariants
//! An entry is made before the reply to the removal, so before the kernel forgets.

use std::collections::HashMap;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Release};

use base::rt::Mutex;
use fuse::Attr;

/// Attributes of removed directories, by node; see the module.
#[derive(Default)]
pub(super) struct RemovedDirs {
    nodes: Mutex<HashMap<u64, Attr>>,
    /// How many they are: most of what is forgotten was never removed.
    count: AtomicUsize,
}

impl RemovedDirs {
    /// A directory is about to be removed.
    pub(super) fn put(&self, node: u64, attr: Attr) {
        let mut nodes = self.nodes.lock();
        nodes.insert(node, Attr { nlink: 0, size: 0, ..attr });
        self.count.store(nodes.len(), Release);
    }

    /// The kernel forgot the node, or it was not removed after all.
    pub(super) fn take(&self, node: u64) {
        if self.count.load(Acquire) == 0 {
            return;
        }
        let mut nodes = self.nodes.lock();
        nodes.remove(&node);
        self.count.store(nodes.len(), Release);
    }

    /// What is told of a node that exists no more.
    pub(super) fn get(&self, node: u64) -> Option<Attr> {
        self.nodes.lock().get(&node).copied()
    }
}
