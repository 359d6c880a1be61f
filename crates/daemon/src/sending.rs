//! `zfs send` (chapter 09 §3.4).
//!
//! # Theory
//! The stream goes to the client in frames, through the relay of the watched thread, which
//! holds a bounded number of them: a client that does not read stops the reads of the pool, and
//! one that disconnects ends the stream.

use std::io::Write;

use base::{Error, ErrorKind, Result};
use cenote::{Dataset, Pool, SendOptions};
use proto::{Reply, SendArgs, SendSize};

use super::datasets::cannot;
use super::handle::RowListener;
use super::state::DaemonState;

/// Bytes of a frame.
const CHUNK: usize = 256 << 10;

/// Passes a stream on in frames.
struct Chunks<'a> {
    to: &'a mut dyn RowListener,
    chunk: Vec<u8>,
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
    to: &mut dyn RowListener,
) -> Result<Reply> {
    let name = args.snapshot.as_str();
    let fail = |e: Error| match e.kind() {
        ErrorKind::Locked => {
            cannot("cannot send", name, &Error::new(e.kind(), "dataset key must be loaded"))
        }
        ErrorKind::CrossDevice => {
            let text = "not an earlier snapshot from the same fs";
            cannot("cannot send", name, &Error::new(e.kind(), text))
        }
        _ => cannot("cannot send", name, &e),
    };
    let (pool, snapshot) = state.open(name)?;
    let from = args.from.as_deref().map(|from| source(&pool, name, from)).transpose()?;
    let options = SendOptions {
        large_blocks: args.large_blocks,
        embedded: args.embedded,
        compressed: args.compressed,
    };
    let steps: Vec<(Option<Dataset>, Dataset)> = match &from {
        Some(from) if args.all => {
            let all = snapshot.snapshots_since(from).map_err(fail)?;
            all.into_iter().map(|(from, to)| (Some(from), to)).collect()
        }
        _ => vec![(from, snapshot.clone())],
    };
    if args.dry_run {
        let mut sizes = Vec::new();
        for (from, to) in &steps {
            let bytes = to.send_size(from.as_ref(), options).map_err(fail)?;
            let from = from.as_ref().map(|from| from.name().to_owned());
            sizes.push(SendSize { snapshot: to.name().to_owned(), from, bytes });
        }
        return Ok(Reply::SendSizes(sizes));
    }
    let mut output = Chunks { to, chunk: Vec::with_capacity(CHUNK) };
    if args.all {
        snapshot.send_package_header(&mut output).map_err(fail)?;
    }
    for (from, step) in &steps {
        step.send(from.as_ref(), options, &mut output, &mut |_| true).map_err(fail)?;
    }
    if args.all {
        Dataset::send_package_end(&mut output).map_err(fail)?;
    }
    output.flush().map_err(|e| fail(Error::io("the client has disconnected", e)))?;
    Ok(Reply::Done)
}

/// The snapshot or bookmark that a stream is incremental to.
fn source(pool: &Pool, name: &str, from: &str) -> Result<Dataset> {
    pool.dataset(from).map_err(|e| {
        let text = match e.kind() {
            ErrorKind::NotFound => format!("incremental source ({from}) does not exist"),
            _ => e.to_string(),
        };
        Error::new(e.kind(), format!("cannot send '{name}': {text}"))
    })
}
