//! Extended attributes, in both stores (chapter 06 §10).
//!
//! # Theory
//! The packed list among the system attributes is searched first, then the hidden
//! directory. Names of the namespace `user.` may be stored with or without the prefix; a
//! stored name without a known prefix belongs to it.

use base::limits::XATTR_SIZE_MAX;
use base::{Error, ErrorKind, ObjectId, Result};
use dmu::{Io, Object};
use nvlist::{NvList, Value};

use ondisk::sa::ZplAttr;
use ondisk::xattr::{linux_name, stored_names};
use ondisk::znode::FileType;

use crate::attrs::legacy;
use crate::fs::FileSystem;

/// Names in one file's list.
const NAMES_MAX: usize = 1 << 20;

/// How often the file of an attribute is looked up again after it was replaced.
const REPLACED_MAX: usize = 64;

/// The stores of a file's extended attributes.
#[derive(Default)]
pub(crate) struct Stores {
    pub(crate) list: Option<NvList>,
    pub(crate) dir: Option<ObjectId>,
}

impl FileSystem {
    pub(crate) fn xattr_stores(&self, id: ObjectId, io: Io) -> Result<Stores> {
        self.read_consistent(id, io, || self.stores_now(id, io))
    }

    fn stores_now(&self, id: ObjectId, io: Io) -> Result<Stores> {
        let object = self.object(id, io)?;
        if !self.attrs_of(&object, io)?.may_have_xattrs {
            return Ok(Stores::default());
        }
        if let Some(znode) = legacy(&object)? {
            return Ok(Stores { list: None, dir: znode.xattr.map(ObjectId) });
        }
        let list = self.with_attr(&object, ZplAttr::Dxattr, io, |item| match item.bytes {
            [] => Ok(NvList::new()),
            packed => NvList::unpack(packed),
        })?;
        let dir = self.u64_attr(&object, ZplAttr::Xattr, io)?;
        Ok(Stores { list, dir: dir.filter(|id| *id != 0).map(ObjectId) })
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
            names.extend(pairs.filter_map(|(name, _)| linux_name(name.as_bytes())));
        }
        let from_list = names.len();
        let mut cookie = stores.dir.map(|_| 0);
        while let (Some(dir), Some(at)) = (stores.dir, cookie) {
            let page = self.readdir(dir, at, io)?;
            let regular = page.entries.iter().filter(|e| e.kind != FileType::Dir);
            let fresh = regular.filter_map(|e| linux_name(&e.name));
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
    /// Those of [`stored_names`] for a bad name; `Limit` for a value above
    /// [`XATTR_SIZE_MAX`]; `Corrupt` when a store is
    /// damaged, those of reading.
    pub fn get_xattr(&self, id: ObjectId, name: &[u8], io: Io) -> Result<Option<Vec<u8>>> {
        let names = stored_names(name, false)?;
        let stores = self.xattr_stores(id, io)?;
        for stored in [Some(&names.first), names.second.as_ref()].into_iter().flatten() {
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
        for _ in 0..REPLACED_MAX {
            match self.file_xattr_now(dir, name, io) {
                // The attribute was replaced between the look-up of its name and that of
                // its file.
                Err(e) if e.kind() == ErrorKind::NotFound && self.rw_part().is_some() => {}
                other => return other,
            }
        }
        Err(Error::corrupt("extended attribute whose file does not exist").in_object(dir))
    }

    fn file_xattr_now(&self, dir: ObjectId, name: &[u8], io: Io) -> Result<Option<Vec<u8>>> {
        let find = || self.find_in(self.directory(dir, io)?, name, io);
        let Some(found) = self.read_consistent(dir, io, find)? else { return Ok(None) };
        self.read_consistent(found.id, io, || {
            let object = self.object(found.id, io)?;
            let attrs = self.attrs_of(&object, io)?;
            if attrs.kind != FileType::Regular {
                return Ok(None);
            }
            read_whole(&object, attrs.size, io).map(Some)
        })
    }
}

fn read_whole(object: &Object, size: u64, io: Io) -> Result<Vec<u8>> {
    if size > XATTR_SIZE_MAX as u64 {
        return Err(Error::limit("extended attribute is too large").in_object(object.id()));
    }
    let pieces = object.read_clipped(size, 0, size as usize, io)?;
    Ok(pieces.iter().flat_map(|b| b.iter().copied()).collect())
}
