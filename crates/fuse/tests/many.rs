//! Many mounts in one process. Needs `/dev/fuse`; skipped with a line printed where there is
//! none. A program of its own: it counts threads and descriptors.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, clippy::unwrap_used)]

mod common;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;

use common::*;
use fuse::*;

fn of_status(key: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix(key)).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// Threads, open descriptors, KiB of memory.
fn costs() -> (usize, usize, usize) {
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().count();
    (of_status("Threads:"), descriptors, of_status("VmRSS:"))
}

/// Each mount had ten threads, ten descriptors and 2.4 MB: 670 mounts were 6,728 threads,
/// and where descriptors ran out nothing could be unmounted any more.
#[test]
fn a_mount_costs_a_descriptor() {
    let nightly = std::env::var_os("CENOTE_NIGHTLY").is_some_and(|v| v == "1");
    let count = if nightly { 2000 } else { 200 };
    raise_limit();
    let Some(first) = mount_default() else { return };
    std::fs::read(first.path("big")).unwrap();
    let before = costs();
    let mounts: Vec<_> = (0..count).filter_map(|_| mount_default()).collect();
    assert_eq!(mounts.len(), count, "the limit on open files is too low for this test");
    // Every one is used, some by many at once.
    for m in &mounts {
        assert_eq!(std::fs::metadata(m.path("big")).unwrap().len(), BIG_SIZE);
    }
    let after = costs();
    assert_eq!(after.1 - before.1, count, "descriptors");
    let threads = 2 * base::rt::parallelism() + 16;
    assert!(after.0 <= threads, "{} threads", after.0);
    let each = after.2.saturating_sub(before.2) / count;
    assert!(each < 100, "{each} KiB a mount");

    // All mounts wait for their devices at once, and the others still answer.
    let slow: Vec<File> =
        mounts.iter().take(100).map(|m| File::open(m.path("slow")).unwrap()).collect();
    std::thread::scope(|scope| {
        for file in &slow {
            scope.spawn(|| assert_eq!(file.read_at(&mut [1; 4096], 0).unwrap(), 4096));
        }
        eventually("all wait", || {
            mounts.iter().take(100).all(|m| m.fs.waiting.load(Ordering::SeqCst) == 1)
        });
        assert_eq!(std::fs::metadata(first.path("big")).unwrap().len(), BIG_SIZE);
        mounts.iter().take(100).for_each(|m| m.fs.open_gate());
    });
    drop(slow);
    mounts.into_iter().for_each(MountedTestFs::finish);
    first.finish();
    let (_, descriptors, _) = costs();
    assert!(descriptors <= before.1, "{descriptors} descriptors are left");
}
