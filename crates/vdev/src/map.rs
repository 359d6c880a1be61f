//! The location of a block's columns: the geometry of raidz (chapter 02 §10.2, 10.3,
//! 10.7).
//!
//! # Theory
//! Every parity layout is a [`BlockMap`]: independent [`ParityStripe`]s, each a code word of
//! parity columns followed by data columns. A data column holds one contiguous range of
//! the block, then zeros up to the stripe's column size. An ordinary raidz block is one
//! stripe. A block older than an expansion is one stripe for each row. A dRAID block is
//! one stripe, or two if it crosses the end of a group.
//!
//! # Invariants
//! * The data ranges of all stripes partition `0..psize` (psize: whole sectors).
//! * Offsets are in the child's allocatable area.

use base::limits::BLOCK_SIZE_MAX;
use base::{Error, Result, Txg};

use crate::reflow::Placement;
use crate::spec::Reflow;

/// Size of the boot region. The scratch area lies this far before a child's allocatable
/// area.
pub(crate) const BOOT_SIZE: u64 = 7 << 19;

/// One column of a stripe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Col {
    /// Index of the child; `None` for a cell that does not exist (reads as zero).
    pub(crate) child: Option<u32>,
    /// Byte offset in the child's allocatable area.
    pub(crate) offset: u64,
    /// Bytes on the child that belong to this column.
    pub(crate) stored: u64,
    /// First byte of the block in this column.
    pub(crate) start: u64,
    /// Bytes of the block in this column; 0 for parity.
    pub(crate) len: u64,
    /// The bytes are in the child's scratch area.
    pub(crate) scratch: bool,
    /// Position in the vdev's linear sector space (expanded raidz only).
    pub(crate) sector: u64,
}

/// One code word: `nparity` parity columns, then data columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ParityStripe {
    /// Bytes of a parity column; data columns are zero-extended to it.
    pub(crate) colsize: u64,
    pub(crate) cols: Vec<Col>,
}

/// A block's whole layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BlockMap {
    pub(crate) nparity: usize,
    pub(crate) stripes: Vec<ParityStripe>,
    /// Widths that the vdev had before, widest first, followed by the present one
    /// (expanded blocks only). They are the suspects for damage that a reflow copied to
    /// other children.
    pub(crate) widths: Vec<u32>,
}

/// Geometry of a raidz vdev.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RaidzGeometry {
    pub(crate) ashift: u32,
    pub(crate) nparity: u32,
    /// Children, the one being attached included.
    pub(crate) width: u32,
    pub(crate) expand_txgs: Vec<Txg>,
    pub(crate) reflow: Option<Reflow>,
}

/// Rounds a block up to whole sectors, and refuses sizes that no block can have.
pub(crate) fn whole_sectors(psize: u64, ashift: u32) -> Result<u64> {
    let sector = 1u64 << ashift;
    if psize == 0 || psize > BLOCK_SIZE_MAX {
        return Err(Error::corrupt(format!("impossible block size of {psize} bytes")));
    }
    Ok(psize.next_multiple_of(sector))
}

fn overflow() -> Error {
    Error::corrupt("the block's address is out of range")
}

impl RaidzGeometry {
    /// Width at creation (chapter 02 §10.7).
    pub(crate) fn original_width(&self) -> u32 {
        self.width - self.expand_txgs.len() as u32 - u32::from(self.reflow.is_some())
    }

    /// Columns that blocks of this physical birth use.
    pub(crate) fn logical_width(&self, birth: Txg) -> u32 {
        let grown = self.expand_txgs.iter().take_while(|&&t| t <= birth).count();
        self.original_width() + grown as u32
    }

    /// Allocated bytes of a block (§10.2).
    pub(crate) fn asize(&self, psize: u64, birth: Txg) -> u64 {
        let (n, p) = (u64::from(self.logical_width(birth)), u64::from(self.nparity));
        let mut s = ((psize.max(1) - 1) >> self.ashift) + 1;
        s += p * s.div_ceil(n - p);
        s.next_multiple_of(p + 1) << self.ashift
    }

    /// The layout of a block; `psize` in whole sectors.
    pub(crate) fn map(&self, offset: u64, psize: u64, birth: Txg) -> Result<BlockMap> {
        let end = offset.checked_add(self.asize(psize, birth)).ok_or_else(overflow)?;
        if !offset.is_multiple_of(1 << self.ashift) || end > 1 << 62 {
            return Err(overflow());
        }
        if self.reflow.is_none() && self.logical_width(birth) == self.width {
            Ok(self.plain(offset, psize))
        } else {
            Ok(self.rows(offset, psize, birth))
        }
    }

    fn plain(&self, offset: u64, psize: u64) -> BlockMap {
        let (n, p) = (u64::from(self.width), u64::from(self.nparity));
        let (b, s) = (offset >> self.ashift, psize >> self.ashift);
        let (f, o) = (b % n, (b / n) << self.ashift);
        let (q, r) = (s / (n - p), s % (n - p));
        let big = if r == 0 { 0 } else { r + p };
        let used = if q == 0 { big } else { n };
        let mut cols = Vec::with_capacity(used as usize);
        let mut start = 0;
        for c in 0..used {
            let wrap = u64::from(f + c >= n);
            let stored = (q + u64::from(c < big)) << self.ashift;
            let len = if c < p { 0 } else { stored };
            cols.push(Col {
                child: Some((f + c - wrap * n) as u32),
                offset: o + (wrap << self.ashift),
                stored,
                start,
                len,
                scratch: false,
                sector: 0,
            });
            start += len;
        }
        if p == 1 && offset & 0x10_0000 != 0 {
            swap_columns(&mut cols);
        }
        let colsize = cols.first().map_or(0, |c| c.stored);
        BlockMap {
            nparity: self.nparity as usize,
            stripes: vec![ParityStripe { colsize, cols }],
            widths: Vec::new(),
        }
    }

    /// The sectors that round a block's allocation up (skip sectors, §10.3), as child
    /// and child offset. There are none for a block narrower than the vdev.
    pub(crate) fn skips(
        &self,
        offset: u64,
        psize: u64,
        birth: Txg,
    ) -> impl Iterator<Item = (u32, u64)> + use<> {
        let (n, p, a) = (u64::from(self.width), u64::from(self.nparity), self.ashift);
        let s = psize >> a;
        let used = s + p * s.div_ceil(n - p);
        let whole = self.reflow.is_none() && self.logical_width(birth) == self.width;
        let end = if whole { used.next_multiple_of(p + 1) } else { used };
        let first = offset >> a;
        (first + used..first + end).map(move |x| ((x % n) as u32, (x / n) << a))
    }

    /// The row map of blocks narrower than the vdev (§10.7).
    fn rows(&self, offset: u64, psize: u64, birth: Txg) -> BlockMap {
        let (l, p) = (u64::from(self.logical_width(birth)), u64::from(self.nparity));
        let sector = 1u64 << self.ashift;
        let s = psize >> self.ashift;
        let (q, r) = (s / (l - p), s % (l - p));
        let big = if r == 0 { 0 } else { r + p };
        let total = s + p * (q + u64::from(r != 0));
        let (rows, cols) = (total.div_ceil(l), total.min(l));
        let mut stripes = Vec::with_capacity(rows as usize);
        for row in 0..rows {
            let b = (offset >> self.ashift) + row * l;
            let (width, scratch) = self.row_width(b + cols);
            let cell = |c: u64| {
                let dc = c.saturating_sub(p);
                let k = if c < big || r == 0 {
                    dc * rows + row
                } else {
                    // dc >= r, because a column before the end of the big ones took the
                    // branch above.
                    r * rows + (dc.saturating_sub(r)) * (rows - 1) + row
                };
                let absent = row == rows - 1 && big != 0 && c >= big;
                let data = c >= p && !absent;
                Col {
                    child: (!absent).then_some(((b + c) % width) as u32),
                    offset: ((b + c) / width) << self.ashift,
                    stored: sector,
                    start: if data { k << self.ashift } else { 0 },
                    len: if data { sector } else { 0 },
                    scratch,
                    sector: b + c,
                }
            };
            let mut cols: Vec<Col> = (0..cols).map(cell).collect();
            if p == 1 && cols.len() > 1 && offset & 0x10_0000 != 0 {
                swap_columns(&mut cols);
            }
            stripes.push(ParityStripe { colsize: sector, cols });
        }
        let widths = (self.original_width()..=self.width).rev().collect();
        BlockMap { nparity: self.nparity as usize, stripes, widths }
    }

    /// Where else a column of a row at the old place must be written: at its new place, if it
    /// has one of its own and was copied (`reflow`). Child and offset.
    pub(crate) fn second_place(&self, col: &Col, places: Placement) -> Option<(u32, u64)> {
        if col.sector >= places.copied >> self.ashift {
            return None;
        }
        let n = u64::from(self.width);
        let new = ((col.sector % n) as u32, (col.sector / n) << self.ashift);
        (col.child? != new.0 || col.offset != new.1).then_some(new)
    }

    /// Physical width of a row that ends at sector `end`, and whether it is read
    /// from the scratch area.
    fn row_width(&self, end: u64) -> (u64, bool) {
        match self.reflow {
            Some(reflow) if end > reflow.offset >> self.ashift => {
                (u64::from(self.width) - 1, false)
            }
            Some(reflow) => (u64::from(self.width), reflow.scratch_valid),
            None => (u64::from(self.width), false),
        }
    }
}

/// The swap rule (§10.3): columns 0 and 1 exchange their locations, not their content.
fn swap_columns(cols: &mut [Col]) {
    if let [a, b, ..] = cols {
        std::mem::swap(&mut a.child, &mut b.child);
        std::mem::swap(&mut a.offset, &mut b.offset);
        std::mem::swap(&mut a.sector, &mut b.sector);
    }
}

#[cfg(test)]
#[path = "map_tests.rs"]
mod tests;
