//! Memory that other processes need is returned to the system, and allocated again later.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::Path;
use std::time::Duration;

use base::rt;
use cenote::{ArcConfig, Engine, EngineConfig, ImportOptions, Io, Search};
use synth::{Builder, Compression, FileSpec, PoolSpec};
use testkit::Scratch;

const MIB: u64 = 1 << 20;

fn meminfo(root: &Path, available_mib: u64) {
    std::fs::create_dir_all(root.join("proc")).unwrap();
    let text = format!(
        "MemTotal:       4194304 kB\nMemFree:        {0} kB\nMemAvailable:   {0} kB\n",
        available_mib << 10
    );
    // Atomically, as a kernel's file changes.
    std::fs::write(root.join("proc/new"), text).unwrap();
    std::fs::rename(root.join("proc/new"), root.join("proc/meminfo")).unwrap();
}

/// Resident memory of this process, bytes.
fn rss() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// Waits until a condition is true: a second for the cache, and some more for a loaded
/// machine.
fn soon(what: &str, is: impl Fn() -> bool) {
    let start = rt::now();
    while !is() {
        assert!(start.elapsed() < Duration::from_secs(15), "not in time: {what}");
        rt::sleep(Duration::from_millis(20));
    }
    println!("MEMORY {what} after {:.2} s", start.elapsed().as_secs_f64());
}

/// Story: the cache kept its size while other processes lacked memory. The RSS decides.
#[test]
fn under_pressure_rss_falls_and_then_the_cache_grows_again() {
    let dir = Scratch::new("memory-pressure");
    let image = dir.path().join("image");
    let mut builder = Builder::create(&image, &PoolSpec::new("pressed", 512 * MIB)).unwrap();
    let spec =
        FileSpec { recordsize: 65_536, compression: Compression::Off, ..FileSpec::new(220 * MIB) };
    let fill = &mut |offset: u64, out: &mut [u8]| {
        for (n, chunk) in out.chunks_mut(8).enumerate() {
            let word = (offset + n as u64 * 8).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
        }
    };
    builder.file("f", &spec, fill).unwrap();
    builder.finish().unwrap();

    let root = dir.path().join("root");
    meminfo(&root, 2048);
    let arc = ArcConfig { grow_retry: 1, ..ArcConfig::default() };
    let engine = Engine::new(EngineConfig {
        cache_bytes: Some(256 * MIB),
        arc,
        memory_root: Some(root.clone()),
        ..EngineConfig::default()
    })
    .unwrap();
    assert!(engine.memory_warning().is_none());
    let found = engine.discover(&Search { paths: vec![image], ..Search::default() }).unwrap();
    let options = ImportOptions { readonly: true, ..ImportOptions::default() };
    let pool = engine.import(&found.pools[0], &options).unwrap();
    let fs = pool.root().unwrap().open_fs().unwrap();
    let file = fs.open_file(fs.walk(b"f", Io::WAIT).unwrap(), Io::WAIT).unwrap();
    let read_all = || {
        for at in (0..220 * MIB).step_by(65_536) {
            file.borrow(at, 65_536, Io::WAIT).unwrap();
        }
    };
    read_all();
    let (full, size) = (rss(), engine.arc_stats().size);
    assert!(size > 200 * MIB, "the cache is full: {size}");

    meminfo(&root, 90);
    soon("RSS fell by 60 MiB", || rss() + 60 * MIB < full);
    let small = engine.arc_stats();
    assert!(small.size <= small.c && small.c <= size - 60 * MIB);
    assert!(small.no_grow && small.memory_indirect_count > 0 && small.memory_all_bytes > 0);
    read_all();
    let still = engine.arc_stats();
    assert!(still.size <= still.c, "no growth under pressure");

    meminfo(&root, 2048);
    soon("growth is allowed", || !engine.arc_stats().no_grow);
    read_all();
    read_all();
    assert!(engine.arc_stats().size > 200 * MIB, "it grew again");
}

/// Story, from a report of 2013: the machine's memory was read as 0, and the target of the
/// cache was 16 MiB while its size was eight times that.
#[test]
fn where_memory_cannot_be_read_a_stated_default_serves() {
    let dir = Scratch::new("memory-unknown");
    for text in [None, Some("MemTotal: 0 kB\n"), Some("MemTotal: lots\n")] {
        std::fs::create_dir_all(dir.path().join("proc")).unwrap();
        if let Some(text) = text {
            std::fs::write(dir.path().join("proc/meminfo"), text).unwrap();
        }
        let memory_root = Some(dir.path().to_owned());
        let engine = Engine::new(EngineConfig { memory_root, ..EngineConfig::default() }).unwrap();
        let warning = engine.memory_warning().unwrap();
        assert!(warning.contains("256 MiB") && warning.contains("zfs_arc_max"), "{warning}");
        assert_eq!(engine.arc_config().arc_max, 256 * MIB);
        assert!(engine.arc_stats().c >= 32 * MIB);
    }
}
