//! The transport over io_uring (Linux 6.14 with `fuse.enable_uring`, protocol 7.42).
//!
//! # Theory
//! The kernel keeps a queue of requests for each core, and each queue has *entries*: buffers
//! that take a request, and later its answer. A [`RingEntry`] is a channel with a ring of its
//! own, and so a thread of its own. The thread commits an answer and waits for the next
//! request in one system call, where the classic transport needs two. It stays on the
//! queue's core, where its caller runs, so no other core has to be woken.
//!
//! An entry takes no request until its last one is answered, so handing the request to
//! another thread would free no entry. Instead a queue gets another entry when few are idle
//! ([`Queue::more`]), up to [`UringTransport::entries_max`]; as many requests may sleep as
//! there are entries. A request that finds none idle waits for the next answer on its queue:
//! an entry that is added later takes only newer requests. Therefore some entries are
//! always kept idle. The kernel prefers the entry that became idle last, so entries added
//! for a burst do not disturb afterwards.
//!
//! FORGET, INTERRUPT and notifications still use the descriptor, which the receiving threads
//! of the process read. Each entry costs a thread, a descriptor and a buffer, and the kernel
//! wants one for each core that the machine may ever have: a mount on two cores begins with
//! eight entries, one on 64 cores with 128. So this transport is opt-in for each mount. A
//! wait for a lock keeps its entry, so the transport is not for file systems that serve
//! locks.
//!
//! # States
//! An entry is *new*, *waiting* (the kernel has its buffers), *serving*, *answered* or
//! *gone*: new → waiting → serving → answered → waiting …; anything → gone.
//!
//! # Invariants
//! * An entry's buffers are touched only while it is serving, under its lock, and live as
//!   long as its ring.
//! * Its ring is used by its thread alone.
//! * `busy <= entries <= entries_max` of a queue. An entry counts from before it is made
//!   until it is dropped, and is busy while it is serving.
//! * INIT requests the flag only where rings of this kind can be made: the kernel sends
//!   nothing until every queue has an entry.

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
use crate::transport::{Channel, Queue, Transport};

type EntryRing = IoUring<squeue::Entry128, cqueue::Entry>;

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
    /// Entries of each core at first; half as many are kept idle.
    pub entries_min: usize,
    /// Most entries of each core, so most requests of one core that are served at once.
    pub entries_max: usize,
}

impl Default for UringTransport {
    fn default() -> Self {
        // Each is a thread, and machines of many cores have many queues.
        let share = |all: usize, least, most| (all / base::rt::parallelism()).clamp(least, most);
        UringTransport { entries_min: share(8, 2, 4), entries_max: share(128, 8, 64) }
    }
}

fn new_ring() -> io::Result<EntryRing> {
    EntryRing::builder().setup_single_issuer().setup_defer_taskrun().build(2)
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
    ) -> Result<Vec<Arc<dyn Queue>>> {
        if negotiated.flags & OVER_IO_URING == 0 {
            return Ok(Vec::new());
        }
        let queues = queues().ok_or_else(|| Error::bug("the number of queues is unknown"))?;
        let mut entries = Vec::new();
        let online = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
        for number in 0..queues {
            // The kernel wants an entry also for cores that may be added later.
            let idle = if is_in(&online, number) { self.entries_min.max(1) } else { 1 };
            let queue = Arc::new(CoreQueue {
                device: Arc::clone(device),
                number: number as u16,
                transfer: negotiated.max_transfer as usize,
                spare: self.entries_min.div_ceil(2),
                entries_max: AtomicUsize::new(self.entries_max.max(1)),
                entries: AtomicUsize::new(0),
                busy: AtomicUsize::new(0),
            });
            entries.extend(std::iter::from_fn(|| queue.entry(idle)));
        }
        Ok(entries)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EntryPhase {
    New,
    Waiting,
    Serving { unique: u64 },
    Answered,
    Gone,
}

struct EntryState {
    phase: EntryPhase,
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
struct CoreQueue {
    device: Arc<OwnedFd>,
    number: u16,
    /// Bytes of a request or an answer.
    transfer: usize,
    /// So many should be idle.
    spare: usize,
    /// Fewer once an entry could not be had.
    entries_max: AtomicUsize,
    entries: AtomicUsize,
    busy: AtomicUsize,
}

impl CoreQueue {
    /// Another entry, if fewer than `idle` are, and there may be one.
    fn entry(self: &Arc<CoreQueue>, idle: usize) -> Option<Arc<dyn Queue>> {
        let entries = self.entries.load(Ordering::Acquire);
        let wanted = self.busy.load(Ordering::Acquire) + idle;
        if entries >= wanted.min(self.entries_max.load(Ordering::Relaxed)) {
            return None;
        }
        let swap = self.entries.compare_exchange(
            entries,
            entries + 1,
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
        swap.ok().map(|_| Arc::new(RingEntry::new(Arc::clone(self))) as Arc<dyn Queue>)
    }
}

/// An entry of one of the kernel's queues.
struct RingEntry {
    queue: Arc<CoreQueue>,
    ring: Mutex<Option<EntryRing>>,
    state: Mutex<EntryState>,
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

impl RingEntry {
    fn new(queue: Arc<CoreQueue>) -> RingEntry {
        let mut headers = Box::new([0; HEADERS]);
        // Too large for its pages to be made at once: most entries see small requests, or none.
        let size = queue.transfer.max(crate::abi::consts::MIN_READ_BUFFER).max(POPULATED);
        let mut payload = BufMut::alloc(size + 1);
        let segments = Box::new([
            Segment { base: headers.as_mut_ptr() as u64, len: HEADERS as u64 },
            Segment { base: payload.as_mut_ptr() as u64, len: size as u64 },
        ]);
        RingEntry {
            queue,
            ring: Mutex::new(None),
            state: Mutex::new(EntryState {
                phase: EntryPhase::New,
                commit_id: 0,
                headers,
                payload,
                segments,
            }),
            answered: Condvar::new(),
        }
    }

    /// The ring, made by the thread that uses it.
    fn made<'a>(&self, ring: &'a mut Option<EntryRing>) -> io::Result<&'a mut EntryRing> {
        Ok(match ring {
            Some(ring) => ring,
            none => {
                // A caller that waits leaves its core to the thread that answers. Elsewhere
                // the thread serves as well, only slower.
                let _stays = base::rt::stay_on(usize::from(self.queue.number));
                none.insert(new_ring()?)
            }
        })
    }

    /// The command that gives the buffers to the kernel.
    fn command(&self, state: &EntryState, op: u32) -> squeue::Entry128 {
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
    fn fetch(&self, ring: &mut EntryRing) -> io::Result<()> {
        let entry = {
            let mut state = self.state.lock();
            while matches!(state.phase, EntryPhase::Serving { .. }) {
                self.answered.wait(&mut state);
            }
            let op = match state.phase {
                EntryPhase::New => REGISTER,
                EntryPhase::Answered => COMMIT_AND_FETCH,
                _ => return Err(Errno::NODEV.into()),
            };
            state.phase = EntryPhase::Waiting;
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
        state.phase = EntryPhase::Serving { unique: header.unique };
        self.queue.busy.fetch_add(1, Ordering::AcqRel);
        Ok(total)
    }
}

impl Drop for RingEntry {
    fn drop(&mut self) {
        if matches!(self.state.get_mut().phase, EntryPhase::Serving { .. }) {
            self.queue.busy.fetch_sub(1, Ordering::AcqRel);
        }
        self.queue.entries.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Queue for RingEntry {
    fn receive(&self, inbox: &mut [u8]) -> io::Result<usize> {
        let mut ring = self.ring.lock();
        let fresh = ring.is_none();
        let fetched = self.made(&mut ring).and_then(|ring| self.fetch(ring));
        if fetched.is_err() && fresh {
            self.queue
                .entries_max
                .fetch_min(self.queue.entries.load(Ordering::Acquire) - 1, Ordering::Relaxed);
        }
        let got = fetched.and_then(|()| self.take(inbox));
        if got.is_err() {
            self.state.lock().phase = EntryPhase::Gone;
        }
        got
    }

    fn more(&self) -> Option<Arc<dyn Queue>> {
        self.queue.entry(self.queue.spare)
    }
}

impl Channel for RingEntry {
    fn reply(&self, message: &[IoSlice<'_>]) -> io::Result<()> {
        let mut state = self.state.lock();
        let head = message.first().map_or(&[][..], |part| &part[..]);
        let out = OutHeader::take(&mut &head[..]).ok_or_else(|| broken("a reply's header"))?;
        if state.phase != (EntryPhase::Serving { unique: out.unique }) {
            return Err(Errno::NOENT.into());
        }
        let EntryState { headers, payload, .. } = &mut *state;
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
        state.phase = EntryPhase::Answered;
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

    fn queue(entries_max: usize, spare: usize) -> Arc<CoreQueue> {
        let device = std::fs::File::open("/dev/null").unwrap();
        Arc::new(CoreQueue {
            device: Arc::new(device.into()),
            number: 0,
            transfer: 1 << 20,
            spare,
            entries_max: AtomicUsize::new(entries_max),
            entries: AtomicUsize::new(0),
            busy: AtomicUsize::new(0),
        })
    }

    /// Each mount took twenty megabytes before its first request.
    #[test]
    fn idle_entries_take_no_memory() {
        let queue = queue(64, 1);
        let before = resident();
        let entries: Vec<_> = std::iter::from_fn(|| queue.entry(64)).collect();
        assert_eq!(entries.len(), 64);
        let more = resident().saturating_sub(before);
        assert!(more < 16 << 20, "{more} bytes");
    }

    #[test]
    fn a_queue_has_idle_seats_up_to_its_limit() {
        let queue = queue(5, 2);
        let first: Vec<_> = std::iter::from_fn(|| queue.entry(2)).collect();
        assert_eq!(first.len(), 2);
        queue.busy.store(1, Ordering::Release);
        let more = first[0].more().unwrap();
        assert!(first[0].more().is_none(), "two are idle");
        queue.busy.store(3, Ordering::Release);
        let entries_max: Vec<_> = std::iter::from_fn(|| first[1].more()).collect();
        assert_eq!(entries_max.len(), 2, "five are the most");
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
