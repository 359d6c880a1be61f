//! Object sets: from an object id to its dnode.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};

use base::ids::{ID_RUN, IdMap};
use base::rt::{Mutex, RwLock};
use base::{Buf, Error, ErrorKind, ObjectId, Result, Txg};
use ondisk::blkptr::Protection;
use ondisk::dnode::{DNODE_SIZE, DNODES_PER_BLOCK, Dnode, OBJECT_SHIFT_MAX, dnodes_in_block};
use ondisk::objset::ObjsetType;
use ondisk::{BlkPtr, ObjsetPhys};
use zio::{CacheTiers, Io, ObjectBlock, Origin, RootHolder, Zio};

use crate::live::{LiveObjset, ObjsetProps, merged};
use crate::object::Object;
use crate::zfetch::walk::DNODE_BLOCKS;

/// Parsed dnodes kept per object set.
const DNODE_CACHE: usize = 4096;
const SHARDS: usize = 16;

/// The state that a written txg replaces as a whole.
pub(crate) struct OnDisk {
    pub(crate) bp: BlkPtr,
    pub(crate) phys: Arc<ObjsetPhys>,
    pub(crate) meta: Arc<Dnode>,
}

/// An open object set.
pub struct Objset {
    zio: Arc<Zio>,
    id: u64,
    /// Its index among the object sets that this load of the pool opened.
    instance: u32,
    disk: RwLock<Arc<OnDisk>>,
    dnodes: [Mutex<IdMap<u64, Arc<Dnode>>>; SHARDS],
    live: Option<LiveObjset>,
    /// Which tiers of the cache may keep its blocks.
    tiers: RwLock<CacheTiers>,
    /// Blocks of encrypted dnodes are read as they are stored.
    stored: bool,
    /// Of a snapshot whose blocks may be cloned: whether that has ended.
    clones_ended: OnceLock<Arc<AtomicBool>>,
    /// It is open for reading alone, and blocks of its tree were moved since.
    relocated: AtomicBool,
}

impl std::fmt::Debug for Objset {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Objset({})", self.id)
    }
}

impl Objset {
    /// Opens the object set at `bp`; `id` is its id in bookmarks (0 = MOS).
    ///
    /// # Errors
    /// Those of reading the block, or `Corrupt` when it is no object set.
    pub fn open(zio: Arc<Zio>, id: u64, bp: BlkPtr, io: Io) -> Result<Arc<Objset>> {
        let block = match &bp {
            BlkPtr::Block(b) if b.head.object_type == ondisk::ObjType::OBJSET => b,
            _ => return Err(Error::corrupt("the object set's pointer is not a block of its type")),
        };
        let endian = block.endian;
        let origin = Origin::Root(id, block.place());
        let bytes = zio.read(&bp, io.by(origin))?;
        let phys = ObjsetPhys::parse(&bytes, endian)?;
        Ok(Self::build(zio, id, bp, phys, None).listed())
    }

    /// Lists it among those that learn of moves of their root.
    fn listed(self) -> Arc<Objset> {
        let os = Arc::new(self);
        let holder = Arc::downgrade(&os) as std::sync::Weak<dyn RootHolder>;
        os.zio.roots().add(holder);
        os
    }

    /// As [`Objset::open`]. If it is that of an encrypted dataset, dnodes are read without a key:
    /// what is encrypted of their bonus buffers stays so.
    ///
    /// # Errors
    /// As [`Objset::open`].
    pub fn open_stored(zio: Arc<Zio>, id: u64, bp: BlkPtr, io: Io) -> Result<Arc<Objset>> {
        let os = Self::open(zio, id, bp, io)?;
        Ok(match Arc::try_unwrap(os) {
            Ok(os) => Objset { stored: true, ..os }.listed(),
            Err(shared) => shared,
        })
    }

    /// How its own reads of blocks of dnodes are made.
    pub(crate) fn dnode_io(&self, io: Io) -> Io {
        if self.stored { io.as_stored() } else { io }
    }

    /// As [`Objset::open`], for writing. An object set must not be open for writing twice. That
    /// of an encrypted dataset is sealed: it can be changed only by raw streams.
    ///
    /// # Errors
    /// As [`Objset::open`].
    pub fn open_live(
        zio: Arc<Zio>,
        id: u64,
        bp: BlkPtr,
        props: ObjsetProps,
        io: Io,
    ) -> Result<Arc<Objset>> {
        let read_only = Self::open(Arc::clone(&zio), id, bp, io)?;
        let phys = read_only.phys();
        let sealed = matches!(&bp, BlkPtr::Block(root) if root.protection != Protection::None);
        let live = LiveObjset::new(ObjsetProps { sealed, ..props });
        Ok(Arc::new(Self::build(zio, id, bp, (*phys).clone(), Some(live))))
    }

    /// A new, empty object set; it is on disk after its first sync.
    pub fn create(zio: Arc<Zio>, id: u64, kind: ObjsetType, props: ObjsetProps) -> Arc<Objset> {
        Self::create_with(zio, id, kind, props, &|_| {})
    }

    /// The same, with changes of the empty object set.
    pub(crate) fn create_with(
        zio: Arc<Zio>,
        id: u64,
        kind: ObjsetType,
        props: ObjsetProps,
        edit: &dyn Fn(&mut ObjsetPhys),
    ) -> Arc<Objset> {
        let mut phys = crate::live::sync::empty_objset(kind, &props);
        edit(&mut phys);
        Arc::new(Self::build(zio, id, BlkPtr::default(), phys, Some(LiveObjset::new(props))))
    }

    fn build(
        zio: Arc<Zio>,
        id: u64,
        bp: BlkPtr,
        phys: ObjsetPhys,
        live: Option<LiveObjset>,
    ) -> Objset {
        let meta = Arc::new(phys.meta_dnode.clone());
        let dnodes = std::array::from_fn(|_| Mutex::default());
        let instance = zio.next_objset();
        let disk = RwLock::new(Arc::new(OnDisk { bp, phys: Arc::new(phys), meta }));
        let tiers = live.as_ref().map_or(CacheTiers::ALL, |live| live.props().tiers);
        let stored = live.as_ref().is_some_and(LiveObjset::is_sealed);
        let (tiers, clones_ended) = (RwLock::new(tiers), OnceLock::new());
        let relocated = AtomicBool::new(false);
        Objset { zio, id, instance, disk, dnodes, live, tiers, stored, clones_ended, relocated }
    }

    /// Lets blocks of this object set, a snapshot's, be cloned until `ended` is set. That happens
    /// before blocks of the snapshot are freed ([`Objset::clone_block`]). Only the first call has
    /// an effect.
    pub fn allow_clones(&self, ended: Arc<AtomicBool>) {
        let _first = self.clones_ended.set(ended);
    }

    /// Whether blocks of an object set that is not open for writing must not be cloned, or no
    /// more.
    pub(crate) fn has_ended_clones(&self) -> bool {
        self.clones_ended.get().is_none_or(|ended| ended.load(SeqCst))
    }

    /// Sets which tiers of the cache may keep the blocks that are read from now on.
    pub fn set_tiers(&self, tiers: CacheTiers) {
        *self.tiers.write() = tiers;
    }

    /// Which tiers of the cache may keep its blocks.
    pub fn tiers(&self) -> CacheTiers {
        *self.tiers.read()
    }

    /// Whether dnodes that were read earlier may lead to blocks that have moved since.
    pub(crate) fn has_moved(&self) -> bool {
        self.live.is_some() || self.relocated.load(SeqCst)
    }

    pub(crate) fn live_part(&self) -> Option<&LiveObjset> {
        self.live.as_ref()
    }

    /// The origin of the pointers in the tree that the caller fetches after this call.
    pub(crate) fn origin(&self) -> Origin {
        match &self.live {
            Some(live) => match self.zio.healing_since() {
                // A dataset's blocks are freed only after it was marked as destroyed.
                Some(since) if !live.is_destroyed() => Origin::Tree(since),
                _ => Origin::Unknown,
            },
            None => match self.disk.read().bp.as_block() {
                Some(root) => Origin::Root(self.id, root.place()),
                None => Origin::Unknown,
            },
        }
    }

    pub(crate) fn on_disk(&self) -> Arc<OnDisk> {
        Arc::clone(&self.disk.read())
    }

    /// Replaces the tree of dnodes, in which these blocks changed. The hints of the changed
    /// blocks are dropped before readers can find the new tree.
    pub(crate) fn exchange(&self, new: OnDisk, blocks: impl Iterator<Item = u64>) {
        let mut disk = self.disk.write();
        for blkid in blocks {
            self.zio.hints().forget(self.hint_key(ObjectId(0), blkid));
        }
        *disk = Arc::new(new);
    }

    /// Caches an object's dnode as it now is on disk.
    pub(crate) fn remember(&self, id: u64, dnode: Option<Arc<Dnode>>) {
        let mut shard = self.dnodes[(id / ID_RUN) as usize % SHARDS].lock();
        match dnode {
            Some(dnode) => keep(&mut shard, id, dnode),
            None => drop(shard.remove(&id)),
        }
    }

    /// Its id in bookmarks: the dataset's object, or 0 for the MOS.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The key of a data block in the pipeline's hints.
    pub(crate) fn hint_key(&self, object: ObjectId, blkid: u64) -> ObjectBlock {
        ObjectBlock { objset: self.instance, object: object.0, blkid }
    }

    /// The pointer to it: the one that it was opened from, or that of the last written txg.
    pub fn root_bp(&self) -> BlkPtr {
        self.disk.read().bp
    }

    /// The parsed block.
    pub fn phys(&self) -> Arc<ObjsetPhys> {
        Arc::clone(&self.disk.read().phys)
    }

    /// What kind of object set it is.
    pub fn kind(&self) -> ObjsetType {
        self.disk.read().phys.kind
    }

    /// The pipeline it reads through.
    pub fn zio(&self) -> &Arc<Zio> {
        &self.zio
    }

    /// The number of allocated objects, from the fill counts.
    pub fn object_count(&self) -> u64 {
        self.root_bp().fill()
    }

    /// The object whose data are the other dnodes.
    pub fn meta_object(self: &Arc<Self>) -> Object {
        let meta = Arc::clone(&self.disk.read().meta);
        Object::new(Arc::clone(self), ObjectId(0), meta)
    }

    /// The accounting object of users (-1), groups (-2) or projects (-3), if it exists.
    pub fn special(self: &Arc<Self>, id: i64) -> Option<Object> {
        let dnode = self.special_dnode(ObjectId(id as u64))?;
        Some(Object::new(Arc::clone(self), ObjectId(id as u64), dnode))
    }

    /// The dnode of an object whose dnode is in the object set block.
    fn special_dnode(&self, id: ObjectId) -> Option<Arc<Dnode>> {
        if let Some(Some(dnode)) = self.dirty_dnode(id) {
            return Some(dnode);
        }
        let disk = self.on_disk();
        match id.0 as i64 {
            0 => return Some(Arc::clone(&disk.meta)),
            -1 => disk.phys.user_used.as_ref(),
            -2 => disk.phys.group_used.as_ref(),
            -3 => disk.phys.project_used.as_ref(),
            _ => None,
        }
        .map(|dnode| Arc::new(dnode.clone()))
    }

    /// The dnode as unwritten txgs left it: `None` if none changed it, `Some(None)` if they
    /// freed it.
    fn dirty_dnode(&self, id: ObjectId) -> Option<Option<Arc<Dnode>>> {
        let handle = self.live.as_ref()?.find(id)?;
        let mut inner = handle.state.lock();
        if let Some(dnode) = &inner.merged {
            return Some(Some(Arc::clone(dnode)));
        }
        let slot = inner.newest(Txg::MAX)?;
        if !slot.head.allocated {
            return Some(None);
        }
        let disk = inner.disk.as_deref();
        let flags = disk.map_or(0, |d| d.flags);
        let dnode = Arc::new(merged(&slot.head, disk, flags));
        inner.merged = Some(Arc::clone(&dnode));
        Some(Some(dnode))
    }

    /// The dnode as the last written txg left it; `None` if it is not on disk.
    ///
    /// # Errors
    /// Those of reading its block.
    pub(crate) fn disk_dnode(self: &Arc<Self>, id: ObjectId, io: Io) -> Result<Option<Arc<Dnode>>> {
        if id.0 == 0 || id.0 as i64 >= -3 && (id.0 as i64) < 0 {
            let disk = self.on_disk();
            let special = match id.0 as i64 {
                0 => return Ok(Some(Arc::clone(&disk.meta))),
                -1 => &disk.phys.user_used,
                -2 => &disk.phys.group_used,
                _ => &disk.phys.project_used,
            };
            return Ok(special.as_ref().map(|d| Arc::new(d.clone())));
        }
        // A dirty object's handle has its dnode, or records that there is none yet.
        if let Some(handle) = self.live.as_ref().and_then(|live| live.find(id)) {
            let inner = handle.state.lock();
            if !inner.dead {
                return Ok(inner.disk.clone());
            }
        }
        match self.clean_dnode(id, io) {
            Ok(dnode) => Ok(Some(dnode)),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    pub(crate) fn disk_object(self: &Arc<Self>, id: ObjectId, dnode: Arc<Dnode>) -> Object {
        Object::new(Arc::clone(self), id, dnode)
    }

    /// Opens an object, or one of those in the object set block.
    pub(crate) fn any_object(self: &Arc<Self>, id: ObjectId, io: Io) -> Result<Object> {
        if id.0 >> OBJECT_SHIFT_MAX == 0 {
            return self.object(id, io);
        }
        self.special(id.0 as i64).ok_or_else(|| Error::not_found("no such object").in_object(id))
    }

    /// The pointers of data blocks `[first, past)` changed.
    pub(crate) fn forget_hints(&self, id: ObjectId, first: u64, past: u64) {
        self.zio.hints().forget_range(self.hint_key(id, first), past);
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
        match self.dirty_dnode(id) {
            Some(Some(dnode)) => Ok(dnode),
            Some(None) => Err(Error::not_found("no such object").in_object(id)),
            None => self.clean_dnode(id, io),
        }
    }

    fn clean_dnode(self: &Arc<Self>, id: ObjectId, io: Io) -> Result<Arc<Dnode>> {
        if id.0 == 0 || id.0 >> OBJECT_SHIFT_MAX != 0 {
            return Err(Error::not_found("no such object").in_object(id));
        }
        let shard = &self.dnodes[(id.0 / ID_RUN) as usize % SHARDS];
        if let Some(dnode) = shard.lock().get(&id.0) {
            return Ok(Arc::clone(dnode));
        }
        let before = self.on_disk();
        let dnode = self.read_dnode(id, io);
        let mut cached = shard.lock();
        if !Arc::ptr_eq(&before, &self.on_disk()) {
            // A txg was written meanwhile. The dnode just read may be stale, or mix two
            // versions.
            drop(cached);
            return self.clean_dnode(id, io);
        }
        let dnode = Arc::new(dnode.map_err(|e| e.in_object(id))?);
        keep(&mut cached, id.0, Arc::clone(&dnode));
        Ok(dnode)
    }

    fn read_dnode(self: &Arc<Self>, id: ObjectId, io: Io) -> Result<Dnode> {
        let block = self.dnode_block(id.0 / DNODES_PER_BLOCK, io)?;
        let want = (id.0 % DNODES_PER_BLOCK) as usize;
        let none = || Error::not_found("no such object");
        // Interior slots of large dnodes can hold any bytes, so the search walks from slot
        // to slot.
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

    /// Starts reads of the blocks with these objects' dnodes, in order, each once, if they
    /// are not in memory and the prefetch bounds allow.
    pub fn prefetch_dnodes(self: &Arc<Self>, ids: impl Iterator<Item = ObjectId>) {
        let meta = self.meta_object();
        let mut blocks: Vec<u64> = ids
            .map(|id| id.0 / DNODES_PER_BLOCK)
            .filter(|blkid| *blkid <= meta.dnode().max_blkid)
            .collect();
        blocks.sort_unstable();
        blocks.dedup();
        blocks.truncate(DNODE_BLOCKS);
        let absent = blocks.into_iter().filter(|blkid| !meta.in_memory(*blkid, Io::PREFETCH));
        meta.read_ahead(0, absent, Io::PREFETCH);
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

impl RootHolder for Objset {
    fn root(&self) -> (u64, BlkPtr) {
        (self.id, self.root_bp())
    }

    /// Readers that hold dnodes find the new ones from then on. One that holds a pointer finds
    /// its block at the old place as long as that is not used again, and begins again after
    /// an error.
    fn move_root(&self, to: &BlkPtr) -> Result<()> {
        if self.live.is_some() {
            return Err(base::bug!("the root of an object set that is open for writing"));
        }
        let bytes = self.zio.read(to, Io::SYNC)?;
        let phys = ObjsetPhys::parse(&bytes, to.endian())?;
        let meta = Arc::new(phys.meta_dnode.clone());
        self.relocated.store(true, SeqCst);
        self.exchange(OnDisk { bp: *to, phys: Arc::new(phys), meta }, std::iter::empty());
        self.drop_dnodes();
        Ok(())
    }
}

/// Puts a dnode into its shard. From a full shard half of the entries are evicted.
fn keep(shard: &mut IdMap<u64, Arc<Dnode>>, id: u64, dnode: Arc<Dnode>) {
    if shard.len() >= DNODE_CACHE / SHARDS && !shard.contains_key(&id) {
        // The choice of the half is as good as random; a re-read costs one cache hit.
        let mut stays = false;
        shard.retain(|_, _| {
            stays = !stays;
            stays
        });
    }
    shard.insert(id, dnode);
}
