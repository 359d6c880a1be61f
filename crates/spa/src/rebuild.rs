//! Rebuilding space maps from the blocks in use (`zpool import --rebuild-space`).
//!
//! # Theory
//! Space maps record which space is allocated. So do the block pointers, because every
//! block in use has one. `Spa::plan_rebuild` walks them all, as an audit does, without
//! reading a space map: marked space is in use, everything else is free. The import then
//! builds empty metaslabs and claims the marked space in the first txg, as if that txg had
//! allocated it (`metaslab::Space::claim`). That txg drops every old map, log and array,
//! and writes new ones ([`crate::engine`], `rebuild`); the next one flushes the log.
//!
//! # Crash argument
//! Old maps are objects of the MOS, so the walk marks their blocks too, and the first txg
//! frees them like any others: they are not reused before its uberblock is durable
//! (chapter 05 §6). Everything that the txg writes is written to unmarked space. So a crash before
//! its uberblock leaves the pool as it was, and after it the new maps are complete. Below
//! an unreadable indirect block of a map nothing is marked: such blocks may be overwritten
//! before the crash, but they were unreadable before, too.
//!
//! # What is refused
//! * Blocks that share space: no map is right for two owners of one sector, because either
//!   may free it first. The error names both and says which of them has lost its content.
//!   The pool can be read, and rewound to an earlier state without the conflict.
//! * Metadata that cannot be read hides the blocks below it, which would become free. With
//!   `force` they do; they are unreachable anyway.
//! * A checkpoint, and a vdev that is being removed: both keep space to which no pointer of
//!   this state refers.
//!
//! # Invariants
//! * Nothing is written here. Memory is two bits for each sector of the pool.
//!
//! Lock order: no locks; the pool has no writer yet.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use base::{Error, ErrorKind, Result, VdevId};
use dmu::Io;
use dmu::traverse::Bookmark;
use ondisk::ObjType;
use ondisk::spacemap::parse_log_key;

use crate::audit::bits::{Slab, SpaceBits, VdevBits};
use crate::audit::{Owner, Owners, PROBLEMS_MAX, Problem, maps};
use crate::engine::{LOGS_DIRECTORY, checkpoint};
use crate::import::Spa;
use crate::obsolete::{CONDENSING_KEY, MAP_KEY};
use crate::space::PoolSpace;
use crate::specs;

/// Reads in flight.
const READS: usize = 32;
/// Sectors that bitmaps may cover: 2^36 is two bitmaps of 8 GiB.
const SECTORS_MAX: u64 = 1 << 36;
/// Conflicts that an error lists.
const CONFLICTS_SHOWN: usize = 20;

/// The result of rebuilding the space maps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rebuilt {
    /// Bytes in use.
    pub used: u64,
    /// Leaked bytes of the old maps, which were freed. `None`: the old maps cannot be read.
    pub leaked: Option<u64>,
    /// Bytes in use that were free in the old maps: they would have been overwritten.
    pub unprotected: Option<u64>,
    /// Why the old maps cannot be read.
    pub unreadable: Option<String>,
    /// Metadata blocks that cannot be read; the blocks below them were given up.
    pub given_up: u64,
}

/// The writer's initial state instead of the old maps.
pub(crate) struct RebuildPlan {
    /// Metaslabs, all empty.
    pub(crate) space: PoolSpace,
    /// Space in use.
    pub(crate) used: SpaceBits,
    /// Objects of the MOS to be freed: maps, logs, arrays.
    pub(crate) drop: BTreeSet<u64>,
    pub(crate) report: Rebuilt,
}

fn bits_of(space: &PoolSpace) -> Result<SpaceBits> {
    let sectors = |v: &crate::space::VdevSpace| v.size().checked_shr(v.ashift).unwrap_or(0);
    if space.vdevs.iter().map(sectors).fold(0, u64::saturating_add) > SECTORS_MAX {
        return Err(Error::limit("the pool has too many sectors to track"));
    }
    let mut vdevs = Vec::new();
    for v in &space.vdevs {
        let mut slabs = Vec::new();
        for m in &v.metaslabs {
            if m.size == 0 || v.ashift >= 64 {
                return Err(Error::corrupt("impossible metaslab"));
            }
            let mut slab = Slab::new(m.start, m.size, v.ashift);
            slab.fill();
            slabs.push(slab);
        }
        vdevs.push(VdevBits { vdev: v.vdev, metaslab_shift: v.metaslab_shift, slabs });
    }
    Ok(SpaceBits::new(vdevs))
}

impl Spa {
    /// Determines the space in use, and the objects of the MOS that the new maps replace.
    ///
    /// # Errors
    /// `Busy` for a checkpoint or a removal; `Corrupt` for blocks that share space and for
    /// metadata that cannot be read; those of reading the pool's own records.
    pub(crate) fn plan_rebuild(&self) -> Result<RebuildPlan> {
        self.check_no_checkpoint()?;
        let space = self.empty_space()?;
        let used = bits_of(&space)?;
        let drop = self.objects_to_drop()?;
        let problems = self.mark_used(&used, READS)?;
        if problems.len() >= PROBLEMS_MAX {
            return Err(Error::corrupt("too much is damaged to make space maps anew"));
        }
        let mut report = Rebuilt::default();
        let mut shared = Vec::new();
        for problem in &problems {
            match problem {
                Problem::Unreadable { at, .. } if at.objset == 0 && drop.contains(&at.object) => {}
                Problem::Unreadable { at, error } => {
                    report.given_up += 1;
                    if !self.options().force {
                        let position = self.position(*at, &BTreeMap::new());
                        return Err(Error::corrupt(format!(
                            "metadata cannot be read ({position}: {error}); with -f what is below \
                             it is given up"
                        )));
                    }
                }
                Problem::Claim { at, references: true, .. } => {
                    return Err(Error::corrupt(format!(
                        "{} has more references than its table counts",
                        self.position(*at, &self.dataset_names())
                    )));
                }
                Problem::Claim { at, claim, .. } if claim.outside > 0 => {
                    return Err(Error::corrupt(format!(
                        "{} lies outside of the pool",
                        self.position(*at, &self.dataset_names())
                    )));
                }
                Problem::Claim { dva, .. } => shared.push((dva.vdev, dva.offset, dva.asize.0)),
                _ => {}
            }
        }
        if !shared.is_empty() {
            return Err(self.conflict(shared));
        }
        used.claimed(&mut |_, _, len| report.used += len);
        self.compare_old(&used, &mut report);
        Ok(RebuildPlan { space, used, drop, report })
    }

    fn check_no_checkpoint(&self) -> Result<()> {
        let busy = |what: &str| {
            Err(Error::new(ErrorKind::Busy, format!("its space maps cannot be made anew: {what}")))
        };
        if self.mos().directory()?.lookup(checkpoint::KEY.as_bytes())?.is_some() {
            return busy("the pool has a checkpoint");
        }
        for config in &self.config().vdev_tree.children {
            if maps::top_zap(self, config, checkpoint::MAP_KEY)?.is_some() {
                return busy("a checkpoint is being discarded");
            }
            if config.top.as_ref().is_some_and(|t| t.removing) {
                return busy("a device is being removed");
            }
        }
        Ok(())
    }

    /// Every old map, log and array, and the directory of logs.
    fn objects_to_drop(&self) -> Result<BTreeSet<u64>> {
        let mut kept = BTreeSet::new();
        specs::for_each(&self.config().vdev_tree, &mut |v| {
            kept.extend(v.leaf.dtl.map(|o| o.0));
        });
        let mut drop = BTreeSet::new();
        for config in &self.config().vdev_tree.children {
            kept.extend(maps::top_zap(self, config, MAP_KEY)?);
            let array = config.top.as_ref().map(|t| t.metaslab_array);
            drop.extend(array.filter(|o| self.is_of_type(*o, ObjType::OBJECT_ARRAY)));
            let unflushed = maps::top_zap(self, config, "com.delphix:ms_unflushed_phys_txgs")?;
            drop.extend(unflushed.filter(|o| self.is_of_type(*o, ObjType::OTN_UINT64_METADATA)));
        }
        if let Some(words) = self.mos().lookup_words(CONDENSING_KEY)? {
            kept.extend(words);
        }
        if let Some(logs) = self.mos().lookup(LOGS_DIRECTORY)?
            && self.is_log_directory(logs)?
        {
            drop.insert(logs);
        }
        let mut at = base::ObjectId(0);
        while let Some(id) = self.mos().objset().next_object(at, Io::WAIT)? {
            at = id;
            if self.is_of_type(id.0, ObjType::SPACE_MAP) && !kept.contains(&id.0) {
                drop.insert(id.0);
            }
        }
        Ok(drop)
    }

    /// Whether an object is a list of logs: a wrong number must not take another object
    /// along. One that is damaged is taken for the list if nothing else refers to it; left
    /// where it is, it would be an object without a name whose blocks cannot be read.
    fn is_log_directory(&self, object: u64) -> Result<bool> {
        if !self.is_of_type(object, ObjType::OTN_ZAP_METADATA) {
            return Ok(false);
        }
        let named = |name: &[u8]| std::str::from_utf8(name).is_ok_and(|n| parse_log_key(n).is_ok());
        match self.mos().zap_entries(object) {
            Ok(all) => Ok(all.iter().all(|e| named(&e.name))),
            Err(e) if matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::Checksum) => {
                Ok(!self.is_named_elsewhere(object)?)
            }
            Err(e) => Err(e),
        }
    }

    /// Whether the object directory has another name for an object, or it is a vdev's.
    fn is_named_elsewhere(&self, object: u64) -> Result<bool> {
        let mut all = self.mos().directory()?.entries()?;
        all.retain(|e| e.name != LOGS_DIRECTORY.as_bytes());
        let vdevs = self.mos().lookup("com.delphix:vdev_zap_map")?;
        all.extend(self.mos().zap_entries(vdevs.unwrap_or(0))?);
        Ok(all.iter().any(|e| e.value.as_u64() == Some(object)))
    }

    fn is_of_type(&self, object: u64, object_type: ObjType) -> bool {
        self.mos().object(object).is_ok_and(|o| o.dnode().object_type == object_type)
    }

    /// Compares with the old maps, if they can be read.
    fn compare_old(&self, used: &SpaceBits, report: &mut Rebuilt) {
        let old = self.load_space().and_then(|space| maps::replay(self, &space));
        match old {
            Err(e) => report.unreadable = Some(e.to_string()),
            Ok(old) => {
                let (mut unprotected, mut leaked) = (0, 0);
                used.claimed(&mut |vdev, offset, len| {
                    unprotected += old.bits.claim(vdev, offset, len).free;
                });
                old.bits.leaks(&mut |_, _, len| leaked += len);
                (report.leaked, report.unprotected) = (Some(leaked), Some(unprotected));
            }
        }
    }

    /// The refusal of a pool whose blocks share space; names their owners.
    fn conflict(&self, ranges: Vec<(VdevId, u64, u64)>) -> Error {
        let owners = Owners::of(ranges);
        if let Err(e) = self.find_owners(&owners, READS) {
            return e;
        }
        let names = self.dataset_names();
        let found = owners.into_found();
        let mut text = "blocks share space, and no space map is right for both:".to_owned();
        for ((vdev, offset), users) in found.iter().take(CONFLICTS_SHOWN) {
            let user = |o: &Owner| {
                let state = if o.whole { "whole" } else { "damaged" };
                format!("{} ({state})", self.position(o.at, &names))
            };
            let users: Vec<String> = users.iter().map(user).collect();
            let _ = write!(text, "\n\tvdev {vdev}, offset {offset:#x}: {}", users.join(", "));
        }
        if found.len() > CONFLICTS_SHOWN {
            let _ = write!(text, "\n\tand {} more", found.len() - CONFLICTS_SHOWN);
        }
        Error::corrupt(text)
    }

    /// Names of datasets and snapshots by object; those that can be read.
    fn dataset_names(&self) -> BTreeMap<u64, String> {
        let mut names = BTreeMap::new();
        let walked = self.root_dir().and_then(|root| {
            root.walk(&mut |dir| {
                let Some(head) = dir.head()? else { return Ok(()) };
                names.insert(head.object(), dir.name().to_owned());
                for snapshot in head.snapshots()? {
                    names.insert(snapshot.object(), snapshot.name().to_owned());
                }
                Ok(())
            })
        });
        // A missing name is shown as an object id.
        let _partly = walked;
        names
    }

    /// A description of a block's position.
    fn position(&self, at: Bookmark, names: &BTreeMap<u64, String>) -> String {
        let Bookmark { objset, object, level, blkid } = at;
        let dataset = match names.get(&objset) {
            Some(name) => name.clone(),
            None if objset == 0 => "the pool's own metadata".to_owned(),
            None => format!("dataset {objset}"),
        };
        match level {
            ..0 if object == 0 => format!("{dataset}, root or log block"),
            0 => format!("{dataset}, object {object}, block {blkid}"),
            _ => format!("{dataset}, object {object}, level {level}, block {blkid}"),
        }
    }
}
