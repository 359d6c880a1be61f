//! The pool of a bench: an image made in a temporary directory, or an existing one, and an
//! engine with a cache of the bench's choice.
//!
//! Files have fixed names, so that an image kept with `--keep` serves `--pool` again.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::{Error, ErrorKind, Result};
use cenote::{ArcStats, File, PolicyKind};
use cenote::{Dataset, Engine, EngineConfig, FileSystem, ImportOptions, Io, Pool, Search};
use synth::{Builder, Compression, FileSpec, PoolSpec};

use super::args::{Args, Opt, opt};
use super::sample::SampleContent;
use super::tidy::{Mounted, Scratch};
use super::{Run, Stop};

/// Options of every bench that reads a pool.
pub(super) const OPTIONS: &[Opt] = &[
    opt("--dir", "DIR", "where the image is made ($TMPDIR)"),
    opt("--keep", "", "let the image stay, and say how to use it again"),
    opt("--pool", "DIR NAME", "use the pool NAME in DIR, made with --keep"),
];

/// The pool's name in images that are made.
const POOL: &str = "bench";
/// Space that an image needs beyond its data, for labels, metadata and free space.
const SPARE: u64 = 64 << 20;
/// Space that must stay free on the disk.
const FREE: u64 = 64 << 20;

/// An image, not yet open.
pub(super) struct Lab {
    dir: PathBuf,
    name: String,
    work: PathBuf,
    _scratch: Option<Scratch>,
}

/// The directory for temporary files.
fn work_dir(args: &Args) -> PathBuf {
    args.text("--dir").map_or_else(std::env::temp_dir, PathBuf::from)
}

/// Checks that a directory's file system has room for so many bytes.
///
/// # Errors
/// `NoSpace` if not, with the option that helps.
pub(super) fn check_space(dir: &Path, need: u64) -> Result<()> {
    let failed = |e: rustix::io::Errno| {
        Error::io("cannot look at the directory", e.into()).on_path(dir.to_string_lossy())
    };
    let stat = rustix::fs::statvfs(dir).map_err(failed)?;
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    if free >= need.saturating_add(FREE) {
        return Ok(());
    }
    let nice = cenote::props::nicebytes;
    let text = format!(
        "needs {} in {}, where {} are free: name another directory with --dir",
        nice(need.saturating_add(FREE)),
        dir.display(),
        nice(free)
    );
    Err(Error::new(ErrorKind::NoSpace, text))
}

/// The builder of an image.
pub(super) struct Maker<'a> {
    builder: Builder,
    run: &'a mut Run,
    written: u64,
    total: u64,
}

impl Maker<'_> {
    /// Adds a file with that content.
    pub(super) fn file(
        &mut self,
        path: &str,
        size: u64,
        recordsize: u32,
        content: &SampleContent,
    ) -> Result<(), Stop> {
        let compression = match content {
            SampleContent::Noise(_) => Compression::Off,
            SampleContent::Half(_) => Compression::Lz4,
        };
        let spec = FileSpec { recordsize, compression, ..FileSpec::new(size) };
        let (run, written, total) = (&mut *self.run, &mut self.written, self.total);
        let mut stop = None;
        self.builder.file(path, &spec, &mut |offset, out| {
            // After a signal the rest is zeros, which are written quickly, as holes.
            if stop.is_none() {
                content.fill(offset, out);
                *written += out.len() as u64;
                stop = run.step("making the image, MiB", *written >> 20, total >> 20).err();
            }
        })?;
        stop.map_or(Ok(()), Err)
    }

    /// Empty files `f0`, `f1`, ... in a directory.
    pub(super) fn small_files(&mut self, dir: &str, count: u64) -> Result<(), Stop> {
        for n in 0..count {
            self.builder.file(&format!("{dir}/f{n}"), &FileSpec::new(0), &mut |_, _| {})?;
        }
        self.run.step("making the tree", 0, 0)
    }
}

impl Lab {
    /// The pool that is named, or an image of `data` bytes, filled by `fill`.
    pub(super) fn new(
        run: &mut Run,
        data: u64,
        fill: impl FnOnce(&mut Maker<'_>) -> Result<(), Stop>,
    ) -> Result<Lab, Stop> {
        let work = work_dir(&run.args);
        if let Some([dir, name]) = run.args.values("--pool") {
            return Ok(Lab { dir: dir.into(), name: name.clone(), work, _scratch: None });
        }
        let need = data + data / 16 + SPARE;
        check_space(&work, need)?;
        let scratch = Scratch::new(&work)?;
        let image = scratch.path().join("bench.img");
        // A pool's reserve and its own structures come on top.
        let builder = Builder::create(&image, &PoolSpec::new(POOL, need + need / 8 + SPARE))?;
        let mut maker = Maker { builder, run, written: 0, total: data };
        fill(&mut maker)?;
        let Maker { builder, run, .. } = maker;
        run.step("writing the image", 0, 0)?;
        builder.finish()?;
        let dir = scratch.path().to_owned();
        let keep = run.args.flag("--keep");
        let mut scratch = Some(scratch);
        if keep && let Some(kept) = scratch.take() {
            let kept = kept.keep();
            run.report.notes.push(format!("kept: --pool {} {POOL}", kept.display()));
        }
        Ok(Lab { dir, name: POOL.to_owned(), work, _scratch: scratch })
    }

    /// A fresh engine with an empty cache of at most `arc_max` bytes.
    pub(super) fn open(&self, arc_max: u64, policy: PolicyKind) -> Result<LabPool> {
        let mut config = EngineConfig { cache_bytes: Some(arc_max), ..EngineConfig::default() };
        config.arc.policy = policy;
        let engine = Engine::new(config)?;
        let search = Search { paths: vec![self.dir.clone()], ..Search::default() };
        let found = engine.discover(&search)?;
        let pool = found.pools.iter().find(|p| p.name == self.name);
        let missing = || Error::not_found(format!("no pool named '{}'", self.name));
        let pool = pool.ok_or_else(missing)?;
        let options = ImportOptions { readonly: true, ..ImportOptions::default() };
        let pool = engine.import(pool, &options)?;
        let root = pool.root()?;
        Ok(LabPool { engine, fs: root.open_fs()?, root, pool, work: self.work.clone() })
    }
}

/// An open pool and the engine under it.
pub(super) struct LabPool {
    pub(super) engine: Arc<Engine>,
    pub(super) fs: Arc<FileSystem>,
    root: Dataset,
    pool: Arc<Pool>,
    work: PathBuf,
}

/// The devices' counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Disk {
    pub(super) reads: u64,
    pub(super) bytes: u64,
}

impl LabPool {
    /// Opens a file for many reads.
    pub(super) fn file(&self, path: &str) -> Result<File> {
        let id = self.fs.walk(path.as_bytes(), Io::WAIT)?;
        self.fs.open_file(id, Io::WAIT)
    }

    /// The file system opened again, without cached objects.
    pub(super) fn fresh_fs(&self) -> Result<Arc<FileSystem>> {
        let fs = self.root.open_fs()?;
        fs.objset().drop_dnodes();
        Ok(fs)
    }

    /// The cache's counters.
    pub(super) fn stats(&self) -> ArcStats {
        self.engine.arc_stats()
    }

    /// The devices' counters.
    pub(super) fn disk(&self) -> Disk {
        let tree = self.pool.spa().zio().tree();
        let devices = tree.leaves().filter_map(|(_, leaf)| leaf.device());
        devices.fold(Disk::default(), |sum, device| {
            let now = device.stats().snapshot();
            Disk { reads: sum.reads + now.reads, bytes: sum.bytes + now.bytes_read }
        })
    }

    /// The directory for temporary files.
    pub(super) fn work(&self) -> &Path {
        &self.work
    }

    /// Mounts the file system, served by this process; with `direct_io` the ARC alone caches
    /// file data.
    pub(super) fn mount(&self, direct_io: bool) -> Result<Mounted> {
        Mounted::new(&self.root, &self.work, direct_io)
    }
}

/// The requested policies.
pub(super) fn policies(args: &Args, otherwise: &str) -> Result<Vec<PolicyKind>, Stop> {
    let text = args.text("--policy").unwrap_or(otherwise);
    let one = |word| match word {
        "default" => Ok(PolicyKind::Default),
        "arc" => Ok(PolicyKind::Arc),
        _ => Err(Stop::usage(format!("--policy: '{word}' is not default or arc"))),
    };
    text.split(',').map(one).collect()
}

/// A policy's name.
pub(super) fn word(policy: PolicyKind) -> &'static str {
    match policy {
        PolicyKind::Default => "default",
        PolicyKind::Arc => "arc",
    }
}

/// The share of hits among lookups, from hits and lookups before and after; `None` if there was
/// no lookup.
pub(super) fn hit_ratio(before: (u64, u64), after: (u64, u64)) -> Option<f64> {
    ratio(after.0.saturating_sub(before.0), after.1.saturating_sub(before.1))
}

/// `a / b`; `None` if `b` is zero.
pub(super) fn ratio(a: u64, b: u64) -> Option<f64> {
    (b > 0).then(|| a as f64 / b as f64)
}

/// Drops the kernel's pages, directory entries and inodes; only root may do that.
pub(super) fn drop_kernel_caches() -> bool {
    rustix::fs::sync();
    std::fs::write("/proc/sys/vm/drop_caches", "3").is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lack_of_space_is_reported_first() {
        let e = check_space(Path::new("/"), u64::MAX - FREE).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::NoSpace);
        assert!(e.message().contains("--dir"), "{e}");
        assert!(check_space(Path::new("/no such directory"), 1).is_err());
    }

    #[test]
    fn shares() {
        assert_eq!(hit_ratio((10, 20), (40, 60)), Some(0.75));
        assert_eq!(hit_ratio((10, 20), (10, 20)), None);
    }

    #[test]
    fn policies_by_name() {
        let parse = |text: &str| {
            let words = ["--policy".to_owned(), text.to_owned()];
            let known: &'static [Opt] = const { &[opt("--policy", "LIST", "")] };
            let args = Args::parse(&[known], &words).map_err(Stop::text)?;
            policies(&args, "default").map_err(Stop::text)
        };
        assert_eq!(parse("arc,default"), Ok(vec![PolicyKind::Arc, PolicyKind::Default]));
        assert_eq!(parse("lru"), Err("--policy: 'lru' is not default or arc".to_owned()));
    }
}
