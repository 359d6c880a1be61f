//! Healing: overwriting wrong bytes on leaves with the right ones.
//!
//! # Theory
//! A scrub of a block ([`Tree::scrub`]) reports which leaves hold wrong bytes of it and
//! what the right bytes are. [`Tree::heal`] writes the right bytes, reads them again
//! after the queue's writes, and compares. [`Tree::rewrite`] does so for all leaves of
//! an address from which nothing can be read, when the block's content is known from
//! another address. The caller guarantees that the address still belongs to the block
//! (`zio`'s module `heal`).
//!
//! A leaf that missed the block's txg is not healed: its missing txgs record what it
//! lacks, and a resilver writes all of that. So healing never makes a leaf look more
//! complete than it is, and it never changes missing txgs. A leaf that fails writes
//! ([`FAILING_WRITE_ERRORS`]) is not healed either.
//!
//! # Invariants
//! * Writes reach only the leaves of the current tree below the address in question.
//! * A failed write counts as the leaf's write error, a failed read as its read error,
//!   and bytes that are wrong again as a checksum error.

use std::sync::atomic::Ordering::Relaxed;

use base::rt::{Callback, oneshot};
use base::{Buf, BufMut, Error, ErrorKind, Guid, Result, Txg, VdevId};
use device::Io;

use crate::iostat::IoClass;
use crate::queue::{ReadAdmission, WritePriority, WriteRequest};
use crate::read::{BadCopy, BadKind};
use crate::report::ReportKind;
use crate::tree::{Node, Tree};
use crate::write::FAILING_WRITE_ERRORS;
use crate::write_plan::WritePlan;

/// The result of healing wrong bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Healed {
    /// Pieces of leaves that are right now, as a second read confirmed.
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
    /// Bytes of a leaf that were wrong and were rewritten since the pool was opened.
    pub fn healed(&self) -> u64 {
        self.live.healed.load(Relaxed)
    }
}

impl Tree {
    /// As [`Tree::heal`], for a block whose parts an expansion may have moved since it was read:
    /// all that the leaves have of it is written where it belongs now. `data` is the block as
    /// stored.
    ///
    /// # Errors
    /// As [`Tree::rewrite`].
    pub fn heal_moved(
        &self,
        vdev: VdevId,
        offset: u64,
        data: &Buf,
        birth: Txg,
        bad: &[BadCopy],
    ) -> Result<Healed> {
        let wrong = bad.iter().filter(|copy| copy.kind != BadKind::Stale);
        let leaves: Vec<Guid> = wrong.map(|copy| copy.guid).collect();
        let mut healed = Healed::default();
        self.rewrite_piece((vdev, offset), data, birth, Some(&leaves), &mut healed)?;
        Ok(healed)
    }

    /// Overwrites the wrong bytes that a scrub of a block found with the right ones,
    /// and compares. Waits for the devices.
    pub fn heal(&self, bad: &[BadCopy], birth: Txg) -> Healed {
        let mut healed = Healed::default();
        for copy in bad.iter().filter(|copy| copy.kind != BadKind::Stale) {
            let done = self.heal_leaf(copy.guid, copy.offset, vec![copy.good.clone()], birth);
            healed.note(copy.good.len() as u64, done);
        }
        healed
    }

    /// Writes a whole block to its address, when nothing could be read there. `data` is
    /// the block as stored. Waits for the devices.
    ///
    /// # Errors
    /// As [`Tree::write`], for a write that cannot be planned.
    pub fn rewrite(&self, vdev: VdevId, offset: u64, data: &Buf, birth: Txg) -> Result<Healed> {
        let mut healed = Healed::default();
        for part in self.pieces(vdev, offset, data.len() as u64, birth)? {
            let start = usize::try_from(part.start).unwrap_or(usize::MAX);
            let end = start.saturating_add(usize::try_from(part.len).unwrap_or(usize::MAX));
            let (to, piece) = ((part.vdev, part.offset), data.slice(start..end));
            let birth = part.birth.unwrap_or(birth);
            self.rewrite_piece(to, &piece, birth, None, &mut healed)?;
        }
        Ok(healed)
    }

    fn rewrite_piece(
        &self,
        (vdev, offset): (VdevId, u64),
        data: &Buf,
        birth: Txg,
        only: Option<&[Guid]>,
        healed: &mut Healed,
    ) -> Result<()> {
        // Until the end, so that no expansion moves the block meanwhile.
        let _ticket = self.is_expanding(vdev).then(|| self.write_ticket(vdev, offset, data, birth));
        let plan = WritePlan::new(self, vdev, offset, data, birth)?;
        let _moving = plan.moving;
        for piece in plan.pieces.into_iter().filter(|piece| !piece.optional) {
            let stale = piece.through.iter().any(|&id| self.node(id).dtl().contains(birth));
            let guid = self.node(piece.leaf).guid();
            if !stale && only.is_none_or(|only| only.contains(&guid)) {
                let done = self.heal_leaf(guid, piece.offset, piece.bufs, birth);
                healed.note(piece.len, done);
            }
        }
        Ok(())
    }

    /// Returns false if the leaf must not be written.
    fn heal_leaf(&self, guid: Guid, offset: u64, bufs: Vec<Buf>, birth: Txg) -> Result<bool> {
        let Some(node) = self.find(guid) else { return Ok(false) };
        let Some((device, queue)) = node.writable() else { return Ok(false) };
        let live = &node.live;
        if live.missing.contains(birth) || node.errors().write >= FAILING_WRITE_ERRORS {
            return Ok(false);
        }
        let len: u64 = bufs.iter().map(|b| b.len() as u64).sum();
        let (sender, end) = oneshot();
        queue.submit(vec![WriteRequest {
            offset,
            len,
            bufs: bufs.clone(),
            priority: WritePriority::AsyncWrite,
            optional: false,
            done: Callback::new(move |result| sender.send(result)),
        }]);
        if let Err(e) = end.wait().flatten() {
            self.count_error(node, ReportKind::Write, (offset, len), e.kind());
            return Err(e.on_vdev(guid));
        }
        let read = match queue.request_read(IoClass::Scrub, offset, len) {
            ReadAdmission::Go(permit) => {
                let read = device.run(Io::read(offset, len as usize)).into_read();
                permit.end(read.is_ok(), false);
                read.map(BufMut::freeze)
            }
            ReadAdmission::Wait(waiting) => waiting.wait(),
        };
        let read = read.map_err(|e| {
            self.count_error(node, ReportKind::Read, (offset, len), e.kind());
            e.on_vdev(guid)
        })?;
        let mut at = 0;
        for buf in &bufs {
            if read.get(at..at + buf.len()) != Some(&buf[..]) {
                let kind = ErrorKind::Checksum;
                self.count_error(node, ReportKind::Checksum, (offset, len), kind);
                return Err(Error::checksum("what was written anew is wrong again").on_vdev(guid));
            }
            at += buf.len();
        }
        live.healed.fetch_add(len, Relaxed);
        Ok(true)
    }
}
