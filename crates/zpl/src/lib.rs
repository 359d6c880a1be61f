//! The POSIX file system in an object set.
//!
//! # Theory
//! Object 1, the *master node* ([`Props`]), names the root directory and the
//! tables. A file is an object: its attributes are *system attributes* in the
//! dnode's bonus and, where they do not fit, in its spill block; or, before
//! version 5, a fixed *znode* in the bonus. A directory is a ZAP from names to
//! object numbers. Extended attributes are one packed list among the system
//! attributes, or files in a hidden directory, or both (chapter 06).
//!
//! # Invariants
//! * Every operation takes [`dmu::Io`] and hands it to every block it reads; with
//!   [`dmu::Io::MEMORY`] none touches a device.
//! * No state beyond what [`FileSystem::open`] read: an operation looks at the
//!   object as the object set holds it. So all of them run in parallel without a
//!   lock, beside what [`rw`] changes.
//! * Nothing follows a chain of objects that a disk could close to a ring but
//!   [`FileSystem::walk`], whose length the caller's path bounds.
//!
//! # Departures from OpenZFS
//! * `.zfs` is the layer above; cookie 2 of a root directory is left free for it.
//! * An object that lacks a required attribute is `Corrupt`, with its number,
//!   instead of "no such file".

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
pub use dir::{DirEntry, DirPage, Found};
pub use file::{File, Whence};
pub use fs::FileSystem;
pub use master::{CaseSensitivity, Props, QuotaObjects, ZPL_VERSION};
pub use ondisk::znode::{FileType, Time};
pub use rw::{
    At, Atime, Caller, FILE_SIZE_MAX, Falloc, Groups, Host, HostSpace, New, Rename, RwProps,
    SETTABLE_FLAGS, SetAttrs, SetHow, SetTime, Space, Written, XattrForm,
};
pub use userspace::{SpaceEntry, SpaceKind};
