//! How pools are closed: export, destruction, and the daemon's end.
//!
//! # Theory
//! Unmounting and writing the last txgs run on a watched thread ([`super::watched`]). Without
//! force there is no time limit, and the client is told what the work waits for. With force the
//! time is limited:
//!
//! 1. A pool is given up if it is suspended, if its device keeps an operation for [`GIVE_UP`],
//!    or if its devices complete nothing for [`STALLED`] while it is not closed. Every thread
//!    that waits for it gets an error, and the work ends.
//! 2. If the work does not end within [`LEFT_BEHIND`], one of its threads is blocked in the
//!    kernel. The mounts are aborted, the pool is removed from the list, and the work is
//!    abandoned.
//! 3. If another thread holds the pool's lock and hangs, its work is treated in the same
//!    manner.
//!
//! So force takes at most `STALLED` + `LEFT_BEHIND` after the last sign of activity, whatever
//! the devices do. A healthy pool that has much to write gets the time it needs.
//!
//! # Guarantee
//! A pool that was given up is on disk as it was last synced, with its intent logs. Giving it
//! up is a crash (`cenote::opening`), and the next import treats it as one.

use std::sync::Arc;
use std::time::Duration;

use base::{Error, ErrorKind, Result, rt};
use cenote::Pool;

use super::handle::RowListener;
use super::mounts::UnmountReason;
use super::registry::{Phase, PoolLockGuard, Slot};
use super::state::{DaemonState, Listener, Log, cannot};
use super::suspended;
use super::watched::{Relay, run_watched};

/// Force gives a pool up when a device keeps an operation for this long.
const GIVE_UP: Duration = Duration::from_secs(5);
/// Force gives a pool up when its devices complete nothing for this long.
const STALLED: Duration = Duration::from_secs(30);
/// Time limit for work whose I/O only returns errors.
const LEFT_BEHIND: Duration = Duration::from_secs(3);

/// Time limit for aborting its mounts while a client waits.
const ABORT_TIMEOUT: Duration = Duration::from_secs(1);

/// How a pool is closed.
#[derive(Clone)]
enum CloseMode {
    /// Marked exported.
    Export,
    /// Unchanged, to be imported again.
    Close,
    /// Marked destroyed; with the command for its history.
    Destroy(Option<String>),
}

impl CloseMode {
    fn verb(&self) -> &'static str {
        match self {
            CloseMode::Destroy(_) => "destroy",
            CloseMode::Export | CloseMode::Close => "export",
        }
    }
}

/// Watches whether a pool's devices complete operations.
struct ActivityMonitor {
    activity: u64,
    since: rt::Instant,
    given_up: Option<rt::Instant>,
}

impl ActivityMonitor {
    fn new() -> ActivityMonitor {
        ActivityMonitor { activity: u64::MAX, since: rt::now(), given_up: None }
    }

    /// Gives the pool up if it hangs; true if that was so long ago that its work is to be
    /// abandoned.
    fn check(&mut self, slot: &Slot) -> bool {
        if let Some(when) = self.given_up {
            return when.elapsed() > LEFT_BEHIND;
        }
        let now = slot.opening().activity();
        if now != self.activity {
            (self.activity, self.since) = (now, rt::now());
        }
        let silent = slot.opening().silence().is_some_and(|s| s.1 > GIVE_UP);
        if slot.is_suspended() || silent || self.since.elapsed() > STALLED {
            slot.give_up();
            self.given_up = Some(rt::now());
        }
        false
    }
}

fn below(name: &str) -> impl Fn(&str) -> bool + use<> {
    let name = name.to_owned();
    move |n: &str| n.strip_prefix(&name).is_some_and(|r| r.is_empty() || r.starts_with('/'))
}

impl DaemonState {
    /// Unmounts, closes and forgets a pool.
    ///
    /// # Errors
    /// The whole message for the user.
    pub(crate) fn export(
        self: &Arc<Self>,
        name: &str,
        force: bool,
        to: &mut dyn RowListener,
    ) -> Result<()> {
        let slot = self.registry().find(name)?;
        self.close(&slot, CloseMode::Export, force, to)?;
        self.save()
    }

    /// Unmounts a pool, marks it destroyed and forgets it.
    ///
    /// # Errors
    /// The whole message for the user.
    pub(crate) fn destroy(
        self: &Arc<Self>,
        name: &str,
        force: bool,
        command: Option<&str>,
        to: &mut dyn RowListener,
    ) -> Result<()> {
        let slot = self.registry().find(name)?;
        if slot.pool().is_some_and(|p| p.is_readonly()) {
            let text = format!("cannot destroy '{name}': pool is read-only");
            return Err(Error::new(ErrorKind::ReadOnly, text));
        }
        self.close(&slot, CloseMode::Destroy(command.map(str::to_owned)), force, to)?;
        self.save()
    }

    /// Takes the lock of a pool that is closed by force; `None` if its holder hangs and the
    /// pool was given up.
    fn lock_by_force(&self, slot: &Arc<Slot>, to: &mut dyn RowListener) -> Option<PoolLockGuard> {
        let what = "it is taken away by force";
        let mut monitor = ActivityMonitor::new();
        loop {
            if let Some(lock) = slot.try_lock_within(what, Duration::from_millis(250)) {
                return Some(lock);
            }
            // Nothing was written of a pool that is not open yet.
            if slot.pool().is_none() {
                slot.give_up();
                return slot.try_lock_within(what, Duration::from_secs(1));
            }
            if monitor.check(slot) {
                return None;
            }
            if let Some((held, time)) = slot.lock_holder() {
                let line = format!("'{}': {held}, for {} s", slot.name(), time.as_secs());
                to.progress(&line, 0, 0);
            }
        }
    }

    /// Closes a pool as `ending` says.
    fn close(
        self: &Arc<Self>,
        slot: &Arc<Slot>,
        ending: CloseMode,
        force: bool,
        to: &mut dyn RowListener,
    ) -> Result<()> {
        let (name, verb) = (slot.name().to_owned(), ending.verb());
        if !force && slot.is_suspended() {
            let text = format!("cannot {verb} '{name}': pool I/O is currently suspended");
            return Err(Error::new(ErrorKind::Io, text));
        }
        // A command that held the pool may release it meanwhile.
        let was_open = slot.pool().is_some();
        let lock = match force {
            true => self.lock_by_force(slot, to),
            false => {
                let lock = slot.lock_pool(&format!("{verb} is under way"), to);
                Some(lock.map_err(|e| suspended::in_message(verb, &name, e))?)
            }
        };
        let (Some(lock), Some(pool), false) = (lock, slot.pool(), slot.is_gone()) else {
            self.release_pool(slot);
            return self.given_up(&name, &ending, was_open, to);
        };
        slot.set_phase(Phase::Closing);
        let mut monitor = ActivityMonitor::new();
        if force {
            monitor.check(slot);
        }
        let leave = &mut |to: &mut dyn RowListener, _| {
            if let Some((device, time)) = slot.silence() {
                let line =
                    format!("{verb} '{name}': {device} has not answered for {} s", time.as_secs());
                to.progress(&line, 0, 0);
            }
            if force { monitor.check(slot) } else { to.is_gone() }
        };
        let (state, own, how) = (Arc::clone(self), Arc::clone(slot), ending.clone());
        let done = run_watched(to, leave, move |relay| {
            let lock = lock;
            let done = state.close_steps(lock.slot(), &pool, &how, force, relay);
            // Its files are closed before the client learns that the pool is gone.
            drop(pool);
            if done.is_ok() {
                state.release_pool(&own);
            } else {
                own.set_phase(Phase::Open);
            }
            done
        });
        let was_given_up = slot.opening().is_given_up();
        match done {
            Some(Ok(())) => Ok(()),
            // A pool that cannot be written is given up only by force; a pool in use stays.
            Some(Err(e)) if !was_given_up => Err(e),
            None if !force => {
                let text = format!("{verb} '{name}': interrupted; it goes on by itself");
                Err(Error::new(ErrorKind::Interrupted, text))
            }
            _ => {
                self.release_pool(slot);
                self.given_up(&name, &ending, true, to)
            }
        }
    }

    /// The result for a pool that was given up.
    fn given_up(
        &self,
        name: &str,
        ending: &CloseMode,
        was_open: bool,
        to: &mut dyn RowListener,
    ) -> Result<()> {
        self.save()?;
        match ending {
            CloseMode::Destroy(_) if was_open => {
                let text = format!(
                    "cannot destroy '{name}': its devices cannot be written; it is gone from \
                     here, and left as it was last synced"
                );
                return Err(Error::new(ErrorKind::Io, text));
            }
            _ if was_open => to.remark(format!("'{name}' is left as it was last synced")),
            _ => to.remark(format!("'{name}' is given up; nothing was written to it")),
        }
        Ok(())
    }

    fn close_steps(
        &self,
        slot: &Arc<Slot>,
        pool: &Arc<Pool>,
        ending: &CloseMode,
        force: bool,
        to: &mut Relay,
    ) -> Result<()> {
        let name = slot.name();
        let in_use = !force && self.volumes_are_open(name);
        if in_use || !self.unmount_where(below(name), UnmountReason::Exported, force, to) {
            return Err(Error::busy(match ending {
                CloseMode::Destroy(_) => {
                    format!("could not destroy '{name}': could not unmount datasets")
                }
                CloseMode::Export | CloseMode::Close => {
                    format!("cannot export '{name}': pool is busy")
                }
            }));
        }
        self.forget_volumes(name);
        let done = match ending {
            CloseMode::Export => pool.export(),
            CloseMode::Close => pool.close(),
            CloseMode::Destroy(command) => {
                self.engine().destroy_pool(Arc::clone(pool), command.as_deref())
            }
        };
        match done {
            Err(e) if force && !matches!(ending, CloseMode::Destroy(_)) => {
                to.remark(format!("'{name}' is left as it was last synced: {e}"));
                Ok(())
            }
            done => done.map_err(|e| cannot(ending.verb(), name, &e)),
        }
    }

    /// Removes a pool from the list and, if it was given up, aborts its mounts. A thread that
    /// no other waits for does that, because the pool's devices may be silent.
    pub(super) fn release_pool(self: &Arc<Self>, slot: &Arc<Slot>) {
        if slot.is_gone() {
            return;
        }
        if !slot.opening().is_given_up() {
            return drop(self.registry().remove(slot));
        }
        let left = self.take_mounts(below(slot.name()));
        let held = self.registry().remove(slot);
        let (state, name) = (Arc::clone(self), slot.name().to_owned());
        let rest = move |_: &mut Relay| {
            left.iter().for_each(|mount| mount.abort());
            state.forget_volumes(&name);
            drop((left, held));
        };
        // The daemon may end next: wait until its mounts are aborted, unless that hangs, too.
        let _aborted = run_watched(&mut Log, &mut |_, quiet| quiet > ABORT_TIMEOUT, rest);
    }

    /// Closes all pools at once. With `forget` they are not imported again.
    ///
    /// # Errors
    /// The whole message for the user; the pools that could be closed are.
    pub(crate) fn close_all(
        self: &Arc<Self>,
        force: bool,
        forget: bool,
        to: &mut dyn RowListener,
    ) -> Result<()> {
        let ending = if forget { CloseMode::Export } else { CloseMode::Close };
        // A pool that cannot be closed leaves the others imported.
        let suspended = |slot: &Arc<Slot>| slot.is_suspended();
        if let Some(slot) = self.registry().all().into_iter().find(|s| !force && suspended(s)) {
            return self.close(&slot, ending, false, to);
        }
        let state = Arc::clone(self);
        let all = move |relay: &mut Relay| {
            let close = |slot: Arc<Slot>| {
                let (state, ending, mut to) = (Arc::clone(&state), ending.clone(), relay.clone());
                rt::spawn("close", move || state.close(&slot, ending, force, &mut to))
            };
            let threads: Vec<_> = state.registry().all().into_iter().map(close).collect();
            let mut done = Ok(());
            for thread in threads {
                let broke = || Err(Error::bug("a thread that closed a pool broke off"));
                let one = thread.and_then(|t| t.join().unwrap_or_else(broke));
                if let Err(e) = one {
                    match done {
                        Ok(()) => done = Err(e),
                        Err(_) => Listener::problem(relay, e.message().to_owned()),
                    }
                }
            }
            done
        };
        let done = run_watched(to, &mut |to, _| !force && to.is_gone(), all);
        let gone = || Error::new(ErrorKind::Interrupted, "the client is gone");
        let done = done.ok_or_else(gone)?;
        if forget {
            self.save()?;
        }
        done?;
        let state = Arc::clone(self);
        // The daemon's own mounts answer, but a process may use them.
        let ended =
            run_watched(&mut Log, &mut |_, quiet| quiet > LEFT_BEHIND, move |_| state.end_own());
        ended.unwrap_or(());
        Ok(())
    }
}
