//! What `stat` tells of a file, from either form of attributes.

use base::{Error, ErrorKind, ObjectId, Result};
use dmu::{Io, Object};
use ondisk::objtype::ObjType;

use crate::fs::FileSystem;
use crate::pflags;
use crate::sa::{Attr, Buffer};
use crate::znode::Znode;

const MODE_TYPE: u64 = 0o170_000;
/// Links that Linux shows at most (chapter 06 §5.1).
const LINKS_MAX: u64 = i32::MAX as u64;

/// What kind of file; numbered as directory entries and `d_type` have it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FileKind {
    /// Not told: version-1 directory entries.
    #[default]
    Unknown = 0,
    /// Named pipe.
    Fifo = 1,
    /// Character device.
    Char = 2,
    /// Directory.
    Dir = 4,
    /// Block device.
    Block = 6,
    /// Regular file.
    Regular = 8,
    /// Symbolic link.
    Symlink = 10,
    /// Socket.
    Socket = 12,
}

impl FileKind {
    /// From the four type bits of a mode or a directory entry.
    pub fn from_bits(bits: u64) -> FileKind {
        match bits {
            1 => FileKind::Fifo,
            2 => FileKind::Char,
            4 => FileKind::Dir,
            6 => FileKind::Block,
            8 => FileKind::Regular,
            10 => FileKind::Symlink,
            12 => FileKind::Socket,
            _ => FileKind::Unknown,
        }
    }

    /// From `st_mode`.
    pub fn from_mode(mode: u64) -> FileKind {
        FileKind::from_bits((mode & MODE_TYPE) >> 12)
    }

    /// The value of `d_type`.
    pub fn dirent_type(self) -> u8 {
        self as u8
    }

    pub(crate) fn is_device(self) -> bool {
        matches!(self, FileKind::Char | FileKind::Block)
    }
}

/// A time stamp.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time {
    /// Seconds since 1970 UTC.
    pub sec: i64,
    /// Nanoseconds, below 10⁹.
    pub nsec: u32,
}

impl Time {
    fn from_words((sec, nsec): (u64, u64)) -> Time {
        // A damaged fraction must not reach callers that divide by it.
        Time { sec: sec as i64, nsec: nsec.min(999_999_999) as u32 }
    }
}

/// A device number, independent of the platform that wrote it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Device {
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
}

impl Device {
    /// From the attribute. Linux writes `major << 20 | minor` in 32 bits, illumos
    /// and FreeBSD `major << 32 | minor` (chapter 06 §5.1); a number beyond 32
    /// bits can only be the latter.
    pub fn from_rdev(rdev: u64) -> Device {
        if rdev >> 32 != 0 {
            return Device { major: (rdev >> 32) as u32, minor: rdev as u32 };
        }
        Device { major: (rdev >> 20) as u32, minor: (rdev & 0xf_ffff) as u32 }
    }

    /// The `dev_t` of Linux's `stat`: the minor's high bits above the major's low ones.
    pub fn linux_dev(self) -> u64 {
        let (major, minor) = (u64::from(self.major), u64::from(self.minor));
        (minor & 0xff) | (major & 0xfff) << 8 | (minor & !0xff) << 12 | (major & !0xfff) << 32
    }
}

/// The attributes of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attrs {
    /// Object number: `st_ino`.
    pub id: ObjectId,
    /// Kind.
    pub kind: FileKind,
    /// `st_mode`, type bits included.
    pub mode: u32,
    /// User id as Linux shows it: the low half of the owner's FUID.
    pub uid: u32,
    /// Group id, likewise.
    pub gid: u32,
    /// The owner's FUID (chapter 06 §12).
    pub owner_fuid: u64,
    /// The group's FUID.
    pub group_fuid: u64,
    /// Bytes; for a directory its number of entries, `.` and `..` included.
    pub size: u64,
    /// Links; for a directory 2 and its subdirectories.
    pub nlink: u32,
    /// Last access.
    pub atime: Time,
    /// Last change of the content.
    pub mtime: Time,
    /// Last change of the attributes.
    pub ctime: Time,
    /// Creation.
    pub crtime: Time,
    /// Transaction group of creation; with `id` it identifies the file for ever.
    pub generation: u64,
    /// The directory it is in; stale for a file after one of several links went.
    pub parent: ObjectId,
    /// Number of a character or block device.
    pub device: Option<Device>,
    /// Allocated space in units of 512 bytes, its dnode included: `st_blocks`.
    pub blocks: u64,
    /// Bytes of a data block.
    pub block_size: u32,
    /// Bits of [`crate::pflags`].
    pub pflags: u64,
    /// Project id.
    pub project: u64,
    /// Whether there may be extended attributes; false is certain.
    pub may_have_xattrs: bool,
}

impl Attrs {
    /// Whether the object is an extended-attribute directory or a file in one.
    pub fn is_xattr(&self) -> bool {
        self.pflags & pflags::XATTR != 0
    }

    /// From a znode of a version before 5.
    pub(crate) fn from_znode(object: &Object, z: &Znode) -> Attrs {
        let kind = FileKind::from_mode(z.mode);
        let [atime, mtime, ctime, crtime] = z.times.map(Time::from_words);
        Attrs {
            kind,
            mode: z.mode as u32 & 0xffff,
            uid: z.uid as u32,
            gid: z.gid as u32,
            owner_fuid: z.uid,
            group_fuid: z.gid,
            size: z.size,
            nlink: links(z.links),
            atime,
            mtime,
            ctime,
            crtime,
            generation: z.generation,
            parent: ObjectId(z.parent),
            device: kind.is_device().then(|| Device::from_rdev(z.rdev)),
            pflags: z.flags,
            project: 0,
            may_have_xattrs: z.xattr != 0,
            ..Attrs::of_dnode(object)
        }
    }

    /// From a buffer of system attributes; `None` when one that this file must
    /// have (chapter 06 §4.5) is not in it.
    pub(crate) fn from_sa(object: &Object, sa: &Buffers<'_>) -> Option<Attrs> {
        let time = |a| sa.pair(a).map(Time::from_words);
        let mode = sa.u64(Attr::Mode)?;
        let kind = FileKind::from_mode(mode);
        let flags = sa.u64(Attr::Flags)?;
        let (owner_fuid, group_fuid) = (sa.u64(Attr::Uid)?, sa.u64(Attr::Gid)?);
        let attrs = Attrs {
            kind,
            mode: mode as u32 & 0xffff,
            uid: owner_fuid as u32,
            gid: group_fuid as u32,
            owner_fuid,
            group_fuid,
            size: sa.u64(Attr::Size)?,
            nlink: links(sa.u64(Attr::Links)?),
            atime: time(Attr::Atime)?,
            mtime: time(Attr::Mtime)?,
            ctime: time(Attr::Ctime)?,
            crtime: time(Attr::Crtime)?,
            generation: sa.u64(Attr::Gen)?,
            parent: ObjectId(sa.u64(Attr::Parent)?),
            device: match kind.is_device() {
                true => Some(Device::from_rdev(sa.u64(Attr::Rdev)?)),
                false => None,
            },
            pflags: flags,
            project: match flags & pflags::PROJID {
                0 => 0,
                _ => sa.u64(Attr::Projid)?,
            },
            may_have_xattrs: sa.has(Attr::Dxattr)
                || sa.u64(Attr::Xattr).is_some_and(|id| id != 0)
                || object.dnode().spill.is_some(),
            ..Attrs::of_dnode(object)
        };
        Some(attrs)
    }

    /// What the dnode alone tells.
    fn of_dnode(object: &Object) -> Attrs {
        let dnode = object.dnode();
        Attrs {
            id: object.id(),
            blocks: blocks(dnode.used, dnode.slots),
            block_size: dnode.data_block_size,
            kind: FileKind::Unknown,
            mode: 0,
            uid: 0,
            gid: 0,
            owner_fuid: 0,
            group_fuid: 0,
            size: 0,
            nlink: 0,
            atime: Time::default(),
            mtime: Time::default(),
            ctime: Time::default(),
            crtime: Time::default(),
            generation: 0,
            parent: ObjectId(0),
            device: None,
            pflags: 0,
            project: 0,
            may_have_xattrs: false,
        }
    }
}

fn links(links: u64) -> u32 {
    links.min(LINKS_MAX) as u32
}

/// `st_blocks`: an empty file shows the slots of its dnode.
fn blocks(used: u64, slots: u8) -> u64 {
    used.div_ceil(512).saturating_add(u64::from(slots))
}

/// The bonus's attributes, and behind them the spill block's.
pub(crate) struct Buffers<'a> {
    bonus: Buffer<'a>,
    spill: Option<Buffer<'a>>,
}

impl<'a> Buffers<'a> {
    fn find<T>(&self, get: impl Fn(&Buffer<'a>) -> Option<T>) -> Option<T> {
        get(&self.bonus).or_else(|| self.spill.as_ref().and_then(get))
    }

    pub(crate) fn u64(&self, attr: Attr) -> Option<u64> {
        self.find(|b| b.u64(attr))
    }

    pub(crate) fn pair(&self, attr: Attr) -> Option<(u64, u64)> {
        self.find(|b| b.pair(attr))
    }

    pub(crate) fn bytes(&self, attr: Attr) -> Option<&'a [u8]> {
        self.find(|b| b.bytes(attr))
    }

    pub(crate) fn has(&self, attr: Attr) -> bool {
        self.find(|b| b.has(attr).then_some(())).is_some()
    }
}

/// How an object keeps its attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Sa,
    Znode,
}

/// The form; `NotFound` for an object that is no file.
pub(crate) fn form_of(object: &Object) -> Result<Form> {
    match object.dnode().bonus_type {
        ObjType::SA => Ok(Form::Sa),
        ObjType::ZNODE => Ok(Form::Znode),
        _ => Err(Error::not_found("the object is not a file").in_object(object.id())),
    }
}

impl FileSystem {
    /// The attributes of the file `id`.
    ///
    /// The spill block is read only when the bonus lacks something that this
    /// kind of file must have.
    ///
    /// # Errors
    /// `NotFound` when there is no such object or it is no file; `Corrupt` when
    /// its attributes are damaged or incomplete; those of reading.
    pub fn attrs(&self, id: ObjectId, io: Io) -> Result<Attrs> {
        self.attrs_of(&self.object(id, io)?, io)
    }

    pub(crate) fn attrs_of(&self, object: &Object, io: Io) -> Result<Attrs> {
        let dnode = object.dnode();
        if form_of(object)? == Form::Znode {
            let znode = Znode::parse(&dnode.bonus, dnode.endian);
            return znode
                .map(|z| Attrs::from_znode(object, &z))
                .map_err(|e| e.in_object(object.id()));
        }
        let in_bonus = |sa: &Buffers<'_>| Ok(Attrs::from_sa(object, sa));
        if !dnode.bonus.is_empty()
            && let Some(attrs) = self.with_bonus(object, in_bonus)?
        {
            return checked(attrs);
        }
        match self.with_sa(object, io, in_bonus)? {
            Some(attrs) => checked(attrs),
            None => {
                let e = Error::corrupt("the file lacks an attribute that every file has");
                Err(e.in_object(object.id()))
            }
        }
    }

    fn with_bonus<T>(
        &self,
        object: &Object,
        f: impl FnOnce(&Buffers<'_>) -> Result<T>,
    ) -> Result<T> {
        let bonus = self.sa.parse(&object.dnode().bonus).map_err(|e| e.in_object(object.id()))?;
        f(&Buffers { bonus, spill: None })
    }

    /// Calls `f` with all system attributes of `object`, the spill block's included.
    pub(crate) fn with_sa<T>(
        &self,
        object: &Object,
        io: Io,
        f: impl FnOnce(&Buffers<'_>) -> Result<T>,
    ) -> Result<T> {
        let fail = |e: Error| e.in_object(object.id());
        let Some((spill, _)) = object.spill(io)? else { return self.with_bonus(object, f) };
        let spill = self.sa.parse(&spill).map_err(fail)?;
        let bonus = &object.dnode().bonus;
        if bonus.is_empty() {
            return f(&Buffers { bonus: spill, spill: None });
        }
        let bonus = self.sa.parse(bonus).map_err(fail)?;
        f(&Buffers { bonus, spill: Some(spill) })
    }
}

/// A generation of zero marks what never was a file (chapter 06 §4.5).
fn checked(attrs: Attrs) -> Result<Attrs> {
    match attrs.generation {
        0 => {
            let e = Error::new(ErrorKind::Corrupt, "the file has no generation");
            Err(e.in_object(attrs.id))
        }
        _ => Ok(attrs),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_by_mode_and_entry() {
        for (mode, kind, dt) in [
            (0o010_644, FileKind::Fifo, 1),
            (0o020_644, FileKind::Char, 2),
            (0o041_777, FileKind::Dir, 4),
            (0o060_644, FileKind::Block, 6),
            (0o100_644, FileKind::Regular, 8),
            (0o120_777, FileKind::Symlink, 10),
            (0o140_644, FileKind::Socket, 12),
            (0o150_644, FileKind::Unknown, 0),
        ] {
            assert_eq!(FileKind::from_mode(mode), kind);
            assert_eq!(kind.dirent_type(), dt);
        }
    }

    #[test]
    fn device_numbers_of_both_platforms() {
        let linux = Device::from_rdev(259 << 20 | 70_000);
        assert_eq!(linux, Device { major: 259, minor: 70_000 });
        assert_eq!(Device::from_rdev(259 << 32 | 70_000), linux);
        // makedev(259, 70000) as glibc computes it.
        assert_eq!(linux.linux_dev(), 0x1111_0370);
        assert_eq!(Device { major: 5, minor: 1 }.linux_dev(), 0x501);
    }

    #[test]
    fn times_before_1970_and_damaged_fractions() {
        let t = Time::from_words((u64::MAX, 1_000_000_000));
        assert_eq!(t, Time { sec: -1, nsec: 999_999_999 });
    }

    #[test]
    fn blocks_count_the_dnode() {
        assert_eq!((blocks(0, 1), blocks(513, 2), blocks(u64::MAX, 1)), (1, 4, (1 << 55) + 1));
        assert_eq!((links(2), links(u64::MAX)), (2, 0x7fff_ffff));
    }
}
