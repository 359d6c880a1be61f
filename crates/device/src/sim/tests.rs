use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use base::rt::sim::Outcome;
use base::rt::{self, OneShot};
use base::{Buf, BufMut};
use proptest::prelude::*;

use super::*;
use crate::op::{read_blocking, submit_and_wait};

const SECTOR: usize = 512;
const SIZE: u64 = 1 << 20;

/// Sectors whose content identifies the write.
fn sectors(tag: u64, count: usize) -> Buf {
    let mut buf = BufMut::zeroed(count * SECTOR);
    for (i, sector) in buf.chunks_mut(SECTOR).enumerate() {
        sector[..8].copy_from_slice(&tag.to_le_bytes());
        sector[SECTOR - 8..].copy_from_slice(&(tag * 1000 + i as u64).to_le_bytes());
    }
    buf.freeze()
}

fn write(at: u64, buf: Buf) -> Io {
    Io::Write { offset: at * SECTOR as u64, bufs: vec![buf] }
}

fn ok(dev: &dyn Device, io: Io) {
    dev.run(io).result.unwrap();
}

fn tag_at(image: &Image, sector: u64) -> u64 {
    let mut bytes = [0; 8];
    image.read(sector * SECTOR as u64, &mut bytes).unwrap();
    u64::from_le_bytes(bytes)
}

fn one_disk(config: SimConfig) -> (SimDisks, Arc<SimDevice>) {
    let disks = SimDisks::blank(config, 1, SIZE);
    let dev = disks.device(0).unwrap();
    (disks, dev)
}

#[derive(Clone, Debug)]
enum SimStep {
    Write { at: u64, parts: Vec<usize> },
    Trim { at: u64, len: u64 },
    Flush,
    Read { at: u64, len: u64 },
}

fn steps() -> impl Strategy<Value = Vec<SimStep>> {
    let step = prop_oneof![
        6 => (0u64..40, prop::collection::vec(1usize..6, 1..4))
            .prop_map(|(at, parts)| SimStep::Write { at, parts }),
        1 => (0u64..40, 1u64..12).prop_map(|(at, len)| SimStep::Trim { at, len }),
        2 => Just(SimStep::Flush),
        2 => (0u64..40, 1u64..20).prop_map(|(at, len)| SimStep::Read { at, len }),
    ];
    prop::collection::vec(step, 1..40)
}

/// The naive model: for each sector, the contents that it may have after a crash. The
/// first is durable; the last is what reads see.
type Versions = BTreeMap<u64, Vec<Vec<u8>>>;

fn push(model: &mut Versions, sector: u64, bytes: &[u8]) {
    model.entry(sector).or_insert_with(|| vec![vec![0; SECTOR]]).push(bytes.to_vec());
}

/// Runs the steps; returns the model after each event.
fn play(dev: &SimDevice, disks: &SimDisks, steps: &[SimStep]) -> BTreeMap<u64, Versions> {
    let mut model = Versions::new();
    let mut history = BTreeMap::from([(0, model.clone())]);
    for (tag, step) in steps.iter().enumerate() {
        let before = disks.events();
        match step {
            SimStep::Write { at, parts } => {
                let part = |(i, &n)| sectors((tag * 10 + i + 1) as u64, n);
                let bufs: Vec<_> = parts.iter().enumerate().map(part).collect();
                let all: Vec<u8> = bufs.iter().flat_map(|b| b.to_vec()).collect();
                for (i, bytes) in all.chunks(SECTOR).enumerate() {
                    push(&mut model, at + i as u64, bytes);
                }
                ok(dev, Io::Write { offset: at * SECTOR as u64, bufs });
            }
            SimStep::Trim { at, len } => {
                (*at..at + len).for_each(|s| push(&mut model, s, &[0; SECTOR]));
                ok(dev, Io::Trim { offset: at * SECTOR as u64, len: len * SECTOR as u64 });
            }
            SimStep::Flush => {
                ok(dev, Io::Flush);
                // Until the completion is reported, nothing is certain.
                history.insert(before + 1, model.clone());
                model.values_mut().for_each(|v| drop(v.drain(..v.len() - 1)));
            }
            SimStep::Read { at, len } => {
                let got = read_blocking(dev, at * SECTOR as u64, *len as usize * SECTOR).unwrap();
                for (i, bytes) in got.chunks(SECTOR).enumerate() {
                    let want = model.get(&(at + i as u64)).and_then(|v| v.last());
                    assert_eq!(bytes, want.map_or(&[0; SECTOR][..], |v| v));
                }
                continue;
            }
        }
        history.entry(before + 1).or_insert_with(|| model.clone());
        history.insert(disks.events(), model.clone());
    }
    history
}

fn sector_of(image: &Image, sector: u64) -> Vec<u8> {
    let mut bytes = vec![0; SECTOR];
    image.read(sector * SECTOR as u64, &mut bytes).unwrap();
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Reads see the last write. After a crash each sector has one of the contents that
    /// the naive model allows; seed 0 gives the oldest and seed 1 the newest.
    #[test]
    fn crashes_leave_what_the_model_allows(steps in steps(), seed: u64, record: bool) {
        let config = SimConfig { record: true, ..SimConfig::new(seed) };
        let (disks, dev) = one_disk(config);
        let history = play(&dev, &disks, &steps);
        prop_assert_eq!(disks.overlaps(), 0);
        for (event, model) in history {
            for crash in crash_seeds(seed, event, 6) {
                let image = disks.crash_image(event, crash).unwrap().remove(0);
                for sector in 0..70 {
                    let got = sector_of(&image, sector);
                    let zero = vec![vec![0; SECTOR]];
                    let may = model.get(&sector).unwrap_or(&zero);
                    match crash {
                        0 => prop_assert_eq!(&got, &may[0], "sector {}", sector),
                        1 => prop_assert_eq!(&got, &may[may.len() - 1], "sector {}", sector),
                        _ => prop_assert!(may.contains(&got), "sector {}", sector),
                    }
                }
                prop_assert_eq!(&image, &disks.crash_image(event, crash).unwrap()[0]);
            }
        }
        if !record {
            let config = SimConfig { record: false, ..SimConfig::new(seed) };
            let (other, dev) = one_disk(config);
            play(&dev, &other, &steps);
            let end = disks.events();
            prop_assert_eq!(other.crash_image(end, 5).unwrap(), disks.crash_image(end, 5).unwrap());
            prop_assert!(end == 0 || other.crash_point(end - 1).is_err());
        }
    }

    /// Compares with a vector.
    #[test]
    fn an_image_is_a_vector(
        edits in prop::collection::vec((0u64..3_000_000, 0usize..20_000, 0u8..4), 1..20)
    ) {
        let size = 3_020_001;
        let (mut image, mut model) = (Image::new(size), vec![0u8; size as usize]);
        let blank = image.clone();
        for (at, len, byte) in edits {
            let range = at as usize..at as usize + len;
            if byte == 3 {
                image.zero(at, len).unwrap();
                model[range].fill(0);
            } else {
                image.write(at, &vec![byte; len]).unwrap();
                model[range].fill(byte);
            }
        }
        let mut got = vec![9; size as usize];
        image.read(0, &mut got).unwrap();
        prop_assert!(got == model);
        prop_assert_eq!(blank.allocated(), 0);
        prop_assert!(image.write(size, &[1]).is_err() && image.read(u64::MAX, &mut [1]).is_err());
    }
}

#[test]
fn every_allowed_outcome_of_a_crash_happens() {
    let (disks, dev) = one_disk(SimConfig::new(1));
    ok(&*dev, write(0, sectors(1, 2)));
    ok(&*dev, Io::Flush);
    ok(&*dev, write(0, sectors(2, 2)));
    ok(&*dev, write(1, sectors(3, 2)));
    let mut seen = HashSet::new();
    for seed in 0..6000 {
        let image = disks.crash_image(disks.events(), seed).unwrap().remove(0);
        seen.insert((tag_at(&image, 0), tag_at(&image, 1), tag_at(&image, 2)));
    }
    // Two possible contents of the first sector, three of the second, two of the third.
    assert_eq!(seen.len(), 12, "{seen:?}");
}

#[test]
fn stale_and_misdirected_crashes_break_the_rules_that_others_keep() {
    let (disks, dev) = one_disk(SimConfig::new(1));
    for tag in 1..4 {
        ok(&*dev, write(7, sectors(tag, 1)));
    }
    let point = disks.crash_point(disks.events()).unwrap();
    let stale = CrashOptions { stale: true, ..CrashOptions::default() };
    let all = |options: &CrashOptions| -> HashSet<u64> {
        (1..2).chain(50..400).map(|s| tag_at(&point.image(s, options).unwrap()[0], 7)).collect()
    };
    assert_eq!(all(&stale), HashSet::from([0, 1, 2, 3]));
    assert_eq!(tag_at(&point.image(1, &CrashOptions::default()).unwrap()[0], 7), 3);
    assert!((0..50).any(|_| tag_at(&point.image(1, &stale).unwrap()[0], 7) != 3));
    let astray = CrashOptions { misdirected: 1, ..CrashOptions::default() };
    let image = point.image(1, &astray).unwrap().remove(0);
    let tags: Vec<_> = (0..SIZE / 512).map(|s| tag_at(&image, s)).filter(|&t| t > 0).collect();
    assert_eq!(tags.len(), 3);
    assert_eq!(tag_at(&image, 7), 0);
}

#[test]
fn faults_have_their_effects() {
    let (disks, dev) = one_disk(SimConfig::new(3));
    ok(&*dev, write(0, sectors(1, 4)));
    ok(&*dev, Io::Flush);
    let always = |faults| disks.set_faults(0, faults);
    always(Faults { read_errors: 1, write_errors: 1, flush_errors: 1, ..Faults::default() });
    assert!(read_blocking(&*dev, 0, 512).is_err());
    assert!(dev.run(Io::Flush).result.is_err());
    assert!(dev.run(write(0, sectors(2, 64))).result.is_err());
    always(Faults { stale_reads: 1, ..Faults::default() });
    let old = read_blocking(&*dev, 0, 4 * SECTOR).unwrap();
    assert_eq!(&*old, &*sectors(1, 4));
    always(Faults::default());
    let image = disks.current().remove(0);
    let failed = (0..64).filter(|&s| tag_at(&image, s) == 2).count();
    assert!(failed > 10 && failed < 54, "{failed}");

    always(Faults { misdirected: 1, ..Faults::default() });
    ok(&*dev, write(100, sectors(9, 1)));
    let image = disks.current().remove(0);
    assert_eq!(tag_at(&image, 100), 0);
    assert_eq!((0..SIZE / 512).filter(|&s| tag_at(&image, s) == 9).count(), 1);

    always(Faults { lying_flushes: 1, ..Faults::default() });
    ok(&*dev, write(200, sectors(8, 1)));
    ok(&*dev, Io::Flush);
    assert_eq!(tag_at(&disks.crash_image(disks.events(), 0).unwrap()[0], 200), 0);
    always(Faults::default());
    ok(&*dev, Io::Flush);
    assert_eq!(tag_at(&disks.crash_image(disks.events(), 0).unwrap()[0], 200), 8);
    assert!(dev.run(Io::Write { offset: 1, bufs: vec![sectors(1, 1)] }).result.is_err());
    assert!(dev.run(write(SIZE / 512, sectors(1, 1))).result.is_err());
}

#[test]
fn disks_come_and_go_and_the_power_fails_as_planned() {
    let disks = SimDisks::blank(SimConfig::new(4), 2, SIZE);
    let (a, b) = (disks.device(0).unwrap(), disks.device(1).unwrap());
    assert!(disks.device(2).is_none());
    disks.schedule(2, Action::Drop { disk: 0 });
    disks.schedule(5, Action::Return { disk: 0 });
    ok(&*a, write(0, sectors(1, 1)));
    assert!(a.run(Io::Flush).result.is_err());
    assert!(disks.crash_point(3).unwrap().is_dropped(0));
    ok(&*b, write(0, sectors(2, 1)));
    assert_eq!(disks.events(), 6);
    ok(&*a, Io::Flush);
    disks.mark(77);
    let calls = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&calls);
    disks.on_crash(Arc::new(move || {
        count.fetch_add(1, SeqCst);
    }));
    disks.schedule(10, Action::Crash);
    let result = b.run(write(1, sectors(3, 1))).result;
    assert!(result.is_err() && disks.crashed());
    assert!(b.run(Io::Flush).result.is_err() && read_blocking(&*a, 0, 512).is_err());
    disks.mark(78);
    assert_eq!((disks.events(), calls.load(SeqCst)), (10, 1));
    assert_eq!((disks.marks(8), disks.marks(9)), (vec![], vec![77]));
    assert_eq!(disks.crash_points(), [0, 1, 3, 4, 6, 8, 9, 10]);
    let again = disks.crash_image(10, 1).unwrap();
    assert_eq!((tag_at(&again[0], 0), tag_at(&again[1], 0), tag_at(&again[1], 1)), (1, 2, 3));
}

fn late(seed: u64) -> SimConfig {
    let latency = Latency::Late { min: Duration::from_micros(5), max: Duration::from_micros(300) };
    SimConfig { latency, ..SimConfig::new(seed) }
}

#[test]
fn a_flush_does_not_cover_writes_in_flight() {
    let run = rt::sim::run(5, || {
        let (disks, dev) = one_disk(late(1));
        let slots: Vec<_> = (0..20).map(|_| Arc::new(OneShot::new())).collect();
        let order = Arc::new(rt::Mutex::new(Vec::new()));
        let op = |i: u64| {
            let (slot, order) = (Arc::clone(&slots[i as usize]), Arc::clone(&order));
            Op::new(write(i, sectors(i + 1, 1)), move |c: Completion| {
                order.lock().push(i);
                slot.set(c.result.is_ok());
            })
        };
        dev.submit((0..20).map(op).collect());
        let overlapping = Op::new(write(19, sectors(50, 1)), |_| {});
        dev.submit(vec![overlapping]);
        assert!(dev.run(Io::Flush).result.is_ok());
        assert!(slots.iter().all(|s| s.wait()));
        assert_eq!(disks.overlaps(), 1);
        let durable = disks.crash_image(disks.events(), 0).unwrap().remove(0);
        let safe = (0..20).filter(|&s| tag_at(&durable, s) != 0).count();
        let order = order.lock().clone();
        (safe, order.is_sorted(), order.len())
    });
    let (safe, sorted, len) = run.outcome.done().unwrap();
    assert!(safe < 20 && !sorted && len == 20, "{safe}");
}

/// Writers that each write, flush and mark what is durable.
fn writers(disks: &SimDisks) {
    let write_some = |w: u64| {
        let (disks, dev) = (disks.clone(), disks.device((w % 2) as usize).unwrap());
        let job = move || {
            for round in 0..15 {
                let tag = 1 + w * 100 + round;
                let batch = (0..3).map(|i| write(w * 100 + i, sectors(tag, 1))).collect();
                let failed = submit_and_wait(&*dev, batch).iter().any(|c| c.result.is_err());
                if failed || dev.run(Io::Flush).result.is_err() {
                    return;
                }
                disks.mark(tag);
            }
        };
        rt::spawn("writer", job).unwrap()
    };
    let all: Vec<_> = (0..4).map(write_some).collect();
    all.into_iter().for_each(|t| t.join().unwrap());
}

/// Data marked as durable survives every crash, and a run that is cut at an event
/// leaves the same content as the log of the whole run predicts.
#[test]
fn a_cut_run_and_a_recorded_run_agree() {
    for (seed, config) in [(1, late(1)), (2, SimConfig::new(2)), (3, late(3))] {
        let whole = SimDisks::blank(config.clone(), 2, SIZE);
        let own = whole.clone();
        assert_eq!(rt::sim::run(seed, move || writers(&own)).outcome, Outcome::Done(()));
        assert!(whole.events() > 400);
        for event in (0..whole.events()).step_by(13) {
            for crash in crash_seeds(seed, event, 4) {
                let images = whole.crash_image(event, crash).unwrap();
                for tag in whole.marks(event) {
                    let w = (tag - 1) / 100;
                    for i in 0..3 {
                        let found = tag_at(&images[(w % 2) as usize], w * 100 + i);
                        assert!(found >= tag && found < (w + 1) * 100, "{found} for {tag}");
                    }
                }
            }
            let cut = SimDisks::blank(config.clone(), 2, SIZE);
            cut.on_crash(Arc::new(rt::sim::halt));
            cut.schedule(event, Action::Crash);
            let own = cut.clone();
            let run = rt::sim::run(seed, move || writers(&own));
            assert_eq!((cut.events(), run.stuck.len()), (event, 0));
            assert!(event == 0 || run.outcome == Outcome::Halted);
            let images = whole.crash_image(event, seed).unwrap();
            assert_eq!(cut.crash_image(event, seed).unwrap(), images, "event {event}");
        }
    }
}

#[test]
fn late_completions_work_without_a_simulated_run() {
    let (disks, dev) = one_disk(late(9));
    let batch = (0..30).map(|i| write(i, sectors(i + 1, 1))).collect();
    assert!(submit_and_wait(&*dev, batch).iter().all(|c| c.result.is_ok()));
    ok(&*dev, Io::Flush);
    let image = disks.crash_image(disks.events(), 0).unwrap().remove(0);
    assert!((0..30).all(|i| tag_at(&image, i) == i + 1));
    assert_eq!(dev.stats().snapshot().in_flight, 0);
}

#[test]
fn images_go_to_sparse_files() {
    let (disks, dev) = one_disk(SimConfig::new(1));
    ok(&*dev, write(5, sectors(6, 3)));
    ok(&*dev, write(1500, sectors(7, 3)));
    let dir = std::env::temp_dir().join(format!("cenote-sim-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let images = disks.current();
    let files = write_files(&images, &dir).unwrap();
    let bytes = std::fs::read(&files[0]).unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
    let mut wanted = vec![0; SIZE as usize];
    images[0].read(0, &mut wanted).unwrap();
    assert!(bytes == wanted && images[0].allocated() < 20_000);
}

/// Crash images of a run with thousands of writes; the test prints the measured time.
#[test]
fn crash_images_are_cheap() {
    let disks = SimDisks::blank(SimConfig::new(1), 2, 256 << 20);
    let devs = disks.devices();
    let mut rng = super::Rng::new(5);
    for round in 0..40u64 {
        for _ in 0..100 {
            let at = rng.below((256 << 20) / 512 - 64);
            ok(
                &*devs[(round % 2) as usize],
                write(at, sectors(round + 1, 1 + rng.below(16) as usize)),
            );
        }
        devs.iter().for_each(|d| ok(&**d, Io::Flush));
    }
    let began = rt::now();
    let (mut images, mut bytes) = (0u32, 0);
    for event in (0..disks.events()).step_by(7) {
        for seed in crash_seeds(1, event, 0) {
            bytes += disks.crash_image(event, seed).unwrap()[0].size();
            images += 1;
        }
    }
    let took = began.elapsed();
    assert_eq!(bytes, u64::from(images) * (256 << 20));
    println!("CRASHES {images} images of two disks, {:?} each", took / images);
    assert!(took / images < Duration::from_millis(20));
}
