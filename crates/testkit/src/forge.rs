//! Forged pools under valid checksums.
//!
//! # Theory
//! [`Forge::new`] reads the metadata of a pool on one plain disk into a tree of blocks:
//! object sets, indirect blocks, dnode blocks, ZAPs, space maps, lists. [`Forge::change`]
//! replaces a block's content. The new content is written to the addresses of the old one,
//! so that an engine can free them. If it does not fit, or with [`Forge::change_as`], it is
//! written uncompressed to unused space at the end of the disk; the first txg that frees it
//! will detect that. Then the pointer in the parent's content is replaced, the parent is
//! rewritten, and so on up to the uberblock, which gets a new checksum in all labels.
//! [`Forge::undo`] restores the disk.

use cenote::inspect::codec;
use cenote::inspect::codec::checksum::Checksum;
use cenote::inspect::codec::compress::Compression;
use cenote::inspect::ondisk::blkptr::{BLKPTR_SIZE, BlkPtr, Block, COMPRESS_OFF};
use cenote::inspect::ondisk::dnode::{Dnode, dnodes_in_block};
use cenote::inspect::ondisk::dslphys::DslDatasetPhys;
use cenote::inspect::ondisk::uberblock::Uberblock;
use cenote::inspect::ondisk::zil::{LogBlock, LogPtr, ZilHeader, records_at, seal};
use cenote::inspect::ondisk::{Endian, ObjType, ObjsetPhys};

use base::{Asize, Dva, Lsize, Psize, VdevId};

use crate::disk::{DATA_END, DATA_START, Disk};

/// Metadata blocks read at most.
const NODES_MAX: usize = 20_000;
/// The checksum id of forged blocks.
const FLETCHER4: u8 = 7;

/// The position of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockLocation {
    /// The dataset's object, 0 for the MOS.
    pub objset: u64,
    /// The object; 0 is the meta-dnode.
    pub object: u64,
    /// Its type.
    pub object_type: ObjType,
    /// Level; -1 is the object set itself.
    pub level: i8,
    /// Block id on that level.
    pub blkid: u64,
}

/// One block of metadata.
#[derive(Clone, Debug)]
pub struct MetadataBlock {
    /// Its position.
    pub position: BlockLocation,
    /// Its content, decompressed.
    pub content: Vec<u8>,
    /// Its pointer.
    pub bp: Block,
    raw: [u8; BLKPTR_SIZE],
    parent: Option<usize>,
}

/// A pool's metadata, ready to be changed.
pub struct Forge {
    disk: Disk,
    vdev: VdevId,
    uberblock: Uberblock,
    slots: Vec<(usize, usize)>,
    /// The blocks; parents before children.
    pub nodes: Vec<MetadataBlock>,
    next: u64,
    undo: Vec<(u64, Vec<u8>)>,
    end: u64,
}

impl Forge {
    /// Reads a pool on one plain disk.
    pub fn new(disk: &Disk, vdev: u32) -> Forge {
        let all = disk.uberblocks();
        let best = all.iter().map(|u| &u.2).max_by(|a, b| a.compare(b)).unwrap().clone();
        let same = all.iter().filter(|(_, _, ub)| ub.txg == best.txg);
        let slots = same.map(|(label, slot, _)| (*label, *slot)).collect();
        let end = disk.size() / (256 << 10) * (256 << 10) - DATA_END - DATA_START;
        let mut forge = Forge {
            disk: disk.clone(),
            vdev: VdevId(vdev),
            uberblock: best.clone(),
            slots,
            nodes: Vec::new(),
            next: end,
            undo: Vec::new(),
            end,
        };
        forge.add_objset(best.root_bp, None, 0);
        forge
    }

    /// The block that `find` accepts first.
    pub fn find(&self, find: impl Fn(&MetadataBlock) -> bool) -> Option<usize> {
        self.nodes.iter().position(find)
    }

    fn load(&self, block: &Block) -> Option<Vec<u8>> {
        let dva = block.dvas().find(|d| d.vdev == self.vdev && !d.gang)?;
        let stored = self.disk.read(dva.offset + DATA_START, block.psize.0 as usize);
        if block.compression == COMPRESS_OFF {
            return Some(stored);
        }
        let mut out = vec![0; block.head.lsize.0 as usize];
        codec::compress::decompress(block.compression, &stored, &mut out).ok()?;
        Some(out)
    }

    fn add(&mut self, bp: BlkPtr, parent: Option<usize>, position: BlockLocation) -> Option<usize> {
        let BlkPtr::Block(block) = bp else { return None };
        let plain = block.protection == cenote::inspect::ondisk::blkptr::Protection::None;
        if self.nodes.len() >= NODES_MAX || !plain || block.endian != Endian::Little {
            return None;
        }
        let content = self.load(&block)?;
        let raw = bp.encode()?;
        self.nodes.push(MetadataBlock { position, content, bp: block, raw, parent });
        Some(self.nodes.len() - 1)
    }

    fn add_objset(&mut self, bp: BlkPtr, parent: Option<usize>, objset: u64) {
        let object_type = ObjType::OBJSET;
        let position = BlockLocation { objset, object: 0, object_type, level: -1, blkid: 0 };
        let Some(id) = self.add(bp, parent, position) else { return };
        let phys = ObjsetPhys::parse(&self.nodes[id].content, Endian::Little).unwrap();
        self.add_dnode(id, objset, 0, &phys.meta_dnode);
        let accounting = [&phys.user_used, &phys.group_used, &phys.project_used];
        for (i, dnode) in accounting.into_iter().enumerate() {
            if let Some(dnode) = dnode {
                self.add_dnode(id, objset, u64::MAX - i as u64, dnode);
            }
        }
    }

    fn add_dnode(&mut self, parent: usize, objset: u64, object: u64, dnode: &Dnode) {
        let content =
            dnode.object_type == ObjType::PLAIN_FILE_CONTENTS || dnode.object_type == ObjType::ZVOL;
        let level = dnode.levels as i8 - 1;
        for (i, bp) in dnode.blkptrs.iter().chain(&dnode.spill).enumerate() {
            let spill = i == dnode.blkptrs.len();
            let (level, blkid) = if spill { (0, u64::MAX) } else { (level, i as u64) };
            let object_type = dnode.object_type;
            let position = BlockLocation { objset, object, object_type, level, blkid };
            if !(content && level == 0 && !spill) {
                self.add_block(*bp, parent, position, dnode);
            }
        }
        if objset == 0 && dnode.bonus_type == ObjType::DSL_DATASET {
            let phys = DslDatasetPhys::parse(&dnode.bonus, dnode.endian).unwrap();
            self.add_objset(phys.bp, Some(parent), object);
        }
    }

    fn add_block(&mut self, bp: BlkPtr, parent: usize, position: BlockLocation, dnode: &Dnode) {
        let Some(id) = self.add(bp, Some(parent), position.clone()) else { return };
        let content =
            dnode.object_type == ObjType::PLAIN_FILE_CONTENTS || dnode.object_type == ObjType::ZVOL;
        if position.level > 0 {
            let count = 1usize << dnode.epb_shift();
            for i in 0..count {
                let block = &self.nodes[id].content;
                let Ok(bp) = BlkPtr::parse_nth(block, i, Endian::Little) else { continue };
                let level = position.level - 1;
                if content && level == 0 {
                    break;
                }
                let blkid = position.blkid * count as u64 + i as u64;
                self.add_block(bp, id, BlockLocation { level, blkid, ..position.clone() }, dnode);
            }
        } else if position.object == 0 && dnode.object_type == ObjType::DNODE {
            let block = self.nodes[id].content.clone();
            for (slot, inner) in dnodes_in_block(&block, Endian::Little) {
                if let Ok(inner) = inner {
                    self.add_dnode(id, position.objset, position.blkid * 32 + slot, &inner);
                }
            }
        }
    }

    /// Replaces a block's content, and the pointer to it in every block above: at its old
    /// addresses if it fits there.
    pub fn change(&mut self, id: usize, content: Vec<u8>) {
        match self.in_place(id, &content) {
            Some(bp) => {
                self.nodes[id].content = content;
                self.point(id, bp);
            }
            None => self.change_as(id, content, |bp| bp),
        }
    }

    /// Writes a block's new content to its old addresses; returns the pointer to it.
    fn in_place(&mut self, id: usize, content: &[u8]) -> Option<Block> {
        let mut bp = self.nodes[id].bp;
        let plain = bp.checksum == FLETCHER4 && !bp.dedup && bp.dvas().all(|d| !d.gang);
        if !plain || content.len() as u64 != bp.head.lsize.0 {
            return None;
        }
        let mut stored = vec![0; bp.psize.0 as usize];
        match Compression::from_id(bp.compression)? {
            Compression::Off => stored.copy_from_slice(content),
            alg => drop(codec::compress::compress(alg, content, &mut stored)?),
        }
        bp.words = codec::checksum::fletcher::fletcher4(&stored, false);
        for dva in self.nodes[id].bp.dvas().filter(|d| d.vdev == self.vdev) {
            let at = dva.offset + DATA_START;
            self.undo.push((at, self.disk.read(at, stored.len())));
            self.disk.write(at, &stored);
        }
        Some(bp)
    }

    /// As [`Forge::change`]; `twist` may change the pointer.
    pub fn change_as(&mut self, id: usize, content: Vec<u8>, twist: impl Fn(Block) -> Block) {
        let psize = content.len().next_multiple_of(512);
        let mut stored = content.clone();
        stored.resize(psize, 0);
        let offset = self.store(&stored);
        let size = psize as u64;
        let dva = Dva { vdev: self.vdev, offset, asize: Asize(size), gang: false };
        let old = self.nodes[id].bp;
        let mut bp = old.with_dvas(&[dva]);
        (bp.psize, bp.head.lsize) = (Psize(size), Lsize(size));
        (bp.compression, bp.checksum, bp.dedup) = (COMPRESS_OFF, FLETCHER4, false);
        bp.words = codec::checksum::fletcher::fletcher4(&stored, false);
        self.nodes[id].content = content;
        self.point(id, twist(bp));
    }

    /// Writes bytes to unused space; returns their offset in the vdev.
    pub fn store(&mut self, bytes: &[u8]) -> u64 {
        self.next -= (bytes.len() as u64).next_multiple_of(4096);
        assert!(self.next > self.end / 2, "no room for forgeries");
        self.patch(self.next + DATA_START, bytes);
        self.next
    }

    /// The blocks of all intent logs with records: offset, pointer, bytes.
    pub fn log_blocks(&self) -> Vec<(u64, LogPtr, Vec<u8>)> {
        let mut out = Vec::new();
        for node in self.nodes.iter().filter(|n| n.position.level == -1) {
            let phys = ObjsetPhys::parse(&node.content, Endian::Little).unwrap();
            let Ok(header) = ZilHeader::parse(&phys.zil_header, Endian::Little) else { continue };
            let mut ptr = header.log;
            while let Some(block) = ptr.bp.as_block() {
                let at = block.dva().offset + DATA_START;
                let bytes = self.disk.read(at, block.psize.0 as usize);
                let Ok(parsed) = LogBlock::parse(&bytes, &ptr) else { break };
                let next = parsed.next;
                if !parsed.records.is_empty() {
                    out.push((at, ptr, bytes.clone()));
                }
                ptr = next;
            }
        }
        out
    }

    /// Changes the records of a log's block, and fixes its checksum.
    pub(crate) fn change_log(&mut self, at: u64, ptr: &LogPtr, change: impl FnOnce(&mut [u8])) {
        let block = ptr.bp.as_block().unwrap();
        let mut bytes = self.disk.read(at, block.psize.0 as usize);
        let (next, used) = {
            let parsed = LogBlock::parse(&bytes, ptr).unwrap();
            (parsed.next, parsed.records.len())
        };
        let first = records_at(Checksum::from_id(block.checksum).unwrap());
        change(&mut bytes[first..first + used]);
        seal(&mut bytes, used, ptr, &next).unwrap();
        self.disk.write(at, &bytes);
    }

    /// Replaces bytes that [`Forge::store`] wrote.
    pub fn overwrite(&mut self, offset: u64, bytes: &[u8]) {
        self.disk.write(offset + DATA_START, bytes);
    }

    /// Replaces the pointer to a block, and the checksums of everything above.
    pub fn point(&mut self, id: usize, bp: Block) {
        let raw = BlkPtr::Block(bp).encode().unwrap();
        let old = std::mem::replace(&mut self.nodes[id].raw, raw);
        self.nodes[id].bp = bp;
        match self.nodes[id].parent {
            Some(parent) => {
                let mut content = self.nodes[parent].content.clone();
                let at = content.windows(BLKPTR_SIZE).step_by(8).position(|w| w == old);
                // A forgery of the parent may have destroyed the pointer.
                let Some(at) = at else { return };
                content[at * 8..at * 8 + BLKPTR_SIZE].copy_from_slice(&raw);
                self.change(parent, content);
            }
            None => {
                self.uberblock.root_bp = BlkPtr::Block(bp);
                self.seal();
            }
        }
    }

    fn seal(&mut self) {
        for (label, slot) in self.slots.clone() {
            self.disk.write_uberblock(label, slot, &self.uberblock);
        }
    }

    fn patch(&mut self, at: u64, bytes: &[u8]) {
        let old = self.disk.read(at, bytes.len());
        assert!(old.iter().all(|&b| b == 0), "the forger's space is in use");
        self.undo.push((at, old));
        self.disk.write(at, bytes);
    }

    /// Restores the disk; `self` becomes `fresh`.
    pub fn undo(&mut self, fresh: &Fresh) {
        for (at, bytes) in self.undo.drain(..).rev() {
            if bytes.iter().all(|b| *b == 0) {
                self.disk.zero(at..at + bytes.len() as u64);
            } else {
                self.disk.write(at, &bytes);
            }
        }
        self.nodes.clone_from(&fresh.nodes);
        self.uberblock = fresh.uberblock.clone();
        self.next = self.end;
        self.seal();
    }

    /// The state that [`Forge::undo`] restores.
    pub fn fresh(&self) -> Fresh {
        Fresh { nodes: self.nodes.clone(), uberblock: self.uberblock.clone() }
    }
}

/// A forge before any change.
pub struct Fresh {
    nodes: Vec<MetadataBlock>,
    uberblock: Uberblock,
}
