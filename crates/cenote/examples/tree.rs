//! Many small files: made, walked, removed, by the system's own calls in any directory.
//!
//! `tree DIR FILES STEP...`, each STEP one of `create`, `walk`, `delete`, `sync`; prints
//! files a second of each. Files have 600 to 3,071 bytes, 200 a directory.

use std::error::Error;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use base::rt::now;

const PER_DIR: usize = 200;

fn dir(root: &Path, n: usize) -> PathBuf {
    root.join(format!("d{}", n / PER_DIR))
}

fn create(root: &Path, files: usize, noise: &[u8]) -> std::io::Result<()> {
    for n in 0..files {
        let dir = dir(root, n);
        if n % PER_DIR == 0 {
            fs::create_dir(&dir)?;
        }
        let path = dir.join(format!("f{}", n % PER_DIR));
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(path)?;
        file.write_all(&noise[..600 + n * 7919 % 2472])?;
    }
    Ok(())
}

fn walk(root: &Path) -> std::io::Result<usize> {
    let mut found = 0;
    for entry in fs::read_dir(root)? {
        let entry = entry?;
        // Reads its attributes, as `find -printf %s` does.
        let kind = entry.metadata()?;
        found += if kind.is_dir() { walk(&entry.path())? } else { 1 };
    }
    Ok(found)
}

fn delete(root: &Path, files: usize) -> std::io::Result<()> {
    for n in 0..files {
        let dir = dir(root, n);
        fs::remove_file(dir.join(format!("f{}", n % PER_DIR)))?;
        if n % PER_DIR == PER_DIR - 1 || n + 1 == files {
            fs::remove_dir(dir)?;
        }
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().collect();
    let [_, root, files, steps @ ..] = &args[..] else {
        return Err("usage: tree DIR FILES STEP...".into());
    };
    let (root, files) = (Path::new(root), files.parse::<usize>()?);
    let mut seed = 1u32;
    let noise: Vec<u8> = std::iter::repeat_with(|| {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 24) as u8
    })
    .take(4096)
    .collect();
    for step in steps {
        let start = now();
        match step.as_str() {
            "create" => create(root, files, &noise)?,
            "walk" if walk(root)? == files => {}
            "walk" => return Err("files are missing".into()),
            "delete" => delete(root, files)?,
            "sync" => settle(root)?,
            other => return Err(format!("no such step: {other}").into()),
        }
        let seconds = start.elapsed().as_secs_f64();
        println!("{step} {:.0}", files as f64 / seconds);
    }
    Ok(())
}

/// Waits until the directory is on disk.
fn settle(root: &Path) -> std::io::Result<()> {
    File::open(root)?.sync_all()
}
