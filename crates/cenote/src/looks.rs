//! Inspections of pools that a search has begun ([`crate::Engine::discover`]).
//!
//! # Theory
//! A search opens each pool that it finds, on a thread of its own, and waits for it for a few
//! seconds. An inspection that takes longer, because devices are slow or the machine is busy, goes
//! on without anyone who waits for its result. Its devices are locked for reading until it ends.
//! Who imports the pool to write it, most likely right after the search, would find them locked.
//! So an import first waits for the inspections of its own process.
//!
//! # Invariants
//! * An inspection is listed as long as it may have a device open.
//! * No import waits longer than [`PATIENCE`]: a device may never answer. It fails then, because the
//!   devices are locked.
//!
//! Lock order: `running` is a leaf lock.

use std::sync::Arc;
use std::time::Duration;

use base::Guid;
use base::rt::{Condvar, Mutex};

/// How long an import waits.
const PATIENCE: Duration = Duration::from_secs(30);
/// How soon an import that was given up ends.
const CHECK: Duration = Duration::from_millis(100);

/// The inspections under way.
#[derive(Default)]
pub(crate) struct Looks {
    running: Mutex<Vec<Guid>>,
    ended: Condvar,
}

/// An inspection of a pool; dropped when its devices are closed.
pub(crate) struct Look {
    all: Arc<Looks>,
    pool: Guid,
}

impl Looks {
    /// Notes that a pool's devices are about to be opened.
    pub(crate) fn begin(self: &Arc<Self>, pool: Guid) -> Look {
        self.running.lock().push(pool);
        Look { all: Arc::clone(self), pool }
    }

    /// Waits until no inspection of a pool is under way, or `is_over`.
    pub(crate) fn wait(&self, pool: Guid, is_over: &dyn Fn() -> bool) {
        let begin = base::rt::now();
        let mut running = self.running.lock();
        while running.contains(&pool) && begin.elapsed() < PATIENCE && !is_over() {
            self.ended.wait_timeout(&mut running, CHECK);
        }
    }
}

impl Drop for Look {
    fn drop(&mut self) {
        let mut running = self.all.running.lock();
        if let Some(at) = running.iter().position(|guid| *guid == self.pool) {
            running.swap_remove(at);
        }
        drop(running);
        self.all.ended.notify_all();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn an_import_waits_for_the_looks_at_its_pool() {
        let looks = Arc::<Looks>::default();
        let (first, second, other) =
            (looks.begin(Guid(1)), looks.begin(Guid(1)), looks.begin(Guid(2)));
        let (to, ended) = mpsc::channel();
        let own = Arc::clone(&looks);
        // Its condition is asked for between two waits: by then it has seen two looks.
        let (asked, asks) = mpsc::channel();
        let waits = base::rt::spawn("import", move || {
            own.wait(Guid(1), &|| asked.send(()).is_err());
            to.send(()).unwrap();
        });
        asks.recv().unwrap();
        drop(first);
        asks.recv().unwrap();
        assert!(ended.try_recv().is_err(), "one of two looks has ended");
        drop(second);
        ended.recv().unwrap();
        waits.unwrap().join();
        // One that was given up ends at once.
        looks.wait(Guid(2), &|| true);
        drop(other);
        looks.wait(Guid(2), &|| false);
        assert!(looks.running.lock().is_empty());
    }
}
