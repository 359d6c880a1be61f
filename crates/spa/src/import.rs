//! Opening a pool (chapter 01 §8.3 and §8.4).

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use base::rt::Mutex;
use base::{Error, ErrorKind, Guid, Result, Txg};
use device::Engine;
use dmu::{Io, Objset, ObjsetProps, OutagePolicy};
use dsl::write::features::Obstacle;
use dsl::{DslDir, FeatureState, Mos};
use ondisk::config::{PoolConfig, PoolState, VdevConfig};
use ondisk::features::FEATURES;
use ondisk::spacemap::Params;
use ondisk::uberblock::{ScratchState, Uberblock, VERSION_FEATURES};
use vdev::{AllocClass, State, Tree, TxgRanges, VdevKind};
use zio::{BlockCache, Zio};

use crate::assemble::{FoundPool, fix_paths};
use crate::engine::{Parts, Writer, WriterOptions, assemble, claim};
use crate::leaves::{FileLeaves, Leaves, Purpose};
use crate::opener::LeafOpener;
use crate::rebuild::Rebuilt;
use crate::rewind::{self, Rewind};
use crate::specs::{self, Extra};
use crate::uberblocks::Chosen;
use crate::{checkpoint, indirect, multihost, status};

/// The number of txgs for which frees are deferred; recovery goes back no further.
const DEFER_TXGS: u64 = 2;
/// Property `failmode`: errors instead of waiting.
const FAILMODE_CONTINUE: u64 = 1;
/// How often the trusted tree may reveal a newer uberblock.
const RESTARTS_MAX: usize = 3;

/// How to import.
#[derive(Clone, Debug, Default)]
pub struct ImportOptions {
    /// Write nothing.
    pub readonly: bool,
    /// Even if another host had it last.
    pub force: bool,
    /// Go back a few txgs if the newest cannot be opened (`-F`).
    pub rewind: bool,
    /// With `rewind`: only find out whether it would work (`-n`).
    pub dry_run: bool,
    /// With `rewind`: go back as far as possible (`-X`).
    pub extreme: bool,
    /// No newer than this txg (`-T`).
    pub txg: Option<Txg>,
    /// Without its missing logs (`-m`).
    pub missing_log: bool,
    /// Mount points are below this directory (`-R`).
    pub altroot: Option<PathBuf>,
    /// Import it under this name.
    pub new_name: Option<String>,
    /// `new_name` lasts until the export: labels and configuration keep the old one.
    pub temporary_name: bool,
    /// Open the pool only to inspect it: no host check, no multihost wait.
    pub inspect: bool,
    /// With `inspect`: another process may have the pool open, so no device is locked. The
    /// data read is that of the last synced txg, as long as its blocks are not reused.
    pub shared: bool,
    /// Go back to the checkpoint (`--rewind-to-checkpoint`).
    pub checkpoint: bool,
    /// Rebuild the space maps from the blocks in use.
    pub rebuild_space: bool,
}

impl ImportOptions {
    /// Whether the pool is going to be written.
    pub fn writes(&self) -> bool {
        !self.readonly && !self.inspect && !self.dry_run
    }

    /// The purpose for which the leaves are opened.
    pub(crate) fn purpose(&self) -> Purpose {
        match (self.writes(), self.inspect && self.shared) {
            (true, _) => Purpose::Write,
            (false, true) => Purpose::Probe,
            (false, false) => Purpose::Read,
        }
    }
}

/// A pool whose writer has started; its first txg is not on disk yet.
pub struct Beginning {
    writer: Arc<Writer>,
    /// The newest txg of a claimed intent log.
    highest: Txg,
    /// Space maps are being rebuilt.
    rebuilds: bool,
}

impl Beginning {
    /// The writer, which is usable already.
    pub fn writer(&self) -> &Arc<Writer> {
        &self.writer
    }

    /// Waits until the first txg is on disk. While devices are missing or full the pool is
    /// suspended, and the wait lasts until it is resumed or given up.
    ///
    /// # Errors
    /// That of a first txg that cannot be written for reasons other than devices: nothing
    /// of it is on disk, and the writer has ended. That of a suspension with
    /// `failmode=continue`, and of a pool that was given up.
    pub fn finish(self) -> Result<Arc<Writer>> {
        let began = self.first_txgs();
        self.writer.opening.store(false, Relaxed);
        if let Err(e) = began {
            self.writer.abandon();
            return Err(e);
        }
        // What a crash or an export interrupted goes on.
        self.writer.request_resilver_if_needed();
        self.writer.topology_settled();
        self.writer.resume_jobs();
        self.writer.wake_rebuilds();
        self.writer.wake_removal();
        self.writer.wake_expansion();
        Ok(self.writer)
    }

    fn first_txgs(&self) -> Result<()> {
        // New blocks must have later births than the claimed ones.
        while self.writer.sync()? <= self.highest {}
        if self.rebuilds {
            self.writer.flush_all();
            self.writer.sync()?;
        }
        self.writer.request_resilver_if_needed();
        self.writer.release_temporary_holds()
    }
}

/// An open pool.
pub struct Spa {
    pub(crate) name: String,
    /// The name in the labels of the written pool.
    pub(crate) stored_name: String,
    pub(crate) guid: Guid,
    zio: Arc<Zio>,
    mos: Mos,
    pub(crate) config: PoolConfig,
    uberblock: Uberblock,
    features: FeatureState,
    options: ImportOptions,
    deflate: bool,
    /// The best uberblock, if an older state was opened.
    newest: Option<Uberblock>,
    rewind: Option<Rewind>,
    rebuilt: Mutex<Option<Rebuilt>>,
}

/// A pool that could not be opened, and its tree as far as it was found.
#[derive(Debug)]
pub struct OpenFailure {
    /// The reason.
    pub error: Error,
    /// The devices.
    pub vdevs: Option<status::VdevStatus>,
    /// Unsupported features.
    pub unsupported: Vec<dsl::features::Unsupported>,
}

impl From<Error> for OpenFailure {
    fn from(error: Error) -> Self {
        OpenFailure { error, vdevs: None, unsupported: Vec::new() }
    }
}

impl Spa {
    /// Opens a found pool. If the newest txg cannot be opened and the options allow it,
    /// opens an older one.
    ///
    /// # Errors
    /// [`OpenFailure`], with the kind: `Missing` for devices, `Unsupported` for features,
    /// `Busy` for another host, `Corrupt`/`Checksum`/`Io` for damage.
    pub fn open(
        found: &FoundPool,
        options: &ImportOptions,
        cache: &Arc<BlockCache>,
        engine: &Arc<Engine>,
    ) -> Result<Spa, Box<OpenFailure>> {
        Self::open_in(found, options, cache, &FileLeaves(Arc::clone(engine)))
    }

    /// As [`Spa::open`], with the leaves of `source`.
    ///
    /// # Errors
    /// As [`Spa::open`].
    pub fn open_in(
        found: &FoundPool,
        options: &ImportOptions,
        cache: &Arc<BlockCache>,
        source: &dyn Leaves,
    ) -> Result<Spa, Box<OpenFailure>> {
        let mut limit = options.txg.unwrap_or(Txg::MAX);
        let mut newest = None;
        loop {
            let opener = LeafOpener::new(found, source, options.purpose());
            let mut seen = None;
            let opened = Self::open_at(found, options, cache, &opener, limit, &mut seen);
            let failure = match opened.and_then(|spa| spa.verify_rewind(found)) {
                Ok(spa) => return Ok(spa),
                Err(failure) => failure,
            };
            // Rewinding helps against damage, not against missing devices.
            let damage = matches!(
                failure.error.kind(),
                ErrorKind::Corrupt | ErrorKind::Checksum | ErrorKind::Io
            );
            let Some(tried) = seen.filter(|_| options.rewind && damage) else {
                return Err(failure);
            };
            let newest = *newest.get_or_insert(tried);
            let least = if options.extreme { 4 } else { newest.0.saturating_sub(DEFER_TXGS) };
            if tried.0 <= least || tried.0 == 0 {
                return Err(failure);
            }
            limit = Txg(tried.0 - 1);
        }
    }

    fn open_at(
        found: &FoundPool,
        options: &ImportOptions,
        cache: &Arc<BlockCache>,
        opener: &LeafOpener<'_>,
        limit: Txg,
        seen: &mut Option<Txg>,
    ) -> Result<Spa, Box<OpenFailure>> {
        let mut spec = specs::untrusted(found, Extra::default()).map_err(OpenFailure::from)?;
        fix_paths(&mut spec, &found.locations);
        let open_leaf = |leaf: &vdev::LeafSpec| opener.open(leaf, Txg::MAX);
        let tree = Tree::build(&spec, &open_leaf).map_err(OpenFailure::from)?;
        let untrusted = status::describe(&tree, &found.name);
        let fail = |error: Error| {
            Box::new(OpenFailure {
                error: error.in_pool(&found.name),
                vdevs: Some(untrusted.clone()),
                unsupported: Vec::new(),
            })
        };
        let mut chosen = opener.choose(limit).map_err(&fail)?;
        opener.check_held().map_err(&fail)?;
        if !options.inspect {
            multihost::check(opener, found, &chosen.uberblock).map_err(&fail)?;
        }
        let zio = Arc::new(Zio::new(tree, Arc::clone(cache)));
        for _ in 0..RESTARTS_MAX {
            *seen = Some(chosen.uberblock.txg);
            check_label_features(opener, &chosen)?;
            let loaded = load_config(&zio, &chosen, opener, found, options.writes())
                .map_err(|e| fail(missing_rather(e, &zio.tree())))?;
            opener.check_held().map_err(&fail)?;
            let again = opener.choose(limit).map_err(&fail)?;
            if again.uberblock.compare(&chosen.uberblock) != std::cmp::Ordering::Greater {
                let newest = opener.choose(Txg::MAX).map_err(&fail)?.uberblock;
                let newest = newest.compare(&chosen.uberblock).is_gt().then_some(newest);
                if options.checkpoint {
                    let back = checkpoint::rewound(&loaded.0, &chosen).map_err(&fail)?;
                    let loaded = load_config(&zio, &back, opener, found, options.writes())
                        .map_err(|e| fail(missing_rather(e, &zio.tree())))?;
                    let newest = newest.unwrap_or(chosen.uberblock);
                    return Self::finish(found, options, zio, back, loaded, Some(newest));
                }
                return Self::finish(found, options, zio, chosen, loaded, newest);
            }
            // A leaf that only the trusted tree has contains a newer uberblock.
            chosen = again;
        }
        Err(fail(Error::corrupt("the devices do not agree on the newest uberblock")))
    }

    fn finish(
        found: &FoundPool,
        options: &ImportOptions,
        zio: Arc<Zio>,
        chosen: Chosen,
        (mos, config): (Mos, PoolConfig),
        newest: Option<Uberblock>,
    ) -> Result<Spa, Box<OpenFailure>> {
        let name = options.new_name.clone().unwrap_or_else(|| found.name.clone());
        let stored_name = match options.temporary_name {
            true => found.name.clone(),
            false => name.clone(),
        };
        let tree = zio.tree();
        let fail = |error: Error| {
            Box::new(OpenFailure {
                error: error.in_pool(&found.name),
                vdevs: Some(status::describe(&tree, &found.name)),
                unsupported: Vec::new(),
            })
        };
        check_devices(&tree, options).map_err(&fail)?;
        if config.guid_sum() != chosen.uberblock.guid_sum {
            return Err(fail(Error::new(
                ErrorKind::DevicesMissing,
                "bad guid sum: the devices do not add up to the pool",
            )));
        }
        let features = FeatureState::load(&mos).map_err(&fail)?;
        let unsupported = features.unsupported();
        let blocking = |u: &dsl::features::Unsupported| {
            u.active && !(u.read_only_ok && (options.readonly || options.inspect))
        };
        if unsupported.iter().any(blocking) {
            let mut failure = fail(unsupported_error(&unsupported, options.readonly));
            failure.unsupported = unsupported;
            return Err(failure);
        }
        let deflate = mos.lookup("deflate").map_err(&fail)?.is_some_and(|v| v != 0);
        let spa = Spa {
            name,
            stored_name,
            guid: found.guid,
            zio,
            mos,
            config,
            uberblock: chosen.uberblock,
            features,
            options: options.clone(),
            deflate,
            newest,
            rewind: None,
            rebuilt: Mutex::new(None),
        };
        spa.load_details().map_err(&fail)?;
        Ok(spa)
    }

    /// Verifies an older state before a rewind to it; also for `-n`.
    fn verify_rewind(mut self, found: &FoundPool) -> Result<Spa, Box<OpenFailure>> {
        // A checkpoint is complete as long as it exists.
        let may = !self.options.checkpoint;
        let requested = may && (self.options.writes() || self.options.dry_run);
        if let Some(newest) = self.newest.as_ref().filter(|_| requested) {
            let verify_rewind = self.judge(newest).map_err(|error| {
                Box::new(OpenFailure {
                    error: error.in_pool(&found.name),
                    vdevs: Some(self.vdev_status()),
                    unsupported: Vec::new(),
                })
            })?;
            self.rewind = Some(verify_rewind);
        }
        if self.options.rebuild_space && self.options.dry_run {
            let plan = self.plan_rebuild().map_err(|e| {
                let vdevs = Some(self.vdev_status());
                let error = e.in_pool(&found.name);
                Box::new(OpenFailure { error, vdevs, unsupported: Vec::new() })
            })?;
            *self.rebuilt.lock() = Some(plan.report);
        }
        Ok(self)
    }

    /// The result of rebuilding the space maps, if that was requested.
    pub fn rebuilt(&self) -> Option<Rebuilt> {
        self.rebuilt.lock().clone()
    }

    /// The distance and losses of a rewind; only if the pool will be written, or for a dry
    /// run.
    pub fn rewind(&self) -> Option<&Rewind> {
        self.rewind.as_ref()
    }

    /// Loads details for which the MOS may be incomplete: salt, classes, missing txgs.
    fn load_details(&self) -> Result<()> {
        let salt = self.mos.directory()?.lookup(b"org.illumos:checksum_salt")?;
        if let Some(salt) = salt.as_ref().and_then(|v| v.as_bytes()).and_then(|b| b.first_chunk()) {
            self.zio.set_salt(salt);
        }
        self.zio.set_dynamic_gang(self.features.is_active("com.klarasystems:dynamic_gang_header"));
        // The root dataset must exist, or the pool is unusable.
        self.root_dir()?;
        let tree = self.zio.tree();
        let mut leaves = Vec::new();
        specs::for_each(&self.config.vdev_tree, &mut |v| {
            if let Some(dtl) = v.leaf.dtl.filter(|o| o.0 != 0) {
                leaves.push((v.guid, dtl));
            }
            tree.set_deferred(v.guid, v.leaf.resilver_deferred);
        });
        for (guid, object) in leaves {
            // A damaged DTL costs read preference, not data.
            let Ok(ranges) = self.read_dtl(object.0) else { continue };
            let lacks = !ranges.is_empty();
            tree.set_dtl(guid, TxgRanges::new(ranges));
            // Blocks that it had missed were read from it before its DTL was known: not errors.
            if let Some(leaf) = tree.find(guid).filter(|_| lacks) {
                leaf.clear_errors();
            }
        }
        Ok(())
    }

    fn read_dtl(&self, object: u64) -> Result<Vec<(Txg, Txg)>> {
        let mut ranges = Vec::new();
        self.for_each_entry(object, Params::dtl(), &mut |r| {
            ranges.push((Txg(r.offset), Txg(r.offset.saturating_add(r.len.saturating_sub(1)))));
            Ok(())
        })?;
        Ok(ranges)
    }

    /// Why this pool can only be read although its devices are open for writing: structures
    /// in use that this version does not maintain.
    ///
    /// # Errors
    /// Those of reading the MOS.
    pub fn obstacles(&self) -> Result<Vec<Obstacle>> {
        let mut out = dsl::write::features::obstacles(&self.mos)?;
        let tables = crate::block_refs::obstacle(&self.mos, &self.config)?;
        let dedup = crate::dedup::obstacle(&self.mos)?;
        let mut add = |what: &str, why: &'static str| out.push(Obstacle { what: what.into(), why });
        let version = self.config.version;
        if version != VERSION_FEATURES && !crate::VERSIONS_WRITTEN.contains(&version) {
            add("version", "pools older than version 10 are only read");
        }
        if self.uberblock.is_multihost() {
            add("multihost", "the pool's heartbeat would have to go on");
        }
        if let Some(why) = tables {
            add("block_cloning", why);
        }
        if let Some(why) = dedup {
            add("deduplication", why);
        }
        let mut expanding = 0;
        specs::for_each(&self.config.vdev_tree, &mut |v| {
            expanding += usize::from(v.raidz.as_ref().is_some_and(|r| r.expanding));
        });
        let scratch = self.uberblock.reflow().map(|r| r.scratch);
        if expanding > 1 {
            add("raidz_expansion", "several raidz vdevs are being expanded");
        } else if expanding > 0
            && self.newest.is_some()
            && matches!(scratch, Ok(ScratchState::Valid))
        {
            add("raidz_expansion", "the pool was rewound to the begin of an expansion");
        }
        Ok(out)
    }

    /// A number among the pool's stored properties.
    fn pool_number(&self, name: &str) -> Result<Option<u64>> {
        match self.mos.lookup("pool_props")? {
            Some(zap) => self.mos.zap(zap)?.lookup_u64(name),
            None => Ok(None),
        }
    }

    /// Starts writing: the first txg refreshes all labels.
    ///
    /// # Errors
    /// `ReadOnly` with the reason when there are [`Spa::obstacles`]; those of reading
    /// the space maps and of the devices.
    pub fn start_writer(&self, options: WriterOptions) -> Result<Arc<Writer>> {
        self.begin_writing(options)?.finish()
    }

    /// As [`Spa::start_writer`], without the wait for the first txg: the caller may
    /// register the pool, and observe a suspension, while [`Beginning::finish`] waits.
    ///
    /// # Errors
    /// As [`Spa::start_writer`], except the devices' write errors.
    pub fn begin_writing(&self, options: WriterOptions) -> Result<Beginning> {
        if let Some(first) = self.obstacles()?.first() {
            let why = format!("the pool can only be read: {}: {}", first.what, first.why);
            return Err(Error::new(ErrorKind::ReadOnly, why).in_pool(&self.name));
        }
        let plan = self.options.rebuild_space.then(|| self.plan_rebuild()).transpose();
        let plan = plan.map_err(|e| e.in_pool(&self.name))?;
        let space = match &plan {
            Some(plan) => plan.space.clone(),
            None => self.load_space().map_err(damaged_maps)?,
        };
        let logs = space.logs.clone();
        let mut config = self.config.clone();
        config.state = PoolState::Active;
        config.name.clone_from(&self.stored_name);
        config.hostid = crate::own_hostid();
        config.hostname = hostname();
        // All labels are written anew.
        forget_former_guids(&mut config.vdev_tree);
        let uberblock = match &self.newest {
            Some(newest) => rewind::renumbered(&self.uberblock, newest)?,
            None => self.uberblock.clone(),
        };
        let first = uberblock.txg.next();
        let outranks = self.newest.as_ref().map(|_| (self.uberblock.txg, uberblock.clone()));
        let rewound = outranks.as_ref().map(|(old, _)| *old).or_else(|| self.rewound_to());
        let labels = config.clone();
        let parts = Parts {
            zio: Arc::clone(&self.zio),
            mos: self.mos.clone(),
            name: self.name.clone(),
            config,
            uberblock,
            space: Some(space),
            roles: BTreeMap::new(),
        };
        let writer = assemble(parts, options).map_err(damaged_maps)?;
        if self.pool_number("failmode")? == Some(FAILMODE_CONTINUE) {
            writer.txgs().set_failmode(txg::FailMode::Continue);
        }
        writer.load_checkpoint(&self.mos).map_err(damaged_maps)?;
        writer.load_removed(&self.mos).map_err(damaged_maps)?;
        writer.load_removal(&self.mos).map_err(damaged_maps)?;
        writer.load_expansion(&self.mos).map_err(|e| {
            let why = format!("the expansion of a raidz vdev cannot go on: {}", e.message());
            Error::new(ErrorKind::ReadOnly, why).caused_by(e).in_pool(&self.name)
        })?;
        writer.load_dedup(&self.mos).map_err(|e| e.in_pool(&self.name))?;
        for (txg, object) in logs {
            let mut replay = |range| writer.space().replay_log(txg, &range);
            self.for_each_entry(object, Params::log(), &mut replay).map_err(damaged_maps)?;
        }
        if let Some(plan) = &plan {
            writer.claim_used(&plan.used, first)?;
        }
        let claims = claim::find(&self.root_dir()?, &self.zio, first, rewound)
            .map_err(|e| e.with_kind(ErrorKind::ReadOnly))?;
        let highest = claims.highest;
        writer.claim(claims, first).map_err(|e| {
            let why = format!("an intent log cannot be claimed: {}", e.message());
            Error::new(ErrorKind::ReadOnly, why).caused_by(e).in_pool(&self.name)
        })?;
        writer.follow_failmode(&self.mos)?;
        writer.load_jobs(&self.mos)?;
        writer.load_rebuilds(&self.mos)?;
        writer.follow_autotrim(&self.mos)?;
        let rebuilds = plan.is_some();
        if let Some(plan) = plan {
            writer.replace_maps(plan.drop);
            *self.rebuilt.lock() = Some(plan.report);
        }
        if let Some((old, uberblock)) = &outranks {
            rewind::outrank(&self.zio.tree(), labels, *old, uberblock)?;
        }
        writer.start()?;
        writer.touch();
        Ok(Beginning { writer, highest, rebuilds })
    }

    /// The name of the pool.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its guid.
    pub fn guid(&self) -> Guid {
        self.guid
    }

    /// The I/O pipeline.
    pub fn zio(&self) -> &Arc<Zio> {
        &self.zio
    }

    /// The meta object set.
    pub fn mos(&self) -> &Mos {
        &self.mos
    }

    /// The trusted configuration.
    pub fn config(&self) -> &PoolConfig {
        &self.config
    }

    /// The uberblock it was opened from.
    pub fn uberblock(&self) -> &Uberblock {
        &self.uberblock
    }

    /// Feature states.
    pub fn features(&self) -> &FeatureState {
        &self.features
    }

    /// The options of the import.
    pub fn options(&self) -> &ImportOptions {
        &self.options
    }

    /// Whether accounting is in deflated bytes (chapter 04 §1).
    pub fn deflate(&self) -> bool {
        self.deflate
    }

    /// The root of the dataset tree.
    ///
    /// # Errors
    /// Those of reading the MOS.
    pub fn root_dir(&self) -> Result<DslDir> {
        DslDir::root(&self.mos, &self.name)
    }

    /// The root of the dataset tree; reads through it treat absent devices by this policy.
    ///
    /// # Errors
    /// Those of reading the MOS.
    pub fn root_dir_with(&self, outage: OutagePolicy) -> Result<DslDir> {
        DslDir::root(&self.mos.with_outage(outage), &self.name)
    }

    /// The devices as `zpool status` shows them.
    pub fn vdev_status(&self) -> status::VdevStatus {
        status::describe(&self.zio.tree(), &self.name)
    }
}

/// Former guids of leaves that took over their mirror's guid: no label has them any more.
fn forget_former_guids(vdev: &mut VdevConfig) {
    vdev.orig_guid = None;
    vdev.children.iter_mut().for_each(forget_former_guids);
}

/// This host's name.
pub fn own_hostname() -> Option<String> {
    hostname().and_then(|h| h.to_str().map(str::to_owned))
}

fn hostname() -> Option<nvlist::NvStr> {
    let name = std::fs::read("/proc/sys/kernel/hostname").ok()?;
    nvlist::NvStr::new(name.trim_ascii()).ok().filter(|n| !n.as_bytes().is_empty())
}

/// Reads the MOS through the chosen uberblock, and rebuilds the tree from the
/// configuration in it.
fn load_config(
    zio: &Arc<Zio>,
    chosen: &Chosen,
    opener: &LeafOpener<'_>,
    found: &FoundPool,
    live: bool,
) -> Result<(Mos, PoolConfig)> {
    let ub = &chosen.uberblock;
    let expanding = zio.tree().top_ids().any(|id| zio.tree().is_expanding(id));
    let reflow = match ub.reflow() {
        Ok(r) => {
            Some(vdev::Reflow { offset: r.offset, scratch_valid: r.scratch == ScratchState::Valid })
        }
        Err(e) if expanding => return Err(e),
        Err(_) => None,
    };
    zio.tree().reset_reflow(reflow.unwrap_or_default());
    let objset = if live {
        Objset::open_live(Arc::clone(zio), 0, ub.root_bp, ObjsetProps::mos(), Io::WAIT)?
    } else {
        Objset::open(Arc::clone(zio), 0, ub.root_bp, Io::WAIT)?
    };
    let mos = Mos::new(objset)?;
    let object = mos
        .lookup("config")?
        .ok_or_else(|| Error::corrupt("the pool has no configuration object"))?;
    let config = PoolConfig::from_mos(&mos.packed_nvlist(object)?)?;
    if config.pool_guid != found.guid {
        return Err(Error::corrupt("the configuration belongs to another pool"));
    }
    let mut spec = specs::trusted(&config.vdev_tree, Extra { reflow })?;
    fix_paths(&mut spec, &found.locations);
    // A label that is newer than the uberblock may identify a leaf otherwise than the
    // configuration does. After a rewind there may be no older one.
    let open_leaf =
        |leaf: &vdev::LeafSpec| opener.open(leaf, ub.txg).or_else(|_| opener.open(leaf, Txg::MAX));
    let tree = Tree::build_from(Some(&zio.tree()), &spec, &open_leaf)?;
    zio.set_tree(tree);
    indirect::load_all(&mos, &config, &zio.tree())?;
    // Classes are in the vdevs' ZAPs, which can be read only now.
    if set_classes(&mos, &config.vdev_tree, &mut spec)? {
        let tree = Tree::build_from(Some(&zio.tree()), &spec, &open_leaf)?;
        zio.set_tree(tree);
    }
    Ok((mos, config))
}

/// Fills in allocation classes; true if there are any but the normal one.
fn set_classes(mos: &Mos, root: &VdevConfig, spec: &mut vdev::Spec) -> Result<bool> {
    let mut any = false;
    for (config, spec) in root.children.iter().zip(&mut spec.children) {
        let zap = config.top.as_ref().and_then(|t| t.zap).filter(|o| o.0 != 0);
        let Some(zap) = zap else { continue };
        let bias = mos.zap(zap.0)?.lookup_str("org.zfsonlinux:allocation_bias")?;
        let class = match bias.as_deref() {
            Some("special") => AllocClass::Special,
            Some("dedup") => AllocClass::Dedup,
            Some("log") => AllocClass::Log,
            _ => continue,
        };
        any |= spec.class != class;
        spec.class = class;
    }
    Ok(any)
}

/// Refuses features that cannot be read, according to the label.
fn check_label_features(opener: &LeafOpener<'_>, chosen: &Chosen) -> Result<(), Box<OpenFailure>> {
    let ub = &chosen.uberblock;
    if ub.version != 5000 {
        return Ok(());
    }
    // After a rewind there may be no label that old any more. A newer one names all
    // features that were in use then, because features stay in the list.
    let label = opener.config(chosen.leaf, ub.txg).or_else(|| opener.config(chosen.leaf, Txg::MAX));
    let Some(list) = label.as_ref().and_then(|l| l.list("features_for_read")) else {
        let error = Error::corrupt("the label that belongs to the uberblock is unavailable");
        return Err(Box::new(error.into()));
    };
    let mut unknown = Vec::new();
    for (name, _) in list.iter() {
        let guid = name.to_str().unwrap_or("?");
        if !FEATURES.iter().any(|f| f.guid == guid && f.is_readable()) {
            unknown.push(dsl::features::Unsupported {
                guid: guid.to_owned(),
                description: String::new(),
                read_only_ok: false,
                active: true,
            });
        }
    }
    if unknown.is_empty() {
        return Ok(());
    }
    let mut failure = OpenFailure::from(unsupported_error(&unknown, true));
    failure.unsupported = unknown;
    Err(Box::new(failure))
}

fn unsupported_error(list: &[dsl::features::Unsupported], readonly: bool) -> Error {
    let names: Vec<&str> = list
        .iter()
        .filter(|u| u.active && !(u.read_only_ok && readonly))
        .map(|u| u.guid.as_str())
        .collect();
    let hint = if list.iter().all(|u| u.read_only_ok || !u.active) {
        "; it can be imported with -o readonly=on"
    } else {
        ""
    };
    Error::unsupported(format!("the pool uses unsupported features: {}{hint}", names.join(", ")))
}

/// A MOS that cannot be read because devices are missing is not damaged.
fn missing_rather(error: Error, tree: &Tree) -> Error {
    let missing = tree.top_ids().filter_map(|id| tree.top(id).ok()).any(|top| !top.readable());
    if missing && error.kind() == ErrorKind::Io {
        return Error::new(ErrorKind::DevicesMissing, DEVICES_MISSING).caused_by(error);
    }
    error
}

/// A pool whose space maps are damaged can be read.
fn damaged_maps(error: Error) -> Error {
    match error.kind() {
        ErrorKind::Corrupt | ErrorKind::Checksum | ErrorKind::NotFound => {
            let why = format!(
                "the space maps are damaged ({error}); 'zpool import --rebuild-space' makes them \
                 anew"
            );
            Error::new(ErrorKind::ReadOnly, why).caused_by(error)
        }
        _ => error,
    }
}

const DEVICES_MISSING: &str = "one or more devices is currently unavailable";

/// Every top-level vdev must be present, or its absence be allowed.
fn check_devices(tree: &Tree, options: &ImportOptions) -> Result<()> {
    let (mut data, mut logs) = (Vec::new(), Vec::new());
    for id in tree.top_ids() {
        let Ok(node) = tree.top(id) else { continue };
        if matches!(node.kind(), VdevKind::Hole | VdevKind::Indirect) || node.readable() {
            continue;
        }
        if node.state() >= State::Degraded {
            continue;
        }
        if node.is_log() { logs.push(id) } else { data.push(id) }
    }
    if !data.is_empty() {
        return Err(Error::new(ErrorKind::DevicesMissing, DEVICES_MISSING));
    }
    if !logs.is_empty() && !options.missing_log && !options.inspect {
        return Err(Error::new(
            ErrorKind::DevicesMissing,
            "a log device is missing; with -m the pool is imported without it, and what only \
             the log holds is lost",
        ));
    }
    Ok(())
}
