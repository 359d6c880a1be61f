//! Damage that a redundant pool must tolerate, and damage that no pool can.
//!
//! Every redundant golden pool is read with every kind of tolerated damage: disks missing,
//! truncated, zeroed, or with flipped bits in all used areas. All manifests must match, and
//! the counters must name the damaged disks and no other. With one more damaged disk,
//! reading may fail, but all data read must be right.
//!
//! `CENOTE_NIGHTLY=1` tries every tolerated set of disks instead of a selection.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base::rt::{Mutex, fan_out};
use cenote::{Guid, Pool, VdevState, VdevStatus};
use testkit::disk::{DATA_END, DATA_START, stage};
use testkit::{Disk, Golden, ManifestEntry, Rng, Scratch, engine, golden, import_from, readonly};

const POOLS: [&str; 8] = [
    "twomirrors",
    "graidz1w3",
    "graidz1w5",
    "graidz2w6",
    "graidz3w8",
    "gdraid2w8",
    "expanded",
    "kitchen",
];
/// Smaller than any valid leaf.
const CUT_SHORT: u64 = 48 << 20;

/// A kind of damage to a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Harm {
    Missing,
    Truncated,
    Zeroed,
    Flipped,
}

const HARMS: [Harm; 4] = [Harm::Zeroed, Harm::Flipped, Harm::Truncated, Harm::Missing];

impl Harm {
    fn inflict(self, disk: &Disk, seed: u64) {
        match self {
            Harm::Missing => std::fs::remove_file(&disk.path).unwrap(),
            Harm::Truncated => {
                std::fs::File::options()
                    .write(true)
                    .open(&disk.path)
                    .unwrap()
                    .set_len(CUT_SHORT)
                    .unwrap();
            }
            Harm::Zeroed => disk.zero_data(),
            // Some disks have only labels.
            Harm::Flipped => {
                disk.flip_data(seed, 512, 1);
            }
        }
    }

    fn keeps_the_disk(self) -> bool {
        matches!(self, Harm::Zeroed | Harm::Flipped)
    }
}

/// A top-level vdev: its disks, and how many of them it can lose.
struct Top {
    disks: Vec<usize>,
    tolerance: usize,
}

/// A golden pool, unpacked once.
struct Base {
    golden: Golden,
    _scratch: Scratch,
    disks: Vec<PathBuf>,
    guids: Vec<Option<Guid>>,
    /// Whether this disk is used when everything is read from the undamaged pool.
    needed: Vec<bool>,
    tops: Vec<Top>,
    manifests: Vec<(String, Vec<ManifestEntry>)>,
}

impl Base {
    fn new(name: &str) -> Option<Base> {
        let golden = golden(name)?;
        let scratch = Scratch::new(name);
        let disks = golden.unpack(scratch.path());
        let manifests = golden.manifests();
        let (mut guids, mut tops) = (Vec::new(), BTreeMap::<u64, Top>::new());
        for (index, path) in disks.iter().enumerate() {
            let disk = Disk::new(path);
            guids.push(disk.guid());
            let label = disk.label(0).unwrap();
            let (Some(top), Some(tree)) = (label.u64("top_guid"), label.list("vdev_tree")) else {
                continue;
            };
            let children = tree.lists("children").map_or(1, |c| c.len());
            let tolerance = match tree.str("type").unwrap() {
                "mirror" => children - 1,
                "raidz" | "draid" => tree.u64("nparity").unwrap() as usize,
                _ => 0,
            };
            let top = tops.entry(top).or_insert(Top { disks: Vec::new(), tolerance });
            top.disks.push(index);
        }
        let tops = tops.into_values().collect();
        let needed = vec![false; disks.len()];
        let mut base = Base { golden, _scratch: scratch, disks, guids, needed, tops, manifests };
        base.look();
        Some(base)
    }

    /// Reads the undamaged pool. Not every disk is used: one may have only parity, another
    /// nothing.
    fn look(&mut self) {
        let dir = self.stage(&[], |_| {});
        let engine = engine();
        let pool = import_from(&engine, dir.path(), &readonly()).unwrap();
        let count = |guid: &Option<Guid>| {
            let tree = pool.spa().zio().tree();
            let device = guid.and_then(|g| tree.find(g)?.device().cloned());
            device.map_or(0, |d| d.stats().snapshot().bytes_read)
        };
        let labels: Vec<u64> = self.guids.iter().map(count).collect();
        let differences = self.verify(&pool);
        assert!(differences.is_empty(), "{differences:#?}");
        let after: Vec<u64> = self.guids.iter().map(count).collect();
        self.needed = labels.iter().zip(&after).map(|(l, a)| a > l).collect();
        assert!(leaves(&pool).values().all(|l| errors(l) == 0));
    }

    /// Copies the pool, with `harm` applied to its disks.
    fn stage(&self, hurt: &[usize], harm: impl Fn(&[Disk])) -> Scratch {
        let scratch = Scratch::new(&self.golden.name);
        let disks = stage(&self.disks, scratch.path(), |i| hurt.contains(&i));
        harm(&disks);
        scratch
    }

    fn verify(&self, pool: &Pool) -> Vec<String> {
        let mut out = Vec::new();
        for (name, manifest) in &self.manifests {
            let fs = pool.dataset(name).unwrap().open_fs().unwrap();
            out.extend(testkit::verify(&fs, manifest, true));
        }
        out
    }
}

/// A set of disks and the damage to each.
type DamageCase = Vec<(usize, Harm)>;

fn nightly() -> bool {
    std::env::var_os("CENOTE_NIGHTLY").is_some_and(|v| v != "0")
}

fn subsets(of: &[usize], size: usize) -> Vec<Vec<usize>> {
    match (size, of.split_first()) {
        (0, _) => vec![Vec::new()],
        (_, None) => Vec::new(),
        (_, Some((first, rest))) => {
            let with = subsets(rest, size - 1).into_iter().map(|mut s| {
                s.insert(0, *first);
                s
            });
            with.chain(subsets(rest, size)).collect()
        }
    }
}

/// Every single disk with every kind of damage, and mixtures for larger sets.
fn tolerated(base: &Base) -> Vec<DamageCase> {
    let mut cases = Vec::new();
    for top in &base.tops {
        if top.tolerance > 0 {
            let singles = top.disks.iter().flat_map(|&d| HARMS.map(|h| vec![(d, h)]));
            cases.extend(singles);
        }
        for size in 2..=top.tolerance {
            let sets = subsets(&top.disks, size);
            let wanted = if nightly() { sets.len() } else { 4 };
            let step = (sets.len() / wanted).max(1);
            for (n, set) in sets.iter().step_by(step).enumerate() {
                let mixed = |(i, &d): (usize, &usize)| (d, HARMS[(n + i) % HARMS.len()]);
                cases.push(set.iter().enumerate().map(mixed).collect());
                if nightly() {
                    cases
                        .extend(HARMS.map(|h| set.iter().map(|&d| (d, h)).collect::<DamageCase>()));
                }
            }
        }
    }
    cases
}

/// Leaves by guid.
fn leaves(pool: &Pool) -> BTreeMap<Guid, VdevStatus> {
    let root = pool.spa().vdev_status();
    let mut out = BTreeMap::new();
    root.for_each(&mut |v| {
        if v.children.is_empty() {
            out.insert(v.guid, v.clone());
        }
    });
    out
}

fn errors(leaf: &VdevStatus) -> u64 {
    leaf.read_errors + leaf.checksum_errors
}

/// Runs one case; returns the contradictions.
fn bear(base: &Base, case: &DamageCase) -> Vec<String> {
    let hurt: Vec<usize> = case.iter().map(|c| c.0).collect();
    let dir = base.stage(&hurt, |disks| {
        for &(i, harm) in case {
            harm.inflict(&disks[i], i as u64);
        }
    });
    let engine = engine();
    let pool = match import_from(&engine, dir.path(), &readonly()) {
        Ok(pool) => pool,
        Err(e) => return vec![format!("import failed: {e}")],
    };
    let mut out = base.verify(&pool);
    let leaves = leaves(&pool);
    for (i, guid) in base.guids.iter().enumerate() {
        let Some(leaf) = guid.and_then(|g| leaves.get(&g)) else { continue };
        let harm = case.iter().find(|c| c.0 == i).map(|c| c.1);
        let state = leaf.state();
        let right = match harm {
            None => errors(leaf) == 0 && state == VdevState::Online,
            Some(harm) if harm.keeps_the_disk() => {
                leaf.read_errors == 0
                    && (leaf.checksum_errors > 0 || !base.needed[i])
                    && state == VdevState::Online
            }
            Some(_) => errors(leaf) == 0 && state == VdevState::Unavail,
        };
        if !right {
            let counts = (leaf.read_errors, leaf.checksum_errors);
            out.push(format!("disk {}: {harm:?}, {state}, errors {counts:?}", i + 1));
        }
    }
    out
}

/// Runs `one` for every case of every pool on two threads.
fn run<C: Send + Sync>(
    pools: &[&str],
    cases: impl Fn(&Base) -> Vec<C>,
    one: impl Fn(&Base, &C) -> Vec<String> + Sync,
    show: impl Fn(&C) -> String + Sync,
) -> usize {
    let mut work = Vec::new();
    for name in pools {
        let Some(base) = Base::new(name).map(Arc::new) else { continue };
        work.extend(cases(&base).into_iter().map(|case| (Arc::clone(&base), case)));
    }
    let (next, wrong) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    fan_out(2, |_| {
        while let Some((base, case)) = work.get(next.fetch_add(1, Ordering::Relaxed)) {
            let run = std::panic::AssertUnwindSafe(|| one(base, case));
            let found = std::panic::catch_unwind(run)
                .unwrap_or_else(|p| vec![format!("panic: {:?}", p.downcast_ref::<String>())]);
            if !found.is_empty() {
                let shown: Vec<_> = found.iter().take(5).collect();
                let name = &base.golden.name;
                wrong.lock().push(format!("{name} {}: {shown:#?}", show(case)));
            }
        }
    });
    let wrong = wrong.into_inner();
    assert!(wrong.is_empty(), "{} of {} cases: {wrong:#?}", wrong.len(), work.len());
    work.len()
}

#[test]
fn tolerated_damage_costs_nothing_and_is_counted_at_the_right_disks() {
    let cases = run(&POOLS, tolerated, bear, |c| format!("{c:?}"));
    println!("{cases} cases of tolerated damage");
}

/// Two disks of a single-parity vdev, each damaged where the other is not.
#[test]
fn damage_in_different_places_of_different_disks_adds_up_to_no_loss() {
    let pairs = |base: &Base| {
        let parity = base.tops.iter().filter(|t| t.tolerance > 0);
        let pairs = parity.flat_map(|t| t.disks.windows(t.tolerance * 2).map(<[usize]>::to_vec));
        pairs.take(2).collect::<Vec<_>>()
    };
    let one = |base: &Base, set: &Vec<usize>| {
        let dir = base.stage(set, |disks| {
            for (n, &i) in set.iter().enumerate() {
                let end = disks[i].size() - DATA_END;
                // No block of these pools crosses the gap.
                let middle = DATA_START + (20 << 20);
                let half =
                    if n < set.len() / 2 { DATA_START..middle } else { middle + (1 << 20)..end };
                disks[i].zero(half);
            }
        });
        let engine = engine();
        match import_from(&engine, dir.path(), &readonly()) {
            Ok(pool) => base.verify(&pool),
            Err(e) => vec![format!("import failed: {e}")],
        }
    };
    let pools = ["graidz1w3", "graidz1w5", "graidz2w6", "graidz3w8", "gdraid2w8", "expanded"];
    let cases = run(&pools, pairs, one, |c| format!("{c:?}"));
    println!("{cases} cases of damage in turns");
}

/// More damage than tolerated: errors, but never wrong bytes.
#[test]
fn more_damage_than_tolerated_gives_errors_and_never_wrong_data() {
    let (right, unreadable, refused) =
        (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    // (disks, one damaged page in how many, seed)
    let sets = |base: &Base| {
        let mut out = Vec::new();
        for top in base.tops.iter().filter(|t| t.tolerance > 0) {
            let mut rng = Rng::new(top.disks.len() as u64);
            let first = rng.index(top.disks.len());
            let many = (0..=top.tolerance).map(|i| top.disks[(first + i) % top.disks.len()]);
            let many: Vec<usize> = many.collect();
            out.extend([1, 4, 16].map(|every| (many.clone(), every)));
        }
        out
    };
    let one = |base: &Base, (set, every): &(Vec<usize>, u64)| {
        let dir = base.stage(set, |disks| {
            for &i in set {
                disks[i].flip_data(i as u64, 4096, *every);
            }
        });
        let engine = engine();
        let Ok(pool) = import_from(&engine, dir.path(), &readonly()) else {
            refused.fetch_add(1, Ordering::Relaxed);
            return Vec::new();
        };
        let mut wrong = Vec::new();
        for (name, manifest) in &base.manifests {
            let Ok(fs) = pool.dataset(name).and_then(|d| d.open_fs()) else { continue };
            let found = testkit::verify_tolerant(&fs, manifest);
            right.fetch_add(found.right, Ordering::Relaxed);
            unreadable.fetch_add(found.unreadable.len(), Ordering::Relaxed);
            wrong.extend(found.wrong);
        }
        wrong
    };
    let cases = run(&POOLS, sets, one, |c| format!("{c:?}"));
    println!(
        "{cases} cases beyond tolerance: {refused:?} imports refused, {right:?} entries right, \
         {unreadable:?} unreadable"
    );
    assert!(unreadable.load(Ordering::Relaxed) > 0, "no case was beyond tolerance");
}

/// A raidz2 of four that lost a disk, and a second one is overwritten in the middle, where
/// the ditto copies of metadata are; then that disk loses the rest of its content, too.
#[test]
fn a_degraded_pool_reads_and_names_its_damaged_disk() {
    let Some(base) = Base::new("degraded") else { return };
    let dir = base.stage(&[1], |disks| disks[1].zero_data());
    let engine = engine();
    let pool = import_from(&engine, dir.path(), &readonly()).unwrap();
    let differences = base.verify(&pool);
    assert!(differences.is_empty(), "{differences:#?}");
    let leaves = leaves(&pool);
    let missing = leaves.values().filter(|l| l.state() == VdevState::Unavail);
    assert_eq!(missing.count(), 1);
    let bad: Vec<_> = leaves.values().filter(|l| errors(l) > 0).collect();
    assert_eq!(bad.len(), 1, "{bad:#?}");
    assert_eq!(Some(bad[0].guid), base.guids[1]);
    assert!(bad[0].checksum_errors > 0 && bad[0].state() == VdevState::Online);
}
