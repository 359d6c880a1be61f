//! A small file system, mounted and used through the kernel.
//! Needs `/dev/fuse`; skipped with a line printed where there is none.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

mod common;

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use common::*;
use fuse::*;
use rustix::fs::SeekFrom;
use rustix::io::Errno as Sys;

/// Whether this user can abort a connection; says so if not.
fn can_abort() -> bool {
    let can = rustix::process::geteuid().is_root()
        || std::fs::read_dir("/sys/fs/fuse/connections").is_ok_and(|mut d| d.next().is_some());
    if !can {
        skip(Need::Root, "an ordinary user cannot abort a connection without fusectl");
    }
    can
}

fn check_pattern(bytes: &[u8], offset: u64) {
    for (i, &byte) in bytes.iter().enumerate() {
        assert_eq!(byte, pattern(offset + i as u64), "at {}", offset + i as u64);
    }
}

#[test]
fn names_attributes_links_and_totals() {
    let Some(m) = mount_default() else { return };
    let stat = std::fs::metadata(m.path("big")).unwrap();
    assert_eq!((stat.len(), stat.ino(), stat.mtime()), (BIG_SIZE, BIG + 100, 1_000_000_002));
    assert_eq!(std::fs::metadata(m.path("none")).unwrap_err().raw_os_error(), Some(2));
    // Its attributes come from a worker.
    assert_eq!(std::fs::metadata(m.path("sparse")).unwrap().len(), 1 << 20);
    assert_eq!(std::fs::read_link(m.path("link")).unwrap().to_str(), Some("big"));
    assert_eq!(std::fs::metadata(m.path("link")).unwrap().len(), BIG_SIZE);
    let s = rustix::fs::statfs(&m.dir).unwrap();
    assert_eq!((s.f_blocks, s.f_bfree, s.f_bavail, s.f_files), (1000, 500, 400, 8));
    let refused = std::fs::write(m.path("new"), b"x").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    assert!(m.session.negotiated().max_transfer >= 128 << 10);
    m.finish();
}

#[test]
fn extended_attributes() {
    let Some(m) = mount_default() else { return };
    let mut value = [0; 64];
    let big = m.path("big");
    assert_eq!(rustix::fs::getxattr(&big, "user.colour", &mut value[..]), Ok(5));
    assert_eq!(&value[..5], b"green");
    assert_eq!(rustix::fs::getxattr_query(&big, "user.colour"), Ok(5));
    assert_eq!(rustix::fs::getxattr(&big, "user.colour", &mut value[..3]), Err(Sys::RANGE));
    assert_eq!(rustix::fs::getxattr(&big, "user.none", &mut value[..]), Err(Sys::NODATA));
    let n = rustix::fs::listxattr(&big, &mut value[..]).unwrap();
    assert_eq!(&value[..n], b"user.colour\0user.size\0");
    assert_eq!(rustix::fs::listxattr(m.path("sparse"), &mut value[..]), Ok(0));
    m.finish();
}

#[test]
fn holes_and_data() {
    let Some(m) = mount_default() else { return };
    let file = File::open(m.path("sparse")).unwrap();
    let seek = |to| rustix::fs::seek(&file, to);
    assert_eq!(seek(SeekFrom::Data(0)), Ok(256 << 10));
    assert_eq!(seek(SeekFrom::Hole(300 << 10)), Ok(512 << 10));
    assert_eq!(seek(SeekFrom::Hole(600 << 10)), Ok(600 << 10));
    assert_eq!(seek(SeekFrom::Data(600 << 10)), Err(Sys::NXIO));
    drop(file);
    m.finish();
}

#[test]
fn deep_parallel_reads_give_the_right_bytes() {
    let Some(m) = mount_default() else { return };
    let whole = std::fs::read(m.path("big")).unwrap();
    assert_eq!(whole.len() as u64, BIG_SIZE);
    check_pattern(&whole, 0);
    let file = File::open(m.path("big")).unwrap();
    base::rt::fan_out(32, |thread| {
        let mut x = thread as u64 + 1;
        let mut buf = vec![0; 50_000];
        for _ in 0..40 {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let offset = (x >> 33) % BIG_SIZE;
            let n = file.read_at(&mut buf, offset).unwrap();
            assert!(n > 0);
            check_pattern(&buf[..n], offset);
        }
    });
    assert_eq!(file.read_at(&mut [0; 10], BIG_SIZE).unwrap(), 0);
    assert!(m.fs.nonblocking_hits.load(Ordering::SeqCst) > 0);
    assert!(m.fs.blocking_reads.load(Ordering::SeqCst) > 0);
    drop(file);
    m.finish();
}

#[test]
fn ten_thousand_entries() {
    let Some(m) = mount(
        MemFs { ttl: FOREVER, ..MemFs::default() },
        &Config::default(),
        &MountOptions::default(),
    ) else {
        return;
    };
    for _ in 0..2 {
        let mut names: Vec<_> = std::fs::read_dir(m.path("dir"))
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                let name = entry.file_name().into_string().unwrap();
                let number: u64 = name.strip_prefix("file-").unwrap().parse().unwrap();
                assert_eq!(entry.metadata().unwrap().len(), 1000 + number);
                name
            })
            .collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len() as u64, DIR_FILES);
    }
    assert!(m.fs.plus_calls.load(Ordering::SeqCst) > 0);
    // Attributes came with the listing, not one by one.
    assert!((m.fs.lookup_calls.load(Ordering::SeqCst) as u64) < DIR_FILES / 10);
    m.finish();
}

#[test]
fn plain_listing_without_readdirplus() {
    let config = Config { readdirplus: false, ..Config::default() };
    let Some(m) = mount(MemFs::default(), &config, &MountOptions::default()) else { return };
    let names = std::fs::read_dir(m.path("dir")).unwrap();
    assert_eq!(names.filter(|n| n.is_ok()).count() as u64, DIR_FILES);
    assert_eq!(m.fs.plus_calls.load(Ordering::SeqCst), 0);
    m.finish();
}

#[test]
fn writes_large_and_small_and_truncation() {
    let Some(m) = mount_default() else { return };
    let bytes: Vec<u8> = (0..3_500_000).map(pattern).collect();
    let mut file = File::options().read(true).write(true).open(m.path("rw")).unwrap();
    file.write_all(&bytes).unwrap();
    file.write_all_at(b"hello", 70_001).unwrap();
    let mut back = Vec::new();
    file.rewind().unwrap();
    file.read_to_end(&mut back).unwrap();
    let mut model = bytes;
    model[70_001..70_006].copy_from_slice(b"hello");
    assert!(back == model);
    file.set_len(1000).unwrap();
    assert_eq!(m.fs.rw.lock().unwrap().len(), 1000);
    drop(file);
    drop(File::create(m.path("rw")).unwrap());
    assert!(m.fs.rw.lock().unwrap().is_empty());
    if m.session.negotiated().max_transfer == 1 << 20 {
        assert!(m.fs.whole_writes.load(Ordering::SeqCst) >= 3);
        assert!(m.fs.aligned_writes.load(Ordering::SeqCst) >= 3);
    }
    m.finish();
}

/// So many reads wait for a device, and the receiving threads still answer. `in_turn`: the
/// next comes when the one before it waits.
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
fn wait_in_reads(m: MountedTestFs, reads: usize, in_turn: bool) {
    let file = File::open(m.path("slow")).unwrap();
    let fs = &m.fs;
    std::thread::scope(|scope| {
        for i in 0..reads {
            let file = &file;
            scope.spawn(move || {
                let mut buf = [1; 4096];
                assert_eq!(file.read_at(&mut buf, i as u64 * 4096).unwrap(), 4096);
                assert!(buf.iter().all(|&b| b == 0));
            });
            if in_turn {
                eventually("the read", || fs.waiting.load(Ordering::SeqCst) == i + 1);
            }
        }
        eventually("reads at the device", || fs.waiting.load(Ordering::SeqCst) == reads);
        for _ in 0..100 {
            assert_eq!(std::fs::metadata(m.path("big")).unwrap().len(), BIG_SIZE);
        }
        assert_eq!(fs.waiting.load(Ordering::SeqCst), reads);
        fs.open_gate();
    });
    drop(file);
    m.finish();
}

#[test]
fn waiting_reads_do_not_stop_the_others() {
    let Some(m) = mount_default() else { return };
    wait_in_reads(m, 64, false);
}

/// A core had eight seats over io_uring, and a ninth read that waited stopped its queue.
#[test]
fn waiting_reads_do_not_stop_the_others_over_io_uring() {
    // Seats are made ahead, and a read that came before its seat would wait for ever.
    let Some(m) = mount_over_io_uring(UringTransport { entries_min: 16, entries_max: 80 }) else {
        return;
    };
    wait_in_reads(m, 64, true);
}

#[test]
fn a_killed_reader_interrupts_its_request() {
    let Some(m) = mount_default() else { return };
    let mut child = std::process::Command::new("cat")
        .arg(m.path("stuck"))
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    eventually("the read", || m.fs.waiting.load(Ordering::SeqCst) == 1);
    assert!(child.try_wait().unwrap().is_none());
    child.kill().unwrap();
    child.wait().unwrap();
    eventually("the interrupt", || m.fs.interrupted_reads.load(Ordering::SeqCst) == 1);
    // A killed process flushes its files; that request may be interrupted as well.
    let interrupts = m.fs.interrupts.lock().unwrap().clone();
    let flushes = m.fs.flushes.lock().unwrap().clone();
    let read = m.fs.stuck_read.load(Ordering::SeqCst);
    assert_eq!(interrupts.iter().filter(|&&u| u == read).count(), 1);
    assert!(interrupts.iter().all(|u| *u == read || flushes.contains(u)), "{interrupts:?}");
    m.finish();
}

#[test]
fn a_panic_is_an_error_of_its_request_alone() {
    let Some(m) = mount_default() else { return };
    for _ in 0..3 {
        assert_eq!(std::fs::read(m.path("panic")).unwrap_err().raw_os_error(), Some(5));
    }
    assert_eq!(std::fs::read(m.path("big")).unwrap().len() as u64, BIG_SIZE);
    m.finish();
}

#[test]
fn unmounting_while_threads_read() {
    let Some(m) = mount_default() else { return };
    if !can_abort() {
        return m.finish();
    }
    let stop = AtomicBool::new(false);
    let (opened, reads) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let (m, stop, opened, reads) = (&m, &stop, &opened, &reads);
            scope.spawn(move || {
                let file = File::open(m.path("big")).unwrap();
                opened.fetch_add(1, Ordering::SeqCst);
                let mut buf = vec![0; 65_536];
                let mut offset = thread << 20;
                while !stop.load(Ordering::SeqCst) {
                    match file.read_at(&mut buf, offset) {
                        Ok(n) => check_pattern(&buf[..n], offset),
                        // Aborted: what follows fails too.
                        Err(e) => {
                            assert!(matches!(e.raw_os_error(), Some(5 | 103 | 107)), "{e}");
                            return;
                        }
                    }
                    offset = (offset + 65_536) % BIG_SIZE;
                    reads.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        eventually("all have opened", || opened.load(Ordering::SeqCst) == 8);
        eventually("reading", || reads.load(Ordering::SeqCst) > 100);
        let busy = m.session.unmount(UnmountOptions::default()).unwrap_err();
        assert_eq!(busy.kind(), base::ErrorKind::Busy);
        m.session.unmount(UnmountOptions { lazy: true, force: true }).unwrap();
        m.session.join();
        stop.store(true, Ordering::SeqCst);
    });
    assert!(m.fs.destroyed.load(Ordering::SeqCst) && !m.session.is_running());
    assert_eq!(
        m.session.unmount(UnmountOptions::default()).unwrap_err().kind(),
        base::ErrorKind::NotFound
    );
    std::fs::remove_dir(&m.dir).unwrap();
}

/// Aborting ends requests that sit in the file system, too.
#[test]
fn a_forced_unmount_wakes_sleepers() {
    let Some(m) = mount_default() else { return };
    if !can_abort() {
        return m.finish();
    }
    let file = File::open(m.path("stuck")).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| assert!(file.read_at(&mut [0; 10], 0).is_err()));
        eventually("the read", || m.fs.waiting.load(Ordering::SeqCst) == 1);
        m.session.unmount(UnmountOptions { lazy: true, force: true }).unwrap();
        m.session.join();
    });
    assert_eq!(m.fs.interrupted_reads.load(Ordering::SeqCst), 1);
    assert!(m.fs.destroyed.load(Ordering::SeqCst));
    drop(file);
    std::fs::remove_dir(&m.dir).unwrap();
}

/// The FUSE mounts of a subtype and source.
fn mounts_of(subtype: &str, fsname: &str) -> Vec<MountEntry> {
    let mut mounts = fuse_mounts().expect("the table of mounts can be read");
    mounts.retain(|m| m.subtype == subtype && m.fsname == fsname);
    mounts
}

#[test]
fn stale_mounts_are_found_and_cleaned() {
    let options = MountOptions {
        fsname: format!("stale-{}", std::process::id()),
        subtype: "cenotetest".into(),
        ..MountOptions::default()
    };
    let Some(m) = mount(MemFs::default(), &Config::default(), &options) else { return };
    let list = mounts_of("cenotetest", &options.fsname);
    assert_eq!(list.len(), 1);
    assert_eq!(list[0].path, m.dir.canonicalize().unwrap());
    assert!(!is_stale(&m.dir));
    let file = File::open(m.path("big")).unwrap();
    if !can_abort() {
        drop(file);
        return m.finish();
    }
    m.session.unmount(UnmountOptions { lazy: false, force: true }).unwrap_err();
    m.session.join();
    assert!(is_stale(&m.dir));
    unmount(&m.dir, UnmountOptions { lazy: true, force: false }).unwrap();
    assert!(mounts_of("cenotetest", &options.fsname).is_empty());
    drop(file);
    std::fs::remove_dir(&m.dir).unwrap();
}

#[test]
fn mounting_through_the_helper() {
    let options = MountOptions {
        use_helper: true,
        read_only: true,
        fsname: "tank/with, comma".into(),
        ..MountOptions::default()
    };
    let Some(m) = mount(MemFs::default(), &Config::default(), &options) else { return };
    let list = mounts_of("zfs", "tank/with, comma");
    assert_eq!(list.len(), 1);
    assert!(list[0].read_only);
    check_pattern(&std::fs::read(m.path("big")).unwrap()[..100_000], 0);
    m.finish();
}

#[test]
fn notifications_reach_the_kernel() {
    let fs = MemFs { ttl: FOREVER, ..MemFs::default() };
    let Some(m) = mount(fs, &Config::default(), &MountOptions::default()) else { return };
    let size = || std::fs::metadata(m.path("rw")).unwrap().len();
    let calls = || m.fs.lookup_calls.load(Ordering::SeqCst);
    let n = m.session.notifier();
    assert_eq!(size(), 0);
    m.fs.rw.lock().unwrap().extend_from_slice(b"behind its back");
    assert_eq!(size(), 0);
    n.inval_inode(RW, 0, 0).unwrap();
    assert_eq!(size(), 15);
    let before = calls();
    assert_eq!(size(), 15);
    assert_eq!(calls(), before);
    n.inval_entry(ROOT_ID, b"rw").unwrap();
    assert_eq!(size(), 15);
    assert_eq!(calls(), before + 1);
    n.inval_entry(ROOT_ID, b"unknown").unwrap();
    n.inval_inode(999_999, 0, 0).unwrap();
    if m.session.negotiated().minor >= 44 {
        n.inc_epoch().unwrap();
        size();
        assert_eq!(calls(), before + 2);
    }
    if m.session.negotiated().minor >= 45 {
        assert!(m.fs.lookups.lock().unwrap()[&RW] > 0);
        n.prune(&[RW]).unwrap();
        eventually("the pruned node forgotten", || m.fs.lookups.lock().unwrap()[&RW] == 0);
    }
    m.finish();
}

/// Waits for locks do not take the place of the requests that would end them.
#[test]
fn more_lock_waiters_than_requests_at_once() {
    let config = Config { flock_locks: true, concurrency: 2, ..Config::default() };
    let Some(m) = mount(MemFs::default(), &config, &MountOptions::default()) else { return };
    let holder = File::open(m.path("big")).unwrap();
    holder.lock().unwrap();
    let got = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let file = File::open(m.path("big")).unwrap();
                file.lock().unwrap();
                got.fetch_add(1, Ordering::SeqCst);
                file.unlock().unwrap();
            });
        }
        let all_wait = || m.fs.lock_waiters.load(Ordering::SeqCst) == 8;
        common::eventually("all wait for the lock", all_wait);
        assert_eq!(got.load(Ordering::SeqCst), 0);
        let other = File::open(m.path("big")).unwrap();
        assert!(other.try_lock().is_err());
        holder.unlock().unwrap();
    });
    assert_eq!(got.load(Ordering::SeqCst), 8);
    drop(holder);
    m.finish();
}

/// One request at a time: slow, but nothing is lost.
#[test]
fn backpressure() {
    let config = Config { concurrency: 1, ..Config::default() };
    let Some(m) = mount(MemFs::default(), &config, &MountOptions::default()) else { return };
    base::rt::fan_out(8, |i| {
        let file = File::open(m.path("big")).unwrap();
        let mut buf = vec![0; 100_000];
        for round in 0..20 {
            let offset = (i as u64 * 20 + round) * 100_000;
            let n = file.read_at(&mut buf, offset).unwrap();
            check_pattern(&buf[..n], offset);
        }
    });
    m.finish();
}

#[test]
fn a_bad_mount_point_says_so() {
    let none = std::env::temp_dir().join("cenote-fuse-test-no-such-directory");
    let e = Session::mount(
        std::sync::Arc::new(MemFs::default()),
        &none,
        &MountOptions::default(),
        &Config::default(),
    )
    .unwrap_err();
    assert_eq!(e.kind(), base::ErrorKind::NotFound);
}

fn mount_over_io_uring(transport: UringTransport) -> Option<MountedTestFs> {
    if !UringTransport::is_available() {
        let what = "io_uring for FUSE is off (/sys/module/fuse/parameters/enable_uring)";
        skip(Need::Uring, what);
        return None;
    }
    mount_by(MemFs::default(), &Config::default(), &MountOptions::default(), &transport)
}

/// From several threads, whatever the core.
#[test]
fn over_io_uring() {
    let Some(m) = mount_over_io_uring(UringTransport { entries_min: 2, entries_max: 2 }) else {
        return;
    };
    let file = File::open(m.path("big")).unwrap();
    std::thread::scope(|scope| {
        for t in 0..8u64 {
            let (file, m) = (&file, &m);
            scope.spawn(move || {
                let mut buf = vec![0; 100_000];
                for i in 0..20 {
                    let offset = (t * 20 + i) * 100_003 % (BIG_SIZE - 100_000);
                    file.read_exact_at(&mut buf, offset).unwrap();
                    check_pattern(&buf, offset);
                    assert_eq!(std::fs::metadata(m.path("big")).unwrap().len(), BIG_SIZE);
                }
            });
        }
    });
    let bytes: Vec<u8> = (0..3_500_000).map(pattern).collect();
    std::fs::write(m.path("rw"), &bytes).unwrap();
    assert!(*m.fs.rw.lock().unwrap() == bytes);
    drop(file);
    m.finish();
}
