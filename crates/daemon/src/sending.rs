//! `zfs send` (chapter 09 §3.4).
//!
//! # Theory
//! The stream goes to the client in frames, through the relay of the watched thread, which
//! holds a bounded number of them: a client that does not read stops the reads of the pool, and
//! one that disconnects ends the stream.

use std::io::Write;

use base::{Error, ErrorKind, Result};
use cenote::stream::ResumeToken;
use cenote::{Dataset, PackageOptions, Pool, SendOptions};
use proto::{Reply, SendArgs, SendSize};

use super::access::Caller;
use super::datasets::cannot;
use super::handle::RowListener;
use super::state::DaemonState;

/// Bytes of a frame.
const CHUNK: usize = 256 << 10;

/// Passes a stream on in frames.
pub(super) struct Chunks<'a> {
    to: &'a mut dyn RowListener,
    chunk: Vec<u8>,
}

impl<'a> Chunks<'a> {
    pub(super) fn new(to: &'a mut dyn RowListener) -> Chunks<'a> {
        Chunks { to, chunk: Vec::with_capacity(CHUNK) }
    }
}

impl Write for Chunks<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let n = bytes.len().min(CHUNK - self.chunk.len());
        self.chunk.extend_from_slice(bytes.get(..n).unwrap_or_default());
        if self.chunk.len() == CHUNK {
            self.flush()?;
        }
        Ok(n)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        if self.to.is_gone() {
            return Err(std::io::ErrorKind::BrokenPipe.into());
        }
        if !self.chunk.is_empty() {
            self.to.bytes(std::mem::take(&mut self.chunk));
        }
        Ok(())
    }
}

/// Serves the command.
///
/// # Errors
/// The whole message for the user.
pub(super) fn send(
    state: &DaemonState,
    args: &SendArgs,
    by: &Caller,
    to: &mut dyn RowListener,
) -> Result<Reply> {
    if let Some(token) = &args.resume {
        return resume(state, token, args.dry_run, by, to);
    }
    let name = args.snapshot.as_str();
    let (pool, snapshot) = state.open(name)?;
    if args.saved {
        return saved(args, &pool, &snapshot, by, to);
    }
    let from = args.from.as_deref().map(|from| source(&pool, name, from)).transpose()?;
    let options = SendOptions {
        large_blocks: args.large_blocks,
        embedded: args.embedded,
        compressed: args.compressed,
        raw: args.package.raw,
    };
    let package = PackageOptions {
        intermediate: args.all,
        recursive: args.package.recursive,
        props: args.package.props,
        received: args.package.received,
        holds: args.package.holds,
        raw: args.package.raw,
        skip_missing: args.package.skip_missing,
        exclude: args.package.exclude.clone(),
    };
    by.require_send(&pool, &snapshot, options.raw).map_err(|e| failed(name, &e))?;
    if let Some(mark) = &args.redact {
        let mark = named(&pool, name, mark, "redaction bookmark")?;
        return redacted((&snapshot, from.as_ref(), &mark), options, args.dry_run, to);
    }
    let plan = snapshot.plan_send(from.as_ref(), &package).map_err(|e| failed(name, &e))?;
    for (_, step) in &plan.steps {
        let may = by.require_send(&pool, step, options.raw);
        may.map_err(|e| failed(step.name(), &e))?;
    }
    if args.dry_run {
        let sizes = plan.sizes(options).map_err(|e| failed(name, &e))?;
        let step = |((from, to), bytes): (&(Option<Dataset>, Dataset), u64)| SendSize {
            snapshot: to.name().to_owned(),
            from: from.as_ref().map(|from| from.name().to_owned()),
            bytes,
        };
        let sizes = plan.steps.iter().zip(sizes).map(step).collect();
        return Ok(Reply::SendSizes { sizes, skipped: plan.skipped });
    }
    let mut output = Chunks::new(to);
    plan.send(options, &mut output, &mut |_, _| true).map_err(|e| failed(name, &e))?;
    output.flush().map_err(|e| failed(name, &Error::io("the client has disconnected", e)))?;
    Ok(Reply::Done)
}

/// Serves `zfs send --redact`: a snapshot, its source, and the redaction bookmark.
fn redacted(
    (snapshot, from, mark): (&Dataset, Option<&Dataset>, &Dataset),
    options: SendOptions,
    dry_run: bool,
    to: &mut dyn RowListener,
) -> Result<Reply> {
    let name = snapshot.name();
    if dry_run {
        let bytes = snapshot.redacted_size(from, mark, options).map_err(|e| failed(name, &e))?;
        let from = from.map(|from| from.name().to_owned());
        let sizes = vec![SendSize { snapshot: name.to_owned(), from, bytes }];
        return Ok(Reply::SendSizes { sizes, skipped: Vec::new() });
    }
    let mut output = Chunks::new(to);
    let sent = snapshot.send_redacted(from, mark, options, &mut output, &mut |_| true);
    sent.map_err(|e| failed(name, &e))?;
    output.flush().map_err(|e| failed(name, &Error::io("the client has disconnected", e)))?;
    Ok(Reply::Done)
}

fn failed(name: &str, e: &Error) -> Error {
    match e.kind() {
        ErrorKind::Locked => {
            cannot("cannot send", name, &Error::new(e.kind(), "dataset key must be loaded"))
        }
        ErrorKind::CrossDevice => {
            let text = "not an earlier snapshot from the same fs";
            cannot("cannot send", name, &Error::new(e.kind(), text))
        }
        _ => cannot("cannot send", name, e),
    }
}

/// Serves `zfs send -S`.
fn saved(
    args: &SendArgs,
    pool: &Pool,
    dataset: &Dataset,
    by: &Caller,
    to: &mut dyn RowListener,
) -> Result<Reply> {
    let name = dataset.name();
    by.require_send(pool, dataset, false).map_err(|e| failed(name, &e))?;
    let options = SendOptions {
        large_blocks: args.large_blocks,
        embedded: args.embedded,
        compressed: args.compressed,
        raw: false,
    };
    let part = dataset.plan_saved(options).map_err(|e| failed(name, &e))?;
    if args.dry_run {
        let bytes = part.size().map_err(|e| failed(name, &e))?;
        let sizes = vec![SendSize { snapshot: part.name().to_owned(), from: None, bytes }];
        return Ok(Reply::SendSizes { sizes, skipped: Vec::new() });
    }
    let mut output = Chunks::new(to);
    part.send(&mut output, &mut |_| true).map_err(|e| failed(name, &e))?;
    output.flush().map_err(|e| failed(name, &Error::io("the client has disconnected", e)))?;
    Ok(Reply::Done)
}

/// Serves `zfs send -t`.
fn resume(
    state: &DaemonState,
    token: &str,
    dry_run: bool,
    by: &Caller,
    to: &mut dyn RowListener,
) -> Result<Reply> {
    let refused = |e: Error| Error::new(e.kind(), format!("cannot resume send: {e}"));
    let token = ResumeToken::decode(token).map_err(refused)?;
    let name = token.to_name.as_str();
    let pool_name = name.split(['/', '@']).next().unwrap_or(name);
    let gone = || {
        let text = format!("'{name}' used in the initial send no longer exists");
        refused(Error::not_found(text))
    };
    let pool = state.pool(pool_name).ok_or_else(gone)?;
    // Whether the snapshot exists is no secret.
    let resumed = pool.resume_send(&token).map_err(refused)?;
    let may = by.require_send(&pool, &resumed.snapshot, token.raw);
    may.map_err(|e| failed(name, &e))?;
    if dry_run {
        let bytes = resumed.size().map_err(|e| failed(name, &e))?;
        let from = resumed.from.as_ref().map(|from| from.name().to_owned());
        let sizes = vec![SendSize { snapshot: name.to_owned(), from, bytes }];
        return Ok(Reply::SendSizes { sizes, skipped: Vec::new() });
    }
    let mut output = Chunks::new(to);
    resumed.send(&mut output, &mut |_| true).map_err(|e| failed(name, &e))?;
    output.flush().map_err(|e| failed(name, &Error::io("the client has disconnected", e)))?;
    Ok(Reply::Done)
}

/// The snapshot or bookmark that a stream is incremental to.
fn source(pool: &Pool, name: &str, from: &str) -> Result<Dataset> {
    named(pool, name, from, "incremental source")
}

/// The snapshot or bookmark that a stream of `name` refers to.
fn named(pool: &Pool, name: &str, other: &str, what: &str) -> Result<Dataset> {
    pool.dataset(other).map_err(|e| {
        let text = match e.kind() {
            ErrorKind::NotFound => format!("{what} ({other}) does not exist"),
            _ => e.to_string(),
        };
        Error::new(e.kind(), format!("cannot send '{name}': {text}"))
    })
}
