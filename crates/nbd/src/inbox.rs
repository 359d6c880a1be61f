//! Received bytes, and the options and requests in them.
//!
//! # Theory
//! Headers are parsed from a buffer that one call of the operating system fills with many of
//! them. The payload of a write goes to a buffer of its own: first the part that came with the
//! header, then directly from the socket.
//!
//! # Invariants
//! * Memory is bounded by the buffer, [`OPTION_MAX`] and [`PAYLOAD_MAX`].
//! * What is not a header of the protocol ends the connection, because no later header can be
//!   found ([`Received::Broken`]).

use base::{Buf, BufMut};

use crate::wire::{
    EXTENDED_REQUEST, FIXED_NEWSTYLE, Fields, NO_ZEROES, OPTION_MAGIC, OPTION_MAX, PAYLOAD_MAX,
    REQUEST, RequestHeader,
};

/// Bytes that are received at a time at least.
const ROOM: usize = 128 << 10;
/// Bytes of an option's header.
const OPTION: usize = 16;

/// What the next bytes are.
#[derive(Debug)]
pub(crate) enum Received {
    /// The client's flags; whether it wants no zeros.
    Flags { no_zeroes: bool },
    /// An option.
    Option { option: u32, data: Vec<u8> },
    /// A request with its payload.
    Request { header: RequestHeader, payload: Option<Buf> },
    /// More bytes have to arrive first.
    Nothing,
    /// The client is gone, or does not follow the protocol.
    Broken,
}

/// What is expected next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InboxPhase {
    /// The client's flags.
    Flags,
    /// An option.
    Options,
    /// A request; whether its header is extended.
    Requests { extended: bool },
}

/// What a socket gave.
pub(crate) enum Arrived {
    /// So many bytes, at least one.
    Bytes(usize),
    /// None now.
    Nothing,
    /// None any more.
    End,
}

/// A write whose payload is being received.
struct Payload {
    header: RequestHeader,
    data: BufMut,
    filled: usize,
}

/// The received bytes of a connection.
pub(crate) struct Inbox {
    phase: InboxPhase,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    payload: Option<Payload>,
}

impl Inbox {
    pub(crate) fn new() -> Inbox {
        Inbox { phase: InboxPhase::Flags, buffer: Vec::new(), start: 0, end: 0, payload: None }
    }

    /// Whether bytes were received that are not yet parsed.
    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.end && self.payload.is_none()
    }

    /// The handshake ended.
    pub(crate) fn begin_requests(&mut self, extended: bool) {
        self.phase = InboxPhase::Requests { extended };
    }

    /// Whether a whole item is there.
    pub(crate) fn has_more(&self) -> bool {
        let held = self.end - self.start;
        match (&self.payload, self.phase) {
            (Some(_), _) => false,
            (None, InboxPhase::Flags) => held >= 4,
            (None, InboxPhase::Options) => held >= OPTION,
            (None, InboxPhase::Requests { extended }) => held >= header_size(extended),
        }
    }

    /// The next item. `recv` fills a slice with bytes of the socket, and does not wait.
    pub(crate) fn next(&mut self, mut recv: impl FnMut(&mut [u8]) -> Arrived) -> Received {
        loop {
            if let Some(payload) = &mut self.payload {
                if payload.filled < payload.data.len() {
                    match recv(&mut payload.data[payload.filled..]) {
                        Arrived::Bytes(n) => payload.filled += n,
                        Arrived::Nothing => return Received::Nothing,
                        Arrived::End => return Received::Broken,
                    }
                    continue;
                }
                if let Some(Payload { header, data, .. }) = self.payload.take() {
                    return Received::Request { header, payload: Some(data.freeze()) };
                }
            }
            match self.parse() {
                Some(Received::Nothing) => continue,
                Some(item) => return item,
                None => {}
            }
            match self.fill(&mut recv) {
                Arrived::Bytes(_) => {}
                Arrived::Nothing => {
                    // An idle client holds no buffer.
                    if self.start == self.end {
                        self.buffer = Vec::new();
                        (self.start, self.end) = (0, 0);
                    }
                    return Received::Nothing;
                }
                Arrived::End => return Received::Broken,
            }
        }
    }

    fn fill(&mut self, recv: &mut impl FnMut(&mut [u8]) -> Arrived) -> Arrived {
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.buffer.len() < self.end + ROOM / 2 {
            // Options are longer than a buffer of requests at most by their own length.
            self.buffer.resize(self.end + ROOM, 0);
        }
        let arrived = recv(&mut self.buffer[self.end..]);
        if let Arrived::Bytes(n) = arrived {
            self.end += n;
        }
        arrived
    }

    fn held(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Parses an item. `None`: more bytes are needed; `Nothing`: a payload is received next.
    fn parse(&mut self) -> Option<Received> {
        match self.phase {
            InboxPhase::Flags => {
                let flags = Fields(self.held()).u32()?;
                self.start += 4;
                let known = u32::from(FIXED_NEWSTYLE | NO_ZEROES);
                if flags & !known != 0 || flags & u32::from(FIXED_NEWSTYLE) == 0 {
                    return Some(Received::Broken);
                }
                self.phase = InboxPhase::Options;
                Some(Received::Flags { no_zeroes: flags & u32::from(NO_ZEROES) != 0 })
            }
            InboxPhase::Options => {
                let mut fields = Fields(self.held());
                let (magic, option, len) = (fields.u64()?, fields.u32()?, fields.u32()?);
                let len = usize::try_from(len).unwrap_or(usize::MAX);
                if magic != OPTION_MAGIC || len > OPTION_MAX {
                    return Some(Received::Broken);
                }
                let data = fields.bytes(len)?.to_vec();
                self.start += OPTION + len;
                Some(Received::Option { option, data })
            }
            InboxPhase::Requests { extended } => {
                let size = header_size(extended);
                let bytes = self.held().get(..size)?;
                let Some(header) = RequestHeader::parse(bytes, extended) else {
                    return Some(Received::Broken);
                };
                self.start += size;
                let len = header.payload(extended);
                if len == 0 {
                    return Some(Received::Request { header, payload: None });
                }
                if len > u64::from(PAYLOAD_MAX) {
                    return Some(Received::Broken);
                }
                let mut data = BufMut::alloc(len as usize);
                let filled = data.len().min(self.end - self.start);
                data[..filled].copy_from_slice(&self.buffer[self.start..self.start + filled]);
                self.start += filled;
                self.payload = Some(Payload { header, data, filled });
                Some(Received::Nothing)
            }
        }
    }
}

fn header_size(extended: bool) -> usize {
    if extended { EXTENDED_REQUEST } else { REQUEST }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{REQUEST_MAGIC, cmd};
    use proptest::prelude::*;

    /// Gives the bytes in pieces, then nothing, or the end.
    fn feed<'a>(bytes: &'a [u8], piece: usize, end: bool) -> impl FnMut(&mut [u8]) -> Arrived + 'a {
        let mut at = 0;
        move |room| {
            let n = (bytes.len() - at).min(piece).min(room.len());
            room[..n].copy_from_slice(&bytes[at..at + n]);
            at += n;
            match (n, end) {
                (0, true) => Arrived::End,
                (0, false) => Arrived::Nothing,
                _ => Arrived::Bytes(n),
            }
        }
    }

    fn request(command: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
        let mut out = REQUEST_MAGIC.to_be_bytes().to_vec();
        out.extend([0, 0]);
        out.extend(command.to_be_bytes());
        out.extend(cookie.to_be_bytes());
        out.extend(offset.to_be_bytes());
        out.extend(length.to_be_bytes());
        out
    }

    proptest! {
        #[test]
        fn no_bytes_panic_or_take_memory(
            bytes in prop::collection::vec(any::<u8>(), 0..600),
            piece in 1usize..700,
            phase in 0..4,
            good in any::<bool>(),
        ) {
            let mut inbox = Inbox::new();
            inbox.phase = match phase {
                0 => InboxPhase::Flags,
                1 => InboxPhase::Options,
                2 => InboxPhase::Requests { extended: false },
                _ => InboxPhase::Requests { extended: true },
            };
            let mut all = match (phase, good) {
                (1, true) => OPTION_MAGIC.to_be_bytes().to_vec(),
                (2, true) => REQUEST_MAGIC.to_be_bytes().to_vec(),
                (3, true) => crate::wire::EXTENDED_REQUEST_MAGIC.to_be_bytes().to_vec(),
                _ => Vec::new(),
            };
            all.extend(&bytes);
            let mut recv = feed(&all, piece, true);
            let mut items = 0;
            loop {
                match inbox.next(&mut recv) {
                    Received::Broken => break,
                    Received::Nothing => prop_assert!(false, "the end was not seen"),
                    _ => items += 1,
                }
                prop_assert!(items <= 200);
            }
            prop_assert!(inbox.buffer.len() <= 2 * ROOM + OPTION_MAX);
        }

        #[test]
        fn requests_are_found_however_they_are_cut(
            sizes in prop::collection::vec(0u32..5000, 1..20),
            piece in 1usize..9000,
        ) {
            let mut bytes = Vec::new();
            for (i, size) in sizes.iter().enumerate() {
                let command = if *size > 0 { cmd::WRITE } else { cmd::READ };
                bytes.extend(request(command, i as u64, 7, *size));
                bytes.extend(vec![i as u8; *size as usize]);
            }
            let mut inbox = Inbox::new();
            inbox.begin_requests(false);
            let mut recv = feed(&bytes, piece, false);
            for (i, size) in sizes.iter().enumerate() {
                let Received::Request { header, payload } = inbox.next(&mut recv) else {
                    panic!("a request is missing");
                };
                prop_assert_eq!((header.cookie, header.length), (i as u64, u64::from(*size)));
                let data = payload.map(|p| p.to_vec()).unwrap_or_default();
                prop_assert_eq!(data, vec![i as u8; *size as usize]);
            }
            prop_assert!(matches!(inbox.next(&mut recv), Received::Nothing));
            prop_assert!(inbox.buffer.is_empty(), "an idle client holds a buffer");
        }
    }

    #[test]
    fn what_is_no_protocol_ends_the_connection() {
        let broken = |phase, bytes: &[u8]| {
            let mut inbox = Inbox::new();
            inbox.phase = phase;
            matches!(inbox.next(feed(bytes, 99, false)), Received::Broken)
        };
        assert!(broken(InboxPhase::Flags, &[0, 0, 0, 0]), "not fixed newstyle");
        assert!(broken(InboxPhase::Flags, &[0, 0, 0, 9]), "unknown flag");
        assert!(broken(InboxPhase::Options, &[0; 16]));
        let mut long = OPTION_MAGIC.to_be_bytes().to_vec();
        long.extend([0, 0, 0, 7, 0, 2, 0, 0]);
        assert!(broken(InboxPhase::Options, &long), "an option of 128 KiB");
        let requests = InboxPhase::Requests { extended: false };
        assert!(broken(requests, &[0; 28]));
        assert!(broken(requests, &request(cmd::WRITE, 1, 0, PAYLOAD_MAX + 1)));
    }
}
