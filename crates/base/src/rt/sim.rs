//! A seeded scheduler for production threads.
//!
//! # Theory
//! Inside [`run`] the threads are real threads of the operating system, but only the
//! one that holds the *baton* runs. At each scheduling point (taking and releasing a
//! lock, waiting, notifying, starting and joining threads, sleeping, a thread's end) a
//! random number from the run's seed decides whether the baton passes to another
//! thread, and to which. So the same seed gives the same interleaving, and the engine's
//! production code runs.
//!
//! * **Time is virtual.** A step costs [`Options::step`]. When no thread can run, the
//!   clock jumps to the nearest timer. When no thread can run and there is no timer,
//!   the run is deadlocked, and [`Outcome::Deadlock`] names each waiting thread, where
//!   it waits and which thread holds the lock.
//! * **End of a run.** [`halt`] (a power cut), a panic, a deadlock or the step limit
//!   end a run. The member threads unwind one after the other, each from its current
//!   scheduling point, still passing the baton on. Values dropped during unwinding may
//!   lock, wait and join without unwinding a second time. A `Drop` that waits for an
//!   event which can no longer happen therefore keeps its thread for ever. Such threads
//!   are left behind and named in [`Run::stuck`]; a `Drop` can check [`ended`] to avoid
//!   this.
//! * **Membership belongs to a thread.** Threads that a member starts are members. All
//!   other threads are unaffected, and several runs can be active side by side.
//!
//! # Invariants
//! * No member waits in the operating system while it holds the baton: locks are
//!   tried, never waited for. (`OnceLock` and atomics are outside: an initialiser must
//!   not contain a scheduling point, and a loop that spins on an atomic alone hangs.)
//! * The schedule does not depend on addresses, on real time or on the operating
//!   system. What the *program* takes from elsewhere (the iteration order of a
//!   `HashMap` with random keys, the address of an allocation) still differs.
//! * A notification reaches members only, and comes from members only.
//!
//! Lock order: the scheduler's own state is a leaf.

mod member;
mod rng;
mod scheduler;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

pub(super) use member::{Joinable, Member};
pub use rng::Rng;

/// Active runs in this process. While it is zero, operations skip the thread-local
/// check.
static RUNS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static ME: RefCell<Option<Rc<Member>>> = const { RefCell::new(None) };
}

/// The calling thread's membership in a run, if it has one.
#[inline]
pub(super) fn member() -> Option<Rc<Member>> {
    if RUNS.load(Relaxed) == 0 { None } else { find_member() }
}

#[cold]
fn find_member() -> Option<Rc<Member>> {
    ME.try_with(|me| me.try_borrow().ok().and_then(|me| me.clone())).ok().flatten()
}

/// How a run proceeds. All of it is needed, with the seed, to reproduce a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Determines every choice.
    pub seed: u64,
    /// The baton passes to another thread at one in this many scheduling points (0:
    /// only when a thread must wait).
    pub switch_every: u64,
    /// One in this many waits on a condition returns without a notification (0: none).
    pub spurious_every: u64,
    /// Virtual time that a step takes.
    pub step: Duration,
    /// Steps after which the run ends as [`Outcome::Limit`].
    pub max_steps: u64,
    /// Steps that the other threads may still make after the body has returned.
    pub drain_steps: u64,
    /// The value of `rt::parallelism`.
    pub parallelism: usize,
    /// Number of last steps that [`Run::trace`] holds.
    pub trace: usize,
}

impl Options {
    /// The usual run for a seed: a switch at one in eight points.
    pub fn new(seed: u64) -> Options {
        Options {
            seed,
            switch_every: 8,
            spurious_every: 0,
            step: Duration::from_micros(1),
            max_steps: 20_000_000,
            drain_steps: 20_000,
            parallelism: 4,
            trace: 0,
        }
    }

    /// A run whose parameters also follow from the seed: threads that switch at every
    /// step or hardly ever, and spurious wake-ups.
    pub fn varied(seed: u64) -> Options {
        let mut rng = Rng::stream(seed, 3);
        let pick = |rng: &mut Rng, of: [u64; 4]| of[rng.below(4) as usize];
        Options {
            switch_every: pick(&mut rng, [2, 8, 32, 128]),
            spurious_every: pick(&mut rng, [0, 0, 16, 64]),
            ..Options::new(seed)
        }
    }
}

/// How a run ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome<T> {
    /// The body returned.
    Done(T),
    /// A thread called [`halt`].
    Halted,
    /// No thread could run any more; the text says what each waits for, and where.
    Deadlock(String),
    /// A thread panicked.
    Panicked {
        /// Its name.
        thread: String,
        /// Its message.
        message: String,
    },
    /// The run took too many steps, or waited for a lock held outside of it.
    Limit(String),
}

impl<T> Outcome<T> {
    /// The body's value, if it returned one.
    pub fn done(self) -> Option<T> {
        match self {
            Outcome::Done(value) => Some(value),
            _ => None,
        }
    }

    /// The same outcome with another value.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Outcome<U> {
        match self {
            Outcome::Done(value) => Outcome::Done(f(value)),
            Outcome::Halted => Outcome::Halted,
            Outcome::Deadlock(who) => Outcome::Deadlock(who),
            Outcome::Panicked { thread, message } => Outcome::Panicked { thread, message },
            Outcome::Limit(why) => Outcome::Limit(why),
        }
    }
}

/// The operation at a scheduling point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A thread begins.
    Start,
    /// A mutex is to be taken.
    Lock,
    /// A mutex is tried.
    TryLock,
    /// Shared access is to be taken.
    Read,
    /// Exclusive access is to be taken.
    Write,
    /// A lock was released.
    Unlock,
    /// A wait for a condition.
    Wait,
    /// A condition was notified.
    Notify,
    /// A thread was started.
    Spawn,
    /// A wait for a thread's end.
    Join,
    /// A wait for time to pass.
    Sleep,
    /// [`point`].
    Point,
    /// A thread ends.
    End,
}

/// One step of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its sequence number.
    pub step: u64,
    /// The thread's index, in order of start.
    pub thread: u32,
    /// The thread's name.
    pub name: String,
    /// The operation.
    pub kind: Kind,
    /// Where, as file and line.
    pub at: String,
}

/// The outcome of a run, with its statistics.
#[derive(Debug)]
pub struct Run<T> {
    /// How it ended.
    pub outcome: Outcome<T>,
    /// Scheduling points.
    pub steps: u64,
    /// How often the baton passed to another thread.
    pub switches: u64,
    /// Threads that took part.
    pub threads: u32,
    /// Virtual time that passed.
    pub time: Duration,
    /// A hash over all steps: equal for equal schedules.
    pub hash: u64,
    /// The last steps.
    pub trace: Vec<Event>,
    /// Threads that still existed when the body had returned, and were unwound.
    pub left: Vec<String>,
    /// Threads left behind because they waited in a `Drop` for an event that could no
    /// longer happen; a bug of that `Drop`.
    pub stuck: Vec<String>,
}

/// Runs `body` and all threads that it starts under the schedule of `seed`.
pub fn run<T: Send + 'static>(seed: u64, body: impl FnOnce() -> T + Send + 'static) -> Run<T> {
    run_with(Options::new(seed), body)
}

/// As [`run`], with explicit options.
pub fn run_with<T: Send + 'static>(
    options: Options,
    body: impl FnOnce() -> T + Send + 'static,
) -> Run<T> {
    struct Counted;
    impl Drop for Counted {
        fn drop(&mut self) {
            RUNS.fetch_sub(1, Relaxed);
        }
    }
    RUNS.fetch_add(1, Relaxed);
    let _counted = Counted;
    member::begin(options, body)
}

/// Ends the caller's run as a power cut would: no thread passes its next scheduling
/// point. Does not return, unless the caller is already unwinding or is not a member.
pub fn halt() {
    if let Some(me) = member() {
        me.halt();
    }
}

/// A scheduling point for code that has none of its own, such as a simulated device;
/// does nothing outside a run.
#[track_caller]
pub fn point() {
    if let Some(me) = member() {
        me.point(Kind::Point, std::panic::Location::caller());
    }
}

/// Whether the caller's run has ended and its threads unwind. A `Drop` that waits for
/// another thread's work checks this first.
pub fn ended() -> bool {
    member().is_some_and(|me| me.ended())
}

/// Whether the caller is a member of a run.
pub fn inside() -> bool {
    member().is_some()
}

/// Steps of the caller's run so far; 0 outside a run.
pub fn steps() -> u64 {
    member().map_or(0, |me| me.steps())
}
