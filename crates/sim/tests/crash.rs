//! Every crash point of seeded runs: whatever is left on the disks, the pool is complete.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, clippy::disallowed_methods)]

use sim::{Campaign, DiskFault, Layout, Setup, Totals, Workload, short};

/// Crash points in `make test`, and in `make nightly`.
const POINTS: u64 = 1_400;
const NIGHTLY_POINTS: u64 = 1_000_000;

fn nightly() -> bool {
    std::env::var_os("CENOTE_NIGHTLY").is_some()
}

fn fine(name: &str, totals: &Totals, start: base::rt::Instant) {
    if let Some(failure) = &totals.failure {
        panic!("{name}: {failure}");
    }
    let time = start.elapsed().as_secs_f64();
    println!(
        "SIMULATED {name}: {} runs, {} crash points, {} images, {} txgs, {:.0} images a second",
        totals.runs,
        totals.points,
        totals.images,
        totals.txgs,
        totals.images as f64 / time
    );
}

#[test]
fn every_crash_point_of_seeded_runs() {
    let start = base::rt::now();
    let due = if nightly() { NIGHTLY_POINTS } else { POINTS };
    let (mut totals, mut seed) = (Totals::default(), 1);
    while totals.points < due {
        let stride = if nightly() { 1 } else { 3 };
        if !totals.add(Campaign { stride, ..Campaign::new(seed, 1) }.go(&mut |_, _| ())) {
            break;
        }
        seed += 1;
    }
    fine("seeded", &totals, start);
    assert!(totals.points >= due);
}

/// Story: zeros over a hole changed nothing, so their txg left no uberblock, nor did the
/// two after it. The third overwrote space that the txg before the last one had used, which
/// is allowed. But the judge took the zeros for the next change, and expected that txg as
/// well.
#[test]
fn a_txg_that_changes_nothing_is_no_target_of_a_rewind() {
    let setup = Setup {
        layout: Layout::Raidz2,
        workload: Workload::Full,
        threads: 1,
        keep: Some(vec![2, 3, 4, 5, 9, 10, 11]),
        ..Setup::varied(31_499)
    };
    let recorded = sim::record(&setup);
    let tally = recorded.crash_everywhere(1, 0, base::rt::parallelism());
    assert!(tally.failure.is_none(), "{}", tally.failure.unwrap());
    // The run is the one of the story: the last txg is far from the one before.
    let mut txgs: Vec<u64> = recorded.disks.marks(u64::MAX);
    txgs.sort_unstable();
    txgs.dedup();
    assert!(txgs.windows(2).any(|pair| pair[1] > pair[0] + 3), "{txgs:?}");
    assert!(tally.txgs >= 3 && !recorded.full, "{}", tally.txgs);
}

#[test]
fn every_crash_point_of_short_sequences() {
    let start = base::rt::now();
    let mut totals = Totals::default();
    let (length, step, stride) = if nightly() { (3, 1, 1) } else { (2, 3, 3) };
    for n in (0..short::count(length)).step_by(step) {
        let layout = Layout::ALL[short::first(n) as usize % Layout::ALL.len()];
        let tally = short::run(n, layout, (stride, 1), base::rt::parallelism());
        totals.runs += 1;
        totals.points += tally.points;
        totals.images += tally.images;
        totals.txgs += tally.txgs;
        totals.failure = tally.failure;
        if totals.failure.is_some() {
            break;
        }
    }
    fine("short", &totals, start);
}

/// This allows crashing a sequence only from its last operation on: before that its log is
/// that of the sequence without it.
#[test]
fn sequences_that_begin_alike_share_their_log() {
    let list = short::list().len();
    let all = if nightly() { short::count(3) } else { short::count(2) + 16 };
    for n in (list..all).step_by(if nightly() { 7 } else { 13 }) {
        let (offset, width) = match n < list + list * list {
            true => (list, list),
            false => (list + list * list, list * list),
        };
        let shorter = (n - offset) % width + offset - width;
        let layout = Layout::ALL[short::first(n) as usize % Layout::ALL.len()];
        let record = |n: usize| sim::record(&short::setup(n, layout));
        let (long, brief) = (record(n), record(shorter));
        let common = long.prelude as usize;
        assert!(common > 0 && long.prelude >= brief.prelude, "{n}");
        if let Some(what) = difference(&long, &brief, common) {
            panic!("{n} and {shorter}: {what}");
        }
    }
}

#[test]
fn a_disk_with_faults_costs_nothing_that_was_synced() {
    let runs = if nightly() { 200 } else { 4 };
    for fault in DiskFault::ALL {
        let start = base::rt::now();
        let mut campaign = Campaign::new(1, runs);
        let stride = if nightly() { 5 } else { 12 };
        (campaign.fault, campaign.stride, campaign.more) = (Some(fault), stride, 1);
        fine(fault.name(), &campaign.go(&mut |_, _| ()), start);
    }
}

/// The first event in which two runs differ, among so many.
fn difference(a: &sim::Recorded, b: &sim::Recorded, most: usize) -> Option<String> {
    use device::sim::{Data, Event};
    let bytes = |data: &Data| match data {
        Data::Bytes(bufs) => bufs.iter().flat_map(|b| b.iter().copied()).collect::<Vec<u8>>(),
        Data::Zeros(n) => n.to_le_bytes().to_vec(),
    };
    let (mut x, mut y) = (a.disks.log(), b.disks.log());
    x.truncate(most);
    y.truncate(most);
    for (n, pair) in x.iter().zip(&y).enumerate() {
        match pair {
            (
                Event::Write { disk, offset, data },
                Event::Write { disk: d, offset: o, data: other },
            ) => {
                let (one, two) = (bytes(data), bytes(other));
                if (disk, offset) != (d, o) || one != two {
                    let at = one.iter().zip(&two).position(|(p, q)| p != q);
                    return Some(format!(
                        "event {n}: {} bytes at {offset} of disk {disk}, or {} at {o} of {d}; \
                         they differ from byte {at:?}",
                        one.len(),
                        two.len()
                    ));
                }
            }
            (p, q) => {
                let (p, q) = (format!("{p:?}"), format!("{q:?}"));
                if p != q {
                    return Some(format!("event {n}: {p}, or {q}"));
                }
            }
        }
    }
    (x.len() != y.len()).then(|| format!("{} or {} events", x.len(), y.len()))
}

#[test]
fn a_setup_decides_every_byte() {
    let (first, last) = if nightly() { (1, 100) } else { (1, 12) };
    for seed in first..=last {
        let setup = sim::Setup::varied(seed);
        let (a, b) = (sim::record(&setup), sim::record(&setup));
        if let Some(what) = difference(&a, &b, usize::MAX) {
            panic!("{}: {what}", setup.command());
        }
        assert_eq!((a.hash, a.steps, a.disks.events()), (b.hash, b.steps, b.disks.events()));
    }
}

/// Story: a gang block of the MOS got a new address in each pass of its txg, which
/// therefore never ended.
#[test]
fn every_crash_point_where_all_blocks_are_gangs() {
    let start = base::rt::now();
    let mut totals = Totals::default();
    for (i, layout) in Layout::ALL.into_iter().enumerate() {
        let stride = if nightly() { 1 } else { 40 };
        let runs = if nightly() { 50 } else { 1 };
        let campaign =
            Campaign { layout: Some(layout), gangs: true, stride, ..Campaign::new(i as u64, runs) };
        totals.add(campaign.go(&mut |_, _| ()));
    }
    fine("gangs", &totals, start);
}

/// Runs of a workload on every kind of vdev.
fn on_each_layout(workload: Workload) -> Totals {
    let layouts = [Layout::Single, Layout::Mirror, Layout::Raidz, Layout::Draid, Layout::Classes];
    let rounds = if nightly() { 100 } else { 1 };
    let mut totals = Totals::default();
    for (layout, round) in (0..rounds).flat_map(|round| layouts.map(|layout| (layout, round))) {
        let mut campaign = Campaign::new(1000 + round, 1);
        (campaign.layout, campaign.workload) = (Some(layout), Some(workload));
        (campaign.ops, campaign.stride) = (Some(16), if nightly() { 1 } else { 12 });
        if !totals.add(campaign.go(&mut |_, _| ())) {
            break;
        }
    }
    totals
}

/// Checkpoints are taken, kept and discarded while the power fails: the state of the checkpoint
/// is as complete as that of the newest txg.
#[test]
fn every_crash_point_with_checkpoints() {
    let start = base::rt::now();
    fine("checkpoints", &on_each_layout(Workload::Checkpoint), start);
}

/// Free space is trimmed and filled with a pattern while the power fails: no state to which an
/// import may go back misses a block.
#[test]
fn every_crash_point_with_trims() {
    let start = base::rt::now();
    fine("trims", &on_each_layout(Workload::Trim), start);
}
