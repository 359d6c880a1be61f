//! A device against a naive model, rebuilds, and hostile devices.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use base::{Asize, Buf, Dva, Guid, VdevId};
use device::{Device, Fault, FaultDevice, MemDevice};
use ondisk::l2::{DeviceHeader, EntryFacts, HEADER_OFFSET, LogBlock, LogPtr, header_size};
use proptest::prelude::*;

use crate::device::{CacheDevice, DeviceSpec, Health, NewBlock};
use crate::index::BlockId;
use crate::rebuild::RebuildEnd;

const SIZE: usize = 64 << 20;

fn spec(ashift: u32) -> DeviceSpec {
    DeviceSpec {
        guid: Guid(11),
        pool: Guid(22),
        ashift,
        rebuild_min: 0,
        log_entries: None,
        ring_max: None,
    }
}

fn memory() -> Arc<MemDevice> {
    Arc::new(MemDevice::new("cache", SIZE))
}

fn open(device: &Arc<MemDevice>, ashift: u32) -> CacheDevice {
    CacheDevice::new(spec(ashift), "cache", Arc::clone(device) as Arc<dyn Device>).unwrap()
}

fn content(n: u64, len: u64) -> Vec<u8> {
    let mut bytes = vec![n as u8; len as usize];
    bytes[..8].copy_from_slice(&n.to_le_bytes());
    bytes
}

fn id(n: u64) -> BlockId {
    BlockId { vdev: (n % 3) as u32, offset: n << 17, birth: 4 + n % 5 }
}

fn block(n: u64, psize: u64) -> NewBlock {
    let facts = EntryFacts {
        lsize: psize.max(4096),
        psize,
        compression: 15,
        metadata: n.is_multiple_of(7),
        mfu: n.is_multiple_of(2),
        ..EntryFacts::default()
    };
    let stored = Buf::copy_of(&content(n, psize));
    let BlockId { vdev, offset, .. } = id(n);
    let asize = Asize(psize.next_multiple_of(4096));
    let dva = Dva { vdev: VdevId(vdev), offset, asize, gang: n.is_multiple_of(11) };
    NewBlock { id: id(n), dva, facts, stored }
}

fn never(_: u64) -> bool {
    false
}

fn holds(device: &CacheDevice, n: u64, psize: u64) -> bool {
    match device.read(&id(n), psize).unwrap() {
        Some(bytes) => {
            assert_eq!(&bytes[..], content(n, psize), "block {n}");
            true
        }
        None => false,
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// Sizes in sectors.
    Feed(Vec<u64>),
    /// A block, as an index into all blocks so far.
    Forget(usize),
    Reopen,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let one = prop_oneof![
        6 => prop::collection::vec(1u64..2048, 1..14).prop_map(Step::Feed),
        2 => any::<usize>().prop_map(Step::Forget),
        1 => Just(Step::Reopen),
    ];
    prop::collection::vec(one, 1..40)
}

/// What should be on a device: the size of each block, by number.
#[derive(Default)]
struct Model {
    sizes: Vec<Option<u64>>,
    /// Forgotten since the last reopening.
    forgotten: Vec<(u64, u64)>,
    /// Forgotten before a reopening, which may find them again: a freed block has no reader.
    perhaps: HashMap<u64, u64>,
    /// Written since the last log block.
    unlogged: Vec<usize>,
}

impl Model {
    fn check(&self, device: &CacheDevice, ashift: u32) {
        let mut newer = 0;
        for (n, size) in self.sizes.iter().enumerate().rev() {
            let n = n as u64;
            match size {
                Some(size) => {
                    let there = holds(device, n, *size);
                    newer += size.next_multiple_of(1 << ashift);
                    assert!(there || newer > device.capacity() / 2, "block {n} is missing");
                }
                None => match self.perhaps.get(&n) {
                    Some(size) => {
                        holds(device, n, *size);
                    }
                    None => assert!(!device.contains(&id(n)), "block {n} is there"),
                },
            }
        }
        let sums = device.sums();
        assert_eq!(sums.data + sums.metadata, sums.asize);
        assert_eq!(sums.mru + sums.mfu + sums.prefetch, sums.asize);
        assert!(sums.asize + device.logs()[0] <= device.capacity());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Every block that is found has its content, and was not forgotten; the newest blocks
    /// are always there, around the ring and across a reopening.
    #[test]
    fn a_device_is_a_map_of_its_newest_blocks(
        list in steps(),
        ashift in prop::sample::select(vec![9u32, 12]),
    ) {
        let memory = memory();
        let mut device = open(&memory, ashift);
        device.start_anew();
        let each = device.writer.lock().entries_each as usize;
        let mut model = Model::default();
        for step in list {
            match step {
                Step::Feed(sectors) => {
                    let first = model.sizes.len();
                    model.sizes.extend(sectors.iter().map(|s| Some(s << 9)));
                    let new = (first..).zip(&sectors).map(|(n, s)| block(n as u64, s << 9));
                    let counts = device.feed(new.collect(), 0);
                    assert_eq!((counts.failed, counts.blocks), (0, sectors.len() as u64));
                    model.unlogged.extend(first..model.sizes.len());
                    let logged = model.unlogged.len() / each * each;
                    model.unlogged.drain(..logged);
                }
                Step::Forget(pick) => {
                    let n = pick % model.sizes.len().max(1);
                    if let Some(size) = model.sizes.get_mut(n).and_then(Option::take) {
                        device.forget(&id(n as u64));
                        model.forgotten.push((n as u64, size));
                    }
                }
                Step::Reopen => {
                    device = open(&memory, ashift);
                    let end = device.rebuild(&never);
                    let empty = device.writer.lock().newest == [LogPtr::default(); 2];
                    let intact = matches!(end, RebuildEnd::Done { damaged: false, failed: false, .. });
                    assert!(intact || empty, "{end:?}");
                    for n in std::mem::take(&mut model.unlogged) {
                        model.sizes[n] = None;
                    }
                    let forgotten = std::mem::take(&mut model.forgotten);
                    model.perhaps.extend(forgotten);
                }
            }
            model.check(&device, ashift);
        }
    }
}

/// Writes `count` blocks of 256 KiB in batches.
fn fill(device: &CacheDevice, blocks: std::ops::Range<u64>) {
    for n in blocks.clone().step_by(16) {
        let batch = (n..blocks.end.min(n + 16)).map(|n| block(n, 256 << 10)).collect();
        device.feed(batch, 0);
    }
}

#[test]
fn memory_is_at_most_48_bytes_a_block() {
    let memory = Arc::new(MemDevice::new("cache", 128 << 20));
    // Without log blocks, which would take most of the time.
    let spec = DeviceSpec { rebuild_min: u64::MAX, ..spec(9) };
    let device = CacheDevice::new(spec, "cache", memory as Arc<dyn Device>).unwrap();
    device.start_anew();
    for n in (0..200_000u64).step_by(4096) {
        device.feed((n..n + 4096).map(|n| block(n, 512)).collect(), 0);
    }
    let blocks = device.sums().blocks;
    assert!(blocks > 150_000, "{blocks}");
    let each = device.memory() as f64 / blocks as f64;
    assert!(each <= 48.0, "{each} bytes a block");
}

#[test]
fn a_device_of_another_pool_vdev_or_shape_is_begun_anew() {
    let memory = memory();
    let device = open(&memory, 12);
    device.start_anew();
    fill(&device, 0..64);
    let reopened = |spec: DeviceSpec| {
        let copy = MemDevice::from_bytes("copy", memory.peek(0, SIZE).unwrap());
        let device = CacheDevice::new(spec, "copy", Arc::new(copy)).unwrap();
        let end = device.rebuild(&never);
        (end, device.sums().blocks)
    };
    assert!(matches!(reopened(spec(12)), (RebuildEnd::Done { .. }, 63..=64)));
    let guid = DeviceSpec { guid: Guid(1), ..spec(12) };
    let pool = DeviceSpec { pool: Guid(1), ..spec(12) };
    let shape = DeviceSpec { rebuild_min: 1 << 30, ..spec(12) };
    for other in [guid, pool, shape, spec(9)] {
        assert_eq!(reopened(other), (RebuildEnd::NoHeader, 0));
    }
}

/// Changes the device's header and seals it again.
fn forge(memory: &MemDevice, ashift: u32, change: impl FnOnce(&mut DeviceHeader)) {
    let raw = memory.peek(HEADER_OFFSET, header_size(ashift)).unwrap();
    let mut header = DeviceHeader::parse(&raw).unwrap();
    change(&mut header);
    memory.poke(HEADER_OFFSET, &header.encode(ashift).unwrap()).unwrap();
}

/// No log block can name itself, because its pointer has its checksum. The loop is that of
/// both of the header's pointers.
#[test]
fn a_chain_with_a_loop_ends() {
    let memory = memory();
    let device = open(&memory, 12);
    device.start_anew();
    fill(&device, 0..64);
    forge(&memory, 12, |h| h.newest[1] = h.newest[0]);
    let again = open(&memory, 12);
    match again.rebuild(&never) {
        RebuildEnd::Done { logs: 1, damaged: true, .. } => {}
        end => panic!("{end:?}"),
    }
}

#[test]
fn a_damaged_log_block_ends_the_chain_and_keeps_what_was_found() {
    let memory = memory();
    let device = open(&memory, 12);
    device.start_anew();
    fill(&device, 0..64);
    let logs: Vec<(u64, u64)> = device.writer.lock().logs.iter().copied().collect();
    let (at, _) = logs[logs.len() / 2];
    memory.poke(at + 100, &[0xff; 16]).unwrap();
    let again = open(&memory, 12);
    let end = again.rebuild(&never);
    let found = logs.len() as u64 - logs.len() as u64 / 2 - 1;
    assert!(
        matches!(end, RebuildEnd::Done { logs, damaged: true, .. } if logs == found),
        "{end:?}"
    );
    assert!(holds(&again, 62, 256 << 10) && !again.contains(&id(0)));
    fill(&again, 64..128);
    assert!((100..126).all(|n| holds(&again, n, 256 << 10)));
}

#[test]
fn the_rebuild_stops_when_memory_is_short() {
    let memory = memory();
    let device = open(&memory, 12);
    device.start_anew();
    fill(&device, 0..64);
    let again = open(&memory, 12);
    match again.rebuild(&|bytes| bytes > 0) {
        RebuildEnd::Done { short: true, logs: 1, .. } => {}
        end => panic!("{end:?}"),
    }
}

/// Headers, log pointers and log blocks with arbitrary values: no panic, no loop, and
/// memory bounded by the size of the ring.
#[test]
fn hostile_devices() {
    let memory = memory();
    let device = open(&memory, 9);
    device.start_anew();
    fill(&device, 0..64);
    let image = memory.peek(0, SIZE).unwrap();
    let mut x = 0x1234_5678_9abc_def1u64;
    let mut next = |below: u64| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x % below.max(1)
    };
    let device = Arc::new(MemDevice::from_bytes("hostile", image.clone()));
    let raw = &image[HEADER_OFFSET as usize..][..header_size(9)];
    let good = DeviceHeader::parse(raw).unwrap();
    for _ in 0..300 {
        let mut header = good;
        // Entries of a log block that overlap, lie outside, or have no size.
        let mut entries = Vec::new();
        for _ in 0..header.log_entries {
            let mut facts = EntryFacts { lsize: 8192, psize: 4096, ..EntryFacts::default() };
            facts.lsize = next(65_536) << 9;
            facts.psize = next(65_536) << 9;
            let dva = base::Dva {
                vdev: base::VdevId(next(1 << 24) as u32),
                offset: next(1 << 50) << 9,
                asize: Asize(next(1 << 20) << 9),
                gang: next(2) == 1,
            };
            let daddr = match next(3) {
                0 => next(u64::MAX),
                1 => next(SIZE as u64) >> 9 << 9,
                _ => good.start,
            };
            entries.push(ondisk::l2::LogEntry::new(dva, base::Txg(next(9)), daddr, facts));
        }
        let prev = LogPtr { daddr: next(SIZE as u64), prop: next(u64::MAX), ..good.newest[0] };
        let block = LogBlock { prev, entries }.encode();
        let at = good.start + (next(50 << 20) >> 9 << 9);
        device.poke(at, &block).unwrap();
        let sum = codec::checksum::fletcher::fletcher4(&block, false);
        let mut ptr = LogPtr::new(at, block.len() as u64, 2, sum);
        (ptr.payload_start, ptr.payload_asize) = (good.start + next(1 << 20), next(u64::MAX));
        header.newest = if next(2) == 0 { [ptr, prev] } else { [prev, ptr] };
        match next(6) {
            0 => header.evict = next(u64::MAX),
            1 => header.evict = good.start + next(50 << 20),
            2 => header.lb_count = next(u64::MAX),
            _ => {}
        }
        header.first_sweep = next(2) == 0;
        device.poke(HEADER_OFFSET, &header.encode(9).unwrap()).unwrap();
        let victim = open(&device, 9);
        victim.rebuild(&never);
        assert!(victim.memory() < SIZE as u64 / 512 * 48);
        fill(&victim, 1000..1032);
        assert!(holds(&victim, 1031, 256 << 10));
    }
}

#[test]
fn a_device_that_fails_is_faulted_and_comes_back_when_cleared() {
    let faulty = Arc::new(FaultDevice::new(memory() as Arc<dyn Device>));
    let device =
        CacheDevice::new(spec(12), "cache", Arc::clone(&faulty) as Arc<dyn Device>).unwrap();
    device.start_anew();
    fill(&device, 0..32);
    faulty.inject(Fault::FailReads(0..u64::MAX));
    let mut errors = 0;
    while device.health() == Health::Online {
        errors += u64::from(device.read(&id(5), 256 << 10).is_err());
        assert!(errors < 100);
    }
    assert_eq!(device.read(&id(5), 256 << 10).unwrap(), None, "it is not asked any more");
    assert!(device.counts().read_errors >= errors);
    faulty.heal();
    device.clear();
    assert!(holds(&device, 5, 256 << 10));
    faulty.inject(Fault::FailWrites(0..u64::MAX));
    assert_eq!(device.feed(vec![block(90, 4096)], 0).blocks, 0);
    assert!(!device.contains(&id(90)), "what was not written is not found");
}

/// A device that never completes anything.
struct SilentDevice(MemDevice, base::rt::Mutex<Vec<device::Op>>);

impl Device for SilentDevice {
    fn caps(&self) -> &device::Caps {
        self.0.caps()
    }
    fn size(&self) -> u64 {
        self.0.size()
    }
    fn submit(&self, batch: Vec<device::Op>) {
        self.1.lock().extend(batch);
    }
    fn describe(&self) -> String {
        "a silent device".to_owned()
    }
    fn stats(&self) -> &device::DeviceStats {
        self.0.stats()
    }
}

#[test]
fn a_silent_device_is_given_up_and_used_again_when_it_answers() {
    let silent = Arc::new(SilentDevice(MemDevice::new("silent", SIZE), Default::default()));
    let limit = Duration::from_millis(1);
    let abandoned = crate::timed::Abandoned::default();
    let read = device::Io::read(0, 512);
    assert!(crate::timed::run(&*silent, vec![read], limit, &abandoned).is_err());
    assert_eq!(abandoned.load(SeqCst), 1);
    let late = std::mem::take(&mut *silent.1.lock());
    late.into_iter().for_each(|op| op.complete(Ok(512)));
    assert_eq!(abandoned.load(SeqCst), 0);
}

/// The content of a device was overwritten after its last log block: all of it is a miss, and
/// the device stays in use.
#[test]
fn restored_blocks_that_are_wrong_do_not_fault_the_device() {
    let device = memory() as Arc<dyn Device>;
    let first = CacheDevice::new(spec(12), "cache", Arc::clone(&device)).unwrap();
    first.start_anew();
    fill(&first, 0..1100);
    drop(first);
    let again = CacheDevice::new(spec(12), "cache", device).unwrap();
    again.rebuild(&never);
    let restored: Vec<_> = again.blocks().iter().map(|block| block.id).collect();
    assert!(restored.len() > 20, "{}", restored.len());
    restored.iter().for_each(|id| again.reject(id));
    assert_eq!(again.health(), Health::Online);
    assert_eq!(again.counts().checksum_errors, restored.len() as u64);
    fill(&again, 2000..2020);
    (2000..2020).for_each(|n| again.reject(&id(n)));
    assert_eq!(again.health(), Health::Faulted, "what it wrote itself must be right");
}
