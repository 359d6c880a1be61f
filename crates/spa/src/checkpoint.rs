//! The checkpoint of a pool as an import finds it (chapter 01 §8.5).
//!
//! # Theory
//! The checkpointed uberblock is an entry of the newest MOS. A rewind opens the pool through
//! it, as if it were the best one on the devices. Everything that it refers to is allocated
//! until the checkpoint is discarded (`engine::checkpoint`), so nothing has to be verified. A
//! read-only import stops there. A writable one gives the uberblock a number beyond all known
//! ones and commits it before anything else, like every rewind (`rewind`). It keeps the txg of
//! the checkpoint in `checkpoint_txg` until the first txg is on disk: a pool that crashed in
//! between is rewound, and its intent logs belong to the discarded txgs.
//!
//! Lock order: no locks.

use base::{Error, Result, Txg};
use dsl::Mos;

use crate::engine::checkpoint::{CheckpointState, CheckpointStatus, NO_CHECKPOINT, stored};
use crate::import::Spa;
use crate::uberblocks::Chosen;

/// The checkpointed uberblock instead of the newest one.
///
/// # Errors
/// `NotFound` if the pool has no checkpoint; `Corrupt`; those of reading the MOS.
pub(crate) fn rewound(mos: &Mos, newest: &Chosen) -> Result<Chosen> {
    let uberblock = stored(mos, newest.uberblock.txg)?;
    let uberblock = uberblock.ok_or_else(|| Error::not_found(NO_CHECKPOINT))?;
    Ok(Chosen { uberblock, leaf: newest.leaf })
}

impl Spa {
    /// The checkpointed txg, if the pool was rewound to it and no txg was written since.
    pub(crate) fn rewound_to(&self) -> Option<Txg> {
        Some(self.uberblock().checkpoint_txg).filter(|txg| *txg != Txg::ZERO)
    }

    /// The checkpoint of a pool that is only read; [`crate::engine::Writer`] knows it
    /// otherwise.
    ///
    /// # Errors
    /// `Corrupt`; those of reading the MOS.
    pub fn checkpoint_status(&self) -> Result<Option<CheckpointStatus>> {
        let known = stored(self.mos(), self.uberblock().txg)?;
        let maps = crate::engine::checkpoint::stored_maps(self.mos(), self.config())?;
        if known.is_none() && maps.is_empty() {
            return Ok(None);
        }
        let tree = self.zio().tree();
        let deflated = maps.iter().map(|(vdev, _, header)| {
            let ratio = match self.deflate() {
                true => tree.deflate_ratio(*vdev).unwrap_or(512),
                false => 512,
            };
            (header.alloc.unsigned_abs() >> 9).saturating_mul(ratio)
        });
        let space = deflated.fold(0, u64::saturating_add);
        Ok(Some(match known {
            Some(ub) => {
                CheckpointStatus { state: CheckpointState::Exists, taken: ub.timestamp, space }
            }
            None => CheckpointStatus { state: CheckpointState::Discarding, taken: 0, space },
        }))
    }
}
