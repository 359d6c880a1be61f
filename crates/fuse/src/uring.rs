//! The transport over io_uring (Linux 6.14 with `fuse.enable_uring`, protocol 7.42).
//!
//! # Theory
//! The kernel keeps a queue of requests for each core, and each queue has *entries*: buffers
//! that take a request, and later its answer. An entry is a [`Seat`] here: a channel with
//! a ring and so a thread of its own. Its thread commits an answer and waits for the next
//! request in one system call, where the classic transport needs two. It stays on the
//! queue's core, where its caller is and waits: no other core has to be woken. While a seat's request is not answered nothing else
//! comes there ([`Channel::is_shared`]), so handing it over would free nobody; there are
//! several seats a queue, so that some may sleep.
//!
//! FORGET, INTERRUPT and notifications still take the descriptor: the first channel is a
//! classic one. Whoever waits for a lock keeps its seat, so this transport is not for file
//! systems that serve locks.
//!
//! # States
//! A seat is *new*, *waiting* (the kernel has its buffers), *serving*, *answered* or
//! *gone*: new → waiting → serving → answered → waiting …; anything → gone.
//!
//! # Invariants
//! * A seat's buffers are touched only while it is serving, under its lock, and live as long
//!   as its ring.
//! * Its ring is used by its thread alone.
//! * The flag is asked for in INIT only where rings of this kind can be made: the kernel
//!   sends nothing until every queue has an entry.

use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use base::rt::{Condvar, Mutex};
use base::{BufMut, Error, Result};
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::io::Errno;

use crate::abi::Wire;
use crate::abi::consts::OVER_IO_URING;
use crate::abi::structs::{InHeader, OutHeader};
use crate::fs::Negotiated;
use crate::transport::{Channel, DevChannel, DevTransport, Transport};

type Ring = IoUring<squeue::Entry128, cqueue::Entry>;

/// Commands of `enum fuse_uring_cmd`.
const REGISTER: u32 = 1;
const COMMIT_AND_FETCH: u32 = 2;
/// `struct fuse_uring_req_header`: in and out header, the operation's own, and the entry's.
const OP_AT: usize = 128;
const OP_MAX: usize = 128;
const COMMIT_ID_AT: usize = 264;
const PAYLOAD_SIZE_AT: usize = 272;
const HEADERS: usize = 288;
/// In `struct fuse_uring_cmd_req`.
const CMD_COMMIT_AT: usize = 8;
const CMD_QUEUE_AT: usize = 16;
/// In `struct io_uring_sqe`.
const SQE_ADDR_AT: usize = 16;
const SQE_LEN_AT: usize = 24;
/// Buffers of an entry: headers and payload.
const SEGMENTS: u32 = 2;
/// Queues that a machine may have.
const QUEUES_MAX: usize = 4096;

const _: () = assert!(size_of::<squeue::Entry128>() == 128);

/// The transport; see the module.
#[derive(Clone, Copy, Debug)]
pub struct UringTransport {
    /// Seats for each core: so many requests that come from one are served at once.
    pub seats: usize,
}

impl Default for UringTransport {
    fn default() -> Self {
        // Who sleeps keeps a seat; threads are few on machines of many cores.
        UringTransport { seats: (16 / base::rt::parallelism()).clamp(2, 8) }
    }
}

fn new_ring() -> io::Result<Ring> {
    Ring::builder().setup_single_issuer().setup_defer_taskrun().build(2)
}

/// Cores that the kernel has queues for.
fn queues() -> Option<usize> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible").ok()?;
    queues_in(&text)
}

/// The number behind the last of a list such as `0-3,8-11`.
fn queues_in(list: &str) -> Option<usize> {
    let last = list.trim().rsplit(['-', ',']).next()?;
    let last: usize = last.parse().ok()?;
    (last < QUEUES_MAX).then_some(last + 1)
}

impl UringTransport {
    /// Whether this kernel offers it, and lets us.
    pub fn is_available() -> bool {
        let enabled = std::fs::read_to_string("/sys/module/fuse/parameters/enable_uring");
        enabled.is_ok_and(|text| matches!(text.trim(), "Y" | "1"))
            && queues().is_some()
            && new_ring().is_ok()
    }
}

impl Transport for UringTransport {
    fn init_flags(&self) -> u64 {
        if Self::is_available() { OVER_IO_URING } else { 0 }
    }

    fn channels(
        &self,
        device: OwnedFd,
        count: usize,
        negotiated: &Negotiated,
    ) -> Result<Vec<Arc<dyn Channel>>> {
        if negotiated.flags & OVER_IO_URING == 0 {
            return DevTransport.channels(device, count, negotiated);
        }
        let queues = queues().ok_or_else(|| Error::bug("queues that nobody can count"))?;
        let shared = Arc::new(
            device.try_clone().map_err(|e| Error::io("cannot duplicate a descriptor", e))?,
        );
        let mut channels: Vec<Arc<dyn Channel>> = vec![Arc::new(DevChannel::new(device))];
        for seat in 0..self.seats.max(1) * queues {
            let queue = (seat % queues) as u16;
            channels.push(Arc::new(Seat::new(&shared, queue, negotiated.max_transfer as usize)));
        }
        Ok(channels)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    New,
    Waiting,
    Serving { unique: u64 },
    Answered,
    Gone,
}

struct State {
    phase: Phase,
    /// The kernel's number for the request.
    commit_id: u64,
    headers: Box<[u8; HEADERS]>,
    payload: BufMut,
    /// What a registration points to.
    segments: Box<[Segment; 2]>,
}

/// `struct iovec`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Segment {
    base: u64,
    len: u64,
}

/// An entry of one of the kernel's queues.
struct Seat {
    device: Arc<OwnedFd>,
    queue: u16,
    /// Made by the thread that uses it.
    ring: Mutex<Option<Ring>>,
    state: Mutex<State>,
    answered: Condvar,
}

fn put(to: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(slot) = to.get_mut(at..at + bytes.len()) {
        slot.copy_from_slice(bytes);
    }
}

fn number<const N: usize>(from: &[u8], at: usize) -> [u8; N] {
    from.get(at..).and_then(|rest| rest.first_chunk().copied()).unwrap_or([0; N])
}

fn broken(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

impl Seat {
    fn new(device: &Arc<OwnedFd>, queue: u16, transfer: usize) -> Seat {
        let mut headers = Box::new([0; HEADERS]);
        let mut payload = BufMut::alloc(transfer.max(crate::abi::consts::MIN_READ_BUFFER));
        let segments = Box::new([
            Segment { base: headers.as_mut_ptr() as u64, len: HEADERS as u64 },
            Segment { base: payload.as_mut_ptr() as u64, len: payload.len() as u64 },
        ]);
        Seat {
            device: Arc::clone(device),
            queue,
            ring: Mutex::new(None),
            state: Mutex::new(State {
                phase: Phase::New,
                commit_id: 0,
                headers,
                payload,
                segments,
            }),
            answered: Condvar::new(),
        }
    }

    /// The command that gives the buffers to the kernel.
    fn command(&self, state: &State, op: u32) -> squeue::Entry128 {
        let mut request = [0; 80];
        put(&mut request, CMD_COMMIT_AT, &state.commit_id.to_ne_bytes());
        put(&mut request, CMD_QUEUE_AT, &self.queue.to_ne_bytes());
        let fd = types::Fd(self.device.as_raw_fd());
        let mut entry = opcode::UringCmd80::new(fd, op).cmd(request).build();
        // SAFETY: an Entry128 is the kernel's `io_uring_sqe` of 128 plain bytes, borrowed
        // mutably here alone.
        let bytes: &mut [u8; 128] = unsafe { &mut *(&raw mut entry).cast() };
        put(bytes, SQE_ADDR_AT, &(state.segments.as_ptr() as u64).to_ne_bytes());
        put(bytes, SQE_LEN_AT, &SEGMENTS.to_ne_bytes());
        entry
    }

    /// Commits what was answered and has the kernel put the next request into the buffers.
    fn fetch(&self, ring: &mut Ring) -> io::Result<()> {
        let entry = {
            let mut state = self.state.lock();
            while matches!(state.phase, Phase::Serving { .. }) {
                self.answered.wait(&mut state);
            }
            let op = match state.phase {
                Phase::New => REGISTER,
                Phase::Answered => COMMIT_AND_FETCH,
                _ => return Err(Errno::NODEV.into()),
            };
            state.phase = Phase::Waiting;
            self.command(&state, op)
        };
        // SAFETY: the command points to buffers of `self.state`, which outlives the ring: the
        // ring is dropped first, by the same owner.
        unsafe { ring.submission().push(&entry) }.map_err(|_| broken("a full ring"))?;
        loop {
            match ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
            let Some(done) = ring.completion().next() else { continue };
            return match done.result() {
                0.. => Ok(()),
                e => Err(io::Error::from_raw_os_error(-e)),
            };
        }
    }

    /// Puts the arrived request together in `inbox`.
    fn take(&self, inbox: &mut [u8]) -> io::Result<usize> {
        let mut state = self.state.lock();
        let header = InHeader::take(&mut &state.headers[..]).ok_or_else(|| broken("header"))?;
        state.commit_id = u64::from_ne_bytes(number(&state.headers[..], COMMIT_ID_AT));
        let payload = u32::from_ne_bytes(number(&state.headers[..], PAYLOAD_SIZE_AT)) as usize;
        let total = header.len as usize;
        let op = total.checked_sub(InHeader::SIZE + payload).filter(|&n| n <= OP_MAX);
        let op = op.ok_or_else(|| broken("sizes of a request"))?;
        let parts = [
            state.headers.get(..InHeader::SIZE),
            state.headers.get(OP_AT..OP_AT + op),
            state.payload.get(..payload),
        ];
        let mut rest = inbox.get_mut(..total).ok_or_else(|| broken("a request too long"))?;
        for part in parts {
            let part = part.ok_or_else(|| broken("sizes of a request"))?;
            let (head, tail) =
                rest.split_at_mut_checked(part.len()).ok_or_else(|| broken("sizes"))?;
            head.copy_from_slice(part);
            rest = tail;
        }
        state.phase = Phase::Serving { unique: header.unique };
        Ok(total)
    }
}

impl Channel for Seat {
    fn receive(&self, inbox: &mut [u8]) -> io::Result<usize> {
        let mut ring = self.ring.lock();
        let ring = match &mut *ring {
            Some(ring) => ring,
            none => {
                // Who waits for an answer leaves its core to the thread that gives it; one
                // that may not be there serves as well, only slower.
                let _stays = base::rt::stay_on(usize::from(self.queue));
                none.insert(new_ring()?)
            }
        };
        let got = self.fetch(ring).and_then(|()| self.take(inbox));
        if got.is_err() {
            self.state.lock().phase = Phase::Gone;
        }
        got
    }

    fn is_shared(&self) -> bool {
        false
    }

    fn reply(&self, message: &[IoSlice<'_>]) -> io::Result<()> {
        let mut state = self.state.lock();
        let head = message.first().map_or(&[][..], |part| &part[..]);
        let out = OutHeader::take(&mut &head[..]).ok_or_else(|| broken("a reply's header"))?;
        if state.phase != (Phase::Serving { unique: out.unique }) {
            return Err(Errno::NOENT.into());
        }
        let State { headers, payload, .. } = &mut *state;
        put(&mut headers[..], 0, head.get(..OutHeader::SIZE).unwrap_or_default());
        let first = head.get(OutHeader::SIZE..).unwrap_or_default();
        let others = message.iter().skip(1).map(|part| &part[..]);
        let mut used = 0;
        for part in std::iter::once(first).chain(others) {
            let slot = payload.get_mut(used..used + part.len());
            slot.ok_or_else(|| broken("a reply too long"))?.copy_from_slice(part);
            used += part.len();
        }
        put(&mut headers[..], PAYLOAD_SIZE_AT, &(used as u32).to_ne_bytes());
        state.phase = Phase::Answered;
        drop(state);
        self.answered.notify_one();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_are_counted() {
        assert_eq!(queues_in("0-1\n"), Some(2));
        assert_eq!(queues_in("0"), Some(1));
        assert_eq!(queues_in("0-3,8-11\n"), Some(12));
        assert_eq!(queues_in("0-99999999"), None);
        assert_eq!(queues_in("x"), None);
    }
}
