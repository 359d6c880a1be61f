//! Keeps idle cores from halting while requests come thick.
//!
//! # Theory
//! A caller and its server take turns, and at each turn one core falls idle and another is
//! woken. A core that halts is slow to come back: in a virtual machine, whose host has to
//! be asked, 20 µs and more, which is more than most answers take. Whoever may write to
//! `/dev/cpu_dma_latency` says how soon cores must be back (the kernel's PM QoS interface);
//! at 0 they poll instead of halting, and to wake one takes no interrupt.
//!
//! That costs the time of idle cores, so it is asked for only while it pays: from [`BURSTS`]
//! times [`BURST`] requests on that came thick ([`Span::is_thick`]): within [`GAP`] of each
//! other on average, and hardly ever slept; or one after the other, within [`GAP_ALONE`],
//! whether they sleep or not: one synchronous writer is woken four times a write. But where
//! several sleep at once, cores are seldom idle, and in a virtual machine those that poll
//! take the processor from the host's threads that work for the disk (eight synchronous
//! writers had half their rate). A thread, the *watch*, looks every [`TICK`] whether it is
//! still so.
//!
//! # States
//! *off* → (a receiving thread sees the bursts) → *on* → (the watch sees a thin tick) →
//! *off*. The watch is parked while it is off.
//!
//! # Invariants
//! * Cores are held only between two ticks of the watch, so until two ticks after the last
//!   request; the kernel lets them go with the descriptor, whatever becomes of the process.
//!
//! Lock order: `state` is a leaf, taken once in [`BURST`] requests.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use base::rt::{Condvar, Instant, JoinHandle, Mutex, now, spawn};
use base::{Error, Result};

/// How many requests are looked at together, and how many times in a row.
const BURST: u64 = 64;
const BURSTS: u32 = 2;
/// Time between two requests, on average; between two of which none waits beside another.
const GAP: Duration = Duration::from_micros(100);
const GAP_ALONE: Duration = Duration::from_micros(200);
/// Of so many requests one may sleep, or come while another is served.
const FEW: u64 = 8;
/// How often the watch looks.
const TICK: Duration = Duration::from_millis(4);

/// Where the kernel is told.
const DEVICE: &str = "/dev/cpu_dma_latency";
/// What idle cores do.
const DRIVER: &str = "/sys/devices/system/cpu/cpuidle/current_driver";
/// The driver of virtual machines, where only 0 keeps a core from halting.
const VIRTUAL: &str = "haltpoll";
/// Microseconds: elsewhere the lightest halt is left, and nothing asked for is this.
const LIGHT: i32 = 2;
const ANY: i32 = 2_000_000_000;

/// Holds cores awake, or lets them go.
type Hold = Box<dyn FnMut(bool) + Send>;

/// What came, from the beginning or for a while.
#[derive(Clone, Copy, Default)]
struct Span {
    /// Requests.
    came: u64,
    /// How many of them came while another was served.
    beside: u64,
    /// How many times a thread that served one slept.
    slept: u64,
}

impl Span {
    fn since(self, before: Span) -> Span {
        Span {
            came: self.came - before.came,
            beside: self.beside.saturating_sub(before.beside),
            slept: self.slept.saturating_sub(before.slept),
        }
    }

    /// Whether it pays to keep cores awake for what came in `time`.
    fn is_thick(self, time: Duration) -> bool {
        let within = |gap: Duration| time.as_nanos() <= gap.as_nanos() * u128::from(self.came);
        let few = |count: u64| count * FEW <= self.came;
        within(GAP) && few(self.slept) || within(GAP_ALONE) && few(self.beside)
    }
}

#[derive(Default)]
struct State {
    on: bool,
    /// Thick bursts in a row, and when and where the next one began.
    bursts: u32,
    since: Option<Instant>,
    before: Span,
    closed: bool,
}

#[derive(Default)]
struct Shared {
    came: AtomicU64,
    beside: AtomicU64,
    slept: AtomicU64,
    /// Requests that are being served.
    served: AtomicU64,
    state: Mutex<State>,
    changed: Condvar,
}

/// A request that is being served.
pub(crate) struct Served<'a>(&'a Shared);

impl Drop for Served<'_> {
    fn drop(&mut self) {
        self.0.served.fetch_sub(1, Relaxed);
    }
}

/// Keeps cores awake for all sessions of a process; see the module.
pub struct Awake {
    shared: Arc<Shared>,
    watch: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Awake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Awake").finish_non_exhaustive()
    }
}

impl Awake {
    /// Whether idle cores halt for long here: in a virtual machine, where the kernel knows
    /// another way.
    pub fn pays() -> bool {
        driver().is_some_and(|driver| driver == VIRTUAL)
    }

    /// What a mount has unless told otherwise: one where it pays and we may.
    pub fn by_default() -> Option<Arc<Awake>> {
        Awake::pays().then(Awake::new)?.ok().map(Arc::new)
    }

    /// One that asks the kernel.
    ///
    /// # Errors
    /// There is nothing to ask for, or only root may.
    pub fn new() -> Result<Awake> {
        let none = || Error::unsupported("keepawake: the kernel has no say in what idle cores do");
        let driver = driver().ok_or_else(none)?;
        let least = if driver == VIRTUAL { 0 } else { LIGHT };
        let open = File::options().write(true).open(Path::new(DEVICE));
        let mut device = open.map_err(|e| Error::io(format!("keepawake: {DEVICE}"), e))?;
        Awake::with(Box::new(move |on| {
            let wanted = if on { least } else { ANY };
            // Without it all works, slower.
            let _slower = device.write_all(&wanted.to_ne_bytes());
        }))
    }

    fn with(hold: Hold) -> Result<Awake> {
        let shared = Arc::new(Shared::default());
        let of_watch = Arc::clone(&shared);
        let watch = spawn("keep-awake", move || of_watch.watch(hold))?;
        Ok(Awake { shared, watch: Some(watch) })
    }

    /// A request came; it is served until what is returned is dropped.
    pub(crate) fn came(&self) -> Served<'_> {
        let shared = &*self.shared;
        if shared.served.fetch_add(1, Relaxed) > 0 {
            shared.beside.fetch_add(1, Relaxed);
        }
        if shared.came.fetch_add(1, Relaxed).is_multiple_of(BURST) {
            shared.burst();
        }
        Served(shared)
    }

    /// A thread that serves a request is about to sleep.
    pub(crate) fn slept(&self) {
        self.shared.slept.fetch_add(1, Relaxed);
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        self.shared.state.lock().closed = true;
        self.shared.changed.notify_all();
        if let Some(watch) = self.watch.take() {
            watch.join();
        }
    }
}

/// None where idle cores only halt.
fn driver() -> Option<String> {
    let name = std::fs::read_to_string(DRIVER).ok()?.trim().to_owned();
    (name != "none").then_some(name)
}

impl Shared {
    fn so_far(&self) -> Span {
        Span {
            came: self.came.load(Relaxed),
            beside: self.beside.load(Relaxed),
            slept: self.slept.load(Relaxed),
        }
    }

    /// Another [`BURST`] requests came.
    fn burst(&self) {
        let mut state = self.state.lock();
        if state.on {
            return;
        }
        let (at, so_far) = (now(), self.so_far());
        let took = state.since.replace(at).map(|since| at.since(since));
        let span = so_far.since(std::mem::replace(&mut state.before, so_far));
        let thick = took.is_some_and(|took| span.is_thick(took));
        state.bursts = if thick { state.bursts + 1 } else { 0 };
        if state.bursts >= BURSTS {
            (state.on, state.bursts) = (true, 0);
            drop(state);
            self.changed.notify_all();
        }
    }

    /// The watch's life.
    fn watch(&self, mut hold: Hold) {
        let mut state = self.state.lock();
        loop {
            while !state.on && !state.closed {
                self.changed.wait(&mut state);
            }
            if state.closed {
                return;
            }
            drop(state);
            hold(true);
            while self.tick() {}
            hold(false);
            state = self.state.lock();
            (state.on, state.since) = (false, None);
        }
    }

    /// Whether requests came thick for another tick.
    fn tick(&self) -> bool {
        let before = self.so_far();
        let mut state = self.state.lock();
        self.changed.wait_timeout(&mut state, TICK);
        self.so_far().since(before).is_thick(TICK) && !state.closed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    const LONG: Duration = Duration::from_secs(20);

    fn awake() -> (Awake, Arc<AtomicBool>, Arc<AtomicU64>) {
        let (on, times) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (held, count) = (Arc::clone(&on), Arc::clone(&times));
        let hold = move |wanted| {
            held.store(wanted, Relaxed);
            count.fetch_add(u64::from(wanted), Relaxed);
        };
        (Awake::with(Box::new(hold)).unwrap(), on, times)
    }

    /// Whether it comes about before long, with `meanwhile` again and again.
    fn comes(what: impl Fn() -> bool, meanwhile: impl Fn()) -> bool {
        let start = now();
        while !what() && start.elapsed() < LONG {
            meanwhile();
        }
        what()
    }

    #[test]
    fn cores_are_held_while_requests_come_thick() {
        let (awake, on, times) = awake();
        assert!(comes(|| on.load(Relaxed), || drop(awake.came())));
        assert!(comes(|| !on.load(Relaxed), || std::thread::sleep(Duration::from_millis(1))));
        assert!(comes(|| times.load(Relaxed) > 1, || drop(awake.came())));
        // Whoever drops it lets go.
        drop(awake);
        assert!(!on.load(Relaxed));
    }

    #[test]
    fn cores_are_held_for_one_who_waits_for_a_disk_alone() {
        let (awake, on, _) = awake();
        let awake = Arc::new(awake);
        let own = Arc::clone(&awake);
        let writer = move || {
            comes(
                || on.load(Relaxed),
                || {
                    let _served = own.came();
                    own.slept();
                },
            )
        };
        assert_eq!(spawn("serves", writer).unwrap().join(), Some(true));
        assert!(awake.shared.slept.load(Relaxed) >= BURST);
        assert_eq!(awake.shared.served.load(Relaxed), 0);
    }

    #[test]
    fn nobody_is_held_for_requests_that_sleep_or_are_few() {
        let (awake, _, times) = awake();
        let awake = Arc::new(awake);
        let own = Arc::clone(&awake);
        let asleep = move || {
            let awake = own;
            // Two at a time.
            let other = awake.came();
            for _ in 0..20 * BURST {
                let _served = awake.came();
                awake.slept();
            }
            drop(other);
            for _ in 0..4 * BURST {
                let _served = awake.came();
                std::thread::sleep(2 * GAP_ALONE);
            }
        };
        assert!(spawn("serves", asleep).unwrap().join().is_some());
        assert_eq!(awake.shared.slept.load(Relaxed), 20 * BURST);
        assert_eq!(times.load(Relaxed), 0);
    }
}
