//! Overwritten files in the simulation of intent logs: the write from which each byte
//! comes.
//!
//! # Theory
//! Writes of a file are numbered, and the position of each follows from its number. The
//! value of a byte identifies its write. After a crash each byte is from the last
//! acknowledged write to it, or from a later one. Records that carry the content at the
//! time of their commit may bring bytes of later writes early, even if the log has lost
//! these, but only bytes in the ranges of the records. So if a byte in the range of only
//! one write is from that write, all earlier writes are there, too, and so is that write up
//! to this byte. The rest of it may be missing: the log cuts the data of a write where a log
//! block is full, and the crash may have left the first block without the second. Whole
//! blocks (`logbias=throughput`, and large writes) cover more than the range of their write.

use dmu::Io;
use zpl::FileSystem;

/// The attribute.
pub(crate) const NAME: &[u8] = b"user.count";
/// Bytes of a file.
const SIZE: u64 = 96 << 10;

fn mix(seed: u64, thread: u64, version: u64) -> u64 {
    let x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ thread << 32 ^ version;
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb) >> 16
}

/// Writes of a file at most.
const WRITES: u64 = 14;

/// Whether a thread's writes are small: their data is in the log.
fn is_small(thread: u64) -> bool {
    thread.is_multiple_of(2)
}

/// The position of a write, and its length.
pub(crate) fn range(seed: u64, thread: u64, version: u64) -> (u64, u64) {
    let r = mix(seed, thread, version);
    let most = if is_small(thread) { 7000 } else { 60_000 };
    let len = 1 + (r >> 20) % most;
    (r % (SIZE - len), len)
}

fn noise(at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9) >> 9) as u8 | 0x80
}

/// A byte of a write.
pub(crate) fn byte(at: u64, version: u64) -> u8 {
    noise(at) ^ (version as u8 & 0x7f)
}

/// The attribute's value; a large one is stored in a hidden directory in any case.
pub(crate) fn value(count: u64) -> Vec<u8> {
    let mut out = count.to_le_bytes().to_vec();
    out.resize(if count % 4 == 3 { 20_000 } else { 40 }, count as u8);
    out
}

/// For each byte of a thread's file the number of its write, and that of the attribute; 0:
/// none.
pub(crate) fn read_back(fs: &FileSystem, seed: u64, thread: u64) -> Result<(Vec<u8>, u64), String> {
    let name = format!("over-{thread}");
    let fail = |e: base::Error| format!("{name}: {e}");
    let file = fs.lookup(fs.root(), name.as_bytes(), Io::WAIT).map_err(fail)?;
    let size = fs.attrs(file.id, Io::WAIT).map_err(fail)?.size;
    let mut found = Vec::with_capacity(size as usize);
    for piece in fs.read(file.id, 0, size as usize, Io::WAIT).map_err(fail)? {
        found.extend_from_slice(&piece);
    }
    for (at, byte) in found.iter_mut().enumerate() {
        let version = if *byte == 0 { 0 } else { *byte ^ noise(at as u64) };
        let (from, len) = range(seed, thread, u64::from(version));
        if version != 0 && !(from..from + len).contains(&(at as u64)) {
            return Err(format!("{name}: byte {at} is of write {version}, which is elsewhere"));
        }
        *byte = version;
    }
    let bytes = fs.get_xattr(file.id, NAME, Io::WAIT).map_err(fail)?;
    let count = match &bytes {
        None => 0,
        Some(bytes) => {
            let count = bytes.first_chunk().map_or(0, |c| u64::from_le_bytes(*c));
            if *bytes != value(count) {
                return Err(format!("{name}: the attribute is not of change {count}"));
            }
            count
        }
    };
    Ok((found, count))
}

/// Whether the first `acknowledged` writes are there, and all writes before the last one that
/// certainly began, and that one up to the last of its bytes that are only its own. `blocks`:
/// the log may also have whole blocks of small writes.
pub(crate) fn kept(
    found: &[u8],
    seed: u64,
    thread: u64,
    acknowledged: u64,
    blocks: bool,
) -> Result<(), String> {
    let mut whole = acknowledged;
    // The last write that began without an acknowledgement, and the end of what is there.
    let mut begun = (0, 0);
    if !blocks && is_small(thread) {
        let mut about = vec![0u8; SIZE as usize];
        for version in 1..=WRITES {
            let (at, len) = range(seed, thread, version);
            about[at as usize..(at + len) as usize].iter_mut().for_each(|n| *n += 1);
        }
        let alone = found.iter().zip(&about).enumerate().filter(|(_, (_, n))| **n == 1);
        begun = alone.map(|(at, (v, _))| (u64::from(*v), at + 1)).fold(begun, Ord::max);
        whole = whole.max(begun.0.saturating_sub(1));
    }
    let mut wanted = vec![0u8; SIZE as usize];
    for version in 1..=whole {
        let (at, len) = range(seed, thread, version);
        wanted[at as usize..(at + len) as usize].fill(version as u8);
    }
    if begun.0 > whole {
        wanted[range(seed, thread, begun.0).0 as usize..begun.1].fill(begun.0 as u8);
    }
    for (at, wanted) in wanted.iter().enumerate() {
        let has = found.get(at).copied().unwrap_or(0);
        if has < *wanted {
            return Err(format!(
                "thread {thread}, byte {at} of the file that is written over: {has}, not {wanted}; \
                 {acknowledged} writes were acknowledged, {whole} are there, {} began",
                begun.0
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_or_out_of_order_is_found() {
        let state = |seed, versions: &[u64]| {
            let mut out = vec![0u8; SIZE as usize];
            for v in versions {
                let (at, len) = range(seed, 0, *v);
                out[at as usize..(at + len) as usize].fill(*v as u8);
            }
            out
        };
        let kept = |seed, there: &[u64], acknowledged, blocks| {
            super::kept(&state(seed, there), seed, 0, acknowledged, blocks)
        };
        for seed in 0..100 {
            assert!(kept(seed, &[1, 2, 3], 2, false).is_ok());
            assert!(kept(seed, &[1, 3], 1, true).is_ok());
        }
        assert!(kept(1, &[1], 2, false).is_err());
        // Story: the log cut the data of write 2 where a log block of 4 KiB was full, and the
        // crash lost the second block. The write was not acknowledged, but it was counted as
        // one that is there.
        let (from, len) = range(1, 0, 2);
        let part = |bytes: std::ops::Range<u64>| {
            let mut found = state(1, &[1]);
            found[bytes.start as usize..bytes.end as usize].fill(2);
            super::kept(&found, 1, 0, 1, false)
        };
        assert!(part(from..from + 3720).is_ok());
        assert!(part(from + 3720..from + len).is_err(), "the second part without the first");
        // Write 2 is missing, which is detected unless all bytes of 3 are also in other
        // writes.
        let shows = |seed: &u64| kept(*seed, &[1, 3], 1, false).is_err();
        assert!(shows(&1) && (0..100).filter(shows).count() > 80);
    }
}
