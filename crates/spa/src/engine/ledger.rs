//! The space ledger: what open transactions and unsynced txgs may still take.
//!
//! # Theory
//! A txg that runs out of space half-way cannot be written, so a transaction reserves space
//! before it changes memory. The used space of the last synced txg is known exactly. What
//! later txgs will take is bounded, not known, because compression, parity and indirect
//! blocks depend on content and address. So each limit is compared with
//!
//! ```text
//! used as of the last synced txg + reserved by txgs that are not on disk
//! ```
//!
//! A transaction has one reservation with one amount for each limit. The limits are:
//! *capacity*, in asize (bytes of the devices, parity included), and the *bounds* of its
//! dataset in dsize (deflated bytes, the unit of space accounting, chapter 04 §1): `refquota`,
//! the `quota` of each directory up to the root, and at the root what the pool's datasets
//! may use together. An unused `refreservation` or `reservation` is already charged to the
//! parent directory, so the part of an amount that fits into it is not charged further up.
//!
//! A reservation has three stages, with one formula for blocks ([`BlockCosts`]):
//! * While the transaction is open: the worst case of the bytes that the caller announced.
//! * When the transaction ends: the cost of the blocks that it made dirty. A block is
//!   charged once for each txg, however often it is written.
//! * When the txg is on disk: nothing, because used space includes it.
//!
//! A refusal is final only if nothing else is reserved and no freed space is on its way.
//! Otherwise the caller waits for a txg and tries again ([`Writer::begin_for`]).
//!
//! # Invariants
//! * The sum of all amounts at a limit changes only by atomic steps, and an amount is granted
//!   in the same step that compares the sum with the limit.
//! * A transaction releases at each limit exactly what it took there. An ended transaction
//!   keeps at most what it reserved for its dataset's bounds.
//! * Amounts of a txg are cleared after its number is published as synced, and before the
//!   next txg is synced. Bounds are labelled with the synced txg as of which they were read;
//!   a reservation under outdated bounds is given back and repeated.
//! * Transactions that free space are not compared with bounds, and may use half of the
//!   slop.
//!
//! Lock order: `SpaceAccount::bounds` → `names` of the writer → locks of the MOS; `dirs` is a
//! leaf. A transaction that ends takes no lock.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering::Relaxed};

use base::limits::DATASET_DEPTH_MAX;
use base::planted::TestValue;
use base::rt::Mutex;
use base::{Error, ErrorKind, Result, Txg, VdevId};
use dmu::{DirtyMeter, OutagePolicy, Tx};
use dsl::write::{MosRead, props};
use metaslab::{Space, SpaceClass};
use txg::{SpaceReservation, Txgs};
use vdev::Tree;
use zio::Zio;

use super::Writer;
use super::block_costs::BlockCosts;

/// Txgs for which one call waits, because space freed in them becomes available (chapter 05
/// §6).
const DRAIN_TXGS: u32 = 4;
/// A txg whose reservations, apart from its allowance for indirect blocks, exceed this share
/// of the pool's available space, apart from all allowances, is written early.
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
/// Bytes of dnodes that a transaction changes, besides the blocks that it reports.
const DNODES: u64 = 1 << 10;
/// Twice three copies: the most that data takes while its transaction is open.
const OPEN_COPIES: u64 = 6;

/// The ledger of one pool.
pub(super) struct Ledger {
    zio: Arc<Zio>,
    txgs: Arc<Txgs>,
    metaslabs: Arc<Space>,
    max_ashift: u32,
    /// Space is counted deflated (key `deflate` of the MOS).
    deflates: bool,
    /// Bytes reserved instead of the slop, in tests.
    slop_in_tests: Arc<TestValue>,
    costs: BlockCosts,
    /// Bytes of blocks whose frees wait for the next txg in the MOS.
    unfreed: AtomicU64,
    /// Deflated bytes that only the checkpoint keeps.
    checkpointed: AtomicU64,
    /// Bytes that the removal of a vdev is still to copy to the others.
    to_copy: AtomicU64,
    /// The vdev that is being removed; `u32::MAX` for none.
    leaving: AtomicU32,
    /// Free bytes of metaslabs from which nothing is allocated, because they are to leave.
    excluded: AtomicU64,
    /// Deflated bytes that cloned blocks save.
    cloned: AtomicU64,
    /// Deflated bytes that deduplication saves.
    deduplicated: AtomicU64,
    /// Reserved dsize by the MOS object of the bound: directories, and heads with a quota or
    /// reservation of their own.
    dirs: Mutex<BTreeMap<u64, Arc<SpaceReservation>>>,
}

/// Why a transaction does not begin now.
enum BeginRefusal {
    /// Reserved space may turn out to be free in the next txg.
    NextTxg,
    /// Reserved space may turn out to be free once all open txgs are on disk.
    OnDisk,
    Failed(Error),
}

/// One limit of a dataset, as of a synced txg.
struct Bound {
    reserved_now: Arc<SpaceReservation>,
    /// Bytes that may be used in all.
    limit: u64,
    /// Bytes in use.
    used: u64,
    /// Bytes that the parent directory is already charged for.
    reservation: u64,
    refusal: ErrorKind,
    /// The limit is the pool's space, which grows by as much as blocks are shared.
    of_pool: bool,
}

/// The limits of a dataset as of one synced txg: its own, those of its directories from its
/// own to the root.
struct Bounds {
    txg: Txg,
    levels: Vec<Bound>,
    referenced: u64,
}

impl Bounds {
    /// Reserves `bytes` to be written and `shared` bytes of cloned blocks at each level, or
    /// returns the level that refuses.
    fn reserve(
        self: &Arc<Self>,
        txg: Txg,
        bytes: u64,
        shared: u64,
    ) -> std::result::Result<Charges, &Bound> {
        let mut charges = Charges { bounds: Arc::clone(self), txg, amounts: Vec::new() };
        let mut amount = bytes.saturating_add(shared);
        for level in &self.levels {
            if level.of_pool {
                amount = amount.min(bytes);
            }
            if amount == 0 {
                break;
            }
            let others = level.reserved_now.inflight();
            let room = level.limit.saturating_sub(level.used);
            if !level.reserved_now.try_reserve(txg, amount, room) {
                return Err(level);
            }
            charges.amounts.push(amount);
            let unused = level.reservation.saturating_sub(level.used.saturating_add(others));
            amount -= amount.min(unused);
        }
        Ok(charges)
    }

    /// Bytes that the dataset may still use, apart from what is reserved now.
    fn room(&self) -> u64 {
        // From the root down: a level has its own unused reservation besides.
        self.levels.iter().rev().fold(u64::MAX, |above, level| {
            let own = level.reservation.saturating_sub(level.used);
            above.saturating_add(own).min(level.limit.saturating_sub(level.used))
        })
    }
}

/// What one transaction has taken at the levels of its bounds; given back at the drop.
struct Charges {
    bounds: Arc<Bounds>,
    txg: Txg,
    /// Bytes, by level; none above the last.
    amounts: Vec<u64>,
}

impl Charges {
    /// Ends the transaction: `bytes` at most stay charged until the txg is on disk. The
    /// reservations below a level absorb of them what they absorbed of the whole.
    fn settle(mut self, bytes: u64) {
        self.shrink_to(bytes);
        self.amounts.clear();
    }

    fn shrink_to(&mut self, bytes: u64) {
        let whole = self.amounts.first().copied().unwrap_or(0);
        for (amount, level) in self.amounts.iter_mut().zip(&self.bounds.levels) {
            let absorbed = whole - *amount;
            let kept = bytes.saturating_sub(absorbed).min(*amount);
            level.reserved_now.release(self.txg, *amount - kept);
            *amount = kept;
        }
    }
}

impl Drop for Charges {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

/// A dataset's account: its limits, for transactions that change it.
pub struct SpaceAccount {
    head: u64,
    bounds: Mutex<Option<Arc<Bounds>>>,
    /// The newest txg in which blocks were freed.
    freed: AtomicU64,
}

impl SpaceAccount {
    /// For the dataset with head `head`.
    pub fn new(head: u64) -> SpaceAccount {
        SpaceAccount { head, bounds: Mutex::default(), freed: AtomicU64::new(0) }
    }

    /// The limits as of the last synced txg.
    fn bounds(&self, writer: &Writer, outage: OutagePolicy) -> Result<Arc<Bounds>> {
        let mut bounds = self.bounds.lock();
        let synced = writer.txgs.synced_txg();
        if let Some(known) = bounds.as_ref().filter(|known| known.txg == synced) {
            return Ok(Arc::clone(known));
        }
        let read = Arc::new(self.read_bounds(writer, synced, outage)?);
        *bounds = Some(Arc::clone(&read));
        Ok(read)
    }

    fn read_bounds(&self, writer: &Writer, txg: Txg, outage: OutagePolicy) -> Result<Bounds> {
        let mos: &dyn MosRead = &writer.mos.with_outage(outage);
        let _names = writer.names();
        let head = mos.dataset(self.head)?;
        let dir = head.dir_obj;
        let bound = |object, quota: u64, used, reservation| Bound {
            reserved_now: writer.ledger.dir(object),
            limit: if quota == 0 { u64::MAX } else { quota },
            used,
            reservation,
            refusal: ErrorKind::Quota,
            of_pool: false,
        };
        let mut levels = Vec::new();
        let refquota = props::own_number(mos, dir, "refquota")?;
        if refquota != 0 {
            levels.push(bound(self.head, refquota, head.referenced_bytes, 0));
        }
        let refreservation = props::refreservation(mos, dir)?;
        if refreservation != 0 {
            // Under another key than the quota, of which snapshots' blocks are a part.
            levels.push(bound(self.head | OWN, 0, head.unique_bytes, refreservation));
        }
        let (mut at, mut depth) = (dir, 0);
        while at != 0 && depth <= DATASET_DEPTH_MAX {
            let phys = mos.dir(at)?;
            let mut level = bound(at, phys.quota, phys.used_bytes, phys.reserved);
            if phys.parent_obj == 0 {
                let usable = writer.ledger.usable();
                if usable <= level.limit {
                    (level.limit, level.refusal) = (usable, ErrorKind::NoSpace);
                    level.of_pool = true;
                }
            }
            // A directory without limits and reservations passes all amounts on.
            if level.limit != u64::MAX || level.reservation != 0 {
                levels.push(level);
            }
            at = phys.parent_obj;
            depth += 1;
        }
        Ok(Bounds { txg, levels, referenced: head.referenced_bytes })
    }

    /// Whether space that the dataset freed recently is not accounted for yet.
    fn is_freeing(&self, txgs: &Txgs) -> bool {
        txgs.synced_txg().0 < self.freed.load(Relaxed)
    }
}

/// Marks the key of a head's own reservation in `Ledger::dirs`; no object id has this bit.
const OWN: u64 = 1 << 63;

/// What a transaction may take.
#[derive(Clone, Copy)]
struct Wanted {
    /// Bytes that it may write.
    logical: u64,
    /// Bytes of blocks that it may clone.
    shared: u64,
    /// Its purpose is to free space.
    frees: bool,
}

/// A transaction's link to the throttle and to its reservation.
struct Meter {
    ledger: Arc<Ledger>,
    txg: Txg,
    /// Asize, given back at the end.
    capacity: u64,
    charges: Option<Charges>,
    /// Dsize of the blocks that the transaction made dirty in its own txg.
    dirtied: AtomicI64,
}

impl DirtyMeter for Meter {
    fn dirty(&self, txg: Txg, bytes: u64) {
        self.ledger.txgs.dirty(txg, bytes);
    }

    fn clean(&self, txg: Txg, bytes: u64) {
        self.ledger.txgs.undirty(txg, bytes);
    }

    fn plan_write(&self, txg: Txg, bytes: u64, copies: u8, nodes: u8) {
        let costs = &self.ledger.costs;
        let copies = u64::from(copies);
        let node = costs.asize(1) * NODE_COPIES;
        let block = costs.asize(bytes) * copies + POINTERS;
        self.ledger.txgs.space().charge(txg, block + node * u64::from(nodes));
        if txg == self.txg && self.charges.is_some() {
            let used = costs.dsize(bytes).saturating_mul(copies);
            self.dirtied.fetch_add(used.cast_signed(), Relaxed);
        }
    }

    fn plan_clone(&self, txg: Txg, bytes: u64, nodes: u8) {
        let costs = &self.ledger.costs;
        let node = costs.asize(1) * NODE_COPIES;
        self.ledger.txgs.space().charge(txg, POINTERS + node * u64::from(nodes));
        if txg == self.txg && self.charges.is_some() {
            // The dataset is charged for each pointer in full.
            self.dirtied.fetch_add(bytes.cast_signed(), Relaxed);
        }
    }

    fn cancel_write(&self, txg: Txg, bytes: u64) {
        // At least this much was charged, whatever the blocks' sizes and copies.
        self.ledger.txgs.space().release(txg, bytes);
        if txg == self.txg {
            self.dirtied.fetch_sub(bytes.cast_signed(), Relaxed);
        }
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        if self.capacity > 0 {
            self.ledger.txgs.space().release(self.txg, self.capacity);
        }
        if let Some(charges) = self.charges.take() {
            let dirtied = self.dirtied.load(Relaxed).max(0).cast_unsigned();
            charges.settle(dirtied.saturating_add(DNODES));
        }
    }
}

impl Ledger {
    pub(super) fn new(
        zio: &Arc<Zio>,
        txgs: &Arc<Txgs>,
        metaslabs: &Arc<Space>,
        max_ashift: u32,
        deflates: bool,
        slop_in_tests: &Arc<TestValue>,
    ) -> Ledger {
        let ledger = Ledger {
            zio: Arc::clone(zio),
            txgs: Arc::clone(txgs),
            metaslabs: Arc::clone(metaslabs),
            max_ashift,
            deflates,
            slop_in_tests: Arc::clone(slop_in_tests),
            costs: BlockCosts::default(),
            unfreed: AtomicU64::new(0),
            checkpointed: AtomicU64::new(0),
            to_copy: AtomicU64::new(0),
            leaving: AtomicU32::new(u32::MAX),
            excluded: AtomicU64::new(0),
            cloned: AtomicU64::new(0),
            deduplicated: AtomicU64::new(0),
            dirs: Mutex::default(),
        };
        ledger.vdevs_changed();
        ledger
    }

    /// Computes the costs of blocks again after a change of the vdevs.
    pub(super) fn vdevs_changed(&self) {
        self.costs.update(&self.zio.tree(), self.deflates);
    }

    /// Sets the bytes of blocks whose frees wait in the MOS.
    pub(super) fn set_unfreed(&self, bytes: u64) {
        self.unfreed.store(bytes, Relaxed);
    }

    /// Sets the deflated bytes that only the checkpoint keeps.
    pub(super) fn set_checkpointed(&self, bytes: u64) {
        self.checkpointed.store(bytes, Relaxed);
    }

    /// Sets the vdev that is being removed, and the bytes on it that are still to be copied.
    pub(super) fn set_leaving(&self, leaving: Option<(VdevId, u64)>) {
        let (vdev, bytes) = leaving.map_or((u32::MAX, 0), |(vdev, bytes)| (vdev.0, bytes));
        self.to_copy.store(bytes, Relaxed);
        self.leaving.store(vdev, Relaxed);
    }

    /// Sets the free bytes of metaslabs that leave, and the bytes that are still to be moved away.
    pub(super) fn set_excluded(&self, free: u64, to_copy: u64) {
        self.excluded.store(free, Relaxed);
        self.to_copy.store(to_copy, Relaxed);
    }

    /// Sets the deflated bytes that cloned blocks save.
    pub(super) fn set_cloned(&self, bytes: u64) {
        self.cloned.store(bytes, Relaxed);
    }

    /// Sets the deflated bytes that deduplication saves.
    pub(super) fn set_deduplicated(&self, bytes: u64) {
        self.deduplicated.store(bytes, Relaxed);
    }

    /// Bytes of a vdev in the unit of space accounting.
    pub(super) fn deflated(&self, tree: &Tree, vdev: VdevId, bytes: u64) -> u64 {
        let ratio = if self.deflates { tree.deflate_ratio(vdev).unwrap_or(512) } else { 512 };
        (bytes >> 9).saturating_mul(ratio)
    }

    fn dir(&self, object: u64) -> Arc<SpaceReservation> {
        Arc::clone(self.dirs.lock().entry(object).or_default())
    }

    /// Clears what was reserved for a txg that is on disk. The sync thread calls it after it
    /// has published the txg's number.
    pub(super) fn synced(&self, txg: Txg) {
        self.dirs.lock().retain(|_, reserved| {
            reserved.synced(txg);
            // No account refers to it, so no transaction does.
            Arc::strong_count(reserved) > 1 || reserved.inflight() > 0
        });
    }

    /// The space of the vdevs that may be allocated from.
    fn normal(&self) -> metaslab::Totals {
        self.metaslabs.allocating_totals(SpaceClass::Normal)
    }

    pub(super) fn slop(&self) -> u64 {
        match self.slop_in_tests.load(Relaxed) {
            0 => metaslab::slop(self.normal().capacity, 0),
            bytes => bytes,
        }
    }

    /// [`Writer::allocatable`].
    pub(super) fn allocatable(&self, frees: bool) -> u64 {
        self.free(frees).saturating_sub(self.to_copy.load(Relaxed))
    }

    /// The same with the bytes that are kept for a vdev that leaves.
    pub(super) fn free(&self, frees: bool) -> u64 {
        let (normal, kept) = (self.normal(), self.slop() / if frees { 2 } else { 1 });
        let free = normal.capacity.saturating_sub(normal.allocated).saturating_sub(kept);
        free.saturating_sub(self.excluded.load(Relaxed))
    }

    /// The same without space that cannot be reused yet: a txg that needed more would find
    /// no space while it is written.
    pub(super) fn allocatable_now(&self, frees: bool) -> u64 {
        self.allocatable(frees).saturating_sub(self.normal().deferred)
    }

    /// [`Writer::usable`].
    pub(super) fn usable(&self) -> u64 {
        use SpaceClass::{Dedup, Log, Normal, Special};
        let tree = self.zio.tree();
        let (mut capacity, mut others) = (0u64, 0u64);
        for (vdev, class) in self.metaslabs.vdevs() {
            let Ok(totals) = self.metaslabs.vdev_totals(vdev) else { continue };
            // A vdev without allocation has room for what is on it; one that is being removed has
            // none, because all of that moves to the others.
            let bytes = match self.metaslabs.is_allocating(vdev) {
                true => totals.capacity,
                false if self.leaving.load(Relaxed) == vdev.0 => 0,
                false => totals.allocated,
            };
            match class {
                Normal => capacity += self.deflated(&tree, vdev, bytes),
                Special | Dedup => {
                    others += self.deflated(&tree, vdev, totals.allocated.min(bytes))
                }
                Log => {}
            }
        }
        let slop = match self.slop_in_tests.load(Relaxed) {
            0 => metaslab::slop(capacity, 0),
            bytes => bytes,
        };
        let kept = slop.saturating_add(self.unfreed.load(Relaxed));
        let all = capacity.saturating_sub(kept).saturating_add(others);
        let all = all.saturating_sub(self.checkpointed.load(Relaxed));
        let saved = self.cloned.load(Relaxed).saturating_add(self.deduplicated.load(Relaxed));
        all.saturating_add(saved)
    }

    /// Reserves capacity for a block of an intent log, besides what its dirty block is
    /// charged, because the log block's address may be wasted. Log blocks may use half of
    /// what is free.
    pub(super) fn reserve_log_block(&self, txg: Txg, bytes: u64) -> bool {
        let limit = self.allocatable(false) / 2;
        self.txgs.space().try_reserve(txg, self.costs.asize(bytes), limit)
    }

    /// Reserves capacity for `logical` bytes in `txg`, in the worst case (chapter 05 §11.4);
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
    fn reserve_capacity(
        &self,
        txg: Txg,
        logical: u64,
        limit: u64,
    ) -> std::result::Result<u64, BeginRefusal> {
        if logical == 0 {
            return Ok(0);
        }
        let space = self.txgs.space();
        let most = txg::worst_case_asize(logical, self.max_ashift);
        let data = logical.max(1 << self.max_ashift.min(16));
        let here = data.saturating_mul(OPEN_COPIES * self.costs.inflation.load(Relaxed));
        let apart = || {
            // A small pool has little data, too.
            (self.normal().allocated / INDIRECT_SHARE + INDIRECT_LEAST).min(limit / 4)
        };
        let (is_light, over) = (here < most, self.slop() / OVERDRAFT_SHARE);
        // The separate reserve stays until the txg is on disk, so it is only made where the
        // data fits as well. Otherwise each retry would leave one behind, and the next retry,
        // in another txg, would not fit because of it, for ever.
        let fits = || {
            let all = space.inflight().saturating_add(apart()).saturating_add(here);
            space.allowance(txg) > 0 || all <= limit.saturating_add(over)
        };
        let light = is_light && fits() && space.once(txg, apart, limit);
        let got = match light.then(|| space.overdraw(txg, here, limit, over)).flatten() {
            None => space.reserve(txg, most, limit).map(|had| (had, most, 0)),
            Some(had) => Some((had, here, here)),
        };
        if let Some((before, bytes, back)) = got {
            // In a small or nearly full pool the allowance alone is as much as this share of the
            // limit, and the limit shrinks while frees are deferred.
            let data = before.saturating_add(bytes).saturating_sub(space.allowance(txg));
            if data >= limit.saturating_sub(space.allowances()) / EARLY_SHARE {
                self.txgs.request(txg);
            }
            return Ok(back);
        }
        // The reservations may turn out to be too large: retry after this txg, if this one
        // would fit without them.
        let fits_light = is_light && here.saturating_add(apart()) <= limit.saturating_add(over);
        if space.inflight() > 0 && (most <= limit || fits_light) {
            return Err(BeginRefusal::NextTxg);
        }
        Err(BeginRefusal::Failed(Error::new(ErrorKind::NoSpace, "no space left in the pool")))
    }
}

impl Writer {
    /// Begins a transaction in the open txg, if its whole reservation fits now.
    fn try_begin(
        &self,
        account: Option<&SpaceAccount>,
        wanted: Wanted,
        outage: OutagePolicy,
    ) -> std::result::Result<Tx, BeginRefusal> {
        let Wanted { logical, shared, frees } = wanted;
        let account = account.filter(|_| !frees && logical > 0);
        loop {
            self.txgs.throttle()?;
            let limit = self.ledger.allocatable_now(frees);
            if logical > 0 {
                self.txgs.throttle_space(limit);
            }
            // Reading the bounds may wait for a device, so it precedes the hold.
            let bounds = account.map(|account| account.bounds(self, outage)).transpose()?;
            let hold = self.txgs.hold()?;
            let txg = hold.txg();
            let reserved = bounds.as_ref().map(|bounds| bounds.reserve(txg, logical, shared));
            if bounds.as_ref().is_some_and(|bounds| bounds.txg != self.txgs.synced_txg()) {
                continue;
            }
            let charges = match reserved {
                None => None,
                Some(Ok(charges)) => Some(charges),
                Some(Err(level)) => {
                    let uncertain = level.reserved_now.inflight() > 0;
                    let refused = || BeginRefusal::Failed(refused_by(level.refusal));
                    return Err(if uncertain { BeginRefusal::OnDisk } else { refused() });
                }
            };
            let capacity = self.ledger.reserve_capacity(txg, logical, limit)?;
            let ledger = Arc::clone(&self.ledger);
            let dirtied = AtomicI64::new(0);
            let meter = Meter { ledger, txg, capacity, charges, dirtied };
            return Ok(Tx::open(txg, Arc::new(meter), hold).with_outage(outage));
        }
    }

    /// Begins a transaction in the open txg that changes the dataset of `account`. Waits
    /// while too much is dirty, while space is only reserved, and for the txgs that make
    /// freed space available. `logical` is the bytes that the transaction may write at most;
    /// `frees`: its purpose is to free space, so that quotas do not matter. `outage` is the
    /// policy for absent devices, of the transaction's reads and of those of the limits.
    ///
    /// # Errors
    /// `Quota`; `NoSpace`; that of the suspension, with `failmode=continue`; those of reading
    /// the MOS.
    pub fn begin_for(
        &self,
        account: Option<&SpaceAccount>,
        logical: u64,
        frees: bool,
        outage: OutagePolicy,
    ) -> Result<Tx> {
        self.begin(account, Wanted { logical, shared: 0, frees }, outage)
    }

    /// As [`Writer::begin_for`], for a transaction that clones `shared` bytes besides. They
    /// take no space of the pool, and are charged to the dataset.
    ///
    /// # Errors
    /// As [`Writer::begin_for`].
    pub fn begin_clone(
        &self,
        account: &SpaceAccount,
        logical: u64,
        shared: u64,
        outage: OutagePolicy,
    ) -> Result<Tx> {
        self.begin(Some(account), Wanted { logical, shared, frees: false }, outage)
    }

    fn begin(
        &self,
        account: Option<&SpaceAccount>,
        wanted: Wanted,
        outage: OutagePolicy,
    ) -> Result<Tx> {
        let frees = wanted.frees;
        let mut drained = 0;
        loop {
            let synced = self.txgs.synced_txg();
            match self.try_begin(account, wanted, outage) {
                Ok(tx) => {
                    if let Some(account) = account.filter(|_| frees) {
                        account.freed.fetch_max(tx.txg().0, Relaxed);
                    }
                    return Ok(tx);
                }
                Err(BeginRefusal::NextTxg) => {
                    let open = self.txgs.open_txg();
                    self.txgs.kick(open);
                    self.txgs.wait_open(open.next())?;
                    self.txgs.wait_room(Txg(open.0.saturating_sub(1)))?;
                }
                Err(BeginRefusal::OnDisk) => drop(self.sync()?),
                Err(BeginRefusal::Failed(e)) => {
                    let deferred = || self.ledger.normal().deferred > 0;
                    let freeing = || !frees && account.is_some_and(|a| a.is_freeing(&self.txgs));
                    let may_fit = match e.kind() {
                        ErrorKind::NoSpace => freeing() || deferred(),
                        ErrorKind::Quota => freeing(),
                        _ => return Err(e),
                    };
                    // A txg that ended after the refusal may have made the room, and then
                    // nothing is left to wait for.
                    let ended = self.txgs.synced_txg() != synced;
                    if !(may_fit || ended) || drained == DRAIN_TXGS {
                        return Err(e);
                    }
                    drained += 1;
                    if may_fit {
                        self.sync()?;
                    }
                }
            }
        }
    }

    /// [`Writer::begin_for`] for a transaction of no dataset in particular: only the pool's
    /// capacity limits it. Its reads fail when devices are absent.
    ///
    /// # Errors
    /// As [`Writer::begin_for`].
    pub fn begin_wait(&self, logical: u64, frees: bool) -> Result<Tx> {
        self.begin_for(None, logical, frees, OutagePolicy::Fail)
    }

    /// Bytes that the dataset of `account` refers to, and bytes that it may still use, as of
    /// the last synced txg (`statfs`). `outage` is the policy of the reads for absent devices.
    ///
    /// # Errors
    /// Those of reading the MOS.
    pub fn account_space(
        &self,
        account: &SpaceAccount,
        outage: OutagePolicy,
    ) -> Result<(u64, u64)> {
        let bounds = account.bounds(self, outage)?;
        Ok((bounds.referenced, bounds.room().min(self.allocatable(false))))
    }

    /// Bytes, parity included, that may still be allocated; frees may use half of the slop
    /// (chapter 05 §11.3). Freed space that cannot be reused yet counts as free.
    pub fn allocatable(&self, frees: bool) -> u64 {
        self.ledger.allocatable(frees)
    }

    /// Deflated bytes that all datasets together may use: the limit of the pool's root
    /// directory (chapter 04 §5.5, chapter 05 §11). Blocks whose frees wait for the next txg
    /// in the MOS (in pools without log space maps) belong to no dataset, and are in use.
    /// Datasets are charged for every reference to a cloned or deduplicated block, so the space
    /// that cloning and deduplication save is included (chapter 08 §B.3, §C.2).
    pub fn usable(&self) -> u64 {
        self.ledger.usable()
    }
}

impl From<Error> for BeginRefusal {
    fn from(error: Error) -> BeginRefusal {
        BeginRefusal::Failed(error)
    }
}

fn refused_by(kind: ErrorKind) -> Error {
    let text = match kind {
        ErrorKind::Quota => "the quota is exhausted",
        _ => "no space left in the pool that is not reserved",
    };
    Error::new(kind, text)
}

#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;
