//! Moving names.
//!
//! # Theory
//! Both directories, what is moved and what is replaced are locked, by number; then the
//! names are looked at again. A directory that moves must not come to lie below itself:
//! the way from its new place up to the root is walked under the rename lock, so that no
//! other rename changes it meanwhile. Between directories the new entry is there before the
//! old one goes, so a name is always found.

use std::collections::HashSet;

use base::{Error, ObjectId, Result};
use dmu::{Io, Tx};
use ondisk::sa::ZplAttr;
use ondisk::zil::Whiteout;
use ondisk::znode::{FileType, Time, ZFS_ARCHIVE, ZFS_AV_MODIFIED, ZFS_PROJINHERIT};

use super::make::{Birth, DNODE_BLOCK, entry_cost};
use super::names::Entry;
use super::node::{Do, Node, Patch};
use super::queue::Fate;
use super::types::{Caller, New, Rename, exists};
use crate::attrs::Device;
use crate::fs::FileSystem;

/// Directories between the root and another: far more than names of one byte allow.
const DEPTH_MAX: usize = 1 << 20;

/// Directories and entries of a rename; all of them are locked.
struct Move<'a> {
    from: Node,
    /// `None`: the same as `from`.
    to: Option<Node>,
    source: Entry,
    target: Option<Entry>,
    moved: Node,
    replaced: Option<Node>,
    new_name: &'a [u8],
    how: Rename,
    /// The whiteout that a record of the log tells of.
    white: Option<Whiteout>,
}

impl Move<'_> {
    fn to(&self) -> &Node {
        self.to.as_ref().unwrap_or(&self.from)
    }
}

fn is_dir(node: &Node) -> bool {
    node.attrs.kind == FileType::Dir
}

impl FileSystem {
    /// Moves a name, in the group in which what it replaces goes.
    ///
    /// # Errors
    /// `NotFound`; `Exists` with [`Rename::NoReplace`]; `IsDir`, `NotDir`, `NotEmpty` when
    /// the one cannot replace the other; `Invalid` for a directory that would come to lie
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

    /// The same; `white`: with this whiteout.
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
            let gone =
                self.rename_locked(by, from.0, (to.0, to.1), (source, target), (how, white))?;
            drop(locks);
            drop(_renames);
            gone.map_or(Ok(()), |id| self.after(id, true))?;
            return self.promise(to.0);
        }
    }

    /// Does it: the object that went on the delete queue, if one did.
    fn rename_locked(
        &self,
        by: &Caller,
        from: ObjectId,
        (to, new_name): (ObjectId, &[u8]),
        (source, target): (Entry, Option<Entry>),
        (how, white): (Rename, Option<Whiteout>),
    ) -> Result<Option<ObjectId>> {
        // An entry that only changes its case replaces nothing.
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
        let way = Move {
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
        self.check_move(&way)?;
        if how == Rename::Exchange { self.exchange(&way) } else { self.do_move(by, &way) }
    }

    fn check_move(&self, way: &Move<'_>) -> Result<()> {
        self.check_removal(&way.from, &way.moved)?;
        let exchange = way.how == Rename::Exchange;
        if let Some(replaced) = &way.replaced {
            self.check_removal(way.to(), replaced)?;
            if !exchange {
                self.check_kind(replaced, is_dir(&way.moved))?;
            }
        }
        let Some(to) = &way.to else { return Ok(()) };
        self.check_project(to, &way.moved)?;
        if is_dir(&way.moved) {
            self.check_links(to)?;
            self.check_above(way.moved.id, to)?;
        }
        if exchange && let Some(replaced) = &way.replaced {
            self.check_project(&way.from, replaced)?;
            if is_dir(replaced) {
                self.check_links(&way.from)?;
                self.check_above(replaced.id, &way.from)?;
            }
        }
        Ok(())
    }

    /// Whether `dir` may be moved into `into`: it is not on the way from there to the root.
    fn check_above(&self, dir: ObjectId, into: &Node) -> Result<()> {
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
                parent = self.attrs_of(&self.directory(at, Io::WAIT)?, Io::WAIT)?.parent;
            }
        }
        Err(Error::invalid("a directory cannot be below itself").in_object(dir))
    }

    /// What a moved object's attributes become.
    fn arrived(to: &Node, now: Time, other_dir: bool) -> Patch {
        let inherits = if other_dir { to.attrs.pflags & ZFS_PROJINHERIT } else { 0 };
        Patch::new()
            .and(ZplAttr::Parent, Do::Set(to.id.0))
            .and(ZplAttr::Ctime, Do::Time(now))
            .and(ZplAttr::Flags, Do::Or(ZFS_ARCHIVE | ZFS_AV_MODIFIED | inherits))
    }

    fn exchange(&self, way: &Move<'_>) -> Result<Option<ObjectId>> {
        let rw = self.rw_always()?;
        let (Some(target), Some(other)) = (&way.target, &way.replaced) else {
            return Err(Error::bug("an exchange with nothing"));
        };
        let now = rw.host.now();
        let to = way.to();
        let cost = entry_cost(&way.from.object) + entry_cost(&to.object) + 4 * DNODE_BLOCK;
        let tx = rw.host.begin(cost, false)?;
        let (moved, kind) = (&way.moved, way.moved.attrs.kind);
        self.set_entry(&tx, to.id, &target.name, moved.id, kind)?;
        self.set_entry(&tx, way.from.id, &way.source.name, other.id, other.attrs.kind)?;
        let crossed = way.to.is_some();
        self.patch(&tx, moved, &Self::arrived(to, now, crossed))?;
        self.patch(&tx, other, &Self::arrived(&way.from, now, crossed))?;
        let links = i64::from(is_dir(moved)) - i64::from(is_dir(other));
        let patch = |links: i64| Patch::new().modified(now).and(ZplAttr::Links, Do::Add(links));
        match &way.to {
            Some(to) => {
                self.patch(&tx, to, &patch(links))?;
                self.patch(&tx, &way.from, &patch(-links))?;
            }
            None => self.patch(&tx, &way.from, &patch(0))?,
        }
        let names = (way.from.id, &way.source.name[..], to.id, &target.name[..]);
        self.log_renamed(&tx, Rename::Exchange, None, names, &[moved.id, other.id], None);
        Ok(None)
    }

    fn do_move(&self, by: &Caller, way: &Move<'_>) -> Result<Option<ObjectId>> {
        let (rw, props) = self.rw()?;
        let whiteout = match (way.how, &way.white) {
            (Rename::Whiteout, Some(white)) => Some(self.conceive_logged_white(white, &props)?),
            (Rename::Whiteout, None) => {
                let device = Device::default();
                let by = Caller { umask: 0, ..by.clone() };
                let new = New { kind: FileType::Char, mode: 0, device, target: b"" };
                let birth = self.conceive_in(&by, &way.from, &new, &props)?;
                self.check_new_quota(&birth.owner())?;
                Some(birth)
            }
            _ => None,
        };
        let mut white = whiteout.as_ref().map(|birth| birth.record(way.from.id));
        let fate = way.replaced.as_ref().map(|node| self.fate(node)).transpose()?;
        let mut cost = entry_cost(&way.from.object) + entry_cost(&way.to().object);
        cost += 3 * DNODE_BLOCK + whiteout.as_ref().map_or(0, Birth::cost);
        cost += fate.as_ref().map_or(Ok(0), |f| self.fate_cost(f))?;
        let now = rw.host.now();
        let tx = rw.host.begin(cost, false)?;
        let stays = whiteout.is_some();
        let whiteout = whiteout.map(|birth| self.bear(&tx, birth, way.from.id, 1)).transpose()?;
        if let (Some(made), Some(id)) = (&mut white, whiteout) {
            made.object = id;
        }
        if let Err(e) = self.move_names(&tx, way, whiteout) {
            if let Some(id) = whiteout {
                self.os().free_object(&tx, id)?;
            }
            return Err(e);
        }
        self.patch(&tx, &way.moved, &Self::arrived(way.to(), now, way.to.is_some()))?;
        self.count(&tx, way, stays, now)?;
        if let (Some(node), Some(fate)) = (&way.replaced, &fate) {
            self.meet(&tx, node, fate, now)?;
        }
        let names = (way.from.id, &way.source.name[..], way.to().id, way.new_name);
        let gone = match (&way.replaced, &fate) {
            (Some(node), Some(Fate::Goes(_) | Fate::Queued(_))) => Some(node.id),
            _ => None,
        };
        self.log_renamed(&tx, Rename::Plain, white.as_ref(), names, &[way.moved.id], gone);
        let queued = matches!(fate, Some(Fate::Queued(_)));
        Ok(way.replaced.as_ref().map(|n| n.id).filter(|_| queued))
    }

    fn move_names(&self, tx: &Tx, way: &Move<'_>, whiteout: Option<ObjectId>) -> Result<()> {
        let (from, old, new) = (way.from.id, &way.source.name[..], way.new_name);
        let replaced = way.target.as_ref().map(|t| &t.name[..]);
        let (id, kind) = (way.moved.id, way.moved.attrs.kind);
        if way.to.is_none() && whiteout.is_none() {
            return self.move_entry(tx, from, old, new, replaced, (id, kind));
        }
        let to = way.to().id;
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
    fn count(&self, tx: &Tx, way: &Move<'_>, whiteout: bool, now: Time) -> Result<()> {
        let dir = i64::from(is_dir(&way.moved));
        let gone = way.replaced.as_ref();
        let added = (1 - i64::from(gone.is_some()), dir - gone.map_or(0, |n| i64::from(is_dir(n))));
        let removed = (i64::from(whiteout) - 1, -dir);
        let patch = |(size, links): (i64, i64)| {
            Patch::new()
                .modified(now)
                .and(ZplAttr::Size, Do::Add(size))
                .and(ZplAttr::Links, Do::Add(links))
        };
        match &way.to {
            Some(to) => {
                self.patch(tx, to, &patch(added))?;
                self.patch(tx, &way.from, &patch(removed))
            }
            None => self.patch(tx, &way.from, &patch((added.0 + removed.0, added.1 + removed.1))),
        }
    }
}
