//! What is stored of the work on a leaf's free space, and how far it is (`leaf_jobs`, chapter 05
//! §3.2).
//!
//! # Theory
//! Each kind of job has its keys in the ZAP of its leaf. The share that is done follows from the
//! place alone: the free space of each metaslab before it, as OpenZFS shows it (that of the
//! metaslab in which the place is counts when it is done). So it can be computed for a pool that
//! is only read, and after an import.
//!
//! Lock order: no locks.

use base::{Error, Guid, Result, VdevId};
use dsl::write::MosRead;
use metaslab::{MetaslabFree, MsKey, Seg};
use ondisk::config::{PoolConfig, VdevConfig};
use ondisk::zap::ZapValue;
use vdev::LABEL_START;

use super::sync::SyncPass;
use crate::Spa;

/// The kind of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum JobKind {
    /// Free space is discarded.
    Trim,
    /// Free space gets a pattern.
    Initialize,
}

/// The state of a job, with its number on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum JobState {
    /// It never ran, or its record was removed.
    #[default]
    None = 0,
    /// It runs, or will when its leaf is there.
    Active = 1,
    /// It was given up.
    Canceled = 2,
    /// It was interrupted, and goes on when it is started again.
    Suspended = 3,
    /// It came to its end.
    Complete = 4,
}

impl JobState {
    fn of_number(number: u64) -> JobState {
        match number {
            1 => JobState::Active,
            2 => JobState::Canceled,
            3 => JobState::Suspended,
            4 => JobState::Complete,
            _ => JobState::None,
        }
    }
}

/// What is stored of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobRecord {
    /// Its state.
    pub state: JobState,
    /// When it was started, suspended or ended last, seconds since 1970.
    pub action_time: u64,
    /// Everything before this offset of the leaf's allocatable area is done.
    pub offset: u64,
    /// Bytes a second; 0 is no limit. Of a trim.
    pub rate: u64,
    /// Metaslabs that never had a space map are left out. Of a trim.
    pub partial: bool,
    /// With secure discards. Of a trim.
    pub secure: bool,
}

/// A job of a leaf, as `zpool status` shows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobStatus {
    /// Its record.
    pub record: JobRecord,
    /// Bytes of the leaf's share of the free space that are done.
    pub done: u64,
    /// Bytes of that share in all.
    pub total: u64,
}

/// The keys of a kind of job in a leaf's ZAP.
pub(super) struct Keys {
    offset: &'static str,
    state: &'static str,
    time: &'static str,
    /// Of a trim.
    options: Option<[&'static str; 3]>,
    /// Of an initialization: the pattern.
    pattern: Option<&'static str>,
    pub(super) name: &'static str,
}

const TRIM: Keys = Keys {
    offset: "org.zfsonlinux:next_offset_to_trim",
    state: "org.zfsonlinux:vdev_trim_state",
    time: "org.zfsonlinux:vdev_trim_action_time",
    options: Some([
        "org.zfsonlinux:vdev_trim_rate",
        "org.zfsonlinux:vdev_trim_partial",
        "org.zfsonlinux:vdev_trim_secure",
    ]),
    pattern: None,
    name: "trim",
};

const INITIALIZE: Keys = Keys {
    offset: "com.delphix:next_offset_to_initialize",
    state: "com.delphix:vdev_initialize_state",
    time: "com.delphix:vdev_initialize_action_time",
    options: None,
    pattern: Some("org.openzfs:vdev_initialize_value"),
    name: "initialize",
};

impl JobKind {
    /// Both kinds.
    pub const ALL: [JobKind; 2] = [JobKind::Trim, JobKind::Initialize];

    pub(super) fn keys(self) -> &'static Keys {
        match self {
            JobKind::Trim => &TRIM,
            JobKind::Initialize => &INITIALIZE,
        }
    }
}

impl JobRecord {
    /// The record in a leaf's ZAP.
    fn load(mos: &dyn MosRead, zap: u64, kind: JobKind) -> Result<JobRecord> {
        let keys = kind.keys();
        let number = |key: &str| Ok::<u64, Error>(mos.number(zap, key)?.unwrap_or(0));
        let mut record = JobRecord {
            state: JobState::of_number(number(keys.state)?),
            action_time: number(keys.time)?,
            offset: number(keys.offset)?,
            ..JobRecord::default()
        };
        if let Some([rate, partial, secure]) = keys.options {
            record.rate = number(rate)?;
            record.partial = number(partial)? != 0;
            record.secure = number(secure)? != 0;
        }
        Ok(record)
    }

    pub(super) fn store(&self, sync: &SyncPass<'_>, zap: u64, kind: JobKind) -> Result<()> {
        let keys = kind.keys();
        let put = |key: &str, value: u64| {
            sync.cx.mos.zap_update(zap, key.as_bytes(), &ZapValue::from_u64(value))
        };
        let remove = |key: &str| match sync.cx.read().number(zap, key)? {
            Some(_) => sync.cx.mos.zap_remove(zap, key.as_bytes()),
            None => Ok(()),
        };
        if self.state == JobState::None {
            let all = [keys.offset, keys.state, keys.time].into_iter().chain(keys.pattern);
            return all.chain(keys.options.into_iter().flatten()).try_for_each(remove);
        }
        // A place of 0 is stored for a trim; for an initialization it is the absence of one.
        match kind {
            JobKind::Initialize if self.offset == 0 => remove(keys.offset)?,
            _ => put(keys.offset, self.offset)?,
        }
        put(keys.state, self.state as u64)?;
        if self.action_time > 0 {
            put(keys.time, self.action_time)?;
        }
        if let Some([rate, partial, secure]) = keys.options {
            if self.rate > 0 {
                put(rate, self.rate)?;
            } else {
                remove(rate)?;
            }
            put(partial, self.partial.into())?;
            put(secure, self.secure.into())?;
        }
        Ok(())
    }
}

/// The leaves of a configuration that have a ZAP.
pub(super) fn leaf_zaps(config: &PoolConfig) -> Vec<(Guid, u64)> {
    let leaves = config.vdev_tree.leaves();
    leaves.filter_map(|l: &VdevConfig| Some((l.guid, l.leaf.zap?.0))).filter(|l| l.1 != 0).collect()
}

/// The stored jobs of a pool.
///
/// # Errors
/// Those of reading the MOS.
pub(crate) fn stored_jobs(
    mos: &dyn MosRead,
    config: &PoolConfig,
) -> Result<Vec<(Guid, JobKind, JobRecord)>> {
    let mut out = Vec::new();
    for (leaf, zap) in leaf_zaps(config) {
        for kind in JobKind::ALL {
            let record = JobRecord::load(mos, zap, kind)?;
            if record.state != JobState::None {
                out.push((leaf, kind, record));
            }
        }
    }
    Ok(out)
}

/// The share of the free space that a job has done: `metaslabs` are those of the leaf's vdev.
pub(crate) fn progress(
    record: &JobRecord,
    tree: &vdev::Tree,
    leaf: Guid,
    metaslabs: &[MetaslabFree],
) -> JobStatus {
    let disks = metaslabs.first().map_or(1, |ms| disks_of(tree, ms.key.vdev));
    let (mut done, mut total) = (0u64, 0u64);
    for ms in metaslabs.iter().filter(|ms| ms.was_used || !record.partial) {
        let free = ms.free / disks;
        total = total.saturating_add(free);
        let place = place_on(tree, leaf, ms.seg.start, ms.seg.len);
        if place.is_some_and(|(_, end)| end <= record.offset) {
            done = done.saturating_add(free);
        }
    }
    if record.state == JobState::Complete {
        done = total;
    }
    JobStatus { record: *record, done, total }
}

impl Spa {
    /// The jobs of a pool that is only read; [`crate::engine::Writer::job_status`] knows them
    /// otherwise.
    ///
    /// # Errors
    /// Those of reading the MOS and the space maps' headers.
    pub fn job_statuses(&self) -> Result<Vec<(Guid, JobKind, JobStatus)>> {
        let known = stored_jobs(self.mos(), self.config())?;
        if known.is_empty() {
            return Ok(Vec::new());
        }
        let (tree, space) = (self.zio().tree(), self.load_space()?);
        let status = |(leaf, kind, record): (Guid, JobKind, JobRecord)| {
            let top = tree.find(leaf).map(vdev::Node::top);
            let vdev = top.and_then(|top| space.vdev(top));
            let of = |m: &crate::space::Metaslab| MetaslabFree {
                key: MsKey { vdev: top.unwrap_or_default(), ms: m.id },
                seg: Seg { start: m.start, len: m.size },
                free: m.free(),
                was_used: m.space_map != 0,
            };
            let metaslabs: Vec<MetaslabFree> =
                vdev.map(|v| v.metaslabs.iter().map(of).collect()).unwrap_or_default();
            (leaf, kind, progress(&record, &tree, leaf, &metaslabs))
        };
        Ok(known.into_iter().map(status).collect())
    }
}

/// Where a metaslab begins and ends on a leaf, in its allocatable area.
pub(crate) fn place_on(tree: &vdev::Tree, leaf: Guid, at: u64, len: u64) -> Option<(u64, u64)> {
    let ranges = tree.ranges_on(leaf, at, len).ok()?;
    let first = ranges.first()?.0;
    let (last, size) = *ranges.last()?;
    Some((first - LABEL_START, last + size - LABEL_START))
}

/// The disks over which the space of a top-level vdev is spread evenly; each copy of a mirror
/// has all of it.
fn disks_of(tree: &vdev::Tree, top: VdevId) -> u64 {
    let Ok(node) = tree.top(top) else { return 1 };
    match node.kind() {
        // Also of a dRAID: the places of its spares move from disk to disk.
        vdev::VdevKind::Raidz { .. } | vdev::VdevKind::Draid(_) => {
            node.children().len().max(1) as u64
        }
        _ => 1,
    }
}
