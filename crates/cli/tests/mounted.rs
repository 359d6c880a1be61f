//! Golden pools through the program as a whole: imported by the daemon, mounted
//! by the kernel, every file compared with what OpenZFS said was there; and the
//! same through `cenote cp`, without a mount.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, clippy::unwrap_used, clippy::panic)]

mod common;

use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use common::{Sandbox, can_mount, is_root};
use sha2::{Digest, Sha256};
use testkit::tree::{Compare, verify_tree};
use testkit::{Golden, ManifestEntry, golden_pools};

/// Pools imported at the same time: each has a daemon.
const AT_ONCE: usize = 2;

#[test]
fn golden_pools_through_the_mount() {
    if !can_mount("golden pools through the mount") {
        return;
    }
    let mut pools = golden_pools();
    assert!(!pools.is_empty());
    // Read-only, an intent log stays unreplayed: the manifest is of what it holds.
    pools.retain(|p| p.name != "dirtyzil");
    println!("note: not dirtyzil through the mount: its manifest needs the intent log replayed");
    let queue = Mutex::new(pools);
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(pool) = { queue.lock().unwrap().pop() } {
                    mounted(&pool);
                }
            });
        }
    });
}

/// Where a dataset is mounted.
fn place(mounts: &str, dataset: &str) -> Option<PathBuf> {
    let line = mounts.lines().find(|l| l.split_whitespace().next() == Some(dataset))?;
    line.split_whitespace().nth(1).map(PathBuf::from)
}

fn mounted(pool: &Golden) {
    let name = pool.name.as_str();
    let s = Sandbox::new(&format!("mounted-{name}"));
    pool.unpack(&s.dir("disks"));
    let (disks, root) = (s.text("disks"), s.text("mnt"));
    let import = ["zpool", "import", "-d", &disks, "-o", "readonly=on", "-f", "-R", &root, name];
    let said = s.say(&import);
    let locked = locked(&s, name);
    assert_eq!((said.code, said.err.as_str()), (0, ""), "{name}");

    let mounts = s.ok(&["zfs", "mount"]);
    let compare = Compare { times: true, identity: true };
    let (mut entries, mut differences) = (0, Vec::new());
    for (dataset, manifest) in pool.manifests() {
        if locked.contains(&dataset) {
            assert_eq!(place(&mounts, &dataset), None, "{dataset} is locked");
            let told = s.fail(1, &["zfs", "mount", &dataset]);
            assert_eq!(told, format!("cannot mount '{dataset}': encryption key not loaded\n"));
            continue;
        }
        let (fs, snapshot) = match dataset.split_once('@') {
            Some((fs, snapshot)) => (fs, Some(snapshot)),
            None => (dataset.as_str(), None),
        };
        let Some(mut at) = place(&mounts, fs) else { panic!("{fs} is not mounted:\n{mounts}") };
        if let Some(snapshot) = snapshot {
            at.push(".zfs/snapshot");
            at.push(snapshot);
        }
        entries += manifest.len();
        let found = verify_tree(&at, &manifest, compare);
        differences.extend(found.into_iter().map(|d| short(&format!("{dataset}: {d}"))));
    }
    let volumes = volumes(&s, pool, &mut differences);
    println!("MOUNTED {name}: {} entries, {} differences", entries + volumes, differences.len());
    assert_eq!(differences, Vec::<String>::new(), "{name}");

    s.ok(&["zpool", "export", name]);
    let inside = common::mounts_below(&s.path("mnt"));
    assert_eq!(inside, Vec::<String>::new(), "{name}: mounts after the export");
    assert_eq!(s.ok(&["zpool", "list"]), "no pools available\n");
    s.stop();
}

/// A difference may hold a long attribute in hexadecimal.
fn short(line: &str) -> String {
    line.chars().take(300).collect()
}

/// File systems whose key is not loaded; they are listed all the same.
fn locked(s: &Sandbox, pool: &str) -> Vec<String> {
    let args = ["zfs", "get", "-rHp", "-t", "fs", "-o", "name,value", "keystatus", pool];
    let text = s.ok(&args);
    assert!(!text.is_empty());
    let unavailable = |l: &str| l.strip_suffix("\tunavailable").map(str::to_owned);
    text.lines().filter_map(unavailable).collect()
}

/// Volumes by the digest of their files; how many there are.
fn volumes(s: &Sandbox, pool: &Golden, differences: &mut Vec<String>) -> usize {
    let list = s.ok(&["zfs", "list", "-rHpo", "name,volsize", "-t", "volume", &pool.name]);
    let digests = pool.text("sha256").unwrap_or_default();
    let (mut seen, mut locked) = (0, Vec::new());
    for line in list.lines() {
        let (volume, size) = line.split_once('\t').unwrap();
        let file = s.path("run/volumes").join(volume);
        let key = s.ok(&["zfs", "get", "-Hpo", "value", "keystatus", volume]);
        if key == "unavailable\n" {
            assert!(!file.exists(), "{volume} is locked");
            locked.push(format!("/dev/zvol/{volume}"));
            continue;
        }
        let meta = std::fs::metadata(&file).unwrap();
        assert_eq!(meta.size().to_string(), size, "{volume}");
        let of = format!("/dev/zvol/{volume}");
        let Some(wanted) = digests.lines().find(|l| l.ends_with(&of)) else { continue };
        seen += 1;
        if !wanted.starts_with(&digest(&file)) {
            differences.push(format!("{volume}: other content"));
        }
    }
    let wanted = digests.lines().filter(|l| !locked.iter().any(|v| l.ends_with(v.as_str())));
    assert_eq!(seen, wanted.count(), "{}: volumes by digest", pool.name);
    seen
}

fn digest(file: &Path) -> String {
    let mut hash = Sha256::new();
    let mut from = File::open(file).unwrap();
    let mut buf = vec![0u8; 1 << 20];
    loop {
        match from.read(&mut buf).unwrap() {
            0 => return hash.finalize().iter().map(|b| format!("{b:02x}")).collect(),
            n => hash.update(&buf[..n]),
        }
    }
}

/// A directory that is gone with the test.
struct Room(PathBuf);

impl Drop for Room {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir_all(&self.0);
    }
}

/// Where copies go: in memory if that holds large attributes, as most file
/// systems do not; and whether it does.
fn roomy(s: &Sandbox) -> (Room, bool) {
    let room = Room(PathBuf::from(format!("/dev/shm/cenote-copied-{}", std::process::id())));
    let probe = |at: &Path| {
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(at, "user.probe", &[b'x'; 20_000], flags).is_ok()
    };
    if std::fs::create_dir(&room.0).is_ok() && probe(&room.0) {
        return (room, true);
    }
    let room = Room(s.dir("target"));
    let holds = probe(&room.0);
    (room, holds)
}

#[test]
fn golden_pools_by_copy() {
    if !is_root("golden pools by copy") {
        return;
    }
    for pool in golden_pools() {
        // Locked, or with a log that a read-only import does not replay.
        if matches!(pool.name.as_str(), "crypt" | "crypt2" | "cryptzil" | "dirtyzil") {
            continue;
        }
        let s = Sandbox::new(&format!("copied-{}", pool.name));
        pool.unpack(&s.dir("disks"));
        for (dataset, manifest) in pool.manifests() {
            copied(&s, &dataset, &manifest);
        }
    }
}

fn copied(s: &Sandbox, dataset: &str, manifest: &[ManifestEntry]) {
    let (target, roomy) = roomy(s);
    let to = target.0.join("out");
    let disks = s.text("disks");
    let said = s.say(&["cp", "-r", &format!("{dataset}:/"), to.to_str().unwrap(), "-d", &disks]);
    let compare = Compare { times: true, identity: false };
    let mut differences: Vec<String> =
        verify_tree(&to, manifest, compare).iter().map(|d| short(d)).collect();
    if roomy {
        assert_eq!((said.code, said.err.as_str()), (0, ""), "{dataset}");
    } else {
        // What the target cannot hold is told, file by file.
        let what = format!("{dataset} by copy: large attributes, the target holds none");
        testkit::skip(testkit::Need::Xattrs, &what);
        let excused = |d: &String| {
            let (path, what) = d.split_once(": ").unwrap();
            let told = format!("{path}: cannot set the extended attribute");
            what.starts_with("xattrs is") && said.err.contains(&told)
        };
        differences.retain(|d| !excused(d));
    }
    println!("COPIED {dataset}: {} entries, {} differences", manifest.len(), differences.len());
    assert_eq!(differences, Vec::<String>::new(), "{dataset}");
    if ["kitchen", "graidz1w3", "snaps/promoted@one"].contains(&dataset) {
        sparse(&to);
        links(&to);
    }
    // Nothing was left behind by a command that needs no daemon.
    assert!(!s.path("run").exists());
}

fn look(root: &Path, name: &str) -> Metadata {
    std::fs::symlink_metadata(root.join(name)).unwrap()
}

/// Holes stay holes.
fn sparse(root: &Path) {
    for (name, stored) in [("sparse/a", 1 << 20), ("sparse/b", 16 << 20), ("sparse/c", 0)] {
        let meta = look(root, name);
        assert!(meta.blocks() * 512 <= stored, "{name} takes {} blocks", meta.blocks());
        assert!(meta.size() > 20_000_000);
    }
}

/// Two names of one file stay two names of one file.
fn links(root: &Path) {
    assert_eq!(look(root, "links/target").ino(), look(root, "links/hard").ino());
}

/// What `cp` copies by itself shares blocks, and the properties of the pool tell how much.
#[test]
fn copies_share_blocks() {
    if !can_mount("copies share blocks") {
        return;
    }
    let s = Sandbox::new("mounted-copies");
    let disk = s.dir("disks").join("disk");
    File::create(&disk).unwrap().set_len(128 << 20).unwrap();
    let (disk, mountpoint) = (disk.to_str().unwrap(), format!("mountpoint={}", s.text("mnt")));
    let options = ["-O", &mountpoint, "-O", "compression=off"];
    s.ok(&[&["zpool", "create"], &options[..], &["tank", disk]].concat());
    let get = |what: &str| s.ok(&["zpool", "get", "-Hpo", "value", what, "tank"]);
    let tally = || ["bcloneused", "bclonesaved", "bcloneratio"].map(|p| get(p).trim().to_owned());
    assert_eq!(get("feature@block_cloning"), "enabled\n");
    assert_eq!(tally(), ["0", "0", "1.00"]);
    let at = |name: &str| s.path("mnt").join(name);
    let content: Vec<u8> =
        (0..1u32 << 20).map(|n| (n.wrapping_mul(0x9e37_79b9) >> 13) as u8).collect();
    std::fs::write(at("file"), &content).unwrap();
    s.ok(&["zpool", "sync", "tank"]);
    let cp = |how: &str, to: &str| {
        std::process::Command::new("cp").arg(how).args([at("file"), at(to)]).output().unwrap()
    };
    for to in ["one", "two"] {
        assert!(cp("--reflink=auto", to).status.success());
        assert!(std::fs::read(at(to)).unwrap() == content);
    }
    // The kernel has no such call for file systems in user space.
    assert!(!cp("--reflink=always", "three").status.success());
    s.ok(&["zpool", "sync", "tank"]);
    assert_eq!(get("feature@block_cloning"), "active\n");
    assert_eq!(tally(), ["1048576", "2097152", "3.00"]);
    assert_eq!(s.ok(&["zpool", "get", "-Ho", "value", "bclonesaved", "tank"]), "2M\n");
    let list = ["zpool", "list", "-o", "name,bcloneused,bclonesaved,bcloneratio"];
    let text = s.ok(&list);
    let words: Vec<&str> = text.split_whitespace().collect();
    let wanted =
        ["NAME", "BCLONE_USED", "BCLONE_SAVED", "BCLONE_RATIO", "tank", "1M", "2M", "3.00x"];
    assert_eq!(words, wanted);
    let clone = |from: &str, to: &str| {
        let (from, to) = (at(from), at(to));
        s.say(&["clone", from.to_str().unwrap(), to.to_str().unwrap()])
    };
    let said = clone("file", "four");
    assert_eq!((said.code, said.out + &said.err), (0, String::new()));
    assert!(std::fs::read(at("four")).unwrap() == content);
    s.ok(&["zpool", "sync", "tank"]);
    assert_eq!(tally(), ["1048576", "3145728", "4.00"]);
    let text = |name: &str| at(name).to_str().unwrap().to_owned();
    let why = |from: &str, to: &str, why: &str| {
        let text = format!("cannot clone '{from}' to '{to}': {why}\n");
        let said = s.say(&["clone", from, to]);
        assert_eq!((said.code, said.err), (1, text));
    };
    why(&text("file"), &text("four"), "File exists");
    why(&text("none"), &text("five"), "No such file or directory");
    let outside = s.text("disks/outside");
    let apart = "blocks are shared within one file system that cenote has mounted";
    why(&text("file"), &outside, apart);
    assert!(!s.path("disks/outside").exists());
    std::fs::write(s.path("disks/here"), b"here").unwrap();
    why(&s.text("disks/here"), &s.text("disks/there"), apart);
    why(&text("file"), &text("none/five"), "No such file or directory");
    std::fs::create_dir(at("dir")).unwrap();
    why(&text("dir"), &text("five"), "not a regular file");
    // Into a directory, under its name.
    assert_eq!(clone("file", "dir").code, 0);
    assert!(std::fs::read(at("dir/file")).unwrap() == content);
    std::fs::remove_dir_all(at("dir")).unwrap();
    for args in [&["clone"][..], &["clone", "a"], &["clone", "a", "b", "c"], &["clone", "-x", "a"]]
    {
        let said = s.say(args);
        assert_eq!((said.code, said.out.as_str()), (2, ""), "{args:?}: {}", said.err);
        assert!(said.err.contains("usage"), "{}", said.err);
    }
    // From a snapshot, whose file is gone.
    s.ok(&["zfs", "snapshot", "tank@s"]);
    let saved = tally()[1].parse::<u64>().unwrap();
    for name in ["four", "file"] {
        std::fs::remove_file(at(name)).unwrap();
    }
    assert_eq!(clone(".zfs/snapshot/s/file", "back").code, 0);
    assert!(std::fs::read(at("back")).unwrap() == content);
    s.ok(&["zpool", "sync", "tank"]);
    assert_eq!(tally()[1], (saved + (1 << 20)).to_string());
    std::fs::remove_file(at("back")).unwrap();
    s.ok(&["zfs", "destroy", "tank@s"]);
    s.ok(&["zpool", "sync", "tank"]);
    s.ok(&["zpool", "sync", "tank"]);
    s.ok(&["zpool", "export", "tank"]);
    s.ok(&["zpool", "import", "-d", disk, "tank"]);
    assert_eq!(tally(), ["1048576", "1048576", "2.00"]);
    assert!(std::fs::read(at("one")).unwrap() == content);
    assert!(std::fs::read(at("two")).unwrap() == content);
    std::fs::remove_file(at("one")).unwrap();
    s.ok(&["zpool", "sync", "tank"]);
    assert_eq!(tally(), ["0", "0", "1.00"]);
    assert_eq!(get("feature@block_cloning"), "enabled\n");
    s.ok(&["zpool", "export", "tank"]);
    s.stop();
    common::judge_disks(&s);
}
