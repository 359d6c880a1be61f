//! The calls that create and change pools.

use std::path::Path;
use std::sync::Arc;

use base::{Error, ErrorKind, Guid, Result};
use device::{Device, FileDevice, OpenOptions};
use spa::write::admit::{ExaminedDevice, Force, admit};
use spa::write::inuse::{self, OpenPool};
use spa::write::labels;

use super::{AddRequest, CreateRequest, NewVdev, PoolSetting};
use crate::engine::Engine;
use crate::opening::Opening;
use crate::pool::Pool;

impl Engine {
    /// Whether the devices of a request may be used: they are not in use, and their
    /// redundancy matches that of each other and of the pool.
    ///
    /// # Errors
    /// `Invalid` with OpenZFS's whole message; the devices' errors.
    pub fn check_devices(
        &self,
        vdevs: &[NewVdev],
        pool: Option<&Pool>,
        force: Force,
    ) -> Result<()> {
        let (open, devices) = (self.open_pools(), self.devices()?);
        let look =
            |path: &Path| -> Result<ExaminedDevice> { inuse::examine(path, &devices, &open) };
        let config = pool.map(|p| p.core.config());
        let tops = config.as_ref().map(|c| c.vdev_tree.children.as_slice());
        admit(vdevs, tops, force, &look)
    }

    /// The pools that are open, with their devices.
    pub(crate) fn open_pools(&self) -> Vec<OpenPool> {
        let aux = |devices: Vec<spa::VdevStatus>, class| {
            devices.into_iter().filter(|v| v.class == class).map(|v| v.guid).collect::<Vec<Guid>>()
        };
        let of = |pool: Arc<Pool>| {
            let devices = crate::pool::aux_devices(pool.spa());
            OpenPool {
                guid: pool.guid(),
                name: pool.name().to_owned(),
                leaves: pool.core.config().vdev_tree.leaves().map(|l| l.guid).collect(),
                spares: aux(devices.clone(), spa::VdevClass::Spare),
                caches: aux(devices, spa::VdevClass::Cache),
            }
        };
        self.imported().into_iter().map(of).collect()
    }

    /// Creates a pool and keeps it imported. With `dry_run` it only checks whether that is
    /// possible, and returns `None`.
    ///
    /// # Errors
    /// `Exists` for a name in use, `Invalid` with OpenZFS's message for devices that may
    /// not be used, the devices' errors.
    pub fn create_pool(&self, request: &CreateRequest) -> Result<Option<Arc<Pool>>> {
        self.create_pool_through(request, &Opening::new())
    }

    /// As [`Engine::create_pool`], with an [`Opening`] through which other threads can
    /// inspect it.
    ///
    /// # Errors
    /// As there; `Interrupted` or `Io` when it was given up.
    pub fn create_pool_through(
        &self,
        request: &CreateRequest,
        opening: &Arc<Opening>,
    ) -> Result<Option<Arc<Pool>>> {
        let name = request.temporary_name.as_deref().unwrap_or(&request.name);
        let reserved = self.names().reserve(name, None, opening).map_err(|e| match e.kind() {
            ErrorKind::Exists => Error::new(ErrorKind::Exists, "pool already exists"),
            _ => e,
        })?;
        self.check_devices(&request.vdevs, None, request.force)?;
        if request.dry_run {
            return Ok(None);
        }
        self.make_pool(request, opening, reserved).map(Some)
    }

    /// Adds vdevs to a pool. With `dry_run` it only checks.
    ///
    /// # Errors
    /// `ReadOnly` for a pool imported read-only; as [`Engine::create_pool`].
    pub fn add_vdevs(&self, pool: &Arc<Pool>, request: &AddRequest) -> Result<()> {
        writable(pool)?;
        // Before the devices get labels.
        pool.writer()?.check_running()?;
        self.check_devices(&request.vdevs, Some(pool), request.force)?;
        if request.dry_run {
            return Ok(());
        }
        self.grow_pool(pool, request)
    }

    /// Marks a pool destroyed and closes it. None of its datasets may be mounted. `command`
    /// is added to the pool's history.
    ///
    /// # Errors
    /// `ReadOnly` for a pool imported read-only, `Busy` while it is in use.
    pub fn destroy_pool(&self, pool: Arc<Pool>, command: Option<&str>) -> Result<()> {
        writable(&pool)?;
        pool.destroy_with(command)
    }

    /// Wipes a device's labels (`zpool labelclear`). True if there were some.
    ///
    /// # Errors
    /// `Busy` with OpenZFS's whole message for a device in use; the device's.
    pub fn clear_labels(&self, path: &Path, force: bool) -> Result<bool> {
        let options =
            OpenOptions { min_size: 0, engine: Some(self.devices()?), ..OpenOptions::default() };
        // Read before opening it for writing: a device of an open pool is locked by this
        // process.
        let looking = OpenOptions { lock: device::Lock::None, ..options.clone() };
        let device = FileDevice::open(path, &looking)?;
        let found = inuse::inspect(&device, device.is_block_device(), &self.open_pools())?;
        for used in found {
            if let Some(line) = used.labelclear_line(path)
                && !(force && used.yields_to_force())
            {
                return Err(Error::busy(line));
            }
        }
        let device = FileDevice::open(path, &OpenOptions { write: true, ..options })?;
        if device.size() < base::limits::LEAF_SIZE_MIN {
            return Ok(false);
        }
        Ok(labels::clear(&device)? > 0)
    }
}

fn writable(pool: &Pool) -> Result<()> {
    if pool.is_readonly() {
        return Err(Error::new(ErrorKind::ReadOnly, "pool is read-only"));
    }
    Ok(())
}

impl Pool {
    /// Waits until all changes so far are durable (`zpool sync`).
    ///
    /// # Errors
    /// `ReadOnly` for a pool imported read-only; `Io` when the pool is suspended.
    pub fn sync(&self) -> Result<()> {
        writable(self)?;
        self.writer()?.sync().map(|_| ())
    }

    /// Gives the pool another guid, a random one by default.
    ///
    /// # Errors
    /// As [`Pool::sync`]; `Exists` for a guid in use.
    pub fn reguid(&self, guid: Option<Guid>, command: Option<&str>) -> Result<()> {
        writable(self)?;
        self.change_guid(guid, command)
    }

    /// Sets a property.
    ///
    /// # Errors
    /// As [`Pool::sync`]; `Invalid` for a value that the pool's state forbids.
    pub fn set(&self, setting: &PoolSetting, command: Option<&str>) -> Result<()> {
        writable(self)?;
        self.apply(setting, command)
    }
}
