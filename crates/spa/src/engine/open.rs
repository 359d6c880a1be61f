//! Starting a [`Writer`]: over an imported pool, or over the empty MOS of a new one.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};

use base::planted::BugSwitch;
use base::rt::{Mutex, RwLock, raise_niceness, spawn};
use base::{Error, Psize, Result, Txg, VdevId};
use dsl::Mos;
use dsl::write::store::DIRECTORY;
use dsl::write::{MosRead, Ratios, features};
use metaslab::{MsDesc, Space, VdevDesc};
use ondisk::config::{PoolConfig, VdevConfig};
use ondisk::uberblock::Uberblock;
use txg::Txgs;
use vdev::{AllocClass, Tree};
use zio::{SpaceSource, Zio};

use super::block_refs::BlockRefs;
use super::clone_sources::CloneSources;
use super::ledger::Ledger;
use super::maps::Maps;
use super::outage::Outages;
use super::space_io::SpaceIo;
use super::{Plants, Published, SyncState, Writer};
use crate::block_refs::BLOCK_CLONING;
use crate::space::PoolSpace;

/// The nice value of the threads that write txgs, relative to threads with waiting callers.
/// The former use all of the processor, and a concurrent commit had to wait for them.
/// Writers that are faster than these threads are throttled, which leaves processor time to
/// them.
const NICE: u8 = 10;

/// Options of a writer.
#[derive(Clone, Debug)]
pub struct WriterOptions {
    /// Threads that compress, checksum and allocate.
    pub threads: usize,
    /// Largest sector shift of the pool's vdevs.
    pub max_ashift: u32,
    /// Metaslabs of a vdev that are written to concurrently.
    pub streams: usize,
    /// Throttle and timeout; `None` takes the defaults for this machine's memory.
    pub limits: Option<txg::Limits>,
    /// A txg waits for missing devices, until [`Writer::reopen`]. Otherwise a suspension is
    /// permanent, and property `failmode` makes no difference.
    pub resumes: bool,
    /// Planted bug: the claim of an intent log does not refer to cloned blocks.
    pub unclaimed: Arc<BugSwitch>,
    /// A planted bug: the scratch area of an expansion is not written back.
    pub lost_scratch: Arc<BugSwitch>,
}

impl Default for WriterOptions {
    fn default() -> Self {
        WriterOptions {
            threads: base::rt::parallelism(),
            max_ashift: 12,
            streams: 2,
            limits: None,
            resumes: false,
            unclaimed: Arc::default(),
            lost_scratch: Arc::default(),
        }
    }
}

pub(crate) fn class_of(class: AllocClass) -> metaslab::SpaceClass {
    match class {
        AllocClass::Normal => metaslab::SpaceClass::Normal,
        AllocClass::Log => metaslab::SpaceClass::Log,
        AllocClass::Special => metaslab::SpaceClass::Special,
        AllocClass::Dedup => metaslab::SpaceClass::Dedup,
    }
}

pub(super) fn describe(tree: &Tree, config: &VdevConfig, class: AllocClass) -> Result<VdevDesc> {
    let vdev = VdevId(config.id);
    let top = config
        .top
        .as_ref()
        .ok_or_else(|| Error::corrupt("a top-level vdev without its space").on_vdev(config.guid))?;
    let sector = 1u64 << top.ashift;
    let min = tree.min_alloc(vdev)?.0;
    let width = tree.asize(vdev, Psize(128 << 10), Txg::MAX)?.0;
    Ok(VdevDesc {
        vdev,
        class: class_of(class),
        asize: top.asize,
        ashift: top.ashift,
        ms_shift: top.metaslab_shift,
        align: if config.draid.is_some() { min.max(sector) } else { 0 },
        data_disks: data_disks(config, width),
        allocating: !top.non_allocating && !top.removing,
        metaslabs: Vec::new(),
    })
}

/// Number of disks' worth of data in a vdev.
fn data_disks(config: &VdevConfig, _width: u64) -> u64 {
    let children = config.children.len() as u64;
    match (&config.raidz, &config.draid) {
        (Some(raidz), _) => children.saturating_sub(u64::from(raidz.nparity)).max(1),
        (_, Some(draid)) => {
            let width = u64::from(draid.ndata + draid.nparity).max(1);
            (children / width).max(1) * u64::from(draid.ndata)
        }
        _ => 1,
    }
}

/// The initial parts of a writer.
pub struct Parts {
    /// The pipeline; its tree is open for writing.
    pub zio: Arc<Zio>,
    /// The MOS, live.
    pub mos: Mos,
    /// The name of the pool, perhaps a temporary one.
    pub name: String,
    /// The configuration.
    pub config: PoolConfig,
    /// The uberblock that was opened.
    pub uberblock: Uberblock,
    /// The space of an imported pool; `None` for a new one.
    pub space: Option<PoolSpace>,
    /// Roles of new vdevs.
    pub roles: BTreeMap<VdevId, Option<&'static str>>,
}

/// Assembles a writer.
///
/// # Errors
/// Those of reading space maps; `Corrupt` when they contradict each other.
pub(crate) fn assemble(parts: Parts, options: WriterOptions) -> Result<Arc<Writer>> {
    let Parts { zio, mos, name, config, uberblock, space: known, roles } = parts;
    let tree = zio.tree();
    let space = Arc::new(Space::new(options.streams));
    // Without `deflate` space is accounted as it is allocated (chapter 04 §1).
    let deflates = match &known {
        Some(_) => MosRead::zap_lookup(&mos, DIRECTORY, b"deflate")?.is_some(),
        None => true,
    };
    let mut deflate = Vec::new();
    for top in config.vdev_tree.children.iter().filter(|v| super::config::is_concrete(v)) {
        let id = VdevId(top.id);
        let class = class_for(&tree, &roles, id)?;
        let mut desc = describe(&tree, top, class)?;
        if let Some(v) = known.as_ref().and_then(|k| k.vdev(id)) {
            desc.metaslabs = v.metaslabs.iter().map(of_metaslab).collect();
        }
        let missing = (desc.asize >> desc.ms_shift) as usize;
        if desc.metaslabs.len() < missing {
            desc.metaslabs.resize(missing, MsDesc::default());
        }
        space.add_vdev(&desc, None)?;
        deflate.resize(deflate.len().max(id.0 as usize + 1), 512);
        if deflates {
            deflate[id.0 as usize] = tree.deflate_ratio(id)?;
        }
    }
    let read: &dyn MosRead = &mos;
    let maps = match &known {
        Some(k) => Maps::of_pool(read, &k.logs)?,
        None => Maps::default(),
    };
    let space_io = Arc::new(SpaceIo::new(Arc::clone(&space), &zio));
    space_io.set_mos(&mos);
    zio.set_space(Arc::clone(&space_io) as Arc<dyn SpaceSource>);
    let txgs = Arc::new(Txgs::new(uberblock.txg)?);
    if let Some(limits) = &options.limits {
        txgs.set_limits(limits);
    }
    let load = Arc::clone(&txgs);
    tree.set_write_gauge(move || {
        let (dirty_percent, awaited) = load.pressure();
        vdev::WriteLoad { dirty_percent, awaited }
    });
    let uberblock_txg = uberblock.txg;
    let outages = Outages::new(&txgs, &zio);
    if options.resumes {
        zio.set_outage(Arc::clone(&outages) as Arc<dyn zio::Outage>);
    } else {
        txgs.set_failmode(txg::FailMode::Continue);
    }
    let known_pool = known.is_some();
    let block_refs = match &known {
        Some(_) => BlockRefs::load(&mos, features::is_enabled(&mos, BLOCK_CLONING)?)?,
        None => BlockRefs::default(),
    };
    let published = Published { config: Arc::new(config.clone()), uberblock: uberblock.clone() };
    let state = SyncState {
        config,
        uberblock,
        dirty: true,
        packed: None,
        maps,
        ratios: Ratios::new(deflate.clone()),
        deflate,
        new_vdevs: roles,
        missed: Vec::new(),
        flush_all: false,
        replaces: None,
        background: known.is_some(),
        again: false,
        draining: false,
        failed: None,
    };
    let plants = Plants::default();
    let (shift, slop) = (options.max_ashift, &plants.slop);
    let ledger = Arc::new(Ledger::new(&zio, &txgs, &space, shift, deflates, slop));
    ledger.set_cloned(block_refs.tally().1);
    let block_refs = Arc::new(block_refs);
    zio.set_block_refs(Arc::clone(&block_refs) as Arc<dyn zio::BlockRefs>);
    let writer = Arc::new(Writer {
        zio,
        mos,
        name,
        txgs,
        space,
        space_io,
        options,
        state: Mutex::new(state),
        heads: Mutex::default(),
        logs: Mutex::default(),
        idle_logs: Default::default(),
        orphaned_blocks: Mutex::default(),
        first_txg: uberblock_txg.next(),
        opening: AtomicBool::new(known_pool),
        closing: AtomicBool::new(false),
        tasks: Mutex::default(),
        receives: Mutex::default(),
        datasets_in_use: Mutex::default(),
        early_tasks: Mutex::default(),
        checkpoint: Default::default(),
        removed: Default::default(),
        removal: Default::default(),
        expansion: Default::default(),
        block_refs,
        clone_sources: CloneSources::default(),
        dedup: Default::default(),
        jobs: Default::default(),
        autotrim: Default::default(),
        rebuilds: Default::default(),
        me: Default::default(),
        published: RwLock::new(published),
        names: RwLock::new(()),
        thread: Mutex::new(None),
        events: OnceLock::new(),
        rotor: AtomicU64::new(0),
        ledger,
        outages,
        resilver_request: Default::default(),
        topology: Default::default(),
        scans: Default::default(),
        stored_errors: Default::default(),
        passes: AtomicU64::new(0),
        plants,
        reused_at_once: AtomicBool::new(false),
    });
    let _once = writer.me.set(Arc::downgrade(&writer));
    let places = super::heal::WriterInUse(Arc::downgrade(&writer));
    writer.zio.set_healing(Arc::new(places));
    writer.zio.set_dedup(Arc::new(super::dedup::WriterDedup(Arc::downgrade(&writer))));
    writer.topology.set_writer(&writer);
    writer.scans.set_writer(&writer);
    writer.note_unfreed(&writer.mos)?;
    if known_pool {
        writer.resume_scan();
    }
    Ok(writer)
}

pub(super) fn class_for(
    tree: &Tree,
    roles: &BTreeMap<VdevId, Option<&'static str>>,
    id: VdevId,
) -> Result<AllocClass> {
    Ok(match roles.get(&id).copied().flatten() {
        Some("log") => AllocClass::Log,
        Some("special") => AllocClass::Special,
        Some("dedup") => AllocClass::Dedup,
        _ => tree.top(id)?.class(),
    })
}

fn of_metaslab(m: &crate::space::Metaslab) -> MsDesc {
    MsDesc { object: m.space_map, header: m.header.clone(), unflushed_txg: m.unflushed_txg }
}

impl Writer {
    /// Starts the sync thread.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(self: &Arc<Self>) -> Result<()> {
        let weak = Arc::downgrade(self);
        let txgs = Arc::clone(&self.txgs);
        let thread = spawn("txg_sync", move || {
            // An error only means that a commit beside a stream of writes waits longer.
            let _as_before = raise_niceness(NICE);
            zio::enter_sync_context();
            while let Some(txg) = txgs.next_to_sync() {
                let Some(writer) = weak.upgrade() else { return };
                writer.sync_one(txg);
            }
        })?;
        *self.thread.lock() = Some(thread);
        Ok(())
    }

    /// Marks the pool as changed: its labels are written with the next txg.
    pub fn touch(&self) {
        self.state.lock().dirty = true;
        self.txgs.dirty(self.txgs.open_txg(), 0);
    }
}
