//! Pools without feature flags are exchanged with zfs-fuse, which knows versions up to
//! 23: each side writes what the other made, and OpenZFS's zdb is content throughout.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]
#![allow(clippy::disallowed_methods, reason = "zfs-fuse and zdb run as processes")]

use std::path::Path;
use std::process::Command;

use cenote::create::{CreateRequest, Force, NewKind, NewVdev};
use cenote::{ImportOptions, Pool, PoolState};
use testkit::{Scratch, discover, engine, import_from, readonly};

fn writing() -> ImportOptions {
    ImportOptions { force: true, ..ImportOptions::default() }
}

/// OpenZFS's verdict on every block and every metaslab.
fn zdb(dir: &Path, pool: &str) {
    for how in [&["-bcc"][..], &["-dddd"]] {
        let run = Command::new("zdb").args(["-e", "-p"]).arg(dir).args(how).arg(pool).output();
        let Ok(out) = run else {
            eprintln!("SKIPPED: zdb is not installed");
            return;
        };
        let text = String::from_utf8_lossy(&out.stdout).into_owned()
            + &String::from_utf8_lossy(&out.stderr);
        let tail = &text[text.len().saturating_sub(4000)..];
        assert!(out.status.success(), "{pool} {how:?}: {tail}");
        let fine = match how {
            ["-bcc"] => text.contains("No leaks"),
            _ => !text.contains("leaked"),
        };
        assert!(fine, "{pool} {how:?}: {tail}");
    }
}

/// A file's bytes: compressible in part, and each of its own.
fn content(seed: usize, len: usize) -> Vec<u8> {
    let mut state = seed as u64 | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    (0..len).map(|i| if i % 8192 < 4096 { next() } else { seed as u8 }).collect()
}

/// Changes everything that a version has a form of its own for: objects written and
/// freed, snapshots taken and destroyed in every order, datasets made and destroyed.
fn change(pool: &Pool) {
    let name = pool.name().to_owned();
    let at = |snap: &str| vec![format!("{name}@{snap}")];
    let root = pool.dataset(&name).unwrap().open_rw().unwrap();
    let new = cenote::NewObject::default;
    let ids: Vec<_> = (0..4).map(|_| root.create(&new()).unwrap()).collect();
    for (i, &id) in ids.iter().enumerate() {
        root.write(id, 0, &content(i, 700_000)).unwrap();
    }
    root.sync().unwrap();
    pool.snapshot(&at("c1"), &[], None).unwrap();
    root.write(ids[0], 100_000, &content(7, 300_000)).unwrap();
    root.remove(ids[1]).unwrap();
    root.sync().unwrap();
    pool.snapshot(&at("c2"), &[], None).unwrap();
    root.truncate(ids[0], 50_000).unwrap();
    root.punch(ids[2], 131_072, 262_144).unwrap();
    root.sync().unwrap();
    pool.snapshot(&at("c3"), &[], None).unwrap();
    root.write(ids[3], 0, &content(9, 500_000)).unwrap();
    root.sync().unwrap();
    pool.snapshot(&at("c4"), &[], None).unwrap();
    for snap in ["c2", "c4", "c1"] {
        pool.destroy_snapshots(&at(snap), false, None).unwrap();
    }
    let child = format!("{name}/child");
    pool.create_filesystem(&child, &[], None).unwrap();
    let fs = pool.dataset(&child).unwrap().open_rw().unwrap();
    let id = fs.create(&new()).unwrap();
    fs.write(id, 0, &content(3, 900_000)).unwrap();
    fs.sync().unwrap();
    pool.snapshot(&[format!("{child}@s")], &[], None).unwrap();
    fs.write(id, 0, &content(4, 900_000)).unwrap();
    fs.sync().unwrap();
    drop(fs);
    pool.destroy_dataset(&child, true, None).unwrap();
    // What was made as an object only is nobody's file.
    for id in [ids[0], ids[2], ids[3]] {
        root.remove(id).unwrap();
    }
    root.sync().unwrap();
}

/// Imports for writing, changes, exports, and audits what is left.
fn round(dir: &Path, what: &str) {
    let engine = engine();
    let pool = import_from(&engine, dir, &writing()).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert_eq!(pool.read_only_because(), None, "{what}");
    let name = pool.name().to_owned();
    change(&pool);
    pool.export().unwrap_or_else(|e| panic!("{what}: {e}"));
    drop(pool);
    audit(dir, what);
    zdb(dir, &name);
}

fn audit(dir: &Path, what: &str) {
    let engine = engine();
    assert_eq!(discover(&engine, dir)[0].state, PoolState::Exported, "{what}");
    let pool = import_from(&engine, dir, &readonly()).unwrap();
    let report = pool.spa().audit(Default::default(), &()).unwrap();
    assert!(report.is_clean(), "{what}: {:?}", report.problems);
    let space = pool.spa().load_space().unwrap();
    let ratios = space.vdevs.iter().map(|v| v.deflate).collect();
    let ratios = cenote::inspect::dsl::write::Ratios::new(ratios);
    let wrong = cenote::inspect::dsl::write::check(pool.spa().mos(), &ratios).unwrap();
    assert!(wrong.is_empty(), "{what}: {wrong:#?}");
}

fn make(dir: &Path, name: &str, version: u64) {
    let disk = dir.join("disk");
    std::fs::File::create(&disk).unwrap().set_len(128 << 20).unwrap();
    let request = CreateRequest {
        name: name.to_owned(),
        vdevs: vec![NewVdev::new(NewKind::File(disk))],
        version,
        temporary_name: None,
        force: Force::default(),
        dry_run: false,
        features: Vec::new(),
        settings: Vec::new(),
        fs_settings: Vec::new(),
        altroot: None,
        command: Some(format!("zpool create -o version={version}")),
    };
    let made = engine().create_pool(&request);
    let pool = made.unwrap_or_else(|e| panic!("version {version}: {e}")).unwrap();
    pool.export().unwrap();
}

#[test]
fn old_versions_are_made_and_changed() {
    for version in [15, 17, 20, 23, 24, 25, 26, 28] {
        let scratch = Scratch::new(&format!("version-{version}"));
        make(scratch.path(), "old", version);
        zdb(scratch.path(), "old");
        round(scratch.path(), &format!("version {version}"));
        round(scratch.path(), &format!("version {version} again"));
    }
}
