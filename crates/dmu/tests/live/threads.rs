//! Writers in two txgs at a time, readers, and a thread that syncs.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use base::ObjectId;
use base::rt::{Condvar, Mutex, fan_out};
use dmu::{Io, ObjectSpec, ObjsetProps};
use ondisk::ObjType;
use ondisk::objset::ObjsetType;
use zio::Writes;

use crate::random::LiveRng;
use crate::walk::PoolWalk;
use crate::world::ObjsetFixture;

const BLOCKS: u64 = 6;
const OBJECTS: usize = 3;
const WRITERS: usize = 3;

/// Txgs, each open while a writer holds it.
struct OpenTxgs {
    state: Mutex<(u64, BTreeMap<u64, u32>)>,
    changed: Condvar,
}

impl OpenTxgs {
    fn hold(&self) -> u64 {
        let mut state = self.state.lock();
        let txg = state.0;
        *state.1.entry(txg).or_default() += 1;
        txg
    }

    fn release(&self, txg: u64) {
        *self.state.lock().1.get_mut(&txg).unwrap() -= 1;
        self.changed.notify_all();
    }

    /// Opens the next txg and waits for the writers of this one.
    fn close(&self) -> u64 {
        let mut state = self.state.lock();
        let txg = state.0;
        state.0 += 1;
        while state.1.get(&txg).is_some_and(|&n| n > 0) {
            self.changed.wait(&mut state);
        }
        txg
    }
}

/// Counts of the edits of a block that began, and that ended.
#[derive(Default)]
struct Count {
    begun: AtomicU64,
    ended: AtomicU64,
}

fn words(block: &[u8]) -> u64 {
    let mut words = block.chunks_exact(8).map(|w| u64::from_le_bytes(w.try_into().unwrap()));
    let first = words.next().unwrap();
    assert!(words.all(|w| w == first), "a torn block");
    first
}

fn run(seed: u64, edits: u64, txgs_min: u64) {
    let world = ObjsetFixture::new(ObjsetType::Other, ObjsetProps::default(), true);
    let object_type = ObjType::PLAIN_FILE_CONTENTS;
    let spec = ObjectSpec { object_type, indirect_shift: 12, ..ObjectSpec::default() };
    let tx = world.tx(1);
    let ids: Vec<ObjectId> = (0..OBJECTS).map(|_| world.os.allocate(&tx, &spec).unwrap()).collect();
    let counts: Vec<Count> = (0..OBJECTS * BLOCKS as usize).map(|_| Count::default()).collect();
    let txgs = OpenTxgs { state: Mutex::new((1, BTreeMap::new())), changed: Condvar::new() };
    let (writing, done) = (AtomicU64::new(WRITERS as u64), AtomicBool::new(false));
    let writer = |n: usize| {
        let mut rng = LiveRng(seed * 31 + n as u64 + 1);
        for _ in 0..edits {
            let (o, b) = (rng.below(OBJECTS as u64) as usize, rng.below(BLOCKS));
            let count = &counts[o * BLOCKS as usize + b as usize];
            count.begun.fetch_add(1, SeqCst);
            let txg = txgs.hold();
            let mut edit = |block: &mut [u8]| {
                let next = words(block) + 1;
                block.chunks_exact_mut(8).for_each(|w| w.copy_from_slice(&next.to_le_bytes()));
                Ok(())
            };
            // Blocks far apart, so that there are levels.
            world.os.edit_block(&world.tx(txg), ids[o], b * 37, &mut edit).unwrap();
            txgs.release(txg);
            count.ended.fetch_add(1, SeqCst);
        }
        writing.fetch_sub(1, SeqCst);
    };
    let reader = |n: usize| {
        let mut rng = LiveRng(seed * 77 + n as u64 + 1);
        while !done.load(SeqCst) {
            let (o, b) = (rng.below(OBJECTS as u64) as usize, rng.below(BLOCKS));
            let count = &counts[o * BLOCKS as usize + b as usize];
            let least = count.ended.load(SeqCst);
            let object = world.os.object(ids[o], Io::WAIT).unwrap();
            let seen = words(&object.read_block(b * 37, Io::WAIT).unwrap());
            let most = count.begun.load(SeqCst);
            assert!((least..=most).contains(&seen), "{least} <= {seen} <= {most}");
            base::rt::sim::point();
        }
    };
    let syncer = || {
        let mut n = 0;
        loop {
            let last = writing.load(SeqCst) == 0;
            let txg = txgs.close();
            let writes = Writes::new(&world.zio);
            let pending = world.sync(txg, &writes, false);
            assert!(writes.wait().is_empty());
            world.end(txg, pending);
            world.synced(txg);
            n += 1;
            if last {
                done.store(true, SeqCst);
                return assert!(n >= txgs_min, "{n} txgs");
            }
        }
    };
    fan_out(WRITERS + 3, |i| match i {
        0 => syncer(),
        i if i <= WRITERS => writer(i),
        i => reader(i),
    });
    let total: u64 = counts.iter().map(|c| c.ended.load(SeqCst)).sum();
    assert_eq!(total, edits * WRITERS as u64);
    let reader = world.reader();
    let walk = PoolWalk::new(&reader, u64::MAX, true);
    world.check_blocks(&walk.reached);
    world.check_space(&walk.places);
    for (o, id) in ids.iter().enumerate() {
        for b in 0..BLOCKS {
            let block = walk.objects[&id.0].blocks.get(&(b * 37));
            let there = block.map_or(0, |(_, content)| words(content));
            assert_eq!(there, counts[o * BLOCKS as usize + b as usize].ended.load(SeqCst));
        }
    }
    world.zio.cache().clear();
    assert_eq!(world.zio.cache().size(), 0, "memory of dirty blocks");
}

#[test]
fn threads_lose_nothing() {
    run(1, 30_000, 3);
}

#[test]
fn schedules_lose_nothing() {
    for seed in 1..7 {
        let options = base::rt::sim::Options::varied(seed);
        let run = base::rt::sim::run_with(options, move || run(seed, 60, 2));
        assert_eq!(run.outcome, base::rt::sim::Outcome::Done(()), "seed {seed}");
    }
}
