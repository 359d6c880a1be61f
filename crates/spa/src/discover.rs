//! Finding pool members among files and devices (chapter 01 §8.1).
//!
//! # Theory
//! A scan examines every file of the named directories, and one of these may be on a device
//! or a file server that never answers. So each system call is made by a worker thread that
//! the scan does not join. A worker without an answer for `SILENCE_MAX` is replaced by
//! another and its file reported. The silent worker ends when its system call returns, and
//! its result is dropped.
//!
//! # Invariants
//! * A scan ends at most `SILENCE_MAX` after the last answer.
//! * At most `WORKERS_MAX` workers exist, those of earlier scans included.
//!
//! Lock order: `DiscoverScan::state` is a leaf lock.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use base::rt::{self, Condvar, Instant, Mutex};
use base::{Error, ErrorKind, Guid, Result, Txg};
use device::Engine;
use ondisk::config::LabelConfig;

use crate::assemble::{FoundPool, assemble};
use crate::labels::LeafLabels;
use crate::leaves::{FileLeaves, Leaves, Purpose};

/// The directories of device nodes under Linux, best names first.
const DEFAULT_DIRS: [&str; 9] = [
    "/dev/disk/by-vdev",
    "/dev/mapper",
    "/dev/disk/by-partlabel",
    "/dev/disk/by-partuuid",
    "/dev/disk/by-label",
    "/dev/disk/by-uuid",
    "/dev/disk/by-id",
    "/dev/disk/by-path",
    "/dev",
];
/// Files examined in one scan.
const CANDIDATES_MAX: usize = 100_000;
/// Devices read at once.
const SCAN_THREADS: usize = 16;
/// How long a device may take to answer.
const SILENCE_MAX: Duration = Duration::from_secs(3);
/// Workers of all scans, including those without an answer.
const WORKERS_MAX: usize = 256;

/// Existing workers.
static WORKERS: AtomicUsize = AtomicUsize::new(0);

/// Parameters of a search.
#[derive(Clone, Debug, Default)]
pub struct Search {
    /// Directories and files; empty means the system's device directories.
    pub paths: Vec<PathBuf>,
    /// Also find destroyed pools.
    pub destroyed: bool,
}

/// What a scan found.
#[derive(Debug, Default)]
pub struct Discovery {
    /// Pools, by name and guid.
    pub pools: Vec<FoundPool>,
    /// Named paths that could not be read, and why.
    pub problems: Vec<(PathBuf, Error)>,
}

/// A device with labels.
#[derive(Debug)]
pub struct Candidate {
    /// Its path.
    pub path: PathBuf,
    /// Its guid.
    pub guid: Guid,
    /// The configuration in its best label.
    pub config: LabelConfig,
    /// Txg of the newest label.
    pub txg: Txg,
    /// Txg of its newest uberblock.
    pub synced: Txg,
    /// Number of labels that agree.
    pub labels: usize,
    /// Position in the scan.
    pub order: usize,
    /// It is a block device.
    pub block_device: bool,
}

/// Scans for pools.
///
/// # Errors
/// `Limit` when a directory holds absurdly many files. Everything else is
/// reported in [`Discovery::problems`].
pub fn discover(search: &Search, engine: &Arc<Engine>) -> Result<Discovery> {
    let scan = DiscoverScan::new(search, FileLeaves(Arc::clone(engine)));
    scan.run()?;
    let mut state = scan.state.lock();
    let found = std::mem::take(&mut state.found);
    let problems = std::mem::take(&mut state.problems);
    drop(state);
    Ok(sorted(found, problems, search.destroyed))
}

/// As [`discover`], among all leaves of a `source` that can list them and does not block.
///
/// # Errors
/// None yet.
pub fn discover_in(search: &Search, source: &dyn Leaves) -> Result<Discovery> {
    let files = source.list().unwrap_or_default();
    let found = Mutex::new(Vec::new());
    let next = AtomicUsize::new(0);
    rt::fan_out(SCAN_THREADS.min(files.len()), |_| {
        loop {
            let order = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let Some(path) = files.get(order) else { return };
            if let Ok(Some(candidate)) = probe(path, order, source) {
                found.lock().push(candidate);
            }
        }
    });
    Ok(sorted(found.into_inner(), Vec::new(), search.destroyed))
}

fn sorted(
    mut candidates: Vec<Candidate>,
    mut problems: Vec<(PathBuf, Error)>,
    destroyed: bool,
) -> Discovery {
    problems.sort_by(|a, b| a.0.cmp(&b.0));
    candidates.sort_by_key(|c| c.order);
    Discovery { pools: assemble(candidates, destroyed), problems }
}

/// A path to be examined.
#[derive(Clone)]
struct ProbeJob {
    path: PathBuf,
    /// Position in the scan, or of the first entry of a directory.
    order: usize,
    what: ProbeTarget,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ProbeTarget {
    /// A directory or file to search; a default directory need not exist.
    Root { default: bool },
    /// A file; `named` if the user named it.
    File { named: bool },
}

#[derive(Default)]
struct DiscoverState {
    todo: VecDeque<ProbeJob>,
    /// The jobs of the workers, and their start times.
    running: BTreeMap<u64, (ProbeJob, Instant)>,
    next: u64,
    found: Vec<Candidate>,
    problems: Vec<(PathBuf, Error)>,
    too_many: Option<&'static str>,
    /// The scan has ended.
    over: bool,
}

struct DiscoverScan {
    source: FileLeaves,
    state: Mutex<DiscoverState>,
    changed: Condvar,
}

impl DiscoverScan {
    fn new(search: &Search, source: FileLeaves) -> Arc<DiscoverScan> {
        let default = search.paths.is_empty();
        let roots: Vec<PathBuf> = match default {
            true => DEFAULT_DIRS.iter().map(PathBuf::from).collect(),
            false => search.paths.clone(),
        };
        let job = |(n, path)| ProbeJob {
            path,
            order: n * CANDIDATES_MAX,
            what: ProbeTarget::Root { default },
        };
        let todo = roots.into_iter().enumerate().map(job).collect();
        let state = Mutex::new(DiscoverState { todo, ..DiscoverState::default() });
        Arc::new(DiscoverScan { source, state, changed: Condvar::new() })
    }

    /// Examines every path that answers.
    fn run(self: &Arc<Self>) -> Result<()> {
        let mut state = self.state.lock();
        loop {
            if let Some(text) = state.too_many {
                state.over = true;
                return Err(Error::limit(text));
            }
            let silent = state.running.values().filter(|r| r.1.elapsed() >= SILENCE_MAX).count();
            let busy = state.running.len() - silent;
            if busy == 0 && state.todo.is_empty() {
                break;
            }
            let wanted = state.todo.len().min(SCAN_THREADS.saturating_sub(busy));
            let started = (0..wanted).take_while(|_| self.start(&mut state)).count();
            if started == 0 && busy == 0 {
                break;
            }
            self.changed.wait_timeout(&mut state, Duration::from_millis(100));
        }
        state.over = true;
        let silent: Vec<ProbeJob> =
            std::mem::take(&mut state.running).into_values().map(|r| r.0).collect();
        let unseen: Vec<ProbeJob> = state.todo.drain(..).collect();
        for job in silent {
            state.problems.push((job.path, Error::new(ErrorKind::Io, "does not answer")));
        }
        for job in unseen {
            let text = "was not examined: too many devices do not answer";
            state.problems.push((job.path, Error::new(ErrorKind::Io, text)));
        }
        Ok(())
    }

    /// Starts a worker on the next job; false if no thread can be started.
    fn start(self: &Arc<Self>, state: &mut DiscoverState) -> bool {
        if WORKERS.fetch_add(1, SeqCst) >= WORKERS_MAX {
            WORKERS.fetch_sub(1, SeqCst);
            return false;
        }
        let Some((id, job)) = state.take() else {
            WORKERS.fetch_sub(1, SeqCst);
            return false;
        };
        let (scan, first) = (Arc::clone(self), job.clone());
        let work = move || {
            scan.work(id, first);
            WORKERS.fetch_sub(1, SeqCst);
        };
        if rt::spawn("scan", work).is_err() {
            WORKERS.fetch_sub(1, SeqCst);
            state.running.remove(&id);
            state.todo.push_front(job);
            return false;
        }
        true
    }

    fn work(&self, mut id: u64, mut job: ProbeJob) {
        loop {
            let outcome = self.examine(&job);
            let mut state = self.state.lock();
            // The worker was silent too long and has been replaced.
            if state.running.remove(&id).is_none() || state.over {
                return;
            }
            state.note(&job, outcome);
            let next = state.take();
            drop(state);
            self.changed.notify_all();
            match next {
                Some(next) => (id, job) = next,
                None => return,
            }
        }
    }

    fn examine(&self, job: &ProbeJob) -> ProbeOutcome {
        match job.what {
            ProbeTarget::Root { default } => match std::fs::metadata(&job.path) {
                Ok(meta) if meta.is_dir() => match list(&job.path, default) {
                    Ok(entries) => ProbeOutcome::Entries(entries),
                    Err(e) => ProbeOutcome::Failed(e, true),
                },
                Ok(_) => ProbeOutcome::Named,
                Err(_) if default => ProbeOutcome::Nothing,
                Err(e) => ProbeOutcome::Failed(Error::io("cannot open", e), true),
            },
            ProbeTarget::File { named } => match probe(&job.path, job.order, &self.source) {
                Ok(Some(candidate)) => ProbeOutcome::Found(Box::new(candidate)),
                Ok(None) => ProbeOutcome::Nothing,
                // A directory may contain any files; an error of a named file is reported.
                Err(e) => {
                    let matters = named || e.kind() == ErrorKind::Permission;
                    ProbeOutcome::Failed(e, matters)
                }
            },
        }
    }
}

/// The result of a worker's job.
enum ProbeOutcome {
    Entries(Vec<PathBuf>),
    /// A file that the user named.
    Named,
    Found(Box<Candidate>),
    Nothing,
    /// An error; true if it is to be reported.
    Failed(Error, bool),
}

impl DiscoverState {
    fn take(&mut self) -> Option<(u64, ProbeJob)> {
        let job = self.todo.pop_front()?;
        self.next += 1;
        self.running.insert(self.next, (job.clone(), rt::now()));
        Some((self.next, job))
    }

    fn note(&mut self, job: &ProbeJob, outcome: ProbeOutcome) {
        match outcome {
            ProbeOutcome::Entries(entries) => {
                if entries.len() + self.todo.len() > CANDIDATES_MAX {
                    self.too_many = Some("too many files to scan; name the devices with -d");
                    return;
                }
                let what = ProbeTarget::File { named: false };
                let file = |(n, path)| ProbeJob { path, order: job.order + n, what };
                self.todo.extend(entries.into_iter().enumerate().map(file));
            }
            ProbeOutcome::Named => {
                self.todo
                    .push_back(ProbeJob { what: ProbeTarget::File { named: true }, ..job.clone() });
            }
            ProbeOutcome::Found(candidate) => self.found.push(*candidate),
            ProbeOutcome::Failed(e, true) if e.kind() == ErrorKind::Limit => {
                self.too_many = Some("too many files in one directory");
            }
            ProbeOutcome::Failed(e, true) => self.problems.push((job.path.clone(), e)),
            ProbeOutcome::Failed(_, false) | ProbeOutcome::Nothing => {}
        }
    }
}

/// Entries of a directory that could be members. Subdirectories are skipped, so a loop of
/// directories cannot matter.
fn list(dir: &Path, devices_only: bool) -> Result<Vec<PathBuf>> {
    use std::os::unix::fs::FileTypeExt;
    let fail = |e| Error::io("cannot open", e).on_path(dir.display().to_string());
    let mut out = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(fail)? {
        let path = entry.map_err(fail)?.path();
        // Follows links: by-id names are links.
        let Ok(meta) = std::fs::metadata(&path) else { continue };
        let kind = meta.file_type();
        if kind.is_block_device() || (kind.is_file() && !devices_only) {
            out.push(path);
        }
        if out.len() >= CANDIDATES_MAX {
            return Err(Error::limit("too many files in one directory"));
        }
    }
    out.sort();
    Ok(out)
}

fn probe(path: &Path, order: usize, source: &dyn Leaves) -> Result<Option<Candidate>> {
    let leaf = source.open(path, Purpose::Probe)?;
    let labels = LeafLabels::read(&*leaf.device)?;
    let Some((list, count)) = labels.discovery_config() else { return Ok(None) };
    let config = LabelConfig::parse(list)?;
    // Only a verified label has a reliable txg.
    let verified = labels.labels.iter().filter(|l| l.verified);
    let txg = verified.filter_map(|l| l.config.as_ref()?.u64("txg")).max();
    let guid = match &config {
        LabelConfig::Member(pool) => match &pool.member {
            Some(member) => member.guid,
            None => return Ok(None),
        },
        LabelConfig::Aux(aux) => aux.guid,
    };
    let ashift = match &config {
        LabelConfig::Member(pool) => pool.vdev_tree.top.as_ref().map(|t| t.ashift),
        LabelConfig::Aux(_) => None,
    };
    // A copy of a device made before the last writes has the same label, but older
    // uberblocks.
    let newest = ashift.and_then(|a| labels.uberblocks(a).into_iter().map(|u| u.txg).max());
    let synced = newest.unwrap_or(Txg::ZERO);
    Ok(Some(Candidate {
        path: path.to_owned(),
        guid,
        config,
        txg: Txg(txg.unwrap_or(0)),
        synced,
        labels: count,
        order,
        block_device: leaf.block_device,
    }))
}
