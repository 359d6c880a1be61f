//! The threads that serve all connections (see the crate's head).

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use base::rt::{Instant, Mutex, before_sleep, now};
use base::{Error, Result};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;

use crate::connection::{Connection, Flushed, Interest};
use crate::handshake::AfterOption;
use crate::inbox::Received;
use crate::outbox::ReplyPiece;
use crate::request::{charge, perform};
use crate::wire::{FIXED_NEWSTYLE, MAGIC, NO_ZEROES, OPTION_MAGIC, RequestHeader, cmd};
use crate::{Exports, Limits, Tls};

/// Replies that are sent together, bytes.
const TOGETHER: usize = 256 << 10;
/// Idle threads that stay.
const IDLE_KEEP: usize = 2;
/// How often a waiting thread looks at clients that take nothing, and whether it is surplus.
const TICK: Duration = Duration::from_secs(1);
/// The event of the ready list.
const READY: u64 = 0;

/// A client, for a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NbdClient {
    /// Where it comes from.
    pub from: String,
    /// The export that it uses, once it has chosen one.
    pub export: Option<String>,
}

enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener, Option<Tls>),
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Unix(socket) => socket.as_fd(),
            Listener::Tcp(socket, _) => socket.as_fd(),
        }
    }
}

#[derive(Default)]
struct Threads {
    all: usize,
    /// Threads that wait for events.
    idle: usize,
}

/// A server of exports.
pub struct Server {
    exports: Arc<dyn Exports>,
    limits: Limits,
    epoll: OwnedFd,
    wake: OwnedFd,
    next: AtomicU64,
    listeners: Mutex<BTreeMap<u64, Arc<Listener>>>,
    connections: Mutex<BTreeMap<u64, Arc<Connection>>>,
    /// Connections with received bytes from which no thread receives.
    ready: Mutex<VecDeque<Arc<Connection>>>,
    threads: Mutex<Threads>,
    /// A client may be disconnected for its slowness.
    impatient: AtomicBool,
    /// When slow clients were looked at.
    swept: Mutex<Instant>,
    stopping: AtomicBool,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Server({:?})", self.clients())
    }
}

std::thread_local! {
    /// The connection from which this thread receives while it performs a request.
    static OWNED: RefCell<Option<Arc<Connection>>> = const { RefCell::new(None) };
}

fn io(what: &str) -> impl Fn(Errno) -> Error + '_ {
    move |e| Error::io(what, e.into())
}

impl Server {
    /// A server without clients, on one thread.
    ///
    /// # Errors
    /// The operating system gives no descriptor or thread.
    pub fn start(exports: Arc<dyn Exports>, limits: Limits) -> Result<Arc<Server>> {
        let failed = io("cannot make an epoll instance");
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(&failed)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(&failed)?;
        let edges = EventFlags::IN | EventFlags::ET;
        epoll::add(&epoll, &wake, EventData::new_u64(READY), edges).map_err(&failed)?;
        let server = Arc::new(Server {
            exports,
            limits,
            epoll,
            wake,
            next: AtomicU64::new(READY + 1),
            listeners: Mutex::default(),
            connections: Mutex::default(),
            ready: Mutex::default(),
            threads: Mutex::new(Threads { all: 1, idle: 0 }),
            impatient: AtomicBool::new(false),
            swept: Mutex::new(now()),
            stopping: AtomicBool::new(false),
        });
        server.spawn()?;
        Ok(server)
    }

    fn spawn(self: &Arc<Self>) -> Result<()> {
        let own = Arc::clone(self);
        base::rt::spawn("nbd", move || own.life()).map(drop).inspect_err(|_| {
            self.threads.lock().all -= 1;
        })
    }

    /// Listens at a Unix socket. A socket file that is there is replaced; the caller knows that
    /// no other server uses it. Only root and this process's user are served.
    ///
    /// # Errors
    /// The operating system's.
    pub fn listen_unix(&self, path: &Path) -> Result<()> {
        let failed = |e| Error::io("cannot listen", e).on_path(path.display().to_string());
        match std::fs::remove_file(path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(failed(e)),
            _ => {}
        }
        let listener = UnixListener::bind(path).map_err(failed)?;
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(path, mode).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        self.listen(Listener::Unix(listener))
    }

    /// Listens at a TCP address. With `tls` a client is served after it has begun TLS; without,
    /// every client that reaches it is: nothing is encrypted, and no client is authenticated.
    /// Returns the address.
    ///
    /// # Errors
    /// The operating system's.
    pub fn listen_tcp(&self, address: SocketAddr, tls: Option<Tls>) -> Result<SocketAddr> {
        let failed = |e| Error::io(format!("cannot listen on {address}"), e);
        let listener = TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        self.listen(Listener::Tcp(listener, tls))?;
        Ok(address)
    }

    fn listen(&self, listener: Listener) -> Result<()> {
        let (id, listener) = (self.next.fetch_add(1, SeqCst), Arc::new(listener));
        self.listeners.lock().insert(id, Arc::clone(&listener));
        epoll::add(&self.epoll, &*listener, EventData::new_u64(id), EventFlags::IN)
            .map_err(io("cannot watch a socket"))
    }

    /// The clients.
    pub fn clients(&self) -> Vec<NbdClient> {
        let all: Vec<Arc<Connection>> = self.connections.lock().values().cloned().collect();
        let one = |c: &Arc<Connection>| NbdClient {
            from: c.label.clone(),
            export: c.transmission.lock().as_ref().map(|t| t.name.clone()),
        };
        all.iter().map(one).collect()
    }

    /// Disconnects the clients of exports.
    pub fn disconnect(&self, of: impl Fn(&str) -> bool) {
        let all: Vec<Arc<Connection>> = self.connections.lock().values().cloned().collect();
        for connection in all {
            let used = connection.transmission.lock().clone();
            if used.is_some_and(|t| of(&t.name)) {
                self.end(&connection);
            }
        }
    }

    /// Disconnects all clients and ends the threads, which are not waited for.
    pub fn stop(&self) {
        self.stopping.store(true, SeqCst);
        self.listeners.lock().clear();
        let all: Vec<Arc<Connection>> = self.connections.lock().values().cloned().collect();
        all.iter().for_each(|c| self.end(c));
        self.kick();
    }

    /// Wakes a thread that waits for events.
    fn kick(&self) {
        let _full = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    // ------------------------------------------------------------------ threads

    fn life(self: Arc<Self>) {
        let own = Arc::downgrade(&self);
        before_sleep(move || {
            if let Some(server) = own.upgrade() {
                server.leave();
            }
        });
        while let Some((id, flags)) = self.wait() {
            if id == READY {
                let (first, more) = {
                    let mut ready = self.ready.lock();
                    (ready.pop_front(), !ready.is_empty())
                };
                if more {
                    self.kick();
                }
                if let Some(connection) = first {
                    self.receive(&connection);
                }
                continue;
            }
            let listener = self.listeners.lock().get(&id).cloned();
            if let Some(listener) = listener {
                self.accept(&listener);
                continue;
            }
            let connection = self.connections.lock().get(&id).cloned();
            if let Some(connection) = connection {
                self.event(&connection, flags);
            }
        }
    }

    /// The next event. `None`: the thread is surplus, or the server ends.
    fn wait(self: &Arc<Self>) -> Option<(u64, EventFlags)> {
        let mut events = [epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }];
        loop {
            if self.stopping.load(SeqCst) {
                // The next thread ends, too.
                self.threads.lock().all -= 1;
                self.kick();
                return None;
            }
            let many = {
                let mut threads = self.threads.lock();
                threads.idle += 1;
                threads.all > IDLE_KEEP
            };
            let tick = (many || self.impatient.load(SeqCst))
                .then_some(Timespec { tv_sec: TICK.as_secs() as i64, tv_nsec: 0 });
            let got = epoll::wait(&self.epoll, &mut events, tick.as_ref());
            let surplus = {
                let mut threads = self.threads.lock();
                threads.idle -= 1;
                let surplus = matches!(got, Ok(0)) && threads.idle >= IDLE_KEEP;
                threads.all -= usize::from(surplus);
                surplus
            };
            match got {
                Ok(0) => self.sweep(),
                Ok(_) => {
                    // Other clients may keep all threads busy.
                    if self.impatient.load(SeqCst) && self.swept.lock().elapsed() > TICK {
                        self.sweep();
                    }
                    if events[0].data.u64() == READY {
                        let _read = rustix::io::read(&self.wake, &mut [0u8; 8]);
                    }
                    return Some((events[0].data.u64(), events[0].flags));
                }
                Err(Errno::INTR) => {}
                Err(_) => base::rt::sleep(Duration::from_millis(50)),
            }
            if surplus {
                return None;
            }
        }
    }

    /// This thread is about to sleep: another one waits for events, and receives from the
    /// connection.
    fn leave(self: &Arc<Self>) {
        let owned = OWNED.try_with(|owned| owned.try_borrow_mut().ok()?.take()).ok().flatten();
        let Some(connection) = owned else { return };
        if connection.inbox.lock().has_more() || connection.has_plaintext() {
            self.ready.lock().push_back(connection);
            self.kick();
        } else {
            self.arm(&connection, Interest { receive: true, send: false });
        }
        self.keep_listening();
    }

    /// Starts a thread if none waits for events.
    fn keep_listening(self: &Arc<Self>) {
        {
            let mut threads = self.threads.lock();
            if threads.idle > 0 || threads.all >= self.limits.threads {
                return;
            }
            threads.all += 1;
        }
        // Without one, this thread goes on when it is back.
        let _none = self.spawn();
    }

    /// Disconnects clients that take no replies, or do not end their handshake.
    fn sweep(&self) {
        self.impatient.store(false, SeqCst);
        *self.swept.lock() = now();
        let all: Vec<Arc<Connection>> = self.connections.lock().values().cloned().collect();
        for connection in all {
            let stuck = connection.outbox.lock().stuck_since;
            let since = match connection.transmission.lock().is_some() {
                true => stuck,
                false => Some(connection.begun),
            };
            match since {
                Some(since) if since.elapsed() > self.limits.patience => self.end(&connection),
                Some(_) => self.impatient.store(true, SeqCst),
                None => {}
            }
        }
    }

    /// Has a waiting thread look at slow clients from now on.
    fn expect_progress(&self) {
        if !self.impatient.swap(true, SeqCst) {
            self.kick();
        }
    }

    // ------------------------------------------------------------------ connections

    fn accept(self: &Arc<Self>, listener: &Listener) {
        let (socket, label, tls) = match listener {
            Listener::Unix(listener) => {
                let Ok((stream, _)) = listener.accept() else { return };
                let Ok(peer) = rustix::net::sockopt::socket_peercred(&stream) else { return };
                if !peer.uid.is_root() && peer.uid != rustix::process::geteuid() {
                    return;
                }
                (OwnedFd::from(stream), format!("process {}", peer.pid.as_raw_nonzero()), None)
            }
            Listener::Tcp(listener, tls) => {
                let Ok((stream, from)) = listener.accept() else { return };
                let _slower = stream.set_nodelay(true);
                (OwnedFd::from(stream), from.to_string(), tls.clone())
            }
        };
        self.adopt(socket, label, tls);
    }

    /// Serves a connected socket.
    fn adopt(self: &Arc<Self>, socket: OwnedFd, label: String, tls: Option<Tls>) {
        self.make_room();
        let id = self.next.fetch_add(1, SeqCst);
        let connection = Arc::new(Connection::new(id, socket, label, tls));
        {
            let mut all = self.connections.lock();
            if all.len() >= self.limits.connections {
                return;
            }
            all.insert(id, Arc::clone(&connection));
        }
        let mut hello = MAGIC.to_be_bytes().to_vec();
        hello.extend(OPTION_MAGIC.to_be_bytes());
        hello.extend((FIXED_NEWSTYLE | NO_ZEROES).to_be_bytes());
        connection.outbox.lock().push(vec![ReplyPiece::Head(hello)]);
        let flags = EventFlags::ONESHOT;
        self.expect_progress();
        let watched =
            epoll::add(&self.epoll, &connection.socket, EventData::new_u64(id), flags).is_ok();
        if watched && self.flush(&connection) {
            self.arm(&connection, Interest { receive: true, send: false });
        } else {
            self.end(&connection);
        }
    }

    /// If there are as many clients as may be, ends the oldest one that has not chosen an export:
    /// strangers who only connect keep nobody away.
    fn make_room(&self) {
        let all: Vec<Arc<Connection>> = self.connections.lock().values().cloned().collect();
        if all.len() >= self.limits.connections {
            let oldest = all.iter().find(|c| c.transmission.lock().is_none());
            oldest.into_iter().for_each(|c| self.end(c));
        }
    }

    /// Asks for events, in addition to those asked for already.
    fn arm(&self, connection: &Connection, more: Interest) {
        let mut interest = connection.interest.lock();
        interest.receive |= more.receive;
        interest.send |= more.send;
        let mut flags = EventFlags::ONESHOT;
        flags.set(EventFlags::IN | EventFlags::RDHUP, interest.receive);
        flags.set(EventFlags::OUT, interest.send);
        let data = EventData::new_u64(connection.id);
        // One that is gone is not watched any more.
        let _gone = epoll::modify(&self.epoll, &connection.socket, data, flags);
    }

    fn end(&self, connection: &Arc<Connection>) {
        if connection.end() {
            let _unwatched = epoll::delete(&self.epoll, &connection.socket);
            self.connections.lock().remove(&connection.id);
        }
    }

    fn event(self: &Arc<Self>, connection: &Arc<Connection>, flags: EventFlags) {
        let over = EventFlags::HUP | EventFlags::ERR;
        let (receives, sends) = {
            let mut interest = connection.interest.lock();
            let receives =
                interest.receive && flags.intersects(EventFlags::IN | EventFlags::RDHUP | over);
            let sends = interest.send && flags.intersects(EventFlags::OUT | over);
            interest.receive &= !receives;
            interest.send &= !sends;
            (receives, sends)
        };
        let left = *connection.interest.lock();
        if left.receive || left.send {
            self.arm(connection, left);
        }
        if sends && !self.flush(connection) {
            return;
        }
        if receives {
            self.receive(connection);
        }
    }

    /// Sends replies; false if the connection has ended.
    fn flush(self: &Arc<Self>, connection: &Arc<Connection>) -> bool {
        match connection.flush() {
            Flushed::Done => {}
            Flushed::Stuck => {
                self.expect_progress();
                self.arm(connection, Interest { receive: false, send: true });
            }
            Flushed::Ended => {
                self.end(connection);
                return false;
            }
        }
        if connection.has_ended() {
            self.end(connection);
            return false;
        }
        if connection.may_resume(self.limits.connection_bytes) {
            self.ready.lock().push_back(Arc::clone(connection));
            self.kick();
        }
        true
    }

    /// Receives from a connection until no bytes are left, or another thread does.
    fn receive(self: &Arc<Self>, connection: &Arc<Connection>) {
        // Other clients are served although this one may keep this thread busy.
        self.keep_listening();
        loop {
            if connection.is_gone() {
                return;
            }
            if connection.pause(self.limits.connection_bytes) {
                // Replies that were sent meanwhile may have ended the pause.
                self.flush(connection);
                return;
            }
            let received = {
                let mut inbox = connection.inbox.lock();
                inbox.next(|room| connection.receive(room))
            };
            match received {
                Received::Nothing => {
                    if self.flush(connection) {
                        self.arm(connection, Interest { receive: true, send: false });
                    }
                    return;
                }
                Received::Broken => return self.end(connection),
                Received::Flags { no_zeroes } => connection.agreed.lock().no_zeroes = no_zeroes,
                Received::Option { option, data } => {
                    if !self.option(connection, option, &data) {
                        return;
                    }
                }
                Received::Request { header, payload } => {
                    if header.command == cmd::DISCONNECT {
                        connection.outbox.lock().ending = true;
                        self.flush(connection);
                        return;
                    }
                    if !self.request(connection, header, payload) {
                        return;
                    }
                }
            }
        }
    }

    /// Performs an option; false if the connection ends.
    fn option(self: &Arc<Self>, connection: &Arc<Connection>, option: u32, data: &[u8]) -> bool {
        // The next option depends on this one, so this thread keeps the connection.
        let mut out = Vec::new();
        let mut agreed = std::mem::take(&mut *connection.agreed.lock());
        let after = agreed.option(&*self.exports, option, data, &mut out);
        *connection.agreed.lock() = agreed;
        connection.outbox.lock().push(vec![ReplyPiece::Head(out)]);
        match after {
            AfterOption::Continue => {}
            AfterOption::Go(transmission) => {
                connection.inbox.lock().begin_requests(transmission.extended);
                *connection.transmission.lock() = Some(transmission);
            }
            AfterOption::StartTls => {
                if !self.flush(connection) {
                    return false;
                }
                if !connection.start_tls() {
                    self.end(connection);
                    return false;
                }
            }
            AfterOption::End => connection.outbox.lock().ending = true,
        }
        self.flush(connection)
    }

    /// Performs a request; false if this thread no longer receives from the connection.
    fn request(
        self: &Arc<Self>,
        connection: &Arc<Connection>,
        header: RequestHeader,
        payload: Option<base::Buf>,
    ) -> bool {
        let Some(transmission) = connection.transmission.lock().clone() else { return false };
        let charged = charge(&header, payload.as_ref());
        {
            let mut outbox = connection.outbox.lock();
            outbox.running += 1;
            outbox.running_bytes += charged;
        }
        OWNED.set(Some(Arc::clone(connection)));
        let reply = perform(&transmission, &header, payload.as_ref());
        drop(payload);
        let owned = OWNED.take().is_some();
        let queued = {
            let mut outbox = connection.outbox.lock();
            outbox.running -= 1;
            outbox.running_bytes -= charged;
            outbox.push(reply);
            outbox.queued()
        };
        // Replies are sent together while more requests are there.
        if owned && queued < TOGETHER && connection.inbox.lock().has_more() {
            return true;
        }
        self.flush(connection) && owned
    }
}
