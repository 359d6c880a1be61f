//! A pool with a file system for a bench of synchronous writes, and the counters of its devices
//! and its intent log.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use base::{Error, ObjectId, Result};
use cenote::PropData;
use cenote::create::{CreateRequest, Force, NewKind, NewVdev};
use cenote::files::{Caller, New, WritePosition};
use cenote::inspect::spa::engine::Writer;
use cenote::inspect::zil::Log;
use cenote::{Engine, EngineConfig, FileSystem, ImportOptions, Pool, Search};

use super::write_pool::preallocate;

/// The pool's name, and its file system's.
pub(super) const POOL: &str = "benchs";
pub(super) const DATASET: &str = "benchs/fs";
/// The file of the pool.
const IMAGE: &str = "sync.img";

/// An open pool; dropping it does not export it.
pub(super) struct SyncPool {
    pub(super) engine: Arc<Engine>,
    pub(super) pool: Arc<Pool>,
    pub(super) fs: Arc<FileSystem>,
    pub(super) log: Arc<Log>,
}

/// Counters of the devices and the log.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SyncCounts {
    pub(super) flushes: u64,
    pub(super) device: u64,
    pub(super) log: u64,
    pub(super) blocks: u64,
    pub(super) batches: u64,
}

impl SyncCounts {
    pub(super) fn since(self, before: SyncCounts) -> SyncCounts {
        SyncCounts {
            flushes: self.flushes - before.flushes,
            device: self.device - before.device,
            log: self.log - before.log,
            blocks: self.blocks - before.blocks,
            batches: self.batches - before.batches,
        }
    }
}

/// The pool's file in a directory.
pub(super) fn image(dir: &Path) -> PathBuf {
    dir.join(IMAGE)
}

impl SyncPool {
    /// Makes the pool on one file of `size` bytes, all of which were written before.
    ///
    /// # Errors
    /// Those of making files and pools.
    pub(super) fn new(dir: &Path, size: u64, record: u64) -> Result<SyncPool> {
        let path = image(dir);
        preallocate(&path, size)?;
        let engine = Engine::new(EngineConfig::default())?;
        let vdevs = vec![NewVdev::new(NewKind::File(path))];
        let request = CreateRequest { force: Force::ALL, ..CreateRequest::new(POOL, vdevs) };
        let pool = engine.create_pool(&request)?;
        let pool = pool.ok_or_else(|| Error::bug("a pool that was not made"))?;
        let props = [("recordsize", record), ("compression", 2)];
        let props = props.map(|(name, n)| (name.to_owned(), PropData::Num(n)));
        pool.create_filesystem(DATASET, &props, None)?;
        SyncPool::of(engine, pool)
    }

    fn of(engine: Arc<Engine>, pool: Arc<Pool>) -> Result<SyncPool> {
        let dataset = pool.dataset(DATASET)?;
        let (fs, head) = (dataset.open_fs()?, dataset.object());
        let log = pool.writer()?.log_in_use(head);
        let log = log.ok_or_else(|| Error::bug("a file system without a log"))?;
        Ok(SyncPool { engine, pool, fs, log })
    }

    /// Imports the pool in a directory, as after a crash; the log is replayed.
    ///
    /// # Errors
    /// Those of an import.
    pub(super) fn import(dir: &Path) -> Result<SyncPool> {
        SyncPool::import_with(dir, None)
    }

    /// As [`SyncPool::import`], with another limit of the cache.
    ///
    /// # Errors
    /// Those of an import.
    pub(super) fn import_with(dir: &Path, cache_bytes: Option<u64>) -> Result<SyncPool> {
        let engine = Engine::new(EngineConfig { cache_bytes, ..EngineConfig::default() })?;
        let found =
            engine.discover(&Search { paths: vec![dir.to_owned()], ..Search::default() })?;
        let found = found.pools.iter().find(|p| p.name == POOL);
        let found = found.ok_or_else(|| Error::not_found("the pool is gone"))?;
        let options = ImportOptions { force: true, ..ImportOptions::default() };
        let pool = engine.import(found, &options)?;
        SyncPool::of(engine, pool)
    }

    pub(super) fn writer(&self) -> Result<&Arc<Writer>> {
        self.pool.writer()
    }

    /// From now on a txg is synced only when a thread waits for it.
    ///
    /// # Errors
    /// None for a pool that is written.
    pub(super) fn no_txgs(&self) -> Result<()> {
        let txgs = self.writer()?.txgs();
        let mut limits = txgs.limits();
        limits.timeout_s = 3600;
        txgs.set_limits(&limits);
        Ok(())
    }

    /// A new file in the root directory.
    ///
    /// # Errors
    /// Those of making one.
    pub(super) fn file(&self, name: &str) -> Result<ObjectId> {
        let new = New::file(0o644);
        Ok(self.fs.make(&Caller::root(), self.fs.root(), name.as_bytes(), &new)?.id)
    }

    /// Writes without waiting for a commit.
    ///
    /// # Errors
    /// Those of writing.
    pub(super) fn write(&self, file: ObjectId, at: u64, data: &[u8]) -> Result<()> {
        self.fs.write(&Caller::root(), file, WritePosition::Offset(at), data).map(drop)
    }

    /// The counters so far.
    ///
    /// # Errors
    /// None for a pool that is written.
    pub(super) fn counts(&self) -> Result<SyncCounts> {
        let tree = self.writer()?.zio().tree();
        let devices = tree.leaves().filter_map(|(_, leaf)| leaf.device());
        let mut counts = SyncCounts::default();
        for stats in devices.map(|d| d.stats().snapshot()) {
            counts.flushes += stats.flushes;
            counts.device += stats.bytes_written;
        }
        let stats = self.log.stats();
        counts.log = stats.normal.written.load(Relaxed) + stats.slog.written.load(Relaxed);
        counts.blocks = stats.blocks();
        counts.batches = stats.batches.load(Relaxed);
        Ok(counts)
    }
}

impl Drop for SyncPool {
    /// Nothing is written: the disk has the state after a crash.
    fn drop(&mut self) {
        if let Ok(writer) = self.pool.writer() {
            writer.stop();
        }
    }
}

/// Writes of `block` bytes a second that `fio` makes durable one by one, in a file that was
/// written before; `None` if there is no `fio`.
pub(super) fn fio(file: &Path, size: u64, block: u64, count: u64) -> Option<f64> {
    let out = Command::new("fio")
        .args(["--name=s", "--rw=write", "--ioengine=psync", "--fdatasync=1"])
        .args(["--output-format=terse", "--terse-version=3", "--direct=1"])
        .arg(format!("--filename={}", file.display()))
        .arg(format!("--bs={block}"))
        .arg(format!("--size={size}"))
        .arg(format!("--number_ios={count}"))
        .output()
        .ok()?;
    let text = String::from_utf8(out.stdout).ok()?;
    let line = text.lines().find(|l| l.starts_with("3;"))?;
    line.split(';').nth(48)?.parse::<f64>().ok().filter(|iops| *iops > 0.0)
}
