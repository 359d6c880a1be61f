//! The writing half: everything that changes a file system.
//!
//! # Theory
//! A call is one transaction. The entry of a directory, the object it refers to, the
//! attributes of both and the delete queue change in the same txg, so that after a crash
//! the call is complete or has no effect (chapter 06 §7.3). Only long calls are split:
//! writes after each MiB, frees after each 16,384 blocks. After a crash, a split write is a
//! prefix of the whole; a split truncation has zeros up to where it came, and the old size.
//! A file without names stays on the delete queue until its last blocks are freed, in the
//! transaction that removes it from the queue.
//!
//! A file that is freed in the txg in which it loses its last name never enters the queue
//! on disk: `unlink` itself frees a file that is not held and has few blocks.
//! [`crate::FileSystem::hold`] keeps an object without names; the last
//! [`crate::FileSystem::release`] frees it. After a crash
//! [`crate::FileSystem::empty_delete_queue`] frees the rest.
//!
//! # States
//! On disk an object is *named* (its LINKS count its entries), *queued* (LINKS 0, in the
//! delete queue) or free. In memory a queued object is *held* or being freed (*dying*: a
//! hold fails). An object's data is of *fixed* block size once it has more than one block,
//! or a block of the record size. Before that, a write may grow its only block, with the
//! file's lock held exclusively.
//!
//! # Invariants
//! * A change of a ZAP, of a layout of attributes or of a block size requires the object's
//!   lock, held *exclusively*, and its transaction begins afterwards. So txgs change these
//!   in their order, as [`dmu::zaps`] demands.
//! * Writers of ranges share a file. They change data blocks of their range and, in place,
//!   attributes of fixed size, which the object set carries into newer txgs. The size only
//!   grows then, and the order of txgs does not matter.
//! * A layout of attributes is in the table on disk before the transaction begins that uses
//!   it: in the same txg or an older one.
//! * The bytes behind SIZE in the last block are zeros, or are zeroed before the file
//!   extends over them.
//! * Conditions that can make a call fail are checked before the transaction begins, and
//!   most read errors occur then, too. An error after the first change can only come from
//!   damage that appeared since, and leaves the call half done.
//! * Chains of objects that a forged image could close to a cycle are walked in bounded
//!   steps.
//!
//! # Readers
//! Reading calls take no locks. A change of one object in several steps (a ZAP that splits,
//! a bonus and its spill block, block size) is made under the object's *seqlock*: its
//! counter is odd meanwhile, and a reader that saw it change retries (`locks::SeqLock`). A
//! reader that must not wait gets `WouldBlock`.
//!
//! Lock order: rename lock → objects' locks, in ascending order of object ids, of
//! directories and files alike (names are looked up before, and again after, taking them) →
//! delete queue → tables of attributes and quotas → transaction ([`Host::begin`]) →
//! seqlocks (one at a time) → holds, pending times, dmu. The sync thread takes none of
//! them. No thread waits for a txg with a transaction open.
//!
//! # The intent log
//! Each call adds its record to the log in its last transaction (`journal`). While a log is
//! replayed ([`crate::FileSystem::replay`]) the same code notes that the record is done. An
//! fsync after a change without a record waits for the txg.
//!
//! # Departures from OpenZFS
//! * Times of access are kept in memory until another change of the object, the end of the
//!   last hold or a sync of the file system.
//! * Objects in the form of before version 5 keep it, in file systems of any version.
//! * If a file's attributes were stored by another program in an unknown order, the file
//!   cannot be changed (`Corrupt`).

pub(crate) mod acl;
mod clone;
mod data;
mod journal;
mod locks;
mod make;
mod names;
mod node;
mod queue;
mod quota;
mod record_attrs;
mod rename;
mod replay;
mod rewrite;
mod set;
mod state;
mod sync;
mod types;
mod version;
mod xattr;

pub use clone::{cloning_enabled, cloning_waits, set_cloning_enabled, set_cloning_waits};
pub use replay::can_replay;
pub(crate) use state::Rw;
pub use types::{
    Atime, Caller, FILE_SIZE_MAX, Falloc, FsSpace, Groups, Host, HostSpace, New, Rename, Rewrite,
    RewriteSummary, RwProps, SetAttrs, SetHow, SetTime, WritePosition, WriteSummary, XattrForm,
};
