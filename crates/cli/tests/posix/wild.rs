//! Behaviour in the wild: crashes of the daemon, unmounting what is in use, locks, other
//! users, many writers.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::common::{Sandbox, can_mount, eventually, is_alive, judge_disks};
use super::{World, errno, has, noise, put, refused, run};

/// Ends the daemon as a crash would.
fn kill(s: &Sandbox) {
    let pid = s.pid();
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(pid).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
    while is_alive(pid) {
        std::thread::yield_now();
    }
}

#[test]
fn a_killed_daemon() {
    let Some(w) = World::new("killed", 512, &[]) else { return };
    w.zfs(&["create", "tank/sub"]);
    let synced = AtomicU64::new(0);
    let ended = AtomicBool::new(false);
    let name = |n: u64| w.path("sub").join(format!("file-{n}"));
    // An object on the delete queue when the crash comes.
    put(&w.path("open"), &noise(1, 4 << 20));
    let open = File::open(w.path("open")).unwrap();
    std::fs::remove_file(w.path("open")).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0.. {
                let done = File::create(name(n)).and_then(|mut f| {
                    f.write_all(&noise(n, 10_000 + n as usize * 100))?;
                    f.sync_all()
                });
                if done.is_err() {
                    break;
                }
                synced.store(n + 1, Ordering::SeqCst);
            }
            ended.store(true, Ordering::SeqCst);
        });
        // A load that nobody syncs.
        scope.spawn(|| {
            for n in 0.. {
                let path = w.path(&format!("load-{}", n % 50));
                if ended.load(Ordering::SeqCst) || std::fs::write(&path, noise(n, 50_000)).is_err()
                {
                    break;
                }
            }
        });
        while synced.load(Ordering::SeqCst) < 12 {
            assert!(!ended.load(Ordering::SeqCst), "the writer failed");
            std::thread::yield_now();
        }
        kill(&w.s);
    });
    drop(open);
    // The next start removes what the old one left mounted, and has the pool again.
    w.s.ok(&["daemon", "start"]);
    eventually("the pool is not imported again", || {
        let mounts = w.s.mounts();
        let has = |end: &str| mounts.iter().filter(|m| m.ends_with(end)).count();
        (has("/mnt"), has("/mnt/sub")) == (1, 1)
    });
    let count = synced.load(Ordering::SeqCst);
    for n in 0..count {
        let found = std::fs::read(name(n)).unwrap();
        assert!(found == noise(n, 10_000 + n as usize * 100), "file {n} of {count}");
    }
    std::fs::write(w.path("after"), b"works").unwrap();
    w.end();
}

#[test]
fn unmounted_in_use() {
    let Some(w) = World::new("inuse", 256, &[]) else { return };
    w.zfs(&["create", "tank/a"]);
    let at = w.s.text("mnt/a");
    let file = w.path("a/file");
    put(&file, b"content");
    let mut held = OpenOptions::new().read(true).write(true).open(&file).unwrap();
    let busy = format!("cannot unmount '{at}': pool or dataset is busy\n");
    assert_eq!(w.s.fail(1, &["zfs", "unmount", "tank/a"]), busy);
    assert!(file.exists());
    // By force the mount goes; what was open fails, and nothing else does.
    held.write_all(b"more").unwrap();
    w.zfs(&["unmount", "-f", "tank/a"]);
    assert!(!file.exists());
    assert!(held.read(&mut [0; 4]).is_err() && held.write(b"late").is_err());
    w.zfs(&["mount", "tank/a"]);
    assert_eq!(std::fs::read(&file).unwrap(), b"moreent");
    drop(held);

    // Another program unmounts it lazily: a process that has it open goes on until the end.
    let mut held = OpenOptions::new().read(true).append(true).open(&file).unwrap();
    assert_eq!(run("umount", &["-l", &at], None).code, 0);
    assert!(!file.exists());
    held.write_all(b"!").unwrap();
    held.sync_all().unwrap();
    drop(held);
    let mounted = || w.s.say(&["zfs", "mount", "tank/a"]).code == 0;
    eventually("it is never mounted again", mounted);
    assert_eq!(std::fs::read(&file).unwrap(), b"moreent!");
    // Bound elsewhere, it stays in use there; mounted again, both show the same.
    let bound = w.s.dir("bound");
    assert_eq!(run("mount", &["--bind", &at, bound.to_str().unwrap()], None).code, 0);
    assert_eq!(std::fs::read(bound.join("file")).unwrap(), b"moreent!");
    w.zfs(&["unmount", "tank/a"]);
    assert!(!file.exists());
    put(&bound.join("file"), b"bound");
    w.zfs(&["mount", "tank/a"]);
    assert_eq!(std::fs::read(&file).unwrap(), b"bound");
    put(&file, b"again");
    assert_eq!(std::fs::read(bound.join("file")).unwrap(), b"again");
    put(&file, b"bound");
    assert_eq!(run("umount", &[bound.to_str().unwrap()], None).code, 0);
    // By force it goes there, too.
    assert_eq!(run("mount", &["--bind", &at, bound.to_str().unwrap()], None).code, 0);
    let mut held = OpenOptions::new().append(true).open(bound.join("file")).unwrap();
    w.zfs(&["unmount", "-f", "tank/a"]);
    assert!(held.write(b"late").is_err() && !bound.join("file").exists());
    drop(held);
    // Another mount namespace has its own copy of the mount, in which it goes on.
    w.zfs(&["mount", "tank/a"]);
    if has("unshare") {
        let mut other = std::process::Command::new("unshare")
            .args(["-m", "--propagation", "private", "sh", "-c"])
            .arg(format!("echo; read go; echo late >{at}/late; cat {at}/file; read go"))
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let (mut to, from) = (other.stdin.take().unwrap(), other.stdout.take().unwrap());
        let mut lines = std::io::BufRead::lines(std::io::BufReader::new(from));
        assert_eq!(lines.next().unwrap().unwrap(), "");
        w.zfs(&["unmount", "-f", "tank/a"]);
        w.zfs(&["mount", "tank/a"]);
        assert_eq!(std::fs::read(&file).unwrap(), b"bound");
        // What was ended there stays ended, and who is there goes on.
        to.write_all(b"\n\n").unwrap();
        drop(to);
        let _whatever_failed = lines.next();
        other.wait().unwrap();
        assert!(!w.path("a/late").exists());
    }
    w.end();
}

#[test]
fn locks() {
    let Some(w) = World::new("locks", 256, &[]) else { return };
    let path = w.path("file");
    std::fs::write(&path, b"0123456789").unwrap();
    let open = || OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let (a, b) = (open(), open());
    let now = |f: &File, how| flock(f, how);
    now(&a, FlockOperation::NonBlockingLockShared).unwrap();
    now(&b, FlockOperation::NonBlockingLockShared).unwrap();
    assert_eq!(refused(now(&a, FlockOperation::NonBlockingLockExclusive)), Errno::WOULDBLOCK);
    now(&b, FlockOperation::Unlock).unwrap();
    now(&a, FlockOperation::NonBlockingLockExclusive).unwrap();
    // Who waits gets it when the other closes.
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| now(&b, FlockOperation::LockExclusive));
        // That it waits is what is tested: a lock that was granted would be held by then.
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(!waiter.is_finished());
        drop(a);
        waiter.join().unwrap().unwrap();
    });
    let range = |f: &File, kind: i32, start: i64, len: i64| {
        let lock = libc::flock {
            l_type: kind as i16,
            l_whence: libc::SEEK_SET as i16,
            l_start: start,
            l_len: len,
            l_pid: 0,
        };
        // SAFETY: an open file and a whole structure, which the kernel only reads.
        match unsafe { libc::fcntl(f.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    let a = open();
    range(&a, libc::F_WRLCK, 0, 5).unwrap();
    range(&b, libc::F_WRLCK, 5, 5).unwrap();
    assert_eq!(errno(range(&b, libc::F_RDLCK, 4, 1)), libc::EAGAIN);
    range(&a, libc::F_UNLCK, 4, 1).unwrap();
    range(&b, libc::F_RDLCK, 4, 1).unwrap();
    assert_eq!(errno(range(&a, libc::F_WRLCK, 4, 1)), libc::EAGAIN);
    drop(b);
    range(&a, libc::F_WRLCK, 0, 0).unwrap();
    drop(a);
    w.end();
}

#[test]
fn an_ordinary_user_writes() {
    const USER: u32 = 65534;
    if !can_mount("pools of an ordinary user") || !has("fusermount3") {
        return;
    }
    let s = Sandbox::new("posix-user");
    let (own, disks) = (s.dir("own"), s.dir("disks"));
    let disk = disks.join("disk");
    File::create(&disk).unwrap().set_len(256 << 20).unwrap();
    for path in [&own, &disks, &disk] {
        chown(path, Some(USER), Some(USER)).unwrap();
    }
    let program = s.path("cenote");
    std::fs::copy(env!("CARGO_BIN_EXE_cenote"), &program).unwrap();
    let (run_dir, mnt) = (s.text("own/run"), s.text("own/mnt"));
    /// Whatever becomes of the test, the daemon ends.
    struct Ends<'a>(&'a Path, &'a str);
    impl Drop for Ends<'_> {
        fn drop(&mut self) {
            let stop = format!("CENOTE_RUNTIME_DIR={} {} daemon stop -f", self.1, self.0.display());
            let _stopped = run("/bin/sh", &["-c", &stop], Some(USER));
        }
    }
    let _ends = Ends(&program, &run_dir);
    let sh = |script: &str| {
        let script = format!(
            "export CENOTE_RUNTIME_DIR={run_dir} C={} M={mnt}; set -e; {script}",
            program.display()
        );
        let said = run("/bin/sh", &["-c", &script], Some(USER));
        assert_eq!(said.code, 0, "{script}: {said:?}");
        said.out
    };
    sh(&format!("$C zpool create -O mountpoint=$M -O canmount=off tank {}", disk.display()));
    // One mount inside another would need `allow_other`.
    sh("$C zfs create tank/a");
    sh("echo text > $M/a/file; mkdir $M/a/d; ln -s file $M/a/link; chmod 600 $M/a/file");
    assert_eq!(sh("stat -c %u:%a $M/a/file; cat $M/a/link"), "65534:600\ntext\n");
    sh("$C zfs snapshot tank/a@s; rm $M/a/file; cat $M/a/.zfs/snapshot/s/file");
    sh("$C zfs set readonly=on tank/a; ! touch $M/a/x 2>/dev/null; $C zfs destroy -r tank/a");
    sh("$C zfs create tank/b; echo last > $M/b/last; $C zpool export tank; $C daemon stop");
    judge_disks(&s);
}

#[test]
fn many_writers() {
    let Some(w) = World::new("writers", 768, &[]) else { return };
    const WRITERS: u64 = 8;
    let shared = w.path("shared");
    std::fs::create_dir(&shared).unwrap();
    put(&w.path("one"), &vec![0; 8 << 20]);
    let one = OpenOptions::new().read(true).write(true).open(w.path("one")).unwrap();
    let log = OpenOptions::new().append(true).create(true).open(w.path("log")).unwrap();
    let models: Vec<BTreeMap<String, Vec<u8>>> = std::thread::scope(|scope| {
        let work = |me: u64| {
            let (w, one, shared) = (&w, &one, &shared);
            let mut log = &log;
            scope.spawn(move || {
                let mut rng = testkit::Rng::new(me);
                let mut model: BTreeMap<String, Vec<u8>> = BTreeMap::new();
                let mine = w.path(&format!("dir-{me}"));
                std::fs::create_dir(&mine).unwrap();
                for step in 0..250 {
                    let name = format!("w{me}-{}", rng.below(20));
                    let path = shared.join(&name);
                    match rng.below(6) {
                        0..3 => {
                            let bytes = noise(me << 32 | step, rng.index(60_000));
                            std::fs::write(&path, &bytes).unwrap();
                            model.insert(name, bytes);
                        }
                        3 if model.remove(&name).is_some() => std::fs::remove_file(&path).unwrap(),
                        4 => {
                            if let Some(bytes) = model.remove(&name) {
                                let to = format!("w{me}-moved{}", rng.below(9));
                                std::fs::rename(&path, mine.join(&to)).unwrap();
                                std::fs::rename(mine.join(&to), shared.join(&to)).unwrap();
                                model.insert(to, bytes);
                            }
                        }
                        _ => {
                            // Its own stripes of the one file.
                            let at = (rng.below(128) * WRITERS + me) << 13;
                            one.write_all_at(&[me as u8 + 1; 8192], at).unwrap();
                            let mut back = [0; 8192];
                            one.read_exact_at(&mut back, at).unwrap();
                            assert!(back == [me as u8 + 1; 8192]);
                        }
                    }
                    if step % 10 == 0 {
                        log.write_all(format!("{me:03}{step:04}\n").as_bytes()).unwrap();
                    }
                    if step % 100 == 0 {
                        one.sync_data().unwrap();
                    }
                }
                model
            })
        };
        let threads: Vec<_> = (0..WRITERS).map(work).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    drop((one, log));
    w.s.ok(&["zpool", "export", "tank"]);
    w.s.ok(&["zpool", "import", "-d", &w.s.text("disks"), "tank"]);
    let mut want: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    models.into_iter().for_each(|m| want.extend(m));
    let mut found = 0;
    for entry in std::fs::read_dir(&shared).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        assert!(std::fs::read(entry.path()).unwrap() == want[&name], "{name}");
        found += 1;
    }
    assert_eq!(found, want.len());
    for (n, stripe) in std::fs::read(w.path("one")).unwrap().chunks(8192).enumerate() {
        let owner = (n as u64 % WRITERS) as u8 + 1;
        assert!(stripe.iter().all(|&b| b == stripe[0]) && (stripe[0] == 0 || stripe[0] == owner));
    }
    let text = std::fs::read_to_string(w.path("log")).unwrap();
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines.dedup();
    assert_eq!((lines.len(), text.len()), (200, 200 * 8), "appended lines were lost");
    w.end();
}

/// A directory's link count and size are what is in it.
fn check_dir(path: &Path, dirs: u64, entries: u64) {
    let m = std::fs::metadata(path).unwrap();
    assert_eq!((m.nlink(), m.len()), (2 + dirs, 2 + entries), "{}", path.display());
}

#[test]
fn trees_come_and_go() {
    let Some(w) = World::new("trees", 512, &[]) else { return };
    let make = |dir: &Path, n: u64| {
        std::fs::create_dir(dir).unwrap();
        for sub in 0..n {
            let at = dir.join(format!("d{sub}"));
            std::fs::create_dir(&at).unwrap();
            for file in 0..20 {
                let path = at.join(format!("f{file}"));
                std::fs::write(&path, noise(sub * 100 + file, (file * 997) as usize)).unwrap();
                std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
            }
        }
    };
    make(&w.path("tree"), 30);
    check_dir(&w.path("tree"), 30, 30);
    check_dir(&w.path("tree/d7"), 0, 20);
    let (from, to) = (w.s.text("mnt/tree"), w.s.text("mnt/copy"));
    assert_eq!(run("cp", &["-a", &from, &to], None).code, 0);
    w.again();
    let same = run("diff", &["-r", &from, &to], None);
    assert_eq!((same.code, same.out.as_str()), (0, ""));
    std::fs::remove_dir_all(&from).unwrap();
    check_dir(&w.path("copy"), 30, 30);
    std::fs::remove_dir_all(&to).unwrap();
    check_dir(&w.path(""), 0, 0);
    w.end();
}
