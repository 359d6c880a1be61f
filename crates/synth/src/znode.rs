//! The attributes of a file: system attributes in the bonus (chapter 06 §4, §5, §11).

use base::{Error, Result, Txg};
use ondisk::acl::{encode_aces, trivial_acl};
use ondisk::sa::{SaTables, ZplAttr, encode_buffer};
use ondisk::znode::{
    ZFS_ACL_AUTO_INHERIT, ZFS_ACL_TRIVIAL, ZFS_ARCHIVE, ZFS_AV_MODIFIED, ZFS_NO_EXECS_DENIED,
};

/// The only layout: that of files and directories without project quota.
pub(crate) const LAYOUT: u16 = 2;
/// Its attributes (chapter 06 §4.5).
pub(crate) const LAYOUT_ATTRS: [ZplAttr; 14] = [
    ZplAttr::Mode,
    ZplAttr::Size,
    ZplAttr::Gen,
    ZplAttr::Uid,
    ZplAttr::Gid,
    ZplAttr::Parent,
    ZplAttr::Flags,
    ZplAttr::Atime,
    ZplAttr::Mtime,
    ZplAttr::Ctime,
    ZplAttr::Crtime,
    ZplAttr::Links,
    ZplAttr::DaclCount,
    ZplAttr::DaclAces,
];
/// Attributes that OpenZFS 2.3 registers: all but the newest.
pub(crate) const REGISTERED: usize = 22;
/// Type bits of a mode.
pub(crate) const S_IFDIR: u64 = 0o040_000;
/// Type bits of a mode.
pub(crate) const S_IFREG: u64 = 0o100_000;

/// The attributes of a file or directory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Znode {
    /// With type bits.
    pub(crate) mode: u64,
    pub(crate) size: u64,
    pub(crate) uid: u64,
    pub(crate) gid: u64,
    pub(crate) parent: u64,
    pub(crate) links: u64,
    /// Modification and access, seconds.
    pub(crate) mtime: u64,
    /// Creation and change, seconds.
    pub(crate) crtime: u64,
}

/// The tables with the one layout.
pub(crate) fn tables() -> Result<SaTables> {
    let mut tables = SaTables::standard();
    tables.add_layout(LAYOUT, &LAYOUT_ATTRS.map(|a| a as u16))?;
    Ok(tables)
}

impl Znode {
    pub(crate) fn is_dir(&self) -> bool {
        self.mode & 0o170_000 == S_IFDIR
    }

    fn flags(&self) -> u64 {
        let mut flags = ZFS_ARCHIVE | ZFS_AV_MODIFIED | ZFS_ACL_TRIVIAL;
        if self.is_dir() {
            flags |= ZFS_ACL_AUTO_INHERIT;
        }
        if self.mode & 0o111 == 0o111 {
            flags |= ZFS_NO_EXECS_DENIED;
        }
        flags
    }

    /// The bonus buffer.
    pub(crate) fn bonus(&self, tables: &SaTables, txg: Txg) -> Result<Vec<u8>> {
        let acl = trivial_acl(self.mode, self.is_dir());
        let count = acl.len() as u64;
        let words = [
            self.mode,
            self.size,
            txg.0,
            self.uid,
            self.gid,
            self.parent,
            self.flags(),
            self.mtime,
            0,
            self.mtime,
            0,
            self.crtime,
            0,
            self.crtime,
            0,
            self.links,
            count,
        ];
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        let aces = encode_aces(&acl);
        let mut values: Vec<&[u8]> = Vec::with_capacity(LAYOUT_ATTRS.len());
        let mut rest = &bytes[..];
        for attr in &LAYOUT_ATTRS[..LAYOUT_ATTRS.len() - 1] {
            let (value, after) = rest
                .split_at_checked(usize::from(attr.length()))
                .ok_or_else(|| Error::bug("the attributes do not fit their layout"))?;
            values.push(value);
            rest = after;
        }
        values.push(&aces);
        encode_buffer(tables, LAYOUT, &values)
    }
}
