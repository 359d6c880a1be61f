//! Space on the one vdev: a pointer that only moves up.
//!
//! # Invariants
//! * No extent crosses a metaslab boundary (chapter 05 §1); the space skipped in front of
//!   one stays free.
//! * In each metaslab the allocated space is one range from its start, so its space map has
//!   a single entry.

use base::{Error, ErrorKind, Result};

/// The bump pointer and the ranges below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BumpSpace {
    pub(crate) ashift: u32,
    pub(crate) ms_shift: u32,
    pub(crate) ms_count: u64,
    next: u64,
    /// End of the allocated range of each metaslab in use, bytes in the vdev.
    ends: Vec<u64>,
}

/// log2 of a metaslab's size for a vdev of `asize` bytes (chapter 05 §1.1).
fn metaslab_shift(asize: u64) -> u32 {
    let above = |quotient: u64| u64::BITS - quotient.leading_zeros();
    let shift = match asize >> 29 {
        0..16 => above(asize / 16),
        16..=200 => 29,
        _ => above(asize / 200),
    };
    if shift > 34 && asize >> 34 > 131_072 { above(asize / 131_072) } else { shift.clamp(24, 34) }
}

impl BumpSpace {
    /// All of a vdev of `asize` bytes.
    pub(crate) fn new(asize: u64, ashift: u32) -> BumpSpace {
        let ms_shift = metaslab_shift(asize);
        let ms_count = asize >> ms_shift;
        BumpSpace { ashift, ms_shift, ms_count, next: 0, ends: Vec::new() }
    }

    /// Bytes that a block of `psize` bytes takes.
    pub(crate) fn asize(&self, psize: usize) -> u64 {
        (psize as u64).next_multiple_of(1 << self.ashift)
    }

    /// Allocates `asize` bytes, a multiple of the sector.
    ///
    /// # Errors
    /// `NoSpace` when the vdev is full.
    pub(crate) fn alloc(&mut self, asize: u64) -> Result<u64> {
        let end = ((self.next >> self.ms_shift) + 1) << self.ms_shift;
        if self.next + asize > end {
            self.next = end;
        }
        let metaslab = self.next >> self.ms_shift;
        if metaslab >= self.ms_count || asize > 1 << self.ms_shift {
            let text = "the image is full; give it a larger size (it is sparse)";
            return Err(Error::new(ErrorKind::NoSpace, text));
        }
        let offset = self.next;
        self.next += asize;
        self.ends.resize(metaslab as usize + 1, metaslab << self.ms_shift);
        if let Some(last) = self.ends.last_mut() {
            *last = self.next;
        }
        Ok(offset)
    }

    /// Start and end of the allocated range of each metaslab in use.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.ends.iter().enumerate().map(|(m, &end)| ((m as u64) << self.ms_shift, end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vectors_of_the_specification() {
        let vectors = [
            (1_054_867_456, 26),
            (64 << 20, 24),
            (10 << 30, 29),
            (1 << 40, 33),
            (8 << 40, 34),
            (4 << 50, 36),
        ];
        for (asize, shift) in vectors {
            assert_eq!(metaslab_shift(asize), shift, "{asize}");
        }
    }

    #[test]
    fn nothing_crosses_a_boundary() {
        let mut space = BumpSpace::new(64 << 20, 9);
        let ms = 16 << 20;
        assert_eq!(space.alloc(512).unwrap(), 0);
        assert_eq!(space.alloc(ms).unwrap(), ms);
        assert_eq!(space.alloc(512).unwrap(), 2 * ms);
        let ranges: Vec<_> = space.ranges().collect();
        assert_eq!(ranges, [(0, 512), (ms, 2 * ms), (2 * ms, 2 * ms + 512)]);
        assert!(space.alloc(ms).is_ok());
        assert_eq!(space.alloc(1 << 9).unwrap_err().kind(), ErrorKind::NoSpace);
    }
}
