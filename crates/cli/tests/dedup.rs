//! Dedup tables on the command line: `zdb -D` against what OpenZFS's `zdb` prints of the same
//! disks, word for word; `zpool status -D`, the properties, `zpool ddtprune`, `zpool prefetch`.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, clippy::unwrap_used, clippy::panic)]

mod common;

use std::path::Path;
use std::process::Command;
use std::sync::Mutex;

use cenote::create::{CreateRequest, Force, NewKind, NewVdev};
use cenote::inspect::zpl::rw::{Caller, New, WritePosition};
use cenote::{FileSystem, Pool, PropData};
use common::{Sandbox, judge_disks, said};

const BLOCK: u64 = 8 << 10;

fn noise(seed: u64, blocks: u64) -> Vec<u8> {
    let mut rng = testkit::Rng::new(seed);
    (0..blocks * BLOCK / 8).flat_map(|_| rng.number().to_le_bytes()).collect()
}

/// A pool `tank` with a deduplicated file system, in which `work` is done; its disk.
fn made(dir: &Path, fast: bool, work: impl FnOnce(&Pool, &FileSystem)) {
    std::fs::create_dir_all(dir).unwrap();
    let disk = dir.join("d0");
    std::fs::File::create(&disk).unwrap().set_len(128 << 20).unwrap();
    let vdevs = vec![NewVdev::new(NewKind::File(disk))];
    let mut request = CreateRequest { force: Force::ALL, ..CreateRequest::new("tank", vdevs) };
    request.features.retain(|f| fast || f.name() != "fast_dedup");
    let engine = testkit::engine();
    let pool = engine.create_pool(&request).unwrap().unwrap();
    let number = |name: &str, n| (name.to_owned(), PropData::Num(n));
    let props = [number("recordsize", BLOCK), number("dedup", 1), number("compression", 15)];
    pool.create_filesystem("tank/fs", &props, None).unwrap();
    // No txg is written unless a caller waits for it.
    cenote::tune::find("zfs_txg_timeout").unwrap().set(&engine, "3600").unwrap();
    let fs = pool.dataset("tank/fs").unwrap().open_fs().unwrap();
    work(&pool, &fs);
    drop(fs);
    pool.export().unwrap();
}

fn write(fs: &FileSystem, name: &str, content: &[u8]) {
    let by = Caller::root();
    let file = fs.make(&by, fs.root(), name.as_bytes(), &New::file(0o644)).unwrap().id;
    fs.write(&by, file, WritePosition::Offset(0), content).unwrap();
}

/// Files with unique blocks, others with blocks of two, three and twenty references, some of which
/// compress.
fn fill(pool: &Pool, fs: &FileSystem) {
    let shared = noise(1, 30);
    for name in ["a", "b"] {
        write(fs, name, &shared);
    }
    write(fs, "c", &shared[..10 * BLOCK as usize]);
    write(fs, "alone", &noise(2, 40));
    let text = [noise(3, 1), vec![b'x'; BLOCK as usize]].concat();
    write(fs, "text", &text[BLOCK as usize / 2..][..BLOCK as usize].repeat(20));
    pool.sync().unwrap();
}

#[test]
fn zdb_tells_of_dedup_tables_in_the_same_words() {
    let s = Sandbox::new("dedup-zdb");
    let golden = testkit::golden("dedup");
    if let Some(golden) = &golden {
        golden.unpack(&s.dir("golden"));
    }
    made(&s.path("fast"), true, fill);
    made(&s.path("legacy"), false, |pool, fs| {
        pool.set_props("tank/fs", &[("copies".to_owned(), PropData::Num(2))], None).unwrap();
        write(fs, "twice", &noise(1, 30));
        pool.set_props("tank/fs", &[("copies".to_owned(), PropData::Num(1))], None).unwrap();
        fill(pool, fs);
    });
    made(&s.path("none"), true, |_, _| ());
    // The logs have entries, and one of them is being flushed.
    let cut = s.dir("logs");
    made(&s.path("logs-whole"), true, |pool, fs| {
        let plants = pool.writer().unwrap().dedup_plants();
        plants.flushed.store(7, std::sync::atomic::Ordering::Relaxed);
        for round in 0..12 {
            write(fs, &format!("f{round}"), &noise(100 + round, 5));
            pool.sync().unwrap();
        }
        // Once more what the ZAP has by now, and what only a log has.
        write(fs, "first", &noise(100, 5));
        write(fs, "last", &noise(111, 5));
        pool.sync().unwrap();
        testkit::copy_file(&s.path("logs-whole/d0"), &cut.join("d0"));
    });
    let mut cases = vec![
        ("fast", "tank", "-D"),
        ("fast", "tank", "-DDDD"),
        ("fast", "tank", "-DDDDD"),
        ("legacy", "tank", "-DDDDD"),
        ("none", "tank", "-DD"),
        ("logs", "tank", "-D"),
        ("logs", "tank", "-DDDD"),
        ("logs", "tank", "-DDDDD"),
    ];
    if golden.is_some() {
        let levels = ["-D", "-DD", "-DDD", "-DDDD", "-DDDDD"];
        cases.extend(levels.map(|level| ("golden", "dedup", level)));
    }
    let different: Mutex<Vec<String>> = Mutex::default();
    testkit::side_by_side(&cases, |&(dir, pool, level)| {
        let dir = s.text(dir);
        let args = ["-e", "-p", &dir, level, pool];
        let Ok(theirs) = Command::new("zdb").args(args).output() else {
            testkit::skip(testkit::Need::Zdb, "OpenZFS's zdb is not installed");
            return;
        };
        let (theirs, mut ours) = (said(&theirs), said(&s.run(&[&["zdb"], &args[..]].concat())));
        // OpenZFS's shows zeros.
        let words = ours.out.find("checkpoint: ").map(|at| at + 12..at + 12 + 84);
        if let Some(words) = words {
            let zeros = ours.out[words.clone()].replace(|c: char| c.is_ascii_hexdigit(), "0");
            ours.out.replace_range(words, &zeros);
        }
        if (ours.code, &ours.out) != (theirs.code, &theirs.out) {
            let text = format!("{dir} {level}:\n{}\n--- not\n{}", ours.out, theirs.out);
            different.lock().unwrap().push(text);
        }
    });
    let different = different.into_inner().unwrap();
    assert!(different.is_empty(), "{}", different.join("\n"));
}

/// Imports the pool in a directory of the sandbox without mounting anything.
fn import(s: &Sandbox, dir: &str) {
    s.ok(&["zpool", "import", "-N", "-f", "-d", &s.text(dir), "tank"]);
}

#[test]
fn reports_pruning_and_prefetch() {
    let s = Sandbox::new("dedup-commands");
    made(&s.path("disks"), true, fill);
    import(&s, "disks");
    let get = |list: &str| s.ok(&["zpool", "get", "-Hpo", "value", list, "tank"]);
    let number = |name: &str| get(name).trim().parse::<f64>().unwrap();
    let list = s.ok(&["zpool", "list", "-Ho", "dedup", "tank"]);
    // 30 blocks twice, 10 of them thrice, one 20 times, 40 once.
    let ratio = number("dedupratio");
    assert!((1.6..1.8).contains(&ratio) && list == format!("{ratio:.2}x\n"), "{list} {ratio}");
    assert_eq!(get("dedup_table_quota"), "auto\n");
    assert!(number("dedup_table_size") > 0.0);
    let status = s.ok(&["zpool", "status", "-D", "tank"]);
    let (_, report) = status.split_once("errors: No known data errors\n").unwrap();
    assert!(report.starts_with("\n dedup: DDT entries 71, size "), "{status}");
    for row in [
        "     1       40    320K",
        "     2       30    240K",
        "    16        1      8K",
        " Total       71",
    ] {
        assert!(report.contains(&format!("\n{row}")), "{row}: {status}");
    }
    let json = s.ok(&["zpool", "status", "-Dj", "--json-int", "tank"]);
    assert!(json.contains("\"dedup_stats\":{\"obj_count\":71,\"dspace\":"), "{json}");
    // The whole tables are in the cache afterwards.
    s.ok(&["zpool", "prefetch", "-t", "ddt", "tank"]);
    let cached = number("dedupcached");
    assert!(cached > 0.0 && s.ok(&["zpool", "get", "-H", "dedupcached", "tank"]).contains('K'));
    for (args, message) in [
        (&["prefetch", "-t", "brt", "tank"][..], "unsupported prefetch type\nusage:\n"),
        (&["prefetch", "-t", "ddt"], "missing pool name argument\n"),
        (&["ddtprune", "tank"], "missing amount option (-d|-p <value>)\n"),
        (&["ddtprune", "-p", "101", "tank"], "invalid percentage value\n"),
        (&["ddtprune", "-p", "0", "tank"], "invalid percentage value\n"),
        (&["ddtprune", "-d", "x", "tank"], "invalid days value\n"),
        (&["ddtprune", "-p", "1"], "missing pool argument\n"),
        (&["ddtprune", "-p", "1", "tank", "b"], "too many arguments\n"),
    ] {
        let err = s.fail(2, &[&["zpool"], args].concat());
        assert!(err.starts_with(message), "{args:?}: {err}");
    }
    let err = s.fail(1, &["zpool", "ddtprune", "-p", "1", "absent"]);
    assert_eq!(err, "cannot open 'absent': no such pool\n");
    s.ok(&["zpool", "ddtprune", "-d", "1", "tank"]);
    assert!(s.ok(&["zpool", "status", "-D", "tank"]).contains("DDT entries 71,"));
    s.ok(&["zpool", "ddtprune", "-p", "50", "tank"]);
    assert!(s.ok(&["zpool", "status", "-D", "tank"]).contains("DDT entries 51,"));
    s.ok(&["zpool", "ddtprune", "-p", "100", "tank"]);
    assert!(s.ok(&["zpool", "status", "-D", "tank"]).contains("DDT entries 31,"));
    let history = s.ok(&["zpool", "history", "tank"]);
    assert!(history.contains("zpool ddtprune -p 50 tank\n"), "{history}");
    assert!(!history.contains("prefetch"), "{history}");
    s.ok(&["zpool", "set", "dedup_table_quota=5G", "tank"]);
    assert_eq!(s.ok(&["zpool", "get", "-Ho", "value", "dedup_table_quota", "tank"]), "5G\n");
    s.ok(&["zpool", "set", "dedup_table_quota=none", "tank"]);
    assert_eq!(get("dedup_table_quota"), "none\n");
    let err = s.fail(1, &["zpool", "set", "dedup_table_quota=much", "tank"]);
    assert_eq!(err, "cannot set property for 'tank': bad numeric value 'much'\n");
    s.ok(&["zpool", "export", "tank"]);
    // What is only read, and legacy tables, cannot be pruned.
    let only = ["-o", "readonly=on", "-N", "-f", "-d", &s.text("disks"), "tank"];
    s.ok(&[&["zpool", "import"], &only[..]].concat());
    let prune = ["zpool", "ddtprune", "-p", "50", "tank"];
    assert_eq!(s.fail(1, &prune), "cannot prune dedup table on 'tank': pool is read-only\n");
    s.ok(&["zpool", "export", "tank"]);
    made(&s.path("legacy"), false, fill);
    import(&s, "legacy");
    let refused =
        "cannot prune dedup table on 'tank': operation not supported on this type of pool\n";
    assert_eq!(s.fail(1, &prune), refused);
    s.ok(&["zpool", "export", "tank"]);
    made(&s.path("none"), true, |_, _| ());
    import(&s, "none");
    let status = s.ok(&["zpool", "status", "-D", "tank"]);
    assert!(
        status.ends_with("errors: No known data errors\n\n dedup: no DDT entries\n"),
        "{status}"
    );
    s.ok(&["zpool", "export", "tank"]);
    s.stop();
    judge_disks(&s);
}
