//! Clones: making them, promoting them, and returning a dataset to its newest snapshot
//! (chapter 04 §4.2, §10.3, §10.4).
//!
//! # Theory
//! Each request is one sync task: checked completely, then made in one txg. So a crash
//! leaves the state before or after it, never one in between.
//!
//! A clone has the object set of its origin, and with it perhaps the header of the intent
//! log that the origin's dataset had when the snapshot was taken. Such a header is emptied
//! in the same txg, because the log belongs to another dataset. A rollback is the same for
//! the dataset itself; the log that it has at that moment is ended before, and its blocks
//! are freed.
//!
//! # Concurrency
//! * Handles of a dataset that is rolled back get `NotFound` from then on, as those of a
//!   destroyed one: their state refers to blocks that are being freed. Changes of later txgs
//!   in them are dropped. The dataset's next user opens the restored content.
//! * A scrub follows the content ([`dsl::write::scan`]); a promotion changes nothing that a
//!   scrub's position depends on.
//! * The discarded content is freed in the background, after that of other destroyed
//!   datasets.
//! * Other tasks run before or after this one, since there is one sync thread.
//!
//! # Invariants
//! * As in [`super::datasets`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use base::limits::DATASET_NAME_MAX;
use base::{Error, ErrorKind, Result, Txg};
use dmu::{Io, Objset};
use dsl::stored::Stored;
use dsl::write::props::{self, Change, Target};
use dsl::write::{create, promote, rename, rollback};
use ondisk::objset::{ObjsetType, ZIL_HEADER_SIZE};

use super::datasets::{FILESYSTEMS, SNAPSHOTS, check_name, check_value, exists, log};
use super::datasets::{RESERVATIONS, available};
use super::effective::missing;
use super::tasks::{Command, TaskCx};
use super::{Writer, effective::find_dir};

/// Parameters of a new clone.
#[derive(Clone, Debug)]
pub struct NewClone {
    /// Full name of the snapshot, pool first.
    pub origin: String,
    /// Full name of the clone.
    pub name: String,
    /// Properties set on it.
    pub props: Vec<(String, Stored)>,
}

fn no_space() -> Error {
    Error::new(ErrorKind::NoSpace, "out of space")
}

impl TaskCx<'_> {
    /// The directory above a new dataset, which must be a file system's.
    ///
    /// # Errors
    /// In OpenZFS's words: `NotFound`, `Invalid`, `Exists` for a pool's name.
    pub(super) fn parent_of(&self, name: &str) -> Result<u64> {
        let Some((above, _)) = name.rsplit_once('/') else { return Err(exists(name)) };
        let parent = match find_dir(self.read(), self.writer.name(), above) {
            Err(e) if e.kind() == ErrorKind::NotFound => {
                return Err(Error::not_found("parent does not exist").in_dataset(name));
            }
            other => other?,
        };
        let head = self.read().dir(parent)?.head_dataset_obj;
        if head == 0 || self.kind_of(head)? != ObjsetType::Zfs {
            return Err(Error::invalid("parent is not a filesystem").in_dataset(name));
        }
        Ok(parent)
    }

    /// Empties the header of an intent log that a head has from its origin or snapshot.
    /// The head is written with this txg.
    ///
    /// # Errors
    /// Those of reading the dataset.
    pub(super) fn forget_inherited_log(&self, head: u64) -> Result<()> {
        let bp = self.read().dataset(head)?.bp;
        if bp.is_hole() {
            return Ok(());
        }
        let os = Objset::open(Arc::clone(&self.writer.zio), head, bp, Io::SYNC)?;
        if os.phys().zil_header.iter().all(|byte| *byte == 0) {
            return Ok(());
        }
        let props = self.writer.props_of(self.mos(), head)?;
        let os = self.writer.live_head(self.mos(), head, props)?;
        os.set_zil_header([0; ZIL_HEADER_SIZE])
    }

    /// Whether `dir` and the directories above it that `except` lacks may be charged with
    /// `bytes` more (chapter 04 §5.5).
    ///
    /// # Errors
    /// `NoSpace`; those of reading the MOS.
    pub(super) fn check_quotas(&self, dir: u64, bytes: u64, except: &BTreeSet<u64>) -> Result<()> {
        let mut growth = bytes;
        for at in rename::ancestors(self.read(), dir)? {
            if except.contains(&at) {
                break;
            }
            let phys = self.read().dir(at)?;
            let after = phys.used_bytes.saturating_add(growth);
            if growth > 0 && phys.quota != 0 && after > phys.quota {
                return Err(no_space());
            }
            let charged = |used: u64| used.max(phys.reserved);
            growth = charged(after).saturating_sub(charged(phys.used_bytes));
        }
        Ok(())
    }

    /// Frees what a rollback discards, and drops the state of the head in memory.
    fn roll_back(&mut self, head: u64, snap: u64, name: &str) -> Result<()> {
        let plants = &self.writer.plants;
        self.settle()?;
        self.end_clones(head);
        if !plants.kept_log.load(Relaxed) {
            self.free_log(head)?;
        }
        rollback::rollback(self.cx, head, snap, &Arc::clone(&self.writer.zio))?;
        self.drop_head(head);
        if !plants.inherited_log.load(Relaxed) {
            self.forget_inherited_log(head)?;
        }
        self.free_in_background();
        self.log_internal("rollback", Some((name, head)), "")
    }

    /// Checks what a rollback needs: `refreservation` may have to be reserved again, and the
    /// snapshot must fit into `refquota`.
    fn check_rollback_room(&self, head: u64, snap: u64) -> Result<()> {
        let (ds, s) = (self.read().dataset(head)?, self.read().dataset(snap)?);
        let refquota = props::own_number(self.read(), ds.dir_obj, "refquota")?;
        if refquota != 0 && s.referenced_bytes > refquota {
            return Err(Error::new(ErrorKind::NoSpace, "disk quota exceeded"));
        }
        let refreserved = props::refreservation(self.read(), ds.dir_obj)?;
        let growth = ds.unique_bytes.min(refreserved);
        if growth > available(self.read(), ds.dir_obj, self.writer.usable())? {
            return Err(no_space());
        }
        Ok(())
    }
}

impl Writer {
    /// Makes a clone of a snapshot; it is on disk when this returns.
    ///
    /// # Errors
    /// In OpenZFS's words: `NotFound` without the snapshot or the parent, `Exists`,
    /// `Invalid`, `NameTooLong`, `NoSpace`, `Unsupported`; those of a suspension.
    pub fn clone_snapshot(&self, new: NewClone, command: Option<Command>) -> Result<Txg> {
        check_name(&new.name)?;
        let (name, origin, list) = (new.name.clone(), new.origin.clone(), new.props.clone());
        let check = move |cx: &mut TaskCx<'_>| {
            let (_, snap) = cx.snapshot(&origin)?;
            let parent = cx.parent_of(&name)?;
            let last = name.rsplit('/').next().unwrap_or_default();
            let wanted =
                create::NewDataset { name: last, case_insensitive: false, origin: Some(snap) };
            match create::check(cx.cx, parent, &wanted) {
                Err(e) if e.kind() == ErrorKind::Exists => return Err(exists(&name)),
                other => other.map_err(|e| e.in_dataset(name.as_str()))?,
            }
            if cx.writer.allocatable(false) == 0 {
                return Err(no_space().in_dataset(&name));
            }
            let limited = cx.check_limit(parent, &FILESYSTEMS, &mut BTreeMap::new());
            limited.map_err(|e| e.in_dataset(&name))?;
            list.iter().try_for_each(|(name, value)| check_value(cx.read(), name, value))?;
            let reserves = |p: &&(String, Stored)| RESERVATIONS.contains(&p.0.as_str());
            let wanted = list.iter().filter(reserves).filter_map(|p| p.1.number()).max();
            if let Some(bytes) = wanted
                && bytes > available(cx.read(), parent, cx.writer.usable())?
            {
                return Err(no_space().in_dataset(&name));
            }
            Ok((parent, snap))
        };
        let act = move |cx: &mut TaskCx<'_>, (parent, snap): (u64, u64)| {
            let last = new.name.rsplit('/').next().unwrap_or_default();
            let wanted =
                create::NewDataset { name: last, case_insensitive: false, origin: Some(snap) };
            let made = create::dataset(cx.cx, parent, &wanted)?;
            for (name, value) in &new.props {
                props::change(cx.cx, Target::Dir(made.dir), name, &Change::Set(value.clone()))?;
            }
            cx.grant_to_creator(made.dir, command.as_ref())?;
            cx.forget_inherited_log(made.head)?;
            let text = format!("origin={} ({snap})", new.origin);
            cx.log_internal("clone", Some((&new.name, made.head)), &text)?;
            log(cx, command.as_ref())
        };
        self.sync_task(check, act).map(|(_, txg)| txg)
    }

    /// Promotes a clone: the snapshots up to its origin become its own, and the dataset that
    /// had them becomes its clone.
    ///
    /// # Errors
    /// In OpenZFS's words: `NotFound`; `Invalid` for a dataset that is no clone; `Exists`
    /// when both have a snapshot or bookmark of one name, the full name in the error's
    /// location; `NameTooLong`; `NoSpace` for quotas and limits; `Unsupported`; those of a
    /// suspension.
    pub fn promote(&self, name: &str, command: Option<Command>) -> Result<Txg> {
        check_name(name)?;
        let (name, of) = (name.to_owned(), name.to_owned());
        let check = move |cx: &mut TaskCx<'_>| {
            let head = cx.head(&of)?;
            let plan = match promote::check(cx.cx, head) {
                Err(e) if e.kind() == ErrorKind::Exists => {
                    let full = format!("{of}@{}", e.message());
                    return Err(
                        Error::new(ErrorKind::Exists, "conflicting snapshot").in_dataset(&full)
                    );
                }
                other => other.map_err(|e| e.in_dataset(of.as_str()))?,
            };
            let full = |snap: &str| of.len() + 1 + snap.len();
            if plan.snapshots().any(|snap| full(snap) > DATASET_NAME_MAX) {
                let e = Error::new(ErrorKind::NameTooLong, "name is too long");
                return Err(e.in_dataset(&of));
            }
            let mos = cx.read();
            let except: BTreeSet<u64> =
                rename::ancestors(mos, plan.origin_dir())?.into_iter().collect();
            let room = cx.check_quotas(plan.clone_dir(), plan.used(mos)?, &except);
            room.map_err(|e| e.in_dataset(of.as_str()))?;
            let more = plan.snapshots().count() as u64;
            let limited = cx.check_limit_below(plan.clone_dir(), &SNAPSHOTS, more, &except);
            limited.map_err(|e| e.in_dataset(of.as_str()))?;
            Ok(head)
        };
        let act = move |cx: &mut TaskCx<'_>, head: u64| {
            cx.settle()?;
            // The datasets were written in between, which may have changed their sizes.
            let plan = promote::check(cx.cx, head)?;
            promote::promote(cx.cx, &plan)?;
            cx.log_internal("promote", Some((&name, head)), "")?;
            log(cx, command.as_ref())
        };
        self.sync_task(check, act).map(|(_, txg)| txg)
    }

    /// Returns a file system or volume to its newest snapshot, `dataset@name`. Handles
    /// that are open get `NotFound` from then on.
    ///
    /// # Errors
    /// In OpenZFS's words: `NotFound`; `Exists` when there are newer snapshots or bookmarks;
    /// `NoSpace`; `Unsupported`; those of a suspension.
    pub fn rollback(&self, snapshot: &str, command: Option<Command>) -> Result<Txg> {
        check_name(snapshot)?;
        // The head must have no log when its content changes.
        let closed = self.close_logs();
        let done = closed.and_then(|()| {
            loop {
                match self.try_rollback(snapshot.to_owned(), command.clone()) {
                    // The snapshot was taken in the same txg.
                    Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                    other => break other,
                }
            }
        });
        self.reopen_logs();
        done
    }

    fn try_rollback(&self, name: String, command: Option<Command>) -> Result<Txg> {
        let of = name.clone();
        let check = move |cx: &mut TaskCx<'_>| {
            let (head, snap) = cx.snapshot(&of)?;
            cx.check_unused(head).map_err(|e| e.in_dataset(of.as_str()))?;
            rollback::check(cx.cx, head, snap).map_err(|e| e.in_dataset(of.as_str()))?;
            cx.check_rollback_room(head, snap).map_err(|e| e.in_dataset(of.as_str()))?;
            Ok((head, snap))
        };
        let act = move |cx: &mut TaskCx<'_>, (head, snap): (u64, u64)| {
            let fs = name.split('@').next().ok_or_else(|| missing(&name))?;
            cx.roll_back(head, snap, fs)?;
            log(cx, command.as_ref())
        };
        self.sync_task(check, act).map(|(_, txg)| txg)
    }
}
