//! Planning a read: which bytes of which leaves, and how they belong together.
//!
//! # Theory
//! A plan is a [`Shape`] over cells. A cell is a byte range of one leaf. In
//! [`Mode::Quick`] a mirror contributes its best child and a parity stripe its data
//! columns, plus as many parity columns as data columns are known to be
//! unreadable; in [`Mode::All`] everything that exists is read.
//!
//! # Invariants
//! * Planning takes at most `PLAN_STEPS_MAX` steps and makes at most `CELLS_MAX`
//!   cells, however the configuration loops through distributed spares.

use base::limits::INDIRECT_HOPS_MAX;
use base::{Error, Result, Txg, VdevId};
use std::sync::atomic::Ordering::Relaxed;

use crate::limits::{CELLS_MAX, PLAN_STEPS_MAX, SPARE_HOPS_MAX};
use crate::map::{BOOT_SIZE, BlockMap};
use crate::spec::Kind;
use crate::tree::{Geometry, LABEL_START, NodeId, Tree};

/// How much to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Quick,
    All,
}

/// A byte range of a leaf; `offset` is a device byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Cell {
    pub(crate) leaf: NodeId,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// How cells make up a range of bytes.
#[derive(Debug)]
pub(crate) enum Shape {
    /// Nothing readable holds these bytes.
    Dead,
    /// One leaf's bytes; `stale`: its missing ranges contain the block's birth.
    Cell { index: usize, stale: bool },
    /// Each holds all of the bytes.
    Mirror(Vec<Shape>),
    /// Parity stripes; a shape for each column that is read.
    Raid { map: BlockMap, cols: Vec<Vec<Option<Shape>>> },
    /// Pieces at a distance from the start, each of a length.
    Split(Vec<(u64, u64, Shape)>),
}

impl Shape {
    /// Whether some cell missed the block's group.
    pub(crate) fn any_stale(&self) -> bool {
        match self {
            Shape::Dead => false,
            Shape::Cell { stale, .. } => *stale,
            Shape::Mirror(children) => children.iter().any(Shape::any_stale),
            Shape::Raid { cols, .. } => cols.iter().flatten().flatten().any(Shape::any_stale),
            Shape::Split(parts) => parts.iter().any(|p| p.2.any_stale()),
        }
    }

    /// The cells that each hold the whole block and did not miss its group; `None`
    /// if the block is spread over several.
    pub(crate) fn copies(&self) -> Option<Vec<usize>> {
        match self {
            Shape::Dead | Shape::Cell { stale: true, .. } => Some(Vec::new()),
            Shape::Cell { index, .. } => Some(vec![*index]),
            Shape::Mirror(children) => {
                let all: Option<Vec<_>> = children.iter().map(Shape::copies).collect();
                all.map(|copies| copies.concat())
            }
            Shape::Raid { .. } | Shape::Split(_) => None,
        }
    }
}

/// How much a vdev's bytes can be relied on; later is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Trust {
    Dead,
    Stale,
    Good,
}

/// Where in a vdev, and what is known about the path to it.
#[derive(Clone, Copy)]
struct At {
    offset: u64,
    len: u64,
    birth: Txg,
    /// What a leaf adds to `offset` to get a device byte.
    base: u64,
    /// A distributed spare on the way missed the block's group.
    stale: bool,
    spare_hops: usize,
    indirect_hops: usize,
}

pub(crate) struct Planner<'a> {
    tree: &'a Tree,
    mode: Mode,
    steps: usize,
    pub(crate) cells: Vec<Cell>,
}

impl<'a> Planner<'a> {
    pub(crate) fn new(tree: &'a Tree, mode: Mode) -> Planner<'a> {
        Planner { tree, mode, steps: 0, cells: Vec::new() }
    }

    /// The plan for `len` bytes (whole sectors) of a top-level vdev.
    pub(crate) fn top(&mut self, vdev: VdevId, offset: u64, len: u64, birth: Txg) -> Result<Shape> {
        let at = At {
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

    fn top_at(&mut self, vdev: VdevId, at: At) -> Result<Shape> {
        let id = self.tree.top_node(vdev)?;
        let node = self.tree.node(id);
        match node.kind() {
            Kind::Hole | Kind::Missing => {
                let name = node.kind().name();
                return Err(Error::corrupt(format!("an address names vdev {vdev}, a {name} vdev")));
            }
            Kind::Indirect => {}
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

    fn node(&mut self, id: NodeId, at: At) -> Result<Shape> {
        self.step()?;
        let tree = self.tree;
        let node = tree.node(id);
        if !node.readable() {
            return Ok(Shape::Dead);
        }
        match (node.kind(), &node.geometry) {
            (_, Geometry::Raidz(raidz)) => {
                let map = raidz.map(at.offset, at.len, at.birth)?;
                self.raid(id, map, at)
            }
            (_, Geometry::Draid(draid)) => {
                let map = draid.map(at.offset, at.len)?;
                self.raid(id, map, at)
            }
            (Kind::Mirror | Kind::Replacing | Kind::Spare, _) => self.mirror(id, at),
            (Kind::DraidSpare { .. }, _) => match self.spare_target(id, at)? {
                Some((child, at)) => self.node(child, at),
                None => Ok(Shape::Dead),
            },
            (Kind::Indirect, _) => self.indirect(id, at),
            (Kind::Disk | Kind::File, _) => {
                let offset = at.offset.checked_add(at.base);
                let Some(offset) = offset else { return Ok(Shape::Dead) };
                let stale = at.stale || node.live.dtl().contains(at.birth);
                self.cells.push(Cell { leaf: id, offset, len: at.len });
                Ok(Shape::Cell { index: self.cells.len() - 1, stale })
            }
            (Kind::Root | Kind::Missing | Kind::Hole, _) => Ok(Shape::Dead),
            (Kind::Raidz { .. } | Kind::Draid(_), Geometry::Plain) => {
                Err(Error::bug("a parity vdev without geometry"))
            }
        }
    }

    /// The child that stands behind a distributed spare.
    fn spare_target(&mut self, id: NodeId, at: At) -> Result<Option<(NodeId, At)>> {
        let tree = self.tree;
        let node = tree.node(id);
        let Kind::DraidSpare { draid, spare_id } = node.kind() else { return Ok(None) };
        let Some(target) = tree.find(*draid) else { return Ok(None) };
        let Geometry::Draid(geometry) = &target.geometry else { return Ok(None) };
        if at.spare_hops >= SPARE_HOPS_MAX {
            return Ok(None);
        }
        let Some((child, left)) = geometry.spare_child(*spare_id, at.offset) else {
            return Ok(None);
        };
        if at.len > left {
            return Err(Error::bug("a column crosses the end of a dRAID slice"));
        }
        let stale = at.stale || node.live.dtl().contains(at.birth);
        let at = At { stale, spare_hops: at.spare_hops + 1, ..at };
        Ok(target.children().get(child as usize).map(|&c| (c, at)))
    }

    /// How far a vdev's bytes at a place can be relied on.
    fn trust(&mut self, id: NodeId, at: At) -> Result<Trust> {
        self.step()?;
        let tree = self.tree;
        let node = tree.node(id);
        if !node.readable() {
            return Ok(Trust::Dead);
        }
        match node.kind() {
            Kind::Mirror | Kind::Replacing | Kind::Spare => {
                let mut best = Trust::Dead;
                for &child in node.children() {
                    best = best.max(self.trust(child, at)?);
                }
                Ok(best)
            }
            Kind::DraidSpare { .. } => match self.spare_target(id, at)? {
                Some((child, at)) => self.trust(child, at),
                None => Ok(Trust::Dead),
            },
            _ if at.stale || node.live.dtl().contains(at.birth) => Ok(Trust::Stale),
            _ => Ok(Trust::Good),
        }
    }

    fn mirror(&mut self, id: NodeId, at: At) -> Result<Shape> {
        let tree = self.tree;
        let node = tree.node(id);
        if self.mode == Mode::All {
            let kids = node.children().iter().map(|&c| self.node(c, at));
            return Ok(Shape::Mirror(kids.collect::<Result<_>>()?));
        }
        // The most trusted; then the shortest queue; then in turn.
        let n = node.children().len();
        let turn = node.live.rotor.fetch_add(1, Relaxed) as usize;
        let mut best: Option<(Trust, std::cmp::Reverse<u32>, NodeId)> = None;
        for i in 0..n {
            let child = node.children()[(turn + i) % n];
            let trust = self.trust(child, at)?;
            let queued = std::cmp::Reverse(tree.node(child).live.in_flight.load(Relaxed));
            if best.is_none_or(|(t, q, _)| (trust, queued) > (t, q)) {
                best = Some((trust, queued, child));
            }
        }
        match best {
            Some((trust, _, child)) if trust > Trust::Dead => self.node(child, at),
            _ => Ok(Shape::Dead),
        }
    }

    fn indirect(&mut self, id: NodeId, at: At) -> Result<Shape> {
        if at.indirect_hops >= INDIRECT_HOPS_MAX {
            return Err(Error::limit(
                "an address is moved from one removed vdev to the next too often",
            ));
        }
        let node = self.tree.node(id);
        let Some(map) = node.live.map() else {
            return Err(Error::new(
                base::ErrorKind::Missing,
                "the mapping of a removed vdev has not been loaded",
            )
            .on_vdev(node.guid()));
        };
        let mut parts = Vec::new();
        for segment in map.segments(at.offset, at.len)? {
            let there = At {
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
            1 => parts.pop().map_or(Shape::Dead, |(_, _, shape)| shape),
            _ => Shape::Split(parts),
        })
    }

    fn raid(&mut self, id: NodeId, map: BlockMap, at: At) -> Result<Shape> {
        let children = self.tree.node(id).children();
        let mut cols = Vec::with_capacity(map.stripes.len());
        for stripe in &map.stripes {
            let mut shapes: Vec<Option<Shape>> = Vec::with_capacity(stripe.cols.len());
            let mut missing = 0;
            let place = |col: &crate::map::Col, len| {
                let child = col.child.and_then(|c| children.get(c as usize)).copied();
                let base = if col.scratch { LABEL_START - BOOT_SIZE } else { at.base };
                child.map(|child| (child, At { offset: col.offset, len, base, ..at }))
            };
            for (i, col) in stripe.cols.iter().enumerate() {
                let all = self.mode == Mode::All;
                let wanted = if all { col.stored } else { col.len };
                let target = place(col, wanted).filter(|_| wanted > 0);
                let Some((child, there)) = target else {
                    shapes.push(None);
                    continue;
                };
                if !all && i >= map.nparity && self.trust(child, there)? != Trust::Good {
                    missing += 1;
                    shapes.push(None);
                    continue;
                }
                shapes.push(Some(self.node(child, there)?));
            }
            for (i, col) in stripe.cols.iter().enumerate().take(map.nparity) {
                if missing == 0 {
                    break;
                }
                if let Some((child, there)) = place(col, col.stored)
                    && self.trust(child, there)? == Trust::Good
                {
                    shapes[i] = Some(self.node(child, there)?);
                    missing -= 1;
                }
            }
            cols.push(shapes);
        }
        Ok(Shape::Raid { map, cols })
    }
}
