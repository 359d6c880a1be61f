//! Emptying a metaslab: everything of datasets in it moves elsewhere.

use std::collections::BTreeSet;

use base::{ErrorKind, Result};
use metaslab::MsKey;
use ondisk::blkptr::Block;
use spa::engine::{BlockPosition, RelocationBatch, RelocationOutcome, Writer};

use crate::batch::{MoveLimits, batch_len};
use crate::find::find;

/// Walks over the datasets: one, and more for what was written meanwhile.
const WALKS_MAX: u64 = 4;
/// Txgs that are waited for until the space of earlier batches is free again.
const WAITS_MAX: u64 = 8;

/// What was done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EmptyReport {
    /// Batches that switched something.
    pub batches: u64,
    /// Sums over the batches ([`RelocationOutcome`]).
    pub moved: u64,
    /// Likewise.
    pub moved_bytes: u64,
    /// Likewise.
    pub metadata: u64,
    /// Likewise.
    pub metadata_bytes: u64,
    /// Likewise.
    pub listed: u64,
    /// Blocks that stay, because they are cloned, have no other place, or cannot be rewritten.
    pub kept: u64,
    /// Blocks that are never moved.
    pub immovable: u64,
}

impl EmptyReport {
    fn add(&mut self, done: &RelocationOutcome) {
        self.batches += u64::from(done.roots > 0);
        self.moved += done.moved;
        self.moved_bytes += done.moved_bytes;
        self.metadata += done.metadata;
        self.metadata_bytes += done.metadata_bytes;
        self.listed += done.listed;
    }
}

/// Moves all blocks of datasets that have an address in a metaslab to other metaslabs. Blocks of
/// the MOS stay there.
///
/// # Errors
/// As [`Writer::relocate`]. What was moved before stays moved.
pub fn empty_metaslab(writer: &Writer, key: MsKey, limits: &MoveLimits) -> Result<EmptyReport> {
    let (mut report, mut kept) = (EmptyReport::default(), BTreeSet::new());
    let all = writer.space().metaslabs(key.vdev)?;
    let Some(seg) = all.iter().find(|ms| ms.key == key).map(|ms| ms.seg) else {
        return Ok(report);
    };
    for _ in 0..WALKS_MAX {
        let inside = |block: &Block| {
            let within = |offset: u64| (seg.start..seg.end()).contains(&offset);
            // Members of a gang may be in it, and only its header says so.
            block.is_gang() || block.dvas().any(|dva| dva.vdev == key.vdev && within(dva.offset))
        };
        let found = find(writer, &inside)?;
        report.immovable = found.immovable;
        let mut list = found.blocks;
        list.retain(|(_, block)| !kept.contains(&block.place()));
        if list.is_empty() {
            break;
        }
        let mut rest = list.as_slice();
        while !rest.is_empty() {
            let (batch, later) = rest.split_at(batch_len(rest, writer, limits));
            rest = later;
            let done = move_batch(writer, key, batch)?;
            kept.extend(&done.kept);
            if done.incomplete {
                kept.extend(batch.iter().map(|(_, block)| block.place()));
            }
            report.add(&done);
        }
    }
    report.kept = kept.len() as u64;
    Ok(report)
}

fn move_batch(
    writer: &Writer,
    key: MsKey,
    blocks: &[(BlockPosition, Block)],
) -> Result<RelocationOutcome> {
    for waited in 0.. {
        let (blocks, avoid) = (blocks.to_vec(), vec![key]);
        let batch = RelocationBatch { blocks, avoid, ..RelocationBatch::default() };
        match writer.relocate(batch) {
            Err(e) if e.kind() == ErrorKind::NoSpace && waited < WAITS_MAX => {
                writer.sync()?;
            }
            other => return other,
        }
    }
    Ok(RelocationOutcome::default())
}
