//! Classes, copies, states of metaslabs, threads.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use base::rt::Mutex;
use base::{Asize, Dva, ErrorKind, Txg, VdevId};
use metaslab::{Denied, MapFacts, MsDesc, MsKey, RangeTree, Space, SpaceClass, VdevDesc, Want};
use ondisk::spacemap::{Header, Kind, Range};

const M: u64 = 1 << 20;
const FACTS: MapFacts = MapFacts { logs: false, v2: true, long_header: true, block_size: 4096 };

fn vdev(id: u32, class: SpaceClass, metaslabs: usize) -> VdevDesc {
    VdevDesc {
        vdev: VdevId(id),
        class,
        asize: metaslabs as u64 * 16 * M,
        ashift: 12,
        ms_shift: 24,
        align: 0,
        data_disks: 1,
        allocating: true,
        metaslabs: vec![MsDesc::default(); metaslabs],
    }
}

fn space(vdevs: &[VdevDesc]) -> Space {
    let space = Space::new(1);
    vdevs.iter().for_each(|v| space.add_vdev(v, None).unwrap());
    space
}

fn want(class: SpaceClass, copies: u8) -> Want {
    Want {
        psize: 8192,
        record: 0,
        copies,
        class,
        txg: Txg(7),
        hint: 0,
        metadata: false,
        gang_child: false,
        avoid: None,
    }
}

fn take(space: &Space, want: &Want, size: u64) -> Result<Vec<Dva>, Denied> {
    space.allocate(want, &|_| size)
}

fn sync(space: &Space, txg: Txg) {
    for (object, key) in space.take_dirty(txg).into_iter().enumerate() {
        if let Some(write) = space.prepare_write(key, txg, 1, &FACTS).unwrap() {
            let object = if write.object == 0 { 100 + object as u64 } else { write.object };
            space.written(key, object, write.length + 8).unwrap();
        }
    }
    space.synced(txg, true).unwrap();
}

fn vdevs_of(dvas: &[Dva]) -> Vec<u32> {
    dvas.iter().map(|d| d.vdev.0).collect()
}

#[test]
fn copies_lie_on_neighbouring_vdevs_then_in_other_metaslabs() {
    let three = space(&[0, 1, 2].map(|i| vdev(i, SpaceClass::Normal, 4)));
    assert_eq!(vdevs_of(&take(&three, &want(SpaceClass::Normal, 3), 8192).unwrap()), [0, 1, 2]);
    let avoid = Want { avoid: Some(VdevId(0)), ..want(SpaceClass::Normal, 2) };
    assert_eq!(vdevs_of(&take(&three, &avoid, 8192).unwrap()), [1, 2]);

    let one = space(&[vdev(0, SpaceClass::Normal, 4)]);
    let dvas = take(&one, &want(SpaceClass::Normal, 3), 8192).unwrap();
    let mut metaslabs: Vec<u64> = dvas.iter().map(|d| d.offset / (16 * M)).collect();
    metaslabs.dedup();
    assert_eq!(metaslabs.len(), 3);

    let tiny = space(&[vdev(0, SpaceClass::Normal, 1)]);
    assert_eq!(take(&tiny, &want(SpaceClass::Normal, 3), 8192).unwrap().len(), 3);
    tiny.check().unwrap();
}

#[test]
fn the_rotor_turns_and_follows_free_space() {
    let two = space(&[vdev(0, SpaceClass::Normal, 2), vdev(1, SpaceClass::Normal, 6)]);
    let mut bytes = [0u64; 2];
    for _ in 0..48 {
        let dvas = take(&two, &want(SpaceClass::Normal, 1), M).unwrap();
        bytes[dvas[0].vdev.0 as usize] += M;
    }
    assert_eq!(bytes, [12 * M, 36 * M]);
}

#[test]
fn classes_fall_back_to_normal_and_never_to_logs() {
    let s = space(&[
        vdev(0, SpaceClass::Normal, 2),
        vdev(1, SpaceClass::Special, 1),
        vdev(2, SpaceClass::Log, 4),
    ]);
    let big = |class| take(&s, &want(class, 1), 12 * M).map(|d| d[0].vdev.0);
    assert_eq!(big(SpaceClass::Special), Ok(1));
    assert_eq!(big(SpaceClass::Special), Ok(0));
    assert_eq!(big(SpaceClass::Dedup), Ok(0));
    assert_eq!(big(SpaceClass::Dedup), Err(Denied::NoSpace));
    assert_eq!(big(SpaceClass::Normal), Err(Denied::NoSpace));
    assert_eq!(big(SpaceClass::Log), Ok(2));
    let totals = s.class_totals(SpaceClass::Normal);
    assert_eq!((totals.capacity, totals.reserved, totals.free()), (32 * M, 24 * M, 8 * M));
    s.check().unwrap();
}

#[test]
fn a_failed_allocation_takes_nothing() {
    let s = space(&[vdev(0, SpaceClass::Normal, 2)]);
    assert_eq!(take(&s, &want(SpaceClass::Normal, 3), 12 * M), Err(Denied::NoSpace));
    assert_eq!(s.class_totals(SpaceClass::Normal).free(), 32 * M);
    assert_eq!(take(&s, &want(SpaceClass::Normal, 1), 17 * M), Err(Denied::NoSpace));
    assert_eq!(take(&s, &want(SpaceClass::Normal, 1), 100), Err(Denied::NoSpace));
    let dvas = take(&s, &want(SpaceClass::Normal, 2), 12 * M).unwrap();
    s.unallocate(Txg(7), &dvas);
    assert_eq!(s.class_totals(SpaceClass::Normal).free(), 32 * M);
    s.check().unwrap();
}

#[test]
fn new_disabled_and_passive_space_is_not_used() {
    let s = Space::new(1);
    s.add_vdev(&vdev(0, SpaceClass::Normal, 2), Some(Txg(7))).unwrap();
    let w = want(SpaceClass::Normal, 1);
    assert_eq!(take(&s, &w, 8192), Err(Denied::NoSpace));
    sync(&s, Txg(6));
    assert_eq!(take(&s, &w, 8192), Err(Denied::NoSpace));
    sync(&s, Txg(7));
    assert!(take(&s, &w, 8192).is_ok());
    let keys = [0, 1].map(|ms| MsKey { vdev: VdevId(0), ms });
    keys.iter().for_each(|&k| s.disable(k, true).unwrap());
    assert_eq!(take(&s, &w, 8192), Err(Denied::NoSpace));
    s.disable(keys[1], false).unwrap();
    assert_eq!(take(&s, &w, 8192).unwrap()[0].offset, 16 * M);
    s.set_allocating(VdevId(0), false).unwrap();
    assert_eq!(take(&s, &w, 8192), Err(Denied::NoSpace));
    s.set_allocating(VdevId(0), true).unwrap();
}

/// A vdev on which metaslab 1 has room for a megabyte, by its histogram, and the others
/// have less.
fn recorded() -> VdevDesc {
    let header = |free: u64| {
        let mut histogram = [0; 32];
        histogram[free.ilog2() as usize - 12] = 1;
        let alloc = (16 * M - free) as i64;
        Header { object: 9, length: 16, alloc, histogram: Some(histogram) }
    };
    let ms = |free| MsDesc { object: 9, header: header(free), unflushed_txg: Txg::ZERO };
    VdevDesc { metaslabs: vec![ms(M / 4), ms(M), ms(M / 2)], ..vdev(0, SpaceClass::Normal, 3) }
}

fn entries(ms: u64, free: u64) -> Vec<base::Result<Range>> {
    let range = |kind, offset, len| Ok(Range { kind, offset, len, vdev: VdevId(0) });
    let start = ms * 16 * M;
    vec![range(Kind::Alloc, start, 16 * M), range(Kind::Free, start + M, free)]
}

#[test]
fn the_best_metaslab_is_loaded_and_then_others() {
    let s = space(&[recorded()]);
    let w = want(SpaceClass::Normal, 1);
    let load = |ms, free| {
        let plan = s.load_plan(MsKey { vdev: VdevId(0), ms }).unwrap().unwrap();
        assert_eq!((plan.object, plan.length), (9, 16));
        s.load(&plan, entries(ms, free)).unwrap();
    };
    assert_eq!(take(&s, &w, M / 2), Err(Denied::Load(VdevId(0), 1)));
    load(1, M);
    assert_eq!(take(&s, &w, M / 2).unwrap()[0].offset, 17 * M);
    assert_eq!(take(&s, &w, M / 2).unwrap()[0].offset, 17 * M + M / 2);
    assert_eq!(take(&s, &w, M / 2), Err(Denied::Load(VdevId(0), 2)));
    load(2, M / 2);
    assert_eq!(take(&s, &w, M / 2).unwrap()[0].offset, 33 * M);
    assert_eq!(take(&s, &w, M / 2), Err(Denied::NoSpace));
    s.check().unwrap();
}

#[test]
fn maps_that_do_not_add_up_are_refused() {
    let s = space(&[recorded()]);
    let key = MsKey { vdev: VdevId(0), ms: 1 };
    let plan = s.load_plan(key).unwrap().unwrap();
    let kind = |r: base::Result<()>| r.unwrap_err().kind();
    assert_eq!(kind(s.load(&plan, entries(1, M / 2))), ErrorKind::Corrupt);
    assert_eq!(kind(s.load(&plan, entries(2, M))), ErrorKind::Corrupt);
    let twice = entries(1, M).into_iter().chain(entries(1, M));
    assert_eq!(kind(s.load(&plan, twice)), ErrorKind::Corrupt);
    // A free in between changes the map, so the plan is stale.
    let dva = Dva { vdev: VdevId(0), offset: 17 * M, asize: Asize(4096), gang: false };
    s.free(Txg(7), dva).unwrap();
    sync(&s, Txg(7));
    assert_eq!(kind(s.load(&plan, entries(1, M))), ErrorKind::Busy);

    let mut bad = recorded();
    bad.metaslabs[0].header.alloc = -1;
    assert_eq!(kind(Space::new(1).add_vdev(&bad, None)), ErrorKind::Corrupt);
    let mut bad = recorded();
    bad.asize = 16 * M;
    assert_eq!(kind(Space::new(1).add_vdev(&bad, None)), ErrorKind::Corrupt);
}

#[test]
fn bad_frees_are_errors() {
    let s = space(&[vdev(0, SpaceClass::Normal, 2)]);
    let dvas = take(&s, &want(SpaceClass::Normal, 1), M).unwrap();
    let free = |offset, size| {
        let dva = Dva { vdev: VdevId(0), offset, asize: Asize(size), gang: false };
        s.free(Txg(7), dva).map_err(|e| e.kind())
    };
    for (offset, size) in [
        (M, 4096),
        (0, 2 * M),
        (12 * M, 8 * M),
        (32 * M, 4096),
        (31 * M, 4 * M),
        (100, 4096),
        (0, 100),
        (0, 0),
        (u64::MAX - 4095, 4096),
    ] {
        assert_eq!(free(offset, size), Err(ErrorKind::Corrupt), "{offset:#x} {size:#x}");
    }
    let elsewhere = Dva { vdev: VdevId(5), ..dvas[0] };
    assert_eq!(s.free(Txg(7), elsewhere).unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(free(0, M / 2), Ok(()));
    assert_eq!(free(0, M), Err(ErrorKind::Corrupt));
    sync(&s, Txg(7));
    assert_eq!(free(0, 4096), Err(ErrorKind::Corrupt));
    assert_eq!(free(M / 2, M / 2), Ok(()));
    s.check().unwrap();
}

#[test]
fn freed_space_comes_back_after_two_more_groups() {
    let s = space(&[vdev(0, SpaceClass::Normal, 1)]);
    let all = take(&s, &want(SpaceClass::Normal, 1), 16 * M).unwrap()[0];
    sync(&s, Txg(7));
    s.free(Txg(8), all).unwrap();
    for txg in 8..10 {
        sync(&s, Txg(txg));
        let totals = s.vdev_totals(VdevId(0)).unwrap();
        assert_eq!((totals.allocated, totals.deferred), (0, 16 * M));
        assert_eq!(take(&s, &want(SpaceClass::Normal, 1), 4096), Err(Denied::NoSpace));
    }
    sync(&s, Txg(10));
    assert_eq!(s.vdev_totals(VdevId(0)).unwrap().free(), 16 * M);
    assert_eq!(s.synced(Txg(11), true).unwrap(), []);
    s.remove_vdev(VdevId(0)).unwrap();
    assert_eq!(take(&s, &want(SpaceClass::Normal, 1), 4096), Err(Denied::NoSpace));
}

#[test]
fn claimed_space_is_taken() {
    let s = space(&[vdev(0, SpaceClass::Normal, 1), recorded_as(1)]);
    let dva = |v, offset| Dva { vdev: VdevId(v), offset, asize: Asize(8192), gang: false };
    assert_eq!(s.claim(Txg(7), dva(0, 4096)).unwrap(), None);
    assert_eq!(s.claim(Txg(7), dva(0, 8192)).unwrap_err().kind(), ErrorKind::Corrupt);
    let key = MsKey { vdev: VdevId(1), ms: 1 };
    assert_eq!(s.claim(Txg(7), dva(1, 17 * M)).unwrap(), Some(key));
    assert_eq!(s.vdev_totals(VdevId(0)).unwrap().reserved, 8192);
    let next = take(&s, &want(SpaceClass::Normal, 1), 8192).unwrap();
    assert_eq!(next[0].offset, 12288);
    s.check().unwrap();
}

fn recorded_as(id: u32) -> VdevDesc {
    VdevDesc { vdev: VdevId(id), ..recorded() }
}

/// Counts the threads that allocate, also those that panic.
struct Allocating<'a>(&'a AtomicUsize);

impl Drop for Allocating<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

/// Threads allocate in the open and in the syncing txg while its passes run. A pass recorded the
/// first copy of a block whose second copy found no space: it could not be given back, and the
/// panic of its thread left the sync thread of this test running for ever.
#[test]
fn many_threads_get_disjoint_space() {
    let s = space(&[0, 1].map(|i| vdev(i, SpaceClass::Normal, 8)));
    let all = Mutex::new(Vec::new());
    let running = AtomicUsize::new(4);
    base::rt::fan_out(5, |i| {
        if i == 4 {
            // The sync thread of txg 7, while other threads allocate in 7 and 8.
            for pass in 1.. {
                for key in s.take_dirty(Txg(7)) {
                    if let Some(w) = s.prepare_write(key, Txg(7), pass, &FACTS).unwrap() {
                        s.written(key, 50 + w.key.ms, w.length + 8).unwrap();
                    }
                }
                if running.load(SeqCst) == 0 {
                    break;
                }
                // Without a pause it may keep a lock from the others for minutes.
                base::rt::sleep(std::time::Duration::from_micros(20));
            }
            return;
        }
        let _running = Allocating(&running);
        let mut mine = Vec::new();
        let txg = Txg(7 + i as u64 % 2);
        for n in 0..4000u64 {
            let w = Want { txg, hint: n, copies: 1 + (n % 2) as u8, ..want(SpaceClass::Normal, 1) };
            match take(&s, &w, 4096 * (1 + n % 5)) {
                Ok(dvas) if n % 7 == 0 && txg == Txg(8) => s.unallocate(txg, &dvas),
                Ok(dvas) => mine.extend(dvas),
                Err(e) => assert_eq!(e, Denied::NoSpace),
            }
        }
        all.lock().push(mine);
    });
    for key in s.take_dirty(Txg(7)) {
        if let Some(w) = s.prepare_write(key, Txg(7), 9, &FACTS).unwrap() {
            s.written(key, 50, w.length + 8).unwrap();
        }
    }
    let mut trees = [RangeTree::new(), RangeTree::new()];
    for dva in all.into_inner().into_iter().flatten() {
        trees[dva.vdev.0 as usize].add(dva.offset, dva.asize.0).unwrap();
    }
    s.check().unwrap();
    for (id, tree) in trees.iter().enumerate() {
        let totals = s.vdev_totals(VdevId(id as u32)).unwrap();
        assert_eq!(totals.allocated + totals.reserved, tree.space());
    }
}

#[test]
fn a_large_vdev_keeps_a_metaslab_for_intent_logs() {
    let s = space(&[vdev(0, SpaceClass::Normal, 65)]);
    let ms = |class| take(&s, &want(class, 1), M).map(|d| d[0].offset / (16 * M));
    let kept = ms(SpaceClass::Log).unwrap();
    for _ in 0..64 * 16 {
        assert_ne!(ms(SpaceClass::Normal), Ok(kept));
    }
    // Other blocks use it last; logs use other metaslabs when it is full.
    assert_eq!(ms(SpaceClass::Normal), Ok(kept));
    (0..14).for_each(|_| assert_eq!(ms(SpaceClass::Log), Ok(kept)));
    assert_eq!(ms(SpaceClass::Log), Err(Denied::NoSpace));
    s.check().unwrap();
    // A small vdev reserves none.
    let s = space(&[vdev(0, SpaceClass::Normal, 64)]);
    let ms = |class| take(&s, &want(class, 1), M).map(|d| d[0].offset / (16 * M));
    assert!((0..64 * 16).all(|_| ms(SpaceClass::Normal).is_ok()));
    assert_eq!(ms(SpaceClass::Log), Err(Denied::NoSpace));
}

/// A read found wrong bytes of a block, and the right ones are to be written. Meanwhile
/// the block is freed, and its space would be allocated to another block two txgs
/// later.
#[test]
fn pinned_space_is_not_allocated() {
    let space = space(&[vdev(0, SpaceClass::Normal, 1)]);
    let of = |txg| Want { txg: Txg(txg), ..want(SpaceClass::Normal, 1) };
    let block = take(&space, &of(7), 8192).unwrap()[0];
    sync(&space, Txg(7));
    let vdev = VdevId(0);
    assert!(space.pin(vdev, block.offset, Txg(7)).unwrap());
    // All of the rest is allocated, so freed space is allocated as soon as possible.
    let rest = 16 * M - 8192;
    take(&space, &of(8), rest).unwrap();
    space.free(Txg(8), block).unwrap();
    sync(&space, Txg(8));
    for txg in 9..20 {
        assert!(take(&space, &of(txg), 4096).is_err(), "txg {txg}");
        sync(&space, Txg(txg));
        space.check().unwrap();
        assert_eq!(space.vdev_totals(vdev).unwrap().deferred, 8192);
    }
    // Space that may have been reallocated since then cannot be pinned.
    assert!(!space.pin(vdev, block.offset, Txg(18)).unwrap());
    space.unpin(vdev, block.offset);
    assert!(take(&space, &of(20), 4096).is_err(), "the end of the next txg releases it");
    sync(&space, Txg(20));
    assert_eq!(take(&space, &of(21), 8192).unwrap()[0].offset, block.offset);
    sync(&space, Txg(21));
    space.check().unwrap();
    assert!(space.pin(vdev, 17 * M, Txg(21)).is_err(), "there is no such place");
}

#[test]
fn a_hold_keeps_all_freed_space() {
    let space = space(&[vdev(0, SpaceClass::Normal, 2)]);
    let of = |txg| Want { txg: Txg(txg), ..want(SpaceClass::Normal, 1) };
    let block = take(&space, &of(7), 8192).unwrap()[0];
    sync(&space, Txg(7));
    assert!(space.hold(Txg(7)) && space.hold(Txg(7)));
    space.free(Txg(8), block).unwrap();
    sync(&space, Txg(8));
    let deferred = || space.vdev_totals(VdevId(0)).unwrap().deferred;
    for txg in 9..14 {
        sync(&space, Txg(txg));
        space.check().unwrap();
        assert!(deferred() == 8192 && space.is_held_back(), "txg {txg}");
        if txg == 11 {
            space.end_hold();
        }
    }
    // Space freed after txg 8 may become allocatable at any time.
    assert!(!space.hold(Txg(8)));
    space.end_hold();
    assert!(space.hold(Txg(13)));
    space.end_hold();
    sync(&space, Txg(14));
    assert!(deferred() == 0 && !space.is_held_back());
    space.check().unwrap();
}

/// A block is refused, and so becomes a gang, only where no free range is four times as large,
/// whatever the metaslabs are used for.
#[test]
fn no_block_is_refused_while_a_free_range_is_four_times_as_large() {
    let s = space(&[vdev(0, SpaceClass::Normal, 300)]);
    let of = |psize, metadata| Want { psize, metadata, ..want(SpaceClass::Normal, 1) };
    let mut rng = 88_172_645_463_325_252u64;
    let mut below = |n: u64| {
        rng ^= rng << 13;
        rng ^= rng >> 7;
        rng ^= rng << 17;
        rng % n
    };
    let mut free = RangeTree::new();
    free.add(0, 300 * 16 * M).unwrap();
    let (mut held, mut deferred, mut refused) = (Vec::new(), Vec::<(u64, Dva)>::new(), 0);
    for txg in 7..40 {
        // What a txg freed is allocatable in the third one after it.
        for (_, dva) in deferred.extract_if(.., |d| d.0 + 3 <= txg) {
            free.add(dva.offset, dva.asize.0).unwrap();
        }
        for _ in 0..3000 {
            let size = 4096 << below(9);
            let w = Want { txg: Txg(txg), ..of(size, below(4) == 0) };
            match take(&s, &w, size) {
                Ok(dvas) => {
                    free.remove(dvas[0].offset, size).unwrap();
                    held.push(dvas[0]);
                }
                Err(Denied::NoSpace) => {
                    refused += 1;
                    let largest = free.iter().map(|s| s.len).max().unwrap_or(0);
                    assert!(largest < 4 * size, "{size}: {largest} is free");
                }
                Err(other) => panic!("{other:?}"),
            }
        }
        if txg % 6 == 0 {
            for _ in 0..held.len() / 6 {
                let dva = held.swap_remove(below(held.len() as u64) as usize);
                s.free(Txg(txg), dva).unwrap();
                deferred.push((txg, dva));
            }
        }
        sync(&s, Txg(txg));
    }
    assert!(refused > 100, "{refused}");
    s.check().unwrap();
}
