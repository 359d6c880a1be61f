//! Pools with removed vdevs are written: frees are recorded in the mappings, which are condensed,
//! also across crashes; OpenZFS's zdb finds no error, and the audit finds planted ones.
#![allow(clippy::unwrap_used, clippy::panic, clippy::disallowed_methods, missing_docs)]

mod common;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use cenote::create::NewKind;
use cenote::inspect::zpl::rw::{Caller, New, WritePosition};
use cenote::{
    AttachMode, AttachRequest, CheckpointState, FileSystem, Io, NewDevice, ObjectId, Pool,
    ScanRequest, ScanState,
};
use common::pools::{audit, image_of, leaves, open, whole, writing, zdb};
use device::sim::{SimConfig, SimDisks};
use ondisk::ObjType;
use spa::audit::{AuditOptions, Problem, Report};
use spa::engine::{FreeSpaceTuning, Writer, WriterOptions};
use testkit::manifest::verify_tolerant;
use testkit::{Golden, ManifestEntry, Rng, Scratch, golden, import_from, verify};

const NAME: &str = "removed";
/// The entry of the object directory while a mapping is condensed.
const CONDENSING: &str = "com.delphix:condensing_indirect";

fn unpacked(what: &str) -> Option<(Golden, Scratch)> {
    let golden = golden(NAME)?;
    let scratch = Scratch::new(&format!("{NAME}-{what}"));
    golden.unpack(scratch.path());
    Some((golden, scratch))
}

fn copy(from: &Path, what: &str) -> Scratch {
    let scratch = Scratch::new(&format!("{NAME}-{what}"));
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        testkit::copy_file(&path, &scratch.path().join(path.file_name().unwrap()));
    }
    scratch
}

/// Mappings are condensed however short they are and however little of them is obsolete,
/// `entries` in each txg.
fn condense_soon(w: &Writer, entries: u64) {
    let soon = FreeSpaceTuning {
        condense: true,
        condense_percent: 0,
        condense_mapping_min: 0,
        ..FreeSpaceTuning::default()
    };
    w.set_free_space_tuning(soon);
    w.removed_plants().condensed_at_once.store(entries + 1, Relaxed);
}

fn condense_never(w: &Writer) {
    w.set_free_space_tuning(FreeSpaceTuning { condense: false, ..w.free_space_tuning() });
}

fn is_condensing(pool: &Pool) -> bool {
    pool.spa().mos().lookup_words(CONDENSING).unwrap().is_some()
}

/// The directory of a path and its name there.
fn place(fs: &FileSystem, path: &[u8]) -> (ObjectId, Vec<u8>) {
    let mut parts: Vec<&[u8]> = path.split(|b| *b == b'/').collect();
    let name = parts.pop().unwrap().to_vec();
    let dir = parts.iter().fold(fs.root(), |dir, part| fs.lookup(dir, part, Io::WAIT).unwrap().id);
    (dir, name)
}

fn is_dir(entry: &ManifestEntry) -> bool {
    entry.mode() & 0o170_000 == 0o040_000
}

fn unlink(fs: &FileSystem, entry: &ManifestEntry) {
    let (dir, name) = place(fs, &entry.path());
    match is_dir(entry) {
        true => fs.rmdir(&Caller::root(), dir, &name).unwrap(),
        false => fs.unlink(&Caller::root(), dir, &name).unwrap(),
    };
}

fn write(fs: &FileSystem, name: &str, len: usize) {
    let made = fs.make(&Caller::root(), fs.root(), name.as_bytes(), &New::file(0o644)).unwrap();
    let data: Vec<u8> =
        (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
    let done = fs.write(&Caller::root(), made.id, WritePosition::Offset(0), &data).unwrap();
    assert_eq!(done.bytes, len as u64);
}

fn root(pool: &Pool) -> Arc<FileSystem> {
    pool.dataset(NAME).unwrap().open_fs().unwrap()
}

/// A round: the pool is imported for writing, changed, exported, and judged.
fn round(dir: &Path, what: &str, change: impl FnOnce(&Arc<Pool>)) -> Report {
    let pool = import_from(&testkit::engine(), dir, &writing()).unwrap();
    assert_eq!(pool.read_only_because(), None, "{what}");
    change(&pool);
    pool.export().unwrap();
    drop(pool);
    whole(dir, what)
}

fn entries(report: &Report) -> usize {
    report.indirect.iter().map(|(_, entries)| *entries).sum()
}

/// OpenZFS's pool is changed, snapshots keep what is removed, everything is removed in the
/// end; in each state OpenZFS finds it whole.
#[test]
fn blocks_on_a_removed_vdev_are_freed() {
    let Some((golden, scratch)) = unpacked("freed") else { return };
    let (dir, manifests) = (scratch.path(), golden.manifests());
    let manifest = &manifests.iter().find(|(name, _)| name == NAME).unwrap().1;
    // Deepest first, as they are removed; a directory after what is in it.
    let mut all: Vec<&ManifestEntry> = manifest.iter().filter(|e| !e.path().is_empty()).collect();
    all.sort_by_key(|e| std::cmp::Reverse(e.path()));
    let (files, dirs): (Vec<_>, Vec<_>) = all.into_iter().partition(|e| !is_dir(e));
    let before = whole(dir, "as OpenZFS left it");
    assert!(entries(&before) > 1, "{:?}", before.indirect);
    let mut states = Vec::new();
    round(dir, "half is removed", |pool| {
        condense_never(pool.writer().unwrap());
        pool.snapshot(&[format!("{NAME}@all")], &[], None).unwrap();
        let fs = root(pool);
        files.iter().step_by(2).for_each(|file| unlink(&fs, file));
        write(&fs, "written", 3_000_000);
        pool.sync().unwrap();
    });
    states.push(copy(dir, "half"));
    let kept = round(dir, "the snapshot goes", |pool| {
        condense_never(pool.writer().unwrap());
        let snapshot = pool.dataset(&format!("{NAME}@all")).unwrap().open_fs().unwrap();
        let differences = verify(&snapshot, manifest, true);
        assert!(differences.is_empty(), "{differences:#?}");
        drop(snapshot);
        pool.destroy_snapshots(&[format!("{NAME}@all")], false, None).unwrap();
        pool.sync().unwrap();
    });
    assert_eq!(entries(&kept), entries(&before), "nothing was condensed");
    states.push(copy(dir, "destroyed"));
    let less = round(dir, "everything goes", |pool| {
        let w = pool.writer().unwrap();
        condense_soon(w, 100);
        let fs = root(pool);
        files.iter().skip(1).step_by(2).for_each(|file| unlink(&fs, file));
        dirs.iter().for_each(|dir| unlink(&fs, dir));
        for _ in 0..8 {
            w.sync().unwrap();
        }
        testkit::eventually("the mapping is condensed", || {
            w.touch();
            w.sync().unwrap();
            !is_condensing(pool)
        });
        pool.scan(ScanRequest::Scrub, None).unwrap();
        let over = |pool: &Pool| {
            pool.status().unwrap().scan.is_some_and(|s| s.state == ScanState::Finished)
        };
        testkit::eventually("the scrub ends", || over(pool));
        assert_eq!(pool.status().unwrap().scan.unwrap().errors, 0);
    });
    assert!(entries(&less) < entries(&before), "{:?} of {:?}", less.indirect, before.indirect);
    round(dir, "it goes on", |pool| write(&root(pool), "later", 100_000));
    let dirs: Vec<&Path> = states.iter().map(Scratch::path).chain([dir]).collect();
    testkit::side_by_side(&dirs, |dir| zdb(dir, NAME));
}

/// Blocks on removed vdevs are shared like others, and their addresses are obsolete with the last
/// pointer.
#[test]
fn blocks_on_a_removed_vdev_are_cloned() {
    let Some((golden, scratch)) = unpacked("cloned") else { return };
    let (dir, manifests) = (scratch.path(), golden.manifests());
    let manifest = &manifests.iter().find(|(name, _)| name == NAME).unwrap().1;
    let regular = |e: &&ManifestEntry| e.mode() & 0o170_000 == 0o100_000 && e.size > 100_000;
    let files: Vec<_> = manifest.iter().filter(regular).take(6).collect();
    let by = Caller::root();
    let at = |fs: &FileSystem, dir, name: &[u8]| fs.lookup(dir, name, Io::WAIT).unwrap().id;
    let pointers = |fs: &FileSystem, id| -> Vec<_> {
        let object = fs.objset().object(id, Io::WAIT).unwrap();
        let blocks = 0..=object.dnode().max_blkid;
        let bp = |n| object.block_pointer(0, n, Io::WAIT).unwrap();
        blocks.filter_map(|n| bp(n).as_block().map(|b| b.dva())).collect()
    };
    let clone = |fs: &FileSystem, n: usize| at(fs, fs.root(), format!("clone{n}").as_bytes());
    let mut kept = Vec::new();
    round(dir, "files are cloned", |pool| {
        condense_never(pool.writer().unwrap());
        let fs = root(pool);
        for (n, file) in files.iter().enumerate() {
            let (dir, name) = place(&fs, &file.path());
            let id = at(&fs, dir, &name);
            let name = format!("clone{n}");
            let to = fs.make(&by, fs.root(), name.as_bytes(), &New::file(0o644)).unwrap().id;
            let cloned = fs.clone_range(&by, (&fs, id, 0), (to, 0), u64::MAX).unwrap();
            assert_eq!(cloned, file.size);
            kept.push(pointers(&fs, id));
        }
        pool.sync().unwrap();
        let tree = pool.spa().zio().tree();
        let removed = kept.iter().flatten().filter(|dva| tree.indirect(dva.vdev).is_some()).count();
        assert!(removed > 0, "no block was on a removed vdev");
    });
    round(dir, "the files go", |pool| {
        condense_soon(pool.writer().unwrap(), 100);
        let (_, saved) = pool.writer().unwrap().clone_tally();
        assert!(saved > 100_000, "{saved}");
        let fs = root(pool);
        files.iter().for_each(|file| unlink(&fs, file));
        pool.sync().unwrap();
        for (n, kept) in kept.iter().enumerate() {
            assert_eq!(pointers(&fs, clone(&fs, n)), *kept);
        }
    });
    round(dir, "the clones go", |pool| {
        condense_soon(pool.writer().unwrap(), 100);
        let fs = root(pool);
        for n in 0..files.len() {
            fs.unlink(&by, fs.root(), format!("clone{n}").as_bytes()).unwrap();
        }
        pool.sync().unwrap();
        assert_eq!(pool.writer().unwrap().clone_tally(), (0, 0));
    });
    // There is no table any more, which zdb 2.3 would not read.
    zdb(dir, NAME);
}

/// A mapping that is condensed when the pool is exported is condensed to the end after the
/// next import, whatever step it had reached.
#[test]
fn condensing_is_continued() {
    let Some((golden, scratch)) = unpacked("continued") else { return };
    let manifests = golden.manifests();
    let manifest = &manifests.iter().find(|(name, _)| name == NAME).unwrap().1;
    let files: Vec<_> = manifest.iter().filter(|e| !is_dir(e)).collect();
    let dir = scratch.path();
    round(dir, "files are removed", |pool| {
        condense_never(pool.writer().unwrap());
        let fs = root(pool);
        files.iter().for_each(|file| unlink(&fs, file));
        pool.sync().unwrap();
    });
    let (mut seen, mut steps) = (0, 0);
    loop {
        let mut ended = false;
        round(dir, "a step", |pool| {
            let w = pool.writer().unwrap();
            condense_soon(w, 1);
            // Nothing else of it is worth being condensed.
            if steps > 0 {
                w.set_free_space_tuning(FreeSpaceTuning {
                    condense: false,
                    ..w.free_space_tuning()
                });
            }
            w.touch();
            w.sync().unwrap();
            ended = !is_condensing(pool);
        });
        seen += usize::from(!ended);
        steps += 1;
        if ended {
            break;
        }
    }
    assert!(seen > 0, "never in the middle of it");
    zdb(dir, NAME);
}

/// Frees without a record, or with a wrong one, are found, each as what it is.
#[test]
fn the_audit_finds_wrong_records() {
    let Some((golden, scratch)) = unpacked("planted") else { return };
    let manifests = golden.manifests();
    let manifest = &manifests.iter().find(|(name, _)| name == NAME).unwrap().1;
    let files: Vec<_> = manifest.iter().filter(|e| !is_dir(e) && e.size > 4096).collect();
    type PlantBug = fn(&Writer);
    type Finding = fn(&Problem) -> bool;
    let cases: [(&str, PlantBug, Finding); 4] = [
        (
            "unrecorded",
            |w| w.removed_plants().unrecorded.store(true, Relaxed),
            |p| matches!(p, Problem::Obsolete { obsolete, found, len, .. } if obsolete + found < *len),
        ),
        (
            "copies are not freed",
            |w| w.removed_plants().kept_copies.store(true, Relaxed),
            |p| matches!(p, Problem::Leak(..)),
        ),
        (
            "an entry is lost",
            |w| w.removed_plants().lost_entry.store(true, Relaxed),
            |p| matches!(p, Problem::Claim { claim, .. } if claim.outside > 0),
        ),
        (
            "counts are lost",
            |w| w.removed_plants().lost_counts.store(true, Relaxed),
            |p| matches!(p, Problem::Obsolete { .. }),
        ),
    ];
    testkit::side_by_side(&cases, |(what, plant, finding)| {
        let scratch = copy(scratch.path(), "one");
        let pool = import_from(&testkit::engine(), scratch.path(), &writing()).unwrap();
        let w = pool.writer().unwrap();
        condense_never(w);
        plant(w);
        let fs = root(&pool);
        files.iter().step_by(3).for_each(|file| unlink(&fs, file));
        drop(fs);
        pool.sync().unwrap();
        // What is lost when it is condensed must be there before.
        condense_soon(w, 100);
        if !matches!(*what, "unrecorded" | "copies are not freed") {
            (0..6).for_each(|_| {
                w.touch();
                w.sync().unwrap();
            });
        } else {
            condense_never(w);
        }
        let _lost = pool.export();
        drop(pool);
        let report = audit(scratch.path());
        assert!(!report.is_clean(), "{what}");
        assert!(report.problems.iter().any(finding), "{what}: {:#?}", report.problems);
    });
}

/// Frees every `nth` file of the root dataset, in a txg of its own.
fn free_files(w: &Arc<Writer>, nth: usize) {
    let os = common::head_of(w, NAME);
    let (mut at, mut files) = (ObjectId(0), Vec::new());
    while let Some(id) = os.next_object(at, Io::WAIT).unwrap() {
        at = id;
        let object = os.object(id, Io::WAIT).unwrap();
        if object.object_type() == ObjType::PLAIN_FILE_CONTENTS {
            files.push(id);
        }
    }
    let tx = w.begin_wait(0, true).unwrap();
    files.iter().step_by(nth).for_each(|id| os.free_object(&tx, *id).unwrap());
    drop(tx);
    w.sync().unwrap();
}

/// Wherever the power fails, each byte of the mapping is needed or obsolete, and the copies of
/// what is obsolete are free.
#[test]
fn a_crash_at_any_moment_leaves_exact_records() {
    let Some((_, scratch)) = unpacked("crash") else { return };
    let disk = std::fs::read_dir(scratch.path()).unwrap().next().unwrap().unwrap().path();
    let disks = SimDisks::new(SimConfig::new(7), vec![image_of(&disk)]);
    let spa = open(&leaves(&disks), &writing());
    let options = WriterOptions { threads: 1, ..WriterOptions::default() };
    let w = spa.start_writer(options).unwrap();
    condense_never(&w);
    w.snapshot(&[format!("{NAME}@s")], &[], None).unwrap();
    free_files(&w, 2);
    w.destroy_snapshots(&[format!("{NAME}@s")], false, None).unwrap();
    condense_soon(&w, 1);
    free_files(&w, 3);
    for _ in 0..12 {
        w.touch();
        w.sync().unwrap();
    }
    w.stop();
    let nightly = std::env::var_os("CENOTE_NIGHTLY").is_some();
    let all = disks.crash_points();
    let wanted = if nightly { all.len() } else { 40 };
    let points: Vec<(u64, u64)> = all
        .iter()
        .step_by((all.len() / wanted).max(1))
        .enumerate()
        .map(|(i, event)| (*event, i as u64 % 3))
        .collect();
    let condensing = std::sync::atomic::AtomicUsize::new(0);
    testkit::side_by_side(&points, |&(event, seed)| {
        let images = disks.crash_image(event, seed).unwrap();
        let quiet = SimConfig { record: false, ..SimConfig::new(1) };
        let spa = open(&leaves(&SimDisks::new(quiet, images)), &testkit::readonly());
        let report =
            spa.audit(AuditOptions { threads: 2, ..AuditOptions::default() }, &()).unwrap();
        assert!(report.is_clean(), "{event}:{seed}: {:#?}", report.problems);
        if spa.mos().lookup_words(CONDENSING).unwrap().is_some() {
            condensing.fetch_add(1, Relaxed);
        }
    });
    println!("SIMULATED removed: {} crashes", points.len());
    assert!(condensing.into_inner() > 0, "no crash in the middle of condensing");
}

fn device_name(pool: &Pool) -> String {
    let tree = pool.writer().unwrap().zio().tree();
    let (_, leaf) = tree.leaves().next().unwrap();
    leaf.path().unwrap().to_owned()
}

/// A new device gets the copies of the blocks on removed vdevs too, and damage to a copy is
/// repaired from the other one.
#[test]
fn copies_are_resilvered_and_repaired() {
    let Some((golden, scratch)) = unpacked("resilvered") else { return };
    let (dir, manifests) = (scratch.path(), golden.manifests());
    let manifest = &manifests.iter().find(|(name, _)| name == NAME).unwrap().1;
    let old = std::fs::read_dir(dir).unwrap().next().unwrap().unwrap().path();
    let new = dir.join("second.img");
    std::fs::File::create(&new).unwrap().set_len(old.metadata().unwrap().len()).unwrap();
    let engine = testkit::engine();
    let pool = import_from(&engine, dir, &writing()).unwrap();
    let request = AttachRequest {
        old: device_name(&pool),
        new: Some(NewDevice::Path(NewKind::File(new.clone()))),
        mode: AttachMode::Attach,
        sequential: false,
        force: true,
        ashift: None,
        command: None,
    };
    engine.attach(&pool, &request).unwrap();
    let settled = |pool: &Pool| {
        let w = pool.writer().unwrap();
        testkit::eventually("the new device has everything", || {
            w.sync().unwrap();
            let tree = w.zio().tree();
            let behind = tree.leaves().any(|(_, n)| n.readable() && n.is_behind());
            !behind && w.running_scan().is_none()
        });
    };
    settled(&pool);
    // Every second page of the first device's data is wrong; the labels are not.
    let disk = testkit::Disk::new(&old);
    pool.export().unwrap();
    drop(pool);
    assert!(whole(dir, "with a second device").damaged == 0);
    let alone = Scratch::new("removed-alone");
    testkit::copy_file(&new, &alone.path().join("second.img"));
    let pool = import_from(&testkit::engine(), alone.path(), &testkit::readonly()).unwrap();
    let differences = verify(&root(&pool), manifest, true);
    assert!(differences.is_empty(), "{differences:#?}");
    drop(pool);
    assert!(disk.flip_data(9, 512, 2) > 0);
    round(dir, "repaired", |pool| {
        pool.scan(ScanRequest::Scrub, None).unwrap();
        settled(pool);
    });
    assert_eq!(whole(dir, "after the scrub").damaged, 0);
}

/// Records that contradict the pool are reported, and nothing is done with them.
#[test]
fn wrong_records_of_a_condensing_do_no_harm() {
    let Some((_, scratch)) = unpacked("hostile") else { return };
    let (mapping, config) = {
        let pool = import_from(&testkit::engine(), scratch.path(), &testkit::readonly()).unwrap();
        let top = pool.spa().config().vdev_tree.children[0].top.clone().unwrap();
        (top.indirect.mapping.unwrap().0, pool.spa().mos().lookup("config").unwrap().unwrap())
    };
    let cases: [&[u64]; 7] = [
        &[0, 0],
        &[7, 0, mapping],
        &[1, 0, mapping],
        &[0, 0, mapping],
        &[0, 0, config],
        &[0, config, mapping],
        &[u64::MAX, u64::MAX, u64::MAX],
    ];
    testkit::side_by_side(&cases, |words| {
        let scratch = copy(scratch.path(), "case");
        let dir = scratch.path();
        let pool = import_from(&testkit::engine(), dir, &writing()).unwrap();
        let value = ondisk::zap::ZapValue::from_u64s(words).unwrap();
        let act = move |cx: &mut spa::engine::TaskCx<'_>, ()| {
            cx.cx.mos.zap_update(1, CONDENSING.as_bytes(), &value)
        };
        pool.writer().unwrap().sync_task(|_| Ok(()), act).unwrap();
        pool.export().unwrap();
        drop(pool);
        let pool = import_from(&testkit::engine(), dir, &writing()).unwrap();
        let w = pool.writer().unwrap();
        condense_soon(w, 1);
        free_files(w, 2);
        free_files(w, 1);
        assert!(is_condensing(&pool), "{words:?}: the record stays");
        pool.export().unwrap();
        drop(pool);
        let report = audit(dir);
        let other = |p: &&Problem| !matches!(p, Problem::Mapping(_) | Problem::FeatureCount { .. });
        assert_eq!(report.problems.iter().filter(other).count(), 0, "{words:?}: {report:#?}");
        assert!(report.problems.iter().any(|p| matches!(p, Problem::Mapping(_))), "{words:?}");
    });
}

/// A golden pool under random changes, with what its files must be.
struct RandomChanges {
    rng: Rng,
    /// Files of the root file system that were not changed.
    left: Vec<ManifestEntry>,
    /// Snapshots, oldest first, with the files of their time.
    snapshots: Vec<(String, Vec<ManifestEntry>)>,
    /// Clones: the name, and that of the snapshot.
    clones: Vec<(String, String)>,
    step: usize,
}

impl RandomChanges {
    fn apply(&mut self, pool: &Pool) {
        self.step += 1;
        let n = self.step;
        match self.rng.below(12) {
            0..4 => {
                let fs = root(pool);
                for _ in 0..self.rng.below(60) {
                    if !self.left.is_empty() {
                        let file = self.left.swap_remove(self.rng.index(self.left.len()));
                        unlink(&fs, &file);
                    }
                }
                write(&fs, &format!("new-{n}"), 1 + self.rng.below(400_000) as usize);
            }
            4..6 => {
                let name = format!("{NAME}@s{n}");
                pool.snapshot(std::slice::from_ref(&name), &[], None).unwrap();
                self.snapshots.push((name, self.left.clone()));
            }
            6 | 7 => {
                let of = |name: &str| self.clones.iter().any(|(_, origin)| origin == name);
                let all = 0..self.snapshots.len();
                let free: Vec<usize> = all.filter(|i| !of(&self.snapshots[*i].0)).collect();
                if !free.is_empty() {
                    let (name, _) = self.snapshots.remove(free[self.rng.index(free.len())]);
                    pool.destroy_snapshots(&[name], false, None).unwrap();
                }
            }
            8 if !self.snapshots.is_empty() => {
                let (origin, _) = &self.snapshots[self.rng.index(self.snapshots.len())];
                let name = format!("{NAME}/c{n}");
                pool.clone_snapshot(origin, &name, &[], None).unwrap();
                let fs = pool.dataset(&name).unwrap().open_fs().unwrap();
                write(&fs, "in-a-clone", 50_000);
                self.clones.push((name, origin.clone()));
            }
            9 if !self.clones.is_empty() => {
                let (name, _) = self.clones.swap_remove(self.rng.index(self.clones.len()));
                pool.destroy_dataset(&name, true, None).unwrap();
            }
            10 => {
                if let Some((newest, files)) = self.snapshots.last() {
                    pool.rollback(newest, None).unwrap();
                    self.left.clone_from(files);
                }
            }
            _ => match pool.checkpoint_status().unwrap() {
                None => pool.take_checkpoint(None).unwrap(),
                Some(status) if status.state == CheckpointState::Exists => {
                    pool.discard_checkpoint(None).unwrap();
                }
                Some(_) => {}
            },
        }
        pool.sync().unwrap();
    }

    fn check(&self, pool: &Pool, what: &str) {
        let now = (NAME.to_owned(), self.left.clone());
        for (name, files) in self.snapshots.iter().chain([&now]) {
            let fs = pool.dataset(name).unwrap().open_fs().unwrap();
            let found = verify_tolerant(&fs, files);
            assert_eq!((found.right, &found.wrong[..]), (files.len(), &[][..]), "{what}: {name}");
        }
    }
}

/// Files, snapshots, clones, rollbacks and checkpoints come and go in random order while the
/// mapping is condensed: its records are exact whenever the pool is exported.
#[test]
fn records_are_exact_after_random_changes() {
    let Some((golden, scratch)) = unpacked("random") else { return };
    let manifest = golden.manifests().into_iter().find(|(name, _)| name == NAME).unwrap().1;
    let is_kept = |e: &ManifestEntry| !is_dir(e) && !e.path().starts_with(b"links/");
    let files: Vec<ManifestEntry> = manifest.into_iter().filter(is_kept).collect();
    let nightly = std::env::var_os("CENOTE_NIGHTLY").is_some();
    let seeds: Vec<u64> = (1..=if nightly { 100 } else { 2 }).collect();
    testkit::side_by_side(&seeds, |&seed| {
        let scratch = copy(scratch.path(), &format!("random-{seed}"));
        let mut changes = RandomChanges {
            rng: Rng::new(seed),
            left: files.clone(),
            snapshots: Vec::new(),
            clones: Vec::new(),
            step: 0,
        };
        for era in 0..4 {
            let what = format!("seed {seed}, era {era}");
            round(scratch.path(), &what, |pool| {
                condense_soon(pool.writer().unwrap(), 1 + changes.rng.below(4));
                (0..6).for_each(|_| changes.apply(pool));
                changes.check(pool, &what);
            });
        }
        if nightly || seed == 1 {
            zdb(scratch.path(), NAME);
        }
    });
}
