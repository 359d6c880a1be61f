//! The queue, and what becomes of blocks that are forgotten or not wanted.

use arc::TierUse;
use base::{Asize, VdevId};
use device::{Device, MemDevice};

use super::*;
use crate::device::DeviceSpec;

struct PlainVdevs;

impl Geometry for PlainVdevs {
    fn address(&self, id: &BlockId, psize: u64, gang: bool) -> Option<Dva> {
        let (vdev, offset) = (VdevId(id.vdev), id.offset);
        (id.vdev < 2).then_some(Dva { vdev, offset, asize: Asize(psize), gang })
    }
    fn is_special(&self, vdev: u32) -> bool {
        vdev == 1
    }
}

fn level(change: impl FnOnce(&mut Tunables)) -> Arc<SecondLevel> {
    let level = SecondLevel::new(64 << 20);
    let mut tunables =
        Tunables { rebuild_min: 0, feed_secs: 3600, feed_again: false, ..Tunables::default() };
    change(&mut tunables);
    level.set_tunables(tunables);
    level
}

fn pool(level: &Arc<SecondLevel>) -> Arc<CachePool> {
    let pool = CachePool::new(level, 1, Arc::new(PlainVdevs));
    let memory = Arc::new(MemDevice::new("cache", 64 << 20)) as Arc<dyn Device>;
    let spec = DeviceSpec {
        guid: Guid(1),
        pool: Guid(2),
        ashift: 9,
        rebuild_min: 0,
        log_entries: None,
        ring_max: None,
    };
    let device = pool.add(CacheDevice::new(spec, "cache", memory).unwrap(), false).unwrap();
    let restored = || !device.rebuilding.load(Relaxed);
    assert!(rt::poll(Duration::from_secs(60), restored), "it is not restored");
    pool
}

fn id(n: u64) -> BlockId {
    BlockId { vdev: 0, offset: n << 12, birth: 1 }
}

fn content(n: u64) -> Buf {
    Buf::copy_of(&[n as u8; 4096])
}

fn offer(
    pool: &CachePool,
    id: BlockId,
    change: impl FnOnce(&mut LeavingBlock<'_, u64>),
) -> Offered {
    let stored = content(id.offset >> 12);
    let mut block = LeavingBlock {
        key: &0,
        kind: CacheKind::Data,
        usage: TierUse { eligible: true, ..TierUse::default() },
        stored: &stored,
        lsize: 4096,
        tag: 2,
        again: false,
        returned: false,
        prefetched: false,
    };
    change(&mut block);
    pool.offer(id, &block)
}

fn read(pool: &CachePool, n: u64) -> bool {
    let good = |bytes: &[u8]| bytes == &content(n)[..];
    pool.read(&id(n), 4096, &good).is_some()
}

#[test]
fn a_block_is_found_in_the_queue_and_on_the_device() {
    let level = level(|_| {});
    let pool = pool(&level);
    assert!(!read(&pool, 1));
    assert_eq!(offer(&pool, id(1), |_| {}), Offered::Cached);
    assert!(read(&pool, 1), "in the queue");
    pool.drain();
    assert!(read(&pool, 1), "on the device");
    assert_eq!(pool.devices()[0].sums().blocks, 1);
    assert_eq!(offer(&pool, id(1), |_| {}), Offered::Cached);
    pool.drain();
    assert_eq!(pool.devices()[0].sums().blocks, 1, "it is written once");
    pool.forget(&id(1));
    assert!(!read(&pool, 1));
    offer(&pool, id(2), |_| {});
    pool.forget(&id(2));
    pool.drain();
    assert!(!read(&pool, 2), "forgotten in the queue");
    pool.close();
    assert_eq!(arc::SecondTier::<NumberedKey>::memory(&*level), 0);
}

/// A key for the trait's calls.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct NumberedKey;

impl crate::PoolBlock for NumberedKey {
    fn load(&self) -> u32 {
        1
    }
    fn id(&self) -> BlockId {
        id(9)
    }
}

#[test]
fn wrong_bytes_are_a_miss_and_are_not_read_twice() {
    let level = level(|_| {});
    let pool = pool(&level);
    offer(&pool, id(1), |_| {});
    pool.drain();
    let wrong = |_: &[u8]| false;
    assert!(pool.read(&id(1), 4096, &wrong).is_none());
    assert!(!read(&pool, 1));
    let stats = arc::SecondTier::<NumberedKey>::stats(&*level);
    assert_eq!((stats.cksum_bad, stats.hits, stats.misses), (1, 0, 2));
    pool.close();
}

#[test]
fn the_tunables_decide_what_is_eligible() {
    let level = level(|t| t.exclude_special = true);
    let pool = pool(&level);
    let bar = |change: fn(&mut LeavingBlock<'_, u64>)| offer(&pool, id(3), change);
    assert_eq!(bar(|b| b.usage.eligible = false), Offered::Ineligible);
    assert_eq!(bar(|b| b.prefetched = true), Offered::Ineligible);
    let special = BlockId { vdev: 1, ..id(4) };
    offer(&pool, special, |_| {});
    pool.drain();
    assert!(!pool.devices()[0].contains(&special));
    let mut tunables = level.tunables();
    (tunables.mfuonly, tunables.noprefetch) = (2, false);
    level.set_tunables(tunables);
    assert_eq!(bar(|_| {}), Offered::Ineligible);
    assert_eq!(bar(|b| b.kind = CacheKind::Metadata), Offered::Cached);
    tunables.mfuonly = 1;
    level.set_tunables(tunables);
    assert_eq!(offer(&pool, id(5), |b| b.kind = CacheKind::Metadata), Offered::Ineligible);
    assert_eq!(offer(&pool, id(5), |b| b.again = true), Offered::Cached);
    pool.close();
}

#[test]
fn the_queue_is_bounded() {
    let level = level(|_| {});
    let pool = pool(&level);
    // 64 MiB / 32 is 512 blocks of 4 KiB.
    let cached = (0..1000).filter(|&n| offer(&pool, id(n), |_| {}) == Offered::Cached).count();
    assert_eq!(cached, 512);
    let stats = arc::SecondTier::<NumberedKey>::stats(&*level);
    assert_eq!((stats.waiting, stats.offered, stats.admitted), (2 << 20, 1000, 512));
    pool.close();
}

/// A removed device is not read any more; one that joins begins empty.
#[test]
fn devices_come_and_go() {
    let level = level(|_| {});
    let pool = pool(&level);
    offer(&pool, id(1), |_| {});
    pool.drain();
    pool.remove(Guid(1)).unwrap();
    assert!(!read(&pool, 1) && pool.devices().is_empty());
    assert_eq!(offer(&pool, id(1), |_| {}), Offered::Ineligible);
    pool.close();
}
