//! Writes that fail, end late, or exceed the limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use base::rt;
use codec::checksum::Checksum;
use codec::compress::Compression;

use super::fixture::*;
use crate::write::{Lost, Writes};
use crate::{Io, chunks_in_order};

fn lost_after(copies: u8, fates: &[(u32, WriteFate)]) -> (ZioFixture, Vec<Lost>, u64) {
    let pool = ZioFixture::new(3, 9);
    fates.iter().for_each(|&(vdev, fate)| pool.disks.fate(vdev, fate));
    let (data, props) = (noise(8192, 1), plain(copies));
    let writes = Writes::new(&pool.zio);
    let placed = pool.zio.place(pool.zio.prepare(&file(&data, &props)).unwrap()).unwrap();
    let bp = placed.bp;
    pool.zio.submit(placed, &writes);
    let lost = writes.wait();
    assert_eq!((writes.in_flight(), pool.zio.in_flight.len()), (0, 0));
    assert!(writes.wait().is_empty(), "reported twice");
    let read = pool.reader(9).read(&bp, Io::SCAN);
    assert_eq!(read.is_ok(), lost.iter().all(|l| l.readable));
    assert_eq!(*pool.zio.read(&bp, Io::MEMORY).unwrap(), *data);
    let counts = writes.counts();
    assert_eq!((counts.blocks, counts.writes), (1, u64::from(copies)));
    assert_eq!(counts.bytes, 8192 * u64::from(copies));
    (pool, lost, counts.retries)
}

#[test]
fn a_failed_write_is_repeated_once() {
    let (_, lost, retries) = lost_after(1, &[(0, WriteFate::FailsOnce)]);
    assert_eq!((lost.len(), retries), (0, 1));
    let (_, lost, retries) = lost_after(3, &[(0, WriteFate::FailsOnce), (2, WriteFate::FailsOnce)]);
    assert_eq!((lost.len(), retries), (0, 2));
}

#[test]
fn another_copy_makes_a_loss_a_degradation() {
    let (_, lost, retries) = lost_after(1, &[(0, WriteFate::Fails)]);
    assert_eq!((lost.len(), retries), (1, 1));
    assert!(!lost[0].readable);
    assert_eq!((lost[0].birth, lost[0].dva.vdev.0), (T, 0));
    let (_, lost, _) = lost_after(3, &[(0, WriteFate::Fails), (1, WriteFate::Fails)]);
    assert_eq!(lost.len(), 2);
    assert!(lost.iter().all(|l| l.readable));
    let all = [(0, WriteFate::Fails), (1, WriteFate::Fails), (2, WriteFate::Fails)];
    let (_, lost, _) = lost_after(3, &all);
    assert_eq!(lost.len(), 3);
    assert!(lost.iter().all(|l| !l.readable));
}

#[test]
fn a_block_that_left_the_cache_before_it_was_written_is_found() {
    let pool = ZioFixture::new(1, 9);
    pool.disks.hold();
    let writes = Writes::new(&pool.zio);
    let mut blocks = Vec::new();
    for i in 0..40 {
        let data = if i % 2 == 0 { noise(16_384, i) } else { words(16_384, i) };
        let props = props(Compression::Lz4, Checksum::Fletcher4, 2);
        let placed = pool.zio.place(pool.zio.prepare(&file(&data, &props)).unwrap()).unwrap();
        blocks.push((placed.bp, data));
        pool.zio.submit(placed, &writes);
    }
    assert_eq!((writes.in_flight(), pool.zio.in_flight.len()), (80, 40));
    pool.zio.cache().clear();
    for (bp, data) in &blocks {
        assert_eq!(*pool.zio.read(bp, Io::SCAN).unwrap(), **data);
        assert_eq!(*pool.zio.read(bp, Io::WAIT).unwrap(), **data);
        assert_eq!(*pool.zio.read(bp, Io::MEMORY).unwrap(), **data);
        assert!(pool.reader(9).read(bp, Io::SCAN).is_err());
    }
    pool.disks.serve(false);
    assert!(writes.wait().is_empty());
    assert_eq!(pool.zio.in_flight.len(), 0);
    for (bp, data) in &blocks {
        assert_eq!(*pool.reader(9).read(bp, Io::SCAN).unwrap(), **data);
    }
}

#[test]
fn bytes_in_flight_are_bounded_and_order_is_kept() {
    // A chunk of more than the limit is sent in parts.
    for chunk in [1, 5, 30] {
        bounded(chunk);
    }
}

fn bounded(chunk: usize) {
    let pool = ZioFixture::new(2, 9);
    pool.disks.fate(1, WriteFate::FailsOnce);
    pool.disks.hold();
    let limit = 256 << 10;
    let writes = Writes::with_limit(&pool.zio, limit);
    let stop = Arc::new(AtomicBool::new(false));
    let device = {
        let (disks, stop) = (Arc::clone(&pool.disks), Arc::clone(&stop));
        rt::spawn("device", move || {
            while !stop.load(SeqCst) || disks.held() > 0 {
                disks.serve(true);
                // The device's time for an operation, so that writes queue up.
                rt::sleep(std::time::Duration::from_micros(50));
            }
        })
        .unwrap()
    };
    let data: Vec<_> = (0..300).map(|i| noise(32 << 10, i)).collect();
    let props = plain(1);
    let placed = base::rt::Mutex::new(Vec::new());
    chunks_in_order(
        4,
        data.len(),
        chunk,
        |i| pool.zio.prepare(&file(&data[i], &props)),
        |_, p| {
            let p = pool.zio.place(p)?;
            placed.lock().push(p.bp);
            Ok(p)
        },
        |_, chunk| {
            pool.zio.submit_all(chunk, &writes);
            Ok(())
        },
    )
    .unwrap();
    assert!(writes.wait().is_empty());
    stop.store(true, SeqCst);
    device.join().unwrap();
    assert!(pool.disks.most.load(SeqCst) <= limit, "{}", pool.disks.most.load(SeqCst));
    assert_eq!(writes.counts().retries, 150);
    let reader = pool.reader(9);
    let mut last = [None, None];
    for (bp, data) in placed.into_inner().iter().zip(&data) {
        let dva = bp.as_block().unwrap().dva();
        let last = &mut last[dva.vdev.0 as usize];
        assert!(last.is_none_or(|l| l < dva.offset));
        *last = Some(dva.offset);
        assert_eq!(*reader.read(bp, Io::SCAN).unwrap(), **data);
    }
}

/// Devices return at the `back`th wait; after `most` waits the outage gives up.
struct Waits {
    disks: Arc<FaultySink>,
    waits: std::sync::atomic::AtomicU64,
    back: u64,
    most: u64,
}

impl crate::Outage for Waits {
    fn wait(&self, why: &base::Error) -> bool {
        assert_eq!(why.kind(), base::ErrorKind::Io);
        let waits = self.waits.fetch_add(1, SeqCst) + 1;
        if waits == self.back {
            (0..3).for_each(|vdev| self.disks.fate(vdev, WriteFate::FailsOnce));
        }
        waits <= self.most
    }

    fn wait_per_failmode(&self, why: &base::Error) -> bool {
        self.wait(why)
    }
}

fn with_an_outage(copies: u8, back: u64, most: u64) -> (ZioFixture, Vec<Lost>, bool) {
    let pool = ZioFixture::new(3, 9);
    (0..3).for_each(|vdev| pool.disks.fate(vdev, WriteFate::Fails));
    let waits = std::sync::atomic::AtomicU64::new(0);
    pool.zio.set_outage(Arc::new(Waits { disks: Arc::clone(&pool.disks), waits, back, most }));
    let (data, props) = (noise(8192, 1), plain(copies));
    let writes = Writes::new(&pool.zio);
    let placed = pool.zio.place(pool.zio.prepare(&file(&data, &props)).unwrap()).unwrap();
    let bp = placed.bp;
    pool.zio.submit(placed, &writes);
    let lost = writes.wait();
    assert_eq!((writes.in_flight(), pool.zio.in_flight.len()), (0, 0));
    let there = pool.reader(9).read(&bp, Io::SCAN).is_ok_and(|read| *read == *data);
    (pool, lost, there)
}

#[test]
fn writes_are_repeated_when_their_device_returns() {
    for (copies, back) in [(1, 1), (1, 3), (3, 2)] {
        let (_, lost, there) = with_an_outage(copies, back, 9);
        assert!(lost.is_empty() && there, "{copies} {back}: {lost:?}");
    }
    // The devices never return.
    let (_, lost, there) = with_an_outage(2, 9, 3);
    assert!(lost.len() == 2 && lost.iter().all(|l| !l.readable) && !there);
}
