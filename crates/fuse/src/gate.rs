//! Which threads wait for requests on `/dev/fuse`, and how.
//!
//! # Theory
//! The kernel wakes the thread that has waited longest. With many waiting, each request
//! goes to another one, on a core that sleeps as likely as not; with as many as are needed,
//! a thread often finds the next request there when it has answered one, and nobody is
//! woken. So only `seats` threads, one for each core, are awake here at once, and fewer
//! while fewer have something to do: a thread must have a *seat* to wait for a request, and
//! keeps it from one request to the next. Before it sleeps for one
//! ([`base::rt::before_sleep`]) it gives its seat up, and if nobody else waits for requests
//! then, a parked thread is woken to take it. When it is done, it needs a seat again.
//!
//! `wanted` of the seats are in use. It grows when several requests in a row had another
//! one behind them, and when a thread sleeps while nobody waits for requests; it shrinks
//! when many in a row had none, and found a second thread waiting. That a request is there
//! at once says nothing: a single caller on its server's core always has the next one ready
//! when the server comes to run again.
//!
//! Who sleeps without a word (in a system call that nobody announced, or at work for long)
//! is noticed: one parked thread is the *watch*. Where nobody listens at the end of a tick
//! in which no request was taken, the seats are taken away from all who have one, and the
//! watch takes the first. It sleeps without ticks once nothing came for a second, and is
//! woken by the next request.
//!
//! A thread that alone has a seat looks for the next request a little while before it
//! sleeps, as long as that was worth it lately: to wake another core costs more than most
//! answers (in a virtual machine 20 µs; a quarter of the rate at which one caller makes or
//! removes files). Where other threads want its core it does not look for a while:
//! who wakes is let in soon, who only gave way waits for its turn. That is reckoned in time:
//! each request that was looked for saved [`GAIN`], and what others took of the core is paid
//! from that. (Every kernel thread that ran for a moment stopped all looking once, and a
//! quarter of one caller's requests had to wake somebody.) Where nobody looks, two
//! threads at least have seats, so that one waits already while the other one answers.
//! (To follow the caller to its core is no way out: two switches there cost less than two
//! cores woken, but where another core is idle the kernel moves the woken caller on to it,
//! and server and caller chase each other.)
//!
//! # Invariants
//! * Who waits for requests has a seat: `listening <= active`; `1 <= wanted <= seats`.
//! * A seat counts as long as its `round` is the gate's: whose was taken away has none.
//! * While a thread is parked, a thread has a seat and does not sleep, or one was woken: a
//!   seat is given up only together with the look whether to wake somebody. So nobody's
//!   sleep keeps requests from being received, as long as threads are left.
//! * While a thread is parked, there is a watch, or the next request wakes one.
//!
//! Lock order: `state` is a leaf, held for a few instructions.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use base::rt::{Condvar, Mutex, MutexGuard};

/// Requests in a row with another behind them that make a crowd.
const CROWD: u32 = 4;
/// Requests in a row that found a second thread waiting, before one is parked.
const CALM: u32 = 64;
/// Of a score: always, and from what on looking is worth it.
const SURE: u32 = 256;
const WORTH: u32 = SURE / 2;
/// How much of it one try counts.
const SHARE: u32 = 8;
/// Where looking was in vain, or others wanted the core, nobody looks for so many requests.
const VAIN: u32 = 1024;
const BUSY: u32 = 256;
/// What a request saves that was looked for, and how much of it is kept at most: a few turns
/// of somebody who wants the core as much.
const GAIN: Duration = Duration::from_micros(8);
const CREDIT: Duration = Duration::from_millis(10);
/// Threads at least where nobody looks: while one answers, another is there already.
const PAIR: usize = 2;
/// How often the watch looks, and after how many times without a request it stops.
const TICK: Duration = Duration::from_millis(20);
const QUIET: u32 = 50;

/// How a request came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Came {
    /// It was there, and another one behind it.
    Crowded,
    /// Alone, to a thread that did not look.
    Alone,
    /// Looking for it was enough.
    Looked,
    /// Looking was not enough.
    LookedAndSlept,
    /// Others had the looking thread's core for so long meanwhile.
    Disturbed(Duration),
}

#[derive(Debug, Default)]
struct State {
    wanted: usize,
    /// Threads with a seat.
    active: usize,
    /// Of these: who waits for a request.
    listening: usize,
    /// Threads that wait for a seat.
    parked: usize,
    /// Of these: who was woken and does not run yet.
    woken: usize,
    /// Crowded requests in a row.
    crowded: u32,
    calm: u32,
    /// How often looking was enough, of [`SURE`].
    score: u32,
    /// Time saved by looking that was not lost again.
    credit: Duration,
    /// Requests until looking is tried again.
    skip: u32,
    /// Requests taken, and how many they were when the watch looked last.
    taken: u64,
    seen: u64,
    /// Looks without a new request.
    quiet: u32,
    /// A parked thread is the watch.
    watched: bool,
    /// How often all seats were taken away.
    round: u64,
    closed: bool,
}

/// The gate of one session's threads.
#[derive(Debug)]
pub(crate) struct Gate {
    seats: usize,
    state: Mutex<State>,
    turn: Condvar,
}

std::thread_local! {
    /// The round of this thread's seat, if it has one; nothing before it first asked.
    static SEAT: Cell<Option<Option<u64>>> = const { Cell::new(None) };
}

impl Gate {
    /// A gate that lets `seats` threads wait at once.
    pub(crate) fn new(seats: usize) -> Arc<Gate> {
        let state = State { wanted: 1, score: SURE, ..State::default() };
        Arc::new(Gate { seats: seats.max(1), state: Mutex::new(state), turn: Condvar::new() })
    }

    /// Before a thread waits for a request: waits for a seat if it has none. Whether to look
    /// before it sleeps. A thread may use one gate in its life.
    pub(crate) fn listen(self: &Arc<Gate>) -> bool {
        if SEAT.get().is_none() {
            let gate = Arc::clone(self);
            base::rt::before_sleep(move || gate.leave());
        }
        // Who waits below has no seat to give up.
        let seat = SEAT.replace(Some(None)).flatten();
        let (round, looks) = self.take_seat(seat);
        SEAT.set(Some(Some(round)));
        looks
    }

    /// The seat's round, and whether to look.
    fn take_seat(&self, seat: Option<u64>) -> (u64, bool) {
        let mut state = self.state.lock();
        let seated = seat == Some(state.round);
        let keeps = seated && (state.active <= state.wanted || state.closed);
        if !keeps {
            state.active -= usize::from(seated);
            state.parked += 1;
            while state.active >= state.wanted && !state.closed {
                self.park(&mut state);
            }
            state.parked -= 1;
            state.active += 1;
        }
        state.listening += 1;
        (state.round, self.seats > 1 && state.looks())
    }

    /// Parks the calling thread, as the watch if there is none and requests come.
    fn park(&self, state: &mut MutexGuard<'_, State>) {
        if state.watched || state.quiet >= QUIET {
            self.turn.wait(state);
            state.woken = state.woken.saturating_sub(1);
            return;
        }
        state.watched = true;
        state.seen = state.taken;
        let ticked = self.turn.wait_timeout(state, TICK);
        state.watched = false;
        if !ticked {
            state.woken = state.woken.saturating_sub(1);
            return;
        }
        state.quiet = if state.seen == state.taken { state.quiet + 1 } else { 0 };
        if state.quiet > 0 && state.listening == 0 {
            state.active = 0;
            state.round += 1;
        }
    }

    /// A request came to the calling thread.
    pub(crate) fn took(&self, came: Came) {
        let mut state = self.state.lock();
        state.listening -= 1;
        state.taken += 1;
        state.quiet = 0;
        state.learn(came, self.seats);
        self.fill(state);
    }

    /// The calling thread is about to sleep.
    fn leave(&self) {
        let Some(Some(round)) = SEAT.get() else { return };
        SEAT.set(Some(None));
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

    /// Wakes somebody for a free seat if nobody listens, or as the watch if there is none.
    fn fill(&self, mut state: MutexGuard<'_, State>) {
        let seat = state.listening == 0 && state.active + state.woken < state.wanted;
        let watch = !state.watched && state.woken == 0;
        let wake = state.parked > state.woken && (seat || watch);
        state.woken += usize::from(wake);
        drop(state);
        if wake {
            self.turn.notify_one();
        }
    }

    /// The calling thread, which listened, learnt that there are no more requests:
    /// everybody is let through, to learn the same.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.listening -= 1;
        drop(state);
        self.turn.notify_all();
    }
}

impl State {
    /// Whether who has a seat now looks.
    fn looks(&mut self) -> bool {
        if self.skip > 0 {
            self.skip -= 1;
            if self.skip == 0 {
                self.score = WORTH;
            }
        }
        self.active == 1 && self.score >= WORTH
    }

    fn least(&self, seats: usize) -> usize {
        if self.score >= WORTH { 1 } else { PAIR.min(seats) }
    }

    /// Whoever takes a request no longer listens.
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
        match came {
            Came::Looked => {
                self.score += (SURE - self.score).div_ceil(SHARE);
                self.credit = (self.credit + GAIN).min(CREDIT);
            }
            Came::LookedAndSlept => {
                self.score -= self.score.div_ceil(SHARE);
                self.skip = if self.score < WORTH { VAIN } else { 0 };
            }
            Came::Disturbed(time) => match self.credit.checked_sub(time) {
                Some(left) => self.credit = left,
                None => (self.score, self.skip, self.credit) = (0, BUSY, Duration::ZERO),
            },
            Came::Crowded | Came::Alone => {}
        }
        self.wanted = self.wanted.max(self.least(seats));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::rt::{OneShot, spawn};
    use std::io::{Read, Write, pipe};
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    #[allow(clippy::disallowed_methods)]
    fn wait_without_a_word(done: &AtomicBool) {
        while !done.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Serves requests from a pipe as a session's threads do from the device. `N` takes
    /// no time, `S` sleeps until the next request was served, `B` does so without a word.
    fn serve(requests: &[u8], threads: usize, seats: usize) -> usize {
        let (from, mut to) = pipe().unwrap();
        let gate = Gate::new(seats);
        let done: Arc<Vec<(OneShot<()>, AtomicBool)>> =
            Arc::new((0..=requests.len()).map(|_| Default::default()).collect());
        let text = requests.to_vec();
        let most = Arc::new((AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0)));
        let serving = (0..threads).map(|_| {
            let (gate, done, most) = (Arc::clone(&gate), Arc::clone(&done), Arc::clone(&most));
            let (mut from, text) = (from.try_clone().unwrap(), text.clone());
            let life = move || {
                loop {
                    gate.listen();
                    let now = most.0.fetch_add(1, Ordering::SeqCst) + 1;
                    let mut number = [0; 2];
                    let got = from.read_exact(&mut number);
                    most.0.fetch_sub(1, Ordering::SeqCst);
                    if got.is_err() {
                        gate.close();
                        return;
                    }
                    // At the end all are let through.
                    most.1.fetch_max(now, Ordering::SeqCst);
                    gate.took(if number[1] % 3 == 0 { Came::Alone } else { Came::Crowded });
                    let number = usize::from(u16::from_le_bytes(number));
                    match text[number] {
                        b'S' => done[number + 1].0.wait(),
                        b'B' => wait_without_a_word(&done[number + 1].1),
                        _ => {}
                    }
                    done[number].0.set(());
                    done[number].1.store(true, Ordering::SeqCst);
                    most.2.fetch_add(1, Ordering::SeqCst);
                }
            };
            spawn("serves", life).unwrap()
        });
        let serving: Vec<_> = serving.collect();
        for number in 0..requests.len() as u16 {
            to.write_all(&number.to_le_bytes()).unwrap();
        }
        drop((to, from));
        for thread in serving {
            assert!(thread.join().is_some());
        }
        let silent = requests.iter().filter(|&&kind| kind == b'B').count();
        assert!(most.1.load(Ordering::SeqCst) <= seats + silent, "too many wait for requests");
        most.2.load(Ordering::SeqCst)
    }

    #[test]
    fn a_thread_that_sleeps_is_replaced() {
        assert_eq!(serve(b"SN", 2, 1), 2);
        assert_eq!(serve(b"SSSN", 4, 1), 4);
        assert_eq!(serve(b"SSSSSSSN", 8, 2), 8);
    }

    /// A file system that slept in a system call of its own stopped its whole mount.
    #[test]
    fn a_thread_that_sleeps_without_a_word_is_replaced() {
        assert_eq!(serve(b"BN", 2, 1), 2);
        assert_eq!(serve(b"BBSBNNNNN", 6, 2), 9);
        assert_eq!(serve(b"BBBBBBBN", 8, 1), 8);
    }

    #[test]
    fn every_request_is_served_however_many_sleep() {
        let mut seed = 7u32;
        for seats in [1, 2, 3] {
            for _ in 0..20 {
                let mut text: Vec<u8> = std::iter::repeat_with(|| {
                    seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    if seed >> 30 == 0 { b'S' } else { b'N' }
                })
                .take(300)
                .collect();
                // With five threads four may sleep for one another.
                for at in 4..text.len() {
                    if text[at - 4..at].iter().all(|&kind| kind == b'S') {
                        text[at] = b'N';
                    }
                }
                text.push(b'N');
                assert_eq!(serve(&text, 5, seats), text.len());
            }
        }
    }

    #[test]
    fn a_crowd_brings_threads_and_calm_parks_them() {
        let mut state = State { wanted: 1, score: SURE, ..State::default() };
        for _ in 0..CROWD - 1 {
            state.learn(Came::Crowded, 3);
        }
        state.learn(Came::Alone, 3);
        assert_eq!(state.wanted, 1);
        for wanted in [2, 3, 3] {
            for _ in 0..CROWD {
                state.learn(Came::Crowded, 3);
            }
            assert_eq!(state.wanted, wanted);
        }
        // All busy: as many as before.
        for _ in 0..2 * CALM {
            state.learn(Came::Alone, 3);
        }
        assert_eq!(state.wanted, 3);
        state.listening = 1;
        for wanted in [2, 1, 1] {
            for _ in 0..CALM {
                state.learn(Came::Alone, 3);
            }
            assert_eq!(state.wanted, wanted);
        }
    }

    #[test]
    fn who_looked_in_vain_does_not_for_a_while_and_is_two() {
        let mut state = State { wanted: 1, active: 1, score: SURE, ..State::default() };
        assert!(state.looks());
        let disturbed = Came::Disturbed(GAIN);
        for (came, pause) in [(Came::LookedAndSlept, VAIN), (disturbed, BUSY)] {
            while state.score >= WORTH {
                state.learn(came, 4);
            }
            assert_eq!(state.wanted, 2);
            let before = (0..pause - 1).filter(|_| state.looks()).count();
            assert_eq!((before, state.looks()), (0, true));
        }
        state.listening = 1;
        for _ in 0..CALM {
            state.learn(Came::Alone, 4);
        }
        assert_eq!(state.wanted, 1);
        for _ in 0..100 {
            state.learn(Came::Looked, 4);
        }
        assert_eq!(state.score, SURE);
        state.active = 2;
        assert!(!state.looks(), "two do not look");
        state.learn(Came::Disturbed(CREDIT + GAIN), 1);
        assert_eq!(state.wanted, 1, "there is one seat");
    }

    /// A timer's moment on the core of who looked made the next 256 requests wake a thread
    /// each: one caller made 15,000 files a second, and 18,500 since.
    #[test]
    fn a_moment_is_paid_from_what_looking_saved() {
        let mut state = State { wanted: 1, active: 1, score: SURE, ..State::default() };
        let moment = 10 * GAIN;
        for _ in 0..100 {
            for _ in 0..10 {
                state.learn(Came::Looked, 4);
            }
            state.learn(Came::Disturbed(moment), 4);
            assert!(state.looks());
        }
        assert_eq!(state.credit, Duration::ZERO);
        state.learn(Came::Looked, 4);
        state.learn(Came::Disturbed(moment), 4);
        assert!(!state.looks(), "more was lost than saved");
        // However much was saved, who wants the core for long gets it.
        state = State { wanted: 1, active: 1, score: SURE, ..State::default() };
        (0..1 << 20).for_each(|_| state.learn(Came::Looked, 4));
        assert!(state.looks());
        state.learn(Came::Disturbed(CREDIT + GAIN), 4);
        assert!(!state.looks());
    }
}
