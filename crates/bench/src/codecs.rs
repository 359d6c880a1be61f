//! Checksums, compressors and RAID-Z: every implementation that this processor supports.

use codec::bench::{BenchKind, BenchOptions, Row};

use super::chart::Shape;
use super::frame::{Cell, ReportTable};
use super::{Bench, Run, Stop};

pub(super) const BENCH: Bench = Bench {
    name: "codecs",
    about: "checksums, compressors and RAID-Z in memory, MiB/s",
    words: "[SIZE | memcpy | checksum | compress | decompress | generate | reconstruct]...",
    options: &[],
    run,
};

/// Largest block in the measurements.
const BLOCK_MAX: u64 = 1 << 30;
const KINDS: [(BenchKind, &str); 6] = [
    (BenchKind::Memcpy, "memcpy"),
    (BenchKind::Checksum, "checksum"),
    (BenchKind::Compress, "compress"),
    (BenchKind::Decompress, "decompress"),
    (BenchKind::RaidzGenerate, "generate"),
    (BenchKind::RaidzReconstruct, "reconstruct"),
];
const COLUMNS: [(&str, &str); 7] = [
    ("kind", "KIND"),
    ("algorithm", "ALGORITHM"),
    ("implementation", "IMPLEMENTATION"),
    ("selected", "SELECTED"),
    ("block", "BLOCK"),
    ("mib_per_second", "MiB/s"),
    ("compress_ratio", "RATIO"),
];

/// All kinds and the usual sizes, or those that are named.
fn run(run: &mut Run) -> Result<(), Stop> {
    let mut options = BenchOptions::default();
    let mut sizes = Vec::new();
    for word in &run.args.rest {
        match KINDS.iter().find(|k| k.1 == word) {
            Some(kind) => options.kinds.push(kind.0),
            None => {
                let size = cenote::props::parse_size(word).map_err(Stop::usage)?;
                sizes.push(usize::try_from(size.clamp(1, BLOCK_MAX)).unwrap_or(1 << 20));
            }
        }
    }
    if !sizes.is_empty() {
        options.block_sizes = sizes;
    }
    run.say("KIND         ALGORITHM          IMPLEMENTATION    BLOCK       MiB/s  RATIO\n");
    let mut rows = Vec::new();
    codec::bench::run(&options, |row| {
        if !super::tidy::interrupted() {
            run.say(&line(&row));
        }
        rows.push(row);
    });
    run.step("", 0, 0)?;
    let mut table = ReportTable { shown: true, ..ReportTable::new("rows", &COLUMNS) };
    table.rows.extend(rows.iter().map(cells));
    run.report.tables.push(table);
    picture(run, &rows);
    Ok(())
}

/// A chart of the implementations in use, for each block size.
fn picture(run: &mut Run, rows: &[Row]) {
    let mut sizes: Vec<usize> = rows.iter().map(|r| r.block_size).collect();
    sizes.sort_unstable();
    sizes.dedup();
    for size in sizes {
        let used: Vec<&Row> = rows.iter().filter(|r| r.block_size == size && r.selected).collect();
        let name = |r: &&Row| format!("{} {}", word(r.kind), r.name);
        let rates = used.iter().map(|r| r.mb_per_second).collect();
        let title = format!("MiB/s, {}, implementation in use", nice(size));
        let labels = used.iter().map(name).collect();
        run.report.chart(Shape::Bars, &title, labels, vec![("MiB/s".to_owned(), rates)]);
    }
}

fn nice(size: usize) -> String {
    cenote::props::nicenum(size as u64)
}

fn word(kind: BenchKind) -> &'static str {
    KINDS.iter().find(|k| k.0 == kind).map_or("", |k| k.1)
}

fn cells(row: &Row) -> Vec<Cell> {
    vec![
        word(row.kind).into(),
        row.name.as_str().into(),
        row.implementation.into(),
        Cell::Count(u64::from(row.selected)),
        Cell::Bytes(row.block_size as u64),
        Cell::Real(row.mb_per_second),
        Cell::real(row.ratio),
    ]
}

fn line(row: &Row) -> String {
    let mark = if row.selected { "*" } else { "" };
    let ratio = row.ratio.map_or_else(|| "-".to_owned(), |r| format!("{r:.2}"));
    format!(
        "{:<11}  {:<17}  {:<14}  {:>7}  {:>10.0}  {ratio:>5}\n",
        word(row.kind),
        row.name,
        format!("{}{mark}", row.implementation),
        nice(row.block_size),
        row.mb_per_second
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_line_up_with_the_heading() {
        let row = Row {
            kind: BenchKind::RaidzReconstruct,
            name: "raidz3".into(),
            implementation: "avx512",
            selected: true,
            block_size: 1 << 20,
            mb_per_second: 12_345.6,
            ratio: None,
        };
        assert_eq!(
            line(&row),
            "reconstruct  raidz3             avx512*              1M       12346      -\n"
        );
    }
}
