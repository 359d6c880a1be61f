//! Redaction: the blocks that a stream leaves out (chapter 07 §8.7, §10.2).
//!
//! # Theory
//! The list of a redaction bookmark has the blocks of a snapshot that all of its redaction
//! snapshots, clones' snapshots further down, have changed or freed. A block that one of them
//! still shares is not sensitive. So [`redacted_blocks`] walks over the snapshot's own blocks and
//! compares each pointer with the one that every redaction snapshot has at that place. Where one
//! of them has the same pointer, it has the same subtree, and the walk ends there. A hole is a
//! block as any other: what a file does not have may be sensitive, too (the list of the golden
//! pool `bookmarked` has the holes of files that the clone removed). A hole in both is unchanged
//! unless it came later; OpenZFS lists those without a birth, too, where the clone's block of
//! dnodes changed.
//!
//! A sender replaces the blocks that are listed by REDACT records. If the source of a stream is
//! a redaction bookmark, the receiver lacks the blocks of its list, however old they are: they are
//! sent, unless the new list has them as well.
//!
//! # Invariants
//! * A list is in the order of objects and blocks, and its runs do not overlap.
//! * Metadata is never listed.

use std::sync::Arc;

use base::{Error, ErrorKind, ObjectId, Result, Txg};
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

    /// The listed runs among `count` blocks of an object, each as its first block and length.
    pub fn runs_in(&self, object: u64, first: u64, count: u64) -> impl Iterator<Item = (u64, u64)> {
        let at = self.blocks.partition_point(|run| (run.object, end(run)) <= (object, first));
        let last = first.saturating_add(count);
        let runs = self.blocks.get(at..).unwrap_or_default().iter();
        runs.take_while(move |run| run.object == object && run.blkid < last).map(move |run| {
            let from = run.blkid.max(first);
            (from, end(run).min(last) - from)
        })
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
    /// The last txg that changed the snapshot.
    last: Txg,
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
    let last = snapshot.root_bp().birth();
    let mut walk = RedactWalk { snapshot, redactions, last, out: Vec::new() };
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
                if shares(&metas, self.last, 0, blkid, &bp)? {
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
        if others.is_empty() {
            self.add((id.0, object.block_size()), 0, dnode.max_blkid.saturating_add(1));
            return Ok(());
        }
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
        let dnode = object.dnode();
        let shift = dnode.epb_shift() * u32::from(level);
        // Where the first data block below is behind the end, there is nothing.
        let first = blkid.checked_shl(shift).filter(|first| first >> shift == blkid);
        if first.is_none_or(|first| first > dnode.max_blkid)
            || shares(others, self.last, level, blkid, bp)?
        {
            return Ok(());
        }
        if level == 0 {
            self.add((object.id().0, object.block_size()), blkid, 1);
            return Ok(());
        }
        // Below a hole are holes, where another object has blocks: that one bounds the walk.
        let children = 1u64 << dnode.epb_shift();
        for child in 0..children {
            let Some(child) = blkid.checked_mul(children).and_then(|n| n.checked_add(child)) else {
                break;
            };
            let bp = object.block_pointer(level - 1, child, Io::WAIT)?;
            self.tree((object, others), level - 1, child, &bp)?;
        }
        Ok(())
    }

    fn add(&mut self, (object, block_size): (u64, u64), blkid: u64, count: u64) {
        match self.out.last_mut() {
            Some(run) if run.object == object && end(run) == blkid => run.count += count,
            _ => self.out.push(RedactBlock { object, blkid, block_size, count }),
        }
    }
}

/// Whether one of the objects has the same pointer at a place, or a hole where there is one and
/// that did not come later than `last`.
fn shares(others: &[Object], last: Txg, level: u8, blkid: u64, bp: &BlkPtr) -> Result<bool> {
    for other in others {
        // A smaller tree says nothing above its root.
        if level >= other.dnode().levels && blkid == 0 {
            continue;
        }
        let found = other.block_pointer(level, blkid, Io::WAIT)?;
        if found == *bp || (found.is_hole() && bp.is_hole() && found.birth() <= last) {
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
        let runs = |first, count| list.runs_in(5, first, count).collect::<Vec<_>>();
        assert_eq!(runs(0, 100), [(2, 3), (5, 1)]);
        assert_eq!(runs(3, 1), [(3, 1)]);
        assert_eq!(runs(4, u64::MAX), [(4, 1), (5, 1)]);
        assert_eq!(runs(6, 9), []);
        assert!(list.has_object_in(0, 32) && list.has_object_in(32, 32));
        assert!(!list.has_object_in(64, 32) && !list.has_object_in(6, 30));
        let wrong = [vec![run(5, 2, 3), run(5, 4, 1)], vec![run(6, 0, 1), run(5, 9, 1)]];
        for blocks in wrong {
            let e = RedactionList::new(Vec::new(), blocks).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Corrupt);
        }
    }
}
