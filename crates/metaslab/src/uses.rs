//! What each metaslab of a vdev is used for: small data, large data, or metadata.
//!
//! # Theory
//! Random overwrites of small records leave holes of one record. Indirect blocks and large
//! records do not fit into such holes, so a pool that mixes them must divide these blocks into
//! gangs long before it is full. Metadata has another lifetime, too: a txg that overwrites many
//! records replaces most indirect blocks above them, and their space is free again two txgs
//! later. Metaslabs that hold nothing but metadata therefore empty themselves.
//!
//! Records of one object that are written side by side in one txg are a *run*. Compression
//! gives them different sizes, but they belong together, so the whole run has the use of its
//! record size.
//!
//! Large data and metadata *claim* metaslabs; small data uses those that nobody claimed. A claim
//! is a preference: every block may use any metaslab before the pool reports that it is full. It is
//! state in memory alone. At the end of each txg [`UseClaims::rebalance`] compares the free
//! space that the claimed metaslabs offer with what recent txgs allocated, and claims the
//! emptiest metaslab or gives one up. A claimed metaslab with small data drains, because records
//! that are overwritten move away.
//!
//! # Invariants
//! * A metaslab has at most one use. The one kept for intent logs has none.
//! * Each use claims at most a quarter of the metaslabs; a vdev of fewer than
//!   [`METASLABS_MIN`] has no claims.

use base::rt::atomic::{AtomicU8, AtomicU64, Ordering};

use crate::{SpaceClass, Want};

/// Stored bytes of the largest block of small data.
pub(crate) const SMALL_DATA_MAX: u64 = 32 << 10;
/// Fewest metaslabs of a vdev with claims.
const METASLABS_MIN: usize = 8;
/// Free ranges of at least this size count as space for what claims metaslabs: a compressed
/// indirect block, and a record of 128 KiB.
const CLAIM_RANGE: [u64; 2] = [64 << 10, 128 << 10];
/// Metaslabs that one txg may claim for one use.
const CLAIMS_A_TXG: usize = 8;
/// A use claims more while its metaslabs offer less than one txg allocates, and gives one up
/// when they offer more than six do. Twice as much at the lower end leaves small data without
/// room in a pool 90 % full (docs/allocator.md).
const RESERVE: (u64, u64) = (1, 6);

/// What a metaslab is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MetaslabUse {
    /// Blocks up to [`SMALL_DATA_MAX`], but not those of runs of larger records.
    SmallData,
    /// Larger blocks of data.
    LargeData,
    /// Metadata, and intent logs that have no metaslab of their own.
    Metadata,
}

/// The uses, in order of their numbers.
pub(crate) const USES: usize = 3;

impl MetaslabUse {
    /// The use of a block.
    pub(crate) fn of(want: &Want) -> MetaslabUse {
        match want.psize.max(want.record) {
            _ if want.metadata || want.class == SpaceClass::Log => MetaslabUse::Metadata,
            0..=SMALL_DATA_MAX => MetaslabUse::SmallData,
            _ => MetaslabUse::LargeData,
        }
    }

    fn claimant(self) -> Option<usize> {
        match self {
            MetaslabUse::SmallData => None,
            MetaslabUse::Metadata => Some(0),
            MetaslabUse::LargeData => Some(1),
        }
    }

    /// Free ranges of at least so many bytes count for it.
    pub(crate) fn range_min(self) -> u64 {
        self.claimant().map_or(0, |c| CLAIM_RANGE[c])
    }
}

/// Uses that claim metaslabs, in the order in which they do so.
const CLAIMANTS: [MetaslabUse; 2] = [MetaslabUse::Metadata, MetaslabUse::LargeData];

/// How a metaslab stands to a use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Claim {
    /// For this use.
    Own,
    /// For none that claims.
    Unclaimed,
    /// For another.
    Other,
}

/// The claims on the metaslabs of one vdev.
#[derive(Debug, Default)]
pub(crate) struct UseClaims {
    /// By metaslab: 0, or the claimant's number and 1.
    claims: Vec<AtomicU8>,
    /// By claimant: bytes allocated since the last txg ended.
    now: [AtomicU64; 2],
    /// By claimant: the largest such sum of recent txgs, which decays.
    recent: [AtomicU64; 2],
}

/// The free space of a metaslab, for [`UseClaims::rebalance`].
pub(crate) struct ClaimFacts {
    /// It may be claimed: it may be allocated from, and neither is it kept for intent logs nor
    /// does small data sweep through it.
    pub(crate) usable: bool,
    /// Free bytes.
    pub(crate) free: u64,
    /// Bytes in free ranges that count for each claimant.
    pub(crate) in_ranges: [u64; 2],
}

impl UseClaims {
    /// Appends metaslabs.
    pub(crate) fn grow(&mut self, metaslabs: usize) {
        self.claims.resize_with(metaslabs, AtomicU8::default);
    }

    /// Removes the claim on a metaslab.
    pub(crate) fn release(&self, i: usize) {
        self.claims.get(i).inspect(|c| c.store(0, Ordering::Relaxed));
    }

    /// How a metaslab stands to a use.
    pub(crate) fn of(&self, i: usize, purpose: MetaslabUse) -> Claim {
        let claim = self.claims.get(i).map_or(0, |c| c.load(Ordering::Relaxed));
        let own = purpose.claimant().map_or(0, |c| c as u8 + 1);
        match claim {
            _ if claim == own => Claim::Own,
            0 => Claim::Unclaimed,
            _ => Claim::Other,
        }
    }

    /// Counts bytes that a use allocated.
    pub(crate) fn allocated(&self, purpose: MetaslabUse, bytes: u64) {
        if let Some(c) = purpose.claimant() {
            self.now[c].fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Adjusts the claims at the end of a txg. `facts` has the metaslabs in their order.
    pub(crate) fn rebalance(&self, facts: &[ClaimFacts]) {
        if facts.len() < METASLABS_MIN {
            return;
        }
        for (c, purpose) in CLAIMANTS.into_iter().enumerate() {
            let now = self.now[c].swap(0, Ordering::Relaxed);
            let recent = self.recent[c].load(Ordering::Relaxed);
            let demand = now.max(recent - recent / 8);
            self.recent[c].store(demand, Ordering::Relaxed);
            let mut own: Vec<usize> =
                (0..facts.len()).filter(|&i| self.of(i, purpose) == Claim::Own).collect();
            let mut offered: u64 = own.iter().map(|&i| facts[i].in_ranges[c]).sum();
            let most = facts.len() / 4;
            for _ in 0..CLAIMS_A_TXG {
                if offered >= demand * RESERVE.0 || own.len() >= most {
                    break;
                }
                let unclaimed = |&i: &usize| {
                    facts[i].usable && self.of(i, MetaslabUse::SmallData) == Claim::Own
                };
                let emptiest = |&i: &usize| (facts[i].in_ranges[c], facts[i].free);
                let Some(best) = (0..facts.len()).filter(unclaimed).max_by_key(emptiest) else {
                    break;
                };
                if facts[best].free == 0 {
                    break;
                }
                self.claims[best].store(c as u8 + 1, Ordering::Relaxed);
                offered += facts[best].in_ranges[c];
                own.push(best);
            }
            if demand == 0 {
                own.iter().for_each(|&i| self.release(i));
            } else if offered > demand.saturating_mul(RESERVE.1) {
                // The one that offers least, in exchange for the least space.
                let least = own.iter().copied().min_by_key(|&i| facts[i].in_ranges[c]);
                least.inspect(|&i| self.release(i));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const M: u64 = 1 << 20;

    fn facts(free: &[u64]) -> Vec<ClaimFacts> {
        free.iter().map(|&free| ClaimFacts { usable: true, free, in_ranges: [free; 2] }).collect()
    }

    fn claimed(claims: &UseClaims, n: usize, purpose: MetaslabUse) -> Vec<usize> {
        (0..n).filter(|&i| claims.of(i, purpose) == Claim::Own).collect()
    }

    #[test]
    fn a_run_of_records_has_one_use() {
        let want = |psize, record, metadata| Want {
            psize,
            record,
            copies: 1,
            class: SpaceClass::Normal,
            txg: base::Txg(1),
            hint: 0,
            metadata,
            gang_child: false,
            avoid: None,
        };
        let cases = [
            (4 << 10, 0, false, MetaslabUse::SmallData),
            (4 << 10, 8 << 10, false, MetaslabUse::SmallData),
            (4 << 10, 128 << 10, false, MetaslabUse::LargeData),
            (100 << 10, 0, false, MetaslabUse::LargeData),
            (100 << 10, 128 << 10, false, MetaslabUse::LargeData),
            (4 << 10, 128 << 10, true, MetaslabUse::Metadata),
        ];
        for (psize, record, metadata, purpose) in cases {
            let of = MetaslabUse::of(&want(psize, record, metadata));
            assert_eq!(of, purpose, "{psize} of {record}");
        }
    }

    fn claims(n: usize) -> UseClaims {
        let mut claims = UseClaims::default();
        claims.grow(n);
        claims
    }

    #[test]
    fn the_emptiest_metaslabs_are_claimed_as_needed() {
        let claims = claims(16);
        let free: Vec<u64> = (0..16).map(|i| i * M).collect();
        claims.allocated(MetaslabUse::Metadata, 10 * M);
        claims.rebalance(&facts(&free));
        assert_eq!(claimed(&claims, 16, MetaslabUse::Metadata), [15]);
        assert_eq!(claimed(&claims, 16, MetaslabUse::LargeData), []);
        assert_eq!(claims.of(3, MetaslabUse::Metadata), Claim::Unclaimed);
        assert_eq!(claims.of(15, MetaslabUse::LargeData), Claim::Other);
        claims.allocated(MetaslabUse::LargeData, 20 * M);
        claims.rebalance(&facts(&free));
        assert_eq!(claimed(&claims, 16, MetaslabUse::LargeData), [13, 14]);
    }

    #[test]
    fn claims_are_given_up_when_nothing_needs_them() {
        let claims = claims(16);
        claims.allocated(MetaslabUse::Metadata, 10 * M);
        claims.rebalance(&facts(&[8 * M; 16]));
        assert_eq!(claimed(&claims, 16, MetaslabUse::Metadata).len(), 2);
        let mut txgs = 0;
        while !claimed(&claims, 16, MetaslabUse::Metadata).is_empty() {
            claims.rebalance(&facts(&[8 * M; 16]));
            txgs += 1;
            assert!(txgs < 200);
        }
        assert!(txgs > 4, "given up after {txgs} txgs");
    }

    #[test]
    fn a_quarter_is_the_most_and_small_vdevs_have_none() {
        let few = claims(7);
        few.allocated(MetaslabUse::Metadata, 10 * M);
        few.rebalance(&facts(&[M; 7]));
        assert_eq!(claimed(&few, 7, MetaslabUse::Metadata), []);
        let many = claims(16);
        for _ in 0..4 {
            many.allocated(MetaslabUse::Metadata, 1000 * M);
            many.rebalance(&facts(&[M; 16]));
        }
        assert_eq!(claimed(&many, 16, MetaslabUse::Metadata).len(), 4);
    }

    #[test]
    fn full_and_unusable_metaslabs_are_not_claimed() {
        let claims = claims(8);
        let mut all = facts(&[0, 0, 0, 0, 0, 0, 0, M]);
        all[7].usable = false;
        claims.allocated(MetaslabUse::LargeData, M);
        claims.rebalance(&all);
        assert_eq!(claimed(&claims, 8, MetaslabUse::LargeData), []);
    }
}
