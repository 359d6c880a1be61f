//! Pools are created, and datasets created, changed and destroyed through the public
//! library; OpenZFS's zdb finds no error in the result.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]
#![allow(clippy::disallowed_methods, reason = "zdb runs as a process")]

mod cache_loss;
mod caches;
mod care;
mod clones;
mod datasets;
mod destroying;
mod devices;
mod diagnosis;
mod growing;
mod lineage;
mod pools;
mod random;
mod space_kept;
mod storage;
mod topology;
mod upgrades;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use cenote::create::{CreateRequest, Force, NewKind, NewVdev, PoolSetting};
use cenote::inspect::dsl;
use cenote::{Engine, ErrorKind, ImportOptions, Pool};
use testkit::{Scratch, import_from};

const MB: u64 = 1 << 20;

struct DiskFiles(Scratch);

impl DiskFiles {
    fn new(name: &str, count: usize, size: u64) -> DiskFiles {
        let scratch = Scratch::new(name);
        for i in 0..count {
            let file = std::fs::File::create(scratch.path().join(format!("d{i}"))).unwrap();
            file.set_len(size).unwrap();
        }
        DiskFiles(scratch)
    }

    fn leaf(&self, i: usize) -> NewVdev {
        NewVdev::new(NewKind::File(self.path().join(format!("d{i}"))))
    }

    fn group(&self, kind: NewKind, disks: std::ops::Range<usize>) -> NewVdev {
        NewVdev::new(kind).with_children(disks.map(|i| self.leaf(i)).collect())
    }

    fn path(&self) -> PathBuf {
        self.0.path().to_path_buf()
    }
}

fn request(vdevs: Vec<NewVdev>, settings: Vec<PoolSetting>) -> CreateRequest {
    CreateRequest {
        force: Force::ALL,
        settings: [settings, vec![PoolSetting::Stored("failmode", 1)]].concat(),
        command: Some("zpool create tank ...".into()),
        ..CreateRequest::new("tank", vdevs)
    }
}

fn make(engine: &Engine, vdevs: Vec<NewVdev>) -> Arc<Pool> {
    engine.create_pool(&request(vdevs, Vec::new())).unwrap().unwrap()
}

fn writing() -> ImportOptions {
    ImportOptions { force: true, ..ImportOptions::default() }
}

fn zdb_text(dir: &Path, args: &[&str]) -> Option<String> {
    let out = Command::new("zdb").args(["-e", "-p"]).arg(dir).args(args).output();
    let Ok(out) = out else {
        testkit::skip(testkit::Need::Zdb, "zdb is not installed");
        return None;
    };
    let text =
        String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "zdb {args:?}: {text}");
    Some(text)
}

/// The pool's own rules are satisfied, and zdb finds no error.
fn judge(engine: &Engine, dir: &Path) {
    let pool = import_from(engine, dir, &testkit::readonly()).unwrap();
    let tree = pool.spa().zio().tree();
    let of = |id| tree.deflate_ratio(base::VdevId(id)).unwrap_or(512);
    let ratios = (0..8).map(of).collect();
    let ratios = dsl::write::Ratios::new(ratios);
    let wrong = dsl::write::check(pool.spa().mos(), &ratios).unwrap();
    assert!(wrong.is_empty(), "{wrong:?}");
    let name = pool.name().to_owned();
    drop((tree, pool));
    if let Some(text) = zdb_text(dir, &["-bcc", &name]) {
        assert!(text.contains("No leaks"), "{text}");
    }
    for look in ["-dddd", "-m", "-y", "-C"] {
        let Some(text) = zdb_text(dir, &[look, &name]) else { return };
        for bad in ["mismatch", "Failed", "failed", "leaked", "cannot", "incorrect", "ASSERT"] {
            assert!(!text.contains(bad), "{look}: {bad}: {text}");
        }
    }
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        out.extend_from_slice(&x.to_le_bytes());
    }
    out.truncate(len);
    out
}

fn kind(error: cenote::Error) -> (ErrorKind, String) {
    (error.kind(), error.message().to_owned())
}
