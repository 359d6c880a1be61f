//! Object set blocks (chapter 03 §5).

use base::{Error, Result};

use crate::dnode::{DNODE_SIZE, Dnode};
use crate::endian::Endian;
use crate::objtype::ObjType;

/// Bytes of the intent log header inside the block.
pub const ZIL_HEADER_SIZE: usize = 192;
/// Bytes of an object set block as it is written today.
pub const OBJSET_SIZE: usize = 4096;
/// Bytes without accounting: the oldest form.
pub const OBJSET_SIZE_V1: usize = 1024;
/// Bytes with accounting of users and groups.
pub(crate) const OBJSET_SIZE_V2: usize = 2048;
/// `os_flags`: user and group accounting is complete.
pub const FLAG_USER_ACCOUNTED: u64 = 1;
/// `os_flags`: counting of objects is complete.
pub const FLAG_USEROBJ_ACCOUNTED: u64 = 2;
/// `os_flags`: accounting to projects is complete.
pub const FLAG_PROJECT_ACCOUNTED: u64 = 4;
const ZIL_HEADER_AT: usize = 512;
const TYPE_AT: usize = 704;
const FLAGS_AT: usize = 712;
const PORTABLE_MAC_AT: usize = 720;
const LOCAL_MAC_AT: usize = 752;
/// Bytes of each of the two MACs of an encrypted dataset.
pub const OBJSET_MAC_SIZE: usize = 32;
const USER_USED_AT: usize = 1024;
const GROUP_USED_AT: usize = 1536;
const PROJECT_USED_AT: usize = 2048;

/// Byte offsets of the dnodes of the accounting: users, groups, projects.
pub const SPECIAL_DNODES_AT: [usize; 3] = [USER_USED_AT, GROUP_USED_AT, PROJECT_USED_AT];

/// The kind of an object set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjsetType {
    /// The meta object set.
    Meta,
    /// A file system.
    Zfs,
    /// A volume.
    Zvol,
    /// Tests.
    Other,
}

impl ObjsetType {
    /// zdb's name for it.
    pub fn name(self) -> &'static str {
        match self {
            ObjsetType::Meta => "META",
            ObjsetType::Zfs => "ZPL",
            ObjsetType::Zvol => "ZVOL",
            ObjsetType::Other => "OTHER",
        }
    }
}

/// A checked object set block.
#[derive(Clone, Debug, PartialEq)]
pub struct ObjsetPhys {
    /// Bytes of the block: 1024, 2048 or 4096. The smaller sizes come from old pools
    /// and are kept until more space is needed.
    pub size: usize,
    /// The object whose data contains all other dnodes.
    pub meta_dnode: Dnode,
    /// The intent log header's bytes; parsed by `crate::zil`.
    pub zil_header: [u8; ZIL_HEADER_SIZE],
    /// Kind.
    pub kind: ObjsetType,
    /// `os_flags` (chapter 03 §5).
    pub flags: u64,
    /// MAC of the tree of dnodes; zero unless the dataset is encrypted (chapter 08 §A.11).
    pub portable_mac: [u8; OBJSET_MAC_SIZE],
    /// MAC of the accounting; zero without complete accounting.
    pub local_mac: [u8; OBJSET_MAC_SIZE],
    /// Byte order of the block.
    pub endian: Endian,
    /// Space by user, if accounted.
    pub user_used: Option<Dnode>,
    /// Space by group, if accounted.
    pub group_used: Option<Dnode>,
    /// Space by project, if accounted.
    pub project_used: Option<Dnode>,
}

impl ObjsetPhys {
    /// The object set block to write, little-endian: of its present size, or of the
    /// next size that holds its dnodes.
    ///
    /// # Errors
    /// `Invalid` if a dnode cannot be written or is larger than one slot.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let needed = match self {
            ObjsetPhys { project_used: Some(_), .. } => OBJSET_SIZE,
            ObjsetPhys { user_used: None, group_used: None, .. } => OBJSET_SIZE_V1,
            _ => OBJSET_SIZE_V2,
        };
        let mut out = vec![0; self.size.max(needed).min(OBJSET_SIZE)];
        let special = [&self.user_used, &self.group_used, &self.project_used];
        let special = special.into_iter().zip([USER_USED_AT, GROUP_USED_AT, PROJECT_USED_AT]);
        let special = special.filter_map(|(dnode, at)| Some((dnode.as_ref()?, at)));
        for (dnode, at) in std::iter::once((&self.meta_dnode, 0)).chain(special) {
            dnode.encode(&mut out[at..at + DNODE_SIZE])?;
        }
        let kind: u64 = match self.kind {
            ObjsetType::Meta => 1,
            ObjsetType::Zfs => 2,
            ObjsetType::Zvol => 3,
            ObjsetType::Other => 4,
        };
        out[ZIL_HEADER_AT..ZIL_HEADER_AT + ZIL_HEADER_SIZE].copy_from_slice(&self.zil_header);
        out[TYPE_AT..TYPE_AT + 8].copy_from_slice(&kind.to_le_bytes());
        out[FLAGS_AT..FLAGS_AT + 8].copy_from_slice(&self.flags.to_le_bytes());
        for (mac, at) in [(&self.portable_mac, PORTABLE_MAC_AT), (&self.local_mac, LOCAL_MAC_AT)] {
            out[at..at + OBJSET_MAC_SIZE].copy_from_slice(mac);
        }
        Ok(out)
    }

    /// Parses an object set block of 1, 2 or 4 KiB.
    ///
    /// # Errors
    /// `Corrupt` when it is shorter, of no known type, or its dnodes are invalid.
    pub fn parse(bytes: &[u8], endian: Endian) -> Result<ObjsetPhys> {
        let cut = || Error::corrupt("object set block is cut off");
        let slot = |at: usize| bytes.get(at..at + DNODE_SIZE);
        let meta_dnode = Dnode::parse(slot(0).ok_or_else(cut)?, endian)?
            .filter(|d| d.object_type == ObjType::DNODE)
            .ok_or_else(|| Error::corrupt("object set without a meta-dnode"))?;
        if meta_dnode.data_block_size as usize != crate::dnode::DNODE_BLOCK_SIZE {
            return Err(Error::corrupt("meta-dnode with odd block size"));
        }
        let zil_header =
            *bytes.get(ZIL_HEADER_AT..).and_then(|b| b.first_chunk()).ok_or_else(cut)?;
        let kind = match endian.u64(bytes, TYPE_AT).ok_or_else(cut)? {
            1 => ObjsetType::Meta,
            2 => ObjsetType::Zfs,
            3 => ObjsetType::Zvol,
            4 => ObjsetType::Other,
            t => return Err(Error::corrupt(format!("object set of unknown type {t}"))),
        };
        let mac = |at: usize| bytes.get(at..).and_then(|b| b.first_chunk()).copied();
        // Blocks of older pools end before these fields, which do not exist then.
        let used = |at: usize| match slot(at) {
            Some(raw) => Dnode::parse(raw, endian),
            None => Ok(None),
        };
        let size = match bytes.len() {
            ..OBJSET_SIZE_V2 => OBJSET_SIZE_V1,
            OBJSET_SIZE_V2..OBJSET_SIZE => OBJSET_SIZE_V2,
            _ => OBJSET_SIZE,
        };
        Ok(ObjsetPhys {
            size,
            meta_dnode,
            zil_header,
            kind,
            flags: endian.u64(bytes, FLAGS_AT).ok_or_else(cut)?,
            portable_mac: mac(PORTABLE_MAC_AT).ok_or_else(cut)?,
            local_mac: mac(LOCAL_MAC_AT).ok_or_else(cut)?,
            endian,
            user_used: used(USER_USED_AT)?,
            group_used: used(GROUP_USED_AT)?,
            project_used: used(PROJECT_USED_AT)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_three_sizes() {
        let mut raw = vec![0u8; 4096];
        raw[..10].copy_from_slice(&[10, 17, 6, 3, 0, 0, 0, 1, 0x20, 0]);
        raw[704] = 2;
        raw[2048..2058].copy_from_slice(&[39, 17, 1, 3, 0, 0, 0, 1, 1, 0]);
        raw[720..784].fill(7);
        let v3 = ObjsetPhys::parse(&raw, Endian::Little).unwrap();
        assert_eq!(v3.kind, ObjsetType::Zfs);
        assert!(v3.project_used.is_some() && v3.user_used.is_none());
        assert!(ObjsetPhys::parse(&raw[..2048], Endian::Little).unwrap().project_used.is_none());
        assert!(ObjsetPhys::parse(&raw[..1024], Endian::Little).is_ok());
        assert!(ObjsetPhys::parse(&raw[..700], Endian::Little).is_err());
        assert_eq!(v3.encode().unwrap(), raw);
        raw[704] = 9;
        assert!(ObjsetPhys::parse(&raw, Endian::Little).is_err());
    }
}
