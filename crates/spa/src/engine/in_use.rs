//! Datasets that are being read by something that needs all of them: a stream that is sent.
//!
//! # Theory
//! Such a snapshot must not be destroyed meanwhile, because its blocks would be given to others.
//! It is counted here as long as it is in use, in memory alone: a crash ends the use, too.
//! Uses begin in a task of the sync thread, as destructions do, so one of the two comes first:
//! either the snapshot is gone, or its destruction fails with `Busy`.
//!
//! A head must not change at all. It is counted first; then a task looks whether its object set
//! is open, and writes what earlier users left. Who opens it for writing does so first, and looks
//! at the count afterwards, so one of the two sees the other. Destructions, rollbacks and
//! receives look at the count in their tasks.
//!
//! The partial state of a receive is kept by the table of heads that are being received.
//!
//! Lock order: `Writer::datasets_in_use` is a leaf.

use std::sync::Arc;

use base::{Error, Result};
use dsl::write::receive;

use super::Writer;
use super::tasks::TaskCx;

/// Keeps snapshots from being destroyed, or a head from being changed, as long as it lives.
#[must_use = "a dataset is in use as long as this lives"]
pub struct DatasetUse {
    writer: Arc<Writer>,
    objects: Vec<u64>,
}

impl Drop for DatasetUse {
    fn drop(&mut self) {
        let mut counts = self.writer.datasets_in_use.lock();
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
    pub fn use_snapshots(self: &Arc<Self>, of: &[(u64, u64)]) -> Result<DatasetUse> {
        let list = of.to_vec();
        let check = move |cx: &mut TaskCx<'_>| {
            for (object, guid) in &list {
                let there = cx.read().dataset(*object);
                let same = there.is_ok_and(|s| s.is_snapshot() && s.guid == *guid);
                if !same {
                    return Err(Error::not_found("dataset does not exist"));
                }
            }
            let mut counts = cx.writer.datasets_in_use.lock();
            list.iter().for_each(|(object, _)| *counts.entry(*object).or_default() += 1);
            Ok(())
        };
        self.sync_task(check, |_, ()| Ok(()))?;
        let objects = of.iter().map(|(object, _)| *object).collect();
        Ok(DatasetUse { writer: Arc::clone(self), objects })
    }

    /// Keeps a head from being changed. What its users wrote before is on disk when this returns.
    ///
    /// # Errors
    /// `Busy` while it is open or being received; `NotFound` if it was destroyed; that of a
    /// suspension.
    pub fn use_head(self: &Arc<Self>, head: u64) -> Result<DatasetUse> {
        *self.datasets_in_use.lock().entry(head).or_default() += 1;
        let of = DatasetUse { writer: Arc::clone(self), objects: vec![head] };
        let check = move |cx: &mut TaskCx<'_>| {
            let dir = cx.read().dataset(head)?.dir_obj;
            let hidden = receive::hidden_head(cx.read(), dir)?;
            let open = cx.writer.head_in_use(head).is_some_and(|os| Arc::strong_count(&os) > 2);
            if open || cx.is_received(head) || hidden.is_some_and(|hidden| cx.is_received(hidden)) {
                let text = "target is busy; if a filesystem, it must not be mounted";
                return Err(Error::busy(text));
            }
            Ok(())
        };
        self.sync_task(check, move |cx, ()| {
            cx.end_idle_logs([head])?;
            cx.settle()
        })?;
        Ok(of)
    }
}

impl TaskCx<'_> {
    /// Refuses to destroy a snapshot that is in use, or to change such a head.
    ///
    /// # Errors
    /// `Busy`.
    pub(super) fn check_unused(&self, object: u64) -> Result<()> {
        self.writer.check_unused(object)
    }
}

impl Writer {
    /// The same.
    pub(super) fn check_unused(&self, object: u64) -> Result<()> {
        match self.datasets_in_use.lock().contains_key(&object) {
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
