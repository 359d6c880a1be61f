//! Send streams: their rates against reads and writes of the same content, and against peers.
//!
//! # Theory
//! A pool gets one file system with large files of 128 KiB records, one with many small files,
//! and one whose records lz4 compresses. Its streams go to a sink that counts, so only the
//! sender is measured. Each figure has its own measure, taken in turn with it, with an empty
//! cache before each:
//! * the stream of the large files, and what `cenote cat` reads: pieces of 4 MiB on eight threads;
//! * the stream of the small files, and the parallel traversal of the same snapshot, which reads
//!   every block;
//! * an incremental stream after one record in so many was overwritten: what it reads from the
//!   devices, in blocks for each changed one;
//! * a receive from memory, and writes of as many bytes to a new file, both up to the sync;
//! * empty incremental streams, which measure what a receive costs beside its content;
//! * processor time of a compressed stream (`-c`), and of `zstream decompress` and
//!   `zstream recompress` of its like.
//!
//! With `--peers` other programs move the same amounts from an ordinary directory
//! ([`super::send_peers`]).

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use base::{Error, ObjectId, Result, rt};
use cenote::create::{CreateRequest, Force, NewKind, NewVdev, PoolSetting};
use cenote::files::{Caller, New, WritePosition};
use cenote::inspect::codec::compress::Compression;
use cenote::inspect::dmu::traverse::{self, Bookmark, Flow, Visitor};
use cenote::inspect::ondisk::BlkPtr;
use cenote::inspect::ondisk::dnode::Dnode;
use cenote::inspect::zio::Zio;
use cenote::{
    Engine, EngineConfig, FileSystem, ImportOptions, Io, Pool, PropData, ReceiveNames,
    ReceiveOptions, Search, SendOptions, stream,
};

use super::args::opt;
use super::frame::{Cell, ReportTable};
use super::lab::drop_kernel_caches;
use super::sample::{SampleContent, XorShift, median};
use super::send_peers::{self, MovedBytes};
use super::tidy::Scratch;
use super::write_pool::cpu;
use super::{Bench, BenchResult, Run};

pub(super) const BENCH: Bench = Bench {
    name: "send",
    about: "send and receive against reads, writes and other programs",
    words: "",
    options: &[&[
        opt("--size", "SIZE", "the large files (4G)"),
        opt("--files", "N", "small files (100000)"),
        opt("--changed", "N", "one record in so many is overwritten (100)"),
        opt("--receive", "SIZE", "bytes that are received from memory (1G)"),
        opt("--rounds", "N", "rounds of each measurement (3)"),
        opt("--peers", "", "also rsync, tar, restic and btrfs, where they are installed"),
        opt("--device", "DIR", "directory for the pools ($TMPDIR)"),
    ]],
    run,
};

const POOL: &str = "benchsend";
const TARGET: &str = "benchreceive";
/// Bytes of a record.
const RECORD: u64 = 128 << 10;
/// Large files among which the size is divided.
const LARGE_FILES: u64 = 4;
/// Files of a directory.
const PER_DIR: u64 = 200;
/// The largest small file, bytes.
const SMALL_MAX: u64 = 16 << 10;
/// Bytes of a pool beside its files.
const REST: u64 = 2 << 30;
/// Empty snapshots that are received.
const EMPTY: usize = 25;
/// Pieces and threads of `cenote cat`.
const PIECE: u64 = 4 << 20;
const READERS: usize = 8;
/// Threads of the traversal: the default of the engine.
const WALKERS: usize = 16;

/// Blocks as they are stored.
const STORED: SendOptions =
    SendOptions { large_blocks: true, embedded: true, compressed: true, raw: false };
const PLAIN: SendOptions =
    SendOptions { large_blocks: true, embedded: false, compressed: false, raw: false };

/// The command line.
struct StreamBenchOptions {
    size: u64,
    files: u64,
    changed: u64,
    receive: u64,
    rounds: u64,
    peers: bool,
}

/// The pools of the bench.
struct StreamBench {
    scratch: Scratch,
    options: StreamBenchOptions,
}

/// Counts bytes.
#[derive(Default)]
struct CountingSink(u64);

impl Write for CountingSink {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Reads every block of a snapshot.
struct ReadAll<'a> {
    zio: &'a Zio,
    objects: AtomicU64,
}

impl Visitor for ReadAll<'_> {
    fn visit(&self, bp: &BlkPtr, at: Bookmark) -> Result<Flow> {
        if at.level == 0 && at.object != 0 && !bp.is_hole() {
            self.zio.read(bp, Io::SCAN)?;
        }
        Ok(Flow::Descend)
    }

    fn dnode(&self, _: u64, _: u64, _: &Dnode) -> Result<()> {
        self.objects.fetch_add(1, Relaxed);
        Ok(())
    }
}

fn run(run: &mut Run) -> BenchResult<()> {
    let args = &run.args;
    args.no_rest()?;
    let size = |name, usual| args.size(name, usual, RECORD * LARGE_FILES..=1 << 40);
    let options = StreamBenchOptions {
        size: size("--size", 4 << 30)?,
        files: args.count("--files", 100_000, 1..=1 << 30)?,
        changed: args.count("--changed", 100, 1..=1 << 20)?,
        receive: size("--receive", 1 << 30)?,
        rounds: args.count("--rounds", 3, 1..=1000)?,
        peers: args.flag("--peers"),
    };
    let dir = args.text("--device").map_or_else(std::env::temp_dir, PathBuf::from);
    let bench = StreamBench { scratch: Scratch::new(&dir)?, options };
    bench.run(run)
}

fn seconds(call: impl FnOnce() -> Result<()>) -> Result<f64> {
    let began = rt::now();
    call()?;
    Ok(began.elapsed().as_secs_f64().max(1e-9))
}

/// Writes the stream of a snapshot to a sink; its bytes.
fn send(pool: &Pool, name: &str, from: Option<&str>, options: SendOptions) -> Result<u64> {
    let mut out = CountingSink::default();
    send_to(pool, name, from, options, &mut out)?;
    Ok(out.0)
}

fn send_to(
    pool: &Pool,
    name: &str,
    from: Option<&str>,
    options: SendOptions,
    out: &mut dyn Write,
) -> Result<()> {
    let from = from.map(|from| pool.dataset(from)).transpose()?;
    pool.dataset(name)?.send(from.as_ref(), options, out, &mut |_| true)
}

/// What was read from the devices so far: operations and bytes.
fn device_reads(pool: &Pool) -> (u64, u64) {
    let tree = pool.spa().zio().tree();
    let devices = tree.leaves().filter_map(|(_, leaf)| leaf.device());
    devices
        .map(|d| d.stats().snapshot())
        .fold((0, 0), |(reads, bytes), now| (reads + now.reads, bytes + now.bytes_read))
}

/// Writes a file of noise that was not written before.
fn write_file(
    run: &mut Run,
    fs: &FileSystem,
    name: &str,
    size: u64,
    content: &SampleContent,
) -> BenchResult<ObjectId> {
    let id = fs.make(&Caller::root(), fs.root(), name.as_bytes(), &New::file(0o644))?.id;
    let mut part = vec![0; 1 << 20];
    for at in (0..size).step_by(part.len()) {
        run.step("filling", at, size)?;
        let len = (size - at).min(part.len() as u64) as usize;
        content.fill(at, &mut part[..len]);
        fs.write(&Caller::root(), id, WritePosition::Offset(at), &part[..len])?;
    }
    Ok(id)
}

impl StreamBench {
    fn image(&self, pool: &str) -> PathBuf {
        self.scratch.path().join(format!("{pool}.img"))
    }

    fn create(&self, pool: &str, size: u64) -> Result<(Arc<Engine>, Arc<Pool>)> {
        let engine = Engine::new(EngineConfig::default())?;
        let image = self.image(pool);
        let failed = |e| Error::io("cannot make the image", e).on_path(image.to_string_lossy());
        let file = std::fs::File::create_new(&image).map_err(failed)?;
        file.set_len(size).map_err(failed)?;
        let request = CreateRequest {
            force: Force::ALL,
            settings: vec![PoolSetting::Stored("ashift", 12)],
            ..CreateRequest::new(pool, vec![NewVdev::new(NewKind::File(image))])
        };
        let made = engine.create_pool(&request)?;
        let made = made.ok_or_else(|| Error::bug("a pool that was not made"))?;
        Ok((engine, made))
    }

    /// Opens the source with an empty cache.
    fn cold(&self) -> Result<(Arc<Engine>, Arc<Pool>)> {
        // Without effect for devices that bypass the kernel's cache, and for other users than
        // root.
        let _dropped = drop_kernel_caches();
        let engine = Engine::new(EngineConfig::default())?;
        let search = Search { paths: vec![self.scratch.path().to_owned()], ..Search::default() };
        let found = engine.discover(&search)?;
        let pool = found.pools.iter().find(|p| p.name == POOL);
        let pool = pool.ok_or_else(|| Error::not_found("the bench's pool"))?;
        let options = ImportOptions { readonly: true, ..ImportOptions::default() };
        let pool = engine.import(pool, &options)?;
        Ok((engine, pool))
    }

    fn run(&self, run: &mut Run) -> BenchResult<()> {
        let of = &self.options;
        run.report.set("size", Cell::Bytes(of.size));
        run.report.set("files", Cell::Count(of.files));
        run.report.set("changed, one record in", Cell::Count(of.changed));
        let changed = self.fill(run)?;
        let mut moved = MovedBytes::new("zfs send");
        self.large(run, &mut moved)?;
        self.small(run, &mut moved)?;
        self.incremental(run, changed, &mut moved)?;
        self.processor(run)?;
        self.received(run)?;
        if of.peers {
            let more =
                send_peers::measure(run, self.scratch.path(), of.size, of.files, of.changed)?;
            send_peers::report(run, &[vec![moved], more].concat());
        }
        Ok(())
    }

    /// Makes the source; returns the records that the second snapshot of the large files changed.
    fn fill(&self, run: &mut Run) -> BenchResult<u64> {
        let of = &self.options;
        let size = of.size + of.size / of.changed + of.size / 4 + of.files * 24_000;
        let (engine, pool) = self.create(POOL, size + size / 4 + REST)?;
        let make = |name: &str, compression: u64| {
            let props = [("recordsize", RECORD), ("compression", compression)];
            let props = props.map(|(name, n)| (name.to_owned(), PropData::Num(n)));
            pool.create_filesystem(&format!("{POOL}/{name}"), &props, None)?.open_fs()
        };
        let large = make("large", 2)?;
        let each = (of.size / LARGE_FILES).next_multiple_of(RECORD);
        let mut ids = Vec::new();
        for n in 0..LARGE_FILES {
            let content = SampleContent::noise(n);
            ids.push(write_file(run, &large, &format!("f{n}"), each, &content)?);
        }
        let packed = make("packed", 15)?;
        write_file(run, &packed, "half", (of.size / 4).max(RECORD), &SampleContent::half())?;
        let small = make("small", 15)?;
        let (mut random, mut dir) = (XorShift::new(7), small.root());
        let mut content = vec![0; 1 << 20];
        SampleContent::half().fill(0, &mut content);
        for n in 0..of.files {
            if n % PER_DIR == 0 {
                run.step("making files", n, of.files)?;
                let name = format!("d{}", n / PER_DIR);
                dir = small
                    .make(&Caller::root(), small.root(), name.as_bytes(), &New::dir(0o755))?
                    .id;
            }
            let name = format!("f{n}");
            let id = small.make(&Caller::root(), dir, name.as_bytes(), &New::file(0o644))?.id;
            let len = random.below(SMALL_MAX) + 1;
            let at = random.below(content.len() as u64 - len) as usize;
            let part = &content[at..at + len as usize];
            small.write(&Caller::root(), id, WritePosition::Offset(0), part)?;
        }
        make("empty", 15)?;
        let all = ["large", "packed", "small", "empty"].map(|fs| format!("{POOL}/{fs}@1"));
        pool.snapshot(&all, &[], None)?;
        // Distinct records, far apart.
        let records = each / RECORD;
        let mut changed = 0;
        let mut part = vec![0; RECORD as usize];
        for (n, id) in ids.iter().enumerate() {
            for record in 0..records {
                if random.below(of.changed) != 0 {
                    continue;
                }
                run.step("overwriting", record, records)?;
                SampleContent::noise(1000 + n as u64).fill(record * RECORD, &mut part);
                large.write(&Caller::root(), *id, WritePosition::Offset(record * RECORD), &part)?;
                changed += 1;
            }
        }
        let second = ["large", "small"].map(|fs| format!("{POOL}/{fs}@2"));
        pool.snapshot(&second, &[], None)?;
        for n in 2..EMPTY + 2 {
            pool.snapshot(&[format!("{POOL}/empty@{n}")], &[], None)?;
        }
        drop((large, packed, small));
        pool.export()?;
        drop((pool, engine));
        Ok(changed)
    }

    /// Reads the large files as `cenote cat` does.
    fn cat(&self, pool: &Pool) -> Result<u64> {
        let fs = pool.dataset(&format!("{POOL}/large@1"))?.open_fs()?;
        let total = AtomicU64::new(0);
        for n in 0..LARGE_FILES {
            let id = fs.lookup(fs.root(), format!("f{n}").as_bytes(), Io::WAIT)?.id;
            let size = fs.attrs(id, Io::WAIT)?.size;
            let (next, failed) = (AtomicU64::new(0), rt::Mutex::new(None));
            rt::fan_out(READERS, |_| {
                loop {
                    let at = next.fetch_add(PIECE, Relaxed);
                    if at >= size || failed.lock().is_some() {
                        return;
                    }
                    let len = (size - at).min(PIECE) as usize;
                    match fs.read(id, at, len, Io::WAIT) {
                        Ok(bufs) => {
                            let bytes: u64 = bufs.iter().map(|b| b.len() as u64).sum();
                            total.fetch_add(bytes, Relaxed);
                        }
                        Err(e) => *failed.lock() = Some(e),
                    }
                }
            });
            if let Some(e) = failed.into_inner() {
                return Err(e);
            }
        }
        Ok(total.into_inner())
    }

    fn large(&self, run: &mut Run, moved: &mut MovedBytes) -> BenchResult<()> {
        let columns =
            [("send_mib_s", "SEND MiB/s"), ("cat_mib_s", "CAT MiB/s"), ("ratio", "RATIO")];
        let mut table = ReportTable::new("large_files", &columns);
        let (mut ratios, mut times) = (Vec::new(), Vec::new());
        for round in 0..self.options.rounds {
            run.step("large files", round, self.options.rounds)?;
            let (mut sent, mut read) = (0, 0);
            let (_engine, pool) = self.cold()?;
            let took = seconds(|| {
                sent = send(&pool, &format!("{POOL}/large@1"), None, PLAIN)?;
                Ok(())
            })?;
            drop(pool);
            let (_engine, pool) = self.cold()?;
            let cat = seconds(|| {
                read = self.cat(&pool)?;
                Ok(())
            })?;
            drop(pool);
            let rate = |bytes: u64, time: f64| bytes as f64 / (1 << 20) as f64 / time;
            let (sending, reading) = (rate(sent, took), rate(read, cat));
            table.rows.push([sending, reading, sending / reading].map(Cell::Real).to_vec());
            ratios.push(sending / reading);
            times.push(took);
            moved.first_bytes = sent;
        }
        moved.first_seconds = median(times).unwrap_or(f64::NAN);
        run.report.tables.push(table);
        let value = median(ratios).unwrap_or(f64::NAN);
        run.report.at_least("large files: send by cat", value, 0.8);
        Ok(())
    }

    fn small(&self, run: &mut Run, moved: &mut MovedBytes) -> BenchResult<()> {
        let columns = [
            ("send_objects_s", "SEND objects/s"),
            ("traversal_objects_s", "TRAVERSAL objects/s"),
            ("ratio", "RATIO"),
        ];
        let mut table = ReportTable::new("small_files", &columns);
        let name = format!("{POOL}/small@1");
        let (mut ratios, mut times, mut bytes) = (Vec::new(), Vec::new(), 0);
        for round in 0..self.options.rounds {
            run.step("small files", round, self.options.rounds)?;
            let (_engine, pool) = self.cold()?;
            let took = seconds(|| {
                bytes = send(&pool, &name, None, PLAIN)?;
                Ok(())
            })?;
            drop(pool);
            let (_engine, pool) = self.cold()?;
            let os = Arc::clone(pool.dataset(&name)?.open_fs()?.objset());
            let visitor = ReadAll { zio: os.zio(), objects: AtomicU64::new(0) };
            let options = traverse::Options { threads: WALKERS, ..traverse::Options::default() };
            let walked = seconds(|| {
                traverse::traverse(os.zio(), os.id(), &os.root_bp(), &visitor, options)
            })?;
            let objects = visitor.objects.load(Relaxed) as f64;
            drop(os);
            drop(pool);
            let row = [objects / took, objects / walked, walked / took];
            table.rows.push(row.map(Cell::Real).to_vec());
            ratios.push(walked / took);
            times.push(took);
        }
        moved.first_bytes += bytes;
        moved.first_seconds += median(times).unwrap_or(f64::NAN);
        run.report.tables.push(table);
        let value = median(ratios).unwrap_or(f64::NAN);
        run.report.at_least("small files: send by traversal", value, 0.5);
        Ok(())
    }

    fn incremental(&self, run: &mut Run, changed: u64, moved: &mut MovedBytes) -> BenchResult<()> {
        let columns = [
            ("changed", "CHANGED"),
            ("bytes", "BYTES"),
            ("reads", "READS"),
            ("read_bytes", "READ BYTES"),
            ("reads_by_changed", "READS/CHANGED"),
            ("seconds", "SECONDS"),
        ];
        let mut table = ReportTable::new("incremental", &columns);
        let [from, to] = ["1", "2"].map(|snap| format!("{POOL}/large@{snap}"));
        let mut times = Vec::new();
        for round in 0..self.options.rounds {
            run.step("incremental", round, self.options.rounds)?;
            let (_engine, pool) = self.cold()?;
            let before = device_reads(&pool);
            let mut bytes = 0;
            let took = seconds(|| {
                bytes = send(&pool, &to, Some(&from), PLAIN)?;
                Ok(())
            })?;
            let after = device_reads(&pool);
            let (reads, read) = (after.0 - before.0, after.1 - before.1);
            moved.then_bytes = bytes;
            // The small files have none that changed.
            let [one, two] = ["1", "2"].map(|snap| format!("{POOL}/small@{snap}"));
            let rest = seconds(|| {
                moved.then_bytes += send(&pool, &two, Some(&one), PLAIN)?;
                Ok(())
            })?;
            drop(pool);
            times.push(took + rest);
            table.rows.push(vec![
                Cell::Count(changed),
                Cell::Bytes(bytes),
                Cell::Count(reads),
                Cell::Bytes(read),
                Cell::Real(reads as f64 / changed.max(1) as f64),
                Cell::Real(took),
            ]);
        }
        moved.then_seconds = median(times).unwrap_or(f64::NAN);
        run.report.tables.push(table);
        Ok(())
    }

    /// Processor time: a stream of blocks as they are stored, and what it replaces.
    fn processor(&self, run: &mut Run) -> BenchResult<()> {
        let columns = [
            ("stored_s_gib", "send -c s/GiB"),
            ("plain_s_gib", "send s/GiB"),
            ("recompress_s_gib", "DECOMPRESS, RECOMPRESS s/GiB"),
            ("ratio", "RATIO"),
        ];
        let mut table = ReportTable::new("processor_time", &columns);
        let name = format!("{POOL}/packed@1");
        let gib = (self.options.size / 4).max(RECORD) as f64 / (1u64 << 30) as f64;
        let mut ratios = Vec::new();
        for round in 0..self.options.rounds {
            run.step("processor time", round, self.options.rounds)?;
            let mut times = Vec::new();
            for options in [STORED, PLAIN] {
                let (_engine, pool) = self.cold()?;
                let began = cpu();
                send(&pool, &name, None, options)?;
                times.push(cpu().saturating_sub(began).as_secs_f64() / gib);
                drop(pool);
            }
            let (_engine, pool) = self.cold()?;
            let (mut stored, mut plain) = (Vec::new(), Vec::new());
            send_to(&pool, &name, None, STORED, &mut stored)?;
            drop(pool);
            let began = cpu();
            stream::recompress(stored.as_slice(), &mut plain, Compression::Off)?;
            stream::recompress(plain.as_slice(), CountingSink::default(), Compression::Lz4)?;
            times.push(cpu().saturating_sub(began).as_secs_f64() / gib);
            let ratio = times[0] / times[2].max(1e-9);
            ratios.push(ratio);
            table.rows.push(times.into_iter().chain([ratio]).map(Cell::Real).collect());
        }
        run.report.tables.push(table);
        let ratio = median(ratios).unwrap_or(f64::NAN);
        run.report.at_most("processor time: send -c by recompression", ratio, 0.25);
        Ok(())
    }

    /// Receives from memory.
    fn received(&self, run: &mut Run) -> BenchResult<()> {
        let of = &self.options;
        let (_target_engine, to) = self.create(TARGET, 4 * of.receive + REST)?;
        let bytes = self.stream_of(run, &to, of.receive)?;
        let columns = [
            ("receive_mib_s", "RECEIVE MiB/s"),
            ("write_mib_s", "WRITE MiB/s"),
            ("ratio", "RATIO"),
        ];
        let mut table = ReportTable::new("receive", &columns);
        let rate = |time: f64| of.receive as f64 / (1 << 20) as f64 / time;
        let mut ratios = Vec::new();
        let (names, options) = (ReceiveNames::Whole, ReceiveOptions::default());
        for round in 0..of.rounds {
            run.step("receiving", round, of.rounds)?;
            let name = format!("{TARGET}/copy");
            let received = seconds(|| {
                to.receive(&name, names, &options, bytes.as_slice())?;
                to.sync()
            })?;
            to.destroy_dataset(&name, true, None)?;
            let mut written = Ok(());
            let name = format!("{TARGET}/written");
            let wrote = seconds(|| {
                written = self.write_bulk(run, &to, &name, of.receive);
                to.sync()
            })?;
            written?;
            to.destroy_dataset(&name, true, None)?;
            let ratio = wrote / received;
            ratios.push(ratio);
            table.rows.push([rate(received), rate(wrote), ratio].map(Cell::Real).to_vec());
        }
        run.report.tables.push(table);
        let value = median(ratios).unwrap_or(f64::NAN);
        run.report.at_least("receive by writes", value, 0.8);
        drop(bytes);
        let streams = self.empty_streams()?;
        to.receive(&format!("{TARGET}/empty"), names, &options, streams[0].as_slice())?;
        let took = seconds(|| {
            let mut rest = streams[1..].iter();
            rest.try_for_each(|bytes| {
                to.receive(&format!("{TARGET}/empty"), names, &options, bytes.as_slice()).map(drop)
            })
        })?;
        let what = format!("{EMPTY} empty incremental streams, s");
        run.report.at_most(what, took, 1.0);
        to.export()?;
        Ok(())
    }

    fn write_bulk(&self, run: &mut Run, to: &Pool, name: &str, size: u64) -> BenchResult<()> {
        let props = [("recordsize".to_owned(), PropData::Num(RECORD))];
        let fs = to.create_filesystem(name, &props, None)?.open_fs()?;
        write_file(run, &fs, "file", size, &SampleContent::noise(5))?;
        Ok(())
    }

    /// The stream of a file of so many bytes, in memory.
    fn stream_of(&self, run: &mut Run, to: &Pool, size: u64) -> BenchResult<Vec<u8>> {
        let name = format!("{TARGET}/source");
        self.write_bulk(run, to, &name, size)?;
        let snapshot = format!("{name}@1");
        to.snapshot(std::slice::from_ref(&snapshot), &[], None)?;
        let mut bytes = Vec::new();
        send_to(to, &snapshot, None, PLAIN, &mut bytes)?;
        to.destroy_dataset(&name, true, None)?;
        to.sync()?;
        Ok(bytes)
    }

    /// The first stream of the empty file system, and the incremental ones after it.
    fn empty_streams(&self) -> Result<Vec<Vec<u8>>> {
        let (_engine, pool) = self.cold()?;
        let name = |n: usize| format!("{POOL}/empty@{n}");
        let one = |n: usize| {
            let (from, mut bytes) = ((n > 1).then(|| name(n - 1)), Vec::new());
            send_to(&pool, &name(n), from.as_deref(), PLAIN, &mut bytes)?;
            Ok(bytes)
        };
        let all = (1..EMPTY + 2).map(one).collect::<Result<Vec<_>>>()?;
        drop(pool);
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Stop;
    use super::super::frag::tests::{json, rows};

    #[test]
    fn every_figure_is_there() {
        let scratch = testkit::Scratch::new("bench-send");
        let path = |name: &str| scratch.path().join(name).to_str().unwrap().to_owned();
        let (dir, out) = (path(""), path("out.json"));
        let size = ["--size", "4M", "--files", "250", "--changed", "4", "--receive", "2M"];
        let more = ["--rounds", "1", "--peers", "--device", &dir, "--json", &out];
        let words: Vec<String> = size.iter().chain(&more).map(|w| (*w).to_owned()).collect();
        super::BENCH.start(&words).map_err(Stop::text).unwrap();
        let json = json(std::path::Path::new(&out));
        for (table, keys) in [
            ("large_files", &["send_mib_s", "cat_mib_s", "ratio"][..]),
            ("small_files", &["send_objects_s", "traversal_objects_s", "ratio"]),
            ("incremental", &["changed", "bytes", "reads", "read_bytes"]),
            ("processor_time", &["stored_s_gib", "plain_s_gib", "recompress_s_gib"]),
            ("receive", &["receive_mib_s", "write_mib_s", "ratio"]),
            ("moved", &["first_bytes", "first_s", "then_bytes", "then_s"]),
        ] {
            for key in keys {
                let value = rows(&json, table)[0][*key].as_f64().unwrap();
                assert!(value > 0.0, "{table}, {key}: {json}");
            }
        }
        // A changed record takes its own bytes, and little more.
        let row = &rows(&json, "incremental")[0];
        let changed = row["changed"].as_u64().unwrap();
        let bytes = row["bytes"].as_u64().unwrap();
        assert!(bytes > changed << 17 && bytes < (changed + 2) << 17, "{json}");
        assert_eq!(rows(&json, "moved")[0]["program"], "zfs send");
    }
}
