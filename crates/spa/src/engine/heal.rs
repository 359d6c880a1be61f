//! The test whether a block is in use, for reads that heal (`zio::InUse`; its module head
//! has the argument).
//!
//! # Theory
//! A block to which a live object set's tree of txg T refers is in use as long as no space
//! freed after T became allocatable. A pin on its metaslab ensures that. The blocks of an
//! object set that does not change (a snapshot's) are in use as long as its dataset has the
//! root with which it was opened. The root is looked up in the MOS, after the txg was
//! determined.
//!
//! Lock order: none of its own; a pin takes the metaslab's lock.

use std::sync::{Arc, Weak};

use base::{Dva, Result, Txg, VdevId};
use dsl::write::MosRead;
use metaslab::Space;
use ondisk::BlkPtr;
use zio::{InUse, Origin, Pin};

use super::Writer;

/// [`InUse`] of a pool open for writing.
pub(super) struct WriterInUse(pub(super) Weak<Writer>);

/// A pinned metaslab.
pub(super) struct PinnedMetaslab {
    space: Arc<Space>,
    vdev: VdevId,
    offset: u64,
}

impl PinnedMetaslab {
    /// Pins the metaslab of an address ([`Space::pin`]); `None` if space freed after `since`
    /// may have been given away there.
    ///
    /// # Errors
    /// `Corrupt` if there is no such address.
    pub(super) fn new(space: &Arc<Space>, dva: Dva, since: Txg) -> Result<Option<PinnedMetaslab>> {
        let (vdev, offset) = (dva.vdev, dva.offset);
        let pinned = space.pin(vdev, offset, since)?;
        Ok(pinned.then(|| PinnedMetaslab { space: Arc::clone(space), vdev, offset }))
    }
}

impl Drop for PinnedMetaslab {
    fn drop(&mut self) {
        self.space.unpin(self.vdev, self.offset);
    }
}

impl InUse for WriterInUse {
    fn pin(&self, dva: Dva, birth: Txg, origin: Origin) -> Option<Pin> {
        let writer = self.0.upgrade()?;
        // Another host may have imported the pool, or its devices are missing.
        if writer.txgs.suspended().is_some() {
            return None;
        }
        let since = match origin {
            Origin::Unknown => return None,
            Origin::Tree(since) => since,
            Origin::Root(id, root) => {
                let since = writer.zio.healing_since()?;
                writer.has_root(id, root).then_some(since)?
            }
        };
        if birth > since {
            return None;
        }
        // An address outside the vdev comes from a damaged pointer.
        let pinned = PinnedMetaslab::new(&writer.space, dva, since).ok().flatten()?;
        Some(Box::new(pinned) as Pin)
    }
}

impl Writer {
    /// Whether the dataset with this object id has a root of this birth.
    fn has_root(&self, id: u64, birth: Txg) -> bool {
        let is = |bp: &BlkPtr| {
            bp.as_block().is_some_and(|block| block.effective_physical_birth() == birth)
        };
        if id == 0 {
            return is(&self.published.read().uberblock.root_bp);
        }
        let mos: &dyn MosRead = &self.mos;
        mos.dataset(id).is_ok_and(|dataset| is(&dataset.bp))
    }
}
