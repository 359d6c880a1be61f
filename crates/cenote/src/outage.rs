//! Pools with missing devices: suspension and resumption.

use std::sync::Arc;

use base::{Error, Guid, Result};
use mover::job::{MoveRequest, MoveState, MoveWork};
use ondisk::removal::Removing;
use spa::engine::{Command, RemovalEstimate};
use spa::status::VdevStatus;

use crate::dataset::Dataset;
use crate::engine::Engine;
use crate::pool::{Pool, PoolCore};

impl Drop for PoolCore {
    fn drop(&mut self) {
        self.close_caches();
        // The sync thread of a suspended pool keeps a reference to the writer while it
        // waits.
        if let Some(writer) = self.writer.as_ref().filter(|w| w.txgs().suspended().is_some()) {
            writer.abandon();
        }
    }
}

impl Pool {
    /// Whether nothing can be written until [`Engine::clear`].
    pub fn is_suspended(&self) -> bool {
        self.core.writer.as_ref().is_some_and(|w| w.txgs().suspended().is_some())
    }
}

/// Whether a vdev has this name, path, last part of its path, or guid.
pub(crate) fn is_called(v: &VdevStatus, name: &str) -> bool {
    let path = v.path.as_ref().and_then(|p| p.to_str());
    let last = path.and_then(|p| p.rsplit('/').next());
    v.name == name || path == Some(name) || last == Some(name) || name.parse() == Ok(v.guid.0)
}

impl Pool {
    /// The reason why nothing can be written, if the pool is suspended.
    pub fn suspended_because(&self) -> Option<Error> {
        self.core.writer.as_ref().and_then(|w| w.txgs().suspended())
    }

    /// The vdev of this name, path, last part of its path, or guid.
    pub(crate) fn vdev_named(&self, name: &str) -> Result<Guid> {
        let mut found = None;
        self.spa().vdev_status().for_each(&mut |v: &VdevStatus| {
            if is_called(v, name) {
                found.get_or_insert(v.guid);
            }
        });
        found.ok_or_else(|| Error::not_found("no such device in pool"))
    }

    /// Removes a vdev, a cache device or a spare, by its name or guid (`zpool remove`). A log
    /// vdev, which may also be named by a device below it, a cache device and a spare are gone
    /// when this returns. What is on any other vdev is copied to the rest of the pool in the
    /// background; [`Pool::removal`] tells how far it is. In a pool with raidz or dRAID its blocks
    /// move instead, without a mapping, and [`Pool::move_job`] tells how far that is.
    ///
    /// # Errors
    /// `ReadOnly`; `NotFound`; `Busy` while a log vdev has a log that was not replayed; those of
    /// [`spa::engine::Writer::begin_vdev_removal`], or of [`mover::evacuate::check`] and
    /// [`mover::job::MoveJob::start`]; that of a suspension.
    pub fn remove_vdev(&self, device: &str, command: Option<&str>) -> Result<()> {
        let command = command.map(Command::new);
        let aux = crate::pool::aux_devices(self.spa());
        if let Some(found) = aux.iter().find(|v| is_called(v, device)) {
            self.writer()?.remove_aux(found.guid, command)?;
            self.core.drop_cache_device(found.guid);
            self.core.cache_faults.lock().remove(&found.guid);
            self.vdev_event("vdev_remove_aux", found.guid);
            return Ok(());
        }
        let guid = self.vdev_named(device)?;
        let writer = self.writer()?;
        if !self.is_log_vdev(guid) {
            if !writer.removal_moves_blocks() {
                return writer.begin_vdev_removal(guid, command);
            }
            return self.begin_emptying(MoveWork::Remove { vdev: guid }, command);
        }
        writer.remove_log(guid, command)?;
        self.vdev_event("vdev_remove_dev", guid);
        Ok(())
    }

    /// Begins a job that empties a vdev, or its end.
    fn begin_emptying(&self, work: MoveWork, command: Option<Command>) -> Result<()> {
        let writer = self.writer()?;
        mover::evacuate::check(writer, work)?;
        let request = MoveRequest { work, ..MoveRequest::default() };
        self.core.move_job.start(writer, &request, command)
    }

    /// What the job that is active or paused is for.
    fn open_job(&self) -> Option<MoveWork> {
        let job = self.core.move_job.status()?.record;
        matches!(job.state, MoveState::Active | MoveState::Paused).then_some(job.work)
    }

    /// Makes a top-level vdev smaller, in the background, so that devices of `size` bytes may
    /// replace its own (`zpool shrink`); [`Pool::move_job`] tells how far it is.
    ///
    /// # Errors
    /// `ReadOnly`; those of [`mover::evacuate::check`] and [`mover::job::MoveJob::start`].
    pub fn shrink_vdev(&self, vdev: &str, size: u64, command: Option<&str>) -> Result<()> {
        let work = MoveWork::Shrink { vdev: self.vdev_named(vdev)?, size };
        self.begin_emptying(work, command.map(Command::new))
    }

    /// Bytes that would move if a top-level vdev was made smaller (`zpool shrink -n`).
    ///
    /// # Errors
    /// As [`Pool::shrink_vdev`].
    pub fn estimate_shrink(&self, vdev: &str, size: u64) -> Result<u64> {
        let work = MoveWork::Shrink { vdev: self.vdev_named(vdev)?, size };
        mover::evacuate::check(self.writer()?, work).map(|rest| rest.bytes)
    }

    /// Cancels the shrinking of a vdev; blocks that have moved stay where they are.
    ///
    /// # Errors
    /// `ReadOnly`; `NotFound` if none is under way; that of a suspension.
    pub fn cancel_shrink(&self, command: Option<&str>) -> Result<()> {
        match self.open_job() {
            Some(MoveWork::Shrink { .. }) => {
                self.core.move_job.cancel(self.writer()?, command.map(Command::new))
            }
            _ => Err(Error::not_found("no vdev is being shrunk")),
        }
    }

    /// The removal of a data vdev that is under way, or the last one.
    ///
    /// # Errors
    /// Those of reading the MOS; `Corrupt` for an impossible record.
    pub fn removal(&self) -> Result<Option<Removing>> {
        let words = self.spa().mos().lookup_words("com.delphix:removing")?;
        words.as_deref().and_then(|words| words.first_chunk()).map(Removing::from_words).transpose()
    }

    /// Whether a vdev is one for intent logs, or below such a vdev.
    fn is_log_vdev(&self, guid: Guid) -> bool {
        let config = self.core.config();
        let top = config.vdev_tree.children.iter().find(|v| v.find(guid).is_some());
        top.and_then(|top| top.top.as_ref()).is_some_and(|top| top.is_log)
    }

    /// What the removal of a data vdev would take (`zpool remove -n`).
    ///
    /// # Errors
    /// As for [`Pool::remove_vdev`].
    pub fn estimate_removal(&self, device: &str) -> Result<RemovalEstimate> {
        let aux = crate::pool::aux_devices(self.spa());
        if aux.iter().any(|v| is_called(v, device)) {
            return Ok(RemovalEstimate::default());
        }
        let guid = self.vdev_named(device)?;
        let writer = self.writer()?;
        if self.is_log_vdev(guid) {
            return Ok(RemovalEstimate::default());
        }
        if !writer.removal_moves_blocks() {
            return writer.estimate_removal(guid);
        }
        let rest = mover::evacuate::check(writer, MoveWork::Remove { vdev: guid })?;
        Ok(RemovalEstimate { to_copy: rest.bytes, memory: 0 })
    }

    /// Cancels the removal of a data vdev (`zpool remove -s`): it is used as before. Blocks that
    /// have moved without a mapping stay where they are.
    ///
    /// # Errors
    /// `ReadOnly`; `NotFound` if none is under way; that of a suspension.
    pub fn cancel_removal(&self, command: Option<&str>) -> Result<()> {
        if matches!(self.open_job(), Some(MoveWork::Remove { .. })) {
            return self.core.move_job.cancel(self.writer()?, command.map(Command::new));
        }
        self.writer()?.cancel_removal(command.map(Command::new))
    }
}

impl Engine {
    /// Clears the errors of a pool's devices, or of one and those below it, reopens them,
    /// and resumes a suspended pool (`zpool clear`).
    ///
    /// # Errors
    /// `ReadOnly`; `NotFound` for an unknown device; `Io` when too few devices are present:
    /// the pool stays as it is.
    pub fn clear(&self, pool: &Pool, device: Option<&str>, command: Option<&str>) -> Result<()> {
        let writer = pool.writer()?;
        let was_cache = self.clear_caches(pool, device)?;
        let leaf = match device {
            Some(name) if !was_cache => Some(pool.vdev_named(name)?),
            _ => None,
        };
        if device.is_none() || !was_cache {
            writer.reopen(leaf, &pool.core.leaves)?;
            pool.vdev_event("vdev_clear", leaf.unwrap_or(pool.core.config().vdev_tree.guid));
        }
        let Some(command) = command.map(Command::new) else { return Ok(()) };
        // The pool may be suspended again at once, so the caller does not wait for the
        // history.
        let writer = Arc::clone(writer);
        base::rt::spawn("history", move || {
            let log = move |cx: &mut spa::engine::TaskCx<'_>, ()| cx.log_command(&command);
            let _not_noted = writer.sync_task(|_| Ok(()), log);
        })
        .map(drop)
    }
}

impl Dataset {
    /// Whether its pool is suspended.
    pub fn is_suspended(&self) -> bool {
        self.core().writer.as_ref().is_some_and(|w| w.txgs().suspended().is_some())
    }
}
