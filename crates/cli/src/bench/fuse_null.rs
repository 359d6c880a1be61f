//! The file system that costs nothing, mounted and read: what FUSE itself takes.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base::{Error, rt};
use fuse::null::{FILE_NAME, NullFs};
use fuse::{Config, MountOptions, Session, UnmountOptions};

use super::args::opt;
use super::chart::Shape;
use super::frame::{Cell, Table};
use super::tidy::Scratch;
use super::{Bench, Run, Stop};

pub(super) const BENCH: Bench = Bench {
    name: "fuse-null",
    about: "reads of a mounted file whose content costs nothing",
    words: "[DIR]",
    options: &[&[opt("--time", "TIME", "how long each rate is measured (1s)")]],
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
    let fs = Arc::new(NullFs::new(NULL_SIZE));
    let session = Session::mount(fs, &dir, &options, &Config::default())?;
    let result = measure(run, &dir.join(FILE_NAME), slice);
    session.unmount(UnmountOptions { lazy: true, force: false })?;
    session.join();
    drop(temp);
    result
}

fn measure(run: &mut Run, path: &Path, slice: Duration) -> Result<(), Stop> {
    let io = |e| Error::io("cannot read the null file", e);
    let mut rows = Vec::new();
    let mut show = |run: &mut Run, what: &str, (bytes, ops): (f64, f64)| {
        let mib = bytes / f64::from(1 << 20);
        run.say(&format!("{what:<28} {mib:>10.0} MiB/s {ops:>12.0} reads/s\n"));
        rows.push(vec![Cell::from(what), Cell::Real(mib), Cell::Real(ops)]);
    };
    let file = File::open(path).map_err(io)?;
    show(run, "sequential, 1 MiB", reads(&file, 1 << 20, true, slice).map_err(io)?);
    run.step("", 0, 0)?;
    show(run, "random, 8 KiB", reads(&file, 8 << 10, false, slice).map_err(io)?);
    run.step("", 0, 0)?;
    let threads = rt::parallelism();
    let sums = rt::Mutex::new(Vec::new());
    rt::fan_out(threads, |_| {
        let done = File::open(path).and_then(|f| reads(&f, 128 << 10, false, slice));
        sums.lock().push(done);
    });
    let mut all = (0.0, 0.0);
    for done in sums.into_inner() {
        let (bytes, ops) = done.map_err(io)?;
        all = (all.0 + bytes, all.1 + ops);
    }
    show(run, &format!("random, 128 KiB, {threads} threads"), all);
    let columns = [("what", "WHAT"), ("mib_per_second", "MiB/s"), ("reads_per_second", "READS/S")];
    let mut table = Table { shown: true, ..Table::new("rows", &columns) };
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

/// Bytes and calls a second. Random places are never the same twice, so that the
/// page cache does not answer.
fn reads(
    file: &File,
    size: usize,
    sequential: bool,
    slice: Duration,
) -> std::io::Result<(f64, f64)> {
    let mut buf = vec![0u8; size];
    let blocks = NULL_SIZE / size as u64;
    let mut at = rt::random_u64().unwrap_or(1) % blocks;
    let start = rt::now();
    let mut calls = 0u32;
    while start.elapsed() < slice {
        file.read_exact_at(&mut buf, at * size as u64)?;
        // An odd step visits every block of a power of two of them.
        at = (at + if sequential { 1 } else { 0x9e37_79b9 }) % blocks;
        calls += 1;
    }
    let seconds = start.elapsed().as_secs_f64();
    Ok((size as f64 * f64::from(calls) / seconds, f64::from(calls) / seconds))
}
