//! Bits of [`crate::Attrs::pflags`] (chapter 06 §5.2).

macro_rules! bits {
    ($($(#[$doc:meta])* $name:ident = $value:expr;)*) => {
        $($(#[$doc])* pub const $name: u64 = $value;)*
    };
}

bits! {
    /// An extended-attribute directory, or a file in one.
    XATTR = 0x1;
    /// The ACL has inheritable entries.
    INHERIT_ACE = 0x2;
    /// The ACL says no more than the mode.
    ACL_TRIVIAL = 0x4;
    /// The ACL has object entries.
    ACL_OBJ_ACE = 0x8;
    /// NFSv4: protected.
    ACL_PROTECTED = 0x10;
    /// NFSv4: defaulted.
    ACL_DEFAULTED = 0x20;
    /// NFSv4: auto-inherit.
    ACL_AUTO_INHERIT = 0x40;
    /// Legacy znode: an antivirus stamp follows it.
    BONUS_SCANSTAMP = 0x80;
    /// Everybody may execute (search).
    NO_EXECS_DENIED = 0x100;
    /// DOS read-only.
    READONLY = 0x1_0000_0000;
    /// DOS hidden.
    HIDDEN = 0x2_0000_0000;
    /// DOS system.
    SYSTEM = 0x4_0000_0000;
    /// DOS archive.
    ARCHIVE = 0x8_0000_0000;
    /// May not change.
    IMMUTABLE = 0x10_0000_0000;
    /// May not be unlinked.
    NOUNLINK = 0x20_0000_0000;
    /// May only grow.
    APPENDONLY = 0x40_0000_0000;
    /// Not for dump(8).
    NODUMP = 0x80_0000_0000;
    /// Opaque directory.
    OPAQUE = 0x100_0000_0000;
    /// Quarantined by an antivirus.
    AV_QUARANTINED = 0x200_0000_0000;
    /// Changed since the last scan.
    AV_MODIFIED = 0x400_0000_0000;
    /// Reparse point.
    REPARSE = 0x800_0000_0000;
    /// Offline.
    OFFLINE = 0x1000_0000_0000;
    /// Sparse.
    SPARSE = 0x2000_0000_0000;
    /// Children inherit the project.
    PROJINHERIT = 0x4000_0000_0000;
    /// The project attribute is present.
    PROJID = 0x8000_0000_0000;
}
