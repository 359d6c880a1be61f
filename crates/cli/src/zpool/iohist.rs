//! Latencies, queues and histograms of `zpool iostat -l -q -r -w` (chapter 09 §4.5).
//!
//! # Theory
//! The daemon reports histograms of each class of operations since the vdev was opened. Tables
//! show differences of two such reports. An average is that of the buckets' middles; bucket j
//! stands for 1.5 times 2^j.
//!
//! Initializing has no column; it counts as writes. The reads and writes of rebuilds are one
//! column.

use cenote::props::nicenum;
use proto::ClassIo;

/// Buckets of times, and the first one of sizes that is shown.
const TIMES: usize = 37;
const SIZES: std::ops::Range<usize> = 9..25;
/// Minimum width of the first column.
const NAME_MIN: usize = 10;
const WIDTH: usize = 5;

/// Indices in `Vdev::io_classes`.
const SYNC_READ: usize = 0;
const SYNC_WRITE: usize = 1;
const ASYNC_READ: usize = 2;
const ASYNC_WRITE: usize = 3;
const SCRUB: usize = 4;
const TRIM: usize = 5;
const INITIALIZING: usize = 6;
const REBUILD: [usize; 2] = [7, 8];
pub(super) const READS: [usize; 4] = [SYNC_READ, ASYNC_READ, SCRUB, REBUILD[0]];
pub(super) const WRITES: [usize; 4] = [SYNC_WRITE, ASYNC_WRITE, INITIALIZING, REBUILD[1]];

/// A title above some columns, and their names.
pub(super) type Group = (&'static str, &'static [&'static str]);

const RW: &[&str] = &["read", "write"];
const DEPTH: &[&str] = &["pend", "activ"];
const FORMS: &[&str] = &["ind", "agg"];

/// The columns that `-l` adds.
pub(super) const LATENCY: [Group; 7] = [
    ("total_wait", RW),
    ("disk_wait", RW),
    ("syncq_wait", RW),
    ("asyncq_wait", RW),
    ("scrub", &["wait"]),
    ("trim", &["wait"]),
    ("rebuild", &["wait"]),
];
/// The columns that `-q` adds.
pub(super) const QUEUES: [Group; 7] = [
    ("syncq_read", DEPTH),
    ("syncq_write", DEPTH),
    ("asyncq_read", DEPTH),
    ("asyncq_write", DEPTH),
    ("scrubq_read", DEPTH),
    ("trimq_write", DEPTH),
    ("rebuildq_write", DEPTH),
];
const TIME_GROUPS: [Group; 5] = [
    ("total_wait", RW),
    ("disk_wait", RW),
    ("syncq_wait", RW),
    ("asyncq_wait", RW),
    ("", &["scrub", "trim", "rebuild"]),
];
const SIZE_GROUPS: [Group; 7] = [
    ("sync_read", FORMS),
    ("sync_write", FORMS),
    ("async_read", FORMS),
    ("async_write", FORMS),
    ("scrub", FORMS),
    ("trim", FORMS),
    ("rebuild", FORMS),
];

/// Titles above columns of this width; each group begins with two blanks.
pub(super) fn titles(groups: &[Group], column: usize) -> String {
    let mut out = String::new();
    for (title, columns) in groups {
        let n = columns.len();
        let width = column * n + 2 * (n - 1);
        let left = (width / n).saturating_sub(title.len() / n);
        let right = width.saturating_sub(left + title.len());
        out.push_str(&format!("  {:left$}{title}{:right$}", "", ""));
    }
    out
}

/// Nanoseconds in a form for people: whole ones of the largest unit below.
pub(super) fn nicetime(nanos: u64) -> String {
    let (mut n, mut unit) = (nanos, "ns");
    for larger in ["us", "ms", "s"] {
        if n < 1000 {
            break;
        }
        (n, unit) = (n / 1000, larger);
    }
    format!("{n}{unit}")
}

/// The difference to the report before.
pub(super) fn since(now: &[ClassIo], before: Option<&[ClassIo]>) -> Vec<ClassIo> {
    let less = |now: &[u64], before: &[u64]| -> Vec<u64> {
        let before = before.iter().chain(std::iter::repeat(&0));
        now.iter().zip(before).map(|(n, b)| n.saturating_sub(*b)).collect()
    };
    let none = ClassIo::default();
    let of = |(i, class): (usize, &ClassIo)| {
        let old = before.and_then(|all| all.get(i)).unwrap_or(&none);
        ClassIo {
            queued: less(&class.queued, &old.queued),
            disk: less(&class.disk, &old.disk),
            total: less(&class.total, &old.total),
            single: less(&class.single, &old.single),
            merged: less(&class.merged, &old.merged),
            ..class.clone()
        }
    };
    now.iter().enumerate().map(of).collect()
}

/// The sum of a histogram over classes.
pub(super) fn sum(all: &[ClassIo], classes: &[usize], of: impl Fn(&ClassIo) -> &[u64]) -> Vec<u64> {
    let mut out = Vec::new();
    for class in classes.iter().filter_map(|i| all.get(*i)) {
        let counts = of(class);
        out.resize(out.len().max(counts.len()), 0);
        out.iter_mut().zip(counts).for_each(|(to, from): (&mut u64, _)| *to += from);
    }
    out
}

/// The histograms below the columns of [`LATENCY`] and of `-w`.
fn times(all: &[ClassIo]) -> [Vec<u64>; 11] {
    let queued = |class: usize| sum(all, &[class], |c| &c.queued);
    [
        sum(all, &READS, |c| &c.total),
        sum(all, &WRITES, |c| &c.total),
        sum(all, &READS, |c| &c.disk),
        sum(all, &WRITES, |c| &c.disk),
        queued(SYNC_READ),
        queued(SYNC_WRITE),
        queued(ASYNC_READ),
        queued(ASYNC_WRITE),
        queued(SCRUB),
        queued(TRIM),
        sum(all, &REBUILD, |c| &c.queued),
    ]
}

/// The mean of a histogram of times, nanoseconds.
pub(super) fn average(histogram: &[u64]) -> Option<u64> {
    let (mut weight, mut count) = (0u128, 0u128);
    for (j, n) in histogram.iter().enumerate().take(TIMES) {
        weight += (u128::from(*n) * 3) << j >> 1;
        count += u128::from(*n);
    }
    (count > 0).then(|| u64::try_from(weight / count).unwrap_or(u64::MAX))
}

/// The cells that `-l` adds.
pub(super) fn latency_cells(all: &[ClassIo], exact: bool) -> Vec<String> {
    let cell = |histogram: &Vec<u64>| match average(histogram) {
        None => "-".to_owned(),
        Some(nanos) if exact => nanos.to_string(),
        Some(nanos) => nicetime(nanos),
    };
    times(all).iter().map(cell).collect()
}

/// The cells that `-q` adds.
pub(super) fn queue_cells(all: &[ClassIo]) -> Vec<String> {
    let classes = [SYNC_READ, SYNC_WRITE, ASYNC_READ, ASYNC_WRITE, SCRUB, TRIM];
    let depth = |i: usize| all.get(i).map_or([0, 0], |c| [c.pending, c.active]);
    let [read, write] = REBUILD.map(depth);
    let rebuild = [read[0] + write[0], read[1] + write[1]];
    let known = classes.into_iter().flat_map(depth);
    known.chain(rebuild).map(|n| n.to_string()).collect()
}

/// The kind of histogram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HistogramKind {
    /// `-w`.
    Times,
    /// `-r`.
    Sizes,
}

impl HistogramKind {
    fn groups(self) -> &'static [Group] {
        match self {
            HistogramKind::Times => &TIME_GROUPS,
            HistogramKind::Sizes => &SIZE_GROUPS,
        }
    }

    fn columns(self, all: &[ClassIo]) -> Vec<Vec<u64>> {
        match self {
            HistogramKind::Times => times(all).to_vec(),
            HistogramKind::Sizes => {
                let of = |class: &ClassIo| [class.single.clone(), class.merged.clone()];
                let mut out: Vec<Vec<u64>> = all.iter().take(TRIM + 1).flat_map(of).collect();
                out.resize(12, Vec::new());
                out.push(sum(all, &REBUILD, |c| &c.single));
                out.push(sum(all, &REBUILD, |c| &c.merged));
                out
            }
        }
    }

    /// The buckets with their labels.
    fn rows(self, exact: bool) -> Vec<(usize, String)> {
        let label = |j: usize| match (self, exact) {
            (HistogramKind::Times, true) => ((2u64 << j) - 1).to_string(),
            (HistogramKind::Times, false) => nicetime((2u64 << j) - 1),
            (HistogramKind::Sizes, true) => (1u64 << j).to_string(),
            (HistogramKind::Sizes, false) => nicenum(1 << j),
        };
        let buckets = match self {
            HistogramKind::Times => 0..TIMES,
            HistogramKind::Sizes => SIZES,
        };
        buckets.map(|j| (j, label(j))).collect()
    }
}

/// A vdev's table.
pub(super) fn table(
    shown: HistogramKind,
    name: &str,
    all: &[ClassIo],
    scripted: bool,
    exact: bool,
) -> String {
    let columns = shown.columns(all);
    let count = |column: &Vec<u64>, j: usize| {
        // Sizes smaller than the first row are counted in it.
        let first = shown == HistogramKind::Sizes && j == SIZES.start;
        let range = if first { 0..=j } else { j..=j };
        let n: u64 =
            column.iter().enumerate().filter(|(i, _)| range.contains(i)).map(|c| c.1).sum();
        if exact { n.to_string() } else { nicenum(n) }
    };
    let rows = shown.rows(exact || scripted);
    if scripted {
        let mut out = format!("{name}\n");
        for (j, label) in rows {
            let cells: Vec<String> = columns.iter().map(|c| count(c, j)).collect();
            out.push_str(&format!("{label}\t{}\n", cells.join("\t")));
        }
        return out;
    }
    let what = match shown {
        HistogramKind::Times => "latency",
        HistogramKind::Sizes => "req_size",
    };
    let name_width = NAME_MIN.max(name.chars().count());
    let pad =
        |text: &str| format!("{text}{:1$}", "", name_width - text.chars().count().min(name_width));
    let mut out = format!("\n{}{}", pad(name), titles(shown.groups(), WIDTH));
    out.truncate(out.trim_end_matches(' ').len());
    out.push_str(&format!("\n{}", pad(what)));
    for column in shown.groups().iter().flat_map(|g| g.1) {
        out.push_str(&format!("  {column:>WIDTH$}"));
    }
    let dashes = "-".repeat(WIDTH);
    out.push_str(&format!("\n{}", "-".repeat(name_width)));
    columns.iter().for_each(|_| out.push_str(&format!("  {dashes}")));
    for (j, label) in rows {
        out.push_str(&format!("\n{}", pad(&label)));
        columns.iter().for_each(|c| out.push_str(&format!("  {:>WIDTH$}", count(c, j))));
    }
    let whole = name_width + columns.len() * (WIDTH + 2);
    out.push_str(&format!("\n{}\n", "-".repeat(whole)));
    out
}

#[cfg(test)]
#[path = "iohist_tests.rs"]
mod tests;
