//! Parameters and results of the writing half.

use std::sync::Arc;

use base::{Error, ErrorKind, ObjectId, Result, Txg};
use dmu::{OutagePolicy, Tx};
use ondisk::znode::{FileType, Time};

use crate::attrs::Device;

/// Largest size of a file: 8 EiB less one byte (chapter 06 §8).
pub const FILE_SIZE_MAX: u64 = i64::MAX as u64;

/// The interface to the pool below a file system.
pub trait Host: Send + Sync {
    /// Begins a transaction that makes at most `bytes` of blocks dirty. `frees`: it frees
    /// space, and may use the part reserved for that. Waits at the write throttle. `outage`
    /// is the policy of the transaction's reads for absent devices, and of those of the
    /// dataset's state.
    ///
    /// # Errors
    /// `NoSpace`, `Quota`, `ReadOnly`, that of a suspension.
    fn begin(&self, bytes: u64, frees: bool, outage: OutagePolicy) -> Result<Tx>;

    /// Begins a transaction that makes at most `bytes` of blocks dirty, and clones `shared`
    /// bytes of blocks besides.
    ///
    /// # Errors
    /// As [`Host::begin`]; `Unsupported` if blocks cannot be cloned.
    fn begin_clone(&self, _bytes: u64, _shared: u64, _outage: OutagePolicy) -> Result<Tx> {
        Err(Error::unsupported("blocks cannot be cloned here"))
    }

    /// The last txg on disk; blocks of later ones are not cloned.
    fn synced_txg(&self) -> Txg {
        Txg::ZERO
    }

    /// Waits until all changes of the pool so far are on disk.
    ///
    /// # Errors
    /// That of a suspension.
    fn settle(&self) -> Result<()> {
        Ok(())
    }

    /// Requests that `txg` be written soon, and waits until it is on disk.
    ///
    /// # Errors
    /// That of a suspension.
    fn synced(&self, txg: Txg) -> Result<()>;

    /// The intent log, if there is one; otherwise an fsync waits for the txg.
    fn log(&self) -> Option<Arc<zil::Log>> {
        None
    }

    /// The wall clock.
    fn now(&self) -> Time;

    /// The current properties; the next call sees a change.
    fn props(&self) -> Arc<RwProps>;

    /// Space for `statfs`: what the file system uses, and what it may still use, which is
    /// the least that pool, quota and refquota allow. `outage` is the policy of the reads.
    ///
    /// # Errors
    /// Those of reading the dataset's state.
    fn space(&self, outage: OutagePolicy) -> Result<HostSpace>;

    /// The txg of the newest snapshot, or of a clone's origin if there is none: blocks born
    /// until then are shared with it. Zero if nothing is shared.
    ///
    /// # Errors
    /// Those of reading the dataset's state.
    fn newest_snapshot(&self) -> Result<Txg> {
        Ok(Txg::ZERO)
    }

    /// Checks that blocks may keep their logical birth when they move.
    ///
    /// # Errors
    /// `Unsupported` unless the pool's feature physical_rewrite is enabled; those of reading
    /// the pool's state.
    fn check_physical_rewrite(&self) -> Result<()> {
        Err(Error::unsupported("the pool has no feature physical_rewrite"))
    }
}

/// The result of [`Host::space`], in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostSpace {
    /// Referenced by the dataset.
    pub used: u64,
    /// May still be written.
    pub available: u64,
}

/// Properties `atime` and `relatime`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Atime {
    /// Times of access are not kept.
    Off,
    /// Every access counts.
    On,
    /// The first access after a change, and one a day.
    #[default]
    Relatime,
}

/// Property `xattr`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XattrForm {
    /// There are none.
    Off,
    /// In hidden directories.
    Dir,
    /// With the system attributes, as far as they fit.
    #[default]
    Sa,
}

/// The properties of a dataset that affect how it is changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RwProps {
    /// `recordsize`, bytes, a power of two that the pool's features allow.
    pub record_size: u32,
    /// `atime`, `relatime`.
    pub atime: Atime,
    /// `xattr`.
    pub xattr: XattrForm,
    /// `acltype=posix`.
    pub posix_acl: bool,
    /// 512-byte slots of new dnodes (`dnodesize`), 1 to 32.
    pub dnode_slots: u8,
    /// `readonly`.
    pub read_only: bool,
}

impl Default for RwProps {
    /// Those of a new dataset.
    fn default() -> Self {
        RwProps {
            record_size: 128 << 10,
            atime: Atime::Relatime,
            xattr: XattrForm::Sa,
            posix_acl: false,
            dnode_slots: 1,
            read_only: false,
        }
    }
}

/// Groups of a caller besides its main one.
#[derive(Clone)]
pub enum Groups {
    /// These.
    Known(Vec<u32>),
    /// To be looked up only if necessary, because that takes time.
    Lookup(Arc<dyn Fn() -> Vec<u32> + Send + Sync>),
}

impl Default for Groups {
    fn default() -> Self {
        Groups::Known(Vec::new())
    }
}

impl std::fmt::Debug for Groups {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Groups::Known(list) => write!(f, "{list:?}"),
            Groups::Lookup(_) => f.write_str("not looked up"),
        }
    }
}

/// The user that makes a call. The layer above checks permissions (`default_permissions`).
#[derive(Clone, Debug, Default)]
pub struct Caller {
    /// User.
    pub uid: u32,
    /// Main group.
    pub gid: u32,
    /// Other groups.
    pub groups: Groups,
    /// Permissions that new files lack; not applied below a default ACL.
    pub umask: u32,
    /// Has root's capabilities: keeps set-id bits, is not bound by quotas.
    pub privileged: bool,
    /// The thread that makes the call, 0 if unknown; for the intent log's statistics.
    pub thread: u32,
}

impl Caller {
    /// Root, without a umask.
    pub fn root() -> Caller {
        Caller { privileged: true, ..Caller::default() }
    }

    /// Whether it belongs to a group.
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid
            || match &self.groups {
                Groups::Known(list) => list.contains(&gid),
                Groups::Lookup(ask) => ask().contains(&gid),
            }
    }
}

/// Parameters of a new file.
#[derive(Clone, Copy, Debug)]
pub struct New<'a> {
    /// What kind.
    pub kind: FileType,
    /// Permissions, set-id and sticky bits; type bits are ignored.
    pub mode: u32,
    /// Number of a character or block device.
    pub device: Device,
    /// Target of a symbolic link.
    pub target: &'a [u8],
}

impl New<'_> {
    /// A regular file.
    pub fn file(mode: u32) -> New<'static> {
        New { kind: FileType::Regular, mode, device: Device::default(), target: b"" }
    }

    /// A directory.
    pub fn dir(mode: u32) -> New<'static> {
        New { kind: FileType::Dir, ..New::file(mode) }
    }

    /// A symbolic link.
    pub fn symlink(target: &[u8]) -> New<'_> {
        New { kind: FileType::Symlink, target, ..New::file(0o777) }
    }
}

/// The position of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WritePosition {
    /// To this byte.
    Offset(u64),
    /// To the end of the file, wherever it is by then (`O_APPEND`).
    End,
}

/// The result of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteSummary {
    /// Offset of the first byte.
    pub offset: u64,
    /// Bytes written; fewer than requested if space ran out in between.
    pub bytes: u64,
    /// Size of the file afterwards.
    pub size: u64,
}

/// Which blocks [`crate::FileSystem::rewrite`] writes again, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rewrite {
    /// The blocks keep their logical birth (feature physical_rewrite): a comparison of
    /// snapshots does not see them as changed.
    pub keep_birth: bool,
    /// Blocks that the newest snapshot, or a clone's origin, has as well are left.
    pub skip_snapshots: bool,
}

/// The result of [`crate::FileSystem::rewrite`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RewriteSummary {
    /// Where to go on, in bytes; `None` once the end of the range or file is reached.
    pub next: Option<u64>,
    /// Blocks that the open txg will write again.
    pub blocks: u64,
    /// Their bytes before compression.
    pub bytes: u64,
    /// Blocks that were left: shared with a snapshot, or embedded in their pointers.
    pub skipped: u64,
}

/// How a name is moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rename {
    /// An object with the new name is unlinked.
    #[default]
    Plain,
    /// Fails if the new name exists.
    NoReplace,
    /// Both names are exchanged.
    Exchange,
    /// A whiteout (character device 0:0) stays under the old name.
    Whiteout,
}

/// Changes of a file's allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Falloc {
    /// The range becomes a hole; the size stays.
    PunchHole,
    /// The range reads as zeros.
    ZeroRange {
        /// The file does not grow.
        keep_size: bool,
    },
}

/// A new time of access or modification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// This.
    Set(Time),
    /// The clock's.
    Now,
}

/// Attributes that are to change; `None` stay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttrs {
    /// Permissions, set-id and sticky bits; type bits are ignored.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size of a regular file: truncated, or extended by a hole.
    pub size: Option<u64>,
    /// Time of access.
    pub atime: Option<SetTime>,
    /// Time of modification.
    pub mtime: Option<SetTime>,
    /// Time of change; the clock's if something changes and it is `None`.
    pub ctime: Option<Time>,
    /// User-settable flags, all of them: [`SETTABLE_FLAGS`] of `ondisk::znode::ZFS_*`.
    pub flags: Option<u64>,
    /// Project.
    pub project: Option<u32>,
}

/// Flags that [`SetAttrs::flags`] sets and clears: immutable, append-only, no-dump, and
/// inheritance of the project, which Linux's `FS_IOC` calls support; and the DOS ones.
pub(crate) const SETTABLE_FLAGS: u64 = ondisk::znode::ZFS_IMMUTABLE
    | ondisk::znode::ZFS_APPENDONLY
    | ondisk::znode::ZFS_NODUMP
    | ondisk::znode::ZFS_PROJINHERIT
    | ondisk::znode::ZFS_NOUNLINK
    | ondisk::znode::ZFS_READONLY
    | ondisk::znode::ZFS_HIDDEN
    | ondisk::znode::ZFS_SYSTEM
    | ondisk::znode::ZFS_ARCHIVE
    | ondisk::znode::ZFS_OFFLINE
    | ondisk::znode::ZFS_SPARSE
    | ondisk::znode::ZFS_REPARSE;

/// Whether an extended attribute may, or must, exist before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SetHow {
    /// Either.
    #[default]
    Any,
    /// Must not (`XATTR_CREATE`).
    Create,
    /// Must (`XATTR_REPLACE`).
    Replace,
}

/// The values for `statfs`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FsSpace {
    /// Bytes used and available.
    pub total: u64,
    /// Bytes available.
    pub available: u64,
    /// Objects in use, and those that could still be created.
    pub objects: u64,
    /// Objects that could still be created.
    pub free_objects: u64,
}

pub(crate) fn exists() -> Error {
    Error::new(ErrorKind::Exists, "a file of this name exists")
}

pub(crate) fn denied(why: &str) -> Error {
    Error::new(ErrorKind::NotPermitted, why)
}

pub(crate) fn too_large(id: ObjectId) -> Error {
    Error::new(ErrorKind::TooLarge, "a file has at most 8 EiB less one byte").in_object(id)
}
