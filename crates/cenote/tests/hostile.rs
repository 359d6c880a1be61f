//! Hostile pools: random damage everywhere, and forged metadata under right checksums.
//! Whatever a pool contains, the engine must end soon, with a result or an error; it must
//! not panic, hang, or take unbounded memory.
//!
//! `CENOTE_SEEDS` is the number of seeds of each random test (default 50).

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use base::rt::{Mutex, fan_out};
use cenote::inspect::ondisk::dnode::DNODE_SIZE;
use cenote::inspect::ondisk::{BlkPtr, Endian, ObjType};
use testkit::exercise::{Tally, exercise};
use testkit::forge::{Forge, MetadataBlock};
use testkit::{Disk, Rng, Scratch, copy_file, engine, golden, import_from, readonly};

/// Time limit of a seed, seconds.
const SEED_TIME: u64 = 60;
/// Limit of the growth of memory, KiB.
const MEMORY_KIB: u64 = 1 << 20;

fn seeds() -> u64 {
    std::env::var("CENOTE_SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(50)
}

/// The stride that selects about `wanted` of `all`; all of them with many seeds.
fn step(all: usize, wanted: usize) -> usize {
    let wanted = wanted * seeds().div_ceil(50) as usize;
    (all / wanted).max(1)
}

/// Peak memory of this process.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").trim().parse().unwrap()
}

/// Imports and reads everything; `None` when the pool cannot be imported.
fn read_all(dir: &Path) -> Option<Tally> {
    let engine = engine();
    let pool = match import_from(&engine, dir, &readonly()) {
        Ok(pool) => pool,
        Err(e) => {
            let _ = format!("{e} {e:?}");
            return None;
        }
    };
    Some(exercise(&pool))
}

/// Ends the process when a case takes too long: a hang cannot be unwound.
struct Watchdog(Arc<AtomicU64>);

impl Watchdog {
    fn new(name: &'static str) -> Watchdog {
        // 0: no case runs; u64::MAX: all done; else a case, counted from one.
        let current = Arc::new(AtomicU64::new(0));
        let seen = Arc::clone(&current);
        let watch = move || {
            let (mut last, mut since) = (0, 0);
            loop {
                base::rt::sleep(Duration::from_secs(1));
                let now = seen.load(Ordering::Relaxed);
                if now == u64::MAX {
                    return;
                }
                since = if now == last && now != 0 { since + 1 } else { 0 };
                last = now;
                if since > SEED_TIME {
                    eprintln!("{name}: case {} takes more than {SEED_TIME} s", now - 1);
                    std::process::abort();
                }
            }
        };
        base::rt::spawn("watchdog", watch).unwrap();
        Watchdog(current)
    }

    fn begin(&self, case: u64) {
        self.0.store(case + 1, Ordering::Relaxed);
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.0.store(u64::MAX, Ordering::Relaxed);
    }
}

/// Outcomes of many cases.
#[derive(Default)]
struct Outcomes {
    cases: AtomicUsize,
    refused: AtomicUsize,
    answers: AtomicUsize,
    errors: AtomicUsize,
    wrong: Mutex<Vec<String>>,
}

impl Outcomes {
    /// Runs one case; a panic is reported as a failure of the test at the end.
    fn run(&self, what: &str, dir: &Path) {
        self.cases.fetch_add(1, Ordering::Relaxed);
        let run = std::panic::AssertUnwindSafe(|| read_all(dir));
        match std::panic::catch_unwind(run) {
            Ok(Some(tally)) => {
                self.answers.fetch_add(tally.ok, Ordering::Relaxed);
                self.errors.fetch_add(tally.failures(), Ordering::Relaxed);
            }
            Ok(None) => {
                self.refused.fetch_add(1, Ordering::Relaxed);
            }
            Err(panic) => {
                let text = panic
                    .downcast_ref::<String>()
                    .cloned()
                    .or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
                self.wrong.lock().push(format!("{what}: {text:?}"));
            }
        }
    }

    fn check(&self, name: &str, before: u64) {
        let grown = peak_kib().saturating_sub(before);
        println!(
            "{name}: {:?} cases, {:?} imports refused, {:?} answers, {:?} errors, \
             {grown} KiB of memory",
            self.cases, self.refused, self.answers, self.errors
        );
        let wrong = self.wrong.lock();
        assert!(wrong.is_empty(), "{} panics: {:#?}", wrong.len(), *wrong);
        assert!(grown < MEMORY_KIB, "{grown} KiB of memory");
    }
}

/// Random bytes anywhere outside holes, labels included.
#[test]
fn random_flips_over_whole_pools() {
    let before = peak_kib();
    let outcomes = Outcomes::default();
    let pools = ["snaps", "dedup"];
    fan_out(pools.len(), |i| {
        let Some(golden) = golden(pools[i]) else { return };
        let base = Scratch::new("flips-base");
        let original = golden.unpack(base.path()).remove(0);
        let dog = Watchdog::new(pools[i]);
        for seed in 0..seeds() / 2 {
            dog.begin(seed);
            let scratch = Scratch::new("flips");
            let disk = Disk::new(scratch.path().join("disk.img"));
            copy_file(&original, &disk.path);
            flip_everywhere(&disk, seed);
            outcomes.run(&format!("{} seed {seed}", pools[i]), scratch.path());
        }
    });
    outcomes.check("random flips", before);
}

fn flip_everywhere(disk: &Disk, seed: u64) {
    let mut rng = Rng::new(seed);
    let ranges = disk.extents(0..disk.size());
    let total: u64 = ranges.iter().map(|r| r.end - r.start).sum();
    for _ in 0..[10, 100, 1000, 5000][(seed % 4) as usize] {
        let mut at = rng.below(total);
        let inside = ranges.iter().find_map(|r| {
            let len = r.end - r.start;
            if at < len {
                return Some(r.start + at);
            }
            at -= len;
            None
        });
        let byte = disk.read(inside.unwrap(), 1)[0] ^ (1 << rng.below(8));
        disk.write(inside.unwrap(), &[byte]);
    }
}

/// One pool that is forged repeatedly.
struct Victim {
    scratch: Scratch,
    forge: Forge,
}

impl Victim {
    fn new(name: &str, vdev: u32, disk: usize) -> Option<Victim> {
        let golden = golden(name)?;
        let scratch = Scratch::new("forged");
        let disks = golden.unpack(scratch.path());
        let forge = Forge::new(&Disk::new(&disks[disk]), vdev);
        assert!(forge.nodes.len() > 30, "{} blocks of metadata", forge.nodes.len());
        Some(Victim { scratch, forge })
    }
}

/// A random change of a block's content.
fn mangle(rng: &mut Rng, nodes: &[MetadataBlock], id: usize) -> Vec<u8> {
    let mut bytes = nodes[id].content.clone();
    let len = bytes.len();
    match rng.below(9) {
        0 => (0..=rng.below(8)).for_each(|_| {
            let at = nonzero_word(rng, &bytes) + rng.index(8);
            bytes[at] ^= 1 << rng.below(8);
        }),
        1 => (0..=rng.below(64)).for_each(|_| {
            let at = nonzero_word(rng, &bytes) + rng.index(8);
            bytes[at] = rng.number() as u8;
        }),
        2 => run_of(rng, &mut bytes, 0),
        3 => run_of(rng, &mut bytes, 0xff),
        4 => {
            let (a, b) = (nonzero_word(rng, &bytes), nonzero_word(rng, &bytes));
            for i in 0..8 {
                bytes.swap(a + i, b + i);
            }
        }
        5 => {
            // Replaces this block's content by another's.
            let other = &nodes[rng.index(nodes.len())].content;
            let n = other.len().min(len);
            bytes[..n].copy_from_slice(&other[..n]);
        }
        6 => {
            // Replaces a number by a critical value.
            let evil = [0, 1, 7, 1 << 31, u64::from(u32::MAX), 1 << 48, 1 << 63, u64::MAX];
            let at = nonzero_word(rng, &bytes);
            bytes[at..at + 8].copy_from_slice(&evil[rng.index(evil.len())].to_le_bytes());
        }
        7 => {
            // One object's slot over another's.
            let (a, b) =
                (rng.index(len / DNODE_SIZE.min(len)), rng.index(len / DNODE_SIZE.min(len)));
            let size = DNODE_SIZE.min(len);
            bytes.copy_within(a * size..(a + 1) * size, b * size);
        }
        _ => {
            // A small change of a number.
            let at = nonzero_word(rng, &bytes);
            let old = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
            let new = old.wrapping_add(rng.below(5)).wrapping_sub(2);
            bytes[at..at + 8].copy_from_slice(&new.to_le_bytes());
        }
    }
    bytes
}

fn run_of(rng: &mut Rng, bytes: &mut [u8], value: u8) {
    let start = nonzero_word(rng, bytes);
    let end = (start + 1 + rng.index(512)).min(bytes.len());
    bytes[start..end].fill(value);
}

fn nonzero_word(rng: &mut Rng, bytes: &[u8]) -> usize {
    let words = bytes.len() / 8;
    let start = rng.index(words);
    let all = (0..words).map(|i| (start + i) % words * 8);
    all.into_iter().find(|&at| bytes[at..at + 8] != [0; 8]).unwrap_or(0)
}

/// Forged metadata under right checksums: it reaches every layer above the checksums.
#[test]
fn forged_metadata_under_right_checksums() {
    let before = peak_kib();
    let outcomes = Outcomes::default();
    let pools = [("snaps", 0, 0), ("dedup", 0, 0), ("clonedblk", 0, 0), ("dirtyzil", 0, 0)];
    fan_out(2, |half| {
        for (name, vdev, disk) in pools.iter().skip(half).step_by(2) {
            let Some(mut victim) = Victim::new(name, *vdev, *disk) else { continue };
            let fresh = victim.forge.fresh();
            let dog = Watchdog::new(name);
            for seed in 0..seeds() {
                dog.begin(seed);
                let mut rng = Rng::new(seed);
                let mut what = format!("{name} seed {seed}");
                for _ in 0..=rng.below(3) {
                    // The MOS, which describes the pool itself, half of the time.
                    let nodes = &victim.forge.nodes;
                    let (wanted, at) = (rng.below(2) == 0, rng.index(nodes.len()));
                    let all = (0..nodes.len()).map(|i| (at + i) % nodes.len());
                    let id = all
                        .into_iter()
                        .find(|&i| (nodes[i].position.objset == 0) == wanted)
                        .unwrap_or(at);
                    let content = mangle(&mut rng, nodes, id);
                    what = format!("{what}, {:?}", nodes[id].position);
                    victim.forge.change(id, content);
                }
                outcomes.run(&what, victim.scratch.path());
                victim.forge.undo(&fresh);
            }
            // The last undo must have restored the pool.
            assert!(read_all(victim.scratch.path()).unwrap().failures() < 5);
        }
    });
    outcomes.check("forged metadata", before);
}

/// Forged pointers: to other blocks, to themselves, of other sizes and kinds.
#[test]
fn forged_pointers() {
    let before = peak_kib();
    let outcomes = Outcomes::default();
    let Some(mut victim) = Victim::new("snaps", 0, 0) else { return };
    let fresh = victim.forge.fresh();
    let dog = Watchdog::new("forged pointers");
    for seed in 0..seeds() {
        dog.begin(seed);
        let mut rng = Rng::new(seed);
        let nodes = &victim.forge.nodes;
        let id = 1 + rng.index(nodes.len() - 1);
        let other = nodes[rng.index(nodes.len())].bp;
        let mut bp = nodes[id].bp;
        let what = format!("seed {seed}, {:?}", nodes[id].position);
        match rng.below(6) {
            // Another block with its own checksum, but of this block's kind.
            0 => {
                let head = bp.head;
                bp = other;
                bp.head = head;
            }
            1 => bp = other,
            2 => bp.head.lsize.0 = 512 << rng.below(16),
            3 => bp.compression = rng.below(17) as u8,
            4 => bp.head.level = rng.below(12) as u8,
            _ => bp.head.object_type = ObjType(rng.number() as u8),
        }
        victim.forge.point(id, bp);
        outcomes.run(&what, victim.scratch.path());
        victim.forge.undo(&fresh);
    }
    outcomes.check("forged pointers", before);
}

/// The object and slot in its block of the first dnode that `is` accepts.
fn dnode_at(forge: &Forge, objset: u64, object: u64) -> (usize, usize) {
    let block = forge.find(|n| {
        let p = &n.position;
        p.objset == objset && p.object == 0 && p.level == 0 && p.blkid == object / 32
    });
    (block.unwrap(), (object % 32) as usize * DNODE_SIZE)
}

/// Overwrites 64-bit words of an object's bonus.
fn poke_bonus(forge: &mut Forge, object: u64, words: &[(usize, u64)]) {
    let (id, slot) = dnode_at(forge, 0, object);
    let mut content = forge.nodes[id].content.clone();
    let bonus = slot + 64 + usize::from(content[slot + 3]) * 128;
    for &(word, value) in words {
        let at = bonus + word * 8;
        content[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }
    forge.change(id, content);
}

/// Replaces every occurrence of one number in an object's blocks by another.
fn replace_number(forge: &mut Forge, objset: u64, object: u64, old: u64, new: u64) -> usize {
    let blocks: Vec<usize> = (0..forge.nodes.len())
        .filter(|&i| {
            let p = &forge.nodes[i].position;
            p.objset == objset && p.object == object && p.level == 0
        })
        .collect();
    let mut count = 0;
    for id in blocks {
        let mut content = forge.nodes[id].content.clone();
        let before = count;
        for word in content.chunks_exact_mut(8) {
            // Fat ZAPs store values in big-endian order, microzaps in the writer's order.
            for swap in [u64::to_le_bytes as fn(u64) -> [u8; 8], u64::to_be_bytes] {
                if word == swap(old) {
                    word.copy_from_slice(&swap(new));
                    count += 1;
                }
            }
        }
        if count > before {
            forge.change(id, content);
        }
    }
    count
}

/// Runs `f` and fails if it takes too long.
fn in_time<T>(name: &'static str, f: impl FnOnce() -> T) -> T {
    let dog = Watchdog::new(name);
    dog.begin(0);
    f()
}

/// A dataset whose children are its ancestors: every name is endless, and with two of them
/// the number of names doubles with each level.
#[test]
fn datasets_that_contain_themselves() {
    let Some(mut victim) = Victim::new("snaps", 0, 0) else { return };
    let (root, zap, children) = {
        let engine = engine();
        let pool = import_from(&engine, victim.scratch.path(), &readonly()).unwrap();
        let dir = pool.spa().root_dir().unwrap();
        let names = dir.child_names().unwrap();
        (dir.object(), dir.phys().child_dir_zapobj, names)
    };
    let visible: Vec<_> = children.iter().filter(|(n, _)| !n.starts_with('$')).collect();
    assert!(visible.len() >= 2, "{children:?}");
    for (_, object) in &visible {
        assert!(replace_number(&mut victim.forge, 0, zap, *object, root) > 0);
    }
    in_time("datasets in a loop", || {
        let engine = engine();
        let pool = import_from(&engine, victim.scratch.path(), &readonly()).unwrap();
        let mut seen = 0;
        let walked = pool.for_each_dataset(&mut |_| {
            seen += 1;
            Ok(())
        });
        assert_eq!(walked.unwrap_err().kind(), cenote::ErrorKind::Corrupt);
        assert!(seen < 10, "{seen}");
        let deep = format!("snaps{}", format!("/{}", visible[0].0).repeat(20));
        assert!(pool.dataset(&deep).is_err());
        let _ = exercise(&pool);
    });
}

/// Two children of one directory that are the same directory.
#[test]
fn one_dataset_under_two_names() {
    let Some(mut victim) = Victim::new("snaps", 0, 0) else { return };
    let (zap, children) = {
        let engine = engine();
        let pool = import_from(&engine, victim.scratch.path(), &readonly()).unwrap();
        let dir = pool.spa().root_dir().unwrap();
        (dir.phys().child_dir_zapobj, dir.child_names().unwrap())
    };
    let visible: Vec<_> = children.iter().filter(|(n, _)| !n.starts_with('$')).collect();
    assert!(replace_number(&mut victim.forge, 0, zap, visible[0].1, visible[1].1) > 0);
    let engine = engine();
    let pool = import_from(&engine, victim.scratch.path(), &readonly()).unwrap();
    let walked = pool.for_each_dataset(&mut |_| Ok(()));
    assert_eq!(walked.unwrap_err().kind(), cenote::ErrorKind::Corrupt);
}

/// Snapshots that are their own predecessors: the bytes written since one of them are
/// summed up along the chain.
#[test]
fn a_snapshot_before_itself() {
    let Some(mut victim) = Victim::new("snaps", 0, 0) else { return };
    let snapshots = {
        let engine = engine();
        let pool = import_from(&engine, victim.scratch.path(), &readonly()).unwrap();
        let all = pool.dataset("snaps/promoted").unwrap().snapshots().unwrap();
        all.iter().map(|s| (s.object(), s.name().to_owned())).collect::<Vec<_>>()
    };
    assert!(snapshots.len() > 2, "{snapshots:?}");
    for (i, (object, _)) in snapshots.iter().enumerate().skip(1) {
        // The oldest is unchanged; the others form cycles.
        let before = snapshots[if i == 1 { snapshots.len() - 1 } else { i - 1 }].0;
        poke_bonus(&mut victim.forge, *object, &[(1, before)]);
    }
    in_time("snapshots in a circle", || {
        let engine = engine();
        let pool = import_from(&engine, victim.scratch.path(), &readonly()).unwrap();
        let dataset = pool.dataset("snaps/promoted").unwrap();
        let since = snapshots[0].1.replace("snaps/promoted@", "written@");
        // No chain reaches it: no value.
        assert_eq!(dataset.prop(&since).unwrap(), None);
        let _ = exercise(&pool);
    });
}

/// A directory that is below itself: only the caller bounds paths in it.
#[test]
fn a_directory_below_itself() {
    let Some(mut victim) = Victim::new("snaps", 0, 0) else { return };
    let (objset, root, name, below) = {
        let engine = engine();
        let pool = import_from(&engine, victim.scratch.path(), &readonly()).unwrap();
        let dataset = pool.dataset("snaps/fs").unwrap();
        let fs = dataset.open_fs().unwrap();
        let page = fs.readdir(fs.root(), 2, cenote::Io::WAIT).unwrap();
        let is_dir = |id| fs.attrs(id, cenote::Io::WAIT).unwrap().mode & 0o170_000 == 0o040_000;
        let entry = page.entries.iter().find(|e| is_dir(e.id)).unwrap();
        (dataset.object(), fs.root(), entry.name.clone(), entry.id)
    };
    let value = |id: cenote::ObjectId| 4 << 60 | id.0;
    let forge = &mut victim.forge;
    assert!(replace_number(forge, objset, root.0, value(below), value(root)) > 0);
    in_time("a directory below itself", || {
        let engine = engine();
        let pool = import_from(&engine, victim.scratch.path(), &readonly()).unwrap();
        let fs = pool.dataset("snaps/fs").unwrap().open_fs().unwrap();
        let path = |n: usize| vec![name.clone(); n].join(&b'/');
        assert_eq!(fs.walk(&path(100), cenote::Io::WAIT).unwrap(), root);
        let long = fs.walk(&path(5000), cenote::Io::WAIT);
        assert_eq!(long.unwrap_err().kind(), cenote::ErrorKind::NameTooLong);
        let _ = exercise(&pool);
    });
}

/// A list of block pointers that contains itself, many times over.
#[test]
fn a_list_that_contains_itself() {
    let Some(mut victim) = Victim::new("snaps", 0, 0) else { return };
    let (list, subs) = {
        let engine = engine();
        let pool = import_from(&engine, victim.scratch.path(), &readonly()).unwrap();
        let mos = pool.spa().mos();
        let list = mos.lookup("free_bpobj").unwrap().unwrap();
        // Any object can serve as the list of lists.
        (list, mos.lookup("history").unwrap().unwrap())
    };
    let id = victim.forge.find(|n| n.position.object == subs && n.position.level == 0).unwrap();
    let size = victim.forge.nodes[id].content.len();
    let itself: Vec<u8> = list.to_le_bytes().repeat(size / 8);
    victim.forge.change(id, itself);
    // num_blkptrs, bytes, comp, uncomp, subobjs, num_subobjs, num_freed
    let words = [(0, 0), (4, subs), (5, size as u64 / 8)];
    poke_bonus(&mut victim.forge, list, &words);
    in_time("a list in itself", || {
        let engine = engine();
        let pool = import_from(&engine, victim.scratch.path(), &readonly()).unwrap();
        let mos = pool.spa().mos();
        let walked = cenote::inspect::dsl::bpobj::for_each(mos, list, &mut |_| Ok(()));
        assert_eq!(walked.unwrap_err().kind(), cenote::ErrorKind::Corrupt);
    });
}

/// A space map, a history and a list with lengths larger than any disk, in objects whose
/// blocks are all holes.
#[test]
fn lists_of_holes_without_end() {
    let Some(mut victim) = Victim::new("snaps", 0, 0) else { return };
    let (map, list, history) = {
        let engine = engine();
        let pool = import_from(&engine, victim.scratch.path(), &readonly()).unwrap();
        let space = pool.spa().load_space().unwrap();
        let map = space.vdevs[0].metaslabs.iter().map(|m| m.space_map).find(|&o| o != 0).unwrap();
        let mos = pool.spa().mos();
        let get = |name| mos.lookup(name).unwrap().unwrap();
        (map, get("free_bpobj"), get("history"))
    };
    let mut grow = |object: u64, words: &[(usize, u64)]| {
        let (id, slot) = dnode_at(&victim.forge, 0, object);
        let mut content = victim.forge.nodes[id].content.clone();
        // maxblkid, and a tree deep enough for it.
        content[slot + 16..slot + 24].copy_from_slice(&(1u64 << 40).to_le_bytes());
        victim.forge.change(id, content);
        poke_bonus(&mut victim.forge, object, words);
    };
    grow(map, &[(1, 1 << 50)]);
    grow(list, &[(0, 1 << 45)]);
    grow(history, &[(0, 4), (1, 1 << 60), (2, 4), (3, 1 << 59)]);
    in_time("endless holes", || {
        let engine = engine();
        let pool = import_from(&engine, victim.scratch.path(), &readonly()).unwrap();
        let spa = pool.spa();
        let space = spa.load_space().unwrap();
        let vdev = &space.vdevs[0];
        let metaslab = vdev.metaslabs.iter().find(|m| m.space_map == map).unwrap();
        let walked = spa.for_each_metaslab_entry(vdev, metaslab, &mut |_| Ok(()));
        assert_eq!(walked.unwrap_err().kind(), cenote::ErrorKind::Corrupt);
        let walked = cenote::inspect::dsl::bpobj::for_each(spa.mos(), list, &mut |_| Ok(()));
        assert_eq!(walked.unwrap_err().kind(), cenote::ErrorKind::Corrupt);
        assert!(spa.history().is_err());
    });
}

/// Numbers with an overflowing sum: every space map claims 2^64 - 1 bytes.
#[test]
fn space_that_does_not_add_up() {
    let Some(mut victim) = Victim::new("snaps", 0, 0) else { return };
    let maps: Vec<u64> = {
        let engine = engine();
        let pool = import_from(&engine, victim.scratch.path(), &readonly()).unwrap();
        let space = pool.spa().load_space().unwrap();
        space.vdevs[0].metaslabs.iter().map(|m| m.space_map).filter(|&o| o != 0).collect()
    };
    for map in maps {
        poke_bonus(&mut victim.forge, map, &[(2, i64::MAX as u64)]);
    }
    let tally = in_time("space", || read_all(victim.scratch.path()));
    assert!(tally.unwrap().ok > 100);
}

/// All pointers of an indirect block refer to the block itself.
#[test]
fn an_indirect_block_that_contains_itself() {
    let Some(mut victim) = Victim::new("snaps", 0, 0) else { return };
    let indirect: Vec<usize> = (0..victim.forge.nodes.len())
        .filter(|&i| victim.forge.nodes[i].position.level > 0)
        .collect();
    assert!(!indirect.is_empty());
    let fresh = victim.forge.fresh();
    for &id in indirect.iter().step_by(step(indirect.len(), 30)) {
        let node = &victim.forge.nodes[id];
        let own = BlkPtr::Block(node.bp).encode().unwrap();
        let content = own.repeat(node.content.len() / own.len());
        victim.forge.change(id, content);
        in_time("an indirect block in itself", || read_all(victim.scratch.path()));
        victim.forge.undo(&fresh);
    }
}

/// A fat ZAP whose table of pointers refers to one leaf repeatedly, to itself, and to
/// nothing at all.
#[test]
fn zap_tables_in_a_circle() {
    let Some(mut victim) = Victim::new("snaps", 0, 0) else { return };
    let fat = |n: &MetadataBlock| {
        let p = &n.position;
        let word = Endian::Little.u64(&n.content, 0);
        p.level == 0 && p.blkid == 0 && p.object_type.is_zap() && word == Some((1 << 63) + 1)
    };
    let headers: Vec<usize> =
        (0..victim.forge.nodes.len()).filter(|&i| fat(&victim.forge.nodes[i])).collect();
    assert!(headers.len() > 3, "{} fat ZAPs", headers.len());
    let fresh = victim.forge.fresh();
    for &id in headers.iter().step_by(step(headers.len(), 12)) {
        for target in [0u64, 1, 2] {
            let mut content = victim.forge.nodes[id].content.clone();
            let half = content.len() / 2;
            let table = target.to_le_bytes().repeat(half / 8);
            content[half..].copy_from_slice(&table);
            victim.forge.change(id, content);
            in_time("a ZAP in a circle", || read_all(victim.scratch.path()));
            victim.forge.undo(&fresh);
        }
    }
}

/// A block that decompresses to more than its size, and one to less.
#[test]
fn blocks_that_expand_beyond_their_size() {
    use cenote::inspect::codec::compress::{Compression, compress};
    let Some(mut victim) = Victim::new("snaps", 0, 0) else { return };
    let fresh = victim.forge.fresh();
    let picked: Vec<usize> =
        (1..victim.forge.nodes.len()).step_by(step(victim.forge.nodes.len(), 10)).collect();
    for id in picked {
        for (name, factor) in [("lz4", 4), ("lz4", 0), ("gzip-9", 4), ("zle", 4), ("lzjb", 4)] {
            let size = victim.forge.nodes[id].content.len();
            let bomb = if factor == 0 { vec![7; 512] } else { vec![7; size * factor] };
            let how = Compression::from_name(name).unwrap();
            let mut packed = vec![0; bomb.len()];
            let Some(n) = compress(how, &bomb, &mut packed) else { continue };
            packed.truncate(n.next_multiple_of(512));
            let lsize = victim.forge.nodes[id].bp.head.lsize;
            victim.forge.change_as(id, packed, |mut bp| {
                bp.head.lsize = lsize;
                bp.compression = how.id();
                bp
            });
            in_time("a block too large", || read_all(victim.scratch.path()));
            victim.forge.undo(&fresh);
        }
    }
}

/// A gang header whose members are gangs at the header's own address.
#[test]
fn gangs_that_contain_themselves() {
    use base::{Asize, Dva, Psize, VdevId};
    use cenote::inspect::codec::checksum::{Checksum, embedded};
    let Some(mut victim) = Victim::new("snaps", 0, 0) else { return };
    let fresh = victim.forge.fresh();
    let zap = |n: &MetadataBlock| {
        n.position.level == 0 && n.position.object_type.is_zap() && n.bp.psize.0 <= 4096
    };
    let ids: Vec<usize> =
        (1..victim.forge.nodes.len()).filter(|&i| zap(&victim.forge.nodes[i])).collect();
    assert!(!ids.is_empty());
    for &id in ids.iter().step_by(step(ids.len(), 12)) {
        for members in [1u64, 3] {
            let offset = victim.forge.store(&[0; 512]);
            let dva = Dva { vdev: VdevId(0), offset, asize: Asize(512), gang: true };
            let mut gang = victim.forge.nodes[id].bp.with_dvas(&[dva, dva, dva]);
            let mut member = gang;
            member.psize = Psize(gang.psize.0 / members / 512 * 512);
            if member.psize.0 * members != gang.psize.0 {
                continue;
            }
            (member.compression, member.head.lsize.0) = (2, member.psize.0);
            gang.dedup = false;
            let mut header = vec![0; 512];
            for i in 0..members as usize {
                let raw = BlkPtr::Block(member).encode().unwrap();
                header[i * 128..(i + 1) * 128].copy_from_slice(&raw);
            }
            let verifier = [0, offset, gang.effective_physical_birth().0, 0];
            embedded::compute_embedded(Checksum::GangHeader, &mut header, 472, verifier).unwrap();
            victim.forge.overwrite(offset, &header);
            victim.forge.point(id, gang);
            in_time("a gang in itself", || read_all(victim.scratch.path()));
            victim.forge.undo(&fresh);
        }
    }
}
