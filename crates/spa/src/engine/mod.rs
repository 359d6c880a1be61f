//! A pool open for writing: transaction groups from memory to the uberblock.
//!
//! # Theory
//! [`Writer`] is the writable half of an imported pool. Callers change object sets of live
//! datasets under a [`dmu::Tx`] ([`Writer::begin_for`]). A change of the MOS is a sync task
//! ([`Writer::sync_task`]), which the one sync thread runs within a txg. That thread takes
//! txg after txg from [`txg::Txgs`] and writes it (`sync`): datasets, tasks, frees, space
//! maps, configuration, and the MOS, in passes until nothing changes; then labels and
//! uberblock in their order (`write::commit`).
//!
//! # Crash argument
//! All writes of a txg are made to space that is free in the maps of the last durable
//! uberblock. Space that the txg frees is not reused before its own uberblock is durable
//! (`metaslab`). The commit flushes every vdev written to before the first uberblock, so a
//! readable uberblock refers to a complete txg. Hence after a power failure at any moment,
//! one txg is complete on disk, and none in part.
//!
//! # Invariants
//! * Only the sync thread changes the MOS, in the txg that it writes.
//! * A txg that fails is not committed, nor is any after it: the pool suspends, and the
//!   state synced before is unchanged. A txg that waits for missing devices continues when
//!   they are back (`outage`).
//!
//! # Departures from OpenZFS
//! Space maps are written before the MOS in each pass, which saves a pass.
//!
//! Space for open transactions is reserved in one ledger (`ledger`).
//!
//! Lock order: `state` (by the sync thread, for a whole txg) → `names` → `heads` → locks of
//! `dmu`. `tasks`, `early_tasks`, `logs` and `published` are leaves.

mod block_costs;
mod block_refs;
pub(crate) mod checkpoint;
pub(crate) mod claim;
mod clone_sources;
mod clones;
mod condense;
mod config;
pub mod create;
mod datasets;
mod declare;
mod dedup;
mod delegation;
mod destroy;
mod device_removal;
mod effective;
mod emptying;
mod errlog;
mod exclusion;
mod expansion;
mod heads;
mod heal;
mod holds;
mod idle_logs;
mod in_use;
mod initialize;
pub(crate) mod job_record;
pub(crate) mod leaf_jobs;
mod ledger;
mod log;
mod maps;
mod obsolete;
mod open;
mod outage;
mod pools;
mod rebuild;
mod receive;
mod receive_partial;
mod receive_raw;
mod relocation;
mod removal;
mod rename;
mod resilver_request;
mod scan;
mod space_io;
mod space_status;
mod store;
pub(crate) mod sync;
mod tasks;
mod topology;
mod trim;
mod unclone;
mod upgrade;
pub mod vdev_props;
pub(crate) mod vdev_rebuild;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};

use base::planted::{BugSwitch, TestValue};
use base::rt::{JoinHandle, Mutex, RwLock};
use base::{Error, Guid, Result, Txg, VdevId};
use dmu::Objset;
use dsl::Mos;
use dsl::write::{LineagePlants, Ratios};
use metaslab::Space;
use nvlist::NvList;
use ondisk::config::{PoolConfig, PoolState};
use ondisk::uberblock::Uberblock;
use txg::Txgs;
use vdev::TxgRanges;
use zio::Zio;

use crate::write::commit::Plants as CommitPlants;
pub(crate) use config::commit_labels;
use maps::Maps;
use space_io::SpaceIo;
use tasks::SyncTask;

pub use block_refs::BlockRefPlants;
pub use checkpoint::{CheckpointState, CheckpointStatus, Taken};
pub use clones::NewClone;
pub use datasets::{Content, NewDataset, PropChange};
pub use dedup::{DedupPlants, PruneAmount};
pub use delegation::PermissionChange;
pub use destroy::EachBatch;
pub use device_removal::{RemovalEstimate, RemovalPlants, RemovalTuning};
pub use effective::{effective, find_dir};
pub use emptying::{
    EmptyRange, EmptyingPlants, ExcludedSpace, Immovable, MosPlace, MosStep, ShrinkPlan,
};
pub use expansion::{ExpansionPlants, ExpansionProgress, ExpansionTuning};
pub use heads::objset_props;
pub use holds::{NewBookmark, NewRedaction, SnapshotHold};
pub use in_use::{DatasetUse, PartialUse};
pub use job_record::{JobKind, JobRecord, JobState, JobStatus};
pub use leaf_jobs::FreeSpaceTuning;
pub use ledger::SpaceAccount;
pub(crate) use maps::LOGS_DIRECTORY;
pub use obsolete::RemovedPlants;
pub(crate) use open::assemble;
pub use open::{Parts, WriterOptions};
pub use pools::{Devices, PoolChange, init_aux_labels};
pub use receive::{EndReceive, NewReceive, ReceivePlants, ReceiveTarget};
pub use receive_raw::RawReceive;
pub use relocation::{
    BlockPosition, CopyTarget, RelocationBatch, RelocationOutcome, RelocationPlants, is_immovable,
};
pub use resilver_request::ResilverTuning;
pub use scan::ErrorScrubProgress;
pub use scan::{PAUSED as SCAN_PAUSED, ScanLimits, ScanPlants, ScanProgress, ScanRequest};
pub use sync::Flags;
pub use tasks::{Command, TaskCx};
pub(crate) use topology::split_tree;
pub use topology::{
    AttachMode, NewMember, Offline, OfflineMode, SplitDevice, TopologyPlants, leaves_to_split,
};
pub use vdev_rebuild::{
    RebuildPlants, RebuildProgress, RebuildRecord, RebuildState, RebuildTuning,
};

/// Planted bugs and values of tests ([`base::planted`]).
#[derive(Debug, Default)]
pub struct Plants {
    /// Labels and uberblocks before the data, or in the wrong order.
    pub commit: CommitPlants,
    /// Changes of the vdev tree lose what leaves miss.
    pub topology: TopologyPlants,
    /// Frees of a txg are reused without waiting for later txgs.
    pub no_defer: BugSwitch,
    /// Blocks of intent logs are not flushed.
    pub no_log_flush: Arc<BugSwitch>,
    /// A rolled back dataset keeps the header of an intent log that its snapshot has.
    pub inherited_log: BugSwitch,
    /// A rollback does not free the blocks of the dataset's intent log.
    pub kept_log: BugSwitch,
    /// Bugs of operations on datasets.
    pub lineage: LineagePlants,
    /// Bytes reserved instead of the slop, so that a small pool gets as full as a large
    /// one; 0: the slop. Not a bug.
    pub slop: Arc<TestValue>,
    /// Most datasets that one txg destroys; 0: the engine's own number. Not a bug.
    pub destroyed_at_once: TestValue,
    /// One more than the blocks that a txg frees in the background; 0: the engine's own
    /// number. Not a bug.
    pub freed_at_once: TestValue,
    /// Bugs of the scan.
    pub scan: ScanPlants,
    /// Bugs of sequential rebuilds.
    pub rebuild: RebuildPlants,
    /// Bugs of receives.
    pub receive: ReceivePlants,
    /// Bugs of relocations.
    pub relocation: RelocationPlants,
    /// Bugs of emptying vdevs.
    pub emptying: EmptyingPlants,
}

/// The state of a live pool that readers see.
#[derive(Clone, Debug)]
pub struct Published {
    /// The configuration of the last synced txg.
    pub config: Arc<PoolConfig>,
    /// The last uberblock.
    pub uberblock: Uberblock,
}

/// The state that the sync thread owns.
pub(crate) struct SyncState {
    pub(crate) config: PoolConfig,
    pub(crate) uberblock: Uberblock,
    /// Labels and the configuration object must be written.
    pub(crate) dirty: bool,
    /// The configuration that this txg wrote.
    pub(crate) packed: Option<Vec<u8>>,
    pub(crate) maps: Maps,
    pub(crate) ratios: Ratios,
    pub(crate) deflate: Vec<u64>,
    /// Roles of vdevs whose ZAPs are still to be made.
    pub(crate) new_vdevs: BTreeMap<VdevId, Option<&'static str>>,
    /// Txgs that leaves missed, to be stored in their DTLs.
    pub(crate) missed: Vec<(Guid, TxgRanges)>,
    /// Flush all logged changes in the next txg (export).
    pub(crate) flush_all: bool,
    /// Old space maps, logs and arrays that the next txg replaces.
    pub(crate) replaces: Option<std::collections::BTreeSet<u64>>,
    /// There may be blocks to free in the background.
    pub(crate) background: bool,
    /// Freeing in the background continues in the next txg.
    pub(crate) again: bool,
    /// The number of txgs that still defer frees.
    pub(crate) draining: bool,
    pub(crate) failed: Option<String>,
}

/// A pool open for writing.
pub struct Writer {
    zio: Arc<Zio>,
    mos: Mos,
    name: String,
    txgs: Arc<Txgs>,
    space: Arc<Space>,
    space_io: Arc<SpaceIo>,
    options: WriterOptions,
    state: Mutex<SyncState>,
    heads: Mutex<BTreeMap<u64, Arc<Objset>>>,
    /// Intent logs of heads that were opened as file systems.
    logs: Mutex<log::Logs>,
    idle_logs: idle_logs::IdleLogs,
    /// Early blocks of destroyed datasets: the txgs in which they were born free them.
    orphaned_blocks: Mutex<Vec<ondisk::BlkPtr>>,
    /// The first txg that was written since the pool was opened.
    first_txg: Txg,
    /// The import has not ended: the pool is not registered yet, so no user can clear it.
    pub(crate) opening: AtomicBool,
    /// The pool is being exported or destroyed.
    closing: AtomicBool,
    tasks: Mutex<BTreeMap<Txg, Vec<SyncTask>>>,
    /// Heads that are being received.
    receives: Mutex<BTreeMap<u64, Arc<receive::ReceiveProgress>>>,
    /// Snapshots that must not be destroyed, and heads that must not change, by object, and how
    /// often.
    datasets_in_use: Mutex<BTreeMap<u64, usize>>,
    /// Tasks that run before anything else of their txg.
    early_tasks: Mutex<BTreeMap<Txg, Vec<SyncTask>>>,
    checkpoint: checkpoint::Checkpoint,
    removed: obsolete::Removed,
    removal: Arc<device_removal::DeviceRemoval>,
    expansion: Arc<expansion::RaidzExpansion>,
    block_refs: Arc<block_refs::BlockRefs>,
    clone_sources: clone_sources::CloneSources,
    dedup: dedup::Dedup,
    jobs: Arc<leaf_jobs::LeafJobs>,
    autotrim: Arc<trim::Autotrim>,
    rebuilds: Arc<vdev_rebuild::Rebuilds>,
    /// Itself, for threads that it starts.
    me: OnceLock<Weak<Writer>>,
    published: RwLock<Published>,
    /// Held by tasks while they change names of datasets and their properties.
    names: RwLock<()>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Where events are posted.
    events: OnceLock<zevent::PoolSource>,
    rotor: AtomicU64,
    ledger: Arc<ledger::Ledger>,
    outages: Arc<outage::Outages>,
    resilver_request: resilver_request::ResilverRequest,
    topology: topology::TopologyState,
    scans: Arc<scan::Scans>,
    stored_errors: errlog::StoredErrors,
    /// Most passes of a txg since the pool was opened.
    passes: AtomicU64,
    /// Test instruments.
    pub plants: Plants,
    /// A txg reused space that it had freed without waiting for later txgs, because no
    /// other space was left (chapter 05 §6). Earlier txgs may be overwritten since.
    pub(crate) reused_at_once: AtomicBool,
}

impl Writer {
    /// The pipeline.
    pub fn zio(&self) -> &Arc<Zio> {
        &self.zio
    }

    /// Fixes names and properties of datasets while it is held. A thread must not take it
    /// twice, nor hold it while it waits for a txg.
    pub fn names(&self) -> base::rt::ReadGuard<'_, ()> {
        self.names.read()
    }

    /// The name of the pool, with which its datasets' names begin. Labels and configuration
    /// have another one while this one is temporary.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sets where events are posted; only the first call has an effect.
    pub fn set_events(&self, source: zevent::PoolSource) {
        let _ = self.events.set(source);
    }

    /// Where events are posted.
    pub fn events(&self) -> Option<&zevent::PoolSource> {
        self.events.get()
    }

    /// Posts `sysevent.fs.zfs.WHAT`.
    pub(crate) fn sysevent(&self, what: &str, values: &NvList) {
        if let Some(source) = self.events() {
            source.sysevent(what, values);
        }
    }

    /// Planted bugs of the block reference tables.
    pub fn block_ref_plants(&self) -> &BlockRefPlants {
        &self.block_refs.plants
    }

    /// The live MOS.
    pub fn mos(&self) -> &Mos {
        &self.mos
    }

    /// The transaction groups.
    pub fn txgs(&self) -> &Arc<Txgs> {
        &self.txgs
    }

    /// The metaslabs.
    pub fn space(&self) -> &Arc<Space> {
        &self.space
    }

    /// Configuration and uberblock of the last synced txg.
    pub fn published(&self) -> Published {
        self.published.read().clone()
    }

    /// Whether some txg since the import was so short of space that it reused its frees
    /// without waiting for later txgs. A rewind to earlier ones may then find them
    /// overwritten.
    pub fn reused_at_once(&self) -> bool {
        self.reused_at_once.load(Relaxed)
    }

    /// The most passes of a txg since the pool was opened (`sync`).
    pub fn most_passes(&self) -> u64 {
        self.passes.load(Relaxed)
    }

    /// Waits until all changes so far are on disk; returns the txg of the last one.
    ///
    /// # Errors
    /// That of the suspension, with `failmode=continue`.
    pub fn sync(&self) -> Result<Txg> {
        let open = self.txgs.open_txg();
        self.txgs.kick(open);
        self.txgs.wait_synced(open)?;
        Ok(open)
    }

    /// Ends writing for good: all changes are written, logged changes are flushed to the
    /// space maps, and the labels get `state`.
    ///
    /// # Errors
    /// As [`Writer::sync`].
    pub fn export(&self, state: PoolState) -> Result<()> {
        // The caller gets an error for a suspension, instead of waiting for its end.
        self.check_running()?;
        let failmode = self.txgs.failmode();
        self.txgs.set_failmode(txg::FailMode::Continue);
        // Nothing is written after the state of the labels.
        self.end_settling();
        self.scans.stop();
        self.rebuilds.stop(true);
        self.removal.stop(true);
        self.expansion.stop(true);
        self.autotrim.stop(true);
        self.jobs.stop(true);
        self.closing.store(true, Relaxed);
        let last = self.last_txg(state);
        if last.is_err() {
            self.stay_open(failmode);
            return last;
        }
        self.stop();
        Ok(())
    }

    /// The pool could not be exported: what was stopped goes on, as it was before.
    fn stay_open(&self, failmode: txg::FailMode) {
        // A txg that has the other state already is followed by one that takes it back.
        self.closing.store(false, Relaxed);
        self.reopen_logs();
        self.resume_settling();
        self.scans.allow();
        self.wake_scan();
        self.jobs.allow();
        self.rebuilds.allow();
        self.wake_rebuilds();
        self.removal.allow();
        self.wake_removal();
        self.expansion.allow();
        self.wake_expansion();
        self.autotrim.allow();
        self.resume_jobs();
        // The property can be read as long as the pool is in use; else nothing is trimmed.
        let _trims = self.follow_autotrim(&self.mos);
        self.txgs.set_failmode(failmode);
        // Replacements that ended meanwhile.
        self.topology_settled();
    }

    fn last_txg(&self, state: PoolState) -> Result<()> {
        self.close_logs()?;
        self.sync()?;
        let closed = move |cx: &mut TaskCx<'_>, ()| {
            // The caller may have got an error meanwhile.
            if cx.writer.closing.load(Relaxed) {
                cx.config().state = state;
                cx.state.flush_all = true;
            }
            Ok(())
        };
        self.sync_task(|_| Ok(()), closed).map(drop)
    }

    /// At the beginning of a txg: a pool whose export failed is in use again.
    fn take_back_export(&self, state: &mut SyncState) {
        if state.config.state != PoolState::Active && !self.closing.load(Relaxed) {
            state.config.state = PoolState::Active;
            state.dirty = true;
        }
    }

    /// Fails if the pool is suspended.
    ///
    /// # Errors
    /// `Io`.
    pub fn check_running(&self) -> Result<()> {
        match self.txgs.suspended() {
            None => Ok(()),
            Some(why) => {
                let text = "pool I/O is currently suspended";
                Err(Error::new(base::ErrorKind::Io, text).caused_by(why))
            }
        }
    }

    /// Stops the sync thread after its requested work.
    pub fn stop(&self) {
        self.end_settling();
        self.scans.begin_stop();
        self.zio.stop_healing();
        // Threads that a suspended pool holds up end when it is given up.
        let wait = self.txgs.suspended().is_none();
        self.rebuilds.stop(wait);
        self.removal.stop(wait);
        self.expansion.stop(wait);
        self.autotrim.stop(wait);
        self.jobs.stop(wait);
        self.txgs.stop();
        if let Some(thread) = self.thread.lock().take() {
            thread.join();
        }
        // It may have waited for a txg.
        self.scans.stop();
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // These threads wait without the writer. One of them may be what drops it.
        self.autotrim.stop(false);
        self.jobs.stop(false);
        self.rebuilds.stop(false);
        self.removal.stop(false);
        self.expansion.stop(false);
        self.scans.begin_stop();
        self.txgs.abandon(Error::bug("the pool was closed"));
    }
}
