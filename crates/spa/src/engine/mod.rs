//! A pool open for writing: transaction groups from memory to the uberblock.
//!
//! # Theory
//! [`Writer`] is the writable half of an imported pool. Callers change object sets of live
//! datasets under a [`dmu::Tx`] ([`Writer::begin`]). A change of the MOS is a sync task
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
//! Lock order: `state` (by the sync thread, for a whole txg) → `names` → `heads` → locks of
//! `dmu`. `tasks`, `logs` and `published` are leaves.

pub(crate) mod claim;
mod config;
pub mod create;
mod datasets;
mod effective;
mod heads;
mod heal;
mod idle_logs;
mod log;
mod maps;
mod open;
mod outage;
mod pools;
mod rebuild;
mod removal;
mod space_io;
mod store;
pub(crate) mod sync;
mod tasks;
mod unclone;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use base::planted::{BugSwitch, TestValue};
use base::rt::{JoinHandle, Mutex, RwLock};
use base::{Error, Guid, Result, Txg, VdevId};
use dmu::{DirtyMeter, Objset, Tx};
use dsl::Mos;
use dsl::write::Ratios;
use metaslab::Space;
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

pub use datasets::{Content, NewDataset, PropChange};
pub use effective::{effective, find_dir};
pub use heads::objset_props;
pub(crate) use maps::LOGS_DIRECTORY;
pub use open::{Parts, WriterOptions, assemble};
pub use pools::{Devices, PoolChange, init_aux_labels};
pub use sync::Flags;
pub use tasks::{Command, TaskCx};

/// Txgs after which freed space is available again (chapter 05 §6).
const DRAIN_TXGS: u32 = 3;

/// Planted bugs and values of tests ([`base::planted`]).
#[derive(Debug, Default)]
pub struct Plants {
    /// Labels and uberblocks before the data, or in the wrong order.
    pub commit: CommitPlants,
    /// Frees of a txg are reused without waiting for later txgs.
    pub no_defer: BugSwitch,
    /// Blocks of intent logs are not flushed.
    pub no_log_flush: Arc<BugSwitch>,
    /// Bytes reserved instead of the slop, so that a small pool gets as full as a large
    /// one; 0: the slop. Not a bug.
    pub slop: TestValue,
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

/// A txg whose reservations exceed this share of the pool's available space is written
/// early.
const EARLY_SHARE: u64 = 4;
/// Bytes of a pointer in its indirect block and that block's copies.
const POINTERS: u64 = 3 * 128;
/// The share of the slop that may be reserved for the duration of a transaction.
const OVERDRAFT_SHARE: u64 = 4;
/// Copies of an indirect block at most.
const NODE_COPIES: u64 = 3;
/// Indirect blocks take at most this share of the allocated space (above 1024 records of 4
/// KiB there is one of 128 KiB, twice), and at most this much in a nearly empty pool.
const INDIRECT_SHARE: u64 = 16;
const INDIRECT_LEAST: u64 = 16 << 20;

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
    logs: Mutex<BTreeMap<u64, Arc<zil::Log>>>,
    idle_logs: idle_logs::IdleLogs,
    /// Early blocks of destroyed datasets: the txgs in which they were born free them.
    orphaned_blocks: Mutex<Vec<ondisk::BlkPtr>>,
    /// The first txg that was written since the pool was opened.
    first_txg: Txg,
    /// The import has not ended: the pool is not registered yet, so no user can clear it.
    pub(crate) opening: AtomicBool,
    tasks: Mutex<BTreeMap<Txg, Vec<SyncTask>>>,
    published: RwLock<Published>,
    /// Held by tasks while they change names of datasets and their properties.
    names: RwLock<()>,
    thread: Mutex<Option<JoinHandle<()>>>,
    rotor: AtomicU64,
    /// Sectors that one sector of data may take.
    inflation: AtomicU64,
    asizes: Arc<Asizes>,
    outages: Arc<outage::Outages>,
    /// Space is counted deflated (key `deflate` of the MOS).
    deflates: bool,
    /// Bytes of blocks whose frees wait for the next txg in the MOS.
    unfreed: AtomicU64,
    /// Most passes of a txg since the pool was opened.
    passes: AtomicU64,
    /// Test instruments.
    pub plants: Plants,
    /// A txg reused space that it had freed without waiting for later txgs, because no
    /// other space was left (chapter 05 §6). Earlier txgs may be overwritten since.
    pub(crate) reused_at_once: AtomicBool,
}

/// A transaction's link to the throttle and the space reservations. The transaction's
/// initial reservation lasts as long as the transaction. The space for the blocks that it
/// makes dirty is charged to their txg instead, once for each block however often it is
/// written.
struct Meter {
    txgs: Arc<Txgs>,
    asizes: Arc<Asizes>,
    txg: Txg,
    /// Bytes, released at the end.
    reservation: u64,
}

impl DirtyMeter for Meter {
    fn dirty(&self, txg: Txg, bytes: u64) {
        self.txgs.dirty(txg, bytes);
    }
    fn clean(&self, txg: Txg, bytes: u64) {
        self.txgs.undirty(txg, bytes);
    }
    fn plan_write(&self, txg: Txg, bytes: u64, copies: u8, nodes: u8) {
        let node = self.asizes.most(1) * NODE_COPIES;
        let block = self.asizes.most(bytes) * u64::from(copies) + POINTERS;
        self.txgs.space().charge(txg, block + node * u64::from(nodes));
    }
    fn cancel_write(&self, txg: Txg, bytes: u64) {
        // At least this much was charged, whatever the blocks' sizes and copies.
        self.txgs.space().release(txg, bytes);
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        if self.reservation > 0 {
            self.txgs.space().release(self.txg, self.reservation);
        }
    }
}

/// The largest asizes of blocks of 2^n bytes on any vdev of the pool.
#[derive(Default)]
struct Asizes([AtomicU64; 26]);

impl Asizes {
    fn of_shift(&self, shift: u32) -> u64 {
        self.0[(shift as usize).min(self.0.len() - 1)].load(Relaxed)
    }

    /// The largest asize of one block of this many bytes.
    fn most(&self, bytes: u64) -> u64 {
        self.of_shift(bytes.max(1).next_power_of_two().trailing_zeros()).max(bytes)
    }
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

    /// Begins a transaction in the open txg. Waits while too much is dirty; fails when the
    /// pool is nearly full, unless the caller is going to free space.
    ///
    /// # Errors
    /// `NoSpace`; that of the suspension, with `failmode=continue`.
    pub fn begin(&self, logical: u64, frees: bool) -> Result<Tx> {
        self.txgs.throttle()?;
        let limit = self.allocatable_now(frees);
        if logical > 0 {
            self.txgs.throttle_space(limit);
        }
        let hold = self.txgs.hold()?;
        let txg = hold.txg();
        let reservation = self.reserve(txg, logical, limit)?;
        let (txgs, asizes) = (Arc::clone(&self.txgs), Arc::clone(&self.asizes));
        let meter: Arc<dyn DirtyMeter> = Arc::new(Meter { txgs, asizes, txg, reservation });
        Ok(Tx::open(txg, meter, hold))
    }

    /// Reserves space for `logical` bytes in `txg`, in the worst case (chapter 05 §11.4);
    /// returns the part that the transaction releases at its end. A txg that reserves much
    /// of the remaining space is written early, so that fewer callers have to wait for it.
    ///
    /// The chapter's factor assumes triple parity, and an indirect block for each block.
    /// This pool's vdevs may need less, and all indirect blocks together are a small share
    /// of the allocated space: each txg has a separate reserve for them. Then twice three
    /// copies of the data are the maximum, and only until the transaction ends: its dirty
    /// blocks are known by then, and charged (`Meter`). As long as the charges stay below
    /// the limit, such a short reservation may include a part of the slop as well.
    /// Otherwise a write of 1 MiB would be refused with 8 MiB left, a fifth of a small
    /// pool. If that does not fit, the chapter's factor is used, until the txg is on disk.
    fn reserve(&self, txg: Txg, logical: u64, limit: u64) -> Result<u64> {
        if logical == 0 {
            return Ok(0);
        }
        let space = self.txgs.space();
        let most = txg::worst_case_asize(logical, self.options.max_ashift);
        let data = logical.max(1 << self.options.max_ashift.min(16));
        let here = data.saturating_mul(6 * self.inflation.load(Relaxed));
        let apart = || {
            let allocated = self.space.class_totals(metaslab::SpaceClass::Normal).allocated;
            // A small pool has little data, too.
            (allocated / INDIRECT_SHARE + INDIRECT_LEAST).min(limit / 4)
        };
        let light = here < most && space.once(txg, apart, limit);
        let over = self.slop() / OVERDRAFT_SHARE;
        let got = match light.then(|| space.overdraw(txg, here, limit, over)).flatten() {
            None => space.reserve(txg, most, limit).map(|had| (had, most, 0)),
            Some(had) => Some((had, here, here)),
        };
        if let Some((before, bytes, back)) = got {
            let enough = limit / EARLY_SHARE;
            if before < enough && before + bytes >= enough {
                self.txgs.kick(txg);
            }
            return Ok(back);
        }
        // The reservations may turn out to be too large: retry after this txg.
        if space.inflight() > 0 && most <= limit {
            return Err(Error::new(base::ErrorKind::Busy, "wait for the next txg"));
        }
        Err(Error::new(base::ErrorKind::NoSpace, "no space left in the pool"))
    }

    /// Recomputes the largest asizes after a change of the vdevs.
    pub(super) fn inflate(&self) {
        let tree = self.zio.tree();
        let sectors = |id: VdevId| {
            let sector = 1u64 << tree.top(id).ok()?.ashift().min(16);
            Some(tree.asize(id, base::Psize(sector), Txg::MAX).ok()?.0.div_ceil(sector))
        };
        let worst = tree.top_ids().filter_map(sectors).max().unwrap_or(4);
        self.inflation.store(worst.max(1), Relaxed);
        for (shift, asize) in self.asizes.0.iter().enumerate() {
            let of = |id: VdevId| Some(tree.asize(id, base::Psize(1 << shift), Txg::MAX).ok()?.0);
            let most = tree.top_ids().filter_map(of).max().unwrap_or(4 << shift);
            asize.store(most, Relaxed);
        }
    }

    /// As [`Writer::begin`], but waits for the next txg while space is only reserved, and
    /// for the txgs that release deferred frees.
    ///
    /// # Errors
    /// As [`Writer::begin`].
    pub fn begin_wait(&self, logical: u64, frees: bool) -> Result<Tx> {
        let mut drained = 0;
        loop {
            match self.begin(logical, frees) {
                Err(e) if e.kind() == base::ErrorKind::NoSpace && drained < DRAIN_TXGS => {
                    if self.space.class_totals(metaslab::SpaceClass::Normal).deferred == 0 {
                        return Err(e);
                    }
                    drained += 1;
                    self.sync()?;
                }
                Err(e) if e.kind() == base::ErrorKind::Busy => {
                    let open = self.txgs.open_txg();
                    self.txgs.kick(open);
                    self.txgs.wait_open(open.next())?;
                    self.txgs.wait_room(Txg(open.0.saturating_sub(1)))?;
                }
                other => return other,
            }
        }
    }

    fn slop(&self) -> u64 {
        match self.plants.slop.load(Relaxed) {
            0 => metaslab::slop(self.space.class_totals(metaslab::SpaceClass::Normal).capacity, 0),
            bytes => bytes,
        }
    }

    /// Bytes, parity included, that may still be allocated; frees may use half of the slop
    /// (chapter 05 §11.3). Freed space that cannot be reused yet counts as free.
    pub fn allocatable(&self, frees: bool) -> u64 {
        let normal = self.space.class_totals(metaslab::SpaceClass::Normal);
        let slop = self.slop();
        let reserve = if frees { slop / 2 } else { slop };
        normal.capacity.saturating_sub(normal.allocated).saturating_sub(reserve)
    }

    /// The same without space that cannot be reused yet: a txg that needed more would find
    /// no space while it is written.
    fn allocatable_now(&self, frees: bool) -> u64 {
        let deferred = self.space.class_totals(metaslab::SpaceClass::Normal).deferred;
        self.allocatable(frees).saturating_sub(deferred)
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

    /// Deflated bytes that all datasets together may use: the limit of the pool's root
    /// directory (chapter 04 §5.5, chapter 05 §11). Space that deduplication and cloning
    /// save is added. Blocks whose frees wait for the next txg in the MOS (in pools without
    /// log space maps) belong to no dataset, and are in use.
    pub fn usable(&self) -> u64 {
        use metaslab::SpaceClass::{Dedup, Normal, Special};
        let tree = self.zio.tree();
        let (mut capacity, mut others) = (0u64, 0u64);
        for (vdev, class) in self.space.vdevs() {
            let ratio = if self.deflates { tree.deflate_ratio(vdev).unwrap_or(512) } else { 512 };
            let Ok(totals) = self.space.vdev_totals(vdev) else { continue };
            match class {
                Normal => capacity += (totals.capacity >> 9) * ratio,
                Special | Dedup => others += (totals.allocated >> 9) * ratio,
                metaslab::SpaceClass::Log => {}
            }
        }
        let kept = metaslab::slop(capacity, 0).saturating_add(self.unfreed.load(Relaxed));
        capacity.saturating_sub(kept).saturating_add(others)
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
        self.txgs.set_failmode(txg::FailMode::Continue);
        self.close_logs()?;
        self.sync()?;
        self.sync_task(
            |_| Ok(()),
            move |cx, ()| {
                cx.config().state = state;
                cx.state.flush_all = true;
                Ok(())
            },
        )?;
        self.stop();
        Ok(())
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
        self.zio.stop_healing();
        self.txgs.stop();
        if let Some(thread) = self.thread.lock().take() {
            thread.join();
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.txgs.abandon(Error::bug("the pool was closed"));
    }
}
