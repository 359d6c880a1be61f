//! `cenote sim`: the engine on simulated disks, crashed at every event.

use std::ffi::OsString;

use ::sim::setup::Named;
use ::sim::{Campaign, Setup, Totals};
use base::{Error, Result};

use crate::commands;
use crate::getopt::Parsed;
use crate::ui::{self, Exit};

const USAGE: &str = "\
usage: cenote sim [--seed N] [--runs M] [option ...]
	--seed N        the first run's seed (1); each next run has the next one
	--runs M        runs (1)
	--vdevs NAME    single, stripe, mirror, raidz or raidz2
	--workload NAME mixed, files, zaps, datasets, churn or short
	--threads N     threads that write
	--ops N         operations of each thread
	--plant NAME    a bug that the run must find: uberblock-before-flush, label-order,
	                reuse-same-group, reuse-before-commit, no-defer, lose-entry, wrong-group
	--fault NAME    what one disk does: drop, away, write-errors, flush-errors,
	                read-errors, stale-reads, misdirected, lying-flushes
	--every N       the power fails at every Nth event (1)
	--more N        crashes of each event beyond losing and keeping all (1)
	--judges N      threads that judge
	--keep LIST     only the operations with these numbers
	--crash E[:S]   only the crash after event E, with seed S (0)
	--dir DIR       with --crash: writes the disks left behind into this directory
	-v              tells of every run
What is not given follows from each run's seed. A run that fails is shortened, and the
command is printed that brings it back.
";

fn number(text: &str) -> Result<u64> {
    text.parse().map_err(|_| Error::invalid(format!("sim: '{text}' is not a number")))
}

fn named<T: Named>(parsed: &Parsed, letter: char) -> Result<Option<T>> {
    let Some(text) = parsed.last(letter) else { return Ok(None) };
    let unknown = || Error::invalid(format!("sim: '{text}' is not known"));
    T::named(&text).map(Some).ok_or_else(unknown)
}

fn campaign(parsed: &Parsed) -> Result<Campaign> {
    let get = |letter: char| parsed.last(letter).map(|text| number(&text)).transpose();
    let size = |letter: char| Ok::<_, Error>(get(letter)?.map(|n| n as usize));
    let keep = parsed.last('k').map(|list| {
        let numbers = list.split(',').filter(|n| !n.is_empty());
        numbers.map(|n| number(n).map(|n| n as usize)).collect::<Result<Vec<_>>>()
    });
    let usual = Campaign::new(get('s')?.unwrap_or(1), get('r')?.unwrap_or(1));
    Ok(Campaign {
        layout: named(parsed, 'd')?,
        workload: named(parsed, 'w')?,
        threads: size('t')?.map(|n| n.clamp(1, 64)),
        ops: size('o')?,
        plant: named(parsed, 'p')?,
        fault: named(parsed, 'f')?,
        keep: keep.transpose()?,
        stride: size('e')?.unwrap_or(1),
        more: get('m')?.unwrap_or(1),
        judges: size('j')?.unwrap_or(usual.judges).clamp(1, 256),
        shrink: parsed.last('k').is_none(),
        ..usual
    })
}

pub(crate) fn main(argv: &[OsString]) -> Result<Exit> {
    let parsed = match commands::find("cenote", "sim").parse(argv) {
        Ok(parsed) if parsed.args.is_empty() => parsed,
        Ok(_) => {
            ui::err(USAGE.trim_end());
            return Ok(Exit::USAGE);
        }
        Err(bad) => {
            if let Some(message) = bad.message() {
                ui::err(&message);
            }
            ui::err(USAGE.trim_end());
            return Ok(Exit::USAGE);
        }
    };
    let campaign = campaign(&parsed)?;
    if let Some(crash) = parsed.last('c') {
        return one_crash(&campaign.setup(campaign.seed), &crash, parsed.last('D'));
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
        totals.runs, totals.points, totals.images, totals.groups
    ));
    let Some(failure) = totals.failure else { return Ok(Exit::OK) };
    ui::err(&failure.to_string());
    Ok(Exit::FAILURE)
}

/// Judges one crash of one run.
fn one_crash(setup: &Setup, crash: &str, dir: Option<String>) -> Result<Exit> {
    let (event, seed) = crash.split_once(':').unwrap_or((crash, "0"));
    let (event, seed) = (number(event)?, number(seed)?);
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
