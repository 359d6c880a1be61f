//! `zfs rewrite`: an ioctl of an open file, and the call of it.
//!
//! # Theory
//! The command opens the file for writing and asks for one piece of it after another. So the
//! kernel checks permissions and finds the dataset, any user can rewrite the files that they
//! may write, and a command that ends has no work left behind. One request rewrites at most
//! what [`cenote::FileSystem::rewrite`] does in a call, so it occupies a thread of the mount
//! for a bounded time.
//!
//! # Format
//! The argument has 48 bytes, in the host's byte order: u64 words for the first byte, the byte
//! after the last one, and flags; the answer replaces them by the byte to go on with
//! ([`u64::MAX`]: the end was reached), and then the blocks and bytes that were rewritten and
//! the blocks that were skipped.

use std::os::fd::AsFd;

use base::Result;
use cenote::files::{Rewrite, RewriteSummary};
use fuse::{Data, Errno, IoctlArgs};

use super::write::{FOR_WRITING, stale};
use super::zfs::{FsResult, ZfsMount};

/// Bytes of the argument.
const SIZE: usize = 48;
/// The ioctl.
pub(super) const OPCODE: u32 = fuse::exchange_opcode(b'Z', 0x57, SIZE as u16);
const KEEP_BIRTH: u64 = 1;
const SKIP_SNAPSHOTS: u64 = 2;

fn word(bytes: &[u8], index: usize) -> Option<u64> {
    let at = index.checked_mul(8)?;
    bytes.get(at..)?.first_chunk::<8>().map(|b| u64::from_ne_bytes(*b))
}

fn encode(words: [u64; 6]) -> [u8; SIZE] {
    let mut out = [0; SIZE];
    out.chunks_exact_mut(8).zip(words).for_each(|(to, w)| to.copy_from_slice(&w.to_ne_bytes()));
    out
}

/// Rewrites a part of an open file, from byte `from` to byte `to` at most.
///
/// # Errors
/// The error number of the file system's refusal; `ENOTTY` if no dataset of Cenote has the
/// file.
pub fn rewrite_part(
    file: impl AsFd,
    from: u64,
    to: u64,
    how: Rewrite,
) -> std::io::Result<RewriteSummary> {
    let flags = if how.keep_birth { KEEP_BIRTH } else { 0 }
        | if how.skip_snapshots { SKIP_SNAPSHOTS } else { 0 };
    let mut argument = encode([from, to, flags, 0, 0, 0]);
    fuse::control(file, OPCODE, &mut argument)?;
    let answer = |i| word(&argument, i).unwrap_or(0);
    Ok(RewriteSummary {
        next: Some(answer(0)).filter(|next| *next != u64::MAX),
        blocks: answer(1),
        bytes: answer(2),
        skipped: answer(3),
    })
}

/// The range and the options of a request.
fn parse(input: &[u8]) -> Option<(std::ops::Range<u64>, Rewrite)> {
    let (from, to, flags) = (word(input, 0)?, word(input, 1)?, word(input, 2)?);
    if flags & !(KEEP_BIRTH | SKIP_SNAPSHOTS) != 0 || input.len() != SIZE {
        return None;
    }
    let how = Rewrite {
        keep_birth: flags & KEEP_BIRTH != 0,
        skip_snapshots: flags & SKIP_SNAPSHOTS != 0,
    };
    Some((from..to, how))
}

impl ZfsMount {
    /// Serves the ioctl.
    pub(super) fn rewrite(&self, args: &IoctlArgs<'_>) -> FsResult<(i32, Data)> {
        let id = self.changeable(args.node)?;
        // The kernel checked at `open` that the caller may write.
        if args.handle & FOR_WRITING == 0 {
            return Err(Errno::EBADF);
        }
        let (range, how) = parse(args.input).ok_or(Errno::EINVAL)?;
        let done: Result<RewriteSummary> = self.fs().rewrite(id, range, how);
        self.forget_blocks(args.node);
        let done = done.map_err(stale)?;
        let next = done.next.unwrap_or(u64::MAX);
        Ok((0, Data::copy_of(&encode([next, done.blocks, done.bytes, done.skipped, 0, 0]))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_parsed_and_hostile_ones_refused() {
        let plain = Rewrite::default();
        let both = Rewrite { keep_birth: true, skip_snapshots: true };
        assert_eq!(parse(&encode([7, 9, 0, 0, 0, 0])), Some((7..9, plain)));
        assert_eq!(parse(&encode([0, u64::MAX, 3, 1, 1, 1])), Some((0..u64::MAX, both)));
        assert_eq!(parse(&encode([0, 1, 4, 0, 0, 0])), None);
        for len in 0..SIZE {
            assert_eq!(parse(&encode([0, 1, 0, 0, 0, 0])[..len]), None);
        }
        assert_eq!(parse(&[0; SIZE + 1]), None);
    }
}
