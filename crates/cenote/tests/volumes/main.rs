//! Volumes are written through the public library, and compared with a vector of bytes; also
//! after power cuts. OpenZFS's zdb finds no error in the result.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "tests have threads")]

mod cuts;
mod logs;
mod sizes;

use std::process::Command;
use std::sync::Arc;

use cenote::create::{CreateRequest, Force, NewKind, NewVdev, PoolSetting};
use cenote::inspect::spa;
use cenote::{Engine, ErrorKind, ImportOptions, Io, Pool, PropData, Volume};
use testkit::{Rng, Scratch, import_from};

const MB: u64 = 1 << 20;
const VOLUME: &str = "tank/vol";

/// A kind of vdev: its name, and the number of disks.
const KINDS: [(&str, usize); 6] =
    [("single", 1), ("mirror", 2), ("raidz1", 3), ("raidz2", 4), ("raidz3", 5), ("draid1", 6)];

struct VolumeRig {
    scratch: Scratch,
    engine: Arc<Engine>,
    pool: Arc<Pool>,
    disks: usize,
}

fn numbers(props: &[(&str, u64)]) -> Vec<(String, PropData)> {
    props.iter().map(|(p, n)| ((*p).to_owned(), PropData::Num(*n))).collect()
}

impl VolumeRig {
    fn of(name: &str, (kind, disks): (&str, usize), ashift: u64, size: u64) -> VolumeRig {
        let scratch = Scratch::new(&format!("volumes-{name}"));
        let leaf = |i| {
            let path = scratch.path().join(format!("d{i}"));
            std::fs::File::create(&path).unwrap().set_len(size).unwrap();
            NewVdev::new(NewKind::File(path))
        };
        let leaves: Vec<NewVdev> = (0..disks).map(leaf).collect();
        let group = |kind| vec![NewVdev::new(kind).with_children(leaves.clone())];
        let vdevs = match kind {
            "mirror" => group(NewKind::Mirror),
            "raidz1" => group(NewKind::Raidz { nparity: 1 }),
            "raidz2" => group(NewKind::Raidz { nparity: 2 }),
            "raidz3" => group(NewKind::Raidz { nparity: 3 }),
            "draid1" => group(NewKind::Draid { nparity: 1, ndata: Some(3), nspares: 1 }),
            _ => leaves,
        };
        let engine = testkit::engine();
        let request = CreateRequest {
            force: Force::ALL,
            settings: vec![
                PoolSetting::Stored("failmode", 1),
                PoolSetting::Stored("ashift", ashift),
            ],
            command: Some("zpool create tank ...".into()),
            ..CreateRequest::new("tank", vdevs)
        };
        let pool = engine.create_pool(&request).unwrap().unwrap();
        VolumeRig { scratch, engine, pool, disks }
    }

    /// On one disk, with a volume of `size` bytes.
    fn new(name: &str, disk: u64, size: u64, block: u32, props: &[(&str, u64)]) -> VolumeRig {
        let rig = VolumeRig::of(name, KINDS[0], 12, disk);
        rig.pool.create_volume(VOLUME, size, Some(block), &numbers(props), None).unwrap();
        rig
    }

    fn volume(&self) -> Arc<Volume> {
        open(&self.pool)
    }

    fn set(&self, props: &[(&str, u64)]) -> base::Result<()> {
        self.pool.set_props(VOLUME, &numbers(props), None)
    }

    fn prop(&self, name: &str) -> u64 {
        match self.pool.dataset(VOLUME).unwrap().prop(name).unwrap().map(|v| v.value) {
            Some(PropData::Num(n)) => n,
            other => panic!("{name}: {other:?}"),
        }
    }

    /// The present content of the disks, as a power cut leaves it.
    fn cut(&self, name: &str) -> Scratch {
        let scratch = Scratch::new(&format!("volumes-cut-{name}"));
        for i in 0..self.disks {
            let disk = format!("d{i}");
            testkit::copy_file(&self.scratch.path().join(&disk), &scratch.path().join(&disk));
        }
        scratch
    }

    /// Exports the pool and checks it.
    fn end(self) {
        let VolumeRig { scratch, engine, pool, .. } = self;
        pool.export().unwrap();
        drop(pool);
        judge(&engine, &scratch);
    }
}

fn open(pool: &Pool) -> Arc<Volume> {
    pool.dataset(VOLUME).unwrap().open_volume().unwrap()
}

fn import(engine: &Engine, scratch: &Scratch) -> Arc<Pool> {
    let options = ImportOptions { force: true, ..ImportOptions::default() };
    import_from(engine, scratch.path(), &options).unwrap()
}

/// Txgs are only written on request.
fn quiet(pool: &Pool) {
    let txgs = pool.writer().unwrap().txgs();
    txgs.set_limits(&txg::Limits { timeout_s: 3600, ..txgs.limits() });
}

fn read(volume: &Volume) -> Vec<u8> {
    let mut out = Vec::new();
    while (out.len() as u64) < volume.size() {
        for piece in volume.read(out.len() as u64, 16 << 20, Io::WAIT).unwrap() {
            out.extend_from_slice(&piece);
        }
    }
    out
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        out.extend_from_slice(&rng.number().to_le_bytes());
    }
    out.truncate(len);
    out
}

fn kind<T>(result: base::Result<T>) -> ErrorKind {
    result.err().expect("it must fail").kind()
}

/// The output of zdb; `None` without zdb.
fn zdb(scratch: &Scratch, args: &[&str]) -> Option<String> {
    let run = Command::new("zdb").args(["-e", "-p"]).arg(scratch.path()).args(args).output();
    let Ok(out) = run else {
        testkit::skip(testkit::Need::Zdb, "zdb is not installed");
        return None;
    };
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let text = text + &String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "zdb {args:?}: {text}");
    Some(text)
}

/// The exported pool's audit and zdb find no error.
fn judge(engine: &Engine, scratch: &Scratch) {
    let pool = import_from(engine, scratch.path(), &testkit::readonly()).unwrap();
    let options =
        spa::audit::AuditOptions { verify: spa::audit::Verify::All, leaks: true, threads: 4 };
    let report = pool.spa().audit(options, &()).unwrap();
    assert!(report.is_clean(), "{report:?}");
    drop(pool);
    if let Some(text) = zdb(scratch, &["-bcc", "tank"]) {
        assert!(text.contains("No leaks"), "{text}");
    }
}

/// A volume, and what it must contain.
struct Modelled {
    volume: Arc<Volume>,
    model: Vec<u8>,
    /// Bytes that changed since the last flush.
    loose: Vec<bool>,
    rng: Rng,
}

impl Modelled {
    fn new(volume: Arc<Volume>, seed: u64) -> Modelled {
        let len = volume.size() as usize;
        let (model, loose) = (read(&volume), vec![false; len]);
        Modelled { volume, model, loose, rng: Rng::new(seed) }
    }

    fn range(&mut self, most: u64) -> std::ops::Range<usize> {
        let size = self.model.len() as u64;
        let len = 1 + self.rng.below(most.min(size));
        // Half of the ranges are of whole sectors or blocks.
        let unit = [1, 512, 4096, self.volume.block_size()][self.rng.index(4)];
        let at = self.rng.below(size - len + 1) / unit * unit;
        let end = (at + len.next_multiple_of(unit)).min(size);
        at as usize..end as usize
    }

    fn changed(&mut self, range: std::ops::Range<usize>) {
        self.loose[range].fill(true);
    }

    fn step(&mut self, step: u64) {
        match self.rng.below(10) {
            0 => {
                let range = self.range(600_000);
                let (at, len) = (range.start as u64, range.len() as u64);
                self.volume.discard(at, len).unwrap();
                let block = self.volume.block_size();
                let (first, past) = (at.div_ceil(block) * block, (at + len) / block * block);
                if first < past {
                    self.model[first as usize..past as usize].fill(0);
                    self.changed(first as usize..past as usize);
                }
            }
            1 => {
                let range = self.range(300_000);
                self.volume.zero(range.start as u64, range.len() as u64).unwrap();
                self.model[range.clone()].fill(0);
                self.changed(range);
            }
            2 => self.write(step, 1_500_000),
            3 | 4 => self.write(step, 100_000),
            _ => self.write(step, 9_000),
        }
    }

    fn write(&mut self, step: u64, most: u64) {
        let range = self.range(most);
        let mut data = noise(step, range.len());
        if step.is_multiple_of(3) {
            // Compressible.
            data.chunks_mut(700).for_each(|c| c.fill(step as u8));
        }
        self.volume.write(range.start as u64, &data).unwrap();
        self.model[range.clone()].copy_from_slice(&data);
        self.changed(range);
    }

    fn flush(&mut self) {
        self.volume.flush().unwrap();
        self.loose.fill(false);
    }

    fn check(&self) {
        assert!(read(&self.volume) == self.model, "the volume differs from the model");
    }
}

#[test]
fn writers_of_one_volume_do_not_disturb_each_other() {
    let rig = VolumeRig::new("many", 256 * MB, 16 * MB, 16 << 10, &[]);
    let volume = rig.volume();
    // Stripes of 1,000 bytes: neighbours share blocks.
    const STRIPE: usize = 1000;
    std::thread::scope(|scope| {
        for thread in 0..6usize {
            let volume = &volume;
            scope.spawn(move || {
                for round in 0..120usize {
                    let at = ((round * 37 % 400) * 6 + thread) * STRIPE;
                    let data = vec![(thread * 40 + round % 40) as u8 + 1; STRIPE];
                    volume.write(at as u64, &data).unwrap();
                    if round % 17 == thread {
                        volume.flush().unwrap();
                    }
                    let seen = volume.read(at as u64, STRIPE, Io::WAIT).unwrap();
                    let seen: Vec<u8> = seen.iter().flat_map(|b| b.iter().copied()).collect();
                    assert!(seen == data, "thread {thread}, round {round}");
                }
            });
        }
    });
    volume.flush().unwrap();
    drop(volume);
    rig.end();
}

#[test]
fn snapshots_and_read_only_volumes_are_not_written() {
    let rig = VolumeRig::new("snapshot", 128 * MB, 4 * MB, 8 << 10, &[]);
    let volume = rig.volume();
    volume.write(0, &noise(1, 100_000)).unwrap();
    rig.pool.snapshot(&[format!("{VOLUME}@s")], &[], None).unwrap();
    let snapshot = rig.pool.dataset(&format!("{VOLUME}@s")).unwrap().open_volume().unwrap();
    assert!(!snapshot.is_writable());
    let before = read(&snapshot);
    assert_eq!(before[..100_000], noise(1, 100_000));
    assert_eq!(kind(snapshot.write(0, b"x")), ErrorKind::ReadOnly);
    assert_eq!(kind(snapshot.discard(0, 8 << 10)), ErrorKind::ReadOnly);
    assert_eq!(kind(snapshot.zero(0, 1)), ErrorKind::ReadOnly);
    snapshot.flush().unwrap();
    volume.zero(0, 50_000).unwrap();
    volume.write(99_000, b"later").unwrap();
    volume.flush().unwrap();
    assert!(read(&snapshot) == before);
    rig.set(&[("readonly", 1)]).unwrap();
    assert!(!volume.is_writable());
    assert_eq!(kind(volume.write(0, b"x")), ErrorKind::ReadOnly);
    rig.set(&[("readonly", 0)]).unwrap();
    volume.write(0, b"x").unwrap();
    // Past the end.
    assert_eq!(kind(volume.write(4 * MB - 1, b"xy")), ErrorKind::NoSpace);
    assert_eq!(kind(volume.write(u64::MAX, b"xy")), ErrorKind::NoSpace);
    assert_eq!(kind(volume.discard(4 * MB, 1)), ErrorKind::NoSpace);
    drop((volume, snapshot));
    rig.end();
}

#[test]
fn a_full_pool_refuses_and_holes_make_room() {
    let rig = VolumeRig::new("full", 80 * MB, 512 * MB, 64 << 10, &[("compression", 2)]);
    let volume = rig.volume();
    let data = noise(5, MB as usize);
    let mut wrote = 0;
    let refused = loop {
        match volume.write(wrote * MB, &data) {
            Ok(()) => wrote += 1,
            Err(e) => break e,
        }
    };
    assert_eq!(refused.kind(), ErrorKind::NoSpace);
    assert!(wrote > 20, "{wrote} MiB");
    volume.flush().unwrap();
    volume.discard(0, 16 * MB).unwrap();
    rig.pool.writer().unwrap().sync().unwrap();
    for at in 0..8 {
        volume.write(at * MB, &data).unwrap();
    }
    volume.flush().unwrap();
    rig.pool.writer().unwrap().sync().unwrap();
    // A quota is exhausted before the pool is.
    let referenced = rig.prop("referenced");
    rig.set(&[("refquota", referenced + MB)]).unwrap();
    let refused = (0..64).find_map(|at| volume.write((100 + at) * MB, &data).err());
    assert_eq!(refused.map(|e| e.kind()), Some(ErrorKind::Quota));
    drop(volume);
    rig.end();
}

/// A volume that is rolled back was written on through its old handle: the restored content was
/// hidden behind an object set whose blocks were freed.
#[test]
fn snapshots_clones_and_rollback() {
    for ashift in [9, 12] {
        let rig = VolumeRig::of(&format!("rollback{ashift}"), KINDS[2], ashift, 96 * MB);
        rig.pool.create_volume(VOLUME, 8 * MB, Some(8192), &[], None).unwrap();
        let volume = rig.volume();
        let first = noise(1, 3 * MB as usize);
        volume.write(MB, &first).unwrap();
        volume.flush().unwrap();
        let snapshot = format!("{VOLUME}@one");
        rig.pool.snapshot(std::slice::from_ref(&snapshot), &[], None).unwrap();
        let kept = read(&volume);
        volume.write(2 * MB, &noise(2, 4 * MB as usize)).unwrap();
        volume.discard(0, 2 * MB).unwrap();
        volume.flush().unwrap();
        // A clone has the snapshot's content, and a life of its own.
        rig.pool.clone_snapshot(&snapshot, "tank/clone", &[], None).unwrap();
        let clone = rig.pool.dataset("tank/clone").unwrap().open_volume().unwrap();
        assert!(read(&clone) == kept);
        clone.write(0, &noise(3, 70_000)).unwrap();
        clone.flush().unwrap();
        rig.pool.rollback(&snapshot, None).unwrap();
        assert!(volume.write(0, &[1; 8192]).is_err(), "the old handle still writes");
        drop(volume);
        let volume = rig.volume();
        assert!(read(&volume) == kept, "ashift {ashift}");
        volume.write(0, &noise(4, 8192)).unwrap();
        rig.pool.promote("tank/clone", None).unwrap();
        let of_snapshot = rig.pool.dataset("tank/clone@one").unwrap().open_volume().unwrap();
        assert!(read(&of_snapshot) == kept);
        assert!(of_snapshot.write(0, &[1; 512]).is_err());
        drop((volume, clone, of_snapshot));
        rig.end();
    }
}
