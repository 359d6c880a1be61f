//! The log of events.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base::rt::{Condvar, Mutex};
use nvlist::NvList;

use crate::{LENGTH_DEFAULT, PoolEvent, VALUES_MAX};

/// What a reader gets.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EventBatch {
    /// Events in the order of their ids.
    pub events: Vec<Arc<PoolEvent>>,
    /// Events after the reader's last one that were dropped before it read them. Events that
    /// an administrator cleared do not count.
    pub dropped: u64,
    /// The id after which the reader continues.
    pub last: u64,
}

#[derive(Debug, Default)]
struct LogState {
    events: VecDeque<Arc<PoolEvent>>,
    /// The id of the newest event.
    newest: u64,
    /// The newest event that was cleared.
    cleared: u64,
    closed: bool,
}

/// The newest events of all pools of a process.
#[derive(Debug)]
pub struct EventLog {
    state: Mutex<LogState>,
    more: Condvar,
    length: AtomicUsize,
}

impl Default for EventLog {
    fn default() -> EventLog {
        EventLog {
            state: Mutex::default(),
            more: Condvar::new(),
            length: AtomicUsize::new(LENGTH_DEFAULT),
        }
    }
}

impl EventLog {
    /// Posts an event at the present time; returns its id. Too large a list of values is left
    /// out.
    pub fn post(&self, class: &str, values: NvList) -> u64 {
        let now = base::rt::wall_clock();
        let time = (now.as_secs() as i64, i64::from(now.subsec_nanos()));
        let values = if values.xdr_size() > VALUES_MAX { NvList::new() } else { values };
        let mut state = self.state.lock();
        state.newest += 1;
        let eid = state.newest;
        state.events.push_back(Arc::new(PoolEvent { eid, time, class: class.to_owned(), values }));
        self.trim(&mut state);
        drop(state);
        self.more.notify_all();
        eid
    }

    fn trim(&self, state: &mut LogState) {
        let length = self.length.load(Ordering::Relaxed);
        while state.events.len() > length {
            state.events.pop_front();
        }
    }

    /// Sets how many events the log holds; 0 holds none.
    pub fn set_length(&self, length: usize) {
        self.length.store(length, Ordering::Relaxed);
        self.trim(&mut self.state.lock());
    }

    /// How many events the log holds at most.
    pub fn length(&self) -> usize {
        self.length.load(Ordering::Relaxed)
    }

    /// The events after an id; 0 is before the first one.
    pub fn read(&self, after: u64) -> EventBatch {
        batch(&self.state.lock(), after)
    }

    /// As [`EventLog::read`], but waits until there is one, the time is over, or the log is
    /// closed.
    pub fn wait(&self, after: u64, timeout: Duration) -> EventBatch {
        let until = base::rt::uptime() + timeout;
        let mut state = self.state.lock();
        while state.newest <= after && !state.closed {
            let left = until.saturating_sub(base::rt::uptime());
            if left.is_zero() {
                break;
            }
            self.more.wait_timeout(&mut state, left);
        }
        batch(&state, after)
    }

    /// Removes all events; returns their number. Ids continue.
    pub fn clear(&self) -> usize {
        let mut state = self.state.lock();
        state.cleared = state.newest;
        let count = state.events.len();
        state.events.clear();
        count
    }

    /// Ends all waits, now and later.
    pub fn close(&self) {
        self.state.lock().closed = true;
        self.more.notify_all();
    }

    /// Whether the log was closed.
    pub fn is_closed(&self) -> bool {
        self.state.lock().closed
    }
}

fn batch(state: &LogState, after: u64) -> EventBatch {
    let events: Vec<Arc<PoolEvent>> =
        state.events.iter().filter(|e| e.eid > after).map(Arc::clone).collect();
    let after = after.min(state.newest);
    let unseen = state.newest - after.max(state.cleared).min(state.newest);
    EventBatch { dropped: unseen - events.len() as u64, events, last: state.newest }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn post(log: &EventLog, n: usize) {
        for _ in 0..n {
            log.post("sysevent.fs.zfs.config_sync", NvList::new());
        }
    }

    fn ids(batch: &EventBatch) -> Vec<u64> {
        batch.events.iter().map(|e| e.eid).collect()
    }

    #[test]
    fn readers_continue_where_they_were_and_learn_what_they_missed() {
        let log = EventLog::default();
        log.set_length(3);
        post(&log, 2);
        let first = log.read(0);
        assert_eq!((ids(&first), first.dropped, first.last), (vec![1, 2], 0, 2));
        post(&log, 5);
        let second = log.read(first.last);
        assert_eq!((ids(&second), second.dropped, second.last), (vec![5, 6, 7], 2, 7));
        assert_eq!(log.read(second.last), EventBatch { last: 7, ..EventBatch::default() });
        // A reader of another, longer log.
        assert_eq!(log.read(99), EventBatch { last: 7, ..EventBatch::default() });
    }

    #[test]
    fn cleared_events_are_not_dropped_ones() {
        let log = EventLog::default();
        post(&log, 4);
        assert_eq!((log.clear(), log.clear()), (4, 0));
        assert_eq!(log.read(0), EventBatch { last: 4, ..EventBatch::default() });
        post(&log, 1);
        let batch = log.read(0);
        assert_eq!((ids(&batch), batch.dropped), (vec![5], 0));
        log.set_length(0);
        assert_eq!(log.read(0).dropped, 1);
        log.set_length(2);
        assert_eq!(log.post("x", NvList::new()), 6);
    }

    #[test]
    fn waiting_ends_with_an_event_with_time_and_with_the_log() {
        let log = Arc::new(EventLog::default());
        assert!(log.wait(0, Duration::from_millis(1)).events.is_empty());
        let reader = Arc::clone(&log);
        let waiting = base::rt::spawn("reader", move || {
            let got = reader.wait(0, Duration::from_secs(600)).events.len();
            let rest = reader.wait(1, Duration::from_secs(600)).events.len();
            assert_eq!((got, rest), (1, 0));
        });
        let waiting = waiting.unwrap();
        post(&log, 1);
        log.close();
        waiting.join();
        assert!(log.is_closed());
    }

    #[test]
    fn an_oversized_event_keeps_its_class() {
        let log = EventLog::default();
        let mut values = NvList::new();
        values.insert("x", nvlist::Value::ByteArray(vec![0; VALUES_MAX]));
        log.post("ereport.fs.zfs.io", values);
        let batch = log.read(0);
        assert_eq!((batch.events[0].subclass(), batch.events[0].values.len()), ("io", 0));
    }

    #[test]
    fn an_event_survives_its_list() {
        let log = EventLog::default();
        let mut values = NvList::new();
        values.add_str("pool", "tank").add_u64("vdev_guid", 7);
        log.post("resource.fs.zfs.statechange", values);
        let event = PoolEvent::clone(&log.read(0).events[0]);
        assert_eq!((event.subclass(), event.pool()), ("statechange", Some("tank")));
        assert_eq!(PoolEvent::from_values(event.all_values()).unwrap(), event);
        assert!(PoolEvent::from_values(NvList::new()).is_err());
    }
}
