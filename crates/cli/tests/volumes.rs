//! Volumes as other programs use them: as files below loop devices, and as network block
//! devices.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, clippy::unwrap_used, clippy::panic)]

mod common;

use std::path::Path;
use std::process::Command;

use common::{Sandbox, can_mount, eventually, is_alive, judge};
use testkit::{Need, Rng, has_program};

/// A pool `tank` in a sparse file; nothing is mounted.
fn with_pool(name: &str) -> Sandbox {
    let s = Sandbox::new(name);
    let disk = s.dir("disks").join("disk");
    std::fs::File::create(&disk).unwrap().set_len(2 << 30).unwrap();
    s.ok(&["zpool", "create", "-m", "none", "tank", disk.to_str().unwrap()]);
    s
}

/// Runs a program; it must succeed. Its output.
fn run(program: &str, args: &[&str]) -> String {
    let out = Command::new(program).args(args).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let errors = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{program} {args:?}: {text}{errors}");
    text
}

fn have(names: &[&str], what: &str) -> bool {
    names.iter().all(|name| has_program(Need::Nbd, name, what))
}

/// A loop device; detached with it.
struct LoopDevice(String);

impl LoopDevice {
    fn of(file: &Path) -> Option<LoopDevice> {
        let out = Command::new("losetup").args(["-f", "--show"]).arg(file).output().ok()?;
        let name = String::from_utf8(out.stdout).ok()?.trim().to_owned();
        (out.status.success() && !name.is_empty()).then_some(LoopDevice(name))
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _gone = Command::new("losetup").args(["-d", &self.0]).output();
    }
}

/// Fills a directory with some files; the same each time.
fn fill(dir: &Path, seed: u64) {
    let mut rng = Rng::new(seed);
    for i in 0..40u64 {
        let len = rng.below(200_000) as usize;
        let data: Vec<u8> = (0..len).map(|j| (j as u64 * i + seed) as u8).collect();
        std::fs::write(dir.join(format!("f{i}")), data).unwrap();
    }
}

/// A program and its arguments.
type ProgramLine = &'static [&'static str];

/// How a file system is made and checked. Its check also repairs, from its own log, what a
/// power cut may leave.
const FILE_SYSTEMS: [(&str, ProgramLine, &[ProgramLine]); 3] = [
    ("ext4", &["mkfs.ext4", "-q", "-F"], &[&["e2fsck", "-fp"], &["e2fsck", "-fn"]]),
    ("xfs", &["mkfs.xfs", "-q", "-f"], &[&["xfs_repair", "-n"]]),
    ("btrfs", &["mkfs.btrfs", "-q", "-f"], &[&["btrfs", "check"]]),
];

#[test]
fn file_systems_on_loop_devices_survive_the_daemon() {
    let what = "file systems on volumes";
    let tools = ["losetup", "mkfs.ext4", "e2fsck", "mkfs.xfs", "xfs_repair", "mkfs.btrfs", "btrfs"];
    if !can_mount(what) || !have(&tools, what) {
        return;
    }
    let s = with_pool("volumes-loop");
    let mnt = s.dir("mnt");
    for (name, make, checks) in FILE_SYSTEMS {
        let volume = format!("tank/{name}");
        s.ok(&["zfs", "create", "-s", "-V", "400M", &volume]);
        let file = s.path("run/volumes").join(&volume);
        let Some(device) = LoopDevice::of(&file) else {
            testkit::skip(Need::Loop, "no loop device takes a volume");
            return;
        };
        run(make[0], &[&make[1..], &[&device.0]].concat());
        let mounted = Command::new("mount").args([&device.0, mnt.to_str().unwrap()]).output();
        let mounts = mounted.unwrap().status.success();
        if mounts {
            fill(&mnt, 1);
            run("sync", &["-f", mnt.to_str().unwrap()]);
            std::fs::remove_file(mnt.join("f3")).unwrap();
            fill(&mnt, 2);
        } else {
            println!("the kernel has no {name}: it is made and checked only");
        }
        // The pool is in use.
        let e = s.fail(1, &["zpool", "export", "tank"]);
        assert_eq!(e, "cannot export 'tank': pool is busy\n");
        // The daemon is killed, as by a power cut.
        let pid = s.pid();
        run("kill", &["-9", &pid.to_string()]);
        eventually("the daemon still runs", || !is_alive(pid));
        if mounts {
            run("umount", &["-l", mnt.to_str().unwrap()]);
        }
        drop(device);
        // The next command starts another daemon, which imports the pool again.
        eventually("the volume does not come back", || {
            s.ok(&["zfs", "list", &volume]);
            std::fs::metadata(&file).is_ok()
        });
        let device = LoopDevice::of(&file).unwrap();
        if mounts && name != "ext4" {
            // Its log is replayed by a mount.
            run("mount", &[&device.0, mnt.to_str().unwrap()]);
            assert!(std::fs::read_dir(&mnt).unwrap().count() >= 40, "{name}: files are missing");
            run("umount", &[mnt.to_str().unwrap()]);
        }
        for check in checks {
            let args = [&check[1..], &[device.0.as_str()]].concat();
            let out = Command::new(check[0]).args(&args).output().unwrap();
            // 1: e2fsck has replayed its journal.
            let fine = matches!(out.status.code(), Some(0 | 1));
            let text = String::from_utf8_lossy(&out.stdout).into_owned();
            assert!(fine, "{check:?}: {text}{}", String::from_utf8_lossy(&out.stderr));
        }
        if mounts {
            run("mount", &[&device.0, mnt.to_str().unwrap()]);
            assert!(mnt.join("f39").exists(), "{name}: synced files are missing");
            run("umount", &[mnt.to_str().unwrap()]);
        }
        drop(device);
    }
    eventually("a loop device stays open", || s.say(&["zpool", "sync", "tank"]).code == 0);
    judge(&s);
}

#[test]
fn volumes_as_files_behave_like_devices() {
    if !can_mount("volumes as files") {
        return;
    }
    use std::os::unix::fs::FileExt;
    let s = with_pool("volumes-files");
    s.ok(&["zfs", "create", "-V", "8M", "tank/a"]);
    let file = s.path("run/volumes/tank/a");
    let a = std::fs::OpenOptions::new().read(true).write(true).truncate(true).open(&file).unwrap();
    assert_eq!(a.metadata().unwrap().len(), 8 << 20, "O_TRUNC changes no device");
    assert_eq!(a.set_len(5).unwrap_err().raw_os_error(), Some(1));
    a.write_all_at(b"hello", 1_000_000).unwrap();
    assert_eq!(a.write_all_at(b"xy", (8 << 20) - 1).unwrap_err().raw_os_error(), Some(28));
    a.sync_all().unwrap();
    // Other volumes come and go; the file stays open. The kernel kept the first listing for ever.
    let listed = || -> Vec<_> {
        let all = std::fs::read_dir(s.path("run/volumes/tank")).unwrap();
        let mut names: Vec<_> = all.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(listed(), ["a"]);
    s.ok(&["zfs", "create", "-V", "8M", "tank/b"]);
    assert_eq!(listed(), ["a", "b"]);
    s.ok(&["zfs", "snapshot", "tank/a@s"]);
    assert!(!s.path("run/volumes/tank/a@s").exists());
    s.ok(&["zfs", "set", "snapdev=visible", "tank/a"]);
    a.write_all_at(b"later", 1_000_000).unwrap();
    // The kernel may know for a moment that the name did not exist.
    eventually("the snapshot does not appear", || s.path("run/volumes/tank/a@s").exists());
    assert_eq!(listed(), ["a", "a@s", "b"]);
    let snapshot = std::fs::File::open(s.path("run/volumes/tank/a@s")).unwrap();
    let mut seen = [0; 5];
    snapshot.read_exact_at(&mut seen, 1_000_000).unwrap();
    assert_eq!(&seen, b"hello");
    let refused = std::fs::OpenOptions::new().write(true).open(s.path("run/volumes/tank/a@s"));
    assert_eq!(refused.unwrap_err().raw_os_error(), Some(30));
    s.ok(&["zfs", "set", "volmode=none", "tank/b"]);
    eventually("the hidden volume stays", || !s.path("run/volumes/tank/b").exists());
    assert_eq!(listed(), ["a", "a@s"]);
    assert!(file.exists());
    s.ok(&["zfs", "destroy", "tank/b"]);
    s.ok(&["zfs", "set", "volsize=16M", "tank/a"]);
    a.write_all_at(b"grown", 15 << 20).unwrap();
    a.read_exact_at(&mut seen, 1_000_000).unwrap();
    assert_eq!(&seen, b"later");
    drop((a, snapshot));
    eventually("the files stay open", || s.say(&["zpool", "export", "tank"]).code == 0);
    s.ok(&["zpool", "import", "-d", &s.text("disks"), "tank"]);
    judge(&s);
}

#[test]
fn real_clients_of_network_block_devices() {
    let what = "NBD";
    if !have(&["nbdinfo", "nbdcopy", "qemu-img", "fio"], what) {
        return;
    }
    let s = with_pool("volumes-nbd");
    s.ok(&["zfs", "create", "-s", "-V", "64M", "-b", "8k", "tank/v"]);
    s.ok(&["zfs", "create", "-s", "-V", "1T", "tank/sparse"]);
    s.ok(&["zfs", "create", "-s", "-V", "1M", "-o", "volmode=none", "tank/none"]);
    let uri = |name: &str| format!("nbd+unix:///{name}?socket={}", s.text("run/nbd"));
    let v = uri("tank/v");
    assert_eq!(run("nbdinfo", &["--size", &v]).trim(), (64 << 20).to_string());
    let list = run("nbdinfo", &["--list", &uri("")]);
    assert!(
        list.contains("export=\"tank/v\"") && list.contains("export=\"tank/sparse\""),
        "{list}"
    );
    assert!(!list.contains("tank/none"), "{list}");
    let about = run("nbdinfo", &[&v]);
    for said in ["can_multi_conn: true", "can_fua: true", "can_trim: true", "can_fast_zero: true"] {
        assert!(about.contains(said), "{said}: {about}");
    }
    // A file with holes, there and back.
    let image = s.path("image");
    let file = std::fs::File::create(&image).unwrap();
    file.set_len(64 << 20).unwrap();
    let mut rng = Rng::new(5);
    for i in 0..30 {
        let data: Vec<u8> = (0..100_000).map(|_| rng.below(256) as u8).collect();
        std::os::unix::fs::FileExt::write_all_at(&file, &data, i * 2_100_000).unwrap();
    }
    drop(file);
    let image = image.to_str().unwrap();
    run("nbdcopy", &["--flush", image, &v]);
    run("nbdcopy", &[&v, &s.text("back")]);
    run("cmp", &[image, &s.text("back")]);
    run("qemu-img", &["compare", "-f", "raw", "-F", "raw", image, &v]);
    s.ok(&["zfs", "snapshot", "tank/v@s"]);
    s.ok(&["zfs", "set", "snapdev=visible", "tank/v"]);
    run("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", image, &v]);
    run("qemu-img", &["compare", "-f", "raw", "-F", "raw", image, &uri("tank/v@s")]);
    // Nothing but holes.
    let map = run("nbdinfo", &["--map", "--totals", &uri("tank/sparse")]);
    assert!(map.contains("100.0%") && map.contains("hole,zero"), "{map}");
    run("nbdcopy", &[&uri("tank/sparse"), "null:"]);
    // Random writes and reads with verification, many in flight.
    let job = format!("--uri={v}");
    let fio = ["--name=verify", "--ioengine=nbd", &job, "--rw=randwrite", "--bsrange=512-32k"];
    let more = ["--size=32M", "--iodepth=16", "--verify=crc32c", "--verify_fatal=1"];
    let wrote = Command::new("fio").args(fio).args(more).current_dir(s.dir("fio")).output();
    let wrote = wrote.unwrap();
    let text = String::from_utf8_lossy(&wrote.stdout).into_owned();
    assert!(wrote.status.success() && text.contains("err= 0"), "{text}");
    // A client that is connected keeps its pool from being exported.
    let mut busy = std::os::unix::net::UnixStream::connect(s.path("run/nbd")).unwrap();
    let name = b"tank/v";
    let mut hello = 3u32.to_be_bytes().to_vec();
    hello.extend(b"IHAVEOPT");
    hello.extend([0, 0, 0, 1, 0, 0, 0, name.len() as u8]);
    hello.extend(name);
    std::io::Write::write_all(&mut busy, &hello).unwrap();
    let mut greeting = [0; 18 + 10];
    std::io::Read::read_exact(&mut busy, &mut greeting).unwrap();
    let e = s.fail(1, &["zpool", "export", "tank"]);
    assert_eq!(e, "cannot export 'tank': pool is busy\n");
    assert!(s.ok(&["daemon", "status"]).contains("nbd: "));
    // It may change its size meanwhile.
    s.ok(&["zfs", "set", "volsize=96M", "tank/v"]);
    assert_eq!(run("nbdinfo", &["--size", &v]).trim(), (96 << 20).to_string());
    s.ok(&["zfs", "set", "volsize=64M", "tank/v"]);
    // Nor can the volume be destroyed, alone or with others, or while its file is open.
    for args in [&["zfs", "destroy", "-r", "tank/v"][..], &["zfs", "destroy", "-rf", "tank"]] {
        assert_eq!(s.fail(1, args), "cannot destroy 'tank/v': dataset is busy\n");
    }
    if let Ok(open) = std::fs::File::open(s.path("run/volumes/tank/v@s")) {
        let e = s.fail(1, &["zfs", "destroy", "tank/v@s"]);
        assert_eq!(e, "cannot destroy snapshot 'tank/v@s': dataset is busy\n");
        drop(open);
    }
    drop(busy);
    eventually("the client is not gone", || s.ok(&["daemon", "status"]).contains("nbd, 0 clients"));
    judge(&s);
}

/// Starts the daemon with a TCP address, and imports the pool; its port.
fn listen(s: &Sandbox, security: &str) -> u16 {
    let address = format!("127.0.0.1:0,{security}");
    let log = || std::fs::read_to_string(s.path("run/daemon.log")).unwrap_or_default();
    let lines = log().lines().count();
    let mut start = s.command(&["daemon", "start"]);
    assert!(start.env("CENOTE_NBD", address).output().unwrap().status.success());
    let mut port = None;
    eventually("NBD does not listen at TCP", || {
        let log = log();
        let line = log.lines().skip(lines).find(|l| l.contains("NBD, "));
        port = line.and_then(|l| l.rsplit(':').next()?.trim().parse().ok());
        port.is_some()
    });
    s.ok(&["zpool", "import", "-d", &s.text("disks"), "tank"]);
    port.unwrap()
}

#[test]
fn network_block_devices_with_tls() {
    if !have(&["nbdinfo", "nbdcopy"], "NBD with TLS") {
        return;
    }
    let s = with_pool("volumes-tls");
    s.ok(&["zfs", "create", "-s", "-V", "16M", "tank/v"]);
    s.stop();
    let keys = Path::new(env!("CARGO_MANIFEST_DIR")).join("../nbd/tests/tls/keys");
    let keys = keys.to_str().unwrap();
    let uri =
        |port: u16, dir: &str| format!("nbds://localhost:{port}/tank/v?tls-certificates={dir}");
    let fails = |uri: &str| {
        let out = Command::new("nbdinfo").args(["--size", uri]).output().unwrap();
        assert!(!out.status.success(), "{uri}");
        String::from_utf8_lossy(&out.stderr).into_owned()
    };
    let port = listen(&s, &format!("tls={keys}"));
    let v = uri(port, keys);
    assert_eq!(run("nbdinfo", &["--size", &v]).trim(), (16 << 20).to_string());
    assert!(run("nbdinfo", &[&v]).contains("TLS"), "the protocol's line");
    let image = s.path("image");
    let byte = |i: u32| (i.wrapping_mul(0x9e37_79b9) >> 13) as u8;
    let data: Vec<u8> = (0..16u32 << 20).map(byte).collect();
    std::fs::write(&image, &data).unwrap();
    run("nbdcopy", &["--flush", image.to_str().unwrap(), &v]);
    run("nbdcopy", &[&v, &s.text("back")]);
    assert!(std::fs::read(s.path("back")).unwrap() == data);
    // Who has no certificate of the server's authority, or does not know that, gets nothing.
    fails(&uri(port, &format!("{keys}/stranger")));
    let expired = fails(&uri(port, &format!("{keys}/expired")));
    assert!(expired.contains("alert"), "{expired}");
    let plain = fails(&format!("nbd://localhost:{port}/tank/v"));
    assert!(plain.contains("TLS"), "{plain}");
    let public = s.dir("public");
    std::fs::copy(format!("{keys}/ca-cert.pem"), public.join("ca-cert.pem")).unwrap();
    fails(&uri(port, public.to_str().unwrap()));
    // Encryption for everyone.
    s.stop();
    let port = listen(&s, &format!("tls={keys},open"));
    let size = run("nbdinfo", &["--size", &uri(port, public.to_str().unwrap())]);
    assert_eq!(size.trim(), (16 << 20).to_string());
    judge(&s);
}
