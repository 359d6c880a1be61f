//! The choice of an offset within a metaslab. The head of the crate gives the reasons.

use crate::range_tree::RangeTree;
use crate::slab::Metaslab;

/// Without a free range of this size, the metaslab counts as fragmented (§12.5).
const HEALTHY_SEGMENT: u64 = 128 << 10;
/// Percent of free space below which large ranges are preserved.
const HEALTHY_PERCENT: u64 = 4;
/// First fit stops beyond this distance, once it has examined [`SEARCH_SEGMENTS`]
/// ranges.
const SEARCH_BYTES: u64 = 16 << 20;
const SEARCH_SEGMENTS: usize = 100;
/// Number of blocks for which a new hole should have room, in a fragmented metaslab.
const CLUMP: u64 = 16;
/// Ranges examined for one in which the block fits aligned.
const ALIGN_TRIES: usize = 64;

/// The end of the last block of each size group: up to 16 KiB (metadata, small
/// records), up to 256 KiB (ordinary records with their parity), up to 2 MiB, and
/// larger. Zero before the first block.
#[derive(Debug, Default)]
pub(crate) struct Cursors([u64; 4]);

impl Cursors {
    fn of(&mut self, size: u64) -> &mut u64 {
        let i = match size {
            0..=0x4000 => 0,
            0x4001..=0x4_0000 => 1,
            0x4_0001..=0x20_0000 => 2,
            _ => 3,
        };
        &mut self.0[i]
    }

    /// The next search for this size begins at the metaslab's start.
    pub(crate) fn rewind(&mut self, size: u64) {
        *self.of(size) = 0;
    }
}

/// The first aligned offset for `size` bytes in a range.
fn aligned_offset(start: u64, len: u64, size: u64, align: u64) -> Option<u64> {
    let at = start.checked_next_multiple_of(align)?;
    (at.checked_add(size)? <= start + len).then_some(at)
}

fn first_fit(tree: &RangeTree, from: u64, size: u64, align: u64) -> Option<u64> {
    let mut first = None;
    for (n, seg) in tree.from(from).enumerate() {
        let first = *first.get_or_insert(seg.start);
        if n >= SEARCH_SEGMENTS && seg.start - first > SEARCH_BYTES {
            return None;
        }
        if let Some(at) = aligned_offset(seg.start, seg.len, size, align) {
            return Some(at);
        }
    }
    None
}

fn best_fit(tree: &mut RangeTree, least: u64, size: u64, align: u64) -> Option<u64> {
    let fits = tree.by_size(least).take(ALIGN_TRIES);
    let found = fits.filter_map(|seg| aligned_offset(seg.start, seg.len, size, align)).next();
    // Large aligned blocks among small unaligned holes: the largest range is tried
    // last.
    found.or_else(|| {
        let last = tree.by_size(least).next_back();
        last.and_then(|seg| aligned_offset(seg.start, seg.len, size, align))
    })
}

impl Metaslab {
    /// As [`Metaslab::pick`], but the first fit behind the cursor, or none. Blocks thus fill the
    /// holes of a metaslab in one sweep.
    pub(crate) fn pick_behind(&mut self, size: u64) -> Option<u64> {
        let align = self.align.max(1);
        let cursor = self.cursors.of(size);
        let from = (*cursor).max(self.start);
        let mut behind = self.allocatable.as_ref()?.from(from);
        let at = behind.find_map(|seg| aligned_offset(seg.start, seg.len, size, align))?;
        *cursor = at + size;
        Some(at)
    }

    /// An offset for `size` bytes, which stay free. Moves the cursor behind them.
    pub(crate) fn pick(&mut self, size: u64) -> Option<u64> {
        let (align, whole) = (self.align.max(1), self.size);
        let cursor = self.cursors.of(size);
        let tree = self.allocatable.as_mut()?;
        let from = (*cursor).max(self.start);
        let roomy = tree.space() >= whole / 100 * HEALTHY_PERCENT;
        let mut at = None;
        if roomy && *cursor != 0 {
            let next = tree.from(from).next().filter(|s| s.start == from);
            at = next.and_then(|s| aligned_offset(s.start, s.len, size, align));
        }
        if at.is_none() && roomy {
            if tree.largest_indexed() >= HEALTHY_SEGMENT {
                at = first_fit(tree, from, size, align);
            }
            at = at.or_else(|| best_fit(tree, size.saturating_mul(CLUMP), size, align));
        }
        at = at.or_else(|| best_fit(tree, size, size, align));
        if let Some(at) = at {
            *cursor = at + size;
        }
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::range_tree::Seg;
    use crate::slab::MsDesc;
    use base::Txg;

    const K: u64 = 1 << 10;

    fn slab(align: u64, free: &[(u64, u64)]) -> Metaslab {
        let seg = Seg { start: 0, len: 16384 * K };
        let mut m = Metaslab::new(0, seg, 9, align, &MsDesc::default()).unwrap();
        let mut tree = RangeTree::indexed(crate::slab::INDEX_MIN);
        free.iter().for_each(|&(s, l)| tree.add(s * K, l * K).unwrap());
        m.own_alloc = m.size - tree.space();
        m.allocatable = Some(tree);
        m
    }

    fn take(m: &mut Metaslab, size: u64) -> Option<u64> {
        m.allocate(size * K, Txg(5)).map(|(at, _)| at / K)
    }

    #[test]
    fn blocks_of_all_sizes_follow_each_other_in_empty_space() {
        let mut m = slab(1, &[(0, 16384)]);
        let sizes = [128, 4, 96, 1024, 8];
        let places: Vec<_> = sizes.iter().map(|&s| take(&mut m, s).unwrap()).collect();
        assert_eq!(places, [0, 128, 132, 228, 1252]);
        m.check().unwrap();
    }

    #[test]
    fn fragmented_space_is_carved_in_runs() {
        let holes: Vec<_> = (0..300).map(|i| (i * 40, 8)).chain([(15000, 100)]).collect();
        let mut m = slab(1, &holes);
        let places: Vec<_> = (0..8).map(|_| take(&mut m, 4).unwrap()).collect();
        assert_eq!(places, [15000, 15004, 15008, 15012, 15016, 15020, 15024, 15028]);
    }

    #[test]
    fn a_nearly_full_metaslab_spares_its_large_ranges() {
        let mut m = slab(1, &[(0, 100), (1000, 8), (2000, 5)]);
        assert_eq!(take(&mut m, 4), Some(2000));
        assert_eq!(take(&mut m, 100), Some(0));
        assert_eq!(take(&mut m, 9), None);
    }

    #[test]
    fn offsets_are_aligned() {
        let mut m = slab(48 * K, &[(1, 60), (100, 144)]);
        assert_eq!(take(&mut m, 48), Some(144));
        assert_eq!(take(&mut m, 48), Some(192));
        assert_eq!(take(&mut m, 48), None);
    }
}
