//! Writing the blocks of many objects in waves: level 0 of all of them, then level 1, and
//! so on. If there are very many objects, some are written at a time, so that a wave's
//! memory does not grow with the txg.
//!
//! Within a wave jobs are prepared by many threads, placed in order, and submitted
//! ([`zio::chunks_in_order`]). A pointer is complete when its block was placed, so the next
//! wave does not wait for a device.

use base::rt::{Mutex, fan_out};
use base::{Buf, Error, Result, Txg};
use ondisk::blkptr::Seal;
use ondisk::{BlkPtr, ObjType};
use zio::{BlockChange, DedupMode, Io, OutagePolicy, Outcome, PackedForm, Write};

use super::handle::Spill;
use super::policy::{BlockKind, ObjsetProps};
use super::seal::node_seal;
use super::sync::{Events, SyncCtx};
use super::work::{NeededBlock, Work, fill_of, little, spill_type};

/// Indirect blocks read at once on the way down.
const READERS: usize = 16;
/// Up to so many reads are done without threads of their own.
const READS_INLINE: usize = 2;
/// Bytes that are placed and submitted at a time: enough that a RAID-Z leaf gets large
/// operations.
const CHUNK_BYTES: u64 = 2 << 20;
/// Objects of which blocks are written in one wave.
const OBJECTS: usize = 2048;
/// The block id of a spill block in a wave.
const SPILL: u64 = u64::MAX;

/// A block to write.
struct WaveBlock {
    work: usize,
    level: u8,
    /// [`SPILL`] for a spill block.
    blkid: u64,
    data: Buf,
    fill: u64,
    old: BlkPtr,
    change: BlockChange,
    /// `data` is compressed already.
    packed: Option<PackedForm>,
    /// Of a block of an encrypted dataset.
    seal: Option<Seal>,
    object_type: ObjType,
}

impl WaveBlock {
    /// Bytes of the block's content.
    fn lsize(&self) -> u64 {
        self.packed.map_or(self.data.len() as u64, |form| form.lsize.into())
    }
}

/// Writes all changed blocks of these objects, up to the pointers in their dnodes.
pub(crate) fn write_all(
    ctx: &SyncCtx<'_>,
    props: &ObjsetProps,
    works: &mut [Work],
    events: &mut dyn Events,
) -> Result<()> {
    works.chunks_mut(OBJECTS).try_for_each(|some| write_some(ctx, props, some, events))
}

fn write_some(
    ctx: &SyncCtx<'_>,
    props: &ObjsetProps,
    works: &mut [Work],
    events: &mut dyn Events,
) -> Result<()> {
    for work in works.iter_mut() {
        work.cut(ctx, events)?;
        if work.allocated {
            work.add_levels();
        }
    }
    descend(ctx, works)?;
    let mut jobs = Vec::new();
    for (i, work) in works.iter_mut().enumerate() {
        early_blocks(ctx, work, events)?;
        data_jobs(i, work, props.sealed, &mut jobs)?;
        spill_job(ctx, i, work, &mut jobs, events)?;
    }
    wave(ctx, props, works, jobs, events)?;
    let top = works.iter().map(|w| w.dn.levels).max().unwrap_or(1);
    for level in 1..top {
        let mut jobs = Vec::new();
        for (i, work) in works.iter_mut().enumerate() {
            node_jobs(ctx, i, work, (level, props.sealed), &mut jobs, events)?;
        }
        wave(ctx, props, works, jobs, events)?;
    }
    works.iter_mut().try_for_each(Work::finish)
}

/// Loads the indirect blocks above all written blocks, from the top.
fn descend(ctx: &SyncCtx<'_>, works: &mut [Work]) -> Result<()> {
    let top = works.iter().map(|w| w.dn.levels).max().unwrap_or(1);
    for level in (1..top).rev() {
        let mut wanted: Vec<(usize, NeededBlock)> = Vec::new();
        for (i, work) in works.iter_mut().enumerate() {
            wanted.extend(work.wanted(level)?.into_iter().map(|w| (i, w)));
        }
        let read = |w: &NeededBlock| Ok(little(&ctx.zio.read(&w.bp, Io::SYNC)?, w.bp.endian()));
        let results = Mutex::new(Vec::with_capacity(wanted.len()));
        if wanted.len() <= READS_INLINE {
            results.lock().extend(wanted.iter().enumerate().map(|(i, (_, w))| (i, read(w))));
        } else {
            let next = base::rt::atomic::AtomicUsize::new(0);
            fan_out(READERS.min(wanted.len()), |_| {
                loop {
                    let i = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    let Some((_, w)) = wanted.get(i) else { return };
                    let bytes = read(w);
                    results.lock().push((i, bytes));
                }
            });
        }
        let mut results = results.into_inner();
        results.sort_unstable_by_key(|(i, _)| *i);
        for (i, bytes) in results {
            let (work, w) = &wanted[i];
            let work = &mut works[*work];
            let bytes = bytes.map_err(|e: Error| e.in_object(work.id).at_block(w.level, w.blkid));
            work.loaded(w, bytes?);
        }
    }
    Ok(())
}

/// Puts the pointers of early blocks into the tree.
fn early_blocks(ctx: &SyncCtx<'_>, work: &mut Work, events: &mut dyn Events) -> Result<()> {
    for bp in std::mem::take(&mut work.wasted) {
        events.wasted(&bp)?;
    }
    let early = std::mem::take(&mut work.early);
    if early.is_empty() {
        return Ok(());
    }
    work.data.retain(|(blkid, _)| !early.contains_key(blkid));
    for (blkid, bp) in early {
        let old = work.pointer(0, blkid)?;
        work.replaced(ctx, &old, &bp);
        if !old.is_hole() {
            events.killed(&old)?;
        }
        events.born(&bp)?;
        work.set_pointer(0, blkid, &bp)?;
    }
    Ok(())
}

fn data_jobs(index: usize, work: &mut Work, sealed: bool, jobs: &mut Vec<WaveBlock>) -> Result<()> {
    for (blkid, data) in std::mem::take(&mut work.data) {
        let old = work.pointer(0, blkid)?;
        let fill = work.fills.get(&blkid).copied().unwrap_or(1);
        let change = work.moved.get(&blkid).copied().unwrap_or_default();
        let packed = work.packed.remove(&blkid);
        let object_type = work.dn.object_type;
        let of_form = packed.and_then(|form| form.seal);
        let seal = of_form.or_else(|| work.seals.get(&blkid).copied());
        if sealed != seal.is_some() {
            return Err(work.bug("a block of an encrypted dataset without its MAC"));
        }
        jobs.push(WaveBlock {
            work: index,
            level: 0,
            blkid,
            data,
            fill,
            old,
            change,
            packed,
            seal,
            object_type,
        });
    }
    Ok(())
}

fn spill_job(
    ctx: &SyncCtx<'_>,
    index: usize,
    work: &mut Work,
    jobs: &mut Vec<WaveBlock>,
    events: &mut dyn Events,
) -> Result<()> {
    let old = work.dn.spill.unwrap_or_default();
    let content = match &work.spill {
        Spill::Set(data) => Some((data.clone(), None)),
        Spill::Sealed(data, form) => Some((data.clone(), Some(*form))),
        Spill::Keep | Spill::Remove => None,
    };
    if matches!(work.spill, Spill::Remove) || !work.allocated {
        if !old.is_hole() {
            work.replaced(ctx, &old, &BlkPtr::default());
            events.killed(&old)?;
        }
        work.dn.spill = None;
        work.dn.flags &= !ondisk::dnode::flags::SPILL_BLKPTR;
    } else if let Some((data, packed)) = content {
        let object_type = spill_type(&work.dn);
        jobs.push(WaveBlock {
            work: index,
            level: 0,
            blkid: SPILL,
            data,
            fill: 1,
            old,
            change: BlockChange::Content,
            packed,
            seal: packed.and_then(|form| form.seal),
            object_type,
        });
    }
    Ok(())
}

/// Changed indirect blocks of one level. Those that lead only to holes become holes.
fn node_jobs(
    ctx: &SyncCtx<'_>,
    index: usize,
    work: &mut Work,
    (level, sealed): (u8, bool),
    jobs: &mut Vec<WaveBlock>,
    events: &mut dyn Events,
) -> Result<()> {
    let keys: Vec<_> =
        work.nodes.range((level, 0)..=(level, u64::MAX)).map(|(&key, _)| key).collect();
    for key in keys {
        let Some(node) = work.nodes.remove(&key) else { continue };
        match fill_of(&node.bytes) {
            Some(fill) => jobs.push(WaveBlock {
                work: index,
                level,
                blkid: key.1,
                seal: sealed.then(|| node_seal(&node.bytes)),
                data: node.bytes.freeze(),
                fill,
                old: node.old,
                change: BlockChange::Content,
                packed: None,
                object_type: work.dn.object_type,
            }),
            None => {
                let hole = work.node_hole(ctx, &node, level);
                if !node.old.is_hole() {
                    work.replaced(ctx, &node.old, &BlkPtr::default());
                    events.killed(&node.old)?;
                }
                work.set_pointer(level, key.1, &hole)?;
            }
        }
    }
    Ok(())
}

/// Blocks of one object that should be close together share an allocation hint.
pub(crate) fn hint(objset: u64, object: u64, level: u8, blkid: u64) -> u64 {
    objset ^ object.rotate_left(24) ^ u64::from(level) << 56 ^ (blkid >> 20).rotate_left(40)
}

/// Whether a job is placed right before or behind that of the block beside it.
fn in_run(jobs: &[WaveBlock], i: usize) -> bool {
    let beside = |a: &WaveBlock, b: &WaveBlock| {
        a.work == b.work && b.blkid != SPILL && a.blkid.checked_add(1) == Some(b.blkid)
    };
    let with = |from: usize| jobs.get(from..from + 2).is_some_and(|two| beside(&two[0], &two[1]));
    with(i) || i.checked_sub(1).is_some_and(with)
}

fn wave(
    ctx: &SyncCtx<'_>,
    props: &ObjsetProps,
    works: &mut [Work],
    jobs: Vec<WaveBlock>,
    events: &mut dyn Events,
) -> Result<()> {
    if jobs.is_empty() {
        return Ok(());
    }
    let kinds: Vec<_> = jobs.iter().map(|job| props_of(ctx, props, works, job)).collect();
    let placed = Mutex::new(Vec::with_capacity(jobs.len()));
    let write = |i: usize| {
        let job = &jobs[i];
        Write {
            object_type: job.object_type,
            level: job.level,
            data: &job.data,
            fill: job.fill,
            txg: ctx.txg,
            props: &kinds[i],
            old: &job.old,
            change: job.change,
            packed: job.packed,
            seal: job.seal,
            in_place: ctx.in_place,
            gangs: ctx.gangs,
            hint: hint(ctx.objset, works[job.work].id.0, job.level, job.blkid),
            in_run: in_run(&jobs, i),
            cache: props.keeps(job.level > 0 || job.object_type.is_metadata()),
            outage: OutagePolicy::WaitAlways,
        }
    };
    let bytes: u64 = jobs.iter().map(|job| job.data.len() as u64).sum();
    let chunk = (CHUNK_BYTES / (bytes / jobs.len() as u64).max(1)).clamp(8, 128);
    zio::chunks_in_order(
        ctx.threads,
        jobs.len(),
        chunk as usize,
        |i| {
            ctx.zio.tree().yield_to_log_writes();
            ctx.zio.prepare(&write(i))
        },
        |i, prepared| {
            let block = ctx.zio.place(prepared)?;
            placed.lock().push((i, block.bp, block.outcome));
            Ok(block)
        },
        |_, blocks| {
            ctx.zio.submit_all(blocks, ctx.writes);
            Ok(())
        },
    )?;
    let mut placed = placed.into_inner();
    placed.sort_unstable_by_key(|(i, ..)| *i);
    for (i, bp, outcome) in placed {
        settle(ctx, works, &jobs[i], &bp, outcome, events)?;
    }
    Ok(())
}

fn props_of(
    ctx: &SyncCtx<'_>,
    props: &ObjsetProps,
    works: &[Work],
    job: &WaveBlock,
) -> zio::WriteProps {
    let dn = &works[job.work].dn;
    let kind = BlockKind {
        object_type: job.object_type,
        level: job.level,
        spill: job.blkid == SPILL,
        size: job.lsize(),
        checksum: dn.checksum,
        compression: dn.compression,
    };
    let how = props.for_block(&kind, ctx.compress);
    // A block that moves would find itself.
    let dedup = if job.change == BlockChange::Content { how.dedup } else { DedupMode::Off };
    zio::WriteProps { dedup, ..how }
}

/// Puts a written block's pointer into the tree.
fn settle(
    ctx: &SyncCtx<'_>,
    works: &mut [Work],
    job: &WaveBlock,
    bp: &BlkPtr,
    outcome: Outcome,
    events: &mut dyn Events,
) -> Result<()> {
    let work = &mut works[job.work];
    match outcome {
        Outcome::Same | Outcome::Rewritten => {}
        _ => {
            work.replaced(ctx, &job.old, bp);
            if !job.old.is_hole() {
                events.killed(&job.old)?;
            }
            if !bp.is_hole() {
                events.born(bp)?;
            }
        }
    }
    if job.blkid != SPILL {
        return work.set_pointer(job.level, job.blkid, bp);
    }
    // `Live::set_spill` refuses content that would become a hole.
    if bp.is_hole() {
        return Err(work.bug("a spill block that is a hole"));
    }
    work.dn.spill = Some(*bp);
    work.dn.flags |= ondisk::dnode::flags::SPILL_BLKPTR;
    debug_assert!(bp.birth() == ctx.txg || bp.birth() == Txg::ZERO || outcome == Outcome::Same);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_consists_of_blocks_side_by_side_of_one_object() {
        let job = |(work, blkid)| WaveBlock {
            work,
            level: 0,
            blkid,
            data: Buf::default(),
            fill: 1,
            old: BlkPtr::default(),
            change: BlockChange::Content,
            packed: None,
            seal: None,
            object_type: ObjType::PLAIN_FILE_CONTENTS,
        };
        let runs = |blocks: &[(usize, u64)]| -> Vec<bool> {
            let jobs: Vec<WaveBlock> = blocks.iter().copied().map(job).collect();
            (0..jobs.len()).map(|i| in_run(&jobs, i)).collect()
        };
        assert_eq!(runs(&[(0, 7)]), [false]);
        assert_eq!(runs(&[(0, 0), (0, 1), (0, 3)]), [true, true, false]);
        assert_eq!(runs(&[(0, 3), (1, 4), (1, 5)]), [false, true, true]);
        assert_eq!(runs(&[(0, SPILL - 1), (0, SPILL), (1, 0)]), [false; 3]);
    }
}
