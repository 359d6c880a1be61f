//! Many runs, and their results.

use std::time::Duration;

use crate::run::{Failure, run};
use crate::setup::{DiskFault, Layout, PlantedBug, Setup, Workload};
use crate::shrink::shrink;

/// Time to look for a shorter sequence.
const SHRINK: Duration = Duration::from_secs(30);

/// The runs to make: a field that is `None` follows from each run's seed.
#[derive(Clone, Debug)]
pub struct Campaign {
    /// Seed of the first run; each next one has the next.
    pub seed: u64,
    /// Runs.
    pub runs: u64,
    /// The vdevs.
    pub layout: Option<Layout>,
    /// The operations.
    pub workload: Option<Workload>,
    /// Threads of the workload.
    pub threads: Option<usize>,
    /// Operations of each thread.
    pub ops: Option<usize>,
    /// A bug.
    pub plant: Option<PlantedBug>,
    /// Faults of a disk.
    pub fault: Option<DiskFault>,
    /// Every block larger than a sector is a gang of single sectors.
    pub gangs: bool,
    /// Only these operations.
    pub keep: Option<Vec<usize>>,
    /// The power fails at every `stride`th event.
    pub stride: usize,
    /// Crashes of an event beyond the two extremes.
    pub more: u64,
    /// Threads that judge.
    pub judges: usize,
    /// Search for a shorter sequence when one fails.
    pub shrink: bool,
}

impl Campaign {
    /// `runs` runs from `seed` on, crashed at every event.
    pub fn new(seed: u64, runs: u64) -> Campaign {
        Campaign {
            seed,
            runs,
            layout: None,
            workload: None,
            threads: None,
            ops: None,
            plant: None,
            fault: None,
            gangs: false,
            keep: None,
            stride: 1,
            more: 1,
            judges: base::rt::parallelism(),
            shrink: true,
        }
    }

    /// The setup of the run with this seed.
    pub fn setup(&self, seed: u64) -> Setup {
        let varied = Setup::varied(seed);
        let workload = self.workload.unwrap_or(varied.workload);
        let layout = match workload {
            Workload::BlockSharing => Layout::RESHAPED[seed as usize % Layout::RESHAPED.len()],
            _ => varied.layout,
        };
        Setup {
            layout: self.layout.unwrap_or(layout),
            workload,
            threads: self.threads.unwrap_or(varied.threads),
            ops: self.ops.unwrap_or(varied.ops),
            plant: self.plant,
            fault: self.fault,
            gangs: self.gangs,
            keep: self.keep.clone(),
            ..varied
        }
    }

    /// Makes all runs up to the first failure; `watch` is called after each.
    pub fn go(&self, watch: &mut dyn FnMut(&Setup, &Totals)) -> Totals {
        let mut totals = Totals::default();
        for seed in self.seed..self.seed.saturating_add(self.runs) {
            let setup = self.setup(seed);
            let tally = run(&setup, self.stride, self.more, self.judges);
            totals.runs += 1;
            totals.points += tally.points;
            totals.images += tally.images;
            totals.txgs += tally.txgs;
            if let Some(failure) = tally.failure {
                let small = self.shrink && failure.setup.workload != Workload::Short;
                totals.failure = Some(match small {
                    true => shrink(failure, self.more, self.judges, SHRINK),
                    false => failure,
                });
            }
            watch(&setup, &totals);
            if totals.failure.is_some() {
                break;
            }
        }
        totals
    }
}

/// The results of all runs.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// Runs made.
    pub runs: u64,
    /// Events after which the power failed.
    pub points: u64,
    /// Crash images judged.
    pub images: u64,
    /// Txgs found complete, summed over runs.
    pub txgs: u64,
    /// The first failure.
    pub failure: Option<Failure>,
}

impl Totals {
    /// Adds the results of more runs; false once one has failed.
    pub fn add(&mut self, more: Totals) -> bool {
        self.runs += more.runs;
        self.points += more.points;
        self.images += more.images;
        self.txgs += more.txgs;
        self.failure = self.failure.take().or(more.failure);
        self.failure.is_none()
    }
}
