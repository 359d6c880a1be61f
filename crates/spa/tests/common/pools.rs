//! Pools in files or on simulated disks, with file systems whose content is known.

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cenote::inspect::zpl::rw::{Caller, New, WritePosition};
use cenote::{FileSystem, ImportOptions, Io, Pool};
use device::Device;
use device::sim::{Image, SimDevice, SimDisks};
use spa::audit::{AuditOptions, Report, Verify};
use spa::leaves::Known;
use spa::{Search, Spa};
use testkit::{Rng, import_from};

/// The name of all pools.
pub const NAME: &str = "tank";

/// Imports it for writing.
pub fn import(dir: &Path) -> Arc<Pool> {
    let options = ImportOptions { force: true, ..ImportOptions::default() };
    let pool = import_from(&testkit::engine(), dir, &options).unwrap();
    assert_eq!(pool.read_only_because(), None);
    pool
}

/// Audits an exported pool, all checksums included.
pub fn audit(dir: &Path) -> Report {
    let pool = import_from(&testkit::engine(), dir, &testkit::readonly()).unwrap();
    let options = AuditOptions { verify: Verify::All, ..AuditOptions::default() };
    pool.spa().audit(options, &()).unwrap()
}

/// An exported pool is whole.
pub fn whole(dir: &Path, what: &str) -> Report {
    let report = audit(dir);
    assert!(report.is_clean() && report.leaked == 0, "{what}: {:#?}", report.problems);
    report
}

/// OpenZFS's zdb finds no error in an exported pool.
pub fn zdb(dir: &Path, name: &str) {
    let mut run = std::process::Command::new("zdb");
    let Ok(out) = run.args(["-e", "-p"]).arg(dir).args(["-bccd", name]).output() else {
        testkit::skip(testkit::Need::Zdb, "zdb is not installed");
        return;
    };
    let text =
        String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && text.contains("No leaks"), "{text}");
    let text = text.replace("verify nothing leaked", "");
    for bad in ["mismatch", "leaked", "ASSERT", "does not match"] {
        assert!(!text.contains(bad), "{bad}: {text}");
    }
}

/// The files of a pool, and what must be in them.
pub struct ModelFiles {
    pub fs: Arc<FileSystem>,
    pub content: BTreeMap<String, Vec<u8>>,
    pub rng: Rng,
    /// Number of the next file.
    pub made: u64,
}

impl ModelFiles {
    pub fn new(pool: &Pool, seed: u64) -> ModelFiles {
        let fs = pool.dataset(NAME).unwrap().open_fs().unwrap();
        ModelFiles { fs, content: BTreeMap::new(), rng: Rng::new(seed), made: 0 }
    }

    /// Writes a new file of a random size.
    pub fn write(&mut self) {
        let len = match self.rng.below(4) {
            0 => 512 + self.rng.below(4096),
            1 => 40_000 + self.rng.below(90_000),
            _ => 130_000 + self.rng.below(600_000),
        };
        let mut data = vec![0; len as usize];
        let mut word = self.rng.number();
        for (i, byte) in data.iter_mut().enumerate() {
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // A part of it compresses.
            *byte = if i % 4096 < 512 { 7 } else { (word >> 33) as u8 };
        }
        let name = format!("file{}", self.made);
        self.made += 1;
        let new = New::file(0o644);
        let id = self.fs.make(&Caller::root(), self.fs.root(), name.as_bytes(), &new).unwrap().id;
        self.fs.write(&Caller::root(), id, WritePosition::Offset(0), &data).unwrap();
        self.content.insert(name, data);
    }

    pub fn any(&mut self) -> Option<String> {
        let at = self.rng.below(self.content.len().max(1) as u64) as usize;
        self.content.keys().nth(at).cloned()
    }

    pub fn unlink(&mut self) {
        let Some(name) = self.any() else { return };
        self.fs.unlink(&Caller::root(), self.fs.root(), name.as_bytes()).unwrap();
        self.content.remove(&name);
    }

    /// Overwrites a part of a file.
    pub fn overwrite(&mut self) {
        let Some(name) = self.any() else { return };
        let data = self.content.get_mut(&name).unwrap();
        let at = self.rng.below(data.len() as u64) as usize;
        let len = (data.len() - at).min(50_000);
        data[at..at + len].fill(self.rng.number() as u8);
        let id = self.fs.lookup(self.fs.root(), name.as_bytes(), Io::WAIT).unwrap().id;
        let position = WritePosition::Offset(at as u64);
        self.fs.write(&Caller::root(), id, position, &data[at..at + len]).unwrap();
    }

    pub fn change(&mut self) {
        match self.rng.below(3) {
            0 => self.write(),
            1 => self.unlink(),
            _ => self.overwrite(),
        }
    }
}

/// Reads all files again.
pub fn verify(pool: &Pool, dataset: &str, content: &BTreeMap<String, Vec<u8>>) {
    let fs = pool.dataset(dataset).unwrap().open_fs().unwrap();
    for (name, data) in content {
        let id = fs.lookup(fs.root(), name.as_bytes(), Io::WAIT).unwrap().id;
        let file = fs.open_file(id, Io::WAIT).unwrap();
        let mut found = vec![0; data.len() + 1];
        let n = file.read_at(0, &mut found, Io::WAIT).unwrap();
        found.truncate(n);
        assert!(found == *data, "{dataset}: {name} differs");
    }
}

/// The content of a file as that of a simulated disk.
pub fn image_of(path: &Path) -> Image {
    let file = std::fs::File::open(path).unwrap();
    let size = file.metadata().unwrap().len();
    let mut image = Image::new(size);
    let mut part = vec![0; 1 << 20];
    let mut at = 0;
    while at < size {
        let n = file.read_at(&mut part, at).unwrap();
        image.write(at, &part[..n]).unwrap();
        at += n as u64;
    }
    image
}

/// The simulated disks as devices.
pub fn leaves(disks: &SimDisks) -> Known {
    let device = |d: Arc<SimDevice>| {
        (PathBuf::from(format!("/simulated/{}", d.disk())), d as Arc<dyn Device>)
    };
    Known(disks.devices().into_iter().map(device).collect())
}

/// Opens the pool on them.
pub fn open(leaves: &Known, options: &ImportOptions) -> Spa {
    let cache = Arc::new(zio::BlockCache::of(32 << 20).unwrap());
    let found = spa::discover_in(&Search::default(), leaves).unwrap();
    Spa::open_in(&found.pools[0], options, &cache, leaves).map_err(|f| f.error).unwrap()
}

/// Options of an import for writing.
pub fn writing() -> ImportOptions {
    ImportOptions { force: true, ..ImportOptions::default() }
}
