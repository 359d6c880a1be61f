//! The rate of cache hits.
//!
//! # Theory
//! Reads of 8 KiB at random offsets of a file that is in the cache, in three ways: borrowing
//! the cache's own buffers, copying into the caller's buffer, and through a mount. The limit of
//! each is measured in alternating rounds, because a machine's rates drift. For copies it is
//! `memcpy` from a plain buffer of the same size at the same offsets. For records that are
//! compressed in the cache it is the decoder alone, which stops where the read ends. For a
//! mount it is a file of another file system in the kernel's page cache.
//!
//! Two sets of 128 KiB records are read: one that fits decompressed, and one that is eight
//! times what the cache has left for decompressed copies once the compressed set is in it.

use std::fs::File as HostFile;
use std::hint::black_box;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use base::{Error, Result, rt};
use cenote::File;
use cenote::Io;
use codec::compress::{Compression, compress, decompress_head};

use super::args::opt;
use super::chart::Shape;
use super::frame::{Cell, ReportTable};
use super::lab::{self, Lab, LabPool};
use super::sample::{SampleContent, XorShift, median};
use super::tidy::ScratchFile;
use super::{Bench, Run, Stop, tidy};

pub(super) const BENCH: Bench = Bench {
    name: "cached",
    about: "8 KiB reads from memory: borrowed, copied, decompressed, mounted",
    words: "",
    options: &[
        &[
            opt("--size", "SIZE", "the file of small records (1G)"),
            opt("--lz4-size", "SIZE", "the file of 128 KiB lz4 records (as --size)"),
            opt("--threads", "N", "threads of the parallel figures (all processors)"),
            opt("--time", "TIME", "length of one measurement (0.5s)"),
            opt("--rounds", "N", "rounds; medians count (5)"),
            opt("--only", "LIST", "small, lz4, mount (all)"),
            opt("--peer-dir", "DIR", "a directory of another file system, beside the mount"),
            opt("--policy", "NAME", "default or arc (default)"),
        ],
        lab::OPTIONS,
    ],
    run,
};

/// Bytes of one read, and of the small records.
const READ: usize = 8 << 10;
/// Bytes of the large records.
const RECORD: usize = 128 << 10;
/// Reads between two readings of the clock.
const BATCH: u64 = 128;
/// Memory of the cache beyond the data: metadata, directory.
const ROOM: u64 = 64 << 20;
/// The ratio of the large set to the space for decompressed copies.
const TIMES_FRONT: u64 = 8;
const PARTS: [&str; 3] = ["small", "lz4", "mount"];
const LIBRARY: &str = "library";

struct CachedSetup {
    size: u64,
    lz4: u64,
    threads: usize,
    time: Duration,
    rounds: u64,
}

type Read<'a> = dyn Fn(&mut XorShift, &mut [u8]) -> Result<()> + Sync + 'a;

/// One measurement: reads, each at a random block.
struct MeasuredReads<'a> {
    name: String,
    threads: usize,
    /// Gets a buffer for a read and, after that, for a record.
    read: Box<Read<'a>>,
    /// Reads a second in each round.
    rates: Vec<f64>,
}

/// Measurements in alternating rounds.
#[derive(Default)]
struct InterleavedRuns<'a>(Vec<MeasuredReads<'a>>);

impl<'a> InterleavedRuns<'a> {
    fn add(
        &mut self,
        name: impl Into<String>,
        threads: usize,
        read: impl Fn(&mut XorShift, &mut [u8]) -> Result<()> + Sync + 'a,
    ) {
        let read = Box::new(read);
        self.0.push(MeasuredReads { name: name.into(), threads, read, rates: Vec::new() });
    }

    /// Runs all of them in each round.
    fn measure(&mut self, run: &mut Run, set: &CachedSetup) -> Result<(), Stop> {
        let total = set.rounds * self.0.len() as u64;
        let mut done = 0;
        for round in 0..set.rounds {
            for cell in &mut self.0 {
                run.step(&cell.name, done, total)?;
                cell.rates.push(rate(cell, set.time, round)?);
                done += 1;
            }
        }
        Ok(())
    }

    fn rate(&self, name: &str) -> f64 {
        let cell = self.0.iter().find(|c| c.name == name);
        cell.and_then(|c| median(c.rates.iter().copied())).unwrap_or(f64::NAN)
    }

    /// The median of the ratios within rounds.
    fn ratio(&self, name: &str, to: &str) -> f64 {
        let find = |name: &str| self.0.iter().find(|c| c.name == name);
        let (Some(a), Some(b)) = (find(name), find(to)) else { return f64::NAN };
        median(a.rates.iter().zip(&b.rates).map(|(a, b)| a / b)).unwrap_or(f64::NAN)
    }

    /// Adds rows to the table.
    fn add_rows(&self, part: &str, table: &mut ReportTable) {
        for cell in &self.0 {
            let rates = &cell.rates;
            let least = rates.iter().copied().fold(f64::INFINITY, f64::min);
            let most = rates.iter().copied().fold(0.0, f64::max);
            let middle = self.rate(&cell.name);
            table.rows.push(vec![
                part.into(),
                cell.name.as_str().into(),
                Cell::Count(cell.threads as u64),
                Cell::real(Some(middle)),
                Cell::real(Some(least)),
                Cell::real(Some(most)),
                Cell::real(Some(1e9 * cell.threads as f64 / middle)),
            ]);
        }
    }
}

/// Reads a second of all threads together.
fn rate(cell: &MeasuredReads<'_>, time: Duration, seed: u64) -> Result<f64> {
    let reads = AtomicU64::new(0);
    let failed = rt::Mutex::new(None);
    let begin = rt::now();
    rt::fan_out(cell.threads, |thread| {
        // Equal offsets for measurements that are compared.
        let mut rng = XorShift::new(seed << 16 | thread as u64);
        let mut out = vec![0; READ + RECORD];
        let mut done = 0;
        // At least once, because on a busy machine a thread may start late.
        loop {
            for _ in 0..BATCH {
                if let Err(e) = (cell.read)(&mut rng, &mut out) {
                    failed.lock().get_or_insert(e);
                    return;
                }
            }
            done += BATCH;
            if begin.elapsed() >= time || tidy::interrupted() {
                break;
            }
        }
        reads.fetch_add(done, Relaxed);
    });
    let seconds = begin.elapsed().as_secs_f64();
    match failed.into_inner() {
        Some(e) => Err(e),
        None => Ok(reads.load(Relaxed) as f64 / seconds),
    }
}

fn run(run: &mut Run) -> Result<(), Stop> {
    let args = &run.args;
    args.no_rest()?;
    let sizes = 1 << 20..=1 << 40;
    let size = args.size("--size", 1 << 30, sizes.clone())? / RECORD as u64 * RECORD as u64;
    let lz4 = args.size("--lz4-size", size, sizes)? / RECORD as u64 * RECORD as u64;
    let threads = args.count("--threads", rt::parallelism() as u64, 1..=1024)?;
    let set = CachedSetup {
        size,
        lz4,
        threads: usize::try_from(threads).unwrap_or(1),
        time: args.time("--time", Duration::from_millis(500))?,
        rounds: args.count("--rounds", 5, 1..=999)?,
    };
    let only = args.text("--only").unwrap_or("small,lz4,mount").to_owned();
    if let Some(bad) = only.split(',').find(|w| !PARTS.contains(w)) {
        return Err(Stop::usage(format!("--only: '{bad}' is not small, lz4 or mount")));
    }
    let want = |part: &str| only.split(',').any(|w| w == part);
    let policy = match lab::policies(args, "default")?[..] {
        [one] => one,
        _ => return Err(Stop::usage("--policy: one policy at a time")),
    };
    let (noise, half) = (SampleContent::noise(1), SampleContent::half());
    let data = if want("lz4") { set.size + set.lz4 } else { set.size };
    let lab = Lab::new(run, data, |maker| {
        maker.file("small", set.size, READ as u32, &noise)?;
        if want("lz4") {
            maker.file("lz4", set.lz4, RECORD as u32, &half)?;
        }
        Ok(())
    })?;
    run.report.set("size", Cell::Bytes(set.size));
    run.report.set("lz4 size", Cell::Bytes(set.lz4));
    run.report.set("threads", Cell::Count(set.threads as u64));
    run.report.set("policy", lab::word(policy).into());
    run.report.set("rounds", Cell::Count(set.rounds));
    let mut table = ReportTable::new(
        "reads",
        &[
            ("part", "PART"),
            ("what", "WHAT"),
            ("threads", "THREADS"),
            ("reads_per_second", "READS/S"),
            ("least", "LEAST"),
            ("most", "MOST"),
            ("ns_per_read", "NS/READ"),
        ],
    );
    if want("small") {
        small(run, &set, &lab.open(set.size + set.size / 4 + ROOM, policy)?, &mut table)?;
    }
    if want("lz4") {
        let held = fitting(run, &set, &lab.open(2 * set.lz4 + ROOM, policy)?, &mut table)?;
        beyond(run, &set, &|arc| lab.open(arc, policy), held, &half, &mut table)?;
    }
    if want("mount") {
        mounted(run, &set, &lab.open(set.size + set.size / 4 + ROOM, policy)?, &mut table)?;
    }
    picture(run, &table);
    run.report.tables.push(table);
    Ok(())
}

fn picture(run: &mut Run, table: &ReportTable) {
    let text = |c: &Cell| match c {
        Cell::Text(t) => t.clone(),
        Cell::Count(n) => n.to_string(),
        _ => String::new(),
    };
    let label = |r: &Vec<Cell>| format!("{}: {}", text(&r[0]), text(&r[1]));
    let value = |r: &Vec<Cell>| if let Cell::Real(v) = r[3] { v } else { f64::NAN };
    let labels = table.rows.iter().map(label).collect();
    let values = table.rows.iter().map(value).collect();
    run.report.chart(Shape::Bars, "reads/s", labels, vec![("reads/s".to_owned(), values)]);
}

/// Reads the whole file once, and compares it with its content.
fn warm(run: &mut Run, file: &File, content: &SampleContent, what: &str) -> Result<(), Stop> {
    let mut at = 0;
    let mut want = vec![0; RECORD];
    let mut have = vec![0; RECORD];
    while at < file.size() {
        run.step(what, at >> 20, file.size() >> 20)?;
        let len = (file.size() - at).min(RECORD as u64) as usize;
        file.read_at(at, &mut have[..len], Io::WAIT)?;
        content.fill(at, &mut want[..len]);
        if have[..len] != want[..len] {
            return Err(Error::corrupt(format!("wrong bytes at {at}")).into());
        }
        at += len as u64;
    }
    Ok(())
}

/// A random offset of a read.
fn random_offset(rng: &mut XorShift, size: u64) -> u64 {
    rng.below(size / READ as u64) * READ as u64
}

fn borrow(file: &File, rng: &mut XorShift) -> Result<()> {
    let buf = file.borrow(random_offset(rng, file.size()), READ, Io::WAIT)?;
    if black_box(&buf).len() == READ { Ok(()) } else { Err(Error::invalid("a short read")) }
}

fn copy(file: &File, rng: &mut XorShift, out: &mut [u8]) -> Result<()> {
    let n = file.read_at(random_offset(rng, file.size()), &mut out[..READ], Io::WAIT)?;
    black_box(&out);
    if n == READ { Ok(()) } else { Err(Error::invalid("a short read")) }
}

/// Small records: borrowed and copied, compared with `memcpy`.
fn small(
    run: &mut Run,
    set: &CachedSetup,
    bench_pool: &LabPool,
    table: &mut ReportTable,
) -> Result<(), Stop> {
    let file = bench_pool.file("small")?;
    warm(run, &file, &SampleContent::noise(1), "reading the small records")?;
    // Written completely, so that its pages are mapped.
    let mut plain = vec![0u8; set.size as usize];
    SampleContent::half().fill(0, &mut plain);
    let before = bench_pool.disk();
    let mut runs = InterleavedRuns::default();
    let all = set.threads;
    runs.add("borrowed", 1, |rng, _| borrow(&file, rng));
    runs.add("copied", 1, |rng, out| copy(&file, rng, out));
    let plain = &plain[..];
    let memcpy = |rng: &mut XorShift, out: &mut [u8]| {
        let at = random_offset(rng, plain.len() as u64) as usize;
        out[..READ].copy_from_slice(&plain[at..at + READ]);
        black_box(&out);
        Ok(())
    };
    runs.add("memcpy", 1, memcpy);
    let many = |what: &str| format!("{what}, all");
    runs.add(many("borrowed"), all, |rng, _| borrow(&file, rng));
    runs.add(many("copied"), all, |rng, out| copy(&file, rng, out));
    runs.add(many("memcpy"), all, memcpy);
    runs.measure(run, set)?;
    runs.add_rows(LIBRARY, table);
    let report = &mut run.report;
    report.at_least("borrowed reads/s, one thread", runs.rate("borrowed"), 2e6);
    let each = runs.rate(&many("borrowed")) / all as f64;
    report.at_least(format!("borrowed reads/s a core, {all} threads"), each, 2e6);
    report.at_least("copied / memcpy, one thread", runs.ratio("copied", "memcpy"), 0.7);
    let ratio = runs.ratio(&many("copied"), &many("memcpy"));
    report.at_least(format!("copied / memcpy, {all} threads"), ratio, 0.7);
    let after = bench_pool.disk();
    if after.reads != before.reads {
        report.notes.push(format!("small: {} reads of the disk", after.reads - before.reads));
    }
    Ok(())
}

/// Large lz4 records, all of them decompressed in the cache; returns their compressed size in
/// bytes.
fn fitting(
    run: &mut Run,
    set: &CachedSetup,
    bench_pool: &LabPool,
    table: &mut ReportTable,
) -> Result<u64, Stop> {
    let file = bench_pool.file("lz4")?;
    warm(run, &file, &SampleContent::half(), "reading the lz4 records")?;
    let mut runs = InterleavedRuns::default();
    runs.add("fits, borrowed", 1, |rng, _| borrow(&file, rng));
    runs.add("fits, copied", 1, |rng, out| copy(&file, rng, out));
    runs.add("fits, copied, all", set.threads, |rng, out| copy(&file, rng, out));
    // The cache makes decompressed copies of blocks that are used repeatedly, not at the first
    // read.
    settle(run, set, &file, "settling")?;
    runs.measure(run, set)?;
    runs.add_rows("lz4", table);
    run.report.at_least(
        "8 KiB reads/s of 128 KiB lz4 records that fit decompressed, one thread",
        runs.rate("fits, copied"),
        5e5,
    );
    Ok(bench_pool.stats().compressed_size)
}

/// Reads at random until the cache had several occasions to keep each copy.
fn settle(run: &mut Run, set: &CachedSetup, file: &File, what: &str) -> Result<(), Stop> {
    let records = file.size() / RECORD as u64;
    let (mut rng, mut out) = (XorShift::new(!0), vec![0; READ]);
    let begin = rt::now();
    for n in 0..4 * records {
        // A cache that decompresses each time must not make this loop endless.
        if n.is_multiple_of(BATCH) {
            run.step(what, n, 4 * records)?;
            if begin.elapsed() > set.time * 20 {
                break;
            }
        }
        copy(file, &mut rng, &mut out)?;
    }
    Ok(())
}

/// Large lz4 records, eight times the space for decompressed copies, compared with the decoder
/// alone.
fn beyond(
    run: &mut Run,
    set: &CachedSetup,
    open: &dyn Fn(u64) -> Result<LabPool>,
    held: u64,
    content: &SampleContent,
    table: &mut ReportTable,
) -> Result<(), Stop> {
    let packed = pack(run, content, set.lz4)?;
    let stored: u64 = packed.iter().map(|b| b.len() as u64).sum();
    let front = set.lz4 / TIMES_FRONT;
    // The cache's need for the stored form, as measured where all fitted.
    let bench_pool = open(stored.max(held) + front)?;
    let file = bench_pool.file("lz4")?;
    warm(run, &file, content, "reading the lz4 records")?;
    settle(run, set, &file, "settling")?;
    let (stats, disk) = (bench_pool.stats(), bench_pool.disk());
    let mut runs = InterleavedRuns::default();
    runs.add("beyond, borrowed", 1, |rng, _| borrow(&file, rng));
    runs.add("beyond, copied", 1, |rng, out| copy(&file, rng, out));
    let decoder = |rng: &mut XorShift, out: &mut [u8]| {
        let at = random_offset(rng, set.lz4);
        let (record, skip) = ((at / RECORD as u64) as usize, (at % RECORD as u64) as usize);
        let (out, room) = out.split_at_mut(READ);
        decompress_head(Compression::Lz4.id(), &packed[record], &mut room[..skip + READ])?;
        out.copy_from_slice(&room[skip..skip + READ]);
        black_box(&out);
        Ok(())
    };
    runs.add("decoder alone", 1, decoder);
    runs.add("beyond, copied, all", set.threads, |rng, out| copy(&file, rng, out));
    runs.add("decoder alone, all", set.threads, decoder);
    runs.measure(run, set)?;
    runs.add_rows("lz4", table);
    let ratio = runs.ratio("beyond, copied", "decoder alone");
    let what = "8 KiB reads of lz4 records, 8 times the front / decoder alone";
    run.report.at_least(what, ratio, 0.9);
    let ratio = runs.ratio("beyond, copied, all", "decoder alone, all");
    run.report.at_least(format!("the same, {} threads", set.threads), ratio, 0.9);
    let (now, reads) = (bench_pool.stats(), bench_pool.disk().reads - disk.reads);
    let nice = cenote::props::nicebytes;
    run.report.notes.push(format!(
        "beyond: {} stored, {} as the cache holds it, {} for copies; in the cache {} compressed and {} of copies; \
         {} hits decompressed, {reads} reads of the disk",
        nice(stored),
        nice(stored.max(held)),
        nice(front),
        nice(now.compressed_size),
        nice(now.overhead_size),
        now.forms.decompressed.saturating_sub(stats.forms.decompressed)
    ));
    Ok(())
}

/// The records in their form on disk.
fn pack(run: &mut Run, content: &SampleContent, size: u64) -> Result<Vec<Box<[u8]>>, Stop> {
    let (mut plain, mut room) = (vec![0; RECORD], vec![0; RECORD]);
    let mut packed = Vec::new();
    for n in 0..size / RECORD as u64 {
        run.step("compressing", (n * RECORD as u64) >> 20, size >> 20)?;
        content.fill(n * RECORD as u64, &mut plain);
        let len = compress(Compression::Lz4, &plain, &mut room);
        let len = len.ok_or_else(|| Error::bug("the sample does not compress"))?;
        packed.push(room[..len].into());
    }
    Ok(packed)
}

fn host_open(path: &Path) -> Result<HostFile> {
    HostFile::open(path).map_err(|e| Error::io("cannot open", e).on_path(path.to_string_lossy()))
}

/// A file of the same size in another file system.
fn peer(run: &mut Run, set: &CachedSetup, dir: &Path) -> Result<ScratchFile, Stop> {
    lab::check_space(dir, set.size)?;
    let path = dir.join(format!("cenote-bench-{}.tmp", std::process::id()));
    let failed = |e| Error::io("cannot write", e).on_path(path.to_string_lossy());
    let made = ScratchFile::new(path.clone());
    let mut file = HostFile::create_new(&path).map_err(failed)?;
    let (noise, mut block) = (SampleContent::noise(1), vec![0; 1 << 20]);
    let mut at = 0;
    while at < set.size {
        run.step("writing beside the mount, MiB", at >> 20, set.size >> 20)?;
        let len = (set.size - at).min(1 << 20) as usize;
        noise.fill(at, &mut block[..len]);
        file.write_all(&block[..len]).map_err(failed)?;
        at += len as u64;
    }
    file.sync_all().map_err(failed)?;
    Ok(made)
}

/// Reads through the mount, compared with other file systems.
fn mounted(
    run: &mut Run,
    set: &CachedSetup,
    bench_pool: &LabPool,
    table: &mut ReportTable,
) -> Result<(), Stop> {
    // One mount with the kernel's cache and one without, over the same engine.
    let mounts = match bench_pool.mount(false).and_then(|m| Ok((m, bench_pool.mount(true)?))) {
        Ok(mounts) => mounts,
        Err(e) => {
            run.report.notes.push(format!("not mounted: {e}"));
            return Ok(());
        }
    };
    let work = bench_pool.work().to_owned();
    let beside = peer(run, set, &work)?;
    let other = run.args.text("--peer-dir").map(Path::new).map(Path::to_owned);
    let other = other.map(|dir| peer(run, set, &dir)).transpose()?;
    let mut files = vec![
        ("mount", host_open(&mounts.0.path().join("small"))?),
        // The second mount is measured last, because the first leaves its pages in the kernel's
        // cache.
        ("mount, direct_io", host_open(&mounts.1.path().join("small"))?),
        ("local disk", host_open(beside.path())?),
    ];
    if let Some(other) = &other {
        files.push(("peer", host_open(other.path())?));
    }
    let mut block = vec![0; 1 << 20];
    for (name, file) in &files {
        let mut at = 0;
        while at < set.size {
            run.step(&format!("reading once: {name}"), at >> 20, set.size >> 20)?;
            let len = (set.size - at).min(1 << 20) as usize;
            let failed = |e| Error::io("cannot read", e);
            file.read_exact_at(&mut block[..len], at).map_err(failed)?;
            at += len as u64;
        }
    }
    let mut runs = InterleavedRuns::default();
    for (name, file) in &files {
        let read = move |rng: &mut XorShift, out: &mut [u8]| {
            let at = random_offset(rng, set.size);
            file.read_exact_at(&mut out[..READ], at).map_err(|e| Error::io("cannot read", e))
        };
        runs.add(*name, 1, read);
        runs.add(format!("{name}, all"), set.threads, read);
    }
    runs.measure(run, set)?;
    runs.add_rows("mount", table);
    drop(runs);
    // Open files would keep the mounts busy.
    drop(files);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_taken_within_a_round() {
        let mut runs = InterleavedRuns::default();
        for name in ["a", "b"] {
            runs.add(name, 1, |_, _| Ok(()));
        }
        runs.0[0].rates = vec![10.0, 40.0, 90.0];
        runs.0[1].rates = vec![10.0, 20.0, 30.0];
        assert_eq!(runs.ratio("a", "b"), 2.0);
        assert_eq!(runs.rate("a"), 40.0);
        assert!(runs.ratio("a", "c").is_nan());
    }

    #[test]
    fn a_rate_counts_all_threads_and_passes_errors_on() {
        let count = AtomicU64::new(0);
        let mut runs = InterleavedRuns::default();
        runs.add("counts", 3, |_, _| {
            count.fetch_add(1, Relaxed);
            Ok(())
        });
        runs.add("fails", 2, |_, _| Err(Error::invalid("no")));
        let time = Duration::from_millis(20);
        let rate = super::rate(&runs.0[0], time, 0).unwrap();
        let counted = count.load(Relaxed) as f64;
        assert!(rate > 0.0 && counted >= 3.0 * BATCH as f64, "{rate} {counted}");
        assert!(rate <= counted / 0.02, "{rate} {counted}");
        assert!(super::rate(&runs.0[1], time, 0).is_err());
    }

    #[test]
    fn packed_records_unpack_to_the_content() {
        let content = SampleContent::half();
        let mut block = vec![0; RECORD];
        for n in 0..20u64 {
            content.fill(n * RECORD as u64, &mut block);
            let mut packed = vec![0; RECORD];
            let len = compress(Compression::Lz4, &block, &mut packed).unwrap();
            let mut head = vec![0; 3 * READ];
            decompress_head(Compression::Lz4.id(), &packed[..len], &mut head).unwrap();
            assert!(head == block[..3 * READ]);
        }
    }
}
