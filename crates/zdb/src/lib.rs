//! `zdb`: inspection of a pool without a daemon and without changing it (chapter 09 §8.1). The
//! output has OpenZFS's format, for scripts and users that know it.
//!
//! A pool that the daemon has imported is read without locks, as of its last synced txg, from
//! the devices that the daemon names.
//!
//! Departures: without `-e` OpenZFS reads a cache file; here other pools are searched for. An
//! audit (`-b`, `-c`) lists all errors instead of aborting at the first contradiction.
//!
//! # What it must not know
//! How a pool is changed. Structures and their checks are the engine's (`cenote::inspect`);
//! this crate shows them. It requests only the names of devices from the daemon.

mod blocks;
mod bptext;
mod config;
mod datasets;
mod dedup;
mod labels;
mod layout;
mod logs;
mod metaslabs;
mod object;
mod spacecheck;
mod zaps;

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use base::{ErrorKind, Result, Txg};
use cenote::inspect::spa::Spa;
use cenote::{Engine, EngineConfig, FoundPool, ImportOptions, Pool, Search};
use commands::Use;
use commands::getopt::Parsed;
use proto::client::Client;
use proto::runtime::Runtime;
use proto::{Reply, Request};
use ui::Exit;

/// Stands for `--layout`.
const LAYOUT: char = 'g';
/// Memory for cached blocks.
const CACHE: u64 = 256 << 20;

const USAGE: &str = "\
Usage:	zdb [-bcdhimuyCDLPvAFX] [-e [-p DIR]...] [-t TXG] POOL[/DATASET[@SNAP]] [OBJECT...]
	zdb -O [-e [-p DIR]...] DATASET PATH
	zdb --layout [-e [-p DIR]...] DATASET[@SNAP]
	zdb -l [-Aqu] DEVICE
    Main options:
        -b  block statistics and leaks    -c  verify checksums (-cc: of data too)
        -d  datasets and objects          -h  pool history
        -i  intent logs                   -m  metaslabs
        -u  uberblock                     -C  configuration
        -l  label of a device             -O  object behind a path
        -y  replay space maps and logs, looking for contradictions
        -D  dedup tables (-DD to -DDDDD: more)
    Below options are intended for use with other options:
        -e  pool is not imported          -p DIR  search there (repeatable)
        -L  do not look for leaks         -P  exact numbers
        -t TXG  highest group to use      -F -X  go back to one that opens
        -v  more of it all                -q  with -l: say nothing
        -A -G -I -o -U -x -Y -V  ignored
";

/// The exit codes of zdb.
pub(crate) mod exit {
    use ui::Exit;

    /// Wrong usage, or the pool cannot be opened.
    pub(crate) const OPEN: Exit = Exit(1);
    /// Space maps are wrong.
    pub(crate) const SPACE: Exit = Exit(2);
    /// Blocks, or single copies of blocks, cannot be read.
    pub(crate) const READ: Exit = Exit(3);
}

/// The options: how often each letter was given.
pub(crate) struct DumpOptions {
    parsed: Parsed,
}

impl DumpOptions {
    /// The level of a letter: how often it was given; `-v` adds to letters that were given.
    pub(crate) fn level(&self, letter: char) -> usize {
        let of = |l: char| self.parsed.opts.iter().filter(|o| o.letter == l).count();
        match of(letter) {
            0 => 0,
            n => n + of('v'),
        }
    }

    /// Whether a letter was given.
    pub(crate) fn has(&self, letter: char) -> bool {
        self.parsed.has(letter)
    }
}

/// The worse of two exit codes: the first that is not success.
pub(crate) fn worse(a: Exit, b: Exit) -> Exit {
    if a == Exit::OK { b } else { a }
}

/// Runs zdb.
///
/// # Errors
/// The requested data cannot be read.
pub fn main(argv: &[OsString]) -> Result<Exit> {
    let command = commands::find("cenote", "zdb");
    let parsed = match command.parse(argv) {
        Ok(parsed) => parsed,
        Err(bad) => {
            if let Some(message) = bad.message() {
                ui::err(&format!("zdb: {message}"));
            }
            ui::err(USAGE.trim_end());
            return Ok(exit::OPEN);
        }
    };
    let opts = DumpOptions { parsed };
    let absent = command.flags.iter().find(|f| f.usage == Use::Refused && opts.has(f.letter));
    if let Some(flag) = absent {
        ui::err(&ui::not_yet(&format!("zdb: option -{}", flag.letter)));
        return Ok(exit::OPEN);
    }
    let words = opts.parsed.words();
    if opts.has('l') {
        return labels::main(&opts, &words);
    }
    let Some(target) = words.first() else {
        ui::err(USAGE.trim_end());
        return Ok(exit::OPEN);
    };
    let pool = match open(&opts, target) {
        Ok(pool) => pool,
        Err(e) => {
            ui::err(&format!("zdb: can't open '{target}': {}", reason(&e)));
            return Ok(exit::OPEN);
        }
    };
    let rest = words.get(1..).unwrap_or_default();
    if opts.has(LAYOUT) {
        return datasets::layout(pool.spa(), target);
    }
    if opts.has('O') {
        return datasets::by_path(&opts, pool.spa(), target, rest);
    }
    everything(&opts, pool.spa(), target, rest)
}

/// The text for an error, zdb's own where it has one.
fn reason(error: &base::Error) -> String {
    match error.kind() {
        ErrorKind::NotFound => "No such file or directory".to_owned(),
        _ => error.to_string(),
    }
}

/// Name of the pool in `POOL[/DATASET][@SNAP]`.
fn pool_of(target: &str) -> &str {
    target.split(['/', '@', '#']).next().unwrap_or(target)
}

/// The state of a pool that the daemon has imported.
fn imported(name: &str) -> Option<proto::Pool> {
    let runtime = Runtime::from_env().ok()?;
    let mut client = Client::running(&runtime).ok()??;
    let request = Request::PoolStatus { name: name.to_owned(), verbose: false };
    match client.request(&request) {
        Ok(Reply::Pool(pool)) => Some(*pool),
        _ => None,
    }
}

/// Paths of the leaves of a tree.
fn leaves(vdev: &proto::Vdev, out: &mut Vec<PathBuf>) {
    out.extend(vdev.path.clone());
    vdev.children.iter().for_each(|child| leaves(child, out));
}

fn open(opts: &DumpOptions, target: &str) -> Result<Arc<Pool>> {
    let config = EngineConfig { cache_bytes: Some(CACHE), ..EngineConfig::default() };
    let engine = Engine::new(config)?;
    let dirs = opts.parsed.opts.iter().filter(|o| o.letter == 'p');
    let mut paths: Vec<PathBuf> = dirs.map(|o| PathBuf::from(&o.arg)).collect();
    let name = pool_of(target);
    let imported = if opts.has('e') { None } else { imported(name) };
    if let Some(pool) = &imported {
        ui::err(&format!(
            "zdb: '{name}' is imported: this is its last synced state, which may change meanwhile"
        ));
        if paths.is_empty() {
            leaves(&pool.root, &mut paths);
        }
    }
    let found = engine.discover(&Search { paths, ..Search::default() })?;
    let guid = imported.map(|pool| pool.guid);
    let wanted = |p: &&FoundPool| match guid {
        Some(guid) => p.guid.0 == guid,
        None => p.name == name || p.guid.0.to_string() == name,
    };
    let mut matching = found.pools.iter().filter(wanted);
    let missing = || base::Error::not_found(format!("no pool {name} was found"));
    let pool = matching.next().ok_or_else(missing)?;
    if matching.next().is_some() {
        return Err(base::Error::invalid("more than one pool has this name; use its guid"));
    }
    let txg = match opts.parsed.last('t') {
        None => None,
        Some(text) => {
            let bad = |_| base::Error::invalid(format!("bad transaction group '{text}'"));
            Some(Txg(text.parse().map_err(bad)?))
        }
    };
    let options = ImportOptions {
        rewind: opts.has('F') || opts.has('X'),
        extreme: opts.has('X'),
        missing_log: true,
        // Found by guid, the pool keeps its own name; under a temporary name it keeps that.
        new_name: match guid {
            Some(_) => Some(name.to_owned()),
            None => (pool.name != name).then(|| pool.name.clone()),
        },
        txg,
        shared: true,
        ..ImportOptions::default()
    };
    engine.inspect(pool, &options)
}

/// Prints everything that the letters select, in zdb's order.
fn everything(opts: &DumpOptions, spa: &Spa, target: &str, rest: &[String]) -> Result<Exit> {
    let mut result = Exit::OK;
    let any = ['C', 'u', 'm', 'd', 'i', 'b', 'c', 'h', 'y', 'D'].iter().any(|&l| opts.has(l));
    if !any {
        ui::err("zdb: nothing to do; give at least one of -bcdhimuyCD");
        return Ok(exit::OPEN);
    }
    if opts.has('C') {
        config::mos_config(spa)?;
    }
    if opts.has('u') {
        config::uberblock(opts, spa);
    }
    if opts.has('D') {
        dedup::main(opts, spa)?;
    }
    if opts.has('m') {
        result = worse(result, metaslabs::main(opts, spa, rest)?);
    }
    if opts.has('d') || opts.has('i') {
        result = worse(result, datasets::main(opts, spa, target, rest)?);
    }
    if opts.has('b') || opts.has('c') {
        result = worse(result, blocks::main(opts, spa)?);
    }
    if opts.has('h') {
        config::history(spa)?;
    }
    if opts.has('y') {
        result = worse(result, spacecheck::main(spa)?);
    }
    Ok(result)
}
