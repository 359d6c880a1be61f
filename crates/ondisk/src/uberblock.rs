//! The uberblock (chapter 01 §3): the root of a pool, written in each txg.
//!
//! # Theory
//! 27 words in the writer's byte order, which the magic reveals. [`Uberblock::rank`]
//! determines which uberblock is the newest: txg, then time, then the multihost
//! sequence.
//!
//! # Invariants
//! The multihost fields exist only behind their own magic. The root block pointer is
//! checked like every block pointer. A hole occurs only in the template of a device
//! that was never synced (txg 0).

use base::{Error, Result, Txg};

use crate::blkptr::{BLKPTR_SIZE, BlkPtr};
use crate::endian::Endian;

/// First word.
pub const MAGIC: u64 = 0x00ba_b10c;
/// Bytes of the structure; the rest of its slot is zero up to the checksum.
pub const UBERBLOCK_SIZE: usize = 216;
/// Words of the structure.
pub(crate) const UBERBLOCK_WORDS: usize = UBERBLOCK_SIZE / 8;
/// Marks valid multihost fields.
pub(crate) const MMP_MAGIC: u64 = 0xa11c_ea11;
/// Pool version with feature flags; also the software version that is written.
pub const VERSION_FEATURES: u64 = 5000;
/// Highest of the old, numbered pool versions.
pub(crate) const VERSION_LEGACY_MAX: u64 = 28;

const ROOT_BP_WORD: usize = 5;
const ROOT_BP_END: usize = ROOT_BP_WORD + BLKPTR_SIZE / 8;

/// Multihost protection's fields (chapter 01 §3, §7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Mmp {
    /// 0 when multihost is off; else nanoseconds between heartbeats, averaged.
    pub delay: u64,
    /// The packed `ub_mmp_config`.
    pub config: u64,
}

impl Mmp {
    fn field(self, valid_bit: u32, low: u32, width: u32) -> Option<u64> {
        (self.config >> valid_bit & 1 == 1).then(|| self.config >> low & ((1 << width) - 1))
    }

    /// Milliseconds between heartbeats, if valid.
    pub fn interval_ms(self) -> Option<u64> {
        self.field(0, 8, 24)
    }

    /// Heartbeat sequence number, if valid.
    pub fn sequence(self) -> Option<u64> {
        self.field(1, 32, 16)
    }

    /// Missed intervals after which the writer suspends, if valid; 0 is never.
    pub fn fail_intervals(self) -> Option<u64> {
        self.field(2, 48, 16)
    }

    /// The packed form of the three fields, all valid.
    pub fn pack_config(interval_ms: u32, sequence: u16, fail_intervals: u16) -> u64 {
        7 | u64::from(interval_ms & 0xff_ffff) << 8
            | u64::from(sequence) << 32
            | u64::from(fail_intervals) << 48
    }
}

/// The content of the scratch area of an expanding RAID-Z (chapter 08 §E).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScratchState {
    /// Not in use.
    Unused,
    /// It holds the only good copy of the first sectors.
    Valid,
    /// Written back, and synced.
    InvalidSynced,
    /// Written back while importing.
    InvalidSyncedOnImport,
    /// Written back, and the reflow continued.
    InvalidSyncedReflow,
}

/// Progress of a RAID-Z expansion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reflow {
    /// Linear byte offset in the top-level vdev: everything below has moved.
    pub offset: u64,
    /// State of the scratch area.
    pub scratch: ScratchState,
}

/// A checked uberblock.
#[derive(Clone, Debug, PartialEq)]
pub struct Uberblock {
    /// Pool version: 1 to 28, or 5000.
    pub version: u64,
    /// The txg whose sync it ends; 0 on a device that was never synced.
    pub txg: Txg,
    /// Sum of all vdev guids, modulo 2^64 (chapter 01 §4.4).
    pub guid_sum: u64,
    /// UTC seconds since 1970.
    pub timestamp: u64,
    /// The MOS's object set block.
    pub root_bp: BlkPtr,
    /// Highest pool version that the writer supports.
    pub software_version: u64,
    /// Multihost fields, if their magic is there.
    pub mmp: Option<Mmp>,
    /// Non-zero only in a checkpointed uberblock: its original txg.
    pub checkpoint_txg: Txg,
    /// Packed expansion progress; see [`Uberblock::reflow`].
    pub raidz_reflow_info: u64,
    /// Byte order it was found in; encoding is always little-endian.
    pub endian: Endian,
}

impl Uberblock {
    /// Parses the first [`UBERBLOCK_SIZE`] bytes of a slot.
    ///
    /// # Errors
    /// `Corrupt` for a wrong magic, or a root block pointer that is invalid;
    /// `Unsupported` for an unknown pool version.
    pub fn parse(bytes: &[u8]) -> Result<Uberblock> {
        let endian = [Endian::Little, Endian::Big]
            .into_iter()
            .find(|e| e.u64(bytes, 0) == Some(MAGIC))
            .ok_or_else(|| Error::corrupt("no uberblock magic"))?;
        let words = endian.reader(bytes, "uberblock").u64s::<UBERBLOCK_WORDS>()?;
        Ok(Uberblock { endian, ..Self::from_words(&words)? })
    }

    /// Parses the words, as the checkpoint stores them (chapter 01 §8.5).
    ///
    /// # Errors
    /// As [`Uberblock::parse`].
    pub fn from_words(words: &[u64; UBERBLOCK_WORDS]) -> Result<Uberblock> {
        let [magic, version, txg, guid_sum, timestamp, ..] = *words;
        let [.., software_version, mmp_magic, delay, config, checkpoint_txg, reflow] = *words;
        if magic != MAGIC {
            return Err(Error::corrupt("no uberblock magic"));
        }
        if version != VERSION_FEATURES && !(1..=VERSION_LEGACY_MAX).contains(&version) {
            return Err(Error::unsupported(format!("pool version {version} is unknown")));
        }
        let mut raw = [0; BLKPTR_SIZE];
        let root = words.iter().skip(ROOT_BP_WORD);
        for (bytes, word) in raw.chunks_exact_mut(8).zip(root) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        Ok(Uberblock {
            version,
            txg: Txg(txg),
            guid_sum,
            timestamp,
            root_bp: BlkPtr::parse(&raw, Endian::Little)?,
            software_version,
            mmp: (mmp_magic == MMP_MAGIC).then_some(Mmp { delay, config }),
            checkpoint_txg: Txg(checkpoint_txg),
            raidz_reflow_info: reflow,
            endian: Endian::Little,
        })
    }

    /// The words to write.
    ///
    /// # Errors
    /// `Invalid` if the root block pointer is one that cannot be written.
    pub fn to_words(&self) -> Result<[u64; UBERBLOCK_WORDS]> {
        let root = self
            .root_bp
            .encode()
            .ok_or_else(|| Error::invalid("an uberblock cannot refer to a redacted block"))?;
        let mut words = [0; UBERBLOCK_WORDS];
        let mmp = self.mmp.unwrap_or_default();
        let head = [MAGIC, self.version, self.txg.0, self.guid_sum, self.timestamp];
        let tail = [
            self.software_version,
            if self.mmp.is_some() { MMP_MAGIC } else { 0 },
            mmp.delay,
            mmp.config,
            self.checkpoint_txg.0,
            self.raidz_reflow_info,
        ];
        let root = root.chunks_exact(8).map(|b| Endian::Little.u64(b, 0).unwrap_or_default());
        let all = head.into_iter().chain(root).chain(tail);
        words.iter_mut().zip(all).for_each(|(w, v)| *w = v);
        Ok(words)
    }

    /// The bytes to write, little-endian.
    ///
    /// # Errors
    /// As [`Uberblock::to_words`].
    pub fn encode(&self) -> Result<[u8; UBERBLOCK_SIZE]> {
        let mut out = [0; UBERBLOCK_SIZE];
        for (bytes, word) in out.chunks_exact_mut(8).zip(self.to_words()?) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        Ok(out)
    }

    /// The sort key; larger is newer: txg, time, multihost sequence (chapter 01 §3.1).
    pub fn rank(&self) -> (Txg, u64, u64) {
        (self.txg, self.timestamp, self.mmp.and_then(Mmp::sequence).unwrap_or(0))
    }

    /// Orders by age.
    pub fn compare(&self, other: &Uberblock) -> std::cmp::Ordering {
        self.rank().cmp(&other.rank())
    }

    /// Whether multihost is on, so that another host may hold the pool.
    pub fn is_multihost(&self) -> bool {
        self.mmp.is_some_and(|m| m.delay != 0)
    }

    /// Progress of a RAID-Z expansion.
    ///
    /// # Errors
    /// `Unsupported` for a scratch state from the future.
    pub fn reflow(&self) -> Result<Reflow> {
        let scratch = match self.raidz_reflow_info >> 55 {
            0 => ScratchState::Unused,
            1 => ScratchState::Valid,
            2 => ScratchState::InvalidSynced,
            3 => ScratchState::InvalidSyncedOnImport,
            4 => ScratchState::InvalidSyncedReflow,
            s => return Err(Error::unsupported(format!("RAID-Z reflow state {s} is unknown"))),
        };
        Ok(Reflow { offset: (self.raidz_reflow_info & ((1 << 55) - 1)) << 9, scratch })
    }
}

const _: () = assert!(ROOT_BP_END + 6 == UBERBLOCK_WORDS);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Chapter 01 §3, worked example.
    pub(crate) const EXAMPLE: &str = "
        0cb1ba00 00000000 88130000 00000000 c3010000 00000000 04d8cfc4 c27611ea
        0773016b 00000000 02000000 04000000 d8020a00 00000000 02000000 03000000
        d8021200 00000000 02000000 04000000 06010c00 00000000 07000000 0f070b80
        00000000 00000000 00000000 00000000 00000000 00000000 c3010000 00000000
        9c010000 00000000 1e2fd083 0c000000 a9993e42 08050000 ddac8074 e4070100
        4e08cff8 54ba2400 88130000 00000000 11ea1ca1 00000000 00000000 00000000
        00000000 00000000 00000000 00000000 00000000 00000000";

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
        digits
            .chunks(2)
            .map(|d| u8::from_str_radix(std::str::from_utf8(d).unwrap(), 16).unwrap())
            .collect()
    }

    #[test]
    fn worked_example_round_trips_in_both_orders() {
        let bytes = hex(EXAMPLE);
        let ub = Uberblock::parse(&bytes).unwrap();
        assert_eq!((ub.version, ub.txg, ub.timestamp), (5000, Txg(451), 1_795_257_095));
        assert_eq!(ub.guid_sum, 0xea11_76c2_c4cf_d804);
        assert_eq!(ub.mmp, Some(Mmp::default()));
        assert_eq!(ub.root_bp.birth(), Txg(451));
        assert_eq!(ub.root_bp.as_block().unwrap().dva().offset, 0x1405_b000);
        assert_eq!(ub.encode().unwrap()[..], bytes);

        let swapped: Vec<u8> =
            bytes.chunks(8).flat_map(|w| w.iter().rev().copied().collect::<Vec<_>>()).collect();
        let big = Uberblock::parse(&swapped).unwrap();
        assert_eq!(big.endian, Endian::Big);
        assert_eq!(Uberblock { endian: Endian::Little, ..big }, ub);
    }

    #[test]
    fn newer_wins() {
        let a = Uberblock::parse(&hex(EXAMPLE)).unwrap();
        let later = Uberblock { timestamp: a.timestamp + 1, ..a.clone() };
        let next = Uberblock { txg: Txg(452), timestamp: 0, ..a.clone() };
        let beat = Uberblock {
            mmp: Some(Mmp { delay: 1, config: Mmp::pack_config(1000, 3, 10) }),
            ..a.clone()
        };
        assert!(a.compare(&later).is_lt() && later.compare(&next).is_lt());
        assert!(a.compare(&beat).is_lt() && beat.compare(&later).is_lt());
        assert!(beat.is_multihost() && !a.is_multihost());
        let mmp = beat.mmp.unwrap();
        assert_eq!(mmp.interval_ms(), Some(1000));
        assert_eq!(mmp.sequence(), Some(3));
        assert_eq!(mmp.fail_intervals(), Some(10));
    }

    #[test]
    fn reflow_progress() {
        let a = Uberblock::parse(&hex(EXAMPLE)).unwrap();
        let ub = Uberblock { raidz_reflow_info: 1 << 55 | 3, ..a };
        let reflow = ub.reflow().unwrap();
        assert_eq!(reflow, Reflow { offset: 1536, scratch: ScratchState::Valid });
        assert!(Uberblock { raidz_reflow_info: 5 << 55, ..ub }.reflow().is_err());
    }

    proptest! {
        #[test]
        fn mutations_never_panic(
            cuts in prop::collection::vec((0usize..UBERBLOCK_SIZE, any::<u8>()), 0..8),
            keep in 0usize..=UBERBLOCK_SIZE,
        ) {
            let mut bytes = hex(EXAMPLE);
            for (at, byte) in cuts {
                bytes[at] = byte;
            }
            if let Ok(ub) = Uberblock::parse(&bytes[..keep]) {
                let _ = ub.reflow();
                if let Ok(again) = ub.encode() {
                    let again = Uberblock::parse(&again).unwrap();
                    prop_assert_eq!(again, Uberblock { endian: Endian::Little, ..ub });
                }
            }
        }
    }
}
