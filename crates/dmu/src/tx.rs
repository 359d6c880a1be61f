//! A transaction: the right to change memory in one txg.

use std::any::Any;
use std::sync::Arc;

use base::Txg;
use zio::{Io, OutagePolicy};

/// Is informed of the dirty memory of each txg (the write throttle's measure).
pub trait DirtyMeter: Send + Sync {
    /// `bytes` more are dirty in `txg`.
    fn dirty(&self, txg: Txg, bytes: u64);
    /// `bytes` of `txg` are written, or were dropped.
    fn clean(&self, txg: Txg, bytes: u64);
    /// `txg` will write a block that it was not going to write before, of `bytes` and
    /// `copies` times, with `nodes` indirect blocks above it.
    fn plan_write(&self, _txg: Txg, _bytes: u64, _copies: u8, _nodes: u8) {}
    /// `txg` will write a pointer to a block that is on disk and has this many `bytes`, with
    /// `nodes` indirect blocks above it.
    fn plan_clone(&self, _txg: Txg, _bytes: u64, _nodes: u8) {}
    /// Blocks of `bytes` in all will not be written by `txg` after all.
    fn cancel_write(&self, _txg: Txg, _bytes: u64) {}
}

/// A transaction. All changes made under it reach the disk in one txg.
///
/// It keeps a hold on its txg, which stays open meanwhile. So its owner must not wait for
/// that txg to be written.
pub struct Tx {
    txg: Txg,
    syncing: bool,
    dirt: Option<Arc<dyn DirtyMeter>>,
    outage: OutagePolicy,
    _hold: Option<Box<dyn Any + Send>>,
}

impl Tx {
    /// A writer's transaction in `txg`; `hold` keeps the group open until the drop. Its
    /// reads fail when devices are absent, unless [`Tx::with_outage`] says otherwise.
    pub fn open(txg: Txg, dirt: Arc<dyn DirtyMeter>, hold: impl Any + Send) -> Tx {
        let (dirt, hold) = (Some(dirt), Box::new(hold));
        Tx { txg, syncing: false, dirt, outage: OutagePolicy::Fail, _hold: Some(hold) }
    }

    /// The sync thread's own transaction in the txg that it writes. Its reads wait for
    /// devices.
    pub fn syncing(txg: Txg) -> Tx {
        Tx { txg, syncing: true, dirt: None, outage: OutagePolicy::WaitAlways, _hold: None }
    }

    /// The same transaction, whose reads have this policy for absent devices.
    #[must_use]
    pub fn with_outage(self, outage: OutagePolicy) -> Tx {
        Tx { outage, ..self }
    }

    /// How the transaction's own reads are made: those of blocks that it changes in part,
    /// and of dnodes.
    pub fn io(&self) -> Io {
        Io::WAIT.with_outage(self.outage)
    }

    /// Its txg.
    pub fn txg(&self) -> Txg {
        self.txg
    }

    /// Whether it is the sync thread's.
    pub(crate) fn is_syncing(&self) -> bool {
        self.syncing
    }

    /// The meter that is informed of dirty memory; none for the sync thread's transactions.
    pub fn dirt(&self) -> Option<&Arc<dyn DirtyMeter>> {
        self.dirt.as_ref()
    }
}
