//! Redaction: the blocks that a stream leaves out (chapter 07 §8.7, §10.2).
//!
//! # Theory
//! The list of a redaction bookmark has the data blocks of a snapshot that all of its redaction
//! snapshots, clones' snapshots further down, have changed or freed. A block that one of them
//! still shares is not sensitive. So [`redacted_blocks`] walks over the snapshot's own blocks and
//! compares each pointer with the one that every redaction snapshot has at that place. Where one
//! of them has the same pointer, it has the same subtree, and the walk ends there.
//!
//! A sender replaces the blocks that are listed by REDACT records. If the source of a stream is
//! a redaction bookmark, the receiver lacks the blocks of its list, however old they are: they are
//! sent, unless the new list has them as well.
//!
//! # Invariants
//! * A list is in the order of objects and blocks, and its runs do not overlap.
//! * Metadata is never listed.

use std::sync::Arc;

use base::{Error, ErrorKind, ObjectId, Result};
use dmu::{Io, Object, Objset};
use ondisk::BlkPtr;
use ondisk::dnode::DNODES_PER_BLOCK;
use ondisk::dslphys::RedactBlock;

/// A redaction list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RedactionList {
    /// Guids of the redaction snapshots.
    pub snaps: Vec<u64>,
    blocks: Vec<RedactBlock>,
}

/// The first block behind a run.
fn end(run: &RedactBlock) -> u64 {
    run.blkid.saturating_add(run.count)
}

impl RedactionList {
    /// A list.
    ///
    /// # Errors
    /// `Corrupt` if it is not in order.
    pub fn new(snaps: Vec<u64>, blocks: Vec<RedactBlock>) -> Result<RedactionList> {
        let follows = |pair: &[RedactBlock]| {
            (pair[0].object, end(&pair[0])) <= (pair[1].object, pair[1].blkid)
        };
        match blocks.windows(2).all(follows) {
            true => Ok(RedactionList { snaps, blocks }),
            false => Err(Error::corrupt("a redaction list is not in order")),
        }
    }

    /// Its runs of blocks, in order.
    pub fn blocks(&self) -> &[RedactBlock] {
        &self.blocks
    }

    /// Whether one of `count` blocks of an object is listed.
    pub fn intersects(&self, object: u64, first: u64, count: u64) -> bool {
        let at = self.blocks.partition_point(|run| (run.object, end(run)) <= (object, first));
        let last = first.saturating_add(count);
        self.blocks.get(at).is_some_and(|run| run.object == object && run.blkid < last)
    }

    /// Whether a block of one of `count` objects is listed.
    pub fn has_object_in(&self, first: u64, count: u64) -> bool {
        let at = self.blocks.partition_point(|run| run.object < first);
        self.blocks.get(at).is_some_and(|run| run.object < first.saturating_add(count))
    }
}

/// The walk that makes a list.
struct RedactWalk<'a> {
    snapshot: &'a Arc<Objset>,
    redactions: &'a [Arc<Objset>],
    out: Vec<RedactBlock>,
}

/// The data blocks of a snapshot that none of the redaction snapshots shares with it, in order.
///
/// # Errors
/// Those of reading metadata.
pub fn redacted_blocks(
    snapshot: &Arc<Objset>,
    redactions: &[Arc<Objset>],
) -> Result<Vec<RedactBlock>> {
    let mut walk = RedactWalk { snapshot, redactions, out: Vec::new() };
    walk.objects()?;
    Ok(walk.out)
}

impl RedactWalk<'_> {
    fn objects(&mut self) -> Result<()> {
        let meta = self.snapshot.meta_object();
        let metas: Vec<Object> = self.redactions.iter().map(Objset::meta_object).collect();
        let mut at = ObjectId(0);
        // The block of dnodes that was compared last.
        let mut compared = None;
        while let Some(id) = self.snapshot.next_object(at, Io::WAIT)? {
            at = id;
            let blkid = id.0 / DNODES_PER_BLOCK;
            if compared != Some(blkid) {
                compared = Some(blkid);
                let bp = meta.block_pointer(0, blkid, Io::WAIT)?;
                if shares(&metas, 0, blkid, &bp)? {
                    at = ObjectId(blkid * DNODES_PER_BLOCK + DNODES_PER_BLOCK - 1);
                    continue;
                }
            }
            self.object(id)?;
        }
        Ok(())
    }

    fn object(&mut self, id: ObjectId) -> Result<()> {
        let object = self.snapshot.object(id, Io::WAIT)?;
        if object.object_type().is_metadata() {
            return Ok(());
        }
        let mut others = Vec::new();
        for objset in self.redactions {
            match objset.object(id, Io::WAIT) {
                Ok(other) if other.block_size() == object.block_size() => others.push(other),
                // It shares nothing.
                Ok(_) => {}
                Err(e) if e.kind() == ErrorKind::NotFound => {}
                Err(e) => return Err(e),
            }
        }
        let dnode = Arc::clone(object.dnode());
        let level = dnode.levels.saturating_sub(1);
        for (i, bp) in dnode.blkptrs.iter().enumerate() {
            self.tree((&object, &others), level, i as u64, bp)?;
        }
        Ok(())
    }

    fn tree(
        &mut self,
        (object, others): (&Object, &[Object]),
        level: u8,
        blkid: u64,
        bp: &BlkPtr,
    ) -> Result<()> {
        if bp.is_hole() || matches!(bp, BlkPtr::Redacted(_)) || shares(others, level, blkid, bp)? {
            return Ok(());
        }
        let dnode = object.dnode();
        if level == 0 {
            self.add(object.id().0, blkid, object.block_size());
            return Ok(());
        }
        let children = 1u64 << dnode.epb_shift();
        // Data blocks below a child.
        let shift = dnode.epb_shift() * u32::from(level - 1);
        for child in 0..children {
            let Some(child) = blkid.checked_mul(children).and_then(|n| n.checked_add(child)) else {
                break;
            };
            if child.checked_shl(shift).is_none_or(|first| first > dnode.max_blkid) {
                break;
            }
            let bp = object.block_pointer(level - 1, child, Io::WAIT)?;
            self.tree((object, others), level - 1, child, &bp)?;
        }
        Ok(())
    }

    fn add(&mut self, object: u64, blkid: u64, block_size: u64) {
        match self.out.last_mut() {
            Some(run) if run.object == object && end(run) == blkid => run.count += 1,
            _ => self.out.push(RedactBlock { object, blkid, block_size, count: 1 }),
        }
    }
}

/// Whether one of the objects has the same pointer at a place.
fn shares(others: &[Object], level: u8, blkid: u64, bp: &BlkPtr) -> Result<bool> {
    for other in others {
        if other.block_pointer(level, blkid, Io::WAIT)? == *bp {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(object: u64, blkid: u64, count: u64) -> RedactBlock {
        RedactBlock { object, blkid, block_size: 512, count }
    }

    #[test]
    fn ranges_are_found() {
        let list = RedactionList::new(vec![7], vec![run(5, 2, 3), run(5, 5, 1), run(40, 0, 1)]);
        let list = list.unwrap();
        let hits: Vec<u64> = (0..10).filter(|blkid| list.intersects(5, *blkid, 1)).collect();
        assert_eq!(hits, [2, 3, 4, 5]);
        assert!(list.intersects(5, 0, 3) && !list.intersects(5, 0, 2));
        assert!(list.intersects(5, 0, u64::MAX) && !list.intersects(6, 0, u64::MAX));
        assert!(list.intersects(40, 0, 1) && !list.intersects(40, 1, 9));
        assert!(list.has_object_in(0, 32) && list.has_object_in(32, 32));
        assert!(!list.has_object_in(64, 32) && !list.has_object_in(6, 30));
        let wrong = [vec![run(5, 2, 3), run(5, 4, 1)], vec![run(6, 0, 1), run(5, 9, 1)]];
        for blocks in wrong {
            let e = RedactionList::new(Vec::new(), blocks).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Corrupt);
        }
    }
}
