//! Random 8 KiB reads of one file, many at a time, through the library alone:
//! `randread DIR POOL FILE THREADS SECONDS CACHE_MIB` prints reads a second and the
//! most operations that one device had at once.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use base::rt;
use cenote::{Engine, EngineConfig, Error, ImportOptions, Io, Result, Search};

/// Bytes of one read.
const BLOCK: u64 = 8 << 10;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [dir, name, file, threads, seconds, cache] = &args[..] else {
        return Err(Error::invalid("usage: randread DIR POOL FILE THREADS SECONDS CACHE_MIB"));
    };
    let number = |text: &str| text.parse::<u64>().map_err(|_| Error::invalid("not a number"));
    let cache_bytes = Some(number(cache)? << 20);
    let engine = Engine::new(EngineConfig { cache_bytes, ..EngineConfig::default() })?;
    let found = engine.discover(&Search { paths: vec![dir.into()], ..Search::default() })?;
    let pool = found.pools.iter().find(|p| p.name == *name);
    let pool = pool.ok_or_else(|| Error::not_found("no such pool"))?;
    let options = ImportOptions { readonly: true, force: true, ..ImportOptions::default() };
    let pool = engine.import(pool, &options)?;
    let files = pool.root()?.open_fs()?;
    let id = files.walk(file.as_bytes(), Io::WAIT)?;
    let blocks = (files.attrs(id, Io::WAIT)?.size / BLOCK).max(1);

    let (stop, reads) = (AtomicBool::new(false), AtomicU64::new(0));
    let failed = rt::Mutex::new(None);
    let workers = usize::try_from(number(threads)?.clamp(1, 1024)).unwrap_or(1);
    let length = Duration::from_secs(number(seconds)?.max(1));
    let seed = rt::random_u64()?;
    let begin = rt::now();
    // One more thread than the readers measures the time.
    rt::fan_out(workers + 1, |n| {
        if n == workers {
            rt::sleep(length);
            stop.store(true, Relaxed);
            return;
        }
        let mut state = seed ^ (n as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        while !stop.load(Relaxed) {
            // xorshift64: good enough to leave no pattern.
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            if let Err(e) = files.read(id, state % blocks * BLOCK, BLOCK as usize, Io::WAIT) {
                failed.lock().get_or_insert(e);
                return;
            }
            reads.fetch_add(1, Relaxed);
        }
    });
    let seconds = begin.elapsed().as_secs_f64();
    if let Some(e) = failed.into_inner() {
        return Err(e);
    }
    let tree = pool.spa().zio().tree();
    let depths = tree.leaves().filter_map(|(_, leaf)| leaf.device());
    let depth = depths.map(|d| d.stats().snapshot().max_in_flight).max().unwrap_or(0);
    println!("{:.0} {depth}", reads.load(Relaxed) as f64 / seconds);
    Ok(())
}
