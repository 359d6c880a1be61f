//! Extended attributes, written (chapter 06 §10); and changes of a file's attributes that
//! may need another layout.
//!
//! # Theory
//! A name is in one store: it is set in the one that property `xattr` names, as far as it
//! fits there, and removed from the other. The hidden directory of a file and what is in it
//! are under the lock of the file. A value in a file is replaced by a new file, so that
//! readers see the old one or the new one.

use base::{Error, ErrorKind, ObjectId, Result};
use dmu::{Io, ObjectSpec, Tx, Zap};
use nvlist::{NvList, Value};
use ondisk::ObjType;
use ondisk::acl::{Ace, encode_aces};
use ondisk::sa::ZplAttr;
use ondisk::xattr::{SA_PACKED_MAX, SA_VALUE_MAX, StoredNames, stored_names};
use ondisk::znode::{
    FileType, Time, ZFS_APPENDONLY, ZFS_BONUS_SCANSTAMP, ZFS_IMMUTABLE, ZFS_PROJID, ZFS_XATTR,
    ZNODE_PHYS_SIZE,
};

use super::acl;
use super::given::Given;
use super::journal::{Record, SaXattrs, Said, Script};
use super::make::{Birth, DNODE_BLOCK, Seed, entry_cost};
use super::names::Entry;
use super::node::{AttrList, Do, Node, Patch, Plan, words};
use super::types::{Caller, RwProps, SetHow, XattrForm, denied, exists};
use crate::attrs::Attrs;
use crate::dir::found;
use crate::fs::FileSystem;

/// Bytes of a value (Linux's `XATTR_SIZE_MAX`).
const VALUE_MAX: usize = 65_536;
/// Files of one hidden directory that a change of owner reaches.
const FILES_MAX: usize = 65_536;
/// Largest block of a file that has one.
const BLOCK_MAX: u32 = 128 << 10;
const DIR_MODE: u32 = 0o1777;
const FILE_MODE: u32 = 0o644;
const S_ISGID: u32 = 0o2000;
/// Where a structure of before version 5 has its ACL, and room for entries in it (§6).
const LEGACY_ACL: std::ops::Range<usize> = 176..264;
const LEGACY_ACES: usize = 72;
/// An ACL in an object of its own, and the bonus of that (§1).
const ACL: ObjType = ObjType(33);
const SYSACL: ObjType = ObjType(34);
const SYSACL_SIZE: usize = 320;

/// To whom attributes belong.
#[derive(Clone, Copy)]
pub(crate) struct Owner {
    pub(crate) id: ObjectId,
    pub(crate) uid: u64,
    pub(crate) gid: u64,
    pub(crate) project: u64,
}

impl Owner {
    fn of(attrs: &Attrs) -> Owner {
        Owner { id: attrs.id, uid: attrs.owner_fuid, gid: attrs.group_fuid, project: attrs.project }
    }

    fn seed(&self, kind: FileType) -> Seed<'static> {
        Seed {
            kind,
            mode: if kind == FileType::Dir { DIR_MODE } else { FILE_MODE },
            uid: self.uid,
            gid: self.gid,
            flags: ZFS_XATTR,
            project: self.project,
            rdev: 0,
            target: b"",
            xattrs: Vec::new(),
            logged: None,
            given: Given::default(),
        }
    }
}

/// A change in the hidden directory.
enum DirOp {
    Put(Vec<u8>, Vec<u8>),
    Remove(Entry),
    /// The directory itself, as a record of the log tells.
    Make(Box<LoggedDir>),
}

/// A hidden directory that a record tells of.
pub(crate) struct LoggedDir {
    pub(crate) id: ObjectId,
    pub(crate) generation: u64,
    pub(crate) mode: u32,
    pub(crate) uid: u64,
    pub(crate) gid: u64,
    pub(crate) born: (Time, u8),
}

/// A change of one object's attributes, before its transaction begins.
pub(crate) struct Edit {
    pub(crate) node: Node,
    pub(crate) patch: Patch,
    /// All attributes, if they may be laid out anew.
    list: Option<AttrList>,
    /// The ACL and the stamp of an object from before version 5.
    legacy_acl: Option<Vec<Ace>>,
    legacy_stamp: Option<[u8; 32]>,
    hidden: Option<ObjectId>,
    ops: Vec<DirOp>,
    /// What is in the hidden directory, and itself, when it changes with the file.
    followers: Vec<(ObjectId, bool, Patch)>,
    grows: bool,
    /// What the log says of it.
    pub(crate) said: Said,
    /// Extended attributes that change in the list.
    sa_xattrs: SaXattrs,
}

/// An [`Edit`] whose layouts are registered.
pub(crate) struct Ready {
    edit: Edit,
    plan: Option<Plan>,
    props: RwProps,
}

impl Edit {
    pub(crate) fn new(fs: &FileSystem, node: Node) -> Result<Edit> {
        let hidden = fs.hidden_dir(&node)?;
        Ok(Edit {
            node,
            patch: Patch::new(),
            list: None,
            legacy_acl: None,
            legacy_stamp: None,
            hidden,
            ops: Vec::new(),
            followers: Vec::new(),
            grows: false,
            said: Said::Nothing,
            sa_xattrs: Vec::new(),
        })
    }

    fn list(&mut self, fs: &FileSystem) -> Result<&mut AttrList> {
        let list = match self.list.take() {
            Some(list) => list,
            None => fs.attr_list(&self.node.object)?,
        };
        Ok(self.list.insert(list))
    }

    pub(crate) fn set_acl(&mut self, fs: &FileSystem, aces: Vec<Ace>) -> Result<()> {
        if self.node.legacy {
            self.legacy_acl = Some(aces);
            return Ok(());
        }
        let numbers = [fs.ensure_attr(ZplAttr::DaclCount)?, fs.ensure_attr(ZplAttr::DaclAces)?];
        let list = self.list(fs)?;
        list.set(numbers[0], words(&[aces.len() as u64]));
        list.set(numbers[1], encode_aces(&aces));
        Ok(())
    }

    /// The stamp of a virus scanner, on a regular file.
    pub(crate) fn set_scanstamp(&mut self, fs: &FileSystem, stamp: &[u8; 32]) -> Result<()> {
        if self.node.attrs.kind != FileType::Regular {
            return Err(Error::invalid("only regular files have stamps").in_object(self.node.id));
        }
        if self.node.legacy {
            self.patch.push(ZplAttr::Flags, Do::Or(ZFS_BONUS_SCANSTAMP));
            self.legacy_stamp = Some(*stamp);
            return Ok(());
        }
        let number = fs.ensure_attr(ZplAttr::Scanstamp)?;
        self.list(fs)?.set(number, stamp.to_vec());
        Ok(())
    }

    /// Has the POSIX ACL say what the mode says.
    pub(crate) fn chmod_posix(
        &mut self,
        fs: &FileSystem,
        mode: u32,
        props: &RwProps,
    ) -> Result<()> {
        if !self.node.attrs.may_have_xattrs {
            return Ok(());
        }
        // One that cannot be understood is left alone.
        let Ok(Some(mut acl)) = fs.posix_acl(self.node.id, acl::ACCESS) else { return Ok(()) };
        acl::chmod(&mut acl, mode);
        let names = stored_names(acl::ACCESS, false)?;
        self.set_xattr(fs, &names, Some(&acl::encode(&acl)), props)
    }

    pub(crate) fn set_project(&mut self, fs: &FileSystem, project: u64) -> Result<()> {
        let number = fs.ensure_attr(ZplAttr::Projid)?;
        let links = fs.ensure_attr(ZplAttr::Links)?;
        let list = self.list(fs)?;
        match list.get(number) {
            Some(_) => list.set(number, words(&[project])),
            None => list.insert_after(links, number, words(&[project]))?,
        }
        self.follow(fs, |attrs| {
            let has = attrs.pflags & ZFS_PROJID != 0;
            has.then(|| Patch::new().and(ZplAttr::Projid, Do::Set(project)))
        })
    }

    pub(crate) fn own_hidden(
        &mut self,
        fs: &FileSystem,
        uid: Option<u64>,
        gid: Option<u64>,
    ) -> Result<()> {
        let mut patch = Patch::new();
        for (attr, id) in [(ZplAttr::Uid, uid), (ZplAttr::Gid, gid)] {
            if let Some(id) = id {
                patch.push(attr, Do::Set(id));
            }
        }
        self.follow(fs, |_| Some(patch.clone()))
    }

    /// Has the hidden directory and its files change, too.
    fn follow(&mut self, fs: &FileSystem, patch: impl Fn(&Attrs) -> Option<Patch>) -> Result<()> {
        let Some(dir) = self.hidden else { return Ok(()) };
        let mut ids = vec![dir];
        Zap::open(fs.directory(dir, Io::WAIT)?, Io::WAIT)?.for_each(|e| {
            if ids.len() > FILES_MAX {
                return Err(Error::limit("too many extended attributes").in_object(dir));
            }
            ids.push(found(&e)?.id);
            Ok(())
        })?;
        for id in ids {
            let node = fs.node(id)?;
            let own = id == dir || node.attrs.parent == dir;
            if own
                && node.attrs.pflags & ZFS_XATTR != 0
                && let Some(patch) = patch(&node.attrs)
            {
                self.followers.push((id, node.legacy, patch));
            }
        }
        Ok(())
    }

    /// Sets an attribute, or removes it, in both stores.
    fn set_xattr(
        &mut self,
        fs: &FileSystem,
        names: &StoredNames,
        value: Option<&[u8]>,
        props: &RwProps,
    ) -> Result<()> {
        let all: Vec<&[u8]> = [Some(&names.first), names.second.as_ref()]
            .into_iter()
            .flatten()
            .map(|n| &n[..])
            .collect();
        let mut stored = false;
        if !self.node.legacy {
            stored = self.set_in_list(fs, &all, value, props)?;
        }
        let Some(dir) = self.hidden else {
            if let Some(value) = value.filter(|_| !stored) {
                self.ops.push(DirOp::Put(names.first.clone(), value.to_vec()));
                self.grows = true;
            }
            return Ok(());
        };
        for name in all {
            let put = value.filter(|_| !stored && name == names.first);
            if let Some(value) = put {
                self.ops.push(DirOp::Put(name.to_vec(), value.to_vec()));
                self.grows = true;
            } else if let Some(entry) = fs.entry(dir, name)? {
                self.ops.push(DirOp::Remove(entry));
            }
        }
        Ok(())
    }

    /// The same in the list among the system attributes: whether the value is there.
    fn set_in_list(
        &mut self,
        fs: &FileSystem,
        names: &[&[u8]],
        value: Option<&[u8]>,
        props: &RwProps,
    ) -> Result<bool> {
        let number = fs.ensure_attr(ZplAttr::Dxattr)?;
        let packed = self.list(fs)?.get(number).map(<[u8]>::to_vec);
        let old = match packed.as_deref() {
            None | Some([]) => NvList::new(),
            Some(packed) => NvList::unpack(packed)?,
        };
        let mut new = NvList::new();
        let (mut had, mut kept) = (Vec::new(), packed.is_some());
        for (name, pair) in old.iter() {
            if names.contains(&name.as_bytes()) {
                had.push(name.as_bytes().to_vec());
            } else {
                new.try_insert(name.as_bytes(), pair.clone())?;
            }
        }
        let fits = value.filter(|v| props.xattr == XattrForm::Sa && v.len() <= SA_VALUE_MAX);
        let mut stored = false;
        if let (Some(value), Some(name)) = (fits, names.first()) {
            let mut with = new.clone();
            with.try_insert(name, Value::ByteArray(value.to_vec()))?;
            if with.xdr_size() <= SA_PACKED_MAX {
                new = with;
                (stored, kept) = (true, true);
                had.retain(|old| old != name);
                self.sa_xattrs.push((name.to_vec(), Some(value.to_vec())));
            }
        }
        let gone = !had.is_empty();
        self.sa_xattrs.extend(had.into_iter().map(|name| (name, None)));
        if stored || gone && kept {
            self.grows |= stored;
            self.list(fs)?.set(number, new.pack_xdr());
        }
        Ok(stored)
    }

    /// Registers the layouts. No transaction may be open.
    pub(crate) fn prepare(mut self, fs: &FileSystem, props: &RwProps) -> Result<Ready> {
        let puts = self.ops.iter().any(|op| !matches!(op, DirOp::Remove(_)));
        if puts {
            fs.ready_hidden(&Owner::of(&self.node.attrs), props)?;
        }
        if puts && self.hidden.is_none() && !self.node.legacy {
            let number = fs.ensure_attr(ZplAttr::Xattr)?;
            self.list(fs)?.set(number, words(&[0]));
        }
        let slots = self.node.object.dnode().slots;
        let plan = self.list.as_ref().map(|list| fs.plan(list, slots)).transpose()?;
        Ok(Ready { edit: self, plan, props: props.clone() })
    }

    /// Does it, in one transaction.
    pub(crate) fn commit(self, fs: &FileSystem, props: &RwProps) -> Result<()> {
        let frees = !self.grows;
        let ready = self.prepare(fs, props)?;
        let tx = fs.rw_always()?.host.begin(ready.cost(fs)?, frees)?;
        ready.apply(fs, &tx, ready.patch())
    }
}

impl Ready {
    pub(crate) fn node(&self) -> &Node {
        &self.edit.node
    }

    pub(crate) fn patch(&self) -> Patch {
        self.edit.patch.clone()
    }

    /// Bytes that it makes dirty.
    pub(crate) fn cost(&self, fs: &FileSystem) -> Result<u64> {
        let edit = &self.edit;
        let large = edit.list.is_some() || edit.legacy_acl.is_some();
        let spill = if large { 128 << 10 } else { 0 };
        let dir = match edit.hidden {
            Some(dir) if !edit.ops.is_empty() => entry_cost(&fs.object(dir, Io::WAIT)?),
            _ => DNODE_BLOCK,
        };
        let op = |op: &DirOp| match op {
            DirOp::Put(_, value) => value.len() as u64 + 2 * DNODE_BLOCK + dir,
            DirOp::Remove(_) => DNODE_BLOCK + dir,
            DirOp::Make(_) => 2 * DNODE_BLOCK,
        };
        let ops: u64 = edit.ops.iter().map(op).sum();
        Ok(2 * DNODE_BLOCK + spill + ops + edit.followers.len() as u64 * DNODE_BLOCK)
    }

    /// Does it in a transaction, with `patch` on the attributes in place.
    pub(crate) fn apply(&self, fs: &FileSystem, tx: &Tx, mut patch: Patch) -> Result<()> {
        let edit = &self.edit;
        let id = edit.node.id;
        let owner = Owner::of(&edit.node.attrs);
        let mut list = edit.list.clone();
        let mut hidden = edit.hidden;
        let mut script = Script::new(tx);
        for op in &edit.ops {
            match op {
                DirOp::Put(name, value) => {
                    let dir = match hidden {
                        Some(dir) => dir,
                        None => {
                            let props = &self.props;
                            let dir = fs.bear_xattr_dir(tx, &owner, props, &mut script)?;
                            // In a list it has its place already, perhaps in the spill block.
                            patch.push(ZplAttr::Xattr, Do::Set(dir.0));
                            *hidden.insert(dir)
                        }
                    };
                    let props = &self.props;
                    fs.put_xattr_file(tx, &owner, dir, (name, value), props, &mut script)?;
                }
                DirOp::Remove(entry) => {
                    if let Some(dir) = hidden {
                        fs.remove_xattr_file(tx, dir, entry, &mut script)?;
                    }
                }
                DirOp::Make(logged) => {
                    let dir = fs.bear_logged_dir(tx, &owner, logged, &self.props)?;
                    patch.push(ZplAttr::Xattr, Do::Set(dir.0));
                    hidden = Some(dir);
                }
            }
        }
        for (id, legacy, patch) in &edit.followers {
            fs.patch_id(tx, *id, *legacy, patch)?;
        }
        if let Some(stamp) = &edit.legacy_stamp {
            fs.set_legacy_stamp(tx, &edit.node, stamp)?;
        }
        if let Some(aces) = &edit.legacy_acl {
            fs.free_external_acl(tx, &edit.node)?;
            fs.set_legacy_acl(tx, id, aces)?;
        }
        fs.log_changed(&edit.node, &edit.said, &edit.sa_xattrs, script);
        match (&mut list, self.plan) {
            (Some(list), Some(plan)) => {
                if let Some(time) = fs.rw_always()?.times.take(id)
                    && !patch.mentions(ZplAttr::Atime)
                {
                    patch.push(ZplAttr::Atime, Do::Time(time));
                }
                list.apply(&fs.tables(), &patch)?;
                fs.store(tx, id, list, plan)
            }
            _ => fs.patch(tx, &edit.node, &patch),
        }
    }
}

impl FileSystem {
    /// Registers what a hidden directory and its files need.
    pub(crate) fn ready_hidden(&self, owner: &Owner, props: &RwProps) -> Result<()> {
        self.conceive(owner.seed(FileType::Dir), props)?;
        self.conceive(owner.seed(FileType::Regular), props)?;
        Ok(())
    }

    /// Makes the hidden directory of a file; [`FileSystem::ready_hidden`] was called.
    pub(crate) fn bear_xattr_dir(
        &self,
        tx: &Tx,
        owner: &Owner,
        props: &RwProps,
        script: &mut Script,
    ) -> Result<ObjectId> {
        let birth = self.conceive(owner.seed(FileType::Dir), props)?;
        let mut made = birth.record(owner.id);
        made.object = self.bear(tx, birth, owner.id, 2)?;
        script.hidden_dir(tx, &made);
        Ok(made.object)
    }

    fn bear_logged_dir(
        &self,
        tx: &Tx,
        owner: &Owner,
        logged: &LoggedDir,
        props: &RwProps,
    ) -> Result<ObjectId> {
        let (mode, uid, gid) = (logged.mode, logged.uid, logged.gid);
        let seed = owner.seed(FileType::Dir);
        let seed = Seed { mode, uid, gid, logged: Some(logged.born), ..seed };
        let birth = self.conceive(seed, props)?.born_as(logged.id, logged.generation);
        self.bear(tx, birth, owner.id, 2)
    }

    /// The hidden directory of a file, as a record of the log tells.
    ///
    /// # Errors
    /// `Exists` if there is one.
    pub(crate) fn make_logged_dir(&self, owner: ObjectId, logged: LoggedDir) -> Result<()> {
        let (rw, props) = self.rw()?;
        let _lock = rw.locks.exclusive(owner);
        let mut edit = Edit::new(self, self.node(owner)?)?;
        if edit.hidden.is_some() {
            return Err(exists().in_object(owner));
        }
        edit.said = Said::Xattrs;
        edit.grows = true;
        edit.ops.push(DirOp::Make(Box::new(logged)));
        edit.commit(self, &props)
    }

    /// Sets or removes an attribute among the system attributes by its stored name, as a
    /// record of the log tells; nothing else follows from it.
    ///
    /// # Errors
    /// `Invalid` for what has no such attributes, or a value that does not fit.
    pub(crate) fn set_logged_xattr(
        &self,
        id: ObjectId,
        name: &[u8],
        value: Option<&[u8]>,
    ) -> Result<()> {
        let (rw, props) = self.rw()?;
        let _lock = rw.locks.exclusive(id);
        let node = self.node(id)?;
        if node.legacy {
            return Err(Error::invalid("no room for extended attributes").in_object(id));
        }
        let props = RwProps { xattr: XattrForm::Sa, ..(*props).clone() };
        let mut edit = Edit::new(self, node)?;
        edit.patch = Patch::new().changed(rw.host.now());
        edit.said = Said::Xattrs;
        if !edit.set_in_list(self, &[name], value, &props)? && value.is_some() {
            return Err(Error::invalid("the attribute does not fit").in_object(id));
        }
        edit.commit(self, &props)
    }

    /// Puts a value into the hidden directory.
    pub(crate) fn put_xattr_file(
        &self,
        tx: &Tx,
        owner: &Owner,
        dir: ObjectId,
        (name, value): (&[u8], &[u8]),
        props: &RwProps,
        script: &mut Script,
    ) -> Result<()> {
        let birth: Birth = self.conceive(owner.seed(FileType::Regular), props)?;
        let block = (value.len() as u64).next_multiple_of(512).min(u64::from(BLOCK_MAX)) as u32;
        let birth = birth.with_content(block, value.len() as u64, &self.tables())?;
        let old = self.entry(dir, name)?;
        let mut made = birth.record(dir);
        let id = self.bear(tx, birth, dir, 1)?;
        made.object = id;
        if let Some(old) = &old {
            script.removed(dir, &old.name);
        }
        script.file(tx, &made, name, value);
        self.os().write(tx, id, 0, value)?;
        let now = self.rw_always()?.host.now();
        let mut patch = Patch::new().modified(now);
        match old {
            Some(old) => {
                self.set_entry(tx, dir, &old.name, id, FileType::Regular)?;
                self.free_xattr_file(tx, dir, old.id)?;
            }
            None => {
                self.add_entry(tx, dir, name, id, FileType::Regular)?;
                patch.push(ZplAttr::Size, Do::Add(1));
            }
        }
        let legacy = self.node(dir)?.legacy;
        self.patch_id(tx, dir, legacy, &patch)
    }

    fn remove_xattr_file(
        &self,
        tx: &Tx,
        dir: ObjectId,
        entry: &Entry,
        script: &mut Script,
    ) -> Result<()> {
        script.removed(dir, &entry.name);
        self.remove_entry(tx, dir, &entry.name)?;
        self.free_xattr_file(tx, dir, entry.id)?;
        let now = self.rw_always()?.host.now();
        let patch = Patch::new().modified(now).and(ZplAttr::Size, Do::Add(-1));
        let legacy = self.node(dir)?.legacy;
        self.patch_id(tx, dir, legacy, &patch)
    }

    /// Frees a file that lost its entry, if it is one of this directory's.
    fn free_xattr_file(&self, tx: &Tx, dir: ObjectId, id: ObjectId) -> Result<()> {
        match self.node(id) {
            Ok(node)
                if node.attrs.pflags & ZFS_XATTR != 0
                    && node.attrs.parent == dir
                    && node.attrs.kind != FileType::Dir =>
            {
                self.touch(tx, id);
                self.os().free_object(tx, id)
            }
            Ok(_) => Ok(()),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// An ACL in the structure of before version 5, or in an object of its own if it does not
    /// fit there (§6).
    pub(crate) fn set_legacy_acl(&self, tx: &Tx, id: ObjectId, aces: &[Ace]) -> Result<()> {
        let bytes = encode_aces(aces);
        let (len, count) = (bytes.len() as u32, aces.len() as u16);
        let outside = bytes.len() > LEGACY_ACES;
        let object = if outside {
            let spec = ObjectSpec {
                object_type: ACL,
                block_size: len.next_multiple_of(512),
                bonus_type: SYSACL,
                bonus: vec![0; SYSACL_SIZE],
                ..ObjectSpec::default()
            };
            let object = self.os().allocate(tx, &spec)?;
            self.os().write(tx, object, 0, &bytes)?;
            object.0
        } else {
            0
        };
        let mut acl = words(&[object]);
        acl.extend(len.to_le_bytes());
        acl.extend(1u16.to_le_bytes());
        acl.extend(count.to_le_bytes());
        acl.extend_from_slice(if outside { &[] } else { &bytes });
        acl.resize(LEGACY_ACL.len(), 0);
        self.os().edit_bonus(tx, id, &mut |bonus| {
            if let Some(room) = bonus.get_mut(LEGACY_ACL) {
                room.copy_from_slice(&acl);
            }
        })
    }

    /// A stamp behind the structure of before version 5 (§6).
    fn set_legacy_stamp(&self, tx: &Tx, node: &Node, stamp: &[u8; 32]) -> Result<()> {
        let old = node.object.dnode().bonus.get(..ZNODE_PHYS_SIZE).unwrap_or_default();
        let _turn = self.rw_always()?.turns.take(node.id);
        // Its fields are as they are now: the stamp alone is new.
        self.os().set_bonus(tx, node.id, &[old, stamp].concat())
    }

    /// Sets an extended attribute: Linux's name for it, with its namespace. POSIX ACLs
    /// (`system.posix_acl_access`, `system.posix_acl_default`, in Linux's format) change the
    /// mode as well, and are not stored where the mode says all.
    ///
    /// # Errors
    /// `Exists`, `NoAttribute` as `how` says; `Invalid`, `NameTooLong`, `Unsupported` for the
    /// name; `TooLarge` above 64 KiB; `Unsupported` without `xattr` or `acltype=posix`;
    /// `Permission` for a default ACL of what is no directory; `NotPermitted` by flags;
    /// `NoSpace`; `ReadOnly`; those of reading.
    pub fn set_xattr(
        &self,
        by: &Caller,
        id: ObjectId,
        name: &[u8],
        value: &[u8],
        how: SetHow,
    ) -> Result<()> {
        if value.len() > VALUE_MAX {
            let text = "the value is larger than 64 KiB";
            return Err(Error::new(ErrorKind::TooLarge, text).in_object(id));
        }
        self.change_xattr(by, id, name, Some(value), how)?;
        self.promise(id)
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// `NoAttribute`; otherwise as [`FileSystem::set_xattr`].
    pub fn remove_xattr(&self, by: &Caller, id: ObjectId, name: &[u8]) -> Result<()> {
        self.change_xattr(by, id, name, None, SetHow::Replace)?;
        self.promise(id)
    }

    fn change_xattr(
        &self,
        by: &Caller,
        id: ObjectId,
        name: &[u8],
        value: Option<&[u8]>,
        how: SetHow,
    ) -> Result<()> {
        let (rw, props) = self.rw()?;
        if props.xattr == XattrForm::Off {
            return Err(Error::unsupported("the file system has no extended attributes"));
        }
        let names = stored_names(name, false)?;
        let _lock = rw.locks.exclusive(id);
        let node = self.node(id)?;
        if node.attrs.pflags & ZFS_XATTR != 0 {
            return Err(Error::invalid("an extended attribute of its own").in_object(id));
        }
        if node.attrs.pflags & (ZFS_IMMUTABLE | ZFS_APPENDONLY) != 0 {
            return Err(denied("the file's flags forbid it").in_object(id));
        }
        let there = self.get_xattr(id, name, Io::WAIT)?.is_some();
        let is_acl = name == acl::ACCESS || name == acl::DEFAULT;
        match (how, there) {
            (SetHow::Create, true) => {
                let text = "the attribute exists";
                return Err(Error::new(ErrorKind::Exists, text).in_object(id));
            }
            (SetHow::Replace, false) => {
                let text = "there is no such attribute";
                return Err(Error::new(ErrorKind::NoAttribute, text).in_object(id));
            }
            _ => {}
        }
        let now = rw.host.now();
        let mode = node.attrs.mode;
        let gid = node.attrs.gid;
        let mut value = value.map(<[u8]>::to_vec);
        let mut new_mode = None;
        if is_acl && let Some(bytes) = &value {
            let acl = acl::check(&node, name, bytes, &props)?;
            value = acl.as_ref().map(|acl| acl::encode(acl));
            if let Some(acl) = acl.filter(|_| name == acl::ACCESS) {
                let mut wanted = acl::mode_of(&acl, mode);
                if !by.privileged && !by.in_group(gid) {
                    wanted &= !S_ISGID;
                }
                new_mode = Some(wanted & 0o7777);
                value = value.filter(|_| !acl::is_mode(&acl));
            }
        }
        if value.is_none() && !there && new_mode.is_none() {
            return Ok(());
        }
        let mut edit = Edit::new(self, node)?;
        edit.patch = Patch::new().changed(now);
        edit.said = match new_mode.filter(|m| *m != mode & 0o7777) {
            None => Said::Xattrs,
            Some(mode) => Record::of_mode(&edit.node, mode, now).map_or(Said::Nothing, Said::Attrs),
        };
        if let Some(mode) = new_mode.filter(|m| *m != mode & 0o7777) {
            self.change_mode(&mut edit, mode, &props)?;
            // What was just made of the old ACL is not wanted.
            edit.ops.clear();
            edit.sa_xattrs.clear();
        }
        if value.is_some() || there {
            edit.set_xattr(self, &names, value.as_deref(), &props)?;
        }
        edit.commit(self, &props)
    }
}
