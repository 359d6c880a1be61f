//! The pool's dedup tables, as writes see them (chapter 08 §B.3).
//!
//! # Theory
//! A block of a dataset with property `dedup` is looked up by its checksum before it gets
//! addresses. If the table has it, the pointer gets the addresses of the block that is there,
//! nothing is written, and the table counts one more pointer. Otherwise the block is written,
//! and the table gets an entry. Both happen in [`Zio::place`], which runs for one block after
//! the other, so that of two equal blocks of one wave the second finds the first. The look-up
//! happens before that once more, in [`Zio::prepare`]: many threads read the table's blocks,
//! and `place` finds them in the cache.
//!
//! Where a checksum proves nothing, or the property asks for it, the block that is there is
//! read and compared. If it differs, or cannot be read, the new one is an ordinary block.

use std::sync::Arc;

use base::{Buf, Result};
use ondisk::blkptr::Block;

use crate::Zio;

/// Whether blocks are shared with equal ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DedupMode {
    /// No.
    #[default]
    Off,
    /// Those with the same checksum.
    Trust,
    /// Those with the same checksum and the same bytes.
    Verify,
}

/// What a table has of the content of a block.
pub enum DedupMatch {
    /// This block; it has the addresses and the birth that were written.
    Found {
        /// The block.
        block: Block,
        /// Its bytes, as stored, if it was placed in this txg and may not have been submitted.
        stored: Option<Buf>,
    },
    /// Nothing: the block is to be written and added.
    Absent,
    /// The block must not be shared: it is an ordinary one.
    Refused,
}

/// The pool's dedup tables. All calls but [`DedupTables::find`] come from one thread after the
/// other.
pub trait DedupTables: Send + Sync {
    /// Looks up the content of a block that is to have `copies` addresses; its checksum, sizes
    /// and compression are known.
    ///
    /// # Errors
    /// Those of reading the table; `Corrupt`.
    fn find(&self, block: &Block, copies: u8) -> Result<DedupMatch>;

    /// Counts one more pointer to the block that [`DedupTables::find`] found for `block`.
    ///
    /// # Errors
    /// As [`DedupTables::find`].
    fn share(&self, block: &Block, copies: u8) -> Result<()>;

    /// Adds a block, which has its addresses now, with one pointer. `stored`: its bytes, which
    /// are needed until it is submitted if they may be compared.
    ///
    /// # Errors
    /// As [`DedupTables::find`].
    fn insert(&self, block: &Block, copies: u8, stored: Option<Buf>) -> Result<()>;
}

impl Zio {
    /// Sets the pool's tables; without them no block is shared.
    pub fn set_dedup(&self, tables: Arc<dyn DedupTables>) {
        *self.dedup.write() = Some(tables);
    }

    pub(crate) fn dedup(&self) -> Option<Arc<dyn DedupTables>> {
        self.dedup.read().clone()
    }

    /// Whether the block that is there has exactly these bytes.
    pub(crate) fn has_content(&self, there: &Block, written: Option<&Buf>, content: &Buf) -> bool {
        match written {
            Some(written) => **written == **content,
            None => self.read_physical(there).is_ok_and(|bytes| *bytes == **content),
        }
    }
}
