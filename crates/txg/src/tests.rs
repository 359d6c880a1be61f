//! Tests with one or a few threads; interleavings are tested in `tests/model.rs`.

use std::sync::Arc;
use std::time::Duration;

use base::rt::atomic::{AtomicBool, Ordering::SeqCst};
use base::rt::{self, Mutex};
use base::{Error, ErrorKind, Txg};
use proptest::prelude::*;

use crate::dirty::Dirty;
use crate::limits::{DIRTY_DATA_MIN, FAST_STEP_NS, SYNC_STEP, delay_ns, wakeup};
use crate::state::{Dirt, Due, TxgsState};
use crate::throttle::ThrottleQueue;
use crate::*;

const SECOND: u64 = 1_000_000_000;
/// Schedules of each test with threads.
const SCHEDULES: u64 = 16;

fn txgs(limits: Limits) -> Arc<Txgs> {
    let txgs = Txgs::new(Txg(3)).unwrap();
    txgs.set_limits(&limits);
    Arc::new(txgs)
}

fn at_once() -> Limits {
    Limits { timeout_s: 0, ..Limits::default() }
}

fn thread<T: Send + 'static>(
    txgs: &Arc<Txgs>,
    f: impl FnOnce(&Txgs) -> T + Send + 'static,
) -> rt::JoinHandle<T> {
    let txgs = Arc::clone(txgs);
    rt::spawn("test", move || f(&txgs)).unwrap()
}

/// Syncs txg after txg; returns their numbers.
fn syncer(txgs: &Arc<Txgs>) -> rt::JoinHandle<Vec<u64>> {
    thread(txgs, |txgs| {
        let mut all = Vec::new();
        while let Some(txg) = txgs.next_to_sync() {
            txgs.synced(txg);
            all.push(txg.0);
        }
        all
    })
}

/// Runs a test with the simulator's threads and clock, in several schedules.
fn in_virtual_time(test: fn()) {
    for seed in 0..SCHEDULES {
        assert_eq!(rt::sim::run(seed, test).outcome, rt::sim::Outcome::Done(()), "seed {seed}");
    }
}

/// Lets virtual time pass: every other thread goes as far as it can.
fn nap() {
    rt::sleep(Duration::from_millis(30));
}

#[test]
fn the_delay_follows_the_curve() {
    let limits = Limits { dirty_data_max: 4 << 30, ..Limits::default() };
    let at = |percent: u64| delay_ns((4u64 << 30) * percent / 100, &limits);
    assert_eq!(at(0), 0);
    assert_eq!(at(60), 0);
    assert_eq!(at(70) / 100, 1_666);
    assert_eq!(at(80).div_ceil(100), 5_000);
    assert_eq!(at(90).div_ceil(100), 15_000);
    assert_eq!(at(99).div_ceil(100_000), 195);
    assert_eq!(delay_ns((4 << 30) - 1, &limits), 100_000_000, "capped");
    assert_eq!(at(100), 100_000_000);
    assert_eq!(delay_ns(u64::MAX, &limits), 100_000_000);
    let wild = Limits { delay_min_dirty_percent: u64::MAX, ..limits };
    assert_eq!(delay_ns((4 << 30) - 1, &wild), 0);
    assert_eq!(delay_ns(4 << 30, &wild), 100_000_000);
}

proptest! {
    #[test]
    fn the_delay_is_bounded_and_grows(a: u64, b: u64, max in 1u64.., from in 0u64..200, scale: u64) {
        let limits = Limits {
            dirty_data_max: max, delay_min_dirty_percent: from, delay_scale_ns: scale,
            ..Limits::default()
        };
        let (low, high) = (delay_ns(a.min(b), &limits), delay_ns(a.max(b), &limits));
        prop_assert!(low <= high && high <= limits.delay_max_ns);
    }

    /// Compares the counters with a table, even if callers subtract too much.
    #[test]
    fn dirty_bytes_are_those_of_a_table(
        ops in prop::collection::vec((0u8..3, 4u64..8, 0u64..1000), 0..60)
    ) {
        let dirty = Dirty::default();
        let space = SpaceReservation::new();
        let mut table = [0u64; 8];
        let mut reserved = [0u64; 8];
        for (op, txg, n) in ops {
            let at = txg as usize;
            match op {
                0 => {
                    let added = dirty.add(txg, n);
                    prop_assert_eq!(added.before, table[at]);
                    table[at] += n;
                    let fits = reserved.iter().sum::<u64>() + n <= 2500;
                    prop_assert_eq!(space.try_reserve(Txg(txg), n, 2500), fits);
                    reserved[at] += if fits { n } else { 0 };
                }
                1 => {
                    dirty.sub(txg, n);
                    table[at] = table[at].saturating_sub(n);
                    space.release(Txg(txg), n);
                    reserved[at] = reserved[at].saturating_sub(n);
                }
                _ => {
                    dirty.clear(txg);
                    table[at] = 0;
                    space.synced(Txg(txg));
                    reserved[at] = 0;
                }
            }
            prop_assert_eq!(dirty.of(txg), table[at]);
            prop_assert_eq!(dirty.total(), table.iter().sum::<u64>());
            prop_assert_eq!(space.inflight(), reserved.iter().sum::<u64>());
        }
    }

    /// The state machine alone: numbers are consecutive, at most three txgs are alive,
    /// and every closed txg is synced.
    #[test]
    fn txgs_follow_each_other(ops in prop::collection::vec((0u8..4, 0u64..3), 0..100)) {
        let mut state = TxgsState::new(10);
        let limits = Limits::default();
        for (now, (op, n)) in ops.into_iter().enumerate() {
            let now = now as u64;
            let before = (state.synced, state.open);
            match op {
                0 => state.requested = state.requested.max(state.open + n),
                1 if state.closed.is_none() => {
                    let dirt = Dirt { any: n > 0, bytes: 0 };
                    let requested = state.open <= state.requested;
                    let due = state.due(now, dirt, &limits);
                    prop_assert_eq!(due == Due::Now, requested);
                    if due == Due::Now {
                        state.close(now);
                        prop_assert_eq!(state.open, before.1 + 1);
                    }
                }
                2 => if let (Some(txg), None) = (state.closed, state.syncing) {
                    prop_assert_eq!(txg, state.synced + 1);
                    state.start(txg, now, 0);
                },
                _ => if let Some(txg) = state.syncing {
                    state.complete(txg, now, 7);
                    prop_assert_eq!(state.synced, before.0 + 1);
                },
            }
            let alive = state.open - state.synced;
            prop_assert_eq!(
                alive,
                1 + u64::from(state.closed.is_some()) + u64::from(state.syncing.is_some())
            );
            let records = state.records(|_| 0);
            prop_assert!(records.len() <= 7 + 3);
            prop_assert!(records.windows(2).all(|w| w[0].txg + 1 == w[1].txg));
        }
    }
}

#[test]
fn the_rate_is_the_pools_not_the_threads() {
    assert_eq!(wakeup(1000, 0, 50), 1050, "alone: counted from the start");
    assert_eq!(wakeup(1000, 1400, 50), 1450, "behind another");
    assert_eq!(wakeup(u64::MAX, 0, 50), u64::MAX);
}

#[test]
fn limits_follow_memory() {
    let max = |gib: u64| Limits::for_memory(gib << 30).dirty_data_max;
    assert_eq!(max(64), 4 << 30);
    assert_eq!(max(10) >> 20, 1023);
    assert_eq!(Limits::for_memory(0).dirty_data_max, DIRTY_DATA_MIN);
    let limits = Limits { dirty_data_max: 0, txg_history: u64::MAX, ..Limits::default() };
    let txgs = txgs(limits);
    assert_eq!(txgs.limits().dirty_data_max, 1);
    assert_eq!(txgs.limits().txg_history, limits::TXG_HISTORY_MAX);
}

#[test]
fn worst_cases_are_24_fold() {
    assert_eq!(worst_case_asize(0, 12), 0);
    assert_eq!(worst_case_asize(1, 12), 4096 * 24);
    assert_eq!(worst_case_asize(128 << 10, 12), (128 << 10) * 24);
    assert_eq!(worst_case_asize(u64::MAX, 99), u64::MAX);
}

#[test]
fn a_timeout_counts_from_the_last_start_or_the_first_dirt_after_idleness() {
    let limits = Limits::default();
    let dirt = Dirt { any: true, bytes: 1 };
    let mut state = TxgsState::new(3);
    assert_eq!(state.due(100 * SECOND, Dirt::default(), &limits), Due::Never, "idle");
    state.dirtied(4, 100 * SECOND, false);
    assert_eq!(state.due(101 * SECOND, dirt, &limits), Due::At(105 * SECOND));
    assert_eq!(state.due(105 * SECOND, dirt, &limits), Due::Now);
    state.close(105 * SECOND);
    state.start(4, 105 * SECOND, 1);
    state.dirtied(5, 107 * SECOND, false);
    state.complete(4, 108 * SECOND, 100);
    assert_eq!(state.due(109 * SECOND, dirt, &limits), Due::At(110 * SECOND), "busy");
    let much = Dirt { any: true, bytes: limits.sync_from() };
    assert_eq!(state.due(109 * SECOND, much, &limits), Due::Now);
    let rare = Limits { timeout_s: u64::MAX, ..limits };
    assert_eq!(state.due(109 * SECOND, dirt, &rare), Due::At(u64::MAX));
}

/// A writer of small files, 60 MB/s, had a txg written beside it each second. That took
/// every tenth of a second from the writer; the devices had nothing else to do.
#[test]
fn dirt_that_comes_slowly_waits_for_its_time() {
    let limits = Limits::for_memory(64 << 30);
    let step = limits.sync_step();
    assert_eq!((step, limits.sync_from() > 4 * step), (SYNC_STEP, true));
    let dirt = |steps| Dirt { any: true, bytes: steps * step };
    let mut state = TxgsState::new(3);
    state.dirtied(4, 100 * SECOND, false);
    for n in 1..4 {
        state.dirtied(4, (100 + n) * SECOND, true);
        assert_eq!(state.due((100 + n) * SECOND, dirt(n), &limits), Due::At(105 * SECOND));
    }
    // For another txg.
    state.dirtied(3, 103 * SECOND, true);
    assert_eq!(state.due(103 * SECOND, dirt(3), &limits), Due::At(105 * SECOND));
    // The rate increases.
    state.dirtied(4, 103 * SECOND + FAST_STEP_NS, true);
    assert_eq!(state.due(104 * SECOND, dirt(4), &limits), Due::Now);
    state.close(104 * SECOND);
    state.start(4, 104 * SECOND, 1);
    state.dirtied(5, 104 * SECOND, false);
    state.complete(4, 105 * SECOND, 100);
    assert_eq!(state.due(105 * SECOND, dirt(0), &limits), Due::At(109 * SECOND));
    // Fast from the start; and much data, however slowly.
    let much = Dirt { any: true, bytes: limits.sync_from() };
    assert_eq!(state.due(105 * SECOND, much, &limits), Due::Now);
    state.dirtied(5, 104 * SECOND + FAST_STEP_NS, true);
    assert_eq!(state.due(105 * SECOND, dirt(1), &limits), Due::Now);
}

#[test]
fn an_idle_pool_writes_nothing_and_stops() {
    in_virtual_time(|| {
        let txgs = txgs(at_once());
        let sync = syncer(&txgs);
        nap();
        assert_eq!(txgs.open_txg(), Txg(4));
        txgs.stop();
        assert_eq!(sync.join().unwrap(), []);
        assert_eq!(txgs.hold().unwrap_err().kind(), ErrorKind::Interrupted);
        assert_eq!(txgs.wait_synced(Txg(4)).unwrap_err().kind(), ErrorKind::Interrupted);
        assert!(txgs.wait_synced(Txg(3)).is_ok());
    });
}

#[test]
fn dirt_syncs_by_itself_and_waits_for_its_holders() {
    in_virtual_time(|| {
        let txgs = txgs(at_once());
        let sync = syncer(&txgs);
        let hold = txgs.hold().unwrap();
        let copy = hold.clone();
        assert_eq!(hold.txg(), Txg(4));
        txgs.dirty(Txg(4), 0);
        txgs.wait_open(Txg(5)).unwrap();
        let other = txgs.hold().unwrap();
        assert_eq!(other.txg(), Txg(5), "no holder waits for another");
        drop(hold);
        nap();
        assert_eq!(txgs.synced_txg(), Txg(3), "the copy holds it");
        assert_eq!(txgs.history()[0].state, TxgState::Quiescing);
        drop(copy);
        txgs.wait_synced(Txg(4)).unwrap();
        drop(other);
        txgs.stop();
        assert_eq!(sync.join().unwrap(), [4]);
    });
}

#[test]
fn much_dirt_does_not_wait_for_the_timeout() {
    in_virtual_time(|| {
        let txgs = txgs(Limits { dirty_data_max: 1000, timeout_s: 3600, ..Limits::default() });
        let sync = syncer(&txgs);
        let hold = txgs.hold().unwrap();
        txgs.dirty(hold.txg(), 199);
        nap();
        assert_eq!(txgs.open_txg(), Txg(4));
        txgs.dirty(hold.txg(), 1);
        drop(hold);
        while txgs.synced_txg() < Txg(4) {
            nap();
        }
        assert_eq!(txgs.dirty_total(), 0);
        txgs.kick(Txg(5));
        txgs.stop();
        assert_eq!(sync.join().unwrap(), [4, 5], "kicked txgs are synced");
    });
}

#[test]
fn a_timeout_changes_while_it_runs() {
    in_virtual_time(|| {
        let txgs = txgs(Limits { timeout_s: 3600, ..Limits::default() });
        let sync = syncer(&txgs);
        txgs.dirty(Txg(4), 1);
        nap();
        txgs.set_limits(&at_once());
        while txgs.synced_txg() < Txg(4) {
            nap();
        }
        txgs.stop();
        assert_eq!(sync.join().unwrap(), [4]);
    });
}

#[test]
fn waiting_reaches_two_txgs_ahead_and_not_further() {
    let txgs = txgs(Limits::default());
    assert_eq!(txgs.wait_synced(Txg(7)).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(txgs.wait_open(Txg::MAX).unwrap_err().kind(), ErrorKind::Invalid);
    let sync = syncer(&txgs);
    txgs.wait_synced(Txg(6)).unwrap();
    txgs.wait_open(Txg(9)).unwrap();
    txgs.stop();
    assert_eq!(sync.join().unwrap(), [4, 5, 6, 7, 8]);
}

#[test]
fn kicks_keep_three_txgs_alive_at_most() {
    let txgs = txgs(Limits::default());
    txgs.kick(Txg(4));
    assert_eq!(txgs.next_to_sync(), Some(Txg(4)));
    (0..5).for_each(|_| txgs.kick(Txg::MAX));
    assert_eq!(txgs.open_txg(), Txg(6));
    let states: Vec<_> = txgs.history().iter().map(|r| r.state.letter()).collect();
    assert_eq!(states, ['S', 'W', 'O']);
    txgs.synced(Txg(5));
    assert_eq!(txgs.synced_txg(), Txg(3), "5 does not sync yet");
    txgs.synced(Txg(4));
    assert_eq!(txgs.next_to_sync(), Some(Txg(5)));
}

#[test]
fn writers_stop_at_the_limit() {
    in_virtual_time(|| {
        let txgs = txgs(Limits {
            dirty_data_max: 1000,
            timeout_s: 3600,
            delay_max_ns: 0,
            ..Limits::default()
        });
        let first = txgs.hold().unwrap();
        txgs.dirty(first.txg(), 1000);
        let writers: Vec<_> = (0..3).map(|_| thread(&txgs, Txgs::throttle)).collect();
        while txgs.throttled() < 3 {
            nap();
        }
        assert_eq!(txgs.throttle_stats().dirty_over_max.get(), 3);
        txgs.undirty(first.txg(), 1);
        for writer in writers {
            writer.join().unwrap().unwrap();
        }
        assert_eq!((txgs.throttled(), txgs.dirty_total()), (0, 999));
    });
}

#[test]
fn the_turnstile_is_first_come_first_served() {
    in_virtual_time(|| {
        let throttle_queue = Arc::new(ThrottleQueue::default());
        let room = Arc::new(AtomicBool::new(false));
        let order = Arc::new(Mutex::new(Vec::new()));
        let writer = |i: u64| {
            let (queue, room, order) =
                (Arc::clone(&throttle_queue), Arc::clone(&room), Arc::clone(&order));
            // The thread at the front records itself under the queue's lock.
            let enter = move || {
                let open = room.load(SeqCst);
                if open {
                    order.lock().push(i);
                }
                open
            };
            let writer = rt::spawn("test", move || queue.pass(enter, || false)).unwrap();
            while throttle_queue.waiting() <= i {
                nap();
            }
            writer
        };
        let writers: Vec<_> = (0..4).map(writer).collect();
        room.store(true, SeqCst);
        throttle_queue.wake();
        assert!(writers.into_iter().all(|writer| writer.join().unwrap()));
        assert_eq!(*order.lock(), [0, 1, 2, 3]);
    });
}

#[test]
fn a_synced_txg_makes_room() {
    let txgs = txgs(Limits { dirty_data_max: 10, delay_max_ns: 0, ..Limits::default() });
    let sync = syncer(&txgs);
    for _ in 0..50 {
        txgs.throttle().unwrap();
        let hold = txgs.hold().unwrap();
        txgs.dirty(hold.txg(), 10);
    }
    txgs.stop();
    assert!(sync.join().unwrap().len() >= 49);
}

#[test]
fn near_the_limit_writers_are_slowed() {
    let txgs = txgs(Limits { dirty_data_max: 1000, timeout_s: 3600, ..Limits::default() });
    txgs.dirty(Txg(4), 600);
    txgs.throttle().unwrap();
    assert_eq!(txgs.throttle_stats().dirty_delay.get(), 0);
    txgs.dirty(Txg(4), 300);
    let start = rt::now();
    rt::fan_out(4, |_| (0..5).for_each(|_| txgs.throttle().unwrap()));
    let took = start.elapsed();
    assert!(took >= Duration::from_micros(20 * 1500), "{took:?} for 20 delays of 1.5 ms");
    assert!(txgs.throttle_stats().delay_ns.get() > 0);
}

/// Reserves space in the open txg, which is 4.
fn reserved(limits: Limits, bytes: u64) -> Arc<Txgs> {
    let txgs = txgs(Limits { timeout_s: 3600, ..limits });
    let hold = txgs.hold().unwrap();
    txgs.dirty(hold.txg(), 1);
    assert!(txgs.space().try_reserve(hold.txg(), bytes, u64::MAX));
    txgs
}

/// Story: on a pool of 64 MiB, half full, random overwrites nearly stopped. Writers were
/// delayed because little space was left, and the txg that would give it back waited for
/// its timer.
#[test]
fn writers_slowed_for_space_request_the_txg() {
    for (bytes, requested) in [(60, None), (90, Some(Txg(4)))] {
        let txgs = reserved(Limits::default(), bytes);
        txgs.throttle_space(100);
        let delays = txgs.throttle_stats().dirty_delay.get();
        assert_eq!(delays, u64::from(requested.is_some()));
        // After a stop only what was requested is written.
        txgs.stop();
        assert_eq!(txgs.next_to_sync(), requested, "{bytes} bytes");
    }
}

/// Story: the same. Eight writers took slots of 100 ms each, although the txg took 10 ms.
#[test]
fn writers_slowed_for_space_continue_when_a_txg_is_on_disk() {
    let hour = 3600 * SECOND;
    let limits = Limits { delay_scale_ns: hour, delay_max_ns: hour, ..Limits::default() };
    let txgs = reserved(limits, 99);
    let writers: Vec<_> = (0..3).map(|_| thread(&txgs, |txgs| txgs.throttle_space(100))).collect();
    assert_eq!(txgs.next_to_sync(), Some(Txg(4)));
    txgs.synced(Txg(4));
    // A writer that comes only now finds nothing reserved.
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    // Slots in the future of the last txg delay no writer of the next one.
    assert!(txgs.space().try_reserve(Txg(5), 61, 100));
    txgs.set_limits(&Limits { delay_scale_ns: 1, ..txgs.limits() });
    txgs.throttle_space(100);
}

/// A txg's allowance for indirect blocks is no reason for a delay.
#[test]
fn allowances_do_not_slow_writers() {
    let txgs = reserved(Limits::default(), 20);
    assert!(txgs.space().once(Txg(4), || 50, 100));
    txgs.throttle_space(100);
    assert_eq!(txgs.throttle_stats().dirty_delay.get(), 0);
    txgs.space().charge(Txg(4), 20);
    txgs.throttle_space(100);
    assert_eq!(txgs.throttle_stats().dirty_delay.get(), 1);
}

#[test]
fn a_request_leaves_the_txg_open() {
    let txgs = reserved(Limits::default(), 1);
    txgs.request(Txg(9));
    assert_eq!(txgs.open_txg(), Txg(4));
    assert_eq!(txgs.next_to_sync(), Some(Txg(4)));
    txgs.stop();
    txgs.synced(Txg(4));
    assert_eq!(txgs.next_to_sync(), None, "5 was not open then");
}

fn failure() -> Error {
    Error::io("device gone", std::io::Error::other("unplugged"))
}

#[test]
fn a_suspended_pool_waits_and_loses_nothing() {
    in_virtual_time(|| {
        let txgs = txgs(at_once());
        let hold = txgs.hold().unwrap();
        txgs.dirty(hold.txg(), 5);
        drop(hold);
        assert_eq!(txgs.next_to_sync(), Some(Txg(4)));
        txgs.suspend(failure());
        assert!(txgs.suspended().unwrap().to_string().contains("unplugged"));
        let waiter = thread(&txgs, |txgs| txgs.wait_synced(Txg(4)));
        let holder = thread(&txgs, |txgs| txgs.hold().map(|hold| hold.txg()));
        let sync = syncer(&txgs);
        nap();
        assert_eq!(txgs.synced_txg(), Txg(3));
        txgs.resume();
        assert!(txgs.wait_resumed());
        assert!(waiter.join().unwrap().is_ok());
        assert!(holder.join().unwrap().unwrap() >= Txg(4));
        txgs.stop();
        assert_eq!(sync.join().unwrap(), [4]);
    });
}

#[test]
fn with_failmode_continue_waiters_get_the_error() {
    in_virtual_time(|| {
        let txgs = txgs(Limits { dirty_data_max: 10, ..Limits::default() });
        txgs.dirty(Txg(4), 10);
        txgs.kick(Txg(4));
        assert_eq!(txgs.next_to_sync(), Some(Txg(4)));
        txgs.suspend(failure());
        let waiter = thread(&txgs, |txgs| txgs.wait_synced(Txg(4)));
        let writer = thread(&txgs, Txgs::throttle);
        nap();
        txgs.set_failmode(FailMode::Continue);
        assert_eq!(waiter.join().unwrap().unwrap_err().kind(), ErrorKind::Io);
        assert_eq!(writer.join().unwrap().unwrap_err().kind(), ErrorKind::Io);
        assert_eq!(txgs.hold().unwrap_err().kind(), ErrorKind::Io);
        assert_eq!(txgs.wait_open(Txg(7)).unwrap_err().kind(), ErrorKind::Io);
        txgs.resume();
        assert_eq!(txgs.next_to_sync(), Some(Txg(4)), "the same again");
        txgs.synced(Txg(4));
        assert!(txgs.hold().is_ok());
        assert!(txgs.wait_synced(Txg(4)).is_ok());
    });
}

#[test]
fn an_abandoned_pool_answers_every_waiter() {
    in_virtual_time(|| {
        let txgs = txgs(Limits { dirty_data_max: 10, ..Limits::default() });
        txgs.kick(Txg(4));
        assert_eq!(txgs.next_to_sync(), Some(Txg(4)));
        txgs.synced(Txg(4));
        txgs.dirty(Txg(5), 10);
        let waiter = thread(&txgs, |txgs| txgs.wait_synced(Txg(7)));
        let writer = thread(&txgs, Txgs::throttle);
        nap();
        txgs.abandon(failure());
        assert_eq!(waiter.join().unwrap().unwrap_err().kind(), ErrorKind::Io);
        assert_eq!(writer.join().unwrap().unwrap_err().kind(), ErrorKind::Io);
        assert_eq!(txgs.next_to_sync(), None);
        assert!(!txgs.wait_resumed());
    });
}

#[test]
fn a_stop_ends_a_suspended_pool() {
    in_virtual_time(|| {
        let txgs = txgs(at_once());
        txgs.dirty(Txg(4), 1);
        assert_eq!(txgs.next_to_sync(), Some(Txg(4)));
        txgs.suspend(failure());
        let waiter = thread(&txgs, |txgs| txgs.wait_synced(Txg(4)));
        nap();
        txgs.stop();
        assert!(!txgs.wait_resumed());
        assert_eq!(txgs.next_to_sync(), None);
        assert_eq!(waiter.join().unwrap().unwrap_err().kind(), ErrorKind::Io);
    });
}

/// A stream had its txgs synced early, because of its space reservation, and each of
/// them counted as awaited. So they had the whole device, and an fsync beside them took
/// thirty times as long as alone.
#[test]
fn a_txg_that_is_written_soon_does_not_count_as_awaited() {
    in_virtual_time(|| {
        let txgs = txgs(at_once());
        txgs.dirty(Txg(4), 1);
        txgs.kick(Txg(4));
        let writer = thread(&txgs, |txgs| txgs.wait_room(Txg(4)));
        assert_eq!(txgs.next_to_sync(), Some(Txg(4)));
        nap();
        assert!(!txgs.pressure().1, "a writer is delayed, and no thread waits");
        let waiter = thread(&txgs, |txgs| txgs.wait_synced(Txg(4)));
        while !txgs.pressure().1 {
            nap();
        }
        txgs.synced(Txg(4));
        assert!(!txgs.pressure().1);
        assert!(waiter.join().unwrap().is_ok() && writer.join().unwrap().is_ok());
        assert!(txgs.wait_synced(Txg(99)).is_err(), "too far ahead");
        assert!(!txgs.pressure().1);
    });
}

#[test]
fn history_keeps_the_last_txgs_and_their_times() {
    in_virtual_time(|| {
        let txgs = txgs(Limits { txg_history: 2, ..Limits::default() });
        for txg in 4..8 {
            let hold = txgs.hold().unwrap();
            txgs.dirty(hold.txg(), 100);
            txgs.kick(hold.txg());
            rt::sleep(Duration::from_millis(2));
            drop(hold);
            assert_eq!(txgs.next_to_sync(), Some(Txg(txg)));
            txgs.undirty(Txg(txg), 60);
            txgs.set_io(Txg(txg), IoTotals { nwritten: txg, ..IoTotals::default() });
            rt::sleep(Duration::from_millis(2));
            txgs.synced(Txg(txg));
        }
        let history = txgs.history();
        assert_eq!(history.iter().map(|r| r.txg).collect::<Vec<_>>(), [6, 7, 8]);
        let last = history[1];
        assert_eq!((last.state, last.ndirty, last.io.nwritten), (TxgState::Committed, 100, 7));
        assert!(last.qtime >= 2_000_000 && last.stime >= 2_000_000, "{last:?}");
        assert!(last.birth > history[0].birth && last.otime < SECOND && last.wtime < SECOND);
        assert_eq!(history[2].state, TxgState::Open);
    });
}

#[test]
fn a_pool_from_the_far_future_is_refused() {
    assert_eq!(Txgs::new(Txg::MAX).unwrap_err().kind(), ErrorKind::Corrupt);
    let txgs = Txgs::new(Txg(TXG_LAST_MAX)).unwrap();
    assert_eq!(txgs.hold().unwrap().txg(), Txg(TXG_LAST_MAX + 1));
}

/// All operations at once, with real threads: no txg syncs while held, and none is left
/// out.
#[test]
fn many_writers_and_a_sync_thread() {
    let limits = Limits { dirty_data_max: 1 << 20, delay_scale_ns: 1000, ..at_once() };
    let txgs = txgs(limits);
    let sync = syncer(&txgs);
    rt::fan_out(6, |i| {
        for n in 0..400 {
            txgs.throttle().unwrap();
            let hold = txgs.hold().unwrap();
            let txg = hold.txg();
            txgs.dirty(txg, 4096 * (1 + i as u64));
            assert!(txgs.synced_txg() < txg);
            drop(hold);
            if n % 100 == i {
                txgs.wait_synced(txg).unwrap();
                assert!(txgs.synced_txg() >= txg);
            }
        }
    });
    txgs.wait_synced(txgs.open_txg()).unwrap();
    assert_eq!(txgs.dirty_total(), 0);
    txgs.stop();
    let all = sync.join().unwrap();
    assert!(all.iter().zip(4..).all(|(&synced, txg)| synced == txg), "{all:?}");
}
