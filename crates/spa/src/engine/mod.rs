//! A pool open for writing: transaction groups from memory to the uberblock.
//!
//! # Theory
//! [`Writer`] is the writable half of an imported pool. Callers change object sets of
//! live datasets under a [`dmu::Tx`] ([`Writer::begin`]); what concerns the MOS is a sync
//! task ([`Writer::sync_task`]), which the one sync thread runs within a group. That
//! thread takes group after group from [`txg::Txgs`] and writes it (`sync`): datasets,
//! tasks, frees, space maps, configuration, and the MOS, in passes until nothing
//! changes; then labels and uberblock in their order (`write::commit`).
//!
//! # Crash argument
//! All writes of a group go to space that the last durable uberblock's maps show as
//! free, and space that the group frees is not given out before its own uberblock is
//! durable (`metaslab`). The commit flushes every vdev written to before the first
//! uberblock, so an uberblock that can be read leads to a whole group. Hence whatever
//! moment the power fails, one group is there as a whole, and none in part.
//!
//! # Invariants
//! * The MOS is changed by the sync thread alone, in the group that it writes.
//! * A group that fails is not committed, nor is any after it: the pool suspends, and
//!   what was synced before stays as it was. One that waits for devices that are gone
//!   goes on when they are back (`outage`).
//!
//! # Departures from OpenZFS
//! Space maps are written before the MOS in each pass, which saves a pass.
//!
//! Lock order: `state` (by the sync thread, for a whole group) → `names` → `heads` →
//! locks of `dmu`. `tasks`, `logs` and `published` are leaves.

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

use base::rt::{JoinHandle, Mutex, RwLock};
use base::{Error, Guid, Result, Txg, VdevId};
use dmu::{Dirt, Objset, Tx};
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
use tasks::Task;

pub use datasets::{Content, NewDataset, PropChange};
pub use effective::{effective, find_dir};
pub use heads::objset_props;
pub(crate) use maps::LOGS_DIRECTORY;
pub use open::{Parts, WriterOptions, assemble};
pub use pools::{Devices, PoolChange, init_aux_labels};
pub use sync::Flags;
pub use tasks::{Command, TaskCx};

/// Groups after which freed space is there again (chapter 05 §6).
const DRAIN_GROUPS: u32 = 3;

/// Bugs to plant: **test instruments** for the simulator; all off.
#[derive(Debug, Default)]
pub struct Plants {
    /// Labels and uberblocks before the data, or in the wrong order.
    pub commit: Mutex<CommitPlants>,
    /// Frees of a group are handed out without waiting for later groups.
    pub no_defer: AtomicBool,
    /// Blocks of intent logs are not flushed.
    pub no_log_flush: Arc<AtomicBool>,
    /// Bytes kept back instead of the slop, so that a small pool gets as full as a large one;
    /// 0: the slop. Not a bug.
    pub slop: AtomicU64,
}

/// What readers of a live pool see of its state.
#[derive(Clone, Debug)]
pub struct Published {
    /// The configuration of the last synced group.
    pub config: Arc<PoolConfig>,
    /// The last uberblock.
    pub uberblock: Uberblock,
}

/// What the sync thread owns.
pub(crate) struct State {
    pub(crate) config: PoolConfig,
    pub(crate) uberblock: Uberblock,
    /// Labels and the configuration object must be written.
    pub(crate) dirty: bool,
    /// The configuration as this group wrote it.
    pub(crate) packed: Option<Vec<u8>>,
    pub(crate) maps: Maps,
    pub(crate) ratios: Ratios,
    pub(crate) deflate: Vec<u64>,
    /// Roles of vdevs whose ZAPs are still to be made.
    pub(crate) new_vdevs: BTreeMap<VdevId, Option<&'static str>>,
    /// Groups that leaves missed, to be stored.
    pub(crate) missed: Vec<(Guid, TxgRanges)>,
    /// Flush all logged changes in the next group (export).
    pub(crate) flush_all: bool,
    /// Old space maps, logs and arrays that the next group replaces.
    pub(crate) replaces: Option<std::collections::BTreeSet<u64>>,
    /// There may be something to free in the background.
    pub(crate) background: bool,
    /// Freeing in the background goes on in the next group.
    pub(crate) again: bool,
    /// Groups that still defer frees.
    pub(crate) draining: bool,
    pub(crate) failed: Option<String>,
}

/// A group with this share of the promises that the pool has room for is written.
const EARLY_SHARE: u64 = 4;
/// What a pointer takes in its indirect block and that one's copies.
const POINTERS: u64 = 3 * 128;
/// This share of the slop may be promised for the time of a transaction.
const OVERDRAFT_SHARE: u64 = 4;
/// Copies of an indirect block at most.
const NODE_COPIES: u64 = 3;
/// Indirect blocks take at most this share of what is allocated (records of 4 KiB have
/// one of 128 KiB, twice, above 1024 of them), and so much in a nearly empty pool.
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
    state: Mutex<State>,
    heads: Mutex<BTreeMap<u64, Arc<Objset>>>,
    /// Intent logs of heads that were opened as file systems.
    logs: Mutex<BTreeMap<u64, Arc<zil::Log>>>,
    idle_logs: idle_logs::IdleLogs,
    /// Blocks of datasets that are gone, written before their groups: to be freed by these.
    strays: Mutex<Vec<ondisk::BlkPtr>>,
    /// The first group that was written since the pool was opened.
    first_txg: Txg,
    /// The import has not ended: nobody knows the pool yet, nor could clear it.
    pub(crate) opening: AtomicBool,
    tasks: Mutex<BTreeMap<Txg, Vec<Task>>>,
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
    /// Bytes of blocks whose frees wait for the next group in the MOS.
    unfreed: AtomicU64,
    /// Most passes of a group since the pool was opened.
    passes: AtomicU64,
    /// Test instruments.
    pub plants: Plants,
    /// A group handed out what it had freed without waiting for later groups, for there was
    /// no other space left (chapter 05 §6): earlier groups may be overwritten since.
    pub(crate) reused_at_once: AtomicBool,
}

/// A transaction's side of the throttle and of the promises. The promise that it began
/// with lasts as long as it does; what the blocks that it made dirty need is charged to
/// their group instead, once for each block however often it is written.
struct Meter {
    txgs: Arc<Txgs>,
    asizes: Arc<Asizes>,
    txg: Txg,
    /// Given back at the end.
    promise: u64,
}

impl Dirt for Meter {
    fn dirty(&self, txg: Txg, bytes: u64) {
        self.txgs.dirty(txg, bytes);
    }
    fn clean(&self, txg: Txg, bytes: u64) {
        self.txgs.undirty(txg, bytes);
    }
    fn place(&self, txg: Txg, bytes: u64, copies: u8, nodes: u8) {
        let node = self.asizes.most(1) * NODE_COPIES;
        let block = self.asizes.most(bytes) * u64::from(copies) + POINTERS;
        self.txgs.space().charge(txg, block + node * u64::from(nodes));
    }
    fn unplace(&self, txg: Txg, bytes: u64) {
        // Not less was charged, whatever the blocks' sizes and copies.
        self.txgs.space().release(txg, bytes);
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        if self.promise > 0 {
            self.txgs.space().release(self.txg, self.promise);
        }
    }
}

/// What blocks of 2^n bytes take at most, on whatever vdev of the pool.
#[derive(Default)]
struct Asizes([AtomicU64; 26]);

impl Asizes {
    fn of_shift(&self, shift: u32) -> u64 {
        self.0[(shift as usize).min(self.0.len() - 1)].load(Relaxed)
    }

    /// At most for one block of so many bytes.
    fn most(&self, bytes: u64) -> u64 {
        self.of_shift(bytes.max(1).next_power_of_two().trailing_zeros()).max(bytes)
    }
}

impl Writer {
    /// The pipeline.
    pub fn zio(&self) -> &Arc<Zio> {
        &self.zio
    }

    /// Keeps names and properties of datasets as they are while it is held. Not to be
    /// taken twice by one thread, nor held over a wait for a group.
    pub fn names(&self) -> base::rt::ReadGuard<'_, ()> {
        self.names.read()
    }

    /// The name that the pool goes by: the first part of its datasets' names. Labels and
    /// configuration have another one while this one is temporary.
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

    /// Configuration and uberblock of the last synced group.
    pub fn published(&self) -> Published {
        self.published.read().clone()
    }

    /// Begins a transaction in the open group. Waits while too much is dirty; fails
    /// when the pool is nearly full, unless the caller is going to free space.
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
        let promise = self.reserve(txg, logical, limit)?;
        let (txgs, asizes) = (Arc::clone(&self.txgs), Arc::clone(&self.asizes));
        let meter: Arc<dyn Dirt> = Arc::new(Meter { txgs, asizes, txg, promise });
        Ok(Tx::open(txg, meter, hold))
    }

    /// Space for `logical` bytes in `txg`, at its worst (chapter 05 §11.4); what of it the
    /// transaction gives back. A group that is promised much of what is left is written
    /// soon, so that nobody waits for all.
    ///
    /// The chapter's factor supposes triple parity, and an indirect block for each block.
    /// This pool's vdevs may need less, and all indirect blocks together are a small
    /// share of what is allocated: each group has that apart. Then twice three copies of
    /// the data are the most, and only until the transaction ends: what it made dirty is
    /// known by then, and charged (`Meter`). As long as what is charged stays below the
    /// limit, such a short promise may take a part of the slop as well: otherwise a write of
    /// 1 MiB would be refused with 8 MiB left, a fifth of a small pool. Without room for
    /// that the chapter's factor counts, until the group is on disk.
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
            // In a small pool the data is little, too.
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
        // What is reserved may turn out to need less: ask again after this group.
        if space.inflight() > 0 && most <= limit {
            return Err(Error::new(base::ErrorKind::Busy, "wait for the next group"));
        }
        Err(Error::new(base::ErrorKind::NoSpace, "no space left in the pool"))
    }

    /// Looks at the vdevs anew: the most that blocks take.
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

    /// As [`Writer::begin`], waiting for the next group while space is only reserved, and
    /// for those that give deferred frees back.
    ///
    /// # Errors
    /// As [`Writer::begin`].
    pub fn begin_wait(&self, logical: u64, frees: bool) -> Result<Tx> {
        let mut drained = 0;
        loop {
            match self.begin(logical, frees) {
                Err(e) if e.kind() == base::ErrorKind::NoSpace && drained < DRAIN_GROUPS => {
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
    /// (chapter 05 §11.3). What was freed and cannot be handed out yet counts as free.
    pub fn allocatable(&self, frees: bool) -> u64 {
        let normal = self.space.class_totals(metaslab::SpaceClass::Normal);
        let slop = self.slop();
        let reserve = if frees { slop / 2 } else { slop };
        normal.capacity.saturating_sub(normal.allocated).saturating_sub(reserve)
    }

    /// The same without what cannot be handed out yet: a group that needed more would find
    /// no space while it is written.
    fn allocatable_now(&self, frees: bool) -> u64 {
        let deferred = self.space.class_totals(metaslab::SpaceClass::Normal).deferred;
        self.allocatable(frees).saturating_sub(deferred)
    }

    /// Whether some group since the import was so short of space that what it freed did not
    /// wait for later groups: going back to earlier ones may find them overwritten.
    pub fn reused_at_once(&self) -> bool {
        self.reused_at_once.load(Relaxed)
    }

    /// The most passes that a group took since the pool was opened (`sync`).
    pub fn most_passes(&self) -> u64 {
        self.passes.load(Relaxed)
    }

    /// Deflated bytes that datasets may use, all together: what the pool's root directory
    /// is bounded by (chapter 04 §5.5, chapter 05 §11). Space that deduplication and
    /// cloning save comes on top. Blocks whose frees wait for the next group in the MOS (in
    /// pools without log space maps) belong to no dataset, and are in use.
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

    /// Waits until everything that was changed so far is on disk; the group it was in.
    ///
    /// # Errors
    /// That of the suspension, with `failmode=continue`.
    pub fn sync(&self) -> Result<Txg> {
        let open = self.txgs.open_txg();
        self.txgs.kick(open);
        self.txgs.wait_synced(open)?;
        Ok(open)
    }

    /// Ends writing for good: everything goes to disk, logged changes go to the space maps,
    /// and the labels say `state`.
    ///
    /// # Errors
    /// As [`Writer::sync`].
    pub fn export(&self, state: PoolState) -> Result<()> {
        // Whoever waits here wants to hear of a suspension, not to wait for its end.
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

    /// Refuses what a suspended pool cannot do.
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

    /// Stops the sync thread, when what was asked for is done.
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
