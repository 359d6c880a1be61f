//! The pool beneath a file system that is being changed: transactions, quotas, properties.
//!
//! # Theory
//! Properties are read when the file system is opened and again whenever some dataset's
//! change, so that a call sees a change made before it at the price of one lock.
//!
//! Quotas bound what a dataset refers to (`refquota`) and what it uses with all below it
//! (`quota`, its own and each ancestor's). How much is used is known of synced groups; what
//! was promised to younger ones is added as if every byte were new. A call that does not
//! fit then waits for the groups under way, and fails only if it does not fit into what
//! is known for certain. So a quota is exceeded by no more than metadata and the rounding
//! of sectors, and nobody is refused for what others only reserved.
//!
//! # Invariants
//! * Freeing space is never refused for a quota.
//!
//! Lock order: `Quotas` → the pool's names; `props` is a leaf. The engine is not called
//! under either, but for reading the MOS.
//!
//! # Departures from OpenZFS
//! * Reservations of others are respected by the pool's space alone, in synced groups.

use std::collections::BTreeMap;
use std::sync::Arc;

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
    props: RwLock<Arc<RwProps>>,
    quotas: Mutex<Quotas>,
}

/// What quotas leave, as of one synced group.
#[derive(Default)]
struct Quotas {
    /// The group; `None` until it was looked.
    txg: Option<Txg>,
    /// Bytes left; `None` without a quota.
    room: Option<u64>,
    /// Bytes promised in each group since.
    promised: BTreeMap<Txg, u64>,
}

impl Quotas {
    /// Bytes promised that `room` does not know of.
    fn promised(&self) -> u64 {
        self.promised.values().sum()
    }

    /// Takes what is known of a newer group.
    fn look(&mut self, txg: Txg, room: Option<u64>) {
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
    pub(crate) fn new(writer: &Arc<Writer>, name: &str, head: u64) -> Result<Arc<PoolHost>> {
        let host = PoolHost {
            writer: Arc::clone(writer),
            name: name.to_owned(),
            head,
            props: RwLock::default(),
            quotas: Mutex::default(),
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
        let (props, wants_large) = {
            let _names = self.writer.names();
            self.read_props()?
        };
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

    /// The properties, and whether feature large_dnode is still to be marked.
    fn read_props(&self) -> Result<(RwProps, bool)> {
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
        Ok((props, unmarked))
    }

    /// What the quotas above leave, and what the dataset refers to, of the last synced
    /// group.
    fn room(&self) -> Result<(Option<u64>, u64)> {
        let mos: &dyn MosRead = self.writer.mos();
        let _names = self.writer.names();
        let dir = self.dir()?;
        let referenced = mos.dataset(mos.dir(dir)?.head_dataset_obj)?.referenced_bytes;
        let mut room: Option<u64> = None;
        let mut bound = |limit: u64, used: u64| {
            if limit != 0 {
                let left = limit.saturating_sub(used);
                room = Some(room.map_or(left, |r| r.min(left)));
            }
        };
        bound(props::own_number(mos, dir, "refquota")?, referenced);
        for at in ancestry(mos, dir)? {
            let phys = mos.dir(at)?;
            bound(phys.quota, phys.used_bytes);
        }
        Ok((room, referenced))
    }

    /// Whether `bytes` fit into the quotas; they are promised then.
    fn promise(&self, bytes: u64) -> Result<bool> {
        let mut quotas = self.quotas.lock();
        let synced = self.writer.txgs().synced_txg();
        if quotas.txg != Some(synced) {
            let room = self.room()?.0;
            quotas.look(synced, room);
        }
        let Some(room) = quotas.room else { return Ok(true) };
        if quotas.promised().saturating_add(bytes) > room {
            return Ok(false);
        }
        let open = self.writer.txgs().open_txg();
        *quotas.promised.entry(open).or_insert(0) += bytes;
        Ok(true)
    }

    /// Whether anything promised is not yet on disk.
    fn is_uncertain(&self) -> bool {
        self.quotas.lock().promised() > 0
    }
}

impl Host for PoolHost {
    fn begin(&self, bytes: u64, frees: bool) -> Result<Tx> {
        if !frees {
            while !self.promise(bytes)? {
                if !self.is_uncertain() {
                    let text = "the quota is exhausted";
                    return Err(Error::new(ErrorKind::Quota, text).in_dataset(&self.name));
                }
                self.writer.sync()?;
            }
        }
        self.writer.begin_wait(bytes, frees).map_err(|e| e.in_dataset(&self.name))
    }

    fn synced(&self, txg: Txg) -> Result<()> {
        let txgs = self.writer.txgs();
        if txgs.synced_txg() >= txg {
            return Ok(());
        }
        txgs.kick(txg);
        txgs.wait_synced(txg)
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
        let free = self.writer.allocatable(false);
        Ok(HostSpace { used, available: room.map_or(free, |r| r.min(free)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_synced_is_no_promise_any_more() {
        let mut quotas = Quotas { room: Some(100), ..Quotas::default() };
        for (txg, bytes) in [(5, 10), (6, 20), (7, 40)] {
            quotas.promised.insert(Txg(txg), bytes);
        }
        quotas.look(Txg(6), Some(80));
        assert_eq!((quotas.promised(), quotas.room), (40, Some(80)));
        quotas.look(Txg(7), None);
        assert_eq!((quotas.promised(), quotas.room), (0, None));
    }
}
