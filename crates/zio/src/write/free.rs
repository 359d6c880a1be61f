//! The addresses that freeing a block releases.

use base::limits::GANG_DEPTH_MAX;
use base::{Dva, Error, Result};
use ondisk::blkptr::Block;

use super::gang::header_asize;
use crate::Zio;

impl Zio {
    /// The addresses that freeing `block` releases: its own, or for a gang those of
    /// every header, with the header's own asize, and of every member. No gang bit is
    /// set in them. Headers are read.
    ///
    /// # Errors
    /// As for reading a block, when a gang header cannot be read: the addresses of its
    /// members are unknown then, and nothing may be freed.
    pub fn dvas_to_free(&self, block: &Block) -> Result<Vec<Dva>> {
        let mut dvas = Vec::new();
        self.collect(block, 0, &mut dvas)?;
        Ok(dvas)
    }

    fn collect(&self, block: &Block, depth: usize, to: &mut Vec<Dva>) -> Result<()> {
        if !block.is_gang() {
            to.extend(block.dvas());
            return Ok(());
        }
        if depth >= GANG_DEPTH_MAX {
            return Err(Error::limit("gang blocks nested too deep").at_dva(block.dva()));
        }
        for dva in block.dvas() {
            let asize = header_asize(self, dva, block.effective_physical_birth())?;
            to.push(Dva { asize, gang: false, ..dva });
        }
        let members = self.any_gang_members(block)?;
        // The sum bounds the walk, because every member holds at least a sector of the
        // block.
        let total: u64 = members.iter().map(|m| m.psize.0).sum();
        if total != block.psize.0 {
            let error = Error::corrupt("gang members do not add up to their block");
            return Err(error.at_dva(block.dva()));
        }
        members.iter().try_for_each(|m| self.collect(m, depth + 1, to))
    }

    /// The members, from any readable copy of the header.
    fn any_gang_members(&self, block: &Block) -> Result<Vec<Block>> {
        let mut last = Error::bug("a gang block without addresses");
        for dva in block.dvas() {
            match self.gang_members(block, dva) {
                Ok(members) => return Ok(members),
                Err(e) => last = e,
            }
        }
        Err(last)
    }
}
