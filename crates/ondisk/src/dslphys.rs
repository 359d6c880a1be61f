//! Structures of the DSL that live in bonus buffers and ZAP values of the meta
//! object set (chapter 04 §2, §3, §6.4, §9.4, §11, §1.3).
//!
//! # Theory
//! All are arrays of 64-bit words in the byte order of the dnode block that holds the
//! bonus. ZAP values are already words ([`crate::zap::ZapValue`] is big-endian by
//! definition).
//!
//! # Invariants
//! * Parsing checks lengths and block pointers. Object ids and space counts are
//!   returned unchecked, because only the objects themselves can show that they are
//!   wrong.
//! * Encoders write all padding as zeros.

use base::{Error, Result, Txg};

use crate::blkptr::{BLKPTR_SIZE, BlkPtr};
use crate::endian::Endian;

/// Bonus length of a dsl_dir.
pub(crate) const DSL_DIR_SIZE: usize = 256;
/// Bonus length of a dsl_dataset.
pub(crate) const DSL_DATASET_SIZE: usize = 320;
/// Bonus length of a deadlist or livelist.
pub(crate) const DEADLIST_SIZE: usize = 320;
/// Bonus length of a bptree.
pub(crate) const BPTREE_SIZE: usize = 40;
/// Bytes of a bptree entry.
pub const BPTREE_ENTRY_SIZE: usize = 168;

/// `dd_flags`: the used breakdown is maintained.
pub const DD_FLAG_USED_BREAKDOWN: u64 = 1;

/// dsl_dir_phys (§2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct DslDirPhys {
    /// Unix seconds.
    pub creation_time: u64,
    /// Head dataset; 0 for `$MOS`, `$FREE`, `$LEAK`.
    pub head_dataset_obj: u64,
    /// Parent dir; 0 for the root dir.
    pub parent_obj: u64,
    /// Snapshot that the head was cloned from.
    pub origin_obj: u64,
    /// ZAP of child names.
    pub child_dir_zapobj: u64,
    /// Bytes used, descendants and reservations included.
    pub used_bytes: u64,
    /// Compressed bytes, descendants included.
    pub compressed_bytes: u64,
    /// Uncompressed bytes, descendants included.
    pub uncompressed_bytes: u64,
    /// Quota in bytes, 0 = none.
    pub quota: u64,
    /// Reservation in bytes, 0 = none.
    pub reserved: u64,
    /// ZAP of properties.
    pub props_zapobj: u64,
    /// ZAP of delegated permissions, or 0.
    pub deleg_zapobj: u64,
    /// [`DD_FLAG_USED_BREAKDOWN`].
    pub flags: u64,
    /// Parts of `used_bytes`, by [`UsedKind`].
    pub used_breakdown: [u64; 5],
    /// ZAP of the heads of clones of this dir's snapshots, or 0.
    pub clones: u64,
}

/// Index in [`DslDirPhys::used_breakdown`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum UsedKind {
    /// The head dataset.
    Head = 0,
    /// Snapshots.
    Snap = 1,
    /// Child dirs.
    Child = 2,
    /// Reservations of child dirs that are not used yet.
    ChildReservation = 3,
    /// The head's refreservation that is not used yet.
    RefReservation = 4,
}

impl DslDirPhys {
    /// Parses a bonus buffer.
    ///
    /// # Errors
    /// `Corrupt` when it is shorter than [`DSL_DIR_SIZE`].
    pub fn parse(bonus: &[u8], endian: Endian) -> Result<DslDirPhys> {
        let bonus = bonus
            .get(..DSL_DIR_SIZE)
            .ok_or_else(|| Error::corrupt("the bonus of a DSL directory is too short"))?;
        let mut r = endian.reader(bonus, "DSL directory");
        let w: [u64; 13] = r.u64s()?;
        Ok(DslDirPhys {
            creation_time: w[0],
            head_dataset_obj: w[1],
            parent_obj: w[2],
            origin_obj: w[3],
            child_dir_zapobj: w[4],
            used_bytes: w[5],
            compressed_bytes: w[6],
            uncompressed_bytes: w[7],
            quota: w[8],
            reserved: w[9],
            props_zapobj: w[10],
            deleg_zapobj: w[11],
            flags: w[12],
            used_breakdown: r.u64s()?,
            clones: r.u64()?,
        })
    }

    /// The bonus buffer, little endian.
    pub fn encode(&self) -> [u8; DSL_DIR_SIZE] {
        let b = &self.used_breakdown;
        encode_words([
            self.creation_time,
            self.head_dataset_obj,
            self.parent_obj,
            self.origin_obj,
            self.child_dir_zapobj,
            self.used_bytes,
            self.compressed_bytes,
            self.uncompressed_bytes,
            self.quota,
            self.reserved,
            self.props_zapobj,
            self.deleg_zapobj,
            self.flags,
            b[0],
            b[1],
            b[2],
            b[3],
            b[4],
            self.clones,
        ])
    }

    /// One part of the used space; `None` if the breakdown is not maintained.
    pub fn used(&self, kind: UsedKind) -> Option<u64> {
        (self.flags & DD_FLAG_USED_BREAKDOWN != 0).then(|| self.used_breakdown[kind as usize])
    }
}

fn encode_words<const N: usize, const W: usize>(words: [u64; W]) -> [u8; N] {
    let mut out = [0; N];
    for (slot, w) in out.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *slot = w.to_le_bytes();
    }
    out
}

/// `ds_flags`: a partial receive or destroy; the contents are unusable.
pub const DS_FLAG_INCONSISTENT: u64 = 1 << 0;
/// `ds_flags`: `unique_bytes` is exact.
pub const DS_FLAG_UNIQUE_ACCURATE: u64 = 1 << 2;
/// `ds_flags`: the snapshot is destroyed when its last hold or clone disappears.
pub const DS_FLAG_DEFER_DESTROY: u64 = 1 << 3;
/// `ds_flags`: snapshot names are case-insensitive.
pub const DS_FLAG_CI_DATASET: u64 = 1 << 16;

/// dsl_dataset_phys (§3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct DslDatasetPhys {
    /// Owning dir.
    pub dir_obj: u64,
    /// Previous snapshot, through origins; 0 only for `$ORIGIN@$ORIGIN`.
    pub prev_snap_obj: u64,
    /// Creation txg of the previous snapshot.
    pub prev_snap_txg: Txg,
    /// Snapshots: the next newer dataset; heads: 0.
    pub next_snap_obj: u64,
    /// Heads: ZAP of snapshot names.
    pub snapnames_zapobj: u64,
    /// Heads: 0; snapshots: 1 + number of clones.
    pub num_children: u64,
    /// Unix seconds.
    pub creation_time: u64,
    /// Creation txg.
    pub creation_txg: Txg,
    /// Deadlist.
    pub deadlist_obj: u64,
    /// Bytes of all blocks reachable.
    pub referenced_bytes: u64,
    /// The same, compressed size.
    pub compressed_bytes: u64,
    /// The same, uncompressed size.
    pub uncompressed_bytes: u64,
    /// Bytes reachable from this dataset and from no adjacent one.
    pub unique_bytes: u64,
    /// Id for statfs, below 2^56.
    pub fsid_guid: u64,
    /// Identity for send and receive.
    pub guid: u64,
    /// `DS_FLAG_*`.
    pub flags: u64,
    /// The object set; a hole only for `$ORIGIN`.
    pub bp: BlkPtr,
    /// Snapshots: ZAP of the next dataset of each clone, or 0.
    pub next_clones_obj: u64,
    /// Snapshots: ZAP of properties, or 0.
    pub props_obj: u64,
    /// Snapshots: ZAP of user holds, or 0.
    pub userrefs_obj: u64,
}

const DS_BP: usize = 0x80;

impl DslDatasetPhys {
    /// Parses a bonus buffer.
    ///
    /// # Errors
    /// `Corrupt` when it is shorter than [`DSL_DATASET_SIZE`] or its block
    /// pointer is invalid.
    pub fn parse(bonus: &[u8], endian: Endian) -> Result<DslDatasetPhys> {
        let bonus = bonus
            .get(..DSL_DATASET_SIZE)
            .ok_or_else(|| Error::corrupt("the bonus of a DSL dataset is too short"))?;
        let mut r = endian.reader(bonus, "DSL dataset");
        let w: [u64; 16] = r.u64s()?;
        let bp = BlkPtr::parse_nth(bonus, DS_BP / BLKPTR_SIZE, endian)?;
        r.skip(BLKPTR_SIZE)?;
        let tail: [u64; 3] = r.u64s()?;
        Ok(DslDatasetPhys {
            dir_obj: w[0],
            prev_snap_obj: w[1],
            prev_snap_txg: Txg(w[2]),
            next_snap_obj: w[3],
            snapnames_zapobj: w[4],
            num_children: w[5],
            creation_time: w[6],
            creation_txg: Txg(w[7]),
            deadlist_obj: w[8],
            referenced_bytes: w[9],
            compressed_bytes: w[10],
            uncompressed_bytes: w[11],
            unique_bytes: w[12],
            fsid_guid: w[13],
            guid: w[14],
            flags: w[15],
            bp,
            next_clones_obj: tail[0],
            props_obj: tail[1],
            userrefs_obj: tail[2],
        })
    }

    /// The bonus buffer, little endian; `None` if the pointer cannot be written
    /// ([`BlkPtr::encode`]).
    pub fn encode(&self) -> Option<[u8; DSL_DATASET_SIZE]> {
        let mut out: [u8; DSL_DATASET_SIZE] = encode_words([
            self.dir_obj,
            self.prev_snap_obj,
            self.prev_snap_txg.0,
            self.next_snap_obj,
            self.snapnames_zapobj,
            self.num_children,
            self.creation_time,
            self.creation_txg.0,
            self.deadlist_obj,
            self.referenced_bytes,
            self.compressed_bytes,
            self.uncompressed_bytes,
            self.unique_bytes,
            self.fsid_guid,
            self.guid,
            self.flags,
        ]);
        let tail: [u8; 24] =
            encode_words([self.next_clones_obj, self.props_obj, self.userrefs_obj]);
        out[DS_BP..DS_BP + BLKPTR_SIZE].copy_from_slice(&self.bp.encode()?);
        out[0x100..0x118].copy_from_slice(&tail);
        Some(out)
    }

    /// Whether this is a snapshot (the test of chapter 04 §3).
    pub fn is_snapshot(&self) -> bool {
        self.num_children != 0
    }

    /// Whether the contents are unusable, because a receive or destroy was interrupted.
    pub fn is_inconsistent(&self) -> bool {
        self.flags & DS_FLAG_INCONSISTENT != 0
    }

    /// Whether snapshot names are case-insensitive.
    pub fn is_case_insensitive(&self) -> bool {
        self.flags & DS_FLAG_CI_DATASET != 0
    }

    /// Whether the snapshot is destroyed with its last hold and clone.
    pub fn is_defer_destroy(&self) -> bool {
        self.flags & DS_FLAG_DEFER_DESTROY != 0
    }
}

/// Header of a deadlist or livelist: totals over all entries (§6.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct DeadlistPhys {
    /// Allocated bytes.
    pub used: u64,
    /// Compressed bytes.
    pub comp: u64,
    /// Uncompressed bytes.
    pub uncomp: u64,
}

impl DeadlistPhys {
    /// Parses a bonus buffer.
    ///
    /// # Errors
    /// `Corrupt` when it is too short.
    pub fn parse(bonus: &[u8], endian: Endian) -> Result<DeadlistPhys> {
        let [used, comp, uncomp] = endian.reader(bonus, "deadlist header").u64s()?;
        Ok(DeadlistPhys { used, comp, uncomp })
    }

    /// The bonus buffer, little endian.
    pub fn encode(&self) -> [u8; DEADLIST_SIZE] {
        encode_words([self.used, self.comp, self.uncomp])
    }
}

/// Bookmark flag: the freed-before-next fields are valid.
pub const BOOKMARK_HAS_FBN: u64 = 1;
/// Bookmark flag: its snapshot still exists.
pub const BOOKMARK_SNAPSHOT_EXISTS: u64 = 2;

/// Three sizes of the same blocks: allocated, compressed, uncompressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Space {
    /// Allocated bytes.
    pub used: u64,
    /// Compressed bytes.
    pub comp: u64,
    /// Uncompressed bytes.
    pub uncomp: u64,
}

/// A bookmark (§11.3): the value of an entry of the bookmarks ZAP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct BookmarkPhys {
    /// Guid of the snapshot.
    pub guid: u64,
    /// Its creation txg.
    pub creation_txg: Txg,
    /// Unix seconds.
    pub creation_time: u64,
    /// Redaction list object, or 0.
    pub redaction_obj: u64,
    /// `BOOKMARK_*`.
    pub flags: u64,
    /// Referenced by the snapshot.
    pub referenced: Space,
    /// Freed before the next snapshot.
    pub fbn: Space,
    /// IV set of an encrypted snapshot, or 0.
    pub ivset_guid: u64,
}

impl BookmarkPhys {
    /// From the words of the ZAP value; 3 (v1), 12 (v2) or more.
    ///
    /// # Errors
    /// `Corrupt` when there are fewer than 3.
    pub fn from_words(words: &[u64]) -> Result<BookmarkPhys> {
        if words.len() < 3 {
            return Err(Error::corrupt("a bookmark has fewer than three numbers"));
        }
        let w = |i: usize| words.get(i).copied().unwrap_or(0);
        let space = |i| Space { used: w(i), comp: w(i + 1), uncomp: w(i + 2) };
        Ok(BookmarkPhys {
            guid: w(0),
            creation_txg: Txg(w(1)),
            creation_time: w(2),
            redaction_obj: w(3),
            flags: w(4),
            referenced: space(5),
            fbn: space(8),
            ivset_guid: w(11),
        })
    }

    /// The words of the ZAP value: 12 if `v2` (feature bookmark_v2 enabled) and any
    /// field of the long form is in use, otherwise 3.
    pub fn to_words(&self, v2: bool) -> Vec<u64> {
        let long =
            self.ivset_guid != 0 || self.flags & BOOKMARK_HAS_FBN != 0 || self.redaction_obj != 0;
        let all = [
            self.guid,
            self.creation_txg.0,
            self.creation_time,
            self.redaction_obj,
            self.flags,
            self.referenced.used,
            self.referenced.comp,
            self.referenced.uncomp,
            self.fbn.used,
            self.fbn.comp,
            self.fbn.uncomp,
            self.ivset_guid,
        ];
        all[..if v2 && long { 12 } else { 3 }].to_vec()
    }
}

/// Header of a bptree (§9.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct BptreePhys {
    /// Index of the first entry in use.
    pub begin: u64,
    /// Index behind the last.
    pub end: u64,
    /// Bytes still to be freed.
    pub bytes: u64,
    /// The same, compressed.
    pub comp: u64,
    /// The same, uncompressed.
    pub uncomp: u64,
}

impl BptreePhys {
    /// Parses a bonus buffer.
    ///
    /// # Errors
    /// `Corrupt` when it is too short or the range is impossible.
    pub fn parse(bonus: &[u8], endian: Endian) -> Result<BptreePhys> {
        let [begin, end, bytes, comp, uncomp] = endian.reader(bonus, "bptree").u64s()?;
        if begin > end || end > u64::MAX / BPTREE_ENTRY_SIZE as u64 {
            return Err(Error::corrupt("bptree: impossible range of entries"));
        }
        Ok(BptreePhys { begin, end, bytes, comp, uncomp })
    }

    /// The bonus buffer, little endian.
    pub fn encode(&self) -> [u8; BPTREE_SIZE] {
        encode_words([self.begin, self.end, self.bytes, self.comp, self.uncomp])
    }

    /// Byte offset of entry `index`; entries may straddle blocks.
    pub fn entry_offset(index: u64) -> Option<u64> {
        index.checked_mul(BPTREE_ENTRY_SIZE as u64)
    }
}

/// A position in a traversal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct BookmarkPlace {
    /// Object set (dataset object number).
    pub objset: u64,
    /// Object.
    pub object: u64,
    /// Level; −1 root, −2 intent log, −3 dnode.
    pub level: i64,
    /// Block id.
    pub blkid: u64,
}

/// An entry of a bptree: a tree of blocks to be freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BptreeEntry {
    /// The object set to free.
    pub bp: BlkPtr,
    /// Only blocks born after this txg are freed.
    pub birth_txg: Txg,
    /// The position from which freeing continues.
    pub bookmark: BookmarkPlace,
}

impl BptreeEntry {
    /// Parses the bytes of one entry.
    ///
    /// # Errors
    /// `Corrupt` when they are too few or the block pointer is invalid.
    pub fn parse(bytes: &[u8], endian: Endian) -> Result<BptreeEntry> {
        let bp = BlkPtr::parse_nth(bytes, 0, endian)?;
        let mut r = endian.reader(bytes, "bptree entry");
        r.skip(BLKPTR_SIZE)?;
        let [birth, objset, object, level, blkid] = r.u64s()?;
        Ok(BptreeEntry {
            bp,
            birth_txg: Txg(birth),
            bookmark: BookmarkPlace { objset, object, level: level as i64, blkid },
        })
    }

    /// The bytes of the entry, little endian; `None` as [`BlkPtr::encode`].
    pub fn encode(&self) -> Option<[u8; BPTREE_ENTRY_SIZE]> {
        let mut out = [0; BPTREE_ENTRY_SIZE];
        let b = &self.bookmark;
        let tail: [u8; 40] =
            encode_words([self.birth_txg.0, b.objset, b.object, b.level as u64, b.blkid]);
        out[..BLKPTR_SIZE].copy_from_slice(&self.bp.encode()?);
        out[BLKPTR_SIZE..].copy_from_slice(&tail);
        Some(out)
    }
}

/// Header of a redaction list, in the bonus or the spill block (§11.4).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct RedactionListPhys {
    /// Progress of its construction; all ones when complete.
    pub last_object: u64,
    /// Progress of its construction; all ones when complete.
    pub last_blkid: u64,
    /// Entries in the object's data.
    pub num_entries: u64,
    /// Guids of the snapshots it was made from.
    pub snaps: Vec<u64>,
}

impl RedactionListPhys {
    /// Parses a bonus or spill buffer.
    ///
    /// # Errors
    /// `Corrupt` when it is too short for the snapshots that it counts.
    pub fn parse(bytes: &[u8], endian: Endian) -> Result<RedactionListPhys> {
        let mut r = endian.reader(bytes, "redaction list");
        let [last_object, last_blkid, num_entries, num_snaps] = r.u64s()?;
        if num_snaps > r.remaining().len() as u64 / 8 {
            return Err(Error::corrupt("redaction list: more snapshots than bytes"));
        }
        let snaps = (0..num_snaps).map(|_| r.u64()).collect::<Result<_>>()?;
        Ok(RedactionListPhys { last_object, last_blkid, num_entries, snaps })
    }

    /// Whether its construction was finished.
    pub fn is_complete(&self) -> bool {
        self.last_object == u64::MAX && self.last_blkid == u64::MAX
    }

    /// The bytes of the bonus or spill buffer, little-endian.
    pub fn encode(&self) -> Vec<u8> {
        let head = [self.last_object, self.last_blkid, self.num_entries, self.snaps.len() as u64];
        head.iter().chain(&self.snaps).flat_map(|word| word.to_le_bytes()).collect()
    }
}

/// A run of redacted blocks (§11.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RedactBlock {
    /// Object.
    pub object: u64,
    /// First block.
    pub blkid: u64,
    /// Bytes in a block.
    pub block_size: u64,
    /// Number of blocks, at least 1.
    pub count: u64,
}

impl RedactBlock {
    /// Bytes of an entry.
    pub const SIZE: usize = 32;

    /// Parses one entry.
    ///
    /// # Errors
    /// `Corrupt` when the bytes are too few.
    pub fn parse(bytes: &[u8], endian: Endian) -> Result<RedactBlock> {
        let [object, blkid, packed, _pad] = endian.reader(bytes, "redacted blocks").u64s()?;
        Ok(RedactBlock {
            object,
            blkid,
            block_size: (packed >> 48) << 9,
            count: (packed & ((1 << 48) - 1)) + 1,
        })
    }

    /// The bytes of an entry, little-endian.
    pub fn encode(&self) -> [u8; RedactBlock::SIZE] {
        let count = self.count.saturating_sub(1) & ((1 << 48) - 1);
        let words = [self.object, self.blkid, (self.block_size >> 9) << 48 | count, 0];
        let mut out = [0; RedactBlock::SIZE];
        for (to, word) in out.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        out
    }
}

/// Samples in one ring of txg times.
const TXG_TIMES: usize = 256;

/// A ring of (Unix seconds, txg) samples, oldest first (§1.3).
///
/// # Errors
/// `Corrupt` unless there are 515 words and head and length lie in the ring.
pub(crate) fn parse_txg_times(words: &[u64]) -> Result<Vec<(u64, Txg)>> {
    let bad = || Error::corrupt("txg-time log: impossible ring");
    let (&[head, _tail, len], pairs) = words.split_first_chunk::<3>().ok_or_else(bad)?;
    if pairs.len() != 2 * TXG_TIMES || head >= TXG_TIMES as u64 || len > TXG_TIMES as u64 {
        return Err(bad());
    }
    let pairs = pairs.as_chunks::<2>().0;
    Ok((0..len as usize)
        .filter_map(|i| pairs.get((head as usize + i) % TXG_TIMES))
        .map(|&[seconds, txg]| (seconds, Txg(txg)))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(pairs: &[(usize, u64)], len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        for (off, v) in pairs {
            out[*off..off + 8].copy_from_slice(&v.to_le_bytes());
        }
        out
    }

    fn swapped(bytes: &[u8]) -> Vec<u8> {
        bytes.chunks_exact(8).flat_map(|w| w.iter().rev().copied()).collect()
    }

    /// Chapter 04 §20.2.
    fn dir_vector() -> Vec<u8> {
        words(
            &[
                (0x00, 0x6b01_76f3),
                (0x08, 0x50),
                (0x10, 0x20),
                (0x18, 0x30),
                (0x20, 0x4f),
                (0x28, 0x60000),
                (0x30, 0x48000),
                (0x38, 0x48000),
                (0x40, 0x400_0000),
                (0x48, 0x80_0000),
                (0x50, 0x4e),
                (0x58, 0x82),
                (0x60, 1),
                (0x68, 0x30000),
                (0x70, 0x30000),
                (0x90, 0x70),
            ],
            256,
        )
    }

    /// Chapter 04 §20.3.
    fn dataset_vector() -> Vec<u8> {
        words(
            &[
                (0x00, 0x4d),
                (0x08, 0x58),
                (0x10, 0xe),
                (0x18, 0x50),
                (0x28, 2),
                (0x30, 0x6b01_76f3),
                (0x38, 0x12),
                (0x40, 0x59),
                (0x48, 0x30000),
                (0x50, 0x28000),
                (0x58, 0x28000),
                (0x60, 0x10000),
                (0x68, 0x00d5_b4a5_f1e9_fe48),
                (0x70, 0x7711_91c0_08aa_3443),
                (0x78, 4),
                (0x80, 8),
                (0x88, 0x18250),
                (0x90, 8),
                (0x98, 0x28098),
                (0xb0, 0x800b_0702_0007_0007),
                (0xd0, 0xf),
                (0xd8, 1),
                (0xe0, 0x0000_0003_189c_51c3),
                (0xe8, 0x0000_0be2_e0d7_08ec),
                (0xf0, 0x0016_d71b_3b14_46cb),
                (0xf8, 0x1d4a_6216_d6b8_f6ec),
                (0x100, 0x6f),
            ],
            320,
        )
    }

    #[test]
    fn dir_of_the_chapter() {
        let raw = dir_vector();
        let dir = DslDirPhys::parse(&raw, Endian::Little).unwrap();
        assert_eq!((dir.head_dataset_obj, dir.parent_obj, dir.origin_obj), (80, 32, 48));
        assert_eq!((dir.props_zapobj, dir.child_dir_zapobj, dir.deleg_zapobj), (78, 79, 130));
        assert_eq!((dir.quota, dir.reserved, dir.clones), (64 << 20, 8 << 20, 112));
        assert_eq!(dir.used(UsedKind::Snap), Some(196_608));
        assert_eq!(dir.used_breakdown.iter().sum::<u64>(), dir.used_bytes);
        assert_eq!(dir.encode()[..], raw);
        assert_eq!(DslDirPhys::parse(&swapped(&raw), Endian::Big).unwrap(), dir);
        assert!(DslDirPhys::parse(&raw[..255], Endian::Little).is_err());
    }

    #[test]
    fn dataset_of_the_chapter() {
        let raw = dataset_vector();
        let ds = DslDatasetPhys::parse(&raw, Endian::Little).unwrap();
        assert_eq!((ds.dir_obj, ds.prev_snap_obj, ds.next_snap_obj), (77, 88, 80));
        assert_eq!((ds.prev_snap_txg, ds.creation_txg), (Txg(14), Txg(18)));
        assert!(ds.is_snapshot() && !ds.is_inconsistent() && !ds.is_defer_destroy());
        assert_eq!((ds.deadlist_obj, ds.next_clones_obj), (89, 111));
        assert_eq!((ds.referenced_bytes, ds.unique_bytes), (196_608, 65_536));
        let bp = ds.bp.as_block().unwrap();
        assert_eq!((ds.bp.birth(), bp.dvas().len()), (Txg(15), 2));
        assert_eq!(ds.encode().unwrap()[..], raw);
        assert_eq!(DslDatasetPhys::parse(&swapped(&raw), Endian::Big).unwrap(), ds);
        assert!(DslDatasetPhys::parse(&raw[..319], Endian::Little).is_err());
    }

    #[test]
    fn bookmarks_of_both_sizes() {
        let v2 = [7, 14, 0x6b01_76f3, 0, 3, 196_608, 163_840, 163_840, 98_304, 65_536, 65_536, 0];
        let b = BookmarkPhys::from_words(&v2).unwrap();
        assert_eq!(b.fbn, Space { used: 98_304, comp: 65_536, uncomp: 65_536 });
        assert_eq!(b.to_words(true), v2);
        assert_eq!(b.to_words(false), v2[..3]);
        let v1 = BookmarkPhys::from_words(&v2[..3]).unwrap();
        assert_eq!((v1.guid, v1.creation_txg, v1.flags), (7, Txg(14), 0));
        assert_eq!(v1.to_words(true), v2[..3]);
        assert!(BookmarkPhys::from_words(&v2[..2]).is_err());
    }

    #[test]
    fn bptree_entries_round_trip() {
        let ds = DslDatasetPhys::parse(&dataset_vector(), Endian::Little).unwrap();
        let entry = BptreeEntry {
            bp: ds.bp,
            birth_txg: Txg(5),
            bookmark: BookmarkPlace { objset: 1, object: 2, level: -3, blkid: 4 },
        };
        let raw = entry.encode().unwrap();
        assert_eq!(BptreeEntry::parse(&raw, Endian::Little).unwrap(), entry);
        assert!(BptreeEntry::parse(&raw[..167], Endian::Little).is_err());
        let head = BptreePhys { begin: 3, end: 9, bytes: 1, comp: 2, uncomp: 3 };
        assert_eq!(BptreePhys::parse(&head.encode(), Endian::Little).unwrap(), head);
        let backwards = BptreePhys { begin: 9, end: 3, ..head };
        assert!(BptreePhys::parse(&backwards.encode(), Endian::Little).is_err());
        assert_eq!(BptreePhys::entry_offset(781), Some(131_208));
        assert_eq!(BptreePhys::entry_offset(u64::MAX), None);
    }

    #[test]
    fn deadlist_redaction_and_times() {
        let head = DeadlistPhys { used: 1, comp: 2, uncomp: 3 };
        assert_eq!(DeadlistPhys::parse(&head.encode(), Endian::Little).unwrap(), head);

        let list = words(&[(0, !0), (8, !0), (16, 1), (24, 2), (32, 77), (40, 88)], 48);
        let list = RedactionListPhys::parse(&list, Endian::Little).unwrap();
        assert!(list.is_complete());
        assert_eq!(list.snaps, [77, 88]);
        let lying = words(&[(24, 1 << 61)], 48);
        assert!(RedactionListPhys::parse(&lying, Endian::Little).is_err());
        let run = words(&[(0, 9), (8, 4), (16, 256 << 48 | 7)], 32);
        let run = RedactBlock::parse(&run, Endian::Little).unwrap();
        assert_eq!((run.block_size, run.count), (131_072, 8));

        let mut ring = vec![0u64; 515];
        ring[..3].copy_from_slice(&[255, 1, 2]);
        (ring[3 + 510], ring[3 + 511]) = (100, 4);
        (ring[3], ring[4]) = (700, 9);
        assert_eq!(parse_txg_times(&ring).unwrap(), [(100, Txg(4)), (700, Txg(9))]);
        ring[0] = 256;
        assert!(parse_txg_times(&ring).is_err());
        assert!(parse_txg_times(&ring[..514]).is_err());
    }
}
