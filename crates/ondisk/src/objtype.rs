//! DMU object types (chapter 03 §7).

use std::fmt;

/// How the contents of a level-0 block are converted to the host's byte order (chapter
/// 03 §7.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Byteswap {
    /// Bytes; nothing to do.
    Uint8,
    /// Array of 16-bit integers.
    Uint16,
    /// Array of 32-bit integers.
    Uint32,
    /// Array of 64-bit integers.
    Uint64,
    /// A ZAP block.
    Zap,
    /// A block of dnodes.
    Dnode,
    /// An object set.
    Objset,
    /// A pre-SA znode.
    Znode,
    /// A version-0 ACL.
    OldAcl,
    /// A variable-length ACL.
    Acl,
}

/// An object type as stored in dnodes and block pointers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct ObjType(pub u8);

const NEW_TYPE: u8 = 0x80;
const NEW_METADATA: u8 = 0x40;
const NEW_ENCRYPTED: u8 = 0x20;
const NEW_SWAP: u8 = 0x1f;
const SWAPS: [(Byteswap, &str); 10] = [
    (Byteswap::Uint8, "uint8"),
    (Byteswap::Uint16, "uint16"),
    (Byteswap::Uint32, "uint32"),
    (Byteswap::Uint64, "uint64"),
    (Byteswap::Zap, "zap"),
    (Byteswap::Dnode, "dnode"),
    (Byteswap::Objset, "objset"),
    (Byteswap::Znode, "znode"),
    (Byteswap::OldAcl, "old ACL"),
    (Byteswap::Acl, "ACL"),
];

struct TypeRow {
    name: &'static str,
    swap: Byteswap,
    metadata: bool,
    encrypted: bool,
}

const fn row(name: &'static str, swap: Byteswap, metadata: bool, encrypted: bool) -> TypeRow {
    TypeRow { name, swap, metadata, encrypted }
}

use Byteswap as B;

/// The table of chapter 03 §7.1, by type number.
static TYPES: [TypeRow; 54] = [
    row("unallocated", B::Uint8, true, false),
    row("object directory", B::Zap, true, false),
    row("object array", B::Uint64, true, false),
    row("packed nvlist", B::Uint8, true, false),
    row("packed nvlist size", B::Uint64, true, false),
    row("bpobj", B::Uint64, true, false),
    row("bpobj header", B::Uint64, true, false),
    row("SPA space map header", B::Uint64, true, false),
    row("SPA space map", B::Uint64, true, false),
    row("ZIL intent log", B::Uint64, true, true),
    row("DMU dnode", B::Dnode, true, true),
    row("DMU objset", B::Objset, true, false),
    row("DSL directory", B::Uint64, true, false),
    row("DSL directory child map", B::Zap, true, false),
    row("DSL dataset snap map", B::Zap, true, false),
    row("DSL props", B::Zap, true, false),
    row("DSL dataset", B::Uint64, true, false),
    row("ZFS znode", B::Znode, true, false),
    row("ZFS V0 ACL", B::OldAcl, true, true),
    row("ZFS plain file", B::Uint8, false, true),
    row("ZFS directory", B::Zap, true, true),
    row("ZFS master node", B::Zap, true, false),
    row("ZFS delete queue", B::Zap, true, true),
    row("zvol object", B::Uint8, false, true),
    row("zvol prop", B::Zap, true, false),
    row("other uint8[]", B::Uint8, false, true),
    row("other uint64[]", B::Uint64, false, true),
    row("other ZAP", B::Zap, true, false),
    row("persistent error log", B::Zap, true, false),
    row("SPA history", B::Uint8, true, false),
    row("SPA history offsets", B::Uint64, true, false),
    row("Pool properties", B::Zap, true, false),
    row("DSL permissions", B::Zap, true, false),
    row("ZFS ACL", B::Acl, true, true),
    row("ZFS SYSACL", B::Uint8, true, true),
    row("FUID table", B::Uint8, true, true),
    row("FUID table size", B::Uint64, true, false),
    row("DSL dataset next clones", B::Zap, true, false),
    row("scan work queue", B::Zap, true, false),
    row("ZFS user/group/project used", B::Zap, true, true),
    row("ZFS user/group/project quota", B::Zap, true, true),
    row("snapshot refcount tags", B::Zap, true, false),
    row("DDT ZAP algorithm", B::Zap, true, false),
    row("DDT statistics", B::Zap, true, false),
    row("System attributes", B::Uint8, true, true),
    row("SA master node", B::Zap, true, true),
    row("SA attr registration", B::Zap, true, true),
    row("SA attr layouts", B::Zap, true, true),
    row("scan translations", B::Zap, true, false),
    row("deduplicated block", B::Uint8, false, true),
    row("DSL deadlist map", B::Zap, true, false),
    row("DSL deadlist map hdr", B::Uint64, true, false),
    row("DSL dir clones", B::Zap, true, false),
    row("bpobj subobj", B::Uint64, true, false),
];

macro_rules! types {
    ($($(#[$doc:meta])* $name:ident = $value:expr;)*) => {
        impl ObjType { $($(#[$doc])* pub const $name: ObjType = ObjType($value);)* }
    };
}

types! {
    /// A free slot.
    NONE = 0;
    /// MOS object 1.
    OBJECT_DIRECTORY = 1;
    /// Metaslab arrays.
    OBJECT_ARRAY = 2;
    /// Packed nvlist.
    PACKED_NVLIST = 3;
    /// Size of a packed nvlist (bonus).
    PACKED_NVLIST_SIZE = 4;
    /// List of block pointers.
    BPOBJ = 5;
    /// Its bonus.
    BPOBJ_HDR = 6;
    /// Bonus of a space map.
    SPACE_MAP_HEADER = 7;
    /// Space map.
    SPACE_MAP = 8;
    /// Intent log block.
    INTENT_LOG = 9;
    /// Dnodes.
    DNODE = 10;
    /// Object set.
    OBJSET = 11;
    /// Dataset directory.
    DSL_DIR = 12;
    /// Its children.
    DSL_DIR_CHILD_MAP = 13;
    /// Snapshot names.
    DSL_DS_SNAP_MAP = 14;
    /// Properties.
    DSL_PROPS = 15;
    /// Dataset.
    DSL_DATASET = 16;
    /// Pre-SA znode (bonus).
    ZNODE = 17;
    /// Version-0 ACL.
    OLDACL = 18;
    /// File contents.
    PLAIN_FILE_CONTENTS = 19;
    /// Directory contents.
    DIRECTORY_CONTENTS = 20;
    /// Object 1 of a file system.
    MASTER_NODE = 21;
    /// Delete queue.
    UNLINKED_SET = 22;
    /// Volume data.
    ZVOL = 23;
    /// Volume properties.
    ZVOL_PROP = 24;
    /// Error log (chapter 04 §18).
    ERROR_LOG = 28;
    /// Datasets that a scan has still to visit.
    SCAN_QUEUE = 38;
    /// Space used per user, group or project.
    USERGROUP_USED = 39;
    /// DDT entries.
    DDT_ZAP = 42;
    /// DDT statistics.
    DDT_STATS = 43;
    /// System attributes (bonus and spill).
    SA = 44;
    /// A block of a dedup table's entry; never stored.
    DEDUP = 49;
    /// Deadlist.
    DEADLIST = 50;
    /// Bonus of a deadlist.
    DEADLIST_HDR = 51;
    /// Sub-objects of a bpobj.
    BPOBJ_SUBOBJ = 53;
    /// Bytes, new style.
    OTN_UINT8_DATA = 0x80;
    /// 32-bit integers, metadata, new style.
    OTN_UINT32_METADATA = 0xc2;
    /// 64-bit integers, metadata, new style.
    OTN_UINT64_METADATA = 0xc3;
    /// ZAP, metadata, new style.
    OTN_ZAP_METADATA = 0xc4;
}

impl ObjType {
    /// Whether readers accept the type (chapter 02 §2.6).
    pub fn is_valid(self) -> bool {
        if self.0 & NEW_TYPE != 0 {
            usize::from(self.0 & NEW_SWAP) < SWAPS.len()
        } else {
            usize::from(self.0) < TYPES.len()
        }
    }

    fn row(self) -> Option<&'static TypeRow> {
        TYPES.get(usize::from(self.0))
    }

    /// Metadata in the sense of the write policy (chapter 03 §9).
    pub fn is_metadata(self) -> bool {
        match self.row() {
            Some(row) => row.metadata,
            None => self.0 & NEW_METADATA != 0,
        }
    }

    /// Encrypted in encrypted datasets.
    pub fn is_encrypted(self) -> bool {
        match self.row() {
            Some(row) => row.encrypted,
            None => self.0 & NEW_ENCRYPTED != 0,
        }
    }

    /// How level-0 contents are byte-swapped; invalid types are left alone.
    pub fn byteswap(self) -> Byteswap {
        match self.row() {
            Some(row) => row.swap,
            None => SWAPS.get(usize::from(self.0 & NEW_SWAP)).map_or(Byteswap::Uint8, |s| s.0),
        }
    }

    /// Whether the object is a ZAP.
    pub fn is_zap(self) -> bool {
        self.is_valid() && self.byteswap() == Byteswap::Zap
    }

    /// The name that zdb prints.
    pub fn name(self) -> &'static str {
        match self.row() {
            Some(row) => row.name,
            None if self.is_valid() => {
                SWAPS.get(usize::from(self.0 & NEW_SWAP)).map_or("UNKNOWN", |s| s.1)
            }
            None => "UNKNOWN",
        }
    }
}

impl fmt::Debug for ObjType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", self.0, self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn predicates_follow_the_table_and_the_bits() {
        assert!(ObjType::DIRECTORY_CONTENTS.is_zap());
        assert!(ObjType::OTN_ZAP_METADATA.is_zap() && ObjType::OTN_ZAP_METADATA.is_metadata());
        assert!(!ObjType::PLAIN_FILE_CONTENTS.is_metadata());
        assert!(ObjType(0xa0).is_encrypted() && !ObjType(0xa0).is_metadata());
        assert!(!ObjType(54).is_valid() && !ObjType(0x8a).is_valid() && ObjType(0x89).is_valid());
        assert_eq!(ObjType::BPOBJ_SUBOBJ.name(), "bpobj subobj");
    }
}
