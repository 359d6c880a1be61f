//! The pool of the scrub bench: its devices, its content, and plain reads and writes of what is
//! allocated on it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use base::rt::{self, Mutex};
use base::{BufMut, Error, Guid, ObjectId, Result};
use cenote::create::{NewKind, NewVdev};
use cenote::files::{Caller, New, WritePosition};
use cenote::inspect::device::{Device, FileDevice, Io as DeviceIo, OpenOptions};
use cenote::inspect::spa::audit::maps::replay;
use cenote::{
    AttachMode, AttachRequest, Engine, EngineConfig, FileSystem, ImportOptions, Io, NewDevice,
    Offline, Search,
};

use super::frag_target::{DATASET, POOL, RunningPool};
use super::sample::{SampleContent, XorShift};
use super::write_pool::patterns;
use super::{BenchResult, Run};

/// Bytes of a plain read or write.
const PLAIN: u64 = 1 << 20;
/// Plain reads and writes of one device at a time.
const DEPTH: usize = 16;
/// Bytes of a write while a file is filled.
const LARGE: u64 = 1 << 20;
/// Bytes before the first sector that an offset of a vdev can name (chapter 01 §2).
const FRONT: u64 = 4 << 20;
/// Small files of a directory, and their largest size.
const PER_DIR: u64 = 500;
const SMALL_MAX: u64 = 32 << 10;

/// The kind of the pool's one top-level vdev.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScrubVdev {
    Disk,
    /// Of two devices.
    Mirror,
    /// RAID-Z1 of three devices.
    Raidz,
}

impl ScrubVdev {
    /// The devices.
    pub(super) fn width(self) -> u64 {
        match self {
            ScrubVdev::Disk => 1,
            ScrubVdev::Mirror => 2,
            ScrubVdev::Raidz => 3,
        }
    }

    /// The devices over which the vdev's offsets are divided.
    fn columns(self) -> u64 {
        match self {
            ScrubVdev::Disk | ScrubVdev::Mirror => 1,
            ScrubVdev::Raidz => 3,
        }
    }

    /// The vdev over these devices.
    pub(super) fn over(self, devices: &[PathBuf]) -> NewVdev {
        let mut leaves: Vec<NewVdev> =
            devices.iter().map(|path| NewVdev::new(NewKind::File(path.clone()))).collect();
        match self {
            ScrubVdev::Disk => leaves.remove(0),
            ScrubVdev::Mirror => NewVdev::new(NewKind::Mirror).with_children(leaves),
            ScrubVdev::Raidz => NewVdev::new(NewKind::Raidz { nparity: 1 }).with_children(leaves),
        }
    }
}

/// The files of the pool.
pub(super) struct ScrubFiles {
    pub(super) ids: Vec<ObjectId>,
    /// Bytes of each; of small files, at most.
    pub(super) size: u64,
}

/// Fills a file of `size` bytes in order and overwrites each record once on average, at random.
pub(super) fn age(
    run: &mut Run,
    running: &RunningPool,
    fs: &FileSystem,
    size: u64,
    record: u64,
) -> BenchResult<ScrubFiles> {
    let (root, buffers) = (Caller::root(), patterns(&SampleContent::noise(5), record));
    let id = fs.make(&root, fs.root(), b"aged", &New::file(0o644))?.id;
    let mut noise = XorShift::new(3);
    let mut next = |n: u64| {
        let mut data = buffers[n as usize % buffers.len()].clone();
        data[..8].copy_from_slice(&noise.next().to_le_bytes());
        data
    };
    for at in (0..size).step_by(LARGE as usize) {
        run.step("filling the pool, MiB", at >> 20, size >> 20)?;
        let part = LARGE.min(size - at);
        let data: Vec<u8> = (0..part.div_ceil(record)).flat_map(&mut next).collect();
        fs.write(&root, id, WritePosition::Offset(at), &data[..part as usize])?;
    }
    running.pool().sync()?;
    let (records, mut places) = (size / record, XorShift::new(11));
    for n in 0..records {
        if n % 1024 == 0 {
            run.step("overwriting, MiB", (n * record) >> 20, size >> 20)?;
        }
        let at = places.below(records) * record;
        fs.write(&root, id, WritePosition::Offset(at), &next(n))?;
    }
    running.pool().sync()?;
    Ok(ScrubFiles { ids: vec![id], size })
}

/// Makes small files of different sizes.
pub(super) fn small_files(
    run: &mut Run,
    running: &RunningPool,
    fs: &FileSystem,
    count: u64,
) -> BenchResult<ScrubFiles> {
    let (root, mut random) = (Caller::root(), XorShift::new(7));
    let mut content = vec![0; 1 << 20];
    SampleContent::noise(9).fill(0, &mut content);
    let (mut ids, mut dir) = (Vec::new(), fs.root());
    for n in 0..count {
        if n % PER_DIR == 0 {
            run.step("making files", n, count)?;
            let name = format!("d{}", n / PER_DIR);
            dir = fs.make(&root, fs.root(), name.as_bytes(), &New::dir(0o755))?.id;
        }
        let id = fs.make(&root, dir, format!("f{n}").as_bytes(), &New::file(0o644))?.id;
        let len = random.below(SMALL_MAX) + 1;
        let from = random.below(content.len() as u64 - len) as usize;
        fs.write(&root, id, WritePosition::Offset(0), &content[from..from + len as usize])?;
        ids.push(id);
    }
    running.pool().sync()?;
    Ok(ScrubFiles { ids, size: 4096 })
}

/// Imports the pool with a cache of so many bytes.
///
/// # Errors
/// Those of imports.
pub(super) fn import(
    devices: &[PathBuf],
    cache_bytes: u64,
    readonly: bool,
) -> Result<(RunningPool, Arc<Engine>)> {
    let config = EngineConfig { cache_bytes: Some(cache_bytes), ..EngineConfig::default() };
    let engine = Engine::new(config)?;
    let search = Search { paths: devices.to_vec(), ..Search::default() };
    let found = engine.discover(&search)?;
    let found = found.pools.iter().find(|pool| pool.name == POOL);
    let found = found.ok_or_else(|| Error::not_found("the pool is gone"))?;
    let options = ImportOptions { readonly, force: true, ..ImportOptions::default() };
    let pool = engine.import(found, &options)?;
    Ok((RunningPool::new(pool, Arc::clone(&engine)), engine))
}

/// The file system of the pool.
///
/// # Errors
/// Those of opening it.
pub(super) fn files_of(running: &RunningPool) -> Result<Arc<FileSystem>> {
    running.pool().dataset(DATASET)?.open_fs()
}

/// A range of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PlainRange {
    offset: u64,
    len: u64,
}

/// What is allocated on each device of the exported pool, in order, in pieces of at most
/// [`PLAIN`] bytes.
///
/// # Errors
/// Those of the import and of the space maps.
pub(super) fn allocated(kind: ScrubVdev, devices: &[PathBuf]) -> Result<Vec<PlainRange>> {
    let (running, _engine) = import(devices, 256 << 20, true)?;
    let spa = running.pool().spa();
    let bits = replay(spa, &spa.load_space()?)?.bits;
    let mut ranges = Vec::new();
    // Nothing is claimed, so every allocated sector is reported.
    bits.leaks(&mut |_, offset, len| {
        let columns = kind.columns();
        let (mut at, end) = (offset / columns, (offset + len).div_ceil(columns));
        at = at / 4096 * 4096;
        let end = end.next_multiple_of(4096);
        while at < end {
            let len = PLAIN.min(end - at);
            ranges.push(PlainRange { offset: FRONT + at, len });
            at += len;
        }
    });
    running.end(true)?;
    Ok(ranges)
}

/// Bytes of the ranges.
pub(super) fn sum(ranges: &[PlainRange]) -> u64 {
    ranges.iter().map(|range| range.len).sum()
}

/// Reads the ranges of every device in order, or writes them; returns the seconds.
///
/// # Errors
/// Those of the devices.
pub(super) fn plain(devices: &[PathBuf], ranges: &[PlainRange], write: bool) -> Result<f64> {
    let open = |path: &PathBuf| {
        let options = OpenOptions { write, ..OpenOptions::default() };
        Ok((FileDevice::open(path, &options)?, AtomicUsize::new(0)))
    };
    let opened = devices.iter().map(open).collect::<Result<Vec<_>>>()?;
    let mut data = BufMut::alloc(PLAIN as usize);
    SampleContent::noise(1).fill(0, &mut data);
    let data = data.freeze();
    let failed = Mutex::new(None);
    let began = rt::now();
    rt::fan_out(DEPTH * devices.len(), |thread| {
        let (device, next) = &opened[thread % opened.len()];
        while let Some(range) = ranges.get(next.fetch_add(1, Relaxed)) {
            let io = match write {
                true => DeviceIo::Write {
                    offset: range.offset,
                    bufs: vec![data.slice(0..range.len as usize)],
                },
                false => DeviceIo::read(range.offset, range.len as usize),
            };
            if let Err(e) = device.run(io).result {
                failed.lock().get_or_insert(e);
            }
        }
    });
    if write {
        opened.iter().try_for_each(|(device, _)| device.run(DeviceIo::Flush).result.map(drop))?;
    }
    let seconds = began.elapsed().as_secs_f64();
    failed.into_inner().map_or(Ok(seconds), Err)
}

/// Copies the ranges of one device to the same places of another; returns the seconds.
///
/// # Errors
/// Those of the devices.
pub(super) fn copy((from, to): (&Path, &Path), ranges: &[PlainRange]) -> Result<f64> {
    let from = FileDevice::open(from, &OpenOptions::default())?;
    let to = FileDevice::open(to, &OpenOptions { write: true, ..OpenOptions::default() })?;
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(None));
    let one = |range: &PlainRange| -> Result<()> {
        let read = from.run(DeviceIo::read(range.offset, range.len as usize)).into_read()?;
        let bufs = vec![read.freeze()];
        to.run(DeviceIo::Write { offset: range.offset, bufs }).result.map(drop)
    };
    let began = rt::now();
    rt::fan_out(DEPTH, |_| {
        while let Some(range) = ranges.get(next.fetch_add(1, Relaxed)) {
            if let Err(e) = one(range) {
                failed.lock().get_or_insert(e);
            }
        }
    });
    to.run(DeviceIo::Flush).result?;
    let seconds = began.elapsed().as_secs_f64();
    failed.into_inner().map_or(Ok(seconds), Err)
}

/// Waits until a condition of the pool holds; returns the seconds.
///
/// # Errors
/// An interruption.
pub(super) fn wait(
    run: &mut Run,
    what: &str,
    done: &mut dyn FnMut() -> Result<bool>,
) -> BenchResult<f64> {
    let began = rt::now();
    while !done()? {
        run.step(what, 0, 0)?;
        rt::sleep(std::time::Duration::from_millis(2));
    }
    Ok(began.elapsed().as_secs_f64())
}

/// Replaces the first device by a new one; returns the seconds until the old one is gone.
pub(super) fn replace(
    run: &mut Run,
    running: &RunningPool,
    engine: &Engine,
    old: &Path,
    new: &Path,
) -> BenchResult<f64> {
    let pool = running.pool();
    let request = AttachRequest {
        old: old.to_string_lossy().into_owned(),
        new: Some(NewDevice::Path(NewKind::File(new.to_owned()))),
        mode: AttachMode::Replace,
        sequential: false,
        force: true,
        ashift: None,
        command: None,
    };
    let began = rt::now();
    engine.attach(pool, &request)?;
    wait(run, "resilvering", &mut || {
        let tree = pool.writer()?.zio().tree();
        let old = tree.leaves().any(|(_, leaf)| leaf.device().is_some_and(|d| d.is_at(old)));
        Ok(!old)
    })?;
    Ok(began.elapsed().as_secs_f64())
}

/// Takes the first device away for so many txgs, in each of which records are overwritten, and
/// brings it back. Returns the bytes written meanwhile, and the seconds until it is whole.
pub(super) fn outage(
    run: &mut Run,
    running: &RunningPool,
    engine: &Engine,
    device: &Path,
    (files, record): (&ScrubFiles, u64),
    txgs: u64,
) -> BenchResult<(u64, f64)> {
    /// Records of a txg.
    const RECORDS: u64 = 512;
    let (pool, name) = (running.pool(), device.to_string_lossy().into_owned());
    engine.offline(pool, &name, Offline { temporary: true, ..Offline::default() }, None)?;
    let fs = files_of(running)?;
    let (root, data) = (Caller::root(), noise(record));
    let mut random = XorShift::new(77);
    for _ in 0..txgs {
        for n in 0..RECORDS {
            let at = random.below(files.size / record) * record;
            let id = files.ids[n as usize % files.ids.len()];
            fs.write(&root, id, WritePosition::Offset(at), &data)?;
        }
        pool.sync()?;
    }
    drop(fs);
    let guid = leaf_at(running, device)?;
    let began = rt::now();
    engine.online(pool, &name, false, None)?;
    wait(run, "resilvering", &mut || {
        let writer = pool.writer()?;
        let whole = writer.zio().tree().find(guid).is_some_and(|leaf| !leaf.is_behind());
        Ok(whole && writer.running_scan().is_none())
    })?;
    Ok((txgs * RECORDS * record, began.elapsed().as_secs_f64()))
}

/// A record that does not compress.
pub(super) fn noise(record: u64) -> Vec<u8> {
    let mut data = vec![0; record.next_multiple_of(512) as usize];
    SampleContent::noise(21).fill(0, &mut data);
    data.truncate(record as usize);
    data
}

/// The guid of the first leaf; taken offline, it has no device that could be compared.
fn leaf_at(running: &RunningPool, device: &Path) -> Result<Guid> {
    let tree = running.pool().writer()?.zio().tree();
    let mut leaves = tree.leaves();
    let found = leaves.find(|(_, leaf)| leaf.device().is_none_or(|d| d.is_at(device)));
    found.map(|(_, leaf)| leaf.guid()).ok_or_else(|| Error::bug("a leaf that is gone"))
}

/// Reads some bytes at a random place.
///
/// # Errors
/// Those of the pool.
pub(super) fn read_one(
    fs: &FileSystem,
    files: &ScrubFiles,
    record: u64,
    random: &mut XorShift,
) -> Result<()> {
    let id = files.ids[random.below(files.ids.len() as u64) as usize];
    let at = random.below((files.size / record).max(1)) * record;
    fs.read(id, at, record as usize, Io::WAIT).map(drop)
}
