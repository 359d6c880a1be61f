//! Notifications: what a file system tells the kernel unasked.
//!
//! An invalidation waits for reads of the pages it drops: it must not be sent by
//! a thread that is serving a request for the same node, nor with a lock held
//! that such a request needs.

use std::io::IoSlice;
use std::sync::Arc;

use crate::abi::structs::{
    NotifyDelete, NotifyInvalEntry, NotifyInvalInode, NotifyPrune, OutHeader,
};
use crate::abi::{Wire, consts};
use crate::errno::{Errno, Result};
use crate::fs::{Negotiated, Outward};
use crate::transport::Channel;

/// Node ids in one prune notification.
const PRUNE_BATCH: usize = 512;

/// Sends notifications; cheap to clone.
#[derive(Clone)]
pub struct Notifier {
    pub(crate) channel: Arc<dyn Channel>,
    pub(crate) negotiated: Negotiated,
    pub(crate) outward: Option<Arc<dyn Outward>>,
}

impl std::fmt::Debug for Notifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Notifier").finish_non_exhaustive()
    }
}

impl Notifier {
    /// The same for a file system that is part of a larger one: nodes are told as `outward`
    /// has them.
    pub fn showing_as(&self, outward: Arc<dyn Outward>) -> Notifier {
        Notifier { outward: Some(outward), ..self.clone() }
    }

    /// The kernel's number for a node.
    fn node(&self, node: u64) -> Result<u64> {
        match &self.outward {
            Some(outward) => outward.node(node).ok_or(Errno::EINVAL),
            None => Ok(node),
        }
    }

    fn send(&self, code: i32, body: &[u8], name: Option<&[u8]>) -> Result<()> {
        let tail = name.map_or(0, |n| n.len() + 1);
        let len = u32::try_from(OutHeader::SIZE + body.len() + tail).map_err(|_| Errno::EINVAL)?;
        let mut head = Vec::with_capacity(OutHeader::SIZE);
        OutHeader { len, error: code, unique: 0 }.put(&mut head);
        let parts = [
            IoSlice::new(&head),
            IoSlice::new(body),
            IoSlice::new(name.unwrap_or_default()),
            IoSlice::new(&[0]),
        ];
        let used = if name.is_some() { 4 } else { 2 };
        // It may wait for pages that a request holds.
        base::rt::may_sleep();
        match self.channel.reply(&parts[..used]) {
            Ok(()) => Ok(()),
            Err(e) => match e.raw_os_error().map_or(Errno::EIO, Errno::from_raw) {
                // The kernel does not know the node or name: nothing to forget.
                Errno::ENOENT => Ok(()),
                errno => Err(errno),
            },
        }
    }

    fn named(&self, code: i32, body: &impl Wire, name: &[u8]) -> Result<()> {
        if name.is_empty() || name.contains(&0) {
            return Err(Errno::EINVAL);
        }
        let mut bytes = Vec::new();
        body.put(&mut bytes);
        self.send(code, &bytes, Some(name))
    }

    /// Drops cached attributes of a node, and its cached data from `offset` on
    /// for `len` bytes: `len` 0 means to the end, a negative `offset` no data.
    ///
    /// # Errors
    /// `ENODEV` after unmount, others of the kernel's. An unknown node is none.
    pub fn inval_inode(&self, node: u64, offset: i64, len: i64) -> Result<()> {
        let mut bytes = Vec::new();
        NotifyInvalInode { ino: self.node(node)?, off: offset, len }.put(&mut bytes);
        self.send(consts::NOTIFY_INVAL_INODE, &bytes, None)
    }

    /// Drops a cached name.
    ///
    /// # Errors
    /// As [`Notifier::inval_inode`].
    pub fn inval_entry(&self, parent: u64, name: &[u8]) -> Result<()> {
        let parent = self.node(parent)?;
        let namelen = u32::try_from(name.len()).map_err(|_| Errno::EINVAL)?;
        self.named(
            consts::NOTIFY_INVAL_ENTRY,
            &NotifyInvalEntry { parent, namelen, flags: 0 },
            name,
        )
    }

    /// Says that a name is gone, so that watchers learn of it.
    ///
    /// # Errors
    /// As [`Notifier::inval_inode`].
    pub fn delete(&self, parent: u64, child: u64, name: &[u8]) -> Result<()> {
        let namelen = u32::try_from(name.len()).map_err(|_| Errno::EINVAL)?;
        let (parent, child) = (self.node(parent)?, self.node(child)?);
        let body = NotifyDelete { parent, child, namelen, padding: 0 };
        self.named(consts::NOTIFY_DELETE, &body, name)
    }

    /// Makes every cached name to be looked up again (7.44, Linux 6.16).
    ///
    /// # Errors
    /// `EOPNOTSUPP` on older kernels.
    pub fn inc_epoch(&self) -> Result<()> {
        if self.negotiated.minor < 44 {
            return Err(Errno::EOPNOTSUPP);
        }
        self.send(consts::NOTIFY_INC_EPOCH, &[], None)
    }

    /// Requests that the kernel forget nodes that are not in use (7.45, Linux 6.18).
    ///
    /// # Errors
    /// `EOPNOTSUPP` on older kernels.
    pub fn prune(&self, nodes: &[u64]) -> Result<()> {
        if self.negotiated.minor < 45 {
            return Err(Errno::EOPNOTSUPP);
        }
        for batch in nodes.chunks(PRUNE_BATCH) {
            let mut bytes = Vec::new();
            // At most PRUNE_BATCH.
            let count = batch.len() as u32;
            NotifyPrune { count, padding: 0, spare: 0 }.put(&mut bytes);
            for &node in batch {
                self.node(node)?.put(&mut bytes);
            }
            self.send(consts::NOTIFY_PRUNE, &bytes, None)?;
        }
        Ok(())
    }
}
