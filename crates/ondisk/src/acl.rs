//! Access control lists: ZFS/NFSv4 entries in both stored forms, the trivial ACL
//! of a mode, and POSIX ACLs as Linux passes them (chapter 06 §10.4, §11, §6).
//!
//! # Theory
//! Every file has an NFSv4 ACL. If it expresses no more than the mode does, it is
//! *trivial*; the file's flags record that, and the mode determines access. POSIX ACLs
//! are extended attributes and independent of it.
//!
//! # Invariants
//! * [`parse_aces`] returns exactly as many entries as the count states and uses every
//!   byte; at most [`ACE_MAX`].

use base::{Error, Result};

use crate::endian::Endian;

/// Entries in one ACL.
pub(crate) const ACE_MAX: u64 = 1024;

/// Entry type: allow.
pub const ACE_ALLOW: u16 = 0;
/// Entry type: deny.
pub const ACE_DENY: u16 = 1;

/// Entry flag: files inherit.
pub const ACE_FILE_INHERIT: u16 = 0x1;
/// Entry flag: directories inherit.
pub const ACE_DIR_INHERIT: u16 = 0x2;
/// Entry flag: only for objects that inherit the entry.
pub(crate) const ACE_INHERIT_ONLY: u16 = 0x8;
/// Entry flag: `who` is a group.
pub const ACE_IDENTIFIER_GROUP: u16 = 0x40;
/// Entry flag: the owner.
pub const ACE_OWNER: u16 = 0x1000;
/// Entry flag: the owning group (with [`ACE_IDENTIFIER_GROUP`]).
pub(crate) const ACE_GROUP: u16 = 0x2000;
/// Entry flag: everyone.
pub const ACE_EVERYONE: u16 = 0x4000;
const WHO_MASK: u16 = 0x7040;
const INHERIT: u16 = 0xf;

/// Right: read data, list a directory.
pub(crate) const ACE_READ_DATA: u32 = 0x1;
/// Right: write data, add a file.
pub(crate) const ACE_WRITE_DATA: u32 = 0x2;
/// Right: write extended attributes.
pub(crate) const ACE_WRITE_NAMED_ATTRS: u32 = 0x10;
/// Right: execute, search.
pub(crate) const ACE_EXECUTE: u32 = 0x20;
/// Right: delete children of the directory.
pub(crate) const ACE_DELETE_CHILD: u32 = 0x40;
/// Right: read attributes.
pub(crate) const ACE_READ_ATTRIBUTES: u32 = 0x80;
/// Right: write attributes.
pub(crate) const ACE_WRITE_ATTRIBUTES: u32 = 0x100;
/// Right: delete.
pub(crate) const ACE_DELETE: u32 = 0x10000;
/// Right: read the ACL.
pub(crate) const ACE_READ_ACL: u32 = 0x20000;
/// Right: write the ACL.
pub(crate) const ACE_WRITE_ACL: u32 = 0x40000;
/// Right: write the owner.
pub(crate) const ACE_WRITE_OWNER: u32 = 0x80000;

const OWNER_BASE: u32 = 0x001E_0198;
const OTHER_BASE: u32 = 0x0012_0088;

/// The subject of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// The file's owner.
    Owner,
    /// The file's group.
    OwningGroup,
    /// Everyone, owner and group included.
    Everyone,
    /// A user (FUID).
    User(u64),
    /// A group (FUID).
    Group(u64),
    /// None of these.
    Invalid,
}

/// One access control entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ace {
    /// [`ACE_ALLOW`], [`ACE_DENY`], 2 audit, 3 alarm, ...
    pub kind: u16,
    /// `ACE_*` flags.
    pub flags: u16,
    /// `ACE_*` rights.
    pub mask: u32,
    /// User or group (FUID); 0 for abstract entries.
    pub who: u64,
    /// Object type and inherited object type, for types 5 to 8.
    pub object_types: Option<[u8; 32]>,
}

impl Ace {
    fn plain(kind: u16, flags: u16, mask: u32) -> Ace {
        Ace { kind, flags, mask, who: 0, object_types: None }
    }

    /// The subject of the entry.
    pub fn subject(&self) -> Who {
        match self.flags & WHO_MASK {
            ACE_OWNER => Who::Owner,
            0x2040 => Who::OwningGroup,
            ACE_EVERYONE => Who::Everyone,
            ACE_IDENTIFIER_GROUP => Who::Group(self.who),
            0 => Who::User(self.who),
            _ => Who::Invalid,
        }
    }

    fn is_abstract(&self) -> bool {
        matches!(self.subject(), Who::Owner | Who::OwningGroup | Who::Everyone)
    }

    /// Bytes in the second stored form.
    pub fn size(&self) -> usize {
        match self.kind {
            5..=8 => 48,
            ACE_ALLOW | ACE_DENY if self.is_abstract() => 8,
            _ => 16,
        }
    }

    fn denies(&self, mask: u32) -> bool {
        self.kind == ACE_DENY && self.mask & mask != 0
    }
}

/// Parses entries of the second form (SA, legacy v1; §11.1).
///
/// # Errors
/// `Corrupt` unless `count` entries take exactly the bytes; `Limit` for more
/// than [`ACE_MAX`].
pub fn parse_aces(bytes: &[u8], count: u64, endian: Endian) -> Result<Vec<Ace>> {
    if count > ACE_MAX {
        return Err(Error::limit("an ACL has more than 1024 entries"));
    }
    let mut r = endian.reader(bytes, "ACL");
    let mut aces = Vec::with_capacity(count as usize);
    for _ in 0..count {
        let mut ace = Ace::plain(r.u16()?, r.u16()?, r.u32()?);
        let size = ace.size();
        if size >= 16 {
            ace.who = r.u64()?;
        }
        if size == 48 {
            ace.object_types = r.take(32)?.first_chunk().copied();
        }
        aces.push(ace);
    }
    if r.remaining().is_empty() {
        Ok(aces)
    } else {
        Err(Error::corrupt("ACL: bytes are left over"))
    }
}

/// Parses 12-byte entries of the first form (legacy v0; §6).
///
/// # Errors
/// `Corrupt` when the bytes are too few; `Limit` for more than [`ACE_MAX`].
pub fn parse_aces_v0(bytes: &[u8], count: u64, endian: Endian) -> Result<Vec<Ace>> {
    if count > ACE_MAX {
        return Err(Error::limit("an ACL has more than 1024 entries"));
    }
    let mut r = endian.reader(bytes, "ACL");
    (0..count)
        .map(|_| {
            let (who, mask, flags, kind) = (r.u32()?, r.u32()?, r.u16()?, r.u16()?);
            let ace = Ace::plain(kind, flags, mask);
            // The id of an abstract entry has no meaning.
            let who = if ace.is_abstract() { 0 } else { who.into() };
            Ok(Ace { who, ..ace })
        })
        .collect()
}

/// The second stored form, little endian.
pub fn encode_aces(aces: &[Ace]) -> Vec<u8> {
    let mut out = Vec::with_capacity(aces.iter().map(Ace::size).sum());
    for ace in aces {
        out.extend_from_slice(&ace.kind.to_le_bytes());
        out.extend_from_slice(&ace.flags.to_le_bytes());
        out.extend_from_slice(&ace.mask.to_le_bytes());
        if ace.size() >= 16 {
            out.extend_from_slice(&ace.who.to_le_bytes());
        }
        if ace.size() == 48 {
            out.extend_from_slice(&ace.object_types.unwrap_or_default());
        }
    }
    out
}

/// The ACL that expresses a mode (§11.2).
pub fn trivial_acl(mode: u64, is_dir: bool) -> Vec<Ace> {
    let write = 0x6 | if is_dir { ACE_DELETE_CHILD } else { 0 };
    let (mut own, mut grp, mut all) = (OWNER_BASE, OTHER_BASE, OTHER_BASE);
    let (mut allow0, mut deny1, mut deny2) = (0, 0, 0);
    for (bit, rights) in [(4, ACE_READ_DATA), (2, write), (1, ACE_EXECUTE)] {
        let has = |shift: u32| mode >> shift & bit != 0;
        let (u, g, o) = (has(6), has(3), has(0));
        let add = |to: &mut u32, cond: bool| *to |= if cond { rights } else { 0 };
        add(&mut own, u);
        add(&mut grp, g);
        add(&mut all, o);
        add(&mut allow0, u && !g && o);
        add(&mut deny1, !u && (g || o));
        add(&mut deny2, !g && o);
    }
    let group = ACE_GROUP | ACE_IDENTIFIER_GROUP;
    let mut acl = Vec::with_capacity(6);
    for (kind, flags, mask) in
        [(ACE_ALLOW, ACE_OWNER, allow0), (ACE_DENY, ACE_OWNER, deny1), (ACE_DENY, group, deny2)]
    {
        if mask != 0 {
            acl.push(Ace::plain(kind, flags, mask));
        }
    }
    acl.push(Ace::plain(ACE_ALLOW, ACE_OWNER, own));
    acl.push(Ace::plain(ACE_ALLOW, group, grp));
    acl.push(Ace::plain(ACE_ALLOW, ACE_EVERYONE, all));
    acl
}

/// Whether an ACL expresses no more than a mode can (§11.3).
pub fn is_trivial(aces: &[Ace]) -> bool {
    let reserved = ACE_WRITE_OWNER | ACE_WRITE_ACL | ACE_WRITE_ATTRIBUTES | ACE_WRITE_NAMED_ATTRS;
    aces.iter().all(|a| {
        a.is_abstract()
            && a.flags & INHERIT == 0
            && !a.denies(ACE_READ_ACL | ACE_READ_ATTRIBUTES)
            && a.mask & ACE_DELETE == 0
            && (a.mask & ACE_DELETE_CHILD == 0 || a.mask & ACE_WRITE_DATA != 0)
            && !(a.kind == ACE_ALLOW && a.subject() != Who::Owner && a.mask & reserved != 0)
    })
}

/// The mode that corresponds to an ACL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AclMode {
    /// The mode: type and 07000 bits of the old one, permissions of the ACL.
    pub mode: u64,
    /// All users may execute or search: flag NO_EXECS_DENIED.
    pub no_execs_denied: bool,
}

/// Computes the mode that corresponds to an ACL (§11.4). `owner` and `group` are the
/// file's.
pub fn mode_of_acl(aces: &[Ace], old_mode: u64, owner: u64, group: u64) -> AclMode {
    let mut mode = old_mode & !0o777;
    let mut seen = 0;
    let mut denied = false;
    for ace in aces {
        let classes = match ace.subject() {
            Who::Owner => 0o100,
            Who::OwningGroup => 0o010,
            Who::Everyone => 0o111,
            Who::User(who) if who == owner => 0o100,
            Who::Group(who) if who == group => 0o010,
            Who::User(_) | Who::Group(_) => {
                denied |= ace.denies(ACE_EXECUTE) && ace.flags & ACE_INHERIT_ONLY == 0;
                continue;
            }
            Who::Invalid => continue,
        };
        if ace.flags & ACE_INHERIT_ONLY != 0 || !matches!(ace.kind, ACE_ALLOW | ACE_DENY) {
            continue;
        }
        for (bit, right) in [(4, ACE_READ_DATA), (2, ACE_WRITE_DATA), (1, ACE_EXECUTE)] {
            if ace.mask & right != 0 {
                // The first entry that mentions a right decides it.
                let fresh = (classes * bit) & !seen;
                seen |= fresh;
                if ace.kind == ACE_ALLOW {
                    mode |= fresh;
                }
            }
        }
    }
    AclMode { mode, no_execs_denied: mode & 0o111 == 0o111 && !denied }
}

/// Tag of an entry of a POSIX ACL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PosixTag {
    /// The owner.
    UserObj,
    /// A user.
    User,
    /// The owning group.
    GroupObj,
    /// A group.
    Group,
    /// The most that users and groups may be granted.
    Mask,
    /// Everyone else.
    Other,
}

/// An entry of a POSIX ACL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PosixAce {
    /// The subject.
    pub tag: PosixTag,
    /// rwx, 0 to 7.
    pub perm: u16,
    /// User or group id; 0xFFFFFFFF if the tag has none.
    pub id: u32,
}

/// Parses and validates a POSIX ACL in Linux's xattr form (§10.4): the tags are in
/// order, each unique tag appears once, and there is a mask if there are users or
/// groups.
///
/// # Errors
/// `Invalid` when it is malformed.
pub fn parse_posix_acl(bytes: &[u8]) -> Result<Vec<PosixAce>> {
    let bad = |what: &str| Error::invalid(format!("POSIX ACL: {what}"));
    let (version, body) = bytes.split_first_chunk::<4>().ok_or_else(|| bad("too short"))?;
    if u32::from_le_bytes(*version) != 2 {
        return Err(bad("unknown version"));
    }
    let (entries, rest) = body.as_chunks::<8>();
    if !rest.is_empty() || entries.is_empty() {
        return Err(bad("wrong length"));
    }
    let mut acl: Vec<PosixAce> = Vec::with_capacity(entries.len());
    for &[t0, t1, p0, p1, i0, i1, i2, i3] in entries {
        let tag = match u16::from_le_bytes([t0, t1]) {
            0x01 => PosixTag::UserObj,
            0x02 => PosixTag::User,
            0x04 => PosixTag::GroupObj,
            0x08 => PosixTag::Group,
            0x10 => PosixTag::Mask,
            0x20 => PosixTag::Other,
            _ => return Err(bad("unknown tag")),
        };
        let ace = PosixAce {
            tag,
            perm: u16::from_le_bytes([p0, p1]),
            id: u32::from_le_bytes([i0, i1, i2, i3]),
        };
        if ace.perm > 7 {
            return Err(bad("unknown permission"));
        }
        let named = matches!(tag, PosixTag::User | PosixTag::Group);
        if named && ace.id == u32::MAX {
            return Err(bad("an entry lacks its id"));
        }
        if acl.last().is_some_and(|last| last.tag > tag || (last.tag == tag && !named)) {
            return Err(bad("entries out of order"));
        }
        acl.push(ace);
    }
    let has = |tag| acl.iter().any(|a| a.tag == tag);
    let named = has(PosixTag::User) || has(PosixTag::Group);
    if !has(PosixTag::UserObj) || !has(PosixTag::GroupObj) || !has(PosixTag::Other) {
        return Err(bad("owner, group or other is missing"));
    }
    if named && !has(PosixTag::Mask) {
        return Err(bad("the mask is missing"));
    }
    Ok(acl)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn aces(list: &[(u16, u16, u32)]) -> Vec<Ace> {
        list.iter().map(|(k, f, m)| Ace::plain(*k, *f, *m)).collect()
    }

    #[test]
    fn trivial_acls_of_the_chapter() {
        for (mode, dir, list) in [
            (
                0o644,
                false,
                vec![(0, 0x1000, 0x1e019f), (0, 0x2040, 0x120089), (0, 0x4000, 0x120089)],
            ),
            (
                0o755,
                true,
                vec![(0, 0x1000, 0x1e01ff), (0, 0x2040, 0x1200a9), (0, 0x4000, 0x1200a9)],
            ),
            (
                0o600,
                false,
                vec![(0, 0x1000, 0x1e019f), (0, 0x2040, 0x120088), (0, 0x4000, 0x120088)],
            ),
            (
                0o777,
                false,
                vec![(0, 0x1000, 0x1e01bf), (0, 0x2040, 0x1200af), (0, 0x4000, 0x1200af)],
            ),
            (
                0o1777,
                true,
                vec![(0, 0x1000, 0x1e01ff), (0, 0x2040, 0x1200ef), (0, 0x4000, 0x1200ef)],
            ),
            (
                0o077,
                false,
                vec![
                    (1, 0x1000, 0x27),
                    (0, 0x1000, 0x1e0198),
                    (0, 0x2040, 0x1200af),
                    (0, 0x4000, 0x1200af),
                ],
            ),
            (
                0o705,
                false,
                vec![
                    (0, 0x1000, 0x21),
                    (1, 0x2040, 0x21),
                    (0, 0x1000, 0x1e01bf),
                    (0, 0x2040, 0x120088),
                    (0, 0x4000, 0x1200a9),
                ],
            ),
        ] {
            assert_eq!(trivial_acl(mode, dir), aces(&list), "{mode:o}");
        }
    }

    #[test]
    fn every_mode_survives_its_trivial_acl() {
        for mode in 0..0o1000 {
            for dir in [false, true] {
                let acl = trivial_acl(mode, dir);
                assert!(is_trivial(&acl), "{mode:o}");
                let back = mode_of_acl(&acl, 0o100000 | 0o7, 5, 6);
                assert_eq!(back.mode, 0o100000 | mode, "{mode:o}");
                assert_eq!(back.no_execs_denied, mode & 0o111 == 0o111);
                let raw = encode_aces(&acl);
                assert_eq!(parse_aces(&raw, acl.len() as u64, Endian::Little).unwrap(), acl);
            }
        }
    }

    #[test]
    fn what_makes_an_acl_more_than_trivial() {
        for ace in [
            (0, 0, 0x1),          // a named user
            (0, 0x40, 0x1),       // a named group
            (0, 0x4001, 0x1),     // inheritable
            (1, 0x4000, 0x80),    // hides attributes
            (0, 0x4000, 0x10000), // delete
            (0, 0x1000, 0x40),    // delete child without write
            (0, 0x4000, 0x100),   // write attributes for everyone
        ] {
            assert!(!is_trivial(&aces(&[ace])), "{ace:x?}");
        }
        assert!(is_trivial(&aces(&[(0, 0x1000, 0x42), (1, 0x4000, 0x1)])));
    }

    #[test]
    fn named_entries_count_for_owner_and_group() {
        let mut acl = aces(&[(1, 0, 0x20), (0, 0x40, 0x2), (0, 0x4000, 0x21)]);
        acl[0].who = 1000;
        acl[1].who = 100;
        let as_owner = mode_of_acl(&acl, 0o100000, 1000, 100);
        assert_eq!((as_owner.mode, as_owner.no_execs_denied), (0o100475, false));
        let as_other = mode_of_acl(&acl, 0o100000, 1, 1);
        assert_eq!((as_other.mode, as_other.no_execs_denied), (0o100555, false));
    }

    #[test]
    fn sizes_and_counts() {
        let object = Ace { object_types: Some([7; 32]), who: 9, ..Ace::plain(5, 0, 1) };
        let audit = Ace::plain(2, ACE_OWNER, 1);
        let named = Ace { who: 1 << 32 | 5, ..Ace::plain(0, 0, 1) };
        assert_eq!([object.size(), audit.size(), named.size()], [48, 16, 16]);
        let raw = encode_aces(&[object, audit, named]);
        assert_eq!(parse_aces(&raw, 3, Endian::Little).unwrap(), [object, audit, named]);
        assert!(parse_aces(&raw, 2, Endian::Little).is_err());
        assert!(parse_aces(&raw, 4, Endian::Little).is_err());
        assert!(parse_aces(&raw, u64::MAX, Endian::Little).is_err());
        let v0 = [0, 0, 0, 7, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 9, 0, 0, 0, 2, 0x10, 0, 0, 0];
        let v0 = parse_aces_v0(&v0, 2, Endian::Big).unwrap();
        assert_eq!(v0[0], Ace { who: 7, ..Ace::plain(1, 0, 1) });
        assert_eq!(v0[1], Ace::plain(0, ACE_OWNER, 2));
    }

    #[test]
    fn posix_acls() {
        let entry = |tag: u16, perm: u16, id: u32| {
            [&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat()
        };
        let acl = |list: &[(u16, u16, u32)]| {
            let body = list.iter().flat_map(|(t, p, i)| entry(*t, *p, *i));
            2u32.to_le_bytes().into_iter().chain(body).collect::<Vec<u8>>()
        };
        let none = u32::MAX;
        let good = acl(&[(1, 6, none), (2, 7, 1000), (4, 4, none), (16, 7, none), (32, 4, none)]);
        let parsed = parse_posix_acl(&good).unwrap();
        assert_eq!(parsed[1], PosixAce { tag: PosixTag::User, perm: 7, id: 1000 });
        for bad in [
            acl(&[(1, 6, none), (4, 4, none)]),
            acl(&[(1, 6, none), (2, 7, 1000), (4, 4, none), (32, 4, none)]),
            acl(&[(4, 6, none), (1, 4, none), (32, 4, none)]),
            acl(&[(1, 6, none), (1, 6, none), (4, 4, none), (32, 4, none)]),
            acl(&[(1, 8, none), (4, 4, none), (32, 4, none)]),
            acl(&[(3, 6, none), (4, 4, none), (32, 4, none)]),
            acl(&[]),
            good[..good.len() - 1].to_vec(),
            [&[3], &good[1..]].concat(),
        ] {
            assert!(parse_posix_acl(&bad).is_err());
        }
    }

    proptest! {
        #[test]
        fn any_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..200), n in 0u64..20) {
            for e in [Endian::Little, Endian::Big] {
                if let Ok(acl) = parse_aces(&bytes, n, e) {
                    let _ = (is_trivial(&acl), mode_of_acl(&acl, 0, 1, 2));
                    prop_assert_eq!(encode_aces(&acl).len(), bytes.len());
                }
                let _ = parse_aces_v0(&bytes, n, e);
            }
            let _ = parse_posix_acl(&bytes);
        }
    }
}
