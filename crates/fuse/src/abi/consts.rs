//! Constants of `linux/fuse.h`.

/// Protocol major version; there has been no other since 2005.
pub(crate) const KERNEL_VERSION: u32 = 7;
/// Newest minor version spoken.
pub(crate) const MINOR_MAX: u32 = 45;
/// Oldest minor version accepted (Linux 5.4).
pub(crate) const MINOR_MIN: u32 = 31;
/// Smallest buffer the kernel accepts for reading requests.
pub(crate) const MIN_READ_BUFFER: usize = 8192;

// Flags of INIT; bits 32 and up travel in `flags2`.
pub(crate) const ASYNC_READ: u64 = 1 << 0;
pub(crate) const POSIX_LOCKS: u64 = 1 << 1;
pub(crate) const ATOMIC_O_TRUNC: u64 = 1 << 3;
pub(crate) const EXPORT_SUPPORT: u64 = 1 << 4;
pub(crate) const BIG_WRITES: u64 = 1 << 5;
pub(crate) const DONT_MASK: u64 = 1 << 6;
pub(crate) const FLOCK_LOCKS: u64 = 1 << 10;
pub(crate) const HAS_IOCTL_DIR: u64 = 1 << 11;
pub(crate) const AUTO_INVAL_DATA: u64 = 1 << 12;
pub(crate) const DO_READDIRPLUS: u64 = 1 << 13;
pub(crate) const READDIRPLUS_AUTO: u64 = 1 << 14;
pub(crate) const ASYNC_DIO: u64 = 1 << 15;
pub(crate) const WRITEBACK_CACHE: u64 = 1 << 16;
pub(crate) const NO_OPEN_SUPPORT: u64 = 1 << 17;
pub(crate) const PARALLEL_DIROPS: u64 = 1 << 18;
pub(crate) const POSIX_ACL: u64 = 1 << 20;
pub(crate) const ABORT_ERROR: u64 = 1 << 21;
pub(crate) const MAX_PAGES: u64 = 1 << 22;
pub(crate) const CACHE_SYMLINKS: u64 = 1 << 23;
pub(crate) const NO_OPENDIR_SUPPORT: u64 = 1 << 24;
pub(crate) const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
pub(crate) const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
pub(crate) const SETXATTR_EXT: u64 = 1 << 29;
pub(crate) const INIT_EXT: u64 = 1 << 30;
pub(crate) const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
pub(crate) const OVER_IO_URING: u64 = 1 << 41;

// `setattr_in.valid`
pub(crate) const FATTR_MODE: u32 = 1 << 0;
pub(crate) const FATTR_UID: u32 = 1 << 1;
pub(crate) const FATTR_GID: u32 = 1 << 2;
pub(crate) const FATTR_SIZE: u32 = 1 << 3;
pub(crate) const FATTR_ATIME: u32 = 1 << 4;
pub(crate) const FATTR_MTIME: u32 = 1 << 5;
pub(crate) const FATTR_FH: u32 = 1 << 6;
pub(crate) const FATTR_ATIME_NOW: u32 = 1 << 7;
pub(crate) const FATTR_MTIME_NOW: u32 = 1 << 8;
pub(crate) const FATTR_LOCKOWNER: u32 = 1 << 9;
pub(crate) const FATTR_CTIME: u32 = 1 << 10;
pub(crate) const FATTR_KILL_SUIDGID: u32 = 1 << 11;

pub(crate) const GETATTR_FH: u32 = 1 << 0;
pub(crate) const RELEASE_FLUSH: u32 = 1 << 0;
pub(crate) const RELEASE_FLOCK_UNLOCK: u32 = 1 << 1;
pub(crate) const LK_FLOCK: u32 = 1 << 0;
pub(crate) const WRITE_CACHE: u32 = 1 << 0;
pub(crate) const WRITE_LOCKOWNER: u32 = 1 << 1;
pub(crate) const WRITE_KILL_SUIDGID: u32 = 1 << 2;
pub(crate) const READ_LOCKOWNER: u32 = 1 << 1;
pub(crate) const FSYNC_FDATASYNC: u32 = 1 << 0;
pub(crate) const OPEN_KILL_SUIDGID: u32 = 1 << 0;
pub(crate) const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;

// Notifications (file system to kernel, unasked).
pub(crate) const NOTIFY_INVAL_INODE: i32 = 2;
pub(crate) const NOTIFY_INVAL_ENTRY: i32 = 3;
pub(crate) const NOTIFY_DELETE: i32 = 6;
pub(crate) const NOTIFY_INC_EPOCH: i32 = 8;
pub(crate) const NOTIFY_PRUNE: i32 = 9;

/// The ioctl group of `/dev/fuse`; number 0 clones a descriptor.
pub(crate) const DEV_IOC_MAGIC: u8 = 229;

/// `lseek` modes that reach the file system.
pub(crate) const SEEK_DATA: u32 = 3;
pub(crate) const SEEK_HOLE: u32 = 4;

/// File type bits of `st_mode`.
pub(crate) const S_IFMT: u32 = 0o170_000;
