//! `zpool defrag`: files are laid out in order, and free space is joined, while the pool is used.
//!
//! # Theory
//! A job ([`crate::job`]) does the work; this module chooses it, by [`plan`]. Phases come in
//! order: fragmented metaslabs are emptied, so that there is room for files in one piece; files
//! are laid out; metaslabs are emptied once more, because files have left their old places. Where
//! files need more room than there is in one piece, metaslabs are also emptied between one piece of
//! them and the next ([`plan`]). A crash forgets the pieces: the files are looked at again.
//!
//! # Progress
//! Each phase chooses a file or metaslab at most once, and so does the work between two pieces. A
//! piece is at least a part in [`PIECES`] of the files, or all that is left of them. The phase of
//! files ends early when what it laid out lies no better than before, several parts in a row: then
//! free space is too scattered to help.

mod plan;

use std::collections::BTreeSet;

use base::Result;
use dsl::write::relocate::RelocatableDataset;
use metaslab::MsKey;
use ondisk::blkptr::Block;
use spa::engine::BlockPosition;

use crate::find::{FindFlow, find_in};
use crate::job::{JobCx, MovePhase, MoveRecord, Next, Part, Planner};

pub use plan::DefragEstimate;
pub(crate) use plan::estimate;

use plan::{FileChunk, FreeLayout, LayoutKey};

/// Files with a lower score are laid out, unless a request says otherwise; in thousandths.
pub const TARGET: u64 = 950;
/// Parts in a row that end the phase of files if they gain nothing.
const GAINLESS_MAX: u32 = 3;
/// The most pieces in which files are laid out.
const PIECES: u64 = 16;

/// What a defragmentation knows beside its record.
#[derive(Default)]
pub(crate) struct DefragPlanner {
    /// Metaslabs that were tried in this phase, or since the last piece.
    tried: BTreeSet<MsKey>,
    /// Parts of files in a row that gained nothing.
    gainless: u32,
    /// Files that are being laid out, until their last piece.
    pieces: Option<FilePieces>,
}

/// Files that are laid out piece by piece.
struct FilePieces {
    chunk: FileChunk,
    ds: RelocatableDataset,
    files: BTreeSet<u64>,
    /// The last block of the last piece; `None` before the first one.
    after: Option<LayoutKey>,
    /// Bytes that are left.
    left: u64,
    /// The fewest bytes of a piece.
    least: u64,
    /// While free space is being joined: the room before.
    joins: Option<u64>,
}

impl Planner for DefragPlanner {
    fn estimate(&mut self, cx: &JobCx<'_>, record: &MoveRecord) -> Result<u64> {
        let all = plan::estimate(cx.writer, record, &|| cx.is_stopped())?;
        Ok(all.file_bytes.saturating_add(all.metaslab_bytes))
    }

    fn next(&mut self, cx: &JobCx<'_>, record: &MoveRecord) -> Result<Next> {
        match record.phase {
            MovePhase::Space | MovePhase::SpaceAgain => self.space(cx),
            MovePhase::Files => match self.pieces.as_ref().map(|p| (p.joins, p.left)) {
                None => self.files(cx, record),
                Some((Some(before), left)) => self.join(cx, before, left),
                Some((None, _)) => self.piece(cx, record),
            },
            MovePhase::Done => Ok(Next::Complete),
        }
    }

    fn moved(&mut self, cx: &JobCx<'_>, part: &Part) -> Result<()> {
        // Of files that are not complete, nothing is counted.
        let Some((head, files)) = part.files.as_ref().filter(|_| self.pieces.is_none()) else {
            return cx.store();
        };
        let now = plan::score_of(cx.writer, *head, files)?;
        let gained = now.in_sequence > part.in_sequence;
        self.gainless = if gained || files.is_empty() { 0 } else { self.gainless + 1 };
        cx.update(|record| {
            record.in_sequence_now += now.in_sequence;
            record.files += files.len() as u64;
            record.position = part.next.unwrap_or(record.position);
        });
        if part.next.is_none() || self.gainless >= GAINLESS_MAX {
            self.gainless = 0;
            return self.next_phase(cx);
        }
        cx.store()
    }
}

impl DefragPlanner {
    fn next_phase(&mut self, cx: &JobCx<'_>) -> Result<()> {
        self.tried.clear();
        cx.update(|record| {
            record.phase = match record.is_whole_pool() {
                true => record.phase.next(),
                false => MovePhase::Done,
            };
            record.position = (0, 0);
        });
        cx.store()
    }

    fn space(&mut self, cx: &JobCx<'_>) -> Result<Next> {
        match self.metaslabs(cx)? {
            Some(part) => Ok(Next::Part(part)),
            None => {
                self.next_phase(cx)?;
                Ok(Next::Look)
            }
        }
    }

    /// Chooses metaslabs and finds what is in them.
    fn metaslabs(&mut self, cx: &JobCx<'_>) -> Result<Option<Part>> {
        let group = plan::metaslab_group(cx.writer, &self.tried)?;
        if group.is_empty() {
            return Ok(None);
        }
        let inside = |_: &BlockPosition, block: &Block| {
            let within = |dva: base::Dva| {
                group.iter().any(|ms| {
                    ms.key.vdev == dva.vdev && (ms.seg.start..ms.seg.end()).contains(&dva.offset)
                })
            };
            // Members of a gang may be there, and only its header says so.
            let taken = block.is_gang() || block.dvas().any(within);
            if taken { FindFlow::Take } else { FindFlow::Descend }
        };
        let mut found = find_in(cx.writer, None, &inside)?;
        // In their present order: files that are in one piece stay so.
        found.blocks.sort_by_key(|(_, block)| (block.dva().vdev, block.dva().offset));
        self.tried.extend(group.iter().map(|ms| ms.key));
        cx.update(|record| {
            record.kept += found.immovable;
            record.metaslabs += group.len() as u64;
        });
        Ok(Some(Part {
            blocks: found.blocks.into(),
            avoid: group.iter().map(|ms| ms.key).collect(),
            // Holes elsewhere are filled first.
            spare: FreeLayout::of(cx.writer)?.joined,
            ..Part::default()
        }))
    }

    /// Joins free space between two pieces, as long as that helps and more is needed. `before`: the
    /// room before the last step; `left`: the bytes of files that are left.
    fn join(&mut self, cx: &JobCx<'_>, before: u64, left: u64) -> Result<Next> {
        let room = FreeLayout::of(cx.writer)?.room;
        let helps = self.tried.is_empty() || room > before;
        let part = if helps && room < left { self.metaslabs(cx)? } else { None };
        if let Some(pieces) = &mut self.pieces {
            pieces.joins = part.is_some().then_some(room);
        }
        Ok(part.map_or(Next::Look, Next::Part))
    }

    /// Chooses files.
    fn files(&mut self, cx: &JobCx<'_>, record: &MoveRecord) -> Result<Next> {
        let mut chunk = plan::files(cx.writer, record)?;
        let good = chunk.looked_at.in_sequence - chunk.bad.in_sequence;
        cx.update(|record| {
            record.steps += chunk.looked_at.steps;
            record.in_sequence += chunk.looked_at.in_sequence;
            // Those that are laid out are counted afterwards.
            record.in_sequence_now += good;
        });
        let Some((ds, files)) = chunk.files.take() else {
            self.next_phase(cx)?;
            return Ok(Next::Look);
        };
        let (after, joins) = (None, None);
        self.pieces = Some(FilePieces { chunk, ds, files, after, left: 0, least: 0, joins });
        Ok(Next::Look)
    }

    /// Finds the blocks of the next piece of files.
    fn piece(&mut self, cx: &JobCx<'_>, record: &MoveRecord) -> Result<Next> {
        let Some(pieces) = &mut self.pieces else { return Ok(Next::Look) };
        let free = FreeLayout::of(cx.writer)?;
        // Free space is joined for the whole pool alone.
        let room = if record.is_whole_pool() { free.room } else { u64::MAX };
        let (lineage, limits) = (pieces.ds.lineage, (room, pieces.least));
        let piece = plan::piece(cx.writer, lineage, &pieces.files, pieces.after, limits)?;
        if pieces.after.is_none() {
            cx.update(|record| record.kept += piece.immovable);
            pieces.least = (piece.bytes + piece.left) / PIECES;
        }
        let part = Part {
            blocks: piece.blocks.into(),
            spare: free.scattered,
            files: Some((pieces.ds.object, pieces.files.clone())),
            in_sequence: pieces.chunk.bad.in_sequence,
            next: pieces.chunk.next,
            ..Part::default()
        };
        match piece.last {
            Some(last) => {
                (pieces.after, pieces.joins, pieces.left) = (Some(last), Some(room), piece.left);
                self.tried.clear();
            }
            None => self.pieces = None,
        }
        Ok(Next::Part(part))
    }
}
