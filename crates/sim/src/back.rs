//! Rewinds to an earlier txg for writing, with crashes meanwhile.
//!
//! # Theory
//! The disks of a run, with its newest txg N, are imported for writing as of an earlier txg
//! R, changed, and crashed at every event. A crash may leave N as it was, as long as the
//! rewind was not acknowledged, or R and the changes made after it: nothing else, and never
//! N again once an image has shown R's successor. A disk of a mirror or RAID-Z may be
//! absent all the time and be present again for the judgement: it has N's uberblocks.
//!
//! R may also be the checkpointed txg: then the import goes back to the checkpoint.
//!
//! # Invariants
//! * N and the successors of R are distinguished by txg numbers: R's successor is
//!   `spa::rewind::GAP` beyond N.

use std::collections::BTreeSet;
use std::sync::Arc;

use base::Txg;
use base::rt::Mutex;
use base::rt::sim::{Options, Outcome, Rng, run_with};
use device::sim::{Image, SimDisks};
use spa::{ImportOptions, Spa};
use zio::BlockCache;

use crate::check::{Expect, judge};
use crate::driver::Driver;
use crate::everywhere::CrashPoints;
use crate::memo::{Manner, Memo};
use crate::model::Model;
use crate::ops::{OpPlan, plan};
use crate::pool::{CACHE, SimLeaves, find, import};
use crate::run::{CrashTally, Recorded};
use crate::setup::{Setup, Workload};

/// Operations after a rewind.
const OPS: usize = 6;

/// A recorded rewind.
pub struct Back {
    /// The run.
    pub setup: Setup,
    /// The disks, with the record of the rewind and the changes after it.
    pub disks: SimDisks,
    /// The expected content before the rewind: the future.
    pub future: Arc<Model>,
    /// Its newest txg.
    pub newest: Txg,
    /// The target txg of the rewind.
    pub to: Txg,
    /// The expected content from then on.
    pub model: Arc<Model>,
    /// The disk that was absent.
    pub absent: Option<usize>,
}

fn body(
    setup: &Setup,
    plan: &OpPlan,
    disks: &SimDisks,
    future: &Model,
    to: Txg,
    import: &ImportOptions,
    absent: &[usize],
) -> Result<Arc<Model>, String> {
    let fail = |what: &str, e: &dyn std::fmt::Display| format!("{what}, going back to {to}: {e}");
    let leaves = SimLeaves::new(disks, absent);
    let found = find(&leaves).map_err(|e| fail("looking for the pool", &e))?;
    let found = found.ok_or_else(|| "the pool is gone".to_owned())?;
    let cache = BlockCache::of(CACHE).map_err(|e| fail("cache", &e))?;
    let spa = Spa::open_in(&found, import, &Arc::new(cache), &leaves)
        .map_err(|f| fail("import for writing", &f.error))?;
    let model = Arc::new(future.after(to));
    let writer = spa.start_writer(setup.writer()).map_err(|e| fail("writing", &e))?;
    let txg = writer.published().uberblock.txg;
    disks.mark(txg.0);
    let mut driver =
        Driver::new(writer, disks, Arc::clone(&model)).map_err(|e| fail("start", &e))?;
    driver.prefix = "back-".to_owned();
    let mut hand = driver.hand_of(txg);
    for (number, op) in plan.iter().flatten() {
        let done = driver.run(&mut hand, op);
        done.map_err(|e| format!("operation {number} after going back, {op:?}: {e}"))?;
    }
    driver.sync().map_err(|e| fail("last sync", &e))?;
    driver.writer.stop();
    Ok(model)
}

/// The complete txgs at which the images can be opened, newest first.
fn txgs(images: &[Image]) -> Result<Vec<Txg>, String> {
    let leaves = SimLeaves::of_images(images, &[], None, &Arc::default());
    let found = find(&leaves).map_err(|e| e.to_string())?.ok_or("there is no pool")?;
    let cache = Arc::new(BlockCache::of(CACHE).map_err(|e| e.to_string())?);
    let options = ImportOptions { force: true, ..ImportOptions::default() };
    let past = spa::look_back(&found, &options, &cache, &leaves).map_err(|e| e.to_string())?;
    Ok(past.into_iter().filter(|p| p.whole.is_ok()).map(|p| p.txg).collect())
}

impl Recorded {
    /// Rewinds the disks of the run by `steps` txgs; `None` if there are not so many
    /// complete ones. `absent`: with one disk missing meanwhile.
    ///
    /// # Errors
    /// The error found.
    pub fn go_back(&self, steps: usize, absent: bool) -> Result<Option<Back>, String> {
        let event = self.disks.crash_points().last().copied().unwrap_or(0);
        let images = self.image(event, 0)?;
        let all = txgs(&images)?;
        let Some((&newest, &to)) = all.first().zip(all.get(steps)) else { return Ok(None) };
        // Before the first txg of the model there is nothing to compare with.
        if to < self.expect(event, 0).first {
            return Ok(None);
        }
        let import = ImportOptions { force: true, txg: Some(to), ..ImportOptions::default() };
        self.go_back_to(images, newest, to, import, steps as u64, absent).map(Some)
    }

    /// Takes the disks of the run back to their checkpoint; `None` if there is none.
    ///
    /// # Errors
    /// The error found.
    pub fn go_to_checkpoint(&self, absent: bool) -> Result<Option<Back>, String> {
        let event = self.disks.crash_points().last().copied().unwrap_or(0);
        let images = self.image(event, 0)?;
        let leaves = SimLeaves::of_images(&images, &[], None, &Arc::default());
        let found = find(&leaves).map_err(|e| e.to_string())?.ok_or("there is no pool")?;
        let cache = Arc::new(BlockCache::of(CACHE).map_err(|e| e.to_string())?);
        let newest = import(&leaves, &found, &cache, None).map_err(|e| e.to_string())?;
        let newest = newest.uberblock().txg;
        let Some(to) = self.model.checkpoint_in(newest).flatten() else { return Ok(None) };
        let import = ImportOptions { force: true, checkpoint: true, ..ImportOptions::default() };
        self.go_back_to(images, newest, to, import, 77, absent).map(Some)
    }

    fn go_back_to(
        &self,
        images: Vec<Image>,
        newest: Txg,
        to: Txg,
        import: ImportOptions,
        salt: u64,
        absent: bool,
    ) -> Result<Back, String> {
        let seed = self.setup.seed.wrapping_mul(1_000_003).wrapping_add(salt);
        let workload =
            Workload::ALL[Rng::stream(seed, 15).below(Workload::ALL.len() as u64) as usize];
        let setup = Setup {
            seed,
            workload,
            threads: 1,
            ops: OPS,
            keep: None,
            fault: None,
            ..self.setup.clone()
        };
        let absent = (absent && setup.layout.is_redundant())
            .then(|| Rng::stream(seed, 16).below(setup.layout.disks() as u64) as usize);
        let plan = plan(&setup);
        let disks = SimDisks::new(setup.disks(), images);
        let (s, d, m) = (setup.clone(), disks.clone(), Arc::clone(&self.model));
        let without: Vec<usize> = absent.into_iter().collect();
        let schedule = Options { max_steps: 50_000_000, ..Options::varied(seed) };
        let run = run_with(schedule, move || body(&s, &plan, &d, &m, to, &import, &without));
        let model = match run.outcome {
            Outcome::Done(done) => done?,
            other => return Err(format!("going back: {:?}", other.map(|_| ()))),
        };
        let future = Arc::clone(&self.model);
        Ok(Back { setup, disks, future, newest, to, model, absent })
    }
}

impl Back {
    /// Crashes at one event; adds the state found (before or after the rewind) to `seen`.
    fn crash(
        &self,
        event: u64,
        seed: u64,
        cache: &Arc<BlockCache>,
        memos: &(Memo, Memo),
        seen: &Mutex<BTreeSet<bool>>,
    ) -> Result<Option<Txg>, String> {
        let images = self.disks.crash_image(event, seed).map_err(|e| e.to_string())?;
        let acknowledged = self.disks.marks(event).into_iter().max().map(Txg);
        let leaves = SimLeaves::of_images(&images, &[], None, &Arc::default());
        let found = find(&leaves).map_err(|e| e.to_string())?.ok_or("the pool is gone")?;
        let txg = import(&leaves, &found, cache, None)
            .map_err(|e| format!("import after a crash in the middle: {e}"))?
            .uberblock()
            .txg;
        let manner = Manner { without: Vec::new(), damage: self.absent.is_some() };
        let gone_back = txg > self.newest;
        seen.lock().insert(gone_back);
        let expect = Expect { acknowledged, manner, ..Expect::default() };
        if gone_back {
            return judge(&images, &self.model, &expect, cache, &memos.1);
        }
        if acknowledged.is_some() || txg != self.newest {
            return Err(format!("the discarded txg {txg} is back"));
        }
        judge(&images, &self.future, &expect, cache, &memos.0)
    }

    /// Crashes everywhere. Both states must occur.
    ///
    /// # Errors
    /// The first error found.
    pub fn crash_everywhere(&self, stride: usize, threads: usize) -> Result<CrashTally, String> {
        let points: Vec<u64> =
            self.disks.crash_points().into_iter().step_by(stride.max(1)).collect();
        let (memos, seen) = ((Memo::default(), Memo::default()), Mutex::default());
        let (count, seed) = (points.len() as u64, self.setup.seed);
        let found = CrashPoints { points, seed, more: 1, threads }
            .visit(|event, seed, cache| self.crash(event, seed, cache, &memos, &seen));
        if let Some((event, seed, what)) = found.wrong {
            let Back { newest, to, absent, .. } = self;
            let command = self.setup.command();
            return Err(format!(
                "back from {newest} to {to}, without {absent:?}, crash {event}:{seed}: {what}; \
                 {command}"
            ));
        }
        if stride <= 1 && seen.lock().len() != 2 {
            return Err("the crashes did not meet both states".to_owned());
        }
        Ok(CrashTally { images: found.images, points: count, txgs: found.txgs, failure: None })
    }
}
