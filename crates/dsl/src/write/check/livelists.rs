//! The content of livelists (chapter 04 §10.2).
//!
//! # Theory
//! The sums of a livelist may be right by chance: one block of a size is missing, another one
//! of that size is listed twice. So each list is compared with the tree of its clone, address
//! by address. The trees are read for that, which [`super::check()`] does not do.
//!
//! # Invariants
//! * Memory and time are in proportion to the blocks that clones have beyond their origins.

use std::collections::BTreeMap;

use base::Result;

use super::super::trees::{Trees, Walked};
use super::super::{deadlist, features, livelist};
use super::{Checker, MosRead, Ratios, Violation};

/// The livelists that do not have exactly the blocks which their clones have beyond their
/// origins.
///
/// # Errors
/// Those of reading the MOS and the clones.
pub fn check_livelists(
    mos: &dyn MosRead,
    ratios: &Ratios,
    trees: &dyn Trees,
) -> Result<Vec<Violation>> {
    if !features::is_active(mos, features::LIVELIST)? {
        return Ok(Vec::new());
    }
    let mut c = Checker::new(mos, ratios)?;
    c.load_dirs()?;
    c.livelist_contents(trees)?;
    Ok(c.out)
}

impl Checker<'_> {
    fn livelist_contents(&mut self, trees: &dyn Trees) -> Result<()> {
        let of = |(dir, d): (&u64, &super::CheckedDir)| {
            (*dir, d.phys.head_dataset_obj, base::Txg(d.origin_txg))
        };
        let all: Vec<_> = self.dirs.iter().map(of).collect();
        for (dir, head, origin) in all {
            let Some(list) = livelist::of_dir(self.mos, dir)? else { continue };
            // How often the list has an address more than the tree.
            let mut more: BTreeMap<(u32, u64), i64> = BTreeMap::new();
            for (_, sub) in deadlist::keys(self.mos, list)? {
                livelist::for_each_live(self.mos, sub, &mut |entry| {
                    if let Some(place) = livelist::place(&entry.bp) {
                        *more.entry(place).or_default() += 1;
                    }
                    Ok(())
                })?;
            }
            let root = self.mos.dataset(head)?.bp;
            let walked = trees.walk(&root, origin, None, &mut |bp, _| {
                if let Some(place) = livelist::place(bp) {
                    *more.entry(place).or_default() -= 1;
                }
                true
            });
            if let Walked::Failed(e) = walked {
                return Err(e);
            }
            let surplus = more.values().filter(|n| **n > 0).count();
            let missing = more.values().filter(|n| **n < 0).count();
            self.equal(list, "blocks of a livelist that its clone lacks", surplus, 0);
            self.equal(list, "blocks of a clone that its livelist lacks", missing, 0);
        }
        Ok(())
    }
}
