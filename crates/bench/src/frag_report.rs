//! Tables and figures of the fragmentation bench.

use std::path::Path;

use base::{Error, Result};
use cenote::space_map::PoolMap;

use super::chart::{Axes, Chart, Series, Shape};
use super::frag::FragLevel;
use super::frag_defrag;
use super::frag_load::steady_rate;
use super::frag_map::{MapFigure, metaslabs as metaslabs_of};
use super::frame::{self, Cell, Report, ReportTable};
use super::{lab, svg};

const LEVELS: [(&str, &str); 12] = [
    ("curve", "CURVE"),
    ("fill", "FILL"),
    ("filled", "FILLED"),
    ("steady_mb_s", "MB/S"),
    ("steady", "STEADY"),
    ("overwritten", "TIMES"),
    ("overwrites", "OVERWRITES"),
    ("cpu_us", "CPU US"),
    ("p50_us", "P50 US"),
    ("p99_us", "P99 US"),
    ("longest_ms", "LONGEST MS"),
    ("no_space", "ENOSPC"),
];
const DEVICES: [(&str, &str); 13] = [
    ("curve", "CURVE"),
    ("fill", "FILL"),
    ("amplification", "AMPLIFICATION"),
    ("write_bytes", "WRITE"),
    ("seeks_per_1000", "SEEKS/1000"),
    ("modelled_mb_s", "MODEL MB/S"),
    ("free", "FREE"),
    ("deferred", "DEFERRED"),
    ("txgs", "TXGS"),
    ("txg_bytes", "TXG"),
    ("gangs", "GANGS"),
    ("fragmentation_before", "FRAG BEFORE"),
    ("fragmentation_after", "FRAG AFTER"),
];
const SAMPLES: [(&str, &str); 5] = [
    ("curve", "CURVE"),
    ("fill", "FILL"),
    ("seconds", "SECONDS"),
    ("mb_s", "MB/S"),
    ("modelled_seconds", "MODEL S"),
];
const METASLABS: [(&str, &str); 7] = [
    ("curve", "CURVE"),
    ("fill", "FILL"),
    ("state", "STATE"),
    ("vdev", "VDEV"),
    ("metaslab", "METASLAB"),
    ("used", "USED"),
    ("fragmentation", "FRAGMENTATION"),
];
/// Points of a line in a figure; more samples are averaged.
const POINTS: usize = 400;
const RATE: &str = "MB/s (10^6 bytes of overwrites a second)";

/// The fragmentation metric of the free space, 0 to 1, as `zpool list` shows it; `None` if it is
/// unknown.
fn fragmentation(pool: &PoolMap) -> Option<f64> {
    pool.fragmentation.map(|percent| percent as f64 / 100.0)
}

/// MB that the modelled disk would write a second for the application; `None` if there was no
/// device write to observe.
fn modelled_rate(level: &FragLevel) -> Option<f64> {
    let trace = level.result.after.trace.since(&level.result.before.trace);
    (trace.busy > 0.0).then(|| level.result.bytes as f64 / 1e6 / trace.busy)
}

fn row_of_level(level: &FragLevel) -> Vec<Cell> {
    let result = &level.result;
    let us = |share| Cell::real(result.latency.quantile(share).map(|s| s * 1e6));
    let per_write = result.cpu.as_secs_f64() * 1e6 / result.writes as f64;
    vec![
        level.curve.as_str().into(),
        Cell::Ratio(level.fill as f64 / 100.0),
        Cell::Bytes(level.load.filled()),
        Cell::real(steady_rate(&result.samples)),
        if result.steady { "yes" } else { "no" }.into(),
        Cell::Real(result.bytes as f64 / level.load.filled() as f64),
        Cell::Count(result.writes),
        Cell::real(Some(per_write)),
        us(0.5),
        us(0.99),
        Cell::Real(result.latency.longest() * 1e3),
        Cell::Count(result.no_space),
    ]
}

fn row_of_devices(level: &FragLevel) -> Vec<Cell> {
    let result = &level.result;
    let trace = result.after.trace.since(&result.before.trace);
    let device = result.before.device.zip(result.after.device);
    let (writes, bytes) = device.map_or((0, 0), |(b, a)| (a.0 - b.0, a.1 - b.1));
    let ratio = |a: u64, b: u64| Cell::real((b > 0 && a > 0).then(|| a as f64 / b as f64));
    let mut row = vec![
        level.curve.as_str().into(),
        Cell::Ratio(level.fill as f64 / 100.0),
        ratio(bytes, result.bytes),
        bytes.checked_div(writes).map_or(Cell::Nothing, Cell::Bytes),
        Cell::real((trace.ops > 0).then(|| trace.seeks as f64 * 1e3 / trace.ops as f64)),
        Cell::real(modelled_rate(level)),
    ];
    match &level.pool {
        Some(pool) => row.extend([
            Cell::Bytes(pool.space.free),
            Cell::Bytes(pool.space.deferred),
            Cell::Count(pool.txgs),
            Cell::Bytes(result.bytes / pool.txgs.max(1)),
            Cell::Ratio(pool.gangs),
            Cell::ratio(fragmentation(&pool.before)),
            Cell::ratio(fragmentation(&pool.after)),
        ]),
        None => row.extend(std::iter::repeat_n(Cell::Nothing, 7)),
    }
    row
}

fn samples(levels: &[FragLevel]) -> ReportTable {
    let mut table = ReportTable { shown: true, ..ReportTable::new("samples", &SAMPLES) };
    for level in levels {
        table.rows.extend(level.result.samples.iter().map(|sample| {
            vec![
                level.curve.as_str().into(),
                Cell::Ratio(level.fill as f64 / 100.0),
                Cell::Real(sample.at),
                Cell::Real(sample.rate()),
                Cell::Real(sample.modelled),
            ]
        }));
    }
    table
}

fn metaslabs(levels: &[FragLevel]) -> ReportTable {
    let mut table = ReportTable { shown: true, ..ReportTable::new("metaslabs", &METASLABS) };
    for (level, pool) in levels.iter().filter_map(|l| Some((l, l.pool.as_ref()?))) {
        for (state, map) in [("before", &pool.before), ("after", &pool.after)] {
            table.rows.extend(metaslabs_of(map).map(|(vdev, metaslab)| {
                vec![
                    level.curve.as_str().into(),
                    Cell::Ratio(level.fill as f64 / 100.0),
                    state.into(),
                    Cell::Count(vdev),
                    Cell::Count(metaslab.id),
                    Cell::ratio(lab::ratio(metaslab.allocated, metaslab.size)),
                    Cell::ratio(metaslab.fragmentation.map(|f| f as f64 / 100.0)),
                ]
            }));
        }
    }
    table
}

/// The names of the curves, in order.
fn names(levels: &[FragLevel]) -> Vec<&str> {
    let mut names: Vec<&str> = levels.iter().map(|l| l.curve.as_str()).collect();
    names.dedup();
    names
}

/// Figures 1 and 2: the metaslabs of the first curve of pools, a row for each level.
fn maps(levels: &[FragLevel]) -> Vec<MapFigure> {
    let Some(first) = levels.iter().find(|l| l.pool.is_some()) else { return Vec::new() };
    let of_curve = || levels.iter().filter(|l| l.curve == first.curve);
    let map = |title: &str, after: bool| MapFigure {
        title: title.to_owned(),
        states: of_curve()
            .filter_map(|level| {
                let pool = level.pool.as_ref()?;
                let map = if after { &pool.after } else { &pool.before };
                Some(PoolMap { name: format!("{}%", level.fill), ..map.clone() })
            })
            .collect(),
    };
    vec![
        map("fig. 1: metaslabs of the filled pools, before overwrites", false),
        map("fig. 2: metaslabs after the overwrites", true),
    ]
}

/// Figure 3 of one curve: throughput over time, a line for each level.
fn over_time(levels: &[FragLevel], curve: &str) -> Chart {
    let of_curve: Vec<&FragLevel> = levels.iter().filter(|l| l.curve == curve).collect();
    let longest = of_curve.iter().map(|l| l.result.samples.len()).max().unwrap_or(0);
    let each = longest.div_ceil(POINTS).max(1);
    let interval = of_curve.first().map_or(1.0, |l| l.load.interval.as_secs_f64());
    let points = longest.div_ceil(each);
    let line = |level: &&FragLevel| {
        let chunks = level.result.samples.chunks(each);
        let mut values: Vec<f64> = chunks.map(|c| steady_rate(c).unwrap_or(f64::NAN)).collect();
        values.resize(points, f64::NAN);
        Series { name: format!("{}%", level.fill), values }
    };
    let decimals = if interval < 1.0 { 2 } else { 0 };
    let label = |n: usize| format!("{:.decimals$}", (n * each + 1) as f64 * interval);
    Chart {
        title: format!("fig. 3, {curve}: throughput of random overwrites over time"),
        shape: Shape::Lines,
        labels: (0..points).map(label).collect(),
        series: of_curve.iter().map(line).collect(),
        axes: Axes { across: "time since the first overwrite, s", up: RATE },
    }
}

/// A figure over the levels, a line for each curve that has a value.
fn over_fill(
    levels: &[FragLevel],
    title: &str,
    up: &'static str,
    value: impl Fn(&FragLevel) -> Option<f64>,
) -> Chart {
    let mut fills: Vec<u64> = levels.iter().map(|l| l.fill).collect();
    fills.sort_unstable();
    fills.dedup();
    let line = |name: &str| {
        let of = |fill: &u64| levels.iter().find(|l| l.curve == name && l.fill == *fill);
        let values = fills.iter().map(|f| of(f).and_then(&value).unwrap_or(f64::NAN)).collect();
        Series { name: name.to_owned(), values }
    };
    let mut series: Vec<Series> = names(levels).into_iter().map(line).collect();
    series.retain(|s| s.values.iter().any(|v| v.is_finite()));
    Chart {
        title: title.to_owned(),
        shape: Shape::Lines,
        labels: fills.iter().map(|f| format!("{f}%")).collect(),
        series,
        axes: Axes { across: "filled share of the file system", up },
    }
}

/// Adds the tables and figures of all levels.
pub(super) fn fill_in(report: &mut Report, levels: &[FragLevel]) {
    let mut table = ReportTable::new("levels", &LEVELS);
    table.rows = levels.iter().map(row_of_level).collect();
    let mut devices = ReportTable::new("devices", &DEVICES);
    devices.rows = levels.iter().map(row_of_devices).collect();
    report.tables.extend([table, devices]);
    report.tables.extend(frag_defrag::tables(levels));
    report.tables.extend([samples(levels), metaslabs(levels)]);
    report.maps = maps(levels);
    report.charts.extend(names(levels).into_iter().map(|curve| over_time(levels, curve)));
    let steady = |level: &FragLevel| steady_rate(&level.result.samples);
    let title = "fig. 4: steady state (mean of the last 50 samples) by fill";
    report.charts.push(over_fill(levels, title, RATE, steady));
    let title = "fig. 5: the same writes on a modelled disk with arms, by fill";
    let modelled = over_fill(levels, title, RATE, modelled_rate);
    if !modelled.series.is_empty() {
        report.charts.push(modelled);
        report.notes.push(
            "modelled disk: 150 MB/s, seeks of 2 to 15 ms by the root of the distance, 4.2 ms \
             half a rotation; writes in the order of submission"
                .to_owned(),
        );
    }
}

/// A file name from a figure's title: `fig3-overwrite.svg`.
fn file_name(title: &str) -> String {
    let head = title.split(':').next().unwrap_or(title).replace(". ", "").replace(", ", "-");
    let safe = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    format!("{}.svg", head.chars().map(safe).collect::<String>())
}

/// Writes each figure to a file of its own.
///
/// # Errors
/// The directory or a file cannot be written.
pub(super) fn write_figures(dir: &Path, report: &Report) -> Result<()> {
    let failed = |e| Error::io("cannot make the directory", e).on_path(dir.to_string_lossy());
    std::fs::create_dir_all(dir).map_err(failed)?;
    let write = |title: &str, text: &str| {
        frame::write_file(&dir.join(file_name(title)).to_string_lossy(), text)
    };
    for map in &report.maps {
        write(&map.title, &svg::document(std::slice::from_ref(map), &[]))?;
    }
    for chart in &report.charts {
        write(&chart.title, &svg::document(&[], std::slice::from_ref(chart)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_figures() {
        assert_eq!(file_name("fig. 1: metaslabs"), "fig1.svg");
        assert_eq!(file_name("fig. 3, /mnt/x: rate"), "fig3--mnt-x.svg");
    }

    #[test]
    fn fragmentation_is_that_of_zpool_list() {
        let pool = crate::frag_map::tests::pool("50%", &[25, 50]);
        assert_eq!(fragmentation(&pool), Some(0.01));
        assert_eq!(fragmentation(&PoolMap { fragmentation: None, ..pool }), None);
    }
}
