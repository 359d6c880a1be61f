//! The references between datasets.

use std::collections::BTreeSet;

use base::Result;

use super::{Checker, links};

impl Checker<'_> {
    pub(super) fn graph(&mut self) -> Result<()> {
        let dirs: Vec<u64> = self.dirs.keys().copied().collect();
        for dir in dirs {
            self.chain(dir)?;
            self.dir_clones(dir)?;
        }
        let datasets: Vec<u64> = self.datasets.keys().copied().collect();
        for object in datasets {
            self.neighbours(object)?;
        }
        Ok(())
    }

    /// The snapshots of a directory are those before its head, down to its origin.
    fn chain(&mut self, dir: u64) -> Result<()> {
        let Some(d) = self.dirs.get(&dir) else { return Ok(()) };
        let (head, origin) = (d.phys.head_dataset_obj, d.phys.origin_obj);
        let Some(h) = self.datasets.get(&head) else { return Ok(()) };
        let names = self.mos.numbers(h.phys.snapnames_zapobj)?;
        let named: BTreeSet<u64> = names.iter().map(|(_, s)| *s).collect();
        let (mut chain, mut at) = (BTreeSet::new(), h.phys.prev_snap_obj);
        while at != origin && at != 0 && chain.insert(at) {
            match self.datasets.get(&at) {
                Some(ds) if ds.phys.dir_obj == dir => at = ds.phys.prev_snap_obj,
                _ => break,
            }
        }
        self.equal(dir, "snapshots before the head", chain, named);
        self.equal(dir, "what the oldest dataset comes from", at, origin);
        Ok(())
    }

    /// A directory lists the heads cloned from its snapshots.
    fn dir_clones(&mut self, dir: u64) -> Result<()> {
        let Some(d) = self.dirs.get(&dir) else { return Ok(()) };
        if !super::super::has_lists(self.mos)? {
            return Ok(());
        }
        let listed = self.mos.numbers(d.phys.clones)?;
        let listed: BTreeSet<u64> = listed.into_iter().map(|(_, head)| head).collect();
        let is_here =
            |origin: u64| self.datasets.get(&origin).is_some_and(|s| s.phys.dir_obj == dir);
        let due: BTreeSet<u64> = self
            .dirs
            .values()
            .filter(|other| is_here(other.phys.origin_obj))
            .map(|other| other.phys.head_dataset_obj)
            .collect();
        self.equal(dir, "heads cloned from here", listed, due);
        Ok(())
    }

    /// A dataset agrees with its neighbours.
    fn neighbours(&mut self, object: u64) -> Result<()> {
        let Some(ds) = self.datasets.get(&object) else { return Ok(()) };
        let phys = ds.phys;
        if let Some(prev) = self.datasets.get(&phys.prev_snap_obj) {
            let txg = prev.phys.creation_txg;
            self.equal(object, "txg of the previous snapshot", phys.prev_snap_txg, txg);
        } else if phys.prev_snap_obj != 0 {
            self.wrong(object, "the previous snapshot is unknown");
        }
        let clones = self.mos.numbers(phys.next_clones_obj)?;
        let listed: BTreeSet<u64> = clones.into_iter().map(|(_, ds)| ds).collect();
        let after = self.datasets.iter().filter(|(_, ds)| ds.phys.prev_snap_obj == object);
        let mut due: BTreeSet<u64> = after.map(|(other, _)| *other).collect();
        if !phys.is_snapshot() {
            self.equal(object, "datasets after a head", due, BTreeSet::new());
            return Ok(());
        }
        if !due.remove(&phys.next_snap_obj) {
            self.wrong(object, "the next dataset does not come from here");
        }
        let children = due.len() as u64 + 1;
        if links::origin_snapshot(self.mos)?.is_none() {
            // The first versions have only the number.
            due.clear();
        }
        self.equal(object, "clones", listed, due);
        self.equal(object, "number of children", phys.num_children, children);
        Ok(())
    }
}
