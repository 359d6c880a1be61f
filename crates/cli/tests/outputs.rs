//! What `zfs list`, `zfs get`, `zpool get` and `zpool status` print of the golden
//! pools, against what OpenZFS 2.4.4 printed of them.
//!
//! The texts were captured while OpenZFS had the pools imported, shortly before
//! it exported them. What may differ, and why:
//! * `mountpoint`, `altroot`, `cachefile`, `readonly`: we import read-only below
//!   another root, which also sets `cachefile=none`.
//! * `mounted`: nothing is mounted here (the mounts have a test of their own).
//! * `load_guid`: random at each import.
//! * Space: later groups rewrote the pool's own metadata only. That is charged to
//!   the root dataset, so its `used`, `usedbychildren`, `logicalused` and
//!   `compressratio` move a little, all `available` move with them, and so do the
//!   pool's `allocated`, `free`, `capacity` and `dedup_table_size`.
//! * A locked dataset (its key was loaded then, is not now) has `keystatus`
//!   unavailable, and properties kept inside its encrypted part are absent.
//! * Paths of disks.
//!
//! Everything else must agree byte for byte and in the same order.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, clippy::unwrap_used, clippy::panic)]

mod common;

use std::collections::BTreeMap;
use std::sync::Mutex;

use common::Sandbox;
use testkit::{Golden, golden, golden_pools};

const COLUMNS: &str =
    "name,used,refer,lused,ratio,type,origin,recsize,compress,checksum,encryption";
/// Kept in the encrypted part of a file system.
const INSIDE: [&str; 10] = [
    "version",
    "utf8only",
    "normalization",
    "casesensitivity",
    "defaultuserquota",
    "defaultgroupquota",
    "defaultprojectquota",
    "defaultuserobjquota",
    "defaultgroupobjquota",
    "defaultprojectobjquota",
];
/// Metadata that the last groups before the export may have freed.
const SLACK: u64 = 1_500_000;

#[test]
fn golden_outputs() {
    let pools = golden_pools().into_iter().filter(|p| p.text("props.txt").is_some());
    // Pools that were caught in other ways have lists of other columns.
    let (pools, others): (Vec<_>, Vec<_>) = pools.partition(|p| {
        p.text("list.txt").is_some_and(|list| list.lines().next().is_some_and(has_columns))
    });
    for pool in others {
        println!("note: no outputs of {}: its list has other columns", pool.name);
    }
    assert!(!pools.is_empty());
    let queue: Mutex<Vec<Golden>> = Mutex::new(pools);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(pool) = { queue.lock().unwrap().pop() } {
                    let lines = one_pool(&pool);
                    println!("OUTPUTS {}: {lines} lines agree", pool.name);
                }
            });
        }
    });
}

/// Whether the heading of a list is that of [`COLUMNS`].
fn has_columns(heading: &str) -> bool {
    let wanted = [
        "NAME",
        "USED",
        "REFER",
        "LUSED",
        "RATIO",
        "TYPE",
        "ORIGIN",
        "RECSIZE",
        "COMPRESS",
        "CHECKSUM",
        "ENCRYPTION",
    ];
    heading.split_whitespace().eq(wanted)
}

/// Imports a pool without mounting anything.
fn imported(pool: &Golden) -> Sandbox {
    let s = Sandbox::new(&format!("outputs-{}", pool.name));
    pool.unpack(&s.dir("disks"));
    let (disks, root) = (s.text("disks"), s.text("alt"));
    let args = ["-N", "-o", "readonly=on", "-f", "-R", &root, "-d", &disks, &pool.name];
    s.ok(&[&["zpool", "import"], &args[..]].concat());
    s
}

fn one_pool(pool: &Golden) -> usize {
    let s = imported(pool);
    let name = pool.name.as_str();
    let mut lines = props(&s, name, &pool.text("props.txt").unwrap());
    if let Some(wanted) = pool.text("poolprops.txt") {
        lines += pool_props(&s, name, &wanted);
    }
    if let Some(wanted) = pool.text("list.txt") {
        lines += list(&s, name, &wanted);
    }
    // Damaged files come with counters of errors, which nobody has met here (`honest`).
    if let Some(wanted) = pool.text("status.txt").filter(|t| !t.contains("Permanent errors")) {
        let found = s.ok(&["zpool", "status", name]);
        assert_eq!(without_paths(&found), without_paths(&wanted), "{name}: zpool status");
        lines += wanted.lines().count();
    }
    s.ok(&["zpool", "export", name]);
    lines
}

type Line<'a> = [&'a str; 4];

fn tabbed(text: &str) -> Vec<Line<'_>> {
    text.lines().map(|l| l.split('\t').collect::<Vec<_>>().try_into().unwrap()).collect()
}

fn num(value: &str) -> u64 {
    value.parse().unwrap_or_else(|_| panic!("{value} is no number"))
}

/// `zfs get -Hp all -r`
fn props(s: &Sandbox, pool: &str, wanted: &str) -> usize {
    let found = s.ok(&["zfs", "get", "-Hp", "all", "-r", pool]);
    let found = tabbed(&found);
    let locked = |of: &str| {
        let unavailable = [of, "keystatus", "unavailable", "-"];
        found.contains(&unavailable)
    };
    let mut wanted = tabbed(wanted);
    wanted.retain(|l| !(INSIDE.contains(&l[1]) && locked(l[0])));
    let names = |lines: &[Line<'_>]| -> Vec<String> {
        lines.iter().map(|l| format!("{} {}", l[0], l[1])).collect()
    };
    assert_eq!(names(&found), names(&wanted), "{pool}: properties and their order");
    let root = s.text("alt");
    let mut moved = BTreeMap::new();
    for (f, w) in found.iter().zip(&wanted) {
        let [of, property, value, source] = *w;
        match property {
            "mounted" if value == "yes" => assert_eq!(f[2], "no", "{of}"),
            "mountpoint" if value == "/" => assert_eq!(f[2], root),
            "mountpoint" if value.starts_with('/') => {
                assert_eq!(f[2], format!("{root}{value}"), "{of}");
                assert_eq!(f[3], source, "{of}");
            }
            "keystatus" if locked(of) => assert_eq!(value, "available", "{of}"),
            "available" => {
                moved.insert(of, i128::from(num(f[2])) - i128::from(num(value)));
            }
            "used" | "usedbychildren" | "logicalused" if of == pool => {
                let (found, wanted) = (num(f[2]), num(value));
                assert!(found <= wanted && wanted - found <= SLACK, "{f:?} {w:?}");
            }
            "compressratio" if of == pool => near(f, w),
            _ => assert_eq!(f, w, "{pool}"),
        }
    }
    space(pool, &found, &wanted, &moved);
    found.len()
}

fn near(found: &Line<'_>, wanted: &Line<'_>) {
    let hundredths = |l: &Line<'_>| num(&l[2].replace('.', ""));
    assert!(hundredths(found).abs_diff(hundredths(wanted)) <= 2, "{found:?} {wanted:?}");
}

/// The root dataset's numbers moved by one and the same amount, and by just that
/// what is available moved everywhere.
fn space(pool: &str, found: &[Line<'_>], wanted: &[Line<'_>], moved: &BTreeMap<&str, i128>) {
    let get = |lines: &[Line<'_>], property: &str| {
        num(lines.iter().find(|l| l[0] == pool && l[1] == property).unwrap()[2])
    };
    let less = |property| get(wanted, property) - get(found, property);
    let freed = less("used");
    assert_eq!(freed, less("usedbychildren"), "{pool}");
    // What the special class holds counts as room, and the metadata is there.
    let slack = if pool == "kitchen" { SLACK } else { 0 };
    let off = |m: &i128| m.abs_diff(i128::from(freed));
    assert!(moved.values().all(|m| off(m) <= u128::from(slack)), "{pool}: {freed}, {moved:?}");
    let first = moved.values().next();
    assert!(moved.values().all(|m| Some(m) == first), "{pool}: {moved:?}");
}

/// A size as people read it, in bytes.
fn human(text: &str) -> f64 {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let power = match &text[digits.len()..] {
        "" | "B" => 0,
        "K" => 1,
        "M" => 2,
        "G" => 3,
        other => panic!("unit {other}"),
    };
    digits.parse::<f64>().unwrap() * 1024f64.powi(power)
}

/// `zpool get -H all`
fn pool_props(s: &Sandbox, pool: &str, wanted: &str) -> usize {
    let found = s.ok(&["zpool", "get", "-H", "all", pool]);
    let (found, wanted) = (tabbed(&found), tabbed(wanted));
    let names = |lines: &[Line<'_>]| lines.iter().map(|l| l[1].to_owned()).collect::<Vec<_>>();
    assert_eq!(names(&found), names(&wanted), "{pool}: properties of the pool");
    let root = s.text("alt");
    for (f, w) in found.iter().zip(&wanted) {
        match w[1] {
            "altroot" => assert_eq!(f[2..], [root.as_str(), "local"]),
            "cachefile" => assert_eq!(f[2..], ["none", "local"]),
            "readonly" => assert_eq!(f[2..], ["on", "-"]),
            "load_guid" => assert!(num(f[2]) != 0 && f[3] == "-"),
            "capacity" => {
                let percent = |l: &Line<'_>| num(l[2].trim_end_matches('%'));
                assert!(percent(w) - percent(f) <= 1, "{f:?} {w:?}");
            }
            "allocated" | "free" | "dedup_table_size" => {
                let less = (human(w[2]) - human(f[2])).abs();
                assert!(less <= SLACK as f64, "{f:?} {w:?}");
            }
            _ => assert_eq!(f, w),
        }
    }
    let size = |p: &str| {
        let text = s.ok(&["zpool", "get", "-Hpo", "value", p, pool]);
        num(text.trim_end())
    };
    assert_eq!(size("size"), size("allocated") + size("free"), "{pool}");
    found.len()
}

/// `zfs list` with many columns.
fn list(s: &Sandbox, pool: &str, wanted: &str) -> usize {
    let found = s.ok(&["zfs", "list", "-t", "all", "-r", "-o", COLUMNS, pool]);
    assert_eq!(found.lines().count(), wanted.lines().count(), "{pool}: zfs list");
    for (f, w) in found.lines().zip(wanted.lines()) {
        if w.split(' ').next() != Some(pool) {
            assert_eq!(f, w);
            continue;
        }
        // The root dataset, but for USED, LUSED and RATIO; as wide as it was.
        let cells = |line: &str| {
            let cells: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            let fixed = |&i: &usize| ![1, 3, 4].contains(&i);
            (0..cells.len()).filter(fixed).map(|i| cells[i].clone()).collect::<Vec<_>>()
        };
        assert_eq!(cells(f), cells(w), "{pool}");
        assert_eq!(f.len(), w.len(), "{pool}");
    }
    wanted.lines().count()
}

/// The report with disks by their last name, and single blanks behind names: the
/// columns are as wide as the longest path.
fn without_paths(report: &str) -> String {
    let mut out = String::new();
    for line in report.lines() {
        let Some(row) = line.strip_prefix('\t').filter(|r| !r.starts_with(' ') || r.contains("  "))
        else {
            out.push_str(line);
            out.push('\n');
            continue;
        };
        let indent = row.len() - row.trim_start().len();
        let words = row.split_whitespace().map(|w| match w.rsplit_once('/') {
            Some(("", _)) | None => w,
            Some((_, last)) => last,
        });
        out.push_str(&format!("\t{:indent$}{}\n", "", words.collect::<Vec<_>>().join(" ")));
    }
    out
}

/// A pool with a missing disk and a damaged one says so.
#[test]
fn a_degraded_pool() {
    let Some(pool) = golden("degraded") else { return };
    let s = imported(&pool);
    let report = s.ok(&["zpool", "status", "degraded"]);
    assert!(report.starts_with(
        "  pool: degraded\n state: DEGRADED\nstatus: One or more devices could not be opened.  \
         Sufficient replicas exist for\n\tthe pool to continue functioning in a degraded \
         state.\naction: Attach the missing device and online it using 'zpool online'.\n   see: \
         https://openzfs.github.io/openzfs-docs/msg/ZFS-8000-2Q\nconfig:\n\n"
    ));
    let states: Vec<(&str, &str)> = report
        .lines()
        .filter_map(|l| l.strip_prefix('\t'))
        .filter_map(|l| {
            let mut words = l.split_whitespace();
            let name = words.next()?;
            Some((name.rsplit('/').next().unwrap_or(name), words.next()?))
        })
        .filter(|(name, _)| name.starts_with("disk") || name.starts_with("raidz"))
        .collect();
    let wanted = [
        ("raidz2-0", "DEGRADED"),
        ("disk1.img", "ONLINE"),
        ("disk2.img", "UNAVAIL"),
        ("disk3.img", "ONLINE"),
        ("disk4.img", "ONLINE"),
    ];
    assert_eq!(states, wanted);
    // Only pools with problems are told with -x, and this is one.
    assert_eq!(s.ok(&["zpool", "status", "-x"]), report);
    assert_eq!(s.ok(&["zpool", "list", "-Ho", "health"]), "DEGRADED\n");
}
