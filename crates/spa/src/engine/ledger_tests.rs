use std::collections::VecDeque;

use testkit::Rng;

use super::*;

const HEAD: usize = 0;

/// A level of limits, with the naive account of it: what is used on disk, and what each
/// transaction holds.
struct NaiveLevel {
    limit: u64,
    used: u64,
    reservation: u64,
    held: Vec<(Txg, u64)>,
}

fn level(limit: u64, used: u64, reservation: u64) -> Bound {
    let refusal = ErrorKind::Quota;
    Bound { reserved_now: Arc::default(), limit, used, reservation, refusal, of_pool: false }
}

fn bounds(levels: Vec<Bound>) -> Arc<Bounds> {
    Arc::new(Bounds { txg: Txg(4), levels, referenced: 0 })
}

fn totals(bounds: &Bounds) -> Vec<u64> {
    bounds.levels.iter().map(|l| l.reserved_now.inflight()).collect()
}

fn take(bounds: &Arc<Bounds>, txg: u64, bytes: u64) -> Charges {
    bounds.reserve(Txg(txg), bytes, 0).unwrap_or_else(|_| panic!("{bytes} bytes do not fit"))
}

/// Story: each new file reserved 190 KB until its txg was on disk. A caller that made
/// 1,800-byte files in a pool of 6 GiB stalled for 150 ms after every 30,000 files.
#[test]
fn ended_transactions_keep_the_size_of_their_blocks() {
    let bounds = bounds(vec![level(1 << 30, 0, 0)]);
    let (first, second) = (take(&bounds, 7, 100_000), take(&bounds, 8, 200_000));
    assert_eq!(totals(&bounds), [300_000]);
    first.settle(30_000);
    assert_eq!(totals(&bounds), [230_000]);
    // Never more than the reservation.
    second.settle(1 << 20);
    assert_eq!(totals(&bounds), [230_000]);
    bounds.levels[0].reserved_now.synced(Txg(7));
    assert_eq!(totals(&bounds), [200_000]);
    // A transaction that did not begin gives everything back.
    drop(take(&bounds, 8, 7));
    assert_eq!(totals(&bounds), [200_000]);
}

#[test]
fn a_reservation_takes_nothing_from_the_parent() {
    // 200 bytes are reserved, of which 50 are used; the pool has 100 left.
    let bounds = bounds(vec![level(u64::MAX, 50, 200), level(1000, 900, 0)]);
    let first = take(&bounds, 7, 120);
    assert_eq!(totals(&bounds), [120, 0]);
    // 30 of the reservation and all of the pool's 100.
    let second = take(&bounds, 7, 130);
    assert_eq!(totals(&bounds), [250, 100]);
    assert!(bounds.reserve(Txg(7), 1, 0).is_err());
    assert_eq!(totals(&bounds), [250, 100], "the refusal takes nothing");
    // Of 40 bytes the reservation absorbs 30.
    second.settle(40);
    assert_eq!(totals(&bounds), [160, 10]);
    drop(first);
    assert_eq!(totals(&bounds), [40, 10]);
}

#[test]
fn the_level_that_refuses_is_named() {
    let mut root = level(500, 0, 0);
    root.refusal = ErrorKind::NoSpace;
    let quota = level(1000, 600, 0);
    let bounds = bounds(vec![quota, root]);
    let kind = |bytes| bounds.reserve(Txg(5), bytes, 0).err().map(|level| level.refusal);
    assert_eq!(kind(400), None);
    assert_eq!(kind(401), Some(ErrorKind::Quota));
    assert_eq!(bounds.room(), 400);
    drop(take(&bounds, 5, 400));
    let full = self::bounds(vec![level(10, 11, 0)]);
    assert!(full.reserve(Txg(5), 1, 0).is_err());
    assert_eq!(full.room(), 0);
}

#[test]
fn a_clone_counts_for_quotas_and_not_for_the_pool() {
    let mut root = level(500, 450, 0);
    (root.refusal, root.of_pool) = (ErrorKind::NoSpace, true);
    let bounds = bounds(vec![level(1000, 100, 0), root]);
    let clone = bounds.reserve(Txg(5), 20, 800).unwrap_or_else(|_| panic!("it fits"));
    assert_eq!(totals(&bounds), [820, 20]);
    let refused = |bytes, shared| bounds.reserve(Txg(5), bytes, shared).err().map(|l| l.refusal);
    assert_eq!(refused(0, 81), Some(ErrorKind::Quota));
    assert_eq!(refused(31, 0), Some(ErrorKind::NoSpace));
    clone.settle(810);
    assert_eq!(totals(&bounds), [810, 10]);
}

/// Random transactions of datasets that share directories, against sums kept one by one.
#[test]
fn the_ledger_against_sums() {
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        // Two datasets below one directory below the root.
        let sizes: Vec<(u64, u64, u64)> = (0..4)
            .map(|_| {
                let used = rng.below(1000);
                let limit = if rng.below(3) == 0 { u64::MAX } else { used + rng.below(5000) };
                let reservation = if rng.below(2) == 0 { 0 } else { rng.below(3000) };
                (limit, used, reservation)
            })
            .collect();
        let mut naive: Vec<NaiveLevel> = sizes
            .iter()
            .map(|&(limit, used, reservation)| NaiveLevel {
                limit,
                used,
                reservation,
                held: vec![],
            })
            .collect();
        let shared: Vec<Arc<SpaceReservation>> = (0..4).map(|_| Arc::default()).collect();
        let paths = [[HEAD, 2, 3], [1, 2, 3]];
        let accounts = paths.map(|path| {
            let of = |&i: &usize| Bound {
                reserved_now: Arc::clone(&shared[i]),
                limit: naive[i].limit,
                used: naive[i].used,
                reservation: naive[i].reservation,
                refusal: ErrorKind::Quota,
                of_pool: false,
            };
            bounds(path.iter().map(of).collect())
        });
        let mut open: VecDeque<(usize, Txg, Charges, Vec<u64>)> = VecDeque::new();
        let mut synced = 4;
        for _ in 0..400 {
            match rng.below(5) {
                0..=2 => {
                    let which = rng.below(2) as usize;
                    let (txg, bytes) = (Txg(synced + 1 + rng.below(3)), rng.below(900));
                    let mut amount = bytes;
                    let mut amounts = Vec::new();
                    let fits = paths[which].iter().all(|&i| {
                        let l = &naive[i];
                        let sum: u64 = l.held.iter().map(|h| h.1).sum();
                        let fits = l.used.saturating_add(sum + amount) <= l.limit || amount == 0;
                        amounts.push(amount);
                        amount -= amount.min(l.reservation.saturating_sub(l.used + sum));
                        fits
                    });
                    let got = accounts[which].reserve(txg, bytes, 0);
                    assert_eq!(got.is_ok(), fits, "seed {seed}");
                    if let Ok(charges) = got {
                        for (&i, &amount) in paths[which].iter().zip(&amounts) {
                            naive[i].held.push((txg, amount));
                        }
                        open.push_back((which, txg, charges, amounts));
                    }
                }
                3 => {
                    let Some((which, txg, charges, amounts)) = open.pop_front() else { continue };
                    let kept = rng.below(1200);
                    charges.settle(kept);
                    for (&i, &amount) in paths[which].iter().zip(&amounts) {
                        let absorbed = amounts[0] - amount;
                        let held = &mut naive[i].held;
                        let at = held.iter().position(|&h| h == (txg, amount)).unwrap();
                        held[at].1 = kept.saturating_sub(absorbed).min(amount);
                    }
                }
                _ => {
                    if open.iter().any(|o| o.1.0 == synced + 1) {
                        continue;
                    }
                    synced += 1;
                    for (level, shared) in naive.iter_mut().zip(&shared) {
                        level.held.retain(|h| h.0.0 != synced);
                        shared.synced(Txg(synced));
                    }
                }
            }
            for (level, shared) in naive.iter().zip(&shared) {
                let sum: u64 = level.held.iter().map(|h| h.1).sum();
                assert_eq!(sum, shared.inflight(), "seed {seed}");
            }
        }
    }
}
