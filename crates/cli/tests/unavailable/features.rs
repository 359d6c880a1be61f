//! Deduplication, clones, removals and expansions on pools whose backing store is full: what is
//! asked for is refused at once or waits, nothing reaches a second pool, and all of it is
//! completed after `zpool clear`.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::thread::JoinHandle;

use testkit::Rng;

use super::common::{Sandbox, can_mount, eventually as wait_for};
use super::{Tmpfs, ok, say, the_rest_lives, well};

const WHY: &str = "pool I/O is currently suspended\n";

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    (0..len / 8).flat_map(|_| rng.number().to_le_bytes()).collect()
}

fn health(s: &Sandbox, pool: &str) -> String {
    ok(s, &["zpool", "list", "-H", "-o", "health", pool])
}

/// A command that may wait for the pool.
fn begin(s: &Sandbox, args: &[&str]) -> Child {
    s.command(args).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Programs that write duplicates of a file, and clone it.
fn programs(s: &Sandbox, pool: &str) -> Vec<(PathBuf, JoinHandle<std::io::Result<()>>)> {
    let dir = s.path(&format!("mnt-{pool}")).join("fs");
    let (from, written) = (dir.join("file"), dir.join("written"));
    let (clone, cloned) = (dir.join("clone"), dir.join("clone"));
    let out = written.clone();
    // Blocks that are there already, and others.
    let data = [noise(1, 2 << 20), noise(2, 12 << 20)].concat();
    let writes = std::thread::spawn(move || {
        let mut file = File::create(out)?;
        file.write_all(&data).and_then(|()| file.sync_all())
    });
    // `copy_file_range` comes first there.
    let clones = std::thread::spawn(move || std::fs::copy(from, clone).map(drop));
    vec![(written, writes), (cloned, clones)]
}

/// Makes a pool of these disks with a deduplicated file.
fn make(s: &Sandbox, name: &str, failmode: &str, vdev: &[&str]) {
    let (failmode, mountpoint) =
        (format!("failmode={failmode}"), format!("mountpoint={}", s.text(&format!("mnt-{name}"))));
    let begin = ["zpool", "create", "-f", "-o", &failmode, "-O", &mountpoint, name];
    ok(s, &[&begin[..], vdev].concat());
    let fs = format!("{name}/fs");
    ok(s, &["zfs", "create", "-o", "dedup=on", "-o", "recordsize=16K", &fs]);
    std::fs::write(s.path(&format!("mnt-{name}")).join("fs/file"), noise(1, 8 << 20)).unwrap();
    ok(s, &["zpool", "sync", name]);
}

fn zdb(s: &Sandbox, dir: &str, pool: &str) {
    let report = ok(s, &["zdb", "-e", "-p", dir, "-bcc", pool]);
    assert!(report.contains("No leaks (block sum matches space maps exactly)"), "{report}");
}

/// What the user had: disks on thin storage that filled up, in the middle of an expansion, with
/// programs that wrote duplicates and copied files, and a removal that was just begun.
#[test]
fn new_work_on_suspended_pools() {
    if !can_mount("a full backing store") {
        return;
    }
    let s = Sandbox::new("features-suspended");
    let disks = Tmpfs::new("features-suspended-disks", 160);
    well(&s);
    let disk = |name: &str, mib: u64| {
        let path = disks.text(name);
        File::create(&path).unwrap().set_len(mib << 20).unwrap();
        path
    };
    let [r0, r1, r2, r3] = ["r0", "r1", "r2", "r3"].map(|name| disk(name, 128));
    let [l0, l1] = ["l0", "l1"].map(|name| disk(name, 512));
    make(&s, "wide", "wait", &["raidz1", &r0, &r1, &r2]);
    make(&s, "left", "continue", &[&l0, &l1]);
    // An expansion, in the middle.
    ok(&s, &["tune", "raidz_expand_max_copy_bytes=262144"]);
    ok(&s, &["tune", "raidz_expand_max_reflow_bytes=1048576"]);
    ok(&s, &["zpool", "attach", "wide", "raidz1-0", &r3]);
    let status = |pool: &str| ok(&s, &["zpool", "status", pool]);
    wait_for("the expansion does not begin", || status("wide").contains("expansion of raidz1-0"));
    ok(&s, &["zpool", "sync", "wide", "left"]);
    let mut filler = File::create(disks.text("filler")).unwrap();
    while filler.write_all(&[1; 65536]).is_ok() {}

    let written = ["wide", "left"].map(|pool| programs(&s, pool));
    let mut waiting = vec![begin(&s, &["zpool", "remove", "left", &l0])];
    for pool in ["wide", "left"] {
        waiting.push(begin(&s, &["zpool", "sync", pool]));
        wait_for("it is not suspended", || health(&s, pool) == "SUSPENDED\n");
    }
    // Each says so at once.
    for (args, words) in [
        (&["attach", "wide", "raidz1-0", &r3][..], "cannot attach"),
        (&["ddtprune", "-p", "50", "wide"], "cannot prune dedup table on 'wide'"),
        (&["ddtprune", "-d", "1", "left"], "cannot prune dedup table on 'left'"),
        (&["remove", "left", &l1], "cannot remove"),
        (&["set", "dedup_table_quota=none", "wide"], "cannot set property for 'wide'"),
        (&["set", "feature@block_cloning=enabled", "left"], "cannot set property for 'left'"),
    ] {
        let said = say(&s, &[&["zpool"], args].concat());
        assert!(said.code == 1 && said.err.starts_with(words), "{args:?}: {said:?}");
        assert!(said.err.contains(WHY.trim_end()), "{args:?}: {said:?}");
    }
    // A table can be read as far as the devices allow.
    for pool in ["wide", "left"] {
        let said = say(&s, &["zpool", "prefetch", "-t", "ddt", pool]);
        assert!(said.code == 0 || said.err.ends_with(WHY), "{said:?}");
        for args in [&["status", "-D", pool][..], &["status", "-jD", pool], &["list", "-v", pool]] {
            ok(&s, &[&["zpool"], args].concat());
        }
        ok(&s, &["zpool", "get", "-H", "bcloneused,bclonesaved,dedup_table_size", pool]);
    }
    let shown = status("wide");
    assert!(shown.contains("expansion of raidz1-0 in progress"), "{shown}");
    let waits = begin(&s, &["zpool", "wait", "-t", "raidz_expand", "wide"]);
    the_rest_lives(&s, "wide");
    the_rest_lives(&s, "left");
    // The expansion may go on, and cannot yet.
    ok(&s, &["tune", "raidz_expand_max_reflow_bytes=0"]);

    std::fs::remove_file(disks.text("filler")).unwrap();
    drop(filler);
    disks.resize(600);
    for pool in ["wide", "left"] {
        ok(&s, &["zpool", "clear", pool]);
    }
    for mut command in waiting.into_iter().chain([waits]) {
        wait_for("a command still waits", || command.try_wait().unwrap().is_some());
    }
    for (pool, programs) in ["wide", "left"].into_iter().zip(written) {
        for (path, program) in programs {
            wait_for("a program still waits", || program.is_finished());
            let done = program.join().unwrap();
            // `failmode=continue` gives errors.
            assert!(pool == "left" || done.is_ok(), "{}: {done:?}", path.display());
        }
        wait_for("it is not resumed", || health(&s, pool) == "ONLINE\n");
    }
    ok(&s, &["zpool", "wait", "-t", "raidz_expand,resilver,scrub", "wide"]);
    let shown = status("wide");
    assert!(shown.contains("expand: expanded raidz1-0 copied "), "{shown}");
    assert!(shown.contains("errors: No known data errors"), "{shown}");
    // One that the suspension met may have been refused.
    if !status("left").contains("remove:") {
        ok(&s, &["zpool", "remove", "left", &l0]);
    }
    ok(&s, &["zpool", "wait", "-t", "remove", "left"]);
    let shown = status("left");
    assert!(shown.contains("remove: Removal of vdev 0 copied ") && !shown.contains(&l0), "{shown}");
    for pool in ["wide", "left"] {
        let dir = s.path(&format!("mnt-{pool}")).join("fs");
        assert!(std::fs::read(dir.join("file")).unwrap() == noise(1, 8 << 20), "{pool}");
        std::fs::copy(dir.join("file"), dir.join("again")).unwrap();
        if pool == "wide" {
            let data = [noise(1, 2 << 20), noise(2, 12 << 20)].concat();
            assert!(std::fs::read(dir.join("written")).unwrap() == data);
            assert!(std::fs::read(dir.join("clone")).unwrap() == noise(1, 8 << 20));
        }
        ok(&s, &["zpool", "ddtprune", "-p", "50", pool]);
        ok(&s, &["zpool", "prefetch", "-t", "ddt", pool]);
        ok(&s, &["zpool", "scrub", "-w", pool]);
        let shown = status(pool);
        assert!(
            shown.contains(" with 0 errors on ") && shown.contains("No known data errors"),
            "{shown}"
        );
        ok(&s, &["zpool", "export", pool]);
        zdb(&s, &disks.text(""), pool);
    }
    ok(&s, &["daemon", "stop"]);
}
