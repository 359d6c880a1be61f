//! Compares the log with a naive model of a pool that is cut at every write. Everything
//! acknowledged is there in order, nothing follows a gap, and the space maps agree with the
//! chain. Large writes go to their final places: a record whose block is not completely there
//! ends the log, as a claim would.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "tests have threads")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use base::{Asize, Dva, Error, ErrorKind, Lsize, ObjectId, Psize, Result, Txg, VdevId};
use ondisk::blkptr::{Block, COMPRESS_OFF, Head};
use ondisk::objset::ZIL_HEADER_SIZE;
use ondisk::zil::{LogBlock, RecordBody, Write, ZilHeader};
use ondisk::{BlkPtr, Endian, ObjType};
use proptest::prelude::*;
use zil::{EarlyBlocks, Hold, Log, LogWrite, Mode, Source, Store};

const OBJSET: u64 = 54;
/// Size of a file's block, bytes.
const BLOCK: u64 = 16 << 10;

/// Events of the devices, in order.
#[derive(Clone)]
enum DeviceEvent {
    Write(u64, Vec<u8>),
    Flush,
    /// A txg's uberblock: the header, and the blocks in its space maps.
    Synced(Txg, [u8; ZIL_HEADER_SIZE], BTreeSet<u64>),
}

#[derive(Default)]
struct FakePoolState {
    open: u64,
    synced: u64,
    held: bool,
    header: Option<[u8; ZIL_HEADER_SIZE]>,
    /// Allocated blocks with their txgs.
    allocated: BTreeMap<u64, Txg>,
    next: u64,
    events: Vec<DeviceEvent>,
    /// Countdowns to failures of allocations, writes, flushes and early blocks.
    fail: [u64; 4],
    skip_flush: bool,
    /// Dirty bytes of the pool.
    dirty: u64,
    /// Planted: txgs end while a batch holds them.
    no_hold: bool,
    /// Sizes of objects, and the last txg that wrote each of their blocks.
    sizes: BTreeMap<u64, u64>,
    written: BTreeMap<(u64, u64), Txg>,
    /// Number of blocks that were written early.
    placed: u64,
    /// Planted: early blocks are written only when they should already be flushed; early blocks
    /// have the content from before the last write.
    late: bool,
    stale: bool,
}

#[derive(Default)]
struct FakePool {
    state: Mutex<FakePoolState>,
    log: OnceLock<Weak<Log>>,
    random: AtomicU64,
    slow: bool,
}

fn fails(count: &mut u64) -> bool {
    *count = count.saturating_sub(1);
    *count == 1
}

impl FakePool {
    /// Writes the next txg.
    fn sync(&self) {
        let log = self.log.get().and_then(Weak::upgrade).unwrap();
        let txg = {
            let mut s = self.state.lock().unwrap();
            assert!(!s.held, "a holder waits for its own txg");
            if s.open == s.synced + 1 {
                s.open += 1;
            }
            Txg(s.synced + 1)
        };
        let moved = log.sync(txg);
        let mut s = self.state.lock().unwrap();
        if let Some(moved) = moved {
            s.header = Some(moved.header);
            for bp in moved.free {
                let born = s.allocated.remove(&bp.as_block().unwrap().dva().offset);
                assert!(born.unwrap() <= txg, "freed before it was allocated");
            }
        }
        s.synced = txg.0;
        let maps = s.allocated.iter().filter(|(_, t)| **t <= txg).map(|(at, _)| *at).collect();
        let header = s.header.unwrap_or([0; ZIL_HEADER_SIZE]);
        s.events.push(DeviceEvent::Synced(txg, header, maps));
    }
}

struct TxgGuard(Weak<FakePool>);

impl Drop for TxgGuard {
    fn drop(&mut self) {
        if let Some(pool) = self.0.upgrade() {
            pool.state.lock().unwrap().held = false;
        }
    }
}

struct StoreHandle(Arc<FakePool>);

impl Store for StoreHandle {
    fn hold(&self) -> Result<Hold> {
        let mut s = self.0.state.lock().unwrap();
        s.held = true;
        Ok(Hold::new(Txg(s.open), TxgGuard(Arc::downgrade(&self.0))))
    }
    fn allocate(&self, txg: Txg, size: u64) -> Result<Dva> {
        let mut s = self.0.state.lock().unwrap();
        assert!(s.held && txg.0 == s.open && size.is_multiple_of(4096));
        if fails(&mut s.fail[0]) {
            return Err(Error::new(ErrorKind::NoSpace, "full"));
        }
        let offset = s.next;
        s.next += size;
        s.allocated.insert(offset, txg);
        Ok(Dva { vdev: VdevId(0), offset, asize: Asize(size), gang: false })
    }
    fn unallocate(&self, txg: Txg, dva: Dva) {
        assert_eq!(self.0.state.lock().unwrap().allocated.remove(&dva.offset), Some(txg));
    }
    fn write(&self, blocks: Vec<LogWrite>) -> Result<()> {
        if self.0.slow {
            // The device's time for a write, during which other commits join a batch.
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        if self.0.state.lock().unwrap().no_hold {
            self.0.state.lock().unwrap().held = false;
            self.0.sync();
            self.0.sync();
        }
        let mut s = self.0.state.lock().unwrap();
        let bad = fails(&mut s.fail[1]);
        for block in blocks {
            assert!(s.allocated.contains_key(&block.dva.offset));
            let bytes = block.data[..block.used].to_vec();
            s.events.push(DeviceEvent::Write(block.dva.offset, bytes));
            if bad {
                return Err(Error::new(ErrorKind::Io, "broken"));
            }
        }
        Ok(())
    }
    fn flush(&self, vdevs: &[VdevId]) -> Result<()> {
        assert!(vdevs.is_empty() || vdevs == [VdevId(0)], "{vdevs:?}");
        let mut s = self.0.state.lock().unwrap();
        if fails(&mut s.fail[2]) {
            return Err(Error::new(ErrorKind::Io, "broken"));
        }
        if !s.skip_flush {
            s.events.push(DeviceEvent::Flush);
        }
        Ok(())
    }
    fn synced_txg(&self) -> Txg {
        Txg(self.0.state.lock().unwrap().synced)
    }
    fn dirty_bytes(&self) -> u64 {
        self.0.state.lock().unwrap().dirty
    }
    fn wait_synced(&self, txg: Txg) -> Result<()> {
        while self.synced_txg() < txg {
            self.0.sync();
        }
        Ok(())
    }
    fn dirty(&self, _: Txg) {}
    fn random(&self) -> u64 {
        self.0.random.fetch_add(1, SeqCst) + 1000
    }
}

/// An operation that was done: each write of an object is behind the earlier ones.
#[derive(Clone, Debug)]
struct RecordedOp {
    txg: Txg,
    /// `None` for a name.
    object: Option<u64>,
    range: (u64, u64),
}

struct FixedContent;

fn byte(object: u64, at: u64) -> u8 {
    (object.wrapping_mul(31) ^ at ^ at >> 8) as u8
}

impl Source for FixedContent {
    fn read(&self, object: ObjectId, offset: u64, len: u64) -> Result<Option<Vec<u8>>> {
        Ok(Some((offset..offset + len).map(|at| byte(object.0, at)).collect()))
    }
}

/// Early blocks in flight, in a held txg.
struct Placing {
    pool: Arc<FakePool>,
    txg: Txg,
    blocks: Vec<(u64, u64)>,
    writes: Vec<(u64, Vec<u8>)>,
}

fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(1, |h: u64, b| (h ^ u64::from(*b)).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

impl Placing {
    fn issue(&mut self) {
        let writes = self.writes.drain(..).map(|(at, bytes)| DeviceEvent::Write(at, bytes));
        self.pool.state.lock().unwrap().events.extend(writes);
    }
}

impl EarlyBlocks for Placing {
    fn block_size(&self, object: ObjectId) -> Option<u64> {
        let s = self.pool.state.lock().unwrap();
        let dirty = s.written.iter().any(|((o, _), txg)| *o == object.0 && *txg == self.txg);
        dirty.then_some(BLOCK)
    }

    fn block(&mut self, object: ObjectId, block: u64) -> Result<Option<BlkPtr>> {
        let mut s = self.pool.state.lock().unwrap();
        assert!(s.held && s.open == self.txg.0, "a block of a txg that is not held");
        let here = (object.0, block);
        if s.written.get(&here) != Some(&self.txg) || self.blocks.contains(&here) {
            return Ok(None);
        }
        self.blocks.push(here);
        let (start, size) = (block * BLOCK, s.sizes[&object.0]);
        let size = if s.stale { start + 1 } else { size };
        let at = |i| if i < size { byte(object.0, i) } else { 0 };
        let content: Vec<u8> = (start..start + BLOCK).map(at).collect();
        let offset = s.next;
        s.next += BLOCK;
        s.placed += 1;
        let dva = Dva { vdev: VdevId(0), offset, asize: Asize(BLOCK), gang: false };
        let lsize = Lsize(BLOCK);
        let head =
            Head { object_type: ObjType::PLAIN_FILE_CONTENTS, level: 0, lsize, birth: self.txg };
        let mut bp = Block::new(head, Psize(BLOCK), COMPRESS_OFF, &[dva]);
        bp.checksum = 7;
        bp.words = [digest(&content), 0, 0, 0];
        self.writes.push((offset, content));
        Ok(Some(BlkPtr::Block(bp)))
    }

    fn wait(&mut self) -> Result<Vec<VdevId>> {
        let (bad, late) = {
            let mut s = self.pool.state.lock().unwrap();
            assert!(s.held || s.no_hold, "a txg ended before its blocks were written");
            (fails(&mut s.fail[3]), s.late)
        };
        if bad {
            return Err(Error::new(ErrorKind::Io, "broken"));
        }
        if !late {
            self.issue();
        }
        Ok(if self.blocks.is_empty() { Vec::new() } else { vec![VdevId(0)] })
    }

    fn keep(mut self: Box<Self>) {
        self.issue();
    }
}

/// The same content, of files whose blocks can be written early.
struct Files(Arc<FakePool>);

impl Source for Files {
    fn read(&self, object: ObjectId, offset: u64, len: u64) -> Result<Option<Vec<u8>>> {
        FixedContent.read(object, offset, len)
    }
    fn block_size(&self, _: ObjectId) -> Option<u64> {
        Some(BLOCK)
    }
    fn early_blocks(&self, txg: Txg) -> Option<Box<dyn EarlyBlocks>> {
        let pool = Arc::clone(&self.0);
        Some(Box::new(Placing { pool, txg, blocks: Vec::new(), writes: Vec::new() }))
    }
}

/// The bytes that the record of a write restores; `None` if its block is not completely on the
/// devices. `named`: bytes of blocks named by earlier records.
fn restored_bytes(
    write: &Write<'_>,
    disk: &BTreeMap<u64, Vec<u8>>,
    named: &mut BTreeMap<(u64, u64), Vec<u8>>,
) -> std::result::Result<Option<Vec<u8>>, String> {
    let (from, len) = ((write.offset % BLOCK) as usize, write.length as usize);
    let here = (write.object.0, write.offset / BLOCK);
    let block = match (write.data, write.block) {
        (Some(data), _) => return Ok(Some(data.to_vec())),
        (None, Some(bp)) => {
            let bp = *bp.as_block().ok_or("a pointer to nothing")?;
            let there = disk.get(&bp.dva().offset).filter(|b| digest(b) == bp.words[0]);
            let Some(there) = there else { return Ok(None) };
            named.insert(here, there.clone());
            there
        }
        (None, None) => named.get(&here).ok_or("a write whose block no record names")?,
    };
    block.get(from..from + len).map(|b| Some(b.to_vec())).ok_or("a write across blocks".into())
}

#[derive(Clone, Debug)]
enum LogOp {
    Name(usize),
    Write(u64, u64),
    Commit(Option<u64>),
    /// A txg closes.
    Open,
    Sync,
    /// The n-th allocation, write or flush from now fails.
    Fail(usize, u64),
    Barrier,
    /// Sets or clears `logbias=throughput`.
    Throughput(bool),
}

fn op() -> impl Strategy<Value = LogOp> {
    prop_oneof![
        4 => (1usize..300).prop_map(LogOp::Name),
        6 => (1u64..4, prop_oneof![8 => 1u64..9000, 2 => 9000u64..400_000])
            .prop_map(|(o, n)| LogOp::Write(o, n)),
        6 => prop::option::of(1u64..4).prop_map(LogOp::Commit),
        2 => Just(LogOp::Open),
        2 => Just(LogOp::Sync),
        1 => (0usize..4, 2u64..5).prop_map(|(which, n)| LogOp::Fail(which, n)),
        1 => Just(LogOp::Barrier),
        1 => any::<bool>().prop_map(LogOp::Throughput),
    ]
}

struct LogFixture {
    pool: Arc<FakePool>,
    log: Arc<Log>,
    done: Vec<RecordedOp>,
    sizes: BTreeMap<u64, u64>,
    /// At this event: the number of names and the bytes of each object that were acknowledged.
    acknowledged: Vec<(usize, usize, BTreeMap<u64, u64>)>,
    names: usize,
    /// Names without a record: their positions among names.
    barriers: BTreeSet<usize>,
}

impl LogFixture {
    fn new(slim: bool) -> LogFixture {
        let pool = Arc::new(FakePool::default());
        *pool.state.lock().unwrap() =
            FakePoolState { open: 11, synced: 10, ..FakePoolState::default() };
        let log = Log::new(OBJSET, slim, Arc::new(StoreHandle(Arc::clone(&pool))));
        pool.log.set(Arc::downgrade(&log)).unwrap();
        LogFixture {
            pool,
            log,
            done: Vec::new(),
            sizes: BTreeMap::new(),
            acknowledged: Vec::new(),
            names: 0,
            barriers: BTreeSet::new(),
        }
    }

    fn act(&mut self, op: &LogOp) {
        let txg = Txg(self.pool.state.lock().unwrap().open);
        match op {
            LogOp::Name(len) => {
                let name = vec![b'x'; *len];
                let body =
                    RecordBody::Remove { directory: ObjectId(self.names as u64), name: &name };
                self.log.name(txg, 5, &body, None);
                self.done.push(RecordedOp { txg, object: None, range: (self.names as u64, 1) });
                self.names += 1;
            }
            LogOp::Write(object, len) => {
                let at = *self.sizes.get(object).unwrap_or(&0);
                let data: Vec<u8> = (at..at + len).map(|i| byte(*object, i)).collect();
                self.log.write(txg, ObjectId(*object), at, &data);
                self.sizes.insert(*object, at + len);
                let mut s = self.pool.state.lock().unwrap();
                s.sizes.insert(*object, at + len);
                let blocks = at / BLOCK..=(at + len - 1) / BLOCK;
                s.written.extend(blocks.map(|block| ((*object, block), txg)));
                self.done.push(RecordedOp { txg, object: Some(*object), range: (at, *len) });
            }
            LogOp::Barrier => {
                self.log.barrier(txg);
                self.barriers.insert(self.names);
                self.done.push(RecordedOp { txg, object: None, range: (self.names as u64, 1) });
                self.names += 1;
            }
            LogOp::Commit(object) => {
                let files = Files(Arc::clone(&self.pool));
                self.log.commit(&files, object.map(ObjectId), 0).unwrap();
                let mut sizes = self.sizes.clone();
                sizes.retain(|o, _| object.is_none_or(|w| w == *o));
                let at = self.pool.state.lock().unwrap().events.len();
                self.acknowledged.push((at, self.names, sizes));
            }
            LogOp::Open => {
                let mut s = self.pool.state.lock().unwrap();
                if s.open < s.synced + 3 {
                    s.open += 1;
                }
            }
            LogOp::Sync => self.pool.sync(),
            LogOp::Throughput(on) => self.log.set_throughput(*on),
            LogOp::Fail(which, n) => self.pool.state.lock().unwrap().fail[*which] = *n,
        }
    }

    /// Checks the state after a crash behind `cut` events; `keep` selects the unflushed writes
    /// that survive.
    fn check(&self, cut: usize, keep: u64) -> std::result::Result<(), String> {
        let events = self.pool.state.lock().unwrap().events[..cut].to_vec();
        let mut disk: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        let mut pending = Vec::new();
        let (mut synced, mut header, mut maps) = (Txg(10), [0; ZIL_HEADER_SIZE], BTreeSet::new());
        for event in events {
            match event {
                DeviceEvent::Write(at, bytes) => pending.push((at, bytes)),
                DeviceEvent::Flush => disk.extend(pending.drain(..)),
                DeviceEvent::Synced(txg, h, m) => {
                    // A commit of the pool flushes.
                    disk.extend(pending.drain(..));
                    (synced, header, maps) = (txg, h, m);
                }
            }
        }
        for (i, (at, bytes)) in pending.into_iter().enumerate() {
            if keep >> (i % 64) & 1 == 1 {
                disk.insert(at, bytes);
            }
        }
        let mut names: BTreeSet<u64> = BTreeSet::new();
        let mut objects: BTreeMap<u64, BTreeSet<(u64, u64)>> = BTreeMap::new();
        for d in self.done.iter().filter(|d| d.txg <= synced) {
            match d.object {
                None => drop(names.insert(d.range.0)),
                Some(o) => drop(objects.entry(o).or_default().insert(d.range)),
            }
        }
        let mut ptr = ZilHeader::parse(&header, Endian::Little).unwrap().log;
        let (mut found, mut last_seq, mut last_name) = (BTreeSet::new(), 0, None);
        let (mut named, mut ended) = (BTreeMap::new(), false);
        while let Some(bp) = ptr.bp.as_block() {
            if bp.head.birth <= synced {
                found.insert(bp.dva().offset);
            }
            let Some(bytes) = disk.get(&bp.dva().offset) else { break };
            let mut whole = bytes.clone();
            whole.resize(bp.psize.0 as usize, 0xee);
            let Ok(block) = LogBlock::parse(&whole, &ptr) else { break };
            for record in block.records() {
                let record = record.unwrap();
                if record.header.seq <= last_seq {
                    return Err("records out of order".into());
                }
                last_seq = record.header.seq;
                if record.header.txg <= synced {
                    continue;
                }
                match record.body().unwrap() {
                    RecordBody::Remove { .. } if ended => {}
                    RecordBody::Remove { directory, .. } => {
                        if last_name.is_some_and(|last| last >= directory.0) {
                            return Err("names out of order".into());
                        }
                        last_name = Some(directory.0);
                        names.insert(directory.0);
                    }
                    RecordBody::Write(w) | RecordBody::Write2(w) => {
                        // The claim ends before a record whose block was never written. The rest
                        // of the chain belongs to the log nevertheless.
                        if ended {
                            continue;
                        }
                        let Some(data) = restored_bytes(&w, &disk, &mut named)? else {
                            ended = true;
                            continue;
                        };
                        let right = (0..w.length)
                            .all(|i| data[i as usize] == byte(w.object.0, w.offset + i));
                        if !right {
                            return Err("other data than was written".into());
                        }
                        objects.entry(w.object.0).or_default().insert((w.offset, w.length));
                    }
                    other => return Err(format!("{other:?}")),
                }
            }
            ptr = block.next;
        }
        if found != maps {
            return Err(format!("the maps have {maps:?}, the chain {found:?}"));
        }
        let whole = |o: u64| {
            let mut end = 0;
            for &(at, len) in objects.get(&o).into_iter().flatten() {
                if at > end {
                    return Err(format!("object {o} has a gap at {end}"));
                }
                end = end.max(at + len);
            }
            Ok(end)
        };
        if names.iter().enumerate().any(|(i, n)| i as u64 != *n) {
            return Err(format!("a gap among names: {names:?}"));
        }
        for (at, acknowledged, sizes) in self.acknowledged.iter().filter(|p| p.0 <= cut) {
            if names.len() < *acknowledged {
                return Err(format!(
                    "{acknowledged} names were acknowledged at {at}, {} are there",
                    names.len()
                ));
            }
            for (o, size) in sizes {
                if whole(*o)? < *size {
                    return Err(format!("object {o} lacks data acknowledged at {at}"));
                }
            }
        }
        // For every object with content, the earlier names are there, too.
        for (o, ranges) in &objects {
            let end = whole(*o)?;
            let mut before = 0;
            for d in &self.done {
                match d.object {
                    None => before += 1,
                    Some(x) if x == *o && d.range.0 < end && names.len() < before => {
                        return Err(format!("object {o}: {ranges:?} without the names before"));
                    }
                    Some(_) => {}
                }
            }
        }
        Ok(())
    }

    fn check_all(&self, seed: u64) -> std::result::Result<usize, String> {
        let events = self.pool.state.lock().unwrap().events.len();
        for cut in 0..=events {
            for keep in [0, u64::MAX, seed.rotate_left(cut as u32)] {
                self.check(cut, keep).map_err(|e| format!("after event {cut}: {e}"))?;
            }
        }
        Ok(events + 1)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn everything_acknowledged_survives(
        ops in prop::collection::vec(op(), 1..60),
        seed: u64,
        slim: bool,
    ) {
        let mut fixture = LogFixture::new(slim);
        ops.iter().for_each(|op| fixture.act(op));
        if let Err(e) = fixture.check_all(seed) {
            prop_assert!(false, "{}", e);
        }
        // In the end nothing of the log is left.
        fixture.log.close().unwrap();
        (0..4).for_each(|_| fixture.pool.sync());
        prop_assert!(fixture.pool.state.lock().unwrap().allocated.is_empty());
        if let Err(e) = fixture.check_all(seed) {
            prop_assert!(false, "in the end, {}", e);
        }
    }
}

/// A block was written in two txgs, and committed when the first one had closed. The record of
/// the first write named the block, and that of the second referred to it as named. The first txg
/// reached the disk and the power failed. The replay skipped the first record, and the second had
/// no data. Acknowledged data was lost.
#[test]
fn a_block_of_two_txgs_is_named_in_each() {
    let mut fixture = LogFixture::new(true);
    let (write, commit) = (|n| LogOp::Write(2, n), LogOp::Commit(None));
    let ops = [LogOp::Name(1), commit.clone(), LogOp::Throughput(true), write(5000), LogOp::Open];
    ops.iter().for_each(|op| fixture.act(op));
    [write(3000), write(100), commit, LogOp::Sync].iter().for_each(|op| fixture.act(op));
    assert_eq!(fixture.pool.state.lock().unwrap().placed, 1, "one block, and once");
    fixture.check_all(7).unwrap();
}

/// Operations of every kind except failures.
fn routine() -> Vec<LogOp> {
    let mut ops = vec![LogOp::Name(5), LogOp::Commit(None), LogOp::Sync];
    for i in 0..12 {
        ops.extend([
            LogOp::Write(1 + i % 3, 3000 * (i + 1)),
            LogOp::Name(20),
            LogOp::Commit(Some(1 + i % 3)),
        ]);
        if i % 4 == 3 {
            ops.push(LogOp::Sync);
        }
    }
    ops
}

#[test]
fn planted_bugs_are_found() {
    let run = |plant: &dyn Fn(&mut FakePoolState)| {
        let mut fixture = LogFixture::new(true);
        plant(&mut fixture.pool.state.lock().unwrap());
        routine().iter().for_each(|op| fixture.act(op));
        fixture.check_all(7)
    };
    assert!(run(&|_| {}).unwrap() > 30);
    assert!(run(&|s| s.skip_flush = true).unwrap_err().contains("acknowledged"));
    // The block that names another is written after the txg whose space maps contain that one.
    assert!(run(&|s| s.no_hold = true).is_err());
}

#[test]
fn planted_bugs_of_blocks_at_their_places_are_found() {
    let run = |plant: &dyn Fn(&mut FakePoolState)| {
        let mut fixture = LogFixture::new(true);
        plant(&mut fixture.pool.state.lock().unwrap());
        let mut ops = vec![LogOp::Name(5), LogOp::Commit(None), LogOp::Sync];
        for i in 0..6 {
            ops.extend([
                LogOp::Write(1, 100_000),
                LogOp::Throughput(i % 2 == 0),
                LogOp::Write(2, 5000),
            ]);
            ops.extend([LogOp::Write(2, 700), LogOp::Commit(None)]);
        }
        ops.iter().for_each(|op| fixture.act(op));
        assert!(fixture.pool.state.lock().unwrap().placed > 20, "nothing went to its place");
        fixture.check_all(7)
    };
    assert!(run(&|_| {}).unwrap() > 30);
    assert!(run(&|s| s.late = true).unwrap_err().contains("acknowledged"));
    assert!(run(&|s| s.stale = true).unwrap_err().contains("other data"));
}

#[test]
fn copied_data_of_uncommitted_writes_is_bounded() {
    let mut fixture = LogFixture::new(true);
    let small = |fixture: &mut LogFixture, n| {
        let before = fixture.log.stats().allocated();
        for _ in 0..n {
            fixture.act(&LogOp::Write(1, 128));
            fixture.act(&LogOp::Commit(Some(1)));
        }
        (fixture.log.stats().allocated() - before) / n
    };
    fixture.act(&LogOp::Name(3));
    fixture.act(&LogOp::Commit(None));
    assert_eq!(small(&mut fixture, 50), 4096);
    // A mass of writes without commits costs nothing until a commit.
    for _ in 0..40 {
        fixture.act(&LogOp::Write(2, 100_000));
    }
    fixture.act(&LogOp::Commit(Some(2)));
    small(&mut fixture, 8);
    assert_eq!(small(&mut fixture, 50), 4096);
}

/// A commit of 20 MB once fetched all of it into memory, and wrote it beside the txg that wrote
/// the same data.
#[test]
fn much_data_is_written_in_pieces_or_with_its_txg() {
    let commit = |dirty: u64| {
        let mut fixture = LogFixture::new(true);
        fixture.act(&LogOp::Name(3));
        fixture.act(&LogOp::Commit(None));
        (0..1000).for_each(|_| fixture.act(&LogOp::Write(2, 20_000)));
        fixture.pool.state.lock().unwrap().dirty = dirty;
        let before = fixture.pool.state.lock().unwrap().events.len();
        fixture.act(&LogOp::Commit(Some(2)));
        let events = fixture.pool.state.lock().unwrap().events.split_off(before);
        let mut unflushed = vec![0];
        for event in &events {
            match event {
                DeviceEvent::Write(_, bytes) => *unflushed.last_mut().unwrap() += bytes.len(),
                DeviceEvent::Flush => unflushed.push(0),
                DeviceEvent::Synced(..) => {}
            }
        }
        fixture.pool.state.lock().unwrap().events.extend(events);
        let all = fixture.pool.state.lock().unwrap().events.len();
        fixture.check(all, 0).unwrap();
        (unflushed, fixture.pool.state.lock().unwrap().synced)
    };
    let (pieces, synced) = commit(1 << 30);
    assert!(pieces.iter().sum::<usize>() > 20_000_000 && synced < 12, "{pieces:?}");
    assert!(pieces.iter().all(|n| *n < 9 << 20), "{pieces:?}");
    // Most of the dirty data is in the batch.
    let (pieces, synced) = commit(30_000_000);
    assert_eq!((pieces, synced), (vec![0], 12));
}

#[test]
fn committers_share_blocks() {
    let mut fixture = LogFixture::new(true);
    fixture.act(&LogOp::Name(3));
    fixture.act(&LogOp::Commit(None));
    let pool = Arc::new(FakePool { slow: true, ..FakePool::default() });
    *pool.state.lock().unwrap() =
        FakePoolState { open: 11, synced: 10, ..FakePoolState::default() };
    let log = Log::new(OBJSET, true, Arc::new(StoreHandle(Arc::clone(&pool))));
    pool.log.set(Arc::downgrade(&log)).unwrap();
    log.name(Txg(11), 5, &RecordBody::Remove { directory: ObjectId(1), name: b"x" }, None);
    log.commit(&FixedContent, None, 0).unwrap();
    let before = log.stats().batches.load(SeqCst);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let log = &log;
            scope.spawn(move || {
                for i in 0..20 {
                    log.write(Txg(12), ObjectId(thread), i * 100, &[1; 100]);
                    log.commit(&FixedContent, Some(ObjectId(thread)), 0).unwrap();
                }
            });
        }
    });
    let batches = log.stats().batches.load(SeqCst) - before;
    assert!((20..=80).contains(&batches), "{batches} batches for 160 commits");
    log.set_mode(Mode::Disabled);
    log.write(Txg(12), ObjectId(1), 0, &[1; 100]);
    log.commit(&FixedContent, None, 0).unwrap();
    assert_eq!(log.stats().batches.load(SeqCst) - before, batches);
}

/// Waits for `go` in its first reads, and panics in the next one.
struct Trap {
    go: AtomicU64,
    reads: AtomicU64,
}

impl Source for Trap {
    fn read(&self, object: ObjectId, offset: u64, len: u64) -> Result<Option<Vec<u8>>> {
        let nth = self.reads.fetch_add(1, SeqCst);
        while nth == 0 && self.go.load(SeqCst) == 0 {
            std::thread::yield_now();
        }
        assert!(nth != 1, "a committer is lost");
        FixedContent.read(object, offset, len)
    }
}

#[test]
fn a_committer_that_panics_fails_no_other() {
    let mut fixture = LogFixture::new(true);
    fixture.act(&LogOp::Name(3));
    fixture.act(&LogOp::Commit(None));
    let log = &fixture.log;
    let txg = Txg(fixture.pool.state.lock().unwrap().open);
    let trap = &Trap { go: AtomicU64::new(0), reads: AtomicU64::new(0) };
    // Data of this size is fetched at the commit.
    for object in 1..=4 {
        log.write(txg, ObjectId(object), 0, &[1; 20_000]);
    }
    let commit = move |object| log.commit(trap, Some(ObjectId(object)), 0);
    let ends: Vec<bool> = std::thread::scope(|scope| {
        let first = scope.spawn(move || commit(1));
        while trap.reads.load(SeqCst) == 0 {
            std::thread::yield_now();
        }
        let others: Vec<_> = (2..=4).map(|o| scope.spawn(move || commit(o))).collect();
        // They wait for the first one, and most share a batch. Nothing shows when they do: one
        // that comes later than this leads a batch of its own, and the test says the same.
        while log.stats().commits.load(SeqCst) < 5 {
            std::thread::yield_now();
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
        trap.go.store(1, SeqCst);
        first.join().unwrap().unwrap();
        others.into_iter().map(|t| t.join().is_ok_and(|done| done.is_ok())).collect()
    });
    assert_eq!(ends.iter().filter(|ok| **ok).count(), 2, "{ends:?}");
    let synced = fixture.pool.state.lock().unwrap().synced;
    assert!(synced >= txg.0, "the other records are in no txg on disk");
    // The log continues.
    let batches = log.stats().batches.load(SeqCst);
    fixture.act(&LogOp::Write(9, 100));
    fixture.act(&LogOp::Commit(Some(9)));
    fixture.act(&LogOp::Write(9, 100));
    fixture.act(&LogOp::Commit(Some(9)));
    assert!(fixture.log.stats().batches.load(SeqCst) > batches);
}
