//! Streams: the request for one, and frames that carry bytes instead of messages.

use std::io::{Read, Write};

use base::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use crate::FRAME_MAX;

/// Set in the length of a frame that carries bytes.
const BYTES: u32 = 1 << 31;

/// A stream to send.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SendArgs {
    /// The snapshot, or a dataset of a pool that is imported read-only.
    pub snapshot: String,
    /// Full name of the snapshot or bookmark that it is incremental to.
    pub from: Option<String>,
    /// With all snapshots in between, as a package.
    pub all: bool,
    /// What else makes it a package.
    pub package: PackageArgs,
    /// A token: the stream goes on where its receiver stopped. Nothing else counts then.
    pub resume: Option<String>,
    /// What a partially received dataset has.
    pub saved: bool,
    /// Blocks above 128 KiB.
    pub large_blocks: bool,
    /// Embedded blocks.
    pub embedded: bool,
    /// Compressed blocks.
    pub compressed: bool,
    /// Only tell the sizes.
    pub dry_run: bool,
    /// Full name of the redaction bookmark whose blocks are left out.
    pub redact: Option<String>,
}

/// What a package has beside data.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackageArgs {
    /// All datasets below.
    pub recursive: bool,
    /// Properties.
    pub props: bool,
    /// Received properties only.
    pub received: bool,
    /// Holds.
    pub holds: bool,
    /// Raw streams were requested.
    pub raw: bool,
    /// Datasets without the last snapshot are left out.
    pub skip_missing: bool,
    /// Datasets to leave out.
    pub exclude: Vec<String>,
}

/// The size of a substream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SendSize {
    /// The snapshot.
    pub snapshot: String,
    /// What it is incremental to.
    pub from: Option<String>,
    /// Bytes.
    pub bytes: u64,
}

/// A whole frame.
#[derive(Debug)]
pub enum Frame {
    /// An encoded message.
    Message(Vec<u8>),
    /// Bytes of a stream.
    Bytes(Vec<u8>),
}

/// Writes a frame of bytes.
///
/// # Errors
/// [`ErrorKind::Limit`] if there are too many; the socket's errors.
pub fn send_bytes(mut to: impl Write, bytes: &[u8]) -> Result<()> {
    if bytes.len() > FRAME_MAX {
        return Err(Error::limit(format!("a frame of {} bytes is too long", bytes.len())));
    }
    let head = bytes.len() as u32 | BYTES;
    let done = to.write_all(&head.to_le_bytes()).and_then(|()| to.write_all(bytes));
    done.map_err(|e| Error::io("cannot send to the other side", e))
}

/// Reads one frame; `None` when the other side closed the connection.
///
/// # Errors
/// [`ErrorKind::Limit`] for a frame that is too long, the socket's errors.
pub fn receive_frame(mut from: impl Read) -> Result<Option<Frame>> {
    let mut head = [0u8; 4];
    let mut got = 0;
    while got < head.len() {
        match from.read(&mut head[got..]) {
            Ok(0) if got == 0 => return Ok(None),
            Ok(0) => return Err(Error::new(ErrorKind::Io, "the connection broke off")),
            Ok(n) => got += n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset && got == 0 => {
                return Ok(None);
            }
            Err(e) => return Err(Error::io("cannot receive", e)),
        }
    }
    let head = u32::from_le_bytes(head);
    let len = usize::try_from(head & !BYTES).unwrap_or(usize::MAX);
    if len > FRAME_MAX {
        return Err(Error::limit(format!("a message of {len} bytes is too long")));
    }
    let mut body = Vec::new();
    let want = u64::try_from(len).unwrap_or(u64::MAX);
    from.take(want).read_to_end(&mut body).map_err(|e| Error::io("cannot receive", e))?;
    if body.len() != len {
        return Err(Error::new(ErrorKind::Io, "the connection broke off"));
    }
    Ok(Some(if head & BYTES == 0 { Frame::Message(body) } else { Frame::Bytes(body) }))
}
