//! Finding and importing pools whose labels, devices or newest txgs are damaged, stale,
//! missing, or of another pool.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cenote::inspect::nvlist::NvList;
use cenote::inspect::ondisk::label::{LABEL_SIZE, LABELS};
use cenote::{
    Engine, Error, ErrorKind, FoundPool, ImportOptions, ImportReason, Pool, PoolState, Search, Txg,
    VdevState,
};
use testkit::{
    Disk, ManifestEntry, Scratch, copy_file, discover, engine, golden, import_from,
    leave_old_scrub, readonly,
};

/// An unpacked golden pool in a directory of its own.
struct ImportCase {
    scratch: Scratch,
    disks: Vec<Disk>,
    manifests: Vec<(String, Vec<ManifestEntry>)>,
}

impl ImportCase {
    fn new(name: &str) -> Option<ImportCase> {
        let golden = golden(name)?;
        let scratch = Scratch::new(name);
        let disks = golden.unpack(scratch.path()).into_iter().map(Disk::new).collect();
        Some(ImportCase { scratch, disks, manifests: golden.manifests() })
    }

    fn dir(&self) -> &Path {
        self.scratch.path()
    }

    fn import(&self) -> Result<Arc<Pool>, Error> {
        import_from(&engine(), self.dir(), &readonly())
    }

    fn found(&self) -> FoundPool {
        let mut all = discover(&engine(), self.dir());
        assert_eq!(all.len(), 1, "{all:?}");
        all.remove(0)
    }

    /// Imports, and compares every byte.
    fn check(&self) -> Arc<Pool> {
        let pool = self.import().unwrap();
        self.verify(&pool);
        pool
    }

    fn verify(&self, pool: &Pool) {
        for (name, manifest) in &self.manifests {
            let fs = pool.dataset(name).unwrap().open_fs().unwrap();
            let differences = testkit::verify(&fs, manifest, true);
            assert!(differences.is_empty(), "{name}: {differences:#?}");
        }
    }

    fn refusal(&self) -> Error {
        self.import().err().expect("the import must be refused")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir().join(name)
    }
}

fn options(change: impl Fn(&mut ImportOptions)) -> ImportOptions {
    let mut options = readonly();
    change(&mut options);
    options
}

/// The state of each leaf, in order.
fn states(pool: &Pool) -> Vec<VdevState> {
    let root = pool.spa().vdev_status();
    let mut out = Vec::new();
    root.for_each(&mut |v| {
        if v.children.is_empty() {
            out.push(v.state());
        }
    });
    out
}

#[test]
fn any_three_labels_may_be_lost() {
    let Some(case) = ImportCase::new("clonedblk") else { return };
    let disk = &case.disks[0];
    let whole: Vec<Vec<u8>> =
        (0..LABELS).map(|l| disk.read(disk.label_offset(l), LABEL_SIZE as usize)).collect();
    // Every set of lost labels but the full one.
    for lost in 0u32..15 {
        for (label, bytes) in whole.iter().enumerate() {
            disk.write(disk.label_offset(label), bytes);
            if lost & 1 << label != 0 {
                disk.destroy_label(label);
            }
        }
        let pool = case.import().unwrap_or_else(|e| panic!("labels {lost:04b} lost: {e}"));
        assert_eq!(states(&pool), [VdevState::Online]);
    }
    case.check();
    (0..LABELS).for_each(|l| disk.destroy_label(l));
    assert!(discover(&engine(), case.dir()).is_empty());
}

#[test]
fn labels_with_damaged_checksums_count_less_than_whole_ones() {
    let Some(case) = ImportCase::new("clonedblk") else { return };
    let disk = &case.disks[0];
    // The name's bytes in label 0 change; its checksum does not.
    let at = disk.label_offset(0) + 0x4000;
    let bytes = disk.read(at, 4096);
    let name = bytes.windows(9).position(|w| w == b"clonedblk").unwrap();
    disk.write(at + name as u64, b"forgedxyz");
    assert_eq!(case.found().name, "clonedblk");
    case.check();
}

#[test]
fn stale_labels_do_not_hide_newer_ones() {
    let Some(case) = ImportCase::new("twomirrors") else { return };
    for labels in [[0, 1], [2, 3], [0, 2], [1, 3]] {
        let Some(case) = ImportCase::new("twomirrors") else { return };
        let disk = &case.disks[0];
        // As after a crash between the two halves of a label update, long ago.
        for label in labels {
            let at = disk.label_offset(label) + 0x4000;
            let mut config = disk.label(label).unwrap();
            let old = config.u64("txg").unwrap() - 10;
            config.add_u64("txg", old);
            let mut region = vec![0; 112 << 10];
            cenote::inspect::ondisk::label::encode_vdev_phys(&config, &mut region, at).unwrap();
            disk.write(at, &region);
        }
        case.check();
    }
    case.check();
}

/// Story: a user copied a disk before the last writes and left the copy in the same
/// directory. Both have the same guid and the same label. The copy must not be taken for
/// the disk, whatever their names and the order of the scan.
#[test]
fn an_older_copy_of_a_disk_is_not_taken_for_it() {
    for name in ["0-copy.img", "z-copy.img"] {
        let Some(case) = ImportCase::new("clonedblk") else { return };
        let copy = Disk::new(case.path(name));
        copy_file(&case.disks[0].path, &copy.path);
        let newest = copy.uberblocks().iter().map(|u| u.2.txg).max().unwrap();
        assert!(copy.damage_uberblocks(|ub| ub.txg.0 + 3 > newest.0) > 0);
        copy.zero_data();
        case.check();
        // Even if its own label has this path.
        copy.edit_labels(|l| {
            let path = copy.path.to_str().unwrap().to_owned();
            let mut tree = l.list("vdev_tree").unwrap().clone();
            tree.add_str("path", &path);
            l.add_list("vdev_tree", tree);
        });
        case.check();
    }
}

#[test]
fn a_renamed_disk_a_link_and_a_disk_named_alone_are_found() {
    let Some(case) = ImportCase::new("graidz1w3") else { return };
    std::fs::rename(&case.disks[0].path, case.path("renamed by hand.bin")).unwrap();
    case.check();
    // The same disks with other names, in two directories.
    let elsewhere = Scratch::new("elsewhere");
    let link = elsewhere.path().join("link");
    std::os::unix::fs::symlink(&case.disks[1].path, &link).unwrap();
    let paths = vec![link, case.path("renamed by hand.bin"), case.disks[2].path.clone()];
    let engine = engine();
    let search = Search { paths, ..Search::default() };
    let found = engine.discover(&search).unwrap();
    assert_eq!(found.pools.len(), 1);
    case.verify(&engine.import(&found.pools[0], &readonly()).unwrap());
}

#[test]
fn a_disk_of_another_pool_does_no_harm() {
    let Some(case) = ImportCase::new("twomirrors") else { return };
    let Some(other) = ImportCase::new("graidz1w3") else { return };
    copy_file(&other.disks[0].path, &case.path("stranger.img"));
    let engine = engine();
    let found = discover(&engine, case.dir());
    let names: Vec<_> = found.iter().map(|p| (p.name.as_str(), p.health)).collect();
    assert_eq!(names, [("graidz1w3", VdevState::Unavail), ("twomirrors", VdevState::Online)]);
    assert_eq!(found[0].reason, Some(ImportReason::MissingDevicesNoReplicas));
    case.verify(&engine.import(&found[1], &readonly()).unwrap());
    assert_eq!(
        engine.import(&found[0], &readonly()).err().unwrap().kind(),
        ErrorKind::DevicesMissing
    );
}

/// Its own name, but another pool's label: such a disk is not used.
#[test]
fn a_disk_that_was_given_to_another_pool_is_not_used() {
    let Some(case) = ImportCase::new("graidz1w3") else { return };
    let Some(other) = ImportCase::new("clonedblk") else { return };
    let path = &case.disks[1].path;
    std::fs::remove_file(path).unwrap();
    copy_file(&other.disks[0].path, path);
    let engine = engine();
    let found = discover(&engine, case.dir());
    let own = found.iter().find(|p| p.name == "graidz1w3").unwrap();
    assert_eq!(own.health, VdevState::Degraded);
    case.verify(&engine.import(own, &readonly()).unwrap());
}

#[test]
fn two_pools_of_one_name_are_both_listed() {
    let Some(case) = ImportCase::new("clonedblk") else { return };
    let Some(other) = ImportCase::new("dedup") else { return };
    let twin = Disk::new(case.path("twin.img"));
    copy_file(&other.disks[0].path, &twin.path);
    twin.edit_labels(|l| {
        l.add_str("name", "clonedblk");
    });
    let engine = engine();
    let found = discover(&engine, case.dir());
    assert_eq!(found.len(), 2);
    assert!(found.iter().all(|p| p.name == "clonedblk"));
    assert_ne!(found[0].guid, found[1].guid);
    let first = engine.import(&found[0], &readonly()).unwrap();
    let second = engine.import(&found[1], &readonly()).err().unwrap();
    assert_eq!(second.kind(), ErrorKind::Exists);
    let renamed = options(|o| o.new_name = Some("twin".to_owned()));
    let second = engine.import(&found[1], &renamed).unwrap();
    assert_eq!((first.name(), second.name()), ("clonedblk", "twin"));
    assert!(second.dataset("twin").is_ok() && second.dataset("clonedblk").is_err());
}

#[test]
fn a_missing_mirror_half_degrades() {
    let Some(case) = ImportCase::new("kitchen") else { return };
    let half = case.disks.iter().position(|d| {
        d.label(0).unwrap().list("vdev_tree").is_some_and(|t| t.str("type") == Some("mirror"))
    });
    std::fs::remove_file(&case.disks[half.unwrap()].path).unwrap();
    let found = case.found();
    assert_eq!(
        (found.health, found.reason),
        (VdevState::Degraded, Some(ImportReason::MissingDevices))
    );
    let pool = case.check();
    assert_eq!(states(&pool).iter().filter(|&&s| s == VdevState::Unavail).count(), 1);
}

fn tops(case: &ImportCase, is: impl Fn(&NvList) -> bool) -> Vec<&Disk> {
    let matches = |d: &&Disk| d.label(0).is_some_and(|l| is(&l));
    case.disks.iter().filter(matches).collect()
}

#[test]
fn a_missing_top_level_vdev_is_refused_and_shown() {
    let Some(case) = ImportCase::new("kitchen") else { return };
    let mirror = |l: &NvList| {
        let tree = l.list("vdev_tree");
        tree.is_some_and(|t| t.str("type") == Some("mirror") && t.u64("id") == Some(0))
    };
    let gone = tops(&case, mirror);
    assert!(!gone.is_empty());
    for disk in &gone {
        std::fs::remove_file(&disk.path).unwrap();
    }
    let found = case.found();
    assert_eq!(found.health, VdevState::Unavail);
    assert_eq!(found.reason, Some(ImportReason::MissingDevicesNoReplicas));
    let states: Vec<_> = found.vdevs.children.iter().map(|v| (v.id, v.state())).collect();
    assert!(states.contains(&(0, VdevState::Unavail)), "{states:?}");
    assert!(states.iter().any(|s| s.1 == VdevState::Online), "{states:?}");
    assert_eq!(case.refusal().kind(), ErrorKind::DevicesMissing);
    assert_eq!(
        import_from(&engine(), case.dir(), &options(|o| o.missing_log = true))
            .err()
            .unwrap()
            .kind(),
        ErrorKind::DevicesMissing
    );
}

#[test]
fn a_missing_log_needs_permission() {
    let Some(case) = ImportCase::new("kitchen") else { return };
    let is_log = |l: &NvList| {
        l.u64("is_log") == Some(1)
            || l.list("vdev_tree").is_some_and(|t| t.u64("is_log") == Some(1))
    };
    let logs = tops(&case, is_log);
    assert!(!logs.is_empty());
    for disk in &logs {
        std::fs::remove_file(&disk.path).unwrap();
    }
    let refusal = case.refusal();
    assert_eq!(refusal.kind(), ErrorKind::DevicesMissing);
    assert!(refusal.to_string().contains("log"), "{refusal}");
    let pool = import_from(&engine(), case.dir(), &options(|o| o.missing_log = true)).unwrap();
    case.verify(&pool);
}

#[test]
fn destroyed_pools_are_found_only_when_asked_for() {
    let Some(case) = ImportCase::new("clonedblk") else { return };
    case.disks[0].edit_labels(|l| {
        l.add_u64("state", PoolState::Destroyed.code());
    });
    let engine = engine();
    assert!(discover(&engine, case.dir()).is_empty());
    let search = Search { paths: vec![case.dir().to_owned()], destroyed: true };
    let found = engine.discover(&search).unwrap();
    assert_eq!(found.pools.len(), 1);
    assert_eq!(found.pools[0].state, PoolState::Destroyed);
    case.verify(&engine.import(&found.pools[0], &readonly()).unwrap());
    // Conversely, -D lists only destroyed pools.
    case.disks[0].edit_labels(|l| {
        l.add_u64("state", PoolState::Exported.code());
    });
    assert!(engine.discover(&search).unwrap().pools.is_empty());
}

#[test]
fn unknown_features_in_the_label_are_refused_by_name() {
    let Some(case) = ImportCase::new("clonedblk") else { return };
    case.disks[0].edit_labels(|l| {
        let mut features = l.list("features_for_read").unwrap().clone();
        features.add_flag("com.example:unknown").add_flag("org.example:another");
        l.add_list("features_for_read", features);
    });
    let refusal = case.refusal();
    assert_eq!(refusal.kind(), ErrorKind::Unsupported);
    let text = refusal.to_string();
    assert!(text.contains("com.example:unknown") && text.contains("org.example:another"), "{text}");
    let found = case.found();
    assert_eq!(found.reason, Some(ImportReason::UnsupportedFeaturesRead));
    assert_eq!(found.unsupported.len(), 2);
}

#[test]
fn a_pool_in_use_elsewhere_needs_force() {
    let Some(case) = ImportCase::new("clonedblk") else { return };
    let gentle = options(|o| o.force = false);
    // Exported, it may be imported anywhere.
    assert_eq!(case.found().state, PoolState::Exported);
    import_from(&engine(), case.dir(), &gentle).unwrap();
    case.disks[0].edit_labels(|l| {
        l.add_u64("state", PoolState::Active.code());
        l.add_u64("hostid", 0xdead_beef);
        l.add_str("hostname", "elsewhere");
    });
    let found = case.found();
    assert_eq!((found.state, found.hostid), (PoolState::Active, Some(0xdead_beef)));
    assert_eq!(found.hostname.as_deref(), Some("elsewhere"));
    assert_eq!(found.reason, Some(ImportReason::HostidMismatch));
    let refusal = import_from(&engine(), case.dir(), &gentle).err().unwrap();
    assert_eq!(refusal.kind(), ErrorKind::Busy);
    case.check();
}

#[test]
fn what_cannot_be_kept_up_makes_a_pool_read_only() {
    let Some(case) = ImportCase::new("snaps") else { return };
    leave_old_scrub(case.dir());
    let pool = import_from(&engine(), case.dir(), &options(|o| o.readonly = false)).unwrap();
    assert!(pool.is_readonly());
    let why = pool.read_only_because().unwrap();
    assert!(why.contains("scrub_func"), "{why}");
}

#[test]
fn damaged_newest_uberblocks_give_way_to_older_ones() {
    let Some(case) = ImportCase::new("clonedblk") else { return };
    let disk = &case.disks[0];
    let mut txgs: Vec<Txg> = disk.uberblocks().iter().map(|u| u.2.txg).collect();
    txgs.sort();
    txgs.dedup();
    assert!(txgs.len() > 3, "{txgs:?}");
    for kept in [txgs.len() - 1, txgs.len() - 2] {
        let newest = txgs[kept];
        disk.damage_uberblocks(|ub| ub.txg > newest);
        // One copy in one label is enough.
        let all = disk.uberblocks();
        let best: Vec<_> = all.iter().filter(|u| u.2.txg == newest).collect();
        assert!(best.len() > 1);
        let pool = case.import().unwrap();
        assert_eq!(pool.spa().uberblock().txg, newest);
    }
    assert!(disk.damage_uberblocks(|_| true) > 0);
    assert_eq!(case.refusal().kind(), ErrorKind::DevicesMissing);
}

/// Damages all copies of the MOS of the newest `groups` txgs; returns the next one.
fn damage_newest(disk: &Disk, groups: usize) -> (Txg, Txg) {
    let mut all: Vec<_> = disk.uberblocks().into_iter().map(|u| u.2).collect();
    all.sort_by(|a, b| b.compare(a));
    all.dedup_by_key(|ub| ub.txg);
    for ub in &all[..groups] {
        let root = ub.root_bp.as_block().unwrap();
        for dva in root.dvas() {
            let noise = vec![0x5a; root.psize.0 as usize];
            disk.write(dva.offset + testkit::disk::DATA_START, &noise);
        }
    }
    (all[0].txg, all[groups].txg)
}

#[test]
fn a_damaged_newest_txg_is_left_behind_only_on_request() {
    let rewind = options(|o| o.rewind = true);
    let extreme = options(|o| (o.rewind, o.extreme) = (true, true));
    // -F tolerates one damaged txg; it does not reach txgs further back.
    for (groups, far) in [(1, false), (4, true)] {
        let Some(case) = ImportCase::new("snaps") else { return };
        let (newest, next) = damage_newest(&case.disks[0], groups);
        let refusal = case.refusal();
        assert!(matches!(refusal.kind(), ErrorKind::Checksum | ErrorKind::Corrupt), "{refusal}");
        let gentle = import_from(&engine(), case.dir(), &rewind);
        match gentle {
            Ok(pool) => {
                assert!(!far, "-F went from {newest} to {next}");
                assert_eq!(pool.spa().uberblock().txg, next);
                case.verify(&pool);
            }
            Err(e) => assert!(far, "{e}"),
        }
        let pool = import_from(&engine(), case.dir(), &extreme).unwrap();
        assert_eq!(pool.spa().uberblock().txg, next);
    }
}

#[test]
fn an_older_txg_opens_as_it_was() {
    let Some(case) = ImportCase::new("snaps") else { return };
    let disk = &case.disks[0];
    let mut txgs: Vec<Txg> = disk.uberblocks().iter().map(|u| u.2.txg).collect();
    txgs.sort();
    txgs.dedup();
    let mut opened = 0;
    for &txg in txgs.iter().rev().take(4) {
        let wanted = options(|o| o.txg = Some(txg));
        let pool = import_from(&engine(), case.dir(), &wanted).unwrap();
        assert_eq!(pool.spa().uberblock().txg, txg);
        assert!(pool.root().is_ok());
        opened += 1;
    }
    assert!(opened > 2, "{txgs:?}");
    let before = options(|o| o.txg = Some(Txg(1)));
    let refusal = import_from(&engine(), case.dir(), &before).err().unwrap();
    assert_eq!(refusal.kind(), ErrorKind::DevicesMissing);
    assert!(refusal.to_string().contains("group 1"), "{refusal}");
}

/// The specification has OpenZFS's output about this pool at txg 12067.
#[test]
fn an_older_txg_has_the_numbers_that_it_had() {
    let Some(case) = ImportCase::new("frag") else { return };
    let wanted = options(|o| o.txg = Some(Txg(12067)));
    let pool = import_from(&engine(), case.dir(), &wanted).unwrap();
    assert_eq!(pool.spa().uberblock().txg, Txg(12067));
    let text = golden("frag").unwrap().text("zpoollist.txt").unwrap();
    let mut columns = text.lines().nth(1).unwrap().split_whitespace().skip(1);
    let space = pool.spa().load_space().unwrap();
    let mib = |bytes: u64| format!("{}M", (bytes + (1 << 19)) >> 20);
    assert_eq!(columns.next(), Some(&*mib(space.size())));
    assert_eq!(columns.next(), Some(&*mib(space.allocated())));
    let fragmentation = format!("{}%", space.fragmentation().unwrap());
    assert_eq!(columns.nth(3), Some(&*fragmentation));
}

#[test]
fn a_grown_file_keeps_its_first_labels_and_a_shrunken_one_is_too_small() {
    let Some(case) = ImportCase::new("graidz1w3") else { return };
    let path = &case.disks[0].path;
    let size = case.disks[0].size();
    let resize =
        |len| std::fs::File::options().write(true).open(path).unwrap().set_len(len).unwrap();
    resize(size + (64 << 20));
    let pool = case.check();
    assert_eq!(states(&pool), [VdevState::Online; 3]);
    drop(pool);
    // A small space that no metaslab uses may be missing, not more.
    for (len, state) in [
        (size - (256 << 10), VdevState::Online),
        (size - (40 << 20), VdevState::Unavail),
        (1 << 20, VdevState::Unavail),
    ] {
        resize(len);
        let pool = case.check();
        assert_eq!(states(&pool), [state, VdevState::Online, VdevState::Online], "{len} bytes");
        let root = pool.spa().vdev_status();
        if state == VdevState::Unavail && len > (64 << 20) {
            let detail = root.children[0].children[0].detail.clone().unwrap();
            assert!(detail.contains("bytes"), "{detail}");
        }
    }
}

#[test]
fn odd_things_in_the_directory_are_passed_by() {
    let Some(case) = ImportCase::new("clonedblk") else { return };
    std::os::unix::fs::symlink(case.dir(), case.path("loop")).unwrap();
    std::os::unix::fs::symlink("itself", case.path("itself")).unwrap();
    std::os::unix::fs::symlink("nowhere", case.path("dangling")).unwrap();
    std::fs::create_dir_all(case.path("below/further")).unwrap();
    std::fs::write(case.path("empty"), b"").unwrap();
    std::fs::write(case.path("tiny"), b"zfs").unwrap();
    std::fs::write(case.path("no label at all"), vec![0x11; 300_000]).unwrap();
    let big = std::fs::File::create(case.path("big and empty")).unwrap();
    big.set_len(1 << 40).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(case.path("socket")).unwrap();
    let fifo = case.path("fifo");
    // Opening a FIFO waits for its other end forever.
    let made = std::process::Command::new("mkfifo").arg(&fifo).status().unwrap();
    assert!(made.success());
    case.check();
    // If the user names them, each gets a specific message.
    let names = ["empty", "tiny", "socket", "fifo", "itself", "dangling", "missing"];
    for name in names {
        let search = Search { paths: vec![case.path(name)], ..Search::default() };
        let found = engine().discover(&search).unwrap();
        assert!(found.pools.is_empty());
        assert_eq!(found.problems.len(), 1, "{name}: {:?}", found.problems);
        let (path, error) = &found.problems[0];
        assert_eq!(path, &case.path(name));
        let wanted: &[ErrorKind] = match name {
            "missing" | "dangling" => &[ErrorKind::NotFound],
            "itself" => &[ErrorKind::Io, ErrorKind::Invalid],
            _ => &[ErrorKind::Invalid],
        };
        assert!(wanted.contains(&error.kind()), "{name}: {:?} {error}", error.kind());
    }
}

#[test]
fn no_directory_no_permission() {
    let scratch = Scratch::new("nothing");
    let engine = engine();
    let look = |path: PathBuf| {
        let search = Search { paths: vec![path], ..Search::default() };
        engine.discover(&search).unwrap()
    };
    let missing = look(scratch.path().join("no/such/directory"));
    assert!(missing.pools.is_empty());
    assert_eq!(missing.problems[0].1.kind(), ErrorKind::NotFound);
    assert!(look(scratch.path().to_owned()).pools.is_empty());
    let closed = scratch.path().join("closed");
    std::fs::create_dir(&closed).unwrap();
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o000)).unwrap();
    if std::fs::read_dir(&closed).is_ok() {
        testkit::skip(
            testkit::Need::User,
            "a directory without permission: root may read everything",
        );
        return;
    }
    assert_eq!(look(closed).problems[0].1.kind(), ErrorKind::Permission);
}

#[test]
fn a_pool_is_imported_once() {
    let Some(case) = ImportCase::new("clonedblk") else { return };
    let engine: Arc<Engine> = engine();
    let pool = import_from(&engine, case.dir(), &readonly()).unwrap();
    let again = import_from(&engine, case.dir(), &readonly()).err().unwrap();
    assert_eq!(again.kind(), ErrorKind::Exists);
    drop(pool);
    assert!(import_from(&engine, case.dir(), &readonly()).is_ok());
}

/// Story: an import right after a search found disks locked, because the search still inspected
/// the pool. It took them for missing, and opened the pool without them, degraded, or failed with
/// "too few devices of the vdev could be read".
#[test]
fn a_locked_disk_is_not_missing() {
    let Some(case) = ImportCase::new("graidz1w3") else { return };
    let write = options(|o| o.readonly = false);
    let import = || import_from(&engine(), case.dir(), &write);
    let lock = |disk: &Disk| {
        let file = std::fs::File::open(&disk.path).unwrap();
        file.lock_shared().unwrap();
        file
    };
    for held in [&case.disks[1..2], &case.disks[..2]] {
        let locked: Vec<std::fs::File> = held.iter().map(lock).collect();
        let refusal = import().err().unwrap();
        assert_eq!(refusal.kind(), ErrorKind::Busy, "{refusal}");
        let path = held[held.len() - 1].path.display().to_string();
        assert!(refusal.message().contains(&path), "{refusal}");
        // Who only reads may do so beside other readers.
        case.check();
        drop(locked);
    }
    let pool = import().unwrap();
    assert_eq!(states(&pool), [VdevState::Online; 3]);
    pool.export().unwrap();
    drop(pool);
    // One that someone else uses for another purpose is missing.
    let lost = &case.disks[1];
    (0..LABELS).for_each(|label| lost.destroy_label(label));
    let _locked = lock(lost);
    let pool = import().unwrap();
    assert_eq!(states(&pool), [VdevState::Online, VdevState::Unavail, VdevState::Online]);
    pool.export().unwrap();
}
