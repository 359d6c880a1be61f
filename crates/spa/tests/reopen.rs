//! `zpool clear` of a pool that goes on writing.
//!
//! Story: `zpool clear` of a healthy pool under load said "one or more devices is currently
//! unavailable". It read the labels of a device, a txg was committed, and then the labels were
//! compared with the uberblock of that txg: the device seemed to have an older state.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    clippy::disallowed_types
)]

mod common;

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, Weak};

use base::rt::plain;
use common::*;
use device::{Caps, Device, DeviceStats, Io, Op, submit_and_wait};
use ondisk::label::LABEL_SIZE;
use spa::engine::Writer;
use spa::leaves::{Leaves, OpenLeaf, Purpose};
use spa::write::topology::{NewKind, NewVdev};

/// Commits txgs after each reading of labels, before the reader has them.
#[derive(Default)]
struct Commits {
    writer: Mutex<Weak<Writer>>,
    /// Txgs for each of the next readings, the last one first.
    txgs: plain::Mutex<Vec<usize>>,
    readings: AtomicUsize,
}

struct LabelDevice {
    inner: Arc<dyn Device>,
    commits: Arc<Commits>,
}

impl LabelDevice {
    fn after(&self, io: &Io) {
        if io.offset() != 0 || io.len() != LABEL_SIZE || !matches!(io, Io::Read { .. }) {
            return;
        }
        self.commits.readings.fetch_add(1, SeqCst);
        let txgs = self.commits.txgs.lock().pop().unwrap_or(0);
        let writer = self.commits.writer.lock().unwrap().upgrade();
        if let Some(writer) = writer.filter(|_| txgs > 0) {
            for _ in 0..txgs {
                writer.touch();
                writer.sync().unwrap();
            }
        }
    }
}

impl Device for LabelDevice {
    fn caps(&self) -> &Caps {
        self.inner.caps()
    }
    fn size(&self) -> u64 {
        self.inner.size()
    }
    fn submit(&self, batch: Vec<Op>) {
        for op in batch {
            let labels = op.io.offset() == 0 && op.io.len() == LABEL_SIZE;
            match labels && matches!(op.io, Io::Read { .. }) {
                true => {
                    let Op { io, done } = op;
                    let ended = submit_and_wait(&*self.inner, vec![io]).remove(0);
                    self.after(&ended.io);
                    done(ended);
                }
                false => self.inner.submit(vec![op]),
            }
        }
    }
    fn describe(&self) -> String {
        self.inner.describe()
    }
    fn stats(&self) -> &DeviceStats {
        self.inner.stats()
    }
    fn is_at(&self, path: &Path) -> bool {
        self.inner.is_at(path)
    }
}

/// Devices are open already.
struct NoLeaves;

impl Leaves for NoLeaves {
    fn open(&self, _: &Path, _: Purpose) -> base::Result<OpenLeaf> {
        Err(base::Error::not_found("no device is opened again"))
    }
}

#[test]
fn a_healthy_pool_that_commits_meanwhile_is_cleared() {
    let shapes: [(&str, usize); 3] = [("disk", 1), ("mirror", 2), ("raidz", 3)];
    for (name, count) in shapes {
        let d = disks(&format!("reopen-{name}"), count, 96 << 20);
        let leaves: Vec<_> = (0..count).map(|i| file(i, &d)).collect();
        let vdev = match count {
            1 => file(0, &d),
            2 => NewVdev::new(NewKind::Mirror).with_children(leaves),
            _ => NewVdev::new(NewKind::Raidz { nparity: 1 }).with_children(leaves),
        };
        let commits = Arc::new(Commits::default());
        let wrap = |inner| -> Arc<dyn Device> {
            Arc::new(LabelDevice { inner, commits: Arc::clone(&commits) })
        };
        let w = make_on(&d, name, &[vdev], true, None, &wrap);
        *commits.writer.lock().unwrap() = Arc::downgrade(&w);
        // No txg, one, and several between reading labels and judging them, each time.
        for txgs in [0, 1, 2, 5] {
            *commits.txgs.lock() = vec![txgs; count];
            let before = commits.readings.load(SeqCst);
            w.reopen(None, &NoLeaves).unwrap_or_else(|e| panic!("{name}, {txgs} txgs: {e}"));
            assert!(commits.readings.load(SeqCst) >= before + count, "{name}: labels are read");
            let tree = w.zio().tree();
            assert!(tree.leaves().all(|(_, leaf)| leaf.state() == vdev::State::Online), "{name}");
        }
        w.sync().unwrap();
        w.stop();
        drop(w);
        zdb(&d, name);
        std::fs::remove_dir_all(&d.dir).unwrap();
    }
}
