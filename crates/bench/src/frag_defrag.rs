//! A pool of the fragmentation bench before and after a defragmentation.
//!
//! # Theory
//! Three states of the pool of a level are compared: *fresh*, as it was filled in order;
//! *before*, as the overwrites left it; *after*, defragmented. In each state a few txgs without
//! content pass, so that nothing is deferred, the ranges that can be allocated are taken, and the
//! level's load runs for a given time. Each run begins without dirty data, with the metaslabs
//! loaded, and overwrites the same records in the same order, so the rates differ by the layout
//! alone. That of the fresh pool is of the first samples of the level itself.
//!
//! The overwrites before the defragmentation change the free space once more. So its ranges are
//! taken after them: they are those that the defragmentation finds.
//!
//! A rate over a few seconds is mostly that of memory: the time should be that of several txgs.

use std::time::Duration;

use base::rt;
use base::{Error, Result};
use cenote::space_map::FreeSizes;
use cenote::{DefragTargets, MoveRecord, MoveState, Pool};

use super::frag::FragLevel;
use super::frag_load::{OverwriteLoad, OverwriteResult, OverwriteTarget, ThroughputSample};
use super::frag_target::FragPool;
use super::frame::{Cell, ReportTable};
use super::{BenchResult, Run};

const WORK: [(&str, &str); 10] = [
    ("curve", "CURVE"),
    ("fill", "FILL"),
    ("seconds", "SECONDS"),
    ("moved", "MOVED"),
    ("pointers", "POINTERS"),
    ("files", "FILES"),
    ("metaslabs", "METASLABS"),
    ("kept", "KEPT"),
    ("score_before", "SCORE"),
    ("score_after", "AFTER"),
];
const STATES: [(&str, &str); 10] = [
    ("curve", "CURVE"),
    ("fill", "FILL"),
    ("state", "STATE"),
    ("first_mb_s", "FIRST MB/S"),
    ("of_fresh", "OF FRESH"),
    ("modelled_mb_s", "MODEL MB/S"),
    ("free", "FREE"),
    ("ranges", "RANGES"),
    ("largest", "LARGEST"),
    ("fragmentation", "FRAGMENTATION"),
];
const RANGES: [(&str, &str); 9] = [
    ("curve", "CURVE"),
    ("fill", "FILL"),
    ("size", "SIZE"),
    ("fresh_ranges", "FRESH"),
    ("fresh_bytes", "BYTES"),
    ("before_ranges", "BEFORE"),
    ("before_bytes", "BYTES"),
    ("after_ranges", "AFTER"),
    ("after_bytes", "BYTES"),
];
/// Txgs after which nothing is deferred.
const SETTLED: usize = 3;
/// Time between two looks at the defragmentation.
const WATCH: Duration = Duration::from_millis(50);

/// The rates of a load at the beginning of a run, MB a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct FirstRate {
    /// Of the application.
    measured: Option<f64>,
    /// Of the modelled disk.
    modelled: Option<f64>,
}

impl FirstRate {
    /// Over the samples of the first `time`.
    fn of(samples: &[ThroughputSample], time: Duration) -> FirstRate {
        let interval = samples.first().map_or(0.0, |first| first.time);
        // The last sample of a run ends a little later than its limit.
        let end = time.as_secs_f64() + interval / 2.0;
        let first = || samples.iter().take_while(|sample| sample.at <= end);
        let bytes: u64 = first().map(|sample| sample.bytes).sum();
        let rate = |seconds: f64| (seconds > 0.0).then(|| bytes as f64 / 1e6 / seconds);
        FirstRate {
            measured: rate(first().map(|sample| sample.time).sum()),
            modelled: rate(first().map(|sample| sample.modelled).sum()),
        }
    }
}

/// What was measured around the defragmentation of a level's pool.
pub(super) struct FragDefrag {
    /// The free ranges of the fresh pool, before and after.
    free: [FreeSizes; 3],
    /// The rates in these states.
    rates: [FirstRate; 3],
    /// Of the defragmentation.
    seconds: f64,
    record: MoveRecord,
}

const NAMES: [&str; 3] = ["fresh", "before", "after"];

/// Lets txgs pass until what was freed is allocatable.
///
/// # Errors
/// Those of a pool that is suspended.
pub(super) fn settle(pool: &Pool) -> Result<()> {
    pool.sync()?;
    for _ in 0..SETTLED {
        pool.writer()?.touch();
        pool.sync()?;
    }
    Ok(())
}

/// The free ranges of a pool that is not in use, once nothing is deferred.
///
/// # Errors
/// As [`settle`], and those of reading space maps.
pub(super) fn free_ranges(pool: &Pool) -> Result<FreeSizes> {
    settle(pool)?;
    pool.free_sizes()
}

/// Defragments the pool of a level that was measured. `fresh`: its free ranges when it was
/// filled; `first`: the level's result; `measure` runs a load.
pub(super) fn defragment(
    run: &mut Run,
    (name, time): (&str, Duration),
    target: &FragPool,
    load: &OverwriteLoad,
    (fresh, first): (FreeSizes, &OverwriteResult),
    measure: &dyn Fn(&mut Run, &OverwriteLoad) -> BenchResult<OverwriteResult>,
) -> BenchResult<FragDefrag> {
    let pool = target.pool();
    let load = OverwriteLoad { limit: time, ..load.clone() };
    let rate = |run: &mut Run| -> BenchResult<FirstRate> {
        if load.append.is_some() {
            // As in the level, where they were empty.
            (0..load.writers).try_for_each(|writer| target.truncate(load.files + writer))?;
            settle(pool)?;
        }
        Ok(FirstRate::of(&measure(run, &load)?.samples, time))
    };
    settle(pool)?;
    let rate_before = rate(run)?;
    let before = free_ranges(pool)?;
    let began = rt::now();
    pool.defrag(&DefragTargets::default(), None)?;
    let record = loop {
        let job = pool.move_job().ok_or_else(|| Error::bug("a defragmentation is gone"))?;
        if job.record.state != MoveState::Active {
            break job.record;
        }
        let all = job.record.to_move.unwrap_or(job.record.moved).max(job.record.moved);
        run.step(&format!("{name}: defragmenting, MiB"), job.record.moved >> 20, all >> 20)?;
        rt::sleep(WATCH);
    };
    if record.state != MoveState::Complete {
        return Err(Error::bug("a defragmentation that does not complete").into());
    }
    pool.sync()?;
    let seconds = began.elapsed().as_secs_f64();
    let after = free_ranges(pool)?;
    let rate_after = rate(run)?;
    let rates = [FirstRate::of(&first.samples, time), rate_before, rate_after];
    Ok(FragDefrag { free: [fresh, before, after], rates, seconds, record })
}

/// The first cells of a row.
fn row_of(level: &FragLevel) -> Vec<Cell> {
    vec![level.curve.as_str().into(), Cell::Ratio(level.fill as f64 / 100.0)]
}

/// The rows of one level: the defragmentation, the states, the free ranges by size.
fn rows(head: &[Cell], done: &FragDefrag) -> (Vec<Cell>, Vec<Vec<Cell>>, Vec<Vec<Cell>>) {
    let record = &done.record;
    let share = |n: u64| Cell::ratio((record.steps > 0).then(|| n as f64 / record.steps as f64));
    let with = |cells: Vec<Cell>| [head.to_vec(), cells].concat();
    let work = with(vec![
        Cell::Real(done.seconds),
        Cell::Bytes(record.moved),
        Cell::Bytes(record.metadata),
        Cell::Count(record.files),
        Cell::Count(record.metaslabs),
        Cell::Count(record.kept),
        share(record.in_sequence),
        share(record.in_sequence_now),
    ]);
    let fresh = done.rates[0].measured;
    let states = NAMES.into_iter().zip(&done.rates).zip(&done.free).map(|((name, rate), free)| {
        let of_fresh = rate.measured.zip(fresh).map(|(rate, fresh)| rate / fresh);
        with(vec![
            name.into(),
            Cell::real(rate.measured),
            Cell::ratio(of_fresh),
            Cell::real(rate.modelled),
            Cell::Bytes(free.space()),
            Cell::Count(free.ranges()),
            Cell::Bytes(free.largest),
            Cell::Ratio(free.fragmentation() as f64 / 100.0),
        ])
    });
    let sizes = (0..64).filter(|size| done.free.iter().any(|free| free.counts[*size] > 0));
    let ranges = sizes.map(|size| {
        let of = |free: &FreeSizes| [Cell::Count(free.counts[size]), Cell::Bytes(free.bytes[size])];
        let cells = done.free.iter().flat_map(of);
        with([Cell::Bytes(1 << size)].into_iter().chain(cells).collect())
    });
    (work, states.collect(), ranges.collect())
}

/// The tables of all levels; none if nothing was defragmented.
pub(super) fn tables(levels: &[FragLevel]) -> Vec<ReportTable> {
    let mut work = ReportTable::new("defragmentation", &WORK);
    let mut states = ReportTable::new("free_space", &STATES);
    let mut ranges = ReportTable::new("free_ranges", &RANGES);
    for level in levels {
        let Some(done) = level.pool.as_ref().and_then(|pool| pool.defrag.as_ref()) else {
            continue;
        };
        let (one, of_states, of_ranges) = rows(&row_of(level), done);
        work.rows.push(one);
        states.rows.extend(of_states);
        ranges.rows.extend(of_ranges);
    }
    match work.rows.is_empty() {
        true => Vec::new(),
        false => vec![work, states, ranges],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_of_the_first_seconds() {
        let sample = |at: f64, bytes: u64| ThroughputSample { at, time: 1.0, bytes, modelled: 2.0 };
        let samples: Vec<ThroughputSample> =
            [(1.01, 4_000_000), (2.02, 2_000_000), (3.03, 90_000_000)]
                .map(|(at, bytes)| sample(at, bytes))
                .to_vec();
        let two = FirstRate::of(&samples, Duration::from_secs(2));
        assert_eq!(two, FirstRate { measured: Some(3.0), modelled: Some(1.5) });
        let all = FirstRate::of(&samples, Duration::from_secs(60));
        assert_eq!(all, FirstRate { measured: Some(32.0), modelled: Some(16.0) });
        assert_eq!(FirstRate::of(&[], Duration::from_secs(1)), FirstRate::default());
    }
}
