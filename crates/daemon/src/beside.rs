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
use proto::Row;

use super::handle::RowListener;
use super::state::{Listener, Log};

/// How often a watcher looks up.
const TICK: Duration = Duration::from_millis(250);
/// Events that wait for the watcher; more make the work wait.
const EVENTS_MAX: usize = 64;

enum Event {
    Progress(String, u64, u64),
    Problem(String),
    Remark(String),
    Rows(Vec<Row>),
}

#[derive(Default)]
struct State {
    events: VecDeque<Event>,
    /// The work is over.
    ended: bool,
    /// The watcher is gone.
    left: bool,
}

#[derive(Default)]
struct Pipe {
    state: Mutex<State>,
    changed: Condvar,
}

/// What the work says goes to its watcher.
#[derive(Clone)]
pub(super) struct Relay(Arc<Pipe>);

impl Relay {
    fn send(&self, event: Event) {
        let mut state = self.0.state.lock();
        while state.events.len() >= EVENTS_MAX && !state.left {
            self.0.changed.wait(&mut state);
        }
        if state.left {
            drop(state);
            match event {
                Event::Problem(line) => Log.problem(line),
                Event::Remark(line) => Log.remark(line),
                Event::Progress(..) | Event::Rows(_) => {}
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
        self.send(Event::Progress(what.to_owned(), done, total));
    }
    fn problem(&mut self, line: String) {
        self.send(Event::Problem(line));
    }
    fn remark(&mut self, line: String) {
        self.send(Event::Remark(line));
    }
    fn is_gone(&self) -> bool {
        self.0.state.lock().left
    }
}

impl RowListener for Relay {
    fn rows(&mut self, rows: Vec<Row>) {
        self.send(Event::Rows(rows));
    }
}

/// Ends the pipe, also when the work panics.
struct Ends(Relay);

impl Drop for Ends {
    fn drop(&mut self) {
        (self.0).0.state.lock().ended = true;
        (self.0).0.changed.notify_all();
    }
}

/// The watcher leaves.
struct Leaves<'a>(&'a Pipe);

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        self.0.state.lock().left = true;
        self.0.changed.notify_all();
    }
}

fn pass(event: Event, to: &mut dyn RowListener) {
    match event {
        Event::Progress(what, done, total) => to.progress(&what, done, total),
        Event::Problem(line) => to.problem(line),
        Event::Remark(line) => to.remark(line),
        Event::Rows(rows) => to.rows(rows),
    }
}

/// Does `work` beside this thread and passes on what it says. `leave` is asked at each tick,
/// with the time for which the work said nothing; true leaves it behind, and there is no
/// outcome. None either where no thread can be had, or the work panicked.
pub(super) fn beside<T: Send + 'static>(
    to: &mut dyn RowListener,
    leave: &mut dyn FnMut(&mut dyn RowListener, Duration) -> bool,
    work: impl FnOnce(&mut Relay) -> T + Send + 'static,
) -> Option<T> {
    let pipe = Arc::new(Pipe::default());
    let outcome = Arc::new(Mutex::new(None));
    let (relay, out) = (Relay(Arc::clone(&pipe)), Arc::clone(&outcome));
    let spawned = rt::spawn("work", move || {
        let mut ends = Ends(relay);
        let done = work(&mut ends.0);
        // After the end nobody looks, and what it holds is dropped here.
        *out.lock() = Some(done);
    });
    if let Err(e) = spawned {
        to.problem(e.to_string());
        return None;
    }
    let _left = Leaves(&pipe);
    let mut heard: Instant = rt::now();
    let mut state = pipe.state.lock();
    loop {
        if let Some(event) = state.events.pop_front() {
            drop(state);
            pipe.changed.notify_all();
            pass(event, to);
            heard = rt::now();
            state = pipe.state.lock();
            continue;
        }
        if state.ended {
            break;
        }
        if pipe.changed.wait_timeout(&mut state, TICK) {
            drop(state);
            if leave(to, heard.elapsed()) {
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
pub(super) fn bury(what: impl Send + 'static) {
    // Without a thread it is dropped with the closure, here.
    let _thread = rt::spawn("bury", move || drop(what));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Heard {
        lines: Vec<String>,
        rows: usize,
        gone: bool,
    }

    impl Listener for Heard {
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

    impl RowListener for Heard {
        fn rows(&mut self, rows: Vec<Row>) {
            self.rows += rows.len().max(1);
        }
    }

    #[test]
    fn everything_is_heard_in_order() {
        let mut heard = Heard::default();
        let done = beside(&mut heard, &mut |_, _| false, |relay| {
            for n in 0..1000 {
                relay.problem(n.to_string());
            }
            relay.rows(Vec::new());
            7
        });
        assert_eq!((done, heard.lines.len(), heard.rows), (Some(7), 1000, 1));
        assert!(heard.lines.iter().enumerate().all(|(n, line)| *line == n.to_string()));
    }

    /// A thread in the kernel that never comes back held the client that waited for it.
    #[test]
    fn work_that_hangs_is_left_behind() {
        let (mut heard, hangs) = (Heard::default(), Arc::new(rt::OneShot::<()>::new()));
        let (held, told) = (Arc::clone(&hangs), Arc::new(rt::OneShot::new()));
        let says = Arc::clone(&told);
        let mut silent = Duration::ZERO;
        let leave = &mut |_: &mut dyn RowListener, quiet| {
            silent = quiet;
            quiet > Duration::from_millis(300)
        };
        let done = beside(&mut heard, leave, move |relay| {
            relay.remark("begins".to_owned());
            held.wait();
            says.set(relay.is_gone());
        });
        assert_eq!((done, heard.lines), (None, vec!["begins".to_owned()]));
        assert!(silent > Duration::from_millis(300));
        hangs.set(());
        assert!(told.wait(), "it does not see that nobody listens");
        let panicked = beside(&mut Heard::default(), &mut |_, _| false, |_| {
            std::panic::resume_unwind(Box::new(()));
        });
        assert_eq!(panicked, None::<()>);
    }
}
