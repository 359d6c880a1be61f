//! Cancelling scans that a change of the dataset graph would invalidate (chapter 04 §17.3).

use base::Result;
use ondisk::scan::{SCAN_WORDS, Scan, ScanState};
use ondisk::zap::ZapValue;

use super::SyncCx;
use super::store::DIRECTORY;

/// Cancels a running scan: stores the state and frees its queue. Returns whether there was
/// one.
///
/// # Errors
/// Those of the store; `Corrupt`.
pub fn cancel(cx: &SyncCx<'_>) -> Result<bool> {
    let Some(value) = cx.mos.zap_lookup(DIRECTORY, b"scan")? else { return Ok(false) };
    // An entry of another length is to be ignored (chapter 04 §1.2).
    let Some(words) = value.u64s().and_then(|w| <[u64; SCAN_WORDS]>::try_from(w).ok()) else {
        return Ok(false);
    };
    let mut scan = Scan::from_words(&words)?;
    if scan.state != ScanState::Scanning {
        return Ok(false);
    }
    if let Some(queue) = scan.queue.take() {
        cx.mos.free_object(queue.0)?;
    }
    scan.state = ScanState::Canceled;
    scan.end_time = cx.now.0;
    let value = ZapValue::from_u64s(&scan.to_words())
        .ok_or_else(|| base::bug!("a scan's state is a value"))?;
    cx.mos.zap_update(DIRECTORY, b"scan", &value)?;
    Ok(true)
}
