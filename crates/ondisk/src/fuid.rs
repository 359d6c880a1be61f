//! FUIDs: ids of users and groups that are not POSIX ids (chapter 06 §12).
//!
//! # Theory
//! A FUID consists of a domain's index and an id relative to it; index 0 means a plain
//! POSIX id. Domains are in a table object, a packed nvlist. Linux and FreeBSD never
//! create them. Cenote reads, shows and keeps them; new ones come only from intent
//! logs.
//!
//! # Invariants
//! * Indices in a [`FuidTable`] are distinct and not 0.

use std::collections::BTreeMap;

use base::{Error, Result};
use nvlist::{NvList, NvStr, Value};

/// A stored owner or group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fuid(pub u64);

impl Fuid {
    /// Index of the domain; 0 for POSIX ids.
    pub fn domain(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Id within the domain.
    pub fn rid(self) -> u32 {
        self.0 as u32
    }
}

/// The domains of a file system, by index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FuidTable {
    domains: BTreeMap<u32, Box<[u8]>>,
}

impl FuidTable {
    /// Parses the content of the table object, cut to its packed size.
    ///
    /// # Errors
    /// `Corrupt` when it is not such a list, or an index is 0 or used twice.
    pub fn parse(packed: &[u8]) -> Result<FuidTable> {
        let bad = |what: &str| Error::corrupt(format!("FUID table: {what}"));
        let list = NvList::unpack(packed)?;
        let entries = list.lists("fuid_nvlist").ok_or_else(|| bad("no list of domains"))?;
        let mut domains = BTreeMap::new();
        for entry in entries {
            let index = entry.need_u64("fuid_idx")?;
            let index = u32::try_from(index).ok().filter(|i| *i != 0);
            let index = index.ok_or_else(|| bad("impossible index"))?;
            let domain = entry.string("fuid_domain").ok_or_else(|| bad("no domain"))?;
            if domains.insert(index, domain.as_bytes().into()).is_some() {
                return Err(bad("two domains have one index"));
            }
        }
        Ok(FuidTable { domains })
    }

    /// The domain of a FUID; `None` for POSIX ids and unknown domains.
    pub fn domain(&self, fuid: Fuid) -> Option<&[u8]> {
        self.domains.get(&fuid.domain()).map(AsRef::as_ref)
    }

    /// The index of a domain that is in the table.
    pub fn index_of(&self, domain: &[u8]) -> Option<u32> {
        self.domains.iter().find(|(_, d)| d.as_ref() == domain).map(|(i, _)| *i)
    }

    /// Adds a domain to the table and returns its index: one more than the number of
    /// domains or than the highest index.
    ///
    /// # Errors
    /// `Limit` when no index is left.
    pub fn add(&mut self, domain: &[u8]) -> Result<u32> {
        if let Some(index) = self.index_of(domain) {
            return Ok(index);
        }
        let last = self.domains.last_key_value().map_or(0, |(i, _)| *i);
        let full = || Error::limit("there is no index for one more domain of ids");
        let index = last.max(self.domains.len() as u32).checked_add(1).ok_or_else(full)?;
        self.domains.insert(index, domain.into());
        Ok(index)
    }

    /// The content of the table object.
    ///
    /// # Errors
    /// Those of packing.
    pub fn pack(&self) -> Result<Vec<u8>> {
        let entry = |(index, domain): (u32, &[u8])| -> Result<NvList> {
            let mut entry = NvList::new();
            entry.add_u64("fuid_idx", u64::from(index)).add_u64("fuid_offset", 0);
            entry.try_insert(b"fuid_domain", Value::String(NvStr::new(domain)?))?;
            Ok(entry)
        };
        let mut list = NvList::new();
        list.add_lists("fuid_nvlist", self.iter().map(entry).collect::<Result<_>>()?);
        Ok(list.pack_xdr())
    }

    /// Every domain with its index.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &[u8])> {
        self.domains.iter().map(|(i, d)| (*i, d.as_ref()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(index: u64, domain: &str) -> NvList {
        let mut e = NvList::new();
        e.add_u64("fuid_idx", index).add_u64("fuid_offset", 0).add_str("fuid_domain", domain);
        e
    }

    fn packed(entries: Vec<NvList>) -> Vec<u8> {
        let mut list = NvList::new();
        list.add_lists("fuid_nvlist", entries);
        list.pack_xdr()
    }

    #[test]
    fn new_domains_follow_the_others() {
        let mut table = FuidTable::default();
        assert_eq!(table.add(b"S-1-5-21-1").unwrap(), 1);
        assert_eq!(table.add(b"S-1-5-21-2").unwrap(), 2);
        assert_eq!(table.add(b"S-1-5-21-1").unwrap(), 1);
        assert_eq!(FuidTable::parse(&table.pack().unwrap()).unwrap(), table);
        // A table with gaps.
        let mut odd = FuidTable::parse(&packed(vec![entry(5, "x"), entry(9, "y")])).unwrap();
        assert_eq!((odd.add(b"z").unwrap(), odd.index_of(b"x")), (10, Some(5)));
        let mut full = FuidTable::parse(&packed(vec![entry(u64::from(u32::MAX), "x")])).unwrap();
        assert_eq!(full.add(b"z").unwrap_err().kind(), base::ErrorKind::Limit);
    }

    #[test]
    fn domains() {
        let table = FuidTable::parse(&packed(vec![entry(1, "S-1-5-21-1"), entry(2, "S-1-5-21-2")]));
        let table = table.unwrap();
        assert_eq!(table.domain(Fuid(2 << 32 | 500)), Some(&b"S-1-5-21-2"[..]));
        assert_eq!((table.domain(Fuid(500)), table.domain(Fuid(3 << 32))), (None, None));
        assert_eq!(table.iter().count(), 2);
        assert_eq!(Fuid(2 << 32 | 500).rid(), 500);
        for bad in [
            packed(vec![entry(0, "x")]),
            packed(vec![entry(1, "x"), entry(1, "y")]),
            packed(vec![entry(1 << 32, "x")]),
            packed(vec![NvList::new()]),
            NvList::new().pack_xdr(),
            vec![1, 1, 0],
        ] {
            assert!(FuidTable::parse(&bad).is_err());
        }
    }
}
