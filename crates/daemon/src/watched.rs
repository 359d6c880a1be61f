//! Work on a thread of its own, watched by the thread that started it.
//!
//! # Theory
//! A thread that touches a pool may block for long: on a txg that cannot be written, on a
//! device that does not answer, or inside the kernel. So no thread that a client or another
//! pool depends on touches a pool. The work gets its own thread, and the watching thread
//! forwards its messages ([`Relay`]). The watcher wakes up four times a second and returns when
//! its caller's rule says so: the client is gone, the pool is suspended, or no message came for
//! too long. Abandoned work continues by itself and writes its messages to the log;
//! [`Listener::is_gone`] tells it that no client listens any more.
//!
//! # Invariants
//! * The watcher waits for the work's events alone, one tick at a time.
//! * The work itself releases what it holds (a pool's lock), however late.
//!
//! Lock order: `Pipe::state` is a leaf lock.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use base::rt::{self, Condvar, Instant, Mutex};
use proto::DatasetRow;

use super::handle::RowListener;
use super::state::{Listener, Log};

/// How often a watcher wakes up.
const TICK: Duration = Duration::from_millis(250);
/// Events queued for the watcher; the work waits while there are more.
const EVENTS_MAX: usize = 64;

enum RelayEvent {
    Progress(String, u64, u64),
    Problem(String),
    Remark(String),
    Rows(Vec<DatasetRow>),
    Bytes(Vec<u8>),
    Line(String),
    MoreInput,
}

#[derive(Default)]
struct RelayState {
    events: VecDeque<RelayEvent>,
    /// The work has ended.
    ended: bool,
    /// The watcher has returned.
    abandoned: bool,
}

#[derive(Default)]
struct Pipe {
    state: Mutex<RelayState>,
    changed: Condvar,
}

/// The work's end of the pipe: forwards messages to the watcher.
#[derive(Clone)]
pub(super) struct Relay(Arc<Pipe>);

impl Relay {
    fn send(&self, event: RelayEvent) {
        let mut state = self.0.state.lock();
        while state.events.len() >= EVENTS_MAX && !state.abandoned {
            self.0.changed.wait(&mut state);
        }
        if state.abandoned {
            drop(state);
            match event {
                RelayEvent::Problem(line) => Log.problem(line),
                RelayEvent::Remark(line) => Log.remark(line),
                RelayEvent::Progress(..)
                | RelayEvent::Rows(_)
                | RelayEvent::Bytes(_)
                | RelayEvent::Line(_)
                | RelayEvent::MoreInput => {}
            }
            return;
        }
        state.events.push_back(event);
        drop(state);
        self.0.changed.notify_all();
    }
}

impl Listener for Relay {
    fn progress(&mut self, what: &str, done: u64, total: u64) {
        self.send(RelayEvent::Progress(what.to_owned(), done, total));
    }
    fn problem(&mut self, line: String) {
        self.send(RelayEvent::Problem(line));
    }
    fn remark(&mut self, line: String) {
        self.send(RelayEvent::Remark(line));
    }
    fn is_gone(&self) -> bool {
        self.0.state.lock().abandoned
    }
}

impl RowListener for Relay {
    fn rows(&mut self, rows: Vec<DatasetRow>) {
        self.send(RelayEvent::Rows(rows));
    }
    fn bytes(&mut self, bytes: Vec<u8>) {
        self.send(RelayEvent::Bytes(bytes));
    }
    fn line(&mut self, line: String) {
        self.send(RelayEvent::Line(line));
    }
    fn more_input(&mut self) {
        self.send(RelayEvent::MoreInput);
    }
}

/// Marks the work as ended, also if it panics.
struct EndGuard(Relay);

impl Drop for EndGuard {
    fn drop(&mut self) {
        (self.0).0.state.lock().ended = true;
        (self.0).0.changed.notify_all();
    }
}

/// Marks the work as abandoned when the watcher returns.
struct LeaveGuard<'a>(&'a Pipe);

impl Drop for LeaveGuard<'_> {
    fn drop(&mut self) {
        self.0.state.lock().abandoned = true;
        self.0.changed.notify_all();
    }
}

fn pass(event: RelayEvent, to: &mut dyn RowListener) {
    match event {
        RelayEvent::Progress(what, done, total) => to.progress(&what, done, total),
        RelayEvent::Problem(line) => to.problem(line),
        RelayEvent::Remark(line) => to.remark(line),
        RelayEvent::Rows(rows) => to.rows(rows),
        RelayEvent::Bytes(bytes) => to.bytes(bytes),
        RelayEvent::Line(line) => to.line(line),
        RelayEvent::MoreInput => to.more_input(),
    }
}

/// Runs `work` on a thread of its own and forwards its messages. `leave` is called at each tick
/// with the time since the last message; if it returns true, the work is abandoned and the
/// result is `None`. The result is also `None` if no thread can be started or the work
/// panicked.
pub(super) fn run_watched<T: Send + 'static>(
    to: &mut dyn RowListener,
    leave: &mut dyn FnMut(&mut dyn RowListener, Duration) -> bool,
    work: impl FnOnce(&mut Relay) -> T + Send + 'static,
) -> Option<T> {
    let pipe = Arc::new(Pipe::default());
    let outcome = Arc::new(Mutex::new(None));
    let (relay, out) = (Relay(Arc::clone(&pipe)), Arc::clone(&outcome));
    let spawned = rt::spawn("work", move || {
        let mut ends = EndGuard(relay);
        let done = work(&mut ends.0);
        // If the watcher has left, no thread reads the result, and it is dropped with this one.
        *out.lock() = Some(done);
    });
    if let Err(e) = spawned {
        to.problem(e.to_string());
        return None;
    }
    let _abandon_on_return = LeaveGuard(&pipe);
    let mut last_event: Instant = rt::now();
    let mut state = pipe.state.lock();
    loop {
        if let Some(event) = state.events.pop_front() {
            drop(state);
            pipe.changed.notify_all();
            pass(event, to);
            last_event = rt::now();
            state = pipe.state.lock();
            continue;
        }
        if state.ended {
            break;
        }
        if pipe.changed.wait_timeout(&mut state, TICK) {
            drop(state);
            if leave(to, last_event.elapsed()) {
                return None;
            }
            state = pipe.state.lock();
        }
    }
    drop(state);
    outcome.lock().take()
}

/// Drops a value on a thread of its own, because the drop may close files of a silent device.
pub(super) fn drop_in_background(what: impl Send + 'static) {
    // If no thread can be started, the closure is dropped here, with the value.
    let _thread = rt::spawn("bury", move || drop(what));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct RecordingListener {
        lines: Vec<String>,
        rows: usize,
        gone: bool,
    }

    impl Listener for RecordingListener {
        fn progress(&mut self, what: &str, _: u64, _: u64) {
            self.lines.push(what.to_owned());
        }
        fn problem(&mut self, line: String) {
            self.lines.push(line);
        }
        fn remark(&mut self, line: String) {
            self.lines.push(line);
        }
        fn is_gone(&self) -> bool {
            self.gone
        }
    }

    impl RowListener for RecordingListener {
        fn rows(&mut self, rows: Vec<DatasetRow>) {
            self.rows += rows.len().max(1);
        }
        fn bytes(&mut self, _: Vec<u8>) {}
        fn line(&mut self, _: String) {}
        fn more_input(&mut self) {}
    }

    #[test]
    fn messages_arrive_in_order() {
        let mut recorded = RecordingListener::default();
        let done = run_watched(&mut recorded, &mut |_, _| false, |relay| {
            for n in 0..1000 {
                relay.problem(n.to_string());
            }
            relay.rows(Vec::new());
            7
        });
        assert_eq!((done, recorded.lines.len(), recorded.rows), (Some(7), 1000, 1));
        assert!(recorded.lines.iter().enumerate().all(|(n, line)| *line == n.to_string()));
    }

    /// A thread that never returned from the kernel blocked the client that waited for it.
    #[test]
    fn work_that_hangs_is_abandoned() {
        let (mut recorded, hangs) =
            (RecordingListener::default(), Arc::new(rt::OneShot::<()>::new()));
        let (held, seen) = (Arc::clone(&hangs), Arc::new(rt::OneShot::new()));
        let says = Arc::clone(&seen);
        let mut silent = Duration::ZERO;
        let leave = &mut |_: &mut dyn RowListener, quiet| {
            silent = quiet;
            quiet > Duration::from_millis(300)
        };
        let done = run_watched(&mut recorded, leave, move |relay| {
            relay.remark("begins".to_owned());
            held.wait();
            says.set(relay.is_gone());
        });
        assert_eq!((done, recorded.lines), (None, vec!["begins".to_owned()]));
        assert!(silent > Duration::from_millis(300));
        hangs.set(());
        assert!(seen.wait(), "the work does not see that its watcher has left");
        let panicked = run_watched(&mut RecordingListener::default(), &mut |_, _| false, |_| {
            std::panic::resume_unwind(Box::new(()));
        });
        assert_eq!(panicked, None::<()>);
    }
}
