//! What a fragmentation bench overwrites: a pool in this process, with or without a mount, or
//! the files of a directory. [`RunningPool`] is any bench's pool that is written.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::{Error, ObjectId, Result, Txg};
use cenote::create::{CreateRequest, Force, NewKind, NewVdev, PoolSetting, Role};
use cenote::files::{Caller, New, SetAttrs, WritePosition};
use cenote::inspect::device::StatsSnapshot;
use cenote::inspect::ondisk::BlkPtr;
use cenote::{Dataset, Engine, EngineConfig, FileSystem, Io, Pool, PropData};

use super::frag_load::{OverwriteLoad, OverwriteTarget, TargetCounters};
use super::frag_model::{DeviceTrace, TracedOps};
use super::tidy::{Mounted, ScratchFile};
use super::{BenchResult, Stop};

/// The pool's name, and its file system's.
pub(super) const POOL: &str = "benchf";
pub(super) const DATASET: &str = "benchf/fs";
/// Bytes of a sector of the pool, as a power of two.
pub(super) const ASHIFT: u64 = 12;

/// Most blocks of which the share of gang blocks is taken.
const GANG_SAMPLE: u64 = 100_000;

/// The configuration of a pool.
#[derive(Clone, Debug)]
pub(super) struct FragPoolSpec {
    /// Files or block devices, each a top-level vdev.
    pub(super) devices: Vec<PathBuf>,
    /// A file or block device for the intent log.
    pub(super) log: Option<PathBuf>,
    pub(super) recordsize: u64,
    pub(super) compression: bool,
    /// The devices are the bench's own, so what is on them does not matter.
    pub(super) own: bool,
    /// Overwrite through a mount, made in this directory.
    pub(super) mount: Option<PathBuf>,
    /// Limit of the cache, bytes; `None` for the usual one.
    pub(super) cache_bytes: Option<u64>,
}

/// The pool's space after a run, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FragSpace {
    /// Neither allocated, nor deferred, nor kept back as slop.
    pub(super) free: u64,
    /// Freed in the last txgs, and not yet allocatable.
    pub(super) deferred: u64,
}

/// A pool that this process writes. Dropped without [`RunningPool::end`], as after an error, it
/// stops its writer, so that the devices are free again.
pub(super) struct RunningPool {
    pool: Arc<Pool>,
    engine: Arc<Engine>,
}

impl RunningPool {
    /// Takes over a pool that an engine has open.
    pub(super) fn new(pool: Arc<Pool>, engine: Arc<Engine>) -> RunningPool {
        RunningPool { pool, engine }
    }

    /// Makes the pool [`POOL`] with one empty file system, [`DATASET`].
    ///
    /// # Errors
    /// Those of making pools.
    pub(super) fn create(
        engine: &Arc<Engine>,
        spec: &FragPoolSpec,
    ) -> Result<(RunningPool, Dataset)> {
        let mut vdevs = spec.devices.iter().map(|p| new_vdev(p)).collect::<Result<Vec<_>>>()?;
        if let Some(log) = &spec.log {
            vdevs.push(new_vdev(log)?.for_role(Role::Log));
        }
        RunningPool::create_on(engine, vdevs, spec.own, spec.recordsize, spec.compression)
    }

    /// Makes the pool [`POOL`] of these vdevs, as [`RunningPool::create`]. `own`: what is on
    /// the devices does not matter.
    ///
    /// # Errors
    /// Those of making pools.
    pub(super) fn create_on(
        engine: &Arc<Engine>,
        vdevs: Vec<NewVdev>,
        own: bool,
        recordsize: u64,
        compression: bool,
    ) -> Result<(RunningPool, Dataset)> {
        let request = CreateRequest {
            force: if own { Force::ALL } else { Force::default() },
            settings: vec![PoolSetting::Stored("ashift", ASHIFT)],
            ..CreateRequest::new(POOL, vdevs)
        };
        let pool = engine.create_pool(&request)?;
        let pool = pool.ok_or_else(|| Error::bug("a pool that was not made"))?;
        let running = RunningPool::new(pool, Arc::clone(engine));
        let compression = if compression { 1 } else { 2 };
        let props = [("recordsize", recordsize), ("compression", compression)];
        let props = props.map(|(name, n)| (name.to_owned(), PropData::Num(n)));
        let dataset = running.pool.create_filesystem(DATASET, &props, None)?;
        Ok((running, dataset))
    }

    /// The pool.
    pub(super) fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// The sums of the devices' counters.
    ///
    /// # Errors
    /// None for a pool that is written.
    pub(super) fn device_counters(&self) -> Result<StatsSnapshot> {
        let tree = self.pool.writer()?.zio().tree();
        let devices = tree.leaves().filter_map(|(_, leaf)| leaf.device());
        Ok(devices.map(|d| d.stats().snapshot()).fold(StatsSnapshot::default(), |sum, now| {
            StatsSnapshot {
                reads: sum.reads + now.reads,
                writes: sum.writes + now.writes,
                flushes: sum.flushes + now.flushes,
                bytes_read: sum.bytes_read + now.bytes_read,
                bytes_written: sum.bytes_written + now.bytes_written,
                ..sum
            }
        }))
    }

    /// Destroys the pool or, with `keep`, exports it. No file system of it may be open.
    ///
    /// # Errors
    /// Those of the devices.
    pub(super) fn end(self, keep: bool) -> Result<()> {
        match keep {
            true => self.pool.export(),
            false => self.engine.destroy_pool(Arc::clone(&self.pool), None),
        }
    }
}

impl Drop for RunningPool {
    fn drop(&mut self) {
        if let Ok(writer) = self.pool.writer() {
            // Without effect after an export.
            writer.stop();
        }
    }
}

/// A pool that a bench made.
pub(super) struct FragPool {
    // Before the pool, so that the mount ends first.
    mounted: Option<(DirFiles, Mounted)>,
    files: Vec<ObjectId>,
    fs: Arc<FileSystem>,
    running: RunningPool,
    trace: DeviceTrace,
    /// Bytes that its file system can hold.
    pub(super) available: u64,
}

fn new_vdev(path: &Path) -> Result<NewVdev> {
    let failed = |e| Error::io("cannot look at the device", e).on_path(path.to_string_lossy());
    let block = std::fs::metadata(path).map_err(failed)?.file_type().is_block_device();
    let path = std::path::absolute(path).map_err(failed)?;
    Ok(NewVdev::new(if block { NewKind::Disk(path) } else { NewKind::File(path) }))
}

impl FragPool {
    /// Makes the pool with a file system of `files` empty files.
    ///
    /// # Errors
    /// Those of making pools and mounts.
    pub(super) fn new(spec: &FragPoolSpec, files: usize) -> Result<FragPool> {
        let trace = DeviceTrace::new(TracedOps::Writes);
        let device_wrapper = Some(trace.wrapper());
        let engine = Engine::new(EngineConfig {
            device_wrapper,
            cache_bytes: spec.cache_bytes,
            ..EngineConfig::default()
        })?;
        let (running, dataset) = RunningPool::create(&engine, spec)?;
        let fs = dataset.open_fs()?;
        let make = |n: usize| {
            let (new, name) = (New::file(0o644), file_name(n));
            Ok(fs.make(&Caller::root(), fs.root(), name.as_bytes(), &new)?.id)
        };
        let files = (0..files).map(make).collect::<Result<Vec<_>>>()?;
        running.pool.sync()?;
        let available = dataset.available()?;
        let mounted = match &spec.mount {
            Some(parent) => {
                let mounted = Mounted::new(&dataset, parent, false)?;
                Some((DirFiles::open(mounted.path(), files.len())?, mounted))
            }
            None => None,
        };
        Ok(FragPool { mounted, files, fs, running, trace, available })
    }

    /// The pool.
    pub(super) fn pool(&self) -> &Pool {
        &self.running.pool
    }

    /// The pool's space.
    ///
    /// # Errors
    /// Those of reading the space maps.
    pub(super) fn space(&self) -> Result<FragSpace> {
        let writer = self.pool().writer()?;
        let slop = self.pool().spa().load_space_of(&writer.published().config)?.slop();
        let space = writer.space();
        let (mut free, mut deferred) = (0, 0);
        // A separate log is the last vdev, in another class than the first.
        let vdevs = space.vdevs();
        let data = vdevs.iter().filter(|v| vdevs.first().is_some_and(|first| first.1 == v.1));
        for (vdev, _) in data {
            let totals = space.vdev_totals(*vdev)?;
            free += totals.free();
            deferred += totals.deferred;
        }
        Ok(FragSpace { free: free.saturating_sub(slop), deferred })
    }

    /// The share of gang blocks among up to [`GANG_SAMPLE`] blocks of the files, as on disk.
    ///
    /// # Errors
    /// Those of reading indirect blocks.
    pub(super) fn gangs(&self, load: &OverwriteLoad) -> Result<f64> {
        let records = load.file_size / load.record;
        let step = (records * load.files as u64).div_ceil(GANG_SAMPLE).max(1);
        let (mut gangs, mut all) = (0u64, 0u64);
        for id in &self.files[..load.files] {
            let object = self.fs.objset().object(*id, Io::WAIT)?;
            for block in (0..records).step_by(usize::try_from(step).unwrap_or(usize::MAX)) {
                if let BlkPtr::Block(block) = object.block_pointer(0, block, Io::WAIT)? {
                    all += 1;
                    gangs += u64::from(block.is_gang());
                }
            }
        }
        Ok(gangs as f64 / all.max(1) as f64)
    }

    /// The last txg on disk.
    ///
    /// # Errors
    /// None for a pool that is written.
    pub(super) fn synced_txg(&self) -> Result<Txg> {
        Ok(self.pool().writer()?.txgs().synced_txg())
    }

    /// Ends the mount, and destroys the pool or, with `keep`, exports it.
    ///
    /// # Errors
    /// Those of the devices.
    pub(super) fn end(self, keep: bool) -> Result<()> {
        let FragPool { mounted, fs, running, .. } = self;
        drop((mounted, fs));
        running.end(keep)
    }
}

impl OverwriteTarget for FragPool {
    fn write(&self, file: usize, offset: u64, data: &[u8]) -> Result<()> {
        if let Some((files, _)) = &self.mounted {
            return files.write(file, offset, data);
        }
        let position = WritePosition::Offset(offset);
        self.fs.write(&Caller::root(), self.files[file], position, data).map(drop)
    }

    fn truncate(&self, file: usize) -> Result<()> {
        if let Some((files, _)) = &self.mounted {
            return files.truncate(file);
        }
        let set = SetAttrs { size: Some(0), ..SetAttrs::default() };
        self.fs.set_attrs(&Caller::root(), self.files[file], &set).map(drop)
    }

    fn sync(&self) -> Result<()> {
        if let Some((files, _)) = &self.mounted {
            files.sync()?;
        }
        self.pool().sync()
    }

    fn counters(&self) -> Result<TargetCounters> {
        let now = self.running.device_counters()?;
        let device = Some((now.writes, now.bytes_written));
        Ok(TargetCounters { device, trace: self.trace.snapshot() })
    }
}

fn file_name(n: usize) -> String {
    format!("frag{n}")
}

/// The files of a directory.
pub(super) struct DirFiles {
    files: Vec<File>,
    /// Major and minor number of the directory's device.
    device: (u32, u32),
    _own: Vec<ScratchFile>,
}

impl DirFiles {
    /// Makes empty files in a directory; they are removed when dropped.
    ///
    /// # Errors
    /// Those of the file system; `Exists` if a file of such a name is there.
    pub(super) fn create(dir: &Path, files: usize) -> Result<DirFiles> {
        let mut own = Vec::new();
        for path in (0..files).map(|n| dir.join(file_name(n))) {
            let failed = |e| Error::io("cannot make a file", e).on_path(path.to_string_lossy());
            File::create_new(&path).map_err(failed)?;
            own.push(ScratchFile::new(path));
        }
        Ok(DirFiles { _own: own, ..DirFiles::open(dir, files)? })
    }

    /// Opens files that exist.
    fn open(dir: &Path, files: usize) -> Result<DirFiles> {
        let failed = |e| Error::io("cannot open the files", e).on_path(dir.to_string_lossy());
        let open = |n| OpenOptions::new().read(true).write(true).open(dir.join(file_name(n)));
        let opened = (0..files).map(open).collect::<std::io::Result<Vec<_>>>().map_err(failed)?;
        Ok(DirFiles { files: opened, device: disk_of(dir)?, _own: Vec::new() })
    }
}

fn write_failed(e: std::io::Error) -> Error {
    Error::io("cannot write", e)
}

impl OverwriteTarget for DirFiles {
    fn write(&self, file: usize, offset: u64, data: &[u8]) -> Result<()> {
        self.files[file].write_all_at(data, offset).map_err(write_failed)
    }

    fn truncate(&self, file: usize) -> Result<()> {
        self.files[file].set_len(0).map_err(write_failed)
    }

    fn sync(&self) -> Result<()> {
        self.files.iter().try_for_each(|file| file.sync_all().map_err(write_failed))
    }

    fn counters(&self) -> Result<TargetCounters> {
        let text = std::fs::read_to_string("/proc/diskstats").unwrap_or_default();
        let device = diskstats(&text, self.device).map(|d| (d.writes, d.bytes_written));
        Ok(TargetCounters { device, ..TargetCounters::default() })
    }
}

/// Major and minor number of the device of a directory's file system.
///
/// # Errors
/// It cannot be looked at.
pub(super) fn disk_of(dir: &Path) -> Result<(u32, u32)> {
    let failed = |e| Error::io("cannot look at the directory", e).on_path(dir.to_string_lossy());
    let dev = std::fs::metadata(dir).map_err(failed)?.dev();
    Ok((rustix::fs::major(dev), rustix::fs::minor(dev)))
}

/// Operations that a device completed, and their bytes, from the text of `/proc/diskstats`.
pub(super) fn diskstats(text: &str, device: (u32, u32)) -> Option<StatsSnapshot> {
    let id = [device.0.to_string(), device.1.to_string()];
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let line = text.lines().map(words).find(|w| w.len() > 9 && w[..2] == id)?;
    let number = |at: usize| line[at].parse::<u64>().ok();
    Some(StatsSnapshot {
        reads: number(3)?,
        bytes_read: number(5)?.checked_mul(512)?,
        writes: number(7)?,
        bytes_written: number(9)?.checked_mul(512)?,
        ..StatsSnapshot::default()
    })
}

/// The directories in a list `[NAME=]DIR,...`.
pub(super) fn named_dirs(list: &str) -> BenchResult<Vec<(String, PathBuf)>> {
    let one = |word: &str| {
        let (name, dir) = word.split_once('=').unwrap_or((word, word));
        match Path::new(dir).is_dir() {
            true => Ok((name.to_owned(), dir.into())),
            false => Err(Stop::usage(format!("--dir: '{dir}' is no directory"))),
        }
    };
    list.split(',').map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_diskstats() {
        let text = "   7       0 loop0 0 0 0 0 0 0 0 0 0 0 0\n 254       0 vda 10 2 30 4 50 6 70 8 0 9 10\n";
        let wanted = StatsSnapshot {
            reads: 10,
            bytes_read: 30 * 512,
            writes: 50,
            bytes_written: 70 * 512,
            ..StatsSnapshot::default()
        };
        assert_eq!(diskstats(text, (254, 0)), Some(wanted));
        assert_eq!(diskstats(text, (0, 41)), None);
    }

    /// Story: the writer of a run that ended with an error kept its thread and its devices: a
    /// second pool on the same file was refused as busy.
    #[test]
    fn a_pool_that_is_dropped_frees_its_devices() {
        let scratch = testkit::Scratch::new("frag-drop");
        let image = scratch.path().join("pool.img");
        std::fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
        let spec = FragPoolSpec {
            devices: vec![image],
            log: None,
            recordsize: 8 << 10,
            compression: true,
            own: true,
            mount: None,
            cache_bytes: None,
        };
        let first = FragPool::new(&spec, 1).unwrap();
        let writer = std::sync::Arc::downgrade(first.pool().writer().unwrap());
        drop(first);
        assert!(writer.upgrade().is_none(), "the writer still runs");
        FragPool::new(&spec, 1).unwrap().end(false).unwrap();
    }
}
