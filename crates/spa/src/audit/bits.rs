//! Two bitmaps for each metaslab: one from the space maps, one from a walk.
//!
//! # Theory
//! One bit stands for one sector (`1 << ashift` bytes). The first bitmap is the replay of
//! the metaslab's own map and then of the log space maps (chapter 05 §4.2, I1); it does not
//! change afterwards. The second is filled by many walkers at once with atomic `fetch_or`:
//! a walker that sets a bit that was set already has found a second claim on the same
//! sector.
//!
//! # Invariants
//! * A metaslab without allocations has no bitmaps: memory follows the space in use.
//! * No lock is taken while walking.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use base::{Error, Result, VdevId};
use ondisk::spacemap::{Kind, Range};

/// Bits of one word.
const WORD: u64 = 64;

/// The result of a claim on a range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// Bytes that were claimed before.
    pub twice: u64,
    /// Bytes that are free in the space maps.
    pub free: u64,
    /// Bytes that no metaslab covers.
    pub outside: u64,
}

impl Claim {
    /// Whether all bytes were allocated and none claimed before.
    pub fn is_clean(&self) -> bool {
        *self == Claim::default()
    }

    fn add(&mut self, other: Claim) {
        self.twice += other.twice;
        self.free += other.free;
        self.outside += other.outside;
    }
}

/// Contradictions found when a map was replayed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MapErrors {
    /// Bytes allocated that were allocated already.
    pub alloc_twice: u64,
    /// Bytes freed that were free already.
    pub free_twice: u64,
}

/// One metaslab's bitmaps.
#[derive(Debug, Default)]
pub struct Slab {
    start: u64,
    size: u64,
    shift: u32,
    allocated: Vec<u64>,
    seen: Vec<AtomicU64>,
}

/// The words and masks that cover bits `[first, end)`.
fn masks(first: u64, end: u64) -> impl Iterator<Item = (usize, u64)> {
    let words = first / WORD..end.div_ceil(WORD);
    words.map(move |w| {
        let low = first.saturating_sub(w * WORD).min(WORD - 1);
        let high = (end - w * WORD).min(WORD);
        let up_to = if high == WORD { u64::MAX } else { (1 << high) - 1 };
        (w as usize, up_to & (u64::MAX << low))
    })
}

impl Slab {
    /// An empty metaslab of `size` bytes at `start`, sectors of `1 << shift`.
    pub fn new(start: u64, size: u64, shift: u32) -> Slab {
        Slab { start, size, shift, ..Slab::default() }
    }

    fn words(&self) -> usize {
        (self.size >> self.shift).div_ceil(WORD) as usize
    }

    /// Sector numbers of the part of a byte range that lies inside.
    fn bits(&self, offset: u64, len: u64) -> (u64, u64) {
        let end = offset.saturating_add(len).min(self.start.saturating_add(self.size));
        let first = offset.max(self.start) - self.start;
        let end = end.saturating_sub(self.start);
        (first >> self.shift, end.div_ceil(1 << self.shift).max(first >> self.shift))
    }

    /// Replays one entry of a map.
    pub fn replay(&mut self, range: &Range, errors: &mut MapErrors) {
        if self.allocated.is_empty() {
            self.allocated = vec![0; self.words()];
        }
        let (first, end) = self.bits(range.offset, range.len);
        for (word, mask) in masks(first, end) {
            let Some(bits) = self.allocated.get_mut(word) else { return };
            let odd = match range.kind {
                Kind::Alloc => *bits & mask,
                Kind::Free => !*bits & mask,
            };
            let odd = u64::from(odd.count_ones()) << self.shift;
            match range.kind {
                Kind::Alloc => {
                    *bits |= mask;
                    errors.alloc_twice += odd;
                }
                Kind::Free => {
                    *bits &= !mask;
                    errors.free_twice += odd;
                }
            }
        }
    }

    /// Ends the replay: allocates the bitmap for claims, or releases the memory of an empty
    /// metaslab.
    pub fn finish(&mut self) {
        if self.allocated.iter().all(|&w| w == 0) {
            self.allocated = Vec::new();
        }
        self.seen = (0..self.allocated.len()).map(|_| AtomicU64::new(0)).collect();
    }

    /// Marks everything as allocated, and allocates the bitmap for claims.
    pub fn fill(&mut self) {
        let sectors = self.size >> self.shift;
        self.allocated = vec![u64::MAX; self.words()];
        if let Some(last) = self.allocated.last_mut().filter(|_| !sectors.is_multiple_of(WORD)) {
            *last = (1 << (sectors % WORD)) - 1;
        }
        self.seen = (0..self.allocated.len()).map(|_| AtomicU64::new(0)).collect();
    }

    /// Bytes allocated.
    pub fn allocated(&self) -> u64 {
        let sectors: u64 = self.allocated.iter().map(|w| u64::from(w.count_ones())).sum();
        sectors << self.shift
    }

    fn claim(&self, offset: u64, len: u64) -> Claim {
        let (first, end) = self.bits(offset, len);
        let mut out = Claim::default();
        for (word, mask) in masks(first, end) {
            let (Some(bits), Some(seen)) = (self.allocated.get(word), self.seen.get(word)) else {
                out.free += u64::from(mask.count_ones()) << self.shift;
                continue;
            };
            let before = seen.fetch_or(mask, Relaxed);
            out.twice += u64::from((before & mask).count_ones()) << self.shift;
            out.free += u64::from((!bits & mask).count_ones()) << self.shift;
        }
        out
    }

    /// Calls `f` with each run of sectors for which `pick` is true: byte offset
    /// and length.
    fn runs(&self, pick: impl Fn(u64, u64) -> u64, f: &mut impl FnMut(u64, u64)) {
        let mut open: Option<u64> = None;
        let emit = |from: u64, to: u64, f: &mut dyn FnMut(u64, u64)| {
            f(self.start + (from << self.shift), (to - from) << self.shift);
        };
        for (i, (bits, seen)) in self.allocated.iter().zip(&self.seen).enumerate() {
            let word = pick(*bits, seen.load(Relaxed));
            let base = i as u64 * WORD;
            let mut at = 0;
            while at < WORD {
                let rest = word >> at;
                match open {
                    None if rest == 0 => break,
                    None => {
                        at += u64::from(rest.trailing_zeros());
                        open = Some(base + at);
                    }
                    Some(from) => {
                        let ones = u64::from(rest.trailing_ones());
                        at += ones;
                        if at < WORD {
                            emit(from, base + at, f);
                            open = None;
                        }
                    }
                }
            }
        }
        if let Some(from) = open {
            emit(from, self.size >> self.shift, f);
        }
    }
}

/// The metaslabs of one vdev.
#[derive(Debug)]
pub struct VdevBits {
    /// The vdev.
    pub vdev: VdevId,
    /// log2 of the distance of metaslabs.
    pub metaslab_shift: u32,
    /// The metaslabs by index.
    pub slabs: Vec<Slab>,
}

impl VdevBits {
    fn split(&self, offset: u64, len: u64, mut f: impl FnMut(Option<&Slab>, u64, u64)) {
        let (mut at, end) = (offset, offset.saturating_add(len));
        while at < end {
            let slab = self.slabs.get((at >> self.metaslab_shift) as usize);
            let next = ((at >> self.metaslab_shift).saturating_add(1))
                .checked_mul(1 << self.metaslab_shift)
                .unwrap_or(end)
                .min(end);
            // A dRAID metaslab starts behind the multiple of its distance.
            let slab = slab.filter(|s| at >= s.start || next > s.start);
            f(slab, at, next - at);
            at = next;
        }
    }
}

/// All of a pool's bitmaps.
#[derive(Debug, Default)]
pub struct SpaceBits {
    vdevs: Vec<VdevBits>,
}

impl SpaceBits {
    /// The bitmaps of these vdevs.
    pub fn new(vdevs: Vec<VdevBits>) -> SpaceBits {
        SpaceBits { vdevs }
    }

    /// Changes the first bitmap (tests).
    #[cfg(test)]
    pub(crate) fn edit(&mut self, range: &Range) {
        let vdev = self.vdevs.iter_mut().find(|v| v.vdev == range.vdev).unwrap();
        let slab = &mut vdev.slabs[(range.offset >> vdev.metaslab_shift) as usize];
        slab.replay(range, &mut MapErrors::default());
        slab.finish();
    }

    fn vdev(&self, vdev: VdevId) -> Option<&VdevBits> {
        self.vdevs.iter().find(|v| v.vdev == vdev)
    }

    /// Claims a range for one owner.
    pub fn claim(&self, vdev: VdevId, offset: u64, len: u64) -> Claim {
        let Some(bits) = self.vdev(vdev) else { return Claim { outside: len, ..Claim::default() } };
        let mut out = Claim::default();
        bits.split(offset, len, |slab, at, part| match slab {
            Some(slab) => out.add(slab.claim(at, part)),
            None => out.outside += part,
        });
        out
    }

    /// The parts of a range that are allocated in the space maps.
    ///
    /// # Errors
    /// Those of `f`.
    pub(crate) fn allocated_in(
        &self,
        vdev: VdevId,
        offset: u64,
        len: u64,
        mut f: impl FnMut(u64, u64) -> Result<()>,
    ) -> Result<()> {
        let Some(bits) = self.vdev(vdev) else {
            return Err(Error::corrupt("a range on a vdev that has no metaslabs"));
        };
        let end = offset.saturating_add(len);
        let mut result = Ok(());
        bits.split(offset, len, |slab, at, part| {
            let Some(slab) = slab else { return };
            slab.runs(|bits, _| bits, &mut |from, run| {
                let (from, to) = (from.max(at), (from + run).min(at + part).min(end));
                if from < to && result.is_ok() {
                    result = f(from, to - from);
                }
            });
        });
        result
    }

    /// Calls `f` with every run of free sectors of one metaslab: offset, bytes.
    pub fn free_in(&self, vdev: VdevId, metaslab: u64, f: &mut impl FnMut(u64, u64)) {
        let slab = self.vdev(vdev).and_then(|v| v.slabs.get(usize::try_from(metaslab).ok()?));
        let Some(slab) = slab else { return };
        if slab.allocated.is_empty() {
            f(slab.start, slab.size);
            return;
        }
        let end = slab.start.saturating_add(slab.size);
        slab.runs(|bits, _| !bits, &mut |at, len| f(at, len.min(end.saturating_sub(at))));
    }

    /// Bytes allocated.
    pub fn allocated(&self) -> u64 {
        self.vdevs.iter().flat_map(|v| &v.slabs).map(Slab::allocated).sum()
    }

    /// Calls `f` with every run of sectors that was claimed: vdev, offset, bytes. A run ends
    /// with its metaslab.
    pub fn claimed(&self, f: &mut impl FnMut(VdevId, u64, u64)) {
        for v in &self.vdevs {
            for slab in &v.slabs {
                slab.runs(|_, seen| seen, &mut |offset, len| f(v.vdev, offset, len));
            }
        }
    }

    /// Calls `f` with every run of sectors that is allocated and was not claimed.
    pub fn leaks(&self, f: &mut impl FnMut(VdevId, u64, u64)) {
        for v in &self.vdevs {
            for slab in &v.slabs {
                slab.runs(|bits, seen| bits & !seen, &mut |offset, len| f(v.vdev, offset, len));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const SHIFT: u32 = 9;
    const SLAB: u64 = 1 << 16;

    fn space(slabs: u64, entries: &[(bool, u64, u64)]) -> (SpaceBits, MapErrors) {
        let mut errors = MapErrors::default();
        let mut out: Vec<Slab> = (0..slabs).map(|i| Slab::new(i * SLAB, SLAB, SHIFT)).collect();
        for &(alloc, at, len) in entries {
            let kind = if alloc { Kind::Alloc } else { Kind::Free };
            let range = Range { kind, offset: at, len, vdev: VdevId(0) };
            out[(at / SLAB) as usize].replay(&range, &mut errors);
        }
        out.iter_mut().for_each(Slab::finish);
        let vdev = VdevBits { vdev: VdevId(0), metaslab_shift: 16, slabs: out };
        (SpaceBits::new(vec![vdev]), errors)
    }

    #[test]
    fn leaks_doubles_and_free_space_are_told_apart() {
        let (bits, errors) = space(2, &[(true, 0, 4096), (true, SLAB, 1024), (false, 1024, 512)]);
        assert_eq!(errors, MapErrors::default());
        assert_eq!(bits.allocated(), 4096 + 1024 - 512);
        assert!(bits.claim(VdevId(0), 0, 512).is_clean());
        assert_eq!(bits.claim(VdevId(0), 0, 1024).twice, 512);
        assert_eq!(bits.claim(VdevId(0), 1024, 512).free, 512);
        assert_eq!(bits.claim(VdevId(0), 2 * SLAB, 512).outside, 512);
        assert_eq!(bits.claim(VdevId(7), 0, 512).outside, 512);
        let mut leaks = Vec::new();
        bits.leaks(&mut |_, at, len| leaks.push((at, len)));
        assert_eq!(leaks, [(1536, 2560), (SLAB, 1024)]);
    }

    #[test]
    fn a_run_to_the_end_of_a_metaslab_and_contradicting_entries() {
        let (bits, errors) =
            space(1, &[(true, 0, SLAB), (true, 0, 512), (false, 512, 512), (false, 512, 512)]);
        assert_eq!(errors, MapErrors { alloc_twice: 512, free_twice: 512 });
        let mut leaks = Vec::new();
        bits.leaks(&mut |_, at, len| leaks.push((at, len)));
        assert_eq!(leaks, [(0, 512), (1024, SLAB - 1024)]);
        let mut parts = Vec::new();
        bits.allocated_in(VdevId(0), 256, 1024, |at, len| {
            parts.push((at, len));
            Ok(())
        })
        .unwrap();
        assert_eq!(parts, [(256, 256), (1024, 256)]);
    }

    proptest! {
        /// Against a simple model: a map from sector to (allocated, claims).
        #[test]
        fn bitmaps_agree_with_a_map_of_sectors(
            entries in prop::collection::vec((any::<bool>(), 0u64..256, 1u64..80), 0..40),
            claims in prop::collection::vec((0u64..256, 1u64..100), 0..20),
        ) {
            let mut model: BTreeMap<u64, (bool, u32)> = BTreeMap::new();
            let mut real = Vec::new();
            for (alloc, at, len) in entries {
                let len = len.min(128 - at % 128);
                real.push((alloc, at << SHIFT, len << SHIFT));
                for s in at..at + len {
                    model.entry(s).or_default().0 = alloc;
                }
            }
            let (bits, _) = space(2, &real);
            for (at, len) in claims {
                let got = bits.claim(VdevId(0), at << SHIFT, len << SHIFT);
                let mut want = Claim::default();
                for s in at..at + len {
                    if s >= 256 {
                        want.outside += 512;
                        continue;
                    }
                    // A metaslab without allocations does not record claims.
                    let slab = s / 128;
                    let empty = !model.iter().any(|(k, v)| k / 128 == slab && v.0);
                    let sector = model.entry(s).or_default();
                    want.free += if sector.0 { 0 } else { 512 };
                    want.twice += if sector.1 > 0 && !empty { 512 } else { 0 };
                    sector.1 += 1;
                }
                prop_assert_eq!(got, want);
            }
            let mut leaked: Vec<u64> = Vec::new();
            bits.leaks(&mut |_, at, len| leaked.extend((at >> SHIFT)..((at + len) >> SHIFT)));
            let want: Vec<u64> =
                model.iter().filter(|(_, v)| v.0 && v.1 == 0).map(|(k, _)| *k).collect();
            prop_assert_eq!(leaked, want);
        }
    }
}
