//! `zilstat`: the writes of intent logs, one line for each interval (chapter 09 §7.3).

use std::collections::BTreeMap;
use std::ffi::OsString;

use base::{Error, Result, rt};
use cenote::kstat::{Kstat, Value};
use commands::getopt::Bad;
use ui::{Exit, time};

use super::number;
use super::source::StatSource;

const USAGE: &str = "\
usage: zilstat [-hgdvas f] [-i interval] [-p pool[,...]] [-d dataset[,...]] [--path DIR]
	 -h : this text
	 -v : list the fields and what they mean
	 -a : all fields
	 -s : these fields, separated by commas
	 -g : all logs together
	 -i : seconds between lines; without it, one line of the sums since the start
	 -p : datasets of these pools
	 -d : these datasets
	 --path : a directory such as /proc/spl/kstat/zfs instead of the daemon
";

/// A field: its name, its width, its description, and the counters that it sums.
#[derive(Debug)]
struct ZilField {
    name: &'static str,
    width: usize,
    what: &'static str,
    bytes: bool,
    sum: &'static [&'static str],
    /// The field is a percentage of the sum of these.
    of: &'static [&'static str],
}

const fn field(
    name: &'static str,
    what: &'static str,
    bytes: bool,
    sum: &'static [&'static str],
) -> ZilField {
    ZilField { name, width: 5, what, bytes, sum, of: &[] }
}

const COPIED: &str = "zil_itx_copied_count";
const COPIED_BYTES: &str = "zil_itx_copied_bytes";
const FETCHED: &str = "zil_itx_needcopy_count";
const FETCHED_BYTES: &str = "zil_itx_needcopy_bytes";
const NORMAL_BYTES: &str = "zil_itx_metaslab_normal_bytes";
const NORMAL_WRITE: &str = "zil_itx_metaslab_normal_write";
const NORMAL_ALLOC: &str = "zil_itx_metaslab_normal_alloc";
const SLOG_BYTES: &str = "zil_itx_metaslab_slog_bytes";
const SLOG_WRITE: &str = "zil_itx_metaslab_slog_write";
const SLOG_ALLOC: &str = "zil_itx_metaslab_slog_alloc";

const FIELDS: &[ZilField] = &[
    ZilField { width: 8, ..field("time", "the time of day", false, &[]) },
    ZilField { width: 12, ..field("pool", "the pool", false, &[]) },
    ZilField { width: 12, ..field("ds", "the dataset", false, &[]) },
    ZilField { width: 8, ..field("obj", "the dataset's object, hexadecimal", false, &[]) },
    field("cc", "commits", false, &["zil_commit_count"]),
    field("cwc", "commits that wrote", false, &["zil_commit_writer_count"]),
    field("cec", "commits that could not be written", false, &["zil_commit_error_count"]),
    field("csc", "commits that waited for a group", false, &["zil_commit_stall_count"]),
    field("ic", "records", false, &["zil_itx_count"]),
    field("iic", "writes by their pointers", false, &["zil_itx_indirect_count"]),
    field("iib", "bytes of these", true, &["zil_itx_indirect_bytes"]),
    field("icc", "writes copied when written", false, &[COPIED]),
    field("icb", "bytes of these", true, &[COPIED_BYTES]),
    field("inc", "writes fetched at the commit", false, &[FETCHED]),
    field("inb", "bytes of these", true, &[FETCHED_BYTES]),
    field("idc", "writes with their data: icc + inc", false, &[COPIED, FETCHED]),
    field("idb", "bytes of these: icb + inb", true, &[COPIED_BYTES, FETCHED_BYTES]),
    field("imnc", "blocks on ordinary vdevs", false, &["zil_itx_metaslab_normal_count"]),
    field("imnb", "bytes of records in these", true, &[NORMAL_BYTES]),
    field("imnw", "bytes written of these", true, &[NORMAL_WRITE]),
    field("imna", "bytes allocated for these", true, &[NORMAL_ALLOC]),
    field("imsc", "blocks on log vdevs", false, &["zil_itx_metaslab_slog_count"]),
    field("imsb", "bytes of records in these", true, &[SLOG_BYTES]),
    field("imsw", "bytes written of these", true, &[SLOG_WRITE]),
    field("imsa", "bytes allocated for these", true, &[SLOG_ALLOC]),
    field(
        "imc",
        "blocks",
        false,
        &["zil_itx_metaslab_normal_count", "zil_itx_metaslab_slog_count"],
    ),
    field("imb", "bytes of records in blocks", true, &[NORMAL_BYTES, SLOG_BYTES]),
    field("imw", "bytes of blocks written", true, &[NORMAL_WRITE, SLOG_WRITE]),
    field("ima", "bytes of blocks allocated", true, &[NORMAL_ALLOC, SLOG_ALLOC]),
    ZilField {
        of: &[NORMAL_ALLOC, SLOG_ALLOC],
        ..field(
            "se%",
            "records, of what was allocated: imb/ima",
            false,
            &[NORMAL_BYTES, SLOG_BYTES],
        )
    },
    ZilField {
        of: &[NORMAL_WRITE, SLOG_WRITE],
        ..field("te%", "records, of what was written: imb/imw", false, &[NORMAL_BYTES, SLOG_BYTES])
    },
];

const DEFAULT: &str = "time,ds,cc,ic,idc,idb,iic,iib,imnc,imnw,imsc,imsw";

fn fields(list: &str, global: bool) -> Result<Vec<&'static ZilField>> {
    let mut out = Vec::new();
    for name in list.split(',').map(str::trim) {
        let found = FIELDS.iter().find(|f| f.name == name);
        let found = found.ok_or_else(|| {
            let name: String = name.chars().take(40).collect();
            Error::invalid(format!("invalid field '{name}': -v lists them"))
        })?;
        if !(global && matches!(name, "ds" | "pool" | "obj")) {
            out.push(found);
        }
    }
    Ok(out)
}

/// A log in the output.
struct LogRow {
    pool: String,
    name: String,
    object: String,
    counters: Kstat,
}

impl LogRow {
    /// From a dataset's kstat: `POOL/objset-0x…`.
    fn of(path: &str, counters: Kstat) -> Option<LogRow> {
        let (pool, file) = path.split_once('/')?;
        let object = file.strip_prefix("objset-0x")?.to_owned();
        let Some(Value::Str(name)) = counters.get("dataset_name") else { return None };
        Some(LogRow { pool: pool.to_owned(), name: name.clone(), object, counters })
    }

    fn cell(&self, f: &ZilField, before: Option<&Kstat>, seconds: f64, clock: &str) -> String {
        let width = f.width;
        let sum = |names: &[&str]| {
            let of = |k: &Kstat| names.iter().filter_map(|n| k.number(n)).sum::<u64>();
            of(&self.counters).saturating_sub(before.map_or(0, of)) as f64
        };
        match f.name {
            "time" => format!("{clock:>width$}"),
            "pool" => format!("{:>width$}", self.pool),
            "ds" => format!("{:>width$}", self.name),
            "obj" => format!("{:>width$}", self.object),
            _ if !f.of.is_empty() => {
                number::pretty(100.0 * sum(f.sum) / sum(f.of), width, 1000.0, true)
            }
            _ => {
                let scale = if f.bytes { 1024.0 } else { 1000.0 };
                number::pretty(sum(f.sum) / seconds, width, scale, seconds == 1.0)
            }
        }
    }
}

fn heading(fields: &[&ZilField]) -> String {
    let cells: Vec<String> =
        fields.iter().map(|f| format!("{:>w$}", f.name, w = f.width)).collect();
    cells.join("  ")
}

/// The logs to show.
struct LogFilter {
    global: bool,
    pools: Option<Vec<String>>,
    datasets: Option<Vec<String>>,
}

impl LogFilter {
    fn read(&self, source: &mut StatSource) -> Result<Vec<LogRow>> {
        if self.global {
            let missing = || Error::not_found("there is no kstat 'zil'");
            let counters = source.get("zil")?.ok_or_else(missing)?;
            let (pool, name, object) = (String::new(), String::new(), String::new());
            return Ok(vec![LogRow { pool, name, object, counters }]);
        }
        let mut paths = source.names()?;
        paths.retain(|p| p.contains("/objset-0x"));
        let rows = source.read(&paths)?.into_iter().filter_map(|(path, k)| LogRow::of(&path, k));
        let named = |list: &Option<Vec<String>>, name: &str| {
            list.as_ref().is_none_or(|l| l.iter().any(|n| n == name))
        };
        Ok(rows.filter(|r| named(&self.pools, &r.pool) && named(&self.datasets, &r.name)).collect())
    }
}

fn list(text: Option<String>) -> Option<Vec<String>> {
    text.map(|t| t.split(',').map(|n| n.trim().to_owned()).collect())
}

/// `zilstat`.
///
/// # Errors
/// No statistics can be had, or a field does not exist.
pub(super) fn main(argv: &[OsString]) -> Result<Exit> {
    let parsed = match commands::find("cenote", "zilstat").parse(argv) {
        Ok(parsed) if !parsed.has('h') => parsed,
        Ok(_) => return Ok(super::usage(&Bad::Help, USAGE, Exit::OK)),
        Err(bad) => return Ok(super::usage(&bad, USAGE, Exit::FAILURE)),
    };
    if parsed.has('v') {
        for field in FIELDS {
            ui::out(&format!("{:>8} : {}\n", field.name, field.what));
        }
        return Ok(Exit::OK);
    }
    let global = parsed.has('g');
    let all = || FIELDS.iter().map(|f| f.name).collect::<Vec<_>>().join(",");
    let names = match parsed.last('s') {
        Some(names) => names,
        None if parsed.has('a') => all(),
        None => DEFAULT.to_owned(),
    };
    let shown = fields(&names, global)?;
    let mut words: Vec<String> = parsed.last('i').into_iter().collect();
    words.extend(parsed.words());
    let (interval, count) = super::interval(&words)?;
    let wanted =
        LogFilter { global, pools: list(parsed.last('p')), datasets: list(parsed.last('d')) };
    let mut source = StatSource::open(parsed.last('P'))?;
    ui::out(&format!("{}\n", heading(&shown)));
    let mut before: BTreeMap<String, Kstat> = BTreeMap::new();
    let last = if interval.is_some() { count.unwrap_or(u64::MAX) } else { 1 };
    for done in 0..last {
        if let Some(interval) = interval {
            if done == 0 {
                let now = wanted.read(&mut source)?;
                before = now.into_iter().map(|r| (r.pool + "/" + &r.object, r.counters)).collect();
            }
            rt::sleep(interval);
        }
        let clock = time::strftime("%H:%M:%S", rt::wall_clock().as_secs());
        let seconds = interval.map_or(1.0, |i| i.as_secs_f64());
        for row in wanted.read(&mut source)? {
            let key = format!("{}/{}", row.pool, row.object);
            let was = before.get(&key);
            let cells: Vec<String> =
                shown.iter().map(|f| row.cell(f, was, seconds, &clock)).collect();
            ui::out(&format!("{}\n", cells.join("  ")));
            before.insert(key, row.counters);
        }
    }
    Ok(Exit::OK)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Chapter 09 §7.3: the default columns, and without the dataset.
    #[test]
    fn the_default_columns() {
        let names = |global| {
            heading(&fields(DEFAULT, global).unwrap())
                .split_whitespace()
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(names(false), "time ds cc ic idc idb iic iib imnc imnw imsc imsw");
        assert_eq!(names(true), "time cc ic idc idb iic iib imnc imnw imsc imsw");
        assert!(fields("cc,nope", false).unwrap_err().message().contains("'nope'"));
    }

    #[test]
    fn sums_and_shares() {
        let counters = Kstat::numbers([
            (COPIED, 3),
            (FETCHED, 4),
            (COPIED_BYTES, 1000),
            (FETCHED_BYTES, 1048),
            (NORMAL_BYTES, 2048),
            (NORMAL_WRITE, 4096),
            (NORMAL_ALLOC, 8192),
        ]);
        let row = LogRow { pool: "p".into(), name: "p/d".into(), object: "36".into(), counters };
        let cell = |name: &str, before: Option<&Kstat>, seconds| {
            let field = fields(name, false).unwrap()[0];
            row.cell(field, before, seconds, "1:00:00").trim().to_owned()
        };
        assert_eq!((cell("idc", None, 1.0), cell("idb", None, 1.0)), ("7".into(), "2K".into()));
        assert_eq!((cell("se%", None, 1.0), cell("te%", None, 1.0)), ("25".into(), "50".into()));
        assert_eq!((cell("ds", None, 1.0), cell("obj", None, 1.0)), ("p/d".into(), "36".into()));
        let before = Kstat::numbers([(COPIED, 1), (FETCHED, 4)]);
        assert_eq!(cell("idc", Some(&before), 2.0), "1.0");
    }
}
