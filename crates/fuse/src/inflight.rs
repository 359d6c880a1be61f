//! The requests of one connection that can be interrupted.
//!
//! # Theory
//! A request that may sleep is listed with a flag until it ends; an INTERRUPT sets the
//! flag. An interrupt may overtake its request between two threads: it is kept, and applied
//! when the request is listed.
//!
//! Waits for locks have a thread each, up to a limit, and count for no other limit:
//! the request that drops the lock must always be served.
//!
//! Lock order: `state` is a leaf.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::ids::IdMap;
use base::rt::Mutex;

/// Interrupts remembered that met no request (most come too late).
const EARLY_MAX: usize = 256;

#[derive(Default)]
struct InflightState {
    flags: IdMap<u64, Arc<AtomicBool>>,
    early: VecDeque<u64>,
    closed: bool,
}

/// The list; see the module.
#[derive(Default)]
pub(crate) struct Inflight {
    state: Mutex<InflightState>,
}

impl Inflight {
    /// Lists a request; its flag says that the caller got a signal, or that the connection has
    /// ended.
    pub(crate) fn begin(&self, unique: u64) -> Arc<AtomicBool> {
        let mut state = self.state.lock();
        let known = state.early.iter().position(|&u| u == unique);
        if let Some(at) = known {
            state.early.remove(at);
        }
        let flag = Arc::new(AtomicBool::new(known.is_some() || state.closed));
        state.flags.insert(unique, Arc::clone(&flag));
        flag
    }

    /// The request was answered.
    pub(crate) fn end(&self, unique: u64) {
        self.state.lock().flags.remove(&unique);
    }

    /// Flags a request as interrupted; false if it is not listed (yet).
    pub(crate) fn interrupt(&self, unique: u64) -> bool {
        let mut state = self.state.lock();
        if let Some(flag) = state.flags.get(&unique) {
            flag.store(true, Ordering::Release);
            return true;
        }
        if state.early.len() >= EARLY_MAX {
            state.early.pop_front();
        }
        state.early.push_back(unique);
        false
    }

    /// Flags everything as interrupted, also what comes later, and returns the numbers.
    /// Nothing the second time.
    pub(crate) fn close(&self) -> Vec<u64> {
        let mut state = self.state.lock();
        if std::mem::replace(&mut state.closed, true) {
            return Vec::new();
        }
        for flag in state.flags.values() {
            flag.store(true, Ordering::Release);
        }
        state.flags.keys().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_early_interrupt_meets_its_request() {
        let list = Inflight::default();
        assert!(!list.interrupt(7));
        assert!(!list.begin(8).load(Ordering::Acquire));
        assert!(list.begin(7).load(Ordering::Acquire));
        list.end(7);
        assert!(!list.begin(7).load(Ordering::Acquire), "it was remembered once");
        for unique in 100..100 + 2 * EARLY_MAX as u64 {
            assert!(!list.interrupt(unique));
        }
        assert!(!list.begin(100).load(Ordering::Acquire), "the oldest was forgotten");
    }

    #[test]
    fn closing_flags_what_is_there_and_what_comes() {
        let list = Inflight::default();
        let first = list.begin(1);
        list.begin(2);
        list.end(2);
        assert_eq!(list.close(), [1]);
        assert!(first.load(Ordering::Acquire));
        assert!(list.begin(3).load(Ordering::Acquire));
        assert!(list.close().is_empty());
    }
}
