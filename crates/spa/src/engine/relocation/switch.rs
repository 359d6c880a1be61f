//! The switch of a batch: from the old places to the copies, in the meta object set and in
//! memory.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use base::{Dva, ObjectId, Result, VdevId};
use dmu::{Io, Objset, RelocatedTree};
use dsl::write::{relocate, remap};
use ondisk::BlkPtr;
use ondisk::blkptr::Block;
use ondisk::dnode::{DNODES_PER_BLOCK, OBJECT_SHIFT_MAX};

use super::super::tasks::TaskCx;
use super::home::BlockHome;
use super::rewrite::has_pointers;
use super::{BlockPosition, CopyTable, RelocationOutcome, StagedBatch};

impl TaskCx<'_> {
    /// Step 6.
    ///
    /// # Errors
    /// Those of the store, after which the txg cannot be committed.
    pub(super) fn switch_batch(
        &mut self,
        staged: StagedBatch,
        outcome: &mut RelocationOutcome,
    ) -> Result<()> {
        let StagedBatch { table, rewritten, datasets, positions } = staged;
        let (cx, writer) = (self.cx, self.writer);
        let plants = &writer.plants.relocation;
        let by_object: BTreeMap<u64, &relocate::RelocatableDataset> =
            datasets.iter().map(|ds| (ds.object, ds)).collect();
        let mut skipped = plants.left_snapshot.load(Relaxed);
        let mut roots = BTreeMap::new();
        for (dataset, new) in &rewritten.roots {
            let Some(ds) = by_object.get(dataset) else { continue };
            if !ds.is_head && std::mem::take(&mut skipped) {
                continue;
            }
            let root = BlkPtr::Block(*new);
            if let Some(old) = ds.root.as_block() {
                roots.insert((*dataset, old.place()), root);
            }
            // Who opens a head finds the new root, or is found here.
            let heads = writer.heads.lock();
            relocate::set_root(cx, *dataset, &root)?;
            let open = heads.get(dataset).filter(|_| ds.is_head);
            if let Some(os) = open.filter(|_| !plants.forgotten_handles.load(Relaxed)) {
                let of = positions.get(&ds.lineage).map(Vec::as_slice).unwrap_or_default();
                self.move_open_head(os, root, of)?;
            }
            outcome.roots += 1;
        }
        let lineages: BTreeSet<u64> = positions.keys().copied().collect();
        let mut left = plants.left_entry.load(Relaxed);
        let skip = std::cell::Cell::new(left);
        let to = |block: &Block| {
            let new = table.copy_of(block)?;
            if skip.take() {
                return None;
            }
            Some(block.relocated(new))
        };
        let mut unmapped = Vec::new();
        for ds in datasets.iter().filter(|ds| lineages.contains(&ds.lineage)) {
            outcome.listed += relocate::switch_deadlist(cx, ds.object, &to)?;
            if !table.homes.is_plain() {
                let moved = |block: &Block| table.copy_of(block).is_some();
                remap::drop_moved(cx, ds.object, &moved, &mut unmapped)?;
            }
            if ds.is_head {
                relocate::drop_livelist(cx, ds.dir)?;
            }
        }
        left &= skip.get();
        debug_assert!(!left || outcome.listed == 0);
        for holder in writer.zio.roots().moved() {
            let (id, root) = holder.root();
            let place = root.as_block().map(Block::place);
            if let Some(to) = place.and_then(|place| roots.get(&(id, place)))
                && !plants.forgotten_handles.load(Relaxed)
            {
                holder.move_root(to)?;
            }
        }
        self.free_old(&table, outcome)?;
        self.forget_forms(&table, &unmapped)
    }

    /// Makes addresses obsolete that only older pointers of moved blocks had. The blocks are freed.
    fn forget_forms(&self, table: &CopyTable, unmapped: &[Dva]) -> Result<()> {
        if unmapped.is_empty() {
            return Ok(());
        }
        let freed = table.copies.values().flat_map(|(old, _)| old.dvas());
        let mut done: HashSet<(VdevId, u64)> =
            freed.flat_map(|dva| table.homes.forms(dva)).collect();
        for dva in unmapped {
            for (vdev, offset) in table.homes.forms(*dva) {
                if done.insert((vdev, offset)) {
                    self.writer.removed.note(vdev, offset, dva.asize.0)?;
                }
            }
        }
        Ok(())
    }

    /// Publishes the new tree of a head that is open for writing.
    fn move_open_head(
        &self,
        os: &Arc<Objset>,
        root: BlkPtr,
        positions: &[BlockPosition],
    ) -> Result<()> {
        let (zio, io) = (Arc::clone(&self.writer.zio), Io::SYNC);
        let new = Objset::open_stored(zio, os.id(), root, io)?;
        let phys = (*new.phys()).clone();
        let (mut objects, mut dnode_blocks) = (Vec::new(), BTreeSet::new());
        let ids: BTreeSet<u64> = positions.iter().map(|at| at.object).collect();
        for id in ids.into_iter().filter(|id| *id != 0) {
            let dnode = match id >> OBJECT_SHIFT_MAX {
                0 => {
                    dnode_blocks.insert(id / DNODES_PER_BLOCK);
                    match new.object(ObjectId(id), io) {
                        Ok(object) => Arc::clone(object.dnode()),
                        Err(e) if e.kind() == base::ErrorKind::NotFound => continue,
                        Err(e) => return Err(e),
                    }
                }
                _ => match new.special(id as i64) {
                    Some(object) => Arc::clone(object.dnode()),
                    None => continue,
                },
            };
            objects.push((id, dnode));
        }
        let meta = positions.iter().filter(|at| at.object == 0 && at.level == 0);
        dnode_blocks.extend(meta.map(|at| at.blkid));
        let dnode_blocks = dnode_blocks.into_iter().collect();
        os.relocate(self.cx.txg, RelocatedTree { root, phys, objects, dnode_blocks })
    }

    fn free_old(&self, table: &CopyTable, outcome: &mut RelocationOutcome) -> Result<()> {
        let mut old: Vec<(&BlockHome, &Block)> =
            table.copies.iter().map(|(home, (old, _))| (home, old)).collect();
        old.sort_unstable_by_key(|(home, _)| **home);
        for (_, block) in old {
            let bytes: u64 = block.dvas().map(|dva| dva.asize.0).sum();
            if has_pointers(block) {
                outcome.metadata += 1;
                outcome.metadata_bytes += bytes;
            } else {
                outcome.moved += 1;
                outcome.moved_bytes += bytes;
            }
            self.free(&BlkPtr::Block(*block))?;
        }
        Ok(())
    }
}
