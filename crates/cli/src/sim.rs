//! `cenote sim`: the engine on simulated disks, crashed at every event.

mod files;

use std::ffi::OsString;
use std::ops::RangeInclusive;

use ::sim::setup::ByName;
use ::sim::{Campaign, Setup, Totals};
use base::{Error, Result};
use commands::getopt::{Bad, Parsed};
use ui::Exit;

const USAGE: &str = "\
usage: cenote sim [--seed N] [--runs M] [option ...]
	--seed N        the first run's seed (1); each next run has the next one
	--runs M        runs (1)
	--vdevs NAME    single, stripe, mirror, raidz, raidz2, or classes: data, special and
	                log mirrors
	--workload NAME mixed, files, zaps, datasets, churn, full, checkpoint, trim; lineage:
	                snapshots, clones, promotions, rollbacks, renames, holds; clones: the
	                same, mostly of clones, which are written and destroyed; block-clones:
	                blocks that are cloned between objects and datasets; dedup: blocks that
	                are deduplicated; block-sharing: both, while a device is removed or a
	                RAID-Z vdev expanded; short: the seeds count all sequences of one to
	                three operations; posix: a file system's calls; logs: intent logs and
	                their replay; volumes: these with their logs. Of these three, --ops,
	                --plant, --fault and --keep cannot be chosen
	--threads N     threads that write, at most 64
	--ops N         operations of each thread, at most 100000
	--plant NAME    a bug that the run must find: uberblock-before-flush, label-order,
	                reuse-same-group, reuse-before-commit, no-defer, lose-entry, wrong-group,
	                free-kept, forget-range, trim-deferred; of lineages: forgotten-deadlist,
	                forgotten-clones, left-bookmarks, kept-blocks, freed-origin,
	                dropped-holds, forgotten-deferral; of livelists: lost-entry,
	                ignored-frees, kept-livelist; of cloned blocks: lost-decrement,
	                lost-increment, counted-late, dropped-pointer; of dedup tables:
	                dedup-unlogged, dedup-stale-flush, dedup-old-checkpoint,
	                dedup-lost-records, dedup-kept-newborn, dedup-lost-decrement,
	                dedup-lost-increment, dedup-kept-entry; of vdevs that change:
	                removal-off-by-one, removal-lost-entry, expansion-skipped-row,
	                expansion-row-ahead
	--fault NAME    what one disk does while the pool is in use: drop, away,
	                write-errors, flush-errors, read-errors, stale-reads, misdirected,
	                lying-flushes
	--gangs         every block larger than a sector is a gang of single sectors
	--every N       the power fails at every Nth event (1)
	--more N        crashes of each event beyond losing and keeping all (1)
	--judges N      threads that judge
	--keep LIST     only the operations with these numbers
	--crash E[:S]   only the crash after event E, with seed S (0)
	--dir DIR       with --crash: writes the disks left behind into this directory
	-v              tells of every run
Any subset of what was not flushed survives a crash, torn between sectors. In half of those
beyond losing and keeping all, writes arrive in another order as well, or one disk has them
land elsewhere, cannot be read in places, or is missing.
What is not given follows from each run's seed. A run that fails is shortened, and the
command is printed that brings it back. The exit code is 0 if all is well, 1 if a run
failed, 2 for wrong arguments.
";

fn row() -> &'static commands::Command {
    commands::find("cenote", "sim")
}

/// The error for a wrong value of an option.
fn bad_value(option: &str, text: &str, due: &str) -> Error {
    Error::invalid(format!("invalid value '{text}' of '{option}': {due}"))
}

fn number(option: &str, text: &str, range: RangeInclusive<u64>) -> Result<u64> {
    let number = text.parse().ok().filter(|n| range.contains(n));
    number.ok_or_else(|| match (*range.start(), *range.end()) {
        (0, u64::MAX) => bad_value(option, text, "it is a number"),
        (least, u64::MAX) => bad_value(option, text, &format!("it is a number from {least} on")),
        (least, most) => bad_value(option, text, &format!("it is a number from {least} to {most}")),
    })
}

fn given(parsed: &Parsed, letter: char, range: RangeInclusive<u64>) -> Result<Option<u64>> {
    let Some(text) = parsed.last(letter) else { return Ok(None) };
    let name = row().flags.iter().find(|f| f.letter == letter).map_or("", |f| f.long);
    number(&format!("--{name}"), &text, range).map(Some)
}

fn named<T: ByName>(parsed: &Parsed, option: &str, letter: char) -> Result<Option<T>> {
    let Some(text) = parsed.last(letter) else { return Ok(None) };
    let unknown = || bad_value(option, &text, "there is no such name");
    T::named(&text).map(Some).ok_or_else(unknown)
}

fn campaign(parsed: &Parsed) -> Result<Campaign> {
    let keep = parsed.last('k').map(|list| {
        let one = |n: &str| number("--keep", n, 0..=u64::MAX).map(|n| n as usize);
        list.split(',').filter(|n| !n.is_empty()).map(one).collect::<Result<Vec<_>>>()
    });
    if parsed.last('p').is_some() && !base::planted::AVAILABLE {
        return Err(Error::unsupported(
            "--plant: this build has no planted bugs; build it with --features planted-bugs",
        ));
    }
    let seed = given(parsed, 's', 0..=u64::MAX)?.unwrap_or(1);
    let usual = Campaign::new(seed, given(parsed, 'r', 1..=u64::MAX)?.unwrap_or(1));
    let size = |n: Option<u64>| n.map(|n| n as usize);
    Ok(Campaign {
        layout: named(parsed, "--vdevs", 'd')?,
        workload: named(parsed, "--workload", 'w')?,
        threads: size(given(parsed, 't', 1..=64)?),
        ops: size(given(parsed, 'o', 0..=100_000)?),
        plant: named(parsed, "--plant", 'p')?,
        fault: named(parsed, "--fault", 'f')?,
        gangs: parsed.has('g'),
        keep: keep.transpose()?,
        stride: size(given(parsed, 'e', 1..=u64::MAX)?).unwrap_or(1),
        more: given(parsed, 'm', 0..=1_000_000)?.unwrap_or(1),
        judges: size(given(parsed, 'j', 1..=256)?).unwrap_or(usual.judges),
        shrink: parsed.last('k').is_none(),
        ..usual
    })
}

/// An event, and a seed after a colon.
fn pair(text: &str) -> Result<(u64, u64)> {
    let (event, seed) = text.split_once(':').unwrap_or((text, "0"));
    let number = |part| number("--crash", part, 0..=u64::MAX);
    Ok((number(event)?, number(seed)?))
}

/// The campaign, or the one crash, that the options describe.
fn read(parsed: &Parsed) -> Result<(Campaign, Option<(u64, u64)>)> {
    let crash = parsed.last('c').map(|text| pair(&text)).transpose()?;
    if crash.is_none() && parsed.last('D').is_some() {
        return Err(Error::invalid("'--dir' goes with '--crash'"));
    }
    Ok((campaign(parsed)?, crash))
}

fn misuse(why: &str) -> Exit {
    ui::err(why);
    ui::err(USAGE.trim_end());
    Exit::USAGE
}

pub(crate) fn main(argv: &[OsString]) -> Result<Exit> {
    let parsed = match row().parse(argv) {
        Ok(parsed) => parsed,
        Err(Bad::Help) => {
            ui::out(USAGE);
            return Ok(Exit::OK);
        }
        Err(bad) => return Ok(misuse(&bad.message().unwrap_or_default())),
    };
    if let Some(extra) = parsed.args.first() {
        return Ok(misuse(&format!("unexpected argument '{}'", extra.display())));
    }
    match files::main(&parsed) {
        Ok(None) => {}
        Ok(Some(exit)) => return Ok(exit),
        Err(e) if e.kind() == base::ErrorKind::Invalid => return Ok(misuse(e.message())),
        Err(e) => return Err(e),
    }
    let (campaign, crash) = match read(&parsed) {
        Ok(plan) => plan,
        Err(e) => return Ok(misuse(e.message())),
    };
    if let Some(crash) = crash {
        return one_crash(&campaign.setup(campaign.seed), crash, parsed.last('D'));
    }
    let start = base::rt::now();
    let verbose = parsed.has('v');
    let totals = campaign.go(&mut |setup: &Setup, totals: &Totals| {
        if verbose {
            let images = totals.images;
            ui::out(&format!("{}\n\t{images} images so far\n", setup.command()));
        }
    });
    let rate = totals.images as f64 / start.elapsed().as_secs_f64();
    ui::out(&format!(
        "{} runs, {} crash points, {} images, {} groups, {rate:.0} images a second\n",
        totals.runs, totals.points, totals.images, totals.txgs
    ));
    let Some(failure) = totals.failure else { return Ok(Exit::OK) };
    ui::err(&failure.to_string());
    Ok(Exit::FAILURE)
}

/// Checks one crash of one run.
fn one_crash(setup: &Setup, (event, seed): (u64, u64), dir: Option<String>) -> Result<Exit> {
    let recorded = ::sim::record(setup);
    if let Some(dir) = dir {
        let images = recorded.image(event, seed).map_err(Error::invalid)?;
        device::sim::write_files(&images, std::path::Path::new(&dir))?;
    }
    let verdict = match &recorded.failed {
        Some(why) => Err(why.clone()),
        None => recorded.crash_once(event, seed).map_err(|e| e.to_string()),
    };
    for op in recorded.ops() {
        ui::out(&format!("{op}\n"));
    }
    match verdict {
        Ok(Some(txg)) => ui::out(&format!("group {txg} is whole\n")),
        Ok(None) => ui::out("there is no pool yet\n"),
        Err(what) => {
            ui::err(&what);
            return Ok(Exit::FAILURE);
        }
    }
    Ok(Exit::OK)
}
