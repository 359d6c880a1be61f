//! Sizes of log blocks (chapter 10 §10.4).
//!
//! # Theory
//! A *burst* is the set of records that is committed together. For a burst of known
//! size, [`Plan::of`] computes how large its blocks should be. [`Sizes`] remembers the
//! last eight. The next stub has the size that suits these, but a single large burst
//! among small ones does not count. So after eight bursts of small records, earlier
//! large ones have no effect.

use ondisk::zil::WRITE_HEADER;

/// Largest log block, bytes (`zil_maxblocksize`).
pub const BLOCK_MAX: u64 = 128 << 10;
/// Smallest one.
pub const BLOCK_MIN: u64 = 4096;
/// Bytes of a block that are not available for records.
pub(crate) const CHAIN: u64 = ondisk::zil::CHAIN_SIZE as u64;
/// Space for records in the largest block.
pub(crate) const ROOM_MAX: u64 = BLOCK_MAX - CHAIN;
/// Most data of a write in one record.
pub(crate) const DATA_MAX: u64 = ROOM_MAX - WRITE_HEADER as u64;
const BURSTS: usize = 8;

/// The bytes of records that blocks of a burst should hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Optimal bytes of records in a block.
    pub opt: u64,
    /// Minimum bytes of records that the first block should hold.
    pub min: u64,
}

/// Acceptable unused space at a block's end: a sixteenth, or the largest record.
pub(crate) fn waste(largest: u64) -> u64 {
    (DATA_MAX / 16).max(largest.min(ROOM_MAX))
}

impl Plan {
    /// The plan for `size` bytes of records, of which the largest indivisible one has
    /// `largest`.
    pub fn of(size: u64, largest: u64) -> Plan {
        let waste = waste(largest);
        if size <= ROOM_MAX {
            return Plan { opt: size, min: size };
        }
        if size > 8 * ROOM_MAX {
            return Plan { opt: ROOM_MAX, min: waste };
        }
        let n = size.div_ceil(DATA_MAX);
        let chunk = size.div_ceil(n);
        let full = ROOM_MAX.saturating_sub(waste);
        if chunk > full {
            return Plan { opt: ROOM_MAX, min: waste };
        }
        Plan { opt: chunk, min: size.saturating_sub(full * (n - 1)).max(waste) }
    }
}

/// The size of a block for this many bytes of records.
pub(crate) fn block_size(records: u64) -> u64 {
    (records.min(ROOM_MAX) + CHAIN).next_multiple_of(BLOCK_MIN).clamp(BLOCK_MIN, BLOCK_MAX)
}

/// The plans of the last bursts.
#[derive(Clone, Debug, Default)]
pub struct Sizes {
    bursts: [Plan; BURSTS],
    next: usize,
}

impl Sizes {
    /// Records a burst.
    pub fn note(&mut self, plan: Plan) {
        self.bursts[self.next] = plan;
        self.next = (self.next + 1) % BURSTS;
    }

    /// Size of the block for the next burst, bytes.
    pub(crate) fn predict(&self) -> u64 {
        let (mut most, mut second) = (0, 0);
        for burst in &self.bursts {
            if burst.min > most {
                (most, second) = (burst.min, most);
            } else {
                second = second.max(burst.min);
            }
        }
        let opt = self.bursts.iter().map(|b| b.opt).min().unwrap_or(0);
        let (most, second) = (most.max(opt), second.max(opt));
        block_size(if most < 2 * second { most } else { second })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_chapters_vectors() {
        // The largest waste of the chapter, 8168, without a large record.
        let vectors = [
            (100_000, (100_000, 100_000)),
            (131_000, (65_500, 8_280)),
            (150_000, (75_000, 27_280)),
            (262_144, (87_382, 16_704)),
            (400_000, (100_000, 31_840)),
            (1_000_000, (130_888, 8_168)),
        ];
        for (size, (opt, min)) in vectors {
            assert_eq!(Plan::of(size, 0), Plan { opt, min }, "{size}");
        }
    }

    #[test]
    fn small_bursts_end_the_effect_of_large_ones() {
        let mut sizes = Sizes::default();
        assert_eq!(sizes.predict(), BLOCK_MIN);
        for _ in 0..20 {
            sizes.note(Plan::of(64 << 20, 100_000));
        }
        assert_eq!(sizes.predict(), BLOCK_MAX);
        let small = Plan::of(320, 320);
        for burst in 1..=8 {
            sizes.note(small);
            assert!(burst < 8 || sizes.predict() == BLOCK_MIN);
        }
        // One large burst has no effect, two have.
        sizes.note(Plan::of(60_000, 200));
        assert_eq!(sizes.predict(), BLOCK_MIN);
        sizes.note(Plan::of(60_000, 200));
        assert_eq!(sizes.predict(), 60 << 10);
    }

    proptest! {
        #[test]
        fn eight_bursts_of_a_kind_fit_exactly(
            before in prop::collection::vec(1u64..1 << 24, 0..20),
            size in 1u64..ROOM_MAX,
        ) {
            let mut sizes = Sizes::default();
            before.iter().for_each(|&b| sizes.note(Plan::of(b, 200)));
            (0..8).for_each(|_| sizes.note(Plan::of(size, size)));
            let block = sizes.predict();
            prop_assert!(block >= size + CHAIN && block - BLOCK_MIN < size + CHAIN);
        }
    }
}
