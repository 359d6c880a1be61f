//! Monitoring of the machine's memory for the cache.
//!
//! # Theory
//! [`Reader`] reads every source that the system has: the machine's own figures, the limits
//! of this process's control group and those above it, and the time that tasks stalled for
//! memory. A [`Monitor`]'s thread reads them five times a second (an unprivileged trigger
//! on stalls has windows of two seconds only). [`arc::Pressure`] evaluates them, and the
//! result is passed to the cache's [`MemoryHooks`].
//!
//! # Invariants
//! * Every file is read below one root, which tests replace, and at most 1 MiB of it.
//!   Malformed contents are errors.
//! * While memory cannot be read, nothing changes; the hooks are notified once.
//! * The thread has ended when [`Monitor`] is dropped.
//!
//! Lock order: the monitor's lock and the configuration's are leaves; hooks are called
//! under neither.

mod source;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc::pressure::{Action, FALLBACK_ARC_MAX, Status};
use arc::{MemorySample, Pressure};
use base::rt::{self, Condvar, JoinHandle, Mutex};
use base::{Error, Result};

pub use source::Reader;

/// The time between two samples.
pub(crate) const INTERVAL: Duration = Duration::from_millis(200);

/// The memory below `root`, or a warning with the assumed values (`None` is what
/// [`arc::pressure::default_sizes`] takes for that).
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

/// The interface of the monitor to the cache. A hook must not own the monitor.
pub trait MemoryHooks: Send + 'static {
    /// The size of the cache, and its target, bytes.
    fn sizes(&mut self) -> (u64, u64);

    /// The result of one sample; mostly [`Action::Keep`]. On [`Action::ShrinkTo`] memory
    /// without references is returned to the system before the call returns.
    fn act(&mut self, action: Action, status: &Status);

    /// Memory can no longer be read. Further failures are not reported.
    fn problem(&mut self, _error: &Error) {}
}

#[derive(Default)]
struct Flags {
    stop: bool,
    look: bool,
}

#[derive(Default)]
struct MonitorShared {
    flags: Mutex<Flags>,
    changed: Condvar,
}

/// The monitoring thread; it ends when this value is dropped.
pub struct Monitor {
    shared: Arc<MonitorShared>,
    thread: Option<JoinHandle<()>>,
}

impl Monitor {
    /// Starts monitoring the system below `root` (`/`). `config` may change at any time.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(
        root: PathBuf,
        config: Arc<Mutex<arc::Config>>,
        hooks: impl MemoryHooks,
    ) -> Result<Monitor> {
        let shared = Arc::<MonitorShared>::default();
        let other = Arc::clone(&shared);
        let thread =
            rt::spawn("memory-monitor", move || watch(&other, Reader::new(&root), &config, hooks))?;
        Ok(Monitor { shared, thread: Some(thread) })
    }

    /// Requests a sample now.
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
    shared: &MonitorShared,
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
