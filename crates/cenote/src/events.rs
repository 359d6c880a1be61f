//! Events of a pool: their sources and their values (chapter 09 §5).
//!
//! # Theory
//! Crates below do not know the log. A vdev tree reports errors of leaves, a pipeline reports
//! changes of the tree's states, and a writer has a source to post by. This module connects
//! them with the engine's log when a pool is opened, and gives the events their values.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use base::rt::Mutex;
use base::{ErrorKind, Guid, Result};
use nvlist::NvList;
use vdev::{LeafReport, Node, ReportKind, State, Tree};
use zevent::{EREPORT, EventLog, Limiter, PoolSource, RESOURCE};

use crate::pool::Pool;

/// Events of one kind and pool in a second; 0 is no limit.
#[derive(Debug)]
pub(crate) struct EventLimits {
    checksum: AtomicU64,
    slow_io: AtomicU64,
}

impl Default for EventLimits {
    fn default() -> EventLimits {
        EventLimits { checksum: AtomicU64::new(20), slow_io: AtomicU64::new(20) }
    }
}

impl EventLimits {
    /// `zfs_checksum_events_per_second`, which bounds failed operations as well.
    pub(crate) fn checksum(&self) -> u64 {
        self.checksum.load(Relaxed)
    }

    /// `zfs_slow_io_events_per_second`.
    pub(crate) fn slow_io(&self) -> u64 {
        self.slow_io.load(Relaxed)
    }

    pub(crate) fn set_checksum(&self, n: u64) -> Result<()> {
        self.checksum.store(n, Relaxed);
        Ok(())
    }

    pub(crate) fn set_slow_io(&self, n: u64) -> Result<()> {
        self.slow_io.store(n, Relaxed);
        Ok(())
    }

    fn of(&self, kind: ReportKind) -> u32 {
        let limit = if kind == ReportKind::Slow { self.slow_io() } else { self.checksum() };
        u32::try_from(limit).unwrap_or(u32::MAX)
    }
}

/// The numbers of states in events.
fn number(node: &Node) -> u64 {
    zevent::text::state_number(&node.state().to_string())
}

/// The values that describe a vdev.
fn describe(tree: &Tree, node: &Node, values: &mut NvList) {
    values.add_u64("vdev_guid", node.guid().0).add_str("vdev_type", node.kind().name());
    if let Some(path) = node.path() {
        values.add_str("vdev_path", path);
    }
    values.add_u64("vdev_ashift", node.ashift().into());
    let errors = node.errors();
    values.add_u64("vdev_read_errors", errors.read);
    values.add_u64("vdev_write_errors", errors.write);
    values.add_u64("vdev_cksum_errors", errors.cksum);
    if let Some(parent) = node.parent().map(|p| tree.node(p)) {
        values.add_u64("parent_guid", parent.guid().0);
        values.add_str("parent_type", parent.kind().name());
    }
}

/// The errno that an event has for an error.
fn errno(kind: ErrorKind) -> u64 {
    match kind {
        ErrorKind::Checksum | ErrorKind::Corrupt => 52,
        ErrorKind::DevicesMissing | ErrorKind::NotFound => 6,
        _ => 5,
    }
}

/// The event of an error of a leaf.
fn leaf_error(tree: &Tree, report: &LeafReport) -> Option<(String, NvList)> {
    let node = tree.find(report.guid)?;
    let (class, priority) = match report.kind {
        ReportKind::Checksum => ("checksum", 0),
        ReportKind::Read => ("io", 0),
        ReportKind::Write => ("io", 1),
        ReportKind::Slow => ("delay", 0),
        ReportKind::SitOut => ("sitout", 0),
    };
    let mut values = NvList::new();
    describe(tree, node, &mut values);
    values.add_u64("vdev_state", number(node));
    values.add_u64("zio_err", errno(report.error));
    values.add_u64("zio_offset", report.offset).add_u64("zio_size", report.len);
    values.add_u64("zio_priority", priority);
    if report.kind == ReportKind::Slow {
        values.add_u64("zio_delay", u64::try_from(report.took.as_nanos()).unwrap_or(u64::MAX));
    }
    Some((format!("{EREPORT}{class}"), values))
}

/// The events of a changed tree: every vdev whose state is another one.
fn state_changes(old: &Tree, new: &Tree) -> Vec<NvList> {
    let mut out = Vec::new();
    for (_, node) in new.nodes() {
        let before = old.find(node.guid()).map(|n| (n.state(), number(n)));
        let (Some((state, last)), true) = (before, node.guid() != Guid(0)) else { continue };
        if state == node.state() {
            continue;
        }
        let mut values = NvList::new();
        describe(new, node, &mut values);
        values.add_u64("vdev_state", number(node)).add_u64("vdev_laststate", last);
        out.push(values);
    }
    out
}

/// Connects a pool with the log.
pub(crate) fn attach(log: &Arc<EventLog>, limits: &Arc<EventLimits>, pool: &Pool) {
    let source = PoolSource::new(Arc::clone(log), pool.name(), pool.guid().0);
    let limits = Arc::clone(limits);
    let zio = pool.spa().zio();
    let (tree, limiters) = (Arc::downgrade(zio), Mutex::new(HashMap::new()));
    let to = source.clone();
    zio.tree().set_reporter(Box::new(move |report: &LeafReport| {
        let now: Duration = base::rt::uptime();
        let mut limiters = limiters.lock();
        let limiter: &mut Limiter = limiters.entry(report.kind).or_default();
        let allowed = limiter.allows(now, limits.of(report.kind));
        drop(limiters);
        if let (true, Some(zio)) = (allowed, tree.upgrade())
            && let Some((class, values)) = leaf_error(&zio.tree(), report)
        {
            to.post(&class, &values);
        }
    }));
    let to = source.clone();
    zio.set_tree_observer(Box::new(move |old, new| {
        for values in state_changes(old, new) {
            to.post(&format!("{RESOURCE}statechange"), &values);
        }
        let usable = |tree: &Tree| tree.root().state() >= State::Degraded;
        if usable(old) && !usable(new) {
            to.post(&format!("{EREPORT}vdev.no_replicas"), &NvList::new());
        }
    }));
    if let Ok(writer) = pool.writer() {
        writer.set_events(source.clone());
    }
    let _first = pool.core.events.set(source);
}

impl Pool {
    /// Declares a device faulted because of its errors: it is not used until it is cleared.
    /// False if it was so already, or if the pool needs it.
    ///
    /// # Errors
    /// `ReadOnly`.
    pub fn fault_vdev(&self, leaf: Guid) -> Result<bool> {
        Ok(self.writer()?.declare(leaf, State::Faulted))
    }

    /// As [`Pool::fault_vdev`], but the device stays in use.
    ///
    /// # Errors
    /// `ReadOnly`.
    pub fn degrade_vdev(&self, leaf: Guid) -> Result<bool> {
        Ok(self.writer()?.declare(leaf, State::Degraded))
    }

    /// Posts `sysevent.fs.zfs.WHAT`.
    pub(crate) fn sysevent(&self, what: &str, values: &NvList) {
        if let Some(source) = self.core.events.get() {
            source.sysevent(what, values);
        }
    }

    /// As [`Pool::sysevent`], of a vdev.
    pub(crate) fn vdev_event(&self, what: &str, vdev: Guid) {
        let (tree, mut values) = (self.spa().zio().tree(), NvList::new());
        match tree.find(vdev) {
            Some(node) => {
                describe(&tree, node, &mut values);
                values.add_u64("vdev_state", number(node));
            }
            None => {
                values.add_u64("vdev_guid", vdev.0);
            }
        }
        self.sysevent(what, &values);
    }
}
