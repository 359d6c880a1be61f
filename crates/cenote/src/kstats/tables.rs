//! The names in the other files of `/proc/spl/kstat/zfs` (chapter 09 §6.1), so that readers
//! find the same counters as in a kernel. Cenote keeps no dnode or dbuf cache of that kind:
//! those counters are 0.

use kstat::Kstat;

/// A file: its name, and the counters in it separated by blanks.
pub(crate) const FILES: [(&str, &str); 9] = [
    (
        "dnodestats",
        "dnode_hold_dbuf_hold dnode_hold_dbuf_read dnode_hold_alloc_hits dnode_hold_alloc_misses \
         dnode_hold_alloc_interior dnode_hold_alloc_lock_retry dnode_hold_alloc_lock_misses \
         dnode_hold_alloc_type_none dnode_hold_free_hits dnode_hold_free_misses \
         dnode_hold_free_lock_misses dnode_hold_free_lock_retry dnode_hold_free_overflow \
         dnode_hold_free_refcount dnode_free_interior_lock_retry dnode_allocate dnode_reallocate \
         dnode_buf_evict dnode_alloc_next_chunk dnode_alloc_race dnode_alloc_next_block \
         dnode_move_invalid dnode_move_recheck1 dnode_move_recheck2 dnode_move_special \
         dnode_move_handle dnode_move_rwlock dnode_move_active",
    ),
    (
        "dmu_tx",
        "dmu_tx_assigned dmu_tx_delay dmu_tx_error dmu_tx_suspended dmu_tx_group \
         dmu_tx_memory_reserve dmu_tx_memory_reclaim dmu_tx_dirty_throttle dmu_tx_dirty_delay \
         dmu_tx_dirty_over_max dmu_tx_dirty_frees_delay dmu_tx_wrlog_delay dmu_tx_quota",
    ),
    ("fm", "erpt-dropped erpt-set-failed fmri-set-failed payload-set-failed erpt-duplicates"),
    (
        "vdev_mirror_stats",
        "rotating_linear rotating_offset rotating_seek non_rotating_linear non_rotating_seek \
         preferred_found preferred_not_found",
    ),
    ("zio_stats", "total_allocations alloc_class_fallbacks gang_writes gang_multilevel"),
    ("metaslab_stats", "trace_over_limit reload_tree too_many_tries try_hard"),
    (
        "brtstats",
        "addref_entry_not_on_disk addref_entry_on_disk decref_entry_in_memory \
         decref_entry_loaded_from_disk decref_entry_not_in_memory decref_entry_read_lost_race \
         decref_entry_still_referenced decref_free_data_later decref_free_data_now \
         decref_no_entry",
    ),
    ("dmustats", "prefetch_bytes_active"),
    // The chapter names only the file.
    ("zstd", ""),
];

/// Files of a pool.
pub(crate) const POOL_FILES: [(&str, &str); 2] = [
    (
        "iostats",
        "trim_extents_written trim_bytes_written trim_extents_skipped trim_bytes_skipped \
         trim_extents_failed trim_bytes_failed autotrim_extents_written autotrim_bytes_written \
         autotrim_extents_skipped autotrim_bytes_skipped autotrim_extents_failed \
         autotrim_bytes_failed simple_trim_extents_written simple_trim_bytes_written \
         simple_trim_extents_skipped simple_trim_bytes_skipped simple_trim_extents_failed \
         simple_trim_bytes_failed arc_read_count arc_read_bytes arc_write_count arc_write_bytes \
         direct_read_count direct_read_bytes direct_write_count direct_write_bytes",
    ),
    (
        "log_spacemaps",
        "unflushed_memused unflushed_nmetaslabs unflushed_blocklimit unflushed_nblocks",
    ),
];

/// The heading of a pool's list of txgs.
pub(crate) const TXGS: &str = "txg      birth            state ndirty       nread        nwritten     \
                               reads    writes   otime        qtime        wtime        stime       \n";

/// Lists that Cenote does not fill: name and heading.
pub(crate) const POOL_LISTS: [(&str, &str); 2] = [
    ("reads", "UID start objset object level blkid aflags origin pid process"),
    ("multihost", "id txg timestamp error duration mmp_delay vdev_guid vdev_label vdev_path"),
];

/// The input of `dbufstat`: Cenote has no table of dbufs to list.
pub(crate) const DBUFS: &str = "\
dbuf | arcbuf | dnode
pool objset object level blkid offset dbsize usize meta state dbholds dbc | list atype flags \
count asize access mru gmru mfu gmfu l2 l2_dattr l2_asize l2_comp aholds | dtype btype data_bs \
meta_bs bsize lvls dholds blocks dsize
";

/// All the names of `list`, with the value 0.
pub(crate) fn zeros(list: &'static str) -> Kstat {
    Kstat::numbers(list.split_ascii_whitespace().map(|name| (name, 0)))
}

/// `dbufstats`: Cenote's buffers live in the ARC alone.
pub(crate) fn dbufstats() -> Kstat {
    const LEVELS: usize = 12;
    let mut names: Vec<String> = [
        "cache_count",
        "cache_size_bytes",
        "cache_size_bytes_max",
        "cache_target_bytes",
        "cache_lowater_bytes",
        "cache_hiwater_bytes",
        "cache_total_evicts",
    ]
    .map(str::to_owned)
    .into();
    names.extend((0..LEVELS).map(|n| format!("cache_level_{n}")));
    names.extend((0..LEVELS).map(|n| format!("cache_level_{n}_bytes")));
    let rest = "hash_hits hash_misses hash_collisions hash_elements hash_chains hash_chain_max \
                hash_insert_race hash_table_count hash_mutex_count metadata_cache_count \
                metadata_cache_size_bytes metadata_cache_size_bytes_max metadata_cache_overflow";
    names.extend(rest.split_ascii_whitespace().map(str::to_owned));
    let zero = |n: String| (n.into(), kstat::Value::U64(0));
    Kstat::named(names.into_iter().map(zero).collect())
}

/// `abdstats`: the content of the arenas, as scattered pages.
pub(crate) fn abdstats() -> Kstat {
    const ORDERS: usize = 11;
    let arenas = base::buf::stats();
    let mut rows: Vec<(kstat::Name, kstat::Value)> = Vec::new();
    let mut add = |name: kstat::Name, n: u64| rows.push((name, kstat::Value::U64(n)));
    for (name, n) in [
        ("struct_size", 0),
        ("linear_cnt", 0),
        ("linear_data_size", 0),
        ("scatter_cnt", 0),
        ("scatter_data_size", arenas.in_use as u64),
        ("scatter_chunk_waste", (arenas.free_warm + arenas.free_small) as u64),
    ] {
        add(name.into(), n);
    }
    (0..ORDERS).for_each(|n| add(format!("scatter_order_{n}").into(), 0));
    for name in [
        "scatter_page_multi_chunk",
        "scatter_page_multi_zone",
        "scatter_page_alloc_retry",
        "scatter_sg_table_retry",
    ] {
        add(name.into(), 0);
    }
    Kstat::named(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_of_names() {
        let count = |file: &str| {
            let list = FILES.iter().find(|(n, _)| *n == file).unwrap().1;
            zeros(list).entries().len()
        };
        assert_eq!((count("dnodestats"), count("dmu_tx")), (28, 13));
        assert_eq!((count("fm"), count("vdev_mirror_stats"), count("brtstats")), (5, 7, 10));
        assert_eq!(zeros(POOL_FILES[0].1).entries().len(), 26);
        assert_eq!(dbufstats().entries().len(), 7 + 24 + 13);
        assert_eq!(abdstats().entries().len(), 6 + 11 + 4);
    }
}
