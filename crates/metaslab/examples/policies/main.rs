//! Compares allocation policies under random overwrites, in memory:
//! `cargo run --release -p metaslab --example policies [POOL_MIB] [FILL_PERCENT,...]`.
//!
//! # Theory
//! A file of 8 KiB records fills a share of a vdev with 256 metaslabs. Each txg overwrites
//! random records, 2 % of the vdev in all, in the order of their numbers, then writes two copies
//! of each indirect block above a changed record (1,024 pointers; 40 to 72 KiB compressed), and a
//! few small blocks of other metadata in three copies. What a txg replaces becomes allocatable
//! two txgs later (chapter 05 §6). All policies get the same requests. A request that fits
//! nowhere in one piece is divided in halves, which counts as a gang.
//!
//! The device sorts the writes of a window of 4 MiB, as a queue does, and merges adjacent ones up
//! to 1 MiB; a jump of more than 1 MiB between two writes counts as a seek. The first passes fill the
//! file in sequence; then the content is overwritten twice, and the last quarter is measured.

use std::collections::BTreeSet;

use base::Result;
use base::rt::now;

use models::{Classic, ClassicModel, Policy, Real, Reference, SpaceRequest};

mod models;

const RECORD: u64 = 8 << 10;
const POINTERS: u64 = 1024;
const METASLABS: u64 = 256;
/// Bytes that the device sorts.
const WINDOW: u64 = 4 << 20;
const MERGE_MAX: u64 = 1 << 20;
const SEEK: u64 = 1 << 20;
/// Bytes a second of the modelled disk, which seeks in 2 to 15 ms and turns in 8.4 ms.
const RATE: f64 = 150e6;
/// Percent of the vdev that a txg overwrites.
const TXG_PERCENT: u64 = 2;

struct PolicyRng(u64);

impl PolicyRng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) % n.max(1)
    }
}

#[derive(Default)]
struct PolicyFigures {
    requests: u64,
    bytes: u64,
    gangs: u64,
    writes: u64,
    seeks: u64,
    /// Seconds that a disk with arms needs.
    busy: f64,
    data_bytes: u64,
    data_writes: u64,
    nanoseconds: u128,
    head: u64,
    size: u64,
    window: Vec<(u64, u64, bool)>,
    window_bytes: u64,
}

impl PolicyFigures {
    fn write(&mut self, at: u64, size: u64, data: bool) {
        self.window.push((at, size, data));
        self.window_bytes += size;
        if self.window_bytes >= WINDOW {
            self.flush();
        }
    }

    /// The device's queue empties.
    fn flush(&mut self) {
        self.window.sort_unstable();
        self.window_bytes = 0;
        let mut merged: Option<(u64, u64, bool)> = None;
        for (at, size, data) in std::mem::take(&mut self.window) {
            match &mut merged {
                Some((start, len, _)) if *start + *len == at && *len + size <= MERGE_MAX => {
                    *len += size;
                }
                other => {
                    let before = other.replace((at, size, data));
                    self.issue(before);
                }
            }
        }
        self.issue(merged);
    }

    fn issue(&mut self, write: Option<(u64, u64, bool)>) {
        let Some((at, size, data)) = write else { return };
        self.writes += 1;
        if data {
            self.data_writes += 1;
            self.data_bytes += size;
        }
        let distance = at.abs_diff(self.head);
        self.seeks += u64::from(distance > SEEK);
        self.busy += size as f64 / RATE
            + match distance {
                0 => 0.0,
                d if d > SEEK => 0.0062 + 0.013 * (d as f64 / self.size as f64).sqrt(),
                d if at > self.head => d as f64 / RATE,
                _ => 0.0042,
            };
        self.head = at + size;
    }
}

/// A block's pieces: offset and bytes.
type Pieces = Vec<(u64, u64)>;

struct Load<'a> {
    policy: &'a mut dyn Policy,
    records: Vec<u32>,
    indirect: Vec<Pieces>,
    small: Vec<Pieces>,
    /// The pieces of records that are gangs.
    gangs: std::collections::HashMap<u64, Pieces>,
    rng: PolicyRng,
    figures: PolicyFigures,
    full: bool,
}

impl Load<'_> {
    fn allocate(&mut self, want: SpaceRequest) -> Pieces {
        let began = now();
        let got = self.policy.allocate(&want);
        self.figures.nanoseconds += began.elapsed().as_nanos();
        self.figures.requests += 1;
        self.figures.bytes += want.size * u64::from(want.copies);
        if let Some(offsets) = got {
            let out: Pieces = offsets.into_iter().map(|at| (at, want.size)).collect();
            out.iter().for_each(|&(at, size)| self.figures.write(at, size, !want.metadata));
            return out;
        }
        if want.size <= 4096 {
            self.full = true;
            return Vec::new();
        }
        self.figures.gangs += 1;
        let half = (want.size / 2).next_multiple_of(4096);
        let mut out = self.allocate(SpaceRequest { size: half, ..want });
        out.extend(self.allocate(SpaceRequest { size: want.size - half, ..want }));
        out
    }

    fn free(&mut self, pieces: &[(u64, u64)]) -> Result<()> {
        pieces.iter().try_for_each(|&(at, size)| self.policy.free(at, size))
    }

    /// One txg that writes these records.
    fn txg(&mut self, records: &BTreeSet<u64>) -> Result<()> {
        let mut freed: Pieces = Vec::new();
        for &n in records {
            let data = SpaceRequest { size: RECORD, copies: 1, metadata: false, hint: 7 };
            let got = self.allocate(data);
            let slot = &mut self.records[n as usize];
            if *slot != u32::MAX {
                freed.push((u64::from(*slot) << 12, RECORD));
            }
            if let Some(old) = self.gangs.remove(&n) {
                freed.extend(old);
            }
            match got[..] {
                [(at, RECORD)] => *slot = (at >> 12) as u32,
                _ => {
                    *slot = u32::MAX;
                    self.gangs.insert(n, got);
                }
            }
        }
        let parents: BTreeSet<u64> = records.iter().map(|n| n / POINTERS).collect();
        for parent in parents {
            let size = 4096 * (10 + self.rng.below(9));
            let got = self.allocate(SpaceRequest { size, copies: 2, metadata: true, hint: 7 });
            freed.extend(std::mem::replace(&mut self.indirect[parent as usize], got));
        }
        for i in 0..self.small.len() {
            let size = 4096 * (1 + self.rng.below(4));
            let got = self.allocate(SpaceRequest { size, copies: 3, metadata: true, hint: 0 });
            freed.extend(std::mem::replace(&mut self.small[i], got));
        }
        self.figures.flush();
        self.free(&freed)?;
        self.policy.end_txg()
    }
}

fn run(policy: &mut dyn Policy, size: u64, fill: u64) -> Result<()> {
    // A level is a share of what a file system can hold: less slop and metadata.
    let records = (size - size / 32) / 100 * fill / (RECORD + 150);
    let each = size / 100 * TXG_PERCENT / RECORD;
    let mut load = Load {
        policy,
        records: vec![u32::MAX; records as usize],
        indirect: vec![Vec::new(); records.div_ceil(POINTERS) as usize],
        small: vec![Vec::new(); 16],
        gangs: Default::default(),
        rng: PolicyRng(88_172_645_463_325_252),
        figures: PolicyFigures { size, ..PolicyFigures::default() },
        full: false,
    };
    let mut at = 0;
    while at < records {
        let end = (at + each).min(records);
        load.txg(&(at..end).collect())?;
        at = end;
    }
    let txgs = 2 * records / each;
    for txg in 0..txgs {
        if txg == txgs * 3 / 4 {
            let head = load.figures.head;
            load.figures = PolicyFigures { head, size, ..PolicyFigures::default() };
        }
        let mut some = BTreeSet::new();
        while (some.len() as u64) < each.min(records / 2) {
            some.insert(load.rng.below(records));
        }
        load.txg(&some)?;
        if load.full {
            println!("{fill:>4}  {:<12} full after {txg} of {txgs} txgs", load.policy.name());
            return Ok(());
        }
    }
    let f = &load.figures;
    println!(
        "{fill:>4}  {:<12} {:>9.1} {:>9.1} {:>9.0} {:>9.1} {:>9.2} {:>9.0}",
        load.policy.name(),
        f.bytes as f64 / f.writes as f64 / 1024.0,
        f.data_bytes as f64 / f.data_writes.max(1) as f64 / 1024.0,
        f.seeks as f64 * 1000.0 / f.writes as f64,
        f.busy / (f.bytes as f64 / (1u64 << 30) as f64),
        f.gangs as f64 * 1000.0 / f.requests as f64,
        f.nanoseconds as f64 / f.requests as f64,
    );
    Ok(())
}

fn main() -> Result<()> {
    let mut words = std::env::args().skip(1);
    let mib: u64 = words.next().and_then(|w| w.parse().ok()).unwrap_or(4096);
    let fills = words.next().unwrap_or_else(|| "25,50,75,90".to_owned());
    let only = words.next();
    let size = (mib << 20).next_power_of_two();
    println!("FILL  POLICY       KiB/WRITE      DATA SEEKS/1k  s/GiB  GANGS/1k  ns/ALLOC");
    for fill in fills.split(',').filter_map(|w| w.parse::<u64>().ok()) {
        let policies: [&dyn Fn() -> Result<Box<dyn Policy>>; 5] = [
            &|| Ok(Box::new(ClassicModel::new(Classic::First, size)?)),
            &|| Ok(Box::new(ClassicModel::new(Classic::Best, size)?)),
            &|| Ok(Box::new(ClassicModel::new(Classic::Cursor, size)?)),
            &|| Ok(Box::new(Reference::new(size, METASLABS)?)),
            &|| Ok(Box::new(Real::new(size, METASLABS)?)),
        ];
        for make in policies {
            let mut policy = make()?;
            if only.as_deref().is_none_or(|o| o == policy.name()) {
                run(&mut *policy, size, fill)?;
            }
        }
    }
    Ok(())
}
