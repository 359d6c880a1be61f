//! Prefetch for walks over directories.
//!
//! # Theory
//! A program that lists a directory mostly opens the listed files next. So the blocks with
//! the dnodes of a page's entries are prefetched ([`Objset::prefetch_dnodes`]), and the ZAP
//! leaves behind the page ([`Zap::leaves_from`]). A program that looks up one name after
//! the other in the order of an earlier listing is treated alike, leaf by leaf.
//!
//! [`Walks`] keeps the progress of the last few walks, so that nothing is requested twice.
//! It is a pure state machine over hashes and a clock.
//!
//! # Invariants
//! * One call requests at most [`LEAVES`] leaves and [`DNODE_BLOCKS`] blocks of dnodes.
//!
//! [`Objset::prefetch_dnodes`]: crate::Objset::prefetch_dnodes
//! [`Zap::leaves_from`]: crate::Zap::leaves_from

use std::time::Duration;

use base::rt::Mutex;

/// Leaves prefetched for a walk.
pub(crate) const LEAVES: usize = 8;
/// Blocks of dnodes prefetched for one page.
pub(crate) const DNODE_BLOCKS: usize = 64;
/// Walks remembered.
const WALKS: usize = 16;
/// Look-ups in the order of hashes that are taken for a walk.
const RUN: u32 = 4;
/// A walk that starts over after this time makes its requests again.
const FORGET: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, Default)]
struct ListingWalk {
    /// The directory's object; 0 = none.
    dir: u64,
    seen: Duration,
    /// Cookie of the page listed last.
    page: Option<u64>,
    /// The listing's position. Leaves below `leaves` were requested; the next request is
    /// made when the listing passes `refill`.
    at: u64,
    leaves: u64,
    refill: u64,
    /// The last hash looked up, how often the hashes ascended, and the hash up to which
    /// dnodes were requested.
    last: u64,
    run: u32,
    dnodes: u64,
}

/// The walks of one file system.
#[derive(Debug, Default)]
pub struct Walks(Mutex<[ListingWalk; WALKS]>);

impl Walks {
    /// Without walks.
    pub fn new() -> Walks {
        Walks::default()
    }

    fn with<R>(&self, now: Duration, dir: u64, f: impl FnOnce(&mut ListingWalk) -> R) -> R {
        let mut walks = self.0.lock();
        // The walk used last comes first; the last entry is the oldest.
        let at = walks.iter().position(|w| w.dir == dir).unwrap_or(WALKS - 1);
        walks[..=at].rotate_right(1);
        let walk = &mut walks[0];
        if walk.dir != dir || now.saturating_sub(walk.seen) > FORGET {
            *walk = ListingWalk { dir, ..ListingWalk::default() };
        }
        walk.seen = now;
        f(walk)
    }

    /// The page at `cookie` of `dir` was listed. Returns whether its dnodes should be
    /// prefetched: not if the same page is listed twice in a row (first without waiting, in
    /// vain, and then with waiting).
    pub fn page(&self, now: Duration, dir: u64, cookie: u64) -> bool {
        self.with(now, dir, |w| w.page.replace(cookie) != Some(cookie))
    }

    /// A walk through `dir` has come to `hash`. Returns the hash from which leaves should
    /// be prefetched, if they should. Then [`Walks::requested`] must report how far.
    pub fn leaves(&self, now: Duration, dir: u64, hash: u64) -> Option<u64> {
        self.with(now, dir, |w| {
            if hash < w.at {
                // The walk starts over.
                (w.leaves, w.refill) = (0, 0);
            }
            w.at = hash;
            (hash >= w.refill).then(|| hash.max(w.leaves))
        })
    }

    /// Leaves were requested up to hash `to`; the next request is due at `half`.
    pub fn requested(&self, now: Duration, dir: u64, half: u64, to: u64) {
        self.with(now, dir, |w| (w.refill, w.leaves) = (half.max(1), to));
    }

    /// A name with this hash was found in `dir`, whose leaves span about `span` of the hash
    /// space. Returns whether a walk continues there whose dnodes were not requested. Then
    /// [`Walks::warmed`] must report how far.
    pub fn looked_up(&self, now: Duration, dir: u64, hash: u64, span: u64) -> bool {
        self.with(now, dir, |w| {
            if hash == w.last {
                return false;
            }
            let ascends = hash > w.last && hash - w.last <= span;
            w.run = if ascends { w.run.saturating_add(1) } else { 0 };
            if hash < w.last {
                w.dnodes = 0;
            }
            w.last = hash;
            w.run >= RUN && hash >= w.dnodes
        })
    }

    /// The dnodes of `dir`'s entries up to hash `to` were requested.
    pub fn warmed(&self, now: Duration, dir: u64, to: u64) {
        self.with(now, dir, |w| w.dnodes = to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const T: Duration = Duration::from_secs(50);
    const LEAF: u64 = 1 << 50;

    /// Lists a directory of equal leaves; returns the leaves requested, and when.
    fn list(walks: &Walks, dir: u64, leaves: u64) -> Vec<(u64, u64)> {
        let mut requested = Vec::new();
        for leaf in 1..leaves {
            let Some(from) = walks.leaves(T, dir, leaf * LEAF) else { continue };
            let first = from / LEAF;
            let end = (first + LEAVES as u64).min(leaves);
            requested.extend((first..end).map(|l| (leaf, l)));
            walks.requested(T, dir, (first + 4) * LEAF, end * LEAF);
        }
        requested
    }

    #[test]
    fn leaves_are_requested_once_and_in_time() {
        let walks = Walks::new();
        let requested = list(&walks, 7, 100);
        let order: Vec<u64> = requested.iter().map(|a| a.1).collect();
        assert_eq!(order, (1..100).collect::<Vec<_>>());
        assert!(requested.iter().all(|(at, leaf)| leaf - at <= 12 && leaf >= at));
        // Another walk of the same directory a while later.
        let later = T + 2 * FORGET;
        assert_eq!(walks.leaves(later, 7, LEAF), Some(LEAF));
    }

    #[test]
    fn a_page_is_requested_once() {
        let walks = Walks::new();
        assert!(walks.page(T, 1, 0));
        assert!(!walks.page(T, 1, 0));
        assert!(walks.page(T, 1, 9) && walks.page(T, 2, 9));
        assert!(walks.page(T + 2 * FORGET, 1, 9));
        for dir in 10..10 + WALKS as u64 {
            walks.page(T, dir, 0);
        }
        assert!(walks.page(T, 2, 9), "forgotten for newer ones");
    }

    #[test]
    fn look_ups_in_order_are_a_walk() {
        let walks = Walks::new();
        let mut warmed = Vec::new();
        for i in 1..1000u64 {
            // Each name twice: first without waiting, in vain, then with waiting.
            for _ in 0..2 {
                if walks.looked_up(T, 5, i << 40, LEAF) {
                    walks.warmed(T, 5, ((i << 40) / LEAF + 1) * LEAF);
                    warmed.push(i);
                }
            }
        }
        assert_eq!(warmed, [4], "one leaf, one time");
        assert!(walks.looked_up(T, 5, LEAF + 1, LEAF), "the next leaf");
    }

    proptest! {
        /// In a directory of many leaves, names in no order are not taken for a walk.
        #[test]
        fn random_look_ups_are_no_walk(hashes in prop::collection::vec(any::<u64>(), 1000)) {
            let walks = Walks::new();
            let walk = hashes.iter().filter(|h| walks.looked_up(T, 5, **h, LEAF)).count();
            prop_assert!(walk < 5, "{}", walk);
        }

        /// Any calls in any order: no panic, and requests never move backwards.
        #[test]
        fn any_calls(calls in prop::collection::vec((0u64..20, any::<u64>(), 0u8..4), 1..200)) {
            let walks = Walks::new();
            for (dir, hash, kind) in calls {
                match kind {
                    0 => drop(walks.page(T, dir, hash)),
                    1 => {
                        if let Some(from) = walks.leaves(T, dir, hash) {
                            prop_assert!(from >= hash);
                            walks.requested(T, dir, from.saturating_add(4), from.saturating_add(8));
                        }
                    }
                    2 => drop(walks.looked_up(T, dir, hash, u64::MAX)),
                    _ => walks.warmed(T, dir, hash),
                }
            }
        }
    }
}
