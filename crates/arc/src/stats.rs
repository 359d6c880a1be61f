//! The cache's counters, by the names of chapter 10 §7.

/// Lookups of one class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accesses {
    /// Answered from memory.
    pub hits: u64,
    /// Joined a read in flight.
    pub iohits: u64,
    /// Had to read.
    pub misses: u64,
}

impl Accesses {
    /// All lookups.
    pub fn total(&self) -> u64 {
        self.hits + self.iohits + self.misses
    }
}

/// Bytes in one state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateBytes {
    /// Data blocks.
    pub data: u64,
    /// Metadata blocks.
    pub metadata: u64,
    /// Part of the data that is not held by readers.
    pub evictable_data: u64,
    /// Part of the metadata that is not held by readers.
    pub evictable_metadata: u64,
}

impl StateBytes {
    /// Data and metadata.
    pub fn size(&self) -> u64 {
        self.data + self.metadata
    }
}

/// Usefulness of one kind of prefetch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefetchCounts {
    /// Reads that prefetchers requested.
    pub issued: u64,
    /// Of these, found in memory by a demand read.
    pub demand_hits: u64,
    /// Of these, still in flight when a demand read came.
    pub demand_iohits: u64,
}

/// How hits were served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HitForms {
    /// The reader got the cache's own buffer.
    pub borrowed: u64,
    /// The bytes were copied into the reader's buffer.
    pub copied: u64,
    /// The bytes had to be decompressed first.
    pub decompressed: u64,
}

/// The second tier's counters by the names of chapter 10 §7; all zero without one. Sizes
/// are bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of arcstats, which the chapter describes")]
pub struct SecondTierStats {
    pub ndev: u64,
    pub hits: u64,
    pub misses: u64,
    pub prefetch_asize: u64,
    pub mru_asize: u64,
    pub mfu_asize: u64,
    pub bufc_data_asize: u64,
    pub bufc_metadata_asize: u64,
    pub feeds: u64,
    pub rw_clash: u64,
    pub read_bytes: u64,
    pub write_bytes: u64,
    pub writes_sent: u64,
    pub writes_done: u64,
    pub writes_error: u64,
    pub evict_reading: u64,
    pub free_on_write: u64,
    pub abort_lowmem: u64,
    pub cksum_bad: u64,
    pub io_error: u64,
    pub size: u64,
    pub asize: u64,
    pub hdr_size: u64,
    /// Bytes of blocks that wait to be written.
    pub waiting: u64,
    pub log_blk_writes: u64,
    pub log_blk_asize: u64,
    pub log_blk_count: u64,
    /// Bytes of all log blocks that were written, and of the blocks with them.
    pub log_blk_written: u64,
    pub rebuild_success: u64,
    pub rebuild_unsupported: u64,
    pub rebuild_io_errors: u64,
    pub rebuild_dh_errors: u64,
    pub rebuild_cksum_lb_errors: u64,
    pub rebuild_lowmem: u64,
    pub rebuild_size: u64,
    pub rebuild_asize: u64,
    pub rebuild_bufs: u64,
    pub rebuild_bufs_precached: u64,
    pub rebuild_log_blks: u64,
    /// Blocks that were offered, and of these those that were admitted.
    pub offered: u64,
    pub admitted: u64,
}

/// Logical bytes that left the first tier, by what the second one did with them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EvictedToTier {
    /// The second tier has them.
    pub cached: u64,
    /// It could have, and has not: blocks used once, blocks used again.
    pub eligible: [u64; 2],
    /// It may not have them.
    pub ineligible: u64,
}

/// A nearly consistent snapshot of the cache; sizes in bytes, counts since the cache
/// was created.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ArcStats {
    /// Lookups for data by waiting readers.
    pub demand_data: Accesses,
    /// Lookups for metadata by waiting readers.
    pub demand_metadata: Accesses,
    /// Lookups of prefetchers for data.
    pub prefetch_data: Accesses,
    /// Lookups of prefetchers for metadata.
    pub prefetch_metadata: Accesses,
    /// Hits on blocks used once.
    pub mru_hits: u64,
    /// Misses on blocks evicted from the MRU list a short while ago.
    pub mru_ghost_hits: u64,
    /// Hits on blocks used again.
    pub mfu_hits: u64,
    /// Misses on blocks evicted from the MFU list a short while ago.
    pub mfu_ghost_hits: u64,
    /// Hits on blocks that are not kept.
    pub uncached_hits: u64,
    /// How hits were served.
    pub forms: HitForms,
    /// Directory entries destroyed.
    pub deleted: u64,
    /// Policy locks that were busy when hits were to be recorded.
    pub mutex_miss: u64,
    /// Hits that were not recorded for that reason.
    pub access_skip: u64,
    /// Held blocks that eviction skipped.
    pub evict_skip: u64,
    /// Evictions that found too little to evict.
    pub evict_not_enough: u64,
    /// Bytes evicted since the cache was created.
    pub evicted: u64,
    /// Directory entries.
    pub hash_elements: u64,
    /// Maximum of directory entries.
    pub hash_elements_max: u64,
    /// Share of metadata in the target, in units of 2^-32.
    pub meta: u64,
    /// Share of MRU in the data target, in units of 2^-32.
    pub pd: u64,
    /// Share of MRU in the metadata target, in units of 2^-32.
    pub pm: u64,
    /// Target size.
    pub c: u64,
    /// Smallest target size.
    pub c_min: u64,
    /// Largest target size.
    pub c_max: u64,
    /// All memory of the cache.
    pub size: u64,
    /// Physical bytes of blocks held as stored.
    pub compressed_size: u64,
    /// Logical bytes of the same blocks.
    pub uncompressed_size: u64,
    /// Decompressed copies beside the compressed ones.
    pub overhead_size: u64,
    /// Directory and policy memory.
    pub hdr_size: u64,
    /// Bytes of data blocks, in both forms.
    pub data_size: u64,
    /// Bytes of metadata blocks, in both forms.
    pub metadata_size: u64,
    /// Memory of the dbuf hints and dirty buffers' headers.
    pub dbuf_size: u64,
    /// Unread prefetched blocks and dirty data.
    pub anon: StateBytes,
    /// Blocks used once.
    pub mru: StateBytes,
    /// Remembered, once used.
    pub mru_ghost: StateBytes,
    /// Blocks used again.
    pub mfu: StateBytes,
    /// Remembered, used again.
    pub mfu_ghost: StateBytes,
    /// Blocks that are not kept.
    pub uncached: StateBytes,
    /// Data blocks that readers hold, in both forms: they cannot be evicted.
    pub held_data: u64,
    /// Metadata blocks that readers hold.
    pub held_metadata: u64,
    /// Predictive prefetch.
    pub predictive: PrefetchCounts,
    /// Prefetch of blocks that are certainly needed.
    pub prescient: PrefetchCounts,
    /// The second tier.
    pub l2: SecondTierStats,
    /// What left the first tier, by what the second one did with it.
    pub evicted_to: EvictedToTier,
    /// Number of requests to shrink at once.
    pub memory_direct_count: u64,
    /// Number of shrinks by the memory monitor.
    pub memory_indirect_count: u64,
    /// Number of writers delayed for memory.
    pub memory_throttle_count: u64,
    /// The machine's or the control group's memory.
    pub memory_all_bytes: u64,
    /// Free memory.
    pub memory_free_bytes: u64,
    /// Available memory; negative when memory is to be returned.
    pub memory_available_bytes: i64,
    /// Growth is forbidden for now.
    pub no_grow: bool,
    /// Bytes still to be returned.
    pub need_free: u64,
    /// Memory left free on purpose.
    pub sys_free: u64,
    /// Free arena memory that is still resident, and size-class rounding.
    pub chunk_waste: u64,
}

impl ArcStats {
    /// The four classes together.
    pub fn all(&self) -> Accesses {
        let classes =
            [self.demand_data, self.demand_metadata, self.prefetch_data, self.prefetch_metadata];
        classes.iter().fold(Accesses::default(), |sum, c| Accesses {
            hits: sum.hits + c.hits,
            iohits: sum.iohits + c.iohits,
            misses: sum.misses + c.misses,
        })
    }
}
