//! Sequential rebuilds: a new leaf of a mirror or dRAID, or a distributed spare, gets everything;
//! beside writes, across exports and crashes, and not when it cannot.
#![allow(missing_docs, clippy::unwrap_used, clippy::disallowed_methods)]

mod common;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use base::{ErrorKind, Guid, Result, Txg, VdevId};
use common::scans::*;
use common::shapes::*;
use common::*;
use device::{Device, FileDevice, OpenOptions};
use dsl::write::features;
use nvlist::NvStr;
use ondisk::config::{Dspare, VdevType};
use ondisk::scan::{ScanFunc, ScanState};
use ondisk::zap::ZapValue;
use spa::ImportOptions;
use spa::engine::{
    AttachMode, NewMember, Offline, OfflineMode, RebuildRecord, RebuildState, RebuildTuning,
    ScanRequest, Writer,
};
use spa::write::topology::{LeafFacts, NewKind, NewVdev, build_member};

const TOP: VdevId = VdevId(0);
const LEN: usize = 150_000;

/// A kind of top-level vdev: its name, its disks, those that may be lost.
#[derive(Clone, Copy, Debug)]
struct Layout {
    name: &'static str,
    disks: usize,
    spare: usize,
    ashift: u32,
}

const KINDS: [(&str, usize, usize); 6] = [
    ("single", 1, 0),
    ("mirror", 2, 1),
    ("mirror3", 3, 2),
    ("draid1", 5, 1),
    ("draid2", 6, 2),
    ("draid3", 7, 3),
];

impl Layout {
    fn is_draid(&self) -> bool {
        self.name.starts_with("draid")
    }

    fn vdevs(&self, d: &FileDisks) -> Vec<NewVdev> {
        let leaves: Vec<NewVdev> = (0..self.disks).map(|i| file(i, d)).collect();
        let nparity = self.spare as u32;
        match self.name {
            "single" => leaves,
            _ if self.is_draid() => {
                let kind = NewKind::Draid { nparity, ndata: Some(2), nspares: 1 };
                vec![NewVdev::new(kind).with_children(leaves)]
            }
            _ => vec![NewVdev::new(NewKind::Mirror).with_children(leaves)],
        }
    }
}

/// A pool with content, and disks that are not used yet.
struct Rig {
    what: String,
    layout: Layout,
    d: FileDisks,
    pool: String,
    w: Arc<Writer>,
    all: Vec<(base::ObjectId, u64)>,
}

impl Rig {
    fn new(test: &str, layout: &Layout) -> Rig {
        let pool = format!("{}a{}", layout.name, layout.ashift);
        let d = disks(&format!("{test}-{pool}"), layout.disks + 2, 80 * MB);
        let used = FileDisks { dir: d.dir.clone(), paths: d.paths[..layout.disks].to_vec() };
        let w = make_with(&used, &pool, &layout.vdevs(&d), true, Some(layout.ashift));
        let what = format!("{test} {layout:?}");
        let mut rig = Rig { what, layout: *layout, d, pool, w, all: Vec::new() };
        rig.add(0..24);
        for n in 0..8 {
            rig.remove(n);
        }
        rig.w.sync().unwrap();
        rig
    }

    fn add(&mut self, seeds: std::ops::Range<u64>) {
        let os = head_of(&self.w, &self.pool);
        let new = seeds.map(|n| (write_new(&self.w, &os, &content(n, 0, LEN)), n));
        self.all.extend(new);
        self.w.sync().unwrap();
    }

    fn remove(&mut self, at: usize) {
        let (id, _) = self.all.remove(at);
        remove(&self.w, &head_of(&self.w, &self.pool), id);
    }

    /// A disk that is not used yet.
    fn member(&self, disk: usize, sequential: bool) -> NewMember {
        let path = self.d.paths[disk].clone();
        let options = OpenOptions { write: true, ..OpenOptions::default() };
        let device: Arc<dyn Device> = Arc::new(FileDevice::open(&path, &options).unwrap());
        let facts = |_: &Path| Ok(LeafFacts::of(&*device, false));
        let taken: Vec<Guid> =
            self.w.published().config.vdev_tree.walk().map(|vdev| vdev.guid).collect();
        let new = NewVdev::new(NewKind::File(path));
        let (vdev, facts) = build_member(&new, self.w.txgs().open_txg(), taken, &facts).unwrap();
        let (device, facts) = (Some(device), Some(facts));
        NewMember { vdev, device, facts, ashift: None, sequential }
    }

    fn attach(&self, old: usize, new: usize, mode: AttachMode) -> Result<()> {
        let member = self.member(new, true);
        self.w.attach(guid_of(&self.w, &self.d, old), member, mode, None)
    }

    /// The distributed spare takes the place of a disk that is faulted.
    fn spare_steps_in(&self, old: usize) {
        let guid = guid_of(&self.w, &self.d, old);
        let fault = Offline { mode: OfflineMode::Fault, temporary: false };
        self.w.offline(guid, fault, None).unwrap();
        let mut member = self.member(self.layout.disks, true);
        let top = self.w.published().config.vdev_tree.children[0].guid;
        let vdev = &mut member.vdev;
        vdev.kind = VdevType::DraidSpare;
        vdev.path = Some(NvStr::new(format!("draid{}-0-0", self.layout.spare).as_bytes()).unwrap());
        vdev.dspare = Some(Dspare { top_guid: top, spare_id: 0 });
        vdev.leaf.is_spare = true;
        (member.device, member.facts) = (None, None);
        self.w.attach(guid, member, AttachMode::Replace, None).unwrap();
    }

    fn record(&self) -> RebuildRecord {
        self.w.rebuilds().into_iter().find(|(vdev, _)| *vdev == TOP).unwrap().1.record
    }

    /// Small steps, which stop at an offset; 0: nowhere.
    fn hold(&self, at: u64) {
        self.w.set_rebuild_tuning(RebuildTuning { limit: 64 << 10, ..RebuildTuning::default() });
        self.w.plants.rebuild.hold_at.store(at, Relaxed);
    }

    fn comes_to(&self, offset: u64) {
        testkit::eventually("the held rebuild", || self.record().last_offset >= offset);
        assert_eq!(self.record().state, RebuildState::Active, "{}", self.what);
    }

    /// The rebuild ends, the scrub after it finds nothing to repair, the rest settles.
    fn ends(&self, when: &str) {
        let what = format!("{} {when}", self.what);
        self.hold(0);
        testkit::eventually("the end of the rebuild", || {
            self.record().state == RebuildState::Complete
        });
        let record = self.record();
        assert!(record.errors == 0 && record.end_time >= record.start_time, "{what}: {record:?}");
        assert!(record.issued <= record.scanned && record.rebuilt > 0, "{what}: {record:?}");
        let scrub = self.scrubbed();
        assert_eq!((scrub.processed, scrub.errors), (0, 0), "{what}: {scrub:?}");
        assert_eq!(self.count(), Some(0), "{what}");
        testkit::eventually("a settled tree", || {
            let config = self.w.published().config;
            !config.vdev_tree.walk().any(|vdev| vdev.kind == VdevType::Replacing)
        });
        let tree = self.w.zio().tree();
        assert!(tree.behind(TOP).is_empty(), "{what}");
    }

    /// The scrub that follows.
    fn scrubbed(&self) -> ondisk::scan::Scan {
        let scan = || self.w.scan_progress().map(|p| p.scan);
        testkit::eventually("the scrub", || {
            scan().is_some_and(|s| s.func == ScanFunc::Scrub && s.state == ScanState::Finished)
        });
        scan().unwrap()
    }

    /// The count of the feature.
    fn count(&self) -> Option<u64> {
        features::count(self.w.mos(), "org.openzfs:device_rebuild").unwrap()
    }

    fn check(&self, when: &str) {
        let what = format!("{} {when}", self.what);
        let files = KnownFiles::open(&self.w, &self.pool, &self.all, LEN);
        files.check(&what);
    }

    /// Exports the pool and has `zdb` check it.
    fn export(self) -> Closed {
        let Rig { what, layout, d, pool, w, all } = self;
        export(w);
        zdb(&d, &pool);
        Closed { what, layout, d, pool, all }
    }

    /// As after a power cut: the disks as they are now, in another directory.
    fn copied(&self) -> Closed {
        let mut dir = self.d.dir.clone().into_os_string();
        dir.push("-cut");
        let dir = PathBuf::from(dir);
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        let to = |path: &PathBuf| dir.join(path.file_name().unwrap());
        self.d.paths.iter().for_each(|path| testkit::copy_file(path, &to(path)));
        let d = FileDisks { paths: self.d.paths.iter().map(to).collect(), dir };
        let (what, layout) = (format!("{} cut", self.what), self.layout);
        Closed { what, layout, d, pool: self.pool.clone(), all: self.all.clone() }
    }
}

/// A pool that is not imported.
struct Closed {
    what: String,
    layout: Layout,
    d: FileDisks,
    pool: String,
    all: Vec<(base::ObjectId, u64)>,
}

impl Closed {
    fn import(self) -> Rig {
        self.import_held(0)
    }

    fn import_held(self, at: u64) -> Rig {
        let Closed { what, layout, d, pool, all } = self;
        let spa = open_with(&d.dir, &ImportOptions::default()).unwrap();
        let beginning = spa.begin_writing(Default::default()).unwrap();
        beginning.writer().plants.rebuild.hold_at.store(at, Relaxed);
        let w = beginning.finish().unwrap();
        Rig { what, layout, d, pool, w, all }
    }

    /// All is there when these disks have lost their data.
    fn survives(self, lost: &[usize]) {
        lost.iter().for_each(|&disk| damage(&self.d, disk, 8192, 8192));
        let rig = self.import();
        rig.check(&format!("without {lost:?}"));
        rig.w.stop();
        std::fs::remove_dir_all(&rig.d.dir).unwrap();
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Joins {
    Attach,
    Replace,
    Spare,
}

/// Every kind of vdev and of joining; half of them with sectors of 512 bytes.
fn joining() -> Vec<(Layout, Joins)> {
    let of = |(n, (name, disks, spare)): (usize, (&'static str, usize, usize))| {
        let other = if name.starts_with("draid") { Joins::Spare } else { Joins::Attach };
        [(other, n), (Joins::Replace, n + 1)].map(|(joins, n)| {
            let ashift = if n % 2 == 0 { 9 } else { 12 };
            (Layout { name, disks, spare, ashift }, joins)
        })
    };
    KINDS.into_iter().enumerate().flat_map(of).collect()
}

/// Lets a new leaf join; returns disks that may be lost when it has everything.
fn join(rig: &Rig, joins: Joins) -> Vec<usize> {
    let (n, spare) = (rig.layout.disks, rig.layout.spare);
    // Not every disk of a dRAID has a part of so little data.
    let tree = rig.w.zio().tree();
    let written = |disk: &usize| {
        let guid = guid_of(&rig.w, &rig.d, *disk);
        let found = tree.leaves().find(|(_, node)| node.guid() == guid);
        found.map_or(0, |(id, _)| tree.io(id).writes().bytes)
    };
    let old = (0..n).max_by_key(written).unwrap();
    let others = (0..n).filter(|disk| *disk != old).take(spare).collect();
    match joins {
        Joins::Attach => {
            rig.attach(old, n, AttachMode::Attach).unwrap();
            return (0..n).collect();
        }
        Joins::Replace => rig.attach(old, n, AttachMode::Replace).unwrap(),
        Joins::Spare => rig.spare_steps_in(old),
    }
    others
}

#[test]
fn a_new_leaf_has_everything_beside_writes() {
    testkit::side_by_side(&joining(), |&(layout, joins)| {
        let mut rig = Rig::new(&format!("rebuild-{joins:?}"), &layout);
        rig.hold(0);
        let lost = join(&rig, joins);
        rig.add(100..106);
        (0..4).for_each(|n| rig.remove(n));
        rig.add(106..108);
        rig.ends("written meanwhile");
        rig.check("rebuilt");
        rig.export().survives(&lost);
    });
}

#[test]
fn a_rebuild_survives_exports_and_crashes() {
    let few = joining().into_iter().enumerate().filter(|(n, _)| n % 3 != 1);
    let few: Vec<_> = few.map(|(_, case)| case).collect();
    testkit::side_by_side(&few, |&(layout, joins)| {
        let mut rig = Rig::new(&format!("rebuild-again-{joins:?}"), &layout);
        let at = 12 * MB;
        rig.hold(at);
        let lost = join(&rig, joins);
        rig.comes_to(at);
        assert_eq!(rig.count(), Some(1), "{}", rig.what);
        rig.add(100..103);
        rig.remove(2);
        rig.add(103..104);
        let (stored, cut) = (rig.record(), rig.copied());
        // A further crash, right after the import.
        let cut = cut.import_held(at);
        assert_eq!(cut.record().last_offset, stored.last_offset, "{}", rig.what);
        assert!(!cut.w.zio().tree().behind(TOP).is_empty());
        let again = cut.copied();
        cut.w.stop();
        std::fs::remove_dir_all(&cut.d.dir).unwrap();
        drop(cut);
        let mut again = again.import();
        again.add(200..202);
        again.ends("after a crash");
        again.check("after a crash");
        again.export().survives(&lost);
        // The pool itself is exported in the middle.
        let mut rig = rig.export().import();
        rig.add(300..302);
        let resumed = rig.record();
        assert!(resumed.last_offset >= stored.last_offset, "{}: {resumed:?}", rig.what);
        assert_eq!(resumed.start_time, stored.start_time);
        rig.ends("after an export");
        rig.check("after an export");
        rig.export().survives(&lost);
    });
}

#[test]
fn another_leaf_restarts_the_rebuild_and_others_wait() {
    testkit::side_by_side(&[9, 12], |&ashift| {
        let layout = Layout { name: "single", disks: 1, spare: 0, ashift };
        let mut rig = Rig::new("rebuild-two", &layout);
        rig.hold(12 * MB);
        rig.attach(0, 1, AttachMode::Attach).unwrap();
        rig.comes_to(12 * MB);
        let before = rig.record();
        let other = rig.member(2, false);
        let refused = rig.w.attach(guid_of(&rig.w, &rig.d, 0), other, AttachMode::Attach, None);
        let refused = refused.unwrap_err();
        let words = "currently sequentially resilvering";
        assert_eq!((refused.kind(), refused.message()), (ErrorKind::Busy, words));
        let refused = rig.w.scan(ScanRequest::Scrub, None).unwrap_err();
        assert_eq!((refused.kind(), refused.message()), (ErrorKind::Busy, "currently resilvering"));
        rig.w.scan(ScanRequest::Resilver, None).unwrap();
        for _ in 0..4 {
            rig.w.sync().unwrap();
        }
        assert!(rig.w.running_scan().is_none(), "it waits");
        assert_eq!(rig.record().state, RebuildState::Active);
        rig.hold(4 * MB);
        rig.attach(0, 2, AttachMode::Attach).unwrap();
        let again = rig.record();
        assert!(again.max_txg > before.max_txg && rig.count() == Some(1), "{again:?}");
        assert!(again.last_offset < before.last_offset);
        rig.add(50..52);
        rig.ends("with two leaves");
        assert_eq!(rig.w.zio().tree().leaves().count(), 3);
        rig.export().survives(&[0, 1]);
    });
}

#[test]
fn a_detached_leaf_ends_its_rebuild() {
    let layout = Layout { name: "mirror", disks: 2, spare: 1, ashift: 12 };
    for mode in [AttachMode::Attach, AttachMode::Replace] {
        let mut rig = Rig::new("rebuild-detached", &layout);
        rig.hold(12 * MB);
        rig.attach(0, 2, mode).unwrap();
        rig.comes_to(12 * MB);
        rig.w.detach(guid_of(&rig.w, &rig.d, 2), None).unwrap();
        let record = rig.record();
        assert!(record.state == RebuildState::Canceled && record.end_time > 0, "{record:?}");
        assert_eq!((rig.count(), rig.w.is_rebuilding()), (Some(0), false));
        rig.add(50..52);
        assert!(rig.w.running_scan().is_none());
        // Another one begins from the start.
        rig.hold(0);
        rig.attach(0, 3, mode).unwrap();
        rig.ends("the second one");
        rig.check("the second one");
        rig.export().survives(&[1]);
    }
}

#[test]
fn a_leaf_that_was_away_is_rebuilt_from_the_start() {
    testkit::side_by_side(&[("mirror", 2, 1), ("draid2", 6, 2)], |&(name, disks, spare)| {
        let layout = Layout { name, disks, spare, ashift: 12 };
        let mut rig = Rig::new("rebuild-away", &layout);
        rig.hold(12 * MB);
        rig.attach(0, disks, AttachMode::Replace).unwrap();
        rig.comes_to(12 * MB);
        let before = rig.record();
        let leaf = guid_of(&rig.w, &rig.d, disks);
        let away = Offline { temporary: true, ..Offline::default() };
        rig.w.offline(leaf, away, None).unwrap();
        rig.add(50..53);
        rig.hold(0);
        for _ in 0..3 {
            rig.w.sync().unwrap();
        }
        assert_eq!(rig.record().state, RebuildState::Active, "it waits for its leaf");
        // Away across an import, too.
        let engine = device::Engine::new(device::EngineKind::Threads, 8).unwrap();
        let source = spa::leaves::FileLeaves(engine);
        rig.w.online(leaf, &source, None).unwrap();
        testkit::eventually("a restart", || rig.record().max_txg > before.max_txg);
        rig.add(60..62);
        rig.ends("after it was away");
        rig.export().survives(&(1..=spare).collect::<Vec<_>>());
    });
}

/// Without a leaf that misses nothing, checksums must tell what is right: a resilver does it.
#[test]
fn a_rebuild_without_a_complete_source_becomes_a_resilver() {
    let layout = Layout { name: "mirror", disks: 2, spare: 1, ashift: 9 };
    let rig = Rig::new("rebuild-source", &layout);
    rig.hold(8 * MB);
    rig.attach(0, 2, AttachMode::Attach).unwrap();
    rig.comes_to(8 * MB);
    let tree = rig.w.zio().tree();
    for disk in 0..2 {
        assert!(tree.add_missing(guid_of(&rig.w, &rig.d, disk), Txg(5 + disk as u64)));
    }
    drop(tree);
    rig.hold(0);
    testkit::eventually("a resilver", || {
        let scan = rig.w.scan_progress().map(|p| p.scan);
        scan.is_some_and(|s| s.func == ScanFunc::Resilver && s.state == ScanState::Finished)
    });
    assert_eq!((rig.record().state, rig.count()), (RebuildState::Canceled, Some(0)));
    let resilvered = rig.w.scan_progress().unwrap().scan;
    assert!(resilvered.errors == 0 && resilvered.processed > 0, "{resilvered:?}");
    testkit::eventually("complete leaves", || rig.w.zio().tree().behind(TOP).is_empty());
    rig.export().survives(&[0, 1]);
}

/// A rebuild copies damage that nobody knows; the scrub after it finds and repairs it.
#[test]
fn the_scrub_repairs_damage_that_was_copied() {
    let layout = Layout { name: "mirror", disks: 2, spare: 1, ashift: 12 };
    let rig = Rig::new("rebuild-damage", &layout);
    let closed = rig.export();
    damage(&closed.d, 0, 4096, 64 << 10);
    let rig = closed.import();
    rig.hold(0);
    rig.attach(0, 2, AttachMode::Attach).unwrap();
    testkit::eventually("the end", || rig.record().state == RebuildState::Complete);
    let scrub = rig.scrubbed();
    assert!(scrub.processed > 0 && scrub.errors == 0, "{scrub:?}");
    let tree = rig.w.zio().tree();
    let new = tree.find(guid_of(&rig.w, &rig.d, 2)).unwrap();
    assert!(new.errors().cksum > 0, "damage was copied");
    drop(tree);
    rig.check("repaired");
    rig.export().survives(&[0, 1]);
}

#[test]
fn what_cannot_be_rebuilt_is_refused() {
    let d = disks("rebuild-refused", 4, 80 * MB);
    let used = FileDisks { dir: d.dir.clone(), paths: d.paths[..3].to_vec() };
    let leaves: Vec<NewVdev> = (0..3).map(|i| file(i, &d)).collect();
    let kind = NewKind::Raidz { nparity: 1 };
    let w = make_with(&used, "raidz", &[NewVdev::new(kind).with_children(leaves)], true, Some(12));
    let layout = Layout { name: "raidz", disks: 3, spare: 1, ashift: 12 };
    let (what, pool) = ("refused".to_owned(), "raidz".to_owned());
    let rig = Rig { what, layout, d, pool, w, all: Vec::new() };
    let refused = rig.attach(0, 3, AttachMode::Replace).unwrap_err();
    let words = "only mirror and dRAID vdevs support sequential reconstruction";
    assert_eq!((refused.kind(), refused.message()), (ErrorKind::Unsupported, words));
    assert!(rig.w.rebuilds().is_empty() && rig.count() == Some(0));
    // Nothing was written to the disk.
    let disk = std::fs::read(&rig.d.paths[3]).unwrap();
    assert!(disk.iter().all(|byte| *byte == 0));
    rig.w.stop();
    std::fs::remove_dir_all(&rig.d.dir).unwrap();

    let layout = Layout { name: "single", disks: 1, spare: 0, ashift: 12 };
    let d = disks("rebuild-featureless", 3, 80 * MB);
    let used = FileDisks { dir: d.dir.clone(), paths: d.paths[..1].to_vec() };
    let w = make_with(&used, "old", &layout.vdevs(&d), false, Some(12));
    let (what, pool) = ("refused".to_owned(), "old".to_owned());
    let rig = Rig { what, layout, d, pool, w, all: Vec::new() };
    let refused = rig.attach(0, 1, AttachMode::Attach).unwrap_err();
    let words = "device_rebuild feature must be enabled in order to use sequential reconstruction";
    assert_eq!((refused.kind(), refused.message()), (ErrorKind::Unsupported, words));
    rig.w.stop();
    std::fs::remove_dir_all(&rig.d.dir).unwrap();
}

/// Records that no rebuild wrote: the import copes, and the leaf gets everything.
#[test]
fn hostile_records_begin_anew() {
    let records: [[u64; 4]; 3] =
        [[1, u64::MAX, 0, u64::MAX], [1, 0, u64::MAX, u64::MAX - 1], [1, 1, 7, 0]];
    testkit::side_by_side(&records, |&[state, offset, min, max]| {
        let layout = Layout { name: "mirror", disks: 2, spare: 1, ashift: 12 };
        let rig = Rig::new(&format!("rebuild-odd-{offset}"), &layout);
        rig.hold(4 * MB);
        rig.attach(0, 2, AttachMode::Attach).unwrap();
        rig.comes_to(4 * MB);
        let zap = rig.w.published().config.vdev_tree.children[0].top.clone().unwrap().zap.unwrap();
        let words = [state, offset, min, max, u64::MAX, 3, u64::MAX, 0, 1, 2, 0, 0];
        let value = ZapValue::from_u64s(&words).unwrap();
        let put = move |cx: &mut spa::engine::TaskCx<'_>, ()| {
            cx.cx.mos.zap_update(zap.0, b"org.openzfs:vdev_rebuild", &value)
        };
        rig.w.sync_task(|_| Ok(()), put).unwrap();
        let cut = rig.copied();
        rig.w.stop();
        std::fs::remove_dir_all(&rig.d.dir).unwrap();
        let rig = cut.import();
        rig.ends("a hostile record");
        rig.check("a hostile record");
        rig.export().survives(&[0, 1]);
    });
}

/// The checks above find a metaslab that is left out.
#[test]
fn a_metaslab_left_out_is_found() {
    if !base::planted::AVAILABLE {
        return;
    }
    let layout = Layout { name: "mirror", disks: 2, spare: 1, ashift: 12 };
    let rig = Rig::new("rebuild-plant", &layout);
    rig.w.plants.rebuild.skip_some.store(true, Relaxed);
    rig.attach(0, 2, AttachMode::Attach).unwrap();
    testkit::eventually("the end", || rig.record().state == RebuildState::Complete);
    let scrub = rig.scrubbed();
    assert!(scrub.processed > 0, "{scrub:?}");
    rig.w.stop();
    std::fs::remove_dir_all(&rig.d.dir).unwrap();
}
