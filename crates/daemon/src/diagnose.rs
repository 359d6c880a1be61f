//! The thread that carries out what [`cenote::diagnosis`] decides.
//!
//! # Theory
//! It follows the log of events. A device with too many errors is degraded or faulted, if its
//! pool survives that. The thread changes states in memory only, so no device delays it. The
//! one exception are the thresholds of a pool: they are read from it at its first error.

use std::sync::Arc;
use std::time::Duration;

use base::{Guid, Result, rt};
use cenote::diagnosis::{Diagnosis, FaultAction, Thresholds, Verdict};
use cenote::{Engine, Pool};

/// How long a wait for events takes before the end of the log is noticed.
const WAIT: Duration = Duration::from_secs(60);

/// Starts the thread; it ends with the log of events.
///
/// # Errors
/// When no thread can be started.
pub(crate) fn start(engine: &Arc<Engine>) -> Result<()> {
    let engine = Arc::clone(engine);
    rt::spawn("diagnosis", move || follow(&engine)).map(drop)
}

fn pool_of(engine: &Engine, guid: u64) -> Option<Arc<Pool>> {
    engine.imported().into_iter().find(|pool| pool.guid().0 == guid)
}

fn follow(engine: &Engine) {
    let (log, mut diagnosis) = (Arc::clone(engine.events()), Diagnosis::default());
    let mut last = 0;
    while !log.is_closed() {
        let batch = log.wait(last, WAIT);
        last = batch.last;
        let thresholds = |pool: u64, vdev: u64| {
            let pool = pool_of(engine, pool).filter(|pool| !pool.is_suspended());
            pool.map_or_else(Thresholds::default, |pool| pool.thresholds(Guid(vdev)))
        };
        for verdict in diagnosis.read_all(&batch.events, &thresholds) {
            carry_out(engine, verdict);
        }
    }
}

fn carry_out(engine: &Engine, verdict: Verdict) {
    let Some(pool) = pool_of(engine, verdict.pool) else { return };
    let (vdev, word) = match verdict.action {
        FaultAction::Fault => (Guid(verdict.vdev), "faulted"),
        FaultAction::Degrade { .. } => (Guid(verdict.vdev), "degraded"),
    };
    let done = match verdict.action {
        FaultAction::Fault => pool.fault_vdev(vdev),
        FaultAction::Degrade { .. } => pool.degrade_vdev(vdev),
    };
    match done {
        Ok(true) => {
            ui::err(&format!("{}: device {} is {word}: too many errors", pool.name(), vdev.0))
        }
        // The pool needs it, or it is in that state already.
        Ok(false) => {}
        Err(e) => ui::err(&format!("{}: device {} is not {word}: {e}", pool.name(), vdev.0)),
    }
}
