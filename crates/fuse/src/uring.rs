//! The transport over io_uring (Linux 6.14 with `fuse.enable_uring`, protocol 7.42).
//!
//! # Theory
//! The kernel keeps a queue of requests for each core, and each queue has *entries*: buffers
//! that take a request, and later its answer. An entry is a [`Seat`] here: a channel with
//! a ring and so a thread of its own. Its thread commits an answer and waits for the next
//! request in one system call, where the classic transport needs two. It stays on the
//! queue's core, where its caller is and waits: no other core has to be woken. While a
//! seat's request is not answered nothing else comes there, so
//! handing it over would free nobody. Instead a queue gets another seat when few of its
//! seats are left idle ([`Receives::more`]), up to [`UringTransport::most`]: as many requests
//! may sleep as there are seats. The kernel gives a request to the seat that became idle
//! last, so seats that were needed once do not disturb later. A request that finds none
//! idle waits for the next answer on its queue, whatever is made meanwhile: a seat that
//! comes takes only new requests. So some are always kept ahead.
//!
//! FORGET, INTERRUPT and notifications still take the descriptor, which the receiving threads
//! of the process read. Each seat costs a thread, a descriptor and a buffer, and the kernel
//! wants one for each core that the machine may ever have: a mount on two cores begins with
//! eight seats, one on 64 cores with 128. So a mount has this transport only where
//! it is asked for. Whoever waits for a lock keeps its seat, so this transport is not for file
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
//! * `busy <= seats <= most` of a queue; a seat counts from before it is made until it is
//!   dropped, and is busy while it is serving.
//! * The flag is asked for in INIT only where rings of this kind can be made: the kernel
//!   sends nothing until every queue has an entry.

use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base::rt::{Condvar, Mutex};
use base::{BufMut, Error, Result};
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::io::Errno;

use crate::abi::Wire;
use crate::abi::consts::OVER_IO_URING;
use crate::abi::structs::{InHeader, OutHeader};
use crate::fs::Negotiated;
use crate::transport::{Channel, Queue as Receives, Transport};

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
/// Buffers up to here have pages from the start ([`BufMut::alloc`]).
const POPULATED: usize = 1 << 20;
/// Queues that a machine may have.
const QUEUES_MAX: usize = 4096;

const _: () = assert!(size_of::<squeue::Entry128>() == 128);

/// The transport; see the module.
#[derive(Clone, Copy, Debug)]
pub struct UringTransport {
    /// Seats for each core at first; half as many are kept idle.
    pub few: usize,
    /// Seats for each core at most: so many requests that come from one are served at once.
    pub most: usize,
}

impl Default for UringTransport {
    fn default() -> Self {
        // Each is a thread, and machines of many cores have many queues.
        let share = |all: usize, least, most| (all / base::rt::parallelism()).clamp(least, most);
        UringTransport { few: share(8, 2, 4), most: share(128, 8, 64) }
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

/// Whether a list such as `0-3,8-11` has that number.
fn is_in(list: &str, number: usize) -> bool {
    list.trim().split(',').any(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let ends = first.parse::<usize>().ok().zip(last.parse::<usize>().ok());
        ends.is_some_and(|(first, last)| (first..=last).contains(&number))
    })
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

    fn queues(
        &self,
        device: &Arc<OwnedFd>,
        negotiated: &Negotiated,
    ) -> Result<Vec<Arc<dyn Receives>>> {
        if negotiated.flags & OVER_IO_URING == 0 {
            return Ok(Vec::new());
        }
        let queues = queues().ok_or_else(|| Error::bug("queues that nobody can count"))?;
        let mut seats = Vec::new();
        let online = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
        for number in 0..queues {
            // The kernel wants a seat even of cores that may come one day.
            let few = if is_in(&online, number) { self.few.max(1) } else { 1 };
            let queue = Arc::new(Queue {
                device: Arc::clone(device),
                number: number as u16,
                transfer: negotiated.max_transfer as usize,
                spare: self.few.div_ceil(2),
                most: AtomicUsize::new(self.most.max(1)),
                seats: AtomicUsize::new(0),
                busy: AtomicUsize::new(0),
            });
            seats.extend(std::iter::from_fn(|| queue.seat(few)));
        }
        Ok(seats)
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

/// The requests of one core.
struct Queue {
    device: Arc<OwnedFd>,
    number: u16,
    /// Bytes of a request or an answer.
    transfer: usize,
    /// So many should be idle.
    spare: usize,
    /// Fewer once a seat could not be had.
    most: AtomicUsize,
    seats: AtomicUsize,
    busy: AtomicUsize,
}

impl Queue {
    /// Another seat, if fewer than `idle` are, and there may be one.
    fn seat(self: &Arc<Queue>, idle: usize) -> Option<Arc<dyn Receives>> {
        let seats = self.seats.load(Ordering::Acquire);
        let wanted = self.busy.load(Ordering::Acquire) + idle;
        if seats >= wanted.min(self.most.load(Ordering::Relaxed)) {
            return None;
        }
        let swap =
            self.seats.compare_exchange(seats, seats + 1, Ordering::AcqRel, Ordering::Relaxed);
        swap.ok().map(|_| Arc::new(Seat::new(Arc::clone(self))) as Arc<dyn Receives>)
    }
}

/// An entry of one of the kernel's queues.
struct Seat {
    queue: Arc<Queue>,
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
    fn new(queue: Arc<Queue>) -> Seat {
        let mut headers = Box::new([0; HEADERS]);
        // Too large for its pages to be made at once: most seats see small requests, or none.
        let size = queue.transfer.max(crate::abi::consts::MIN_READ_BUFFER).max(POPULATED);
        let mut payload = BufMut::alloc(size + 1);
        let segments = Box::new([
            Segment { base: headers.as_mut_ptr() as u64, len: HEADERS as u64 },
            Segment { base: payload.as_mut_ptr() as u64, len: size as u64 },
        ]);
        Seat {
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

    /// The ring, made by the thread that uses it.
    fn made<'a>(&self, ring: &'a mut Option<Ring>) -> io::Result<&'a mut Ring> {
        Ok(match ring {
            Some(ring) => ring,
            none => {
                // Who waits for an answer leaves its core to the thread that gives it; one
                // that may not be there serves as well, only slower.
                let _stays = base::rt::stay_on(usize::from(self.queue.number));
                none.insert(new_ring()?)
            }
        })
    }

    /// The command that gives the buffers to the kernel.
    fn command(&self, state: &State, op: u32) -> squeue::Entry128 {
        let mut request = [0; 80];
        put(&mut request, CMD_COMMIT_AT, &state.commit_id.to_ne_bytes());
        put(&mut request, CMD_QUEUE_AT, &self.queue.number.to_ne_bytes());
        let fd = types::Fd(self.queue.device.as_raw_fd());
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
        self.queue.busy.fetch_add(1, Ordering::AcqRel);
        Ok(total)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if matches!(self.state.get_mut().phase, Phase::Serving { .. }) {
            self.queue.busy.fetch_sub(1, Ordering::AcqRel);
        }
        self.queue.seats.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Receives for Seat {
    fn receive(&self, inbox: &mut [u8]) -> io::Result<usize> {
        let mut ring = self.ring.lock();
        let fresh = ring.is_none();
        let fetched = self.made(&mut ring).and_then(|ring| self.fetch(ring));
        if fetched.is_err() && fresh {
            self.queue
                .most
                .fetch_min(self.queue.seats.load(Ordering::Acquire) - 1, Ordering::Relaxed);
        }
        let got = fetched.and_then(|()| self.take(inbox));
        if got.is_err() {
            self.state.lock().phase = Phase::Gone;
        }
        got
    }

    fn more(&self) -> Option<Arc<dyn Receives>> {
        self.queue.seat(self.queue.spare)
    }
}

impl Channel for Seat {
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
        self.queue.busy.fetch_sub(1, Ordering::AcqRel);
        drop(state);
        self.answered.notify_one();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resident() -> usize {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
    }

    fn queue(most: usize, spare: usize) -> Arc<Queue> {
        let device = std::fs::File::open("/dev/null").unwrap();
        Arc::new(Queue {
            device: Arc::new(device.into()),
            number: 0,
            transfer: 1 << 20,
            spare,
            most: AtomicUsize::new(most),
            seats: AtomicUsize::new(0),
            busy: AtomicUsize::new(0),
        })
    }

    /// Each mount took twenty megabytes before anybody used it.
    #[test]
    fn seats_that_serve_nobody_take_no_memory() {
        let queue = queue(64, 1);
        let before = resident();
        let seats: Vec<_> = std::iter::from_fn(|| queue.seat(64)).collect();
        assert_eq!(seats.len(), 64);
        let more = resident().saturating_sub(before);
        assert!(more < 16 << 20, "{more} bytes");
    }

    #[test]
    fn a_queue_has_idle_seats_up_to_its_limit() {
        let queue = queue(5, 2);
        let first: Vec<_> = std::iter::from_fn(|| queue.seat(2)).collect();
        assert_eq!(first.len(), 2);
        queue.busy.store(1, Ordering::Release);
        let more = first[0].more().unwrap();
        assert!(first[0].more().is_none(), "two are idle");
        queue.busy.store(3, Ordering::Release);
        let most: Vec<_> = std::iter::from_fn(|| first[1].more()).collect();
        assert_eq!(most.len(), 2, "five are the most");
        drop(more);
        assert!(first[0].more().is_some(), "one is gone");
    }

    #[test]
    fn queues_are_counted() {
        assert_eq!(queues_in("0-1\n"), Some(2));
        assert_eq!(queues_in("0"), Some(1));
        assert_eq!(queues_in("0-3,8-11\n"), Some(12));
        assert_eq!(queues_in("0-99999999"), None);
        assert_eq!(queues_in("x"), None);
        let list = (0..14).filter(|&n| is_in("0-3,8,10-11\n", n)).collect::<Vec<_>>();
        assert_eq!(list, [0, 1, 2, 3, 8, 10, 11]);
        assert!(!is_in("", 0) && !is_in("x-9", 4));
    }
}
