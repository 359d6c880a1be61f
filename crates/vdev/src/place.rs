//! Planning a write: which bytes go to which leaves, and how many of them it takes.
//!
//! # Theory
//! The twin of `plan`: the same maps (`RaidzGeometry::map`, `DraidGeometry::map`,
//! distributed spares) say where columns lie, so that reads and writes agree. Data
//! columns are slices of the block; only parity is new memory.
//!
//! # Invariants
//! * Every leaf below the written place is a piece, or among the dead.
//! * A dRAID's columns are written in full, zeros behind the data (chapter 02 §11.3).
//! * Planning takes at most `PLAN_STEPS_MAX` steps and makes at most `CELLS_MAX` pieces.

use base::limits::BUF_SIZE_MAX;
use base::{Buf, BufMut, Error, Result, Txg, VdevId};

use crate::limits::{CELLS_MAX, PLAN_STEPS_MAX, SPARE_HOPS_MAX};
use crate::map::{BlockMap, whole_sectors};
use crate::parity;
use crate::spec::Kind;
use crate::tree::{Geometry, LABEL_START, NodeId, Tree};

/// What of a plan has to succeed.
#[derive(Debug)]
pub(crate) enum Need {
    /// Nothing writable is there.
    Lost,
    /// This piece.
    Piece(u32),
    /// One of them.
    Any(Vec<Need>),
    /// All code words; of each, all columns but `tolerated` ones.
    Stripes { tolerated: usize, stripes: Vec<Vec<Need>> },
}

impl Need {
    /// Whether it is fulfilled; `failed` says of pieces whether they failed.
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
pub(crate) struct Piece {
    pub(crate) leaf: NodeId,
    /// The distributed spares that lead there.
    pub(crate) through: Vec<NodeId>,
    /// Device byte.
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) bufs: Vec<Buf>,
    /// Zeros that nobody reads.
    pub(crate) optional: bool,
}

/// A whole write.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) need: Need,
    pub(crate) pieces: Vec<Piece>,
    /// Leaves that ought to get something and cannot be written.
    pub(crate) dead: Vec<NodeId>,
}

/// A range of a vdev and what to write there.
#[derive(Clone, Copy)]
struct At<'a> {
    offset: u64,
    len: u64,
    bufs: &'a [Buf],
    optional: bool,
}

struct Placer<'a> {
    tree: &'a Tree,
    steps: usize,
    pieces: Vec<Piece>,
    dead: Vec<NodeId>,
    through: Vec<NodeId>,
}

/// The block in whole sectors, zeros behind it; and where O_DIRECT can take it from.
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

impl Plan {
    /// Lays a block out over the leaves; computes parity.
    pub(crate) fn new(
        tree: &Tree,
        vdev: VdevId,
        offset: u64,
        data: &Buf,
        birth: Txg,
    ) -> Result<Plan> {
        let id = tree.top_node(vdev)?;
        let node = tree.node(id);
        match node.kind() {
            Kind::Hole | Kind::Missing | Kind::Indirect => {
                let name = node.kind().name();
                return Err(Error::invalid(format!(
                    "vdev {vdev} cannot be written: it is a {name} vdev"
                )));
            }
            Kind::Raidz { reflow: Some(_), .. } => {
                return Err(Error::unsupported(format!(
                    "vdev {vdev} is being expanded; import the pool read-only, or let \
                     OpenZFS complete the expansion"
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
        let mut placer =
            Placer { tree, steps: 0, pieces: Vec::new(), dead: Vec::new(), through: Vec::new() };
        let need = match &node.geometry {
            Geometry::Raidz(raidz) => {
                let need = placer.raid(id, &raidz.map(offset, len, birth)?, &data)?;
                placer.skips(id, raidz.skips(offset, len, birth), node.ashift())?;
                need
            }
            Geometry::Draid(draid) => placer.raid(id, &draid.map(offset, len)?, &data)?,
            Geometry::Plain => {
                placer.node(id, At { offset, len, bufs: &[data], optional: false })?
            }
        };
        Ok(Plan { need, pieces: placer.pieces, dead: placer.dead })
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

    fn node(&mut self, id: NodeId, at: At<'_>) -> Result<Need> {
        self.step()?;
        let tree = self.tree;
        let node = tree.node(id);
        match node.kind() {
            Kind::Mirror | Kind::Replacing | Kind::Spare => {
                let children = node.children().iter().map(|&c| self.node(c, at));
                Ok(Need::Any(children.collect::<Result<_>>()?))
            }
            Kind::DraidSpare { .. } => self.spare(id, at),
            Kind::Disk | Kind::File | Kind::Missing => Ok(self.leaf(id, at)),
            _ => Err(Error::corrupt(format!(
                "a {} vdev below the top level cannot be written",
                node.kind().name()
            ))),
        }
    }

    fn leaf(&mut self, id: NodeId, at: At<'_>) -> Need {
        let Some(offset) = at.offset.checked_add(LABEL_START) else { return Need::Lost };
        if self.tree.node(id).writable().is_none() {
            self.lost(id, at);
            return Need::Lost;
        }
        let index = self.pieces.len() as u32;
        self.pieces.push(Piece {
            leaf: id,
            through: self.through.clone(),
            offset,
            len: at.len,
            bufs: at.bufs.to_vec(),
            optional: at.optional,
        });
        Need::Piece(index)
    }

    /// The leaf, and the spares it stands behind, do not get the bytes.
    fn lost(&mut self, id: NodeId, at: At<'_>) {
        if !at.optional {
            self.dead.push(id);
            self.dead.extend_from_slice(&self.through);
        }
    }

    /// To the child of the dRAID that stands behind a distributed spare (§11.4).
    fn spare(&mut self, id: NodeId, at: At<'_>) -> Result<Need> {
        let tree = self.tree;
        let node = tree.node(id);
        let target = match node.kind() {
            Kind::DraidSpare { draid, spare_id } if node.readable() => {
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
                    return Err(Error::bug("a column crosses the end of a dRAID slice"));
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

    fn raid(&mut self, id: NodeId, map: &BlockMap, data: &Buf) -> Result<Need> {
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
                .ok_or_else(|| Error::bug("a stripe's shape has no parity"))?;
            let mut parity = parity.into_iter();
            let mut needs = Vec::with_capacity(stripe.cols.len());
            for col in &stripe.cols {
                let mut bufs = match parity.next() {
                    Some(row) => vec![row.freeze()],
                    None => vec![data.slice(part(col))],
                };
                // A cell that does not exist, or nothing to store.
                let Some(child) = col.child.filter(|_| col.stored > 0) else { continue };
                let have = bufs[0].len() as u64;
                if have < col.stored {
                    bufs.push(Buf::zeros((col.stored - have) as usize));
                }
                bufs.retain(|b| !b.is_empty());
                let Some(&child) = children.get(child as usize) else {
                    return Err(Error::bug("a column lies on a child that does not exist"));
                };
                let at = At { offset: col.offset, len: col.stored, bufs: &bufs, optional: false };
                needs.push(self.node(child, at)?);
            }
            stripes.push(needs);
        }
        Ok(Need::Stripes { tolerated: map.nparity, stripes })
    }

    /// Zeros for the sectors that round a raidz block up, where they join neighbours.
    fn skips(
        &mut self,
        id: NodeId,
        skips: impl Iterator<Item = (u32, u64)>,
        ashift: u32,
    ) -> Result<()> {
        let tree = self.tree;
        let len = 1u64 << ashift;
        // A sector is at most 1 GiB by the format, a buffer is less.
        if len > 1 << 16 {
            return Ok(());
        }
        let zeros = [Buf::zeros(len as usize)];
        for (child, offset) in skips {
            if let Some(&child) = tree.node(id).children().get(child as usize) {
                self.node(child, At { offset, len, bufs: &zeros, optional: true })?;
            }
        }
        Ok(())
    }
}
