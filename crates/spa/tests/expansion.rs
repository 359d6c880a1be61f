//! Raidz vdevs are expanded: their sectors move while the pool is changed; an expansion is
//! continued after an export, a crash and the loss of a device, and refused where it cannot be.
//! OpenZFS's zdb finds no error at any stage, and planted bugs are found.
#![allow(clippy::unwrap_used, clippy::panic, clippy::disallowed_methods, missing_docs)]

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use base::{ErrorKind, VdevId};
use cenote::create::{CreateRequest, Force, NewKind, NewVdev, PoolSetting};
use cenote::inspect::zpl::rw::{Caller, New, WritePosition};
use cenote::{
    AttachMode, AttachRequest, Engine, FileSystem, Io, NewDevice, Offline, OfflineMode, Pool,
    ScanRequest, ScanState,
};
use common::pools::{NAME, image_of, import, leaves, open, verify, whole, writing, zdb};
use device::sim::{Event, Image, SimConfig, SimDisks};
use ondisk::label::{
    LABELS, encode_slot, label_offset, parse_slot, slot_offset, slot_size, usable_size,
};
use spa::audit::{AuditOptions, Verify};
use spa::engine::{ExpansionTuning, Writer, WriterOptions};
use spa::{Search, Spa};
use testkit::{Rng, Scratch};

/// The files are sparse.
const DISK: u64 = 192 << 20;
/// Bytes of a simulated disk.
const SIMULATED: u64 = 72 << 20;

#[derive(Clone, Copy, Debug)]
struct RaidzShape {
    nparity: u32,
    children: usize,
    ashift: u64,
}

const SHAPES: [RaidzShape; 6] = {
    const fn of(nparity: u32, children: usize, ashift: u64) -> RaidzShape {
        RaidzShape { nparity, children, ashift }
    }
    [of(1, 3, 9), of(1, 2, 12), of(2, 4, 12), of(3, 5, 9), of(2, 6, 9), of(3, 4, 12)]
};

impl RaidzShape {
    fn scratch(&self, what: &str) -> Scratch {
        let RaidzShape { nparity, children, ashift } = self;
        Scratch::new(&format!("expansion-{what}-{nparity}-{children}-{ashift}"))
    }

    fn vdev(&self) -> String {
        format!("raidz{}-0", self.nparity)
    }

    fn make(&self, engine: &Engine, dir: &Path, size: u64) -> Arc<Pool> {
        let children =
            (0..self.children).map(|n| NewVdev::new(NewKind::File(new_disk(dir, n, size))));
        let raidz = NewVdev::new(NewKind::Raidz { nparity: self.nparity })
            .with_children(children.collect());
        let request = CreateRequest {
            force: Force::ALL,
            settings: vec![PoolSetting::Stored("ashift", self.ashift)],
            ..CreateRequest::new(NAME, vec![raidz])
        };
        engine.create_pool(&request).unwrap().unwrap()
    }

    /// Attaches one more disk.
    fn expand(&self, engine: &Engine, pool: &Pool, dir: &Path, size: u64) {
        let new = new_disk(dir, self.children, size);
        attach(engine, pool, &self.vdev(), new).unwrap();
    }
}

fn new_disk(dir: &Path, n: usize, size: u64) -> PathBuf {
    let path = dir.join(format!("disk{n}"));
    std::fs::File::create(&path).unwrap().set_len(size).unwrap();
    path
}

fn request(old: &str, new: PathBuf, mode: AttachMode) -> AttachRequest {
    AttachRequest {
        old: old.to_owned(),
        new: Some(NewDevice::Path(NewKind::File(new))),
        mode,
        force: true,
        ashift: None,
        sequential: false,
        command: None,
    }
}

fn attach(engine: &Engine, pool: &Pool, vdev: &str, new: PathBuf) -> base::Result<()> {
    engine.attach(pool, &request(vdev, new, AttachMode::Attach))
}

/// The files of a pool, and what must be in them.
struct MovedFiles {
    fs: Arc<FileSystem>,
    content: BTreeMap<String, Vec<u8>>,
    rng: Rng,
    made: u64,
}

impl MovedFiles {
    fn new(pool: &Pool, seed: u64) -> MovedFiles {
        let fs = pool.dataset(NAME).unwrap().open_fs().unwrap();
        MovedFiles { fs, content: BTreeMap::new(), rng: Rng::new(seed), made: 0 }
    }

    fn write(&mut self) {
        let len = match self.rng.below(4) {
            0 => 512 + self.rng.below(4096),
            1 => 40_000 + self.rng.below(90_000),
            _ => 130_000 + self.rng.below(600_000),
        };
        let mut word = self.rng.number();
        let mut byte = || {
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (word >> 33) as u8
        };
        let data: Vec<u8> = (0..len).map(|_| byte()).collect();
        let name = format!("file{}", self.made);
        self.made += 1;
        let new = New::file(0o644);
        let id = self.fs.make(&Caller::root(), self.fs.root(), name.as_bytes(), &new).unwrap().id;
        self.fs.write(&Caller::root(), id, WritePosition::Offset(0), &data).unwrap();
        self.content.insert(name, data);
    }

    /// Writes a new file, or as much of it as there is room for; whether that is all.
    fn try_write(&mut self, len: usize) -> bool {
        let mut rng = Rng::new(self.made + 1);
        let mut data: Vec<u8> = (0..len / 8).flat_map(|_| rng.number().to_le_bytes()).collect();
        let name = format!("file{}", self.made);
        self.made += 1;
        let (by, root) = (Caller::root(), self.fs.root());
        let full = |e: base::Error| assert_eq!(e.kind(), ErrorKind::NoSpace, "{e}");
        let id = match self.fs.make(&by, root, name.as_bytes(), &New::file(0o644)) {
            Ok(made) => made.id,
            Err(e) => {
                full(e);
                return false;
            }
        };
        let mut at = 0;
        while at < data.len() {
            match self.fs.write(&by, id, WritePosition::Offset(at as u64), &data[at..]) {
                Ok(done) => at += done.bytes as usize,
                Err(e) => {
                    full(e);
                    break;
                }
            }
        }
        let all = at == data.len();
        data.truncate(at);
        self.content.insert(name, data);
        all
    }

    fn any(&mut self) -> Option<String> {
        let at = self.rng.below(self.content.len().max(1) as u64) as usize;
        self.content.keys().nth(at).cloned()
    }

    fn unlink(&mut self) {
        let Some(name) = self.any() else { return };
        self.unlink_file(&name);
    }

    fn unlink_file(&mut self, name: &str) {
        self.fs.unlink(&Caller::root(), self.fs.root(), name.as_bytes()).unwrap();
        self.content.remove(name);
    }

    fn change(&mut self) {
        match (self.rng.below(3), self.any()) {
            (0, _) | (_, None) => self.write(),
            (1, Some(_)) => self.unlink(),
            (_, Some(name)) => {
                let data = self.content.get_mut(&name).unwrap();
                let at = self.rng.below(data.len() as u64) as usize;
                let len = (data.len() - at).min(50_000);
                data[at..at + len].fill(self.rng.number() as u8);
                let id = self.fs.lookup(self.fs.root(), name.as_bytes(), Io::WAIT).unwrap().id;
                let position = WritePosition::Offset(at as u64);
                self.fs.write(&Caller::root(), id, position, &data[at..at + len]).unwrap();
            }
        }
    }
}

/// The expansion waits when this much is copied.
fn hold_after(w: &Writer, bytes: u64) {
    w.expansion_plants().hold_after.store(bytes + 1, Relaxed);
}

fn hold_no_more(w: &Writer) {
    w.expansion_plants().hold_after.store(0, Relaxed);
}

const SMALL: ExpansionTuning = ExpansionTuning { copy: 1 << 20, pause: 0, rows: 4, scrub: false };

fn ended(w: &Writer) {
    testkit::eventually("the expansion ends", || w.expansion().is_none());
    w.sync().unwrap();
}

fn progress(w: &Writer) -> u64 {
    w.expansion().map_or(0, |now| now.offset)
}

fn scrub(pool: &Pool) {
    pool.scan(ScanRequest::Scrub, None).unwrap();
    let over = || pool.status().unwrap().scan.is_some_and(|s| s.state == ScanState::Finished);
    testkit::eventually("the scrub ends", over);
    assert_eq!(pool.status().unwrap().scan.unwrap().errors, 0);
}

fn nightly() -> bool {
    std::env::var_os("CENOTE_NIGHTLY").is_some()
}

/// Sectors move while files are written, changed and removed, over an export in the middle. In
/// the middle and at the end the pool is whole, also without some children.
#[test]
fn vdevs_of_all_kinds_are_expanded() {
    let shapes = if nightly() { &SHAPES[..] } else { &[SHAPES[0], SHAPES[2]] };
    testkit::side_by_side(shapes, |shape| {
        let scratch = shape.scratch("kinds");
        let dir = scratch.path();
        let engine = testkit::engine();
        let pool = shape.make(&engine, dir, DISK);
        let w = pool.writer().unwrap();
        w.set_expansion_tuning(SMALL);
        let mut files = MovedFiles::new(&pool, 3 + shape.ashift);
        (0..60).for_each(|_| files.write());
        (0..20).for_each(|_| files.change());
        w.snapshot(&[format!("{NAME}@before")], &[], None).unwrap();
        let before = files.content.clone();
        let capacity = w.space().vdev_totals(VdevId(0)).unwrap().capacity;
        hold_after(w, 24 << 20);
        shape.expand(&engine, &pool, dir, DISK);
        testkit::eventually("some is copied", || {
            files.change();
            w.sync().unwrap();
            w.expansion().is_some_and(|now| now.copied >= 24 << 20)
        });
        (0..5).for_each(|_| files.change());
        scrub(&pool);
        let content = std::mem::take(&mut files.content);
        drop(files);
        pool.export().unwrap();
        drop(pool);
        whole(dir, "in the middle");
        zdb(dir, NAME);

        let pool = import(dir);
        let w = pool.writer().unwrap();
        w.set_expansion_tuning(SMALL);
        verify(&pool, &format!("{NAME}@before"), &before);
        let mut files = MovedFiles::new(&pool, 4);
        (files.content, files.made) = (content, 1000);
        while w.expansion().is_some() {
            files.change();
            w.sync().unwrap();
        }
        ended(w);
        testkit::eventually("the vdev grows", || {
            w.space().vdev_totals(VdevId(0)).unwrap().capacity > capacity
        });
        // Blocks of the new width.
        (0..20).for_each(|_| files.change());
        scrub(&pool);
        verify(&pool, NAME, &files.content);
        let config = w.published().config;
        let raidz = config.vdev_tree.children[0].raidz.clone().unwrap();
        assert!(!raidz.expanding && raidz.expand_txgs.len() == 1);
        assert_eq!(w.published().uberblock.raidz_reflow_info, 0);
        let content = std::mem::take(&mut files.content);
        drop(files);
        pool.export().unwrap();
        drop(pool);
        whole(dir, "at the end");
        zdb(dir, NAME);
        // Each block is there without any one child, and without as many as there is parity.
        for first in (0..=shape.children).step_by(if nightly() { 1 } else { 2 }) {
            let gone: Vec<PathBuf> = (0..shape.nparity as usize)
                .map(|n| dir.join(format!("disk{}", (first + n) % (shape.children + 1))))
                .collect();
            let away = |path: &PathBuf| path.with_extension("away");
            gone.iter().for_each(|path| std::fs::rename(path, away(path)).unwrap());
            whole(dir, "without some children");
            gone.iter().for_each(|path| std::fs::rename(away(path), path).unwrap());
        }
        let pool = import(dir);
        verify(&pool, NAME, &content);
        pool.export().unwrap();
    });
}

/// A pool on simulated disks whose expansion has begun, and nothing of it is copied yet.
fn begun(shape: &RaidzShape, what: &str, seed: u64) -> (SimDisks, BTreeMap<String, Vec<u8>>) {
    let scratch = shape.scratch(what);
    let dir = scratch.path();
    let engine = testkit::engine();
    let pool = shape.make(&engine, dir, SIMULATED);
    let mut files = MovedFiles::new(&pool, seed);
    let w = pool.writer().unwrap();
    // Of so small a pool it would be half.
    w.plants.slop.store(4 << 20, Relaxed);
    // Some data must be where the scratch phase begins, and little in all.
    let first = || w.space().metaslabs(VdevId(0)).unwrap()[0].free;
    let free = first();
    while first() > free - (3 << 20) {
        (0..20).for_each(|_| files.write());
        pool.sync().unwrap();
    }
    let last = files.made.saturating_sub(20);
    let others = (30..last).map(|n| format!("file{n}"));
    others.for_each(|name| files.unlink_file(&name));
    for _ in 0..4 {
        w.touch();
        w.sync().unwrap();
    }
    assert!(first() < free - (1 << 20));
    w.expansion_plants().hold_before.store(true, Relaxed);
    shape.expand(&engine, &pool, dir, SIMULATED);
    let content = std::mem::take(&mut files.content);
    drop(files);
    pool.export().unwrap();
    drop(pool);
    let image = |n| image_of(&dir.join(format!("disk{n}")));
    let images = (0..=shape.children).map(image).collect();
    (SimDisks::new(SimConfig::new(seed), images), content)
}

/// The events of the scratch phase: from the first write to a boot area until the first rows are
/// at their place.
fn scratch_events(disks: &SimDisks) -> std::ops::Range<u64> {
    let log = disks.log();
    let of_scratch = |(n, event): (usize, &Event)| match event {
        Event::Write { offset, .. } if (512 << 10..4 << 20).contains(offset) => Some(n as u64),
        _ => None,
    };
    let found: Vec<u64> = log.iter().enumerate().filter_map(of_scratch).collect();
    *found.first().unwrap()..found.last().unwrap() + 120
}

fn start(spa: &Spa) -> Arc<Writer> {
    let options = WriterOptions { threads: 1, ..WriterOptions::default() };
    let w = spa.start_writer(options).unwrap();
    // Of so small a pool it would be half.
    w.plants.slop.store(4 << 20, Relaxed);
    w.set_expansion_tuning(SMALL);
    w
}

/// Wherever the power fails, everything is there, and the expansion is continued to its end.
#[test]
fn a_crash_at_any_moment_loses_nothing() {
    let shapes = [SHAPES[0], SHAPES[2], SHAPES[5]];
    let shapes = if nightly() { &shapes[..] } else { &shapes[..1] };
    let (continued, valid) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let taken = [AtomicUsize::new(0), AtomicUsize::new(0)];
    let mut crashes = 0;
    for (n, shape) in shapes.iter().enumerate() {
        let (disks, _) = begun(shape, "crash", 23 + n as u64);
        let spa = open(&leaves(&disks), &writing());
        let w = start(&spa);
        ended(&w);
        w.touch();
        w.sync().unwrap();
        w.stop();
        drop((w, spa));
        let all = disks.crash_points();
        let early = scratch_events(&disks);
        let (few, near) = if nightly() { (2000, 400) } else { (9, 9) };
        let some = |of: Vec<u64>, most: usize| {
            let step = (of.len() / most).max(1);
            of.into_iter().step_by(step).collect::<Vec<u64>>()
        };
        let mut points = some(all.clone(), few);
        points.extend(some(all.into_iter().filter(|e| early.contains(e)).collect(), near));
        let points: Vec<(u64, u64)> =
            points.into_iter().enumerate().map(|(i, event)| (event, i as u64 % 3)).collect();
        crashes += points.len();
        testkit::side_by_side(&points, |&(event, seed)| {
            let quiet = || SimConfig { record: false, ..SimConfig::new(1) };
            let images = disks.crash_image(event, seed).unwrap();
            let audit = |disks: &SimDisks, what: &str| {
                let spa = open(&leaves(disks), &testkit::readonly());
                let verify = Verify::All;
                let options = AuditOptions { threads: 1, verify, ..AuditOptions::default() };
                let report = spa.audit(options, &()).unwrap();
                assert!(
                    report.is_clean(),
                    "{shape:?} {event}:{seed} {what}: {:#?}",
                    report.problems
                );
                (spa.uberblock().raidz_reflow_info >> 55, spa.config().vdev_tree.clone())
            };
            let after = SimDisks::new(quiet(), images);
            let (state, root) = audit(&after, "after the crash");
            let expanding = root.children[0].raidz.as_ref().is_some_and(|r| r.expanding);
            valid.fetch_add(usize::from(state == 1), Relaxed);
            let skipped = AtomicUsize::fetch_add(&taken[usize::from(state == 1)], 1, Relaxed) >= 2;
            if !expanding || (skipped && !nightly()) {
                return;
            }
            let spa = open(&leaves(&after), &writing());
            let w = start(&spa);
            ended(&w);
            w.stop();
            drop((w, spa));
            let (_, root) = audit(&after, "continued");
            assert!(root.children[0].raidz.as_ref().is_some_and(|r| r.expand_txgs.len() == 1));
            continued.fetch_add(1, Relaxed);
        });
    }
    println!("SIMULATED expansion: {crashes} crashes, {valid:?} with a valid scratch area");
    assert!(continued.into_inner() > 3 && valid.into_inner() > 0, "no crash in the middle");
}

/// Each planted bug is found by the audit in the middle, or at the end.
#[test]
fn planted_bugs_are_found() {
    type PlantBug = fn(&Writer);
    let cases: [(&str, PlantBug); 2] = [
        ("a row is skipped", |w| w.expansion_plants().skipped_row.store(true, Relaxed)),
        ("the offset is one row ahead", |w| w.expansion_plants().row_ahead.store(true, Relaxed)),
    ];
    testkit::side_by_side(&cases, |(what, plant)| {
        let shape = SHAPES[0];
        let (disks, _) = begun(&shape, &what.replace(' ', "-"), 31);
        let spa = open(&leaves(&disks), &writing());
        let w = start(&spa);
        plant(&w);
        // So that it stops between two sectors that are used.
        hold_after(&w, (14 << 20) + (2 << 20));
        testkit::eventually("some is copied", || {
            w.touch();
            w.sync().unwrap();
            w.expansion().is_some_and(|now| now.copied >= 16 << 20)
        });
        w.touch();
        w.sync().unwrap();
        let held = disks.current();
        hold_no_more(&w);
        ended(&w);
        w.stop();
        drop((w, spa));
        let found = [held, disks.current()].into_iter().any(|images| {
            let after = SimDisks::new(SimConfig { record: false, ..SimConfig::new(1) }, images);
            let found = spa::discover_in(&Search::default(), &leaves(&after)).unwrap();
            let cache = Arc::new(zio::BlockCache::of(32 << 20).unwrap());
            let (known, options) = (leaves(&after), testkit::readonly());
            let Ok(spa) = Spa::open_in(&found.pools[0], &options, &cache, &known) else {
                return true;
            };
            let options = AuditOptions { verify: Verify::All, ..AuditOptions::default() };
            spa.audit(options, &()).map_or(true, |report| !report.is_clean())
        });
        assert!(found, "{what}");
    });
}

/// An import that does not write what is in the scratch area loses it.
#[test]
fn the_scratch_area_is_needed() {
    let shape = SHAPES[0];
    let (disks, _) = begun(&shape, "scratch", 37);
    let spa = open(&leaves(&disks), &writing());
    let w = start(&spa);
    testkit::eventually("the first rows are written", || progress(&w) > 0);
    w.stop();
    drop((w, spa));
    // In the middle of the writes of the first rows.
    let state = |event: u64| {
        let images = disks.crash_image(event, 2).unwrap();
        let after = SimDisks::new(SimConfig { record: false, ..SimConfig::new(1) }, images);
        let state = open(&leaves(&after), &testkit::readonly()).uberblock().raidz_reflow_info >> 55;
        (state, after)
    };
    let early = scratch_events(&disks);
    let points = disks.crash_points().into_iter().filter(|event| early.contains(event));
    let (_, after) = points.map(state).find(|(state, _)| *state == 1).unwrap();
    for lost in [false, true] {
        let copy = SimDisks::new(SimConfig { record: false, ..SimConfig::new(1) }, after.current());
        let spa = open(&leaves(&copy), &writing());
        let options = WriterOptions { threads: 1, ..WriterOptions::default() };
        options.lost_scratch.store(lost, Relaxed);
        let w = spa.start_writer(options);
        // Without its first rows it may not even start.
        let ended_well = w.is_ok_and(|w| {
            w.plants.slop.store(4 << 20, Relaxed);
            let info = spa.uberblock().raidz_reflow_info;
            assert_eq!(info >> 55, 1);
            w.stop();
            true
        });
        drop(spa);
        let found = spa::discover_in(&Search::default(), &leaves(&copy)).unwrap();
        let cache = Arc::new(zio::BlockCache::of(32 << 20).unwrap());
        let (known, options) = (leaves(&copy), testkit::readonly());
        let options_all = AuditOptions { verify: Verify::All, ..AuditOptions::default() };
        let clean = ended_well
            && Spa::open_in(&found.pools[0], &options, &cache, &known)
                .is_ok_and(|spa| spa.audit(options_all, &()).is_ok_and(|report| report.is_clean()));
        assert_eq!(clean, !lost);
    }
}

/// Progress that no expansion has is refused, or read as far as it goes; nothing panics, and nothing
/// is written.
#[test]
fn impossible_progress_is_refused() {
    let shape = SHAPES[0];
    let (disks, _) = begun(&shape, "hostile", 41);
    let with = |info: u64| -> Vec<Image> {
        let mut images = disks.current();
        for image in &mut images {
            for label in 0..LABELS {
                let start = label_offset(usable_size(image.size()), label).unwrap();
                for slot in 0..usize::MAX {
                    let Some(within) = slot_offset(shape.ashift as u32, slot) else { break };
                    let mut data = vec![0; slot_size(shape.ashift as u32)];
                    image.read(start + within, &mut data).unwrap();
                    if let Some(mut ub) = parse_slot(&data, start + within) {
                        ub.raidz_reflow_info = info;
                        encode_slot(&ub, &mut data, start + within).unwrap();
                        image.write(start + within, &data).unwrap();
                    }
                }
            }
        }
        images
    };
    let words = [
        5 << 55,
        (511 << 55) | 9,
        u64::MAX,
        (4 << 55) | ((1 << 55) - 1),
        (4 << 55) | ((SIMULATED * 4) >> 9),
        (4 << 55) | (1 << 40),
        1 << 55,
        (1 << 55) | 8,
        (1 << 55) | ((1 << 55) - 1),
        (2 << 55) | (3 << 30),
    ];
    for info in words {
        let after = SimDisks::new(SimConfig { record: false, ..SimConfig::new(1) }, with(info));
        let found = spa::discover_in(&Search::default(), &leaves(&after)).unwrap();
        let cache = Arc::new(zio::BlockCache::of(32 << 20).unwrap());
        let known = leaves(&after);
        if let Ok(spa) = Spa::open_in(&found.pools[0], &testkit::readonly(), &cache, &known) {
            let _damaged = spa.audit(AuditOptions::default(), &());
        }
        if let Ok(spa) = Spa::open_in(&found.pools[0], &writing(), &cache, &known) {
            let started = spa.start_writer(WriterOptions::default());
            assert!(started.is_err(), "progress {info:#x}");
        }
        let same = |(a, b): (Image, Image)| a.same(&b, 0, a.size());
        assert!(with(info).into_iter().zip(after.current()).all(same), "progress {info:#x}");
    }
}

/// A device fails in the middle: the expansion waits, and goes on when the device is back, or is
/// replaced. Blocks that were written meanwhile are resilvered to where they are.
#[test]
fn a_device_that_fails_stops_the_expansion() {
    let cases = [(SHAPES[0], true), (SHAPES[2], false)];
    let cases = if nightly() { &cases[..] } else { &cases[1..] };
    testkit::side_by_side(cases, |(shape, back)| {
        let scratch = shape.scratch("fails");
        let dir = scratch.path();
        let engine = testkit::engine();
        let pool = shape.make(&engine, dir, DISK);
        let w = pool.writer().unwrap();
        w.set_expansion_tuning(SMALL);
        let mut files = MovedFiles::new(&pool, 47);
        (0..80).for_each(|_| files.write());
        pool.sync().unwrap();
        hold_after(w, 20 << 20);
        shape.expand(&engine, &pool, dir, DISK);
        testkit::eventually("some is copied", || {
            w.expansion().is_some_and(|now| now.copied >= 20 << 20)
        });
        let disk = |n: usize| dir.join(format!("disk{n}")).to_str().unwrap().to_owned();
        let away = Offline { mode: OfflineMode::Offline, temporary: true };
        engine.offline(&pool, &disk(1), away, None).unwrap();
        hold_no_more(w);
        (0..20).for_each(|_| files.change());
        pool.sync().unwrap();
        let stands = w.expansion().unwrap();
        assert!(stands.waiting, "it waits");
        if *back {
            engine.online(&pool, &disk(1), false, None).unwrap();
        } else {
            let new = new_disk(dir, 9, DISK);
            engine.attach(&pool, &request(&disk(1), new, AttachMode::Replace)).unwrap();
        }
        while w.expansion().is_some() {
            files.change();
            w.sync().unwrap();
        }
        ended(w);
        scrub(&pool);
        verify(&pool, NAME, &files.content);
        drop(files);
        pool.export().unwrap();
        drop(pool);
        whole(dir, "expanded");
    });
}

/// What cannot be is refused in OpenZFS's words, and changes nothing.
#[test]
fn what_cannot_be_is_refused() {
    let shape = SHAPES[0];
    let scratch = shape.scratch("refused");
    let dir = scratch.path();
    let engine = testkit::engine();
    let pool = shape.make(&engine, dir, DISK);
    let w = pool.writer().unwrap();
    let refused = |new: PathBuf| {
        let e = attach(&engine, &pool, &shape.vdev(), new).unwrap_err();
        (e.kind(), e.message().to_owned())
    };
    let small = new_disk(dir, 7, DISK / 2);
    assert_eq!(refused(small), (ErrorKind::Invalid, "device is too small".to_owned()));
    pool.take_checkpoint(None).unwrap();
    assert_eq!(refused(new_disk(dir, 8, DISK)).0, ErrorKind::Busy);
    pool.discard_checkpoint(None).unwrap();
    testkit::eventually("the checkpoint is gone", || {
        w.touch();
        w.sync().unwrap();
        pool.take_checkpoint(None).is_ok() && pool.discard_checkpoint(None).is_ok()
    });
    testkit::eventually("the checkpoint is gone again", || {
        w.touch();
        w.sync().unwrap();
        let new = new_disk(dir, shape.children, DISK);
        w.expansion_plants().hold_before.store(true, Relaxed);
        attach(&engine, &pool, &shape.vdev(), new).is_ok()
    });
    let busy = (ErrorKind::Busy, "raidz expansion in progress".to_owned());
    assert_eq!(refused(new_disk(dir, 9, DISK)), busy);
    let e = pool.take_checkpoint(None).unwrap_err();
    assert_eq!((e.kind(), e.message().to_owned()), busy);
    w.expansion_plants().hold_before.store(false, Relaxed);
    ended(w);
    pool.export().unwrap();
    drop(pool);
    whole(dir, "expanded");
}

/// A disk is added because the vdev is full, or full of small files in small gaps. Writers learn
/// that there is no room as long as the expansion runs; it ends, and then there is room.
#[test]
fn full_and_fragmented_vdevs_are_expanded() {
    // Filling a pool takes a while.
    let all = [(SHAPES[0], false), (SHAPES[0], true), (SHAPES[2], true)];
    let cases = if nightly() { &all[..] } else { &all[..1] };
    testkit::side_by_side(cases, |(shape, fragmented)| {
        let what = format!("{shape:?}, fragmented: {fragmented}");
        let scratch = shape.scratch(if *fragmented { "fragmented" } else { "full" });
        let dir = scratch.path();
        let engine = testkit::engine();
        let pool = shape.make(&engine, dir, SIMULATED);
        let w = pool.writer().unwrap();
        // Of so small a pool it would be half.
        w.plants.slop.store(4 << 20, Relaxed);
        w.set_expansion_tuning(SMALL);
        let mut files = MovedFiles::new(&pool, 23);
        let size = if *fragmented { 12_000 } else { 400_000 };
        while files.try_write(size) {}
        w.sync().unwrap();
        if *fragmented {
            // Gaps of a few sectors, some of which are taken by files of another size.
            let names: Vec<String> = files.content.keys().step_by(5).cloned().collect();
            names.iter().for_each(|name| files.unlink_file(name));
            for _ in 0..4 {
                w.touch();
                w.sync().unwrap();
            }
            while files.try_write(5_000) {}
            w.sync().unwrap();
        }
        let capacity = w.space().vdev_totals(VdevId(0)).unwrap().capacity;
        hold_after(w, 20 << 20);
        shape.expand(&engine, &pool, dir, SIMULATED);
        testkit::eventually("some is copied", || {
            w.touch();
            w.sync().unwrap();
            w.expansion().is_some_and(|now| now.copied >= 20 << 20)
        });
        assert!(!files.try_write(8 << 20), "{what}: there is room in the middle");
        scrub(&pool);
        hold_no_more(w);
        while w.expansion().is_some() {
            if !files.try_write(size) {
                files.unlink();
                files.unlink();
            }
            w.sync().unwrap();
        }
        ended(w);
        testkit::eventually("the vdev grows", || {
            w.touch();
            w.sync().unwrap();
            w.space().vdev_totals(VdevId(0)).unwrap().capacity > capacity
        });
        assert!(files.try_write(8 << 20), "{what}: there is no more room");
        scrub(&pool);
        verify(&pool, NAME, &files.content);
        let content = std::mem::take(&mut files.content);
        drop(files);
        pool.export().unwrap();
        drop(pool);
        whole(dir, &what);
        zdb(dir, NAME);
        let gone: Vec<PathBuf> = (0..shape.nparity).map(|n| dir.join(format!("disk{n}"))).collect();
        gone.iter().for_each(|path| std::fs::remove_file(path).unwrap());
        whole(dir, &what);
        let pool = import(dir);
        verify(&pool, NAME, &content);
        pool.export().unwrap();
    });
}
