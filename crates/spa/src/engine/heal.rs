//! Which blocks are in use, for reads that heal (`zio::InUse`; its head has the argument).
//!
//! # Theory
//! A block that a live object set's tree of group T refers to is in use as long as nothing
//! that was freed after T became allocatable: that is what a pin on its metaslab says. An
//! object set that does not change (a snapshot's) is in use as long as its dataset has the
//! root that it was opened with. That is looked up in the MOS, after the group was asked for.
//!
//! Lock order: none of its own; a pin takes the metaslab's lock.

use std::sync::{Arc, Weak};

use base::{Dva, Txg, VdevId};
use dsl::write::MosRead;
use metaslab::Space;
use ondisk::BlkPtr;
use zio::{InUse, Origin, Pin};

use super::Writer;

/// [`InUse`] of a pool open for writing.
pub(super) struct Places(pub(super) Weak<Writer>);

/// A pinned metaslab.
struct Held {
    space: Arc<Space>,
    vdev: VdevId,
    offset: u64,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.space.unpin(self.vdev, self.offset);
    }
}

impl InUse for Places {
    fn pin(&self, dva: Dva, birth: Txg, origin: Origin) -> Option<Pin> {
        let writer = self.0.upgrade()?;
        // Another host may have taken the pool over, or its devices are gone.
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
        let (space, vdev, offset) = (Arc::clone(&writer.space), dva.vdev, dva.offset);
        // A place that is not there comes from a damaged pointer.
        let pinned = birth <= since && space.pin(vdev, offset, since).is_ok_and(|pinned| pinned);
        pinned.then(|| Box::new(Held { space, vdev, offset }) as Pin)
    }
}

impl Writer {
    /// Whether the dataset with this number has a root of this birth.
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
