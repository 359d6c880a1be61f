//! Outages: suspension while devices do not answer, and resumption.
//!
//! # Theory
//! Writes and reads of the sync thread that fail are kept ([`zio::Outage`]), and the pool
//! is suspended with the txg in its present state. [`Writer::reopen`] reopens the devices,
//! verifies that they belong to the pool and are in the state in which the pool left them,
//! and resumes. The thread continues where it waited, on the new devices.
//!
//! Data that a device had acknowledged and not flushed before the outage may be lost. So a
//! txg with an outage is read back completely before it is committed. If it is incomplete,
//! it is not committed, and the pool stays suspended for good. It must be imported again,
//! as after a crash, and loses nothing that was synced.
//!
//! Readers detect outages, too. When a read fails and too few devices answer at all, the
//! pool is suspended, and the reader waits ([`zio::Outage::wait_per_failmode`]), unless `failmode` is
//! `continue`. A block that cannot be read on devices that answer is an error.
//!
//! A leaf that missed txgs is read for others only when it is back, and a resilver is
//! requested.
//!
//! A leaf of a redundant vdev whose writes fail is declared faulted after the txg with the
//! failure: the pool continues without it, and notes the txgs that it misses.
//!
//! # Invariants
//! * A device is accepted only with the newest uberblock of the pool; or with an older one,
//!   if other devices have the missing data and the pool noted what is missing; never with
//!   one that the pool did not write.
//! * A device of a pool that goes on writing is compared with the uberblock that was durable
//!   before its labels were read ([`Writer::reopen`] takes no lock of the sync thread). It may
//!   have a later one by then: that of the commit in progress, or of one that has ended.
//!
//! Lock order: `attempt`, `unlabelled` and `fatal` are leaves. The sync thread holds the
//! pool's `state` while it waits, so nothing here takes it.

use std::cmp::Ordering;
use std::path::Path;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Weak};

use base::rt::Mutex;
use base::{Error, ErrorKind, Guid, Result, Txg};
use device::Device;
use dmu::traverse::{self, Bookmark, Flow, Visitor};
use ondisk::BlkPtr;
use ondisk::label::LABEL_SIZE;
use ondisk::uberblock::Uberblock;
use txg::{FailMode, Txgs};
use vdev::{Aux, LeafSpec, Node, Persistent, Spec, State as VdevState, Tree, Verdict};
use zio::{Io, Outage, OutagePolicy, Zio};

use super::Writer;
use super::config::is_concrete;
use super::declare::survives;
use crate::labels::LeafLabels;
use crate::leaves::{Leaves, Purpose};
use crate::write::commit::CHOSEN_MAX;

/// How often the labels of a device are read while commits write them.
const ADMIT_ATTEMPTS: usize = 8;
/// Bytes read from a device to test whether it answers.
const PROBE: usize = 8192;

/// The state of an outage and the work that remains after it.
pub(super) struct Outages {
    txgs: Arc<Txgs>,
    zio: Weak<Zio>,
    /// The txg being written had an outage.
    suspect: AtomicBool,
    /// Devices came back that have old labels.
    pub(super) relabel: AtomicBool,
    /// The uberblock of the last commit attempt.
    pub(super) attempt: Mutex<Option<Uberblock>>,
    /// Begins and ends of commits: odd while labels are written.
    commits: AtomicU64,
    /// Leaves without the uberblock that was written last.
    pub(super) unlabelled: Mutex<Vec<Guid>>,
    /// Why the pool cannot continue even with its devices.
    pub(super) fatal: Mutex<Option<String>>,
    /// Write errors of all leaves at the last check.
    write_errors: AtomicU64,
}

impl Outages {
    pub(super) fn new(txgs: &Arc<Txgs>, zio: &Arc<Zio>) -> Arc<Outages> {
        Arc::new(Outages {
            txgs: Arc::clone(txgs),
            zio: Arc::downgrade(zio),
            suspect: AtomicBool::new(false),
            relabel: AtomicBool::new(false),
            attempt: Mutex::new(None),
            commits: AtomicU64::new(0),
            unlabelled: Mutex::new(Vec::new()),
            fatal: Mutex::new(None),
            write_errors: AtomicU64::new(0),
        })
    }

    /// Requests that the txg being written be read back before it is committed, because a
    /// device may have lost accepted data.
    pub(super) fn require_read_back(&self) {
        self.suspect.store(true, Relaxed);
    }

    /// Notes that labels are written with this uberblock, until the guard is dropped.
    pub(super) fn begin_commit(&self, uberblock: &Uberblock) -> CommitGuard<'_> {
        *self.attempt.lock() = Some(uberblock.clone());
        self.commits.fetch_add(1, SeqCst);
        CommitGuard(self)
    }

    /// Whether so many devices do not answer that the pool cannot continue.
    fn devices_are_gone(&self) -> bool {
        let Some(zio) = self.zio.upgrade() else { return false };
        let tree = zio.tree();
        let silent = tree
            .leaves()
            .filter(|(_, n)| n.readable() && n.device().is_some_and(|device| !answers(&**device)));
        let (state, aux) = (VdevState::Unavail, Aux::TooManyErrors);
        let missing: Vec<Verdict> =
            silent.map(|(_, n)| Verdict { guid: n.guid(), state, aux: aux.clone() }).collect();
        !missing.is_empty() && !tree.with_verdicts(&missing).root().readable()
    }
}

/// Labels are being written.
pub(super) struct CommitGuard<'a>(&'a Outages);

impl Drop for CommitGuard<'_> {
    fn drop(&mut self) {
        self.0.commits.fetch_add(1, SeqCst);
    }
}

/// Whether a device reads its first or its second label.
fn answers(device: &dyn Device) -> bool {
    let label = |n: u64| device::Io::read(n * LABEL_SIZE, PROBE);
    let done = device::submit_and_wait(device, vec![label(0), label(1)]);
    done.into_iter().any(|completion| completion.into_read().is_ok())
}

impl Outage for Outages {
    fn wait(&self, why: &Error) -> bool {
        self.txgs.suspend(Error::new(ErrorKind::Io, why.to_string()));
        let resumed = self.txgs.wait_resumed();
        self.suspect.fetch_or(resumed, Relaxed);
        resumed
    }

    fn wait_per_failmode(&self, why: &Error) -> bool {
        if self.txgs.suspended().is_none() {
            if self.txgs.failmode() != FailMode::Wait || !self.devices_are_gone() {
                return false;
            }
            // Accepted data may be lost, whether or not the sync thread notices the outage.
            self.require_read_back();
            self.txgs.suspend(Error::new(ErrorKind::Io, why.to_string()));
        }
        self.txgs.wait_running().is_ok()
    }

    fn is_suspended(&self) -> bool {
        self.txgs.suspended().is_some()
    }
}

/// Reads every block of a traversal.
struct ReadsBack<'a>(&'a Zio);

impl Visitor for ReadsBack<'_> {
    fn visit(&self, bp: &BlkPtr, _: Bookmark) -> Result<Flow> {
        if let BlkPtr::Block(block) = bp
            && let Err(faults) = self.0.read_physical(block)
        {
            let why = faults.into_iter().next().map(|f| f.error);
            let lost = Error::new(
                ErrorKind::Corrupt,
                "what a device had taken before it went is lost; export the pool with -f and \
                 import it again",
            );
            return Err(match why {
                // The devices are missing again, which may be waited for.
                Some(e) if e.kind() == ErrorKind::Io => e,
                Some(e) => lost.at_dva(block.dva()).caused_by(e),
                None => lost,
            });
        }
        Ok(Flow::Descend)
    }
}

fn changed(guid: Guid, why: &str) -> Error {
    Error::corrupt(why).on_vdev(guid)
}

impl Writer {
    /// Before a commit: verifies that the blocks written in a txg with an outage are
    /// readable.
    pub(super) fn read_back(&self, txg: Txg, root: Option<&BlkPtr>) -> Result<()> {
        while self.outages.suspect.swap(false, Relaxed) {
            match self.read_back_once(txg, root) {
                Err(e) if self.zio.wait_for_retry(&e) => {}
                other => return other,
            }
        }
        Ok(())
    }

    fn read_back_once(&self, txg: Txg, root: Option<&BlkPtr>) -> Result<()> {
        let min_txg = Txg(txg.0.saturating_sub(1));
        let io = Io::SCAN.with_outage(OutagePolicy::WaitAlways);
        let options = traverse::Options { min_txg, io, ..traverse::Options::default() };
        let visitor = ReadsBack(&self.zio);
        let heads: Vec<(u64, BlkPtr)> =
            self.heads.lock().iter().map(|(&id, os)| (id, os.root_bp())).collect();
        for (id, bp) in root.map(|bp| (0, *bp)).into_iter().chain(heads) {
            traverse::traverse(&self.zio, id, &bp, &visitor, options)?;
        }
        Ok(())
    }

    /// After a txg: faults leaves whose writes failed, if other leaves have all data.
    pub(super) fn fault_failed_leaves(&self) {
        let tree = self.zio.tree();
        let errors = tree.leaves().map(|(_, n)| n.errors().write).sum();
        if self.outages.write_errors.swap(errors, Relaxed) >= errors {
            return;
        }
        for guid in tree.failing() {
            self.change_tree(|now| {
                now.find(guid).filter(|n| n.readable())?;
                let verdict = Verdict { guid, state: VdevState::Faulted, aux: Aux::TooManyErrors };
                let without = now.with_verdicts(&[verdict]);
                survives(now, &without, guid).then_some(without)
            });
        }
    }

    /// Gives the pool up: waiting callers get an error, and nothing is written any more.
    pub fn abandon(&self) {
        self.txgs
            .abandon(Error::new(ErrorKind::Io, "the pool was given up while it was suspended"));
    }

    /// Reopens the devices (only `leaf`, if given), clears their error counts, and resumes
    /// a suspended pool (`zpool clear`).
    ///
    /// # Errors
    /// `NotFound` for an unknown leaf; `Io` when too few devices are present, or the pool
    /// cannot continue: it stays suspended then.
    pub fn reopen(&self, leaf: Option<Guid>, source: &dyn Leaves) -> Result<()> {
        let suspended = self.txgs.suspended().is_some();
        if let Some(why) = self.outages.fatal.lock().as_ref().filter(|_| suspended) {
            return Err(Error::new(ErrorKind::Io, why.clone()));
        }
        // Another change of the tree may come first; then all of this is done on its result.
        while self.reopen_once(leaf, suspended, Reopen::Clear, source)?.is_none() {}
        self.outages.write_errors.store(0, Relaxed);
        self.outages.relabel.store(true, Relaxed);
        self.txgs.dirty(self.txgs.open_txg(), 0);
        if suspended {
            self.txgs.resume();
        }
        self.request_resilver_if_needed();
        Ok(())
    }

    /// Opens the devices again (`zpool reopen`): those that are missing may be there again, and
    /// others gone. Faults and error counts stay, and a suspended pool stays suspended.
    ///
    /// # Errors
    /// `Io` when too few devices are present.
    pub fn reopen_missing(&self, source: &dyn Leaves) -> Result<()> {
        let suspended = self.txgs.suspended().is_some();
        let changed = loop {
            if let Some(changed) = self.reopen_once(None, suspended, Reopen::Missing, source)? {
                break changed;
            }
        };
        if changed && !suspended {
            self.outages.relabel.store(true, Relaxed);
            self.txgs.dirty(self.txgs.open_txg(), 0);
            self.request_resilver_if_needed();
        }
        Ok(())
    }

    /// Publishes a tree with the devices that can be opened, unless [`Reopen::Missing`] finds
    /// nothing new; whether it was published. `None` if another tree was published meanwhile.
    fn reopen_once(
        &self,
        leaf: Option<Guid>,
        suspended: bool,
        what: Reopen,
        source: &dyn Leaves,
    ) -> Result<Option<bool>> {
        let old = self.zio.tree();
        if leaf.is_some_and(|guid| old.find(guid).is_none()) {
            return Err(Error::not_found("no such device in pool"));
        }
        let wanted = |guid: Guid| leaf.is_none_or(|l| l == guid || is_below(&old, guid, l));
        let open = |spec: &LeafSpec| {
            let before = old.find(spec.guid);
            let device = before.and_then(|n| n.device());
            match device {
                Some(device) if !wanted(spec.guid) => Ok(Arc::clone(device)),
                None if !wanted(spec.guid) => Err(Error::not_found("it was not open")),
                _ => self.reopen_leaf(&old, spec, device, source),
            }
        };
        let (mut spec, mut repaired) = (old.spec(), Vec::new());
        if what == Reopen::Clear {
            clear_faults(&mut spec, &wanted, &mut repaired);
        }
        let mut tree = Tree::build_from(Some(&old), &spec, &open)?;
        let kept = keeps_state(&old, &|node| what == Reopen::Missing || !wanted(node.guid()));
        if !kept.is_empty() {
            tree = tree.with_verdicts(&kept);
        }
        let same =
            |node: &Node| old.find(node.guid()).is_some_and(|was| was.state() == node.state());
        if what == Reopen::Missing && tree.leaves().all(|(_, node)| same(node)) {
            return Ok(Some(false));
        }
        // A spare of a leaf that is there again goes back when the leaf has what it missed.
        let back = |node: &Node| old.find(node.guid()).is_some_and(|was| !was.readable());
        repaired.extend(
            tree.leaves().map(|(_, n)| n).filter(|n| n.readable() && back(n)).map(Node::guid),
        );
        // A change of the configuration that is under way must know them, too.
        self.topology.note_repaired(repaired);
        for (_, node) in tree.nodes().filter(|(_, n)| what == Reopen::Clear && wanted(n.guid())) {
            node.clear_errors();
        }
        let enough = tree.root().readable();
        if (enough || suspended) && !self.replace_tree(&old, tree) {
            return Ok(None);
        }
        self.space_io.forget_limits();
        if !enough {
            let text = "one or more devices is currently unavailable";
            return Err(Error::new(ErrorKind::Io, text));
        }
        Ok(Some(true))
    }

    pub(super) fn reopen_leaf(
        &self,
        old: &Tree,
        spec: &LeafSpec,
        device: Option<&Arc<dyn Device>>,
        source: &dyn Leaves,
    ) -> Result<Arc<dyn Device>> {
        let path = spec.path.as_deref().map(Path::new);
        // A device that is the same and readable need not be reopened.
        let kept = device.filter(|d| path.is_none_or(|p| d.is_at(p)));
        // A leaf that joins the pool, or gets another guid, in the txg that is being written has
        // labels that do not say so yet.
        let joins = self.published().config.vdev_tree.find(spec.guid).is_none();
        if let Some(device) = kept.filter(|_| joins) {
            return Ok(Arc::clone(device));
        }
        let kept = kept.map(|d| (d, self.admit(old, spec, &**d)));
        match (kept, path) {
            (Some((device, Ok(()))), _) => Ok(Arc::clone(device)),
            (Some((_, Err(e))), None) => Err(e),
            (kept, Some(path)) => {
                let opened = match (source.open(path, Purpose::Write), kept) {
                    (Ok(opened), _) => opened.device,
                    (Err(_), Some((_, Err(e)))) => return Err(e),
                    (Err(e), _) => return Err(e),
                };
                self.admit(old, spec, &*opened)?;
                Ok(opened)
            }
            (None, None) => Err(Error::not_found("it has no path")),
        }
    }

    /// Whether a device is the leaf, in the state in which the pool left it. Labels that were
    /// read while they were written are read again.
    fn admit(&self, old: &Tree, spec: &LeafSpec, device: &dyn Device) -> Result<()> {
        let commits = || self.outages.commits.load(SeqCst);
        for _ in 1..ADMIT_ATTEMPTS {
            let before = commits();
            let admitted = self.admit_once(old, spec, device);
            // A suspended pool writes no labels, though a commit may be in progress.
            let torn = !before.is_multiple_of(2) || commits() != before;
            if admitted.is_ok() || !torn || self.txgs.suspended().is_some() {
                return admitted;
            }
        }
        self.admit_once(old, spec, device)
    }

    fn admit_once(&self, old: &Tree, spec: &LeafSpec, device: &dyn Device) -> Result<()> {
        let guid = spec.guid;
        let attempt = || self.outages.attempt.lock().clone();
        // Before the labels are read: the device has this uberblock or a later one.
        let (published, attempted) = (self.published(), attempt());
        let labels = LeafLabels::read(device)?;
        let label = labels.config_at(Txg::MAX);
        let label = label.ok_or_else(|| changed(guid, "the device has no valid label"))?;
        if label.u64("pool_guid") != Some(published.config.pool_guid.0) {
            return Err(changed(guid, "the label belongs to another pool"));
        }
        if label.u64("guid") != Some(guid.0) {
            return Err(changed(guid, "the label belongs to another device of this pool"));
        }
        let newest = labels.uberblocks(spec.ashift).into_iter().max_by(|a, b| a.compare(b));
        let newest = newest.ok_or_else(|| changed(guid, "the device has no valid uberblock"))?;
        let last = &published.uberblock;
        let same = |a: &Uberblock, b: &Uberblock| a.txg == b.txg && a.root_bp == b.root_bp;
        match newest.compare(last) {
            _ if same(&newest, last) => Ok(()),
            Ordering::Less if newest.txg < last.txg => {
                let tops = published.config.vdev_tree.children.iter().filter(|v| is_concrete(v));
                // Not every vdev gets each uberblock of a large pool. Without redundancy
                // nothing may be missing, whatever a log block noted.
                let redundant =
                    |n: &&Node| n.parent().is_some_and(|p| old.node(p).parent().is_some());
                // All that was written while a leaf was not open is noted as missing.
                let behind = |n: &Node| n.dtl().contains(last.txg) || n.device().is_none();
                let noted = self.outages.unlabelled.lock().contains(&guid)
                    || old.find(guid).filter(redundant).is_some_and(behind);
                if noted || tops.count() > CHOSEN_MAX {
                    return Ok(());
                }
                Err(changed(guid, "the device has an older state of the pool"))
            }
            _ if attempted.into_iter().chain(attempt()).any(|a| same(&a, &newest)) => Ok(()),
            _ if same(&self.published().uberblock, &newest) => Ok(()),
            _ => Err(changed(guid, "another system has written to the pool")),
        }
    }
}

/// What [`Writer::reopen_once`] does besides opening devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reopen {
    /// Nothing: faults stay.
    Missing,
    /// Faults and error counts are cleared.
    Clear,
}

/// States that only the published tree has and that stay: leaves that are being detached, and
/// those with too many errors for which `faults_stay` says so.
fn keeps_state(old: &Tree, faults_stay: &dyn Fn(&Node) -> bool) -> Vec<Verdict> {
    let stays = |node: &Node| {
        let leaves = node.state() == VdevState::Offline && !node.persistent().offline;
        leaves || *node.aux() == Aux::TooManyErrors && faults_stay(node)
    };
    let kept = old.nodes().map(|(_, node)| node).filter(|n| n.is_leaf() && stays(n));
    kept.map(|n| Verdict { guid: n.guid(), state: n.state(), aux: n.aux().clone() }).collect()
}

/// Removes the marks of leaves that were faulted; `repaired` gets those that had one.
fn clear_faults(spec: &mut Spec, wanted: &dyn Fn(Guid) -> bool, repaired: &mut Vec<Guid>) {
    let flags = &mut spec.persistent;
    if wanted(spec.guid) && (flags.faulted || flags.degraded || flags.removed) {
        let offline = flags.offline;
        *flags = Persistent { offline, ..Persistent::default() };
        repaired.push(spec.guid);
    }
    spec.children.iter_mut().for_each(|child| clear_faults(child, wanted, repaired));
}

/// Whether `guid` is below `above`.
fn is_below(tree: &Tree, guid: Guid, above: Guid) -> bool {
    let mut at = tree.find(guid);
    for _ in 0..base::limits::VDEV_DEPTH_MAX {
        match at {
            Some(node) if node.guid() == above => return true,
            Some(node) => at = node.parent().map(|p| tree.node(p)),
            None => return false,
        }
    }
    false
}
