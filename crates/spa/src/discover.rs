//! Finding pool members among files and devices (chapter 01 §8.1).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::rt::Mutex;
use base::{Error, ErrorKind, Guid, Result, Txg};
use device::Engine;
use ondisk::config::LabelConfig;

use crate::assemble::{FoundPool, assemble};
use crate::labels::LeafLabels;
use crate::leaves::{FileLeaves, Leaves, Purpose};

/// Where Linux keeps device nodes, best names first.
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
/// Files looked at in one scan.
const CANDIDATES_MAX: usize = 100_000;
/// Devices read at once.
const SCAN_THREADS: usize = 16;

/// Where to look, and for what.
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
    /// Places that were named but could not be read, and why.
    pub problems: Vec<(PathBuf, Error)>,
}

/// A device with labels.
#[derive(Debug)]
pub struct Candidate {
    /// Where it was found.
    pub path: PathBuf,
    /// Its guid.
    pub guid: Guid,
    /// What the label that counts says.
    pub config: LabelConfig,
    /// Group of the newest label.
    pub txg: Txg,
    /// Group of its newest uberblock.
    pub synced: Txg,
    /// How many labels agree.
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
    discover_in(search, &FileLeaves(Arc::clone(engine)))
}

/// As [`discover`], among the leaves of `source`: all of them, if it can list them.
///
/// # Errors
/// As [`discover`].
pub fn discover_in(search: &Search, source: &dyn Leaves) -> Result<Discovery> {
    let mut problems = Vec::new();
    let files = match source.list() {
        Some(all) => all.into_iter().map(|path| (path, false)).collect(),
        None => collect(search, &mut problems)?,
    };
    let found = Mutex::new(Vec::new());
    let failed = Mutex::new(Vec::new());
    let next = std::sync::atomic::AtomicUsize::new(0);
    base::rt::fan_out(SCAN_THREADS.min(files.len()), |_| {
        loop {
            let order = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let Some((path, named)) = files.get(order) else { return };
            match probe(path, order, source) {
                Ok(Some(candidate)) => found.lock().push(candidate),
                Ok(None) => {}
                // A directory holds all sorts of things; a named file was meant.
                Err(e) if *named || e.kind() == ErrorKind::Permission => {
                    failed.lock().push((path.clone(), e));
                }
                Err(_) => {}
            }
        }
    });
    problems.extend(failed.into_inner());
    problems.sort_by(|a, b| a.0.cmp(&b.0));
    let mut candidates = found.into_inner();
    candidates.sort_by_key(|c| c.order);
    let pools = assemble(candidates, search.destroyed);
    Ok(Discovery { pools, problems })
}

/// The files to look at; true marks those the user named himself.
fn collect(search: &Search, problems: &mut Vec<(PathBuf, Error)>) -> Result<Vec<(PathBuf, bool)>> {
    let mut files = Vec::new();
    let default = search.paths.is_empty();
    let roots: Vec<PathBuf> = if default {
        DEFAULT_DIRS.iter().map(PathBuf::from).collect()
    } else {
        search.paths.clone()
    };
    for root in roots {
        match std::fs::metadata(&root) {
            Ok(meta) if meta.is_dir() => match list(&root, default) {
                Ok(entries) => files.extend(entries.into_iter().map(|p| (p, false))),
                Err(e) => problems.push((root, e)),
            },
            Ok(_) => files.push((root, true)),
            Err(_) if default => {}
            Err(e) => problems.push((root.clone(), Error::io("cannot open", e))),
        }
        if files.len() > CANDIDATES_MAX {
            return Err(Error::limit("too many files to scan; name the devices with -d"));
        }
    }
    Ok(files)
}

/// Entries of a directory that could be members: no subdirectories, so a loop
/// of directories cannot matter.
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
        if out.len() > CANDIDATES_MAX {
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
    // Only a label that verifies can tell how new it is.
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
    // A copy made before the last writes has the same label, but older uberblocks.
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
