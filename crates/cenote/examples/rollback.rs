//! A pool in a new file: snapshot, clone, write, roll back. `rollback FILE` prints what the
//! file system and its clone have in the end.

use cenote::create::{CreateRequest, NewKind, NewVdev};
use cenote::files::{Caller, New, WritePosition};
use cenote::{Engine, EngineConfig, Error, Io, ObjectId, Pool, Result};

fn write(pool: &Pool, dataset: &str, file: ObjectId, text: &str) -> Result<()> {
    let fs = pool.dataset(dataset)?.open_fs()?;
    fs.write(&Caller::root(), file, WritePosition::Offset(0), text.as_bytes()).map(drop)
}

fn show(pool: &Pool, dataset: &str, file: ObjectId) -> Result<()> {
    let blocks = pool.dataset(dataset)?.open_fs()?.read(file, 0, 64, Io::WAIT)?;
    let text: Vec<u8> = blocks.iter().flat_map(|b| b.iter().copied()).collect();
    println!("{dataset}: {}", String::from_utf8_lossy(&text));
    Ok(())
}

fn main() -> Result<()> {
    let path = std::env::args().nth(1).ok_or_else(|| Error::invalid("usage: rollback FILE"))?;
    let path = std::path::absolute(path).map_err(|e| Error::io("a path", e))?;
    let disk = std::fs::File::create_new(&path).map_err(|e| Error::io("a new file", e))?;
    disk.set_len(128 << 20).map_err(|e| Error::io("its size", e))?;
    let engine = Engine::new(EngineConfig::default())?;
    let request = CreateRequest::new("demo", vec![NewVdev::new(NewKind::File(path))]);
    let pool = engine.create_pool(&request)?.ok_or_else(|| Error::bug("a dry run"))?;

    let fs = pool.create_filesystem("demo/db", &[], None)?.open_fs()?;
    let file = fs.make(&Caller::root(), fs.root(), b"table", &New::file(0o644))?.id;
    write(&pool, "demo/db", file, "before the upgrade")?;
    pool.snapshot(&["demo/db@before".to_owned()], &[], None)?;
    pool.clone_snapshot("demo/db@before", "demo/test", &[], None)?;
    write(&pool, "demo/test", file, "tried in the clone")?;
    write(&pool, "demo/db", file, "broken by upgrade!")?;
    pool.rollback("demo/db@before", None)?;

    show(&pool, "demo/db", file)?;
    show(&pool, "demo/test", file)?;
    pool.export()
}
