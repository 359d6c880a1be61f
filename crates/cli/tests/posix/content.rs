//! What is in files: holes, ranges, copies, mapped pages, sizes.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};

use rustix::fs::{FallocateFlags, OFlags, SeekFrom, fallocate, seek};
use rustix::io::Errno;

use super::common::eventually;
use super::{World, errno, noise, put, refused, run};

fn both(path: &std::path::Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

#[test]
fn ranges_of_files() {
    let Some(w) = World::new("ranges", 256, &["-O", "compression=off"]) else { return };
    let path = w.path("file");
    let mut model = noise(1, 1 << 20);
    put(&path, &model);
    let file = both(&path);
    let check = |model: &[u8], what: &str| {
        assert!(std::fs::read(&path).unwrap() == model, "{what}");
    };
    let keep = FallocateFlags::KEEP_SIZE;
    let punch = FallocateFlags::PUNCH_HOLE | keep;
    for (offset, len) in [(100, 5000), (128 << 10, 256 << 10), (1 << 19, 1), (1_000_000, 1 << 20)] {
        fallocate(&file, punch, offset, len).unwrap();
        let end = (offset + len).min(model.len() as u64);
        model[offset as usize..end as usize].fill(0);
        check(&model, "a hole was punched");
    }
    for (flags, offset, len) in [
        (FallocateFlags::ZERO_RANGE, 300_000, 200_001),
        (FallocateFlags::ZERO_RANGE, (1 << 20) - 10, 500_010),
        (FallocateFlags::ZERO_RANGE | keep, 1_500_000, 100_000),
        (keep, 0, 4 << 20),
        (FallocateFlags::empty(), 1_600_000, 100_000),
    ] {
        fallocate(&file, flags, offset, len).unwrap();
        let end = (offset + len) as usize;
        if !flags.contains(keep) && end > model.len() {
            model.resize(end, 0);
        }
        if flags.contains(FallocateFlags::ZERO_RANGE) {
            let end = end.min(model.len());
            model[(offset as usize).min(end)..end].fill(0);
        }
        check(&model, "a range was zeroed");
    }
    // What cannot be kept is not promised.
    assert_eq!(refused(fallocate(&file, keep, 0, 1 << 40)), Errno::NOSPC);
    for flags in [FallocateFlags::COLLAPSE_RANGE, FallocateFlags::INSERT_RANGE] {
        assert_eq!(refused(fallocate(&file, flags, 0, 128 << 10)), Errno::OPNOTSUPP);
    }
    // Shorter and longer: what was cut off does not come back.
    for size in [1_234_567_u64, 100, 200_000, 131_072, 131_073, 3 << 20] {
        file.set_len(size).unwrap();
        model.resize(size as usize, 0);
        check(&model, "another size");
    }
    file.write_all_at(b"end", 5_000_000).unwrap();
    model.resize(5_000_000, 0);
    model.extend_from_slice(b"end");
    check(&model, "written behind the end");
    drop(file);
    w.again();
    check(&model, "mounted again");
    w.end();
}

#[test]
fn holes_are_found_and_copied() {
    let Some(w) = World::new("holes", 256, &[]) else { return };
    let path = w.path("sparse");
    let block = noise(2, 128 << 10);
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path);
    let file = file.unwrap();
    for at in [2_u64, 5, 6] {
        file.write_all_at(&block, at * (128 << 10)).unwrap();
    }
    file.set_len(10 * (128 << 10)).unwrap();
    file.sync_all().unwrap();
    let find = |to| seek(&file, to).map(|at| at as f64 / f64::from(128 << 10));
    assert_eq!(find(SeekFrom::Data(0)), Ok(2.0));
    assert_eq!(find(SeekFrom::Hole(2 * (128 << 10))), Ok(3.0));
    assert_eq!(find(SeekFrom::Data(3 * (128 << 10))), Ok(5.0));
    assert_eq!(find(SeekFrom::Hole(5 * (128 << 10) + 7)), Ok(7.0));
    assert_eq!(refused(find(SeekFrom::Data(7 * (128 << 10)))), Errno::NXIO);
    assert_eq!(find(SeekFrom::Hole(9 * (128 << 10))), Ok(9.0));
    assert_eq!(refused(find(SeekFrom::Hole(10 * (128 << 10)))), Errno::NXIO);
    // Dirty data is data at once.
    file.write_all_at(b"x", 8 * (128 << 10)).unwrap();
    assert!(find(SeekFrom::Data(7 * (128 << 10))).unwrap() <= 8.0);

    let copy = File::create(w.path("copy")).unwrap();
    let (mut from, mut to) = (100_u64, 7_u64);
    let mut left = 9 * (128 << 10);
    while left > 0 {
        let n = rustix::fs::copy_file_range(&file, Some(&mut from), &copy, Some(&mut to), left);
        let n = n.unwrap();
        assert!(n > 0);
        left -= n;
    }
    let (all, copied) = (std::fs::read(&path).unwrap(), std::fs::read(w.path("copy")).unwrap());
    assert!(copied[..7] == [0; 7] && copied[7..] == all[100..100 + 9 * (128 << 10)]);
    // Behind the end there is nothing to copy; onto itself only what does not overlap.
    let mut end = all.len() as u64;
    assert_eq!(rustix::fs::copy_file_range(&file, Some(&mut end), &copy, None, 10), Ok(0));
    let (mut a, mut b) = (0, 1000);
    let onto = rustix::fs::copy_file_range(&file, Some(&mut a), &file, Some(&mut b), 2000);
    assert_eq!(refused(onto), Errno::INVAL);
    drop((file, copy));
    w.end();
}

/// Memory that shows a file.
struct Map {
    at: *mut u8,
    len: usize,
}

impl Map {
    fn of(file: &File, len: usize) -> Map {
        use std::os::fd::AsRawFd;
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the kernel chooses the place; the result is checked.
        let at = unsafe {
            libc::mmap(std::ptr::null_mut(), len, prot, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        assert_ne!(at, libc::MAP_FAILED);
        Map { at: at.cast(), len }
    }

    fn put(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.len);
        // SAFETY: inside the mapping, of which no reference exists.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.at.add(offset), bytes.len()) };
    }

    fn get(&self, offset: usize, len: usize) -> Vec<u8> {
        assert!(offset + len <= self.len);
        let mut out = vec![0; len];
        // SAFETY: inside the mapping, of which no reference exists.
        unsafe { std::ptr::copy_nonoverlapping(self.at.add(offset), out.as_mut_ptr(), len) };
        out
    }

    fn sync(&self) {
        // SAFETY: the mapping as it was made.
        assert_eq!(unsafe { libc::msync(self.at.cast(), self.len, libc::MS_SYNC) }, 0);
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the mapping as it was made, used no more.
        unsafe { libc::munmap(self.at.cast(), self.len) };
    }
}

#[test]
fn mapped_files() {
    let Some(w) = World::new("mapped", 256, &[]) else { return };
    // Who opens for synchronous writes passes the kernel's pages by, but for those mapped.
    let models = [("file", OFlags::empty()), ("dsync", OFlags::DSYNC)].map(|(name, flags)| {
        let model = noise(3, 3 << 20);
        put(&w.path(name), &model);
        let mut open = OpenOptions::new();
        open.read(true).write(true).custom_flags(flags.bits() as i32);
        (name, mapped(&open.open(w.path(name)).unwrap(), model))
    });
    w.again();
    for (name, model) in models {
        assert!(std::fs::read(w.path(name)).unwrap() == model, "{name}");
    }
    w.end();
}

/// Reads and writes a file through a map and by calls; what it should have then.
fn mapped(file: &File, mut model: Vec<u8>) -> Vec<u8> {
    let map = Map::of(file, model.len());
    assert!(map.get(0, model.len()) == model);
    for (n, at) in [0, 4095, 131_070, 1 << 20, (3 << 20) - 9].into_iter().enumerate() {
        let bytes = noise(10 + n as u64, 9);
        map.put(at, &bytes);
        model[at..at + 9].copy_from_slice(&bytes);
        // Who reads sees it before it is written back, and the other way round.
        let mut seen = [0; 9];
        file.read_exact_at(&mut seen, at as u64).unwrap();
        assert_eq!(seen, bytes[..]);
        file.write_all_at(b"fd", at as u64 + 3).unwrap();
        model[at + 3..at + 5].copy_from_slice(b"fd");
        assert_eq!(map.get(at + 3, 2), b"fd");
    }
    map.sync();
    map.put(700, b"late");
    model[700..704].copy_from_slice(b"late");
    model
}

#[test]
fn the_largest_file() {
    let Some(w) = World::new("largest", 256, &[]) else { return };
    let path = w.path("file");
    let file = File::create(&path).unwrap();
    let end = i64::MAX as u64;
    file.set_len(end).unwrap();
    assert_eq!(file.metadata().unwrap().len(), end);
    // The kernel's own word for an offset that no file has.
    assert_eq!(errno(file.write_at(b"x", end)), libc::EINVAL);
    file.write_all_at(b"x", end - 1).unwrap();
    file.write_all_at(b"middle", end / 2).unwrap();
    file.sync_all().unwrap();
    drop(file);
    w.again();
    let file = both(&path);
    let (mut last, mut middle) = ([0; 1], [0; 6]);
    file.read_exact_at(&mut last, end - 1).unwrap();
    file.read_exact_at(&mut middle, end / 2).unwrap();
    assert_eq!((&last, &middle), (b"x", b"middle"));
    assert!(file.metadata().unwrap().blocks() < 4096);
    drop(file);
    std::fs::remove_file(&path).unwrap();
    w.end();
}

#[test]
fn times_and_sizes_follow() {
    let Some(w) = World::new("times", 256, &["-O", "relatime=off"]) else { return };
    let path = w.path("file");
    let mut file = File::create(&path).unwrap();
    let times = || {
        let m = std::fs::metadata(&path).unwrap();
        let of = |s: i64, n: i64| i128::from(s) * 1_000_000_000 + i128::from(n);
        let mtime = of(m.mtime(), m.mtime_nsec());
        (of(m.atime(), m.atime_nsec()), mtime, of(m.ctime(), m.ctime_nsec()))
    };
    // Until the clock of the kernel's time stamps has moved on.
    let pause = || {
        let tick = || {
            let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
            (now.tv_sec, now.tv_nsec)
        };
        let begin = tick();
        eventually("time stands still", || tick() > begin);
    };
    let born = times();
    pause();
    file.write_all(b"content").unwrap();
    let written = times();
    assert!(written.0 == born.0 && written.1 > born.1 && written.2 > born.2);
    pause();
    assert_eq!(std::fs::read(&path).unwrap(), b"content");
    pause();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let changed = times();
    assert!(changed.1 == written.1 && changed.2 > written.2);
    let old = std::time::UNIX_EPOCH + std::time::Duration::new(1_000, 5);
    let set = std::fs::FileTimes::new().set_modified(old).set_accessed(old);
    file.set_times(set).unwrap();
    let set = times();
    assert_eq!((set.0, set.1), (1_000_000_000_005, 1_000_000_000_005));
    assert!(set.2 >= changed.2);
    drop(file);
    w.again();
    assert_eq!(times(), set);
    // Reading is an access; it is stored without a write storm.
    assert_eq!(std::fs::read(&path).unwrap(), b"content");
    w.again();
    assert!(times().0 > changed.2, "the access was forgotten");
    w.end();
}

/// After a direct write by an ordinary user the kernel went on showing, and obeying, a
/// program's set-id bits, which were gone on disk (xfstests' generic/355).
#[test]
fn a_direct_write_ends_set_id() {
    use std::os::unix::fs::PermissionsExt;
    let Some(w) = World::new("direct-suid", 256, &[]) else { return };
    let file = w.path("program");
    let mode = || std::fs::metadata(&file).unwrap().permissions().mode() & 0o7777;
    for flags in ["direct,", ""] {
        std::fs::write(&file, vec![1; 8192]).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o6777)).unwrap();
        assert_eq!(mode(), 0o6777);
        let of = format!("of={}", file.display());
        let flags = format!("conv=notrunc oflag={flags}sync");
        let args = [
            &["if=/dev/zero", &of, "bs=4096", "count=1"][..],
            &flags.split(' ').collect::<Vec<_>>(),
        ];
        assert_eq!(run("dd", &args.concat(), Some(65534)).code, 0);
        assert_eq!(mode(), 0o777, "{flags}");
        // Root keeps them.
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o6777)).unwrap();
        assert_eq!(run("dd", &args.concat(), None).code, 0);
        assert_eq!(mode(), 0o6777, "{flags}");
    }
    w.end();
}

/// `fallocate` by an ordinary user left a program's set-id bits (xfstests' generic/683 to
/// 685): the kernel leaves taking them away to the server.
#[test]
fn fallocate_ends_set_id() {
    use std::os::unix::fs::PermissionsExt;
    let Some(w) = World::new("falloc-suid", 256, &[]) else { return };
    let file = w.path("program");
    for how in ["-l 4096", "-l 20000", "-p -l 4096", "-z -l 4096"] {
        for (mode, left) in [(0o6777, 0o777), (0o6666, 0o666), (0o4767, 0o767)] {
            std::fs::write(&file, vec![1; 8192]).unwrap();
            for user in [None, Some(65534)] {
                std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
                let args: Vec<&str> = how.split(' ').chain([file.to_str().unwrap()]).collect();
                let said = run("fallocate", &args, user);
                assert_eq!(said.code, 0, "{said:?}");
                let now = std::fs::metadata(&file).unwrap().permissions().mode() & 0o7777;
                assert_eq!(now, if user.is_none() { mode } else { left }, "{how}, {mode:o}");
            }
        }
    }
    w.end();
}

/// Commits of intent logs so far.
fn commits(w: &World) -> u64 {
    let text = w.s.ok(&["kstat", "-p"]);
    let lines = text.lines().filter(|line| line.contains("zil_commit_count"));
    let counts = lines.filter_map(|line| line.split_whitespace().last()?.parse().ok());
    counts.max().unwrap_or_else(|| panic!("no zil_commit_count"))
}

/// Once the kernel asked for nothing behind a write that passed its pages by, and neither
/// did the server.
#[test]
fn who_writes_with_o_dsync_is_answered_when_it_is_on_disk() {
    let Some(w) = World::new("dsync", 128, &[]) else { return };
    let path = w.path("file");
    put(&path, &noise(1, 1 << 16));
    for (read, flags) in [(true, OFlags::DSYNC), (false, OFlags::DSYNC), (false, OFlags::SYNC)] {
        let flags = flags.bits() as i32;
        let file = OpenOptions::new().read(read).write(true).custom_flags(flags).open(&path);
        let (file, before) = (file.unwrap(), commits(&w));
        (0..3).for_each(|i| file.write_all_at(&noise(i, 4096), i * 4096).unwrap());
        assert!(commits(&w) >= before + 3, "opened for reading: {read}");
    }
    w.end();
}
