//! Block reference tables: extra references of cloned blocks (chapter 08 §C).
//!
//! # Theory
//! Each top-level vdev with cloned blocks has an object of 16-bit counters, one for
//! each 16 MiB, which cheaply shows that a range has no clones, and a ZAP of exact
//! counts by byte offset.
//!
//! # Invariants
//! A count is the number of *extra* references: an address without an entry has one
//! reference, and an entry is never zero.

use base::{Error, ObjectId, Result, VdevId};

use crate::endian::Endian;

/// Bytes of the bonus buffer.
pub const HEADER_SIZE: usize = 56;
const KEY_PREFIX: &str = "com.fudosecurity:brt:vdev:";

/// The MOS directory's name for a vdev's table.
pub fn directory_key(vdev: VdevId) -> String {
    format!("{KEY_PREFIX}{}", vdev.0)
}

/// The vdev of a table with this MOS directory name.
pub fn parse_directory_key(name: &str) -> Option<VdevId> {
    let id = name.strip_prefix(KEY_PREFIX)?;
    id.parse().ok().map(VdevId).filter(|v| v.0.to_string() == id)
}

/// A vdev's table: the bonus buffer of its object (chapter 08 §C.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BrtVdev {
    /// ZAP of exact counts.
    pub entries: ObjectId,
    /// Number of counters.
    pub size: u64,
    /// Byte order of the counters: 0 is little-endian.
    pub byteorder: u64,
    /// Entries of the ZAP.
    pub total_count: u64,
    /// Bytes that one counter covers.
    pub range_size: u64,
    /// Bytes of distinct cloned blocks.
    pub used_space: u64,
    /// Bytes saved by the extra references.
    pub saved_space: u64,
}

impl BrtVdev {
    /// Parses the bonus buffer.
    ///
    /// # Errors
    /// `Corrupt` if it is too short or its ranges are empty.
    pub fn parse(bonus: &[u8], endian: Endian) -> Result<BrtVdev> {
        let [entries, size, byteorder, total_count, range_size, used_space, saved_space] =
            endian.reader(bonus, "block reference table").u64s()?;
        if range_size == 0 || byteorder > 1 {
            return Err(Error::corrupt("impossible block reference table"));
        }
        Ok(BrtVdev {
            entries: ObjectId(entries),
            size,
            byteorder,
            total_count,
            range_size,
            used_space,
            saved_space,
        })
    }

    /// The bonus buffer to write.
    pub fn encode(&self) -> [u8; HEADER_SIZE] {
        let words = [
            self.entries.0,
            self.size,
            self.byteorder,
            self.total_count,
            self.range_size,
            self.used_space,
            self.saved_space,
        ];
        let mut out = [0; HEADER_SIZE];
        for (bytes, word) in out.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Chapter 08 §C.1.
    #[test]
    fn the_table_of_the_specification() {
        let words = [0x55u64, 7, 0, 2, 0x100_0000, 0x4000, 0x6000];
        let raw: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        let brt = BrtVdev::parse(&raw, Endian::Little).unwrap();
        assert_eq!((brt.entries, brt.used_space, brt.saved_space), (ObjectId(0x55), 16384, 24576));
        assert_eq!(brt.encode()[..], raw);
        assert!(BrtVdev::parse(&raw[..55], Endian::Little).is_err());
        assert_eq!(directory_key(VdevId(3)), "com.fudosecurity:brt:vdev:3");
        assert_eq!(parse_directory_key("com.fudosecurity:brt:vdev:3"), Some(VdevId(3)));
        assert_eq!(parse_directory_key("com.fudosecurity:brt:vdev:03"), None);
    }

    proptest! {
        #[test]
        fn hostile_headers_never_panic(raw in prop::collection::vec(any::<u8>(), 0..70)) {
            let _ = BrtVdev::parse(&raw, Endian::Big);
        }
    }
}
