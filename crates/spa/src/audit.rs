//! Auditing a pool: every block pointer is found, its space compared with the space maps,
//! and its checksum verified (`zdb -b`, `-c`; chapter 09 §8.3).
//!
//! # Theory
//! The space maps are replayed into one bitmap ([`bits`]). All reachable blocks are marked
//! in another: the MOS, every dataset from its previous snapshot's txg on (so that each
//! block is visited once), the chains of intent logs, lists of deferred and asynchronous
//! frees, clones being deleted, and the space that only a checkpoint keeps. A sector marked
//! twice is allocated twice. A marked sector that is free in the maps will be overwritten.
//! An allocated sector without a mark is leaked. Blocks counted by dedup tables or block
//! reference tables are marked once, and the number of visits is compared with the table
//! ([`refs`]). Livelists are compared with the trees of their clones, and the mappings of
//! removed vdevs with the blocks that need them.
//!
//! # Departures from OpenZFS
//! zdb claims blocks in range trees one after the other and aborts at the first bad claim.
//! Here many threads mark bitmaps with atomic operations; nothing aborts, and all problems
//! are listed.
//!
//! # Invariants
//! * Nothing is written, and encrypted datasets need no key.
//! * Memory is two bits for each sector of metaslabs in use, one entry for each block in a
//!   reference table, and bounded lists of problems.
//!
//! Lock order: a metaslab's lock while maps are replayed, a shard of the statistics, and
//! the list of problems are leaves; none is held with another.

pub mod bits;
mod livelists;
pub mod log;
pub mod maps;
mod obsolete;
pub mod refs;
pub mod stats;
mod walk;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use base::rt::Mutex;
use base::{Dva, Error, Result, Txg, VdevId};
use dmu::traverse::{Bookmark, Options as WalkOptions, traverse};
use dmu::{Io, Objset};
use dsl::{DslDataset, bpobj};
use ondisk::bpobj::BpobjEntry;
use ondisk::config::VdevType;
use ondisk::removal::{JobState, Removing};
use ondisk::{BlkPtr, ObjType};
use vdev::AllocClass;

use crate::import::Spa;
use crate::space::PoolSpace;
use bits::{Claim, MapErrors, SpaceBits};
use refs::{DedupFault, Mismatch, References, TableFault};
use stats::{BlockStats, ROW_DEFERRED, row_of};
pub(crate) use walk::Owners;
use walk::{Copies, WALK_IO, WalkFindings, Walker};
pub use walk::{Owner, PROBLEMS_MAX, zdb_errno};

/// Bookmark level of intent log blocks (chapter 06 §16).
const LOG_LEVEL: i8 = -2;
/// Datasets walked at once.
const DATASETS_AT_ONCE: usize = 2;
/// A dataset gets one walker per this many bytes referenced.
const BYTES_PER_WALKER: u64 = 1 << 20;
/// A vdev with more metaslabs than this reserves one for intent logs.
const EMBEDDED_LOG_MIN: usize = 64;

/// Which blocks are read and verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verify {
    /// Only indirect blocks and others with pointers.
    #[default]
    Nothing,
    /// Metadata (`-c`).
    Metadata,
    /// Everything (`-cc`).
    All,
}

/// Options of an audit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuditOptions {
    /// What to verify.
    pub verify: Verify,
    /// Compare with the space maps.
    pub leaks: bool,
    /// Reads in flight.
    pub threads: usize,
}

impl Default for AuditOptions {
    fn default() -> Self {
        AuditOptions { verify: Verify::Nothing, leaks: true, threads: 32 }
    }
}

/// Receives the progress of an audit; called from many threads.
pub trait Watch: Sync {
    /// About this many bytes will be visited.
    fn begin(&self, _total: u64) {}
    /// This many bytes were verified so far.
    fn verified(&self, _bytes: u64) {}
    /// A block cannot be read.
    fn error(&self, _bp: Option<&BlkPtr>, _at: Bookmark, _error: &Error) {}
    /// Something else is wrong.
    fn problem(&self, _problem: &Problem) {}
    /// Whether to stop.
    fn stop(&self) -> bool {
        false
    }
}

/// Ignores all progress.
impl Watch for () {}

/// A problem that an audit found.
#[derive(Debug)]
#[non_exhaustive]
pub enum Problem {
    /// A block, or its content, cannot be read.
    Unreadable {
        /// The block's position.
        at: Bookmark,
        /// The reason.
        error: Error,
    },
    /// A block's space is free in the maps, or belongs to another block too.
    Claim {
        /// The block's position.
        at: Bookmark,
        /// The address.
        dva: Dva,
        /// How much of the space.
        claim: Claim,
        /// The block has more references than its table counts.
        references: bool,
    },
    /// A reference count is wrong.
    References(Mismatch),
    /// A block reference table contradicts its entries.
    ReferenceTable(TableFault),
    /// A dedup table contradicts itself.
    DedupTable(DedupFault),
    /// A metaslab's maps allocate allocated space or free free space.
    Contradiction(VdevId, u64, MapErrors),
    /// A metaslab's maps do not add up: vdev, metaslab, bytes found, claimed.
    MapSum(VdevId, u64, u64, u64),
    /// Space without a reference: vdev, offset, bytes.
    Leak(VdevId, u64, u64),
    /// A clone's livelist has not what its head has: directory; blocks, bytes on disk and
    /// compressed bytes of the list and of the head.
    Livelist(u64, [u64; 3], [u64; 3]),
    /// Obsolete bytes of an entry of a removed vdev's mapping are wrong.
    Obsolete {
        /// The removed vdev.
        vdev: VdevId,
        /// The entry's first byte on it.
        source: u64,
        /// The entry's bytes.
        len: u64,
        /// Bytes of it that blocks refer to.
        found: u64,
        /// Bytes recorded as obsolete.
        obsolete: u64,
    },
    /// The records of removed vdevs contradict each other.
    Mapping(Error),
    /// The count of a feature is wrong.
    FeatureCount {
        /// The feature.
        guid: &'static str,
        /// Its count.
        counted: u64,
        /// The number of its uses.
        due: u64,
    },
}

/// Space of one allocation class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassUse {
    /// Bytes allocated by the metaslabs' own maps (logs of changes not included).
    pub allocated: u64,
    /// Total bytes.
    pub space: u64,
}

/// What an audit found.
#[derive(Debug, Default)]
pub struct Report {
    /// Blocks by type.
    pub stats: BlockStats,
    /// The problems, at most [`PROBLEMS_MAX`] of them.
    pub problems: Vec<Problem>,
    /// Blocks that cannot be read.
    pub unreadable: u64,
    /// The number of read errors by error number.
    pub errnos: Vec<(i32, u64)>,
    /// Claims on free space, or on space that has another owner.
    pub bad_claims: u64,
    /// Bytes without a reference.
    pub leaked: u64,
    /// Copies or parity columns with wrong bytes, of blocks that are readable.
    pub damaged: u64,
    /// Bytes allocated by all maps and logs.
    pub allocated: u64,
    /// Bytes that the walk found.
    pub found: u64,
    /// Bytes that only a checkpoint keeps.
    pub checkpoint: u64,
    /// Classes that exist: name as zdb prints it, space.
    pub classes: Vec<(&'static str, ClassUse)>,
    /// Removed vdevs and the segments of their mappings.
    pub indirect: Vec<(VdevId, usize)>,
    /// Whether the audit searched for leaks.
    pub leaks_checked: bool,
}

impl Report {
    /// Whether the space maps have no problem.
    pub fn space_is_clean(&self) -> bool {
        !self.leaks_checked
            || (self.leaked == 0
                && self.bad_claims == 0
                && self.allocated == self.found
                && !self.problems.iter().any(|p| {
                    matches!(
                        p,
                        Problem::References(_)
                            | Problem::ReferenceTable(_)
                            | Problem::DedupTable(_)
                            | Problem::Contradiction(..)
                            | Problem::MapSum(..)
                            | Problem::Livelist(..)
                            | Problem::Obsolete { .. }
                            | Problem::Mapping(_)
                            | Problem::FeatureCount { .. }
                    )
                }))
    }

    /// Whether there is no problem except damage that redundancy repairs.
    pub fn is_clean(&self) -> bool {
        self.unreadable == 0 && self.space_is_clean()
    }
}

/// A dataset to walk.
struct DatasetJob {
    object: u64,
    bp: BlkPtr,
    min_txg: Txg,
    referenced: u64,
    head: bool,
}

impl Spa {
    /// Audits the pool.
    ///
    /// # Errors
    /// Those of reading the pool's own records, without which no audit is possible.
    /// Problems of blocks are in the report.
    pub fn audit<W: Watch>(&self, options: AuditOptions, watch: &W) -> Result<Report> {
        let space = self.load_space()?;
        let replayed = if options.leaks { Some(maps::replay(self, &space)?) } else { None };
        self.audit_against(&space, replayed, options, watch)
    }

    /// Audits the pool against these bitmaps.
    fn audit_against<W: Watch>(
        &self,
        space: &PoolSpace,
        replayed: Option<maps::Replayed>,
        options: AuditOptions,
        watch: &W,
    ) -> Result<Report> {
        watch.begin(space.vdevs.iter().map(crate::space::VdevSpace::allocated).sum());
        let mut report = Report { leaks_checked: replayed.is_some(), ..Report::default() };
        let refs = References::load(self)?;
        let maps = obsolete::mappings(self)?;
        report.indirect = maps.iter().map(|(v, m)| (*v, m.map.entries().len())).collect();
        report.indirect.sort_unstable();
        let bits = replayed.map(|r| keep_problems(r, &mut report));
        let walker = Walker {
            zio: Arc::clone(self.zio()),
            bits: bits.as_ref(),
            owners: None,
            maps: &maps,
            refs: &refs,
            verify: options.verify,
            watch,
            found: WalkFindings::new(),
        };
        self.walk_all(&walker, options)?;
        self.walk_lists(&walker, options)?;
        let kept = self.claim_kept(&walker, space, &mut report)?;
        let mut report = self.finish_audit(walker, space, kept, report)?;
        if report.unreadable == 0 {
            livelists::check(self, options, &mut report)?;
            if options.leaks {
                obsolete::check(self, &maps, &mut report)?;
            }
        }
        Ok(report)
    }

    /// Marks in `bits` all space that is in use, independently of the space maps. The pool
    /// must have no checkpoint and no vdev that is being removed. The result lists
    /// contradictions and unreadable blocks. All of `bits` must count as allocated before.
    ///
    /// # Errors
    /// As [`Spa::audit`].
    pub(crate) fn mark_used(&self, bits: &SpaceBits, threads: usize) -> Result<Vec<Problem>> {
        let options = AuditOptions { verify: Verify::Nothing, leaks: true, threads };
        let found = self.mark(Some(bits), None, options)?;
        Ok(found.problems())
    }

    /// Finds the owners of certain ranges.
    ///
    /// # Errors
    /// As [`Spa::audit`].
    pub(crate) fn find_owners(&self, owners: &Owners, threads: usize) -> Result<()> {
        let options = AuditOptions { verify: Verify::Nothing, leaks: true, threads };
        self.mark(None, Some(owners), options).map(|_| ())
    }

    fn mark(
        &self,
        bits: Option<&SpaceBits>,
        owners: Option<&Owners>,
        options: AuditOptions,
    ) -> Result<WalkFindings> {
        let refs = References::load(self)?;
        let maps = obsolete::mappings(self)?;
        let walker = Walker {
            zio: Arc::clone(self.zio()),
            bits,
            owners,
            maps: &maps,
            refs: &refs,
            verify: options.verify,
            watch: &(),
            found: WalkFindings::new(),
        };
        self.walk_all(&walker, options)?;
        self.walk_lists(&walker, options)?;
        for dva in &walker.refs.dead {
            walker.claim_range(dva.vdev, dva.offset, dva.asize.0, 0, &mut Claim::default());
        }
        Ok(walker.found)
    }

    /// The MOS and every dataset.
    fn walk_all<W: Watch>(&self, walker: &Walker<'_, W>, options: AuditOptions) -> Result<()> {
        let how = WalkOptions { min_txg: Txg::ZERO, threads: options.threads, io: WALK_IO };
        traverse(self.zio(), 0, &self.mos().objset().root_bp(), walker, how)?;
        let jobs = self.datasets()?;
        let next = std::sync::atomic::AtomicUsize::new(0);
        let failed = Mutex::new(None);
        let at_once = DATASETS_AT_ONCE.min(jobs.len());
        base::rt::fan_out(at_once, |_| {
            while let Some(job) = jobs.get(next.fetch_add(1, Relaxed)) {
                let wanted = usize::try_from(job.referenced / BYTES_PER_WALKER + 1);
                let threads = wanted.unwrap_or(usize::MAX).min(options.threads);
                let how = WalkOptions { min_txg: job.min_txg, threads, io: WALK_IO };
                let walked = traverse(self.zio(), job.object, &job.bp, walker, how);
                let logged = walked.and_then(|()| match job.head {
                    true => self.walk_intent_log(walker, job),
                    false => Ok(()),
                });
                if let Err(e) = logged {
                    failed.lock().get_or_insert(e);
                    return;
                }
            }
        });
        failed.into_inner().map_or(Ok(()), Err)
    }

    /// Every dataset object of the MOS, whether or not a name refers to it.
    fn datasets(&self) -> Result<Vec<DatasetJob>> {
        let mut out = Vec::new();
        let objset = self.mos().objset();
        let mut at = base::ObjectId(0);
        while let Some(id) = objset.next_object(at, Io::WAIT)? {
            at = id;
            let Ok(object) = objset.object(id, Io::WAIT) else { continue };
            if object.dnode().bonus_type != ObjType::DSL_DATASET {
                continue;
            }
            let phys = DslDataset::read_phys(self.mos(), id.0)?;
            out.push(DatasetJob {
                object: id.0,
                bp: phys.bp,
                min_txg: phys.prev_snap_txg,
                referenced: phys.referenced_bytes,
                head: !phys.is_snapshot(),
            });
        }
        Ok(out)
    }

    fn walk_intent_log<W: Watch>(&self, walker: &Walker<'_, W>, job: &DatasetJob) -> Result<()> {
        if job.bp.is_hole() {
            return Ok(());
        }
        // The walk reported an unreadable object set.
        let opened = Objset::open(Arc::clone(self.zio()), job.object, job.bp, Io::WAIT);
        let Ok(header) = opened.and_then(|os| log::log_header(&os.phys())) else { return Ok(()) };
        let f = |bp: &BlkPtr, chain: bool| {
            let level = if chain { LOG_LEVEL } else { 0 };
            let at = Bookmark { objset: job.object, object: 0, level, blkid: 0 };
            // Log blocks carry their checksum inside; the walk verifies it.
            let copies = if chain { Copies::Unverified } else { Copies::Any };
            walker.account(bp, at, row_of(bp.head().object_type), copies);
            Ok(())
        };
        let mut kept = log::Kept::new(&header, self.uberblock().txg, f);
        log::walk_log(self.zio(), &header, &mut kept)
    }

    /// Blocks that wait to be freed.
    fn walk_lists<W: Watch>(&self, walker: &Walker<'_, W>, options: AuditOptions) -> Result<()> {
        let mos = self.mos();
        for name in ["sync_bplist", "free_bpobj"] {
            let Some(object) = mos.lookup(name)? else { continue };
            let mut index = 0;
            bpobj::for_each(mos, object, &mut |entry| {
                let at = Bookmark { objset: 0, object, level: 0, blkid: index };
                index += 1;
                walker.account(&entry.bp, at, ROW_DEFERRED, Copies::Unverified);
                Ok(())
            })?;
        }
        if let Some(object) = mos.lookup("bptree_obj")? {
            for (bp, birth) in bpobj::bptree_roots(mos, object)? {
                let how = WalkOptions { min_txg: birth, threads: options.threads, io: WALK_IO };
                traverse(self.zio(), object, &bp, walker, how)?;
            }
        }
        let Some(clones) = mos.lookup("com.delphix:deleted_clones")? else { return Ok(()) };
        for entry in mos.zap_entries(clones)? {
            if let Some(list) = entry.value.as_u64() {
                self.walk_livelist(walker, list)?;
            }
        }
        Ok(())
    }

    /// The live blocks of a livelist: allocations without a free (chapter 04 §10.2).
    fn walk_livelist<W: Watch>(&self, walker: &Walker<'_, W>, list: u64) -> Result<()> {
        for sublist in self.mos().zap_entries(list)? {
            let Some(object) = sublist.value.as_u64() else { continue };
            for bp in live_blocks(self, object)? {
                let at = Bookmark { objset: 0, object, level: 0, blkid: 0 };
                walker.account(&bp, at, row_of(bp.head().object_type), Copies::Unverified);
            }
        }
        Ok(())
    }

    /// Claims space that no pointer refers to and that is not leaked: space that the
    /// checkpoint keeps, copies made by a removal in progress, dead dedup entries. Returns
    /// the bytes.
    fn claim_kept<W: Watch>(
        &self,
        walker: &Walker<'_, W>,
        space: &PoolSpace,
        report: &mut Report,
    ) -> Result<u64> {
        let mut kept = 0;
        maps::for_each_checkpointed(self, space, |vdev, offset, len| {
            walker.claim_range(vdev, offset, len, 0, &mut Claim::default());
            report.checkpoint += len;
            Ok(())
        })?;
        kept += report.checkpoint;
        for dva in &walker.refs.dead {
            let mut claim = Claim::default();
            walker.claim_range(dva.vdev, dva.offset, dva.asize.0, 0, &mut claim);
            kept += dva.asize.0;
        }
        Ok(kept + self.claim_removal(walker)?)
    }

    /// A removal in progress has copied segments that pointers do not use yet.
    fn claim_removal<W: Watch>(&self, walker: &Walker<'_, W>) -> Result<u64> {
        let words = self.mos().lookup_words("com.delphix:removing")?;
        let Some(words) = words.as_ref().and_then(|w| w.first_chunk()) else { return Ok(0) };
        let removing = Removing::from_words(words)?;
        let (JobState::Scanning, Some(vdev), Some(bits)) =
            (removing.state, removing.vdev, walker.bits)
        else {
            return Ok(0);
        };
        let config = self.config().vdev_tree.children.iter().find(|c| c.id == vdev.0);
        let keys = config.and_then(|c| c.top.as_ref()).map(|t| t.indirect.clone());
        let keys = keys.unwrap_or_default();
        let mapping = keys.mapping.map(|o| o.0);
        let map = crate::indirect::load(self.mos(), mapping, keys.births.map(|o| o.0))?;
        let mut kept = 0;
        for entry in map.entries() {
            bits.allocated_in(vdev, entry.src, entry.len, |at, len| {
                let to = entry.dst_offset + (at - entry.src);
                walker.claim_range(entry.dst_vdev, to, len, 0, &mut Claim::default());
                kept += len;
                Ok(())
            })?;
        }
        Ok(kept)
    }

    /// Space of removed vdevs; zdb counts it with the normal class.
    fn removed_space(&self) -> u64 {
        let removed = self.config().vdev_tree.children.iter();
        let tops = removed.filter(|c| c.kind == VdevType::Indirect).filter_map(|c| c.top.as_ref());
        tops.filter(|t| t.metaslab_shift < 64)
            .map(|t| t.asize >> t.metaslab_shift << t.metaslab_shift)
            .fold(0, u64::saturating_add)
    }

    fn finish_audit<W: Watch>(
        &self,
        walker: Walker<'_, W>,
        space: &PoolSpace,
        kept: u64,
        mut report: Report,
    ) -> Result<Report> {
        let found = &walker.found;
        report.stats = found.stats();
        let stats = &report.stats;
        report.found = stats
            .total()
            .asize
            .saturating_sub(stats.dedup_asize)
            .saturating_sub(stats.clone_asize)
            .saturating_add(kept);
        report.allocated = space.vdevs.iter().map(crate::space::VdevSpace::allocated).sum();
        report.unreadable = found.unreadable.load(Relaxed);
        report.bad_claims = found.bad_claims.load(Relaxed);
        report.damaged = found.damaged.load(Relaxed);
        report.errnos = found.errnos();
        report.problems.extend(found.problems());
        let faults = walker.refs.dedup_faults().iter().cloned();
        report.problems.extend(faults.map(Problem::DedupTable));
        report.classes = classes(space, self.removed_space());
        // Blocks below an unreadable one are not found, so their counts are meaningless.
        if report.unreadable == 0 {
            let refs = walker.refs;
            report.problems.extend(refs.mismatches().into_iter().map(Problem::References));
            report.problems.extend(refs.table_faults().into_iter().map(Problem::ReferenceTable));
        }
        if let Some(bits) = walker.bits {
            bits.leaks(&mut |vdev, offset, len| {
                report.leaked += len;
                if report.problems.len() < PROBLEMS_MAX {
                    report.problems.push(Problem::Leak(vdev, offset, len));
                }
            });
        }
        Ok(report)
    }
}

/// The bitmaps; problems of the maps are added to the report.
fn keep_problems(replayed: maps::Replayed, report: &mut Report) -> SpaceBits {
    let contradictions = replayed.contradictions.into_iter();
    report.problems.extend(contradictions.map(|(v, m, e)| Problem::Contradiction(v, m, e)));
    let sums = replayed.sums.into_iter();
    report.problems.extend(sums.map(|(v, m, f, c)| Problem::MapSum(v, m, f, c)));
    replayed.bits
}

/// The allocations of a sublist of a livelist that no free follows.
fn live_blocks(spa: &Spa, object: u64) -> Result<Vec<BlkPtr>> {
    let mut live: HashMap<(u32, u64), Vec<BlkPtr>> = HashMap::new();
    bpobj::for_each(spa.mos(), object, &mut |entry: &BpobjEntry| {
        let Some(block) = entry.bp.as_block() else { return Ok(()) };
        let place = (block.dva().vdev.0, block.dva().offset);
        let list = live.entry(place).or_default();
        if entry.freed {
            list.pop();
        } else {
            list.push(entry.bp);
        }
        Ok(())
    })?;
    Ok(live.into_values().flatten().collect())
}

/// Space by class, as zdb prints it; the normal class always comes first.
fn classes(space: &PoolSpace, removed: u64) -> Vec<(&'static str, ClassUse)> {
    let mut out = Vec::new();
    let mut embedded = ClassUse { allocated: 0, space: 0 };
    for (class, name) in [
        (AllocClass::Normal, "Normal class"),
        (AllocClass::Special, "Special class"),
        (AllocClass::Dedup, "Dedup class"),
    ] {
        let extra = if class == AllocClass::Normal { removed } else { 0 };
        let mut sum = ClassUse { allocated: 0, space: extra };
        for v in space.vdevs.iter().filter(|v| v.class == class) {
            let own = |m: &crate::space::Metaslab| m.header.alloc.max(0) as u64;
            let apart = (class == AllocClass::Normal && v.metaslabs.len() > EMBEDDED_LOG_MIN)
                .then(|| v.metaslabs.iter().min_by_key(|m| own(m)))
                .flatten();
            for m in &v.metaslabs {
                let into =
                    if apart.is_some_and(|a| a.id == m.id) { &mut embedded } else { &mut sum };
                into.allocated += own(m);
                into.space += m.size;
            }
        }
        if sum.space > 0 || class == AllocClass::Normal {
            out.push((name, sum));
        }
    }
    out.push(("Embedded log class", embedded));
    out
}

#[cfg(test)]
mod tests;
