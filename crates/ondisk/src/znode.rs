//! File attributes: those that both stored forms have in common, the legacy znode, and
//! directory entries (chapter 06 §5, §6, §7.1).
//!
//! # Theory
//! [`ZnodeAttrs`] is made from system attributes ([`crate::sa::Sa`]) or, for
//! objects of old file systems that were not changed since, from the fixed
//! structure in a bonus buffer of type 17 ([`ZnodeAttrs::from_legacy`]).
//!
//! # Invariants
//! * A `ZnodeAttrs` has every attribute that a valid object needs, a generation
//!   that is not 0, and a project id if its flags require one.
//! * ACLs and extended attributes are kept as bytes and parsed on request: a damaged
//!   ACL does not make a file unreadable.

use base::{Error, Result};

use crate::acl::{Ace, parse_aces, parse_aces_v0};
use crate::endian::Endian;
use crate::sa::{Sa, ZplAttr};
use crate::zapleaf::u64_at;

/// Flag: the object is an xattr directory or in one.
pub const ZFS_XATTR: u64 = 0x1;
/// Flag: the ACL has inheritable entries.
pub const ZFS_INHERIT_ACE: u64 = 0x2;
/// Flag: the ACL expresses no more than the mode.
pub const ZFS_ACL_TRIVIAL: u64 = 0x4;
/// Flag: the ACL has object entries.
pub const ZFS_ACL_OBJ_ACE: u64 = 0x8;
/// Flag: NFSv4 "protected".
pub const ZFS_ACL_PROTECTED: u64 = 0x10;
/// Flag: NFSv4 "defaulted".
pub const ZFS_ACL_DEFAULTED: u64 = 0x20;
/// Flag: NFSv4 "auto inherit".
pub const ZFS_ACL_AUTO_INHERIT: u64 = 0x40;
/// Flag: legacy, a scan stamp follows the znode in the bonus.
pub const ZFS_BONUS_SCANSTAMP: u64 = 0x80;
/// Flag: all users may execute or search.
pub const ZFS_NO_EXECS_DENIED: u64 = 0x100;
/// Flag: DOS read-only.
pub const ZFS_READONLY: u64 = 0x1_0000_0000;
/// Flag: hidden.
pub const ZFS_HIDDEN: u64 = 0x2_0000_0000;
/// Flag: system.
pub const ZFS_SYSTEM: u64 = 0x4_0000_0000;
/// Flag: archive.
pub const ZFS_ARCHIVE: u64 = 0x8_0000_0000;
/// Flag: immutable.
pub const ZFS_IMMUTABLE: u64 = 0x10_0000_0000;
/// Flag: cannot be unlinked.
pub const ZFS_NOUNLINK: u64 = 0x20_0000_0000;
/// Flag: append only.
pub const ZFS_APPENDONLY: u64 = 0x40_0000_0000;
/// Flag: not to be dumped.
pub const ZFS_NODUMP: u64 = 0x80_0000_0000;
/// Flag: opaque.
pub const ZFS_OPAQUE: u64 = 0x100_0000_0000;
/// Flag: quarantined by a virus scanner.
pub const ZFS_AV_QUARANTINED: u64 = 0x200_0000_0000;
/// Flag: modified since the last virus scan.
pub const ZFS_AV_MODIFIED: u64 = 0x400_0000_0000;
/// Flag: reparse point.
pub const ZFS_REPARSE: u64 = 0x800_0000_0000;
/// Flag: offline.
pub const ZFS_OFFLINE: u64 = 0x1000_0000_0000;
/// Flag: sparse.
pub const ZFS_SPARSE: u64 = 0x2000_0000_0000;
/// Flag: children inherit the project id.
pub const ZFS_PROJINHERIT: u64 = 0x4000_0000_0000;
/// Flag: the object has a project id.
pub const ZFS_PROJID: u64 = 0x8000_0000_0000;

/// Bytes of the fixed part of a legacy znode.
pub const ZNODE_PHYS_SIZE: usize = 264;
/// Longest symlink target.
pub const SYMLINK_MAX: usize = 4096;

/// A point in time as stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Time {
    /// Seconds since 1970 UTC, signed.
    pub seconds: i64,
    /// Nanoseconds; may exceed 999999999 in damaged data.
    pub nanoseconds: u64,
}

/// The type of a file, from a mode or directory entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileType {
    /// Not stored (ZPL version 1), or invalid.
    Unknown,
    /// FIFO.
    Fifo,
    /// Character device.
    Char,
    /// Directory.
    Dir,
    /// Block device.
    Block,
    /// Regular file.
    Regular,
    /// Symbolic link.
    Symlink,
    /// Socket.
    Socket,
}

impl FileType {
    /// From the four type bits.
    pub fn from_nibble(n: u64) -> FileType {
        match n {
            1 => FileType::Fifo,
            2 => FileType::Char,
            4 => FileType::Dir,
            6 => FileType::Block,
            8 => FileType::Regular,
            10 => FileType::Symlink,
            12 => FileType::Socket,
            _ => FileType::Unknown,
        }
    }

    /// The four type bits.
    pub fn nibble(self) -> u64 {
        match self {
            FileType::Unknown => 0,
            FileType::Fifo => 1,
            FileType::Char => 2,
            FileType::Dir => 4,
            FileType::Block => 6,
            FileType::Regular => 8,
            FileType::Symlink => 10,
            FileType::Socket => 12,
        }
    }

    /// From a mode.
    pub fn of_mode(mode: u64) -> FileType {
        FileType::from_nibble((mode & 0o170_000) >> 12)
    }
}

/// The value of a directory entry (§7.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// Object id, 48 bits.
    pub object: u64,
    /// Type of the object.
    pub file_type: FileType,
}

impl DirEntry {
    /// From the first word of the ZAP value.
    pub fn decode(value: u64) -> DirEntry {
        DirEntry { object: value & ((1 << 48) - 1), file_type: FileType::from_nibble(value >> 60) }
    }

    /// The ZAP value.
    pub fn encode(self) -> u64 {
        self.file_type.nibble() << 60 | self.object & ((1 << 48) - 1)
    }
}

/// An NFSv4 ACL as stored.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum ZnodeAcl {
    /// None.
    #[default]
    None,
    /// Stored with the attributes.
    Inline {
        /// Entries.
        count: u64,
        /// 12-byte entries of the first form, otherwise the second form.
        v0: bool,
        /// Byte order of the entries.
        endian: Endian,
        /// The entries.
        bytes: Box<[u8]>,
    },
    /// In a separate object, from offset 0 (legacy).
    External {
        /// The object.
        object: u64,
        /// Entries.
        count: u64,
        /// Bytes of the entries.
        bytes: u64,
        /// 12-byte entries of the first form, otherwise the second form.
        v0: bool,
    },
}

impl ZnodeAcl {
    /// The entries of an inline ACL; none for the others.
    ///
    /// # Errors
    /// As [`parse_aces`].
    pub fn aces(&self) -> Result<Vec<Ace>> {
        match self {
            ZnodeAcl::Inline { count, v0: false, endian, bytes } => {
                parse_aces(bytes, *count, *endian)
            }
            ZnodeAcl::Inline { count, v0: true, endian, bytes } => {
                parse_aces_v0(bytes, *count, *endian)
            }
            _ => Ok(Vec::new()),
        }
    }
}

/// The attributes of a file system object, from either stored form.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ZnodeAttrs {
    /// Type and permissions.
    pub mode: u64,
    /// Bytes; directories: entries + 2.
    pub size: u64,
    /// Txg of creation, not 0.
    pub generation: u64,
    /// Owner (FUID).
    pub uid: u64,
    /// Group (FUID).
    pub gid: u64,
    /// Directory of the most recent link; xattr directories: the file.
    pub parent: u64,
    /// `ZFS_*` flags.
    pub flags: u64,
    /// Last access.
    pub atime: Time,
    /// Last modification.
    pub mtime: Time,
    /// Last change of attributes.
    pub ctime: Time,
    /// Creation.
    pub crtime: Time,
    /// Hard links.
    pub links: u64,
    /// Xattr directory.
    pub xattr: Option<u64>,
    /// Device number, in the creating platform's encoding (§5.1).
    pub rdev: Option<u64>,
    /// Project.
    pub projid: Option<u64>,
    /// Change counter.
    pub seq: Option<u64>,
    /// Target of a symlink that is stored with the attributes.
    pub symlink: Option<Box<[u8]>>,
    /// Virus scanner's stamp.
    pub scanstamp: Option<[u8; 32]>,
    /// NFSv4 ACL.
    pub acl: ZnodeAcl,
    /// Packed extended attributes: [`crate::xattr::parse_sa`].
    pub dxattr: Option<Box<[u8]>>,
}

/// Attributes that every file has (chapter 06 §4.5).
const REQUIRED: [ZplAttr; 12] = [
    ZplAttr::Mode,
    ZplAttr::Gen,
    ZplAttr::Size,
    ZplAttr::Links,
    ZplAttr::Flags,
    ZplAttr::Parent,
    ZplAttr::Uid,
    ZplAttr::Gid,
    ZplAttr::Atime,
    ZplAttr::Mtime,
    ZplAttr::Ctime,
    ZplAttr::Crtime,
];

/// An attribute that a file of this type with these flags must have, but that is not in
/// `seen`, which has bit `attr as u32` for each attribute found (chapter 06 §4.5).
pub fn missing_attr(seen: u32, file_type: FileType, flags: u64) -> Option<ZplAttr> {
    let device = matches!(file_type, FileType::Char | FileType::Block);
    let project = flags & ZFS_PROJID != 0;
    let also = [device.then_some(ZplAttr::Rdev), project.then_some(ZplAttr::Projid)];
    let mut all = REQUIRED.into_iter().chain(also.into_iter().flatten());
    all.find(|a| seen & 1 << *a as u32 == 0)
}

impl ZnodeAttrs {
    /// The type according to the mode.
    pub fn file_type(&self) -> FileType {
        FileType::of_mode(self.mode)
    }

    /// From system attributes (§4, §5).
    ///
    /// # Errors
    /// `Corrupt` when an attribute that every object has is missing or of the
    /// wrong length (OpenZFS answers ENOENT).
    pub fn from_sa(sa: &Sa<'_, '_>) -> Result<ZnodeAttrs> {
        let mut z = ZnodeAttrs::default();
        let mut seen = 0u32;
        let mut aces: Option<(Endian, &[u8])> = None;
        let mut count = 0;
        for item in sa.iter() {
            let Some(attr) = item.attr else { continue };
            let (e, b) = (item.endian, item.bytes);
            let word = || u64_at(b, 0, e);
            let time =
                || Ok(Time { seconds: u64_at(b, 0, e)? as i64, nanoseconds: u64_at(b, 8, e)? });
            seen |= 1 << attr as u32;
            match attr {
                ZplAttr::Atime => z.atime = time()?,
                ZplAttr::Mtime => z.mtime = time()?,
                ZplAttr::Ctime => z.ctime = time()?,
                ZplAttr::Crtime => z.crtime = time()?,
                ZplAttr::Gen => z.generation = word()?,
                ZplAttr::Mode => z.mode = word()?,
                ZplAttr::Size => z.size = word()?,
                ZplAttr::Parent => z.parent = word()?,
                ZplAttr::Links => z.links = word()?,
                ZplAttr::Xattr => z.xattr = Some(word()?).filter(|o| *o != 0),
                ZplAttr::Rdev => z.rdev = Some(word()?),
                ZplAttr::Flags => z.flags = word()?,
                ZplAttr::Uid => z.uid = word()?,
                ZplAttr::Gid => z.gid = word()?,
                ZplAttr::Pad | ZplAttr::ZnodeAcl => {}
                ZplAttr::DaclCount => count = word()?,
                ZplAttr::Symlink => z.symlink = Some(b.into()),
                ZplAttr::Scanstamp => z.scanstamp = b.first_chunk().copied(),
                ZplAttr::DaclAces => aces = Some((e, b)),
                ZplAttr::Dxattr => z.dxattr = Some(b.into()),
                ZplAttr::Projid => z.projid = Some(word()?),
                ZplAttr::Seq => z.seq = Some(word()?),
            }
        }
        if let Some(missing) = missing_attr(seen, z.file_type(), z.flags) {
            let name = missing.name();
            return Err(Error::corrupt(format!("a file lacks its attribute {name}")));
        }
        if let Some((endian, bytes)) = aces {
            z.acl = ZnodeAcl::Inline { count, v0: false, endian, bytes: bytes.into() };
        }
        z.validated()
    }

    fn validated(self) -> Result<ZnodeAttrs> {
        if self.generation == 0 {
            return Err(Error::corrupt("a file has generation 0"));
        }
        Ok(self)
    }

    /// From a bonus buffer of type 17 (§6). `endian` is that of the dnode block.
    ///
    /// # Errors
    /// `Corrupt` when it is too short or the generation is 0.
    pub fn from_legacy(bonus: &[u8], endian: Endian) -> Result<ZnodeAttrs> {
        let (fixed, tail) = bonus
            .split_at_checked(ZNODE_PHYS_SIZE)
            .ok_or_else(|| Error::corrupt("a legacy znode is too short"))?;
        let mut r = endian.reader(fixed, "legacy znode");
        let mut time = || {
            let [s, n] = r.u64s()?;
            Ok::<_, Error>(Time { seconds: s as i64, nanoseconds: n })
        };
        let (atime, mtime, ctime, crtime) = (time()?, time()?, time()?, time()?);
        let [generation, mode, size, parent, links, xattr, rdev, flags, uid, gid] = r.u64s()?;
        let file_type = FileType::of_mode(mode);
        let inline = usize::try_from(size).ok().and_then(|n| tail.get(..n));
        let scanstamp = if flags & ZFS_BONUS_SCANSTAMP != 0 { tail.first_chunk() } else { None };
        ZnodeAttrs {
            mode,
            size,
            generation,
            uid,
            gid,
            parent,
            // Meaningless in any other form; there is no attribute PROJID here.
            flags: flags & !(ZFS_BONUS_SCANSTAMP | ZFS_PROJID),
            atime,
            mtime,
            ctime,
            crtime,
            links,
            xattr: Some(xattr).filter(|o| *o != 0),
            rdev: Some(rdev).filter(|_| matches!(file_type, FileType::Char | FileType::Block)),
            symlink: inline.filter(|_| file_type == FileType::Symlink).map(Into::into),
            scanstamp: scanstamp.copied(),
            acl: legacy_acl(fixed, endian)?,
            ..ZnodeAttrs::default()
        }
        .validated()
    }
}

/// The ACL of a legacy znode, at offset 176.
fn legacy_acl(fixed: &[u8], endian: Endian) -> Result<ZnodeAcl> {
    let mut r = endian.reader(fixed, "legacy znode");
    r.skip(176)?;
    let (object, first, version, second) = (r.u64()?, r.u32()?, r.u16()?, r.u16()?);
    let v0 = match version {
        0 => true,
        1 => false,
        _ => return Err(Error::corrupt("a legacy ACL of an unknown version")),
    };
    // The first number counts entries in version 0, bytes in version 1.
    let (count, bytes) = if v0 {
        (u64::from(first), u64::from(first) * 12)
    } else {
        (u64::from(second), u64::from(first))
    };
    if object != 0 {
        return Ok(ZnodeAcl::External { object, count, bytes, v0 });
    }
    let aces = usize::try_from(bytes)
        .ok()
        .and_then(|n| r.remaining().get(..n))
        .ok_or_else(|| Error::corrupt("a legacy ACL is larger than its room"))?;
    Ok(ZnodeAcl::Inline { count, v0, endian, bytes: aces.into() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn legacy(mode: u64, size: u64, flags: u64, tail: &[u8]) -> Vec<u8> {
        let mut words = vec![0u64; 33];
        (words[0], words[1], words[2]) = ((-5i64) as u64, 7, 20);
        (words[8], words[9], words[10], words[11], words[12]) = (9, mode, size, 34, 1);
        (words[13], words[14], words[15], words[16], words[17]) = (77, 0x803, flags, 1000, 100);
        let mut out: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        // v0 ACL: one entry, everyone@ allow 0x1.
        out[184] = 1;
        out[192..204].copy_from_slice(&[0, 0, 0, 0, 1, 0, 0, 0, 0, 0x40, 0, 0]);
        out.extend_from_slice(tail);
        out
    }

    #[test]
    fn legacy_znodes() {
        let raw = legacy(0o120777, 4, 0, b"dest");
        let z = ZnodeAttrs::from_legacy(&raw, Endian::Little).unwrap();
        assert_eq!(z.atime, Time { seconds: -5, nanoseconds: 7 });
        assert_eq!((z.generation, z.parent, z.links, z.uid, z.gid), (9, 34, 1, 1000, 100));
        assert_eq!(z.symlink.as_deref(), Some(&b"dest"[..]));
        assert_eq!((z.xattr, z.rdev, z.projid), (Some(77), None, None));
        let aces = z.acl.aces().unwrap();
        assert_eq!(
            (aces.len(), aces[0].mask, aces[0].subject()),
            (1, 1, crate::acl::Who::Everyone)
        );
        // A target that does not fit is stored in the data.
        let long = ZnodeAttrs::from_legacy(&legacy(0o120777, 5, 0, b"dest"), Endian::Little);
        assert_eq!(long.unwrap().symlink, None);
        let dev = ZnodeAttrs::from_legacy(&legacy(0o020600, 0, 0x80, &[3; 32]), Endian::Little);
        let dev = dev.unwrap();
        assert_eq!((dev.rdev, dev.scanstamp, dev.flags), (Some(0x803), Some([3; 32]), 0));
        assert!(ZnodeAttrs::from_legacy(&raw[..263], Endian::Little).is_err());
    }

    #[test]
    fn legacy_acls() {
        let mut raw = legacy(0o100644, 0, 0, b"");
        raw[184] = 7; // seven entries of twelve bytes exceed 72
        assert!(ZnodeAttrs::from_legacy(&raw, Endian::Little).is_err());
        raw[176] = 5; // unless they are elsewhere
        let z = ZnodeAttrs::from_legacy(&raw, Endian::Little).unwrap();
        assert_eq!(z.acl, ZnodeAcl::External { object: 5, count: 7, bytes: 84, v0: true });
        raw[188] = 1;
        raw[190] = 2;
        let z = ZnodeAttrs::from_legacy(&raw, Endian::Little).unwrap();
        assert_eq!(z.acl, ZnodeAcl::External { object: 5, count: 2, bytes: 7, v0: false });
        raw[188] = 2;
        assert!(ZnodeAttrs::from_legacy(&raw, Endian::Little).is_err());
    }

    #[test]
    fn directory_entries_of_the_chapter() {
        let file = DirEntry { object: 128, file_type: FileType::Regular };
        assert_eq!(DirEntry::decode(0x8000_0000_0000_0080), file);
        assert_eq!(file.encode(), 0x8000_0000_0000_0080);
        let dir = DirEntry { object: 2, file_type: FileType::Dir };
        assert_eq!(DirEntry::decode(0x4000_0000_0000_0002), dir);
        assert_eq!(DirEntry::decode(7).file_type, FileType::Unknown);
        for nibble in [0, 1, 2, 4, 6, 8, 10, 12] {
            assert_eq!(FileType::from_nibble(nibble).nibble(), nibble);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            for e in [Endian::Little, Endian::Big] {
                if let Ok(z) = ZnodeAttrs::from_legacy(&bytes, e) {
                    let _ = z.acl.aces();
                }
            }
        }
    }
}
