//! `zpool map` of an imported pool and `cenote map` of one that is not: text, JSON, pictures,
//! repeated reports, and what goes wrong.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::panic)]

mod common;

use common::Sandbox;
use serde_json::Value;
use testkit::golden;

/// The disks of a pool with mirrors, a special vdev and a log, exported by OpenZFS.
fn exported(name: &str) -> Sandbox {
    let s = Sandbox::new(name);
    golden("kitchen").unwrap().unpack(&s.dir("disks"));
    s
}

fn pools(text: &str, command: &str) -> Value {
    assert_eq!(text.lines().count(), 1, "{text}");
    let output: Value = serde_json::from_str(text).unwrap();
    assert_eq!(output["output_version"]["command"], command);
    output["pools"].clone()
}

#[test]
fn wrong_command_lines() {
    let s = Sandbox::new("map-usage");
    let usage = |args: &[&str], message: &str| {
        let text = s.fail(2, args);
        let wanted = format!("{message}\nusage:\n\t");
        assert!(text.starts_with(&wanted) && text.contains("map [-jp]"), "{args:?}: {text}");
    };
    for (program, pool) in [(&["zpool", "map"][..], "nosuch"), (&["map"][..], "nosuch")] {
        let with = |args: &[&'static str]| [program, args].concat();
        usage(&with(&[]), "missing pool argument");
        usage(&with(&["5", "1"]), "missing pool argument");
        usage(&with(&["-z", "x"]), "invalid option 'z'");
        usage(&with(&["x", "-o"]), "missing argument for 'o' option");
        usage(&with(&["x", "-T", "q"]), "invalid time format");
        usage(&with(&["x", "0"]), "interval cannot be zero");
        let both = "only one of -j and '-o -' can write to standard output";
        usage(&with(&["x", "-j", "-o", "-"]), both);
        let text = s.fail(1, &[program, &[pool]].concat());
        assert!(text.contains("nosuch"), "{text}");
    }
    usage(&["map", "--txg", "x", "tank"], "invalid txg value");
}

#[test]
fn a_pool_that_is_not_imported() {
    let s = exported("map-exported");
    let disks = s.text("disks");
    let text = s.ok(&["map", "-d", &disks, "kitchen"]);
    assert!(text.starts_with("kitchen: "), "{text}");
    for part in ["mirror-0 (normal): ", "(special): ", "(log): ", "  SIZE ", "allocated, in steps"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains('\x1b') && text.lines().all(|l| l.chars().count() <= 80), "{text}");
    assert_eq!(
        s.fail(1, &["map", "-d", &disks, "nosuch"]).matches("no pool 'nosuch' found").count(),
        1
    );
    // One pool is shown although the other does not exist.
    let said = s.say(&["map", "-d", &disks, "nosuch", "kitchen"]);
    assert_eq!((said.code, said.out), (1, text));
    let said = s.fail(1, &["zpool", "map", "kitchen"]);
    assert_eq!(said, "cannot open 'kitchen': no such pool\n");
    let said = s.fail(1, &["map", "-d", &disks, "--txg", "1", "kitchen"]);
    assert!(said.contains("group 1"), "{said}");
}

#[test]
fn an_imported_pool_has_the_map_that_it_had_before() {
    let s = exported("map-imported");
    let disks = s.text("disks");
    let before = pools(&s.ok(&["map", "--json-int", "-d", &disks, "kitchen"]), "cenote map");
    s.ok(&["zpool", "import", "-N", "-f", "-o", "readonly=on", "-d", &disks, "kitchen"]);
    let text = s.ok(&["zpool", "map", "--json-int", "kitchen"]);
    assert_eq!(pools(&text, "zpool map"), before);

    // The pool's properties are those of the map.
    let list = s.ok(&["zpool", "list", "-Hpo", "size,alloc,free,frag,cap", "kitchen"]);
    let of = |key: &str| before["kitchen"][key].to_string();
    let wanted = ["size", "allocated", "free", "fragmentation", "capacity"].map(of).join("\t");
    assert_eq!(list.trim_end(), wanted);

    // Two reports, without control sequences: standard output is no terminal.
    let twice = s.ok(&["zpool", "map", "-p", "-T", "u", "kitchen", "0.01", "2"]);
    assert!(!twice.contains('\x1b'));
    let once = s.ok(&["zpool", "map", "-p", "kitchen"]);
    let reports: Vec<&str> = twice.split(&once[..]).collect();
    let [first, second, ""] = reports[..] else { panic!("{twice}") };
    assert!(first.trim_end().parse::<u64>().is_ok(), "{first:?}");
    let time = second.strip_prefix('\n').unwrap().trim_end();
    assert!(time.parse::<u64>().is_ok(), "{second:?}");
    let lines = s.ok(&["zpool", "map", "-j", "kitchen", "0.01", "2"]);
    assert_eq!(lines.lines().count(), 2, "{lines}");

    // Pictures.
    let file = s.text("map.svg");
    assert_eq!(s.ok(&["zpool", "map", "-o", &file, "kitchen"]), "");
    let svg = std::fs::read_to_string(&file).unwrap();
    assert!(svg.starts_with("<svg ") && svg.contains("kitchen: ") && svg.ends_with("</svg>\n"));
    assert_eq!(s.ok(&["zpool", "map", "-o", "-", "kitchen"]), svg);
    let both = s.ok(&["zpool", "map", "-j", "-o", &file, "kitchen"]);
    assert!(both.starts_with("{\"output_version\""), "{both}");
    let nowhere = s.text("none/map.svg");
    let said = s.fail(1, &["zpool", "map", "-o", &nowhere, "kitchen"]);
    assert!(said.contains(&nowhere), "{said}");

    s.ok(&["zpool", "export", "kitchen"]);
    let said = s.fail(1, &["zpool", "map", "kitchen"]);
    assert_eq!(said, "cannot open 'kitchen': no such pool\n");
}
