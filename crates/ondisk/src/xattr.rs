//! Extended attributes stored with the system attributes, and the names that
//! platforms give to the same attribute (chapter 06 §10.2, §10.3).
//!
//! # Theory
//! The attribute DXATTR is a packed nvlist of byte arrays. Linux stores names
//! with their namespace prefix; FreeBSD stores the user namespace without one,
//! and its system namespace as `freebsd:system:NAME`.
//!
//! # Invariants
//! * [`parse_sa`] yields byte-array pairs only, in stored order.

use base::{Error, ErrorKind, Result};
use nvlist::{NvList, Value};

/// Largest value stored with the system attributes.
pub const SA_VALUE_MAX: usize = 32_768;
/// Largest packed list.
pub const SA_PACKED_MAX: usize = 65_535;
/// Bytes of a name.
pub const NAME_MAX: usize = 255;

const USER: &[u8] = b"user.";
const FREEBSD: &[u8] = b"freebsd:";
/// Namespaces that Linux stores with their prefix.
const PREFIXES: [&[u8]; 4] = [USER, b"trusted.", b"security.", b"system."];

/// The pairs of a packed list (attribute DXATTR).
///
/// # Errors
/// `Corrupt` when it is not a packed nvlist, `Limit` as [`NvList::unpack`].
/// Pairs of another type than byte array are skipped; OpenZFS never creates them.
pub(crate) fn parse_sa(packed: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let list = NvList::unpack(packed)?;
    Ok(list
        .iter()
        .filter_map(|(name, value)| match value {
            Value::ByteArray(bytes) => Some((name.as_bytes().to_vec(), bytes.clone())),
            _ => None,
        })
        .collect())
}

/// Packs pairs as OpenZFS does: XDR, unique names.
///
/// # Errors
/// `Invalid` for a name with a NUL; `Limit` for a value or list that belongs
/// into the xattr directory.
pub fn pack_sa(pairs: &[(Vec<u8>, Vec<u8>)]) -> Result<Vec<u8>> {
    let mut list = NvList::new();
    for (name, value) in pairs {
        if value.len() > SA_VALUE_MAX {
            return Err(Error::limit("the value is too large for an SA xattr"));
        }
        list.try_insert(name, Value::ByteArray(value.clone()))?;
    }
    let packed = list.pack_xdr();
    if packed.len() > SA_PACKED_MAX {
        return Err(Error::limit("the extended attributes are too large for SA"));
    }
    Ok(packed)
}

/// The name under which Linux lists a stored attribute; `None` if it is hidden.
pub fn linux_name(stored: &[u8]) -> Option<Vec<u8>> {
    if stored.starts_with(FREEBSD) || stored.is_empty() {
        None
    } else if PREFIXES.iter().any(|p| stored.starts_with(p)) {
        Some(stored.to_vec())
    } else {
        Some([USER, stored].concat())
    }
}

/// The names under which an attribute may be stored, in the order to try them.
/// Setting the first deletes the second.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredNames {
    /// The configured form, which writers use.
    pub first: Vec<u8>,
    /// The other form of a user attribute.
    pub second: Option<Vec<u8>>,
}

/// The stored names of the attribute that Linux calls `name`. `compat`: the user
/// namespace is stored without prefix (tunable zfs_xattr_compat).
///
/// # Errors
/// `NameTooLong`; `Invalid` for an empty name, a NUL, or a user name that
/// pretends another namespace; `Unsupported` for an unknown namespace.
pub fn stored_names(name: &[u8], compat: bool) -> Result<StoredNames> {
    if name.len() > NAME_MAX {
        return Err(Error::new(ErrorKind::NameTooLong, "the attribute's name is too long"));
    }
    if name.contains(&0) {
        return Err(Error::invalid("a NUL in an attribute's name"));
    }
    let Some(user) = name.strip_prefix(USER) else {
        let bare = PREFIXES.iter().find_map(|p| name.strip_prefix(*p));
        return match bare {
            None => Err(Error::unsupported("unknown namespace of extended attributes")),
            Some([]) => Err(Error::invalid("an attribute without a name")),
            Some(_) => Ok(StoredNames { first: name.to_vec(), second: None }),
        };
    };
    if user.is_empty() || user.starts_with(FREEBSD) || PREFIXES.iter().any(|p| user.starts_with(p))
    {
        return Err(Error::invalid("a user attribute cannot have this name"));
    }
    let (bare, full) = (user.to_vec(), name.to_vec());
    Ok(if compat {
        StoredNames { first: bare, second: Some(full) }
    } else {
        StoredNames { first: full, second: Some(bare) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// §10.2.
    const EXAMPLE: [u8; 52] = [
        1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0x20, 0, 0, 0, 0x20, 0, 0, 0, 6, 0x75, 0x73,
        0x65, 0x72, 0x2e, 0x78, 0, 0, 0, 0, 0, 0x0a, 0, 0, 0, 3, 0x76, 0x61, 0x6c, 0, 0, 0, 0, 0,
        0, 0, 0, 0,
    ];

    #[test]
    fn list_of_the_chapter() {
        let pairs = parse_sa(&EXAMPLE).unwrap();
        assert_eq!(pairs, [(b"user.x".to_vec(), b"val".to_vec())]);
        assert_eq!(pack_sa(&pairs).unwrap(), EXAMPLE);
        let empty = pack_sa(&[]).unwrap();
        assert_eq!(empty.len(), 20);
        assert_eq!(empty[..12], [1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert!(parse_sa(&empty).unwrap().is_empty());
        assert!(parse_sa(&EXAMPLE[..50]).is_err());
        let big = (b"user.big".to_vec(), vec![0; SA_VALUE_MAX]);
        assert!(pack_sa(std::slice::from_ref(&big)).is_ok());
        let second = (b"user.big2".to_vec(), vec![0; SA_VALUE_MAX]);
        assert_eq!(pack_sa(&[big, second]).unwrap_err().kind(), ErrorKind::Limit);
        let huge = (b"user.huge".to_vec(), vec![0; SA_VALUE_MAX + 1]);
        assert_eq!(pack_sa(&[huge]).unwrap_err().kind(), ErrorKind::Limit);
    }

    #[test]
    fn names() {
        let linux =
            |stored: &str| linux_name(stored.as_bytes()).map(|n| String::from_utf8(n).unwrap());
        assert_eq!(linux("user.x").as_deref(), Some("user.x"));
        assert_eq!(linux("x").as_deref(), Some("user.x"));
        assert_eq!(linux("security.selinux").as_deref(), Some("security.selinux"));
        assert_eq!(linux("freebsd:system:x"), None);
        let names = |name: &str, compat| stored_names(name.as_bytes(), compat);
        let both = names("user.x", false).unwrap();
        assert_eq!(both, StoredNames { first: b"user.x".into(), second: Some(b"x".into()) });
        let both = names("user.x", true).unwrap();
        assert_eq!(both, StoredNames { first: b"x".into(), second: Some(b"user.x".into()) });
        assert_eq!(names("trusted.x", true).unwrap().second, None);
        for bad in
            ["user.", "user.user.x", "user.freebsd:x", "user.system.x", "trusted.", "user.\0"]
        {
            assert_eq!(names(bad, false).unwrap_err().kind(), ErrorKind::Invalid, "{bad}");
        }
        assert_eq!(names("other.x", false).unwrap_err().kind(), ErrorKind::Unsupported);
        let long = format!("user.{}", "x".repeat(251));
        assert_eq!(names(&long, false).unwrap_err().kind(), ErrorKind::NameTooLong);
    }

    proptest! {
        #[test]
        fn pairs_round_trip(
            pairs in prop::collection::btree_map("[a-z.]{1,30}", prop::collection::vec(any::<u8>(), 0..100), 0..20),
        ) {
            let pairs: Vec<_> = pairs.into_iter().map(|(n, v)| (n.into_bytes(), v)).collect();
            let packed = pack_sa(&pairs).unwrap();
            let size: usize = pairs.iter()
                .map(|(n, v)| 20 + n.len().next_multiple_of(4) + v.len().next_multiple_of(4)).sum();
            prop_assert_eq!(packed.len(), 12 + size + 8);
            prop_assert_eq!(parse_sa(&packed).unwrap(), pairs);
        }

        #[test]
        fn mutated_lists_do_no_harm(
            flips in prop::collection::vec((0usize..52, any::<u8>()), 0..6),
        ) {
            let mut raw = EXAMPLE.to_vec();
            for (at, v) in flips {
                raw[at] = v;
            }
            crate::fuzzing2::fuzz_xattr(&raw);
        }
    }
}
