//! Mappings of removed vdevs against the blocks that are found (chapter 08 §D.4).
//!
//! # Theory
//! The walk adds up the bytes that it finds of each entry of a mapping. With exact records
//! (`obsolete_counts_are_precise`) those and the entry's obsolete bytes are all of the entry;
//! without, some bytes may have become obsolete unrecorded. A mapping that is being condensed must
//! begin with the entries that condensing keeps, and their obsolete bytes. Two features count
//! the records.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use base::{Error, ErrorKind, Result, VdevId};
use dsl::write::{MosRead, features, remap};
use ondisk::config::VdevType;
use ondisk::removal::{JobState, Removing};
use ondisk::spacemap::Params;
use vdev::IndirectMap;

use super::maps::top_zap;
use super::{PROBLEMS_MAX, Problem, Report};
use crate::import::Spa;
use crate::indirect;
use crate::obsolete::{
    CondenseRecord, Counts, MAP_KEY, PRECISE_KEY, is_kept, is_space_map, mapping_header,
    removed_vdevs,
};

const DEVICE_REMOVAL: &str = "com.delphix:device_removal";

/// A removed vdev during the walk.
pub(super) struct RemovedVdev {
    pub(super) map: IndirectMap,
    /// Bytes found, by entry.
    found: Vec<AtomicU64>,
}

impl RemovedVdev {
    /// Notes that a block has so many bytes of an entry.
    pub(super) fn note(&self, entry: usize, len: u64) {
        if let Some(found) = self.found.get(entry) {
            found.fetch_add(len, Relaxed);
        }
    }

    fn found(&self, entry: usize) -> u64 {
        self.found.get(entry).map_or(0, |found| found.load(Relaxed))
    }
}

/// The removed vdevs of a pool by their ids.
pub(super) type Mappings = HashMap<VdevId, RemovedVdev>;

/// Loads the mappings.
///
/// # Errors
/// Those of reading; `Corrupt`.
pub(super) fn mappings(spa: &Spa) -> Result<Mappings> {
    let mut out = Mappings::new();
    for vdev in removed_vdevs(spa.config()) {
        let keys = vdev.top.as_ref().map(|t| t.indirect.clone()).unwrap_or_default();
        let (mapping, births) = (keys.mapping.map(|o| o.0), keys.births.map(|o| o.0));
        let map = indirect::load(spa.mos(), mapping, births)?;
        let found = map.entries().iter().map(|_| AtomicU64::new(0)).collect();
        out.insert(VdevId(vdev.id), RemovedVdev { map, found });
    }
    Ok(out)
}

/// Compares the records with what the walk found.
///
/// # Errors
/// Those of reading, if nothing is damaged.
pub(super) fn check(spa: &Spa, found: &Mappings, report: &mut Report) -> Result<()> {
    let checks = [check_entries, check_condensing];
    for check in checks {
        noted(check(spa, found, report), report)?;
    }
    noted(check_counts(spa, report), report)
}

/// Damage is a finding.
fn noted(done: Result<()>, report: &mut Report) -> Result<()> {
    match done {
        Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::Bug) => Err(e),
        Err(e) => {
            report.problems.push(Problem::Mapping(e));
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}

/// The obsolete bytes of a vdev, without those in its current obsolete map.
fn counts_before(spa: &Spa, vdev: VdevId, map: &IndirectMap, asize: u64) -> Result<Counts> {
    let mapping = removed_vdevs(spa.config()).find(|v| v.id == vdev.0);
    let mapping = mapping.and_then(|v| v.top.as_ref()?.indirect.mapping).filter(|o| o.0 != 0);
    let Some(mapping) = mapping else { return Ok(Counts::none(map)) };
    let header = mapping_header(spa.mos(), mapping.0)?;
    let mut counts = Counts::load(spa.mos(), &header, map)?;
    if let Some(record) = CondenseRecord::stored(spa.mos())?.filter(|r| r.vdev == vdev)
        && record.aside != 0
    {
        add_map(spa, record.aside, asize, map, &mut counts)?;
    }
    Ok(counts)
}

fn add_map(
    spa: &Spa,
    object: u64,
    asize: u64,
    map: &IndirectMap,
    counts: &mut Counts,
) -> Result<()> {
    if !is_space_map(spa.mos(), object)? {
        return Err(Error::corrupt("an obsolete map is no space map"));
    }
    let mut sum = 0u64;
    spa.for_each_entry(object, Params::obsolete(asize), &mut |range| {
        sum = sum.saturating_add(range.len);
        counts.add(map, range.offset, range.len)
    })?;
    let claimed = spa.space_map_header(object)?.alloc;
    if i64::try_from(sum) != Ok(claimed) {
        let why = format!("an obsolete map has {sum} bytes, its header claims {claimed}");
        return Err(Error::corrupt(why));
    }
    Ok(())
}

fn check_entries(spa: &Spa, found: &Mappings, report: &mut Report) -> Result<()> {
    for config in removed_vdevs(spa.config()) {
        let vdev = VdevId(config.id);
        let Some(removed) = found.get(&vdev) else { continue };
        let (map, asize) = (&removed.map, config.top.as_ref().map_or(0, |t| t.asize));
        let mut counts = counts_before(spa, vdev, map, asize)?;
        if let Some(object) = top_zap(spa, config, MAP_KEY)? {
            add_map(spa, object, asize, map, &mut counts)?;
        }
        let precise = top_zap(spa, config, PRECISE_KEY)?.unwrap_or(0) != 0;
        for (at, entry) in map.entries().iter().enumerate() {
            let (found, obsolete) = (removed.found(at), u64::from(counts.of(at)));
            let sum = found.saturating_add(obsolete);
            if sum > entry.len || (precise && sum < entry.len) {
                if report.problems.len() >= PROBLEMS_MAX {
                    return Ok(());
                }
                let (source, len) = (entry.src, entry.len);
                report.problems.push(Problem::Obsolete { vdev, source, len, found, obsolete });
            }
        }
    }
    Ok(())
}

fn check_condensing(spa: &Spa, found: &Mappings, _: &mut Report) -> Result<()> {
    let Some(record) = CondenseRecord::stored(spa.mos())? else { return Ok(()) };
    let odd = || Error::corrupt("a condensed mapping has not the entries of the old one");
    let config = removed_vdevs(spa.config()).find(|v| v.id == record.vdev.0).ok_or_else(odd)?;
    let old = &found.get(&record.vdev).ok_or_else(odd)?.map;
    let (asize, mapping) = config.top.as_ref().map_or((0, None), |t| (t.asize, t.indirect.mapping));
    let current = top_zap(spa, config, MAP_KEY)?;
    let is_shared = record.aside != 0 && current == Some(record.aside);
    if mapping.is_none_or(|mapping| mapping.0 == record.next) || is_shared {
        return Err(odd());
    }
    let due = counts_before(spa, record.vdev, old, asize)?;
    let next = indirect::load(spa.mos(), Some(record.next), None)?;
    let header = mapping_header(spa.mos(), record.next)?;
    let counts = Counts::load(spa.mos(), &header, &next)?;
    let entries = old.entries().iter().enumerate();
    let mut kept = entries.filter(|(at, entry)| is_kept(&due, *at, entry));
    let mut mapped = 0u64;
    for (to, entry) in next.entries().iter().enumerate() {
        let (at, same) = kept.next().ok_or_else(odd)?;
        if same != entry || (header.counts.is_some() && counts.of(to) != due.of(at)) {
            return Err(odd());
        }
        mapped = mapped.saturating_add(entry.len);
    }
    if mapped != header.bytes_mapped {
        return Err(odd());
    }
    Ok(())
}

/// Compares the counts of the two features.
fn check_counts(spa: &Spa, report: &mut Report) -> Result<()> {
    let mos: &dyn MosRead = spa.mos();
    if mos.directory("features_for_read")?.is_none() {
        return Ok(());
    }
    let words = spa.mos().lookup_words("com.delphix:removing")?;
    let removing = words.as_ref().and_then(|w| w.first_chunk()).map(Removing::from_words);
    let under_way = removing.transpose()?.is_some_and(|r| r.state == JobState::Scanning);
    let (mut removals, mut records) = (u64::from(under_way), 0);
    for config in &spa.config().vdev_tree.children {
        removals += u64::from(config.kind == VdevType::Indirect);
        let mapping = config.top.as_ref().and_then(|t| t.indirect.mapping).filter(|o| o.0 != 0);
        if let Some(mapping) = mapping {
            records += u64::from(mapping_header(mos, mapping.0)?.counts.is_some());
        }
        records += u64::from(top_zap(spa, config, MAP_KEY)?.is_some());
        records += u64::from(top_zap(spa, config, PRECISE_KEY)?.unwrap_or(0) != 0);
    }
    if let Some(record) = CondenseRecord::stored(mos)? {
        records += u64::from(record.aside != 0);
        records += u64::from(mapping_header(mos, record.next)?.counts.is_some());
    }
    records += u64::from(mos.directory(remap::OBSOLETE_LIST)?.is_some());
    for job in spa.datasets()? {
        records += u64::from(mos.attribute_u64(job.object, remap::KEY)?.is_some());
    }
    for (guid, due) in [(DEVICE_REMOVAL, removals), (remap::OBSOLETE_COUNTS, records)] {
        let counted = features::count(mos, guid)?.unwrap_or(0);
        if counted != due {
            report.problems.push(Problem::FeatureCount { guid, counted, due });
        }
    }
    Ok(())
}
