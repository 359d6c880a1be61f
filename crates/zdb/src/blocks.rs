//! `zdb -b`, `-c`: the audit's report in zdb's format (chapter 09 §8.3).

use std::fmt::Write;

use base::rt::Mutex;
use base::{Error, Result};
use cenote::inspect::dmu::traverse::Bookmark;
use cenote::inspect::ondisk::BlkPtr;
use cenote::inspect::ondisk::features::by_guid;
use cenote::inspect::spa::Spa;
use cenote::inspect::spa::audit::stats::{BUCKETS, BlockStats, LEVELS, ROWS, Sums, row_name};
use cenote::inspect::spa::audit::{
    AuditOptions, PROBLEMS_MAX, Problem, Report, Verify, Watch, zdb_errno,
};
use cenote::inspect::vdev::QueueLimits;
use cenote::props::nicenum;
use ui::Exit;
use ui::progress::Progress;

use super::bptext::{self, histogram};
use super::{DumpOptions, exit, worse};

struct Screen {
    progress: Mutex<Option<Progress>>,
}

impl Screen {
    fn line(&self, text: &str) {
        if let Some(progress) = &mut *self.progress.lock() {
            progress.finish();
        }
        ui::out(text);
    }
}

/// `<objset, object, level, blkid>`; special values are shown as zdb shows them.
fn bookmark_text(at: Bookmark) -> String {
    format!("<{}, {}, {}, {:x}>", at.objset, at.object, at.level, at.blkid)
}

impl Watch for Screen {
    fn begin(&self, total: u64) {
        *self.progress.lock() = Some(Progress::new("verified", Some(total)));
    }

    fn verified(&self, bytes: u64) {
        if let Some(mut guard) = self.progress.try_lock()
            && let Some(progress) = &mut *guard
        {
            progress.at(bytes);
        }
    }

    fn error(&self, _bp: Option<&BlkPtr>, at: Bookmark, error: &Error) {
        let errno = zdb_errno(error);
        self.line(&format!(
            "zdb_blkptr_cb: Got error {errno} reading {}  -- skipping\n",
            bookmark_text(at)
        ));
    }

    fn problem(&self, problem: &Problem) {
        if let Problem::Claim { at, dva, claim, references } = problem {
            let why = match claim {
                _ if *references => "more references than its table counts",
                c if c.outside > 0 => "not in any metaslab",
                c if c.free > 0 => "free in the space maps",
                _ => "claimed by another block too",
            };
            self.line(&format!(
                "block claim error: {} {}:{:x}:{:x} is {why}\n",
                bookmark_text(*at),
                dva.vdev.0,
                dva.offset,
                dva.asize.0
            ));
        }
    }
}

/// Audits and reports.
pub(super) fn main(opts: &DumpOptions, spa: &Spa) -> Result<Exit> {
    let verify = match opts.level('c') {
        0 => Verify::Nothing,
        1 => Verify::Metadata,
        _ => Verify::All,
    };
    let options = AuditOptions { verify, leaks: !opts.has('L'), ..AuditOptions::default() };
    let what = match verify {
        Verify::Nothing => "",
        Verify::Metadata => "metadata ",
        Verify::All => "",
    };
    let checks = if verify == Verify::Nothing {
        String::new()
    } else {
        format!("verify {what}checksums {}", if options.leaks { "and " } else { "" })
    };
    let leaks = if options.leaks { "verify nothing leaked " } else { "" };
    let to = if checks.is_empty() && leaks.is_empty() { "" } else { "to " };
    ui::out(&format!("\nTraversing all blocks {to}{checks}{leaks}...\n\n"));
    let screen = Screen { progress: Mutex::new(None) };
    // No other I/O competes with the audit.
    spa.zio().tree().set_queue_limits(QueueLimits::for_checks());
    let report = spa.audit(options, &screen)?;
    drop(screen);
    ui::out(&text(&report, opts));
    Ok(verdict(&report))
}

fn verdict(report: &Report) -> Exit {
    let space = if report.space_is_clean() { Exit::OK } else { exit::SPACE };
    let read = if report.unreadable + report.damaged == 0 { Exit::OK } else { exit::READ };
    worse(space, read)
}

fn text(report: &Report, opts: &DumpOptions) -> String {
    let mut out = String::new();
    if !report.errnos.is_empty() {
        out.push_str("\nError counts:\n\n\terrno  count\n");
        for (errno, count) in &report.errnos {
            let _ = writeln!(out, "\t{errno:5}  {count}");
        }
    }
    space_errors(report, &mut out);
    // -c alone is zdb's -b with checksums.
    let level = opts.level('b').max(usize::from(opts.has('c')));
    summary(report, &mut out);
    if level >= 3 {
        embedded_sizes(&report.stats, &mut out);
    }
    let _ = writeln!(out, "\tDittoed blocks on same vdev: {}", report.stats.same_vdev)
        .and_then(|()| indirect(report, &mut out));
    if level >= 2 {
        table(&report.stats, level >= 3, opts.has('P'), &mut out);
        sizes(&report.stats, opts.has('P'), &mut out);
    }
    out.push('\n');
    out
}

fn indirect(report: &Report, out: &mut String) -> std::fmt::Result {
    for (vdev, segments) in &report.indirect {
        writeln!(
            out,
            "\tindirect vdev id {} has {segments} segments ({segments} in memory)",
            vdev.0
        )?;
    }
    Ok(())
}

/// The errors in space accounting, or that there are none.
fn space_errors(report: &Report, out: &mut String) {
    for problem in &report.problems {
        let _ = match problem {
            Problem::Leak(vdev, offset, len) => {
                writeln!(out, "leaked space: vdev {}, offset 0x{offset:x}, size {len}", vdev.0)
            }
            Problem::References(m) => {
                let table = if m.dedup { "dedup table" } else { "block reference table" };
                let (vdev, at) = (m.vdev.0, m.offset);
                let (counted, found) = (m.counted, m.found);
                writeln!(
                    out,
                    "reference count mismatch: block {vdev}:{at:x} has {found} references, the \
                     {table} counts {counted}"
                )
            }
            Problem::ReferenceTable(f) => {
                let vdev = f.vdev.map(|v| format!(" of vdev {}", v.0)).unwrap_or_default();
                let (what, stored, found) = (f.what, f.stored, f.found);
                writeln!(
                    out,
                    "block reference table mismatch{vdev}: {what}: stored {stored}, found {found}"
                )
            }
            Problem::DedupTable(fault) => writeln!(
                out,
                "dedup table mismatch: {}: {} is {}, not {}",
                fault.table, fault.what, fault.stored, fault.found
            ),
            Problem::Contradiction(vdev, id, e) => writeln!(
                out,
                "space map contradiction: vdev {}, metaslab {id}: {} bytes allocated twice, {} \
                 bytes freed twice",
                vdev.0, e.alloc_twice, e.free_twice
            ),
            Problem::MapSum(vdev, id, found, claimed) => writeln!(
                out,
                "space map sum mismatch: vdev {}, metaslab {id}: entries add up to {found} bytes, \
                 the headers claim {claimed}",
                vdev.0
            ),
            Problem::Livelist(dir, listed, found) => writeln!(
                out,
                "livelist mismatch: directory {dir}: the list has {} blocks of {} bytes, the \
                 clone {} of {}",
                listed[0], listed[1], found[0], found[1]
            ),
            Problem::Obsolete { vdev, source, len, found, obsolete } => writeln!(
                out,
                "obsolete indirect mapping count mismatch on {}:{source:x}:{len:x} : {found:x} \
                 bytes referenced, {obsolete:x} bytes obsolete",
                vdev.0
            ),
            Problem::Mapping(e) => writeln!(out, "indirect mapping: {e}"),
            Problem::FeatureCount { guid, counted, due } => {
                let name = by_guid(guid).map_or(*guid, |feature| feature.name());
                writeln!(out, "{name} feature refcount mismatch: {due} != {counted}")
            }
            _ => Ok(()),
        };
    }
    if report.problems.len() >= PROBLEMS_MAX {
        out.push_str("(more problems are not listed)\n");
    }
    if report.damaged > 0 {
        let _ = writeln!(
            out,
            "damaged copies: {} (every block they belong to can be read from elsewhere)",
            report.damaged
        );
    }
    if !report.leaks_checked {
        return;
    }
    if report.space_is_clean() {
        out.push_str("\n\tNo leaks (block sum matches space maps exactly)\n");
    } else if report.allocated != report.found {
        let (kind, diff) = if report.allocated > report.found {
            ("leaked", report.allocated - report.found)
        } else {
            ("unreachable", report.found - report.allocated)
        };
        let _ = writeln!(
            out,
            "block traversal size {} != alloc {} ({kind} {diff})",
            report.found, report.allocated
        );
    }
}

fn ratio(a: u64, b: u64) -> f64 {
    if b == 0 { 0.0 } else { a as f64 / b as f64 }
}

fn summary(report: &Report, out: &mut String) {
    let stats = &report.stats;
    let t = stats.total();
    let avg = |n: u64| n.checked_div(t.count).unwrap_or(0);
    let mut line = |text: String| {
        out.push_str(&text);
        out.push('\n');
    };
    line(String::new());
    line(format!("\t{:<16} {:14}", "bp count:", t.count));
    line(format!("\t{:<16} {:14}", "ganged count:", stats.gangs));
    line(format!("\t{:<16} {:14}      avg: {:6}", "bp logical:", t.lsize, avg(t.lsize)));
    line(format!(
        "\t{:<16} {:14}      avg: {:6}     compression: {:6.2}",
        "bp physical:",
        t.psize,
        avg(t.psize),
        ratio(t.lsize, t.psize)
    ));
    line(format!(
        "\t{:<16} {:14}      avg: {:6}     compression: {:6.2}",
        "bp allocated:",
        t.asize,
        avg(t.asize),
        ratio(t.lsize, t.asize)
    ));
    line(format!(
        "\t{:<16} {:14}    ref>1: {:6}   deduplication: {:6.2}",
        "bp deduped:",
        stats.dedup_asize,
        stats.dedup_refs,
        ratio(stats.dedup_asize, t.asize) + 1.0
    ));
    line(format!(
        "\t{:<16} {:14}    count: {:6}",
        "bp cloned:", stats.clone_asize, stats.clone_refs
    ));
    for (name, class) in &report.classes {
        let label = if *name == "Normal class" { "Normal class:" } else { name };
        let used = if class.space == 0 {
            "-nan".to_owned()
        } else {
            format!("{:5.2}", 100.0 * ratio(class.allocated, class.space))
        };
        line(format!("\t{label:<16} {:14}     used: {used:>5}%", class.allocated));
    }
    line(String::new());
    let embedded: u64 = stats.embedded.iter().sum();
    if embedded > 0 {
        line(format!("\tadditional, non-pointer bps of type 0: {embedded:10}"));
    }
}

fn embedded_sizes(stats: &BlockStats, out: &mut String) {
    let rows: Vec<(usize, u64)> = stats.embedded.iter().copied().enumerate().collect();
    if rows.iter().any(|r| r.1 > 0) {
        out.push_str("\t number of (compressed) bytes:  number of bps\n");
        out.push_str(&histogram(&rows));
    }
}

/// One row; rows without space are empty, as in zdb.
fn row(s: &Sums, total: u64, exact: bool, name: &str) -> String {
    if s.asize == 0 {
        return format!("     -\t    -\t    -\t    -\t    -\t    -\t     -\t{name}\n");
    }
    let size = |n: u64| bptext::size(n, exact);
    format!(
        "{:>6}\t{:>5}\t{:>5}\t{:>5}\t{:>5}\t{:5.2}\t{:6.2}\t{name}\n",
        size(s.count),
        size(s.lsize),
        size(s.psize),
        size(s.asize),
        size(s.asize / s.count),
        ratio(s.lsize, s.psize),
        100.0 * ratio(s.asize, total),
    )
}

fn levels(stats: &impl Fn(usize) -> Sums, total: u64, exact: bool, name: &str, out: &mut String) {
    if (1..LEVELS).all(|l| stats(l).count == 0) {
        return;
    }
    for level in (0..LEVELS).rev() {
        let s = stats(level);
        if s.count > 0 {
            out.push_str(&row(&s, total, exact, &format!("    L{level} {name}")));
        }
    }
}

fn table(stats: &BlockStats, by_level: bool, exact: bool, out: &mut String) {
    out.push_str("\nBlocks\tLSIZE\tPSIZE\tASIZE\t  avg\t comp\t%Total\tType\n");
    let total = stats.total();
    for r in 0..ROWS {
        if by_level {
            levels(&|l| stats.cell(r, l), total.asize, exact, row_name(r), out);
        }
        out.push_str(&row(&stats.row(r), total.asize, exact, row_name(r)));
    }
    if by_level {
        levels(&|l| stats.level(l), total.asize, exact, "Total", out);
    }
    out.push_str(&row(&total, total.asize, exact, "Total"));
    out.push_str(&row(&stats.metadata(), total.asize, exact, "Metadata Total"));
}

fn sizes(stats: &BlockStats, exact: bool, out: &mut String) {
    out.push_str("\nBlock Size Histogram\n\n");
    if exact {
        out.push_str("block\tpsize\t\t\tlsize\t\t\t  asize\n");
        out.push_str("size\tCount\tSize\tCum.\tCount\tSize\tCum.\tCount\tSize\tCum.\t\n");
    } else {
        out.push_str("  block   psize                lsize                asize\n");
        out.push_str("   size   Count   Size   Cum.  Count   Size   Cum.  Count   Size   Cum.\n");
    }
    let mut sums = [0u64; 3];
    for bucket in 0..BUCKETS {
        let size = 512u64 << bucket;
        let _ = if exact { write!(out, "{size}") } else { write!(out, "{:>7}:", nicenum(size)) };
        for (histogram, sum) in stats.sizes.iter().zip(&mut sums) {
            let (count, bytes) = histogram.get(bucket).copied().unwrap_or_default();
            *sum = sum.saturating_add(bytes);
            let _ = if exact {
                write!(out, "\t{count}\t{bytes}\t{sum}")
            } else {
                let (count, bytes) = (nicenum(count), nicenum(bytes));
                write!(out, " {count:>6} {bytes:>6} {:>6}", nicenum(*sum))
            };
        }
        out.push('\n');
    }
}
