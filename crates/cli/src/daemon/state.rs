//! The pools that the daemon holds, and what changes them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::rt::{self, Instant, Mutex, RwLock};
use base::{Error, ErrorKind, Result, Txg};
use cenote::create::{AddRequest, CreateRequest};
use serde::{Deserialize, Serialize};

use super::lost;
use super::mounts::{self, Mounter, Refusal, Table};
use crate::engine::{
    self, Dataset, DatasetKind, Engine, EngineConfig, ImportOptions, Pool, Search,
};
use crate::mount::kstats::KstatMount;
use crate::mount::volumes::Volumes;
use crate::proto::{ImportArgs, MountArgs, SearchArgs};
use crate::runtime::{self, Runtime};

/// Who hears how a request goes on, and whether anyone still listens.
pub(crate) trait Listener {
    /// Long work goes on.
    fn progress(&mut self, what: &str, done: u64, total: u64);
    /// Something failed; the request goes on.
    fn problem(&mut self, line: String);
    /// Something to know; nothing failed.
    fn remark(&mut self, line: String);
    /// Whether the client has gone away.
    fn is_gone(&self) -> bool;
}

/// Writes to the log what nobody listens to.
pub(crate) struct Log;

impl Listener for Log {
    fn progress(&mut self, _: &str, _: u64, _: u64) {}
    fn problem(&mut self, line: String) {
        crate::ui::err(&line);
    }
    fn remark(&mut self, line: String) {
        crate::ui::err(&line);
    }
    fn is_gone(&self) -> bool {
        false
    }
}

/// A pool and how it was imported.
struct Held {
    pool: Arc<Pool>,
    args: ImportArgs,
}

/// What is written about a pool in the list of imported pools.
#[derive(Serialize, Deserialize)]
struct Saved(ImportArgs);

/// A pool that lacks devices is refused in OpenZFS's words; what could not be read
/// for it goes to the log.
fn refused(name: &str, e: &Error) -> Error {
    if e.kind() != ErrorKind::Missing {
        return cannot("import", name, e);
    }
    crate::ui::err(&format!("cannot import '{name}': {e}"));
    Error::new(e.kind(), format!("cannot import '{name}': {}", e.message()))
}

/// Everything the daemon holds.
pub(crate) struct State {
    engine: Arc<Engine>,
    runtime: Runtime,
    mounter: Box<dyn Mounter>,
    started: Instant,
    changes: Mutex<()>,
    pools: RwLock<BTreeMap<String, Held>>,
    mounts: Mutex<Table>,
    volumes: Volumes,
    kstats: Mutex<Option<KstatMount>>,
    stopping: AtomicBool,
}

fn cannot(action: &str, name: &str, e: &Error) -> Error {
    Error::new(e.kind(), format!("cannot {action} '{name}': {e}"))
}

/// The cache's limit that `CENOTE_ARC_MAX` sets; the library's own without it.
fn arc_max() -> Result<Option<u64>> {
    let Some(text) = std::env::var_os("CENOTE_ARC_MAX").filter(|t| !t.is_empty()) else {
        return Ok(None);
    };
    let size = cenote::props::parse_size(&text.to_string_lossy());
    size.map(Some).map_err(|e| Error::invalid(format!("CENOTE_ARC_MAX: {e}")))
}

impl State {
    /// Starts the engine; no pool is imported yet.
    ///
    /// # Errors
    /// The engine cannot start, or `CENOTE_ARC_MAX` is no size.
    pub(crate) fn new(runtime: &Runtime, mounter: Box<dyn Mounter>) -> Result<State> {
        crate::heap::keep();
        Ok(State {
            engine: Engine::new(EngineConfig {
                cache_bytes: arc_max()?,
                give_back: Some(crate::heap::give_back),
                ..EngineConfig::default()
            })?,
            runtime: runtime.clone(),
            mounter,
            started: rt::now(),
            changes: Mutex::new(()),
            pools: RwLock::new(BTreeMap::new()),
            mounts: Mutex::new(Table::default()),
            volumes: Volumes::new(runtime.volumes()),
            kstats: Mutex::new(None),
            stopping: AtomicBool::new(false),
        })
    }

    /// Keeps pools, datasets and mounts as they are for everybody else.
    pub(super) fn changing(&self) -> rt::MutexGuard<'_, ()> {
        self.changes.lock()
    }

    /// The mounts of datasets that `wanted` accepts, children first.
    pub(super) fn mounted_below(
        &self,
        wanted: impl Fn(&str) -> bool,
    ) -> Vec<(String, PathBuf, Arc<dyn mounts::MountedFs>)> {
        let mut table = self.mounts.lock();
        table.forget_dead();
        table.deepest_first(wanted)
    }

    /// Shows a pool's volumes anew.
    pub(super) fn show_volumes(&self, pool: &Arc<Pool>, to: &mut dyn Listener) {
        self.volumes.remove(pool.name());
        if let Err(e) = self.volumes.add(pool) {
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

    /// Whether the daemon is about to end.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// From now on the daemon ends.
    pub(crate) fn set_stopping(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    /// Names of the pools, sorted.
    pub(crate) fn names(&self) -> Vec<String> {
        self.pools.read().keys().cloned().collect()
    }

    /// A pool by name.
    pub(crate) fn pool(&self, name: &str) -> Option<Arc<Pool>> {
        self.pools.read().get(name).map(|h| Arc::clone(&h.pool))
    }

    /// The table of mounts; mounts that were undone behind its back are dropped.
    pub(crate) fn mounts(&self) -> Vec<crate::proto::Mounted> {
        let mut table = self.mounts.lock();
        table.forget_dead();
        table.list()
    }

    /// Mounts the directory of kstats. Without it everything else works.
    pub(crate) fn show_kstats(&self) {
        let (registry, dir) = (self.engine.kstats(), self.runtime.kstats());
        match KstatMount::make(registry, self.runtime.dir(), dir) {
            Ok(mount) => *self.kstats.lock() = mount,
            Err(e) => crate::ui::err(&format!("the kstats do not appear as files: {e}")),
        }
    }

    /// Where kstats appear, if they do.
    pub(crate) fn kstat_dir(&self) -> Option<PathBuf> {
        self.kstats.lock().as_ref().map(|m| m.dir().to_owned())
    }

    /// Where volumes appear, if any do.
    pub(crate) fn volumes(&self) -> Option<PathBuf> {
        self.volumes.path()
    }

    /// Whether a dataset is mounted.
    pub(crate) fn is_mounted(&self, dataset: &str) -> bool {
        self.mounts.lock().is_mounted(dataset)
    }

    fn save(&self) -> Result<()> {
        let pools = self.pools.read();
        let saved: Vec<Saved> = pools.values().map(|h| Saved(h.args.clone())).collect();
        drop(pools);
        runtime::store(&self.runtime.pools(), &saved)
    }

    fn save_mounts(&self) {
        let list: Vec<String> = self.mounts().into_iter().map(|m| m.mountpoint).collect();
        if let Err(e) = runtime::store(&self.runtime.mounts(), &list) {
            crate::ui::err(&format!("cannot write the list of mounts: {e}"));
        }
    }

    /// Imports a pool and mounts what belongs mounted; its name, and what there is to tell
    /// of a rewind and of space maps that were made anew.
    ///
    /// # Errors
    /// The whole message for the user.
    pub(crate) fn import(
        &self,
        args: &ImportArgs,
        to: &mut dyn Listener,
    ) -> Result<(String, Vec<String>)> {
        let _changing = self.changes.lock();
        let shown = args.new_name.as_deref().unwrap_or(&args.name);
        if self.pools.read().contains_key(shown) {
            return Err(Error::new(
                ErrorKind::Exists,
                format!(
                    "cannot import '{shown}': a pool with that name already exists\nuse the form \
                     'zpool import <pool | id> <newpool>' to give it a new name"
                ),
            ));
        }
        to.progress(&format!("looking for {}", args.name), 0, 0);
        let discovery = self
            .engine
            .discover(&Search {
                paths: args.search.paths.clone(),
                destroyed: args.search.destroyed,
            })
            .map_err(|e| cannot("import", &args.name, &e))?;
        let found = discovery.pools.iter().find(|p| p.guid.0 == args.guid).ok_or_else(|| {
            Error::not_found(format!("cannot import '{}': no such pool available", args.name))
        })?;
        to.progress(&format!("importing {shown}"), 0, 0);
        let options = ImportOptions {
            readonly: args.readonly,
            force: args.force,
            rewind: args.rewind,
            dry_run: args.dry_run,
            extreme: args.extreme,
            txg: args.txg.map(Txg),
            rebuild_space: args.rebuild_space,
            missing_log: args.missing_log,
            altroot: args.altroot.clone(),
            new_name: args.new_name.clone(),
            temporary_name: args.temporary_name,
            ..ImportOptions::default()
        };
        let pool = self.engine.import(found, &options).map_err(|e| refused(&args.name, &e))?;
        let told = lost::tell(&pool, args.dry_run);
        if args.dry_run {
            return Ok((shown.to_owned(), told));
        }
        let name = pool.name().to_owned();
        if let Some(why) = pool.read_only_because() {
            to.remark(format!("'{name}' is imported read-only: {why}"));
        }
        let held = Held { pool: Arc::clone(&pool), args: lost::later(args, pool.is_readonly()) };
        self.pools.write().insert(name.clone(), held);
        if let Err(e) = self.save() {
            to.problem(format!("'{name}' will not be imported again at the next start: {e}"));
        }
        if !args.no_mount {
            self.mount_pool(&pool, &args.mount_options, to);
        }
        if let Err(e) = self.volumes.add(&pool) {
            to.problem(format!("the volumes of '{name}' do not appear as files: {e}"));
        }
        Ok((name, told))
    }

    /// Creates a pool, remembers it, and mounts it. `paths` are its devices.
    ///
    /// # Errors
    /// The engine's.
    pub(crate) fn create(
        &self,
        request: &CreateRequest,
        paths: Vec<PathBuf>,
        to: &mut dyn Listener,
    ) -> Result<()> {
        let _changing = self.changes.lock();
        let Some(pool) = self.engine.create_pool(request)? else { return Ok(()) };
        let name = pool.name().to_owned();
        let args = ImportArgs {
            search: SearchArgs { paths, destroyed: false },
            guid: pool.guid().0,
            name: request.name.clone(),
            altroot: request.altroot.clone(),
            new_name: request.temporary_name.clone(),
            temporary_name: request.temporary_name.is_some(),
            ..ImportArgs::default()
        };
        self.pools.write().insert(name.clone(), Held { pool: Arc::clone(&pool), args });
        if let Err(e) = self.save() {
            to.problem(format!("'{name}' will not be imported again at the next start: {e}"));
        }
        self.mount_pool(&pool, &[], to);
        if let Err(e) = self.volumes.add(&pool) {
            to.problem(format!("the volumes of '{name}' do not appear as files: {e}"));
        }
        Ok(())
    }

    /// Adds vdevs to a pool and remembers where they are.
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
        let _changing = self.changes.lock();
        let missing = || Error::not_found(format!("cannot open '{name}': no such pool"));
        let pool = self.pool(name).ok_or_else(missing)?;
        self.engine.add_vdevs(&pool, request)?;
        if request.dry_run {
            return Ok(());
        }
        if let Some(held) = self.pools.write().get_mut(name)
            && !held.args.search.paths.is_empty()
        {
            held.args.search.paths.extend(paths);
        }
        if let Err(e) = self.save() {
            to.problem(format!("the new devices of '{name}' are not remembered: {e}"));
        }
        Ok(())
    }

    /// Unmounts a pool, marks it destroyed and forgets it.
    ///
    /// # Errors
    /// The whole message for the user.
    pub(crate) fn destroy(
        &self,
        name: &str,
        force: bool,
        command: Option<&str>,
        to: &mut dyn Listener,
    ) -> Result<()> {
        let _changing = self.changes.lock();
        let missing = || Error::not_found(format!("cannot open '{name}': no such pool"));
        let pool = self.pool(name).ok_or_else(missing)?;
        if pool.is_readonly() {
            let text = format!("cannot destroy '{name}': pool is read-only");
            return Err(Error::new(ErrorKind::ReadOnly, text));
        }
        let below = format!("{name}/");
        if !self.unmount_where(|n| n == name || n.starts_with(&below), force, to) {
            let text = format!("could not destroy '{name}': could not unmount datasets");
            return Err(Error::busy(text));
        }
        self.volumes.remove(name);
        self.engine.destroy_pool(pool, command).map_err(|e| cannot("destroy", name, &e))?;
        self.pools.write().remove(name);
        self.save()
    }

    /// Imports again what the list names.
    pub(crate) fn import_saved(&self) {
        let saved: Vec<Saved> = match runtime::load(&self.runtime.pools()) {
            Ok(saved) => saved,
            Err(e) => return crate::ui::err(&format!("no pool is imported again: {e}")),
        };
        for Saved(mut args) in saved {
            // It was ours a moment ago.
            args.force = true;
            match self.import(&args, &mut Log) {
                Ok((name, _)) => crate::ui::err(&format!("imported '{name}' again")),
                Err(e) => crate::ui::err(&e.to_string()),
            }
        }
    }

    fn mount_pool(&self, pool: &Arc<Pool>, options: &[String], to: &mut dyn Listener) {
        match pool.root() {
            Ok(root) => self.mount_below(&root, options, to),
            Err(e) => to.problem(format!("cannot mount '{}': {e}", pool.name())),
        }
    }

    /// Mounts a dataset and what is below it, as far as `-a` would. Called under
    /// `changes`.
    pub(super) fn mount_below(&self, root: &Dataset, given: &[String], to: &mut dyn Listener) {
        let mut plans = Vec::new();
        let mut todo = vec![root.clone()];
        while let Some(dataset) = todo.pop() {
            match mounts::plan(&dataset, false) {
                Ok(Ok(plan)) => plans.push(plan),
                // Locked ones too stay away without a word, as without `-l`.
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
            if let Err(line) = self.mount_one(plan, given, true) {
                to.problem(line.message().to_owned());
            }
        }
    }

    pub(super) fn mount_one(
        &self,
        plan: &mounts::Plan,
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
        mounts::prepare(&plan.at, overlay).map_err(place)?;
        let fs = self.mounter.mount(&plan.dataset, &plan.at, &options).map_err(fail)?;
        self.mounts.lock().insert(name, plan.at.clone(), fs);
        self.save_mounts();
        Ok(())
    }

    /// `zfs mount DATASET`, `zfs mount -R DATASET`, `zfs mount -a`.
    ///
    /// # Errors
    /// The whole message for the user.
    pub(crate) fn mount(&self, args: &MountArgs, to: &mut dyn Listener) -> Result<()> {
        let _changing = self.changes.lock();
        self.mounts.lock().forget_dead();
        let given = args.options.as_slice();
        let Some(name) = args.target.as_deref() else {
            for name in self.names() {
                if let Some(pool) = self.pool(&name) {
                    self.mount_pool(&pool, given, to);
                }
            }
            return Ok(());
        };
        let (_, dataset) = self.open(name)?;
        if args.recursive {
            self.mount_below(&dataset, given, to);
            return Ok(());
        }
        let failed = |e| cannot("mount", name, &e);
        match mounts::plan(&dataset, true).map_err(failed)? {
            Ok(_) if self.is_mounted(name) => Err(Error::new(
                ErrorKind::Exists,
                format!("cannot mount '{name}': filesystem already mounted"),
            )),
            Ok(plan) => self.mount_one(&plan, given, args.force),
            Err(refusal) => Err(Error::invalid(refusal.message(name))),
        }
    }

    /// `zfs unmount`: by dataset, by mountpoint, or all.
    ///
    /// # Errors
    /// The whole message for the user.
    pub(crate) fn unmount(
        &self,
        target: Option<&str>,
        force: bool,
        to: &mut dyn Listener,
    ) -> Result<()> {
        let _changing = self.changes.lock();
        self.mounts.lock().forget_dead();
        let Some(target) = target else {
            self.unmount_where(|_| true, force, to);
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
            if !self.is_mounted(target) {
                return Err(Error::not_found(format!(
                    "cannot unmount '{target}': not currently mounted"
                )));
            }
            target.to_owned()
        };
        let under = format!("{dataset}/");
        if self.unmount_where(|n| n == dataset || n.starts_with(&under), force, to) {
            return Ok(());
        }
        Err(Error::busy(String::new()))
    }

    /// Unmounts what `wanted` accepts, children first; false if something stayed.
    pub(super) fn unmount_where(
        &self,
        wanted: impl Fn(&str) -> bool,
        force: bool,
        to: &mut dyn Listener,
    ) -> bool {
        let list = self.mounts.lock().deepest_first(wanted);
        let mut stayed: Vec<PathBuf> = Vec::new();
        for (name, at, fs) in list {
            // What holds a mount that stayed stays too: once told is enough.
            if stayed.iter().any(|below| below.starts_with(&at)) {
                continue;
            }
            match fs.unmount(force) {
                Ok(()) => self.mounts.lock().remove(&name),
                Err(_) if !fs.is_alive() => self.mounts.lock().remove(&name),
                Err(e) => {
                    stayed.push(at.clone());
                    let why = match e.kind() {
                        ErrorKind::Busy => "pool or dataset is busy".to_owned(),
                        _ => e.to_string(),
                    };
                    to.problem(format!("cannot unmount '{}': {why}", at.display()));
                }
            }
        }
        self.save_mounts();
        stayed.is_empty()
    }

    /// Unmounts and closes a pool and forgets it.
    ///
    /// # Errors
    /// The whole message for the user.
    pub(crate) fn export(&self, name: &str, force: bool, to: &mut dyn Listener) -> Result<()> {
        if force {
            self.give_up_suspended(|n| n == name);
        }
        let _changing = self.changes.lock();
        self.close(name, force, true, to)?;
        self.save()
    }

    /// Whoever waits for a suspended pool gets an error, or nobody could take it away.
    fn give_up_suspended(&self, wanted: impl Fn(&str) -> bool) {
        let pools: Vec<Arc<Pool>> =
            self.names().into_iter().filter(|n| wanted(n)).filter_map(|n| self.pool(&n)).collect();
        pools.iter().filter(|p| p.is_suspended()).for_each(|p| p.abandon());
    }

    /// Gives a pool up; `exporting` it, or leaving it to be imported again.
    fn close(&self, name: &str, force: bool, exporting: bool, to: &mut dyn Listener) -> Result<()> {
        if self.pool(name).is_none() {
            return Err(Error::not_found(format!("cannot open '{name}': no such pool")));
        }
        let below = format!("{name}/");
        if !self.unmount_where(|n| n == name || n.starts_with(&below), force, to) {
            return Err(Error::busy(format!("cannot export '{name}': pool is busy")));
        }
        self.volumes.remove(name);
        let held = self.pools.write().remove(name);
        let Some(held) = held else { return Ok(()) };
        let done = if exporting { held.pool.export() } else { held.pool.close() };
        match done {
            // What cannot be written is given up only by force.
            Err(e) if !force => {
                self.pools.write().insert(name.to_owned(), held);
                Err(cannot("export", name, &e))
            }
            Err(e) => {
                to.problem(format!("'{name}' is left as it was last synced: {e}"));
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// Closes everything. With `forget` the pools are not imported again.
    ///
    /// # Errors
    /// The whole message for the user.
    pub(crate) fn close_all(&self, force: bool, forget: bool, to: &mut dyn Listener) -> Result<()> {
        if force {
            self.give_up_suspended(|_| true);
        }
        let _changing = self.changes.lock();
        for name in self.names() {
            self.close(&name, force, forget, to)?;
        }
        self.volumes.end();
        if let Some(mount) = self.kstats.lock().take() {
            mount.end();
        }
        if forget { self.save() } else { Ok(()) }
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

    /// Pools that could be imported.
    ///
    /// # Errors
    /// The engine's.
    pub(crate) fn discover(
        &self,
        search: &SearchArgs,
    ) -> Result<(Vec<crate::proto::Found>, Vec<String>)> {
        let found = self
            .engine
            .discover(&Search { paths: search.paths.clone(), destroyed: search.destroyed })?;
        let ours: Vec<u64> = self.pools.read().values().map(|h| h.pool.guid().0).collect();
        let pools = found.pools.iter().filter(|p| !ours.contains(&p.guid.0));
        let problems = found.problems.iter().map(|(p, e)| engine::problem(p, e));
        Ok((pools.map(super::convert::found).collect(), problems.collect()))
    }
}
