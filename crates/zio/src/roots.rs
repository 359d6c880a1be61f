//! Open object sets whose tree may move to other places without a change.
//!
//! # Theory
//! An object set that is open for reading alone, such as a snapshot's, keeps the root with which
//! it was opened. A relocation of blocks (`spa::engine`, `relocation`) gives a snapshot another
//! root with the same content, and the old blocks are free soon after. So each open object set
//! is listed here, and told of its new root.
//!
//! An opener reads the root's pointer first and is listed a moment later, so it could miss a
//! change in between. It reads [`RootHolders::moves`] before the pointer, and begins again if
//! that has changed once it is listed. The mover stores the new pointers, then counts, then
//! tells the holders: an opener that read an old pointer is told or begins again.
//!
//! Lock order: the list is a leaf; no holder is called under it.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Weak};

use base::rt::Mutex;
use ondisk::BlkPtr;

/// Holders that are gone are looked for when the list has grown to this length.
const SWEEP_MIN: usize = 64;

/// Something that holds the root of an object set.
pub trait RootHolder: Send + Sync {
    /// The object set's id in bookmarks, and its root.
    fn root(&self) -> (u64, BlkPtr);

    /// Replaces the root by one with the same content.
    ///
    /// # Errors
    /// Those of reading the block.
    fn move_root(&self, to: &BlkPtr) -> base::Result<()>;
}

struct HolderList {
    all: Vec<Weak<dyn RootHolder>>,
    /// Its length at which it is swept.
    limit: usize,
}

/// The open object sets of a pool.
pub struct RootHolders {
    list: Mutex<HolderList>,
    moves: AtomicU64,
}

impl Default for RootHolders {
    fn default() -> Self {
        let list = Mutex::new(HolderList { all: Vec::new(), limit: SWEEP_MIN });
        RootHolders { list, moves: AtomicU64::new(0) }
    }
}

impl RootHolders {
    /// Lists a holder as long as it exists.
    pub fn add(&self, holder: Weak<dyn RootHolder>) {
        let mut list = self.list.lock();
        if list.all.len() >= list.limit {
            list.all.retain(|holder| holder.strong_count() > 0);
            list.limit = (2 * list.all.len()).max(SWEEP_MIN);
        }
        list.all.push(holder);
    }

    /// How often roots were moved.
    pub fn moves(&self) -> u64 {
        self.moves.load(SeqCst)
    }

    /// Counts a move of roots, whose pointers are stored already, and returns the holders.
    pub fn moved(&self) -> Vec<Arc<dyn RootHolder>> {
        self.moves.fetch_add(1, SeqCst);
        self.list.lock().all.iter().filter_map(Weak::upgrade).collect()
    }
}
