//! Pools of every kind of vdev, and importing them again.
#![allow(dead_code, unreachable_pub, clippy::disallowed_methods, clippy::unwrap_used, missing_docs)]

use std::path::Path;
use std::sync::Arc;

use base::{ObjectId, Result};
use device::{Engine, EngineKind};
use dmu::{Io, ObjectSpec, Objset};
use ondisk::ObjType;
use spa::engine::{Writer, WriterOptions};
use spa::write::topology::{NewKind, NewVdev};
use spa::{ImportOptions, Search, Spa};

use super::{FileDisks, disks, file, make_with};

/// A kind of vdev: its name, and the number of disks.
#[derive(Clone, Copy, Debug)]
pub struct PoolShape {
    pub name: &'static str,
    pub disks: usize,
    pub ashift: u32,
}

const KINDS: [(&str, usize); 10] = [
    ("single", 1),
    ("stripe", 3),
    ("mirror", 2),
    ("mirror3", 3),
    ("mirrors", 4),
    ("raidz1", 3),
    ("raidz1w5", 5),
    ("raidz2", 5),
    ("raidz3", 8),
    ("draid1", 6),
];

/// Every kind with sectors of 512 bytes and of 4 KiB.
pub fn shapes() -> Vec<PoolShape> {
    let of = |(name, disks)| [9, 12].map(|ashift| PoolShape { name, disks, ashift });
    KINDS.into_iter().flat_map(of).collect()
}

impl PoolShape {
    /// The name of the test's pool.
    pub fn pool(&self) -> String {
        format!("{}a{}", self.name, self.ashift)
    }

    fn vdevs(&self, d: &FileDisks) -> Vec<NewVdev> {
        let range = |from: usize, to: usize| (from..to).map(|i| file(i, d)).collect::<Vec<_>>();
        let of = |kind, from, to| NewVdev::new(kind).with_children(range(from, to));
        let all = self.disks;
        match self.name {
            "mirror" | "mirror3" => vec![of(NewKind::Mirror, 0, all)],
            "mirrors" => vec![of(NewKind::Mirror, 0, 2), of(NewKind::Mirror, 2, 4)],
            "raidz1" | "raidz1w5" => vec![of(NewKind::Raidz { nparity: 1 }, 0, all)],
            "raidz2" => vec![of(NewKind::Raidz { nparity: 2 }, 0, all)],
            "raidz3" => vec![of(NewKind::Raidz { nparity: 3 }, 0, all)],
            "draid1" => {
                vec![of(NewKind::Draid { nparity: 1, ndata: Some(3), nspares: 1 }, 0, all)]
            }
            _ => range(0, all),
        }
    }

    /// Makes the pool on files of `size` bytes.
    pub fn make(&self, test: &str, size: u64) -> (FileDisks, Arc<Writer>) {
        self.make_with(test, size, true)
    }

    /// As [`PoolShape::make`], with the default features or with none.
    pub fn make_with(&self, test: &str, size: u64, features: bool) -> (FileDisks, Arc<Writer>) {
        let d = disks(&format!("{test}-{}", self.pool()), self.disks, size);
        let w = make_with(&d, &self.pool(), &self.vdevs(&d), features, Some(self.ashift));
        (d, w)
    }
}

/// Opens the pool in a directory.
pub fn open_with(dir: &Path, options: &ImportOptions) -> Result<Spa> {
    let engine = Engine::new(EngineKind::Threads, 8).unwrap();
    let search = Search { paths: vec![dir.to_owned()], ..Search::default() };
    let found = spa::discover(&search, &engine).unwrap();
    assert_eq!(found.pools.len(), 1, "{:?}", found.problems);
    let cache = Arc::new(zio::BlockCache::of(64 << 20).unwrap());
    let options = ImportOptions { force: true, ..options.clone() };
    Spa::open(&found.pools[0], &options, &cache, &engine).map_err(|failure| failure.error)
}

/// Imports the pool for writing.
pub fn write_with(dir: &Path, options: &ImportOptions) -> Arc<Writer> {
    open_with(dir, options).unwrap().start_writer(WriterOptions::default()).unwrap()
}

/// The content of version `version` of file `file`; it does not compress.
pub fn content(file: u64, version: u64, len: usize) -> Vec<u8> {
    let mut state = file * 7919 + version * 104_729 + 1;
    let word = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb)
    };
    let mut out: Vec<u8> =
        std::iter::repeat_with(word).take(len.div_ceil(8)).flat_map(u64::to_le_bytes).collect();
    out.truncate(len);
    out
}

/// Makes an object with content.
pub fn write_new(w: &Writer, os: &Arc<Objset>, bytes: &[u8]) -> ObjectId {
    let spec = ObjectSpec {
        object_type: ObjType::PLAIN_FILE_CONTENTS,
        block_size: 32 << 10,
        ..ObjectSpec::default()
    };
    let tx = w.begin_wait(bytes.len() as u64 + (64 << 10), false).unwrap();
    let id = os.allocate(&tx, &spec).unwrap();
    os.write(&tx, id, 0, bytes).unwrap();
    id
}

/// Replaces the content of an object.
pub fn overwrite(w: &Writer, os: &Arc<Objset>, id: ObjectId, bytes: &[u8]) {
    let tx = w.begin_wait(bytes.len() as u64 + (64 << 10), false).unwrap();
    os.write(&tx, id, 0, bytes).unwrap();
}

/// Frees an object.
pub fn remove(w: &Writer, os: &Arc<Objset>, id: ObjectId) {
    let tx = w.begin_wait(0, true).unwrap();
    os.free_object(&tx, id).unwrap();
}

/// The content of an object.
pub fn read(os: &Arc<Objset>, id: ObjectId, len: usize) -> Result<Vec<u8>> {
    let mut out = vec![0; len];
    os.object(id, Io::WAIT)?.read_into(0, &mut out, Io::WAIT)?;
    Ok(out)
}
