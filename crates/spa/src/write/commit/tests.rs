//! The order of a commit, its failures, and crashes between any two of its steps.

use std::collections::BTreeMap;

use base::Txg;
use base::rt::Mutex;
use ondisk::config::{PoolState, Raidz, Top};
use ondisk::label::{BOOT_OFFSET, LABEL_SIZE, choose_label, parse_slot, parse_vdev_phys};
use ondisk::{BlkPtr, Endian};
use proptest::prelude::*;

use super::super::config::{PoolFacts, members};
use super::super::topology::plain_node;
use super::super::uberblock::{Multihost, Synced, next, template};
use super::*;

const PSIZE: u64 = 64 << 20;
/// Offset of the txg's data in the model.
const DATA: u64 = BOOT_OFFSET + (8 << 20);

fn top(id: u32, kind: VdevType, children: u64, ashift: u32) -> VdevConfig {
    let guid = u64::from(id + 1) * 100;
    let mut top = plain_node(kind, Guid(guid), Txg(4));
    top.id = id;
    top.top =
        Some(Top { metaslab_array: 7, metaslab_shift: 24, ashift, asize: PSIZE, ..Top::default() });
    for n in 0..children {
        let mut leaf = plain_node(VdevType::File, Guid(guid + 1 + n), Txg(4));
        leaf.id = n as u32;
        top.children.push(leaf);
    }
    if kind == VdevType::Raidz {
        top.raidz = Some(Raidz { nparity: 1, expanding: false, expand_txgs: Vec::new() });
    }
    top
}

fn facts(txg: u64) -> PoolFacts {
    PoolFacts {
        version: 5000,
        name: format!("tank{txg}"),
        state: PoolState::Active,
        txg: Txg(txg),
        pool_guid: Guid(1),
        errata: 0,
        hostid: 0,
        hostname: None,
        comment: None,
        compatibility: None,
        vdev_children: 1,
        hole_array: Vec::new(),
        split_guid: None,
        features_for_read: Vec::new(),
    }
}

fn tops(configs: &[VdevConfig], txg: u64, dirty: bool) -> Vec<CommitTop<'_>> {
    let of = |config| {
        let lists = members(&facts(txg), config).into_iter();
        let leaf = |(guid, list)| CommitLeaf { guid, psize: PSIZE, label: dirty.then_some(list) };
        CommitTop { id: VdevId(config.id), config, dirty, leaves: lists.map(leaf).collect() }
    };
    configs.iter().map(of).collect()
}

fn uberblock(txg: u64) -> Uberblock {
    let synced = Synced {
        txg: Txg(txg),
        root_bp: BlkPtr::default(),
        guid_sum: txg,
        now: txg,
        multihost: None,
    };
    next(&template(5000, Txg(txg - 1)), &synced)
}

/// A step as a short word: `d` data, `L0`..`L3` labels, `U0`..`U3` uberblocks of
/// these labels, `|` a flush; leaves behind a colon.
fn word(write: &LeafWrite) -> String {
    let mut starts = (0..LABELS).filter_map(|l| Some((l, label_offset(PSIZE, l)?)));
    let label = starts.find(|(_, at)| *at <= write.offset && write.offset < at + LABEL_SIZE);
    let Some((label, at)) = label else { return format!("d:{}", write.leaf) };
    let what = if write.offset - at == VDEV_PHYS_OFFSET { "L" } else { "U" };
    format!("{what}{label}:{}", write.leaf)
}

/// Records the steps, and fails the requested ones.
#[derive(Default)]
struct StepRecorder {
    log: Mutex<Vec<String>>,
    /// Writes whose word starts with this fail, this often.
    fail: Mutex<Vec<(&'static str, usize)>>,
    fail_flush: Vec<(Guid, usize)>,
    leaves: Vec<Guid>,
    flushes: Mutex<usize>,
}

impl LabelDevices for StepRecorder {
    fn write_leaves(&self, writes: Vec<LeafWrite>) -> Vec<Result<()>> {
        let mut out = Vec::new();
        for write in &writes {
            let word = word(write);
            let mut fail = self.fail.lock();
            let hit = fail.iter_mut().find(|(w, n)| word.starts_with(w) && *n > 0);
            out.push(match hit {
                Some((_, n)) => {
                    *n -= 1;
                    Err(Error::new(ErrorKind::Io, "requested failure"))
                }
                None => Ok(()),
            });
            self.log.lock().push(word);
        }
        out
    }

    fn flush(&self, tops: &[VdevId]) -> Vec<(Guid, Result<()>)> {
        let mut n = self.flushes.lock();
        let ids: String = tops.iter().map(|t| t.to_string()).collect();
        self.log.lock().push(format!("|{ids}"));
        let result = |guid: &Guid| {
            let fails = self.fail_flush.contains(&(*guid, *n));
            let result = if fails { Err(Error::new(ErrorKind::Io, "no flush")) } else { Ok(()) };
            (*guid, result)
        };
        let out = self.leaves.iter().map(result).collect();
        *n += 1;
        out
    }
}

impl StepRecorder {
    fn log(&self) -> String {
        self.log.lock().join(" ")
    }
}

fn run(
    devices: &StepRecorder,
    configs: &[VdevConfig],
    dirty: bool,
    start: u64,
) -> Result<Committed> {
    let tops = tops(configs, 9, dirty);
    let ub = Uberblock { mmp: Some(Default::default()), ..uberblock(9) };
    // The txg changed something if its root was born in it, or multihost is on.
    let ub = if dirty {
        ub
    } else {
        let on = Multihost { delay: 1, interval_ms: 1000, fail_intervals: 10 };
        let synced = Synced {
            txg: Txg(9),
            root_bp: BlkPtr::default(),
            guid_sum: 9,
            now: 9,
            multihost: Some(on),
        };
        next(&template(5000, Txg(8)), &synced)
    };
    let written: Vec<VdevId> = configs.iter().map(|c| VdevId(c.id)).collect();
    commit(
        devices,
        &Commit {
            uberblock: &ub,
            tops: &tops,
            written: &written,
            start,
            everywhere: false,
            plants: &Plants::default(),
        },
    )
}

#[test]
fn the_order_of_a_dirty_commit() {
    let devices = StepRecorder::default();
    let done = run(&devices, &[top(0, VdevType::Mirror, 2, 9)], true, 0).unwrap();
    assert_eq!(done, Committed { written: true, failed: Vec::new() });
    assert_eq!(
        devices.log(),
        "|0 L0:101 L2:101 L0:102 L2:102 |0 U0:101 U1:101 U2:101 U3:101 U0:102 U1:102 U2:102 \
         U3:102 |0 L1:101 L3:101 L1:102 L3:102 |0"
    );
}

#[test]
fn a_clean_commit_writes_uberblocks_to_three() {
    let mut configs: Vec<VdevConfig> = (0..6).map(|id| top(id, VdevType::Mirror, 1, 12)).collect();
    configs[1].top.as_mut().unwrap().is_log = true;
    configs[2].top.as_mut().unwrap().metaslab_array = 0;
    let devices = StepRecorder::default();
    run(&devices, &configs, false, 2).unwrap();
    let log = devices.log();
    let took: Vec<&str> = log.split(' ').filter(|w| w.starts_with("U0")).collect();
    assert_eq!(took, ["U0:501", "U0:601", "U0:101"], "0, 3, 4 and 5 are fit; from the third on");
    assert!(!log.contains('L') && log.starts_with("|012345 ") && log.ends_with(" |450"), "{log}");
}

#[test]
fn an_empty_txg_leaves_no_trace() {
    let configs = [top(0, VdevType::Mirror, 1, 9)];
    let tops = tops(&configs, 9, false);
    let ub = uberblock(9);
    let devices = StepRecorder::default();
    let nothing = Commit {
        uberblock: &ub,
        tops: &tops,
        written: &[],
        start: 0,
        everywhere: false,
        plants: &Plants::default(),
    };
    assert_eq!(commit(&devices, &nothing).unwrap(), Committed::default());
    assert_eq!(devices.log(), "");
}

#[test]
fn slots_leave_room_for_heartbeats() {
    let configs = [top(0, VdevType::Mirror, 1, 13)];
    let tops = tops(&configs, 31, true);
    let offset = |ub: &Uberblock| {
        let made = Attempt {
            devices: &StepRecorder::default(),
            commit: &Commit {
                uberblock: ub,
                tops: &tops,
                written: &[],
                start: 0,
                everywhere: false,
                plants: &Plants::default(),
            },
            dirty: true,
            failed: HashSet::new(),
            unlabelled: HashSet::new(),
        }
        .uberblock_write(&tops[0], &tops[0].leaves[0], 0);
        (made.unwrap().offset - 0x20000) / 8192
    };
    let plain = uberblock(31);
    assert_eq!(offset(&plain), 31 % 16);
    let mmp = ondisk::uberblock::Mmp { delay: 5, config: 7 };
    assert_eq!(offset(&Uberblock { mmp: Some(mmp), ..plain.clone() }), 31 % 15);
    assert_eq!(offset(&Uberblock { raidz_reflow_info: 1 << 55, ..plain }), 30 % 16);
}

#[test]
fn one_label_and_one_uberblock_are_enough() {
    let devices = StepRecorder {
        fail: Mutex::new(vec![("L2:101", 9), ("U0", 9), ("U2", 9), ("U3", 9), ("L3", 9)]),
        leaves: vec![Guid(101)],
        ..StepRecorder::default()
    };
    let done = run(&devices, &[top(0, VdevType::Mirror, 1, 9)], true, 0).unwrap();
    assert_eq!(done.failed, [Guid(101)]);
}

#[test]
fn a_leaf_without_even_labels_gets_no_uberblock() {
    let devices = StepRecorder {
        fail: Mutex::new(vec![("L0:102", 9), ("L2:102", 9)]),
        leaves: vec![Guid(101), Guid(102)],
        ..StepRecorder::default()
    };
    let done = run(&devices, &[top(0, VdevType::Mirror, 2, 9)], true, 0).unwrap();
    assert_eq!(done.failed, [Guid(102)]);
    assert!(!devices.log().contains("U0:102") && devices.log().contains("L1:102"));
}

#[test]
fn a_failure_is_tried_once_more() {
    for what in ["L0", "U", "L1"] {
        let twin = if what == "L0" { "L2" } else { "L3" };
        // Everything of the step fails in the first attempt.
        let n = if what == "U" { 4 } else { 1 };
        let fail = |n| Mutex::new(vec![(what, n), (twin, if what == "U" { 0 } else { n })]);
        let devices =
            StepRecorder { fail: fail(n), leaves: vec![Guid(101)], ..StepRecorder::default() };
        let done = run(&devices, &[top(0, VdevType::Mirror, 1, 9)], true, 0).unwrap();
        assert!(done.written && done.failed.is_empty(), "{what}");
        assert_eq!(devices.log().matches("L0").count(), 2);
        // And in the second.
        let devices = StepRecorder { fail: fail(2 * n), ..StepRecorder::default() };
        let e = run(&devices, &[top(0, VdevType::Mirror, 1, 9)], true, 0).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Io, "{what}");
    }
}

#[test]
fn a_log_may_fail() {
    let mut configs = vec![top(0, VdevType::Mirror, 1, 9), top(1, VdevType::Mirror, 1, 9)];
    configs[1].top.as_mut().unwrap().is_log = true;
    let fail = vec![("L0:201", 9), ("L2:201", 9), ("L1:201", 9), ("L3:201", 9)];
    let devices = StepRecorder {
        fail: Mutex::new(fail),
        leaves: vec![Guid(101), Guid(201)],
        fail_flush: (0..4).map(|n| (Guid(201), n)).collect(),
        ..StepRecorder::default()
    };
    let done = run(&devices, &configs, true, 0).unwrap();
    assert_eq!(done.failed, [Guid(201)]);
}

#[test]
fn flushes_count_against_redundancy() {
    let raidz = || top(0, VdevType::Raidz, 3, 9);
    let with = |fail_flush: Vec<(Guid, usize)>, open: &[u64]| {
        let devices = StepRecorder {
            leaves: vec![Guid(101), Guid(102), Guid(103)],
            fail_flush,
            ..StepRecorder::default()
        };
        let configs = [raidz()];
        let mut tops = tops(&configs, 9, true);
        tops[0].leaves.retain(|l| open.contains(&l.guid.0));
        let ub = uberblock(9);
        let commit_ = Commit {
            uberblock: &ub,
            tops: &tops,
            written: &[VdevId(0)],
            start: 0,
            everywhere: false,
            plants: &Plants::default(),
        };
        commit(&devices, &commit_).map(|c| c.failed)
    };
    let all = [101, 102, 103];
    assert_eq!(with(vec![(Guid(101), 0)], &all).unwrap(), [Guid(101)]);
    // Two lost columns are one too many; the second attempt succeeds.
    let two = vec![(Guid(101), 0), (Guid(102), 0)];
    assert_eq!(with(two.clone(), &all).unwrap(), []);
    let twice: Vec<_> = two.iter().copied().chain([(Guid(101), 1), (Guid(102), 1)]).collect();
    assert_eq!(with(twice, &all).unwrap_err().kind(), ErrorKind::Io);
    // A missing device counts as well.
    let missing = vec![(Guid(101), 0), (Guid(101), 1)];
    assert!(with(missing, &[101, 102]).is_err());
    assert_eq!(with(vec![], &[101, 102]).unwrap(), []);
}

// Crashes.

/// The fate of a write that was not flushed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum WriteFate {
    Kept,
    Lost,
    Torn,
}

#[derive(Clone)]
enum TapeStep {
    Write(LeafWrite),
    Flush,
}

/// Records a log that can be replayed up to any point.
#[derive(Default)]
struct Tape(Mutex<Vec<TapeStep>>);

impl LabelDevices for Tape {
    fn write_leaves(&self, writes: Vec<LeafWrite>) -> Vec<Result<()>> {
        let results = writes.iter().map(|_| Ok(())).collect();
        self.0.lock().extend(writes.into_iter().map(TapeStep::Write));
        results
    }

    fn flush(&self, _: &[VdevId]) -> Vec<(Guid, Result<()>)> {
        self.0.lock().push(TapeStep::Flush);
        Vec::new()
    }
}

type Regions = BTreeMap<(Guid, u64), Vec<u8>>;

fn apply(regions: &mut Regions, write: &LeafWrite, fate: WriteFate) {
    let old = regions.get(&(write.leaf, write.offset)).cloned();
    let mut new = write.data.to_vec();
    if fate == WriteFate::Torn {
        // The second half keeps its old content, in whole sectors.
        let half = new.len() / 2 / 512 * 512;
        let old = old.unwrap_or_else(|| vec![0; new.len()]);
        new[half..].copy_from_slice(&old[half..]);
    }
    if fate != WriteFate::Lost {
        regions.insert((write.leaf, write.offset), new);
    }
}

/// Opens the pool as chapter 01 §3.1 and §5.2 require and checks that the state found is
/// one complete txg.
fn check(regions: &Regions, configs: &[VdevConfig], old: u64) -> std::result::Result<u64, String> {
    let (mut all, ashift) = (Vec::new(), configs[0].top.as_ref().unwrap().ashift);
    for top in configs {
        for leaf in top.leaves() {
            for label in 0..LABELS {
                let start = label_offset(PSIZE, label).unwrap();
                for txg in [old, old + 1] {
                    let slot = slot_of_txg(ashift, Txg(txg), false, ScratchState::Unused);
                    let at = start + slot_offset(ashift, slot).unwrap();
                    let found = regions.get(&(leaf.guid, at)).and_then(|b| parse_slot(b, at));
                    all.extend(found.map(|ub| (leaf.guid, ub)));
                }
            }
        }
    }
    let chosen = crate::uberblocks::choose(all, Txg::MAX).map_err(|e| e.to_string())?;
    let txg = chosen.uberblock.txg;
    let labels: [Option<NvList>; LABELS] = std::array::from_fn(|label| {
        let at = label_offset(PSIZE, label).unwrap() + VDEV_PHYS_OFFSET;
        parse_vdev_phys(regions.get(&(chosen.leaf, at))?, at).ok()
    });
    let label = choose_label(&labels, txg).and_then(|l| labels[l].as_ref());
    let name = label.and_then(|l| l.str("name")).ok_or("no label fits the uberblock")?;
    if name != format!("tank{txg}") {
        return Err(format!("uberblock {txg} with the configuration of {name}"));
    }
    let data_is = |guid| regions.get(&(guid, DATA)).is_some_and(|d| d == &vec![txg.0 as u8; 512]);
    if txg.0 > old && !configs.iter().flat_map(VdevConfig::leaves).all(|l| data_is(l.guid)) {
        return Err(format!("uberblock {txg} without the txg's data"));
    }
    Ok(txg.0)
}

/// A committed old txg, then the recorded steps of the next one.
fn story(configs: &[VdevConfig], plants: &Plants) -> (Regions, Vec<TapeStep>) {
    let mut regions = Regions::new();
    let mut tape_of = |txg: u64, plants: &Plants| {
        let tape = Tape::default();
        for leaf in configs.iter().flat_map(VdevConfig::leaves) {
            let data = Buf::copy_of(&[txg as u8; 512]);
            tape.write_leaves(vec![LeafWrite { leaf: leaf.guid, offset: DATA, data }]);
        }
        let (tops, ub) = (tops(configs, txg, true), uberblock(txg));
        let written: Vec<VdevId> = configs.iter().map(|c| VdevId(c.id)).collect();
        let commit_ = Commit {
            uberblock: &ub,
            tops: &tops,
            written: &written,
            start: 0,
            everywhere: false,
            plants,
        };
        assert!(commit(&tape, &commit_).unwrap().written);
        let steps = tape.0.into_inner();
        if txg == 20 {
            for step in &steps {
                if let TapeStep::Write(w) = step {
                    apply(&mut regions, w, WriteFate::Kept);
                }
            }
        }
        steps
    };
    tape_of(20, &Plants::default());
    let steps = tape_of(21, plants);
    (regions, steps)
}

/// The state after a crash before step `cut`: flushed writes are there, the others
/// according to `fate`.
fn crash(
    base: &Regions,
    steps: &[TapeStep],
    cut: usize,
    mut fate: impl FnMut() -> WriteFate,
) -> Regions {
    let mut regions = base.clone();
    let flushed = steps[..cut].iter().rposition(|s| matches!(s, TapeStep::Flush)).unwrap_or(0);
    for (i, step) in steps[..cut].iter().enumerate() {
        if let TapeStep::Write(write) = step {
            let fate = if i < flushed { WriteFate::Kept } else { fate() };
            apply(&mut regions, write, fate);
        }
    }
    regions
}

/// Every cut of a single disk's commit, with every fate of unflushed writes.
fn single_disk(plants: &Plants) -> std::result::Result<usize, String> {
    let configs = [top(0, VdevType::Mirror, 1, 12)];
    let (base, steps) = story(&configs, plants);
    let mut points = 0;
    for cut in 0..=steps.len() {
        let flushed = steps[..cut].iter().rposition(|s| matches!(s, TapeStep::Flush)).unwrap_or(0);
        let open = steps[flushed..cut].iter().filter(|s| matches!(s, TapeStep::Write(_))).count();
        for choice in 0..3usize.pow(open as u32) {
            let mut rest = choice;
            let fate = || {
                let fate = [WriteFate::Kept, WriteFate::Lost, WriteFate::Torn][rest % 3];
                rest /= 3;
                fate
            };
            let txg = check(&crash(&base, &steps, cut, fate), &configs, 20)
                .map_err(|e| format!("cut {cut}, choice {choice}: {e}"))?;
            if cut == steps.len() && txg != 21 {
                return Err("a committed txg is lost".to_owned());
            }
            points += 1;
        }
    }
    Ok(points)
}

#[test]
fn every_crash_of_a_single_disk_leaves_one_txg_complete() {
    assert!(single_disk(&Plants::default()).unwrap() > 100);
}

#[test]
fn planted_bugs_are_found() {
    let early = Plants::default();
    early.uberblock_before_flush.store(true, Relaxed);
    let found = single_disk(&early).unwrap_err();
    assert!(found.contains("without the txg's data") || found.contains("label"), "{found}");
    let order = Plants::default();
    order.labels_in_wrong_order.store(true, Relaxed);
    let found = single_disk(&order).unwrap_err();
    assert!(found.contains("no label fits") || found.contains("configuration of"), "{found}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    /// Mirrors over two vdevs: any cut, any mixture of fates.
    #[test]
    fn random_crashes_of_mirrors(cut in 0usize..200, seed in any::<u64>()) {
        let configs = [top(0, VdevType::Mirror, 2, 9), top(1, VdevType::Mirror, 2, 9)];
        let (base, steps) = story(&configs, &Plants::default());
        let cut = cut % (steps.len() + 1);
        let mut state = seed;
        let fate = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            [WriteFate::Kept, WriteFate::Lost, WriteFate::Torn][(state >> 40) as usize % 3]
        };
        let txg = check(&crash(&base, &steps, cut, fate), &configs, 20);
        prop_assert!(matches!(txg, Ok(20 | 21)), "{txg:?} at cut {cut}");
    }
}

#[test]
fn slots_are_little_endian_whatever_was_read() {
    let ub = Uberblock { endian: Endian::Big, ..uberblock(9) };
    let configs = [top(0, VdevType::Mirror, 1, 9)];
    let tops = tops(&configs, 9, true);
    let tape = Tape::default();
    let commit_ = Commit {
        uberblock: &ub,
        tops: &tops,
        written: &[],
        start: 0,
        everywhere: false,
        plants: &Plants::default(),
    };
    commit(&tape, &commit_).unwrap();
    let steps = tape.0.into_inner();
    let slots = steps.iter().filter_map(|s| match s {
        TapeStep::Write(w) if w.data.len() == 1024 => Some(w),
        _ => None,
    });
    for slot in slots {
        assert_eq!(parse_slot(&slot.data, slot.offset).unwrap().endian, Endian::Little);
    }
}
