//! Times of access, fsync, statfs.

use base::{ObjectId, Result};
use ondisk::sa::ZplAttr;

use super::make::DNODE_BLOCK;
use super::node::{AttrOp, Patch};
use super::types::{Atime, FsSpace};
use crate::fs::FileSystem;

/// Objects whose times one transaction stores.
const TIMES: usize = 32;
/// Seconds after which a time of access is renewed, `relatime` or not.
const DAY: i64 = 24 * 60 * 60;

impl FileSystem {
    /// A file was read, or a directory listed: its time of access becomes the current time,
    /// as properties `atime` and `relatime` require. It is kept in memory until the object
    /// changes otherwise, its last hold ends, or the file system is synced.
    pub fn accessed(&self, id: ObjectId) {
        self.accessed_as(id, None);
    }

    /// Whether every access is recorded, by this rule or the properties'.
    pub fn counts_each_access(&self, rule: Option<Atime>) -> bool {
        self.rw().is_ok_and(|(_, props)| rule.unwrap_or(props.atime) == Atime::On)
    }

    /// As [`FileSystem::accessed`], by another rule than that of the properties. If very
    /// many times wait to be stored, this one is dropped.
    pub fn accessed_as(&self, id: ObjectId, rule: Option<Atime>) {
        let Ok((rw, props)) = self.rw() else { return };
        if rw.times.are_many() {
            return;
        }
        let now = rw.host.now();
        let fresh = match rule.unwrap_or(props.atime) {
            Atime::Off => false,
            Atime::On => true,
            Atime::Relatime => match self.attrs(id, self.io()) {
                Ok(a) => {
                    let at = |t: ondisk::znode::Time| (t.seconds, t.nanoseconds);
                    at(a.atime) <= at(a.mtime)
                        || at(a.atime) <= at(a.ctime)
                        || now.seconds.saturating_sub(a.atime.seconds) >= DAY
                }
                Err(_) => false,
            },
        };
        if fresh {
            rw.times.put(id, now);
        }
    }

    /// Stores times of access, as far as the objects still exist.
    pub(crate) fn store_times(&self, ids: &[ObjectId]) -> Result<()> {
        let Ok((rw, _)) = self.rw() else { return Ok(()) };
        let mut ids: Vec<ObjectId> =
            ids.iter().copied().filter(|id| rw.times.of(*id).is_some()).collect();
        ids.sort_unstable();
        for batch in ids.chunks(TIMES) {
            let _locks = rw.locks.all(batch);
            let mut nodes = Vec::with_capacity(batch.len());
            for id in batch {
                // A removed or damaged object does not prevent storing the others.
                match self.node(*id) {
                    Ok(node) => nodes.push(node),
                    Err(_) => drop(rw.times.take(*id)),
                }
            }
            if nodes.is_empty() {
                continue;
            }
            // A full pool must not prevent a sync: no new blocks are needed in the end.
            let tx = self.begin_tx(nodes.len() as u64 * DNODE_BLOCK, true)?;
            for node in nodes {
                if let Some(time) = rw.times.take(node.id) {
                    let patch = Patch::new().and(ZplAttr::Atime, AttrOp::Time(time));
                    self.patch(&tx, &node, &patch)?;
                }
            }
        }
        Ok(())
    }

    /// Waits until the changes of an object are on disk, or in the intent log; returns at
    /// once if they are.
    ///
    /// # Errors
    /// That of a suspension.
    pub fn fsync(&self, id: ObjectId) -> Result<()> {
        self.fsync_for(id, 0)
    }

    /// As [`FileSystem::fsync`]; `thread` is the id of the thread that makes the call, 0 if
    /// unknown, for the intent log's statistics.
    ///
    /// # Errors
    /// As [`FileSystem::fsync`].
    pub fn fsync_for(&self, id: ObjectId, thread: u32) -> Result<()> {
        let Some(rw) = self.rw_part() else { return Ok(()) };
        let Some(txg) = rw.touched.of(id) else { return Ok(()) };
        if let Some(log) = &rw.log {
            return log.commit(self, Some(id), thread);
        }
        rw.host.synced(txg)?;
        rw.touched.synced(id, txg);
        Ok(())
    }

    /// Waits until all changes are on disk, times of access included.
    ///
    /// # Errors
    /// That of a suspension.
    pub fn sync_all(&self) -> Result<()> {
        let Some(rw) = self.rw_part() else { return Ok(()) };
        // Without space for times of access everything else is still synced.
        let times = self.store_times(&rw.times.ids());
        if let Some(txg) = rw.touched.newest() {
            rw.host.synced(txg)?;
        }
        times
    }

    /// The values for `statfs`. Each object takes 512 bytes at least.
    ///
    /// # Errors
    /// Those of [`super::Host::space`].
    pub fn space(&self) -> Result<FsSpace> {
        let rw = self.rw_always()?;
        let space = rw.host.space(self.outage())?;
        Ok(FsSpace {
            total: space.used.saturating_add(space.available),
            available: space.available,
            objects: self.object_count(),
            free_objects: space.available / 512,
        })
    }
}
