//! `arc_summary` (chapter 09 §7.2).
//!
//! A section is a list of lines made from the kstats. Each line has 72 columns, with text on
//! the left and one or two values on the right.

use std::ffi::OsString;
use std::fmt::Write;

use base::{Error, Result, rt};
use cenote::kstat::Kstat;
use commands::getopt::Bad;
use proto::{Reply, Request, TunableInfo};
use ui::{Exit, time};

use super::number::{bytes, count, percent};
use super::source::StatSource;

const USAGE: &str = "\
usage: arc_summary [-adgrh] [-s SECTION] [--path DIR]
	 -a : tunables in the form NAME=VALUE
	 -d : tunables with what they do
	 -g : a picture of the cache instead of the report
	 -r : the raw counters
	 -s : one section: arc archits dmu l2arc spl tunables vdev zil
	 --path : a directory such as /proc/spl/kstat/zfs instead of the daemon
";

const WIDTH: usize = 72;
const INDENT: &str = "        ";
const SECTIONS: [&str; 8] = ["arc", "archits", "dmu", "l2arc", "spl", "tunables", "vdev", "zil"];

/// The data of a report.
pub(super) struct Input {
    pub(super) arc: Kstat,
    pub(super) zfetch: Option<Kstat>,
    pub(super) zil: Option<Kstat>,
    tunables: Vec<TunableInfo>,
}

/// The lines of a report.
struct SummaryText(String);

impl SummaryText {
    fn put(&mut self, text: &str, value: &str) {
        let room = WIDTH.saturating_sub(text.chars().count());
        let _ = writeln!(self.0, "{text}{value:>room$}");
    }
    /// Left-justified words without a value.
    fn head(&mut self, text: &str) {
        let _ = writeln!(self.0, "{text}");
    }
    /// An indented line with one value.
    fn one(&mut self, text: &str, value: &str) {
        self.put(&format!("{INDENT}{text}"), value);
    }
    /// An indented line with a share and a value.
    fn two(&mut self, text: &str, share: &str, value: &str) {
        self.one(text, &format!("{share:>9}  {value:>9}"));
    }
    fn gap(&mut self) {
        self.0.push('\n');
    }
}

fn n(k: &Kstat, name: &str) -> u64 {
    k.number(name).unwrap_or(0)
}

/// A sum that saturates, because a file may be hostile.
fn sum(k: &Kstat, names: &[&str]) -> u64 {
    names.iter().fold(0u64, |all, name| all.saturating_add(n(k, name)))
}

fn header(now: u64) -> String {
    let uname = rustix::system::uname();
    let text = |s: &std::ffi::CStr| s.to_string_lossy().into_owned();
    let version = format!("cenote {}", env!("CARGO_PKG_VERSION"));
    let mut page = SummaryText(String::new());
    page.gap();
    page.head(&"-".repeat(WIDTH));
    page.put("ZFS Subsystem Report", &time::strftime("%a %b %d %H:%M:%S %Y", now));
    page.put(&format!("{} {}", text(uname.sysname()), text(uname.release())), &version);
    let machine = format!("Machine: {} ({})", text(uname.nodename()), text(uname.machine()));
    page.put(&machine, &version);
    page.gap();
    page.0
}

const BYTES: [(&str, &str); 8] = [
    ("Compressed size:", "compressed_size"),
    ("Overhead size:", "overhead_size"),
    ("Bonus size:", "bonus_size"),
    ("Dnode size:", "dnode_size"),
    ("Dbuf size:", "dbuf_size"),
    ("Header size:", "hdr_size"),
    ("L2 header size:", "l2_hdr_size"),
    ("ABD chunk waste size:", "abd_chunk_waste_size"),
];

const STATES: [(&str, &str); 4] =
    [("Anonymous", "anon"), ("MFU", "mfu"), ("MRU", "mru"), ("Uncached", "uncached")];

fn states(page: &mut SummaryText, k: &Kstat) {
    let all = sum(k, &["anon_size", "mfu_size", "mru_size", "uncached_size"]);
    page.put("ARC states breakdown (compressed + overhead):", &bytes(all));
    let fraction = |name: &str| (n(k, name) as f64 / 4_294_967_296.0).clamp(0.0, 1.0);
    for (words, state) in STATES {
        for (kind, suffix, key) in [("data", "data", "pd"), ("metadata", "metadata", "pm")] {
            let listed = matches!(state, "mfu" | "mru");
            if listed {
                let meta = fraction("meta");
                let of_kind = if kind == "data" { 1.0 - meta } else { meta };
                let mru = fraction(key);
                let share = of_kind * if state == "mru" { mru } else { 1.0 - mru };
                let target = (share * all as f64) as u64;
                page.two(&format!("{words} {kind} target:"), &percent(target, all), &bytes(target));
            }
            let mut size = |text: String, name: String| {
                let size = n(k, &name);
                page.two(&text, &percent(size, all), &bytes(size));
            };
            size(format!("{words} {kind} size:"), format!("{state}_{suffix}"));
            if listed {
                let evictable = format!("{state}_evictable_{suffix}");
                size(format!("{words} evictable {kind} size:"), evictable);
                let ghost = n(k, &format!("{state}_ghost_{suffix}"));
                page.one(&format!("{words} ghost {kind} size:"), &bytes(ghost));
            }
        }
    }
    page.gap();
}

fn arc(i: &Input) -> String {
    let k = &i.arc;
    let mut page = SummaryText(String::new());
    let health = if n(k, "memory_throttle_count") > 0 { "THROTTLED" } else { "HEALTHY" };
    page.put("ARC status:", health);
    let (memory, max, size) = (n(k, "memory_all_bytes"), n(k, "c_max"), n(k, "size"));
    page.one("Total memory size:", &bytes(memory));
    for (text, name) in [
        ("Min target size:", "c_min"),
        ("Max target size:", "c_max"),
        ("Target size (adaptive):", "c"),
    ] {
        let of = if name == "c" { max } else { memory };
        page.two(text, &percent(n(k, name), of), &bytes(n(k, name)));
    }
    page.two("Current size:", &percent(size, max), &bytes(size));
    page.one("Free memory size:", &bytes(n(k, "memory_free_bytes")));
    let available = k.get("memory_available_bytes").and_then(|v| v.as_i128()).unwrap_or(0);
    let sign = if available < 0 { "-" } else { "" };
    let magnitude = u64::try_from(available.unsigned_abs()).unwrap_or(u64::MAX);
    page.one("Available memory size:", &format!("{sign}{}", bytes(magnitude)));
    page.gap();
    page.put("ARC structural breakdown (current size):", &bytes(size));
    for (text, name) in BYTES {
        page.two(text, &percent(n(k, name), size), &bytes(n(k, name)));
    }
    page.gap();
    let both = sum(k, &["compressed_size", "overhead_size"]);
    page.put("ARC types breakdown (compressed + overhead):", &bytes(both));
    for (text, name) in [("Data size:", "data_size"), ("Metadata size:", "metadata_size")] {
        page.two(text, &percent(n(k, name), both), &bytes(n(k, name)));
    }
    page.gap();
    states(&mut page, k);
    page.head("ARC hash breakdown:");
    let most = n(k, "hash_elements_max");
    let now = n(k, "hash_elements");
    page.one("Elements:", &count(now));
    page.two("Elements max:", &percent(now, most), &count(most));
    for (text, name) in [
        ("Collisions:", "hash_collisions"),
        ("Chain max:", "hash_chain_max"),
        ("Chains:", "hash_chains"),
    ] {
        page.one(text, &count(n(k, name)));
    }
    page.gap();
    page.head("ARC misc:");
    for (text, name, size) in [
        ("Memory throttles:", "memory_throttle_count", false),
        ("Memory direct reclaims:", "memory_direct_count", false),
        ("Memory indirect reclaims:", "memory_indirect_count", false),
        ("Deleted:", "deleted", false),
        ("Mutex misses:", "mutex_miss", false),
        ("Access skips:", "access_skip", false),
        ("Eviction skips:", "evict_skip", false),
        ("Eviction skips due to L2 writes:", "evict_l2_skip", false),
        ("L2 cached evictions:", "evict_l2_cached", true),
        ("L2 eligible evictions:", "evict_l2_eligible", true),
        ("L2 eligible MFU evictions:", "evict_l2_eligible_mfu", true),
        ("L2 eligible MRU evictions:", "evict_l2_eligible_mru", true),
        ("L2 ineligible evictions:", "evict_l2_ineligible", true),
    ] {
        page.one(text, &if size { bytes(n(k, name)) } else { count(n(k, name)) });
    }
    page.gap();
    page.0
}

fn archits(i: &Input) -> String {
    let k = &i.arc;
    let mut page = SummaryText(String::new());
    let all = sum(k, &["hits", "iohits", "misses"]);
    page.put("ARC total accesses:", &count(all));
    for (text, name) in
        [("Total hits:", "hits"), ("Total I/O hits:", "iohits"), ("Total misses:", "misses")]
    {
        page.two(text, &percent(n(k, name), all), &count(n(k, name)));
    }
    page.gap();
    for (words, class) in [
        ("demand data", "demand_data"),
        ("demand metadata", "demand_metadata"),
        ("prefetch data", "prefetch_data"),
        ("prefetch metadata", "prefetch_metadata"),
    ] {
        let of = |kind: &str| n(k, &format!("{class}_{kind}"));
        let (hits, iohits, misses) = (of("hits"), of("iohits"), of("misses"));
        let total = hits.saturating_add(iohits).saturating_add(misses);
        let title = format!("ARC {words} accesses:");
        page.put(&title, &format!("{:>9}  {:>9}", percent(total, all), count(total)));
        let mut capital = words.to_owned();
        capital.replace_range(..1, &words[..1].to_ascii_uppercase());
        for (kind, value) in [("hits", hits), ("I/O hits", iohits), ("misses", misses)] {
            page.two(&format!("{capital} {kind}:"), &percent(value, total), &count(value));
        }
        page.gap();
    }
    for (words, name) in
        [("predictive", "predictive_prefetch"), ("prescient", "prescient_prefetch")]
    {
        let total = n(k, name);
        page.put(&format!("ARC {words} prefetches:"), &count(total));
        let hits = n(k, &format!("demand_hit_{name}"));
        let iohits = n(k, &format!("demand_iohit_{name}"));
        let never = total.saturating_sub(hits).saturating_sub(iohits);
        for (text, value) in [
            ("Demand hits after", hits),
            ("Demand I/O hits after", iohits),
            ("Never demanded after", never),
        ] {
            page.two(&format!("{text} {words}:"), &percent(value, total), &count(value));
        }
        page.gap();
    }
    page.head("ARC states hits of all accesses:");
    for (text, name) in [
        ("Most frequently used (MFU):", "mfu_hits"),
        ("Most recently used (MRU):", "mru_hits"),
        ("Most frequently used (MFU) ghost:", "mfu_ghost_hits"),
        ("Most recently used (MRU) ghost:", "mru_ghost_hits"),
        ("Uncached:", "uncached_hits"),
    ] {
        page.two(text, &percent(n(k, name), all), &count(n(k, name)));
    }
    page.gap();
    page.0
}

fn dmu(i: &Input) -> String {
    let mut page = SummaryText(String::new());
    let Some(k) = &i.zfetch else {
        return "DMU prefetcher not detected, skipping section\n\n".to_owned();
    };
    let all = sum(k, &["hits", "future", "stride", "past", "misses"]);
    page.put("DMU predictive prefetcher calls:", &count(all));
    let ahead = sum(k, &["future", "stride"]);
    for (text, value) in [
        ("Stream hits:", n(k, "hits")),
        ("Hits ahead of stream:", ahead),
        ("Hits behind stream:", n(k, "past")),
        ("Stream misses:", n(k, "misses")),
    ] {
        page.two(text, &percent(value, all), &count(value));
    }
    page.two(
        "Streams limit reached:",
        &percent(n(k, "max_streams"), n(k, "misses")),
        &count(n(k, "max_streams")),
    );
    page.two("Stream strides:", &percent(n(k, "stride"), ahead), &count(n(k, "stride")));
    page.one("Prefetches issued:", &count(n(k, "io_issued")));
    page.gap();
    page.0
}

fn l2arc(i: &Input) -> String {
    let k = &i.arc;
    let (hits, misses, size, asize) =
        (n(k, "l2_hits"), n(k, "l2_misses"), n(k, "l2_size"), n(k, "l2_asize"));
    if size == 0 && n(k, "l2_ndev") == 0 && hits == 0 {
        return "L2ARC not detected, skipping section\n\n".to_owned();
    }
    let mut page = SummaryText(String::new());
    let errors = sum(k, &["l2_writes_error", "l2_cksum_bad", "l2_io_error"]);
    page.put("L2ARC status:", if errors > 0 { "DEGRADED" } else { "HEALTHY" });
    for (text, name) in [
        ("Low memory aborts:", "l2_abort_lowmem"),
        ("Free on write:", "l2_free_on_write"),
        ("R/W clashes:", "l2_rw_clash"),
        ("Bad checksums:", "l2_cksum_bad"),
        ("Read errors:", "l2_io_error"),
        ("Write errors:", "l2_writes_error"),
    ] {
        page.one(text, &count(n(k, name)));
    }
    page.gap();
    page.put("L2ARC size (adaptive):", &bytes(size));
    page.two("Compressed:", &percent(asize, size), &bytes(asize));
    for (text, name) in [
        ("Header size:", "l2_hdr_size"),
        ("MFU allocated size:", "l2_mfu_asize"),
        ("MRU allocated size:", "l2_mru_asize"),
        ("Prefetch allocated size:", "l2_prefetch_asize"),
        ("Data (buffer content) allocated size:", "l2_bufc_data_asize"),
        ("Metadata (buffer content) allocated size:", "l2_bufc_metadata_asize"),
    ] {
        page.two(text, &percent(n(k, name), asize), &bytes(n(k, name)));
    }
    page.gap();
    let all = hits.saturating_add(misses);
    page.put("L2ARC breakdown:", &count(all));
    page.two("Hit ratio:", &percent(hits, all), &count(hits));
    page.two("Miss ratio:", &percent(misses, all), &count(misses));
    page.gap();
    page.head("L2ARC I/O:");
    let both =
        |name: &str, calls: &str| format!("{}  {:>9}", bytes(n(k, name)), count(n(k, calls)));
    page.one("Reads:", &both("l2_read_bytes", "l2_hits"));
    page.one("Writes:", &both("l2_write_bytes", "l2_writes_sent"));
    page.gap();
    page.head("L2ARC evicts:");
    for (text, name) in [
        ("L1 cached:", "l2_evict_l1cached"),
        ("While reading:", "l2_evict_reading"),
        ("Lock retries:", "l2_evict_lock_retry"),
    ] {
        page.one(text, &count(n(k, name)));
    }
    page.gap();
    page.0
}

fn zil(i: &Input) -> String {
    let Some(k) = &i.zil else {
        return "ZIL not detected, skipping section\n\n".to_owned();
    };
    let mut page = SummaryText(String::new());
    page.put("ZIL committed transactions:", &count(n(k, "zil_itx_count")));
    page.one("Commit requests:", &count(n(k, "zil_commit_count")));
    page.one("Flushes to stable storage:", &count(n(k, "zil_commit_writer_count")));
    for (text, kind) in [
        ("Transactions to SLOG storage pool:", "slog"),
        ("Transactions to non-SLOG storage pool:", "normal"),
    ] {
        let size = bytes(n(k, &format!("zil_itx_metaslab_{kind}_bytes")));
        let calls = count(n(k, &format!("zil_itx_metaslab_{kind}_count")));
        page.two(text, &size, &calls);
    }
    page.gap();
    page.0
}

fn tunables(i: &Input, alternate: bool, described: bool) -> String {
    if i.tunables.is_empty() {
        return "Tunables not in a directory of kstats, skipping section\n\n".to_owned();
    }
    let mut page = SummaryText(String::new());
    page.head("Tunables:");
    for t in &i.tunables {
        if described {
            page.head(&format!("{INDENT}# {}", t.what));
        }
        if alternate {
            page.head(&format!("{INDENT}{}={}", t.name, t.value));
        } else {
            page.one(&t.name, &t.value.to_string());
        }
    }
    page.gap();
    page.0
}

/// A graph of the cache: the used part of the maximum size, by list.
fn graph(k: &Kstat) -> String {
    const INSIDE: usize = WIDTH - 14;
    let max = n(k, "c_max");
    let chars = |bytes: u64| match max {
        0 => 0,
        max => (u128::from(bytes) * INSIDE as u128 / u128::from(max)).min(INSIDE as u128) as usize,
    };
    let (mfu, mru) = (n(k, "mfu_size"), n(k, "mru_size"));
    let rest = n(k, "size").saturating_sub(mfu).saturating_sub(mru);
    let mut bar: String =
        "F".repeat(chars(mfu)) + &"R".repeat(chars(mru)) + &"O".repeat(chars(rest));
    bar.truncate(INSIDE);
    let mut out = String::new();
    let edge = format!("{INDENT}+{}+\n", "-".repeat(INSIDE));
    let _ = writeln!(
        out,
        "\n{INDENT}ARC: {}  MFU: {}  MRU: {}  META: {}  max: {}",
        bytes(n(k, "size")),
        bytes(mfu),
        bytes(mru),
        bytes(n(k, "arc_meta_used")),
        bytes(max)
    );
    out.push_str(&edge);
    let _ = writeln!(out, "{INDENT}|{bar:<INSIDE$}|");
    out.push_str(&edge);
    out
}

fn raw(i: &Input) -> String {
    let mut page = SummaryText(String::new());
    for (title, kstat) in
        [("arcstats", Some(&i.arc)), ("zfetchstats", i.zfetch.as_ref()), ("zil", i.zil.as_ref())]
    {
        let Some(kstat) = kstat else { continue };
        page.head(&format!("{title}:"));
        kstat.entries().iter().for_each(|(name, value)| page.one(name, &value.to_string()));
        page.gap();
    }
    page.0
}

/// One section; `None` if no section has that name.
fn section(name: &str, i: &Input, alternate: bool, described: bool) -> Option<String> {
    Some(match name {
        "arc" => arc(i),
        "archits" => archits(i),
        "dmu" => dmu(i),
        "l2arc" => l2arc(i),
        "spl" => "Solaris Porting Layer not used, skipping section\n\n".to_owned(),
        "tunables" => tunables(i, alternate, described),
        "vdev" => "VDEV cache not used, skipping section\n\n".to_owned(),
        "zil" => zil(i),
        _ => return None,
    })
}

fn gather(path: Option<String>) -> Result<Input> {
    let mut source = StatSource::open(path)?;
    let (arc, zfetch) = (source.arcstats()?, source.get("zfetchstats")?);
    let zil = source.get("zil")?;
    let tunables = match &mut source {
        StatSource::Daemon(client) => {
            match client.request(&Request::Tunables { names: Vec::new() })? {
                Reply::Tunables(list) => list,
                _ => Vec::new(),
            }
        }
        StatSource::Dir(_) => Vec::new(),
    };
    Ok(Input { arc, zfetch, zil, tunables })
}

/// `arc_summary`.
///
/// # Errors
/// No statistics can be had, or there is no such section.
pub(super) fn main(argv: &[OsString]) -> Result<Exit> {
    let parsed = match commands::find("cenote", "arc_summary").parse(argv) {
        Ok(parsed) if !parsed.has('h') => parsed,
        Ok(_) => return Ok(super::usage(&Bad::Help, USAGE, Exit::OK)),
        Err(bad) => return Ok(super::usage(&bad, USAGE, Exit::FAILURE)),
    };
    let only = parsed.last('s');
    if let Some(name) = only.as_deref().filter(|n| !SECTIONS.contains(n)) {
        let all = SECTIONS.join(", ");
        return Err(Error::invalid(format!("Error: unknown section '{name}': there are {all}")));
    }
    let input = gather(parsed.last('P'))?;
    let mut out =
        if parsed.has('g') { graph(&input.arc) } else { header(rt::wall_clock().as_secs()) };
    if parsed.has('r') && !parsed.has('g') {
        out.push_str(&raw(&input));
    } else if !parsed.has('g') {
        for name in SECTIONS.iter().filter(|n| only.as_deref().is_none_or(|only| only == **n)) {
            let text = section(name, &input, parsed.has('a'), parsed.has('d'));
            out.push_str(&text.unwrap_or_default());
        }
    }
    ui::out(&out);
    Ok(Exit::OK)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn empty() -> Input {
        let none = || Kstat::numbers([]);
        Input { arc: none(), zfetch: Some(none()), zil: Some(none()), tunables: Vec::new() }
    }

    #[test]
    fn lines_have_72_columns_and_nothing_is_nan() {
        for name in SECTIONS {
            let text = section(name, &empty(), false, false).unwrap();
            assert!(!text.contains("nan") && !text.contains("NaN"), "{text}");
            for line in text.lines().filter(|l| l.starts_with(INDENT)) {
                assert_eq!(line.chars().count(), WIDTH, "{line}");
            }
        }
        assert!(section("nope", &empty(), false, false).is_none());
    }

    #[test]
    fn absurd_numbers_do_no_harm() {
        let huge = || {
            let names = ["hits", "misses", "size", "c_max", "mfu_size", "mru_size", "meta", "pd"];
            Kstat::numbers(names.map(|n| (n, u64::MAX)))
        };
        let input = Input { arc: huge(), zfetch: Some(huge()), zil: None, tunables: Vec::new() };
        for name in SECTIONS {
            assert!(section(name, &input, true, true).is_some());
        }
        let picture = graph(&huge());
        assert!(picture.lines().all(|l| l.chars().count() <= 2 * WIDTH), "{picture}");
    }
}
