//! Devices that fill up, vanish and return: suspended pools, and what becomes of those
//! who wait for them. The waiting threads are never joined before their pool goes on.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use testkit::Scratch;

use super::common::{Sandbox, can_mount, eventually, is_alive, judge, judge_disks};
use super::{has, noise, put, run};

fn is_suspended(s: &Sandbox) -> bool {
    s.ok(&["zpool", "list", "-H", "-o", "health", "tank"]) == "SUSPENDED\n"
}

/// Does something that may wait for long; what came of it.
fn beside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
    let (tell, told) = channel();
    std::thread::spawn(move || tell.send(work()));
    told
}

fn came_of<T>(told: &Receiver<T>) -> T {
    told.recv_timeout(Duration::from_secs(60)).expect("it still waits")
}

/// Writes files and syncs each; how many, and the first error.
fn write_files(dir: PathBuf, first: u64, count: u64) -> (u64, Option<i32>) {
    for n in first..first + count {
        let done = File::create(dir.join(format!("file-{n}"))).and_then(|mut f| {
            std::io::Write::write_all(&mut f, &noise(n, 2 << 20))?;
            f.sync_all()
        });
        if let Err(e) = done {
            return (n - first, e.raw_os_error());
        }
    }
    (count, None)
}

fn check_files(dir: &Path, names: std::ops::Range<u64>) {
    for n in names {
        let found = std::fs::read(dir.join(format!("file-{n}"))).unwrap();
        assert!(found == noise(n, 2 << 20), "file-{n}");
    }
}

/// A small file system for disks, of memory; outside the sandbox, where nothing may stay
/// mounted.
struct Tmpfs {
    at: String,
    _dir: Scratch,
}

impl Tmpfs {
    fn new(s: &Sandbox, name: &str, mib: u64) -> Tmpfs {
        let dir = Scratch::new(name);
        let at = dir.path().to_str().unwrap().to_owned();
        let size = format!("size={mib}m");
        assert_eq!(run("mount", &["-t", "tmpfs", "-o", &size, "none", &at], None).code, 0);
        std::os::unix::fs::symlink(&at, s.path("disks")).unwrap();
        Tmpfs { at, _dir: dir }
    }

    fn resize(&self, mib: u64) {
        let options = format!("remount,size={mib}m");
        assert_eq!(run("mount", &["-o", &options, &self.at], None).code, 0);
    }

    fn used_mib(&self) -> u64 {
        let s = rustix::fs::statvfs(self.at.as_str()).unwrap();
        ((s.f_blocks - s.f_bfree) * s.f_frsize).div_ceil(1 << 20)
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _gone = run("umount", &["-l", &self.at], None);
    }
}

/// A thin disk fills up under a pool: writers wait, other pools go on; with room on
/// the disk `zpool clear` resumes, and nobody lost anything. Then it fills up again, and the
/// pool is taken away by force and imported as it was last synced.
#[test]
fn a_disk_that_fills_up() {
    if !can_mount("a full disk") {
        return;
    }
    let s = Sandbox::new("posix-outage-full");
    let disks = Tmpfs::new(&s, "posix-disks", 40);
    super::common::new_pool(&s, 512, &["-O", "compression=off"]);
    let mnt = s.path("mnt");
    put(&mnt.join("kept"), b"kept");
    let dir = mnt.clone();
    let writer = beside(move || write_files(dir, 0, 40));
    eventually("it is never suspended", || is_suspended(&s));

    let status = s.ok(&["zpool", "status", "tank"]);
    let says = "  pool: tank\n state: SUSPENDED\nstatus: One or more devices are faulted in \
                response to IO failures.\naction: Make sure the affected devices are connected, \
                then run 'zpool clear'.\n";
    assert!(status.starts_with(says), "{status}");
    // Monitors read it here, and were told that the pool was online.
    let kstat = std::fs::read_to_string(s.path("run/proc/spl/kstat/zfs/tank/state"));
    assert_eq!(kstat.unwrap(), "SUSPENDED\n");
    assert!(s.ok(&["zfs", "list", "-H", "-o", "name"]).contains("tank"));
    assert_eq!(std::fs::read(mnt.join("kept")).unwrap(), b"kept");
    let path = mnt.join("late");
    let late = beside(move || std::fs::write(path, b"late").map_err(|e| e.raw_os_error()));
    assert!(late.recv_timeout(Duration::from_millis(300)).is_err(), "it did not wait");
    // Without room it stops again.
    s.ok(&["zpool", "clear", "tank"]);
    eventually("it goes on without room", || is_suspended(&s));
    assert!(writer.try_recv().is_err());
    disks.resize(400);
    s.ok(&["zpool", "clear", "tank"]);
    assert_eq!(came_of(&writer), (40, None));
    assert_eq!(came_of(&late), Ok(()));
    assert!(!is_suspended(&s));
    check_files(&mnt, 0..40);

    // Full again: now the pool is taken away from those who wait.
    disks.resize(disks.used_mib() + 8);
    let dir = mnt.clone();
    let writer = beside(move || write_files(dir, 40, 40));
    eventually("it is never suspended again", || is_suspended(&s));
    let busy = s.fail(1, &["zpool", "export", "tank"]);
    assert!(busy.contains("cannot export 'tank'"), "{busy}");
    assert!(is_suspended(&s));
    s.ok(&["zpool", "export", "-f", "tank"]);
    let (synced, error) = came_of(&writer);
    assert!(error.is_some() && synced < 40);
    disks.resize(400);
    s.ok(&["zpool", "import", "-d", &s.text("disks"), "tank"]);
    check_files(&mnt, 0..40 + synced);
    assert_eq!(std::fs::read(mnt.join("late")).unwrap(), b"late");
    judge(&s);
}

/// The same with `failmode=continue`: who writes gets an error, and may write again after
/// `zpool clear`.
#[test]
fn a_disk_that_fills_up_and_nobody_waits() {
    if !can_mount("a full disk") {
        return;
    }
    let s = Sandbox::new("posix-outage-continue");
    let disks = Tmpfs::new(&s, "posix-disks", 40);
    super::common::new_pool(&s, 512, &["-O", "compression=off"]);
    s.ok(&["zpool", "set", "failmode=continue", "tank"]);
    let mnt = s.path("mnt");
    let dir = mnt.clone();
    let (synced, error) = came_of(&beside(move || write_files(dir, 0, 40)));
    assert_eq!(error, Some(libc::EIO));
    assert!(synced > 2);
    eventually("it is not suspended", || is_suspended(&s));
    let path = mnt.join("new");
    let new = came_of(&beside(move || File::create(path).map(drop).map_err(|e| e.raw_os_error())));
    assert_eq!(new, Err(Some(libc::EIO)));
    check_files(&mnt, 0..synced);
    // Lazily unmounted, it is suspended all the same, and nothing hangs.
    assert_eq!(run("umount", &["-l", mnt.to_str().unwrap()], None).code, 0);
    disks.resize(400);
    s.ok(&["zpool", "clear", "tank"]);
    eventually("it stays suspended", || !is_suspended(&s));
    eventually("it is never mounted again", || s.say(&["zfs", "mount", "tank"]).code == 0);
    check_files(&mnt, 0..synced);
    assert_eq!(write_files(mnt.clone(), 100, 5), (5, None));
    judge(&s);
}

/// Files of two pools are rewritten, and one of the pools is suspended. With
/// `failmode=continue` the command names the error and goes on with the other pool's file; with
/// `failmode=wait` it waits, beside it the other pool's files are rewritten, and it ends when
/// the pool goes on.
#[test]
fn a_rewrite_beside_a_suspended_pool() {
    if !can_mount("a full disk") {
        return;
    }
    let s = Sandbox::new("posix-outage-rewrite");
    let disks = Tmpfs::new(&s, "posix-disks", 40);
    super::common::new_pool(&s, 512, &["-O", "compression=off"]);
    s.ok(&["zpool", "set", "failmode=continue", "tank"]);
    let well = s.dir("wells").join("well");
    File::create(&well).unwrap().set_len(128 << 20).unwrap();
    let mountpoint = s.text("mnt-well");
    s.ok(&["zpool", "create", "-m", &mountpoint, "well", well.to_str().unwrap()]);
    let mnt = s.path("mnt");
    let (sick, well) = (s.text("mnt/kept"), s.text("mnt-well/kept"));
    for (seed, path) in [(1, &sick), (2, &well)] {
        put(Path::new(path), &noise(seed, 1 << 20));
    }
    s.ok(&["zpool", "sync"]);
    let rewrite = |files: &[&str]| {
        let mut command = s.command(&[&["zfs", "rewrite", "-v"], files].concat());
        beside(move || super::said(&command.output().unwrap()))
    };

    let dir = mnt.clone();
    assert_eq!(came_of(&beside(move || write_files(dir, 0, 40))).1, Some(libc::EIO));
    eventually("it is not suspended", || is_suspended(&s));
    let said = came_of(&rewrite(&[&sick, &well]));
    let error = format!("cannot rewrite '{sick}': input/output error\n");
    assert_eq!((said.code, said.out, said.err), (1, format!("{well}\n"), error));
    disks.resize(400);
    s.ok(&["zpool", "clear", "tank"]);
    eventually("it stays suspended", || !is_suspended(&s));
    assert_eq!(came_of(&rewrite(&[&sick])).code, 0);

    s.ok(&["zpool", "set", "failmode=wait", "tank"]);
    disks.resize(disks.used_mib() + 8);
    let dir = mnt.clone();
    let writer = beside(move || write_files(dir, 100, 40));
    eventually("it is never suspended again", || is_suspended(&s));
    let waits = rewrite(&[&sick]);
    let said = came_of(&rewrite(&[&well]));
    assert_eq!((said.code, said.out), (0, format!("{well}\n")));
    s.ok(&["zpool", "sync", "well"]);
    // That it waits is what is tested: a command that did not would have ended by then.
    assert!(waits.recv_timeout(Duration::from_millis(300)).is_err(), "it did not wait");
    disks.resize(600);
    s.ok(&["zpool", "clear", "tank"]);
    let said = came_of(&waits);
    assert_eq!((said.code, said.out, said.err), (0, format!("{sick}\n"), String::new()));
    assert_eq!(came_of(&writer), (40, None));
    for (seed, path) in [(1, &sick), (2, &well)] {
        assert!(std::fs::read(path).unwrap() == noise(seed, 1 << 20), "{path}");
    }
    judge(&s);
}

/// Ends a daemon as a crash would: what its mounts hold vanishes.
fn kill(s: &Sandbox) {
    let pid = s.pid();
    let process = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
    while is_alive(pid) {
        std::thread::yield_now();
    }
}

/// A pool whose disk is a file of another pool, that of another daemon: when that one is
/// killed the disk is gone with all that was not flushed to it, and with its next start
/// it is back.
struct Usb {
    outer: Sandbox,
    inner: Sandbox,
    disk: String,
}

impl Usb {
    fn new(name: &str) -> Option<Usb> {
        if !can_mount(name) || !has("umount") {
            return None;
        }
        let outer = Sandbox::new(&format!("posix-usb-{name}-outer"));
        let inner = Sandbox::new(&format!("posix-usb-{name}"));
        super::common::new_pool(&outer, 512, &["-O", "recordsize=16k"]);
        let disk = outer.path("mnt/disk");
        File::create(&disk).unwrap().set_len(256 << 20).unwrap();
        let disk = disk.to_str().unwrap().to_owned();
        Some(Usb { outer, inner, disk })
    }

    fn create(&self, vdevs: &[&str]) -> PathBuf {
        let mountpoint = format!("mountpoint={}", self.inner.text("mnt"));
        let args = ["zpool", "create", "-O", &mountpoint, "-O", "compression=off", "tank"];
        self.inner.ok(&[&args[..], vdevs].concat());
        self.inner.path("mnt")
    }

    fn back(&self) {
        self.outer.ok(&["daemon", "start"]);
        eventually("the disk does not come back", || Path::new(&self.disk).exists());
    }
}

/// Lets a pool go on whose disk is back, with a user who writes files; how many of them
/// were written, and whether the pool could go on. If its disk lost what it had taken, it
/// cannot: it is taken away and imported as it was last synced.
fn go_on(usb: &Usb, writer: &Receiver<(u64, Option<i32>)>) -> (u64, bool) {
    let s = &usb.inner;
    s.ok(&["zpool", "clear", "tank"]);
    let begin = Instant::now();
    loop {
        assert!(begin.elapsed() < Duration::from_secs(60), "it still waits");
        if let Ok((written, error)) = writer.recv_timeout(Duration::from_millis(100)) {
            assert_eq!(error, None);
            return (written, true);
        }
        if is_suspended(s) {
            let why = s.fail(1, &["zpool", "clear", "tank"]);
            assert!(why.contains("is lost; export the pool with -f"), "{why}");
            s.ok(&["zpool", "export", "-f", "tank"]);
            let (written, error) = came_of(writer);
            assert!(error.is_some());
            s.ok(&["zpool", "import", "-d", &usb.outer.text("mnt"), "tank"]);
            return (written, false);
        }
    }
}

/// The disk goes while nothing is written, and while much is; nothing that was synced is
/// lost. An older copy in its place is refused.
#[test]
fn a_disk_that_vanishes_and_returns() {
    let Some(usb) = Usb::new("alone") else { return };
    let (s, mnt) = (&usb.inner, usb.create(&[&usb.disk]));
    assert_eq!(write_files(mnt.clone(), 0, 3), (3, None));
    s.ok(&["zpool", "sync", "tank"]);
    let copy = s.path("older");
    std::fs::copy(&usb.disk, &copy).unwrap();
    assert_eq!(write_files(mnt.clone(), 3, 3), (3, None));
    s.ok(&["zpool", "sync", "tank"]);
    kill(&usb.outer);
    let dir = mnt.clone();
    let writer = beside(move || write_files(dir, 6, 4));
    eventually("it is never suspended", || is_suspended(s));
    let gone = s.fail(1, &["zpool", "clear", "tank"]);
    assert!(gone.contains("one or more devices is currently unavailable"), "{gone}");
    assert!(s.ok(&["zpool", "status", "tank"]).contains("UNAVAIL"));
    assert!(writer.try_recv().is_err());
    usb.back();
    // An older copy is put in its place: that is not the pool any more.
    let newer = format!("{}.newer", usb.disk);
    std::fs::rename(&usb.disk, &newer).unwrap();
    std::fs::copy(&copy, &usb.disk).unwrap();
    s.fail(1, &["zpool", "clear", "tank"]);
    assert!(is_suspended(s));
    std::fs::rename(&newer, &usb.disk).unwrap();
    let (written, resumed) = go_on(&usb, &writer);
    println!("{written} files, resumed: {resumed}");
    check_files(&mnt, 0..6 + written);
    assert!(s.ok(&["zpool", "status", "tank"]).contains("\n state: ONLINE\n"));

    let dir = mnt.clone();
    let writer = beside(move || write_files(dir, 100, 30));
    // In the middle of its files.
    eventually("nothing is written", || mnt.join("file-102").exists());
    kill(&usb.outer);
    eventually("it is never suspended again", || is_suspended(s));
    usb.back();
    let (more, resumed) = go_on(&usb, &writer);
    println!("{more} files, resumed: {resumed}");
    check_files(&mnt, 0..6 + written);
    check_files(&mnt, 100..100 + more);
    s.ok(&["zpool", "export", "tank"]);
    // Where `zdb` looks for it.
    std::fs::copy(&usb.disk, s.dir("disks").join("disk")).unwrap();
    judge_disks(s);
}

/// Nobody writes, and the disk is gone: the first who must read it finds out. Listings,
/// look-ups and removals wait for it, and then do what they would have done.
#[test]
fn who_reads_waits() {
    let Some(usb) = Usb::new("readers") else { return };
    let (s, mnt) = (&usb.inner, usb.create(&[&usb.disk]));
    let dir = mnt.join("dir");
    std::fs::create_dir(&dir).unwrap();
    const NAMES: usize = 1500;
    for n in 0..NAMES {
        File::create(dir.join(format!("name-{n}"))).unwrap();
    }
    let import = || {
        s.ok(&["zpool", "export", "tank"]);
        s.ok(&["zpool", "import", "-d", &usb.outer.text("mnt"), "tank"]);
    };
    let list = |dir: &Path| {
        let all = std::fs::read_dir(dir)?.map(|e| e.map(|e| e.file_name()));
        all.collect::<std::io::Result<std::collections::BTreeSet<_>>>()
    };
    import();
    kill(&usb.outer);
    let at = dir.clone();
    let listing = beside(move || list(&at).map_err(|e| e.raw_os_error()));
    eventually("nobody noticed", || is_suspended(s));
    let at = dir.join("name-7");
    let found = beside(move || std::fs::symlink_metadata(at).map(|m| m.len()));
    let at = dir.join("name-9");
    let removed = beside(move || std::fs::remove_file(at));
    // That they wait is what is tested: a call that did not would be over by then.
    std::thread::sleep(Duration::from_millis(200));
    assert!(listing.try_recv().is_err() && found.try_recv().is_err());
    assert!(removed.try_recv().is_err());
    usb.back();
    s.ok(&["zpool", "clear", "tank"]);
    let listed = came_of(&listing).unwrap();
    assert!((NAMES - 1..=NAMES).contains(&listed.len()), "{}", listed.len());
    assert_eq!(came_of(&found).unwrap(), 0);
    came_of(&removed).unwrap();
    assert_eq!(list(&dir).unwrap().len(), NAMES - 1);

    // Nobody is to wait: an error, and no suspension by who only reads.
    s.ok(&["zpool", "set", "failmode=continue", "tank"]);
    import();
    kill(&usb.outer);
    assert_eq!(list(&dir).unwrap_err().raw_os_error(), Some(libc::EIO));
    usb.back();
    s.ok(&["zpool", "clear", "tank"]);
    eventually("it stays gone", || list(&dir).is_ok_and(|l| l.len() == NAMES - 1));
    s.ok(&["zpool", "export", "tank"]);
    std::fs::copy(&usb.disk, s.dir("disks").join("disk")).unwrap();
    judge_disks(s);
}

/// One half of a mirror vanishes: the pool goes on, degraded; the half that is back is
/// never asked for what was written meanwhile until it has that, too.
#[test]
fn half_a_mirror_vanishes() {
    let Some(usb) = Usb::new("half") else { return };
    let s = &usb.inner;
    let other = s.dir("disks").join("disk");
    File::create(&other).unwrap().set_len(256 << 20).unwrap();
    let mnt = usb.create(&["mirror", other.to_str().unwrap(), &usb.disk]);
    assert_eq!(write_files(mnt.clone(), 0, 3), (3, None));
    kill(&usb.outer);
    assert_eq!(write_files(mnt.clone(), 3, 5), (5, None));
    eventually("the leaf is not given up", || {
        s.ok(&["zpool", "status", "tank"]).contains("too many errors")
    });
    assert!(s.ok(&["zpool", "status", "tank"]).contains("\n state: DEGRADED\n"));
    usb.back();
    s.ok(&["zpool", "online", "tank", &usb.disk]);
    let none = s.fail(1, &["zpool", "online", "tank", "nothing"]);
    assert_eq!(none, "couldn't find device \"nothing\" in pool \"tank\"\n");
    eventually("no resilver ends", || {
        s.ok(&["zpool", "status", "tank"]).contains("  scan: resilvered ")
    });
    let status = s.ok(&["zpool", "status", "tank"]);
    assert!(!status.contains("FAULTED"), "{status}");
    assert_eq!(write_files(mnt.clone(), 8, 2), (2, None));
    s.ok(&["zpool", "export", "tank"]);
    let dir = usb.outer.text("mnt");
    s.ok(&["zpool", "import", "-d", &s.text("disks"), "-d", &dir, "tank"]);
    check_files(&mnt, 0..10);
    let status = s.ok(&["zpool", "status", "tank"]);
    assert!(status.contains("\n state: ONLINE\n"), "{status}");
    // No read went wrong on the way.
    let sums = status.lines().filter(|l| l.contains("disk")).map(|l| l.split_whitespace().nth(4));
    assert!(sums.clone().count() == 2 && sums.clone().all(|n| n == Some("0")), "{status}");
    judge(s);
}
