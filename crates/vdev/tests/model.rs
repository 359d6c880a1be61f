//! Write queues under the shuttle scheduler, which tries many interleavings:
//! `RUSTFLAGS="--cfg shuttle" cargo test -p vdev --test model`. Without the flag this
//! file is empty.
#![cfg(shuttle)]
#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;

use base::rt::atomic::{AtomicUsize, Ordering::SeqCst};
use base::rt::{self, Condvar, Mutex};
use base::{Buf, BufMut, Guid, Result, Txg, VdevId};
use device::{Caps, Device, DeviceStats, Io, MemDevice, Op};
use vdev::{ClassLimits, LABEL_START, QueueLimits, Spec, Tree, VdevKind, WritePriority, WriteReq};

/// Interleavings tried for each model.
const RUNS: usize = 1000;
const TOP: VdevId = VdevId(0);

#[derive(Default)]
struct Todo {
    ops: Vec<Op>,
    stop: bool,
}

/// A device whose own thread completes operations later, in random order.
struct Late {
    mem: MemDevice,
    todo: Mutex<Todo>,
    more: Condvar,
}

impl Late {
    fn serve(&self) {
        let mut todo = self.todo.lock();
        loop {
            if !todo.ops.is_empty() {
                let op = todo.ops.swap_remove(0);
                drop(todo);
                self.mem.submit(vec![op]);
                todo = self.todo.lock();
            } else if todo.stop {
                return;
            } else {
                self.more.wait(&mut todo);
            }
        }
    }
}

impl Device for Late {
    fn caps(&self) -> &Caps {
        self.mem.caps()
    }
    fn size(&self) -> u64 {
        self.mem.size()
    }
    fn submit(&self, batch: Vec<Op>) {
        let mut todo = self.todo.lock();
        for op in batch {
            for other in &todo.ops {
                let (a, b) = (&op.io, &other.io);
                let apart = matches!(a, Io::Flush)
                    || a.offset() + a.len() <= b.offset()
                    || b.offset() + b.len() <= a.offset();
                assert!(apart, "overlapping operations in flight");
            }
            todo.ops.push(op);
        }
        drop(todo);
        self.more.notify_all();
    }
    fn describe(&self) -> String {
        "late".to_owned()
    }
    fn stats(&self) -> &DeviceStats {
        self.mem.stats()
    }
}

fn block(byte: u8) -> Buf {
    let mut buf = BufMut::alloc(512);
    buf.fill(byte);
    buf.freeze()
}

#[test]
fn writers_a_flush_and_rewrites_under_every_schedule() {
    let model = || {
        let mem = MemDevice::new("late", (5 << 20) + (64 << 10));
        let device = Arc::new(Late { mem, todo: Mutex::default(), more: Condvar::new() });
        let served = Arc::clone(&device);
        let server = rt::spawn("server", move || served.serve()).unwrap();
        let top = Spec::new(VdevKind::File, 0, Guid(10)).with_space(9, 64 << 10);
        let spec = Spec::new(VdevKind::Root, 0, Guid(1)).with_children(vec![top]);
        let leaf = Arc::clone(&device);
        let tree = Tree::build(&spec, &|_| -> Result<Arc<dyn Device>> {
            Ok(Arc::clone(&leaf) as Arc<dyn Device>)
        })
        .unwrap();
        // Two writes at once, and submitters wait behind three blocks: all paths are short.
        let class = ClassLimits { min: 2, max: 2 };
        let limits = QueueLimits { adaptive: false, in_flight_max: 1536, ..QueueLimits::default() };
        let classes = limits.classes.map(|_| class);
        tree.set_queue_limits(QueueLimits { classes, ..limits });
        let reports = Arc::new(AtomicUsize::new(0));
        let writers: Vec<_> = (0..2u8)
            .map(|thread| {
                let (tree, reports) = (Arc::clone(&tree), Arc::clone(&reports));
                rt::spawn("writer", move || {
                    // The second round rewrites the addresses of the first one.
                    for round in 0..2u8 {
                        for i in 0..2u64 {
                            let reports = Arc::clone(&reports);
                            let offset = (u64::from(thread) * 2 + i) * 512;
                            let data = block(thread * 16 + round * 4 + i as u8 + 1);
                            let priority = WritePriority::AsyncWrite;
                            let birth = Txg(1);
                            let req = WriteReq { vdev: TOP, offset, data, birth, priority };
                            tree.write(req, move |report| {
                                assert!(report.result.is_ok());
                                reports.fetch_add(1, SeqCst);
                            });
                        }
                    }
                    // The writes of this thread have ended after its flush.
                    assert!(tree.flush(&[TOP]).iter().all(|(_, r)| r.is_ok()));
                })
                .unwrap()
            })
            .collect();
        for writer in writers {
            assert!(writer.join().is_some());
        }
        for place in 0..4u64 {
            let (thread, i) = (place as u8 / 2, place as u8 % 2);
            let bytes = device.mem.peek(LABEL_START + place * 512, 512).unwrap();
            assert_eq!(bytes, [thread * 16 + 4 + i + 1; 512]);
        }
        device.todo.lock().stop = true;
        device.more.notify_all();
        assert!(server.join().is_some());
        assert_eq!(reports.load(SeqCst), 8);
    };
    shuttle::check_random(model, RUNS);
    shuttle::check_pct(model, RUNS, 3);
}
