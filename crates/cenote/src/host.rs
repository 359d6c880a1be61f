//! The pool beneath a file system that is being changed: transactions, quotas, properties.
//!
//! # Theory
//! Properties are read when the file system is opened and again whenever some dataset's
//! change, so that a call sees a change made before it at the price of one lock.
//!
//! Quotas bound what a dataset refers to (`refquota`) and what it uses with all below it
//! (`quota`, its own and each ancestor's); the pool bounds all, less what others have
//! reserved and do not use (chapter 04 §5.5). How much is used is known of synced groups;
//! what was promised to younger ones is added as if every byte were new. A call that does
//! not fit then waits for the groups under way, and fails only if it does not fit into
//! what is known for certain. So a quota is exceeded by no more than metadata and the
//! rounding of sectors, and nobody is refused for what others only asked for.
//!
//! # Invariants
//! * Freeing space is never refused for a quota or for reservations.
//!
//! Lock order: `Quotas` → the pool's names; `props` is a leaf. The engine is not called
//! under either, but for reading the MOS.
//!
//! # Departures from OpenZFS
//! * What other datasets wrote since the last synced group may have eaten into a
//!   reservation.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use base::limits::DATASET_DEPTH_MAX;
use base::rt::{Mutex, RwLock};
use base::{Error, ErrorKind, Result, Txg};
use dmu::Tx;
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
    /// Bytes promised in each group since.
    promised: BTreeMap<Txg, u64>,
}

impl Quotas {
    /// Bytes promised that `room` does not know of.
    fn promised(&self) -> u64 {
        self.promised.values().sum()
    }

    /// Takes what is known of a newer group.
    fn look(&mut self, txg: Txg, room: Room) {
        self.txg = Some(txg);
        self.room = room;
        self.promised = self.promised.split_off(&txg.next());
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
            freed: AtomicU64::new(0),
        };
        host.refresh()?;
        Ok(Arc::new(host))
    }

    fn dir(&self) -> Result<u64> {
        let pool = self.writer.published().config.name.clone();
        find_dir(self.writer.mos(), &pool, &self.name)
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
        *self.quotas.lock() = Quotas::default();
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
    fn promise(&self, bytes: u64) -> Result<Option<ErrorKind>> {
        let mut quotas = self.quotas.lock();
        let synced = self.writer.txgs().synced_txg();
        if quotas.txg != Some(synced) {
            let room = self.room()?.0;
            quotas.look(synced, room);
        }
        let refused = quotas.room.refuses(quotas.promised().saturating_add(bytes));
        if refused.is_none() {
            let open = self.writer.txgs().open_txg();
            *quotas.promised.entry(open).or_insert(0) += bytes;
        }
        Ok(refused)
    }

    /// Whether anything promised is not yet on disk.
    fn is_uncertain(&self) -> bool {
        self.quotas.lock().promised() > 0
    }

    /// Whether something was freed that is not known yet.
    fn is_freeing(&self) -> bool {
        self.writer.txgs().synced_txg().0 < self.freed.load(Relaxed)
    }
}

impl Host for PoolHost {
    fn begin(&self, bytes: u64, frees: bool) -> Result<Tx> {
        let mut waited = 0;
        // What was freed a moment ago makes room in the next groups.
        let mut may_wait = || {
            waited += 1;
            !frees && waited <= FREE_GROUPS && self.is_freeing()
        };
        if !frees {
            while let Some(why) = self.promise(bytes)? {
                if !self.is_uncertain() && !may_wait() {
                    let text = match why {
                        ErrorKind::Quota => "the quota is exhausted",
                        _ => "no space left in the pool that is not reserved",
                    };
                    return Err(Error::new(why, text).in_dataset(&self.name));
                }
                self.writer.sync()?;
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
                    return Ok(tx);
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
        let room = |quota| Room { quota, space: 1000 };
        let mut quotas = Quotas { room: room(Some(100)), ..Quotas::default() };
        for (txg, bytes) in [(5, 10), (6, 20), (7, 40)] {
            quotas.promised.insert(Txg(txg), bytes);
        }
        quotas.look(Txg(6), room(Some(80)));
        assert_eq!((quotas.promised(), quotas.room), (40, room(Some(80))));
        quotas.look(Txg(7), room(None));
        assert_eq!((quotas.promised(), quotas.room), (0, room(None)));
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
