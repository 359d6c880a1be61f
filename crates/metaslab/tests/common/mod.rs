//! The model of a pool's space, and its disk.

use std::collections::{BTreeMap, BTreeSet};

use base::{Dva, Result, Txg, VdevId};
use metaslab::{
    Batch, Denied, FlushLimits, LogFact, MapFacts, MapWrite, MsDesc, MsKey, Space, SpaceClass,
    VdevDesc, Want,
};
use ondisk::endian::Endian;
use ondisk::spacemap::{Encoder, Entries, Entry, Header, Kind, Params, Range};

/// Bytes of a space map's block.
const BLOCK: u32 = 128;
const MS_SHIFT: u32 = 17;

#[derive(Clone, Debug)]
pub(crate) struct ModelConfig {
    pub(crate) vdevs: u32,
    pub(crate) metaslabs: u64,
    pub(crate) ashift: u32,
    /// Number of sectors of which every allocation is a multiple, as a dRAID's rows.
    pub(crate) row: u64,
    pub(crate) logs: bool,
    pub(crate) v2: bool,
    pub(crate) defer: bool,
    /// Keep the pool nearly full.
    pub(crate) full: bool,
    pub(crate) streams: usize,
}

pub(crate) struct ModelRng(u64);

impl ModelRng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }
    fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }
}

/// The contents of the MOS.
#[derive(Clone, Default)]
struct ModelDisk {
    maps: BTreeMap<u64, Vec<u8>>,
    headers: BTreeMap<MsKey, Header>,
    logs: BTreeMap<Txg, Vec<u8>>,
    unflushed: BTreeMap<MsKey, Txg>,
    next_object: u64,
}

/// The address of a sector: vdev, sector index.
type SectorKey = (u32, u64);

/// Blocks with their births.
type BirthBlocks = Vec<(Txg, Vec<Dva>)>;

#[derive(Clone, Default)]
struct SectorModel {
    blocks: BirthBlocks,
    used: BTreeSet<SectorKey>,
    /// Freed in these txgs; may not be allocated yet.
    freed: BTreeMap<SectorKey, Txg>,
}

pub(crate) struct SpaceModel<'a> {
    config: &'a ModelConfig,
    rng: ModelRng,
    space: Space,
    disk: ModelDisk,
    model: SectorModel,
    durable: (ModelDisk, BTreeSet<SectorKey>, BirthBlocks),
    synced: Txg,
    /// Txgs whose frees were not deferred.
    undeferred: BTreeSet<Txg>,
    plant: &'a dyn Fn(&Space),
}

fn text(e: base::Error) -> String {
    e.to_string()
}

impl<'a> SpaceModel<'a> {
    fn new(
        config: &'a ModelConfig,
        seed: u64,
        plant: &'a dyn Fn(&Space),
    ) -> Result<SpaceModel<'a>, String> {
        let mut model = SpaceModel {
            config,
            rng: ModelRng(seed | 1),
            space: Space::new(1),
            disk: ModelDisk { next_object: 10, ..ModelDisk::default() },
            model: SectorModel::default(),
            durable: Default::default(),
            synced: Txg(3),
            undeferred: BTreeSet::new(),
            plant,
        };
        model.durable.0 = model.disk.clone();
        model.import()?;
        Ok(model)
    }

    fn ms_params(&self, ms: u64) -> (Params, u64, u64) {
        let width = self.config.row << self.config.ashift;
        let start = (ms << MS_SHIFT).next_multiple_of(width);
        let size = (((ms + 1) << MS_SHIFT) - start) / width * width;
        (Params::metaslab(start, size, self.config.ashift), start, size)
    }

    /// Opens the durable state.
    fn import(&mut self) -> Result<(), String> {
        self.disk = self.durable.0.clone();
        self.model = SectorModel {
            blocks: self.durable.2.clone(),
            used: self.durable.1.clone(),
            freed: BTreeMap::new(),
        };
        self.space = Space::new(self.config.streams);
        (self.plant)(&self.space);
        for v in 0..self.config.vdevs {
            let key = |ms| MsKey { vdev: VdevId(v), ms };
            let of = |ms| {
                let header = self.disk.headers.get(&key(ms)).cloned().unwrap_or_default();
                let unflushed_txg = self.disk.unflushed.get(&key(ms)).copied().unwrap_or_default();
                MsDesc { object: header.object, header, unflushed_txg }
            };
            let desc = VdevDesc {
                vdev: VdevId(v),
                class: SpaceClass::Normal,
                asize: (self.config.metaslabs << MS_SHIFT) + 4096,
                ashift: self.config.ashift,
                ms_shift: MS_SHIFT,
                align: if self.config.row == 1 { 0 } else { self.config.row << self.config.ashift },
                data_disks: 1,
                allocating: true,
                metaslabs: (0..self.config.metaslabs).map(of).collect(),
            };
            self.space.add_vdev(&desc, None).map_err(text)?;
        }
        for (&txg, bytes) in &self.disk.logs {
            for entry in Entries::new(bytes, Endian::Little, Params::log()).ranges() {
                self.space.replay_log(txg, &entry.map_err(text)?).map_err(text)?;
            }
        }
        self.space.check().map_err(text)
    }

    fn load(&mut self, key: MsKey) -> Result<(), String> {
        let Some(plan) = self.space.load_plan(key).map_err(text)? else { return Ok(()) };
        let params = self.ms_params(key.ms).0;
        let none = Vec::new();
        let bytes = self.disk.maps.get(&plan.object).unwrap_or(&none);
        let bytes = &bytes[..plan.length as usize];
        self.space.load(&plan, Entries::new(bytes, Endian::Little, params).ranges()).map_err(text)
    }

    fn allocate(&mut self, txg: Txg) -> Result<(), String> {
        let unit = self.config.row << self.config.ashift;
        let large = self.rng.below(6) == 0;
        let size = unit * (1 + self.rng.below(if large { 40 } else { 6 }));
        let want = Want {
            psize: size,
            record: 0,
            copies: 1 + self.rng.below(3) as u8,
            class: SpaceClass::Normal,
            txg,
            hint: self.rng.below(8),
            metadata: self.rng.below(3) == 0,
            gang_child: self.rng.below(4) == 0,
            avoid: None,
        };
        let dvas = loop {
            match self.space.allocate(&want, &|_| size) {
                Ok(dvas) => break dvas,
                Err(Denied::Load(vdev, ms)) => self.load(MsKey { vdev, ms })?,
                Err(Denied::NoSpace) => return Ok(()),
            }
        };
        if dvas.len() != usize::from(want.copies) {
            return Err("too few copies".into());
        }
        if self.rng.below(12) == 0 {
            self.space.unallocate(txg, &dvas);
            return Ok(());
        }
        for dva in &dvas {
            self.take(dva, unit)?;
        }
        self.model.blocks.push((txg, dvas));
        Ok(())
    }

    fn sectors(&self, dva: &Dva) -> impl Iterator<Item = SectorKey> + use<> {
        let shift = self.config.ashift;
        let (from, n, vdev) = (dva.offset >> shift, dva.asize.0 >> shift, dva.vdev.0);
        (from..from + n).map(move |s| (vdev, s))
    }

    fn take(&mut self, dva: &Dva, unit: u64) -> Result<(), String> {
        let (_, start, size) = self.ms_params(dva.offset >> MS_SHIFT);
        if dva.offset < start || dva.offset + dva.asize.0 > start + size {
            return Err(format!("{dva} crosses a metaslab"));
        }
        if !dva.offset.is_multiple_of(unit) {
            return Err(format!("{dva} is not aligned"));
        }
        for at in self.sectors(dva) {
            if !self.model.used.insert(at) {
                return Err(format!("{at:?} is given twice"));
            }
            if self.durable.1.contains(&at) {
                return Err(format!("{at:?} is given, but the last uberblock refers to it"));
            }
            if let Some(txg) = self.model.freed.remove(&at) {
                let wait = if self.undeferred.contains(&txg) { 0 } else { 2 };
                if txg.0 + wait > self.synced.0 {
                    return Err(format!("{at:?} of txg {txg} is allocated after {}", self.synced));
                }
            }
        }
        Ok(())
    }

    fn free_some(&mut self, txg: Txg, n: u64) -> Result<(), String> {
        for _ in 0..n {
            if self.model.blocks.is_empty() {
                return Ok(());
            }
            let i = self.rng.below(self.model.blocks.len() as u64) as usize;
            if self.model.blocks[i].0 > txg {
                continue;
            }
            let (_, dvas) = self.model.blocks.swap_remove(i);
            for dva in dvas {
                self.space.free(txg, dva).map_err(text)?;
                if self.space.free(txg, dva).is_ok() {
                    return Err(format!("{dva} was freed twice"));
                }
                for at in self.sectors(&dva) {
                    self.model.used.remove(&at);
                    self.model.freed.insert(at, txg);
                }
            }
        }
        Ok(())
    }

    fn append(
        to: &mut Vec<u8>,
        params: Params,
        v2: bool,
        key: MsKey,
        batches: &[Batch],
        pass: u32,
        txg: Txg,
    ) -> Result<i64> {
        let mut out = Encoder::new(params, to.len() as u64, BLOCK, v2)?;
        batches.iter().try_for_each(|b| b.encode(&mut out, key.vdev, pass, txg))?;
        let (bytes, alloc) = out.finish();
        to.extend(bytes);
        Ok(alloc)
    }

    fn store(&mut self, write: &MapWrite, pass: u32, txg: Txg) -> Result<(), String> {
        let key = write.key;
        let mut object = write.object;
        if object == 0 || (write.truncate && self.rng.below(2) == 0) {
            self.disk.maps.remove(&object);
            object = self.disk.next_object;
            self.disk.next_object += 1;
        }
        let map = self.disk.maps.entry(object).or_default();
        let mut alloc = self.disk.headers.get(&key).map_or(0, |h| h.alloc);
        if write.truncate {
            map.clear();
            alloc = 0;
        }
        // Own maps do not record a vdev; only logs do.
        let own = MsKey { vdev: VdevId(0), ..key };
        let params = Params::metaslab(write.seg.start, write.seg.len, write.shift);
        alloc +=
            Self::append(map, params, self.config.v2, own, &write.own, pass, txg).map_err(text)?;
        let length = map.len() as u64;
        if alloc != write.alloc && !write.own.is_empty() {
            return Err(format!("the map sums up to {alloc}, not {}", write.alloc));
        }
        if write.histogram.iter().any(|&n| n > 1 << 40) {
            return Err("an odd histogram".into());
        }
        let header = Header { object, length, alloc, histogram: Some(write.histogram) };
        self.disk.headers.insert(key, header);
        if self.config.logs {
            let log = self.disk.logs.entry(txg).or_default();
            Self::append(log, Params::log(), true, key, &write.log, pass, txg).map_err(text)?;
        } else if !write.log.is_empty() {
            return Err("something is for a log".into());
        }
        if let Some(at) = write.unflushed_txg {
            self.disk.unflushed.insert(key, at);
        }
        self.space.written(key, object, length).map_err(text)
    }

    fn flush(&mut self, txg: Txg, facts: &MapFacts) -> Result<(), String> {
        let logs: Vec<LogFact> = self
            .disk
            .logs
            .iter()
            .map(|(&txg, b)| LogFact { txg, blocks: (b.len() as u64).div_ceil(u64::from(BLOCK)) })
            .collect();
        let limits = FlushLimits { logs: 4, least: self.rng.below(3), ..FlushLimits::default() };
        let all = self.rng.below(16) == 0;
        for key in self.space.choose_flushes(txg, &logs, &limits, all) {
            if let Some(write) = self.space.prepare_flush(key, txg, facts).map_err(text)? {
                self.store(&write, 1, txg)?;
            }
        }
        let least = self.space.min_unflushed().unwrap_or(Txg::MAX);
        self.disk.logs.retain(|&txg, _| txg >= least);
        if self.disk.logs.len() > 6 {
            return Err("logs pile up".into());
        }
        Ok(())
    }

    /// One txg: `txg` is synced while `txg + 1` is open.
    fn run_txg(&mut self, txg: Txg) -> Result<(), String> {
        let facts = MapFacts {
            logs: self.config.logs,
            v2: self.config.v2,
            long_header: true,
            block_size: u64::from(BLOCK),
        };
        for pass in 1..=1 + self.rng.below(4) as u32 {
            let (less, more) = if self.config.full { (4, 30) } else { (6, 8) };
            let frees = self.rng.below(if pass == 1 { less * 2 } else { less });
            self.free_some(txg, frees)?;
            for _ in 0..self.rng.below(if pass == 1 { more } else { 5 }) {
                self.allocate(txg)?;
            }
            if pass == 1 && self.config.logs {
                self.flush(txg, &facts)?;
            }
            for key in self.space.take_dirty(txg) {
                let write = self.space.prepare_write(key, txg, pass, &facts).map_err(text)?;
                for _ in 0..self.rng.below(2) {
                    self.allocate(txg.next())?;
                }
                if let Some(write) = write {
                    self.store(&write, pass, txg)?;
                }
            }
            self.space.check().map_err(text)?;
        }
        self.space.before_commit(txg).map_err(text)?;
        for _ in 0..self.rng.below(3) {
            self.allocate(txg.next())?;
        }
        if self.rng.below(10) == 0 {
            return self.import();
        }
        self.commit(txg)
    }

    fn commit(&mut self, txg: Txg) -> Result<(), String> {
        let mut disk = self.disk.clone();
        disk.next_object += 1000;
        let blocks: Vec<_> = self.model.blocks.iter().filter(|b| b.0 <= txg).cloned().collect();
        let used: BTreeSet<SectorKey> =
            blocks.iter().flat_map(|b| b.1.iter()).flat_map(|d| self.sectors(d)).collect();
        if self.replayed(&disk)? != used {
            return Err(format!("what is written is not what is allocated in txg {txg}"));
        }
        self.durable = (disk, used, blocks);
        self.synced = txg;
        if !self.config.defer && self.rng.below(2) == 0 {
            self.undeferred.insert(txg);
        }
        let defer = !self.undeferred.contains(&txg);
        self.space.synced(txg, defer).map_err(text)?;
        if self.rng.below(4) == 0 {
            let ranges_max = self.rng.below(60) as usize;
            self.space.unload_idle(txg, self.rng.below(3), ranges_max);
        }
        self.space.check().map_err(text)?;
        if self.rng.below(9) == 0 { self.import() } else { Ok(()) }
    }

    /// Chapter 05 §4.2 I1, computed naively.
    fn replayed(&self, disk: &ModelDisk) -> Result<BTreeSet<SectorKey>, String> {
        let mut used = BTreeSet::new();
        let mut apply = |vdev: u32, range: &Range| {
            for s in
                range.offset >> self.config.ashift..(range.offset + range.len) >> self.config.ashift
            {
                let fine = match range.kind {
                    Kind::Alloc => used.insert((vdev, s)),
                    Kind::Free => used.remove(&(vdev, s)),
                };
                if !fine {
                    return Err(format!("{range:?} contradicts what came before it"));
                }
            }
            Ok(())
        };
        for (key, header) in &disk.headers {
            let map = &disk.maps[&header.object][..header.length as usize];
            let params = self.ms_params(key.ms).0;
            for entry in Entries::new(map, Endian::Little, params) {
                if let Entry::Range(range) = entry.map_err(text)? {
                    apply(key.vdev.0, &range)?;
                }
            }
        }
        for (&txg, log) in &disk.logs {
            for range in Entries::new(log, Endian::Little, Params::log()).ranges() {
                let range = range.map_err(text)?;
                let key = MsKey { vdev: range.vdev, ms: range.offset >> MS_SHIFT };
                let since = disk.unflushed.get(&key).copied().unwrap_or_default();
                if since == Txg::ZERO {
                    return Err("a log has entries of a metaslab without logs".into());
                }
                if txg >= since {
                    apply(range.vdev.0, &range)?;
                }
            }
        }
        for (key, since) in &disk.unflushed {
            if !disk.logs.contains_key(since) {
                return Err(format!("the log of txg {since}, from which {key:?} starts, is gone"));
            }
        }
        Ok(used)
    }
}

/// Runs `groups` txgs; returns what went wrong.
pub(crate) fn run(
    config: &ModelConfig,
    seed: u64,
    groups: u64,
    plant: &dyn Fn(&Space),
) -> Result<(), String> {
    let seed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5bd1;
    let mut model = SpaceModel::new(config, seed, plant)?;
    for i in 0..groups {
        // After an import, the txg after the durable one is next.
        let txg = model.synced.next();
        model.run_txg(txg).map_err(|e| format!("txg {txg}, step {i}: {e}"))?;
    }
    Ok(())
}
