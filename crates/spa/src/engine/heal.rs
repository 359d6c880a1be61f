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
use ondisk::blkptr::BlockPlace;
use vdev::Tree;
use zio::{InUse, Origin, Pin};

use super::Writer;

/// Bytes of the smallest sector, and of the part of a gang's header that every one has.
const GANG_HEADER: u64 = 512;

/// [`InUse`] of a pool open for writing.
pub(super) struct WriterInUse(pub(super) Weak<Writer>);

/// The pinned metaslabs of an address: one, or those of its copies if its vdev was removed.
pub(super) struct PinnedMetaslabs {
    space: Arc<Space>,
    places: Vec<(VdevId, u64)>,
}

impl PinnedMetaslabs {
    /// Pins the metaslabs of an address ([`Space::pin`]); `None` if space freed after `since`
    /// may have been given away there.
    ///
    /// # Errors
    /// `Corrupt` if there is no such address.
    pub(super) fn new(
        space: &Arc<Space>,
        tree: &Tree,
        dva: Dva,
        since: Txg,
    ) -> Result<Option<PinnedMetaslabs>> {
        let mut pins = PinnedMetaslabs { space: Arc::clone(space), places: Vec::new() };
        // Of a gang's address this is its header.
        let len = if dva.gang { GANG_HEADER } else { dva.asize.0.max(GANG_HEADER) };
        for piece in tree.pieces(dva.vdev, dva.offset, len, since)? {
            if !space.pin(piece.vdev, piece.offset, since)? {
                return Ok(None);
            }
            pins.places.push((piece.vdev, piece.offset));
        }
        Ok(Some(pins))
    }
}

impl Drop for PinnedMetaslabs {
    fn drop(&mut self) {
        self.places.iter().for_each(|(vdev, offset)| self.space.unpin(*vdev, *offset));
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
        let tree = writer.zio.tree();
        let pinned = PinnedMetaslabs::new(&writer.space, &tree, dva, since).ok().flatten()?;
        Some(Box::new(pinned) as Pin)
    }
}

impl Writer {
    /// Whether the dataset with this object id has its root at this place.
    fn has_root(&self, id: u64, place: BlockPlace) -> bool {
        let is = |bp: &BlkPtr| bp.as_block().is_some_and(|block| block.place() == place);
        if id == 0 {
            return is(&self.published.read().uberblock.root_bp);
        }
        let mos: &dyn MosRead = &self.mos;
        mos.dataset(id).is_ok_and(|dataset| is(&dataset.bp))
    }
}
