//! Random sequences of everything that changes datasets, compared with a naive model that
//! keeps a copy of every content. After each operation all sums of the pool are verified.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use cenote::create::{NewKind, NewVdev, PoolSetting};
use cenote::inspect::dsl;
use cenote::inspect::spa::engine::TaskCx;
use cenote::{
    Engine, Error, ErrorKind, NewBookmark, NewObject, ObjectId, Pool, PropData, SnapshotHold,
};
use testkit::{engine, import_from, side_by_side};

use crate::{DiskFiles, MB, judge, noise, request, writing};

type ObjectContents = BTreeMap<ObjectId, Arc<Vec<u8>>>;

struct Head {
    objects: ObjectContents,
    origin: Option<String>,
}

struct Snapshot {
    objects: ObjectContents,
    /// Snapshots were taken in this order.
    order: usize,
    tags: BTreeSet<String>,
    deferred: bool,
}

/// The expected pool: everything by its full name.
pub(crate) struct LineageModel {
    heads: BTreeMap<String, Head>,
    snapshots: BTreeMap<String, Snapshot>,
    /// With the order of the snapshot.
    marks: BTreeMap<String, usize>,
    dice: u64,
    count: usize,
    /// The pool's version: old ones have no holds or bookmarks.
    pub(crate) version: u64,
}

fn dataset(name: &str) -> &str {
    name.split(['@', '#']).next().unwrap()
}

fn short(name: &str) -> &str {
    name.split(['@', '#']).nth(1).unwrap()
}

fn inside(name: &str, root: &str) -> bool {
    dataset(name).strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

impl LineageModel {
    pub(crate) fn new(seed: u64) -> LineageModel {
        let root = Head { objects: ObjectContents::new(), origin: None };
        LineageModel {
            heads: [("tank".to_owned(), root)].into(),
            snapshots: BTreeMap::new(),
            marks: BTreeMap::new(),
            dice: seed,
            count: 0,
            version: 5000,
        }
    }

    fn below(&mut self, n: usize) -> usize {
        self.dice =
            self.dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        ((self.dice >> 33) as usize) % n.max(1)
    }

    fn pick<'a>(&mut self, names: impl Iterator<Item = &'a String>) -> Option<String> {
        let names: Vec<&String> = names.collect();
        if names.is_empty() { None } else { Some(names[self.below(names.len())].clone()) }
    }

    fn head(&mut self) -> String {
        let names: Vec<String> = self.heads.keys().cloned().collect();
        self.pick(names.iter()).unwrap()
    }

    fn snapshot(&mut self) -> Option<String> {
        let names: Vec<String> = self.snapshots.keys().cloned().collect();
        self.pick(names.iter())
    }

    fn new_name(&mut self) -> String {
        self.count += 1;
        format!("n{}", self.count)
    }

    fn clones_of(&self, snap: &str) -> Vec<&String> {
        let of = |h: &&String| self.heads[*h].origin.as_deref() == Some(snap);
        self.heads.keys().filter(of).collect()
    }

    /// Everything that `gone` accepts was destroyed, and what was deferred until then.
    fn forget(&mut self, gone: impl Fn(&str) -> bool) {
        self.heads.retain(|n, _| !gone(n));
        self.snapshots.retain(|n, _| !gone(n));
        self.marks.retain(|n, _| !gone(n));
        let due: Vec<String> = self
            .snapshots
            .iter()
            .filter(|(n, s)| s.deferred && s.tags.is_empty() && self.clones_of(n).is_empty())
            .map(|(n, _)| n.clone())
            .collect();
        self.snapshots.retain(|n, _| !due.contains(n));
    }

    /// Everything has other names.
    fn rename(&mut self, new: impl Fn(&str) -> Option<String>) {
        fn all<T>(map: &mut BTreeMap<String, T>, new: &dyn Fn(&str) -> Option<String>) {
            let old = std::mem::take(map);
            map.extend(old.into_iter().map(|(n, v)| (new(&n).unwrap_or(n), v)));
        }
        for head in self.heads.values_mut() {
            if let Some(name) = head.origin.as_deref().and_then(&new) {
                head.origin = Some(name);
            }
        }
        all(&mut self.heads, &new);
        all(&mut self.snapshots, &new);
        all(&mut self.marks, &new);
    }

    pub(crate) fn step(&mut self, pool: &Pool) {
        // A long run keeps its size.
        if self.heads.len() > 30 || self.snapshots.len() > 120 {
            self.destroy_snapshot(pool);
            self.destroy_head(pool);
        }
        match self.below(24) {
            0 => self.create(pool),
            1..4 => self.take(pool),
            4 | 5 => self.clone_one(pool),
            6..9 => self.promote(pool),
            9 | 10 => self.rollback(pool),
            11 => self.rename_head(pool),
            12 => self.rename_snapshot(pool),
            13 | 14 if self.version >= 18 => self.hold_or_release(pool),
            15 if self.version == 5000 => self.bookmark(pool),
            16 => self.destroy_snapshot(pool),
            17 => self.destroy_head(pool),
            _ => self.write(pool),
        }
    }

    fn create(&mut self, pool: &Pool) {
        let name = format!("{}/{}", self.head(), self.new_name());
        if name.matches('/').count() < 8 {
            pool.create_filesystem(&name, &[], None).unwrap();
            self.heads.insert(name, Head { objects: ObjectContents::new(), origin: None });
        }
    }

    fn take(&mut self, pool: &Pool) {
        let (root, last) = (self.head(), self.new_name());
        let deep = self.below(3) == 0;
        let of = |n: &&String| **n == root || deep && inside(n, &root);
        let heads: Vec<String> = self.heads.keys().filter(of).cloned().collect();
        let names: Vec<String> = heads.iter().map(|h| format!("{h}@{last}")).collect();
        pool.snapshot(&names, &[], None).unwrap();
        for (head, name) in heads.iter().zip(names) {
            let objects = self.heads[head].objects.clone();
            let (order, tags) = (self.count, BTreeSet::new());
            self.snapshots.insert(name, Snapshot { objects, order, tags, deferred: false });
        }
    }

    fn clone_one(&mut self, pool: &Pool) {
        let Some(origin) = self.snapshot() else { return };
        let name = format!("{}/{}", self.head(), self.new_name());
        if name.matches('/').count() < 8 {
            pool.clone_snapshot(&origin, &name, &[], None).unwrap();
            let objects = self.snapshots[&origin].objects.clone();
            self.heads.insert(name, Head { objects, origin: Some(origin) });
        }
    }

    fn promote(&mut self, pool: &Pool) {
        let clones = self.heads.iter().filter(|(_, h)| h.origin.is_some()).map(|(n, _)| n.clone());
        let clones: Vec<String> = clones.collect();
        let name = match self.below(8) {
            0 => Some(self.head()),
            _ => self.pick(clones.iter()),
        };
        let Some(name) = name else { return };
        self.promote_one(pool, &name);
    }

    fn promote_one(&mut self, pool: &Pool, name: &str) {
        let done = pool.promote(name, None);
        let Some(origin) = self.heads[name].origin.clone() else {
            assert_eq!(done.unwrap_err().message(), "not a cloned filesystem");
            return;
        };
        let (from, order) = (dataset(&origin).to_owned(), self.snapshots[&origin].order);
        let moves =
            |n: &str, of: usize| n.contains(['@', '#']) && dataset(n) == from && of <= order;
        let snaps = self.snapshots.iter().filter(|(n, s)| moves(n, s.order)).map(|(n, _)| n);
        let marks = self.marks.iter().filter(|(n, of)| moves(n, **of)).map(|(n, _)| n);
        let moved: BTreeSet<String> = snaps.chain(marks).cloned().collect();
        let new = |n: &str| moved.contains(n).then(|| format!("{name}{}", &n[from.len()..]));
        let clash = moved.iter().any(|n| {
            let new = new(n).unwrap();
            self.snapshots.contains_key(&new) || self.marks.contains_key(&new)
        });
        if clash {
            assert_eq!(done.unwrap_err().kind(), ErrorKind::Exists);
            return;
        }
        done.unwrap();
        let before = self.heads[&from].origin.clone();
        self.heads.get_mut(&from).unwrap().origin = Some(origin);
        self.heads.get_mut(name).unwrap().origin = before;
        self.rename(new);
    }

    fn rollback(&mut self, pool: &Pool) {
        let head = self.head();
        let own = self.snapshots.iter().filter(|(n, _)| dataset(n) == head);
        let Some((name, order)) = own.map(|(n, s)| (n.clone(), s.order)).max_by_key(|(_, o)| *o)
        else {
            return;
        };
        let newer = self.marks.iter().any(|(n, of)| dataset(n) == head && *of > order);
        let done = pool.rollback(&name, None);
        assert_eq!(done.is_err(), newer, "{name}: {done:?}");
        if !newer {
            self.heads.get_mut(&head).unwrap().objects = self.snapshots[&name].objects.clone();
        }
    }

    fn rename_head(&mut self, pool: &Pool) {
        let (from, parent) = (self.head(), self.head());
        let to = format!("{parent}/{}", self.new_name());
        let depth = self.heads.keys().filter(|n| inside(n, &from)).map(|n| n.matches('/').count());
        if depth.max().unwrap() + parent.matches('/').count() > 10 {
            return;
        }
        let done = pool.rename_dataset(&from, &to, None);
        let wrong = from == "tank" || inside(&parent, &from);
        assert_eq!(done.is_err(), wrong, "{from} {to}: {done:?}");
        if !wrong {
            let new = |n: &str| inside(n, &from).then(|| format!("{to}{}", &n[from.len()..]));
            self.rename(new);
        }
    }

    fn rename_snapshot(&mut self, pool: &Pool) {
        let (Some(name), last) = (self.snapshot(), self.new_name()) else { return };
        let (fs, deep) = (dataset(&name).to_owned(), self.below(2) == 0);
        pool.rename_snapshot(&fs, (short(&name), &last), deep, None).unwrap();
        let old = short(&name).to_owned();
        self.rename(|n| {
            let own = n.contains('@') && short(n) == old;
            let wanted = own && (dataset(n) == fs || deep && inside(n, &fs));
            wanted.then(|| format!("{}@{last}", dataset(n)))
        });
    }

    fn hold_or_release(&mut self, pool: &Pool) {
        let Some(name) = self.snapshot() else { return };
        let tag = ["one", "two"][self.below(2)].to_owned();
        let hold = [SnapshotHold { snapshot: name.clone(), tag: tag.clone() }];
        let releases = self.below(3) > 0;
        let snap = self.snapshots.get_mut(&name).unwrap();
        if releases {
            let had = snap.tags.remove(&tag);
            assert_eq!(pool.release(&hold, None).is_ok(), had, "{name}");
            self.forget(|_| false);
        } else {
            let new = snap.tags.insert(tag);
            assert_eq!(pool.hold(&hold, None).is_ok(), new, "{name}");
        }
    }

    fn bookmark(&mut self, pool: &Pool) {
        let marks: Vec<String> = self.marks.keys().cloned().collect();
        let old = self.pick(marks.iter());
        if let Some(old) = old.clone().filter(|_| self.below(3) == 0) {
            pool.destroy_bookmarks(std::slice::from_ref(&old), None).unwrap();
            self.marks.remove(&old);
            return;
        }
        let source = if self.below(3) == 0 { old } else { self.snapshot() };
        let Some(source) = source else { return };
        let name = format!("{}#{}", dataset(&source), self.new_name());
        pool.bookmark(&[NewBookmark { source: source.clone(), name: name.clone() }], None).unwrap();
        let order = self.marks.get(&source).copied();
        self.marks.insert(name, order.unwrap_or_else(|| self.snapshots[&source].order));
    }

    fn destroy_snapshot(&mut self, pool: &Pool) {
        let (Some(name), defer) = (self.snapshot(), self.below(2) == 0) else { return };
        let held = !self.snapshots[&name].tags.is_empty();
        let cloned = !self.clones_of(&name).is_empty();
        let done = pool.destroy_snapshots(std::slice::from_ref(&name), defer, None);
        match (held, cloned) {
            (false, false) => done.unwrap(),
            _ if defer => {
                done.unwrap();
                self.snapshots.get_mut(&name).unwrap().deferred = true;
                return;
            }
            (true, _) => return assert_eq!(done.unwrap_err().kind(), ErrorKind::Busy),
            (false, true) => return assert_eq!(done.unwrap_err().kind(), ErrorKind::Exists),
        }
        self.snapshots.remove(&name);
    }

    /// Whether an order exists in which everything inside `root` can be destroyed: children before
    /// their parents, clones before the snapshots that they come from. After renames a file system
    /// may be a clone of a snapshot of its own child, and then there is none.
    fn has_order(&self, root: &str) -> bool {
        let mut left: Vec<&String> = self.heads.keys().filter(|n| inside(n, root)).collect();
        loop {
            let before = left.len();
            let all = left.clone();
            left.retain(|name| {
                let child = all.iter().any(|n| n != name && inside(n, name));
                let snapshots = self.snapshots.keys().filter(|n| dataset(n) == name.as_str());
                let cloned = snapshots.flat_map(|n| self.clones_of(n)).any(|c| all.contains(&c));
                child || cloned
            });
            if left.len() == before {
                return left.is_empty();
            }
        }
    }

    fn destroy_head(&mut self, pool: &Pool) {
        let name = self.head();
        if name == "tank" {
            return;
        }
        let deep = self.below(3) == 0;
        let all = self.heads.keys().chain(self.snapshots.keys()).filter(|n| inside(n, &name));
        let snaps = || self.snapshots.iter().filter(|(n, _)| inside(n, &name));
        let outside = |n: &String| self.clones_of(n).iter().any(|c| !inside(c, &name));
        let alone = all.count() == 1;
        let free = snaps().all(|(n, s)| s.tags.is_empty() && !outside(n));
        let free = free && self.has_order(&name);
        let done = pool.destroy_dataset(&name, deep, None);
        assert_eq!(done.is_ok(), alone || deep && free, "{name}: {done:?}");
        if done.is_ok() {
            self.forget(|n| inside(n, &name));
        }
    }

    fn write(&mut self, pool: &Pool) {
        let name = self.head();
        let rw = pool.dataset(&name).unwrap().open_rw().unwrap();
        let ids: Vec<ObjectId> = self.heads[&name].objects.keys().copied().collect();
        let new = ids.len() < 2 || self.below(6) == 0;
        let (at, len) = (self.below(100_000), self.below(80_000) + 1);
        let (which, kind) = (self.below(ids.len()), self.below(8));
        self.count += 1;
        let data = noise(self.count as u64, len);
        let objects = &mut self.heads.get_mut(&name).unwrap().objects;
        if new {
            let id = rw.create(&NewObject { block_size: Some(8192) }).unwrap();
            rw.write(id, 0, &data).unwrap();
            assert!(objects.insert(id, Arc::new(data)).is_none());
            return;
        }
        let id = ids[which];
        if kind == 0 {
            rw.remove(id).unwrap();
            objects.remove(&id);
            return;
        }
        let bytes = Arc::make_mut(objects.get_mut(&id).unwrap());
        if kind == 1 {
            rw.truncate(id, at as u64).unwrap();
            bytes.resize(at, 0);
            return;
        }
        rw.write(id, at as u64, &data).unwrap();
        if bytes.len() < at + len {
            bytes.resize(at + len, 0);
        }
        bytes[at..at + len].copy_from_slice(&data);
    }

    /// Contents, origins, holds, bookmarks: all are as expected.
    pub(crate) fn compare(&self, pool: &Pool) {
        let root = pool.spa().root_dir().unwrap();
        let same =
            |os: &Arc<cenote::inspect::dmu::Objset>, objects: &ObjectContents, name: &str| {
                for (id, bytes) in objects {
                    let object = os.object(*id, cenote::Io::WAIT).unwrap();
                    let mut found = vec![0; bytes.len()];
                    object.read_into(0, &mut found, cenote::Io::WAIT).unwrap();
                    assert!(found == **bytes, "{name} {id}");
                }
            };
        let (mut heads, mut snaps, mut marks) = (Vec::new(), Vec::new(), Vec::new());
        pool.for_each_dataset(&mut |d| {
            let name = d.name();
            let expected = self.heads.get(name).unwrap_or_else(|| panic!("{name} is there"));
            let origin = match d.prop("origin")?.map(|v| v.value) {
                Some(PropData::Str(s)) => Some(s),
                _ => None,
            };
            assert_eq!(origin, expected.origin, "{name}");
            let rw = d.open_rw()?;
            assert_eq!(rw.list()?, expected.objects.keys().copied().collect::<Vec<_>>(), "{name}");
            same(rw.objset(), &expected.objects, name);
            for s in d.snapshots()? {
                let expected =
                    self.snapshots.get(s.name()).unwrap_or_else(|| panic!("{} is there", s.name()));
                let tags: BTreeSet<String> = s.holds()?.into_iter().map(|t| t.0).collect();
                assert_eq!(tags, expected.tags, "{}", s.name());
                let head = root.find(name)?.head()?.unwrap();
                let os = head.snapshot(short(s.name()))?.unwrap().open_objset()?.unwrap();
                same(&os, &expected.objects, s.name());
                snaps.push(s.name().to_owned());
            }
            marks.extend(d.bookmarks()?.iter().map(|m| m.name().to_owned()));
            heads.push(name.to_owned());
            Ok(())
        })
        .unwrap();
        for list in [&mut heads, &mut snaps, &mut marks] {
            list.sort();
        }
        assert!(heads.iter().eq(self.heads.keys()));
        assert!(snaps.iter().eq(self.snapshots.keys()));
        assert!(marks.iter().eq(self.marks.keys()));
    }

    /// Destroys everything that can be destroyed: all of it.
    pub(crate) fn end(&mut self, pool: &Pool) {
        for (name, snap) in &self.snapshots {
            for tag in &snap.tags {
                let hold = [SnapshotHold { snapshot: name.clone(), tag: tag.clone() }];
                pool.release(&hold, None).unwrap();
            }
        }
        for snap in self.snapshots.values_mut() {
            snap.tags.clear();
        }
        self.forget(|_| false);
        // The root stays, so nothing that it is a clone of could be destroyed.
        while let Some(origin) = self.heads["tank"].origin.clone() {
            let own: Vec<String> =
                self.snapshots.keys().filter(|n| dataset(n) == "tank").cloned().collect();
            for name in own {
                let last = self.new_name();
                pool.rename_snapshot("tank", (short(&name), &last), false, None).unwrap();
                self.rename(|n| (n == name).then(|| format!("tank@{last}")));
            }
            self.promote_one(pool, "tank");
            assert_ne!(self.heads["tank"].origin, Some(origin));
        }
        // A dataset may be below a clone of its own snapshot; side by side they can all go.
        while let Some(from) = self.heads.keys().find(|n| n.matches('/').count() > 1).cloned() {
            let to = format!("tank/{}", self.new_name());
            pool.rename_dataset(&from, &to, None).unwrap();
            self.rename(|n| inside(n, &from).then(|| format!("{to}{}", &n[from.len()..])));
        }
        while self.heads.len() > 1 || !self.snapshots.is_empty() {
            let before = self.heads.len() + self.snapshots.len();
            for name in self.snapshots.keys().cloned().collect::<Vec<_>>() {
                if self.snapshots.contains_key(&name) && self.clones_of(&name).is_empty() {
                    pool.destroy_snapshots(std::slice::from_ref(&name), false, None).unwrap();
                    self.snapshots.remove(&name);
                }
            }
            for name in self.heads.keys().cloned().collect::<Vec<_>>() {
                let rest = self.heads.keys().chain(self.snapshots.keys());
                if name != "tank" && rest.filter(|n| inside(n, &name)).count() == 1 {
                    pool.destroy_dataset(&name, false, None).unwrap();
                    self.forget(|n| inside(n, &name));
                }
            }
            assert!(self.heads.len() + self.snapshots.len() < before, "something stays");
        }
    }
}

/// All sums of a pool that is open, as of one txg.
pub(crate) fn sums(pool: &Pool) {
    let tree = pool.spa().zio().tree();
    let of = |id| tree.deflate_ratio(base::VdevId(id)).unwrap_or(512);
    let ratios = dsl::write::Ratios::new((0..8).map(of).collect());
    let check = move |cx: &mut TaskCx<'_>| {
        let wrong = dsl::write::check(cx.read(), &ratios)?;
        if wrong.is_empty() { Ok(()) } else { Err(Error::corrupt(format!("{wrong:#?}"))) }
    };
    pool.writer().unwrap().sync_task(check, |_, ()| Ok(())).unwrap();
}

fn history(engine: &Engine, dir: &Path, mut pool: Arc<Pool>, seed: u64, ops: usize) {
    let mut model = LineageModel::new(seed);
    for op in 0..ops {
        model.step(&pool);
        sums(&pool);
        if op % 50 == 49 {
            pool.sync().unwrap();
            model.compare(&pool);
            if model.below(2) == 0 {
                pool.export().unwrap();
                drop(pool);
                pool = import_from(engine, dir, &writing()).unwrap();
                model.compare(&pool);
            }
        }
    }
    model.compare(&pool);
    pool.export().unwrap();
    drop(pool);
    judge(engine, dir);
    let pool = import_from(engine, dir, &writing()).unwrap();
    model.compare(&pool);
    model.end(&pool);
    model.compare(&pool);
    testkit::eventually("the blocks are freed", || {
        pool.sync().unwrap();
        pool.prop("freeing").unwrap().map(|v| v.value) == Some(PropData::Num(0))
    });
    sums(&pool);
    pool.export().unwrap();
    drop(pool);
    judge(engine, dir);
}

/// Kinds of vdevs, with their disks.
fn kinds() -> Vec<(&'static str, Option<NewKind>, usize)> {
    let draid = NewKind::Draid { nparity: 1, ndata: Some(2), nspares: 1 };
    vec![
        ("single", None, 1),
        ("mirror", Some(NewKind::Mirror), 2),
        ("raidz1", Some(NewKind::Raidz { nparity: 1 }), 3),
        ("draid", Some(draid), 4),
    ]
}

#[test]
fn random_lineages() {
    let nightly = std::env::var_os("CENOTE_NIGHTLY").is_some();
    let seed = std::env::var("CENOTE_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(7);
    let ops = if nightly { 12_500 } else { 150 };
    let both = |kind: (&'static str, Option<NewKind>, usize)| [(kind.clone(), 9), (kind, 12)];
    let cases: Vec<_> = kinds().into_iter().flat_map(both).collect();
    side_by_side(&cases, |((name, kind, width), ashift)| {
        let name = format!("lineage-{name}{ashift}");
        let disks = DiskFiles::new(&name, *width, 512 * MB);
        let vdev: NewVdev = match kind {
            Some(kind) => disks.group(kind.clone(), 0..*width),
            None => disks.leaf(0),
        };
        let engine = engine();
        let settings = vec![PoolSetting::Stored("ashift", *ashift)];
        let pool = engine.create_pool(&request(vec![vdev], settings)).unwrap().unwrap();
        history(&engine, &disks.path(), pool, seed ^ ashift ^ (*width as u64) << 8, ops);
    });
}

/// What the user did: cloned a file system, moved the original below the clone, and destroyed the
/// clone with all below it. Each must go before the other. A part was destroyed, and then the
/// command failed.
#[test]
fn what_no_order_destroys_stays_whole() {
    let disks = DiskFiles::new("lineage-circle", 1, 512 * MB);
    let engine = engine();
    let pool = engine.create_pool(&request(vec![disks.leaf(0)], Vec::new())).unwrap().unwrap();
    pool.create_filesystem("tank/a", &[], None).unwrap();
    pool.snapshot(&["tank/a@s".to_owned()], &[], None).unwrap();
    pool.clone_snapshot("tank/a@s", "tank/c", &[], None).unwrap();
    pool.rename_dataset("tank/a", "tank/c/a", None).unwrap();
    pool.create_filesystem("tank/c/b", &[], None).unwrap();
    pool.snapshot(&["tank/c@t".to_owned()], &[], None).unwrap();
    let refused = pool.destroy_dataset("tank/c", true, None).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Exists);
    for name in ["tank/c", "tank/c/a", "tank/c/b", "tank/c@t", "tank/c/a@s"] {
        assert!(pool.dataset(name).is_ok(), "{name}");
    }
    // The clone is promoted, and all of it goes.
    pool.promote("tank/c", None).unwrap();
    pool.destroy_dataset("tank/c", true, None).unwrap();
    assert!(pool.dataset("tank/c").is_err());
    pool.export().unwrap();
    drop(pool);
    judge(&engine, &disks.path());
}

/// Clones of clones, each a snapshot of the one before, promoted in random order and
/// destroyed in random order.
#[test]
fn twelve_clones_deep() {
    let disks = DiskFiles::new("lineage-deep", 1, 512 * MB);
    let engine = engine();
    let pool = engine
        .create_pool(&request(vec![disks.leaf(0)], vec![PoolSetting::Stored("ashift", 9)]))
        .unwrap()
        .unwrap();
    let mut model = LineageModel::new(12);
    let first = "tank/v0".to_owned();
    pool.create_filesystem(&first, &[], None).unwrap();
    model.heads.insert(first, Head { objects: ObjectContents::new(), origin: None });
    for level in 0..12 {
        let head = format!("tank/v{level}");
        for part in 0..4 {
            let rw = pool.dataset(&head).unwrap().open_rw().unwrap();
            let id = rw.create(&NewObject { block_size: Some(8192) }).unwrap();
            let data = noise(level * 10 + part, 100_000);
            rw.write(id, 0, &data).unwrap();
            model.heads.get_mut(&head).unwrap().objects.insert(id, Arc::new(data));
            let name = format!("{head}@l{level}s{part}");
            pool.snapshot(std::slice::from_ref(&name), &[], None).unwrap();
            model.count += 1;
            let objects = model.heads[&head].objects.clone();
            let (order, tags) = (model.count, BTreeSet::new());
            model.snapshots.insert(name, Snapshot { objects, order, tags, deferred: false });
        }
        let (origin, next) = (format!("{head}@l{level}s2"), format!("tank/v{}", level + 1));
        pool.clone_snapshot(&origin, &next, &[], None).unwrap();
        let objects = model.snapshots[&origin].objects.clone();
        model.heads.insert(next, Head { objects, origin: Some(origin) });
    }
    for _ in 0..40 {
        let name = model.head();
        model.promote_one(&pool, &name);
        let own: Vec<String> = model.heads.keys().cloned().collect();
        assert_eq!(own.len(), 14);
    }
    pool.sync().unwrap();
    sums(&pool);
    model.compare(&pool);
    pool.export().unwrap();
    drop(pool);
    judge(&engine, &disks.path());
    let pool = import_from(&engine, &disks.path(), &writing()).unwrap();
    model.end(&pool);
    testkit::eventually("the blocks are freed", || {
        pool.sync().unwrap();
        pool.prop("freeing").unwrap().map(|v| v.value) == Some(PropData::Num(0))
    });
    sums(&pool);
    pool.export().unwrap();
    drop(pool);
    judge(&engine, &disks.path());
}
