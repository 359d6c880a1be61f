//! Addresses on a removed vdev that datasets need no longer: each becomes obsolete with the last
//! snapshot that needs it.

use ondisk::dslphys::BookmarkPlace;
use ondisk::zap::ZapValue;

use super::super::trees::{Trees, Walked};
use super::*;

/// Trees without blocks.
struct NoTrees;

impl Trees for NoTrees {
    fn walk(
        &self,
        _: &BlkPtr,
        _: Txg,
        _: Option<&BookmarkPlace>,
        _: &mut dyn FnMut(&BlkPtr, BookmarkPlace) -> bool,
    ) -> Walked {
        Walked::All
    }
}

/// A pointer with nothing but an address and a birth.
fn bare(n: u64, birth: u64) -> BpobjEntry {
    let head = Head { object_type: ObjType::NONE, level: 0, lsize: Lsize(512), birth: Txg(birth) };
    let dva = Dva { vdev: VdevId(3), offset: n << 12, asize: Asize(4096), gang: false };
    let block = Block::new(head, Psize(512), 0, &[dva]);
    BpobjEntry { bp: BlkPtr::Block(block), freed: false }
}

/// What another writer does when it replaces old addresses that a snapshot has.
fn replaced(cx: &SyncCx<'_>, head: u64, all: &[(u64, u64)]) {
    let list = match cx.read().attribute_u64(head, remap::KEY).unwrap() {
        Some(list) => list,
        None => {
            let phys = cx.dataset(head).unwrap();
            let list = deadlist::clone_keys(cx, &phys, u64::MAX).unwrap();
            let value = ZapValue::from_u64(list);
            features::set_attribute(cx, head, remap::KEY, &value).unwrap();
            features::add(cx, remap::OBSOLETE_COUNTS, 1).unwrap();
            list
        }
    };
    let entries: Vec<_> = all.iter().map(|&(n, birth)| bare(n, birth)).collect();
    deadlist::insert(cx, list, &entries).unwrap();
}

#[test]
fn an_address_is_obsolete_when_no_snapshot_needs_it() {
    let (rig, initial) = MosFixture::new(&["empty_bpobj", "obsolete_counts"]);
    let at = |txg: u64| rig.txg.set(txg);
    let new = NewDataset { name: "a", case_insensitive: false, origin: None };
    at(10);
    let a = rig.sync(|cx| create::dataset(cx, initial.root_dir, &new)).unwrap();
    let snap = |txg, name: &str| {
        at(txg);
        rig.sync(|cx| snapshot::take(cx, a.head, name)).unwrap()
    };
    let list = |dataset| rig.read().attribute_u64(dataset, remap::KEY).unwrap();
    let count = || features::count(rig.read(), remap::OBSOLETE_COUNTS).unwrap().unwrap();
    let first = snap(12, "first");
    let second = snap(14, "second");
    at(15);
    rig.sync(|cx| replaced(cx, a.head, &[(1, 11), (2, 12), (3, 13), (4, 14)]));
    let noted = list(a.head);
    let third = snap(16, "third");
    assert_eq!((list(a.head), list(third)), (None, noted), "a snapshot takes over the list");
    at(17);
    rig.sync(|cx| replaced(cx, a.head, &[(5, 11), (6, 15), (7, 16)]));
    assert_eq!(count(), 2);
    rig.check();

    let obsolete = |budget| {
        let mut found = Vec::new();
        let mark = &mut |dva: Dva| {
            assert_eq!((dva.vdev, dva.asize), (VdevId(3), Asize(4096)));
            found.push(dva.offset >> 12);
            Ok(())
        };
        let (taken, more) = rig.sync(|cx| remap::consume_obsolete(cx, budget, mark)).unwrap();
        assert_eq!(taken as usize, found.len());
        found.sort_unstable();
        (found, more)
    };
    let destroy = |txg, snapshot| {
        at(txg);
        assert!(rig.sync(|cx| destroy::snapshot(cx, snapshot, false)).unwrap());
        rig.check();
    };
    assert_eq!(obsolete(9), (vec![], false), "nothing is listed yet");
    // What the second alone needed is in the third's list.
    destroy(18, second);
    assert_eq!(count(), 3);
    assert!(obsolete(1).1, "the rest waits");
    assert_eq!(obsolete(9).0.len(), 1);
    assert_eq!((count(), rig.read().directory(remap::OBSOLETE_LIST).unwrap()), (2, None));
    // The third's own list is the head's from now on.
    destroy(19, third);
    assert_eq!(count(), 2, "its list became part of the head's");
    assert_eq!(obsolete(9), (vec![6, 7], false));
    destroy(20, first);
    assert_eq!(obsolete(9), (vec![1, 2, 5], false));
    assert_eq!(count(), 1);
    at(21);
    rig.sync(|cx| destroy::head(cx, a.head, &NoTrees)).unwrap();
    assert_eq!(count(), 0, "the head's list is gone");
    rig.check();
}

#[test]
fn a_snapshot_passes_its_list_on_to_one_without() {
    let (rig, initial) = MosFixture::new(&["empty_bpobj", "obsolete_counts"]);
    let new = NewDataset { name: "a", case_insensitive: false, origin: None };
    rig.txg.set(10);
    let a = rig.sync(|cx| create::dataset(cx, initial.root_dir, &new)).unwrap();
    let snap = |txg, name: &str| {
        rig.txg.set(txg);
        rig.sync(|cx| snapshot::take(cx, a.head, name)).unwrap()
    };
    snap(12, "first");
    rig.txg.set(13);
    rig.sync(|cx| replaced(cx, a.head, &[(1, 11)]));
    let second = snap(14, "second");
    let list = rig.read().attribute_u64(second, remap::KEY).unwrap();
    rig.txg.set(15);
    rig.sync(|cx| destroy::snapshot(cx, second, false)).unwrap();
    assert!(list.is_some());
    assert_eq!(rig.read().attribute_u64(a.head, remap::KEY).unwrap(), list);
    assert_eq!(features::count(rig.read(), remap::OBSOLETE_COUNTS).unwrap(), Some(1));
    rig.check();
}
