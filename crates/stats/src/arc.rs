//! `cenote arc`: a summary of the cache, and the expected hit ratios at other sizes.

use std::ffi::OsString;
use std::fmt::Write;

use base::{Error, Result};
use cenote::kstats::{ArcReport, Share};
use cenote::props::nicebytes;
use commands::getopt::Bad;
use proto::{Reply, Request, TunableInfo, WhatIf};
use ui::Exit;

use super::number;
use super::source::{self, StatSource};

const USAGE: &str = "\
usage: arc [--what-if] [--path DIR]
	 --what-if : the hit ratio to expect from a smaller or larger cache
	 --path : a directory such as /proc/spl/kstat/zfs instead of the daemon
";

/// Characters of a full bar.
const BAR: usize = 40;

fn line(out: &mut String, label: &str, value: &str, share: &str) {
    let _ = writeln!(out, "{}", format!("  {label:<24}{value:>12}{share:>12}").trim_end());
}

fn title(out: &mut String, text: &str) {
    let _ = writeln!(out, "{}{text}", if out.is_empty() { "" } else { "\n" });
}

fn ratio(share: Option<f64>) -> String {
    share.map_or_else(|| "n/a".to_owned(), number::share)
}

fn counted(out: &mut String, label: &str, share: &Share) {
    line(out, label, &number::count(share.count), &ratio(share.share));
}

fn of(part: u64, whole: u64) -> String {
    number::percent(part, whole)
}

/// The summary.
fn report(r: &ArcReport, tunables: &[TunableInfo]) -> String {
    let mut out = String::new();
    title(&mut out, "SIZE                                     share of target");
    let size = |out: &mut String, label: &str, n: Option<u64>| match n {
        Some(n) => line(out, label, &nicebytes(n), &of(n, r.target)),
        None => line(out, label, "n/a", ""),
    };
    size(&mut out, "actual", Some(r.actual));
    size(&mut out, "target", Some(r.target));
    size(&mut out, "minimum", Some(r.min));
    size(&mut out, "maximum", Some(r.max));
    size(&mut out, "MRU target", r.mru_target);
    title(&mut out, "METADATA");
    size(&mut out, "used", Some(r.metadata_used));
    size(&mut out, "target", r.metadata_target);
    match r.metadata_limit {
        Some(n) => size(&mut out, "limit", Some(n)),
        None => line(&mut out, "limit", "none", ""),
    }
    size(&mut out, "largest so far", r.metadata_max);
    title(&mut out, "ACCESSES                                 share of all");
    line(&mut out, "all", &number::count(r.accesses), "");
    counted(&mut out, "hits", &r.hits);
    counted(&mut out, "joined a read", &r.iohits);
    counted(&mut out, "misses", &r.misses);
    title(&mut out, "HITS BY LIST                             share of hits");
    r.lists.iter().for_each(|(name, share)| counted(&mut out, name, share));
    if !r.forms.is_empty() {
        title(&mut out, "HITS BY FORM                             share of forms");
        r.forms.iter().for_each(|(name, share)| counted(&mut out, name, share));
    }
    title(&mut out, "GHOST HITS BY LIST                       share of misses");
    r.ghosts.iter().for_each(|(name, share)| counted(&mut out, name, share));
    title(&mut out, "L2ARC");
    match &r.l2 {
        None => line(&mut out, "none", "n/a", ""),
        Some(l2) => {
            counted(&mut out, "hits", &l2.hits);
            counted(&mut out, "misses", &l2.misses);
            line(&mut out, "size", &nicebytes(l2.size), "");
            line(&mut out, "space taken", &nicebytes(l2.asize), "");
        }
    }
    if !tunables.is_empty() {
        title(&mut out, "TUNABLES");
    }
    for t in tunables {
        let follows = t.automatic && t.value == 0;
        let remark = if follows { "automatic" } else { "" };
        let shown = if follows { &t.in_effect_shown } else { &t.shown };
        let _ = writeln!(out, "{}", format!("  {:<28}{shown:>8}  {remark}", t.name).trim_end());
    }
    out
}

/// `1/4`, `2`.
fn multiple(n: f64) -> String {
    if n > 0.0 && n < 1.0 { format!("1/{:.0}", 1.0 / n) } else { format!("{n:.0}") }
}

fn bar(share: Option<f64>) -> String {
    let share = share.unwrap_or(0.0).clamp(0.0, 1.0);
    // Eighths of a character.
    let eighths = (share * BAR as f64 * 8.0).round() as usize;
    let mut out = "█".repeat(eighths / 8);
    out.push_str(["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"][eighths % 8]);
    out
}

/// The table and the graph of other sizes.
fn curve(points: &[WhatIf], target: u64) -> String {
    let any = |p: &WhatIf| p.data.is_some() || p.metadata.is_some();
    if !points.iter().any(any) {
        return "There is nothing to go by yet: the estimate needs reads to learn from.\n".into();
    }
    let mut out = String::from("hit ratio expected at other sizes\n\n");
    let _ = writeln!(out, "{:>6}{:>9}{:>10}{:>10}", "times", "size", "data", "metadata");
    for p in points {
        // No cache has 2^64 bytes.
        let size = nicebytes((target as f64 * p.multiple.max(0.0)) as u64);
        let times = multiple(p.multiple);
        let (data, metadata) = (ratio(p.data), ratio(p.metadata));
        let _ = writeln!(out, "{times:>6}{size:>9}{data:>10}{metadata:>10}");
    }
    for kind in ["data", "metadata"] {
        let _ = writeln!(out, "\n{kind}");
        for p in points {
            let share = if kind == "data" { p.data } else { p.metadata };
            let text = format!("{:>6} │{} {}", multiple(p.multiple), bar(share), ratio(share));
            let _ = writeln!(out, "{text}");
        }
    }
    out
}

/// The table of cache devices: `points` with each size of a device, `now` without one.
fn device_table(points: &[WhatIf], now: Option<&WhatIf>, target: u64) -> String {
    let any = |p: &WhatIf| p.data.is_some() || p.metadata.is_some();
    if !points.iter().any(any) {
        return String::new();
    }
    let mut out =
        String::from("\nrequests answered by memory or a cache device of other sizes\n\n");
    let _ = writeln!(out, "{:>6}{:>9}{:>10}{:>10}", "times", "size", "data", "metadata");
    if let Some(p) = now {
        let (data, metadata) = (ratio(p.data), ratio(p.metadata));
        let _ = writeln!(out, "{:>6}{:>9}{data:>10}{metadata:>10}", "none", "-");
    }
    for p in points {
        let size = nicebytes((target as f64 * p.multiple.max(0.0)) as u64);
        let times = multiple(p.multiple);
        let (data, metadata) = (ratio(p.data), ratio(p.metadata));
        let _ = writeln!(out, "{times:>6}{size:>9}{data:>10}{metadata:>10}");
    }
    out
}

fn what_if() -> Result<Exit> {
    let mut client = source::daemon()?;
    let Reply::WhatIf { sizes, devices } = client.request(&Request::WhatIf)? else {
        return Err(Error::corrupt("the daemon answered something else"));
    };
    let target = StatSource::Daemon(Box::new(client)).arcstats()?.number("c").unwrap_or(0);
    let now = sizes.iter().find(|p| p.multiple == 1.0);
    ui::out(&(curve(&sizes, target) + &device_table(&devices, now, target)));
    Ok(Exit::OK)
}

/// `cenote arc`.
///
/// # Errors
/// No statistics can be had.
pub(super) fn main(argv: &[OsString]) -> Result<Exit> {
    let parsed = match commands::find("cenote", "arc").parse(argv) {
        Ok(parsed) if !parsed.has('h') && parsed.args.is_empty() => parsed,
        Ok(parsed) if parsed.has('h') => {
            return Ok(super::usage(&Bad::Help, USAGE, Exit::OK));
        }
        Ok(_) => {
            ui::err(USAGE.trim_end());
            return Ok(Exit::USAGE);
        }
        Err(bad) => return Ok(super::usage(&bad, USAGE, Exit::USAGE)),
    };
    if parsed.has('w') {
        return what_if();
    }
    let mut source = StatSource::open(parsed.last('P'))?;
    let arcstats = source.arcstats()?;
    let own = source.get("cenote_arc")?;
    let tunables = match &mut source {
        StatSource::Daemon(client) => {
            match client.request(&Request::Tunables { names: Vec::new() })? {
                Reply::Tunables(list) => list,
                _ => return Err(Error::corrupt("the daemon answered something else")),
            }
        }
        StatSource::Dir(_) => Vec::new(),
    };
    ui::out(&report(&ArcReport::new(&arcstats, own.as_ref()), &tunables));
    Ok(Exit::OK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote::kstat::Kstat;

    #[test]
    fn an_idle_cache_has_no_ratios() {
        let r = ArcReport::new(&Kstat::numbers([]), Some(&Kstat::numbers([])));
        let page = report(&r, &[]);
        assert!(!page.contains("nan") && !page.contains("NaN"), "{page}");
        for words in ["hits                               0         n/a", "none", "MRU ghost"] {
            assert!(page.contains(words), "{words}\n{page}");
        }
    }

    #[test]
    fn the_curve() {
        assert!(curve(&[], 1 << 30).starts_with("There is nothing to go by yet"));
        let p = |multiple, data, metadata| WhatIf { multiple, data, metadata };
        let points = [p(0.25, Some(0.5), None), p(1.0, Some(0.75), None), p(8.0, Some(1.0), None)];
        let text = curve(&points, 1 << 30);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[2], " times     size      data  metadata");
        assert_eq!(lines[3], "   1/4     256M    50.0 %       n/a");
        assert_eq!(lines[5], "     8       8G   100.0 %       n/a");
        assert_eq!(lines[8], format!("   1/4 │{} 50.0 %", "█".repeat(20)));
        assert_eq!(lines[14], "     1 │ n/a");
        let with = [p(1.0, Some(0.8), None), p(8.0, Some(0.9), None)];
        let table = device_table(&with, Some(&points[1]), 1 << 30);
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines[1], "requests answered by memory or a cache device of other sizes");
        assert_eq!(lines[3], " times     size      data  metadata");
        assert_eq!(lines[4], "  none        -    75.0 %       n/a");
        assert_eq!(lines[6], "     8       8G    90.0 %       n/a");
        assert_eq!(device_table(&[p(1.0, None, None)], None, 1 << 30), "");
        assert_eq!(bar(Some(7.0)).chars().count(), BAR);
        assert_eq!(bar(Some(f64::NAN)), "");
    }
}
