//! Intent logs of live datasets: allocation of their blocks, their relation to txgs, and
//! reading one that is to be replayed.
//!
//! # Theory
//! The theory of a log is in the head of crate `zil`; this module is the pool below it.
//! Blocks come from log vdevs, or else from normal ones, and are written with the priority
//! of synchronous I/O. A log vdev that failed is not used for a while: commits wait for
//! txgs instead, and the next chain begins elsewhere. The sync thread gets each log's
//! header when it writes the object set. A log that allocated a block makes its txg dirty,
//! so that header and space maps are in one txg.
//!
//! In pools from before feature flags (below version 5000) no logs are written: the
//! software of some such pools could not destroy a snapshot that inherited a log's header.
//!
//! # Invariants
//! * There is at most one log for a head, as long as the head exists.
//! * Destroying datasets, rolling them back, and exporting ends the chains first. Several
//!   callers may need that at a time: chains begin again when the last of them is done. A log
//!   that is opened meanwhile begins closed.
//!
//! Lock order: `logs` is a leaf; a log's own locks are not taken under it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use base::planted::BugSwitch;
use base::rt::{Callback, Instant, Mutex, oneshot};
use base::{Asize, Dva, Error, Guid, Psize, Result, Txg, VdevId};
use dmu::Objset;
use dsl::write::features;
use ondisk::BlkPtr;
use ondisk::blkptr::Protection;
use ondisk::zil::Record;
use txg::Txgs;
use vdev::{Node, Tree, VdevKind, WriteCallback, WritePriority, WriteReport, WriteReq};
use zil::{Hold, Log, LogWrite, Store};
use zio::{Class, OutagePolicy, SpaceSource, Want, Zio};

use super::Writer;
use super::claim;
use super::datasets::LogBlocks;
use super::ledger::Ledger;
use super::outage::Outages;
use super::space_io::SpaceIo;
use crate::audit::log::{LogVisitor, log_header, walk_log};

/// First pool version whose logs are written here: feature flags.
const VERSION_MIN: u64 = 5000;

/// How long a log vdev that failed is not used.
const AVOID: Duration = Duration::from_secs(30);

/// [`Store`] of an open pool.
pub(super) struct PoolStore {
    zio: Arc<Zio>,
    txgs: Arc<Txgs>,
    space: Arc<SpaceIo>,
    ledger: Arc<Ledger>,
    head: u64,
    outages: Arc<Outages>,
    /// The time from which log vdevs are used again.
    avoided_until: Mutex<Option<Instant>>,
    /// Test instrument.
    no_flush: Arc<BugSwitch>,
}

impl PoolStore {
    /// Log vdevs first, unless they failed.
    fn class(&self) -> Class {
        let mut avoided_until = self.avoided_until.lock();
        if avoided_until.is_some_and(|until| base::rt::now() < until) {
            return Class::Normal;
        }
        *avoided_until = None;
        Class::Log
    }

    fn avoid_log_vdevs(&self) {
        *self.avoided_until.lock() = Some(base::rt::now().after(AVOID));
    }
}

impl Store for PoolStore {
    fn hold(&self) -> Result<Hold> {
        let hold = self.txgs.hold()?;
        Ok(Hold::new(hold.txg(), hold))
    }

    fn allocate(&self, txg: Txg, size: u64) -> Result<Dva> {
        let (psize, class, hint) = (size, self.class(), self.head);
        // A commit that gave up would wait for its txg anyway.
        let outage = OutagePolicy::WaitPerFailmode;
        let want = Want {
            psize,
            record: 0,
            copies: 1,
            class,
            txg,
            hint,
            metadata: true,
            gang_child: false,
            outage,
        };
        let dvas = self.space.allocate(&want)?;
        let Some(dva) = dvas.first().copied() else {
            return Err(base::bug!("an allocation without an address"));
        };
        let needed = self.zio.tree().asize(dva.vdev, Psize(size), txg)?;
        if dva.gang || dva.asize < needed {
            self.space.unallocate(txg, &dvas);
            return Err(base::bug!("the space that was allocated does not fit its block"));
        }
        Ok(dva)
    }

    fn unallocate(&self, txg: Txg, dva: Dva) {
        self.space.unallocate(txg, &[dva]);
    }

    fn write(&self, blocks: Vec<LogWrite>) -> Result<()> {
        let tree = self.zio.tree();
        let (mut writes, mut ends) = (Vec::<(WriteReq, WriteCallback)>::new(), Vec::new());
        for LogWrite { dva, birth, data, used } in blocks {
            // The position of parity depends on the block's whole size.
            let plain = dva.asize == Asize(data.len() as u64);
            let data = if plain { data.slice(0..used) } else { data };
            let priority = WritePriority::Awaited;
            let req = WriteReq { vdev: dva.vdev, offset: dva.offset, data, birth, priority };
            let (sender, end) = oneshot();
            ends.push((birth, end));
            let tell = move |report: WriteReport| sender.send(report.result);
            writes.push((req, Callback::new(tell)));
        }
        tree.write_all(writes);
        let mut done = Ok(());
        for (birth, end) in ends {
            if let Err(e) = end.wait().flatten() {
                // The block is not used after an error, and its txg may be complete
                // already.
                tree.clear_missing(birth);
                done = Err(e);
            }
        }
        if done.is_err() {
            self.avoid_log_vdevs();
        }
        done
    }

    fn flush(&self, vdevs: &[VdevId]) -> Result<()> {
        if self.no_flush.load(Relaxed) {
            return Ok(());
        }
        let tree = self.zio.tree();
        let failed: Vec<(Guid, Result<()>)> =
            tree.flush_completed(vdevs).into_iter().filter(|(_, result)| result.is_err()).collect();
        if failed.is_empty() {
            return Ok(());
        }
        // Data of the txg being written that a device had accepted may be lost with it.
        self.outages.require_read_back();
        let (from, to) = (self.txgs.synced_txg().next(), self.txgs.open_txg());
        for (guid, _) in &failed {
            for txg in from.0..=to.0 {
                tree.add_missing(*guid, Txg(txg));
            }
        }
        let lost = |guid: Guid| failed.iter().any(|(g, _)| *g == guid);
        let kept = |top: &VdevId| tree.top(*top).is_ok_and(|node| keeps(&tree, node, &lost));
        if vdevs.iter().all(kept) {
            return Ok(());
        }
        self.avoid_log_vdevs();
        failed.into_iter().try_for_each(|(_, result)| result)
    }

    fn is_log(&self, vdev: VdevId) -> bool {
        self.zio.tree().top(vdev).is_ok_and(Node::is_log)
    }

    fn has_log_vdevs(&self) -> bool {
        let tree = self.zio.tree();
        self.class() == Class::Log && tree.top_ids().any(|id| tree.top(id).is_ok_and(Node::is_log))
    }

    fn reserve(&self, txg: Txg, bytes: u64) -> bool {
        self.ledger.reserve_log_block(txg, bytes)
    }

    fn dirty_bytes(&self) -> u64 {
        self.txgs.dirty_total()
    }

    fn synced_txg(&self) -> Txg {
        self.txgs.synced_txg()
    }

    fn wait_synced(&self, txg: Txg) -> Result<()> {
        if self.txgs.synced_txg() >= txg {
            return Ok(());
        }
        self.txgs.kick(txg);
        self.txgs.wait_synced(txg)
    }

    fn dirty(&self, txg: Txg) {
        self.txgs.dirty(txg, 0);
    }

    fn random(&self) -> u64 {
        base::rt::random_u64().unwrap_or(1)
    }
}

/// Whether a vdev has all data written to it although some leaves lost theirs.
fn keeps(tree: &Tree, node: &Node, lost: &dyn Fn(Guid) -> bool) -> bool {
    if node.children().is_empty() {
        return !lost(node.guid()) && node.readable();
    }
    let lost_children =
        node.children().iter().filter(|c| !keeps(tree, tree.node(**c), lost)).count();
    match node.kind() {
        VdevKind::Mirror | VdevKind::Replacing | VdevKind::Spare => {
            lost_children < node.children().len()
        }
        VdevKind::Raidz { nparity, .. } => lost_children <= usize::from(*nparity),
        VdevKind::Draid(draid) => lost_children <= usize::try_from(draid.nparity).unwrap_or(0),
        _ => lost_children == 0,
    }
}

/// Passes on records that are not in a txg on disk.
struct Replayer<'a> {
    /// Records of this txg and later ones are valid.
    first: Txg,
    after: u64,
    f: &'a mut dyn FnMut(&Record<'_>) -> Result<()>,
    failed: Option<Error>,
}

impl LogVisitor for Replayer<'_> {
    fn block(&mut self, _: &ondisk::zil::LogPtr) -> Result<bool> {
        Ok(true)
    }

    fn record(&mut self, record: &Record<'_>, encrypted: bool) -> Result<()> {
        if record.header.seq <= self.after || record.header.txg < self.first {
            return Ok(());
        }
        let done = if encrypted {
            Err(Error::unsupported("the intent log is encrypted"))
        } else {
            (self.f)(record)
        };
        done.map_err(|e| {
            let what = Error::new(e.kind(), "the intent log could not be replayed");
            self.failed = Some(e);
            what
        })
    }
}

/// Intent logs of the heads that were opened as file systems or volumes.
#[derive(Default)]
pub(super) struct Logs {
    by_head: BTreeMap<u64, Arc<Log>>,
    /// Callers of [`Writer::close_logs`] that did not call [`Writer::reopen_logs`] yet.
    closers: usize,
}

impl Logs {
    /// The head is destroyed, or its content is another one.
    pub(super) fn forget(&mut self, head: u64) {
        self.by_head.remove(&head);
    }
}

impl Writer {
    /// The store for the log of a head.
    pub(super) fn log_store(&self, head: u64) -> PoolStore {
        PoolStore {
            zio: Arc::clone(&self.zio),
            txgs: Arc::clone(&self.txgs),
            space: Arc::clone(&self.space_io),
            ledger: Arc::clone(&self.ledger),
            head,
            outages: Arc::clone(&self.outages),
            avoided_until: Mutex::default(),
            no_flush: Arc::clone(&self.plants.no_log_flush),
        }
    }

    /// The log of a head; `None` if changes wait for their txgs. A log with records from
    /// before the import is in replay from then on ([`Log::is_replaying`]).
    ///
    /// # Errors
    /// Those of reading the log.
    pub fn log(&self, os: &Objset) -> Result<Option<Arc<Log>>> {
        let head = os.id();
        if let Some(log) = self.log_in_use(head) {
            return Ok(Some(log));
        }
        let encrypted =
            matches!(os.root_bp(), BlkPtr::Block(b) if b.protection != Protection::None);
        if encrypted || self.published.read().uberblock.version < VERSION_MIN {
            return Ok(None);
        }
        let log = Log::new(head, true, Arc::new(self.log_store(head)));
        log.set_xattrs(features::is_enabled(&self.mos, features::ZILSAXATTR)?);
        if !self.idle_logs.contains(head) && claim::holds_records(os)? {
            log.begin_replay(log_header(&os.phys())?)?;
        }
        let mut logs = self.logs.lock();
        if logs.closers > 0 {
            log.begin_closed();
        }
        Ok(Some(Arc::clone(logs.by_head.entry(head).or_insert(log))))
    }

    /// All logs, by head.
    pub fn all_logs(&self) -> BTreeMap<u64, Arc<Log>> {
        self.logs.lock().by_head.clone()
    }

    /// The log of a head, if it was opened.
    pub fn log_in_use(&self, head: u64) -> Option<Arc<Log>> {
        self.logs.lock().by_head.get(&head).cloned()
    }

    /// Whether a head's log is in use here: it needs no replay.
    pub(super) fn has_log(&self, head: u64) -> bool {
        let log = self.log_in_use(head);
        log.is_some_and(|log| !log.is_replaying())
    }

    /// Ends all chains: none of them is on disk when this returns, and none begins before the
    /// caller has called [`Writer::reopen_logs`], also after an error.
    ///
    /// # Errors
    /// That of a suspension.
    pub(super) fn close_logs(&self) -> Result<()> {
        let mut last = Txg::ZERO;
        let all = {
            let mut logs = self.logs.lock();
            logs.closers += 1;
            logs.by_head.clone()
        };
        for log in all.values() {
            last = last.max(log.close()?);
        }
        if last == Txg::ZERO {
            return Ok(());
        }
        self.txgs.kick(last);
        self.txgs.wait_synced(last)
    }

    /// Allows logs to be written again, unless another caller still needs them closed.
    pub(super) fn reopen_logs(&self) {
        let mut logs = self.logs.lock();
        logs.closers = logs.closers.saturating_sub(1);
        if logs.closers == 0 {
            logs.by_head.values().for_each(|log| log.reopen());
        }
    }

    /// Calls `f` with each record of a head's log that is to be replayed, in order, until
    /// it fails.
    ///
    /// # Errors
    /// Those of `f`; `Corrupt`; `Unsupported` for encrypted logs.
    pub fn for_each_record(
        &self,
        os: &Objset,
        f: &mut dyn FnMut(&Record<'_>) -> Result<()>,
    ) -> Result<()> {
        let header = log_header(&os.phys())?;
        // Without a claim all blocks are of txgs on disk, and so are the records.
        let claimed = header.claim_txg;
        let first = if claimed == Txg::ZERO { self.first_txg } else { claimed };
        let after = header.replay_seq;
        let mut replayer = Replayer { first, after, f, failed: None };
        let walked = walk_log(&self.zio, &header, &mut replayer);
        match replayer.failed {
            Some(e) => Err(e),
            None => walked,
        }
    }

    /// The blocks to be freed after a log was replayed (chapter 06 §19.2).
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn blocks_of_log(&self, os: &Objset) -> Result<Vec<BlkPtr>> {
        let header = log_header(&os.phys())?;
        let mut seen = LogBlocks::new(header.claim_txg);
        // An error ends the log: blocks behind it were not claimed.
        let _end = walk_log(&self.zio, &header, &mut seen);
        Ok(seen.into_blocks())
    }
}
