//! The pool's history: a ring of packed records (chapter 04 §16).
//!
//! # Theory
//! Records have logical offsets that only grow. Records below `pool_create_len` (the
//! creation) are kept forever. The others wrap around in the rest of the ring, so that
//! new records overwrite old ones.
//!
//! # Invariants
//! A checked [`HistoryHeader`] has `pool_create_len < phys_max_off` and
//! `bof <= eof`, with at most one ring between them: a reader reads each byte once.

use base::{Error, Result};
use nvlist::NvList;

use crate::endian::Endian;

/// Bytes of the bonus buffer.
pub const HEADER_SIZE: usize = 40;
/// Largest ring (chapter 04 §16).
const RING_MAX: u64 = 1 << 30;
/// Longest record accepted; `zpool` commands are far shorter.
const RECORD_MAX: u64 = 1 << 20;

/// The history object's bonus buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryHeader {
    /// Bytes at the start that are never overwritten.
    pub pool_create_len: u64,
    /// Bytes of the ring, the protected start included.
    pub phys_max_off: u64,
    /// Logical offset of the oldest record behind the protected start.
    pub bof: u64,
    /// Logical offset behind the newest record.
    pub eof: u64,
    /// Records overwritten so far.
    pub records_lost: u64,
}

impl HistoryHeader {
    /// Parses the bonus buffer.
    ///
    /// # Errors
    /// `Corrupt` if it is too short or contradicts itself.
    pub fn parse(bonus: &[u8], endian: Endian) -> Result<HistoryHeader> {
        let [pool_create_len, phys_max_off, bof, eof, records_lost] =
            endian.reader(bonus, "pool history header").u64s()?;
        let ring = phys_max_off.saturating_sub(pool_create_len);
        let filled = eof.checked_sub(bof);
        let sane = ring > 0
            && phys_max_off <= RING_MAX
            && filled.is_some_and(|n| n <= phys_max_off)
            && (bof == 0 || bof >= pool_create_len);
        if !sane {
            return Err(Error::corrupt("the pool's history contradicts itself"));
        }
        Ok(HistoryHeader { pool_create_len, phys_max_off, bof, eof, records_lost })
    }

    /// The bonus buffer to write.
    pub fn encode(&self) -> [u8; HEADER_SIZE] {
        let words =
            [self.pool_create_len, self.phys_max_off, self.bof, self.eof, self.records_lost];
        let mut out = [0; HEADER_SIZE];
        for (bytes, word) in out.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        out
    }

    /// Offset in the object of the byte with logical offset `logical`.
    pub fn physical(&self, logical: u64) -> u64 {
        let pcl = self.pool_create_len;
        match (logical.checked_sub(pcl), self.phys_max_off.checked_sub(pcl)) {
            (Some(behind), Some(ring)) if ring > 0 => behind % ring + pcl,
            _ => logical,
        }
    }

    /// The object's byte ranges, in logical order, that hold the records: at most three.
    pub fn extents(&self) -> Vec<std::ops::Range<u64>> {
        let start = self.bof.max(self.pool_create_len);
        let mut out = Vec::new();
        let kept = self.pool_create_len.min(self.eof);
        if kept > 0 {
            out.push(0..kept);
        }
        let Some(len) = self.eof.checked_sub(start).filter(|&n| n > 0) else { return out };
        let from = self.physical(start);
        let first = len.min(self.phys_max_off.saturating_sub(from));
        out.push(from..from.saturating_add(first));
        if len > first {
            let wrapped = (len - first).min(from.saturating_sub(self.pool_create_len));
            out.push(self.pool_create_len..self.pool_create_len.saturating_add(wrapped));
        }
        out
    }
}

/// The records in the bytes of all [`HistoryHeader::extents`], one after the other.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    rest: &'a [u8],
}

impl<'a> Records<'a> {
    /// The records of bytes that start at a record.
    pub fn new(bytes: &'a [u8]) -> Records<'a> {
        Records { rest: bytes }
    }

    fn take(&mut self) -> Result<NvList> {
        let cut = || Error::corrupt("the pool's history is cut off");
        let (len, rest) = self.rest.split_first_chunk::<8>().ok_or_else(cut)?;
        // The length is little-endian, independent of the host.
        let len = u64::from_le_bytes(*len);
        let len = usize::try_from(len).ok().filter(|_| len <= RECORD_MAX).ok_or_else(cut)?;
        let (record, rest) = rest.split_at_checked(len).ok_or_else(cut)?;
        self.rest = rest;
        NvList::unpack(record)
    }
}

impl Iterator for Records<'_> {
    type Item = Result<NvList>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let before = self.rest.len();
        let record = self.take();
        if self.rest.len() == before {
            // The length itself is wrong, so nothing behind it can be found.
            self.rest = &[];
        }
        Some(record)
    }
}

/// A record with its length in front, as it is appended; native, little-endian.
pub fn encode_record(record: &NvList) -> Vec<u8> {
    let packed = record.pack_native(nvlist::Order::Little);
    [&(packed.len() as u64).to_le_bytes()[..], &packed].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record(text: &str) -> NvList {
        let mut list = NvList::new();
        list.add_str("history command", text).add_u64("history who", 0);
        list
    }

    /// Chapter 04 §16: the first command's bytes.
    #[test]
    fn a_record_begins_as_specified() {
        let mut list = NvList::new();
        list.add_str("history command", "zpool create p4 /dev/f0")
            .add_u64("history who", 0)
            .add_u64("history time", 1)
            .add_str("history hostname", "vm");
        let raw = encode_record(&list);
        assert_eq!(raw[..8], 200u64.to_le_bytes());
        assert_eq!(raw.len(), 208);
        assert_eq!(raw[8..24], [0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0x38, 0, 0, 0]);
        assert_eq!(Records::new(&raw).next().unwrap().unwrap(), list);
        // A record that a big-endian host logged.
        let big = list.pack_native(nvlist::Order::Big);
        let raw = [&(big.len() as u64).to_le_bytes()[..], &big].concat();
        assert_eq!(Records::new(&raw).next().unwrap().unwrap(), list);
    }

    #[test]
    fn headers_are_checked() {
        let ok = HistoryHeader {
            pool_create_len: 100,
            phys_max_off: 1000,
            bof: 100,
            eof: 500,
            records_lost: 0,
        };
        let parse = |h: HistoryHeader| HistoryHeader::parse(&h.encode(), Endian::Little);
        assert_eq!(parse(ok).unwrap(), ok);
        assert_eq!(ok.extents(), [0..100, 100..500]);
        assert!(parse(HistoryHeader { pool_create_len: 1000, ..ok }).is_err());
        assert!(parse(HistoryHeader { eof: 99, ..ok }).is_err());
        assert!(parse(HistoryHeader { eof: 5000, ..ok }).is_err());
        assert!(parse(HistoryHeader { phys_max_off: 1 << 31, ..ok }).is_err());
    }

    proptest! {
        /// Compares with the naive model: a real ring to which records are appended.
        #[test]
        fn a_ring_gives_back_what_it_holds(texts in prop::collection::vec("[a-z]{1,60}", 1..40)) {
            let create = encode_record(&record("create"));
            let pcl = create.len() as u64;
            let mut ring = create.clone();
            ring.resize(pcl as usize + 700, 0);
            let mut h = HistoryHeader {
                pool_create_len: pcl,
                phys_max_off: ring.len() as u64,
                bof: pcl,
                eof: pcl,
                records_lost: 0,
            };
            let mut model = std::collections::VecDeque::new();
            for text in texts {
                let raw = encode_record(&record(&text));
                while h.phys_max_off - pcl - (h.eof - h.bof) <= raw.len() as u64 {
                    let (len, _): (usize, String) = model.pop_front().unwrap();
                    h.bof += len as u64;
                    h.records_lost += 1;
                }
                for (i, byte) in raw.iter().enumerate() {
                    ring[h.physical(h.eof + i as u64) as usize] = *byte;
                }
                h.eof += raw.len() as u64;
                model.push_back((raw.len(), text));
            }
            let h = HistoryHeader::parse(&h.encode(), Endian::Little).unwrap();
            let bytes: Vec<u8> = h
                .extents()
                .into_iter()
                .flat_map(|r| ring[r.start as usize..r.end as usize].to_vec())
                .collect();
            let found: Vec<String> = Records::new(&bytes)
                .map(|r| r.unwrap().str("history command").unwrap().to_owned())
                .collect();
            let expected: Vec<String> =
                std::iter::once("create".to_owned()).chain(model.into_iter().map(|m| m.1)).collect();
            prop_assert_eq!(found, expected);
        }

        #[test]
        fn hostile_bytes_are_bounded(raw in prop::collection::vec(any::<u8>(), 0..100), h: [u64; 5]) {
            prop_assert!(Records::new(&raw).count() <= raw.len() / 8 + 1);
            let bonus: Vec<u8> = h.iter().flat_map(|w| (w % 5000).to_le_bytes()).collect();
            if let Ok(h) = HistoryHeader::parse(&bonus, Endian::Little) {
                let total: u64 = h.extents().iter().map(|r| r.end - r.start).sum();
                prop_assert!(total <= h.phys_max_off);
            }
        }
    }
}
