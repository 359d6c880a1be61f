//! Diagnosis: when a device's errors are too many, and what follows from that.
//!
//! # Theory
//! A pure state machine reads the events of all pools and answers with actions, as `zed` does:
//! a device with `checksum_n` checksum errors within `checksum_t` seconds is degraded, one
//! with `io_n` failed operations within `io_t` is faulted, one with `slow_io_n` slow ones
//! within `slow_io_t` is degraded. The numbers are properties of the vdev, of its parents, or
//! the defaults (chapter 09 §2.5). A device that fails to answer at all (`probe_failure`) is
//! faulted at once. Whether an action is carried out is the caller's decision: a pool that
//! would not survive the loss of a device keeps it.
//!
//! # Invariants
//! * Memory is bounded: [`WATCHED_MAX`] devices, each with bounded counts.
//! * What is known of a device is forgotten when it is cleared, replaced or taken away.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use zevent::{PoolEvent, Serd};

/// Devices that are watched at once; more are not diagnosed.
const WATCHED_MAX: usize = 16_384;

/// The vdev properties that decide (chapter 09 §2.5). `None`: never.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// Checksum errors, and within how many seconds.
    pub checksum: Option<(u64, u64)>,
    /// Failed operations.
    pub io: Option<(u64, u64)>,
    /// Slow operations.
    pub slow_io: Option<(u64, u64)>,
}

impl Default for Thresholds {
    fn default() -> Thresholds {
        Thresholds { checksum: Some((10, 600)), io: Some((10, 600)), slow_io: None }
    }
}

/// What should happen to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultAction {
    /// Too many checksum errors, or too many slow operations: it stays in use, as DEGRADED,
    /// and a spare is called.
    Degrade {
        /// It is slow rather than wrong.
        slow: bool,
    },
    /// Too many failed operations: it is not used any more.
    Fault,
}

/// An action with the device that it concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The pool's guid.
    pub pool: u64,
    /// The vdev's guid.
    pub vdev: u64,
    /// What should happen.
    pub action: FaultAction,
}

#[derive(Debug)]
struct Watched {
    checksum: Serd,
    io: Serd,
    slow_io: Serd,
}

/// The errors of all devices of a process.
#[derive(Debug, Default)]
pub struct Diagnosis {
    devices: HashMap<(u64, u64), Watched>,
}

fn serd(limits: Option<(u64, u64)>) -> Serd {
    let (n, t) = limits.unwrap_or((0, 0));
    Serd::new(n, Duration::from_secs(t))
}

/// Whether an event means that what was known of a device counts no more; the whole pool's
/// devices if `vdev` is the root.
fn forgets(event: &PoolEvent, pool: u64, vdev: u64) -> bool {
    if event.class.starts_with(zevent::EREPORT) || event.values.u64("pool_guid") != Some(pool) {
        return false;
    }
    let whole = event.values.str("vdev_type") == Some("root");
    let same = event.values.u64("vdev_guid") == Some(vdev);
    match event.subclass() {
        "pool_export" | "pool_destroy" | "pool_import" => true,
        "vdev_clear" => whole || same,
        "vdev_remove_dev" | "vdev_remove_aux" | "removed" => same,
        _ => false,
    }
}

impl Diagnosis {
    /// Reads a batch of events. A device that was cleared in the same batch, after its errors,
    /// gets no verdict: an administrator would see it fail again at once.
    pub fn read_all(
        &mut self,
        events: &[Arc<PoolEvent>],
        thresholds: &dyn Fn(u64, u64) -> Thresholds,
    ) -> Vec<Verdict> {
        let mut verdicts: Vec<Verdict> = Vec::new();
        for event in events {
            verdicts.retain(|v| !forgets(event, v.pool, v.vdev));
            verdicts.extend(self.read(event, thresholds));
        }
        verdicts
    }

    /// Reads an event. `thresholds` gives those of a vdev (pool's guid, vdev's guid).
    pub fn read(
        &mut self,
        event: &PoolEvent,
        thresholds: &dyn Fn(u64, u64) -> Thresholds,
    ) -> Option<Verdict> {
        self.devices.retain(|(pool, vdev), _| !forgets(event, *pool, *vdev));
        let error = event.class.strip_prefix(zevent::EREPORT)?;
        let (pool, vdev) = (event.values.u64("pool_guid")?, event.values.u64("vdev_guid")?);
        let key = (pool, vdev);
        if error == "probe_failure" {
            self.devices.remove(&key);
            return Some(Verdict { pool, vdev, action: FaultAction::Fault });
        }
        if !matches!(error, "checksum" | "io" | "delay")
            || (!self.devices.contains_key(&key) && self.devices.len() >= WATCHED_MAX)
        {
            return None;
        }
        let limits = thresholds(pool, vdev);
        let watched = self.devices.entry(key).or_insert_with(|| Watched {
            checksum: serd(None),
            io: serd(None),
            slow_io: serd(None),
        });
        let now =
            Duration::new(event.time.0.max(0) as u64, event.time.1.clamp(0, 999_999_999) as u32);
        let (serd, limits, action) = match error {
            "checksum" => {
                (&mut watched.checksum, limits.checksum, FaultAction::Degrade { slow: false })
            }
            "io" => (&mut watched.io, limits.io, FaultAction::Fault),
            _ => (&mut watched.slow_io, limits.slow_io, FaultAction::Degrade { slow: true }),
        };
        let (n, t) = limits?;
        serd.set(n, Duration::from_secs(t));
        serd.record(now).then_some(Verdict { pool, vdev, action })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvlist::NvList;

    fn event(class: &str, vdev: u64, at: i64) -> PoolEvent {
        let mut values = NvList::new();
        values.add_u64("pool_guid", 1).add_u64("vdev_guid", vdev);
        PoolEvent { eid: 1, time: (at, 0), class: class.to_owned(), values }
    }

    const CKSUM: &str = "ereport.fs.zfs.checksum";
    const IO: &str = "ereport.fs.zfs.io";
    const DELAY: &str = "ereport.fs.zfs.delay";

    /// The actions that a row of events causes.
    fn actions(events: &[PoolEvent], limits: Thresholds) -> Vec<(u64, FaultAction)> {
        let mut diagnosis = Diagnosis::default();
        let read = |e: &PoolEvent| diagnosis.read(e, &|_, _| limits).map(|v| (v.vdev, v.action));
        events.iter().filter_map(read).collect()
    }

    #[test]
    fn ten_errors_of_one_device_are_too_many() {
        let mut all = Vec::new();
        for i in 0..9 {
            // Spread over two devices and two kinds, none has ten.
            all.extend([event(CKSUM, 5, i), event(CKSUM, 6, i), event(IO, 5, i)]);
        }
        assert_eq!(actions(&all, Thresholds::default()), []);
        all.push(event(CKSUM, 6, 9));
        all.push(event(IO, 5, 10));
        let degrade = FaultAction::Degrade { slow: false };
        assert_eq!(actions(&all, Thresholds::default()), [(6, degrade), (5, FaultAction::Fault)]);
    }

    #[test]
    fn old_errors_do_not_count_and_slow_ones_only_if_asked_for() {
        let slowly: Vec<PoolEvent> = (0..40).map(|i| event(IO, 5, i * 100)).collect();
        assert_eq!(actions(&slowly, Thresholds::default()), []);
        let slow: Vec<PoolEvent> = (0..40).map(|i| event(DELAY, 5, i)).collect();
        assert_eq!(actions(&slow, Thresholds::default()), []);
        let limits = Thresholds { slow_io: Some((30, 60)), ..Thresholds::default() };
        assert_eq!(actions(&slow, limits), [(5, FaultAction::Degrade { slow: true })]);
        let never = Thresholds { checksum: None, io: None, slow_io: None };
        let many: Vec<PoolEvent> = (0..99).map(|_| event(CKSUM, 5, 0)).collect();
        assert_eq!(actions(&many, never), []);
    }

    #[test]
    fn a_cleared_device_starts_again() {
        let mut all: Vec<PoolEvent> = (0..9).map(|i| event(IO, 5, i)).collect();
        all.push(event("sysevent.fs.zfs.vdev_clear", 5, 9));
        all.extend((10..19).map(|i| event(IO, 5, i)));
        let mut whole = event("sysevent.fs.zfs.vdev_clear", 1, 19);
        whole.values.add_str("vdev_type", "root");
        all.push(whole);
        all.extend((20..29).map(|i| event(IO, 5, i)));
        assert_eq!(actions(&all, Thresholds::default()), []);
        // In one batch, the last word counts.
        let read = |events: &[PoolEvent]| {
            let events: Vec<_> = events.iter().cloned().map(Arc::new).collect();
            Diagnosis::default().read_all(&events, &|_, _| Thresholds::default()).len()
        };
        let mut batch: Vec<PoolEvent> = (0..10).map(|i| event(IO, 5, i)).collect();
        assert_eq!(read(&batch), 1);
        batch.push(event("sysevent.fs.zfs.vdev_clear", 6, 10));
        assert_eq!(read(&batch), 1, "another device was cleared");
        batch.push(event("sysevent.fs.zfs.vdev_clear", 5, 10));
        assert_eq!(read(&batch), 0);
        let gone = event("ereport.fs.zfs.probe_failure", 5, 20);
        assert_eq!(actions(&[gone], Thresholds::default()), [(5, FaultAction::Fault)]);
    }
}
