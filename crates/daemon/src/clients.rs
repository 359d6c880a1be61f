//! Connections of clients: their number, and the memory of requests that have not arrived
//! completely.
//!
//! # Theory
//! A frame announces its length before its bytes arrive, and a client may never send them. So
//! the buffer grows as bytes arrive, by at most [`STEP`] beyond what has arrived. The bytes of
//! unfinished requests of all connections are counted ([`Clients`]), except the first [`SMALL`]
//! bytes of each. A request that exceeds the limit is refused and its connection closed. Once a
//! request has begun, the rest must arrive within [`REQUEST_TIMEOUT`].
//!
//! # Invariants
//! * At most `max` connections of a socket exist. For one more, the connection that has been idle
//!   longest is closed; if none is idle, the new one is refused.
//! * At most [`BYTES_MAX`] + `max` * `SMALL` bytes of unfinished requests are in
//!   memory. They are counted until the request is decoded, and freed with it.
//!
//! Lock order: `Clients::list` is a leaf lock.

use std::collections::BTreeMap;
use std::io::Read;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::time::Duration;

use base::rt::{self, Instant, Mutex};
use base::{Error, ErrorKind, Result};
use proto::{REQUEST_MAX, decode};
use serde::de::DeserializeOwned;

/// The owner's connections at one time.
pub(super) const CLIENTS_MAX: usize = 256;
/// Bytes of unfinished requests, summed over all connections.
const BYTES_MAX: usize = 32 << 20;
/// Bytes of an unfinished request that are not counted.
const SMALL: usize = 64 << 10;
/// Bytes by which a buffer grows.
const STEP: usize = 64 << 10;
/// Time limit for a request, from its first byte to its last.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

struct KnownConnection {
    stream: Weak<UnixStream>,
    busy: Arc<AtomicBool>,
    idle_since: Instant,
}

/// All connections of a socket.
pub(super) struct Clients {
    max: usize,
    list: Mutex<(u64, BTreeMap<u64, KnownConnection>)>,
    bytes: AtomicUsize,
}

/// A counted connection; dropping it ends the count.
pub(super) struct Connection {
    clients: Arc<Clients>,
    id: u64,
    busy: Arc<AtomicBool>,
}

impl Clients {
    /// None yet, and at most so many at a time.
    pub(super) fn new(max: usize) -> Clients {
        Clients { max, list: Mutex::default(), bytes: AtomicUsize::new(0) }
    }

    /// Counts a new connection; `None` if there are too many and none of them is idle.
    pub(super) fn admit(self: &Arc<Self>, stream: &Arc<UnixStream>) -> Option<Connection> {
        let mut list = self.list.lock();
        if list.1.len() >= self.max {
            let idle = list.1.iter().filter(|(_, k)| !k.busy.load(SeqCst));
            let (&id, _) = idle.min_by_key(|(id, k)| (k.idle_since, **id))?;
            if let Some(stream) = list.1.remove(&id).and_then(|k| k.stream.upgrade()) {
                let _gone_already = stream.shutdown(Shutdown::Both);
            }
        }
        list.0 += 1;
        let (id, busy) = (list.0, Arc::new(AtomicBool::new(false)));
        let known = KnownConnection {
            stream: Arc::downgrade(stream),
            busy: Arc::clone(&busy),
            idle_since: rt::now(),
        };
        list.1.insert(id, known);
        Some(Connection { clients: Arc::clone(self), id, busy })
    }

    fn take(&self, bytes: usize) -> bool {
        let before = self.bytes.fetch_add(bytes, SeqCst);
        if before + bytes > BYTES_MAX {
            self.bytes.fetch_sub(bytes, SeqCst);
            return false;
        }
        true
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.clients.list.lock().1.remove(&self.id);
    }
}

/// Marks a connection as busy: it has a request and is not idle.
pub(super) struct BusyGuard<'a>(&'a Connection);

impl Connection {
    /// Marks the connection as busy while a request is served.
    pub(super) fn busy(&self) -> BusyGuard<'_> {
        self.busy.store(true, SeqCst);
        BusyGuard(self)
    }
}

impl Drop for BusyGuard<'_> {
    fn drop(&mut self) {
        if let Some(known) = self.0.clients.list.lock().1.get_mut(&self.0.id) {
            known.idle_since = rt::now();
        }
        self.0.busy.store(false, SeqCst);
    }
}

/// Bytes of an unfinished request, subtracted from the sum when dropped.
struct CountedBytes<'a> {
    clients: &'a Clients,
    bytes: usize,
}

impl Drop for CountedBytes<'_> {
    fn drop(&mut self) {
        self.clients.bytes.fetch_sub(self.bytes, SeqCst);
    }
}

/// Receives a client's messages.
pub(super) struct Inbox<'a> {
    stream: &'a UnixStream,
    client: &'a Connection,
}

impl<'a> Inbox<'a> {
    /// Messages of one connection.
    pub(super) fn new(stream: &'a UnixStream, client: &'a Connection) -> Inbox<'a> {
        Inbox { stream, client }
    }

    /// The next message, which may take the given time to begin; `None` if the client closed
    /// the connection.
    ///
    /// # Errors
    /// `Limit` for a message that is too long or exceeds the memory limit, `Io` for one that is
    /// not completed in time, `Corrupt` for bytes that are not a message.
    pub(super) fn receive<T: DeserializeOwned>(
        &mut self,
        to_begin: Option<Duration>,
    ) -> Result<Option<T>> {
        let mut head = [0u8; 4];
        self.wait_at_most(to_begin)?;
        if self.read(&mut head[..1])? == 0 {
            return Ok(None);
        }
        let begin = rt::now();
        self.fill(&mut head[1..], begin)?;
        let len = usize::try_from(u32::from_le_bytes(head)).unwrap_or(usize::MAX);
        if len > REQUEST_MAX {
            return Err(Error::limit(format!("a request of {len} bytes is too long")));
        }
        let mut counted = CountedBytes { clients: &self.client.clients, bytes: 0 };
        let mut body = Vec::new();
        while body.len() < len {
            let more = (len - body.len()).min(STEP);
            if body.len() + more > SMALL {
                if !counted.clients.take(more) {
                    return Err(Error::limit("too much is asked for at once"));
                }
                counted.bytes += more;
            }
            let at = body.len();
            body.reserve_exact(more);
            body.resize(at + more, 0);
            self.fill(&mut body[at..], begin)?;
        }
        decode(&body).map(Some)
    }

    fn wait_at_most(&self, time: Option<Duration>) -> Result<()> {
        self.stream.set_read_timeout(time).map_err(|e| Error::io("no timeout", e))
    }

    /// Reads some bytes; 0 if the client closed the connection.
    fn read(&self, out: &mut [u8]) -> Result<usize> {
        let mut stream = self.stream;
        loop {
            match stream.read(out) {
                Ok(n) => return Ok(n),
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => return Ok(0),
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                    return Err(Error::new(ErrorKind::Io, "a request stays unfinished"));
                }
                Err(e) => return Err(Error::io("cannot receive", e)),
            }
        }
    }

    fn fill(&self, out: &mut [u8], begin: Instant) -> Result<()> {
        let mut done = 0;
        while done < out.len() {
            let left = REQUEST_TIMEOUT.saturating_sub(begin.elapsed());
            if left.is_zero() {
                return Err(Error::new(ErrorKind::Io, "a request stays unfinished"));
            }
            self.wait_at_most(Some(left))?;
            match self.read(&mut out[done..])? {
                0 => return Err(Error::new(ErrorKind::Io, "the connection broke off")),
                n => done += n,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::Hello;

    fn pair() -> (UnixStream, Arc<UnixStream>) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (ours, Arc::new(theirs))
    }

    /// Three hundred clients announced frames of 32 MiB each and sent most of them: the daemon
    /// took 3.4 GB, and kept it after they had disconnected.
    #[test]
    fn what_is_announced_costs_nothing_and_what_is_sent_is_bounded() {
        use std::io::Write;
        let clients = Arc::new(Clients::new(CLIENTS_MAX));
        let mut greedy = Vec::new();
        let mut refused = 0;
        for _ in 0..16 {
            let (mut ours, theirs) = pair();
            let client = clients.admit(&theirs).unwrap();
            ours.write_all(&u32::try_from(REQUEST_MAX).unwrap().to_le_bytes()).unwrap();
            let reader = rt::spawn("reads", move || {
                let message = Inbox::new(&theirs, &client).receive::<Hello>(None);
                message.unwrap_err().kind()
            });
            // All but the last byte.
            let piece = vec![b' '; 1 << 20];
            let whole = (0..REQUEST_MAX / piece.len() - 1).try_for_each(|_| ours.write_all(&piece));
            refused += u32::from(whole.is_err());
            greedy.push((ours, reader.unwrap()));
        }
        assert!(refused > 0, "nobody was refused");
        assert!(clients.bytes.load(SeqCst) <= BYTES_MAX);
        for (ours, reader) in greedy {
            drop(ours);
            assert!(matches!(reader.join().unwrap(), ErrorKind::Io | ErrorKind::Limit));
        }
        assert_eq!(clients.bytes.load(SeqCst), 0);
        let (mut ours, theirs) = pair();
        let client = clients.admit(&theirs).unwrap();
        ours.write_all(&u32::MAX.to_le_bytes()).unwrap();
        let e = Inbox::new(&theirs, &client).receive::<Hello>(None).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Limit);
    }

    #[test]
    fn the_longest_idle_gives_its_place_away() {
        let clients = Arc::new(Clients::new(CLIENTS_MAX));
        let all: Vec<_> = (0..CLIENTS_MAX)
            .map(|_| {
                let (ours, theirs) = pair();
                (ours, clients.admit(&theirs).unwrap(), theirs)
            })
            .collect();
        let busy: Vec<_> = all.iter().skip(1).map(|c| c.1.busy()).collect();
        let (_ours, theirs) = pair();
        let late = clients.admit(&theirs).unwrap();
        let mut closed = &*all[0].2;
        assert_eq!(closed.read(&mut [0]).unwrap(), 0);
        let _late = late.busy();
        // No connection is idle.
        assert!(clients.admit(&theirs).is_none());
        drop(busy);
        assert!(clients.admit(&theirs).is_some());
    }
}
