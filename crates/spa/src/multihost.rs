//! Multihost protection on import (chapter 01 §7): a pool whose last writer kept a
//! heartbeat is observed for a while before it is opened.

use std::time::Duration;

use base::{Error, Result};
use ondisk::uberblock::Uberblock;

use crate::assemble::FoundPool;
use crate::opener::LeafOpener;
use ondisk::config::PoolState;

/// Heartbeat interval assumed when none is recorded; the wait is a multiple of it.
const LOCAL_INTERVAL: Duration = Duration::from_millis(1000);
const IMPORT_INTERVALS: u32 = 20;
/// Longest wait; a damaged field must not make an import hang.
const WAIT_MAX: Duration = Duration::from_secs(600);

/// Waits until no other host can have the pool open.
///
/// # Errors
/// `Busy` when one has.
pub(crate) fn check(opener: &LeafOpener<'_>, found: &FoundPool, best: &Uberblock) -> Result<()> {
    let Some(mmp) = best.mmp.filter(|m| m.delay != 0) else { return Ok(()) };
    let own = own_hostid();
    let clean = found.state != PoolState::Active && own != 0 && found.hostid == own;
    if clean || found.state == PoolState::Destroyed {
        return Ok(());
    }
    let delay = Duration::from_nanos(mmp.delay);
    let interval = mmp.interval_ms().map(Duration::from_millis);
    let wait = match (interval, mmp.fail_intervals()) {
        (Some(i), Some(fail)) if fail > 0 => i.saturating_mul(fail as u32).saturating_mul(2),
        (Some(i), _) => i.saturating_add(delay).saturating_mul(IMPORT_INTERVALS),
        (None, _) => LOCAL_INTERVAL.saturating_add(delay).saturating_mul(IMPORT_INTERVALS),
    };
    let wait = wait.max(LOCAL_INTERVAL).min(WAIT_MAX);
    let start = base::rt::now();
    while start.elapsed() < wait {
        base::rt::sleep(Duration::from_secs(1).min(wait));
        let newest = opener.reread()?.into_iter().map(|(_, ub)| ub).max_by(Uberblock::compare);
        if newest.is_some_and(|ub| ub.compare(best) == std::cmp::Ordering::Greater) {
            return Err(Error::busy("pool is imported on a different host"));
        }
    }
    Ok(())
}

/// This machine's host id, 0 if it has none.
pub fn own_hostid() -> u64 {
    match std::fs::read("/etc/hostid") {
        Ok(bytes) => bytes.first_chunk().map_or(0, |b| u64::from(u32::from_le_bytes(*b))),
        Err(_) => 0,
    }
}
