//! One client.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};

use base::rt::{Instant, Mutex, now};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, recv, sendmsg, shutdown};

use crate::handshake::{Agreed, Security, Transmission};
use crate::inbox::{Arrived, Inbox};
use crate::outbox::{Outbox, slices};
use crate::tls::{Pushed, Session, Tls};

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
    /// What the client must use.
    offered: Option<Tls>,
    tls: OnceLock<Session>,
    gone: AtomicBool,
}

impl Connection {
    pub(crate) fn new(id: u64, socket: OwnedFd, label: String, offered: Option<Tls>) -> Connection {
        let security = if offered.is_some() { Security::Required } else { Security::Plain };
        Connection {
            id,
            socket,
            label,
            begun: now(),
            inbox: Mutex::new(Inbox::new()),
            agreed: Mutex::new(Agreed::new(security, false)),
            transmission: Mutex::new(None),
            outbox: Mutex::default(),
            interest: Mutex::default(),
            offered,
            tls: OnceLock::new(),
            gone: AtomicBool::new(false),
        }
    }

    /// Begins TLS after the answer to the client's option; what was agreed before is
    /// forgotten. False if the connection must end: bytes came behind the option.
    pub(crate) fn start_tls(&self) -> bool {
        let quiet = self.inbox.lock().is_empty() && self.outbox.lock().is_empty();
        let Some(session) = self.offered.as_ref().filter(|_| quiet).and_then(Tls::begin) else {
            return false;
        };
        {
            let mut agreed = self.agreed.lock();
            *agreed = Agreed::new(Security::Secured, agreed.no_zeroes);
        }
        self.tls.set(session).is_ok()
    }

    /// Whether bytes are here that the socket does not report any more.
    pub(crate) fn has_plaintext(&self) -> bool {
        self.tls.get().is_some_and(Session::has_plaintext)
    }

    /// Bytes that arrived, without waiting.
    pub(crate) fn receive(&self, room: &mut [u8]) -> Arrived {
        if let Some(tls) = self.tls.get() {
            return tls.receive(&self.socket, room);
        }
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
                let Ok(pushed) = self.push() else { return Flushed::Ended };
                if pushed.moved || !pushed.left {
                    outbox.stuck_since = None;
                }
                if !pushed.left {
                    return Flushed::Done;
                }
                outbox.stuck_since.get_or_insert_with(now);
                return Flushed::Stuck;
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
        if let Some(tls) = self.tls.get() {
            return tls.send(&self.socket, &slices(front));
        }
        let mut nothing = SendAncillaryBuffer::default();
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        sendmsg(self.socket.as_fd(), &slices(front), &mut nothing, flags)
    }

    /// Moves encrypted replies that wait to the socket.
    fn push(&self) -> std::io::Result<Pushed> {
        self.tls.get().map_or_else(|| Ok(Pushed::default()), |tls| tls.push(&self.socket))
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
        let sent = || self.push().map_or(true, |pushed| !pushed.left);
        outbox.ending && outbox.running == 0 && outbox.is_empty() && sent()
    }

    /// Ends the connection; true for the first call.
    pub(crate) fn end(&self) -> bool {
        let first = !self.gone.swap(true, SeqCst);
        if first {
            if let Some(tls) = self.tls.get() {
                tls.close(&self.socket);
            }
            let _closed = shutdown(&self.socket, Shutdown::Both);
            self.outbox.lock().clear();
        }
        first
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(SeqCst)
    }
}
