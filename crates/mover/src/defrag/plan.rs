//! What a defragmentation moves: files that are read with jumps, and fragmented metaslabs.
//!
//! # Theory
//! *Files.* The heads are looked at in the order of their objects, and the objects of each in
//! ascending order. A file whose layout score is below the target is laid out: its blocks in the
//! order of their ids, the newest version of each first, then what only older snapshots or clones
//! have. A part of the work ([`FileChunk`]) has so many files that their blocks fit in memory; their
//! versions are found by one walk over the lineage.
//!
//! *Room.* Files lie in one piece only where free space does: in *large* free ranges. What a file
//! leaves behind is as scattered as the file was. So a part of the files that takes more than
//! there is in large ranges is laid out in pieces ([`FilePiece`]), and free space is joined
//! between them. Files go to metaslabs whose free space is mostly in large ranges, and what is in
//! fragmented ones goes to the holes of others, each as long as there is room ([`FreeLayout`]).
//!
//! *Free space.* A metaslab is worth emptying if enough free space in it is in small segments,
//! beside what must be copied to join it. The fragmentation of a metaslab, in percent, is the
//! share of its free space that counts as lost; it is computed from the histogram of its space map,
//! as `zpool list` does. Metaslabs are taken by what is gained for each byte copied, as long as
//! the rest of the pool has twice the room for what is in them.
//!
//! # Invariants
//! * Each file, and each metaslab, is chosen at most once in a phase. So a phase ends.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use base::{ObjectId, Result};
use dmu::{Io, Objset};
use dsl::write::relocate::RelocatableDataset;
use metaslab::{Fragmentation, FreeHistogram, MsKey, Seg, SpaceClass};
use ondisk::ObjType;
use ondisk::blkptr::Block;
use ondisk::objset::ObjsetType;
use spa::engine::{BlockPosition, Writer};

use crate::find::{FindFlow, FoundBlocks, datasets, find_in};
use crate::layout::{LayoutScore, LayoutWalk};

use crate::job::{MoveRecord, WHOLE_SCORE};

/// Blocks of the heads' files in a part of the work.
const CHUNK_BLOCKS: u64 = 200_000;
/// Objects that are looked at in a part of the work.
const CHUNK_OBJECTS: u64 = 100_000;
/// Bytes in the metaslabs that are emptied in a part of the work.
const CHUNK_BYTES: u64 = 4 << 30;
/// log2 of the bytes of a large free range.
const LARGE: usize = 20;
/// Eighths of the free space that are in large ranges where it counts as joined.
const JOINED: u64 = 7;
/// A metaslab is worth emptying from this fragmentation on.
const FRAGMENTED: u64 = 25;
/// Bytes copied for each byte of free space that is joined, at most.
const COST_MAX: u64 = 8;

/// The place of a block in the new order: lineage, object, level, how many newer versions of it
/// there are, and its id.
pub(super) type LayoutKey = (u64, u64, i8, u32, u64);

/// Blocks of files in their new order, as many as fit into large free ranges.
#[derive(Debug, Default)]
pub(super) struct FilePiece {
    pub(super) blocks: Vec<(BlockPosition, Block)>,
    /// Blocks of the files that are never moved.
    pub(super) immovable: u64,
    /// The last block, if there are more.
    pub(super) last: Option<LayoutKey>,
    /// Allocated bytes of these.
    pub(super) bytes: u64,
    /// Those of the blocks behind them.
    pub(super) left: u64,
}

/// Files to be laid out together.
#[derive(Debug, Default)]
pub(super) struct FileChunk {
    /// The head, and their objects in it.
    pub(super) files: Option<(RelocatableDataset, BTreeSet<u64>)>,
    /// The score of all files that were looked at, and of those in `files`.
    pub(super) looked_at: LayoutScore,
    /// See `looked_at`.
    pub(super) bad: LayoutScore,
    /// Stored bytes of the files' blocks in the head.
    pub(super) bytes: u64,
    /// Where the next part begins; `None` at the end.
    pub(super) next: Option<(u64, u64)>,
}

/// A score in thousandths; a file without one needs nothing.
pub(super) fn thousandths(score: &LayoutScore) -> u64 {
    (score.in_sequence * WHOLE_SCORE).checked_div(score.steps).unwrap_or(WHOLE_SCORE)
}

/// The heads that a defragmentation is about, in the order of their objects.
pub(super) fn heads(writer: &Writer, record: &MoveRecord) -> Result<Vec<RelocatableDataset>> {
    let mut all = datasets(writer)?;
    all.retain(|ds| ds.is_head && (record.is_whole_pool() || record.datasets.contains(&ds.object)));
    all.sort_unstable_by_key(|ds| ds.object);
    Ok(all)
}

fn open(writer: &Writer, ds: &RelocatableDataset) -> Result<Arc<Objset>> {
    Objset::open_stored(Arc::clone(writer.zio()), ds.object, ds.root, Io::WAIT)
}

fn has_content(object_type: ObjType) -> bool {
    matches!(object_type, ObjType::PLAIN_FILE_CONTENTS | ObjType::ZVOL)
}

/// The score of an object, and its stored bytes.
fn score(os: &Arc<Objset>, id: u64) -> Result<(LayoutScore, u64)> {
    let object = os.object(ObjectId(id), Io::WAIT)?;
    if !has_content(object.object_type()) {
        return Ok(Default::default());
    }
    let mut walk = LayoutWalk::default();
    walk.object(&object, u64::MAX, Io::WAIT)?;
    Ok((walk.score(), object.dnode().used))
}

/// Looks at files from `from` on, until there is enough to do, without the blocks of their
/// older versions. Files that vanish meanwhile, or cannot be read, are left out.
fn look(
    writer: &Writer,
    heads: &[RelocatableDataset],
    target: u64,
    from: (u64, u64),
    most: u64,
) -> Result<FileChunk> {
    let mut chunk = FileChunk::default();
    for ds in heads.iter().filter(|ds| ds.object >= from.0) {
        let Ok(os) = open(writer, ds) else { continue };
        if !matches!(os.kind(), ObjsetType::Zfs | ObjsetType::Zvol) {
            continue;
        }
        let mut last = if ds.object == from.0 { from.1 } else { 0 };
        let (mut files, mut seen) = (BTreeSet::new(), 0);
        while let Ok(Some(ObjectId(id))) = os.next_object(ObjectId(last), Io::WAIT) {
            last = id;
            seen += 1;
            let Ok((one, bytes)) = score(&os, id) else { continue };
            chunk.looked_at.merge(&one);
            if thousandths(&one) < target {
                chunk.bad.merge(&one);
                chunk.bytes += bytes;
                files.insert(id);
            }
            if chunk.bad.blocks >= most || seen >= CHUNK_OBJECTS {
                chunk.next = Some((ds.object, last));
                chunk.files = Some((ds.clone(), files));
                return Ok(chunk);
            }
        }
        if !files.is_empty() {
            chunk.next = Some((ds.object + 1, 0));
            chunk.files = Some((ds.clone(), files));
            return Ok(chunk);
        }
    }
    Ok(chunk)
}

/// The next files to lay out.
pub(super) fn files(writer: &Writer, record: &MoveRecord) -> Result<FileChunk> {
    let heads = heads(writer, record)?;
    look(writer, &heads, record.target, record.position, CHUNK_BLOCKS)
}

/// Finds the blocks of files behind `after`, at most `room` bytes of them, or all if `room` is
/// less than `least`.
pub(super) fn piece(
    writer: &Writer,
    lineage: u64,
    files: &BTreeSet<u64>,
    after: Option<LayoutKey>,
    (room, least): (u64, u64),
) -> Result<FilePiece> {
    if files.is_empty() {
        return Ok(FilePiece::default());
    }
    let wanted = |at: &BlockPosition, _: &Block| match files.contains(&at.object) {
        true if at.level == 0 => FindFlow::Take,
        true => FindFlow::Descend,
        // Objects are below the meta-dnode.
        false if at.object == 0 => FindFlow::Descend,
        false => FindFlow::Skip,
    };
    let FoundBlocks { blocks, immovable } = find_in(writer, Some(lineage), &wanted)?;
    let mut list = in_layout_order(blocks);
    if let Some(after) = after {
        let done = list.partition_point(|(key, _)| *key <= after);
        list.drain(..done);
    }
    let asize = |block: &Block| block.dvas().fold(0u64, |sum, d| sum.saturating_add(d.asize.0));
    let (mut all, mut bytes, mut fitting) = (0u64, 0u64, 0usize);
    for (_, (_, block)) in &list {
        all = all.saturating_add(asize(block));
        if all <= room || room < least {
            (bytes, fitting) = (all, fitting + 1);
        }
    }
    let last = match fitting.checked_sub(1).and_then(|n| list.get(n)) {
        Some((key, _)) if fitting < list.len() => Some(*key),
        // Nothing fits: then all come, wherever they fit.
        _ => {
            (bytes, fitting) = (all, list.len());
            None
        }
    };
    list.truncate(fitting);
    let blocks = list.into_iter().map(|(_, block)| block).collect();
    Ok(FilePiece { blocks, immovable, last, bytes, left: all - bytes })
}

/// The newest version of each block of a file, in order, before the older ones. The given list
/// is in the order of positions, and the newest block at a position is the first.
fn in_layout_order(
    blocks: Vec<(BlockPosition, Block)>,
) -> Vec<(LayoutKey, (BlockPosition, Block))> {
    let mut out: Vec<(LayoutKey, (BlockPosition, Block))> = Vec::with_capacity(blocks.len());
    for (at, block) in blocks {
        let newer = match out.last() {
            Some((key, (before, _))) if *before == at => key.3.saturating_add(1),
            _ => 0,
        };
        out.push(((at.lineage, at.object, at.level, newer, at.blkid), (at, block)));
    }
    out.sort_by_key(|(key, _)| *key);
    out
}

/// The metaslabs that take files, by how their free space lies.
#[derive(Debug, Default)]
pub(super) struct FreeLayout {
    /// Those whose free space is mostly in large ranges.
    pub(super) joined: Vec<MsKey>,
    /// The other ones.
    pub(super) scattered: Vec<MsKey>,
    /// Bytes in large free ranges of the joined ones.
    pub(super) room: u64,
}

impl FreeLayout {
    pub(super) fn of(writer: &Writer) -> Result<FreeLayout> {
        let (space, tree) = (writer.space(), writer.zio().tree());
        let mut out = FreeLayout::default();
        for (vdev, class) in space.vdevs() {
            if class != SpaceClass::Normal || !space.is_allocating(vdev) {
                continue;
            }
            let ashift = tree.top(vdev)?.ashift();
            let all = space.metaslab_status(vdev)?.into_iter().zip(space.free_histograms(vdev)?);
            for (ms, (status, counts)) in (0..).zip(all) {
                let key = MsKey { vdev, ms };
                let (large, free) = match (space.free_sizes(key)?, counts) {
                    (Some(sizes), _) => (large_bytes(&sizes.bytes), sizes.space()),
                    (None, Some(counts)) => about(&counts, ashift),
                    (None, None) if status.allocated == 0 => (status.seg.len, status.seg.len),
                    (None, None) => (0, 0),
                };
                if large > 0 && large >= free / 8 * JOINED {
                    out.joined.push(key);
                    out.room = out.room.saturating_add(large);
                } else {
                    out.scattered.push(key);
                }
            }
        }
        Ok(out)
    }
}

/// Bytes in large ranges.
fn large_bytes(by_class: &[u64; 64]) -> u64 {
    by_class.iter().skip(LARGE).fold(0, |sum, n| sum.saturating_add(*n))
}

/// The same, and all bytes, about: a range is taken for half as much again as its class.
fn about(histogram: &FreeHistogram, ashift: u32) -> (u64, u64) {
    let mut bytes = [0u64; 64];
    for (to, (shift, n)) in bytes.iter_mut().skip(ashift as usize).zip((ashift..).zip(histogram)) {
        let each = 1u64.checked_shl(shift).map_or(0, |size| size / 2 * 3);
        *to = n.saturating_mul(each);
    }
    (large_bytes(&bytes), bytes.iter().fold(0, |sum, n| sum.saturating_add(*n)))
}

/// The score of these files now.
pub(super) fn score_of(writer: &Writer, head: u64, files: &BTreeSet<u64>) -> Result<LayoutScore> {
    let mut sum = LayoutScore::default();
    let all = datasets(writer)?;
    let Some(ds) = all.iter().find(|ds| ds.object == head) else { return Ok(sum) };
    let os = open(writer, ds)?;
    for &id in files {
        if let Ok((one, _)) = score(&os, id) {
            sum.merge(&one);
        }
    }
    Ok(sum)
}

/// A metaslab that is worth emptying.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FragmentedMetaslab {
    pub(super) key: MsKey,
    pub(super) seg: Seg,
    /// Bytes to copy.
    pub(super) allocated: u64,
    /// Free bytes that count as lost.
    pub(super) lost: u64,
}

/// The metaslabs that are worth emptying, the best first. `done`: those that were tried.
pub(super) fn metaslabs(
    writer: &Writer,
    done: &BTreeSet<MsKey>,
) -> Result<Vec<FragmentedMetaslab>> {
    let (space, tree) = (writer.space(), writer.zio().tree());
    let mut all = Vec::new();
    for (vdev, class) in space.vdevs() {
        let moves = matches!(class, SpaceClass::Normal | SpaceClass::Special);
        if !moves || !space.is_allocating(vdev) {
            continue;
        }
        let ashift = tree.top(vdev)?.ashift();
        let now = space.metaslab_status(vdev)?.into_iter().zip(space.free_histograms(vdev)?);
        for (ms, (status, histogram)) in (0..).zip(now) {
            let key = MsKey { vdev, ms };
            let Some(histogram) = histogram.filter(|_| !done.contains(&key)) else { continue };
            let Fragmentation(percent) = Fragmentation::of_histogram(&histogram, ashift);
            let (free, percent) = (status.seg.len - status.allocated, percent.unwrap_or(0));
            let lost = free / 100 * percent;
            let worth = percent >= FRAGMENTED && status.allocated <= lost * COST_MAX;
            if worth && status.allocated > 0 {
                all.push(FragmentedMetaslab {
                    key,
                    seg: status.seg,
                    allocated: status.allocated,
                    lost,
                });
            }
        }
    }
    let gain = |ms: &FragmentedMetaslab| u128::from(ms.lost) * 1000 / u128::from(ms.allocated);
    all.sort_by_key(|ms| (std::cmp::Reverse(gain(ms)), ms.key));
    Ok(all)
}

/// Those that can be emptied together: the others have room for their blocks.
pub(super) fn metaslab_group(
    writer: &Writer,
    done: &BTreeSet<MsKey>,
) -> Result<Vec<FragmentedMetaslab>> {
    let mut room: BTreeMap<_, u64> = BTreeMap::new();
    let (mut group, mut bytes) = (Vec::new(), 0u64);
    for ms in metaslabs(writer, done)? {
        let vdev = ms.key.vdev;
        let left = match room.entry(vdev) {
            std::collections::btree_map::Entry::Occupied(left) => left.into_mut(),
            std::collections::btree_map::Entry::Vacant(left) => {
                let totals = writer.space().vdev_totals(vdev)?;
                left.insert(totals.capacity.saturating_sub(totals.allocated))
            }
        };
        // Its own free space is no room, and twice what is in it must be elsewhere.
        let needs = ms.seg.len + ms.allocated;
        if needs > *left || (bytes > 0 && bytes + ms.allocated > CHUNK_BYTES) {
            continue;
        }
        *left -= needs;
        bytes += ms.allocated;
        group.push(ms);
    }
    Ok(group)
}

/// What a defragmentation would do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DefragEstimate {
    /// The score of all files that it looks at.
    pub score: LayoutScore,
    /// The score of the files below the target.
    pub bad: LayoutScore,
    /// Files below the target.
    pub files: u64,
    /// Their bytes.
    pub file_bytes: u64,
    /// Metaslabs that are worth emptying, their bytes, and the free space that is joined.
    pub metaslabs: u64,
    /// See `metaslabs`.
    pub metaslab_bytes: u64,
    /// See `metaslabs`.
    pub lost_bytes: u64,
}

/// Estimates a defragmentation; nothing is changed.
///
/// # Errors
/// Those of reading the MOS.
pub(crate) fn estimate(
    writer: &Writer,
    record: &MoveRecord,
    stopped: &dyn Fn() -> bool,
) -> Result<DefragEstimate> {
    let mut out = DefragEstimate::default();
    if record.is_whole_pool() {
        for ms in metaslabs(writer, &BTreeSet::new())? {
            out.metaslabs += 1;
            out.metaslab_bytes += ms.allocated;
            out.lost_bytes += ms.lost;
        }
    }
    let (heads, mut from) = (heads(writer, record)?, Some((0, 0)));
    while let Some(at) = from.filter(|_| !stopped()) {
        let chunk = look(writer, &heads, record.target, at, CHUNK_BLOCKS)?;
        out.score.merge(&chunk.looked_at);
        out.bad.merge(&chunk.bad);
        out.files += chunk.files.map_or(0, |(_, files)| files.len() as u64);
        out.file_bytes += chunk.bytes;
        from = chunk.next;
    }
    Ok(out)
}
