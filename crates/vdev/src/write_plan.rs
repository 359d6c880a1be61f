//! Planning a write: which bytes each leaf gets, and how many of the leaves must
//! succeed.
//!
//! # Theory
//! The counterpart of `plan`. Reads and writes use the same maps (`RaidzGeometry::map`,
//! `DraidGeometry::map`, distributed spares) for the location of columns, so they
//! agree. Data columns are slices of the block; only parity is newly allocated memory.
//!
//! # Invariants
//! * Every leaf below the written address is in a piece or in the list of dead leaves.
//! * The columns of a dRAID are written in full, with zeros behind the data (chapter 02
//!   §11.3).
//! * Planning takes at most `PLAN_STEPS_MAX` steps and makes at most `CELLS_MAX`
//!   pieces.

use base::limits::BUF_SIZE_MAX;
use base::{Buf, BufMut, Error, Result, Txg, VdevId};

use crate::limits::{CELLS_MAX, PLAN_STEPS_MAX, SPARE_HOPS_MAX};
use crate::map::{BlockMap, RaidzGeometry, whole_sectors};
use crate::parity;
use crate::reflow::{Placement, ReflowUse, is_expanding};
use crate::spec::VdevKind;
use crate::tree::{Geometry, LABEL_START, NodeId, Tree};

/// The condition under which a write succeeds.
#[derive(Clone, Debug)]
pub(crate) enum Need {
    /// Never: nothing writable is there.
    Lost,
    /// This piece succeeds.
    Piece(u32),
    /// One of them holds.
    Any(Vec<Need>),
    /// All code words succeed: in each, all columns except `tolerated` ones.
    Stripes { tolerated: usize, stripes: Vec<Vec<Need>> },
}

impl Need {
    /// Whether the condition holds; `failed` reports whether a piece failed.
    pub(crate) fn fulfilled(&self, failed: &dyn Fn(u32) -> bool) -> bool {
        match self {
            Need::Lost => false,
            Need::Piece(index) => !failed(*index),
            Need::Any(children) => children.iter().any(|c| c.fulfilled(failed)),
            Need::Stripes { tolerated, stripes } => stripes
                .iter()
                .all(|cols| cols.iter().filter(|c| !c.fulfilled(failed)).count() <= *tolerated),
        }
    }
}

/// Bytes for one leaf.
#[derive(Debug)]
pub(crate) struct WritePiece {
    pub(crate) leaf: NodeId,
    /// The distributed spares through which the write reaches the leaf.
    pub(crate) through: Vec<NodeId>,
    /// Offset on the device, bytes.
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) bufs: Vec<Buf>,
    /// Zeros that no reader uses.
    pub(crate) optional: bool,
}

/// The plan of a whole write.
pub(crate) struct WritePlan {
    pub(crate) need: Need,
    pub(crate) pieces: Vec<WritePiece>,
    /// Leaves that should get a piece and cannot be written.
    pub(crate) dead: Vec<NodeId>,
    /// Holds the places of an expanding vdev.
    pub(crate) moving: Option<ReflowUse>,
}

/// A range of a vdev and the bytes to write there.
#[derive(Clone, Copy)]
struct WriteRange<'a> {
    offset: u64,
    len: u64,
    bufs: &'a [Buf],
    optional: bool,
}

struct Placer<'a> {
    tree: &'a Tree,
    steps: usize,
    pieces: Vec<WritePiece>,
    dead: Vec<NodeId>,
    through: Vec<NodeId>,
}

/// The block in whole sectors, padded with zeros, in memory that O_DIRECT accepts.
fn padded(data: &Buf, ashift: u32) -> Result<Buf> {
    let len = whole_sectors(data.len() as u64, ashift)? as usize;
    if len > BUF_SIZE_MAX {
        return Err(Error::limit("the vdev's sectors are too large to be written"));
    }
    let align = 1usize << ashift.min(12);
    if len == data.len() && (data.as_ptr() as usize).is_multiple_of(align) {
        return Ok(data.clone());
    }
    let mut copy = BufMut::alloc(len);
    copy[..data.len()].copy_from_slice(data);
    copy[data.len()..].fill(0);
    Ok(copy.freeze())
}

impl WritePlan {
    /// Lays a block out over the leaves and computes its parity.
    pub(crate) fn new(
        tree: &Tree,
        vdev: VdevId,
        offset: u64,
        data: &Buf,
        birth: Txg,
    ) -> Result<WritePlan> {
        let id = tree.top_node(vdev)?;
        let node = tree.node(id);
        match node.kind() {
            VdevKind::Hole | VdevKind::Missing | VdevKind::Indirect => {
                let name = node.kind().name();
                return Err(Error::invalid(format!(
                    "vdev {vdev} cannot be written: it is a {name} vdev"
                )));
            }
            _ => {}
        }
        let data = padded(data, node.ashift())?;
        let len = data.len() as u64;
        let end = offset.checked_add(node.asize_of(len, birth));
        if end.is_none_or(|end| end > node.asize()) {
            return Err(Error::corrupt(format!("a write reaches past the end of vdev {vdev}")));
        }
        if !offset.is_multiple_of(1 << node.ashift()) {
            return Err(Error::corrupt(format!(
                "a write on vdev {vdev} is not at a sector's start"
            )));
        }
        let moving = is_expanding(node).then(|| ReflowUse::begin(&node.live));
        if moving.as_ref().is_some_and(|moving| moving.placement.view.scratch_valid) {
            return Err(Error::unsupported(format!(
                "vdev {vdev} is being expanded, and its first rows are in the scratch area"
            )));
        }
        let mut placer = Placer::new(tree);
        let need = match &node.geometry {
            Geometry::Raidz(raidz) => match &moving {
                Some(moving) => {
                    let view = Some(moving.placement.view);
                    let now = RaidzGeometry { reflow: view, ..raidz.clone() };
                    let places = Some((&now, moving.placement));
                    placer.raid(id, &now.map(offset, len, birth)?, &data, places)?
                }
                None => {
                    let need = placer.raid(id, &raidz.map(offset, len, birth)?, &data, None)?;
                    placer.skips(id, raidz.skips(offset, len, birth), node.ashift())?;
                    need
                }
            },
            Geometry::Draid(draid) => placer.raid(id, &draid.map(offset, len)?, &data, None)?,
            Geometry::Plain => {
                placer.node(id, WriteRange { offset, len, bufs: &[data], optional: false })?
            }
        };
        Ok(WritePlan { need, pieces: placer.pieces, dead: placer.dead, moving })
    }

    /// Bytes for vdevs below a top-level one, at offsets in their allocatable areas.
    pub(crate) fn raw(tree: &Tree, rows: Vec<(NodeId, u64, Buf)>) -> Result<WritePlan> {
        let mut placer = Placer::new(tree);
        for (id, offset, data) in rows {
            let len = data.len() as u64;
            placer.node(id, WriteRange { offset, len, bufs: &[data], optional: false })?;
        }
        let need = Need::Any(Vec::new());
        Ok(WritePlan { need, pieces: placer.pieces, dead: placer.dead, moving: None })
    }
}

impl<'a> Placer<'a> {
    fn new(tree: &'a Tree) -> Placer<'a> {
        let (pieces, dead, through) = (Vec::new(), Vec::new(), Vec::new());
        Placer { tree, steps: 0, pieces, dead, through }
    }
}

impl Placer<'_> {
    fn step(&mut self) -> Result<()> {
        self.steps += 1;
        if self.steps > PLAN_STEPS_MAX || self.pieces.len() > CELLS_MAX {
            return Err(Error::limit("writing a block takes too many steps"));
        }
        Ok(())
    }

    fn node(&mut self, id: NodeId, at: WriteRange<'_>) -> Result<Need> {
        self.step()?;
        let tree = self.tree;
        let node = tree.node(id);
        match node.kind() {
            VdevKind::Mirror | VdevKind::Replacing | VdevKind::Spare => {
                let children = node.children().iter().map(|&c| self.node(c, at));
                Ok(Need::Any(children.collect::<Result<_>>()?))
            }
            VdevKind::DraidSpare { .. } => self.spare(id, at),
            VdevKind::Disk | VdevKind::File | VdevKind::Missing => Ok(self.leaf(id, at)),
            _ => Err(Error::corrupt(format!(
                "a {} vdev below the top level cannot be written",
                node.kind().name()
            ))),
        }
    }

    fn leaf(&mut self, id: NodeId, at: WriteRange<'_>) -> Need {
        let Some(offset) = at.offset.checked_add(LABEL_START) else { return Need::Lost };
        if self.tree.node(id).writable().is_none() {
            self.lost(id, at);
            return Need::Lost;
        }
        let index = self.pieces.len() as u32;
        self.pieces.push(WritePiece {
            leaf: id,
            through: self.through.clone(),
            offset,
            len: at.len,
            bufs: at.bufs.to_vec(),
            optional: at.optional,
        });
        Need::Piece(index)
    }

    /// Records that the leaf, and the spares that it stands in for, do not get the
    /// bytes.
    fn lost(&mut self, id: NodeId, at: WriteRange<'_>) {
        if !at.optional {
            self.dead.push(id);
            self.dead.extend_from_slice(&self.through);
        }
    }

    /// Continues with the child of the dRAID that holds a distributed spare (§11.4).
    fn spare(&mut self, id: NodeId, at: WriteRange<'_>) -> Result<Need> {
        let tree = self.tree;
        let node = tree.node(id);
        let target = match node.kind() {
            VdevKind::DraidSpare { draid, spare_id } if node.readable() => {
                tree.find(*draid).and_then(|found| match &found.geometry {
                    Geometry::Draid(geometry) => {
                        let (child, left) = geometry.spare_child(*spare_id, at.offset)?;
                        Some((*found.children().get(child as usize)?, left))
                    }
                    _ => None,
                })
            }
            _ => None,
        };
        match target {
            Some((child, left)) if self.through.len() < SPARE_HOPS_MAX => {
                if at.len > left {
                    return Err(base::bug!("a column crosses the end of a dRAID slice"));
                }
                self.through.push(id);
                let need = self.node(child, at);
                self.through.pop();
                need
            }
            _ => {
                self.lost(id, at);
                Ok(Need::Lost)
            }
        }
    }

    /// `moving`: sectors below the offset that was copied go to their new place, too.
    fn raid(
        &mut self,
        id: NodeId,
        map: &BlockMap,
        data: &Buf,
        moving: Option<(&RaidzGeometry, Placement)>,
    ) -> Result<Need> {
        let tree = self.tree;
        let children = tree.node(id).children();
        let mut stripes = Vec::with_capacity(map.stripes.len());
        for stripe in &map.stripes {
            let part = |col: &crate::map::Col| col.start as usize..(col.start + col.len) as usize;
            let columns: Vec<&[u8]> =
                stripe.cols.iter().skip(map.nparity).map(|c| &data[part(c)]).collect();
            let mut parity: Vec<BufMut> =
                (0..map.nparity).map(|_| BufMut::alloc(stripe.colsize as usize)).collect();
            let mut rows: Vec<&mut [u8]> = parity.iter_mut().map(|p| &mut p[..]).collect();
            parity::generate(&mut rows, &columns)
                .ok_or_else(|| base::bug!("a stripe's shape has no parity"))?;
            let mut parity = parity.into_iter();
            let mut needs = Vec::with_capacity(stripe.cols.len());
            let mut second: Option<Vec<Need>> = None;
            for col in &stripe.cols {
                let mut bufs = match parity.next() {
                    Some(row) => vec![row.freeze()],
                    None => vec![data.slice(part(col))],
                };
                // The cell does not exist, or there is nothing to store.
                let Some(child) = col.child.filter(|_| col.stored > 0) else { continue };
                let have = bufs[0].len() as u64;
                if have < col.stored {
                    bufs.push(Buf::zeros((col.stored - have) as usize));
                }
                bufs.retain(|b| !b.is_empty());
                let Some(&child) = children.get(child as usize) else {
                    return Err(base::bug!("a column lies on a child that does not exist"));
                };
                let at = WriteRange {
                    offset: col.offset,
                    len: col.stored,
                    bufs: &bufs,
                    optional: false,
                };
                let need = self.node(child, at)?;
                let other = moving.and_then(|(raidz, places)| raidz.second_place(col, places));
                if let Some((child, offset)) = other {
                    let child = children.get(child as usize).copied();
                    let child = child.ok_or_else(|| base::bug!("a column moves to no child"))?;
                    let moved = self.node(child, WriteRange { offset, ..at })?;
                    second.get_or_insert_with(|| needs.clone()).push(moved);
                } else if let Some(second) = &mut second {
                    second.push(need.clone());
                }
                needs.push(need);
            }
            stripes.push(needs);
            stripes.extend(second);
        }
        Ok(Need::Stripes { tolerated: map.nparity, stripes })
    }

    /// Adds zeros for the sectors that round a raidz block up, where they join
    /// neighbours.
    fn skips(
        &mut self,
        id: NodeId,
        skips: impl Iterator<Item = (u32, u64)>,
        ashift: u32,
    ) -> Result<()> {
        let tree = self.tree;
        let len = 1u64 << ashift;
        // The format allows sectors of up to 1 GiB; a buffer is smaller.
        if len > 1 << 16 {
            return Ok(());
        }
        let zeros = [Buf::zeros(len as usize)];
        for (child, offset) in skips {
            if let Some(&child) = tree.node(id).children().get(child as usize) {
                self.node(child, WriteRange { offset, len, bufs: &zeros, optional: true })?;
            }
        }
        Ok(())
    }
}
