//! Runs of the fragmentation bench with small pools.

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use testkit::Scratch;

use super::*;

fn start(words: &[&str]) -> std::result::Result<(), String> {
    let words: Vec<String> = words.iter().map(|w| (*w).to_owned()).collect();
    BENCH.start(&words).map_err(Stop::text)
}

/// zdb finds no leak in the exported pool.
pub(in super::super) fn zdb(dir: &Path) {
    let run = Command::new("zdb").args(["-e", "-p"]).arg(dir).args(["-bcc", POOL]).output();
    let Ok(out) = run else {
        testkit::skip(testkit::Need::Zdb, "zdb is not installed");
        return;
    };
    let text =
        String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && text.contains("No leaks"), "{text}");
}

pub(in super::super) fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

pub(in super::super) fn rows<'a>(json: &'a Value, table: &str) -> &'a [Value] {
    json["tables"][table].as_array().unwrap()
}

/// Every tag that is opened is closed, in order.
pub(in super::super) fn assert_well_formed(svg: &str) {
    let mut open = Vec::new();
    for tag in svg.split('<').skip(1) {
        let tag = tag.split('>').next().unwrap();
        let name = tag.split([' ', '/']).next().unwrap();
        match tag.strip_prefix('/') {
            Some(closed) => assert_eq!(open.pop(), Some(closed), "{svg}"),
            None if !tag.ends_with('/') => open.push(name),
            None => {}
        }
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
    }
    assert!(open.is_empty(), "{open:?}");
}

#[test]
fn wrong_options_are_refused_before_anything_is_made() {
    for (words, text) in [
        (&["--fill", "50,x"][..], "--fill: '50,x' is no list of percentages up to 95"),
        (&["--fill", "0"], "--fill: '0' is no list of percentages up to 95"),
        (&["--curves", "fast"], "--curves: no curve 'fast'"),
        (&["--device", "/dev/null", "--curves", "tops"], "--curves: 'tops' needs a directory"),
        (&["--dir", "a=/no such directory"], "--dir: '/no such directory' is no directory"),
        (&["--minutes", "1", "--defrag", "2m"], "--defrag: longer than a level (--minutes)"),
        (&["--size", "1M"], "--size: must lie between 64M and 1P"),
        (&["word"], "unexpected word 'word'"),
    ] {
        assert_eq!(start(words).unwrap_err(), text);
    }
}

#[test]
fn time_left_for_people() {
    let left = |spent, share| left(Duration::from_secs(spent), share);
    assert_eq!(left(10, 0.001), None);
    assert_eq!(left(30, 0.5).unwrap(), "30s");
    assert_eq!(left(600, 0.25).unwrap(), "30m");
    assert_eq!(left(3600, 0.1).unwrap(), "9h 0m");
}

#[test]
fn two_levels_of_a_pool_in_a_file() {
    let scratch = Scratch::new("frag-device");
    let dir = scratch.path();
    let (image, out) = (dir.join("pool.img"), dir.join("out.json"));
    let (svg, figures) = (dir.join("all.svg"), dir.join("figures"));
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let (image, svg, figures) = (text(&image), text(&svg), text(&figures));
    start(&[
        "--device",
        &image,
        "--size",
        "64M",
        "--fill",
        "25,50",
        "--curves",
        "overwrite",
        "--writers",
        "4",
        "--minutes",
        "0.017",
        "--sample",
        "0.02",
        "--json",
        &text(&out),
        "--svg",
        &svg,
        "--figures",
        &figures,
    ])
    .unwrap();
    let json = json(&out);
    let levels = rows(&json, "levels");
    assert_eq!(levels.len(), 2);
    for (level, fill) in levels.iter().zip([0.25, 0.5]) {
        assert_eq!((&level["curve"], &level["fill"]), (&"overwrite".into(), &fill.into()));
        for key in ["filled", "steady_mb_s", "overwrites", "cpu_us", "p50_us", "longest_ms"] {
            assert!(level[key].as_f64().unwrap() > 0.0, "{key}: {level}");
        }
        assert!(level["p50_us"].as_f64() <= level["p99_us"].as_f64(), "{level}");
    }
    for device in rows(&json, "devices") {
        // Every overwritten block reaches the disk unless it is overwritten again in its txg.
        assert!(device["amplification"].as_f64().unwrap() > 0.0, "{device}");
        assert!(device["write_bytes"].as_u64().unwrap() >= 4096, "{device}");
        assert_eq!(device["gangs"], 0.0, "{device}");
        for key in ["seeks_per_1000", "modelled_mb_s", "free", "deferred", "txgs", "txg_bytes"] {
            assert!(device[key].as_f64().is_some(), "{key}: {device}");
        }
    }
    let samples = rows(&json, "samples");
    assert!(samples.len() >= 2);
    let rates = samples.iter().map(|s| s["mb_s"].as_f64().unwrap());
    assert!(rates.fold(0.0, f64::max) > 0.0);
    let states = rows(&json, "metaslabs").iter().map(|m| m["state"].as_str().unwrap());
    assert!(states.clone().any(|s| s == "before") && states.clone().any(|s| s == "after"));
    let all = std::fs::read_to_string(&svg).unwrap();
    assert_well_formed(&all);
    for title in ["fig. 1: ", "fig. 2: ", "fig. 3, overwrite: ", "fig. 4: ", "fig. 5: "] {
        assert!(all.contains(title), "{title}");
    }
    assert!(all.contains(">MB/s (10^6 bytes of overwrites a second)</text>"));
    assert!(all.contains(">time since the first overwrite, s</text>"));
    for name in ["fig1", "fig2", "fig3-overwrite", "fig4", "fig5"] {
        let figure = Path::new(&figures).join(format!("{name}.svg"));
        assert_well_formed(&std::fs::read_to_string(figure).unwrap());
    }
    zdb(dir);
}

#[test]
fn a_level_that_is_defragmented() {
    let scratch = Scratch::new("frag-defrag");
    let (image, out) = (scratch.path().join("pool.img"), scratch.path().join("out.json"));
    start(&[
        "--device",
        image.to_str().unwrap(),
        "--size",
        "256M",
        "--fill",
        "60",
        "--curves",
        "overwrite",
        "--writers",
        "2",
        "--minutes",
        "0.03",
        "--defrag",
        "0.3",
        "--sample",
        "0.02",
        "--json",
        out.to_str().unwrap(),
    ])
    .unwrap();
    let json = json(&out);
    let states = rows(&json, "free_space");
    let names: Vec<_> = states.iter().map(|s| s["state"].as_str().unwrap()).collect();
    assert_eq!(names, ["fresh", "before", "after"]);
    for state in states {
        for key in ["first_mb_s", "of_fresh", "modelled_mb_s", "free", "ranges", "largest"] {
            assert!(state[key].as_f64().unwrap() > 0.0, "{key}: {state}");
        }
    }
    let number = |state: usize, key: &str| states[state][key].as_u64().unwrap();
    // The overwrites scatter the free space, and the defragmentation joins it.
    assert!(number(1, "ranges") > 2 * number(0, "ranges"), "{json}");
    assert!(number(2, "ranges") < number(1, "ranges"), "{json}");
    assert!(states[2]["fragmentation"].as_f64() < states[1]["fragmentation"].as_f64(), "{json}");
    // The histogram has the same ranges.
    for (state, name) in names.iter().enumerate() {
        let sum = |key: String| -> u64 {
            rows(&json, "free_ranges").iter().map(|row| row[&key].as_u64().unwrap()).sum()
        };
        assert_eq!(sum(format!("{name}_ranges")), number(state, "ranges"), "{name}");
        assert_eq!(sum(format!("{name}_bytes")), number(state, "free"), "{name}");
    }
    let work = &rows(&json, "defragmentation")[0];
    assert!(work["moved"].as_u64() > Some(0) && work["seconds"].as_f64() > Some(0.0), "{work}");
    assert!(work["score_after"].as_f64() > work["score_before"].as_f64(), "{work}");
    zdb(scratch.path());
}

#[test]
fn two_levels_of_a_directory() {
    let scratch = Scratch::new("frag-dir");
    let (dir, out) = (scratch.path().join("peer"), scratch.path().join("out.json"));
    std::fs::create_dir(&dir).unwrap();
    let peer = format!("peer={}", dir.display());
    start(&[
        "--dir",
        &peer,
        "--size",
        "64M",
        "--fill",
        "25,50",
        "--writers",
        "4",
        "--minutes",
        "0.017",
        "--sample",
        "0.02",
        "--json",
        out.to_str().unwrap(),
    ])
    .unwrap();
    let json = json(&out);
    let levels = rows(&json, "levels");
    let filled: Vec<_> = levels.iter().map(|l| l["filled"].as_u64().unwrap()).collect();
    assert_eq!(filled, [16 << 20, 32 << 20]);
    assert!(levels.iter().all(|l| l["curve"] == "peer" && l["overwrites"].as_u64() > Some(0)));
    assert!(rows(&json, "devices").iter().all(|d| d["free"].is_null()));
    assert!(rows(&json, "metaslabs").is_empty());
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0, "files were left");
}

#[test]
fn a_level_through_a_mount() {
    if !Path::new("/dev/fuse").exists() {
        testkit::skip(testkit::Need::Fuse, "there is no /dev/fuse");
        return;
    }
    let scratch = Scratch::new("frag-mount");
    let (image, out) = (scratch.path().join("pool.img"), scratch.path().join("out.json"));
    start(&[
        "--device",
        image.to_str().unwrap(),
        "--size",
        "64M",
        "--fill",
        "30",
        "--curves",
        "mount",
        "--writers",
        "2",
        "--minutes",
        "0.005",
        "--sample",
        "0.02",
        "--json",
        out.to_str().unwrap(),
    ])
    .unwrap();
    let json = json(&out);
    assert_eq!(rows(&json, "levels")[0]["curve"], "mount");
    assert!(rows(&json, "devices")[0]["write_bytes"].as_u64() > Some(0));
    zdb(scratch.path());
}

#[test]
fn all_curves_without_a_mount() {
    let scratch = Scratch::new("frag-curves");
    let out = scratch.path().join("out.json");
    start(&[
        "--device",
        scratch.path().to_str().unwrap(),
        "--size",
        "96M",
        "--fill",
        "30",
        "--writers",
        "2",
        "--minutes",
        "0.005",
        "--sample",
        "0.02",
        "--json",
        out.to_str().unwrap(),
    ])
    .unwrap();
    let json = json(&out);
    let curves: Vec<_> =
        rows(&json, "levels").iter().map(|l| l["curve"].as_str().unwrap()).collect();
    assert_eq!(curves, ["overwrite", "fresh", "uncompressed", "tops", "log"]);
    let vdevs = |curve: &str| {
        let of_curve = rows(&json, "metaslabs").iter().filter(|m| m["curve"] == curve);
        of_curve.map(|m| m["vdev"].as_u64().unwrap()).max()
    };
    assert_eq!((vdevs("overwrite"), vdevs("tops"), vdevs("log")), (Some(0), Some(2), Some(0)));
    // The pools' directory is gone.
    assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 1);
}
