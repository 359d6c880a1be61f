//! A pool for a bench of writing, in files that exist and were written before, so that the
//! underlying file system has nothing to allocate.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base::rt::{self, Mutex};
use base::{Error, ObjectId, Result, Txg};
use cenote::inspect::device::{Device, Engine, EngineKind, FileDevice, OpenOptions};
use cenote::inspect::dmu::{ObjectSpec, Objset, ObjsetProps};
use cenote::inspect::ondisk::ObjType;
use cenote::inspect::spa::engine::Writer;
use cenote::inspect::spa::engine::create::{CreateSpec, create};
use cenote::inspect::spa::write::topology::{BuildOptions, LeafFacts, NewKind, NewVdev, build};
use cenote::inspect::{dsl, zio};

use super::sample::{SampleContent, XorShift};
use super::tidy;

/// The pool's name.
pub(super) const POOL: &str = "benchw";
/// Requests in flight at a device.
const DEPTH: usize = 64;
/// Number of different blocks in the data.
const PATTERNS: u64 = 64;

/// The configuration of a pool.
pub(super) struct WritePoolSpec<'a> {
    /// Preallocated files.
    pub(super) files: &'a [PathBuf],
    /// Parity of a raidz of all files; 0: each file is a top-level vdev.
    pub(super) parity: u8,
    /// Bytes of cache.
    pub(super) cache: u64,
    /// Limit of dirty data, if not the machine's default.
    pub(super) dirty_max: Option<u64>,
}

/// An open pool and its root dataset.
pub(super) struct WritePool {
    pub(super) writer: Arc<Writer>,
    pub(super) os: Arc<Objset>,
    /// The root dataset's object.
    pub(super) head: u64,
}

/// Blocks to write.
pub(super) struct Job<'a> {
    pub(super) object: ObjectId,
    pub(super) record: u64,
    /// Records that are written.
    pub(super) count: u64,
    /// Random records among so many; `None`: all, in order.
    pub(super) among: Option<u64>,
    pub(super) threads: usize,
    pub(super) patterns: &'a [Vec<u8>],
}

/// The times of a [`Job`].
pub(super) struct WriteTimes {
    /// Time until everything was on disk.
    pub(super) time: Duration,
    /// Processor time of all threads.
    pub(super) cpu: Duration,
    /// The time of each write, nanoseconds, unordered.
    pub(super) each: Vec<u64>,
}

impl WriteTimes {
    pub(super) fn per_second(&self, n: u64) -> f64 {
        n as f64 / self.time.as_secs_f64()
    }

    /// The time within which a share of the writes completed; 1.0: the longest.
    pub(super) fn quantile(&mut self, q: f64) -> Duration {
        self.each.sort_unstable();
        let last = self.each.len().saturating_sub(1);
        let at = (last as f64 * q) as usize;
        Duration::from_nanos(self.each.get(at).copied().unwrap_or(0))
    }
}

/// Different blocks with some content.
pub(super) fn patterns(content: &SampleContent, record: u64) -> Vec<Vec<u8>> {
    let one = |n: u64| {
        let mut block = vec![0; record as usize];
        content.fill(n * record.next_multiple_of(512), &mut block);
        block
    };
    (0..PATTERNS).map(one).collect()
}

/// Processor time of this process.
pub(super) fn cpu() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// Resident memory of this process, bytes.
pub(super) fn rss() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix("VmRSS:"));
    let kib = line.and_then(|l| l.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

/// Makes a file of `size` bytes and writes all of it once; an existing file of that size is
/// kept.
///
/// # Errors
/// Those of the file system.
pub(super) fn preallocate(path: &Path, size: u64) -> Result<()> {
    let failed = |e| Error::io("cannot make the image", e).on_path(path.to_string_lossy());
    if std::fs::metadata(path).is_ok_and(|m| m.len() >= size) {
        return Ok(());
    }
    let mut file = std::fs::File::create(path).map_err(failed)?;
    let mut block = vec![0; 4 << 20];
    SampleContent::noise(3).fill(0, &mut block);
    let mut left = size as usize;
    while left > 0 && !tidy::interrupted() {
        let n = left.min(block.len());
        file.write_all(&block[..n]).map_err(failed)?;
        left -= n;
    }
    file.sync_all().map_err(failed)?;
    // A direct write would have to drop the file's pages first. The advice may be ignored.
    let _kept = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
    Ok(())
}

fn open_all(files: &[PathBuf]) -> Result<BTreeMap<PathBuf, Arc<dyn Device>>> {
    let engine = Engine::new(EngineKind::Auto, DEPTH)?;
    let options = OpenOptions { write: true, engine: Some(engine), ..OpenOptions::default() };
    let one =
        |p: &PathBuf| Ok((p.clone(), Arc::new(FileDevice::open(p, &options)?) as Arc<dyn Device>));
    files.iter().map(one).collect()
}

fn spec(plan: &WritePoolSpec<'_>) -> Result<CreateSpec> {
    let open = open_all(plan.files)?;
    let none = || Error::not_found("no such device");
    let facts = |p: &Path| open.get(p).map(|d| LeafFacts::of(&**d, false)).ok_or_else(none);
    let leaves = plan.files.iter().map(|p| NewVdev::new(NewKind::File(p.clone())));
    let leaves: Vec<NewVdev> = leaves.collect();
    let vdevs = match plan.parity {
        0 => leaves,
        n => vec![NewVdev::new(NewKind::Raidz { nparity: u32::from(n) }).with_children(leaves)],
    };
    let options = BuildOptions { create_txg: Txg(4), ashift: Some(12), ..BuildOptions::default() };
    let built = build(&vdevs, options, [], &facts)?;
    let mut devices = BTreeMap::new();
    for leaf in built.tops.iter().flat_map(|(top, _)| top.leaves()) {
        let path = leaf.path.as_ref().map(|p| PathBuf::from(p.to_string()));
        let device = path.and_then(|p| open.get(&p)).ok_or_else(none)?;
        devices.insert(leaf.guid, Arc::clone(device));
    }
    Ok(CreateSpec::new(POOL, built.tops, devices))
}

impl WritePool {
    /// Makes the pool.
    ///
    /// # Errors
    /// Those of the files and of making a pool.
    pub(super) fn new(plan: &WritePoolSpec<'_>) -> Result<WritePool> {
        let cache = Arc::new(zio::BlockCache::of(plan.cache)?);
        let writer = create(spec(plan)?, &cache)?;
        let mut limits = writer.txgs().limits();
        limits.dirty_data_max = plan.dirty_max.unwrap_or(DIRTY_MAX);
        writer.txgs().set_limits(&limits);
        let head = dsl::DslDir::root(writer.mos(), POOL)?.head()?;
        let head = head.ok_or_else(|| Error::bug("a pool without a root dataset"))?.object();
        let os = writer.open_head(head, ObjsetProps::default())?;
        Ok(WritePool { writer, os, head })
    }

    /// A new object.
    ///
    /// # Errors
    /// Those of the engine.
    pub(super) fn object(&self, record: u64) -> Result<ObjectId> {
        let spec = ObjectSpec {
            object_type: ObjType::PLAIN_FILE_CONTENTS,
            block_size: record as u32,
            ..ObjectSpec::default()
        };
        let tx = self.writer.begin_wait(0, false)?;
        self.os.allocate(&tx, &spec)
    }

    /// Removes an object.
    ///
    /// # Errors
    /// Those of the engine.
    pub(super) fn remove(&self, object: ObjectId) -> Result<()> {
        let tx = self.writer.begin_wait(0, true)?;
        self.os.free_object(&tx, object)
    }

    /// Writes the job's records, and syncs at the end.
    ///
    /// # Errors
    /// Those of the engine; the first of several.
    pub(super) fn write(&self, job: &Job<'_>) -> Result<WriteTimes> {
        let failed = Mutex::new(None);
        let each = Mutex::new(Vec::new());
        let (began, before) = (rt::now(), cpu());
        rt::fan_out(job.threads, |t| {
            let mut times = Vec::with_capacity((job.count as usize).div_ceil(job.threads));
            if let Err(e) = self.write_one(job, t as u64, &mut times) {
                failed.lock().get_or_insert(e);
            }
            each.lock().append(&mut times);
        });
        self.writer.sync()?;
        let (time, used) = (began.elapsed(), cpu());
        match failed.into_inner() {
            Some(e) => Err(e),
            None => {
                Ok(WriteTimes { time, cpu: used.saturating_sub(before), each: each.into_inner() })
            }
        }
    }

    fn write_one(&self, job: &Job<'_>, thread: u64, times: &mut Vec<u64>) -> Result<()> {
        let mut rng = XorShift::new(thread * 7919 + 13);
        let mut n = thread;
        while n < job.count && !tidy::interrupted() {
            let at = job.among.map_or(n, |among| rng.below(among));
            let data = &job.patterns[(n % PATTERNS) as usize];
            let began = rt::now();
            let tx = self.writer.begin_wait(job.record, false)?;
            self.os.write(&tx, job.object, at * job.record, data)?;
            drop(tx);
            times.push(u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX));
            n += job.threads as u64;
        }
        Ok(())
    }
}

impl Drop for WritePool {
    /// No export: the disk has the state after a crash.
    fn drop(&mut self) {
        self.writer.stop();
    }
}

/// A tenth of memory, as a daemon on a machine of 24 GiB has it.
const DIRTY_MAX: u64 = 2400 << 20;

/// Bytes that `fio` writes to a file a second; `None` if there is no `fio`.
pub(super) fn fio(file: &Path, size: u64, block: u64, depth: u64, random: bool) -> Option<f64> {
    let out = std::process::Command::new("fio")
        .args(["--name=w", "--direct=1", "--ioengine=libaio", "--end_fsync=1"])
        .args(["--output-format=terse", "--terse-version=3", "--randrepeat=0"])
        .arg(format!("--rw={}", if random { "randwrite" } else { "write" }))
        .arg(format!("--filename={}", file.display()))
        .arg(format!("--bs={block}"))
        .arg(format!("--size={size}"))
        .arg(format!("--iodepth={depth}"))
        .output()
        .ok()?;
    let text = String::from_utf8(out.stdout).ok()?;
    let line = text.lines().find(|l| l.starts_with("3;"))?;
    line.split(';').nth(47)?.parse::<f64>().ok().map(|kib| kib * 1024.0)
}
