//! Writing right bytes over wrong ones, on leaves.
//!
//! # Theory
//! A scrub of a block ([`Tree::scrub`]) tells which leaves hold wrong bytes of it, and what
//! belongs there. [`Tree::heal`] writes that, reads it again past the queue's writes, and
//! compares. [`Tree::rewrite`] does so for all leaves of an address from which nothing can be
//! read, when the block is known from elsewhere. The caller answers for it that the block is
//! still what lies there (`zio`'s module `heal`).
//!
//! A leaf that missed the block's group is left alone: its missing groups say what it lacks,
//! and a resilver brings all of that. So nothing written here makes a leaf look more complete
//! than it is, and nothing here changes missing groups. A leaf that fails writes
//! ([`FAILING_WRITE_ERRORS`]) is left alone, too.
//!
//! # Invariants
//! * Only the leaves of the tree as it is now are written, below the address in question.
//! * A write that fails is counted as the leaf's write error, a read that fails as its read
//!   error, and bytes that are wrong again as a checksum error.

use std::sync::atomic::Ordering::Relaxed;

use base::rt::{Callback, oneshot};
use base::{Buf, BufMut, Error, Guid, Result, Txg, VdevId};
use device::Io;

use crate::iostat::IoClass;
use crate::place::Plan;
use crate::queue::{Asked, Request, WritePriority};
use crate::read::{BadCopy, BadKind};
use crate::spec::Kind;
use crate::tree::{Node, Tree};
use crate::write::FAILING_WRITE_ERRORS;

/// What became of wrong bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Healed {
    /// Pieces of leaves that are right now, as a second read says.
    pub pieces: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Pieces that could not be written, or are still wrong.
    pub failed: u64,
}

impl Healed {
    fn note(&mut self, len: u64, done: Result<bool>) {
        match done {
            Ok(true) => {
                self.pieces += 1;
                self.bytes += len;
            }
            Ok(false) => {}
            Err(_) => self.failed += 1,
        }
    }
}

impl Node {
    /// Bytes of a leaf that were wrong and were written anew since the pool was opened.
    pub fn healed(&self) -> u64 {
        self.live.healed.load(Relaxed)
    }
}

impl Tree {
    /// Whether blocks of a top-level vdev lie where writes would put them: not so on one that
    /// was removed, or that is being expanded.
    pub fn can_heal(&self, vdev: VdevId) -> bool {
        let moves = |node: &Node| {
            matches!(node.kind(), Kind::Indirect | Kind::Raidz { reflow: Some(_), .. })
        };
        self.top(vdev).is_ok_and(|node| !moves(node))
    }

    /// Writes what belongs there over the wrong bytes that a scrub of a block found, and
    /// compares. Waits for the devices.
    pub fn heal(&self, bad: &[BadCopy], birth: Txg) -> Healed {
        let mut healed = Healed::default();
        for copy in bad.iter().filter(|copy| copy.kind != BadKind::Stale) {
            let done = self.heal_leaf(copy.guid, copy.offset, vec![copy.good.clone()], birth);
            healed.note(copy.good.len() as u64, done);
        }
        healed
    }

    /// Writes a whole block to its place, where nothing could be read of it. `data` is the
    /// block as stored. Waits for the devices.
    ///
    /// # Errors
    /// As [`Tree::write`], for what cannot be planned.
    pub fn rewrite(&self, vdev: VdevId, offset: u64, data: &Buf, birth: Txg) -> Result<Healed> {
        let plan = Plan::new(self, vdev, offset, data, birth)?;
        let mut healed = Healed::default();
        for piece in plan.pieces.into_iter().filter(|piece| !piece.optional) {
            let stale = piece.through.iter().any(|&id| self.node(id).dtl().contains(birth));
            if !stale {
                let guid = self.node(piece.leaf).guid();
                let done = self.heal_leaf(guid, piece.offset, piece.bufs, birth);
                healed.note(piece.len, done);
            }
        }
        Ok(healed)
    }

    /// False: the leaf is not to be written.
    fn heal_leaf(&self, guid: Guid, offset: u64, bufs: Vec<Buf>, birth: Txg) -> Result<bool> {
        let Some(node) = self.find(guid) else { return Ok(false) };
        let Some((device, queue)) = node.writable() else { return Ok(false) };
        let live = &node.live;
        if live.dtl().contains(birth) || node.errors().write >= FAILING_WRITE_ERRORS {
            return Ok(false);
        }
        let len: u64 = bufs.iter().map(|b| b.len() as u64).sum();
        let (sender, end) = oneshot();
        queue.submit(vec![Request {
            offset,
            len,
            bufs: bufs.clone(),
            priority: WritePriority::AsyncWrite,
            optional: false,
            done: Callback::new(move |result| sender.send(result)),
        }]);
        if let Err(e) = end.wait().flatten() {
            live.write_errors.fetch_add(1, Relaxed);
            return Err(e.on_vdev(guid));
        }
        let read = match queue.ask(IoClass::Scrub, offset, len) {
            Asked::Go(turn) => {
                let read = device.run(Io::read(offset, len as usize)).into_read();
                turn.end(read.is_ok(), false);
                read.map(BufMut::freeze)
            }
            Asked::Wait(waiting) => waiting.wait(),
        };
        let read = read.map_err(|e| {
            live.read_errors.fetch_add(1, Relaxed);
            e.on_vdev(guid)
        })?;
        let mut at = 0;
        for buf in &bufs {
            if read.get(at..at + buf.len()) != Some(&buf[..]) {
                live.cksum_errors.fetch_add(1, Relaxed);
                return Err(Error::checksum("what was written anew is wrong again").on_vdev(guid));
            }
            at += buf.len();
        }
        live.healed.fetch_add(len, Relaxed);
        Ok(true)
    }
}
