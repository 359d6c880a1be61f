//! A random history of a file system, sent incrementally in random steps into pools of every
//! kind: what is received equals what was sent.

use cenote::inspect::dmu::Io;
use cenote::{NewObject, PropData, ReceiveNames, ReceiveOptions, SendOptions};
use sim::posix::ops::{Scale, draw, is_possible, perform};
use sim::posix::tree::Tree;
use testkit::{Rng, side_by_side};

use super::{LARGE, MB, TestPool, assert_same, kinds, noise, sent};

/// One file system whose history is random.
pub(super) struct History {
    pub(super) pool: TestPool,
    rng: Rng,
    draws: base::rt::sim::Rng,
    tree: Tree,
    objects: Vec<cenote::ObjectId>,
    snapshots: Vec<String>,
}

impl History {
    pub(super) fn new(name: &str, seed: u64) -> History {
        let pool = TestPool::new(&format!("history-{name}"));
        let props =
            [("dnodesize".to_owned(), PropData::Num(1)), ("xattr".into(), PropData::Num(2))];
        pool.pool.create_filesystem("tank/src", &props, None).unwrap();
        let root = pool.pool.dataset("tank/src").unwrap().open_fs().unwrap().root();
        History {
            pool,
            rng: Rng::new(seed),
            draws: base::rt::sim::Rng::new(seed),
            tree: Tree::new(root),
            objects: Vec::new(),
            snapshots: Vec::new(),
        }
    }

    fn set(&self, prop: &str, value: u64) {
        let list = [(prop.to_owned(), PropData::Num(value))];
        self.pool.pool.set_props("tank/src", &list, None).unwrap();
    }

    /// Some operations, on files and on bare objects.
    pub(super) fn step(&mut self, ops: usize) {
        let n = self.rng.index(60);
        match self.rng.below(8) {
            0 => self.set("recordsize", 1 << (9 + n % 12)),
            1 => self.set("compression", [2, 15, 16, 3, 14][n % 5]),
            2 => self.set("dnodesize", [0, 1, 2048, 16384][n % 4]),
            _ => {}
        }
        let fs = self.pool.pool.dataset("tank/src").unwrap().open_fs().unwrap();
        let scale =
            Scale { write: 100 << 10, file: 600 << 10, xattr: 20_000, names: 30, split: true };
        for _ in 0..ops {
            let op = draw(&mut self.draws, &self.tree, &scale);
            if !is_possible(&self.tree, &op) {
                continue;
            }
            let mut next = self.tree.clone();
            let due = next.apply(&op);
            let (Ok(object), Ok(made)) = (perform(&fs, &self.tree, &op), due) else { continue };
            if let (Some(id), Some(object)) = (made, object)
                && let Some(file) = next.files.get_mut(&id)
            {
                file.object = object;
            }
            self.tree = next;
        }
        drop(fs);
        self.change_objects();
    }

    /// Sparse objects with many blocks, holes, and other block sizes.
    fn change_objects(&mut self) {
        let rw = self.pool.pool.dataset("tank/src").unwrap().open_rw().unwrap();
        for _ in 0..4 {
            let (at, seed) = (self.rng.below(40 * MB) & !511, self.rng.number());
            let id = match self.objects.is_empty() || self.rng.below(3) == 0 {
                true => {
                    let block_size = Some(512 << self.rng.below(9));
                    let id = rw.create(&NewObject { block_size }).unwrap();
                    self.objects.push(id);
                    id
                }
                false => self.objects[self.rng.index(self.objects.len())],
            };
            match self.rng.below(6) {
                0 => rw.punch(id, at, 1 << self.rng.below(24)).unwrap(),
                1 => rw.truncate(id, at).unwrap(),
                2 if self.objects.len() > 3 => {
                    self.objects.retain(|o| *o != id);
                    rw.remove(id).unwrap();
                }
                3 => rw.write(id, at, &vec![7; 30_000]).unwrap(),
                _ => rw.write(id, at, &noise(seed, 30_000)).unwrap(),
            }
        }
    }

    pub(super) fn snapshot(&mut self) -> String {
        let name = format!("tank/src@s{}", self.snapshots.len());
        self.pool.snapshot(&name);
        self.snapshots.push(name.clone());
        name
    }
}

pub(super) fn short(name: &str) -> &str {
    name.split_once('@').unwrap().1
}

pub(super) fn options(n: u64) -> SendOptions {
    // A receiver with large blocks gets them always.
    SendOptions { embedded: n & 1 != 0, compressed: n & 2 != 0, ..LARGE }
}

#[test]
fn random_histories() {
    let nightly = std::env::var_os("CENOTE_NIGHTLY").is_some();
    let seed: u64 = std::env::var("CENOTE_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(11);
    let (rounds, ops) = if nightly { (60, 400) } else { (5, 60) };
    let both = |kind: (&'static str, Option<_>, usize)| [(kind.clone(), 9), (kind, 12)];
    let cases: Vec<_> = kinds().into_iter().flat_map(both).collect();
    side_by_side(&cases, |((name, kind, width), ashift)| {
        let label = format!("{name}{ashift}");
        let mut source = History::new(&label, seed ^ ashift ^ (*width as u64) << 8);
        let mut to = TestPool::of(&format!("to-{label}"), kind.clone(), *width, *ashift);
        let mut last: Option<String> = None;
        for round in 0..rounds {
            source.step(ops);
            let snapshot = source.snapshot();
            if source.rng.below(4) == 0 && round + 1 < rounds {
                // Left out: the next stream spans it.
                continue;
            }
            let how = options(source.rng.below(4));
            let stream = sent(&source.pool.pool, &snapshot, last.as_deref(), how);
            let received = to.receive("tank/copy", &stream).unwrap();
            assert_eq!(received.len(), 1);
            let copy = format!("tank/copy@{}", short(&snapshot));
            assert_same((&source.pool.pool, &snapshot), (&to.pool, &copy));
            // The head has the snapshot's content.
            let head = to.pool.dataset("tank/copy").unwrap();
            assert!(head.open_fs().unwrap().attrs(source.tree_root(), Io::WAIT).is_ok());
            last = Some(snapshot);
            match source.rng.below(3) {
                0 => to = to.crashed(),
                1 => {
                    // What was received is sent on.
                    let (again, copies) = (sent(&to.pool, &copy, None, how), ReceiveNames::Whole);
                    let options = ReceiveOptions::default();
                    let target = format!("tank/again{round}");
                    to.pool.receive(&target, copies, &options, again.as_slice()).unwrap();
                    let target = format!("{target}@{}", short(&copy));
                    assert_same((&to.pool, &copy), (&to.pool, &target));
                }
                _ => {}
            }
        }
        to.judged();
    });
}

impl History {
    fn tree_root(&self) -> cenote::ObjectId {
        self.pool.pool.dataset("tank/src").unwrap().open_fs().unwrap().root()
    }
}

/// Twenty-five empty snapshots.
#[test]
fn empty_incremental_snapshots() {
    let mut source = History::new("empty", 3);
    source.step(40);
    let to = TestPool::new("empty");
    let first = source.snapshot();
    to.receive("tank/copy", &sent(&source.pool.pool, &first, None, options(3))).unwrap();
    let mut last = first;
    for _ in 0..25 {
        let next = source.snapshot();
        let stream = sent(&source.pool.pool, &next, Some(&last), options(3));
        to.receive("tank/copy", &stream).unwrap();
        last = next;
    }
    let copy = format!("tank/copy@{}", short(&last));
    assert_same((&source.pool.pool, &last), (&to.pool, &copy));
    to.judged();
}
