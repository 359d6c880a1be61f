//! The pool's side of a file system or volume open for writing: transactions, quotas,
//! properties.
//!
//! # Theory
//! Properties are read when the dataset is opened and again whenever a dataset's
//! properties change, so that a call sees a change made before it at the cost of one lock.
//! The space of its transactions is reserved in the pool's ledger, under the dataset's
//! account (`spa::engine::SpaceAccount`).
//!
//! Lock order: the pool's names → `props`, a leaf.

use std::sync::Arc;

use base::rt::RwLock;
use base::{Error, ErrorKind, Result, Txg};
use dmu::{OutagePolicy, Tx};
use dsl::stored::Stored;
use dsl::write::{MosRead, features};
use ondisk::objset::ObjsetType;
use spa::engine::{SpaceAccount, Writer, effective};
use zpl::Time;
use zpl::rw::{Atime, Host, HostSpace, RwProps, XattrForm};
use zvol::VolumeHost;

const LARGE_DNODE: &str = "org.zfsonlinux:large_dnode";
/// Block size without property `recordsize`, and the largest without large_blocks.
const RECORD_DEFAULT: u64 = 128 << 10;
/// Slots of a dnode with `dnodesize=auto`.
const AUTO_SLOTS: u64 = 2;

/// The pool's side of one file system or volume.
pub(crate) struct PoolHost {
    writer: Arc<Writer>,
    name: String,
    head: u64,
    of: ObjsetType,
    props: RwLock<Arc<RwProps>>,
    log: Option<Arc<zil::Log>>,
    account: SpaceAccount,
}

impl PoolHost {
    /// For the file system or volume `name` with head `head`.
    pub(crate) fn new(
        writer: &Arc<Writer>,
        name: &str,
        head: u64,
        of: ObjsetType,
        log: Option<Arc<zil::Log>>,
    ) -> Result<Arc<PoolHost>> {
        let host = PoolHost {
            writer: Arc::clone(writer),
            name: name.to_owned(),
            head,
            of,
            props: RwLock::default(),
            log,
            account: SpaceAccount::new(head),
        };
        host.refresh()?;
        Ok(Arc::new(host))
    }

    /// The dataset's directory. It is found by its head, because its name may change.
    fn dir(&self) -> Result<u64> {
        let mos: &dyn MosRead = self.writer.mos();
        let gone = || Error::not_found("the dataset was destroyed").in_dataset(&self.name);
        let dir = match mos.dataset(self.head) {
            // Its object may be another one's by now.
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Corrupt) => {
                return Err(gone());
            }
            other => other?.dir_obj,
        };
        if mos.dir(dir)?.head_dataset_obj == self.head { Ok(dir) } else { Err(gone()) }
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
        // A volume has no new dnodes.
        if wants_large && self.of == ObjsetType::Zfs {
            // The feature must be marked before dnodes of more than one slot are written.
            let head = self.head;
            let check = |_: &mut spa::engine::TaskCx<'_>| Ok(());
            self.writer.sync_task(check, move |cx, ()| cx.activate(head, LARGE_DNODE))?;
        }
        *self.props.write() = Arc::new(props);
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
}

impl Host for PoolHost {
    fn begin(&self, bytes: u64, frees: bool, outage: OutagePolicy) -> Result<Tx> {
        let began = self.writer.begin_for(Some(&self.account), bytes, frees, outage);
        began.map_err(|e| e.in_dataset(&self.name))
    }

    fn begin_clone(&self, bytes: u64, shared: u64, outage: OutagePolicy) -> Result<Tx> {
        let began = self.writer.begin_clone(&self.account, bytes, shared, outage);
        began.map_err(|e| e.in_dataset(&self.name))
    }

    fn synced_txg(&self) -> Txg {
        self.writer.txgs().synced_txg()
    }

    fn settle(&self) -> Result<()> {
        self.writer.sync().map(drop)
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

    fn space(&self, outage: OutagePolicy) -> Result<HostSpace> {
        let (used, available) = self.writer.account_space(&self.account, outage)?;
        Ok(HostSpace { used, available })
    }

    fn newest_snapshot(&self) -> Result<Txg> {
        let mos: &dyn MosRead = self.writer.mos();
        Ok(mos.dataset(self.head)?.prev_snap_txg)
    }

    fn check_physical_rewrite(&self) -> Result<()> {
        if features::is_enabled(self.writer.mos(), features::PHYSICAL_REWRITE)? {
            return Ok(());
        }
        let text = "the pool's feature physical_rewrite is not enabled";
        Err(Error::unsupported(text).in_dataset(&self.name))
    }
}

impl VolumeHost for PoolHost {
    fn begin(&self, bytes: u64, frees: bool, outage: OutagePolicy) -> Result<Tx> {
        Host::begin(self, bytes, frees, outage)
    }

    fn synced(&self, txg: Txg) -> Result<()> {
        Host::synced(self, txg)
    }

    fn log(&self) -> Option<Arc<zil::Log>> {
        self.log.clone()
    }

    fn is_read_only(&self) -> bool {
        self.props.read().read_only
    }
}
