//! Opening leaves by guid, and verifying by their labels that they are the right ones
//! (chapter 01 §8.3, step 3).
//!
//! # Theory
//! A leaf that cannot be opened is missing, and a pool with enough others is opened without it.
//! A leaf that is locked is not missing: who holds it has the pool open, and reads or writes it.
//! So a device that the search has found, that is locked, and whose label says that it is the leaf,
//! is *held*, and the pool is not opened at all. (The recorded path of a leaf may lead to a pool of
//! which these devices are copies.) Otherwise two processes could each have the same pool with another part
//! of its devices.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::rt::Mutex;
use base::{Error, ErrorKind, Guid, Result, Txg};
use device::Device;
use nvlist::NvList;
use ondisk::uberblock::Uberblock;
use vdev::LeafSpec;

use crate::assemble::{FoundPool, location_for};
use crate::labels::LeafLabels;
use crate::leaves::{Leaves, Purpose};
use crate::uberblocks::{Chosen, choose};

/// Opens each leaf once, however often the tree is rebuilt.
pub(crate) struct LeafOpener<'a> {
    found: &'a FoundPool,
    source: &'a dyn Leaves,
    purpose: Purpose,
    open: Mutex<HashMap<PathBuf, Opened>>,
    /// Leaves in use, with their labels.
    leaves: Mutex<HashMap<Guid, (Arc<LeafLabels>, u32)>>,
    /// Why the last leaf that could not be opened could not.
    refusal: Mutex<Option<(ErrorKind, String)>>,
    /// Why a leaf of this pool that is there cannot be opened: it is locked.
    held: Mutex<Option<String>>,
}

#[derive(Clone)]
struct Opened {
    device: Arc<dyn Device>,
    labels: Arc<LeafLabels>,
}

impl<'a> LeafOpener<'a> {
    pub(crate) fn new(
        found: &'a FoundPool,
        source: &'a dyn Leaves,
        purpose: Purpose,
    ) -> LeafOpener<'a> {
        LeafOpener {
            found,
            source,
            purpose,
            open: Mutex::new(HashMap::new()),
            leaves: Mutex::new(HashMap::new()),
            refusal: Mutex::new(None),
            held: Mutex::new(None),
        }
    }

    /// Opens a leaf at the location where it was found, or at the path in its
    /// configuration.
    pub(crate) fn open(&self, spec: &LeafSpec, limit: Txg) -> Result<Arc<dyn Device>> {
        let (mut last, mut held) = (None, None);
        for path in self.paths(spec) {
            match self.open_at(&path, spec, limit) {
                Ok(device) => return Ok(device),
                Err(e) => {
                    if e.kind() == ErrorKind::Busy && self.is_held(&path, spec) {
                        held = Some(e.to_string());
                    }
                    last = Some(e);
                }
            }
        }
        if held.is_some() {
            *self.held.lock() = held;
        }
        let why = last.unwrap_or_else(|| Error::not_found("no device with this guid was found"));
        *self.refusal.lock() = Some((why.kind(), why.to_string()));
        Err(why)
    }

    /// Fails if a leaf that could not be opened is locked by another opening of the pool.
    ///
    /// # Errors
    /// `Busy`, with its path.
    pub(crate) fn check_held(&self) -> Result<()> {
        match &*self.held.lock() {
            Some(why) => Err(Error::busy(why.clone())),
            None => Ok(()),
        }
    }

    /// Whether a device that is locked is this leaf: the search has found it, and its label says so.
    fn is_held(&self, path: &Path, spec: &LeafSpec) -> bool {
        let all = [&self.found.locations, &self.found.top_locations];
        let mut found = all.into_iter().filter_map(|of| of.get(&spec.guid)).flatten();
        if !found.any(|at| at.path == path) {
            return false;
        }
        let Ok(leaf) = self.source.open(path, Purpose::Probe) else { return false };
        let label = LeafLabels::read(&*leaf.device).ok().and_then(|l| l.config_at(Txg::MAX));
        label.is_some_and(|label| self.judge(&label, spec).is_ok())
    }

    fn paths(&self, spec: &LeafSpec) -> Vec<PathBuf> {
        let recorded = spec.path.as_ref().map(PathBuf::from);
        let mut paths = Vec::new();
        if let Some(best) = location_for(&self.found.locations, spec.guid, recorded.as_deref()) {
            paths.push(best.path.clone());
        }
        let others = self.found.locations.get(&spec.guid).into_iter().flatten();
        paths.extend(others.map(|p| p.path.clone()));
        // A leaf that replaced its mirror still has its old guid on disk.
        let renamed = self.found.top_locations.get(&spec.guid).into_iter().flatten();
        paths.extend(renamed.map(|p| p.path.clone()));
        paths.extend(recorded.filter(|p| p.is_absolute()));
        let mut seen = std::collections::HashSet::new();
        paths.retain(|p| seen.insert(p.clone()));
        paths
    }

    fn open_at(&self, path: &PathBuf, spec: &LeafSpec, limit: Txg) -> Result<Arc<dyn Device>> {
        let known = self.open.lock().get(path).cloned();
        let opened = match known {
            Some(opened) => opened,
            None => {
                let device = self.source.open(path, self.purpose)?.device;
                let labels = Arc::new(LeafLabels::read(&*device)?);
                let opened = Opened { device, labels };
                self.open.lock().insert(path.clone(), opened.clone());
                opened
            }
        };
        let label = opened
            .labels
            .config_at(limit)
            .ok_or_else(|| Error::corrupt("the device has no valid label"))?;
        self.judge(&label, spec)?;
        self.leaves.lock().insert(spec.guid, (Arc::clone(&opened.labels), spec.ashift));
        Ok(opened.device)
    }

    fn judge(&self, label: &NvList, spec: &LeafSpec) -> Result<()> {
        let guid = |key: &str| label.u64(key).map(Guid);
        if guid("split_guid") == Some(self.found.guid) {
            return Err(Error::corrupt("the label says that the device was split off this pool"));
        }
        if guid("pool_guid") != Some(self.found.guid) {
            return Err(Error::corrupt("the label belongs to another pool"));
        }
        let is_it = guid("guid") == Some(spec.guid) || guid("top_guid") == Some(spec.guid);
        let original = label.list("vdev_tree").and_then(|t| t.u64("orig_guid"));
        if is_it || original == Some(spec.guid.0) {
            return Ok(());
        }
        Err(Error::corrupt("the label belongs to another device of this pool"))
    }

    /// Every uberblock on every leaf in use.
    pub(crate) fn uberblocks(&self) -> Vec<(Guid, Uberblock)> {
        let leaves = self.leaves.lock();
        let of = |(guid, (labels, ashift)): (&Guid, &(Arc<LeafLabels>, u32))| {
            let guid = *guid;
            labels.uberblocks(*ashift).into_iter().map(move |ub| (guid, ub)).collect::<Vec<_>>()
        };
        leaves.iter().flat_map(of).collect()
    }

    /// The best uberblock no newer than `limit`, of all leaves in use.
    ///
    /// # Errors
    /// As [`choose`]. If no leaf could be opened: `Busy` or `Permission`, if that is the
    /// reason, else `DevicesMissing`, with the reason.
    pub(crate) fn choose(&self, limit: Txg) -> Result<Chosen> {
        if !self.leaves.lock().is_empty() {
            return choose(self.uberblocks(), limit);
        }
        let refusal = self.refusal.lock().clone();
        Err(match refusal {
            Some((kind @ (ErrorKind::Busy | ErrorKind::Permission), why)) => Error::new(kind, why),
            Some((_, why)) => {
                Error::new(ErrorKind::DevicesMissing, format!("no device can be opened: {why}"))
            }
            None => Error::new(ErrorKind::DevicesMissing, "the pool has no devices"),
        })
    }

    /// The configuration of a leaf's label, no later than `limit`.
    pub(crate) fn config(&self, leaf: Guid, limit: Txg) -> Option<NvList> {
        self.leaves.lock().get(&leaf)?.0.config_at(limit)
    }

    /// Reads the uberblocks again from the devices (multihost activity check).
    pub(crate) fn reread(&self) -> Result<Vec<(Guid, Uberblock)>> {
        let open: Vec<Opened> = self.open.lock().values().cloned().collect();
        let ashift = self.leaves.lock().values().map(|l| l.1).next().unwrap_or(9);
        let mut out = Vec::new();
        for opened in open {
            match LeafLabels::read(&*opened.device) {
                Ok(labels) => {
                    out.extend(labels.uberblocks(ashift).into_iter().map(|u| (Guid(0), u)));
                }
                Err(e) if e.kind() == ErrorKind::Io => {}
                Err(e) => return Err(e),
            }
        }
        Ok(out)
    }
}
