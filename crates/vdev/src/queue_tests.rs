use super::*;
use base::rt::OneShot;
use base::{BufMut, ErrorKind};
use device::{Caps, DeviceStats, MemDevice};
use proptest::prelude::*;

/// A device that completes operations when the test calls `complete`, in any order.
struct HandDevice {
    mem: MemDevice,
    bad: std::ops::Range<u64>,
    ops: Mutex<Vec<Op>>,
    /// Offsets and lengths in order of arrival.
    seen: Mutex<Vec<(u64, u64)>>,
    /// The most operations that it accepts at once.
    most: usize,
}

const SIZE: usize = 1 << 16;

impl HandDevice {
    fn new(bad: std::ops::Range<u64>, limits: QueueLimits) -> Arc<HandDevice> {
        let most = limits.classes.iter().map(|c| c.max as usize).sum();
        HandDevice::with_most(bad, most)
    }

    fn with_most(bad: std::ops::Range<u64>, most: usize) -> Arc<HandDevice> {
        let (ops, seen) = (Mutex::default(), Mutex::default());
        Arc::new(HandDevice { mem: MemDevice::new("hand", SIZE), bad, ops, seen, most })
    }

    fn see(&self, io: &Io, ops: &[Op]) {
        let (from, len) = (io.offset(), io.len());
        if let Io::Write { bufs, .. } = io {
            assert!(bufs.len() <= BUFS_MAX && !bufs.is_empty());
        }
        let write = |io: &Io| matches!(io, Io::Write { .. });
        for other in ops.iter().filter(|other| write(&other.io) && write(io)) {
            let start = other.io.offset();
            assert!(
                start + other.io.len() <= from || from + len <= start,
                "overlapping operations in flight"
            );
        }
        self.seen.lock().push((from, len));
    }

    fn is_bad(&self, io: &Io) -> bool {
        let (from, end) = (io.offset(), io.offset() + io.len());
        from < self.bad.end && self.bad.start < end
    }

    /// Completes one of the operations in flight; false if there is none.
    fn complete(&self, which: usize) -> bool {
        let mut ops = self.ops.lock();
        if ops.is_empty() {
            return false;
        }
        let at = which % ops.len();
        let op = ops.remove(at);
        drop(ops);
        if self.is_bad(&op.io) {
            op.complete(Err(Error::new(ErrorKind::Io, "bad sector")));
        } else {
            self.mem.submit(vec![op]);
        }
        true
    }
}

impl Device for HandDevice {
    fn caps(&self) -> &Caps {
        self.mem.caps()
    }
    fn size(&self) -> u64 {
        self.mem.size()
    }
    fn submit(&self, batch: Vec<Op>) {
        let mut ops = self.ops.lock();
        for op in batch {
            self.see(&op.io, &ops);
            ops.push(op);
        }
        assert!(ops.len() <= self.most, "{} operations in flight", ops.len());
    }
    fn run(&self, io: Io) -> Completion {
        self.see(&io, &self.ops.lock());
        if self.is_bad(&io) {
            return Completion { io, result: Err(Error::new(ErrorKind::Io, "bad sector")) };
        }
        self.mem.run(io)
    }
    fn describe(&self) -> String {
        "hand".to_owned()
    }
    fn stats(&self) -> &DeviceStats {
        self.mem.stats()
    }
}

fn queue(device: Arc<dyn Device>, limits: QueueLimits) -> Arc<LeafQueue> {
    let tuning = Arc::new(Tuning::default());
    tuning.set(limits);
    LeafQueue::new(device, base::Guid(1), Arc::default(), tuning)
}

fn limits(active: u32) -> QueueLimits {
    let own = ClassLimits { min: 1, max: active };
    QueueLimits {
        classes: [own; CLASSES],
        adaptive: false,
        aggregation_limit: 4096,
        in_flight_max: 1 << 30,
        ..QueueLimits::default()
    }
}

type CompletionLog = Arc<Mutex<Vec<(usize, bool)>>>;

fn request(log: &CompletionLog, id: usize, offset: u64, len: usize, byte: u8) -> WriteRequest {
    let mut buf = BufMut::alloc(len);
    buf.fill(byte);
    let log = Arc::clone(log);
    WriteRequest {
        offset,
        len: len as u64,
        bufs: vec![buf.freeze()],
        priority: WritePriority::AsyncWrite,
        optional: false,
        done: Callback::new(move |result: Result<()>| log.lock().push((id, result.is_ok()))),
    }
}

#[test]
fn neighbours_merge_in_the_order_of_sectors() {
    let device = HandDevice::new(0..0, limits(1));
    let queue = queue(device.clone(), limits(1));
    let log = CompletionLog::default();
    // The first is sent at once; requests that arrive meanwhile are sorted and merged.
    for (id, sector) in [20u64, 9, 30, 8, 21, 7, 22].into_iter().enumerate() {
        queue.submit(vec![request(&log, id, sector * 512, 512, sector as u8)]);
    }
    while device.complete(0) {}
    let seen: Vec<_> = device.seen.lock().iter().map(|(o, l)| (o / 512, l / 512)).collect();
    assert_eq!(seen, [(20, 1), (7, 3), (21, 2), (30, 1)]);
    assert_eq!(log.lock().len(), 7);
}

/// Writers with ascending offsets, slightly out of order, into a full queue.
#[test]
fn stragglers_do_not_keep_a_stream_from_merging() {
    let device = HandDevice::new(0..0, limits(1));
    let queue = queue(device.clone(), limits(1));
    let log = CompletionLog::default();
    let write = |i: u64| queue.submit(vec![request(&log, 0, i * 512, 512, 1)]);
    // Every other one arrives late, when its neighbour is already in the device.
    for i in 0..10 {
        write(2 * i + 1);
        write(2 * i);
        device.complete(0);
    }
    (20..40).for_each(write);
    while device.complete(0) {}
    let seen = device.seen.lock().clone();
    let stragglers = seen.iter().filter(|(at, _)| *at < 20 * 512).count();
    assert!(stragglers <= 20 && seen.len() <= stragglers + 4, "{seen:?}");
    let last = seen.iter().rev().take(3).map(|s| s.1).max();
    assert_eq!(last, Some(4096), "the stream's tail is merged: {seen:?}");
}

#[test]
fn a_straggler_is_served_within_a_sweep() {
    let device = HandDevice::new(0..0, limits(1));
    let queue = queue(device.clone(), QueueLimits { aggregation_limit: 0, ..limits(1) });
    let log = CompletionLog::default();
    let write = |i: u64| queue.submit(vec![request(&log, i as usize, i * 512, 512, 1)]);
    (10..15).for_each(write);
    write(3);
    for i in 15..30 {
        write(i);
        device.complete(0);
    }
    let order: Vec<_> = device.seen.lock().iter().map(|(o, _)| o / 512).collect();
    assert!(order.iter().position(|&o| o == 3).is_some_and(|at| at <= 5), "{order:?}");
    while device.complete(0) {}
}

#[test]
fn a_merged_write_is_bounded_in_bytes_and_buffers() {
    let device = HandDevice::new(0..0, limits(1));
    let queue = queue(device.clone(), limits(1));
    let log = CompletionLog::default();
    let mut batch: Vec<WriteRequest> =
        (0..20).map(|i| request(&log, i, i as u64 * 512, 512, 1)).collect();
    // Many small buffers in one request leave no room for another request.
    let many: Vec<Buf> = (0..BUFS_MAX).map(|_| Buf::zeros(1)).collect();
    batch.push(WriteRequest { len: 256, bufs: many, ..request(&log, 20, 10240, 512, 1) });
    batch.push(request(&log, 21, 10240 + 256, 9000, 1));
    queue.submit(batch);
    while device.complete(0) {}
    let seen = device.seen.lock().clone();
    assert_eq!(seen, [(0, 4096), (4096, 4096), (8192, 2048), (10240, 256), (10496, 9000)]);
}

#[test]
fn optional_zeros_are_written_between_others_alone() {
    let device = HandDevice::new(0..0, limits(1));
    let queue = queue(device.clone(), limits(1));
    let log = CompletionLog::default();
    let optional = |id, sector: u64| WriteRequest {
        optional: true,
        ..request(&log, id, sector * 512, 512, 9)
    };
    let plain = |id, sector: u64| request(&log, id, sector * 512, 512, 1);
    let batch = vec![plain(0, 0), optional(1, 1), plain(2, 2), optional(3, 3), optional(4, 8)];
    queue.submit(batch);
    while device.complete(0) {}
    assert_eq!(*device.seen.lock(), [(0, 1536)]);
    let mut over = log.lock().clone();
    over.sort_unstable();
    assert_eq!(over, [(0, true), (1, true), (2, true), (3, true), (4, true)]);
    assert_eq!(device.mem.peek(512, 1).unwrap(), [9]);
}

#[test]
fn synchronous_writes_go_first() {
    let device = HandDevice::new(0..0, limits(1));
    let queue = queue(device.clone(), limits(1));
    let log = CompletionLog::default();
    queue.submit(vec![request(&log, 0, 0, 512, 1)]);
    queue.submit(vec![request(&log, 1, 8192, 512, 1)]);
    let sync = WritePriority::SyncWrite;
    queue.submit(vec![WriteRequest { priority: sync, ..request(&log, 2, 16384, 512, 1) }]);
    assert_eq!(device.ops.lock().len(), 2, "a class of its own");
    while device.complete(1) {}
    while device.complete(0) {}
    assert_eq!(*device.seen.lock(), [(0, 512), (16384, 512), (8192, 512)]);
}

/// Handing a lone synchronous write to another thread and back cost a third of its
/// time.
#[test]
fn a_waiting_caller_writes_by_itself_if_it_may() {
    let device = HandDevice::new(0..0, limits(1));
    let queue = queue(device.clone(), limits(1));
    let (log, awaited) = (CompletionLog::default(), WritePriority::Awaited);
    let write = |id, at| {
        queue.submit(vec![WriteRequest { priority: awaited, ..request(&log, id, at, 512, 1) }]);
    };
    queue.submit(vec![request(&log, 0, 0, 512, 1)]);
    write(1, 8192);
    assert_eq!(*log.lock(), [(1, true)], "beside asynchronous writes");
    // Neither before a request that it overlaps, nor more at once than the class
    // allows.
    write(2, 0);
    queue.submit(vec![WriteRequest {
        priority: WritePriority::SyncWrite,
        ..request(&log, 3, 16384, 512, 1)
    }]);
    write(4, 8192);
    assert_eq!(log.lock().len(), 1);
    while device.complete(0) {}
    assert_eq!(log.lock().len(), 5);
    queue.drain();
    write(5, 0);
    assert_eq!(log.lock().len(), 6);
    assert_eq!(queue.state.lock().active, [0; CLASSES]);
}

#[test]
fn small_writes_go_deeper_than_large_ones() {
    for (len, deep) in [(512, 32), (1024, 32), (2048, 20), (4096, 10)] {
        let limits = QueueLimits { aggregation_limit: 4096, ..QueueLimits::default() };
        let device = HandDevice::with_most(0..0, 32);
        let queue = queue(device.clone(), limits);
        let log = CompletionLog::default();
        let places = || (0..8).map(|i| i * 8192).chain((0..5).map(|i| 4096 + i * 8192));
        let places: Vec<u64> = match len {
            4096 => places().collect(),
            // Never adjacent to another.
            _ => (0..(SIZE / 2 / len) as u64).map(|i| i * 2 * len as u64).collect(),
        };
        let mut batch: Vec<_> = places.iter().map(|at| request(&log, 0, *at, len, 1)).collect();
        queue.submit(std::mem::take(&mut batch));
        assert_eq!(device.ops.lock().len(), deep.min(places.len()), "of {len} bytes");
        while device.complete(0) {}
    }
}

/// Requests a read; returns whether the caller makes it at once.
fn request_read(
    queue: &Arc<LeafQueue>,
    class: IoClass,
    offset: u64,
    len: u64,
) -> (Option<ReadPermit>, Option<WaitingRead>) {
    match queue.request_read(class, offset, len) {
        ReadAdmission::Go(permit) => (Some(permit), None),
        ReadAdmission::Wait(waiting) => (None, Some(waiting)),
    }
}

#[test]
fn reads_go_at_once_while_there_is_room() {
    let device = HandDevice::new(0..0, limits(2));
    let queue = queue(device.clone(), limits(2));
    let (first, _) = request_read(&queue, IoClass::SyncRead, 0, 512);
    let (second, _) = request_read(&queue, IoClass::SyncRead, 512, 512);
    let (third, waits) = request_read(&queue, IoClass::SyncRead, 1024, 512);
    assert!(first.is_some() && second.is_some() && third.is_none());
    assert_eq!(queue.depths()[0], (1, 2));
    assert!(device.ops.lock().is_empty(), "the readers read themselves");
    first.unwrap().end(true, false);
    assert_eq!((queue.depths()[0], device.ops.lock().len()), ((0, 2), 1));
    assert!(device.complete(0));
    assert_eq!(waits.unwrap().wait().unwrap().len(), 512);
    // Dropping it ends it, too.
    drop(second);
    assert_eq!(queue.depths()[0], (0, 0));
    let detail = queue.live.io.detail().by_class[0].clone();
    assert_eq!(detail.total.iter().sum::<u64>(), 2, "what failed is not counted");
}

/// The operations of a class for sectors that are requested while it is full.
fn merged(class: IoClass, sectors: &[u64]) -> Vec<(u64, u64)> {
    let limits = QueueLimits { read_gap_limit: 1024, ..limits(1) };
    let device = HandDevice::new(0..0, limits);
    let queue = queue(device.clone(), limits);
    let bytes: Vec<u8> = (0..SIZE).map(|i| (i / 512) as u8).collect();
    device.mem.poke(0, &bytes).unwrap();
    let (permit, _) = request_read(&queue, class, 0, 512);
    let requested: Vec<_> =
        sectors.iter().map(|s| (s, request_read(&queue, class, s * 512, 512).1.unwrap())).collect();
    permit.unwrap().end(true, false);
    while device.complete(0) {}
    for (sector, waiting) in requested {
        assert_eq!(&waiting.wait().unwrap()[..], [*sector as u8; 512]);
    }
    assert_eq!((queue.depths()[class as usize], queue.state.lock().reads.any()), ((0, 0), false));
    device.seen.lock().iter().map(|(at, len)| (at / 512, len / 512)).collect()
}

#[test]
fn a_waiting_reader_reads_no_unrequested_bytes() {
    // Adjacent reads are merged, in the order in which the first of them arrived.
    let sectors = [40, 10, 12, 11, 14, 9, 41];
    assert_eq!(merged(IoClass::SyncRead, &sectors), [(40, 2), (9, 4), (14, 1)]);
    // Read-ahead is merged across small gaps, in the order of sectors.
    assert_eq!(
        merged(IoClass::AsyncRead, &[40, 10, 12, 11, 15, 9, 41, 19]),
        [(9, 7), (19, 1), (40, 2)]
    );
    // Neither beyond the limit of one operation, nor twice.
    assert_eq!(merged(IoClass::SyncRead, &(1..20).collect::<Vec<_>>()), [(1, 8), (9, 8), (17, 3)]);
    assert_eq!(merged(IoClass::AsyncRead, &[5, 5, 5, 6]), [(5, 2)]);
}

#[test]
fn a_bad_sector_costs_one_of_the_merged_reads() {
    let device = HandDevice::new(2048..2560, limits(1));
    let queue = queue(device.clone(), limits(1));
    let (permit, _) = request_read(&queue, IoClass::SyncRead, 0, 512);
    let requested: Vec<_> =
        (3..6).map(|s| request_read(&queue, IoClass::SyncRead, s * 512, 512).1.unwrap()).collect();
    permit.unwrap().end(true, false);
    while device.complete(0) {}
    let well: Vec<bool> = requested.into_iter().map(|waiting| waiting.wait().is_ok()).collect();
    assert_eq!(well, [true, false, true]);
    assert_eq!(device.seen.lock().len(), 4);
    let (permit, _) = request_read(&queue, IoClass::SyncRead, 0, 512);
    let (_, waiting) = request_read(&queue, IoClass::SyncRead, 4096, 512);
    permit.unwrap().end(true, false);
    let dropped = std::mem::take(&mut *device.ops.lock());
    drop(dropped);
    assert!(waiting.unwrap().wait().is_err(), "a device that drops a read");
}

#[test]
fn a_waiting_caller_is_not_behind_a_mass_of_writes() {
    let limits = QueueLimits { adaptive: false, aggregation_limit: 4096, ..QueueLimits::default() };
    let device = HandDevice::with_most(0..0, 1000);
    let queue = queue(device.clone(), limits);
    let log = CompletionLog::default();
    let mass = (0..60).map(|i| request(&log, 0, i * 1024, 512, 1)).collect();
    queue.submit(mass);
    assert_eq!(device.ops.lock().len(), 10);
    assert!(request_read(&queue, IoClass::SyncRead, 0, 512).0.is_some(), "a read goes at once");
    let sync = WritePriority::SyncWrite;
    let own = WriteRequest { priority: sync, ..request(&log, 1, 65024, 512, 1) };
    queue.submit(vec![own]);
    assert_eq!(device.ops.lock().len(), 11, "and so does a log block");
    while device.complete(10) || device.complete(0) {}
}

#[test]
fn the_device_has_no_more_than_its_most() {
    let all = QueueLimits { max_active: 3, ..limits(2) };
    let device = HandDevice::with_most(0..0, 3);
    let queue = queue(device.clone(), all);
    let log = CompletionLog::default();
    let (_permit, _) = request_read(&queue, IoClass::SyncRead, 0, 512);
    queue.submit((0..4).map(|i| request(&log, 0, i * 1024, 512, 1)).collect());
    assert_eq!(device.ops.lock().len(), 2);
    // Its class has room for two, but the device has not.
    let waiting = request_read(&queue, IoClass::SyncRead, 0, 512).1;
    while device.complete(0) {}
    assert!(waiting.is_some_and(|w| w.wait().is_ok()));
    assert_eq!(log.lock().len(), 4);
}

#[test]
fn classes_below_their_minimum_are_served_in_rotation() {
    let device = HandDevice::with_most(0..0, 2);
    let limits = QueueLimits { max_active: 1, aggregation_limit: 0, ..limits(9) };
    let queue = queue(device.clone(), limits);
    let log = CompletionLog::default();
    let (permit, _) = request_read(&queue, IoClass::AsyncRead, 0, 512);
    let sync = (0..3).map(|i| request(&log, 0, i * 1024, 512, 1));
    let sync = sync.map(|r| WriteRequest { priority: WritePriority::SyncWrite, ..r }).collect();
    queue.submit(sync);
    queue.submit((10..13).map(|i| request(&log, 0, i * 1024, 512, 1)).collect());
    let requested: Vec<_> =
        (20..23).map(|i| request_read(&queue, IoClass::AsyncRead, i * 1024, 512).1).collect();
    permit.unwrap().end(true, false);
    while device.complete(0) {}
    requested.into_iter().for_each(|w| assert!(w.unwrap().wait().is_ok()));
    let seen: Vec<u64> = device.seen.lock().iter().map(|(at, _)| at / 1024).collect();
    assert_eq!(seen, [0, 20, 10, 1, 21, 11, 2, 22, 12]);
}

#[test]
fn a_dropped_operation_ends_as_an_error() {
    let device = HandDevice::new(0..0, limits(1));
    let queue = queue(device.clone(), limits(1));
    let log = CompletionLog::default();
    queue.submit(vec![request(&log, 0, 0, 512, 1)]);
    let dropped = std::mem::take(&mut *device.ops.lock());
    drop(dropped);
    assert_eq!(*log.lock(), [(0, false)]);
    queue.drain();
}

/// `fsync` of 5,000 bytes on raidz1 of five hung. The zeros of the skip sector were the
/// only request on the last disk, had the caller's synchronous priority, and were
/// dropped without being completed.
#[test]
fn dropped_zeros_are_completed() {
    for priority in [WritePriority::Awaited, WritePriority::SyncWrite, WritePriority::AsyncWrite] {
        let device = HandDevice::new(0..0, limits(1));
        let queue = queue(device.clone(), limits(1));
        let log = CompletionLog::default();
        let zeros =
            |id, at| WriteRequest { priority, optional: true, ..request(&log, id, at, 512, 0) };
        queue.submit(vec![zeros(0, 0)]);
        // A request that overlaps them does not wait.
        queue.submit(vec![zeros(1, 4096)]);
        queue.submit(vec![WriteRequest { priority, ..request(&log, 2, 4096, 512, 7) }]);
        while device.complete(0) {}
        queue.drain();
        assert_eq!(*log.lock(), [(0, true), (1, true), (2, true)], "{priority:?}");
        assert_eq!(queue.state.lock().bytes, 0);
        assert_eq!(queue.depths(), [(0, 0); CLASSES]);
    }
}

#[test]
fn a_dropped_request_ends_as_an_error() {
    let log = CompletionLog::default();
    drop(request(&log, 0, 0, 512, 1));
    assert_eq!(*log.lock(), [(0, false)]);
}

#[test]
fn thousands_complete_inside_submit_without_recursion() {
    let device = Arc::new(MemDevice::new("mem", 64 << 20));
    let queue = queue(device, QueueLimits { aggregation_limit: 0, ..limits(2) });
    let log = CompletionLog::default();
    let batch = (0..100_000).map(|i| request(&log, i, i as u64 * 512, 512, 1)).collect();
    queue.submit(batch);
    queue.drain();
    assert_eq!(log.lock().len(), 100_000);
}

#[test]
fn submitters_wait_for_room() {
    let device = HandDevice::new(0..0, limits(1));
    let queue = queue(device.clone(), QueueLimits { in_flight_max: 1024, ..limits(1) });
    let log = CompletionLog::default();
    let second = Arc::new(OneShot::new());
    queue.submit(vec![request(&log, 0, 0, 1024, 1)]);
    let (q, l, s) = (Arc::clone(&queue), Arc::clone(&log), Arc::clone(&second));
    let thread = base::rt::spawn("submitter", move || {
        q.submit(vec![request(&l, 1, 8192, 512, 1)]);
        s.set(());
    })
    .unwrap();
    let limit = std::time::Duration::from_secs(60);
    assert!(base::rt::poll(limit, || queue.state.lock().waiting > 0), "it does not wait");
    assert_eq!(device.seen.lock().len(), 1);
    assert!(device.complete(0));
    second.wait();
    assert!(device.complete(0));
    assert!(thread.join().is_some());
    assert_eq!(queue.state.lock().bytes, 0);
}

#[derive(Clone, Debug)]
enum QueueStep {
    Submit(Vec<(u64, usize, bool, bool)>),
    Complete(usize),
}

fn step() -> impl Strategy<Value = QueueStep> {
    let one = (0u64..100, 1usize..12, any::<bool>(), prop::bool::weighted(0.2));
    prop_oneof![
        prop::collection::vec(one, 1..6).prop_map(QueueStep::Submit),
        any::<usize>().prop_map(QueueStep::Complete),
    ]
}

proptest! {
    /// Compares with a naive model: bytes written one after the other in the order of
    /// submission. The device checks disjointness and depth.
    #[test]
    fn the_last_submitted_is_the_last_written(
        steps in prop::collection::vec(step(), 1..60),
        active in 1u32..4,
        bad in prop::option::weighted(0.4, 0u64..110),
    ) {
        let bad = bad.map_or(0..0, |b| b * 512..b * 512 + 512);
        let device = HandDevice::new(bad.clone(), limits(active));
        let queue = queue(device.clone(), limits(active));
        let (log, mut model, mut expected) = (CompletionLog::default(), vec![0u8; SIZE], Vec::new());
        let mut written = Vec::new();
        for step in steps {
            let QueueStep::Submit(batch) = step else {
                if let QueueStep::Complete(which) = step {
                    device.complete(which);
                }
                continue;
            };
            let mut requests = Vec::new();
            for (sector, sectors, sync, optional) in batch {
                let (id, offset, len) = (expected.len(), sector * 512, sectors * 512);
                let byte = if optional { 0 } else { id as u8 % 250 + 1 };
                let fails = offset < bad.end && bad.start < offset + len as u64;
                expected.push((id, !fails, optional));
                let priority =
                    match sync {
                        true => WritePriority::Awaited,
                        false => WritePriority::AsyncWrite,
                    };
                requests.push(WriteRequest { priority, optional, ..request(&log, id, offset, len, byte) });
                written.push((offset as usize, len, byte, optional, fails));
            }
            queue.submit(requests);
        }
        let mut which = 0;
        while device.complete(which) {
            which = which.wrapping_mul(31).wrapping_add(7);
        }
        // A range covered only by optional zeros may have either content.
        let mut either = vec![false; SIZE];
        for (offset, len, byte, optional, fails) in written {
            let range = offset..offset + len;
            if optional {
                either[range].fill(true);
            } else if !fails {
                model[range.clone()].fill(byte);
                either[range].fill(false);
            }
        }
        let bytes = device.mem.peek(0, SIZE).unwrap();
        for (i, byte) in bytes.iter().enumerate() {
            prop_assert!(either[i] || *byte == model[i], "byte {} is {}", i, byte);
        }
        let mut over = log.lock().clone();
        over.sort_unstable();
        prop_assert_eq!(over.len(), expected.len());
        for ((id, ok), (want, fine, optional)) in over.into_iter().zip(expected) {
            prop_assert_eq!(id, want);
            prop_assert!(ok == fine || optional && ok, "request {}", id);
        }
        let state = queue.state.lock();
        prop_assert_eq!(state.bytes, 0);
        prop_assert!(state.flying.is_empty() && state.held.is_empty());
        prop_assert_eq!((state.active, state.open.iter().sum::<usize>()), ([0; CLASSES], 0));
    }
}
