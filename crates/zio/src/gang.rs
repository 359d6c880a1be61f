//! Reading gang blocks (chapter 02 §9): blocks scattered over smaller ones.

use base::limits::GANG_DEPTH_MAX;
use base::{Buf, BufMut, Dva, Error, Psize, Result};
use ondisk::blkptr::{BLKPTR_SIZE, BlkPtr, Block};
use std::sync::atomic::Ordering::Relaxed;
use vdev::{Priority, ReadOutcome, ReadReq};

use crate::Zio;
use crate::heal::{Check, DamageList, DamagedCopy, header_is_right};

/// The only header size before feature `dynamic_gang_header`.
const HEADER_SIZE: usize = 512;
/// The embedded checksum at the header's end.
pub(crate) const ECK_SIZE: usize = 40;

impl Zio {
    /// Reads the gang below `dva` and assembles its members.
    pub(crate) fn read_gang(
        &self,
        block: &Block,
        dva: Dva,
        depth: usize,
        damage: &mut DamageList,
    ) -> Result<Buf> {
        let members = self.members_of(block, dva, damage)?;
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
            let piece = self.read_member(member, depth + 1, damage)?;
            let end = at + piece.len();
            out[at..end].copy_from_slice(&piece);
            at = end;
        }
        Ok(out.freeze())
    }

    fn read_member(&self, member: &Block, depth: usize, damage: &mut DamageList) -> Result<Buf> {
        let (mut last, mut failed) = (None, Vec::new());
        for dva in member.dvas() {
            let read = if dva.gang {
                self.read_gang(member, dva, depth, damage)
            } else {
                self.read_dva(member, dva, (Priority::SyncRead, false), damage)
            };
            match read {
                Ok(buf) if buf.len() as u64 == member.psize.0 => {
                    damage.failed(member, &failed, &buf);
                    return Ok(buf);
                }
                Ok(_) => last = Some(Error::bug("gang member of odd length").at_dva(dva)),
                Err(e) => {
                    damage.headers.extend(dva.gang.then_some(dva));
                    failed.push(dva);
                    last = Some(e);
                }
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
        self.members_of(block, dva, &mut DamageList::default())
    }

    fn members_of(&self, block: &Block, dva: Dva, damage: &mut DamageList) -> Result<Vec<Block>> {
        let header = self.read_gang_header(block, dva, damage)?;
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

    fn read_gang_header(&self, block: &Block, dva: Dva, damage: &mut DamageList) -> Result<Buf> {
        if let Some(header) = self.in_flight.header(&self.key(block)) {
            return Ok(header);
        }
        if self.dynamic_gang.load(Relaxed) {
            let size = self.gang_header_size(block);
            if size > HEADER_SIZE
                && let Ok(header) = self.read_header_of(block, dva, size, damage)
            {
                return Ok(header);
            }
        }
        self.read_header_of(block, dva, HEADER_SIZE, damage)
    }

    /// Reads every copy of the header at `dva`, without counting wrong ones.
    pub(crate) fn scan_gang_header(&self, block: &Block, dva: Dva) -> Result<ReadOutcome> {
        let size = match self.dynamic_gang.load(Relaxed) {
            true => self.gang_header_size(block),
            false => HEADER_SIZE,
        };
        let (first, birth) = (block.dva(), block.effective_physical_birth());
        let verifier = [u64::from(first.vdev.0), first.offset, birth.0, 0];
        let right = |_: usize, bytes: &[u8]| header_is_right(bytes, verifier);
        let read = |size: usize| {
            let mut req = ReadReq::new(dva.vdev, dva.offset, Psize(size as u64), birth)
                .with_priority(Priority::Scrub);
            req.speculative = true;
            let found = self.tree().scan(&[req], &right).pop();
            found.ok_or_else(|| Error::bug("a scan of one block has one outcome"))
        };
        let outcome = read(size)?;
        match outcome.data {
            Err(_) if size > HEADER_SIZE => read(HEADER_SIZE),
            _ => Ok(outcome),
        }
    }

    /// Size of a new-style header: the smallest allocation over the vdevs of the block.
    fn gang_header_size(&self, block: &Block) -> usize {
        let tree = self.tree();
        let least = block.dvas().filter_map(|d| tree.min_alloc(d.vdev).ok()).min();
        least.map_or(HEADER_SIZE, |n| (n.0 as usize).clamp(HEADER_SIZE, 1 << 20))
    }

    fn read_header_of(
        &self,
        block: &Block,
        dva: Dva,
        size: usize,
        damage: &mut DamageList,
    ) -> Result<Buf> {
        let first = block.dva();
        let birth = block.effective_physical_birth();
        let verifier = [u64::from(first.vdev.0), first.offset, birth.0, 0];
        let psize = Psize(size as u64);
        let req = ReadReq::new(dva.vdev, dva.offset, psize, birth);
        let read = self.tree().read_verbose(&req, &|bytes| header_is_right(bytes, verifier));
        let header = read.data.map_err(|e| e.at_dva(dva))?;
        // A header at another address of the block is a copy of this one.
        let others = block.dvas().filter(|other| other.gang && damage.headers.contains(other));
        let others: Vec<Dva> = others.collect();
        damage.headers.retain(|other| !others.contains(other));
        let own = read.report.needs_healing().then_some(dva);
        for dva in others.into_iter().chain(own) {
            let (check, good) = (Check::Header(verifier), header.clone());
            damage.list.push(DamagedCopy { dva, psize, birth, check, good });
        }
        Ok(header)
    }
}
