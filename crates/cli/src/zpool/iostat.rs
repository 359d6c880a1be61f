//! `zpool iostat` (chapter 09 §4.5).
//!
//! # Theory
//! The daemon tells what each vdev did since it was opened, and for how long. The first
//! report divides the one by the other; each later one divides what came since the
//! report before by the time that passed for the daemon, so a late report is still right.
//!
//! Departures: `-y` without an interval measures one second. `-l`, `-q`, `-r`, `-w` and
//! `-c` are refused.

use std::collections::HashMap;
use std::ffi::OsString;

use base::{Error, Result};
use cenote::props::nicenum;

use super::vdevs::{self, Line, Naming};
use super::{Pools, Repeat, misuse, options};
use crate::getopt::Parsed;
use crate::proto::{Class, Done, Pool, Vdev};
use crate::ui::{self, Exit};

/// Headings of classes, in order.
const CLASSES: [(Class, &str); 5] = [
    (Class::Dedup, "dedup"),
    (Class::Special, "special"),
    (Class::Log, "logs"),
    (Class::Cache, "cache"),
    (Class::Spare, "spares"),
];
/// Groups of two columns.
const GROUPS: [&str; 3] = ["capacity", "operations", "bandwidth"];
const COLUMNS: [&str; 6] = ["alloc", "free", "read", "write", "read", "write"];
/// Least width of the column of names.
const NAME_MIN: usize = 10;

/// How it is to look.
#[derive(Clone, Copy, Debug, Default)]
struct Look {
    scripted: bool,
    exact: bool,
    verbose: bool,
    once: bool,
    naming: Naming,
}

impl Look {
    fn of(parsed: &Parsed) -> Look {
        let naming =
            Naming { guid: parsed.has('g'), path: parsed.has('P'), links: parsed.has('L') };
        Look {
            scripted: parsed.has('H'),
            exact: parsed.has('p'),
            verbose: parsed.has('v'),
            once: parsed.has('n'),
            naming: naming.with_env(),
        }
    }

    /// Width of a column of numbers.
    fn width(self) -> usize {
        if self.exact { 15 } else { 5 }
    }
}

/// What is refused, with the words of OpenZFS where they exclude each other.
fn refusal(parsed: &Parsed) -> Option<String> {
    let has = |letters: &str| letters.chars().any(|l| parsed.has(l));
    if has("rw") && has("clq") {
        return Some("[-r|-w] isn't allowed with [-c|-l|-q]".to_owned());
    }
    if parsed.has('r') && parsed.has('w') {
        return Some("Only one of [-r|-w] can be passed at a time".to_owned());
    }
    let flag = super::commands::find("zpool", "iostat")
        .flags
        .iter()
        .find(|f| f.usage == super::commands::Use::Refused && parsed.has(f.letter))?;
    Some(format!("cannot run 'zpool iostat' with -{}: {}", flag.letter, flag.help))
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
    let look = Look::of(&parsed);
    let mut counters = HashMap::new();
    if parsed.has('y') {
        pools(&words)?.pools.iter().for_each(|pool| remember(&pool.root, &mut counters));
        base::rt::sleep(repeat.interval_or_second());
    }
    let mut lines = 0;
    repeat.run(|| {
        let found = pools(&words)?;
        let page = Page { look, wanted: found.vdevs, pools: &found.pools, before: &counters };
        let page_len = ui::rows().map(|rows| rows.saturating_sub(3));
        let again = page_len.is_some_and(|rows| lines >= rows);
        let headed = lines == 0 || !look.once && (look.verbose || again);
        let text = page.text(headed);
        lines = if headed { 0 } else { lines } + text.lines().count();
        ui::out(&text);
        found.pools.iter().for_each(|pool| remember(&pool.root, &mut counters));
        Ok(Exit::OK)
    })
}

/// What vdevs did up to the report before, by guid and name.
type Counters = HashMap<(u64, String), Done>;

fn key(v: &Vdev) -> (u64, String) {
    (v.guid, v.name.clone())
}

fn remember(v: &Vdev, to: &mut Counters) {
    to.insert(key(v), v.io);
    v.children.iter().for_each(|child| remember(child, to));
}

/// What the operands name.
struct Found {
    pools: Vec<Pool>,
    /// Vdevs, by any name of theirs; none: whole pools.
    vdevs: Vec<String>,
}

/// Pools, or a pool and vdevs of it, or vdevs of any pool.
fn pools(words: &[String]) -> Result<Found> {
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
        // Several pools, and something that is none.
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
    Ok(Found { pools: trees, vdevs: vdevs.to_vec() })
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
struct Page<'a> {
    look: Look,
    wanted: Vec<String>,
    pools: &'a [Pool],
    before: &'a Counters,
}

impl Page<'_> {
    /// The vdevs that are rows, below each pool.
    fn lines<'p>(&self, pool: &'p Pool) -> Vec<Line<'p>> {
        if !self.look.verbose && self.wanted.is_empty() {
            return Vec::new();
        }
        let all = vdevs::walk(&pool.root, &CLASSES);
        if self.wanted.is_empty() {
            return all;
        }
        let named = |v: &Vdev| self.wanted.iter().any(|w| is_named(v, w));
        all.into_iter()
            .filter_map(|line| match line {
                Line::Vdev(v, _) if named(v) => Some(Line::Vdev(v, 0)),
                _ => None,
            })
            .collect()
    }

    fn text(&self, headed: bool) -> String {
        let parts: Vec<(&Pool, Vec<Line<'_>>)> =
            self.pools.iter().map(|p| (p, self.lines(p))).collect();
        let widest = |(p, lines): &(&Pool, Vec<Line<'_>>)| {
            vdevs::name_width(&p.root, lines, self.look.naming, NAME_MIN)
        };
        let width = parts.iter().map(widest).max().unwrap_or(NAME_MIN);
        let mut out = String::new();
        if headed && !self.look.scripted {
            self.heading(&mut out, width);
        }
        for (pool, lines) in &parts {
            if self.wanted.is_empty() {
                self.row(&mut out, &pool.root, &pool.name, width);
            }
            for line in lines {
                match line {
                    Line::Class(_) if self.look.scripted => out.push('\n'),
                    Line::Class(heading) => {
                        self.cells(&mut out, heading, width, COLUMNS.map(|_| "-".to_owned()));
                    }
                    Line::Vdev(v, depth) => {
                        let depth = if self.look.scripted { 0 } else { *depth };
                        let name = format!("{:depth$}{}", "", self.look.naming.of(v));
                        self.row(&mut out, v, &name, width);
                    }
                }
            }
            if self.look.verbose && self.wanted.is_empty() {
                self.rule(&mut out, width);
            }
        }
        if !self.wanted.is_empty() || !self.look.verbose && self.pools.len() > 1 {
            self.rule(&mut out, width);
        }
        out
    }

    fn heading(&self, out: &mut String, width: usize) {
        let column = self.look.width();
        let group = 2 * column + 2;
        out.push_str(&" ".repeat(width));
        for title in GROUPS {
            let left = (group / 2).saturating_sub(title.len() / 2);
            let right = group.saturating_sub(left + title.len());
            out.push_str(&format!("  {:left$}{title}{:right$}", "", ""));
        }
        out.push('\n');
        let what = if self.wanted.is_empty() { "pool" } else { "vdev" };
        self.cells(out, what, width, COLUMNS.map(str::to_owned));
        self.rule(out, width);
    }

    fn rule(&self, out: &mut String, width: usize) {
        if !self.look.scripted {
            let dashes = "-".repeat(self.look.width());
            self.cells(out, &"-".repeat(width), width, COLUMNS.map(|_| dashes.clone()));
        }
    }

    fn cells(&self, out: &mut String, name: &str, width: usize, cells: [String; 6]) {
        if self.look.scripted {
            out.push_str(&format!("{name}\t{}\n", cells.join("\t")));
            return;
        }
        let pad = width.saturating_sub(name.chars().count());
        let column = self.look.width();
        out.push_str(&format!("{name}{:pad$}", ""));
        cells.iter().for_each(|cell| out.push_str(&format!("  {cell:>column$}")));
        out.push('\n');
    }

    fn row(&self, out: &mut String, v: &Vdev, name: &str, width: usize) {
        let number = |n: u64| if self.look.exact { n.to_string() } else { nicenum(n) };
        let sized = |n: u64| match v.size {
            0 if !self.look.exact => "-".to_owned(),
            _ => number(n),
        };
        let rates = self.rates(v).map(number);
        let [reads, writes, nread, nwritten] = rates;
        let (alloc, free) = (v.allocated, v.size.saturating_sub(v.allocated));
        self.cells(out, name, width, [sized(alloc), sized(free), reads, writes, nread, nwritten]);
    }

    /// Per second: reads, writes, bytes read, bytes written.
    fn rates(&self, v: &Vdev) -> [u64; 4] {
        let counts = |d: &Done| [d.reads, d.writes, d.nread, d.nwritten];
        // A vdev that was opened anew began at zero.
        let before = self.before.get(&key(v)).filter(|b| b.age <= v.io.age);
        let before = before.copied().unwrap_or_default();
        let nanos = u128::from(v.io.age - before.age).max(1);
        let now = counts(&v.io).into_iter().zip(counts(&before));
        let mut out = [0; 4];
        for (rate, (now, before)) in out.iter_mut().zip(now) {
            let came = u128::from(now.saturating_sub(before));
            *rate = u64::try_from(came * 1_000_000_000 / nanos).unwrap_or(u64::MAX);
        }
        out
    }
}

#[cfg(test)]
#[path = "iostat_tests.rs"]
mod tests;
