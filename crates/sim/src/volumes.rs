//! Volumes with their intent logs under the simulator.
//!
//! # Theory
//! Each volume has a thread that writes, discards and zeroes ranges, changes the size, and
//! flushes. Another thread flushes as well, takes snapshots and destroys them, makes clones,
//! and rolls volumes back while they are written. The content of every sector names the
//! operation that wrote it. After a crash, and after the replay of all logs, the sectors are
//! compared with what may be there ([`content`]):
//! * Snapshots have exactly the changes of the txgs up to theirs.
//! * A volume has all changes of the txgs on disk, and all that a flush covered. Of later ones
//!   it may have some, in the order of the log.
//! * After a rollback nothing of what it took back is there.
//!
//! A rollback ends all handles of a volume, and so begins a new *generation* of its content:
//! operations belong to the generation whose handle made them.
//!
//! The result of a replay depends on the txg on disk and on the readable logs, as in
//! [`crate::logs`]. The replays of some crashes are cut. Some crashed pools roll a volume back
//! without a replay, which must leave nothing of the log.
//!
//! # Invariants
//! * A seed decides everything.
//!
//! Lock order: the volume's; the locks of the recording are leaves.

pub mod content;
mod replay;
mod work;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use base::rt::plain;
use base::rt::sim::{Rng, run_with};
use base::{Result, Txg};
use device::sim::{Image, SimDisks};
use dmu::{Io, OutagePolicy, PrefetchMode, Tx};
use spa::engine::Writer;
use zvol::{Volume, VolumeHost};

use crate::everywhere::CrashPoints;
use crate::fs::{ended, synced};
use crate::memo::Memo;
use crate::pool::make;
use crate::setup::{Layout, Setup, Workload};
use content::{GenerationId, Operation};
use replay::{ImageReading, Replayed, StartKey};

/// A planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumePlant {
    /// None.
    Nothing,
    /// A flush is acknowledged before the blocks of the log are on the devices.
    NoFlush,
    /// Discards are in the log behind writes that came later.
    LateDiscards,
    /// A volume that is rolled back has the log that its snapshot had.
    InheritedLog,
    /// A rollback does not free the volume's log.
    KeptLog,
}

impl VolumePlant {
    /// All bugs.
    pub const ALL: [VolumePlant; 4] = [
        VolumePlant::NoFlush,
        VolumePlant::LateDiscards,
        VolumePlant::InheritedLog,
        VolumePlant::KeptLog,
    ];
}

/// A snapshot of a volume.
#[derive(Clone, Debug)]
struct VolumeSnapshot {
    name: String,
    generation: GenerationId,
    born: Txg,
    died: Option<Txg>,
}

/// The history of a volume.
#[derive(Clone, Debug)]
struct VolumeHistory {
    name: String,
    born: Txg,
    died: Option<Txg>,
    /// Generations of its content, each with the txg from which on it is there.
    generations: Vec<(Txg, GenerationId)>,
    snapshots: Vec<VolumeSnapshot>,
}

impl VolumeHistory {
    fn generation(&self, txg: Txg) -> Option<GenerationId> {
        self.generations.iter().rfind(|(since, _)| *since <= txg).map(|(_, id)| *id)
    }
}

/// The beginning of a generation's content.
#[derive(Clone, Copy, Debug)]
struct GenerationBase {
    /// A generation as of a txg; `None` for a new volume.
    of: Option<(GenerationId, Txg)>,
    /// Bytes of a new volume.
    size: u64,
}

/// What happened in a run.
#[derive(Clone, Default)]
struct Recording {
    volumes: Vec<VolumeHistory>,
    bases: Vec<GenerationBase>,
    operations: Vec<Vec<Operation>>,
    /// Kinds of operations that were done.
    done: BTreeSet<&'static str>,
}

/// The recording of a run that is in progress.
type SharedRecording = Arc<plain::Mutex<Recording>>;

thread_local! {
    /// Txgs of the transactions that this thread has begun: the first and the last.
    static BEGUN: std::cell::Cell<Option<(Txg, Txg)>> = const { std::cell::Cell::new(None) };
}

/// The pool's side of a volume.
struct SimVolumeHost {
    writer: Arc<Writer>,
    log: Option<Arc<zil::Log>>,
}

impl VolumeHost for SimVolumeHost {
    fn begin(&self, bytes: u64, frees: bool, outage: OutagePolicy) -> Result<Tx> {
        let tx = self.writer.begin_wait(bytes, frees)?.with_outage(outage);
        let txg = tx.txg();
        BEGUN.with(|g| g.set(Some((g.get().map_or(txg, |(first, _)| first), txg))));
        Ok(tx)
    }

    fn synced(&self, txg: Txg) -> Result<()> {
        synced(&self.writer, txg)
    }

    fn log(&self) -> Option<Arc<zil::Log>> {
        self.log.clone()
    }

    fn is_read_only(&self) -> bool {
        false
    }
}

/// Opens a volume for writing. A log from before is to be replayed then.
fn open(writer: &Arc<Writer>, name: &str, setup: &VolumeSetup) -> Result<Volume> {
    let os = writer.read_dataset(name)?;
    let log = writer.log(&os)?;
    if let Some(log) = &log {
        log.set_throughput(setup.throughput);
        log.set_mode(if setup.always { zil::Mode::Always } else { zil::Mode::Standard });
        log.plant_disorder.store(setup.plant == VolumePlant::LateDiscards, Relaxed);
    }
    let host = SimVolumeHost { writer: Arc::clone(writer), log };
    Volume::open_rw(os, Arc::new(host), PrefetchMode::None, Io::WAIT)
}

/// A run.
#[derive(Clone, Debug)]
pub struct VolumeSetup {
    /// Vdevs, disks, schedule; a volume for each thread.
    pub run: Setup,
    /// A bug.
    pub plant: VolumePlant,
    /// Bytes of a block of each volume.
    pub block: u64,
    /// `sync=always`.
    pub always: bool,
    /// `logbias=throughput`.
    pub throughput: bool,
}

impl VolumeSetup {
    /// The run of a seed.
    pub fn varied(seed: u64, plant: VolumePlant) -> VolumeSetup {
        let mut rng = Rng::stream(seed, 80);
        let run = Setup {
            layout: Layout::ALL[rng.below(Layout::ALL.len() as u64) as usize],
            threads: 1 + rng.below(3) as usize,
            workload: Workload::Mixed,
            ops: 16,
            ..Setup::varied(seed)
        };
        let block = [512, 4 << 10, 8 << 10, 16 << 10][rng.below(4) as usize];
        let (always, throughput) = (rng.one_in(5), rng.one_in(3));
        VolumeSetup { run, plant, block, always, throughput }
    }

    /// The same on these vdevs.
    #[must_use]
    pub fn on(self, layout: Layout) -> VolumeSetup {
        VolumeSetup { run: Setup { layout, ..self.run }, ..self }
    }

    /// The first run with these vdevs and this ashift, from a seed on.
    pub fn fitting(seed: u64, layout: Layout, ashift: u32) -> VolumeSetup {
        let of = |seed| VolumeSetup::varied(seed, VolumePlant::Nothing).on(layout);
        (seed..).map(of).find(|s| s.run.ashift() == ashift).unwrap_or_else(|| of(seed))
    }
}

/// A run that was recorded.
pub struct RecordedVolumes {
    /// The setup.
    pub setup: VolumeSetup,
    /// The disks, with their log.
    pub disks: SimDisks,
    /// The first event after the volumes were made.
    pub start: u64,
    /// A failure during the run itself.
    pub failed: Option<String>,
    recording: Recording,
    /// The results of replays.
    found: plain::Mutex<BTreeMap<StartKey, Arc<Replayed>>>,
    /// Txgs that were audited.
    memo: Memo,
    /// The last images read, and the ranges read.
    seen: plain::Mutex<std::collections::VecDeque<Arc<ImageReading>>>,
}

/// The number of images of a run, and the first failure.
#[derive(Debug, Default)]
pub struct VolumeTally {
    /// Events after which the power failed.
    pub points: u64,
    /// Crash images judged.
    pub images: u64,
    /// Txgs and ends of logs that were replayed.
    pub replays: u64,
    /// Seed, event, seed of the crash, and the error.
    pub failure: Option<(u64, u64, u64, String)>,
}

impl fmt::Display for VolumeTally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.failure {
            None => write!(
                f,
                "{} points, {} images, {} replays",
                self.points, self.images, self.replays
            ),
            Some((seed, event, crash, what)) => {
                write!(f, "seed {seed}, crash {event}:{crash}: {what}")
            }
        }
    }
}

fn body(setup: &VolumeSetup, disks: &SimDisks, shared: &SharedRecording) -> Result<u64, String> {
    let writer = make(&setup.run, disks).map_err(|e| format!("making the pool: {e}"))?;
    let volumes = work::make_volumes(setup, &writer, shared);
    let volumes = volumes.map_err(|e| format!("making the volumes: {e}"))?;
    let plants = &writer.plants;
    plants.no_log_flush.store(setup.plant == VolumePlant::NoFlush, Relaxed);
    plants.inherited_log.store(setup.plant == VolumePlant::InheritedLog, Relaxed);
    let start = disks.events();
    work::run(setup, &writer, disks, shared, volumes)?;
    writer.stop();
    Ok(start)
}

/// Runs a setup and records it.
pub fn record(setup: VolumeSetup) -> RecordedVolumes {
    let run = &setup.run;
    let disks = SimDisks::blank(run.disks(), run.layout.disks(), run.disk_size());
    let shared = SharedRecording::default();
    let (s, d, r) = (setup.clone(), disks.clone(), Arc::clone(&shared));
    let outcome = run_with(run.schedule(), move || body(&s, &d, &r)).outcome;
    let (failed, start) = match ended(outcome) {
        Ok(start) => (None, start),
        Err(why) => (Some(why), 0),
    };
    let recording = shared.lock().clone();
    let (found, memo, seen) = Default::default();
    RecordedVolumes { setup, disks, start, failed, recording, found, memo, seen }
}

impl RecordedVolumes {
    /// Kinds of operations that were done.
    pub fn done(&self) -> &BTreeSet<&'static str> {
        &self.recording.done
    }

    /// Crashes after every `step`-th event since the volumes were made, with unflushed writes
    /// lost, kept, and in `more` other ways, on `threads` threads.
    pub fn crash_everywhere(&self, step: usize, more: u64, threads: usize) -> VolumeTally {
        let mut tally = VolumeTally::default();
        let seed = self.setup.run.seed;
        if let Some(why) = &self.failed {
            tally.failure = Some((seed, 0, 0, why.clone()));
            return tally;
        }
        let points = self.disks.crash_points().into_iter().filter(|p| *p >= self.start);
        let points: Vec<u64> = points.step_by(step.max(1)).collect();
        tally.points = points.len() as u64;
        let found = CrashPoints { points, seed, more, threads }
            .visit(|event, seed, cache| self.crash(event, seed, cache).map(|()| None));
        tally.images = found.images;
        tally.replays = self.found.lock().len() as u64;
        tally.failure = found.wrong.map(|(event, crash, what)| (seed, event, crash, what));
        tally
    }

    /// The disks after a crash and the replay of all logs.
    ///
    /// # Errors
    /// The error found.
    pub fn replayed(&self, event: u64, seed: u64) -> Result<Vec<Image>, String> {
        let images = self.disks.crash_image(event, seed).map_err(|e| e.to_string())?;
        let (_, disks) = self.mount_once(images, seed)?;
        Ok(disks.current())
    }
}
