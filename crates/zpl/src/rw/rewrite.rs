//! Rewriting: the blocks of a file are written again, at other addresses and with the
//! properties that the file system has now.
//!
//! # Theory
//! Compression, checksum, number of copies and allocation class of a block are those that
//! the file system had when the block was written. A rewrite makes blocks dirty whose content
//! stays ([`dmu::Objset::move_block`]), so that a txg writes them like any others. The size of
//! the blocks stays, too. A piece of at most 1 MiB, but at least one block, is one
//! transaction; it reads the blocks first, without a transaction open.
//!
//! The result is that of reading the blocks and writing them back: a block of zeros becomes a
//! hole if the file system compresses, and free space is needed for the new blocks before a
//! txg frees the old ones. Blocks that a snapshot has as well are not freed.
//!
//! A *physical* rewrite keeps the logical births (feature physical_rewrite, chapter 02 §2.5),
//! so that comparisons of snapshots and incremental streams do not see the blocks as changed.
//! Space is accounted for by the physical birth (chapter 04 §0).
//!
//! # States
//! A block of the range is a hole (it stays one), *skipped* (shared with a snapshot, or
//! embedded and to be embedded again), dirty in the open txg already (nothing is to be done),
//! or moved.
//!
//! # Invariants
//! * Content, size, attributes and times do not change.
//! * While a piece is read and made dirty, its range is locked, so that no writer changes the
//!   blocks in between. Readers take no locks: they see the same bytes at each moment.
//! * No record is added to the intent log: after a crash the file has its content, at its old
//!   or its new address.
//!
//! Lock order: the range of the file → transaction.
//!
//! # Departures from OpenZFS
//! Blocks that are embedded and would be embedded again with the same compression are left.

use std::ops::Range;

use base::{Buf, ObjectId, Result, Txg};
use dmu::Io;

use super::make::{DNODE_BLOCK, blocks_cost};
use super::node::FileNode;
use super::types::{Rewrite, RewriteSummary};
use crate::fs::FileSystem;

/// Bytes that one transaction makes dirty at most, but at least one block.
const PIECE_MAX: u64 = 1 << 20;
/// Pieces that one call rewrites.
const PIECES: u64 = 8;

/// The blocks of one piece.
#[derive(Default)]
struct RewritePiece {
    /// To be moved, with their content.
    blocks: Vec<(u64, Buf)>,
    skipped: u64,
}

impl FileSystem {
    /// Writes blocks of a regular file again, with the present properties and, unless `how`
    /// says otherwise, as blocks born now. `range` is in bytes; each block that it touches is
    /// rewritten as a whole. One call rewrites at most 8 MiB, or eight blocks if they are
    /// larger than 1 MiB; [`RewriteSummary::next`] says where the caller goes on.
    ///
    /// An error after some blocks were rewritten ends the call as if they were all it could
    /// do; the next call meets the error again.
    ///
    /// # Errors
    /// `NotFound`; `IsDir`, `Invalid` for anything but a regular file; `NotPermitted` by
    /// flags; `NoSpace`; `Quota`; `ReadOnly`; `Unsupported` if births are to be kept and the
    /// pool's feature physical_rewrite is not enabled; those of reading the blocks.
    pub fn rewrite(&self, id: ObjectId, range: Range<u64>, how: Rewrite) -> Result<RewriteSummary> {
        let (rw, _) = self.rw()?;
        if how.keep_birth {
            rw.host.check_physical_rewrite()?;
        }
        let shared_until = if how.skip_snapshots { rw.host.newest_snapshot()? } else { Txg::ZERO };
        let start = Some(range.start).filter(|_| !range.is_empty());
        let mut done = RewriteSummary { next: start, ..RewriteSummary::default() };
        for _ in 0..PIECES {
            let Some(at) = done.next else { break };
            match self.rewrite_piece(id, at..range.end, how.keep_birth, shared_until) {
                Ok(piece) => {
                    done.next = piece.next;
                    done.blocks += piece.blocks;
                    done.bytes += piece.bytes;
                    done.skipped += piece.skipped;
                }
                Err(_) if done.blocks > 0 => break,
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    /// Rewrites the first data blocks of `range`, as many as fit one transaction.
    fn rewrite_piece(
        &self,
        id: ObjectId,
        range: Range<u64>,
        keep_birth: bool,
        shared_until: Txg,
    ) -> Result<RewriteSummary> {
        let rw = self.rw_always()?;
        loop {
            let object = self.content(id, true)?.object;
            let block = object.block_size();
            let first = object.next_data_block(range.start / block, self.io())?;
            let Some(first) = first.filter(|b| b.saturating_mul(block) < range.end) else {
                return Ok(RewriteSummary::default());
            };
            let past = first.saturating_add((PIECE_MAX / block).max(1));
            let past = past.min(range.end.div_ceil(block));
            let (from, to) = (first.saturating_mul(block), past.saturating_mul(block));
            // The devices read the next piece while this one is processed.
            let ahead = to.saturating_add(PIECE_MAX.max(block)).min(range.end) - from;
            object.prefetch(from, ahead, Io::PREFETCH.with_outage(self.outage()));
            let _lock = rw.locks.range(id, from..to);
            let node = self.content(id, true)?;
            // Blocks grow a few times at most, each time because a writer proceeded.
            if node.object.block_size() != block {
                continue;
            }
            let piece = self.piece_of(&node, first..past, shared_until)?;
            let blocks = piece.blocks.len() as u64;
            if blocks > 0 {
                self.check_quota(&node)?;
                let tx = self.begin_tx(blocks_cost(blocks, block) + DNODE_BLOCK, false)?;
                for (blkid, content) in &piece.blocks {
                    self.os().move_block(&tx, id, *blkid, content, keep_birth)?;
                }
            }
            let next = (to < range.end.min(node.attrs.size)).then_some(to);
            let (bytes, skipped) = (blocks * block, piece.skipped);
            return Ok(RewriteSummary { next, blocks, bytes, skipped });
        }
    }

    /// Reads the blocks to be moved; the caller holds the lock on their range.
    fn piece_of(
        &self,
        node: &FileNode,
        range: Range<u64>,
        shared_until: Txg,
    ) -> Result<RewritePiece> {
        let (object, io) = (&node.object, self.io());
        let mut piece = RewritePiece::default();
        for blkid in range {
            if object.is_hole(blkid, io)? {
                continue;
            }
            // The pointer on disk. A block with a newer state in memory is about to be written
            // in any case.
            let bp = object.block_pointer(0, blkid, io)?;
            let shared = !bp.is_hole() && bp.allocation_birth() <= shared_until;
            if shared || self.os().stays_embedded(object.dnode(), &bp)? {
                piece.skipped += 1;
                continue;
            }
            piece.blocks.push((blkid, object.read_little(blkid, io)?));
        }
        Ok(piece)
    }
}
