//! Cold reads in order of one file through the library alone:
//! `seqread IMAGE MIB RECORD_KIB READ_KIB ROUNDS [CACHE_MIB]` makes a pool in the file IMAGE
//! if that is absent, with one file of MIB incompressible MiB in records of RECORD_KIB. Then it
//! imports the pool ROUNDS times with an empty cache, reads the file in steps of READ_KIB, and
//! prints MB/s and the device's requests a MB of each round.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::rt;
use cenote::create::{CreateRequest, Force, NewKind, NewVdev, PoolSetting};
use cenote::files::{Caller, New, WritePosition};
use cenote::{Engine, EngineConfig, Error, ImportOptions, Io, Pool, PropData, Result, Search};

/// The pool, its dataset, and the file there.
const POOL: &str = "seqread";
const DATASET: &str = "seqread/fs";
const FILE: &[u8] = b"file";
/// Bytes of one write.
const STEP: usize = 1 << 20;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let usage = "usage: seqread IMAGE MIB RECORD_KIB READ_KIB ROUNDS [CACHE_MIB]";
    let (image, numbers) = args.split_first().ok_or_else(|| Error::invalid(usage))?;
    let numbers: Vec<u64> = numbers.iter().filter_map(|n| n.parse().ok()).collect();
    let (mib, record, read, rounds, cache) = match numbers[..] {
        [mib, record, read, rounds] => (mib, record, read, rounds, 512),
        [mib, record, read, rounds, cache] => (mib, record, read, rounds, cache),
        _ => return Err(Error::invalid(usage)),
    };
    let image = PathBuf::from(image);
    let new_engine = || {
        let cache_bytes = Some(cache << 20);
        Engine::new(EngineConfig { cache_bytes, ..EngineConfig::default() })
    };
    if !image.exists() {
        make(&new_engine()?, &image, mib, record << 10)?;
    }
    for _ in 0..rounds {
        let engine = new_engine()?;
        let search = Search { paths: vec![image.clone()], ..Search::default() };
        let found = engine.discover(&search)?;
        let found = found.pools.iter().find(|p| p.name == POOL);
        let found = found.ok_or_else(|| Error::not_found("no such pool"))?;
        let options = ImportOptions { readonly: true, force: true, ..ImportOptions::default() };
        let pool = engine.import(found, &options)?;
        let files = pool.dataset(DATASET)?.open_fs()?;
        let id = files.walk(FILE, Io::WAIT)?;
        let size = files.attrs(id, Io::WAIT)?.size;
        let before = requests(&pool);
        let begin = rt::now();
        let mut at = 0;
        while at < size {
            let len = (size - at).min(read << 10);
            files.read(id, at, len as usize, Io::WAIT)?;
            at += len;
        }
        let mb = size as f64 / 1e6;
        let seconds = begin.elapsed().as_secs_f64();
        println!("{:.0} {:.2}", mb / seconds, (requests(&pool) - before) as f64 / mb);
    }
    Ok(())
}

/// Read requests that the devices completed.
fn requests(pool: &Pool) -> u64 {
    let tree = pool.spa().zio().tree();
    tree.leaves().filter_map(|(_, leaf)| leaf.device()).map(|d| d.stats().snapshot().reads).sum()
}

/// Makes the pool and its file, and exports it.
fn make(engine: &Arc<Engine>, image: &Path, mib: u64, record: u64) -> Result<()> {
    let failed = |e| Error::io("cannot make the image", e);
    let size = (mib << 20) + (mib << 20) / 2 + (128 << 20);
    std::fs::File::create_new(image).and_then(|f| f.set_len(size)).map_err(failed)?;
    let image = std::path::absolute(image).map_err(failed)?;
    let request = CreateRequest {
        force: Force::ALL,
        settings: vec![PoolSetting::Stored("ashift", 12)],
        ..CreateRequest::new(POOL, vec![NewVdev::new(NewKind::File(image))])
    };
    let pool = engine.create_pool(&request)?;
    let pool = pool.ok_or_else(|| Error::bug("a pool that was not made"))?;
    let props = [("recordsize".to_owned(), PropData::Num(record))];
    let fs = pool.create_filesystem(DATASET, &props, None)?.open_fs()?;
    let id = fs.make(&Caller::root(), fs.root(), FILE, &New::file(0o644))?.id;
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut bytes = vec![0; STEP];
    for n in 0..mib {
        for word in bytes.chunks_exact_mut(8) {
            // xorshift64: nothing that a compressor could use.
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            word.copy_from_slice(&state.to_le_bytes());
        }
        fs.write(&Caller::root(), id, WritePosition::Offset(n << 20), &bytes)?;
    }
    pool.sync()?;
    drop(fs);
    pool.export()
}
