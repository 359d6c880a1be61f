//! The interface of a mount to its owner: options, and the trait of a mounted file system.

use std::collections::HashSet;
use std::path::Path;

use base::Result;
use cenote::Dataset;
use cenote::files::Atime;

/// Options of a mount.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountOptions {
    /// Nothing can be changed.
    pub read_only: bool,
    /// Access times do not change.
    pub noatime: bool,
    /// Ignore set-user-id bits.
    pub nosuid: bool,
    /// Ignore device files.
    pub nodev: bool,
    /// Nothing can be executed.
    pub noexec: bool,
    /// `.zfs` is listed in the root.
    pub snapdir_visible: bool,
    /// `.zfs` does not exist.
    pub snapdir_disabled: bool,
    /// POSIX ACLs apply.
    pub posix_acl: bool,
    /// The kernel does not cache file data; the ARC alone does.
    pub direct_io: bool,
    /// Requests come over io_uring if the kernel offers that; the mount then has threads and
    /// descriptors of its own for it.
    pub io_uring: bool,
    /// Idle cores poll instead of halting while requests are dense.
    pub keep_awake: bool,
    /// How access times are updated, if not as the properties say.
    pub atime: Option<Atime>,
    /// Access times of directories do not change.
    pub nodiratime: bool,
}

/// The state of a file system after an unmount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnmountOutcome {
    /// It is no longer served.
    Ended,
    /// It is still visible in another mount namespace and is served there.
    Held,
}

/// A mounted file system.
pub trait MountedFs: Send + Sync {
    /// Unmounts the file system, and waits until it is no longer served or is certain to be
    /// visible in another namespace. With `force` it ends even if it is in use, in every
    /// namespace.
    ///
    /// # Errors
    /// [`base::ErrorKind::Busy`] if it is in use.
    fn unmount(&self, force: bool) -> Result<UnmountOutcome>;
    /// Whether it is visible in this mount namespace; `present` are the device numbers of the
    /// file systems that are.
    fn is_present(&self, present: &HashSet<String>) -> bool;
    /// For a held file system: whether it has been released and is no longer served.
    fn settle(&self) -> bool;
    /// For a held file system: where it is visible, a line for each process.
    fn holders(&self) -> Vec<String>;
    /// Mounts a held file system again; false if that is impossible.
    ///
    /// # Errors
    /// The kernel's refusal.
    fn put_back(&self, at: &Path, options: &MountOptions) -> Result<bool>;
    /// Whether it is a kernel mount of its own, not a part of another one.
    fn is_own_mount(&self) -> bool;
    /// Ends it in every namespace, without waiting: operations on open files fail. Its pool was
    /// given up.
    fn abort(&self);
    /// Whether it is still mounted and served.
    fn is_alive(&self) -> bool;
    /// Applies options; false if only a new mount can do that.
    ///
    /// # Errors
    /// The kernel's refusal.
    fn remount(&self, options: &MountOptions) -> Result<bool>;
    /// Notifies it that snapshots with these names were made or destroyed.
    fn snapshots_changed(&self, names: &[&str]);
    /// Notifies it that its dataset has another name: this one. The kernel's table of mounts
    /// keeps the old one.
    fn renamed(&self, dataset: &Dataset);
}
