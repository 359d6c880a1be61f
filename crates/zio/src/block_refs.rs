//! The pool's counts of pointers to cloned blocks, as lower layers see them (chapter 08 §C).

use std::sync::Arc;

use base::{Error, Result, Txg};
use ondisk::blkptr::Block;

use crate::Zio;

/// Counts pointers to blocks beyond the first; implemented by the pool's block reference
/// tables, and for deduplicated blocks by its dedup tables.
pub trait BlockRefs: Send + Sync {
    /// Whether the pool may have cloned blocks.
    fn is_enabled(&self) -> bool;

    /// Notes that `txg`, which the caller holds open, will write one more pointer to a block
    /// that is on disk. From then on no free in this or another txg lets go of the block
    /// without this pointer.
    ///
    /// # Errors
    /// `Unsupported` if the pool cannot have cloned blocks, or must not have more now.
    fn add(&self, txg: Txg, block: &Block) -> Result<()>;

    /// The pointer will not be written after all.
    fn cancel(&self, txg: Txg, block: &Block);
}

impl Zio {
    /// Sets who counts the pointers; without it no block is cloned.
    pub fn set_block_refs(&self, refs: Arc<dyn BlockRefs>) {
        *self.block_refs.write() = Some(refs);
    }

    /// Who counts the pointers.
    ///
    /// # Errors
    /// `Unsupported` if nobody does.
    pub fn block_refs(&self) -> Result<Arc<dyn BlockRefs>> {
        let refs = self.block_refs.read().clone();
        refs.ok_or_else(|| Error::unsupported("the pool has no cloned blocks"))
    }
}
