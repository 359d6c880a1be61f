//! Holds of snapshots, and bookmarks (chapter 04 §11).
//!
//! # Theory
//! All holds, releases, or bookmarks of one request are made in one txg, or none.
//!
//! # Concurrency
//! A release may destroy a snapshot that was marked for it. Destroying moves blocks of the
//! datasets that follow, so these are written first, as for any destruction.
//!
//! # Departures from OpenZFS
//! * A bookmark belongs to the dataset of its snapshot. OpenZFS also allows one in a clone
//!   of it.

use std::collections::{BTreeMap, BTreeSet};

use base::limits::DATASET_NAME_MAX;
use base::{Error, ErrorKind, Result, Txg};
use dsl::write::{bookmark, destroy, features};
use ondisk::dslphys::RedactBlock;

use super::Writer;
use super::datasets::{check_name, log};
use super::effective::missing;
use super::tasks::{Command, TaskCx};

/// First pool version with holds.
const HOLDS_VERSION: u64 = 18;

/// A snapshot, and a tag that holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotHold {
    /// Full name of the snapshot.
    pub snapshot: String,
    /// The tag.
    pub tag: String,
}

/// A bookmark to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewBookmark {
    /// Full name of a snapshot or bookmark.
    pub source: String,
    /// Full name of the bookmark, in the same dataset.
    pub name: String,
}

/// A redaction bookmark to make.
#[derive(Clone, Debug)]
pub struct NewRedaction {
    /// The bookmark.
    pub bookmark: NewBookmark,
    /// The guid of the snapshot that it is made of.
    pub guid: u64,
    /// Guids of the redaction snapshots.
    pub snaps: Vec<u64>,
    /// The blocks of the snapshot that these have changed, in order.
    pub blocks: Vec<RedactBlock>,
}

fn check_tag(tag: &str) -> Result<()> {
    if tag.is_empty() {
        return Err(Error::invalid("a tag is not empty"));
    }
    if tag.len() > DATASET_NAME_MAX {
        return Err(Error::new(ErrorKind::NameTooLong, "tag too long"));
    }
    Ok(())
}

/// Checks that each snapshot is named once with a tag.
fn check_holds(holds: &[SnapshotHold]) -> Result<()> {
    let mut seen = BTreeSet::new();
    for hold in holds {
        check_tag(&hold.tag).map_err(|e| e.in_dataset(hold.snapshot.as_str()))?;
        check_name(&hold.snapshot)?;
        if !seen.insert((&hold.snapshot, &hold.tag)) {
            let e = Error::invalid("the snapshot is named twice");
            return Err(e.in_dataset(hold.snapshot.as_str()));
        }
    }
    Ok(())
}

impl TaskCx<'_> {
    /// The head of a bookmark's dataset, and the bookmark's short name.
    fn bookmark<'n>(&self, name: &'n str) -> Result<(u64, &'n str)> {
        let (fs, short) = name.split_once('#').ok_or_else(|| missing(name))?;
        Ok((self.head(fs)?, short))
    }

    /// Checks that bookmarks can be made; each with the head that gets it.
    fn check_bookmarks(&self, list: Vec<NewBookmark>) -> Result<Vec<(u64, NewBookmark)>> {
        let (mut found, mut seen) = (Vec::with_capacity(list.len()), BTreeSet::new());
        for new in list {
            let (head, short) = self.bookmark(&new.name)?;
            let of = match new.source.split_once('@') {
                Some(_) => self.snapshot(&new.source)?.0,
                None => {
                    let (of, from) = self.bookmark(&new.source)?;
                    let missing = |e: Error| match e.kind() {
                        ErrorKind::NotFound => missing(&new.source),
                        _ => e,
                    };
                    bookmark::find(self.read(), of, from).map_err(missing)?;
                    of
                }
            };
            if of != head {
                let text = "source is not an ancestor of the new bookmark's dataset";
                return Err(Error::invalid(text).in_dataset(new.name.as_str()));
            }
            let taken = || Error::new(ErrorKind::Exists, "bookmark exists");
            match bookmark::check_new(self.cx, head, short) {
                Err(e) if e.kind() == ErrorKind::Exists => {
                    return Err(taken().in_dataset(new.name.as_str()));
                }
                other => other.map_err(|e| e.in_dataset(new.name.as_str()))?,
            }
            if !seen.insert(new.name.clone()) {
                return Err(taken().in_dataset(new.name.as_str()));
            }
            found.push((head, new));
        }
        if self.writer.allocatable(false) == 0 {
            return Err(Error::new(ErrorKind::NoSpace, "out of space"));
        }
        Ok(found)
    }

    fn has_hold(&self, snap: u64, tag: &str) -> Result<bool> {
        let s = self.read().dataset(snap)?;
        Ok(destroy::holds(self.read(), &s)?.iter().any(|(have, _)| have == tag))
    }
}

impl Writer {
    /// Holds snapshots: none of them can be destroyed until it is released.
    ///
    /// # Errors
    /// In OpenZFS's words: `NotFound`, `Exists` for a tag that holds the snapshot already,
    /// `NameTooLong`, `Unsupported` in old pools; those of a suspension.
    pub fn hold(&self, holds: &[SnapshotHold], command: Option<Command>) -> Result<Txg> {
        check_holds(holds)?;
        let holds = holds.to_vec();
        let check = move |cx: &mut TaskCx<'_>| {
            if cx.state.config.version < HOLDS_VERSION {
                return Err(Error::unsupported("pool must be upgraded"));
            }
            let mut found = Vec::with_capacity(holds.len());
            for hold in holds {
                let name = hold.snapshot.as_str();
                let (_, snap) = cx.snapshot(name)?;
                if cx.has_hold(snap, &hold.tag)? {
                    let text = "tag already exists on this dataset";
                    return Err(Error::new(ErrorKind::Exists, text).in_dataset(name));
                }
                found.push((snap, hold));
            }
            Ok(found)
        };
        let act = move |cx: &mut TaskCx<'_>, found: Vec<(u64, SnapshotHold)>| {
            for (snap, hold) in found {
                destroy::hold(cx.cx, snap, &hold.tag)?;
                let text = format!("tag={} temp=0 refs=1", hold.tag);
                cx.log_internal("hold", Some((&hold.snapshot, snap)), &text)?;
            }
            log(cx, command.as_ref())
        };
        self.sync_task(check, act).map(|(_, txg)| txg)
    }

    /// Releases holds. A snapshot that was marked for destruction is destroyed with its last
    /// hold.
    ///
    /// # Errors
    /// In OpenZFS's words: `NotFound`, also for a tag that does not hold the snapshot; those
    /// of a suspension.
    pub fn release(&self, holds: &[SnapshotHold], command: Option<Command>) -> Result<Txg> {
        check_holds(holds)?;
        let holds = holds.to_vec();
        let check = move |cx: &mut TaskCx<'_>| {
            let mut found = Vec::with_capacity(holds.len());
            for hold in holds {
                let name = hold.snapshot.as_str();
                let (_, snap) = cx.snapshot(name)?;
                if !cx.has_hold(snap, &hold.tag)? {
                    let text = "no such tag on this dataset";
                    return Err(Error::not_found(text).in_dataset(name));
                }
                // The last release may destroy it.
                if cx.read().dataset(snap)?.is_defer_destroy() {
                    cx.check_unused(snap).map_err(|e| e.in_dataset(name))?;
                }
                found.push((snap, hold));
            }
            Ok(found)
        };
        let act = move |cx: &mut TaskCx<'_>, found: Vec<(u64, SnapshotHold)>| {
            cx.settle()?;
            for (snap, hold) in found {
                let text = format!("tag={} refs=0", hold.tag);
                cx.log_internal("release", Some((&hold.snapshot, snap)), &text)?;
                if destroy::release(cx.cx, snap, &hold.tag)? {
                    cx.free_in_background();
                }
            }
            log(cx, command.as_ref())
        };
        self.sync_task(check, act).map(|(_, txg)| txg)
    }

    /// Releases temporary holds that an earlier import left (chapter 04 §11.1).
    ///
    /// # Errors
    /// Those of reading the MOS; that of a suspension.
    pub fn release_temporary_holds(&self) -> Result<()> {
        if self.mos().lookup("tmp_userrefs")?.is_none() {
            return Ok(());
        }
        let act = |cx: &mut TaskCx<'_>, ()| {
            cx.settle()?;
            cx.free_in_background();
            destroy::release_temporary(cx.cx)
        };
        self.sync_task(|_| Ok(()), act).map(|_| ())
    }

    /// Makes bookmarks of snapshots or of other bookmarks.
    ///
    /// # Errors
    /// In OpenZFS's words: `NotFound`, `Exists`, `Invalid` for another dataset, `NoSpace`,
    /// `NameTooLong`, `Unsupported` unless the feature is enabled; those of a suspension.
    pub fn bookmark(&self, list: &[NewBookmark], command: Option<Command>) -> Result<Txg> {
        for new in list {
            check_name(&new.source)?;
            check_name(&new.name)?;
        }
        let list = list.to_vec();
        let check = move |cx: &mut TaskCx<'_>| cx.check_bookmarks(list);
        let act = move |cx: &mut TaskCx<'_>, found: Vec<(u64, NewBookmark)>| {
            // The count of blocks freed since the snapshot begins with the present deadlist.
            cx.settle()?;
            for (head, new) in found {
                let (_, short) = cx.bookmark(&new.name)?;
                match new.source.split_once('@') {
                    Some(_) => {
                        let (_, snap) = cx.snapshot(&new.source)?;
                        bookmark::make(cx.cx, snap, short)?;
                    }
                    None => {
                        let (_, from) = cx.bookmark(&new.source)?;
                        bookmark::copy(cx.cx, head, from, short)?;
                    }
                }
                let text = format!("name={} from={}", new.name, new.source);
                cx.log_internal("bookmark", Some((&new.name, head)), &text)?;
            }
            log(cx, command.as_ref())
        };
        self.sync_task(check, act).map(|(_, txg)| txg)
    }

    /// Makes a redaction bookmark (chapter 07 §10.2) in one txg, whatever the length of its list.
    ///
    /// # Errors
    /// As [`Writer::bookmark`]; `NotFound` if the snapshot is gone; `Limit` for too many
    /// redaction snapshots.
    pub fn redact(&self, new: NewRedaction, command: Option<Command>) -> Result<Txg> {
        check_name(&new.bookmark.source)?;
        check_name(&new.bookmark.name)?;
        let (wanted, guid) = (new.bookmark.clone(), new.guid);
        let check = move |cx: &mut TaskCx<'_>| {
            let (_, snap) = cx.snapshot(&wanted.source)?;
            // The list says nothing about another snapshot of the name.
            if cx.read().dataset(snap)?.guid != guid {
                return Err(missing(&wanted.source));
            }
            if !features::is_enabled(cx.read(), features::REDACTION_BOOKMARKS)? {
                return Err(Error::unsupported("redaction bookmarks feature not enabled"));
            }
            let found = cx.check_bookmarks(vec![wanted])?;
            Ok((found.first().map_or(0, |(head, _)| *head), snap))
        };
        let act = move |cx: &mut TaskCx<'_>, (head, snap): (u64, u64)| {
            cx.settle()?;
            let NewRedaction { bookmark: of, snaps, blocks, .. } = new;
            let (_, short) = cx.bookmark(&of.name)?;
            bookmark::make_redacted(cx.cx, snap, short, &snaps, &blocks)?;
            let text = format!("name={} from={}", of.name, of.source);
            cx.log_internal("bookmark", Some((&of.name, head)), &text)?;
            log(cx, command.as_ref())
        };
        self.sync_task(check, act).map(|(_, txg)| txg)
    }

    /// Destroys bookmarks.
    ///
    /// # Errors
    /// `NotFound`; those of a suspension.
    pub fn destroy_bookmarks(&self, names: &[String], command: Option<Command>) -> Result<Txg> {
        names.iter().try_for_each(|n| check_name(n))?;
        let names = names.to_vec();
        let check = move |cx: &mut TaskCx<'_>| {
            let mut found = BTreeMap::new();
            for name in names {
                let (head, short) = cx.bookmark(&name)?;
                match bookmark::find(cx.read(), head, short) {
                    Err(e) if e.kind() == ErrorKind::NotFound => return Err(missing(&name)),
                    other => other.map(drop)?,
                }
                found.insert(name, head);
            }
            Ok(found)
        };
        let act = move |cx: &mut TaskCx<'_>, found: BTreeMap<String, u64>| {
            cx.settle()?;
            for (name, head) in found {
                let (_, short) = cx.bookmark(&name)?;
                bookmark::destroy(cx.cx, head, short)?;
                cx.log_internal("remove_bookmark", Some((&name, head)), &format!("name={name}"))?;
            }
            log(cx, command.as_ref())
        };
        self.sync_task(check, act).map(|(_, txg)| txg)
    }
}
