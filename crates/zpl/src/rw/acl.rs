//! POSIX ACLs: extended attributes that are kept consistent with the mode
//! (chapter 06 §10.4).

use base::{Error, ErrorKind, ObjectId, Result};
use ondisk::acl::{PosixAce, PosixTag, parse_posix_acl};
use ondisk::znode::FileType;

use super::node::FileNode;
use super::types::{RwProps, XattrForm};
use crate::fs::FileSystem;

/// The access ACL of a file.
pub(crate) const ACCESS: &[u8] = b"system.posix_acl_access";
/// The default ACL of a directory, which new files inherit.
pub(crate) const DEFAULT: &[u8] = b"system.posix_acl_default";
const VERSION: u32 = 2;

/// Encodes an ACL in Linux's format.
pub(crate) fn encode(acl: &[PosixAce]) -> Vec<u8> {
    let mut out = VERSION.to_le_bytes().to_vec();
    for ace in acl {
        let tag: u16 = match ace.tag {
            PosixTag::UserObj => 0x01,
            PosixTag::User => 0x02,
            PosixTag::GroupObj => 0x04,
            PosixTag::Group => 0x08,
            PosixTag::Mask => 0x10,
            PosixTag::Other => 0x20,
        };
        out.extend(tag.to_le_bytes());
        out.extend(ace.perm.to_le_bytes());
        out.extend(ace.id.to_le_bytes());
    }
    out
}

fn has(acl: &[PosixAce], tag: PosixTag) -> bool {
    acl.iter().any(|a| a.tag == tag)
}

/// Whether the mode is equivalent to the ACL.
pub(crate) fn is_mode(acl: &[PosixAce]) -> bool {
    let named = [PosixTag::User, PosixTag::Group, PosixTag::Mask];
    !named.into_iter().any(|t| has(acl, t))
}

/// The tag of the entry that the group bits of the mode stand for.
fn group_tag(acl: &[PosixAce]) -> PosixTag {
    if has(acl, PosixTag::Mask) { PosixTag::Mask } else { PosixTag::GroupObj }
}

/// The mode with the permissions of the ACL.
pub(crate) fn mode_of(acl: &[PosixAce], mode: u32) -> u32 {
    let perm = |tag| acl.iter().find(|a| a.tag == tag).map_or(0, |a| u32::from(a.perm & 7));
    let (user, group, other) =
        (perm(PosixTag::UserObj), perm(group_tag(acl)), perm(PosixTag::Other));
    mode & !0o777 | user << 6 | group << 3 | other
}

/// Applies a chmod to an ACL.
pub(crate) fn chmod(acl: &mut [PosixAce], mode: u32) {
    let group = group_tag(acl);
    for ace in acl {
        let shift = match ace.tag {
            PosixTag::UserObj => 6,
            PosixTag::Other => 0,
            tag if tag == group => 3,
            _ => continue,
        };
        ace.perm = (mode >> shift & 7) as u16;
    }
}

/// Applies a directory's default ACL to a new file: returns `mode` without the bits that
/// the ACL does not grant, and adds the file's own ACLs to `xattrs`.
pub(crate) fn inherit(
    default: &[PosixAce],
    mode: u32,
    kind: FileType,
    xattrs: &mut Vec<(Vec<u8>, Vec<u8>)>,
) -> u32 {
    let mut access = default.to_vec();
    let granted = mode_of(&access, mode) & mode & 0o777;
    let mode = mode & !0o777 | granted;
    chmod(&mut access, mode);
    if !is_mode(&access) {
        xattrs.push((ACCESS.to_vec(), encode(&access)));
    }
    if kind == FileType::Dir {
        xattrs.push((DEFAULT.to_vec(), encode(default)));
    }
    mode
}

impl FileSystem {
    /// A stored ACL; `None` if there is none.
    pub(crate) fn posix_acl(&self, id: ObjectId, name: &[u8]) -> Result<Option<Vec<PosixAce>>> {
        match self.get_xattr(id, name, self.io())? {
            Some(bytes) => parse_posix_acl(&bytes)
                .map(Some)
                .map_err(|e| e.with_kind(ErrorKind::Corrupt).in_object(id)),
            None => Ok(None),
        }
    }

    /// The default ACL of `dir`.
    pub(crate) fn default_acl(
        &self,
        dir: &FileNode,
        props: &RwProps,
    ) -> Result<Option<Vec<PosixAce>>> {
        if !props.posix_acl || props.xattr == XattrForm::Off || !dir.attrs.may_have_xattrs {
            return Ok(None);
        }
        self.posix_acl(dir.id, DEFAULT)
    }
}

/// Checks an ACL that is to be set; `None` removes the ACL.
///
/// # Errors
/// `Unsupported` without `acltype=posix`; `Permission` for a default ACL of anything but a
/// directory; `Invalid` for a malformed one.
pub(crate) fn check(
    node: &FileNode,
    name: &[u8],
    value: &[u8],
    props: &RwProps,
) -> Result<Option<Vec<PosixAce>>> {
    if !props.posix_acl || node.attrs.kind == FileType::Symlink {
        return Err(Error::unsupported("the file system has no POSIX ACLs (acltype=posix)"));
    }
    if name == DEFAULT && node.attrs.kind != FileType::Dir {
        return Err(Error::permission("only directories have default ACLs"));
    }
    // Only a version: an ACL without entries.
    if value.len() <= 4 {
        return Ok(None);
    }
    parse_posix_acl(value).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(list: &[(PosixTag, u16)]) -> Vec<PosixAce> {
        let id = |tag| if matches!(tag, PosixTag::User | PosixTag::Group) { 7 } else { u32::MAX };
        list.iter().map(|&(tag, perm)| PosixAce { tag, perm, id: id(tag) }).collect()
    }

    use PosixTag::{GroupObj, Mask, Other, User, UserObj};

    #[test]
    fn encoding_is_what_parsing_takes() {
        let a = acl(&[(UserObj, 7), (User, 5), (GroupObj, 4), (Mask, 5), (Other, 0)]);
        assert_eq!(parse_posix_acl(&encode(&a)).unwrap(), a);
    }

    #[test]
    fn the_mask_is_the_groups_bits() {
        let mut a = acl(&[(UserObj, 7), (User, 6), (GroupObj, 7), (Mask, 5), (Other, 1)]);
        assert_eq!(mode_of(&a, 0o104_000), 0o104_751);
        assert!(!is_mode(&a));
        chmod(&mut a, 0o620);
        assert_eq!(a[2].perm, 7, "the group's own entry is unchanged");
        assert_eq!(mode_of(&a, 0), 0o620);
        let b = acl(&[(UserObj, 6), (GroupObj, 4), (Other, 4)]);
        assert!(is_mode(&b));
        assert_eq!(mode_of(&b, 0o40_000), 0o40_644);
    }

    #[test]
    fn children_get_no_more_than_the_default() {
        let default = acl(&[(UserObj, 7), (User, 7), (GroupObj, 5), (Mask, 7), (Other, 0)]);
        let mut xattrs = Vec::new();
        assert_eq!(inherit(&default, 0o2666, FileType::Regular, &mut xattrs), 0o2660);
        assert_eq!(xattrs.len(), 1);
        let access = parse_posix_acl(&xattrs[0].1).unwrap();
        assert_eq!(mode_of(&access, 0), 0o660);
        let mut xattrs = Vec::new();
        let plain = acl(&[(UserObj, 7), (GroupObj, 5), (Other, 5)]);
        assert_eq!(inherit(&plain, 0o777, FileType::Dir, &mut xattrs), 0o755);
        assert_eq!(xattrs.len(), 1, "a directory hands the default on");
        assert_eq!(xattrs[0].0, DEFAULT);
    }
}
