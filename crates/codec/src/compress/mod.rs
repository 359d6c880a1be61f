//! Block compression (chapter 02 §7).
//!
//! # Theory
//! A block pointer names the algorithm. Reading does not need the level, except that
//! zstd's header contains one, which OpenZFS requires to be valid. Writers give the
//! compressor a destination as large as the space that they are willing to use;
//! [`compress`] returns `None` if the result does not fit.
//!
//! # Invariants
//! * Decompressors never read or write outside their slices, allocate nothing
//!   that depends on the input, and either fill `dst` exactly or fail.
//! * Bytes after the end of the compressed stream are ignored (the zero tail up
//!   to the sector boundary).
//! * On failure the content of `dst` is unspecified.
//!
//! Departure: compressed bytes are not identical to OpenZFS's (other library versions
//! and match finders); the format allows that.

mod gzip;
mod lz4;
mod lzjb;
mod zle;
mod zstd;

use base::{Error, Result};

pub use zstd::ZstdLevel;

/// The id of "on" in properties.
pub(crate) const ID_ON: u8 = 1;
/// The id of zstd.
pub(crate) const ID_ZSTD: u8 = 16;

/// A compression algorithm with its level (chapter 02 §7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Compression {
    /// Stored as it is.
    Off,
    /// All zeros; never in a block pointer.
    Empty,
    /// The historical default.
    Lzjb,
    /// zlib streams, level 1 to 9.
    Gzip(u8),
    /// Runs of zeros only.
    Zle,
    /// The default.
    Lz4,
    /// Zstandard.
    Zstd(ZstdLevel),
}

impl Compression {
    /// The algorithm of the property value "on".
    pub const ON: Compression = Compression::Lz4;

    /// The algorithm that a block pointer names; zstd gets its default level, as
    /// the real one is in the block's header. `None` for the property-only ids 0
    /// and 1 and for unknown ones.
    pub fn from_id(id: u8) -> Option<Compression> {
        Some(match id {
            2 => Compression::Off,
            3 => Compression::Lzjb,
            4 => Compression::Empty,
            5..=13 => Compression::Gzip(id - 4),
            14 => Compression::Zle,
            15 => Compression::Lz4,
            ID_ZSTD => Compression::Zstd(ZstdLevel::DEFAULT),
            _ => return None,
        })
    }

    /// The id in block pointers.
    pub fn id(self) -> u8 {
        match self {
            Compression::Off => 2,
            Compression::Lzjb => 3,
            Compression::Empty => 4,
            Compression::Gzip(level) => 4 + level.clamp(1, 9),
            Compression::Zle => 14,
            Compression::Lz4 => 15,
            Compression::Zstd(_) => ID_ZSTD,
        }
    }

    /// ZFS's name with the level, as the property shows it: gzip-6 is "gzip" and
    /// zstd-fast-1 "zstd-fast" (chapter 09 §2).
    pub fn name(self) -> String {
        match self {
            Compression::Off => "off".into(),
            Compression::Empty => "empty".into(),
            Compression::Lzjb => "lzjb".into(),
            Compression::Gzip(6) => "gzip".into(),
            Compression::Gzip(level) => format!("gzip-{level}"),
            Compression::Zle => "zle".into(),
            Compression::Lz4 => "lz4".into(),
            Compression::Zstd(level) => level.name(),
        }
    }

    /// zdb's name of an algorithm id, without level beyond gzip's.
    pub fn id_name(id: u8) -> &'static str {
        const NAMES: [&str; 17] = [
            "inherit",
            "on",
            "uncompressed",
            "lzjb",
            "empty",
            "gzip-1",
            "gzip-2",
            "gzip-3",
            "gzip-4",
            "gzip-5",
            "gzip-6",
            "gzip-7",
            "gzip-8",
            "gzip-9",
            "zle",
            "lz4",
            "zstd",
        ];
        NAMES.get(usize::from(id)).copied().unwrap_or("unknown")
    }

    /// Parses a value of the `compression` property: "on", "off", "lzjb", "gzip",
    /// "gzip-N", "zle", "lz4", "zstd", "zstd-N", "zstd-fast", "zstd-fast-N".
    pub fn from_name(name: &str) -> Option<Compression> {
        Some(match name {
            "on" => Compression::ON,
            "off" => Compression::Off,
            "lzjb" => Compression::Lzjb,
            "gzip" => Compression::Gzip(6),
            "zle" => Compression::Zle,
            "lz4" => Compression::Lz4,
            _ => match name.strip_prefix("gzip-") {
                Some(level) => match level.as_bytes() {
                    [digit @ b'1'..=b'9'] => Compression::Gzip(digit - b'0'),
                    _ => return None,
                },
                None => Compression::Zstd(ZstdLevel::from_name(name)?),
            },
        })
    }

    /// The algorithm of a property's number; "on" is resolved. zstd's level 0 or
    /// 255 is the default level.
    pub fn from_property(value: u64) -> Option<Compression> {
        let id = (value & 0x7f) as u8;
        let level = value >> 7;
        match (id, level) {
            (ID_ZSTD, 0 | 255) => Some(Compression::Zstd(ZstdLevel::DEFAULT)),
            (ID_ZSTD, code) => {
                Some(Compression::Zstd(ZstdLevel::from_code(u8::try_from(code).ok()?)?))
            }
            (ID_ON, 0) => Some(Compression::ON),
            (4, _) => None,
            (id, 0) => Compression::from_id(id),
            _ => None,
        }
    }
}

/// Decompresses a block into `dst`, which it must fill exactly.
///
/// `comp_id` is the block pointer's; `src` may have a tail that is ignored.
///
/// # Errors
/// `Corrupt` if the stream is bad or gives another length; `Unsupported` for an
/// unknown id.
pub fn decompress(comp_id: u8, src: &[u8], dst: &mut [u8]) -> Result<()> {
    decompress_prefix(comp_id, src, dst, usize::MAX)
}

/// Like [`decompress`], but only the first `n` bytes of `dst` need be valid
/// afterwards; what follows them is unspecified. `dst` has the full logical size.
///
/// lz4, lzjb and zle stop after `n` bytes, so damage behind them is not noticed (the
/// checksum was verified before).
///
/// # Errors
/// As for [`decompress`].
pub(crate) fn decompress_prefix(comp_id: u8, src: &[u8], dst: &mut [u8], n: usize) -> Result<()> {
    let n = n.min(dst.len());
    let ok = match Compression::from_id(comp_id) {
        Some(Compression::Off) => match src.get(..dst.len()) {
            Some(from) => {
                dst.iter_mut().zip(from).take(n).for_each(|(to, from)| *to = *from);
                true
            }
            None => false,
        },
        Some(Compression::Empty) => {
            dst.fill(0);
            true
        }
        Some(Compression::Lzjb) => lzjb::decompress(src, dst, n),
        Some(Compression::Gzip(_)) => gzip::decompress(src, dst),
        Some(Compression::Zle) => zle::decompress(src, dst, n),
        Some(Compression::Lz4) => lz4::decompress(src, dst, n),
        Some(Compression::Zstd(_)) => zstd::decompress(src, dst),
        None => return Err(Error::unsupported(format!("unknown compression id {comp_id}"))),
    };
    if ok {
        return Ok(());
    }
    Err(broken(comp_id, src, dst))
}

/// Whether [`decompress_head`] supports this algorithm: its decoder can stop early.
pub fn has_head(comp_id: u8) -> bool {
    use Compression::{Empty, Lz4, Lzjb, Off, Zle};
    matches!(Compression::from_id(comp_id), Some(Off | Empty | Lzjb | Zle | Lz4))
}

/// Decompresses only the first `dst.len()` bytes of a block. The block may be longer;
/// the rest is not decoded, and no room for it is needed.
///
/// # Errors
/// `Corrupt` if the stream is bad up to there or ends before; `Unsupported` for an
/// unknown id and if [`has_head`] is false.
pub fn decompress_head(comp_id: u8, src: &[u8], dst: &mut [u8]) -> Result<()> {
    let n = dst.len();
    let ok = match Compression::from_id(comp_id) {
        Some(Compression::Lz4) => lz4::decompress_head(src, dst),
        // These treat the end of the slice as the end of the block and cut matches that
        // cross it.
        Some(Compression::Lzjb) => lzjb::decompress(src, dst, n),
        Some(Compression::Zle) => zle::decompress(src, dst, n),
        Some(Compression::Off | Compression::Empty) => return decompress(comp_id, src, dst),
        Some(Compression::Gzip(_) | Compression::Zstd(_)) => {
            let name = Compression::id_name(comp_id);
            return Err(Error::unsupported(format!("{name} cannot stop early")));
        }
        None => return Err(Error::unsupported(format!("unknown compression id {comp_id}"))),
    };
    if ok { Ok(()) } else { Err(broken(comp_id, src, dst)) }
}

fn broken(comp_id: u8, src: &[u8], dst: &[u8]) -> Error {
    let name = Compression::id_name(comp_id);
    Error::corrupt(format!(
        "a block of {} bytes does not decompress to {} bytes with {name}",
        src.len(),
        dst.len()
    ))
}

/// Compresses `src` into the beginning of `dst` and returns the number of bytes.
///
/// Returns `None` if the result does not fit in `dst` or the algorithm gives up early.
/// `Off` always returns `None`; `Empty` returns `Some(0)` for a block of zeros.
pub fn compress(alg: Compression, src: &[u8], dst: &mut [u8]) -> Option<usize> {
    match alg {
        Compression::Off => None,
        Compression::Empty => is_zero(src).then_some(0),
        Compression::Lzjb => lzjb::compress(src, dst),
        Compression::Gzip(level) => gzip::compress(src, dst, level),
        Compression::Zle => zle::compress(src, dst),
        Compression::Lz4 => lz4::compress(src, dst),
        Compression::Zstd(level) => zstd::compress_with_early_abort(src, dst, level),
    }
}

/// Whether every byte is zero: such a block is written as a hole.
pub fn is_zero(data: &[u8]) -> bool {
    let (chunks, tail) = data.as_chunks::<128>();
    chunks
        .iter()
        .all(|c| c.as_chunks::<8>().0.iter().fold(0, |x, w| x | u64::from_le_bytes(*w)) == 0)
        && tail.iter().all(|&b| b == 0)
}

#[cfg(test)]
mod tests;
