//! Simulated disks with a volatile write cache, a log of all events, and crashes.
//!
//! # Theory
//! [`SimDisks`] is the controller of all disks of a pool; [`SimDisks::device`] returns
//! a [`SimDevice`] for each. A completed write stays *pending* until a flush that was
//! submitted after the completion completes; reads see it at once. Every write,
//! completion and flush is a numbered event. A crash after event `k` leaves what was
//! durable and any part of what was pending: each pending write is kept, lost or torn
//! between sectors, as a seed determines.
//!
//! * **Many crashes from one run** (the main use): with [`SimConfig::record`] the log
//!   is kept, and [`SimDisks::crash_image`] later builds the disks after a crash at any
//!   event without running anything again. Images share their pages, so one costs
//!   microseconds.
//! * **A crash during a run**: [`SimDisks::schedule`] with [`Action::Crash`] stops the
//!   disks after event `n` and calls the hook of [`SimDisks::on_crash`], in which the
//!   simulator halts the run.
//! * **Faults**: random [`Faults`], and [`Action`]s at an event: errors, a lost disk,
//!   stale reads, misdirected writes, a flush that reports success without effect.
//!
//! Completions run inside `submit` in an order that the seed determines, or later on a
//! thread of the runtime ([`Latency::Late`]), whose time is virtual inside a simulated
//! run.
//!
//! # Invariants
//! * Data covered by a completed flush survives every crash (unless the flush was a
//!   lying one).
//! * The same seed, program and schedule give the same log and the same images.
//! * After a crash nothing changes any more: operations fail and leave no trace.
//! * Completions and hooks run under no lock.
//!
//! # Departures from real disks
//! A failed write leaves some of its sectors, chosen when it fails. Trimmed ranges read
//! as zeros. The cache is never written back spontaneously: pending writes wait for a
//! flush.
//!
//! Lock order: `late` before `state`; `state` is a leaf that no scheduler sees.

mod image;
mod late;
mod log;
mod state;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base::rt::sim::Rng;
use base::rt::{self, plain};
use base::{Error, Result};

pub use image::Image;
pub use log::{CrashOptions, CrashPoint, Data, Event, Pending};

use crate::op::{Caps, Completion, Device, FlushCost, Io, Op};
use crate::stats::DeviceStats;
use late::LateCompletions;
use state::{SimState, Ticket};

/// When operations complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Latency {
    /// Inside `submit`: the operations of a batch in an order that the seed determines.
    Inline,
    /// Later, after a random time between these two, on a thread of the simulator.
    Late {
        /// At least.
        min: Duration,
        /// At most.
        max: Duration,
    },
}

/// How simulated disks behave.
#[derive(Clone, Debug)]
pub struct SimConfig {
    /// Determines order, latency and faults.
    pub seed: u64,
    /// Bytes of a sector. Writes are multiples of it; a sector arrives whole or not at
    /// all.
    pub sector: u32,
    /// When operations complete.
    pub latency: Latency,
    /// Keep the log for [`SimDisks::crash_image`]; it contains all data written.
    pub record: bool,
}

impl SimConfig {
    /// Recording disks of 512-byte sectors that complete inline.
    pub fn new(seed: u64) -> SimConfig {
        SimConfig { seed, sector: 512, latency: Latency::Inline, record: true }
    }
}

/// Random faults: one in this many operations, 0 for never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Reads that fail.
    pub read_errors: u64,
    /// Writes that fail; some of their sectors arrive nevertheless.
    pub write_errors: u64,
    /// Flushes that fail, and make nothing durable.
    pub flush_errors: u64,
    /// Reads that return the durable data instead of data written since.
    pub stale_reads: u64,
    /// Writes that succeed, but write to a different offset of the disk.
    pub misdirected: u64,
    /// Flushes that succeed and make nothing durable.
    pub lying_flushes: u64,
}

/// An action that follows a given event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// The power fails.
    Crash,
    /// The disk disappears; its operations fail.
    Drop {
        /// Disk number.
        disk: usize,
    },
    /// The disk returns with its previous content.
    Return {
        /// Disk number.
        disk: usize,
    },
    /// From here on the disk has these faults.
    Faults {
        /// Disk number.
        disk: usize,
        /// Its faults.
        faults: Faults,
    },
}

/// Called once when a scheduled crash happens, on the thread whose operation caused it.
pub type Hook = Arc<dyn Fn() + Send + Sync>;

struct SimShared {
    config: SimConfig,
    caps: Caps,
    sizes: Vec<u64>,
    stats: Vec<DeviceStats>,
    state: plain::Mutex<SimState>,
    late: LateCompletions,
}

/// All disks of a pool.
#[derive(Clone)]
pub struct SimDisks(Arc<SimShared>);

impl SimDisks {
    /// Disks holding `images`.
    pub fn new(config: SimConfig, images: Vec<Image>) -> SimDisks {
        let point = CrashPoint::new(images);
        let sizes: Vec<_> = point.disks.iter().map(|d| d.durable.size()).collect();
        let caps = Caps {
            logical_sector: config.sector,
            preferred: config.sector.max(512),
            rotational: Some(false),
            trim: true,
            overwrite: true,
            writable: true,
            direct: true,
            flush: FlushCost::Cheap,
        };
        let stats = sizes.iter().map(|_| DeviceStats::default()).collect();
        let state = plain::Mutex::new(SimState::new(&config, point));
        let late = LateCompletions::new(config.seed);
        SimDisks(Arc::new(SimShared { config, caps, sizes, stats, state, late }))
    }

    /// `count` empty disks of `size` bytes.
    pub fn blank(config: SimConfig, count: usize, size: u64) -> SimDisks {
        SimDisks::new(config, vec![Image::new(size); count])
    }

    /// Number of disks.
    pub fn count(&self) -> usize {
        self.0.sizes.len()
    }

    /// Disk `disk` as a device; `None` if there is no such disk.
    pub fn device(&self, disk: usize) -> Option<Arc<SimDevice>> {
        (disk < self.count()).then(|| Arc::new(SimDevice { shared: Arc::clone(&self.0), disk }))
    }

    /// All disks as devices.
    pub fn devices(&self) -> Vec<Arc<SimDevice>> {
        (0..self.count()).filter_map(|i| self.device(i)).collect()
    }

    /// Number of events so far.
    pub fn events(&self) -> u64 {
        self.0.state.lock().count()
    }

    /// Appends a mark to the log, an event like any other.
    pub fn mark(&self, tag: u64) {
        let hook = {
            let mut state = self.0.state.lock();
            let _ = state.record(Event::Mark(tag));
            state.take_hook()
        };
        fire(hook);
    }

    /// The marks made before the crash at `event`, oldest first.
    pub fn marks(&self, event: u64) -> Vec<u64> {
        self.0.state.lock().marks_before(event)
    }

    /// The whole log; empty without `record`.
    pub fn log(&self) -> Vec<Event> {
        self.0.state.lock().log()
    }

    /// The events after which a crash leaves a new state: those that follow a write, a
    /// completed flush, a mark, or the loss or return of a disk; and the start.
    pub fn crash_points(&self) -> Vec<u64> {
        let log = self.log();
        let changes_image = |e: &Event| !matches!(e, Event::Done { .. } | Event::Flush { .. });
        let after = log.iter().zip(1..).filter(|(e, _)| changes_image(e)).map(|(_, n)| n);
        std::iter::once(0).chain(after).collect()
    }

    /// What was durable and pending after the first `event` events.
    ///
    /// # Errors
    /// `Invalid` if that is not in the log.
    pub(crate) fn crash_point(&self, event: u64) -> Result<CrashPoint> {
        self.0.state.lock().point(event)
    }

    /// The disks after a crash at `event`, as `seed` determines it (see
    /// [`CrashPoint::image`]).
    ///
    /// # Errors
    /// As [`SimDisks::crash_point`].
    pub fn crash_image(&self, event: u64, seed: u64) -> Result<Vec<Image>> {
        let options = CrashOptions { sector: self.0.config.sector, ..CrashOptions::default() };
        self.crash_image_with(event, seed, &options)
    }

    /// As [`SimDisks::crash_image`], with explicit options.
    ///
    /// # Errors
    /// As [`SimDisks::crash_point`].
    pub fn crash_image_with(
        &self,
        event: u64,
        seed: u64,
        options: &CrashOptions,
    ) -> Result<Vec<Image>> {
        self.crash_point(event)?.image(seed, options)
    }

    /// Bytes of a sector.
    pub fn sector(&self) -> u32 {
        self.0.config.sector
    }

    /// What reads see now: the disks after an orderly shutdown.
    pub fn current(&self) -> Vec<Image> {
        self.0.state.lock().current.clone()
    }

    /// Performs `action` as soon as there are `event` events.
    pub fn schedule(&self, event: u64, action: Action) {
        let hook = {
            let mut state = self.0.state.lock();
            state.schedule(event, action);
            state.take_hook()
        };
        fire(hook);
    }

    /// Sets the hook that is called in a crash; usually it halts the simulated run.
    pub fn on_crash(&self, hook: Hook) {
        self.0.state.lock().hook = Some(hook);
    }

    /// Cuts the power now, without calling the hook.
    pub fn crash(&self) {
        self.0.state.lock().crashed = true;
    }

    /// Whether the power was cut.
    pub fn crashed(&self) -> bool {
        self.0.state.lock().crashed
    }

    /// Sets the faults of a disk from now on.
    pub fn set_faults(&self, disk: usize, faults: Faults) {
        self.0.state.lock().set_faults(disk, faults);
    }

    /// Number of writes submitted to a range to which another write was still in
    /// flight. The resulting content is undefined, so a correct engine has none.
    pub fn overlaps(&self) -> u64 {
        self.0.state.lock().overlaps
    }
}

/// Writes images as sparse files `disk-N.img` into `dir`, for zdb.
///
/// # Errors
/// The operating system's.
pub fn write_files(images: &[Image], dir: &Path) -> Result<Vec<PathBuf>> {
    let write = |(i, image): (usize, &Image)| {
        let path = dir.join(format!("disk-{i}.img"));
        image.to_file(&path)?;
        Ok(path)
    };
    images.iter().enumerate().map(write).collect()
}

fn fire(hook: Option<Hook>) {
    if let Some(hook) = hook {
        hook();
    }
}

/// One simulated disk.
pub struct SimDevice {
    shared: Arc<SimShared>,
    disk: usize,
}

impl SimDevice {
    /// Its index at the controller.
    pub fn disk(&self) -> usize {
        self.disk
    }
}

impl SimShared {
    fn size(&self, disk: usize) -> u64 {
        self.sizes.get(disk).copied().unwrap_or(0)
    }

    fn stats(&self, disk: usize) -> &DeviceStats {
        &self.stats[disk]
    }

    /// Starts an operation.
    fn begin(&self, disk: usize, io: &Io) -> Result<Ticket> {
        rt::sim::point();
        self.stats(disk).begin();
        io.check(self.size(disk), true)?;
        let sector = u64::from(self.config.sector.max(1));
        let aligned = io.offset().is_multiple_of(sector) && io.len().is_multiple_of(sector);
        if matches!(io, Io::Write { .. }) && !aligned {
            return Err(Error::invalid(format!(
                "a write of {} bytes at {} is not of whole sectors",
                io.len(),
                io.offset()
            )));
        }
        let (ticket, hook) = {
            let mut state = self.state.lock();
            (state.begin(disk, io), state.take_hook())
        };
        fire(hook);
        ticket
    }

    /// Ends an operation.
    fn finish(&self, disk: usize, ticket: Result<Ticket>, io: &mut Io) -> Result<usize> {
        let result = match ticket {
            Err(e) => Err(e),
            Ok(ticket) => {
                let (result, hook) = {
                    let mut state = self.state.lock();
                    (state.finish(disk, &ticket, io), state.take_hook())
                };
                fire(hook);
                result
            }
        };
        self.stats(disk).end(io, result.is_ok());
        result
    }
}

impl Device for SimDevice {
    fn caps(&self) -> &Caps {
        &self.shared.caps
    }

    fn size(&self) -> u64 {
        self.shared.size(self.disk)
    }

    fn submit(&self, batch: Vec<Op>) {
        let shared = &self.shared;
        let begin = |op: Op| (shared.begin(self.disk, &op.io), op);
        if let Latency::Late { min, max } = shared.config.latency {
            for (ticket, op) in batch.into_iter().map(begin) {
                late::queue(shared, self.disk, ticket, op, (min, max));
            }
            return;
        }
        let mut begun: Vec<_> = batch.into_iter().map(begin).collect();
        if begun.len() > 1 {
            shared.state.lock().shuffle(&mut begun);
        }
        for (ticket, mut op) in begun {
            let result = shared.finish(self.disk, ticket, &mut op.io);
            op.complete(result);
        }
    }

    fn describe(&self) -> String {
        format!("simulated disk {} of {} bytes", self.disk, self.size())
    }

    fn stats(&self) -> &DeviceStats {
        self.shared.stats(self.disk)
    }

    fn run(&self, mut io: Io) -> Completion {
        let shared = &self.shared;
        let ticket = shared.begin(self.disk, &io);
        if let Latency::Late { min, max } = shared.config.latency {
            rt::sleep(shared.late.draw(min, max));
        }
        let result = shared.finish(self.disk, ticket, &mut io);
        Completion { io, result }
    }
}

/// The recommended seeds for crashes at event `event` of a run with seed `seed`: the
/// two extremes and `more` others.
pub fn crash_seeds(seed: u64, event: u64, more: u64) -> Vec<u64> {
    let mut rng = Rng::stream(seed, event);
    [0, 1].into_iter().chain((0..more).map(|_| rng.next_u64())).collect()
}
