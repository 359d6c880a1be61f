//! A thread of a run: what each operation of the shim does there.

use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, Builder, panicking};
use std::time::{Duration, Instant};

use super::world::{End, Live, On, State, Task, Wait, World};
use super::{Kind, ME, Options, Outcome, Run};

/// Virtual nanoseconds that a look at the clock takes, so that a loop which does
/// nothing else ends.
const LOOK_NS: u64 = 100;
/// 2026-01-01, when all virtual time begins.
const EPOCH: Duration = Duration::from_secs(1_767_225_600);
/// How long a lock held outside of the run is waited for, and how often it is tried.
const OUTSIDE: Duration = Duration::from_secs(10);
const OUTSIDE_STEP: Duration = Duration::from_micros(50);

/// What a thread unwinds with when its run ends.
struct Halt;

type Slot<T> = Arc<Mutex<Option<T>>>;

fn take<T>(slot: &Slot<T>) -> Option<T> {
    slot.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// The calling thread's place in a run.
pub(in crate::rt) struct Member {
    world: Arc<World>,
    task: Arc<Task>,
    /// Addresses of the locks it holds.
    held: RefCell<Vec<usize>>,
}

/// A member that another waits for.
pub(in crate::rt) struct Joinable<T> {
    world: Arc<World>,
    id: u32,
    slot: Slot<T>,
}

impl<T> std::fmt::Debug for Joinable<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Joinable({})", self.id)
    }
}

impl<T> Joinable<T> {
    pub(in crate::rt) fn join(self, at: &'static Location<'static>) -> Option<T> {
        if let Some(me) = super::member()
            && Arc::ptr_eq(&me.world, &self.world)
        {
            me.point(Kind::Join, at);
            me.join(On::Join(self.id), self.id, at);
            me.check();
        }
        take(&self.slot)
    }
}

impl Member {
    /// Unwinds if the run has ended, unless the thread unwinds already.
    pub(in crate::rt) fn check(&self) {
        if self.world.is_ending() && !panicking() {
            resume_unwind(Box::new(Halt));
        }
    }

    /// A step that may neither switch nor unwind.
    pub(in crate::rt) fn count(&self, kind: Kind, at: &'static Location<'static>) {
        if self.world.step(&self.task, kind, at) && panicking() {
            // Dying for too long; nobody wakes it again.
            self.block(On::Never, None, at);
        }
    }

    /// A scheduling point.
    pub(in crate::rt) fn point(&self, kind: Kind, at: &'static Location<'static>) {
        self.check();
        self.count(kind, at);
        if !panicking() && self.world.toss() {
            self.world.switch(&self.task, &self.held.borrow(), None);
        }
        self.check();
    }

    fn block(&self, on: On, deadline: Option<u64>, at: &'static Location<'static>) {
        let wait = Wait { on, deadline, dying: panicking(), at };
        self.world.switch(&self.task, &self.held.borrow(), Some(wait));
    }

    /// Remembers a lock as held.
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

    /// As [`Member::acquire`], also when the run has ended: its holder unwinds too.
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
        let known = |state: &State| state.live.iter().any(|l| l.held.contains(&lock));
        if self.held.borrow().contains(&lock) || known(&self.world.lock()) {
            self.block(On::Lock(lock), None, at);
        } else {
            self.wait_outside(lock, at);
        }
    }

    /// Waits for a lock that a thread outside of the run holds: in the operating
    /// system, for that thread needs no baton.
    fn wait_outside(&self, lock: usize, at: &'static Location<'static>) {
        let mut state = self.world.lock();
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
            let at = super::world::place(at);
            let why = format!("{} waits at {at} for a lock held outside", self.task.name);
            state.end = Some(End::Limit(why));
        }
        self.world.begin_end(&mut state);
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

    /// A lock was released, and the thread goes on to wait.
    pub(in crate::rt) fn release(&self, lock: usize, all: bool) {
        self.forget(lock);
        self.world.freed(lock, all);
    }

    /// A lock was released: one waiter may try again, or all (several can share it).
    /// Never unwinds: it is called from `Drop`.
    pub(in crate::rt) fn unlocked(&self, lock: usize, all: bool) {
        self.release(lock, all);
        if !panicking() && !self.world.is_ending() && self.world.toss() {
            self.world.step(&self.task, Kind::Unlock, Location::caller());
            self.world.switch(&self.task, &self.held.borrow(), None);
        }
    }

    fn deadline(&self, timeout: Duration) -> Option<u64> {
        let ns = u64::try_from(timeout.as_nanos()).ok()?;
        self.world.clock.load(Relaxed).checked_add(ns.max(1))
    }

    /// Waits for a condition; true if the time ran out. The caller takes its lock
    /// again, and checks.
    pub(in crate::rt) fn wait(
        &self,
        condition: usize,
        timeout: Option<Duration>,
        at: &'static Location<'static>,
    ) -> bool {
        self.task.timed_out.store(false, Relaxed);
        if self.world.is_ending() && !panicking() {
            return false;
        }
        let every = self.world.options.spurious_every;
        if every > 0 && !panicking() && self.world.lock().rng.one_in(every) {
            self.world.switch(&self.task, &self.held.borrow(), None);
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
        self.world.wake(&mut self.world.lock(), On::Condition(condition), all);
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
        self.world.pass_time(LOOK_NS);
        Duration::from_nanos(self.world.clock.load(Relaxed))
    }

    pub(in crate::rt) fn wall_clock(&self) -> Duration {
        EPOCH + self.uptime()
    }

    pub(in crate::rt) fn random(&self, out: &mut [u8]) {
        self.world.lock().random.fill(out);
    }

    /// Its number in the run.
    pub(in crate::rt) fn index(&self) -> usize {
        self.task.id as usize
    }

    pub(in crate::rt) fn parallelism(&self) -> usize {
        self.world.options.parallelism.max(1)
    }

    pub(super) fn ended(&self) -> bool {
        self.world.is_ending()
    }

    pub(super) fn steps(&self) -> u64 {
        self.world.steps.load(Relaxed)
    }

    pub(super) fn halt(&self) {
        let mut state = self.world.lock();
        if !self.world.is_ending() {
            if !state.body_over {
                state.end = Some(End::Halted);
            }
            self.world.begin_end(&mut state);
        }
        drop(state);
        self.check();
    }

    /// Waits until thread `id` has ended.
    fn join(&self, on: On, id: u32, at: &'static Location<'static>) {
        let lives = |state: &State| state.live.iter().any(|l| l.task.id == id);
        while lives(&self.world.lock()) {
            if self.world.is_ending() && !panicking() && matches!(on, On::Join(_)) {
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
        let joinable = start(&self.world, name, f)?;
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
            // No unwinding from here on: the scope would wait for threads without baton.
            let mut started = Vec::with_capacity(n);
            for i in 0..n {
                let task = self.world.admit("fan_out");
                let (world, own) = (Arc::clone(&self.world), Arc::clone(&task));
                let entered = move || enter(&world, &own, move || f(i));
                let thread = Builder::new().name(task.name.clone()).spawn_scoped(scope, entered);
                match thread {
                    Ok(thread) => {
                        let _ = task.thread.set(thread.thread().clone());
                        started.push(task.id);
                    }
                    Err(_) => {
                        self.world.dismiss(task.id);
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
            if !self.world.is_ending() {
                (started.len()..n).for_each(f);
            }
        });
        self.check();
    }
}

impl World {
    /// A new thread, which can run as soon as it gets the baton.
    fn admit(&self, name: &str) -> Arc<Task> {
        let mut state = self.lock();
        let task = Task::new(state.started, name);
        state.started += 1;
        state.live.push(Live { task: Arc::clone(&task), wait: None, held: Vec::new() });
        task
    }

    /// Takes back a thread that could not be started.
    fn dismiss(&self, id: u32) {
        self.lock().live.retain(|l| l.task.id != id);
    }
}

/// Starts a member thread; it waits for the baton.
fn start<T: Send + 'static>(
    world: &Arc<World>,
    name: &str,
    f: impl FnOnce() -> T + Send + 'static,
) -> std::io::Result<Joinable<T>> {
    let task = world.admit(name);
    let slot: Slot<T> = Arc::new(Mutex::new(None));
    let (inner, own, result) = (Arc::clone(world), Arc::clone(&task), Arc::clone(&slot));
    let entered = move || {
        enter(&inner, &own, move || {
            let value = f();
            *result.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
        });
    };
    match Builder::new().name(name.to_owned()).spawn(entered) {
        Ok(handle) => {
            let _ = task.thread.set(handle.thread().clone());
            let mut state = world.lock();
            if state.handles.len() >= 64 {
                state.handles.retain(|(_, h)| !h.is_finished());
            }
            state.handles.push((task.id, handle));
            Ok(Joinable { world: Arc::clone(world), id: task.id, slot })
        }
        Err(e) => {
            world.dismiss(task.id);
            Err(e)
        }
    }
}

/// A member thread's life: waits for the baton, runs `f`, hands the baton on.
fn enter(world: &Arc<World>, task: &Arc<Task>, f: impl FnOnce()) {
    let me = Rc::new(Member {
        world: Arc::clone(world),
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
        // What was thrown may have a `Drop` of its own.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(payload)));
        message
    });
    world.step(task, Kind::End, at);
    ME.with(|slot| slot.replace(None));
    drop(me);
    world.finish(task, panicked);
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

/// Runs a whole world.
pub(super) fn begin<T: Send + 'static>(
    options: Options,
    body: impl FnOnce() -> T + Send + 'static,
) -> Run<T> {
    let world = World::new(options);
    let body = match start(&world, "main", body) {
        Ok(body) => Some(body),
        Err(e) => {
            world.lock().end = Some(End::Limit(format!("cannot start a thread: {e}")));
            None
        }
    };
    let mut state = world.lock();
    let first = state.live.first().map(|l| Arc::clone(&l.task));
    if let Some(first) = first {
        first.wake();
        while !state.over {
            state = world.finished.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
    let handles = std::mem::take(&mut state.handles);
    let stuck = std::mem::take(&mut state.stuck);
    drop(state);
    for (id, handle) in handles {
        // A thread that waits for a scoped one left behind is itself left behind.
        if !stuck.iter().any(|(s, _)| *s == id) {
            let _ = handle.join();
        }
    }
    let mut state = world.lock();
    let value = body.and_then(|b| take(&b.slot));
    let outcome = match (state.end.take(), value) {
        (None, Some(value)) => Outcome::Done(value),
        (Some(End::Deadlock(who)), _) => Outcome::Deadlock(who),
        (Some(End::Panicked { thread, message }), _) => Outcome::Panicked { thread, message },
        (Some(End::Limit(why)), _) => Outcome::Limit(why),
        (Some(End::Halted) | None, _) => Outcome::Halted,
    };
    Run {
        outcome,
        steps: world.steps.load(Relaxed),
        switches: state.switches,
        threads: state.started,
        time: Duration::from_nanos(world.clock.load(Relaxed)),
        hash: world.hash.load(Relaxed),
        trace: state.events.drain(..).collect(),
        left: std::mem::take(&mut state.left),
        stuck: stuck.into_iter().map(|(_, who)| who).collect(),
    }
}
