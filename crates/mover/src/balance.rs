//! `zpool rebalance`: blocks move from fuller top-level vdevs to emptier ones, until their shares
//! of used space are equal.
//!
//! # Theory
//! Vdevs can exchange blocks if these count the same space on both: equal deflate ratio, equal
//! allocated size of any stored size, one class ([`BalanceGroup`]). In each group the aim is one
//! share for all, that of the used space in all space. A vdev above it has a *surplus*, one below
//! it a *deficit*.
//!
//! A part of the work takes the vdev with the greatest surplus. Its metaslabs are emptied, from its
//! end on, until the surplus is gone; the last one only as far as needed. What is found in
//! them moves in the order in which it lies, to the vdevs with a deficit. So files that lie
//! in runs lie in runs afterwards, are read with as few jumps as before, and what stays is left at
//! the front. Sorting by files instead would join the pieces of a file that are in these metaslabs
//! alone, and tear them from the others; `zpool defrag` does that better.
//!
//! A block with more addresses than there are vdevs with a deficit may use any vdev of the group:
//! its copies stay on different vdevs, and it moves fewer bytes.
//!
//! # Progress
//! Each metaslab is chosen at most once, and nothing is chosen in a group whose shares
//! differ by at most [`EQUAL`]. So it ends whatever others write.
//!
//! # Invariants
//! * Only vdevs of the classes normal and special that are allocated from take part.
//! * Blocks of the MOS stay where they are.

use std::collections::BTreeSet;

use base::{Error, Psize, Result, VdevId};
use metaslab::{MsKey, SpaceClass};
use ondisk::blkptr::Block;
use spa::engine::{BlockPosition, CopyTarget, Writer};

use crate::find::{FindFlow, find_in};
use crate::job::{JobCx, MoveRecord, Next, Part, Planner};

/// Shares are equal if they differ by at most so many thousandths.
pub const EQUAL: u64 = 10;
/// Bytes in the metaslabs that a part of the work empties.
const CHUNK_BYTES: u64 = 4 << 30;
/// Stored sizes by which allocated sizes are compared: multiples of a sector up to 128 KiB.
const SIZES: std::ops::RangeInclusive<u64> = 1..=256;

/// How full a top-level vdev is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VdevShare {
    /// The vdev.
    pub vdev: VdevId,
    /// Allocated bytes.
    pub used: u64,
    /// Bytes of all its metaslabs.
    pub capacity: u64,
    /// What is used when all shares are equal, in bytes.
    pub aim: u64,
}

impl VdevShare {
    /// Thousandths that are used.
    pub fn share(&self) -> u64 {
        let share = u128::from(self.used) * 1000 / u128::from(self.capacity.max(1));
        u64::try_from(share).unwrap_or(u64::MAX)
    }

    /// Bytes above the aim.
    pub fn surplus(&self) -> u64 {
        self.used.saturating_sub(self.aim)
    }

    /// Bytes below the aim.
    pub fn deficit(&self) -> u64 {
        self.aim.saturating_sub(self.used)
    }
}

/// Vdevs that can exchange blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BalanceGroup {
    /// Their class.
    pub class: SpaceClass,
    /// The vdevs, ascending.
    pub vdevs: Vec<VdevShare>,
}

impl BalanceGroup {
    /// Whether the shares are as equal as they become.
    pub fn is_balanced(&self) -> bool {
        let shares = || self.vdevs.iter().map(VdevShare::share);
        let (most, least) = (shares().max().unwrap_or(0), shares().min().unwrap_or(0));
        most - least <= EQUAL
    }

    /// Bytes that have to move.
    pub fn to_move(&self) -> u64 {
        match self.is_balanced() {
            true => 0,
            false => self.vdevs.iter().map(VdevShare::surplus).sum(),
        }
    }

    fn set_aims(&mut self) {
        let sum =
            |of: fn(&VdevShare) -> u64| self.vdevs.iter().map(of).map(u128::from).sum::<u128>();
        let (used, capacity) = (sum(|v| v.used), sum(|v| v.capacity).max(1));
        for one in &mut self.vdevs {
            let aim = u128::from(one.capacity) * used / capacity;
            one.aim = u64::try_from(aim).unwrap_or(u64::MAX);
        }
    }

    /// The vdevs that take copies, those with at least half of the greatest deficit; and how
    /// much, so that none of them gets too much.
    fn takers(&self) -> (BTreeSet<VdevId>, u64) {
        let greatest = self.vdevs.iter().map(VdevShare::deficit).max().unwrap_or(0);
        let takes = |v: &&VdevShare| v.deficit() > 0 && v.deficit() >= greatest / 2;
        let takers: Vec<&VdevShare> = self.vdevs.iter().filter(takes).collect();
        let least = takers.iter().map(|v| v.deficit()).min().unwrap_or(0);
        let most = least.saturating_mul(takers.len() as u64);
        (takers.into_iter().map(|v| v.vdev).collect(), most)
    }
}

/// Whether blocks count the same space on both vdevs.
fn alike(writer: &Writer, a: VdevId, b: VdevId) -> bool {
    let (tree, txg) = (writer.zio().tree(), writer.txgs().open_txg());
    let ratio = |vdev| tree.deflate_ratio(vdev).ok();
    let asize = |vdev, n: u64| tree.asize(vdev, Psize(n << 9), txg).ok();
    ratio(a).is_some()
        && ratio(a) == ratio(b)
        && SIZES.into_iter().all(|n| asize(a, n) == asize(b, n))
}

/// The vdevs of a class that are allocated from, ascending.
pub(crate) fn vdevs_of(writer: &Writer, class: SpaceClass) -> Vec<VdevId> {
    let space = writer.space();
    let all = space.vdevs().into_iter();
    all.filter(|(vdev, of)| *of == class && space.is_allocating(*vdev)).map(|(v, _)| v).collect()
}

/// The groups of two and more vdevs.
///
/// # Errors
/// `Corrupt` if a vdev vanishes.
pub fn groups(writer: &Writer) -> Result<Vec<BalanceGroup>> {
    let mut out: Vec<BalanceGroup> = Vec::new();
    for class in [SpaceClass::Normal, SpaceClass::Special] {
        for vdev in vdevs_of(writer, class) {
            let totals = writer.space().vdev_totals(vdev)?;
            let (used, capacity) = (totals.allocated, totals.capacity);
            let one = VdevShare { vdev, used, capacity, aim: 0 };
            let fits = |group: &&mut BalanceGroup| {
                let first = group.vdevs.first();
                group.class == class && first.is_some_and(|first| alike(writer, first.vdev, vdev))
            };
            match out.iter_mut().find(fits) {
                Some(group) => group.vdevs.push(one),
                None => out.push(BalanceGroup { class, vdevs: vec![one] }),
            }
        }
    }
    out.retain(|group| group.vdevs.len() > 1);
    out.iter_mut().for_each(BalanceGroup::set_aims);
    Ok(out)
}

/// The groups, of which there is one at least.
///
/// # Errors
/// `Invalid` if there is nothing to balance between, with the reason.
pub fn check(writer: &Writer) -> Result<Vec<BalanceGroup>> {
    let groups = groups(writer)?;
    if !groups.is_empty() {
        return Ok(groups);
    }
    let classes = [SpaceClass::Normal, SpaceClass::Special];
    Err(Error::invalid(match classes.iter().any(|c| vdevs_of(writer, *c).len() > 1) {
        true => {
            "no two top-level vdevs count allocated space in the same way, so blocks cannot move \
             from one to the other"
        }
        false => "only one top-level vdev takes data",
    }))
}

/// Metaslabs at the end of a vdev that together have so many bytes, none of those in `tried`.
fn metaslabs(
    writer: &Writer,
    vdev: VdevId,
    bytes: u64,
    tried: &BTreeSet<MsKey>,
) -> Result<Vec<(MsKey, metaslab::Seg)>> {
    let (mut out, mut sum) = (Vec::new(), 0u64);
    let all: Vec<_> = (0..).zip(writer.space().metaslab_status(vdev)?).collect();
    for (ms, status) in all.into_iter().rev() {
        let key = MsKey { vdev, ms };
        if status.allocated == 0 || tried.contains(&key) {
            continue;
        }
        if sum >= bytes {
            break;
        }
        sum = sum.saturating_add(status.allocated);
        out.push((key, status.seg));
    }
    Ok(out)
}

/// Chooses what a rebalance moves.
#[derive(Default)]
pub(crate) struct BalancePlanner {
    tried: BTreeSet<MsKey>,
}

impl BalancePlanner {
    /// The next metaslabs, and where their blocks go; with the bytes that are to move.
    #[allow(clippy::type_complexity)]
    fn choose(
        &self,
        cx: &JobCx<'_>,
    ) -> Result<Option<(Vec<(MsKey, metaslab::Seg)>, CopyTarget, u64)>> {
        for group in groups(cx.writer)?.into_iter().filter(|group| !group.is_balanced()) {
            let (vdevs, room) = group.takers();
            let mut givers: Vec<&VdevShare> =
                group.vdevs.iter().filter(|v| v.surplus() > 0).collect();
            givers.sort_by_key(|v| (std::cmp::Reverse(v.surplus()), v.vdev));
            for giver in givers {
                let bytes = giver.surplus().min(room).min(CHUNK_BYTES);
                let chosen = metaslabs(cx.writer, giver.vdev, bytes, &self.tried)?;
                if !chosen.is_empty() && bytes > 0 {
                    return Ok(Some((chosen, CopyTarget { class: None, vdevs }, bytes)));
                }
            }
        }
        Ok(None)
    }
}

impl Planner for BalancePlanner {
    fn estimate(&mut self, cx: &JobCx<'_>, _record: &MoveRecord) -> Result<u64> {
        Ok(groups(cx.writer)?.iter().map(BalanceGroup::to_move).sum())
    }

    fn next(&mut self, cx: &JobCx<'_>, _record: &MoveRecord) -> Result<Next> {
        let Some((chosen, to, bytes)) = self.choose(cx)? else { return Ok(Next::Complete) };
        let inside = |_: &BlockPosition, block: &Block| {
            let within = |dva: base::Dva| {
                chosen.iter().any(|(key, seg)| {
                    key.vdev == dva.vdev && (seg.start..seg.end()).contains(&dva.offset)
                })
            };
            if block.dvas().any(within) { FindFlow::Take } else { FindFlow::Descend }
        };
        let found = find_in(cx.writer, None, &inside)?;
        self.tried.extend(chosen.iter().map(|(key, _)| *key));
        let from = chosen.first().map(|(key, _)| key.vdev);
        let mut blocks = last_bytes(found.blocks, from, bytes);
        blocks.shrink_to_fit();
        cx.update(|record| {
            record.kept += found.immovable;
            record.metaslabs += chosen.len() as u64;
        });
        let avoid = chosen.into_iter().map(|(key, _)| key).collect();
        Ok(Next::Part(Part { blocks: blocks.into(), avoid, to: Some(to), ..Part::default() }))
    }

    fn moved(&mut self, cx: &JobCx<'_>, _part: &Part) -> Result<()> {
        cx.store()
    }
}

/// The blocks in the order in which they lie on a vdev; only the last ones, with so many bytes
/// there.
fn last_bytes(
    mut blocks: Vec<(BlockPosition, Block)>,
    from: Option<VdevId>,
    bytes: u64,
) -> Vec<(BlockPosition, Block)> {
    let here = |block: &Block| block.dvas().find(|dva| Some(dva.vdev) == from);
    blocks.sort_by_key(|(_, block)| here(block).map(|dva| dva.offset));
    let size = |block: &Block| -> u64 {
        block.dvas().filter(|dva| Some(dva.vdev) == from).map(|dva| dva.asize.0).sum()
    };
    let mut sum = 0u64;
    let mut count = 0;
    for (_, block) in blocks.iter().rev() {
        if sum >= bytes {
            break;
        }
        sum = sum.saturating_add(size(block));
        count += 1;
    }
    blocks.split_off(blocks.len() - count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(shares: &[(u64, u64)]) -> BalanceGroup {
        let one = |(i, &(used, capacity))| VdevShare { vdev: VdevId(i), used, capacity, aim: 0 };
        let vdevs = (0..).zip(shares).map(one).collect();
        let mut group = BalanceGroup { class: SpaceClass::Normal, vdevs };
        group.set_aims();
        group
    }

    #[test]
    fn aims_are_one_share_for_all() {
        let uneven = group(&[(90, 100), (0, 100), (60, 300)]);
        assert_eq!(uneven.vdevs.iter().map(|v| v.aim).collect::<Vec<_>>(), [30, 30, 90]);
        assert_eq!((uneven.is_balanced(), uneven.to_move()), (false, 60));
        assert_eq!(uneven.takers(), (BTreeSet::from([VdevId(1), VdevId(2)]), 60));
        let even = group(&[(500, 1000), (505, 1000), (1010, 2000)]);
        assert!(even.is_balanced() && even.to_move() == 0);
        assert!(group(&[(0, 0), (0, 10)]).is_balanced(), "an empty pool");
    }

    /// A vdev with a small deficit does not take as much as one with a great one.
    #[test]
    fn takers_get_no_more_than_they_lack() {
        let (takers, room) = group(&[(100, 100), (45, 100), (5, 100)]).takers();
        assert_eq!((takers, room), (BTreeSet::from([VdevId(2)]), 45));
    }
}
