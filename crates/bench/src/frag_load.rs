//! Concurrent random overwrites of a target's files, sampled at intervals.
//!
//! # Theory
//! Each writer overwrites aligned records at random offsets of one file, with buffers that were
//! made before, so that the generator is never the limit; each gets a number, so that no two
//! records are equal. The sampling thread notes the bytes
//! written in each interval. Instead of overwriting, writers may append to files of their own,
//! which are truncated before they use the space that is free: the baseline of a pool whose
//! content stays as it was written. A run is steady when the overwrites have replaced the content
//! [`TURNOVER`] times; [`STEADY_SAMPLES`] more samples end it, or the time limit does.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use base::rt::{self, Mutex};
use base::{Error, ErrorKind, Result};

use super::frag_model::TraceSnapshot;
use super::sample::XorShift;
use super::write_pool::cpu;
use super::{BenchResult, Run, tidy};

/// Overwritten bytes for each byte of content before throughput counts as steady.
pub(super) const TURNOVER: u64 = 2;
/// Samples over which steady state is the mean.
pub(super) const STEADY_SAMPLES: usize = 50;
/// Bytes of a write while a target is filled.
const LARGE: u64 = 1 << 20;

/// Cumulative counters of the devices below a target.
#[derive(Clone, Debug, Default)]
pub(super) struct TargetCounters {
    /// Writes that the devices completed, and their bytes; `None` where nothing counts them.
    pub(super) device: Option<(u64, u64)>,
    /// The sequence of writes; empty where it cannot be observed.
    pub(super) trace: TraceSnapshot,
}

/// The files that are overwritten.
pub(super) trait OverwriteTarget: Sync {
    /// Writes to a file at an offset.
    ///
    /// # Errors
    /// `NoSpace` if a later attempt may succeed; else the target has failed.
    fn write(&self, file: usize, offset: u64, data: &[u8]) -> Result<()>;

    /// Cuts a file to no bytes.
    ///
    /// # Errors
    /// Those of the target.
    fn truncate(&self, file: usize) -> Result<()>;

    /// Waits until everything written is on the devices.
    ///
    /// # Errors
    /// Those of the target.
    fn sync(&self) -> Result<()>;

    /// The counters so far.
    ///
    /// # Errors
    /// Those of the target.
    fn counters(&self) -> Result<TargetCounters>;
}

/// The load of one run.
#[derive(Clone, Debug)]
pub(super) struct OverwriteLoad {
    /// Number of files.
    pub(super) files: usize,
    /// Bytes of each file, a multiple of the record.
    pub(super) file_size: u64,
    /// Bytes of one overwrite.
    pub(super) record: u64,
    /// Threads that overwrite.
    pub(super) writers: usize,
    /// Longest time.
    pub(super) limit: Duration,
    /// Time between two samples.
    pub(super) interval: Duration,
    /// Writers append to files behind the filled ones, one for each writer, and begin again
    /// when such a file has so many bytes; `None`: they overwrite.
    pub(super) append: Option<u64>,
}

impl OverwriteLoad {
    /// Bytes of all filled files.
    pub(super) fn filled(&self) -> u64 {
        self.files as u64 * self.file_size
    }
}

/// One interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ThroughputSample {
    /// Seconds from the first overwrite to the interval's end.
    pub(super) at: f64,
    /// Seconds of the interval.
    pub(super) time: f64,
    /// Bytes overwritten in it.
    pub(super) bytes: u64,
    /// Seconds that the modelled disk needs for the device writes of the interval.
    pub(super) modelled: f64,
}

impl ThroughputSample {
    /// MB (10^6 bytes) a second.
    pub(super) fn rate(&self) -> f64 {
        self.bytes as f64 / 1e6 / self.time
    }
}

/// Times by powers of two, each divided into 16 buckets: 6 % wide.
#[derive(Clone, Debug)]
pub(super) struct LatencyHistogram {
    counts: Vec<u64>,
    longest: u64,
}

impl Default for LatencyHistogram {
    fn default() -> LatencyHistogram {
        LatencyHistogram { counts: vec![0; 64 * 16], longest: 0 }
    }
}

impl LatencyHistogram {
    /// Adds one time.
    pub(super) fn add(&mut self, nanoseconds: u64) {
        let n = nanoseconds.max(16);
        let power = n.ilog2();
        let part = (n >> (power - 4)) & 15;
        self.counts[(power as u64 * 16 + part) as usize] += 1;
        self.longest = self.longest.max(nanoseconds);
    }

    fn merge(&mut self, other: &LatencyHistogram) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(to, from)| *to += from);
        self.longest = self.longest.max(other.longest);
    }

    /// Seconds within which a share of the writes completed; `None` without writes.
    pub(super) fn quantile(&self, share: f64) -> Option<f64> {
        let all = self.count();
        let wanted = ((all as f64 * share).ceil() as u64).max(1);
        let mut sum = 0;
        for (i, count) in self.counts.iter().enumerate() {
            sum += count;
            if sum >= wanted && all > 0 {
                let (power, part) = (i as u32 / 16, i as u128 % 16);
                let end = (16 + part + 1) << power.saturating_sub(4);
                return Some(end.min(self.longest.into()) as f64 / 1e9);
            }
        }
        None
    }

    /// Times that were added.
    pub(super) fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Seconds of the longest write.
    pub(super) fn longest(&self) -> f64 {
        self.longest as f64 / 1e9
    }
}

/// What a run measured.
#[derive(Clone, Debug)]
pub(super) struct OverwriteResult {
    pub(super) samples: Vec<ThroughputSample>,
    pub(super) latency: LatencyHistogram,
    /// Records overwritten.
    pub(super) writes: u64,
    /// Bytes overwritten.
    pub(super) bytes: u64,
    /// Processor time of this process, the last sync included.
    pub(super) cpu: Duration,
    /// Attempts that found no space and were repeated after a sync.
    pub(super) no_space: u64,
    /// Overwritten twice before the last samples.
    pub(super) steady: bool,
    pub(super) before: TargetCounters,
    /// After a sync.
    pub(super) after: TargetCounters,
}

/// The mean of the last [`STEADY_SAMPLES`] samples, MB a second.
pub(super) fn steady_rate(samples: &[ThroughputSample]) -> Option<f64> {
    let last = &samples[samples.len().saturating_sub(STEADY_SAMPLES)..];
    let time: f64 = last.iter().map(|s| s.time).sum();
    let bytes: u64 = last.iter().map(|s| s.bytes).sum();
    (time > 0.0).then(|| bytes as f64 / 1e6 / time)
}

/// Fills all files in sequence.
pub(super) fn fill(
    run: &mut Run,
    name: &str,
    target: &dyn OverwriteTarget,
    load: &OverwriteLoad,
    buffers: &[Vec<u8>],
) -> BenchResult<()> {
    let total = load.filled();
    let mut data = Vec::with_capacity(LARGE as usize);
    let mut n = 0;
    for file in 0..load.files {
        let mut at = 0;
        while at < load.file_size {
            run.step(&format!("{name}: filling, MiB"), (n * load.record) >> 20, total >> 20)?;
            let end = (at + LARGE).min(load.file_size);
            data.clear();
            while (data.len() as u64) < end - at {
                let at = data.len();
                data.extend_from_slice(&buffers[n as usize % buffers.len()]);
                stamp(&mut data[at..], n);
                n += 1;
            }
            data.truncate((end - at) as usize);
            retry(target, file, at, &data)?;
            at = end;
        }
    }
    target.sync()?;
    Ok(())
}

/// Makes a buffer unlike all others, so that checksums do not repeat: indirect blocks would
/// compress better than those of real data.
fn stamp(buffer: &mut [u8], n: u64) {
    if let Some(first) = buffer.first_chunk_mut() {
        *first = n.to_le_bytes();
    }
}

/// Writes; while there is no space, waits for a sync. Returns the attempts that failed.
fn retry(target: &dyn OverwriteTarget, file: usize, at: u64, data: &[u8]) -> Result<u64> {
    /// Attempts before the lack of space is final.
    const ATTEMPTS: u64 = 100;
    let mut failed = 0;
    loop {
        match target.write(file, at, data) {
            Ok(()) => return Ok(failed),
            Err(e) if e.kind() == ErrorKind::NoSpace && failed < ATTEMPTS => {
                failed += 1;
                target.sync()?;
            }
            Err(e) => return Err(e),
        }
    }
}

/// State that the writers share.
struct WriterState<'a> {
    load: &'a OverwriteLoad,
    buffers: &'a [Vec<u8>],
    stop: AtomicBool,
    bytes: AtomicU64,
    no_space: AtomicU64,
    failed: Mutex<Option<Error>>,
    latency: Mutex<LatencyHistogram>,
}

impl WriterState<'_> {
    fn write(&self, target: &dyn OverwriteTarget, writer: usize) {
        let load = self.load;
        let records = load.file_size / load.record;
        let file = match load.append {
            None => writer % load.files,
            Some(_) => load.files + writer,
        };
        let mut end = 0;
        let mut rng = XorShift::new(writer as u64 * 7919 + 17);
        let mut latency = LatencyHistogram::default();
        let mut buffers = self.buffers.to_vec();
        while !self.stop.load(Relaxed) {
            let which = rng.below(buffers.len() as u64) as usize;
            let data = &mut buffers[which];
            stamp(data, rng.below(u64::MAX));
            let data = &*data;
            let began = rt::now();
            let written = match load.append {
                None => retry(target, file, rng.below(records) * load.record, data),
                Some(most) if end + load.record > most => {
                    end = load.record;
                    target.truncate(file).and_then(|()| retry(target, file, 0, data))
                }
                Some(_) => {
                    end += load.record;
                    retry(target, file, end - load.record, data)
                }
            };
            match written {
                Ok(failed) => {
                    latency.add(u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX));
                    self.bytes.fetch_add(load.record, Relaxed);
                    if failed > 0 {
                        self.no_space.fetch_add(failed, Relaxed);
                    }
                }
                Err(e) => {
                    self.failed.lock().get_or_insert(e);
                    self.stop.store(true, Relaxed);
                }
            }
        }
        self.latency.lock().merge(&latency);
    }

    /// Samples until the run is steady or its time is over. `report` gets the share done.
    fn sample(
        &self,
        target: &dyn OverwriteTarget,
        report: &mut dyn FnMut(f64) -> BenchResult<()>,
    ) -> BenchResult<(Vec<ThroughputSample>, bool)> {
        let (began, wanted) = (rt::now(), TURNOVER * self.load.filled());
        let mut samples: Vec<ThroughputSample> = Vec::new();
        let (mut then, mut seen, mut trace) = (began, 0, target.counters()?.trace);
        let mut steady_from = None;
        while !self.stop.load(Relaxed) {
            rt::sleep(self.load.interval);
            let (now, bytes, next) =
                (rt::now(), self.bytes.load(Relaxed), target.counters()?.trace);
            samples.push(ThroughputSample {
                at: now.since(began).as_secs_f64(),
                time: now.since(then).as_secs_f64().max(1e-9),
                bytes: bytes - seen,
                modelled: next.since(&trace).busy,
            });
            (then, seen, trace) = (now, bytes, next);
            if bytes >= wanted {
                steady_from.get_or_insert(samples.len());
            }
            let steady = steady_from.is_some_and(|from| samples.len() >= from + STEADY_SAMPLES);
            let spent = now.since(began).as_secs_f64() / self.load.limit.as_secs_f64();
            if steady || spent >= 1.0 {
                return Ok((samples, steady));
            }
            let after = steady_from.map_or(0, |from| samples.len() - from);
            let done = bytes.min(wanted) as f64 / wanted.max(1) as f64 * 0.9
                + after as f64 / STEADY_SAMPLES as f64 * 0.1;
            report(done.max(spent))?;
        }
        Ok((samples, false))
    }
}

/// Overwrites until the run is steady or its time is over. `report` is called at each sample
/// with the bench and the share of the run that is done.
pub(super) fn overwrite(
    run: &mut Run,
    target: &dyn OverwriteTarget,
    load: &OverwriteLoad,
    buffers: &[Vec<u8>],
    report: &(dyn Fn(&mut Run, f64) -> BenchResult<()> + Sync),
) -> BenchResult<OverwriteResult> {
    let state = WriterState {
        load,
        buffers,
        stop: AtomicBool::new(false),
        bytes: AtomicU64::new(0),
        no_space: AtomicU64::new(0),
        failed: Mutex::new(None),
        latency: Mutex::default(),
    };
    let before = target.counters()?;
    let cpu_before = cpu();
    let (bench, outcome) = (Mutex::new(run), Mutex::new(None));
    rt::fan_out(load.writers + 1, |thread| {
        if let Some(writer) = thread.checked_sub(1) {
            return state.write(target, writer);
        }
        let mut run = bench.lock();
        let sampled = state.sample(target, &mut |share| report(&mut run, share));
        state.stop.store(true, Relaxed);
        *outcome.lock() = Some(sampled);
    });
    if tidy::interrupted() {
        return Err(super::Stop::Interrupted);
    }
    if let Some(e) = state.failed.into_inner() {
        return Err(e.into());
    }
    target.sync()?;
    let spent = cpu().saturating_sub(cpu_before);
    let none = || Error::bug("a run without samples");
    let (samples, steady) = outcome.into_inner().ok_or_else(none)??;
    let bytes = state.bytes.into_inner();
    Ok(OverwriteResult {
        samples,
        latency: state.latency.into_inner(),
        writes: bytes / load.record,
        bytes,
        cpu: spent,
        no_space: state.no_space.into_inner(),
        steady,
        before,
        after: target.counters()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_within_a_bucket() {
        let mut all = LatencyHistogram::default();
        assert_eq!(all.quantile(0.5), None);
        (1..=1000u64).for_each(|n| all.add(n * 1000));
        let median = all.quantile(0.5).unwrap_or(0.0) * 1e6;
        assert!((500.0..540.0).contains(&median), "{median}");
        let tail = all.quantile(0.99).unwrap_or(0.0) * 1e6;
        assert!((990.0..=1000.0).contains(&tail), "{tail}");
        assert!((all.longest() - 1e-3).abs() < 1e-12);
        all.add(u64::MAX);
        assert!(all.quantile(1.0).is_some_and(|q| q > 1e9));
    }

    #[test]
    fn steady_state_is_the_mean_of_the_last_fifty() {
        let sample = |n: u64| ThroughputSample { at: 0.0, time: 2.0, bytes: n, modelled: 0.0 };
        assert_eq!(steady_rate(&[]), None);
        assert_eq!(steady_rate(&[sample(4_000_000)]), Some(2.0));
        let mut all = vec![sample(1 << 40); 20];
        all.extend(vec![sample(6_000_000); STEADY_SAMPLES]);
        assert_eq!(steady_rate(&all), Some(3.0));
    }
}
