//! The 189 fields of `arcstat` (chapter 09 §7.1): name, width, unit, words, value.
//!
//! # Departures
//! Two points are not in the chapter. The `%` twin of a breakdown is a share of `size` for the
//! parts of the cache, and of the bytes in all states for types and states. Targets are shares
//! of the bytes in all states, by the fractions `meta`, `pd`, `pm`.

use cenote::kstat::Kstat;

/// The unit of a field's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FieldUnit {
    /// The time of day.
    Time,
    /// A count, or counts a second.
    Count,
    /// Bytes, or bytes a second.
    Bytes,
    /// Percent.
    Percent,
}

impl FieldUnit {
    /// The base of the suffixes.
    pub(crate) fn scale(self) -> f64 {
        match self {
            FieldUnit::Bytes => 1024.0,
            FieldUnit::Percent => 100.0,
            FieldUnit::Count | FieldUnit::Time => 1000.0,
        }
    }
}

/// One field of the output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ArcField {
    /// Its name and heading.
    pub(crate) name: String,
    /// Width of its column.
    pub(crate) width: usize,
    /// The unit of its number.
    pub(crate) unit: FieldUnit,
    /// Its description.
    pub(crate) what: String,
}

/// Classes of lookups: prefix, widths of counts and percentages, kstat prefixes, description.
type LookupClass = (&'static str, usize, usize, &'static [&'static str], &'static str);

const CLASSES: [LookupClass; 7] = [
    ("d", 4, 3, &["demand_data", "demand_metadata"], "demand"),
    ("dd", 5, 4, &["demand_data"], "demand data"),
    ("dm", 5, 4, &["demand_metadata"], "demand metadata"),
    ("p", 4, 3, &["prefetch_data", "prefetch_metadata"], "prefetch"),
    ("pd", 5, 4, &["prefetch_data"], "prefetch data"),
    ("pm", 5, 4, &["prefetch_metadata"], "prefetch metadata"),
    ("m", 4, 3, &["demand_metadata", "prefetch_metadata"], "metadata"),
];

/// Fields that are the rate of one counter: name, width, unit, counter, description.
const RATES: [(&str, usize, FieldUnit, &str, &str); 21] = [
    ("hits", 4, FieldUnit::Count, "hits", "hits per second"),
    ("iohs", 4, FieldUnit::Count, "iohits", "I/O hits per second"),
    ("miss", 4, FieldUnit::Count, "misses", "misses per second"),
    ("mfu", 4, FieldUnit::Count, "mfu_hits", "MFU list hits per second"),
    ("mru", 4, FieldUnit::Count, "mru_hits", "MRU list hits per second"),
    ("mfug", 4, FieldUnit::Count, "mfu_ghost_hits", "MFU ghost list hits per second"),
    ("mrug", 4, FieldUnit::Count, "mru_ghost_hits", "MRU ghost list hits per second"),
    ("unc", 4, FieldUnit::Count, "uncached_hits", "uncached list hits per second"),
    ("eskip", 5, FieldUnit::Count, "evict_skip", "evict skips per second"),
    (
        "el2skip",
        7,
        FieldUnit::Bytes,
        "evict_l2_skip",
        "bytes skipped by eviction for L2 writes per second",
    ),
    ("el2cach", 7, FieldUnit::Bytes, "evict_l2_cached", "bytes evicted that L2 has per second"),
    (
        "el2el",
        5,
        FieldUnit::Bytes,
        "evict_l2_eligible",
        "bytes evicted that L2 may have per second",
    ),
    ("el2mfu", 6, FieldUnit::Bytes, "evict_l2_eligible_mfu", "of these from MFU per second"),
    ("el2mru", 6, FieldUnit::Bytes, "evict_l2_eligible_mru", "of these from MRU per second"),
    (
        "el2inel",
        7,
        FieldUnit::Bytes,
        "evict_l2_ineligible",
        "bytes evicted that L2 may not have per second",
    ),
    ("mtxmis", 6, FieldUnit::Count, "mutex_miss", "mutex misses per second"),
    ("rmis", 4, FieldUnit::Count, "recycle_miss", "recycle misses per second"),
    ("l2hits", 6, FieldUnit::Count, "l2_hits", "L2ARC hits per second"),
    ("l2miss", 6, FieldUnit::Count, "l2_misses", "L2ARC misses per second"),
    ("l2bytes", 7, FieldUnit::Bytes, "l2_read_bytes", "bytes read from the L2ARC per second"),
    ("l2wbytes", 8, FieldUnit::Bytes, "l2_write_bytes", "bytes written to the L2ARC per second"),
];

/// Fields that are the value of one counter.
const LEVELS: [(&str, usize, FieldUnit, &str, &str); 14] = [
    ("arcsz", 5, FieldUnit::Bytes, "size", "ARC size"),
    ("size", 5, FieldUnit::Bytes, "size", "ARC size"),
    ("c", 5, FieldUnit::Bytes, "c", "ARC target size"),
    ("l2size", 6, FieldUnit::Bytes, "l2_size", "size of the L2ARC"),
    ("l2asize", 7, FieldUnit::Bytes, "l2_asize", "space taken by the L2ARC"),
    ("l2pref", 6, FieldUnit::Bytes, "l2_prefetch_asize", "L2ARC space of prefetched blocks"),
    ("l2mfu", 5, FieldUnit::Bytes, "l2_mfu_asize", "L2ARC space of MFU blocks"),
    ("l2mru", 5, FieldUnit::Bytes, "l2_mru_asize", "L2ARC space of MRU blocks"),
    ("l2data", 6, FieldUnit::Bytes, "l2_bufc_data_asize", "L2ARC space of data"),
    ("l2meta", 6, FieldUnit::Bytes, "l2_bufc_metadata_asize", "L2ARC space of metadata"),
    ("need", 5, FieldUnit::Bytes, "arc_need_free", "ARC bytes to be given back"),
    ("free", 5, FieldUnit::Bytes, "memory_free_bytes", "free memory"),
    ("avail", 5, FieldUnit::Bytes, "memory_available_bytes", "memory that the ARC may still take"),
    ("waste", 5, FieldUnit::Bytes, "abd_chunk_waste_size", "memory wasted by rounding"),
];

/// The parts of the cache: name, counter, description.
const PARTS: [(&str, &str, &str); 8] = [
    ("cmp", "compressed_size", "compressed"),
    ("ovh", "overhead_size", "overhead"),
    ("bon", "bonus_size", "bonus buffers"),
    ("dno", "dnode_size", "dnodes"),
    ("dbu", "dbuf_size", "dbufs"),
    ("hdr", "hdr_size", "headers"),
    ("l2h", "l2_hdr_size", "L2ARC headers"),
    ("abd", "abd_chunk_waste_size", "ABD chunk waste"),
];

/// States: name, prefix of the counter, description.
const STATES: [(&str, &str, &str); 4] = [
    ("ano", "anon", "anonymous"),
    ("mfu", "mfu", "MFU"),
    ("mru", "mru", "MRU"),
    ("unc", "uncached", "uncached"),
];

/// Sizes in a state: suffix, suffix of the counter, description.
const SIZES: [(&str, &str, &str); 5] = [
    ("sz", "size", "size"),
    ("da", "data", "data size"),
    ("me", "metadata", "metadata size"),
    ("ed", "evictable_data", "evictable data"),
    ("em", "evictable_metadata", "evictable metadata"),
];

/// The same in a ghost state.
const GHOSTS: [(&str, &str, &str); 3] =
    [("gsz", "size", "size"), ("gd", "data", "data size"), ("gm", "metadata", "metadata size")];

/// Targets of the lists.
const TARGETS: [(&str, &str); 3] =
    [("tg", "target"), ("dt", "data target"), ("mt", "metadata target")];

/// Fields of the prefetcher: name, width, counters summed, description.
const ZFETCH: [(&str, usize, &[&str], &str); 10] = [
    ("ztotal", 6, &["hits", "future", "stride", "past", "misses"], "prefetcher calls per second"),
    ("zhits", 5, &["hits"], "prefetcher stream hits per second"),
    ("zahead", 6, &["future", "stride"], "accesses ahead of a stream per second"),
    ("zpast", 5, &["past"], "accesses behind a stream per second"),
    ("zmisses", 7, &["misses"], "prefetcher stream misses per second"),
    ("zmax", 4, &["max_streams"], "stream limit reached per second"),
    ("zfuture", 7, &["future"], "accesses in the future of a stream per second"),
    ("zstride", 7, &["stride"], "strided accesses per second"),
    ("zissued", 7, &["io_issued"], "prefetches issued per second"),
    ("zactive", 7, &["io_active"], "prefetches under way"),
];

/// Further percentages and sums: name, width, description.
const OTHERS: [(&str, usize, FieldUnit, &str); 16] = [
    ("time", 8, FieldUnit::Time, "time"),
    ("read", 4, FieldUnit::Count, "accesses per second"),
    ("hit%", 4, FieldUnit::Percent, "hit percentage"),
    ("ioh%", 4, FieldUnit::Percent, "I/O hit percentage"),
    ("miss%", 5, FieldUnit::Percent, "miss percentage"),
    ("l2read", 6, FieldUnit::Count, "L2ARC accesses per second"),
    ("l2hit%", 6, FieldUnit::Percent, "L2ARC hit percentage"),
    ("l2miss%", 7, FieldUnit::Percent, "L2ARC miss percentage"),
    ("l2pref%", 7, FieldUnit::Percent, "L2ARC share of prefetched blocks"),
    ("l2mfu%", 6, FieldUnit::Percent, "L2ARC share of MFU blocks"),
    ("l2mru%", 6, FieldUnit::Percent, "L2ARC share of MRU blocks"),
    ("l2data%", 7, FieldUnit::Percent, "L2ARC share of data"),
    ("l2meta%", 7, FieldUnit::Percent, "L2ARC share of metadata"),
    ("grow", 4, FieldUnit::Count, "1 if the ARC may grow"),
    ("datatg", 6, FieldUnit::Bytes, "data target"),
    ("metatg", 6, FieldUnit::Bytes, "metadata target"),
];

/// Every field. `rmis`, which only the old `arcstat.pl` had, is included if `classic`.
pub(crate) fn all(classic: bool) -> Vec<ArcField> {
    let mut out: Vec<ArcField> = Vec::new();
    let mut add = |name: String, width: usize, unit: FieldUnit, what: String| {
        out.push(ArcField { name, width, unit, what });
    };
    for (name, width, unit, what) in OTHERS {
        add(name.into(), width, unit, what.into());
    }
    for (name, width, unit, _, what) in RATES {
        if classic || name != "rmis" {
            add(name.into(), width, unit, what.into());
        }
    }
    for (p, width, narrow, _, what) in CLASSES {
        add(format!("{p}hit"), width, FieldUnit::Count, format!("{what} hits per second"));
        add(format!("{p}ioh"), width, FieldUnit::Count, format!("{what} I/O hits per second"));
        add(format!("{p}mis"), width, FieldUnit::Count, format!("{what} misses per second"));
        add(format!("{p}read"), width + 1, FieldUnit::Count, format!("{what} accesses per second"));
        add(format!("{p}h%"), narrow, FieldUnit::Percent, format!("{what} hit percentage"));
        add(format!("{p}i%"), narrow, FieldUnit::Percent, format!("{what} I/O hit percentage"));
        add(format!("{p}m%"), narrow, FieldUnit::Percent, format!("{what} miss percentage"));
    }
    for (name, width, unit, _, what) in LEVELS {
        add(name.into(), width, unit, what.into());
    }
    for (name, width, _, what) in ZFETCH {
        add(name.into(), width, FieldUnit::Count, what.into());
    }
    let mut pair = |name: String, what: String, alone: bool| {
        let twin = format!("{name}%");
        if alone {
            add(name.clone(), name.len(), FieldUnit::Bytes, what.clone());
        }
        add(twin.clone(), twin.len(), FieldUnit::Percent, format!("{what}, percentage"));
    };
    for (name, _, what) in PARTS {
        pair(format!("{name}sz"), format!("{what} size"), true);
    }
    for what in ["data", "meta"] {
        pair(format!("{what}tg"), format!("{what} target"), false);
        pair(format!("{what}sz"), format!("{what} size"), true);
    }
    for (name, _, what) in STATES {
        let listed = matches!(name, "mfu" | "mru");
        for (suffix, target) in TARGETS.iter().filter(|_| listed) {
            pair(format!("{name}{suffix}"), format!("{what} {target}"), true);
        }
        for (suffix, _, size) in SIZES {
            pair(format!("{name}{suffix}"), format!("{what} {size}"), true);
        }
    }
    for (name, _, what) in &STATES[1..3] {
        for (suffix, _, size) in GHOSTS {
            let name = format!("{name}{suffix}");
            add(name.clone(), name.len(), FieldUnit::Bytes, format!("{what} ghost {size}"));
        }
    }
    out
}

/// Two readings, and the time between them.
pub(crate) struct Sample<'a> {
    /// The kstats before, or `None` for everything since the start.
    pub(crate) before: Option<&'a (Kstat, Kstat)>,
    /// `arcstats` and `zfetchstats` now.
    pub(crate) now: &'a (Kstat, Kstat),
    /// Seconds.
    pub(crate) seconds: f64,
}

fn signed(k: &Kstat, name: &str) -> f64 {
    k.get(name).and_then(|v| v.as_i128()).map_or(0.0, |n| n as f64)
}

fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { 100.0 * part / whole } else { 0.0 }
}

impl Sample<'_> {
    /// The value of a counter of `arcstats`.
    fn level(&self, name: &str) -> f64 {
        signed(&self.now.0, name)
    }

    /// Its increase a second.
    fn rate(&self, name: &str) -> f64 {
        (self.level(name) - self.before.map_or(0.0, |b| signed(&b.0, name))) / self.seconds
    }

    fn zfetch(&self, name: &str) -> f64 {
        let before = self.before.map_or(0.0, |b| signed(&b.1, name));
        (signed(&self.now.1, name) - before) / self.seconds
    }

    /// Hits, I/O hits and misses a second.
    fn lookups(&self, classes: &[&str]) -> [f64; 3] {
        ["hits", "iohits", "misses"]
            .map(|kind| classes.iter().map(|c| self.rate(&format!("{c}_{kind}"))).sum())
    }

    fn of_class(&self, name: &str) -> Option<f64> {
        let is = |c: &&LookupClass| {
            let known = ["hit", "ioh", "mis", "read", "h%", "i%", "m%"];
            name.strip_prefix(c.0).is_some_and(|rest| known.contains(&rest))
        };
        // The longest prefix: `dmm%` belongs to `dm`, not to `d`.
        let class = CLASSES.iter().filter(is).max_by_key(|c| c.0.len())?;
        let [hits, iohits, misses] = self.lookups(class.3);
        let read = hits + iohits + misses;
        Some(match name.strip_prefix(class.0)? {
            "hit" => hits,
            "ioh" => iohits,
            "mis" => misses,
            "read" => read,
            "h%" => ratio(hits, read),
            "i%" => ratio(iohits, read),
            _ if read > 0.0 => 100.0 - ratio(hits, read) - ratio(iohits, read),
            _ => 0.0,
        })
    }

    /// Bytes in all states.
    fn states(&self) -> f64 {
        STATES.iter().map(|(_, state, _)| self.level(&format!("{state}_size"))).sum()
    }

    fn target(&self, name: &str) -> Option<f64> {
        let fraction = |n: &str| self.level(n) / 4_294_967_296.0;
        let (meta, pd, pm) = (fraction("meta"), fraction("pd"), fraction("pm"));
        let (data, metadata) = (1.0 - meta, meta);
        let share = match name {
            "datatg" => data,
            "metatg" => metadata,
            "mrudt" => data * pd,
            "mrumt" => metadata * pm,
            "mrutg" => data * pd + metadata * pm,
            "mfudt" => data * (1.0 - pd),
            "mfumt" => metadata * (1.0 - pm),
            "mfutg" => data * (1.0 - pd) + metadata * (1.0 - pm),
            _ => return None,
        };
        Some(share * self.states())
    }

    fn breakdown(&self, name: &str) -> Option<f64> {
        if let Some((_, counter, _)) = PARTS.iter().find(|p| name.strip_prefix(p.0) == Some("sz")) {
            return Some(self.level(counter));
        }
        match name {
            "datasz" => return Some(self.level("data_size")),
            "metasz" => return Some(self.level("metadata_size")),
            _ => {}
        }
        if let Some(target) = self.target(name) {
            return Some(target);
        }
        let (_, state, _) = STATES.iter().find(|s| name.starts_with(s.0))?;
        let rest = name.get(3..)?;
        if let Some((_, size, _)) = SIZES.iter().find(|s| s.0 == rest) {
            return Some(self.level(&format!("{state}_{size}")));
        }
        let (_, size, _) = GHOSTS.iter().find(|g| g.0 == rest)?;
        Some(self.level(&format!("{state}_ghost_{size}")))
    }

    fn other(&self, name: &str) -> Option<f64> {
        let all = [self.rate("hits"), self.rate("iohits"), self.rate("misses")];
        let read: f64 = all.iter().sum();
        let (l2hits, l2miss) = (self.rate("l2_hits"), self.rate("l2_misses"));
        let of_l2 = |counter: &str| ratio(self.level(counter), self.level("l2_asize"));
        Some(match name {
            "read" => read,
            "hit%" => ratio(all[0], read),
            "ioh%" => ratio(all[1], read),
            "miss%" if read > 0.0 => 100.0 - ratio(all[0], read) - ratio(all[1], read),
            "miss%" => 0.0,
            "l2read" => l2hits + l2miss,
            "l2hit%" => ratio(l2hits, l2hits + l2miss),
            "l2miss%" => ratio(l2miss, l2hits + l2miss),
            "l2pref%" => of_l2("l2_prefetch_asize"),
            "l2mfu%" => of_l2("l2_mfu_asize"),
            "l2mru%" => of_l2("l2_mru_asize"),
            "l2data%" => of_l2("l2_bufc_data_asize"),
            "l2meta%" => of_l2("l2_bufc_metadata_asize"),
            "grow" => f64::from(self.level("arc_no_grow") == 0.0),
            _ => return None,
        })
    }

    /// A field's value; 0 for an unknown field.
    pub(crate) fn value(&self, name: &str) -> f64 {
        if let Some(rate) = RATES.iter().find(|r| r.0 == name) {
            return self.rate(rate.3);
        }
        if let Some(level) = LEVELS.iter().find(|l| l.0 == name) {
            return self.level(level.3);
        }
        if let Some((.., counters, _)) = ZFETCH.iter().find(|z| z.0 == name) {
            return match name {
                "zactive" => signed(&self.now.1, "io_active"),
                _ => counters.iter().map(|c| self.zfetch(c)).sum(),
            };
        }
        if let Some(value) = self.other(name).or_else(|| self.of_class(name)) {
            return value;
        }
        if let Some(value) = self.breakdown(name) {
            return value;
        }
        let Some(bare) = name.strip_suffix('%') else { return 0.0 };
        let part = PARTS.iter().any(|p| bare.strip_prefix(p.0) == Some("sz"));
        let whole = if part { self.level("size") } else { self.states() };
        ratio(self.breakdown(bare).unwrap_or(0.0), whole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_189_fields_each_once() {
        let names: std::collections::BTreeSet<String> =
            all(false).into_iter().map(|f| f.name).collect();
        assert_eq!((all(false).len(), names.len()), (189, 189));
        assert_eq!(all(true).len(), 190);
    }

    #[test]
    fn formulas() {
        let mut arc = Kstat::numbers([
            ("hits", 90),
            ("iohits", 5),
            ("misses", 25),
            ("demand_data_hits", 60),
            ("demand_data_misses", 20),
            ("demand_metadata_hits", 30),
            ("demand_metadata_iohits", 5),
            ("prefetch_metadata_misses", 5),
            ("size", 1000),
            ("compressed_size", 800),
            ("mru_size", 300),
            ("mfu_size", 500),
            ("mru_ghost_metadata", 7),
            ("meta", 1 << 30),
            ("pd", 1 << 31),
        ]);
        if let cenote::kstat::KstatBody::Named(rows) = &mut arc.body {
            rows.push(("memory_available_bytes".into(), cenote::kstat::Value::I64(-7)));
        }
        let zfetch = Kstat::numbers([("hits", 10), ("future", 4), ("stride", 2), ("io_active", 3)]);
        let before = (Kstat::numbers([("hits", 50)]), Kstat::numbers([]));
        let now = (arc, zfetch);
        let s = Sample { before: Some(&before), now: &now, seconds: 2.0 };
        for (name, value) in [
            ("hits", 20.0),
            ("read", 35.0),
            ("dread", 57.5),
            ("dh%", 100.0 * 45.0 / 57.5),
            ("ddm%", 25.0),
            ("dmm%", 0.0),
            ("dmi%", 100.0 / 7.0),
            ("mm%", 12.5),
            ("mread", 20.0),
            ("pmm%", 100.0),
            ("pdm%", 0.0),
            ("avail", -7.0),
            ("cmpsz%", 80.0),
            ("mfusz%", 62.5),
            ("mrugm", 7.0),
            ("metatg", 200.0),
            ("mrudt", 300.0),
            ("mrudt%", 37.5),
            ("ztotal", 8.0),
            ("zahead", 3.0),
            ("zactive", 3.0),
            ("grow", 1.0),
            ("l2hit%", 0.0),
            ("nothing", 0.0),
        ] {
            let is = s.value(name);
            assert!((is - value).abs() < 1e-9, "{name}: {is} is not {value}");
        }
        let since = Sample { before: None, now: &now, seconds: 1.0 };
        assert_eq!(since.value("hits"), 90.0);
    }
}
