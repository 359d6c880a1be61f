//! Intent logs under the simulator: changes acknowledged by `fsync` are there after every
//! power cut, before their txg is on disk.
//!
//! # Theory
//! Threads append to a file each, make files with content, overwrite another file and set
//! an extended attribute of that. In some runs ([`cloning`]) they also copy the first file to a
//! twin, which shares its blocks, as far as they are on disk. They make the changes durable by `fsync`, or with
//! `sync=always` by each call; txgs are written occasionally. A seed in three has
//! `logbias=throughput`, one in two has extended attributes in hidden directories (`over`).
//! Each acknowledgement is marked in the record of the disks when it was given. The power
//! fails after every event. Each time the pool is imported, its log replayed, and the
//! result compared: names and bytes are prefixes of each thread's changes, no shorter than
//! acknowledged. Then the pool must be consistent, without leaks. The replay is cut, too,
//! at any of its steps, and the next one must have the same result.
//!
//! The result of a replay depends on the txg on disk and the log behind it. Both are read,
//! and the txg audited, for every image. Only the first image of each txg and each end of
//! its log is replayed. The others are compared with its result.
//!
//! # Invariants
//! * A seed decides everything.
//!
//! Lock order: the file system's.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};

use base::rt::sim::{Options, Rng, run_with};
use base::rt::{Mutex, fan_out, plain};
use base::{ObjectId, Result, Txg};
use device::sim::{Action, Image, SimDisks};
use dmu::{Io, OutagePolicy, Tx};
use spa::engine::Writer;
use spa::{ImportOptions, Spa};
use zio::BlockCache;
use zpl::rw::{Caller, Host, HostSpace, New, RwProps, SetHow, WritePosition, XattrForm};
use zpl::{FileSystem, Time};

use crate::check;
use crate::everywhere::CrashPoints;
use crate::fs::{dataset, ended, make_dataset, now, space, synced};
use crate::image::{Range, Tap};
use crate::log_end;
use crate::memo::{Manner, Memo, alike, tidy};
use crate::over;
use crate::pool::{CACHE, SimLeaves, find, import, make};
use crate::setup::{Layout, Setup, Workload};

/// Operations of a thread.
const OPS: u64 = 14;
/// A mark's kinds, in the bits above its thread and its number.
const BYTES: u64 = 1 << 60;
const NAMES: u64 = 2 << 60;
/// The content of the file with this number.
const CONTENT: u64 = 3 << 60;
/// How often a file was overwritten, and how often its attribute was set.
const OVER: u64 = 4 << 60;
const XATTR: u64 = 5 << 60;
/// Bytes of the twin of the first file.
const TWIN: u64 = 6 << 60;
const NUMBER: u64 = (1 << 40) - 1;
/// How often the replay of each image is cut.
const CUTS: usize = 2;
/// Images that others are compared with before they are read.
const RECENT: usize = 12;

/// A planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// None.
    Nothing,
    /// Log blocks are not flushed.
    NoFlush,
    /// Each record is replayed twice.
    ReplayTwice,
    /// Records of files are written before those of the names that they depend on.
    Disorder,
    /// The claim of a log does not refer to the blocks that its records clone.
    Unclaimed,
}

struct LogHost {
    writer: Arc<Writer>,
    xattr: XattrForm,
    log: Option<Arc<zil::Log>>,
}

impl Host for LogHost {
    fn begin(&self, bytes: u64, frees: bool, outage: OutagePolicy) -> Result<Tx> {
        Ok(self.writer.begin_wait(bytes, frees)?.with_outage(outage))
    }
    fn begin_clone(&self, bytes: u64, _shared: u64, outage: OutagePolicy) -> Result<Tx> {
        self.begin(bytes, false, outage)
    }
    fn synced_txg(&self) -> Txg {
        self.writer.txgs().synced_txg()
    }
    fn settle(&self) -> Result<()> {
        self.writer.sync().map(drop)
    }
    fn synced(&self, txg: Txg) -> Result<()> {
        synced(&self.writer, txg)
    }
    fn log(&self) -> Option<Arc<zil::Log>> {
        self.log.clone()
    }
    fn now(&self) -> Time {
        now()
    }
    fn props(&self) -> Arc<RwProps> {
        Arc::new(RwProps { record_size: 16 << 10, xattr: self.xattr, ..RwProps::default() })
    }
    fn space(&self, _: OutagePolicy) -> Result<HostSpace> {
        Ok(space(&self.writer))
    }
}

/// Whether data is written to its final address at once, in runs of this seed.
fn throughput(seed: u64) -> bool {
    seed.is_multiple_of(3)
}

/// Whether each call is synchronous.
fn always(seed: u64) -> bool {
    seed % 4 == 1
}

/// Opens the file system; replays a log from before.
fn open(writer: &Arc<Writer>, plant: Plant, seed: u64) -> Result<Arc<FileSystem>> {
    let os = writer.read_dataset(&dataset())?;
    let log = writer.log(&os)?;
    let xattr = if seed.is_multiple_of(2) { XattrForm::Dir } else { XattrForm::Sa };
    let host = LogHost { writer: Arc::clone(writer), xattr, log: log.clone() };
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

/// A thread's files: one that it appends to, one that it overwrites, and the twin of the first.
type Files = ([ObjectId; 2], Option<ObjectId>);

/// Whether files are cloned.
fn clones(setup: &Setup) -> bool {
    setup.workload == Workload::BlockClones
}

fn set_up(setup: &Setup, disks: &SimDisks) -> Result<(Arc<Writer>, Arc<FileSystem>, Vec<Files>)> {
    let writer = make(setup, disks)?;
    make_dataset(&writer)?;
    let fs = open(&writer, Plant::Nothing, setup.seed)?;
    let mut files = Vec::new();
    for t in 0..setup.threads {
        let make = |name: String| {
            fs.make(&Caller::root(), fs.root(), name.as_bytes(), &New::file(0o644)).map(|a| a.id)
        };
        let pair = [make(format!("file-{t}"))?, make(format!("over-{t}"))?];
        files.push((pair, clones(setup).then(|| make(format!("twin-{t}"))).transpose()?));
    }
    writer.sync()?;
    for log in writer.all_logs().values() {
        log.set_throughput(throughput(setup.seed));
        log.set_mode(if always(setup.seed) { zil::Mode::Always } else { zil::Mode::Standard });
    }
    Ok((writer, fs, files))
}

/// Bytes of the file of this number.
fn content(thread: u64, number: u64) -> Vec<u8> {
    (0..number % 3 * 700).map(|at| byte(thread + 100 * (number + 1), at)).collect()
}

fn byte(thread: u64, at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9).wrapping_add(thread * 77) >> 7) as u8
}

/// Runs a thread's operations.
fn work(
    fs: &FileSystem,
    writer: &Writer,
    disks: &SimDisks,
    (setup, thread): (&Setup, u64),
    ([file, over], twin): Files,
) -> Result<()> {
    let (seed, layout) = (setup.seed, setup.layout);
    let mut rng = Rng::stream(seed, 500 + thread);
    let (mut size, mut names, mut version, mut attribute) = (0, 0, 0, 0);
    for _ in 0..OPS {
        let by = Caller::root();
        let durable = |id: ObjectId, size: Option<u64>, names: u64| {
            fs.fsync(id)?;
            disks.mark(NAMES | thread << 40 | names);
            if let Some(size) = size {
                disks.mark(BYTES | thread << 40 | size);
            }
            Ok::<_, base::Error>(())
        };
        // With `sync=always` one fsync of each pair is enough.
        let fsyncs = |rng: &mut Rng, one_in: u64| always(seed) || !rng.one_in(one_in);
        match (rng.below(16), twin) {
            (8 | 12 | 14, Some(twin)) => {
                if rng.one_in(2) {
                    writer.sync()?;
                }
                // Ends of the file are cloned as well as whole blocks.
                let to = if rng.one_in(3) { size / 2 } else { size };
                fs.copy_range(&by, (file, 0), (twin, 0), to)?;
                if fsyncs(&mut rng, 4) {
                    fs.fsync(twin)?;
                    disks.mark(TWIN | thread << 40 | to);
                }
            }
            (10..=12, _) => {
                version += 1;
                let (at, len) = over::range(seed, thread, version);
                let data: Vec<u8> = (at..at + len).map(|at| over::byte(at, version)).collect();
                fs.write(&by, over, WritePosition::Offset(at), &data)?;
                if fsyncs(&mut rng, 3) {
                    fs.fsync(over)?;
                    disks.mark(OVER | thread << 40 | version);
                    disks.mark(XATTR | thread << 40 | attribute);
                }
            }
            (13..=14, _) => {
                attribute += 1;
                fs.set_xattr(&by, over, over::NAME, &over::value(attribute), SetHow::Any)?;
                if fsyncs(&mut rng, 2) {
                    fs.fsync(over)?;
                    disks.mark(XATTR | thread << 40 | attribute);
                    disks.mark(OVER | thread << 40 | version);
                }
            }
            (0..=5, _) => {
                let n = length(&mut rng, layout);
                let data: Vec<u8> = (size..size + n).map(|at| byte(thread, at)).collect();
                fs.write(&Caller::root(), file, WritePosition::Offset(size), &data)?;
                size += n;
                if !rng.one_in(3) {
                    durable(file, Some(size), names)?;
                }
            }
            (6..=8, _) => {
                let name = format!("t{thread}-{names}");
                let made =
                    fs.make(&Caller::root(), fs.root(), name.as_bytes(), &New::file(0o600))?;
                let data = content(thread, names);
                if !data.is_empty() {
                    fs.write(&Caller::root(), made.id, WritePosition::Offset(0), &data)?;
                }
                names += 1;
                if rng.one_in(2) {
                    durable(made.id, None, names)?;
                    disks.mark(CONTENT | thread << 40 | (names - 1));
                }
            }
            _ => drop(writer.sync()?),
        }
    }
    fs.fsync(file)
}

/// A run that was recorded.
pub struct RecordedLogs {
    /// Vdevs, disks, schedule.
    pub setup: Setup,
    /// The disks, with their log.
    pub disks: SimDisks,
    /// The first event after the file system was set up.
    pub start: u64,
    /// A failure during the run itself.
    pub failed: Option<String>,
    plant: Plant,
    /// The results of replays.
    found: plain::Mutex<BTreeMap<ReplayStart, Arc<Vec<ThreadFiles>>>>,
    /// Txgs that were audited.
    memo: Memo,
    /// The last images read, and the ranges read.
    seen: plain::Mutex<VecDeque<Arc<ImageReading>>>,
}

/// The result of reading an image.
struct ImageReading {
    images: Vec<Image>,
    ranges: Vec<Range>,
    state: ReplayStart,
}

/// The initial state of a replay: the last txg, and the log's identity, last block and
/// record.
type ReplayStart = (Txg, [u64; 2], u64, u64);

/// The state of a thread's files after a replay.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ThreadFiles {
    bytes: u64,
    names: u64,
    /// Bytes of each named file.
    content: Vec<u64>,
    /// Bytes of the twin of the first file.
    twin: u64,
    /// The write number of each byte of the other file, and that of its attribute.
    over: Vec<u8>,
    attribute: u64,
}

/// The number of images of a run, and the first failure.
#[derive(Debug, Default)]
pub struct LogTally {
    /// Events after which the power failed.
    pub points: u64,
    /// Crash images judged.
    pub images: u64,
    /// Txgs and ends of logs that were replayed.
    pub replays: u64,
    /// Seed, event, seed of the crash, and the error.
    pub failure: Option<(u64, u64, u64, String)>,
}

impl fmt::Display for LogTally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.failure {
            None => write!(
                f,
                "{} points, {} images, {} replays",
                self.points, self.images, self.replays
            ),
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

/// The same on few disks, with one thread.
pub fn small(seed: u64) -> Setup {
    Setup { layout: Layout::Single, threads: 1, ..setup(seed) }
}

/// The same with files that share blocks.
pub fn cloning(seed: u64) -> Setup {
    Setup { workload: Workload::BlockClones, ..setup(seed) }
}

/// The same on vdevs of a certain width, with writes that need log blocks of all sizes.
pub fn wide(seed: u64, layout: Layout) -> Setup {
    Setup { layout, threads: 1 + (seed % 2) as usize, ..setup(seed) }
}

/// Bytes of an append.
fn length(rng: &mut Rng, layout: Layout) -> u64 {
    if Layout::ALL.contains(&layout) {
        let most = if rng.one_in(4) { 40_000 } else { 3000 };
        return 1 + rng.below(most);
    }
    // Odd numbers of sectors, one block, several blocks, more than the largest block holds.
    match rng.below(8) {
        0 => 1 + rng.below(3000),
        1..=3 => 4097 + rng.below(1904),
        4 => 1 + rng.below(40_000),
        5..=6 => 8192 << rng.below(4),
        _ => 100_000 + rng.below(60_000),
    }
}

/// The log's disks in [`Layout::Classes`].
const LOG_DISKS: [usize; 2] = [4, 5];

fn body(
    setup: &Setup,
    disks: &SimDisks,
    plant: Plant,
    logs_die: Option<u64>,
) -> std::result::Result<u64, String> {
    let ready = set_up(setup, disks).map_err(|e| format!("setting up: {e}"))?;
    let (writer, fs, files) = ready;
    writer.plants.no_log_flush.store(plant == Plant::NoFlush, SeqCst);
    for log in writer.all_logs().values() {
        log.plant_disorder.store(plant == Plant::Disorder, SeqCst);
    }
    if let Some(seed) = logs_die {
        let event = disks.events() + Rng::stream(seed, 64).below(150);
        LOG_DISKS.into_iter().for_each(|disk| disks.schedule(event, Action::Drop { disk }));
    }
    let start = disks.events();
    let wrong: Arc<Mutex<Option<String>>> = Arc::default();
    let mut threads = Vec::new();
    for (t, file) in files.into_iter().enumerate() {
        let (fs, writer, disks, setup, wrong) = (
            Arc::clone(&fs),
            Arc::clone(&writer),
            disks.clone(),
            setup.clone(),
            Arc::clone(&wrong),
        );
        let body = move || {
            if let Err(e) = work(&fs, &writer, &disks, (&setup, t as u64), file) {
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

/// Runs a seed with other vdevs or threads than those that follow from it.
pub fn record_as(setup: Setup, plant: Plant) -> RecordedLogs {
    record_it(setup, plant, None)
}

fn record_it(setup: Setup, plant: Plant, logs_die: Option<u64>) -> RecordedLogs {
    let disks = SimDisks::blank(setup.disks(), setup.layout.disks(), setup.disk_size());
    let (s, d) = (setup.clone(), disks.clone());
    let run = run_with(setup.schedule(), move || body(&s, &d, plant, logs_die));
    let (failed, start) = match ended(run.outcome) {
        Ok(start) => (None, start),
        Err(why) => (Some(why), 0),
    };
    let (found, memo) = (plain::Mutex::default(), Memo::default());
    let seen = plain::Mutex::default();
    RecordedLogs { setup, disks, start, failed, plant, found, memo, seen }
}

/// Runs a seed and records it.
pub fn record(seed: u64, plant: Plant) -> RecordedLogs {
    record_as(setup(seed), plant)
}

/// The log's vdev fails in the middle of a run: no caller gets an error, and nothing is
/// missing in the end.
///
/// # Errors
/// The error found.
pub fn logs_die(seed: u64) -> std::result::Result<(), String> {
    let setup = Setup { layout: Layout::Classes, ..setup(seed) };
    let recorded = record_it(setup, Plant::Nothing, Some(seed));
    if let Some(why) = &recorded.failed {
        return Err(why.clone());
    }
    let marks = recorded.disks.marks(u64::MAX);
    let images = recorded.disks.current();
    let (found, _) = recorded.mount_once(images, seed, &LOG_DISKS)?;
    kept(&found, &marks, recorded.setup.seed)
}

/// The changes of a thread acknowledged by the marks before a crash: bytes, names, and
/// files with content.
fn acknowledged(marks: &[u64], thread: u64) -> (u64, u64, Vec<u64>) {
    let of = |kind: u64| {
        let mine = marks.iter().filter(move |m| **m & !NUMBER == kind | thread << 40);
        mine.map(|m| m & NUMBER)
    };
    (of(BYTES).max().unwrap_or(0), of(NAMES).max().unwrap_or(0), of(CONTENT).collect())
}

/// Checks that everything acknowledged is there.
fn kept(found: &[ThreadFiles], marks: &[u64], seed: u64) -> std::result::Result<(), String> {
    for (t, there) in found.iter().enumerate() {
        let (bytes, names, content_of) = acknowledged(marks, t as u64);
        if there.bytes < bytes {
            return Err(format!(
                "thread {t} had {bytes} bytes acknowledged, {} are there",
                there.bytes
            ));
        }
        if there.names < names {
            return Err(format!(
                "thread {t} had {names} names acknowledged, {} are there",
                there.names
            ));
        }
        let last = |kind: u64| {
            let mine = marks.iter().filter(|m| **m & !NUMBER == kind | (t as u64) << 40);
            mine.map(|m| m & NUMBER).max().unwrap_or(0)
        };
        if there.twin < last(TWIN) {
            let (wanted, has) = (last(TWIN), there.twin);
            return Err(format!("thread {t}: a twin of {wanted} bytes acknowledged, {has} there"));
        }
        over::kept(&there.over, seed, t as u64, last(OVER), throughput(seed))?;
        if there.attribute < last(XATTR) {
            let (wanted, has) = (last(XATTR), there.attribute);
            return Err(format!("thread {t}: attribute {wanted} acknowledged, {has} there"));
        }
        for n in content_of {
            let (wanted, has) = (content(t as u64, n).len() as u64, there.content.get(n as usize));
            if has != Some(&wanted) {
                return Err(format!(
                    "thread {t}, file {n}: {wanted} bytes acknowledged, {has:?} there"
                ));
            }
        }
    }
    Ok(())
}

/// Reads a file; `right` gives the expected bytes.
fn read_file(
    fs: &FileSystem,
    name: &str,
    right: &dyn Fn(u64) -> Option<u8>,
) -> std::result::Result<u64, String> {
    let fail = |e: base::Error| format!("{name}: {e}");
    let file = fs.lookup(fs.root(), name.as_bytes(), Io::WAIT).map_err(fail)?;
    let size = fs.attrs(file.id, Io::WAIT).map_err(fail)?.size;
    let mut at = 0;
    for piece in fs.read(file.id, 0, size as usize, Io::WAIT).map_err(fail)? {
        if let Some(i) = (0..piece.len()).find(|i| Some(piece[*i]) != right(at + *i as u64)) {
            return Err(format!("{name}: byte {} of {size} is another", at + i as u64));
        }
        at += piece.len() as u64;
    }
    Ok(size)
}

/// The state of each thread's files, all of which must agree with its changes.
fn read_back(
    fs: &FileSystem,
    threads: usize,
    seed: u64,
) -> std::result::Result<Vec<ThreadFiles>, String> {
    let one = |t: u64| {
        let bytes = read_file(fs, &format!("file-{t}"), &|at| Some(byte(t, at)))?;
        let name = |n: u64| format!("t{t}-{n}");
        let has = |n: u64| fs.lookup(fs.root(), name(n).as_bytes(), Io::WAIT).is_ok();
        let names = (0..=OPS).take_while(|n| has(*n)).count() as u64;
        if let Some(odd) = (names..=OPS).find(|n| has(*n)) {
            return Err(format!("thread {t}: name {odd} without name {names}"));
        }
        let content = (0..names).map(|n| {
            let data = content(t, n);
            read_file(fs, &name(n), &|at| data.get(at as usize).copied())
        });
        let content = content.collect::<std::result::Result<_, _>>()?;
        let (over, attribute) = over::read_back(fs, seed, t)?;
        let twin = format!("twin-{t}");
        let twin = match fs.lookup(fs.root(), twin.as_bytes(), Io::WAIT) {
            Ok(_) => read_file(fs, &twin, &|at| Some(byte(t, at)))?,
            Err(_) => 0,
        };
        Ok(ThreadFiles { bytes, names, content, twin, over, attribute })
    };
    (0..threads as u64).map(one).collect()
}

/// Imports the disks for writing, replays, and reads the result.
fn mount(
    setup: &Setup,
    disks: &SimDisks,
    plant: Plant,
    without: &[usize],
) -> std::result::Result<Vec<ThreadFiles>, String> {
    let fail = |what: &str, e: &dyn fmt::Display| format!("{what}, after a crash: {e}");
    let leaves = SimLeaves::new(disks, without);
    let found = find(&leaves).map_err(|e| fail("looking for the pool", &e))?;
    let found = found.ok_or_else(|| "the pool is gone".to_owned())?;
    let cache = Arc::new(BlockCache::of(CACHE).map_err(|e| fail("cache", &e))?);
    let missing_log = !without.is_empty();
    let options = ImportOptions { force: true, missing_log, ..ImportOptions::default() };
    let spa = spa::Spa::open_in(&found, &options, &cache, &leaves)
        .map_err(|f| fail("import for writing", &f.error))?;
    let options = setup.writer();
    options.unclaimed.store(plant == Plant::Unclaimed, SeqCst);
    let writer = spa.start_writer(options).map_err(|e| fail("writing", &e))?;
    let fs = open(&writer, plant, setup.seed).map_err(|e| fail("replay", &e))?;
    let there = read_back(&fs, setup.threads, setup.seed)?;
    writer.sync().map_err(|e| fail("sync", &e))?;
    drop(fs);
    writer.stop();
    if !without.is_empty() {
        return Ok(there);
    }
    let cache = Arc::new(BlockCache::of(CACHE).map_err(|e| fail("cache", &e))?);
    let spa = import(&leaves, &found, &cache, None).map_err(|e| fail("import", &e))?;
    let expect = check::Expect::default();
    check::audit(&spa, &expect).and_then(|()| check::books(&spa)).map_err(|bad| bad.to_string())?;
    Ok(there)
}

/// The readable part of the file system's log in an open pool.
fn end_of_log(spa: &Spa) -> Result<([u64; 2], u64, u64)> {
    let mut end = ([0; 2], 0, 0);
    spa.root_dir()?.walk(&mut |dir| {
        if dir.name() == dataset()
            && let Some(os) = dir.head()?.map(|head| head.open_objset()).transpose()?.flatten()
        {
            let found = log_end::end_of_log(spa.zio(), spa.uberblock().txg, &os)?;
            end = (found.id, found.block, found.record);
        }
        Ok(())
    })?;
    Ok(end)
}

impl RecordedLogs {
    fn mount_once(
        &self,
        images: Vec<Image>,
        seed: u64,
        without: &[usize],
    ) -> std::result::Result<(Vec<ThreadFiles>, SimDisks), String> {
        let disks = SimDisks::new(self.setup.disks(), images);
        let (setup, d, plant) = (self.setup.clone(), disks.clone(), self.plant);
        let (without, schedule) =
            (without.to_vec(), Options { max_steps: 50_000_000, ..Options::varied(seed) });
        let run = run_with(schedule, move || mount(&setup, &d, plant, &without));
        Ok((ended(run.outcome)?, disks))
    }

    /// The txg that an import finds, and the end of its log. The txg is audited.
    fn state(
        &self,
        images: &[Image],
        cache: &Arc<BlockCache>,
    ) -> std::result::Result<ReplayStart, String> {
        let seen: Vec<Arc<ImageReading>> = self.seen.lock().iter().cloned().collect();
        if let Some(old) = seen.iter().find(|s| alike(&s.images, images, &s.ranges)) {
            return Ok(old.state);
        }
        let tap = Arc::new(Tap::default());
        let leaves = SimLeaves::of_images(images, &[], None, &tap);
        let found = find(&leaves).map_err(|e| format!("looking for the pool: {e}"))?;
        let found = found.ok_or_else(|| "there is no pool".to_owned())?;
        let spa = import(&leaves, &found, cache, None).map_err(|e| format!("import: {e}"))?;
        let (txg, root) = (spa.uberblock().txg, spa.uberblock().root_bp);
        let manner = Manner::default();
        let known = self.memo.body(images, &manner, txg, &root);
        let body = if let Some(known) = known {
            known
        } else {
            let expect = check::Expect::default();
            check::audit(&spa, &expect)
                .and_then(|()| check::books(&spa))
                .map_err(|bad| format!("txg {txg}: {bad}"))?;
            let (in_labels, read) = check::split(images, tap.take());
            let mut all = in_labels.clone();
            all.extend(read.iter().copied());
            self.memo.keep(images, &manner, txg, root, in_labels, read);
            all
        };
        let (id, block, record) = end_of_log(&spa).map_err(|e| format!("txg {txg}: {e}"))?;
        let state = (txg, id, block, record);
        let ranges = tidy(body.into_iter().chain(tap.take()).collect());
        let mut seen = self.seen.lock();
        seen.push_front(Arc::new(ImageReading { images: images.to_vec(), ranges, state }));
        seen.truncate(RECENT);
        Ok(state)
    }

    /// Replays an image that was not replayed before, and cuts the replay.
    fn replay(
        &self,
        images: Vec<Image>,
        seed: u64,
    ) -> std::result::Result<Arc<Vec<ThreadFiles>>, String> {
        let (found, disks) = self.mount_once(images, seed, &[])?;
        let mut rng = Rng::stream(seed, 700);
        let points = disks.crash_points();
        for _ in 0..CUTS {
            let at = points[rng.below(points.len() as u64) as usize];
            let cut = rng.below(4);
            let fail = |e: String| format!("replay cut at {at}:{cut}: {e}");
            let images = disks.crash_image(at, cut).map_err(|e| fail(e.to_string()))?;
            let (again, _) = self.mount_once(images, rng.next_u64(), &[]).map_err(fail)?;
            if again != found {
                return Err(fail(format!("{again:?} is there, not {found:?}")));
            }
        }
        Ok(Arc::new(found))
    }

    /// Replays the image with the largest part in the log, and cuts that replay at each of
    /// its events, with unflushed writes lost and kept: each time the next replay must have
    /// the same result. Returns the number of cuts.
    ///
    /// # Errors
    /// The error found.
    pub fn replay_everywhere(&self) -> std::result::Result<u64, String> {
        if let Some(why) = &self.failed {
            return Err(why.clone());
        }
        let cache = Arc::new(BlockCache::of(CACHE).map_err(|e| e.to_string())?);
        let mut most: Option<(u64, Vec<Image>)> = None;
        for event in self.disks.crash_points().into_iter().filter(|p| *p >= self.start) {
            let images = self.disks.crash_image(event, 1).map_err(|e| e.to_string())?;
            let (_, _, _, records) = self.state(&images, &cache)?;
            if most.as_ref().is_none_or(|(had, _)| records > *had) {
                most = Some((records, images));
            }
        }
        let Some((_, images)) = most else { return Ok(0) };
        let (found, disks) = self.mount_once(images, self.setup.seed, &[])?;
        let points = disks.crash_points();
        let (next, wrong) = (AtomicUsize::new(0), Mutex::new(None));
        fan_out(base::rt::parallelism(), |_| {
            while let Some(&at) = points.get(next.fetch_add(1, Relaxed)) {
                for cut in 0..2 {
                    if wrong.lock().is_some() {
                        return;
                    }
                    let again = disks.crash_image(at, cut).map_err(|e| e.to_string());
                    let again = again.and_then(|images| self.mount_once(images, at, &[]));
                    let why = match again {
                        Ok((again, _)) if again == found => continue,
                        Ok((again, _)) => format!("{again:?} is there, not {found:?}"),
                        Err(e) => e,
                    };
                    wrong.lock().get_or_insert(format!("replay cut at {at}:{cut}: {why}"));
                }
            }
        });
        wrong.into_inner().map_or(Ok(2 * points.len() as u64), Err)
    }

    /// Crashes at one event and judges the result of a replay.
    ///
    /// # Errors
    /// The error found.
    pub fn crash(
        &self,
        event: u64,
        seed: u64,
        cache: &Arc<BlockCache>,
    ) -> std::result::Result<(), String> {
        let images = self.disks.crash_image(event, seed).map_err(|e| e.to_string())?;
        let state = self.state(&images, cache)?;
        let known = self.found.lock().get(&state).cloned();
        let found = match known {
            Some(found) => found,
            None => {
                let found = self.replay(images, self.setup.seed ^ event << 20 ^ seed)?;
                self.found.lock().insert(state, Arc::clone(&found));
                found
            }
        };
        kept(&found, &self.disks.marks(event), self.setup.seed)
    }

    /// The same, alone.
    ///
    /// # Errors
    /// The error found.
    pub fn crash_once(&self, event: u64, seed: u64) -> std::result::Result<(), String> {
        let cache = Arc::new(BlockCache::of(CACHE).map_err(|e| e.to_string())?);
        self.crash(event, seed, &cache)
    }

    /// Crashes after every `step`-th event since the file system was set up, with unflushed
    /// writes lost, kept, and in `more` other ways, on `threads` threads.
    pub fn crash_everywhere(&self, step: usize, more: u64, threads: usize) -> LogTally {
        let mut tally = LogTally::default();
        if let Some(why) = &self.failed {
            tally.failure = Some((self.setup.seed, 0, 0, why.clone()));
            return tally;
        }
        let points = self.disks.crash_points().into_iter().filter(|p| *p >= self.start);
        let points: Vec<u64> = points.step_by(step.max(1)).collect();
        let (count, seed) = (points.len() as u64, self.setup.seed);
        let found = CrashPoints { points, seed, more, threads }
            .visit(|event, seed, cache| self.crash(event, seed, cache).map(|()| None));
        tally.points = count;
        tally.images = found.images;
        tally.replays = self.found.lock().len() as u64;
        tally.failure = found.wrong.map(|(event, crash, what)| (seed, event, crash, what));
        tally
    }
}
