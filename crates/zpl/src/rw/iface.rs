//! The interface, ahead of its implementation.
#![allow(unused_variables)]
use super::types::*;
use crate::attrs::Attrs;
use crate::fs::FileSystem;
use base::{Error, ObjectId, Result};
use dmu::{Io, Objset};
use std::sync::Arc;

fn not_yet<T>() -> Result<T> {
    Err(Error::unsupported("writing"))
}

impl FileSystem {
    /// Opens for writing.
    pub fn open_rw(os: Arc<Objset>, host: Arc<dyn Host>, io: Io) -> Result<Arc<FileSystem>> {
        not_yet()
    }
    /// Makes a file of any kind.
    pub fn make(&self, by: &Caller, dir: ObjectId, name: &[u8], new: &New<'_>) -> Result<Attrs> {
        not_yet()
    }
    /// Makes a regular file without a name (`O_TMPFILE`).
    pub fn make_unlinked(&self, by: &Caller, dir: ObjectId, mode: u32) -> Result<Attrs> {
        not_yet()
    }
    /// Gives a file one more name.
    pub fn link(&self, by: &Caller, id: ObjectId, dir: ObjectId, name: &[u8]) -> Result<Attrs> {
        not_yet()
    }
    /// Removes a name of anything but a directory.
    pub fn unlink(&self, by: &Caller, dir: ObjectId, name: &[u8]) -> Result<ObjectId> {
        not_yet()
    }
    /// Removes an empty directory.
    pub fn rmdir(&self, by: &Caller, dir: ObjectId, name: &[u8]) -> Result<ObjectId> {
        not_yet()
    }
    /// Moves a name.
    pub fn rename(
        &self,
        by: &Caller,
        from: (ObjectId, &[u8]),
        to: (ObjectId, &[u8]),
        how: Rename,
    ) -> Result<()> {
        not_yet()
    }
    /// Writes.
    pub fn write(&self, by: &Caller, id: ObjectId, at: At, data: &[u8]) -> Result<Written> {
        not_yet()
    }
    /// Punches and zeroes.
    pub fn allocate(
        &self,
        by: &Caller,
        id: ObjectId,
        what: Falloc,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        not_yet()
    }
    /// Copies.
    pub fn copy_range(
        &self,
        by: &Caller,
        from: (ObjectId, u64),
        to: (ObjectId, u64),
        len: u64,
    ) -> Result<u64> {
        not_yet()
    }
    /// Changes attributes.
    pub fn set_attrs(&self, by: &Caller, id: ObjectId, set: &SetAttrs) -> Result<Attrs> {
        not_yet()
    }
    /// Sets an extended attribute.
    pub fn set_xattr(
        &self,
        by: &Caller,
        id: ObjectId,
        name: &[u8],
        value: &[u8],
        how: SetHow,
    ) -> Result<()> {
        not_yet()
    }
    /// Removes an extended attribute.
    pub fn remove_xattr(&self, by: &Caller, id: ObjectId, name: &[u8]) -> Result<()> {
        not_yet()
    }
    /// Keeps an object although its last name may go.
    pub fn hold(&self, id: ObjectId) -> Result<()> {
        not_yet()
    }
    /// Ends a hold.
    pub fn release(&self, id: ObjectId) -> Result<()> {
        not_yet()
    }
    /// A file was read.
    pub fn accessed(&self, id: ObjectId) {}
    /// Waits until what was done to an object is on disk.
    pub fn fsync(&self, id: ObjectId) -> Result<()> {
        not_yet()
    }
    /// Waits until all that was done is on disk.
    pub fn sync_all(&self) -> Result<()> {
        not_yet()
    }
    /// Frees what a crash left unlinked: how many objects.
    pub fn empty_delete_queue(&self) -> Result<u64> {
        not_yet()
    }
    /// What `statfs` tells.
    pub fn space(&self) -> Result<Space> {
        not_yet()
    }
}
