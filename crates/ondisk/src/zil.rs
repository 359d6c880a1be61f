//! The intent log: header, chain blocks and records (chapter 06 §16, §17).
//!
//! # Theory
//! A log is a chain of blocks. Each block names the next one before that is written, so
//! the pointers' checksum words are not checksums but a *verifier*: the chain's random
//! id, the object set, and a sequence number. A block without its verifier was never
//! written, and ends the chain; that is normal.
//!
//! # Invariants
//! * A [`LogBlock`] was verified: its checksum, the sequence number of its successor,
//!   and its fill.
//! * [`Records`] returns records that lie completely inside the block, each at least 32
//!   bytes long, so it ends after at most `nused / 32` steps.

use base::{Error, Result, Txg};
use codec::checksum::Checksum;
use codec::checksum::embedded::{ECK_SIZE, EmbeddedError, is_swapped, verify_embedded};

use crate::blkptr::{BLKPTR_SIZE, BlkPtr, Protection};
use crate::endian::Endian;
use crate::objset::ZIL_HEADER_SIZE;

mod acl;
mod encode;
mod record;

pub use acl::{LoggedAcl, encode_acl};
pub use encode::{RECORD_SEQ_AT, WRITE_HEADER, records_at, seal};

pub use record::{
    AclInfo, CloneRange, Create, Names, RENAME_EXCHANGE, RENAME_WHITEOUT, Record, RecordBody,
    RecordHeader, SetAttr, Whiteout, Write, XAT_PROJID, Xvattr,
};

/// Names of record types, by number, as `zdb` prints them; 0 is no type, and stands for the
/// sum of all.
pub const RECORD_TYPES: [&str; 25] = [
    "Total",
    "TX_CREATE",
    "TX_MKDIR",
    "TX_MKXATTR",
    "TX_SYMLINK",
    "TX_REMOVE",
    "TX_RMDIR",
    "TX_LINK",
    "TX_RENAME",
    "TX_WRITE",
    "TX_TRUNCATE",
    "TX_SETATTR",
    "TX_ACL_V0",
    "TX_ACL_ACL",
    "TX_CREATE_ACL",
    "TX_CREATE_ATTR",
    "TX_CREATE_ACL_ATTR",
    "TX_MKDIR_ACL",
    "TX_MKDIR_ATTR",
    "TX_MKDIR_ACL_ATTR",
    "TX_WRITE2",
    "TX_SETSAXATTR",
    "TX_RENAME_EXCHANGE",
    "TX_RENAME_WHITEOUT",
    "TX_CLONE_RANGE",
];

/// Bytes of a chain header (zilog2) or trailer (zilog).
pub const CHAIN_SIZE: usize = 184;
/// zilog2 covers whole units of this size.
const ZILOG2_UNIT: usize = 4096;
const NEXT_AT: usize = 8;
const NUSED_AT: usize = 136;
const ECK_AT: usize = CHAIN_SIZE - ECK_SIZE;
/// Byte offset of a pointer's checksum words.
const WORDS_AT: usize = 96;

/// A block pointer of the chain with its verifier, which a hole also has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogPtr {
    /// Pointer to the block; a hole ends the chain.
    pub bp: BlkPtr,
    /// Chain id (two words), object set, sequence.
    pub verifier: [u64; 4],
}

impl LogPtr {
    fn parse(bytes: &[u8], endian: Endian) -> Result<LogPtr> {
        let bp = BlkPtr::parse_nth(bytes, 0, endian)?;
        let words = bytes.get(WORDS_AT..BLKPTR_SIZE).unwrap_or_default();
        let verifier = endian.reader(words, "log block pointer").u64s()?;
        Ok(LogPtr { bp, verifier })
    }

    /// Sequence number of the block within the chain.
    pub fn seq(&self) -> u64 {
        let [_, _, _, seq] = self.verifier;
        seq
    }

    /// Object set that the chain belongs to.
    pub fn objset(&self) -> u64 {
        let [_, _, objset, _] = self.verifier;
        objset
    }

    /// Whether the chain ends here.
    pub fn is_end(&self) -> bool {
        self.bp.is_hole()
    }
}

/// Header flag: the log holds records to replay.
pub const REPLAY_NEEDED: u64 = 1;
/// Header flag: `claim_lr_seq` is valid.
pub const CLAIM_LR_SEQ_VALID: u64 = 2;

/// The log's header, inside the object set block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZilHeader {
    /// Txg in which the chain was claimed; zero if unclaimed.
    pub claim_txg: Txg,
    /// Highest record sequence replayed.
    pub replay_seq: u64,
    /// First block.
    pub log: LogPtr,
    /// Highest claimed block sequence.
    pub claim_blk_seq: u64,
    /// [`REPLAY_NEEDED`], [`CLAIM_LR_SEQ_VALID`].
    pub flags: u64,
    /// Highest claimed record sequence.
    pub claim_lr_seq: u64,
}

impl ZilHeader {
    /// Parses the header.
    ///
    /// # Errors
    /// `Corrupt` if its block pointer is invalid.
    pub fn parse(bytes: &[u8; ZIL_HEADER_SIZE], endian: Endian) -> Result<ZilHeader> {
        let mut r = endian.reader(bytes, "intent log header");
        let [claim_txg, replay_seq] = r.u64s()?;
        let log = LogPtr::parse(r.take(BLKPTR_SIZE)?, endian)?;
        let [claim_blk_seq, flags, claim_lr_seq] = r.u64s()?;
        let claim_txg = Txg(claim_txg);
        Ok(ZilHeader { claim_txg, replay_seq, log, claim_blk_seq, flags, claim_lr_seq })
    }

    /// Whether records may have to be replayed.
    pub(crate) fn needs_replay(&self) -> bool {
        !self.log.is_end() && (self.claim_txg == Txg::ZERO || self.flags & REPLAY_NEEDED != 0)
    }

    /// The walk stops behind this block sequence (chapter 06 §19.3).
    pub fn block_limit(&self) -> u64 {
        if self.claim_txg == Txg::ZERO { u64::MAX } else { self.claim_blk_seq }
    }

    /// The walk stops behind this record sequence.
    pub fn record_limit(&self) -> u64 {
        let claimed = self.claim_txg != Txg::ZERO && self.flags & CLAIM_LR_SEQ_VALID != 0;
        if claimed { self.claim_lr_seq } else { u64::MAX }
    }
}

/// A verified block of the chain.
#[derive(Clone, Copy, Debug)]
pub struct LogBlock<'a> {
    /// The next block, or a hole.
    pub next: LogPtr,
    /// Byte order of the chain header and the records.
    pub endian: Endian,
    /// The used bytes that hold records.
    pub records: &'a [u8],
    /// The chain header (zilog2) or trailer (zilog): 184 bytes.
    pub chain: &'a [u8],
    /// Record bodies are encrypted; headers are not (chapter 08 §A.12).
    pub encrypted: bool,
    /// MAC of an encrypted block: the last two words of its checksum.
    pub mac: [u64; 2],
}

fn invalid(what: &str) -> Error {
    Error::corrupt(format!("not a valid intent log block: {what}"))
}

impl<'a> LogBlock<'a> {
    /// Verifies and parses the block of `ptr`; `block` is the whole block as read.
    ///
    /// # Errors
    /// `Checksum` or `Corrupt`, both of which end the chain.
    pub fn parse(block: &'a [u8], ptr: &LogPtr) -> Result<LogBlock<'a>> {
        let bp = ptr.bp.as_block().ok_or_else(|| invalid("no address"))?;
        if bp.psize.0 != block.len() as u64 {
            return Err(invalid("size"));
        }
        let algorithm = Checksum::from_id(bp.checksum);
        let chain_at = match algorithm {
            Some(Checksum::Zilog2) => 0,
            Some(Checksum::Zilog) => {
                block.len().checked_sub(CHAIN_SIZE).ok_or_else(|| invalid("size"))?
            }
            _ => return Err(invalid("checksum function")),
        };
        let chain = block.get(chain_at..chain_at + CHAIN_SIZE).ok_or_else(|| invalid("size"))?;
        let swapped = is_swapped(chain, ECK_AT).ok_or_else(|| invalid("no magic"))?;
        let endian = if swapped { Endian::Big } else { Endian::Little };
        let nused = endian
            .u64(chain, NUSED_AT)
            .and_then(|n| usize::try_from(n).ok())
            .filter(|&n| n <= block.len())
            .ok_or_else(|| invalid("used size"))?;
        let (region, records) = if algorithm == Some(Checksum::Zilog2) {
            let covered = nused.next_multiple_of(ZILOG2_UNIT).min(block.len());
            (block.get(..covered), block.get(CHAIN_SIZE..nused))
        } else {
            (Some(block), block.get(..nused).filter(|_| nused <= chain_at))
        };
        let (Some(region), Some(records), Some(algorithm)) = (region, records, algorithm) else {
            return Err(invalid("used size"));
        };
        let encrypted = bp.protection == Protection::Encrypted;
        verify(algorithm, region, chain_at + ECK_AT, ptr.verifier, encrypted)?;
        let next = LogPtr::parse(chain.get(NEXT_AT..).unwrap_or_default(), endian)?;
        let [id0, id1, objset, seq] = ptr.verifier;
        if next.verifier != [id0, id1, objset, seq.wrapping_add(1)] {
            return Err(invalid("its successor belongs to another chain"));
        }
        let mac = endian.reader(chain.get(CHAIN_SIZE - 16..).unwrap_or_default(), "MAC").u64s()?;
        Ok(LogBlock { next, endian, records, chain, encrypted, mac })
    }

    /// The records in order. In an encrypted block only the headers are meaningful
    /// until the bodies are decrypted.
    pub fn records(&self) -> Records<'a> {
        Records { rest: self.records, endian: self.endian, failed: false }
    }
}

/// Encrypted blocks fold the checksum into two words; the MAC follows them.
fn verify(
    algorithm: Checksum,
    region: &[u8],
    eck: usize,
    verifier: [u64; 4],
    encrypted: bool,
) -> Result<()> {
    match verify_embedded(algorithm, region, eck, verifier) {
        Err(EmbeddedError::Mismatch { stored: [s0, s1, ..], computed: [c0, c1, c2, c3] })
            if encrypted && s0 == c0 ^ c2 && s1 == c1 ^ c3 =>
        {
            Ok(())
        }
        // The unfolded form would leave the MAC unprotected.
        Ok(()) if !encrypted => Ok(()),
        Ok(()) => Err(Error::checksum("an encrypted intent log block without MAC")),
        Err(e) => Err(Error::checksum("the intent log ends here").caused_by(e)),
    }
}

/// The records of a block, unparsed.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    rest: &'a [u8],
    endian: Endian,
    failed: bool,
}

impl<'a> Records<'a> {
    /// The records in the used bytes of a block.
    pub fn new(bytes: &'a [u8], endian: Endian) -> Records<'a> {
        Records { rest: bytes, endian, failed: false }
    }

    fn take(&mut self) -> Result<Record<'a>> {
        let record = Record::split(self.rest, self.endian)?;
        self.rest = self.rest.get(record.bytes.len()..).unwrap_or_default();
        Ok(record)
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed || self.rest.is_empty() {
            return None;
        }
        let record = self.take();
        self.failed = record.is_err();
        Some(record)
    }
}

#[cfg(test)]
mod tests;
