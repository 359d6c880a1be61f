//! The cache devices of imported pools: opened and restored in the background, added,
//! removed, taken offline and back.
//!
//! # Theory
//! The list in the MOS says which cache devices a pool has. What became of each is here:
//! [`l2arc::CachePool`] has those in use, [`CacheFaults`] the others, with the reason. The
//! import starts a thread that opens the devices and does not wait for it; a device that
//! does not answer delays neither the import nor a reader.
//!
//! # Invariants
//! * A cache device that cannot be used is never an error of the pool.
//!
//! Lock order: [`CacheFaults`] is a leaf.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use base::rt::Mutex;
use base::{Error, Guid, Result};
use device::Device;
use dmu::{CacheTiers, CacheUse};
use dsl::props::{PropData, PropValue};
use l2arc::{CacheDevice, DeviceSpec, Health, SecondLevel};
use ondisk::config::VdevConfig;
use spa::cache_devices::ListedCache;
use spa::engine::Command;
use spa::leaves::Purpose;
use spa::status::{IoClass, IoCount, VdevClass, VdevState, VdevStatus};

use crate::dataset::Dataset;
use crate::engine::Engine;
use crate::pool::{Pool, PoolCore};

/// Why a listed cache device is not in use: its state, and details.
pub(crate) type CacheFaults = Mutex<BTreeMap<Guid, (VdevState, Option<String>)>>;

impl PoolCore {
    /// Takes an open device into use.
    fn use_cache(
        &self,
        level: &Arc<SecondLevel>,
        guid: Guid,
        open: (Arc<dyn Device>, u32, &Path),
        rebuild: bool,
    ) -> Result<()> {
        let (device, ashift, path) = open;
        if self.closed.load(Relaxed) {
            return Err(Error::new(base::ErrorKind::Interrupted, "the pool is being closed"));
        }
        let pool = self.spa.zio().use_cache_devices(level);
        let (rebuild_min, owner) = (pool.tunables().rebuild_min, self.config().pool_guid);
        let spec = DeviceSpec {
            guid,
            pool: owner,
            ashift,
            rebuild_min,
            log_entries: None,
            ring_max: None,
        };
        let device = CacheDevice::new(spec, &path.display().to_string(), device)?;
        pool.add(device, rebuild)?;
        if self.closed.load(Relaxed) {
            pool.close();
        }
        self.cache_faults.lock().remove(&guid);
        Ok(())
    }

    /// Opens a listed device and restores its content.
    fn open_cache(&self, level: &Arc<SecondLevel>, listed: &ListedCache) -> Result<()> {
        let purpose = if self.writer.is_some() { Purpose::Write } else { Purpose::Read };
        let opened = listed.open(&self.leaves, purpose).and_then(|open| {
            self.use_cache(level, listed.guid, (open.device, open.ashift, &open.path), true)
        });
        if let Err(e) = &opened {
            let fault = (VdevState::Unavail, Some(e.message().to_owned()));
            self.cache_faults.lock().insert(listed.guid, fault);
        }
        opened
    }

    /// Stops using all cache devices. Their content stays on them.
    pub(crate) fn close_caches(&self) {
        self.closed.store(true, Relaxed);
        if let Some(pool) = self.spa.zio().cache_devices() {
            pool.close();
        }
    }

    /// Stops using a cache device, and waits until no reader has it any more, so that it can
    /// be opened again.
    pub(crate) fn drop_cache_device(&self, guid: Guid) {
        let Some(device) = self.spa.zio().cache_devices().and_then(|c| c.remove(guid)) else {
            return;
        };
        let began = base::rt::now();
        while Arc::strong_count(&device) > 1 && began.elapsed() < 2 * l2arc::READ_LIMIT {
            base::rt::sleep(Duration::from_millis(1));
        }
    }

    /// Completes the status of a listed cache device.
    pub(crate) fn describe_cache(&self, status: &mut VdevStatus) {
        let pool = self.spa.zio().cache_devices();
        if let Some(device) = pool.and_then(|pool| pool.device(status.guid)) {
            return describe(&device, status);
        }
        if let Some((state, detail)) = self.cache_faults.lock().get(&status.guid).cloned() {
            status.state = Some(state);
            status.aux = (state == VdevState::Unavail).then(|| "cannot open".to_owned());
            status.detail = detail;
        }
    }
}

fn describe(device: &CacheDevice, status: &mut VdevStatus) {
    let counts = device.counts();
    (status.state, status.aux) = match device.health() {
        Health::Online => (Some(VdevState::Online), None),
        Health::Faulted => (Some(VdevState::Faulted), Some("too many errors".to_owned())),
    };
    status.read_errors = counts.read_errors;
    status.write_errors = counts.write_errors;
    status.checksum_errors = counts.checksum_errors;
    status.size = device.capacity();
    status.allocated = device.sums().asize + device.logs()[0];
    status.asize = device.capacity();
    status.psize = device.device().size();
    status.ashift = device.spec().ashift;
    status.direct_io = device.device().caps().direct;
    status.age = device.age();
    let of = |[ops, bytes]: [u64; 2]| IoCount { ops, bytes };
    status.io.by_class[IoClass::SyncRead as usize] = of(counts.reads);
    status.io.by_class[IoClass::AsyncWrite as usize] = of(counts.writes);
}

impl Engine {
    /// Opens a pool's cache devices in the background.
    pub(crate) fn open_caches(&self, pool: &Pool, found: &spa::FoundPool) {
        let listed = pool.core.spa.listed_caches(Some(found));
        if listed.is_empty() {
            return;
        }
        for device in listed.iter().filter(|device| device.offline) {
            pool.core.cache_faults.lock().insert(device.guid, (VdevState::Offline, None));
        }
        let (core, level) = (Arc::clone(&pool.core), Arc::clone(self.second_level()));
        // Without the thread, the pool works without its cache devices.
        let _absent = base::rt::spawn("l2arc-open", move || {
            for device in listed {
                if core.leaves.is_cut() || core.closed.load(Relaxed) {
                    return;
                }
                if device.offline {
                    continue;
                }
                // The reason is in the pool's status.
                let _unused = core.open_cache(&level, &device);
            }
        });
    }

    /// Uses new cache devices, which the pool's list has.
    ///
    /// # Errors
    /// Those of a device that is too small, and of starting a thread.
    pub(crate) fn add_caches(
        &self,
        pool: &Pool,
        caches: &[(VdevConfig, Arc<dyn Device>)],
    ) -> Result<()> {
        for (vdev, device) in caches {
            let ashift = vdev.raw.u64("ashift").and_then(|a| u32::try_from(a).ok()).unwrap_or(9);
            let path = vdev.path.as_ref().and_then(|p| p.to_str()).unwrap_or_default();
            let open = (Arc::clone(device), ashift, Path::new(path));
            pool.core.use_cache(self.second_level(), vdev.guid, open, false)?;
        }
        Ok(())
    }

    /// Takes a cache device offline: it is closed, and not used until [`Engine::online`]; with
    /// `temporary`, or until the next import. False if no cache device has this name.
    ///
    /// # Errors
    /// `ReadOnly` and `Busy` when a pool that is only read, or suspended, cannot remember it:
    /// the device stays in use.
    pub(crate) fn offline_cache(
        &self,
        pool: &Pool,
        device: &str,
        temporary: bool,
        command: Option<&str>,
    ) -> Result<bool> {
        let aux = crate::pool::aux_devices(&pool.core.spa);
        let named =
            |v: &&VdevStatus| v.class == VdevClass::Cache && crate::outage::is_called(v, device);
        let Some(found) = aux.iter().find(named) else { return Ok(false) };
        if !temporary {
            record_offline(pool, found.guid, true, command)?;
        }
        pool.core.cache_faults.lock().insert(found.guid, (VdevState::Offline, None));
        pool.core.drop_cache_device(found.guid);
        Ok(true)
    }

    /// Uses a cache device that was offline or absent again, and forgets its errors. False if no
    /// cache device has this name.
    ///
    /// # Errors
    /// As [`Engine::clear`]; those of opening the device, and as [`Engine::offline`].
    pub(crate) fn online_cache(
        &self,
        pool: &Pool,
        device: &str,
        command: Option<&str>,
    ) -> Result<bool> {
        let aux = crate::pool::aux_devices(&pool.core.spa);
        let named =
            |v: &&VdevStatus| v.class == VdevClass::Cache && crate::outage::is_called(v, device);
        let Some(found) = aux.iter().find(named) else { return Ok(false) };
        let listed = pool.core.spa.listed_caches(None);
        let recorded = listed.iter().any(|l| l.guid == found.guid && l.offline);
        if recorded {
            record_offline(pool, found.guid, false, command)?;
        }
        // What the list says, also if the device cannot be opened.
        pool.core.cache_faults.lock().remove(&found.guid);
        self.clear(pool, Some(device), command.filter(|_| !recorded)).map(|()| true)
    }

    /// Clears the errors of cache devices, and opens those that are absent. Those that are
    /// offline stay as they are. With a name, only that device; false if no cache device has
    /// it.
    ///
    /// # Errors
    /// Those of opening the named device.
    pub(crate) fn clear_caches(&self, pool: &Pool, name: Option<&str>) -> Result<bool> {
        let aux = crate::pool::aux_devices(&pool.core.spa);
        let wanted = |v: &&VdevStatus| {
            v.class == VdevClass::Cache && name.is_none_or(|n| crate::outage::is_called(v, n))
        };
        let guids: Vec<Guid> = aux.iter().filter(wanted).map(|v| v.guid).collect();
        let caches = pool.core.spa.zio().cache_devices();
        for listed in pool.core.spa.listed_caches(None) {
            if !guids.contains(&listed.guid) {
                continue;
            }
            match caches.as_ref().and_then(|c| c.device(listed.guid)) {
                Some(device) => device.clear(),
                None => {
                    let offline = matches!(
                        pool.core.cache_faults.lock().get(&listed.guid),
                        Some((VdevState::Offline, _))
                    );
                    if offline {
                        continue;
                    }
                    let opened = pool.core.open_cache(self.second_level(), &listed);
                    if name.is_some() {
                        opened?;
                    }
                }
            }
        }
        Ok(!guids.is_empty())
    }
}

/// Records in the pool's list whether a cache device is offline.
fn record_offline(pool: &Pool, guid: Guid, offline: bool, command: Option<&str>) -> Result<()> {
    let writer = pool.writer()?;
    // The list is written with the next txg, for which a suspended pool waits.
    if pool.is_suspended() {
        return Err(Error::busy("pool I/O is currently suspended"));
    }
    writer.set_cache_offline(guid, offline, command.map(Command::new))
}

impl Dataset {
    /// Which tiers of the cache may keep its blocks, for a dataset that is only read. A
    /// property that cannot be read counts as `all`.
    pub(crate) fn cache_tiers(&self) -> CacheTiers {
        let of = |name: &str| match self.prop(name) {
            Ok(Some(PropValue { value: PropData::Num(n), .. })) => CacheUse::of_property(n),
            _ => CacheUse::All,
        };
        CacheTiers { first: of("primarycache"), second: of("secondarycache") }
    }
}
