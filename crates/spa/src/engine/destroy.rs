//! Destroying snapshots, and datasets with all below them: sync tasks over
//! `dsl::write::destroy` (chapter 04 §8, §9.1).
//!
//! # Theory
//! A request is checked completely before anything changes: holds, clones, children. What
//! fits into one batch is checked and destroyed in one txg. A larger request takes several
//! txgs, a batch in each. A batch ends after [`BATCH_TIME`] or [`BATCH_MAX`] datasets, so no
//! txg is long, and the lock of names, which a task holds, is free in between: other requests
//! are answered meanwhile.
//!
//! Between batches others may change what is left. Each name is looked up again, and must
//! lead to the object that was checked. One that is gone is skipped. One that is held or
//! cloned by then ends the request with an error.
//!
//! A batch ends by the clock, but under the simulator, where time stands still while a thread
//! works, by the number alone: a run is the same each time.
//!
//! # Crash argument
//! The destruction of one dataset is never divided, and each txg leaves a consistent pool. A
//! crash between two batches leaves some of the datasets, as it does in OpenZFS.
//!
//! # Invariants
//! * As in [`super::datasets`].
//! * Logs are closed while heads are destroyed, not while snapshots are.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use base::limits::DATASET_DEPTH_MAX;
use base::rt::{Instant, now};
use base::{Error, ErrorKind, Result, Txg};
use dsl::write::{destroy, links, snapshot};
use ondisk::objset::ObjsetType;

use super::Writer;
use super::datasets::{check_name, log};
use super::tasks::{Command, TaskCx};

/// Time after which a batch ends.
const BATCH_TIME: Duration = Duration::from_millis(50);
/// Most datasets of a batch, and of what is checked at once.
const BATCH_MAX: usize = 1024;

fn busy(name: &str) -> Error {
    Error::busy("dataset is busy").in_dataset(name)
}

fn dependent_clones(name: &str) -> Error {
    Error::new(ErrorKind::Exists, "filesystem has dependent clones").in_dataset(name)
}

/// The file system or volume of a snapshot's name, or the name itself.
fn dataset_of(name: &str) -> &str {
    name.split_once('@').map_or(name, |(dataset, _)| dataset)
}

/// Is called with each txg of a request and the names of what it destroyed, or marked for
/// deferred destruction, in their order.
pub type EachBatch<'a> = &'a mut dyn FnMut(Txg, Vec<String>);

/// What one txg may destroy.
struct DestroyBatch {
    began: Instant,
    left: usize,
    /// Heads, too: the logs are closed.
    heads: bool,
    /// Names of what was destroyed.
    done: Vec<String>,
}

impl DestroyBatch {
    fn begin(cx: &TaskCx<'_>, heads: bool) -> DestroyBatch {
        let left = match cx.writer.plants.destroyed_at_once.load(Relaxed) {
            0 => BATCH_MAX,
            n => usize::try_from(n).unwrap_or(BATCH_MAX),
        };
        DestroyBatch { began: now(), left, heads, done: Vec::new() }
    }

    /// Whether one more dataset may be destroyed; the first one always.
    fn take(&mut self) -> bool {
        let more = self.left > 0 && self.began.elapsed() < BATCH_TIME;
        self.left = self.left.saturating_sub(1);
        more
    }
}

/// What is left of a request after a batch.
enum AfterBatch {
    /// Nothing.
    Done,
    /// More than fitted.
    More,
    /// What needs closed logs.
    Heads,
    /// What cannot be destroyed any more.
    Stuck(Error),
}

/// The datasets that a destroy affects.
#[derive(Default)]
struct Doomed {
    /// Heads with their names.
    heads: BTreeMap<u64, String>,
    /// Snapshots with their names.
    snapshots: BTreeMap<u64, String>,
}

impl Doomed {
    fn gather(&mut self, cx: &TaskCx<'_>, dir: u64, name: &str, depth: usize) -> Result<()> {
        if depth > DATASET_DEPTH_MAX {
            return Err(Error::limit("datasets nested too deep"));
        }
        let phys = cx.read().dir(dir)?;
        for (child, object) in cx.read().numbers(phys.child_dir_zapobj)? {
            self.gather(cx, object, &format!("{name}/{child}"), depth + 1)?;
        }
        if phys.head_dataset_obj == 0 {
            return Err(Error::corrupt("a dataset has no content").in_dataset(name));
        }
        let names = cx.read().dataset(phys.head_dataset_obj)?.snapnames_zapobj;
        for (snap, object) in cx.read().numbers(names)? {
            self.snapshots.insert(object, format!("{name}@{snap}"));
        }
        self.heads.insert(phys.head_dataset_obj, name.to_owned());
        Ok(())
    }

    fn is_empty(&self) -> bool {
        self.heads.is_empty() && self.snapshots.is_empty()
    }

    /// Checks that no dataset outside depends on them, that no snapshot is held, and that an order
    /// exists in which all can be destroyed: children before parents, clones before their
    /// origins. After renames a file system may be a clone of a snapshot of its own child.
    fn check(&self, cx: &TaskCx<'_>) -> Result<()> {
        let mos = cx.read();
        // What must be destroyed before each file system or volume.
        let mut needs: BTreeMap<&str, BTreeSet<&str>> =
            self.heads.values().map(|name| (name.as_str(), BTreeSet::new())).collect();
        for (&head, name) in &self.heads {
            cx.check_unused(head).map_err(|e| e.in_dataset(name.as_str()))?;
            if let Some(of) = name.rsplit_once('/').and_then(|(parent, _)| needs.get_mut(parent)) {
                of.insert(name);
            }
        }
        for (&snap, name) in &self.snapshots {
            cx.check_unused(snap).map_err(|e| e.in_dataset(name.as_str()))?;
            let phys = mos.dataset(snap)?;
            if !mos.numbers(phys.userrefs_obj)?.is_empty() {
                return Err(busy(name));
            }
            let clones = links::clones_of(mos, snap, &phys)?;
            // The oldest dataset of each clone: a snapshot, if it has any.
            let inside = |next| self.heads.contains_key(next) || self.snapshots.contains_key(next);
            if clones.iter().any(|next| !inside(next)) {
                return Err(dependent_clones(name));
            }
            let origin = dataset_of(name);
            for next in &clones {
                let clone = self.heads.get(next).or_else(|| self.snapshots.get(next));
                let (Some(clone), Some(of)) = (clone, needs.get_mut(origin)) else { continue };
                of.insert(dataset_of(clone));
            }
        }
        while !needs.is_empty() {
            let ready: BTreeSet<&str> =
                needs.iter().filter(|(_, of)| of.is_empty()).map(|(name, _)| *name).collect();
            if ready.is_empty() {
                let name = needs.keys().next().copied().unwrap_or_default();
                return Err(dependent_clones(name));
            }
            needs.retain(|name, _| !ready.contains(name));
            needs.values_mut().for_each(|of| of.retain(|name| !ready.contains(name)));
        }
        Ok(())
    }

    /// Destroys datasets without dependents, until none is left or the batch ends.
    fn destroy(&mut self, cx: &mut TaskCx<'_>, batch: &mut DestroyBatch) -> Result<AfterBatch> {
        while !self.is_empty() {
            let before = self.heads.len() + self.snapshots.len();
            let mut stuck = None;
            for (snap, name) in self.snapshots.clone() {
                if !cx.leads_to(&name, snap)? {
                    self.snapshots.remove(&snap);
                    continue;
                }
                let free = cx.check_unused(snap);
                if let Err(e) = free.and_then(|()| destroy::check_snapshot(cx.read(), snap)) {
                    let text = match e.kind() {
                        ErrorKind::Busy => "dataset is busy",
                        _ => "filesystem has dependent clones",
                    };
                    stuck = Some(Error::new(e.kind(), text).in_dataset(&name));
                } else if batch.take() {
                    cx.destroy_one_snapshot(snap, &name, false)?;
                    self.snapshots.remove(&snap);
                    batch.done.push(name);
                } else {
                    return Ok(AfterBatch::More);
                }
            }
            if !batch.heads {
                return Ok(AfterBatch::Heads);
            }
            for (head, name) in self.heads.clone() {
                if !cx.leads_to(&name, head)? {
                    self.heads.remove(&head);
                } else if let Err(e) = cx.check_unused(head) {
                    stuck = Some(e.in_dataset(&name));
                } else if destroy::check_head(cx.read(), head).is_err() {
                    let children = || Error::new(ErrorKind::Exists, "filesystem has children");
                    stuck = stuck.or_else(|| Some(children().in_dataset(&name)));
                } else if batch.take() {
                    cx.destroy_head(head, &name)?;
                    self.heads.remove(&head);
                    batch.done.push(name);
                } else {
                    return Ok(AfterBatch::More);
                }
            }
            if self.heads.len() + self.snapshots.len() == before {
                let circle = || Error::corrupt("datasets depend on each other in a circle");
                return Ok(AfterBatch::Stuck(stuck.unwrap_or_else(circle)));
            }
        }
        Ok(AfterBatch::Done)
    }
}

impl TaskCx<'_> {
    /// Whether a full name is that of the head or snapshot `object`. Hidden directories
    /// (`%recv`) have names, too.
    fn leads_to(&self, name: &str, object: u64) -> Result<bool> {
        let (fs, snap) = name.split_once('@').map_or((name, None), |(fs, s)| (fs, Some(s)));
        let mut dir = self.read().required("root_dataset")?;
        for part in fs.split('/').skip(1) {
            match self.read().number(self.read().dir(dir)?.child_dir_zapobj, part)? {
                Some(child) => dir = child,
                None => return Ok(false),
            }
        }
        let head = self.read().dir(dir)?.head_dataset_obj;
        match snap {
            Some(_) if head == 0 => Ok(false),
            Some(snap) => {
                let found = snapshot::find(self.cx, &self.read().dataset(head)?, snap)?;
                Ok(found == Some(object))
            }
            None => Ok(head == object),
        }
    }

    /// The snapshots of these names, in their order, each once, if they can be destroyed.
    /// `skips` those that do not exist.
    fn doomed_snapshots(
        &self,
        names: &[String],
        defer: bool,
        skips: bool,
    ) -> Result<Vec<(u64, String)>> {
        let (mut out, mut seen) = (Vec::with_capacity(names.len()), BTreeSet::new());
        for name in names {
            let snap = match self.snapshot(name) {
                Err(e) if skips && e.kind() == ErrorKind::NotFound => continue,
                found => found?.1,
            };
            self.check_unused(snap).map_err(|e| e.in_dataset(name.as_str()))?;
            match destroy::check_snapshot(self.read(), snap) {
                Err(_) if defer => {}
                Err(e) if e.kind() == ErrorKind::Busy => return Err(busy(name)),
                Err(e) if e.kind() == ErrorKind::Exists => {
                    let text = "snapshot has dependent clones";
                    return Err(Error::new(ErrorKind::Exists, text).in_dataset(name));
                }
                other => other?,
            }
            if seen.insert(snap) {
                out.push((snap, name.clone()));
            }
        }
        Ok(out)
    }
}

impl Writer {
    /// Destroys a file system or volume; `recursive`: with its snapshots and all below. Many
    /// datasets take several txgs; the last one is returned.
    ///
    /// # Errors
    /// In OpenZFS's words: `NotFound`; `Exists` while there are children, snapshots or
    /// clones; `Busy` for held snapshots; `Invalid` for the pool's root; those of a
    /// suspension. Part of the datasets may be destroyed if others interfere.
    pub fn destroy_dataset(
        &self,
        name: &str,
        recursive: bool,
        command: Option<Command>,
    ) -> Result<Txg> {
        self.destroy_dataset_in_batches(name, recursive, command, &mut |_, _| {})
    }

    /// As [`Writer::destroy_dataset`], and says what each txg destroyed.
    ///
    /// # Errors
    /// As [`Writer::destroy_dataset`].
    pub fn destroy_dataset_in_batches(
        &self,
        name: &str,
        recursive: bool,
        command: Option<Command>,
        each: EachBatch<'_>,
    ) -> Result<Txg> {
        check_name(name)?;
        let (mut rest, mut heads) = (None, true);
        loop {
            let (name, command) = (name.to_owned(), command.clone());
            let check = move |cx: &mut TaskCx<'_>| match rest {
                Some(rest) => Ok(rest),
                None => cx.doomed(&name, recursive),
            };
            let act = move |cx: &mut TaskCx<'_>, mut doomed: Doomed| {
                let mut batch = DestroyBatch::begin(cx, heads);
                let after = doomed.destroy(cx, &mut batch)?;
                if matches!(after, AfterBatch::Done) {
                    log(cx, command.as_ref())?;
                }
                Ok((doomed, after, batch.done))
            };
            // Destroyed heads must have no log. The task determines which heads these are,
            // so all logs are closed.
            let closed = if heads { self.close_logs() } else { Ok(()) };
            let done = closed.and_then(|()| self.sync_task(check, act));
            if heads {
                self.reopen_logs();
            }
            let ((doomed, after, names), txg) = done?;
            each(txg, names);
            match after {
                AfterBatch::Done => return Ok(txg),
                // Snapshots first: they need no closed logs.
                AfterBatch::More => heads = heads && doomed.snapshots.is_empty(),
                AfterBatch::Heads => heads = true,
                AfterBatch::Stuck(e) => return Err(e),
            }
            rest = Some(doomed);
        }
    }

    /// Destroys snapshots. With `defer`, those that are held or have clones are destroyed
    /// together with the last of these. Many take several txgs; the last one is returned.
    ///
    /// # Errors
    /// In OpenZFS's words: `NotFound`, `Busy` for held ones, `Exists` for those with
    /// clones; those of a suspension. None is destroyed if one cannot be; but others may
    /// interfere after the first txg of many.
    pub fn destroy_snapshots(
        &self,
        names: &[String],
        defer: bool,
        command: Option<Command>,
    ) -> Result<Txg> {
        self.destroy_snapshots_in_batches(names, defer, command, &mut |_, _| {})
    }

    /// As [`Writer::destroy_snapshots`], and says what each txg destroyed.
    ///
    /// # Errors
    /// As [`Writer::destroy_snapshots`].
    pub fn destroy_snapshots_in_batches(
        &self,
        names: &[String],
        defer: bool,
        command: Option<Command>,
        each: EachBatch<'_>,
    ) -> Result<Txg> {
        if names.len() > BATCH_MAX {
            for part in names.chunks(BATCH_MAX) {
                let part = part.to_vec();
                let check =
                    move |cx: &mut TaskCx<'_>| cx.doomed_snapshots(&part, defer, false).map(drop);
                self.sync_task(check, |_, ()| Ok(()))?;
            }
        }
        let mut left: VecDeque<String> = names.iter().cloned().collect();
        let mut begun = false;
        loop {
            let part: Vec<String> = left.drain(..left.len().min(BATCH_MAX)).collect();
            let (is_last, command) = (left.is_empty(), command.clone());
            let check = move |cx: &mut TaskCx<'_>| cx.doomed_snapshots(&part, defer, begun);
            let act = move |cx: &mut TaskCx<'_>, snaps: Vec<(u64, String)>| {
                cx.settle()?;
                let (mut batch, mut rest) = (DestroyBatch::begin(cx, false), Vec::new());
                for (snap, name) in snaps {
                    if rest.is_empty() && batch.take() {
                        cx.destroy_one_snapshot(snap, &name, defer)?;
                        batch.done.push(name);
                    } else {
                        rest.push(name);
                    }
                }
                if is_last && rest.is_empty() {
                    log(cx, command.as_ref())?;
                }
                Ok((rest, batch.done))
            };
            let ((rest, done), txg) = self.sync_task(check, act)?;
            each(txg, done);
            rest.into_iter().rev().for_each(|name| left.push_front(name));
            if left.is_empty() {
                return Ok(txg);
            }
            begun = true;
        }
    }
}

impl TaskCx<'_> {
    /// What goes with a file system or volume, if it can be destroyed.
    fn doomed(&self, name: &str, recursive: bool) -> Result<Doomed> {
        let dir = self.dir(name)?;
        let phys = self.read().dir(dir)?;
        if phys.parent_obj == 0 {
            let text = "operation does not apply to pools";
            return Err(Error::invalid(text).in_dataset(name));
        }
        let mut doomed = Doomed::default();
        doomed.gather(self, dir, name, 0)?;
        // What is being received into it goes with it.
        let hidden = format!("/{}", dsl::write::receive::HIDDEN_NAME);
        let visible = doomed.heads.values().filter(|n| !n.ends_with(&hidden)).count();
        if !recursive && (visible > 1 || !doomed.snapshots.is_empty()) {
            let text = match self.kind_of(phys.head_dataset_obj)? {
                ObjsetType::Zvol => "volume has children",
                _ => "filesystem has children",
            };
            return Err(Error::new(ErrorKind::Exists, text).in_dataset(name));
        }
        doomed.check(self)?;
        Ok(doomed)
    }
}
