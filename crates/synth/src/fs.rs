//! The file system: objects, their dnodes, and the space they account for
//! (chapter 03 §4-§6, chapter 06 §2-§7, §14).
//!
//! # Theory
//! A file's dnode is complete as soon as its blocks are written; a directory's only in the
//! end, because it has the number of entries. So that blocks of dnodes can be written and
//! dropped early, files and directories take their object ids from different blocks.
//!
//! # Invariants
//! * Memory is bounded by directories' entries, pointers to dnode blocks, and the blocks in
//!   flight; never by file data or files' dnodes.
//! * A dnode and its charge are accounted for together.

use std::collections::{BTreeMap, HashMap};

use base::{BufMut, Error, Result, Txg};
use ondisk::blkptr::BlkPtr;
use ondisk::dnode::{DNODE_BLOCK_SIZE, DNODE_SIZE, DNODES_PER_BLOCK, Dnode};
use ondisk::objset::{
    FLAG_USER_ACCOUNTED, OBJSET_MAC_SIZE, ObjsetPhys, ObjsetType, ZIL_HEADER_SIZE,
};
use ondisk::sa::{SaTables, ZplAttr};
use ondisk::zap::ZapValue;
use ondisk::zap::bulk::{BulkEntry, BulkZap};
use ondisk::{Endian, ObjType};

use crate::Compression;
use crate::store::{BlockJob, Dest, PlacedBlock, WritePipeline};
use crate::tree::{TreeBuilder, TreeStep, allocated};
use crate::znode::{LAYOUT, LAYOUT_ATTRS, REGISTERED, Znode, tables};

/// Object ids in block 0.
const MASTER_NODE: u64 = 1;
const SA_MASTER: u64 = 2;
const DELETE_QUEUE: u64 = 3;
const REGISTRY: u64 = 4;
const LAYOUTS: u64 = 5;
/// The root directory.
pub(crate) const ROOT: u64 = 6;
/// Not object ids: the trees whose dnodes are in the object set block.
const META: u64 = 0;
const USER_USED: u64 = u64::MAX;
const GROUP_USED: u64 = u64::MAX - 1;
/// Copies of a file system's metadata (chapter 03 §9.3).
const META_COPIES: usize = 2;
/// log2 of a fat ZAP's blocks.
pub(crate) const ZAP_SHIFT: u32 = 14;
/// Levels of a file system's meta-dnode from its creation (chapter 03 §4.1).
const META_LEVELS: u8 = 6;
/// Largest block without feature large_blocks.
const LARGE: u64 = 128 << 10;

/// Types that have no name in `ondisk`.
const SA_MASTER_NODE: ObjType = ObjType(45);
const SA_REGISTRATION: ObjType = ObjType(46);
const SA_LAYOUTS: ObjType = ObjType(47);

/// Sums over blocks (chapter 04 §0): allocated, compressed, uncompressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SpaceTotals {
    pub(crate) used: u64,
    pub(crate) comp: u64,
    pub(crate) uncomp: u64,
}

impl SpaceTotals {
    /// Adds a block.
    pub(crate) fn add(&mut self, bp: &BlkPtr) {
        let Some(b) = bp.as_block() else { return };
        self.used += allocated(bp);
        self.comp += b.psize.0;
        let meta = b.head.level > 0 || b.head.object_type.is_metadata();
        self.uncomp += if meta { b.psize.0 } else { b.head.lsize.0 };
    }
}

/// The owner of a tree.
enum TreeOwner {
    Znode(Box<Znode>),
    Plain,
    Special,
}

struct OpenTree {
    tree: TreeBuilder,
    owner: TreeOwner,
    lz4: bool,
}

struct DnodeBlock {
    data: BufMut,
    inside: u64,
}

/// Object ids left in a block of dnodes.
#[derive(Default)]
struct Chunk {
    next: u64,
    end: u64,
}

/// The kind of dnode block from which an object id is taken.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum DnodeArea {
    File,
    Dir,
}

/// The object set under construction.
pub(crate) struct Fs {
    pipe: WritePipeline,
    txg: Txg,
    seed: u64,
    tables: SaTables,
    trees: HashMap<u64, OpenTree>,
    chunks: [Chunk; 2],
    chunks_end: u64,
    /// Object ids allocated in each block of dnodes.
    given: Vec<u8>,
    dnode_blocks: HashMap<u64, DnodeBlock>,
    meta: Vec<BlkPtr>,
    special: HashMap<u64, Dnode>,
    users: BTreeMap<u64, u64>,
    groups: BTreeMap<u64, u64>,
    root_bp: Option<BlkPtr>,
    /// Sums over all blocks.
    pub(crate) totals: SpaceTotals,
    /// A block needs feature large_blocks.
    pub(crate) large_blocks: bool,
}

impl Fs {
    pub(crate) fn new(pipe: WritePipeline, txg: Txg, seed: u64) -> Result<Fs> {
        Ok(Fs {
            pipe,
            txg,
            seed,
            tables: tables()?,
            trees: HashMap::new(),
            // Block 0 begins with the objects of every file system.
            chunks: [Chunk::default(), Chunk { next: ROOT + 1, end: DNODES_PER_BLOCK }],
            chunks_end: DNODES_PER_BLOCK,
            given: vec![ROOT as u8],
            dnode_blocks: HashMap::new(),
            meta: Vec::new(),
            special: HashMap::new(),
            users: BTreeMap::new(),
            groups: BTreeMap::new(),
            root_bp: None,
            totals: SpaceTotals::default(),
            large_blocks: false,
        })
    }

    /// A new object id.
    pub(crate) fn number(&mut self, kind: DnodeArea) -> u64 {
        let chunk = &mut self.chunks[kind as usize];
        if chunk.next == chunk.end {
            *chunk = Chunk { next: self.chunks_end, end: self.chunks_end + DNODES_PER_BLOCK };
            self.chunks_end = chunk.end;
            self.given.push(0);
        }
        let object = chunk.next;
        chunk.next += 1;
        self.given[(object / DNODES_PER_BLOCK) as usize] += 1;
        object
    }

    /// Writes a file: `content` fills each block, given its offset.
    pub(crate) fn file(
        &mut self,
        object: u64,
        znode: Znode,
        recordsize: u32,
        compression: Compression,
        content: &mut dyn FnMut(u64, &mut [u8]),
    ) -> Result<()> {
        let size = znode.size;
        // One block as large as needed, or blocks of the record size (chapter 03 §3.2).
        let block = if size <= u64::from(recordsize) {
            size.next_multiple_of(512).max(512)
        } else {
            u64::from(recordsize)
        };
        let tree = TreeBuilder::new(
            ObjType::PLAIN_FILE_CONTENTS,
            block as u32,
            size.div_ceil(block),
            1,
            1,
        );
        let lz4 = compression == Compression::Lz4;
        self.open(object, OpenTree { tree, owner: TreeOwner::Znode(Box::new(znode)), lz4 })?;
        let mut offset = 0;
        while offset < size {
            let mut data = BufMut::alloc(block as usize);
            let (inside, tail) = data.split_at_mut((size - offset).min(block) as usize);
            content(offset, inside);
            tail.fill(0);
            self.push(object, 0, 1, data)?;
            self.settle()?;
            offset += block;
        }
        Ok(())
    }

    /// Writes a directory.
    pub(crate) fn dir(
        &mut self,
        object: u64,
        znode: Znode,
        entries: &HashMap<Box<[u8]>, u64>,
    ) -> Result<()> {
        let entries =
            entries.iter().map(|(name, v)| BulkEntry { name, value: ZapValue::from_u64(*v) });
        let owner = TreeOwner::Znode(Box::new(znode));
        self.zap(object, ObjType::DIRECTORY_CONTENTS, entries.collect(), owner)
    }

    fn zap(
        &mut self,
        object: u64,
        object_type: ObjType,
        entries: Vec<BulkEntry<'_>>,
        owner: TreeOwner,
    ) -> Result<()> {
        let zap = BulkZap::new(entries, crate::mix(self.seed, object) | 1, 0, ZAP_SHIFT)?;
        let size = zap.block_size();
        // An object with system attributes has one pointer, others three (chapter 03 §2.3).
        let nblkptr = if matches!(owner, TreeOwner::Znode(_)) { 1 } else { 3 };
        let tree = TreeBuilder::new(object_type, size as u32, zap.blocks(), nblkptr, 1);
        self.open(object, OpenTree { tree, owner, lz4: true })?;
        for blkid in 0..zap.blocks() {
            let mut data = BufMut::alloc(size);
            zap.block(blkid, &mut data)?;
            self.push(object, 0, 1, data)?;
            self.settle()?;
        }
        Ok(())
    }

    fn open(&mut self, object: u64, open: OpenTree) -> Result<()> {
        if open.tree.is_empty() {
            return self.complete(object, open);
        }
        self.trees.insert(object, open);
        Ok(())
    }

    fn push(&mut self, object: u64, level: u8, fill: u64, data: BufMut) -> Result<()> {
        let open = self.trees.get(&object).ok_or_else(|| Error::bug("no such tree"))?;
        let object_type = open.tree.object_type;
        let meta = level > 0 || object_type.is_metadata();
        self.pipe.push(BlockJob {
            dest: Dest::Object { object, level },
            object_type,
            level,
            fill,
            lz4: meta || open.lz4,
            copies: if meta { META_COPIES } else { 1 },
            data,
        });
        Ok(())
    }

    /// Takes results until there is room for more blocks.
    fn settle(&mut self) -> Result<()> {
        while self.pipe.is_full() && self.reap()? {}
        Ok(())
    }

    /// Takes results until nothing is in flight.
    fn drain(&mut self) -> Result<()> {
        while self.reap()? {}
        Ok(())
    }

    fn reap(&mut self) -> Result<bool> {
        let Some(batch) = self.pipe.reap()? else { return Ok(false) };
        for PlacedBlock { dest, bp } in batch {
            self.totals.add(&bp);
            self.large_blocks |= !bp.is_hole() && bp.head().lsize.0 > LARGE && bp.head().level == 0;
            match dest {
                Dest::Object { object, level } => self.feed(object, level, bp)?,
                Dest::Dnodes { blkid } => self.meta[blkid as usize] = bp,
                Dest::Objset => self.root_bp = Some(bp),
            }
        }
        Ok(true)
    }

    fn feed(&mut self, object: u64, level: u8, bp: BlkPtr) -> Result<()> {
        let open = self.trees.get_mut(&object).ok_or_else(|| Error::bug("no such tree"))?;
        match open.tree.feed(level, bp) {
            TreeStep::More => Ok(()),
            TreeStep::Write(block) => self.push(object, block.level, block.fill, block.data),
            TreeStep::Complete => match self.trees.remove(&object) {
                Some(open) => self.complete(object, open),
                None => Ok(()),
            },
        }
    }

    fn complete(&mut self, object: u64, open: OpenTree) -> Result<()> {
        let OpenTree { tree, owner, .. } = open;
        let used = tree.used();
        match owner {
            TreeOwner::Znode(znode) => {
                *self.users.entry(znode.uid).or_default() += 512 + used;
                *self.groups.entry(znode.gid).or_default() += 512 + used;
                let bonus = znode.bonus(&self.tables, self.txg)?;
                self.put(object, &tree.dnode(ObjType::SA, bonus, true))
            }
            TreeOwner::Plain => self.put(object, &tree.dnode(ObjType::NONE, Vec::new(), true)),
            TreeOwner::Special => {
                let dnode = tree.dnode(ObjType::NONE, Vec::new(), false);
                self.special.insert(object, dnode);
                Ok(())
            }
        }
    }

    /// Puts a dnode into its block, and writes the block if that was the last dnode.
    fn put(&mut self, object: u64, dnode: &Dnode) -> Result<()> {
        let blkid = object / DNODES_PER_BLOCK;
        let block = self
            .dnode_blocks
            .entry(blkid)
            .or_insert_with(|| DnodeBlock { data: BufMut::zeroed(DNODE_BLOCK_SIZE), inside: 0 });
        let at = (object % DNODES_PER_BLOCK) as usize * DNODE_SIZE;
        dnode.encode(&mut block.data[at..])?;
        block.inside += 1;
        // Object id 0 is not used.
        let all = DNODES_PER_BLOCK - u64::from(blkid == 0);
        if block.inside == all { self.write_dnodes(blkid) } else { Ok(()) }
    }

    fn write_dnodes(&mut self, blkid: u64) -> Result<()> {
        let Some(block) = self.dnode_blocks.remove(&blkid) else { return Ok(()) };
        if u64::from(self.given[blkid as usize]) != block.inside {
            return Err(Error::bug("an object was never written"));
        }
        self.meta.resize(self.given.len().max(self.meta.len()), BlkPtr::default());
        self.pipe.push(BlockJob {
            dest: Dest::Dnodes { blkid },
            object_type: ObjType::DNODE,
            level: 0,
            fill: block.inside,
            lz4: true,
            copies: META_COPIES,
            data: block.data,
        });
        Ok(())
    }

    /// Writes the remaining blocks, and the object set; returns its pointer.
    pub(crate) fn finish(&mut self) -> Result<BlkPtr> {
        self.fixed_objects()?;
        self.drain()?;
        let mut left: Vec<u64> = self.dnode_blocks.keys().copied().collect();
        left.sort_unstable();
        for blkid in left {
            self.write_dnodes(blkid)?;
        }
        self.accounting()?;
        self.drain()?;
        self.meta_dnode()?;
        self.objset()?;
        self.root_bp.ok_or_else(|| Error::bug("the object set was not written"))
    }

    /// The space after [`Fs::finish`].
    pub(crate) fn space(&self) -> crate::space::BumpSpace {
        self.pipe.space()
    }

    /// Master node, system attributes' tables, delete queue.
    fn fixed_objects(&mut self) -> Result<()> {
        fn numbers(list: &[(&'static str, u64)]) -> Vec<BulkEntry<'static>> {
            let entry = |&(name, v): &(&'static str, u64)| BulkEntry {
                name: name.as_bytes(),
                value: ZapValue::from_u64(v),
            };
            list.iter().map(entry).collect()
        }
        let master = numbers(&[
            ("VERSION", 5),
            ("ROOT", ROOT),
            ("DELETE_QUEUE", DELETE_QUEUE),
            ("SA_ATTRS", SA_MASTER),
            ("casesensitivity", 0),
            ("normalization", 0),
            ("utf8only", 0),
        ]);
        self.zap(MASTER_NODE, ObjType::MASTER_NODE, master, TreeOwner::Plain)?;
        let sa = numbers(&[("REGISTRY", REGISTRY), ("LAYOUTS", LAYOUTS)]);
        self.zap(SA_MASTER, SA_MASTER_NODE, sa, TreeOwner::Plain)?;
        self.zap(DELETE_QUEUE, ObjType::UNLINKED_SET, Vec::new(), TreeOwner::Plain)?;
        let registered = self.tables.attrs().take(REGISTERED);
        let registry: Vec<_> =
            registered.filter_map(|a| Some((a.known?.name(), a.encode()))).collect();
        self.zap(REGISTRY, SA_REGISTRATION, numbers(&registry), TreeOwner::Plain)?;
        let name = LAYOUT.to_string();
        let value = ZapValue::from_u16s(&LAYOUT_ATTRS.map(|a: ZplAttr| a as u16))
            .ok_or_else(|| Error::bug("a layout is too long"))?;
        let layout = BulkEntry { name: name.as_bytes(), value };
        self.zap(LAYOUTS, SA_LAYOUTS, vec![layout], TreeOwner::Plain)
    }

    /// Space by user and group.
    fn accounting(&mut self) -> Result<()> {
        let (users, groups) = (std::mem::take(&mut self.users), std::mem::take(&mut self.groups));
        for (object, table) in [(USER_USED, users), (GROUP_USED, groups)] {
            let names: Vec<(String, u64)> =
                table.into_iter().map(|(id, used)| (format!("{id:x}"), used)).collect();
            let entries = names.iter().map(|(name, used)| BulkEntry {
                name: name.as_bytes(),
                value: ZapValue::from_u64(*used),
            });
            self.zap(object, ObjType::USERGROUP_USED, entries.collect(), TreeOwner::Special)?;
        }
        Ok(())
    }

    fn meta_dnode(&mut self) -> Result<()> {
        let leaves = std::mem::take(&mut self.meta);
        let block = DNODE_BLOCK_SIZE as u32;
        let tree = TreeBuilder::new(ObjType::DNODE, block, leaves.len() as u64, 3, META_LEVELS);
        self.open(META, OpenTree { tree, owner: TreeOwner::Special, lz4: true })?;
        for bp in leaves {
            self.feed(META, 0, bp)?;
            self.settle()?;
        }
        self.drain()
    }

    fn objset(&mut self) -> Result<()> {
        let meta_dnode = self.special.remove(&META).ok_or_else(|| Error::bug("no meta-dnode"))?;
        let fill = meta_dnode.blkptrs.iter().map(BlkPtr::fill).sum();
        let phys = ObjsetPhys {
            size: ondisk::objset::OBJSET_SIZE,
            meta_dnode,
            zil_header: [0; ZIL_HEADER_SIZE],
            kind: ObjsetType::Zfs,
            flags: FLAG_USER_ACCOUNTED,
            portable_mac: [0; OBJSET_MAC_SIZE],
            local_mac: [0; OBJSET_MAC_SIZE],
            endian: Endian::Little,
            user_used: self.special.remove(&USER_USED),
            group_used: self.special.remove(&GROUP_USED),
            project_used: None,
        };
        self.pipe.push(BlockJob {
            dest: Dest::Objset,
            object_type: ObjType::OBJSET,
            level: 0,
            fill,
            lz4: true,
            copies: META_COPIES,
            data: BufMut::copy_of(&phys.encode()?),
        });
        self.drain()
    }
}
