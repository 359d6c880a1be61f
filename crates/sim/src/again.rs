//! Continuing after a crash: the disks are imported for writing, changed, and crashed
//! again.

use std::collections::BTreeSet;
use std::sync::Arc;

use base::Txg;
use base::rt::sim::{Options, Outcome, Rng, run_with};
use device::sim::{Image, SimDisks};
use spa::{ImportOptions, Spa};
use zio::BlockCache;

use crate::driver::Driver;
use crate::memo::Memo;
use crate::model::Model;
use crate::ops::{OpPlan, plan};
use crate::pool::{CACHE, SimLeaves, find};
use crate::run::{Recorded, plant};
use crate::setup::{Setup, Workload};

/// Operations after a crash.
const OPS: usize = 8;

/// What is done with a pool that was imported after a crash; the txg is the import's.
pub(crate) type AfterCrash = Arc<dyn Fn(&Driver, Txg) -> Result<(), String> + Send + Sync>;

fn body(
    setup: &Setup,
    work: &AfterCrash,
    disks: &SimDisks,
    old: &Model,
) -> Result<Arc<Model>, String> {
    let fail = |what: &str, e: &dyn std::fmt::Display| format!("{what}, after a crash: {e}");
    let leaves = SimLeaves::new(disks, &[]);
    let found = find(&leaves).map_err(|e| fail("looking for the pool", &e))?;
    let found = found.ok_or_else(|| "the pool is gone".to_owned())?;
    let cache = BlockCache::of(CACHE).map_err(|e| fail("cache", &e))?;
    let options = ImportOptions { force: true, ..ImportOptions::default() };
    let spa = Spa::open_in(&found, &options, &Arc::new(cache), &leaves)
        .map_err(|f| fail("import for writing", &f.error))?;
    let txg = spa.uberblock().txg;
    let model = Arc::new(old.after(txg));
    disks.mark(txg.0);
    let writer = spa.start_writer(setup.writer()).map_err(|e| fail("writing", &e))?;
    let mut driver =
        Driver::new(writer, disks, Arc::clone(&model)).map_err(|e| fail("start", &e))?;
    driver.prefix = "again-".to_owned();
    driver.lineage = setup.workload.is_lineage();
    driver.clones = setup.workload == Workload::Clones;
    driver.dedup = setup.workload.has_dedup().then_some(setup.seed);
    plant(setup, &mut driver);
    work(&driver, txg)?;
    driver.sync().map_err(|e| fail("last sync", &e))?;
    driver.writer.stop();
    Ok(model)
}

/// Imports `images`, whose content is that of `old`, for writing and runs some more
/// operations.
pub fn go_on(setup: &Setup, images: Vec<Image>, old: &Arc<Model>, seed: u64) -> Recorded {
    let workload = Workload::ALL[Rng::stream(seed, 15).below(Workload::ALL.len() as u64) as usize];
    let workload = if setup.workload.goes_on() { setup.workload } else { workload };
    let setup = Setup { seed, workload, threads: 1, ops: OPS, keep: None, ..setup.clone() };
    let plan = plan(&setup);
    let ops = plan.clone();
    let reshaped = setup.workload == Workload::BlockSharing;
    let work: AfterCrash = Arc::new(move |driver: &Driver, txg: Txg| -> Result<(), String> {
        let mut hand = driver.hand_of(txg);
        for (number, op) in ops.iter().flatten() {
            let done = driver.run(&mut hand, op);
            done.map_err(|e| format!("operation {number} after a crash, {op:?}: {e}"))?;
        }
        if reshaped {
            driver.end_reshaping().map_err(|e| format!("after a crash: {e}"))?;
        }
        Ok(())
    });
    go_on_with(setup, plan, images, old, work)
}

/// Imports `images`, whose content is that of `old`, for writing and does this `work`. The
/// seed is that of the setup.
pub(crate) fn go_on_with(
    setup: Setup,
    plan: OpPlan,
    images: Vec<Image>,
    old: &Arc<Model>,
    work: AfterCrash,
) -> Recorded {
    let disks = SimDisks::new(setup.disks(), images);
    let (s, d, m) = (setup.clone(), disks.clone(), Arc::clone(old));
    let schedule = Options { max_steps: 50_000_000, ..Options::varied(setup.seed) };
    let run = run_with(schedule, move || body(&s, &work, &d, &m));
    let (failed, model) = match run.outcome {
        Outcome::Done(Ok(model)) => (None, model),
        Outcome::Done(Err(why)) => (Some(why), Arc::default()),
        other => (Some(format!("after a crash: {:?}", other.map(|_| ()))), Arc::default()),
    };
    let (hash, steps) = (run.hash, run.steps);
    let (victim, full, memo) = (None, true, Memo::default());
    let done = BTreeSet::new();
    Recorded {
        setup,
        plan,
        disks,
        model,
        hash,
        steps,
        failed,
        victim,
        full,
        prelude: 0,
        done,
        memo,
    }
}

impl Recorded {
    /// The run that continues after this crash.
    ///
    /// # Errors
    /// The error of the crash itself.
    pub fn go_on(&self, event: u64, seed: u64) -> Result<Option<Recorded>, String> {
        let there: Option<Txg> = self.crash_once(event, seed)?;
        // Damage stays, because nothing is resilvered yet.
        if there.is_none() || self.mishap(seed).damages() {
            return Ok(None);
        }
        let images = self.image(event, seed)?;
        let next = self.setup.seed.wrapping_mul(1_000_003).wrapping_add(event);
        Ok(Some(go_on(&self.setup, images, &self.model, next)))
    }
}
