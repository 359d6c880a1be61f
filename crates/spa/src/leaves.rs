//! Sources of leaves: files and block devices by path, or a given set of devices.
//!
//! # Invariants
//! * Only the source interprets a path: no other code in this crate opens one to import a
//!   pool.
//!
//! Lock order: no locks.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::{Error, Result};
use device::{Device, Engine, FileDevice, Lock, OpenOptions};

/// The purpose of an opened leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To examine its labels, or a pool that another process has open; others may use it,
    /// too.
    Probe,
    /// To read it.
    Read,
    /// To read and write it.
    Write,
}

/// An opened leaf.
#[derive(Clone)]
pub struct OpenLeaf {
    /// The device.
    pub device: Arc<dyn Device>,
    /// It is a block device rather than a file.
    pub block_device: bool,
}

/// A source of leaves.
pub trait Leaves: Send + Sync {
    /// All leaves, if this source can list them; `None` if leaves are found only by path.
    fn list(&self) -> Option<Vec<PathBuf>> {
        None
    }

    /// Opens the leaf at `path`.
    ///
    /// # Errors
    /// Those of opening it.
    fn open(&self, path: &Path, purpose: Purpose) -> Result<OpenLeaf>;
}

/// Devices that are open already, by their paths.
pub struct Known(pub Vec<(PathBuf, Arc<dyn Device>)>);

impl Leaves for Known {
    fn list(&self) -> Option<Vec<PathBuf>> {
        Some(self.0.iter().map(|(path, _)| path.clone()).collect())
    }

    fn open(&self, path: &Path, _purpose: Purpose) -> Result<OpenLeaf> {
        let known = self.0.iter().find(|(p, _)| p == path);
        let (_, device) = known.ok_or_else(|| Error::not_found("no such device"))?;
        Ok(OpenLeaf { device: Arc::clone(device), block_device: false })
    }
}

/// The file system's files and block devices.
pub struct FileLeaves(pub Arc<Engine>);

impl Leaves for FileLeaves {
    fn open(&self, path: &Path, purpose: Purpose) -> Result<OpenLeaf> {
        let mut options = OpenOptions {
            write: purpose == Purpose::Write,
            engine: Some(Arc::clone(&self.0)),
            ..OpenOptions::default()
        };
        if purpose == Purpose::Probe {
            options.lock = Lock::None;
        }
        let device = FileDevice::open(path, &options)?;
        let block_device = device.is_block_device();
        Ok(OpenLeaf { device: Arc::new(device), block_device })
    }
}
