//! Vdevs that grow with their devices, spares and replacements inside each other, and pools
//! that are full.

use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;

use base::VdevId;
use cenote::create::{NewKind, NewVdev, PoolSetting, Role};
use cenote::files::{Caller, New, WritePosition};
use cenote::inspect::ondisk::config::{VdevConfig, VdevType};
use cenote::{
    AttachMode, AttachRequest, ErrorKind, JobAction, JobKind, NewDevice, Offline, OfflineMode,
    Pool, PropData, ScanRequest, VdevStatus,
};
use testkit::import_from;

use crate::care::hold;
use crate::topology::{AWAY, Rig, SIZE, resilver};
use crate::{DiskFiles, MB, noise, writing, zdb_text};

const SMALL: u64 = 80 * MB;
const LARGE: u64 = 208 * MB;

fn shapes() -> Vec<(&'static str, NewKind, usize)> {
    vec![
        ("single", NewKind::Mirror, 1),
        ("mirror", NewKind::Mirror, 2),
        ("raidz1", NewKind::Raidz { nparity: 1 }, 3),
        ("draid1", NewKind::Draid { nparity: 1, ndata: Some(2), nspares: 0 }, 4),
    ]
}

fn vdev(disks: &DiskFiles, kind: &NewKind, width: usize) -> NewVdev {
    if width == 1 { disks.leaf(0) } else { disks.group(kind.clone(), 0..width) }
}

fn file(disks: &DiskFiles, i: usize) -> PathBuf {
    disks.path().join(format!("d{i}"))
}

fn enlarge(disks: &DiskFiles, i: usize) {
    std::fs::File::options().write(true).open(file(disks, i)).unwrap().set_len(LARGE).unwrap();
}

fn size(pool: &Pool) -> u64 {
    match pool.prop("size").unwrap().unwrap().value {
        PropData::Num(n) => n,
        other => panic!("{other:?}"),
    }
}

/// A pool of small disks, with larger ones beside them.
fn small(what: &str, kind: &NewKind, width: usize, ashift: u64) -> Rig {
    let disks = DiskFiles::new(&format!("grow-{what}"), width, SMALL);
    for i in width..2 * width {
        std::fs::File::create(file(&disks, i)).unwrap().set_len(LARGE).unwrap();
    }
    let vdevs = vec![vdev(&disks, kind, width)];
    let rig = Rig::on(disks, vdevs, vec![PoolSetting::Stored("ashift", ashift)], what);
    Rig { what: format!("{what}, ashift {ashift}"), ..rig }
}

/// The pool has grown, and can use it: it is filled beyond its former size.
fn is_used(mut rig: Rig, before: u64) -> Rig {
    let what = rig.what.clone();
    assert!(size(&rig.pool) >= before + 64 * MB, "{what}: {} of {before}", size(&rig.pool));
    let top = |rig: &Rig| rig.pool.writer().unwrap().space().vdev_totals(VdevId(0)).unwrap();
    let mut seed = 1000;
    while top(&rig).allocated < before + 8 * MB {
        rig.fill(seed..seed + 100);
        seed += 100;
    }
    rig.check("grown");
    rig
}

fn end(rig: Rig) {
    let Rig { disks, engine, pool, objects, content, what } = rig;
    drop(objects);
    pool.export().unwrap();
    drop((pool, engine));
    if let Some(text) = zdb_text(&disks.path(), &["-bcc", "tank"]) {
        assert!(text.contains("No leaks"), "{what}: {text}");
    }
    let engine = testkit::engine();
    let pool = import_from(&engine, &disks.path(), &writing()).unwrap();
    let objects = pool.root().unwrap().open_rw().unwrap();
    for (&id, &seed) in &content {
        let read = objects.read_vec(cenote::ObjectId(id), 0, SIZE).unwrap();
        assert!(read == noise(seed, SIZE), "{what}: object {id}");
    }
}

/// Devices that grew are used after `zpool online -e`, not before.
#[test]
fn devices_that_grew_are_expanded_on_request() {
    let cases: Vec<_> = shapes().into_iter().flat_map(|s| [(s.clone(), 9), (s, 12)]).collect();
    testkit::side_by_side(&cases, |((name, kind, width), ashift)| {
        let mut rig = small(&format!("online-{name}"), kind, *width, *ashift);
        rig.fill(0..8);
        let before = size(&rig.pool);
        for i in 0..*width {
            // All devices must have the room.
            assert_eq!(size(&rig.pool), before, "{}", rig.what);
            enlarge(&rig.disks, i);
            rig.engine.online(&rig.pool, &rig.name(i), false, None).unwrap();
            rig.fill(10 + i as u64..11 + i as u64);
            assert_eq!(size(&rig.pool), before, "{}", rig.what);
            rig.engine.online(&rig.pool, &rig.name(i), true, None).unwrap();
        }
        rig.after_crash("grown");
        end(is_used(rig, before));
    });
}

/// With `autoexpand` the pool grows by itself: when its last small device was replaced by a larger
/// one, when `zpool online` finds the devices larger, and at an import that does.
#[test]
fn pools_expand_by_themselves() {
    let ways = ["replaced", "online", "import"];
    let cases: Vec<_> = shapes()
        .into_iter()
        .enumerate()
        .flat_map(|(n, s)| ways.map(|way| (s.clone(), if n % 2 == 0 { 9 } else { 12 }, way)))
        .collect();
    testkit::side_by_side(&cases, |((name, kind, width), ashift, way)| {
        let mut rig = small(&format!("auto-{name}-{way}"), kind, *width, *ashift);
        rig.fill(0..8);
        let before = size(&rig.pool);
        rig.pool.set(&PoolSetting::Stored("autoexpand", 1), None).unwrap();
        match *way {
            "replaced" => {
                for i in 0..*width {
                    assert_eq!(size(&rig.pool), before, "{}", rig.what);
                    rig.attach(i, Some(i + width), AttachMode::Replace).unwrap();
                    resilver(&rig.pool);
                    rig.settled();
                }
            }
            "online" => {
                (0..*width).for_each(|i| enlarge(&rig.disks, i));
                for i in 0..*width {
                    rig.engine.online(&rig.pool, &rig.name(i), false, None).unwrap();
                }
            }
            _ => {
                let Rig { disks, engine, pool, objects, content, what } = rig;
                drop(objects);
                pool.export().unwrap();
                drop(pool);
                (0..*width).for_each(|i| enlarge(&disks, i));
                let pool = import_from(&engine, &disks.path(), &writing()).unwrap();
                let objects = pool.root().unwrap().open_rw().unwrap();
                rig = Rig { disks, engine, pool, objects, content, what };
            }
        }
        testkit::eventually(&format!("{}: the pool grows", rig.what), || size(&rig.pool) > before);
        end(is_used(rig, before));
    });
}

/// The vdevs that hold others below the top-level vdevs, as text: `spare(replacing(d0,d3),d2)`.
fn nesting(pool: &Pool) -> String {
    fn shown(v: &VdevConfig) -> String {
        let path = v.path.as_ref().and_then(|p| p.to_str()).unwrap_or_default();
        let name = path.rsplit('/').next().unwrap_or_default().to_owned();
        let below: Vec<String> = v.children.iter().map(shown).collect();
        match v.kind {
            VdevType::Spare => format!("spare({})", below.join(",")),
            VdevType::Replacing => format!("replacing({})", below.join(",")),
            _ => name,
        }
    }
    let config = pool.writer().unwrap().published().config;
    let tops = &config.vdev_tree.children;
    tops.iter().flat_map(|top| &top.children).map(shown).collect::<Vec<_>>().join(" ")
}

const FAULT: Offline = Offline { mode: OfflineMode::Fault, temporary: false };

/// A device with a spare in its place is replaced; and a spare is put in the place of a device that
/// fails while it is replaced, or of its successor. It does not step in by itself there: the other
/// one of the two has, or gets, what it would get.
///
/// Story: after the resilver the successor never took the place of a device that had a spare in its
/// place, and the spare stayed in use.
#[test]
fn spares_and_replacements_in_each_other() {
    let kinds = [
        ("mirror", NewKind::Mirror, 3),
        ("raidz2", NewKind::Raidz { nparity: 2 }, 4),
        ("draid2", NewKind::Draid { nparity: 2, ndata: Some(2), nspares: 0 }, 5),
    ];
    let orders = ["spare first", "the old one fails", "the new one fails"];
    let cases: Vec<_> = kinds
        .into_iter()
        .enumerate()
        .flat_map(|(n, k)| orders.map(|order| (k.clone(), if n % 2 == 0 { 12 } else { 9 }, order)))
        .collect();
    testkit::side_by_side(&cases, |((name, shape, n), ashift, order)| {
        // The spare, and the successor.
        let (spare, new) = (*n, *n + 1);
        let disks = DiskFiles::new(&format!("nested-{name}"), n + 2, 128 * MB);
        let vdevs =
            vec![disks.group(shape.clone(), 0..*n), disks.leaf(spare).for_role(Role::Spare)];
        let settings = vec![PoolSetting::Stored("ashift", *ashift)];
        let mut rig = Rig::on(disks, vdevs, settings, &format!("{name}, {order}"));
        rig.fill(0..8);
        hold(&rig.pool, 1);
        let rest = (1..*n).map(|i| format!("d{i}")).collect::<Vec<_>>().join(" ");
        let call = |rig: &Rig, leaf: usize, by_itself: usize| {
            rig.engine.offline(&rig.pool, &rig.name(leaf), FAULT, None).unwrap();
            let called = rig.engine.call_spares();
            assert_eq!(called.len(), by_itself, "{}: {called:?}", rig.what);
            if by_itself == 0 {
                let request = AttachRequest {
                    old: rig.name(leaf),
                    new: Some(NewDevice::Spare(rig.name(spare))),
                    mode: AttachMode::Replace,
                    sequential: false,
                    force: false,
                    ashift: None,
                    command: None,
                };
                let done = rig.engine.attach(&rig.pool, &request);
                done.unwrap_or_else(|e| panic!("{} {}: {e}", rig.what, nesting(&rig.pool)));
            }
        };
        let wanted = match *order {
            "spare first" => {
                call(&rig, 0, 1);
                rig.fill(8..10);
                rig.attach(0, Some(new), AttachMode::Replace).unwrap();
                format!("spare(replacing(d0,d{new}),d{spare}) {rest}")
            }
            "the old one fails" => {
                rig.attach(0, Some(new), AttachMode::Replace).unwrap();
                rig.fill(8..10);
                call(&rig, 0, 0);
                format!("replacing(spare(d0,d{spare}),d{new}) {rest}")
            }
            _ => {
                rig.attach(0, Some(new), AttachMode::Replace).unwrap();
                rig.fill(8..10);
                call(&rig, new, 0);
                format!("replacing(d0,spare(d{new},d{spare})) {rest}")
            }
        };
        assert_eq!(nesting(&rig.pool), wanted, "{}", rig.what);
        rig.fill(10..14);
        rig.check("nested");
        rig.after_crash("nested");
        // One more may be lost meanwhile.
        rig.engine.offline(&rig.pool, &rig.name(1), AWAY, None).unwrap();
        rig.check("nested, without another");
        rig.engine.online(&rig.pool, &rig.name(1), false, None).unwrap();
        // Across an import.
        let Rig { disks, engine, pool, objects, content, what } = rig;
        drop(objects);
        pool.export().unwrap();
        drop(pool);
        let pool = import_from(&engine, &disks.path(), &writing()).unwrap();
        let objects = pool.root().unwrap().open_rw().unwrap();
        let mut rig = Rig { disks, engine, pool, objects, content, what };
        rig.fill(14..18);
        if *order == "the new one fails" {
            rig.engine.clear(&rig.pool, None, None).unwrap();
        }
        resilver(&rig.pool);
        let settled = format!("d{new} {rest}");
        testkit::eventually(&format!("{}: the end, {}", rig.what, nesting(&rig.pool)), || {
            resilver(&rig.pool);
            nesting(&rig.pool) == settled
        });
        let spares = rig.pool.writer().unwrap().spares().unwrap();
        assert!(spares.len() == 1 && !spares[0].1, "{}: {spares:?}", rig.what);
        // The successor has everything.
        rig.engine.offline(&rig.pool, &rig.name(1), AWAY, None).unwrap();
        rig.check("without another");
        rig.engine.online(&rig.pool, &rig.name(1), false, None).unwrap();
        resilver(&rig.pool);
        end(rig);
    });
}

fn leaves(status: &VdevStatus) -> usize {
    if status.children.is_empty() { 1 } else { status.children.iter().map(leaves).sum() }
}

/// A pool into which nothing fits any more is looked after as any other: it is scrubbed, resilvered,
/// trimmed, initialized, and a device is replaced. What needs space says so.
#[test]
fn full_pools_are_looked_after() {
    let kinds = [
        ("raidz3", NewKind::Raidz { nparity: 3 }, 5),
        ("mirror", NewKind::Mirror, 2),
        ("draid1", NewKind::Draid { nparity: 1, ndata: Some(2), nspares: 0 }, 4),
    ];
    let cases: Vec<_> = kinds.into_iter().flat_map(|k| [(k.clone(), 9), (k, 12)]).collect();
    testkit::side_by_side(&cases, |((name, shape, n), ashift)| {
        let disks = DiskFiles::new(&format!("full-{name}"), n + 1, SMALL);
        let vdevs = vec![disks.group(shape.clone(), 0..*n)];
        let settings = vec![PoolSetting::Stored("ashift", *ashift)];
        let mut rig = Rig::on(disks, vdevs, settings, &format!("full {name}, ashift {ashift}"));
        let writer = std::sync::Arc::clone(rig.pool.writer().unwrap());
        // As full as a large pool gets.
        writer.plants.slop.store(3 * MB, Relaxed);
        let totals = || writer.space().vdev_totals(VdevId(0)).unwrap();
        let refused = (0..).find_map(|seed| {
            let id = rig.objects.create(&Default::default()).ok()?;
            let done = rig.objects.write(id, 0, &noise(seed, SIZE));
            if done.is_ok() {
                rig.content.insert(id.0, seed);
            }
            done.err()
        });
        let refused = refused.unwrap();
        assert_eq!(refused.kind(), ErrorKind::NoSpace, "{}: {refused}", rig.what);
        writer.sync().unwrap();
        let full = totals();
        assert!(full.allocated * 100 > full.capacity * 90, "{}: {full:?}", rig.what);

        // So little room that a file can be overwritten.
        let some: Vec<u64> = rig.content.keys().copied().take(6).collect();
        for id in some {
            rig.objects.remove(cenote::ObjectId(id)).unwrap();
            rig.content.remove(&id);
        }
        for _ in 0..4 {
            writer.touch();
            writer.sync().unwrap();
        }
        rig.engine.offline(&rig.pool, &rig.name(0), AWAY, None).unwrap();
        let (&id, seed) = rig.content.iter_mut().next().unwrap();
        *seed += 5000;
        rig.objects.write(cenote::ObjectId(id), 0, &noise(*seed, SIZE)).unwrap();
        writer.sync().unwrap();
        rig.engine.online(&rig.pool, &rig.name(0), false, None).unwrap();
        resilver(&rig.pool);
        rig.pool.scan(ScanRequest::Scrub, None).unwrap();
        testkit::eventually("the scrub", || writer.running_scan().is_none());
        let scan = rig.pool.status().unwrap().scan.unwrap();
        assert_eq!((scan.processed, scan.errors), (0, 0), "{}: {scan:?}", rig.what);
        let start = JobAction::Start { rate: 0, secure: false };
        for job in [JobKind::Initialize, JobKind::Trim] {
            rig.pool.on_free_space(job, start, &[], None).unwrap();
            testkit::eventually("the end of a job", || {
                let tree = writer.zio().tree();
                let done = |guid| writer.job_status(guid, job);
                tree.leaves().all(|(_, n)| done(n.guid()).done == done(n.guid()).total)
            });
        }
        // Kept space is space that the pool does not have: what is overwritten takes the rest.
        match rig.pool.take_checkpoint(None) {
            Ok(()) => {
                let mut overwrite = rig.content.iter_mut().map(|(&id, seed)| {
                    let done =
                        rig.objects.write(cenote::ObjectId(id), 0, &noise(*seed + 9000, SIZE));
                    *seed += if done.is_ok() { 9000 } else { 0 };
                    done
                });
                let refused = overwrite.find_map(std::result::Result::err).unwrap();
                assert_eq!(refused.kind(), ErrorKind::NoSpace, "{}: {refused}", rig.what);
                rig.pool.discard_checkpoint(None).unwrap();
            }
            Err(e) => assert_eq!(e.kind(), ErrorKind::NoSpace, "{}: {e}", rig.what),
        }
        testkit::eventually("no checkpoint", || {
            writer.sync().unwrap();
            rig.pool.checkpoint_status().unwrap().is_none()
        });
        rig.attach(1, Some(*n), AttachMode::Replace).unwrap();
        resilver(&rig.pool);
        rig.settled();
        assert_eq!(leaves(&rig.pool.status().unwrap().root), *n, "{}", rig.what);
        rig.check("replaced");
        rig.engine.offline(&rig.pool, &rig.name(2 % n), AWAY, None).ok();
        rig.check("without a device");
        rig.engine.online(&rig.pool, &rig.name(2 % n), false, None).ok();
        resilver(&rig.pool);
        // Room comes back.
        let some: Vec<u64> = rig.content.keys().copied().step_by(2).collect();
        for id in some {
            rig.objects.remove(cenote::ObjectId(id)).unwrap();
            rig.content.remove(&id);
        }
        writer.sync().unwrap();
        rig.fill(9000..9010);
        drop(writer);
        end(rig);
    });
}

/// Story: a dRAID vdev of six files of 64 MiB refused writes of 1 MiB in records of 8 KiB when it had
/// 17 of 22 MiB left: one transaction for a write reserves 24 times its size, the most that it
/// can take. It is divided then.
///
/// With 4 KiB sectors and three data columns, a record of 8 KiB takes a whole stripe: 16 KiB with
/// parity, the share of 12 KiB of data. So two thirds of what is shown as available are the
/// most that such records can hold. With sectors of 512 bytes they take six stripes, and eight
/// ninths are.
#[test]
fn a_small_draid_is_filled_to_its_end() {
    testkit::side_by_side(&[(9, MB), (12, MB), (12, 128 << 10)], |&(ashift, step)| {
        let disks = DiskFiles::new("full-draid-small", 6, 64 * MB);
        let kind = NewKind::Draid { nparity: 1, ndata: Some(3), nspares: 1 };
        let vdevs = vec![disks.group(kind, 0..6)];
        let what = format!("ashift {ashift}, steps of {step}");
        let rig = Rig::on(disks, vdevs, vec![PoolSetting::Stored("ashift", ashift)], &what);
        let records = [("recordsize".to_owned(), PropData::Num(8192))];
        rig.pool.create_filesystem("tank/fs", &records, None).unwrap();
        let available = || rig.pool.dataset("tank/fs").unwrap().available().unwrap();
        let fs = rig.pool.dataset("tank/fs").unwrap().open_fs().unwrap();
        let file = fs.make(&Caller::root(), fs.root(), b"file", &New::file(0o644)).unwrap().id;
        rig.pool.sync().unwrap();
        let room = available();
        let mut at = 0;
        let refused = loop {
            let data = noise(at + 1, step as usize);
            match fs.write(&Caller::root(), file, WritePosition::Offset(at), &data) {
                Ok(done) => at += done.bytes,
                Err(e) => break e,
            }
        };
        assert_eq!(refused.kind(), ErrorKind::NoSpace, "{what}: {refused}");
        rig.pool.sync().unwrap();
        let left = available();
        assert!(left <= room / 20, "{what}: {left} of {room} left, {at} written");
        let most = if ashift == 12 { room * 2 / 3 } else { room * 8 / 9 };
        assert!(at > most * 9 / 10 && at <= most, "{what}: {at} of {most} written");
        fs.unlink(&Caller::root(), fs.root(), b"file").unwrap();
        drop(fs);
        end(rig);
    });
}
