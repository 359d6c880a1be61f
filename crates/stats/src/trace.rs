//! `cenote trace zil`: commits, records, blocks and latencies of intent logs over an interval.
//!
//! # Theory
//! The daemon always counts these (`zil::Stats`), and shows them as kstats `POOL/cenote_zil`. A
//! trace is the difference of two readings. It costs nothing while it runs, and every user who
//! may connect to the daemon may trace.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::time::Duration;

use base::{Error, Result, rt};
use cenote::inspect::ondisk::zil::RECORD_TYPES;
use commands::getopt::Bad;
use ui::{Exit, time};

use super::source::StatSource;

const USAGE: &str = "\
usage: trace zil [-h] [-l] [--path DIR] [POOL] [SECONDS]
	 -l : a report every SECONDS until it is interrupted
	 --path : a directory such as /proc/spl/kstat/zfs instead of the daemon
Without SECONDS: one second; without POOL: all pools.
";

/// Width of the widest bar.
const BAR: u64 = 40;
/// Number of co-committing threads shown.
const SHARED_MAX: usize = 10;

type ZilCounters = BTreeMap<String, u64>;

fn read(source: &mut StatSource, pool: Option<&str>) -> Result<ZilCounters> {
    let mut paths = source.names()?;
    paths.retain(|p| {
        p.strip_suffix("/cenote_zil").is_some_and(|name| pool.is_none_or(|wanted| wanted == name))
    });
    if paths.is_empty() {
        let of = pool.map_or_else(|| "no pool".to_owned(), |p| format!("no pool '{p}'"));
        return Err(Error::not_found(format!("{of} is open for writing")));
    }
    let mut out = ZilCounters::new();
    for (_, kstat) in source.read(&paths)? {
        for (name, value) in kstat.entries() {
            *out.entry(name.to_string()).or_default() += value.as_u64().unwrap_or(0);
        }
    }
    Ok(out)
}

fn since(now: &ZilCounters, before: &ZilCounters) -> ZilCounters {
    let delta = |(name, n): (&String, &u64)| {
        (name.clone(), n.saturating_sub(before.get(name).copied().unwrap_or(0)))
    };
    now.iter().map(delta).filter(|(_, n)| *n > 0).collect()
}

/// Counters of a family by the numbers in their names.
fn family(counts: &ZilCounters, prefix: &str) -> BTreeMap<u32, u64> {
    let of = |(name, n): (&String, &u64)| {
        let index = name.strip_prefix(prefix)?.parse().ok()?;
        Some((index, *n))
    };
    counts.iter().filter_map(of).collect()
}

fn bars(title: &str, rows: &[(String, u64)]) -> String {
    let most = rows.iter().map(|(_, n)| *n).max().unwrap_or(0).max(1);
    let mut out = format!("  {title:<22}{:-^w$} count\n", " distribution ", w = BAR as usize);
    for (label, n) in rows {
        let len = n.saturating_mul(BAR).div_ceil(most);
        let bar = "@".repeat(usize::try_from(len).unwrap_or(0));
        out.push_str(&format!("  {label:>20} |{bar:<w$} {n}\n", w = BAR as usize));
    }
    out + "\n"
}

/// All powers from the smallest to the largest that occurs.
fn powers(found: &BTreeMap<u32, u64>, label: impl Fn(u32) -> String) -> Vec<(String, u64)> {
    let Some((first, last)) = found.keys().next().zip(found.keys().next_back()) else {
        return Vec::new();
    };
    (*first..=*last).map(|i| (label(i), found.get(&i).copied().unwrap_or(0))).collect()
}

fn nanos(power: u32) -> String {
    let n = 1u64 << power.min(63);
    match n {
        0..1_000 => format!("{n} ns"),
        1_000..1_000_000 => format!("{} us", n / 1_000),
        1_000_000..1_000_000_000 => format!("{} ms", n / 1_000_000),
        _ => format!("{} s", n / 1_000_000_000),
    }
}

/// A thread, with its process and name while it exists.
fn thread(id: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
    let of = |key: &str| {
        let line = status.lines().find_map(|l| l.strip_prefix(key));
        line.map(|l| l.trim().to_owned())
    };
    match (of("Tgid:"), of("Name:")) {
        (Some(group), Some(name)) if group != id => format!("{name}[{group}:{id}]"),
        (Some(_), Some(name)) => format!("{name}[{id}]"),
        _ => id.to_owned(),
    }
}

fn report(delta: &ZilCounters, name: &dyn Fn(&str) -> String) -> String {
    let n = |name: &str| delta.get(name).copied().unwrap_or(0);
    let mut out = format!(
        "  commits {}, batches {}, waited for a group {}, records {}, blocks {}\n\n",
        n("commits"),
        n("batches"),
        n("stalls"),
        n("records"),
        n("blocks")
    );
    let types: Vec<(String, u64)> = family(delta, "type_")
        .into_iter()
        .map(|(i, n)| ((*RECORD_TYPES.get(i as usize).unwrap_or(&"?")).to_owned(), n))
        .collect();
    let sizes = powers(&family(delta, "size_"), |i| (1u64 << i.min(63)).to_string());
    let latency = powers(&family(delta, "latency_"), nanos);
    let company = powers(&family(delta, "company_"), |i| match i {
        0 => "1".to_owned(),
        1 => "2".to_owned(),
        _ => format!("{}-{}", (1u64 << (i - 1).min(62)) + 1, 1u64 << i.min(63)),
    });
    for (title, rows) in [
        ("records by type", &types),
        ("block size", &sizes),
        ("commit latency, from", &latency),
        ("commits in a batch", &company),
    ] {
        if !rows.is_empty() {
            out.push_str(&bars(title, rows));
        }
    }
    let shared = delta.iter().filter_map(|(key, n)| Some((key.strip_prefix("shared_")?, *n)));
    let mut shared: Vec<(&str, u64)> = shared.filter(|(key, _)| key.contains('+')).collect();
    shared.sort_by_key(|(key, n)| (std::cmp::Reverse(*n), *key));
    if !shared.is_empty() {
        out.push_str("  threads that shared a batch                                   count\n");
    }
    for (key, n) in shared.into_iter().take(SHARED_MAX) {
        let members: Vec<String> = key.split('+').map(name).collect();
        out.push_str(&format!("  {:<61} {n}\n", members.join(" + ")));
    }
    out
}

fn misuse(message: &str) -> Exit {
    ui::err(message);
    ui::err(USAGE.trim_end());
    Exit::USAGE
}

/// `cenote trace`.
///
/// # Errors
/// No statistics can be had.
pub(super) fn main(argv: &[OsString]) -> Result<Exit> {
    let parsed = match commands::find("cenote", "trace").parse(argv) {
        Ok(parsed) if !parsed.has('h') => parsed,
        Ok(_) => return Ok(super::usage(&Bad::Help, USAGE, Exit::OK)),
        Err(bad) => return Ok(super::usage(&bad, USAGE, Exit::USAGE)),
    };
    let mut words = parsed.words().into_iter();
    if words.next().as_deref() != Some("zil") {
        return Ok(misuse("what can be traced is 'zil'"));
    }
    let mut rest: Vec<String> = words.collect();
    let seconds = rest.last().and_then(|w| w.parse::<f64>().ok());
    if seconds.is_some() {
        rest.pop();
    }
    let seconds = seconds.unwrap_or(1.0);
    if !(0.001..=86_400.0).contains(&seconds) || rest.len() > 1 {
        return Ok(misuse("invalid interval or pool"));
    }
    let mut source = StatSource::open(parsed.last('P'))?;
    let pool = rest.first().map(String::as_str);
    let mut before = read(&mut source, pool)?;
    loop {
        rt::sleep(Duration::from_secs_f64(seconds));
        let now = read(&mut source, pool)?;
        let clock = time::strftime("%H:%M:%S", rt::wall_clock().as_secs());
        ui::out(&format!("{clock}  {seconds} s\n{}\n", report(&since(&now, &before), &thread)));
        before = now;
        if !parsed.has('l') {
            return Ok(Exit::OK);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_of_what_went() {
        let counts = |list: &[(&str, u64)]| -> ZilCounters {
            list.iter().map(|(k, n)| ((*k).to_owned(), *n)).collect()
        };
        let before = counts(&[("commits", 5), ("size_12", 5), ("type_9", 5)]);
        let now = counts(&[
            ("commits", 9),
            ("batches", 3),
            ("size_12", 7),
            ("size_14", 1),
            ("type_9", 9),
            ("latency_20", 4),
            ("company_0", 1),
            ("company_2", 1),
            ("shared_10+11", 2),
            ("shared_10", 1),
        ]);
        let text = report(&since(&now, &before), &|id| format!("t{id}"));
        for line in [
            "commits 4, batches 3,",
            "            TX_WRITE |@@@@",
            "                8192 |                                         0\n",
            "               16384 |@@@@@@@@@@@@@@@@@@@@                     1\n",
            "                1 ms |@@@",
            "                 3-4 |@@@",
            "t10 + t11",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        assert!(!text.contains("TX_CREATE"), "{text}");
    }
}
