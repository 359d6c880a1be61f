//! The space map of a pool against OpenZFS's `zdb -mm`: metaslabs, free bytes, fragmentation
//! and histograms of pools that OpenZFS wrote, and of pools that Cenote wrote.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]
#![allow(clippy::disallowed_methods, reason = "zdb runs as a process")]

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use cenote::create::{AddRequest, CreateRequest, Force, NewKind, NewVdev, Role};
use cenote::props::nicenum;
use cenote::space_map::{MetaslabMap, PoolMap, percent};
use cenote::{Engine, ImportOptions, NewObject, Pool, PropData, Txg, VdevClass};
use testkit::{Rng, Scratch, discover, engine, golden, import_from, readonly, side_by_side};

/// A metaslab as `zdb -mm` prints it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ZdbMetaslab {
    vdev: u64,
    id: u64,
    start: u64,
    free: String,
    /// Nothing of these is printed of a metaslab without a space map.
    fragmentation: Option<u64>,
    rows: Vec<(u32, u64)>,
}

fn parse(text: &str) -> Vec<ZdbMetaslab> {
    let (mut out, mut vdev): (Vec<ZdbMetaslab>, u64) = (Vec::new(), 0);
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["vdev", id, ..] => vdev = id.parse().unwrap(),
            ["metaslab", id, "offset", start, "spacemap", _, "free", ref free @ ..] => {
                let start = u64::from_str_radix(start, 16).unwrap();
                let (id, free) = (id.parse().unwrap(), free.concat());
                out.push(ZdbMetaslab { vdev, id, start, free, ..ZdbMetaslab::default() });
            }
            ["On-disk", "histogram:", "fragmentation", percent] => {
                out.last_mut().unwrap().fragmentation = Some(percent.parse().unwrap());
            }
            [class, count] | [class, count, _] if class.ends_with(':') => {
                let class = class.trim_end_matches(':').parse();
                if let (Ok(class), Ok(count)) = (class, count.parse()) {
                    out.last_mut().unwrap().rows.push((class, count));
                }
            }
            _ => {}
        }
    }
    out
}

/// Compares a map with zdb's text; the number of metaslabs. `free` formats free bytes as zdb
/// did.
fn compare(map: &PoolMap, text: &str, free: impl Fn(u64) -> String) -> usize {
    let wanted = parse(text);
    let mut vdevs: Vec<_> = map.vdevs.iter().collect();
    vdevs.sort_by_key(|v| v.id);
    let all = vdevs.iter().flat_map(|v| v.metaslabs.iter().map(|m| (v.id, m)));
    // Zeros after the last segment are not printed.
    let found: Vec<ZdbMetaslab> = all
        .zip(&wanted)
        .map(|((vdev, m), zdb)| ZdbMetaslab {
            vdev,
            id: m.id,
            start: zdb.start,
            // zdb leaves changes in the log space maps out.
            free: free(m.size - m.allocated.checked_add_signed(-m.unflushed).unwrap()),
            fragmentation: m.fragmentation.filter(|_| zdb.fragmentation.is_some()),
            rows: m.segments.rows().filter(|_| zdb.fragmentation.is_some()).collect(),
        })
        .collect();
    let count: usize = map.vdevs.iter().map(|v| v.metaslabs.len()).sum();
    assert_eq!(count, wanted.len(), "{}: {text}", map.name);
    for (found, wanted) in found.iter().zip(&wanted) {
        assert_eq!(found, wanted, "{}", map.name);
    }
    count
}

fn sums_are_sums(map: &PoolMap) {
    for v in &map.vdevs {
        let sum = |of: fn(&MetaslabMap) -> u64| v.metaslabs.iter().map(of).sum::<u64>();
        assert_eq!((v.size, v.allocated), (sum(|m| m.size), sum(|m| m.allocated)), "{}", v.name);
    }
    let counted = || map.vdevs.iter().filter(|v| v.class != VdevClass::Log);
    assert_eq!(map.size, counted().map(|v| v.size).sum::<u64>());
    assert_eq!(map.allocated, counted().map(|v| v.allocated).sum::<u64>());
    let segments = |counts: &[u64]| counts.iter().sum::<u64>();
    let all: u64 = counted().map(|v| segments(v.segments.counts())).sum();
    assert_eq!(segments(map.segments.counts()), all);
}

/// `zdb -mm` with exact sizes; `None` without zdb.
fn zdb(dir: &Path, pool: &str) -> Option<String> {
    let out = Command::new("zdb").args(["-e", "-p"]).arg(dir).args(["-Pmm", pool]).output();
    let Ok(out) = out else {
        testkit::skip(testkit::Need::Zdb, "zdb is not installed");
        return None;
    };
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success(), "{pool}: {said}");
    Some(String::from_utf8(out.stdout).unwrap())
}

/// The pool that OpenZFS fragmented, at the txg of the texts beside it.
#[test]
fn the_fragmented_pool_agrees_with_openzfs() {
    let Some(pool) = golden("frag") else { return };
    let scratch = Scratch::new("space-map-frag");
    pool.unpack(scratch.path());
    let engine = engine();
    let found = discover(&engine, scratch.path());
    let options = ImportOptions { txg: Some(Txg(12067)), ..ImportOptions::default() };
    let map = engine.inspect(&found[0], &options).unwrap().space_map().unwrap();
    assert_eq!((map.name.as_str(), map.txg, map.version), ("frag", Txg(12067), 5000));
    assert_eq!(compare(&map, &pool.text("zdb-mm.txt").unwrap(), nicenum), 15);
    assert!(map.vdevs[0].metaslabs.iter().any(|m| m.unflushed != 0));
    sums_are_sums(&map);
    let list = pool.text("zpoollist.txt").unwrap();
    let words: Vec<&str> = list.lines().nth(1).unwrap().split_whitespace().collect();
    let percent_of = |word: usize| words[word].trim_end_matches('%').parse::<u64>().unwrap();
    assert_eq!(
        words[..4],
        ["frag", &*nicenum(map.size), &*nicenum(map.allocated), &*nicenum(map.free())]
    );
    assert_eq!(map.fragmentation, Some(percent_of(6)));
    assert_eq!(percent(map.allocated, map.size), percent_of(7));
    assert_eq!(map.vdevs[0].fragmentation, Some(percent_of(6)));
}

/// Pools of the repository, of each kind of vdev and class, as the installed zdb sees them.
#[test]
fn golden_pools_agree_with_zdb() {
    let names = ["kitchen", "removed", "gdraid2w8", "graidz1w3", "twomirrors", "snaps", "fuse23"];
    side_by_side(&names, |name| {
        let Some(pool) = golden(name) else { return };
        let scratch = Scratch::new(&format!("space-map-{name}"));
        pool.unpack(scratch.path());
        let map = {
            let opened = import_from(&engine(), scratch.path(), &readonly()).unwrap();
            opened.space_map().unwrap()
        };
        sums_are_sums(&map);
        let Some(text) = zdb(scratch.path(), &map.name) else { return };
        let count = compare(&map, &text, |bytes| bytes.to_string());
        println!("MAPPED {name}: {count} metaslabs agree");
    });
}

/// Overwrites random blocks of 8 KiB; the pool's map while it is open.
fn fragment(pool: &Pool) -> PoolMap {
    let number = |name: &str, n| (name.to_owned(), PropData::Num(n));
    let props = [number("recordsize", 8192), number("compression", 2)];
    let objects = pool.create_filesystem("tank/fs", &props, None).unwrap().open_rw().unwrap();
    let id = objects.create(&NewObject { block_size: Some(8192) }).unwrap();
    let mut rng = Rng::new(7);
    let blocks = 4096;
    objects.write(id, 0, &vec![1; blocks * 8192]).unwrap();
    for round in 0..6u8 {
        for _ in 0..300 {
            let at = rng.below(blocks as u64) * 8192;
            objects.write(id, at, &[round + 2; 8192]).unwrap();
        }
        pool.writer().unwrap().sync().unwrap();
    }
    pool.space_map().unwrap()
}

fn disks(scratch: &Scratch, count: usize) -> Vec<NewVdev> {
    let disk = |i: usize| {
        let path = scratch.path().join(format!("d{i}"));
        std::fs::File::create(&path).unwrap().set_len(192 << 20).unwrap();
        NewVdev::new(NewKind::File(path))
    };
    (0..count).map(disk).collect()
}

fn create(engine: &Engine, vdevs: Vec<NewVdev>) -> Arc<Pool> {
    let request = CreateRequest { force: Force::ALL, ..CreateRequest::new("tank", vdevs) };
    engine.create_pool(&request).unwrap().unwrap()
}

/// A pool that Cenote fragmented: while it is open the map is that of its last txg, and after
/// the export that of zdb.
#[test]
fn a_pool_of_ours_agrees_with_zdb() {
    let scratch = Scratch::new("space-map-ours");
    let engine = engine();
    let mut all = disks(&scratch, 3);
    let (special, log) = (all.remove(1).for_role(Role::Special), all.remove(1).for_role(Role::Log));
    let pool = create(&engine, all);
    let add = AddRequest {
        vdevs: vec![special, log],
        force: Force::ALL,
        dry_run: false,
        ashift: None,
        command: None,
    };
    engine.add_vdevs(&pool, &add).unwrap();
    let open = fragment(&pool);
    sums_are_sums(&open);
    let classes: Vec<VdevClass> = open.vdevs.iter().map(|v| v.class).collect();
    assert_eq!(classes, [VdevClass::Normal, VdevClass::Special, VdevClass::Log]);
    // A txg between two queries would change the values: they are compared without one.
    let values = || {
        let root = pool.status().unwrap().root;
        (root.size, root.allocated, root.fragmentation)
    };
    let (open, status) = loop {
        let (before, map, after) = (values(), pool.space_map().unwrap(), values());
        if before == after {
            break (map, after);
        }
    };
    assert_eq!((open.size, open.allocated, open.fragmentation), status);
    pool.export().unwrap();
    drop(pool);
    let exported = import_from(&engine, scratch.path(), &readonly()).unwrap().space_map().unwrap();
    sums_are_sums(&exported);
    assert!(exported.txg > open.txg);
    assert!(exported.vdevs[0].fragmentation.is_some_and(|f| f > 0), "{:?}", exported.vdevs[0]);
    let Some(text) = zdb(scratch.path(), "tank") else { return };
    let count = compare(&exported, &text, |bytes| bytes.to_string());
    println!("MAPPED a pool of ours: {count} metaslabs agree");
}
