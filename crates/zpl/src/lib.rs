//! The POSIX file system in an object set.
//!
//! # Theory
//! Object 1, the *master node* ([`Props`]), refers to the root directory and the tables. A
//! file is an object. Its attributes are *system attributes* in the dnode's bonus and,
//! where they do not fit, in its spill block; or, before version 5, a fixed *znode* in the
//! bonus. A directory is a ZAP from names to object ids. Extended attributes are one packed
//! list among the system attributes, or files in a hidden directory, or both (chapter 06).
//!
//! # Invariants
//! * Every operation takes a [`dmu::Io`] and passes it to every block read; with
//!   [`dmu::Io::MEMORY`] none touches a device.
//! * Reading keeps no state beyond what [`FileSystem::open`] read: an operation examines
//!   the current object in the object set. So all reads run in parallel without a lock,
//!   along with the changes of [`rw`].
//! * The only code that follows chains of objects, which a forged image could close to a
//!   cycle, is [`FileSystem::walk`]; the caller's path bounds its length.
//!
//! # Departures from OpenZFS
//! * The layer above provides `.zfs`; cookie 2 of a root directory is left free for it.
//! * An object that lacks a required attribute is `Corrupt`, with its object id, instead of
//!   "no such file".

mod attrs;
pub mod create;
mod dacl;
mod dir;
mod file;
mod fs;
mod master;
pub mod rw;
mod tables;
mod userspace;
mod xattr;

pub use attrs::{Attrs, Device};
pub use create::NewFs;
pub use dir::{DirEntry, DirPage, LookupResult};
pub use file::{File, Whence};
pub use fs::{FileSystem, WeakFileSystem};
pub use master::{CaseSensitivity, Props, QuotaObjects};
pub use ondisk::znode::{FileType, Time};
pub use rw::{
    Atime, Caller, FILE_SIZE_MAX, Falloc, FsSpace, Groups, Host, HostSpace, New, Rename, Rewrite,
    RewriteSummary, RwProps, SetAttrs, SetHow, SetTime, WritePosition, WriteSummary, XattrForm,
};
pub use userspace::{SpaceEntry, SpaceKind};
