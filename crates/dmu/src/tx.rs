//! A transaction: the right to change memory in one group.

use std::any::Any;
use std::sync::Arc;

use base::Txg;

/// Hears how much dirty memory each group holds (the write throttle's measure).
pub trait Dirt: Send + Sync {
    /// `bytes` more are dirty in `txg`.
    fn dirty(&self, txg: Txg, bytes: u64);
    /// `bytes` of `txg` are on disk, or gone.
    fn clean(&self, txg: Txg, bytes: u64);
    /// A block of `bytes` will be stored `copies` times by `txg` that was not to be written
    /// before, and `nodes` indirect blocks on the way to it.
    fn place(&self, _txg: Txg, _bytes: u64, _copies: u8, _nodes: u8) {}
    /// Blocks of `bytes` in all will not be written by `txg` after all.
    fn unplace(&self, _txg: Txg, _bytes: u64) {}
}

/// A transaction. All that is changed under it reaches the disk in one group.
///
/// While it lives, its group stays open (it keeps the group's hold), so it must not
/// be kept over a wait for that group.
pub struct Tx {
    txg: Txg,
    syncing: bool,
    dirt: Option<Arc<dyn Dirt>>,
    _hold: Option<Box<dyn Any + Send>>,
}

impl Tx {
    /// A writer's transaction in `txg`; `hold` keeps the group open until the drop.
    pub fn open(txg: Txg, dirt: Arc<dyn Dirt>, hold: impl Any + Send) -> Tx {
        Tx { txg, syncing: false, dirt: Some(dirt), _hold: Some(Box::new(hold)) }
    }

    /// The sync thread's own transaction in the group that it writes.
    pub fn syncing(txg: Txg) -> Tx {
        Tx { txg, syncing: true, dirt: None, _hold: None }
    }

    /// The same, which tells `meter` of what it makes dirty: it is given who was told before.
    #[must_use]
    pub fn told_to(mut self, meter: impl FnOnce(Arc<dyn Dirt>) -> Arc<dyn Dirt>) -> Tx {
        self.dirt = self.dirt.take().map(meter);
        self
    }

    /// Its group.
    pub fn txg(&self) -> Txg {
        self.txg
    }

    /// Whether it is the sync thread's.
    pub fn is_syncing(&self) -> bool {
        self.syncing
    }

    /// Who is told of what it makes dirty; nobody of what the sync thread does.
    pub fn dirt(&self) -> Option<&Arc<dyn Dirt>> {
        self.dirt.as_ref()
    }
}
