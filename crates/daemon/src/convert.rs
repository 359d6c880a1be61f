//! Conversion of the engine's types to the protocol's.

use cenote::layout::LayoutScore;
use cenote::{
    CheckpointState, ClassDetail, DataError, DatasetKind, DedupReport, DefragEstimate, FoundPool,
    ImportReason, JobStatus, MoveStatus, MoveWork, PoolState, PoolStatus, RebalancePlan,
    RebuildProgress, ScanState, StatBucket, VdevStatus, WHOLE_SCORE,
};
use proto::{
    Checkpoint, ClassIo, DatasetType, ErrorScrub, ImportCandidate, LeafJob, Pool, RebuildScan,
    Scan, Vdev, VdevIoCounts,
};

pub(crate) fn kind(kind: DatasetKind) -> DatasetType {
    match kind {
        DatasetKind::Filesystem => DatasetType::Filesystem,
        DatasetKind::Volume => DatasetType::Volume,
        DatasetKind::Snapshot => DatasetType::Snapshot,
        DatasetKind::Bookmark => DatasetType::Bookmark,
    }
}

fn done(v: &VdevStatus) -> VdevIoCounts {
    let (reads, writes) = (v.io.reads(), v.io.writes());
    VdevIoCounts {
        age: u64::try_from(v.age.as_nanos()).unwrap_or(u64::MAX),
        reads: reads.ops,
        writes: writes.ops,
        nread: reads.bytes,
        nwritten: writes.bytes,
    }
}

fn class_io(class: &ClassDetail) -> ClassIo {
    let trimmed = |all: &[u64]| {
        let len = all.iter().rposition(|n| *n > 0).map_or(0, |last| last + 1);
        all[..len].to_vec()
    };
    ClassIo {
        queued: trimmed(&class.queued),
        disk: trimmed(&class.disk),
        total: trimmed(&class.total),
        single: trimmed(&class.single),
        merged: trimmed(&class.merged),
        pending: class.pending,
        active: class.active,
    }
}

fn job(status: &JobStatus) -> LeafJob {
    LeafJob {
        state: status.record.state as u8,
        time: status.record.action_time,
        done: status.done,
        total: status.total,
    }
}

pub(crate) fn vdev(v: &VdevStatus) -> Vdev {
    Vdev {
        guid: v.guid.0,
        kind: v.kind.clone(),
        name: v.name.clone(),
        path: v.path.clone(),
        id: v.id,
        class: v.class.into(),
        state: v.state().into(),
        aux: v.aux.clone(),
        read_errors: v.read_errors,
        write_errors: v.write_errors,
        checksum_errors: v.checksum_errors,
        slow_ios: v.slow_ios,
        sits_out: v.sits_out,
        io: done(v),
        io_classes: v.io_detail.by_class.iter().map(class_io).collect(),
        direct_io: v.direct_io,
        size: v.size,
        allocated: v.allocated,
        def_space: v.def_space,
        fragmentation: v.fragmentation,
        expandsize: v.expandsize,
        checkpoint: v.checkpoint,
        can_discard: v.can_discard,
        deferred: v.deferred,
        trim: v.trim.as_ref().map(job),
        initialize: v.initialize.as_ref().map(job),
        psize: v.psize,
        asize: v.asize,
        ashift: v.ashift,
        nparity: v.nparity,
        children: v.children.iter().map(vdev).collect(),
    }
}

/// The tree with cache devices and spares, which the engine lists separately.
fn tree(root: &VdevStatus, aux: &[VdevStatus]) -> Vdev {
    let mut out = vdev(root);
    out.children.extend(aux.iter().map(vdev));
    out
}

/// A damaged file in the notation of `zpool status -v`: by its path if its file system is
/// mounted, else by dataset and path, or by object ids.
pub(crate) fn data_error(e: &DataError, mountpoint: Option<&str>) -> String {
    let path = e.path.as_deref().map(String::from_utf8_lossy);
    match (&e.dataset, mountpoint, path) {
        (Some(_), Some(at), Some(path)) => format!("{}{path}", at.trim_end_matches('/')),
        (Some(dataset), _, Some(path)) => format!("{dataset}:{path}"),
        (Some(dataset), ..) => format!("{dataset}:<{:#x}>", e.object),
        (None, ..) if e.objset == 0 => format!("<metadata>:<{:#x}>", e.object),
        (None, ..) => format!("<{:#x}>:<{:#x}>", e.objset, e.object),
    }
}

fn rebuild((name, progress): &(String, RebuildProgress)) -> RebuildScan {
    let record = &progress.record;
    RebuildScan {
        name: name.clone(),
        state: record.state as u8,
        start: record.start_time,
        end: record.end_time,
        time_ms: record.scan_time_ms,
        estimated: record.estimated,
        scanned: record.scanned,
        issued: record.issued,
        rebuilt: record.rebuilt,
        errors: record.errors,
        pass_ms: progress.pass_ms,
        pass_scanned: progress.pass_scanned,
        pass_issued: progress.pass_issued,
    }
}

fn scan_state(state: ScanState) -> u8 {
    match state {
        ScanState::Scanning => 1,
        ScanState::Finished => 2,
        ScanState::Canceled => 3,
    }
}

/// A pool's state.
pub(crate) fn pool(s: &PoolStatus) -> Pool {
    Pool {
        name: s.name.clone(),
        guid: s.guid.0,
        txg: s.txg.0,
        health: s.health.into(),
        suspended: s.suspended,
        doing: None,
        root: tree(&s.root, &s.aux),
        error_count: s.error_count,
        errors: Vec::new(),
        scan: s.scan.as_ref().map(|s| Scan {
            resilver: s.resilver,
            state: scan_state(s.state),
            start: s.start_time,
            end: s.end_time,
            processed: s.processed,
            errors: s.errors,
            to_examine: s.to_examine,
            examined: s.examined,
            issued: s.issued,
            skipped: s.skipped,
            paused: s.paused,
            pass_start: s.pass_start,
            spent_paused: s.spent_paused,
            pass_seconds: s.pass_seconds,
            pass_examined: s.pass_examined,
            pass_issued: s.pass_issued,
        }),
        resilver_pending: s.resilver_pending,
        rebuilds: s.rebuilds.iter().map(rebuild).collect(),
        error_scrub: s.error_scrub.as_ref().map(|s| ErrorScrub {
            state: scan_state(s.state),
            start: s.start_time,
            end: s.end_time,
            to_examine: s.to_examine,
            examined: s.examined,
            errors: s.errors,
            paused: s.paused,
        }),
        removal: None,
        expand: None,
        defrag: None,
        checkpoint: s.checkpoint.map(|c| Checkpoint {
            discarding: c.state == CheckpointState::Discarding,
            taken: c.taken,
            space: c.space,
        }),
        disabled_features: s.reason == Some(ImportReason::FeaturesDisabled),
    }
}

pub(crate) fn dedup(report: &DedupReport) -> proto::DedupReport {
    let words = |bucket: &StatBucket| {
        let mut words = [0; 8];
        let all = bucket.blocks.iter().chain(&bucket.referenced);
        words.iter_mut().zip(all).for_each(|(to, from)| *to = *from);
        words
    };
    proto::DedupReport {
        entries: report.entries,
        on_disk: report.on_disk,
        in_core: report.in_core,
        cached: report.cached,
        histogram: report.histogram.iter().map(words).collect(),
    }
}

pub(crate) fn defrag(status: MoveStatus) -> proto::Defrag {
    let record = status.record;
    let score = |n: u64| (n * WHOLE_SCORE).checked_div(record.steps).unwrap_or(WHOLE_SCORE);
    proto::Defrag {
        kind: match record.work {
            MoveWork::Rebalance => proto::MoveKind::Rebalance,
            MoveWork::ToSpecial => proto::MoveKind::ToSpecial,
            MoveWork::FromSpecial => proto::MoveKind::FromSpecial,
            MoveWork::Unmap => proto::MoveKind::Unmap,
            _ => proto::MoveKind::Defrag,
        },
        state: record.state as u8,
        start: record.start,
        end: record.end,
        moved: record.moved,
        to_move: record.to_move,
        metadata: record.metadata,
        files: record.files,
        metaslabs: record.metaslabs,
        kept: record.kept,
        scores: (record.steps > 0)
            .then(|| (score(record.in_sequence), score(record.in_sequence_now))),
        waiting: status.waiting,
    }
}

pub(crate) fn defrag_plan(estimate: &DefragEstimate) -> proto::DefragPlan {
    let score = |score: &LayoutScore| {
        (score.in_sequence * WHOLE_SCORE).checked_div(score.steps).unwrap_or(WHOLE_SCORE)
    };
    proto::DefragPlan {
        score: score(&estimate.score),
        files: estimate.files,
        file_score: score(&estimate.bad),
        file_bytes: estimate.file_bytes,
        metaslabs: estimate.metaslabs,
        metaslab_bytes: estimate.metaslab_bytes,
        scattered: estimate.lost_bytes,
    }
}

pub(crate) fn rebalance_plan(plan: RebalancePlan) -> proto::RebalancePlan {
    match plan {
        RebalancePlan::Vdevs(vdevs) => {
            let one = |vdev: cenote::RebalancedVdev| proto::RebalancedVdev {
                name: vdev.name,
                capacity: vdev.capacity,
                used: vdev.used,
                after: vdev.after,
            };
            proto::RebalancePlan::Vdevs(vdevs.into_iter().map(one).collect())
        }
        RebalancePlan::Special(estimate) => proto::RebalancePlan::Special {
            metadata: estimate.metadata,
            data: estimate.data,
            to_move: estimate.to_move(),
            immovable: estimate.immovable,
        },
    }
}

/// A pool whose name is reserved and that is not open yet.
pub(crate) fn pool_without_tree(name: &str, guid: u64, doing: Option<String>) -> Pool {
    let root =
        VdevStatus { name: name.to_owned(), kind: "root".to_owned(), ..VdevStatus::default() };
    Pool {
        name: name.to_owned(),
        guid,
        txg: 0,
        health: root.state().into(),
        suspended: false,
        doing,
        root: vdev(&root),
        error_count: 0,
        errors: Vec::new(),
        scan: None,
        resilver_pending: false,
        rebuilds: Vec::new(),
        error_scrub: None,
        removal: None,
        expand: None,
        defrag: None,
        checkpoint: None,
        disabled_features: false,
    }
}

/// A pool that can be imported.
pub(crate) fn found(p: &FoundPool) -> ImportCandidate {
    ImportCandidate {
        name: p.name.clone(),
        guid: p.guid.0,
        destroyed: p.state == PoolState::Destroyed,
        foreign: p.reason == Some(ImportReason::HostidMismatch),
        hostname: p.hostname.clone(),
        hostid: p.hostid,
        last_accessed: Some(p.timestamp).filter(|t| *t != 0),
        comment: p.comment.clone(),
        health: p.health.into(),
        unsupported: p.unsupported.clone(),
        root: tree(&p.vdevs, &p.aux),
        held_up: p.held_up.clone(),
        imported: None,
    }
}

/// An event, for the wire.
pub(crate) fn event(event: &cenote::zevent::PoolEvent) -> proto::EventInfo {
    proto::EventInfo {
        eid: event.eid,
        seconds: event.time.0,
        nanoseconds: event.time.1,
        class: event.class.clone(),
        pool: event.pool().map(str::to_owned),
        values: cenote::zevent::text::values(event),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Chapter 09 §4.3.
    #[test]
    fn names_of_damaged_files() {
        let error = |dataset: Option<&str>, objset, path: Option<&[u8]>| DataError {
            dataset: dataset.map(str::to_owned),
            mountable: true,
            objset,
            object: 0x1f,
            path: path.map(<[u8]>::to_vec),
        };
        let file = error(Some("tank/ds"), 54, Some(b"/dir/file"));
        assert_eq!(data_error(&file, Some("/mnt")), "/mnt/dir/file");
        assert_eq!(data_error(&file, Some("/")), "/dir/file");
        assert_eq!(data_error(&file, None), "tank/ds:/dir/file");
        assert_eq!(data_error(&error(Some("tank/ds"), 54, None), Some("/mnt")), "tank/ds:<0x1f>");
        assert_eq!(data_error(&error(None, 0, None), None), "<metadata>:<0x1f>");
        assert_eq!(data_error(&error(None, 0x15, None), None), "<0x15>:<0x1f>");
    }
}
