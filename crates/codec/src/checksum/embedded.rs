//! Checksums stored inside the block they cover (chapter 02 §5.10).
//!
//! # Theory
//! A region carries a 40-byte `eck`: a magic number and four words. To compute it, the
//! words are first set to a verifier that depends on the block's address, the region is
//! hashed, and the result replaces them. A reader takes the byte order from the magic.
//! In the other order, verifier and words are swapped and the swapped hash is used.
//!
//! Verification hashes around a copy of the few bytes that hold the eck, so the region
//! is neither copied nor written.

use super::fletcher::Fletcher4;
use super::{Checksum, Words, be_words, fletcher};
use sha2::Digest;

/// `zec_magic`.
pub const MAGIC: u64 = 0x0210_da7a_b10c_7a11;
/// Bytes of an eck: magic and four words.
pub const ECK_SIZE: usize = 40;
/// Offset of the eck in the chain header of a log block (id 9).
pub(crate) const ZILOG2_ECK_OFFSET: usize = 144;

/// Why an embedded checksum is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmbeddedError {
    /// The algorithm is not an embedded one, or the eck is not inside the region.
    Shape,
    /// No magic in either byte order.
    Magic,
    /// The checksum does not match.
    Mismatch {
        /// The words found in the region, in the region's byte order.
        stored: Words,
        /// The words that they should be.
        computed: Words,
    },
}

impl std::fmt::Display for EmbeddedError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            EmbeddedError::Shape => f.write_str("no embedded checksum fits this region"),
            EmbeddedError::Magic => f.write_str("no embedded checksum magic"),
            EmbeddedError::Mismatch { .. } => f.write_str("embedded checksum does not match"),
        }
    }
}

impl std::error::Error for EmbeddedError {}

/// The offset of the eck for an algorithm with a region of `len` bytes.
pub fn eck_offset(alg: Checksum, len: usize) -> Option<usize> {
    match alg {
        Checksum::Zilog2 => (len >= ZILOG2_ECK_OFFSET + ECK_SIZE).then_some(ZILOG2_ECK_OFFSET),
        Checksum::Label | Checksum::GangHeader | Checksum::Zilog => len.checked_sub(ECK_SIZE),
        _ => None,
    }
}

/// Hashes `head || middle || tail`; the first two are multiples of 16 bytes.
fn hash(alg: Checksum, parts: [&[u8]; 3], swapped: bool) -> Option<Words> {
    match alg {
        Checksum::Label | Checksum::GangHeader => {
            let mut sha = sha2::Sha256::new();
            parts.iter().for_each(|p| sha.update(p));
            Some(be_words(&sha.finalize().into()))
        }
        Checksum::Zilog2 => {
            let mut sum = Fletcher4::new();
            parts.iter().for_each(|p| sum.update(p, swapped));
            Some(sum.words)
        }
        Checksum::Zilog => {
            let read = if swapped { u64::from_be_bytes } else { u64::from_le_bytes };
            let head = fletcher::fletcher2(parts[0], swapped);
            let middle = fletcher::scalar2(parts[1], head, read);
            Some(fletcher::scalar2(parts[2], middle, read))
        }
        _ => None,
    }
}

fn put(eck: &mut [u8], words: &Words) {
    for (bytes, w) in eck.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *bytes = w.to_le_bytes();
    }
}

/// Writes magic and checksum of `region` into its eck at `eck_offset`, in
/// little-endian order.
///
/// # Errors
/// [`EmbeddedError::Shape`] if `alg` is not embedded or the eck does not fit.
pub fn compute_embedded(
    alg: Checksum,
    region: &mut [u8],
    eck_offset: usize,
    verifier: Words,
) -> Result<(), EmbeddedError> {
    if !alg.is_embedded() {
        return Err(EmbeddedError::Shape);
    }
    let end = eck_offset.checked_add(ECK_SIZE).ok_or(EmbeddedError::Shape)?;
    let eck = region.get_mut(eck_offset..end).ok_or(EmbeddedError::Shape)?;
    let (magic, words) = eck.split_at_mut(8);
    magic.copy_from_slice(&MAGIC.to_le_bytes());
    put(words, &verifier);
    let sum = hash(alg, [region, &[], &[]], false).ok_or(EmbeddedError::Shape)?;
    if let Some(words) = region.get_mut(eck_offset + 8..end) {
        put(words, &sum);
    }
    Ok(())
}

/// Whether the eck at `eck_offset` was written in the other byte order; `None`
/// without magic.
pub fn is_swapped(region: &[u8], eck_offset: usize) -> Option<bool> {
    match u64::from_le_bytes(*region.get(eck_offset..)?.first_chunk()?) {
        MAGIC => Some(false),
        m if m.swap_bytes() == MAGIC => Some(true),
        _ => None,
    }
}

/// Checks the eck of `region` at `eck_offset`, in either byte order.
///
/// # Errors
/// See [`EmbeddedError`].
pub fn verify_embedded(
    alg: Checksum,
    region: &[u8],
    eck_offset: usize,
    verifier: Words,
) -> Result<(), EmbeddedError> {
    let end = eck_offset.checked_add(ECK_SIZE).ok_or(EmbeddedError::Shape)?;
    let eck = region.get(eck_offset..end).ok_or(EmbeddedError::Shape)?;
    if !alg.is_embedded() {
        return Err(EmbeddedError::Shape);
    }
    let swapped = is_swapped(region, eck_offset).ok_or(EmbeddedError::Magic)?;
    let order = |w: u64| if swapped { w.swap_bytes() } else { w };

    // A window of whole 16-byte units around the eck, with the verifier in it.
    let from = eck_offset / 16 * 16;
    let to = end.next_multiple_of(16).min(region.len());
    let mut window = [0u8; 64];
    let window = window.get_mut(..to - from).ok_or(EmbeddedError::Shape)?;
    window.copy_from_slice(region.get(from..to).ok_or(EmbeddedError::Shape)?);
    put(window.get_mut(eck_offset - from + 8..).ok_or(EmbeddedError::Shape)?, &verifier.map(order));

    let (head, tail) = (region.get(..from), region.get(to..));
    let parts = [head.unwrap_or_default(), window, tail.unwrap_or_default()];
    let computed = hash(alg, parts, swapped).ok_or(EmbeddedError::Shape)?;
    let mut stored = [0; 4];
    for (w, bytes) in stored.iter_mut().zip(eck.as_chunks::<8>().0.iter().skip(1)) {
        *w = order(u64::from_le_bytes(*bytes));
    }
    if stored == computed { Ok(()) } else { Err(EmbeddedError::Mismatch { stored, computed }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checksum::{SaltTemplate, compute};
    use proptest::prelude::*;

    const ALGS: [Checksum; 4] =
        [Checksum::Label, Checksum::GangHeader, Checksum::Zilog, Checksum::Zilog2];

    /// The region as a big-endian machine would store it, computed on a copy by
    /// definition.
    fn compute_swapped(alg: Checksum, region: &mut [u8], at: usize, verifier: Words) {
        region[at..at + 8].copy_from_slice(&MAGIC.to_be_bytes());
        let put = |region: &mut [u8], words: Words| {
            for (i, w) in words.iter().enumerate() {
                region[at + 8 + 8 * i..][..8].copy_from_slice(&w.to_be_bytes());
            }
        };
        put(region, verifier);
        let sum = compute(alg, region, &SaltTemplate::default(), true);
        put(region, sum);
    }

    proptest! {
        #[test]
        fn round_trip_and_detect(sectors in 1usize..9, bit in 0usize..4096, seed: u8, w: [u64; 4], alg in 0usize..4) {
            let alg = ALGS[alg];
            let mut region: Vec<u8> = (0..sectors * 512).map(|i| (i as u8).wrapping_mul(seed)).collect();
            let at = eck_offset(alg, region.len()).unwrap();
            for swapped in [false, true] {
                if swapped {
                    compute_swapped(alg, &mut region, at, w);
                } else {
                    compute_embedded(alg, &mut region, at, w).unwrap();
                }
                prop_assert_eq!(is_swapped(&region, at), Some(swapped));
                prop_assert_eq!(verify_embedded(alg, &region, at, w), Ok(()));
                let mut other = w;
                other[0] ^= 1;
                prop_assert!(verify_embedded(alg, &region, at, other).is_err());
                let mut bad = region.clone();
                bad[bit / 8 % (sectors * 512)] ^= 1 << (bit % 8);
                prop_assert!(verify_embedded(alg, &bad, at, w).is_err());
            }
        }
    }

    #[test]
    fn odd_shapes_are_errors() {
        let mut short = [0u8; 39];
        assert_eq!(eck_offset(Checksum::Label, 39), None);
        assert_eq!(eck_offset(Checksum::Zilog2, 183), None);
        assert_eq!(
            compute_embedded(Checksum::Label, &mut short, 0, [0; 4]),
            Err(EmbeddedError::Shape)
        );
        let region = [0u8; 512];
        let verify = |alg, at| verify_embedded(alg, &region, at, [0; 4]);
        assert_eq!(verify(Checksum::Label, 473), Err(EmbeddedError::Shape));
        assert_eq!(verify(Checksum::Label, usize::MAX), Err(EmbeddedError::Shape));
        assert_eq!(verify(Checksum::Sha256, 472), Err(EmbeddedError::Shape));
        assert_eq!(verify(Checksum::Label, 472), Err(EmbeddedError::Magic));
    }
}
