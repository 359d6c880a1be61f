//! The machine's memory, watched on the cache's behalf.
//!
//! # Theory
//! [`Reader`] reads every source the system has: the machine's own figures, the
//! limits of this process's control group and those above it, and the time that
//! tasks stalled for memory. A [`Monitor`]'s thread reads them five times a second
//! (an unprivileged trigger on stalls has windows of two seconds only), has
//! [`arc::Pressure`] judge them, and hands the verdict to the cache's
//! [`MemoryHooks`].
//!
//! # Invariants
//! * Every file is read below one root, which tests replace, and at most
//!   1 MiB of it. Odd contents are errors.
//! * While memory cannot be read, nothing changes but that the hooks are told, once.
//! * The thread has ended when [`Monitor`] is dropped.
//!
//! Lock order: the monitor's lock and the configuration's are leaves; hooks are
//! called under neither.

mod source;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc::pressure::{Action, FALLBACK_ARC_MAX, Status};
use arc::{MemorySample, Pressure};
use base::rt::{self, Condvar, JoinHandle, Mutex};
use base::{Error, Result};

pub use source::Reader;

/// From one look to the next.
pub const INTERVAL: Duration = Duration::from_millis(200);

/// The memory below `root`, or a warning that says what is assumed instead
/// (`None` is what [`arc::pressure::default_sizes`] takes for that).
pub fn probe(root: &Path) -> (Option<MemorySample>, Option<String>) {
    match Reader::new(root).sample() {
        Ok(sample) => (Some(sample), None),
        Err(e) => {
            let mib = FALLBACK_ARC_MAX >> 20;
            let text = format!(
                "cannot tell how much memory there is ({e}): the cache takes at most {mib} MiB; \
                 set zfs_arc_max to change that"
            );
            (None, Some(text))
        }
    }
}

/// The cache, as the monitor sees it. A hook must not own the monitor.
pub trait MemoryHooks: Send + 'static {
    /// Bytes the cache takes, and its target.
    fn sizes(&mut self) -> (u64, u64);

    /// The verdict on one look; mostly [`Action::Keep`]. On [`Action::ShrinkTo`] the
    /// memory goes back to the system before the call returns, as far as nobody
    /// holds it.
    fn act(&mut self, action: Action, status: &Status);

    /// Memory can no longer be read; it is tried again and again, in silence.
    fn problem(&mut self, _error: &Error) {}
}

#[derive(Default)]
struct Flags {
    stop: bool,
    look: bool,
}

#[derive(Default)]
struct Shared {
    flags: Mutex<Flags>,
    changed: Condvar,
}

/// The thread that watches memory; it ends with this value.
pub struct Monitor {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Monitor {
    /// Starts watching the system below `root` (`/`). `config` may change at any
    /// time.
    ///
    /// # Errors
    /// When no thread can be had.
    pub fn start(
        root: PathBuf,
        config: Arc<Mutex<arc::Config>>,
        hooks: impl MemoryHooks,
    ) -> Result<Monitor> {
        let shared = Arc::<Shared>::default();
        let other = Arc::clone(&shared);
        let thread =
            rt::spawn("memory-monitor", move || watch(&other, Reader::new(&root), &config, hooks))?;
        Ok(Monitor { shared, thread: Some(thread) })
    }

    /// Has it look now instead of at the next turn.
    pub fn look(&self) {
        self.shared.flags.lock().look = true;
        self.shared.changed.notify_all();
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.shared.flags.lock().stop = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            thread.join();
        }
    }
}

fn watch(
    shared: &Shared,
    mut reader: Reader,
    config: &Mutex<arc::Config>,
    mut hooks: impl MemoryHooks,
) {
    let start = rt::now();
    let mut pressure = Pressure::new(*config.lock());
    let mut broken = false;
    loop {
        pressure.set_config(*config.lock());
        match reader.sample() {
            Ok(sample) => {
                broken = false;
                let (size, c) = hooks.sizes();
                let action = pressure.step(start.elapsed(), &sample, size, c);
                hooks.act(action, &pressure.status());
            }
            Err(e) if !broken => {
                broken = true;
                hooks.problem(&e);
            }
            Err(_) => {}
        }
        let mut flags = shared.flags.lock();
        if !flags.stop && !flags.look {
            shared.changed.wait_timeout(&mut flags, INTERVAL);
        }
        if flags.stop {
            return;
        }
        flags.look = false;
    }
}

#[cfg(test)]
mod tests;
