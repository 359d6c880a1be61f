//! New files: their attributes, their objects, their first name.

use base::{Error, ErrorKind, ObjectId, Result, Txg};
use dmu::{Io, Object, ObjectSpec, Tx, zaps};
use ondisk::ObjType;
use ondisk::acl::{encode_aces, trivial_acl};
use ondisk::normalize::TOUPPER;
use ondisk::sa::{SaTables, ZplAttr};
use ondisk::znode::{
    self, FileType, SYMLINK_MAX, Time, ZFS_ARCHIVE, ZFS_AV_MODIFIED, ZFS_BONUS_SCANSTAMP,
    ZFS_PROJID, ZFS_PROJINHERIT, ZFS_XATTR, ZNODE_PHYS_SIZE,
};

use super::acl;
use super::given::{Dacl, Given};
use super::journal::{Made, Script};
use super::node::{AttrList, AttrValue, Do, Node, Patch, Plan};
use super::types::{Caller, New, denied, exists};
use super::types::{RwProps, XattrForm};
use crate::attrs::Attrs;
use crate::create::legacy_znode;
use crate::fs::FileSystem;
use crate::master::CaseSensitivity;

/// A block takes a sector at least, however small it is: one of 4 KiB on most pools.
const SECTOR: u64 = 4 << 10;

/// What `count` blocks of `block` bytes are announced as.
pub(crate) fn blocks_cost(count: u64, block: u64) -> u64 {
    count.saturating_mul(block.max(SECTOR))
}

/// Bytes that a call makes dirty beside data: blocks of the dnodes it changes.
pub(crate) const DNODE_BLOCK: u64 = 16 << 10;
/// A microzap that turns fat.
const CONVERSION: u64 = 1 << 20;
/// Largest microzap.
const MICRO_MAX: u64 = 128 << 10;
const S_ISGID: u32 = 0o2000;
const S_IXGRP: u32 = 0o010;
/// Bytes of a file's block before it has content.
const BLOCK_LEAST: u32 = 512;
/// Bytes of a symbolic link's target behind a znode of before version 5.
const LEGACY_TAIL: usize = 320 - ZNODE_PHYS_SIZE;
/// Where a structure of before version 5 has its time of creation.
const LEGACY_CRTIME: std::ops::Range<usize> = 48..64;
/// First version whose directory entries tell the type.
const VERSION_TYPES: u64 = 2;
/// First version with flags of files.
const VERSION_FLAGS: u64 = 3;

/// An object that is to be born: everything but its number and group.
pub(crate) struct Birth {
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
    /// Without system attributes before version 5.
    sa: Option<(AttrList, Plan)>,
    slots: u8,
    /// Bytes of a data block; 0 is 512.
    block_size: u32,
    /// Extended attributes that go into a hidden directory.
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Extended attributes among the system attributes.
    sa_xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Number and generation that a record of the log says it has.
    fixed: Option<(ObjectId, u64)>,
}

/// What [`FileSystem::conceive`] is told.
pub(crate) struct Seed<'a> {
    pub(crate) kind: FileType,
    pub(crate) mode: u32,
    pub(crate) uid: u64,
    pub(crate) gid: u64,
    pub(crate) flags: u64,
    pub(crate) project: u64,
    pub(crate) rdev: u64,
    pub(crate) target: &'a [u8],
    pub(crate) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Time of birth, if not now; and slots of the dnode, if not as the properties say.
    pub(crate) logged: Option<(Time, u8)>,
    /// What only a record tells.
    pub(crate) given: Given,
}

impl Birth {
    /// Bytes that the birth makes dirty.
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

    /// Whose a new file is: group and set-id bits go by the directory's set-group-id bit.
    fn ownership(by: &Caller, parent: &Attrs, kind: FileType, mode: u32) -> (u64, u64, u32) {
        let mode = mode & 0o7777;
        let inherits = parent.mode & S_ISGID != 0;
        let (gid, mode) = match (inherits, kind) {
            (true, FileType::Dir) => (parent.group_fuid, mode | S_ISGID),
            (true, _) => (parent.group_fuid, mode),
            (false, _) => (u64::from(by.gid), mode),
        };
        // A set-group-id program of a group that its maker is not in.
        let strange = kind != FileType::Dir
            && mode & (S_ISGID | S_IXGRP) == S_ISGID | S_IXGRP
            && !by.privileged
            && !by.in_group(gid as u32);
        (u64::from(by.uid), gid, if strange { mode & !S_ISGID } else { mode })
    }

    /// Prepares a new file below `parent`: owners, mode and ACLs that it inherits.
    ///
    /// # Errors
    /// `Invalid` for an impossible kind or target, `NameTooLong` for a long target, those
    /// of the tables of attributes.
    pub(crate) fn conceive_in(
        &self,
        by: &Caller,
        parent: &Node,
        new: &New<'_>,
        props: &RwProps,
    ) -> Result<Birth> {
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
        self.conceive(
            Seed {
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
                given: Given::default(),
            },
            props,
        )
    }

    /// Prepares an object. No transaction may be open.
    pub(crate) fn conceive(&self, seed: Seed<'_>, props: &RwProps) -> Result<Birth> {
        let (now, slots) = match seed.logged {
            Some(logged) => logged,
            None => (self.rw_always()?.host.now(), props.dnode_slots),
        };
        let is_dir = seed.kind == FileType::Dir;
        let mode = seed.kind.nibble() << 12 | u64::from(seed.mode & 0o7777);
        let given = seed.given;
        let dacl = match &given.acl {
            Some((aces, flags)) => Dacl::given(aces, *flags, mode, (seed.uid, seed.gid), is_dir),
            None => Dacl::of_mode(mode, is_dir),
        };
        let mut flags = seed.flags | dacl.flags;
        if self.props().version >= VERSION_FLAGS {
            flags |= ZFS_ARCHIVE | ZFS_AV_MODIFIED;
            flags = flags & !given.flags.0 | given.flags.1;
        }
        let scanstamp = given.scanstamp.filter(|_| seed.kind == FileType::Regular);
        let mut birth = Birth {
            kind: seed.kind,
            mode: dacl.mode,
            crtime: given.crtime.unwrap_or(now),
            dacl,
            scanstamp,
            uid: seed.uid,
            gid: seed.gid,
            flags,
            now,
            rdev: seed.rdev,
            project: given.project.unwrap_or(seed.project),
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
        if given.project.is_some_and(|p| p != 0) && !projects {
            return Err(Error::unsupported("there are no projects here"));
        }
        if self.props().version < crate::master::ZPL_VERSION {
            birth.slots = 1;
            if birth.scanstamp.is_some() {
                birth.flags |= ZFS_BONUS_SCANSTAMP;
            }
            if birth.target.len() > LEGACY_TAIL {
                birth.block_size = (birth.target.len() as u32).next_multiple_of(512);
            }
            if !birth.xattrs.is_empty() {
                self.ready_hidden(&birth.hidden_owner(ObjectId(0)), props)?;
            }
            return Ok(birth);
        }
        if projects {
            birth.flags |= ZFS_PROJID;
        }
        let (tables, template) = (self.tables(), template(&birth, projects));
        let mut list = AttrList::with_capacity(template.len() + 1);
        for attr in template {
            let number = tables.number(attr).map_or_else(|| self.ensure_attr(attr), Ok)?;
            list.set(number, birth.value(attr));
        }
        if let Some(stamp) = &birth.scanstamp {
            list.set(self.ensure_attr(ZplAttr::Scanstamp)?, stamp.to_vec());
        }
        if !birth.xattrs.is_empty() && props.xattr != XattrForm::Dir {
            let packed = ondisk::xattr::pack_sa(&birth.xattrs);
            if let Ok(packed) = packed {
                list.set(self.ensure_attr(ZplAttr::Dxattr)?, packed);
                birth.sa_xattrs = std::mem::take(&mut birth.xattrs);
            }
        }
        if !birth.xattrs.is_empty() {
            self.ready_hidden(&birth.hidden_owner(ObjectId(0)), props)?;
            // Its number is known when the directory is there.
            list.set(self.ensure_attr(ZplAttr::Xattr)?, AttrValue::word(0));
        }
        let plan = self.plan(&list, birth.slots)?;
        birth.sa = Some((list, plan));
        Ok(birth)
    }

    /// Makes the object, without a name.
    ///
    /// # Errors
    /// `NoSpace` without a free number, those of the object set.
    pub(crate) fn bear(
        &self,
        tx: &Tx,
        mut birth: Birth,
        parent: ObjectId,
        links: u64,
    ) -> Result<ObjectId> {
        let os = self.os();
        let object_type = match birth.kind {
            FileType::Dir => ObjType::DIRECTORY_CONTENTS,
            _ => ObjType::PLAIN_FILE_CONTENTS,
        };
        let generation = birth.generation(tx.txg());
        let patch = Patch::new()
            .and(ZplAttr::Gen, Do::Set(generation))
            .and(ZplAttr::Parent, Do::Set(parent.0))
            .and(ZplAttr::Links, Do::Set(links));
        let (bonus_type, bonus, spill) = match &mut birth.sa {
            Some((list, plan)) => {
                list.apply(&self.tables(), &patch)?;
                let (bonus, spill) = self.encode(list, *plan)?;
                (ObjType::SA, bonus, spill)
            }
            None => (ObjType::ZNODE, birth.znode(generation, parent, links)?, None),
        };
        let spec = ObjectSpec {
            object_type,
            bonus_type,
            bonus,
            slots: birth.slots,
            block_size: birth.block_size,
            ..ObjectSpec::default()
        };
        let id = match birth.fixed {
            Some((id, _)) => os.claim(tx, id, &spec).map(|()| id)?,
            None => os.allocate(tx, &spec)?,
        };
        let rest = self.finish(tx, id, &birth, spill.as_deref());
        if rest.is_err() {
            os.free_object(tx, id)?;
        }
        self.touch(tx, id);
        rest.map(|()| id)
    }

    fn finish(&self, tx: &Tx, id: ObjectId, birth: &Birth, spill: Option<&[u8]>) -> Result<()> {
        let os = self.os();
        if birth.kind == FileType::Dir {
            zaps::init(os, tx, id, self.normflags())?;
        }
        if let Some(spill) = spill {
            os.set_spill(tx, id, Some(spill))?;
        }
        if birth.block_size != 0 && birth.sa.is_none() {
            os.write(tx, id, 0, &birth.target)?;
        }
        if birth.sa.is_none() && !birth.is_plain() {
            self.set_legacy_acl(tx, id, &birth.dacl.aces)?;
        }
        if birth.xattrs.is_empty() {
            return Ok(());
        }
        let owner = birth.hidden_owner(id);
        let props = self.rw_always()?.host.props();
        // The log has no record of it.
        let mut script = Script::new(tx);
        let dir = self.bear_xattr_dir(tx, &owner, &props, &mut script)?;
        for (name, value) in &birth.xattrs {
            self.put_xattr_file(tx, &owner, dir, (name, value), &props, &mut script)?;
        }
        let patch = Patch::new().and(ZplAttr::Xattr, Do::Set(dir.0));
        let legacy = birth.sa.is_none();
        if let Some((mut list, plan)) = birth.sa.clone() {
            // Not necessarily in the bonus.
            list.apply(&self.tables(), &patch)?;
            return self.store(tx, id, &list, plan);
        }
        self.patch_id(tx, id, legacy, &patch)
    }

    /// Makes a file of any kind. Owner and group are the caller's, but the group the
    /// directory's below one with the set-group-id bit; permissions lack the umask, or
    /// are what the directory's default ACL leaves.
    ///
    /// # Errors
    /// `Exists`; `NotFound` for a directory that was removed; `NotDir`; `NameTooLong`,
    /// `Invalid`, `NotUnicode` for the name; `NotPermitted` below an immutable directory;
    /// `TooManyLinks`; `NoSpace`; `Quota`; `ReadOnly`; those of reading.
    pub fn make(&self, by: &Caller, dir: ObjectId, name: &[u8], new: &New<'_>) -> Result<Attrs> {
        let (id, attrs) = self.make_in(dir, name, |parent, props| {
            let birth = self.conceive_in(by, parent, new, props)?;
            self.check_new_quota(&birth.owner())?;
            Ok(birth)
        })?;
        self.promise(id)?;
        attrs.map_or_else(|| self.attrs(id, Io::WAIT), Ok)
    }

    /// Makes what `conceive` prepares, and gives it a name. Its attributes come along where
    /// they need not be read.
    pub(crate) fn make_in(
        &self,
        dir: ObjectId,
        name: &[u8],
        conceive: impl FnOnce(&Node, &RwProps) -> Result<Birth>,
    ) -> Result<(ObjectId, Option<Attrs>)> {
        let (rw, props) = self.rw()?;
        self.check_name(name)?;
        let _dir = rw.locks.exclusive(dir);
        let parent = self.parent(dir)?;
        if self.entry(dir, name)?.is_some() {
            return Err(exists().in_object(dir));
        }
        let birth = conceive(&parent, &props)?;
        let kind = birth.kind;
        let is_dir = kind == FileType::Dir;
        if is_dir {
            self.check_links(&parent)?;
        }
        let now = birth.now;
        let cost = birth.cost() + entry_cost(&parent.object) + DNODE_BLOCK;
        let mut record = birth.record(dir);
        let tx = rw.host.begin(cost, false)?;
        let attrs = birth.attrs(tx.txg(), dir);
        let id = self.bear(&tx, birth, dir, if is_dir { 2 } else { 1 })?;
        if let Err(e) = self.add_entry(&tx, dir, name, id, kind) {
            self.os().free_object(&tx, id)?;
            return Err(e);
        }
        let mut patch = Patch::new().modified(now).and(ZplAttr::Size, Do::Add(1));
        if is_dir {
            patch.push(ZplAttr::Links, Do::Add(1));
        }
        self.patch(&tx, &parent, &patch)?;
        record.object = id;
        self.log_made(&tx, name, kind, &record);
        Ok((id, attrs.map(|attrs| Attrs { id, ..attrs })))
    }

    /// Makes a regular file without a name (`O_TMPFILE`); it lives as long as it is held,
    /// unless [`FileSystem::link`] gives it one.
    ///
    /// # Errors
    /// As [`FileSystem::make`].
    pub fn make_unlinked(&self, by: &Caller, dir: ObjectId, mode: u32) -> Result<Attrs> {
        let (rw, props) = self.rw()?;
        let _dir = rw.locks.exclusive(dir);
        let parent = self.parent(dir)?;
        let birth = self.conceive_in(by, &parent, &New::file(mode), &props)?;
        self.check_new_quota(&birth.owner())?;
        let _queue = rw.queue.lock();
        let cost = birth.cost() + self.queue_cost()?;
        let tx = rw.host.begin(cost, false)?;
        let id = self.bear(&tx, birth, dir, 0)?;
        if let Err(e) = self.enqueue(&tx, id) {
            self.os().free_object(&tx, id)?;
            return Err(e);
        }
        rw.holds.lock().orphans.insert(id.0, true);
        drop(tx);
        self.attrs(id, Io::WAIT)
    }

    /// A directory that entries may be added to or taken from.
    ///
    /// # Errors
    /// `NotDir`; `NotFound` when it was removed; `NotPermitted` by its flags; `Invalid`
    /// for one with extended attributes.
    pub(crate) fn parent(&self, dir: ObjectId) -> Result<Node> {
        self.directory(dir, Io::WAIT)?;
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
        if self.guards(&node) & znode::ZFS_IMMUTABLE != 0 {
            return Err(denied("the directory is immutable").in_object(dir));
        }
        Ok(node)
    }
}

/// Attributes of a new object in their order (chapter 06 §4.5).
fn template(birth: &Birth, projects: bool) -> Vec<ZplAttr> {
    use ZplAttr::{
        Atime, Crtime, Ctime, DaclAces, DaclCount, Flags, Gen, Gid, Links, Mode, Mtime, Parent,
        Projid, Rdev, Size, Symlink, Uid,
    };
    let always = [Mode, Size, Gen, Uid, Gid, Parent, Flags, Atime, Mtime, Ctime, Crtime, Links];
    let mut attrs = Vec::with_capacity(ZplAttr::ALL.len());
    attrs.extend(always);
    attrs.extend(projects.then_some(Projid));
    attrs.extend(matches!(birth.kind, FileType::Char | FileType::Block).then_some(Rdev));
    attrs.extend([DaclCount, DaclAces]);
    attrs.extend((birth.kind == FileType::Symlink).then_some(Symlink));
    attrs
}

impl Birth {
    /// A file with content: its block and its size.
    pub(crate) fn with_content(
        mut self,
        block_size: u32,
        size: u64,
        tables: &SaTables,
    ) -> Result<Birth> {
        (self.block_size, self.size) = (block_size, size);
        if let Some((list, _)) = &mut self.sa {
            list.apply(tables, &Patch::new().and(ZplAttr::Size, Do::Set(size)))?;
        }
        Ok(self)
    }

    /// As a record of the log says it is: this object, born then.
    pub(crate) fn born_as(mut self, id: ObjectId, generation: u64) -> Birth {
        self.fixed = Some((id, generation));
        self
    }

    /// What the log says of it; its number is not known yet.
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
            adorned: !self.xattrs.is_empty(),
        }
    }

    fn generation(&self, txg: Txg) -> u64 {
        self.fixed.map_or(txg.0, |(_, generation)| generation)
    }

    /// What `stat` tells of it once it is born, but for its number: of a regular file with
    /// one name and nothing beside its content. Others are read.
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

    /// Its ACL is that of its mode.
    fn is_plain(&self) -> bool {
        self.dacl.aces == trivial_acl(self.mode, self.kind == FileType::Dir)
    }

    fn hidden_owner(&self, id: ObjectId) -> super::xattr::Owner {
        super::xattr::Owner { id, uid: self.uid, gid: self.gid, project: self.project }
    }

    /// Whom quotas are checked for.
    pub(crate) fn owner(&self) -> super::quota::Owner {
        super::quota::Owner { uid: self.uid, gid: self.gid, project: Some(self.project) }
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
        // Another one takes its place when the object is there.
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
