//! lzjb (chapter 02 §7.1): groups of a copymap byte and eight items, each a
//! literal or a match of 3 to 66 bytes at most 1023 back.
//!
//! The match finder is the classic one: one candidate per hash of three bytes.

const MATCH_MIN: usize = 3;
const MATCH_MAX: usize = 66;
const DISTANCE_MAX: usize = 1023;
const HASH_SIZE: usize = 1024;

/// Fills at least the first `n` bytes of `dst`; false if the stream is bad.
pub(super) fn decompress(src: &[u8], dst: &mut [u8], n: usize) -> bool {
    decode(src, dst, n).is_some()
}

fn decode(src: &[u8], dst: &mut [u8], n: usize) -> Option<()> {
    let mut input = src.iter();
    let mut at = 0;
    while at < n {
        let map = *input.next()?;
        if map == 0 && dst.len() - at >= 8 {
            // Eight literals in a row, the common case of incompressible parts.
            let (eight, _) = input.as_slice().split_first_chunk::<8>()?;
            dst.get_mut(at..at + 8)?.copy_from_slice(eight);
            input.nth(7)?;
            at += 8;
            continue;
        }
        for bit in 0..8 {
            if at >= n {
                break;
            }
            let b0 = *input.next()?;
            if map >> bit & 1 == 0 {
                *dst.get_mut(at)? = b0;
                at += 1;
                continue;
            }
            let b1 = *input.next()?;
            let len = (usize::from(b0 >> 2) + MATCH_MIN).min(dst.len() - at);
            let distance = (usize::from(b0) << 8 | usize::from(b1)) & DISTANCE_MAX;
            copy_match(dst, at, distance, len)?;
            at += len;
        }
    }
    Some(())
}

/// Copies `len` bytes from `distance` bytes back, byte by byte where the ranges
/// overlap.
#[inline]
fn copy_match(dst: &mut [u8], at: usize, distance: usize, len: usize) -> Option<()> {
    let from = at.checked_sub(distance)?;
    if distance == 0 {
        return None;
    }
    if distance >= len {
        dst.copy_within(from..from + len, at);
    } else {
        let window = dst.get_mut(from..at + len)?;
        for i in distance..window.len() {
            window[i] = window[i - distance];
        }
    }
    Some(())
}

/// Compresses into `dst`; `None` if it does not fit.
pub(super) fn compress(src: &[u8], dst: &mut [u8]) -> Option<usize> {
    // Position plus one of the latest occurrence of each hash; zero is none.
    let mut table = [0u32; HASH_SIZE];
    let mut at = 0;
    let mut out = 0;
    while at < src.len() {
        let map_at = out;
        // A group is at most 17 bytes. Near the end it may be shorter, but a block that
        // is so close to its limit gains nothing.
        let group = dst.get_mut(map_at..map_at + 17)?;
        let mut map = 0;
        out += 1;
        for bit in 0..8 {
            let Some(rest) = src.get(at..).filter(|r| !r.is_empty()) else { break };
            let found = match rest {
                [b0, b1, b2, ..] if rest.len() >= MATCH_MAX => {
                    let mut h = usize::from(*b0) << 16 | usize::from(*b1) << 8 | usize::from(*b2);
                    h += h >> 9;
                    h += h >> 5;
                    let slot = &mut table[h % HASH_SIZE];
                    let candidate = std::mem::replace(slot, at as u32 + 1) as usize;
                    candidate
                        .checked_sub(1)
                        .filter(|c| at - c <= DISTANCE_MAX)
                        .map(|c| (at - c, match_length(src, c, at)))
                        .filter(|(_, len)| *len >= MATCH_MIN)
                }
                _ => None,
            };
            match found {
                Some((distance, len)) => {
                    map |= 1 << bit;
                    group[out - map_at] = ((len - MATCH_MIN) << 2) as u8 | (distance >> 8) as u8;
                    group[out - map_at + 1] = distance as u8;
                    out += 2;
                    at += len;
                }
                None => {
                    group[out - map_at] = rest[0];
                    out += 1;
                    at += 1;
                }
            }
        }
        group[0] = map;
    }
    Some(out)
}

/// Equal bytes at `a` and `b`, at most `MATCH_MAX`.
#[inline]
fn match_length(src: &[u8], a: usize, b: usize) -> usize {
    let end = src.len().min(b + MATCH_MAX);
    src[a..].iter().zip(&src[b..end]).take_while(|(x, y)| x == y).count()
}
