//! One seeded scheduler for production threads.
//!
//! # Theory
//! Inside [`run`] the threads are real ones of the operating system, yet only the one
//! that holds the *baton* runs. At each scheduling point (taking and releasing a lock,
//! waiting, notifying, starting and joining threads, sleeping, a thread's end) a coin
//! of the run's seed decides whether the baton goes to another thread, and which. So
//! the same seed gives the same interleaving, and the engine's own code runs.
//!
//! * **Time is virtual.** A step costs [`Options::step`]; when nobody can run, the
//!   clock jumps to the nearest timer. Nobody can run and there is no timer: that is
//!   a deadlock, and [`Outcome::Deadlock`] names who waits where for whom.
//! * **The end of the world.** [`halt`] (a power cut), a panic, a deadlock or the step
//!   limit end a run: each member thread unwinds from the scheduling point it stands
//!   at, one after the other, still handing the baton on. What is dropped on the way
//!   may lock, wait and join, without ever unwinding a second time; so a `Drop` that
//!   waits for something that nobody will do any more keeps its thread for ever. Such
//!   threads are left behind and named in [`Run::stuck`]; [`ended`] tells such a `Drop`.
//! * **Membership is a thread's.** Threads that a member starts are members. All
//!   others go on as before, and several runs live side by side.
//!
//! # Invariants
//! * No member waits in the operating system while it holds the baton: locks are
//!   tried, never waited for. (`OnceLock` and atomics are outside: an initialiser must
//!   not contain a scheduling point, and a loop that spins on an atomic alone hangs.)
//! * Nothing of the schedule depends on an address, on real time or on the operating
//!   system. What the *program* takes from elsewhere (the iteration order of a
//!   `HashMap` with random keys, the address of an allocation) still differs.
//! * A notification reaches members only, and comes from members only.
//!
//! Lock order: the scheduler's own state is a leaf.

mod member;
mod rng;
#[cfg(test)]
mod tests;
mod world;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

pub(super) use member::{Joinable, Member};
pub use rng::Rng;

/// Runs under way in this process: while zero, no operation looks further.
static RUNS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static ME: RefCell<Option<Rc<Member>>> = const { RefCell::new(None) };
}

/// The calling thread's place in a run, if it has one.
#[inline]
pub(super) fn member() -> Option<Rc<Member>> {
    if RUNS.load(Relaxed) == 0 { None } else { find_member() }
}

#[cold]
fn find_member() -> Option<Rc<Member>> {
    ME.try_with(|me| me.try_borrow().ok().and_then(|me| me.clone())).ok().flatten()
}

/// How a run goes. All of it belongs to the seed that brings a run back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Decides every choice.
    pub seed: u64,
    /// The baton changes hands at one in so many scheduling points (0: only when a
    /// thread must wait).
    pub switch_every: u64,
    /// One in so many waits on a condition returns without a notification (0: none).
    pub spurious_every: u64,
    /// Virtual time that a step takes.
    pub step: Duration,
    /// Steps after which the run ends as [`Outcome::Limit`].
    pub max_steps: u64,
    /// Steps that the other threads may still make once the body has returned.
    pub drain_steps: u64,
    /// What `rt::parallelism` says.
    pub parallelism: usize,
    /// How many of the last steps [`Run::trace`] holds.
    pub trace: usize,
}

impl Options {
    /// The usual run of a seed: a switch at one in eight points.
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

    /// A run whose manner follows from the seed too: threads that change at every
    /// step, or hardly ever, and waits that end for no reason.
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
    /// Somebody called [`halt`].
    Halted,
    /// Nobody could run any more; who waits where.
    Deadlock(String),
    /// A thread panicked.
    Panicked {
        /// Its name.
        thread: String,
        /// Its message.
        message: String,
    },
    /// The run went on for too long, or waited for a lock held outside of it.
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

    /// The same end with another value.
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

/// What a scheduling point was about.
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
    /// Its number.
    pub step: u64,
    /// The thread's number, in order of their start.
    pub thread: u32,
    /// The thread's name.
    pub name: String,
    /// What it did.
    pub kind: Kind,
    /// Where, as file and line.
    pub at: String,
}

/// A run's end and what it took.
#[derive(Debug)]
pub struct Run<T> {
    /// How it ended.
    pub outcome: Outcome<T>,
    /// Scheduling points passed.
    pub steps: u64,
    /// How often the baton changed hands.
    pub switches: u64,
    /// Threads that took part.
    pub threads: u32,
    /// Virtual time that passed.
    pub time: Duration,
    /// A hash over all steps: equal for equal schedules.
    pub hash: u64,
    /// The last steps.
    pub trace: Vec<Event>,
    /// Threads that were still there when the body had returned, and were unwound.
    pub left: Vec<String>,
    /// Threads left behind because they waited in a `Drop` for something that could
    /// not happen any more; a bug of that `Drop`.
    pub stuck: Vec<String>,
}

/// Runs `body` and all the threads it starts under the schedule of `seed`.
pub fn run<T: Send + 'static>(seed: u64, body: impl FnOnce() -> T + Send + 'static) -> Run<T> {
    run_with(Options::new(seed), body)
}

/// As [`run`], with a say in how.
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

/// Ends the caller's run as a power cut would: nobody gets past its next scheduling
/// point. Does not return, unless the caller is unwinding already or is no member.
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

/// Whether the caller's run has ended and its threads unwind. A `Drop` that would
/// wait for another thread's work asks this first.
pub fn ended() -> bool {
    member().is_some_and(|me| me.ended())
}

/// Whether the caller is a member of a run.
pub fn inside() -> bool {
    member().is_some()
}

/// Steps made so far in the caller's run; 0 outside.
pub fn steps() -> u64 {
    member().map_or(0, |me| me.steps())
}
