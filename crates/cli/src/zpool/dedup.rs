//! `zpool ddtprune`, `zpool prefetch`, and the report of `zpool status -D` (zpool-ddtprune(8),
//! zpool-prefetch(8), chapter 09 §4.3; the words as OpenZFS 2.3.2 prints them).

use std::ffi::OsString;

use base::Result;
use cenote::StatBucket;
use cenote::props::nicebytes;
use proto::{Change, DedupReport, PruneArgs, Reply, Request};
use ui::Exit;
use ui::json::Json;

use super::change::{one_pool, request_change};
use super::status::Numbers;
use super::{Pools, command, misuse, options, unexpected_reply};

/// `zpool ddtprune -d|-p <amount> <pool>`
pub(super) fn prune(argv: &[OsString]) -> Result<Exit> {
    let parsed = match options("ddtprune", argv) {
        Ok(parsed) => parsed,
        Err(exit) => return Ok(exit),
    };
    let mut amount = None;
    for option in &parsed.opts {
        let text = option.arg.to_string_lossy();
        amount = match option.letter {
            'd' => match text.parse::<u64>() {
                Ok(days @ 1..) => Some(PruneArgs::Days(days)),
                _ => return Ok(misuse("ddtprune", Some("invalid days value"))),
            },
            _ => match text.parse::<u8>() {
                Ok(percent @ 1..=100) => Some(PruneArgs::Percent(percent)),
                _ => return Ok(misuse("ddtprune", Some("invalid percentage value"))),
            },
        };
    }
    let Some(amount) = amount else {
        return Ok(misuse("ddtprune", Some("missing amount option (-d|-p <value>)")));
    };
    match one_pool("ddtprune", parsed.words(), "missing pool argument")? {
        Ok(name) => request_change(&name, Change::PruneDedup(amount), command("ddtprune", argv)),
        Err(exit) => Ok(exit),
    }
}

/// `zpool prefetch -t ddt <pool>`
pub(super) fn prefetch(argv: &[OsString]) -> Result<Exit> {
    let parsed = match options("prefetch", argv) {
        Ok(parsed) => parsed,
        Err(exit) => return Ok(exit),
    };
    match parsed.last('t').as_deref() {
        Some("ddt") => {}
        _ => return Ok(misuse("prefetch", Some("unsupported prefetch type"))),
    }
    match one_pool("prefetch", parsed.words(), "missing pool name argument")? {
        Ok(name) => request_change(&name, Change::PrefetchDedup, command("prefetch", argv)),
        Err(exit) => Ok(exit),
    }
}

impl Pools {
    /// A pool's dedup tables.
    pub(super) fn dedup(&mut self, name: &str) -> Result<DedupReport> {
        match self.request(&Request::DedupReport { name: name.to_owned() })? {
            Reply::Dedup(report) => Ok(*report),
            _ => Err(unexpected_reply()),
        }
    }
}

/// What `zpool status -D` adds to the report on a pool.
pub(super) fn status_text(report: &DedupReport) -> String {
    if report.entries == 0 {
        return "\n dedup: no DDT entries\n".to_owned();
    }
    let (core, cached) = (report.in_core, report.cached);
    let share = if core == 0 { 0.0 } else { cached as f64 / core as f64 * 100.0 };
    let buckets: Vec<StatBucket> = report.histogram.iter().map(bucket).collect();
    format!(
        "\n dedup: DDT entries {}, size {} on disk, {} in core, {} cached ({share:.2}%)\n{}",
        report.entries,
        nicebytes(report.on_disk),
        nicebytes(core),
        nicebytes(cached),
        ui::dedup::histogram(&buckets, true)
    )
}

/// The same as JSON; without the histogram.
pub(super) fn status_json(report: &DedupReport, numbers: Numbers) -> Json {
    let bytes = |n: u64| numbers.bytes(n);
    Json::object([
        ("obj_count".to_owned(), numbers.count(report.entries)),
        ("dspace".to_owned(), bytes(report.on_disk)),
        ("mspace".to_owned(), bytes(report.in_core)),
        ("cspace".to_owned(), bytes(report.cached)),
    ])
}

fn bucket(words: &[u64; 8]) -> StatBucket {
    let [b0, b1, b2, b3, r0, r1, r2, r3] = *words;
    StatBucket { blocks: [b0, b1, b2, b3], referenced: [r0, r1, r2, r3] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_the_status() {
        assert_eq!(status_text(&DedupReport::default()), "\n dedup: no DDT entries\n");
        let mut report = DedupReport {
            entries: 286,
            on_disk: 92_160,
            in_core: 131_072,
            cached: 65_536,
            histogram: vec![[0; 8]; 64],
        };
        report.histogram[1] = [286, 1 << 20, 1 << 20, 1 << 20, 572, 2 << 20, 2 << 20, 2 << 20];
        let text = status_text(&report);
        let line =
            "\n dedup: DDT entries 286, size 90K on disk, 128K in core, 64K cached (50.00%)\n";
        assert!(text.starts_with(line) && text.contains(" Total      286"), "{text}");
    }
}
