//! `cenote bench`: what this machine can do, before any pool is blamed.

mod cache;

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base::{Error, Result, rt};
use codec::bench::{Kind, Options, Row};
use fuse::null::{FILE_NAME, NullFs};
use fuse::{Config, MountOptions, Session, UnmountOptions};

use crate::ui::{self, Exit};

const USAGE: &str = "usage:\n\tbench codecs [SIZE | memcpy | checksum | compress | decompress | generate \
    | reconstruct]...\n\tbench fuse-null [DIR]\n\tbench cache --trace FILE... --size N[,N...] \
    [--policy NAME[,NAME...]] [--format arc|lirs|keys|vscsi|mqsim] [--json FILE|-]";
/// Length of the null file.
const NULL_SIZE: u64 = 64 << 30;
/// Largest block that codecs are measured with.
const BLOCK_MAX: u64 = 1 << 30;
const KINDS: [(Kind, &str); 6] = [
    (Kind::Memcpy, "memcpy"),
    (Kind::Checksum, "checksum"),
    (Kind::Compress, "compress"),
    (Kind::Decompress, "decompress"),
    (Kind::RaidzGenerate, "generate"),
    (Kind::RaidzReconstruct, "reconstruct"),
];
/// How long each rate is measured.
const SLICE: Duration = Duration::from_secs(1);

/// `cenote bench ...`
pub(crate) fn main(argv: &[OsString]) -> Result<Exit> {
    let words: Vec<String> = argv.iter().map(|a| a.to_string_lossy().into_owned()).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["codecs", ref what @ ..] => codecs(what),
        ["fuse-null"] => fuse_null(None),
        ["cache", ref options @ ..] => cache::main(options),
        ["fuse-null", dir] => fuse_null(Some(dir)),
        _ => {
            ui::err(USAGE);
            Ok(Exit::USAGE)
        }
    }
}

/// All kinds and the usual sizes, or those that are named.
fn codecs(what: &[&str]) -> Result<Exit> {
    let mut options = Options::default();
    let mut sizes = Vec::new();
    for &word in what {
        match KINDS.iter().find(|k| k.1 == word) {
            Some(kind) => options.kinds.push(kind.0),
            None => match cenote::props::parse_size(word) {
                Ok(size) => sizes.push(usize::try_from(size.min(BLOCK_MAX)).unwrap_or(1 << 20)),
                Err(e) => {
                    ui::err(&e);
                    ui::err(USAGE);
                    return Ok(Exit::USAGE);
                }
            },
        }
    }
    if !sizes.is_empty() {
        options.block_sizes = sizes;
    }
    ui::out("KIND         ALGORITHM          IMPLEMENTATION    BLOCK       MiB/s  RATIO\n");
    codec::bench::run(&options, |row| ui::out(&line(&row)));
    Ok(Exit::OK)
}

fn line(row: &Row) -> String {
    let kind = KINDS.iter().find(|k| k.0 == row.kind).map_or("", |k| k.1);
    let mark = if row.selected { "*" } else { "" };
    let ratio = row.ratio.map_or_else(|| "-".to_owned(), |r| format!("{r:.2}"));
    format!(
        "{kind:<11}  {:<17}  {:<14}  {:>7}  {:>10.0}  {ratio:>5}\n",
        row.name,
        format!("{}{mark}", row.implementation),
        cenote::props::nicenum(row.block_size as u64),
        row.mb_per_second
    )
}

/// A directory of our own, gone with this value.
struct TempDir(PathBuf);

impl TempDir {
    fn new() -> Result<TempDir> {
        let path = std::env::temp_dir().join(format!("cenote-null-{}", std::process::id()));
        std::fs::create_dir(&path).map_err(|e| Error::io("cannot make a directory", e))?;
        Ok(TempDir(path))
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir(&self.0);
    }
}

/// Mounts the file system that costs nothing and reads from it.
fn fuse_null(dir: Option<&str>) -> Result<Exit> {
    let temp = dir.is_none().then(TempDir::new).transpose()?;
    let dir = match (&temp, dir) {
        (Some(temp), _) => temp.0.clone(),
        (None, dir) => PathBuf::from(dir.unwrap_or(".")),
    };
    let options = MountOptions { fsname: "cenote-null".to_owned(), ..MountOptions::default() };
    let fs = Arc::new(NullFs::new(NULL_SIZE));
    let session = Session::mount(fs, &dir, &options, &Config::default())?;
    let result = measure(&dir.join(FILE_NAME));
    session.unmount(UnmountOptions { lazy: true, force: false })?;
    session.join();
    result?;
    Ok(Exit::OK)
}

fn measure(path: &Path) -> Result<()> {
    let io = |e| Error::io("cannot read the null file", e);
    let show = |what: &str, (bytes, ops): (f64, f64)| {
        let mib = bytes / f64::from(1 << 20);
        ui::out(&format!("{what:<28} {mib:>10.0} MiB/s {ops:>12.0} reads/s\n"));
    };
    let file = File::open(path).map_err(io)?;
    show("sequential, 1 MiB", reads(&file, 1 << 20, true).map_err(io)?);
    show("random, 8 KiB", reads(&file, 8 << 10, false).map_err(io)?);
    let total = rt::now();
    let threads = rt::parallelism();
    let sums = base::rt::Mutex::new(Vec::new());
    rt::fan_out(threads, |_| {
        let done = File::open(path).and_then(|f| reads(&f, 128 << 10, false));
        sums.lock().push(done);
    });
    let mut all = (0.0, 0.0);
    for done in sums.into_inner() {
        let (bytes, ops) = done.map_err(io)?;
        all = (all.0 + bytes, all.1 + ops);
    }
    debug_assert!(total.elapsed() >= SLICE);
    show(&format!("random, 128 KiB, {threads} threads"), all);
    Ok(())
}

/// Bytes and calls a second. Random places are never the same twice, so that the
/// page cache does not answer.
fn reads(file: &File, size: usize, sequential: bool) -> std::io::Result<(f64, f64)> {
    let mut buf = vec![0u8; size];
    let blocks = NULL_SIZE / size as u64;
    let mut at = base::rt::random_u64().unwrap_or(1) % blocks;
    let start = rt::now();
    let mut calls = 0u32;
    while start.elapsed() < SLICE {
        file.read_exact_at(&mut buf, at * size as u64)?;
        // An odd step visits every block of a power of two of them.
        at = (at + if sequential { 1 } else { 0x9e37_79b9 }) % blocks;
        calls += 1;
    }
    let seconds = start.elapsed().as_secs_f64();
    Ok((size as f64 * f64::from(calls) / seconds, f64::from(calls) / seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_line_up_with_the_heading() {
        let row = Row {
            kind: Kind::RaidzReconstruct,
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
