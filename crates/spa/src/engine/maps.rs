//! Space maps and log space maps: storing what the metaslabs say (chapter 05 §2, §4).
//!
//! # Theory
//! [`metaslab::Space`] decides what is appended to a metaslab's own map and to the
//! group's log; here it becomes MOS objects. The log of a group is made with its first
//! entry or flush, and belongs to the directory of logs until every metaslab is
//! flushed beyond it.

use std::collections::BTreeMap;

use base::{Error, ObjectId, Result, Txg, VdevId};
use dmu::{Io, ObjectSpec};
use dsl::write::{MosRead, features};
use metaslab::{FlushLimits, LogFact, MapFacts, MapWrite, MsKey};
use ondisk::ObjType;
use ondisk::config::Top;
use ondisk::spacemap::log_key;
use ondisk::spacemap::{Encoder, HEADER_SIZE, HEADER_V0_SIZE, HISTOGRAM_SIZE, Header, Params};
use ondisk::zap::ZapValue;

use super::Writer;
use super::sync::Group;

pub(crate) const LOGS_DIRECTORY: &str = "com.delphix:log_spacemap_zap";
pub(super) const UNFLUSHED: &str = "com.delphix:ms_unflushed_phys_txgs";
pub(crate) const HISTOGRAM: &str = "com.delphix:spacemap_histogram";
pub(crate) const LOG_SPACEMAP: &str = "com.delphix:log_spacemap";
pub(crate) const SPACEMAP_V2: &str = "com.delphix:spacemap_v2";
/// Indirect blocks of space maps (§2.1).
const INDIRECT_SHIFT: u8 = 14;
const LOG_BLOCK: u32 = 128 << 10;

/// Space maps of a vdev's metaslabs, and the arrays that list what belongs to them.
#[derive(Default)]
pub(super) struct VdevObjects {
    maps: Vec<u64>,
    arrays: Vec<u64>,
}

/// The log of the group being written.
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
    /// Arrays of unflushed groups by vdev.
    unflushed: BTreeMap<VdevId, u64>,
    /// Logs: object and data blocks.
    logs: BTreeMap<Txg, (u64, u64)>,
    directory: u64,
    open: Option<OpenLog>,
}

impl Maps {
    /// Notes what an imported pool has.
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

fn facts(group: &Group<'_>) -> MapFacts {
    MapFacts {
        logs: group.flags.logs,
        v2: group.flags.v2,
        long_header: group.flags.histogram,
        block_size: u64::from(block_size(group)),
    }
}

fn block_size(group: &Group<'_>) -> u32 {
    if group.flags.logs { 128 << 10 } else { 16 << 10 }
}

/// Makes an empty space map.
fn create_map(group: &Group<'_>, block_size: u32) -> Result<u64> {
    let size = if group.flags.histogram { HEADER_SIZE } else { HEADER_V0_SIZE };
    let id = group.mos.objset().allocate(
        group.tx,
        &ObjectSpec {
            object_type: ObjType::SPACE_MAP,
            block_size,
            indirect_shift: INDIRECT_SHIFT,
            bonus_type: ObjType::SPACE_MAP_HEADER,
            bonus: vec![0; size],
            ..ObjectSpec::default()
        },
    )?;
    if group.flags.histogram {
        features::add(group.cx, HISTOGRAM, 1)?;
    }
    Ok(id.0)
}

pub(super) fn free_map(group: &Group<'_>, object: u64) -> Result<()> {
    let long = group.cx.read().info(object)?.bonus.len() > HEADER_V0_SIZE;
    group.mos.objset().free_object(group.tx, ObjectId(object))?;
    if long {
        features::add(group.cx, HISTOGRAM, -1)?;
    }
    Ok(())
}

fn set_word(group: &Group<'_>, object: u64, index: u64, word: u64) -> Result<()> {
    let os = group.mos.objset();
    os.write(group.tx, ObjectId(object), index * 8, &word.to_le_bytes())
}

impl Writer {
    /// Flushes logged changes of some metaslabs to their own maps (§4.3); before
    /// anything of the group is written to a map.
    pub(super) fn flush_maps(&self, group: &Group<'_>, maps: &mut Maps, all: bool) -> Result<()> {
        if !group.flags.logs {
            return Ok(());
        }
        let known: Vec<LogFact> =
            maps.logs.iter().map(|(&txg, &(_, blocks))| LogFact { txg, blocks }).collect();
        let limits = FlushLimits::default();
        let keys = self.space.choose_flushes(group.txg, &known, &limits, all);
        for key in keys {
            self.space_io.load(key).or_else(|e| match e.kind() {
                base::ErrorKind::Bug => Err(e),
                _ => Ok(()),
            })?;
            if let Some(write) = self.space.prepare_flush(key, group.txg, &facts(group))? {
                self.open_log(group, maps)?;
                self.write_map(group, maps, &write)?;
            }
        }
        self.drop_logs(group, maps)
    }

    /// Removes logs that no metaslab needs any more (§4.2, I5).
    fn drop_logs(&self, group: &Group<'_>, maps: &mut Maps) -> Result<()> {
        let least = self.space.min_unflushed().unwrap_or(group.txg);
        while let Some((&txg, &(object, _))) = maps.logs.first_key_value() {
            if txg >= least.min(group.txg) {
                break;
            }
            group.cx.mos.zap_remove(maps.directory, log_key(txg).as_bytes())?;
            free_map(group, object)?;
            maps.logs.remove(&txg);
        }
        Ok(())
    }

    /// Stores what every changed metaslab has in this pass.
    pub(super) fn write_maps(&self, group: &Group<'_>, maps: &mut Maps) -> Result<()> {
        for key in self.space.take_dirty(group.txg) {
            let write = self.space.prepare_write(key, group.txg, group.pass, &facts(group))?;
            if let Some(write) = write {
                self.write_map(group, maps, &write)?;
            }
        }
        Ok(())
    }

    /// Makes every existing block dirty that a later pass could need to change for a
    /// metaslab without changes so far: its map's dnode, its words in the arrays, and without
    /// logs the last block of its map. The contents stay. A map that cannot be read is
    /// skipped: nothing is allocated from its metaslab.
    pub(super) fn settle_maps(&self, group: &Group<'_>, maps: &Maps) -> Result<()> {
        let os = group.mos.objset();
        let same = &mut |_: &mut [u8]| Ok(());
        for (_, object, length) in self.space.maps() {
            let Ok(info) = group.cx.read().info(object) else { continue };
            os.edit_bonus(group.tx, ObjectId(object), &mut |_| {})?;
            if !group.flags.logs && length % info.block_size.max(1) != 0 {
                os.edit_block(group.tx, ObjectId(object), length / info.block_size, same)?;
            }
        }
        for &array in maps.arrays.values().chain(maps.unflushed.values()) {
            for blkid in 0..group.cx.read().info(array)?.blocks {
                os.edit_block(group.tx, ObjectId(array), blkid, same)?;
            }
        }
        Ok(())
    }

    fn open_log(&self, group: &Group<'_>, maps: &mut Maps) -> Result<()> {
        if maps.open.is_some() {
            return Ok(());
        }
        if maps.directory == 0 {
            let zap = dmu::zaps::create(
                group.mos.objset(),
                group.tx,
                ObjType::OTN_ZAP_METADATA,
                ObjType::NONE,
                &[],
                0,
            )?;
            let value = ZapValue::from_u64(zap.0);
            group.cx.mos.zap_update(
                dsl::write::store::DIRECTORY,
                LOGS_DIRECTORY.as_bytes(),
                &value,
            )?;
            maps.directory = zap.0;
            features::add(group.cx, LOG_SPACEMAP, 1)?;
        }
        let object = create_map(group, LOG_BLOCK)?;
        let value = ZapValue::from_u64(object);
        group.cx.mos.zap_update(maps.directory, log_key(group.txg).as_bytes(), &value)?;
        maps.logs.insert(group.txg, (object, 1));
        maps.open = Some(OpenLog { object, length: 0, alloc: 0 });
        Ok(())
    }

    fn append(&self, group: &Group<'_>, object: u64, at: u64, bytes: &[u8]) -> Result<()> {
        group.mos.objset().write(group.tx, ObjectId(object), at, bytes)
    }

    fn write_log(&self, group: &Group<'_>, maps: &mut Maps, write: &MapWrite) -> Result<()> {
        self.open_log(group, maps)?;
        let log = maps.open.as_mut().ok_or_else(|| Error::bug("the log was not opened"))?;
        let mut out = Encoder::new(Params::log(), log.length, LOG_BLOCK, true)?;
        for batch in &write.log {
            batch.encode(&mut out, write.key.vdev, group.pass, group.txg)?;
        }
        let (bytes, alloc) = out.finish();
        self.append(group, log.object, log.length, &bytes)?;
        log.length += bytes.len() as u64;
        log.alloc += alloc;
        let histogram = group.flags.histogram.then_some([0; HISTOGRAM_SIZE]);
        let header = Header { object: log.object, length: log.length, alloc: log.alloc, histogram };
        group.cx.mos.set_bonus(log.object, &header.encode())?;
        let blocks = log.length.div_ceil(u64::from(LOG_BLOCK)).max(1);
        maps.logs.insert(group.txg, (log.object, blocks));
        Ok(())
    }

    /// Stores one metaslab's changes.
    fn write_map(&self, group: &Group<'_>, maps: &mut Maps, write: &MapWrite) -> Result<()> {
        let MsKey { vdev, ms } = write.key;
        if !write.log.is_empty() {
            self.write_log(group, maps, write)?;
        }
        let (mut object, mut length) = (write.object, write.length);
        if object != 0 && write.truncate {
            (object, length) = (self.truncate_map(group, object)?, 0);
        }
        if object == 0 {
            object = create_map(group, block_size(group))?;
            length = 0;
        }
        if object != write.object {
            let array = maps.arrays.get(&vdev).copied();
            let array = array.ok_or_else(|| Error::bug("a vdev without a metaslab array"))?;
            set_word(group, array, ms, object)?;
        }
        let info = group.cx.read().info(object)?;
        let long = info.bonus.len() > HEADER_V0_SIZE;
        if !write.own.is_empty() {
            let params = Params::metaslab(write.seg.start, write.seg.len, write.shift);
            let block = u32::try_from(info.block_size).unwrap_or(LOG_BLOCK);
            let mut out = Encoder::new(params, length, block, group.flags.v2)?;
            for batch in &write.own {
                // A map of its own names no vdev.
                batch.encode(&mut out, VdevId(0), group.pass, group.txg)?;
            }
            let (bytes, _) = out.finish();
            self.append(group, object, length, &bytes)?;
            length += bytes.len() as u64;
        }
        let header = Header {
            object,
            length,
            alloc: write.alloc,
            histogram: long.then_some(write.histogram),
        };
        group.cx.mos.set_bonus(object, &header.encode())?;
        if let Some(txg) = write.unflushed_txg {
            self.set_unflushed(group, maps, vdev, ms, txg)?;
        }
        self.space.written(write.key, object, length)
    }

    /// Empties a map; the number of its object, which may be another one (§2.6).
    fn truncate_map(&self, group: &Group<'_>, object: u64) -> Result<u64> {
        let info = group.cx.read().info(object)?;
        let short = info.bonus.len() <= HEADER_V0_SIZE && group.flags.histogram;
        let handle = group.mos.object(object)?;
        let odd = handle.dnode().indirect_shift != INDIRECT_SHIFT
            || info.block_size != u64::from(block_size(group));
        if short || odd {
            free_map(group, object)?;
            return create_map(group, block_size(group));
        }
        group.mos.objset().free_range(group.tx, ObjectId(object), 0, u64::MAX)?;
        Ok(object)
    }

    /// The space maps and arrays of a vdev; it has groups on disk.
    pub(super) fn objects_of(&self, mos: &dyn MosRead, space: &Top) -> Result<VdevObjects> {
        let mut found = VdevObjects::default();
        if space.metaslab_array != 0 {
            found.arrays.push(space.metaslab_array);
            let array = self.mos.object(space.metaslab_array)?;
            let count = space.asize.checked_shr(space.metaslab_shift).unwrap_or(0);
            let size = array.block_size().max(8);
            for blkid in 0..(count * 8).div_ceil(size) {
                let block = array.read_little(blkid, Io::WAIT)?;
                let words = block.chunks_exact(8).filter_map(|w| w.first_chunk::<8>());
                let left = usize::try_from(count - blkid * size / 8).unwrap_or(usize::MAX);
                let maps = words.take(left).map(|w| u64::from_le_bytes(*w));
                found.maps.extend(maps.filter(|map| *map != 0));
            }
        }
        if let Some(zap) = space.zap {
            found.arrays.extend(mos.number(zap.0, UNFLUSHED)?);
        }
        Ok(found)
    }

    /// Frees what there is of a vdev that leaves the pool empty; its metaslabs have
    /// nothing to write.
    pub(super) fn forget_maps(
        &self,
        group: &Group<'_>,
        maps: &mut Maps,
        vdev: VdevId,
        objects: &VdevObjects,
    ) -> Result<()> {
        objects.maps.iter().try_for_each(|map| free_map(group, *map))?;
        for array in &objects.arrays {
            group.mos.objset().free_object(group.tx, ObjectId(*array))?;
        }
        maps.arrays.remove(&vdev);
        maps.unflushed.remove(&vdev);
        Ok(())
    }

    fn set_unflushed(
        &self,
        group: &Group<'_>,
        maps: &mut Maps,
        vdev: VdevId,
        ms: u64,
        txg: Txg,
    ) -> Result<()> {
        let array = match maps.unflushed.get(&vdev) {
            Some(&array) => array,
            None => {
                let zap = group
                    .top_zap(vdev)
                    .ok_or_else(|| Error::bug("a vdev without a ZAP cannot have logged changes"))?;
                let array = match group.cx.read().number(zap, UNFLUSHED)? {
                    Some(array) => array,
                    None => {
                        let array = group.mos.objset().allocate(
                            group.tx,
                            &ObjectSpec {
                                object_type: ObjType::OTN_UINT64_METADATA,
                                block_size: LOG_BLOCK,
                                ..ObjectSpec::default()
                            },
                        )?;
                        let value = ZapValue::from_u64(array.0);
                        group.cx.mos.zap_update(zap, UNFLUSHED.as_bytes(), &value)?;
                        array.0
                    }
                };
                maps.unflushed.insert(vdev, array);
                array
            }
        };
        set_word(group, array, ms, txg.0)
    }
}

/// The group is over.
pub(super) fn close(maps: &mut Maps) {
    maps.open = None;
}
