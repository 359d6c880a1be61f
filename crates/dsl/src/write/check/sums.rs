//! The sums of chapter 04 §5.4.

use std::collections::HashMap;

use base::Result;
use ondisk::dslphys::{DD_FLAG_USED_BREAKDOWN, UsedKind};

use super::super::{background, birth, bpobj, deadlist, livelist};
use super::{Checker, Usage};

impl Checker<'_> {
    pub(super) fn sums(&mut self) -> Result<()> {
        let dirs: Vec<u64> = self.dirs.keys().copied().collect();
        for dir in dirs {
            self.dir_sums(dir);
        }
        let datasets: Vec<u64> = self.datasets.keys().copied().collect();
        for object in datasets {
            self.unique(object)?;
        }
        Ok(())
    }

    /// What a directory's own datasets occupy: head part, snapshot part.
    fn own(&self, dir: u64) -> Option<(Usage, Usage)> {
        let d = self.dirs.get(&dir)?;
        let head = self.datasets.get(&d.phys.head_dataset_obj)?;
        let referenced = |object| {
            self.datasets.get(&object).map_or(Usage::default(), |s: &super::CheckedDataset| {
                let p = &s.phys;
                Usage::of(p.referenced_bytes, p.compressed_bytes, p.uncompressed_bytes)
            })
        };
        let own = self.datasets.values().filter(|ds| ds.phys.dir_obj == dir);
        let (mut older, mut newer) = (Usage::default(), Usage::default());
        for ds in own {
            older += ds.range(0, d.origin_txg);
            newer += ds.from(d.origin_txg);
        }
        let p = &head.phys;
        let all = Usage::of(p.referenced_bytes, p.compressed_bytes, p.uncompressed_bytes);
        Some((all - referenced(d.phys.origin_obj) + older, newer))
    }

    fn dir_sums(&mut self, dir: u64) {
        let Some(d) = self.dirs.get(&dir) else { return };
        let (phys, name) = (d.phys, d.name.clone());
        let (mut used, mut reserved, mut below) = (0u64, 0u64, Usage::default());
        for child in &d.children {
            let Some(c) = self.dirs.get(child) else { continue };
            let p = &c.phys;
            used = used.wrapping_add(p.used_bytes);
            reserved = reserved.wrapping_add(p.reserved.saturating_sub(p.used_bytes));
            below += Usage::of(p.used_bytes, p.compressed_bytes, p.uncompressed_bytes);
        }
        let own = self.own(dir);
        let unique = self.datasets.get(&phys.head_dataset_obj).map(|h| h.phys.unique_bytes);
        let unused = unique.map_or(0, |u| d.refreserved.saturating_sub(u));
        if let Some((head, snap)) = own {
            let all = head + snap + below;
            let found = (phys.compressed_bytes, phys.uncompressed_bytes);
            let due = (all.comp as u64, all.uncomp as u64);
            self.equal(dir, &format!("{name}: compressed and uncompressed"), found, due);
        }
        if phys.flags & DD_FLAG_USED_BREAKDOWN == 0 {
            return;
        }
        let parts = phys.used_breakdown;
        let sum = parts.iter().fold(0u64, |a, b| a.wrapping_add(*b));
        self.equal(dir, &format!("{name}: sum of the parts"), sum, phys.used_bytes);
        let part = |kind: UsedKind| parts[kind as usize];
        self.equal(dir, &format!("{name}: CHILD"), part(UsedKind::Child), used);
        let found = part(UsedKind::ChildReservation);
        self.equal(dir, &format!("{name}: CHILD_RSRV"), found, reserved);
        let found = part(UsedKind::RefReservation);
        self.equal(dir, &format!("{name}: REFRSRV"), found, unused);
        if let Some((head, snap)) = own {
            let found = part(UsedKind::Head);
            self.equal(dir, &format!("{name}: HEAD"), found, head.used as u64);
            let found = part(UsedKind::Snap);
            self.equal(dir, &format!("{name}: SNAP"), found, snap.used as u64);
        }
    }

    fn unique(&mut self, object: u64) -> Result<()> {
        let phys = self.dataset(object)?.phys;
        let due = if phys.is_snapshot() {
            let Some(next) = self.datasets.get(&phys.next_snap_obj) else { return Ok(()) };
            next.from(phys.prev_snap_txg.0).used as u64
        } else {
            let before = self.datasets.get(&phys.prev_snap_obj);
            let before = before.map_or(0, |p| p.phys.referenced_bytes);
            let dead = self.dataset(object)?.from(0).used as u64;
            phys.referenced_bytes.wrapping_sub(before.wrapping_sub(dead))
        };
        self.equal(object, "unique", phys.unique_bytes, due);
        Ok(())
    }

    /// A livelist has what its clone has beyond the origin (§10.2).
    pub(super) fn livelists(&mut self) -> Result<()> {
        for list in livelist::queued(self.mos)? {
            self.livelist(list, 0)?;
        }
        let dirs: Vec<u64> = self.dirs.keys().copied().collect();
        for dir in dirs {
            let Some(list) = livelist::of_dir(self.mos, dir)? else { continue };
            let origin = self.dirs.get(&dir).map_or(0, |d| d.origin_txg);
            if origin == 0 {
                self.wrong(dir, "a livelist, but no clone");
            }
            self.livelist(list, origin)?;
            if let Some((head, _)) = self.own(dir) {
                let total = deadlist::total(self.mos, list)?;
                let (found, due) = ((total.used, total.comp), (head.used, head.comp));
                self.equal(list, "sum of the livelist", found, due);
            }
        }
        Ok(())
    }

    /// The blocks of a livelist were born after the origin, and each FREE follows its ALLOC.
    fn livelist(&mut self, list: u64, origin: u64) -> Result<()> {
        self.load_deadlist(list)?;
        for (_, sub) in deadlist::keys(self.mos, list)? {
            let mut live: HashMap<(u32, u64), u64> = HashMap::new();
            let (mut early, mut unpaired) = (0u64, 0u64);
            bpobj::for_each(self.mos, sub, &mut |entry| {
                let Some(place) = livelist::place(&entry.bp) else {
                    early += 1;
                    return Ok(());
                };
                early += u64::from(birth(&entry.bp).0 <= origin);
                let count = live.entry(place).or_default();
                match (entry.freed, *count) {
                    (false, n) => *count = n.saturating_add(1),
                    (true, 0) => unpaired += 1,
                    (true, n) => *count = n - 1,
                }
                Ok(())
            })?;
            self.equal(sub, "entries that belong in no livelist", early, 0);
            self.equal(sub, "freed entries without allocation", unpaired, 0);
        }
        Ok(())
    }

    /// `$FREE` has the blocks that wait to be freed (§4.1).
    pub(super) fn free_dir(&mut self) -> Result<()> {
        let Some((&object, dir)) = self.dirs.iter().find(|(_, d)| d.name == "/$FREE") else {
            return Ok(());
        };
        let p = &dir.phys;
        let found = Usage::of(p.used_bytes, p.compressed_bytes, p.uncompressed_bytes);
        let mut due = Usage::default();
        if let Some(list) = self.mos.directory("free_bpobj")? {
            due += bpobj::usage(self.mos, list)?;
            let mut sum = Usage::default();
            bpobj::for_each(self.mos, list, &mut |entry| {
                sum += self.ratios.space_of(&entry.bp);
                Ok(())
            })?;
            self.equal(list, "sum of free_bpobj", bpobj::usage(self.mos, list)?, sum);
        }
        if let Some(trees) = self.mos.directory("bptree_obj")? {
            let phys = background::bptree_header(self.mos, trees)?;
            due += Usage::of(phys.bytes, phys.comp, phys.uncomp);
        }
        for list in livelist::queued(self.mos)? {
            due += deadlist::total(self.mos, list)?;
        }
        self.equal(object, "$FREE", found, due);
        Ok(())
    }
}
