//! `zpool defrag`: files are laid out in order, and free space is joined, while the pool is used.
//!
//! # Theory
//! A job ([`crate::job`]) does the work; this module chooses it, by [`plan`]. Phases come in
//! order: fragmented metaslabs are emptied, so that there is room for files in one piece; files
//! are laid out; metaslabs are emptied once more, because files have left their old places.
//!
//! # Progress
//! Each phase chooses a file or metaslab at most once. The phase of files ends early when what it
//! laid out lies no better than before, several parts in a row: then free space is too scattered
//! to help.

mod plan;

use std::collections::BTreeSet;

use base::Result;
use metaslab::MsKey;
use ondisk::blkptr::Block;
use spa::engine::BlockPosition;

use crate::find::{FindFlow, find_in};
use crate::job::{JobCx, MovePhase, MoveRecord, Next, Part, Planner};

pub use plan::DefragEstimate;
pub(crate) use plan::estimate;

/// Files with a lower score are laid out, unless a request says otherwise; in thousandths.
pub const TARGET: u64 = 950;
/// Parts in a row that end the phase of files if they gain nothing.
const GAINLESS_MAX: u32 = 3;

/// What a defragmentation knows beside its record.
#[derive(Default)]
pub(crate) struct DefragPlanner {
    /// Metaslabs that were tried in this phase.
    tried: BTreeSet<MsKey>,
    /// Parts of files in a row that gained nothing.
    gainless: u32,
}

impl Planner for DefragPlanner {
    fn estimate(&mut self, cx: &JobCx<'_>, record: &MoveRecord) -> Result<u64> {
        let all = plan::estimate(cx.writer, record, &|| cx.is_stopped())?;
        Ok(all.file_bytes.saturating_add(all.metaslab_bytes))
    }

    fn next(&mut self, cx: &JobCx<'_>, record: &MoveRecord) -> Result<Next> {
        match record.phase {
            MovePhase::Space | MovePhase::SpaceAgain => self.space(cx),
            MovePhase::Files => self.files(cx, record),
            MovePhase::Done => Ok(Next::Complete),
        }
    }

    fn moved(&mut self, cx: &JobCx<'_>, part: &Part) -> Result<()> {
        let Some((head, files)) = &part.files else { return cx.store() };
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

    /// Chooses metaslabs and finds what is in them.
    fn space(&mut self, cx: &JobCx<'_>) -> Result<Next> {
        let group = plan::metaslab_group(cx.writer, &self.tried)?;
        if group.is_empty() {
            self.next_phase(cx)?;
            return Ok(Next::Look);
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
        Ok(Next::Part(Part {
            blocks: found.blocks.into(),
            avoid: group.iter().map(|ms| ms.key).collect(),
            ..Part::default()
        }))
    }

    /// Chooses files and finds their blocks.
    fn files(&mut self, cx: &JobCx<'_>, record: &MoveRecord) -> Result<Next> {
        let chunk = plan::files(cx.writer, record)?;
        let good = chunk.looked_at.in_sequence - chunk.bad.in_sequence;
        cx.update(|record| {
            record.steps += chunk.looked_at.steps;
            record.in_sequence += chunk.looked_at.in_sequence;
            // Those that are laid out are counted afterwards.
            record.in_sequence_now += good;
            record.kept += chunk.immovable;
        });
        if chunk.next.is_none() && chunk.blocks.is_empty() {
            self.next_phase(cx)?;
            return Ok(Next::Look);
        }
        Ok(Next::Part(Part {
            blocks: chunk.blocks.into(),
            files: chunk.files.map(|(ds, files)| (ds.object, files)),
            in_sequence: chunk.bad.in_sequence,
            next: chunk.next,
            ..Part::default()
        }))
    }
}
