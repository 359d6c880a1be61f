//! The `scan:` lines of `zpool status` (chapter 09 §4.3).

use std::fmt::Write;

use cenote::props::nicebytes;
use proto::{Pool, RebuildScan, Scan};
use ui::time::{ctime, duration};

/// Below this rate, in bytes a second, no completion time is estimated.
const RATE_MIN: u64 = 10 << 20;

/// What was done in a time.
struct Pace {
    ms: u64,
    examined: u64,
    issued: u64,
}

impl Pace {
    fn rate(&self, bytes: u64) -> u64 {
        let rate = u128::from(bytes) * 1000 / u128::from(self.ms.max(1));
        u64::try_from(rate).unwrap_or(u64::MAX)
    }

    /// The lines about running work: bytes examined, issued, and repaired, each with their sum
    /// or the word for it.
    fn lines(&self, examined: (u64, u64), issued: (u64, u64), done: (u64, &str)) -> String {
        let rate = self.rate(self.issued);
        let end = if rate < RATE_MIN {
            "no estimated completion time".to_owned()
        } else {
            format!("{} to go", duration(issued.1.saturating_sub(issued.0) / rate))
        };
        format!(
            "\t{} / {} scanned at {}/s, {} / {} issued at {}/s\n\t{} {}, {} done, {end}\n",
            nicebytes(examined.0),
            nicebytes(examined.1),
            nicebytes(self.rate(self.examined)),
            nicebytes(issued.0),
            nicebytes(issued.1),
            nicebytes(rate),
            nicebytes(done.0),
            done.1,
            percent(issued.0, issued.1)
        )
    }
}

/// The lines about a scrub or resilver.
pub(super) fn scan_lines(s: &Scan, now: u64) -> String {
    let (what, done) = if s.resilver { ("resilver", "resilvered") } else { ("scrub", "repaired") };
    match s.state {
        2 => {
            let head = if s.resilver { "resilvered" } else { "scrub repaired" };
            format!(
                "  scan: {head} {} in {} with {} errors on {}\n",
                nicebytes(s.processed),
                duration(s.end.saturating_sub(s.start)),
                s.errors,
                ctime(s.end)
            )
        }
        3 => format!("  scan: {what} canceled on {}\n", ctime(s.end)),
        1 if s.paused > 0 => format!(
            "  scan: {what} paused since {}\n\t{what} started on {}\n\t{} / {} scanned, {} / {} \
             issued\n\t{} {done}, {} done\n",
            ctime(s.paused),
            ctime(s.start),
            nicebytes(s.examined),
            nicebytes(s.to_examine),
            nicebytes(s.issued),
            nicebytes(s.to_examine.saturating_sub(s.skipped)),
            nicebytes(s.processed),
            percent(s.issued, s.to_examine.saturating_sub(s.skipped))
        ),
        1 => {
            // A pool that another program writes, or that is read only, has no passes.
            let (elapsed, examined, issued) = match s.pass_seconds {
                0 => (now.saturating_sub(s.start).max(1), s.examined, s.issued),
                seconds => (seconds, s.pass_examined, s.pass_issued),
            };
            let all = s.to_examine.saturating_sub(s.skipped);
            let pace = Pace { ms: elapsed.saturating_mul(1000), examined, issued };
            format!(
                "  scan: {what} in progress since {}\n{}",
                ctime(s.start),
                pace.lines((s.examined, s.to_examine), (s.issued, all), (s.processed, done))
            )
        }
        _ => String::new(),
    }
}

/// The lines about sequential rebuilds: of the running ones, or of the last ones, unless a
/// resilver is newer.
pub(super) fn rebuild_lines(p: &Pool, now: u64) -> String {
    let running = p.rebuilds.iter().any(|r| r.state == 1);
    let newest = p.rebuilds.iter().map(|r| r.end).max().unwrap_or(0);
    let resilver = p.scan.as_ref().filter(|s| s.resilver);
    let hidden = resilver.is_some_and(|s| s.state == 1 || (!running && s.end >= newest));
    match hidden {
        true => String::new(),
        false => p.rebuilds.iter().map(|r| rebuild_line(r, now)).collect(),
    }
}

fn rebuild_line(r: &RebuildScan, now: u64) -> String {
    let mut out = String::new();
    let name = &r.name;
    let _ = match r.state {
        1 => {
            let since =
                (now.saturating_sub(r.start).max(1).saturating_mul(1000), r.scanned, r.issued);
            let (ms, examined, issued) = match r.pass_ms {
                0 => since,
                ms => (ms, r.pass_scanned, r.pass_issued),
            };
            let pace = Pace { ms, examined, issued };
            let all = r.estimated;
            let lines = pace.lines((r.scanned, all), (r.issued, all), (r.rebuilt, "resilvered"));
            write!(out, "  scan: resilver ({name}) in progress since {}\n{lines}", ctime(r.start))
        }
        2 => writeln!(out, "  scan: resilver ({name}) canceled on {}", ctime(r.end)),
        3 => writeln!(
            out,
            "  scan: resilvered ({name}) {} in {} with {} errors on {}",
            nicebytes(r.rebuilt),
            duration(r.time_ms / 1000),
            r.errors,
            ctime(r.end)
        ),
        _ => Ok(()),
    };
    out
}

fn percent(done: u64, all: u64) -> String {
    let hundredths = (u128::from(done) * 10_000).checked_div(u128::from(all)).unwrap_or(10_000);
    format!("{}.{:02}%", hundredths / 100, hundredths % 100)
}
