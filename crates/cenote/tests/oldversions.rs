//! Pools without feature flags are exchanged with zfs-fuse, which supports versions up to
//! 23: each side writes the pools of the other, and OpenZFS's zdb finds no error
//! throughout.
//!
//! `CENOTE_ZFS_FUSE` names the directory of zfs-fuse's commands; its daemon must run.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]
#![allow(clippy::disallowed_methods, reason = "zfs-fuse and zdb run as processes")]

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use base::rt::Mutex;
use cenote::create::{CreateRequest, NewKind, NewVdev};
use cenote::{ImportOptions, Pool, PoolState};
use testkit::tree::{Compare, verify_tree};
use testkit::{Golden, Scratch, discover, engine, golden, import_from, readonly};

fn writing() -> ImportOptions {
    ImportOptions { force: true, ..ImportOptions::default() }
}

/// zdb's options: every block and metaslab, and every object.
const ALL: &[&str] = &["-bcc", "-dddd"];
/// In pools that zfs-fuse wrote the MOS's block does not count its objects, and zdb fails
/// on that.
const BLOCKS: &[&str] = &["-bcc"];

/// Runs OpenZFS's zdb.
fn zdb(dir: &Path, pool: &str, questions: &[&str]) {
    testkit::side_by_side(questions, |how| {
        let run = Command::new("zdb").args(["-e", "-p"]).arg(dir).args([how, pool]).output();
        let Ok(out) = run else {
            testkit::skip(testkit::Need::Zdb, "zdb is not installed");
            return;
        };
        let text = String::from_utf8_lossy(&out.stdout).into_owned()
            + &String::from_utf8_lossy(&out.stderr);
        let tail = &text[text.len().saturating_sub(4000)..];
        assert!(out.status.success(), "{pool} {how:?}: {tail}");
        let fine = match *how {
            "-bcc" => text.contains("No leaks"),
            _ => !text.contains("leaked"),
        };
        assert!(fine, "{pool} {how:?}: {tail}");
    });
}

/// A file's bytes: compressible in part, and each of its own.
fn content(seed: usize, len: usize) -> Vec<u8> {
    let mut state = seed as u64 | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    (0..len).map(|i| if i % 8192 < 4096 { next() } else { seed as u8 }).collect()
}

/// Bytes that do not compress.
fn noise(seed: usize, len: usize) -> Vec<u8> {
    let mut rng = testkit::Rng::new(seed as u64);
    (0..len / 8).flat_map(|_| rng.number().to_le_bytes()).collect()
}

/// Makes changes for all structures with a version-dependent form: objects written and
/// freed, snapshots taken and destroyed in every order, datasets created and destroyed.
fn change(pool: &Pool, tag: &str) {
    let name = pool.name().to_owned();
    let at = |snap: &str| vec![format!("{name}@{tag}-{snap}")];
    let root = pool.dataset(&name).unwrap().open_rw().unwrap();
    let new = cenote::NewObject::default;
    let ids: Vec<_> = (0..4).map(|_| root.create(&new()).unwrap()).collect();
    for (i, &id) in ids.iter().enumerate() {
        root.write(id, 0, &content(i, 700_000)).unwrap();
    }
    root.sync().unwrap();
    pool.snapshot(&at("c1"), &[], None).unwrap();
    root.write(ids[0], 100_000, &content(7, 300_000)).unwrap();
    root.remove(ids[1]).unwrap();
    root.sync().unwrap();
    pool.snapshot(&at("c2"), &[], None).unwrap();
    root.truncate(ids[0], 50_000).unwrap();
    root.punch(ids[2], 131_072, 262_144).unwrap();
    root.sync().unwrap();
    pool.snapshot(&at("c3"), &[], None).unwrap();
    root.write(ids[3], 0, &content(9, 500_000)).unwrap();
    root.sync().unwrap();
    pool.snapshot(&at("c4"), &[], None).unwrap();
    for snap in ["c2", "c4", "c1"] {
        pool.destroy_snapshots(&at(snap), false, None).unwrap();
    }
    let child = format!("{name}/child");
    pool.create_filesystem(&child, &[], None).unwrap();
    let fs = pool.dataset(&child).unwrap().open_rw().unwrap();
    let id = fs.create(&new()).unwrap();
    fs.write(id, 0, &content(3, 900_000)).unwrap();
    fs.sync().unwrap();
    pool.snapshot(&[format!("{child}@s")], &[], None).unwrap();
    fs.write(id, 0, &content(4, 900_000)).unwrap();
    fs.sync().unwrap();
    drop(fs);
    pool.destroy_dataset(&child, true, None).unwrap();
    // These objects have no name, so they belong to no file.
    for id in [ids[0], ids[2], ids[3]] {
        root.remove(id).unwrap();
    }
    root.sync().unwrap();
}

/// Imports for writing, changes, exports, and audits the result.
fn round(dir: &Path, tag: &str, what: &str, questions: &[&str]) {
    let engine = engine();
    let pool = import_from(&engine, dir, &writing()).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert_eq!(pool.read_only_because(), None, "{what}");
    let name = pool.name().to_owned();
    change(&pool, tag);
    pool.export().unwrap_or_else(|e| panic!("{what}: {e}"));
    drop(pool);
    audit(dir, what);
    zdb(dir, &name, questions);
}

fn audit(dir: &Path, what: &str) {
    let engine = engine();
    assert_eq!(discover(&engine, dir)[0].state, PoolState::Exported, "{what}");
    let pool = import_from(&engine, dir, &readonly()).unwrap();
    let report = pool.spa().audit(Default::default(), &()).unwrap();
    assert!(report.is_clean(), "{what}: {:?}", report.problems);
    let space = pool.spa().load_space().unwrap();
    let ratios = space.vdevs.iter().map(|v| v.deflate).collect();
    let ratios = cenote::inspect::dsl::write::Ratios::new(ratios);
    let wrong = cenote::inspect::dsl::write::check(pool.spa().mos(), &ratios).unwrap();
    assert!(wrong.is_empty(), "{what}: {wrong:#?}");
}

fn make(dir: &Path, name: &str, version: u64) {
    let disk = dir.join("disk");
    std::fs::File::create(&disk).unwrap().set_len(128 << 20).unwrap();
    let request = CreateRequest {
        version,
        features: Vec::new(),
        command: Some(format!("zpool create -o version={version}")),
        ..CreateRequest::new(name, vec![NewVdev::new(NewKind::File(disk))])
    };
    let made = engine().create_pool(&request);
    let pool = made.unwrap_or_else(|e| panic!("version {version}: {e}")).unwrap();
    pool.export().unwrap();
}

#[test]
fn old_versions_are_made_and_changed() {
    testkit::side_by_side(&[10, 11, 12, 13, 15, 20, 23, 25, 26, 28], |&version| {
        let scratch = Scratch::new(&format!("version-{version}"));
        make(scratch.path(), "old", version);
        zdb(scratch.path(), "old", ALL);
        round(scratch.path(), "one", &format!("version {version}"), ALL);
        round(scratch.path(), "two", &format!("version {version} again"), ALL);
    });
}

/// A clone of a clone, with content of their own; the names of both objects' datasets.
fn clone_twice(pool: &Pool, seed: usize) {
    let name = pool.name().to_owned();
    let new = cenote::NewObject::default;
    let write = |dataset: &str, seed: usize| {
        let fs = pool.dataset(dataset).unwrap().open_rw().unwrap();
        let id = fs.create(&new()).unwrap();
        fs.write(id, 0, &noise(seed, 400_000)).unwrap();
        fs.sync().unwrap();
    };
    write(&name, seed);
    let (first, second) = (format!("{name}/first"), format!("{name}/second"));
    for (of, clone) in [(&name, &first), (&first, &second)] {
        let snap = format!("{of}@{}", clone.rsplit('/').next().unwrap());
        pool.snapshot(std::slice::from_ref(&snap), &[], None).unwrap();
        pool.clone_snapshot(&snap, clone, &[], None).unwrap();
        write(clone, seed + clone.len());
    }
}

/// A property with names: `clones` of a snapshot, or `origin`.
fn names(pool: &Pool, dataset: &str, prop: &str) -> String {
    match pool.dataset(dataset).unwrap().prop(prop).unwrap().map(|v| v.value) {
        None | Some(cenote::PropData::None) => String::new(),
        Some(cenote::PropData::Str(names)) => names,
        Some(other) => panic!("{dataset}: {prop}: {other:?}"),
    }
}

fn clones(pool: &Pool, snap: &str) -> String {
    names(pool, snap, "clones")
}

/// Version 10 keeps no sets of clones. A scrub came to the blocks of no clone by the snapshots
/// then: what was damaged in a clone, or in the clone of a clone, was not found.
#[test]
fn a_scrub_finds_the_clones_of_version_10() {
    let scratch = Scratch::new("version-10-scrub");
    make(scratch.path(), "old", 10);
    let scrub = |clone: &str| {
        let engine = engine();
        let pool = import_from(&engine, scratch.path(), &writing()).unwrap();
        pool.scan(cenote::ScanRequest::Scrub, None).unwrap();
        let writer = pool.writer().unwrap();
        testkit::eventually("the end of the scrub", || writer.running_scan().is_none());
        let found = pool.status().unwrap().scan.unwrap().errors;
        pool.export().unwrap();
        println!("{clone}: {found} errors");
        found
    };
    let engine = engine();
    let pool = import_from(&engine, scratch.path(), &writing()).unwrap();
    clone_twice(&pool, 21);
    assert_eq!(clones(&pool, "old@first"), "old/first");
    assert_eq!(clones(&pool, "old/first@second"), "old/second");
    pool.export().unwrap();
    drop(pool);
    assert_eq!(scrub("whole"), 0);
    let path = scratch.path().join("disk");
    let whole = std::fs::read(&path).unwrap();
    for clone in ["old/first", "old/second"] {
        // The content is not compressed, so its beginning is on the disk as it is.
        let needle = &noise(21 + clone.len(), 512);
        let at = whole.chunks(512).position(|w| w == needle).unwrap();
        let mut damaged = whole.clone();
        damaged[at * 512] ^= 1;
        std::fs::write(&path, damaged).unwrap();
        assert_eq!(scrub(clone), 1, "{clone}");
    }
}

/// Clones of version 10 are kept apart from their origins as in any pool: an origin with clones
/// stays, a promoted clone gets it, and an upgrade in between finds all of them.
#[test]
fn clones_of_version_10_are_changed() {
    let ways = [(None, 10), (Some(11), 11), (Some(26), 26), (Some(5000), 5000)];
    testkit::side_by_side(&ways, |&(to, version)| {
        let what = format!("version {version}");
        let scratch = Scratch::new(&format!("version-10-clones-{version}"));
        make(scratch.path(), "old", 10);
        let engine = engine();
        let pool = import_from(&engine, scratch.path(), &writing()).unwrap();
        clone_twice(&pool, 31);
        if let Some(to) = to {
            assert_eq!(pool.upgrade(Some(to), None).unwrap().from, 10, "{what}");
        }
        assert_eq!(pool.version(), version);
        let destroy = |name: &str| match name.contains('@') {
            true => pool.destroy_snapshots(&[name.to_owned()], false, None).map(drop),
            false => pool.destroy_dataset(name, true, None).map(drop),
        };
        for name in ["old@first", "old/first@second", "old/first"] {
            let e = destroy(name).unwrap_err();
            assert_eq!(e.kind(), cenote::ErrorKind::Exists, "{what}: {name}: {e}");
        }
        assert_eq!(clones(&pool, "old@first"), "old/first", "{what}");
        pool.promote("old/second", None).unwrap();
        assert_eq!(clones(&pool, "old/second@second"), "old/first", "{what}");
        pool.promote("old/second", None).unwrap();
        assert_eq!(clones(&pool, "old/second@first"), "old", "{what}");
        // Ordinary datasets of both kinds, and a rollback to a first snapshot.
        pool.create_filesystem("old/new", &[], None).unwrap();
        pool.snapshot(&["old/new@only".to_owned()], &[], None).unwrap();
        let fs = pool.dataset("old/new").unwrap().open_rw().unwrap();
        let id = fs.create(&cenote::NewObject::default()).unwrap();
        fs.write(id, 0, &content(8, 300_000)).unwrap();
        fs.sync().unwrap();
        drop(fs);
        pool.rollback("old/new@only", None).unwrap();
        destroy("old/new@only").unwrap();
        pool.export().unwrap();
        drop(pool);
        audit(scratch.path(), &what);
        zdb(scratch.path(), "old", ALL);
        let pool = import_from(&engine, scratch.path(), &writing()).unwrap();
        for name in ["old/new", "old/first"] {
            pool.destroy_dataset(name, false, None).unwrap();
        }
        assert_eq!(names(&pool, "old", "origin"), "old/second@first", "{what}");
        assert_eq!(names(&pool, "old/second", "origin"), "", "{what}");
        pool.promote("old", None).unwrap();
        pool.destroy_dataset("old/second", true, None).unwrap();
        pool.destroy_snapshots(&["old@first".to_owned()], false, None).unwrap();
        pool.export().unwrap();
        drop(pool);
        audit(scratch.path(), &what);
        zdb(scratch.path(), "old", ALL);
    });
}

/// zfs-fuse, if it is available.
struct Peer {
    commands: PathBuf,
    /// The command that was run last.
    last: Mutex<String>,
}

/// How long an exchange with zfs-fuse takes at most; it takes seconds on an idle machine.
const EXCHANGE: Duration = Duration::from_secs(240);

impl Peer {
    fn at_hand() -> Option<Peer> {
        let commands = std::env::var_os("CENOTE_ZFS_FUSE").map(PathBuf::from);
        let peer = commands.map(|commands| Peer { commands, last: Mutex::default() });
        let peer = peer.filter(Peer::answers);
        if peer.is_none() {
            testkit::skip(testkit::Need::Peers, "zfs-fuse does not run (set CENOTE_ZFS_FUSE)");
        }
        peer
    }

    fn answers(&self) -> bool {
        let run = Command::new(self.commands.join("zpool")).arg("list").output();
        run.is_ok_and(|out| out.status.success())
    }

    /// Runs an exchange with zfs-fuse. These run one after another, for zfs-fuse has once
    /// stopped to answer while two pools were in use, and `make test` waited for ever. An
    /// exchange that takes too long is ended by killing the daemon, and runs a second time
    /// with a new one; the second time must not hang.
    fn exchange(name: &str, exchange: fn(&Peer, &Path)) {
        static ONE: Mutex<()> = Mutex::new(());
        let _one = ONE.lock();
        let Some(peer) = Peer::at_hand() else { return };
        if peer.in_time(name, exchange) {
            return;
        }
        println!("zfs-fuse hung in {}; again", peer.last.lock().as_str());
        peer.restart();
        let in_time = peer.in_time(name, exchange);
        assert!(in_time, "zfs-fuse hung twice, now in {}", peer.last.lock().as_str());
    }

    /// Whether the exchange ended before the daemon had to be killed. When a daemon ends,
    /// the kernel answers all requests to its mounts with errors.
    fn in_time(&self, name: &str, exchange: fn(&Peer, &Path)) -> bool {
        let scratch = Scratch::new(name);
        let (ended, end) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            let watch = scope.spawn(move || {
                let late = end.recv_timeout(EXCHANGE) == Err(RecvTimeoutError::Timeout);
                if late {
                    let _ = Command::new("pkill").args(["-KILL", "-x", "zfs-fuse"]).status();
                }
                late
            });
            let result = catch_unwind(AssertUnwindSafe(|| exchange(self, scratch.path())));
            drop(ended);
            match (watch.join().unwrap(), result) {
                (true, _) => {
                    unmount_all_below(scratch.path());
                    false
                }
                (false, Ok(())) => true,
                (false, Err(panic)) => resume_unwind(panic),
            }
        })
    }

    /// Starts the daemon again.
    fn restart(&self) {
        let daemon = self.commands.join("zfs-fuse");
        let null = std::process::Stdio::null;
        let mut run = Command::new(daemon);
        run.arg("--no-daemon").stdin(null()).stdout(null()).stderr(null());
        // The script that started the first one ends this one, too.
        drop(run.spawn().unwrap());
        testkit::eventually("zfs-fuse answers", || self.answers());
    }

    fn run(&self, command: &str, args: &[&str]) -> String {
        *self.last.lock() = format!("{command} {}", args.join(" "));
        // A closed file stays open there until the kernel reports it.
        for _ in 0..100 {
            let out = Command::new(self.commands.join(command)).args(args).output().unwrap();
            let text = String::from_utf8_lossy(&out.stdout).into_owned()
                + &String::from_utf8_lossy(&out.stderr);
            if out.status.success() {
                return text;
            }
            assert!(text.contains("busy"), "{command} {args:?}: {text}");
            std::thread::sleep(Duration::from_millis(100));
        }
        panic!("{command} {args:?}: busy for ten seconds");
    }

    /// Imports and mounts the pool below `dir`; returns the path of its root file system.
    fn import(&self, dir: &Path, pool: &str) -> PathBuf {
        let (at, below) = (dir.to_str().unwrap(), dir.join("mnt"));
        self.run("zpool", &["import", "-f", "-d", at, "-R", below.to_str().unwrap(), pool]);
        let mount = self.run("zfs", &["get", "-H", "-o", "value", "mountpoint", pool]);
        PathBuf::from(mount.trim())
    }

    /// Reads every block; none may be wrong.
    fn scrub(&self, pool: &str) {
        self.run("zpool", &["scrub", pool]);
        let mut status = String::new();
        for _ in 0..600 {
            status = self.run("zpool", &["status", "-v", pool]);
            if !status.contains("in progress") {
                break;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        assert!(status.contains("with 0 errors"), "{status}");
        assert!(status.contains("No known data errors"), "{status}");
    }

    /// Changes the pool through zfs-fuse: files, snapshots of both sides, a file system.
    fn change(&self, pool: &str, mount: &Path, tag: &str, theirs: &[&str]) {
        let files: Vec<PathBuf> = (0..20).map(|i| mount.join(format!("{tag}-{i}"))).collect();
        for (i, file) in files.iter().enumerate() {
            std::fs::write(file, content(i, 10_000 * (i + 1))).unwrap();
        }
        let snap = |name: &str| format!("{pool}@{tag}-{name}");
        self.run("zfs", &["snapshot", &snap("a")]);
        std::fs::write(&files[3], content(99, 70_000)).unwrap();
        std::fs::remove_file(&files[4]).unwrap();
        self.run("zfs", &["snapshot", &snap("b")]);
        for snapshot in theirs {
            self.run("zfs", &["destroy", &format!("{pool}@{snapshot}")]);
        }
        self.run("zfs", &["destroy", &snap("a")]);
        let child = format!("{pool}/{tag}");
        self.run("zfs", &["create", &child]);
        std::fs::write(mount.join(tag).join("file"), content(5, 300_000)).unwrap();
        self.run("zfs", &["snapshot", &format!("{child}@s")]);
        self.run("zfs", &["destroy", "-r", &child]);
        for (i, file) in files.iter().enumerate().filter(|(i, _)| ![3, 4].contains(i)) {
            assert!(std::fs::read(file).unwrap() == content(i, 10_000 * (i + 1)), "{file:?}");
        }
        files.iter().filter(|f| f.exists()).for_each(|f| std::fs::remove_file(f).unwrap());
    }

    fn export(&self, pool: &str) {
        self.run("zpool", &["export", pool]);
    }
}

/// Unmounts what a daemon that was killed left.
fn unmount_all_below(dir: &Path) {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(1));
    for point in points.filter(|point| Path::new(point).starts_with(dir)) {
        let _ = Command::new("umount").args(["--lazy", point]).status();
    }
}

/// Compares Cenote's view of zfs-fuse's file systems and snapshots.
fn verify(dir: &Path, golden: &Golden, what: &str) {
    let pool = import_from(&engine(), dir, &readonly()).unwrap();
    for (dataset, manifest) in golden.manifests() {
        let fs = pool.dataset(&dataset).unwrap().open_fs().unwrap();
        let differences = testkit::verify(&fs, &manifest, false);
        assert!(differences.is_empty(), "{what}: {dataset}: {differences:#?}");
    }
}

#[test]
fn a_pool_of_zfs_fuse_is_changed() {
    let golden = golden("fuse23").unwrap();
    let scratch = Scratch::new("fuse23-changed");
    golden.unpack(scratch.path());
    verify(scratch.path(), &golden, "as it was");
    for tag in ["one", "two"] {
        round(scratch.path(), tag, "fuse23", BLOCKS);
    }
    verify(scratch.path(), &golden, "changed");
    // Snapshots of zfs-fuse, destroyed here, oldest and newest.
    for snap in ["fuse23@one", "fuse23@two"] {
        let pool = import_from(&engine(), scratch.path(), &writing()).unwrap();
        pool.destroy_snapshots(&[snap.to_owned()], false, None).unwrap();
        pool.export().unwrap();
        drop(pool);
        audit(scratch.path(), snap);
        zdb(scratch.path(), "fuse23", BLOCKS);
    }
}

/// What a user had: a pool of zfs-fuse, which is to go on with OpenZFS. It gets version 28, and
/// later the features.
#[test]
fn a_pool_of_zfs_fuse_is_upgraded() {
    let golden = golden("fuse23").unwrap();
    let scratch = Scratch::new("fuse23-upgraded");
    golden.unpack(scratch.path());
    round(scratch.path(), "before", "fuse23", BLOCKS);
    for (to, version) in [(Some(28), 28), (None, 5000)] {
        let what = format!("fuse23 as {version}");
        let pool = import_from(&engine(), scratch.path(), &writing()).unwrap();
        let done = pool.upgrade(to, Some("zpool upgrade")).unwrap();
        assert_eq!((done.to, done.features.is_empty()), (version, to.is_some()), "{what}");
        pool.export().unwrap();
        drop(pool);
        audit(scratch.path(), &what);
        verify(scratch.path(), &golden, &what);
        round(scratch.path(), &format!("as-{version}"), &what, BLOCKS);
        verify(scratch.path(), &golden, &what);
    }
    let pool = import_from(&engine(), scratch.path(), &writing()).unwrap();
    let old = ["fuse23@one", "fuse23@two"].map(str::to_owned);
    pool.destroy_snapshots(&old, false, None).unwrap();
    pool.export().unwrap();
    drop(pool);
    audit(scratch.path(), "old snapshots destroyed");
    zdb(scratch.path(), "fuse23", BLOCKS);
}

#[test]
fn a_pool_of_zfs_fuse_goes_back_and_forth() {
    Peer::exchange("fuse23-exchange", back_and_forth);
}

fn back_and_forth(peer: &Peer, dir: &Path) {
    let golden = golden("fuse23").unwrap();
    golden.unpack(dir);
    let manifests = golden.manifests();
    let (_, manifest) = manifests.iter().find(|(name, _)| name == "fuse23").unwrap();
    for tag in ["one", "two"] {
        round(dir, tag, "before zfs-fuse", BLOCKS);
        let mount = peer.import(dir, "fuse23");
        let compare = Compare { times: false, identity: false };
        let differences = verify_tree(&mount, manifest, compare);
        assert!(differences.is_empty(), "{tag}: {differences:#?}");
        peer.scrub("fuse23");
        peer.change("fuse23", &mount, &format!("peer-{tag}"), &[&format!("{tag}-c3")]);
        peer.scrub("fuse23");
        peer.export("fuse23");
        audit(dir, "after zfs-fuse");
        zdb(dir, "fuse23", BLOCKS);
        verify(dir, &golden, "after zfs-fuse");
    }
    round(dir, "last", "after zfs-fuse", BLOCKS);
}

#[test]
fn pools_of_cenote_go_to_zfs_fuse() {
    Peer::exchange("to-fuse", go_to_zfs_fuse);
}

fn go_to_zfs_fuse(peer: &Peer, scratch: &Path) {
    for version in [10, 15, 23] {
        let name = format!("cenote{version}");
        let dir = &scratch.join(&name);
        std::fs::create_dir(dir).unwrap();
        make(dir, &name, version);
        for tag in ["one", "two"] {
            round(dir, tag, &format!("version {version}"), BLOCKS);
            let mount = peer.import(dir, &name);
            peer.scrub(&name);
            peer.change(&name, &mount, &format!("peer-{tag}"), &[&format!("{tag}-c3")]);
            let all = peer.run("zpool", &["get", "version", &name]);
            assert!(all.contains(&version.to_string()), "{all}");
            peer.export(&name);
            audit(dir, &format!("version {version} after zfs-fuse"));
            zdb(dir, &name, BLOCKS);
        }
    }
}

/// zfs-fuse makes `$ORIGIN` and the sets of clones for a pool of version 10 that Cenote made,
/// and Cenote for one that zfs-fuse made.
#[test]
fn version_10_is_upgraded_by_the_other_side() {
    Peer::exchange("upgraded", upgraded_by_the_other_side);
}

fn upgraded_by_the_other_side(peer: &Peer, scratch: &Path) {
    let [ours, theirs] = ["ours", "theirs"].map(|name| scratch.join(name));
    std::fs::create_dir(&ours).unwrap();
    std::fs::create_dir(&theirs).unwrap();
    let dir = &*ours;
    make(dir, "ours10", 10);
    let pool = import_from(&engine(), dir, &writing()).unwrap();
    clone_twice(&pool, 41);
    pool.export().unwrap();
    drop(pool);
    peer.import(dir, "ours10");
    peer.scrub("ours10");
    peer.run("zpool", &["upgrade", "-V", "15", "ours10"]);
    peer.run("zfs", &["promote", "ours10/second"]);
    peer.scrub("ours10");
    peer.export("ours10");
    audit(dir, "after the upgrade by zfs-fuse");
    zdb(dir, "ours10", BLOCKS);
    round(dir, "after", "upgraded by zfs-fuse", BLOCKS);

    let dir = &*theirs;
    let disk = dir.join("disk");
    std::fs::File::create(&disk).unwrap().set_len(128 << 20).unwrap();
    let (root, disk) = (dir.join("mnt"), disk.to_str().unwrap().to_owned());
    let root = root.to_str().unwrap();
    peer.run("zpool", &["create", "-R", root, "-o", "version=10", "theirs10", &disk]);
    let file = |name: &str| Path::new(root).join(name);
    std::fs::write(file("file"), content(1, 500_000)).unwrap();
    for (of, snap, clone) in [("theirs10", "one", "a"), ("theirs10/a", "two", "b")] {
        let snap = format!("{of}@{snap}");
        peer.run("zfs", &["snapshot", &snap]);
        peer.run("zfs", &["clone", &snap, &format!("theirs10/{clone}")]);
        std::fs::write(file(clone).join("own"), content(2, 300_000)).unwrap();
    }
    peer.export("theirs10");
    round(dir, "as-it-was", "fuse10", BLOCKS);
    let pool = import_from(&engine(), dir, &writing()).unwrap();
    pool.upgrade(Some(23), Some("zpool upgrade")).unwrap();
    pool.promote("theirs10/b", None).unwrap();
    assert_eq!(clones(&pool, "theirs10/b@two"), "theirs10/a");
    pool.export().unwrap();
    drop(pool);
    audit(dir, "fuse10 upgraded");
    zdb(dir, "theirs10", BLOCKS);
    peer.import(dir, "theirs10");
    peer.scrub("theirs10");
    assert!(std::fs::read(file("file")).unwrap() == content(1, 500_000));
    for clone in ["a", "b"] {
        assert!(std::fs::read(file(clone).join("own")).unwrap() == content(2, 300_000));
    }
    peer.run("zfs", &["promote", "theirs10/a"]);
    peer.export("theirs10");
    audit(dir, "fuse10 after zfs-fuse");
    zdb(dir, "theirs10", BLOCKS);
}
