//! Where an aged tree is: a pool of this process, with or without a mount, or a directory.

use std::path::Path;
use std::sync::Arc;

use base::{Error, Result};
use cenote::layout::LayoutScore;
use cenote::{Dataset, Engine, EngineConfig, ImportOptions, Search};

use super::aged_tree::{AgedTree, HostTree, PoolTree};
use super::frag_model::{ArmCounters, DeviceTrace, TraceSnapshot, TracedOps};
use super::frag_target::{DATASET, FragPoolSpec, POOL, RunningPool, disk_of, diskstats};
use super::lab::{self, Disk};
use super::tidy::{Mounted, Scratch};

/// The reads of the devices so far.
#[derive(Clone, Debug, Default)]
pub(super) struct AgedCounters {
    /// Reads that the devices completed, and their bytes; `None` where nothing counts them.
    device: Option<Disk>,
    /// The sequence of reads; empty where it cannot be observed.
    trace: TraceSnapshot,
}

impl AgedCounters {
    /// What was read since `before`, an earlier state.
    pub(super) fn since(&self, before: &AgedCounters) -> (Option<Disk>, Option<ArmCounters>) {
        let device = before.device.zip(self.device).map(|(then, now)| Disk {
            reads: now.reads.saturating_sub(then.reads),
            bytes: now.bytes.saturating_sub(then.bytes),
        });
        let trace = self.trace.since(&before.trace);
        (device, (trace.ops > 0).then_some(trace))
    }
}

/// A tree whose reads can be made cold and counted.
pub(super) enum AgedTarget {
    Pool(Box<AgedPool>),
    Dir(AgedDir),
}

/// The layout of a tree: of each file by itself, and of the walk over all files.
#[derive(Clone, Copy, Debug)]
pub(super) struct AgedLayout {
    pub(super) files: LayoutScore,
    pub(super) tree: LayoutScore,
}

impl AgedTarget {
    /// The tree.
    ///
    /// # Errors
    /// `Bug` after an import that failed.
    pub(super) fn tree(&self) -> Result<&dyn AgedTree> {
        match self {
            AgedTarget::Pool(pool) => {
                let open = pool.open()?;
                Ok(match &open.mounted {
                    Some((tree, _)) => tree,
                    None => &open.tree,
                })
            }
            AgedTarget::Dir(dir) => Ok(&dir.tree),
        }
    }

    /// Waits until everything written is on the devices.
    ///
    /// # Errors
    /// Those of the devices.
    pub(super) fn sync(&self) -> Result<()> {
        self.tree()?.sync()?;
        match self {
            AgedTarget::Pool(pool) => pool.open()?.tree.sync(),
            AgedTarget::Dir(_) => Ok(()),
        }
    }

    /// Empties the caches: exports the pool and imports it with a new engine; for a directory,
    /// drops the kernel's caches. False if that is not permitted.
    ///
    /// # Errors
    /// Those of exports, imports and mounts.
    pub(super) fn cold(&mut self) -> Result<bool> {
        match self {
            AgedTarget::Pool(pool) => pool.reopen().map(|()| true),
            AgedTarget::Dir(dir) => {
                dir.tree.sync()?;
                Ok(lab::drop_kernel_caches())
            }
        }
    }

    /// The counters so far. They begin anew with [`AgedTarget::cold`].
    ///
    /// # Errors
    /// None for a pool that is open.
    pub(super) fn counters(&self) -> Result<AgedCounters> {
        match self {
            AgedTarget::Pool(pool) => {
                let open = pool.open()?;
                let now = open.running.device_counters()?;
                let device = Some(Disk { reads: now.reads, bytes: now.bytes_read });
                Ok(AgedCounters { device, trace: open.trace.snapshot() })
            }
            AgedTarget::Dir(dir) => {
                let text = std::fs::read_to_string("/proc/diskstats").unwrap_or_default();
                let device = diskstats(&text, dir.device);
                let device = device.map(|d| Disk { reads: d.reads, bytes: d.bytes_read });
                Ok(AgedCounters { device, trace: TraceSnapshot::default() })
            }
        }
    }

    /// Bytes that may still be written; `None` where only the caller knows.
    ///
    /// # Errors
    /// Those of reading the dataset.
    pub(super) fn available(&self) -> Result<Option<u64>> {
        match self {
            // A dataset's numbers are those of the time when it was opened.
            AgedTarget::Pool(pool) => {
                let dataset = pool.open()?.running.pool().dataset(DATASET)?;
                dataset.available().map(Some)
            }
            AgedTarget::Dir(_) => Ok(None),
        }
    }

    /// The layout of the tree on disk; `None` for a directory.
    ///
    /// # Errors
    /// Those of reading.
    pub(super) fn layout(&self) -> Result<Option<AgedLayout>> {
        let AgedTarget::Pool(pool) = self else { return Ok(None) };
        let (files, tree) = pool.open()?.tree.layout()?;
        Ok(Some(AgedLayout { files, tree }))
    }

    /// Ends a pool, which is destroyed or, with `keep`, exported; removes the files of a
    /// directory.
    ///
    /// # Errors
    /// Those of the devices.
    pub(super) fn end(self, keep: bool) -> Result<()> {
        match self {
            AgedTarget::Pool(mut pool) => match pool.open.take() {
                Some(open) => open.end(keep),
                None => Ok(()),
            },
            AgedTarget::Dir(_) => Ok(()),
        }
    }
}

/// A pool that this process made.
pub(super) struct AgedPool {
    spec: FragPoolSpec,
    open: Option<AgedOpenPool>,
}

/// The parts that an import makes anew.
struct AgedOpenPool {
    // Before the pool, so that the mount ends first.
    mounted: Option<(HostTree, Mounted)>,
    tree: PoolTree,
    running: RunningPool,
    trace: DeviceTrace,
}

impl AgedOpenPool {
    fn new(
        spec: &FragPoolSpec,
        (running, dataset): (RunningPool, Dataset),
        trace: DeviceTrace,
    ) -> Result<AgedOpenPool> {
        let pool = Arc::clone(running.pool());
        let tree = PoolTree::new(dataset.open_fs()?, Box::new(move || pool.sync()));
        let mounted = match &spec.mount {
            Some(parent) => {
                let mounted = Mounted::new(&dataset, parent, false)?;
                Some((HostTree::new(mounted.path().to_owned()), mounted))
            }
            None => None,
        };
        Ok(AgedOpenPool { mounted, tree, running, trace })
    }

    fn end(self, keep: bool) -> Result<()> {
        let AgedOpenPool { mounted, tree, running, .. } = self;
        drop((mounted, tree));
        running.end(keep)
    }
}

fn traced_engine() -> Result<(Arc<Engine>, DeviceTrace)> {
    let trace = DeviceTrace::new(TracedOps::Reads);
    let device_wrapper = Some(trace.wrapper());
    let engine = Engine::new(EngineConfig { device_wrapper, ..EngineConfig::default() })?;
    Ok((engine, trace))
}

impl AgedPool {
    /// Makes the pool with an empty file system.
    ///
    /// # Errors
    /// Those of making pools and mounts.
    pub(super) fn create(spec: FragPoolSpec) -> Result<AgedPool> {
        let (engine, trace) = traced_engine()?;
        let made = RunningPool::create(&engine, &spec)?;
        let open = Some(AgedOpenPool::new(&spec, made, trace)?);
        Ok(AgedPool { spec, open })
    }

    fn open(&self) -> Result<&AgedOpenPool> {
        self.open.as_ref().ok_or_else(|| Error::bug("the pool is not imported"))
    }

    fn reopen(&mut self) -> Result<()> {
        if let Some(open) = self.open.take() {
            open.end(true)?;
        }
        let (engine, trace) = traced_engine()?;
        let search = Search { paths: self.spec.devices.clone(), ..Search::default() };
        let found = engine.discover(&search)?;
        let pool = found.pools.iter().find(|p| p.name == POOL);
        let missing = || Error::not_found(format!("no pool named '{POOL}'"));
        let pool = engine.import(pool.ok_or_else(missing)?, &ImportOptions::default())?;
        let running = RunningPool::new(pool, engine);
        let dataset = running.pool().dataset(DATASET)?;
        self.open = Some(AgedOpenPool::new(&self.spec, (running, dataset), trace)?);
        Ok(())
    }
}

/// A directory of another file system.
pub(super) struct AgedDir {
    tree: HostTree,
    device: (u32, u32),
    _scratch: Scratch,
}

impl AgedDir {
    /// A new directory in `parent`; it is removed when dropped.
    ///
    /// # Errors
    /// It cannot be made.
    pub(super) fn create(parent: &Path) -> Result<AgedDir> {
        let scratch = Scratch::new(parent)?;
        let device = disk_of(parent)?;
        let tree = HostTree::new(scratch.path().to_owned());
        Ok(AgedDir { tree, device, _scratch: scratch })
    }
}
