//! Finding and opening a pool's cache devices (chapter 01 §4.7, chapter 08 §G).
//!
//! A pool's cache devices are listed in an object of the MOS. Each has a label with its own
//! guid and nothing of the pool. A device that is absent or not the one that is listed is
//! not used, and the pool works without it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::{Error, Guid, Result};
use device::Device;
use ondisk::config::{LabelConfig, PoolState, parse_aux_list};

use crate::Spa;
use crate::assemble::{FoundPool, location_for};
use crate::labels::LeafLabels;
use crate::leaves::{Leaves, Purpose};

/// A cache device of the pool's list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedCache {
    /// Its guid.
    pub guid: Guid,
    /// The path in the list.
    pub path: Option<PathBuf>,
    /// Where it may be, the most likely place first.
    pub places: Vec<PathBuf>,
    /// It was taken offline, and is not to be opened.
    pub offline: bool,
}

/// An open cache device.
pub struct OpenCache {
    /// The device.
    pub device: Arc<dyn Device>,
    /// log2 of its sector, as its label says.
    pub ashift: u32,
    /// Where it was found.
    pub path: PathBuf,
}

impl Spa {
    /// The cache devices of the pool's list; `found` knows where devices with their guids
    /// were seen. Empty if the list cannot be read.
    pub fn listed_caches(&self, found: Option<&FoundPool>) -> Vec<ListedCache> {
        let listed = self.mos().lookup("l2cache").ok().flatten();
        let list = listed.and_then(|object| self.mos().packed_nvlist(object).ok());
        let Some(list) = list else { return Vec::new() };
        let of = |vdev: ondisk::config::VdevConfig| {
            let path = vdev.path.as_ref().and_then(|p| p.to_str()).map(PathBuf::from);
            let seen = found.and_then(|f| {
                location_for(&f.locations, vdev.guid, path.as_deref()).map(|l| l.path.clone())
            });
            let absolute = path.clone().filter(|p| p.is_absolute());
            let mut places: Vec<PathBuf> = seen.into_iter().chain(absolute).collect();
            places.dedup();
            ListedCache { guid: vdev.guid, path, places, offline: vdev.leaf.offline }
        };
        parse_aux_list(&list, "l2cache").unwrap_or_default().into_iter().map(of).collect()
    }
}

impl ListedCache {
    /// Opens the device, if it is in one of its places.
    ///
    /// # Errors
    /// Those of opening it; `Corrupt` for a device with another label.
    pub fn open(&self, source: &dyn Leaves, purpose: Purpose) -> Result<OpenCache> {
        let mut last = Error::not_found("no device with this guid was found");
        for place in &self.places {
            match self.open_at(place, source, purpose) {
                Ok(open) => return Ok(open),
                Err(e) => last = e,
            }
        }
        Err(last)
    }

    fn open_at(&self, path: &Path, source: &dyn Leaves, purpose: Purpose) -> Result<OpenCache> {
        let device = source.open(path, purpose)?.device;
        let labels = LeafLabels::read(&*device)?;
        let wrong = || Error::corrupt("the label is not that of this cache device");
        let (list, _) = labels.discovery_config().ok_or_else(wrong)?;
        match LabelConfig::parse(list)? {
            LabelConfig::Aux(aux) if aux.state == PoolState::L2cache && aux.guid == self.guid => {
                Ok(OpenCache { device, ashift: aux.ashift.unwrap_or(9), path: path.to_owned() })
            }
            _ => Err(wrong()),
        }
    }
}
