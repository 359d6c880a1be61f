//! File systems and volumes through FUSE.
//!
//! A dataset is one mount, served by `zfs::ZfsMount`; an ordinary user's nested datasets are
//! one mount together (`tree`, `member`). The volumes of all pools are files of one more mount
//! below the runtime directory ([`volumes`]), and the kstats those of another ([`kstats`]).
//!
//! A command reaches its file system by an ioctl of an open file where the right to write the
//! file shall decide ([`rewrite`]).
//!
//! The owner of mounts (the daemon, a bench) makes them through [`FuseMounter`] and uses each as a
//! [`MountedFs`].
//!
//! # What it must not know
//! The protocol, the daemon, its table of mounts and the properties that determine a dataset's
//! mountpoint: the options of a mount come as [`MountOptions`].

mod flags;
pub mod kstats;
mod member;
mod mounted;
mod node;
mod ops;
mod pages;
pub mod projects;
mod removed_dirs;
pub mod rewrite;
mod snapdir;
mod tree;
mod tree_ops;
pub mod volumes;
mod write;
mod xattrs;
mod zfs;

use std::collections::HashSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use base::rt::Mutex;
use base::{Error, ErrorKind, Result};
use cenote::{Dataset, Io, OutagePolicy};
use fuse::{
    Config, CpuLatencyQos, DevTransport, Filesystem, Kept, Session, Transport, UnmountOptions,
    UringTransport,
};
use rustix::process::geteuid;

pub use mounted::{MountOptions, MountedFs, UnmountOutcome};

/// What requests do when devices are absent: every call on a suspended pool waits, if its
/// `failmode` says so.
const OUTAGE: OutagePolicy = OutagePolicy::WaitPerFailmode;
/// The read of a request that may wait.
const WAIT: Io = Io::WAIT.with_outage(OUTAGE);

/// The engine's I/O mode for a FUSE operation's mode.
fn io(mode: fuse::BlockingMode) -> Io {
    match mode {
        fuse::BlockingMode::NonBlocking => Io::MEMORY,
        fuse::BlockingMode::Blocking => WAIT,
    }
}

/// Mounts datasets through FUSE.
#[derive(Default)]
pub struct FuseMounter {
    /// Made by the first mount with `keepawake`.
    latency_qos: Mutex<Option<Arc<CpuLatencyQos>>>,
    /// Mounts that datasets can become members of.
    trees: Mutex<Vec<Weak<FuseMount>>>,
}

impl FuseMounter {
    /// The mount that contains a directory, if it is one of ours.
    fn mount_containing(&self, at: &Path) -> Option<Arc<FuseMount>> {
        let mut trees = self.trees.lock();
        trees.retain(|tree| tree.strong_count() > 0);
        let alive: Vec<_> = trees.iter().filter_map(Weak::upgrade).collect();
        drop(trees);
        alive.into_iter().find(|tree| tree.contains(at))
    }

    /// The latency limit that all mounts with `keepawake` share.
    fn latency_qos(&self) -> Result<Arc<CpuLatencyQos>> {
        let mut shared = self.latency_qos.lock();
        match &*shared {
            Some(qos) => Ok(Arc::clone(qos)),
            None => Ok(Arc::clone(shared.insert(Arc::new(CpuLatencyQos::new()?)))),
        }
    }

    /// Mounts a file system at a directory that exists.
    ///
    /// # Errors
    /// The file system cannot be opened, or the kernel refuses the mount.
    pub fn mount(
        &self,
        dataset: &Dataset,
        mountpoint: &Path,
        options: &MountOptions,
    ) -> Result<Arc<dyn MountedFs>> {
        // An ordinary user's `fusermount3` cannot enter a mount of ours.
        let nests = !geteuid().is_root();
        let real = std::fs::canonicalize(mountpoint).unwrap_or_else(|_| mountpoint.to_owned());
        if nests && let Some(host) = self.mount_containing(&real) {
            return Ok(Arc::new(member::MemberMount::new(host, dataset, &real, options)?));
        }
        let fs = Arc::new(zfs::ZfsMount::new(dataset, options)?);
        let mut mount = mount_options(dataset.name(), options, fs.writable);
        if nests {
            // Each member has its own `readonly`.
            mount.read_only = !fs.writable;
        }
        fs.empty_delete_queue();
        let config = Config {
            posix_acl: options.posix_acl,
            max_readahead: READ_AHEAD,
            killpriv_v2: fs.writable,
            // The kernel truncates by itself once a file is open: only the kernel knows whether
            // the file is a running program (`ETXTBSY`).
            atomic_o_trunc: false,
            // The umask does not apply below a default ACL.
            dont_mask: fs.writable,
            latency_qos: options.keep_awake.then(|| self.latency_qos()).transpose()?,
            ..Config::default()
        };
        let transport: &dyn Transport = match options.io_uring {
            true => &UringTransport::default(),
            false => &DevTransport,
        };
        let tree =
            nests.then(|| Arc::new(tree::MountTree::new(Arc::clone(&fs), options.posix_acl)));
        let served: Arc<dyn Filesystem> = match &tree {
            Some(tree) => Arc::clone(tree) as _,
            None => Arc::clone(&fs) as _,
        };
        let session = Session::mount_by(served, mountpoint, &mount, &config, transport)?;
        match &tree {
            Some(tree) => tree.attach(session.notifier()),
            None => fs.attach(session.notifier()),
        }
        let (name, kept) = (dataset.name().to_owned(), Mutex::default());
        let now = Mutex::new(options.clone());
        let made = Arc::new(FuseMount { session, fs, tree, name, now, kept });
        if nests {
            self.trees.lock().push(Arc::downgrade(&made));
        }
        Ok(made)
    }
}

/// The kernel's read-ahead for a sequential reader, bytes: enough concurrent requests to keep
/// the device's queue filled.
const READ_AHEAD: u32 = 4 << 20;

/// Options of a mount whose files are read-only.
fn shown_options(name: &str) -> fuse::MountOptions {
    fuse::MountOptions {
        fsname: name.to_owned(),
        read_only: true,
        noatime: true,
        allow_other: geteuid().is_root(),
        default_permissions: true,
        ..fuse::MountOptions::default()
    }
}

/// Options of a dataset's mount; all users may access it if the daemon is root's.
fn mount_options(name: &str, options: &MountOptions, writable: bool) -> fuse::MountOptions {
    fuse::MountOptions {
        fsname: name.to_owned(),
        read_only: options.read_only || !writable,
        noatime: options.noatime || !writable,
        nosuid: options.nosuid,
        nodev: options.nodev,
        noexec: options.noexec,
        allow_other: geteuid().is_root(),
        default_permissions: true,
        ..fuse::MountOptions::default()
    }
}

/// How long the kernel may take to release an unmounted file system.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(10);
/// The same before it is ended by force, or if holders may exist that cannot be found.
const SHORT_RELEASE_TIMEOUT: Duration = Duration::from_millis(500);

/// A mount that a session serves.
struct FuseMount {
    session: Session,
    fs: Arc<zfs::ZfsMount>,
    /// With the other datasets of the mount, of which `fs` is the topmost.
    tree: Option<Arc<tree::MountTree>>,
    name: String,
    /// The options in effect.
    now: Mutex<MountOptions>,
    /// What is needed to mount a held file system again.
    kept: Mutex<Option<Kept>>,
}

/// The pool of a dataset, by its name.
fn pool_of(name: &str) -> &str {
    name.split('/').next().unwrap_or(name)
}

impl FuseMount {
    /// Whether an existing directory is inside this mount.
    fn contains(&self, at: &Path) -> bool {
        let device = |path: &Path| std::fs::symlink_metadata(path).ok().map(|m| m.dev());
        let inside = |own: &PathBuf| at.starts_with(own) && at != own;
        self.is_alive()
            && self.session.mount_point().filter(inside).is_some_and(|own| {
                // It must not be below another mount that covers this one or a part of it.
                device(&own).is_some() && device(&own) == device(at)
            })
    }

    /// Where it is visible besides its own mountpoint, a line for each process.
    fn shown(&self) -> Vec<String> {
        let bound = self.session.elsewhere().into_iter().map(|at| format!("at {}", at.display()));
        let held = self.session.holders().into_iter().map(|h| {
            let at = h.path.display();
            format!("by process {} ({}) in another mount namespace, at {at}", h.pid, h.command)
        });
        bound.chain(held).collect()
    }

    /// The outcome after it was unmounted here.
    fn left(&self, kept: Option<Kept>) -> UnmountOutcome {
        if !self.shown().is_empty() {
            *self.kept.lock() = kept;
            return UnmountOutcome::Held;
        }
        drop(kept);
        // Root can find every holder.
        let timeout = if geteuid().is_root() { RELEASE_TIMEOUT } else { SHORT_RELEASE_TIMEOUT };
        if !self.session.ends_within(timeout) {
            return UnmountOutcome::Held;
        }
        self.session.join();
        UnmountOutcome::Ended
    }

    /// Ends it in every namespace.
    fn end(&self) -> Result<UnmountOutcome> {
        *self.kept.lock() = None;
        if !self.session.ends_within(SHORT_RELEASE_TIMEOUT) {
            self.session.cut();
            if !self.session.ends_within(RELEASE_TIMEOUT) {
                let text = "its directory is free, but the kernel still holds on to it";
                return Err(Error::invalid(text));
            }
        }
        self.session.join();
        Ok(UnmountOutcome::Ended)
    }
}

impl MountedFs for FuseMount {
    fn unmount(&self, force: bool) -> Result<UnmountOutcome> {
        let root = geteuid().is_root();
        if !force && self.tree.as_ref().is_some_and(|tree| tree.has_members()) {
            return Err(Error::busy("other datasets are mounted in it"));
        }
        let kept = if force { None } else { self.session.keep() };
        match self.session.unmount(UnmountOptions::default()) {
            Ok(()) if force => self.end(),
            Ok(()) => Ok(self.left(kept)),
            Err(e) if force && e.kind() == ErrorKind::NotFound => self.end(),
            Err(e) if force && e.kind() == ErrorKind::Busy => {
                self.session.unmount(UnmountOptions { lazy: true, force: root })?;
                // Only root may abort the connection, which ends the session at once. Without
                // that it ends when its last user does, or when its pool has what it waits for.
                if root && !self.fs.is_suspended() {
                    self.session.join();
                }
                Ok(UnmountOutcome::Ended)
            }
            Err(e) => Err(e),
        }
    }

    fn is_present(&self, present: &HashSet<String>) -> bool {
        self.session.device().is_none_or(|device| present.contains(device))
    }

    fn settle(&self) -> bool {
        if self.session.is_running() && self.shown().is_empty() {
            *self.kept.lock() = None;
        }
        let ended = !self.session.is_running();
        if ended {
            self.session.join();
        }
        ended
    }

    fn holders(&self) -> Vec<String> {
        self.shown()
    }

    fn put_back(&self, at: &Path, options: &MountOptions) -> Result<bool> {
        let fits = self.now.lock().posix_acl == options.posix_acl;
        let Some(kept) = self.kept.lock().take().filter(|_| fits && self.session.is_running())
        else {
            return Ok(false);
        };
        self.session.put_back(&kept, at)?;
        self.remount(options)
    }

    fn is_own_mount(&self) -> bool {
        true
    }

    fn abort(&self) {
        self.session.cut();
    }

    fn is_alive(&self) -> bool {
        self.session.is_running()
    }

    fn remount(&self, options: &MountOptions) -> Result<bool> {
        let mut now = self.now.lock();
        if now.posix_acl != options.posix_acl {
            return Ok(false);
        }
        let flags = |o: &MountOptions| match self.tree {
            // The kernel does not handle the other options.
            Some(_) => (false, false, false, false, o.noexec),
            None => (o.read_only, o.noatime, o.nosuid, o.nodev, o.noexec),
        };
        if flags(&now) != flags(options) {
            if !geteuid().is_root() {
                return Ok(false);
            }
            self.session.remount(&mount_options(&self.name, options, self.fs.writable))?;
        }
        self.fs.follow(options);
        *now = options.clone();
        Ok(true)
    }

    fn snapshots_changed(&self, names: &[&str]) {
        self.fs.snapshots_changed(names);
    }

    fn renamed(&self, dataset: &Dataset) {
        self.fs.renamed(dataset);
    }
}
