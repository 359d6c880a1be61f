//! Replies that wait until the client takes them.

use std::collections::VecDeque;
use std::io::IoSlice;

use base::Buf;
use base::rt::Instant;

/// Slices in one call of the operating system.
const SLICES: usize = 64;

/// A part of a reply.
#[derive(Clone, Debug)]
pub(crate) enum ReplyPiece {
    /// A header.
    Head(Vec<u8>),
    /// A slice of a cached block.
    Data(Buf),
}

impl ReplyPiece {
    fn bytes(&self) -> &[u8] {
        match self {
            ReplyPiece::Head(bytes) => bytes,
            ReplyPiece::Data(buf) => buf,
        }
    }
}

/// The replies of a connection, and what it is charged for.
#[derive(Default)]
pub(crate) struct Outbox {
    queue: VecDeque<ReplyPiece>,
    /// Bytes of the first piece that were sent.
    sent: usize,
    /// Bytes in the queue.
    queued: usize,
    /// A thread is sending.
    pub(crate) sending: bool,
    /// Requests that are being performed, and their bytes.
    pub(crate) running: usize,
    pub(crate) running_bytes: usize,
    /// Nothing is received until the client has taken replies.
    pub(crate) paused: bool,
    /// The connection ends when the last reply was sent.
    pub(crate) ending: bool,
    /// Since when the client has taken nothing.
    pub(crate) stuck_since: Option<Instant>,
}

impl Outbox {
    pub(crate) fn push(&mut self, pieces: Vec<ReplyPiece>) {
        for piece in pieces {
            if !piece.bytes().is_empty() {
                self.queued += piece.bytes().len();
                self.queue.push_back(piece);
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Bytes that are charged to the connection.
    pub(crate) fn charged(&self) -> usize {
        self.queued + self.running_bytes
    }

    pub(crate) fn queued(&self) -> usize {
        self.queued
    }

    /// The pieces to be sent next; the first one from its unsent byte on.
    pub(crate) fn front(&self) -> (Vec<ReplyPiece>, usize) {
        (self.queue.iter().take(SLICES).cloned().collect(), self.sent)
    }

    /// So many bytes were sent.
    pub(crate) fn took(&mut self, mut n: usize) {
        self.queued = self.queued.saturating_sub(n);
        n += self.sent;
        while let Some(first) = self.queue.front() {
            let len = first.bytes().len();
            if len > n {
                break;
            }
            n -= len;
            self.queue.pop_front();
        }
        self.sent = n;
    }

    /// Drops all replies: the client is gone.
    pub(crate) fn clear(&mut self) {
        self.queue.clear();
        (self.queued, self.sent) = (0, 0);
    }
}

/// The slices of [`Outbox::front`].
pub(crate) fn slices(front: &(Vec<ReplyPiece>, usize)) -> Vec<IoSlice<'_>> {
    front
        .0
        .iter()
        .enumerate()
        .map(|(i, piece)| {
            let bytes = piece.bytes();
            IoSlice::new(if i == 0 { bytes.get(front.1..).unwrap_or_default() } else { bytes })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn all_bytes_are_sent_in_order(
            parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 0..90),
            steps in prop::collection::vec(1usize..400, 1..200),
        ) {
            let mut outbox = Outbox::default();
            let wanted: Vec<u8> = parts.concat();
            outbox.push(parts.into_iter().map(ReplyPiece::Head).collect());
            let mut seen: Vec<u8> = Vec::new();
            for step in steps.into_iter().cycle() {
                if outbox.is_empty() {
                    break;
                }
                prop_assert_eq!(outbox.queued(), wanted.len() - seen.len());
                let front = outbox.front();
                let bytes: Vec<u8> = slices(&front).iter().flat_map(|s| s.to_vec()).collect();
                let n = step.min(bytes.len());
                seen.extend(&bytes[..n]);
                outbox.took(n);
            }
            prop_assert_eq!(seen, wanted);
            prop_assert_eq!(outbox.charged(), 0);
        }
    }
}
