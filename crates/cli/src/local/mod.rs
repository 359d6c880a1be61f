//! Access to a pool without importing it: to files by `ls`, `tree`, `cat` and `cp` on
//! `POOL/DATASET[@SNAP][:/path]`, and to its space by `map`. They need no daemon, no mount, and
//! no privileges except reading the pool's devices. With `-T` (of `map`: `--txg`) they show an
//! earlier txg, as far as its blocks still exist, also of a pool that is imported; `uberblocks`
//! lists these txgs.
//!
//! The pool is opened for inspection in this process: nothing is written to it, and it may be
//! exported or have been in use on another system.

mod cat;
mod copy;
mod list;
mod map;
mod uberblocks;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use base::{Error, ErrorKind, ObjectId, Result, Txg};
use cenote::files::{Attrs, FileType as FileKind};
use cenote::{
    Dataset, DatasetKind, Engine, EngineConfig, FileSystem, FoundPool, ImportOptions, Io, Pool,
    Search, Volume,
};
use commands::getopt::Parsed;
use ui::Exit;

const USAGE: &str = "usage:\n\tls [-lR] [-d DIR|FILE]... [-T TXG] POOL/DATASET[@SNAP][:/path] \
    ...\n\ttree [-d DIR|FILE]... [-T TXG] POOL/DATASET[@SNAP][:/path] ...\n\tcat [-d DIR|FILE]... \
    [-T TXG] POOL/DATASET[@SNAP][:/path] ...\n\tcp [-r] [-d DIR|FILE]... [-T TXG] \
    POOL/DATASET[@SNAP]:/path ... TARGET\n\tuberblocks [-Hp] [-d DIR|FILE]... POOL\n\tmap \
    [-jp] [--json-int] [-o FILE.svg] [-T d|u] [-d DIR|FILE]... [--txg TXG] POOL ... [interval \
    [count]]";

/// Memory for cached blocks. Content is read once, so a small cache is enough, and reusing its
/// pages costs less than new ones, which the system has to clear.
const CACHE: u64 = 128 << 20;

/// `cenote ls|tree|cat|cp`
pub(crate) fn main(command: &str, argv: &[OsString]) -> Result<Exit> {
    let parsed = match commands::find("cenote", command).parse(argv) {
        Ok(parsed) => parsed,
        Err(bad) => return Ok(misuse(bad.message().as_deref())),
    };
    let txg = match parsed.last('T').map(|text| text.parse().map(Txg)) {
        None => None,
        Some(Ok(txg)) => Some(txg),
        Some(Err(_)) => return Ok(misuse(Some("invalid txg value"))),
    };
    let mut operands = parsed.args.clone();
    let target = if command == "cp" { operands.pop() } else { None };
    if operands.is_empty() {
        return Ok(misuse(Some("missing dataset argument")));
    }
    let mut pools = Pools::new(&parsed, txg)?;
    let mut failed = false;
    let many = operands.len() > 1;
    for operand in &operands {
        let shown = operand.to_string_lossy();
        let result = pools.open(operand).and_then(|source| match command {
            "ls" => list::ls(&source, &shown, parsed.has('l'), parsed.has('R'), many),
            "tree" => list::tree(&source, &shown),
            "cat" => cat::cat(&source),
            _ => {
                let target = PathBuf::from(target.clone().unwrap_or_default());
                let recursive = parsed.has('r') || parsed.has('R') || parsed.has('a');
                copy::cp(&source, &target, recursive, many)
            }
        });
        match result {
            Ok(fine) => failed |= !fine,
            Err(e) => {
                ui::err(&format!("{command}: {shown}: {e}"));
                failed = true;
            }
        }
    }
    Ok(Exit::failed_if(failed))
}

/// `cenote uberblocks`
pub(crate) fn uberblocks(argv: &[OsString]) -> Result<Exit> {
    let parsed = match commands::find("cenote", "uberblocks").parse(argv) {
        Ok(parsed) => parsed,
        Err(bad) => return Ok(misuse(bad.message().as_deref())),
    };
    let words = parsed.words();
    let [name] = words.as_slice() else {
        return Ok(misuse(Some("exactly one pool must be named")));
    };
    let pools = Pools::new(&parsed, None)?;
    uberblocks::list(&pools.engine, &pools.find(name)?, parsed.has('H'), parsed.has('p'))
}

/// `cenote map`
pub(crate) use map::main as map;

fn misuse(message: Option<&str>) -> Exit {
    if let Some(message) = message {
        ui::err(message);
    }
    ui::err(USAGE);
    Exit::USAGE
}

/// The object that an operand names.
enum OperandTarget {
    /// A file or directory.
    File(Arc<FileSystem>, ObjectId),
    /// A volume.
    Volume(Arc<Volume>),
}

/// The object that an operand names, with the last component of its name.
struct Operand {
    content: OperandTarget,
    name: Vec<u8>,
}

/// Splits `POOL/DATASET[@SNAP][:/path]`. A colon may be part of a dataset's name:
/// the path begins at the first `:/`, or the operand ends with `:`.
fn split(operand: &OsStr) -> Result<(String, Vec<u8>)> {
    let bytes = operand.as_bytes();
    let at = bytes.windows(2).position(|w| w == b":/");
    let at = at.or_else(|| bytes.ends_with(b":").then(|| bytes.len() - 1));
    let (name, path) = match at {
        Some(at) => (&bytes[..at], bytes.get(at + 1..).unwrap_or_default()),
        None => (bytes, &b""[..]),
    };
    let name = std::str::from_utf8(name).map_err(|_| Error::invalid("bad dataset name"))?;
    if name.is_empty() || name.starts_with('/') {
        return Err(Error::invalid("expected POOL/DATASET[@SNAP][:/path]"));
    }
    Ok((name.to_owned(), path.to_vec()))
}

/// The pools of the operands, each opened once.
struct Pools {
    engine: Arc<Engine>,
    search: Vec<PathBuf>,
    /// The txg as of which they are read.
    txg: Option<Txg>,
    open: Vec<Arc<Pool>>,
}

impl Pools {
    fn new(parsed: &Parsed, txg: Option<Txg>) -> Result<Pools> {
        let paths = parsed.opts.iter().filter(|o| o.letter == 'd').map(|o| PathBuf::from(&o.arg));
        let config = EngineConfig { cache_bytes: Some(CACHE), ..EngineConfig::default() };
        let engine = Engine::new(config)?;
        Ok(Pools { engine, search: paths.collect(), txg, open: Vec::new() })
    }

    fn pool(&mut self, name: &str) -> Result<Arc<Pool>> {
        if let Some(pool) = self.open.iter().find(|p| p.name() == name) {
            return Ok(Arc::clone(pool));
        }
        // The daemon's writes do not change an earlier txg until they reuse its blocks.
        let shared = self.txg.is_some();
        let options = ImportOptions { txg: self.txg, shared, ..ImportOptions::default() };
        let pool = self.engine.inspect(&self.find(name)?, &options)?;
        self.open.push(Arc::clone(&pool));
        Ok(pool)
    }

    /// The pool of that name among the devices.
    fn find(&self, name: &str) -> Result<FoundPool> {
        let search = Search { paths: self.search.clone(), destroyed: false };
        let found = self.engine.discover(&search)?;
        for (path, e) in &found.problems {
            ui::err(&ui::problem(path, e));
        }
        let mut matching = found.pools.iter().filter(|p| p.name == name);
        let pool = matching.next().ok_or_else(|| {
            Error::not_found(format!("no pool '{name}' found; name its devices with -d"))
        })?;
        if matching.next().is_some() {
            return Err(Error::invalid(format!("more than one pool is named '{name}'")));
        }
        Ok(pool.clone())
    }

    fn open(&mut self, operand: &OsStr) -> Result<Operand> {
        let (name, path) = split(operand)?;
        let end = name.find(['/', '@', '#']).unwrap_or(name.len());
        let pool = self.pool(name.get(..end).unwrap_or(&name))?;
        let dataset = pool.dataset(&name)?;
        if holds_volume(&dataset)? {
            let last = name.rsplit('/').next().unwrap_or(&name);
            let content = OperandTarget::Volume(dataset.open_volume()?);
            return Ok(Operand { content, name: last.as_bytes().to_vec() });
        }
        let fs = dataset.open_fs()?;
        let id = fs.walk(&path, Io::WAIT)?;
        let last = path.split(|b| *b == b'/').rfind(|p| !p.is_empty());
        let name = last.map_or_else(|| name.replace('/', "-").into_bytes(), <[u8]>::to_vec);
        Ok(Operand { content: OperandTarget::File(fs, id), name })
    }
}

/// Whether a dataset is a volume or a volume's snapshot.
fn holds_volume(dataset: &Dataset) -> Result<bool> {
    Ok(match dataset.kind() {
        DatasetKind::Volume => true,
        DatasetKind::Snapshot => dataset.prop("volsize")?.is_some(),
        DatasetKind::Filesystem | DatasetKind::Bookmark => false,
    })
}

/// All entries of a directory except `.` and `..`, by name. A name that no file can have (in a
/// damaged or hostile directory) is reported and skipped, because it must not lead out of a
/// copy's target.
fn entries(fs: &FileSystem, dir: ObjectId) -> Result<Vec<(Vec<u8>, ObjectId)>> {
    let mut out = Vec::new();
    let mut cookie = 0;
    loop {
        let page = fs.readdir(dir, cookie, Io::WAIT)?;
        for e in page.entries {
            match e.name.as_slice() {
                b"." | b".." => {}
                n if n.is_empty() || n.contains(&b'/') || n.contains(&0) => {
                    ui::err(&format!("object {dir}: an entry has an impossible name: left out"));
                }
                _ => out.push((e.name, e.id)),
            }
        }
        match page.next {
            Some(next) if next != cookie => cookie = next,
            _ => break,
        }
    }
    out.sort();
    Ok(out)
}

/// Maximum depth of a walk: a damaged directory may contain itself.
const DEPTH_MAX: usize = base::limits::PATH_DEPTH_MAX;

fn too_deep() -> Error {
    Error::new(ErrorKind::Limit, "the directory is nested too deep")
}

fn is_dir(a: &Attrs) -> bool {
    a.kind == FileKind::Dir
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operands_split_at_the_path() {
        let s = |o: &str| split(OsStr::new(o)).map(|(n, p)| (n, String::from_utf8(p).unwrap()));
        assert_eq!(s("p/d@s:/a:/b").unwrap(), ("p/d@s".into(), "/a:/b".into()));
        assert_eq!(s("p/d:x").unwrap(), ("p/d:x".into(), String::new()));
        assert_eq!(s("p:").unwrap(), ("p".into(), String::new()));
        assert!(s("/etc/passwd").is_err() && s(":/a").is_err());
    }
}
