//! The scheduler of one run: its threads, which of them can run, and which runs next.

use std::collections::VecDeque;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{JoinHandle, Thread};

use super::rng::{Rng, mix};
use super::{Event, Kind, Options};

use Ordering::{Acquire, Relaxed, Release};

/// Steps that unwinding threads may make before they are left behind.
const DYING_STEPS: u64 = 1_000_000;

/// A member thread as the other threads see it.
#[derive(Debug)]
pub(super) struct MemberThread {
    pub(super) id: u32,
    pub(super) name: String,
    /// The thread has the baton.
    go: AtomicBool,
    pub(super) thread: OnceLock<Thread>,
    /// The thread's last wait timed out.
    pub(super) timed_out: AtomicBool,
}

impl MemberThread {
    pub(super) fn new(id: u32, name: &str) -> Arc<MemberThread> {
        Arc::new(MemberThread {
            id,
            name: name.to_owned(),
            go: AtomicBool::new(false),
            thread: OnceLock::new(),
            timed_out: AtomicBool::new(false),
        })
    }

    /// Gives the thread the baton.
    pub(super) fn wake(&self) {
        self.go.store(true, Release);
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// Waits for the baton.
    pub(super) fn park(&self) {
        while !self.go.swap(false, Acquire) {
            std::thread::park();
        }
    }
}

/// What a thread waits for. Locks and conditions are identified by their address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum On {
    Lock(usize),
    Condition(usize),
    /// A thread's end.
    Join(u32),
    /// As `Join`, for a scoped thread: not even the end of the run interrupts this
    /// wait.
    Scope(u32),
    Time,
    /// Nothing: the thread is left behind.
    Never,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    pub(super) on: On,
    /// Virtual nanoseconds.
    pub(super) deadline: Option<u64>,
    /// The thread was unwinding, so the end of the run does not affect it.
    pub(super) dying: bool,
    pub(super) at: &'static Location<'static>,
}

pub(super) struct LiveThread {
    pub(super) task: Arc<MemberThread>,
    /// `None` if the thread can run.
    pub(super) wait: Option<Wait>,
    /// Locks that the thread held when it last passed the baton on.
    pub(super) held: Vec<usize>,
}

/// Why a run ended before its body returned.
pub(super) enum RunEnd {
    Halted,
    Deadlock(String),
    Panicked { thread: String, message: String },
    Limit(String),
}

pub(super) struct SchedulerState {
    pub(super) live: Vec<LiveThread>,
    pub(super) rng: Rng,
    pub(super) random: Rng,
    pub(super) started: u32,
    pub(super) switches: u64,
    pub(super) end: Option<RunEnd>,
    /// The body has returned.
    pub(super) body_over: bool,
    /// No thread will run any more.
    pub(super) over: bool,
    pub(super) left: Vec<String>,
    pub(super) stuck: Vec<(u32, String)>,
    pub(super) events: VecDeque<Event>,
    pub(super) handles: Vec<(u32, JoinHandle<()>)>,
    /// Time since which a thread waits for a lock that is held outside of the run.
    pub(super) outside: Option<(std::time::Instant, usize)>,
}

pub(super) struct Scheduler {
    pub(super) options: Options,
    pub(super) state: Mutex<SchedulerState>,
    pub(super) finished: Condvar,
    /// The run has ended; a thread that reaches a scheduling point unwinds.
    pub(super) ending: AtomicBool,
    /// Threads that wait for a lock. Releasing a lock looks for waiters only if there
    /// are any.
    lock_waiters: AtomicUsize,
    // Written only by the holder of the baton.
    pub(super) steps: AtomicU64,
    limit: AtomicU64,
    pub(super) clock: AtomicU64,
    coin: AtomicU64,
    pub(super) hash: AtomicU64,
    step_ns: u64,
}

impl Scheduler {
    pub(super) fn new(options: Options) -> Arc<Scheduler> {
        let seed = options.seed;
        Arc::new(Scheduler {
            state: Mutex::new(SchedulerState {
                live: Vec::new(),
                rng: Rng::stream(seed, 0),
                random: Rng::stream(seed, 1),
                started: 0,
                switches: 0,
                end: None,
                body_over: false,
                over: false,
                left: Vec::new(),
                stuck: Vec::new(),
                events: VecDeque::new(),
                handles: Vec::new(),
                outside: None,
            }),
            finished: Condvar::new(),
            ending: AtomicBool::new(false),
            lock_waiters: AtomicUsize::new(0),
            steps: AtomicU64::new(0),
            limit: AtomicU64::new(options.max_steps),
            clock: AtomicU64::new(0),
            coin: AtomicU64::new(Rng::stream(seed, 2).next_u64()),
            hash: AtomicU64::new(0),
            step_ns: u64::try_from(options.step.as_nanos()).unwrap_or(u64::MAX),
            options,
        })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, SchedulerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_ending(&self) -> bool {
        self.ending.load(Relaxed)
    }

    pub(super) fn pass_time(&self, ns: u64) {
        self.clock.store(self.clock.load(Relaxed).saturating_add(ns), Relaxed);
    }

    /// Counts a step; true if an unwinding thread exceeded its limit.
    pub(super) fn step(
        &self,
        task: &MemberThread,
        kind: Kind,
        at: &'static Location<'static>,
    ) -> bool {
        let n = self.steps.load(Relaxed) + 1;
        self.steps.store(n, Relaxed);
        self.pass_time(self.step_ns);
        let awaited = u64::from(task.id) << 40 | u64::from(at.line()) << 8 | kind as u64;
        self.hash.store(mix(self.hash.load(Relaxed) ^ awaited), Relaxed);
        if self.options.trace > 0 {
            self.remember(Event {
                step: n,
                thread: task.id,
                name: task.name.clone(),
                kind,
                at: file_and_line(at),
            });
        }
        n > self.limit.load(Relaxed) && self.too_long(n)
    }

    fn remember(&self, event: Event) {
        let mut state = self.lock();
        if state.events.len() >= self.options.trace {
            state.events.pop_front();
        }
        state.events.push_back(event);
    }

    fn too_long(&self, steps: u64) -> bool {
        let mut state = self.lock();
        if self.is_ending() {
            return true;
        }
        self.limit.store(steps.saturating_add(DYING_STEPS), Relaxed);
        if !state.body_over {
            let report = report(&state);
            state.end = Some(RunEnd::Limit(format!("no end after {steps} steps\n{report}")));
        }
        self.begin_end(&mut state);
        false
    }

    /// Decides whether the baton passes to another thread here.
    pub(super) fn toss(&self) -> bool {
        let every = self.options.switch_every;
        if every == 0 {
            return false;
        }
        let coin = self.coin.load(Relaxed).wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.coin.store(coin, Relaxed);
        mix(coin) <= u64::MAX / every
    }

    /// From here on every thread unwinds.
    pub(super) fn begin_end(&self, state: &mut SchedulerState) {
        if self.ending.swap(true, Relaxed) {
            return;
        }
        let dying = self.steps.load(Relaxed).saturating_add(DYING_STEPS);
        self.limit.store(dying, Relaxed);
        if state.body_over && state.end.is_none() {
            state.left = state.live.iter().map(|l| l.task.name.clone()).collect();
        }
        for live in &mut state.live {
            if live.wait.is_some_and(|w| !w.dying && !matches!(w.on, On::Scope(_))) {
                self.ready(live);
            }
        }
    }

    /// The body has returned; the other threads may make a limited number of further
    /// steps.
    pub(super) fn body_over(&self, state: &mut SchedulerState) {
        state.body_over = true;
        let last = self.steps.load(Relaxed).saturating_add(self.options.drain_steps);
        self.limit.store(self.limit.load(Relaxed).min(last), Relaxed);
    }

    fn ready(&self, live: &mut LiveThread) {
        if let Some(Wait { on: On::Lock(_), .. }) = live.wait.take() {
            self.lock_waiters.fetch_sub(1, Relaxed);
        }
    }

    /// Passes the baton on and waits until it comes back. The caller waits for `wait`;
    /// without it, it can continue at any time.
    pub(super) fn switch(&self, task: &Arc<MemberThread>, held: &[usize], wait: Option<Wait>) {
        let mut state = self.lock();
        if let Some(live) = state.live.iter_mut().find(|l| l.task.id == task.id) {
            live.held.clear();
            live.held.extend_from_slice(held);
            live.wait = wait;
            if matches!(wait, Some(Wait { on: On::Lock(_), .. })) {
                self.lock_waiters.fetch_add(1, Relaxed);
            }
        }
        let next = self.pick(&mut state, task.id);
        match next {
            Some(next) if next.id == task.id => return,
            Some(next) => {
                state.switches += 1;
                drop(state);
                next.wake();
            }
            None => drop(state),
        }
        task.park();
    }

    /// Picks the next thread to run: any that can run, the caller only if no other can.
    /// `None` when no thread will ever run again.
    pub(super) fn pick(
        &self,
        state: &mut SchedulerState,
        caller: u32,
    ) -> Option<Arc<MemberThread>> {
        loop {
            self.fire(state);
            let able = |l: &&LiveThread| l.wait.is_none();
            let others = |l: &&LiveThread| l.wait.is_none() && l.task.id != caller;
            let count = state.live.iter().filter(others).count() as u64;
            if count > 0 {
                let nth = state.rng.below(count) as usize;
                return state.live.iter().filter(others).nth(nth).map(|l| Arc::clone(&l.task));
            }
            if let Some(live) = state.live.iter().find(able) {
                return Some(Arc::clone(&live.task));
            }
            let nearest = state.live.iter().filter_map(|l| l.wait?.deadline).min();
            if state.body_over && !self.is_ending() {
                self.begin_end(state);
            } else if let Some(time) = nearest {
                self.clock.store(time, Relaxed);
            } else if self.is_ending() {
                let stuck: Vec<_> =
                    state.live.iter().map(|l| (l.task.id, waits(state, l))).collect();
                state.stuck.extend(stuck);
                state.live.clear();
                state.over = true;
                self.finished.notify_all();
                return None;
            } else {
                state.end = Some(RunEnd::Deadlock(report(state)));
                self.begin_end(state);
            }
        }
    }

    /// Ends the waits whose deadline has passed.
    fn fire(&self, state: &mut SchedulerState) {
        let now = self.clock.load(Relaxed);
        for live in &mut state.live {
            if live.wait.and_then(|w| w.deadline).is_some_and(|d| d <= now) {
                live.task.timed_out.store(true, Relaxed);
                self.ready(live);
            }
        }
    }

    /// A lock is free: one of its waiters, or all, may try again.
    pub(super) fn freed(&self, lock: usize, all: bool) {
        if self.lock_waiters.load(Relaxed) > 0 {
            self.wake(&mut self.lock(), On::Lock(lock), all);
        }
    }

    /// Ends the wait of one thread or of all that wait for `on`.
    pub(super) fn wake(&self, state: &mut SchedulerState, on: On, all: bool) {
        let waits = |l: &LiveThread| l.wait.is_some_and(|w| w.on == on);
        let count = state.live.iter().filter(|l| waits(l)).count() as u64;
        if count == 0 {
            return;
        }
        let chosen = if all { 0 } else { state.rng.below(count) as usize };
        let wake = if all { usize::MAX } else { 1 };
        for live in state.live.iter_mut().filter(|l| waits(l)).skip(chosen).take(wake) {
            self.ready(live);
        }
    }

    /// Removes a thread that has ended, and passes the baton on.
    pub(super) fn finish(&self, task: &MemberThread, panicked: Option<String>) {
        let mut state = self.lock();
        state.live.retain(|l| l.task.id != task.id);
        self.wake(&mut state, On::Join(task.id), true);
        self.wake(&mut state, On::Scope(task.id), true);
        if let Some(message) = panicked
            && !self.is_ending()
        {
            state.end = Some(RunEnd::Panicked { thread: task.name.clone(), message });
            self.begin_end(&mut state);
        }
        if task.id == 0 {
            self.body_over(&mut state);
        }
        if state.live.is_empty() {
            state.over = true;
            self.finished.notify_all();
        } else if let Some(next) = self.pick(&mut state, task.id) {
            state.switches += 1;
            drop(state);
            next.wake();
        }
    }
}

pub(super) fn file_and_line(at: &Location<'_>) -> String {
    format!("{}:{}", at.file(), at.line())
}

/// Describes what a thread waits for, and where.
fn waits(state: &SchedulerState, live: &LiveThread) -> String {
    let name = |id: u32| {
        let found = state.live.iter().find(|l| l.task.id == id);
        found.map_or_else(|| id.to_string(), |l| format!("{} ({id})", l.task.name))
    };
    let me = name(live.task.id);
    let Some(wait) = live.wait else { return format!("{me} can run") };
    let awaited = match wait.on {
        On::Lock(lock) => {
            let holders: Vec<_> = state
                .live
                .iter()
                .filter(|l| l.held.contains(&lock))
                .map(|l| name(l.task.id))
                .collect();
            format!("a lock held by {}", holders.join(", "))
        }
        On::Condition(_) => "a condition".to_owned(),
        On::Join(id) | On::Scope(id) => format!("the end of {}", name(id)),
        On::Time => "time to pass".to_owned(),
        On::Never => "nothing: it went on for too long while unwinding".to_owned(),
    };
    format!("{me} waits at {} for {awaited}", file_and_line(wait.at))
}

fn report(state: &SchedulerState) -> String {
    let all: Vec<_> = state.live.iter().map(|l| waits(state, l)).collect();
    all.join("\n")
}
