//! The receiving threads of all mounts of the process.
//!
//! # Theory
//! Every connection's `/dev/fuse` descriptor is a [`Source`] in one epoll instance,
//! edge-triggered: the kernel queues an event for each request and wakes one thread that
//! waits in `epoll_wait`. So a mount costs a descriptor and no thread, and the threads are
//! as many as there is work, whichever mount it comes from.
//!
//! The threads are leaders and followers. A *leader* has a seat: it waits for events, reads
//! a request and serves it. A *follower* is parked. There are as many seats as cores, so a
//! thread that answers a request often finds the next one there, and no core is woken. A
//! leader that is about to sleep ([`base::rt::before_sleep`]) gives its seat up first, and a
//! follower takes it; when no follower is left, one more thread is started. A thread that
//! wakes needs a seat again, or parks; surplus threads end after [`IDLE`].
//!
//! An edge is reported once, so a thread that took one *attends* the source: it reads until
//! the source is empty, or arms the source again (`EPOLL_CTL_MOD` reports an edge if
//! a request waits) before it sleeps, parks or turns to another source.
//!
//! `wanted` of the seats are in use. It grows when several requests in a row had another
//! one behind them, and when a leader sleeps while no other listens; it shrinks when many in
//! a row had none and found a second leader listening. That a request is there at once says
//! nothing: a caller on its server's core always has the next one ready when the server
//! runs again.
//!
//! A thread can sleep without a word, in a system call that was not announced or at long
//! work. One follower is the *watch*: at the end of a tick in which leaders served and no
//! request was taken, it arms every source, once until the next request; when nobody listens,
//! it vacates all seats, and leads. After a second without requests it stops its ticks; the
//! next request wakes it.
//!
//! The only leader polls for [`LOOK`] before it sleeps, if polling would have helped the
//! last time: waking a core costs more than most answers take (20 µs in a virtual machine).
//!
//! # Invariants
//! * `listening <= active`; `1 <= wanted <= seats`. A seat counts while its `round` is current.
//! * A source with a request that can be served is in epoll's ready list, is attended by a
//!   thread with a seat, or is `Full` (its next end of a request arms it).
//! * While a follower is parked, some leader is awake, or a follower was woken. A seat is
//!   given up together with the decision to wake a follower.
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
const CROWD: u32 = 4;
/// Requests in a row that found a second leader listening, before one parks.
const CALM: u32 = 64;
/// How long the only leader polls before it sleeps.
const LOOK: Duration = Duration::from_micros(50);
/// A poll that took so long was interrupted: another thread wants the core.
const AWAY: Duration = Duration::from_micros(30);
/// Leaders at least where none polls: while one answers, another listens.
const PAIR: usize = 2;
/// Requests of one source in a row before the others have their turn.
const BATCH: u32 = 16;
/// How often the watch looks, and after how many ticks without a request it stops.
const TICK: Duration = Duration::from_millis(20);
const QUIET: u32 = 50;
/// Parked threads that stay, beside one a core, and how long the others do.
const KEEP: usize = 8;
const IDLE: Duration = Duration::from_secs(10);
/// Threads at most: every request that sleeps has one.
const THREADS_MAX: usize = 8192;

/// What a source had.
pub(crate) enum Taken {
    /// A request of so many bytes.
    Request(usize),
    /// No request is waiting.
    Nothing,
    /// So many of its requests are being served that no more are taken: when one of
    /// them ends, [`Source::serve`] says to arm it.
    Full,
    /// The connection has ended.
    Gone,
}

/// A connection whose requests the threads serve.
pub(crate) trait Source: Send + Sync {
    /// What epoll watches; it does not block.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Makes a thread's buffer large enough for its requests.
    fn fit(&self, inbox: &mut BufMut);

    /// Takes a request into an inbox; with `ended` also when it is full, for the
    /// connection's end may be all that there is.
    fn take(&self, inbox: &mut BufMut, ended: bool) -> Taken;

    /// Serves what [`Source::take`] took. Returns a buffer for the next request, and whether
    /// the source must be armed, because it was full.
    fn serve(self: Arc<Self>, inbox: BufMut, len: usize) -> (BufMut, bool);

    /// A request of it is about to sleep.
    fn sleeps(&self) {}

    /// It was detached: called once, after it was seen to be gone.
    fn gone(&self);
}

/// How a request came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Came {
    /// It was there, and another one behind it.
    Crowded,
    /// It was there, alone.
    Alone,
    /// While the thread polled.
    Polled,
    /// After the thread slept for so long; `polled` in vain before.
    Slept { time: Duration, polled: bool },
}

#[derive(Debug, Default)]
struct State {
    threads: usize,
    /// Threads that were started and have not asked for a seat yet.
    starting: usize,
    /// Seats in use at most.
    wanted: usize,
    /// Threads with a seat, and those of them that wait for an event.
    active: usize,
    listening: usize,
    /// Threads without one, and those of them that were woken to take one.
    parked: usize,
    woken: usize,
    crowded: u32,
    calm: u32,
    /// The only leader polls.
    polls: bool,
    /// Requests taken, and how many they were when the watch looked last.
    taken: u64,
    seen: u64,
    /// Ticks in a row without one.
    quiet: u32,
    watched: bool,
    /// How often all seats were vacated.
    round: u64,
}

/// What a parked thread does next.
enum Parked {
    /// It looks for a free seat.
    Looks,
    /// It arms the sources: as far as it knows, nobody attends them.
    Arms,
    /// It ends.
    Ends,
}

/// A source that a thread reads, with its key in epoll.
type Attended = (u64, Arc<dyn Source>);

std::thread_local! {
    /// The round of this thread's seat, while it serves a request.
    static SEAT: Cell<Option<u64>> = const { Cell::new(None) };
    /// The source of the request that it serves, and whether it attends that.
    static SERVING: RefCell<Option<(Attended, bool)>> = const { RefCell::new(None) };
}

/// The threads; see the module.
pub(crate) struct Receivers {
    epoll: OwnedFd,
    seats: usize,
    sources: RwLock<IdMap<u64, Arc<dyn Source>>>,
    next: AtomicU64,
    state: Mutex<State>,
    turn: Condvar,
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

    fn new(seats: usize) -> Result<Arc<Receivers>> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)
            .map_err(|e| Error::io("cannot make an epoll instance", e.into()))?;
        let state = State { wanted: 1, polls: true, ..State::default() };
        Ok(Arc::new(Receivers {
            epoll,
            seats: seats.max(1),
            sources: RwLock::default(),
            next: AtomicU64::new(0),
            state: Mutex::new(state),
            turn: Condvar::new(),
        }))
    }

    /// Serves a source from now on, until it is gone.
    ///
    /// # Errors
    /// The operating system does not watch its descriptor, or there is no thread.
    pub(crate) fn attach(self: &Arc<Self>, source: Arc<dyn Source>) -> Result<()> {
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
        let (mut seat, mut attended, mut batch) = (None, None, 0);
        while let Some((round, polls)) = self.take_seat(seat, &mut attended) {
            if batch >= BATCH
                && let Some(source) = attended.take()
            {
                self.arm(&source);
            }
            batch = if attended.is_some() { batch + 1 } else { 0 };
            let (source, len, came) = self.next(&mut attended, &mut inbox, polls);
            SEAT.set(Some(round));
            SERVING.set(Some((source.clone(), true)));
            if self.took(came) && came == Came::Crowded {
                // Another leader takes the next one.
                self.arm(&source);
            }
            let (back, was_full) = Arc::clone(&source.1).serve(inbox, len);
            inbox = back;
            seat = SEAT.take();
            let attends = SERVING.take().is_some_and(|s| s.1);
            if was_full {
                self.arm(&source);
            }
            attended = attends.then_some(source);
        }
    }

    /// Before a thread with a seat listens: whether it polls, and the seat's round. Waits for
    /// a seat if there is none; nothing when the thread is not needed any more.
    fn take_seat(
        self: &Arc<Self>,
        seat: Option<u64>,
        attended: &mut Option<Attended>,
    ) -> Option<(u64, bool)> {
        let mut state = self.state.lock();
        let seated = seat == Some(state.round);
        if !seated || state.active > state.wanted {
            state.active -= usize::from(seated);
            if let Some(source) = attended.take() {
                drop(state);
                self.arm(&source);
                state = self.state.lock();
            }
            state.parked += 1;
            while state.active >= state.wanted {
                match self.park(&mut state) {
                    Parked::Looks => {}
                    Parked::Arms => {
                        // It could not be woken meanwhile.
                        state.parked -= 1;
                        drop(state);
                        self.arm_all();
                        state = self.state.lock();
                        state.parked += 1;
                    }
                    Parked::Ends => {
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
        let seat = (state.round, self.seats > 1 && state.active == 1 && state.polls);
        if state.parked <= state.woken && state.starting == 0 && state.threads < THREADS_MAX {
            state.threads += 1;
            state.starting += 1;
            drop(state);
            // Without a follower all goes on, until the leaders sleep.
            let _fewer = self.start();
        }
        Some(seat)
    }

    /// Parks the calling thread once, as the watch if there is none and requests come.
    fn park(&self, state: &mut MutexGuard<'_, State>) -> Parked {
        let (most, watches) = (KEEP + self.seats, !state.watched && state.quiet < QUIET);
        if watches {
            (state.watched, state.seen) = (true, state.taken);
        }
        let time_is_up = match (watches, state.parked > most) {
            (true, _) => self.turn.wait_timeout(state, TICK),
            (false, true) => self.turn.wait_timeout(state, IDLE),
            (false, false) => {
                self.turn.wait(state);
                false
            }
        };
        if watches {
            state.watched = false;
        }
        // A wake that came together with the time's end counts as taken: if it was meant for
        // another thread, that one looks in vain.
        let woken = state.woken > 0;
        state.woken = state.woken.saturating_sub(1);
        if !time_is_up || woken {
            return Parked::Looks;
        }
        if !watches {
            return if state.parked > most { Parked::Ends } else { Parked::Looks };
        }
        state.quiet = if state.seen == state.taken { state.quiet + 1 } else { 0 };
        if state.quiet == 0 || state.active == state.listening {
            return Parked::Looks;
        }
        // Leaders have served one request for a tick: what they attend may have others.
        if state.listening == 0 {
            state.active = 0;
            state.round += 1;
            return Parked::Arms;
        }
        if state.quiet == 1 { Parked::Arms } else { Parked::Looks }
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
        polls: bool,
    ) -> (Attended, usize, Came) {
        let (mut how, mut ended) = (Came::Alone, false);
        loop {
            if let Some((id, source)) = attended.as_ref() {
                source.fit(inbox);
                match source.take(inbox, ended) {
                    Taken::Request(len) => {
                        if how == Came::Alone && is_ready(source.descriptor()) {
                            how = Came::Crowded;
                        }
                        return ((*id, Arc::clone(source)), len, how);
                    }
                    Taken::Nothing | Taken::Full => {}
                    Taken::Gone => self.detach(*id),
                }
            }
            // It may be gone: nothing of it is kept while the thread waits.
            *attended = None;
            let event;
            (event, how) = self.wait(polls);
            // The structure is packed: its fields are copied.
            let (id, flags) = (event.data.u64(), event.flags);
            ended = flags.intersects(EventFlags::ERR | EventFlags::HUP);
            let source = self.sources.read().get(&id).cloned();
            *attended = source.map(|source| (id, source));
        }
    }

    /// Waits for an event.
    fn wait(&self, polls: bool) -> (epoll::Event, Came) {
        if let Some(event) = self.event(true) {
            return (event, Came::Alone);
        }
        let start = now();
        let (mut last, mut polled) = (start, false);
        while polls && last.since(start) < LOOK {
            polled = true;
            if let Some(event) = self.event(true) {
                return (event, Came::Polled);
            }
            let look = now();
            if look.since(last) > AWAY {
                break;
            }
            last = look;
        }
        let slept = now();
        loop {
            if let Some(event) = self.event(false) {
                return (event, Came::Slept { time: slept.elapsed(), polled });
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
                base::rt::sleep(TICK);
                None
            }
        }
    }

    /// A request came to the calling thread. Whether another leader listens.
    fn took(&self, came: Came) -> bool {
        let mut state = self.state.lock();
        state.listening -= 1;
        state.taken += 1;
        state.quiet = 0;
        state.learn(came, self.seats);
        let others = state.listening > 0;
        self.fill(state) || others
    }

    /// The calling thread is about to sleep.
    fn leave(&self) {
        let seat = SEAT.take();
        // A thread that ends serves nothing any more.
        let _ending = SERVING.try_with(|serving| {
            let mut serving = serving.borrow_mut();
            let Some((source, attends)) = serving.as_mut() else { return };
            if seat.is_some() {
                self.arm(source);
                *attends = false;
            }
            source.1.sleeps();
        });
        let Some(round) = seat else { return };
        let mut state = self.state.lock();
        if round != state.round {
            return;
        }
        state.active -= 1;
        if state.listening == 0 {
            state.wanted = (state.wanted + 1).min(self.seats);
        }
        self.fill(state);
    }

    /// Wakes a follower for a free seat if nobody listens, or as the watch if there is none.
    /// Whether it was for a seat.
    fn fill(&self, mut state: MutexGuard<'_, State>) -> bool {
        let seat = state.listening == 0 && state.active + state.woken < state.wanted;
        let watch = !state.watched && state.woken == 0;
        let wake = state.parked > state.woken && (seat || watch);
        state.woken += usize::from(wake);
        drop(state);
        if wake {
            self.turn.notify_one();
        }
        wake && seat
    }
}

/// Whether a request waits.
fn is_ready(descriptor: BorrowedFd<'_>) -> bool {
    let mut fds = [rustix::event::PollFd::new(&descriptor, rustix::event::PollFlags::IN)];
    let none = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(rustix::event::poll(&mut fds, Some(&none)), Ok(1..))
}

impl State {
    /// What the way in which a request came says of the leaders. The caller listens no more.
    fn learn(&mut self, came: Came, seats: usize) {
        if came == Came::Crowded {
            self.calm = 0;
            self.crowded += 1;
        } else {
            self.crowded = 0;
            self.calm = if self.listening > 0 { self.calm + 1 } else { 0 };
        }
        if self.crowded >= CROWD {
            self.crowded = 0;
            self.wanted = (self.wanted + 1).min(seats);
        }
        if self.calm >= CALM {
            self.calm = 0;
            self.wanted -= 1;
        }
        if let Came::Slept { time, polled } = came {
            self.polls = !polled && time < LOOK;
        }
        let least = if self.polls { 1 } else { PAIR.min(seats) };
        self.wanted = self.wanted.max(least);
    }
}

#[cfg(test)]
#[path = "receivers_tests.rs"]
mod tests;
