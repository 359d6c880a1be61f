//! `fletcher_4_bench`, `chksum_bench` and `vdev_raidz_bench`: how fast each
//! implementation is on this machine. Measured when the file is first read.

use std::fmt::Write;
use std::sync::OnceLock;
use std::time::Duration;

use codec::bench::{BenchKind, BenchOptions, Row};
use kstat::{Kstat, KstatBody};

/// Time limit of each row.
const TIME_PER_ROW: Duration = Duration::from_millis(2);
/// Block sizes of `chksum_bench`, as in its heading.
const SIZES: [(&str, usize); 8] = [
    ("1k", 1 << 10),
    ("4k", 4 << 10),
    ("16k", 16 << 10),
    ("64k", 64 << 10),
    ("256k", 256 << 10),
    ("1m", 1 << 20),
    ("4m", 4 << 20),
    ("16m", 16 << 20),
];

fn measure(sizes: Vec<usize>, kinds: Vec<BenchKind>) -> Vec<Row> {
    let options = BenchOptions {
        block_sizes: sizes,
        time_per_row: TIME_PER_ROW,
        kinds,
        ..BenchOptions::default()
    };
    codec::bench::rows(&options)
}

fn raw(text: &str) -> Kstat {
    Kstat::new("misc", KstatBody::Raw(text.to_owned()))
}

/// Bytes a second.
fn rate(row: Option<&Row>) -> u64 {
    row.map_or(0, |r| (r.mb_per_second * f64::from(1 << 20)) as u64)
}

fn fletcher4_text(rows: &[Row]) -> String {
    let of = |name: &str| -> Vec<&Row> { rows.iter().filter(|r| r.name == name).collect() };
    let (native, swapped) = (of("fletcher4"), of("fletcher4-byteswap"));
    let mut out = format!("{:<17}{:<15}{:<15}\n", "implementation", "native", "byteswap");
    for row in &native {
        let twin = swapped.iter().find(|r| r.implementation == row.implementation);
        let (n, s) = (rate(Some(row)), rate(twin.copied()));
        let _ = writeln!(out, "{:<17}{n:<15}{s:<15}", row.implementation);
    }
    let best = |rows: &[&Row]| {
        let best = rows.iter().max_by(|a, b| a.mb_per_second.total_cmp(&b.mb_per_second));
        best.map_or("", |r| r.implementation)
    };
    let _ = writeln!(out, "{:<17}{:<15}{:<15}", "fastest", best(&native), best(&swapped));
    out
}

/// `fletcher_4_bench`: bytes a second of each implementation, in both byte orders.
pub(crate) fn fletcher4() -> Kstat {
    static TEXT: OnceLock<String> = OnceLock::new();
    raw(TEXT.get_or_init(|| fletcher4_text(&measure(vec![128 << 10], vec![BenchKind::Checksum]))))
}

fn chksum_text(rows: &[Row]) -> String {
    let mut out = format!("{:<23}", "implementation");
    for (size, _) in SIZES {
        let _ = write!(out, "{size:>8}");
    }
    out.push('\n');
    for name in ["edonr", "skein", "sha256", "sha512", "blake3"] {
        let _ = write!(out, "{name:<23}");
        for (_, size) in SIZES {
            let row = rows.iter().find(|r| r.name == name && r.block_size == size);
            let _ = write!(out, "{:>8}", row.map_or(0, |r| r.mb_per_second as u64));
        }
        out.push('\n');
    }
    out
}

/// `chksum_bench`: units of 2^20 bytes a second by block size.
pub(crate) fn chksum() -> Kstat {
    static TEXT: OnceLock<String> = OnceLock::new();
    let sizes = SIZES.iter().map(|s| s.1).collect();
    raw(TEXT.get_or_init(|| chksum_text(&measure(sizes, vec![BenchKind::Checksum]))))
}

const RAIDZ: [(&str, BenchKind, &str); 6] = [
    ("gen_p", BenchKind::RaidzGenerate, "raidz1"),
    ("gen_pq", BenchKind::RaidzGenerate, "raidz2"),
    ("gen_pqr", BenchKind::RaidzGenerate, "raidz3"),
    ("rec_p", BenchKind::RaidzReconstruct, "raidz1"),
    ("rec_pq", BenchKind::RaidzReconstruct, "raidz2"),
    ("rec_pqr", BenchKind::RaidzReconstruct, "raidz3"),
];

fn raidz_text(rows: &[Row]) -> String {
    let mut out = format!("{:<17}", "implementation");
    RAIDZ.iter().for_each(|(title, ..)| {
        let _ = write!(out, "{title:<16}");
    });
    out.push('\n');
    let mut names: Vec<&str> = Vec::new();
    rows.iter().filter(|r| r.name == "raidz1").for_each(|r| {
        if !names.contains(&r.implementation) {
            names.push(r.implementation);
        }
    });
    for name in names {
        let _ = write!(out, "{name:<17}");
        for (_, kind, level) in RAIDZ {
            let is = |r: &&Row| r.kind == kind && r.name == level && r.implementation == name;
            let _ = write!(out, "{:<16}", rate(rows.iter().find(is)));
        }
        out.push('\n');
    }
    out
}

/// `vdev_raidz_bench`: bytes a second of generating parity and of reconstructing as many
/// columns as there is parity. Cenote has one kernel for every combination of lost columns,
/// so OpenZFS's other columns are absent.
pub(crate) fn raidz() -> Kstat {
    static TEXT: OnceLock<String> = OnceLock::new();
    let kinds = vec![BenchKind::RaidzGenerate, BenchKind::RaidzReconstruct];
    raw(TEXT.get_or_init(|| raidz_text(&measure(vec![128 << 10], kinds))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(k: &Kstat) -> &str {
        match &k.body {
            KstatBody::Raw(text) => text,
            _ => "",
        }
    }

    #[test]
    fn every_rate_was_measured() {
        let k = fletcher4();
        let scalar = text(&k).lines().find(|l| l.starts_with("scalar")).unwrap();
        let rates: Vec<u64> =
            scalar.split_whitespace().skip(1).map(|n| n.parse().unwrap()).collect();
        assert!(rates.len() == 2 && rates.iter().all(|&r| r > 1 << 20), "{scalar}");
        assert!(text(&k).lines().last().unwrap().starts_with("fastest"));
        let k = raidz();
        let lines: Vec<&str> = text(&k).lines().collect();
        assert!(lines.len() >= 2, "{lines:?}");
        assert!(lines[1..].iter().all(|l| l.split_whitespace().count() == 7
            && l.split_whitespace().skip(1).all(|n| n.parse::<u64>().unwrap() > 0)));
    }
}
