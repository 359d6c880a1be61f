//! Jobs that move blocks, on pools whose backing store is full: commands say so at once, nothing
//! reaches a second pool, and the jobs come to their ends after `zpool clear`.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;

use testkit::Rng;

use super::common::{Sandbox, can_mount, eventually as wait_for};
use super::{Tmpfs, ok, say, the_rest_lives, well};

const WHY: &str = "pool I/O is currently suspended\n";
const RECORD: usize = 8192;
const RECORDS: u64 = 1500;

/// Makes a pool with a file whose records lie in the order in which they were overwritten. What
/// the file has.
fn make(s: &Sandbox, name: &str, vdevs: &[&str]) -> Vec<u8> {
    let mountpoint = format!("mountpoint={}", s.text(&format!("mnt-{name}")));
    let begin = ["zpool", "create", "-f", "-O", &mountpoint, "-O", "recordsize=8K", name];
    ok(s, &[&begin[..], vdevs].concat());
    let path = s.path(&format!("mnt-{name}")).join("file");
    let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    let mut rng = Rng::new(name.len() as u64);
    let mut records: Vec<u64> = (0..RECORDS).collect();
    (1..records.len()).for_each(|i| records.swap(i, rng.index(i + 1)));
    for (n, record) in records.into_iter().enumerate() {
        let data: Vec<u8> = (0..RECORD / 8).flat_map(|_| rng.number().to_le_bytes()).collect();
        file.write_all_at(&data, record * RECORD as u64).unwrap();
        if n % 100 == 0 {
            file.sync_all().unwrap();
            ok(s, &["zpool", "sync", name]);
        }
    }
    ok(s, &["zfs", "snapshot", &format!("{name}@a")]);
    std::fs::read(path).unwrap()
}

/// What the user had: thin storage that filled up while jobs moved blocks.
#[test]
fn jobs_that_move_blocks_on_suspended_pools() {
    if !can_mount("a full backing store") {
        return;
    }
    let s = Sandbox::new("moves-suspended");
    let disks = Tmpfs::new("moves-suspended-disks", 400);
    well(&s);
    let disk = |name: &str| {
        let path = disks.text(name);
        File::create(&path).unwrap().set_len(512 << 20).unwrap();
        path
    };
    let [m0, m1, t0, e0, e1] = ["m0", "m1", "t0", "e0", "e1"].map(disk);
    let r = ["r0", "r1", "r2", "r3", "r4", "r5"].map(disk);
    let raidz = ["raidz1", &r[0], &r[1], &r[2], "raidz1", &r[3], &r[4], &r[5]];
    // The job, the pool, and what `zpool status` says at its end.
    let jobs = [
        (
            &["defrag", "--unmap", "unmapped"][..],
            "unmapped",
            "erased the mappings of removed devices",
        ),
        (&["defrag", "tidy"], "tidy", "defrag: defragmented "),
        (&["rebalance", "even"], "even", "rebalance: rebalanced "),
        (&["remove", "left", "raidz1-1"], "left", "remove: Removal of "),
    ];
    let files = [
        make(&s, "unmapped", &[&m0, &m1]),
        make(&s, "tidy", &[&t0]),
        make(&s, "even", &[&e0]),
        make(&s, "left", &raidz),
    ];
    ok(&s, &["zpool", "remove", "-w", "unmapped", &m1]);
    ok(&s, &["zpool", "add", "-f", "even", &e1]);
    let status = |pool: &str| ok(&s, &["zpool", "status", pool]);
    let health = |pool: &str| ok(&s, &["zpool", "list", "-H", "-o", "health", pool]);
    for (_, pool, _) in &jobs {
        ok(&s, &["zpool", "sync", pool]);
    }
    let mut filler = File::create(disks.text("filler")).unwrap();
    while filler.write_all(&[1; 65536]).is_ok() {}
    // There is room for the record of a job, and not for copies.
    let len = filler.metadata().unwrap().len();
    for (n, (job, pool, _)) in (1..).zip(&jobs) {
        filler.set_len(len - (n << 20)).unwrap();
        ok(&s, &[&["zpool"], *job].concat());
        wait_for("it is not suspended", || health(pool) == "SUSPENDED\n");
        while filler.write_all(&[1; 65536]).is_ok() {}
    }
    for (job, pool, _) in &jobs {
        let stops = match job.first() {
            Some(&"remove") => ["remove", "-s", pool],
            Some(&"rebalance") => ["rebalance", "-s", pool],
            _ => ["defrag", "-p", pool],
        };
        for words in [*job, &["defrag", pool], &stops] {
            let said = say(&s, &[&["zpool"], words].concat());
            let told = said.err.ends_with(WHY);
            assert!(said.code == 1 && told, "{words:?}: {said:?}");
        }
        let shown = status(pool);
        assert!(shown.contains("state: SUSPENDED") && shown.contains(" in progress"), "{shown}");
        the_rest_lives(&s, pool);
    }
    std::fs::remove_file(disks.text("filler")).unwrap();
    drop(filler);
    disks.resize(900);
    for ((_, pool, end), content) in jobs.iter().zip(files) {
        ok(&s, &["zpool", "clear", pool]);
        wait_for("the job does not end", || status(pool).contains(end));
        let path = s.path(&format!("mnt-{pool}")).join("file");
        assert!(std::fs::read(&path).unwrap() == content, "{pool}");
        ok(&s, &["zpool", "scrub", "-w", pool]);
        let shown = status(pool);
        assert!(shown.contains(" with 0 errors on ") && shown.contains("No known data"), "{shown}");
        ok(&s, &["zpool", "export", pool]);
        let report = ok(&s, &["zdb", "-e", "-p", &disks.text(""), "-bcc", pool]);
        assert!(report.contains("No leaks (block sum matches space maps exactly)"), "{report}");
    }
    ok(&s, &["daemon", "stop"]);
}
