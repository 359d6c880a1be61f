//! The pool's checkpoint: a state of the pool that is kept until it is discarded, and to
//! which an import can return (chapter 05 §7, chapter 01 §8.5).
//!
//! # Theory
//! A checkpoint is the uberblock C of a synced txg, stored in the MOS. It is taken by an
//! *early* task: in pass 1, before the txg frees or writes anything. So the state in memory is
//! still that of C, the last synced txg, and every later free belongs to a txg after C.
//!
//! While the checkpoint exists, a block born in C or before is *kept* when it is freed: its
//! metaslab goes on to count it as allocated, and the range is appended to the checkpoint map
//! of its vdev, as a free, in the pass that frees it. Such a block is allocated in the maps of
//! C: it was born at C or before, and is freed only now. A block born after C is not part of C,
//! and is freed as always. The birth that counts is that of the allocation.
//!
//! So no txg after C writes to space that C has allocated, and the tree below C stays complete,
//! its space maps and logs of space maps included. Rewinding needs nothing but the uberblock
//! (`import`, `rewind`): in the maps of C all later blocks are free.
//!
//! # Discarding
//! An early task removes C from the MOS. From then on blocks are freed as always. Each
//! following txg takes ranges from the ends of the checkpoint maps, frees them, and stores the
//! shorter maps; an empty map is freed with its key. Memory, and the work of one txg, are
//! bounded by `zfs_spa_discard_memory_limit`. With the last map the feature's count becomes 0.
//!
//! # Crash argument
//! *Keeping*: the MOS that no longer refers to a block is in the same txg as the map that lists
//! it. *Discarding*: a txg shortens the maps and frees the same ranges in the space maps. So
//! after a crash each range is either in a checkpoint map and allocated, or in none and free.
//! Maps without C, or an active feature without C, mean that a discard is under way: the import
//! continues it.
//!
//! # Accounting
//! Kept space is allocated, so the ledger's capacity does not have it. Datasets do not refer to
//! it, so it is subtracted from what they may use (chapter 05 §11.3), deflated.
//!
//! # Why the passes end
//! Keeping is a free (`sync`). It adds writes to the last block of a checkpoint map, its dnode
//! and its vdev's ZAP, once each for a vdev; `settle_checkpoint` makes them dirty in the pass
//! that does the same for the other maps.
//!
//! # Refusals
//! With a checkpoint, or while one is discarded, vdevs are neither removed, attached nor
//! detached, the pool is not split, and its guid stays ([`TaskCx::check_no_checkpoint`]): C's
//! configuration must find its devices. Vdevs may be added; a rewind forgets them. What
//! a resilver repairs meanwhile counts as missing still (chapter 05 §8), because it did not see
//! the blocks of C; the next resilver begins when the discard has ended, and then predecessors
//! and spares leave.
//!
//! # Departures from OpenZFS
//! * A rewind gives C a number beyond all known ones, not the next one (`rewind`).
//!
//! Lock order: `kept`, `maps` and `deflated` are leaves.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use base::planted::BugSwitch;
use base::rt::Mutex;
use base::{Asize, Dva, Error, ErrorKind, ObjectId, Result, Txg, VdevId};
use dmu::Io;
use dsl::write::store::DIRECTORY;
use dsl::write::{MosRead, features};
use metaslab::{RangeTree, Space};
use ondisk::BlkPtr;
use ondisk::config::{PoolConfig, Top};
use ondisk::spacemap::{
    Encoder, Entries, Entry, HEADER_V0_SIZE, HISTOGRAM_SIZE, Header, Kind, Params, Range,
};
use ondisk::uberblock::Uberblock;
use ondisk::zap::ZapValue;

use super::maps::{LOG_BLOCK, SPACEMAP_V2, create_map, free_map};
use super::sync::SyncPass;
use super::tasks::{Command, TaskCx};
use super::{SyncState, Writer};

/// The feature.
pub(crate) const FEATURE: &str = "com.delphix:zpool_checkpoint";
/// The key of the uberblock in the MOS directory.
pub(crate) const KEY: &str = "com.delphix:zpool_checkpoint";
/// The key of a vdev's checkpoint map in its ZAP.
pub(crate) const MAP_KEY: &str = "com.delphix:pool_checkpoint_sm";
/// Units that an entry without `spacemap_v2` can name (chapter 05 §2.4).
const UNITS_V1: u32 = 47;

/// Whether the pool has a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointState {
    /// It exists.
    Exists,
    /// It is being discarded.
    Discarding,
}

/// A checkpoint that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The checkpointed txg.
    pub of: Txg,
    /// The txg that recorded it.
    pub txg: Txg,
}

/// The checkpoint, as `zpool status` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointStatus {
    /// Its state.
    pub state: CheckpointState,
    /// When it was taken, seconds since 1970; 0 while it is discarded.
    pub taken: u64,
    /// Deflated bytes that only the checkpoint keeps, or that are still to be freed.
    pub space: u64,
}

/// A checkpoint map.
#[derive(Clone, Copy, Debug)]
struct CheckpointMap {
    object: u64,
    /// Valid bytes.
    length: u64,
    /// Bytes of space that its entries keep.
    kept: u64,
}

/// The checkpoint of a pool that is open for writing.
pub(crate) struct Checkpoint {
    /// The checkpointed txg; 0 for none.
    txg: AtomicU64,
    /// When it was taken.
    taken: AtomicU64,
    discarding: AtomicBool,
    /// The discard ended, and what waited for that is not done yet.
    ended: AtomicBool,
    /// Ranges that were freed in this pass, and are kept.
    kept: Mutex<BTreeMap<VdevId, RangeTree>>,
    maps: Mutex<BTreeMap<VdevId, CheckpointMap>>,
    /// Deflated bytes of all maps, as of the last synced txg.
    deflated: AtomicU64,
    /// Planted bugs.
    pub(crate) plants: CheckpointPlants,
}

/// Planted bugs ([`base::planted`]).
#[derive(Debug, Default)]
pub struct CheckpointPlants {
    /// Blocks of the checkpoint are freed like others.
    pub free_kept: BugSwitch,
    /// A discard forgets the last range that it takes from a map.
    pub forget_range: BugSwitch,
    /// A discard frees nothing. Not a bug: a test observes the state.
    pub hold_discard: BugSwitch,
}

impl Default for Checkpoint {
    fn default() -> Checkpoint {
        Checkpoint {
            txg: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            discarding: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            kept: Mutex::default(),
            maps: Mutex::default(),
            deflated: AtomicU64::new(0),
            plants: CheckpointPlants::default(),
        }
    }
}

/// A checkpoint exists already.
const CHECKPOINT_EXISTS: &str = "checkpoint exists";
/// A checkpoint is being discarded.
const DISCARDING: &str = "currently discarding checkpoint";
/// The pool lacks what a checkpoint needs.
const UPGRADE: &str = "pool must be upgraded to support this operation";
/// There is no checkpoint.
pub(crate) const NO_CHECKPOINT: &str = "checkpoint does not exist";

impl Checkpoint {
    /// Bytes of a vdev that only the checkpoint keeps.
    pub(super) fn kept_on(&self, vdev: VdevId) -> u64 {
        self.maps.lock().get(&vdev).map_or(0, |map| map.kept)
    }

    /// Whether a block must be kept when it is freed.
    pub(super) fn keeps(&self, bp: &BlkPtr) -> bool {
        let txg = self.txg.load(Relaxed);
        let BlkPtr::Block(block) = bp else { return false };
        let birth = block.effective_physical_birth().0;
        txg != 0 && birth <= txg && !self.plants.free_kept.load(Relaxed)
    }

    /// Keeps a range that is freed.
    ///
    /// # Errors
    /// `Corrupt` if part of it is free, or was freed in this pass already.
    pub(super) fn keep(&self, space: &Space, dva: Dva) -> Result<()> {
        if !space.is_allocated(dva) {
            let why = "space of the checkpoint is to be freed, but part of it is free";
            return Err(Error::corrupt(why).at_dva(dva));
        }
        let mut kept = self.kept.lock();
        let tree = kept.entry(dva.vdev).or_default();
        tree.add(dva.offset, dva.asize.0).map_err(|e| e.at_dva(dva))
    }

    /// Whether the next txg continues a discard.
    pub(super) fn is_discarding(&self) -> bool {
        self.discarding.load(Relaxed)
    }

    pub(super) fn has(&self) -> bool {
        self.txg.load(Relaxed) != 0
    }

    /// Refuses operations that a checkpoint excludes.
    ///
    /// # Errors
    /// `Busy`.
    pub(super) fn refuse_any(&self) -> Result<()> {
        match (self.has(), self.is_discarding()) {
            (true, _) => Err(Error::busy(CHECKPOINT_EXISTS)),
            (_, true) => Err(Error::busy(DISCARDING)),
            _ => Ok(()),
        }
    }
}

/// The checkpointed uberblock of a pool; `None` if it has none.
///
/// # Errors
/// `Corrupt` for an entry that is no uberblock of this pool's past; those of reading the MOS.
pub(crate) fn stored(mos: &dyn MosRead, now: Txg) -> Result<Option<Uberblock>> {
    let Some(value) = mos.zap_lookup(DIRECTORY, KEY.as_bytes())? else { return Ok(None) };
    let odd = || Error::corrupt("the checkpoint in the MOS is no uberblock");
    let words = value.u64s().ok_or_else(odd)?;
    let uberblock = Uberblock::from_words(words.first_chunk().ok_or_else(odd)?)?;
    let txg = uberblock.txg;
    if txg == Txg::ZERO || txg > now || uberblock.checkpoint_txg != txg {
        return Err(Error::corrupt("the checkpoint in the MOS is of an impossible txg"));
    }
    Ok(Some(uberblock))
}

/// The checkpoint maps of a configuration: vdev, object, header.
///
/// # Errors
/// `Corrupt`; those of reading the MOS.
pub(crate) fn stored_maps(
    mos: &dyn MosRead,
    config: &PoolConfig,
) -> Result<Vec<(VdevId, u64, Header)>> {
    let mut out = Vec::new();
    for (vdev, zap) in super::config::top_zaps(config) {
        let Some(object) = mos.number(zap, MAP_KEY)? else { continue };
        let info = mos.info(object)?;
        let header = Header::parse(&info.bonus, info.endian)?;
        if header.alloc > 0 || header.length > info.blocks.saturating_mul(info.block_size) {
            return Err(Error::corrupt("a checkpoint map has an impossible header"));
        }
        out.push((vdev, object, header));
    }
    Ok(out)
}

fn geometry(config: &PoolConfig, vdev: VdevId) -> Result<&Top> {
    let top = config.vdev_tree.children.iter().find(|v| v.id == vdev.0);
    top.and_then(|v| v.top.as_ref()).ok_or_else(|| Error::corrupt("a checkpoint map of no vdev"))
}

/// The ranges at the end of a block of a map: at most `most`, in their order; bytes of the
/// block that stay.
fn tail(bytes: &[u8], endian: ondisk::Endian, params: Params, most: usize) -> Result<Tail> {
    let mut all: Vec<(usize, usize, Range)> = Vec::new();
    let mut at = 0;
    for entry in Entries::new(bytes, endian, params) {
        // The length of an entry follows from its first word.
        let two = endian.u64(bytes, at).is_some_and(|word| word >> 62 == 0b11);
        let end = at + if two { 16 } else { 8 };
        if let Entry::Range(range) = entry? {
            all.push((at, end, range));
        }
        at = end;
    }
    let taken = all.split_off(all.len().saturating_sub(most));
    // Debug entries and padding behind the last range that stays mean nothing.
    let stay = all.last().map_or(0, |(_, end, _)| *end);
    Ok(Tail { stay, ranges: taken.into_iter().map(|(_, _, range)| range).collect() })
}

struct Tail {
    stay: usize,
    ranges: Vec<Range>,
}

impl Writer {
    /// Takes over the checkpoint of an imported pool.
    ///
    /// # Errors
    /// `Corrupt` for impossible entries; those of reading the MOS.
    pub(crate) fn load_checkpoint(&self, mos: &dyn MosRead) -> Result<()> {
        let published = self.published();
        let known = stored(mos, published.uberblock.txg)?;
        let checkpoint = &self.checkpoint;
        if let Some(uberblock) = &known {
            checkpoint.taken.store(uberblock.timestamp, Relaxed);
            checkpoint.txg.store(uberblock.txg.0, Relaxed);
        }
        let mut maps = BTreeMap::new();
        for (vdev, object, header) in stored_maps(mos, &published.config)? {
            let kept = header.alloc.unsigned_abs();
            maps.insert(vdev, CheckpointMap { object, length: header.length, kept });
        }
        let left = !maps.is_empty() || features::is_active(mos, FEATURE)?;
        checkpoint.discarding.store(known.is_none() && left, Relaxed);
        *checkpoint.maps.lock() = maps;
        self.sum_checkpoint();
        Ok(())
    }

    /// Computes the deflated bytes that the checkpoint keeps, for the ledger.
    fn sum_checkpoint(&self) {
        let tree = self.zio.tree();
        let maps = self.checkpoint.maps.lock();
        let deflated =
            |(vdev, map): (&VdevId, &CheckpointMap)| self.ledger.deflated(&tree, *vdev, map.kept);
        let sum = maps.iter().map(deflated).fold(0, u64::saturating_add);
        drop(maps);
        self.checkpoint.deflated.store(sum, Relaxed);
        self.ledger.set_checkpointed(sum);
    }

    /// The checkpoint, if there is one or one is being discarded.
    pub fn checkpoint_status(&self) -> Option<CheckpointStatus> {
        let checkpoint = &self.checkpoint;
        let space = checkpoint.deflated.load(Relaxed);
        if checkpoint.has() {
            let taken = checkpoint.taken.load(Relaxed);
            return Some(CheckpointStatus { state: CheckpointState::Exists, taken, space });
        }
        let state = CheckpointState::Discarding;
        checkpoint.is_discarding().then_some(CheckpointStatus { state, taken: 0, space })
    }

    /// Planted bugs of the checkpoint.
    pub fn checkpoint_plants(&self) -> &CheckpointPlants {
        &self.checkpoint.plants
    }

    /// Takes a checkpoint of the last synced txg; everything so far is synced before.
    ///
    /// # Errors
    /// `Busy` when there is one, or one is being discarded, or the pool's vdevs are changing;
    /// `Unsupported` when the feature is not enabled; `Limit` for vdevs that are too large for
    /// the pool's space maps; those of a suspension.
    pub fn take_checkpoint(&self, command: Option<Command>) -> Result<Taken> {
        self.check_running()?;
        // What the caller changed before is part of the checkpoint.
        self.sync()?;
        let check = |cx: &mut TaskCx<'_>| cx.check_checkpoint();
        let act = move |cx: &mut TaskCx<'_>, ()| {
            let mut uberblock = cx.state.uberblock.clone();
            uberblock.checkpoint_txg = uberblock.txg;
            let value = ZapValue::from_u64s(&uberblock.to_words()?);
            let value = value.ok_or_else(|| base::bug!("an uberblock without words"))?;
            cx.cx.mos.zap_update(DIRECTORY, KEY.as_bytes(), &value)?;
            features::add(cx.cx, FEATURE, 1)?;
            let checkpoint = &cx.writer.checkpoint;
            checkpoint.taken.store(uberblock.timestamp, Relaxed);
            checkpoint.txg.store(uberblock.txg.0, Relaxed);
            let text = format!("checkpointed uberblock txg={}", uberblock.txg);
            cx.log_internal("spa checkpoint", None, &text)?;
            command.map_or(Ok(()), |c| cx.log_command(&c))?;
            Ok(uberblock.txg)
        };
        let (of, txg) = self.early_task(check, act)?;
        Ok(Taken { of, txg })
    }

    /// Discards the checkpoint. Its space becomes free in the background, over the following
    /// txgs ([`Writer::checkpoint_status`]). Returns the txg that discarded it.
    ///
    /// # Errors
    /// `Busy` when one is being discarded; `NotFound` when there is none; those of a
    /// suspension.
    pub fn discard_checkpoint(&self, command: Option<Command>) -> Result<Txg> {
        let check = |cx: &mut TaskCx<'_>| {
            let checkpoint = &cx.writer.checkpoint;
            match (checkpoint.has(), checkpoint.is_discarding()) {
                (true, _) => Ok(()),
                (_, true) => Err(Error::busy(DISCARDING)),
                _ => Err(Error::not_found(NO_CHECKPOINT)),
            }
        };
        let act = move |cx: &mut TaskCx<'_>, ()| {
            cx.cx.mos.zap_remove(DIRECTORY, KEY.as_bytes())?;
            let checkpoint = &cx.writer.checkpoint;
            checkpoint.txg.store(0, Relaxed);
            checkpoint.discarding.store(true, Relaxed);
            let text = "started discarding checkpoint";
            cx.log_internal("spa discard checkpoint", None, text)?;
            command.map_or(Ok(()), |c| cx.log_command(&c))
        };
        Ok(self.early_task(check, act)?.1)
    }

    /// Appends what this pass kept to the checkpoint maps.
    pub(super) fn write_checkpoint(&self, state: &SyncState, sync: &SyncPass<'_>) -> Result<()> {
        let kept = std::mem::take(&mut *self.checkpoint.kept.lock());
        for (vdev, tree) in kept {
            let top = geometry(&state.config, vdev)?;
            let map = self.checkpoint_map(sync, vdev)?;
            let params = Params::checkpoint(top.asize, top.ashift);
            let info = sync.cx.read().info(map.object)?;
            let block = u32::try_from(info.block_size).unwrap_or(LOG_BLOCK);
            let mut out = Encoder::new(params, map.length, block, sync.flags.v2)?;
            out.mark(Kind::Free, sync.pass, sync.txg);
            for seg in tree.iter() {
                // No entry crosses a metaslab.
                let (mut at, end) = (seg.start, seg.end());
                while at < end {
                    let next = ((at >> top.metaslab_shift) + 1) << top.metaslab_shift;
                    let len = next.min(end) - at;
                    out.push(Range { kind: Kind::Free, offset: at, len, vdev: VdevId(0) })?;
                    at += len;
                }
            }
            let (bytes, _) = out.finish();
            let os = sync.mos.objset();
            os.write(sync.tx, ObjectId(map.object), map.length, &bytes)?;
            let length = map.length + bytes.len() as u64;
            let map = CheckpointMap { length, kept: map.kept + tree.space(), ..map };
            self.store_checkpoint_map(sync, vdev, map, info.bonus.len())?;
        }
        Ok(())
    }

    fn store_checkpoint_map(
        &self,
        sync: &SyncPass<'_>,
        vdev: VdevId,
        map: CheckpointMap,
        bonus: usize,
    ) -> Result<()> {
        let histogram = (bonus > HEADER_V0_SIZE).then_some([0; HISTOGRAM_SIZE]);
        let alloc = i64::try_from(map.kept).map_or(i64::MIN, |kept| -kept);
        let header = Header { object: map.object, length: map.length, alloc, histogram };
        sync.cx.mos.set_bonus(map.object, &header.encode())?;
        self.checkpoint.maps.lock().insert(vdev, map);
        Ok(())
    }

    /// The map of a vdev, which is made when it is first needed.
    fn checkpoint_map(&self, sync: &SyncPass<'_>, vdev: VdevId) -> Result<CheckpointMap> {
        if let Some(map) = self.checkpoint.maps.lock().get(&vdev) {
            return Ok(*map);
        }
        let zap = sync.top_zap(vdev);
        let zap = zap.ok_or_else(|| base::bug!("a vdev without a ZAP keeps no checkpoint"))?;
        let object = create_map(sync, LOG_BLOCK)?;
        sync.cx.mos.zap_update(zap, MAP_KEY.as_bytes(), &ZapValue::from_u64(object))?;
        let map = CheckpointMap { object, length: 0, kept: 0 };
        self.checkpoint.maps.lock().insert(vdev, map);
        Ok(map)
    }

    /// Makes everything dirty that keeping blocks may change (`settle_maps`).
    pub(super) fn settle_checkpoint(&self, sync: &SyncPass<'_>) -> Result<()> {
        if !self.checkpoint.has() {
            return Ok(());
        }
        let os = sync.mos.objset();
        for (vdev, _) in &sync.zaps {
            let map = self.checkpoint_map(sync, *vdev)?;
            os.edit_bonus(sync.tx, ObjectId(map.object), &mut |_| {})?;
            let size = sync.cx.read().info(map.object)?.block_size.max(1);
            if map.length % size != 0 {
                let same = &mut |_: &mut [u8]| Ok(());
                os.edit_block(sync.tx, ObjectId(map.object), map.length / size, same)?;
            }
        }
        Ok(())
    }

    /// Frees ranges from the ends of the checkpoint maps; whether there are more.
    pub(super) fn discard_some(&self, state: &SyncState, sync: &SyncPass<'_>) -> Result<bool> {
        if self.checkpoint.plants.hold_discard.load(Relaxed) {
            return Ok(false);
        }
        let memory = self.jobs.tuning().discard_memory / size_of::<Range>() as u64;
        let mut most = usize::try_from(memory.max(1)).unwrap_or(usize::MAX);
        while most > 0 {
            let next = self.checkpoint.maps.lock().first_key_value().map(|(v, m)| (*v, *m));
            let Some((vdev, map)) = next else {
                features::set_count(sync.cx, FEATURE, 0)?;
                self.checkpoint.discarding.store(false, Relaxed);
                self.checkpoint.ended.store(true, Relaxed);
                return Ok(false);
            };
            if map.length == 0 {
                let zap = sync.top_zap(vdev);
                let zap =
                    zap.ok_or_else(|| base::bug!("a checkpoint map of a vdev without ZAP"))?;
                sync.cx.mos.zap_remove(zap, MAP_KEY.as_bytes())?;
                free_map(sync, map.object)?;
                self.checkpoint.maps.lock().remove(&vdev);
                continue;
            }
            most = most.saturating_sub(self.discard_from(state, sync, vdev, map, most)?.max(1));
        }
        Ok(true)
    }

    /// Frees at most `most` ranges from the last block of a map; returns their number.
    fn discard_from(
        &self,
        state: &SyncState,
        sync: &SyncPass<'_>,
        vdev: VdevId,
        map: CheckpointMap,
        most: usize,
    ) -> Result<usize> {
        let top = geometry(&state.config, vdev)?;
        let params = Params::checkpoint(top.asize, top.ashift);
        let handle = sync.mos.object(map.object)?;
        let size = handle.block_size().max(8);
        let blkid = (map.length - 1) / size;
        let start = blkid * size;
        let (block, endian) = handle.read_written(blkid, Io::SYNC)?;
        let bytes = usize::try_from(map.length - start).ok().and_then(|len| block.get(..len));
        let bytes = bytes.ok_or_else(|| Error::corrupt("a checkpoint map's block is short"))?;
        let Tail { stay, ranges } = tail(bytes, endian, params, most)?;
        let forgotten = usize::from(self.checkpoint.plants.forget_range.take(Relaxed));
        let mut freed = 0u64;
        for range in &ranges {
            freed = freed.saturating_add(range.len);
        }
        for range in ranges.iter().skip(forgotten) {
            let dva = Dva { vdev, offset: range.offset, asize: Asize(range.len), ..Dva::default() };
            self.space.free(sync.txg, dva)?;
        }
        let map = CheckpointMap {
            length: start + stay as u64,
            kept: map.kept.saturating_sub(freed),
            ..map
        };
        let bonus = sync.cx.read().info(map.object)?.bonus.len();
        self.store_checkpoint_map(sync, vdev, map, bonus)?;
        Ok(ranges.len())
    }

    /// The txg is on disk.
    pub(super) fn checkpoint_synced(&self) {
        if self.checkpoint.has() || self.checkpoint.is_discarding() {
            self.sum_checkpoint();
        } else if self.checkpoint.deflated.swap(0, Relaxed) != 0 {
            self.ledger.set_checkpointed(0);
        }
    }
}

impl Writer {
    /// After a txg: when a discard has ended, repairs what leaves miss since the checkpoint.
    pub(super) fn after_discard(&self) {
        if self.checkpoint.ended.swap(false, Relaxed) {
            self.request_resilver_if_needed();
            self.topology_settled();
        }
    }
}

impl TaskCx<'_> {
    /// Refuses operations that a checkpoint excludes.
    ///
    /// # Errors
    /// `Busy` when there is a checkpoint, or one is being discarded.
    pub fn check_no_checkpoint(&self) -> Result<()> {
        self.writer.checkpoint.refuse_any()
    }

    fn check_checkpoint(&self) -> Result<()> {
        if !features::is_enabled(self.read(), FEATURE)? {
            return Err(Error::unsupported(UPGRADE));
        }
        self.check_no_checkpoint()?;
        if self.writer.expansion.is_active() {
            return Err(Error::busy(super::expansion::IN_PROGRESS));
        }
        let v2 = features::is_active(self.read(), SPACEMAP_V2)?;
        let vdevs = self.state.config.vdev_tree.children.iter();
        for vdev in vdevs.filter(|v| super::config::is_concrete(v)) {
            let top = vdev.top.clone().unwrap_or_default();
            if !v2 && top.asize.checked_shr(UNITS_V1 + top.ashift).unwrap_or(0) > 0 {
                return Err(Error::new(ErrorKind::Limit, "device exceeds supported size"));
            }
            if top.removing {
                return Err(Error::busy("device removal in progress"));
            }
            // The map has its place in the vdev's ZAP, which old pools may lack.
            if top.zap.is_none_or(|zap| zap.0 == 0) {
                return Err(Error::unsupported(UPGRADE));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(list: &[(u64, u64)], block: u32) -> Vec<u8> {
        let mut out = Encoder::new(Params::checkpoint(1 << 40, 9), 0, block, true).unwrap();
        out.mark(Kind::Free, 1, Txg(7));
        for &(offset, len) in list {
            out.push(Range { kind: Kind::Free, offset, len, vdev: VdevId(0) }).unwrap();
        }
        out.finish().0
    }

    /// The end of a map is taken away, entry by entry, in steps of any size, and what stays is
    /// a valid map without the ranges that were taken.
    #[test]
    fn a_map_is_consumed_from_its_end() {
        let list: Vec<(u64, u64)> =
            (0..9u64).map(|i| (i << 30, if i % 3 == 0 { 1 << 28 } else { 512 })).collect();
        let params = Params::checkpoint(1 << 40, 9);
        let endian = ondisk::Endian::Little;
        for most in 1..=10 {
            let mut bytes = ranges(&list, 4096);
            let mut found = Vec::new();
            while !bytes.is_empty() {
                let Tail { stay, ranges } = tail(&bytes, endian, params, most).unwrap();
                assert!(stay < bytes.len() && ranges.len() <= most && stay % 8 == 0);
                found.splice(0..0, ranges.iter().map(|r| (r.offset, r.len)));
                bytes.truncate(stay);
            }
            assert_eq!(found, list, "{most} at a time");
        }
    }

    #[test]
    fn a_map_with_foreign_entries_is_refused() {
        let endian = ondisk::Endian::Little;
        // An allocation has no place in a checkpoint map.
        let alloc = (4u64 << 16).to_le_bytes();
        assert!(tail(&alloc, endian, Params::checkpoint(1 << 40, 9), 9).is_err());
        // Nor has space behind the vdev's end.
        let bytes = ranges(&[(1 << 30, 512)], 4096);
        assert!(tail(&bytes, endian, Params::checkpoint(1 << 20, 9), 9).is_err());
    }
}
