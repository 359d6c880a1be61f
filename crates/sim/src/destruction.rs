//! Destructions that take several txgs, crashed everywhere: many snapshots of one file system,
//! and a file system with all that is below it.
//!
//! # Theory
//! The engine destroys a few datasets in each txg (`spa::engine::destroy`), and says which.
//! Another thread changes other datasets meanwhile, so the txgs have more in them. A crash
//! leaves what the txgs up to the uberblock's left. Then the same command is given again to the
//! imported pool: it finds the rest, destroys it, and all space comes back.
//!
//! # Invariants
//! * The batches together are exactly what was asked for, none of them larger than allowed;
//!   snapshots go in the order of the request.
//! * After a crash, nothing is destroyed in part, and nothing leaks ([`crate::check`]).
//! * After the second command nothing is left of what was asked for, and nothing waits to be
//!   freed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use base::rt::sim::{Outcome, run_with};
use base::{Error, Result, Txg};
use device::sim::SimDisks;

use crate::again::{AfterCrash, go_on_with};
use crate::driver::{Driver, Hand};
use crate::lineage::note_destroyed;
use crate::memo::Memo;
use crate::model::Model;
use crate::ops::{Op, OpPlan, plan};
use crate::pool::{POOL, make};
use crate::run::{CrashTally, Recorded, plant};
use crate::setup::{Setup, Workload};

/// Snapshots of the file system whose snapshots are destroyed.
const SNAPSHOTS: usize = 8;
/// Txgs after which nothing waits to be freed.
const FREED: usize = 100;

/// What is destroyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DestroyTarget {
    /// Most snapshots of a file system (`zfs destroy fs@a%b`).
    Snapshots,
    /// A file system with snapshots, children and clones (`zfs destroy -r`).
    Tree,
}

/// A recorded destruction.
pub struct Destruction {
    /// The run.
    pub recorded: Recorded,
    /// The txgs of the batches.
    pub batches: Vec<Txg>,
    what: DestroyTarget,
    names: Vec<String>,
    /// The first event after the request began.
    begin: u64,
}

struct Done {
    names: Vec<String>,
    batches: Vec<Txg>,
    begin: u64,
    full: bool,
}

/// A dataset with two objects, written before each of its snapshots.
fn grow(driver: &Driver, hand: &mut Hand, snapshots: usize) -> Result<()> {
    let ds = *hand.datasets.last().ok_or_else(|| Error::bug("no dataset"))?;
    if !hand.objects.iter().any(|o| o.ds == ds) {
        for seed in [3, 8] {
            let object = driver.create(ds, 3, seed, false)?;
            driver.write(&object, Some(0), 40 << 10, seed)?;
            hand.objects.push(object);
        }
    }
    let own: Vec<_> = hand.objects.iter().filter(|o| o.ds == ds).cloned().collect();
    for i in 0..snapshots {
        let object = &own[i % own.len()];
        driver.write(object, Some((i as u64 % 5) * (8 << 10)), 6000, 5 * i as u32 + 3)?;
        driver.take_snapshots(hand, ds, false)?;
    }
    Ok(())
}

fn name_of(driver: &Driver, ds: usize) -> String {
    driver.model.notes.lock().name(ds)
}

/// Makes what is destroyed then; the names that the request gives, or must reach.
fn prepare(driver: &Driver, hand: &mut Hand, what: DestroyTarget) -> Result<Vec<String>> {
    hand.datasets.clear();
    driver.make_dataset(hand, POOL.to_owned())?;
    let root = hand.datasets[0];
    match what {
        DestroyTarget::Snapshots => {
            grow(driver, hand, SNAPSHOTS)?;
            let all = hand.snaps.clone();
            // A clone of one that stays, and a bookmark of one that goes.
            driver.make_clone(hand, all[SNAPSHOTS - 1], POOL.to_owned())?;
            driver.bookmark(hand, all[3], 0)?;
            let notes = driver.model.notes.lock();
            Ok(all[1..SNAPSHOTS - 1].iter().map(|snap| notes.snap_name(*snap)).collect())
        }
        DestroyTarget::Tree => {
            grow(driver, hand, 3)?;
            let (above, origin) = (name_of(driver, root), hand.snaps[1]);
            driver.make_clone(hand, origin, above.clone())?;
            grow(driver, hand, 2)?;
            driver.make_dataset(hand, above.clone())?;
            grow(driver, hand, 2)?;
            let notes = driver.model.notes.lock();
            let mut all: Vec<String> = hand.datasets.iter().map(|ds| notes.name(*ds)).collect();
            all.extend(hand.snaps.iter().map(|snap| notes.snap_name(*snap)));
            // The request names the root alone.
            all.sort_unstable();
            Ok(all)
        }
    }
}

/// Gives the command, and compares what each txg destroyed with `names`, in the order of the
/// request. The model has it as of those txgs.
fn destroy(
    driver: &Driver,
    what: DestroyTarget,
    names: &[String],
    most: usize,
) -> Result<Vec<Txg>> {
    let (mut seen, mut txgs): (Vec<String>, Vec<Txg>) = Default::default();
    let mut wrong: Option<Error> = None;
    let mut each = |txg: Txg, batch: Vec<String>| {
        let noted = note_destroyed(&driver.model, txg, &batch);
        let fits = batch.len() <= most && txgs.last().is_none_or(|last| *last < txg);
        let judged = if fits { noted } else { Err(Error::bug("a batch that is too large")) };
        wrong = wrong.take().or(judged.err());
        txgs.push(txg);
        seen.extend(batch);
    };
    let last = match what {
        DestroyTarget::Snapshots => {
            driver.writer.destroy_snapshots_in_batches(names, false, None, &mut each)
        }
        DestroyTarget::Tree => {
            let root = names.first().ok_or_else(|| Error::bug("nothing to destroy"))?;
            driver.writer.destroy_dataset_in_batches(root, true, None, &mut each)
        }
    }?;
    driver.disks.mark(last.0);
    if let Some(e) = wrong {
        return Err(e);
    }
    if what == DestroyTarget::Tree {
        seen.sort_unstable();
    }
    if seen != names || txgs.last() != Some(&last) {
        return Err(Error::bug(format!("{seen:?} was destroyed, not {names:?}")));
    }
    Ok(txgs)
}

/// Datasets that one txg destroys.
fn at_once(setup: &Setup) -> usize {
    1 + setup.seed as usize % 3
}

fn body(
    setup: &Setup,
    plan: &OpPlan,
    disks: &SimDisks,
    model: &Arc<Model>,
    what: DestroyTarget,
) -> std::result::Result<Done, String> {
    let fail = |what: &str, e: Error| format!("{what}: {e}");
    let writer = make(setup, disks).map_err(|e| fail("making the pool", e))?;
    let mut driver = Driver::new(writer, disks, Arc::clone(model)).map_err(|e| fail("start", e))?;
    driver.add_root().map_err(|e| fail("root dataset", e))?;
    driver.sync().map_err(|e| fail("first sync", e))?;
    plant(setup, &mut driver);
    driver.lineage = true;
    driver.writer.plants.destroyed_at_once.store(at_once(setup) as u64, Relaxed);
    let driver = Arc::new(driver);
    let mut hand = driver.hand(0);
    let names = prepare(&driver, &mut hand, what).map_err(|e| fail("what is destroyed", e))?;
    driver.sync().map_err(|e| fail("sync", e))?;

    let begin = disks.events();
    let (own, ops) = (Arc::clone(&driver), plan.first().cloned().unwrap_or_default());
    let other = base::rt::spawn("worker-1", move || {
        let mut hand = own.hand(1);
        let run = |(number, op): &(usize, Op)| {
            own.run(&mut hand, op).map_err(|e| format!("operation {number}, {op:?}: {e}"))
        };
        ops.iter().try_for_each(run)
    });
    let other = other.map_err(|e| fail("thread", e))?;
    let done = destroy(&driver, what, &names, at_once(setup));
    other.join().unwrap_or_else(|| Err("the other thread ended".to_owned()))?;
    let batches = done.map_err(|e| fail("destroying", e))?;
    driver.sync().map_err(|e| fail("last sync", e))?;
    driver.writer.stop();
    Ok(Done { names, batches, begin, full: driver.writer.reused_at_once() })
}

/// Bytes that wait to be freed.
fn freeing(driver: &Driver) -> Result<u64> {
    let _names = driver.writer.names();
    let root = dsl::DslDir::root(driver.writer.mos(), POOL)?;
    Ok(root.child("$FREE")?.map_or(0, |dir| dir.phys().used_bytes))
}

impl Destruction {
    /// Records a destruction, beside one thread of the setup's operations.
    pub fn record(setup: &Setup, what: DestroyTarget) -> Destruction {
        let setup = Setup { workload: Workload::Clones, threads: 1, ..setup.clone() };
        let plan = plan(&setup);
        let disks = SimDisks::blank(setup.disks(), setup.layout.disks(), setup.disk_size());
        let model = Arc::new(Model::default());
        let (s, p, d, m) = (setup.clone(), plan.clone(), disks.clone(), Arc::clone(&model));
        let run = run_with(setup.schedule(), move || body(&s, &p, &d, &m, what));
        let (failed, done) = match run.outcome {
            Outcome::Done(Ok(done)) => (None, Some(done)),
            Outcome::Done(Err(why)) => (Some(why), None),
            other => (Some(format!("{:?}", other.map(|_| ()))), None),
        };
        let (hash, steps, prelude) = (run.hash, run.steps, 0);
        let none = || Done { names: Vec::new(), batches: Vec::new(), begin: 0, full: true };
        let Done { names, batches, begin, full } = done.unwrap_or_else(none);
        let (victim, memo, done) = (None, Memo::default(), BTreeSet::new());
        let recorded = Recorded {
            setup,
            plan,
            disks,
            model,
            hash,
            steps,
            failed,
            victim,
            full,
            prelude,
            done,
            memo,
        };
        Destruction { recorded, batches, what, names, begin }
    }

    /// The events at which a crash meets the destruction.
    pub fn crash_points(&self) -> Vec<u64> {
        let all = self.recorded.disks.crash_points();
        all.into_iter().filter(|event| *event >= self.begin).collect()
    }

    /// Crashes at every `stride`th event from the request on, in the two extreme ways and
    /// `more` others, on `threads` threads; ends with the first failure.
    pub fn crash(&self, stride: usize, more: u64, threads: usize) -> CrashTally {
        self.recorded.crash_from(self.begin, stride, more, threads)
    }

    /// Crashes at an event, imports the pool, gives the command again for what is left, and
    /// judges the result; returns the txg of the crash and how much was left.
    ///
    /// # Errors
    /// The error found.
    pub fn finish(
        &self,
        event: u64,
        seed: u64,
    ) -> std::result::Result<Option<(Txg, usize)>, String> {
        let run = &self.recorded;
        let there = run.crash_once(event, seed)?;
        // Damage stays, because nothing is resilvered yet.
        let Some(txg) = there.filter(|_| !run.mishap(seed).damages()) else { return Ok(None) };
        let state = run.model.state(txg);
        let is_left = |name: &&String| match name.split_once('@') {
            Some((fs, own)) => state.snaps.contains_key(&(fs.to_owned(), own.to_owned())),
            None => state.heads.contains_key(*name),
        };
        let left: Vec<String> = self.names.iter().filter(is_left).cloned().collect();
        let images = run.image(event, seed)?;
        let setup =
            Setup { seed: run.setup.seed.wrapping_mul(1_000_003) ^ event, ..run.setup.clone() };
        let (what, rest, most) = (self.what, left.clone(), at_once(&setup));
        let work: AfterCrash =
            Arc::new(move |driver: &Driver, _: Txg| -> std::result::Result<(), String> {
                let fail = |e: Error| format!("the command again: {e}");
                driver.writer.plants.destroyed_at_once.store(most as u64, Relaxed);
                if !rest.is_empty() {
                    destroy(driver, what, &rest, most).map_err(fail)?;
                }
                for _ in 0..FREED {
                    if freeing(driver).map_err(fail)? == 0 {
                        return Ok(());
                    }
                    driver.sync().map_err(fail)?;
                }
                Err("what was destroyed is not freed".to_owned())
            });
        let next = go_on_with(setup, OpPlan::new(), images, &run.model, work);
        if let Some(why) = next.failed {
            return Err(why);
        }
        let last = next.disks.crash_points().last().copied().unwrap_or(0);
        next.crash_once(last, 0)?;
        Ok(Some((txg, left.len())))
    }
}
