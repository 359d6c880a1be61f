//! One client.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use base::rt::{Instant, Mutex, now};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, recv, sendmsg, shutdown};

use crate::handshake::{Agreed, Transmission};
use crate::inbox::{Arrived, Inbox};
use crate::outbox::{Outbox, slices};

/// What epoll reports next.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Interest {
    pub(crate) receive: bool,
    pub(crate) send: bool,
}

/// The result of [`Connection::flush`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flushed {
    /// All replies were sent, or another thread sends them.
    Done,
    /// The client must take some first.
    Stuck,
    /// The connection has ended.
    Ended,
}

/// A connection.
pub(crate) struct Connection {
    pub(crate) id: u64,
    pub(crate) socket: OwnedFd,
    pub(crate) label: String,
    pub(crate) begun: Instant,
    pub(crate) inbox: Mutex<Inbox>,
    pub(crate) agreed: Mutex<Agreed>,
    /// The chosen export.
    pub(crate) transmission: Mutex<Option<Arc<Transmission>>>,
    pub(crate) outbox: Mutex<Outbox>,
    pub(crate) interest: Mutex<Interest>,
    gone: AtomicBool,
}

impl Connection {
    pub(crate) fn new(id: u64, socket: OwnedFd, label: String) -> Connection {
        Connection {
            id,
            socket,
            label,
            begun: now(),
            inbox: Mutex::new(Inbox::new()),
            agreed: Mutex::default(),
            transmission: Mutex::new(None),
            outbox: Mutex::default(),
            interest: Mutex::default(),
            gone: AtomicBool::new(false),
        }
    }

    /// Bytes that arrived, without waiting.
    pub(crate) fn receive(&self, room: &mut [u8]) -> Arrived {
        loop {
            return match recv(&self.socket, &mut *room, RecvFlags::DONTWAIT) {
                Ok((_, 0)) => Arrived::End,
                Ok((_, n)) => Arrived::Bytes(n),
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => Arrived::Nothing,
                Err(_) => Arrived::End,
            };
        }
    }

    /// Sends replies, as far as the client takes them now.
    pub(crate) fn flush(&self) -> Flushed {
        let mut outbox = self.outbox.lock();
        if outbox.sending {
            return Flushed::Done;
        }
        loop {
            if outbox.is_empty() {
                return Flushed::Done;
            }
            outbox.sending = true;
            let front = outbox.front();
            drop(outbox);
            let sent = self.send(&front);
            outbox = self.outbox.lock();
            outbox.sending = false;
            match sent {
                Ok(n) => {
                    outbox.took(n);
                    outbox.stuck_since = None;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    outbox.stuck_since.get_or_insert_with(now);
                    return Flushed::Stuck;
                }
                Err(_) => {
                    outbox.clear();
                    return Flushed::Ended;
                }
            }
        }
    }

    fn send(&self, front: &(Vec<crate::outbox::ReplyPiece>, usize)) -> Result<usize, Errno> {
        let mut nothing = SendAncillaryBuffer::default();
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        sendmsg(self.socket.as_fd(), &slices(front), &mut nothing, flags)
    }

    /// Whether the replies and requests exceed `limit` bytes. Nothing is received then until
    /// [`Connection::may_resume`] says so.
    pub(crate) fn pause(&self, limit: usize) -> bool {
        let mut outbox = self.outbox.lock();
        outbox.paused = outbox.charged() > limit;
        outbox.paused
    }

    /// Whether receiving was paused and may go on: once for each pause.
    pub(crate) fn may_resume(&self, limit: usize) -> bool {
        let mut outbox = self.outbox.lock();
        let resumes = outbox.paused && outbox.charged() <= limit / 2;
        if resumes {
            outbox.paused = false;
        }
        resumes
    }

    /// Whether all requests were answered and the client wanted to end.
    pub(crate) fn has_ended(&self) -> bool {
        let outbox = self.outbox.lock();
        outbox.ending && outbox.running == 0 && outbox.is_empty()
    }

    /// Ends the connection; true for the first call.
    pub(crate) fn end(&self) -> bool {
        let first = !self.gone.swap(true, SeqCst);
        if first {
            let _closed = shutdown(&self.socket, Shutdown::Both);
            self.outbox.lock().clear();
        }
        first
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(SeqCst)
    }
}
