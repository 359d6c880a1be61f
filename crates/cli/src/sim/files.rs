//! `cenote sim --workload posix`, `logs` and `volumes`: file systems, their intent logs, and
//! volumes with theirs, crashed at every event. A run is determined by its seed, except for
//! vdevs and threads.

use ::sim::volumes::{self, VolumePlant, VolumeSetup};
use ::sim::{Setup, logs, posix};
use base::{Error, Result};
use commands::getopt::Parsed;
use device::sim::SimDisks;
use ui::Exit;

use super::{given, named, pair};

/// Options that have fixed values in these workloads.
const FIXED: [(char, &str); 4] =
    [('o', "--ops"), ('p', "--plant"), ('f', "--fault"), ('k', "--keep")];

#[derive(Clone, Copy, PartialEq, Eq)]
enum SimTarget {
    Posix,
    Logs,
    Volumes,
}

impl SimTarget {
    fn name(self) -> &'static str {
        match self {
            SimTarget::Posix => "posix",
            SimTarget::Logs => "logs",
            SimTarget::Volumes => "volumes",
        }
    }

    fn setup(self, seed: u64) -> Setup {
        match self {
            SimTarget::Posix => posix::setup(seed),
            SimTarget::Logs => logs::setup(seed),
            SimTarget::Volumes => VolumeSetup::varied(seed, VolumePlant::Nothing).run,
        }
    }
}

/// The runs to make.
struct SimPlan {
    of: SimTarget,
    seed: u64,
    runs: u64,
    layout: Option<::sim::setup::Layout>,
    threads: Option<usize>,
    stride: usize,
    more: u64,
    judges: usize,
    crash: Option<(u64, u64)>,
    dir: Option<String>,
}

impl SimPlan {
    fn setup(&self, seed: u64) -> Setup {
        let usual = self.of.setup(seed);
        Setup {
            layout: self.layout.unwrap_or(usual.layout),
            threads: self.threads.unwrap_or(usual.threads),
            ..usual
        }
    }

    /// The command that repeats a run.
    fn command(&self, setup: &Setup) -> String {
        format!(
            "cenote sim --workload {} --seed {} --vdevs {} --threads {}",
            self.of.name(),
            setup.seed,
            setup.layout.name(),
            setup.threads
        )
    }
}

/// Totals over all runs.
#[derive(Default)]
struct Sum {
    points: u64,
    images: u64,
    /// The crash, and the error.
    failure: Option<(Option<(u64, u64)>, String)>,
}

/// The plan, if the options select one of these workloads.
///
/// # Errors
/// `Invalid` for options that cannot be combined with it.
fn plan(parsed: &Parsed) -> Result<Option<SimPlan>> {
    let of = match parsed.last('w').as_deref() {
        Some("posix") => SimTarget::Posix,
        Some("logs") => SimTarget::Logs,
        Some("volumes") => SimTarget::Volumes,
        _ => return Ok(None),
    };
    for (letter, name) in FIXED {
        if parsed.last(letter).is_some() {
            let text = format!("'{name}' does not go with '--workload {}'", of.name());
            return Err(Error::invalid(text));
        }
    }
    let crash = parsed.last('c').map(|text| pair(&text)).transpose()?;
    if crash.is_none() && parsed.last('D').is_some() {
        return Err(Error::invalid("'--dir' goes with '--crash'"));
    }
    let size = |n: Option<u64>| n.map(|n| n as usize);
    Ok(Some(SimPlan {
        of,
        seed: given(parsed, 's', 0..=u64::MAX)?.unwrap_or(1),
        runs: given(parsed, 'r', 1..=u64::MAX)?.unwrap_or(1),
        layout: named(parsed, "--vdevs", 'd')?,
        threads: size(given(parsed, 't', 1..=64)?),
        stride: size(given(parsed, 'e', 1..=u64::MAX)?).unwrap_or(1),
        more: given(parsed, 'm', 0..=1_000_000)?.unwrap_or(1),
        judges: size(given(parsed, 'j', 1..=256)?).unwrap_or_else(base::rt::parallelism),
        crash,
        dir: parsed.last('D'),
    }))
}

/// Makes the run of one seed and crashes it at every event.
fn run(plan: &SimPlan, setup: Setup, sum: &mut Sum) {
    match plan.of {
        SimTarget::Posix => {
            let recorded = posix::record_as(setup);
            let tally = recorded.crash_everywhere(plan.stride, plan.more, plan.judges);
            sum.points += tally.points;
            sum.images += tally.images;
            sum.failure = tally.failure.map(|f| (f.crash, f.to_string()));
        }
        SimTarget::Logs => {
            let recorded = logs::record_as(setup, logs::Plant::Nothing);
            let tally = recorded.crash_everywhere(plan.stride, plan.more, plan.judges);
            sum.points += tally.points;
            sum.images += tally.images;
            sum.failure = tally.failure.map(|(_, event, seed, what)| (Some((event, seed)), what));
        }
        SimTarget::Volumes => {
            let recorded = volumes::record(volume_setup(setup));
            let tally = recorded.crash_everywhere(plan.stride, plan.more, plan.judges);
            sum.points += tally.points;
            sum.images += tally.images;
            sum.failure = tally.failure.map(|(_, event, seed, what)| (Some((event, seed)), what));
        }
    }
}

fn volume_setup(run: Setup) -> VolumeSetup {
    VolumeSetup { run: run.clone(), ..VolumeSetup::varied(run.seed, VolumePlant::Nothing) }
}

fn leave(disks: &SimDisks, plan: &SimPlan, (event, seed): (u64, u64)) -> Result<()> {
    let Some(dir) = &plan.dir else { return Ok(()) };
    let images = disks.crash_image(event, seed)?;
    device::sim::write_files(&images, std::path::Path::new(dir)).map(drop)
}

/// Before `start` the file system or volume does not exist.
fn check_event(event: u64, start: u64) -> Result<()> {
    let early = || Error::invalid(format!("the run begins with event {start}"));
    (event >= start).then_some(()).ok_or_else(early)
}

/// Checks one crash of one run.
fn one_crash(plan: &SimPlan, crash: (u64, u64)) -> Result<Exit> {
    let setup = plan.setup(plan.seed);
    let verdict = match plan.of {
        SimTarget::Posix => {
            let recorded = posix::record_as(setup);
            check_event(crash.0, recorded.start)?;
            leave(&recorded.disks, plan, crash)?;
            recorded.done.iter().for_each(|op| ui::out(&format!("{op}\n")));
            let whole = |txg| format!("group {txg} is whole\n");
            match &recorded.failed {
                Some(why) => Err(why.clone()),
                None => recorded.crash_once(crash.0, crash.1).map(whole),
            }
        }
        SimTarget::Logs => {
            let recorded = logs::record_as(setup, logs::Plant::Nothing);
            check_event(crash.0, recorded.start)?;
            leave(&recorded.disks, plan, crash)?;
            match &recorded.failed {
                Some(why) => Err(why.clone()),
                None => recorded
                    .crash_once(crash.0, crash.1)
                    .map(|()| "what was promised is there\n".to_owned()),
            }
        }
        SimTarget::Volumes => {
            let recorded = volumes::record(volume_setup(setup));
            check_event(crash.0, recorded.start)?;
            leave(&recorded.disks, plan, crash)?;
            match &recorded.failed {
                Some(why) => Err(why.clone()),
                None => recorded
                    .crash_once(crash.0, crash.1)
                    .map(|()| "what was promised is there\n".to_owned()),
            }
        }
    };
    match verdict {
        Ok(text) => ui::out(&text),
        Err(what) => {
            ui::err(&what);
            return Ok(Exit::FAILURE);
        }
    }
    Ok(Exit::OK)
}

/// Runs the workload, if it is one of these; `None` if not.
///
/// # Errors
/// `Invalid` for options that cannot be combined; those of writing images.
pub(super) fn main(parsed: &Parsed) -> Result<Option<Exit>> {
    let Some(plan) = plan(parsed)? else { return Ok(None) };
    if let Some(crash) = plan.crash {
        return one_crash(&plan, crash).map(Some);
    }
    let start = base::rt::now();
    let mut sum = Sum::default();
    let mut runs = 0;
    for seed in plan.seed..plan.seed.saturating_add(plan.runs) {
        let setup = plan.setup(seed);
        let command = plan.command(&setup);
        run(&plan, setup, &mut sum);
        runs += 1;
        if parsed.has('v') {
            ui::out(&format!("{command}\n\t{} images so far\n", sum.images));
        }
        if let Some((crash, what)) = &sum.failure {
            let crash = crash.map(|(event, seed)| format!(" --crash {event}:{seed}"));
            ui::err(&format!("{what}\n{command}{}", crash.unwrap_or_default()));
            break;
        }
    }
    let rate = sum.images as f64 / start.elapsed().as_secs_f64();
    ui::out(&format!(
        "{runs} runs, {} crash points, {} images, {rate:.0} images a second\n",
        sum.points, sum.images
    ));
    Ok(Some(if sum.failure.is_some() { Exit::FAILURE } else { Exit::OK }))
}
