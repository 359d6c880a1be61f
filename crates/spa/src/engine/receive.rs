//! Receiving a stream: the dataset that is written, and the switch to it (chapter 07 §13).
//!
//! # Theory
//! A receive has two tasks. The first, [`Writer::begin_receive`], checks what chapter 07 §13.1
//! lists and makes the head that the stream is written into: a new dataset, or a hidden clone
//! named `%recv` of the snapshot that the stream is incremental to. In between, the head's object
//! set is written like any other. The last task, [`Writer::end_receive`], checks again, gives the
//! clone's content to the dataset, and takes the snapshot.
//!
//! ```text
//! begun ── records in any number of txgs ──> complete ── one txg ──> snapshot
//!   └──────────── abandoned ──────────────────> destroyed
//! ```
//!
//! # Crash argument
//! Before the last task the dataset refers to nothing of what was received, and the received head
//! is marked inconsistent. The import destroys such heads ([`Writer::destroy_incomplete`]), unless
//! they are resumable. The last task is one txg. So a crash leaves the state before the receive,
//! or the one after it. The position of a resumable receive is stored in the txg that writes the
//! data up to it, so a resumed stream never begins behind what is there.
//!
//! # Concurrency
//! * Heads that are being received are in `Writer::receives`, so no second receive takes them.
//! * The dataset may be used, changed, renamed or destroyed meanwhile. Everything is found by the
//!   objects of heads; the last task refuses what no longer fits.
//! * Handles of the dataset get `NotFound` after the switch, as after a rollback.
//!
//! # Invariants
//! * As in [`super::datasets`].
//!
//! Lock order: `Writer::receives` and the position of a receive are leaves.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use base::planted::BugSwitch;
use base::rt::Mutex;
use base::{Error, ErrorKind, Result, Txg};
use dmu::{Io, Objset, SealedRoot};
use dsl::DslDir;
use dsl::stored::Stored;
use dsl::write::props::{self, Change, Target};
use dsl::write::receive::{self as dsl_receive, ReceivePosition, ReceivedSnapshot, ResumeState};
use dsl::write::{SyncCx, create, crypt, destroy, features, links, rollback, snapshot};
use ondisk::objset::ObjsetType;

use super::datasets::{FILESYSTEMS, SNAPSHOTS, check_name, check_value, log};
use super::effective::{effective_number, find_dir};
use super::receive_raw::{RawReceive, of_two_kinds};
use super::tasks::{Command, TaskCx};
use super::{Writer, objset_props};

/// Bytes of the object set block that hold its meta-dnode.
const META_DNODE: usize = 512;

/// Parameters of a receive.
#[derive(Clone, Debug)]
pub struct NewReceive {
    /// Full name of the file system or volume.
    pub dataset: String,
    /// Name of the snapshot, without dataset.
    pub snapshot: String,
    /// File system or volume.
    pub kind: ObjsetType,
    /// Names of snapshots are looked up without regard to case.
    pub case_insensitive: bool,
    /// Guid of the snapshot that the stream is incremental to, or 0.
    pub from_guid: u64,
    /// Guid of the snapshot that is received.
    pub to_guid: u64,
    /// Full name of the snapshot that a new dataset is cloned from.
    pub origin: Option<String>,
    /// Changes and snapshots since `from_guid` are discarded; a full stream replaces a dataset.
    pub force: bool,
    /// Features of the pool that the stream needs.
    pub needs: Vec<&'static str>,
    /// Features of the dataset that the stream uses.
    pub uses: Vec<&'static str>,
    /// Properties set on a new dataset.
    pub props: Vec<(String, Stored)>,
    /// The receive can be resumed: what is stored for that.
    pub resume: Option<ResumeState>,
    /// The stream continues one that was interrupted there.
    pub resumes_at: Option<(u64, u64)>,
    /// The stream is redacted: guids of its redaction snapshots.
    pub redacted: Option<Vec<u64>>,
    /// Its source is a redaction bookmark: guids of that one's redaction snapshots.
    pub from_redacted: Option<Vec<u64>>,
    /// A new dataset is not encrypted, even below one that is.
    pub is_plain: bool,
    /// What a raw stream says of its dataset.
    pub raw: Option<RawReceive>,
}

/// A receive that has begun.
#[derive(Clone, Debug)]
pub struct ReceiveTarget {
    /// The head that is written.
    pub head: u64,
    /// The head that gets its content; `None` for a new dataset.
    pub into: Option<u64>,
    /// The head had content of its own at the beginning: that of a snapshot, or of the
    /// interrupted receive.
    pub has_content: bool,
    /// Bytes of the stream that were received before.
    pub bytes: u64,
    progress: Arc<ReceiveProgress>,
    /// What a raw stream says of the object set.
    root: Option<SealedRoot>,
}

/// Planted bugs ([`base::planted`]).
#[derive(Debug, Default)]
pub struct ReceivePlants {
    /// The dataset gets the content that was received before the last of it is stored.
    pub early_switch: BugSwitch,
    /// The stored position is that of records in later txgs.
    pub position_too_far: BugSwitch,
    /// The position of a receive that is cut off is not on disk when the caller learns of it.
    pub unsynced_position: BugSwitch,
}

/// The position of a receive in each txg that is not on disk yet.
#[derive(Debug, Default)]
pub(super) struct ReceiveProgress {
    resumable: bool,
    positions: Mutex<BTreeMap<Txg, ReceivePosition>>,
}

impl ReceiveTarget {
    /// Notes that the transaction group `txg`, on which the caller has a hold, has all records
    /// up to `at`.
    pub fn applied(&self, txg: Txg, at: ReceivePosition) {
        if self.progress.resumable {
            self.progress.positions.lock().insert(txg, at);
        }
    }
}

/// What a receive is made into.
enum ReceivePlan {
    New { parent: u64, origin: Option<u64> },
    Into { head: u64, base: Option<u64> },
    Resume { head: u64, into: Option<u64>, bytes: u64 },
}

fn exists(text: String) -> Error {
    Error::new(ErrorKind::Exists, text)
}

fn absent(name: &str) -> Error {
    Error::not_found(format!("destination '{name}' does not exist"))
}

pub(super) fn modified(name: &str) -> Error {
    let text = format!("destination {name} has been modified\nsince most recent snapshot");
    Error::busy(text)
}

fn no_match(name: &str) -> Error {
    let text = format!("most recent snapshot of {name} does not\nmatch incremental source");
    Error::new(ErrorKind::CrossDevice, text)
}

fn partial(name: &str) -> Error {
    let text =
        format!("destination {name} contains partially-complete state from \"zfs receive -s\".");
    Error::busy(text)
}

impl TaskCx<'_> {
    /// Whether the head changed since its snapshot: its root block is newer, and has another
    /// meta-dnode. A changed intent log or accounting alone does not count (§13.1).
    fn is_modified_since(&self, head: u64, snap: u64) -> Result<bool> {
        let ds = self.read().dataset(head)?;
        if snap == 0 {
            return Ok(!ds.bp.is_hole());
        }
        let s = self.read().dataset(snap)?;
        if ds.bp.birth() <= s.creation_txg {
            return Ok(false);
        }
        let meta = |bp: &ondisk::BlkPtr| -> Result<Vec<u8>> {
            let block = self.writer.zio.read(bp, Io::SYNC)?;
            Ok(block.get(..META_DNODE).unwrap_or_default().to_vec())
        };
        if s.bp.is_hole() {
            return Ok(true);
        }
        Ok(meta(&ds.bp)? != meta(&s.bp)?)
    }

    /// The snapshot of a head by its guid, and the newer ones, newest first.
    fn snapshot_by_guid(&self, head: u64, guid: u64) -> Result<Option<(u64, Vec<u64>)>> {
        let (mos, mut newer) = (self.read(), Vec::new());
        let ds = mos.dataset(head)?;
        let mut at = ds.prev_snap_obj;
        while at != 0 && !newer.contains(&at) {
            let s = mos.dataset(at)?;
            if s.dir_obj != ds.dir_obj {
                break;
            }
            if s.guid == guid {
                return Ok(Some((at, newer)));
            }
            newer.push(at);
            at = s.prev_snap_obj;
        }
        Ok(None)
    }

    /// Checks that snapshots can be destroyed, which `zfs receive -F` does.
    fn check_newer(&self, head: u64, newer: &[u64]) -> Result<()> {
        for &snap in newer {
            self.check_unused(snap)?;
            destroy::check_snapshot(self.read(), snap).map_err(|e| {
                let name = self.name_of_snapshot(head, snap).unwrap_or_default();
                let text = match e.kind() {
                    ErrorKind::Busy => format!("snapshot '{name}' is held"),
                    _ => format!("snapshot '{name}' has dependent clones"),
                };
                Error::busy(text)
            })?;
        }
        Ok(())
    }

    fn name_of_dataset(&self, head: u64) -> Result<String> {
        let dir = self.read().dataset(head)?.dir_obj;
        Ok(DslDir::name_of(self.mos(), dir, self.writer.name())?.unwrap_or_default())
    }

    fn name_of_snapshot(&self, head: u64, snap: u64) -> Result<String> {
        let names = self.read().numbers(self.read().dataset(head)?.snapnames_zapobj)?;
        let name = names.into_iter().find(|(_, object)| *object == snap).map(|(name, _)| name);
        Ok(format!("{}@{}", self.name_of_dataset(head)?, name.unwrap_or_default()))
    }

    pub(super) fn is_received(&self, head: u64) -> bool {
        self.writer.receives.lock().contains_key(&head)
    }

    fn plan_receive(&self, new: &NewReceive) -> Result<ReceivePlan> {
        for guid in &new.needs {
            if !features::is_enabled(self.read(), guid)? {
                return Err(Error::unsupported("pool must be upgraded to receive this stream."));
            }
        }
        let name = new.dataset.as_str();
        let dir = match find_dir(self.read(), self.writer.name(), name) {
            Ok(dir) => Some(dir),
            Err(e) if e.kind() == ErrorKind::NotFound => None,
            Err(e) => return Err(e),
        };
        if let Some(raw) = &new.raw {
            raw.root.check()?;
        }
        if let Some(at) = new.resumes_at {
            return self.plan_resume(new, dir.ok_or_else(|| absent(name))?, at);
        }
        if self.writer.allocatable(false) == 0 {
            return Err(Error::new(ErrorKind::NoSpace, "out of space"));
        }
        match dir {
            None => self.plan_new(new),
            Some(dir) => self.plan_into(new, dir),
        }
    }

    fn plan_new(&self, new: &NewReceive) -> Result<ReceivePlan> {
        let name = new.dataset.as_str();
        let origin = match &new.origin {
            Some(origin) => {
                let text = format!("local origin for clone {name}@{} does not exist", new.snapshot);
                let found = self.snapshot(origin).map_err(|_| Error::not_found(text))?.1;
                if new.from_guid != 0 && self.read().dataset(found)?.guid != new.from_guid {
                    return Err(no_match(name));
                }
                if new.from_guid != 0 {
                    self.check_redaction(new, found)?;
                }
                Some(found)
            }
            None if new.from_guid != 0 => return Err(absent(name)),
            None => None,
        };
        let above = name.rsplit_once('/').map_or(name, |(above, _)| above);
        let parent = self.parent_of(name).map_err(|e| match e.kind() {
            ErrorKind::NotFound => absent(above),
            _ => e,
        })?;
        let last = name.rsplit('/').next().unwrap_or_default();
        let case_insensitive = new.case_insensitive;
        let wanted = create::NewDataset { name: last, case_insensitive, origin };
        self.check_new(new, parent, &wanted)?;
        if let Some(origin) = origin
            && self.kind_of(origin)? != new.kind
        {
            return Err(Error::invalid("the stream is not of the kind of its origin"));
        }
        self.check_limit(parent, &FILESYSTEMS, &mut BTreeMap::new())?;
        new.props.iter().try_for_each(|(name, value)| check_value(self.read(), name, value))?;
        Ok(ReceivePlan::New { parent, origin })
    }

    fn plan_into(&self, new: &NewReceive, dir: u64) -> Result<ReceivePlan> {
        let (name, mos) = (new.dataset.as_str(), self.read());
        let phys = mos.dir(dir)?;
        let head = phys.head_dataset_obj;
        if head == 0 {
            return Err(absent(name));
        }
        let ds = mos.dataset(head)?;
        if let Some(hidden) = dsl_receive::hidden_head(mos, dir)? {
            let resumable = dsl_receive::resume_state(mos, hidden)?.is_some();
            let running = self.is_received(hidden);
            let busy = || Error::busy("dataset is busy");
            return Err(if resumable && !running { partial(name) } else { busy() });
        }
        if self.is_received(head) {
            return Err(Error::busy("dataset is busy"));
        }
        self.check_unused(head)?;
        if dsl_receive::resume_state(mos, head)?.is_some() {
            return Err(partial(name));
        }
        if new.origin.is_some() {
            return Err(exists(format!("destination '{name}' exists")));
        }
        if snapshot::find(self.cx, &ds, &new.snapshot)?.is_some() {
            return Err(exists(format!("destination '{name}@{}' exists", new.snapshot)));
        }
        let encrypted = crypt::key_object(mos, dir)?.is_some();
        if new.from_guid == 0 && new.force && (encrypted || new.raw.is_some()) {
            return Err(of_two_kinds());
        }
        if new.from_guid != 0 && new.raw.is_none() && encrypted {
            let text = "the destination is encrypted and its key is not loaded: only raw streams \
                        can be received into it";
            return Err(Error::new(ErrorKind::Locked, text));
        }
        if new.from_guid != 0 && new.raw.is_some() && !encrypted {
            let text = "raw streams cannot be received on top of an unencrypted dataset";
            return Err(Error::invalid(text));
        }
        if new.kind != ObjsetType::Zfs
            && mos.numbers(phys.child_dir_zapobj)?.iter().any(|(n, _)| !n.starts_with(['$', '%']))
        {
            return Err(Error::invalid(format!("destination '{name}' has children")));
        }
        self.check_limit(dir, &SNAPSHOTS, &mut BTreeMap::new())?;
        match new.from_guid {
            0 => self.plan_full(new, head),
            guid => self.plan_incremental(new, head, guid),
        }
    }

    /// A full stream replaces a dataset without snapshots.
    fn plan_full(&self, new: &NewReceive, head: u64) -> Result<ReceivePlan> {
        let (name, mos) = (new.dataset.as_str(), self.read());
        let ds = mos.dataset(head)?;
        if !new.force {
            let text = format!("destination '{name}' exists\nmust specify -F to overwrite it");
            return Err(exists(text));
        }
        if let Some((snap, _)) = mos.numbers(ds.snapnames_zapobj)?.iter().min() {
            let text = format!(
                "destination has snapshots (eg. {name}@{snap})\nmust destroy them to overwrite it"
            );
            return Err(exists(text));
        }
        if links::is_clone(mos, &mos.dir(ds.dir_obj)?)? {
            let text = format!("destination '{name}' is a clone\nmust destroy it to overwrite it");
            return Err(exists(text));
        }
        Ok(ReceivePlan::Into { head, base: None })
    }

    fn plan_incremental(&self, new: &NewReceive, head: u64, guid: u64) -> Result<ReceivePlan> {
        let name = new.dataset.as_str();
        let found = self.snapshot_by_guid(head, guid)?;
        let (base, newer) = found.ok_or_else(|| no_match(name))?;
        if self.read().dataset(base)?.is_inconsistent() {
            return Err(no_match(name));
        }
        if self.kind_of(head)? != new.kind {
            return Err(Error::invalid(format!("destination '{name}' is of another kind")));
        }
        if let Some(raw) = &new.raw {
            self.check_raw_base(raw, base)?;
            // What came after the snapshot cannot be discarded without the key.
            if !newer.is_empty() {
                return Err(modified(name));
            }
        }
        if new.force {
            self.check_newer(head, &newer)?;
        } else if self.is_modified_since(head, base)? {
            return Err(modified(name));
        } else if !newer.is_empty() {
            return Err(no_match(name));
        }
        self.check_redaction(new, base)?;
        let large = self.read().attribute(base, features::LARGE_BLOCKS)?.is_some();
        if large && !new.uses.contains(&features::LARGE_BLOCKS) {
            let text = "incremental send stream requires -L (--large-block), to match previous \
                        receive.";
            return Err(Error::invalid(text));
        }
        Ok(ReceivePlan::Into { head, base: Some(base) })
    }

    /// A snapshot that lacks blocks is continued only by what does not need them (§13.8).
    fn check_redaction(&self, new: &NewReceive, base: u64) -> Result<()> {
        let Some(lacks) = dsl_receive::redacted_by(self.read(), base)? else { return Ok(()) };
        let subset = |guids: &[u64]| guids.iter().all(|guid| lacks.contains(guid));
        let fits = match (&new.from_redacted, &new.redacted) {
            (Some(from), _) => subset(from),
            (None, Some(redacted)) => subset(redacted),
            (None, None) => lacks.contains(&new.to_guid),
        };
        let text = "incremental stream may not be applied to a redacted snapshot";
        if fits { Ok(()) } else { Err(Error::invalid(text)) }
    }

    /// The interrupted receive that a stream continues.
    fn plan_resume(&self, new: &NewReceive, dir: u64, at: (u64, u64)) -> Result<ReceivePlan> {
        let (name, mos) = (new.dataset.as_str(), self.read());
        let own = mos.dir(dir)?.head_dataset_obj;
        let (head, into) = match dsl_receive::hidden_head(mos, dir)? {
            Some(hidden) => (hidden, Some(own)),
            None => (own, None),
        };
        self.check_unused(own)?;
        if self.is_received(head) {
            return Err(Error::busy("dataset is busy"));
        }
        let none = || {
            let text = format!("destination '{name}' has no partially received state to resume");
            Error::invalid(text)
        };
        let ds = mos.dataset(head)?;
        let state = dsl_receive::resume_state(mos, head)?.filter(|_| ds.is_inconsistent());
        let state = state.ok_or_else(none)?;
        let same = state.to_guid == new.to_guid
            && state.from_guid.unwrap_or(0) == new.from_guid
            && state.raw == new.raw.is_some()
            && (state.position.object, state.position.offset) == at
            && mos.numbers(ds.snapnames_zapobj)?.is_empty();
        if !same {
            let text = format!("the stream does not continue the partial state of '{name}'");
            return Err(Error::invalid(text));
        }
        if into.is_some() && new.from_guid == 0 && !new.force {
            let text = "Resuming recv on existing dataset without force";
            return Err(exists(text.to_owned()));
        }
        if let Some(raw) = &new.raw {
            crypt::check_same(mos, ds.dir_obj, &raw.keys)?;
        }
        Ok(ReceivePlan::Resume { head, into, bytes: state.position.bytes })
    }

    fn begin_receive(&mut self, new: NewReceive, plan: ReceivePlan) -> Result<ReceiveTarget> {
        self.settle()?;
        let resumable = new.resume.is_some() || new.resumes_at.is_some();
        let progress = Arc::new(ReceiveProgress { resumable, ..ReceiveProgress::default() });
        let (head, into, content, bytes) = match plan {
            ReceivePlan::New { parent, origin } => {
                let last = new.dataset.rsplit('/').next().unwrap_or_default();
                let case_insensitive = new.case_insensitive;
                let wanted = create::NewDataset { name: last, case_insensitive, origin };
                let made = match &new.raw {
                    None => create::dataset(self.cx, parent, &wanted)?,
                    Some(raw) => {
                        let made = create::received(self.cx, parent, &wanted)?;
                        if origin.is_none() {
                            crypt::create(self.cx, made.dir, made.head, &raw.keys)?;
                        }
                        made
                    }
                };
                for (name, value) in &new.props {
                    let set = Change::Set(value.clone());
                    props::change(self.cx, Target::Dir(made.dir), name, &set)?;
                }
                (made.head, None, origin.is_some(), 0)
            }
            ReceivePlan::Into { head, base } => {
                (dsl_receive::hidden(self.cx, head, base)?, Some(head), base.is_some(), 0)
            }
            ReceivePlan::Resume { head, into, bytes } => (head, into, true, bytes),
        };
        let root = new.raw.as_ref().map(|raw| raw.root);
        let target = ReceiveTarget { head, into, has_content: content, bytes, progress, root };
        self.writer.receives.lock().insert(head, Arc::clone(&target.progress));
        if new.resumes_at.is_some() {
            return Ok(target);
        }
        dsl_receive::begin(self.cx, head, new.resume.as_ref())?;
        dsl_receive::set_redacted(self.cx, head, new.redacted.as_deref())?;
        new.uses.iter().try_for_each(|guid| features::activate(self.cx, head, guid))?;
        if content {
            self.forget_inherited_log(head)?;
        } else {
            let dir = self.read().dataset(head)?.dir_obj;
            let get = |name: &str| effective_number(self.read(), dir, name);
            let props = objset_props(&self.flags()?, &get)?;
            let zio = Arc::clone(&self.writer.zio);
            let os = match root {
                None => Objset::create(zio, head, new.kind, props),
                Some(root) => Objset::create_sealed(zio, head, new.kind, props, root)?,
            };
            self.mark_accounting(head, &os)?;
            self.add_head(head, os);
        }
        self.log_internal("receive", Some((&new.dataset, head)), "")?;
        Ok(target)
    }

    /// Checks that a received head is there, and that the dataset may get its content. Returns
    /// the snapshots that are destroyed with it.
    fn check_end(&self, target: &ReceiveTarget, end: &EndReceive) -> Result<Vec<u64>> {
        let mos = self.read();
        if !self.is_there(target.head)? {
            return Err(Error::not_found("the dataset was destroyed"));
        }
        let k = mos.dataset(target.head)?;
        let head = target.into.unwrap_or(target.head);
        let above = mos.dir(k.dir_obj)?.parent_obj;
        if target.into.is_some() && mos.dir(above)?.head_dataset_obj != head {
            return Err(Error::not_found("the dataset was destroyed"));
        }
        let name = self.name_of_dataset(head)?;
        check_name(&format!("{name}@{}", end.snapshot.name))?;
        create::check_component(&end.snapshot.name)?;
        let ds = mos.dataset(head)?;
        if snapshot::find(self.cx, &ds, &end.snapshot.name)?.is_some() {
            return Err(exists(format!("destination '{name}@{}' exists", end.snapshot.name)));
        }
        self.check_limit(ds.dir_obj, &SNAPSHOTS, &mut BTreeMap::new())?;
        let mut newer = Vec::new();
        if target.into.is_some() {
            newer = self.check_switch(head, &k, end, &name)?;
        }
        if let Some(raw) = &end.snapshot.raw {
            crypt::check_same(mos, ds.dir_obj, &raw.keys)?;
            if !newer.is_empty() {
                return Err(modified(&name));
            }
        }
        // A dataset can have one snapshot per txg.
        if ds.prev_snap_txg >= self.cx.txg || k.prev_snap_txg >= self.cx.txg {
            return Err(Error::new(ErrorKind::WouldBlock, "a snapshot was taken in this txg"));
        }
        Ok(newer)
    }

    fn check_switch(
        &self,
        head: u64,
        k: &ondisk::dslphys::DslDatasetPhys,
        end: &EndReceive,
        name: &str,
    ) -> Result<Vec<u64>> {
        let (mos, ds) = (self.read(), self.read().dataset(head)?);
        let mut newer = Vec::new();
        if ds.prev_snap_obj != k.prev_snap_obj {
            // Pools older than version 11 have nothing before the first snapshot of a dataset.
            let found = match k.prev_snap_obj {
                0 => None,
                base => self.snapshot_by_guid(head, mos.dataset(base)?.guid)?,
            };
            let found = found.filter(|(base, _)| *base == k.prev_snap_obj);
            newer = found.ok_or_else(|| no_match(name))?.1;
        }
        if end.force {
            self.check_newer(head, &newer)?;
        } else if !newer.is_empty() || self.is_modified_since(head, k.prev_snap_obj)? {
            return Err(modified(name));
        }
        let refquota = props::own_number(mos, ds.dir_obj, "refquota")?;
        if refquota != 0 && k.referenced_bytes > refquota {
            let text = format!("destination {name} space quota exceeded.");
            return Err(Error::new(ErrorKind::Quota, text));
        }
        let refreserved = props::refreservation(mos, ds.dir_obj)?;
        let growth = ds.unique_bytes.min(refreserved);
        if growth > super::datasets::available(mos, ds.dir_obj, self.writer.usable())? {
            return Err(Error::new(ErrorKind::NoSpace, "out of space"));
        }
        Ok(newer)
    }

    /// Whether a head that is being received was not destroyed.
    fn is_there(&self, head: u64) -> Result<bool> {
        let mos = self.read();
        let ds = match mos.dataset(head) {
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Corrupt) => {
                return Ok(false);
            }
            other => other?,
        };
        Ok(self.is_received(head)
            && ds.is_inconsistent()
            && mos.dir(ds.dir_obj)?.head_dataset_obj == head)
    }

    fn end_receive(
        &mut self,
        target: &ReceiveTarget,
        end: &EndReceive,
        newer: &[u64],
    ) -> Result<()> {
        if !self.writer.plants.receive.early_switch.load(Relaxed) {
            self.settle()?;
        }
        let head = target.into.unwrap_or(target.head);
        let name = self.name_of_dataset(head)?;
        if let Some(into) = target.into {
            for &snap in newer {
                let name = self.name_of_snapshot(into, snap)?;
                self.destroy_one_snapshot(snap, &name, false)?;
            }
            self.free_log(into)?;
            rollback::swap(self.cx, into, target.head)?;
            self.drop_head(into);
            self.drop_head(target.head);
        }
        dsl_receive::finish(self.cx, head, &end.snapshot)?;
        if target.into.is_some() {
            destroy::head(self.cx, target.head, &Arc::clone(&self.writer.zio))?;
            self.free_in_background();
        }
        let text = format!("snap={}", end.snapshot.name);
        self.log_internal("finish receiving", Some((&name, head)), &text)
    }

    /// Destroys what a receive has made.
    pub(super) fn abandon_receive(&mut self, head: u64) -> Result<()> {
        let name = self.name_of_dataset(head)?;
        self.destroy_head(head, &name)
    }
}

/// The end of a receive.
#[derive(Clone, Debug)]
pub struct EndReceive {
    /// The snapshot.
    pub snapshot: ReceivedSnapshot,
    /// As [`NewReceive::force`].
    pub force: bool,
}

impl Writer {
    /// Begins a receive: makes the head that the stream is written into.
    ///
    /// # Errors
    /// In OpenZFS's words (chapter 07 §13.1, chapter 09 §1.3): `Exists`, `NotFound`, `Busy` for a
    /// dataset that was modified or is being received, `CrossDevice` if it lacks the snapshot
    /// that the stream is incremental to, `Invalid`, `NoSpace`, `Unsupported`; those of a
    /// suspension.
    pub fn begin_receive(
        &self,
        new: NewReceive,
        command: Option<Command>,
    ) -> Result<ReceiveTarget> {
        check_name(&format!("{}@{}", new.dataset, new.snapshot))?;
        create::check_component(&new.snapshot)?;
        loop {
            let (checked, wanted, line) = (new.clone(), new.clone(), command.clone());
            let check = move |cx: &mut TaskCx<'_>| cx.plan_receive(&checked);
            let act = move |cx: &mut TaskCx<'_>, plan: ReceivePlan| {
                let is_new = matches!(plan, ReceivePlan::New { .. });
                let target = cx.begin_receive(wanted, plan)?;
                if is_new {
                    let dir = cx.read().dataset(target.head)?.dir_obj;
                    cx.grant_to_creator(dir, line.as_ref())?;
                }
                log(cx, line.as_ref())?;
                Ok(target)
            };
            match self.sync_task(check, act) {
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                other => return other.map(|(target, _)| target),
            }
        }
    }

    /// Checks whether a receive could begin now; nothing is changed.
    ///
    /// # Errors
    /// As [`Writer::begin_receive`].
    pub fn check_receive(&self, new: NewReceive) -> Result<()> {
        check_name(&format!("{}@{}", new.dataset, new.snapshot))?;
        create::check_component(&new.snapshot)?;
        let check = move |cx: &mut TaskCx<'_>| cx.plan_receive(&new).map(drop);
        self.sync_task(check, |_, ()| Ok(())).map(drop)
    }

    /// The object set of a head that is being received.
    ///
    /// # Errors
    /// `NotFound` when it was destroyed; those of reading it.
    pub fn received_objset(&self, target: &ReceiveTarget) -> Result<Arc<Objset>> {
        let props = self.props_of(&self.mos, target.head)?;
        let os = self.live_head(&self.mos, target.head, props)?;
        if let Some(root) = target.root {
            os.seal_root(root)?;
        }
        Ok(os)
    }

    /// Ends a receive whose stream was applied completely: the dataset has its content, and the
    /// snapshot, when this returns. After an error the receive goes on, or is abandoned.
    ///
    /// # Errors
    /// In OpenZFS's words: `Busy` for a dataset that was modified meanwhile, `Exists`, `NotFound`
    /// when it was destroyed, `Quota`, `NoSpace`; those of a suspension.
    pub fn end_receive(&self, target: &ReceiveTarget, end: &EndReceive) -> Result<()> {
        // The dataset must have no log when its content changes.
        if target.into.is_some() {
            self.close_logs()?;
        }
        let done = loop {
            let (checked, of) = (target.clone(), end.clone());
            let (acting, to) = (target.clone(), end.clone());
            let check = move |cx: &mut TaskCx<'_>| cx.check_end(&checked, &of);
            let act = move |cx: &mut TaskCx<'_>, newer: Vec<u64>| {
                cx.end_receive(&acting, &to, &newer)?;
                cx.writer.receives.lock().remove(&acting.head);
                Ok(())
            };
            match self.sync_task(check, act) {
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                other => break other.map(drop),
            }
        };
        if target.into.is_some() {
            self.reopen_logs();
        }
        done
    }

    /// Gives a receive up. What it made is destroyed, unless `keep` and it is resumable.
    ///
    /// # Errors
    /// Those of a suspension.
    pub fn abandon_receive(&self, target: &ReceiveTarget, keep: bool) -> Result<()> {
        let head = target.head;
        if keep && target.progress.resumable {
            // What was applied is on disk when the caller learns of the error.
            let synced = match self.plants.receive.unsynced_position.load(Relaxed) {
                true => Ok(()),
                false => self.sync().map(drop),
            };
            self.receives.lock().remove(&head);
            return synced;
        }
        let check = move |cx: &mut TaskCx<'_>| cx.is_there(head);
        let act = move |cx: &mut TaskCx<'_>, there: bool| {
            let children = || destroy::check_head(cx.read(), head);
            if there && children().is_ok() {
                cx.abandon_receive(head)?;
            }
            Ok(())
        };
        let done = self.sync_task(check, act).map(drop);
        self.receives.lock().remove(&head);
        done
    }

    /// Stores how far the receive into `head` has come with what this txg writes.
    pub(super) fn store_position(&self, cx: &SyncCx<'_>, head: u64) -> Result<()> {
        let Some(progress) = self.receives.lock().get(&head).cloned() else { return Ok(()) };
        let mut positions = progress.positions.lock();
        let too_far = self.plants.receive.position_too_far.load(Relaxed);
        let too_far = positions.values().next_back().copied().filter(|_| too_far);
        let later = positions.split_off(&cx.txg.next());
        let due = std::mem::replace(&mut *positions, later);
        drop(positions);
        let newest = too_far.or_else(|| due.into_values().next_back());
        newest.map_or(Ok(()), |at| dsl_receive::put_position(cx, head, at))
    }
}
