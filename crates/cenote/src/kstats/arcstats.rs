//! The file `arcstats` (chapter 09 §6.2, chapter 10 §7).

use arc::ArcStats;
use kstat::{Kstat, Value};

/// The 148 counters, in order. Counters of features that Cenote does not have are 0:
/// chains in the directory, lock retries of the second tier, dnodes and bonus buffers in the cache. Bytes that
/// readers still hold after the policy evicted them are `arc_loaned_bytes`.
pub(crate) fn arcstats(s: &ArcStats) -> Kstat {
    let all = s.all();
    let [mru, mfu] = s.evicted_to.eligible;
    let average = |sum: u64, n: u64| sum.checked_div(n).unwrap_or(0);
    // The part of the cache's size beyond its components. The arenas' own waste is not
    // included; it is in `abdstats`.
    let parts = [s.compressed_size, s.overhead_size, s.hdr_size, s.l2.hdr_size, s.dbuf_size];
    let waste = s.size.saturating_sub(parts.iter().fold(0u64, |sum, n| sum.saturating_add(*n)));
    let rows = [
        ("hits", Value::U64(all.hits)),
        ("iohits", Value::U64(all.iohits)),
        ("misses", Value::U64(all.misses)),
        ("demand_data_hits", Value::U64(s.demand_data.hits)),
        ("demand_data_iohits", Value::U64(s.demand_data.iohits)),
        ("demand_data_misses", Value::U64(s.demand_data.misses)),
        ("demand_metadata_hits", Value::U64(s.demand_metadata.hits)),
        ("demand_metadata_iohits", Value::U64(s.demand_metadata.iohits)),
        ("demand_metadata_misses", Value::U64(s.demand_metadata.misses)),
        ("prefetch_data_hits", Value::U64(s.prefetch_data.hits)),
        ("prefetch_data_iohits", Value::U64(s.prefetch_data.iohits)),
        ("prefetch_data_misses", Value::U64(s.prefetch_data.misses)),
        ("prefetch_metadata_hits", Value::U64(s.prefetch_metadata.hits)),
        ("prefetch_metadata_iohits", Value::U64(s.prefetch_metadata.iohits)),
        ("prefetch_metadata_misses", Value::U64(s.prefetch_metadata.misses)),
        ("mru_hits", Value::U64(s.mru_hits)),
        ("mru_ghost_hits", Value::U64(s.mru_ghost_hits)),
        ("mfu_hits", Value::U64(s.mfu_hits)),
        ("mfu_ghost_hits", Value::U64(s.mfu_ghost_hits)),
        ("uncached_hits", Value::U64(s.uncached_hits)),
        ("deleted", Value::U64(s.deleted)),
        ("mutex_miss", Value::U64(s.mutex_miss)),
        ("access_skip", Value::U64(s.access_skip)),
        ("evict_skip", Value::U64(s.evict_skip)),
        ("evict_not_enough", Value::U64(s.evict_not_enough)),
        ("evict_l2_cached", Value::U64(s.evicted_to.cached)),
        ("evict_l2_eligible", Value::U64(mru + mfu)),
        ("evict_l2_eligible_mfu", Value::U64(mfu)),
        ("evict_l2_eligible_mru", Value::U64(mru)),
        ("evict_l2_ineligible", Value::U64(s.evicted_to.ineligible)),
        ("evict_l2_skip", Value::U64(0)),
        ("hash_elements", Value::U64(s.hash_elements)),
        ("hash_elements_max", Value::U64(s.hash_elements_max)),
        ("hash_collisions", Value::U64(0)),
        ("hash_chains", Value::U64(0)),
        ("hash_chain_max", Value::U64(0)),
        ("meta", Value::U64(s.meta)),
        ("pd", Value::U64(s.pd)),
        ("pm", Value::U64(s.pm)),
        ("c", Value::U64(s.c)),
        ("c_min", Value::U64(s.c_min)),
        ("c_max", Value::U64(s.c_max)),
        ("size", Value::U64(s.size)),
        ("compressed_size", Value::U64(s.compressed_size)),
        ("uncompressed_size", Value::U64(s.uncompressed_size)),
        ("overhead_size", Value::U64(s.overhead_size)),
        ("hdr_size", Value::U64(s.hdr_size)),
        ("data_size", Value::U64(s.data_size)),
        ("metadata_size", Value::U64(s.metadata_size)),
        ("dbuf_size", Value::U64(s.dbuf_size)),
        ("dnode_size", Value::U64(0)),
        ("bonus_size", Value::U64(0)),
        ("anon_size", Value::U64(s.anon.size())),
        ("anon_data", Value::U64(s.anon.data)),
        ("anon_metadata", Value::U64(s.anon.metadata)),
        ("anon_evictable_data", Value::U64(s.anon.evictable_data)),
        ("anon_evictable_metadata", Value::U64(s.anon.evictable_metadata)),
        ("mru_size", Value::U64(s.mru.size())),
        ("mru_data", Value::U64(s.mru.data)),
        ("mru_metadata", Value::U64(s.mru.metadata)),
        ("mru_evictable_data", Value::U64(s.mru.evictable_data)),
        ("mru_evictable_metadata", Value::U64(s.mru.evictable_metadata)),
        ("mru_ghost_size", Value::U64(s.mru_ghost.size())),
        ("mru_ghost_data", Value::U64(s.mru_ghost.data)),
        ("mru_ghost_metadata", Value::U64(s.mru_ghost.metadata)),
        ("mru_ghost_evictable_data", Value::U64(s.mru_ghost.evictable_data)),
        ("mru_ghost_evictable_metadata", Value::U64(s.mru_ghost.evictable_metadata)),
        ("mfu_size", Value::U64(s.mfu.size())),
        ("mfu_data", Value::U64(s.mfu.data)),
        ("mfu_metadata", Value::U64(s.mfu.metadata)),
        ("mfu_evictable_data", Value::U64(s.mfu.evictable_data)),
        ("mfu_evictable_metadata", Value::U64(s.mfu.evictable_metadata)),
        ("mfu_ghost_size", Value::U64(s.mfu_ghost.size())),
        ("mfu_ghost_data", Value::U64(s.mfu_ghost.data)),
        ("mfu_ghost_metadata", Value::U64(s.mfu_ghost.metadata)),
        ("mfu_ghost_evictable_data", Value::U64(s.mfu_ghost.evictable_data)),
        ("mfu_ghost_evictable_metadata", Value::U64(s.mfu_ghost.evictable_metadata)),
        ("uncached_size", Value::U64(s.uncached.size())),
        ("uncached_data", Value::U64(s.uncached.data)),
        ("uncached_metadata", Value::U64(s.uncached.metadata)),
        ("uncached_evictable_data", Value::U64(s.uncached.evictable_data)),
        ("uncached_evictable_metadata", Value::U64(s.uncached.evictable_metadata)),
        ("l2_ndev", Value::U64(s.l2.ndev)),
        ("l2_hits", Value::U64(s.l2.hits)),
        ("l2_misses", Value::U64(s.l2.misses)),
        ("l2_prefetch_asize", Value::U64(s.l2.prefetch_asize)),
        ("l2_mru_asize", Value::U64(s.l2.mru_asize)),
        ("l2_mfu_asize", Value::U64(s.l2.mfu_asize)),
        ("l2_bufc_data_asize", Value::U64(s.l2.bufc_data_asize)),
        ("l2_bufc_metadata_asize", Value::U64(s.l2.bufc_metadata_asize)),
        ("l2_feeds", Value::U64(s.l2.feeds)),
        ("l2_rw_clash", Value::U64(s.l2.rw_clash)),
        ("l2_read_bytes", Value::U64(s.l2.read_bytes)),
        ("l2_write_bytes", Value::U64(s.l2.write_bytes)),
        ("l2_writes_sent", Value::U64(s.l2.writes_sent)),
        ("l2_writes_done", Value::U64(s.l2.writes_done)),
        ("l2_writes_error", Value::U64(s.l2.writes_error)),
        ("l2_writes_lock_retry", Value::U64(0)),
        ("l2_evict_lock_retry", Value::U64(0)),
        ("l2_evict_reading", Value::U64(s.l2.evict_reading)),
        ("l2_evict_l1cached", Value::U64(0)),
        ("l2_free_on_write", Value::U64(s.l2.free_on_write)),
        ("l2_abort_lowmem", Value::U64(s.l2.abort_lowmem)),
        ("l2_cksum_bad", Value::U64(s.l2.cksum_bad)),
        ("l2_io_error", Value::U64(s.l2.io_error)),
        ("l2_size", Value::U64(s.l2.size)),
        ("l2_asize", Value::U64(s.l2.asize)),
        ("l2_hdr_size", Value::U64(s.l2.hdr_size)),
        ("l2_log_blk_writes", Value::U64(s.l2.log_blk_writes)),
        ("l2_log_blk_avg_asize", Value::U64(average(s.l2.log_blk_written, s.l2.log_blk_writes))),
        ("l2_log_blk_asize", Value::U64(s.l2.log_blk_asize)),
        ("l2_log_blk_count", Value::U64(s.l2.log_blk_count)),
        ("l2_data_to_meta_ratio", Value::U64(average(s.l2.asize, s.l2.log_blk_asize))),
        ("l2_rebuild_success", Value::U64(s.l2.rebuild_success)),
        ("l2_rebuild_unsupported", Value::U64(s.l2.rebuild_unsupported)),
        ("l2_rebuild_io_errors", Value::U64(s.l2.rebuild_io_errors)),
        ("l2_rebuild_dh_errors", Value::U64(s.l2.rebuild_dh_errors)),
        ("l2_rebuild_cksum_lb_errors", Value::U64(s.l2.rebuild_cksum_lb_errors)),
        ("l2_rebuild_lowmem", Value::U64(s.l2.rebuild_lowmem)),
        ("l2_rebuild_size", Value::U64(s.l2.rebuild_size)),
        ("l2_rebuild_asize", Value::U64(s.l2.rebuild_asize)),
        ("l2_rebuild_bufs", Value::U64(s.l2.rebuild_bufs)),
        ("l2_rebuild_bufs_precached", Value::U64(s.l2.rebuild_bufs_precached)),
        ("l2_rebuild_log_blks", Value::U64(s.l2.rebuild_log_blks)),
        ("memory_throttle_count", Value::U64(s.memory_throttle_count)),
        ("memory_direct_count", Value::U64(s.memory_direct_count)),
        ("memory_indirect_count", Value::U64(s.memory_indirect_count)),
        ("memory_all_bytes", Value::U64(s.memory_all_bytes)),
        ("memory_free_bytes", Value::U64(s.memory_free_bytes)),
        ("memory_available_bytes", Value::I64(s.memory_available_bytes)),
        ("arc_no_grow", Value::U64(s.no_grow.into())),
        ("arc_tempreserve", Value::U64(0)),
        ("arc_loaned_bytes", Value::U64(s.held_data + s.held_metadata)),
        ("arc_prune", Value::U64(0)),
        ("arc_meta_used", Value::U64(s.metadata_size + s.hdr_size + s.dbuf_size + s.l2.hdr_size)),
        ("arc_dnode_limit", Value::U64(0)),
        ("async_upgrade_sync", Value::U64(0)),
        ("predictive_prefetch", Value::U64(s.predictive.issued)),
        ("demand_hit_predictive_prefetch", Value::U64(s.predictive.demand_hits)),
        ("demand_iohit_predictive_prefetch", Value::U64(s.predictive.demand_iohits)),
        ("prescient_prefetch", Value::U64(s.prescient.issued)),
        ("demand_hit_prescient_prefetch", Value::U64(s.prescient.demand_hits)),
        ("demand_iohit_prescient_prefetch", Value::U64(s.prescient.demand_iohits)),
        ("arc_need_free", Value::U64(s.need_free)),
        ("arc_sys_free", Value::U64(s.sys_free)),
        ("arc_raw_size", Value::U64(0)),
        ("cached_only_in_progress", Value::U64(0)),
        ("abd_chunk_waste_size", Value::U64(waste)),
    ];
    Kstat::named(rows.into_iter().map(|(name, value)| (name.into(), value)).collect())
}

/// Counters that OpenZFS does not have: the file `cenote_arc`.
pub(crate) fn own(s: &ArcStats) -> Kstat {
    Kstat::numbers([
        ("hits_borrowed", s.forms.borrowed),
        ("hits_copied", s.forms.copied),
        ("hits_decompressed", s.forms.decompressed),
        ("evicted_bytes", s.evicted),
        ("held_data", s.held_data),
        ("held_metadata", s.held_metadata),
        ("l2_offered", s.l2.offered),
        ("l2_admitted", s.l2.admitted),
        ("l2_waiting_bytes", s.l2.waiting),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use arc::stats::Accesses;

    fn sample() -> ArcStats {
        let a = |hits, iohits, misses| Accesses { hits, iohits, misses };
        ArcStats {
            demand_data: a(100, 3, 20),
            demand_metadata: a(50, 2, 10),
            prefetch_data: a(7, 1, 5),
            prefetch_metadata: a(4, 0, 2),
            c: 1 << 30,
            size: 900 << 20,
            compressed_size: 800 << 20,
            overhead_size: 90 << 20,
            hdr_size: 10 << 20,
            data_size: 700 << 20,
            metadata_size: 190 << 20,
            chunk_waste: 77,
            memory_available_bytes: -5,
            ..ArcStats::default()
        }
    }

    #[test]
    fn the_identities_that_tools_rely_on() {
        let k = arcstats(&sample());
        let n = |name: &str| k.number(name).unwrap();
        for kind in ["hits", "iohits", "misses"] {
            let sum: u64 = ["demand_data", "demand_metadata", "prefetch_data", "prefetch_metadata"]
                .iter()
                .map(|class| n(&format!("{class}_{kind}")))
                .sum();
            assert_eq!(n(kind), sum, "{kind}");
        }
        assert_eq!(n("data_size") + n("metadata_size"), n("compressed_size") + n("overhead_size"));
        let parts = [
            "compressed_size",
            "overhead_size",
            "hdr_size",
            "l2_hdr_size",
            "bonus_size",
            "dnode_size",
            "dbuf_size",
            "abd_chunk_waste_size",
        ];
        assert_eq!(n("size"), parts.iter().map(|p| n(p)).sum::<u64>());
    }

    #[test]
    fn names_order_and_types() {
        let k = arcstats(&sample());
        let names: Vec<&str> = k.entries().iter().map(|(n, _)| n.as_ref()).collect();
        assert_eq!(names.len(), 148);
        let unique: std::collections::BTreeSet<&&str> = names.iter().collect();
        assert_eq!(unique.len(), 148);
        assert_eq!((names[0], names[1], names[2]), ("hits", "iohits", "misses"));
        assert_eq!((names[15], names[39]), ("mru_hits", "c"));
        assert_eq!(names[147], "abd_chunk_waste_size");
        let odd: Vec<&str> = k
            .entries()
            .iter()
            .filter(|(_, v)| v.type_number() != 4)
            .map(|(n, _)| n.as_ref())
            .collect();
        assert_eq!(odd, ["memory_available_bytes"]);
        assert!(kstat::text::render(&k).starts_with("0 1 0x01 148 40256 0 0\n"));
    }
}
