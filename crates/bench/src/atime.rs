//! What times of access cost: the writes that reads cause.
//!
//! # Theory
//! A tree of small files is read again and again, each file opened, read and closed, with the
//! properties `atime=on`, `relatime=on` and `atime=off`. Nothing else changes the pool, so what
//! the devices write meanwhile is due to times of access, and to the sync that ends each run.
//! `atime=off` shows the cost of that sync alone. A first pass, which is not counted, fills the
//! caches, and lets `relatime` store the one update that a new file gets.
//!
//! Reads go through a mount of this process where the machine permits that, and otherwise through
//! the library with the calls that a mount makes: hold, read, record the access, release.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base::rt;
use base::{Error, ObjectId, Result};
use cenote::files::{Caller, New, WritePosition};
use cenote::inspect::device::StatsSnapshot;
use cenote::{Engine, EngineConfig, FileSystem, Io, PropData};

use super::args::opt;
use super::chart::Shape;
use super::frag_target::{DATASET, FragPoolSpec, RunningPool};
use super::frame::{Cell, ReportTable};
use super::lab;
use super::tidy::{Mounted, Scratch};
use super::write_pool::preallocate;
use super::{Bench, BenchResult, Run};

pub(super) const BENCH: Bench = Bench {
    name: "atime",
    about: "device writes of reads with atime on, with relatime, and off",
    words: "",
    options: &[&[
        opt("--files", "N", "files of the tree (2000)"),
        opt("--time", "TIME", "time of the reads with each rule (15)"),
        opt("--library", "", "without a mount"),
        opt("--device", "DIR", "directory for the pool ($TMPDIR)"),
    ]],
    run,
};

/// Bytes of a file.
const FILE_SIZE: usize = 4096;
/// Files of a directory.
const PER_DIR: u64 = 100;
/// Bytes of the pool for each file, and besides.
const POOL_PER_FILE: u64 = 32 << 10;
const POOL_LEAST: u64 = 256 << 20;
/// The rules: name, `atime`, `relatime`; 1 is on.
const RULES: [(&str, u64, u64); 3] = [("atime", 1, 0), ("relatime", 1, 1), ("off", 0, 0)];

/// How files are read.
enum AccessPath {
    Mount(Mounted),
    Library(Arc<FileSystem>, Vec<ObjectId>),
}

impl AccessPath {
    /// Opens, reads and closes a file.
    fn read(&self, file: u64, buffer: &mut [u8]) -> Result<()> {
        match self {
            AccessPath::Mount(mounted) => {
                use std::io::Read as _;
                let path = mounted.path().join(name_of(file));
                let read = std::fs::File::open(&path).and_then(|mut f| f.read_exact(buffer));
                read.map_err(|e| Error::io("cannot read", e).on_path(path.to_string_lossy()))
            }
            AccessPath::Library(fs, ids) => {
                let id = ids[file as usize];
                fs.hold(id)?;
                let done = fs.open_file(id, Io::WAIT).and_then(|f| f.read_at(0, buffer, Io::WAIT));
                fs.accessed(id);
                fs.release(id)?;
                done.map(drop)
            }
        }
    }
}

fn name_of(file: u64) -> String {
    format!("d{}/f{file}", file / PER_DIR)
}

/// The figures of one rule.
struct AtimeFigures {
    reads: u64,
    seconds: f64,
    txgs: u64,
    writes: u64,
    bytes: u64,
}

fn run(run: &mut Run) -> BenchResult<()> {
    let args = &run.args;
    args.no_rest()?;
    let files = args.count("--files", 2000, 1..=1 << 24)?;
    let time = args.time("--time", Duration::from_secs(15))?;
    let library = args.flag("--library");
    let dir = args.text("--device").map_or_else(std::env::temp_dir, PathBuf::from);
    let size = POOL_LEAST + files * POOL_PER_FILE;
    lab::check_space(&dir, size)?;
    let scratch = Scratch::new(&dir)?;
    let image = scratch.path().join("atime.img");
    preallocate(&image, size)?;
    let spec = FragPoolSpec {
        devices: vec![image],
        log: None,
        recordsize: 128 << 10,
        compression: true,
        own: true,
        mount: None,
        cache_bytes: None,
    };
    let engine = Engine::new(EngineConfig::default())?;
    let (running, dataset) = RunningPool::create(&engine, &spec)?;
    let fs = dataset.open_fs()?;
    let ids = make_files(run, &fs, files)?;
    drop(fs);
    running.pool().sync()?;
    let mut through = "library";
    let mut table = table();
    let mut series = Vec::new();
    for (name, atime, relatime) in RULES {
        let props = [("atime", atime), ("relatime", relatime)];
        let props = props.map(|(name, n)| (name.to_owned(), PropData::Num(n)));
        running.pool().set_props(DATASET, &props, None)?;
        let dataset = running.pool().dataset(DATASET)?;
        let path = match open(&dataset, scratch.path(), library) {
            Ok(mounted) => AccessPath::Mount(mounted),
            Err(why) => {
                if let Some(why) = why.filter(|_| run.report.notes.is_empty()) {
                    run.report.notes.push(format!("through the library, not a mount: {why}"));
                }
                AccessPath::Library(dataset.open_fs()?, ids.clone())
            }
        };
        if matches!(path, AccessPath::Mount(_)) {
            through = "mount";
        }
        let figures = measure(run, name, &running, &path, files, time)?;
        series.push(figures.bytes as f64 * 1e3 / figures.reads.max(1) as f64);
        table.rows.push(row(name, &figures));
    }
    run.report.set("files", Cell::Count(files));
    run.report.set("through", through.into());
    run.report.tables.push(table);
    let labels = RULES.iter().map(|rule| rule.0.to_owned()).collect();
    let series = vec![("bytes".to_owned(), series)];
    run.report.chart(Shape::Bars, "bytes written for 1000 reads", labels, series);
    running.end(false)?;
    Ok(())
}

/// The mount; the error is the reason if one was wanted.
fn open(
    dataset: &cenote::Dataset,
    parent: &Path,
    library: bool,
) -> std::result::Result<Mounted, Option<Error>> {
    match library {
        true => Err(None),
        false => Mounted::new(dataset, parent, false).map_err(Some),
    }
}

fn make_files(run: &mut Run, fs: &FileSystem, files: u64) -> BenchResult<Vec<ObjectId>> {
    let root = Caller::root();
    let (mut ids, mut dir) = (Vec::new(), fs.root());
    for file in 0..files {
        run.step("making the files", file, files)?;
        let name = name_of(file);
        let (above, name) = name.split_once('/').unwrap_or(("", &name));
        if file % PER_DIR == 0 {
            dir = fs.make(&root, fs.root(), above.as_bytes(), &New::dir(0o755))?.id;
        }
        let id = fs.make(&root, dir, name.as_bytes(), &New::file(0o644))?.id;
        fs.write(&root, id, WritePosition::Offset(0), &[7; FILE_SIZE])?;
        ids.push(id);
    }
    Ok(ids)
}

fn measure(
    run: &mut Run,
    name: &str,
    running: &RunningPool,
    path: &AccessPath,
    files: u64,
    time: Duration,
) -> BenchResult<AtimeFigures> {
    let mut buffer = [0; FILE_SIZE];
    for file in 0..files {
        run.step(&format!("{name}: first pass"), file, files)?;
        path.read(file, &mut buffer)?;
    }
    sync(running, path)?;
    let txgs = || -> Result<_> { Ok(running.pool().writer()?.txgs().synced_txg().0) };
    let (before, first, began) = (running.device_counters()?, txgs()?, rt::now());
    let (mut reads, milliseconds) = (0, time.as_millis() as u64);
    while began.elapsed() < time || reads < files {
        let spent = (began.elapsed().as_millis() as u64).min(milliseconds);
        run.step(&format!("{name}: reading"), spent, milliseconds)?;
        path.read(reads % files, &mut buffer)?;
        reads += 1;
    }
    let seconds = began.elapsed().as_secs_f64();
    sync(running, path)?;
    let StatsSnapshot { writes, bytes_written, .. } = running.device_counters()?;
    Ok(AtimeFigures {
        reads,
        seconds,
        txgs: txgs()? - first,
        writes: writes - before.writes,
        bytes: bytes_written - before.bytes_written,
    })
}

/// Stores times of access that wait in memory, and writes them.
fn sync(running: &RunningPool, path: &AccessPath) -> Result<()> {
    match path {
        AccessPath::Mount(mounted) => {
            let failed = |e: std::io::Error| Error::io("cannot sync the mount", e);
            let dir = std::fs::File::open(mounted.path()).map_err(failed)?;
            rustix::fs::syncfs(&dir).map_err(|e| failed(e.into()))?;
        }
        AccessPath::Library(fs, _) => fs.sync_all()?,
    }
    running.pool().sync()
}

fn table() -> ReportTable {
    ReportTable::new(
        "rules",
        &[
            ("rule", "RULE"),
            ("reads", "READS"),
            ("reads_per_second", "READS/S"),
            ("txgs", "TXGS"),
            ("writes", "WRITES"),
            ("write_bytes", "BYTES"),
            ("writes_per_1000", "WRITES/1000"),
            ("bytes_per_1000", "BYTES/1000"),
        ],
    )
}

fn row(name: &str, figures: &AtimeFigures) -> Vec<Cell> {
    let per_1000 = |n: u64| n as f64 * 1e3 / figures.reads.max(1) as f64;
    vec![
        name.into(),
        Cell::Count(figures.reads),
        Cell::Real(figures.reads as f64 / figures.seconds.max(1e-9)),
        Cell::Count(figures.txgs),
        Cell::Count(figures.writes),
        Cell::Bytes(figures.bytes),
        Cell::Real(per_1000(figures.writes)),
        Cell::Real(per_1000(figures.bytes)),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::Stop;
    use super::super::frag::tests::{json, rows};

    fn rules(extra: &[&str]) -> Vec<(u64, u64)> {
        let scratch = testkit::Scratch::new("bench-atime");
        let path = |name: &str| scratch.path().join(name).to_str().unwrap().to_owned();
        let (dir, out) = (path(""), path("out.json"));
        let words = ["--files", "300", "--time", "0.05", "--device", &dir, "--json", &out];
        let words: Vec<String> = words.iter().chain(extra).map(|w| (*w).to_owned()).collect();
        super::BENCH.start(&words).map_err(Stop::text).unwrap();
        let json = json(std::path::Path::new(&out));
        let rows = rows(&json, "rules");
        let names: Vec<_> = rows.iter().map(|r| r["rule"].as_str().unwrap()).collect();
        assert_eq!(names, ["atime", "relatime", "off"]);
        let number = |row: &serde_json::Value, key: &str| row[key].as_u64().unwrap();
        rows.iter().map(|r| (number(r, "reads"), number(r, "write_bytes"))).collect()
    }

    #[test]
    fn atime_writes_what_relatime_does_not() {
        let rules = rules(&["--library"]);
        assert!(rules.iter().all(|(reads, _)| *reads >= 300));
        let (atime, relatime, off) = (rules[0].1, rules[1].1, rules[2].1);
        // 300 dnodes of 512 bytes, although compressed.
        assert!(atime > off + 4096, "{atime} {off}");
        assert!(relatime < atime, "{relatime} {atime}");
    }

    #[test]
    fn through_a_mount() {
        if !std::path::Path::new("/dev/fuse").exists() {
            testkit::skip(testkit::Need::Fuse, "there is no /dev/fuse");
            return;
        }
        let rules = rules(&[]);
        assert!(rules[0].1 > rules[2].1, "{rules:?}");
    }
}
