//! RAID-Z parity: generation and reconstruction (chapter 02 §10.4, §10.5).
//!
//! # Theory
//! Bytes at equal positions of the data columns are the coefficients of a
//! polynomial over GF(2^8); P, Q and R are its values at 1, 2 and 4, computed by
//! Horner's rule from the first column to the last. Reconstruction computes the
//! same values with the missing columns taken as zero; the differences to the
//! stored parity ("syndromes") are linear in the missing bytes, and the matrix of
//! at most 3 x 3 coefficients is inverted once per call.
//!
//! # Invariants
//! * Columns shorter than the parity are continued with zeros and still take part
//!   in the multiplications; bytes behind a column's end are never touched.
//! * Shapes are checked before a kernel runs: the kernels trust them.
//! * Each input byte is loaded once and each output byte stored once per call.

pub mod gf;
mod kernel;
#[cfg(target_arch = "x86_64")]
mod x86;

use base::{Error, Result};
use kernel::{ByteRange, GenerateJob, Rebuild};

/// Most data columns: the powers of 2 repeat after 255.
pub const DATA_COLUMNS_MAX: usize = 252;
/// P, Q and R.
pub(crate) const PARITY_MAX: usize = 3;

/// One implementation of the kernels.
pub struct Raidz {
    /// For `cenote bench codecs` and tests.
    pub name: &'static str,
    /// Whether this processor can run it.
    pub available: fn() -> bool,
    /// Computes the requested rows over a range.
    pub(crate) generate: unsafe fn(&GenerateJob<'_>, ByteRange),
    /// Recomputes missing data columns over a range.
    pub(crate) rebuild: unsafe fn(&Rebuild<'_>, ByteRange),
}

/// Every implementation built for this architecture, available or not.
pub(crate) static IMPLEMENTATIONS: &[&Raidz] = &[
    &kernel::SCALAR,
    #[cfg(target_arch = "x86_64")]
    &x86::SSSE3,
    #[cfg(target_arch = "x86_64")]
    &x86::AVX2,
    #[cfg(target_arch = "x86_64")]
    &x86::AVX512BW,
    #[cfg(target_arch = "x86_64")]
    &x86::GFNI,
    #[cfg(target_arch = "x86_64")]
    &x86::GFNI512,
];

/// A column of a block to reconstruct.
pub enum Column<'a> {
    /// Read, and assumed to be right.
    Present(&'a [u8]),
    /// To be computed.
    Missing(&'a mut [u8]),
}

impl Column<'_> {
    fn bytes(&self) -> &[u8] {
        match self {
            Column::Present(b) => b,
            Column::Missing(b) => b,
        }
    }

    fn is_missing(&self) -> bool {
        matches!(self, Column::Missing(_))
    }
}

fn check_shape(parity: impl ExactSizeIterator<Item = usize>, data: &[usize]) -> Result<usize> {
    let count = parity.len();
    let mut parity = parity;
    let len = parity.next().unwrap_or(0);
    if count == 0 || count > PARITY_MAX || parity.any(|l| l != len) {
        return Err(Error::invalid("raidz takes 1 to 3 parity columns of equal length"));
    }
    if data.is_empty() || data.len() > DATA_COLUMNS_MAX {
        return Err(Error::invalid(format!("raidz takes 1 to {DATA_COLUMNS_MAX} data columns")));
    }
    if data.iter().any(|&l| l > len) {
        return Err(Error::invalid("a raidz data column is longer than its parity"));
    }
    Ok(len)
}

/// Divides `0..len` at the ends of columns, so that in each range a column is either
/// completely present or completely absent. Calls `f` with the range and the present
/// columns; the others are null.
fn for_each_range<'a>(
    data: impl Iterator<Item = &'a [u8]> + Clone,
    len: usize,
    mut f: impl FnMut(ByteRange, &[*const u8]),
) {
    let mut start = 0;
    let mut columns = [std::ptr::null(); DATA_COLUMNS_MAX];
    while start < len {
        let mut end = len;
        let mut count = 0;
        for (slot, column) in columns.iter_mut().zip(data.clone()) {
            count += 1;
            if column.len() > start {
                *slot = column.as_ptr();
                end = end.min(column.len());
            } else {
                *slot = std::ptr::null();
            }
        }
        f(ByteRange { start, end }, columns.get(..count).unwrap_or_default());
        start = end;
    }
}

/// Computes P, PQ or PQR (as many as `parity` has) of the data columns.
///
/// # Errors
/// `Invalid` for impossible shapes.
pub fn generate(parity: &mut [&mut [u8]], data: &[&[u8]]) -> Result<()> {
    generate_with(crate::cpu::raidz(parity.len()), parity, data)
}

/// [`generate`] by a given implementation.
///
/// # Errors
/// As [`generate`], and `Unsupported` if the processor cannot run it.
pub(crate) fn generate_with(imp: &Raidz, parity: &mut [&mut [u8]], data: &[&[u8]]) -> Result<()> {
    check_available(imp)?;
    let mut lens = [0; DATA_COLUMNS_MAX + 1];
    let lens = lengths(&mut lens, data.iter().map(|d| d.len()));
    let len = check_shape(parity.iter().map(|p| p.len()), lens)?;
    let mut rows = [std::ptr::null_mut(); PARITY_MAX];
    for (row, column) in rows.iter_mut().zip(parity.iter_mut()) {
        *row = column.as_mut_ptr();
    }
    for_each_range(data.iter().copied(), len, |range, columns| {
        // SAFETY: check_shape holds: rows are valid for `len` bytes and columns,
        // where not null, for the range; the `&mut` make rows disjoint from the
        // rest; the processor runs `imp`.
        unsafe { (imp.generate)(&GenerateJob { rows, columns }, range) }
    });
    Ok(())
}

fn check_available(imp: &Raidz) -> Result<()> {
    if (imp.available)() {
        return Ok(());
    }
    Err(Error::unsupported(format!("this processor cannot run raidz {}", imp.name)))
}

/// The first `DATA_COLUMNS_MAX + 1` lengths: enough to detect too many.
fn lengths(buf: &mut [usize], lens: impl Iterator<Item = usize>) -> &[usize] {
    let mut count = 0;
    for (slot, len) in buf.iter_mut().zip(lens) {
        *slot = len;
        count += 1;
    }
    buf.get(..count).unwrap_or_default()
}

/// Which parity columns differ from the data: bit 0 for P, 1 for Q, 2 for R. Computes
/// into a small scratch area, piece by piece.
///
/// # Errors
/// `Invalid` for impossible shapes.
pub fn check_parity(parity: &[&[u8]], data: &[&[u8]]) -> Result<u8> {
    const PIECE: usize = 4096;
    let imp = crate::cpu::raidz(parity.len());
    let mut lens = [0; DATA_COLUMNS_MAX + 1];
    let lens = lengths(&mut lens, data.iter().map(|d| d.len()));
    let len = check_shape(parity.iter().map(|p| p.len()), lens)?;
    let mut scratch = [[0u8; PIECE]; PARITY_MAX];
    let mut wrong = 0;
    for start in (0..len).step_by(PIECE) {
        let size = PIECE.min(len - start);
        let mut rows = [std::ptr::null_mut(); PARITY_MAX];
        for (row, (s, _)) in rows.iter_mut().zip(scratch.iter_mut().zip(parity)) {
            *row = s.as_mut_ptr();
        }
        let pieces =
            data.iter().map(|d| d.get(start..d.len().min(start + size)).unwrap_or_default());
        for_each_range(pieces, size, |range, columns| {
            // SAFETY: as in `generate_with`; rows are PIECE >= size bytes long.
            unsafe { (imp.generate)(&GenerateJob { rows, columns }, range) }
        });
        for (bit, (s, p)) in scratch.iter().zip(parity).enumerate() {
            if s.get(..size) != p.get(start..start + size) {
                wrong |= 1 << bit;
            }
        }
    }
    Ok(wrong)
}

/// Computes the missing columns, data and parity, from the present ones.
///
/// `parity` is all of P, Q, R that the vdev has, in order; `data` the data columns
/// in order. Parity rows are used from the first available on. At most as many
/// columns may be missing as there are parity columns.
///
/// # Errors
/// `Invalid` for impossible shapes or too many missing columns.
pub fn reconstruct(parity: &mut [Column<'_>], data: &mut [Column<'_>]) -> Result<()> {
    reconstruct_with(crate::cpu::raidz(parity.len()), parity, data)
}

/// [`reconstruct`] by a given implementation.
///
/// # Errors
/// As [`reconstruct`], and `Unsupported` if the processor cannot run it.
pub(crate) fn reconstruct_with(
    imp: &Raidz,
    parity: &mut [Column<'_>],
    data: &mut [Column<'_>],
) -> Result<()> {
    check_available(imp)?;
    let mut lens = [0; DATA_COLUMNS_MAX + 1];
    let lens = lengths(&mut lens, data.iter().map(|d| d.bytes().len()));
    let len = check_shape(parity.iter().map(|p| p.bytes().len()), lens)?;
    let missing = parity.iter().chain(data.iter()).filter(|c| c.is_missing()).count();
    if missing > parity.len() {
        return Err(Error::invalid(format!(
            "{missing} columns of a raidz block are missing, but it has {} of parity",
            parity.len()
        )));
    }
    if data.iter().any(Column::is_missing) {
        rebuild_data(imp, parity, data, len)?;
    }
    if parity.iter().any(Column::is_missing) {
        let mut rows = [std::ptr::null_mut(); PARITY_MAX];
        for (row, column) in rows.iter_mut().zip(parity.iter_mut()) {
            if let Column::Missing(bytes) = column {
                *row = bytes.as_mut_ptr();
            }
        }
        for_each_range(data.iter().map(Column::bytes), len, |range, columns| {
            // SAFETY: as in `generate_with`; rows that are not null are `&mut`.
            unsafe { (imp.generate)(&GenerateJob { rows, columns }, range) }
        });
    }
    Ok(())
}

fn rebuild_data(
    imp: &Raidz,
    parity: &[Column<'_>],
    data: &mut [Column<'_>],
    len: usize,
) -> Result<()> {
    let count = data.len();
    // All pointers are collected once, because `data` must not be accessed while
    // kernels write through the targets.
    let mut known = [(std::ptr::null::<u8>(), 0usize); DATA_COLUMNS_MAX];
    let mut targets = [(0usize, std::ptr::null_mut::<u8>(), 0usize); PARITY_MAX];
    let mut total = 0;
    for (index, (slot, column)) in known.iter_mut().zip(data.iter_mut()).enumerate() {
        match column {
            Column::Present(bytes) => *slot = (bytes.as_ptr(), bytes.len()),
            Column::Missing(bytes) => {
                if let Some(slot) = targets.get_mut(total) {
                    *slot = (index, bytes.as_mut_ptr(), bytes.len());
                }
                total += 1;
            }
        }
    }
    let targets = targets.get(..total).unwrap_or_default();
    let mut start = 0;
    let mut columns = [std::ptr::null(); DATA_COLUMNS_MAX];
    while start < len {
        let mut end = len;
        for (slot, &(ptr, size)) in columns.iter_mut().zip(&known) {
            *slot = std::ptr::null();
            if size > start {
                *slot = ptr;
                end = end.min(size);
            }
        }
        // Only columns that reach into this range are unknown here.
        let mut unknown = [0; PARITY_MAX];
        let mut out = [std::ptr::null_mut(); PARITY_MAX];
        let mut n = 0;
        for &(index, ptr, size) in targets.iter().filter(|t| t.2 > start) {
            if let (Some(u), Some(o)) = (unknown.get_mut(n), out.get_mut(n)) {
                (*u, *o) = (index, ptr);
            }
            n += 1;
            end = end.min(size);
        }
        if n > 0 {
            let rows = std::array::from_fn(|i| match parity.get(i) {
                Some(Column::Present(bytes)) => bytes.as_ptr(),
                _ => std::ptr::null(),
            });
            let solution = gf::solve(
                unknown.get(..n).unwrap_or_default(),
                rows.map(|r: *const u8| !r.is_null()),
                count,
            )
            .ok_or_else(|| base::bug!("a raidz matrix is singular"))?;
            let columns = columns.get(..count).unwrap_or_default();
            let job = Rebuild { stored: rows, columns, out, unknowns: n, solution: &solution };
            // SAFETY: shapes were checked; `out` pointers come from distinct `&mut`
            // columns that reach to `end`, the others are shared and not null only
            // where valid up to `end`; the solution uses present rows only.
            unsafe { (imp.rebuild)(&job, ByteRange { start, end }) }
        }
        start = end;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
