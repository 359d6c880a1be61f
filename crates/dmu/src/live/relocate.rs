//! Taking over a tree whose blocks lie at other places and whose content is the same.
//!
//! # Theory
//! The pool moves blocks of a dataset while a txg is written, after the dataset's own changes of
//! the txg were written and published. What is dirty in later txgs stays as it is: it refers to
//! blocks by their ids. But their handles keep the dnode on disk, on whose pointers the next
//! txg builds. So the new dnodes are published like those of a txg.

use std::sync::Arc;

use base::{Result, Txg};
use ondisk::dnode::Dnode;
use ondisk::{BlkPtr, ObjsetPhys};

use super::publish::Pending;
use crate::objset::Objset;

/// The tree of an object set after some of its blocks were moved.
pub struct RelocatedTree {
    /// The object set block's pointer.
    pub root: BlkPtr,
    /// Its content.
    pub phys: ObjsetPhys,
    /// Objects with blocks that have moved, with their dnodes.
    pub objects: Vec<(u64, Arc<Dnode>)>,
    /// Blocks of dnodes that have moved or changed.
    pub dnode_blocks: Vec<u64>,
}

impl Objset {
    /// Makes a relocated tree the one on disk, for readers and later txgs. `txg` is being written,
    /// and the object set has no changes of it that are not published.
    ///
    /// # Errors
    /// `ReadOnly` for an object set that is not open for writing; `Bug` while a txg is written
    /// that is not published.
    pub fn relocate(self: &Arc<Self>, txg: Txg, tree: RelocatedTree) -> Result<()> {
        let live = self.live()?;
        if live.unpublished.load(std::sync::atomic::Ordering::SeqCst) != 0 {
            return Err(base::bug!("blocks move under a txg that is not published"));
        }
        let objects = tree.objects.into_iter().map(|(id, dnode)| (id, Some(dnode))).collect();
        Pending::of_tree(self, txg, tree.phys, tree.root, objects, tree.dnode_blocks).publish();
        Ok(())
    }
}
