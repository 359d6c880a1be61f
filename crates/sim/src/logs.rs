//! Intent logs under the simulator: what `fsync` promised is there after every power cut,
//! before its group is on disk.
//!
//! # Theory
//! Threads append to a file each, make files, and ask for promises; groups come now and then.
//! Each promise is marked in the record of the disks when it was given. The power fails after
//! every event; each time the pool is imported, its log replayed, and what is there compared:
//! names and bytes are beginnings of what each thread did, no shorter than promised. Then the
//! pool must be in order, and nothing in it leaked.
//!
//! # Invariants
//! * A seed decides everything.
//!
//! Lock order: the file system's.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};

use base::rt::sim::{Options, Outcome, Rng, run_with};
use base::rt::{Mutex, fan_out};
use base::{ObjectId, Result, Txg};
use device::sim::{SimDisks, crash_seeds};
use dmu::{Io, Objset, Tx};
use ondisk::objset::ObjsetType;
use spa::ImportOptions;
use spa::engine::{NewDataset, Writer};
use zio::BlockCache;
use zpl::rw::{At, Caller, Host, HostSpace, New, RwProps};
use zpl::{FileSystem, NewFs, Time};

use crate::check;
use crate::pool::{CACHE, POOL, SimLeaves, find, import, make};
use crate::setup::{Layout, Setup, Workload};

/// Operations of a thread.
const OPS: u64 = 14;
/// A mark's kinds, above its thread and its number.
const BYTES: u64 = 1 << 60;
const NAMES: u64 = 2 << 60;

/// A mistake for the simulator to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// None.
    Nothing,
    /// Log blocks are not flushed.
    NoFlush,
    /// Each record is done twice.
    ReplayTwice,
}

fn dataset() -> String {
    format!("{POOL}/fs")
}

struct LogHost {
    writer: Arc<Writer>,
    log: Option<Arc<zil::Log>>,
}

impl Host for LogHost {
    fn begin(&self, bytes: u64, frees: bool) -> Result<Tx> {
        self.writer.begin_wait(bytes, frees)
    }
    fn synced(&self, txg: Txg) -> Result<()> {
        self.writer.txgs().kick(txg);
        self.writer.txgs().wait_synced(txg)
    }
    fn log(&self) -> Option<Arc<zil::Log>> {
        self.log.clone()
    }
    fn now(&self) -> Time {
        let now = base::rt::wall_clock();
        Time { seconds: now.as_secs() as i64, nanoseconds: u64::from(now.subsec_nanos()) }
    }
    fn props(&self) -> Arc<RwProps> {
        Arc::new(RwProps { record_size: 16 << 10, ..RwProps::default() })
    }
    fn space(&self) -> Result<HostSpace> {
        Ok(HostSpace { used: 0, available: self.writer.allocatable(false) })
    }
}

/// Opens the file system; a log that was left is replayed.
fn open(writer: &Arc<Writer>, plant: Plant) -> Result<Arc<FileSystem>> {
    let os = writer.read_dataset(&dataset())?;
    let log = writer.log(&os)?;
    let host = LogHost { writer: Arc::clone(writer), log: log.clone() };
    let fs = FileSystem::open_rw(Arc::clone(&os), Arc::new(host), Io::WAIT)?;
    if let Some(log) = log.filter(|log| log.is_replaying()) {
        writer.for_each_record(&os, &mut |record| {
            log.replaying(record.header.seq);
            if plant == Plant::ReplayTwice {
                fs.replay(record)?;
            }
            fs.replay(record)
        })?;
        log.replaying(0);
        writer.sync()?;
        log.end_replay(writer.blocks_of_log(&os)?)?;
    }
    Ok(fs)
}

fn set_up(
    setup: &Setup,
    disks: &SimDisks,
) -> Result<(Arc<Writer>, Arc<FileSystem>, Vec<ObjectId>)> {
    let writer = make(setup, disks)?;
    let content = Box::new(|os: &Arc<Objset>, tx: &Tx| {
        let props = os.props()?;
        let (count_objects, count_projects) = (props.count_objects, props.count_projects);
        zpl::create::fill(os, tx, &NewFs { count_objects, count_projects, ..NewFs::default() })
    });
    let new = NewDataset {
        name: dataset(),
        kind: ObjsetType::Zfs,
        case_insensitive: false,
        props: Vec::new(),
        content,
    };
    writer.create_dataset(new, None)?;
    let fs = open(&writer, Plant::Nothing)?;
    let mut files = Vec::new();
    for t in 0..setup.threads {
        let name = format!("file-{t}");
        files.push(fs.make(&Caller::root(), fs.root(), name.as_bytes(), &New::file(0o644))?.id);
    }
    writer.sync()?;
    Ok((writer, fs, files))
}

fn byte(thread: u64, at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9).wrapping_add(thread * 77) >> 7) as u8
}

/// Works on one file.
fn work(
    fs: &FileSystem,
    writer: &Writer,
    disks: &SimDisks,
    (seed, thread): (u64, u64),
    file: ObjectId,
) -> Result<()> {
    let mut rng = Rng::stream(seed, 500 + thread);
    let (mut size, mut names) = (0, 0);
    for _ in 0..OPS {
        let promise = |id: ObjectId, size: Option<u64>, names: u64| {
            fs.fsync(id)?;
            disks.mark(NAMES | thread << 40 | names);
            if let Some(size) = size {
                disks.mark(BYTES | thread << 40 | size);
            }
            Ok::<_, base::Error>(())
        };
        match rng.below(10) {
            0..=5 => {
                let most = if rng.one_in(4) { 40_000 } else { 3000 };
                let n = 1 + rng.below(most);
                let data: Vec<u8> = (size..size + n).map(|at| byte(thread, at)).collect();
                fs.write(&Caller::root(), file, At::Offset(size), &data)?;
                size += n;
                if !rng.one_in(3) {
                    promise(file, Some(size), names)?;
                }
            }
            6..=8 => {
                let name = format!("t{thread}-{names}");
                let made =
                    fs.make(&Caller::root(), fs.root(), name.as_bytes(), &New::file(0o600))?;
                names += 1;
                if rng.one_in(2) {
                    promise(made.id, None, names)?;
                }
            }
            _ => drop(writer.sync()?),
        }
    }
    fs.fsync(file)
}

/// A run that was recorded.
pub struct Recorded {
    /// Vdevs, disks, schedule.
    pub setup: Setup,
    /// The disks, with their log.
    pub disks: SimDisks,
    /// The first event after the file system was set up.
    pub start: u64,
    /// What went wrong already while it ran.
    pub failed: Option<String>,
    plant: Plant,
}

/// How many images a run was crashed into, and what went wrong first.
#[derive(Debug, Default)]
pub struct Tally {
    /// Events after which the power failed.
    pub points: u64,
    /// Crash images judged.
    pub images: u64,
    /// Seed, event, seed of the crash, and what is wrong.
    pub failure: Option<(u64, u64, u64, String)>,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.failure {
            None => write!(f, "{} points, {} images", self.points, self.images),
            Some((seed, event, crash, what)) => {
                write!(f, "seed {seed}, crash {event}:{crash}: {what}")
            }
        }
    }
}

/// The setup of a seed.
pub fn setup(seed: u64) -> Setup {
    let mut rng = Rng::stream(seed, 63);
    Setup {
        layout: Layout::ALL[rng.below(Layout::ALL.len() as u64) as usize],
        threads: 1 + rng.below(3) as usize,
        workload: Workload::Mixed,
        ops: OPS as usize,
        ..Setup::varied(seed)
    }
}

fn body(setup: &Setup, disks: &SimDisks, plant: Plant) -> std::result::Result<u64, String> {
    let ready = set_up(setup, disks).map_err(|e| format!("setting up: {e}"))?;
    let (writer, fs, files) = ready;
    writer.plants.no_log_flush.store(plant == Plant::NoFlush, SeqCst);
    let start = disks.events();
    let wrong: Arc<Mutex<Option<String>>> = Arc::default();
    let mut threads = Vec::new();
    for (t, file) in files.into_iter().enumerate() {
        let (fs, writer, disks, seed, wrong) =
            (Arc::clone(&fs), Arc::clone(&writer), disks.clone(), setup.seed, Arc::clone(&wrong));
        let body = move || {
            if let Err(e) = work(&fs, &writer, &disks, (seed, t as u64), file) {
                wrong.lock().get_or_insert(format!("thread {t}: {e}"));
            }
        };
        threads.push(base::rt::spawn(&format!("worker-{t}"), body).map_err(|e| e.to_string())?);
    }
    threads.into_iter().for_each(|t| {
        t.join();
    });
    let wrong = wrong.lock().take();
    drop(fs);
    writer.stop();
    wrong.map_or(Ok(start), Err)
}

fn ended<T>(outcome: Outcome<std::result::Result<T, String>>) -> std::result::Result<T, String> {
    match outcome {
        Outcome::Done(done) => done,
        Outcome::Halted => Err("the run was halted".to_owned()),
        Outcome::Deadlock(who) => Err(format!("deadlock: {who}")),
        Outcome::Panicked { thread, message } => Err(format!("{thread} panicked: {message}")),
        Outcome::Limit(why) => Err(format!("no end: {why}")),
    }
}

/// Runs a seed and records it.
pub fn record(seed: u64, plant: Plant) -> Recorded {
    record_as(setup(seed), plant)
}

/// Runs a seed with other vdevs or threads than follow from it.
pub fn record_as(setup: Setup, plant: Plant) -> Recorded {
    let disks = SimDisks::blank(setup.disks(), setup.layout.disks(), setup.disk_size());
    let (s, d) = (setup.clone(), disks.clone());
    let run = run_with(setup.schedule(), move || body(&s, &d, plant));
    let (failed, start) = match ended(run.outcome) {
        Ok(start) => (None, start),
        Err(why) => (Some(why), 0),
    };
    Recorded { setup, disks, start, failed, plant }
}

/// What the marks before a crash promise of a thread: bytes and names.
fn promised(marks: &[u64], thread: u64) -> (u64, u64) {
    let of = |kind: u64| {
        let mine = marks.iter().filter(|m| **m & !((1 << 40) - 1) == kind | thread << 40);
        mine.map(|m| m & ((1 << 40) - 1)).max().unwrap_or(0)
    };
    (of(BYTES), of(NAMES))
}

fn judge(fs: &FileSystem, threads: usize, marks: &[u64]) -> std::result::Result<(), String> {
    let fail = |e: base::Error| e.to_string();
    for t in 0..threads as u64 {
        let (bytes, names) = promised(marks, t);
        let file = fs.lookup(fs.root(), format!("file-{t}").as_bytes(), Io::WAIT).map_err(fail)?;
        let size = fs.attrs(file.id, Io::WAIT).map_err(fail)?.size;
        if size < bytes {
            return Err(format!("thread {t} was promised {bytes} bytes, {size} are there"));
        }
        let mut at = 0;
        for piece in fs.read(file.id, 0, size as usize, Io::WAIT).map_err(fail)? {
            if let Some(i) = (0..piece.len()).find(|i| piece[*i] != byte(t, at + *i as u64)) {
                return Err(format!("thread {t}: byte {} of {size} is another", at + i as u64));
            }
            at += piece.len() as u64;
        }
        let has = |n: u64| fs.lookup(fs.root(), format!("t{t}-{n}").as_bytes(), Io::WAIT).is_ok();
        let there = (0..=OPS).take_while(|n| has(*n)).count() as u64;
        if there < names {
            return Err(format!("thread {t} was promised {names} names, {there} are there"));
        }
        if let Some(odd) = (there..=OPS).find(|n| has(*n)) {
            return Err(format!("thread {t}: name {odd} without name {there}"));
        }
    }
    Ok(())
}

/// Imports the disks for writing, replays, and judges.
fn mount(
    setup: &Setup,
    disks: &SimDisks,
    marks: &[u64],
    plant: Plant,
) -> std::result::Result<(), String> {
    let fail = |what: &str, e: &dyn fmt::Display| format!("{what}, after a crash: {e}");
    let leaves = SimLeaves::new(disks, &[]);
    let found = find(&leaves).map_err(|e| fail("looking for the pool", &e))?;
    let found = found.ok_or_else(|| "the pool is gone".to_owned())?;
    let cache = Arc::new(BlockCache::of(CACHE).map_err(|e| fail("cache", &e))?);
    let options = ImportOptions { force: true, ..ImportOptions::default() };
    let spa = spa::Spa::open_in(&found, &options, &cache, &leaves)
        .map_err(|f| fail("import for writing", &f.error))?;
    let writer = spa.start_writer(setup.writer()).map_err(|e| fail("writing", &e))?;
    let fs = open(&writer, plant).map_err(|e| fail("replay", &e))?;
    judge(&fs, setup.threads, marks)?;
    writer.sync().map_err(|e| fail("sync", &e))?;
    drop(fs);
    writer.stop();
    let cache = Arc::new(BlockCache::of(CACHE).map_err(|e| fail("cache", &e))?);
    let spa = import(&leaves, &found, &cache, None).map_err(|e| fail("import", &e))?;
    let expect = check::Expect::default();
    check::audit(&spa, &expect).and_then(|()| check::books(&spa)).map_err(|bad| bad.to_string())
}

impl Recorded {
    /// Crashes at one event, replays and judges; now and then the replay is cut as well.
    ///
    /// # Errors
    /// What is wrong.
    pub fn crash(&self, event: u64, seed: u64) -> std::result::Result<(), String> {
        let images = self.disks.crash_image(event, seed).map_err(|e| e.to_string())?;
        let marks = self.disks.marks(event);
        let once = |images, seed: u64| {
            let disks = SimDisks::new(self.setup.disks(), images);
            let (setup, d, marks) = (self.setup.clone(), disks.clone(), marks.clone());
            let (plant, schedule) =
                (self.plant, Options { max_steps: 50_000_000, ..Options::varied(seed) });
            ended(run_with(schedule, move || mount(&setup, &d, &marks, plant)).outcome)?;
            Ok::<_, String>(disks)
        };
        let disks = once(images, self.setup.seed ^ event << 20)?;
        let mut rng = Rng::stream(self.setup.seed, 700 + event);
        if rng.one_in(4) {
            let points = disks.crash_points();
            let at = points[rng.below(points.len() as u64) as usize];
            let seed = rng.below(4);
            let images = disks.crash_image(at, seed).map_err(|e| e.to_string())?;
            once(images, rng.next_u64()).map_err(|e| format!("replay cut at {at}:{seed}: {e}"))?;
        }
        Ok(())
    }

    /// Crashes after every `step`-th event since the file system was set up, with what was not
    /// flushed lost, kept, and in `more` other ways, on `threads` threads.
    pub fn crash_everywhere(&self, step: usize, more: u64, threads: usize) -> Tally {
        let mut tally = Tally::default();
        if let Some(why) = &self.failed {
            tally.failure = Some((self.setup.seed, 0, 0, why.clone()));
            return tally;
        }
        let points = self.disks.crash_points().into_iter().filter(|p| *p >= self.start);
        let points: Vec<u64> = points.step_by(step.max(1)).collect();
        let (next, images, stop) = (AtomicUsize::new(0), AtomicU64::new(0), AtomicBool::new(false));
        let first = Mutex::new(None);
        fan_out(threads.max(1), |_| {
            while let Some(&event) = points.get(next.fetch_add(1, Relaxed)) {
                for seed in crash_seeds(self.setup.seed, event, more) {
                    if stop.load(Relaxed) {
                        return;
                    }
                    images.fetch_add(1, Relaxed);
                    if let Err(what) = self.crash(event, seed) {
                        stop.store(true, Relaxed);
                        first.lock().get_or_insert((self.setup.seed, event, seed, what));
                    }
                }
            }
        });
        tally.points = points.len() as u64;
        tally.images = images.into_inner();
        tally.failure = first.into_inner();
        tally
    }
}
