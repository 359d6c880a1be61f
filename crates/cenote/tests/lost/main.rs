//! Pools that were lost come back: earlier states are gone back to, space maps are made
//! anew. OpenZFS's zdb is content with what is left.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "zdb is a process")]

mod rebuild;
mod rewind;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use base::{ObjectId, Txg};
use cenote::create::{CreateRequest, Force, NewKind, NewVdev, PoolSetting};
use cenote::inspect::spa::audit;
use cenote::inspect::zpl::rw::{Caller, New, WritePosition as At};
use cenote::{Engine, FileSystem, ImportOptions, Io, Pool};
use testkit::{Rng, Scratch, import_from};

const MB: u64 = 1 << 20;
const DATASET: &str = "tank/fs";

/// How the disks of a test's pool are arranged.
#[derive(Clone, Copy, Debug)]
enum Shape {
    Single,
    Mirror,
    Raidz(u32, usize),
    Draid,
}

impl Shape {
    fn disks(self) -> usize {
        match self {
            Shape::Single => 1,
            Shape::Mirror => 2,
            Shape::Raidz(_, width) => width,
            Shape::Draid => 5,
        }
    }
}

/// A pool in a directory of its own.
struct LostPool {
    scratch: Scratch,
    _engine: Arc<Engine>,
    pool: Arc<Pool>,
}

fn writing() -> ImportOptions {
    ImportOptions { force: true, ..ImportOptions::default() }
}

impl LostPool {
    fn new(name: &str, shape: Shape, ashift: u64) -> LostPool {
        let scratch = Scratch::new(&format!("lost-{name}"));
        let leaf = |i: usize| {
            let path = scratch.path().join(format!("d{i}"));
            std::fs::File::create(&path).unwrap().set_len(128 * MB).unwrap();
            NewVdev::new(NewKind::File(path))
        };
        let leaves: Vec<NewVdev> = (0..shape.disks()).map(leaf).collect();
        let group = |kind| vec![NewVdev::new(kind).with_children(leaves.clone())];
        let vdevs = match shape {
            Shape::Single => leaves.clone(),
            Shape::Mirror => group(NewKind::Mirror),
            Shape::Raidz(nparity, _) => group(NewKind::Raidz { nparity }),
            Shape::Draid => group(NewKind::Draid { nparity: 1, ndata: Some(2), nspares: 1 }),
        };
        let request = CreateRequest {
            force: Force::ALL,
            settings: vec![
                PoolSetting::Stored("failmode", 1),
                PoolSetting::Stored("ashift", ashift),
            ],
            ..CreateRequest::new("tank", vdevs)
        };
        let engine = testkit::engine();
        let pool = engine.create_pool(&request).unwrap().unwrap();
        pool.create_filesystem(DATASET, &[], None).unwrap();
        LostPool { scratch, _engine: engine, pool }
    }

    fn dir(&self) -> &Path {
        self.scratch.path()
    }

    fn fs(&self) -> Arc<FileSystem> {
        self.pool.dataset(DATASET).unwrap().open_fs().unwrap()
    }

    fn sync(&self) -> Txg {
        self.pool.writer().unwrap().sync().unwrap()
    }

    /// Writes a file of noise, and waits until it is on disk; the group.
    fn write(&self, name: &str, seed: u64, len: u64) -> Txg {
        let fs = self.fs();
        let root = fs.root();
        let id = match fs.lookup(root, name.as_bytes(), Io::WAIT) {
            Ok(found) => found.id,
            Err(_) => {
                fs.make(&Caller::root(), root, name.as_bytes(), &New::file(0o644)).unwrap().id
            }
        };
        let data = noise(seed, len as usize);
        for (i, part) in data.chunks(MB as usize).enumerate() {
            let at = At::Offset(i as u64 * MB);
            assert_eq!(fs.write(&Caller::root(), id, at, part).unwrap().bytes, part.len() as u64);
        }
        self.sync()
    }

    fn remove(&self, name: &str) -> Txg {
        let fs = self.fs();
        fs.unlink(&Caller::root(), fs.root(), name.as_bytes()).unwrap();
        self.sync()
    }

    /// The power fails: nothing more is written. The disks are copied, for the engine may
    /// hold them for a while.
    fn crash(self) -> Down {
        let copy = Scratch::new("lost-crash");
        for entry in std::fs::read_dir(self.dir()).unwrap() {
            let path = entry.unwrap().path();
            testkit::copy_file(&path, &copy.path().join(path.file_name().unwrap()));
        }
        Down { scratch: copy }
    }

    fn export(self) -> Down {
        self.pool.export().unwrap();
        Down { scratch: self.scratch }
    }
}

/// A pool that is not imported.
struct Down {
    scratch: Scratch,
}

impl Down {
    fn dir(&self) -> &Path {
        self.scratch.path()
    }

    fn import(&self, options: &ImportOptions) -> Result<SecondImport, cenote::Error> {
        let engine = testkit::engine();
        let pool = import_from(&engine, self.dir(), options)?;
        Ok(SecondImport { _engine: engine, pool })
    }

    fn up(self, options: &ImportOptions) -> LostPool {
        let engine = testkit::engine();
        let pool = import_from(&engine, self.dir(), options).unwrap();
        assert_eq!(pool.read_only_because(), None);
        LostPool { scratch: self.scratch, _engine: engine, pool }
    }

    /// Names and contents as a reader finds them.
    fn content(&self, options: &ImportOptions) -> BTreeMap<String, u64> {
        let rig = self.import(options).unwrap();
        content(&rig.pool)
    }

    /// Every rule holds, and zdb finds nothing wrong.
    fn judge(&self) {
        let rig = self.import(&testkit::readonly()).unwrap();
        let spa = rig.pool.spa();
        let options = audit::AuditOptions { verify: audit::Verify::All, leaks: true, threads: 8 };
        let report = spa.audit(options, &()).unwrap();
        assert!(report.is_clean() && report.leaked == 0, "{report:?}");
        let tree = spa.zio().tree();
        let ratio = |id| tree.deflate_ratio(base::VdevId(id)).unwrap_or(512);
        let ratios = cenote::inspect::dsl::write::Ratios::new((0..4).map(ratio).collect());
        let wrong = cenote::inspect::dsl::write::check(spa.mos(), &ratios).unwrap();
        assert!(wrong.is_empty(), "{wrong:?}");
        drop((tree, rig));
        testkit::side_by_side(&["-bcc", "-dd", "-m", "-y"], |look| {
            let Some(text) = zdb(self.dir(), &[look]) else { return };
            if *look == "-bcc" {
                assert!(text.contains("No leaks"), "{text}");
                return;
            }
            for bad in ["mismatch", "Failed", "failed", "leaked", "incorrect", "ASSERT"] {
                assert!(!text.contains(bad), "{look:?}: {bad}: {text}");
            }
        });
    }
}

/// An import beside others.
struct SecondImport {
    _engine: Arc<Engine>,
    pool: Arc<Pool>,
}

fn zdb(dir: &Path, args: &[&str]) -> Option<String> {
    let out = Command::new("zdb").args(["-e", "-p"]).arg(dir).args(args).arg("tank").output();
    let Ok(out) = out else {
        testkit::skip(testkit::Need::Zdb, "zdb is not installed");
        return None;
    };
    let text =
        String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "zdb {args:?}: {text}");
    Some(text)
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        out.extend_from_slice(&rng.number().to_le_bytes());
    }
    out.truncate(len);
    out
}

fn digest(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// Names and contents in the root directory of the file system.
fn content(pool: &Pool) -> BTreeMap<String, u64> {
    let fs = pool.dataset(DATASET).unwrap().open_fs().unwrap();
    let (mut out, mut cookie) = (BTreeMap::new(), Some(0));
    while let Some(at) = cookie {
        let page = fs.readdir(fs.root(), at, Io::WAIT).unwrap();
        for entry in page.entries.iter().filter(|e| e.name != b"." && e.name != b"..") {
            let name = String::from_utf8(entry.name.clone()).unwrap();
            out.insert(name, digest(&read(&fs, entry.id)));
        }
        cookie = page.next;
    }
    out
}

fn read(fs: &FileSystem, id: ObjectId) -> Vec<u8> {
    let size = fs.attrs(id, Io::WAIT).unwrap().size as usize;
    let pieces = fs.read(id, 0, size, Io::WAIT).unwrap();
    pieces.iter().flat_map(|b| b.iter().copied()).collect()
}

fn files(list: &[(&str, u64, u64)]) -> BTreeMap<String, u64> {
    let one = |&(name, seed, len): &(&str, u64, u64)| {
        (name.to_owned(), digest(&noise(seed, len as usize)))
    };
    list.iter().map(one).collect()
}
