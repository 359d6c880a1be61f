//! The table of mounts and the kernel's: mounted, held and ended file systems.
//!
//! # Theory
//! As in [`super::super::mounts`]. Mounts are made and undone under the lock of their pool. The
//! table is read at any time, and agrees with the kernel's table of mounts.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::rt;
use base::{Error, ErrorKind, Result};
use cenote::Pool;
use mount::{MountOptions, MountedFs, UnmountOutcome};

use super::{DaemonState, Listener};
use crate::mounts::{self, MountTable, UnmountReason};

impl DaemonState {
    /// The table of mounts, updated from the kernel's.
    pub(super) fn mounts_now(&self) -> rt::MutexGuard<'_, MountTable> {
        {
            let mut table = self.mounts.lock();
            // Read under the lock: every mount of the table was made before.
            let present = fuse::fuse_mounts().ok();
            let present = present.map(|all| all.into_iter().map(|m| m.device).collect());
            table.forget_dead(present.as_ref());
        }
        // A file system that was held until its holders ended may have ended by now.
        let held = self.mounts.lock().held(|_| true);
        for (name, at, fs) in held {
            if fs.settle() {
                self.settled(&name, &at, false);
            }
        }
        self.mounts.lock()
    }

    /// Removes a held file system that has ended, and its directory.
    fn settled(&self, name: &str, at: &Path, for_good: bool) {
        self.mounts.lock().settled(name);
        self.mount_dirs.leave(at, |dir| for_good || !self.mounts.lock().is_inside(dir));
    }

    /// File systems of datasets that `wanted` accepts: mounted or held.
    pub(crate) fn served(&self, wanted: impl Fn(&str) -> bool) -> Vec<mounts::Mount> {
        let table = self.mounts.lock();
        let mut all = table.held(&wanted);
        all.extend(table.deepest_first(wanted));
        all
    }

    /// Mounts the held file system of a dataset again, if there is one. Two file systems of one
    /// dataset would not see each other's changes.
    pub(super) fn put_back(
        &self,
        name: &str,
        at: &Path,
        options: &MountOptions,
    ) -> Result<Option<Arc<dyn MountedFs>>> {
        let held = self.mounts.lock().held(|n| n == name).pop();
        let Some((_, _, fs)) = held.filter(|(_, _, fs)| !fs.settle()) else { return Ok(None) };
        if fs.put_back(at, options)? {
            return Ok(Some(fs));
        }
        if fs.holders().is_empty() && mounts::ends_within(&*fs, mounts::HOLDERS_TIMEOUT) {
            return Ok(None);
        }
        let where_ = fs.holders().into_iter().next();
        let where_ = where_.unwrap_or_else(|| mounts::UNKNOWN_HOLDER.to_owned());
        Err(Error::busy(format!(
            "it is still held {where_}; 'zfs unmount -f {name}' ends it there"
        )))
    }

    /// Datasets of a pool have other names: `new_name` gives that of each, or `None` if it
    /// stays. What is still mounted stays where it is.
    pub(crate) fn renamed(&self, pool: &Pool, new_name: impl Fn(&str) -> Option<String>) {
        for (name, _, fs) in self.served(|n| new_name(n).is_some()) {
            if let Some(dataset) = new_name(&name).and_then(|n| pool.dataset(&n).ok()) {
                fs.renamed(&dataset);
            }
        }
        self.mounts.lock().renamed(new_name);
    }

    /// Unmounts the datasets that `wanted` accepts, children first, and removes directories
    /// that were made for them. False if a mount stayed.
    pub(crate) fn unmount_where(
        &self,
        wanted: impl Fn(&str) -> bool,
        why: UnmountReason,
        force: bool,
        to: &mut dyn Listener,
    ) -> bool {
        let list = self.mounts_now().deepest_first(&wanted);
        let begin = rt::now();
        let mut stayed: Vec<PathBuf> = Vec::new();
        for (name, at, fs) in list {
            // The parents of a mount that stayed stay too; one message is enough.
            if stayed.iter().any(|below| below.starts_with(&at)) {
                continue;
            }
            match mounts::unmount_within(&*fs, force, begin) {
                Ok(left) => self.unmounted(&name, &at, left, why),
                Err(_) if !fs.is_alive() => self.unmounted(&name, &at, UnmountOutcome::Ended, why),
                Err(e) => {
                    stayed.push(at.clone());
                    let why = match e.kind() {
                        ErrorKind::Busy => "pool or dataset is busy".to_owned(),
                        _ => e.to_string(),
                    };
                    to.problem(format!("cannot unmount '{}': {why}", at.display()));
                }
            }
        }
        self.save_mounts();
        let ended = !force && !why.takes_away() || self.end_held(wanted, why, force, to);
        ended && stayed.is_empty()
    }

    /// Records in the table that a mount was undone, and removes its directory. The directory
    /// of a held file system stays, because removing it makes the kernel undo mounts on it in
    /// other namespaces.
    fn unmounted(&self, name: &str, at: &Path, left: UnmountOutcome, why: UnmountReason) {
        self.mounts.lock().unmounted(name, left);
        if left == UnmountOutcome::Held {
            return;
        }
        self.mount_dirs.leave(at, |dir| why.is_for_good() || !self.mounts.lock().is_inside(dir));
    }

    /// Ends held file systems of the datasets that `wanted` accepts; without `force` it waits a
    /// moment for their processes. False if one is still held.
    fn end_held(
        &self,
        wanted: impl Fn(&str) -> bool,
        why: UnmountReason,
        force: bool,
        to: &mut dyn Listener,
    ) -> bool {
        let begin = rt::now();
        let mut all = true;
        let held = self.mounts.lock().held(wanted);
        for (name, at, fs) in held {
            let ended = loop {
                if fs.settle() || force && fs.unmount(true).is_ok() {
                    break true;
                }
                // No holder can be found: the kernel needs some time.
                let timeout = if fs.holders().is_empty() {
                    mounts::END_TIMEOUT
                } else {
                    mounts::HOLDERS_TIMEOUT
                };
                if begin.elapsed() > timeout || to.is_gone() {
                    break false;
                }
                rt::sleep(mounts::END_POLL);
            };
            if ended {
                self.settled(&name, &at, why.is_for_good());
                continue;
            }
            all = false;
            let mut holders = fs.holders();
            if holders.is_empty() {
                holders.push(mounts::UNKNOWN_HOLDER.to_owned());
            }
            for holder in holders {
                to.problem(format!("'{name}' is held {holder}; -f ends it there"));
            }
        }
        all
    }
}
