//! Properties of a file that only intent log records can set: its ZFS (NFSv4) ACL,
//! attributes beyond POSIX, owners of other systems (chapter 06 §11, §12, §17).
//!
//! # Theory
//! No call of Linux sets these, so [`super::SetAttrs`] does not have them. A log that
//! FreeBSD or illumos left may have them. A replay passes them to the same code as calls,
//! which produces the result of that system: an ACL determines the permissions of the mode,
//! and the file's flags say what kind of ACL it is (§11.3, §11.4, §11.5).
//!
//! Owners of other systems are FUIDs (§12): the record has the names of their domains, the
//! file system has a table of those. A domain is added to the table in a transaction of its
//! own, before the record's. A crash in between leaves an unused domain, which is found
//! when the record is replayed again.
//!
//! # Departures from OpenZFS
//! * A record that sets OPAQUE and APPENDONLY at once sets OPAQUE by its own bit alone:
//!   OpenZFS logs both by APPENDONLY's (§17).

use base::{Error, ObjectId, Result};
use dmu::{ObjectSpec, zaps};
use ondisk::ObjType;
use ondisk::acl::{ACE_DIR_INHERIT, ACE_FILE_INHERIT, Ace, is_trivial, mode_of_acl, trivial_acl};
use ondisk::zap::ZapValue;
use ondisk::zil::{XAT_PROJID, Xvattr};
use ondisk::znode::{
    self, Time, ZFS_ACL_AUTO_INHERIT, ZFS_ACL_DEFAULTED, ZFS_ACL_OBJ_ACE, ZFS_ACL_PROTECTED,
    ZFS_ACL_TRIVIAL, ZFS_INHERIT_ACE, ZFS_NO_EXECS_DENIED,
};

use super::journal::XVATTR_FLAGS;
use super::make::{DNODE_BLOCK, entry_cost};
use super::node::words;
use crate::fs::FileSystem;
use crate::master::MASTER_NODE;

/// Bits of an xvattr section (§17).
const XAT_CRTIME: u32 = 0x1;
const XAT_APPENDONLY: u32 = 0x80;
const XAT_OPAQUE: u32 = 0x200;
const XAT_SCANSTAMP: u32 = 0x1000;
/// The generation; a record of a new file has it in another field.
const XAT_GEN: u32 = 0x4000;
/// Flags that Cenote does not set by itself.
const OTHER_FLAGS: [(u32, u64); 3] = [
    (XAT_OPAQUE, znode::ZFS_OPAQUE),
    (0x400, znode::ZFS_AV_QUARANTINED),
    (0x800, znode::ZFS_AV_MODIFIED),
];
/// Flags of an ACL in a record.
const ACL_AUTO_INHERIT: u64 = 1;
const ACL_PROTECTED: u64 = 2;
const ACL_DEFAULTED: u64 = 4;
/// First version whose files have foreign owners.
const VERSION_FUIDS: u64 = 3;
/// The table of domains (§12).
const FUID_TABLE: ObjType = ObjType(35);
const FUID_TABLE_SIZE: ObjType = ObjType(36);
const FUID_BLOCK: u32 = 16_384;

/// Flags of a file that describe its ACL (§5.2).
pub(crate) const DACL_FLAGS: u64 = ZFS_INHERIT_ACE
    | ZFS_ACL_TRIVIAL
    | ZFS_ACL_OBJ_ACE
    | ZFS_ACL_PROTECTED
    | ZFS_ACL_DEFAULTED
    | ZFS_ACL_AUTO_INHERIT
    | ZFS_NO_EXECS_DENIED;

/// A file's ACL, with the mode and flags that follow from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Dacl {
    pub(crate) aces: Vec<Ace>,
    /// The mode, type bits included.
    pub(crate) mode: u64,
    /// Those of [`DACL_FLAGS`] that are set.
    pub(crate) flags: u64,
}

impl Dacl {
    /// The ACL equivalent to `mode`.
    pub(crate) fn of_mode(mode: u64, is_dir: bool) -> Dacl {
        let inherits = if is_dir { ZFS_ACL_AUTO_INHERIT } else { 0 };
        let execs = if mode & 0o111 == 0o111 { ZFS_NO_EXECS_DENIED } else { 0 };
        let flags = ZFS_ACL_TRIVIAL | inherits | execs;
        Dacl { aces: trivial_acl(mode, is_dir), mode, flags }
    }

    /// An explicit ACL: `flags` is from the record, `mode` is the file's previous mode,
    /// `owners` are the file's owners.
    pub(crate) fn explicit(
        aces: &[Ace],
        flags: u64,
        mode: u64,
        owners: (u64, u64),
        is_dir: bool,
    ) -> Dacl {
        let amounts = mode_of_acl(aces, mode, owners.0, owners.1);
        let bit = |on: bool, bit: u64| if on { bit } else { 0 };
        let heirs = |a: &Ace| a.flags & (ACE_FILE_INHERIT | ACE_DIR_INHERIT) != 0;
        let flags = bit(flags & ACL_AUTO_INHERIT != 0, ZFS_ACL_AUTO_INHERIT)
            | bit(flags & ACL_PROTECTED != 0, ZFS_ACL_PROTECTED)
            | bit(flags & ACL_DEFAULTED != 0, ZFS_ACL_DEFAULTED)
            | bit(is_dir && aces.iter().any(heirs), ZFS_INHERIT_ACE)
            | bit(is_trivial(aces), ZFS_ACL_TRIVIAL)
            | bit(aces.iter().any(|a| a.object_types.is_some()), ZFS_ACL_OBJ_ACE)
            | bit(amounts.no_execs_denied, ZFS_NO_EXECS_DENIED);
        Dacl { aces: aces.to_vec(), mode: amounts.mode, flags }
    }
}

/// The data of a record beyond what a call can set.
#[derive(Clone, Debug, Default)]
pub(crate) struct RecordAttrs {
    /// The ACL, and its flags.
    pub(crate) acl: Option<(Vec<Ace>, u64)>,
    /// Flags of the file: a mask, and their values.
    pub(crate) flags: (u64, u64),
    /// Time of creation.
    pub(crate) crtime: Option<Time>,
    /// Stamp of a virus scanner.
    pub(crate) scanstamp: Option<[u8; 32]>,
    /// Project.
    pub(crate) project: Option<u64>,
    /// Owner and group (FUIDs), where they change.
    pub(crate) owner: Option<u64>,
    pub(crate) group: Option<u64>,
}

impl RecordAttrs {
    /// Parses an xvattr section.
    ///
    /// # Errors
    /// `Unsupported` for unknown attributes; `Corrupt` if a project and a stamp are both
    /// requested, because they use the same bytes.
    pub(crate) fn of(x: &Xvattr) -> Result<RecordAttrs> {
        let [requested, others @ ..] = x.requested;
        let table = || XVATTR_FLAGS.iter().chain(&OTHER_FLAGS);
        let plain = XAT_CRTIME | XAT_SCANSTAMP | XAT_GEN | XAT_PROJID;
        let known = table().fold(plain, |all, (bit, _)| all | bit);
        if requested & !known != 0 || others != [0, 0] {
            return Err(Error::unsupported("unknown attributes in an intent log"));
        }
        if requested & XAT_SCANSTAMP != 0 && requested & XAT_PROJID != 0 {
            return Err(Error::corrupt("a record of the intent log has a stamp and a project"));
        }
        let mut record_attrs = RecordAttrs::default();
        for (bit, flag) in table().filter(|(bit, _)| requested & bit != 0) {
            let alias = *bit == XAT_OPAQUE && requested & XAT_APPENDONLY == 0;
            let mask = u64::from(if alias { bit | XAT_APPENDONLY } else { *bit });
            record_attrs.flags.0 |= flag;
            record_attrs.flags.1 |= if x.values & mask != 0 { *flag } else { 0 };
        }
        if requested & XAT_CRTIME != 0 {
            let [seconds, nanoseconds] = x.crtime;
            record_attrs.crtime = Some(Time { seconds: seconds as i64, nanoseconds });
        }
        if requested & XAT_SCANSTAMP != 0 {
            record_attrs.scanstamp = Some(x.scanstamp);
        }
        if requested & XAT_PROJID != 0 {
            let word = x.scanstamp.first_chunk::<4>().copied().unwrap_or_default();
            record_attrs.project = Some(u64::from(u32::from_le_bytes(word)));
        }
        Ok(record_attrs)
    }
}

/// A record's domains: their indices in the file system's table.
pub(crate) struct Domains(Vec<u32>);

impl Domains {
    /// As many domains with arbitrary indices; for checking a record, not for use.
    pub(crate) fn unknown(domains: &[&[u8]]) -> Domains {
        let index = |(i, d): (usize, &&[u8])| if d.is_empty() { 0 } else { i as u32 + 1 };
        Domains(domains.iter().enumerate().map(index).collect())
    }

    /// The FUID for an id of the record.
    ///
    /// # Errors
    /// `Corrupt` for a domain that the record does not have.
    pub(crate) fn fuid(&self, logged: u64) -> Result<u64> {
        let Some(at) = (logged >> 32).checked_sub(1) else { return Ok(logged) };
        let index = usize::try_from(at).ok().and_then(|at| self.0.get(at)).filter(|i| **i != 0);
        let none = || Error::corrupt("a record of the intent log lacks the domain of an id");
        index.map(|i| u64::from(*i) << 32 | logged & 0xffff_ffff).ok_or_else(none)
    }
}

impl FileSystem {
    /// The domains of a record; new ones are added to the table. The caller must not have a
    /// transaction open.
    ///
    /// # Errors
    /// `Unsupported` before version 3; `Limit` for too many; `Corrupt` for a damaged table;
    /// those of writing it.
    pub(crate) fn domains(&self, domains: &[&[u8]]) -> Result<Domains> {
        let one = |d: &&[u8]| if d.is_empty() { Ok(0) } else { self.ensure_domain(d) };
        domains.iter().map(one).collect::<Result<_>>().map(Domains)
    }

    fn ensure_domain(&self, domain: &[u8]) -> Result<u32> {
        if self.props().version < VERSION_FUIDS {
            return Err(Error::unsupported("the file system is too old for foreign ids"));
        }
        let rw = self.rw_always()?;
        let _tables = rw.layouts.lock();
        let mut table = self.fuid_domains(self.io())?;
        if let Some(index) = table.index_of(domain) {
            return Ok(index);
        }
        let index = table.add(domain)?;
        let packed = table.pack()?;
        let size = words(&[packed.len() as u64]);
        let cost = packed.len() as u64 + u64::from(FUID_BLOCK) + 3 * DNODE_BLOCK;
        let cost = cost + entry_cost(&self.object(MASTER_NODE, self.io())?);
        let os = self.os();
        let tx = self.begin_tx(cost, false)?;
        let id = match self.fuid_table() {
            Some(id) => {
                os.set_bonus(&tx, id, &size)?;
                id
            }
            None => {
                let spec = ObjectSpec {
                    object_type: FUID_TABLE,
                    block_size: FUID_BLOCK,
                    bonus_type: FUID_TABLE_SIZE,
                    bonus: size,
                    ..ObjectSpec::default()
                };
                let id = os.allocate(&tx, &spec)?;
                let _turn = rw.seqlock.write(MASTER_NODE);
                zaps::add(os, &tx, MASTER_NODE, b"FUID", &ZapValue::from_u64(id.0))?;
                *rw.fuids.lock() = Some(id);
                id
            }
        };
        os.write(&tx, id, 0, &packed)?;
        Ok(index)
    }

    /// The table of domains, if there is one.
    pub(crate) fn fuid_table(&self) -> Option<ObjectId> {
        self.rw_part().and_then(|rw| *rw.fuids.lock()).or(self.props().fuid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::ErrorKind;
    use ondisk::acl::{ACE_ALLOW, ACE_DENY, ACE_EVERYONE, ACE_OWNER};

    fn ace(kind: u16, flags: u16, mask: u32, who: u64) -> Ace {
        Ace { kind, flags, mask, who, object_types: None }
    }

    #[test]
    fn an_acl_decides_mode_and_flags() {
        let (mode, owners) = (0o104_755, (5, 6));
        let trivial = Dacl::of_mode(0o100_640, false);
        let again = Dacl::explicit(&trivial.aces, 0, mode, owners, false);
        assert_eq!((again.mode, again.flags), (0o104_640, ZFS_ACL_TRIVIAL));
        let dir = Dacl::of_mode(0o40_755, true);
        assert_eq!(
            Dacl::explicit(&dir.aces, ACL_AUTO_INHERIT, 0o40_000, owners, true),
            dir,
            "a directory's own ACL, given"
        );
        let list = [
            ace(ACE_DENY, 0, 0x20, 9),
            ace(ACE_ALLOW, ACE_OWNER | ACE_FILE_INHERIT, 0x23, 0),
            ace(ACE_ALLOW, ACE_EVERYONE, 0x21, 0),
        ];
        let record_attrs =
            Dacl::explicit(&list, ACL_PROTECTED | ACL_DEFAULTED, 0o40_000, owners, true);
        assert_eq!(record_attrs.mode, 0o40_755);
        assert_eq!(record_attrs.flags, ZFS_ACL_PROTECTED | ZFS_ACL_DEFAULTED | ZFS_INHERIT_ACE);
        // Nothing is inherited from a file.
        let file = Dacl::explicit(&list, 0, 0o100_000, owners, false);
        assert_eq!((file.mode, file.flags), (0o100_755, 0));
    }

    fn section(requested: u32, values: u64) -> Xvattr {
        let requested = [requested, 0, 0];
        Xvattr { requested, values, crtime: [7, 8], scanstamp: [9; 32] }
    }

    #[test]
    fn attributes_of_a_section() {
        let record_attrs = RecordAttrs::of(&section(0x2 | 0x40, 0x40)).unwrap();
        assert_eq!(
            record_attrs.flags,
            (znode::ZFS_ARCHIVE | znode::ZFS_IMMUTABLE, znode::ZFS_IMMUTABLE)
        );
        assert_eq!(
            (record_attrs.crtime, record_attrs.scanstamp, record_attrs.project),
            (None, None, None)
        );
        let record_attrs =
            RecordAttrs::of(&section(XAT_CRTIME | XAT_SCANSTAMP | XAT_GEN, 0)).unwrap();
        assert_eq!(record_attrs.crtime, Some(Time { seconds: 7, nanoseconds: 8 }));
        assert_eq!((record_attrs.scanstamp, record_attrs.flags), (Some([9; 32]), (0, 0)));
        assert_eq!(RecordAttrs::of(&section(XAT_PROJID, 0)).unwrap().project, Some(0x0909_0909));
        for (requested, values, opaque) in [
            (XAT_OPAQUE, 0x80, true),
            (XAT_OPAQUE, 0x200, true),
            (XAT_OPAQUE, 0, false),
            (XAT_OPAQUE | XAT_APPENDONLY, 0x80, false),
        ] {
            let flags = RecordAttrs::of(&section(requested, values)).unwrap().flags.1;
            assert_eq!(flags & znode::ZFS_OPAQUE != 0, opaque, "{requested:x} {values:x}");
        }
        let kind = |x: &Xvattr| RecordAttrs::of(x).unwrap_err().kind();
        assert_eq!(kind(&section(0x8_0000, 0)), ErrorKind::Unsupported);
        assert_eq!(kind(&section(XAT_PROJID | XAT_SCANSTAMP, 0)), ErrorKind::Corrupt);
        assert_eq!(kind(&Xvattr { requested: [0, 1, 0], ..section(0, 0) }), ErrorKind::Unsupported);
    }

    #[test]
    fn ids_of_a_record_are_those_of_the_table() {
        let domains = Domains(vec![4, 0, 9]);
        assert_eq!(domains.fuid(70).unwrap(), 70);
        assert_eq!(domains.fuid(1 << 32 | 70).unwrap(), 4 << 32 | 70);
        assert_eq!(domains.fuid(3 << 32 | 70).unwrap(), 9 << 32 | 70);
        for bad in [2u64 << 32, 4 << 32, u64::MAX] {
            assert_eq!(domains.fuid(bad).unwrap_err().kind(), ErrorKind::Corrupt);
        }
        let checked = Domains::unknown(&[b"S-1", b""]);
        assert!(checked.fuid(1 << 32).is_ok() && checked.fuid(2 << 32).is_err());
    }
}
