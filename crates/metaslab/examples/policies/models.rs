//! Allocation policies: models of the classic ones and of OpenZFS's, and the real one.

use std::collections::BTreeMap;

use base::{Asize, Dva, Result, Txg, VdevId};
use metaslab::{Denied, MapFacts, MsDesc, MsKey, RangeTree, Space, SpaceClass, VdevDesc, Want};

/// Bytes below which a model does not index ranges: none.
const INDEX_ALL: u64 = 0;
/// Txgs that freed space waits for (chapter 05 §6).
const DEFER: usize = 2;

/// A request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SpaceRequest {
    pub(crate) size: u64,
    pub(crate) copies: u8,
    /// A block of metadata.
    pub(crate) metadata: bool,
    pub(crate) hint: u64,
}

/// An allocator of one vdev.
pub(crate) trait Policy {
    fn name(&self) -> &'static str;
    /// An offset for each copy; `None` if one does not fit in one piece.
    fn allocate(&mut self, want: &SpaceRequest) -> Option<Vec<u64>>;
    fn free(&mut self, at: u64, size: u64) -> Result<()>;
    /// The txg ends: what it freed becomes allocatable two txgs later.
    fn end_txg(&mut self) -> Result<()>;
}

/// Frees of the last txgs.
#[derive(Default)]
struct Deferred {
    now: Vec<(u64, u64)>,
    old: [Vec<(u64, u64)>; DEFER],
}

impl Deferred {
    /// What becomes allocatable.
    fn end_txg(&mut self) -> Vec<(u64, u64)> {
        let ripe = std::mem::take(&mut self.old[0]);
        self.old.rotate_left(1);
        self.old[DEFER - 1] = std::mem::take(&mut self.now);
        ripe
    }
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Classic {
    First,
    Best,
    Cursor,
}

/// First fit, best fit and next fit over the whole vdev.
pub(crate) struct ClassicModel {
    kind: Classic,
    free: RangeTree,
    cursor: u64,
    deferred: Deferred,
}

impl ClassicModel {
    pub(crate) fn new(kind: Classic, size: u64) -> Result<ClassicModel> {
        let mut free = RangeTree::indexed(INDEX_ALL);
        free.add(0, size)?;
        Ok(ClassicModel { kind, free, cursor: 0, deferred: Deferred::default() })
    }

    fn one(&mut self, size: u64) -> Option<u64> {
        let from =
            |tree: &RangeTree, at: u64| tree.from(at).find(|s| s.len >= size).map(|s| s.start);
        let at = match self.kind {
            Classic::First => from(&self.free, 0),
            Classic::Best => self.free.by_size(size).next().map(|s| s.start),
            Classic::Cursor => from(&self.free, self.cursor).or_else(|| from(&self.free, 0)),
        }?;
        self.free.remove(at, size).ok()?;
        self.cursor = at + size;
        Some(at)
    }
}

impl Policy for ClassicModel {
    fn name(&self) -> &'static str {
        match self.kind {
            Classic::First => "first fit",
            Classic::Best => "best fit",
            Classic::Cursor => "cursor fit",
        }
    }

    fn allocate(&mut self, want: &SpaceRequest) -> Option<Vec<u64>> {
        if self.free.largest() < want.size {
            return None;
        }
        (0..want.copies).map(|_| self.one(want.size)).collect()
    }

    fn free(&mut self, at: u64, size: u64) -> Result<()> {
        self.deferred.now.push((at, size));
        Ok(())
    }

    fn end_txg(&mut self) -> Result<()> {
        self.deferred.end_txg().into_iter().try_for_each(|(at, size)| self.free.add(at, size))
    }
}

struct Region {
    free: RangeTree,
    size: u64,
    cursors: [u64; 64],
    /// Size class of the largest range when it became active.
    class: u32,
}

/// The policy of chapter 05 §12 with all metaslabs loaded.
pub(crate) struct Reference {
    regions: Vec<Region>,
    shift: u32,
    /// For the first copy, and for the others.
    active: [Option<usize>; 2],
    deferred: Deferred,
}

impl Region {
    fn weight(&mut self) -> (u32, u64) {
        let class = self.free.largest().checked_ilog2().unwrap_or(0);
        (class, self.free.histogram()[class as usize])
    }

    /// Dynamic fit (§12.5).
    fn allocate(&mut self, size: u64) -> Option<u64> {
        let at = self.find(size)?;
        self.free.remove(at, size).ok()?;
        self.cursors[size.trailing_zeros() as usize] = at + size;
        Some(at)
    }

    fn find(&mut self, size: u64) -> Option<u64> {
        let cursor = &mut self.cursors[size.trailing_zeros() as usize];
        let healthy = self.free.largest() >= 128 << 10 && self.free.space() >= self.size / 25;
        if healthy {
            let mut first = None;
            for (n, seg) in self.free.from(*cursor).enumerate() {
                let first = *first.get_or_insert(seg.start);
                if n >= 100 && seg.start - first > 16 << 20 {
                    break;
                }
                if seg.len >= size {
                    return Some(seg.start);
                }
            }
            *cursor = 0;
        }
        self.free.by_size(size).next().map(|s| s.start)
    }
}

impl Reference {
    pub(crate) fn new(size: u64, metaslabs: u64) -> Result<Reference> {
        let shift = (size / metaslabs).ilog2();
        let region = |i: u64| {
            let mut free = RangeTree::indexed(INDEX_ALL);
            free.add(i << shift, 1 << shift)?;
            Ok(Region { free, size: 1 << shift, cursors: [0; 64], class: 0 })
        };
        let regions = (0..size >> shift).map(region).collect::<Result<Vec<_>>>()?;
        Ok(Reference { regions, shift, active: [None; 2], deferred: Deferred::default() })
    }

    fn one(&mut self, size: u64, copy: usize, not: Option<usize>) -> Option<u64> {
        let slot = usize::from(copy > 0);
        if let Some(i) = self.active[slot].filter(|&i| Some(i) != not)
            && let Some(at) = self.regions[i].allocate(size)
        {
            return Some(at);
        }
        let other = self.active[1 - slot];
        let mut order: Vec<_> =
            self.regions.iter_mut().enumerate().map(|(i, r)| (r.weight(), i)).collect();
        order.sort_unstable_by(|a, b| (b.0, a.1).cmp(&(a.0, b.1)));
        let usable = order.into_iter().filter(|&(_, i)| Some(i) != not && Some(i) != other);
        for ((class, _), i) in usable.take(100) {
            if let Some(at) = self.regions[i].allocate(size) {
                self.regions[i].class = class;
                self.active[slot] = Some(i);
                return Some(at);
            }
        }
        None
    }
}

impl Policy for Reference {
    fn name(&self) -> &'static str {
        "reference"
    }

    fn allocate(&mut self, want: &SpaceRequest) -> Option<Vec<u64>> {
        let mut out: Vec<u64> = Vec::new();
        for copy in 0..usize::from(want.copies) {
            let not = out.first().map(|at| (at >> self.shift) as usize);
            match self.one(want.size, copy, not) {
                Some(at) => out.push(at),
                None => {
                    for at in out {
                        self.regions[(at >> self.shift) as usize].free.add(at, want.size).ok()?;
                    }
                    return None;
                }
            }
        }
        Some(out)
    }

    fn free(&mut self, at: u64, size: u64) -> Result<()> {
        self.deferred.now.push((at, size));
        Ok(())
    }

    fn end_txg(&mut self) -> Result<()> {
        for (at, size) in self.deferred.end_txg() {
            self.regions[(at >> self.shift) as usize].free.add(at, size)?;
        }
        for slot in &mut self.active {
            let Some(i) = *slot else { continue };
            let region = &mut self.regions[i];
            let whole = region.free.largest() > region.free.space() / 16 * 15;
            if region.weight().0 + 2 <= region.class && !whole {
                *slot = None;
            }
        }
        Ok(())
    }
}

/// The crate's own allocator.
pub(crate) struct Real {
    space: Space,
    txg: Txg,
    /// Length and object of each metaslab's map.
    maps: BTreeMap<MsKey, (u64, u64)>,
}

const FACTS: MapFacts = MapFacts { logs: false, v2: true, long_header: true, block_size: 4096 };

impl Real {
    pub(crate) fn new(size: u64, metaslabs: u64) -> Result<Real> {
        let space = Space::new(1);
        let desc = VdevDesc {
            asize: size,
            ashift: 12,
            ms_shift: (size / metaslabs).ilog2(),
            data_disks: 1,
            allocating: true,
            metaslabs: vec![MsDesc::default(); metaslabs as usize],
            ..VdevDesc::default()
        };
        space.add_vdev(&desc, None)?;
        Ok(Real { space, txg: Txg(100), maps: BTreeMap::new() })
    }
}

impl Policy for Real {
    fn name(&self) -> &'static str {
        "cenote"
    }

    fn allocate(&mut self, want: &SpaceRequest) -> Option<Vec<u64>> {
        let inner = Want {
            psize: want.size,
            record: 0,
            copies: want.copies,
            class: SpaceClass::Normal,
            txg: self.txg,
            hint: want.hint,
            metadata: want.metadata,
            gang_child: false,
            avoid: None,
        };
        match self.space.allocate(&inner, &|_| want.size) {
            Ok(dvas) => Some(dvas.iter().map(|d| d.offset).collect()),
            Err(Denied::NoSpace) => None,
            // Every metaslab stays loaded.
            Err(Denied::Load(..)) => None,
        }
    }

    fn free(&mut self, at: u64, size: u64) -> Result<()> {
        let dva = Dva { vdev: VdevId(0), offset: at, asize: Asize(size), gang: false };
        self.space.free(self.txg, dva)
    }

    fn end_txg(&mut self) -> Result<()> {
        for key in self.space.take_dirty(self.txg) {
            let Some(write) = self.space.prepare_write(key, self.txg, 1, &FACTS)? else { continue };
            let known = self.maps.len() as u64 + 1;
            let map = self.maps.entry(key).or_insert((0, known));
            if write.truncate {
                map.0 = 0;
            }
            map.0 += write.own.iter().map(|b| 8 + 8 * b.segs.len() as u64).sum::<u64>();
            self.space.written(key, map.1, map.0)?;
        }
        self.space.before_commit(self.txg)?;
        self.space.synced(self.txg, true)?;
        self.txg = Txg(self.txg.0 + 1);
        Ok(())
    }
}
