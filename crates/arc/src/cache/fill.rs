//! The fill ticket of a miss.

use std::hash::Hash;
use std::sync::Arc;

use super::stripe::PendingRead;
use super::{Block, Cache, LookupRequest, SlotRef, average};

/// The obligation to read one block; dropping it lets another reader try.
pub struct Fill<'a, K: Copy + Eq + Hash> {
    pub(super) cache: &'a Cache<K>,
    pub(super) key: K,
    pub(super) hash: u64,
    pub(super) req: LookupRequest,
    pub(super) began: base::rt::Instant,
    pub(super) pending: Option<Arc<PendingRead>>,
}

impl<K: Copy + Eq + Hash> Fill<'_, K> {
    /// Makes the block resident, or remembered, and wakes the waiters. Returns its slot.
    pub fn complete(mut self, block: Block) -> Option<SlotRef> {
        // The ticket keeps it until everything is done, so that a panic wakes the waiters.
        let pending = Arc::clone(self.pending.as_ref()?);
        average(&self.cache.fill_ns, self.began.elapsed());
        let at = self.cache.move_in(self.key, self.hash, self.req, block, Some(&pending));
        self.pending = None;
        pending.finish();
        at
    }
}

impl<K: Copy + Eq + Hash> Drop for Fill<'_, K> {
    fn drop(&mut self) {
        if let Some(pending) = self.pending.take() {
            let at = self.cache.stripe_of(self.hash);
            self.cache.stripe(at).lock().end(&self.key);
            pending.finish();
        }
    }
}
