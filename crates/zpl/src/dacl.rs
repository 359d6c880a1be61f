//! Reading ZFS's own (NFSv4) ACLs and virus scanners' stamps (chapter 06 §6, §11).

use base::{Error, ObjectId, Result};
use dmu::{Io, Object};
use ondisk::acl::{Ace, parse_aces, parse_aces_v0};
use ondisk::sa::ZplAttr;
use ondisk::znode::ZnodeAcl;

use crate::attrs::legacy;
use crate::fs::FileSystem;

/// Bytes of the largest ACL: 1024 entries with object types.
const ACL_MAX: u64 = 48 << 10;

impl FileSystem {
    /// The ACL of a file, in its order. POSIX ACLs are not included; they are extended
    /// attributes. Every file has an ACL, which is equivalent to the mode unless another
    /// system set it.
    ///
    /// # Errors
    /// `NotFound`; `Corrupt` or `Limit` for a damaged one; those of reading.
    pub fn dacl(&self, id: ObjectId, io: Io) -> Result<Vec<Ace>> {
        self.read_consistent(id, io, || {
            let object = self.object(id, io)?;
            if let Some(znode) = legacy(&object)? {
                return self.legacy_dacl(&znode.acl, &object, io).map_err(|e| e.in_object(id));
            }
            let count = self.u64_attr(&object, ZplAttr::DaclCount, io)?.unwrap_or(0);
            let parse = |i: &ondisk::sa::SaItem<'_>| parse_aces(i.bytes, count, i.endian);
            let aces = self.with_attr(&object, ZplAttr::DaclAces, io, parse)?;
            Ok(aces.unwrap_or_default())
        })
    }

    fn legacy_dacl(&self, acl: &ZnodeAcl, object: &Object, io: Io) -> Result<Vec<Ace>> {
        let ZnodeAcl::External { object: outside, count, bytes, v0 } = acl else {
            return acl.aces();
        };
        if *bytes > ACL_MAX {
            return Err(Error::limit("an ACL has more than 1024 entries"));
        }
        let mut raw = vec![0; *bytes as usize];
        self.object(ObjectId(*outside), io)?.read_into(0, &mut raw, io)?;
        let endian = object.dnode().endian;
        if *v0 { parse_aces_v0(&raw, *count, endian) } else { parse_aces(&raw, *count, endian) }
    }

    /// The stamp that a virus scanner left on a file.
    ///
    /// # Errors
    /// `NotFound`; `Corrupt`; those of reading.
    pub fn scanstamp(&self, id: ObjectId, io: Io) -> Result<Option<[u8; 32]>> {
        let short = || Error::corrupt("a stamp of another size than 32 bytes").in_object(id);
        self.read_consistent(id, io, || {
            let object = self.object(id, io)?;
            if let Some(znode) = legacy(&object)? {
                return Ok(znode.scanstamp);
            }
            self.with_attr(&object, ZplAttr::Scanstamp, io, |item| {
                item.bytes.first_chunk().copied().ok_or_else(short)
            })
        })
    }
}
