//! Judging the disks after a crash: import, audit, bookkeeping, content.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use base::{ObjectId, Txg};
use device::sim::Image;
use dmu::{Io, Object, Objset, Zap};
use dsl::DslDataset;
use dsl::write::Ratios;
use ondisk::label::usable_size;
use spa::audit::{self, Verify};
use spa::{FoundPool, LeafLabels, Leaves, Purpose, Spa};
use zio::BlockCache;

use crate::image::{Range, Tap};
use crate::memo::{Known, Memo};
use crate::model::{CHUNK, Content, Model, Obj};
use crate::pool::{SimLeaves, find, import};

/// What is expected of the disks.
#[derive(Clone, Debug, Default)]
pub struct Expect {
    /// The newest group that somebody was told is on disk.
    pub promised: Option<Txg>,
    /// These disks are not there.
    pub without: Vec<usize>,
    /// Copies and columns may be wrong, as long as everything can be read.
    pub damage: bool,
    /// Groups before the newest must be whole too.
    pub rewind: bool,
    /// The first group of the run: there is no going back behind it.
    pub first: Txg,
}

/// Groups for which frees wait.
const DEFER: u64 = 2;

fn text(what: &str, e: base::Error) -> String {
    format!("{what}: {e}")
}

/// Bytes at both ends of a disk that labels are in.
const LABELS: u64 = 512 << 10;

/// Reads of labels, and others.
fn split(images: &[Image], ranges: Vec<Range>) -> (Vec<Range>, Vec<Range>) {
    let size = |disk: usize| images.get(disk).map_or(0, Image::size);
    ranges.into_iter().partition(|r| {
        r.offset + r.len <= LABELS || r.offset >= usable_size(size(r.disk)).saturating_sub(LABELS)
    })
}

/// Imports what `images` hold and compares it with the model; the group found, or
/// `None` if there is no pool yet and none was promised.
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
    if let Some(txg) = memo.whole(images) {
        promised(model, expect, txg)?;
        return Ok(Some(txg));
    }
    let tap = Arc::new(Tap::default());
    let leaves = SimLeaves::of_images(images, &expect.without, &tap);
    let found = find(&leaves).map_err(|e| text("looking for the pool", e))?;
    let Some(found) = found else {
        return match expect.promised {
            None => Ok(None),
            Some(t) => Err(format!("there is no pool, although group {t} was promised")),
        };
    };
    let spa = match import(&leaves, &found, cache, None) {
        Ok(spa) => spa,
        Err(_) if expect.promised.is_none() => return Ok(None),
        Err(e) => return Err(text("import", e)),
    };
    let (txg, root) = (spa.uberblock().txg, spa.uberblock().root_bp);
    promised(model, expect, txg)?;
    let known = memo.body(images, txg, &root);
    if known.is_none() {
        verdict(&spa, model, txg, expect.damage)?;
    }
    let (in_labels, read) = split(images, tap.take());
    memo.keep(images, txg, root, in_labels, known.unwrap_or(read));
    drop(spa);
    if !expect.damage {
        labels(&leaves, txg)?;
    }
    if expect.rewind {
        rewind(images, &leaves, &found, model, txg, expect, cache, memo)?;
    }
    Ok(Some(txg))
}

/// Whether all is there that somebody was told is on disk. A group in which nothing
/// changed is not written.
fn promised(model: &Model, expect: &Expect, txg: Txg) -> Result<(), String> {
    match expect.promised.filter(|p| txg < *p && !model.same(txg, *p)) {
        Some(p) => Err(format!("group {p} was promised, but {txg} is the newest")),
        None => Ok(()),
    }
}

/// Everything that must hold of an open pool in group `txg`.
///
/// # Errors
/// What is wrong.
pub fn verdict(spa: &Spa, model: &Model, txg: Txg, damage: bool) -> Result<(), String> {
    let at = |e: String| format!("group {txg}: {e}");
    compare(spa, model, txg).map_err(at)?;
    audit(spa, damage).map_err(at)?;
    books(spa).map_err(at)
}

/// Some label of each disk must not be newer than the uberblock (chapter 01 §6).
fn labels(leaves: &SimLeaves, txg: Txg) -> Result<(), String> {
    for path in leaves.list().unwrap_or_default() {
        let leaf = leaves.open(&path, Purpose::Probe).map_err(|e| text("labels", e))?;
        let labels = LeafLabels::read(&*leaf.device).map_err(|e| text("labels", e))?;
        if labels.config_at(txg).is_none() {
            let n = leaf.device.describe();
            return Err(format!("group {txg}: no label that is not newer on {n}"));
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
) -> Result<(), String> {
    // Groups in which nothing happens count, though they leave no uberblock: what the
    // group under way may overwrite goes by its own number.
    let Some(under_way) = model.next_change(txg) else { return Ok(()) };
    let from = Txg(under_way.0.saturating_sub(DEFER + 1).max(expect.first.0));
    for group in memo.groups(from, txg) {
        if memo.group(images, group) != Known::Changed {
            continue;
        }
        let spa = import(leaves, found, cache, Some(group));
        let spa = spa.map_err(|e| text(&format!("import of {group} before {txg}"), e))?;
        let got = spa.uberblock().txg;
        verdict(&spa, model, got, expect.damage).map_err(|e| format!("{e} (before {txg})"))?;
    }
    Ok(())
}

fn audit(spa: &Spa, damage: bool) -> Result<(), String> {
    let options = audit::Options { verify: Verify::All, leaks: true, threads: 1 };
    let report = spa.audit(options, &()).map_err(|e| text("audit", e))?;
    let whole = damage || report.damaged == 0;
    if report.is_clean() && report.leaked == 0 && report.problems.is_empty() && whole {
        return Ok(());
    }
    let first: Vec<String> = report.problems.iter().take(4).map(|p| format!("{p:?}")).collect();
    Err(format!(
        "audit: {} unreadable, {} bad claims, {} bytes leaked, {} damaged copies; {}",
        report.unreadable,
        report.bad_claims,
        report.leaked,
        report.damaged,
        first.join("; ")
    ))
}

/// The DSL's sums and counts.
fn books(spa: &Spa) -> Result<(), String> {
    let tree = spa.zio().tree();
    let ids: Vec<_> = tree.top_ids().collect();
    let ratios: Vec<u64> = ids.iter().map(|id| tree.deflate_ratio(*id).unwrap_or(512)).collect();
    let wrong = dsl::write::check(spa.mos(), &Ratios::new(ratios));
    let wrong = wrong.map_err(|e| text("bookkeeping", e))?;
    if wrong.is_empty() {
        return Ok(());
    }
    let first: Vec<String> = wrong.iter().take(4).map(ToString::to_string).collect();
    Err(format!("bookkeeping: {} rules broken: {}", wrong.len(), first.join("; ")))
}

/// Names and content of all datasets and snapshots.
fn compare(spa: &Spa, model: &Model, txg: Txg) -> Result<(), String> {
    let state = model.state(txg);
    let comment = spa.config().comment.as_ref().and_then(|c| c.to_str()).map(str::to_owned);
    let due = model.comments(txg);
    if !due.is_empty() && !comment.as_ref().is_some_and(|c| due.contains(c)) {
        return Err(format!("the comment is {comment:?}, should be one of {due:?}"));
    }
    let mut heads = BTreeMap::new();
    let mut snaps = BTreeMap::new();
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
    same_names("snapshots", snaps.keys(), state.snaps.keys())?;
    for (name, head) in &heads {
        let (ds, at) = state.heads[name];
        dataset(head, &model.content(ds, at)).map_err(|e| format!("{name}: {e}"))?;
    }
    for (name, snap) in &snaps {
        let (ds, at) = state.snaps[name];
        let said = dataset(snap, &model.content(ds, at));
        said.map_err(|e| format!("{}@{}: {e}", name.0, name.1))?;
    }
    Ok(())
}

fn same_names<'a, N: Ord + std::fmt::Debug + 'a>(
    what: &str,
    found: impl Iterator<Item = &'a N>,
    due: impl Iterator<Item = &'a N>,
) -> Result<(), String> {
    let (found, due): (BTreeSet<_>, BTreeSet<_>) = (found.collect(), due.collect());
    if found == due {
        return Ok(());
    }
    let more: Vec<_> = found.difference(&due).collect();
    let less: Vec<_> = due.difference(&found).collect();
    Err(format!("{what}: {more:?} should not be there, {less:?} should"))
}

fn dataset(ds: &DslDataset, due: &Content) -> Result<(), String> {
    let os = ds.open_objset().map_err(|e| text("object set", e))?;
    let Some(os) = os else { return Err("no object set".to_owned()) };
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
        return Err(format!("objects {more:?} should not be there, {less:?} should"));
    }
    for (id, obj) in due {
        object(&os, *id, obj).map_err(|e| format!("object {id}: {e}"))?;
    }
    Ok(())
}

fn object(os: &Arc<Objset>, id: u64, due: &Obj) -> Result<(), String> {
    if due.unknown {
        return Ok(());
    }
    let object = os.object(ObjectId(id), Io::WAIT).map_err(|e| text("dnode", e))?;
    if object.dnode().bonus != due.bonus {
        return Err("another bonus".to_owned());
    }
    if due.zap {
        return entries(object, due);
    }
    if object.block_size() != u64::from(due.block_size) {
        return Err(format!("blocks of {} bytes, not {}", object.block_size(), due.block_size));
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
                return Err(format!("block {blkid}: other bytes at {}", n * CHUNK));
            }
            seen += usize::from(due.chunks.contains_key(&n));
        }
    }
    if seen != due.chunks.len() {
        let lost = due.chunks.len() - seen;
        return Err(format!("{lost} sectors of {} are holes", due.chunks.len()));
    }
    Ok(())
}

fn entries(object: Object, due: &Obj) -> Result<(), String> {
    let zap = Zap::open(object, Io::WAIT).map_err(|e| text("ZAP", e))?;
    let all = zap.entries().map_err(|e| text("ZAP", e))?;
    let mut found = BTreeMap::new();
    for entry in all {
        let words = entry.value.u64s().ok_or_else(|| "an entry is no number".to_owned())?;
        if found.insert(entry.name, words).is_some() {
            return Err("an entry is there twice".to_owned());
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
    ))
}
