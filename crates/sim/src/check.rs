//! Judging the disks after a crash: import, audit, bookkeeping, content.
//!
//! # Theory
//! Where no disk has more than the pool's redundancy makes up for, everything must be
//! there. Elsewhere ([`Expect::detect`]) the engine may report errors, but what it does
//! give must be right: damage is noticed, never taken for content.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use base::{ErrorKind, ObjectId, Txg};
use device::sim::Image;
use dmu::{Io, Object, Objset, Zap};
use dsl::DslDataset;
use dsl::write::Ratios;
use ondisk::label::usable_size;
use spa::audit::{self, Verify};
use spa::{FoundPool, LeafLabels, Leaves, Purpose, Spa};
use zio::BlockCache;

use crate::image::{BadSectors, Range, Tap};
use crate::memo::{Manner, Memo, PriorVerdict};
use crate::model::{CHUNK, Content, Model, Obj};
use crate::pool::{SimLeaves, find, import};

/// What is expected of the disks.
#[derive(Clone, Debug, Default)]
pub struct Expect {
    /// The newest group that somebody was told is on disk.
    pub promised: Option<Txg>,
    /// Disks that are not there, and whether copies and columns may be wrong, as long as
    /// everything can be read.
    pub manner: Manner,
    /// These sectors cannot be read.
    pub bad: Option<BadSectors>,
    /// More may be wrong than can be made up for: it must be noticed.
    pub detect: bool,
    /// Groups before the newest must be whole too.
    pub rewind: bool,
    /// The first group of the run: there is no going back behind it.
    pub first: Txg,
}

/// Something wrong.
#[derive(Clone, Debug)]
pub struct Bad {
    what: String,
    /// The engine itself says that something is damaged.
    told: bool,
}

impl fmt::Display for Bad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl From<String> for Bad {
    fn from(what: String) -> Bad {
        Bad { what, told: false }
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

/// Lets what the engine told of pass, if it may.
fn noticed(done: Result<(), Bad>, detect: bool) -> Result<Integrity, Bad> {
    match done {
        Ok(()) => Ok(Integrity::Whole),
        Err(bad) if bad.told && detect => Ok(Integrity::Damaged),
        Err(bad) => Err(bad),
    }
}

/// Groups for which frees wait.
const DEFER: u64 = 2;

fn text(what: &str, e: base::Error) -> Bad {
    let kinds = [ErrorKind::Corrupt, ErrorKind::Checksum, ErrorKind::Io, ErrorKind::Missing];
    Bad { what: format!("{what}: {e}"), told: kinds.contains(&e.kind()) }
}

/// Bytes at both ends of a disk that labels are in.
const LABELS: u64 = 512 << 10;

/// Reads of labels, and others.
pub(crate) fn split(images: &[Image], ranges: Vec<Range>) -> (Vec<Range>, Vec<Range>) {
    let size = |disk: usize| images.get(disk).map_or(0, Image::size);
    ranges.into_iter().partition(|r| {
        r.offset + r.len <= LABELS || r.offset >= usable_size(size(r.disk)).saturating_sub(LABELS)
    })
}

/// Imports what `images` hold and compares it with the model; the group found, or
/// `None` if there is no pool, and none was promised or its loss is noticed.
///
/// # Errors
/// What is wrong.
pub fn judge(
    images: &[Image],
    model: &Model,
    expect: &Expect,
    cache: &Arc<BlockCache>,
    memo: &Memo,
) -> Result<Option<Txg>, String> {
    judge_it(images, model, expect, cache, memo).map_err(|bad| bad.what)
}

fn judge_it(
    images: &[Image],
    model: &Model,
    expect: &Expect,
    cache: &Arc<BlockCache>,
    memo: &Memo,
) -> Result<Option<Txg>, Bad> {
    // What cannot be read is in no image.
    let remember = expect.bad.is_none();
    let known = if remember { memo.whole(images, &expect.manner) } else { None };
    if let Some(txg) = known {
        promised(model, expect, txg)?;
        return Ok(Some(txg));
    }
    let tap = Arc::new(Tap::default());
    let leaves = SimLeaves::of_images(images, &expect.manner.without, expect.bad, &tap);
    let lenient = expect.promised.is_none() || expect.detect;
    let found = find(&leaves).map_err(|e| text("looking for the pool", e));
    let found = match found {
        Ok(Some(found)) => found,
        Ok(None) if lenient => return Ok(None),
        Ok(None) => return Err("there is no pool, although one was promised".to_owned().into()),
        Err(bad) if bad.told && expect.detect => return Ok(None),
        Err(bad) => return Err(bad),
    };
    let spa = match import(&leaves, &found, cache, None) {
        Ok(spa) => spa,
        Err(_) if expect.promised.is_none() => return Ok(None),
        Err(e) => {
            let bad = text("import", e);
            return if bad.told && expect.detect { Ok(None) } else { Err(bad) };
        }
    };
    let (txg, root) = (spa.uberblock().txg, spa.uberblock().root_bp);
    promised(model, expect, txg)?;
    let known = if remember { memo.body(images, &expect.manner, txg, &root) } else { None };
    let mut whole = Integrity::Whole;
    if known.is_none() {
        whole = verdict(&spa, model, txg, expect)?;
    }
    if remember && whole == Integrity::Whole {
        let (in_labels, read) = split(images, tap.take());
        memo.keep(images, &expect.manner, txg, root, in_labels, known.unwrap_or(read));
    }
    drop(spa);
    if !expect.manner.damage {
        labels(&leaves, txg)?;
    }
    if expect.rewind {
        rewind(images, &leaves, &found, model, txg, expect, cache, memo)?;
    }
    Ok(Some(txg))
}

/// Whether all is there that somebody was told is on disk. A group in which nothing
/// changed is not written.
fn promised(model: &Model, expect: &Expect, txg: Txg) -> Result<(), Bad> {
    match expect.promised.filter(|p| txg < *p && !model.same(txg, *p)) {
        Some(p) => Err(format!("group {p} was promised, but {txg} is the newest").into()),
        None => Ok(()),
    }
}

/// Everything that must hold of an open pool in group `txg`.
fn verdict(spa: &Spa, model: &Model, txg: Txg, expect: &Expect) -> Result<Integrity, Bad> {
    let at = |bad: Bad| bad.within(&format!("group {txg}"));
    let mut found = compare(spa, model, txg, expect.detect).map_err(at)?;
    for done in [audit(spa, expect), books(spa)] {
        if noticed(done, expect.detect).map_err(at)? == Integrity::Damaged {
            found = Integrity::Damaged;
        }
    }
    Ok(found)
}

/// Some label of each disk must not be newer than the uberblock (chapter 01 §6).
fn labels(leaves: &SimLeaves, txg: Txg) -> Result<(), Bad> {
    for path in leaves.list().unwrap_or_default() {
        let leaf = leaves.open(&path, Purpose::Probe).map_err(|e| text("labels", e))?;
        let labels = LeafLabels::read(&*leaf.device).map_err(|e| text("labels", e))?;
        if labels.config_at(txg).is_none() {
            let n = leaf.device.describe();
            return Err(format!("group {txg}: no label that is not newer on {n}").into());
        }
    }
    Ok(())
}

/// The two groups before must be whole too: frees wait for two more (chapter 05 §6).
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
    // Groups in which nothing happens count, though they leave no uberblock: what the
    // group under way may overwrite goes by its own number.
    let Some(under_way) = model.next_change(txg) else { return Ok(()) };
    let from = Txg(under_way.0.saturating_sub(DEFER + 1).max(expect.first.0));
    for group in memo.groups(from, txg) {
        if memo.group(images, group) != PriorVerdict::Changed {
            continue;
        }
        let spa = import(leaves, found, cache, Some(group));
        let spa = spa.map_err(|e| text(&format!("import of {group} before {txg}"), e))?;
        let got = spa.uberblock().txg;
        let said = verdict(&spa, model, got, expect);
        said.map_err(|bad| bad.within(&format!("before group {txg}")))?;
    }
    Ok(())
}

pub(crate) fn audit(spa: &Spa, expect: &Expect) -> Result<(), Bad> {
    let report = spa.audit(AUDIT, &()).map_err(|e| text("audit", e))?;
    let whole = expect.manner.damage || report.damaged == 0;
    if report.is_clean() && report.leaked == 0 && report.problems.is_empty() && whole {
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
    // What hangs below an unreadable block seems to have leaked.
    Err(Bad { what, told: report.unreadable > 0 && report.bad_claims == 0 })
}

/// What an audit says of the pool on these disks.
///
/// # Errors
/// What is in the way of an import or of the audit.
pub fn report(images: &[Image]) -> Result<audit::Report, String> {
    let told = |e: base::Error| e.to_string();
    let leaves = SimLeaves::of_images(images, &[], None, &Arc::default());
    let found = find(&leaves).map_err(told)?.ok_or("there is no pool")?;
    let cache = Arc::new(BlockCache::of(crate::pool::CACHE).map_err(told)?);
    let spa = import(&leaves, &found, &cache, None).map_err(told)?;
    spa.audit(AUDIT, &()).map_err(told)
}

/// How pools are audited.
const AUDIT: audit::AuditOptions =
    audit::AuditOptions { verify: Verify::All, leaks: true, threads: 1 };

/// The DSL's sums and counts.
pub(crate) fn books(spa: &Spa) -> Result<(), Bad> {
    let tree = spa.zio().tree();
    let ids: Vec<_> = tree.top_ids().collect();
    let ratios: Vec<u64> = ids.iter().map(|id| tree.deflate_ratio(*id).unwrap_or(512)).collect();
    let wrong = dsl::write::check(spa.mos(), &Ratios::new(ratios));
    let wrong = wrong.map_err(|e| text("bookkeeping", e))?;
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
            heads.insert(dir.name().to_owned(), head);
            Ok(())
        });
        walked.map_err(|e| text("datasets", e))?;
        same_names("datasets", heads.keys(), state.heads.keys())?;
        same_names("snapshots", snaps.keys(), state.snaps.keys())
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

fn same_names<'a, N: Ord + std::fmt::Debug + 'a>(
    what: &str,
    found: impl Iterator<Item = &'a N>,
    due: impl Iterator<Item = &'a N>,
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
        match object(&os, *id, obj).map_err(|bad| bad.within(&format!("object {id}"))) {
            // The others must be right all the same.
            Err(bad) if detect && bad.told => first = first.and(Err(bad)),
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
    if spill.map(|(buf, _)| buf.to_vec()) != due.spill {
        return Err("another spill block".to_owned().into());
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
