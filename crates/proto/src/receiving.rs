//! Receiving a stream: the request, and the bytes of the client's standard input.
//!
//! # Theory
//! The daemon asks for the next bytes with [`crate::Reply::MoreInput`]; the client answers each
//! with one frame of bytes, an empty one at the end of its input. So a daemon that does not need
//! more, because the stream has ended or is refused, has nothing left to read, and a client never
//! blocks in writing to a daemon that has stopped reading.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;

use base::{Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags};
use serde::{Deserialize, Serialize};

use crate::{Frame, receive_frame};

/// Largest frame of bytes that a client sends.
pub const INPUT_MAX: usize = 256 << 10;

/// How the sender's names become those of received datasets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReceiveNaming {
    /// The target is the dataset.
    #[default]
    Whole,
    /// Below the target, without the sender's pool.
    WithoutPool,
    /// Below the target, with the last part of the name.
    LastPart,
}

/// A stream to receive.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceiveArgs {
    /// The dataset, snapshot, or file system above.
    pub target: String,
    /// What the target is.
    pub naming: ReceiveNaming,
    /// Discard changes and newer snapshots.
    pub force: bool,
    /// Keep what came if the stream is cut off.
    pub resumable: bool,
    /// Only check.
    pub dry_run: bool,
    /// Tell what is received.
    pub verbose: bool,
    /// Do not mount what is new.
    pub no_mount: bool,
    /// Unmount even what is busy.
    pub force_unmount: bool,
    /// The snapshot that the dataset becomes a clone of.
    pub origin: Option<String>,
    /// Properties to set.
    pub props: Vec<(String, String)>,
    /// Properties to inherit.
    pub inherits: Vec<String>,
    /// No stream: discard the partial state of the target.
    pub abort: bool,
    /// Repair damaged blocks of a snapshot that exists.
    pub correct: bool,
    /// Leave out the holds of a package.
    pub ignore_holds: bool,
    /// The command, for the pool's history.
    pub command: String,
}

/// Reads one frame of bytes; `None` when the other side closed the connection.
///
/// # Errors
/// `Corrupt` for a message, `Limit` for a frame that is too long, the socket's errors.
pub fn receive_input(from: impl Read) -> Result<Option<Vec<u8>>> {
    match receive_frame(from)? {
        None => Ok(None),
        Some(Frame::Bytes(bytes)) if bytes.len() <= INPUT_MAX => Ok(Some(bytes)),
        Some(Frame::Bytes(_)) => Err(Error::limit("a frame of input is too long")),
        Some(Frame::Message(_)) => Err(Error::corrupt("a message instead of bytes of a stream")),
    }
}

/// The input of a client: a file or pipe without a buffer of its own.
#[derive(Debug)]
pub struct ClientInput {
    file: File,
    chunk: Vec<u8>,
}

impl ClientInput {
    /// This process's standard input.
    ///
    /// # Errors
    /// If its descriptor cannot be duplicated.
    pub fn stdin() -> Result<ClientInput> {
        let owned = std::io::stdin().as_fd().try_clone_to_owned();
        let owned = owned.map_err(|e| Error::io("cannot read the stream", e))?;
        Ok(ClientInput { file: File::from(owned), chunk: vec![0; INPUT_MAX] })
    }

    /// The next bytes, empty at the end; `None` if the daemon has something to say, or is gone,
    /// before there are any.
    pub(crate) fn next(&mut self, daemon: impl AsFd) -> Result<Option<&[u8]>> {
        loop {
            let mut fds =
                [PollFd::new(&daemon, PollFlags::IN), PollFd::new(&self.file, PollFlags::IN)];
            match rustix::event::poll(&mut fds, None) {
                Err(rustix::io::Errno::INTR) => continue,
                other => other.map_err(|e| Error::io("cannot wait", e.into()))?,
            };
            let [from_daemon, input] = fds.map(|fd| !fd.revents().is_empty());
            if from_daemon {
                return Ok(None);
            }
            if !input {
                continue;
            }
            match self.file.read(&mut self.chunk) {
                Ok(n) => return Ok(Some(self.chunk.get(..n).unwrap_or_default())),
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => {
                    return Err(Error::io("failed to read from stream", e).with_kind(ErrorKind::Io));
                }
            }
        }
    }
}
