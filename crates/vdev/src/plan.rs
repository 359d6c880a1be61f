//! Planning a read: which bytes of which leaves are read, and how they make up the
//! block.
//!
//! # Theory
//! A plan is a [`PlanShape`] over cells. A cell is a byte range of one leaf. In
//! [`PlanMode::Quick`] a mirror contributes its best child, and a parity stripe its data
//! columns plus as many parity columns as data columns are known to be unreadable, or belong
//! to a leaf that sits out ([`crate::sitout`]) and can be replaced. In
//! [`PlanMode::All`] everything that exists is read.
//!
//! # Invariants
//! * Planning takes at most `PLAN_STEPS_MAX` steps and makes at most `CELLS_MAX` cells,
//!   even if the configuration loops through distributed spares.

use base::limits::INDIRECT_HOPS_MAX;
use base::{Error, Result, Txg, VdevId};
use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;

use crate::limits::{CELLS_MAX, PLAN_STEPS_MAX, SPARE_HOPS_MAX};
use crate::map::{BOOT_SIZE, BlockMap, RaidzGeometry};
use crate::reflow::Views;
use crate::spec::VdevKind;
use crate::tree::{Geometry, LABEL_START, NodeId, Tree};

/// How much to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlanMode {
    Quick,
    All,
    /// One place that has the bytes, and all that lack them.
    Rebuild,
}

/// A byte range of a leaf; `offset` is an offset on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct LeafRange {
    pub(crate) leaf: NodeId,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// How cells combine to a range of bytes.
#[derive(Debug)]
pub(crate) enum PlanShape {
    /// Nothing readable holds these bytes.
    Dead,
    /// The bytes of one leaf. `stale` means that its missing ranges contain the block's
    /// birth.
    Cell { index: usize, stale: bool },
    /// Each holds all of the bytes.
    Mirror(Vec<PlanShape>),
    /// Parity stripes; a shape for each column that is read.
    Raid { map: BlockMap, cols: Vec<Vec<Option<PlanShape>>> },
    /// Pieces: distance from the start, length, shape.
    Split(Vec<(u64, u64, PlanShape)>),
}

impl PlanShape {
    /// Whether some cell missed the block's txg.
    pub(crate) fn any_stale(&self) -> bool {
        match self {
            PlanShape::Dead => false,
            PlanShape::Cell { stale, .. } => *stale,
            PlanShape::Mirror(children) => children.iter().any(PlanShape::any_stale),
            PlanShape::Raid { cols, .. } => {
                cols.iter().flatten().flatten().any(PlanShape::any_stale)
            }
            PlanShape::Split(parts) => parts.iter().any(|p| p.2.any_stale()),
        }
    }

    /// The cells that each hold the whole block and did not miss its txg; `None` if the
    /// block is spread over several cells.
    pub(crate) fn copies(&self) -> Option<Vec<usize>> {
        match self {
            PlanShape::Dead | PlanShape::Cell { stale: true, .. } => Some(Vec::new()),
            PlanShape::Cell { index, .. } => Some(vec![*index]),
            PlanShape::Mirror(children) => {
                let all: Option<Vec<_>> = children.iter().map(PlanShape::copies).collect();
                all.map(|copies| copies.concat())
            }
            PlanShape::Raid { .. } | PlanShape::Split(_) => None,
        }
    }
}

/// How reliable a vdev's bytes are; later variants are better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Trust {
    Dead,
    Stale,
    /// Right, but read only if it must be ([`Node::sits_out`]).
    ///
    /// [`Node::sits_out`]: crate::Node::sits_out
    Slow,
    Good,
}

/// How a mirror's child compares with the others; the greatest is read: its trust, whether it was
/// chosen before, and its queue.
type ChildRank = (Trust, bool, std::cmp::Reverse<u32>);

/// A range of a vdev, with what is known about the path to it.
#[derive(Clone, Copy)]
struct ReadRange {
    offset: u64,
    len: u64,
    birth: Txg,
    /// Added to `offset` by a leaf to get an offset on the device.
    base: u64,
    /// A distributed spare on the path missed the block's txg.
    stale: bool,
    spare_hops: usize,
    indirect_hops: usize,
}

pub(crate) struct Planner<'a> {
    tree: &'a Tree,
    views: &'a Views,
    mode: PlanMode,
    steps: usize,
    pub(crate) cells: Vec<LeafRange>,
    /// Cells that missed the block's txg, by their index: a scan writes them unread.
    pub(crate) stale: Vec<usize>,
    /// The child of each mirror that was read before and is read again, as long as no other
    /// one is more trusted.
    pub(crate) chosen: Option<HashMap<NodeId, NodeId>>,
}

impl<'a> Planner<'a> {
    /// A planner of one operation; `views` must be kept until it ends.
    pub(crate) fn new(tree: &'a Tree, mode: PlanMode, views: &'a Views) -> Planner<'a> {
        let (cells, stale) = (Vec::new(), Vec::new());
        Planner { tree, views, mode, steps: 0, cells, stale, chosen: None }
    }

    /// The plan for `len` bytes (whole sectors) of a top-level vdev.
    pub(crate) fn top(
        &mut self,
        vdev: VdevId,
        offset: u64,
        len: u64,
        birth: Txg,
    ) -> Result<PlanShape> {
        let at = ReadRange {
            offset,
            len,
            birth,
            base: LABEL_START,
            stale: false,
            spare_hops: 0,
            indirect_hops: 0,
        };
        self.top_at(vdev, at)
    }

    /// The plan for bytes of a child of a raidz, whatever blocks they belong to; the caller knows
    /// that its leaves miss nothing.
    pub(crate) fn child(&mut self, id: NodeId, offset: u64, len: u64) -> Result<PlanShape> {
        let at = ReadRange {
            offset,
            len,
            birth: Txg::ZERO,
            base: LABEL_START,
            stale: false,
            spare_hops: 0,
            indirect_hops: 0,
        };
        self.node(id, at)
    }

    fn top_at(&mut self, vdev: VdevId, at: ReadRange) -> Result<PlanShape> {
        let id = self.tree.top_node(vdev)?;
        let node = self.tree.node(id);
        match node.kind() {
            VdevKind::Hole | VdevKind::Missing => {
                let name = node.kind().name();
                return Err(Error::corrupt(format!("an address names vdev {vdev}, a {name} vdev")));
            }
            VdevKind::Indirect => {}
            _ => {
                let end = at.offset.checked_add(node.asize_of(at.len, at.birth));
                if end.is_none_or(|end| end > node.asize()) {
                    return Err(Error::corrupt(format!(
                        "an address reaches past the end of vdev {vdev}"
                    )));
                }
                if !at.offset.is_multiple_of(1 << node.ashift()) && at.indirect_hops == 0 {
                    return Err(Error::corrupt(format!(
                        "an address on vdev {vdev} is not at a sector's start"
                    )));
                }
            }
        }
        self.node(id, at)
    }

    fn step(&mut self) -> Result<()> {
        self.steps += 1;
        if self.steps > PLAN_STEPS_MAX || self.cells.len() > CELLS_MAX {
            return Err(Error::limit("reading a block takes too many steps"));
        }
        Ok(())
    }

    fn node(&mut self, id: NodeId, at: ReadRange) -> Result<PlanShape> {
        self.step()?;
        let tree = self.tree;
        let node = tree.node(id);
        if !node.readable() {
            return Ok(PlanShape::Dead);
        }
        match (node.kind(), &node.geometry) {
            (_, Geometry::Raidz(raidz)) => {
                let map = match self.views.of(id, node) {
                    None => raidz.map(at.offset, at.len, at.birth)?,
                    Some(view) => {
                        let moving = RaidzGeometry { reflow: Some(view), ..raidz.clone() };
                        moving.map(at.offset, at.len, at.birth)?
                    }
                };
                self.raid(id, map, at)
            }
            (_, Geometry::Draid(draid)) => {
                let map = draid.map(at.offset, at.len)?;
                self.raid(id, map, at)
            }
            (VdevKind::Mirror | VdevKind::Replacing | VdevKind::Spare, _) => self.mirror(id, at),
            (VdevKind::DraidSpare { .. }, _) => match self.spare_target(id, at)? {
                Some((child, at)) => self.node(child, at),
                None => Ok(PlanShape::Dead),
            },
            (VdevKind::Indirect, _) => self.indirect(id, at),
            (VdevKind::Disk | VdevKind::File, _) => {
                let offset = at.offset.checked_add(at.base);
                let Some(offset) = offset else { return Ok(PlanShape::Dead) };
                let stale = at.stale || node.live.missing.contains(at.birth);
                let index = self.cells.len();
                self.cells.push(LeafRange { leaf: id, offset, len: at.len });
                self.stale.extend(stale.then_some(index));
                Ok(PlanShape::Cell { index, stale })
            }
            (VdevKind::Root | VdevKind::Missing | VdevKind::Hole, _) => Ok(PlanShape::Dead),
            (VdevKind::Raidz { .. } | VdevKind::Draid(_), Geometry::Plain) => {
                Err(base::bug!("a parity vdev without geometry"))
            }
        }
    }

    /// The child that holds a distributed spare's bytes.
    fn spare_target(&mut self, id: NodeId, at: ReadRange) -> Result<Option<(NodeId, ReadRange)>> {
        let tree = self.tree;
        let node = tree.node(id);
        let VdevKind::DraidSpare { draid, spare_id } = node.kind() else { return Ok(None) };
        let Some(target) = tree.find(*draid) else { return Ok(None) };
        let Geometry::Draid(geometry) = &target.geometry else { return Ok(None) };
        if at.spare_hops >= SPARE_HOPS_MAX {
            return Ok(None);
        }
        let Some((child, left)) = geometry.spare_child(*spare_id, at.offset) else {
            return Ok(None);
        };
        if at.len > left {
            return Err(base::bug!("a column crosses the end of a dRAID slice"));
        }
        let stale = at.stale || node.live.missing.contains(at.birth);
        let at = ReadRange { stale, spare_hops: at.spare_hops + 1, ..at };
        Ok(target.children().get(child as usize).map(|&c| (c, at)))
    }

    /// How reliable a vdev's bytes in a range are.
    fn trust(&mut self, id: NodeId, at: ReadRange) -> Result<Trust> {
        self.step()?;
        let tree = self.tree;
        let node = tree.node(id);
        if !node.readable() {
            return Ok(Trust::Dead);
        }
        match node.kind() {
            VdevKind::Mirror | VdevKind::Replacing | VdevKind::Spare => {
                let mut best = Trust::Dead;
                for &child in node.children() {
                    best = best.max(self.trust(child, at)?);
                }
                Ok(best)
            }
            VdevKind::DraidSpare { .. } => match self.spare_target(id, at)? {
                Some((child, at)) => self.trust(child, at),
                None => Ok(Trust::Dead),
            },
            _ if at.stale || node.live.missing.contains(at.birth) => Ok(Trust::Stale),
            _ if node.sits_out() => Ok(Trust::Slow),
            _ => Ok(Trust::Good),
        }
    }

    fn mirror(&mut self, id: NodeId, at: ReadRange) -> Result<PlanShape> {
        let tree = self.tree;
        let node = tree.node(id);
        if self.mode == PlanMode::Rebuild {
            return self.copied_mirror(id, at);
        }
        if self.mode == PlanMode::All {
            let kids = node.children().iter().map(|&c| self.node(c, at));
            return Ok(PlanShape::Mirror(kids.collect::<Result<_>>()?));
        }
        let before = self.chosen.as_ref().and_then(|chosen| chosen.get(&id)).copied();
        // The most trusted child first; then the one chosen before; then the shortest queue;
        // then round robin.
        let n = node.children().len();
        let rotation = node.live.rotor.fetch_add(1, Relaxed) as usize;
        let mut best: Option<(ChildRank, NodeId)> = None;
        for i in 0..n {
            let child = node.children()[(rotation + i) % n];
            let trust = self.trust(child, at)?;
            let queued = std::cmp::Reverse(tree.node(child).live.in_flight.load(Relaxed));
            let rank = (trust, before == Some(child), queued);
            if best.is_none_or(|(best, _)| rank > best) {
                best = Some((rank, child));
            }
        }
        match best {
            Some(((trust, ..), child)) if trust > Trust::Dead => {
                if let Some(chosen) = &mut self.chosen {
                    chosen.insert(id, child);
                }
                self.node(child, at)
            }
            _ => Ok(PlanShape::Dead),
        }
    }

    /// Whether a leaf below a vdev can be written and lacks the bytes.
    fn lacks(&mut self, id: NodeId, at: ReadRange) -> Result<bool> {
        self.step()?;
        let tree = self.tree;
        let node = tree.node(id);
        match node.kind() {
            _ if !node.readable() => Ok(false),
            VdevKind::Mirror | VdevKind::Replacing | VdevKind::Spare => {
                for &child in node.children() {
                    if self.lacks(child, at)? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            VdevKind::DraidSpare { .. } => match self.spare_target(id, at)? {
                Some((child, at)) => self.lacks(child, at),
                None => Ok(false),
            },
            _ => Ok(at.stale || node.live.missing.contains(at.birth)),
        }
    }

    /// The children with leaves that lack the bytes, and one child to read them from.
    fn copied_mirror(&mut self, id: NodeId, at: ReadRange) -> Result<PlanShape> {
        let tree = self.tree;
        let node = tree.node(id);
        let n = node.children().len();
        let rotation = node.live.rotor.fetch_add(1, Relaxed) as usize;
        let (mut kids, mut other, mut source) = (Vec::new(), None, false);
        for i in 0..n {
            let child = node.children()[(rotation + i) % n];
            let good = self.trust(child, at)? == Trust::Good;
            if self.lacks(child, at)? {
                source |= good;
                kids.push(self.node(child, at)?);
            } else if good {
                other = other.or(Some(child));
            }
        }
        if let Some(child) = other.filter(|_| !source) {
            kids.push(self.node(child, at)?);
        }
        Ok(PlanShape::Mirror(kids))
    }

    fn indirect(&mut self, id: NodeId, at: ReadRange) -> Result<PlanShape> {
        if at.indirect_hops >= INDIRECT_HOPS_MAX {
            return Err(Error::limit(
                "an address is moved from one removed vdev to the next too often",
            ));
        }
        let node = self.tree.node(id);
        let Some(map) = node.live.map() else {
            return Err(Error::new(
                base::ErrorKind::DevicesMissing,
                "the mapping of a removed vdev has not been loaded",
            )
            .on_vdev(node.guid()));
        };
        let mut parts = Vec::new();
        for segment in map.segments(at.offset, at.len)? {
            let there = ReadRange {
                offset: segment.offset,
                len: segment.len,
                birth: segment.birth.unwrap_or(at.birth),
                indirect_hops: at.indirect_hops + 1,
                ..at
            };
            let shape = self.top_at(segment.vdev, there)?;
            parts.push((segment.start, segment.len, shape));
        }
        Ok(match parts.len() {
            1 => parts.pop().map_or(PlanShape::Dead, |(_, _, shape)| shape),
            _ => PlanShape::Split(parts),
        })
    }

    fn raid(&mut self, id: NodeId, map: BlockMap, at: ReadRange) -> Result<PlanShape> {
        let children = self.tree.node(id).children();
        let mut cols = Vec::with_capacity(map.stripes.len());
        for stripe in &map.stripes {
            let mut shapes: Vec<Option<PlanShape>> = Vec::with_capacity(stripe.cols.len());
            let mut missing = 0;
            // Data columns of slow leaves that parity can replace.
            let mut replaceable = 0;
            let target_of = |col: &crate::map::Col, len| {
                let child = col.child.and_then(|c| children.get(c as usize)).copied();
                let base = if col.scratch { LABEL_START - BOOT_SIZE } else { at.base };
                child.map(|child| (child, ReadRange { offset: col.offset, len, base, ..at }))
            };
            let slow = children.iter().any(|&child| self.tree.node(child).sits_out());
            if slow && self.mode == PlanMode::Quick {
                let (mut parity, mut lost) = (0_usize, 0);
                for (i, col) in stripe.cols.iter().enumerate() {
                    let is_parity = i < map.nparity;
                    let len = if is_parity { col.stored } else { col.len };
                    let target = target_of(col, len).filter(|_| len > 0);
                    match target.map(|(child, there)| self.trust(child, there)).transpose()? {
                        Some(Trust::Good) if is_parity => parity += 1,
                        Some(Trust::Dead | Trust::Stale) if !is_parity => lost += 1,
                        _ => {}
                    }
                }
                replaceable = parity.saturating_sub(lost);
            }
            for (i, col) in stripe.cols.iter().enumerate() {
                let rebuild = self.mode == PlanMode::Rebuild;
                let all = self.mode == PlanMode::All || rebuild;
                let wanted = if all { col.stored } else { col.len };
                let target = target_of(col, wanted).filter(|_| wanted > 0);
                let Some((child, there)) = target else {
                    shapes.push(None);
                    continue;
                };
                if (!all || rebuild) && i >= map.nparity {
                    let trust = self.trust(child, there)?;
                    let replaced = trust == Trust::Slow && replaceable > 0;
                    if replaced || trust < Trust::Slow {
                        replaceable -= usize::from(replaced);
                        missing += 1;
                        if !rebuild {
                            shapes.push(None);
                            continue;
                        }
                    }
                }
                // Parity is read below, if it is needed.
                let unread = rebuild && i < map.nparity && !self.lacks(child, there)?;
                shapes.push(if unread { None } else { Some(self.node(child, there)?) });
            }
            for wanted in [Trust::Good, Trust::Slow] {
                for (i, col) in stripe.cols.iter().enumerate().take(map.nparity) {
                    if missing > 0
                        && let Some((child, there)) = target_of(col, col.stored)
                        && self.trust(child, there)? == wanted
                    {
                        if shapes[i].is_none() {
                            shapes[i] = Some(self.node(child, there)?);
                        }
                        missing -= 1;
                    }
                }
            }
            cols.push(shapes);
        }
        Ok(PlanShape::Raid { map, cols })
    }
}
