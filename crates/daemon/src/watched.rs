//! Work on a thread of its own, watched by the one that was asked for it.
//!
//! # Theory
//! A thread that touches a pool may be held for long: by a group that cannot be written,
//! by a device that does not answer, in the end by the kernel. So no thread that a client
//! or another pool depends on touches one. The work gets a thread, and what it has to say
//! ([`Relay`]) is passed on by the thread that watches it. The watcher looks up four times
//! a second, and leaves when its own rule says so: the client is gone, the pool is
//! suspended, or nothing came for too long. Work that is left behind goes on by itself, and
//! writes to the log what it has to say; it sees that nobody listens any more.
//!
//! # Invariants
//! * The watcher waits for nothing but the work's events, a tick at a time.
//! * What the work holds (a pool's turn) it gives back itself, however late.
//!
//! Lock order: `Pipe::state` is a leaf lock.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use base::rt::{self, Condvar, Instant, Mutex};
use proto::DatasetRow;

use super::handle::RowListener;
use super::state::{Listener, Log};

/// How often a watcher looks up.
const TICK: Duration = Duration::from_millis(250);
/// Events that wait for the watcher; more make the work wait.
const EVENTS_MAX: usize = 64;

enum RelayEvent {
    Progress(String, u64, u64),
    Problem(String),
    Remark(String),
    Rows(Vec<DatasetRow>),
}

#[derive(Default)]
struct RelayState {
    events: VecDeque<RelayEvent>,
    /// The work is over.
    ended: bool,
    /// The watcher is gone.
    abandoned: bool,
}

#[derive(Default)]
struct Pipe {
    state: Mutex<RelayState>,
    changed: Condvar,
}

/// What the work says goes to its watcher.
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
                RelayEvent::Progress(..) | RelayEvent::Rows(_) => {}
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
}

/// Ends the pipe, also when the work panics.
struct EndGuard(Relay);

impl Drop for EndGuard {
    fn drop(&mut self) {
        (self.0).0.state.lock().ended = true;
        (self.0).0.changed.notify_all();
    }
}

/// The watcher leaves.
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
    }
}

/// Does `work` beside this thread and passes on what it says. `leave` is asked at each tick,
/// with the time for which the work said nothing; true leaves it behind, and there is no
/// outcome. None either where no thread can be had, or the work panicked.
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
        // After the end nobody looks, and what it holds is dropped here.
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

/// Does `work` that is a thread's last word to nobody, such as dropping what may close files
/// of a silent device.
pub(super) fn drop_in_background(what: impl Send + 'static) {
    // Without a thread it is dropped with the closure, here.
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
    }

    #[test]
    fn everything_is_heard_in_order() {
        let mut last_event = RecordingListener::default();
        let done = run_watched(&mut heard, &mut |_, _| false, |relay| {
            for n in 0..1000 {
                relay.problem(n.to_string());
            }
            relay.rows(Vec::new());
            7
        });
        assert_eq!((done, last_event.lines.len(), last_event.rows), (Some(7), 1000, 1));
        assert!(last_event.lines.iter().enumerate().all(|(n, line)| *line == n.to_string()));
    }

    /// A thread in the kernel that never comes back held the client that waited for it.
    #[test]
    fn work_that_hangs_is_left_behind() {
        let (mut heard, hangs) = (RecordingListener::default(), Arc::new(rt::OneShot::<()>::new()));
        let (held, told) = (Arc::clone(&hangs), Arc::new(rt::OneShot::new()));
        let says = Arc::clone(&told);
        let mut silent = Duration::ZERO;
        let leave = &mut |_: &mut dyn RowListener, quiet| {
            silent = quiet;
            quiet > Duration::from_millis(300)
        };
        let done = run_watched(&mut heard, leave, move |relay| {
            relay.remark("begins".to_owned());
            held.wait();
            says.set(relay.is_gone());
        });
        assert_eq!((done, last_event.lines), (None, vec!["begins".to_owned()]));
        assert!(silent > Duration::from_millis(300));
        hangs.set(());
        assert!(told.wait(), "it does not see that nobody listens");
        let panicked = run_watched(&mut RecordingListener::default(), &mut |_, _| false, |_| {
            std::panic::resume_unwind(Box::new(()));
        });
        assert_eq!(panicked, None::<()>);
    }
}
