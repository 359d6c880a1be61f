//! gzip-N (chapter 02 §7.3): one zlib stream over the whole block, by libdeflate.
//!
//! libdeflate works on whole buffers, as blocks are, and is about twice as fast as zlib
//! for them. It tolerates bytes behind the stream.

use std::cell::RefCell;

use libdeflater::{CompressionLvl, Compressor, Decompressor};

thread_local! {
    // Tables of fixed size, created once per thread rather than once per block.
    static DECOMPRESSOR: RefCell<Decompressor> = RefCell::new(Decompressor::new());
    static COMPRESSORS: RefCell<[Option<Compressor>; 10]> = const { RefCell::new([const { None }; 10]) };
}

/// Fills `dst` exactly; false if the stream is bad or has another length.
pub(super) fn decompress(src: &[u8], dst: &mut [u8]) -> bool {
    let full = dst.len();
    DECOMPRESSOR.with_borrow_mut(|d| d.zlib_decompress(src, dst)) == Ok(full)
}

/// Compresses into `dst`; `None` if it does not fit.
pub(super) fn compress(src: &[u8], dst: &mut [u8], level: u8) -> Option<usize> {
    let level = level.clamp(1, 9);
    COMPRESSORS.with_borrow_mut(|all| {
        let slot = all.get_mut(usize::from(level))?;
        if slot.is_none() {
            *slot = Some(Compressor::new(CompressionLvl::new(i32::from(level)).ok()?));
        }
        slot.as_mut()?.zlib_compress(src, dst).ok()
    })
}
