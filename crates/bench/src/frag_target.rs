//! What a fragmentation bench overwrites: a pool in this process, with or without a mount, or
//! the files of a directory.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::{Error, ObjectId, Result, Txg};
use cenote::create::{CreateRequest, Force, NewKind, NewVdev, PoolSetting, Role};
use cenote::files::{Caller, New, SetAttrs, WritePosition};
use cenote::inspect::ondisk::BlkPtr;
use cenote::{Engine, EngineConfig, FileSystem, Io, Pool, PropData};

use super::frag_load::{OverwriteLoad, OverwriteTarget, TargetCounters};
use super::frag_model::WriteTrace;
use super::tidy::{Mounted, ScratchFile};

/// The pool's name, and its file system's.
pub(super) const POOL: &str = "benchf";
const DATASET: &str = "benchf/fs";
/// Bytes of a sector of the pool, as a power of two.
const ASHIFT: u64 = 12;

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
}

/// The pool's space after a run, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FragSpace {
    /// Neither allocated, nor deferred, nor kept back as slop.
    pub(super) free: u64,
    /// Freed in the last txgs, and not yet allocatable.
    pub(super) deferred: u64,
}

/// A pool that a bench made.
pub(super) struct FragPool {
    // Before the pool, so that the mount ends first.
    mounted: Option<(DirFiles, Mounted)>,
    files: Vec<ObjectId>,
    fs: Arc<FileSystem>,
    pub(super) pool: Arc<Pool>,
    engine: Arc<Engine>,
    trace: WriteTrace,
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
        let trace = WriteTrace::default();
        let device_wrapper = Some(trace.wrapper());
        let engine = Engine::new(EngineConfig { device_wrapper, ..EngineConfig::default() })?;
        let mut vdevs = spec.devices.iter().map(|p| new_vdev(p)).collect::<Result<Vec<_>>>()?;
        if let Some(log) = &spec.log {
            vdevs.push(new_vdev(log)?.for_role(Role::Log));
        }
        let request = CreateRequest {
            force: if spec.own { Force::ALL } else { Force::default() },
            settings: vec![PoolSetting::Stored("ashift", ASHIFT)],
            ..CreateRequest::new(POOL, vdevs)
        };
        let pool = engine.create_pool(&request)?;
        let pool = pool.ok_or_else(|| Error::bug("a pool that was not made"))?;
        let compression = if spec.compression { 1 } else { 2 };
        let props = [("recordsize", spec.recordsize), ("compression", compression)];
        let props = props.map(|(name, n)| (name.to_owned(), PropData::Num(n)));
        let dataset = pool.create_filesystem(DATASET, &props, None)?;
        let fs = dataset.open_fs()?;
        let make = |n: usize| {
            let (new, name) = (New::file(0o644), file_name(n));
            Ok(fs.make(&Caller::root(), fs.root(), name.as_bytes(), &new)?.id)
        };
        let files = (0..files).map(make).collect::<Result<Vec<_>>>()?;
        pool.sync()?;
        let available = dataset.available()?;
        let mounted = match &spec.mount {
            Some(parent) => {
                let mounted = Mounted::new(&dataset, parent, false)?;
                Some((DirFiles::open(mounted.path(), files.len())?, mounted))
            }
            None => None,
        };
        Ok(FragPool { mounted, files, fs, pool, engine, trace, available })
    }

    /// The pool's space.
    ///
    /// # Errors
    /// Those of reading the space maps.
    pub(super) fn space(&self) -> Result<FragSpace> {
        let writer = self.pool.writer()?;
        let slop = self.pool.spa().load_space_of(&writer.published().config)?.slop();
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
        Ok(self.pool.writer()?.txgs().synced_txg())
    }

    /// Ends the mount, and destroys the pool or, with `keep`, exports it.
    ///
    /// # Errors
    /// Those of the devices.
    pub(super) fn end(self, keep: bool) -> Result<()> {
        let FragPool { mounted, fs, pool, engine, .. } = self;
        drop((mounted, fs));
        if keep { pool.export() } else { engine.destroy_pool(pool, None) }
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
        self.pool.sync()
    }

    fn counters(&self) -> Result<TargetCounters> {
        let tree = self.pool.writer()?.zio().tree();
        let devices = tree.leaves().filter_map(|(_, leaf)| leaf.device());
        let device = devices
            .map(|d| d.stats().snapshot())
            .fold((0, 0), |sum, now| (sum.0 + now.writes, sum.1 + now.bytes_written));
        Ok(TargetCounters { device: Some(device), trace: self.trace.snapshot() })
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
        let dev = std::fs::metadata(dir).map_err(failed)?.dev();
        let device = (rustix::fs::major(dev), rustix::fs::minor(dev));
        Ok(DirFiles { files: opened, device, _own: Vec::new() })
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
        Ok(TargetCounters { device: diskstats(&text, self.device), ..TargetCounters::default() })
    }
}

/// Writes that a device completed, and their bytes, from the text of `/proc/diskstats`.
fn diskstats(text: &str, device: (u32, u32)) -> Option<(u64, u64)> {
    let id = [device.0.to_string(), device.1.to_string()];
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let line = text.lines().map(words).find(|w| w.len() > 9 && w[..2] == id)?;
    Some((line[7].parse().ok()?, line[9].parse::<u64>().ok()? * 512))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_diskstats() {
        let text = "   7       0 loop0 0 0 0 0 0 0 0 0 0 0 0\n 254       0 vda 10 2 30 4 50 6 70 8 0 9 10\n";
        assert_eq!(diskstats(text, (254, 0)), Some((50, 70 * 512)));
        assert_eq!(diskstats(text, (0, 41)), None);
    }
}
