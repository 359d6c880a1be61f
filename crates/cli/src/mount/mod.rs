//! File systems and volumes through FUSE.
//!
//! A dataset is one mount, served by [`zfs::ZfsMount`]; the volumes of all pools
//! are files of one more mount below the runtime directory ([`volumes`]), and the
//! kstats those of another ([`kstats`]).

mod flags;
mod gone;
pub(crate) mod kstats;
mod node;
mod ops;
mod pages;
pub(crate) mod volumes;
mod write;
mod xattrs;
mod zfs;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base::rt::Mutex;
use base::{Error, ErrorKind, Result};
use fuse::{Awake, Config, DevTransport, Session, Transport, UnmountOptions, UringTransport};
use rustix::process::geteuid;

use crate::daemon::{MountOptions, MountedFs, Mounter};
use crate::engine::{Dataset, Io};

/// The engine's word for a FUSE operation's mode.
fn io(mode: fuse::Mode) -> Io {
    match mode {
        fuse::Mode::NonBlocking => Io::MEMORY,
        fuse::Mode::Blocking => Io::WAIT,
    }
}

/// Mounts datasets through FUSE.
#[derive(Default)]
pub(crate) struct FuseMounter {
    /// Made by the first mount that wants it.
    awake: Mutex<Option<Arc<Awake>>>,
}

impl FuseMounter {
    /// What keeps cores awake, where that is wanted, or by default where it pays and we may.
    fn awake(&self, wanted: Option<bool>) -> Result<Option<Arc<Awake>>> {
        if !wanted.unwrap_or_else(Awake::pays) {
            return Ok(None);
        }
        let mut awake = self.awake.lock();
        if awake.is_none() {
            *awake = match wanted {
                Some(_) => Some(Arc::new(Awake::new()?)),
                None => Awake::by_default(),
            };
        }
        Ok(awake.clone())
    }
}

impl Mounter for FuseMounter {
    fn mount(
        &self,
        dataset: &Dataset,
        mountpoint: &Path,
        options: &MountOptions,
    ) -> Result<Box<dyn MountedFs>> {
        let fs = Arc::new(zfs::ZfsMount::new(dataset, options)?);
        let mount = mount_options(dataset.name(), options, fs.writable);
        fs.empty_delete_queue();
        let config = Config {
            posix_acl: options.posix_acl,
            max_readahead: READ_AHEAD,
            killpriv_v2: fs.writable,
            // The kernel truncates by itself once a file is open: only it knows whether the
            // file is a program that runs (`ETXTBSY`).
            atomic_o_trunc: false,
            // Below a default ACL no umask applies.
            dont_mask: fs.writable,
            awake: self.awake(options.keep_awake)?,
            // A caller that meets a suspended pool waits, whatever the call.
            on_request: cenote::be_patient,
            ..Config::default()
        };
        let transport: &dyn Transport = match options.io_uring {
            true => &UringTransport::default(),
            false => &DevTransport,
        };
        let session =
            Session::mount_by(Arc::clone(&fs) as _, mountpoint, &mount, &config, transport)?;
        fs.attach(session.notifier());
        let now = Mutex::new(options.clone());
        Ok(Box::new(FuseMount { session, fs, name: dataset.name().to_owned(), now }))
    }
}

/// What the kernel reads ahead of a sequential reader, bytes: enough requests at
/// once to keep the device's queue filled.
const READ_AHEAD: u32 = 4 << 20;

/// A mount of files that nobody changes.
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

/// For all users if the daemon is root's.
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

/// How long the kernel may take to let go of what was unmounted.
const LETS_GO: Duration = Duration::from_secs(10);
/// The same, before it is made to.
const LETS_GO_UNFORCED: Duration = Duration::from_millis(500);

/// A mount that a session serves.
struct FuseMount {
    session: Session,
    fs: Arc<zfs::ZfsMount>,
    name: String,
    /// The options that hold.
    now: Mutex<MountOptions>,
}

impl FuseMount {
    /// It was unmounted here. One that shows elsewhere, too, stays in the table: the kernel
    /// would not see in one mount what is changed through another.
    fn settle(&self, force: bool) -> Result<()> {
        let patience = if force { LETS_GO_UNFORCED } else { LETS_GO };
        let mut ends = self.session.ends_within(patience);
        if force && !ends {
            self.session.cut();
            ends = self.session.ends_within(LETS_GO);
        }
        if !ends {
            let text = "its directory is free, but it still shows elsewhere (bound to another \
                        directory, or in another mount namespace); -f ends it there";
            return Err(Error::invalid(text));
        }
        self.session.join();
        Ok(())
    }
}

impl MountedFs for FuseMount {
    fn unmount(&self, force: bool) -> Result<()> {
        let root = geteuid().is_root();
        match self.session.unmount(UnmountOptions::default()) {
            Ok(()) => self.settle(force),
            Err(e) if force && e.kind() == ErrorKind::NotFound => self.settle(true),
            Err(e) if force && e.kind() == ErrorKind::Busy => {
                self.session.unmount(UnmountOptions { lazy: true, force: root })?;
                // Aborting, which only root may, ends the session at once; else it
                // ends when its last user is gone, or what its pool waits for is there.
                if root && !self.fs.is_suspended() {
                    self.session.join();
                }
                Ok(())
            }
            Err(e) => Err(e),
        }
    }

    fn cut(&self) {
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
        let flags = |o: &MountOptions| (o.read_only, o.noatime, o.nosuid, o.nodev, o.noexec);
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
}
