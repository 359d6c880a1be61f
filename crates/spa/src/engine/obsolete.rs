//! Frees of blocks on removed vdevs, and what is recorded of them (chapter 08 §D.4).
//!
//! # Theory
//! A removed vdev has no space: its blocks are where its mapping says, and pointers go on to
//! name the old address. Freeing such an address does two things. The places to which it is
//! mapped are freed, through as many removed vdevs as it leads through. And the range is *obsolete*
//! in each of the mappings: nothing needs it any more. Obsolete ranges are appended to the
//! *obsolete map* of the vdev in the pass that frees them, as changes of space maps are stored.
//! When much of a mapping is obsolete it is rewritten without the entries that nothing needs
//! (`condense`).
//!
//! Addresses that OpenZFS has replaced by those of the copies (*remapping*) are obsolete as soon as
//! no snapshot has the old pointer; the DSL says so (`dsl::write::remap`), and nothing is freed.
//!
//! Nothing is ever written to a removed vdev: it has no metaslabs.
//!
//! Blocks that a checkpoint keeps stay where they are, as those on other vdevs do: their copies
//! go to the checkpoint maps of the vdevs that have them. The old address is obsolete all the same:
//! the mappings of the checkpointed state are among the blocks that are kept.
//!
//! # Crash argument
//! The MOS that no longer refers to a block is in the same txg as the obsolete map that lists
//! its address and as the space map that has its copy free. So after a crash each byte of an
//! entry is either needed or obsolete. The audit checks that sum for each entry.
//!
//! # Invariants
//! * An address becomes obsolete once. A second time in a pass is an error; in a later txg
//!   its copies are free already, which is one, too.
//! * Pools without the feature obsolete_counts have no obsolete maps: only copies are freed.
//! * obsolete_counts counts each obsolete map.
//!
//! # Why the passes end
//! As a checkpoint map does (`checkpoint`), an obsolete map grows by what a pass frees. A pass
//! settles those that exist (`sync`); a vdev gets at most one more.
//!
//! Lock order: `freed`, `maps` and `condensing` are leaves.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use base::limits::INDIRECT_HOPS_MAX;
use base::planted::{BugSwitch, TestValue};
use base::rt::Mutex;
use base::{Asize, Dva, Error, ObjectId, Result, Txg, VdevId};
use dsl::write::{MosRead, features, remap};
use metaslab::RangeTree;
use ondisk::config::{PoolConfig, Top, VdevConfig, VdevType};
use ondisk::spacemap::{Encoder, HEADER_V0_SIZE, HISTOGRAM_SIZE, Header, Kind, Params, Range};
use ondisk::zap::ZapValue;
use vdev::IndirectMap;

use super::condense::Condensing;
use super::maps::{LOG_BLOCK, create_map};
use super::sync::SyncPass;
use super::{SyncState, Writer};
use crate::obsolete::{MAP_KEY, is_space_map};

/// An obsolete map.
#[derive(Clone, Copy, Debug)]
pub(super) struct ObsoleteMap {
    pub(super) object: u64,
    /// Valid bytes.
    pub(super) length: u64,
    /// Bytes that its entries name.
    pub(super) obsolete: u64,
}

/// The removed vdevs of a pool that is open for writing.
#[derive(Default)]
pub(crate) struct Removed {
    /// There are some.
    pub(super) any: AtomicBool,
    /// Addresses that became obsolete in this pass.
    freed: Mutex<BTreeMap<VdevId, RangeTree>>,
    pub(super) maps: Mutex<BTreeMap<VdevId, ObsoleteMap>>,
    pub(super) condensing: Mutex<Option<Condensing>>,
    /// Planted bugs.
    pub(crate) plants: RemovedPlants,
}

/// Planted bugs ([`base::planted`]).
#[derive(Debug, Default)]
pub struct RemovedPlants {
    /// A freed address is not recorded as obsolete.
    pub unrecorded: BugSwitch,
    /// The copies of a freed address are not freed.
    pub kept_copies: BugSwitch,
    /// A condensed mapping lacks an entry that is needed in part.
    pub lost_entry: BugSwitch,
    /// A condensed mapping has no counts.
    pub lost_counts: BugSwitch,
    /// One more than the entries that a txg condenses; 0: the engine's own number. Not a bug.
    pub condensed_at_once: TestValue,
}

/// The vdevs that are or were removed.
fn with_mapping(config: &PoolConfig) -> impl Iterator<Item = &VdevConfig> {
    let leaving = |v: &&VdevConfig| v.top.as_ref().is_some_and(|top| top.removing);
    let tops = config.vdev_tree.children.iter();
    tops.filter(move |v| v.kind == VdevType::Indirect || leaving(v))
}

/// The geometry of a vdev that is or was removed.
pub(super) fn geometry(config: &PoolConfig, vdev: VdevId) -> Result<&Top> {
    let top = with_mapping(config).find(|v| v.id == vdev.0).and_then(|v| v.top.as_ref());
    top.ok_or_else(|| Error::corrupt(format!("vdev {vdev} was not removed")))
}

impl Removed {
    /// Notes that a range of a removed vdev is obsolete.
    ///
    /// # Errors
    /// `Corrupt` if part of it became so in this pass already.
    pub(super) fn note(&self, vdev: VdevId, offset: u64, len: u64) -> Result<()> {
        if self.plants.unrecorded.load(Relaxed) {
            return Ok(());
        }
        self.freed.lock().entry(vdev).or_default().add(offset, len)
    }
}

impl Removed {
    /// Whether the mapping of a vdev is being condensed.
    pub(super) fn is_condensed(&self, vdev: VdevId) -> bool {
        self.condensing.lock().as_ref().is_some_and(|work| work.vdev() == vdev)
    }

    /// Forgets what became obsolete in this pass on a vdev whose removal is canceled.
    pub(super) fn forget_freed(&self, vdev: VdevId) {
        self.freed.lock().remove(&vdev);
    }
}

impl Writer {
    /// Frees the space of one address in the txg being written; `kept`: the checkpoint needs
    /// the block.
    pub(super) fn free_address(&self, txg: Txg, dva: Dva, kept: bool) -> Result<()> {
        if self.removal.is_active() && self.free_leaving(txg, dva)? {
            return Ok(());
        }
        if self.removed.any.load(Relaxed)
            && let Some(map) = self.zio.tree().indirect(dva.vdev)
        {
            return self.free_removed(txg, dva, kept, &map, 0);
        }
        match kept {
            true => self.checkpoint.keep(&self.space, dva),
            false => self.space.free(txg, dva),
        }
    }

    /// Frees an address on a removed vdev.
    fn free_removed(
        &self,
        txg: Txg,
        dva: Dva,
        kept: bool,
        map: &IndirectMap,
        hops: usize,
    ) -> Result<()> {
        if hops >= INDIRECT_HOPS_MAX {
            let why = "an address is moved from one removed vdev to the next too often";
            return Err(Error::limit(why).at_dva(dva));
        }
        let segments = map.segments(dva.offset, dva.asize.0).map_err(|e| e.at_dva(dva))?;
        self.removed.note(dva.vdev, dva.offset, dva.asize.0).map_err(|e| e.at_dva(dva))?;
        if self.removed.plants.kept_copies.load(Relaxed) {
            return Ok(());
        }
        for part in segments {
            let asize = Asize(part.len);
            let to = Dva { vdev: part.vdev, offset: part.offset, asize, gang: false };
            match self.zio.tree().indirect(to.vdev) {
                Some(next) => self.free_removed(txg, to, kept, &next, hops + 1)?,
                None => self.free_address(txg, to, kept)?,
            }
        }
        Ok(())
    }

    /// Takes over the removed vdevs of an imported pool.
    ///
    /// # Errors
    /// `Corrupt` for impossible records; those of reading the MOS.
    pub(crate) fn load_removed(&self, mos: &dsl::Mos) -> Result<()> {
        let config = Arc::clone(&self.published.read().config);
        let read: &dyn MosRead = mos;
        let mut maps = BTreeMap::new();
        for vdev in with_mapping(&config) {
            if vdev.kind == VdevType::Indirect {
                self.removed.any.store(true, Relaxed);
            }
            let zap = vdev.top.as_ref().and_then(|top| top.zap).filter(|zap| zap.0 != 0);
            let Some(zap) = zap else { continue };
            let Some(object) = read.number(zap.0, MAP_KEY)? else { continue };
            let info = read.info(object)?;
            let header = Header::parse(&info.bonus, info.endian)?;
            let capacity = info.blocks.saturating_mul(info.block_size);
            let obsolete = u64::try_from(header.alloc).ok().filter(|_| header.length <= capacity);
            let Some(obsolete) = obsolete.filter(|_| is_space_map(read, object).unwrap_or(false))
            else {
                let why = "an obsolete map has an impossible header";
                return Err(Error::corrupt(why).in_object(ObjectId(object)));
            };
            let map = ObsoleteMap { object, length: header.length, obsolete };
            maps.insert(VdevId(vdev.id), map);
        }
        *self.removed.maps.lock() = maps;
        self.resume_condensing(mos, &config)
    }

    /// Planted bugs of removed vdevs.
    pub fn removed_plants(&self) -> &RemovedPlants {
        &self.removed.plants
    }

    /// Marks addresses that no snapshot needs any more, at most `budget` of them; whether
    /// there are more.
    pub(super) fn mark_obsolete(&self, sync: &SyncPass<'_>, budget: u64) -> Result<bool> {
        let tree = self.zio.tree();
        let mut mark = |dva: Dva| match tree.indirect(dva.vdev) {
            Some(map) => {
                map.segments(dva.offset, dva.asize.0).map_err(|e| e.at_dva(dva))?;
                self.removed.note(dva.vdev, dva.offset, dva.asize.0)
            }
            None => Err(Error::corrupt("an obsolete address is on no removed vdev").at_dva(dva)),
        };
        remap::consume_obsolete(sync.cx, budget, &mut mark).map(|(_, more)| more)
    }

    /// Appends what became obsolete in this pass to the obsolete maps.
    pub(super) fn write_obsolete(&self, state: &SyncState, sync: &SyncPass<'_>) -> Result<()> {
        let freed = std::mem::take(&mut *self.removed.freed.lock());
        if freed.is_empty() || !features::is_enabled(sync.cx.read(), remap::OBSOLETE_COUNTS)? {
            return Ok(());
        }
        for (vdev, ranges) in freed {
            let params = Params::obsolete(geometry(&state.config, vdev)?.asize);
            let map = self.obsolete_map(sync, vdev)?;
            let info = sync.cx.read().info(map.object)?;
            let block = u32::try_from(info.block_size).unwrap_or(LOG_BLOCK);
            let mut out = Encoder::new(params, map.length, block, sync.flags.v2)?;
            out.mark(Kind::Alloc, sync.pass, sync.txg);
            for seg in ranges.iter() {
                let (offset, len) = (seg.start, seg.end() - seg.start);
                out.push(Range { kind: Kind::Alloc, offset, len, vdev: VdevId(0) })?;
            }
            let (bytes, _) = out.finish();
            let os = sync.mos.objset();
            os.write(sync.tx, ObjectId(map.object), map.length, &bytes)?;
            let length = map.length + bytes.len() as u64;
            let obsolete = map.obsolete.saturating_add(ranges.space());
            let histogram = (info.bonus.len() > HEADER_V0_SIZE).then_some([0; HISTOGRAM_SIZE]);
            let alloc = i64::try_from(obsolete).unwrap_or(i64::MAX);
            let header = Header { object: map.object, length, alloc, histogram };
            sync.cx.mos.set_bonus(map.object, &header.encode())?;
            self.removed.maps.lock().insert(vdev, ObsoleteMap { length, obsolete, ..map });
        }
        Ok(())
    }

    /// The obsolete map of a vdev, which is made when it is first needed.
    fn obsolete_map(&self, sync: &SyncPass<'_>, vdev: VdevId) -> Result<ObsoleteMap> {
        if let Some(map) = self.removed.maps.lock().get(&vdev) {
            return Ok(*map);
        }
        let zap = sync.top_zap(vdev);
        let zap = zap.ok_or_else(|| Error::corrupt("a removed vdev without a ZAP"))?;
        let object = create_map(sync, LOG_BLOCK)?;
        sync.cx.mos.zap_update(zap, MAP_KEY.as_bytes(), &ZapValue::from_u64(object))?;
        features::add(sync.cx, remap::OBSOLETE_COUNTS, 1)?;
        let map = ObsoleteMap { object, length: 0, obsolete: 0 };
        self.removed.maps.lock().insert(vdev, map);
        Ok(map)
    }

    /// Makes everything dirty that frees on removed vdevs may change (`settle_maps`).
    pub(super) fn settle_obsolete(&self, sync: &SyncPass<'_>) -> Result<()> {
        let maps: Vec<ObsoleteMap> = self.removed.maps.lock().values().copied().collect();
        let os = sync.mos.objset();
        for map in maps {
            os.edit_bonus(sync.tx, ObjectId(map.object), &mut |_| {})?;
            let size = sync.cx.read().info(map.object)?.block_size.max(1);
            if map.length % size != 0 {
                let same = &mut |_: &mut [u8]| Ok(());
                os.edit_block(sync.tx, ObjectId(map.object), map.length / size, same)?;
            }
        }
        Ok(())
    }
}
