//! Events on the wire.

use serde::{Deserialize, Serialize};

/// Events in one page.
pub const EVENTS_PAGE: usize = 128;

/// An event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventInfo {
    /// Its number, from 1.
    pub eid: u64,
    /// Seconds since 1970.
    pub seconds: i64,
    /// Nanoseconds of the second.
    pub nanoseconds: i64,
    /// Its class.
    pub class: String,
    /// The pool, if it concerns one.
    pub pool: Option<String>,
    /// All values, as `zpool events -v` prints them.
    pub values: String,
}

/// Some events in the order of their numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventsPage {
    /// [`EVENTS_PAGE`] of them at most.
    pub events: Vec<EventInfo>,
    /// Events after the requested one that are not there any more.
    pub dropped: u64,
    /// The number with which the next request continues.
    pub last: u64,
    /// There are more.
    pub more: bool,
}
