//! Runs of the bench of aged files with small pools.

use std::path::Path;

use serde_json::Value;
use testkit::Scratch;

use super::super::frag::tests::{assert_well_formed, json, rows, zdb};
use super::*;

fn start(words: &[&str]) -> std::result::Result<(), String> {
    let words: Vec<String> = words.iter().map(|w| (*w).to_owned()).collect();
    BENCH.start(&words).map_err(Stop::text)
}

fn row<'a>(json: &'a Value, table: &str, keys: &[(&str, &str)]) -> &'a Value {
    let is = |row: &&Value| keys.iter().all(|(key, value)| row[*key] == *value);
    rows(json, table).iter().find(is).unwrap()
}

#[test]
fn wrong_options_are_refused_before_anything_is_made() {
    for (words, text) in [
        (&["--work", "all"][..], "--work: no work 'all'"),
        (&["--fill", "96"], "--fill: must lie between 1 and 95"),
        (&["--size", "1M"], "--size: must lie between 64M and 1P"),
        (&["--dir", "a=/no such directory"], "--dir: '/no such directory' is no directory"),
        (&["word"], "unexpected word 'word'"),
    ] {
        assert_eq!(start(words).unwrap_err(), text);
    }
}

/// Every kind of work on a pool in one file.
#[test]
fn all_works_on_a_pool() {
    let scratch = Scratch::new("aged-pool");
    let dir = scratch.path();
    let path = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    start(&[
        "--device",
        &path("pool.img"),
        "--size",
        "96M",
        "--files",
        "60",
        "--commits",
        "30",
        "--fill",
        "40",
        "--rounds",
        "3",
        "--data",
        "8M",
        "--json",
        &path("out.json"),
        "--figures",
        &path("figures"),
    ])
    .unwrap();
    let json = json(&dir.join("out.json"));
    let passes = rows(&json, "passes");
    // Two works with a walk and a read of all bytes, one with a read in sequence, three states.
    assert_eq!(passes.len(), 15);
    for pass in passes {
        for key in ["seconds", "device_bytes", "requests_per_mb", "request_bytes"] {
            assert!(pass[key].as_f64().unwrap() > 0.0, "{key}: {pass}");
        }
        let share = pass["dynamic_score"].as_f64().unwrap();
        assert!((0.0..=1.0).contains(&share), "{pass}");
        assert_eq!(pass["read"] == "walk", pass["mb_s"].is_null(), "{pass}");
    }
    // A cold read gets all data from the device: incompressible data at least in full.
    for state in STATES {
        let keys = [("work", "overwrite"), ("state", state)];
        let pass = row(&json, "passes", &keys);
        assert_eq!(pass["bytes"], 8 << 20);
        assert!(pass["device_bytes"].as_u64().unwrap() >= 8 << 20, "{pass}");
        assert_eq!(row(&json, "layouts", &keys)["files_steps"], 1023);
    }
    let score = |work: &str, state: &str, key: &str| {
        let row = row(&json, "layouts", &[("work", work), ("state", state)]);
        row[key].as_f64().unwrap()
    };
    let file = |state| score("overwrite", state, "files_score");
    // After two overwrites of each record on average, 14 % of the records were never overwritten.
    assert!(file("aged") < 0.6, "{}", file("aged"));
    assert!(file("fresh") > 0.8, "{}", file("fresh"));
    assert!(file("rewritten") > file("aged"));
    assert!(score("commits", "aged", "tree_score") < 1.0);
    for figure in ["fig1", "fig2", "fig3", "fig4"] {
        let text = std::fs::read_to_string(dir.join(format!("figures/{figure}.svg"))).unwrap();
        assert_well_formed(&text);
    }
    zdb(dir);
}

#[test]
fn commits_in_a_directory() {
    let scratch = Scratch::new("aged-dir");
    let (dir, out) = (scratch.path().join("peer"), scratch.path().join("out.json"));
    std::fs::create_dir(&dir).unwrap();
    let peer = format!("peer={}", dir.display());
    let out = out.to_str().unwrap();
    let words = ["--work", "commits,overwrite", "--files", "20", "--commits", "5", "--data", "1M"];
    start(&[&words[..], &["--dir", &peer, "--json", out]].concat()).unwrap();
    let json = json(Path::new(out));
    assert_eq!(rows(&json, "passes").len(), 9);
    assert!(rows(&json, "passes").iter().all(|pass| pass["place"] == "peer"));
    assert!(rows(&json, "layouts").is_empty());
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0, "files were left");
}

#[test]
fn commits_through_a_mount() {
    if !Path::new("/dev/fuse").exists() {
        testkit::skip(testkit::Need::Fuse, "there is no /dev/fuse");
        return;
    }
    let scratch = Scratch::new("aged-mount");
    let path = |name: &str| scratch.path().join(name).to_str().unwrap().to_owned();
    let (image, out) = (path("pool.img"), path("out.json"));
    let words = ["--work", "commits", "--files", "20", "--commits", "5", "--size", "64M"];
    let more = ["--mount", "--device", &image, "--json", &out];
    start(&[&words[..], &more].concat()).unwrap();
    let json = json(Path::new(&out));
    let grep = row(&json, "passes", &[("read", "grep"), ("state", "aged")]);
    assert_eq!(grep["place"], "mount");
    assert!(grep["device_bytes"].as_u64().unwrap() > 0, "{grep}");
    zdb(scratch.path());
}
