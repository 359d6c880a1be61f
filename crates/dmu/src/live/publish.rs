//! Publication of a written txg: readers get the new tree.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use base::{ObjectId, Txg};
use ondisk::dnode::{Dnode, OBJECT_SHIFT_MAX};
use ondisk::{BlkPtr, ObjsetPhys};

use super::handle::slot_of;
use super::work::Work;
use crate::objset::{Objset, OnDisk};

/// A written object set that readers do not see yet.
#[must_use = "readers see the txg only when it is published"]
pub struct Pending {
    os: Arc<Objset>,
    txg: Txg,
    phys: ObjsetPhys,
    bp: BlkPtr,
    objects: Vec<(u64, Option<Arc<Dnode>>)>,
    /// Blocks of dnodes that were written.
    dnode_blocks: Vec<u64>,
}

impl Pending {
    pub(crate) fn new(
        os: &Arc<Objset>,
        txg: Txg,
        phys: ObjsetPhys,
        bp: BlkPtr,
        works: Vec<Work>,
        dnode_blocks: Vec<u64>,
    ) -> Pending {
        let dnode = |w: Work| (w.id.0, w.allocated.then(|| Arc::new(w.dn)));
        let objects = works.into_iter().map(dnode).collect();
        Pending::of_tree(os, txg, phys, bp, objects, dnode_blocks)
    }

    /// The same, of a tree that no change of `txg` made.
    pub(crate) fn of_tree(
        os: &Arc<Objset>,
        txg: Txg,
        phys: ObjsetPhys,
        bp: BlkPtr,
        objects: Vec<(u64, Option<Arc<Dnode>>)>,
        dnode_blocks: Vec<u64>,
    ) -> Pending {
        Pending { os: Arc::clone(os), txg, phys, bp, objects, dnode_blocks }
    }

    /// The object set's new pointer.
    pub fn root(&self) -> &BlkPtr {
        &self.bp
    }

    /// The object set block.
    pub fn phys(&self) -> &ObjsetPhys {
        &self.phys
    }

    /// Makes the txg visible to readers, when all its writes have ended. Returns the bytes
    /// that transactions reported to their [`crate::DirtyMeter`] and that are clean now.
    pub fn publish(self) -> u64 {
        let Ok(live) = self.os.live() else { return 0 };
        live.published.fetch_add(1, SeqCst);
        let meta = Arc::new(self.phys.meta_dnode.clone());
        let on_disk = OnDisk { bp: self.bp, phys: Arc::new(self.phys), meta };
        self.os.exchange(on_disk, self.dnode_blocks.into_iter());
        let (mut clean, mut throttled) = (0, 0);
        for (id, dnode) in self.objects {
            let mut stripe = live.stripe(id).lock();
            if id >> OBJECT_SHIFT_MAX == 0 {
                self.os.remember(id, dnode.clone());
            }
            // An object whose blocks only moved may have none.
            let Some(handle) = stripe.get(&id).cloned() else { continue };
            let mut inner = handle.state.lock();
            inner.merged = None;
            let last = inner.disk.as_ref().map_or(0, |d| d.max_blkid);
            let slot = inner.slots[slot_of(self.txg)].take_if(|s| s.txg == self.txg);
            if let Some(slot) = slot {
                // Readers find the new pointers now. A reader that resolved an old one must
                // not record it as a hint any more.
                for blkid in slot.data.blkids(..) {
                    self.os.forget_hints(ObjectId(id), blkid, blkid.saturating_add(1));
                }
                for (first, past) in slot.freed.iter() {
                    self.os.forget_hints(ObjectId(id), first, past.min(last.saturating_add(1)));
                }
                clean += slot.bytes;
                throttled += slot.bytes as i64 - slot.unthrottled;
            }
            inner.disk = dnode;
            if inner.is_clean() {
                inner.dead = true;
                stripe.remove(&id);
                live.handles.fetch_sub(1, SeqCst);
            }
        }
        live.published.fetch_add(1, SeqCst);
        live.unpublished.store(0, SeqCst);
        self.os.zio().cache().release(clean);
        throttled.max(0) as u64
    }
}
