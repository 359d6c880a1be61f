//! The daemon's process: start, connections, signals, end.

use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base::{Error, ErrorKind, Result, rt};
use proto::client::{Client, PAUSE, SHUTDOWN_GRACE};
use proto::runtime::{self, Runtime};
use proto::{DatasetRow, Hello, Reply, Request};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::geteuid;
use ui::Exit;
use ui::signals::Signals;

use super::access::Caller;
use super::clients::{CLIENTS_MAX, Clients, Connection, Inbox};
use super::handle::{RowListener, handle, receive};
use super::receiving::ClientStream;
use super::state::{DaemonState, Listener, Log};
use super::watched::run_watched;

/// Environment variable: `off` serves the owner alone.
const USERS: &str = "CENOTE_USERS";
/// Connections at one time at the shared socket.
const SHARED_MAX: usize = 128;
/// How long a connected client may take to send its hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);

/// Runs a daemon until it is stopped. `metrics` is the address to serve metrics at; without it
/// the environment decides.
///
/// # Errors
/// Another daemon runs, or this one cannot start.
pub(crate) fn run(runtime: &Runtime, detached: bool, metrics: Option<String>) -> Result<Exit> {
    if detached {
        close_inherited();
    }
    let _limit = fuse::raise_limit();
    runtime.create()?;
    let lock = lock(runtime)?;
    if detached {
        // Leaves the terminal's session; the call fails if this process leads one already.
        let _leader = rustix::process::setsid();
    }
    let signals = Signals::block()?;
    clean(runtime);
    let state = Arc::new(DaemonState::new(runtime)?);
    let listener = listen(&runtime.socket(), 0o600)?;
    let shared = listen_to_all(runtime);
    ui::err(&format!(
        "cenote daemon {} started, pid {}",
        env!("CARGO_PKG_VERSION"),
        std::process::id()
    ));
    let waiting = Arc::clone(&state);
    let socket = runtime.socket();
    // A signal means that the system shuts down: the pools are imported again later.
    rt::spawn("signals", move || signals.wait_and(|| end(&waiting, &socket)))?;
    state.show_kstats();
    super::metrics::announce(super::metrics::start(state.engine().kstats(), metrics));
    follow_events(&state);
    match super::nbd_exports::start(&state) {
        Ok(server) => state.set_nbd(server),
        Err(e) => ui::err(&format!("volumes are not exported: {e}")),
    }
    if let Some(shared) = shared {
        let state = Arc::clone(&state);
        // A limit of their own: other users never keep the owner out.
        rt::spawn("shared socket", move || accept(&state, &shared, SHARED_MAX, true))?;
    }
    state.import_saved();
    super::notify::ready();
    accept(&state, &listener, CLIENTS_MAX, false);
    let _gone = std::fs::remove_file(runtime.shared_socket());
    let _gone = std::fs::remove_file(runtime.socket());
    let _gone = std::fs::remove_file(runtime.nbd());
    ui::err("cenote daemon ended");
    exit_now(&lock)
}

/// Starts the threads that follow the events. A daemon without them is better than none.
fn follow_events(state: &DaemonState) {
    let program = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("cenote"));
    let log = Arc::clone(state.engine().events());
    if let Err(e) = super::zedlets::start(log, super::zedlets::directory(), program) {
        ui::err(&format!("zedlets are not run: {e}"));
    }
    if let Err(e) = super::diagnose::start(state.engine()) {
        ui::err(&format!("errors of devices are not diagnosed: {e}"));
    }
    if let Err(e) = super::spares::start(state.engine()) {
        ui::err(&format!("spares are not called: {e}"));
    }
}

/// Ends the process now. Threads that the kernel blocks on a silent device may outlive this
/// call: the kernel keeps the process's files open for them, the lock file too. So the lock is
/// released first, and no thread is waited for.
fn exit_now(lock: &File) -> ! {
    let _held_until_the_end = rustix::fs::flock(lock, rustix::fs::FlockOperation::Unlock);
    // SAFETY: ends the process. Exit handlers are not needed: all important files were written
    // and synced.
    unsafe { libc::_exit(0) }
}

/// Takes the daemon's lock; waits for a daemon that is just ending.
fn lock(runtime: &Runtime) -> Result<File> {
    let begin = rt::now();
    loop {
        match runtime.lock() {
            Err(e) if e.kind() == ErrorKind::Busy && begin.elapsed() < SHUTDOWN_GRACE => {
                if !matches!(Client::running(runtime), Ok(None)) {
                    return Err(e);
                }
                rt::sleep(PAUSE);
            }
            other => return other,
        }
    }
}

/// Closes the files that this process inherited: a lock or pipe of the parent process would be
/// held as long as the daemon lives.
fn close_inherited() {
    // SAFETY: nothing of this process is open yet but its standard streams. Where the
    // call is unknown (before Linux 5.9) the descriptors stay.
    let _unknown = unsafe { libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, 0_u32) };
}

/// A socket that this mode opens to others.
fn listen(path: &Path, mode: u32) -> Result<UnixListener> {
    let io = |e| Error::io("cannot listen", e).on_path(path.display().to_string());
    // We hold the lock, so this socket is a dead daemon's.
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(io(e)),
        _ => {}
    }
    let listener = UnixListener::bind(path).map_err(io)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).map_err(io)?;
    Ok(listener)
}

/// The socket for users other than the owner. Only a root daemon has one: pools of an ordinary
/// user are that user's alone. A daemon without it is better than none.
fn listen_to_all(runtime: &Runtime) -> Option<UnixListener> {
    let off = std::env::var_os(USERS).is_some_and(|v| v == "off");
    if off || !geteuid().is_root() {
        return None;
    }
    match listen(&runtime.shared_socket(), 0o666) {
        Ok(listener) => Some(listener),
        Err(e) => {
            ui::err(&format!("other users are not served: {e}"));
            None
        }
    }
}

/// Removes the mounts that a killed daemon left: those of its list that no process serves any
/// more.
fn clean(runtime: &Runtime) {
    let mut paths: Vec<PathBuf> = runtime::load(&runtime.mounts()).unwrap_or_default();
    paths.push(runtime.volumes());
    paths.push(runtime.kstats());
    paths.sort();
    for path in paths.iter().rev() {
        if !fuse::is_stale(path) {
            continue;
        }
        match fuse::unmount(path, fuse::UnmountOptions { lazy: true, force: false }) {
            Ok(()) => ui::err(&format!("removed the dead mount {}", path.display())),
            Err(e) => ui::err(&format!("a dead mount stays at {}: {e}", path.display())),
        }
    }
}

/// Closes all pools but keeps them in the list, then ends the accept loop.
fn end(state: &Arc<DaemonState>, socket: &std::path::Path) {
    state.set_ending();
    if let Err(e) = state.close_all(true, false, &mut Log) {
        ui::err(e.message());
    }
    state.set_stopping();
    let _wake = UnixStream::connect(socket);
}

/// Serves clients, up to `max` at a time.
fn accept(state: &Arc<DaemonState>, listener: &UnixListener, max: usize, shared: bool) {
    let clients = Arc::new(Clients::new(max));
    for stream in listener.incoming() {
        if state.is_stopping() {
            return;
        }
        let Ok(stream) = stream else {
            // Out of descriptors: do not spin.
            rt::sleep(Duration::from_millis(50));
            continue;
        };
        let stream = Arc::new(stream);
        let Some(client) = clients.admit(&stream) else {
            ui::err("a client was turned away: too many are connected");
            continue;
        };
        let state = Arc::clone(state);
        let served = rt::spawn("client", move || {
            match connection(&state, &stream, &client, shared) {
                Ok(()) => {}
                Err(e) => ui::err(&format!("a client: {e}")),
            }
            if state.is_stopping() {
                let address = stream.local_addr().ok();
                if let Some(path) = address.as_ref().and_then(|a| a.as_pathname()) {
                    let _wake = UnixStream::connect(path);
                }
            }
        });
        if let Err(e) = served {
            ui::err(&format!("a client was turned away: {e}"));
        }
    }
}

/// The user at the other end; on the private socket only the owner is served.
fn check_peer(stream: &UnixStream, shared: bool) -> Result<Caller> {
    let caller = Caller::of(stream)?;
    match caller.is_owner() || shared {
        true => Ok(caller),
        false => Err(Error::permission(format!("user {} is not served", caller.uid()))),
    }
}

fn connection(
    state: &Arc<DaemonState>,
    stream: &UnixStream,
    client: &Connection,
    shared: bool,
) -> Result<()> {
    let by = check_peer(stream, shared)?;
    let mut inbox = Inbox::new(stream, client);
    let Some(hello) = inbox.receive::<Hello>(Some(HELLO_TIMEOUT))? else { return Ok(()) };
    proto::send(stream, &Hello::ours())?;
    if hello.protocol != proto::VERSION {
        return Err(Error::unsupported(format!("speaks version {}", hello.protocol)));
    }
    while let Some(request) = inbox.receive::<Request>(None)? {
        let _busy = client.busy();
        let reply = respond(state, request, &by, &mut Wire { stream, broken: false });
        proto::send(stream, &reply)?;
        if state.is_stopping() {
            break;
        }
    }
    Ok(())
}

/// Serves a request on a watched thread. This thread notices when the client disconnects, and
/// tells it which device is waited for.
fn respond(state: &Arc<DaemonState>, request: Request, by: &Caller, to: &mut Wire<'_>) -> Reply {
    let (serving, by) = (Arc::clone(state), by.clone());
    // A request that ends pools is never abandoned.
    let to_the_end = matches!(request, Request::Stop { force: true }) && by.is_owner();
    let leave = &mut |to: &mut dyn RowListener, quiet: Duration| {
        if quiet > Duration::from_secs(1) {
            state.report_silence(to);
        }
        to.is_gone() && !to_the_end
    };
    let reply = match request {
        Request::Receive(args) => {
            let input = match to.stream.try_clone() {
                Ok(stream) => stream,
                Err(e) => return Reply::Failed(format!("cannot read the stream: {e}")),
            };
            run_watched(to, leave, move |relay| {
                let input = ClientStream::new(input, relay.clone());
                receive(&serving, &args, input, &by, relay)
            })
        }
        request => run_watched(to, leave, move |relay| handle(&serving, &request, &by, relay)),
    };
    reply.unwrap_or_else(|| Reply::Failed("the request broke off".to_owned()))
}

/// Forwards messages to the client.
struct Wire<'a> {
    stream: &'a UnixStream,
    broken: bool,
}

impl Wire<'_> {
    fn send(&mut self, reply: &Reply) {
        self.broken |= proto::send(self.stream, reply).is_err();
    }
}

impl Listener for Wire<'_> {
    fn progress(&mut self, what: &str, done: u64, total: u64) {
        self.send(&Reply::Progress(what.to_owned(), done, total));
    }
    fn problem(&mut self, line: String) {
        self.send(&Reply::Problem(line));
    }
    fn remark(&mut self, line: String) {
        self.send(&Reply::Remark(line));
    }
    fn is_gone(&self) -> bool {
        let mut fds = [PollFd::new(self.stream, PollFlags::RDHUP)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        self.broken
            || (rustix::event::poll(&mut fds, Some(&now)).is_ok_and(|n| n > 0)
                && fds.iter().any(|f| {
                    f.revents().intersects(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR)
                }))
    }
}

impl RowListener for Wire<'_> {
    fn rows(&mut self, rows: Vec<DatasetRow>) {
        if !rows.is_empty() {
            self.send(&Reply::Rows(rows));
        }
    }
    fn bytes(&mut self, bytes: Vec<u8>) {
        self.broken |= proto::send_bytes(self.stream, &bytes).is_err();
    }
    fn line(&mut self, line: String) {
        self.send(&Reply::Line(line));
    }
    fn more_input(&mut self) {
        self.send(&Reply::MoreInput);
    }
}
