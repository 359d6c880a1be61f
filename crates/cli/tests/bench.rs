//! Every bench, tiny: it runs, says what it should, leaves nothing behind, and its
//! JSON has what programs look for. Rates depend on the machine and are not judged.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::panic)]

mod common;

use std::process::Stdio;

use common::{Sandbox, can_mount};
use serde_json::Value;

/// Runs a bench in a directory of its own, which must be empty afterwards.
fn bench(s: &Sandbox, args: &[&str]) -> (String, Value) {
    let dir = s.dir("images");
    let (json, svg) = (s.text("figures.json"), s.text("figures.svg"));
    let mut all = vec!["bench"];
    all.extend(args);
    all.extend(["--json", &json, "--svg", &svg]);
    if !matches!(args[0], "codecs" | "fuse-null") {
        all.extend(["--dir", dir.to_str().unwrap()]);
    }
    let out = s.ok(&all);
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0, "something was left behind");
    let picture = std::fs::read_to_string(svg).unwrap();
    assert!(picture.starts_with("<svg ") && picture.trim_end().ends_with("</svg>"));
    assert_eq!(picture.matches("<g ").count(), picture.matches("</g>").count());
    let value: Value = serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    assert_eq!(value["bench"], args[0]);
    assert!(value["machine"]["processors"].as_u64().unwrap() > 0);
    for target in value["targets"].as_array().unwrap() {
        let what = target["what"].as_str().unwrap();
        let word = if target["reached"].as_bool().unwrap() { "reached" } else { "missed" };
        assert!(out.contains(&format!("target {word}: {what}")), "{out}");
    }
    (out, value)
}

fn rows<'a>(value: &'a Value, table: &str) -> &'a [Value] {
    value["tables"][table].as_array().unwrap()
}

fn number(row: &Value, key: &str) -> f64 {
    row[key].as_f64().unwrap_or_else(|| panic!("no {key} in {row}"))
}

#[test]
fn poison() {
    let s = Sandbox::new("bench-poison");
    let args = ["poison", "--arc", "4M", "--a", "8M", "--b", "6.5M", "--rounds", "1"];
    let (out, value) = bench(&s, &[&args[..], &["--tenths", "5", "--reads", "200"]].concat());
    let tenths = rows(&value, "tenths");
    assert_eq!(tenths.len(), 3 * 5);
    for row in tenths {
        assert!(number(row, "reads_per_second") > 0.0);
        let hits = number(row, "hit_ratio");
        // Half of the file fits.
        assert!((0.1..0.95).contains(&hits), "{row}");
    }
    assert_eq!(value["targets"].as_array().unwrap().len(), 3);
    assert_eq!(value["settings"]["b"], 13 << 19);
    assert!(out.contains("reads/s: default library"));
}

#[test]
fn poison_compressed_skewed_for_a_time_and_both_policies() {
    let s = Sandbox::new("bench-skew");
    let args = ["poison", "--arc", "4M", "--rounds", "1", "--tenths", "2", "--time", "0.05s"];
    let more = ["--lz4", "--skew", "0.9", "--policy", "default,arc", "--seed", "7"];
    let (_, value) = bench(&s, &[&args[..], &more].concat());
    assert_eq!(rows(&value, "tenths").len(), 2 * 3 * 2);
    assert_eq!(rows(&value, "scan")[1]["policy"], "arc");
}

#[test]
fn du() {
    let s = Sandbox::new("bench-du");
    let args = ["du", "--files", "3000", "--per-dir", "100", "--data", "8M", "--stream"];
    let (_, value) = bench(&s, &args);
    let passes = rows(&value, "passes");
    assert_eq!(passes.len(), 3 * 2 * 3);
    for row in passes {
        // Files, directories, those above them, and the streamed file.
        assert_eq!(number(row, "entries"), 3000.0 + 30.0 + 30.0 + 2.0, "{row}");
    }
    let fits: Vec<_> = passes.iter().filter(|r| r["way"] == "fits").collect();
    assert!(number(fits[0], "disk_reads") > 10.0);
    assert_eq!(number(fits[1], "disk_reads"), 0.0);
    assert_eq!(number(fits[1], "block_hit_ratio"), 1.0);
    let streams = passes.iter().filter(|r| r["way"] == "beside a stream");
    assert!(
        streams.clone().count() == 6
            && streams.clone().all(|r| !r["stream_mib_per_second"].is_null())
    );
}

#[test]
fn stress() {
    let s = Sandbox::new("bench-stress");
    let args = ["stress", "--arc", "2M", "--size", "16M", "--steps", "3", "--reads", "4000"];
    let (_, value) = bench(&s, &args);
    let steps = rows(&value, "steps");
    assert_eq!(steps.len(), 6);
    assert_eq!(steps[0]["keys"], 512);
    assert_eq!(steps[2]["bytes"], 16 << 20);
    for row in steps {
        assert!((0.3..0.99).contains(&number(row, "hit_ratio")), "{row}");
    }
    assert_eq!(value["targets"].as_array().unwrap().len(), 3);
}

#[test]
fn cached_and_an_image_that_stays() {
    let s = Sandbox::new("bench-cached");
    let tiny = ["--size", "4M", "--time", "0.01", "--rounds", "1", "--threads", "2"];
    let (_, value) = bench(&s, &[&["cached", "--only", "small,lz4"][..], &tiny].concat());
    let reads = rows(&value, "reads");
    assert_eq!(reads.len(), 6 + 3 + 5);
    assert!(reads.iter().all(|r| number(r, "reads_per_second") > 0.0));
    assert_eq!(value["targets"].as_array().unwrap().len(), 7);
    // Kept, and used again.
    let dir = s.dir("kept");
    let dir = dir.to_str().unwrap();
    let args = ["bench", "cached", "--only", "small", "--keep", "--dir", dir];
    let out = s.ok(&[&args[..], &tiny].concat());
    let line = out.lines().find_map(|l| l.strip_prefix("note: kept: --pool ")).unwrap();
    let (image, name) = line.rsplit_once(' ').unwrap();
    assert!(s.ok(&["zpool", "import", "-d", image]).contains("bench"));
    let again = ["bench", "cached", "--only", "small", "--pool", image, name, "--json", "-"];
    let out = s.ok(&[&again[..], &tiny].concat());
    let value: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(value["tables"]["reads"].as_array().unwrap().len(), 6);
}

#[test]
fn through_mounts() {
    if !can_mount("benches of mounts") {
        return;
    }
    let s = Sandbox::new("bench-mounts");
    let other = s.dir("other");
    let args = ["cached", "--only", "mount", "--size", "4M", "--time", "0.01", "--rounds", "1"];
    let (_, value) = bench(&s, &[&args[..], &["--peer-dir", other.to_str().unwrap()]].concat());
    let names: Vec<_> = rows(&value, "reads").iter().map(|r| r["what"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        [
            "mount",
            "mount, all",
            "mount, direct_io",
            "mount, direct_io, all",
            "local disk",
            "local disk, all",
            "peer",
            "peer, all"
        ]
    );
    assert_eq!(std::fs::read_dir(&other).unwrap().count(), 0);
    let args = ["poison", "--arc", "2M", "--rounds", "1", "--tenths", "2", "--reads", "40"];
    let (_, value) = bench(&s, &[&args[..], &["--mount"]].concat());
    assert_eq!(rows(&value, "tenths").len(), 3 * 3 * 2);
    let (_, value) = bench(&s, &["du", "--files", "500", "--data", "1M", "--mount"]);
    let mounted = rows(&value, "passes").iter().filter(|r| r["way"] == "mount").count();
    assert_eq!(mounted, 6);
    assert_eq!(s.mounts(), Vec::<String>::new());
}

#[test]
fn codecs_and_the_null_file_system() {
    let s = Sandbox::new("bench-codecs");
    let (out, value) = bench(&s, &["codecs", "memcpy", "8K"]);
    assert!(out.starts_with("KIND         ALGORITHM"), "{out}");
    assert!(number(&rows(&value, "rows")[0], "mib_per_second") > 0.0);
    if !can_mount("the null file system") {
        return;
    }
    let (out, value) = bench(&s, &["fuse-null", "--time", "20ms"]);
    assert!(out.starts_with("read in order, 1 MiB, 1 thread "), "{out}");
    // Eight kinds of calls, by one thread and by one a core.
    assert_eq!(rows(&value, "rows").len(), 16);
}

#[test]
fn what_there_is_and_what_is_nonsense() {
    let s = Sandbox::new("bench-words");
    let list = s.ok(&["bench"]);
    for name in ["poison", "du", "stress", "cached", "codecs", "fuse-null"] {
        assert!(list.lines().any(|l| l.trim_start().starts_with(name)), "{list}");
        let help = s.ok(&["bench", name, "--help"]);
        assert!(help.contains("--json FILE"), "{help}");
    }
    assert!(s.fail(2, &["bench", "nothing"]).starts_with("bench: no bench named 'nothing'"));
    for (args, message) in [
        (&["poison", "--arc", "12q"][..], "--arc: invalid numeric suffix 'q'"),
        (&["poison", "--arc", "1K"], "--arc: must lie between 2M and 1P"),
        (&["poison", "--time", "soon"], "--time: unknown unit of time 'soon'"),
        (&["poison", "--record", "3K"], "--record: must be a power of two"),
        (&["poison", "--policy", "lru"], "--policy: 'lru' is not default or arc"),
        (&["poison", "word"], "unexpected word 'word'"),
        (&["du", "--walks", "1"], "--walks: must lie between 2 and 100"),
        (&["stress", "--first", "2G"], "--first: must not be more than --size"),
        (&["stress", "--skew", "x"], "--skew: must be a number between 0 and 3"),
        (&["cached", "--only", "disk"], "--only: 'disk' is not small, lz4 or mount"),
        (&["cached", "--size"], "option '--size' needs SIZE"),
        (&["cached", "--json", "-", "--svg", "-"], "only one of --json and --svg"),
        (&["codecs", "everything"], "bad numeric value 'everything'"),
        (&["fuse-null", "a", "b"], "more than one directory"),
        (&["cached", "--pool", "x"], "option '--pool' needs DIR NAME"),
    ] {
        let err = s.fail(2, &[&["bench"], args].concat());
        let want = format!("bench {}: {message}", args[0]);
        assert!(err.starts_with(&want), "{err}");
        assert!(err.contains("usage: bench"), "{err}");
    }
    let missing = s.text("missing");
    assert!(s.fail(1, &["bench", "stress", "--dir", &missing]).contains("missing"));
    let err = s.fail(1, &["bench", "stress", "--dir", &s.text(""), "--size", "1T"]);
    assert!(err.contains("are free: name another directory with --dir"), "{err}");
}

/// Ctrl-C: the image goes, the exit code is a signal's.
#[test]
fn a_signal_leaves_nothing_behind() {
    let s = Sandbox::new("bench-signal");
    let dir = s.dir("images");
    let args = ["bench", "cached", "--size", "32M", "--rounds", "99", "--time", "1s", "--dir"];
    let mut command = s.command(&[&args[..], &[dir.to_str().unwrap()]].concat());
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let image = || std::fs::read_dir(&dir).unwrap().count() > 0;
    common::eventually("no image", image);
    let pid = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(130));
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
}

/// The report of the sticky block size: what a burst of large blocks left is forgotten.
#[test]
fn zil_sticky() {
    let s = Sandbox::new("bench-zil-sticky");
    let (_, value) = bench(&s, &["zil-sticky", "--commits", "40", "--mass", "48M"]);
    let blocks = |step: &str| -> Vec<(u64, u64)> {
        let of = rows(&value, "blocks").iter().filter(|r| r["step"] == step);
        of.map(|r| (r["block_size"].as_u64().unwrap_or(0), r["blocks"].as_u64().unwrap())).collect()
    };
    assert_eq!(blocks("small"), [(4096, 40)]);
    assert_eq!(blocks("mass, unsynced"), [(0, 0)]);
    // The pool may write a part of the mass before.
    assert!(blocks("sync of the mass").iter().any(|(size, _)| *size >= 32 << 10));
    let small: u64 = blocks("small again").iter().filter(|b| b.0 == 4096).map(|b| b.1).sum();
    assert!(small >= 32, "{:?}", blocks("small again"));
    // From the ninth commit on: none is larger than it must be.
    assert_eq!(value["targets"][0]["value"], 0.0);
}

#[test]
fn oltp() {
    if !can_mount("bench oltp") {
        return;
    }
    let s = Sandbox::new("bench-oltp");
    let args = ["oltp", "--file", "16M", "--arc", "4M", "--count", "1000", "--rounds", "1"];
    let more = ["--clients", "3", "--depths", "1,8", "--time", "0.02"];
    let (_, value) = bench(&s, &[&args[..], &more].concat());
    let figure = |table: &str, name: &str| {
        let row = rows(&value, table).iter().find(|r| r["figure"] == name);
        number(row.unwrap_or_else(|| panic!("no {name}")), "median")
    };
    // A page is a record: it is read alone, and written without being read.
    assert_eq!(figure("records 8K", "writes: data blocks read a write"), 0.0);
    let read = figure("records 8K", "reads: device bytes a byte");
    // What an import and a mount read is a part of so little.
    assert!((1.0..2.0).contains(&read), "{read}");
    // It is one of sixteen: all of them are read, for a read and for a write.
    assert!(figure("records 128K", "reads: device bytes a byte") > 4.0);
    assert!(figure("records 128K", "writes: data blocks read a write") > 0.05);
    for table in ["records 8K", "records 128K"] {
        for name in ["transactions/s", "p99, ms", "CPU a transaction, us"] {
            assert!(figure(table, name) > 0.0, "{table}: {name}");
        }
        assert!(figure(table, "device bytes written a byte written") >= 1.0);
    }
    assert_eq!(rows(&value, "depths").len(), 3);
}

/// Once a loaded machine had written the stream of `beside` before the thread beside it was
/// on, and there was no figure.
#[test]
fn sync() {
    let s = Sandbox::new("bench-sync");
    let args = ["sync", "--file", "256M", "--rounds", "1", "--writes", "104", "--stream", "8M"];
    let (_, value) = bench(&s, &[&args[..], &["--records", "5000"]].concat());
    let figure = |table: &str, name: &str| {
        let row = rows(&value, table).iter().find(|r| r["figure"] == name);
        number(row.unwrap_or_else(|| panic!("no {name}")), "median")
    };
    assert!(figure("rate", "one writer, writes/s") > 0.0);
    // Each write is flushed once; the group may add some.
    assert!(figure("rate", "one writer, flushes a write") >= 0.9);
    // What 8 KiB take on the log is its record, whole sectors of it. The first write waits
    // for the group that has the chain, and the next may need a second block.
    let (bytes, blocks) =
        (figure("bytes", "bytes on the log a write"), figure("bytes", "blocks a write"));
    assert!((12_000.0..12_500.0).contains(&bytes), "{bytes}");
    assert!((0.97..1.03).contains(&blocks), "{blocks}");
    assert!(figure("beside", "p99 beside the stream, ms") > 0.0);
    assert_eq!(figure("replay", "records"), 5000.0);
}
