//! The fill ticket of a miss.
//!
//! A thread may hold several tickets ([`Cache::claim`]), to read their blocks together. While
//! it holds one it must not wait for another one in [`Cache::lookup`], whose holder might wait
//! for it; [`Cache::claim`] never waits.

use std::hash::{BuildHasher, Hash};
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

impl<K: Copy + Eq + Hash> Cache<K> {
    /// The obligation to read a block that is neither in memory nor being read; for
    /// prefetchers, which need no answer otherwise. Never waits.
    pub fn claim(&self, key: K, req: LookupRequest) -> Option<Fill<'_, K>> {
        let hash = self.hasher.hash_one(key);
        let at = self.stripe_of(hash);
        let mut stripe = self.stripe(at).lock();
        let slot = stripe.find(hash, &key);
        let resident = slot.and_then(|i| self.hit(&mut stripe, at, i, req)).is_some();
        if resident || stripe.join(&key, req.kind, req.access).is_some() {
            return None;
        }
        let pending = Some(stripe.begin(key, req.kind, req.access));
        Some(Fill { cache: self, key, hash, req, began: base::rt::now(), pending })
    }
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
