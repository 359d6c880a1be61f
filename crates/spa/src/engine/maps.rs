//! Space maps and log space maps: storing the metaslabs' changes (chapter 05 §2, §4).
//!
//! # Theory
//! [`metaslab::Space`] decides what is appended to a metaslab's own map and to the txg's
//! log; this module stores it in MOS objects. The log of a txg is created with its first
//! entry or flush, and stays in the directory of logs until every metaslab is flushed
//! beyond it.

use std::collections::BTreeMap;

use base::{ObjectId, Result, Txg, VdevId};
use dmu::{ObjectSpec, OutagePolicy};
use dsl::write::{MosRead, features};
use metaslab::{FlushLimits, LogFact, MapFacts, MapWrite, MsKey};
use ondisk::ObjType;
use ondisk::config::Top;
use ondisk::spacemap::log_key;
use ondisk::spacemap::{Encoder, HEADER_SIZE, HEADER_V0_SIZE, HISTOGRAM_SIZE, Header, Params};
use ondisk::zap::ZapValue;

use super::sync::SyncPass;
use super::{TaskCx, Writer};

pub(crate) const LOGS_DIRECTORY: &str = "com.delphix:log_spacemap_zap";
pub(super) const UNFLUSHED: &str = "com.delphix:ms_unflushed_phys_txgs";
pub(crate) const HISTOGRAM: &str = "com.delphix:spacemap_histogram";
pub(crate) const LOG_SPACEMAP: &str = "com.delphix:log_spacemap";
pub(crate) const SPACEMAP_V2: &str = "com.delphix:spacemap_v2";
/// Indirect blocks of space maps (§2.1).
const INDIRECT_SHIFT: u8 = 14;
pub(super) const LOG_BLOCK: u32 = 128 << 10;

/// Space maps of a vdev's metaslabs, and the arrays that refer to them.
#[derive(Default)]
pub(super) struct VdevObjects {
    maps: Vec<u64>,
    arrays: Vec<u64>,
}

/// The log of the txg being written.
struct OpenLog {
    object: u64,
    length: u64,
    alloc: i64,
}

/// Space map objects of the pool.
#[derive(Default)]
pub(crate) struct Maps {
    /// Metaslab arrays by vdev.
    pub(crate) arrays: BTreeMap<VdevId, u64>,
    /// Arrays of unflushed txgs by vdev.
    unflushed: BTreeMap<VdevId, u64>,
    /// Logs: object and data blocks.
    logs: BTreeMap<Txg, (u64, u64)>,
    directory: u64,
    open: Option<OpenLog>,
}

impl Maps {
    /// The txg of the oldest log.
    pub(super) fn oldest_log(&self) -> Option<Txg> {
        self.logs.keys().next().copied()
    }

    /// The objects of an imported pool.
    pub(crate) fn of_pool(cx: &dyn MosRead, logs: &BTreeMap<Txg, u64>) -> Result<Maps> {
        let directory = cx.directory(LOGS_DIRECTORY)?.unwrap_or(0);
        let mut maps = Maps { directory, ..Maps::default() };
        for (&txg, &object) in logs {
            let blocks = cx.info(object)?.blocks;
            maps.logs.insert(txg, (object, blocks));
        }
        Ok(maps)
    }
}

fn facts(sync: &SyncPass<'_>) -> MapFacts {
    MapFacts {
        logs: sync.flags.logs,
        v2: sync.flags.v2,
        long_header: sync.flags.histogram,
        block_size: u64::from(block_size(sync)),
    }
}

fn block_size(sync: &SyncPass<'_>) -> u32 {
    if sync.flags.logs { 128 << 10 } else { 16 << 10 }
}

/// Makes an empty space map.
pub(super) fn create_map(sync: &SyncPass<'_>, block_size: u32) -> Result<u64> {
    let size = if sync.flags.histogram { HEADER_SIZE } else { HEADER_V0_SIZE };
    let id = sync.mos.objset().allocate(
        sync.tx,
        &ObjectSpec {
            object_type: ObjType::SPACE_MAP,
            block_size,
            indirect_shift: INDIRECT_SHIFT,
            bonus_type: ObjType::SPACE_MAP_HEADER,
            bonus: vec![0; size],
            ..ObjectSpec::default()
        },
    )?;
    if sync.flags.histogram {
        features::add(sync.cx, HISTOGRAM, 1)?;
    }
    Ok(id.0)
}

pub(super) fn free_map(sync: &SyncPass<'_>, object: u64) -> Result<()> {
    let long = sync.cx.read().info(object)?.bonus.len() > HEADER_V0_SIZE;
    sync.mos.objset().free_object(sync.tx, ObjectId(object))?;
    if long {
        features::add(sync.cx, HISTOGRAM, -1)?;
    }
    Ok(())
}

fn set_word(sync: &SyncPass<'_>, object: u64, index: u64, word: u64) -> Result<()> {
    let os = sync.mos.objset();
    os.write(sync.tx, ObjectId(object), index * 8, &word.to_le_bytes())
}

impl Writer {
    /// Flushes logged changes of some metaslabs to their own maps (§4.3); called before
    /// anything of the txg is written to a map.
    pub(super) fn flush_maps(&self, sync: &SyncPass<'_>, maps: &mut Maps, all: bool) -> Result<()> {
        if !sync.flags.logs {
            return Ok(());
        }
        let known: Vec<LogFact> =
            maps.logs.iter().map(|(&txg, &(_, blocks))| LogFact { txg, blocks }).collect();
        let limits = FlushLimits::default();
        let keys = self.space.choose_flushes(sync.txg, &known, &limits, all);
        for key in keys {
            // Loaded, because it may be time to condense its map. After an export all metaslabs
            // are without logged changes, and the first txg flushes them all.
            if self.space.has_logged_changes(key)? {
                self.space_io.load(key, OutagePolicy::WaitAlways).or_else(|e| match e.kind() {
                    base::ErrorKind::Bug => Err(e),
                    _ => Ok(()),
                })?;
            }
            if let Some(write) = self.space.prepare_flush(key, sync.txg, &facts(sync))? {
                self.open_log(sync, maps)?;
                self.write_map(sync, maps, &write)?;
            }
        }
        self.drop_logs(sync, maps)
    }

    /// Removes logs that no metaslab needs any more (§4.2, I5).
    fn drop_logs(&self, sync: &SyncPass<'_>, maps: &mut Maps) -> Result<()> {
        let least = self.space.min_unflushed().unwrap_or(sync.txg);
        while let Some((&txg, &(object, _))) = maps.logs.first_key_value() {
            if txg >= least.min(sync.txg) {
                break;
            }
            sync.cx.mos.zap_remove(maps.directory, log_key(txg).as_bytes())?;
            free_map(sync, object)?;
            maps.logs.remove(&txg);
        }
        Ok(())
    }

    /// Stores every changed metaslab's changes of this pass.
    pub(super) fn write_maps(&self, sync: &SyncPass<'_>, maps: &mut Maps) -> Result<()> {
        for key in self.space.take_dirty(sync.txg) {
            let write = self.space.prepare_write(key, sync.txg, sync.pass, &facts(sync))?;
            if let Some(write) = write {
                self.write_map(sync, maps, &write)?;
            }
        }
        Ok(())
    }

    /// Makes every existing block dirty that a later pass could have to change for a
    /// metaslab without changes so far: its map's dnode, its words in the arrays, and
    /// without logs the last block of its map. The contents stay. A map that cannot be read
    /// is skipped, because nothing is allocated from its metaslab.
    pub(super) fn settle_maps(&self, sync: &SyncPass<'_>, maps: &Maps) -> Result<()> {
        let os = sync.mos.objset();
        let same = &mut |_: &mut [u8]| Ok(());
        for (_, object, length) in self.space.maps() {
            let Ok(info) = sync.cx.read().info(object) else { continue };
            os.edit_bonus(sync.tx, ObjectId(object), &mut |_| {})?;
            if !sync.flags.logs && length % info.block_size.max(1) != 0 {
                os.edit_block(sync.tx, ObjectId(object), length / info.block_size, same)?;
            }
        }
        for &array in maps.arrays.values().chain(maps.unflushed.values()) {
            for blkid in 0..sync.cx.read().info(array)?.blocks {
                os.edit_block(sync.tx, ObjectId(array), blkid, same)?;
            }
        }
        Ok(())
    }

    fn open_log(&self, sync: &SyncPass<'_>, maps: &mut Maps) -> Result<()> {
        if maps.open.is_some() {
            return Ok(());
        }
        if maps.directory == 0 {
            let zap = dmu::zaps::create(
                sync.mos.objset(),
                sync.tx,
                ObjType::OTN_ZAP_METADATA,
                ObjType::NONE,
                &[],
                0,
            )?;
            let value = ZapValue::from_u64(zap.0);
            sync.cx.mos.zap_update(
                dsl::write::store::DIRECTORY,
                LOGS_DIRECTORY.as_bytes(),
                &value,
            )?;
            maps.directory = zap.0;
            features::add(sync.cx, LOG_SPACEMAP, 1)?;
        }
        let object = create_map(sync, LOG_BLOCK)?;
        let value = ZapValue::from_u64(object);
        sync.cx.mos.zap_update(maps.directory, log_key(sync.txg).as_bytes(), &value)?;
        maps.logs.insert(sync.txg, (object, 1));
        maps.open = Some(OpenLog { object, length: 0, alloc: 0 });
        Ok(())
    }

    fn append(&self, sync: &SyncPass<'_>, object: u64, at: u64, bytes: &[u8]) -> Result<()> {
        sync.mos.objset().write(sync.tx, ObjectId(object), at, bytes)
    }

    fn write_log(&self, sync: &SyncPass<'_>, maps: &mut Maps, write: &MapWrite) -> Result<()> {
        self.open_log(sync, maps)?;
        let log = maps.open.as_mut().ok_or_else(|| base::bug!("the log was not opened"))?;
        let mut out = Encoder::new(Params::log(), log.length, LOG_BLOCK, true)?;
        for batch in &write.log {
            batch.encode(&mut out, write.key.vdev, sync.pass, sync.txg)?;
        }
        let (bytes, alloc) = out.finish();
        self.append(sync, log.object, log.length, &bytes)?;
        log.length += bytes.len() as u64;
        log.alloc += alloc;
        let histogram = sync.flags.histogram.then_some([0; HISTOGRAM_SIZE]);
        let header = Header { object: log.object, length: log.length, alloc: log.alloc, histogram };
        sync.cx.mos.set_bonus(log.object, &header.encode())?;
        let blocks = log.length.div_ceil(u64::from(LOG_BLOCK)).max(1);
        maps.logs.insert(sync.txg, (log.object, blocks));
        Ok(())
    }

    /// Stores one metaslab's changes.
    fn write_map(&self, sync: &SyncPass<'_>, maps: &mut Maps, write: &MapWrite) -> Result<()> {
        let MsKey { vdev, ms } = write.key;
        if !write.log.is_empty() {
            self.write_log(sync, maps, write)?;
        }
        let (mut object, mut length) = (write.object, write.length);
        if object != 0 && write.truncate {
            (object, length) = (self.truncate_map(sync, object)?, 0);
        }
        if object == 0 {
            object = create_map(sync, block_size(sync))?;
            length = 0;
        }
        if object != write.object {
            let array = maps.arrays.get(&vdev).copied();
            let array = array.ok_or_else(|| base::bug!("a vdev without a metaslab array"))?;
            set_word(sync, array, ms, object)?;
        }
        let info = sync.cx.read().info(object)?;
        let long = info.bonus.len() > HEADER_V0_SIZE;
        if !write.own.is_empty() {
            let params = Params::metaslab(write.seg.start, write.seg.len, write.shift);
            let block = u32::try_from(info.block_size).unwrap_or(LOG_BLOCK);
            let mut out = Encoder::new(params, length, block, sync.flags.v2)?;
            for batch in &write.own {
                // A metaslab's own map has no vdev ids.
                batch.encode(&mut out, VdevId(0), sync.pass, sync.txg)?;
            }
            let (bytes, _) = out.finish();
            self.append(sync, object, length, &bytes)?;
            length += bytes.len() as u64;
        }
        let header = Header {
            object,
            length,
            alloc: write.alloc,
            histogram: long.then_some(write.histogram),
        };
        sync.cx.mos.set_bonus(object, &header.encode())?;
        if let Some(txg) = write.unflushed_txg {
            self.set_unflushed(sync, maps, vdev, ms, txg)?;
        }
        self.space.written(write.key, object, length)
    }

    /// Empties a map; returns its object id, which may be a new one (§2.6).
    fn truncate_map(&self, sync: &SyncPass<'_>, object: u64) -> Result<u64> {
        let info = sync.cx.read().info(object)?;
        let short = info.bonus.len() <= HEADER_V0_SIZE && sync.flags.histogram;
        let handle = sync.mos.object(object)?;
        let odd = handle.dnode().indirect_shift != INDIRECT_SHIFT
            || info.block_size != u64::from(block_size(sync));
        if short || odd {
            free_map(sync, object)?;
            return create_map(sync, block_size(sync));
        }
        sync.mos.objset().free_range(sync.tx, ObjectId(object), 0, u64::MAX)?;
        Ok(object)
    }

    /// Frees the objects of a vdev that is removed from the pool while empty; its metaslabs
    /// have no changes to write.
    pub(super) fn forget_maps(
        &self,
        sync: &SyncPass<'_>,
        maps: &mut Maps,
        vdev: VdevId,
        objects: &VdevObjects,
    ) -> Result<()> {
        objects.maps.iter().try_for_each(|map| free_map(sync, *map))?;
        for array in &objects.arrays {
            sync.mos.objset().free_object(sync.tx, ObjectId(*array))?;
        }
        maps.arrays.remove(&vdev);
        maps.unflushed.remove(&vdev);
        Ok(())
    }

    fn set_unflushed(
        &self,
        sync: &SyncPass<'_>,
        maps: &mut Maps,
        vdev: VdevId,
        ms: u64,
        txg: Txg,
    ) -> Result<()> {
        let array = match maps.unflushed.get(&vdev) {
            Some(&array) => array,
            None => {
                let zap = sync
                    .top_zap(vdev)
                    .ok_or_else(|| base::bug!("a vdev without a ZAP cannot have logged changes"))?;
                let array = match sync.cx.read().number(zap, UNFLUSHED)? {
                    Some(array) => array,
                    None => {
                        let array = sync.mos.objset().allocate(
                            sync.tx,
                            &ObjectSpec {
                                object_type: ObjType::OTN_UINT64_METADATA,
                                block_size: LOG_BLOCK,
                                ..ObjectSpec::default()
                            },
                        )?;
                        let value = ZapValue::from_u64(array.0);
                        sync.cx.mos.zap_update(zap, UNFLUSHED.as_bytes(), &value)?;
                        array.0
                    }
                };
                maps.unflushed.insert(vdev, array);
                array
            }
        };
        set_word(sync, array, ms, txg.0)
    }
}

impl TaskCx<'_> {
    /// The space maps and arrays of a vdev that has txgs on disk.
    pub(super) fn objects_of(&self, space: &Top) -> Result<VdevObjects> {
        let mut found = VdevObjects::default();
        if space.metaslab_array != 0 {
            found.arrays.push(space.metaslab_array);
            let array = self.mos().object(space.metaslab_array)?;
            let count = space.asize.checked_shr(space.metaslab_shift).unwrap_or(0);
            let size = array.block_size().max(8);
            for blkid in 0..(count * 8).div_ceil(size) {
                let block = array.read_little(blkid, self.mos().io())?;
                let words = block.chunks_exact(8).filter_map(|w| w.first_chunk::<8>());
                let left = usize::try_from(count - blkid * size / 8).unwrap_or(usize::MAX);
                let maps = words.take(left).map(|w| u64::from_le_bytes(*w));
                found.maps.extend(maps.filter(|map| *map != 0));
            }
        }
        if let Some(zap) = space.zap {
            found.arrays.extend(self.read().number(zap.0, UNFLUSHED)?);
        }
        Ok(found)
    }
}

impl TaskCx<'_> {
    /// Frees the space maps of a vdev's metaslabs `first` to `past`, and clears their words in the
    /// arrays; they have no changes to write.
    pub(super) fn cut_maps(&mut self, vdev: VdevId, first: u64, past: u64) -> Result<()> {
        let maps = &self.state.maps;
        let array = maps.arrays.get(&vdev).copied();
        let array = array.ok_or_else(|| base::bug!("a vdev without a metaslab array"))?;
        let unflushed = match (maps.unflushed.get(&vdev), self.sync.top_zap(vdev)) {
            (Some(&array), _) => Some(array),
            (None, Some(zap)) => self.read().number(zap, UNFLUSHED)?,
            (None, None) => None,
        };
        for ms in first..past {
            let (object, ..) = self.writer.space.facts(MsKey { vdev, ms })?;
            if object != 0 {
                free_map(self.sync, object)?;
            }
            for array in [Some(array), unflushed].into_iter().flatten() {
                set_word(self.sync, array, ms, 0)?;
            }
        }
        Ok(())
    }
}

/// Ends the txg.
pub(super) fn close(maps: &mut Maps) {
    maps.open = None;
}
