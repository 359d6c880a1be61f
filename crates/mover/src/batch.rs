//! How much moves in one txg.

use ondisk::blkptr::Block;
use spa::engine::{BlockPosition, Writer};

/// How much moves at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoveLimits {
    /// Allocated bytes of a batch, without the blocks of pointers that it rewrites.
    pub batch_bytes: u64,
    /// Blocks of a batch.
    pub batch_blocks: usize,
}

impl Default for MoveLimits {
    /// What one txg does in a fraction of a second.
    fn default() -> MoveLimits {
        MoveLimits { batch_bytes: 64 << 20, batch_blocks: 16 << 10 }
    }
}

fn asize(block: &Block) -> u64 {
    block.dvas().map(|dva| dva.asize.0).sum()
}

/// How many blocks the next batch has: at least one.
pub(crate) fn batch_len(
    rest: &[(BlockPosition, Block)],
    writer: &Writer,
    limits: &MoveLimits,
) -> usize {
    let most = limits.batch_bytes.min(writer.relocation_room() / 4);
    let mut bytes = 0u64;
    let fits = |(_, block): &&(BlockPosition, Block)| {
        bytes = bytes.saturating_add(asize(block));
        bytes <= most
    };
    rest.iter().take(limits.batch_blocks).take_while(fits).count().max(1)
}
