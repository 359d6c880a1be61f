//! Repairs by a scan: the right bytes of blocks are written to the leaves that lack them.
//!
//! # Theory
//! [`Tree::scan`] reports which leaves hold wrong bytes of a block, or missed its transaction
//! group, and what the right bytes are. [`Tree::repair`] writes these to the leaves, in one
//! batch for many blocks, so that the leaves' queues merge neighbours, and waits. It differs
//! from [`Tree::heal`] in two points: a leaf that missed the txg is written, because the scan
//! will write all that it missed; and nothing is read back, because the next scan does that.
//!
//! A leaf whose resilver is deferred gets nothing of what it misses.
//!
//! The caller guarantees that the addresses still belong to the blocks.
//!
//! # Invariants
//! * A repair that could not be written is in the leaf's missing txgs, and stays there when the
//!   scan ends ([`Tree::excise`]). So does one that had to go through a distributed spare.
//! * Writes reach only leaves of the current tree.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

use base::rt::{Callback, oneshot};
use base::{Buf, ErrorKind, Guid, Result, Txg, VdevId};

use crate::queue::{WritePriority, WriteRequest};
use crate::range_lock::WriteTicket;
use crate::read::{BadCopy, BadKind};
use crate::report::ReportKind;
use crate::spec::VdevKind;
use crate::tree::{Node, NodeId, Tree};
use crate::write::FAILING_WRITE_ERRORS;
use crate::write_plan::WritePlan;

/// The result of a batch of repairs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repaired {
    /// Bytes written, by leaf.
    pub bytes: BTreeMap<Guid, u64>,
    /// Pieces of leaves that could not be written.
    pub failed: u64,
}

impl Repaired {
    /// Adds the result of another batch.
    pub fn add(&mut self, other: Repaired) {
        self.failed += other.failed;
        for (leaf, bytes) in other.bytes {
            *self.bytes.entry(leaf).or_default() += bytes;
        }
    }

    /// Bytes written to all leaves.
    pub fn total(&self) -> u64 {
        self.bytes.values().sum()
    }
}

/// A block of a vdev that is being expanded, and the leaves that hold wrong bytes of it.
#[derive(Clone, Debug)]
pub struct MovedRepair {
    /// Top-level vdev.
    pub vdev: VdevId,
    /// Byte offset in its allocatable area.
    pub offset: u64,
    /// The block as stored.
    pub data: Buf,
    /// Its physical birth.
    pub birth: Txg,
    /// What a scan found.
    pub bad: Vec<BadCopy>,
}

impl Tree {
    /// As [`Tree::repair`], for blocks that an expansion may have moved since they were read.
    /// Each leaf with wrong bytes gets all that belongs to it, where it belongs now.
    pub fn repair_moved(&self, repairs: &[MovedRepair]) -> Repaired {
        let mut done = Repaired::default();
        // All ranges before the first plan (`reflow`).
        let ticket = |r: &MovedRepair| self.write_ticket(r.vdev, r.offset, &r.data, r.birth);
        let tickets: Vec<WriteTicket> = repairs.iter().map(ticket).collect();
        let (mut copies, mut moving) = (Vec::new(), Vec::new());
        for repair in repairs {
            let kinds: BTreeMap<Guid, BadKind> =
                repair.bad.iter().map(|copy| (copy.guid, copy.kind)).collect();
            let plan = WritePlan::new(self, repair.vdev, repair.offset, &repair.data, repair.birth);
            let Ok(plan) = plan else {
                for node in repair.bad.iter().filter_map(|copy| self.find(copy.guid)) {
                    self.unrepaired(node, repair.birth);
                    done.failed += 1;
                }
                continue;
            };
            for leaf in plan.dead {
                let node = self.node(leaf);
                if kinds.contains_key(&node.guid()) {
                    self.unrepaired(node, repair.birth);
                    done.failed += 1;
                }
            }
            for piece in plan.pieces.into_iter().filter(|piece| !piece.optional) {
                let guid = self.node(piece.leaf).guid();
                let Some(kind) = kinds.get(&guid).copied() else { continue };
                let mut offset = piece.offset;
                for good in piece.bufs {
                    let len = good.len() as u64;
                    let copy = BadCopy { leaf: piece.leaf, guid, offset, kind, good };
                    copies.push((copy, repair.birth));
                    offset += len;
                }
            }
            moving.extend(plan.moving);
        }
        let more = self.repair(&copies);
        drop((moving, tickets));
        done.add(more);
        done
    }

    /// Writes a whole block to an address from which nothing can be read: to all leaves, also those
    /// that missed its txg. `data` is the block as stored. Waits for the devices.
    ///
    /// # Errors
    /// As [`Tree::write`], for a write that cannot be planned.
    pub fn repair_whole(
        &self,
        vdev: VdevId,
        offset: u64,
        data: &Buf,
        birth: Txg,
    ) -> Result<Repaired> {
        let mut done = Repaired::default();
        for part in self.pieces(vdev, offset, data.len() as u64, birth)? {
            let start = usize::try_from(part.start).unwrap_or(usize::MAX);
            let end = start.saturating_add(usize::try_from(part.len).unwrap_or(usize::MAX));
            let data = data.slice(start..end);
            let birth = part.birth.unwrap_or(birth);
            // Until the end, so that no expansion moves the block meanwhile.
            let _ticket = self.write_ticket(part.vdev, part.offset, &data, birth);
            let plan = WritePlan::new(self, part.vdev, part.offset, &data, birth)?;
            for node in plan.dead.into_iter().map(|leaf| self.node(leaf)) {
                self.unrepaired(node, birth);
                done.failed += 1;
            }
            let mut copies = Vec::new();
            for piece in plan.pieces.into_iter().filter(|piece| !piece.optional) {
                let stale = self.node(piece.leaf).dtl().contains(birth);
                let kind = if stale { BadKind::Stale } else { BadKind::Checksum };
                let (leaf, guid) = (piece.leaf, self.node(piece.leaf).guid());
                let mut offset = piece.offset;
                for good in piece.bufs {
                    let len = good.len() as u64;
                    copies.push((BadCopy { leaf, guid, offset, kind, good }, birth));
                    offset += len;
                }
            }
            done.add(self.repair(&copies));
            drop(plan.moving);
        }
        Ok(done)
    }

    /// Counts the wrong bytes that a speculative scan found, at their leaves: the caller knows
    /// by now that the block is in use.
    pub fn count_damage(&self, bad: &[BadCopy]) {
        for copy in bad.iter().filter(|copy| copy.kind == BadKind::Checksum) {
            if let Some(node) = self.find(copy.guid) {
                let at = (copy.offset, copy.good.len() as u64);
                self.count_error(node, ReportKind::Checksum, at, ErrorKind::Checksum);
            }
        }
    }

    /// Writes the right bytes of bad copies, each with the physical birth of its block, and
    /// waits for the devices. A leaf that fails writes is left out, as one that cannot be
    /// written is.
    pub fn repair(&self, bad: &[(BadCopy, Txg)]) -> Repaired {
        let mut done = Repaired::default();
        let mut by_leaf: BTreeMap<NodeId, Vec<WriteRequest>> = BTreeMap::new();
        let mut pending = Vec::with_capacity(bad.len());
        for (copy, birth) in bad {
            let node = self.find(copy.guid).filter(|n| n.kind().is_device());
            let Some(node) = node else { continue };
            if copy.kind == BadKind::Stale && node.is_deferred() {
                continue;
            }
            if node.writable().is_none() || node.errors().write >= FAILING_WRITE_ERRORS {
                self.unrepaired(node, *birth);
                done.failed += 1;
                continue;
            }
            let (sender, end) = oneshot::<Result<()>>();
            let len = copy.good.len() as u64;
            by_leaf.entry(self.id_of(node, copy.leaf)).or_default().push(WriteRequest {
                offset: copy.offset,
                len,
                bufs: vec![copy.good.clone()],
                priority: WritePriority::AsyncWrite,
                optional: false,
                done: Callback::new(move |result| sender.send(result)),
            });
            pending.push((node, *birth, (copy.offset, len), end));
        }
        for (leaf, batch) in by_leaf {
            match self.node(leaf).writable() {
                Some((_, queue)) => queue.submit(batch),
                // Dropping a request reports that it was not made.
                None => drop(batch),
            }
        }
        for (node, birth, (offset, len), end) in pending {
            match end.wait().flatten() {
                Ok(()) => {
                    node.live.healed.fetch_add(len, Relaxed);
                    *done.bytes.entry(node.guid()).or_default() += len;
                }
                Err(e) => {
                    self.count_error(node, ReportKind::Write, (offset, len), e.kind());
                    self.unrepaired(node, birth);
                    done.failed += 1;
                }
            }
        }
        done
    }

    /// The position of a leaf in this snapshot; `hint` is that in the snapshot that was read.
    fn id_of(&self, node: &Node, hint: NodeId) -> NodeId {
        let same = self.nodes.get(hint.0 as usize).is_some_and(|n| n.guid() == node.guid());
        if same { hint } else { self.by_guid.get(&node.guid()).copied().unwrap_or(hint) }
    }

    /// Records that a leaf could not be repaired, and so may be each distributed spare of its
    /// dRAID: they are space of its leaves.
    fn unrepaired(&self, node: &Node, birth: Txg) {
        node.live.missing.add_unrepaired(birth);
        let top = self.top(node.top()).map(Node::guid).ok();
        let through = |n: &Node| match n.kind() {
            VdevKind::DraidSpare { draid, .. } => Some(*draid) == top,
            _ => false,
        };
        self.nodes()
            .filter(|(_, n)| through(n) && n.live.missing.contains(birth))
            .for_each(|(_, n)| n.live.missing.add_unrepaired(birth));
    }
}
