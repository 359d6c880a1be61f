//! The visitor: counts, claims and verifies every pointer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use base::limits::{GANG_DEPTH_MAX, INDIRECT_HOPS_MAX};
use base::rt::Mutex;
use base::{Dva, Error, ErrorKind, Psize, Result, VdevId};
use dmu::traverse::{Bookmark, Flow, Visitor};
use ondisk::BlkPtr;
use ondisk::blkptr::Block;
use zio::{Io, Zio};

use super::bits::{Claim, SpaceBits};
use super::obsolete::Mappings;
use super::refs::{RefVisit, References};
use super::stats::{BlockStats, row_of};
use super::{Problem, Verify, Watch};

/// Statistics are kept separately for this many groups of pointers, so that walkers do not
/// wait for each other.
const SHARDS: usize = 32;
/// Owners recorded per range.
const OWNERS_MAX: usize = 16;
/// Problems recorded; more are only counted.
pub const PROBLEMS_MAX: usize = 10_000;

/// The state shared by all walkers.
pub(super) struct Walker<'a, W> {
    pub(super) zio: Arc<Zio>,
    /// `None`: do not search for leaks.
    pub(super) bits: Option<&'a SpaceBits>,
    /// Ranges whose owners are searched for.
    pub(super) owners: Option<&'a Owners>,
    pub(super) maps: &'a Mappings,
    pub(super) refs: &'a References,
    pub(super) verify: Verify,
    pub(super) watch: &'a W,
    pub(super) found: WalkFindings,
}

/// An owner of a range.
#[derive(Clone, Debug)]
pub struct Owner {
    /// Its block.
    pub at: Bookmark,
    /// Whether all copies of the block have the right content.
    pub whole: bool,
}

/// Ranges, and their owners.
pub(crate) struct Owners {
    /// Vdev, offset, bytes; ascending.
    ranges: Vec<(VdevId, u64, u64)>,
    found: Mutex<BTreeMap<(VdevId, u64), Vec<Owner>>>,
}

impl Owners {
    pub(crate) fn of(mut ranges: Vec<(VdevId, u64, u64)>) -> Owners {
        ranges.sort_unstable();
        ranges.dedup();
        Owners { ranges, found: Mutex::default() }
    }

    /// Owners by vdev and offset of the range.
    pub(crate) fn into_found(self) -> BTreeMap<(VdevId, u64), Vec<Owner>> {
        self.found.into_inner()
    }

    fn note(&self, vdev: VdevId, offset: u64, len: u64, owner: &dyn Fn() -> Owner) {
        let end = offset.saturating_add(len);
        let last = self.ranges.partition_point(|r| (r.0, r.1) < (vdev, end));
        let before = self.ranges.iter().take(last).rev().take_while(|r| r.0 == vdev);
        // Ranges may overlap each other; none is longer than a block.
        for r in before.take_while(|r| r.1 + (64 << 20) > offset) {
            if r.1.saturating_add(r.2) > offset {
                let mut found = self.found.lock();
                let list = found.entry((r.0, r.1)).or_default();
                if list.len() < OWNERS_MAX {
                    list.push(owner());
                }
            }
        }
    }
}

/// Which copies and parity columns of a block are verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Copies {
    /// None: only its space is counted.
    Unverified,
    /// One must be readable. A power cut may tear the data of an unfinished `fsync`: a log
    /// that is claimed afterwards refers to data without some of its columns.
    Any,
    /// All must be right.
    All,
}

/// The findings of the walkers.
pub(super) struct WalkFindings {
    shards: Vec<Mutex<BlockStats>>,
    problems: Mutex<Vec<Problem>>,
    pub(super) unreadable: AtomicU64,
    pub(super) bad_claims: AtomicU64,
    pub(super) damaged: AtomicU64,
    pub(super) verified: AtomicU64,
    errnos: Mutex<std::collections::BTreeMap<i32, u64>>,
}

impl WalkFindings {
    pub(super) fn new() -> WalkFindings {
        WalkFindings {
            shards: (0..SHARDS).map(|_| Mutex::new(BlockStats::default())).collect(),
            problems: Mutex::new(Vec::new()),
            unreadable: AtomicU64::new(0),
            bad_claims: AtomicU64::new(0),
            damaged: AtomicU64::new(0),
            verified: AtomicU64::new(0),
            errnos: Mutex::new(std::collections::BTreeMap::new()),
        }
    }

    fn shard(&self, at: Bookmark) -> Option<&Mutex<BlockStats>> {
        let mix = at.object.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (at.blkid >> 5) ^ at.objset;
        self.shards.get((mix % SHARDS as u64) as usize)
    }

    pub(super) fn stats(&self) -> BlockStats {
        let mut out = BlockStats::default();
        self.shards.iter().for_each(|s| out.add(&s.lock()));
        out
    }

    pub(super) fn problem(&self, problem: Problem) {
        let mut list = self.problems.lock();
        if list.len() < PROBLEMS_MAX {
            list.push(problem);
        }
    }

    pub(super) fn problems(&self) -> Vec<Problem> {
        std::mem::take(&mut *self.problems.lock())
    }

    pub(super) fn errnos(&self) -> Vec<(i32, u64)> {
        self.errnos.lock().iter().map(|(k, v)| (*k, *v)).collect()
    }
}

/// The error number that zdb would print: a bad checksum is EBADE there.
pub fn zdb_errno(error: &Error) -> i32 {
    match error.kind() {
        ErrorKind::Checksum | ErrorKind::Corrupt => 52,
        kind => kind.errno(),
    }
}

impl<W: Watch> Walker<'_, W> {
    /// Accounts for one pointer, in the row of its own type.
    fn see(&self, bp: &BlkPtr, at: Bookmark) {
        self.account(bp, at, row_of(bp.head().object_type), Copies::All);
    }

    /// Counts a pointer in `row`, claims its space, and verifies `copies` of it.
    pub(super) fn account(&self, bp: &BlkPtr, at: Bookmark, row: usize, copies: Copies) {
        let sight = match bp {
            BlkPtr::Hole(_) => return,
            BlkPtr::Block(block) => self.refs.count_visit(block),
            BlkPtr::Embedded(_) | BlkPtr::Redacted(_) => RefVisit::Only,
        };
        let asize = |b: &Block| b.dvas().map(|d| d.asize.0).sum::<u64>();
        if let Some(shard) = self.found.shard(at) {
            let mut stats = shard.lock();
            stats.count(bp, row);
            match (&sight, bp) {
                (RefVisit::AgainDedup, BlkPtr::Block(b)) => {
                    stats.dedup_asize += asize(b);
                    stats.dedup_refs += 1;
                }
                (RefVisit::AgainClone, BlkPtr::Block(b)) => {
                    stats.clone_asize += asize(b);
                    stats.clone_refs += 1;
                }
                _ => {}
            }
        }
        let BlkPtr::Block(block) = bp else { return };
        match sight {
            RefVisit::AgainDedup | RefVisit::AgainClone => return,
            RefVisit::TooMany => self.bad_claim(at, block.dva(), Claim::default(), true),
            RefVisit::FirstDedup(addresses) => {
                for dva in addresses {
                    self.claim_dva(block, dva, at);
                }
            }
            RefVisit::Only | RefVisit::FirstClone => {
                if sight == RefVisit::FirstClone {
                    self.refs.note_bytes(block, self.deflated(block));
                }
                block.dvas().for_each(|dva| self.claim_dva(block, dva, at));
            }
        }
        if block.is_gang() && self.claims() {
            self.claim_members(block, at, 0);
        }
        if copies != Copies::Unverified {
            self.check(block, bp, at, copies);
        }
    }

    /// The bytes that a block counts in space accounting (chapter 02 §13).
    fn deflated(&self, block: &Block) -> u64 {
        let tree = self.zio.tree();
        let one = |dva: Dva| {
            let ratio = tree.deflate_ratio(dva.vdev).unwrap_or(512);
            (dva.asize.0 >> 9).saturating_mul(ratio)
        };
        block.dvas().map(one).fold(0, u64::saturating_add)
    }

    fn check(&self, block: &Block, bp: &BlkPtr, at: Bookmark, copies: Copies) {
        let meta = block.head.level > 0 || block.head.object_type.is_metadata();
        let wanted = match self.verify {
            Verify::Nothing => false,
            Verify::Metadata => meta,
            Verify::All => true,
        };
        if !wanted {
            return;
        }
        let checked = self.zio.check_copies(block);
        let damaged = checked.damaged.saturating_add(checked.faults.len() as u64);
        let bytes = block.dvas().map(|d| d.asize.0).sum();
        self.watch.verified(self.found.verified.fetch_add(bytes, Relaxed) + bytes);
        if checked.readable > 0 {
            if copies == Copies::All {
                self.found.damaged.fetch_add(damaged, Relaxed);
            }
            return;
        }
        let fault = checked.faults.into_iter().next();
        let error = fault.map_or_else(|| Error::bug("a block without addresses"), |f| f.error);
        self.failed(Some(bp), at, error);
    }

    fn failed(&self, bp: Option<&BlkPtr>, at: Bookmark, error: Error) {
        self.found.unreadable.fetch_add(1, Relaxed);
        *self.found.errnos.lock().entry(zdb_errno(&error)).or_default() += 1;
        self.watch.error(bp, at, &error);
        self.found.problem(Problem::Unreadable { at, error });
    }

    fn bad_claim(&self, at: Bookmark, dva: Dva, claim: Claim, references: bool) {
        self.found.bad_claims.fetch_add(1, Relaxed);
        let problem = Problem::Claim { at, dva, claim, references };
        self.watch.problem(&problem);
        self.found.problem(problem);
    }

    fn claims(&self) -> bool {
        self.bits.is_some() || self.owners.is_some()
    }

    fn owner(&self, block: &Block, at: Bookmark) -> Owner {
        let checked = self.zio.check_copies(block);
        Owner { at, whole: checked.readable > 0 && checked.faults.is_empty() }
    }

    /// Claims the space of one address: only the header of a gang address.
    fn claim_dva(&self, block: &Block, dva: Dva, at: Bookmark) {
        if !self.claims() {
            return;
        }
        let birth = block.effective_physical_birth();
        let len = if dva.gang {
            self.zio.tree().asize(dva.vdev, Psize(512), birth).map_or(dva.asize.0, |a| a.0)
        } else {
            dva.asize.0
        };
        if let Some(owners) = self.owners {
            owners.note(dva.vdev, dva.offset, len, &|| self.owner(block, at));
            return;
        }
        let mut claim = Claim::default();
        self.claim_range(dva.vdev, dva.offset, len, 0, &mut claim);
        if !claim.is_clean() {
            self.bad_claim(at, dva, claim, false);
        }
    }

    /// Claims a range, at the position to which removed vdevs moved it.
    pub(super) fn claim_range(
        &self,
        vdev: VdevId,
        offset: u64,
        len: u64,
        hops: usize,
        out: &mut Claim,
    ) {
        let Some(bits) = self.bits else { return };
        let Some(removed) = self.maps.get(&vdev) else {
            let claim = bits.claim(vdev, offset, len);
            out.twice += claim.twice;
            out.free += claim.free;
            out.outside += claim.outside;
            return;
        };
        match removed.map.segments(offset, len) {
            Ok(segments) if hops < INDIRECT_HOPS_MAX => {
                for s in segments {
                    removed.note(s.entry, s.len);
                    self.claim_range(s.vdev, s.offset, s.len, hops + 1, out);
                }
            }
            _ => out.outside += len,
        }
    }

    fn claim_members(&self, block: &Block, at: Bookmark, depth: usize) {
        let mut last = None;
        for dva in block.dvas().filter(|d| d.gang) {
            match self.zio.gang_members(block, dva) {
                // The check of the sum of sizes bounds the number of members, nested ones
                // included.
                Ok(members) if members.iter().map(|m| m.psize.0).sum::<u64>() != block.psize.0 => {
                    let why = "gang members do not add up to their block";
                    last = Some(Error::corrupt(why).at_dva(dva));
                }
                Ok(members) => {
                    for member in members {
                        member.dvas().for_each(|d| self.claim_dva(&member, d, at));
                        if member.is_gang() && depth < GANG_DEPTH_MAX {
                            self.claim_members(&member, at, depth + 1);
                        }
                    }
                    return;
                }
                Err(e) => last = Some(e),
            }
        }
        if let Some(error) = last {
            self.failed(Some(&BlkPtr::Block(*block)), at, error);
        }
    }
}

impl<W: Watch> Visitor for Walker<'_, W> {
    fn visit(&self, bp: &BlkPtr, at: Bookmark) -> Result<Flow> {
        if self.watch.stop() {
            return Err(Error::new(ErrorKind::Interrupted, "stopped"));
        }
        self.see(bp, at);
        Ok(Flow::Descend)
    }

    fn unreadable(&self, error: Error, at: Bookmark) -> Result<()> {
        // The verification has reported it already, unless the content is malformed.
        let said = self.verify != Verify::Nothing && error.kind() != ErrorKind::Corrupt;
        if !said {
            self.failed(None, at, error);
        }
        Ok(())
    }
}

/// How metadata is read during a walk.
pub(super) const WALK_IO: Io = Io::SCAN;
