use base::{Asize, Lsize, Psize, VdevId};
use ondisk::ObjType;
use ondisk::blkptr::Head;

use super::*;

fn dva(vdev: u32, offset: u64) -> Dva {
    Dva { vdev: VdevId(vdev), offset, asize: Asize(4096), gang: false }
}

fn block(dvas: &[Dva]) -> Block {
    let head = Head { object_type: ObjType::DNODE, level: 0, lsize: Lsize(4096), birth: Txg(9) };
    Block::new(head, Psize(4096), 2, dvas)
}

fn entries(dvas: &[Dva]) -> Vec<QueuedAddress> {
    let at = Bookmark { objset: 1, object: 2, level: 0, blkid: 0 };
    let block = Arc::new(ScanBlock { block: block(dvas), at, log: None });
    let entry = |(i, &dva)| QueuedAddress { block: Arc::clone(&block), dva, first: i == 0 };
    dvas.iter().enumerate().map(entry).collect()
}

/// The number of the only scan.
const SERIAL: u64 = 1;

fn queue() -> ScanQueue {
    let queue = ScanQueue::new(1 << 20);
    assert_eq!(queue.open(), SERIAL);
    queue.begin_slice(Txg(20));
    queue
}

#[test]
fn a_freed_block_leaves_the_queue_at_all_its_addresses() {
    let queue = queue();
    let both = [dva(0, 4096), dva(1, 8192)];
    queue.add(SERIAL, entries(&both).into_iter());
    assert_eq!(queue.runs(true).len(), 2);
    queue.freed(Txg(21), &block(&both));
    assert!(queue.is_empty() && queue.memory() == 0);
    assert_eq!(queue.take_dropped(), 8192);
    // The walk of the old tree meets it again.
    assert_eq!(queue.add(SERIAL, entries(&both).into_iter()), 8192);
    queue.announced(Txg(21));
    assert_eq!(queue.add(SERIAL, entries(&both).into_iter()), 8192, "the old tree is still walked");
    queue.end_slice();
    queue.announced(Txg(22));
    assert_eq!(queue.add(SERIAL, entries(&both).into_iter()), 0, "another block is there by now");
}

#[test]
fn a_block_freed_while_it_is_read_is_not_in_use() {
    let queue = queue();
    queue.add(SERIAL, entries(&[dva(0, 0)]).into_iter());
    let mut run = queue.runs(true)[0];
    let taken = queue.take(&mut run, 10, 1 << 20);
    assert!(queue.is_in_use(dva(0, 0)) && !queue.has(&run));
    queue.freed(Txg(21), &block(&[dva(0, 0)]));
    assert!(!queue.is_in_use(dva(0, 0)));
    queue.done(&taken);
    assert!(queue.is_empty());
}

#[test]
fn the_largest_runs_are_read_first() {
    let queue = queue();
    let far = 64 << 20;
    let mut wanted = vec![dva(0, 0), dva(0, 2 * far), dva(1, 0)];
    wanted.extend((0..5).map(|i| dva(0, far + i * 4096)));
    for place in &wanted {
        queue.add(SERIAL, entries(&[*place]).into_iter());
    }
    assert_eq!(queue.runs(true).len(), 4, "in device order");
    queue.set_limit(queue.memory());
    assert!(queue.is_full());
    let runs = queue.runs(false);
    assert_eq!(runs, [PlaceRun { vdev: 0, first: far, last: far + 4 * 4096 }]);
    let mut run = runs[0];
    assert_eq!(queue.take(&mut run, 2, u64::MAX).len(), 2);
    assert_eq!(queue.take(&mut run, 10, 4097).len(), 2, "by bytes");
    assert_eq!(queue.take(&mut run, 10, 1).len(), 1);
    assert!(!queue.has(&run) && !queue.is_full());
}

/// A scan was replaced by another one while the thread gathered for the former.
#[test]
fn a_scan_that_is_over_adds_nothing() {
    let queue = queue();
    queue.add(SERIAL, entries(&[dva(0, 0)]).into_iter());
    let mut run = queue.runs(true)[0];
    queue.take(&mut run, 10, 1 << 20);
    queue.close();
    assert!(!queue.is_in_use(dva(0, 0)), "its frees are not reported any more");
    queue.add(SERIAL, entries(&[dva(0, 4096)]).into_iter());
    let next = queue.open();
    queue.add(SERIAL, entries(&[dva(0, 8192)]).into_iter());
    assert!(queue.is_empty() && queue.memory() == 0);
    queue.add(next, entries(&[dva(0, 8192)]).into_iter());
    assert!(!queue.is_empty());
}

#[test]
fn readers_and_gathering_wait_for_each_other() {
    let queue = queue();
    let limit = 64 * memory_of(&entries(&[dva(0, 0)])[0]);
    queue.set_limit(limit);
    let all: Vec<Dva> = (0..4000u64).map(|n| dva((n % 3) as u32, n / 3 * 4096)).collect();
    let read = Mutex::new(BTreeSet::new());
    queue.begin_gathering();
    base::rt::fan_out(4, |i| {
        if i == 0 {
            let _end = GatheringEnd(&queue);
            for some in all.chunks(16) {
                queue.add(SERIAL, some.iter().flat_map(|&at| entries(&[at])));
                queue.wait_for_room(|| false);
            }
            return;
        }
        let _reader = queue.begin_reader();
        while let Some(batch) = queue.next_batch(8, u64::MAX) {
            assert!(!batch.is_empty());
            assert!(batch.iter().all(|e| queue.is_in_use(e.dva)));
            for entry in &batch {
                assert!(read.lock().insert(place_of(entry.dva)), "{:?} twice", entry.dva);
            }
            queue.done(&batch);
        }
    });
    // What is left is less than what makes the gathering thread wait.
    assert!(!queue.is_full() || read.lock().is_empty());
    let left: usize = queue
        .runs(true)
        .into_iter()
        .map(|mut run| queue.take(&mut run, 9999, u64::MAX).len())
        .sum();
    assert_eq!(read.lock().len() + left, all.len());
}

#[test]
fn nobody_waits_for_room_without_readers() {
    let queue = queue();
    queue.set_limit(1);
    queue.add(SERIAL, entries(&[dva(0, 0)]).into_iter());
    queue.wait_for_room(|| false);
    queue.begin_gathering();
    drop(GatheringEnd(&queue));
    assert!(queue.next_batch(1, 1).is_none());
    // The scan is over while a reader is there.
    let reader = queue.begin_reader();
    queue.close();
    queue.wait_for_room(|| false);
    drop(reader);
}
