//! Measurements of all codecs, as data; `cenote bench codecs` prints them.
//!
//! # Theory
//! Each row is the best of several timed runs over buffers that stay in cache, as in
//! `raidz_test -B`. It measures the bandwidth of the code, not of the memory behind the
//! caches (choose a large block for that). Rates count the bytes of user data, in units
//! of 2^20 bytes; for RAID-Z, parity is not counted.

use std::hint::black_box;
use std::time::Duration;

use crate::checksum::{self, Checksum, SaltTemplate, fletcher};
use crate::compress::{self, Compression, ZstdLevel};
use crate::raidz::{self, Column, Raidz};

/// The operation that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BenchKind {
    /// Copying memory, for comparison.
    Memcpy,
    /// A checksum.
    Checksum,
    /// Compressing.
    Compress,
    /// Decompressing.
    Decompress,
    /// Generating parity.
    RaidzGenerate,
    /// Reconstructing as many data columns as there is parity.
    RaidzReconstruct,
}

/// One measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The operation.
    pub kind: BenchKind,
    /// The algorithm: "fletcher4", "lz4", "raidz2", ...
    pub name: String,
    /// The implementation: "scalar", "avx2", ...; empty if there is only one.
    pub implementation: &'static str,
    /// Whether this implementation is the one in use.
    pub selected: bool,
    /// Bytes of user data in one call.
    pub block_size: usize,
    /// Rate in 2^20 bytes of user data per second.
    pub mb_per_second: f64,
    /// Compressed bytes per plain byte, for compressors.
    pub ratio: Option<f64>,
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct BenchOptions {
    /// Bytes of user data per call.
    pub block_sizes: Vec<usize>,
    /// Time for one row.
    pub time_per_row: Duration,
    /// Data columns for RAID-Z; `raidz_test` uses 8.
    pub raidz_columns: usize,
    /// Which kinds; empty for all.
    pub kinds: Vec<BenchKind>,
}

impl Default for BenchOptions {
    fn default() -> BenchOptions {
        BenchOptions {
            block_sizes: vec![4 << 10, 128 << 10, 1 << 20],
            time_per_row: Duration::from_millis(60),
            raidz_columns: 8,
            kinds: Vec::new(),
        }
    }
}

/// Runs all requested measurements and passes each row to `each` when it is finished.
pub fn run(options: &BenchOptions, mut each: impl FnMut(Row)) {
    for &size in &options.block_sizes {
        let mut bench = Bench { options, size: size.max(512), each: &mut each };
        bench.memcpy();
        bench.checksums();
        bench.compressors();
        bench.raidz();
    }
}

/// All rows for `options`.
pub fn rows(options: &BenchOptions) -> Vec<Row> {
    let mut all = Vec::new();
    run(options, |row| all.push(row));
    all
}

struct Bench<'a> {
    options: &'a BenchOptions,
    size: usize,
    each: &'a mut dyn FnMut(Row),
}

impl Bench<'_> {
    fn wants(&self, kind: BenchKind) -> bool {
        self.options.kinds.is_empty() || self.options.kinds.contains(&kind)
    }

    /// Times `call` in batches and reports the fastest.
    fn time(&mut self, row: Row, mut call: impl FnMut()) {
        if !self.wants(row.kind) {
            return;
        }
        let limit = self.options.time_per_row;
        // Batches of an eighth of the time; at least one call each.
        let mut batch = 1u32;
        let mut best = Duration::MAX;
        let start = base::rt::now();
        loop {
            let from = base::rt::now();
            (0..batch).for_each(|_| call());
            let took = from.elapsed();
            best = best.min(took / batch);
            if start.elapsed() >= limit {
                break;
            }
            if took < limit / 16 {
                batch = batch.saturating_mul(2);
            }
        }
        let seconds = best.as_secs_f64().max(1e-9);
        let mb_per_second = self.size as f64 / seconds / f64::from(1 << 20);
        (self.each)(Row { mb_per_second, ..row });
    }

    fn row(&self, kind: BenchKind, name: impl Into<String>) -> Row {
        Row {
            kind,
            name: name.into(),
            implementation: "",
            selected: true,
            block_size: self.size,
            mb_per_second: 0.0,
            ratio: None,
        }
    }

    fn memcpy(&mut self) {
        let from = sample(self.size);
        let mut to = vec![0u8; self.size];
        self.time(self.row(BenchKind::Memcpy, "memcpy"), || {
            black_box(&mut to[..]).copy_from_slice(black_box(&from));
        });
    }

    fn checksums(&mut self) {
        if !self.wants(BenchKind::Checksum) {
            return;
        }
        let data = sample(self.size);
        let salt = SaltTemplate::new(&[0x5a; 32]);
        for imp in fletcher::IMPLEMENTATIONS.iter().filter(|i| (i.available)()) {
            for swapped in [false, true] {
                let order = if swapped { "-byteswap" } else { "" };
                let row = |b: &Self, n: u8, best: &'static fletcher::Fletcher| Row {
                    implementation: imp.name,
                    selected: std::ptr::eq(*imp, best),
                    ..b.row(BenchKind::Checksum, format!("fletcher{n}{order}"))
                };
                self.time(row(self, 2, crate::cpu::fletcher2()), || {
                    black_box(imp.fletcher2(black_box(&data), swapped));
                });
                self.time(row(self, 4, crate::cpu::fletcher4()), || {
                    black_box(imp.fletcher4(black_box(&data), swapped));
                });
            }
        }
        for alg in
            [Checksum::Sha256, Checksum::Sha512, Checksum::Skein, Checksum::Edonr, Checksum::Blake3]
        {
            self.time(self.row(BenchKind::Checksum, alg.name()), || {
                black_box(checksum::compute(alg, black_box(&data), &salt, false));
            });
        }
    }

    fn compressors(&mut self) {
        if !self.wants(BenchKind::Compress) && !self.wants(BenchKind::Decompress) {
            return;
        }
        let data = sample(self.size);
        let mut packed = vec![0u8; self.size * 2 + 1024];
        let mut plain = vec![0u8; self.size];
        let level = |code| ZstdLevel::from_code(code).unwrap_or(ZstdLevel::DEFAULT);
        for alg in [
            Compression::Lzjb,
            Compression::Zle,
            Compression::Lz4,
            Compression::Gzip(1),
            Compression::Gzip(6),
            Compression::Gzip(9),
            Compression::Zstd(level(103)),
            Compression::Zstd(level(1)),
            Compression::Zstd(level(3)),
            Compression::Zstd(level(9)),
        ] {
            let name = match alg {
                Compression::Gzip(n) => format!("gzip-{n}"),
                Compression::Zstd(l) if l.level() > 0 => format!("zstd-{}", l.level()),
                Compression::Zstd(l) => format!("zstd-fast-{}", -l.level()),
                other => other.name(),
            };
            // The destination is large enough for every algorithm.
            let Some(len) = compress::compress(alg, &data, &mut packed) else { continue };
            let ratio = Some(len as f64 / self.size as f64);
            let row = Row { ratio, ..self.row(BenchKind::Compress, &name) };
            self.time(row, || {
                black_box(compress::compress(alg, black_box(&data), &mut packed));
            });
            let Some(len) = compress::compress(alg, &data, &mut packed) else { continue };
            let row = Row { ratio, ..self.row(BenchKind::Decompress, &name) };
            self.time(row, || {
                // The stream was just compressed; an error would appear as a wrong
                // rate.
                let _ = black_box(compress::decompress(alg.id(), &packed[..len], &mut plain));
            });
        }
    }

    fn raidz(&mut self) {
        let columns = self.options.raidz_columns.clamp(1, raidz::DATA_COLUMNS_MAX);
        let column = self.size.div_ceil(columns);
        let mut data = sample(column * columns);
        let mut parity = vec![0u8; column * 3];
        for rows in 1..=3 {
            for imp in raidz::IMPLEMENTATIONS.iter().filter(|i| (i.available)()) {
                let row = |b: &Self, kind| Row {
                    implementation: imp.name,
                    selected: std::ptr::eq(*imp, crate::cpu::raidz(rows)),
                    ..b.row(kind, format!("raidz{rows}"))
                };
                if self.wants(BenchKind::RaidzGenerate) {
                    let views: Vec<&[u8]> = data.chunks(column).collect();
                    let mut out: Vec<&mut [u8]> = parity.chunks_mut(column).take(rows).collect();
                    self.time(row(self, BenchKind::RaidzGenerate), || {
                        let _ = raidz::generate_with(imp, black_box(&mut out), black_box(&views));
                    });
                }
                if self.wants(BenchKind::RaidzReconstruct) && rows <= columns {
                    let row = row(self, BenchKind::RaidzReconstruct);
                    self.time(row, || reconstruct(imp, rows, column, &mut data, &parity));
                }
            }
        }
    }
}

/// Recomputes the first `rows` data columns.
fn reconstruct(imp: &Raidz, rows: usize, column: usize, data: &mut [u8], parity: &[u8]) {
    let mut parity: Vec<Column<'_>> =
        parity.chunks(column).take(rows).map(Column::Present).collect();
    let mut data: Vec<Column<'_>> = data
        .chunks_mut(column)
        .enumerate()
        .map(|(i, c)| if i < rows { Column::Missing(c) } else { Column::Present(c) })
        .collect();
    let _ = raidz::reconstruct_with(imp, &mut parity, black_box(&mut data));
}

/// Data that compresses to about a half: words from a small vocabulary, ascending
/// numbers, runs of zeros and noise.
pub fn sample(len: usize) -> Vec<u8> {
    const WORDS: [&str; 12] = [
        "dataset",
        "snapshot ",
        "the ",
        "block ",
        "of ",
        "checksum=",
        "\n",
        "{\"id\": ",
        "pool",
        " and ",
        "mirror-0 ",
        "0x",
    ];
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state >> 11
    };
    let mut out = Vec::with_capacity(len + 64);
    while out.len() < len {
        let r = next();
        match r % 16 {
            0 => out.extend(std::iter::repeat_n(0, (r >> 4) as usize % 48)),
            1..=3 => out.extend_from_slice(&next().to_le_bytes()),
            4..=5 => out.extend_from_slice((r >> 4 & 0xffff).to_string().as_bytes()),
            _ => {
                let word = WORDS.get((r >> 4) as usize % WORDS.len()).copied().unwrap_or_default();
                out.extend_from_slice(word.as_bytes());
            }
        }
    }
    out.truncate(len);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_cover_everything() {
        let options = BenchOptions {
            block_sizes: vec![4096],
            time_per_row: Duration::from_micros(50),
            ..BenchOptions::default()
        };
        let rows = rows(&options);
        assert!(rows.iter().all(|r| r.mb_per_second > 0.0 && r.block_size == 4096));
        for kind in [
            BenchKind::Memcpy,
            BenchKind::Checksum,
            BenchKind::Compress,
            BenchKind::Decompress,
            BenchKind::RaidzGenerate,
            BenchKind::RaidzReconstruct,
        ] {
            assert!(rows.iter().any(|r| r.kind == kind), "{kind:?}");
        }
        for alg in ["fletcher2", "fletcher4", "sha256", "sha512", "skein", "edonr", "blake3"] {
            let selected = |r: &&Row| r.kind == BenchKind::Checksum && r.name == alg && r.selected;
            assert_eq!(rows.iter().filter(selected).count(), 1, "{alg}");
        }
    }

    #[test]
    fn sample_is_half_compressible() {
        let data = sample(128 << 10);
        let mut packed = vec![0; 256 << 10];
        let len = compress::compress(Compression::Gzip(6), &data, &mut packed).unwrap();
        assert!((20..80).contains(&(len * 100 / data.len())), "{len}");
    }
}
