//! Redaction bookmarks and redacted streams (chapter 07 §8.7, §10.2).
//!
//! # Theory
//! The list of a redaction bookmark is made from snapshots, which do not change, so no lock is
//! held meanwhile. The bookmark is then made in one txg, and refused if the snapshot was replaced.

use std::sync::Arc;

use base::{Error, ErrorKind, Result};
use dsl::write::bookmark;
use spa::engine::{NewBookmark, NewRedaction};
use stream::{RedactionList, redacted_blocks};

use super::{Dataset, DatasetKind, DatasetOrBookmark};
use crate::pool::Pool;
use crate::props::PropValue;
use crate::values::{number, text};

/// Key of the guids by which a dataset is redacted.
pub(super) const REDACTED: &str = "com.delphix:redacted_datasets";

impl Dataset {
    /// The redaction list of this bookmark; `None` for one without.
    ///
    /// # Errors
    /// `Corrupt`; those of reading.
    pub(super) fn redaction_list(&self) -> Result<Option<Arc<RedactionList>>> {
        let DatasetOrBookmark::Bookmark(mark) = &self.what else { return Ok(None) };
        let object = mark.0.phys.redaction_obj;
        if object == 0 {
            return Ok(None);
        }
        let fail = |e: Error| e.in_dataset(self.name());
        let read = bookmark::redaction_list(self.dir().mos(), object);
        let (header, blocks) = read.map_err(fail)?;
        RedactionList::new(header.snaps, blocks).map(|list| Some(Arc::new(list))).map_err(fail)
    }

    /// Guids of the snapshots by which this dataset or bookmark is redacted.
    ///
    /// # Errors
    /// Those of reading.
    pub fn redaction_snaps(&self) -> Result<Option<Vec<u64>>> {
        match &self.what {
            DatasetOrBookmark::Bookmark(mark) => match mark.0.phys.redaction_obj {
                0 => Ok(None),
                list => {
                    let header = bookmark::redaction_header(self.dir().mos(), list);
                    header.map(|of| Some(of.snaps)).map_err(|e| e.in_dataset(self.name()))
                }
            },
            DatasetOrBookmark::Dataset(ds) => ds.attribute(REDACTED),
        }
    }

    /// The properties `redact_snaps` and `redacted`.
    pub(super) fn redaction_prop(&self, name: &str) -> Result<Option<PropValue>> {
        match (name, self.redaction_snaps()?) {
            ("redacted", snaps) => number(u64::from(snaps.is_some())),
            (_, Some(guids)) => {
                let list: Vec<String> = guids.iter().map(u64::to_string).collect();
                text(list.join(","))
            }
            (_, None) => Ok(None),
        }
    }

    /// The list of the redaction bookmark `mark`, which must be one of this snapshot.
    ///
    /// # Errors
    /// `Invalid` for another bookmark; those of reading.
    pub(super) fn redaction_by(&self, mark: &Dataset) -> Result<Arc<RedactionList>> {
        let odd = |what: &str| Error::invalid(format!("'{}' {what}", mark.name()));
        let list = mark.redaction_list()?.ok_or_else(|| odd("is not a redaction bookmark"))?;
        match mark.guid() == self.guid() {
            true => Ok(list),
            false => Err(odd("is not a redaction bookmark of this snapshot")),
        }
    }

    /// The list of a redacted dataset, whose pointers say what it lacks: it has no blocks.
    ///
    /// # Errors
    /// Those of reading.
    pub(super) fn own_redaction(&self) -> Result<Option<Arc<RedactionList>>> {
        match self.redaction_snaps()? {
            Some(snaps) => RedactionList::new(snaps, Vec::new()).map(|list| Some(Arc::new(list))),
            None => Ok(None),
        }
    }

    /// The redaction bookmark of this dataset's that has this guid and these redaction snapshots.
    ///
    /// # Errors
    /// Those of reading.
    pub(super) fn redaction_mark(&self, guid: u64, snaps: &[u64]) -> Result<Option<Dataset>> {
        let fs = self.name().split('@').next().unwrap_or_default();
        let mut wanted = snaps.to_vec();
        wanted.sort_unstable();
        for mark in Dataset::find(&self.core, fs)?.bookmarks()? {
            if mark.guid() != guid {
                continue;
            }
            if let Some(list) = mark.redaction_list()? {
                let mut found = list.snaps.clone();
                found.sort_unstable();
                if found == wanted {
                    return Ok(Some(mark));
                }
            }
        }
        Ok(None)
    }

    /// The source of a resumed stream: a redaction bookmark if it was one.
    ///
    /// # Errors
    /// Those of reading.
    pub(super) fn resume_source(
        &self,
        guid: u64,
        snaps: Option<&[u64]>,
    ) -> Result<Option<Dataset>> {
        match snaps {
            Some(snaps) => self.redaction_mark(guid, snaps),
            None => self.source_with_guid(guid),
        }
    }

    /// Whether this snapshot was made from the content of the snapshot `earlier`.
    fn descends_from(&self, earlier: &Dataset) -> Result<bool> {
        let mut at = self.ds().previous_dataset()?;
        while let Some(before) = at {
            if before.phys().guid == earlier.guid() {
                return Ok(true);
            }
            if before.phys().creation_txg.0 < earlier.createtxg() {
                break;
            }
            at = before.previous_dataset()?;
        }
        Ok(false)
    }
}

impl Pool {
    /// Makes the redaction bookmark `mark`, without dataset, of the snapshot `snapshot`: it lists
    /// the blocks that all of the redaction snapshots have changed or freed. These are later
    /// snapshots of the same dataset, or of clones.
    ///
    /// # Errors
    /// In OpenZFS's words: `NotFound`, `Invalid` for a snapshot that is no descendant, `Exists`,
    /// `NameTooLong`, `NoSpace`, `Limit` for too many redaction snapshots, `Unsupported` unless
    /// the pool's feature `redaction_bookmarks` is enabled; `Locked` for an encrypted dataset
    /// whose key is not loaded; `ReadOnly`; that of a suspension.
    pub fn redact(
        &self,
        snapshot: &str,
        mark: &str,
        redactions: &[String],
        command_line: Option<&str>,
    ) -> Result<()> {
        let writer = self.writer()?;
        let of = self.dataset(snapshot)?;
        if of.kind() != DatasetKind::Snapshot {
            return Err(Error::invalid("only a snapshot can be redacted").in_dataset(snapshot));
        }
        if of.redaction_snaps()?.is_some() {
            let text = "the snapshot is redacted already";
            return Err(Error::invalid(text).in_dataset(snapshot));
        }
        let (mut snaps, mut objsets) = (Vec::new(), Vec::new());
        for name in redactions {
            let redaction = self.dataset(name).map_err(|e| match e.kind() {
                ErrorKind::NotFound => {
                    Error::not_found("provided redaction snapshot does not exist")
                        .in_dataset(name.as_str())
                }
                _ => e,
            })?;
            if redaction.kind() != DatasetKind::Snapshot || !redaction.descends_from(&of)? {
                let text = format!("redaction snapshot is not a descendent of {snapshot}");
                return Err(Error::invalid(text).in_dataset(name.as_str()));
            }
            // Named twice counts once.
            if !snaps.contains(&redaction.guid()) {
                snaps.push(redaction.guid());
                objsets.push(redaction.objset()?);
            }
        }
        let blocks = match objsets.is_empty() {
            true => Vec::new(),
            false => redacted_blocks(&of.objset()?, &objsets)?,
        };
        let fs = snapshot.split('@').next().unwrap_or_default();
        let name = format!("{fs}#{mark}");
        let bookmark = NewBookmark { source: snapshot.to_owned(), name };
        let new = NewRedaction { bookmark, guid: of.guid(), snaps, blocks };
        writer.redact(new, self.command(command_line)).map(drop)
    }
}
