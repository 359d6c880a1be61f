//! The intent log on every kind and width of vdev.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use super::log::{check_all, essence, fsync_all, log_of, quiet};
use super::*;

/// Far longer than one pool takes on a slow machine.
const HANG: Duration = Duration::from_secs(300);

/// Pools that are tried at the same time.
const THREADS: usize = 4;

/// A kind of vdev, and its disks.
type WidthCase = (String, Vec<NewVdev>, usize);

fn leaves(scratch: &Scratch, from: usize, count: usize) -> Vec<NewVdev> {
    let leaf = |i| {
        let path = scratch.path().join(format!("d{i}"));
        std::fs::File::create(&path).unwrap().set_len(64 * MB).unwrap();
        NewVdev::new(NewKind::File(path))
    };
    (from..from + count).map(leaf).collect()
}

fn top(scratch: &Scratch, kind: NewKind, from: usize, count: usize) -> NewVdev {
    NewVdev::new(kind).with_children(leaves(scratch, from, count))
}

/// Every kind of vdev; `which` chooses one.
fn case(scratch: &Scratch, which: usize) -> Option<WidthCase> {
    let widths = (1..=3u32).flat_map(|p| (3..=9usize).map(move |w| (p, w)));
    let widths: Vec<_> = widths.filter(|(p, w)| *w > *p as usize).collect();
    if let Some(&(nparity, width)) = widths.get(which) {
        let vdev = top(scratch, NewKind::Raidz { nparity }, 0, width);
        return Some((format!("raidz{nparity} of {width}"), vec![vdev], width));
    }
    let draid = |nparity, ndata| NewKind::Draid { nparity, ndata: Some(ndata), nspares: 1 };
    Some(match which - widths.len() {
        0 => ("draid1".into(), vec![top(scratch, draid(1, 3), 0, 6)], 6),
        1 => ("draid2".into(), vec![top(scratch, draid(2, 4), 0, 8)], 8),
        2 => ("mirror".into(), vec![top(scratch, NewKind::Mirror, 0, 3)], 3),
        3 => {
            let two = vec![top(scratch, NewKind::Mirror, 0, 2), leaves(scratch, 2, 1).remove(0)];
            ("a mirror and a disk".into(), two, 3)
        }
        4 => {
            let parity = top(scratch, NewKind::Raidz { nparity: 1 }, 2, 5);
            let two = vec![top(scratch, NewKind::Mirror, 0, 2), parity];
            ("a mirror and raidz1 of 5".into(), two, 7)
        }
        5 => {
            let narrow = top(scratch, NewKind::Raidz { nparity: 1 }, 0, 4);
            let wide = top(scratch, NewKind::Raidz { nparity: 2 }, 4, 7);
            ("raidz1 of 4 and raidz2 of 7".into(), vec![narrow, wide], 11)
        }
        _ => return None,
    })
}

/// Sizes of the files: parts of a sector and of a block, odd numbers of sectors, whole
/// blocks, and more than the largest log block has.
fn sizes(which: usize) -> impl Iterator<Item = usize> {
    let odd = (0..12).map(move |i| 4097 + (i * 173 + which * 31) % 1904);
    let others = [1, 100, 3000, 4096, 8192, 9000, 12_289, 16_384, 33_000, 50_000];
    odd.chain(others).chain([4097, 5000, 6000, 65_536, 130_000, 131_072, 140_000])
}

/// A pool of a kind, its name, and how many disks it has.
pub(super) fn make(test: &str, which: usize, ashift: u64) -> Option<(PosixFixture, String, usize)> {
    make_with(test, which, ashift, &|_| {})
}

/// The same, created with other wishes.
pub(super) fn make_with(
    test: &str,
    which: usize,
    ashift: u64,
    wish: &dyn Fn(&mut CreateRequest),
) -> Option<(PosixFixture, String, usize)> {
    let scratch = Scratch::new(&format!("posix-{test}-{which}-{ashift}"));
    let (name, vdevs, disks) = case(&scratch, which)?;
    let engine = testkit::engine();
    let mut wanted = request(scratch.path().to_path_buf(), 5000);
    wanted.vdevs = vdevs;
    wanted.settings.push(PoolSetting::Stored("ashift", ashift));
    wish(&mut wanted);
    let pool = engine.create_pool(&wanted).unwrap().unwrap();
    pool.create_filesystem(DATASET, &[], None).unwrap();
    let fs = open(&pool);
    quiet(&pool);
    Some((PosixFixture { scratch, engine, pool, fs }, name, disks))
}

/// `whole`: acknowledged writes survive a power cut, and zdb finds no error.
fn durability(which: usize, ashift: u64, whole: bool) -> Option<String> {
    let (rig, name, disks) = make("width", which, ashift)?;
    for (i, size) in sizes(which).enumerate() {
        let file = rig.file(rig.root(), &format!("f{i}"));
        rig.write(file, 0, &noise(i as u64, size));
        rig.fs.fsync(file).unwrap();
    }
    // Each call is synchronous.
    log_of(&rig.pool).set_mode(zil::Mode::Always);
    for (i, size) in sizes(which).enumerate().step_by(3) {
        let file = rig.file(rig.root(), &format!("s{i}"));
        rig.write(file, 0, &noise(i as u64, size));
    }
    fsync_all(&rig.fs);
    if !whole {
        // A following txg and an export do not hang either.
        let PosixFixture { scratch: _scratch, engine: _engine, pool, fs } = rig;
        fs.sync_all().unwrap();
        drop(fs);
        pool.export().unwrap();
        return Some(name);
    }
    let wanted = essence(&rig.fs);
    let cut = Scratch::new(&format!("posix-width-cut-{which}-{ashift}"));
    for i in 0..disks {
        let file = format!("d{i}");
        testkit::copy_file(&rig.scratch.path().join(&file), &cut.path().join(&file));
    }
    check_all(&cut, &wanted, true);
    rig.end();
    Some(name)
}

/// Story: an administrator made a pool of five files, raidz1 with 4 KiB sectors, and a mail
/// server wrote messages of 5,000 bytes with fsync. After a few of them it hung, and with
/// it `zpool sync`, `ls` and the end of the daemon. The write of a skip sector's zeros was
/// lost in the queue of the last disk.
#[test]
fn fsync_returns_on_every_kind_and_width_of_vdev() {
    let nightly = std::env::var_os("CENOTE_NIGHTLY").is_some();
    let (sender, done) = mpsc::channel();
    let next = Arc::new(AtomicUsize::new(0));
    // A thread that hangs is not joined. Most of a pool's time are flushes and zdb's pauses.
    for _ in 0..THREADS {
        let (sender, next) = (sender.clone(), Arc::clone(&next));
        std::thread::spawn(move || {
            loop {
                let which = next.fetch_add(1, Ordering::Relaxed);
                let ashifts: &[u64] = match which % 5 {
                    _ if nightly => &[9, 12],
                    4 => &[9],
                    _ => &[12],
                };
                for ashift in ashifts {
                    let Some(name) = durability(which, *ashift, nightly || which % 7 == 2) else {
                        return;
                    };
                    sender.send(format!("{name}, ashift {ashift}")).unwrap();
                }
            }
        });
    }
    drop(sender);
    let mut count = 0;
    loop {
        match done.recv_timeout(HANG) {
            Ok(name) => {
                count += 1;
                println!("{count}: {name}");
            }
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("hangs after {count} kinds of vdev"),
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
        }
    }
    assert!(count >= 26, "{count}");
}
