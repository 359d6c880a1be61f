//! Reading ahead of one sequential reader.
//!
//! # Theory
//! Whoever reads a file through one handle tells its [`Stream`] about each read.
//! As long as reads go on roughly where the last ones ended (the kernel sends
//! several at once, in any order), the window ahead doubles up to a maximum, and
//! the blocks in it are read in the background. One read elsewhere closes the
//! window: random reads never read ahead.
//!
//! Where someone above keeps what was read (the kernel's page cache), blocks well
//! behind a sequential reader are dropped: they would be held twice, and their
//! buffers serve the blocks to come without a single new page.

use std::sync::Arc;

use base::rt::Mutex;

use crate::object::Object;

/// Reads this close to where the next one is expected still are in sequence.
const SLACK: u64 = 2 << 20;
/// Blocks stay this far behind the reader: the kernel has several requests under
/// way at once, and dropping what one of them still waits for would read it again.
const DROP_LAG: u64 = 16 << 20;
/// First and largest window, bytes.
const WINDOW_MIN: u64 = 512 << 10;
const WINDOW_MAX: u64 = 8 << 20;

#[derive(Default)]
struct State {
    /// Where the next read is expected.
    next: u64,
    /// Bytes read ahead, beyond `next`.
    window: u64,
    /// Everything below was asked for.
    ahead: u64,
    /// Everything below was dropped.
    behind: u64,
}

/// What a read sets off: byte ranges.
#[derive(Debug, Default, PartialEq, Eq)]
struct Plan {
    ahead: Option<(u64, u64)>,
    behind: Option<(u64, u64)>,
}

/// The history of one reader.
#[derive(Default)]
pub struct Stream(Mutex<State>);

impl Stream {
    /// A reader that has not read yet; one that starts at the beginning counts
    /// as sequential from its second read.
    pub fn new() -> Stream {
        Stream::default()
    }

    /// The reader has read (or asked for) these bytes of `object`; with `drop`,
    /// what lies well behind it leaves the cache.
    pub fn advance(&self, object: &Object, offset: u64, len: u64, drop: bool) {
        let plan = self.plan(offset, len);
        if let Some((from, to)) = plan.ahead {
            object.prefetch(from, to - from);
        }
        if let Some((from, to)) = plan.behind.filter(|_| drop) {
            object.forget(from, to - from);
        }
    }

    fn plan(&self, offset: u64, len: u64) -> Plan {
        let mut s = self.0.lock();
        let end = offset.saturating_add(len);
        // The first read of a file says nothing about the second.
        if s.next == 0 || offset.abs_diff(s.next) > SLACK {
            *s = State { next: end, window: 0, ahead: end, behind: offset };
            return Plan::default();
        }
        s.next = s.next.max(end);
        s.window = (s.window * 2).clamp(WINDOW_MIN, WINDOW_MAX);
        let mut plan = Plan::default();
        let target = s.next.saturating_add(s.window);
        // Ask in pieces worth the trouble.
        if target.saturating_sub(s.ahead) >= s.window / 4 {
            let from = s.ahead.max(s.next);
            s.ahead = target;
            plan.ahead = (from < target).then_some((from, target));
        }
        let done = s.next.saturating_sub(DROP_LAG);
        if done.saturating_sub(s.behind) >= WINDOW_MIN {
            plan.behind = Some((s.behind, done));
            s.behind = done;
        }
        plan
    }
}

/// Streams of one file system's files, as many as are read at a time: a file
/// that finds its place taken takes it over.
pub struct Streams([Mutex<(u64, Arc<Stream>)>; STREAMS]);

impl std::fmt::Debug for Streams {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Streams")
    }
}

/// Files whose readers are remembered.
const STREAMS: usize = 128;

impl Default for Streams {
    fn default() -> Self {
        Streams(std::array::from_fn(|_| Mutex::default()))
    }
}

impl Streams {
    /// Tells the file's stream about a read; `drop` as for [`Stream::advance`].
    pub fn advance(&self, object: &Object, offset: u64, len: u64, drop: bool) {
        if object.dnode().max_blkid == 0 {
            return;
        }
        let id = object.id().0;
        let stream = {
            let mut slot = self.0[id as usize % STREAMS].lock();
            if slot.0 != id {
                *slot = (id, Arc::default());
            }
            Arc::clone(&slot.1)
        };
        stream.advance(object, offset, len, drop);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequential_reads_open_the_window_and_never_ask_twice() {
        let stream = Stream::new();
        let (mut asked, mut dropped) = (0u64, 0u64);
        for i in 0..400u64 {
            let plan = stream.plan(i << 17, 1 << 17);
            if let Some((from, to)) = plan.ahead {
                assert!(from >= asked, "asked for {from} again");
                assert!(to - (i << 17) <= WINDOW_MAX + (1 << 17));
                asked = to;
            }
            if let Some((from, to)) = plan.behind {
                assert_eq!(from, dropped, "every byte is dropped once");
                assert!(to + DROP_LAG <= (i + 1) << 17, "dropped what may still be read");
                dropped = to;
            }
        }
        assert!(asked >= 400 << 17, "only {asked} bytes were asked for");
        assert!(dropped >= (400 << 17) - DROP_LAG - WINDOW_MIN);
    }

    #[test]
    fn random_reads_never_read_ahead() {
        let stream = Stream::new();
        for i in 1..100u64 {
            let offset = (i * 7_919 % 100) << 23;
            assert_eq!(stream.plan(offset, 8192), Plan::default());
        }
    }
}
