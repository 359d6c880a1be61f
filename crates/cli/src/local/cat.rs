//! Reading a file or volume at the speed of its devices: several threads read ahead, and the
//! pieces are delivered in order.
//!
//! # Invariants
//! * At most [`WINDOW`] pieces are held, however slow the consumer is.
//! * The thread that finds a piece adds it to the ready ones, as bytes or as an error. A hole
//!   is one piece, so a sparse file takes little time.
//!
//! Lock order: `finder`, `state`.

use std::collections::BTreeMap;
use std::io::Write;

use base::rt::{self, Condvar, Mutex, MutexGuard};
use base::{Buf, Error, ErrorKind, ObjectId, Result};
use cenote::files::FileType as FileKind;
use cenote::{Extent, FileSystem, Io, Volume};
use ui::progress::Progress;

use super::{Operand, OperandTarget};

/// Bytes of one read.
const PIECE: u64 = 4 << 20;
/// A shorter hole is read as data.
const HOLE_LEAST: u64 = PIECE / 4;
/// Number of reading threads.
const READERS: usize = 8;
/// Pieces read or being read, ahead of the consumer.
const WINDOW: u64 = 16;

/// A sequence of bytes with holes.
pub(super) trait Bytes: Sync {
    /// Length in bytes.
    fn size(&self) -> u64;
    /// Up to `len` bytes from `offset`.
    fn read(&self, offset: u64, len: usize) -> Result<Vec<Buf>>;
    /// The run of data or hole at `offset`.
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
    /// A number of zero bytes that are not stored.
    Hole(u64),
}

/// The range of a piece.
#[derive(Clone, Copy)]
struct PieceRange {
    offset: u64,
    len: u64,
    data: bool,
}

/// Divides the source into pieces, in order; a hole is one piece, however long.
struct Finder<'a> {
    source: &'a dyn Bytes,
    at: u64,
    /// The run that contains `at`: its end, and whether it is data.
    run: (u64, bool),
}

impl<'a> Finder<'a> {
    fn new(source: &'a dyn Bytes) -> Finder<'a> {
        Finder { source, at: 0, run: (0, false) }
    }

    fn next(&mut self) -> Result<Option<PieceRange>> {
        let (offset, size) = (self.at, self.source.size());
        if offset >= size {
            return Ok(None);
        }
        if offset >= self.run.0 {
            let extent = self.source.extent(offset)?;
            self.run = extent.map_or((size, true), |e| {
                (e.offset.saturating_add(e.len).clamp(offset + 1, size), e.data)
            });
        }
        let (end, data) = self.run;
        let data = data || end - offset < HOLE_LEAST;
        let of_piece = (offset / PIECE + 1).saturating_mul(PIECE).min(size);
        self.at = if data { of_piece } else { end };
        Ok(Some(PieceRange { offset, len: self.at - offset, data }))
    }
}

#[derive(Default)]
struct StreamState {
    /// Pieces found.
    found: u64,
    /// Pieces consumed.
    done: u64,
    ready: BTreeMap<u64, Result<(u64, Piece)>>,
    /// No further piece follows: the end, an error, or the consumer stopped.
    stop: bool,
    /// A thread panicked, and its piece may be missing.
    broken: bool,
}

struct StreamShared<'a> {
    finder: Mutex<Finder<'a>>,
    state: Mutex<StreamState>,
    changed: Condvar,
}

/// Reads everything ahead with several threads, and passes it to `consume` in order, with its
/// offset.
///
/// # Errors
/// The first error of reading, in the order of offsets, or of `consume`.
pub(super) fn stream(
    source: &dyn Bytes,
    consume: &mut (dyn FnMut(u64, Piece) -> Result<()> + Send),
) -> Result<()> {
    let mut finder = Finder::new(source);
    if source.size() <= PIECE {
        while let Some(place) = finder.next()? {
            consume(place.offset, fetch(source, place)?)?;
        }
        return Ok(());
    }
    let (finder, state) = (Mutex::new(finder), Mutex::new(StreamState::default()));
    let shared = StreamShared { finder, state, changed: Condvar::new() };
    let result = Mutex::new(Ok(()));
    let consumer = Mutex::new(consume);
    rt::fan_out(READERS + 1, |i| {
        let _end = StopOnPanic(&shared);
        if i > 0 {
            shared.read_ahead(source);
            return;
        }
        let end = shared.drain(source, &mut **consumer.lock());
        shared.stop();
        *result.lock() = end;
    });
    result.into_inner()
}

/// Guards a thread of a stream: if it panics, the others do not wait for it.
struct StopOnPanic<'a>(&'a StreamShared<'a>);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.state.lock().broken = true;
            self.0.stop();
        }
    }
}

impl StreamShared<'_> {
    fn stop(&self) {
        self.state.lock().stop = true;
        self.changed.notify_all();
    }

    fn read_ahead(&self, source: &dyn Bytes) {
        loop {
            // Held while the window is full: other threads could not find a piece either.
            let finder = self.finder.lock();
            let mut state = self.state.lock();
            while !state.stop && state.found - state.done >= WINDOW {
                self.changed.wait(&mut state);
            }
            if state.stop {
                return;
            }
            drop(state);
            self.read_one(source, finder);
        }
    }

    /// Finds the next piece and reads it.
    fn read_one(&self, source: &dyn Bytes, mut finder: MutexGuard<'_, Finder<'_>>) {
        let place = finder.next();
        let mut state = self.state.lock();
        let number = state.found;
        let got = match place {
            Ok(Some(place)) => {
                state.found += 1;
                drop((state, finder));
                fetch(source, place).map(|piece| (place.offset, piece))
            }
            end => {
                // An error is delivered in order, after the pieces before it.
                state.stop = true;
                let Err(e) = end else {
                    drop(state);
                    self.changed.notify_all();
                    return;
                };
                state.found += 1;
                drop((state, finder));
                Err(e)
            }
        };
        self.state.lock().ready.insert(number, got);
        self.changed.notify_all();
    }

    /// Delivers the pieces in order. A piece that no reader is about to find is read here.
    fn drain(
        &self,
        source: &dyn Bytes,
        consume: &mut (dyn FnMut(u64, Piece) -> Result<()> + Send),
    ) -> Result<()> {
        loop {
            let mut state = self.state.lock();
            let number = state.done;
            if let Some(got) = state.ready.remove(&number) {
                state.done += 1;
                drop(state);
                self.changed.notify_all();
                let (offset, piece) = got?;
                consume(offset, piece)?;
            } else if state.broken {
                return Err(Error::bug("a thread of the stream died"));
            } else if state.found > number {
                self.changed.wait(&mut state);
            } else if state.stop {
                return Ok(());
            } else {
                drop(state);
                self.help(source, number);
            }
        }
    }

    /// All pieces found were consumed: finds and reads the next one, unless a reader is doing
    /// so.
    fn help(&self, source: &dyn Bytes, number: u64) {
        if let Some(finder) = self.finder.try_lock() {
            if !self.state.lock().stop {
                self.read_one(source, finder);
            }
            return;
        }
        let mut state = self.state.lock();
        while state.found == number && !state.stop {
            self.changed.wait(&mut state);
        }
    }
}

/// The bytes of a piece, if it has any.
fn fetch(source: &dyn Bytes, place: PieceRange) -> Result<Piece> {
    let PieceRange { offset, len, data } = place;
    if !data {
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
pub(super) fn cat(source: &Operand) -> Result<bool> {
    let file;
    let bytes: &dyn Bytes = match &source.content {
        OperandTarget::Volume(volume) => &**volume,
        OperandTarget::File(fs, id) => {
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
    // Bypasses the line buffer, which would scan every byte.
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

    /// A file whose bytes are its offsets, with one hole; reads can fail at one offset.
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

    /// A copy of the golden pools once took an hour: for a file of 1 TB without data, every
    /// piece of 4 MiB was passed from thread to thread.
    #[test]
    fn a_hole_is_one_piece_however_long() {
        let (size, tail) = (1 << 60, 9 << 20);
        let fake = Fake { size, hole: (0, size - tail), fails_at: None };
        let mut pieces = Vec::new();
        stream(&fake, &mut |offset, piece| {
            let len = match piece {
                Piece::Hole(n) => n,
                Piece::Data(bufs) => bufs.iter().map(|b| b.len() as u64).sum(),
            };
            pieces.push((offset, len));
            Ok(())
        })
        .unwrap();
        assert_eq!(pieces[0], (0, size - tail));
        assert_eq!(pieces.iter().map(|p| p.1).sum::<u64>(), size);
        assert_eq!(pieces.len(), 4);
    }

    #[test]
    fn a_reader_that_dies_ends_the_stream() {
        struct PanickingBytes(Fake);
        impl Bytes for PanickingBytes {
            fn size(&self) -> u64 {
                self.0.size()
            }
            fn read(&self, offset: u64, len: usize) -> Result<Vec<Buf>> {
                if offset == 40 << 20 {
                    std::panic::resume_unwind(Box::new("planted"));
                }
                self.0.read(offset, len)
            }
            fn extent(&self, offset: u64) -> Result<Option<Extent>> {
                self.0.extent(offset)
            }
        }
        let fake =
            PanickingBytes(Fake { size: 64 << 20, hole: (64 << 20, 64 << 20), fails_at: None });
        let run = std::panic::AssertUnwindSafe(|| stream(&fake, &mut |_, _| Ok(())));
        assert!(std::panic::catch_unwind(run).is_err());
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
