//! The receiving threads of all mounts of the process.
//!
//! # Theory
//! The `/dev/fuse` descriptor of every connection is a [`RequestSource`] in one epoll
//! instance, edge-triggered: the kernel queues an event for each request and wakes one thread
//! in `epoll_wait`. A mount costs a descriptor and no thread, and the number of threads
//! follows the work of all mounts together.
//!
//! The threads are leaders and followers. A *leader* waits for events, reads a request and
//! serves it. A *follower* is parked. At most one leader for each core exists, so a thread
//! that answers a request often finds the next one queued, and no core has to be woken. A
//! leader that is about to sleep ([`base::rt::before_sleep`]) resigns first, and a follower
//! becomes leader; when no follower is left, one more thread is started. A thread that wakes
//! must become leader again, or parks. Surplus followers exit after [`PARKED_TIMEOUT`].
//!
//! Epoll reports an edge once, so a thread that received one *attends* the source: it reads
//! until the source is empty, or re-arms the source (`EPOLL_CTL_MOD` reports an edge if a
//! request is queued) before it sleeps, parks or attends another source.
//!
//! `wanted` is the number of leaders, and adapts. It grows when [`GROW_AFTER`] requests in a
//! row had another one behind them, and when a leader sleeps while no other listens. It
//! shrinks when [`SHRINK_AFTER`] in a row had none and found a second leader listening. A
//! request that is queued when a leader looks is no evidence of load: a caller on its
//! server's core always has the next one ready when the server runs again.
//!
//! A thread can sleep unannounced, in a system call or at long work. One follower is the
//! *watch*. When leaders served during a whole [`WATCH_INTERVAL`] and took no request, the
//! watch re-arms every source, once until the next request; if no leader listens, it ends
//! the leadership of all and becomes leader. After a second without requests it sleeps
//! until the next one.
//!
//! At least two leaders exist after a wait of [`SHORT_WAIT`] or more: while one answers,
//! another listens, and its core is awake when the caller's next request comes (1.5 times as
//! many small files in a virtual machine). After a shorter wait one leader is enough, because
//! it is back before the next request (1.6 times as many lookups).
//!
//! # Invariants
//! * `listening <= active`; `1 <= wanted <= leaders_max`. A thread is a leader while the
//!   `epoch` in which it became one is current.
//! * A source with a request that can be served is in epoll's ready list, is attended by a
//!   leader, or is `Full` (the next end of one of its requests re-arms it).
//! * While a follower is parked, some leader is awake, or a follower has been woken. A leader
//!   resigns and decides whether to wake a follower under one acquisition of `state`.
//!
//! Lock order: `state` and `sources` are leaves, held for a few instructions.

use std::cell::{Cell, RefCell};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use base::ids::IdMap;
use base::rt::{Condvar, Mutex, MutexGuard, RwLock, now};
use base::{BufMut, Error, Result};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;

/// Requests in a row with another behind them that call for another leader.
const GROW_AFTER: u32 = 4;
/// Requests in a row that found a second leader listening, before one parks.
const SHRINK_AFTER: u32 = 64;
/// A wait for a request that is shorter than this calls for one leader.
const SHORT_WAIT: Duration = Duration::from_micros(50);
/// Leaders at least after a longer wait.
const LEADERS_MIN: usize = 2;
/// Requests in a row that are taken from one source before the others are looked at.
const BATCH: u32 = 16;
/// How often the watch looks, and after how many ticks without a request it stops.
const WATCH_INTERVAL: Duration = Duration::from_millis(20);
const WATCH_INTERVALS_IDLE: u32 = 50;
/// Parked threads that stay, beside one a core, and how long the others do.
const PARKED_KEEP: usize = 8;
const PARKED_TIMEOUT: Duration = Duration::from_secs(10);
/// Threads at most: every request that sleeps has one.
const THREADS_MAX: usize = 8192;

/// What a source had.
pub(crate) enum ReadOutcome {
    /// A request of so many bytes.
    Request(usize),
    /// No request is waiting.
    Nothing,
    /// So many of its requests are being served that no more are taken: when one of
    /// them ends, [`RequestSource::serve`] says to arm it.
    Full,
    /// The connection has ended.
    Gone,
}

/// A connection whose requests the threads serve.
pub(crate) trait RequestSource: Send + Sync {
    /// What epoll watches; it does not block.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Makes a thread's buffer large enough for its requests.
    fn fit(&self, inbox: &mut BufMut);

    /// Takes a request into an inbox; with `ended` also when it is full, for the
    /// connection's end may be all that there is.
    fn take(&self, inbox: &mut BufMut, ended: bool) -> ReadOutcome;

    /// Serves what [`RequestSource::take`] took. Returns a buffer for the next request, and whether
    /// the source must be armed, because it was full.
    fn serve(self: Arc<Self>, inbox: BufMut, len: usize) -> (BufMut, bool);

    /// A request of it is about to sleep.
    fn sleeps(&self) {}

    /// It was detached: called once, after it was seen to be gone.
    fn gone(&self);
}

/// How a request arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arrival {
    /// It was queued, and another one behind it.
    Backlogged,
    /// Alone, without a wait.
    Single,
    /// After the thread slept for so long.
    Slept(Duration),
}

#[derive(Debug, Default)]
struct ReceiverState {
    threads: usize,
    /// Started threads that have not tried to become leader yet.
    starting: usize,
    /// Leaders at most.
    wanted: usize,
    /// Leaders, and those of them that wait for an event.
    active: usize,
    listening: usize,
    /// Followers, and those of them that were woken to become leaders.
    parked: usize,
    woken: usize,
    backlogged: u32,
    calm: u32,
    /// Requests taken, now and when the watch looked last.
    taken: u64,
    seen: u64,
    /// Ticks of the watch in a row without a request.
    quiet: u32,
    watched: bool,
    /// How often the watch ended the leadership of all threads.
    epoch: u64,
    /// The last wait for a request was a long one.
    waits_long: bool,
}

/// What a parked thread does next.
enum Parked {
    /// It tries to become leader.
    Retry,
    /// It re-arms all sources: perhaps no thread attends them.
    RearmAll,
    /// It exits.
    Exit,
}

/// A source that a thread reads, with its key in epoll.
type Attended = (u64, Arc<dyn RequestSource>);

std::thread_local! {
    /// The epoch in which this thread became leader, while it serves a request.
    static LEADER_EPOCH: Cell<Option<u64>> = const { Cell::new(None) };
    /// The source of the request that it serves, and whether it attends that.
    static SERVING: RefCell<Option<(Attended, bool)>> = const { RefCell::new(None) };
}

/// The threads; see the module.
pub(crate) struct Receivers {
    epoll: OwnedFd,
    leaders_max: usize,
    sources: RwLock<IdMap<u64, Arc<dyn RequestSource>>>,
    next: AtomicU64,
    state: Mutex<ReceiverState>,
    unparked: Condvar,
}

fn edges() -> EventFlags {
    EventFlags::IN | EventFlags::ET
}

impl Receivers {
    /// Those of the process.
    ///
    /// # Errors
    /// The operating system gives no epoll instance.
    pub(crate) fn of_process() -> Result<Arc<Receivers>> {
        static ALL: OnceLock<Arc<Receivers>> = OnceLock::new();
        if let Some(all) = ALL.get() {
            return Ok(Arc::clone(all));
        }
        let new = Receivers::new(base::rt::parallelism())?;
        Ok(Arc::clone(ALL.get_or_init(|| new)))
    }

    fn new(leaders_max: usize) -> Result<Arc<Receivers>> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)
            .map_err(|e| Error::io("cannot make an epoll instance", e.into()))?;
        let state = ReceiverState { wanted: 1, ..ReceiverState::default() };
        Ok(Arc::new(Receivers {
            epoll,
            leaders_max: leaders_max.max(1),
            sources: RwLock::default(),
            next: AtomicU64::new(0),
            state: Mutex::new(state),
            unparked: Condvar::new(),
        }))
    }

    /// Serves a source from now on, until it is gone.
    ///
    /// # Errors
    /// The operating system does not watch its descriptor, or there is no thread.
    pub(crate) fn attach(self: &Arc<Self>, source: Arc<dyn RequestSource>) -> Result<()> {
        {
            let mut state = self.state.lock();
            if state.threads == 0 {
                (state.threads, state.starting) = (1, 1);
                drop(state);
                self.start()?;
            }
        }
        let id = self.next.fetch_add(1, Relaxed);
        self.sources.write().insert(id, Arc::clone(&source));
        epoll::add(&self.epoll, source.descriptor(), EventData::new_u64(id), edges()).map_err(|e| {
            self.sources.write().remove(&id);
            Error::io("cannot watch the FUSE device", e.into())
        })
    }

    /// Starts a thread that is counted already.
    fn start(self: &Arc<Self>) -> Result<()> {
        let own = Arc::clone(self);
        let started = base::rt::spawn("fuse", move || own.life());
        started.map(drop).inspect_err(|_| {
            let mut state = self.state.lock();
            state.threads -= 1;
            state.starting -= 1;
        })
    }

    /// Reports an edge if the source has a request.
    fn arm(&self, (id, source): &Attended) {
        // One that is gone is not watched any more.
        let _gone =
            epoll::modify(&self.epoll, source.descriptor(), EventData::new_u64(*id), edges());
    }

    fn detach(&self, id: u64) {
        let source = self.sources.write().remove(&id);
        if let Some(source) = source {
            let _unwatched = epoll::delete(&self.epoll, source.descriptor());
            source.gone();
        }
    }

    fn life(self: Arc<Self>) {
        let own = Arc::clone(&self);
        base::rt::before_sleep(move || own.leave());
        self.state.lock().starting -= 1;
        let mut inbox = BufMut::alloc(0);
        let (mut led, mut attended, mut batch) = (None, None, 0);
        while let Some(epoch) = self.become_leader(led, &mut attended) {
            if batch >= BATCH
                && let Some(source) = attended.take()
            {
                self.arm(&source);
            }
            batch = if attended.is_some() { batch + 1 } else { 0 };
            let (source, len, arrival) = self.next(&mut attended, &mut inbox);
            LEADER_EPOCH.set(Some(epoch));
            SERVING.set(Some((source.clone(), true)));
            if self.took(arrival) && arrival == Arrival::Backlogged {
                // Another leader takes the next one.
                self.arm(&source);
            }
            let (back, was_full) = Arc::clone(&source.1).serve(inbox, len);
            inbox = back;
            led = LEADER_EPOCH.take();
            let attends = SERVING.take().is_some_and(|s| s.1);
            if was_full {
                self.arm(&source);
            }
            attended = attends.then_some(source);
        }
    }

    /// Makes the calling thread a leader, if it is not one since the epoch `led`; parks it
    /// while there are enough. Returns the epoch; `None` when the thread is surplus.
    fn become_leader(
        self: &Arc<Self>,
        led: Option<u64>,
        attended: &mut Option<Attended>,
    ) -> Option<u64> {
        let mut state = self.state.lock();
        let leads = led == Some(state.epoch);
        if !leads || state.active > state.wanted {
            state.active -= usize::from(leads);
            if let Some(source) = attended.take() {
                drop(state);
                self.arm(&source);
                state = self.state.lock();
            }
            state.parked += 1;
            while state.active >= state.wanted {
                match self.park(&mut state) {
                    Parked::Retry => {}
                    Parked::RearmAll => {
                        // It could not be woken meanwhile.
                        state.parked -= 1;
                        drop(state);
                        self.arm_all();
                        state = self.state.lock();
                        state.parked += 1;
                    }
                    Parked::Exit => {
                        state.parked -= 1;
                        state.threads -= 1;
                        return None;
                    }
                }
            }
            state.parked -= 1;
            state.active += 1;
        }
        state.listening += 1;
        let epoch = state.epoch;
        if state.parked <= state.woken && state.starting == 0 && state.threads < THREADS_MAX {
            state.threads += 1;
            state.starting += 1;
            drop(state);
            // Without a follower requests are served until the leaders sleep.
            let _fewer = self.start();
        }
        Some(epoch)
    }

    /// Parks the calling thread once, as the watch if there is none and requests come.
    fn park(&self, state: &mut MutexGuard<'_, ReceiverState>) -> Parked {
        let (most, watches) =
            (PARKED_KEEP + self.leaders_max, !state.watched && state.quiet < WATCH_INTERVALS_IDLE);
        if watches {
            (state.watched, state.seen) = (true, state.taken);
        }
        let time_is_up = match (watches, state.parked > most) {
            (true, _) => self.unparked.wait_timeout(state, WATCH_INTERVAL),
            (false, true) => self.unparked.wait_timeout(state, PARKED_TIMEOUT),
            (false, false) => {
                self.unparked.wait(state);
                false
            }
        };
        if watches {
            state.watched = false;
        }
        // A wake that arrives when the time ends counts as taken. If it was meant for another
        // thread, that one looks in vain.
        let woken = state.woken > 0;
        state.woken = state.woken.saturating_sub(1);
        if !time_is_up || woken {
            return Parked::Retry;
        }
        if !watches {
            return if state.parked > most { Parked::Exit } else { Parked::Retry };
        }
        state.quiet = if state.seen == state.taken { state.quiet + 1 } else { 0 };
        if state.quiet == 0 || state.active == state.listening {
            return Parked::Retry;
        }
        // Leaders have served one request for a tick: what they attend may have others.
        if state.listening == 0 {
            state.active = 0;
            state.epoch += 1;
            return Parked::RearmAll;
        }
        if state.quiet == 1 { Parked::RearmAll } else { Parked::Retry }
    }

    fn arm_all(&self) {
        let all: Vec<Attended> =
            self.sources.read().iter().map(|(id, s)| (*id, Arc::clone(s))).collect();
        all.iter().for_each(|source| self.arm(source));
    }

    /// The next request: of the attended source, or of one that epoll reports.
    fn next(
        &self,
        attended: &mut Option<Attended>,
        inbox: &mut BufMut,
    ) -> (Attended, usize, Arrival) {
        let (mut slept, mut ended) = (None, false);
        loop {
            if let Some((id, source)) = attended.as_ref() {
                source.fit(inbox);
                match source.take(inbox, ended) {
                    ReadOutcome::Request(len) => {
                        let how = match slept {
                            Some(time) => Arrival::Slept(time),
                            None if is_ready(source.descriptor()) => Arrival::Backlogged,
                            None => Arrival::Single,
                        };
                        return ((*id, Arc::clone(source)), len, how);
                    }
                    ReadOutcome::Nothing | ReadOutcome::Full => {}
                    ReadOutcome::Gone => self.detach(*id),
                }
            }
            // It may be gone: nothing of it is kept while the thread waits.
            *attended = None;
            let event;
            (event, slept) = self.wait();
            // The structure is packed: its fields are copied.
            let (id, flags) = (event.data.u64(), event.flags);
            ended = flags.intersects(EventFlags::ERR | EventFlags::HUP);
            let source = self.sources.read().get(&id).cloned();
            *attended = source.map(|source| (id, source));
        }
    }

    /// Waits for an event. Returns how long the thread slept, if it did.
    fn wait(&self) -> (epoll::Event, Option<Duration>) {
        if let Some(event) = self.event(true) {
            return (event, None);
        }
        let start = now();
        loop {
            if let Some(event) = self.event(false) {
                return (event, Some(start.elapsed()));
            }
        }
    }

    fn event(&self, at_once: bool) -> Option<epoll::Event> {
        let none = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        let blank = epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) };
        let mut events = [blank];
        match epoll::wait(&self.epoll, &mut events[..], at_once.then_some(&none)) {
            Ok(1..) => Some(events[0]),
            Ok(0) | Err(Errno::INTR) => None,
            Err(_) => {
                // No error is documented that could come here; none must make it spin.
                base::rt::sleep(WATCH_INTERVAL);
                None
            }
        }
    }

    /// Counts a request that the calling thread took. Returns whether another leader listens.
    fn took(&self, arrival: Arrival) -> bool {
        let mut state = self.state.lock();
        state.listening -= 1;
        state.taken += 1;
        state.quiet = 0;
        state.learn(arrival, self.leaders_max);
        let others = state.listening > 0;
        self.fill(state) || others
    }

    /// The calling thread is about to sleep.
    fn leave(&self) {
        let led = LEADER_EPOCH.take();
        // A thread that ends serves nothing any more.
        let _ending = SERVING.try_with(|serving| {
            let mut serving = serving.borrow_mut();
            let Some((source, attends)) = serving.as_mut() else { return };
            if led.is_some() {
                self.arm(source);
                *attends = false;
            }
            source.1.sleeps();
        });
        let Some(epoch) = led else { return };
        let mut state = self.state.lock();
        if epoch != state.epoch {
            return;
        }
        state.active -= 1;
        if state.listening == 0 {
            state.wanted = (state.wanted + 1).min(self.leaders_max);
        }
        self.fill(state);
    }

    /// Wakes a follower to lead if no leader listens, or to be the watch if there is none.
    /// Returns whether a follower was woken to lead.
    fn fill(&self, mut state: MutexGuard<'_, ReceiverState>) -> bool {
        let lead = state.listening == 0 && state.active + state.woken < state.wanted;
        let watch = !state.watched && state.woken == 0;
        let wake = state.parked > state.woken && (lead || watch);
        state.woken += usize::from(wake);
        drop(state);
        if wake {
            self.unparked.notify_one();
        }
        wake && lead
    }
}

/// Whether a request waits.
fn is_ready(descriptor: BorrowedFd<'_>) -> bool {
    let mut fds = [rustix::event::PollFd::new(&descriptor, rustix::event::PollFlags::IN)];
    let none = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(rustix::event::poll(&mut fds, Some(&none)), Ok(1..))
}

impl ReceiverState {
    /// Adapts the number of leaders to the way in which a request arrived. The calling thread
    /// does not listen any more.
    fn learn(&mut self, arrival: Arrival, leaders_max: usize) {
        if arrival == Arrival::Backlogged {
            self.calm = 0;
            self.backlogged += 1;
        } else {
            self.backlogged = 0;
            self.calm = if self.listening > 0 { self.calm + 1 } else { 0 };
        }
        if self.backlogged >= GROW_AFTER {
            self.backlogged = 0;
            self.wanted = (self.wanted + 1).min(leaders_max);
        }
        if self.calm >= SHRINK_AFTER {
            self.calm = 0;
            self.wanted = self.wanted.saturating_sub(1);
        }
        if let Arrival::Slept(time) = arrival {
            self.waits_long = time >= SHORT_WAIT;
        }
        let least = if self.waits_long { LEADERS_MIN.min(leaders_max) } else { 1 };
        self.wanted = self.wanted.max(least);
    }
}

#[cfg(test)]
#[path = "receivers_tests.rs"]
mod tests;
