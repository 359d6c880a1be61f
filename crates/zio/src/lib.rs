//! The I/O pipeline above the vdev tree: from block pointer to buffer and back.
//!
//! # Theory
//! A read takes these steps: hint → cache → cache devices → each address of the pointer in turn → every
//! copy and reconstruction of the vdev, until one candidate has the pointer's checksum
//! → decompression → cache. The cache holds the block as stored where that is smaller,
//! and its decompressed form as long as that pays, in the byte order of its writer;
//! consumers parse it with the pointer's [`ondisk::Endian`]. [`Hints`] lead from an
//! object's block directly to the cache's slot.
//!
//! Read-ahead reads small blocks of a run together (`read_ahead`).
//!
//! If a read finds wrong bytes on a leaf, the right ones are written there (`heal`).
//!
//! A write takes three steps: [`Zio::prepare`] (zero test, compression, checksum) →
//! [`Zio::place`] (allocation, ganging, the pointer) → [`Zio::submit`] (devices and
//! cache). [`Writes`] waits for the devices and reports lost writes.
//!
//! # Departures from OpenZFS
//! Calls block (decision 7): there is no tree of asynchronous I/Os. Concurrency comes
//! from many callers; within one block, the columns are read and written together.
//!
//! # Invariants
//! * A caller never gets bytes whose checksum was not verified, unless the pointer
//!   itself says that there is none (`checksum=off`).
//! * A request that may not wait ([`Mode::MemoryOnly`]) never uses a device.
//! * A submitted block is readable from then on, whether a device has it or not.
//! * A block that is in use is never overwritten with anything but its own bytes
//!   (`heal`).
//! * Memory for one request is bounded by the pointer's checked sizes.
//!
//! Lock order: the locks of the pointers to tree, space and [`Prefetch`] are leaves,
//! held only to clone the `Arc`.

mod block_refs;
mod dedup;
mod errlog;
mod gang;
mod heal;
mod hints;
mod outage;
pub mod prefetch;
mod read;
mod read_ahead;
mod roots;
mod scrub;
mod second;
mod ticket_lock;
mod write;

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use arc::Cache;
pub use arc::{Access, Copies};
use base::rt::RwLock;
use base::workers::Workers;
use codec::checksum::SaltTemplate;

pub use block_refs::BlockRefs;
pub use dedup::{DedupMatch, DedupMode, DedupTables};
pub use errlog::{ERRORS_MAX, ErrorEntry, ErrorLog};
pub use heal::{HealCounts, InUse, Origin, Pin};
pub use hints::{Hints, ObjectBlock};
pub use outage::{Outage, OutagePolicy, enter_sync_context};
pub use prefetch::Prefetch;
pub use read::BlockFault;
pub use read_ahead::{BATCH_BYTES, BATCHED_MAX};
pub use roots::{RootHolder, RootHolders};
pub use scrub::{CopyCheck, GangPiece};
pub use second::{CacheTiers, CacheUse};
pub use ticket_lock::{Ticket, TicketLock, chunks_in_order};
pub use write::{
    BlockChange, Class, CopyPolicy, Gangs, Lost, Outcome, PackedForm, Placed, Prepared,
    SpaceSource, Want, Write, WriteCounts, WriteProps, Writes,
};

/// A cached block's identity: pool load, first address, physical birth
/// (decision 4). Snapshots and clones share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockKey {
    /// Distinguishes pools, and loads of one pool.
    pub load: u32,
    /// Top-level vdev of the first address.
    pub vdev: u32,
    /// Byte offset of the first address.
    pub offset: u64,
    /// Effective physical birth.
    pub birth: u64,
}

/// Whether a call may wait for a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Mode {
    /// Read from the device if the block is not in memory.
    #[default]
    MayWait,
    /// Answer from memory, or return `WouldBlock`.
    MemoryOnly,
}

/// How a read uses the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Caching {
    /// Look up the block and keep it.
    #[default]
    Keep,
    /// Neither look up nor store (scrub, `zdb -c`).
    Bypass,
    /// Look up the block, but a layer above keeps its content (the kernel's page
    /// cache): record the access without holding the block twice.
    Remember,
}

/// The options of a read, passed from the caller down to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Io {
    /// Whether the call may wait.
    pub mode: Mode,
    /// How to use the cache.
    pub caching: Caching,
    /// The kind of access, for the cache's statistics.
    pub access: Access,
    /// Whether the caller copies the result (for the counters).
    pub copies: Copies,
    /// How the caller obtained the pointer; determines whether the read may heal.
    pub origin: Origin,
    /// What to do when devices are absent.
    pub outage: OutagePolicy,
    /// Which blocks the tiers of the cache may keep.
    pub tiers: CacheTiers,
    /// Encrypted blocks are returned in their stored form, past the cache; otherwise they cannot
    /// be read.
    pub stored: bool,
}

impl Io {
    /// The ordinary blocking read. It fails when devices are absent.
    pub const WAIT: Io = Io {
        mode: Mode::MayWait,
        caching: Caching::Keep,
        access: Access::Demand,
        copies: Copies::No,
        origin: Origin::Unknown,
        outage: OutagePolicy::Fail,
        tiers: CacheTiers::ALL,
        stored: false,
    };
    /// A blocking read of the sync thread: it waits for absent devices.
    pub const SYNC: Io = Io { outage: OutagePolicy::WaitAlways, ..Io::WAIT };
    /// Answer from memory or `WouldBlock`.
    pub const MEMORY: Io = Io { mode: Mode::MemoryOnly, ..Io::WAIT };
    /// A blocking read that bypasses the cache.
    pub const SCAN: Io = Io { caching: Caching::Bypass, ..Io::WAIT };
    /// A read into the cache of a block that may be needed soon.
    pub const PREFETCH: Io = Io { access: Access::Prefetch, ..Io::WAIT };
    /// A read into the cache of a block that will certainly be needed.
    pub const PRESCIENT: Io = Io { access: Access::Prescient, ..Io::WAIT };

    /// The same read, by a pointer of this origin.
    #[must_use]
    pub fn by(self, origin: Origin) -> Io {
        Io { origin, ..self }
    }

    /// The same read of a block that the tiers may keep as they say.
    #[must_use]
    pub fn in_tiers(self, tiers: CacheTiers) -> Io {
        Io { tiers, ..self }
    }

    /// The same read, with this policy for absent devices.
    #[must_use]
    pub const fn with_outage(self, outage: OutagePolicy) -> Io {
        Io { outage, ..self }
    }

    /// The same read, of encrypted blocks in their stored form.
    #[must_use]
    pub const fn as_stored(self) -> Io {
        Io { stored: true, ..self }
    }

    /// The same read, from memory only.
    pub fn from_memory(self) -> Io {
        Io { mode: Mode::MemoryOnly, ..self }
    }
}

/// The block cache.
pub type BlockCache = Cache<BlockKey>;

/// Called with the old and the new vdev tree ([`Zio::set_tree_observer`]).
pub type TreeObserver = Box<dyn Fn(&vdev::Tree, &vdev::Tree) + Send + Sync>;

/// The pipeline of one imported pool.
pub struct Zio {
    tree: RwLock<Arc<vdev::Tree>>,
    observer: OnceLock<TreeObserver>,
    cache: Arc<BlockCache>,
    load: u32,
    salt: OnceLock<SaltTemplate>,
    dynamic_gang: AtomicBool,
    background: Workers,
    hints: Hints,
    objsets: AtomicU32,
    prefetch: RwLock<Arc<Prefetch>>,
    space: RwLock<Option<Arc<dyn SpaceSource>>>,
    block_refs: RwLock<Option<Arc<dyn BlockRefs>>>,
    dedup: RwLock<Option<Arc<dyn DedupTables>>>,
    in_flight: write::in_flight::InFlightBlocks,
    outage: RwLock<Option<Arc<dyn Outage>>>,
    errors: ErrorLog,
    healing: heal::Healing,
    placed: write::PlacedCounts,
    roots: RootHolders,
    /// The pool's cache devices.
    second: RwLock<Option<Arc<l2arc::CachePool>>>,
    gangs: second::GangSizes,
    /// Takes writes instead of the tree, in tests.
    sink: RwLock<Option<Arc<dyn write::Sink>>>,
}

/// Read-ahead threads of one pool, and blocks that may wait for them.
const BACKGROUND_THREADS: usize = 16;
const BACKGROUND_JOBS: usize = 512;

static LOADS: AtomicU32 = AtomicU32::new(1);

/// A unique number for a load. In a simulated run it depends only on the run; otherwise
/// the slots of blocks in the cache would differ between runs of the same seed.
fn next_load() -> u32 {
    match base::rt::sim::inside() {
        true => base::rt::sim::steps() as u32,
        false => LOADS.fetch_add(1, Relaxed),
    }
}

impl Zio {
    /// A pipeline over `tree`, caching in `cache`.
    pub fn new(tree: Arc<vdev::Tree>, cache: Arc<BlockCache>) -> Zio {
        let hints = Hints::for_cache(cache.config().arc_max);
        Zio {
            hints,
            objsets: AtomicU32::new(0),
            tree: RwLock::new(tree),
            observer: OnceLock::new(),
            cache,
            load: next_load(),
            salt: OnceLock::new(),
            dynamic_gang: AtomicBool::new(false),
            background: Workers::new("read-ahead", BACKGROUND_THREADS, BACKGROUND_JOBS),
            prefetch: RwLock::default(),
            space: RwLock::new(None),
            block_refs: RwLock::new(None),
            dedup: RwLock::new(None),
            in_flight: write::in_flight::InFlightBlocks::default(),
            outage: RwLock::new(None),
            errors: ErrorLog::default(),
            healing: heal::Healing::default(),
            placed: write::PlacedCounts::default(),
            roots: RootHolders::default(),
            second: RwLock::new(None),
            gangs: second::GangSizes::default(),
            sink: RwLock::new(None),
        }
    }

    /// The vdev tree with which a new I/O begins (decision 6).
    pub fn tree(&self) -> Arc<vdev::Tree> {
        Arc::clone(&self.tree.read())
    }

    /// Publishes a changed vdev tree; I/O in flight keeps the old one.
    pub fn set_tree(&self, tree: Arc<vdev::Tree>) {
        let old = std::mem::replace(&mut *self.tree.write(), Arc::clone(&tree));
        if let Some(observer) = self.observer.get() {
            observer(&old, &tree);
        }
    }

    /// Sets what is called with the old and the new tree after each change; only the first
    /// call has an effect. It must not change the tree.
    pub fn set_tree_observer(&self, observer: TreeObserver) {
        let _ = self.observer.set(observer);
    }

    /// Publishes a changed vdev tree, unless another one was published since `old` was taken;
    /// false then.
    pub fn replace_tree(&self, old: &Arc<vdev::Tree>, tree: Arc<vdev::Tree>) -> bool {
        {
            let mut now = self.tree.write();
            if !Arc::ptr_eq(&now, old) {
                return false;
            }
            *now = Arc::clone(&tree);
        }
        if let Some(observer) = self.observer.get() {
            observer(old, &tree);
        }
        true
    }

    /// The read-ahead threads of this pool.
    pub fn background(&self) -> &Workers {
        &self.background
    }

    /// The cache that serves this pool.
    pub fn cache(&self) -> &Arc<BlockCache> {
        &self.cache
    }

    /// The table of cache slots of objects' blocks.
    pub fn hints(&self) -> &Hints {
        &self.hints
    }

    /// The object sets that are open for reading alone.
    pub fn roots(&self) -> &RootHolders {
        &self.roots
    }

    /// Blocks that could not be read since the pool was opened.
    pub fn errors(&self) -> &ErrorLog {
        &self.errors
    }

    /// A unique number for an object set that was just opened, for its [`ObjectBlock`]s.
    pub fn next_objset(&self) -> u32 {
        self.objsets.fetch_add(1, Relaxed)
    }

    /// Sets the pool's 32-byte checksum salt (chapter 02 §5.8), once for each load.
    pub fn set_salt(&self, salt: &[u8; 32]) {
        let _ = self.salt.set(SaltTemplate::new(salt));
    }

    /// Sets whether feature `dynamic_gang_header` is active: gang headers may then be
    /// larger than 512 bytes.
    pub fn set_dynamic_gang(&self, on: bool) {
        self.dynamic_gang.store(on, Relaxed);
    }
}
