//! Copying: one step of the thread of a removal.
//!
//! # Theory
//! A step takes the live ranges of a part of a metaslab, and makes a segment of each, or several
//! of one that finds no place as a whole. The segments' sources are read together, all copies of
//! a mirror; the bytes are written to the new places as one write for each segment. There are
//! no checksums here. So a leaf that missed any txg is not read ([`Txg::ZERO`] as the birth), and
//! the copies of a mirror must be equal.
//!
//! A step that fails gives its space back, in the txg that it holds, and is repeated: from then
//! on nothing tells that it was made. A removal whose steps fail again and again is canceled.

use std::sync::atomic::Ordering::Relaxed;

use base::rt::{Callback, oneshot};
use base::{Buf, Error, ErrorKind, Psize, Result, Txg, VdevId};
use dmu::OutagePolicy;
use metaslab::{MetaslabFree, Seg, UsedSpace};
use vdev::{
    AllocClass, BadKind, IndirectEntry, Priority, ReadReq, Tree, VdevKind, WritePriority, WriteReq,
};
use zio::{Class, SpaceSource, Want};

use super::super::Writer;
use super::{CopiedSegments, RemovalStep, RemovalTuning};

/// Segments of at most this size are the limit of the mapping's entries and of writes.
const SEGMENT_MAX: u64 = 16 << 20;
/// Steps that fail in a row before the removal is canceled.
const FAILURES_MAX: u32 = 16;

/// Why a step came to nothing.
enum CopyFailure {
    /// Once more, when something has changed.
    Retry(Error),
    /// It would fail again.
    Final(Error),
}

fn class_of(class: AllocClass) -> Class {
    match class {
        AllocClass::Normal => Class::Normal,
        AllocClass::Special => Class::Special,
        AllocClass::Dedup => Class::Dedup,
        AllocClass::Log => Class::Log,
    }
}

/// Whether some leaf has everything that is on a vdev: a single device or a mirror.
pub(super) fn has_source(tree: &Tree, vdev: VdevId) -> bool {
    let Ok(top) = tree.top(vdev) else { return false };
    let whole = |node: &vdev::Node| node.readable() && node.dtl().is_empty();
    match top.kind() {
        VdevKind::Mirror => top.children().iter().any(|c| whole(tree.node(*c))),
        _ => whole(top),
    }
}

impl Writer {
    /// One step; whether there is more to do.
    pub(super) fn removal_step(&self) -> RemovalStep {
        let (vdev, next) = {
            let state = self.removal.state.lock();
            let Some(evac) = state.as_ref() else {
                drop(state);
                *self.removal.thread.lock() = None;
                return RemovalStep::End;
            };
            if self.removal.stopping.load(Relaxed) {
                return RemovalStep::End;
            }
            if evac.ending {
                return RemovalStep::Wait;
            }
            let hold = self.removal.plants.hold_after.load(Relaxed);
            if hold > 0 && evac.done() >= hold - 1 {
                return RemovalStep::Wait;
            }
            (evac.vdev, evac.next)
        };
        let tree = self.zio.tree();
        if self.txgs.suspended().is_some() || !has_source(&tree, vdev) {
            return RemovalStep::Wait;
        }
        let all = self.space.metaslabs(vdev).unwrap_or_default();
        let Some(ms) = all.iter().find(|ms| ms.seg.end() > next) else {
            return self.finish_removal(vdev);
        };
        if !ms.was_used && ms.free == ms.seg.len {
            self.pass_over(vdev, ms.seg.end());
            return RemovalStep::More;
        }
        if let Err(e) = self.space_io.load(ms.key, OutagePolicy::WaitPerFailmode) {
            // Nobody knows what is allocated.
            return self.failed_step(CopyFailure::Final(e));
        }
        match self.copy_some(&tree, vdev, ms) {
            Ok(step) => step,
            Err(e) => self.failed_step(e),
        }
    }

    /// Everything before this offset is free.
    fn pass_over(&self, vdev: VdevId, to: u64) {
        let mut state = self.removal.state.lock();
        if let Some(evac) = state.as_mut().filter(|evac| evac.vdev == vdev) {
            evac.next = evac.next.max(to);
        }
    }

    fn failed_step(&self, failure: CopyFailure) -> RemovalStep {
        let why = match failure {
            CopyFailure::Final(e) => e,
            CopyFailure::Retry(e) => {
                let mut state = self.removal.state.lock();
                let Some(evac) = state.as_mut() else { return RemovalStep::More };
                // While the pool is suspended nothing is decided.
                if self.txgs.suspended().is_none() {
                    evac.failures += 1;
                }
                if evac.failures < FAILURES_MAX {
                    return RemovalStep::Wait;
                }
                e
            }
        };
        self.give_up_removal(&why)
    }

    fn copy_some(
        &self,
        tree: &std::sync::Arc<Tree>,
        vdev: VdevId,
        ms: &MetaslabFree,
    ) -> std::result::Result<RemovalStep, CopyFailure> {
        let tuning = *self.removal.tuning.lock();
        let Ok(hold) = self.txgs.hold() else { return Ok(RemovalStep::Wait) };
        let txg = hold.txg();
        let (from, ranges) = {
            let mut state = self.removal.state.lock();
            let Some(evac) = state.as_mut().filter(|evac| evac.vdev == vdev && !evac.ending) else {
                return Ok(RemovalStep::More);
            };
            let from = evac.next.max(ms.seg.start);
            let limit = tuning.limit.clamp(1 << 12, 1 << 30);
            let live = match self.removal.plants.deferred_frees.load(Relaxed) {
                true => self.space.used_ranges(ms.key, from, limit),
                false => self.space.live_ranges(ms.key, from, limit),
            };
            match live {
                // It was unloaded meanwhile.
                Ok(UsedSpace::NotLoaded) => return Ok(RemovalStep::More),
                Ok(UsedSpace::Ranges(ranges, end)) => {
                    evac.next = end.max(from);
                    if ranges.is_empty() {
                        return Ok(RemovalStep::More);
                    }
                    evac.busy = true;
                    (from, ranges)
                }
                Err(e) => return Err(CopyFailure::Final(e)),
            }
        };
        let copied = self.copy_ranges(tree, txg, vdev, &ranges, &tuning);
        let done = {
            let mut state = self.removal.state.lock();
            self.removal.changed.notify_all();
            let Some(evac) = state.as_mut() else { return Ok(RemovalStep::More) };
            evac.busy = false;
            match copied {
                Ok(entries) => {
                    evac.failures = 0;
                    let bytes: u64 = entries.iter().map(|e| e.len).sum();
                    let to: &mut CopiedSegments = evac.copied.entry(txg).or_default();
                    to.entries.extend(entries);
                    to.bytes += bytes;
                    Ok(RemovalStep::More)
                }
                Err(e) => {
                    evac.next = from;
                    // They will not be copied.
                    let _freed = evac.freed.clear_range(from, u64::MAX - from);
                    Err(e)
                }
            }
        };
        self.note_to_copy();
        self.txgs.dirty(txg, 0);
        done
    }

    /// Copies ranges; their entries, ascending.
    fn copy_ranges(
        &self,
        tree: &std::sync::Arc<Tree>,
        txg: Txg,
        vdev: VdevId,
        ranges: &[Seg],
        tuning: &RemovalTuning,
    ) -> std::result::Result<Vec<IndirectEntry>, CopyFailure> {
        let mut entries = Vec::new();
        let done = self
            .place_segments(tree, txg, vdev, ranges, tuning, &mut entries)
            .map_err(CopyFailure::Retry)
            .and_then(|()| self.move_bytes(tree, txg, vdev, &entries, tuning));
        if let Err(e) = done {
            let dvas: Vec<base::Dva> = entries.iter().map(dest).collect();
            self.space.unallocate(txg, &dvas);
            return Err(e);
        }
        Ok(entries)
    }

    /// Finds places for ranges.
    fn place_segments(
        &self,
        tree: &Tree,
        txg: Txg,
        vdev: VdevId,
        ranges: &[Seg],
        tuning: &RemovalTuning,
        entries: &mut Vec<IndirectEntry>,
    ) -> Result<()> {
        let top = tree.top(vdev)?;
        let (sector, class) = (1u64 << top.ashift(), class_of(top.class()));
        let whole = |bytes: u64| (bytes & !(sector - 1)).max(sector);
        let most = whole(tuning.segment.min(SEGMENT_MAX));
        for seg in ranges {
            let (mut at, mut size) = (seg.start, most);
            while at < seg.end() {
                let len = size.min(seg.end() - at);
                let want = Want {
                    psize: len,
                    record: 0,
                    copies: 1,
                    class,
                    txg,
                    hint: u64::from(vdev.0),
                    metadata: false,
                    gang_child: len < most,
                    outage: OutagePolicy::WaitPerFailmode,
                };
                match self.space_io.allocate(&want) {
                    Ok(dvas) => {
                        let to = dvas.first().ok_or_else(|| base::bug!("no address"))?;
                        entries.push(IndirectEntry {
                            src: at,
                            len,
                            dst_vdev: to.vdev,
                            dst_offset: to.offset,
                        });
                        at += len;
                    }
                    Err(e) if e.kind() == ErrorKind::NoSpace && len > sector => {
                        size = whole(len / 2);
                    }
                    Err(e) => return Err(e),
                }
            }
        }
        Ok(())
    }

    /// Reads the sources and writes the copies.
    fn move_bytes(
        &self,
        tree: &std::sync::Arc<Tree>,
        txg: Txg,
        vdev: VdevId,
        entries: &[IndirectEntry],
        tuning: &RemovalTuning,
    ) -> std::result::Result<(), CopyFailure> {
        let read = |e: &IndirectEntry| {
            let req = ReadReq::new(vdev, e.src, Psize(e.len), Txg::ZERO);
            req.with_priority(Priority::Rebuild)
        };
        let reqs: Vec<ReadReq> = entries.iter().map(read).collect();
        let outcomes = tree.scan(&reqs, &|_, _| true);
        let (mut writes, mut ends) = (Vec::new(), Vec::new());
        for (entry, outcome) in entries.iter().zip(outcomes) {
            let differs = outcome.report.bad.iter().any(|bad| bad.kind == BadKind::Checksum);
            if differs && !tuning.ignore_errors {
                let why = "the copies in a mirror differ; scrub the pool first";
                return Err(CopyFailure::Final(Error::new(ErrorKind::Io, why)));
            }
            let data = match outcome.data {
                Ok(data) => data,
                Err(_) if tuning.ignore_errors && has_source(&self.zio.tree(), vdev) => {
                    Buf::zeros(usize::try_from(entry.len).unwrap_or(0))
                }
                Err(e) if has_source(&self.zio.tree(), vdev) => return Err(CopyFailure::Final(e)),
                Err(e) => return Err(CopyFailure::Retry(e)),
            };
            let off = self.removal.plants.off_by_one.load(Relaxed);
            let offset = entry.dst_offset + if off { 512 } else { 0 };
            let (sender, end) = oneshot::<vdev::WriteReport>();
            let req = WriteReq {
                vdev: entry.dst_vdev,
                offset,
                data,
                birth: txg,
                priority: WritePriority::Rebuild,
            };
            writes.push((req, Callback::new(move |report| sender.send(report))));
            ends.push(end);
        }
        tree.write_all(writes);
        let mut failed = None;
        for end in ends {
            if let Err(e) = end.wait().and_then(|report| report.result) {
                failed = Some(e);
            }
        }
        failed.map_or(Ok(()), |e| Err(CopyFailure::Retry(e)))
    }
}

/// The place of a copy.
fn dest(entry: &IndirectEntry) -> base::Dva {
    let asize = base::Asize(entry.len);
    base::Dva { vdev: entry.dst_vdev, offset: entry.dst_offset, asize, gang: false }
}
