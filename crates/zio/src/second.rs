//! The second tier of the cache: what it may keep, and reads from the pool's cache devices.
//!
//! A block on a cache device is named by its first address, as its pointer has it (chapter
//! 08 §G.2). The cache knows all of that but the allocated size, which follows from the
//! physical size and the vdev, except for gang blocks: there it is that of the whole tree.
//! [`GangSizes`] keeps it for gang blocks that entered the cache, and a gang block whose size
//! is not known is not written. Lock order: [`GangSizes`] is a leaf.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};

use arc::{CacheKind, TierUse};
use base::rt::Mutex;
use base::{Asize, Buf, Dva, Psize, Txg, VdevId};
use codec::checksum::Checksum;
use l2arc::{BlockId, CachePool, Geometry, PoolBlock};
use ondisk::blkptr::{Block, Protection};
use vdev::AllocClass;

use crate::read::{Verifier, kind_of};
use crate::{BlockKey, Io, Zio};

/// Which blocks of a dataset one tier of the cache may keep: `primarycache` and
/// `secondarycache`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum CacheUse {
    /// Data and metadata.
    #[default]
    All,
    /// Metadata.
    Metadata,
    /// Nothing.
    None,
}

impl CacheUse {
    /// The use by a property's number: none, metadata, all.
    pub fn of_property(number: u64) -> CacheUse {
        match number {
            0 => CacheUse::None,
            1 => CacheUse::Metadata,
            _ => CacheUse::All,
        }
    }

    /// Whether a block of this kind may be kept.
    pub fn keeps(self, kind: CacheKind) -> bool {
        match self {
            CacheUse::All => true,
            CacheUse::Metadata => kind == CacheKind::Metadata,
            CacheUse::None => false,
        }
    }
}

/// Which blocks of a dataset the tiers of the cache may keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct CacheTiers {
    /// The first tier, memory. What it may not keep passes through its queue of unread
    /// prefetches, so that read-ahead works.
    pub first: CacheUse,
    /// The second tier, cache devices. It gets only blocks that leave the first tier.
    pub second: CacheUse,
}

impl CacheTiers {
    /// Everything may be kept.
    pub const ALL: CacheTiers = CacheTiers { first: CacheUse::All, second: CacheUse::All };

    /// What the second tier may do with a block of this kind.
    pub(crate) fn usage(self, block: &Block) -> TierUse {
        let kind = kind_of(block);
        let verified = Checksum::from_id(block.checksum)
            .is_some_and(|c| !matches!(c, Checksum::Off | Checksum::NoParity));
        TierUse {
            eligible: verified && self.first.keeps(kind) && self.second.keeps(kind),
            protected: block.protection != Protection::None,
            gang: block.dva().gang,
        }
    }
}

impl PoolBlock for BlockKey {
    fn load(&self) -> u32 {
        self.load
    }

    fn id(&self) -> BlockId {
        BlockId { vdev: self.vdev, offset: self.offset, birth: self.birth }
    }
}

/// The vdevs of a pool, for its cache devices.
struct PoolGeometry(Weak<Zio>);

impl Geometry for PoolGeometry {
    fn address(&self, id: &BlockId, psize: u64, gang: bool) -> Option<Dva> {
        let zio = self.0.upgrade()?;
        let asize = match gang {
            true => zio.gangs.get(id)?,
            false => zio.tree().asize(VdevId(id.vdev), Psize(psize), Txg(id.birth)).ok()?,
        };
        Some(Dva { vdev: VdevId(id.vdev), offset: id.offset, asize, gang })
    }

    fn is_special(&self, vdev: u32) -> bool {
        let Some(zio) = self.0.upgrade() else { return false };
        let tree = zio.tree();
        tree.top(VdevId(vdev)).is_ok_and(|node| node.class() == AllocClass::Special)
    }
}

/// Most gang blocks whose sizes are kept: 3 MiB.
const GANG_SIZES_MAX: usize = 64 << 10;

/// Allocated sizes of gang blocks in the cache; the oldest are dropped beyond
/// [`GANG_SIZES_MAX`].
#[derive(Default)]
pub(crate) struct GangSizes(Mutex<GangTable>);

#[derive(Default)]
struct GangTable {
    sizes: HashMap<BlockId, Asize>,
    /// In the order of arrival; those that were freed are no longer in `sizes`.
    order: VecDeque<BlockId>,
}

impl GangSizes {
    fn get(&self, id: &BlockId) -> Option<Asize> {
        self.0.lock().sizes.get(id).copied()
    }

    fn note(&self, id: BlockId, asize: Asize) {
        let mut table = self.0.lock();
        if table.sizes.insert(id, asize).is_none() {
            table.order.push_back(id);
        }
        while table.order.len() > GANG_SIZES_MAX {
            let Some(oldest) = table.order.pop_front() else { break };
            table.sizes.remove(&oldest);
        }
    }

    fn forget(&self, id: &BlockId) {
        self.0.lock().sizes.remove(id);
    }
}

impl Zio {
    /// What the second tier may do with a block that enters the cache.
    pub(crate) fn tier_use(&self, tiers: CacheTiers, block: &Block) -> TierUse {
        let usage = tiers.usage(block);
        if usage.eligible && usage.gang && self.second.read().is_some() {
            self.gangs.note(self.key(block).id(), block.dva().asize);
        }
        usage
    }

    /// Drops the size of a gang block that was freed.
    pub(crate) fn forget_gang(&self, block: &Block) {
        if block.dva().gang {
            self.gangs.forget(&self.key(block).id());
        }
    }

    /// The pool's cache devices, if it has or had any.
    pub fn cache_devices(&self) -> Option<Arc<CachePool>> {
        self.second.read().clone()
    }

    /// The pool's cache devices, for adding one; `level` is the second tier of the cache.
    pub fn use_cache_devices(self: &Arc<Self>, level: &Arc<l2arc::SecondLevel>) -> Arc<CachePool> {
        let mut second = self.second.write();
        let new = || {
            let geometry = Arc::new(PoolGeometry(Arc::downgrade(self)));
            CachePool::new(level, self.load, geometry)
        };
        Arc::clone(second.get_or_insert_with(new))
    }

    /// Whether a cache device has the block, or will have it.
    pub(crate) fn on_cache_device(&self, block: &Block) -> bool {
        self.cache_devices().is_some_and(|pool| pool.contains(&self.key(block).id()))
    }

    /// The block as stored, from a cache device, verified.
    pub(crate) fn read_second(&self, block: &Block, io: Io) -> Option<Buf> {
        if io.caching == crate::Caching::Bypass {
            return None;
        }
        let pool = self.cache_devices()?;
        let verifier = Verifier::new(block, self.salt.get()).ok()?;
        if matches!(verifier.checksum, Checksum::Off | Checksum::NoParity) {
            return None;
        }
        let verify = |bytes: &[u8]| verifier.accepts(bytes);
        pool.read(&self.key(block).id(), block.psize.0, &verify)
    }
}
