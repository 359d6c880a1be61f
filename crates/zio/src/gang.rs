//! Gang blocks (chapter 02 §9): a block scattered over smaller ones.

use base::limits::GANG_DEPTH_MAX;
use base::{Buf, BufMut, Dva, Error, Psize, Result};
use codec::checksum::Checksum;
use codec::checksum::embedded::verify_embedded;
use ondisk::blkptr::{BLKPTR_SIZE, BlkPtr, Block};
use std::sync::atomic::Ordering::Relaxed;
use vdev::ReadReq;

use crate::Zio;

/// The only header size before feature `dynamic_gang_header`.
const HEADER_SIZE: usize = 512;
/// The embedded checksum at the header's end.
const ECK_SIZE: usize = 40;

impl Zio {
    /// Reads the gang below `dva` and puts its members together.
    pub(crate) fn read_gang(&self, block: &Block, dva: Dva, depth: usize) -> Result<Buf> {
        let members = self.gang_members(block, dva)?;
        let total: u64 = members.iter().map(|m| m.psize.0).sum();
        if total != block.psize.0 {
            return Err(Error::corrupt("gang members do not add up to their block").at_dva(dva));
        }
        if depth >= GANG_DEPTH_MAX {
            return Err(Error::limit("gang blocks nested too deep").at_dva(dva));
        }
        let mut out = BufMut::alloc(block.psize.0 as usize);
        let mut at = 0;
        for member in &members {
            let piece = self.read_member(member, depth + 1)?;
            let end = at + piece.len();
            out[at..end].copy_from_slice(&piece);
            at = end;
        }
        Ok(out.freeze())
    }

    fn read_member(&self, member: &Block, depth: usize) -> Result<Buf> {
        let mut last = None;
        for dva in member.dvas() {
            let read = if dva.gang {
                self.read_gang(member, dva, depth)
            } else {
                self.read_dva(member, dva, vdev::Priority::SyncRead)
            };
            match read {
                Ok(buf) if buf.len() as u64 == member.psize.0 => return Ok(buf),
                Ok(_) => last = Some(Error::bug("gang member of odd length").at_dva(dva)),
                Err(e) => last = Some(e),
            }
        }
        Err(last.unwrap_or_else(|| Error::bug("gang member without addresses")))
    }

    /// The verified members of the gang header at `dva`.
    ///
    /// # Errors
    /// As for reading a block; `Corrupt` when the header holds anything but
    /// plain or gang pointers.
    pub fn gang_members(&self, block: &Block, dva: Dva) -> Result<Vec<Block>> {
        let header = self.read_gang_header(block, dva)?;
        let slots = (header.len() - ECK_SIZE) / BLKPTR_SIZE;
        let mut members = Vec::new();
        for i in 0..slots {
            match BlkPtr::parse_nth(&header, i, block.endian)? {
                BlkPtr::Hole(_) => {}
                BlkPtr::Block(member) => members.push(member),
                _ => return Err(Error::corrupt("gang member is not a block").at_dva(dva)),
            }
        }
        Ok(members)
    }

    fn read_gang_header(&self, block: &Block, dva: Dva) -> Result<Buf> {
        if let Some(header) = self.under_way.header(&self.key(block)) {
            return Ok(header);
        }
        if self.dynamic_gang.load(Relaxed) {
            let size = self.gang_header_size(block);
            if size > HEADER_SIZE
                && let Ok(header) = self.read_header_of(block, dva, size)
            {
                return Ok(header);
            }
        }
        self.read_header_of(block, dva, HEADER_SIZE)
    }

    /// Size of a new-style header: the least allocation over the block's vdevs.
    fn gang_header_size(&self, block: &Block) -> usize {
        let tree = self.tree();
        let least = block.dvas().filter_map(|d| tree.min_alloc(d.vdev).ok()).min();
        least.map_or(HEADER_SIZE, |n| (n.0 as usize).clamp(HEADER_SIZE, 1 << 20))
    }

    fn read_header_of(&self, block: &Block, dva: Dva, size: usize) -> Result<Buf> {
        let first = block.dva();
        let verifier =
            [u64::from(first.vdev.0), first.offset, block.effective_physical_birth().0, 0];
        let accepts = |bytes: &[u8]| {
            bytes.len().checked_sub(ECK_SIZE).is_some_and(|at| {
                verify_embedded(Checksum::GangHeader, bytes, at, verifier).is_ok()
            })
        };
        let birth = block.effective_physical_birth();
        let req = ReadReq::new(dva.vdev, dva.offset, Psize(size as u64), birth);
        self.tree().read(&req, &accepts).map_err(|e| e.at_dva(dva))
    }
}
