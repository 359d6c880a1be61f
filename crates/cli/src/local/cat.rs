//! Reading a file or volume at the speed of its devices: several threads read
//! ahead, and the pieces come out in order.
//!
//! # Invariants
//! At most [`WINDOW`] pieces are held, whatever the consumer's speed.
//!
//! Lock order: `Shared` is a leaf lock.

use std::collections::BTreeMap;
use std::io::Write;

use base::rt::{self, Condvar, Mutex};
use base::{Buf, Error, ErrorKind, ObjectId, Result};

use super::{Content, Source};
use crate::engine::{Extent, FileKind, FileSystem, Io, Volume};
use crate::ui::progress::Progress;

/// Bytes of one read.
const PIECE: u64 = 4 << 20;
/// Threads that read.
const READERS: usize = 8;
/// Pieces read or being read, ahead of the consumer.
const WINDOW: u64 = 16;

/// Something with bytes and holes.
pub(super) trait Bytes: Sync {
    /// Bytes in all.
    fn size(&self) -> u64;
    /// Up to `len` bytes from `offset`.
    fn read(&self, offset: u64, len: usize) -> Result<Vec<Buf>>;
    /// The run of data or nothing at `offset`.
    fn extent(&self, offset: u64) -> Result<Option<Extent>>;
}

/// A regular file.
pub(super) struct FileBytes<'a> {
    pub(super) fs: &'a FileSystem,
    pub(super) id: ObjectId,
    pub(super) size: u64,
}

impl Bytes for FileBytes<'_> {
    fn size(&self) -> u64 {
        self.size
    }
    fn read(&self, offset: u64, len: usize) -> Result<Vec<Buf>> {
        self.fs.read(self.id, offset, len, Io::WAIT)
    }
    fn extent(&self, offset: u64) -> Result<Option<Extent>> {
        self.fs.extent(self.id, offset, Io::WAIT)
    }
}

impl Bytes for Volume {
    fn size(&self) -> u64 {
        Volume::size(self)
    }
    fn read(&self, offset: u64, len: usize) -> Result<Vec<Buf>> {
        Volume::read(self, offset, len, Io::WAIT)
    }
    fn extent(&self, offset: u64) -> Result<Option<Extent>> {
        Volume::extent(self, offset, Io::WAIT)
    }
}

/// A piece: bytes, or a hole of some length.
pub(super) enum Piece {
    /// Bytes in order.
    Data(Vec<Buf>),
    /// So many zero bytes that are stored nowhere.
    Hole(u64),
}

#[derive(Default)]
struct State {
    /// Next piece to be read.
    next: u64,
    /// Next piece to be consumed.
    done: u64,
    ready: BTreeMap<u64, Result<Piece>>,
    stop: bool,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// Reads everything, ahead with several threads, and hands it to `consume` in
/// order with its offset.
///
/// # Errors
/// The first error of reading in the order of bytes, or of `consume`.
pub(super) fn stream(
    source: &dyn Bytes,
    consume: &mut (dyn FnMut(u64, Piece) -> Result<()> + Send),
) -> Result<()> {
    let pieces = source.size().div_ceil(PIECE);
    if pieces <= 1 {
        return if pieces == 0 { Ok(()) } else { consume(0, fetch(source, 0)?) };
    }
    let shared = Shared { state: Mutex::new(State::default()), changed: Condvar::new() };
    let result = Mutex::new(Ok(()));
    let consumer = Mutex::new(consume);
    let readers = READERS.min(usize::try_from(pieces).unwrap_or(READERS));
    rt::fan_out(readers + 1, |i| {
        let _end = End(&shared);
        if i > 0 {
            reader(source, pieces, &shared);
            return;
        }
        let end = drain(source, pieces, &shared, &mut **consumer.lock());
        shared.stop();
        *result.lock() = end;
    });
    result.into_inner()
}

impl Shared {
    fn stop(&self) {
        self.state.lock().stop = true;
        self.changed.notify_all();
    }
}

/// A thread of a stream: if it panics, the others do not wait for it.
struct End<'a>(&'a Shared);

impl Drop for End<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.stop();
        }
    }
}

fn reader(source: &dyn Bytes, pieces: u64, shared: &Shared) {
    loop {
        let mut state = shared.state.lock();
        while !state.stop && state.next < pieces && state.next - state.done >= WINDOW {
            shared.changed.wait(&mut state);
        }
        if state.stop || state.next >= pieces {
            return;
        }
        let piece = state.next;
        state.next += 1;
        drop(state);
        let got = fetch(source, piece * PIECE);
        shared.state.lock().ready.insert(piece, got);
        shared.changed.notify_all();
    }
}

/// Hands on what was read. It reads what no reader has begun, so it needs none.
fn drain(
    source: &dyn Bytes,
    pieces: u64,
    shared: &Shared,
    consume: &mut (dyn FnMut(u64, Piece) -> Result<()> + Send),
) -> Result<()> {
    for piece in 0..pieces {
        let got = next(source, piece, shared)?;
        shared.changed.notify_all();
        consume(piece * PIECE, got)?;
    }
    Ok(())
}

fn next(source: &dyn Bytes, piece: u64, shared: &Shared) -> Result<Piece> {
    let mut state = shared.state.lock();
    loop {
        if let Some(got) = state.ready.remove(&piece) {
            state.done = piece + 1;
            return got;
        }
        if state.stop {
            return Err(Error::bug("a reader of the stream died"));
        }
        if state.next == piece {
            (state.next, state.done) = (piece + 1, piece + 1);
            drop(state);
            return fetch(source, piece * PIECE);
        }
        shared.changed.wait(&mut state);
    }
}

/// The piece at `offset`: a hole if nothing of it is stored.
fn fetch(source: &dyn Bytes, offset: u64) -> Result<Piece> {
    let len = PIECE.min(source.size().saturating_sub(offset));
    let hole = source
        .extent(offset)?
        .is_some_and(|e| !e.data && e.offset.saturating_add(e.len) >= offset.saturating_add(len));
    if hole {
        return Ok(Piece::Hole(len));
    }
    let bufs = source.read(offset, usize::try_from(len).unwrap_or(usize::MAX))?;
    let got: u64 = bufs.iter().map(|b| b.len() as u64).sum();
    if got != len {
        return Err(Error::corrupt(format!("{got} bytes instead of {len} at {offset}")));
    }
    Ok(Piece::Data(bufs))
}

/// `cat`: bytes to standard output, holes skipped where that is a regular file.
pub(super) fn cat(source: &Source) -> Result<bool> {
    let file;
    let bytes: &dyn Bytes = match &source.content {
        Content::Volume(volume) => &**volume,
        Content::File(fs, id) => {
            let attrs = fs.attrs(*id, Io::WAIT)?;
            match attrs.kind {
                FileKind::Regular => {}
                FileKind::Dir => return Err(Error::new(ErrorKind::IsDir, "is a directory")),
                _ => return Err(Error::invalid("not a regular file")),
            }
            file = FileBytes { fs, id: *id, size: attrs.size };
            &file
        }
    };
    let zeros = Buf::zeros(1 << 20);
    let io = |e| Error::io("cannot write", e);
    // Past the line buffer, which would look at every byte.
    let mut out: std::fs::File =
        rustix::io::dup(std::io::stdout()).map_err(|e| io(e.into()))?.into();
    let mut progress = if std::io::IsTerminal::is_terminal(&out) {
        None
    } else {
        Some(Progress::new(String::from_utf8_lossy(&source.name), Some(bytes.size())))
    };
    stream(bytes, &mut |offset, piece| {
        match piece {
            Piece::Data(bufs) => bufs.iter().try_for_each(|b| out.write_all(b)).map_err(io)?,
            Piece::Hole(mut len) => {
                while len > 0 {
                    let n = len.min(zeros.len() as u64);
                    out.write_all(&zeros[..usize::try_from(n).unwrap_or(0)]).map_err(io)?;
                    len -= n;
                }
            }
        }
        if let Some(progress) = &mut progress {
            progress.at(offset + PIECE);
        }
        Ok(())
    })?;
    Ok(true)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A file made of its offsets, with one hole; it can fail somewhere.
    struct Fake {
        size: u64,
        hole: (u64, u64),
        fails_at: Option<u64>,
    }

    impl Bytes for Fake {
        fn size(&self) -> u64 {
            self.size
        }
        fn read(&self, offset: u64, len: usize) -> Result<Vec<Buf>> {
            if self.fails_at.is_some_and(|f| (offset..offset + len as u64).contains(&f)) {
                return Err(Error::checksum("bad block"));
            }
            let mut out = base::BufMut::zeroed(len);
            for (chunk, at) in out.chunks_mut(4096).zip((offset..).step_by(4096)) {
                if !(self.hole.0..self.hole.1).contains(&at) {
                    chunk.fill((at / 4096 % 251) as u8 + 1);
                }
            }
            let out = out.freeze();
            let half = len / 2;
            Ok(vec![out.slice(0..half), out.slice(half..len)])
        }
        fn extent(&self, offset: u64) -> Result<Option<Extent>> {
            let (start, end) = self.hole;
            let run = |offset, end: u64, data| Extent { offset, len: end - offset, data };
            Ok(match offset {
                o if o >= self.size => None,
                o if o < start => Some(run(0, start, true)),
                o if o < end => Some(run(start, end, false)),
                _ => Some(run(end, self.size, true)),
            })
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn pieces_come_in_order_and_complete(size in 0u64..(80 << 20), a in 0u64..20, b in 0u64..20) {
            let hole = (a.min(b) * PIECE, (a.max(b) * PIECE).min(size));
            let hole = if hole.0 < hole.1 { hole } else { (size, size) };
            let fake = Fake { size, hole, fails_at: None };
            let mut at = 0;
            let mut holes = 0;
            stream(&fake, &mut |offset, piece| {
                assert_eq!(offset, at);
                match piece {
                    Piece::Hole(n) => {
                        at += n;
                        holes += n;
                    }
                    Piece::Data(bufs) => {
                        let first = bufs.iter().find(|b| !b.is_empty()).unwrap()[0];
                        let zero = (hole.0..hole.1).contains(&offset);
                        assert_eq!(first, if zero { 0 } else { (offset / 4096 % 251) as u8 + 1 });
                        at += bufs.iter().map(|b| b.len() as u64).sum::<u64>();
                    }
                }
                Ok(())
            }).unwrap();
            prop_assert_eq!(at, size);
            prop_assert!(holes <= hole.1 - hole.0);
        }
    }

    #[test]
    fn errors_end_the_stream_at_their_place() {
        let fake = Fake { size: 64 << 20, hole: (64 << 20, 64 << 20), fails_at: Some(30 << 20) };
        let mut seen = 0;
        let e = stream(&fake, &mut |offset, _| {
            seen = offset + PIECE;
            Ok(())
        });
        assert_eq!(e.unwrap_err().kind(), ErrorKind::Checksum);
        assert_eq!(seen, 28 << 20);
        let fake = Fake { fails_at: None, ..fake };
        let e = stream(&fake, &mut |_, _| Err(Error::new(ErrorKind::NoSpace, "full")));
        assert_eq!(e.unwrap_err().kind(), ErrorKind::NoSpace);
    }
}
