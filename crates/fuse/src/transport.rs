//! How messages travel between kernel and session.
//!
//! # Theory
//! A [`Transport`] turns an initialised `/dev/fuse` descriptor into [`Channel`]s,
//! one for each receiving thread; a channel may ask for more of them. Here is the classic one: each thread reads and
//! writes a clone of the descriptor, so that the kernel keeps a list of
//! unanswered requests for each and the threads do not meet on one lock. How many of them
//! wait at once is the [gate](crate::gate)'s. The other is [`crate::UringTransport`].
//!
//! # Invariant
//! A request is answered on the channel it came from.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::rt::now;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::abi::consts::DEV_IOC_MAGIC;
use crate::fs::Negotiated;
use crate::gate::{Came, Gate};

/// How long a thread looks for a request before it sleeps.
const LOOK: Duration = Duration::from_micros(50);
/// A look that took so long was interrupted by another thread.
const AWAY: Duration = Duration::from_micros(30);
/// A request that took less was there already.
const AT_ONCE: Duration = Duration::from_micros(3);

/// Where one thread receives requests and anybody answers them.
pub trait Channel: Send + Sync {
    /// Waits for the next request and puts it into `inbox`, returning its length.
    ///
    /// # Errors
    /// `ENODEV` when the file system was unmounted; others end the session too.
    fn receive(&self, inbox: &mut [u8]) -> io::Result<usize>;

    /// Whether other requests come while one is not answered.
    fn is_shared(&self) -> bool {
        true
    }

    /// A further channel to serve from now on, beside those of [`Transport::channels`];
    /// asked for after each request. Whoever drops it unserved takes it back.
    fn more(&self) -> Option<Arc<dyn Channel>> {
        None
    }

    /// Sends one reply or notification, in parts; the first begins with the header.
    ///
    /// # Errors
    /// `ENOENT` when nobody waits for it any more, or the kernel's other reasons.
    fn reply(&self, message: &[IoSlice<'_>]) -> io::Result<()>;
}

/// Makes channels for a session.
pub trait Transport: Send + Sync {
    /// INIT flags to ask for, beside the session's own.
    fn init_flags(&self) -> u64 {
        0
    }

    /// The first channels over `device`, which has answered INIT; at least one. `count` is
    /// how many threads should serve them where one channel is as good as another.
    ///
    /// # Errors
    /// Those of the operating system.
    fn channels(
        &self,
        device: OwnedFd,
        count: usize,
        negotiated: &Negotiated,
    ) -> base::Result<Vec<Arc<dyn Channel>>>;
}

/// The classic transport: `read(2)` and `writev(2)` on `/dev/fuse`.
#[derive(Clone, Copy, Debug, Default)]
pub struct DevTransport;

impl Transport for DevTransport {
    fn channels(
        &self,
        device: OwnedFd,
        count: usize,
        _: &Negotiated,
    ) -> base::Result<Vec<Arc<dyn Channel>>> {
        let gate = Gate::new(base::rt::parallelism().min(count));
        let mut clones = Vec::new();
        for _ in 1..count {
            match clone_device(device.as_fd()) {
                Ok(fd) => clones.push(fd),
                // A sandbox may hide the device: share one descriptor instead.
                Err(_) => break,
            }
        }
        let all = clones.len() + 1 >= count;
        let channel = |fd, alone| -> Arc<dyn Channel> {
            Arc::new(DevChannel { gate: Some(Arc::clone(&gate)), alone, ..DevChannel::new(fd) })
        };
        let first = channel(device, all);
        let mut channels = vec![Arc::clone(&first)];
        channels.extend(clones.into_iter().map(|fd| channel(fd, true)));
        channels.resize_with(count.max(1), || Arc::clone(&first));
        Ok(channels)
    }
}

/// A descriptor of `/dev/fuse`.
#[derive(Debug)]
pub(crate) struct DevChannel {
    fd: OwnedFd,
    gate: Option<Arc<Gate>>,
    /// One thread alone uses the descriptor, and may set how it blocks.
    alone: bool,
    /// What was set last.
    nonblocking: AtomicBool,
}

impl DevChannel {
    /// A channel without a gate: every thread that asks waits.
    pub(crate) fn new(fd: OwnedFd) -> DevChannel {
        DevChannel { fd, gate: None, alone: false, nonblocking: AtomicBool::new(false) }
    }

    pub(crate) fn into_fd(self) -> OwnedFd {
        self.fd
    }

    fn set_nonblocking(&self, on: bool) -> io::Result<()> {
        if self.nonblocking.swap(on, Ordering::Relaxed) != on {
            let flags = if on { OFlags::NONBLOCK } else { OFlags::empty() };
            rustix::fs::fcntl_setfl(&self.fd, flags)?;
        }
        Ok(())
    }

    /// One request; `None` if there is none and the descriptor does not block.
    fn read(&self, inbox: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match rustix::io::read(&self.fd, &mut *inbox) {
                Ok(n) => return Ok(Some(n)),
                // ENOENT: the request was withdrawn while we took it.
                Err(Errno::INTR | Errno::NOENT) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(e) => return Err(e.into()),
            }
        }
    }

    fn sleep_for(&self, inbox: &mut [u8]) -> io::Result<usize> {
        self.set_nonblocking(false)?;
        loop {
            if let Some(len) = self.read(inbox)? {
                return Ok(len);
            }
        }
    }

    /// A request was there: is there another one?
    fn at_once(&self) -> Came {
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        match rustix::event::poll(&mut fds, Some(&now)) {
            Ok(1..) => Came::Crowded,
            _ => Came::Alone,
        }
    }

    fn look_for(&self, inbox: &mut [u8]) -> io::Result<(usize, Came)> {
        self.set_nonblocking(true)?;
        if let Some(len) = self.read(inbox)? {
            return Ok((len, self.at_once()));
        }
        let start = now();
        let mut last = start;
        while last.since(start) < LOOK {
            let found = self.read(inbox)?;
            let look = now();
            let took = look.since(last);
            match found {
                // Who copies a request of many bytes is busy, not away.
                Some(len) if took > AWAY + Duration::from_nanos(len as u64) => {
                    return Ok((len, Came::Disturbed(took)));
                }
                Some(len) => return Ok((len, Came::Looked)),
                None if took > AWAY => {
                    return Ok((self.sleep_for(inbox)?, Came::Disturbed(took)));
                }
                None => last = look,
            }
        }
        Ok((self.sleep_for(inbox)?, Came::LookedAndSlept))
    }

    fn next(&self, looks: bool, inbox: &mut [u8]) -> io::Result<(usize, Came)> {
        if looks && self.alone {
            return self.look_for(inbox);
        }
        let start = now();
        let len = self.sleep_for(inbox)?;
        let came = if start.elapsed() < AT_ONCE { self.at_once() } else { Came::Alone };
        Ok((len, came))
    }
}

impl Channel for DevChannel {
    fn receive(&self, inbox: &mut [u8]) -> io::Result<usize> {
        let Some(gate) = &self.gate else { return self.sleep_for(inbox) };
        let looks = gate.listen();
        match self.next(looks, inbox) {
            Ok((len, came)) => {
                gate.took(came);
                Ok(len)
            }
            Err(e) => {
                gate.close();
                Err(e)
            }
        }
    }

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

/// Another descriptor of the same connection, with a request list of its own.
fn clone_device(device: BorrowedFd<'_>) -> base::Result<OwnedFd> {
    use rustix::fd::AsRawFd;
    const CLONE: rustix::ioctl::Opcode = rustix::ioctl::opcode::read::<u32>(DEV_IOC_MAGIC, 0);
    let fd = open_device()?;
    let old = device.as_raw_fd().cast_unsigned();
    // SAFETY: FUSE_DEV_IOC_CLONE reads one u32, the other descriptor's number,
    // which is open as long as `device` is borrowed.
    unsafe { rustix::ioctl::ioctl(&fd, rustix::ioctl::Setter::<CLONE, u32>::new(old)) }
        .map_err(|e| base::Error::io("cannot clone the FUSE device", e.into()))?;
    Ok(fd)
}
