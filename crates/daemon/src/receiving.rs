//! `zfs receive` (chapter 09 §3.4).
//!
//! # Theory
//! The client's bytes come in frames, each of which the daemon asks for. The thread that receives
//! reads them from the connection's socket itself; the connection's thread only sends meanwhile.
//! No lock of the pool is held while the stream comes. The switch to the received content is made
//! under the lock of the pool's changes: the file system is unmounted before and mounted again
//! afterwards, as by a rollback, because the content of its open files is given up.
//!
//! # Invariants
//! * A client that disconnects, and a daemon that ends, end the receive; the dataset is as before.
//! * Messages are OpenZFS's, as whole lines.

use std::io::{ErrorKind as IoErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base::rt::{self, Instant};
use base::{Error, ErrorKind, Result};
use cenote::create::{Of, dataset_setting};
use cenote::props::{PropData, nicebytes};
use cenote::{
    Dataset, DatasetKind, IncomingSnapshot, IncomingStream, Pool, ReceiveNames, ReceiveObserver,
    ReceiveOptions, ReceivedStream,
};
use proto::{ReceiveArgs, ReceiveNaming, Reply};
use rustix::event::{PollFd, PollFlags, Timespec};

use super::access::Caller;
use super::datasets::{
    PROPS_MAX, cannot, command, create_parents, error_text, exists, missing_parents, pool_of,
    too_many,
};
use super::handle::RowListener;
use super::mounts;
use super::remount;
use super::rollback::{mounted_inside, unmount};
use super::state::{DaemonState, Listener};
use super::watched::Relay;

/// How often a waiting receive looks whether it is to end.
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 250_000_000 };
/// The property `encryption` of a dataset that is not encrypted.
const ENCRYPTION_OFF: u64 = 2;
/// How long a frame that has begun may take.
const FRAME_TIMEOUT: Duration = Duration::from_secs(60);

/// The stream that a client sends.
pub(super) struct ClientStream {
    socket: UnixStream,
    relay: Relay,
    chunk: Vec<u8>,
    at: usize,
    ended: bool,
}

impl ClientStream {
    /// Reads from `socket` what `relay` asks for.
    pub(super) fn new(socket: UnixStream, relay: Relay) -> ClientStream {
        ClientStream { socket, relay, chunk: Vec::new(), at: 0, ended: false }
    }

    /// Waits for the next frame; empty at the end of the client's input.
    fn next(&mut self) -> std::io::Result<Vec<u8>> {
        self.relay.more_input();
        loop {
            if self.relay.is_gone() {
                return Err(IoErrorKind::BrokenPipe.into());
            }
            let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
            match rustix::event::poll(&mut fds, Some(&TICK)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => break,
                Err(e) => return Err(e.into()),
            }
        }
        self.socket.set_read_timeout(Some(FRAME_TIMEOUT))?;
        match proto::receive_input(&self.socket) {
            Ok(Some(chunk)) => Ok(chunk),
            Ok(None) => Err(IoErrorKind::BrokenPipe.into()),
            Err(e) => Err(std::io::Error::other(e)),
        }
    }
}

impl Read for ClientStream {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        if self.at == self.chunk.len() && !self.ended && !out.is_empty() {
            (self.chunk, self.at) = (self.next()?, 0);
            self.ended = self.chunk.is_empty();
        }
        let rest = self.chunk.get(self.at..).unwrap_or_default();
        let n = rest.len().min(out.len());
        if let (Some(to), Some(from)) = (out.get_mut(..n), rest.get(..n)) {
            to.copy_from_slice(from);
        }
        self.at += n;
        Ok(n)
    }
}

/// What goes on in a receive.
struct MountObserver<'a> {
    state: &'a DaemonState,
    pool: &'a Arc<Pool>,
    args: &'a ReceiveArgs,
    by: &'a Caller,
    to: &'a mut Relay,
    /// The substream that is being received.
    current: Option<IncomingSnapshot>,
    began: Instant,
}

impl MountObserver<'_> {
    /// What the command was about to do, for messages.
    fn action(&self) -> &'static str {
        match &self.current {
            None => "cannot receive",
            Some(sent) if sent.resumes => "cannot receive resume stream",
            Some(sent) if sent.from_guid != 0 => "cannot receive incremental stream",
            Some(_) => "cannot receive new filesystem stream",
        }
    }

    /// The whole message of an error.
    fn message(&self, target: &str, e: &Error) -> String {
        let mut why = match e.kind() {
            ErrorKind::Checksum if self.args.correct => error_text(e),
            ErrorKind::Checksum | ErrorKind::Interrupted if !self.to.is_gone() => {
                "checksum mismatch or incomplete stream".to_owned()
            }
            ErrorKind::NoSpace => "out of space".to_owned(),
            _ => error_text(e),
        };
        let dataset = target.split('@').next().unwrap_or(target);
        let partial = self.pool.dataset(dataset).and_then(|d| d.resume_token());
        if let (true, Ok(Some(token)), ErrorKind::Checksum | ErrorKind::Interrupted) =
            (self.args.resumable, partial, e.kind())
        {
            why = format!(
                "{why}.\nPartially received snapshot is saved.\nA resuming stream can be \
                 generated on the sending system by running:\n    zfs send -t {}",
                token.encode()
            );
        }
        format!("{}: {why}", self.action())
    }

    /// Whether the user may receive into a dataset.
    fn check_allowed(&self, dataset: &str) -> Result<()> {
        if self.by.is_owner() {
            return Ok(());
        }
        let set = self.args.props.iter().map(|(name, _)| name);
        let props: Vec<&str> = set.chain(&self.args.inherits).map(String::as_str).collect();
        let is_there = exists(self.pool, dataset)?;
        self.by.require_receive(self.pool, dataset, is_there, &props, self.args.force)
    }

    /// Mounts what is new, and shows volumes and snapshots.
    fn show(&mut self, dataset: &Dataset, is_new: bool, snapshot: &str) {
        let name = dataset.name();
        match dataset.kind() {
            DatasetKind::Volume => self.state.show_volumes(self.pool, self.to),
            _ if is_new && !self.args.no_mount => {
                let planned = mounts::plan(dataset, false);
                let done = match planned {
                    Ok(Ok(_)) if !self.by.is_owner() => {
                        let text = "filesystem successfully received, but it may only be mounted \
                                    by root";
                        Err(Error::permission(text))
                    }
                    Ok(Ok(plan)) => self.state.mount_one(&plan, &[], true),
                    Ok(Err(_)) => Ok(()),
                    Err(e) => Err(cannot("cannot mount", name, &e)),
                };
                if let Err(e) = done {
                    self.to.problem(e.message().to_owned());
                }
            }
            _ => {}
        }
        let names = [snapshot.to_owned()];
        remount::snapshots_changed(self.state, &names);
        self.state.show_snapshots(self.pool, &names);
    }
}

impl ReceiveObserver for MountObserver<'_> {
    fn is_stopped(&self) -> bool {
        self.to.is_gone() || self.state.is_ending()
    }

    fn begins(&mut self, sent: &IncomingSnapshot, target: &str) -> Result<()> {
        (self.current, self.began) = (Some(sent.clone()), rt::now());
        if self.args.verbose {
            let kind = if sent.from_guid == 0 { "full" } else { "incremental" };
            let verb = if self.args.dry_run { "would receive" } else { "receiving" };
            let how = if self.args.correct { "corrective " } else { "" };
            self.to.line(format!("{verb} {how}{kind} stream of {} into {target}\n", sent.name));
        }
        let dataset = target.split('@').next().unwrap_or(target);
        if self.args.dry_run && !self.args.correct {
            self.check_allowed(dataset)?;
        }
        if self.args.naming == ReceiveNaming::Whole || self.args.dry_run || self.args.correct {
            return Ok(());
        }
        // The datasets between the one that is named and the sender's.
        let base = self.args.target.as_str();
        if !exists(self.pool, base)? {
            return Err(Error::not_found(format!("destination '{base}' does not exist")));
        }
        let above = missing_parents(self.pool, dataset)?;
        create_parents(self.state, self.pool, &above, self.by, self.to)
    }

    fn begin(&mut self, dataset: &str, act: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        if self.by.is_owner() {
            return act();
        }
        let what = "a stream is received";
        let _turns = self.state.changing(std::iter::once(dataset), what, self.to)?;
        self.check_allowed(dataset)?;
        act()
    }

    fn allows(&mut self, name: &str, permissions: &[&str]) -> Result<()> {
        self.by.require(self.pool, name, permissions)
    }

    fn switch(&mut self, dataset: &str, act: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        let what = "a stream is received";
        let _turns = self.state.changing(std::iter::once(dataset), what, self.to)?;
        let affected = mounted_inside(self.state, dataset);
        self.by.require_fixed_mounts(self.state, |n| affected.iter().any(|name| name == n))?;
        let unmounted = unmount(self.state, dataset, self.args.force_unmount, self.to);
        let done = match &unmounted {
            Ok(_) => act(),
            Err((e, _)) => Err(Error::new(e.kind(), "dataset is busy")),
        };
        let (Ok(list) | Err((_, list))) = unmounted;
        let list: Vec<(String, PathBuf)> = list;
        remount::put_back(self.state, self.pool, &list, self.to);
        done
    }

    fn remark(&mut self, text: &str) {
        Listener::remark(self.to, text.to_owned());
    }

    fn ended(&mut self, received: &ReceivedStream) {
        if received.skipped {
            if self.args.verbose {
                self.to.line(format!("snap {} already exists; ignoring it\n", received.snapshot));
            }
            return;
        }
        if self.args.verbose && !self.args.dry_run {
            let seconds = self.began.elapsed().as_secs_f64().max(0.01);
            let rate = (received.bytes as f64 / seconds) as u64;
            self.to.line(format!(
                "received {} stream in {seconds:.2} seconds ({}/sec)\n",
                nicebytes(received.bytes),
                nicebytes(rate)
            ));
        }
        if let Some(corrected) = received.corrected.filter(|_| !self.args.dry_run) {
            if self.args.verbose {
                self.to.line(format!(
                    "corrected {} blocks, {}\n",
                    corrected.blocks,
                    nicebytes(corrected.bytes)
                ));
            }
            return;
        }
        let dataset = received.snapshot.split('@').next().unwrap_or_default();
        if let Ok(dataset) = self.pool.dataset(dataset)
            && !self.args.dry_run
        {
            self.show(&dataset, received.is_new, &received.snapshot);
        }
    }
}

/// Serves the command.
///
/// # Errors
/// The whole message for the user.
pub(super) fn receive(
    state: &DaemonState,
    args: &ReceiveArgs,
    input: ClientStream,
    by: &Caller,
    to: &mut Relay,
) -> Result<Reply> {
    let target = args.target.as_str();
    let whole = |text: String| Error::invalid(text);
    let fs = target.split('@').next().unwrap_or(target);
    let pool = pool_of(state, target);
    if args.abort {
        let missing = || Error::not_found("dataset does not exist");
        let pool = pool.ok_or_else(|| cannot("cannot open", fs, &missing()))?;
        let may = by.require(&pool, fs, &["destroy", "mount"]);
        may.map_err(|e| cannot("cannot abort receive into", fs, &e))?;
        let pool = by.acting(&pool);
        pool.discard_partial(fs, command(&args.command)).map_err(|e| match e.kind() {
            ErrorKind::Invalid => whole(e.message().to_owned()),
            _ => cannot("cannot open", fs, &e),
        })?;
        return Ok(Reply::Done);
    }
    if args.props.len() + args.inherits.len() > PROPS_MAX {
        return Err(too_many());
    }
    let missing = || whole(format!("cannot receive: destination '{fs}' does not exist"));
    let pool = pool.ok_or_else(missing)?;
    let mut stream = IncomingStream::open(input)
        .map_err(|e| whole(format!("cannot receive: {}", begins(&e))))?;
    let first = stream.next_snapshot().map_err(|e| whole(format!("cannot receive: {e}")))?;
    let of = match first.as_ref().is_some_and(|sent| sent.is_volume) {
        true => Of::Volume,
        false => Of::Filesystem,
    };
    let raw = first.as_ref().is_some_and(|sent| sent.is_raw);
    let setting = |(name, value): &(String, String)| match name.as_str() {
        // Where the key is asked for can be said of an encrypted dataset alone.
        "keylocation" if raw => key_location(value),
        "encryption" if value == "off" && !raw => Ok((name.clone(), PropData::Num(ENCRYPTION_OFF))),
        // The library says what is wrong with them.
        "encryption" | "keyformat" | "pbkdf2iters" if raw => {
            Ok((name.clone(), PropData::Str(value.clone())))
        }
        _ => dataset_setting(name, value, of),
    };
    let props: Vec<(String, PropData)> = args
        .props
        .iter()
        .map(setting)
        .collect::<Result<_, _>>()
        .map_err(|why| whole(format!("cannot receive: {why}")))?;
    let options = ReceiveOptions {
        force: args.force,
        origin: args.origin.clone(),
        resumable: args.resumable,
        props,
        inherits: args.inherits.clone(),
        dry_run: args.dry_run,
        correct: args.correct,
        ignore_holds: args.ignore_holds,
        command: command(&args.command).map(str::to_owned),
    };
    let names = match args.naming {
        ReceiveNaming::Whole => ReceiveNames::Whole,
        ReceiveNaming::WithoutPool => ReceiveNames::WithoutPool,
        ReceiveNaming::LastPart => ReceiveNames::LastPart,
    };
    let mut observer =
        MountObserver { state, pool: &pool, args, by, to, current: first, began: rt::now() };
    let acting = by.acting(&pool);
    let done = acting.receive_stream(&mut stream, target, names, &options, &mut observer);
    done.map_err(|e| Error::new(e.kind(), observer.message(target, &e)))?;
    Ok(Reply::Done)
}

/// The property `keylocation` of an encrypted dataset.
fn key_location(value: &str) -> std::result::Result<(String, PropData), String> {
    let places = ["file:///", "https://", "http://"];
    let known = value == "prompt" || places.iter().any(|place| value.starts_with(place));
    match known {
        true => Ok(("keylocation".to_owned(), PropData::Str(value.to_owned()))),
        false => Err(format!("invalid keylocation '{value}'")),
    }
}

/// The text for a stream whose beginning is no stream's.
fn begins(e: &Error) -> String {
    match e.kind() {
        ErrorKind::Interrupted | ErrorKind::Io => "failed to read from stream".to_owned(),
        _ => error_text(e),
    }
}
