//! Lines and remarks of `zpool status` about work in progress and work that has ended (chapter 09
//! §4.3).

use std::fmt::Write;

use cenote::props::{nicebytes, nicenum};
use proto::{Checkpoint, Defrag, ErrorScrub, Expand, LeafJob, MoveKind, Removal};
use ui::progress::bar;
use ui::time::{ctime, duration};

/// Words of remarks: while it runs, when it never ran, and behind the percentage.
pub(super) type JobWords = [&'static str; 3];
pub(super) const INITIALIZE_WORDS: JobWords = ["initializing", "uninitialized", "initialized"];
pub(super) const TRIM_WORDS: JobWords = ["trimming", "untrimmed", "trimmed"];

/// The remark on the work on a leaf's free space; `whole`: that on request.
pub(super) fn job_remark(job: Option<&LeafJob>, whole: bool, words: &JobWords) -> String {
    let [runs, never, done] = words;
    // An empty device is done.
    let percent = |job: &LeafJob| {
        let all = u128::from(job.done.min(job.total)) * 100;
        all.checked_div(u128::from(job.total)).unwrap_or(100)
    };
    match job {
        Some(job) if job.state == 1 && !whole => format!("  ({runs})"),
        _ if !whole => String::new(),
        Some(job) if matches!(job.state, 1 | 3 | 4) => {
            let how = match job.state {
                1 => "started at",
                3 => "suspended, started at",
                _ => "completed at",
            };
            format!("  ({}% {done}, {how} {})", percent(job), ctime(job.time))
        }
        _ => format!("  ({never})"),
    }
}

pub(super) fn checkpoint_line(checkpoint: &Checkpoint) -> String {
    let space = nicebytes(checkpoint.space);
    match checkpoint.discarding {
        true => format!("checkpoint: discarding, {space} remaining.\n"),
        false => {
            format!("checkpoint: created {}, consumes {space}\n", ctime(checkpoint.taken))
        }
    }
}

/// The lines about an error scrub; their label is not that of a scan.
pub(super) fn error_scrub_lines(s: &ErrorScrub) -> String {
    let (days, rest) =
        (s.end.saturating_sub(s.start) / 86_400, s.end.saturating_sub(s.start) % 86_400);
    let progress = || {
        let hundredths = (u128::from(s.examined) * 10_000).checked_div(u128::from(s.to_examine));
        let hundredths = hundredths.unwrap_or(10_000);
        let (whole, part) = (hundredths / 100, hundredths % 100);
        let (examined, all) = (s.examined, s.to_examine);
        format!("\t{examined} / {all} error blocks read, {whole}.{part:02}% done\n")
    };
    match s.state {
        2 => format!(
            " scrub: scrubbed {} error blocks in {days} days {} on {}\n",
            s.examined,
            duration(rest),
            ctime(s.end)
        ),
        3 => format!(" scrub: error scrub canceled on {}\n", ctime(s.end)),
        1 if s.paused > 0 => format!(
            " scrub: error scrub paused since {}\n\terror scrub started on {}\n{}",
            ctime(s.paused),
            ctime(s.start),
            progress()
        ),
        1 => format!(" scrub: error scrub in progress since {}\n{}", ctime(s.start), progress()),
        _ => String::new(),
    }
}

/// A progress bar for terminals, below the text about a scan or removal.
pub(super) fn bar_line(done: u64, total: u64) -> String {
    format!("\t{}\n", bar(done, total))
}

/// Seconds from which on copying is too slow for an estimate: 30 days.
const SLOW: u64 = 30 * 86_400;

/// A duration as removal lines show it.
fn hours_minutes(seconds: u64) -> String {
    format!("{}h{}m", seconds / 3600, seconds / 60 % 60)
}

pub(super) fn removal_lines(r: &Removal) -> String {
    let took = r.end.saturating_sub(r.start);
    match r.state {
        2 if r.shrinks => format!(
            "shrink: Shrinking of {} moved {} in {}, completed on {}\n",
            r.name,
            nicebytes(r.copied),
            hours_minutes(took),
            ctime(r.end)
        ),
        2 => {
            let mut out = format!(
                "remove: Removal of vdev {} copied {} in {}, completed on {}\n",
                r.vdev,
                nicebytes(r.copied),
                hours_minutes(took),
                ctime(r.end)
            );
            if r.mapping_memory > 0 {
                let _ = writeln!(
                    out,
                    "\t{} memory used for removed device mappings",
                    nicenum(r.mapping_memory)
                );
            }
            out
        }
        3 => {
            let what = if r.shrinks { "shrink: Shrinking" } else { "remove: Removal" };
            let mut out = format!("{what} of {} canceled on {}\n", r.name, ctime(r.end));
            if let Some(why) = &r.why {
                let _ = writeln!(out, "\t{why}");
            }
            out
        }
        1 => {
            let now = base::rt::wall_clock().as_secs();
            let what =
                if r.shrinks { "shrink: Evacuation of the end" } else { "remove: Evacuation" };
            let mut out = format!("{what} of {} in progress since {}\n", r.name, ctime(r.start));
            let rate = (r.copied / now.saturating_sub(r.start).max(1)).max(1);
            let hundredths = (u128::from(r.copied) * 10_000).checked_div(u128::from(r.to_copy));
            let hundredths = hundredths.unwrap_or(10_000).min(10_000);
            let left = r.to_copy.saturating_sub(r.copied) / rate;
            let _ = write!(
                out,
                "\t{} copied out of {} at {}/s, {}.{:02}% done",
                nicebytes(r.copied),
                nicebytes(r.to_copy),
                nicebytes(rate),
                hundredths / 100,
                hundredths % 100
            );
            out.push_str(&match left < SLOW {
                true => format!(", {} to go\n", hours_minutes(left)),
                false => ", (copy is slow, no estimated time)\n".to_owned(),
            });
            if let Some(why) = &r.why {
                let _ = writeln!(out, "\twaiting: {why}");
            }
            out
        }
        _ => String::new(),
    }
}

/// The lines about an expansion; `now`: Unix seconds.
pub(super) fn expand_lines(e: &Expand, now: u64) -> String {
    match e.state {
        2 => format!(
            "expand: expanded {} copied {} in {}, on {}\n",
            e.name,
            nicebytes(e.copied),
            duration(e.end.saturating_sub(e.start)),
            ctime(e.end)
        ),
        1 => {
            let rate = (e.copied / now.saturating_sub(e.start).max(1)).max(1);
            let hundredths = (u128::from(e.copied) * 10_000).checked_div(u128::from(e.to_copy));
            let hundredths = hundredths.unwrap_or(10_000).min(10_000);
            let left = e.to_copy.saturating_sub(e.copied) / rate;
            let to_go = match left < SLOW {
                true => format!("{} to go", duration(left)),
                false => "(copy is slow, no estimated time)".to_owned(),
            };
            format!(
                "expand: expansion of {} in progress since {}\n\t{} / {} copied at {}/s, {}.{:02}% \
                 done, {to_go}\n",
                e.name,
                ctime(e.start),
                nicebytes(e.copied),
                nicebytes(e.to_copy),
                nicebytes(rate),
                hundredths / 100,
                hundredths % 100
            )
        }
        _ => String::new(),
    }
}

/// A layout score of this many thousandths.
pub(in super::super) fn score(thousandths: u64) -> String {
    format!("{}.{:03}", thousandths / 1000, thousandths % 1000)
}

/// The words about a job that moves blocks: its label, its name, and what was done.
fn move_words(kind: MoveKind) -> [&'static str; 3] {
    match kind {
        MoveKind::Defrag => ["defrag", "defragmentation", "defragmented"],
        MoveKind::Rebalance => ["rebalance", "rebalance", "rebalanced"],
        MoveKind::ToSpecial => ["rebalance", "move to special vdevs", "moved to special vdevs:"],
        MoveKind::FromSpecial => {
            ["rebalance", "move from special vdevs", "moved from special vdevs:"]
        }
        MoveKind::Unmap => {
            ["defrag", "erasure of mappings", "erased the mappings of removed devices: moved"]
        }
    }
}

/// The lines about a defragmentation or a rebalance, in the manner of those about a removal.
pub(super) fn defrag_lines(d: &Defrag, now: u64) -> String {
    let [label, job, done] = move_words(d.kind);
    let mut out = match d.state {
        1 => format!("{label}: {job} in progress since {}\n", ctime(d.start)),
        2 => format!(
            "{label}: {done} {} in {} on {}\n",
            nicebytes(d.moved),
            duration(d.end.saturating_sub(d.start)),
            ctime(d.end)
        ),
        3 => format!("{label}: {job} canceled on {}\n", ctime(d.end)),
        4 => format!("{label}: {job} paused since {}\n", ctime(d.end)),
        5 => {
            let head = format!("{label}: {job} failed on {}\n", ctime(d.end));
            let why = d.waiting.clone();
            let why = why.unwrap_or_else(|| format!("{} blocks could not be moved", d.kept));
            return format!("{head}\t{why}\n");
        }
        _ => return String::new(),
    };
    match d.state {
        1 | 4 => {
            let Some(to_move) = d.to_move else {
                out.push_str(match d.kind {
                    MoveKind::Defrag => "\tlooking at files and free space\n",
                    _ => "\tlooking for blocks to move\n",
                });
                return out;
            };
            let hundredths = (u128::from(d.moved) * 10_000).checked_div(u128::from(to_move));
            let hundredths = hundredths.unwrap_or(10_000).min(10_000);
            let _ = write!(out, "\t{} moved of about {}", nicebytes(d.moved), nicebytes(to_move));
            let rate = d.moved / now.saturating_sub(d.start).max(1);
            if d.state == 1 && rate > 0 {
                let _ = write!(out, " at {}/s", nicebytes(rate));
            }
            let _ = write!(out, ", {}.{:02}% done", hundredths / 100, hundredths % 100);
            if d.state == 1 && rate > 0 {
                let left = to_move.saturating_sub(d.moved) / rate;
                let _ = write!(out, ", {} to go", duration(left));
            }
            out.push('\n');
            if let Some(why) = &d.waiting {
                let _ = writeln!(out, "\twaiting: {why}");
            }
        }
        _ => {}
    }
    if d.kind == MoveKind::Defrag && (d.files > 0 || d.metaslabs > 0) {
        let _ = write!(out, "\t{} files laid out, {} metaslabs emptied", d.files, d.metaslabs);
        if let Some((before, after)) = d.scores.filter(|_| d.state == 2) {
            let _ = write!(out, ", layout score {} before, {} after", score(before), score(after));
        }
        out.push('\n');
    }
    out
}
