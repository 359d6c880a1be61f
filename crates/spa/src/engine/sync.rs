//! Writing one txg (chapter 05 §9).
//!
//! # Theory
//! Pass 1 runs the early tasks (`checkpoint`), writes the dirty datasets, runs the sync tasks, and writes the datasets that
//! these created. Then, in every pass: blocks that the MOS released in the previous pass
//! are freed and its space is accounted; the metaslabs' changes are stored; the
//! configuration is written if it changed; and the MOS is written. Writing the MOS changes
//! metaslabs and accounting, which must be stored, which changes the MOS again. The txg is
//! complete when a pass leaves the MOS clean.
//!
//! # Why the passes end
//! A pass is followed by another one only if its writing of the MOS allocated or freed
//! space. (A failed leaf adds one pass for each leaf: its missing txg is noted once.) So it
//! is enough that some pass rewrites every block in place. In pass p the MOS allocates only
//! for
//! 1. a block that becomes dirty for the first time in the txg;
//! 2. a block whose stored size changed;
//! 3. a block that did not exist before.
//!
//! Every other dirty block was born in this txg, and is rewritten in place. This is true
//! for gang blocks as well: the txg keeps their trees ([`Gangs`]), so the same headers and
//! members are written again and nothing is allocated. (They once got new addresses in each
//! pass. A pool so fragmented that 128 KiB was available only as a gang then never
//! completed a txg: the log that recorded the new addresses was itself a gang.)
//!
//! *Sizes* stop changing in pass [`PASS_SETTLE`], which turns compression off: each block
//! changes its size at most once more.
//!
//! *First-time blocks* end in the same pass. Datasets, tasks, flushes of logged changes and
//! condensing belong to pass 1 alone. Later passes store accounting (`$MOS` and its
//! parents, dirty since pass 2), the configuration (once), and the changes of metaslabs.
//! The changes of a metaslab that had none before dirty the dnode of its map, and its word
//! in the array of unflushed txgs; without log space maps, the last block of its own map. A
//! pool has finitely many metaslabs, but a fragmented pool could use a few new ones in
//! every pass. Therefore pass [`PASS_SETTLE`] makes all these blocks dirty at once
//! (`Writer::settle_maps`). Loading a metaslab only reads.
//!
//! The frees of deduplicated blocks, and what they change in tables, belong to pass 1 as well
//! (`dedup`).
//!
//! *New blocks* after that are the next block of the txg's log (or of a map with a full
//! last block), its indirect blocks, and the map of a metaslab that was never used. The
//! last needs a whole free metaslab, which then satisfies all later allocations. The log
//! grows by 16 bytes for each segment that a pass allocated or freed. Even if every sector
//! is a segment of its own, a block of 128 KiB in three copies takes at most 1,160 segments
//! (256 members and 129 headers, thrice), that is 18 KiB of log. So from [`PASS_SETTLE`] on
//! each pass makes at most a seventh of the log blocks of the pass before, and after a few
//! passes none. Frees end with the allocations: each pass frees only blocks that it
//! replaced. Without log space maps they wait for the next txg, and the list of them grows
//! by 128 bytes for each block.
//!
//! [`PASSES_EXPECTED`] is asserted in debug builds; [`PASSES_MAX`] only limits the damage
//! of an error in this argument.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use base::{Error, Result, Txg, VdevId};
use codec::compress::Compression;
use dmu::{Events, Objset, ObjsetProps, Pending, SyncCtx, Tx};
use dsl::Mos;
use dsl::write::store::DIRECTORY;
use dsl::write::{Delta, MosRead, Ratios, SyncCx, Usage, accounting, background, bpobj, features};
use ondisk::BlkPtr;
use ondisk::bpobj::BpobjEntry;
use ondisk::objset::ZIL_HEADER_SIZE;
use txg::IoTotals;
use vdev::{IoCounts, WritePriority};
use zio::{Gangs, Lost, Writes};

use super::heads::HeadEvents;
use super::maps::{HISTOGRAM, LOG_SPACEMAP, SPACEMAP_V2};
use super::store::Store;
use super::tasks::{SyncTask, TaskCx};
use super::{SyncState, Writer};
use crate::block_refs::BLOCK_CLONING;
use crate::dedup::FAST_DEDUP;

/// Txgs after which a metaslab that nothing is allocated from is unloaded.
const UNLOAD_IDLE: u64 = 64;
/// Free ranges of loaded metaslabs in memory; above that the metaslabs that were used longest ago
/// are unloaded.
const FREE_RANGES_MAX: usize = 4 << 20;
/// From this pass on blocks of the txg are rewritten in place.
const PASS_REWRITE: u32 = 2;
/// From this pass on, without logs of space maps, frees wait for the next txg.
const PASS_DEFER_FREES: u32 = 2;
/// From this pass on nothing is compressed, and every block that storing the metaslabs'
/// changes may touch belongs to the txg.
const PASS_SETTLE: u32 = 8;
/// No txg needs more passes.
const PASSES_EXPECTED: u32 = 15;
/// A txg that needs more passes than this fails.
const PASSES_MAX: u32 = 40;
/// Blocks freed in the background by one txg.
const BACKGROUND_BLOCKS: u64 = 100_000;

/// Features that determine how blocks are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// `log_spacemap` is enabled.
    pub logs: bool,
    /// `spacemap_v2` is active.
    pub v2: bool,
    /// `spacemap_histogram` is enabled.
    pub histogram: bool,
    /// `hole_birth` is active.
    pub hole_birth: bool,
    /// `embedded_data` is active.
    pub embed: bool,
    /// `lz4_compress` is active.
    pub lz4: bool,
    /// The pool's version is 15 or newer: space is accounted to owners. Known to tasks alone.
    pub owners: bool,
    /// `userobj_accounting` is enabled.
    pub userobj: bool,
    /// `project_quota` is enabled.
    pub project: bool,
    /// `block_cloning` is enabled.
    pub cloning: bool,
    /// `fast_dedup` is enabled.
    pub fast_dedup: bool,
    /// There are special vdevs.
    pub special: bool,
}

impl Flags {
    pub(crate) fn load(mos: &dyn MosRead) -> Result<Flags> {
        match mos.directory("features_for_write") {
            Ok(Some(_)) => {}
            Ok(None) => return Ok(Flags::default()),
            // The MOS of a pool that is being created.
            Err(e) if e.kind() == base::ErrorKind::NotFound => return Ok(Flags::default()),
            Err(e) => return Err(e),
        }
        Ok(Flags {
            logs: features::is_enabled(mos, LOG_SPACEMAP)?,
            v2: features::is_active(mos, SPACEMAP_V2)?,
            histogram: features::is_enabled(mos, HISTOGRAM)?,
            hole_birth: features::is_active(mos, "com.delphix:hole_birth")?,
            embed: features::is_active(mos, "com.delphix:embedded_data")?,
            lz4: features::is_active(mos, "org.illumos:lz4_compress")?,
            owners: true,
            userobj: features::is_enabled(mos, "org.zfsonlinux:userobj_accounting")?,
            project: features::is_enabled(mos, "org.zfsonlinux:project_quota")?,
            cloning: features::is_enabled(mos, BLOCK_CLONING)?,
            fast_dedup: features::is_enabled(mos, FAST_DEDUP)?,
            special: features::is_active(mos, "org.zfsonlinux:allocation_classes")?,
        })
    }

    /// `props` restricted to a pool with these features.
    pub(super) fn limit(&self, props: ObjsetProps) -> ObjsetProps {
        let known = |compression| match compression {
            Compression::Lz4 if !self.lz4 => Compression::Lzjb,
            other => other,
        };
        ObjsetProps {
            compression: known(props.compression),
            metadata_compression: known(props.metadata_compression),
            special: props.special && self.special,
            embed: props.embed && self.embed,
            hole_birth: props.hole_birth && self.hole_birth,
            count_objects: props.count_objects && self.userobj,
            count_projects: props.count_projects && self.project,
            ..props
        }
    }
}

/// One pass over one txg.
pub(super) struct SyncPass<'a> {
    pub(super) txg: Txg,
    pub(super) pass: u32,
    pub(super) tx: &'a Tx,
    pub(super) cx: &'a SyncCx<'a>,
    /// The sync thread's handle of the MOS.
    pub(super) mos: &'a Mos,
    pub(super) flags: Flags,
    /// ZAPs of the top-level vdevs.
    pub(super) zaps: Vec<(VdevId, u64)>,
}

impl SyncPass<'_> {
    pub(super) fn top_zap(&self, vdev: VdevId) -> Option<u64> {
        self.zaps.iter().find(|(v, _)| *v == vdev).map(|(_, zap)| *zap)
    }
}

/// Handles the births and deaths of the MOS's blocks in a pass.
struct MosEvents<'a> {
    ratios: &'a Ratios,
    usage: Usage,
    killed: Vec<BlkPtr>,
}

impl Events for MosEvents<'_> {
    fn born(&mut self, bp: &BlkPtr) -> Result<()> {
        self.usage += self.ratios.space_of(bp);
        Ok(())
    }
    fn killed(&mut self, bp: &BlkPtr) -> Result<()> {
        self.usage -= self.ratios.space_of(bp);
        self.killed.push(*bp);
        Ok(())
    }
    fn wasted(&mut self, bp: &BlkPtr) -> Result<()> {
        self.killed.push(*bp);
        Ok(())
    }
}

fn lost(faults: &[Lost]) -> Result<()> {
    match faults.iter().find(|f| !f.readable) {
        None => Ok(()),
        Some(first) => Err(Error::new(
            base::ErrorKind::Io,
            format!("a block could not be written: {}", first.error),
        )
        .at_dva(first.dva)),
    }
}

impl Writer {
    /// Writes one txg, and reports the result to the txgs.
    pub(super) fn sync_one(&self, txg: Txg) {
        let mut state = self.state.lock();
        let before = self.device_io();
        let repaired = self.topology.has_repaired();
        let done = match &state.failed {
            Some(why) => Err(Error::new(base::ErrorKind::Io, why.clone())),
            None => self.sync_txg(&mut state, txg),
        };
        match done {
            Ok(()) => {
                if let Err(e) = self.follow_ended_expansion() {
                    state.failed = Some(e.to_string());
                }
                let io = self.device_io().since(&before);
                let (reads, writes) = (io.reads(), io.writes());
                self.txgs.set_io(
                    txg,
                    IoTotals {
                        nread: reads.bytes,
                        nwritten: writes.bytes,
                        reads: reads.ops,
                        writes: writes.ops,
                    },
                );
                let again = std::mem::take(&mut state.again);
                drop(state);
                self.txgs.synced(txg);
                self.ledger.synced(txg);
                self.fault_failed_leaves();
                self.after_scan();
                self.after_rebuilds();
                if !self.opening.load(Relaxed) {
                    self.wake_removal();
                    self.wake_expansion();
                }
                self.after_discard();
                if repaired {
                    self.topology_settled();
                }
                if again || self.resilver_waits(txg) {
                    self.txgs.dirty(self.txgs.open_txg(), 0);
                    self.txgs.kick(self.txgs.open_txg());
                }
            }
            Err(e) => {
                let why = format!("the pool is suspended: {e}");
                *self.outages.fatal.lock() = Some(why.clone());
                state.failed = Some(why);
                drop(state);
                if self.opening.load(Relaxed) {
                    // No user can end the wait, so the import fails.
                    self.txgs.set_failmode(txg::FailMode::Continue);
                }
                self.txgs.suspend(e);
            }
        }
    }

    /// Operations of all devices since the pool was opened. While a txg is written these are
    /// its own and those of concurrent readers and logs.
    fn device_io(&self) -> IoCounts {
        let tree = self.zio.tree();
        let mut sum = IoCounts::default();
        tree.leaves().for_each(|(leaf, _)| sum.add(&tree.io(leaf)));
        sum
    }

    /// Frees a block in the txg being written: at once, or by the next settling of the tables that
    /// may count its pointers.
    pub(super) fn free(&self, txg: Txg, bp: &BlkPtr) -> Result<()> {
        if self.dedup.take(bp) {
            return if self.dedup.is_full() { self.settle_dedup(txg) } else { Ok(()) };
        }
        if self.block_refs.take(bp) { Ok(()) } else { self.free_space(txg, bp) }
    }

    /// Frees the space of a block without other references, unless the checkpoint needs it.
    pub(super) fn free_space(&self, txg: Txg, bp: &BlkPtr) -> Result<()> {
        let BlkPtr::Block(block) = bp else { return Ok(()) };
        self.scans.freed(txg, block);
        let kept = self.checkpoint.keeps(bp);
        for dva in self.zio.dvas_to_free(block)? {
            self.free_address(txg, dva, kept)?;
        }
        self.zio.freed(block);
        Ok(())
    }

    fn has_work(&self, state: &SyncState, txg: Txg, deferred: bool) -> bool {
        state.dirty
            || state.flush_all
            || state.background
            || deferred
            || !state.new_vdevs.is_empty()
            || self.tasks.lock().contains_key(&txg)
            || self.early_tasks.lock().contains_key(&txg)
            || self.checkpoint.is_discarding()
            || self.dedup.has_work()
            || self.is_condensing()
            || self.removal.has_work(txg)
            || self.expansion_has_work()
            || self.block_refs.has_work(txg)
            || self.jobs.is_dirty()
            || self.rebuilds.has_work()
            || self.orphaned_blocks.lock().iter().any(|bp| bp.birth() <= txg)
            || self.heads.lock().values().any(|os| os.is_dirty(txg))
            || self.all_logs().values().any(|log| log.is_dirty(txg))
            || self.mos.objset().is_dirty(txg)
            || self.scan_has_work(txg)
    }

    fn sync_txg(&self, state: &mut SyncState, txg: Txg) -> Result<()> {
        state.dirty |= self.outages.relabel.swap(false, Relaxed);
        state.dirty |= self.topology.has_repaired();
        self.take_back_export(state);
        let mos = self.mos.for_sync();
        let waiting = bpobj::deferred(&mos)?.filter(|(_, list)| list.num_blkptrs > 0);
        let deferred = waiting.map(|(list, _)| list);
        if self.has_work(state, txg, deferred.is_some()) {
            self.write_txg(state, txg, deferred)?;
            self.note_unfreed(&mos)?;
            self.checkpoint_synced();
        }
        let room = self.ledger.allocatable_now(false) > 0;
        if !room {
            self.reused_at_once.store(true, Relaxed);
        }
        let defer = room && !self.plants.no_defer.load(Relaxed);
        let left = self.space.synced(txg, defer)?;
        self.zio.announce(txg);
        self.scans.announced(txg);
        self.autotrim.synced(txg);
        state.draining = !left.is_empty();
        self.space.unload_idle(txg, UNLOAD_IDLE, FREE_RANGES_MAX);
        self.space_io.preload();
        Ok(())
    }

    /// Notes the current size of the list of deferred frees.
    pub(super) fn note_unfreed(&self, mos: &Mos) -> Result<()> {
        let bytes = bpobj::deferred(mos)?.map_or(0, |(_, list)| list.bytes);
        self.ledger.set_unfreed(bytes);
        Ok(())
    }

    fn write_txg(&self, state: &mut SyncState, txg: Txg, deferred: Option<u64>) -> Result<()> {
        let tx = Tx::syncing(txg);
        let sync_mos = self.mos.for_sync();
        let store = Store { mos: &sync_mos, tx: &tx };
        let now = base::rt::wall_clock();
        let random = || base::rt::random_u64().unwrap_or(1);
        let ratios = state.ratios.clone();
        let free = |bp: &BlkPtr| self.free(txg, bp);
        let cx = SyncCx::new(&store, txg, (now.as_secs(), now.subsec_nanos()), &ratios, &random)
            .with_version(state.config.version)
            .with_free(&free)
            .with_plants(&self.plants.lineage);
        let mut mos = MosEvents { ratios: &ratios, usage: Usage::default(), killed: Vec::new() };
        let mut root = None;
        // The devices may take the whole txg for the datasets' blocks. The MOS, whose
        // passes wait for its own blocks, has priority.
        let data = Writes::new(&self.zio);
        let mut heads = Vec::new();
        let gangs = Gangs::new();
        let mut tree = self.zio.tree();
        for pass in 1.. {
            debug_assert!(pass <= PASSES_EXPECTED, "txg {txg} needs pass {pass}");
            self.passes.fetch_max(pass.into(), Relaxed);
            if pass > PASSES_MAX {
                return Err(Error::bug("a txg does not converge"));
            }
            let mut sync = SyncPass {
                txg,
                pass,
                tx: &tx,
                cx: &cx,
                mos: &sync_mos,
                flags: Flags::load(&sync_mos)?,
                zaps: super::config::top_zaps(&state.config),
            };
            let writes = Writes::new(&self.zio).with_priority(WritePriority::SyncWrite);
            let mut written = None;
            if pass == 1 {
                self.dedup.set_fast(sync.flags.fast_dedup);
                self.pass_one(state, &sync, deferred, &data, &mut heads)?;
                // Tasks may have enabled features.
                sync.flags = Flags::load(&sync_mos)?;
                self.block_refs.set_enabled(sync.flags.cloning);
                let metadata = if sync.flags.lz4 { Compression::ON } else { Compression::Lzjb };
                let props = ObjsetProps { metadata_compression: metadata, ..ObjsetProps::mos() };
                self.mos.objset().set_props(ObjsetProps {
                    special: sync.flags.special,
                    embed: sync.flags.embed,
                    hole_birth: sync.flags.hole_birth,
                    count_objects: sync.flags.userobj,
                    count_projects: sync.flags.project,
                    ..props
                })?;
            }
            self.mos_lost(&sync, std::mem::take(&mut mos.killed))?;
            self.settle_block_refs(&sync)?;
            accounting::mos_changed(&cx, std::mem::take(&mut mos.usage))?;
            if let Some(old) = state.replaces.take() {
                self.drop_old_maps(state, &sync, &old)?;
            }
            self.sync_vdevs(state, &sync)?;
            if state.dirty {
                self.sync_deferral(state, &sync)?;
            }
            if pass == 1 {
                self.store_jobs(state, &sync)?;
            }
            sync.zaps = super::config::top_zaps(&state.config);
            if cx.label_features_changed() {
                state.dirty = true;
            }
            if state.dirty {
                self.write_config(state, &sync)?;
            }
            if pass == 1 {
                let mut maps = std::mem::take(&mut state.maps);
                self.flush_maps(&sync, &mut maps, state.flush_all)?;
                state.maps = maps;
                state.flush_all = false;
            }
            let mut maps = std::mem::take(&mut state.maps);
            let mut stored = self.write_maps(&sync, &mut maps);
            if pass == PASS_SETTLE && stored.is_ok() && self.mos.objset().is_dirty(txg) {
                stored = self.settle_maps(&sync, &maps);
            }
            state.maps = maps;
            stored?;
            self.write_checkpoint(state, &sync)?;
            self.write_obsolete(state, &sync)?;
            if pass == PASS_SETTLE && self.mos.objset().is_dirty(txg) {
                self.settle_checkpoint(&sync)?;
                self.settle_obsolete(&sync)?;
            }
            let dirty = self.mos.objset().is_dirty(txg);
            if dirty {
                let ctx = self.ctx(&writes, state, &sync, 0);
                let ctx = SyncCtx { gangs: Some(&gangs), ..ctx };
                if let Some(done) = self.mos.objset().sync(&ctx, &mut mos)? {
                    root = Some(*done.root());
                    written = Some(done);
                }
            }
            lost(&writes.wait())?;
            if let Some(done) = written {
                self.txgs.undirty(txg, done.publish());
            }
            if !dirty {
                // The txgs that a leaf missed are noted together with the missed blocks.
                self.show(txg, &data, &mut heads)?;
                // A leaf that leaves from now on is flushed.
                tree = self.zio.tree();
                state.missed.extend(self.zio.tree().take_missing());
                if state.missed.is_empty() {
                    break;
                }
            }
        }
        if self.dedup.has_waiting() || self.block_refs.has_waiting() {
            return Err(Error::bug("a free of the txg was not counted"));
        }
        super::maps::close(&mut state.maps);
        self.space.before_commit(txg)?;
        self.commit(state, txg, root, now.as_secs(), tree)
    }

    fn ctx<'a>(
        &'a self,
        writes: &'a Writes,
        state: &'a SyncState,
        sync: &SyncPass<'_>,
        objset: u64,
    ) -> SyncCtx<'a> {
        SyncCtx {
            zio: &self.zio,
            writes,
            txg: sync.txg,
            objset,
            threads: self.options.threads,
            in_place: sync.pass >= PASS_REWRITE,
            compress: sync.pass < PASS_SETTLE,
            hole_birth: sync.flags.hole_birth,
            gangs: None,
            deflate: &state.deflate,
        }
    }

    /// Early tasks, datasets, tasks, the datasets that tasks created, and earlier frees.
    fn pass_one(
        &self,
        state: &mut SyncState,
        sync: &SyncPass<'_>,
        deferred: Option<u64>,
        writes: &Writes,
        pending: &mut Vec<Pending>,
    ) -> Result<()> {
        self.sync_removal(sync)?;
        self.sync_expansion(sync)?;
        let early = self.early_tasks.lock().remove(&sync.txg).unwrap_or_default();
        self.run_tasks(early, state, sync, writes, pending)?;
        let late = self.block_refs.plants.counted_late.load(Relaxed);
        if !late {
            self.count_clones(state, sync)?;
        }
        let more = self.checkpoint.is_discarding() && self.discard_some(state, sync)?;
        if let Some(list) = deferred {
            let mut free = |entry: &BpobjEntry| self.free(sync.txg, &entry.bp);
            bpobj::consume(sync.cx, list, u64::MAX, &mut free)?;
        }
        self.sync_heads(state, sync, writes, pending)?;
        if self.topology.has_repaired() {
            let (cx, tx) = (sync.cx, sync.tx);
            TaskCx { writer: self, cx, tx, state, sync, writes, pending, names: None }
                .clear_repaired();
        }
        // A snapshot refers to the blocks just written.
        let tasks = self.tasks.lock().remove(&sync.txg).unwrap_or_default();
        self.run_tasks(tasks, state, sync, writes, pending)?;
        self.sync_heads(state, sync, writes, pending)?;
        let (cx, tx) = (sync.cx, sync.tx);
        let mut task = TaskCx { writer: self, cx, tx, state, sync, writes, pending, names: None };
        self.sync_rebuilds(&mut task)?;
        self.sync_scan(&mut task)?;
        drop(task);
        let due = |bp: &mut BlkPtr| bp.birth() <= sync.txg;
        let orphaned_blocks: Vec<BlkPtr> =
            self.orphaned_blocks.lock().extract_if(.., due).collect();
        orphaned_blocks.iter().try_for_each(|bp| self.free(sync.txg, bp))?;
        if state.background {
            let tested = self.plants.freed_at_once.load(Relaxed);
            let mut budget = tested.checked_sub(1).unwrap_or(BACKGROUND_BLOCKS);
            let mut free = |bp: &BlkPtr| self.free(sync.txg, bp);
            let progress = background::step(sync.cx, &self.zio, &mut budget, &mut free)?;
            state.again = progress.more && progress.blocks > 0;
            let obsolete = self.mark_obsolete(sync, BACKGROUND_BLOCKS)?;
            state.background = progress.more || obsolete;
            state.again |= obsolete;
        }
        self.free_cancelled_clones(sync.txg)?;
        self.store_dedup(sync, state.flush_all)?;
        state.again |= self.dedup.has_work();
        state.again |= self.condense_some(state, sync)?;
        if late {
            self.count_clones(state, sync)?;
        }
        state.again |= more;
        Ok(())
    }

    fn run_tasks(
        &self,
        tasks: Vec<SyncTask>,
        state: &mut SyncState,
        sync: &SyncPass<'_>,
        writes: &Writes,
        pending: &mut Vec<Pending>,
    ) -> Result<()> {
        for task in tasks {
            let names = Some(self.names.write());
            let (cx, tx) = (sync.cx, sync.tx);
            let mut cx = TaskCx { writer: self, cx, tx, state, sync, writes, pending, names };
            task.run(&mut cx)?;
        }
        self.end_clones_of_snapshots(sync.cx.read());
        Ok(())
    }

    /// Waits for the written blocks and publishes them to readers.
    pub(super) fn show(&self, txg: Txg, writes: &Writes, pending: &mut Vec<Pending>) -> Result<()> {
        lost(&writes.wait())?;
        for done in pending.drain(..) {
            self.txgs.undirty(txg, done.publish());
        }
        Ok(())
    }

    /// Writes the datasets that the txg changed and has not written yet.
    pub(super) fn sync_heads(
        &self,
        state: &SyncState,
        sync: &SyncPass<'_>,
        writes: &Writes,
        pending: &mut Vec<Pending>,
    ) -> Result<()> {
        let logs = self.all_logs();
        let logged = |head: &u64| logs.get(head).is_some_and(|log| log.is_dirty(sync.txg));
        let heads: Vec<(u64, Arc<Objset>)> = self
            .heads
            .lock()
            .iter()
            .filter(|(head, os)| os.is_dirty(sync.txg) || os.root_bp().is_hole() || logged(head))
            .map(|(&id, os)| (id, Arc::clone(os)))
            .collect();
        // Blocks written earlier in this txg are the base of the following changes.
        if !heads.is_empty() && !pending.is_empty() {
            self.show(sync.txg, writes, pending)?;
        }
        let unwritten = |os: &Objset| os.is_dirty(sync.txg) || os.root_bp().is_hole();
        for (head, os) in heads.into_iter().filter(|(head, os)| unwritten(os) || logged(head)) {
            let moved = logs.get(&head).and_then(|log| log.sync(sync.txg));
            if let Some(blocks) = self.idle_logs.end(head) {
                blocks.iter().try_for_each(|bp| self.free(sync.txg, bp))?;
                os.set_zil_header([0; ZIL_HEADER_SIZE])?;
            }
            if let Some(moved) = moved {
                moved.free.iter().try_for_each(|bp| self.free(sync.txg, bp))?;
                os.set_zil_header(moved.header)?;
                self.mark_log(sync, head, logs.get(&head).is_some_and(|l| l.is_in_use()))?;
            }
            let delta = Delta::begin(sync.cx.read(), head, &state.ratios)?;
            let mut free = |bp: &BlkPtr| self.free(sync.txg, bp);
            let mut events = HeadEvents { delta, free: &mut free };
            let ctx = self.ctx(writes, state, sync, head);
            if let Some(done) = os.sync(&ctx, &mut events)? {
                events.delta.apply(sync.cx, Some(done.root()))?;
                self.store_position(sync.cx, head)?;
                pending.push(done);
            }
            // So that no more than the frees of one head wait.
            self.settle_dedup(sync.txg)?;
            self.settle_block_refs(sync)?;
        }
        Ok(())
    }

    /// Marks a dataset whose log may have records of extended attributes, and unmarks one
    /// without a log (chapter 06 §17).
    fn mark_log(&self, sync: &SyncPass<'_>, head: u64, in_use: bool) -> Result<()> {
        let (cx, guid) = (sync.cx, features::ZILSAXATTR);
        match in_use {
            true if features::is_enabled(cx.read(), guid)? => features::activate(cx, head, guid),
            true => Ok(()),
            false => features::deactivate(cx, head, guid),
        }
    }

    /// Handles blocks to which the MOS no longer refers: frees them now, or notes them for
    /// the next txg.
    fn mos_lost(&self, sync: &SyncPass<'_>, killed: Vec<BlkPtr>) -> Result<()> {
        if sync.flags.logs || sync.pass < PASS_DEFER_FREES {
            return killed.iter().try_for_each(|bp| self.free(sync.txg, bp));
        }
        self.defer_frees(sync, killed)
    }

    /// Notes blocks that the next txg frees.
    pub(super) fn defer_frees(&self, sync: &SyncPass<'_>, blocks: Vec<BlkPtr>) -> Result<()> {
        let blocks = blocks.into_iter().filter(|bp| bp.as_block().is_some());
        let entries: Vec<BpobjEntry> = blocks.map(|bp| BpobjEntry { bp, freed: false }).collect();
        if entries.is_empty() {
            return Ok(());
        }
        let list = sync.cx.read().number(DIRECTORY, "sync_bplist")?;
        let list = list.ok_or_else(|| Error::corrupt("the pool has no list of deferred frees"))?;
        bpobj::append(sync.cx, list, &entries).map(drop)
    }
}
