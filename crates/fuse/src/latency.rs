//! Keeps idle cores from halting while requests are dense (`-o keepawake`).
//!
//! # Theory
//! A caller and its server alternate: at each step one core becomes idle and another is
//! woken. A core that halts is slow to wake: in a virtual machine, whose hypervisor is
//! involved, 20 µs and more, which is more than most answers take. A process that may write
//! to `/dev/cpu_dma_latency` sets the latency that it tolerates (the kernel's PM QoS
//! interface). At 0, idle cores poll instead of halting, and waking one takes no interrupt.
//!
//! Polling costs the time of idle cores, so it is requested only while it pays: after
//! [`BURSTS`] times [`BURST`] requests that were dense ([`RequestCounts::is_dense`]). Dense
//! means: within [`GAP`] of each other on average, and nearly all served without sleep; or
//! one after the other within [`GAP_ALONE`], with or without sleep, because one synchronous
//! writer is woken four times a write. Where several requests sleep at once, cores are
//! seldom idle, and in a virtual machine polling cores take the processor from the host's
//! threads that work for the disk (eight synchronous writers had half their rate). A thread,
//! the *watch*, checks every [`TICK`] that requests are still dense.
//!
//! # States
//! *off* → (a receiving thread sees the bursts) → *on* → (the watch sees a sparse tick) →
//! *off*. The watch is parked while the state is *off*.
//!
//! # Invariants
//! * The limit is set only between two ticks of the watch, so until at most two ticks after
//!   the last request. The kernel lifts it when the descriptor is closed, also when the
//!   process is killed.
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

/// The kernel's PM QoS device.
const DEVICE: &str = "/dev/cpu_dma_latency";
/// What idle cores do.
const DRIVER: &str = "/sys/devices/system/cpu/cpuidle/current_driver";
/// The driver of virtual machines, where only 0 keeps a core from halting.
const VIRTUAL: &str = "haltpoll";
/// Microseconds: on real hardware the lightest idle state stays allowed; `ANY` sets no limit.
const LIGHT: i32 = 2;
const ANY: i32 = 2_000_000_000;

/// Sets the limit, or lifts it.
type SetLatency = Box<dyn FnMut(bool) + Send>;

/// What requests, from the beginning or for a while.
#[derive(Clone, Copy, Default)]
struct RequestCounts {
    /// Requests.
    requests: u64,
    /// How many of them arrived while another was served.
    concurrent: u64,
    /// How often a serving thread slept.
    slept: u64,
}

impl RequestCounts {
    fn since(self, before: RequestCounts) -> RequestCounts {
        RequestCounts {
            requests: self.requests - before.requests,
            concurrent: self.concurrent.saturating_sub(before.concurrent),
            slept: self.slept.saturating_sub(before.slept),
        }
    }

    /// Whether polling pays for these requests, which arrived within `time`.
    fn is_dense(self, time: Duration) -> bool {
        let within = |gap: Duration| time.as_nanos() <= gap.as_nanos() * u128::from(self.requests);
        let few = |count: u64| count * FEW <= self.requests;
        within(GAP) && few(self.slept) || within(GAP_ALONE) && few(self.concurrent)
    }
}

#[derive(Default)]
struct MonitorState {
    on: bool,
    /// Dense bursts in a row; when the next one began, and the counts then.
    bursts: u32,
    since: Option<Instant>,
    before: RequestCounts,
    closed: bool,
}

#[derive(Default)]
struct LatencyMonitor {
    requests: AtomicU64,
    concurrent: AtomicU64,
    slept: AtomicU64,
    /// Requests that are being served.
    served: AtomicU64,
    state: Mutex<MonitorState>,
    changed: Condvar,
}

/// A request that is being served.
pub(crate) struct Serving<'a>(&'a LatencyMonitor);

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        self.0.served.fetch_sub(1, Relaxed);
    }
}

/// The latency limit of all sessions of a process; see the module.
pub struct CpuLatencyQos {
    shared: Arc<LatencyMonitor>,
    watch: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for CpuLatencyQos {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CpuLatencyQos").finish_non_exhaustive()
    }
}

impl CpuLatencyQos {
    /// A limit that the kernel obeys.
    ///
    /// # Errors
    /// The kernel has no idle states to choose from, or only root may set the limit.
    pub fn new() -> Result<CpuLatencyQos> {
        let none = || Error::unsupported("keepawake: the kernel has no idle states to choose from");
        let driver = driver().ok_or_else(none)?;
        let least = if driver == VIRTUAL { 0 } else { LIGHT };
        let open = File::options().write(true).open(Path::new(DEVICE));
        let mut device = open.map_err(|e| Error::io(format!("keepawake: {DEVICE}"), e))?;
        CpuLatencyQos::with(Box::new(move |on| {
            let wanted = if on { least } else { ANY };
            // Without the limit requests are served as well, only slower.
            let _slower = device.write_all(&wanted.to_ne_bytes());
        }))
    }

    fn with(hold: SetLatency) -> Result<CpuLatencyQos> {
        let shared = Arc::new(LatencyMonitor::default());
        let of_watch = Arc::clone(&shared);
        let watch = spawn("keep-awake", move || of_watch.watch(hold))?;
        Ok(CpuLatencyQos { shared, watch: Some(watch) })
    }

    /// A request arrived; its service ends when the value is dropped.
    pub(crate) fn begin(&self) -> Serving<'_> {
        let shared = &*self.shared;
        if shared.served.fetch_add(1, Relaxed) > 0 {
            shared.concurrent.fetch_add(1, Relaxed);
        }
        if shared.requests.fetch_add(1, Relaxed).is_multiple_of(BURST) {
            shared.burst();
        }
        Serving(shared)
    }

    /// A thread that serves a request is about to sleep.
    pub(crate) fn slept(&self) {
        self.shared.slept.fetch_add(1, Relaxed);
    }
}

impl Drop for CpuLatencyQos {
    fn drop(&mut self) {
        self.shared.state.lock().closed = true;
        self.shared.changed.notify_all();
        if let Some(watch) = self.watch.take() {
            watch.join();
        }
    }
}

/// The kernel's cpuidle driver; `None` where idle cores can only halt.
fn driver() -> Option<String> {
    let name = std::fs::read_to_string(DRIVER).ok()?.trim().to_owned();
    (name != "none").then_some(name)
}

impl LatencyMonitor {
    fn totals(&self) -> RequestCounts {
        RequestCounts {
            requests: self.requests.load(Relaxed),
            concurrent: self.concurrent.load(Relaxed),
            slept: self.slept.load(Relaxed),
        }
    }

    /// Counts another [`BURST`] requests.
    fn burst(&self) {
        let mut state = self.state.lock();
        if state.on {
            return;
        }
        let (at, totals) = (now(), self.totals());
        let took = state.since.replace(at).map(|since| at.since(since));
        let span = totals.since(std::mem::replace(&mut state.before, totals));
        let thick = took.is_some_and(|took| span.is_dense(took));
        state.bursts = if thick { state.bursts + 1 } else { 0 };
        if state.bursts >= BURSTS {
            (state.on, state.bursts) = (true, 0);
            drop(state);
            self.changed.notify_all();
        }
    }

    /// The watch's life.
    fn watch(&self, mut hold: SetLatency) {
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

    /// Whether requests were dense for another tick.
    fn tick(&self) -> bool {
        let before = self.totals();
        let mut state = self.state.lock();
        self.changed.wait_timeout(&mut state, TICK);
        self.totals().since(before).is_dense(TICK) && !state.closed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    const LONG: Duration = Duration::from_secs(20);

    fn limited() -> (CpuLatencyQos, Arc<AtomicBool>, Arc<AtomicU64>) {
        let (on, times) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (held, count) = (Arc::clone(&on), Arc::clone(&times));
        let hold = move |wanted| {
            held.store(wanted, Relaxed);
            count.fetch_add(u64::from(wanted), Relaxed);
        };
        (CpuLatencyQos::with(Box::new(hold)).unwrap(), on, times)
    }

    /// Calls `meanwhile` until the condition holds; false after [`LONG`].
    fn eventually(what: impl Fn() -> bool, meanwhile: impl Fn()) -> bool {
        let start = now();
        while !what() && start.elapsed() < LONG {
            meanwhile();
        }
        what()
    }

    #[test]
    fn the_limit_is_set_while_requests_are_dense() {
        let (qos, on, times) = limited();
        assert!(eventually(|| on.load(Relaxed), || drop(qos.begin())));
        assert!(eventually(|| !on.load(Relaxed), || std::thread::sleep(Duration::from_millis(1))));
        assert!(eventually(|| times.load(Relaxed) > 1, || drop(qos.begin())));
        // Dropping it lifts the limit.
        drop(qos);
        assert!(!on.load(Relaxed));
    }

    #[test]
    fn the_limit_is_set_for_one_synchronous_caller() {
        let (qos, on, _) = limited();
        let qos = Arc::new(qos);
        let own = Arc::clone(&qos);
        let writer = move || {
            eventually(
                || on.load(Relaxed),
                || {
                    let _served = own.begin();
                    own.slept();
                },
            )
        };
        assert_eq!(spawn("serves", writer).unwrap().join(), Some(true));
        assert!(qos.shared.slept.load(Relaxed) >= BURST);
        assert_eq!(qos.shared.served.load(Relaxed), 0);
    }

    #[test]
    fn no_limit_for_requests_that_sleep_or_are_sparse() {
        let (qos, _, times) = limited();
        let qos = Arc::new(qos);
        let own = Arc::clone(&qos);
        let asleep = move || {
            let qos = own;
            // Two at a time.
            let other = qos.begin();
            for _ in 0..20 * BURST {
                let _served = qos.begin();
                qos.slept();
            }
            drop(other);
            for _ in 0..4 * BURST {
                let _served = qos.begin();
                // The time between two requests is what is tested.
                std::thread::sleep(2 * GAP_ALONE);
            }
        };
        assert!(spawn("serves", asleep).unwrap().join().is_some());
        assert_eq!(qos.shared.slept.load(Relaxed), 20 * BURST);
        assert_eq!(times.load(Relaxed), 0);
    }
}
