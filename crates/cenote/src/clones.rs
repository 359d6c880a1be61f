//! Clones, promotion, rollback and renames.
//!
//! # Theory
//! Each call is one request to the engine (`spa::engine`), complete on disk when it returns,
//! or refused. Handles of datasets find their dataset by its name each time they look
//! ([`Dataset::now`]); a handle of a renamed dataset finds nothing, and the dataset has to be
//! opened under its new name. An open file system stays open through renames and promotions.
//! After a rollback it gives `NotFound`, and [`Dataset::open_fs`] opens the restored one.

use std::sync::Arc;

use base::Result;
use dsl::props::PropData;
use spa::engine::NewClone;

use crate::changes::stored;
use crate::dataset::Dataset;
use crate::pool::Pool;

impl Pool {
    /// Makes a clone of the snapshot `origin` (`dataset@name`): a file system or volume that
    /// begins with the snapshot's content and shares its blocks. Properties are in stored
    /// form; those that a dataset has for life are the origin's.
    ///
    /// # Errors
    /// In OpenZFS's words: `NotFound` without the snapshot or the parent, `Exists`,
    /// `Invalid`, `NameTooLong`, `NoSpace`, `Unsupported` for encrypted snapshots;
    /// `ReadOnly`; that of a suspension.
    pub fn clone_snapshot(
        &self,
        origin: &str,
        name: &str,
        props: &[(String, PropData)],
        command_line: Option<&str>,
    ) -> Result<Dataset> {
        let (owners, props): (Vec<_>, Vec<_>) =
            props.iter().cloned().partition(|p| crate::owners::is_owner_quota(&p.0));
        let (origin, props) = (origin.to_owned(), stored(&props));
        let new = NewClone { origin, name: name.to_owned(), props };
        self.writer()?.clone_snapshot(new, self.command(command_line))?;
        match self.set_owner_quotas(name, &owners) {
            Ok(()) => self.dataset(name),
            // A dataset whose properties cannot be set is not kept.
            Err(e) => {
                self.writer()?.destroy_dataset(name, false, None)?;
                Err(e)
            }
        }
    }

    /// Promotes a clone: the snapshots that it shares with its origin's dataset become its
    /// own, and that dataset becomes its clone. Afterwards the former origin can be
    /// destroyed.
    ///
    /// # Errors
    /// In OpenZFS's words: `NotFound`; `Invalid` for a dataset that is no clone; `Exists`
    /// when both have a snapshot or bookmark of one name: the error's location has the
    /// snapshot's full name; `NameTooLong`; `NoSpace` for quotas and limits; `Unsupported`
    /// for encrypted datasets; `ReadOnly`; that of a suspension.
    pub fn promote(&self, name: &str, command_line: Option<&str>) -> Result<()> {
        self.writer()?.promote(name, self.command(command_line))?;
        self.core.refresh_hosts()
    }

    /// Returns a dataset to its newest snapshot, `dataset@name`; everything written since is
    /// given up. Open files and file systems of the dataset give `NotFound` from then on.
    ///
    /// # Errors
    /// In OpenZFS's words: `NotFound`; `Exists` when there are newer snapshots or bookmarks,
    /// which must be destroyed first; `NoSpace` when `refreservation` cannot be reserved
    /// again or `refquota` is exceeded; `Unsupported` for encrypted datasets; `ReadOnly`;
    /// that of a suspension.
    pub fn rollback(&self, snapshot: &str, command_line: Option<&str>) -> Result<()> {
        self.writer()?.rollback(snapshot, self.command(command_line)).map(drop)
    }

    /// Renames a file system or volume with all below it; `to` is its new full name, in the
    /// same pool. Properties that are inherited are those of the new place from then on.
    ///
    /// # Errors
    /// In OpenZFS's words: `NotFound`, also without the new parent; `Exists`; `Invalid`
    /// below itself, below a volume, and for the pool's root; `NameTooLong`, also when the
    /// name of a dataset or snapshot below gets too long; `NoSpace` for quotas and limits;
    /// `ReadOnly`; that of a suspension.
    pub fn rename_dataset(&self, from: &str, to: &str, command_line: Option<&str>) -> Result<()> {
        self.writer()?.rename_dataset(from, to, self.command(command_line))?;
        crate::kstats::renamed(&self.core, from, to);
        self.core.refresh_hosts()
    }

    /// Renames a snapshot of the dataset `of` from one short name to another. With
    /// `recursive` the snapshots of that name of all datasets below are renamed with it, all
    /// or none. Returns the names of the datasets.
    ///
    /// # Errors
    /// In OpenZFS's words: `NotFound`, `Exists`, `Invalid`, `NameTooLong`; `ReadOnly`; that
    /// of a suspension.
    pub fn rename_snapshot(
        &self,
        of: &str,
        (from, to): (&str, &str),
        recursive: bool,
        command_line: Option<&str>,
    ) -> Result<Vec<String>> {
        let writer = Arc::clone(self.writer()?);
        let done = writer.rename_snapshot(of, (from, to), recursive, self.command(command_line));
        done.map(|(names, _)| names)
    }
}
