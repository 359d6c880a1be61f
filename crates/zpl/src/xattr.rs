//! Extended attributes, in both stores (chapter 06 §10).
//!
//! # Theory
//! The packed list among the system attributes is searched first, then the
//! hidden directory. The namespace `user.` may be stored with or without its
//! prefix; a stored name without any known prefix belongs to it.

use base::limits::XATTR_SIZE_MAX;
use base::{Error, ObjectId, Result};
use dmu::{Io, Object};
use nvlist::{NvList, Value};

use crate::attrs::{FileKind, Form, form_of};
use crate::file::read_clipped;
use crate::fs::FileSystem;
use crate::sa::Attr;
use crate::znode::Znode;

const USER: &[u8] = b"user.";
/// Names of other namespaces; what FreeBSD's system namespace holds is hidden.
const PREFIXES: [&[u8]; 4] = [b"security.", b"system.", b"trusted.", USER];
const FREEBSD: &[u8] = b"freebsd:";
/// Names in one file's list.
const NAMES_MAX: usize = 1 << 20;

/// The name as Linux lists it; `None` when it is hidden.
fn listed(stored: &[u8]) -> Option<Vec<u8>> {
    if stored.starts_with(FREEBSD) {
        return None;
    }
    if PREFIXES.iter().any(|p| stored.starts_with(p)) {
        return Some(stored.to_vec());
    }
    Some([USER, stored].concat())
}

/// The form without prefix under which a name of the user's may be stored too.
fn bare(name: &[u8]) -> Option<&[u8]> {
    let rest = name.strip_prefix(USER)?;
    let reserved = rest.is_empty()
        || rest.starts_with(FREEBSD)
        || PREFIXES.iter().any(|p| rest.starts_with(p));
    (!reserved).then_some(rest)
}

/// Where a file keeps its attributes.
#[derive(Default)]
struct Stores {
    list: Option<NvList>,
    dir: Option<ObjectId>,
}

impl FileSystem {
    fn xattr_stores(&self, id: ObjectId, io: Io) -> Result<Stores> {
        let object = self.object(id, io)?;
        if !self.attrs_of(&object, io)?.may_have_xattrs {
            return Ok(Stores::default());
        }
        if form_of(&object)? == Form::Znode {
            let dnode = object.dnode();
            let dir = Znode::parse(&dnode.bonus, dnode.endian).map_err(|e| e.in_object(id))?.xattr;
            return Ok(Stores { list: None, dir: (dir != 0).then_some(ObjectId(dir)) });
        }
        self.with_sa(&object, io, |sa| {
            let packed = sa.bytes(Attr::Dxattr).filter(|b| !b.is_empty());
            let list = packed.map(NvList::unpack).transpose().map_err(|e| e.in_object(id))?;
            let dir = sa.u64(Attr::Xattr).filter(|id| *id != 0).map(ObjectId);
            Ok(Stores { list, dir })
        })
    }

    /// The hidden directory with a file's extended attributes, if it has one.
    ///
    /// # Errors
    /// As [`FileSystem::attrs`].
    pub fn xattr_directory(&self, id: ObjectId, io: Io) -> Result<Option<ObjectId>> {
        Ok(self.xattr_stores(id, io)?.dir)
    }

    /// The names of a file's extended attributes as Linux shows them, in the
    /// order of their stores.
    ///
    /// # Errors
    /// `Corrupt` when a store is damaged, those of reading.
    pub fn list_xattrs(&self, id: ObjectId, io: Io) -> Result<Vec<Vec<u8>>> {
        let stores = self.xattr_stores(id, io)?;
        let mut names: Vec<Vec<u8>> = Vec::new();
        if let Some(list) = &stores.list {
            let pairs = list.iter().filter(|(_, v)| matches!(v, Value::ByteArray(_)));
            names.extend(pairs.filter_map(|(name, _)| listed(name.as_bytes())));
        }
        let from_list = names.len();
        let mut cookie = stores.dir.map(|_| 0);
        while let (Some(dir), Some(at)) = (stores.dir, cookie) {
            let page = self.readdir(dir, at, io)?;
            let regular = page.entries.iter().filter(|e| e.kind != FileKind::Dir);
            let fresh = regular.filter_map(|e| listed(&e.name));
            let fresh: Vec<_> = fresh.filter(|n| !names[..from_list].contains(n)).collect();
            names.extend(fresh);
            if names.len() > NAMES_MAX {
                return Err(Error::limit("too many extended attributes").in_object(id));
            }
            cookie = page.next;
        }
        Ok(names)
    }

    /// The value of the extended attribute `name`, with its namespace's prefix;
    /// `None` if there is none. POSIX ACLs are `system.posix_acl_access` and
    /// `system.posix_acl_default`, in Linux's format.
    ///
    /// # Errors
    /// `Limit` for a value above [`XATTR_SIZE_MAX`], `Corrupt` when a store is
    /// damaged, those of reading.
    pub fn get_xattr(&self, id: ObjectId, name: &[u8], io: Io) -> Result<Option<Vec<u8>>> {
        let stores = self.xattr_stores(id, io)?;
        for stored in [Some(name), bare(name)].into_iter().flatten() {
            if let Some(Value::ByteArray(value)) =
                stores.list.as_ref().and_then(|l| l.get_bytes(stored))
            {
                return Ok(Some(value.to_vec()));
            }
            if let Some(dir) = stores.dir
                && let Some(value) = self.file_xattr(dir, stored, io)?
            {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    fn file_xattr(&self, dir: ObjectId, name: &[u8], io: Io) -> Result<Option<Vec<u8>>> {
        let Some(found) = self.find_in(self.directory(dir, io)?, name, io)? else {
            return Ok(None);
        };
        let object = self.object(found.id, io)?;
        let attrs = self.attrs_of(&object, io)?;
        if attrs.kind != FileKind::Regular {
            return Ok(None);
        }
        read_whole(&object, attrs.size, io).map(Some)
    }
}

fn read_whole(object: &Object, size: u64, io: Io) -> Result<Vec<u8>> {
    if size > XATTR_SIZE_MAX as u64 {
        return Err(Error::limit("extended attribute is too large").in_object(object.id()));
    }
    let pieces = read_clipped(object, size, 0, size as usize, io)?;
    Ok(pieces.iter().flat_map(|b| b.iter().copied()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_as_linux_shows_them() {
        assert_eq!(listed(b"user.x"), Some(b"user.x".to_vec()));
        assert_eq!(listed(b"x"), Some(b"user.x".to_vec()));
        assert_eq!(listed(b"trusted.t"), Some(b"trusted.t".to_vec()));
        assert_eq!(listed(b"system.posix_acl_access"), Some(b"system.posix_acl_access".to_vec()));
        assert_eq!(listed(b"freebsd:system:x"), None);
    }

    #[test]
    fn the_form_without_prefix() {
        assert_eq!(bare(b"user.x"), Some(&b"x"[..]));
        assert_eq!(bare(b"trusted.x"), None);
        assert_eq!(bare(b"user.trusted.x"), None);
        assert_eq!(bare(b"user.freebsd:x"), None);
        assert_eq!(bare(b"user."), None);
    }
}
