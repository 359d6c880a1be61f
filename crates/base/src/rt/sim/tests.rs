use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use super::*;
use crate::rt::{self, Condvar, Mutex, OneShot, RwLock};
use crate::workers::Workers;

const MS: Duration = Duration::from_millis(1);

/// A queue with a timed consumer, workers, shared state and a fan-out: it uses every
/// operation of the shim. Returns what the threads observed, in order.
fn program() -> Vec<u64> {
    let log = Arc::new(Mutex::new(Vec::new()));
    let queue = Arc::new((Mutex::new(Vec::new()), Condvar::new()));
    let table = Arc::new(RwLock::new(0u64));
    let consumer = {
        let (queue, log) = (Arc::clone(&queue), Arc::clone(&log));
        rt::spawn("consumer", move || {
            let mut got = 0;
            while got < 60 {
                let mut items = queue.0.lock();
                if items.is_empty() && queue.1.wait_timeout(&mut items, 3 * MS) {
                    log.lock().push(1_000_000);
                    continue;
                }
                got += items.len();
                log.lock().extend(items.drain(..));
            }
        })
        .unwrap()
    };
    let producers: Vec<_> = (0..3u64)
        .map(|p| {
            let (queue, table) = (Arc::clone(&queue), Arc::clone(&table));
            let produce = move || {
                for i in 0..20 {
                    *table.write() += 1;
                    let seen = *table.read();
                    queue.0.lock().push(p * 1000 + i + seen * 10_000);
                    queue.1.notify_one();
                    if i % 7 == 0 {
                        rt::sleep(MS * (p as u32 + 1));
                    }
                }
            };
            rt::spawn("producer", produce).unwrap()
        })
        .collect();
    let workers = Workers::new("worker", 3, 100);
    let done = Arc::new((Mutex::new(0), Condvar::new()));
    for i in 0..20 {
        let (done, log) = (Arc::clone(&done), Arc::clone(&log));
        assert!(workers.try_submit(move || {
            log.lock().push(500 + i);
            *done.0.lock() += 1;
            done.1.notify_all();
        }));
    }
    rt::fan_out(4, |i| {
        for _ in 0..10 {
            log.lock().push(700 + i as u64);
        }
    });
    let shot = Arc::new(OneShot::new());
    let setter = Arc::clone(&shot);
    let random = rt::random_u64().unwrap();
    rt::spawn("setter", move || setter.set(random)).unwrap();
    log.lock().push(shot.wait());
    for p in producers {
        p.join().unwrap();
    }
    consumer.join().unwrap();
    let mut count = done.0.lock();
    while *count < 20 {
        done.1.wait(&mut count);
    }
    drop(count);
    let mut seen = log.lock().clone();
    seen.push(rt::now().since(START.with(|s| *s)).as_nanos() as u64);
    seen
}

thread_local! {
    static START: rt::Instant = rt::now();
}

fn traced(seed: u64) -> Options {
    Options { trace: 100_000, ..Options::varied(seed) }
}

#[test]
fn the_same_seed_brings_the_same_run_back() {
    let mut schedules = HashSet::new();
    let mut longest = 0;
    for seed in 0..40 {
        let one = run_with(traced(seed), program);
        let two = run_with(traced(seed), program);
        assert!(matches!(one.outcome, Outcome::Done(_)), "{:?}", one.outcome);
        assert_eq!(one.outcome, two.outcome, "seed {seed}");
        assert_eq!(one.trace, two.trace, "seed {seed}");
        assert_eq!(one.trace.len() as u64, one.steps);
        assert_eq!((one.hash, one.steps, one.time), (two.hash, two.steps, two.time));
        assert_eq!(one.stuck, Vec::<String>::new());
        longest = longest.max(one.trace.len());
        schedules.insert(one.hash);
    }
    assert_eq!(schedules.len(), 40);
    assert!(longest > 500, "{longest}");
}

#[test]
fn a_check_that_an_act_relies_on_too_late_is_found() {
    let racy = || {
        let stock = Arc::new(Mutex::new(1));
        let sold = Arc::new(AtomicU32::new(0));
        let buy = |_| {
            let (stock, sold) = (Arc::clone(&stock), Arc::clone(&sold));
            let buy = move || {
                if *stock.lock() > 0 {
                    *stock.lock() -= 1;
                    sold.fetch_add(1, SeqCst);
                }
            };
            rt::spawn("buyer", buy).unwrap()
        };
        let buyers: Vec<_> = (0..2).map(buy).collect();
        buyers.into_iter().for_each(|b| b.join().unwrap());
        sold.load(SeqCst)
    };
    let twice = (0..100).filter(|&s| run(s, racy).outcome == Outcome::Done(2)).count();
    let once = (0..100).filter(|&s| run(s, racy).outcome == Outcome::Done(1)).count();
    assert!(twice > 0 && once > 0 && once + twice == 100, "{once} {twice}");
}

#[test]
fn locks_taken_in_two_orders_are_found_and_named() {
    let crossed = || {
        // Of one class, whose order `rt::lockdep` does not check.
        let new = || Arc::new(Mutex::new(()));
        let (a, b) = (new(), new());
        let (a2, b2) = (Arc::clone(&a), Arc::clone(&b));
        let other = rt::spawn("other", move || {
            let _b = b2.lock();
            let _a = a2.lock();
        });
        let _a = a.lock();
        drop(b.lock());
        drop(_a);
        other.unwrap().join().unwrap();
    };
    let mut found = 0;
    for seed in 0..100 {
        let run = run(seed, crossed);
        assert!(run.stuck.is_empty());
        match run.outcome {
            Outcome::Deadlock(report) => {
                found += 1;
                assert!(
                    report.contains("other (1) waits at ") && report.contains("tests.rs:"),
                    "{report}"
                );
                assert!(report.contains("for a lock held by main (0)"), "{report}");
                assert!(report.contains("for a lock held by other (1)"), "{report}");
            }
            other => assert_eq!(other, Outcome::Done(())),
        }
    }
    assert!(found > 0 && found < 100, "{found}");
}

#[test]
fn a_forgotten_notification_is_a_deadlock() {
    let run = run(1, || {
        let pair = (Mutex::new(false), Condvar::new());
        let mut ready = pair.0.lock();
        while !*ready {
            pair.1.wait(&mut ready);
        }
    });
    let Outcome::Deadlock(report) = run.outcome else { panic!("{:?}", run.outcome) };
    assert!(
        report.starts_with("main (0) waits at") && report.ends_with("for a condition"),
        "{report}"
    );
}

#[test]
fn a_wait_that_does_not_ask_again_is_found() {
    let once = || {
        let pair = Arc::new((Mutex::new(false), Condvar::new()));
        let other = Arc::clone(&pair);
        let setter = rt::spawn("setter", move || {
            rt::sleep(MS);
            *other.0.lock() = true;
            other.1.notify_all();
        });
        let mut ready = pair.0.lock();
        if !*ready {
            pair.1.wait(&mut ready);
        }
        let seen = *ready;
        drop(ready);
        setter.unwrap().join().unwrap();
        seen
    };
    let bad = |seed| run_with(Options { spurious_every: 4, ..Options::new(seed) }, once).outcome;
    assert!((0..50).any(|seed| bad(seed) == Outcome::Done(false)));
    assert!((0..50).all(|seed| run(seed, once).outcome == Outcome::Done(true)));
}

#[test]
fn time_is_virtual_and_timers_fire_in_order() {
    let real = std::time::Instant::now();
    let run = run(3, || {
        let start = rt::now();
        let wall = rt::wall_clock();
        let order = Arc::new(Mutex::new(Vec::new()));
        let sleepers: Vec<_> = [3u32, 1, 2]
            .into_iter()
            .map(|hours| {
                let order = Arc::clone(&order);
                let nap = move || {
                    rt::sleep(Duration::from_secs(3600) * hours);
                    order.lock().push(hours);
                };
                rt::spawn("sleeper", nap).unwrap()
            })
            .collect();
        sleepers.into_iter().for_each(|s| s.join().unwrap());
        let order = order.lock().clone();
        (order, start.elapsed().as_secs(), (rt::wall_clock() - wall).as_secs())
    });
    assert_eq!(run.outcome, Outcome::Done((vec![1, 2, 3], 3 * 3600, 3 * 3600)));
    assert!(real.elapsed() < Duration::from_secs(60));
}

#[test]
fn a_panic_ends_the_run_with_its_message() {
    let run = run(5, || {
        let gate = Arc::new(OneShot::<()>::new());
        let held = Arc::clone(&gate);
        let _waits = rt::spawn("waits", move || held.wait());
        rt::spawn("breaks", || panic!("planted {}", 7)).unwrap().join();
        gate.set(());
    });
    assert_eq!(
        run.outcome,
        Outcome::Panicked { thread: "breaks".into(), message: "planted 7".into() }
    );
}

/// Counts live values.
struct Alive(Arc<AtomicUsize>, Arc<Mutex<Vec<u32>>>);

impl Alive {
    fn new(count: &Arc<AtomicUsize>, shared: &Arc<Mutex<Vec<u32>>>) -> Alive {
        count.fetch_add(1, SeqCst);
        Alive(Arc::clone(count), Arc::clone(shared))
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        // A lock in a `Drop`: it must neither unwind nor wait for ever.
        self.1.lock().push(1);
        self.0.fetch_sub(1, SeqCst);
    }
}

/// Threads in every kind of wait; one of them cuts the power at step `at`.
fn doomed(count: &Arc<AtomicUsize>, at: u32) {
    let shared = Arc::new(Mutex::new(Vec::new()));
    let pair = Arc::new((Mutex::new(()), Condvar::new()));
    let table = Arc::new(RwLock::new(0));
    let alive = || Alive::new(count, &shared);
    let _main = alive();
    let (guard, waiter) = (alive(), Arc::clone(&pair));
    let _t = rt::spawn("waits", move || {
        let _guard = guard;
        let mut lock = waiter.0.lock();
        loop {
            waiter.1.wait(&mut lock);
        }
    });
    let (guard, spinner) = (alive(), Arc::clone(&table));
    let _t = rt::spawn("writes", move || {
        let _guard = guard;
        loop {
            *spinner.write() += 1;
        }
    });
    let guard = alive();
    let _t = rt::spawn("sleeps", move || {
        let _guard = guard;
        loop {
            rt::sleep(MS);
        }
    });
    let guard = alive();
    let (nested, table2, pair2) = (Arc::clone(&shared), Arc::clone(&table), Arc::clone(&pair));
    let child = rt::spawn("fans out", move || {
        let _guard = guard;
        rt::fan_out(3, |_| {
            let _held = pair2.0.lock();
            loop {
                nested.lock().push(*table2.read());
            }
        });
    });
    let guard = alive();
    let joins = rt::spawn("joins", move || {
        let _guard = guard;
        child.unwrap().join();
    });
    for i in 0.. {
        pair.1.notify_one();
        if i == at {
            halt();
        }
    }
    joins.unwrap().join();
}

#[test]
fn a_power_cut_unwinds_every_thread() {
    let count = Arc::new(AtomicUsize::new(0));
    for seed in 0..300 {
        let counter = Arc::clone(&count);
        let options = Options::varied(seed);
        let run = run_with(options, move || doomed(&counter, seed as u32 % 60));
        assert_eq!(run.outcome, Outcome::Halted, "seed {seed}");
        assert_eq!(run.stuck, Vec::<String>::new(), "seed {seed}");
        assert_eq!(count.load(SeqCst), 0, "seed {seed}");
    }
}

#[test]
fn a_drop_that_joins_a_dying_thread_ends() {
    struct Joins(Option<rt::JoinHandle<()>>);
    impl Drop for Joins {
        fn drop(&mut self) {
            self.0.take().and_then(rt::JoinHandle::join);
        }
    }
    for seed in 0..50 {
        let run = run(seed, || {
            let sleeper = rt::spawn("sleeper", || rt::sleep(Duration::from_secs(1_000_000)));
            let _joins = Joins(sleeper.ok());
            rt::sleep(MS);
            assert!(!ended());
            halt();
        });
        assert_eq!((run.outcome, run.stuck.len()), (Outcome::Halted, 0));
    }
}

#[test]
fn a_drop_that_waits_for_ever_is_left_behind_and_named() {
    struct Waits(Arc<OneShot<()>>);
    impl Drop for Waits {
        fn drop(&mut self) {
            self.0.wait();
        }
    }
    let run = run(0, || {
        let _waits = Waits(Arc::new(OneShot::new()));
        let _other = rt::spawn("other", || rt::sleep(MS));
        halt();
    });
    assert_eq!(run.outcome, Outcome::Halted);
    assert_eq!(run.stuck.len(), 1);
    assert!(run.stuck[0].starts_with("main (0) waits at "), "{:?}", run.stuck);
}

#[test]
fn what_is_left_when_the_body_returns_is_unwound() {
    let count = Arc::new(AtomicUsize::new(0));
    let shared = Arc::new(Mutex::new(Vec::new()));
    let guard = Alive::new(&count, &shared);
    let finished = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&finished);
    let run = run(9, move || {
        rt::spawn("daemon", move || {
            let _guard = guard;
            loop {
                rt::sleep(MS);
            }
        })
        .unwrap();
        let workers = Workers::new("worker", 2, 10);
        for _ in 0..5 {
            let seen = Arc::clone(&seen);
            workers.try_submit(move || {
                seen.fetch_add(1, SeqCst);
            });
        }
        while seen.load(SeqCst) < 5 {
            rt::sleep(MS);
        }
        7
    });
    assert_eq!(run.outcome, Outcome::Done(7));
    assert_eq!(run.left, ["daemon"]);
    assert_eq!((count.load(SeqCst), finished.load(SeqCst)), (0, 5));
}

#[test]
fn an_endless_run_meets_the_limit() {
    let options = Options { max_steps: 1000, ..Options::new(1) };
    let run = run_with(options, || {
        let lock = Mutex::new(0);
        loop {
            *lock.lock() += 1;
        }
    });
    let Outcome::<()>::Limit(why) = run.outcome else { panic!("{:?}", run.outcome) };
    assert!(why.starts_with("no end after 1001 steps"), "{why}");
}

#[test]
fn runs_side_by_side_and_threads_outside_do_not_meet() {
    static SHARED: Mutex<u64> = Mutex::new(0);
    let alone: Vec<_> = (0..6).map(|s| run_with(traced(s), program).hash).collect();
    let alone = &alone;
    std::thread::scope(|scope| {
        for seed in 0..6u64 {
            scope.spawn(move || {
                for _ in 0..10 {
                    let hash = run_with(traced(seed), || {
                        // A lock that threads of other runs, and threads outside all
                        // runs, also take.
                        *SHARED.lock() += 1;
                        program()
                    });
                    assert!(matches!(hash.outcome, Outcome::Done(_)));
                    let hash = run_with(traced(seed), program).hash;
                    assert_eq!(hash, alone[seed as usize]);
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..200 {
                let mut held = SHARED.lock();
                // Held so long that the runs meet a lock that is taken outside of them.
                std::thread::sleep(Duration::from_micros(200));
                *held += 1;
                assert!(!inside());
            }
        });
    });
    assert_eq!(*SHARED.lock(), 260);
}

#[test]
fn a_run_within_a_run_is_a_world_of_its_own() {
    let outer = || {
        let inner = run(3, program);
        (inner.hash, inner.outcome.done())
    };
    let direct = run(3, program);
    let nested = run(8, outer).outcome.done().unwrap();
    assert_eq!(nested, (direct.hash, direct.outcome.done()));
}

/// Ten threads and about 20,000 scheduling points; the test prints the measured time.
#[test]
fn a_run_of_twenty_thousand_points_is_quick() {
    let busy = || {
        let shared = Arc::new((Mutex::new(0u64), Condvar::new(), RwLock::new(0u64)));
        let work = |_| {
            let shared = Arc::clone(&shared);
            let work = move || {
                for i in 0..300 {
                    *shared.0.lock() += 1;
                    drop(shared.2.read());
                    if i % 10 == 0 {
                        *shared.2.write() += 1;
                        shared.1.notify_all();
                    }
                    let own = Mutex::new(0);
                    for _ in 0..4 {
                        *own.lock() += 1;
                    }
                }
            };
            rt::spawn("busy", work).unwrap()
        };
        let threads: Vec<_> = (0..10).map(work).collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
    };
    for every in [8, 32, 128] {
        let began = std::time::Instant::now();
        let runs = 10;
        let (mut steps, mut switches) = (0, 0);
        for seed in 0..runs {
            let run = run_with(Options { switch_every: every, ..Options::new(seed) }, busy);
            assert_eq!(run.outcome, Outcome::Done(()));
            (steps, switches) = (steps + run.steps, switches + run.switches);
        }
        let each = began.elapsed() / runs as u32;
        println!(
            "SCHEDULER switch 1/{every}: {} points, {} switches, {each:?} a run",
            steps / runs,
            switches / runs
        );
        assert!(each < Duration::from_secs(5));
    }
}
