//! Random histories of file systems, snapshots and clones, and a digest of all their files.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::panic, missing_docs)]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use cenote::create::{CreateRequest, Force, NewKind, NewVdev, PoolSetting};
use cenote::inspect::zpl::rw::{Caller, New, SetAttrs, WritePosition};
use cenote::{FileSystem, Io, Pool, ReceiveNames, ReceiveOptions};
use spa::engine::NewClone;
use testkit::Rng;

pub const NAME: &str = "tank";
/// The files are sparse; a pool keeps 128 MiB of slop.
pub const DISK: u64 = 512 << 20;

/// A kind of vdev, its width, and log2 of its sectors.
#[derive(Clone, Copy, Debug)]
pub struct MoverShape {
    pub kind: &'static str,
    pub disks: usize,
    pub ashift: u64,
}

/// Every kind with sectors of 512 bytes and of 4 KiB.
pub fn shapes() -> Vec<MoverShape> {
    let kinds = [
        ("single", 1),
        ("stripe", 3),
        ("mirror", 2),
        ("mirror", 3),
        ("mirrors", 4),
        ("raidz1", 3),
        ("raidz1", 5),
        ("raidz2", 5),
        ("raidz3", 8),
        ("draid1", 6),
    ];
    let both = |(kind, disks)| [9, 12].map(|ashift| MoverShape { kind, disks, ashift });
    kinds.into_iter().flat_map(both).collect()
}

impl MoverShape {
    pub fn name(&self) -> String {
        format!("{}w{}a{}", self.kind, self.disks, self.ashift)
    }

    pub fn make(&self, dir: &Path) -> Arc<Pool> {
        self.make_of(dir, DISK)
    }

    pub fn make_of(&self, dir: &Path, size: u64) -> Arc<Pool> {
        let mut next = 0;
        let mut file = || {
            let path = dir.join(format!("disk{next}"));
            std::fs::File::create(&path).unwrap().set_len(size).unwrap();
            next += 1;
            NewVdev::new(NewKind::File(path))
        };
        let mut group = |kind: NewKind, n: usize| {
            NewVdev::new(kind).with_children((0..n).map(|_| file()).collect())
        };
        let n = self.disks;
        let vdevs = match self.kind {
            "mirror" => vec![group(NewKind::Mirror, n)],
            "mirrors" => vec![group(NewKind::Mirror, 2), group(NewKind::Mirror, n - 2)],
            "raidz1" => vec![group(NewKind::Raidz { nparity: 1 }, n)],
            "raidz2" => vec![group(NewKind::Raidz { nparity: 2 }, n)],
            "raidz3" => vec![group(NewKind::Raidz { nparity: 3 }, n)],
            "draid1" => {
                vec![group(NewKind::Draid { nparity: 1, ndata: Some(3), nspares: 1 }, n)]
            }
            _ => (0..n).map(|_| file()).collect(),
        };
        let request = CreateRequest {
            force: Force::ALL,
            // A planted bug suspends the pool, and the test goes on.
            settings: vec![
                PoolSetting::Stored("ashift", self.ashift),
                PoolSetting::Stored("failmode", 1),
            ],
            ..CreateRequest::new(NAME, vdevs)
        };
        testkit::engine().create_pool(&request).unwrap().unwrap()
    }
}

/// Makes a history.
pub struct MoverHistory {
    pub rng: Rng,
    /// Heads.
    pub heads: Vec<String>,
    /// Snapshots, in the order in which they were taken.
    pub snapshots: Vec<String>,
    /// Number of the next file or dataset.
    pub made: u64,
}

fn open(pool: &Pool, head: &str) -> Arc<FileSystem> {
    pool.dataset(head).unwrap().open_fs().unwrap()
}

impl MoverHistory {
    pub fn new(seed: u64) -> MoverHistory {
        let heads = vec![NAME.to_owned()];
        MoverHistory { rng: Rng::new(seed), heads, snapshots: Vec::new(), made: 0 }
    }

    fn head(&mut self) -> String {
        let at = self.rng.index(self.heads.len());
        self.heads[at].clone()
    }

    fn name(&mut self, of: char) -> String {
        self.made += 1;
        format!("{of}{}", self.made)
    }

    fn data(&mut self, len: usize) -> Vec<u8> {
        let mut word = self.rng.number();
        let mut byte = |i: usize| {
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // A part of it compresses.
            if i % 4096 < 700 { 7 } else { (word >> 33) as u8 }
        };
        (0..len).map(&mut byte).collect()
    }

    /// A new file, or a part of an old one.
    pub fn write(&mut self, pool: &Pool) {
        self.try_write(pool).unwrap();
    }

    pub fn try_write(&mut self, pool: &Pool) -> cenote::Result<()> {
        let head = self.head();
        let fs = open(pool, &head);
        let caller = Caller::root();
        let old = format!("f{}", self.rng.below(self.made.max(1)));
        let found = fs.lookup(fs.root(), old.as_bytes(), Io::WAIT).ok();
        let (id, most) = match found.filter(|_| self.rng.below(3) > 0) {
            Some(node) => (node.id, 150_000),
            None => {
                let name = self.name('f');
                let new = New::file(0o644);
                (fs.make(&caller, fs.root(), name.as_bytes(), &new)?.id, 900_000)
            }
        };
        let len = match self.rng.below(4) {
            0 => 100 + self.rng.below(4000),
            1 => 40_000 + self.rng.below(90_000),
            _ => 1 + self.rng.below(most),
        };
        // Some of it is behind a hole.
        let at = self.rng.below(3) * self.rng.below(400_000);
        let data = self.data(len as usize);
        fs.write(&caller, id, WritePosition::Offset(at), &data).map(drop)
    }

    pub fn unlink(&mut self, pool: &Pool) {
        let head = self.head();
        let fs = open(pool, &head);
        for _ in 0..4 {
            let name = format!("f{}", self.rng.below(self.made.max(1)));
            if fs.unlink(&Caller::root(), fs.root(), name.as_bytes()).is_ok() {
                return;
            }
        }
    }

    pub fn snapshot(&mut self, pool: &Pool) {
        let (head, name) = (self.head(), self.name('s'));
        let name = format!("{head}@{name}");
        pool.writer().unwrap().snapshot(std::slice::from_ref(&name), &[], None).unwrap();
        self.snapshots.push(name);
    }

    fn clone_one(&mut self, pool: &Pool) {
        if self.snapshots.is_empty() || self.heads.len() > 6 {
            return;
        }
        let origin = self.snapshots[self.rng.index(self.snapshots.len())].clone();
        let name = format!("{NAME}/{}", self.name('c'));
        let new = NewClone { origin, name: name.clone(), props: Vec::new() };
        pool.writer().unwrap().clone_snapshot(new, None).unwrap();
        self.heads.push(name);
    }

    fn promote(&mut self, pool: &Pool) {
        let head = self.head();
        if pool.writer().unwrap().promote(&head, None).is_ok() {
            self.list(pool);
        }
    }

    fn roll_back(&mut self, pool: &Pool) {
        let head = self.head();
        let last = self.snapshots.iter().rev().find(|s| s.starts_with(&format!("{head}@")));
        if let Some(last) = last {
            let _newer = pool.writer().unwrap().rollback(last, None);
        }
    }

    fn destroy_snapshot(&mut self, pool: &Pool) {
        if self.snapshots.len() < 3 {
            return;
        }
        let at = self.rng.index(self.snapshots.len());
        let name = self.snapshots[at].clone();
        if pool.writer().unwrap().destroy_snapshots(&[name], false, None).is_ok() {
            self.snapshots.remove(at);
        }
    }

    /// Learns the names anew.
    fn list(&mut self, pool: &Pool) {
        self.heads.clear();
        let mut snapshots = Vec::new();
        let heads = &mut self.heads;
        pool.for_each_dataset(&mut |ds| {
            heads.push(ds.name().to_owned());
            snapshots.extend(ds.snapshots()?.iter().map(|s| (s.createtxg(), s.name().to_owned())));
            Ok(())
        })
        .unwrap();
        snapshots.sort();
        self.snapshots = snapshots.into_iter().map(|(_, name)| name).collect();
    }

    /// A file becomes shorter or longer.
    fn truncate(&mut self, pool: &Pool) {
        let fs = open(pool, &self.head());
        let name = format!("f{}", self.rng.below(self.made.max(1)));
        if let Ok(node) = fs.lookup(fs.root(), name.as_bytes(), Io::WAIT) {
            let set = SetAttrs { size: Some(self.rng.below(600_000)), ..SetAttrs::default() };
            fs.set_attrs(&Caller::root(), node.id, &set).unwrap();
        }
    }

    /// A dataset or a snapshot gets another name.
    fn rename(&mut self, pool: &Pool) {
        let (head, new) = (self.head(), self.name('n'));
        let snapshots: Vec<&String> =
            self.snapshots.iter().filter(|s| s.starts_with(&format!("{head}@"))).collect();
        match snapshots.first() {
            Some(old) if self.rng.below(2) == 0 => {
                let old = old.split_once('@').unwrap().1;
                pool.rename_snapshot(&head, (old, &new), false, None).unwrap();
            }
            _ if head == NAME => return,
            _ => pool.rename_dataset(&head, &format!("{NAME}/{new}"), None).unwrap(),
        }
        self.list(pool);
    }

    /// A snapshot is received as a new file system.
    fn receive(&mut self, pool: &Pool) {
        if self.snapshots.is_empty() || self.heads.len() > 6 {
            return;
        }
        let source = self.snapshots[self.rng.index(self.snapshots.len())].clone();
        let target = format!("{NAME}/{}", self.name('r'));
        receive(pool, &source, None, &target);
        self.list(pool);
    }

    pub fn step(&mut self, pool: &Pool) {
        match self.rng.below(24) {
            20 | 21 => self.truncate(pool),
            22 => self.rename(pool),
            23 => self.receive(pool),
            0..9 => self.write(pool),
            9 | 10 => self.unlink(pool),
            11..14 => self.snapshot(pool),
            14 | 15 => self.clone_one(pool),
            16 => self.promote(pool),
            17 => self.roll_back(pool),
            18 => self.destroy_snapshot(pool),
            _ => drop(pool.writer().unwrap().sync().unwrap()),
        }
    }
}

/// Sends a snapshot, whole or from another one, and receives it as the dataset `target`.
pub fn receive(pool: &Pool, snapshot: &str, from: Option<&str>, target: &str) {
    let snap = pool.dataset(snapshot).unwrap();
    let from = from.map(|name| pool.dataset(name).unwrap());
    let mut stream = Vec::new();
    snap.send(from.as_ref(), super::SEND, &mut stream, &mut |_| true).unwrap();
    let options = ReceiveOptions::default();
    pool.receive(target, ReceiveNames::Whole, &options, &stream[..]).unwrap();
}

/// Digests of all files of all datasets.
pub fn contents(pool: &Pool, made: u64) -> BTreeMap<(String, String), (usize, u64)> {
    let mut names = Vec::new();
    pool.for_each_dataset(&mut |ds| {
        names.push(ds.name().to_owned());
        names.extend(ds.snapshots()?.iter().map(|s| s.name().to_owned()));
        Ok(())
    })
    .unwrap();
    let mut out = BTreeMap::new();
    for name in names {
        let fs = open(pool, &name);
        for n in 0..=made {
            let file = format!("f{n}");
            if let Some(digest) = read(&fs, &file) {
                out.insert((name.clone(), file), digest);
            }
        }
    }
    out
}

/// The digest of a file, if it exists.
pub fn read(fs: &Arc<FileSystem>, name: &str) -> Option<(usize, u64)> {
    let node = fs.lookup(fs.root(), name.as_bytes(), Io::WAIT).ok()?;
    let file = fs.open_file(node.id, Io::WAIT).unwrap();
    let (mut all, mut part) = (Vec::new(), vec![0; 1 << 17]);
    loop {
        let n = file.read_at(all.len() as u64, &mut part, Io::WAIT).unwrap();
        if n == 0 {
            return Some(super::digest(&all));
        }
        all.extend_from_slice(&part[..n]);
    }
}
