//! Renaming datasets and snapshots (chapter 04 §10.5).
//!
//! # Theory
//! A rename is one sync task. Everything in memory that belongs to a dataset is found by the
//! object of its head, which stays, so open datasets stay open. Inherited properties may
//! have other values below another parent; they apply to blocks written from then on.
//!
//! # Concurrency
//! Tasks run under the lock of names, so no reader sees a dataset under both names or none.
//! Scrubs and background frees know objects only.

use std::collections::{BTreeMap, BTreeSet};

use base::limits::{DATASET_DEPTH_MAX, DATASET_NAME_MAX};
use base::{Error, ErrorKind, Result, Txg};
use dsl::write::rename;

use super::Writer;
use super::datasets::{FILESYSTEMS, SNAPSHOTS, check_name, exists, log};
use super::effective::missing;
use super::tasks::{Command, TaskCx};

impl TaskCx<'_> {
    /// Checks that no name below `dir` becomes too long when that of `dir` grows by `more`
    /// bytes from `len`.
    fn check_lengths(&self, dir: u64, len: usize, depth: usize) -> Result<()> {
        let too_long = || Error::new(ErrorKind::NameTooLong, "name is too long");
        if len > DATASET_NAME_MAX || depth > DATASET_DEPTH_MAX {
            return Err(too_long());
        }
        let phys = self.read().dir(dir)?;
        if phys.head_dataset_obj != 0 {
            let names = self.read().dataset(phys.head_dataset_obj)?.snapnames_zapobj;
            let longest = self.read().numbers(names)?.into_iter().map(|(snap, _)| snap.len()).max();
            if longest.is_some_and(|snap| len + 1 + snap > DATASET_NAME_MAX) {
                return Err(too_long());
            }
        }
        for (child, object) in self.read().numbers(phys.child_dir_zapobj)? {
            self.check_lengths(object, len + 1 + child.len(), depth + 1)?;
        }
        Ok(())
    }

    /// Checks quotas and limits above the new parent of `dir`.
    fn check_move(&self, dir: u64, from: u64, to: u64) -> Result<()> {
        if from == to {
            return Ok(());
        }
        let (mos, phys) = (self.read(), self.read().dir(dir)?);
        let except: BTreeSet<u64> = rename::ancestors(mos, from)?.into_iter().collect();
        self.check_quotas(to, phys.used_bytes.max(phys.reserved), &except)?;
        let mut counted: BTreeMap<&str, u64> = BTreeMap::new();
        for what in [&FILESYSTEMS, &SNAPSHOTS] {
            let n = mos.attribute_u64(dir, what.count)?.unwrap_or(0);
            counted.insert(what.count, n);
        }
        let filesystems = counted.get(FILESYSTEMS.count).copied().unwrap_or(0).saturating_add(1);
        self.check_limit_below(to, &FILESYSTEMS, filesystems, &except)?;
        let snapshots = counted.get(SNAPSHOTS.count).copied().unwrap_or(0);
        self.check_limit_below(to, &SNAPSHOTS, snapshots, &except)
    }

    /// The heads of a dataset and, with `recursive`, of all below that have the snapshot.
    fn heads_with(&self, fs: &str, snap: &str, recursive: bool) -> Result<Vec<(u64, String)>> {
        let mut out = Vec::new();
        let mut todo = vec![(self.dir(fs)?, fs.to_owned(), 0)];
        while let Some((dir, name, depth)) = todo.pop() {
            if depth > DATASET_DEPTH_MAX {
                return Err(Error::limit("datasets nested too deep"));
            }
            let phys = self.read().dir(dir)?;
            if phys.head_dataset_obj != 0 {
                let ds = self.read().dataset(phys.head_dataset_obj)?;
                if dsl::write::snapshot::find(self.cx, &ds, snap)?.is_some() {
                    out.push((phys.head_dataset_obj, name.clone()));
                }
            }
            if recursive {
                for (child, object) in self.read().numbers(phys.child_dir_zapobj)? {
                    if !child.starts_with(['$', '%']) {
                        todo.push((object, format!("{name}/{child}"), depth + 1));
                    }
                }
            }
        }
        Ok(out)
    }
}

impl Writer {
    /// Renames a file system or volume, with all below, within its pool.
    ///
    /// # Errors
    /// In OpenZFS's words: `NotFound`, also without the new parent; `Exists`; `Invalid`
    /// below itself, below a volume, and for the pool's root; `NameTooLong`, also for names
    /// below; `NoSpace` for quotas and limits; those of a suspension.
    pub fn rename_dataset(&self, from: &str, to: &str, command: Option<Command>) -> Result<Txg> {
        check_name(from)?;
        check_name(to)?;
        let (from, to) = (from.to_owned(), to.to_owned());
        let (old, new) = (from.clone(), to.clone());
        let check = move |cx: &mut TaskCx<'_>| {
            let dir = cx.dir(&old)?;
            let parent = cx.parent_of(&new)?;
            let last = new.rsplit('/').next().unwrap_or_default();
            match rename::check_dir(cx.cx, dir, parent, last) {
                Err(e) if e.kind() == ErrorKind::Exists => return Err(exists(&new)),
                other => other.map_err(|e| e.in_dataset(old.as_str()))?,
            }
            cx.check_lengths(dir, new.len(), 0).map_err(|e| e.in_dataset(old.as_str()))?;
            let above = cx.read().dir(dir)?.parent_obj;
            cx.check_move(dir, above, parent).map_err(|e| e.in_dataset(old.as_str()))?;
            Ok((dir, parent))
        };
        let act = move |cx: &mut TaskCx<'_>, (dir, parent): (u64, u64)| {
            let last = to.rsplit('/').next().unwrap_or_default();
            rename::dir(cx.cx, dir, parent, last)?;
            cx.refresh_heads()?;
            let head = cx.read().dir(dir)?.head_dataset_obj;
            cx.log_internal("rename", Some((&to, head)), &format!("-> {to} (from {from})"))?;
            log(cx, command.as_ref())
        };
        self.sync_task(check, act).map(|(_, txg)| txg)
    }

    /// Renames a snapshot of `fs`; with `recursive` also those of the same name of all
    /// datasets below, in the same txg. Returns the datasets.
    ///
    /// # Errors
    /// In OpenZFS's words: `NotFound`, `Exists`, `Invalid`, `NameTooLong`; those of a
    /// suspension.
    pub fn rename_snapshot(
        &self,
        fs: &str,
        (from, to): (&str, &str),
        recursive: bool,
        command: Option<Command>,
    ) -> Result<(Vec<String>, Txg)> {
        check_name(&format!("{fs}@{to}"))?;
        let (fs, from, to) = (fs.to_owned(), from.to_owned(), to.to_owned());
        let (old, new) = (from.clone(), to.clone());
        let check = move |cx: &mut TaskCx<'_>| {
            let heads = cx.heads_with(&fs, &old, recursive)?;
            if heads.is_empty() || !recursive && heads.len() != 1 {
                return Err(missing(&format!("{fs}@{old}")));
            }
            for (head, name) in &heads {
                let full = format!("{name}@{new}");
                check_name(&full)?;
                match rename::check_snapshot(cx.cx, *head, &old, &new) {
                    Err(e) if e.kind() == ErrorKind::Exists => return Err(exists(&full)),
                    other => other.map_err(|e| e.in_dataset(full.as_str()))?,
                }
            }
            Ok(heads)
        };
        let act = move |cx: &mut TaskCx<'_>, heads: Vec<(u64, String)>| {
            for (head, name) in &heads {
                let snap = rename::snapshot(cx.cx, *head, &from, &to)?;
                let text = format!("-> @{to}");
                cx.log_internal("rename", Some((&format!("{name}@{from}"), snap)), &text)?;
            }
            log(cx, command.as_ref())?;
            Ok(heads.into_iter().map(|(_, name)| name).collect())
        };
        self.sync_task(check, act)
    }
}
