//! The tools that show statistics: golden output from a directory of kstats, the
//! mounted directory as node_exporter reads it, tunables, hostile files.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, clippy::unwrap_used, clippy::panic)]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;

use common::{Said, Sandbox, can_mount};

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures");

fn kstats() -> String {
    format!("{FIXTURES}/kstat")
}

/// Compares with a file of `fixtures/golden`; `CENOTE_BLESS` writes it.
fn golden(name: &str, text: &str) {
    let path = format!("{FIXTURES}/stats/{name}.txt");
    if std::env::var_os("CENOTE_BLESS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(text, expected, "{name}");
}

/// Runs a tool over the fixtures; no daemon is needed.
fn tool(args: &[&str]) -> Said {
    let s = Sandbox::new("statistics");
    let path = kstats();
    let mut all = args.to_vec();
    all.extend(["--path", &path]);
    let said = s.say(&all);
    assert!(!s.path("run").exists(), "a daemon was started");
    said
}

fn output(args: &[&str]) -> String {
    let said = tool(args);
    assert_eq!((said.code, said.err.as_str()), (0, ""), "{args:?}");
    said.out
}

/// The lines, without the first `skip`, and without a time of day at their begin.
fn timeless(text: &str, skip: usize) -> String {
    let line = |l: &str| match l.as_bytes() {
        [_, _, b':', _, _, b':', ..] => format!("HH:MM:SS{}\n", &l[8..]),
        _ => format!("{l}\n"),
    };
    text.lines().skip(skip).map(line).collect()
}

#[test]
fn golden_output_of_each_tool() {
    golden("arcstat", &timeless(&output(&["arcstat"]), 0));
    golden("arcstat-x", &timeless(&output(&["arcstat", "-x", "0.01", "2"]), 0));
    golden("arcstat-z", &timeless(&output(&["arcstat", "-z"]), 0));
    golden("arcstat-2007", &timeless(&output(&["arcstat", "--2007", "0.01", "2"]), 0));
    let raw = ["arcstat", "-p", "-s", ",", "-f", "size,c,mrusz,mrusz%,mfutg,metatg,avail,grow"];
    golden("arcstat-p", &output(&raw));
    golden("arc", &output(&["arc"]));
    golden("kstat-p", &output(&["kstat", "-p", "-m", "zfs/tank"]));
    golden("kstat", &output(&["kstat", "-n", "zfetchstats"]));
    golden("kstat-json", &output(&["kstat", "-j", "-m", "zfs/tank", "-n", "*t*"]));
    // The report's head tells the machine and the date.
    golden("arc_summary", &timeless(&output(&["arc_summary"]), 6));
    golden("arc_summary-g", &output(&["arc_summary", "-g"]));
    golden("arc_summary-r-zil", &timeless(&output(&["arc_summary", "-s", "zil"]), 6));
}

#[test]
fn every_field_has_a_number() {
    let out = output(&["arcstat", "-a", "-p", "-s", " "]);
    let mut lines = out.lines().map(|l| l.split(' ').collect::<Vec<_>>());
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    // Without a second tier its fields are left out.
    assert!(names.len() > 150 && !names.contains(&"l2hits") && names.contains(&"l2hsz"));
    assert_eq!(names.len(), values.len());
    for (name, value) in names.iter().zip(&values).skip(1) {
        assert!(value.parse::<i64>().is_ok(), "{name}: {value}");
    }
    let said = tool(&["arcstat", "-v"]);
    assert_eq!((said.code, said.out.as_str()), (0, ""));
    assert_eq!(said.err.lines().count(), 190);
    assert!(said.err.contains("\n       hit% : hit percentage\n"), "{}", said.err);
}

#[test]
fn what_cannot_be_is_refused() {
    for (code, args, told) in [
        (1, &["arcstat", "-f", "time,x"][..], "Invalid column definition! -- ['x']\n"),
        (1, &["arcstat", "0"], "interval cannot be zero\n"),
        (1, &["arc_summary", "-s", "x"], "Error: unknown section 'x'"),
        (1, &["kstat", "-n", "nothing"], ""),
        (2, &["kstat", "-Q"], "invalid option 'Q'"),
    ] {
        let said = tool(args);
        assert_eq!(said.code, code, "{args:?} {said:?}");
        assert!(said.err.starts_with(told), "{args:?}: {}", said.err);
    }
    let s = Sandbox::new("statistics-none");
    for tool in ["arcstat", "arc_summary", "kstat", "arc", "tune"] {
        assert_eq!(s.fail(1, &[tool]), "no daemon is running: import a pool first\n", "{tool}");
    }
    assert!(s.fail(1, &["arcstat", "--path", "/nowhere"]).contains("no such directory"));
}

#[test]
fn names_of_old_lead_to_the_tools() {
    let s = Sandbox::new("statistics-names");
    for (name, begins) in [
        ("arcstat", "    time  read  ddread"),
        ("zarcstat", "    time  read  ddread"),
        ("arcstat.pl", "    Time  read  miss  miss%  dmis"),
        ("arc_summary", "\n-----"),
        ("zarcsummary", "\n-----"),
    ] {
        let link = s.dir("bin").join(name);
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_cenote"), &link).unwrap();
        let out =
            std::process::Command::new(&link).env("CENOTE_KSTAT_DIR", kstats()).output().unwrap();
        let out = String::from_utf8(out.stdout).unwrap();
        assert!(out.starts_with(begins), "{name}: {out}");
    }
}

#[test]
fn hostile_files_do_not_panic_the_tools() {
    let s = Sandbox::new("statistics-hostile");
    let dir = s.dir("kstat");
    let head = "1 1 0x01 147 39984 1 1\nname type data\n";
    let huge = format!(
        "{head}hits 4 {max}\niohits 4 {max}\nmisses 4 {max}\nsize 4 {max}\nc 4 {max}\nc_max 4 \
         {max}\nmru_size 4 {max}\nmfu_size 4 {max}\nmeta 4 {max}\npd 4 {max}\npm 4 {max}\n\
         memory_available_bytes 3 {min}\np 4 {max}\nl2_size 4 {max}\nl2_hits 4 {max}\n",
        max = u64::MAX,
        min = i64::MIN
    );
    let long = format!("{head}{} 4 1\n", "x".repeat(1 << 20));
    let files: [&[u8]; 9] = [
        b"",
        b"\xff\xfe\0\0\n\n",
        huge.as_bytes(),
        long.as_bytes(),
        b"1 1 0x01 147 39984 1 1\n",
        b"1 1 0x01 147 39984 1 1\nname type data\nhits 4\n",
        b"1 1 0x01 147 39984 1 1\nname type data\nhits 9 9\n",
        b"1 1 0x01 147 39984 1 1\nname type data\nhits 4 -1\n",
        b"1 1 0x01 0 0 1 1\nname type data\nhits 7 many\nmeta 3 -5\nc 0 x\n",
    ];
    let path = dir.to_str().unwrap();
    for (i, bytes) in files.iter().enumerate() {
        for file in ["arcstats", "zfetchstats", "zil"] {
            std::fs::write(dir.join(file), bytes).unwrap();
        }
        for args in [
            &["arcstat", "-a"][..],
            &["arcstat", "-a", "-p"],
            &["arcstat", "--2007"],
            &["arc_summary"],
            &["arc_summary", "-g"],
            &["kstat"],
            &["kstat", "--prometheus"],
            &["arc"],
        ] {
            let mut all = args.to_vec();
            all.extend(["--path", path]);
            let said = s.say(&all);
            assert!(said.code == 0 || said.code == 1, "{i} {args:?}: {said:?}");
            let odd = ["panicked", "nan", "NaN", "inf "].iter().any(|w| said.err.contains(w));
            assert!(!odd && !said.out.contains("NaN"), "{i} {args:?}: {said:?}");
        }
    }
    // A pipe in the place of a file hangs nobody.
    std::fs::remove_file(dir.join("zil")).unwrap();
    let fifo = rustix::fs::CWD;
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(fifo, dir.join("zil"), rustix::fs::FileType::Fifo, mode, 0).unwrap();
    assert!(s.fail(1, &["arc_summary", "--path", path]).contains("not a regular file"));
}

/// What node_exporter does with a named kstat, by chapter 09 §6.3.
fn exporter(text: &str) -> Option<BTreeMap<String, u64>> {
    let mut lines = text.lines();
    let header = lines.nth(1)?;
    assert_eq!(header.split_whitespace().collect::<Vec<_>>(), ["name", "type", "data"]);
    let mut out = BTreeMap::new();
    for line in lines {
        let parts: Vec<&str> = line.split_whitespace().collect();
        assert!(parts.len() >= 3, "{line}");
        if parts[1] == "4" {
            out.insert(parts[0].to_owned(), parts[2].parse().unwrap());
        }
    }
    Some(out)
}

fn file(dir: &Path, name: &str) -> String {
    std::fs::read_to_string(dir.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn http(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut out = String::new();
    stream.read_to_string(&mut out).unwrap();
    out
}

/// Where the log says that metrics are.
fn metrics(s: &Sandbox) -> String {
    let log = std::fs::read_to_string(s.path("run/daemon.log")).unwrap();
    let line = log.lines().find_map(|l| l.strip_prefix("metrics at http://")).unwrap();
    line.strip_suffix("/metrics").unwrap().to_owned()
}

#[test]
fn the_mounted_directory_and_metrics_tell_the_same() {
    if !can_mount("the directory of kstats") {
        return;
    }
    let pools = testkit::golden_pools();
    let pool = pools.iter().find(|p| p.name == "dedup").unwrap_or(&pools[0]);
    let name = pool.name.as_str();
    let s = Sandbox::new("statistics-mounted");
    s.ok(&["daemon", "start", "--metrics", "127.0.0.1:0"]);
    pool.unpack(&s.dir("disks"));
    let (disks, root) = (s.text("disks"), s.text("mnt"));
    let dir = s.path("run/proc/spl/kstat/zfs");
    // The kernel kept the first listing for ever, without the pools that came later.
    let is_listed = || {
        std::fs::read_dir(&dir)
            .unwrap()
            .any(|entry| entry.unwrap().file_name().to_str() == Some(name))
    };
    assert!(!is_listed());
    s.ok(&["zpool", "import", "-d", &disks, "-o", "readonly=on", "-f", "-R", &root, name]);
    assert!(is_listed());
    // As node_exporter: each file it knows, in full and with plain headers.
    for known in [
        "abdstats",
        "arcstats",
        "cenote_bugs",
        "dbufstats",
        "dmu_tx",
        "dnodestats",
        "fm",
        "vdev_mirror_stats",
        "zfetchstats",
        "zil",
    ] {
        let values = exporter(&file(&dir, known)).unwrap();
        assert!(!values.is_empty(), "{known}");
    }
    let before = exporter(&file(&dir, "arcstats")).unwrap();
    assert_eq!(before.len(), 147);
    let (state, guid) = (format!("{name}/state"), format!("{name}/guid"));
    assert_eq!(file(&dir, &state), "ONLINE\n");
    assert_eq!(
        file(&dir, &guid).trim(),
        s.ok(&["zpool", "get", "-Hp", "-o", "value", "guid", name]).trim()
    );
    // Live: reading a file counts.
    let objset = |dir: &Path| {
        let entries = std::fs::read_dir(dir.join(name)).unwrap();
        let names: BTreeSet<String> =
            entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        let sets = names.iter().filter(|n| n.starts_with("objset-0x"));
        sets.map(|n| exporter(&file(dir, &format!("{name}/{n}"))).unwrap()["nread"]).sum::<u64>()
    };
    let read_before = objset(&dir);
    let bytes = read_some(Path::new(&root));
    assert!(bytes > 0 && objset(&dir) > read_before, "{bytes} read");
    let after = exporter(&file(&dir, "arcstats")).unwrap();
    assert!(after["hits"] + after["misses"] > before["hits"] + before["misses"]);
    // The same over HTTP, and by the tool.
    let page = http(&metrics(&s), "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(page.starts_with("HTTP/1.1 200 OK\r\n"), "{page}");
    for line in [
        format!("\nnode_zfs_arc_c {}\n", after["c"]),
        format!("\nnode_zfs_zpool_state{{state=\"online\",zpool=\"{name}\"}} 1\n"),
        format!("\nnode_zfs_zpool_dataset_nwritten{{dataset=\"{name}\",zpool=\"{name}\"}} 0\n"),
    ] {
        assert!(page.contains(&line), "{line}\n{page}");
    }
    assert!(http(&metrics(&s), "nonsense\r\n\r\n").starts_with("HTTP/1.1 400 "));
    let listed = s.ok(&["kstat", "-p", "-m", "zfs", "-n", "arcstats"]);
    assert!(listed.contains(&format!("zfs:0:arcstats:c\t{}\n", after["c"])), "{listed}");
    // Nothing can be written, and an export takes the pool's files along.
    assert!(std::fs::write(dir.join("arcstats"), "0").is_err());
    s.ok(&["zpool", "export", name]);
    assert!(!dir.join(name).exists() && !is_listed());
    s.stop();
    assert!(!dir.join("arcstats").exists());
}

#[test]
fn a_killed_daemons_directory_is_cleaned_and_it_can_be_forbidden() {
    if !can_mount("the directory of kstats after a kill") {
        return;
    }
    let s = Sandbox::new("statistics-killed");
    s.ok(&["daemon", "start"]);
    let arcstats = s.path("run/proc/spl/kstat/zfs/arcstats");
    assert!(arcstats.exists());
    let pid = s.pid();
    let process = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
    common::eventually("it is not killed", || !common::is_alive(pid));
    assert!(std::fs::metadata(&arcstats).is_err());
    s.ok(&["daemon", "start"]);
    assert!(std::fs::read_to_string(&arcstats).unwrap().contains("\nhits "));
    assert_eq!(s.mounts().len(), 1);
    s.stop();
    assert!(!s.path("run/proc").exists());
    let started = s.command(&["daemon", "start"]).env("CENOTE_KSTAT", "off").status().unwrap();
    assert!(started.success() && s.mounts().is_empty());
    assert!(!s.ok(&["daemon", "status"]).contains("kstats:"));
    s.stop();
}

/// Reads small files below a directory; how many bytes. Others may be of holes alone.
fn read_some(dir: &Path) -> u64 {
    let mut bytes = 0;
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let Ok(meta) = std::fs::symlink_metadata(&path) else { continue };
        if meta.is_dir() {
            bytes += read_some(&path);
        } else if meta.is_file() && meta.len() < 1 << 20 {
            bytes += std::fs::read(&path).map_or(0, |b| b.len() as u64);
        }
        if bytes > 4 << 20 {
            break;
        }
    }
    bytes
}

#[test]
fn tunables_are_set_at_once_and_nonsense_is_refused() {
    let s = Sandbox::new("statistics-tune");
    s.ok(&["daemon", "start"]);
    assert_eq!(s.ok(&["tune", "-H", "vfs.zfs.arc.max=96M"]), "zfs_arc_max\t100663296\n");
    assert_eq!(s.ok(&["tune", "-H", "vfs.zfs.arc_max"]), "zfs_arc_max\t100663296\n");
    assert_eq!(s.ok(&["arcstat", "-p", "-f", "c"]), "c\n100663296\n");
    let one_less = s.ok(&["tune", "-H", "zfs_arc_max=100663295"]);
    assert_eq!(one_less, "zfs_arc_max\t100663295\n");
    for (word, told) in [
        ("zfs_arc_max=12", "'12' is no value of zfs_arc_max: it takes 0 (automatic), or 1M to "),
        ("zfs_arc_min=97M", "zfs_arc_min must not be more than zfs_arc_max, which is 96.0M"),
        ("zfs_arc_shrink_shift=-1", "'-1' is no value of zfs_arc_shrink_shift: it takes 1 to 16"),
        ("zfs_arc_policy=", "'' is no value of zfs_arc_policy: it takes default or arc"),
        ("zfs_nonsense=1", "there is no tunable 'zfs_nonsense'"),
    ] {
        let err = s.fail(1, &["tune", word]);
        assert!(err.starts_with(told), "{word}: {err}");
    }
    assert_eq!(s.ok(&["tune", "-H", "zfs_arc_max"]), one_less);
    let listed = s.ok(&["tune", "list"]);
    assert!(listed.contains("name  zfs_arc_max, vfs.zfs.arc.max, vfs.zfs.arc_max\n"), "{listed}");
    let page = s.ok(&["arc"]);
    assert!(page.contains("hits                               0         n/a"), "{page}");
    assert!(s.ok(&["arc", "--what-if"]).starts_with("There is nothing to go by yet"));
    assert!(s.fail(2, &["arc", "x"]).starts_with("usage: arc"));
    assert!(s.fail(1, &["daemon", "start", "--metrics", "x"]).contains("no address and port"));
    s.stop();
}
