//! Holds of snapshots, and bookmarks.
//!
//! # Theory
//! A hold keeps a snapshot from being destroyed, under a tag that names its owner. A bookmark
//! remembers a snapshot without keeping its blocks, so that a later stream can begin there.

use base::Result;
use spa::engine::{NewBookmark, SnapshotHold};

use crate::dataset::{Dataset, DatasetKind};
use crate::pool::Pool;

impl Pool {
    /// Holds snapshots, each by a tag of at most 255 bytes: all of them or none.
    ///
    /// # Errors
    /// In OpenZFS's words: `NotFound`, `Exists` for a snapshot that the tag holds already,
    /// `NameTooLong`, `Unsupported` in pools before version 18; `ReadOnly`; that of a
    /// suspension.
    pub fn hold(&self, holds: &[SnapshotHold], command_line: Option<&str>) -> Result<()> {
        self.writer()?.hold(holds, self.command(command_line)).map(drop)
    }

    /// Releases holds: all of them or none. A snapshot whose destruction was deferred is
    /// destroyed with its last hold if it has no clones.
    ///
    /// # Errors
    /// In OpenZFS's words: `NotFound`, also for a tag that does not hold the snapshot;
    /// `ReadOnly`; that of a suspension.
    pub fn release(&self, holds: &[SnapshotHold], command_line: Option<&str>) -> Result<()> {
        self.writer()?.release(holds, self.command(command_line)).map(drop)
    }

    /// Makes bookmarks (`dataset#name`) of snapshots or other bookmarks of the same dataset:
    /// all of them or none.
    ///
    /// # Errors
    /// In OpenZFS's words: `NotFound`, `Exists`, `Invalid`, `NameTooLong`, `NoSpace`,
    /// `Unsupported` unless the pool's feature `bookmarks` is enabled; `ReadOnly`; that of a
    /// suspension.
    pub fn bookmark(&self, list: &[NewBookmark], command_line: Option<&str>) -> Result<()> {
        self.writer()?.bookmark(list, self.command(command_line)).map(drop)
    }

    /// Destroys bookmarks: all of them or none.
    ///
    /// # Errors
    /// `NotFound`; `ReadOnly`; that of a suspension.
    pub fn destroy_bookmarks(&self, names: &[String], command_line: Option<&str>) -> Result<()> {
        self.writer()?.destroy_bookmarks(names, self.command(command_line)).map(drop)
    }
}

impl Dataset {
    /// The tags that hold this snapshot, in the order of their names, with the times since
    /// when (Unix seconds).
    ///
    /// # Errors
    /// Those of reading the MOS.
    pub fn holds(&self) -> Result<Vec<(String, u64)>> {
        if self.kind() != DatasetKind::Snapshot {
            return Ok(Vec::new());
        }
        let _names = self.core().names();
        self.hold_entries()
    }
}
