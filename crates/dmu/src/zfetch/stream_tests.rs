use std::collections::{BTreeMap, BTreeSet, HashSet};

use proptest::prelude::*;

use super::*;

const BS: u64 = 128 << 10;

fn params(blocks: u64) -> Params {
    Params {
        block_size: BS,
        blocks,
        l1_shift: 10,
        max_streams: 8,
        min_distance: 4 << 20,
        max_distance: 64 << 20,
        max_idistance: 128 << 20,
        reorder: 16 << 20,
        min_reap: Duration::from_secs(1),
        max_reap: Duration::from_secs(2),
        hole_shift: 2,
    }
}

/// A table, all its requests, and the rules that hold for any reader.
struct Watched {
    table: Table,
    now: Duration,
    requested: BTreeMap<u64, HashSet<u64>>,
    l1: BTreeMap<u64, HashSet<u64>>,
    all: HashSet<u64>,
    count: u64,
}

impl Watched {
    fn new(p: Params) -> Watched {
        Watched {
            table: Table::new(p),
            now: Duration::from_secs(100),
            requested: BTreeMap::new(),
            l1: BTreeMap::new(),
            all: HashSet::new(),
            count: 0,
        }
    }

    /// A read that waits for blocks without a request; returns whether there was a request.
    fn read(&mut self, first: u64, blocks: u64) -> bool {
        let known = (first..first + blocks).all(|b| self.all.contains(&b));
        self.access(first, blocks, !known);
        known
    }

    fn access(&mut self, first: u64, blocks: u64, waited: bool) -> Plan {
        let (now, p) = (self.now, *self.table.params());
        let plan = self.table.access(|| now, first, blocks, waited);
        let requested = self.requested.entry(plan.stream).or_default();
        let mut n = 0;
        for block in plan.data.iter().flat_map(|a| a.each()) {
            assert!(block < p.blocks, "{block} is behind the end");
            assert!(requested.insert(block), "{block} is requested again");
            self.all.insert(block);
            n += 1;
        }
        self.count += n;
        assert!(n * BS <= p.max_distance || n <= 20, "{n} blocks at once");
        let l1 = self.l1.entry(plan.stream).or_default();
        for block in plan.indirect.clone().into_iter().flatten() {
            assert!(block <= (p.blocks - 1) >> p.l1_shift, "level-1 block {block} does not exist");
            assert!(l1.insert(block), "level-1 block {block} is requested again");
        }
        for block in plan.behind.iter().flat_map(|a| a.each()) {
            assert!(block < p.blocks && first.abs_diff(block) * BS >= DROP_LAG / 2);
        }
        plan
    }
}

#[test]
fn a_sequential_reader_is_far_ahead_soon() {
    let mut w = Watched::new(params(100_000));
    let mut behind = 0;
    for block in 0..4000 {
        let plan = w.access(block, 1, block < 4);
        if let Some(a) = plan.data {
            assert!(a.first + a.blocks <= block + 1 + (4 << 20) / BS);
        }
        if let Some(a) = plan.behind {
            assert_eq!(a.first, behind, "each block is dropped once");
            behind = a.first + a.blocks;
            assert!(behind * BS + DROP_LAG <= (block + 1) * BS, "dropped too early");
        }
        assert!(block == 0 || w.all.contains(&(block + 1)), "{block} has nothing ahead");
    }
    assert!(behind >= 4000 - (DROP_LAG + DROP_PIECE) / BS - 1);
    assert_eq!(w.table.take_stats().hits, 3999);
}

/// Reads that still wait for requested blocks push the distance up to its limit.
#[test]
fn late_reads_ask_earlier() {
    let mut w = Watched::new(params(1 << 20));
    let mut far = 0;
    for block in 0..2000 {
        let plan = w.access(block, 1, true);
        far = far.max(plan.data.map_or(0, |a| a.first + a.blocks - block));
    }
    assert!((480..=513).contains(&far), "{far} blocks ahead");
}

#[test]
fn what_is_in_memory_is_not_requested() {
    let mut w = Watched::new(params(100_000));
    for block in 0..1000 {
        assert_eq!(w.access(block, 1, false).data, None);
    }
    assert!(w.access(1000, 1, true).data.is_some(), "the first wait opens the window");
}

#[test]
fn backward_and_strided_readers() {
    let steps = (2..=64).chain((2..=64).map(|s| -s));
    for (step, len) in steps.map(|s| (s, 1)).chain([(-1, 1), (-4, 4), (16, 3), (-9, 2)]) {
        let mut w = Watched::new(params(100_000));
        let mut late = Vec::new();
        for i in 0..200i64 {
            let at = 50_000 + i * step;
            if !w.read(at as u64, len) {
                late.push(i);
            }
        }
        assert!(late.iter().all(|&i| i < 5), "step {step}: {late:?} had to wait");
        // Requested blocks are read: the rest is the last window.
        let used = 200 * len;
        assert!(w.count <= used + (5 << 20) / BS + 2 * len, "step {step}: {} requested", w.count);
    }
}

#[test]
fn requests_that_overtake_each_other() {
    let mut w = Watched::new(params(100_000));
    let order = [2, 0, 3, 1];
    let mut known = 0;
    for group in 0..200u64 {
        for i in order {
            known += u64::from(w.read(group * 4 + i, 1));
        }
    }
    assert!(known >= 790, "only {known} of 800 were requested in time");
    assert!(w.count <= 800 + 2 * (4 << 20) / BS, "{} requested", w.count);
}

#[test]
fn streams_are_replaced_by_age() {
    let mut w = Watched::new(params(1 << 20));
    let reader = |w: &mut Watched, n: u64| {
        let at = n * 10_000;
        w.access(at, 1, true);
        w.access(at + 1, 1, true).data.is_some()
    };
    for n in 0..8 {
        assert!(reader(&mut w, n));
    }
    assert!(!reader(&mut w, 8), "all are young");
    assert_eq!(w.table.take_stats().max_streams, 1);
    w.now += Duration::from_millis(1500);
    w.access(2, 1, true);
    assert!(reader(&mut w, 9), "an old one is replaced");
    assert!(w.access(3, 1, true).data.is_some() || w.table.streams.iter().any(|s| s.next == 4));
    w.now += Duration::from_secs(3);
    assert!(reader(&mut w, 10));
    assert_eq!(w.table.streams.len(), 1, "those without a hit for long have ended");
}

#[test]
fn small_files_have_few_streams_and_the_end_ends_them() {
    let mut w = Watched::new(params(40));
    assert_eq!(w.table.params().stream_limit(), 1);
    for block in 0..40 {
        w.access(block, 1, true);
    }
    assert!(w.table.streams.is_empty());
    assert_eq!(w.access(40, 1, true), Plan::default());
    assert_eq!(w.access(u64::MAX, u64::MAX, true), Plan::default());
}

#[test]
fn what_was_refused_is_requested_again() {
    for step in [1i64, -1, 5, -5] {
        let mut table = Table::new(params(100_000));
        let mut requested = BTreeSet::new();
        let mut refuse = false;
        for i in 0..300i64 {
            let at = (50_000 + i * step) as u64;
            let plan = table.access(Duration::default, at, 1, true);
            for block in plan.data.iter().flat_map(|a| a.each()) {
                refuse = !refuse;
                if refuse && i < 250 {
                    table.refused(&plan, block);
                    break;
                }
                assert!(requested.insert(block), "{block} twice");
            }
        }
        let read: Vec<u64> = (10..300).map(|i| (50_000 + i * step) as u64).collect();
        let missing = read.iter().filter(|b| !requested.contains(b)).count();
        assert!(missing < 30, "step {step}: {missing} never requested");
    }
}

/// `k` sequential readers in turn, each anywhere.
fn interleaved(starts: &[u64], mut choose: impl FnMut() -> usize) -> (u64, u64, u64) {
    let mut w = Watched::new(params(1 << 20));
    let mut at: Vec<u64> = starts.to_vec();
    let mut done = vec![0; at.len()];
    let mut read = HashSet::new();
    let (mut waits, mut late) = (0, 0);
    for _ in 0..at.len() * 200 {
        let i = choose() % at.len();
        let known = w.all.contains(&at[i]) || read.contains(&at[i]);
        w.access(at[i], 1, !known);
        read.insert(at[i]);
        waits += u64::from(!known);
        late += u64::from(!known && done[i] > 8);
        done[i] += 1;
        at[i] += 1;
    }
    (waits, late, w.count)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn interleaved_readers_are_all_detected(
        starts in prop::collection::vec(0u64..900_000, 1..=8), choose in any::<u64>(),
    ) {
        let mut seed = choose | 1;
        let random = || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            (seed >> 33) as usize
        };
        let (_, late, requested) = interleaved(&starts, random);
        let total = starts.len() as u64 * 200;
        prop_assert!(late * 10 <= total, "{} of {} had to wait", late, total);
        prop_assert!(requested <= total + starts.len() as u64 * 2 * (4 << 20) / BS);
    }

    #[test]
    fn random_readers_waste_little(
        blocks in 1000u64..1_000_000, len in 1u64..4, seed in any::<u64>(),
    ) {
        let mut w = Watched::new(params(blocks));
        let mut x = seed | 1;
        for _ in 0..10_000 {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            w.access((x >> 11) % (blocks - len), len, true);
            w.now += Duration::from_micros(200);
        }
        prop_assert!(w.count * 20 <= 10_000 * len, "{} blocks requested", w.count);
    }

    /// Any accesses at all: the rules of [`Watched`] hold, parameters may change.
    #[test]
    fn nothing_is_requested_twice_or_behind_the_end(
        blocks in 1u64..5000,
        steps in prop::collection::vec((0u64..5000, 0u64..20, any::<bool>(), 0u32..30, 0u64..6), 1..400),
    ) {
        let mut w = Watched::new(params(blocks));
        let mut at = 0u64;
        for (jump, len, waited, kind, extra) in steps {
            at = match kind {
                0 => jump,
                1..=4 => at.saturating_sub(extra),
                _ => at + extra,
            };
            w.access(at, len, waited);
            w.now += Duration::from_millis(jump / 10);
            if kind == 29 {
                let mut p = *w.table.params();
                p.max_streams = 1 + extra as usize;
                p.max_distance = jump << 12;
                w.table.set_params(p);
            }
            prop_assert_eq!(w.table.zones.len(), w.table.streams.len());
            for (s, zone) in w.table.streams.iter().zip(&w.table.zones) {
                prop_assert!(s.next < s.course.total(blocks) && s.behind <= s.next);
                for b in at.saturating_sub(400)..at + 400 {
                    let inside = b < zone.end && b + 1 > zone.start;
                    prop_assert!(inside || b >= blocks || s.relate(b, b + 1, w.table.params()).is_none());
                }
                prop_assert!(s.futures.len() <= FUTURES);
                prop_assert!(s.futures.iter().all(|f| f.0 > s.next && f.0 < f.1));
                prop_assert!(s.futures.windows(2).all(|f| f[0].1 < f[1].0));
            }
            prop_assert!(w.table.streams.len() <= 8);
        }
    }

    /// Future ranges against a set of units.
    #[test]
    fn passing_holes_against_counting_them(
        reads in prop::collection::vec((1u64..60, 1u64..6), 1..30), shift in 0u32..5,
    ) {
        let mut s = Stream {
            id: 1, course: Course::Up, next: 100, behind: 0, requested: 0, l1: 0..0, distance: 0,
            idistance: 0, futures: Vec::new(), seen: Duration::ZERO, tick: 0, missed: false,
        };
        let mut set = BTreeSet::new();
        for (from, len) in reads {
            let pass = s.remember(100 + from, 100 + from + len, shift);
            let mut with = set.clone();
            with.extend(100 + from..100 + from + len);
            let ranges = with.iter().filter(|u| !with.contains(&(**u - 1))).count();
            if ranges > FUTURES {
                prop_assert_eq!(pass, None);
                continue;
            }
            set = with;
            let good = |end: &u64| {
                let holes = (100..*end).filter(|u| !set.contains(u)).count() as u64;
                holes <= (end - 100) >> shift
            };
            let ends = set.iter().map(|u| u + 1).filter(|e| !set.contains(e));
            prop_assert_eq!(pass, ends.filter(good).max());
        }
    }
}
