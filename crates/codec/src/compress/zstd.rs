//! zstd (chapter 02 §7.5): an 8-byte header, then a frame without magic, content
//! size and checksum, by libzstd.
//!
//! # Theory
//! The header's second word contains the level code and the library's version. Old
//! big-endian writers stored it in another order. Since one byte of the version is
//! always zero, its position reveals the order. A reader rejects invalid level codes,
//! as OpenZFS does.
//!
//! Contexts are kept per thread, because they are expensive to create. A compression
//! context that grew beyond [`CONTEXT_MAX`] is dropped after use.

use std::cell::RefCell;

use zstd_safe::{CCtx, CParameter, DCtx, DParameter, FrameFormat, ResetDirective};

const HEADER: usize = 8;
/// Bytes of a compression context kept between blocks.
const CONTEXT_MAX: usize = 16 << 20;
/// Blocks of this size and more are first tried with cheap compressors.
const EARLY_ABORT_SIZE: usize = 128 << 10;
/// ... but only for levels of at least this.
const EARLY_ABORT_LEVEL: i32 = 3;

thread_local! {
    static COMPRESS: RefCell<Option<CCtx<'static>>> = const { RefCell::new(None) };
    static DECOMPRESS: RefCell<Option<DCtx<'static>>> = const { RefCell::new(None) };
}

/// A zstd level that ZFS knows: the default, or one by its code, 1 to 19 or (fast
/// levels) 103 to 123.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ZstdLevel(u8);

impl ZstdLevel {
    /// Plain "zstd": compresses as zstd-3, but is another property value.
    pub const DEFAULT: ZstdLevel = ZstdLevel(0);
    /// zstd-fast, which is zstd-fast-1.
    pub const FAST_DEFAULT: ZstdLevel = ZstdLevel(103);

    /// Fast levels of codes 103 to 123, negated.
    const FAST: [i32; 21] =
        [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 500, 1000];

    /// The level with this code, if there is one.
    pub fn from_code(code: u8) -> Option<ZstdLevel> {
        matches!(code, 1..=19 | 103..=123).then_some(ZstdLevel(code))
    }

    /// The code in block headers; 3 for the default.
    pub fn code(self) -> u8 {
        if self.0 == 0 { 3 } else { self.0 }
    }

    /// The library's level; negative ones are fast.
    pub fn level(self) -> i32 {
        match usize::from(self.code()).checked_sub(103).and_then(|i| Self::FAST.get(i)) {
            Some(fast) => -fast,
            None => i32::from(self.code()),
        }
    }

    /// All levels but the default, by code.
    pub fn all() -> impl Iterator<Item = ZstdLevel> {
        (1..=123).filter_map(ZstdLevel::from_code)
    }

    /// The property's word: "zstd" for the default, "zstd-fast" for fast level 1,
    /// else "zstd-N" and "zstd-fast-N".
    pub fn name(self) -> String {
        match self.level() {
            _ if self == ZstdLevel::DEFAULT => "zstd".into(),
            -1 => "zstd-fast".into(),
            n if n < 0 => format!("zstd-fast-{}", -n),
            n => format!("zstd-{n}"),
        }
    }

    /// Parses "zstd", "zstd-N", "zstd-fast" and "zstd-fast-N".
    pub fn from_name(name: &str) -> Option<ZstdLevel> {
        let rest = name.strip_prefix("zstd")?;
        if rest.is_empty() {
            return Some(ZstdLevel::DEFAULT);
        }
        if rest == "-fast" {
            return Some(ZstdLevel::FAST_DEFAULT);
        }
        let wanted = match rest.strip_prefix("-fast-") {
            Some(n) => -number(n)?,
            None => number(rest.strip_prefix('-')?)?,
        };
        ZstdLevel::all().find(|l| l.level() == wanted)
    }
}

/// A positive decimal without sign or leading zero.
fn number(s: &str) -> Option<i32> {
    let plain = s.bytes().all(|b| b.is_ascii_digit()) && !s.starts_with('0');
    plain.then(|| s.parse().ok()).flatten()
}

/// The version written to headers: the library's own, or OpenZFS's 1.4.5 if the
/// library's has a zero byte where readers detect the byte order.
fn version_word() -> u32 {
    let version = zstd_safe::version_number() & 0xff_ffff;
    if version & 0xff == 0 || version >> 8 & 0xff == 0 { 10_405 } else { version }
}

/// The level code in a header's second word, in either order.
fn level_code(word: u32) -> u8 {
    let bytes = word.to_le_bytes();
    match bytes.iter().position(|&b| b == 0) {
        Some(1 | 3) => bytes[0],
        _ => bytes[3],
    }
}

/// Fills `dst` exactly; false if the block is bad or has another length.
pub(super) fn decompress(src: &[u8], dst: &mut [u8]) -> bool {
    decode(src, dst).is_some()
}

fn decode(src: &[u8], dst: &mut [u8]) -> Option<()> {
    let (len, rest) = src.split_first_chunk::<4>()?;
    let (word, rest) = rest.split_first_chunk::<4>()?;
    let frame = rest.get(..u32::from_be_bytes(*len) as usize)?;
    ZstdLevel::from_code(level_code(u32::from_be_bytes(*word)))?;
    DECOMPRESS.with_borrow_mut(|slot| {
        if slot.is_none() {
            let mut new = DCtx::try_create()?;
            new.set_parameter(DParameter::Format(FrameFormat::Magicless)).ok()?;
            *slot = Some(new);
        }
        let produced = slot.as_mut()?.decompress(dst, frame);
        (produced == Ok(dst.len())).then_some(())
    })
}

fn prepare(context: &mut CCtx<'_>, level: ZstdLevel) -> Option<()> {
    context.reset(ResetDirective::SessionAndParameters).ok()?;
    for parameter in [
        CParameter::CompressionLevel(level.level()),
        CParameter::Format(FrameFormat::Magicless),
        CParameter::ContentSizeFlag(false),
        CParameter::ChecksumFlag(false),
        CParameter::DictIdFlag(false),
    ] {
        context.set_parameter(parameter).ok()?;
    }
    Some(())
}

/// Compresses into `dst`; `None` if it does not fit.
pub(super) fn compress(src: &[u8], dst: &mut [u8], level: ZstdLevel) -> Option<usize> {
    let (header, body) = dst.split_first_chunk_mut::<HEADER>()?;
    let len = COMPRESS.with_borrow_mut(|slot| {
        if slot.is_none() {
            *slot = CCtx::try_create();
        }
        let context = slot.as_mut()?;
        prepare(context, level)?;
        let len = context.compress2(body, src).ok();
        if context.sizeof() > CONTEXT_MAX {
            *slot = None;
        }
        len
    })?;
    let word = u32::from(level.code()) << 24 | version_word();
    let [a, b, c, d] = u32::try_from(len).ok()?.to_be_bytes();
    let [e, f, g, h] = word.to_be_bytes();
    *header = [a, b, c, d, e, f, g, h];
    Some(HEADER + len)
}

/// As [`compress`], but at level 3 and above, large blocks are abandoned early if
/// neither lz4 nor zstd-1 makes them fit (`zstd_earlyabort_pass`).
pub(super) fn compress_with_early_abort(
    src: &[u8],
    dst: &mut [u8],
    level: ZstdLevel,
) -> Option<usize> {
    let cheap_first = src.len() >= EARLY_ABORT_SIZE && level.level() >= EARLY_ABORT_LEVEL;
    if cheap_first && super::lz4::compress(src, dst).is_none() {
        compress(src, dst, ZstdLevel(1))?;
    }
    compress(src, dst, level)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_orders() {
        assert_eq!(level_code(0x1000_28a5), 16); // chapter 02 §7.5
        assert_eq!(level_code(0x0028_a510), 16); // old big-endian writers
        assert_eq!(level_code(0x1000_2800), 16); // version with a zero low byte
        assert_eq!(level_code(0x0000_0a10), 0); // ambiguous by nature, k = 2
        assert_eq!(level_code(0x2800_0007), 7); // k = 1
        assert_ne!(version_word() & 0xff, 0);
        assert_ne!(version_word() >> 8 & 0xff, 0);
    }

    #[test]
    fn level_codes() {
        let codes: Vec<u8> = ZstdLevel::all().map(ZstdLevel::code).collect();
        assert_eq!(codes, (1..=19).chain(103..=123).collect::<Vec<u8>>());
        let level = |code| ZstdLevel::from_code(code).map(ZstdLevel::level);
        assert_eq!(level(19), Some(19));
        assert_eq!(ZstdLevel::DEFAULT.level(), 3);
        assert_eq!(ZstdLevel::DEFAULT.code(), 3);
        assert_eq!(level(103), Some(-1));
        assert_eq!(level(112), Some(-10));
        assert_eq!(level(113), Some(-20));
        assert_eq!(level(120), Some(-90));
        assert_eq!(level(121), Some(-100));
        assert_eq!(level(123), Some(-1000));
        for code in [0, 20, 102, 124, 255] {
            assert_eq!(level(code), None);
        }
    }

    #[test]
    fn invalid_level_code_is_rejected() {
        let src = [7u8; 4096];
        let mut dst = [0; 512];
        let len = compress(&src, &mut dst, ZstdLevel::DEFAULT).unwrap();
        let mut out = [0; 4096];
        assert!(decompress(&dst[..len], &mut out));
        assert_eq!(out, src);
        dst[4] = 20;
        assert!(!decompress(&dst[..len], &mut out));
    }
}
