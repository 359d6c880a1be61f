//! Emptying the cache through its second tier.

use std::hash::Hash;

use base::rt::atomic::Ordering::Relaxed;

use super::Cache;

impl<K: Copy + Eq + Hash> Cache<K> {
    /// Evicts everything that no reader holds, as if all memory were needed elsewhere. What
    /// leaves is offered to the second tier, unlike what [`Cache::clear`] removes.
    pub fn evict_all(&self) {
        for partition in &self.partitions {
            let mut core = partition.core.lock();
            core.set_c_if(0);
            for stripe in &partition.stripes {
                core.drain(&mut stripe.lock());
            }
            core.make_room(&self.context(partition));
            core.set_c_if(self.partition_target());
            partition.size.store(core.size::<K>(), Relaxed);
        }
    }
}
