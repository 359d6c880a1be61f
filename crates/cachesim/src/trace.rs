//! Traces: requests as dense keys, parsed from the published formats.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use base::{Error, Result};

/// Requests that one trace may have (1 GiB of keys).
pub(crate) const REQUESTS_MAX: usize = 1 << 28;
/// Longest line of a text format.
const LINE_MAX: u64 = 4096;
/// Maximum run of blocks in one record.
const RUN_MAX: u64 = 1 << 20;
/// Maximum memory for decompressing a file, KiB.
const WINDOW_MAX_KIB: u32 = 256 << 10;
/// Unit of the block formats, bytes.
const BLOCK: u64 = 4096;
const SECTOR: u64 = 512;

/// The format of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// ARC's: `start count ignored request` a line, `count` references of 512 bytes.
    Arc,
    /// LIRS's: a key a line; `*` lines are skipped.
    Lirs,
    /// Big-endian 32-bit keys.
    Keys,
    /// VSCSI version 1 records; references of 4 KiB.
    Vscsi,
    /// MQSim's text: `time device sector sectors type`; references of 4 KiB.
    Mqsim,
}

impl Format {
    /// The format with this name on the command line.
    pub fn named(name: &str) -> Option<Format> {
        Some(match name {
            "arc" => Format::Arc,
            "lirs" => Format::Lirs,
            "keys" => Format::Keys,
            "vscsi" => Format::Vscsi,
            "mqsim" => Format::Mqsim,
            _ => return None,
        })
    }

    /// The format by a file's name without its compression suffix: `.lis`, `.vscsi`,
    /// `wNNN.trace` of CloudPhysics, `*-small.trace` of MQSim, else LIRS's.
    pub fn of(path: &Path) -> Format {
        let name = stem(path);
        let numbered = |n: &str| {
            n.strip_prefix('w')
                .is_some_and(|d| !d.is_empty() && d.bytes().all(|b| b.is_ascii_digit()))
        };
        match name.rsplit_once('.') {
            Some((_, "lis")) => Format::Arc,
            Some((_, "vscsi")) => Format::Vscsi,
            Some((n, "trace")) if numbered(n) => Format::Keys,
            Some((n, "trace")) if n.ends_with("-small") => Format::Mqsim,
            _ => Format::Lirs,
        }
    }
}

/// The file's name without directory and compression.
pub(crate) fn stem(path: &Path) -> String {
    let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let known = |s: &&str| name.ends_with(*s);
    let cut = [".zst", ".gz", ".xz"].iter().find(|s| known(s)).map_or(0, |s| s.len());
    name[..name.len() - cut].to_owned()
}

/// A trace in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// The requests, as keys from 0 without gaps.
    pub requests: Vec<u32>,
    /// The number of different keys.
    pub keys: usize,
}

/// Collects requests.
#[derive(Default)]
struct TraceBuilder {
    trace: Trace,
    index: HashMap<u64, u32>,
}

impl TraceBuilder {
    fn add(&mut self, key: u64) -> Result<()> {
        if self.trace.requests.len() >= REQUESTS_MAX {
            return Err(Error::invalid(format!("more than {REQUESTS_MAX} requests")));
        }
        let next = self.index.len() as u32;
        self.trace.requests.push(*self.index.entry(key).or_insert(next));
        Ok(())
    }

    fn add_run(&mut self, start: u64, count: u64) -> Result<()> {
        if count > RUN_MAX {
            return Err(Error::invalid(format!("a record of {count} blocks")));
        }
        (0..count).try_for_each(|n| self.add(start.wrapping_add(n)))
    }

    /// A range of the disk in units of [`BLOCK`].
    fn add_range(&mut self, sector: u64, bytes: u64) -> Result<()> {
        let start = sector.checked_mul(SECTOR);
        let end = start.and_then(|s| s.checked_add(bytes.max(1) - 1));
        let (Some(start), Some(end)) = (start, end) else {
            return Err(Error::invalid("a range beyond 64 bits"));
        };
        self.add_run(start / BLOCK, end / BLOCK - start / BLOCK + 1)
    }
}

impl Trace {
    /// Reads a file, decompressing `.zst`, `.gz` and `.xz`.
    ///
    /// # Errors
    /// When the file cannot be read or decompressed, is not in the format, or has
    /// too many requests.
    pub fn read(path: &Path, format: Option<Format>) -> Result<Trace> {
        let place = |e: Error| {
            let cause = std::error::Error::source(&e).map(|s| format!(": {s}")).unwrap_or_default();
            Error::invalid(format!("{}: {}{cause}", path.display(), e.message()))
        };
        let file = File::open(path).map_err(|e| place(Error::io("cannot open", e)))?;
        let file = BufReader::with_capacity(1 << 16, file);
        let bad = |e| place(Error::io("cannot decompress", e));
        let input: Box<dyn Read> = match path.extension().and_then(|e| e.to_str()) {
            Some("zst") => {
                let mut decoder = zstd::stream::read::Decoder::with_buffer(file).map_err(bad)?;
                decoder.window_log_max(28).map_err(bad)?;
                Box::new(decoder)
            }
            Some("gz") => Box::new(flate2::bufread::MultiGzDecoder::new(file)),
            Some("xz") => Box::new(lzma_rust2::XzReader::new_mem_limit(file, true, WINDOW_MAX_KIB)),
            _ => Box::new(file),
        };
        let input = BufReader::with_capacity(1 << 16, input);
        Trace::parse(input, format.unwrap_or_else(|| Format::of(path))).map_err(place)
    }

    /// Reads requests in a format.
    ///
    /// # Errors
    /// As [`Trace::read`].
    pub fn parse(mut input: impl BufRead, format: Format) -> Result<Trace> {
        let mut out = TraceBuilder::default();
        match format {
            Format::Arc => lines(&mut input, |line| {
                let [start, count, ..] = numbers::<2>(line)?;
                out.add_run(start, count)
            })?,
            Format::Lirs => lines(&mut input, |line| {
                if line.starts_with('*') {
                    return Ok(());
                }
                let [key] = numbers::<1>(line)?;
                out.add(key)
            })?,
            Format::Mqsim => lines(&mut input, |line| {
                let [_time, _device, sector, sectors, _kind] = numbers::<5>(line)?;
                out.add_range(sector, sectors.saturating_mul(SECTOR))
            })?,
            Format::Keys => records::<4>(&mut input, |r| out.add(u32::from_be_bytes(*r).into()))?,
            Format::Vscsi => records::<32>(&mut input, |r| {
                let bytes = u32::from_le_bytes([r[4], r[5], r[6], r[7]]);
                let lbn = [r[16], r[17], r[18], r[19], r[20], r[21], r[22], r[23]];
                out.add_range(u64::from_le_bytes(lbn), bytes.into())
            })?,
        }
        out.trace.keys = out.index.len();
        Ok(out.trace)
    }
}

/// Calls `each` for every line that is not empty.
fn lines(input: &mut impl BufRead, mut each: impl FnMut(&str) -> Result<()>) -> Result<()> {
    let mut buf = Vec::new();
    for number in 1u64.. {
        buf.clear();
        let read = input.take(LINE_MAX).read_until(b'\n', &mut buf);
        if read.map_err(|e| Error::io("cannot read", e))? == 0 {
            break;
        }
        if buf.len() as u64 == LINE_MAX {
            return Err(Error::invalid(format!("line {number} is longer than {LINE_MAX} bytes")));
        }
        let text = std::str::from_utf8(&buf).unwrap_or("?").trim();
        if !text.is_empty() {
            each(text).map_err(|e| Error::invalid(format!("line {number}: {}", e.message())))?;
        }
    }
    Ok(())
}

/// The first `N` words of a line as numbers.
fn numbers<const N: usize>(line: &str) -> Result<[u64; N]> {
    let mut words = line.split_ascii_whitespace();
    let mut out = [0; N];
    for slot in &mut out {
        let word = words.next().ok_or_else(|| Error::invalid("too few numbers"))?;
        *slot = word.parse().map_err(|_| Error::invalid(format!("not a number: {word:.40}")))?;
    }
    Ok(out)
}

/// Calls `each` for every record of `N` bytes.
fn records<const N: usize>(
    input: &mut impl BufRead,
    mut each: impl FnMut(&[u8; N]) -> Result<()>,
) -> Result<()> {
    let mut record = [0; N];
    loop {
        let mut have = 0;
        while have < N {
            match input.read(&mut record[have..]) {
                Ok(0) => break,
                Ok(n) => have += n,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(Error::io("cannot read", e)),
            }
        }
        match have {
            0 => return Ok(()),
            n if n < N => {
                return Err(Error::invalid(format!("the last record has {n} of {N} bytes")));
            }
            _ => each(&record)?,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn requests(bytes: &[u8], format: Format) -> Result<Vec<u32>> {
        Trace::parse(bytes, format).map(|t| t.requests)
    }

    #[test]
    fn every_format_is_read() {
        assert_eq!(requests(b"7 3 0 1\n8 1 0 2\n", Format::Arc).unwrap(), [0, 1, 2, 1]);
        assert_eq!(requests(b"5\n*\n6\n\n5", Format::Lirs).unwrap(), [0, 1, 0]);
        assert_eq!(requests(&[0, 0, 0, 9, 0, 0, 0, 9], Format::Keys).unwrap(), [0, 0]);
        // 16 sectors from sector 8 on: blocks 1 and 2; then block 1 again.
        let mqsim = b"100 0 8 16 1\n200 0 8 8 0\n";
        assert_eq!(requests(mqsim, Format::Mqsim).unwrap(), [0, 1, 0]);
        let mut record = [0u8; 32];
        record[4..8].copy_from_slice(&8192u32.to_le_bytes());
        record[16..24].copy_from_slice(&8u64.to_le_bytes());
        assert_eq!(requests(&record, Format::Vscsi).unwrap(), [0, 1]);
    }

    #[test]
    fn formats_are_told_by_names() {
        for (name, format) in [
            ("a/OLTP.lis.zst", Format::Arc),
            ("loop.trace.gz", Format::Lirs),
            ("w106.trace.xz", Format::Keys),
            ("x.vscsi.xz", Format::Vscsi),
            ("tpcc-small.trace.xz", Format::Mqsim),
            ("w.trace", Format::Lirs),
        ] {
            assert_eq!(Format::of(Path::new(name)), format, "{name}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        let long = vec![b'1'; 5000];
        for (bytes, format) in [
            (&b"1\nx\n"[..], Format::Lirs),
            (b"1", Format::Arc),
            (b"1 99999999999 0 0", Format::Arc),
            (b"0 0 18446744073709551615 9 1", Format::Mqsim),
            (&[1, 2, 3], Format::Keys),
            (&long, Format::Lirs),
        ] {
            assert!(Trace::parse(bytes, format).is_err(), "{format:?}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), which in 0usize..5) {
            let format = [Format::Arc, Format::Lirs, Format::Keys, Format::Vscsi, Format::Mqsim][which];
            if let Ok(trace) = Trace::parse(&bytes[..], format) {
                prop_assert!(trace.requests.iter().all(|&k| (k as usize) < trace.keys));
            }
        }
    }
}
