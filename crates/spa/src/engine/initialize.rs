//! Initializing: a pattern is written to the free space of a leaf (chapter 05 §3.2).
//!
//! # Theory
//! It is a job of a leaf (`leaf_jobs`). Its operations are writes of `zfs_initialize_chunk_size`
//! bytes of `zfs_initialize_value`, one at a time in the queue of the leaf
//! (`zfs_vdev_initializing_max_active`). The pattern is written in the byte order of the
//! machine, and each word is at an offset that is a multiple of eight, so it does not matter
//! where a write begins.
//!
//! Lock order: no locks.

use base::BufMut;

use super::leaf_jobs::{FreeSpacePlan, FreeSpaceTuning};

/// Bytes that one step writes: the metaslab is excluded from allocation for that long.
const STEP: u64 = 16 << 20;
/// The largest and the smallest chunk.
const CHUNKS: (u64, u64) = (4 << 10, 16 << 20);

/// The plan of a step.
pub(super) fn plan(tuning: &FreeSpaceTuning) -> FreeSpacePlan {
    let chunk = tuning.chunk.clamp(CHUNKS.0, CHUNKS.1) & !4095;
    let mut fill = BufMut::alloc(chunk as usize);
    let word = tuning.pattern.to_ne_bytes();
    fill.chunks_exact_mut(8).for_each(|bytes| bytes.copy_from_slice(&word));
    FreeSpacePlan {
        limits: (usize::MAX, STEP),
        sizes: (1, chunk),
        fill: Some(fill.freeze()),
        ops: Vec::new(),
        end: 0,
        bytes: 0,
    }
}
