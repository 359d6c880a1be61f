//! New files: their attributes, their objects, their first name.

use base::{Error, ErrorKind, ObjectId, Result, Txg};
use dmu::{Object, ObjectSpec, Tx, zaps};
use ondisk::ObjType;
use ondisk::acl::{encode_aces, trivial_acl};
use ondisk::normalize::TOUPPER;
use ondisk::sa::{SaTables, ZplAttr};
use ondisk::znode::{
    self, FileType, SYMLINK_MAX, Time, ZFS_ARCHIVE, ZFS_AV_MODIFIED, ZFS_BONUS_SCANSTAMP,
    ZFS_PROJID, ZFS_PROJINHERIT, ZFS_XATTR, ZNODE_PHYS_SIZE,
};

use super::acl;
use super::journal::{Made, Script};
use super::node::{AttrList, AttrOp, AttrPlan, AttrValue, FileNode, Patch};
use super::record_attrs::{Dacl, RecordAttrs};
use super::types::{Caller, New, denied, exists};
use super::types::{RwProps, XattrForm};
use crate::attrs::Attrs;
use crate::create::legacy_znode;
use crate::fs::FileSystem;
use crate::master::CaseSensitivity;

/// A block takes at least one sector, which is 4 KiB on most pools.
const SECTOR: u64 = 4 << 10;

/// Bytes to reserve for `count` blocks of `block` bytes.
pub(crate) fn blocks_cost(count: u64, block: u64) -> u64 {
    count.saturating_mul(block.max(SECTOR))
}

/// Bytes that a call makes dirty besides data: blocks of the dnodes it changes.
pub(crate) const DNODE_BLOCK: u64 = 16 << 10;
/// A microzap that turns fat.
const CONVERSION: u64 = 1 << 20;
/// Largest microzap.
const MICRO_MAX: u64 = 128 << 10;
const S_ISGID: u32 = 0o2000;
const S_IXGRP: u32 = 0o010;
/// Bytes of the block of a file without content.
const BLOCK_LEAST: u32 = 512;
/// Bytes of a symbolic link's target behind a znode of before version 5.
const LEGACY_TAIL: usize = 320 - ZNODE_PHYS_SIZE;
/// Offset of the creation time in a structure of before version 5.
const LEGACY_CRTIME: std::ops::Range<usize> = 48..64;
/// First version whose directory entries have the type.
const VERSION_TYPES: u64 = 2;
/// First version with flags of files.
const VERSION_FLAGS: u64 = 3;

/// A prepared new object: everything but its object id and txg.
pub(crate) struct PreparedFile {
    pub(crate) kind: FileType,
    mode: u64,
    uid: u64,
    gid: u64,
    flags: u64,
    now: Time,
    crtime: Time,
    dacl: Dacl,
    scanstamp: Option<[u8; 32]>,
    rdev: u64,
    project: u64,
    target: Vec<u8>,
    size: u64,
    /// `None` before version 5, which has no system attributes.
    sa: Option<(AttrList, AttrPlan)>,
    slots: u8,
    /// Bytes of a data block; 0 is 512.
    block_size: u32,
    /// Extended attributes that go into a hidden directory.
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Extended attributes among the system attributes.
    sa_xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Object id and generation from a log record.
    fixed: Option<(ObjectId, u64)>,
}

/// Parameters of [`FileSystem::prepare_new`].
pub(crate) struct NewFileSpec<'a> {
    pub(crate) kind: FileType,
    pub(crate) mode: u32,
    pub(crate) uid: u64,
    pub(crate) gid: u64,
    pub(crate) flags: u64,
    pub(crate) project: u64,
    pub(crate) rdev: u64,
    pub(crate) target: &'a [u8],
    pub(crate) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Creation time, if not now; and slots of the dnode, if not according to the
    /// properties.
    pub(crate) logged: Option<(Time, u8)>,
    /// Data that only a log record has.
    pub(crate) record_attrs: RecordAttrs,
}

impl PreparedFile {
    /// Bytes that the creation makes dirty.
    pub(crate) fn cost(&self) -> u64 {
        let xattrs: u64 = self.xattrs.iter().map(|x| x.1.len() as u64 + 3 * DNODE_BLOCK).sum();
        DNODE_BLOCK
            + xattrs
            + self.target.len() as u64
            + if self.sa.is_some() || !self.is_plain() { 128 << 10 } else { 0 }
    }
}

/// Bytes that a change of one entry makes dirty in a directory, at most.
pub(crate) fn entry_cost(dir: &Object) -> u64 {
    let dnode = dir.dnode();
    let block = u64::from(dnode.data_block_size);
    if dnode.max_blkid > 0 {
        // Header, pointers (two blocks while the table grows), a leaf and its other half.
        6 * block
    } else if block >= MICRO_MAX {
        CONVERSION
    } else {
        2 * block.next_power_of_two()
    }
}

impl FileSystem {
    /// Flags of the ZAPs of new directories.
    fn normflags(&self) -> u64 {
        let fold = if self.props().case == CaseSensitivity::Sensitive { 0 } else { TOUPPER };
        self.props().normalization | fold
    }

    /// The value of a directory entry.
    pub(crate) fn entry_value(&self, id: ObjectId, kind: FileType) -> ondisk::zap::ZapValue {
        let file_type = if self.props().version < VERSION_TYPES { FileType::Unknown } else { kind };
        ondisk::zap::ZapValue::from_u64(znode::DirEntry { object: id.0, file_type }.encode())
    }

    /// The owners of a new file. Its group and set-id bits depend on the directory's
    /// set-group-id bit.
    fn ownership(by: &Caller, parent: &Attrs, kind: FileType, mode: u32) -> (u64, u64, u32) {
        let mode = mode & 0o7777;
        let inherits = parent.mode & S_ISGID != 0;
        let (gid, mode) = match (inherits, kind) {
            (true, FileType::Dir) => (parent.group_fuid, mode | S_ISGID),
            (true, _) => (parent.group_fuid, mode),
            (false, _) => (u64::from(by.gid), mode),
        };
        // A set-group-id program of a group to which the caller does not belong.
        let strange = kind != FileType::Dir
            && mode & (S_ISGID | S_IXGRP) == S_ISGID | S_IXGRP
            && !by.privileged
            && !by.in_group(gid as u32);
        (u64::from(by.uid), gid, if strange { mode & !S_ISGID } else { mode })
    }

    /// Prepares a new file below `parent`, with the owners, mode and ACLs that it inherits.
    ///
    /// # Errors
    /// `Invalid` for an impossible kind or target, `NameTooLong` for a long target, those
    /// of the tables of attributes.
    pub(crate) fn prepare_new_in(
        &self,
        by: &Caller,
        parent: &FileNode,
        new: &New<'_>,
        props: &RwProps,
    ) -> Result<PreparedFile> {
        match new.kind {
            FileType::Unknown => return Err(Error::invalid("no such kind of file")),
            FileType::Symlink if new.target.is_empty() => {
                return Err(Error::not_found("a symbolic link to nothing"));
            }
            FileType::Symlink if new.target.len() >= SYMLINK_MAX => {
                return Err(Error::new(ErrorKind::NameTooLong, "the target is too long"));
            }
            _ => {}
        }
        let (uid, gid, mode) = Self::ownership(by, &parent.attrs, new.kind, new.mode);
        let mut xattrs = Vec::new();
        let mode = if new.kind == FileType::Symlink {
            0o777
        } else {
            let inherited = self.default_acl(parent, props)?;
            match inherited {
                Some(default) => acl::inherit(&default, mode, new.kind, &mut xattrs),
                None => mode & !(by.umask & 0o777),
            }
        };
        let inherits = parent.attrs.pflags & ZFS_PROJINHERIT != 0;
        let heir = matches!(new.kind, FileType::Dir | FileType::Regular);
        let rdev = u64::from(new.device.major) << 20 | u64::from(new.device.minor & 0xf_ffff);
        let device = matches!(new.kind, FileType::Char | FileType::Block);
        self.prepare_new(
            NewFileSpec {
                kind: new.kind,
                mode,
                uid,
                gid,
                flags: if inherits && heir { ZFS_PROJINHERIT } else { 0 },
                project: if inherits { parent.attrs.project } else { 0 },
                rdev: if device { rdev } else { 0 },
                target: if new.kind == FileType::Symlink { new.target } else { b"" },
                xattrs,
                logged: None,
                record_attrs: RecordAttrs::default(),
            },
            props,
        )
    }

    /// Prepares an object. The caller must not have a transaction open.
    pub(crate) fn prepare_new(
        &self,
        seed: NewFileSpec<'_>,
        props: &RwProps,
    ) -> Result<PreparedFile> {
        let (now, slots) = match seed.logged {
            Some(logged) => logged,
            None => (self.rw_always()?.host.now(), props.dnode_slots),
        };
        let is_dir = seed.kind == FileType::Dir;
        let mode = seed.kind.nibble() << 12 | u64::from(seed.mode & 0o7777);
        let record_attrs = seed.record_attrs;
        let dacl = match &record_attrs.acl {
            Some((aces, flags)) => Dacl::explicit(aces, *flags, mode, (seed.uid, seed.gid), is_dir),
            None => Dacl::of_mode(mode, is_dir),
        };
        let mut flags = seed.flags | dacl.flags;
        if self.props().version >= VERSION_FLAGS {
            flags |= ZFS_ARCHIVE | ZFS_AV_MODIFIED;
            flags = flags & !record_attrs.flags.0 | record_attrs.flags.1;
        }
        let scanstamp = record_attrs.scanstamp.filter(|_| seed.kind == FileType::Regular);
        let mut prepared = PreparedFile {
            kind: seed.kind,
            mode: dacl.mode,
            crtime: record_attrs.crtime.unwrap_or(now),
            dacl,
            scanstamp,
            uid: seed.uid,
            gid: seed.gid,
            flags,
            now,
            rdev: seed.rdev,
            project: record_attrs.project.unwrap_or(seed.project),
            target: seed.target.to_vec(),
            size: if is_dir { 2 } else { seed.target.len() as u64 },
            sa: None,
            slots: slots.clamp(1, 32),
            block_size: 0,
            sa_xattrs: Vec::new(),
            xattrs: seed.xattrs,
            fixed: None,
        };
        let projects = self.os().props()?.count_projects;
        if record_attrs.project.is_some_and(|p| p != 0) && !projects {
            return Err(Error::unsupported("there are no projects here"));
        }
        if self.props().version < crate::master::ZPL_VERSION {
            prepared.slots = 1;
            if prepared.scanstamp.is_some() {
                prepared.flags |= ZFS_BONUS_SCANSTAMP;
            }
            if prepared.target.len() > LEGACY_TAIL {
                prepared.block_size = (prepared.target.len() as u32).next_multiple_of(512);
            }
            if !prepared.xattrs.is_empty() {
                self.ready_hidden(&prepared.hidden_owner(ObjectId(0)), props)?;
            }
            return Ok(prepared);
        }
        if projects {
            prepared.flags |= ZFS_PROJID;
        }
        let (tables, template) = (self.tables(), template(&prepared, projects));
        let mut list = AttrList::with_capacity(template.len() + 1);
        for attr in template {
            let number = tables.number(attr).map_or_else(|| self.ensure_attr(attr), Ok)?;
            list.set(number, prepared.value(attr));
        }
        if let Some(stamp) = &prepared.scanstamp {
            list.set(self.ensure_attr(ZplAttr::Scanstamp)?, stamp.to_vec());
        }
        if !prepared.xattrs.is_empty() && props.xattr != XattrForm::Dir {
            let packed = ondisk::xattr::pack_sa(&prepared.xattrs);
            if let Ok(packed) = packed {
                list.set(self.ensure_attr(ZplAttr::Dxattr)?, packed);
                prepared.sa_xattrs = std::mem::take(&mut prepared.xattrs);
            }
        }
        if !prepared.xattrs.is_empty() {
            self.ready_hidden(&prepared.hidden_owner(ObjectId(0)), props)?;
            // The object id is filled in when the directory exists.
            list.set(self.ensure_attr(ZplAttr::Xattr)?, AttrValue::word(0));
        }
        let plan = self.plan(&list, prepared.slots)?;
        prepared.sa = Some((list, plan));
        Ok(prepared)
    }

    /// Creates the object, without a name.
    ///
    /// # Errors
    /// `NoSpace` without a free object id, those of the object set.
    pub(crate) fn create_object(
        &self,
        tx: &Tx,
        mut prepared: PreparedFile,
        parent: ObjectId,
        links: u64,
    ) -> Result<ObjectId> {
        let os = self.os();
        let object_type = match prepared.kind {
            FileType::Dir => ObjType::DIRECTORY_CONTENTS,
            _ => ObjType::PLAIN_FILE_CONTENTS,
        };
        let generation = prepared.generation(tx.txg());
        let patch = Patch::new()
            .and(ZplAttr::Gen, AttrOp::Set(generation))
            .and(ZplAttr::Parent, AttrOp::Set(parent.0))
            .and(ZplAttr::Links, AttrOp::Set(links));
        let (bonus_type, bonus, spill) = match &mut prepared.sa {
            Some((list, plan)) => {
                list.apply(&self.tables(), &patch)?;
                let (bonus, spill) = self.encode(list, *plan)?;
                (ObjType::SA, bonus, spill)
            }
            None => (ObjType::ZNODE, prepared.znode(generation, parent, links)?, None),
        };
        let spec = ObjectSpec {
            object_type,
            bonus_type,
            bonus,
            slots: prepared.slots,
            block_size: prepared.block_size,
            ..ObjectSpec::default()
        };
        let id = match prepared.fixed {
            Some((id, _)) => os.claim(tx, id, &spec).map(|()| id)?,
            None => os.allocate(tx, &spec)?,
        };
        let rest = self.finish(tx, id, &prepared, spill.as_deref());
        if rest.is_err() {
            os.free_object(tx, id)?;
        }
        self.touch(tx, id);
        rest.map(|()| id)
    }

    fn finish(
        &self,
        tx: &Tx,
        id: ObjectId,
        prepared: &PreparedFile,
        spill: Option<&[u8]>,
    ) -> Result<()> {
        let os = self.os();
        if prepared.kind == FileType::Dir {
            zaps::init(os, tx, id, self.normflags())?;
        }
        if let Some(spill) = spill {
            os.set_spill(tx, id, Some(spill))?;
        }
        if prepared.block_size != 0 && prepared.sa.is_none() {
            os.write(tx, id, 0, &prepared.target)?;
        }
        if prepared.sa.is_none() && !prepared.is_plain() {
            self.set_legacy_acl(tx, id, &prepared.dacl.aces)?;
        }
        if prepared.xattrs.is_empty() {
            return Ok(());
        }
        let owner = prepared.hidden_owner(id);
        let props = self.rw_always()?.host.props();
        // These changes are not logged.
        let mut script = Script::new(tx);
        let dir = self.create_xattr_dir(tx, &owner, &props, &mut script)?;
        for (name, value) in &prepared.xattrs {
            self.put_xattr_file(tx, &owner, dir, (name, value), &props, &mut script)?;
        }
        let patch = Patch::new().and(ZplAttr::Xattr, AttrOp::Set(dir.0));
        let legacy = prepared.sa.is_none();
        if let Some((mut list, plan)) = prepared.sa.clone() {
            // The attribute may be in the spill block.
            list.apply(&self.tables(), &patch)?;
            return self.store(tx, id, &list, plan);
        }
        self.patch_id(tx, id, legacy, &patch)
    }

    /// Creates a file of any kind. Owner and group are the caller's; below a directory with
    /// the set-group-id bit the group is the directory's. The umask, or the directory's
    /// default ACL, restricts the permissions.
    ///
    /// # Errors
    /// `Exists`; `NotFound` for a directory that was removed; `NotDir`; `NameTooLong`,
    /// `Invalid`, `NotUnicode` for the name; `NotPermitted` below an immutable directory;
    /// `TooManyLinks`; `NoSpace`; `Quota`; `ReadOnly`; those of reading.
    pub fn make(&self, by: &Caller, dir: ObjectId, name: &[u8], new: &New<'_>) -> Result<Attrs> {
        let (id, attrs) = self.make_in(dir, name, |parent, props| {
            let prepared = self.prepare_new_in(by, parent, new, props)?;
            self.check_new_quota(&prepared.owner())?;
            Ok(prepared)
        })?;
        self.commit_if_sync_always(by, id)?;
        attrs.map_or_else(|| self.attrs(id, self.io()), Ok)
    }

    /// Creates the object that `prepare_new` prepares, and gives it a name. Also returns its
    /// attributes if they are known without reading.
    pub(crate) fn make_in(
        &self,
        dir: ObjectId,
        name: &[u8],
        prepare_new: impl FnOnce(&FileNode, &RwProps) -> Result<PreparedFile>,
    ) -> Result<(ObjectId, Option<Attrs>)> {
        let (rw, props) = self.rw()?;
        self.check_name(name)?;
        let _dir = rw.locks.exclusive(dir);
        let parent = self.parent(dir)?;
        if self.entry(dir, name)?.is_some() {
            return Err(exists().in_object(dir));
        }
        let prepared = prepare_new(&parent, &props)?;
        let kind = prepared.kind;
        let is_dir = kind == FileType::Dir;
        if is_dir {
            self.check_links(&parent)?;
        }
        let now = prepared.now;
        let cost = prepared.cost() + entry_cost(&parent.object) + DNODE_BLOCK;
        let mut record = prepared.record(dir);
        let tx = self.begin_tx(cost, false)?;
        let attrs = prepared.attrs(tx.txg(), dir);
        let id = self.create_object(&tx, prepared, dir, if is_dir { 2 } else { 1 })?;
        if let Err(e) = self.add_entry(&tx, dir, name, id, kind) {
            self.os().free_object(&tx, id)?;
            return Err(e);
        }
        let mut patch = Patch::new().modified(now).and(ZplAttr::Size, AttrOp::Add(1));
        if is_dir {
            patch.push(ZplAttr::Links, AttrOp::Add(1));
        }
        self.patch(&tx, &parent, &patch)?;
        record.object = id;
        self.log_made(&tx, name, kind, &record);
        Ok((id, attrs.map(|attrs| Attrs { id, ..attrs })))
    }

    /// Creates a regular file without a name (`O_TMPFILE`). It exists as long as it is
    /// held, unless [`FileSystem::link`] gives it a name.
    ///
    /// # Errors
    /// As [`FileSystem::make`].
    pub fn make_unlinked(&self, by: &Caller, dir: ObjectId, mode: u32) -> Result<Attrs> {
        let (rw, props) = self.rw()?;
        let _dir = rw.locks.exclusive(dir);
        let parent = self.parent(dir)?;
        let prepared = self.prepare_new_in(by, &parent, &New::file(mode), &props)?;
        self.check_new_quota(&prepared.owner())?;
        let _queue = rw.queue.lock();
        let cost = prepared.cost() + self.queue_cost()?;
        let tx = self.begin_tx(cost, false)?;
        let id = self.create_object(&tx, prepared, dir, 0)?;
        if let Err(e) = self.enqueue(&tx, id) {
            self.os().free_object(&tx, id)?;
            return Err(e);
        }
        rw.holds.lock().orphans.insert(id.0, true);
        drop(tx);
        self.attrs(id, self.io())
    }

    /// A directory in which entries may be added and removed.
    ///
    /// # Errors
    /// `NotDir`; `NotFound` when it was removed; `NotPermitted` by its flags; `Invalid` for
    /// one with extended attributes.
    pub(crate) fn parent(&self, dir: ObjectId) -> Result<FileNode> {
        self.directory(dir, self.io())?;
        let node = self.node(dir)?;
        if node.attrs.kind != FileType::Dir {
            return Err(Error::new(ErrorKind::NotDir, "not a directory").in_object(dir));
        }
        if node.attrs.nlink == 0 {
            return Err(Error::not_found("the directory was removed").in_object(dir));
        }
        if node.attrs.pflags & ZFS_XATTR != 0 && !self.is_replaying() {
            return Err(Error::invalid("a directory of extended attributes").in_object(dir));
        }
        if self.enforced_flags(&node) & znode::ZFS_IMMUTABLE != 0 {
            return Err(denied("the directory is immutable").in_object(dir));
        }
        Ok(node)
    }
}

/// Attributes of a new object in their order (chapter 06 §4.5).
fn template(prepared: &PreparedFile, projects: bool) -> Vec<ZplAttr> {
    use ZplAttr::{
        Atime, Crtime, Ctime, DaclAces, DaclCount, Flags, Gen, Gid, Links, Mode, Mtime, Parent,
        Projid, Rdev, Size, Symlink, Uid,
    };
    let always = [Mode, Size, Gen, Uid, Gid, Parent, Flags, Atime, Mtime, Ctime, Crtime, Links];
    let mut attrs = Vec::with_capacity(ZplAttr::ALL.len());
    attrs.extend(always);
    attrs.extend(projects.then_some(Projid));
    attrs.extend(matches!(prepared.kind, FileType::Char | FileType::Block).then_some(Rdev));
    attrs.extend([DaclCount, DaclAces]);
    attrs.extend((prepared.kind == FileType::Symlink).then_some(Symlink));
    attrs
}

impl PreparedFile {
    /// A file with content: its block and its size.
    pub(crate) fn with_content(
        mut self,
        block_size: u32,
        size: u64,
        tables: &SaTables,
    ) -> Result<PreparedFile> {
        (self.block_size, self.size) = (block_size, size);
        if let Some((list, _)) = &mut self.sa {
            list.apply(tables, &Patch::new().and(ZplAttr::Size, AttrOp::Set(size)))?;
        }
        Ok(self)
    }

    /// With the object id and generation from a log record.
    pub(crate) fn with_identity(mut self, id: ObjectId, generation: u64) -> PreparedFile {
        self.fixed = Some((id, generation));
        self
    }

    /// The log record of it, still without the object id.
    pub(crate) fn record(&self, dir: ObjectId) -> Made {
        Made {
            dir,
            object: ObjectId(0),
            slots: self.slots,
            mode: self.mode,
            uid: self.uid,
            gid: self.gid,
            time: self.now,
            rdev: self.rdev,
            target: self.target.clone(),
            xattrs: self.sa_xattrs.clone(),
            has_other_xattrs: !self.xattrs.is_empty(),
        }
    }

    fn generation(&self, txg: Txg) -> u64 {
        self.fixed.map_or(txg.0, |(_, generation)| generation)
    }

    /// The attributes after creation, without the object id, of a regular file with one
    /// name and only content. Those of other files must be read.
    fn attrs(&self, txg: Txg, parent: ObjectId) -> Option<Attrs> {
        let (list, plan) = self.sa.as_ref()?;
        let bare = self.xattrs.is_empty() && self.sa_xattrs.is_empty() && plan.is_whole(list);
        (bare && self.kind == FileType::Regular).then(|| Attrs {
            mode: (self.mode & 0xffff) as u32,
            uid: self.uid as u32,
            gid: self.gid as u32,
            owner_fuid: self.uid,
            group_fuid: self.gid,
            size: self.size,
            nlink: 1,
            atime: self.now,
            mtime: self.now,
            ctime: self.now,
            crtime: self.crtime,
            generation: self.generation(txg),
            parent,
            blocks: u64::from(self.slots),
            block_size: self.block_size.max(BLOCK_LEAST),
            pflags: self.flags,
            project: self.project,
            ..Attrs::empty(ObjectId(0), self.kind)
        })
    }

    /// Whether its ACL is that of its mode.
    fn is_plain(&self) -> bool {
        self.dacl.aces == trivial_acl(self.mode, self.kind == FileType::Dir)
    }

    fn hidden_owner(&self, id: ObjectId) -> super::xattr::XattrOwner {
        super::xattr::XattrOwner { id, uid: self.uid, gid: self.gid, project: self.project }
    }

    /// The ids whose quotas are checked.
    pub(crate) fn owner(&self) -> super::quota::QuotaOwner {
        super::quota::QuotaOwner { uid: self.uid, gid: self.gid, project: Some(self.project) }
    }

    fn value(&self, attr: ZplAttr) -> AttrValue {
        match attr {
            ZplAttr::Mode => AttrValue::word(self.mode),
            ZplAttr::Size => AttrValue::word(self.size),
            ZplAttr::Uid => AttrValue::word(self.uid),
            ZplAttr::Gid => AttrValue::word(self.gid),
            ZplAttr::Flags => AttrValue::word(self.flags),
            ZplAttr::Atime | ZplAttr::Mtime | ZplAttr::Ctime => AttrValue::time(self.now),
            ZplAttr::Crtime => AttrValue::time(self.crtime),
            ZplAttr::Projid => AttrValue::word(self.project),
            ZplAttr::Rdev => AttrValue::word(self.rdev),
            ZplAttr::DaclCount => AttrValue::word(self.dacl.aces.len() as u64),
            ZplAttr::DaclAces => encode_aces(&self.dacl.aces).into(),
            ZplAttr::Symlink => self.target.clone().into(),
            _ => AttrValue::word(0),
        }
    }

    fn znode(&self, txg: u64, parent: ObjectId, links: u64) -> Result<Vec<u8>> {
        let head = [txg, self.mode, self.size, parent.0, links, 0, self.rdev, self.flags];
        // This ACL is replaced after the object was created.
        let aces = trivial_acl(self.mode, self.kind == FileType::Dir);
        let mut out = legacy_znode(self.now, head, [self.uid, self.gid], &aces)?;
        out[LEGACY_CRTIME].copy_from_slice(&AttrValue::time(self.crtime));
        out.extend(self.scanstamp.unwrap_or_default().iter().filter(|_| self.scanstamp.is_some()));
        if self.target.len() <= LEGACY_TAIL {
            out.extend(&self.target);
        }
        Ok(out)
    }
}
