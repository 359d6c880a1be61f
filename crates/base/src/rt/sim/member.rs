//! A member thread of a run: the implementation of each shim operation for it.

use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, Builder, panicking};
use std::time::{Duration, Instant};

use super::scheduler::{LiveThread, MemberThread, On, RunEnd, Scheduler, SchedulerState, Wait};
use super::{Kind, ME, Options, Outcome, Run};

/// Virtual nanoseconds that reading the clock takes, so that a loop which only reads
/// the clock ends.
const LOOK_NS: u64 = 100;
/// 2026-01-01, the start of virtual time.
const EPOCH: Duration = Duration::from_secs(1_767_225_600);
/// How long to wait for a lock held outside of the run, and the interval between tries.
const OUTSIDE: Duration = Duration::from_secs(10);
const OUTSIDE_STEP: Duration = Duration::from_micros(50);

/// The panic payload with which a thread unwinds when its run ends.
struct Halt;

type ResultSlot<T> = Arc<Mutex<Option<T>>>;

fn take<T>(slot: &ResultSlot<T>) -> Option<T> {
    slot.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// The calling thread's membership in a run.
pub(in crate::rt) struct Member {
    scheduler: Arc<Scheduler>,
    task: Arc<MemberThread>,
    /// Addresses of the locks it holds.
    held: RefCell<Vec<usize>>,
}

/// A member that another thread joins.
pub(in crate::rt) struct Joinable<T> {
    scheduler: Arc<Scheduler>,
    id: u32,
    slot: ResultSlot<T>,
}

impl<T> std::fmt::Debug for Joinable<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Joinable({})", self.id)
    }
}

impl<T> Joinable<T> {
    pub(in crate::rt) fn join(self, at: &'static Location<'static>) -> Option<T> {
        if let Some(me) = super::member()
            && Arc::ptr_eq(&me.scheduler, &self.scheduler)
        {
            me.point(Kind::Join, at);
            me.join(On::Join(self.id), self.id, at);
            me.check();
        }
        take(&self.slot)
    }
}

impl Member {
    /// Unwinds if the run has ended, unless the thread is already unwinding.
    pub(in crate::rt) fn check(&self) {
        if self.scheduler.is_ending() && !panicking() {
            resume_unwind(Box::new(Halt));
        }
    }

    /// Counts a step that may neither switch nor unwind.
    pub(in crate::rt) fn count(&self, kind: Kind, at: &'static Location<'static>) {
        if self.scheduler.step(&self.task, kind, at) && panicking() {
            // It unwinds for too long; no thread wakes it again.
            self.block(On::Never, None, at);
        }
    }

    /// A scheduling point.
    pub(in crate::rt) fn point(&self, kind: Kind, at: &'static Location<'static>) {
        self.check();
        self.count(kind, at);
        if !panicking() && self.scheduler.toss() {
            self.scheduler.switch(&self.task, &self.held.borrow(), None);
        }
        self.check();
    }

    fn block(&self, on: On, deadline: Option<u64>, at: &'static Location<'static>) {
        let wait = Wait { on, deadline, dying: panicking(), at };
        self.scheduler.switch(&self.task, &self.held.borrow(), Some(wait));
    }

    /// Records a lock as held.
    pub(in crate::rt) fn took(&self, lock: usize) {
        self.held.borrow_mut().push(lock);
    }

    /// Takes a lock, waiting while it is held; unwinds if the run ends meanwhile.
    pub(in crate::rt) fn acquire<G>(
        &self,
        lock: usize,
        at: &'static Location<'static>,
        mut try_it: impl FnMut() -> Option<G>,
    ) -> G {
        loop {
            if let Some(guard) = try_it() {
                self.took(lock);
                return guard;
            }
            self.wait_for_lock(lock, at);
            self.check();
        }
    }

    /// As [`Member::acquire`], but waits also when the run has ended, because the
    /// lock's holder unwinds too.
    pub(in crate::rt) fn reacquire<G>(
        &self,
        lock: usize,
        at: &'static Location<'static>,
        mut try_it: impl FnMut() -> Option<G>,
    ) -> G {
        loop {
            if let Some(guard) = try_it() {
                self.took(lock);
                return guard;
            }
            self.wait_for_lock(lock, at);
        }
    }

    fn wait_for_lock(&self, lock: usize, at: &'static Location<'static>) {
        let known = |state: &SchedulerState| state.live.iter().any(|l| l.held.contains(&lock));
        if self.held.borrow().contains(&lock) || known(&self.scheduler.lock()) {
            self.block(On::Lock(lock), None, at);
        } else {
            self.wait_outside(lock, at);
        }
    }

    /// Waits for a lock that a thread outside of the run holds. It waits in the
    /// operating system, because that thread needs no baton.
    fn wait_outside(&self, lock: usize, at: &'static Location<'static>) {
        let mut state = self.scheduler.lock();
        let (since, tries) = state.outside.get_or_insert_with(|| (Instant::now(), lock));
        if *tries != lock {
            (*since, *tries) = (Instant::now(), lock);
        }
        if since.elapsed() < OUTSIDE {
            drop(state);
            thread::sleep(OUTSIDE_STEP);
            return;
        }
        if state.end.is_none() {
            let at = super::scheduler::file_and_line(at);
            let why = format!("{} waits at {at} for a lock held outside", self.task.name);
            state.end = Some(RunEnd::Limit(why));
        }
        self.scheduler.begin_end(&mut state);
        drop(state);
        if panicking() {
            self.block(On::Never, None, at);
        }
    }

    fn forget(&self, lock: usize) {
        let mut held = self.held.borrow_mut();
        if let Some(i) = held.iter().rposition(|&l| l == lock) {
            held.swap_remove(i);
        }
    }

    /// Records that a lock was released by a thread that will now wait.
    pub(in crate::rt) fn release(&self, lock: usize, all: bool) {
        self.forget(lock);
        self.scheduler.freed(lock, all);
    }

    /// Records that a lock was released. One waiter may try again, or all if several
    /// can share it. Never unwinds, because it is called from `Drop`.
    pub(in crate::rt) fn unlocked(&self, lock: usize, all: bool) {
        self.release(lock, all);
        if !panicking() && !self.scheduler.is_ending() && self.scheduler.toss() {
            self.scheduler.step(&self.task, Kind::Unlock, Location::caller());
            self.scheduler.switch(&self.task, &self.held.borrow(), None);
        }
    }

    fn deadline(&self, timeout: Duration) -> Option<u64> {
        let ns = u64::try_from(timeout.as_nanos()).ok()?;
        self.scheduler.clock.load(Relaxed).checked_add(ns.max(1))
    }

    /// Waits for a condition; true if the time ran out. The caller then takes its lock
    /// again and checks.
    pub(in crate::rt) fn wait(
        &self,
        condition: usize,
        timeout: Option<Duration>,
        at: &'static Location<'static>,
    ) -> bool {
        self.task.timed_out.store(false, Relaxed);
        if self.scheduler.is_ending() && !panicking() {
            return false;
        }
        let every = self.scheduler.options.spurious_every;
        if every > 0 && !panicking() && self.scheduler.lock().rng.one_in(every) {
            self.scheduler.switch(&self.task, &self.held.borrow(), None);
            return false;
        }
        let deadline = timeout.and_then(|t| self.deadline(t));
        self.block(On::Condition(condition), deadline, at);
        self.task.timed_out.load(Relaxed)
    }

    #[cold]
    pub(in crate::rt) fn notify(
        &self,
        condition: usize,
        all: bool,
        at: &'static Location<'static>,
    ) {
        self.scheduler.wake(&mut self.scheduler.lock(), On::Condition(condition), all);
        self.point(Kind::Notify, at);
    }

    pub(in crate::rt) fn sleep(&self, time: Duration, at: &'static Location<'static>) {
        self.point(Kind::Sleep, at);
        self.block(On::Time, self.deadline(time), at);
        self.check();
    }

    pub(in crate::rt) fn now(&self) -> Instant {
        static ORIGIN: OnceLock<Instant> = OnceLock::new();
        *ORIGIN.get_or_init(Instant::now) + self.uptime()
    }

    pub(in crate::rt) fn uptime(&self) -> Duration {
        self.scheduler.pass_time(LOOK_NS);
        Duration::from_nanos(self.scheduler.clock.load(Relaxed))
    }

    pub(in crate::rt) fn wall_clock(&self) -> Duration {
        EPOCH + self.uptime()
    }

    pub(in crate::rt) fn random(&self, out: &mut [u8]) {
        self.scheduler.lock().random.fill(out);
    }

    /// The thread's index in the run.
    pub(in crate::rt) fn index(&self) -> usize {
        self.task.id as usize
    }

    pub(in crate::rt) fn parallelism(&self) -> usize {
        self.scheduler.options.parallelism.max(1)
    }

    pub(super) fn ended(&self) -> bool {
        self.scheduler.is_ending()
    }

    pub(super) fn steps(&self) -> u64 {
        self.scheduler.steps.load(Relaxed)
    }

    pub(super) fn halt(&self) {
        let mut state = self.scheduler.lock();
        if !self.scheduler.is_ending() {
            if !state.body_over {
                state.end = Some(RunEnd::Halted);
            }
            self.scheduler.begin_end(&mut state);
        }
        drop(state);
        self.check();
    }

    /// Waits until thread `id` has ended.
    fn join(&self, on: On, id: u32, at: &'static Location<'static>) {
        let lives = |state: &SchedulerState| state.live.iter().any(|l| l.task.id == id);
        while lives(&self.scheduler.lock()) {
            if self.scheduler.is_ending() && !panicking() && matches!(on, On::Join(_)) {
                return;
            }
            self.block(on, None, at);
        }
    }

    #[cold]
    pub(in crate::rt) fn spawn<T: Send + 'static>(
        &self,
        name: &str,
        f: impl FnOnce() -> T + Send + 'static,
        at: &'static Location<'static>,
    ) -> std::io::Result<Joinable<T>> {
        self.check();
        let joinable = start(&self.scheduler, name, f)?;
        self.point(Kind::Spawn, at);
        Ok(joinable)
    }

    #[cold]
    pub(in crate::rt) fn fan_out(
        &self,
        n: usize,
        f: &(impl Fn(usize) + Sync),
        at: &'static Location<'static>,
    ) {
        self.check();
        thread::scope(|scope| {
            // No unwinding from here on: the scope would wait for threads that have no
            // baton.
            let mut started = Vec::with_capacity(n);
            for i in 0..n {
                let task = self.scheduler.admit("fan_out");
                let (scheduler, own) = (Arc::clone(&self.scheduler), Arc::clone(&task));
                let entered = move || enter(&scheduler, &own, move || f(i));
                let thread = Builder::new().name(task.name.clone()).spawn_scoped(scope, entered);
                match thread {
                    Ok(thread) => {
                        let _ = task.thread.set(thread.thread().clone());
                        started.push(task.id);
                    }
                    Err(_) => {
                        self.scheduler.dismiss(task.id);
                        break;
                    }
                }
            }
            if !started.is_empty() {
                self.count(Kind::Spawn, at);
            }
            for id in &started {
                self.join(On::Scope(*id), *id, at);
            }
            if !self.scheduler.is_ending() {
                (started.len()..n).for_each(f);
            }
        });
        self.check();
    }
}

impl Scheduler {
    /// Adds a new thread, which can run as soon as it gets the baton.
    fn admit(&self, name: &str) -> Arc<MemberThread> {
        let mut state = self.lock();
        let task = MemberThread::new(state.started, name);
        state.started += 1;
        state.live.push(LiveThread { task: Arc::clone(&task), wait: None, held: Vec::new() });
        task
    }

    /// Removes a thread that could not be started.
    fn dismiss(&self, id: u32) {
        self.lock().live.retain(|l| l.task.id != id);
    }
}

/// Starts a member thread; it waits for the baton.
fn start<T: Send + 'static>(
    scheduler: &Arc<Scheduler>,
    name: &str,
    f: impl FnOnce() -> T + Send + 'static,
) -> std::io::Result<Joinable<T>> {
    let task = scheduler.admit(name);
    let slot: ResultSlot<T> = Arc::new(Mutex::new(None));
    let (inner, own, result) = (Arc::clone(scheduler), Arc::clone(&task), Arc::clone(&slot));
    let entered = move || {
        enter(&inner, &own, move || {
            let value = f();
            *result.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
        });
    };
    match Builder::new().name(name.to_owned()).spawn(entered) {
        Ok(handle) => {
            let _ = task.thread.set(handle.thread().clone());
            let mut state = scheduler.lock();
            if state.handles.len() >= 64 {
                state.handles.retain(|(_, h)| !h.is_finished());
            }
            state.handles.push((task.id, handle));
            Ok(Joinable { scheduler: Arc::clone(scheduler), id: task.id, slot })
        }
        Err(e) => {
            scheduler.dismiss(task.id);
            Err(e)
        }
    }
}

/// Main function of a member thread: waits for the baton, runs `f`, passes the baton
/// on.
fn enter(scheduler: &Arc<Scheduler>, task: &Arc<MemberThread>, f: impl FnOnce()) {
    let me = Rc::new(Member {
        scheduler: Arc::clone(scheduler),
        task: Arc::clone(task),
        held: RefCell::new(Vec::new()),
    });
    ME.with(|slot| slot.replace(Some(Rc::clone(&me))));
    task.park();
    let at = Location::caller();
    let end = catch_unwind(AssertUnwindSafe(|| {
        me.point(Kind::Start, at);
        f();
    }));
    let panicked = end.err().and_then(|payload| {
        let message = message_of(&*payload);
        // The payload may have a `Drop` of its own.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(payload)));
        message
    });
    scheduler.step(task, Kind::End, at);
    ME.with(|slot| slot.replace(None));
    drop(me);
    scheduler.finish(task, panicked);
}

/// The message of a panic; `None` for the end of the run.
fn message_of(payload: &(dyn Any + Send)) -> Option<String> {
    if payload.is::<Halt>() {
        None
    } else if let Some(text) = payload.downcast_ref::<&str>() {
        Some((*text).to_owned())
    } else if let Some(text) = payload.downcast_ref::<String>() {
        Some(text.clone())
    } else {
        Some("a panic without a message".to_owned())
    }
}

/// Runs a whole run from `body` to the end of its last thread.
pub(super) fn begin<T: Send + 'static>(
    options: Options,
    body: impl FnOnce() -> T + Send + 'static,
) -> Run<T> {
    let scheduler = Scheduler::new(options);
    let body = match start(&scheduler, "main", body) {
        Ok(body) => Some(body),
        Err(e) => {
            scheduler.lock().end = Some(RunEnd::Limit(format!("cannot start a thread: {e}")));
            None
        }
    };
    let mut state = scheduler.lock();
    let first = state.live.first().map(|l| Arc::clone(&l.task));
    if let Some(first) = first {
        first.wake();
        while !state.over {
            state = scheduler.finished.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
    let handles = std::mem::take(&mut state.handles);
    let stuck = std::mem::take(&mut state.stuck);
    drop(state);
    for (id, handle) in handles {
        // A thread that waits for a scoped thread which was left behind is itself left
        // behind.
        if !stuck.iter().any(|(s, _)| *s == id) {
            let _ = handle.join();
        }
    }
    let mut state = scheduler.lock();
    let value = body.and_then(|b| take(&b.slot));
    let outcome = match (state.end.take(), value) {
        (None, Some(value)) => Outcome::Done(value),
        (Some(RunEnd::Deadlock(report)), _) => Outcome::Deadlock(report),
        (Some(RunEnd::Panicked { thread, message }), _) => Outcome::Panicked { thread, message },
        (Some(RunEnd::Limit(why)), _) => Outcome::Limit(why),
        (Some(RunEnd::Halted) | None, _) => Outcome::Halted,
    };
    Run {
        outcome,
        steps: scheduler.steps.load(Relaxed),
        switches: state.switches,
        threads: state.started,
        time: Duration::from_nanos(scheduler.clock.load(Relaxed)),
        hash: scheduler.hash.load(Relaxed),
        trace: state.events.drain(..).collect(),
        left: std::mem::take(&mut state.left),
        stuck: stuck.into_iter().map(|(_, report)| report).collect(),
    }
}
