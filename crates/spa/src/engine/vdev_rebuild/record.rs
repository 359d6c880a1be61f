//! What is stored of a sequential rebuild, in the ZAP of its top-level vdev (chapter 05 §3.1).
//!
//! Lock order: no locks.

use base::{Result, Txg, VdevId};
use dsl::write::MosRead;
use ondisk::config::PoolConfig;
use ondisk::zap::ZapValue;

use super::super::config::top_zaps;
use super::super::sync::SyncPass;
use crate::Spa;

const KEY: &[u8] = b"org.openzfs:vdev_rebuild";
const WORDS: usize = 12;

/// The state of a rebuild, with its number on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RebuildState {
    /// There was none.
    #[default]
    None = 0,
    /// It runs, or will when its leaves are there.
    Active = 1,
    /// It was given up.
    Canceled = 2,
    /// It came to its end.
    Complete = 3,
}

/// What is stored of a rebuild. Times are seconds since 1970, sizes bytes of the vdev.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RebuildRecord {
    /// Its state.
    pub state: RebuildState,
    /// Everything before this offset of the vdev is copied.
    pub last_offset: u64,
    /// The txg before the first that a leaf missed when it began.
    pub min_txg: Txg,
    /// The txg after the last one.
    pub max_txg: Txg,
    /// When it began.
    pub start_time: u64,
    /// When it ended; 0 before.
    pub end_time: u64,
    /// Milliseconds for which it has run.
    pub scan_time_ms: u64,
    /// Bytes of used space that were looked at.
    pub scanned: u64,
    /// Bytes of these of which some leaf lacked its part.
    pub issued: u64,
    /// Bytes written to leaves.
    pub rebuilt: u64,
    /// Bytes of used space when it began.
    pub estimated: u64,
    /// Pieces that could not be copied.
    pub errors: u64,
}

impl RebuildRecord {
    fn from_words(words: &[u64; WORDS]) -> RebuildRecord {
        let [state, last_offset, min, max, start_time, end_time, scan_time_ms, rest @ ..] = *words;
        let [scanned, issued, rebuilt, estimated, errors] = rest;
        let state = match state {
            1 => RebuildState::Active,
            2 => RebuildState::Canceled,
            3 => RebuildState::Complete,
            _ => RebuildState::None,
        };
        RebuildRecord {
            state,
            last_offset,
            min_txg: Txg(min),
            max_txg: Txg(max),
            start_time,
            end_time,
            scan_time_ms,
            scanned,
            issued,
            rebuilt,
            estimated,
            errors,
        }
    }

    fn words(&self) -> [u64; WORDS] {
        [
            self.state as u64,
            self.last_offset,
            self.min_txg.0,
            self.max_txg.0,
            self.start_time,
            self.end_time,
            self.scan_time_ms,
            self.scanned,
            self.issued,
            self.rebuilt,
            self.estimated,
            self.errors,
        ]
    }

    /// Stores it; a pool of a version without ZAPs of vdevs has no place for it, and begins
    /// with a resilver after the next import.
    pub(super) fn store(&self, sync: &SyncPass<'_>, vdev: VdevId) -> Result<()> {
        let Some(zap) = sync.top_zap(vdev) else { return Ok(()) };
        let value = ZapValue::from_u64s(&self.words())
            .ok_or_else(|| base::bug!("the record of a rebuild is too long"))?;
        sync.cx.mos.zap_update(zap, KEY, &value)
    }
}

/// The stored rebuilds of a pool.
///
/// # Errors
/// Those of reading the MOS.
pub(crate) fn stored_rebuilds(
    mos: &dyn MosRead,
    config: &PoolConfig,
) -> Result<Vec<(VdevId, RebuildRecord)>> {
    let mut out = Vec::new();
    for (vdev, zap) in top_zaps(config) {
        let Some(value) = mos.zap_lookup(zap, KEY)? else { continue };
        // Later versions may append words; a shorter record is none.
        let words = value.u64s();
        if let Some(words) = words.as_deref().and_then(|w| w.first_chunk()) {
            out.push((vdev, RebuildRecord::from_words(words)));
        }
    }
    out.retain(|(_, record)| record.state != RebuildState::None);
    Ok(out)
}

impl Spa {
    /// The rebuilds of a pool that is only read; [`crate::engine::Writer::rebuilds`] knows them
    /// otherwise.
    ///
    /// # Errors
    /// Those of reading the MOS.
    pub fn rebuild_records(&self) -> Result<Vec<(VdevId, RebuildRecord)>> {
        stored_rebuilds(self.mos(), self.config())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The record of golden pool `dspared`, as `zdb` shows it.
    #[test]
    fn words_are_those_of_openzfs() {
        let words = [
            3,
            268_539_904,
            3,
            19,
            1_795_560_013,
            1_795_560_018,
            298,
            2_301_952,
            401_408,
            100_352,
            2_217_984,
            0,
        ];
        let record = RebuildRecord::from_words(&words);
        assert_eq!((record.state, record.max_txg), (RebuildState::Complete, Txg(19)));
        assert_eq!((record.rebuilt, record.estimated, record.errors), (100_352, 2_217_984, 0));
        assert_eq!(record.words(), words);
        let hostile = RebuildRecord::from_words(&[u64::MAX; WORDS]);
        assert_eq!(hostile.state, RebuildState::None);
    }
}
