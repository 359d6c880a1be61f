//! Two hundred random operations, compared with a model.

use std::collections::BTreeMap;

use cenote::{NewObject, ObjectId, Pool};
use testkit::{engine, import_from};

use crate::{DiskFiles, MB, judge, make, noise, writing};

type Objects = BTreeMap<ObjectId, Vec<u8>>;

/// The expected content of the pool.
#[derive(Default)]
struct ExpectedPool {
    datasets: BTreeMap<String, Objects>,
    snapshots: BTreeMap<String, Objects>,
}

struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        ((self.0 >> 33) as usize) % n.max(1)
    }

    fn pick<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        if of.is_empty() { None } else { of.get(self.below(of.len())) }
    }
}

impl ExpectedPool {
    fn names(&self) -> Vec<String> {
        self.datasets.keys().cloned().collect()
    }

    fn is_leaf(&self, name: &str) -> bool {
        let below = format!("{name}/");
        let snaps = format!("{name}@");
        !self.datasets.keys().any(|d| d.starts_with(&below))
            && !self.snapshots.keys().any(|s| s.starts_with(&snaps))
    }

    fn step(&mut self, pool: &Pool, dice: &mut Dice, round: usize) {
        let name = dice.pick(&self.names()).cloned().unwrap();
        match dice.below(10) {
            0 if name.matches('/').count() < 6 => {
                let new = format!("{name}/d{round}");
                pool.create_filesystem(&new, &[], None).unwrap();
                self.datasets.insert(new, Objects::new());
            }
            1 | 2 => {
                let at = format!("@s{round}");
                let mut names: Vec<String> = vec![name.clone()];
                let below = format!("{name}/");
                names.extend(self.datasets.keys().filter(|d| d.starts_with(&below)).cloned());
                let snaps: Vec<String> = names.iter().map(|n| format!("{n}{at}")).collect();
                pool.snapshot(&snaps, &[], None).unwrap();
                for (name, snap) in names.iter().zip(snaps) {
                    self.snapshots.insert(snap, self.datasets[name].clone());
                }
            }
            3 => {
                let snaps: Vec<String> = self.snapshots.keys().cloned().collect();
                if let Some(snap) = dice.pick(&snaps) {
                    pool.destroy_snapshots(std::slice::from_ref(snap), false, None).unwrap();
                    self.snapshots.remove(snap);
                }
            }
            4 if name != "tank" => {
                let leaf = self.is_leaf(&name);
                let recursive = dice.below(3) == 0;
                let done = pool.destroy_dataset(&name, recursive, None);
                assert_eq!(done.is_ok(), leaf || recursive, "{name}: {done:?}");
                if done.is_ok() {
                    let gone = |n: &String| {
                        *n == name
                            || n.starts_with(&format!("{name}/"))
                            || n.starts_with(&format!("{name}@"))
                    };
                    self.datasets.retain(|n, _| !gone(n));
                    self.snapshots.retain(|n, _| !gone(n));
                }
            }
            _ => self.write(pool, dice, &name, round),
        }
    }

    fn write(&mut self, pool: &Pool, dice: &mut Dice, name: &str, round: usize) {
        let rw = pool.dataset(name).unwrap().open_rw().unwrap();
        let model = self.datasets.get_mut(name).unwrap();
        if model.len() < 3 || dice.below(4) == 0 {
            let block_size = [None, Some(4096), Some(512)][dice.below(3)];
            let id = rw.create(&NewObject { block_size }).unwrap();
            assert!(model.insert(id, Vec::new()).is_none());
        }
        let ids: Vec<ObjectId> = model.keys().copied().collect();
        let id = *dice.pick(&ids).unwrap();
        let at = dice.below(600_000);
        let len = dice.below(300_000);
        let bytes = model.get_mut(&id).unwrap();
        match dice.below(8) {
            0 => {
                rw.remove(id).unwrap();
                model.remove(&id);
            }
            1 => {
                rw.truncate(id, at as u64).unwrap();
                bytes.resize(at, 0);
            }
            2 => {
                rw.punch(id, at as u64, len as u64).unwrap();
                let end = (at + len).min(bytes.len());
                bytes[at.min(end)..end].fill(0);
            }
            _ => {
                let new = noise(round as u64, len.max(1));
                rw.write(id, at as u64, &new).unwrap();
                if bytes.len() < at + new.len() {
                    bytes.resize(at + new.len(), 0);
                }
                bytes[at..at + new.len()].copy_from_slice(&new);
            }
        }
    }

    fn compare(&self, pool: &Pool) {
        for (name, model) in &self.datasets {
            let rw = pool.dataset(name).unwrap().open_rw().unwrap();
            assert_eq!(rw.list().unwrap(), model.keys().copied().collect::<Vec<_>>(), "{name}");
            for (id, bytes) in model {
                assert!(rw.read_vec(*id, 0, 1 << 21).unwrap() == *bytes, "{name} {id}");
            }
        }
        for (name, model) in &self.snapshots {
            let root = pool.spa().root_dir().unwrap();
            let (fs, snap) = name.split_once('@').unwrap();
            let head = root.find(fs).unwrap().head().unwrap().unwrap();
            let os = head.snapshot(snap).unwrap().unwrap().open_objset().unwrap().unwrap();
            for (id, bytes) in model {
                let object = os.object(*id, cenote::Io::WAIT).unwrap();
                let mut found = vec![0; bytes.len()];
                object.read_into(0, &mut found, cenote::Io::WAIT).unwrap();
                assert!(found == *bytes, "{name} {id}");
            }
        }
        let mut found = 0;
        pool.for_each_dataset(&mut |d| {
            found += 1;
            found += d.snapshots()?.len();
            Ok(())
        })
        .unwrap();
        assert_eq!(found, self.datasets.len() + self.snapshots.len());
    }
}

#[test]
fn two_hundred_operations() {
    let disks = DiskFiles::new("random", 2, 512 * MB);
    let engine = engine();
    let mut pool = make(&engine, vec![disks.leaf(0), disks.leaf(1)]);
    let mut model = ExpectedPool::default();
    model.datasets.insert("tank".into(), Objects::new());
    let seed = std::env::var("CENOTE_SEED").ok().and_then(|s| s.parse().ok());
    let mut dice = Dice(seed.unwrap_or(20_251_121));
    for round in 0..200 {
        model.step(&pool, &mut dice, round);
        if round % 100 == 99 {
            pool.sync().unwrap();
            model.compare(&pool);
            pool.export().unwrap();
            drop(pool);
            judge(&engine, &disks.path());
            pool = import_from(&engine, &disks.path(), &writing()).unwrap();
            model.compare(&pool);
        }
    }
    pool.destroy_dataset("tank/none", false, None).unwrap_err();
    for child in pool.root().unwrap().children().unwrap() {
        pool.destroy_dataset(child.name(), true, None).unwrap();
    }
    pool.export().unwrap();
    drop(pool);
    judge(&engine, &disks.path());
}
