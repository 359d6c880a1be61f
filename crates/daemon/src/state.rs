//! The daemon's state: the engine, the pools ([`super::registry`]) and the mounts; and mounting
//! of datasets.

mod mounting;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use base::rt::{self, Instant, Mutex};
use base::{Error, ErrorKind, Result};
use cenote::create::AddRequest;
use cenote::{Dataset, DatasetKind, Engine, EngineConfig, FoundPool, Pool, Search};
use mount::kstats::KstatMount;
use mount::volumes::Volumes;
use mount::{FuseMounter, MountedFs};
use proto::runtime::{self, Runtime};
use proto::{ImportArgs, MountArgs, SearchArgs};
use serde::{Deserialize, Serialize};

use super::handle::RowListener;
use super::mount_dirs::MountDirs;
use super::mounts::{self, MountTable, Refusal, UnmountReason};
use super::registry::{Phase, PoolLockGuard, Registry, Slot};
use super::suspended;

/// Receives the progress of a request, and knows whether its client is still connected.
pub(crate) trait Listener {
    /// Long work makes progress.
    fn progress(&mut self, what: &str, done: u64, total: u64);
    /// Something failed; the request continues.
    fn problem(&mut self, line: String);
    /// Information; nothing failed.
    fn remark(&mut self, line: String);
    /// Whether the client has disconnected.
    fn is_gone(&self) -> bool;
}

/// Writes messages to the log when no client listens.
pub(crate) struct Log;

impl RowListener for Log {
    fn rows(&mut self, _: Vec<proto::DatasetRow>) {}
    fn bytes(&mut self, _: Vec<u8>) {}
    fn line(&mut self, line: String) {
        self.remark(line);
    }
    fn more_input(&mut self) {}
}

impl Listener for Log {
    fn progress(&mut self, _: &str, _: u64, _: u64) {}
    fn problem(&mut self, line: String) {
        ui::err(&line);
    }
    fn remark(&mut self, line: String) {
        ui::err(&line);
    }
    fn is_gone(&self) -> bool {
        false
    }
}

/// A pool's entry in the stored list of imported pools.
#[derive(Serialize, Deserialize)]
pub(super) struct SavedPool(pub(super) ImportArgs);

/// The daemon's whole state.
pub(crate) struct DaemonState {
    engine: Arc<Engine>,
    runtime: Runtime,
    mounter: FuseMounter,
    started: Instant,
    registry: Registry,
    /// Held while a list is written.
    saving: Mutex<()>,
    mounts: Mutex<MountTable>,
    mount_dirs: MountDirs,
    volumes: Volumes,
    kstats: Mutex<Option<KstatMount>>,
    nbd: OnceLock<Arc<nbd::Server>>,
    stopping: AtomicBool,
    /// Pools are being closed to be imported again by the next daemon: the list of them must
    /// not change.
    ending: AtomicBool,
}

pub(super) fn cannot(action: &str, name: &str, e: &Error) -> Error {
    Error::new(e.kind(), format!("cannot {action} '{name}': {e}"))
}

/// The name of the pool that a dataset belongs to.
pub(super) fn pool_name(dataset: &str) -> &str {
    dataset.split(['/', '@', '#']).next().unwrap_or(dataset)
}

/// The cache's limit that `CENOTE_ARC_MAX` sets; the library's own without it.
fn arc_max() -> Result<Option<u64>> {
    let Some(text) = std::env::var_os("CENOTE_ARC_MAX").filter(|t| !t.is_empty()) else {
        return Ok(None);
    };
    let size = cenote::props::parse_size(&text.to_string_lossy());
    size.map(Some).map_err(|e| Error::invalid(format!("CENOTE_ARC_MAX: {e}")))
}

impl DaemonState {
    /// Starts the engine; no pool is imported yet.
    ///
    /// # Errors
    /// The engine cannot start, or `CENOTE_ARC_MAX` is no size.
    pub(crate) fn new(runtime: &Runtime) -> Result<DaemonState> {
        Ok(DaemonState {
            engine: Engine::new(EngineConfig {
                cache_bytes: arc_max()?,
                give_back: Some(crate::heap::give_back),
                ..EngineConfig::default()
            })?,
            runtime: runtime.clone(),
            mounter: FuseMounter::default(),
            started: rt::now(),
            registry: Registry::default(),
            saving: Mutex::new(()),
            mounts: Mutex::new(MountTable::default()),
            mount_dirs: MountDirs::new(runtime.made_dirs()),
            volumes: Volumes::new(runtime.volumes()),
            kstats: Mutex::new(None),
            nbd: OnceLock::new(),
            stopping: AtomicBool::new(false),
            ending: AtomicBool::new(false),
        })
    }

    /// The pools.
    pub(super) fn registry(&self) -> &Registry {
        &self.registry
    }

    /// The runtime directory.
    pub(super) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Locks the pools of these datasets against other changes.
    ///
    /// # Errors
    /// `NotFound` if a pool was removed meanwhile, `Interrupted` if the client disconnected,
    /// `Io` if a pool is suspended and another change holds it.
    pub(super) fn changing<'a>(
        &self,
        datasets: impl Iterator<Item = &'a str>,
        what: &str,
        to: &mut (impl Listener + ?Sized),
    ) -> Result<Vec<PoolLockGuard>> {
        self.registry.lock_pools(datasets.map(pool_name), what, to)
    }

    /// The mounts of datasets that `wanted` accepts, children first.
    pub(super) fn mounted_below(&self, wanted: impl Fn(&str) -> bool) -> Vec<mounts::Mount> {
        self.mounts_now().deepest_first(wanted)
    }

    /// Removes mounts, and held file systems, from the table.
    pub(super) fn take_mounts(&self, wanted: impl Fn(&str) -> bool) -> Vec<Arc<dyn MountedFs>> {
        self.mounts.lock().take(wanted)
    }

    /// Adds a pool's volumes to the directory.
    ///
    /// # Errors
    /// Those of reading the pool, and of the mount.
    pub(super) fn volumes_of(&self, pool: &Arc<Pool>) -> Result<()> {
        self.volumes.show(pool)
    }

    /// Removes a pool's volumes from the directory, and disconnects their NBD clients.
    pub(super) fn forget_volumes(&self, pool: &str) {
        if let Some(server) = self.nbd.get() {
            server.disconnect(|export| pool_name(export) == pool);
        }
        self.volumes.remove(pool);
    }

    /// Shows new snapshots of volumes with `snapdev=visible`.
    pub(super) fn show_snapshots(&self, pool: &Arc<Pool>, names: &[String]) {
        let visible = |name: &String| {
            let head = name.split('@').next().unwrap_or_default();
            let dataset = pool.dataset(head).ok().filter(|d| d.kind() == DatasetKind::Volume);
            dataset.is_some_and(|d| mount::volumes::shows_snapshots(&d).unwrap_or(false))
        };
        if names.iter().any(visible) {
            self.show_volumes(pool, &mut Log);
        }
    }

    /// Whether a volume, or a snapshot of one, is shown as a file of this name.
    pub(super) fn is_shown_volume(&self, name: &str) -> bool {
        self.volumes.has(name)
    }

    /// Whether a program has a volume of the pool open, as a file or through NBD.
    pub(super) fn volumes_are_open(&self, pool: &str) -> bool {
        self.volumes.are_open(pool) || self.exported().iter().any(|e| pool_name(e) == pool)
    }

    /// The first of these volumes and snapshots that a program has open.
    pub(super) fn open_volume_of<'a>(&self, names: &'a [String]) -> Option<&'a str> {
        let exported = self.exported();
        let mut all = names.iter().map(String::as_str);
        all.find(|name| exported.iter().any(|e| e == name) || self.volumes.are_open(name))
    }

    /// The exports in use by clients of the server of network block devices.
    fn exported(&self) -> Vec<String> {
        let clients = self.nbd.get().map(|server| server.clients()).unwrap_or_default();
        clients.into_iter().filter_map(|client| client.export).collect()
    }

    /// The server of network block devices.
    pub(super) fn set_nbd(&self, server: Arc<nbd::Server>) {
        let _first = self.nbd.set(server);
    }

    /// The socket for network block devices, and the number of clients.
    pub(crate) fn nbd(&self) -> (Option<PathBuf>, usize) {
        match self.nbd.get() {
            Some(server) => (Some(self.runtime.nbd()), server.clients().len()),
            None => (None, 0),
        }
    }

    /// Ends the daemon's own mounts, volumes and kstats, and its server of volumes.
    pub(super) fn end_own(&self) {
        if let Some(server) = self.nbd.get() {
            server.stop();
        }
        self.volumes.end();
        let mount = self.kstats.lock().take();
        if let Some(mount) = mount {
            mount.end();
        }
    }

    /// Shows a pool's volumes again after a change.
    pub(super) fn show_volumes(&self, pool: &Arc<Pool>, to: &mut dyn Listener) {
        if let Err(e) = self.volumes.show(pool) {
            to.problem(format!("the volumes of '{}' do not appear as files: {e}", pool.name()));
        }
    }

    /// The engine.
    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Seconds since the start.
    pub(crate) fn uptime(&self) -> u64 {
        self.started.elapsed().as_secs()
    }

    /// Whether the daemon was told to stop.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// From now on the daemon is stopping.
    pub(crate) fn set_stopping(&self) {
        self.stopping.store(true, Ordering::Release);
        // The threads that follow the events end.
        self.engine().events().close();
    }

    /// The daemon ends, and the next one imports its pools again.
    pub(crate) fn set_ending(&self) {
        self.ending.store(true, Ordering::Release);
    }

    /// Whether the daemon is ending with its list of pools kept.
    pub(crate) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Acquire) || self.is_stopping()
    }

    /// Names of the pools, sorted, including those that are being imported or exported.
    pub(crate) fn names(&self) -> Vec<String> {
        self.registry.names()
    }

    /// A pool by name, once it is open.
    pub(crate) fn pool(&self, name: &str) -> Option<Arc<Pool>> {
        self.registry.get(name)?.pool()
    }

    /// The table of mounts, without mounts that were undone by others.
    pub(crate) fn mounts(&self) -> Vec<proto::Mounted> {
        self.mounts_now().list()
    }

    /// Mounts the directory of kstats. A failure affects nothing else.
    pub(crate) fn show_kstats(&self) {
        let (registry, dir) = (self.engine.kstats(), self.runtime.kstats());
        match KstatMount::make(registry, self.runtime.dir(), dir) {
            Ok(mount) => *self.kstats.lock() = mount,
            Err(e) => ui::err(&format!("the kstats do not appear as files: {e}")),
        }
    }

    /// The directory of kstats, if it is mounted.
    pub(crate) fn kstat_dir(&self) -> Option<PathBuf> {
        self.kstats.lock().as_ref().map(|m| m.dir().to_owned())
    }

    /// The directory of volumes, if there are volumes.
    pub(crate) fn volumes(&self) -> Option<PathBuf> {
        self.volumes.path()
    }

    /// Whether a dataset is mounted.
    pub(crate) fn is_mounted(&self, dataset: &str) -> bool {
        self.mounts.lock().is_mounted(dataset)
    }

    /// Writes the list of the pools that the next daemon imports.
    ///
    /// # Errors
    /// The file system's.
    pub(super) fn save(&self) -> Result<()> {
        let _one_at_a_time = self.saving.lock();
        if self.ending.load(Ordering::Acquire) {
            return Ok(());
        }
        let is_ours = |slot: &Arc<Slot>| match slot.phase() {
            Phase::Open | Phase::Closing => true,
            Phase::Importing => slot.is_again(),
            Phase::Creating => false,
        };
        let all = self.registry.all();
        let saved: Vec<SavedPool> =
            all.iter().filter(|s| is_ours(s)).map(|s| SavedPool(s.args())).collect();
        runtime::store(&self.runtime.pools(), &saved)
    }

    fn save_mounts(&self) {
        let _one_at_a_time = self.saving.lock();
        let list = self.mounts.lock().own_mounts();
        if let Err(e) = runtime::store(&self.runtime.mounts(), &list) {
            ui::err(&format!("cannot write the list of mounts: {e}"));
        }
    }

    /// Adds vdevs to a pool and records their paths.
    ///
    /// # Errors
    /// The engine's.
    pub(crate) fn add(
        &self,
        name: &str,
        request: &AddRequest,
        paths: Vec<PathBuf>,
        to: &mut dyn Listener,
    ) -> Result<()> {
        let slot = self.registry.find(name)?;
        // A command that holds the pool may wait for the end of the suspension.
        if slot.is_suspended() {
            return Err(suspended::error());
        }
        let _turn = slot.lock_pool("vdevs are added", to)?;
        let missing = || Error::not_found(format!("cannot open '{name}': no such pool"));
        let pool = slot.pool().ok_or_else(missing)?;
        self.engine.add_vdevs(&pool, request)?;
        if request.dry_run {
            return Ok(());
        }
        slot.change_args(|args| {
            if !args.search.paths.is_empty() {
                args.search.paths.extend(paths);
            }
        });
        if let Err(e) = self.save() {
            to.problem(format!("the new devices of '{name}' are not remembered: {e}"));
        }
        Ok(())
    }

    pub(super) fn mount_pool(&self, pool: &Arc<Pool>, options: &[String], to: &mut dyn Listener) {
        match pool.root() {
            Ok(root) => self.mount_below(&root, options, to),
            Err(e) => to.problem(format!("cannot mount '{}': {e}", pool.name())),
        }
    }

    /// Mounts a dataset and its descendants, as `-a` would. The caller holds the pool's lock.
    pub(super) fn mount_below(&self, root: &Dataset, given: &[String], to: &mut dyn Listener) {
        let mut plans = Vec::new();
        let mut todo = vec![root.clone()];
        while let Some(dataset) = todo.pop() {
            match mounts::plan(&dataset, false) {
                Ok(Ok(plan)) => plans.push(plan),
                // Datasets whose key is not loaded are skipped silently, too, as without `-l`.
                Ok(Err(_)) => {}
                Err(e) => to.problem(format!("cannot mount '{}': {e}", dataset.name())),
            }
            match dataset.children() {
                Ok(children) => todo.extend(children),
                Err(e) => to.problem(format!("cannot list below '{}': {e}", dataset.name())),
            }
        }
        plans.retain(|p| !self.is_mounted(p.dataset.name()));
        plans.sort_by(|a, b| (&a.at, a.dataset.name()).cmp(&(&b.at, b.dataset.name())));
        let total = plans.len() as u64;
        for (done, plan) in plans.iter().enumerate() {
            if to.is_gone() {
                return;
            }
            to.progress(&format!("mounting {}", plan.dataset.name()), done as u64, total);
            match self.mount_one(plan, given, true) {
                Ok(()) => {}
                // A mountpoint is missing inside this pool, which is imported read-only.
                Err(e) if e.kind() == ErrorKind::ReadOnly && self.is_in_read_only(plan) => {
                    to.remark(e.message().to_owned());
                }
                Err(e) => to.problem(e.message().to_owned()),
            }
        }
    }

    /// Whether the mountpoint is inside the dataset's own pool, in which no directory can be
    /// made.
    fn is_in_read_only(&self, plan: &mounts::MountPlan) -> bool {
        let pool = plan.dataset.name().split('/').next().unwrap_or_default();
        plan.dataset.check_writable().is_err() && self.mounts.lock().is_inside_pool(&plan.at, pool)
    }

    pub(super) fn mount_one(
        &self,
        plan: &mounts::MountPlan,
        given: &[String],
        overlay: bool,
    ) -> Result<()> {
        let name = plan.dataset.name();
        let fail = |e: Error| cannot("mount", name, &e);
        let place = |e: Error| match e.kind() {
            ErrorKind::NotEmpty => Error::new(
                e.kind(),
                format!("cannot mount '{}': {}", plan.at.display(), e.message()),
            ),
            _ => cannot("mount", &plan.at.display().to_string(), &e),
        };
        let mut options = mounts::options(&plan.dataset).map_err(fail)?;
        let writable = plan.dataset.check_writable().is_ok();
        mounts::override_with(&mut options, given, writable).map_err(fail)?;
        self.mount_dirs.prepare(&plan.at, overlay).map_err(place)?;
        let fs = match self.put_back(name, &plan.at, &options).map_err(fail)? {
            Some(fs) => fs,
            None => self.mounter.mount(&plan.dataset, &plan.at, &options).map_err(fail)?,
        };
        self.mounts.lock().insert(name, plan.at.clone(), fs);
        self.save_mounts();
        Ok(())
    }

    /// `zfs mount DATASET`, `zfs mount -R DATASET`, `zfs mount -a`.
    ///
    /// # Errors
    /// The whole message for the user.
    pub(crate) fn mount(
        self: &Arc<Self>,
        args: &MountArgs,
        to: &mut dyn RowListener,
    ) -> Result<()> {
        drop(self.mounts_now());
        let given = args.options.as_slice();
        let Some(name) = args.target.as_deref() else {
            let given = args.options.clone();
            self.each_pool("mount", to, move |state, pool, to| {
                state.mount_pool(pool, &given, to);
            });
            return Ok(());
        };
        let turn = self.changing(std::iter::once(name), "a dataset is mounted", to);
        let _turn = turn.map_err(|e| suspended::in_message("mount", name, e))?;
        let (_, dataset) = self.open(name)?;
        if args.recursive {
            self.mount_below(&dataset, given, to);
            return Ok(());
        }
        let failed = |e| cannot("mount", name, &e);
        if let Some(at) = &args.at {
            let plan = mounts::plan_legacy(&dataset, at).map_err(failed)?;
            let plan = plan.map_err(Error::invalid)?;
            if self.is_mounted(name) {
                let text = format!("cannot mount '{name}': filesystem already mounted");
                return Err(Error::new(ErrorKind::Exists, text));
            }
            let given = if args.lax { mounts::known(given) } else { given.to_vec() };
            return self.mount_one(&plan, &given, true);
        }
        match mounts::plan(&dataset, true).map_err(failed)? {
            Ok(_) if self.is_mounted(name) => Err(Error::new(
                ErrorKind::Exists,
                format!("cannot mount '{name}': filesystem already mounted"),
            )),
            Err(Refusal::Redacted(at)) if args.redacted && !self.is_mounted(name) => {
                self.mount_one(&mounts::MountPlan { dataset, at }, given, args.force)
            }
            Ok(plan) => self.mount_one(&plan, given, args.force),
            Err(refusal) => Err(Error::invalid(refusal.message(name))),
        }
    }

    /// `zfs unmount`: by dataset, by mountpoint, or all.
    ///
    /// # Errors
    /// The whole message for the user.
    pub(crate) fn unmount(
        self: &Arc<Self>,
        target: Option<&str>,
        force: bool,
        to: &mut dyn RowListener,
    ) -> Result<()> {
        drop(self.mounts_now());
        let Some(target) = target else {
            self.each_pool("unmount", to, move |state, pool, to| {
                let below = format!("{}/", pool.name());
                let of_pool = |n: &str| n == pool.name() || n.starts_with(&below);
                state.unmount_where(of_pool, UnmountReason::Requested, force, to);
            });
            return Ok(());
        };
        let dataset = if target.starts_with('/') {
            self.mounts.lock().at_path(Path::new(target)).ok_or_else(|| {
                Error::not_found(format!("cannot unmount '{target}': not a mountpoint"))
            })?
        } else {
            let (_, dataset) = self.open(target)?;
            if dataset.kind() != DatasetKind::Filesystem {
                return Err(Error::invalid(Refusal::Kind.message(target)));
            }
            let held = || !self.mounts.lock().held(|n| n == target).is_empty();
            if !(self.is_mounted(target) || force && held()) {
                return Err(Error::not_found(format!(
                    "cannot unmount '{target}': not currently mounted"
                )));
            }
            target.to_owned()
        };
        let turn = self.changing(std::iter::once(&*dataset), "a dataset is unmounted", to);
        let _turn = turn.map_err(|e| suspended::in_message("unmount", &dataset, e))?;
        let under = format!("{dataset}/");
        let wanted = |n: &str| n == dataset || n.starts_with(&under);
        if self.unmount_where(wanted, UnmountReason::Requested, force, to) {
            return Ok(());
        }
        Err(Error::busy(String::new()))
    }

    /// A dataset by its full name, with its pool.
    ///
    /// # Errors
    /// The whole message for the user.
    pub(crate) fn open(&self, name: &str) -> Result<(Arc<Pool>, Dataset)> {
        let end = name.find(['/', '@', '#']).unwrap_or(name.len());
        let missing = || Error::not_found(format!("cannot open '{name}': dataset does not exist"));
        let pool = self.pool(name.get(..end).unwrap_or(name)).ok_or_else(missing)?;
        match pool.dataset(name) {
            Ok(dataset) => Ok((pool, dataset)),
            Err(e) if e.kind() == ErrorKind::NotFound => Err(missing()),
            Err(e) => Err(cannot("open", name, &e)),
        }
    }

    /// Pools that can be imported.
    ///
    /// # Errors
    /// The engine's.
    pub(crate) fn discover(
        &self,
        search: &SearchArgs,
    ) -> Result<(Vec<proto::ImportCandidate>, Vec<String>)> {
        let found = self
            .engine
            .discover(&Search { paths: search.paths.clone(), destroyed: search.destroyed })?;
        // Pools that this daemon has are not importable. The client may not know of those that
        // the daemon imported by itself at its start.
        let all = self.registry.all();
        let ours: BTreeMap<u64, &Arc<Slot>> =
            all.iter().filter_map(|s| Some((s.guid()?, s))).collect();
        let shown = |p: &FoundPool| {
            let slot = ours.get(&p.guid.0);
            let as_name = match slot {
                Some(slot) if slot.is_again() => Some(slot.name().to_owned()),
                Some(_) => return None,
                None => None,
            };
            Some(proto::ImportCandidate { imported: as_name, ..super::convert::found(p) })
        };
        let problems = found.problems.iter().map(|(p, e)| ui::problem(p, e));
        Ok((found.pools.iter().filter_map(shown).collect(), problems.collect()))
    }
}
