//! Measures how fast images are built: `speed FILE files N [flat]` makes N files of 4 KiB,
//! a thousand in a directory or all in one; `speed FILE data MIB [random]` makes one file.

#![allow(clippy::disallowed_methods, reason = "a front end")]

use std::path::Path;

use base::{Error, Result, rt};
use synth::{Builder, Compression, FileSpec, PoolSpec};

/// Pseudo-random words; `mask` makes them compressible.
fn fill(at: u64, out: &mut [u8], mask: u64) {
    let mut z = at | 1;
    for word in out.chunks_mut(8) {
        z ^= z << 13;
        z ^= z >> 7;
        z ^= z << 17;
        let bytes = (z & mask).to_le_bytes();
        word.copy_from_slice(&bytes[..word.len()]);
    }
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let usage = || Error::invalid("speed FILE files N [flat] | speed FILE data MIB [random]");
    let [_, path, what, n, rest @ ..] = &args[..] else { return Err(usage()) };
    let n: u64 = n.parse().map_err(|_| usage())?;
    let mut builder = Builder::create(Path::new(path), &PoolSpec::new("synthspeed", 256 << 30))?;
    let start = rt::now();
    if what == "files" {
        for i in 0..n {
            let name = if rest.is_empty() {
                format!("d{}/e{}/file-{i}", i / 100_000, i / 1000 % 100)
            } else {
                format!("file-{i}")
            };
            builder
                .file(&name, &FileSpec::new(4096), &mut |at, out| fill(at + i, out, u64::MAX))?;
        }
    } else {
        let mask = if rest.is_empty() { 0xf } else { u64::MAX };
        let spec = FileSpec { compression: Compression::Lz4, ..FileSpec::new(n << 20) };
        builder.file("data", &spec, &mut |at, out| fill(at, out, mask))?;
    }
    builder.finish()?;
    let all = start.elapsed().as_secs_f64();
    println!("{n} {what} in {all:.2} s, flushed: {:.0} a second", n as f64 / all);
    Ok(())
}
