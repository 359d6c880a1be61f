//! Judging the pool that received, after a crash.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use base::rt::sim::{Options, Rng, run_with};
use base::{Error, Result, Txg};
use device::sim::{Image, SimDisks};
use dsl::write::receive::{HIDDEN_NAME, ReceivePosition, resume_state};
use dsl::{DslDataset, DslDir, Mos};
use spa::{ImportOptions, Spa};
use zio::BlockCache;

use super::source::ReceiveSource;
use super::{COPY, CopyState, CopyStep, PlannedReceive, ReceiveSetup, RecordedReceives};
use super::{receive, rest};
use crate::check::{self, Expect};
use crate::fs::ended;
use crate::image::Tap;
use crate::memo::Manner;
use crate::pool::{CACHE, POOL, SimLeaves, find, import};

/// One crashed pool in so many is opened for writing, if a receive was under way, and if none was.
const REOPENED: [u64; 2] = [2, 12];

/// What the copy has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FoundCopy {
    /// The dataset is there and complete.
    exists: bool,
    /// Guids of its snapshots by name.
    snaps: BTreeMap<String, u64>,
    /// The newest snapshot of the source that it has, if its head has the same content.
    head: Option<usize>,
    /// The guid of the snapshot that is partly received, and how far that has come.
    pub(super) partial: Option<(u64, ReceivePosition)>,
    /// A receive that cannot be resumed was cut off.
    incomplete: bool,
}

/// Whether a head or snapshot has a content of the source.
fn same(ds: &DslDataset, due: &crate::model::Content) -> Result<(), String> {
    let os = ds.open_objset().map_err(|e| e.to_string())?.ok_or("no object set")?;
    check::objects(&os, due, false).map_err(|bad| bad.to_string())
}

/// Reads the copy. Each snapshot of the source that it has is compared with the source.
///
/// # Errors
/// Those of reading; `Corrupt` for another content, and for datasets that nobody made.
pub(super) fn look(mos: &Mos, source: &ReceiveSource) -> Result<FoundCopy> {
    let (mut out, hidden) = (FoundCopy::default(), format!("{COPY}/{HIDDEN_NAME}"));
    DslDir::root(mos, POOL)?.walk_all(&mut |dir| {
        let Some(head) = dir.head()? else { return Ok(()) };
        if dir.name() == POOL || dir.name().contains('$') {
            return Ok(());
        }
        if dir.name() != COPY && dir.name() != hidden {
            return Err(Error::corrupt(format!("{} should not be there", dir.name())));
        }
        if head.phys().is_inconsistent() {
            match resume_state(mos, head.object())? {
                Some(state) => out.partial = Some((state.to_guid, state.position)),
                None => out.incomplete = true,
            }
            return Ok(());
        }
        if dir.name() == hidden {
            return Err(Error::corrupt("the hidden clone is complete"));
        }
        out.exists = true;
        let mut newest = None;
        for snap in head.snapshots()? {
            let short = snap.name().rsplit('@').next().unwrap_or_default().to_owned();
            let guid = snap.phys().guid;
            if let Some(at) = source.snaps.iter().position(|of| of.guid == guid) {
                let due = &source.snaps[at].content;
                same(&snap, due)
                    .map_err(|e| Error::corrupt(format!("snapshot {short} differs: {e}")))?;
                newest = newest.max(Some(at));
            }
            out.snaps.insert(short, guid);
        }
        out.head = newest.filter(|at| same(&head, &source.snaps[*at].content).is_ok());
        Ok(())
    })?;
    Ok(out)
}

/// The pool on these disks has no leaks, all its sums are right; what the copy has.
fn sound(leaves: &SimLeaves, source: &ReceiveSource) -> Result<FoundCopy, String> {
    let found = find(leaves).map_err(|e| format!("looking for the pool: {e}"))?;
    let found = found.ok_or_else(|| "the pool is gone".to_owned())?;
    let cache = Arc::new(BlockCache::of(CACHE).map_err(|e| e.to_string())?);
    let spa = import(leaves, &found, &cache, None).map_err(|e| format!("import: {e}"))?;
    rules(&spa)?;
    look(spa.mos(), source).map_err(|e| e.to_string())
}

fn rules(spa: &Spa) -> Result<(), String> {
    let expect = Expect::default();
    let done = check::audit(spa, &expect).and_then(|()| check::books(spa));
    done.map_err(|bad| bad.to_string())
}

/// Opens a crashed pool for writing, and receives: the rest of what was cut off, or what comes
/// next. Returns what the copy has then.
fn go_on(
    setup: &ReceiveSetup,
    source: &ReceiveSource,
    plan: &[PlannedReceive],
    before: &FoundCopy,
    disks: &SimDisks,
) -> Result<FoundCopy, String> {
    let fail = |what: &str, e: &dyn std::fmt::Display| format!("{what}, after a crash: {e}");
    let leaves = SimLeaves::new(disks, &[]);
    let found = find(&leaves).map_err(|e| fail("looking for the pool", &e))?;
    let found = found.ok_or_else(|| "the pool is gone".to_owned())?;
    let cache = Arc::new(BlockCache::of(CACHE).map_err(|e| fail("cache", &e))?);
    let options = ImportOptions { force: true, ..ImportOptions::default() };
    let spa = Spa::open_in(&found, &options, &cache, &leaves)
        .map_err(|f| fail("import for writing", &f.error))?;
    let writer = spa.start_writer(setup.run.writer()).map_err(|e| fail("writing", &e))?;
    writer.destroy_incomplete().map_err(|e| fail("destruction of what is incomplete", &e))?;
    let left = look(writer.mos(), source).map_err(|e| fail("what is left", &e))?;
    if left != (FoundCopy { incomplete: false, ..before.clone() }) {
        return Err(format!("{before:?} became {left:?} by an import"));
    }
    let newest =
        left.snaps.values().filter_map(|guid| source.snaps.iter().position(|s| s.guid == *guid));
    let newest = newest.max();
    let next = match &left.partial {
        Some((guid, at)) => {
            let planned = plan.iter().find(|p| source.snaps[p.to].guid == *guid);
            let planned = planned.ok_or_else(|| "a partial state of no stream".to_owned())?;
            let at = (at.object, at.offset);
            let bytes = rest(&planned.stream, at).map_err(|e| fail("the rest of a stream", &e))?;
            Some((planned.to, bytes, Some(at)))
        }
        // A dataset with snapshots of its own is not replaced by a full stream.
        None if newest.is_none() && !left.snaps.is_empty() => None,
        None => {
            let planned = plan.iter().find(|p| p.from == newest);
            planned.map(|p| (p.to, (*p.stream).clone(), None))
        }
    };
    if let Some((to, bytes, at)) = next {
        receive(&writer, &bytes, at.is_some(), at, setup.run.seed)
            .map_err(|e| fail(&format!("the receive of {to} from {at:?}"), &e))?;
        let now = look(writer.mos(), source).map_err(|e| fail(&format!("{to} from {at:?}"), &e))?;
        let due = source.snaps[to].guid;
        let there = now.snaps.get(&source.snaps[to].short) == Some(&due);
        if !there || now.head != Some(to) || now.partial.is_some() || now.incomplete {
            return Err(format!("{to} was received from {at:?}, but there is {now:?}"));
        }
    }
    writer.sync().map_err(|e| fail("last sync", &e))?;
    writer.stop();
    sound(&leaves, source).map_err(|e| fail("the pool that went on", &e))
}

impl RecordedReceives {
    fn run(
        &self,
        images: Vec<Image>,
        before: &FoundCopy,
        seed: u64,
    ) -> Result<(FoundCopy, SimDisks), String> {
        let disks = SimDisks::new(self.setup.run.disks(), images);
        let (setup, d, before) = (self.setup.clone(), disks.clone(), before.clone());
        let (source, plan) = (Arc::clone(&self.source), Arc::clone(&self.plan));
        let schedule = Options { max_steps: 50_000_000, ..Options::varied(seed) };
        let run = run_with(schedule, move || go_on(&setup, &source, &plan, &before, &d));
        Ok((ended(run.outcome)?, disks))
    }

    /// Opens a crashed pool for writing; crashes some of these pools again.
    fn reopen(&self, images: Vec<Image>, before: &FoundCopy, seed: u64) -> Result<(), String> {
        let (after, disks) = self.run(images, before, seed)?;
        {
            let mut count = self.reopened.lock();
            count.0 += 1;
            count.1 += u64::from(before.partial.is_some());
        }
        let mut rng = Rng::stream(seed, 95);
        if !rng.one_in(3) {
            return Ok(());
        }
        let points = disks.crash_points();
        let (at, cut) = (points[rng.below(points.len() as u64) as usize], rng.below(4));
        let fail = |e: String| format!("cut again at {at}:{cut}: {e}");
        let images = disks.crash_image(at, cut).map_err(|e| fail(e.to_string()))?;
        let leaves = SimLeaves::of_images(&images, &[], None, &Arc::default());
        let found = sound(&leaves, &self.source).map_err(fail)?;
        match found.snaps == before.snaps || found.snaps == after.snaps {
            true => Ok(()),
            false => Err(fail(format!("{found:?} is neither {before:?} nor {after:?}"))),
        }
    }

    /// The txg that an import finds, and the copy in it.
    fn read(
        &self,
        images: &[Image],
        seed: u64,
        cache: &Arc<BlockCache>,
    ) -> Result<(Txg, FoundCopy), String> {
        let manner = Manner::default();
        let known = |txg: Txg| self.found.lock().get(&txg).cloned();
        if let Some(txg) = self.memo.import_verdict(images, &manner)
            && let Some(copy) = known(txg)
        {
            return Ok((txg, copy));
        }
        let tap = Arc::new(Tap::default());
        let leaves = SimLeaves::of_images(images, &[], None, &tap);
        let found = find(&leaves).map_err(|e| format!("looking for the pool: {e}"))?;
        let found = found.ok_or_else(|| "there is no pool".to_owned())?;
        let spa = import(&leaves, &found, cache, None).map_err(|e| format!("import: {e}"))?;
        let (txg, root) = (spa.uberblock().txg, spa.uberblock().root_bp);
        let body = self.memo.body(images, &manner, txg, &root);
        let copy = match known(txg).filter(|_| body.is_some()) {
            Some(copy) => copy,
            None => {
                let within = |e: String| format!("txg {txg}: {e}");
                rules(&spa).map_err(within)?;
                let copy = look(spa.mos(), &self.source).map_err(|e| within(e.to_string()))?;
                let under_way = copy.partial.is_some() || copy.incomplete;
                let seed = self.setup.run.seed ^ txg.0 << 20 ^ seed;
                if Rng::stream(seed, 96).one_in(REOPENED[usize::from(!under_way)]) {
                    self.reopen(images.to_vec(), &copy, seed).map_err(within)?;
                }
                copy
            }
        };
        let (in_labels, read) = check::split(images, tap.take());
        self.memo.keep(images, &manner, txg, root, in_labels, body.unwrap_or(read));
        self.found.lock().insert(txg, copy.clone());
        Ok((txg, copy))
    }

    /// Crashes at one event and judges the result from scratch.
    ///
    /// # Errors
    /// The error found.
    pub fn crash_once(&self, event: u64, seed: u64) -> Result<Txg, String> {
        let cache = Arc::new(BlockCache::of(CACHE).map_err(|e| e.to_string())?);
        self.crash(event, seed, &cache)
    }

    /// Crashes at one event and judges the result; returns the txg found.
    pub(super) fn crash(
        &self,
        event: u64,
        seed: u64,
        cache: &Arc<BlockCache>,
    ) -> Result<Txg, String> {
        let images = self.disks.crash_image(event, seed).map_err(|e| e.to_string())?;
        let (txg, copy) = self.read(&images, seed, cache)?;
        self.compare(&copy, event).map_err(|e| format!("txg {txg}: {e}"))?;
        Ok(txg)
    }

    /// Whether the copy is as a step left it.
    fn is_as(&self, copy: &FoundCopy, state: &CopyState) -> bool {
        let names: BTreeSet<&String> = copy.snaps.keys().collect();
        let due = |(name, of): (&String, &Option<usize>)| {
            let guid = copy.snaps.get(name);
            of.is_none_or(|of| guid == Some(&self.source.snaps[of].guid))
        };
        copy.exists == state.exists
            && names == state.snaps.keys().collect()
            && state.snaps.iter().all(due)
            && (state.head.is_none() || state.head == copy.head)
    }

    fn compare(&self, copy: &FoundCopy, event: u64) -> Result<(), String> {
        let last = self.steps.iter().rposition(|step| step.ended <= event).unwrap_or(0);
        let under_way: Option<&CopyStep> =
            self.steps.get(last + 1).filter(|step| step.began <= event);
        let states = [Some(&self.steps[last]), under_way];
        let mut allowed = states.into_iter().flatten().map(|step| &step.after);
        if !allowed.any(|state| self.is_as(copy, state)) {
            let due: Vec<_> = states.into_iter().flatten().collect();
            return Err(format!("{copy:?} is there, but should be one of {due:?}"));
        }
        let receives = under_way.and_then(|step| step.receives);
        if copy.incomplete && receives.is_none() {
            return Err("an incomplete dataset is there, but nothing is received".to_owned());
        }
        let acknowledged = self.steps[last].after.partial;
        let found = copy
            .partial
            .map(|(guid, at)| (self.source.snaps.iter().position(|of| of.guid == guid), at.bytes));
        let right = match (found, acknowledged) {
            (None, None) => true,
            // It ended, and so its position is gone.
            (None, Some((to, _))) => {
                copy.head == Some(to)
                    || receives.is_some() && {
                        let name = &self.source.snaps[to].short;
                        copy.snaps.contains_key(name)
                    }
            }
            (Some((to, bytes)), Some((due, least))) => to == Some(due) && bytes >= least,
            (Some((to, _)), None) => to.is_some() && to == receives,
        };
        match right {
            true => Ok(()),
            false => Err(format!(
                "the partial state is {found:?}; acknowledged is {acknowledged:?}, and {receives:?} \
                 is received"
            )),
        }
    }
}
