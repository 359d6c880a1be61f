//! The pool beneath a file system that is being changed: transactions, quotas, properties.
//!
//! # Theory
//! Properties are read when the file system is opened and again whenever some dataset's
//! change, so that a call sees a change made before it at the price of one lock.
//!
//! Quotas bound what a dataset refers to (`refquota`) and what it uses with all below it
//! (`quota`, its own and each ancestor's); the pool bounds all, less what others have
//! reserved and do not use (chapter 04 §5.5). How much is used is known of synced groups.
//! A transaction is promised the most that it may need, and keeps of that, once it ends,
//! what the blocks take that it made dirty, until its group is on disk; as if all were new.
//! A call that does not fit then waits for the groups under way, and fails only if it does
//! not fit into what is known for certain. So a quota is exceeded by no more than metadata
//! and the rounding of large sectors, and nobody is refused for what others only asked for.
//!
//! # Invariants
//! * Freeing space is never refused for a quota or for reservations.
//! * Every promise is kept track of until its group is synced: open transactions together,
//!   those that ended by group.
//!
//! Lock order: `Quotas` → the pool's names; `Quotas` → `Promises`; that and `props` are
//! leaves. The engine is not called under any of them, but for reading the MOS under the
//! first: a transaction that ends takes the second alone, for others may wait for its group.
//!
//! # Departures from OpenZFS
//! * What other datasets wrote since the last synced group may have eaten into a
//!   reservation.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

use base::limits::DATASET_DEPTH_MAX;
use base::rt::{Mutex, RwLock};
use base::{Error, ErrorKind, Result, Txg};
use dmu::{Dirt, Tx};
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
/// Bytes of dnodes that a transaction changes, beside the blocks that it tells of.
const DNODES: u64 = 1 << 10;
/// What a block takes at least.
const SECTOR: u64 = 4 << 10;

/// A file system's pool.
pub(crate) struct PoolHost {
    writer: Arc<Writer>,
    name: String,
    head: u64,
    /// Bytes that deduplication and cloning save.
    saved: u64,
    props: RwLock<Arc<RwProps>>,
    log: Option<Arc<zil::Log>>,
    quotas: Mutex<Quotas>,
    promises: Arc<Mutex<Promises>>,
    /// The youngest group in which something was freed.
    freed: AtomicU64,
}

/// Groups that one call waits for, for what was freed in them.
const FREE_GROUPS: u32 = 4;

/// Bytes that may still be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Room {
    /// Of quotas; `None` without one.
    quota: Option<u64>,
    /// Of the pool, without what others reserved.
    space: u64,
}

impl Room {
    /// What a quota does to it.
    fn bound(&mut self, limit: u64, used: u64) {
        if limit != 0 {
            let left = limit.saturating_sub(used);
            self.quota = Some(self.quota.map_or(left, |room| room.min(left)));
        }
    }

    /// What somebody reserved and does not use is charged above already.
    fn reserved(&mut self, bytes: u64, used: u64) {
        let own = bytes.saturating_sub(used);
        self.space = self.space.saturating_add(own);
        self.quota = self.quota.map(|room| room.saturating_add(own));
    }

    /// Why so many bytes do not fit, if they do not.
    fn refuses(&self, bytes: u64) -> Option<ErrorKind> {
        match self.quota {
            Some(left) if bytes > left => Some(ErrorKind::Quota),
            _ if bytes > self.space => Some(ErrorKind::NoSpace),
            _ => None,
        }
    }
}

/// What quotas and reservations leave, as of one synced group.
#[derive(Default)]
struct Quotas {
    /// The group; `None` until it was looked.
    txg: Option<Txg>,
    room: Room,
}

/// Bytes that no synced group knows of.
#[derive(Default)]
struct Promises {
    /// Of transactions that have not ended, at their most.
    open: u64,
    /// What the blocks take that those made dirty that ended, by group.
    made: BTreeMap<Txg, u64>,
}

impl Promises {
    fn total(&self) -> u64 {
        self.made.values().fold(self.open, |all, bytes| all.saturating_add(*bytes))
    }

    fn synced(&mut self, txg: Txg) {
        self.made = self.made.split_off(&txg.next());
    }
}

/// A promise; dropped when it is known what became of it.
struct Promise {
    promises: Arc<Mutex<Promises>>,
    bytes: u64,
    /// The group, and what is taken in it.
    made: Option<(Txg, u64)>,
}

impl Drop for Promise {
    fn drop(&mut self) {
        let mut promises = self.promises.lock();
        promises.open -= self.bytes;
        if let Some((txg, bytes)) = self.made {
            *promises.made.entry(txg).or_insert(0) += bytes.min(self.bytes);
        }
    }
}

/// Counts what a transaction's blocks take, on the way to who else is told.
struct Meter {
    pool: Arc<dyn Dirt>,
    txg: Txg,
    taken: AtomicI64,
    promise: Promise,
}

impl Dirt for Meter {
    fn dirty(&self, txg: Txg, bytes: u64) {
        self.pool.dirty(txg, bytes);
    }

    fn clean(&self, txg: Txg, bytes: u64) {
        self.pool.clean(txg, bytes);
    }

    fn place(&self, txg: Txg, bytes: u64, copies: u8, nodes: u8) {
        if txg == self.txg {
            let stored = bytes.max(SECTOR) * u64::from(copies);
            self.taken.fetch_add(stored.cast_signed(), Relaxed);
        }
        self.pool.place(txg, bytes, copies, nodes);
    }

    fn unplace(&self, txg: Txg, bytes: u64) {
        if txg == self.txg {
            self.taken.fetch_sub(bytes.cast_signed(), Relaxed);
        }
        self.pool.unplace(txg, bytes);
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        let taken = self.taken.load(Relaxed).max(0).cast_unsigned();
        self.promise.made = Some((self.txg, taken + DNODES));
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
    /// Beneath the file system `name`, whose head is `head`.
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
            promises: Arc::default(),
            freed: AtomicU64::new(0),
        };
        host.refresh()?;
        Ok(Arc::new(host))
    }

    fn dir(&self) -> Result<u64> {
        find_dir(self.writer.mos(), self.writer.name(), &self.name)
    }

    /// Reads the properties anew.
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
            // Dnodes of more than one slot must not be met by who does not know them.
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

    /// What the quotas above and the pool leave, and what the dataset refers to, of the
    /// last synced group.
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

    /// Promises `bytes`, or why they do not fit.
    fn promise(&self, bytes: u64) -> Result<std::result::Result<Promise, ErrorKind>> {
        let mut quotas = self.quotas.lock();
        let synced = self.writer.txgs().synced_txg();
        if quotas.txg != Some(synced) {
            quotas.room = self.room()?.0;
            quotas.txg = Some(synced);
            self.promises.lock().synced(synced);
        }
        let mut promises = self.promises.lock();
        if let Some(why) = quotas.room.refuses(promises.total().saturating_add(bytes)) {
            return Ok(Err(why));
        }
        promises.open += bytes;
        Ok(Ok(Promise { promises: Arc::clone(&self.promises), bytes, made: None }))
    }

    /// Whether anything promised is not yet on disk.
    fn is_uncertain(&self) -> bool {
        self.promises.lock().total() > 0
    }

    /// Whether something was freed that is not known yet.
    fn is_freeing(&self) -> bool {
        self.writer.txgs().synced_txg().0 < self.freed.load(Relaxed)
    }
}

fn metered(tx: Tx, promise: Promise) -> Tx {
    let (txg, taken) = (tx.txg(), AtomicI64::new(0));
    tx.told_to(|pool| Arc::new(Meter { pool, txg, taken, promise }))
}

impl Host for PoolHost {
    fn begin(&self, bytes: u64, frees: bool) -> Result<Tx> {
        let mut waited = 0;
        // What was freed a moment ago makes room in the next groups.
        let mut may_wait = || {
            waited += 1;
            !frees && waited <= FREE_GROUPS && self.is_freeing()
        };
        let mut promise = None;
        while !frees && promise.is_none() {
            match self.promise(bytes)? {
                Ok(made) => promise = Some(made),
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
                    return Ok(match promise {
                        Some(promise) => metered(tx, promise),
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
    fn what_is_synced_is_no_promise_any_more() {
        let mut promises = Promises { open: 5, ..Promises::default() };
        for (txg, bytes) in [(5, 10), (6, 20), (7, 40)] {
            promises.made.insert(Txg(txg), bytes);
        }
        promises.synced(Txg(6));
        assert_eq!(promises.total(), 45);
        promises.synced(Txg(7));
        assert_eq!(promises.total(), 5);
    }

    struct Nobody;

    impl Dirt for Nobody {
        fn dirty(&self, _: Txg, _: u64) {}
        fn clean(&self, _: Txg, _: u64) {}
    }

    /// Each new file was promised 190 KB until its group was on disk: one caller that made
    /// 1,800-byte files in a pool of 6 GiB stood still for 150 ms after every 30,000.
    #[test]
    fn who_ended_keeps_what_its_blocks_take() {
        let promises = Arc::new(Mutex::new(Promises::default()));
        let begin = |bytes: u64, txg| {
            promises.lock().open += bytes;
            let promise = Promise { promises: Arc::clone(&promises), bytes, made: None };
            metered(Tx::open(txg, Arc::new(Nobody), ()), promise)
        };
        let total = || promises.lock().total();
        let (first, second) = (begin(100_000, Txg(7)), begin(200_000, Txg(8)));
        assert_eq!(total(), 300_000);
        first.dirt().unwrap().place(Txg(7), 512, 1, 0);
        first.dirt().unwrap().place(Txg(7), 10_000, 2, 1);
        first.dirt().unwrap().unplace(Txg(7), 1000);
        // What it changes of a younger group is that one's.
        first.dirt().unwrap().place(Txg(8), 1 << 20, 1, 0);
        drop(first);
        assert_eq!(total(), 200_000 + SECTOR + 20_000 - 1000 + DNODES);
        // Never more than was promised.
        second.dirt().unwrap().place(Txg(8), 1 << 20, 1, 0);
        drop(second);
        promises.lock().synced(Txg(7));
        assert_eq!(total(), 200_000);
        // Nothing came of it.
        promises.lock().open += 7;
        drop(Promise { promises: Arc::clone(&promises), bytes: 7, made: None });
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
