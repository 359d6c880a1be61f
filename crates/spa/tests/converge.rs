//! Txgs of pools with fragmented free space are written in few passes.
//!
//! Story: random overwrites of 8 KiB in a pool of 4 GiB that was 70 to 83 % full suspended
//! it within a minute ("a txg does not converge"), and again at once after an import. In
//! such a pool a block of 128 KiB is a gang block. Each pass gave the gang blocks of the
//! MOS new addresses, the log of space maps recorded these, and its own block was a gang.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, clippy::disallowed_methods)]

mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use base::{ErrorKind, ObjectId, Result};
use common::*;
use dmu::ObjectSpec;
use ondisk::ObjType;
use ondisk::config::PoolState;
use spa::engine::Writer;
use spa::write::topology::{NewKind, NewVdev};
use testkit::{Rng, side_by_side};

/// The limit of the `debug_assert` in `spa::engine::sync`.
const PASSES: u64 = 15;

#[derive(Clone, Copy, Debug)]
enum VdevShape {
    Disk,
    Mirror,
    Raidz(u64, usize),
    Draid,
}

const SHAPES: [VdevShape; 6] = [
    VdevShape::Disk,
    VdevShape::Mirror,
    VdevShape::Raidz(1, 3),
    VdevShape::Raidz(1, 5),
    VdevShape::Raidz(2, 6),
    VdevShape::Draid,
];

impl VdevShape {
    fn disks(self) -> usize {
        match self {
            VdevShape::Disk => 1,
            VdevShape::Mirror => 2,
            VdevShape::Raidz(_, n) => n,
            VdevShape::Draid => 6,
        }
    }

    fn vdev(self, d: &FileDisks) -> NewVdev {
        let kind = match self {
            VdevShape::Disk => return file(0, d),
            VdevShape::Mirror => NewKind::Mirror,
            VdevShape::Raidz(nparity, _) => NewKind::Raidz { nparity: nparity as _ },
            VdevShape::Draid => NewKind::Draid { nparity: 1, ndata: Some(3), nspares: 1 },
        };
        NewVdev::new(kind).with_children((0..self.disks()).map(|i| file(i, d)).collect())
    }
}

fn scratch_name(name: &str, shape: VdevShape) -> String {
    format!("{name}{shape:?}").replace([' ', '(', ')', ','], "")
}

fn nightly() -> bool {
    std::env::var_os("CENOTE_NIGHTLY").is_some()
}

/// Files of records of one size in one pool.
struct Load {
    w: Arc<Writer>,
    os: Arc<dmu::Objset>,
    record: u64,
    /// Objects, and the records of each.
    files: Vec<(ObjectId, u64)>,
    noise: Vec<u8>,
    rng: Rng,
}

impl Load {
    fn new(w: &Arc<Writer>, pool: &str, record: u64, seed: u64) -> Load {
        let mut rng = Rng::new(seed);
        let noise = (0..record + (1 << 16)).map(|_| rng.below(256) as u8).collect();
        Load { w: Arc::clone(w), os: head_of(w, pool), record, files: Vec::new(), noise, rng }
    }

    fn put(&mut self, id: ObjectId, nth: u64) -> Result<()> {
        let tx = self.w.begin_wait(self.record, false)?;
        let from = self.rng.below(1 << 16) as usize;
        let data = &self.noise[from..from + self.record as usize];
        self.os.write(&tx, id, nth * self.record, data)
    }

    fn file(&mut self, records: u64) -> Result<()> {
        let spec = ObjectSpec {
            object_type: ObjType::PLAIN_FILE_CONTENTS,
            block_size: self.record as u32,
            ..ObjectSpec::default()
        };
        let id = self.os.allocate(&self.w.begin_wait(self.record, false)?, &spec)?;
        self.files.push((id, 0));
        for nth in 0..records {
            self.put(id, nth)?;
            if let Some(last) = self.files.last_mut() {
                last.1 += 1;
            }
        }
        Ok(())
    }

    /// Overwrites records at random, with a txg after each `every` of them. A full pool may
    /// refuse one.
    fn overwrite(&mut self, n: u64, every: u64) -> u64 {
        let mut refused = 0;
        for i in 0..n {
            let (id, records) = self.files[self.rng.below(self.files.len() as u64) as usize];
            let nth = self.rng.below(records.max(1));
            match self.put(id, nth) {
                Err(e) if e.kind() == ErrorKind::NoSpace => refused += 1,
                other => other.unwrap(),
            }
            if i % every == every - 1 {
                self.w.sync().unwrap();
            }
        }
        self.w.sync().unwrap();
        refused
    }

    fn end(self, d: &FileDisks, pool: &str) -> u64 {
        let Load { w, os, .. } = self;
        w.export(PoolState::Exported).unwrap();
        let passes = w.most_passes();
        drop((os, w));
        zdb(d, pool);
        std::fs::remove_dir_all(&d.dir).unwrap();
        passes
    }
}

/// Every block larger than a sector is a gang of single sectors.
fn everything_in_gangs(shape: VdevShape, ashift: u32, features: bool) {
    let name = format!("gangs{ashift}{}", if features { "" } else { "old" });
    let d = disks(&scratch_name(&name, shape), shape.disks(), 96 << 20);
    let w = make_with(&d, &name, &[shape.vdev(&d)], features, Some(ashift));
    let force = &w.space().force_ganging;
    force.larger_than.store(1 << ashift, Relaxed);
    force.members.store(true, Relaxed);
    force.one_in.store(1, Relaxed);
    let mut load = Load::new(&w, &name, 32 << 10, 7);
    for _ in 0..3 {
        load.file(12).unwrap();
        w.sync().unwrap();
    }
    load.overwrite(40, 8);
    let (first, _) = load.files.remove(0);
    let tx = w.begin_wait(0, true).unwrap();
    load.os.free_object(&tx, first).unwrap();
    drop(tx);
    w.sync().unwrap();
    drop(w);
    let passes = load.end(&d, &name);
    println!("{shape:?} ashift {ashift} features {features}: {passes} passes");
    assert!(passes <= PASSES, "{passes}");
}

#[test]
fn txgs_end_where_every_block_is_a_gang() {
    let both = |shape, features| [(shape, 9, features), (shape, 12, features)];
    let mut all: Vec<_> = SHAPES.into_iter().flat_map(|shape| both(shape, true)).collect();
    all.extend(both(VdevShape::Disk, false));
    side_by_side(&all, |&(shape, ashift, features)| everything_in_gangs(shape, ashift, features));
}

/// A pool that is filled to 95 % and then overwritten at random, until no free segment is
/// larger than a record.
fn fill_and_overwrite(shape: VdevShape, ashift: u32, record: u64) {
    let name = format!("frag{ashift}k{}", record >> 10);
    let size = if shape.disks() > 2 { 64 << 20 } else { 128 << 20 };
    let d = disks(&scratch_name(&name, shape), shape.disks(), size);
    let w = make_with(&d, &name, &[shape.vdev(&d)], true, Some(ashift));
    let capacity = w.space().class_totals(metaslab::SpaceClass::Normal).capacity;
    w.plants.slop.store(capacity / 20, Relaxed);
    let mut load = Load::new(&w, &name, record, record ^ u64::from(ashift));
    let full = loop {
        match load.file((2 << 20) / record) {
            Ok(()) => assert!(load.files.len() < 1000),
            Err(e) => break e,
        }
    };
    assert_eq!(full.kind(), ErrorKind::NoSpace, "{full}");
    w.sync().unwrap();
    // Some space is free again.
    for _ in 0..load.files.len() / 40 + 1 {
        let (id, _) = load.files.pop().unwrap();
        let tx = w.begin_wait(0, true).unwrap();
        load.os.free_object(&tx, id).unwrap();
    }
    w.sync().unwrap();
    let groups = if nightly() { 1000 } else { 16 };
    let every = (1 << 20) / record;
    let refused = load.overwrite(groups * every, every);
    let normal = w.space().class_totals(metaslab::SpaceClass::Normal);
    drop(w);
    let passes = load.end(&d, &name);
    let full = normal.allocated * 100 / normal.capacity;
    println!(
        "{shape:?} ashift {ashift} record {record}: {full} % full, {passes} passes, {refused} refused"
    );
    assert!(passes <= PASSES, "{passes}");
}

#[test]
fn txgs_end_in_a_full_pool_that_is_overwritten() {
    let mut all = Vec::new();
    for (i, shape) in SHAPES.into_iter().enumerate() {
        for (k, ashift) in [9, 12].into_iter().enumerate() {
            for (j, record) in [4u64, 8, 16, 128, 1024].into_iter().enumerate() {
                // One of the sizes for each, in turn.
                if nightly() || (i + 2 * k) % 5 == j {
                    all.push((shape, ashift, record << 10));
                }
            }
        }
    }
    side_by_side(&all, |&(shape, ashift, record)| fill_and_overwrite(shape, ashift, record));
}
