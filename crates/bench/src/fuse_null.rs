//! The cost of FUSE itself: a file system without content of its own is mounted, read and
//! written, and filled with small files.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base::{Error, rt};
use fuse::null::{FILE_NAME, NullFs};
use fuse::{
    Config, DevTransport, MountOptions, Session, Transport, UnmountOptions, UringTransport,
};

use super::args::opt;
use super::chart::Shape;
use super::frame::{Cell, ReportTable};
use super::tidy::Scratch;
use super::{Bench, Run, Stop};

pub(super) const BENCH: Bench = Bench {
    name: "fuse-null",
    about: "reads and writes of a mounted file whose content costs nothing",
    words: "[DIR]",
    options: &[&[
        opt("--time", "TIME", "how long each rate is measured (1s)"),
        opt("--transport", "dev|uring", "how requests come from the kernel (dev)"),
    ]],
    run,
};

/// Length of the null file.
const NULL_SIZE: u64 = 64 << 30;

/// Mounts it and reads from it.
fn run(run: &mut Run) -> Result<(), Stop> {
    let slice = run.args.time("--time", Duration::from_secs(1))?;
    let (temp, dir) = match &run.args.rest[..] {
        [] => {
            let temp = Scratch::new(&std::env::temp_dir())?;
            let dir = temp.path().to_owned();
            (Some(temp), dir)
        }
        [dir] => (None, PathBuf::from(dir)),
        _ => return Err(Stop::usage("more than one directory")),
    };
    let options = MountOptions { fsname: "cenote-null".to_owned(), ..MountOptions::default() };
    let transport: &dyn Transport = match run.args.text("--transport").unwrap_or("dev") {
        "dev" => &DevTransport,
        "uring" if UringTransport::is_available() => &UringTransport::default(),
        "uring" => {
            let path = "/sys/module/fuse/parameters/enable_uring";
            return Err(Stop::usage(format!("io_uring for FUSE is off here: see {path}")));
        }
        _ => return Err(Stop::usage("--transport: dev or uring")),
    };
    let config = Config::default();
    let fs = Arc::new(NullFs::new(NULL_SIZE).with_ttl(Duration::ZERO));
    let session = Session::mount_by(fs, &dir, &options, &config, transport)?;
    let result = measure(run, &dir.join(FILE_NAME), slice);
    session.unmount(UnmountOptions { lazy: true, force: false })?;
    session.join();
    drop(temp);
    result
}

fn measure(run: &mut Run, path: &Path, slice: Duration) -> Result<(), Stop> {
    let io = |e| Error::io("the null file", e);
    let mut rows = Vec::new();
    let mut show = |run: &mut Run, what: &str, (bytes, ops): (f64, f64)| {
        let mib = bytes / f64::from(1 << 20);
        run.say(&format!("{what:<34} {mib:>10.0} MiB/s {ops:>12.0} calls/s\n"));
        rows.push(vec![Cell::from(what), Cell::Real(mib), Cell::Real(ops)]);
    };
    let all = rt::parallelism();
    for (what, work, size) in ROWS {
        for threads in [1, all] {
            let (bytes, calls) = together(path, work, size, threads, slice).map_err(io)?;
            let with =
                if threads == 1 { "1 thread".to_owned() } else { format!("{threads} threads") };
            show(run, &format!("{what}, {with}"), (bytes, calls));
            run.step("", 0, 0)?;
        }
    }
    let columns = [("what", "WHAT"), ("mib_per_second", "MiB/s"), ("calls_per_second", "CALLS/S")];
    let mut table = ReportTable { shown: true, ..ReportTable::new("rows", &columns) };
    let name = |r: &Vec<Cell>| match &r[0] {
        Cell::Text(text) => text.clone(),
        _ => String::new(),
    };
    let mib = |r: &Vec<Cell>| if let Cell::Real(v) = r[1] { v } else { f64::NAN };
    let (labels, values) = (rows.iter().map(name).collect(), rows.iter().map(mib).collect());
    run.report.chart(Shape::Bars, "MiB/s", labels, vec![("MiB/s".to_owned(), values)]);
    table.rows = rows;
    run.report.tables.push(table);
    Ok(())
}

/// The repeated operation of a thread.
#[derive(Clone, Copy)]
enum Work {
    /// With the one file.
    Null(Calls),
    /// With files of its own.
    Files(DirChange),
}

#[derive(Clone, Copy)]
enum Calls {
    Sequential,
    Random,
    Write,
    Stat,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum DirChange {
    Make,
    Remove,
}

const ROWS: [(&str, Work, usize); 8] = [
    ("read in order, 1 MiB", Work::Null(Calls::Sequential), 1 << 20),
    ("read anywhere, 8 KiB", Work::Null(Calls::Random), 8 << 10),
    ("read anywhere, 128 KiB", Work::Null(Calls::Random), 128 << 10),
    ("write in order, 1 MiB", Work::Null(Calls::Write), 1 << 20),
    ("write in order, 4 KiB", Work::Null(Calls::Write), 4 << 10),
    ("stat", Work::Null(Calls::Stat), 0),
    ("make files of 1,800 bytes", Work::Files(DirChange::Make), 1800),
    ("remove files", Work::Files(DirChange::Remove), 0),
];

/// Number of files that exist at a time.
const FILES: usize = 1000;

/// Bytes and calls a second by so many threads.
fn together(
    path: &Path,
    work: Work,
    size: usize,
    threads: usize,
    slice: Duration,
) -> std::io::Result<(f64, f64)> {
    let sums = rt::Mutex::new(Vec::new());
    rt::fan_out(threads, |thread| {
        let done = match work {
            Work::Null(calls) => {
                let file = File::options().read(true).write(true).open(path);
                file.and_then(|f| repeat(&f, calls, size, slice))
            }
            Work::Files(change) => {
                let names = path.with_file_name(format!("thread-{thread}"));
                in_batches(&names, change, size, slice)
            }
        };
        sums.lock().push(done);
    });
    let calls: f64 = sums.into_inner().into_iter().sum::<std::io::Result<f64>>()?;
    Ok((size as f64 * calls, calls))
}

/// Files created or removed a second.
fn in_batches(
    names: &Path,
    change: DirChange,
    size: usize,
    slice: Duration,
) -> std::io::Result<f64> {
    let data = vec![0u8; size];
    let name = |n: usize| names.with_extension(n.to_string());
    let (mut made, mut removed, mut batches) = (Duration::ZERO, Duration::ZERO, 0);
    while made + removed < slice {
        let start = rt::now();
        for n in 0..FILES {
            File::options().write(true).create_new(true).open(name(n))?.write_all(&data)?;
        }
        let between = rt::now();
        (0..FILES).try_for_each(|n| std::fs::remove_file(name(n)))?;
        made += between.since(start);
        removed += between.elapsed();
        batches += 1;
    }
    let time = if change == DirChange::Make { made } else { removed };
    Ok((batches * FILES) as f64 / time.as_secs_f64())
}

/// Calls a second. Random offsets never repeat, so that the page cache has none of them.
fn repeat(file: &File, work: Calls, size: usize, slice: Duration) -> std::io::Result<f64> {
    let mut buf = vec![0u8; size];
    let blocks = NULL_SIZE / (size as u64).max(1);
    let mut at = rt::random_u64().unwrap_or(1) % blocks;
    let start = rt::now();
    let mut calls = 0u32;
    while start.elapsed() < slice {
        let offset = at * size as u64;
        let step = match work {
            Calls::Sequential | Calls::Random => {
                file.read_exact_at(&mut buf, offset)?;
                // An odd step visits every block if their number is a power of two.
                if matches!(work, Calls::Random) { 0x9e37_79b9 } else { 1 }
            }
            Calls::Write => {
                file.write_all_at(&buf, offset)?;
                1
            }
            Calls::Stat => {
                file.metadata()?;
                1
            }
        };
        at = (at + step) % blocks;
        calls += 1;
    }
    Ok(f64::from(calls) / start.elapsed().as_secs_f64())
}
