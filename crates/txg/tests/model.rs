//! Txgs under the shuttle scheduler, which tries many interleavings of their threads:
//! `RUSTFLAGS="--cfg shuttle" cargo test -p txg --test model`. Without the flag this
//! file is empty. A wait that never ends is a deadlock, which the scheduler reports.
#![cfg(shuttle)]
#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;

use base::rt::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use base::rt::{self, JoinHandle, OneShot};
use base::{Error, ErrorKind, Txg};
use shuttle::Runner;
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use txg::fault::{Fault, PlantedFaults};
use txg::{FailMode, Limits, Txgs};

/// Interleavings tried for each model.
const RUNS: usize = 4000;
/// Number of preemption points of the second scheduler.
const DEPTH: usize = 3;
const FIRST: u64 = 4;

fn check(model: impl Fn() + Send + Sync + 'static) {
    let model = Arc::new(model);
    let same = Arc::clone(&model);
    shuttle::check_random(move || same(), RUNS);
    shuttle::check_pct(move || model(), RUNS, DEPTH);
}

/// Finds a planted bug, without printing the failing schedule.
fn find(model: impl Fn() + Send + Sync + 'static) {
    let mut config = shuttle::Config::new();
    config.failure_persistence = shuttle::FailurePersistence::None;
    let model = Arc::new(model);
    let same = Arc::clone(&model);
    Runner::new(RandomScheduler::new(RUNS), config.clone()).run(move || same());
    Runner::new(PctScheduler::new(DEPTH, RUNS), config).run(move || model());
}

/// Txgs that sync as soon as there is dirty data, so that no clock matters.
fn syncing_txgs(fault: Option<Fault>) -> Arc<Txgs> {
    let txgs = Txgs::with_faults(Txg(FIRST - 1), PlantedFaults(fault)).unwrap();
    txgs.set_limits(&Limits { timeout_s: 0, delay_max_ns: 0, ..Limits::default() });
    Arc::new(txgs)
}

fn thread(txgs: &Arc<Txgs>, f: impl FnOnce(&Txgs) + Send + 'static) -> JoinHandle<()> {
    let txgs = Arc::clone(txgs);
    rt::spawn("model", move || f(&txgs)).unwrap()
}

fn join(threads: impl IntoIterator<Item = JoinHandle<()>>) {
    for thread in threads {
        assert!(thread.join().is_some());
    }
}

/// Number of threads that are changing each txg now.
type HolderCounts = Arc<[AtomicU32; 16]>;

fn alive(txgs: &Txgs) {
    // The synced one first, because it only rises.
    let synced = txgs.synced_txg().0;
    let open = txgs.open_txg().0;
    let synced_later = txgs.synced_txg().0;
    assert!(open > synced);
    assert!(open - synced_later.min(open) <= 3, "{synced_later} synced, {open} open");
}

/// The sync thread: while it writes a txg, no thread may be changing it.
fn syncer(txgs: &Arc<Txgs>, inside: &HolderCounts) -> JoinHandle<()> {
    let inside = Arc::clone(inside);
    thread(txgs, move |txgs| {
        let mut next = FIRST;
        while let Some(txg) = txgs.next_to_sync() {
            assert_eq!(txg.0, next, "in order");
            for _ in 0..2 {
                assert_eq!(inside[next as usize].load(SeqCst), 0, "a held txg syncs");
                rt::sleep(std::time::Duration::ZERO);
            }
            alive(txgs);
            txgs.synced(txg);
            next += 1;
        }
    })
}

fn change(txgs: &Txgs, inside: &HolderCounts) -> u64 {
    let hold = txgs.hold().unwrap();
    let txg = hold.txg().0;
    inside[txg as usize].fetch_add(1, SeqCst);
    txgs.dirty(Txg(txg), 10);
    assert!(txgs.synced_txg().0 < txg, "a held txg syncs");
    inside[txg as usize].fetch_sub(1, SeqCst);
    drop(hold);
    txg
}

fn holders(fault: Option<Fault>) {
    let txgs = syncing_txgs(fault);
    let inside = HolderCounts::default();
    let sync = syncer(&txgs, &inside);
    let writers: Vec<_> = (0..2)
        .map(|i| {
            let inside = Arc::clone(&inside);
            thread(&txgs, move |txgs| {
                for _ in 0..2 {
                    let txg = change(txgs, &inside);
                    alive(txgs);
                    if i == 0 {
                        txgs.wait_synced(Txg(txg)).unwrap();
                        assert!(txgs.synced_txg().0 >= txg);
                    }
                }
            })
        })
        .collect();
    join(writers);
    txgs.stop();
    join([sync]);
}

#[test]
fn no_txg_syncs_while_it_is_held_and_each_wait_is_answered() {
    check(|| holders(None));
}

#[test]
#[should_panic(expected = "a held txg syncs")]
fn a_txg_that_does_not_wait_for_its_holders_is_found() {
    find(|| holders(Some(Fault::NoDrain)));
}

/// One holder, and one thread that closes and syncs again and again.
fn closing(fault: Option<Fault>) {
    let txgs = syncing_txgs(fault);
    let inside = HolderCounts::default();
    let i = Arc::clone(&inside);
    let holder = thread(&txgs, move |txgs| {
        for _ in 0..4 {
            let hold = txgs.hold().unwrap();
            let at = &i[hold.txg().0 as usize];
            at.fetch_add(1, SeqCst);
            assert!(txgs.synced_txg() < hold.txg(), "a held txg syncs");
            at.fetch_sub(1, SeqCst);
        }
    });
    for _ in 0..4 {
        txgs.kick(txgs.open_txg());
        let txg = txgs.next_to_sync().unwrap();
        for _ in 0..8 {
            assert_eq!(inside[txg.0 as usize].load(SeqCst), 0, "a held txg syncs");
        }
        txgs.synced(txg);
    }
    join([holder]);
}

#[test]
fn a_closed_txg_gets_no_holder() {
    check(|| closing(None));
}

#[test]
#[should_panic(expected = "a held txg syncs")]
fn a_holder_that_does_not_look_again_is_found() {
    find(|| closing(Some(Fault::NoRecheck)));
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_holder_that_leaves_in_silence_is_found() {
    find(|| holders(Some(Fault::SilentRelease)));
}

#[test]
fn kicks_and_waits_for_open_txgs_keep_three_alive() {
    check(|| {
        let txgs = syncing_txgs(None);
        let inside = HolderCounts::default();
        let sync = syncer(&txgs, &inside);
        let i = Arc::clone(&inside);
        let kicker = thread(&txgs, move |txgs| {
            txgs.kick(txgs.open_txg());
            alive(txgs);
            change(txgs, &i);
            txgs.kick(txgs.open_txg());
            alive(txgs);
        });
        let waiter = thread(&txgs, |txgs| {
            let open = txgs.open_txg();
            txgs.wait_open(Txg(open.0 + 2)).unwrap();
            assert!(txgs.open_txg().0 >= open.0 + 2);
            alive(txgs);
        });
        let i = Arc::clone(&inside);
        let writer = thread(&txgs, move |txgs| {
            let hold = txgs.hold().unwrap();
            let copy = hold.clone();
            i[hold.txg().0 as usize].fetch_add(1, SeqCst);
            drop(hold);
            alive(txgs);
            i[copy.txg().0 as usize].fetch_sub(1, SeqCst);
        });
        join([kicker, waiter, writer]);
        txgs.stop();
        join([sync]);
    });
}

/// Requests made before the stop are completed, later ones are refused; every caller
/// gets an answer.
#[test]
fn a_stop_answers_every_waiter() {
    check(|| {
        let txgs = syncing_txgs(None);
        let sync = syncer(&txgs, &HolderCounts::default());
        let waiters: Vec<_> = (0..3u64)
            .map(|i| {
                thread(&txgs, move |txgs| {
                    let txg = Txg(FIRST + i / 2);
                    let answer = if i == 1 { txgs.wait_open(txg) } else { txgs.wait_synced(txg) };
                    if i != 1 && answer.is_ok() {
                        assert!(txgs.synced_txg() >= txg);
                    }
                    assert!(answer.is_ok() || txgs.hold().is_err());
                })
            })
            .collect();
        let stopper = thread(&txgs, |txgs| {
            txgs.kick(Txg(FIRST));
            txgs.stop();
        });
        join(waiters);
        join([stopper, sync]);
        assert!(txgs.synced_txg().0 >= FIRST, "kicked before the stop");
    });
}

/// A failed sync is retried; waiters, holders and writers meanwhile lose nothing.
#[test]
fn a_suspension_loses_nothing() {
    check(|| {
        let txgs = syncing_txgs(None);
        let failed = Arc::new(OneShot::new());
        let f = Arc::clone(&failed);
        let sync = thread(&txgs, move |txgs| {
            let mut fail = true;
            let mut next = FIRST;
            while let Some(txg) = txgs.next_to_sync() {
                assert_eq!(txg.0, next);
                if std::mem::take(&mut fail) {
                    txgs.suspend(Error::new(ErrorKind::Io, "device gone"));
                    f.set(());
                    continue;
                }
                txgs.synced(txg);
                next += 1;
            }
        });
        let inside = HolderCounts::default();
        let writers: Vec<_> = (0..2)
            .map(|_| {
                let inside = Arc::clone(&inside);
                thread(&txgs, move |txgs| {
                    let txg = change(txgs, &inside);
                    txgs.wait_synced(Txg(txg)).unwrap();
                    assert!(txgs.synced_txg().0 >= txg);
                })
            })
            .collect();
        let operator = thread(&txgs, move |txgs| {
            failed.wait();
            txgs.resume();
        });
        join(writers);
        join([operator]);
        txgs.stop();
        join([sync]);
        assert_eq!(txgs.dirty_total(), 0);
    });
}

/// With failmode `continue`, and when the pool is abandoned, no thread stays waiting.
#[test]
fn a_lost_pool_answers_every_waiter() {
    check(|| {
        let txgs = syncing_txgs(None);
        txgs.set_failmode(FailMode::Continue);
        let sync = thread(&txgs, |txgs| {
            while let Some(txg) = txgs.next_to_sync() {
                txgs.suspend(Error::new(ErrorKind::Io, "device gone"));
                if txgs.wait_resumed() {
                    txgs.synced(txg);
                }
            }
        });
        let writers: Vec<_> = (0..2)
            .map(|_| {
                thread(&txgs, |txgs| {
                    let Ok(hold) = txgs.hold() else { return };
                    let txg = hold.txg();
                    txgs.dirty(txg, 1);
                    drop(hold);
                    let answer = txgs.wait_synced(txg);
                    assert!(answer.is_err() && txgs.synced_txg() < txg);
                })
            })
            .collect();
        let end = thread(&txgs, |txgs| txgs.abandon(Error::new(ErrorKind::Io, "gone for good")));
        join(writers);
        join([end, sync]);
        assert!(txgs.hold().is_err());
    });
}

fn at_the_limit(fault: Option<Fault>) {
    let txgs = syncing_txgs(fault);
    txgs.set_limits(&Limits {
        dirty_data_max: 10,
        timeout_s: 0,
        delay_max_ns: 0,
        ..Limits::default()
    });
    let sync = thread(&txgs, |txgs| {
        while let Some(txg) = txgs.next_to_sync() {
            txgs.undirty(txg, 7);
            txgs.synced(txg);
        }
    });
    let writers: Vec<_> = (0..3)
        .map(|_| {
            thread(&txgs, |txgs| {
                txgs.throttle().unwrap();
                let hold = txgs.hold().unwrap();
                txgs.dirty(hold.txg(), 10);
            })
        })
        .collect();
    join(writers);
    txgs.wait_synced(txgs.open_txg()).unwrap();
    assert_eq!(txgs.dirty_total(), 0);
    txgs.stop();
    join([sync]);
}

#[test]
fn no_writer_starves_at_the_limit() {
    check(|| at_the_limit(None));
}

#[test]
#[should_panic(expected = "deadlock")]
fn unnotified_room_is_found() {
    find(|| at_the_limit(Some(Fault::SilentRoom)));
}

/// Writers at the limit return when the pool ends.
#[test]
fn a_stop_ends_the_queue_at_the_limit() {
    check(|| {
        let txgs = syncing_txgs(None);
        txgs.set_limits(&Limits { dirty_data_max: 1, timeout_s: 0, ..Limits::default() });
        txgs.dirty(Txg(FIRST), 1);
        let writers: Vec<_> =
            (0..2).map(|_| thread(&txgs, |txgs| assert!(txgs.throttle().is_err()))).collect();
        let stopper = thread(&txgs, Txgs::stop);
        join(writers);
        join([stopper]);
        assert_eq!(txgs.next_to_sync(), None);
    });
}
