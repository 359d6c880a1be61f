//! Writing one txg of an object set (chapter 03 §10).
//!
//! # Theory
//! The txg's slots are frozen and become [`Work`]s. Their blocks are written in waves, and
//! space is accounted to users and groups. The changed dnodes are put into their blocks,
//! which are data of the meta-dnode. The object set block comes last; the caller stores its
//! pointer. Readers see nothing of this before [`Pending::publish`], which the caller calls
//! when the txg's writes have ended.
//!
//! The MOS is written in passes: the same calls again in the same txg, with the changes
//! made since (chapter 05 §9.3).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use base::{Buf, BufMut, Error, ObjectId, Result, Txg};
use ondisk::blkptr::{Block, Protection, Seal};
use ondisk::dnode::{
    DNODE_BLOCK_SIZE, DNODE_SIZE, DNODES_PER_BLOCK, Dnode, dnodes_in_block, swap_dnodes,
};
use ondisk::objset::{
    FLAG_USER_ACCOUNTED, OBJSET_MAC_SIZE, OBJSET_SIZE, OBJSET_SIZE_V1, ObjsetType, ZIL_HEADER_SIZE,
};
use ondisk::{BlkPtr, Endian, ObjType, ObjsetPhys};
use zio::{BlockChange, Io, OutagePolicy, Write, Writes, Zio};

use super::account;
use super::handle::{DnodeHead, slot_of};
use super::policy::{BlockKind, ObjsetProps};
use super::publish::Pending;
use super::ranges::BlockRanges;
use super::seal::bonus_area;
use super::waves::write_all;
use super::work::Work;
use crate::objset::Objset;

/// Levels of a new dataset's meta-dnode: enough for all object ids (§4.1).
const META_LEVELS: u8 = 6;
/// `os_flags`: the accounting objects count the objects, too (§5).
const FLAG_OBJECTS_ACCOUNTED: u64 = 2;
const FLAG_PROJECTS_ACCOUNTED: u64 = 4;
/// The special objects of users, groups and projects.
const SPECIAL: [u64; 3] = [u64::MAX, u64::MAX - 1, u64::MAX - 2];

/// Receives every block that is born or killed, in the order of the changes. Embedded
/// blocks count, holes do not.
pub trait Events {
    /// A block was written.
    ///
    /// # Errors
    /// Any error of the implementation; the txg then fails.
    fn born(&mut self, bp: &BlkPtr) -> Result<()>;
    /// The object set no longer refers to the block.
    ///
    /// # Errors
    /// As [`Events::born`].
    fn killed(&mut self, bp: &BlkPtr) -> Result<()>;
    /// An address that was allocated in the txg will not be used: no pointer ever referred
    /// to the block.
    ///
    /// # Errors
    /// As [`Events::born`].
    fn wasted(&mut self, bp: &BlkPtr) -> Result<()>;
    /// A dnode of several slots was written: feature `large_dnode` is in use, which no
    /// pointer shows.
    fn large_dnode(&mut self) {}
}

/// Circumstances of a sync.
pub struct SyncCtx<'a> {
    /// The pool's pipeline.
    pub zio: &'a Arc<Zio>,
    /// Counts the writes in flight.
    pub writes: &'a Writes,
    /// The txg.
    pub txg: Txg,
    /// For hints: the object set.
    pub objset: u64,
    /// Threads to use.
    pub threads: usize,
    /// Blocks of this txg may be rewritten in place (sync pass 2 and later).
    pub in_place: bool,
    /// The trees of the txg's gang blocks, so that these can be rewritten too.
    pub gangs: Option<&'a Arc<zio::Gangs>>,
    /// Compress (sync passes before 8).
    pub compress: bool,
    /// Feature `hole_birth` is active.
    pub hole_birth: bool,
    /// Deflated bytes per 512 bytes of each top-level vdev (chapter 02 §13); empty: plain
    /// bytes.
    pub deflate: &'a [u64],
}

impl SyncCtx<'_> {
    /// Bytes that a block counts in `dn_used` and datasets' space (chapter 02 §13).
    pub fn dsize(&self, bp: &BlkPtr) -> u64 {
        let BlkPtr::Block(block) = bp else { return 0 };
        let one = |dva: base::Dva| match self.deflate.get(dva.vdev.0 as usize) {
            Some(ratio) => (dva.asize.0 >> 9) * ratio,
            None => dva.asize.0,
        };
        block.dvas().map(one).sum()
    }
}

/// A new object set's block.
pub(crate) fn empty_objset(kind: ObjsetType, props: &ObjsetProps) -> ObjsetPhys {
    // All objects of a new file system are counted, from the first one on (§5).
    let flags = match kind {
        ObjsetType::Zfs if props.count_owners => {
            FLAG_USER_ACCOUNTED
                | if props.count_objects { FLAG_OBJECTS_ACCOUNTED } else { 0 }
                | if props.count_projects { FLAG_PROJECTS_ACCOUNTED } else { 0 }
        }
        _ => 0,
    };
    let meta_dnode = Dnode {
        object_type: ObjType::DNODE,
        indirect_shift: 17,
        levels: if kind == ObjsetType::Meta { 1 } else { META_LEVELS },
        bonus_type: ObjType::NONE,
        checksum: 0,
        compression: 0,
        flags: ondisk::dnode::flags::USED_BYTES,
        data_block_size: DNODE_BLOCK_SIZE as u32,
        slots: 1,
        max_blkid: 0,
        used: 0,
        endian: Endian::Little,
        blkptrs: vec![BlkPtr::default(); 3],
        bonus: Vec::new(),
        spill: None,
    };
    ObjsetPhys {
        size: if props.count_owners { OBJSET_SIZE } else { OBJSET_SIZE_V1 },
        meta_dnode,
        zil_header: [0; ZIL_HEADER_SIZE],
        kind,
        flags,
        portable_mac: [0; OBJSET_MAC_SIZE],
        local_mac: [0; OBJSET_MAC_SIZE],
        endian: Endian::Little,
        user_used: None,
        group_used: None,
        project_used: None,
    }
}

impl Objset {
    /// Writes the changes of `ctx.txg`. `None` if there are none. The result must be
    /// published before the object set is written again.
    ///
    /// # Errors
    /// Those of reading blocks that are changed in part, of allocation, and of `events`.
    /// The txg has then failed: the pool must not write its uberblock.
    pub fn sync(
        self: &Arc<Self>,
        ctx: &SyncCtx<'_>,
        events: &mut dyn Events,
    ) -> Result<Option<Pending>> {
        let live = self.live()?;
        let ids = live.dirty_objects.lock().remove(&ctx.txg).unwrap_or_default();
        if live.unpublished.load(SeqCst) != 0 {
            let twice = || base::bug!("a txg is written while another is not published");
            return if ids.is_empty() { Ok(None) } else { Err(twice()) };
        }
        let zil_header = live.zil_header.lock().take();
        let flags = live.flags.lock().take();
        let fresh = self.root_bp().is_hole();
        if ids.is_empty() && zil_header.is_none() && flags.is_none() && !fresh {
            return Ok(None);
        }
        live.unpublished.store(ctx.txg.0, SeqCst);
        let props = live.props();
        let mut phys = (*self.phys()).clone();
        if let Some(header) = zil_header {
            phys.zil_header = header;
        }
        phys.flags = flags.unwrap_or(phys.flags);
        if let Some(sealed) = &live.sealed {
            sealed.complete(&mut phys);
        }
        let (special, plain): (Vec<u64>, Vec<u64>) =
            ids.iter().copied().partition(|id| SPECIAL.contains(id));
        let mut works = self.freeze(ctx.txg, &plain)?;
        write_all(ctx, &props, &mut works, events)?;
        let mut ids = ids;
        // An upgrade charges one object after the other, also after an import in the middle.
        let accounts = phys.flags & FLAG_USER_ACCOUNTED != 0
            || live.accounting.load(SeqCst)
            || phys.user_used.is_some() && live.sealed.is_none();
        if phys.kind == ObjsetType::Zfs && accounts {
            account::apply(self, ctx, &mut phys, &mut works)?;
            let again = live.dirty_objects.lock().remove(&ctx.txg).unwrap_or_default();
            ids.extend(again);
        }
        let special: Vec<u64> = ids
            .iter()
            .copied()
            .filter(|id| SPECIAL.contains(id))
            .chain(special)
            .collect::<std::collections::BTreeSet<u64>>()
            .into_iter()
            .collect();
        let mut special = self.freeze(ctx.txg, &special)?;
        write_all(ctx, &props, &mut special, events)?;
        for work in &special {
            let slot = match SPECIAL.iter().position(|&s| s == work.id.0) {
                Some(0) => &mut phys.user_used,
                Some(1) => &mut phys.group_used,
                _ => &mut phys.project_used,
            };
            *slot = work.allocated.then(|| work.dn.clone());
        }
        if props.count_projects {
            phys.size = OBJSET_SIZE;
        }
        let dnode_blocks;
        (phys.meta_dnode, dnode_blocks) = self.write_dnodes(ctx, &works, events)?;
        let bp = self.write_root(ctx, &phys, events)?;
        works.append(&mut special);
        Ok(Some(Pending::new(self, ctx.txg, phys, bp, works, dnode_blocks)))
    }

    /// Freezes the txg's changes of these objects and returns them.
    fn freeze(self: &Arc<Self>, txg: Txg, ids: &[u64]) -> Result<Vec<Work>> {
        let live = self.live()?;
        let mut works = Vec::with_capacity(ids.len());
        for &id in ids {
            let Some(handle) = live.find(ObjectId(id)) else { continue };
            let mut inner = handle.state.lock();
            let disk = inner.disk.clone();
            let Some(slot) = inner.slots[slot_of(txg)].as_mut().filter(|s| s.txg == txg) else {
                continue;
            };
            slot.frozen = true;
            let (mut data, mut packed) = (Vec::with_capacity(slot.data.len()), BTreeMap::new());
            let mut clones = BTreeMap::new();
            for (blkid, content) in slot.data.iter_mut() {
                clones.extend(content.cloned().map(|bp| (blkid, bp)));
                let (bytes, form) = content.freeze();
                packed.extend(form.map(|form| (blkid, form)));
                data.push((blkid, bytes));
            }
            if !slot.head.allocated {
                data.clear();
            }
            let freed = if disk.is_some() { slot.freed.clone() } else { BlockRanges::default() };
            let (mut early, wasted) = slot.settle(&data);
            if slot.head.allocated {
                early.append(&mut clones);
            }
            let moved = std::mem::take(&mut slot.moved);
            let mut work = Work::new(ObjectId(id), disk, &slot.head, freed, data);
            (work.early, work.wasted, work.moved) = (early, wasted, moved);
            work.packed = packed;
            if live.is_sealed() {
                work.min_levels = slot.head.levels;
            }
            works.push(work);
        }
        Ok(works)
    }

    /// Puts changed dnodes into their blocks and writes these. Returns the new meta-dnode
    /// and the ids of the blocks.
    fn write_dnodes(
        self: &Arc<Self>,
        ctx: &SyncCtx<'_>,
        works: &[Work],
        events: &mut dyn Events,
    ) -> Result<(Dnode, Vec<u64>)> {
        let props = self.live()?.props();
        let disk = self.on_disk();
        let mut blocks: BTreeMap<u64, BufMut> = BTreeMap::new();
        let (sealed, mut seals) = (self.live()?.sealed.as_ref(), BTreeMap::new());
        for work in works {
            let blkid = work.id.0 / DNODES_PER_BLOCK;
            let block = match blocks.entry(blkid) {
                std::collections::btree_map::Entry::Occupied(e) => e.into_mut(),
                std::collections::btree_map::Entry::Vacant(e) => {
                    let (block, had) = self.dnode_block_to_change(blkid)?;
                    if let Some(sealed) = sealed {
                        let seal = sealed.take(blkid, ctx.txg).or(had);
                        seals.insert(blkid, seal.unwrap_or(Seal::NONE));
                    }
                    e.insert(block)
                }
            };
            let at = (work.id.0 % DNODES_PER_BLOCK) as usize * DNODE_SIZE;
            let size = usize::from(work.dn.slots) * DNODE_SIZE;
            let had = work.old.as_ref().map_or(0, |old| usize::from(old.slots) * DNODE_SIZE);
            let slots = block.get_mut(at..at + size.max(had)).ok_or_else(|| {
                Error::bug("a dnode crosses the end of its block").in_object(work.id)
            })?;
            // What is encrypted in it stays as it is, unless the stream has changed it.
            let area = match (&work.area, &work.old) {
                _ if sealed.is_none() => Vec::new(),
                (Some(area), _) => area.to_vec(),
                (None, Some(old)) => slots.get(bonus_area(old)).unwrap_or_default().to_vec(),
                (None, None) => Vec::new(),
            };
            if had > size {
                // Slots that the object gives up are free.
                slots.fill(0);
            }
            let slots = &mut slots[..if work.allocated { size } else { size.max(had) }];
            if work.allocated {
                work.dn.encode(slots).map_err(|e| e.in_object(work.id))?;
                for (to, from) in slots[bonus_area(&work.dn)].iter_mut().zip(&area) {
                    *to = *from;
                }
                if work.dn.slots > 1 {
                    events.large_dnode();
                }
            } else {
                slots.fill(0);
            }
        }
        let mut head = DnodeHead::of(&disk.meta)?;
        head.max_blkid = blocks.keys().copied().max().unwrap_or(0).max(head.max_blkid);
        if let Some(sealed) = sealed {
            sealed.shape(&mut head);
        }
        let mut data = Vec::with_capacity(blocks.len());
        let mut fills = BTreeMap::new();
        for (blkid, mut block) in blocks {
            fills.insert(blkid, dnodes_in_block(&block, Endian::Little).count() as u64);
            if seals.get(&blkid).is_some_and(|seal: &Seal| seal.endian == Endian::Big) {
                swap_dnodes(&mut block);
            }
            data.push((blkid, block.freeze()));
        }
        let old = Some(Arc::clone(&disk.meta));
        let mut meta = Work::new(ObjectId(0), old, &head, BlockRanges::default(), data);
        let blkids = fills.keys().copied().collect();
        meta.fills = fills;
        meta.seals = seals;
        if sealed.is_some() {
            meta.min_levels = head.levels;
        }
        let mut works = [meta];
        write_all(ctx, &props, &mut works, events)?;
        let [meta] = works;
        Ok((meta.dn, blkids))
    }

    /// A block of dnodes as on disk, but in little-endian order, and its parameters if it is
    /// encrypted. Its bonus areas are then as on disk: only the key could change their order.
    fn dnode_block_to_change(self: &Arc<Self>, blkid: u64) -> Result<(BufMut, Option<Seal>)> {
        let meta = self.meta_object();
        if blkid > meta.dnode().max_blkid {
            return Ok((BufMut::zeroed(DNODE_BLOCK_SIZE), None));
        }
        let bp = meta.block_pointer(0, blkid, Io::SYNC)?;
        let old = self.zio().read(&bp, self.dnode_io(Io::SYNC))?;
        if bp.is_hole() {
            return Ok((BufMut::zeroed(DNODE_BLOCK_SIZE), None));
        }
        let sealed = bp.as_block().filter(|b| b.protection == Protection::Encrypted);
        if bp.endian() == Endian::Little || sealed.is_some() {
            let mut block = BufMut::copy_of(&old);
            if bp.endian() == Endian::Big {
                swap_dnodes(&mut block);
            }
            return Ok((block, sealed.map(Block::seal)));
        }
        let mut out = BufMut::zeroed(DNODE_BLOCK_SIZE);
        for (slot, dnode) in dnodes_in_block(&old, Endian::Big) {
            let dnode = dnode?;
            let bonus = super::to_little_bonus(&dnode)?;
            let at = slot as usize * DNODE_SIZE;
            Dnode { bonus, ..dnode }.encode(&mut out[at..])?;
        }
        Ok((out, None))
    }

    fn write_root(
        &self,
        ctx: &SyncCtx<'_>,
        phys: &ObjsetPhys,
        events: &mut dyn Events,
    ) -> Result<BlkPtr> {
        let data = Buf::copy_of(&phys.encode()?);
        let kind = BlockKind {
            object_type: ObjType::OBJSET,
            level: 0,
            spill: false,
            size: data.len() as u64,
            checksum: 0,
            compression: 0,
        };
        let props = self.live()?.props().for_block(&kind, ctx.compress);
        let old = self.root_bp();
        let write = Write {
            object_type: ObjType::OBJSET,
            level: 0,
            data: &data,
            fill: phys.meta_dnode.blkptrs.iter().map(BlkPtr::fill).sum(),
            txg: ctx.txg,
            props: &props,
            old: &old,
            change: BlockChange::Content,
            in_place: ctx.in_place,
            gangs: ctx.gangs,
            hint: ctx.objset,
            packed: None,
            seal: self.is_sealed().then_some(Seal::NONE),
            in_run: false,
            cache: true,
            outage: OutagePolicy::WaitAlways,
        };
        let placed = ctx.zio.place(ctx.zio.prepare(&write)?)?;
        let (bp, outcome) = (placed.bp, placed.outcome);
        ctx.zio.submit(placed, ctx.writes);
        if !matches!(outcome, zio::Outcome::Same | zio::Outcome::Rewritten) {
            if !old.is_hole() {
                events.killed(&old)?;
            }
            events.born(&bp)?;
        }
        Ok(bp)
    }
}
