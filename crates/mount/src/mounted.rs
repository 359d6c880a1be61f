//! The side of a mount that its owner sees: options, and the traits of a mounted file
//! system and of the maker of mounts.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use base::Result;
use cenote::Dataset;
use cenote::files::Atime;

/// How a dataset is to be mounted.
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
    /// File data is cached by the ARC alone, not by the kernel.
    pub direct_io: bool,
    /// Requests come over io_uring where the kernel offers that; a mount has threads and
    /// descriptors for it of its own.
    pub io_uring: bool,
    /// Idle cores poll instead of halting while requests are dense.
    pub keep_awake: bool,
    /// How access times are kept, if not as the properties say.
    pub atime: Option<Atime>,
    /// Those of directories do not change.
    pub nodiratime: bool,
}

/// What is left of a file system that was unmounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnmountOutcome {
    /// Nothing: it is served no more.
    Ended,
    /// It shows elsewhere and is served there.
    Held,
}

/// A mounted file system.
pub trait MountedFs: Send + Sync {
    /// Unmounts, and waits until nothing is served any more, or it is sure to show
    /// elsewhere; with `force` it ends even if it is in use, wherever it shows.
    ///
    /// # Errors
    /// [`base::ErrorKind::Busy`] if it is in use.
    fn unmount(&self, force: bool) -> Result<UnmountOutcome>;
    /// Whether it shows in this mount namespace, `present` being the device numbers of what
    /// does.
    fn is_present(&self, present: &HashSet<String>) -> bool;
    /// Of one that is held: whether nobody holds it any more, and it is served no more.
    fn settle(&self) -> bool;
    /// Of one that is held: where it shows, a line for each process.
    fn holders(&self) -> Vec<String>;
    /// Mounts one that is held again; false if that cannot be.
    ///
    /// # Errors
    /// The kernel's refusal.
    fn put_back(&self, at: &Path, options: &MountOptions) -> Result<bool>;
    /// Whether it is a mount of the kernel's, and no part of another.
    fn is_own_mount(&self) -> bool;
    /// Ends it wherever it shows, without waiting: what is open there fails. Its pool was
    /// given up.
    fn abort(&self);
    /// Whether it is still mounted and served.
    fn is_alive(&self) -> bool;
    /// Makes these options hold; false if only a new mount can do that.
    ///
    /// # Errors
    /// The kernel's refusal.
    fn remount(&self, options: &MountOptions) -> Result<bool>;
    /// Snapshots of these names came or went.
    fn snapshots_changed(&self, names: &[&str]);
}

/// Makes mounts.
pub trait Mounter: Send + Sync {
    /// Mounts a file system at a directory that exists.
    ///
    /// # Errors
    /// The file system cannot be opened, or the kernel refuses the mount.
    fn mount(
        &self,
        dataset: &Dataset,
        mountpoint: &Path,
        options: &MountOptions,
    ) -> Result<Arc<dyn MountedFs>>;
}
