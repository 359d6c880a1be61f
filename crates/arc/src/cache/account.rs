//! Statistics of the cache: the counters of stripes and cores, added up.

use std::hash::Hash;

use base::rt::atomic::Ordering::Relaxed;

use super::core::CacheCore;
use super::stripe::StripeCounts;
use super::{Cache, Partition};
use crate::policy::{CacheKind, PolicyState};
use crate::stats::{Accesses, ArcStats, StateBytes};

/// Blocks of a stripe that are sampled to estimate how many bytes are held.
const HELD_SAMPLE: usize = 4096;

impl<K> Partition<K> {
    /// Publishes the core's values for callers without its lock.
    pub(super) fn publish(&self, core: &CacheCore) {
        self.size.store(core.size::<K>(), Relaxed);
        self.front_room.store(core.front_has_room::<K>(), Relaxed);
        self.unread_room.store(core.unread_room(), Relaxed);
    }
}

impl<K: Copy + Eq + Hash> Cache<K> {
    /// Bytes of prefetched blocks that may wait for their reader; beyond, the oldest are
    /// dropped. It grows with useful prefetches and shrinks with wasted ones.
    pub fn unread_room(&self) -> u64 {
        self.partitions.iter().map(|p| p.unread_room.load(Relaxed)).sum()
    }

    /// Counters and sizes. The memory figures are filled in by the memory monitor.
    pub fn arc_stats(&self) -> ArcStats {
        let mut out = ArcStats { c: self.target(), ..ArcStats::default() };
        {
            let config = self.config.read();
            (out.c_min, out.c_max) = (config.arc_min, config.arc_max);
        }
        let mut shares = [(0, 0); 2];
        for partition in &self.partitions {
            self.add_core(partition, &mut out, &mut shares);
            for stripe in &partition.stripes {
                add_counts(&stripe.lock().counts, &mut out);
            }
            let [data, metadata] = held(partition);
            out.held_data += data;
            out.held_metadata += metadata;
        }
        let fraction =
            |(part, of): (u64, u64)| ((u128::from(part) << 32) / u128::from(of.max(1))) as u64;
        (out.pd, out.pm) = (fraction(shares[0]), fraction(shares[1]));
        out.meta = self.meta.load(Relaxed);
        out.anon.data += self.anon.load(Relaxed);
        out.size = self.size();
        evictable(&mut out);
        out.hash_elements_max =
            self.entries_max.fetch_max(out.hash_elements, Relaxed).max(out.hash_elements);
        out.no_grow = self.no_grow.load(Relaxed);
        out.l2 = self.tier.stats();
        let free = base::buf::stats();
        out.chunk_waste = (free.free_warm + free.free_small) as u64;
        out
    }

    fn add_core(&self, partition: &Partition<K>, out: &mut ArcStats, shares: &mut [(u64, u64); 2]) {
        let core = partition.core.lock();
        let add = |to: &mut StateBytes, state: PolicyState| {
            let bytes = core.state_bytes(state);
            to.data += bytes.data;
            to.metadata += bytes.metadata;
        };
        add(&mut out.mru, PolicyState::Mru);
        add(&mut out.mfu, PolicyState::Mfu);
        add(&mut out.mru_ghost, PolicyState::MruGhost);
        add(&mut out.mfu_ghost, PolicyState::MfuGhost);
        out.uncached.data += core.unread();
        out.hash_elements += core.entries();
        out.hdr_size += core.header::<K>();
        out.overhead_size += core.fronts();
        let [data, metadata] = core.held_bytes();
        out.data_size += data;
        out.metadata_size += metadata;
        out.compressed_size += data + metadata - core.fronts();
        out.uncompressed_size += core.logical();
        for (share, kind) in shares.iter_mut().zip([CacheKind::Data, CacheKind::Metadata]) {
            let (part, of) = core.targets(kind);
            *share = (share.0 + part, share.1 + of);
        }
        out.mru_hits += core.counts.hits[0];
        out.mfu_hits += core.counts.hits[1];
        out.mru_ghost_hits += core.counts.ghosts[0];
        out.mfu_ghost_hits += core.counts.ghosts[1];
        out.evict_skip += core.counts.evict_skip;
        out.evict_not_enough += core.counts.evict_not_enough;
        out.evicted += core.counts.evicted;
        let (to, from) = (&mut out.evicted_to, core.counts.evicted_to);
        to.cached += from.cached;
        to.ineligible += from.ineligible;
        to.eligible = [to.eligible[0] + from.eligible[0], to.eligible[1] + from.eligible[1]];
    }
}

/// Subtracts held bytes from the evictable bytes.
fn evictable(out: &mut ArcStats) {
    let mut held = [out.held_data, out.held_metadata];
    for state in [&mut out.mru, &mut out.mfu, &mut out.uncached] {
        state.evictable_data = state.data.saturating_sub(held[0]);
        state.evictable_metadata = state.metadata.saturating_sub(held[1]);
        held[0] -= state.data - state.evictable_data;
        held[1] -= state.metadata - state.evictable_metadata;
    }
}

fn add_counts(c: &StripeCounts, out: &mut ArcStats) {
    let add = |to: &mut Accesses, from: &Accesses| {
        to.hits += from.hits;
        to.iohits += from.iohits;
        to.misses += from.misses;
    };
    add(&mut out.demand_data, &c.access[CacheKind::Data as usize][0]);
    add(&mut out.prefetch_data, &c.access[CacheKind::Data as usize][1]);
    add(&mut out.demand_metadata, &c.access[CacheKind::Metadata as usize][0]);
    add(&mut out.prefetch_metadata, &c.access[CacheKind::Metadata as usize][1]);
    out.forms.borrowed += c.forms.borrowed;
    out.forms.copied += c.forms.copied;
    out.forms.decompressed += c.forms.decompressed;
    for (to, from) in [(&mut out.predictive, c.predictive), (&mut out.prescient, c.prescient)] {
        to.issued += from.issued;
        to.demand_hits += from.demand_hits;
        to.demand_iohits += from.demand_iohits;
    }
    out.deleted += c.deleted;
    out.access_skip += c.log_skipped;
    out.mutex_miss += c.log_busy;
}

/// Bytes of a partition that readers hold: data and metadata. In a large partition only
/// every n-th block is examined and represents the others.
fn held<K: Copy + Eq + Hash>(partition: &Partition<K>) -> [u64; 2] {
    let mut out = [0; 2];
    for stripe in &partition.stripes {
        let stripe = stripe.lock();
        let step = (stripe.slots.len() / HELD_SAMPLE).max(1);
        for slot in stripe.slots.iter().step_by(step).filter(|s| s.held()) {
            out[slot.kind as usize] += ((slot.charged() + slot.front()) * step) as u64;
        }
    }
    out
}
