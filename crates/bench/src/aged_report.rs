//! Tables and figures of the bench of aged files.

use super::aged::{AgedLayoutRow, AgedPass, AgedRead, AgedResults, STATES};
use super::chart::{Axes, Chart, Series, Shape};
use super::frame::{Cell, Report, ReportTable};

const PASSES: [(&str, &str); 14] = [
    ("work", "WORK"),
    ("place", "PLACE"),
    ("state", "STATE"),
    ("read", "READ"),
    ("entries", "ENTRIES"),
    ("bytes", "BYTES"),
    ("seconds", "SECONDS"),
    ("mb_s", "MB/S"),
    ("device_bytes", "DEVICE"),
    ("requests_per_mb", "REQ/MB"),
    ("request_bytes", "REQ SIZE"),
    ("seeks_per_mb", "SEEKS/MB"),
    ("dynamic_score", "DYNAMIC"),
    ("modelled_seconds", "MODEL S"),
];
const LAYOUTS: [(&str, &str); 7] = [
    ("work", "WORK"),
    ("place", "PLACE"),
    ("state", "STATE"),
    ("blocks", "BLOCKS"),
    ("files_steps", "STEPS"),
    ("files_score", "FILES SCORE"),
    ("tree_score", "TREE SCORE"),
];
/// Bytes of a MB.
const MB: f64 = 1e6;

/// `value` for each MB that the devices transferred; `None` without a transfer.
fn per_mb(value: u64, bytes: u64) -> Option<f64> {
    (bytes > 0).then(|| value as f64 / (bytes as f64 / MB))
}

fn row_of_pass(pass: &AgedPass) -> Vec<Cell> {
    let rate = (pass.read != AgedRead::Walk).then(|| pass.bytes as f64 / MB / pass.seconds);
    let device = pass.device;
    let size = device.and_then(|d| d.bytes.checked_div(d.reads));
    let trace = pass.trace;
    vec![
        pass.work.word().into(),
        pass.place.as_str().into(),
        pass.state.into(),
        pass.read.word().into(),
        Cell::Count(pass.entries),
        Cell::Bytes(pass.bytes),
        Cell::Real(pass.seconds),
        Cell::real(rate),
        device.map_or(Cell::Nothing, |d| Cell::Bytes(d.bytes)),
        Cell::real(device.and_then(|d| per_mb(d.reads, d.bytes))),
        size.map_or(Cell::Nothing, Cell::Bytes),
        Cell::real(trace.and_then(|t| per_mb(t.seeks, t.bytes))),
        Cell::ratio(trace.and_then(|t| t.sequential_share())),
        Cell::real(trace.map(|t| t.busy)),
    ]
}

fn row_of_layout(row: &AgedLayoutRow) -> Vec<Cell> {
    let (files, tree) = (row.layout.files, row.layout.tree);
    vec![
        row.work.word().into(),
        row.place.as_str().into(),
        row.state.into(),
        Cell::Count(tree.blocks),
        Cell::Count(files.steps),
        Cell::ratio(files.share()),
        Cell::ratio(tree.share()),
    ]
}

/// Bars over the states, a series for each work, place and read that has a value.
fn chart(
    results: &AgedResults,
    title: &str,
    up: &'static str,
    value: impl Fn(&AgedPass) -> Option<f64>,
) -> Chart {
    let name =
        |pass: &AgedPass| format!("{} {} {}", pass.work.word(), pass.place, pass.read.word());
    let mut names: Vec<String> = Vec::new();
    for pass in &results.passes {
        let name = name(pass);
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let series = names.into_iter().map(|wanted| {
        let of = |state: &&str| {
            let pass = results.passes.iter().find(|p| name(p) == wanted && p.state == *state);
            pass.and_then(&value).unwrap_or(f64::NAN)
        };
        Series { values: STATES.iter().map(of).collect(), name: wanted }
    });
    Chart {
        title: title.to_owned(),
        shape: Shape::Bars,
        labels: STATES.iter().map(|s| (*s).to_owned()).collect(),
        series: series.filter(|s| s.values.iter().any(|v| v.is_finite())).collect(),
        axes: Axes { across: "state of the tree", up },
    }
}

/// Adds the tables and figures.
pub(super) fn fill_in(report: &mut Report, results: &AgedResults) {
    let mut passes = ReportTable::new("passes", &PASSES);
    passes.rows = results.passes.iter().map(row_of_pass).collect();
    let mut layouts = ReportTable::new("layouts", &LAYOUTS);
    layouts.rows = results.layouts.iter().map(row_of_layout).collect();
    report.tables.extend([passes, layouts]);
    let title = "fig. 1: time of cold reads, seconds";
    let charts = [
        chart(results, title, "s", |p| Some(p.seconds)),
        chart(results, "fig. 2: jumps of more than 1 MiB for each MB read", "jumps/MB", |p| {
            p.trace.and_then(|t| per_mb(t.seeks, t.bytes))
        }),
        chart(results, "fig. 3: the same reads on a modelled disk with arms, seconds", "s", |p| {
            p.trace.map(|t| t.busy)
        }),
        chart(results, "fig. 4: share of requests that begin where the last one ended", "", |p| {
            p.trace.and_then(|t| t.sequential_share())
        }),
    ];
    report.charts.extend(charts.into_iter().filter(|chart| !chart.series.is_empty()));
    if results.passes.iter().any(|p| p.trace.is_some()) {
        report.notes.push(
            "modelled disk: 150 MB/s, seeks of 2 to 15 ms by the root of the distance, 4.2 ms \
             half a rotation; reads in the order of submission"
                .to_owned(),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::super::aged::AgedWork;
    use super::super::lab::Disk;
    use super::*;

    fn pass(state: &'static str, seconds: f64) -> AgedPass {
        AgedPass {
            work: AgedWork::Overwrite,
            place: "pool".into(),
            state,
            read: AgedRead::Sequence,
            entries: 1,
            bytes: 3_000_000,
            seconds,
            device: Some(Disk { reads: 500, bytes: 2_000_000 }),
            trace: None,
        }
    }

    #[test]
    fn figures_by_state() {
        let passes = vec![pass("aged", 2.0), pass("fresh", 0.5)];
        let results = AgedResults { passes, layouts: Vec::new() };
        let mut report = Report::default();
        fill_in(&mut report, &results);
        let row = &report.tables[0].rows[0];
        assert_eq!(row.len(), PASSES.len());
        let wanted =
            [Cell::Real(1.5), Cell::Bytes(2_000_000), Cell::Real(250.0), Cell::Bytes(4000)];
        assert_eq!(row[7..11], wanted);
        // Without a trace there is only the figure of times.
        assert_eq!(report.charts.len(), 1);
        let series = &report.charts[0].series;
        assert_eq!((series.len(), series[0].name.as_str()), (1, "overwrite pool sequence"));
        assert_eq!((series[0].values[0], series[0].values[2]), (2.0, 0.5));
        assert!(series[0].values[1].is_nan() && report.notes.is_empty());
    }
}
