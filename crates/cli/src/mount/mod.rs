//! File systems and volumes through FUSE.
//!
//! A dataset is one mount, served by [`zfs::ZfsMount`]; the volumes of all pools
//! are files of one more mount below the runtime directory ([`volumes`]), and the
//! kstats those of another ([`kstats`]).

pub(crate) mod kstats;
mod node;
pub(crate) mod volumes;
mod zfs;

use std::path::Path;
use std::sync::Arc;

use base::{ErrorKind, Result};
use fuse::{Config, Session, UnmountOptions};
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
pub(crate) struct FuseMounter;

impl Mounter for FuseMounter {
    fn mount(
        &self,
        dataset: &Dataset,
        mountpoint: &Path,
        options: &MountOptions,
    ) -> Result<Box<dyn MountedFs>> {
        let fs = zfs::ZfsMount::new(dataset, options)?;
        let mount = fuse::MountOptions {
            fsname: dataset.name().to_owned(),
            nosuid: options.nosuid,
            nodev: options.nodev,
            noexec: options.noexec,
            ..mount_options()
        };
        let config =
            Config { posix_acl: options.posix_acl, max_readahead: READ_AHEAD, ..Config::default() };
        let session = Session::mount(Arc::new(fs), mountpoint, &mount, &config)?;
        Ok(Box::new(FuseMount(session)))
    }
}

/// What the kernel reads ahead of a sequential reader, bytes: enough requests at
/// once to keep the device's queue filled.
const READ_AHEAD: u32 = 4 << 20;

/// Read-only; for all users if the daemon is root's.
fn mount_options() -> fuse::MountOptions {
    fuse::MountOptions {
        read_only: true,
        noatime: true,
        allow_other: geteuid().is_root(),
        default_permissions: true,
        ..fuse::MountOptions::default()
    }
}

/// A mount that a session serves.
struct FuseMount(Session);

impl MountedFs for FuseMount {
    fn unmount(&self, force: bool) -> Result<()> {
        let root = geteuid().is_root();
        match self.0.unmount(UnmountOptions::default()) {
            Ok(()) => {
                self.0.join();
                Ok(())
            }
            Err(e) if force && e.kind() == ErrorKind::Busy => {
                self.0.unmount(UnmountOptions { lazy: true, force: root })?;
                // Aborting, which only root may, ends the session at once; else it
                // ends when its last user is gone.
                if root {
                    self.0.join();
                }
                Ok(())
            }
            Err(e) => Err(e),
        }
    }

    fn is_alive(&self) -> bool {
        self.0.is_running()
    }
}
