//! Allocated and free space by metaslab (chapter 05 §1-4, §11, §12.3).

use std::collections::BTreeMap;

use base::{Error, Result, Txg, VdevId};
use dmu::Io;
use dsl::Mos;
use metaslab::Fragmentation;
use ondisk::config::{PoolConfig, VdevConfig, VdevType};
use ondisk::spacemap::{Entries, Header, Kind, Params, Range, parse_log_key};
use vdev::AllocClass;

use crate::audit::maps;
use crate::engine::checkpoint::MAP_KEY;
use crate::import::Spa;

/// Metaslabs one vdev may have (chapter 05 §1.1).
pub const METASLABS_MAX: u64 = 131_072;

/// One metaslab as its maps describe it.
#[derive(Clone, Debug, Default)]
pub struct Metaslab {
    /// Position on its vdev.
    pub id: u64,
    /// First byte.
    pub start: u64,
    /// Bytes.
    pub size: u64,
    /// Space map object; 0 while nothing was ever allocated.
    pub space_map: u64,
    /// Header of the space map.
    pub header: Header,
    /// First txg whose changes are only in the log space maps; 0 if none are.
    pub unflushed_txg: Txg,
    /// Change of allocated bytes in the log space maps.
    pub unflushed_alloc: i64,
    /// Entries for it in the log space maps.
    pub unflushed_entries: u64,
}

impl Metaslab {
    /// Bytes allocated, logs included.
    pub fn allocated(&self) -> u64 {
        self.header.alloc.saturating_add(self.unflushed_alloc).max(0) as u64
    }

    /// Bytes free.
    pub fn free(&self) -> u64 {
        self.size.saturating_sub(self.allocated())
    }

    /// Fragmentation of its free space in percent; `None` without a histogram.
    pub fn fragmentation(&self, ashift: u32) -> Option<u64> {
        if self.space_map == 0 {
            return Some(0);
        }
        Fragmentation::of_histogram(&self.header.histogram?, ashift).0
    }
}

/// The metaslabs of one top-level vdev.
#[derive(Clone, Debug, Default)]
pub struct VdevSpace {
    /// The vdev.
    pub vdev: VdevId,
    /// log2 of its sector.
    pub ashift: u32,
    /// log2 of a metaslab's size.
    pub metaslab_shift: u32,
    /// The metaslabs.
    pub metaslabs: Vec<Metaslab>,
    /// Allocation class.
    pub class: AllocClass,
    /// deflate ratio: 512 means one to one.
    pub deflate: u64,
    /// Bytes that only the checkpoint keeps.
    pub checkpoint: u64,
}

impl VdevSpace {
    /// Bytes in all metaslabs.
    pub fn size(&self) -> u64 {
        sum(self.metaslabs.iter().map(|m| m.size))
    }

    /// Bytes allocated.
    pub fn allocated(&self) -> u64 {
        sum(self.metaslabs.iter().map(Metaslab::allocated))
    }

    /// `bytes` as usable space.
    pub(crate) fn deflated(&self, bytes: u64) -> u64 {
        (bytes >> 9).saturating_mul(self.deflate)
    }

    /// Fragmentation in percent: the mean over metaslabs, weighted by free space; `None`
    /// when fewer than half of them have a value. A vdev without metaslabs yet has 0.
    pub fn fragmentation(&self) -> Option<u64> {
        if self.metaslabs.is_empty() {
            return Some(0);
        }
        let of = |m: &Metaslab| (m.free(), m.fragmentation(self.ashift));
        Fragmentation::of_group(self.metaslabs.iter().map(of)).0
    }
}

/// The pool's space.
#[derive(Clone, Debug, Default)]
pub struct PoolSpace {
    /// Top-level vdevs with space.
    pub vdevs: Vec<VdevSpace>,
    /// Txgs that have a log space map, and its object.
    pub logs: BTreeMap<Txg, u64>,
}

impl PoolSpace {
    fn of_pool(&self) -> impl Iterator<Item = &VdevSpace> {
        self.vdevs.iter().filter(|v| v.class != AllocClass::Log)
    }

    /// Capacity, parity included; logs do not count.
    pub fn size(&self) -> u64 {
        sum(self.of_pool().map(VdevSpace::size))
    }

    /// Allocated bytes, parity included.
    pub fn allocated(&self) -> u64 {
        sum(self.of_pool().map(VdevSpace::allocated))
    }

    /// Usable capacity as datasets see it (chapter 05 §11.1).
    pub fn usable(&self) -> u64 {
        let normal = self.vdevs.iter().filter(|v| v.class == AllocClass::Normal);
        let capacity = sum(normal.map(|v| v.deflated(v.size())));
        let others = [AllocClass::Special, AllocClass::Dedup];
        let allocated = self.vdevs.iter().filter(|v| others.contains(&v.class));
        let all = capacity.saturating_add(sum(allocated.map(|v| v.deflated(v.allocated()))));
        all.saturating_sub(self.checkpointed())
    }

    /// Usable bytes that only the checkpoint keeps.
    pub fn checkpointed(&self) -> u64 {
        sum(self.vdevs.iter().map(|v| v.deflated(v.checkpoint)))
    }

    /// The slop space (chapter 05 §11.2).
    pub fn slop(&self) -> u64 {
        let normal = self.vdevs.iter().filter(|v| v.class == AllocClass::Normal);
        metaslab::slop(sum(normal.map(|v| v.deflated(v.size()))), 0)
    }

    /// Fragmentation of the normal class, percent.
    pub fn fragmentation(&self) -> Option<u64> {
        let (mut space, mut sum) = (0u128, 0u128);
        for v in self.vdevs.iter().filter(|v| v.class == AllocClass::Normal) {
            let f = v.fragmentation()?;
            space = space.saturating_add(u128::from(v.size()));
            sum = sum.saturating_add(u128::from(f) * u128::from(v.size()));
        }
        Some(sum.checked_div(space).unwrap_or(0) as u64)
    }

    /// One vdev's space.
    pub fn vdev(&self, id: VdevId) -> Option<&VdevSpace> {
        self.vdevs.iter().find(|v| v.vdev == id)
    }
}

/// A sum that a forged space map cannot make overflow.
fn sum(parts: impl Iterator<Item = u64>) -> u64 {
    parts.fold(0, u64::saturating_add)
}

impl Spa {
    /// Calls `f` with every range of a space map object, in order.
    ///
    /// # Errors
    /// Those of reading it, `Corrupt`, and those of `f`.
    pub fn for_each_entry(
        &self,
        object: u64,
        params: Params,
        f: &mut dyn FnMut(Range) -> Result<()>,
    ) -> Result<()> {
        let handle = self.mos().object(object)?;
        let header = self.space_map_header(object)?;
        let mut left = header.length;
        let mut blkid = 0;
        while left > 0 {
            let (block, endian) = handle.read_written(blkid, Io::WAIT)?;
            let here = left.min(block.len() as u64);
            let bytes = block.get(..here as usize).unwrap_or_default();
            for range in Entries::new(bytes, endian, params).ranges() {
                f(range.map_err(|e| e.in_object(handle.id()))?)?;
            }
            left -= here;
            blkid += 1;
        }
        Ok(())
    }

    /// The header of a space map object.
    ///
    /// # Errors
    /// `Corrupt` when it is none or claims more than its object holds.
    pub fn space_map_header(&self, object: u64) -> Result<Header> {
        let handle = self.mos().object(object)?;
        let dnode = handle.dnode();
        if dnode.object_type != ondisk::ObjType::SPACE_MAP {
            return Err(Error::corrupt("object is not a space map").in_object(handle.id()));
        }
        let header = Header::parse(&dnode.bonus, dnode.endian)?;
        let capacity = (dnode.max_blkid + 1).saturating_mul(handle.block_size());
        if header.length > capacity {
            return Err(
                Error::corrupt("space map is longer than its object").in_object(handle.id())
            );
        }
        Ok(header)
    }

    /// Reads the headers of all space maps, and the log space maps.
    ///
    /// # Errors
    /// Those of reading the MOS; `Corrupt` when the maps contradict themselves.
    pub fn load_space(&self) -> Result<PoolSpace> {
        self.load_space_of(self.config())
    }

    /// As [`Spa::load_space`], of the vdevs of a newer configuration.
    ///
    /// # Errors
    /// As [`Spa::load_space`].
    pub fn load_space_of(&self, config: &PoolConfig) -> Result<PoolSpace> {
        let mut space = PoolSpace { vdevs: Vec::new(), logs: self.log_space_maps()? };
        for vdev in &config.vdev_tree.children {
            if !matches!(vdev.kind, VdevType::Hole | VdevType::Missing | VdevType::Indirect) {
                space.vdevs.push(self.load_vdev_space(vdev)?);
            }
        }
        let mut changes: BTreeMap<(u32, u64), (i64, u64)> = BTreeMap::new();
        self.for_each_log_entry(&space, &mut |vdev, metaslab, range| {
            let entry = changes.entry((vdev.0, metaslab)).or_default();
            let len = i64::try_from(range.len).unwrap_or(i64::MAX);
            let change = if range.kind == Kind::Alloc { len } else { -len };
            entry.0 = entry.0.saturating_add(change);
            entry.1 += 1;
            Ok(())
        })?;
        for v in &mut space.vdevs {
            for m in &mut v.metaslabs {
                if let Some(&(bytes, entries)) = changes.get(&(v.vdev.0, m.id)) {
                    (m.unflushed_alloc, m.unflushed_entries) = (bytes, entries);
                }
            }
        }
        Ok(space)
    }

    fn load_vdev_space(&self, config: &VdevConfig) -> Result<VdevSpace> {
        let mut out = self.geometry(config)?;
        let top = config.top.as_ref().filter(|t| t.metaslab_array != 0);
        let Some(top) = top else { return Ok(VdevSpace { metaslabs: Vec::new(), ..out }) };
        let count = out.metaslabs.len() as u64;
        let objects = self.mos().words(top.metaslab_array, count, METASLABS_MAX)?;
        let mut maps: Vec<u64> = objects.iter().copied().filter(|map| *map != 0).collect();
        maps.sort_unstable();
        // Space allocated in one metaslab would be free in the other.
        if maps.windows(2).any(|two| two[0] == two[1]) {
            return Err(Error::corrupt("two metaslabs have one space map").on_vdev(config.guid));
        }
        if let Some(map) = maps::top_zap(self, config, MAP_KEY)? {
            out.checkpoint = self.space_map_header(map)?.alloc.min(0).unsigned_abs();
        }
        let unflushed = self.unflushed_txgs(top.zap.map(|o| o.0), count)?;
        for (m, &object) in out.metaslabs.iter_mut().zip(&objects) {
            if object != 0 {
                (m.space_map, m.header) = (object, self.space_map_header(object)?);
            }
            m.unflushed_txg = Txg(unflushed.get(m.id as usize).copied().unwrap_or(0));
        }
        Ok(out)
    }

    /// A vdev's metaslabs according to its configuration: all of them empty.
    fn geometry(&self, config: &VdevConfig) -> Result<VdevSpace> {
        let vdev = VdevId(config.id);
        let tree = self.zio().tree();
        let class = tree.top(vdev).map(|n| n.class()).unwrap_or_default();
        let deflate = tree.deflate_ratio(vdev).unwrap_or(512);
        let top = config.top.as_ref().ok_or_else(|| {
            Error::corrupt("a top-level vdev without its space").on_vdev(config.guid)
        })?;
        let (ashift, metaslab_shift) = (top.ashift, top.metaslab_shift);
        let mut out =
            VdevSpace { vdev, ashift, metaslab_shift, class, deflate, ..VdevSpace::default() };
        if top.metaslab_array == 0 {
            return Ok(out);
        }
        let count = top.asize.checked_shr(metaslab_shift).unwrap_or(0);
        if !(1..64).contains(&metaslab_shift) || count > METASLABS_MAX {
            return Err(Error::corrupt("impossible metaslab size").on_vdev(config.guid));
        }
        let align = tree.min_alloc(vdev).map(|a| a.0).unwrap_or(0);
        let draid = config.kind == VdevType::Draid;
        for id in 0..count {
            let (start, size) = metaslab_range(id, metaslab_shift, draid.then_some(align));
            out.metaslabs.push(Metaslab { id, start, size, ..Metaslab::default() });
        }
        Ok(out)
    }

    /// The pool's space as if nothing had been allocated: no space map is read.
    ///
    /// # Errors
    /// `Corrupt` for impossible geometry.
    pub(crate) fn empty_space(&self) -> Result<PoolSpace> {
        let tops = self.config().vdev_tree.children.iter();
        let concrete = |v: &&VdevConfig| {
            !matches!(v.kind, VdevType::Hole | VdevType::Missing | VdevType::Indirect)
        };
        let vdevs = tops.filter(concrete).map(|v| self.geometry(v)).collect::<Result<_>>()?;
        Ok(PoolSpace { vdevs, logs: BTreeMap::new() })
    }

    /// First unflushed txg of each metaslab (chapter 05 §4.1).
    fn unflushed_txgs(&self, zap: Option<u64>, count: u64) -> Result<Vec<u64>> {
        let Some(zap) = zap.filter(|&z| z != 0) else { return Ok(Vec::new()) };
        let key = "com.delphix:ms_unflushed_phys_txgs";
        match self.mos().zap(zap)?.lookup_u64(key)? {
            Some(object) => self.mos().words(object, count, METASLABS_MAX),
            None => Ok(Vec::new()),
        }
    }

    fn log_space_maps(&self) -> Result<BTreeMap<Txg, u64>> {
        let mos: &Mos = self.mos();
        let Some(object) = mos.lookup("com.delphix:log_spacemap_zap")? else {
            return Ok(BTreeMap::new());
        };
        let mut out = BTreeMap::new();
        for entry in mos.zap_entries(object)? {
            let key = String::from_utf8_lossy(&entry.name).into_owned();
            let object = entry
                .value
                .as_u64()
                .ok_or_else(|| Error::corrupt("log space map is not a number"))?;
            out.insert(parse_log_key(&key)?, object);
        }
        Ok(out)
    }

    /// Calls `f` with every entry of the log space maps that still counts, in
    /// order: vdev, metaslab, range (chapter 05 §4.5).
    ///
    /// # Errors
    /// Those of reading the maps, and those of `f`.
    pub(crate) fn for_each_log_entry(
        &self,
        space: &PoolSpace,
        f: &mut dyn FnMut(VdevId, u64, Range) -> Result<()>,
    ) -> Result<()> {
        for (&txg, &object) in &space.logs {
            self.for_each_entry(object, Params::log(), &mut |range| {
                let Some(v) = space.vdev(range.vdev) else { return Ok(()) };
                let id = range.offset >> v.metaslab_shift;
                let Some(m) = v.metaslabs.get(id as usize) else {
                    return Err(Error::corrupt("a log space map names space beyond its vdev"));
                };
                if txg < m.unflushed_txg || m.unflushed_txg == Txg::ZERO {
                    return Ok(());
                }
                f(v.vdev, id, range)
            })?;
        }
        Ok(())
    }

    /// Calls `f` with every entry of one metaslab's own map, in order.
    ///
    /// # Errors
    /// Those of reading the map, and those of `f`.
    pub fn for_each_metaslab_entry(
        &self,
        vdev: &VdevSpace,
        metaslab: &Metaslab,
        f: &mut dyn FnMut(Range) -> Result<()>,
    ) -> Result<()> {
        if metaslab.space_map == 0 {
            return Ok(());
        }
        let size = 1u64 << vdev.metaslab_shift;
        let start = metaslab.id << vdev.metaslab_shift;
        let start = start.max(metaslab.start);
        let params = Params::metaslab(start, size.min(metaslab.size), vdev.ashift);
        self.for_each_entry(metaslab.space_map, params, f)
    }
}

/// Start and size of a metaslab; dRAID's are aligned to whole groups (§1).
fn metaslab_range(id: u64, shift: u32, align: Option<u64>) -> (u64, u64) {
    let (start, size) = (id << shift, 1u64 << shift);
    match align.filter(|&a| a > 0) {
        None => (start, size),
        Some(a) => {
            let aligned = start.next_multiple_of(a);
            (aligned, (start + size).saturating_sub(aligned) / a * a)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragmentation_follows_the_example_of_the_specification() {
        let mut histogram = [0; 32];
        histogram[3] = 1;
        histogram[6] = 1;
        histogram[16] = 1;
        let m = Metaslab {
            space_map: 1,
            size: 64 << 20,
            header: Header { histogram: Some(histogram), ..Header::default() },
            ..Metaslab::default()
        };
        assert_eq!(m.fragmentation(9), Some(12));
    }
}
