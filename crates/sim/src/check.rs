//! Judging the disks after a crash: import, audit, bookkeeping, content.
//!
//! # Theory
//! If no disk has more damage than the pool's redundancy tolerates, everything must be
//! there. Otherwise ([`Expect::detect`]) the engine may report errors, but the data that it
//! returns must be right: damage is detected, never taken for content.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use base::{ErrorKind, ObjectId, Txg};
use device::sim::Image;
use dmu::{Io, Object, Objset, Zap};
use dsl::DslDataset;
use dsl::write::Ratios;
use dsl::write::check::Violation;
use ondisk::config::VdevConfig;
use ondisk::label::usable_size;
use spa::audit::{self, Verify};
use spa::engine::CheckpointState;
use spa::{FoundPool, ImportOptions, LeafLabels, Leaves, Purpose, Spa};
use zio::BlockCache;

use crate::image::{BadSectors, Range, Tap};
use crate::memo::{Manner, Memo, PriorVerdict};
use crate::model::{CHUNK, Content, Model, Obj, PoolNames};
use crate::pool::{SimLeaves, find, import};

/// The expected state of the disks.
#[derive(Clone, Debug, Default)]
pub struct Expect {
    /// The newest txg that was acknowledged to a caller.
    pub acknowledged: Option<Txg>,
    /// Missing disks, and whether copies and columns may be wrong, as long as everything
    /// can be read.
    pub manner: Manner,
    /// These sectors cannot be read.
    pub bad: Option<BadSectors>,
    /// There may be more damage than redundancy tolerates: it must be detected.
    pub detect: bool,
    /// Txgs before the newest must be complete too.
    pub rewind: bool,
    /// The first txg of the run: no rewind goes further back.
    pub first: Txg,
}

/// An error found.
#[derive(Clone, Debug)]
pub struct Bad {
    what: String,
    /// The engine itself reports damage.
    reported: bool,
}

impl fmt::Display for Bad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl From<String> for Bad {
    fn from(what: String) -> Bad {
        Bad { what, reported: false }
    }
}

impl Bad {
    fn within(self, place: &str) -> Bad {
        Bad { what: format!("{place}: {}", self.what), ..self }
    }
}

/// Whether everything is there, or some of it is reported as damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Integrity {
    Whole,
    Damaged,
}

/// Accepts damage that the engine reported, if damage is allowed.
fn noticed(done: Result<(), Bad>, detect: bool) -> Result<Integrity, Bad> {
    match done {
        Ok(()) => Ok(Integrity::Whole),
        Err(bad) if bad.reported && detect => Ok(Integrity::Damaged),
        Err(bad) => Err(bad),
    }
}

/// Txgs for which frees are deferred.
const DEFER: u64 = 2;

fn text(what: &str, e: base::Error) -> Bad {
    let kinds = [ErrorKind::Corrupt, ErrorKind::Checksum, ErrorKind::Io, ErrorKind::DevicesMissing];
    Bad { what: format!("{what}: {e}"), reported: kinds.contains(&e.kind()) }
}

/// Bytes at both ends of a disk that contain labels.
const LABELS: u64 = 512 << 10;

/// Splits the reads into those of labels, and others.
pub(crate) fn split(images: &[Image], ranges: Vec<Range>) -> (Vec<Range>, Vec<Range>) {
    let size = |disk: usize| images.get(disk).map_or(0, Image::size);
    ranges.into_iter().partition(|r| {
        r.offset + r.len <= LABELS || r.offset >= usable_size(size(r.disk)).saturating_sub(LABELS)
    })
}

/// Imports the pool in `images` and compares it with the model; returns the txg found, or
/// `None` if there is no pool, and either none was acknowledged or its loss is detected.
///
/// # Errors
/// The error found.
pub fn judge(
    images: &[Image],
    model: &Model,
    expect: &Expect,
    cache: &Arc<BlockCache>,
    memo: &Memo,
) -> Result<Option<Txg>, String> {
    judge_with(images, model, expect, cache, memo, &|_, _| Ok(()))
}

/// As [`judge`]; `opened` is called with the imported pool and the recorder of reads before
/// anything is compared.
///
/// # Errors
/// The error found, or that of `opened`.
pub(crate) fn judge_with(
    images: &[Image],
    model: &Model,
    expect: &Expect,
    cache: &Arc<BlockCache>,
    memo: &Memo,
    opened: PoolOpened<'_>,
) -> Result<Option<Txg>, String> {
    judge_it(images, model, expect, cache, memo, opened).map_err(|bad| bad.what)
}

/// What is done with an imported pool before it is judged.
pub(crate) type PoolOpened<'a> = &'a dyn Fn(&Spa, &Arc<Tap>) -> Result<(), String>;

fn judge_it(
    images: &[Image],
    model: &Model,
    expect: &Expect,
    cache: &Arc<BlockCache>,
    memo: &Memo,
    opened: PoolOpened<'_>,
) -> Result<Option<Txg>, Bad> {
    // Bad sectors are not part of an image, so the verdict is not stored.
    let remember = expect.bad.is_none();
    let known = if remember { memo.import_verdict(images, &expect.manner) } else { None };
    if let Some(txg) = known {
        acknowledged(model, expect, txg)?;
        return Ok(Some(txg));
    }
    let tap = Arc::new(Tap::default());
    let leaves = SimLeaves::of_images(images, &expect.manner.without, expect.bad, &tap);
    let lenient = expect.acknowledged.is_none() || expect.detect;
    let found = find(&leaves).map_err(|e| text("looking for the pool", e));
    let found = match found {
        Ok(Some(found)) => found,
        Ok(None) if lenient => return Ok(None),
        Ok(None) => {
            return Err("there is no pool, although one was acknowledged".to_owned().into());
        }
        Err(bad) if bad.reported && expect.detect => return Ok(None),
        Err(bad) => return Err(bad),
    };
    let spa = match import(&leaves, &found, cache, None) {
        Ok(spa) => spa,
        Err(_) if expect.acknowledged.is_none() => return Ok(None),
        Err(e) => {
            let bad = text("import", e);
            return if bad.reported && expect.detect { Ok(None) } else { Err(bad) };
        }
    };
    let (txg, root) = (spa.uberblock().txg, spa.uberblock().root_bp);
    acknowledged(model, expect, txg)?;
    let known = if remember { memo.body(images, &expect.manner, txg, &root) } else { None };
    let mut integrity = Integrity::Whole;
    if known.is_none() {
        opened(&spa, &tap)?;
        integrity = verdict(&spa, model, txg, expect)?;
        checkpoint(&spa, &leaves, &found, model, expect, cache)?;
    }
    if remember && integrity == Integrity::Whole {
        let (in_labels, read) = split(images, tap.take());
        memo.keep(images, &expect.manner, txg, root, in_labels, known.unwrap_or(read));
    }
    let members: BTreeSet<String> = spa.config().vdev_tree.leaves().map(leaf_path).collect();
    drop(spa);
    if !expect.manner.damage {
        labels(&leaves, &members, txg)?;
    }
    if expect.rewind {
        rewind(images, &leaves, &found, model, txg, expect, cache, memo)?;
    }
    Ok(Some(txg))
}

/// Checks that every acknowledged change is on disk. A txg without changes is not written.
fn acknowledged(model: &Model, expect: &Expect, txg: Txg) -> Result<(), Bad> {
    match expect.acknowledged.filter(|p| txg < *p && !model.same(txg, *p)) {
        Some(p) => Err(format!("txg {p} was acknowledged, but {txg} is the newest").into()),
        None => Ok(()),
    }
}

/// Checks all rules for an open pool in `txg`.
fn verdict(spa: &Spa, model: &Model, txg: Txg, expect: &Expect) -> Result<Integrity, Bad> {
    let at = |bad: Bad| bad.within(&format!("txg {txg}"));
    let mut found = compare(spa, model, txg, expect.detect).map_err(at)?;
    for done in [audit(spa, expect), books(spa)] {
        if noticed(done, expect.detect).map_err(at)? == Integrity::Damaged {
            found = Integrity::Damaged;
        }
    }
    // All blocks can be read.
    if found == Integrity::Whole {
        livelists(spa).map_err(at)?;
    }
    Ok(found)
}

fn leaf_path(leaf: &VdevConfig) -> String {
    leaf.path.as_ref().and_then(|path| path.to_str()).unwrap_or_default().to_owned()
}

/// Some label of each disk of the pool must not be newer than the uberblock (chapter 01 §6).
fn labels(leaves: &SimLeaves, members: &BTreeSet<String>, txg: Txg) -> Result<(), Bad> {
    let is_member = |path: &PathBuf| path.to_str().is_some_and(|path| members.contains(path));
    for path in leaves.list().unwrap_or_default().into_iter().filter(is_member) {
        let leaf = leaves.open(&path, Purpose::Probe).map_err(|e| text("labels", e))?;
        let labels = LeafLabels::read(&*leaf.device).map_err(|e| text("labels", e))?;
        if labels.config_at(txg).is_none() {
            let n = leaf.device.describe();
            return Err(format!("txg {txg}: no label that is not newer on {n}").into());
        }
    }
    Ok(())
}

/// The two txgs before must be complete too: frees wait for two more (chapter 05 §6).
fn rewind(
    images: &[Image],
    leaves: &SimLeaves,
    found: &FoundPool,
    model: &Model,
    txg: Txg,
    expect: &Expect,
    cache: &Arc<BlockCache>,
    memo: &Memo,
) -> Result<(), Bad> {
    // Txgs without changes count, though they leave no uberblock: the txg in progress may
    // overwrite space according to its own number.
    let Some(under_way) = model.next_change(txg) else { return Ok(()) };
    let from = Txg(under_way.0.saturating_sub(DEFER + 1).max(expect.first.0));
    for earlier in memo.txgs(from, txg) {
        if memo.txg_verdict(images, earlier) != PriorVerdict::Changed {
            continue;
        }
        let spa = import(leaves, found, cache, Some(earlier));
        let spa = spa.map_err(|e| text(&format!("import of {earlier} before {txg}"), e))?;
        let got = spa.uberblock().txg;
        let said = verdict(&spa, model, got, expect);
        said.map_err(|bad| bad.within(&format!("before txg {txg}")))?;
    }
    Ok(())
}

/// Opens the checkpoint of the pool, if it has one, and checks all rules for that state too.
fn checkpoint(
    spa: &Spa,
    leaves: &SimLeaves,
    found: &FoundPool,
    model: &Model,
    expect: &Expect,
    cache: &Arc<BlockCache>,
) -> Result<(), Bad> {
    let txg = spa.uberblock().txg;
    let at = |bad: Bad| bad.within(&format!("checkpoint of txg {txg}"));
    let status = spa.checkpoint_status().map_err(|e| at(text("status", e)))?;
    let there = status.is_some_and(|s| s.state == CheckpointState::Exists);
    let due = model.checkpoint_in(txg);
    if due.is_some_and(|due| due.is_some() != there) {
        return Err(at(format!("it should be of {due:?}, but it is {status:?}").into()));
    }
    if !there {
        return Ok(());
    }
    let options =
        ImportOptions { readonly: true, force: true, checkpoint: true, ..ImportOptions::default() };
    let kept = Spa::open_in(found, &options, cache, leaves);
    let kept = kept.map_err(|failure| at(text("import", failure.error)))?;
    let of = kept.uberblock().txg;
    match due.flatten() {
        Some(due) if due != of => Err(at(format!("it is of {of}, should be of {due}").into())),
        Some(_) => verdict(&kept, model, of, expect).map(drop).map_err(at),
        None => audit(&kept, expect).and_then(|()| books(&kept)).map_err(at),
    }
}

pub(crate) fn audit(spa: &Spa, expect: &Expect) -> Result<(), Bad> {
    let report = spa.audit(AUDIT, &()).map_err(|e| text("audit", e))?;
    let intact = expect.manner.damage || report.damaged == 0;
    if report.is_clean() && report.leaked == 0 && report.problems.is_empty() && intact {
        return Ok(());
    }
    let first: Vec<String> = report.problems.iter().take(4).map(|p| format!("{p:?}")).collect();
    let what = format!(
        "audit: {} unreadable, {} bad claims, {} bytes leaked, {} damaged copies; {}",
        report.unreadable,
        report.bad_claims,
        report.leaked,
        report.damaged,
        first.join("; ")
    );
    // Blocks below an unreadable block seem to have leaked.
    Err(Bad { what, reported: report.unreadable > 0 && report.bad_claims == 0 })
}

/// The report of an audit of the pool on these disks.
///
/// # Errors
/// An error that prevents an import or the audit.
pub fn report(images: &[Image]) -> Result<audit::Report, String> {
    let reported = |e: base::Error| e.to_string();
    let leaves = SimLeaves::of_images(images, &[], None, &Arc::default());
    let found = find(&leaves).map_err(reported)?.ok_or("there is no pool")?;
    let cache = Arc::new(BlockCache::of(crate::pool::CACHE).map_err(reported)?);
    let spa = import(&leaves, &found, &cache, None).map_err(reported)?;
    spa.audit(AUDIT, &()).map_err(reported)
}

/// How pools are audited.
const AUDIT: audit::AuditOptions =
    audit::AuditOptions { verify: Verify::All, leaks: true, threads: 1 };

fn ratios(spa: &Spa) -> Ratios {
    let tree = spa.zio().tree();
    let ids: Vec<_> = tree.top_ids().collect();
    Ratios::new(ids.iter().map(|id| tree.deflate_ratio(*id).unwrap_or(512)).collect())
}

/// The DSL's sums and counts.
pub(crate) fn books(spa: &Spa) -> Result<(), Bad> {
    no_violations(dsl::write::check(spa.mos(), &ratios(spa)))
}

/// The blocks of the livelists are those of their clones.
fn livelists(spa: &Spa) -> Result<(), Bad> {
    no_violations(dsl::write::check_livelists(spa.mos(), &ratios(spa), spa.zio()))
}

fn no_violations(found: base::Result<Vec<Violation>>) -> Result<(), Bad> {
    let wrong = found.map_err(|e| text("bookkeeping", e))?;
    if wrong.is_empty() {
        return Ok(());
    }
    let first: Vec<String> = wrong.iter().take(4).map(ToString::to_string).collect();
    Err(format!("bookkeeping: {} rules broken: {}", wrong.len(), first.join("; ")).into())
}

/// Names and content of all datasets and snapshots.
fn compare(spa: &Spa, model: &Model, txg: Txg, detect: bool) -> Result<Integrity, Bad> {
    let state = model.state(txg);
    let comment = spa.config().comment.as_ref().and_then(|c| c.to_str()).map(str::to_owned);
    let due = model.comments(txg);
    if !due.is_empty() && !comment.as_ref().is_some_and(|c| due.contains(c)) {
        return Err(format!("the comment is {comment:?}, should be one of {due:?}").into());
    }
    let mut heads = BTreeMap::new();
    let mut snaps = BTreeMap::new();
    let mut marks = BTreeMap::new();
    let mut damaged = false;
    let mut take = |done: Result<(), Bad>| {
        damaged |= noticed(done, detect)? == Integrity::Damaged;
        Ok::<_, Bad>(())
    };
    let names = (|| {
        let root = spa.root_dir().map_err(|e| text("root dataset", e))?;
        let walked = root.walk(&mut |dir| {
            let Some(head) = dir.head()? else { return Ok(()) };
            for snap in head.snapshots()? {
                let short = snap.name().rsplit('@').next().unwrap_or_default().to_owned();
                snaps.insert((dir.name().to_owned(), short), snap);
            }
            for mark in head.bookmarks()? {
                let short = mark.name.rsplit('#').next().unwrap_or_default().to_owned();
                marks.insert((dir.name().to_owned(), short), mark.phys.creation_txg);
            }
            heads.insert(dir.name().to_owned(), head);
            Ok(())
        });
        walked.map_err(|e| text("datasets", e))?;
        same_names("datasets", heads.keys(), state.heads.keys())?;
        same_names("snapshots", snaps.keys(), state.snaps.keys())?;
        same_names("bookmarks", marks.iter(), state.marks.iter())?;
        relations(spa, &heads, &snaps, &state)
    })();
    take(names)?;
    for (name, head) in &heads {
        let Some(&(ds, at)) = state.heads.get(name) else {
            return Err(format!("{name}: should not be there").into());
        };
        take(dataset(head, &model.content(ds, at), detect).map_err(|bad| bad.within(name)))?;
    }
    for (name, snap) in &snaps {
        let full = format!("{}@{}", name.0, name.1);
        let Some(&(ds, at)) = state.snaps.get(name) else {
            return Err(format!("{full}: should not be there").into());
        };
        take(dataset(snap, &model.content(ds, at), detect).map_err(|bad| bad.within(&full)))?;
    }
    Ok(if damaged { Integrity::Damaged } else { Integrity::Whole })
}

/// Origins, holds, and snapshots whose destruction is deferred.
fn relations(
    spa: &Spa,
    heads: &BTreeMap<String, DslDataset>,
    snaps: &BTreeMap<(String, String), DslDataset>,
    due: &PoolNames,
) -> Result<(), Bad> {
    let by_object: BTreeMap<u64, &(String, String)> =
        snaps.iter().map(|(name, snap)| (snap.object(), name)).collect();
    let origin = |(name, head): (&String, &DslDataset)| {
        let of = by_object.get(&head.dir().phys().origin_obj)?;
        Some((name.clone(), (*of).clone()))
    };
    let origins: BTreeMap<_, _> = heads.iter().filter_map(origin).collect();
    same_names("origins", origins.iter(), due.origins.iter())?;
    let (mut held, mut deferred) = (BTreeMap::new(), BTreeSet::new());
    for (name, snap) in snaps {
        let tags = dsl::write::destroy::holds(spa.mos(), snap.phys());
        let tags = tags.map_err(|e| text("holds", e))?;
        let tags: BTreeSet<String> = tags.into_iter().map(|(tag, _)| tag).collect();
        if !tags.is_empty() {
            held.insert(name.clone(), tags);
        }
        if snap.phys().is_defer_destroy() {
            deferred.insert(name.clone());
        }
    }
    same_names("holds", held.iter(), due.holds.iter())?;
    same_names("deferred destructions", deferred.iter(), due.deferred.iter())
}

fn same_names<N: Ord + fmt::Debug>(
    what: &str,
    found: impl Iterator<Item = N>,
    due: impl Iterator<Item = N>,
) -> Result<(), Bad> {
    let (found, due): (BTreeSet<_>, BTreeSet<_>) = (found.collect(), due.collect());
    if found == due {
        return Ok(());
    }
    let more: Vec<_> = found.difference(&due).collect();
    let less: Vec<_> = due.difference(&found).collect();
    Err(format!("{what}: {more:?} should not be there, {less:?} should").into())
}

fn dataset(ds: &DslDataset, due: &Content, detect: bool) -> Result<(), Bad> {
    let os = ds.open_objset().map_err(|e| text("object set", e))?;
    let Some(os) = os else { return Err("no object set".to_owned().into()) };
    objects(&os, due, detect)
}

/// Compares the objects of an object set with those due.
pub(crate) fn objects(os: &Arc<Objset>, due: &Content, detect: bool) -> Result<(), Bad> {
    let mut found = BTreeSet::new();
    let mut at = ObjectId(0);
    while let Some(id) = os.next_object(at, Io::WAIT).map_err(|e| text("objects", e))? {
        at = id;
        found.insert(id.0);
    }
    let due_ids: BTreeSet<u64> = due.keys().copied().collect();
    if found != due_ids {
        let more: Vec<_> = found.difference(&due_ids).collect();
        let less: Vec<_> = due_ids.difference(&found).collect();
        return Err(format!("objects {more:?} should not be there, {less:?} should").into());
    }
    let mut first = Ok(());
    for (id, obj) in due {
        match object(os, *id, obj).map_err(|bad| bad.within(&format!("object {id}"))) {
            // The other objects must still be right.
            Err(bad) if detect && bad.reported => first = first.and(Err(bad)),
            other => other?,
        }
    }
    first
}

fn object(os: &Arc<Objset>, id: u64, due: &Obj) -> Result<(), Bad> {
    if due.unknown {
        return Ok(());
    }
    let object = os.object(ObjectId(id), Io::WAIT).map_err(|e| text("dnode", e))?;
    if object.dnode().bonus != due.bonus {
        return Err("another bonus".to_owned().into());
    }
    let spill = object.spill(Io::WAIT).map_err(|e| text("spill block", e))?;
    let found = spill.map(|(buf, _)| buf.to_vec());
    if found != due.spill {
        let len = |bytes: &Option<Vec<u8>>| bytes.as_ref().map(Vec::len);
        let (found, due) = (len(&found), len(&due.spill));
        return Err(format!("another spill block: {found:?} bytes, due {due:?}").into());
    }
    if due.zap {
        return entries(object, due);
    }
    if object.block_size() != u64::from(due.block_size) {
        let (found, due) = (object.block_size(), due.block_size);
        return Err(format!("blocks of {found} bytes, not {due}").into());
    }
    let mut seen = 0;
    let mut from = 0;
    while let Some(blkid) = object.next_data_block(from, Io::WAIT).map_err(|e| text("tree", e))? {
        from = blkid + 1;
        let block = object.read_block(blkid, Io::WAIT).map_err(|e| text("block", e))?;
        let first = blkid * object.block_size() / CHUNK;
        for (n, bytes) in (first..).zip(block.chunks(CHUNK as usize)) {
            let ok = match due.chunks.get(&n) {
                Some(chunk) => chunk[..] == *bytes,
                None => bytes.iter().all(|b| *b == 0),
            };
            if !ok {
                return Err(format!("block {blkid}: other bytes at {}", n * CHUNK).into());
            }
            seen += usize::from(due.chunks.contains_key(&n));
        }
    }
    if seen != due.chunks.len() {
        let lost = due.chunks.len() - seen;
        return Err(format!("{lost} sectors of {} are holes", due.chunks.len()).into());
    }
    Ok(())
}

fn entries(object: Object, due: &Obj) -> Result<(), Bad> {
    let zap = Zap::open(object, Io::WAIT).map_err(|e| text("ZAP", e))?;
    let all = zap.entries().map_err(|e| text("ZAP", e))?;
    let mut found = BTreeMap::new();
    for entry in all {
        let words =
            entry.value.u64s().ok_or_else(|| Bad::from("an entry is no number".to_owned()))?;
        if found.insert(entry.name, words).is_some() {
            return Err("an entry is there twice".to_owned().into());
        }
    }
    if found == due.entries {
        return Ok(());
    }
    let differ = due.entries.iter().filter(|(k, v)| found.get(*k) != Some(*v)).count();
    Err(format!(
        "{} entries, should be {}; {differ} are missing or differ",
        found.len(),
        due.entries.len()
    )
    .into())
}
