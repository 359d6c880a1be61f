//! The operations of a workload.
//!
//! An operation selects its object by a number that is taken modulo the number of objects
//! at that time; so any part of a sequence is a valid sequence.

use base::rt::sim::Rng;

use crate::setup::{Setup, Workload};

/// One operation. `object`, `ds` and `snap` are choices, `seed` is for content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Makes an object with blocks of `512 << block` bytes.
    Create {
        /// The dataset.
        ds: u32,
        /// Block size.
        block: u8,
        /// Seed of its bonus.
        seed: u32,
    },
    /// Makes a ZAP.
    CreateZap {
        /// The dataset.
        ds: u32,
    },
    /// Writes bytes.
    Write {
        /// Which object.
        object: u32,
        /// First byte.
        at: u64,
        /// Bytes.
        len: u32,
        /// Of the content.
        seed: u32,
    },
    /// Writes bytes behind the last one.
    Append {
        /// Which object.
        object: u32,
        /// Bytes.
        len: u32,
        /// Of the content.
        seed: u32,
    },
    /// Frees from a byte on.
    Truncate {
        /// Which object.
        object: u32,
        /// First byte.
        at: u64,
    },
    /// Frees a range.
    Punch {
        /// Which object.
        object: u32,
        /// First byte.
        at: u64,
        /// Bytes.
        len: u32,
    },
    /// Frees an object.
    Free {
        /// Which.
        object: u32,
    },
    /// Changes the block size.
    BlockSize {
        /// Which object.
        object: u32,
        /// To `512 << block`.
        block: u8,
    },
    /// Sets the bonus.
    Bonus {
        /// Which object.
        object: u32,
        /// Of the content.
        seed: u32,
    },
    /// Sets the spill block, or removes it.
    Spill {
        /// Which object.
        object: u32,
        /// Of the content.
        seed: u32,
    },
    /// Adds or changes entries of a ZAP.
    ZapPut {
        /// Which.
        object: u32,
        /// How many entries.
        count: u32,
        /// Which entries, and their values.
        seed: u32,
    },
    /// Removes entries of a ZAP.
    ZapRemove {
        /// Which.
        object: u32,
        /// How many entries.
        count: u32,
        /// Which entries.
        seed: u32,
    },
    /// Changes how new data is stored.
    Props {
        /// The dataset.
        ds: u32,
        /// The properties.
        seed: u32,
    },
    /// Makes a dataset.
    Dataset,
    /// Makes a clone of a snapshot.
    Clone {
        /// Of which.
        snap: u32,
    },
    /// Destroys a dataset.
    Destroy {
        /// Which.
        ds: u32,
    },
    /// Takes a snapshot.
    Snapshot {
        /// Of which dataset.
        ds: u32,
    },
    /// Destroys a snapshot.
    DestroySnapshot {
        /// Which.
        snap: u32,
    },
    /// Promotes a clone.
    Promote {
        /// Which dataset.
        ds: u32,
    },
    /// Returns a dataset to its newest snapshot.
    Rollback {
        /// Which.
        ds: u32,
    },
    /// Returns a dataset to one of its snapshots, and destroys the newer ones.
    RollbackAll {
        /// Which.
        ds: u32,
        /// To which snapshot.
        seed: u32,
    },
    /// Renames a dataset.
    Rename {
        /// Which.
        ds: u32,
        /// Its new name.
        seed: u32,
    },
    /// Renames a snapshot, perhaps with those of the same name below.
    RenameSnapshot {
        /// Which.
        snap: u32,
        /// Its new name.
        seed: u32,
    },
    /// Holds a snapshot.
    Hold {
        /// Which.
        snap: u32,
        /// The tag.
        seed: u32,
    },
    /// Releases a hold.
    Release {
        /// Of which snapshot.
        snap: u32,
        /// The tag.
        seed: u32,
    },
    /// Makes a bookmark.
    Bookmark {
        /// Of which snapshot.
        snap: u32,
        /// Its name.
        seed: u32,
    },
    /// Destroys a bookmark.
    DestroyBookmark {
        /// Which.
        mark: u32,
    },
    /// Destroys a snapshot, or defers that.
    DestroyDeferred {
        /// Which.
        snap: u32,
    },
    /// Destroys a dataset with its snapshots and all below.
    DestroyTree {
        /// Which.
        ds: u32,
    },
    /// Makes blocks of an object clones of those of another, in any of the thread's datasets.
    CloneBlocks {
        /// The source.
        from: u32,
        /// The target, which may be a new object.
        to: u32,
        /// The first block of the source.
        at: u32,
        /// How many blocks, and the first one of the target.
        seed: u32,
    },
    /// Destroys a dataset in a txg, and clones blocks of it in the next one before the
    /// destruction is processed.
    DestroyCloned {
        /// Which.
        ds: u32,
        /// The source and the first block of the target.
        seed: u32,
    },
    /// Writes whole blocks of one of few contents.
    WriteBlocks {
        /// Which object.
        object: u32,
        /// The first block.
        at: u32,
        /// How many.
        count: u32,
        /// Which contents.
        seed: u32,
    },
    /// Changes how equal blocks are recognised.
    DedupProps {
        /// The dataset.
        ds: u32,
        /// The checksum function, or none.
        seed: u32,
    },
    /// Sets the quota of the dedup tables.
    DedupQuota {
        /// The bytes.
        seed: u32,
    },
    /// Prunes the dedup tables.
    Prune {
        /// How much of them.
        seed: u32,
    },
    /// Begins the removal of a device or the expansion of a vdev.
    Reshape {
        /// Of which.
        seed: u32,
    },
    /// Empties a metaslab by moving its blocks.
    Move {
        /// Which, and in how large batches.
        seed: u32,
    },
    /// Changes the pool's comment, and so all labels.
    Comment {
        /// Its content.
        seed: u32,
    },
    /// Takes a checkpoint.
    Checkpoint,
    /// Discards the checkpoint.
    Discard,
    /// Discards the free space of a leaf.
    Trim {
        /// The leaf.
        leaf: u32,
    },
    /// Writes a pattern to the free space of a leaf.
    Initialize {
        /// The leaf.
        leaf: u32,
    },
    /// Sets whether space that is freed is discarded.
    Autotrim {
        /// It is.
        on: bool,
    },
    /// Waits until all changes are on disk.
    Sync,
    /// Starts a sync without waiting.
    Kick,
    /// Lets time pass.
    Sleep {
        /// Milliseconds.
        ms: u32,
    },
    /// Begins a scrub in small steps, or pauses, continues or stops the one that runs.
    Scan {
        /// Which request.
        seed: u32,
    },
}

/// Chances of each kind of operation, in the order of [`draw`].
type Weights = [u64; 47];

/// Operations of the first thread before the vdevs change, if they do.
const BEFORE_RESHAPE: usize = 8;

/// Weights without the last operations.
fn plain<const N: usize>(weights: [u64; N]) -> Weights {
    std::array::from_fn(|at| weights.get(at).copied().unwrap_or(0))
}

fn weights(workload: Workload) -> Weights {
    // create zap write append trunc punch free bsize bonus zput zrem props
    // dataset clone destroy snapshot destroysnap sync kick sleep comment spill scan checkpoint discard
    // trim initialize autotrim
    plain(match workload {
        Workload::Lineage => {
            return plain([
                6, 1, 14, 4, 2, 3, 3, 0, 0, 3, 1, 1, 4, 9, 3, 14, 5, 4, 3, 1, 0, 2, 1, 0, 0, 0, 0,
                0,
                // promote rollback rollback-r rename rename-snapshot hold release bookmark
                // destroy-bookmark destroy-d destroy-r
                9, 7, 4, 4, 4, 4, 4, 4, 2, 4, 2,
            ]);
        }
        Workload::Moves => {
            return plain([
                6, 1, 20, 4, 2, 3, 3, 0, 0, 3, 1, 1, 4, 8, 3, 14, 5, 5, 3, 1, 0, 2, 0, 0, 0, 0, 0,
                0,
                // promote rollback rollback-r rename rename-snapshot hold release bookmark
                // destroy-bookmark destroy-d destroy-r
                6, 5, 2, 2, 1, 1, 1, 2, 1, 2, 1, // cloned and deduplicated blocks, reshape
                0, 0, 0, 0, 0, 0, 0, // move
                14,
            ]);
        }
        Workload::Clones => {
            return plain([
                3, 0, 40, 4, 3, 8, 4, 0, 0, 0, 0, 2, 1, 12, 10, 8, 3, 12, 2, 1, 0, 2, 0, 0, 0, 0,
                0, 0, // promote rollback rollback-r ... destroy-d destroy-r
                2, 8, 2, 0, 0, 0, 0, 0, 0, 0, 5,
            ]);
        }
        Workload::BlockClones => {
            return plain([
                6, 0, 24, 4, 3, 6, 5, 0, 0, 0, 0, 2, 5, 2, 2, 5, 4, 8, 5, 2, 0, 1, 0, 0, 0, 0, 0,
                0, // operations on lineages
                0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // clone-blocks destroy-cloned
                36, 8,
            ]);
        }
        Workload::Dedup => {
            return plain([
                5, 0, 3, 2, 4, 7, 7, 0, 0, 0, 0, 1, 4, 3, 6, 5, 5, 8, 6, 2, 0, 0, 0, 0, 0, 0, 0, 0,
                // operations on lineages, clones of blocks
                0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                // write-blocks dedup-props dedup-quota prune
                44, 3, 1, 3,
            ]);
        }
        Workload::BlockSharing => {
            return plain([
                4, 0, 6, 2, 4, 5, 5, 0, 0, 0, 0, 1, 3, 2, 4, 4, 4, 7, 6, 8, 0, 0, 0, 0, 0, 0, 0, 0,
                // operations on lineages
                0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // clone-blocks destroy-cloned
                18, 4, // write-blocks dedup-props dedup-quota prune reshape
                26, 2, 1, 2, 2,
            ]);
        }
        Workload::Mixed | Workload::Short => {
            [8, 3, 20, 8, 4, 6, 5, 3, 3, 8, 3, 2, 3, 2, 2, 4, 3, 8, 4, 2, 1, 3, 0, 0, 0, 0, 0, 0]
        }
        Workload::Files => {
            [10, 0, 30, 10, 6, 8, 6, 4, 4, 0, 0, 3, 0, 0, 0, 0, 0, 8, 5, 3, 1, 4, 0, 0, 0, 0, 0, 0]
        }
        Workload::Zaps => {
            [1, 6, 1, 0, 0, 0, 4, 0, 0, 30, 15, 0, 0, 0, 0, 1, 1, 8, 5, 3, 1, 0, 0, 0, 0, 0, 0, 0]
        }
        Workload::Datasets => {
            [6, 2, 14, 3, 2, 3, 3, 0, 0, 4, 1, 1, 8, 6, 8, 12, 9, 6, 3, 2, 1, 2, 0, 0, 0, 0, 0, 0]
        }
        Workload::Churn => {
            [8, 0, 30, 6, 8, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 2, 2, 20, 6, 0, 1, 2, 0, 0, 0, 0, 0, 0]
        }
        Workload::Checkpoint => {
            [8, 1, 30, 6, 6, 6, 10, 0, 0, 2, 1, 0, 2, 1, 2, 3, 3, 16, 6, 0, 1, 2, 0, 10, 5, 0, 0, 0]
        }
        Workload::Trim => {
            [8, 0, 30, 6, 8, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 2, 2, 20, 6, 0, 1, 2, 0, 2, 1, 8, 2, 3]
        }
        Workload::Scans => {
            [8, 2, 20, 8, 4, 6, 8, 2, 1, 4, 2, 1, 3, 3, 3, 6, 6, 8, 6, 4, 1, 2, 12, 0, 0, 0, 0, 0]
        }
        Workload::Full => {
            [6, 1, 20, 60, 3, 6, 6, 0, 1, 3, 1, 1, 2, 1, 2, 3, 3, 10, 4, 1, 1, 2, 0, 0, 0, 0, 0, 0]
        }
    })
}

fn offset(rng: &mut Rng) -> u64 {
    let place = match rng.below(24) {
        0 => 1 << 33,
        1 => 1 << 22,
        _ => 0,
    };
    let near = match rng.below(3) {
        0 => rng.below(4 << 10),
        1 => rng.below(128 << 10),
        _ => rng.below(8) << 14,
    };
    place + near
}

fn length(rng: &mut Rng) -> u32 {
    let len = match rng.below(5) {
        0 => 1 + rng.below(600),
        1 => 512 << rng.below(6),
        2 => 1 + rng.below(16 << 10),
        3 => 16 << 10,
        _ => 1 + rng.below(96 << 10),
    };
    len as u32
}

/// Draws an operation; appends are `much` times as large as usual.
fn draw(rng: &mut Rng, weights: &Weights, much: u32) -> Op {
    let total: u64 = weights.iter().sum();
    let mut at = rng.below(total);
    let mut kind = 0;
    while at >= weights[kind] {
        at -= weights[kind];
        kind += 1;
    }
    let which = rng.next_u64() as u32;
    let seed = rng.next_u64() as u32;
    let block = [0, 0, 1, 3, 4, 5, 7, 8][rng.below(8) as usize];
    match kind {
        0 => Op::Create { ds: which, block, seed },
        1 => Op::CreateZap { ds: which },
        2 => Op::Write { object: which, at: offset(rng), len: length(rng), seed },
        3 => Op::Append { object: which, len: length(rng) * much, seed },
        4 => Op::Truncate { object: which, at: offset(rng) },
        5 => Op::Punch { object: which, at: offset(rng), len: length(rng) },
        6 => Op::Free { object: which },
        7 => Op::BlockSize { object: which, block },
        8 => Op::Bonus { object: which, seed },
        9 => Op::ZapPut { object: which, count: 1 + rng.below(60) as u32, seed },
        10 => Op::ZapRemove { object: which, count: 1 + rng.below(40) as u32, seed },
        11 => Op::Props { ds: which, seed },
        12 => Op::Dataset,
        13 => Op::Clone { snap: which },
        14 => Op::Destroy { ds: which },
        15 => Op::Snapshot { ds: which },
        16 => Op::DestroySnapshot { snap: which },
        17 => Op::Sync,
        18 => Op::Kick,
        20 => Op::Comment { seed },
        21 => Op::Spill { object: which, seed },
        22 => Op::Scan { seed },
        23 => Op::Checkpoint,
        24 => Op::Discard,
        25 => Op::Trim { leaf: which },
        26 => Op::Initialize { leaf: which },
        27 => Op::Autotrim { on: !seed.is_multiple_of(4) },
        28 => Op::Promote { ds: which },
        29 => Op::Rollback { ds: which },
        30 => Op::RollbackAll { ds: which, seed },
        31 => Op::Rename { ds: which, seed },
        32 => Op::RenameSnapshot { snap: which, seed },
        33 => Op::Hold { snap: which, seed },
        34 => Op::Release { snap: which, seed },
        35 => Op::Bookmark { snap: which, seed },
        36 => Op::DestroyBookmark { mark: which },
        37 => Op::DestroyDeferred { snap: which },
        38 => Op::DestroyTree { ds: which },
        39 => Op::CloneBlocks {
            from: which,
            to: rng.next_u64() as u32,
            at: rng.next_u64() as u32,
            seed,
        },
        40 => Op::DestroyCloned { ds: which, seed },
        41 => Op::WriteBlocks {
            object: which,
            at: rng.next_u64() as u32,
            count: rng.next_u64() as u32,
            seed,
        },
        42 => Op::DedupProps { ds: which, seed },
        43 => Op::DedupQuota { seed },
        44 => Op::Prune { seed },
        45 => Op::Reshape { seed },
        46 => Op::Move { seed },
        _ => Op::Sleep { ms: 1 + rng.below(3000) as u32 },
    }
}

/// The operations of each thread, each with its number.
pub type OpPlan = Vec<Vec<(usize, Op)>>;

/// The plan of a setup.
pub fn plan(setup: &Setup) -> OpPlan {
    if setup.workload == Workload::Short {
        return crate::short::plan(usize::try_from(setup.seed).unwrap_or(0));
    }
    let weights = weights(setup.workload);
    let much = if setup.workload == Workload::Full { 24 } else { 1 };
    let mut number = 0;
    let mut plan = OpPlan::new();
    for thread in 0..setup.threads {
        let mut rng = Rng::stream(setup.seed, 100 + thread as u64);
        let mut ops = Vec::new();
        for _ in 0..setup.ops {
            let mut op = draw(&mut rng, &weights, much);
            if setup.workload == Workload::BlockSharing && number == BEFORE_RESHAPE {
                op = Op::Reshape { seed: setup.seed as u32 };
            }
            if setup.keep.as_ref().is_none_or(|keep| keep.contains(&number)) {
                ops.push((number, op));
            }
            number += 1;
        }
        plan.push(ops);
    }
    plan
}

/// Bytes that follow from a seed: of few or many values, or with runs of zeros, so that
/// compressors, embedding and holes are all exercised.
pub fn content(seed: u32, len: usize) -> Vec<u8> {
    let mut rng = Rng::stream(u64::from(seed), 21);
    let mut out = vec![0; len];
    match seed % 5 {
        0 => {
            let word = rng.next_u64().to_le_bytes();
            out.iter_mut().zip(word.iter().cycle()).for_each(|(o, w)| *o = *w);
        }
        1 => {
            for chunk in out.chunks_mut(1024) {
                if rng.one_in(2) {
                    rng.fill(chunk);
                }
            }
        }
        2 => out.iter_mut().for_each(|b| *b = (rng.next_u64() & 3) as u8),
        _ => rng.fill(&mut out),
    }
    out
}
