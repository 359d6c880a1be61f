//! Object sets: from an object number to its dnode.

use std::collections::HashMap;
use std::sync::Arc;

use base::rt::Mutex;
use base::{Buf, Error, ErrorKind, ObjectId, Result};
use ondisk::dnode::{DNODE_SIZE, DNODES_PER_BLOCK, Dnode, OBJECT_SHIFT_MAX, dnodes_in_block};
use ondisk::objset::ObjsetType;
use ondisk::{BlkPtr, ObjsetPhys};
use zio::{Io, Place, Zio};

use crate::object::Object;
use crate::zfetch::walk::DNODE_BLOCKS;

/// Parsed dnodes kept per object set.
const DNODE_CACHE: usize = 4096;
const SHARDS: usize = 16;

/// An open object set.
pub struct Objset {
    zio: Arc<Zio>,
    id: u64,
    /// Its number among the object sets that this load of the pool opened.
    instance: u32,
    bp: BlkPtr,
    phys: ObjsetPhys,
    meta: Arc<Dnode>,
    dnodes: [Mutex<HashMap<u64, Arc<Dnode>>>; SHARDS],
}

impl std::fmt::Debug for Objset {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Objset({})", self.id)
    }
}

impl Objset {
    /// Opens the object set at `bp`; `id` is its number in bookmarks (0 = MOS).
    ///
    /// # Errors
    /// Those of reading the block, or `Corrupt` when it is no object set.
    pub fn open(zio: Arc<Zio>, id: u64, bp: BlkPtr, io: Io) -> Result<Arc<Objset>> {
        let block = match &bp {
            BlkPtr::Block(b) if b.head.object_type == ondisk::ObjType::OBJSET => b,
            _ => return Err(Error::corrupt("the object set's pointer is not a block of its type")),
        };
        let endian = block.endian;
        let bytes = zio.read(&bp, io)?;
        let phys = ObjsetPhys::parse(&bytes, endian)?;
        let meta = Arc::new(phys.meta_dnode.clone());
        let dnodes = std::array::from_fn(|_| Mutex::new(HashMap::new()));
        let instance = zio.next_objset();
        Ok(Arc::new(Objset { zio, id, instance, bp, phys, meta, dnodes }))
    }

    /// Its number in bookmarks: the dataset's object, or 0 for the MOS.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The place of a data block in the pipeline's hints.
    pub(crate) fn place(&self, object: ObjectId, blkid: u64) -> Place {
        Place { objset: self.instance, object: object.0, blkid }
    }

    /// The pointer it was opened from.
    pub fn root_bp(&self) -> &BlkPtr {
        &self.bp
    }

    /// The parsed block.
    pub fn phys(&self) -> &ObjsetPhys {
        &self.phys
    }

    /// What kind of object set it is.
    pub fn kind(&self) -> ObjsetType {
        self.phys.kind
    }

    /// The pipeline it reads through.
    pub fn zio(&self) -> &Arc<Zio> {
        &self.zio
    }

    /// Number of allocated objects, from the fill counts.
    pub fn object_count(&self) -> u64 {
        self.bp.fill()
    }

    /// The object whose data is the other dnodes.
    pub fn meta_object(self: &Arc<Self>) -> Object {
        Object::new(Arc::clone(self), ObjectId(0), Arc::clone(&self.meta))
    }

    /// The accounting object of users (-1), groups (-2) or projects (-3), if it exists.
    pub fn special(self: &Arc<Self>, id: i64) -> Option<Object> {
        let dnode = match id {
            -1 => self.phys.user_used.as_ref(),
            -2 => self.phys.group_used.as_ref(),
            -3 => self.phys.project_used.as_ref(),
            _ => None,
        }?;
        Some(Object::new(Arc::clone(self), ObjectId(id as u64), Arc::new(dnode.clone())))
    }

    /// Opens an object.
    ///
    /// # Errors
    /// `NotFound` when there is no such object; those of reading its dnode.
    pub fn object(self: &Arc<Self>, id: ObjectId, io: Io) -> Result<Object> {
        let dnode = self.dnode(id, io)?;
        Ok(Object::new(Arc::clone(self), id, dnode))
    }

    fn dnode(self: &Arc<Self>, id: ObjectId, io: Io) -> Result<Arc<Dnode>> {
        if id.0 == 0 || id.0 >> OBJECT_SHIFT_MAX != 0 {
            return Err(Error::not_found("no such object").in_object(id));
        }
        let shard = &self.dnodes[(id.0 as usize / 8) % SHARDS];
        if let Some(dnode) = shard.lock().get(&id.0) {
            return Ok(Arc::clone(dnode));
        }
        let dnode = Arc::new(self.read_dnode(id, io).map_err(|e| e.in_object(id))?);
        let mut cached = shard.lock();
        if cached.len() >= DNODE_CACHE / SHARDS {
            // Which half goes is as good as random; a re-read is one cache hit.
            let mut keep = false;
            cached.retain(|_, _| {
                keep = !keep;
                keep
            });
        }
        cached.insert(id.0, Arc::clone(&dnode));
        Ok(dnode)
    }

    fn read_dnode(self: &Arc<Self>, id: ObjectId, io: Io) -> Result<Dnode> {
        let block = self.dnode_block(id.0 / DNODES_PER_BLOCK, io)?;
        let want = (id.0 % DNODES_PER_BLOCK) as usize;
        let none = || Error::not_found("no such object");
        // Interior slots of large dnodes look like anything: walk to the slot.
        let mut slot = 0;
        while slot < want {
            let bytes = block.get(slot * DNODE_SIZE..).ok_or_else(none)?;
            slot += usize::from(Dnode::peek_slots(bytes).unwrap_or(1));
        }
        if slot != want {
            return Err(none());
        }
        let bytes = block.get(want * DNODE_SIZE..).ok_or_else(none)?;
        Dnode::parse(bytes, self.dnode_endian(id.0 / DNODES_PER_BLOCK, io)?)?.ok_or_else(none)
    }

    fn dnode_block(self: &Arc<Self>, blkid: u64, io: Io) -> Result<Buf> {
        self.meta_object().read_block(blkid, io)
    }

    fn dnode_endian(self: &Arc<Self>, blkid: u64, io: Io) -> Result<ondisk::Endian> {
        Ok(self.meta_object().block_pointer(0, blkid, io)?.endian())
    }

    /// The first allocated object after `after`; `None` behind the last.
    ///
    /// # Errors
    /// Those of reading the dnode blocks; `Corrupt` for an invalid dnode.
    pub fn next_object(self: &Arc<Self>, after: ObjectId, io: Io) -> Result<Option<ObjectId>> {
        let meta = self.meta_object();
        let mut next = after.0.saturating_add(1);
        while next >> OBJECT_SHIFT_MAX == 0 {
            let Some(blkid) = meta.next_data_block(next / DNODES_PER_BLOCK, io)? else {
                return Ok(None);
            };
            let first = blkid * DNODES_PER_BLOCK;
            let from = next.max(first) - first;
            let block = meta.read_block(blkid, io)?;
            let endian = self.dnode_endian(blkid, io)?;
            for (slot, dnode) in dnodes_in_block(&block, endian) {
                dnode.map_err(|e| e.in_object(ObjectId(first + slot)))?;
                if slot >= from {
                    return Ok(Some(ObjectId(first + slot)));
                }
            }
            next = first + DNODES_PER_BLOCK;
        }
        Ok(None)
    }

    /// Has the blocks with these objects' dnodes read ahead, in order, each once, as
    /// far as memory lacks them and the bounds of reading ahead allow.
    pub fn prefetch_dnodes(self: &Arc<Self>, ids: impl Iterator<Item = ObjectId>) {
        let meta = self.meta_object();
        let mut blocks: Vec<u64> = ids
            .map(|id| id.0 / DNODES_PER_BLOCK)
            .filter(|blkid| *blkid <= self.meta.max_blkid)
            .collect();
        blocks.sort_unstable();
        blocks.dedup();
        blocks.truncate(DNODE_BLOCKS);
        for blkid in blocks {
            if !meta.in_memory(blkid, Io::PREFETCH) && !meta.read_ahead(0, blkid, Io::PREFETCH) {
                return;
            }
        }
    }

    /// Forgets parsed dnodes (tests and tools that measure cold reads).
    pub fn drop_dnodes(&self) {
        for shard in &self.dnodes {
            shard.lock().clear();
        }
    }

    /// Whether an error means "the data is there but the key is not".
    pub fn is_locked(error: &Error) -> bool {
        error.kind() == ErrorKind::Locked
    }
}
