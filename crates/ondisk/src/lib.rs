//! Conversion between every on-disk structure of ZFS and bytes, in both byte orders.
//!
//! # Theory
//! Bytes from a device are untrusted. Each `parse` function turns them into a type
//! whose existence shows what was checked. Values that could make a later step
//! misbehave (a shift, a count, an offset) are refused here with
//! [`base::ErrorKind::Corrupt`]. Content that is merely senseless (an odd time, an
//! unknown flag) is returned as it is.
//!
//! # Invariants
//! * No I/O. No panic, no unbounded loop, recursion or allocation, whatever the bytes.
//! * Nothing is read without knowing its byte order ([`Endian`]); writers write
//!   little-endian.

pub mod acl;
pub mod blkptr;
pub mod bpobj;
pub mod brt;
pub mod config;
pub mod ddt;
pub mod dnode;
pub mod dslphys;
pub mod dtl;
pub mod endian;
pub mod features;
pub mod fuid;
#[doc(hidden)]
pub mod fuzzing;
#[doc(hidden)]
pub mod fuzzing2;
pub mod history;
pub mod l2;
pub mod label;
pub mod normalize;
pub mod objset;
pub mod objtype;
pub mod removal;
pub mod sa;
pub mod scan;
pub mod spacemap;
pub mod uberblock;
pub mod xattr;
pub mod zap;
pub mod zapleaf;
pub mod zil;
pub mod znode;

pub use blkptr::BlkPtr;
pub use dnode::Dnode;
pub use endian::Endian;
pub use objset::ObjsetPhys;
pub use objtype::ObjType;
