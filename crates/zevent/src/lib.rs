//! Events of pools: what happened to a device, a scan, a configuration (chapter 09 §5).
//!
//! # Theory
//! An [`PoolEvent`] is a class and a list of named values. Its classes begin with
//! `ereport.fs.zfs.` (an error), `resource.fs.zfs.` (the state of a device changed) or
//! `sysevent.fs.zfs.` (an operation began or ended). One [`EventLog`] holds the events of all
//! pools of a process, the newest ones up to a limit. Posting never waits and never fails;
//! an event that falls off the end before a reader saw it is counted for that reader.
//! [`text`] writes events as `zpool events` prints them. [`Limiter`] bounds how often a
//! source posts, and [`Serd`] decides when errors have become too many.
//!
//! # Invariants
//! * PoolEvent ids ascend by one from 1, also over events that were dropped or cleared.
//! * The log's memory is bounded by its limit, and the values of one event by
//!   [`VALUES_MAX`] bytes.
//!
//! Lock order: the lock of the log is a leaf.

mod log;
mod rate;
pub mod text;

use std::sync::Arc;

pub use nvlist::{NvList, Value};

pub use log::{EventBatch, EventLog};
pub use rate::{Limiter, Serd};

/// Packed bytes of an event's values; a larger event is posted without its values.
pub const VALUES_MAX: usize = 64 << 10;
/// Events that a log holds unless it is told otherwise (`zfs_zevent_len_max`).
pub const LENGTH_DEFAULT: usize = 512;

/// The first part of the classes of errors.
pub const EREPORT: &str = "ereport.fs.zfs.";
/// The first part of the classes of changed states.
pub const RESOURCE: &str = "resource.fs.zfs.";
/// The first part of the classes of operations.
pub const SYSEVENT: &str = "sysevent.fs.zfs.";

/// One event.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolEvent {
    /// Its number in the log, from 1.
    pub eid: u64,
    /// Seconds and nanoseconds since 1970.
    pub time: (i64, i64),
    /// The class, for example `ereport.fs.zfs.checksum`.
    pub class: String,
    /// All other values.
    pub values: NvList,
}

impl PoolEvent {
    /// The class without its first part.
    pub fn subclass(&self) -> &str {
        let parts = [EREPORT, RESOURCE, SYSEVENT];
        parts.iter().find_map(|p| self.class.strip_prefix(p)).unwrap_or(&self.class)
    }

    /// The name of the pool, if the event concerns one.
    pub fn pool(&self) -> Option<&str> {
        self.values.str("pool")
    }

    /// All values in the order in which they are shown: class, the event's own values, time
    /// and id.
    pub fn all_values(&self) -> NvList {
        let mut all = NvList::new();
        all.add_str("class", &self.class);
        for (name, value) in self.values.iter() {
            // Names were checked when they were added.
            let _ = all.try_insert(name.as_bytes(), value.clone());
        }
        all.insert("time", Value::Int64Array(vec![self.time.0, self.time.1]));
        all.add_u64("eid", self.eid);
        all
    }

    /// The event of [`PoolEvent::all_values`].
    ///
    /// # Errors
    /// `Corrupt` if class, time or id are missing.
    pub fn from_values(mut all: NvList) -> base::Result<PoolEvent> {
        let lacks = || base::Error::corrupt("an event without class, time or id");
        let class = all.str("class").ok_or_else(lacks)?.to_owned();
        let eid = all.u64("eid").ok_or_else(lacks)?;
        let time = match all.get("time") {
            Some(Value::Int64Array(time)) if time.len() == 2 => (time[0], time[1]),
            _ => return Err(lacks()),
        };
        for name in ["class", "time", "eid"] {
            all.remove(name);
        }
        Ok(PoolEvent { eid, time, class, values: all })
    }
}

/// The pool to which events of its parts belong; the first values of their lists.
#[derive(Clone, Debug)]
pub struct PoolSource {
    log: Arc<EventLog>,
    name: String,
    guid: u64,
}

impl PoolSource {
    /// Posts to `log` for the pool of this name and guid.
    pub fn new(log: Arc<EventLog>, name: impl Into<String>, guid: u64) -> PoolSource {
        PoolSource { log, name: name.into(), guid }
    }

    /// Posts an event with the pool's values first.
    pub fn post(&self, class: &str, values: &NvList) {
        let mut all = NvList::new();
        all.insert("version", Value::Uint8(0));
        all.add_str("pool", &self.name);
        all.add_u64("pool_guid", self.guid);
        for (name, value) in values.iter() {
            let _ = all.try_insert(name.as_bytes(), value.clone());
        }
        self.log.post(class, all);
    }

    /// Posts `sysevent.fs.zfs.WHAT`.
    pub fn sysevent(&self, what: &str, values: &NvList) {
        self.post(&format!("{SYSEVENT}{what}"), values);
    }
}
