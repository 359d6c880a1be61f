//! How pools become available: imports, imports at the daemon's start, creation.
//!
//! # Theory
//! The states are described in [`super::registry`]. The engine's work runs on a watched thread
//! ([`super::watched`]). The watcher leaves when the first txg cannot be written: then the pool
//! is in the list, suspended. The work continues, and mounts the pool's datasets once `zpool
//! clear` resumes the pool. The watcher also leaves when the client disconnects; a pool of
//! which nothing was written is given up then.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use base::{Error, ErrorKind, Result, Txg, rt};
use cenote::create::CreateRequest;
use cenote::{ImportOptions, Pool, Search};
use proto::runtime;
use proto::{ImportArgs, SearchArgs};

use super::handle::RowListener;
use super::recovery;
use super::registry::{Phase, Slot};
use super::state::{DaemonState, Listener, Log, SavedPool, cannot};
use super::watched::{Relay, run_watched};
use super::{mount_dirs, mounts};

/// Time between two checks whether the pools are available.
const READY_POLL: Duration = Duration::from_millis(20);
/// How long the service manager waits for the pools of an earlier daemon.
const READY_MAX: Duration = Duration::from_secs(15);

/// The result of an import: the pool's name, and lines for the client's standard output.
type ImportOutcome = (String, Vec<String>);

/// The error for a pool that lacks devices, in OpenZFS's words. Read errors of its devices go
/// to the log.
fn refused(name: &str, e: &Error) -> Error {
    if e.message() == "checkpoint does not exist" {
        return Error::new(e.kind(), format!("cannot import '{name}': {}", e.message()));
    }
    if e.kind() != ErrorKind::DevicesMissing {
        return cannot("import", name, e);
    }
    ui::err(&format!("cannot import '{name}': {e}"));
    Error::new(e.kind(), format!("cannot import '{name}': {}", e.message()))
}

fn exists(name: &str) -> Error {
    let text = format!(
        "cannot import '{name}': a pool with that name already exists\nuse the form 'zpool \
         import <pool | id> <newpool>' to give it a new name"
    );
    Error::new(ErrorKind::Exists, text)
}

/// Forwards the work's messages to a client that may stop waiting; then the work continues as
/// if a client still listened.
struct DetachableListener {
    relay: Relay,
    /// The client got the answer that the pool is suspended.
    waits: Arc<AtomicBool>,
}

impl Listener for DetachableListener {
    fn progress(&mut self, what: &str, done: u64, total: u64) {
        self.relay.progress(what, done, total);
    }
    fn problem(&mut self, line: String) {
        self.relay.problem(line);
    }
    fn remark(&mut self, line: String) {
        self.relay.remark(line);
    }
    fn is_gone(&self) -> bool {
        self.relay.is_gone() && !self.waits.load(SeqCst)
    }
}

/// The message about a pool whose first txg cannot be written.
fn suspended(action: &str, slot: &Slot) -> Error {
    let name = slot.name();
    let why =
        slot.pool().and_then(|p| p.suspended_because()).map_or(String::new(), |e| format!(": {e}"));
    let text = format!(
        "cannot {action} '{name}' yet: pool I/O is currently suspended{why}\nrun 'zpool clear \
         {name}' when its devices can be written, or 'zpool export -f {name}' to give it up"
    );
    Error::new(ErrorKind::Io, text)
}

impl DaemonState {
    /// Imports a pool and mounts its datasets. Returns its name, and a report if it was rewound
    /// or its space maps were rebuilt.
    ///
    /// # Errors
    /// The whole message for the user. If the pool was suspended, it stays in the list.
    pub(crate) fn import(
        self: &Arc<Self>,
        args: &ImportArgs,
        to: &mut dyn RowListener,
    ) -> Result<ImportOutcome> {
        let shown = args.new_name.as_deref().unwrap_or(&args.name);
        let slot = Slot::new(shown, args.clone(), Phase::Importing, false);
        match self.insert(&slot) {
            Ok(()) => self.import_into(&slot, to),
            Err(other) if other.is_again() && other.guid() == Some(args.guid) => {
                let name = other.name();
                let line = match name == shown {
                    true => format!("'{shown}' is imported: the daemon did so when it started"),
                    false => format!(
                        "cannot import '{shown}': the daemon imported it as '{name}' when it \
                         started"
                    ),
                };
                if name != shown {
                    return Err(Error::new(ErrorKind::Exists, line));
                }
                to.remark(line);
                Ok((shown.to_owned(), Vec::new()))
            }
            Err(_) => Err(exists(shown)),
        }
    }

    fn insert(&self, slot: &Arc<Slot>) -> std::result::Result<(), Arc<Slot>> {
        self.registry().insert(slot)
    }

    fn import_into(
        self: &Arc<Self>,
        slot: &Arc<Slot>,
        to: &mut dyn RowListener,
    ) -> Result<ImportOutcome> {
        let (state, own) = (Arc::clone(self), Arc::clone(slot));
        self.run_import(slot, "import", to, move |to| state.import_steps(&own, to))
    }

    /// Runs the import of a new slot; a failure removes the slot.
    fn run_import(
        self: &Arc<Self>,
        slot: &Arc<Slot>,
        action: &'static str,
        to: &mut dyn RowListener,
        steps: impl FnOnce(&mut dyn Listener) -> Result<ImportOutcome> + Send + 'static,
    ) -> Result<ImportOutcome> {
        let lock = slot.lock_pool(&format!("{action} is under way"), to)?;
        let (state, own) = (Arc::clone(self), Arc::clone(slot));
        let (waits, mut cancelled) = (Arc::new(AtomicBool::new(false)), false);
        let client_waits = Arc::clone(&waits);
        let leave = &mut |to: &mut dyn RowListener, _| {
            let suspended = slot.is_suspended();
            waits.store(suspended, SeqCst);
            if let Some((device, time)) = slot.silence() {
                let line = format!(
                    "{action} '{}': {device} has not answered for {} s",
                    slot.name(),
                    time.as_secs()
                );
                to.progress(&line, 0, 0);
            }
            if to.is_gone() && slot.pool().is_none() {
                cancelled = true;
            }
            suspended || to.is_gone() || slot.is_gone()
        };
        let done = run_watched(to, leave, move |relay| {
            let _turn = lock;
            let done = steps(&mut DetachableListener { relay: relay.clone(), waits: client_waits });
            if done.is_err() {
                state.release_pool(&own);
            }
            done
        });
        if cancelled {
            slot.give_up();
            self.release_pool(slot);
        }
        match done {
            Some(done) => done,
            None if waits.load(SeqCst) => Err(suspended(action, slot)),
            None => {
                let text = format!("cannot {action} '{}': it was given up", slot.name());
                Err(Error::new(ErrorKind::Interrupted, text))
            }
        }
    }

    fn import_steps(
        self: &Arc<Self>,
        slot: &Arc<Slot>,
        to: &mut dyn Listener,
    ) -> Result<ImportOutcome> {
        let args = slot.args();
        if self.is_ending() {
            return Err(Error::busy(format!("cannot import '{}': the daemon ends", args.name)));
        }
        to.progress(&format!("looking for {}", args.name), 0, 0);
        let search = Search { paths: args.search.paths.clone(), destroyed: args.search.destroyed };
        let discovery =
            self.engine().discover(&search).map_err(|e| cannot("import", &args.name, &e))?;
        let found = discovery.pools.iter().find(|p| p.guid.0 == args.guid).ok_or_else(|| {
            let name = &args.name;
            Error::not_found(format!("cannot import '{name}': no such pool available"))
        })?;
        to.progress(&format!("importing {}", slot.name()), 0, 0);
        let options = ImportOptions {
            readonly: args.readonly,
            force: args.force,
            rewind: args.rewind,
            dry_run: args.dry_run,
            extreme: args.extreme,
            txg: args.txg.map(Txg),
            rebuild_space: args.rebuild_space,
            checkpoint: args.checkpoint,
            missing_log: args.missing_log,
            altroot: args.altroot.clone(),
            new_name: args.new_name.clone(),
            temporary_name: args.temporary_name,
            ..ImportOptions::default()
        };
        let pool = self.engine().import_through(found, &options, slot.opening());
        let pool = pool.map_err(|e| match &found.held_up {
            Some(why) => Error::busy(format!("cannot import '{}': {why}", args.name)),
            None => refused(&args.name, &e),
        })?;
        let lines = recovery::report(&pool, args.dry_run);
        if args.dry_run {
            drop(pool);
            self.release_pool(slot);
            return Ok((slot.name().to_owned(), lines));
        }
        slot.change_args(|args| *args = recovery::later(args, pool.is_readonly()));
        if let Some(why) = pool.read_only_because() {
            to.remark(format!("'{}' is imported read-only: {why}", slot.name()));
        }
        let name = self.settle(slot, &pool, !args.no_mount, &args.mount_options, to)?;
        Ok((name, lines))
    }

    /// Records and mounts a pool that is open.
    fn settle(
        &self,
        slot: &Arc<Slot>,
        pool: &Arc<Pool>,
        mounts: bool,
        options: &[String],
        to: &mut dyn Listener,
    ) -> Result<String> {
        let name = slot.name().to_owned();
        if !slot.open(Arc::clone(pool)) {
            return Err(Error::new(ErrorKind::Interrupted, format!("'{name}' was given up")));
        }
        if let Err(e) = self.save() {
            to.problem(format!("'{name}' will not be imported again at the next start: {e}"));
        }
        if mounts {
            self.mount_pool(pool, options, to);
        }
        if let Err(e) = self.volumes_of(pool) {
            to.problem(format!("the volumes of '{name}' do not appear as files: {e}"));
        }
        Ok(name)
    }

    /// Creates a pool, records it, and mounts it. `paths` are its devices.
    ///
    /// # Errors
    /// The engine's.
    pub(crate) fn create(
        self: &Arc<Self>,
        request: CreateRequest,
        paths: Vec<PathBuf>,
        to: &mut dyn RowListener,
    ) -> Result<()> {
        if let Some(at) = mounts::mountpoint_of_new(&request) {
            mount_dirs::check(&at).map_err(|why| {
                let text = format!(
                    "mountpoint '{}' : {why}\nuse '-m' option to provide a different default",
                    at.display()
                );
                Error::permission(text)
            })?;
        }
        let name = request.temporary_name.as_deref().unwrap_or(&request.name).to_owned();
        let args = ImportArgs {
            search: SearchArgs { paths, destroyed: false },
            name: request.name.clone(),
            altroot: request.altroot.clone(),
            new_name: request.temporary_name.clone(),
            temporary_name: request.temporary_name.is_some(),
            ..ImportArgs::default()
        };
        let slot = Slot::new(&name, args, Phase::Creating, false);
        if self.insert(&slot).is_err() {
            return Err(Error::new(ErrorKind::Exists, "pool already exists"));
        }
        let (state, own) = (Arc::clone(self), Arc::clone(&slot));
        let steps = move |to: &mut dyn Listener| {
            if state.is_ending() {
                return Err(Error::busy("the daemon ends"));
            }
            match state.engine().create_pool_through(&request, own.opening())? {
                Some(pool) => {
                    let name = state.settle(&own, &pool, true, &[], to)?;
                    Ok((name, Vec::new()))
                }
                None => {
                    state.release_pool(&own);
                    Ok((own.name().to_owned(), Vec::new()))
                }
            }
        };
        self.run_import(&slot, "create", to, steps).map(drop)
    }

    /// Imports the pools of the stored list, each on a thread of its own, and notifies the
    /// service manager when they are available. The pools are in the registry when this
    /// returns.
    pub(crate) fn import_saved(self: &Arc<Self>) {
        let saved: Vec<SavedPool> = match runtime::load(&self.runtime().pools()) {
            Ok(saved) => saved,
            Err(e) => {
                ui::err(&format!("no pool is imported again: {e}"));
                Vec::new()
            }
        };
        for SavedPool(mut args) in saved {
            // This host had the pool a moment ago.
            args.force = true;
            let shown = args.new_name.as_deref().unwrap_or(&args.name).to_owned();
            let slot = Slot::new(&shown, args, Phase::Importing, true);
            if self.insert(&slot).is_err() {
                ui::err(&format!("'{shown}' is in the list of pools twice"));
                continue;
            }
            let (state, own) = (Arc::clone(self), Arc::clone(&slot));
            let again = move || match state.import_into(&own, &mut Log) {
                Ok((name, _)) => ui::err(&format!("imported '{name}' again")),
                Err(e) => ui::err(e.message()),
            };
            if let Err(e) = rt::spawn("import", again) {
                ui::err(&format!("'{shown}' is not imported again: {e}"));
                self.release_pool(&slot);
            }
        }
        let state = Arc::clone(self);
        let ready = move || {
            state.await_start(READY_MAX, &mut Log);
            super::notify::ready();
        };
        if rt::spawn("ready", ready).is_err() {
            super::notify::ready();
        }
    }

    /// Waits for the pools of an earlier daemon while they are being imported, but not for
    /// those that are suspended or whose devices do not answer.
    pub(super) fn await_start(&self, limit: Duration, to: &mut dyn RowListener) {
        let begin = rt::now();
        loop {
            let on_its_way = |slot: &Arc<Slot>| {
                slot.is_again()
                    && slot.phase() == Phase::Importing
                    && slot.silence().is_none()
                    && !slot.is_suspended()
            };
            let all = self.registry().all();
            let Some(slot) = all.iter().find(|s| on_its_way(s)) else { return };
            if begin.elapsed() > limit || to.is_gone() {
                return;
            }
            to.progress(&format!("importing {} again", slot.name()), 0, 0);
            rt::sleep(READY_POLL);
        }
    }
}
