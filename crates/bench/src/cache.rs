//! `cenote bench cache`: replays a trace with the cache's policies and with other ones.

use std::io::Write;
use std::path::PathBuf;

use base::{Error, Result, rt};
use cachesim::{Format, L2Policy, PolicyKind, ReplayOptions, Row, SecondRow};
use serde::Serialize;
use ui::Exit;
use ui::progress::Progress;

use super::args::{Opt, opt};
use super::chart::{Axes, Chart, Series, Shape, style_of_stdout};
use super::{frame, svg};

pub(super) const ABOUT: &str = "a trace through the cache's policies and others'";

/// For the usage text and the manual page.
pub(super) const OPTIONS: &[Opt] = &[
    opt("--trace", "FILE", "a trace; more may follow, each with the option"),
    opt("--size", "N[,N...]", "sizes of the cache, in pages"),
    opt("--policy", "NAME[,NAME...]", "these policies (all)"),
    opt("--second", "N[,N...]", "a second tier of N times the size, under both rules of admission"),
    opt("--format", "NAME", "how the trace is written (told by its content)"),
    opt("--json", "FILE", "write the figures as JSON (- is standard output)"),
    opt("--svg", "FILE", "write the pictures"),
    opt("--help", "", "this text"),
];

const USAGE: &str = "usage: bench cache --trace FILE... --size N[,N...] [--policy NAME[,NAME...]] \
    [--second N[,N...]] [--format NAME] [--json FILE] [--svg FILE]";
/// Largest second tier, as a multiple of the first.
const TIMES_MAX: usize = 1024;
/// Largest cache that is simulated, pages.
const SIZE_MAX: u64 = 1 << 28;

/// The request of the command line.
#[derive(Debug, Default)]
struct ReplayRequest {
    options: ReplayOptions,
    /// Sizes of a second tier, as multiples.
    second: Vec<usize>,
    json: Option<PathBuf>,
    svg: Option<String>,
}

/// One line of `--json`.
#[derive(Serialize)]
struct JsonRow<'a> {
    /// Only if several traces were given.
    #[serde(skip_serializing_if = "Option::is_none")]
    trace: Option<&'a str>,
    policy: &'a str,
    size: usize,
    hit_ratio: f64,
}

#[derive(Serialize)]
struct Json<'a> {
    rows: Vec<JsonRow<'a>>,
}

/// `cenote bench cache ...`
pub(super) fn main(words: &[&str]) -> Result<Exit> {
    let request = match parse(words) {
        Ok(request) => request,
        Err(e) => {
            ui::err(e.message());
            ui::err(USAGE);
            return Ok(Exit::USAGE);
        }
    };
    if !request.second.is_empty() {
        let rows = cachesim::run_second(&request.options, &request.second)?;
        return match &request.json {
            Some(path) => {
                write_json(path, &second_json(&rows)?)?;
                Ok(Exit::OK)
            }
            None => {
                ui::out(&second_table(&rows));
                Ok(Exit::OK)
            }
        };
    }
    let line = rt::Mutex::new(Progress::new("", None));
    let progress = |row: &Row, done: usize, all: usize| {
        let what = format!("{} {} {}", row.trace, row.policy.name(), row.size);
        line.lock().step(&what, done as u64, all as u64);
    };
    let rows = cachesim::run(&request.options, &progress)?;
    line.lock().finish();
    let text = json(&rows, request.options.traces.len() > 1)?;
    match request.json.as_deref() {
        Some(path) if path.as_os_str() == "-" => ui::out(&text),
        other => {
            ui::out(&table(&rows, &request.options.policies));
            for picture in charts(&rows, &request.options) {
                ui::out(&format!("\n{}", picture.draw(style_of_stdout())));
            }
            if let Some(path) = other {
                write_json(path, &text)?;
            }
        }
    }
    if let Some(path) = &request.svg {
        frame::write_file(path, &svg::document(&[], &charts(&rows, &request.options)))?;
    }
    Ok(Exit::OK)
}

fn write_json(path: &std::path::Path, text: &str) -> Result<()> {
    if path.as_os_str() == "-" {
        ui::out(text);
        return Ok(());
    }
    let failed = |e| Error::io(format!("cannot write {}", path.display()), e);
    let mut file = std::fs::File::create(path).map_err(failed)?;
    file.write_all(text.as_bytes()).map_err(failed)
}

/// One line of `--json` with `--second`.
#[derive(Serialize)]
struct SecondJson<'a> {
    trace: &'a str,
    size: usize,
    times: usize,
    policy: &'static str,
    second_hit_ratio: f64,
    written_pages: u64,
    hits_per_write: f64,
}

fn rule(policy: L2Policy) -> &'static str {
    match policy {
        L2Policy::Openzfs => "openzfs",
        L2Policy::Default => "default",
    }
}

fn second_json(rows: &[SecondRow]) -> Result<String> {
    let rows: Vec<SecondJson<'_>> = rows
        .iter()
        .map(|r| SecondJson {
            trace: &r.trace,
            size: r.size,
            times: r.times,
            policy: rule(r.policy),
            second_hit_ratio: r.outcome.hit_ratio(),
            written_pages: r.outcome.writes,
            hits_per_write: r.outcome.hits_per_write(),
        })
        .collect();
    let failed = |e| Error::invalid(format!("cannot write JSON: {e}"));
    Ok(format!("{{\"rows\":{}}}\n", serde_json::to_string(&rows).map_err(failed)?))
}

/// One row for each trace, size and multiple: hits of the second tier in percent of the
/// first one's misses, pages written, and hits for each page written, under both rules.
fn second_table(rows: &[SecondRow]) -> String {
    let wide = rows.iter().map(|r| r.trace.chars().count()).max().unwrap_or(0).max(5);
    let mut out = format!("{:<wide$}  {:>9}  {:>5}", "TRACE", "PAGES", "TIMES");
    for rule in ["OPENZFS", "DEFAULT"] {
        out += &format!("  {:>9}  {:>9}  {:>9}", format!("{rule} %"), "WRITTEN", "HITS/W");
    }
    out.push('\n');
    for pair in rows.chunks(2) {
        let Some(first) = pair.first() else { continue };
        out += &format!("{:<wide$}  {:>9}  {:>5}", first.trace, first.size, first.times);
        for row in pair {
            let SecondRow { outcome, .. } = row;
            let (hits, each) = (outcome.hit_ratio() * 100.0, outcome.hits_per_write());
            out += &format!("  {hits:>9.2}  {:>9}  {each:>9.3}", outcome.writes);
        }
        out.push('\n');
    }
    out
}

/// A chart for each trace: one line for each policy over the sizes.
fn charts(rows: &[Row], options: &ReplayOptions) -> Vec<Chart> {
    let mut traces: Vec<&str> = rows.iter().map(|r| r.trace.as_str()).collect();
    traces.dedup();
    let chart = |trace: &&str| {
        let of_trace = |r: &&Row| r.trace == **trace;
        let series = options.policies.iter().map(|&policy| Series {
            name: policy.name().to_owned(),
            values: rows
                .iter()
                .filter(of_trace)
                .filter(|r| r.policy == policy)
                .map(|r| r.outcome.hit_ratio())
                .collect(),
        });
        Chart {
            title: format!("hit ratio of {trace} by pages"),
            shape: Shape::Lines,
            labels: options.sizes.iter().map(ToString::to_string).collect(),
            series: series.collect(),
            axes: Axes::default(),
        }
    };
    traces.iter().map(chart).collect()
}

fn parse(words: &[&str]) -> Result<ReplayRequest> {
    let mut request = ReplayRequest::default();
    let mut words = words.iter();
    while let Some(&word) = words.next() {
        let (name, inline) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (word, None),
        };
        let mut value = || {
            inline
                .or_else(|| words.next().copied())
                .ok_or_else(|| Error::invalid(format!("missing argument for '{name}'")))
        };
        let options = &mut request.options;
        match name {
            "--trace" => options.traces.push(value()?.into()),
            "--size" => {
                for size in value()?.split(',') {
                    options.sizes.push(pages(size)?);
                }
            }
            "--second" => {
                for times in value()?.split(',') {
                    let good = times.parse().ok().filter(|n| (1..=TIMES_MAX).contains(n));
                    let bad = || Error::invalid(format!("'{times}' is no multiple of a cache"));
                    request.second.push(good.ok_or_else(bad)?);
                }
            }
            "--policy" => {
                for name in value()?.split(',') {
                    options.policies.push(PolicyKind::named(name).ok_or_else(|| {
                        let known = PolicyKind::ALL.map(PolicyKind::name).join(",");
                        Error::invalid(format!("no policy '{name}': there are {known}"))
                    })?);
                }
            }
            "--format" => {
                let name = value()?;
                let unknown = || Error::invalid(format!("no trace format '{name}'"));
                options.format = Some(Format::named(name).ok_or_else(unknown)?);
            }
            "--json" => request.json = Some(value()?.into()),
            "--svg" => request.svg = Some(value()?.to_owned()),
            _ => return Err(Error::invalid(format!("invalid option '{word}'"))),
        }
    }
    if request.options.policies.is_empty() {
        request.options.policies = PolicyKind::ALL.to_vec();
    }
    if request.options.traces.is_empty() || request.options.sizes.is_empty() {
        return Err(Error::invalid("a trace and a size are needed"));
    }
    Ok(request)
}

/// A number of pages, with a suffix of powers of 1024 or none.
fn pages(text: &str) -> Result<usize> {
    let size = cenote::props::parse_size(text).map_err(Error::invalid)?;
    if size == 0 || size > SIZE_MAX {
        return Err(Error::invalid(format!("size '{text}' is not between 1 and {SIZE_MAX} pages")));
    }
    usize::try_from(size).map_err(|_| Error::invalid("size too large"))
}

fn json(rows: &[Row], many: bool) -> Result<String> {
    let rows = rows.iter().map(|r| JsonRow {
        trace: many.then_some(r.trace.as_str()),
        policy: r.policy.name(),
        size: r.size,
        hit_ratio: r.outcome.hit_ratio(),
    });
    let mut text = serde_json::to_string(&Json { rows: rows.collect() })
        .map_err(|e| Error::invalid(format!("cannot write JSON: {e}")))?;
    text.push('\n');
    Ok(text)
}

/// One row for each trace and size, one column for each policy, hits in percent.
fn table(rows: &[Row], policies: &[PolicyKind]) -> String {
    let wide = rows.iter().map(|r| r.trace.chars().count()).max().unwrap_or(0).max(5);
    let mut out = format!("{:<wide$}  {:>9}", "TRACE", "PAGES");
    for policy in policies {
        out += &format!("  {:>8}", policy.name().to_uppercase());
    }
    out.push('\n');
    for line in rows.chunks(policies.len().max(1)) {
        let Some(first) = line.first() else { continue };
        out += &format!("{:<wide$}  {:>9}", first.trace, first.size);
        for row in line {
            out += &format!("  {:>8.2}", row.outcome.hit_ratio() * 100.0);
        }
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use cachesim::ReplayResult;

    #[test]
    fn options_are_read_and_nonsense_is_refused() {
        let request =
            parse(&["--trace", "a.lis", "--size=1K,7", "--policy", "arc,default", "--json", "-"])
                .unwrap();
        assert_eq!(request.options.sizes, [1024, 7]);
        assert_eq!(request.options.policies, [PolicyKind::Arc, PolicyKind::Default]);
        for bad in [
            &["--trace", "a"][..],
            &["--size", "1"],
            &["--trace", "a", "--size", "0"],
            &["--trace", "a", "--size", "1,x"],
            &["--trace", "a", "--size", "1", "--policy", "fifo"],
            &["--trace", "a", "--size", "1", "--format", "csv"],
            &["--trace"],
            &["x"],
        ] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn rows_are_written_as_promised() {
        let outcome = ReplayResult { requests: 1000, hits: 389, charged: 0 };
        let row = Row { trace: "t".into(), policy: PolicyKind::Arc, size: 1000, outcome };
        let text = json(std::slice::from_ref(&row), false).unwrap();
        assert_eq!(text, "{\"rows\":[{\"policy\":\"arc\",\"size\":1000,\"hit_ratio\":0.389}]}\n");
        assert!(json(&[row], true).unwrap().contains("\"trace\":\"t\""));
    }
}
