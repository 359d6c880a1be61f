//! Changes in `.zfs/snapshot`: `mkdir` takes a snapshot, `rmdir` destroys one, `rename` gives
//! one another name.
//!
//! # Theory
//! The directory belongs to root and nobody may write in it, so the kernel lets only the
//! superuser of the mount through. The engine checks everything else, as for the commands; no
//! command is added to the pool's history.
//!
//! # Invariants
//! * The kernel is not notified of such a change: it made it itself, and holds the
//!   directory's lock while it waits for the answer.

use base::ErrorKind;
use cenote::Dataset;
use cenote::files::Rename;
use fuse::{BlockingMode, Errno, LookupEntry};

use super::node::NodeTarget;
use super::zfs::{FsResult, ZfsMount};

/// A snapshot's name from the kernel.
fn text(name: &[u8]) -> FsResult<&str> {
    std::str::from_utf8(name).map_err(|_| Errno::EINVAL)
}

impl ZfsMount {
    /// The dataset if `node` is the directory of its snapshots.
    pub(super) fn snapdir(&self, node: u64) -> FsResult<Option<Dataset>> {
        Ok(match self.node(node)? {
            NodeTarget::Snapdir => Some(self.dataset()),
            _ => None,
        })
    }

    /// Takes a snapshot.
    pub(super) fn take_snapshot(
        &self,
        of: &Dataset,
        parent: u64,
        name: &[u8],
    ) -> FsResult<LookupEntry> {
        of.take_snapshot(text(name)?)?;
        self.forget_snapshots(&[]);
        self.find(BlockingMode::Blocking, parent, name)
    }

    /// Destroys a snapshot. One that has clones is busy.
    pub(super) fn destroy_snapshot(&self, of: &Dataset, name: &[u8]) -> FsResult<()> {
        match of.destroy_snapshot(text(name)?) {
            Err(e) if e.kind() == ErrorKind::Exists => return Err(Errno::EBUSY),
            other => other?,
        }
        self.forget_snapshots(&[name]);
        Ok(())
    }

    /// Renames a snapshot; what is open in it stays open.
    pub(super) fn rename_snapshot(
        &self,
        of: &Dataset,
        (old, new): (&[u8], &[u8]),
        how: Rename,
    ) -> FsResult<()> {
        if !matches!(how, Rename::Plain | Rename::NoReplace) {
            return Err(Errno::EINVAL);
        }
        if old == new {
            return Ok(());
        }
        of.rename_snapshot(text(old)?, text(new)?)?;
        self.move_snapshot(old, new);
        Ok(())
    }
}
