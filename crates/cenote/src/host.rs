//! The pool's side of a file system open for writing: transactions, quotas, properties.
//!
//! # Theory
//! Properties are read when the file system is opened and again whenever a dataset's
//! properties change, so that a call sees a change made before it at the cost of one lock.
//!
//! Quotas bound what a dataset refers to (`refquota`) and what it uses with all datasets
//! below it (`quota`, its own and each ancestor's). The pool bounds everything, less the
//! unused reservations of others (chapter 04 §5.5). The use is known as of synced txgs. A
//! transaction reserves the most that it may need. When it ends, it keeps a reservation for
//! the blocks that it made dirty, until its txg is on disk; as if all of them were new. A
//! call that does not fit then waits for the txgs in progress, and fails only if it does
//! not fit into the space known for certain. So a quota is exceeded by no more than
//! metadata and the rounding of large sectors, and no caller is refused because of other
//! callers' unused reservations.
//!
//! # Invariants
//! * Freeing space is never refused for a quota or for reservations.
//! * Every reservation is tracked until its txg is synced: those of open transactions as a
//!   sum, those of ended ones by txg.
//!
//! Lock order: `Quotas` → the pool's names; `Quotas` → `Reservations`; that and `props` are
//! leaves. The engine is not called under any of them, except for reading the MOS under the
//! first. A transaction that ends takes only the second, because other threads may wait for
//! its txg.
//!
//! # Departures from OpenZFS
//! * Writes of other datasets since the last synced txg may have consumed part of a
//!   reservation.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

use base::limits::DATASET_DEPTH_MAX;
use base::rt::{Mutex, RwLock};
use base::{Error, ErrorKind, Result, Txg};
use dmu::{DirtyMeter, Tx};
use dsl::stored::Stored;
use dsl::write::{MosRead, features, props};
use spa::engine::{Writer, effective, find_dir};
use zpl::Time;
use zpl::rw::{Atime, Host, HostSpace, RwProps, XattrForm};

const LARGE_DNODE: &str = "org.zfsonlinux:large_dnode";
/// Block size without property `recordsize`, and the largest without large_blocks.
const RECORD_DEFAULT: u64 = 128 << 10;
/// Slots of a dnode with `dnodesize=auto`.
const AUTO_SLOTS: u64 = 2;
/// Bytes of dnodes that a transaction changes, besides the blocks that it reports.
const DNODES: u64 = 1 << 10;
/// The least size of a block on disk.
const SECTOR: u64 = 4 << 10;

/// The pool's side of one file system.
pub(crate) struct PoolHost {
    writer: Arc<Writer>,
    name: String,
    head: u64,
    /// Bytes that deduplication and cloning save.
    saved: u64,
    props: RwLock<Arc<RwProps>>,
    log: Option<Arc<zil::Log>>,
    quotas: Mutex<Quotas>,
    reservations: Arc<Mutex<Reservations>>,
    /// The newest txg in which blocks were freed.
    freed: AtomicU64,
}

/// Txgs for which one call waits, because of the space freed in them.
const FREE_TXGS: u32 = 4;

/// Bytes that may still be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Room {
    /// By quotas; `None` without one.
    quota: Option<u64>,
    /// In the pool, without the reservations of others.
    space: u64,
}

impl Room {
    /// Applies a quota.
    fn bound(&mut self, limit: u64, used: u64) {
        if limit != 0 {
            let left = limit.saturating_sub(used);
            self.quota = Some(self.quota.map_or(left, |room| room.min(left)));
        }
    }

    /// The parent directory is already charged for the unused part of a reservation.
    fn reserved(&mut self, bytes: u64, used: u64) {
        let own = bytes.saturating_sub(used);
        self.space = self.space.saturating_add(own);
        self.quota = self.quota.map(|room| room.saturating_add(own));
    }

    /// The reason why this many bytes do not fit, if they do not.
    fn refuses(&self, bytes: u64) -> Option<ErrorKind> {
        match self.quota {
            Some(left) if bytes > left => Some(ErrorKind::Quota),
            _ if bytes > self.space => Some(ErrorKind::NoSpace),
            _ => None,
        }
    }
}

/// The space that quotas and reservations leave, as of one synced txg.
#[derive(Default)]
struct Quotas {
    /// The txg; `None` before the first query.
    txg: Option<Txg>,
    room: Room,
}

/// Reserved bytes that no synced txg accounts for.
#[derive(Default)]
struct Reservations {
    /// The maxima of open transactions.
    open: u64,
    /// The sizes of dirty blocks of ended transactions, by txg.
    charged: BTreeMap<Txg, u64>,
}

impl Reservations {
    fn total(&self) -> u64 {
        self.charged.values().fold(self.open, |all, bytes| all.saturating_add(*bytes))
    }

    fn synced(&mut self, txg: Txg) {
        self.charged = self.charged.split_off(&txg.next());
    }
}

/// A reservation; converted when the transaction ends.
struct TxReservation {
    reservations: Arc<Mutex<Reservations>>,
    bytes: u64,
    /// The txg, and the bytes used in it.
    charged: Option<(Txg, u64)>,
}

impl Drop for TxReservation {
    fn drop(&mut self) {
        let mut reservations = self.reservations.lock();
        reservations.open -= self.bytes;
        if let Some((txg, bytes)) = self.charged {
            *reservations.charged.entry(txg).or_insert(0) += bytes.min(self.bytes);
        }
    }
}

/// Adds the bytes of a transaction's blocks to its reservation and forwards the call.
struct Meter {
    pool: Arc<dyn DirtyMeter>,
    txg: Txg,
    taken: AtomicI64,
    reservation: TxReservation,
}

impl DirtyMeter for Meter {
    fn dirty(&self, txg: Txg, bytes: u64) {
        self.pool.dirty(txg, bytes);
    }

    fn clean(&self, txg: Txg, bytes: u64) {
        self.pool.clean(txg, bytes);
    }

    fn plan_write(&self, txg: Txg, bytes: u64, copies: u8, nodes: u8) {
        if txg == self.txg {
            let stored = bytes.max(SECTOR) * u64::from(copies);
            self.taken.fetch_add(stored.cast_signed(), Relaxed);
        }
        self.pool.plan_write(txg, bytes, copies, nodes);
    }

    fn cancel_write(&self, txg: Txg, bytes: u64) {
        if txg == self.txg {
            self.taken.fetch_sub(bytes.cast_signed(), Relaxed);
        }
        self.pool.cancel_write(txg, bytes);
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        let taken = self.taken.load(Relaxed).max(0).cast_unsigned();
        self.reservation.charged = Some((self.txg, taken + DNODES));
    }
}

/// Directories from a dataset's up to the pool's root.
fn ancestry(mos: &dyn MosRead, dir: u64) -> Result<Vec<u64>> {
    let mut out = Vec::new();
    let mut at = dir;
    while at != 0 && out.len() <= DATASET_DEPTH_MAX {
        out.push(at);
        at = mos.dir(at)?.parent_obj;
    }
    Ok(out)
}

impl PoolHost {
    /// For the file system `name` with head `head`.
    pub(crate) fn new(
        writer: &Arc<Writer>,
        name: &str,
        head: u64,
        saved: u64,
        log: Option<Arc<zil::Log>>,
    ) -> Result<Arc<PoolHost>> {
        let host = PoolHost {
            writer: Arc::clone(writer),
            name: name.to_owned(),
            head,
            saved,
            props: RwLock::default(),
            log,
            quotas: Mutex::default(),
            reservations: Arc::default(),
            freed: AtomicU64::new(0),
        };
        host.refresh()?;
        Ok(Arc::new(host))
    }

    fn dir(&self) -> Result<u64> {
        find_dir(self.writer.mos(), self.writer.name(), &self.name)
    }

    /// Reads the properties again.
    ///
    /// # Errors
    /// `NotFound` when the dataset was destroyed; those of reading the MOS.
    pub(crate) fn refresh(&self) -> Result<()> {
        let (props, wants_large, mode, throughput) = {
            let _names = self.writer.names();
            self.read_props()?
        };
        if let Some(log) = &self.log {
            log.set_mode(mode);
            log.set_throughput(throughput);
        }
        if wants_large {
            // The feature must be marked before dnodes of more than one slot are written.
            let head = self.head;
            let check = |_: &mut spa::engine::TaskCx<'_>| Ok(());
            self.writer.sync_task(check, move |cx, ()| cx.activate(head, LARGE_DNODE))?;
        }
        *self.props.write() = Arc::new(props);
        self.quotas.lock().txg = None;
        Ok(())
    }

    /// The properties, whether feature large_dnode is still to be marked, `sync`, and whether
    /// `logbias` is `throughput`.
    fn read_props(&self) -> Result<(RwProps, bool, zil::Mode, bool)> {
        let mos: &dyn MosRead = self.writer.mos();
        let dir = self.dir()?;
        let get = |name: &str| -> Result<Option<u64>> {
            Ok(effective(mos, dir, name)?.as_ref().and_then(Stored::number))
        };
        let is_on = |name: &str| Ok::<_, Error>(get(name)?.unwrap_or(1) != 0);
        let atime = match (is_on("atime")?, is_on("relatime")?) {
            (false, _) => Atime::Off,
            (true, false) => Atime::On,
            (true, true) => Atime::Relatime,
        };
        let xattr = match get("xattr")? {
            Some(0) => XattrForm::Off,
            Some(1) => XattrForm::Dir,
            _ => XattrForm::Sa,
        };
        let wanted = match get("dnodesize")?.unwrap_or(0) {
            0 => 1,
            1 => AUTO_SLOTS,
            bytes => (bytes / 512).clamp(1, 32),
        };
        let large = features::is_enabled(mos, LARGE_DNODE)?;
        let slots = if large { wanted } else { 1 };
        let marked = || -> Result<bool> {
            let list = features::of_dataset(mos, self.head)?;
            Ok(list.iter().any(|(f, _)| f.guid == LARGE_DNODE))
        };
        let unmarked = slots > 1 && !marked()?;
        let record = get("recordsize")?.unwrap_or(RECORD_DEFAULT);
        let large_blocks = features::is_enabled(mos, features::LARGE_BLOCKS)?;
        let record = if large_blocks { record } else { record.min(RECORD_DEFAULT) };
        let props = RwProps {
            record_size: u32::try_from(record).unwrap_or(128 << 10),
            atime,
            xattr,
            posix_acl: get("acltype")? == Some(1),
            dnode_slots: slots as u8,
            read_only: get("readonly")?.unwrap_or(0) != 0,
        };
        let mode = match get("sync")?.unwrap_or(0) {
            1 => zil::Mode::Always,
            2 => zil::Mode::Disabled,
            _ => zil::Mode::Standard,
        };
        Ok((props, unmarked, mode, get("logbias")? == Some(1)))
    }

    /// The space that the quotas and the pool leave, and the referenced bytes of the
    /// dataset, as of the last synced txg.
    fn room(&self) -> Result<(Room, u64)> {
        let mos: &dyn MosRead = self.writer.mos();
        let _names = self.writer.names();
        let dir = self.dir()?;
        let head = mos.dataset(mos.dir(dir)?.head_dataset_obj)?;
        let space = self.writer.usable().saturating_add(self.saved);
        let mut room = Room { quota: None, space };
        for (i, at) in ancestry(mos, dir)?.into_iter().rev().enumerate() {
            let phys = mos.dir(at)?;
            match i {
                0 => room.space = room.space.saturating_sub(phys.used_bytes),
                _ => room.reserved(phys.reserved, phys.used_bytes),
            }
            room.bound(phys.quota, phys.used_bytes);
        }
        room.reserved(props::refreservation(mos, dir)?, head.unique_bytes);
        room.bound(props::own_number(mos, dir, "refquota")?, head.referenced_bytes);
        Ok((room, head.referenced_bytes))
    }

    /// Reserves `bytes`, or returns why they do not fit.
    fn reserve(&self, bytes: u64) -> Result<std::result::Result<TxReservation, ErrorKind>> {
        let mut quotas = self.quotas.lock();
        let synced = self.writer.txgs().synced_txg();
        if quotas.txg != Some(synced) {
            quotas.room = self.room()?.0;
            quotas.txg = Some(synced);
            self.reservations.lock().synced(synced);
        }
        let mut reservations = self.reservations.lock();
        if let Some(why) = quotas.room.refuses(reservations.total().saturating_add(bytes)) {
            return Ok(Err(why));
        }
        reservations.open += bytes;
        Ok(Ok(TxReservation { reservations: Arc::clone(&self.reservations), bytes, charged: None }))
    }

    /// Whether any reservation is not on disk yet.
    fn is_uncertain(&self) -> bool {
        self.reservations.lock().total() > 0
    }

    /// Whether recent frees are not accounted for yet.
    fn is_freeing(&self) -> bool {
        self.writer.txgs().synced_txg().0 < self.freed.load(Relaxed)
    }
}

fn metered(tx: Tx, reservation: TxReservation) -> Tx {
    let (txg, taken) = (tx.txg(), AtomicI64::new(0));
    tx.metered_by(|pool| Arc::new(Meter { pool, txg, taken, reservation }))
}

impl Host for PoolHost {
    fn begin(&self, bytes: u64, frees: bool) -> Result<Tx> {
        let mut waited = 0;
        // Space freed recently is available in the next txgs.
        let mut may_wait = || {
            waited += 1;
            !frees && waited <= FREE_TXGS && self.is_freeing()
        };
        let mut reservation = None;
        while !frees && reservation.is_none() {
            match self.reserve(bytes)? {
                Ok(charged) => reservation = Some(charged),
                Err(why) if !self.is_uncertain() && !may_wait() => {
                    let text = match why {
                        ErrorKind::Quota => "the quota is exhausted",
                        _ => "no space left in the pool that is not reserved",
                    };
                    return Err(Error::new(why, text).in_dataset(&self.name));
                }
                Err(_) => drop(self.writer.sync()?),
            }
        }
        loop {
            match self.writer.begin_wait(bytes, frees) {
                Err(e) if e.kind() == ErrorKind::NoSpace && may_wait() => {
                    self.writer.sync()?;
                }
                Err(e) => return Err(e.in_dataset(&self.name)),
                Ok(tx) => {
                    if frees {
                        self.freed.fetch_max(tx.txg().0, Relaxed);
                    }
                    return Ok(match reservation {
                        Some(reservation) => metered(tx, reservation),
                        None => tx,
                    });
                }
            }
        }
    }

    fn synced(&self, txg: Txg) -> Result<()> {
        let txgs = self.writer.txgs();
        if txgs.synced_txg() >= txg {
            return Ok(());
        }
        txgs.kick(txg);
        txgs.wait_synced(txg)
    }

    fn log(&self) -> Option<Arc<zil::Log>> {
        self.log.clone()
    }

    fn now(&self) -> Time {
        let now = base::rt::wall_clock();
        Time { seconds: now.as_secs() as i64, nanoseconds: u64::from(now.subsec_nanos()) }
    }

    fn props(&self) -> Arc<RwProps> {
        Arc::clone(&self.props.read())
    }

    fn space(&self) -> Result<HostSpace> {
        let (room, used) = self.room()?;
        let free = self.writer.allocatable(false).min(room.space);
        Ok(HostSpace { used, available: room.quota.map_or(free, |left| left.min(free)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn synced_bytes_are_not_reserved_any_more() {
        let mut reservations = Reservations { open: 5, ..Reservations::default() };
        for (txg, bytes) in [(5, 10), (6, 20), (7, 40)] {
            reservations.charged.insert(Txg(txg), bytes);
        }
        reservations.synced(Txg(6));
        assert_eq!(reservations.total(), 45);
        reservations.synced(Txg(7));
        assert_eq!(reservations.total(), 5);
    }

    struct IgnoredMeter;

    impl DirtyMeter for IgnoredMeter {
        fn dirty(&self, _: Txg, _: u64) {}
        fn clean(&self, _: Txg, _: u64) {}
    }

    /// Story: each new file reserved 190 KB until its txg was on disk. A caller that made
    /// 1,800-byte files in a pool of 6 GiB stalled for 150 ms after every 30,000 files.
    #[test]
    fn ended_transactions_keep_the_size_of_their_blocks() {
        let reservations = Arc::new(Mutex::new(Reservations::default()));
        let begin = |bytes: u64, txg| {
            reservations.lock().open += bytes;
            let reservation =
                TxReservation { reservations: Arc::clone(&reservations), bytes, charged: None };
            metered(Tx::open(txg, Arc::new(IgnoredMeter), ()), reservation)
        };
        let total = || reservations.lock().total();
        let (first, second) = (begin(100_000, Txg(7)), begin(200_000, Txg(8)));
        assert_eq!(total(), 300_000);
        first.dirt().unwrap().plan_write(Txg(7), 512, 1, 0);
        first.dirt().unwrap().plan_write(Txg(7), 10_000, 2, 1);
        first.dirt().unwrap().cancel_write(Txg(7), 1000);
        // A change of a newer txg is charged to that txg.
        first.dirt().unwrap().plan_write(Txg(8), 1 << 20, 1, 0);
        drop(first);
        assert_eq!(total(), 200_000 + SECTOR + 20_000 - 1000 + DNODES);
        // Never more than the reservation.
        second.dirt().unwrap().plan_write(Txg(8), 1 << 20, 1, 0);
        drop(second);
        reservations.lock().synced(Txg(7));
        assert_eq!(total(), 200_000);
        // A reservation that was not used.
        reservations.lock().open += 7;
        drop(TxReservation { reservations: Arc::clone(&reservations), bytes: 7, charged: None });
        assert_eq!(total(), 200_000);
    }

    #[test]
    fn the_nearest_bound_is_named() {
        let mut room = Room { quota: None, space: 500 };
        assert_eq!(room.refuses(501), Some(ErrorKind::NoSpace));
        room.bound(1000, 600);
        room.bound(0, 9);
        assert_eq!((room.refuses(400), room.refuses(401)), (None, Some(ErrorKind::Quota)));
        // 200 bytes were reserved, of which 50 are used.
        room.reserved(200, 50);
        assert_eq!(room, Room { quota: Some(550), space: 650 });
        room.bound(10, 11);
        assert_eq!((room.refuses(0), room.refuses(1)), (None, Some(ErrorKind::Quota)));
    }
}
