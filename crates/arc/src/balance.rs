//! The division of the cache between data and metadata.
//!
//! # Theory
//! Metadata has no fixed quarter: the division follows the misses that a larger share
//! would have avoided. From time to time, the fraction is moved by the bytes of the
//! ghost hits of both kinds since the last time. Metadata's ghost hits count with
//! `meta_balance` percent of the weight of data's ([`adjust`], chapter 10 §2.4).
//!
//! # Departures from OpenZFS
//! * The ghost hits are weighted by the reach of the ghosts they come from
//!   ([`Division::settle`]): a kind that already has most of the cache also has most of
//!   the ghosts, and would win merely by their number.
//! * Neither kind gets less than [`SHARE_MIN`] of the cache.

/// The value 1 as a 32-bit fixed-point fraction.
pub const ONE: u64 = 1 << 32;
/// Initial share of metadata. OpenZFS starts at a quarter. But a share is a bound, not
/// a reservation, and a first walk beside a stream of data has no ghosts yet that could
/// raise metadata's share.
pub(crate) const META_START: u64 = ONE / 16 * 15;
/// Smallest share of either kind.
pub(crate) const SHARE_MIN: u64 = ONE / 64;
/// Largest factor by which the reach of the ghosts scales a push.
const WEIGHT_MAX: u64 = 8;

/// The fraction `f` (of 2^32) after `up` and `down` bytes of ghost hits among `total`
/// bytes of ghosts; `balance` is the weight of `up` in percent (chapter 10 §2.4).
pub fn adjust(f: u64, total: u64, up: u64, down: u64, balance: u64) -> u64 {
    if total < 32 || up + down == 0 {
        return f;
    }
    let (mut up, mut down) = (up, down);
    if up + down >= total / 16 {
        let k = (up + down) / (total / 32);
        up /= k;
        down /= k;
    }
    let s = (64 - (u64::BITS - total.leading_zeros())).min(32);
    let o = ONE - f;
    if f >= 4 * o {
        up /= f / (2 * o + 1);
    }
    up = (up << s) / (total >> (32 - s)).max(1);
    if o >= 4 * f {
        down /= o / (2 * f + 1);
    }
    down = (down << s) / (total >> (32 - s)).max(1);
    down = down * 100 / balance.max(1);
    (f + up).saturating_sub(down).min(ONE)
}

/// Ghost hits of one kind since the last settlement of the division.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pushes {
    /// Bytes of blocks that were requested again.
    pub hits: u64,
    /// Bytes that the ghosts remember.
    pub ghosts: u64,
}

/// The share of metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Division {
    meta: u64,
}

impl Default for Division {
    fn default() -> Division {
        Division { meta: META_START }
    }
}

impl Division {
    /// Metadata's share, in units of 2^-32.
    pub(crate) fn meta(&self) -> u64 {
        self.meta
    }

    /// Metadata's share of `bytes`.
    #[cfg(test)]
    fn meta_of(&self, bytes: u64) -> u64 {
        ((u128::from(bytes) * u128::from(self.meta)) >> 32) as u64
    }

    /// Moves the division by the ghost hits of both kinds; `balance` in percent.
    pub(crate) fn settle(&mut self, data: Pushes, metadata: Pushes, balance: u32) {
        let total = data.ghosts + metadata.ghosts;
        let weigh = |p: Pushes| {
            let even = total / 2;
            let reach = p.ghosts.clamp(even / WEIGHT_MAX, even.saturating_mul(2)).max(1);
            (u128::from(p.hits) * u128::from(even.max(1)) / u128::from(reach)) as u64
        };
        let f = adjust(self.meta, total, weigh(metadata), weigh(data), u64::from(balance));
        self.meta = f.clamp(SHARE_MIN, ONE - SHARE_MIN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The test vectors of chapter 10 §2.4.
    #[test]
    fn vectors() {
        const MIB: u64 = 1 << 20;
        for (f, up, down, balance, expected) in [
            (0x4000_0000, MIB, 0, 500, 0x4040_0000),
            (0x4000_0000, 0, MIB, 500, 0x3ff3_3334),
            (0x4000_0000, MIB, MIB, 500, 0x4033_3334),
            (0x8000_0000, 4 * MIB, MIB, 100, 0x80c0_0000),
            (0x8000_0000, 100 * MIB, 0, 100, 0x8855_5554),
            (0xf000_0000, 16 * MIB, 0, 100, 0xf092_4924),
            (0x1000_0000, 0, 16 * MIB, 500, 0x0fe2_be2c),
        ] {
            assert_eq!(adjust(f, 1 << 30, up, down, balance), expected, "{f:x} {up} {down}");
        }
    }

    #[test]
    fn metadata_that_comes_back_beside_a_stream_gets_nearly_all() {
        let mut d = Division::default();
        for _ in 0..800 {
            let ghosts = |share: u64| (share >> 2).max(1);
            let meta = Pushes { hits: 1 << 22, ghosts: ghosts(d.meta()) };
            let data = Pushes { hits: 0, ghosts: ghosts(ONE - d.meta()) };
            d.settle(data, meta, 500);
        }
        assert!(d.meta() > ONE / 100 * 94, "{}", d.meta() * 100 / ONE);
    }

    proptest! {
        #[test]
        fn the_share_stays_inside(
            hits in prop::collection::vec((0u64..1 << 40, 0u64..1 << 40, 0u64..1 << 40, 0u64..1 << 40), 1..60),
            balance in 1u32..10_000,
        ) {
            let mut d = Division::default();
            for (a, b, c, e) in hits {
                d.settle(Pushes { hits: a, ghosts: b }, Pushes { hits: c, ghosts: e }, balance);
                prop_assert!((SHARE_MIN..=ONE - SHARE_MIN).contains(&d.meta()));
                prop_assert!(d.meta_of(1 << 50) <= 1 << 50);
            }
        }
    }
}
