//! `zpool wait` (chapter 09 §4.7).
//!
//! The pool's activities are queried once a second. `defrag` and `rebalance` are activities that
//! OpenZFS does not have; they are in the last columns.

use std::ffi::OsString;
use std::time::Duration;

use base::Result;
use proto::{Pool, PropertyEntry, PropertyValue, Vdev};
use ui::progress::Progress;
use ui::{Exit, time};

use super::{Pools, misuse, no_such_pool, options};

/// In the order of the columns.
const ACTIVITIES: [&str; 11] = [
    "discard",
    "free",
    "initialize",
    "replace",
    "remove",
    "resilver",
    "scrub",
    "trim",
    "raidz_expand",
    "defrag",
    "rebalance",
];
/// Time between two queries, without an interval.
pub(super) const PAUSE: Duration = Duration::from_secs(1);

/// The activities to wait for, and the output format.
#[derive(Debug, PartialEq)]
struct WaitOptions {
    pool: String,
    activities: Vec<&'static str>,
    interval: Option<Duration>,
    stamp: Option<String>,
    scripted: bool,
    parsable: bool,
}

/// The message before the usage; empty for none.
fn parse_options(parsed: &commands::getopt::Parsed) -> std::result::Result<WaitOptions, String> {
    let mut wanted = Vec::new();
    for opt in parsed.opts.iter().filter(|o| o.letter == 't') {
        for name in opt.text().split(',') {
            let known = ACTIVITIES.iter().find(|a| **a == name);
            wanted.push(*known.ok_or_else(|| format!("invalid activity '{name}'"))?);
        }
    }
    let all = wanted.is_empty();
    let activities: Vec<&str> =
        ACTIVITIES.into_iter().filter(|a| all || wanted.contains(a)).collect();
    let stamp = parsed.last('T');
    if stamp.as_deref().is_some_and(|s| s != "d" && s != "u") {
        return Err(String::new());
    }
    let mut words = parsed.words();
    let number = words.last().filter(|_| words.len() > 1).and_then(|w| w.parse::<f64>().ok());
    let interval = match number.filter(|n| n.is_finite()) {
        Some(n) if n <= 0.0 => return Err("interval cannot be zero".to_owned()),
        Some(n) => {
            words.pop();
            Some(Duration::from_secs_f64(n.min(1e9)))
        }
        None => None,
    };
    let mut words = words.into_iter();
    let Some(pool) = words.next() else { return Err("missing 'pool' argument".to_owned()) };
    if words.next().is_some() {
        return Err("too many arguments".to_owned());
    }
    let (scripted, parsable) = (parsed.has('H'), parsed.has('p'));
    Ok(WaitOptions { pool, activities, interval, stamp, scripted, parsable })
}

/// Whether some device is being replaced.
fn is_replacing(vdev: &Vdev) -> bool {
    vdev.kind == "replacing" || vdev.children.iter().any(is_replacing)
}

/// At least 1 while work is in progress, or it would look finished.
fn rest(to_do: u64, done: u64) -> u64 {
    to_do.saturating_sub(done).max(1)
}

/// Blocks of the error log that an error scrub still has to read; one that is paused does not
/// count.
fn error_scrub_left(pool: &Pool) -> u64 {
    let running = pool.error_scrub.filter(|s| s.state == 1 && s.paused == 0);
    running.map_or(0, |s| rest(s.to_examine, s.examined))
}

/// Bytes of a discarded checkpoint that are still to be freed.
pub(super) fn discard_left(pool: &Pool) -> u64 {
    let discarding = pool.checkpoint.filter(|c| c.discarding);
    discarding.map_or(0, |c| rest(c.space, 0))
}

/// Bytes that the trims or initializations of a vdev and those below it still have to process.
pub(super) fn job_left(v: &Vdev, trims: bool) -> u64 {
    let job = if trims { v.trim } else { v.initialize };
    let own = job.filter(|job| job.state == 1).map_or(0, |job| rest(job.total, job.done));
    v.children.iter().map(|child| job_left(child, trims)).fold(own, u64::saturating_add)
}

/// Bytes that an activity still has to process; 0 if it is not in progress.
fn left(activity: &str, pool: &Pool, freeing: u64) -> u64 {
    let scan = |resilver: bool| {
        let running = pool.scan.as_ref().filter(|s| s.state == 1 && s.resilver == resilver);
        running.filter(|s| s.paused == 0).map_or(0, |s| rest(s.to_examine, s.issued))
    };
    let rebuilds = || -> u64 {
        let running = pool.rebuilds.iter().filter(|r| r.state == 1);
        running.map(|r| rest(r.estimated, r.issued)).fold(0, u64::saturating_add)
    };
    let resilvers = || scan(true).saturating_add(rebuilds());
    match activity {
        "discard" => discard_left(pool),
        "free" => freeing,
        "initialize" => job_left(&pool.root, false),
        "trim" => job_left(&pool.root, true),
        // An error scrub counts blocks.
        "scrub" => scan(false).saturating_add(error_scrub_left(pool)),
        // The device stays until its successor has everything.
        "replace" if is_replacing(&pool.root) => resilvers().max(1),
        "resilver" => resilvers().max(u64::from(pool.resilver_pending)),
        "remove" => {
            let running = pool.removal.as_ref().filter(|r| r.state == 1);
            // As long as it runs, something is left.
            running.map_or(0, |r| rest(r.to_copy, r.copied).max(1))
        }
        "raidz_expand" => {
            let running = pool.expand.as_ref().filter(|e| e.state == 1);
            // As long as it runs, something is left.
            running.map_or(0, |e| rest(e.to_copy, e.copied).max(1))
        }
        "defrag" | "rebalance" => {
            let rebalances = activity == "rebalance";
            let is_it = |d: &&proto::Defrag| d.state == 1 && d.kind.is_rebalance() == rebalances;
            let running = pool.defrag.as_ref().filter(is_it);
            // As long as it runs, something is left.
            running.map_or(0, |d| rest(d.to_move.unwrap_or(0), d.moved).max(1))
        }
        _ => 0,
    }
}

/// Columns are as wide as their names, at least six, with two blanks between them.
fn row(options: &WaitOptions, cells: &[String]) -> String {
    if options.scripted {
        return cells.join("\t") + "\n";
    }
    let widths = options.activities.iter().map(|a| a.len().max(6) + 2);
    let cells = cells.iter().zip(widths).map(|(cell, width)| format!("{cell:>width$}"));
    cells.collect::<String>() + "\n"
}

fn amount(n: u64, options: &WaitOptions) -> String {
    if options.parsable { n.to_string() } else { cenote::props::nicenum(n) }
}

fn freeing(props: &[(String, PropertyEntry)]) -> u64 {
    match props.first().map(|p| &p.1.value) {
        Some(PropertyValue::Num(n)) => *n,
        _ => 0,
    }
}

/// Waits until these activities are over, as `-w` of a command that begins them does.
pub(super) fn until_over(pool: &str, activities: &[&str]) -> Result<()> {
    let mut pools = Pools::connect()?;
    loop {
        let status = pools.status(pool)?;
        if activities.iter().all(|a| left(a, &status, 0) == 0) {
            return Ok(());
        }
        base::rt::sleep(PAUSE);
    }
}

/// `zpool wait ...`
pub(super) fn main(argv: &[OsString]) -> Result<Exit> {
    let parsed = match options("wait", argv) {
        Ok(parsed) => parsed,
        Err(exit) => return Ok(exit),
    };
    let options = match parse_options(&parsed) {
        Ok(options) => options,
        Err(text) => {
            return Ok(misuse("wait", Some(&text).filter(|t| !t.is_empty()).map(|t| &**t)));
        }
    };
    let mut pools = Pools::connect()?;
    if pools.select(std::slice::from_ref(&options.pool), no_such_pool)?.is_empty() {
        return Ok(Exit::FAILURE);
    }
    let mut headed = options.scripted;
    // Without an interval, a terminal shows the progress.
    let mut bar: Option<(Progress, u64)> = None;
    loop {
        let status = pools.status(&options.pool)?;
        let props = pools.props(&options.pool, Some(vec!["freeing".to_owned()]))?;
        let rest: Vec<u64> =
            options.activities.iter().map(|a| left(a, &status, freeing(&props))).collect();
        if options.interval.is_some() {
            if let Some(kind) = &options.stamp {
                ui::out(&format!("{}\n", time::stamp(kind)));
            }
            if !headed {
                let names: Vec<String> =
                    options.activities.iter().map(|a| (*a).to_owned()).collect();
                ui::out(&row(&options, &names));
                headed = true;
            }
            let cells: Vec<String> = rest.iter().map(|&n| amount(n, &options)).collect();
            ui::out(&row(&options, &cells));
        }
        if rest.iter().all(|&n| n == 0) {
            return Ok(Exit::OK);
        }
        let left = rest.iter().fold(0, |sum: u64, &n| sum.saturating_add(n));
        if options.interval.is_none() {
            let begin = || (Progress::new(&*options.pool, Some(left)), left);
            let (progress, all) = bar.get_or_insert_with(begin);
            progress.at(all.saturating_sub(left));
        }
        base::rt::sleep(options.interval.unwrap_or(PAUSE));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> std::result::Result<WaitOptions, String> {
        let argv: Vec<OsString> =
            line.split(' ').filter(|w| !w.is_empty()).map(OsString::from).collect();
        parse_options(&commands::find("zpool", "wait").parse(&argv).unwrap())
    }

    /// Recorded from OpenZFS 2.3.2.
    #[test]
    fn complaints() {
        for (line, text) in [
            ("", "missing 'pool' argument"),
            ("-t x live", "invalid activity 'x'"),
            ("-t scrub,x live", "invalid activity 'x'"),
            ("-t scrub -t x live", "invalid activity 'x'"),
            ("live 0", "interval cannot be zero"),
            ("live x", "too many arguments"),
            ("live 1 2", "too many arguments"),
            ("-T x live", ""),
        ] {
            assert_eq!(parse(line), Err(text.to_owned()), "{line}");
        }
    }

    #[test]
    fn what_is_waited_for() {
        let some = parse("-Hp -t scrub,free live 0.5").unwrap();
        assert_eq!(some.activities, ["free", "scrub"], "in the order of the columns");
        assert_eq!(some.interval, Some(Duration::from_millis(500)));
        assert_eq!(parse("5").unwrap().pool, "5", "a pool's name may be a number to us");
        let all = parse("live").unwrap();
        assert_eq!(all.activities.len(), 11);
        let names: Vec<String> = all.activities.iter().map(|a| a.to_uppercase()).collect();
        // Recorded from OpenZFS 2.3.2, which has neither DEFRAG nor REBALANCE.
        assert_eq!(
            row(&all, &names),
            "  DISCARD    FREE  INITIALIZE  REPLACE  REMOVE  RESILVER   SCRUB    TRIM  \
             RAIDZ_EXPAND  DEFRAG  REBALANCE\n"
        );
        let zeros = vec![amount(0, &all); 11];
        assert_eq!(
            row(&all, &zeros),
            "        0       0           0        0       0         0       0       0             \
             0       0          0\n"
        );
        assert_eq!(row(&some, &["1".into(), "2".into()]), "1\t2\n");
    }
}
