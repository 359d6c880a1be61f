//! Changes of extended attributes (chapter 06 §10); and changes of a file's attributes that
//! may need another layout.
//!
//! # Theory
//! A name is in one store. It is set in the one that property `xattr` selects, as far as it
//! fits there, and removed from the other. The lock of a file covers its hidden directory
//! and the files in it. A value in a file is replaced by a new file, so that readers see
//! the old value or the new one.

use base::{Error, ErrorKind, ObjectId, Result};
use dmu::{ObjectSpec, Tx, Zap};
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
use super::journal::{AttrRecord, Record, SaXattrs, Script};
use super::make::{DNODE_BLOCK, NewFileSpec, PreparedFile, entry_cost};
use super::names::NameEntry;
use super::node::{AttrList, AttrOp, AttrPlan, FileNode, Patch, words};
use super::record_attrs::RecordAttrs;
use super::types::{Caller, RwProps, SetHow, XattrForm, denied, exists};
use crate::attrs::Attrs;
use crate::dir::found;
use crate::fs::FileSystem;

/// Bytes of a value (Linux's `XATTR_SIZE_MAX`).
const VALUE_MAX: usize = 65_536;
/// Files of one hidden directory that a change of owner is applied to.
const FILES_MAX: usize = 65_536;
/// Largest block of a file that has one.
const BLOCK_MAX: u32 = 128 << 10;
const DIR_MODE: u32 = 0o1777;
const FILE_MODE: u32 = 0o644;
const S_ISGID: u32 = 0o2000;
/// Offsets of the ACL in a structure of before version 5, and of its entries (§6).
const LEGACY_ACL: std::ops::Range<usize> = 176..264;
const LEGACY_ACES: usize = 72;
/// An ACL in an object of its own, and the bonus of that (§1).
const ACL: ObjType = ObjType(33);
const SYSACL: ObjType = ObjType(34);
const SYSACL_SIZE: usize = 320;

/// The owner of extended attributes.
#[derive(Clone, Copy)]
pub(crate) struct XattrOwner {
    pub(crate) id: ObjectId,
    pub(crate) uid: u64,
    pub(crate) gid: u64,
    pub(crate) project: u64,
}

impl XattrOwner {
    fn of(attrs: &Attrs) -> XattrOwner {
        XattrOwner {
            id: attrs.id,
            uid: attrs.owner_fuid,
            gid: attrs.group_fuid,
            project: attrs.project,
        }
    }

    fn seed(&self, kind: FileType) -> NewFileSpec<'static> {
        NewFileSpec {
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
            record_attrs: RecordAttrs::default(),
        }
    }
}

/// A change in the hidden directory.
enum DirOp {
    Put(Vec<u8>, Vec<u8>),
    Remove(NameEntry),
    /// Creation of the directory itself, from a log record.
    Make(Box<LoggedDir>),
}

/// A hidden directory from a log record.
pub(crate) struct LoggedDir {
    pub(crate) id: ObjectId,
    pub(crate) generation: u64,
    pub(crate) mode: u32,
    pub(crate) uid: u64,
    pub(crate) gid: u64,
    pub(crate) born: (Time, u8),
}

/// A prepared change of one object's attributes, before its transaction begins.
pub(crate) struct Edit {
    pub(crate) node: FileNode,
    pub(crate) patch: Patch,
    /// All attributes, if their layout may change.
    list: Option<AttrList>,
    /// The ACL and the stamp of an object from before version 5.
    legacy_acl: Option<Vec<Ace>>,
    legacy_stamp: Option<[u8; 32]>,
    hidden: Option<ObjectId>,
    ops: Vec<DirOp>,
    /// The hidden directory and its files, if they change with the file.
    followers: Vec<(ObjectId, bool, Patch)>,
    grows: bool,
    /// The log record of it.
    pub(crate) attr_record: AttrRecord,
    /// Extended attributes that change in the list.
    sa_xattrs: SaXattrs,
}

/// An [`Edit`] whose layouts are registered.
pub(crate) struct ReadyEdit {
    edit: Edit,
    plan: Option<AttrPlan>,
    props: RwProps,
}

impl Edit {
    pub(crate) fn new(fs: &FileSystem, node: FileNode) -> Result<Edit> {
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
            attr_record: AttrRecord::Nothing,
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
            self.patch.push(ZplAttr::Flags, AttrOp::Or(ZFS_BONUS_SCANSTAMP));
            self.legacy_stamp = Some(*stamp);
            return Ok(());
        }
        let number = fs.ensure_attr(ZplAttr::Scanstamp)?;
        self.list(fs)?.set(number, stamp.to_vec());
        Ok(())
    }

    /// Adapts the POSIX ACL to the mode.
    pub(crate) fn chmod_posix(
        &mut self,
        fs: &FileSystem,
        mode: u32,
        props: &RwProps,
    ) -> Result<()> {
        if !self.node.attrs.may_have_xattrs {
            return Ok(());
        }
        // An ACL that cannot be parsed is not changed.
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
            has.then(|| Patch::new().and(ZplAttr::Projid, AttrOp::Set(project)))
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
                patch.push(attr, AttrOp::Set(id));
            }
        }
        self.follow(fs, |_| Some(patch.clone()))
    }

    /// Adds changes of the hidden directory and its files.
    fn follow(&mut self, fs: &FileSystem, patch: impl Fn(&Attrs) -> Option<Patch>) -> Result<()> {
        let Some(dir) = self.hidden else { return Ok(()) };
        let mut ids = vec![dir];
        Zap::open(fs.directory(dir, fs.io())?, fs.io())?.for_each(|e| {
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

    /// The same in the list among the system attributes; returns whether the value is
    /// stored there.
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
        let existed = !had.is_empty();
        self.sa_xattrs.extend(had.into_iter().map(|name| (name, None)));
        if stored || existed && kept {
            self.grows |= stored;
            self.list(fs)?.set(number, new.pack_xdr());
        }
        Ok(stored)
    }

    /// Registers the layouts. The caller must not have a transaction open.
    pub(crate) fn prepare(mut self, fs: &FileSystem, props: &RwProps) -> Result<ReadyEdit> {
        let puts = self.ops.iter().any(|op| !matches!(op, DirOp::Remove(_)));
        if puts {
            fs.ready_hidden(&XattrOwner::of(&self.node.attrs), props)?;
        }
        if puts && self.hidden.is_none() && !self.node.legacy {
            let number = fs.ensure_attr(ZplAttr::Xattr)?;
            self.list(fs)?.set(number, words(&[0]));
        }
        let slots = self.node.object.dnode().slots;
        let plan = self.list.as_ref().map(|list| fs.plan(list, slots)).transpose()?;
        Ok(ReadyEdit { edit: self, plan, props: props.clone() })
    }

    /// Makes the change, in one transaction.
    pub(crate) fn commit(self, fs: &FileSystem, props: &RwProps) -> Result<()> {
        let frees = !self.grows;
        let ready = self.prepare(fs, props)?;
        let tx = fs.begin_tx(ready.cost(fs)?, frees)?;
        ready.apply(fs, &tx, ready.patch())
    }
}

impl ReadyEdit {
    pub(crate) fn node(&self) -> &FileNode {
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
            Some(dir) if !edit.ops.is_empty() => entry_cost(&fs.object(dir, fs.io())?),
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

    /// Makes the change in a transaction, with `patch` on the attributes in place.
    pub(crate) fn apply(&self, fs: &FileSystem, tx: &Tx, mut patch: Patch) -> Result<()> {
        let edit = &self.edit;
        let id = edit.node.id;
        let owner = XattrOwner::of(&edit.node.attrs);
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
                            let dir = fs.create_xattr_dir(tx, &owner, props, &mut script)?;
                            // The list has the attribute already, perhaps in the spill
                            // block.
                            patch.push(ZplAttr::Xattr, AttrOp::Set(dir.0));
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
                    let dir = fs.create_logged_dir(tx, &owner, logged, &self.props)?;
                    patch.push(ZplAttr::Xattr, AttrOp::Set(dir.0));
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
        fs.log_changed(&edit.node, &edit.attr_record, &edit.sa_xattrs, script);
        match (&mut list, self.plan) {
            (Some(list), Some(plan)) => {
                if let Some(time) = fs.rw_always()?.times.take(id)
                    && !patch.mentions(ZplAttr::Atime)
                {
                    patch.push(ZplAttr::Atime, AttrOp::Time(time));
                }
                list.apply(&fs.tables(), &patch)?;
                fs.store(tx, id, list, plan)
            }
            _ => fs.patch(tx, &edit.node, &patch),
        }
    }
}

impl FileSystem {
    /// Registers the layouts of a hidden directory and its files.
    pub(crate) fn ready_hidden(&self, owner: &XattrOwner, props: &RwProps) -> Result<()> {
        self.prepare_new(owner.seed(FileType::Dir), props)?;
        self.prepare_new(owner.seed(FileType::Regular), props)?;
        Ok(())
    }

    /// Creates the hidden directory of a file; [`FileSystem::ready_hidden`] was called
    /// before.
    pub(crate) fn create_xattr_dir(
        &self,
        tx: &Tx,
        owner: &XattrOwner,
        props: &RwProps,
        script: &mut Script,
    ) -> Result<ObjectId> {
        let prepared = self.prepare_new(owner.seed(FileType::Dir), props)?;
        let mut made = prepared.record(owner.id);
        made.object = self.create_object(tx, prepared, owner.id, 2)?;
        script.hidden_dir(tx, &made);
        Ok(made.object)
    }

    fn create_logged_dir(
        &self,
        tx: &Tx,
        owner: &XattrOwner,
        logged: &LoggedDir,
        props: &RwProps,
    ) -> Result<ObjectId> {
        let (mode, uid, gid) = (logged.mode, logged.uid, logged.gid);
        let seed = owner.seed(FileType::Dir);
        let seed = NewFileSpec { mode, uid, gid, logged: Some(logged.born), ..seed };
        let prepared = self.prepare_new(seed, props)?.with_identity(logged.id, logged.generation);
        self.create_object(tx, prepared, owner.id, 2)
    }

    /// Creates the hidden directory of a file, from a log record.
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
        edit.attr_record = AttrRecord::Xattrs;
        edit.grows = true;
        edit.ops.push(DirOp::Make(Box::new(logged)));
        edit.commit(self, &props)
    }

    /// Sets or removes an attribute among the system attributes by its stored name, from a
    /// log record; without further effects.
    ///
    /// # Errors
    /// `Invalid` for an object without such attributes, or a value that does not fit.
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
        edit.attr_record = AttrRecord::Xattrs;
        if !edit.set_in_list(self, &[name], value, &props)? && value.is_some() {
            return Err(Error::invalid("the attribute does not fit").in_object(id));
        }
        edit.commit(self, &props)
    }

    /// Puts a value into the hidden directory.
    pub(crate) fn put_xattr_file(
        &self,
        tx: &Tx,
        owner: &XattrOwner,
        dir: ObjectId,
        (name, value): (&[u8], &[u8]),
        props: &RwProps,
        script: &mut Script,
    ) -> Result<()> {
        let prepared: PreparedFile = self.prepare_new(owner.seed(FileType::Regular), props)?;
        let block = (value.len() as u64).next_multiple_of(512).min(u64::from(BLOCK_MAX)) as u32;
        let prepared = prepared.with_content(block, value.len() as u64, &self.tables())?;
        let old = self.entry(dir, name)?;
        let mut made = prepared.record(dir);
        let id = self.create_object(tx, prepared, dir, 1)?;
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
                patch.push(ZplAttr::Size, AttrOp::Add(1));
            }
        }
        let legacy = self.node(dir)?.legacy;
        self.patch_id(tx, dir, legacy, &patch)
    }

    fn remove_xattr_file(
        &self,
        tx: &Tx,
        dir: ObjectId,
        entry: &NameEntry,
        script: &mut Script,
    ) -> Result<()> {
        script.removed(dir, &entry.name);
        self.remove_entry(tx, dir, &entry.name)?;
        self.free_xattr_file(tx, dir, entry.id)?;
        let now = self.rw_always()?.host.now();
        let patch = Patch::new().modified(now).and(ZplAttr::Size, AttrOp::Add(-1));
        let legacy = self.node(dir)?.legacy;
        self.patch_id(tx, dir, legacy, &patch)
    }

    /// Frees a file that lost its entry, if it belongs to this directory.
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

    /// Stores an ACL in the structure of before version 5, or in an object of its own if it
    /// does not fit there (§6).
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

    /// Stores a stamp behind the structure of before version 5 (§6).
    fn set_legacy_stamp(&self, tx: &Tx, node: &FileNode, stamp: &[u8; 32]) -> Result<()> {
        let old = node.object.dnode().bonus.get(..ZNODE_PHYS_SIZE).unwrap_or_default();
        let _turn = self.rw_always()?.seqlock.write(node.id);
        // The structure's fields keep their present values; only the stamp is new.
        self.os().set_bonus(tx, node.id, &[old, stamp].concat())
    }

    /// Sets an extended attribute by its name under Linux, with its namespace. POSIX ACLs
    /// (`system.posix_acl_access`, `system.posix_acl_default`, in Linux's format) change
    /// the mode as well, and are not stored if the mode is equivalent.
    ///
    /// # Errors
    /// `Exists`, `NoAttribute` as `how` says; `Invalid`, `NameTooLong`, `Unsupported` for
    /// the name; `TooLarge` above 64 KiB; `Unsupported` without `xattr` or `acltype=posix`;
    /// `Permission` for a default ACL of anything but a directory; `NotPermitted` by flags;
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
        self.commit_if_sync_always(by, id)
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// `NoAttribute`; otherwise as [`FileSystem::set_xattr`].
    pub fn remove_xattr(&self, by: &Caller, id: ObjectId, name: &[u8]) -> Result<()> {
        self.change_xattr(by, id, name, None, SetHow::Replace)?;
        self.commit_if_sync_always(by, id)
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
        let there = self.get_xattr(id, name, self.io())?.is_some();
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
        edit.attr_record = match new_mode.filter(|m| *m != mode & 0o7777) {
            None => AttrRecord::Xattrs,
            Some(mode) => Record::of_mode(&edit.node, mode, now)
                .map_or(AttrRecord::Nothing, AttrRecord::Attrs),
        };
        if let Some(mode) = new_mode.filter(|m| *m != mode & 0o7777) {
            self.change_mode(&mut edit, mode, &props)?;
            // Changes prepared for the old ACL are dropped.
            edit.ops.clear();
            edit.sa_xattrs.clear();
        }
        if value.is_some() || there {
            edit.set_xattr(self, &names, value.as_deref(), &props)?;
        }
        edit.commit(self, &props)
    }
}
