//! Moving names.
//!
//! # Theory
//! Both directories, the moved object and the replaced one are locked, in the order of
//! object ids; then the names are looked up again. A directory must not be moved below
//! itself. So the path from its new parent up to the root is walked under the rename lock,
//! so that no other rename changes it meanwhile. Between directories the new entry is added
//! before the old one is removed, so a lookup always finds the name.

use std::collections::HashSet;

use base::{Error, ObjectId, Result};
use dmu::Tx;
use ondisk::sa::ZplAttr;
use ondisk::zil::Whiteout;
use ondisk::znode::{FileType, Time, ZFS_ARCHIVE, ZFS_AV_MODIFIED, ZFS_PROJINHERIT};

use super::make::{DNODE_BLOCK, PreparedFile, entry_cost};
use super::names::NameEntry;
use super::node::{AttrOp, FileNode, Patch};
use super::queue::UnlinkOutcome;
use super::types::{Caller, New, Rename, exists};
use crate::attrs::Device;
use crate::fs::FileSystem;

/// The largest depth of a directory: far more than paths of one-byte names allow.
const DEPTH_MAX: usize = 1 << 20;

/// Directories and entries of a rename; all of them are locked.
struct Move<'a> {
    from: FileNode,
    /// `None`: the same as `from`.
    to: Option<FileNode>,
    source: NameEntry,
    target: Option<NameEntry>,
    moved: FileNode,
    replaced: Option<FileNode>,
    new_name: &'a [u8],
    how: Rename,
    /// The whiteout of a log record.
    white: Option<Whiteout>,
}

impl Move<'_> {
    fn to(&self) -> &FileNode {
        self.to.as_ref().unwrap_or(&self.from)
    }
}

fn is_dir(node: &FileNode) -> bool {
    node.attrs.kind == FileType::Dir
}

impl FileSystem {
    /// Moves a name. An object that it replaces is unlinked in the same txg.
    ///
    /// # Errors
    /// `NotFound`; `Exists` with [`Rename::NoReplace`]; `IsDir`, `NotDir`, `NotEmpty` when
    /// the one cannot replace the other; `Invalid` for a directory that would be moved
    /// below itself; `CrossDevice` into another project; `TooManyLinks`; `NotPermitted` by
    /// flags; those of names, of space and of reading.
    pub fn rename(
        &self,
        by: &Caller,
        from: (ObjectId, &[u8]),
        to: (ObjectId, &[u8]),
        how: Rename,
    ) -> Result<()> {
        self.rename_as(by, from, to, how, None)
    }

    /// The same, with the whiteout `white`.
    pub(crate) fn rename_as(
        &self,
        by: &Caller,
        from: (ObjectId, &[u8]),
        to: (ObjectId, &[u8]),
        how: Rename,
        white: Option<Whiteout>,
    ) -> Result<()> {
        let (rw, _) = self.rw()?;
        self.check_name(from.1)?;
        self.check_name(to.1)?;
        let _renames = (from.0 != to.0).then(|| rw.renames.lock());
        loop {
            let look = || Ok((self.need_entry(from.0, from.1)?, self.entry(to.0, to.1)?));
            let (source, target) = look()?;
            let mut ids = vec![from.0, to.0, source.id];
            ids.extend(target.as_ref().map(|t| t.id));
            let locks = rw.locks.all(&ids);
            if look()? != (source.clone(), target.clone()) {
                continue;
            }
            let replaced =
                self.rename_locked(by, from.0, (to.0, to.1), (source, target), (how, white))?;
            drop(locks);
            drop(_renames);
            replaced.map_or(Ok(()), |id| self.finish_unlink(id, true))?;
            return self.commit_if_sync_always(by, to.0);
        }
    }

    /// Makes the move. Returns the object that was put on the delete queue, if any.
    fn rename_locked(
        &self,
        by: &Caller,
        from: ObjectId,
        (to, new_name): (ObjectId, &[u8]),
        (source, target): (NameEntry, Option<NameEntry>),
        (how, white): (Rename, Option<Whiteout>),
    ) -> Result<Option<ObjectId>> {
        // A rename that only changes the case of a name replaces nothing.
        let same_entry = from == to && target.as_ref().is_some_and(|t| t.name == source.name);
        if same_entry && source.name == new_name {
            return if how == Rename::NoReplace { Err(exists()) } else { Ok(None) };
        }
        let target = target.filter(|_| !same_entry);
        match (how, &target) {
            (Rename::NoReplace, Some(_)) => return Err(exists().in_object(to)),
            (Rename::Exchange, None) => {
                return Err(Error::not_found("no such file").in_object(to));
            }
            // Two names of one file: nothing to do.
            (_, Some(t)) if t.id == source.id => return Ok(None),
            _ => {}
        }
        let mv = Move {
            from: self.parent(from)?,
            to: if from == to { None } else { Some(self.parent(to)?) },
            moved: self.node(source.id)?,
            replaced: target.as_ref().map(|t| self.node(t.id)).transpose()?,
            source,
            target,
            new_name,
            how,
            white,
        };
        self.check_move(&mv)?;
        if how == Rename::Exchange { self.exchange(&mv) } else { self.do_move(by, &mv) }
    }

    fn check_move(&self, mv: &Move<'_>) -> Result<()> {
        self.check_removal(&mv.from, &mv.moved)?;
        let exchange = mv.how == Rename::Exchange;
        if let Some(replaced) = &mv.replaced {
            self.check_removal(mv.to(), replaced)?;
            if !exchange {
                self.check_kind(replaced, is_dir(&mv.moved))?;
            }
        }
        let Some(to) = &mv.to else { return Ok(()) };
        self.check_project(to, &mv.moved)?;
        if is_dir(&mv.moved) {
            self.check_links(to)?;
            self.check_above(mv.moved.id, to)?;
        }
        if exchange && let Some(replaced) = &mv.replaced {
            self.check_project(&mv.from, replaced)?;
            if is_dir(replaced) {
                self.check_links(&mv.from)?;
                self.check_above(replaced.id, &mv.from)?;
            }
        }
        Ok(())
    }

    /// Whether `dir` may be moved into `into`: `dir` is not on the path from there to the
    /// root.
    fn check_above(&self, dir: ObjectId, into: &FileNode) -> Result<()> {
        let mut seen = HashSet::new();
        let (mut at, mut parent) = (into.id, into.attrs.parent);
        while at != dir {
            if at == self.root() {
                return Ok(());
            }
            if !seen.insert(at) || seen.len() > DEPTH_MAX {
                return Err(Error::corrupt("directories in a ring").in_object(at));
            }
            at = parent;
            if at != dir && at != self.root() {
                parent = self.attrs_of(&self.directory(at, self.io())?, self.io())?.parent;
            }
        }
        Err(Error::invalid("a directory cannot be below itself").in_object(dir))
    }

    /// The changes of a moved object's attributes.
    fn moved_patch(to: &FileNode, now: Time, other_dir: bool) -> Patch {
        let inherits = if other_dir { to.attrs.pflags & ZFS_PROJINHERIT } else { 0 };
        Patch::new()
            .and(ZplAttr::Parent, AttrOp::Set(to.id.0))
            .and(ZplAttr::Ctime, AttrOp::Time(now))
            .and(ZplAttr::Flags, AttrOp::Or(ZFS_ARCHIVE | ZFS_AV_MODIFIED | inherits))
    }

    fn exchange(&self, mv: &Move<'_>) -> Result<Option<ObjectId>> {
        let rw = self.rw_always()?;
        let (Some(target), Some(other)) = (&mv.target, &mv.replaced) else {
            return Err(base::bug!("an exchange with nothing"));
        };
        let now = rw.host.now();
        let to = mv.to();
        let cost = entry_cost(&mv.from.object) + entry_cost(&to.object) + 4 * DNODE_BLOCK;
        let tx = self.begin_tx(cost, false)?;
        let (moved, kind) = (&mv.moved, mv.moved.attrs.kind);
        self.set_entry(&tx, to.id, &target.name, moved.id, kind)?;
        self.set_entry(&tx, mv.from.id, &mv.source.name, other.id, other.attrs.kind)?;
        let crossed = mv.to.is_some();
        self.patch(&tx, moved, &Self::moved_patch(to, now, crossed))?;
        self.patch(&tx, other, &Self::moved_patch(&mv.from, now, crossed))?;
        let links = i64::from(is_dir(moved)) - i64::from(is_dir(other));
        let patch = |links: i64| Patch::new().modified(now).and(ZplAttr::Links, AttrOp::Add(links));
        match &mv.to {
            Some(to) => {
                self.patch(&tx, to, &patch(links))?;
                self.patch(&tx, &mv.from, &patch(-links))?;
            }
            None => self.patch(&tx, &mv.from, &patch(0))?,
        }
        let names = (mv.from.id, &mv.source.name[..], to.id, &target.name[..]);
        self.log_renamed(&tx, Rename::Exchange, None, names, &[moved.id, other.id], None);
        Ok(None)
    }

    fn do_move(&self, by: &Caller, mv: &Move<'_>) -> Result<Option<ObjectId>> {
        let (rw, props) = self.rw()?;
        let whiteout = match (mv.how, &mv.white) {
            (Rename::Whiteout, Some(white)) => Some(self.prepare_whiteout(white, &props)?),
            (Rename::Whiteout, None) => {
                let device = Device::default();
                let by = Caller { umask: 0, ..by.clone() };
                let new = New { kind: FileType::Char, mode: 0, device, target: b"" };
                let prepared = self.prepare_new_in(&by, &mv.from, &new, &props)?;
                self.check_new_quota(&prepared.owner())?;
                Some(prepared)
            }
            _ => None,
        };
        let mut white = whiteout.as_ref().map(|prepared| prepared.record(mv.from.id));
        let unlink_outcome =
            mv.replaced.as_ref().map(|node| self.unlink_outcome(node)).transpose()?;
        let mut cost = entry_cost(&mv.from.object) + entry_cost(&mv.to().object);
        cost += 3 * DNODE_BLOCK + whiteout.as_ref().map_or(0, PreparedFile::cost);
        cost += unlink_outcome.as_ref().map_or(Ok(0), |f| self.unlink_cost(f))?;
        let now = rw.host.now();
        let tx = self.begin_tx(cost, false)?;
        let stays = whiteout.is_some();
        let whiteout = whiteout
            .map(|prepared| self.create_object(&tx, prepared, mv.from.id, 1))
            .transpose()?;
        if let (Some(made), Some(id)) = (&mut white, whiteout) {
            made.object = id;
        }
        if let Err(e) = self.move_names(&tx, mv, whiteout) {
            if let Some(id) = whiteout {
                self.os().free_object(&tx, id)?;
            }
            return Err(e);
        }
        self.patch(&tx, &mv.moved, &Self::moved_patch(mv.to(), now, mv.to.is_some()))?;
        self.count(&tx, mv, stays, now)?;
        if let (Some(node), Some(unlink_outcome)) = (&mv.replaced, &unlink_outcome) {
            self.apply_unlink(&tx, node, unlink_outcome, now)?;
        }
        let names = (mv.from.id, &mv.source.name[..], mv.to().id, mv.new_name);
        let replaced = match (&mv.replaced, &unlink_outcome) {
            (Some(node), Some(UnlinkOutcome::Goes(_) | UnlinkOutcome::Queued(_))) => Some(node.id),
            _ => None,
        };
        self.log_renamed(&tx, Rename::Plain, white.as_ref(), names, &[mv.moved.id], replaced);
        let queued = matches!(unlink_outcome, Some(UnlinkOutcome::Queued(_)));
        Ok(mv.replaced.as_ref().map(|n| n.id).filter(|_| queued))
    }

    fn move_names(&self, tx: &Tx, mv: &Move<'_>, whiteout: Option<ObjectId>) -> Result<()> {
        let (from, old, new) = (mv.from.id, &mv.source.name[..], mv.new_name);
        let replaced = mv.target.as_ref().map(|t| &t.name[..]);
        let (id, kind) = (mv.moved.id, mv.moved.attrs.kind);
        if mv.to.is_none() && whiteout.is_none() {
            return self.move_entry(tx, from, old, new, replaced, (id, kind));
        }
        let to = mv.to().id;
        match replaced {
            Some(name) if name == new => self.set_entry(tx, to, new, id, kind)?,
            _ => {
                self.add_entry(tx, to, new, id, kind)?;
                if let Some(name) = replaced {
                    self.remove_entry(tx, to, name)?;
                }
            }
        }
        match whiteout {
            Some(white) => self.set_entry(tx, from, old, white, FileType::Char),
            None => self.remove_entry(tx, from, old),
        }
    }

    /// Counts entries and subdirectories of both directories.
    fn count(&self, tx: &Tx, mv: &Move<'_>, whiteout: bool, now: Time) -> Result<()> {
        let dir = i64::from(is_dir(&mv.moved));
        let replaced = mv.replaced.as_ref();
        let added =
            (1 - i64::from(replaced.is_some()), dir - replaced.map_or(0, |n| i64::from(is_dir(n))));
        let removed = (i64::from(whiteout) - 1, -dir);
        let patch = |(size, links): (i64, i64)| {
            Patch::new()
                .modified(now)
                .and(ZplAttr::Size, AttrOp::Add(size))
                .and(ZplAttr::Links, AttrOp::Add(links))
        };
        match &mv.to {
            Some(to) => {
                self.patch(tx, to, &patch(added))?;
                self.patch(tx, &mv.from, &patch(removed))
            }
            None => self.patch(tx, &mv.from, &patch((added.0 + removed.0, added.1 + removed.1))),
        }
    }
}
