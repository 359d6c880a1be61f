//! Bytes written since a snapshot or bookmark: `written@S`, `written#B` (chapter 04 §11.3).
//!
//! # Theory
//! The value is the space that a dataset refers to and the old snapshot did not. It is the
//! difference of what both refer to, plus the space of the old snapshot that was killed
//! since: of each dataset in between, the part of its deadlist that was born before the old
//! snapshot was taken. The snapshot of a bookmark may be destroyed; the bookmark has the
//! size of what was killed before the next one.

use base::Result;
use dsl::DslDataset;
use dsl::props::{PropData, PropValue, Source};
use dsl::write::{bpobj, deadlist};
use ondisk::dslphys::BOOKMARK_HAS_FBN;

use super::Dataset;
use crate::values::with_source;

/// Snapshots between a dataset and an old one of it.
const CHAIN_MAX: usize = 1 << 16;

impl Dataset {
    /// The value of `written@...` or `written#...`: a snapshot or bookmark of this dataset,
    /// or, by its full name, one that it descends from. `None` for any other.
    ///
    /// # Errors
    /// Those of reading the MOS.
    pub(super) fn written_since(&self, name: &str) -> Result<Option<PropValue>> {
        let Some((_, since)) = name.split_once(['@', '#']) else { return Ok(None) };
        let head = self.ds().name().split('@').next().unwrap_or_default();
        let full = match (since.contains(['@', '#']), name.starts_with("written#")) {
            (true, _) => since.to_owned(),
            (false, true) => format!("{head}#{since}"),
            (false, false) => format!("{head}@{since}"),
        };
        match full.contains('#') {
            true => self.since_bookmark(&full),
            false => self.since_snapshot(&full),
        }
    }

    fn since_snapshot(&self, full: &str) -> Result<Option<PropValue>> {
        let Some((fs, snap)) = full.split_once('@') else { return Ok(None) };
        let Some(head) = self.head_named(fs)? else { return Ok(None) };
        let Some(old) = head.snapshot(snap)? else { return Ok(None) };
        self.since(old.object(), old.phys().creation_txg.0, old.phys().referenced_bytes)
    }

    fn since_bookmark(&self, full: &str) -> Result<Option<PropValue>> {
        let Some((fs, _)) = full.split_once('#') else { return Ok(None) };
        let Some(head) = self.head_named(fs)? else { return Ok(None) };
        let Some(mark) = head.bookmarks()?.into_iter().find(|b| b.name == full) else {
            return Ok(None);
        };
        let txg = mark.phys.creation_txg.0;
        if mark.phys.flags & BOOKMARK_HAS_FBN == 0 {
            // The snapshot itself has the numbers, as long as it exists.
            let snaps = head.snapshots()?;
            let Some(old) = snaps.iter().find(|s| s.phys().guid == mark.phys.guid) else {
                return Ok(None);
            };
            return self.since(old.object(), txg, old.phys().referenced_bytes);
        }
        let mut written = self.ds().phys().referenced_bytes;
        let mut at = self.ds().clone();
        for _ in 0..CHAIN_MAX {
            if at.phys().prev_snap_txg.0 <= txg {
                let own = at.dir().object() == head.dir().object();
                let died = mark.phys.fbn.used;
                written = written.saturating_add(died).saturating_sub(mark.phys.referenced.used);
                return if own { bytes(written) } else { Ok(None) };
            }
            written = written.saturating_add(dead_of(&at, txg)?);
            match at.previous_dataset()? {
                Some(previous) => at = previous,
                None => break,
            }
        }
        Ok(None)
    }

    /// Bytes written since the snapshot `object` of `txg`, from which this dataset
    /// descends.
    fn since(&self, object: u64, txg: u64, referenced: u64) -> Result<Option<PropValue>> {
        let mut written = self.ds().phys().referenced_bytes;
        let mut at = self.ds().clone();
        for _ in 0..CHAIN_MAX {
            written = written.saturating_add(dead_of(&at, txg)?);
            if at.phys().prev_snap_obj == object {
                return bytes(written.saturating_sub(referenced));
            }
            match at.previous_dataset()?.filter(|p| p.phys().creation_txg.0 > txg) {
                Some(previous) => at = previous,
                None => break,
            }
        }
        Ok(None)
    }

    /// The head of a file system or volume of this pool, if one has this name.
    fn head_named(&self, name: &str) -> Result<Option<DslDataset>> {
        match self.core.spa.root_dir()?.find(name) {
            Ok(dir) => dir.head(),
            Err(e) if e.kind() == base::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }
}

/// The value, with the source that OpenZFS reports.
fn bytes(written: u64) -> Result<Option<PropValue>> {
    with_source(PropData::Num(written), Source::Local)
}

/// Bytes on a dataset's deadlist that were born in `txg` or before.
fn dead_of(ds: &DslDataset, txg: u64) -> Result<u64> {
    let (mos, object) = (ds.dir().mos(), ds.phys().deadlist_obj);
    if object == 0 || deadlist::is_plain(mos, object)? {
        return Ok(ds.deadlist_totals()?.used);
    }
    let mut sum = 0u64;
    for &list in deadlist::keys(mos, object)?.range(..txg).map(|(_, list)| list) {
        sum = sum.saturating_add(u64::try_from(bpobj::usage(mos, list)?.used).unwrap_or(0));
    }
    Ok(sum)
}
