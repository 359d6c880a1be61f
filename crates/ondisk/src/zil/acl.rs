//! ACLs in log records (chapter 06 §17): entries with a user or group of 32 bits, and a
//! list of the ids that need more.
//!
//! # Theory
//! A record cannot name a foreign user (chapter 06 §12) in an entry of 12 bytes. The
//! system that wrote it had given that user an *ephemeral* id, 2^31 or larger, which
//! has no meaning after a restart. So the record has a list of the true ids, in the
//! order of the entries that need them. Each is an index, from 1, into the record's
//! list of domains, and an id within that domain; index 0 is a plain id.
//!
//! # Invariants
//! * [`LoggedAcl::parse`] uses every byte, except for the padding to whole words.
//! * [`LoggedAcl::resolve`] uses every id of the list, or fails: it never guesses to
//!   which entry an id belongs.

use base::{Error, Result};

use super::record::{AclInfo, Record};
use crate::acl::{ACE_MAX, Ace, Who};
use crate::endian::Endian;

/// The first ephemeral id.
const EPHEMERAL: u64 = 1 << 31;
/// Types of entries with two object types behind them.
const OBJECT_ACES: std::ops::RangeInclusive<u16> = 5..=8;

/// An ACL of a record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoggedAcl {
    /// Its entries; users and groups as in the record, 32 bits wide.
    pub aces: Vec<Ace>,
    /// Ids that are not in the entries, in the order of the entries to which they
    /// belong: index into the record's domains in the upper half, id in the lower.
    pub fuids: Vec<u64>,
}

fn corrupt(what: &str) -> Error {
    Error::corrupt(format!("invalid ACL in an intent log record: {what}"))
}

impl LoggedAcl {
    /// Parses the bytes behind a record's fixed part: `info.count` entries, padding to
    /// whole words, `info.fuids` ids.
    ///
    /// # Errors
    /// `Corrupt` when bytes are missing or left over, `Limit` for more than 1024
    /// entries.
    pub fn parse(bytes: &[u8], info: &AclInfo, endian: Endian) -> Result<LoggedAcl> {
        if info.count > ACE_MAX {
            return Err(Error::limit("an ACL has more than 1024 entries"));
        }
        let ids = usize::try_from(info.fuids).ok().and_then(|n| n.checked_mul(8));
        let split = ids.and_then(|n| bytes.len().checked_sub(n));
        let (entries, ids) =
            split.and_then(|at| bytes.split_at_checked(at)).ok_or_else(|| corrupt("its ids"))?;
        let mut r = endian.reader(entries, "ACL in an intent log record");
        let mut aces = Vec::with_capacity(info.count as usize);
        for _ in 0..info.count {
            let (who, mask, flags, kind) = (r.u32()?, r.u32()?, r.u16()?, r.u16()?);
            let mut ace = Ace { kind, flags, mask, who: 0, object_types: None };
            if matches!(ace.subject(), Who::User(_) | Who::Group(_)) {
                ace.who = u64::from(who);
            }
            if OBJECT_ACES.contains(&kind) {
                ace.object_types = r.take(32)?.first_chunk().copied();
            }
            aces.push(ace);
        }
        if r.remaining().len() >= 8 {
            return Err(corrupt("bytes are left over"));
        }
        let fuids = ids.as_chunks::<8>().0.iter().map(|id| endian.u64_of(*id)).collect();
        Ok(LoggedAcl { aces, fuids })
    }

    /// The entries with the ids of the list inserted; `fuid` converts an id of the list
    /// to one of the file system.
    ///
    /// # Errors
    /// `Unsupported` when it is ambiguous to which entry an id belongs; errors of
    /// `fuid`.
    pub fn resolve(&self, mut fuid: impl FnMut(u64) -> Result<u64>) -> Result<Vec<Ace>> {
        let mut aces = self.aces.clone();
        let named = |a: &Ace| matches!(a.subject(), Who::User(_) | Who::Group(_));
        let foreign = |a: &Ace| named(a) && a.who >= EPHEMERAL;
        let wanted = self.fuids.len();
        let count = |f: &dyn Fn(&Ace) -> bool| aces.iter().filter(|a| f(a)).count();
        let all = if wanted == 0 || count(&foreign) == wanted {
            false
        } else if count(&named) == wanted {
            true
        } else {
            let text = "an ACL in the log has ids that belong to none of its entries";
            return Err(Error::unsupported(text));
        };
        let mut ids = self.fuids.iter();
        let takes = |a: &Ace| wanted > 0 && if all { named(a) } else { foreign(a) };
        for ace in aces.iter_mut().filter(|a| takes(a)) {
            if let Some(id) = ids.next() {
                ace.who = fuid(*id)?;
            }
        }
        Ok(aces)
    }
}

impl Record<'_> {
    /// The ACL that the record carries: `bytes` are [`super::RecordBody::Acl`]'s or
    /// [`super::Create`]'s.
    ///
    /// # Errors
    /// As [`LoggedAcl::parse`].
    pub fn acl(&self, info: &AclInfo, bytes: &[u8]) -> Result<LoggedAcl> {
        LoggedAcl::parse(bytes, info, self.endian)
    }
}

/// Encodes an ACL for a little-endian record, with the counts that describe it.
pub fn encode_acl(acl: &LoggedAcl, flags: u64) -> (AclInfo, Vec<u8>) {
    let mut out = Vec::with_capacity(acl.aces.len() * 12 + acl.fuids.len() * 8 + 8);
    for ace in &acl.aces {
        // Wider ids are in the list.
        out.extend((ace.who as u32).to_le_bytes());
        out.extend(ace.mask.to_le_bytes());
        out.extend(ace.flags.to_le_bytes());
        out.extend(ace.kind.to_le_bytes());
        if OBJECT_ACES.contains(&ace.kind) {
            out.extend(ace.object_types.unwrap_or_default());
        }
    }
    out.resize(out.len().next_multiple_of(8), 0);
    out.extend(acl.fuids.iter().flat_map(|id| id.to_le_bytes()));
    let info = AclInfo { count: acl.aces.len() as u64, fuids: acl.fuids.len() as u64, flags };
    (info, out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acl::{ACE_EVERYONE, ACE_IDENTIFIER_GROUP, ACE_OWNER};
    use base::ErrorKind;
    use proptest::prelude::*;

    fn ace(kind: u16, flags: u16, who: u64) -> Ace {
        let object_types = OBJECT_ACES.contains(&kind).then_some([7; 32]);
        Ace { kind, flags, mask: 0x21, who, object_types }
    }

    fn mixed() -> LoggedAcl {
        let aces = vec![
            ace(0, ACE_OWNER, 0),
            ace(0, 0, 1000),
            ace(1, ACE_IDENTIFIER_GROUP, EPHEMERAL + 5),
            ace(5, 0, EPHEMERAL + 6),
            ace(0, ACE_EVERYONE, 0),
        ];
        LoggedAcl { aces, fuids: vec![1 << 32 | 70, 2 << 32 | 80] }
    }

    #[test]
    fn foreign_ids_go_to_the_entries_that_need_them() {
        let acl = mixed();
        let (info, bytes) = encode_acl(&acl, 2);
        assert_eq!((info.count, info.fuids, bytes.len()), (5, 2, 5 * 12 + 32 + 4 + 16));
        assert_eq!(LoggedAcl::parse(&bytes, &info, Endian::Little).unwrap(), acl);
        let whose = |acl: &LoggedAcl| -> Vec<u64> {
            acl.resolve(Ok).unwrap().iter().map(|a| a.who).collect()
        };
        assert_eq!(whose(&acl), [0, 1000, 1 << 32 | 70, 2 << 32 | 80, 0]);
        // One for each named entry.
        let every = LoggedAcl { fuids: vec![7, 8, 9], ..mixed() };
        assert_eq!(whose(&every), [0, 7, 8, 9, 0]);
        // Large ids, and no list that assigns others to them.
        let plain = LoggedAcl { fuids: Vec::new(), ..mixed() };
        assert_eq!(whose(&plain), [0, 1000, EPHEMERAL + 5, EPHEMERAL + 6, 0]);
        let odd = LoggedAcl { fuids: vec![1], ..mixed() };
        assert_eq!(odd.resolve(Ok).unwrap_err().kind(), ErrorKind::Unsupported);
    }

    #[test]
    fn every_part_swaps_by_its_own_width() {
        let big = [
            &[0, 0, 3, 0xe8, 0, 0, 0, 0x21, 0, 0x40, 0, 1][..],
            &[0; 4],
            &[0, 0, 0, 1, 0, 0, 0, 70],
        ];
        let info = AclInfo { count: 1, fuids: 1, flags: 0 };
        let acl = LoggedAcl::parse(&big.concat(), &info, Endian::Big).unwrap();
        assert_eq!(acl.aces, [ace(1, ACE_IDENTIFIER_GROUP, 1000)]);
        assert_eq!(acl.fuids, [1 << 32 | 70]);
    }

    #[test]
    fn counts_must_fit() {
        let (info, bytes) = encode_acl(&mixed(), 0);
        let kind = |info: AclInfo, bytes: &[u8]| {
            LoggedAcl::parse(bytes, &info, Endian::Little).unwrap_err().kind()
        };
        for count in [0, 3, 4, 6, 7] {
            assert_eq!(kind(AclInfo { count, ..info }, &bytes), ErrorKind::Corrupt, "{count}");
        }
        assert_eq!(kind(AclInfo { count: 1025, ..info }, &bytes), ErrorKind::Limit);
        for fuids in [100, u64::MAX] {
            assert_eq!(kind(AclInfo { fuids, ..info }, &bytes), ErrorKind::Corrupt);
        }
        assert_eq!(kind(info, &bytes[..40]), ErrorKind::Corrupt);
    }

    proptest! {
        #[test]
        fn any_bytes_do_no_harm(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            count in 0u64..8,
            fuids in 0u64..8,
        ) {
            for endian in [Endian::Little, Endian::Big] {
                let info = AclInfo { count, fuids, flags: 0 };
                if let Ok(acl) = LoggedAcl::parse(&bytes, &info, endian) {
                    prop_assert_eq!(acl.aces.len() as u64, count);
                    if let Ok(aces) = acl.resolve(Ok) {
                        prop_assert_eq!(aces.len(), acl.aces.len());
                    }
                    let (info, again) = encode_acl(&acl, 0);
                    prop_assert_eq!(LoggedAcl::parse(&again, &info, Endian::Little).unwrap(), acl);
                }
            }
        }
    }
}
