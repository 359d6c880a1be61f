//! Snapshots that are being read by something that needs all of them: a stream that is sent.
//!
//! # Theory
//! Such a snapshot must not be destroyed meanwhile, because its blocks would be given to others.
//! It is counted here as long as it is in use, in memory alone: a crash ends the use, too.
//! Uses begin in a task of the sync thread, as destructions do, so one of the two comes first:
//! either the snapshot is gone, or its destruction fails with `Busy`.
//!
//! The partial state of a receive is kept by the table of heads that are being received.
//!
//! Lock order: `Writer::snapshots_in_use` is a leaf.

use std::sync::Arc;

use base::{Error, Result};

use super::Writer;
use super::tasks::TaskCx;

/// Keeps snapshots from being destroyed as long as it lives.
#[must_use = "a snapshot is in use as long as this lives"]
pub struct SnapshotUse {
    writer: Arc<Writer>,
    objects: Vec<u64>,
}

impl Drop for SnapshotUse {
    fn drop(&mut self) {
        let mut counts = self.writer.snapshots_in_use.lock();
        for object in &self.objects {
            if let Some(count) = counts.get_mut(object) {
                *count -= 1;
                if *count == 0 {
                    counts.remove(object);
                }
            }
        }
    }
}

impl Writer {
    /// Keeps snapshots, given by object and guid, from being destroyed.
    ///
    /// # Errors
    /// `NotFound` if one was destroyed; that of a suspension.
    pub fn use_snapshots(self: &Arc<Self>, of: &[(u64, u64)]) -> Result<SnapshotUse> {
        let list = of.to_vec();
        let check = move |cx: &mut TaskCx<'_>| {
            for (object, guid) in &list {
                let there = cx.read().dataset(*object);
                let same = there.is_ok_and(|s| s.is_snapshot() && s.guid == *guid);
                if !same {
                    return Err(Error::not_found("dataset does not exist"));
                }
            }
            let mut counts = cx.writer.snapshots_in_use.lock();
            list.iter().for_each(|(object, _)| *counts.entry(*object).or_default() += 1);
            Ok(())
        };
        self.sync_task(check, |_, ()| Ok(()))?;
        let objects = of.iter().map(|(object, _)| *object).collect();
        Ok(SnapshotUse { writer: Arc::clone(self), objects })
    }
}

impl TaskCx<'_> {
    /// Refuses to destroy a snapshot that is in use.
    ///
    /// # Errors
    /// `Busy`.
    pub(super) fn check_unused(&self, snapshot: u64) -> Result<()> {
        match self.writer.snapshots_in_use.lock().contains_key(&snapshot) {
            true => Err(Error::busy("dataset is busy")),
            false => Ok(()),
        }
    }
}

/// Keeps the partial state of an interrupted receive from being continued or discarded as long as
/// it lives.
#[must_use = "the state is in use as long as this lives"]
pub struct PartialUse {
    writer: Arc<Writer>,
    head: u64,
}

impl Drop for PartialUse {
    fn drop(&mut self) {
        self.writer.receives.lock().remove(&self.head);
    }
}

impl Writer {
    /// Keeps the partial state in a head from being continued or discarded, as a receive into it
    /// would.
    ///
    /// # Errors
    /// `Busy` while it is being received; that of a suspension.
    pub fn use_partial(self: &Arc<Self>, head: u64) -> Result<PartialUse> {
        let check = move |cx: &mut TaskCx<'_>| {
            if cx.is_received(head) {
                return Err(Error::busy("dataset is busy"));
            }
            cx.writer.receives.lock().insert(head, Arc::default());
            Ok(())
        };
        self.sync_task(check, |_, ()| Ok(()))?;
        Ok(PartialUse { writer: Arc::clone(self), head })
    }
}
