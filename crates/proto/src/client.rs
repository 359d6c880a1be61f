//! The commands' side of the protocol: finding and starting the daemon, and sending requests.

use std::fs::OpenOptions;
use std::io::ErrorKind as Io;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use base::{Error, ErrorKind, Result, rt};
use ui::progress::Progress;

use crate::runtime::{self, Runtime};
use crate::{ClientInput, Frame, Hello, Reply, Request};

/// Environment variable: the address at which a daemon serves its metrics, unless its command
/// line has one.
pub const METRICS: &str = "CENOTE_METRICS";
/// How long a daemon may take until it accepts connections. Pools are imported after that.
const START_TIMEOUT: Duration = Duration::from_secs(15);
/// How long a daemon that does not answer is assumed to be ending. Until the kernel has ended a
/// killed process, its socket accepts connections and breaks them, and its lock is held.
pub const SHUTDOWN_GRACE: Duration = Duration::from_secs(10);
/// How long a daemon may take to send its hello, before which it does nothing else.
const HELLO_MAX: Duration = Duration::from_secs(5);
/// Time between two checks while the client waits.
pub const PAUSE: Duration = Duration::from_millis(10);

/// A connection to the daemon.
pub struct Client {
    stream: UnixStream,
    /// The daemon's hello.
    pub hello: Hello,
    /// A request had a problem, which was shown.
    pub failed: bool,
}

fn dial(runtime: &Runtime) -> Result<Option<UnixStream>> {
    match UnixStream::connect(runtime.socket()) {
        Ok(stream) => Ok(Some(stream)),
        Err(e) if matches!(e.kind(), Io::NotFound | Io::ConnectionRefused) => Ok(None),
        // The directory is root's: its daemon has a socket for others.
        Err(e) => match dial_shared(&runtime.shared_socket())? {
            Some(stream) => Ok(Some(stream)),
            None => Err(Error::io("cannot reach the daemon", e)
                .on_path(runtime.socket().display().to_string())),
        },
    }
}

/// Connects to the socket of a root daemon for other users; `None` if there is none. Its
/// directory may be one in which all users make names, so the other side must be root's.
fn dial_shared(path: &Path) -> Result<Option<UnixStream>> {
    let Ok(stream) = UnixStream::connect(path) else { return Ok(None) };
    let peer = rustix::net::sockopt::socket_peercred(&stream)
        .map_err(|e| Error::io("cannot tell whose daemon this is", e.into()))?;
    if !peer.uid.is_root() {
        let text = "the socket belongs to another user";
        return Err(Error::permission(text).on_path(path.display().to_string()));
    }
    Ok(Some(stream))
}

impl Client {
    /// Exchanges hellos; `None` if the other side closed the connection instead.
    fn greet(runtime: &Runtime, stream: UnixStream) -> Result<Option<Client>> {
        let timeout =
            |t| stream.set_read_timeout(t).map_err(|e| Error::io("no timeout on the socket", e));
        timeout(Some(HELLO_MAX))?;
        match crate::send(&stream, &Hello::ours()) {
            Err(e) if e.kind() == ErrorKind::Io => return Ok(None),
            other => other?,
        }
        let hello = match crate::receive::<Hello>(&stream) {
            Err(e) if crate::timed_out(&e) => {
                let process =
                    runtime.holder().map_or(String::new(), |pid| format!(", process {pid},"));
                return Err(Error::busy(format!("the daemon{process} does not answer")));
            }
            other => other?,
        };
        let Some(hello) = hello else { return Ok(None) };
        timeout(None)?;
        if hello.protocol != crate::VERSION {
            return Err(Error::unsupported(format!(
                "the running daemon is version {}, this command {}: run 'cenote daemon stop' first",
                hello.program,
                env!("CARGO_PKG_VERSION")
            )));
        }
        Ok(Some(Client { stream, hello, failed: false }))
    }

    /// Connects to a running daemon; `None` if none runs.
    ///
    /// # Errors
    /// A daemon runs, but does not answer properly.
    pub fn running(runtime: &Runtime) -> Result<Option<Client>> {
        Client::greeted(runtime, || dial(runtime))
    }

    /// Connects until the daemon answers; `None` if there is none.
    fn greeted(
        runtime: &Runtime,
        dial: impl Fn() -> Result<Option<UnixStream>>,
    ) -> Result<Option<Client>> {
        let begin = rt::now();
        loop {
            let Some(stream) = dial()? else { return Ok(None) };
            if let Some(client) = Client::greet(runtime, stream)? {
                return Ok(Some(client));
            }
            if begin.elapsed() > SHUTDOWN_GRACE {
                return Err(Error::permission("the daemon refused the connection"));
            }
            rt::sleep(PAUSE);
        }
    }

    /// Connects to the daemon; starts one if none runs.
    ///
    /// # Errors
    /// It cannot be started, or does not answer properly.
    pub fn connect(runtime: &Runtime) -> Result<Client> {
        Client::connect_or_start(runtime, None)
    }

    /// As [`Client::connect`]; a daemon that is started serves metrics at this address.
    ///
    /// # Errors
    /// As for [`Client::connect`].
    pub fn connect_or_start(runtime: &Runtime, metrics: Option<&str>) -> Result<Client> {
        match Client::running(runtime)? {
            Some(client) => Ok(client),
            None => start(runtime, metrics),
        }
    }

    /// Connects for a command about pools that are imported: a daemon is started only if it
    /// would have pools to import. An ordinary user without pools of their own reaches root's
    /// daemon.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn connect_for_query(runtime: &Runtime) -> Result<Option<Client>> {
        if let Some(client) = Client::running(runtime)? {
            return Ok(Some(client));
        }
        let known: Vec<serde_json::Value> = runtime::load(&runtime.pools())?;
        match (known.is_empty(), runtime.system_socket()) {
            (false, _) => Client::connect(runtime).map(Some),
            (true, Some(system)) => Client::greeted(runtime, || dial_shared(system)),
            (true, None) => Ok(None),
        }
    }

    /// Sends a request and returns the final reply. Meanwhile it shows progress and problems,
    /// and passes rows to `rows`. A refusal is an error whose message is the command's whole
    /// line for standard error.
    ///
    /// # Errors
    /// The daemon's refusal; the connection's errors.
    pub fn request_rows(
        &mut self,
        request: &Request,
        rows: impl FnMut(crate::DatasetRow),
    ) -> Result<Reply> {
        let bytes = |_: &[u8]| Err(Error::corrupt("a stream was not asked for"));
        self.exchange(request, rows, bytes, None)
    }

    /// As [`Client::request`], for a request that reads a stream from `input`.
    ///
    /// # Errors
    /// As [`Client::request_rows`]; those of reading the input.
    pub fn request_with_input(
        &mut self,
        request: &Request,
        input: &mut ClientInput,
    ) -> Result<Reply> {
        let bytes = |_: &[u8]| Err(Error::corrupt("a stream was not asked for"));
        self.exchange(request, |_| {}, bytes, Some(input))
    }

    /// As [`Client::request`], for a stream, whose bytes go to `bytes`.
    ///
    /// # Errors
    /// As [`Client::request_rows`]; those of `bytes`.
    pub fn request_stream(
        &mut self,
        request: &Request,
        bytes: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<Reply> {
        self.exchange(request, |_| {}, bytes, None)
    }

    fn exchange(
        &mut self,
        request: &Request,
        mut rows: impl FnMut(crate::DatasetRow),
        mut bytes: impl FnMut(&[u8]) -> Result<()>,
        mut input: Option<&mut ClientInput>,
    ) -> Result<Reply> {
        crate::send(&self.stream, request)?;
        let mut progress = Progress::new("", None);
        let mut wanted = false;
        loop {
            if let Some(input) = input.as_deref_mut().filter(|_| wanted)
                && let Some(data) = input.next(&self.stream)?
            {
                crate::send_bytes(&self.stream, data)?;
                wanted = false;
                continue;
            }
            let frame = crate::receive_frame(&self.stream)?
                .ok_or_else(|| Error::new(ErrorKind::Io, "the daemon closed the connection"))?;
            let reply = match frame {
                Frame::Bytes(data) => {
                    bytes(&data)?;
                    continue;
                }
                Frame::Message(body) => crate::decode(&body)?,
            };
            match reply {
                Reply::Rows(batch) => batch.into_iter().for_each(&mut rows),
                Reply::Progress(what, done, total) => {
                    progress.step(&what, done, total);
                }
                Reply::Problem(line) => {
                    progress.finish();
                    ui::err(&line);
                    self.failed = true;
                }
                Reply::Remark(line) => {
                    progress.finish();
                    ui::err(&line);
                }
                Reply::Line(line) => {
                    progress.finish();
                    ui::out(&line);
                }
                Reply::MoreInput => wanted = true,
                Reply::Failed(line) => return Err(Error::invalid(line)),
                done => return Ok(done),
            }
        }
    }

    /// As [`Client::request_rows`], for requests without rows.
    ///
    /// # Errors
    /// As for [`Client::request_rows`].
    pub fn request(&mut self, request: &Request) -> Result<Reply> {
        self.request_rows(request, |_| {})
    }
}

/// Starts a daemon of this binary in the background and waits until it accepts connections.
fn start(runtime: &Runtime, metrics: Option<&str>) -> Result<Client> {
    runtime.create()?;
    let io = |e| Error::io("cannot start the daemon", e);
    let log =
        OpenOptions::new().create(true).append(true).mode(0o600).open(runtime.log()).map_err(io)?;
    let exe = std::env::current_exe().map_err(io)?;
    let mut command = Command::new(exe);
    if let Some(address) = metrics {
        command.env(METRICS, address);
    }
    let mut child = command
        .args(["daemon", "start", "--detached"])
        .env("CENOTE_RUNTIME_DIR", runtime.dir())
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(log.try_clone().map_err(io)?)
        .stderr(log)
        .spawn()
        .map_err(io)?;
    let begin = rt::now();
    let mut ended = false;
    loop {
        if let Some(client) = Client::running(runtime)? {
            return Ok(client);
        }
        if ended || begin.elapsed() > START_TIMEOUT {
            return Err(Error::new(
                ErrorKind::Io,
                format!("the daemon did not start: see {}", runtime.log().display()),
            ));
        }
        // It may have ended because another daemon was faster: try once more.
        ended = child.try_wait().map_err(io)?.is_some();
        if !ended {
            rt::sleep(PAUSE);
        }
    }
}
