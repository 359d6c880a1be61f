//! Removed top-level vdevs: mapping, births and progress (chapter 08 §D).
//!
//! # Theory
//! A removed vdev keeps its id; addresses on it are translated through a sorted
//! array of (source, destination) segments. Lookups are a binary search.
//!
//! # Invariants
//! * The entries of a [`Mapping`] are sorted by source, are not empty, do not overlap,
//!   and are below its `max_offset`; none of the sums overflows.
//! * [`Mapping::resolve`] returns pieces that exactly cover the requested range.

use base::limits::VDEV_COUNT_MAX;
use base::{Asize, Dva, Error, ObjectId, Result, Txg, VdevId};

use crate::endian::Endian;

/// Bytes of a mapping entry.
pub const MAPPING_ENTRY_SIZE: usize = 24;
/// Bytes of a births entry.
pub const BIRTH_ENTRY_SIZE: usize = 16;
/// Bit 63 of a mapping entry's first word: used by tools, ignored here.
const SOURCE_MASK: u64 = (1 << 63) - 1;

fn corrupt(what: &str) -> Error {
    Error::corrupt(format!("invalid indirect mapping: {what}"))
}

/// A DVA from its two words (chapter 02 §1).
pub(crate) fn dva(words: [u64; 2]) -> Dva {
    let [size, place] = words;
    Dva {
        vdev: VdevId((size >> 32 & 0xff_ffff) as u32),
        offset: (place & SOURCE_MASK) << 9,
        asize: Asize((size & 0xff_ffff) << 9),
        gang: place >> 63 == 1,
    }
}

/// The two words of a DVA.
pub(crate) fn dva_words(dva: Dva) -> [u64; 2] {
    [dva.asize.0 >> 9 | u64::from(dva.vdev.0) << 32, dva.offset >> 9 | u64::from(dva.gang) << 63]
}

/// The mapping object's bonus buffer (chapter 08 §D.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MappingHeader {
    /// Every source offset below this is mapped, or was free.
    pub max_offset: u64,
    /// Sum of the segments' lengths.
    pub bytes_mapped: u64,
    /// Number of entries.
    pub num_entries: u64,
    /// Object with each entry's obsolete bytes.
    pub counts: Option<ObjectId>,
}

impl MappingHeader {
    /// Parses the bonus buffer, 24 or 32 bytes.
    ///
    /// # Errors
    /// `Corrupt` if it is shorter.
    pub fn parse(bonus: &[u8], endian: Endian) -> Result<MappingHeader> {
        let [max_offset, bytes_mapped, num_entries] =
            endian.reader(bonus, "indirect mapping header").u64s()?;
        let counts = endian.u64(bonus, 24).filter(|&o| o != 0).map(ObjectId);
        Ok(MappingHeader { max_offset, bytes_mapped, num_entries, counts })
    }

    /// The bonus buffer to write, in the form with counts.
    pub fn encode(&self) -> [u8; 32] {
        let counts = self.counts.map_or(0, |object| object.0);
        let mut out = [0; 32];
        let words = [self.max_offset, self.bytes_mapped, self.num_entries, counts];
        for (bytes, word) in out.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        out
    }
}

/// One segment: its old and its new location.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappingEntry {
    /// Byte offset on the removed vdev.
    pub source: u64,
    /// The new location of the bytes; `asize` is the segment's length.
    pub dest: Dva,
}

impl MappingEntry {
    fn parse(words: [u64; 3]) -> Result<MappingEntry> {
        let [source, size, place] = words;
        let source = source & SOURCE_MASK;
        if source >> 54 != 0 || (place & SOURCE_MASK) >> 54 != 0 {
            return Err(corrupt("an offset beyond every vdev"));
        }
        let dest = dva([size, place]);
        if !dest.is_valid() || dest.gang {
            return Err(corrupt("a destination"));
        }
        Ok(MappingEntry { source: source << 9, dest })
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.dest.asize.0
    }

    /// Never true for a parsed entry.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn end(&self) -> u64 {
        self.source.saturating_add(self.len())
    }

    /// The bytes to write.
    pub fn encode(&self) -> [u8; MAPPING_ENTRY_SIZE] {
        let [size, place] = dva_words(self.dest);
        let mut out = [0; MAPPING_ENTRY_SIZE];
        for (bytes, word) in out.chunks_exact_mut(8).zip([self.source >> 9, size, place]) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        out
    }
}

/// A checked mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    entries: Vec<MappingEntry>,
}

/// A piece of a translated range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Byte offset of the piece within the requested range.
    pub at: u64,
    /// Vdev that holds it; it may itself have been removed.
    pub vdev: VdevId,
    /// Byte offset in that vdev.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

impl Mapping {
    /// Parses the object's bytes: as many entries as the header states.
    ///
    /// # Errors
    /// `Corrupt` if bytes are missing, or entries overlap or are out of order.
    pub fn parse(header: &MappingHeader, bytes: &[u8], endian: Endian) -> Result<Mapping> {
        let raw = usize::try_from(header.num_entries)
            .ok()
            .and_then(|n| n.checked_mul(MAPPING_ENTRY_SIZE))
            .and_then(|len| bytes.get(..len))
            .ok_or_else(|| corrupt("it is cut off"))?;
        let mut entries = Vec::with_capacity(raw.len() / MAPPING_ENTRY_SIZE);
        let mut end = 0;
        for raw in raw.chunks_exact(MAPPING_ENTRY_SIZE) {
            let words = endian.reader(raw, "indirect mapping entry").u64s()?;
            let entry = MappingEntry::parse(words)?;
            if entry.source < end || entry.end() > header.max_offset {
                return Err(corrupt("entries out of order"));
            }
            end = entry.end();
            entries.push(entry);
        }
        Ok(Mapping { entries })
    }

    /// The segments by source.
    pub fn entries(&self) -> &[MappingEntry] {
        &self.entries
    }

    /// Translates `len` bytes at `offset`, in order.
    ///
    /// # Errors
    /// `Corrupt` if a byte of the range is not mapped.
    pub fn resolve(&self, offset: u64, len: u64) -> Result<Vec<Piece>> {
        let unmapped = || corrupt("an address on a removed vdev is not mapped");
        let end = offset.checked_add(len).ok_or_else(unmapped)?;
        let mut pieces = Vec::new();
        let mut at = offset;
        let mut i = self.entries.partition_point(|e| e.end() <= offset);
        while at < end {
            let entry = self.entries.get(i).filter(|e| e.source <= at).ok_or_else(unmapped)?;
            let stop = entry.end().min(end);
            pieces.push(Piece {
                at: at - offset,
                vdev: entry.dest.vdev,
                offset: entry.dest.offset + (at - entry.source),
                len: stop - at,
            });
            at = stop;
            i += 1;
        }
        Ok(pieces)
    }
}

/// Txgs in which source space was copied: `(end offset, txg)`, ascending (chapter 08
/// §D.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Births {
    entries: Vec<(u64, Txg)>,
}

impl Births {
    /// Parses the object; its bonus holds the count.
    ///
    /// # Errors
    /// `Corrupt` if bytes are missing or entries are out of order.
    pub fn parse(bonus: &[u8], bytes: &[u8], endian: Endian) -> Result<Births> {
        let [count] = endian.reader(bonus, "indirect births header").u64s()?;
        let raw = usize::try_from(count)
            .ok()
            .and_then(|n| n.checked_mul(BIRTH_ENTRY_SIZE))
            .and_then(|len| bytes.get(..len))
            .ok_or_else(|| corrupt("its births are cut off"))?;
        let mut entries: Vec<(u64, Txg)> = Vec::with_capacity(raw.len() / BIRTH_ENTRY_SIZE);
        for raw in raw.chunks_exact(BIRTH_ENTRY_SIZE) {
            let [offset, txg] = endian.reader(raw, "indirect birth").u64s()?;
            if entries.last().is_some_and(|&(last, _)| offset <= last) {
                return Err(corrupt("births out of order"));
            }
            entries.push((offset, Txg(txg)));
        }
        Ok(Births { entries })
    }

    /// The entries: each covers up to its offset, exclusively.
    pub fn entries(&self) -> &[(u64, Txg)] {
        &self.entries
    }

    /// The txg in which the byte at `offset` was copied.
    pub fn birth(&self, offset: u64) -> Option<Txg> {
        let i = self.entries.partition_point(|&(end, _)| end <= offset);
        self.entries.get(i).map(|&(_, txg)| txg)
    }
}

/// Progress of a background job, as several structures store it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobState {
    /// Never started.
    None,
    /// Running.
    Scanning,
    /// Done.
    Finished,
    /// Abandoned.
    Canceled,
}

impl JobState {
    /// From its code.
    ///
    /// # Errors
    /// `Corrupt` for an unknown code.
    pub fn from_code(code: u64) -> Result<JobState> {
        Ok(match code {
            0 => JobState::None,
            1 => JobState::Scanning,
            2 => JobState::Finished,
            3 => JobState::Canceled,
            _ => return Err(Error::corrupt(format!("background job in the state {code}"))),
        })
    }
}

/// The MOS directory's `com.delphix:removing` (chapter 08 §D.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Removing {
    /// Progress.
    pub state: JobState,
    /// The vdev being (or last) removed.
    pub vdev: Option<VdevId>,
    /// The vdev removed most recently: the head of the chain.
    pub prev_indirect: Option<VdevId>,
    /// UTC seconds.
    pub start_time: u64,
    /// UTC seconds.
    pub end_time: u64,
    /// Bytes to copy.
    pub to_copy: u64,
    /// Bytes copied.
    pub copied: u64,
}

fn vdev_id(word: u64) -> Result<Option<VdevId>> {
    match u32::try_from(word) {
        _ if word == u64::MAX => Ok(None),
        Ok(id) if id as usize <= VDEV_COUNT_MAX => Ok(Some(VdevId(id))),
        _ => Err(corrupt("a vdev id")),
    }
}

impl Removing {
    /// From its seven words.
    ///
    /// # Errors
    /// `Corrupt` for an unknown state or an impossible vdev id.
    pub fn from_words(words: &[u64; 7]) -> Result<Removing> {
        let [state, vdev, prev, start_time, end_time, to_copy, copied] = *words;
        Ok(Removing {
            state: JobState::from_code(state)?,
            vdev: vdev_id(vdev)?,
            prev_indirect: vdev_id(prev)?,
            start_time,
            end_time,
            to_copy,
            copied,
        })
    }

    /// The seven words to write.
    pub fn words(&self) -> [u64; 7] {
        let id = |vdev: Option<VdevId>| vdev.map_or(u64::MAX, |vdev| u64::from(vdev.0));
        let (vdev, prev) = (id(self.vdev), id(self.prev_indirect));
        let state = match self.state {
            JobState::None => 0,
            JobState::Scanning => 1,
            JobState::Finished => 2,
            JobState::Canceled => 3,
        };
        [state, vdev, prev, self.start_time, self.end_time, self.to_copy, self.copied]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn raw(words: &[u64], endian: Endian) -> Vec<u8> {
        words.iter().flat_map(|&w| endian.bytes_of(w)).collect()
    }

    /// Chapter 08 §D.2.
    const BONUS: [u64; 4] = [0x401_d000, 0x24_8000, 5, 0x5a];
    const ENTRIES: [u64; 15] = [
        0, 0x80, 0x1158, 0xd0, 0x1190, 0x11e0, 0x2_0000, 0x20, 0x48, 0x2_0090, 8, 0x23c8, 0x2_00e0,
        8, 0x23d0,
    ];

    #[test]
    fn the_mapping_of_the_specification() {
        for endian in [Endian::Little, Endian::Big] {
            let header = MappingHeader::parse(&raw(&BONUS, endian), endian).unwrap();
            assert_eq!(header.counts, Some(ObjectId(0x5a)));
            assert_eq!(header.encode()[..], raw(&BONUS, Endian::Little));
            let map = Mapping::parse(&header, &raw(&ENTRIES, endian), endian).unwrap();
            assert_eq!(map.entries().len(), 5);
            let sum: u64 = map.entries().iter().map(MappingEntry::len).sum();
            assert_eq!(sum, header.bytes_mapped);
            let first = map.resolve(0x200, 0x400).unwrap();
            let vdev = VdevId(0);
            assert_eq!(first, [Piece { at: 0, vdev, offset: 0x1159 << 9, len: 0x400 }]);
            assert!(map.resolve(0x80 << 9, 512).is_err(), "free space is not mapped");
            assert!(map.resolve(0x7f << 9, 1024).is_err());
            assert!(map.resolve(u64::MAX, 512).is_err());
            let again: Vec<u8> = map.entries().iter().flat_map(MappingEntry::encode).collect();
            assert_eq!(again, raw(&ENTRIES, Endian::Little));
        }
        let short = MappingHeader::parse(&raw(&BONUS[..3], Endian::Little), Endian::Little);
        assert_eq!(short.unwrap().counts, None);
    }

    #[test]
    fn pieces_follow_the_entries() {
        let header =
            MappingHeader { max_offset: 4096, bytes_mapped: 2048, num_entries: 2, counts: None };
        let words = [1, 2 | 3 << 32, 100, 3, 2 | 4 << 32, 50];
        let map = Mapping::parse(&header, &raw(&words, Endian::Little), Endian::Little).unwrap();
        let pieces = map.resolve(1024, 1024).unwrap();
        assert_eq!(
            pieces,
            [
                Piece { at: 0, vdev: VdevId(3), offset: 101 << 9, len: 512 },
                Piece { at: 512, vdev: VdevId(4), offset: 50 << 9, len: 512 }
            ]
        );
        for bad in [[1, 2, 0, 2, 2, 0], [3, 2, 0, 1, 2, 0], [1, 0, 0, 3, 2, 0], [1, 2, 0, 7, 2, 0]]
        {
            let bytes = raw(&bad, Endian::Little);
            assert!(Mapping::parse(&header, &bytes, Endian::Little).is_err(), "{bad:?}");
        }
        assert!(
            Mapping::parse(&header, &raw(&words[..5], Endian::Little), Endian::Little).is_err()
        );
    }

    #[test]
    fn births_cover_up_to_their_offset() {
        let e = Endian::Little;
        let births = Births::parse(&raw(&[2], e), &raw(&[512, 7, 0x401_d000, 26], e), e).unwrap();
        assert_eq!(births.birth(511), Some(Txg(7)));
        assert_eq!(births.birth(512), Some(Txg(26)));
        assert_eq!(births.birth(0x401_d000), None);
        assert!(Births::parse(&raw(&[2], e), &raw(&[512, 7, 512, 26], e), e).is_err());
        assert!(Births::parse(&raw(&[u64::MAX], e), &[], e).is_err());
    }

    #[test]
    fn progress() {
        let r = Removing::from_words(&[2, 1, 1, 5, 6, 2_351_104, 2_351_104]).unwrap();
        assert_eq!((r.state, r.vdev), (JobState::Finished, Some(VdevId(1))));
        assert_eq!(Removing::from_words(&[0, u64::MAX, u64::MAX, 0, 0, 0, 0]).unwrap().vdev, None);
        assert!(Removing::from_words(&[4, 0, 0, 0, 0, 0, 0]).is_err());
    }

    proptest! {
        #[test]
        fn hostile_mappings_never_panic(
            words in prop::collection::vec(prop_oneof![0u64..100, any::<u64>()], 0..30),
            n in prop_oneof![0u64..12, any::<u64>()],
            max in any::<u64>(),
            offset in any::<u64>(),
            len in any::<u64>(),
        ) {
            let header = MappingHeader { max_offset: max, bytes_mapped: 0, num_entries: n, counts: None };
            let bytes = raw(&words, Endian::Little);
            if let Ok(map) = Mapping::parse(&header, &bytes, Endian::Little) {
                for (o, l) in [(offset, len), (offset % 65_536, len % 65_536)] {
                    if let Ok(pieces) = map.resolve(o, l) {
                        prop_assert_eq!(pieces.iter().map(|p| p.len).sum::<u64>(), l);
                    }
                }
            }
            if let Ok(births) = Births::parse(&n.to_le_bytes(), &bytes, Endian::Little) {
                let _ = births.birth(offset);
            }
        }
    }
}
