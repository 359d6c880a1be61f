//! The table of mounts beside the kernel's: what is mounted, held, and gone.
//!
//! # Theory
//! As in [`super::super::mounts`]. Mounts are made and undone in the turn of their pool; the
//! table is asked at any time, and says what the kernel's table of mounts says.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::rt;
use base::{Error, ErrorKind, Result};

use mount::{MountOptions, MountedFs, UnmountOutcome};

use super::{DaemonState, Listener};
use crate::mounts::{self, MountTable, UnmountReason};

impl DaemonState {
    /// The table of mounts, as the kernel has it now.
    pub(super) fn mounts_now(&self) -> rt::MutexGuard<'_, MountTable> {
        {
            let mut table = self.mounts.lock();
            // Read under the lock: what is in the table was mounted before.
            let present = fuse::fuse_mounts().ok();
            let present = present.map(|all| all.into_iter().map(|m| m.device).collect());
            table.forget_dead(present.as_ref());
        }
        // What was held until its holders ended may be settled.
        let held = self.mounts.lock().held(|_| true);
        for (name, at, fs) in held {
            if fs.settle() {
                self.settled(&name, &at, false);
            }
        }
        self.mounts.lock()
    }

    /// What was held is no more: its directory goes.
    fn settled(&self, name: &str, at: &Path, for_good: bool) {
        self.mounts.lock().settled(name);
        self.mount_dirs.leave(at, |dir| for_good || !self.mounts.lock().is_inside(dir));
    }

    /// File systems of datasets that `wanted` accepts: mounted, or held.
    pub(crate) fn served(&self, wanted: impl Fn(&str) -> bool) -> Vec<mounts::Mount> {
        let table = self.mounts.lock();
        let mut all = table.held(&wanted);
        all.extend(table.deepest_first(wanted));
        all
    }

    /// Mounts the file system of a dataset again that is held elsewhere, if there is one. Two
    /// would not see each other's changes.
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
        if fs.holders().is_empty() && mounts::ends_within(&*fs, mounts::HELD) {
            return Ok(None);
        }
        let where_ = fs.holders().into_iter().next();
        let where_ = where_.unwrap_or_else(|| mounts::UNSEEN.to_owned());
        Err(Error::busy(format!(
            "it is still held {where_}; 'zfs unmount -f {name}' ends it there"
        )))
    }

    /// Unmounts what `wanted` accepts, children first; false if something stayed. Directories
    /// that were made for it go, too.
    pub(crate) fn unmount_where(
        &self,
        wanted: impl Fn(&str) -> bool,
        why: UnmountReason,
        force: bool,
        to: &mut dyn Listener,
    ) -> bool {
        let list = self.mounts_now().deepest_first(&wanted);
        let mut stayed: Vec<PathBuf> = Vec::new();
        for (name, at, fs) in list {
            // What holds a mount that stayed stays too: once told is enough.
            if stayed.iter().any(|below| below.starts_with(&at)) {
                continue;
            }
            match fs.unmount(force) {
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

    /// A mount is undone: so it says in the table, and its directory goes; not while it is
    /// held, for the kernel undoes mounts of other namespaces on a directory that goes.
    fn unmounted(&self, name: &str, at: &Path, left: UnmountOutcome, why: UnmountReason) {
        self.mounts.lock().unmounted(name, left);
        if left == UnmountOutcome::Held {
            return;
        }
        self.mount_dirs.leave(at, |dir| why.is_for_good() || !self.mounts.lock().is_inside(dir));
    }

    /// Ends what other namespaces hold of the datasets that `wanted` accepts: without `force`
    /// by waiting a moment for their processes. False if something stayed.
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
                // Nobody to be seen: it takes as long as the kernel takes.
                let patience = if fs.holders().is_empty() { mounts::ENDS } else { mounts::HELD };
                if begin.elapsed() > patience || to.is_gone() {
                    break false;
                }
                rt::sleep(mounts::LOOK);
            };
            if ended {
                self.settled(&name, &at, why.is_for_good());
                continue;
            }
            all = false;
            let mut holders = fs.holders();
            if holders.is_empty() {
                holders.push(mounts::UNSEEN.to_owned());
            }
            for holder in holders {
                to.problem(format!("'{name}' is held {holder}; -f ends it there"));
            }
        }
        all
    }
}
