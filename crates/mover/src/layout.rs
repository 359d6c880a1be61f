//! The layout score: how far blocks that are read one after another lie one after another.
//!
//! # Theory
//! A walk is a sequence of blocks in the order in which a reader needs them: the data blocks of
//! an object in the order of their ids, or those of many objects one after another. Only stored
//! blocks count. Holes and embedded blocks take no device read, so they are left out, and the
//! blocks around them are neighbours.
//!
//! A stored block is *in sequence* if its first address begins where the first address of the
//! block before it ends: on the same top-level vdev, at that block's offset plus its asize
//! (chapter 02 §2). The score is the share of blocks in sequence among the blocks that have a
//! predecessor: 1 if one device read without a jump could get the walk, 0 if each block needs a
//! read of its own. A walk of fewer than two stored blocks has no score.
//!
//! The address of a gang block is that of its header, and its data is elsewhere. So a gang block
//! is never in sequence, and neither is the block behind it.
//!
//! Scores add up: that of a tree is the sum of its files' scores, or the score of one walk that
//! also counts the steps from file to file ([`LayoutWalk::object`]).
//!
//! # Invariants
//! * A walk ends after the number of blocks that its caller permits, whatever the indirect
//!   blocks contain.
//! * Blocks are those on disk; dirty data in memory is not seen.

use base::{Dva, Result};
use dmu::{Io, Object};
use ondisk::BlkPtr;

/// The score of one or several walks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayoutScore {
    /// Stored blocks.
    pub blocks: u64,
    /// Stored blocks that have a predecessor in their walk.
    pub steps: u64,
    /// Stored blocks that begin where their predecessor ends.
    pub in_sequence: u64,
}

impl LayoutScore {
    /// The share of blocks in sequence, 0 to 1; `None` if no block has a predecessor.
    pub fn share(&self) -> Option<f64> {
        (self.steps > 0).then(|| self.in_sequence as f64 / self.steps as f64)
    }

    /// Adds the blocks of another score.
    pub fn merge(&mut self, other: &LayoutScore) {
        self.blocks += other.blocks;
        self.steps += other.steps;
        self.in_sequence += other.in_sequence;
    }
}

/// A walk in progress.
#[derive(Clone, Debug, Default)]
pub struct LayoutWalk {
    score: LayoutScore,
    last: Option<Dva>,
}

impl LayoutWalk {
    /// The score so far.
    pub fn score(&self) -> LayoutScore {
        self.score
    }

    /// Adds the block at the first address of a pointer.
    pub fn block(&mut self, dva: Dva) {
        if let Some(last) = self.last.replace(dva) {
            let end = last.offset.checked_add(last.asize.0);
            let follows = last.vdev == dva.vdev && end == Some(dva.offset);
            self.score.steps += 1;
            self.score.in_sequence += u64::from(follows && !last.gang && !dva.gang);
        }
        self.score.blocks += 1;
    }

    /// Adds the data blocks of an object, at most `most` of them. Returns whether these are all.
    ///
    /// # Errors
    /// Those of reading the indirect blocks; the blocks before the error are counted.
    pub fn object(&mut self, object: &Object, most: u64, io: Io) -> Result<bool> {
        let (mut from, mut left) = (0, most);
        while let Some(blkid) = object.next_data_block(from, io)? {
            if left == 0 {
                return Ok(false);
            }
            left -= 1;
            if let BlkPtr::Block(block) = object.block_pointer(0, blkid, io)? {
                self.block(block.dva());
            }
            from = blkid + 1;
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use base::{Asize, VdevId};

    use super::*;

    fn at(vdev: u32, offset: u64, asize: u64) -> Dva {
        Dva { vdev: VdevId(vdev), offset, asize: Asize(asize), gang: false }
    }

    fn score(walk: &[Dva]) -> LayoutScore {
        let mut out = LayoutWalk::default();
        walk.iter().for_each(|dva| out.block(*dva));
        out.score()
    }

    #[test]
    fn blocks_in_sequence_begin_where_the_last_one_ends() {
        let whole = score(&[at(0, 0, 4096), at(0, 4096, 8192), at(0, 12288, 512)]);
        assert_eq!(whole, LayoutScore { blocks: 3, steps: 2, in_sequence: 2 });
        assert_eq!(whole.share(), Some(1.0));
        // Backwards, with a gap, the same place again, and the same offset of another vdev.
        for (second, third) in [
            (at(0, 0, 4096), at(0, 4096, 4096)),
            (at(0, 12288, 4096), at(0, 16384, 4096)),
            (at(0, 4096, 4096), at(0, 8192, 4096)),
            (at(1, 8192, 4096), at(1, 12288, 4096)),
        ] {
            let half = score(&[at(0, 4096, 4096), second, third]);
            assert_eq!((half.in_sequence, half.share()), (1, Some(0.5)), "{second:?}");
        }
    }

    #[test]
    fn a_walk_of_one_block_has_no_score() {
        assert_eq!(score(&[]).share(), None);
        assert_eq!(score(&[at(0, 0, 512)]), LayoutScore { blocks: 1, steps: 0, in_sequence: 0 });
        let mut sum = score(&[at(0, 0, 512)]);
        sum.merge(&score(&[at(0, 0, 512), at(0, 512, 512), at(0, 0, 512)]));
        assert_eq!(sum, LayoutScore { blocks: 4, steps: 2, in_sequence: 1 });
    }

    /// The address of a gang block is that of its header.
    #[test]
    fn a_gang_block_is_never_in_sequence() {
        let gang = Dva { gang: true, ..at(0, 4096, 4096) };
        let all = score(&[at(0, 0, 4096), gang, at(0, 8192, 4096), at(0, 12288, 4096)]);
        assert_eq!((all.steps, all.in_sequence), (3, 1));
    }

    #[test]
    fn an_address_at_the_end_of_all_numbers() {
        assert_eq!(score(&[at(0, u64::MAX, 512), at(0, 511, 512)]).in_sequence, 0);
    }
}
