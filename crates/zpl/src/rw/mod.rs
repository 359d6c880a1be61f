//! The writing half: everything that changes a file system.
//!
//! # Theory
//! A call is one transaction: the entry of a directory, the object it leads to, the
//! attributes of both and the delete queue change in the same group, so that a crash finds
//! the whole call or nothing of it (chapter 06 §7.3). Only what may be long is split: writes
//! after each MiB, freeing after each 16,384 blocks. A split write is a
//! prefix of itself after a crash; a split truncation has zeros where it got to, and the
//! old size; a file without names stays on the delete queue until its last blocks go in
//! the transaction that takes it off.
//!
//! A file that goes in the group in which its last name goes never enters the queue on
//! disk: one that nobody holds and that has few blocks is freed by `unlink` itself.
//! [`crate::FileSystem::hold`] keeps an object without names; the last
//! [`crate::FileSystem::release`] frees it. After a crash [`crate::FileSystem::empty_delete_queue`]
//! does what was left.
//!
//! # States
//! On disk an object is *named* (its LINKS count its entries), *queued* (LINKS 0, in the
//! delete queue) or gone. In memory a queued one is *held* or being freed (*dying*: a
//! hold comes too late). An object's data is of *fixed* block size once it has more than
//! one block, or a block of the record size; before that, writing may grow its only block
//! and excludes everybody else from the file.
//!
//! # Invariants
//! * All changes of a ZAP, of a layout of attributes and of a block size are made by who
//!   holds the object's lock *exclusively*, and its transaction begins afterwards: so groups
//!   change these in their order, as [`dmu::zaps`] demands.
//! * Writers of ranges share a file; they change data blocks of their range and, in place,
//!   attributes of fixed size, which the object set carries into newer groups: the size
//!   only grows then, and the order of groups does not matter.
//! * A layout of attributes is in the table on disk before the transaction begins that
//!   uses it: in the same group or an older one.
//! * Behind SIZE the last block is zeros, or becomes so before the file reaches over it.
//! * What can fail for the state of the file system is looked at before the transaction
//!   begins, and errors of reading mostly appear there, too. An error amid the changes can
//!   then only come from damage that appeared since, and leaves the call half done.
//! * Chains of objects that a disk could close to a ring are walked in bounded steps.
//!
//! # Readers
//! Reading calls take no locks. What a change makes of one object in several steps (a ZAP
//! that splits, a bonus and its spill block, block size) is done in the object's *turn*:
//! a counter is odd meanwhile, and a reader that saw it change looks again
//! (`locks::Turns`). One that must not wait is told `WouldBlock`.
//!
//! Lock order: rename lock → objects' locks, ascending by number, of directories and files
//! alike (names are looked up before, and again after, taking them) → delete queue →
//! tables of attributes and quotas → transaction ([`Host::begin`]) → turns (one at a time) → holds,
//! pending times, dmu. The sync thread takes none of them. No transaction is open while a
//! group is waited for.
//!
//! # The intent log
//! Each call gives its record to the log in its last transaction (`journal`); while a log is
//! replayed ([`crate::FileSystem::replay`]) the same place notes that its record is done. What has no
//! record waits for its group when somebody asks for a promise.
//!
//! # Departures from OpenZFS
//! * Times of access are kept in memory until something else changes, the last hold goes or
//!   the file system is synced.
//! * Objects in the form of before version 5 stay in it, in whatever file system.
//! * Where attributes were stored by an unknown program in an order of their own, their
//!   file cannot be changed (`Corrupt`).

pub(crate) mod acl;
mod data;
mod given;
mod journal;
mod locks;
mod make;
mod names;
mod node;
mod queue;
mod quota;
mod rename;
mod replay;
mod set;
mod state;
mod sync;
mod types;
mod xattr;

pub use replay::can_replay;
pub(crate) use state::Rw;
pub use types::{
    At, Atime, Caller, FILE_SIZE_MAX, Falloc, Groups, Host, HostSpace, New, Rename, RwProps,
    SETTABLE_FLAGS, SetAttrs, SetHow, SetTime, Space, Written, XattrForm,
};
