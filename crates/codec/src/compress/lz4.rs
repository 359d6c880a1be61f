//! lz4 (chapter 02 §7.4): a big-endian length, then one LZ4 block, by liblz4.
//!
//! # Theory
//! By measurement, the reference library decodes faster than the safe Rust ones, and
//! decoding bounds cached and sequential reads. Its functions take explicit bounds for
//! both sides, respect them for hostile input, and need no heap.

use std::ffi::{c_char, c_int};

const HEADER: usize = 4;

// Exported by the linked library, but missing from its Rust declarations.
unsafe extern "C" {
    fn LZ4_decompress_safe_partial(
        src: *const c_char,
        dst: *mut c_char,
        src_size: c_int,
        target_size: c_int,
        dst_capacity: c_int,
    ) -> c_int;
}

/// Fills at least the first `n` bytes of `dst`, which has room for the whole block;
/// false if the stream is bad.
pub(super) fn decompress(src: &[u8], dst: &mut [u8], n: usize) -> bool {
    let partial = n < dst.len();
    decode(src, dst, n, partial).is_some()
}

/// Fills `dst` with the first bytes of a block that may be longer; false if the stream
/// is bad up to there.
pub(super) fn decompress_head(src: &[u8], dst: &mut [u8]) -> bool {
    let n = dst.len();
    decode(src, dst, n, true).is_some()
}

fn decode(src: &[u8], dst: &mut [u8], n: usize, partial: bool) -> Option<()> {
    let (header, rest) = src.split_first_chunk::<HEADER>()?;
    let block = rest.get(..u32::from_be_bytes(*header) as usize)?;
    let src_size = c_int::try_from(block.len()).ok()?;
    let capacity = c_int::try_from(dst.len()).ok()?;
    let (from, to) = (block.as_ptr().cast(), dst.as_mut_ptr().cast());
    let n = n.min(dst.len());
    let produced = if !partial {
        // SAFETY: both slices are valid for the sizes given, which the function
        // does not exceed; they cannot overlap.
        unsafe { lz4_sys::LZ4_decompress_safe(from, to, src_size, capacity) }
    } else {
        // SAFETY: as above; n is at most dst.len(), which fits.
        unsafe { LZ4_decompress_safe_partial(from, to, src_size, n as c_int, capacity) }
    };
    let produced = usize::try_from(produced).ok()?;
    (produced >= n).then_some(())
}

/// Compresses into `dst`; `None` if it does not fit.
pub(super) fn compress(src: &[u8], dst: &mut [u8]) -> Option<usize> {
    let (header, body) = dst.split_first_chunk_mut::<HEADER>()?;
    let src_size = c_int::try_from(src.len()).ok()?;
    let capacity = c_int::try_from(body.len()).unwrap_or(c_int::MAX);
    let (from, to) = (src.as_ptr().cast(), body.as_mut_ptr().cast());
    // SAFETY: both slices are valid for the sizes given, which the function does
    // not exceed; it returns 0 when the result does not fit.
    let len = unsafe { lz4_sys::LZ4_compress_default(from, to, src_size, capacity) };
    let len = u32::try_from(len).ok().filter(|&l| l > 0)?;
    *header = len.to_be_bytes();
    Some(HEADER + len as usize)
}
