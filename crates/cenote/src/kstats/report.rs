//! A one-page report about the cache, from the kstats of this engine or of any ZFS.

use kstat::Kstat;

/// A count and its share of the total.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// How many.
    pub count: u64,
    /// Its share, between 0 and 1; `None` if the total is 0.
    pub share: Option<f64>,
}

impl Share {
    fn of(count: u64, all: u64) -> Share {
        Share { count, share: (all > 0).then(|| count as f64 / all as f64) }
    }
}

/// The second tier.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct L2Report {
    /// Misses of the first tier that it served.
    pub hits: Share,
    /// Misses that it did not serve.
    pub misses: Share,
    /// Logical bytes it holds.
    pub size: u64,
    /// Bytes it takes on its devices.
    pub asize: u64,
}

/// The cache on one page. Sizes are bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct ArcReport {
    /// The total size of the cache.
    pub actual: u64,
    /// Target size.
    pub target: u64,
    /// Least target size.
    pub min: u64,
    /// Largest target size.
    pub max: u64,
    /// The part of the target for blocks used once.
    pub mru_target: Option<u64>,
    /// Lookups.
    pub accesses: u64,
    /// Answered from memory.
    pub hits: Share,
    /// Joined a read in flight.
    pub iohits: Share,
    /// Had to read.
    pub misses: Share,
    /// Hits by list, of all hits. Repeated uses of a block in immediate succession count as
    /// one for the policy, and belong to no list.
    pub lists: Vec<(&'static str, Share)>,
    /// Misses on keys in ghost lists, by list, of all misses.
    pub ghosts: Vec<(&'static str, Share)>,
    /// Hits by form, of all forms; nothing for other systems' caches.
    pub forms: Vec<(&'static str, Share)>,
    /// The second tier, if there is or was one.
    pub l2: Option<L2Report>,
    /// Bytes of metadata and of the cache's own directory.
    pub metadata_used: u64,
    /// A fixed limit of it, where there is one.
    pub metadata_limit: Option<u64>,
    /// Its maximum so far, where that is counted.
    pub metadata_max: Option<u64>,
    /// The part of the target for metadata, where target shares adapt.
    pub metadata_target: Option<u64>,
}

/// A 32-bit fixed-point share.
fn fraction(n: u64) -> f64 {
    (n as f64 / 4_294_967_296.0).clamp(0.0, 1.0)
}

impl ArcReport {
    /// The report from `arcstats`, and from `cenote_arc` if present. Missing counters count
    /// as 0.
    pub fn new(arcstats: &Kstat, own: Option<&Kstat>) -> ArcReport {
        let get = |name: &str| arcstats.number(name);
        let n = |name: &str| get(name).unwrap_or(0);
        let (hits, iohits, misses) = (n("hits"), n("iohits"), n("misses"));
        let accesses = hits.saturating_add(iohits).saturating_add(misses);
        let target = n("c");
        let shares = (get("meta"), get("pd"), get("pm"));
        let adaptive = match shares {
            (Some(meta), Some(pd), Some(pm)) => {
                let (meta, pd, pm) = (fraction(meta), fraction(pd), fraction(pm));
                Some((meta, (1.0 - meta) * pd + meta * pm))
            }
            _ => None,
        };
        let of_target = |share: f64| (target as f64 * share) as u64;
        let list = |names: &[(&'static str, &str)], all: u64| {
            names.iter().map(|(shown, name)| (*shown, Share::of(n(name), all))).collect()
        };
        let mut lists: Vec<(&'static str, Share)> =
            list(&[("MRU", "mru_hits"), ("MFU", "mfu_hits"), ("uncached", "uncached_hits")], hits);
        let listed = lists.iter().fold(0u64, |sum, (_, s)| sum.saturating_add(s.count));
        if hits > listed {
            lists.push(("same use again", Share::of(hits - listed, hits)));
        }
        let l2 = (n("l2_hits"), n("l2_misses"), n("l2_size"), n("l2_asize"));
        let l2_all = l2.0.saturating_add(l2.1);
        let forms = own.map_or_else(Vec::new, |own| {
            let of = |name: &str| own.number(name).unwrap_or(0);
            let forms = [
                ("borrowed", of("hits_borrowed")),
                ("copied", of("hits_copied")),
                ("decompressed", of("hits_decompressed")),
            ];
            let all = forms.iter().fold(0u64, |sum, f| sum.saturating_add(f.1));
            forms.map(|(name, count)| (name, Share::of(count, all))).into()
        });
        ArcReport {
            actual: n("size"),
            target,
            min: n("c_min"),
            max: n("c_max"),
            mru_target: get("p").or(adaptive.map(|(_, mru)| of_target(mru))),
            accesses,
            hits: Share::of(hits, accesses),
            iohits: Share::of(iohits, accesses),
            misses: Share::of(misses, accesses),
            lists,
            ghosts: list(
                &[("MRU ghost", "mru_ghost_hits"), ("MFU ghost", "mfu_ghost_hits")],
                misses,
            ),
            forms,
            l2: (n("l2_ndev") > 0 || l2_all > 0 || l2.2 > 0).then(|| L2Report {
                hits: Share::of(l2.0, l2_all),
                misses: Share::of(l2.1, l2_all),
                size: l2.2,
                asize: l2.3,
            }),
            metadata_used: n("arc_meta_used"),
            metadata_limit: get("arc_meta_limit").filter(|&n| n > 0),
            metadata_max: get("arc_meta_max"),
            metadata_target: adaptive.map(|(meta, _)| of_target(meta)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_happened_is_not_a_ratio() {
        let r = ArcReport::new(&Kstat::numbers([("c", 1 << 30)]), None);
        assert_eq!((r.hits.share, r.accesses, r.mru_target, r.l2), (None, 0, None, None));
        assert!(r.lists.iter().chain(&r.ghosts).all(|(_, s)| s.share.is_none()));
    }

    #[test]
    fn shares_of_lists_make_a_whole() {
        let k = Kstat::numbers([("hits", 100), ("mru_hits", 10), ("mfu_hits", 30)]);
        let r = ArcReport::new(&k, None);
        assert_eq!(r.lists.last().unwrap(), &("same use again", Share::of(60, 100)));
        assert_eq!(r.lists.iter().map(|(_, s)| s.count).sum::<u64>(), 100);
        let k = Kstat::numbers([("hits", 100), ("mru_hits", 100)]);
        assert_eq!(ArcReport::new(&k, None).lists.len(), 3);
    }

    #[test]
    fn targets_of_both_generations() {
        let old = Kstat::numbers([("c", 1000), ("p", 300), ("arc_meta_limit", 250)]);
        let r = ArcReport::new(&old, None);
        assert_eq!((r.mru_target, r.metadata_limit), (Some(300), Some(250)));
        let quarter = 1 << 30;
        let new = Kstat::numbers([("c", 1000), ("meta", quarter), ("pd", 2 * quarter), ("pm", 0)]);
        let r = ArcReport::new(&new, None);
        assert_eq!((r.mru_target, r.metadata_target), (Some(375), Some(250)));
        // Impossible numbers from a foreign file.
        let r = ArcReport::new(&Kstat::numbers([("hits", u64::MAX), ("misses", u64::MAX)]), None);
        assert_eq!(r.hits.share, Some(1.0));
    }
}
