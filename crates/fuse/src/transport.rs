//! How messages travel between kernel and session.
//!
//! # Theory
//! Every connection has its `/dev/fuse` descriptor, which the [receiving
//! threads](crate::receivers) of the process read and write: one descriptor a mount, shared
//! by all threads. (A clone for each thread, `FUSE_DEV_IOC_CLONE`, gives each a list of
//! unanswered requests of its own; ten mounts of ten threads were a hundred descriptors.)
//! A [`Transport`] may add [`Queue`]s, each of which has a thread of its own:
//! [`crate::UringTransport`].
//!
//! # Invariant
//! A request is answered on the channel it came from.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::fs::Negotiated;

/// Where requests are answered.
pub trait Channel: Send + Sync {
    /// Sends one reply or notification, in parts; the first begins with the header.
    ///
    /// # Errors
    /// `ENOENT` when the request has been withdrawn, or the kernel's other reasons.
    fn reply(&self, message: &[IoSlice<'_>]) -> io::Result<()>;
}

/// Where one thread receives requests, each after the answer to the one before.
pub trait Queue: Channel {
    /// Waits for the next request and puts it into `inbox`, returning its length.
    ///
    /// # Errors
    /// `ENODEV` when the file system was unmounted; others end the session too.
    fn receive(&self, inbox: &mut [u8]) -> io::Result<usize>;

    /// A further queue to serve from now on, beside those of [`Transport::queues`];
    /// asked for after each request. Dropping it unserved takes it back.
    fn more(&self) -> Option<Arc<dyn Queue>> {
        None
    }
}

/// Makes queues for a session.
pub trait Transport: Send + Sync {
    /// INIT flags to ask for, beside the session's own.
    fn init_flags(&self) -> u64 {
        0
    }

    /// Queues beside `device`, which has answered INIT; none by default.
    ///
    /// # Errors
    /// Those of the operating system.
    fn queues(
        &self,
        device: &Arc<OwnedFd>,
        negotiated: &Negotiated,
    ) -> base::Result<Vec<Arc<dyn Queue>>> {
        let (_, _) = (device, negotiated);
        Ok(Vec::new())
    }
}

/// The classic transport: `read(2)` and `writev(2)` on `/dev/fuse`, and nothing else.
#[derive(Clone, Copy, Debug, Default)]
pub struct DevTransport;

impl Transport for DevTransport {}

/// A descriptor of `/dev/fuse`.
#[derive(Debug)]
pub(crate) struct FuseDevice {
    fd: Arc<OwnedFd>,
}

impl FuseDevice {
    pub(crate) fn new(fd: OwnedFd) -> FuseDevice {
        FuseDevice { fd: Arc::new(fd) }
    }

    pub(crate) fn fd(&self) -> &Arc<OwnedFd> {
        &self.fd
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// From now on [`FuseDevice::read`] does not wait.
    pub(crate) fn set_nonblocking(&self) -> base::Result<()> {
        rustix::fs::fcntl_setfl(&self.fd, OFlags::NONBLOCK)
            .map_err(|e| base::Error::io("cannot set up the FUSE device", e.into()))
    }

    /// One request; `None` if there is none and the descriptor does not block.
    pub(crate) fn read(&self, inbox: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match rustix::io::read(&self.fd, &mut *inbox) {
                Ok(n) => return Ok(Some(n)),
                // ENOENT: the request was withdrawn while it was taken.
                Err(Errno::INTR | Errno::NOENT) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(e) => return Err(e.into()),
            }
        }
    }
}

impl Channel for FuseDevice {
    fn reply(&self, message: &[IoSlice<'_>]) -> io::Result<()> {
        let written = rustix::io::writev(&self.fd, message)?;
        let total = message.iter().map(|part| part.len()).sum::<usize>();
        if written == total { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }
}

pub(crate) fn open_device() -> base::Result<OwnedFd> {
    rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(|e| {
        base::Error::io("cannot open /dev/fuse; is the fuse module loaded?", e.into())
            .on_path("/dev/fuse")
    })
}
