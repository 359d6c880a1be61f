//! Random histories of a pool against a simple model: trees of blocks that are copied at
//! every snapshot.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use base::{Asize, Dva, ErrorKind, Lsize, Psize, Txg, VdevId};
use ondisk::blkptr::{Block, Head};
use ondisk::dslphys::BookmarkPlace;
use ondisk::features::Feature;
use ondisk::uberblock::VERSION_FEATURES;
use ondisk::{BlkPtr, ObjType};
use proptest::prelude::*;

use super::create::NewDataset;
use super::initial::{Initial, NewPool};
use super::mem::MemMos;
use super::props::{Change, Target};
use super::trees::{Trees, Walked};
use super::*;
use crate::stored::Stored;

type ModelBlocks = BTreeMap<u64, BlkPtr>;
/// Entries of a sublist of a livelist.
const SUBLIST: u64 = 6;
/// More blocks than one txg writes to a dataset.
const TXG_BLOCKS: u64 = 100;
/// Key of an object set's own block in the model.
const ROOT: u64 = u64::MAX;

struct Snap {
    name: String,
    object: u64,
    blocks: ModelBlocks,
    held: bool,
}

struct Fs {
    head: u64,
    dir: u64,
    parent: u64,
    origin: Option<u64>,
    live: ModelBlocks,
    snaps: Vec<Snap>,
    marks: Vec<String>,
}

struct DslModel {
    mos: MemMos,
    ratios: Ratios,
    txg: u64,
    seed: Cell<u64>,
    root: Initial,
    /// By head; the root file system's is never destroyed.
    fs: BTreeMap<u64, Fs>,
    trees: HashMap<u64, Vec<BlkPtr>>,
    next_block: u64,
    names: u64,
    freed: RefCell<HashSet<u64>>,
    marks_blocks: bool,
    version: u64,
    plants: LineagePlants,
}

fn offset(bp: &BlkPtr) -> u64 {
    bp.as_block().unwrap().dva().offset
}

struct ModelTrees<'a>(&'a HashMap<u64, Vec<BlkPtr>>);

impl Trees for ModelTrees<'_> {
    fn walk(
        &self,
        root: &BlkPtr,
        min: Txg,
        after: Option<&BookmarkPlace>,
        f: &mut dyn FnMut(&BlkPtr, BookmarkPlace) -> bool,
    ) -> Walked {
        let start = after.map_or(0, |a| a.object + 1);
        for (i, bp) in self.0[&offset(root)].iter().enumerate().skip(start as usize) {
            let at = BookmarkPlace { objset: u64::MAX, object: i as u64, level: 0, blkid: 0 };
            if birth(bp) > min && !f(bp, at) {
                return Walked::Stopped;
            }
        }
        Walked::All
    }
}

impl DslModel {
    fn new(version: u64, features: &[&'static Feature]) -> DslModel {
        let mos = MemMos::default();
        let ratios = Ratios::new(vec![512, 341]);
        let seed = Cell::new(1);
        let random = || next(&seed);
        let cx = SyncCx::new(&mos, create::TXG_INITIAL, (1_700_000_000, 5), &ratios, &random);
        let cx = cx.with_version(version);
        let spec = NewPool {
            version,
            features,
            dspace: 1 << 30,
            salt: [7; 32],
            pool_props: &[("failmode", Stored::Number(1))],
        };
        let root = initial::create(&cx, &spec).unwrap();
        let mut pool = DslModel {
            mos,
            ratios,
            txg: 4,
            seed,
            root,
            fs: BTreeMap::new(),
            trees: HashMap::new(),
            next_block: 1,
            names: 0,
            freed: RefCell::default(),
            version,
            marks_blocks: !features.is_empty(),
            plants: LineagePlants::default(),
        };
        // Livelists of few blocks, kept while anything is shared.
        pool.plants.sublist_max.store(1 + SUBLIST, Relaxed);
        pool.plants.shared_min.store(1, Relaxed);
        pool.adopt(root.root_head, root.root_dir, 0, None, ModelBlocks::new());
        pool.write(root.root_head, &[(1, 3)]);
        pool.verify();
        pool.txg += 1;
        pool
    }

    fn sync<T>(&self, f: impl FnOnce(&SyncCx<'_>) -> T) -> T {
        let random = || next(&self.seed);
        let now = (1_700_000_000 + self.txg, 5);
        let cx = SyncCx::new(&self.mos, Txg(self.txg), now, &self.ratios, &random);
        // Pools older than version 26 free at once.
        let free = |bp: &BlkPtr| {
            self.free(bp);
            Ok(())
        };
        f(&cx.with_version(self.version).with_free(&free).with_plants(&self.plants))
    }

    fn adopt(&mut self, head: u64, dir: u64, parent: u64, origin: Option<u64>, live: ModelBlocks) {
        let fs = Fs { head, dir, parent, origin, live, snaps: Vec::new(), marks: Vec::new() };
        self.fs.insert(head, fs);
    }

    fn name(&mut self) -> String {
        self.names += 1;
        format!("n{}", self.names)
    }

    fn block(&mut self, kind: u8, root: bool) -> BlkPtr {
        self.next_block += 1;
        let sectors = u64::from(kind % 5) + 1;
        let large = self.marks_blocks && kind % 16 == 15;
        let head = Head {
            object_type: if root { ObjType::OBJSET } else { ObjType::PLAIN_FILE_CONTENTS },
            level: 0,
            lsize: Lsize(if large { 256 << 10 } else { 8192 }),
            birth: Txg(self.txg),
        };
        let dva = Dva {
            vdev: VdevId(u32::from(kind & 1)),
            offset: self.next_block << 20,
            asize: Asize(sectors << 9),
            gang: false,
        };
        let compression = if self.marks_blocks && kind % 16 == 14 { 16 } else { 15 };
        let mut b = Block::new(head, Psize(sectors << 9), compression, &[dva]);
        b.checksum = if self.marks_blocks && kind % 16 == 13 { 12 } else { 7 };
        (b.words, b.fill) = ([1, 2, 3, 4], 9);
        BlkPtr::Block(b)
    }

    fn free(&self, bp: &BlkPtr) {
        assert!(self.freed.borrow_mut().insert(offset(bp)), "{bp:?} is freed twice");
    }

    /// Writes slots of a head, or removes them if their kind is even and 0, and writes its
    /// root.
    fn write(&mut self, head: u64, slots: &[(u64, u8)]) {
        let mut delta = Delta::begin(&self.mos, head, &self.ratios).unwrap();
        let mut changes: Vec<(u64, Option<BlkPtr>)> = Vec::new();
        for &(slot, kind) in slots {
            let bp = (kind != 0).then(|| self.block(kind, false));
            changes.push((slot, bp));
        }
        let root = self.block(2, true);
        changes.push((ROOT, Some(root)));
        for (slot, bp) in changes {
            let fs = self.fs.get_mut(&head).unwrap();
            let old = match bp {
                Some(bp) => fs.live.insert(slot, bp),
                None => fs.live.remove(&slot),
            };
            if let Some(old) = old
                && delta.killed(&old) == Killed::Free
            {
                self.free(&old);
            }
            if let Some(bp) = bp {
                delta.born(&bp);
            }
        }
        self.trees.insert(offset(&root), self.fs[&head].live.values().copied().collect());
        self.sync(|cx| delta.apply(cx, Some(&root))).unwrap();
    }

    fn pick(&self, n: u8) -> u64 {
        *self.fs.keys().nth(usize::from(n) % self.fs.len()).unwrap()
    }

    fn step(&mut self, budget: u64) -> background::Progress {
        let mut freed = Vec::new();
        let trees = std::mem::take(&mut self.trees);
        let done = self
            .sync(|cx| {
                let mut left = budget;
                let done = background::step(cx, &ModelTrees(&trees), &mut left, &mut |bp| {
                    freed.push(*bp);
                    Ok(())
                });
                assert!(left <= budget.saturating_sub(freed.len() as u64));
                done
            })
            .unwrap();
        self.trees = trees;
        // A sublist of a livelist is freed as a whole.
        assert!(freed.len() as u64 <= budget + SUBLIST + TXG_BLOCKS);
        assert_eq!(done.blocks, freed.len() as u64);
        assert!(done.residue.is_zero() && done.stuck.is_none());
        freed.iter().for_each(|bp| self.free(bp));
        done
    }

    fn destroy_head(&mut self, head: u64) {
        let trees = std::mem::take(&mut self.trees);
        let done = self.sync(|cx| destroy::head(cx, head, &ModelTrees(&trees)));
        self.trees = trees;
        let fs = &self.fs[&head];
        let children = self.fs.values().any(|other| other.parent == fs.dir);
        match done {
            Ok(()) => {
                assert!(fs.snaps.is_empty() && !children);
                let origin = fs.origin;
                self.fs.remove(&head);
                if let Some(origin) = origin {
                    self.forget_gone(origin);
                }
            }
            Err(e) => {
                let root = head == self.root.root_head;
                let kinds = [ErrorKind::Busy, ErrorKind::Exists, ErrorKind::Invalid];
                assert!(kinds.contains(&e.kind()), "{e}");
                assert!(root || !fs.snaps.is_empty() || children, "{e}");
            }
        }
    }

    /// Removes a snapshot that was marked for destruction from the model, if it was
    /// destroyed.
    fn forget_gone(&mut self, snap: u64) {
        if self.mos.objects().binary_search(&snap).is_err() {
            for fs in self.fs.values_mut() {
                fs.snaps.retain(|s| s.object != snap);
            }
        }
    }

    fn act(&mut self, [op, a, b, c]: [u8; 4]) {
        let head = self.pick(a);
        let snap = {
            let snaps = &self.fs[&head].snaps;
            (!snaps.is_empty()).then(|| snaps[usize::from(b) % snaps.len()].object)
        };
        match op % 20 {
            0..4 => {
                let slots: Vec<_> = (0..c % 6)
                    .map(|i| (u64::from(b.wrapping_mul(i + 1) % 12), b ^ c ^ i))
                    .collect();
                self.write(head, &slots);
            }
            4..6 => self.take_snapshot(head),
            6 | 7 => {
                if let Some(snap) = snap {
                    self.destroy_snapshot(head, snap, c & 1 == 1);
                }
            }
            8 => self.create(head, None),
            9 => {
                if let Some(snap) = snap {
                    self.create(head, Some(snap));
                }
            }
            10 => self.destroy_head(head),
            11 => {
                let name = ["refreservation", "reservation", "quota"][usize::from(b % 3)];
                let dir = Target::Dir(self.fs[&head].dir);
                let change = match c {
                    0..40 => Change::Inherit,
                    _ => Change::Set(Stored::Number(u64::from(c) * 300)),
                };
                self.sync(|cx| props::change(cx, dir, name, &change)).unwrap();
            }
            12 => {
                if let Some(snap) = snap {
                    self.hold_or_release(head, snap);
                }
            }
            13 | 14 => {
                if let Some(snap) = snap {
                    self.bookmark(head, snap, c);
                }
            }
            15 => self.promote(head),
            16 => self.rollback(head),
            17 => self.rename(head, b, c),
            18 if self.version < VERSION_FEATURES => self.upgrade(c),
            _ => {
                self.step(u64::from(b % 20));
                self.verify();
                self.txg += 1;
            }
        }
    }

    /// Brings a pool of an old version to a newer one, sometimes over several.
    fn upgrade(&mut self, c: u8) {
        let to = match c {
            0..60 => 11,
            60..100 => 13,
            100..140 => 26,
            140..160 => VERSION_FEATURES,
            _ => return,
        };
        if to <= self.version {
            return;
        }
        let steps = upgrade::plan(&self.mos, self.version, to).unwrap();
        self.sync(|cx| upgrade::apply(cx, &steps, &[7; 32])).unwrap();
        self.version = to;
        self.verify();
        self.txg += 1;
    }

    fn promote(&mut self, head: u64) {
        let origin = self.fs[&head].origin;
        let plan = match self.sync(|cx| promote::check(cx, head)) {
            Ok(plan) => plan,
            Err(e) => {
                assert!(origin.is_none() && e.kind() == ErrorKind::Invalid, "{e}");
                return;
            }
        };
        let origin = origin.unwrap();
        self.sync(|cx| promote::promote(cx, &plan)).unwrap();
        let is_origin = |fs: &&mut Fs| fs.snaps.iter().any(|s| s.object == origin);
        let old = self.fs.values_mut().find(is_origin).unwrap();
        let last = old.snaps.iter().position(|s| s.object == origin).unwrap();
        let moved: Vec<Snap> = old.snaps.drain(..=last).collect();
        let before = old.origin.replace(origin);
        assert_eq!(plan.snapshots().count(), moved.len());
        let clone = self.fs.get_mut(&head).unwrap();
        clone.origin = before;
        clone.snaps.splice(0..0, moved);
        self.marks_again();
    }

    fn marks_again(&mut self) {
        for fs in self.fs.values_mut() {
            let marks = bookmark::of_head(&self.mos, fs.head).unwrap();
            fs.marks = marks.into_iter().map(|m| String::from_utf8(m.name).unwrap()).collect();
        }
    }

    fn rollback(&mut self, head: u64) {
        let Some(snap) = self.fs[&head].snaps.last().map(|s| s.object) else { return };
        let trees = std::mem::take(&mut self.trees);
        let done = self.sync(|cx| rollback::rollback(cx, head, snap, &ModelTrees(&trees)));
        self.trees = trees;
        match done {
            Ok(()) => {
                let fs = self.fs.get_mut(&head).unwrap();
                fs.live = fs.snaps.last().unwrap().blocks.clone();
            }
            Err(e) => {
                assert!(matches!(e.kind(), ErrorKind::Exists | ErrorKind::WouldBlock), "{e}");
                let mos: &dyn MosRead = &self.mos;
                let snap = mos.dataset(snap).unwrap().creation_txg;
                let marks = bookmark::of_head(mos, head).unwrap();
                let newer = marks.iter().any(|m| m.phys.creation_txg > snap);
                assert_eq!(e.kind() == ErrorKind::Exists, newer, "{e}");
            }
        }
    }

    fn rename(&mut self, head: u64, b: u8, c: u8) {
        let name = self.name();
        if c & 1 == 0 {
            let Some(snap) = self.fs.get_mut(&head).unwrap().snaps.first_mut() else { return };
            let old = std::mem::replace(&mut snap.name, name.clone());
            let object = snap.object;
            let renamed = self.sync(|cx| rename::snapshot(cx, head, &old, &name)).unwrap();
            assert_eq!(renamed, object);
            return;
        }
        let (dir, parent) = (self.fs[&head].dir, self.fs[&self.pick(b)].dir);
        let below = rename::ancestors(&self.mos, parent).unwrap().contains(&dir);
        match self.sync(|cx| rename::dir(cx, dir, parent, &name)) {
            Ok(()) => {
                assert!(!below);
                self.fs.get_mut(&head).unwrap().parent = parent;
            }
            Err(e) => {
                let kinds = [ErrorKind::Invalid, ErrorKind::Limit];
                assert!(kinds.contains(&e.kind()), "{e}");
                assert!(below || head == self.root.root_head || e.kind() == ErrorKind::Limit);
            }
        }
    }

    fn take_snapshot(&mut self, head: u64) {
        let name = self.name();
        match self.sync(|cx| snapshot::take(cx, head, &name)) {
            Ok(object) => {
                let fs = self.fs.get_mut(&head).unwrap();
                let blocks = fs.live.clone();
                fs.snaps.push(Snap { name, object, blocks, held: false });
                // The snapshot's head must not change any more in this txg.
                self.verify();
                self.txg += 1;
            }
            Err(e) => assert_eq!(e.kind(), ErrorKind::WouldBlock, "{e}"),
        }
    }

    fn destroy_snapshot(&mut self, head: u64, snap: u64, defer: bool) {
        let clones = self.fs.values().any(|fs| fs.origin == Some(snap));
        let held = self.fs[&head].snaps.iter().any(|s| s.object == snap && s.held);
        match self.sync(|cx| destroy::snapshot(cx, snap, defer)) {
            Ok(destroyed) => {
                assert_eq!(destroyed, !clones && !held);
                self.forget_gone(snap);
            }
            Err(e) => assert!(!defer && (clones || held), "{e}"),
        }
    }

    fn create(&mut self, head: u64, origin: Option<u64>) {
        let name = self.name();
        let parent = self.fs[&head].dir;
        let new = NewDataset { name: &name, case_insensitive: false, origin };
        let Ok(made) = self.sync(|cx| create::dataset(cx, parent, &new)) else { return };
        let snap = |s: &&Snap| Some(s.object) == origin;
        let live = self.fs.values().flat_map(|fs| &fs.snaps).find(snap);
        let live = live.map_or_else(ModelBlocks::new, |s| s.blocks.clone());
        let empty = live.is_empty();
        self.adopt(made.head, made.dir, parent, origin, live);
        if empty {
            self.write(made.head, &[]);
        }
    }

    fn hold_or_release(&mut self, head: u64, snap: u64) {
        let s = self.fs.get_mut(&head).unwrap();
        let s = s.snaps.iter_mut().find(|s| s.object == snap).unwrap();
        s.held = !s.held;
        if s.held {
            self.sync(|cx| destroy::hold(cx, snap, "keep")).unwrap();
        } else {
            self.sync(|cx| destroy::release(cx, snap, "keep")).unwrap();
            self.forget_gone(snap);
        }
    }

    fn bookmark(&mut self, head: u64, snap: u64, c: u8) {
        if c < 100 && !self.fs[&head].marks.is_empty() {
            let marks = &mut self.fs.get_mut(&head).unwrap().marks;
            let name = marks.remove(usize::from(c) % marks.len());
            self.sync(|cx| bookmark::destroy(cx, head, &name)).unwrap();
            return;
        }
        let name = self.name();
        if c > 220
            && let Some(from) = self.fs[&head].marks.first().cloned()
        {
            self.sync(|cx| bookmark::copy(cx, head, &from, &name)).unwrap();
            self.fs.get_mut(&head).unwrap().marks.push(name);
            return;
        }
        match self.sync(|cx| bookmark::make(cx, snap, &name)) {
            Ok(()) => self.fs.get_mut(&head).unwrap().marks.push(name),
            Err(e) => assert!(!self.marks_blocks && e.kind() == ErrorKind::Unsupported, "{e}"),
        }
    }

    fn usage(&self, blocks: &ModelBlocks) -> Usage {
        blocks.values().map(|bp| self.ratios.space_of(bp)).sum()
    }

    fn verify(&self) {
        let found = check(&self.mos, &self.ratios).unwrap();
        let found: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert!(found.is_empty(), "{found:#?}");
        let found = check_livelists(&self.mos, &self.ratios, &ModelTrees(&self.trees)).unwrap();
        assert!(found.is_empty(), "{found:#?}");
        let mos: &dyn MosRead = &self.mos;
        let of = |object: u64| {
            let p = mos.dataset(object).unwrap();
            (Usage::of(p.referenced_bytes, p.compressed_bytes, p.uncompressed_bytes), p)
        };
        let mut used = HashSet::new();
        for fs in self.fs.values() {
            let (usage, phys) = of(fs.head);
            assert_eq!(usage, self.usage(&fs.live));
            assert_eq!(phys.bp, fs.live[&ROOT]);
            let mut sets = vec![&fs.live];
            for s in &fs.snaps {
                let (usage, phys) = of(s.object);
                assert_eq!(usage, self.usage(&s.blocks), "{}", s.name);
                assert_eq!(phys.bp, s.blocks[&ROOT]);
                sets.push(&s.blocks);
            }
            used.extend(sets.iter().flat_map(|s| s.values()).map(offset));
            self.verify_written(fs);
        }
        assert!(used.is_disjoint(&self.freed.borrow()), "a block in use was freed");
        self.verify_objects();
    }

    /// Bookmarks count the blocks freed between their snapshot and the next (§11.3).
    fn verify_written(&self, fs: &Fs) {
        let mos: &dyn MosRead = &self.mos;
        for mark in bookmark::with_fbn(mos, fs.head).unwrap() {
            let txg = mark.phys.creation_txg;
            let next =
                fs.snaps.iter().filter(|s| mos.dataset(s.object).unwrap().creation_txg > txg);
            let next = next.map(|s| &s.blocks).next().unwrap_or(&fs.live);
            let kept: Usage = next
                .values()
                .filter(|bp| birth(bp) <= txg)
                .map(|bp| self.ratios.space_of(bp))
                .sum();
            let due = Usage::from(mark.phys.referenced) - kept;
            assert_eq!(Usage::from(mark.phys.fbn), due);
        }
    }

    /// Every object except the shared empty list is referred to exactly once.
    fn verify_objects(&self) {
        let mos: &dyn MosRead = &self.mos;
        let mut refs = vec![store::DIRECTORY];
        for (name, value) in mos.zap_entries(store::DIRECTORY).unwrap() {
            let name = String::from_utf8(name).unwrap();
            if !["deflate", "creation_version", "org.illumos:checksum_salt"].contains(&&*name) {
                refs.push(value.as_u64().unwrap());
            }
        }
        let root = mos.required("root_dataset").unwrap();
        let empty = mos.directory("empty_bpobj").unwrap();
        let (mut dirs, mut livelists) = (vec![root], livelist::queued(mos).unwrap());
        while let Some(dir) = dirs.pop() {
            let d = mos.dir(dir).unwrap();
            for (_, child) in mos.numbers(d.child_dir_zapobj).unwrap() {
                refs.push(child);
                dirs.push(child);
            }
            refs.extend([d.child_dir_zapobj, d.props_zapobj, d.clones, d.head_dataset_obj]);
            livelists.extend(livelist::of_dir(mos, dir).unwrap());
            if d.head_dataset_obj == 0 {
                continue;
            }
            let mut sets = vec![d.head_dataset_obj];
            let h = mos.dataset(d.head_dataset_obj).unwrap();
            sets.extend(mos.numbers(h.snapnames_zapobj).unwrap().into_iter().map(|(_, s)| s));
            refs.extend(mos.attribute_u64(d.head_dataset_obj, bookmark::KEY).unwrap());
            refs.extend(&sets[1..]);
            for object in sets {
                let p = mos.dataset(object).unwrap();
                let own = [p.snapnames_zapobj, p.deadlist_obj, p.next_clones_obj];
                refs.extend(own);
                refs.extend([p.props_obj, p.userrefs_obj]);
                if deadlist::is_plain(mos, p.deadlist_obj).unwrap() {
                    continue;
                }
                let lists = deadlist::keys(mos, p.deadlist_obj).unwrap().into_values();
                for list in lists.filter(|l| Some(*l) != empty) {
                    refs.push(list);
                    self.sublists(list, &mut refs);
                }
            }
        }
        if let Some(list) = mos.directory("free_bpobj").unwrap() {
            self.sublists(list, &mut refs);
        }
        for list in livelists {
            refs.push(list);
            let subs = deadlist::keys(mos, list).unwrap().into_values();
            refs.extend(subs.filter(|l| Some(*l) != empty));
        }
        refs.retain(|r| *r != 0);
        let all: BTreeSet<u64> = refs.iter().copied().collect();
        assert_eq!(all.len(), refs.len(), "an object is referred to twice");
        assert_eq!(all.into_iter().collect::<Vec<_>>(), self.mos.objects());
    }

    fn sublists(&self, list: u64, refs: &mut Vec<u64>) {
        let header = bpobj::header(&self.mos, list).unwrap();
        refs.push(header.subobjs);
        for sub in bpobj::sublists(&self.mos, list, &header).unwrap() {
            refs.push(sub);
            self.sublists(sub, refs);
        }
    }

    /// Destroys everything that can be, and frees all of it.
    fn end(&mut self) {
        self.txg += 1;
        for fs in self.fs.values_mut() {
            for s in &mut fs.snaps {
                s.held = false;
            }
        }
        let snaps = |p: &DslModel| -> Vec<(u64, u64)> {
            let of = |fs: &Fs| fs.snaps.iter().map(|s| (fs.head, s.object)).collect::<Vec<_>>();
            p.fs.values().flat_map(of).collect()
        };
        for (_, snap) in snaps(self) {
            let held = self.sync(|cx| destroy::release(cx, snap, "keep"));
            if held.is_ok() {
                self.forget_gone(snap);
            }
        }
        // The root file system cannot be destroyed, so nothing that it was cloned from could.
        let root = self.root.root_head;
        while self.fs[&root].origin.is_some() {
            self.promote(root);
            self.verify();
        }
        // A dataset may be below a clone of its own snapshot; side by side they can all go.
        let top = self.fs[&root].dir;
        for head in self.fs.keys().copied().collect::<Vec<_>>() {
            let name = self.name();
            let fs = self.fs.get_mut(&head).unwrap();
            let dir = fs.dir;
            if head != root && std::mem::replace(&mut fs.parent, top) != top {
                self.sync(|cx| rename::dir(cx, dir, top, &name)).unwrap();
            }
        }
        let mut rounds = 0;
        while self.fs.len() > 1 || !snaps(self).is_empty() {
            for (head, snap) in snaps(self) {
                if self.fs[&head].snaps.iter().any(|s| s.object == snap) {
                    self.destroy_snapshot(head, snap, false);
                }
            }
            for head in self.fs.keys().copied().collect::<Vec<_>>() {
                self.destroy_head(head);
            }
            self.verify();
            self.txg += 1;
            rounds += 1;
            assert!(rounds < 200, "something cannot be destroyed");
        }
        while self.step(7).more {
            self.verify();
            self.txg += 1;
        }
        self.verify();
        let live = self.fs[&self.root.root_head].live.len() as u64;
        assert_eq!(self.freed.borrow().len() as u64 + live, self.next_block - 1, "blocks leaked");
    }
}

fn next(seed: &Cell<u64>) -> u64 {
    let mut x = seed.get();
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    seed.set(x);
    x
}

fn run(version: u64, features: &[&'static Feature], ops: &[[u8; 4]]) {
    let mut pool = DslModel::new(version, features);
    for op in ops {
        pool.act(*op);
    }
    pool.verify();
    pool.end();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn random_histories_with_all_features(ops in prop::collection::vec(any::<[u8; 4]>(), 1..120)) {
        let all: Vec<_> = features::maintained().collect();
        run(VERSION_FEATURES, &all, &ops);
    }

    #[test]
    fn random_histories_without_features(ops in prop::collection::vec(any::<[u8; 4]>(), 1..80)) {
        run(VERSION_FEATURES, &[], &ops);
    }

    /// Pools of the first versions, in which datasets have no common origin and snapshots no
    /// sets of clones, are brought to newer ones in the middle of their histories.
    #[test]
    fn random_histories_of_old_versions(
        version in prop::sample::select(&[10u64, 11, 13][..]),
        ops in prop::collection::vec(any::<[u8; 4]>(), 1..120),
    ) {
        run(version, &[], &ops);
    }
}
