//! `zpool iostat` (chapter 09 §4.5).
//!
//! # Theory
//! The daemon reports each vdev's counters since it was opened, and the time since then. The
//! first report divides the counters by the time. Each later one divides the differences since
//! the report before by the time that passed for the daemon, so a late report is still right.
//!
//! The columns of `-l`, `-q`, `-r` and `-w` are made in `iohist`.
//!
//! Departures: `-y` without an interval measures one second. `-c` is refused.

use std::collections::HashMap;
use std::ffi::OsString;

use base::{Error, Result};
use cenote::props::nicenum;
use commands::getopt::Parsed;
use proto::{ClassIo, Pool, Vdev, VdevIoCounts, VdevRole};
use ui::Exit;

use super::iohist::{self, Group, HistogramKind};
use super::vdevs::{self, Naming, VdevLine};
use super::{Pools, Repeat, misuse, options};

/// Headings of classes, in order.
const CLASSES: [(VdevRole, &str); 5] = [
    (VdevRole::Dedup, "dedup"),
    (VdevRole::Special, "special"),
    (VdevRole::Log, "logs"),
    (VdevRole::Cache, "cache"),
    (VdevRole::Spare, "spares"),
];
const GROUPS: [Group; 3] = [
    ("capacity", &["alloc", "free"]),
    ("operations", &["read", "write"]),
    ("bandwidth", &["read", "write"]),
];
/// Minimum width of the column of names.
const NAME_MIN: usize = 10;

/// The format of the output.
#[derive(Clone, Copy, Debug, Default)]
struct IostatOptions {
    scripted: bool,
    exact: bool,
    verbose: bool,
    once: bool,
    latency: bool,
    queues: bool,
    histogram: Option<HistogramKind>,
    naming: Naming,
}

impl IostatOptions {
    fn of(parsed: &Parsed) -> IostatOptions {
        let naming =
            Naming { guid: parsed.has('g'), path: parsed.has('P'), links: parsed.has('L') };
        IostatOptions {
            scripted: parsed.has('H'),
            exact: parsed.has('p'),
            verbose: parsed.has('v'),
            once: parsed.has('n'),
            latency: parsed.has('l'),
            queues: parsed.has('q'),
            histogram: match (parsed.has('w'), parsed.has('r')) {
                (true, _) => Some(HistogramKind::Times),
                (_, true) => Some(HistogramKind::Sizes),
                _ => None,
            },
            naming: naming.with_env(),
        }
    }

    /// The groups of columns, with the width of the columns in each.
    fn groups(self) -> Vec<(&'static [Group], usize)> {
        let width = |exact| if self.exact { exact } else { 5 };
        let mut out: Vec<(&'static [Group], usize)> = vec![(&GROUPS, width(15))];
        if self.latency {
            out.push((&iohist::LATENCY, width(10)));
        }
        if self.queues {
            out.push((&iohist::QUEUES, width(6)));
        }
        out
    }

    /// The columns, with their widths.
    fn columns(self) -> Vec<(&'static str, usize)> {
        let of = |(groups, width): (&'static [Group], usize)| {
            groups.iter().flat_map(|g| g.1).map(move |column| (*column, width))
        };
        self.groups().into_iter().flat_map(of).collect()
    }
}

/// The error for options that cannot be combined, in OpenZFS's words.
fn refusal(parsed: &Parsed) -> Option<String> {
    let has = |letters: &str| letters.chars().any(|l| parsed.has(l));
    if has("rw") && has("clq") {
        return Some("[-r|-w] isn't allowed with [-c|-l|-q]".to_owned());
    }
    if parsed.has('r') && parsed.has('w') {
        return Some("Only one of [-r|-w] can be passed at a time".to_owned());
    }
    None
}

/// `zpool iostat ...`
pub(super) fn main(argv: &[OsString]) -> Result<Exit> {
    let parsed = match options("iostat", argv) {
        Ok(parsed) => parsed,
        Err(exit) => return Ok(exit),
    };
    if let Some(message) = refusal(&parsed) {
        return Err(Error::unsupported(message));
    }
    let mut words = parsed.words();
    let repeat = match Repeat::take(&mut words, parsed.last('T')) {
        Ok(repeat) => repeat,
        Err(message) => return Ok(misuse("iostat", Some(&message))),
    };
    let options = IostatOptions::of(&parsed);
    let mut counters = HashMap::new();
    if parsed.has('y') {
        pools(&words)?.pools.iter().for_each(|pool| remember(&pool.root, &mut counters));
        base::rt::sleep(repeat.interval_or_second());
    }
    let mut lines = 0;
    repeat.run(|| {
        let found = pools(&words)?;
        let page =
            IostatReport { options, wanted: found.vdevs, pools: &found.pools, before: &counters };
        if let Some(shown) = options.histogram {
            ui::out(&page.histograms(shown));
            found.pools.iter().for_each(|pool| remember(&pool.root, &mut counters));
            return Ok(Exit::OK);
        }
        let page_len = ui::rows().map(|rows| rows.saturating_sub(3));
        let again = page_len.is_some_and(|rows| lines >= rows);
        let headed = lines == 0 || !options.once && (options.verbose || again);
        let text = page.text(headed);
        lines = if headed { 0 } else { lines } + text.lines().count();
        ui::out(&text);
        found.pools.iter().for_each(|pool| remember(&pool.root, &mut counters));
        Ok(Exit::OK)
    })
}

/// Counters of vdevs at the report before, by guid and name.
type Counters = HashMap<(u64, String), (VdevIoCounts, Vec<ClassIo>)>;

fn key(v: &Vdev) -> (u64, String) {
    (v.guid, v.name.clone())
}

fn remember(v: &Vdev, to: &mut Counters) {
    to.insert(key(v), (v.io, v.io_classes.clone()));
    v.children.iter().for_each(|child| remember(child, to));
}

/// The pools and vdevs that the operands name.
struct IostatTargets {
    pools: Vec<Pool>,
    /// Vdevs, by any of their names; empty: whole pools.
    vdevs: Vec<String>,
}

/// The operands may be pools, a pool and vdevs of it, or vdevs of any pool.
fn pools(words: &[String]) -> Result<IostatTargets> {
    let mut pools = Pools::connect()?;
    let names = pools.select(&[], super::no_such_pool)?;
    if names.is_empty() && words.is_empty() {
        return Err(Error::not_found("no pools available"));
    }
    let heads = words.iter().take_while(|w| names.contains(w)).count();
    let (heads, vdevs) = words.split_at(heads);
    let chosen = match (heads, vdevs) {
        ([], _) => names.clone(),
        ([_], _) | (_, []) => heads.to_vec(),
        // Several pools, and a name that is not a pool's.
        (_, [first, ..]) => return Err(unknown(first)),
    };
    let mut trees = Vec::new();
    for name in chosen {
        trees.push(pools.status(&name)?);
    }
    for vdev in vdevs {
        if !trees.iter().any(|p| has(&p.root, vdev)) {
            return Err(unknown(vdev));
        }
    }
    if !vdevs.is_empty() {
        trees.retain(|p| vdevs.iter().any(|v| has(&p.root, v)));
    }
    Ok(IostatTargets { pools: trees, vdevs: vdevs.to_vec() })
}

fn unknown(word: &str) -> Error {
    Error::not_found(format!(
        "'{word}' is neither a pool nor a vdev of one\nUnable to parse pools/vdevs list."
    ))
}

/// Whether a word names this vdev: by name, path, guid, or a device's short name.
fn is_named(v: &Vdev, word: &str) -> bool {
    let path = v.path.as_deref().is_some_and(|p| p.as_os_str() == word);
    let short = Naming::default().of(v) == word;
    v.kind != "root" && (v.name == word || path || short || v.guid.to_string() == word)
}

fn has(v: &Vdev, word: &str) -> bool {
    is_named(v, word) || v.children.iter().any(|c| has(c, word))
}

/// One report.
struct IostatReport<'a> {
    options: IostatOptions,
    wanted: Vec<String>,
    pools: &'a [Pool],
    before: &'a Counters,
}

impl IostatReport<'_> {
    /// The vdevs that are rows, below each pool.
    fn lines<'p>(&self, pool: &'p Pool) -> Vec<VdevLine<'p>> {
        if !self.options.verbose && self.wanted.is_empty() {
            return Vec::new();
        }
        let all = vdevs::walk(&pool.root, &CLASSES);
        if self.wanted.is_empty() {
            return all;
        }
        let named = |v: &Vdev| self.wanted.iter().any(|w| is_named(v, w));
        all.into_iter()
            .filter_map(|line| match line {
                VdevLine::Vdev(v, _) if named(v) => Some(VdevLine::Vdev(v, 0)),
                _ => None,
            })
            .collect()
    }

    fn text(&self, headed: bool) -> String {
        let parts: Vec<(&Pool, Vec<VdevLine<'_>>)> =
            self.pools.iter().map(|p| (p, self.lines(p))).collect();
        let widest = |(p, lines): &(&Pool, Vec<VdevLine<'_>>)| {
            vdevs::name_width(&p.root, lines, self.options.naming, NAME_MIN)
        };
        let width = parts.iter().map(widest).max().unwrap_or(NAME_MIN);
        let mut out = String::new();
        if headed && !self.options.scripted {
            self.heading(&mut out, width);
        }
        for (pool, lines) in &parts {
            if self.wanted.is_empty() {
                self.row(&mut out, &pool.root, &pool.name, width);
            }
            for line in lines {
                match line {
                    VdevLine::Class(_) if self.options.scripted => out.push('\n'),
                    VdevLine::Class(heading) => {
                        let none = self.options.columns().iter().map(|_| "-".to_owned()).collect();
                        self.cells(&mut out, heading, width, none);
                    }
                    VdevLine::Vdev(v, depth) => {
                        let depth = if self.options.scripted { 0 } else { *depth };
                        let name = format!("{:depth$}{}", "", self.options.naming.of(v));
                        self.row(&mut out, v, &name, width);
                    }
                }
            }
            if self.options.verbose && self.wanted.is_empty() {
                self.rule(&mut out, width);
            }
        }
        if !self.wanted.is_empty() || !self.options.verbose && self.pools.len() > 1 {
            self.rule(&mut out, width);
        }
        out
    }

    fn heading(&self, out: &mut String, width: usize) {
        out.push_str(&" ".repeat(width));
        for (groups, column) in self.options.groups() {
            out.push_str(&iohist::titles(groups, column));
        }
        out.push('\n');
        let what = if self.wanted.is_empty() { "pool" } else { "vdev" };
        let names = self.options.columns().into_iter().map(|(name, _)| name.to_owned()).collect();
        self.cells(out, what, width, names);
        self.rule(out, width);
    }

    fn rule(&self, out: &mut String, width: usize) {
        if !self.options.scripted {
            let dashes = self.options.columns().into_iter().map(|(_, width)| "-".repeat(width));
            self.cells(out, &"-".repeat(width), width, dashes.collect());
        }
    }

    fn cells(&self, out: &mut String, name: &str, width: usize, cells: Vec<String>) {
        if self.options.scripted {
            out.push_str(&format!("{name}\t{}\n", cells.join("\t")));
            return;
        }
        let pad = width.saturating_sub(name.chars().count());
        out.push_str(&format!("{name}{:pad$}", ""));
        for (cell, (_, column)) in cells.iter().zip(self.options.columns()) {
            out.push_str(&format!("  {cell:>column$}"));
        }
        out.push('\n');
    }

    fn row(&self, out: &mut String, v: &Vdev, name: &str, width: usize) {
        let number = |n: u64| if self.options.exact { n.to_string() } else { nicenum(n) };
        let sized = |n: u64| match v.size {
            0 if !self.options.exact => "-".to_owned(),
            _ => number(n),
        };
        let rates = self.rates(v).map(number);
        let [reads, writes, nread, nwritten] = rates;
        let (alloc, free) = (v.allocated, v.size.saturating_sub(v.allocated));
        let mut cells = vec![sized(alloc), sized(free), reads, writes, nread, nwritten];
        if self.options.latency {
            cells.extend(iohist::latency_cells(&self.io_since_last(v), self.options.exact));
        }
        if self.options.queues {
            cells.extend(iohist::queue_cells(&v.io_classes));
        }
        self.cells(out, name, width, cells);
    }

    /// The counters at the report before, unless the vdev was reopened since.
    fn earlier(&self, v: &Vdev) -> Option<&(VdevIoCounts, Vec<ClassIo>)> {
        self.before.get(&key(v)).filter(|(done, _)| done.age <= v.io.age)
    }

    /// The histograms since the report before.
    fn io_since_last(&self, v: &Vdev) -> Vec<ClassIo> {
        iohist::since(&v.io_classes, self.earlier(v).map(|(_, classes)| classes.as_slice()))
    }

    /// A table of each pool, or of each vdev.
    fn histograms(&self, shown: HistogramKind) -> String {
        let IostatOptions { scripted, exact, naming, .. } = self.options;
        let table = |v: &Vdev, name: &str| {
            iohist::table(shown, name, &self.io_since_last(v), scripted, exact)
        };
        let mut out = String::new();
        for pool in self.pools {
            if self.wanted.is_empty() {
                out.push_str(&table(&pool.root, &pool.name));
            }
            for line in self.lines(pool) {
                if let VdevLine::Vdev(v, _) = line {
                    out.push_str(&table(v, &naming.of(v)));
                }
            }
        }
        out
    }

    /// Per second: reads, writes, bytes read, bytes written.
    fn rates(&self, v: &Vdev) -> [u64; 4] {
        let counts = |d: &VdevIoCounts| [d.reads, d.writes, d.nread, d.nwritten];
        let before = self.earlier(v).map(|(done, _)| *done).unwrap_or_default();
        let nanos = u128::from(v.io.age - before.age).max(1);
        let now = counts(&v.io).into_iter().zip(counts(&before));
        let mut out = [0; 4];
        for (rate, (now, before)) in out.iter_mut().zip(now) {
            let delta = u128::from(now.saturating_sub(before));
            *rate = u64::try_from(delta * 1_000_000_000 / nanos).unwrap_or(u64::MAX);
        }
        out
    }
}

#[cfg(test)]
#[path = "iostat_tests.rs"]
mod tests;
