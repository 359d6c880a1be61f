//! A filter of the keys that the ZAPs of a dedup table have, in memory. A write of content that
//! no table has need not read the ZAPs to find that out.
//!
//! # Theory
//! [`KeyFilter`] is a chain of split block Bloom filters (as Apache Parquet specifies them): a
//! key sets one bit in each of the eight words of one block of 32 bytes. A full link of the chain
//! is followed by a larger one; with 16 bits for each key a link takes a key for one of its own
//! once in some 700 times. A key that is removed leaves its bits, and the filter may say that
//! keys are there that are not. Only the opposite is never wrong.
//!
//! Keys are checksums, and a writer can choose content by its checksum. So positions are
//! not bits of the key but of a sum of products with secret random numbers, which is strongly
//! universal (multilinear hashing): two keys that were chosen without knowing the numbers meet
//! with a probability of 2^-64.
//!
//! [`TableFilter`] has a table's filter, if there is one that is *complete*:
//!
//! * A table that has no ZAPs gets an empty one.
//! * For another one, as an import finds it, one is made by reading the ZAPs, a part in each txg,
//!   in the order of their cursors ([`super::table`]). It takes part in everything from the start,
//!   which is a txg before the first part is read: keys that come into the ZAPs meanwhile are
//!   added to it, too, so a reading may be of this txg's ZAPs or of the last one's. An entry that
//!   was there before is found when its place is read, because its hash and differentiator do not
//!   change while it exists. So the filter is complete when the last ZAP was read.
//! * One that cannot grow any more and has many keys of removed entries is replaced in the same
//!   way.
//!
//! Reading is paid for by its use: a txg reads some [`PER_LOOKUP`] entries for each look-up that
//! read the ZAPs in vain since the last one. In the order of the leaves these cost less than one
//! look-up of a random key.
//!
//! # Invariants
//! * A complete filter has every key that is in one of the table's ZAPs: each key is added before
//!   its entry is put there, on the sync thread, while nothing is looked up.
//! * All links of a chain take at most `budget` bytes. When the last one cannot be followed by
//!   another, it takes more keys than it is meant for, and is wrong more often.
//!
//! # Memory
//! [`budget`]: a sixteenth of the cache's largest size for each table, twice that while a filter
//! is replaced. A table has about 2 to 4 bytes for each of its entries.
//!
//! # Crash argument
//! The filter is only in memory; an import begins without one.
//!
//! # Hostile tables
//! A ZAP whose listing lacks an entry that a look-up finds is damaged; the entry is not in the
//! filter, and is no worse off than with an audit, which lists. A table that cannot be listed
//! gets no filter.
//!
//! Lock order: none taken here. A filter belongs to its table, behind the lock of all tables.

use ondisk::ddt::{Class, Key};
use ondisk::zap::Cursor;

use crate::dedup::CLASSES;

/// Words of a block.
const WORDS: usize = 8;
/// Keys that a link is meant to have in a block: 16 bits each.
const KEYS_OF_BLOCK: usize = 16;
/// Blocks of the first link, and the factor to the next one.
const FIRST: usize = 1 << 10;
const GROWTH: usize = 4;
/// Entries that are read for each look-up that was in vain.
const PER_LOOKUP: u64 = 8;
/// Entries that one txg reads at most, about.
const PART_MAX: u64 = 1 << 15;
/// Odd numbers that choose a bit of each word (Apache Parquet, "Split block Bloom filter").
const SALTS: [u32; WORDS] = [
    0x47b6_137b,
    0x4497_4d91,
    0x8824_ad5b,
    0xa2b7_289d,
    0x7054_95c7,
    0x2df1_424b,
    0x9efc_4947,
    0x5c6b_fb31,
];

/// Bytes that the filter of a table may take beside a cache of this largest size.
pub(super) fn budget(cache: u64) -> usize {
    usize::try_from(cache / 16).unwrap_or(usize::MAX)
}

type FilterBlock = [u32; WORDS];

/// The bits of a hash in its block.
fn mask(hash: u64) -> FilterBlock {
    SALTS.map(|salt| 1 << ((hash as u32).wrapping_mul(salt) >> 27))
}

/// One filter of a fixed size.
struct FilterLink {
    blocks: Box<[FilterBlock]>,
    keys: usize,
}

impl FilterLink {
    fn new(blocks: usize) -> FilterLink {
        FilterLink { blocks: vec![[0; WORDS]; blocks].into_boxed_slice(), keys: 0 }
    }

    /// The block of a hash.
    fn at(&self, hash: u64) -> usize {
        ((u128::from(hash) * self.blocks.len() as u128) >> 64) as usize
    }

    fn has(&self, hash: u64) -> bool {
        let block = self.blocks.get(self.at(hash));
        block.is_none_or(|block| block.iter().zip(mask(hash)).all(|(word, bit)| word & bit != 0))
    }

    fn add(&mut self, hash: u64) {
        let at = self.at(hash);
        if let Some(block) = self.blocks.get_mut(at) {
            block.iter_mut().zip(mask(hash)).for_each(|(word, bit)| *word |= bit);
            self.keys += 1;
        }
    }

    fn is_full(&self) -> bool {
        self.keys >= self.blocks.len().saturating_mul(KEYS_OF_BLOCK)
    }
}

/// The chain.
pub(super) struct KeyFilter {
    factors: [u128; 6],
    links: Vec<FilterLink>,
    /// Blocks that may still be added.
    room: usize,
}

impl KeyFilter {
    /// One without keys; `None` without memory or random numbers for it.
    fn new(budget: usize) -> Option<KeyFilter> {
        let mut factors = [0; 6];
        for factor in &mut factors {
            let half = || base::rt::random_u64().ok().map(u128::from);
            *factor = half()? << 64 | half()?;
        }
        let room = budget / size_of::<FilterBlock>();
        let first = FIRST.min(room);
        (first > 0).then(|| KeyFilter {
            factors,
            links: vec![FilterLink::new(first)],
            room: room - first,
        })
    }

    fn hash(&self, key: &Key) -> u64 {
        let [constant, factors @ ..] = self.factors;
        let words = key.to_words().into_iter().zip(factors);
        let sum = words.fold(constant, |sum, (word, factor)| {
            sum.wrapping_add(factor.wrapping_mul(u128::from(word)))
        });
        (sum >> 64) as u64
    }

    fn has_hash(&self, hash: u64) -> bool {
        // Most keys are in the last one.
        self.links.iter().rev().any(|link| link.has(hash))
    }

    /// Whether a key may have been added.
    fn has(&self, key: &Key) -> bool {
        self.has_hash(self.hash(key))
    }

    fn add(&mut self, key: &Key) {
        let hash = self.hash(key);
        if self.has_hash(hash) {
            return;
        }
        let is_crowded = self.is_crowded();
        let Some(last) = self.links.last_mut() else { return };
        if is_crowded || !last.is_full() {
            return last.add(hash);
        }
        let size = last.blocks.len().saturating_mul(GROWTH).min(self.room);
        self.room -= size;
        let mut link = FilterLink::new(size);
        link.add(hash);
        self.links.push(link);
    }

    /// Whether the last link is full, and another one would not be worth its look-ups.
    fn is_crowded(&self) -> bool {
        let least = |last: &FilterLink| (last.blocks.len() / 4).max(1);
        self.links.last().is_none_or(|last| last.is_full() && self.room < least(last))
    }

    fn keys(&self) -> u64 {
        self.links.iter().map(|link| link.keys as u64).fold(0, u64::saturating_add)
    }
}

/// A filter that is being made, and what is left to read.
struct FilterScan {
    filter: KeyFilter,
    class: usize,
    at: Cursor,
}

/// What is known of the keys in the ZAPs of a table.
pub(super) struct TableFilter {
    budget: usize,
    complete: Option<KeyFilter>,
    scan: Option<FilterScan>,
    /// The ZAPs cannot be listed.
    unreadable: bool,
}

impl TableFilter {
    /// That of a table without ZAPs, or of one whose ZAPs are not known.
    pub(super) fn new(budget: usize, empty: bool) -> TableFilter {
        let complete = if empty { KeyFilter::new(budget) } else { None };
        TableFilter { budget, complete, scan: None, unreadable: false }
    }

    /// The table has no ZAPs any more.
    pub(super) fn clear(&mut self) {
        if self.complete.as_ref().is_none_or(|filter| filter.keys() > 0) {
            *self = TableFilter::new(self.budget, true);
        }
    }

    /// Whether a ZAP may have a key.
    pub(super) fn may_have(&self, key: &Key) -> bool {
        self.complete.as_ref().is_none_or(|filter| filter.has(key))
    }

    /// Notes that a ZAP is about to get a key.
    pub(super) fn add(&mut self, key: &Key) {
        let scanned = self.scan.as_mut().map(|scan| &mut scan.filter);
        for filter in [self.complete.as_mut(), scanned].into_iter().flatten() {
            filter.add(key);
        }
    }

    /// How many entries this txg reads for a filter that is being made. `entries`: those in the
    /// ZAPs; `fruitless`: look-ups that found nothing there.
    pub(super) fn part(&mut self, entries: u64, fruitless: u64) -> u64 {
        if self.unreadable || fruitless == 0 {
            return 0;
        }
        if self.scan.is_none() {
            let is_stale = |filter: &KeyFilter| filter.is_crowded() && filter.keys() / 2 > entries;
            // With less than a byte for each key it would be of no use.
            let fits = usize::try_from(entries).is_ok_and(|entries| entries <= self.budget);
            if !fits || !self.complete.as_ref().is_none_or(is_stale) {
                return 0;
            }
            let filter = KeyFilter::new(self.budget);
            self.scan = filter.map(|filter| FilterScan { filter, class: 0, at: Cursor::default() });
            return 0;
        }
        fruitless.saturating_mul(PER_LOOKUP).min(PART_MAX)
    }

    /// Where to read on.
    pub(super) fn position(&self) -> Option<(Class, Cursor)> {
        let scan = self.scan.as_ref()?;
        Some((*Class::ALL.get(scan.class)?, scan.at))
    }

    /// Adds keys that were read at the position; `next`: where to read on in the ZAP.
    pub(super) fn found(&mut self, keys: &[Key], next: Option<Cursor>) {
        let Some(scan) = &mut self.scan else { return };
        keys.iter().for_each(|key| scan.filter.add(key));
        match next {
            Some(at) => scan.at = at,
            None => (scan.class, scan.at) = (scan.class + 1, Cursor::default()),
        }
        if scan.class >= CLASSES {
            self.complete = self.scan.take().map(|scan| scan.filter);
        }
    }

    /// Gives up making a filter.
    pub(super) fn fail(&mut self) {
        (self.scan, self.unreadable) = (None, true);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// Keys of which most words are equal, as those of a weak checksum.
    fn key(n: u64) -> Key {
        Key { words: [n, 0, 0, n << 40], prop: 7 }
    }

    /// Bytes of the links.
    fn bytes(filter: &KeyFilter) -> usize {
        filter.links.iter().map(|link| link.blocks.len() * size_of::<FilterBlock>()).sum()
    }

    #[test]
    fn keys_are_found_and_few_others() {
        let mut filter = KeyFilter::new(16 << 20).unwrap();
        let count = 300_000;
        (0..count).for_each(|n| filter.add(&key(n)));
        assert!((0..count).all(|n| filter.has(&key(n))));
        let wrong = (count..2 * count).filter(|n| filter.has(&key(*n))).count();
        assert!(wrong < count as usize / 50, "{wrong}");
        assert!(filter.links.len() == 3 && bytes(&filter) <= 1 << 20, "{}", bytes(&filter));
        let keys = filter.keys();
        assert!(keys <= count && keys > count - count / 50, "{keys}");
        // Those that it has already take no more room.
        (0..count).for_each(|n| filter.add(&key(n)));
        assert_eq!(filter.keys(), keys);
    }

    #[test]
    fn memory_is_bounded_and_no_key_is_lost() {
        for budget in [32, 100, 4096, 70_000, 200_000] {
            let mut filter = KeyFilter::new(budget).unwrap();
            (0..50_000).for_each(|n| filter.add(&key(n)));
            assert!(bytes(&filter) <= budget, "{budget}");
            assert!((0..50_000).all(|n| filter.has(&key(n))), "{budget}");
            assert_eq!(filter.is_crowded(), budget < 100_000, "{budget}");
        }
        assert!(KeyFilter::new(31).is_none());
    }

    #[test]
    fn two_filters_differ() {
        let filters = [(); 2].map(|()| KeyFilter::new(1 << 20).unwrap());
        let hashes = |n: u64| filters.each_ref().map(|filter| filter.hash(&key(n)));
        assert!((0..100).all(|n| hashes(n)[0] != hashes(n)[1]));
    }

    /// A table's ZAPs, as a listing sees them: entries by class and position.
    #[derive(Default)]
    struct ListedZaps([BTreeMap<u64, Key>; CLASSES]);

    impl ListedZaps {
        /// Reads entries for a filter; `leaf`: of one step.
        fn scan(&self, filter: &mut TableFilter, fruitless: u64, leaf: usize) {
            let mut left = filter.part(self.count(), fruitless);
            while left > 0
                && let Some((class, at)) = filter.position()
            {
                let zap = &self.0[usize::from(class.code())];
                let part: Vec<_> = zap.range(at.hash..).take(leaf).collect();
                let next = part.last().and_then(|(hash, _)| {
                    let (hash, _) = zap.range(*hash + 1..).next()?;
                    Some(Cursor { hash: *hash, cd: 0 })
                });
                let keys: Vec<Key> = part.iter().map(|(_, key)| **key).collect();
                filter.found(&keys, next);
                left = left.saturating_sub(keys.len().max(1) as u64);
            }
        }

        fn remove(&mut self, at: u64) {
            for zap in &mut self.0 {
                zap.remove(&at);
            }
        }

        fn count(&self) -> u64 {
            self.0.iter().map(|zap| zap.len() as u64).sum()
        }
    }

    proptest! {
        /// Entries come, move between classes and go while filters are made and replaced: a
        /// table's filter always has all keys of the ZAPs.
        #[test]
        fn a_filter_has_all_keys(
            empty in any::<bool>(),
            budget in 64usize..20_000,
            before in 0u64..300,
            leaf in 1usize..20,
            ops in prop::collection::vec((0u8..6, 0u64..2000, 0..CLASSES), 0..600),
        ) {
            let mut zaps = ListedZaps::default();
            let mut filter = TableFilter::new(budget, empty);
            if !empty {
                zaps.0[2].extend((0..before).map(|n| (n * 31 % 2003, key(n * 31 % 2003))));
            }
            for (op, n, class) in ops {
                match op {
                    0..=2 => {
                        zaps.remove(n);
                        filter.add(&key(n));
                        zaps.0[class].insert(n, key(n));
                    }
                    3 => {
                        zaps.remove(n);
                    }
                    4 => zaps.scan(&mut filter, n % 8, leaf),
                    _ if n < 20 => {
                        zaps = ListedZaps::default();
                        filter.clear();
                        prop_assert!(filter.complete.is_some());
                    }
                    _ => {}
                }
                let all = zaps.0.iter().flat_map(|zap| zap.values());
                prop_assert!(all.into_iter().all(|key| filter.may_have(key)));
            }
            if zaps.count() <= budget as u64 {
                while filter.complete.is_none() {
                    zaps.scan(&mut filter, 1, leaf);
                }
                let all = zaps.0.iter().flat_map(|zap| zap.values());
                prop_assert!(all.into_iter().all(|key| filter.may_have(key)));
            }
        }
    }

    #[test]
    fn keys_of_removed_entries_are_forgotten_in_time() {
        let (mut zaps, mut filter) = (ListedZaps::default(), TableFilter::new(1 << 15, true));
        for n in 0..100_000 {
            filter.add(&key(n));
        }
        zaps.0[2].extend((0..1000).map(|n| (n, key(n))));
        assert!((0..1000).all(|n| filter.may_have(&key(n))));
        let wrong =
            |filter: &TableFilter| (200_000..210_000).filter(|n| filter.may_have(&key(*n))).count();
        assert!(wrong(&filter) > 1000, "{}", wrong(&filter));
        for _ in 0..1000 {
            zaps.scan(&mut filter, 100, 60);
        }
        assert!((0..1000).all(|n| filter.may_have(&key(n))));
        assert!(wrong(&filter) < 100, "{}", wrong(&filter));
        // A table that cannot be listed has none, as one that is too large.
        let mut filter = TableFilter::new(1 << 15, false);
        assert!(filter.part(100_000, 5) == 0 && filter.scan.is_none());
        assert!(filter.part(1000, 5) == 0 && filter.part(1000, 5) > 0);
        filter.fail();
        assert!(filter.part(1000, 5) == 0 && filter.may_have(&key(1)));
    }
}
