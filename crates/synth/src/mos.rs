//! The meta object set: directories and datasets, features, space maps (chapter 04 §15,
//! chapter 05 §1-§2).
//!
//! # Theory
//! The MOS records how much space is in use, its own included. All its blocks are stored
//! uncompressed, so its size depends only on the number of its objects, and that only on
//! the number of metaslabs in use. Rebuilt with the numbers that result from the first
//! attempt, it has the same size.

use std::path::Path;

use base::{Asize, Dva, Error, Lsize, Psize, Result, VdevId};
use codec::checksum::fletcher::fletcher4;
use codec::compress::is_zero;
use ondisk::blkptr::{BLKPTR_SIZE, BlkPtr, Block, COMPRESS_OFF, Head};
use ondisk::bpobj::{BPOBJ_SIZE_V2, BpobjPhys};
use ondisk::dnode::{DNODE_BLOCK_SIZE, DNODE_SIZE, DNODES_PER_BLOCK, Dnode, flags};
use ondisk::dslphys::{
    DD_FLAG_USED_BREAKDOWN, DS_FLAG_UNIQUE_ACCURATE, DeadlistPhys, DslDatasetPhys, DslDirPhys,
    UsedKind,
};
use ondisk::features::{ACTIVATE_ON_ENABLE, FEATURES, Feature};
use ondisk::history::HistoryHeader;
use ondisk::normalize::TOUPPER;
use ondisk::objset::{OBJSET_MAC_SIZE, ObjsetPhys, ObjsetType, ZIL_HEADER_SIZE};
use ondisk::spacemap::{Encoder, HISTOGRAM_SIZE, Header, Kind, Params, Range, histogram_add};
use ondisk::zap::ZapValue;
use ondisk::zap::bulk::{BulkEntry, BulkZap};
use ondisk::{Endian, ObjType};

use crate::fs::{SpaceTotals, ZAP_SHIFT};
use crate::space::BumpSpace;
use crate::{PoolSpec, TXG, label, mix};

/// Copies of MOS blocks.
const COPIES: usize = 3;
/// Bytes of a space map's block in a pool without log space maps.
const SPACE_MAP_BLOCK: u32 = 16 << 10;
/// Attempts to build a consistent MOS; two suffice, or three if it extends into another
/// metaslab.
const ATTEMPTS: usize = 8;

/// Object types that have no name in `ondisk`.
const HISTORY_OFFSETS: ObjType = ObjType(30);
const HISTORY_TYPE: ObjType = ObjType(29);
const NEXT_CLONES_TYPE: ObjType = ObjType(37);
const DIR_CLONES_TYPE: ObjType = ObjType(52);

/// The objects, in the order in which OpenZFS creates them.
const DIRECTORY: u64 = 1;
const ROOT_DIR: u64 = 2;
const MOS_DIR: u64 = 5;
const FREE_DIR: u64 = 8;
const FREE_BPOBJ: u64 = 11;
const ORIGIN_DIR: u64 = 12;
const ORIGIN_HEAD: u64 = 15;
const ORIGIN_SNAPNAMES: u64 = 16;
const ORIGIN_SNAP_DEADLIST: u64 = 17;
const ORIGIN_SNAP: u64 = 18;
const ORIGIN_DEADLIST: u64 = 19;
const ORIGIN_BPOBJ: u64 = 20;
const FEATURES_READ: u64 = 21;
const FEATURES_WRITE: u64 = 22;
const FEATURE_DESCRIPTIONS: u64 = 23;
const ROOT_HEAD: u64 = 24;
const ROOT_SNAPNAMES: u64 = 25;
const ROOT_DEADLIST: u64 = 26;
const ROOT_BPOBJ: u64 = 27;
const NEXT_CLONES: u64 = 28;
const DIR_CLONES: u64 = 29;
const HISTORY: u64 = 30;
const CONFIG: u64 = 31;
const SYNC_BPLIST: u64 = 32;
const ENABLED_TXG: u64 = 33;
const METASLAB_ARRAY: u64 = 34;
/// The first space map.
const SPACE_MAPS: u64 = 35;

/// Disabled features: those newer than OpenZFS 2.3, and two whose structures exist as soon
/// as they are enabled.
const DISABLED: &[&str] = &[
    "vdev_zaps_v2",
    "log_spacemap",
    "dynamic_gang_header",
    "block_cloning_endian",
    "physical_rewrite",
    "draid_failure_domains",
];

/// The facts about the pool that the MOS records.
pub(crate) struct MosInput<'a> {
    pub(crate) spec: &'a PoolSpec,
    /// Absolute path of the image.
    pub(crate) path: &'a Path,
    /// The file system's object set.
    pub(crate) root_bp: BlkPtr,
    /// Sums over the file system's blocks.
    pub(crate) totals: SpaceTotals,
    pub(crate) large_blocks: bool,
}

/// A MOS in memory.
pub(crate) struct WrittenMos {
    /// Blocks: offsets of their copies, and bytes.
    pub(crate) blocks: Vec<(Vec<u64>, Vec<u8>)>,
    pub(crate) root_bp: BlkPtr,
    pub(crate) space: BumpSpace,
    pub(crate) metaslab_array: u64,
    totals: SpaceTotals,
}

fn enabled() -> impl Iterator<Item = &'static Feature> {
    FEATURES.iter().filter(|f| !DISABLED.contains(&f.name()))
}

/// Names of the active features in labels.
pub(crate) fn label_features() -> Vec<String> {
    let active = enabled().filter(|f| f.is_mos() && f.has(ACTIVATE_ON_ENABLE));
    active.map(|f| f.guid.to_owned()).collect()
}

/// Builds the MOS behind the space used in `space`.
///
/// # Errors
/// `NoSpace`.
pub(crate) fn build(pool: &MosInput<'_>, space: BumpSpace) -> Result<WrittenMos> {
    let mut end = space.clone();
    let mut totals = SpaceTotals::default();
    for _ in 0..ATTEMPTS {
        let written = attempt(pool, space.clone(), &end, totals)?;
        if written.space == end && written.totals == totals {
            return Ok(written);
        }
        (end, totals) = (written.space, written.totals);
    }
    Err(Error::bug("the MOS does not come to rest"))
}

struct MosObject {
    object_type: ObjType,
    bonus_type: ObjType,
    bonus: Vec<u8>,
    block: u32,
    indirect_shift: u8,
    compression: u8,
    data: Vec<u8>,
}

struct Mos<'a> {
    pool: &'a MosInput<'a>,
    space: BumpSpace,
    /// The space after all writes.
    end: &'a BumpSpace,
    /// Sums over the MOS after all writes.
    own: SpaceTotals,
    objects: Vec<Option<MosObject>>,
    blocks: Vec<(Vec<u64>, Vec<u8>)>,
    totals: SpaceTotals,
}

fn attempt(
    pool: &MosInput<'_>,
    space: BumpSpace,
    end: &BumpSpace,
    own: SpaceTotals,
) -> Result<WrittenMos> {
    let mut mos = Mos {
        pool,
        space,
        end,
        own,
        objects: Vec::new(),
        blocks: Vec::new(),
        totals: SpaceTotals::default(),
    };
    mos.dirs()?;
    mos.datasets()?;
    mos.features()?;
    mos.lists()?;
    mos.space_maps()?;
    mos.directory()?;
    let root_bp = mos.write()?;
    Ok(WrittenMos {
        blocks: mos.blocks,
        root_bp,
        space: mos.space,
        metaslab_array: METASLAB_ARRAY,
        totals: mos.totals,
    })
}

/// The number of block pointers in an object's dnode (chapter 03 §2.3).
fn nblkptr(bonus: usize) -> usize {
    3.min(1 + (320usize.saturating_sub(bonus) >> 7))
}

impl Mos<'_> {
    fn put(&mut self, number: u64, object: MosObject) {
        let at = number as usize;
        if self.objects.len() <= at {
            self.objects.resize_with(at + 1, || None);
        }
        self.objects[at] = Some(object);
    }

    fn plain(object_type: ObjType, bonus_type: ObjType, bonus: Vec<u8>) -> MosObject {
        MosObject {
            object_type,
            bonus_type,
            bonus,
            block: 512,
            indirect_shift: 17,
            compression: 0,
            data: Vec::new(),
        }
    }

    fn put_bonus(&mut self, number: u64, object_type: ObjType, bonus: Vec<u8>) {
        self.put(number, Self::plain(object_type, object_type, bonus));
    }

    /// Gives an object a ZAP.
    fn fill_zap(
        &self,
        number: u64,
        object: &mut MosObject,
        entries: &[(&str, ZapValue)],
        normflags: u64,
    ) -> Result<()> {
        let entries = entries
            .iter()
            .map(|(name, value)| BulkEntry { name: name.as_bytes(), value: value.clone() });
        let salt = mix(self.pool.spec.seed, number << 32) | 1;
        let zap = BulkZap::new(entries.collect(), salt, normflags, ZAP_SHIFT)?;
        object.block = zap.block_size() as u32;
        object.data = vec![0; zap.block_size() * zap.blocks() as usize];
        for (blkid, out) in object.data.chunks_exact_mut(zap.block_size()).enumerate() {
            zap.block(blkid as u64, out)?;
        }
        Ok(())
    }

    fn zap(
        &mut self,
        number: u64,
        object_type: ObjType,
        entries: &[(&str, ZapValue)],
        normflags: u64,
    ) -> Result<()> {
        let mut object = Self::plain(object_type, ObjType::NONE, Vec::new());
        self.fill_zap(number, &mut object, entries, normflags)?;
        self.put(number, object);
        Ok(())
    }

    fn numbers(
        &mut self,
        number: u64,
        object_type: ObjType,
        entries: &[(&str, u64)],
    ) -> Result<()> {
        let entries: Vec<_> =
            entries.iter().map(|&(name, v)| (name, ZapValue::from_u64(v))).collect();
        self.zap(number, object_type, &entries, 0)
    }

    /// A dsl_dir with id `number`; its properties and children have the next ids.
    fn dir(&mut self, number: u64, phys: DslDirPhys, children: &[(&str, u64)]) -> Result<()> {
        let phys = DslDirPhys {
            creation_time: self.pool.spec.time,
            props_zapobj: number + 1,
            child_dir_zapobj: number + 2,
            flags: DD_FLAG_USED_BREAKDOWN,
            ..phys
        };
        self.put_bonus(number, ObjType::DSL_DIR, phys.encode().to_vec());
        self.numbers(number + 1, ObjType::DSL_PROPS, &[])?;
        self.numbers(number + 2, ObjType::DSL_DIR_CHILD_MAP, children)
    }

    fn dirs(&mut self) -> Result<()> {
        let (head, own) = (self.pool.totals, self.own);
        let mut breakdown = [0; 5];
        breakdown[UsedKind::Head as usize] = head.used;
        breakdown[UsedKind::Child as usize] = own.used;
        let root = DslDirPhys {
            head_dataset_obj: ROOT_HEAD,
            origin_obj: ORIGIN_SNAP,
            used_bytes: head.used + own.used,
            compressed_bytes: head.comp + own.comp,
            uncompressed_bytes: head.uncomp + own.uncomp,
            used_breakdown: breakdown,
            ..DslDirPhys::default()
        };
        let children = [("$MOS", MOS_DIR), ("$FREE", FREE_DIR), ("$ORIGIN", ORIGIN_DIR)];
        self.dir(ROOT_DIR, root, &children)?;
        let mut breakdown = [0; 5];
        breakdown[UsedKind::Head as usize] = own.used;
        let mos = DslDirPhys {
            parent_obj: ROOT_DIR,
            used_bytes: own.used,
            compressed_bytes: own.comp,
            uncompressed_bytes: own.uncomp,
            used_breakdown: breakdown,
            ..DslDirPhys::default()
        };
        self.dir(MOS_DIR, mos, &[])?;
        let free = DslDirPhys { parent_obj: ROOT_DIR, ..DslDirPhys::default() };
        self.dir(FREE_DIR, free, &[])?;
        let origin = DslDirPhys {
            parent_obj: ROOT_DIR,
            head_dataset_obj: ORIGIN_HEAD,
            clones: DIR_CLONES,
            ..DslDirPhys::default()
        };
        self.dir(ORIGIN_DIR, origin, &[])?;
        let head = format!("{ROOT_HEAD:x}");
        self.numbers(DIR_CLONES, DIR_CLONES_TYPE, &[(&head, ROOT_HEAD)])?;
        self.numbers(NEXT_CLONES, NEXT_CLONES_TYPE, &[(&head, ROOT_HEAD)])
    }

    fn dataset(&mut self, number: u64, phys: DslDatasetPhys) -> Result<()> {
        let guid = mix(self.pool.spec.seed, number);
        let phys = DslDatasetPhys {
            creation_time: self.pool.spec.time,
            creation_txg: base::Txg(1),
            fsid_guid: (guid >> 8) | 1,
            guid: guid | 1,
            flags: DS_FLAG_UNIQUE_ACCURATE,
            ..phys
        };
        let bonus = phys.encode().ok_or_else(|| Error::bug("a dataset cannot be written"))?;
        self.put_bonus(number, ObjType::DSL_DATASET, bonus.to_vec());
        Ok(())
    }

    /// A deadlist with key 0 and an empty list, or without keys.
    fn deadlist(&mut self, number: u64, bpobj: Option<u64>) -> Result<()> {
        let bonus = DeadlistPhys::default().encode().to_vec();
        let mut object = Self::plain(ObjType::DEADLIST, ObjType::DEADLIST_HDR, bonus);
        let entries: Vec<_> = bpobj.iter().map(|&o| ("0", ZapValue::from_u64(o))).collect();
        self.fill_zap(number, &mut object, &entries, 0)?;
        self.put(number, object);
        if let Some(bpobj) = bpobj {
            self.bpobj(bpobj, 128 << 10, 0);
        }
        Ok(())
    }

    fn bpobj(&mut self, number: u64, block: u32, compression: u8) {
        let bonus = BpobjPhys { size: BPOBJ_SIZE_V2, ..BpobjPhys::default() }.encode();
        let object = Self::plain(ObjType::BPOBJ, ObjType::BPOBJ_HDR, bonus);
        self.put(number, MosObject { block, compression, ..object });
    }

    fn datasets(&mut self) -> Result<()> {
        let snap = ("$ORIGIN", ZapValue::from_u64(ORIGIN_SNAP));
        self.zap(ORIGIN_SNAPNAMES, ObjType::DSL_DS_SNAP_MAP, &[snap], TOUPPER)?;
        self.zap(ROOT_SNAPNAMES, ObjType::DSL_DS_SNAP_MAP, &[], TOUPPER)?;
        self.deadlist(ORIGIN_SNAP_DEADLIST, None)?;
        self.deadlist(ORIGIN_DEADLIST, Some(ORIGIN_BPOBJ))?;
        self.deadlist(ROOT_DEADLIST, Some(ROOT_BPOBJ))?;
        let snap = DslDatasetPhys {
            dir_obj: ORIGIN_DIR,
            next_snap_obj: ORIGIN_HEAD,
            // The directory itself, and the root file system.
            num_children: 2,
            deadlist_obj: ORIGIN_SNAP_DEADLIST,
            next_clones_obj: NEXT_CLONES,
            ..DslDatasetPhys::default()
        };
        self.dataset(ORIGIN_SNAP, snap)?;
        let behind = DslDatasetPhys {
            prev_snap_obj: ORIGIN_SNAP,
            prev_snap_txg: base::Txg(1),
            ..DslDatasetPhys::default()
        };
        let head = DslDatasetPhys {
            dir_obj: ORIGIN_DIR,
            snapnames_zapobj: ORIGIN_SNAPNAMES,
            deadlist_obj: ORIGIN_DEADLIST,
            ..behind
        };
        self.dataset(ORIGIN_HEAD, head)?;
        let totals = self.pool.totals;
        let root = DslDatasetPhys {
            dir_obj: ROOT_DIR,
            snapnames_zapobj: ROOT_SNAPNAMES,
            deadlist_obj: ROOT_DEADLIST,
            referenced_bytes: totals.used,
            compressed_bytes: totals.comp,
            uncompressed_bytes: totals.uncomp,
            unique_bytes: totals.used,
            bp: self.pool.root_bp,
            ..behind
        };
        self.dataset(ROOT_HEAD, root)?;
        if self.pool.large_blocks
            && let Some(mut object) = self.objects[ROOT_HEAD as usize].take()
        {
            // Zapified (chapter 04 §0), for the name of the feature in use.
            object.object_type = ObjType::OTN_ZAP_METADATA;
            let key = ("org.open-zfs:large_blocks", ZapValue::from_u64(0));
            self.fill_zap(ROOT_HEAD, &mut object, &[key], 0)?;
            self.put(ROOT_HEAD, object);
        }
        Ok(())
    }

    /// Reference count of a feature.
    fn references(&self, feature: &Feature) -> u64 {
        match feature.name() {
            "enabled_txg" => enabled().count() as u64,
            "spacemap_histogram" => self.end.ranges().count() as u64,
            "large_blocks" | "extensible_dataset" => u64::from(self.pool.large_blocks),
            _ => u64::from(feature.has(ACTIVATE_ON_ENABLE)),
        }
    }

    fn features(&mut self) -> Result<()> {
        let zap = ObjType::OTN_ZAP_METADATA;
        for (number, write) in [(FEATURES_READ, false), (FEATURES_WRITE, true)] {
            let listed = enabled().filter(|f| f.is_read_only_compatible() == write);
            let counts: Vec<_> = listed.map(|f| (f.guid, self.references(f))).collect();
            self.numbers(number, zap, &counts)?;
        }
        let txgs: Vec<_> = enabled().map(|f| (f.guid, TXG.0)).collect();
        self.numbers(ENABLED_TXG, zap, &txgs)?;
        let text = |f: &Feature| {
            ZapValue::from_bytes(&[f.description.as_bytes(), &[0]].concat())
                .ok_or_else(|| Error::bug("a feature's description is too long"))
        };
        let texts = enabled().map(|f| Ok((f.guid, text(f)?))).collect::<Result<Vec<_>>>()?;
        self.zap(FEATURE_DESCRIPTIONS, zap, &texts, 0)
    }

    /// Lists of blocks to free, the history, the configuration.
    fn lists(&mut self) -> Result<()> {
        self.bpobj(FREE_BPOBJ, 128 << 10, 0);
        self.bpobj(SYNC_BPLIST, 16 << 10, COMPRESS_OFF);
        let history = HistoryHeader {
            pool_create_len: 0,
            phys_max_off: (self.pool.spec.size / 1000).clamp(128 << 10, 1 << 30),
            bof: 0,
            eof: 0,
            records_lost: 0,
        };
        let object = Self::plain(HISTORY_TYPE, HISTORY_OFFSETS, history.encode().to_vec());
        self.put(HISTORY, MosObject { block: 128 << 10, ..object });
        let mut data = label::config(self.pool, self.end, METASLAB_ARRAY, false)?.pack_xdr();
        let bonus = (data.len() as u64).to_le_bytes().to_vec();
        let object = Self::plain(ObjType::PACKED_NVLIST, ObjType::PACKED_NVLIST_SIZE, bonus);
        let block = 16 << 10;
        data.resize(data.len().next_multiple_of(block), 0);
        self.put(CONFIG, MosObject { block: block as u32, data, ..object });
        Ok(())
    }

    fn space_maps(&mut self) -> Result<()> {
        let end = self.end;
        let mut array = Vec::new();
        let size = 1 << end.ms_shift;
        for (i, (start, stop)) in end.ranges().enumerate() {
            let number = SPACE_MAPS + i as u64;
            array.extend_from_slice(&number.to_le_bytes());
            let params = Params::metaslab(start, size, end.ashift);
            let mut encoder = Encoder::new(params, 0, SPACE_MAP_BLOCK, true)?;
            encoder.mark(Kind::Alloc, 1, TXG);
            let len = stop - start;
            encoder.push(Range { kind: Kind::Alloc, offset: start, len, vdev: VdevId(0) })?;
            let (mut data, alloc) = encoder.finish();
            let mut histogram = [0; HISTOGRAM_SIZE];
            histogram_add(&mut histogram, size - len, end.ashift);
            let header = Header {
                object: number,
                length: data.len() as u64,
                alloc,
                histogram: Some(histogram),
            };
            data.resize(SPACE_MAP_BLOCK as usize, 0);
            let object =
                Self::plain(ObjType::SPACE_MAP, ObjType::SPACE_MAP_HEADER, header.encode());
            self.put(
                number,
                MosObject { block: SPACE_MAP_BLOCK, indirect_shift: 14, data, ..object },
            );
        }
        let block = array.len().next_power_of_two().clamp(512, 128 << 10);
        array.resize(array.len().next_multiple_of(block), 0);
        let object = Self::plain(ObjType::OBJECT_ARRAY, ObjType::NONE, Vec::new());
        self.put(METASLAB_ARRAY, MosObject { block: block as u32, data: array, ..object });
        Ok(())
    }

    fn directory(&mut self) -> Result<()> {
        let numbers = [
            ("root_dataset", ROOT_DIR),
            ("config", CONFIG),
            ("features_for_read", FEATURES_READ),
            ("features_for_write", FEATURES_WRITE),
            ("feature_descriptions", FEATURE_DESCRIPTIONS),
            ("feature_enabled_txg", ENABLED_TXG),
            ("sync_bplist", SYNC_BPLIST),
            ("free_bpobj", FREE_BPOBJ),
            ("history", HISTORY),
            ("deflate", 1),
            ("creation_version", 5000),
        ];
        let mut entries: Vec<_> =
            numbers.into_iter().map(|(name, v)| (name, ZapValue::from_u64(v))).collect();
        let words = (0..4u64).map(|i| mix(self.pool.spec.seed, 0x5a17 + i));
        let salt: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        let salt = ZapValue::from_bytes(&salt).ok_or_else(|| Error::bug("salt"))?;
        entries.push(("org.illumos:checksum_salt", salt));
        self.zap(DIRECTORY, ObjType::OBJECT_DIRECTORY, &entries, 0)
    }

    /// Allocates one block.
    fn block(&mut self, object_type: ObjType, level: u8, fill: u64, data: &[u8]) -> Result<BlkPtr> {
        if is_zero(data) {
            return Ok(BlkPtr::default());
        }
        let asize = self.space.asize(data.len());
        let offsets = (0..COPIES).map(|_| self.space.alloc(asize)).collect::<Result<Vec<u64>>>()?;
        let dva = |&offset| Dva { vdev: VdevId(0), offset, asize: Asize(asize), gang: false };
        let dvas: Vec<Dva> = offsets.iter().map(dva).collect();
        let size = data.len() as u64;
        let head = Head { object_type, level, lsize: Lsize(size), birth: TXG };
        let mut block = Block::new(head, Psize(size), COMPRESS_OFF, &dvas);
        (block.checksum, block.fill, block.words) = (7, fill, fletcher4(data, false));
        let bp = BlkPtr::Block(block);
        self.totals.add(&bp);
        self.blocks.push((offsets, data.to_vec()));
        Ok(bp)
    }

    /// Allocates an object's blocks, each with its fill count; returns its dnode.
    fn place(&mut self, object: &MosObject, fill: impl Fn(usize) -> u64) -> Result<Dnode> {
        let before = self.totals.used;
        let wanted = nblkptr(object.bonus.len());
        let chunks = object.data.chunks(object.block as usize).enumerate();
        let mut level = chunks
            .map(|(i, data)| self.block(object.object_type, 0, fill(i), data))
            .collect::<Result<Vec<_>>>()?;
        let blocks = level.len() as u64;
        let mut levels = 1;
        while level.len() > wanted {
            let per = 1usize << (object.indirect_shift - 7);
            let mut above = Vec::new();
            for children in level.chunks(per) {
                let mut data = vec![0; 1 << object.indirect_shift];
                for (to, bp) in data.chunks_exact_mut(BLKPTR_SIZE).zip(children) {
                    let raw = bp.encode().ok_or_else(|| Error::bug("a MOS block"))?;
                    to.copy_from_slice(&raw);
                }
                let fill = children.iter().map(BlkPtr::fill).sum();
                above.push(self.block(object.object_type, levels, fill, &data)?);
            }
            level = above;
            levels += 1;
        }
        level.resize(wanted, BlkPtr::default());
        Ok(Dnode {
            object_type: object.object_type,
            indirect_shift: object.indirect_shift,
            levels,
            bonus_type: object.bonus_type,
            checksum: 0,
            compression: object.compression,
            flags: flags::USED_BYTES,
            data_block_size: object.block,
            slots: 1,
            max_blkid: blocks.saturating_sub(1),
            used: self.totals.used - before,
            endian: Endian::Little,
            blkptrs: level,
            bonus: object.bonus.clone(),
            spill: None,
        })
    }

    /// Allocates every object, the meta-dnode and the object set.
    fn write(&mut self) -> Result<BlkPtr> {
        let objects = std::mem::take(&mut self.objects);
        let mut data = vec![0; (objects.len() * DNODE_SIZE).next_multiple_of(DNODE_BLOCK_SIZE)];
        for (number, object) in objects.iter().enumerate() {
            if let Some(object) = object {
                let dnode = self.place(object, |_| 1)?;
                dnode.encode(&mut data[number * DNODE_SIZE..])?;
            }
        }
        let per = DNODES_PER_BLOCK as usize;
        let inside = |i: usize| objects.iter().skip(i * per).take(per).flatten().count() as u64;
        let meta = MosObject {
            block: DNODE_BLOCK_SIZE as u32,
            data,
            ..Self::plain(ObjType::DNODE, ObjType::NONE, Vec::new())
        };
        let meta_dnode = self.place(&meta, inside)?;
        let phys = ObjsetPhys {
            size: ondisk::objset::OBJSET_SIZE,
            meta_dnode,
            zil_header: [0; ZIL_HEADER_SIZE],
            kind: ObjsetType::Meta,
            flags: 0,
            portable_mac: [0; OBJSET_MAC_SIZE],
            local_mac: [0; OBJSET_MAC_SIZE],
            endian: Endian::Little,
            user_used: None,
            group_used: None,
            project_used: None,
        };
        let count = objects.iter().flatten().count() as u64;
        self.block(ObjType::OBJSET, 0, count, &phys.encode()?)
    }
}
