//! The effect of a scan on the cache.
//!
//! # Theory
//! In an old report, random reads of a file larger than the cache were 27 to 30 % slower after
//! another file had been streamed, while the tool showed 99 % hits, until the cache's limit was
//! changed by one byte. So this bench measures three figures for each tenth of a phase: reads a
//! second, hits, and the cost of a hit.
//!
//! Every phase reads the same offsets in the same order (one seed), after a warm-up that reads
//! them too, so phases differ only in what preceded them. Everything is repeated with new
//! engines; figures are medians, and ratios are computed within a round, because a machine's
//! rates drift.

use std::fs::File as HostFile;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use base::{Error, Result, rt};
use cenote::Io;
use cenote::{ArcStats, File, PolicyKind};

use super::args::opt;
use super::chart::Shape;
use super::frame::{Cell, ReportTable};
use super::lab::{self, Lab, LabPool};
use super::sample::{SampleContent, XorShift, Zipf, median};
use super::{Bench, Run, Stop};

pub(super) const BENCH: Bench = Bench {
    name: "poison",
    about: "random reads before and after a scan, and after arc_max moved",
    words: "",
    options: &[
        &[
            opt("--arc", "SIZE", "the cache's limit (256M)"),
            opt("--a", "SIZE", "the file of random reads (twice the cache)"),
            opt("--b", "SIZE", "the file that is streamed (twice the cache)"),
            opt("--tenths", "N", "parts of a phase that are told apart (10)"),
            opt("--reads", "N", "reads of a phase (enough for four times A)"),
            opt("--time", "TIME", "length of a phase, instead of --reads"),
            opt("--rounds", "N", "how often all is done; medians count (3)"),
            opt("--skew", "S", "Zipf exponent of the places; 0 is uniform (0)"),
            opt("--record", "SIZE", "bytes of a record (128K)"),
            opt("--lz4", "", "half-compressible content, compressed"),
            opt("--policy", "LIST", "default, arc (default)"),
            opt("--seed", "N", "of the random places (1)"),
            opt("--mount", "", "also through a mount, with and without the kernel's cache"),
        ],
        lab::OPTIONS,
    ],
    run,
};

/// Longest single read, as in the report.
const READ_MAX: u64 = 256 << 10;
/// Bytes of one read of the stream.
const STREAM: usize = 1 << 20;
/// Reads between two checks of the clock and of signals.
const BATCH: u64 = 64;
const PHASES: [&str; 3] = ["before", "after the scan", "arc_max - 1"];

struct PoisonSetup {
    arc: u64,
    a: u64,
    b: u64,
    tenths: u64,
    reads: u64,
    time: Option<Duration>,
    rounds: u64,
    skew: f64,
    seed: u64,
    record: u32,
}

/// The path of the reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadPath {
    Library,
    Mount,
    Direct,
}

impl ReadPath {
    fn word(self) -> &'static str {
        match self {
            ReadPath::Library => "library",
            ReadPath::Mount => "mount",
            ReadPath::Direct => "mount, direct_io",
        }
    }
}

enum TestedFile {
    Library(Box<File>),
    Host(HostFile),
}

impl TestedFile {
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        match self {
            TestedFile::Library(file) => {
                if file.read_at(offset, out, Io::WAIT)? != out.len() {
                    return Err(Error::invalid("the file is shorter than it should be"));
                }
                Ok(())
            }
            TestedFile::Host(file) => {
                file.read_exact_at(out, offset).map_err(|e| Error::io("cannot read", e))
            }
        }
    }
}

/// The same sequence of offsets in every phase.
struct ReadSequence<'a> {
    rng: XorShift,
    size: u64,
    zipf: Option<&'a Zipf>,
}

impl ReadSequence<'_> {
    /// Offset and length of the next read.
    fn next(&mut self) -> (u64, usize) {
        let len = 1 + self.rng.below(READ_MAX.min(self.size));
        let room = self.size - len + 1;
        let offset = match self.zipf {
            None => self.rng.below(room),
            // A popular key is a range of the longest read; the read is a random part of it.
            Some(zipf) => {
                let window = zipf.draw(&mut self.rng) * READ_MAX;
                (window + self.rng.below(READ_MAX)).min(room - 1)
            }
        };
        (offset, len as usize)
    }
}

/// The figures of a tenth of a phase.
#[derive(Clone, Copy, Debug, Default)]
struct PhaseResult {
    rate: f64,
    hit_ratio: Option<f64>,
    ns_a_hit: Option<f64>,
    borrowed: u64,
    copied: u64,
    decompressed: u64,
}

#[derive(Default)]
struct Phase {
    parts: Vec<PhaseResult>,
    /// Reads a second while the second half of one cache size was read.
    recovered: f64,
}

/// One pass over all phases.
struct Round {
    phases: Vec<Phase>,
    stream_mib: f64,
    stream_hits: Option<f64>,
}

fn setup(run: &Run) -> Result<PoisonSetup, Stop> {
    let args = &run.args;
    args.no_rest()?;
    let sizes = 1 << 20..=1 << 50;
    let arc = args.size("--arc", 256 << 20, 2 << 20..=1 << 50)?;
    let a = args.size("--a", 2 * arc, sizes.clone())?;
    let b = args.size("--b", 2 * arc, sizes)?;
    let tenths = args.count("--tenths", 10, 2..=1000)?;
    // The mean length of a read is half of the longest.
    let reads = args.count("--reads", 4 * a / (READ_MAX / 2), 10..=1 << 40)?;
    let record = args.size("--record", 128 << 10, 512..=16 << 20)?;
    let record = u32::try_from(record).ok().filter(|r| r.is_power_of_two());
    let record = record.ok_or_else(|| Stop::usage("--record: must be a power of two"))?;
    let time = args.flag("--time").then(|| args.time("--time", Duration::ZERO)).transpose()?;
    Ok(PoisonSetup {
        arc,
        a,
        b,
        tenths,
        reads,
        time,
        rounds: args.count("--rounds", 3, 1..=99)?,
        skew: args.real("--skew", 0.0, 0.0..=3.0)?,
        seed: args.count("--seed", 1, 0..=u64::MAX)?,
        record,
    })
}

fn run(run: &mut Run) -> Result<(), Stop> {
    let mut set = setup(run)?;
    let record = set.record;
    let policies = lab::policies(&run.args, "default")?;
    let content =
        if run.args.flag("--lz4") { SampleContent::half() } else { SampleContent::noise(set.seed) };
    let lab = Lab::new(run, set.a + set.b, |maker| {
        maker.file("A", set.a, record, &content)?;
        maker.file("B", set.b, record, &content)
    })?;
    for (name, size) in [("arc", set.arc), ("a", set.a), ("b", set.b), ("record", record.into())] {
        run.report.set(name, Cell::Bytes(size));
    }
    run.report.set("skew", Cell::Real(set.skew));
    run.report.set("rounds", Cell::Count(set.rounds));
    let mut ways = vec![ReadPath::Library];
    if run.args.flag("--mount") {
        ways.extend([ReadPath::Mount, ReadPath::Direct]);
    }
    let mut tables = tables();
    let mut pictures = Vec::new();
    for policy in policies {
        for &way in &ways {
            let mut rounds = Vec::new();
            for n in 0..set.rounds {
                let name = format!("{} {}, round {}", lab::word(policy), way.word(), n + 1);
                rounds.push(round(run, &mut set, &lab, policy, way, &name)?);
            }
            report(run, &set, &mut tables, &mut pictures, (policy, way), &rounds);
        }
    }
    run.report.set("reads a phase", Cell::Count(set.reads));
    run.report.tables.extend(tables);
    let labels: Vec<String> = (1..=set.tenths).map(|n| n.to_string()).collect();
    // The paths differ by far more than the phases, so each has a chart of its own.
    for (name, rates, hits) in pictures {
        run.report.chart(Shape::Lines, &format!("reads/s: {name}"), labels.clone(), rates);
        run.report.chart(Shape::Lines, &format!("hit ratio: {name}"), labels.clone(), hits);
    }
    Ok(())
}

/// A round: a new engine, the warm-up, and the phases.
fn round(
    run: &mut Run,
    set: &mut PoisonSetup,
    lab: &Lab,
    policy: PolicyKind,
    way: ReadPath,
    name: &str,
) -> Result<Round, Stop> {
    let bench_pool = lab.open(set.arc, policy)?;
    let mounted = match way {
        ReadPath::Library => None,
        ReadPath::Mount | ReadPath::Direct => Some(bench_pool.mount(way == ReadPath::Direct)?),
    };
    let open = |file: &str| -> Result<TestedFile> {
        let Some(mounted) = &mounted else {
            return Ok(TestedFile::Library(Box::new(bench_pool.file(file)?)));
        };
        let opened = HostFile::open(mounted.path().join(file));
        Ok(TestedFile::Host(opened.map_err(|e| Error::io("cannot open", e).on_path(file))?))
    };
    let (a, b) = (open("A")?, open("B")?);
    let zipf = (set.skew > 0.0).then(|| Zipf::new((set.a / READ_MAX).max(1), set.skew));
    let places = || ReadSequence { rng: XorShift::new(set.seed), size: set.a, zipf: zipf.as_ref() };
    // The first warm-up shows how many reads take the requested time.
    if let Some(time) = set.time.take() {
        phase(run, set, &bench_pool, &a, places(), &format!("{name}: trying"))?;
        let begin = rt::now();
        phase(run, set, &bench_pool, &a, places(), &format!("{name}: trying"))?;
        let each = begin.elapsed().as_secs_f64().max(1e-9) / set.reads as f64;
        let reads = (time.as_secs_f64() / each) as u64;
        set.reads = reads.clamp(10 * set.tenths, 1 << 40);
    }
    let places = || ReadSequence { rng: XorShift::new(set.seed), size: set.a, zipf: zipf.as_ref() };
    phase(run, set, &bench_pool, &a, places(), &format!("{name}: warming up"))?;
    let mut phases = vec![phase(run, set, &bench_pool, &a, places(), &format!("{name}: before"))?];
    let (stream_mib, stream_hits) = stream(run, set, &bench_pool, &b, &format!("{name}: scan"))?;
    phases.push(phase(run, set, &bench_pool, &a, places(), &format!("{name}: after the scan"))?);
    bench_pool.engine.set_arc_max(set.arc - 1)?;
    phases.push(phase(run, set, &bench_pool, &a, places(), &format!("{name}: arc_max - 1"))?);
    Ok(Round { phases, stream_mib, stream_hits })
}

fn hit_ratio(before: &ArcStats, after: &ArcStats) -> Option<f64> {
    let of = |s: &ArcStats| (s.demand_data.hits, s.demand_data.total());
    lab::hit_ratio(of(before), of(after))
}

/// The reads of a phase, in tenths.
fn phase(
    run: &mut Run,
    set: &PoisonSetup,
    bench_pool: &LabPool,
    file: &TestedFile,
    mut places: ReadSequence<'_>,
    name: &str,
) -> Result<Phase, Stop> {
    let mut out = vec![0; READ_MAX as usize];
    let mut phase = Phase { recovered: f64::NAN, ..Phase::default() };
    let (mut bytes, mut done) = (0u64, 0u64);
    // Reads and time of the window, and when it began.
    let mut window = (0u64, Duration::ZERO);
    for part in 0..set.tenths {
        let end = set.reads * (part + 1) / set.tenths;
        let (from, stats, begin) = (done, bench_pool.stats(), rt::now());
        let (mut hit_time, mut hits) = (Duration::ZERO, 0u64);
        while done < end {
            if done.is_multiple_of(BATCH) {
                run.step(name, done, set.reads)?;
            }
            let (offset, len) = places.next();
            let disk = bench_pool.disk().reads;
            let start = rt::now();
            file.read(offset, &mut out[..len])?;
            let took = start.elapsed();
            // No block came from the disk, so all of this read were hits.
            if bench_pool.disk().reads == disk {
                let record = u64::from(set.record);
                hit_time += took;
                hits += (offset + len as u64 - 1) / record - offset / record + 1;
            }
            if bytes < set.arc && bytes >= set.arc / 2 {
                window = (window.0 + 1, window.1 + took);
            }
            bytes += len as u64;
            done += 1;
        }
        let seconds = begin.elapsed().as_secs_f64();
        let after = bench_pool.stats();
        let (x, y) = (stats.forms, after.forms);
        phase.parts.push(PhaseResult {
            rate: (done - from) as f64 / seconds,
            hit_ratio: hit_ratio(&stats, &after),
            ns_a_hit: (hits > 0).then(|| hit_time.as_nanos() as f64 / hits as f64),
            borrowed: y.borrowed.saturating_sub(x.borrowed),
            copied: y.copied.saturating_sub(x.copied),
            decompressed: y.decompressed.saturating_sub(x.decompressed),
        });
    }
    if !window.1.is_zero() {
        phase.recovered = window.0 as f64 / window.1.as_secs_f64();
    }
    Ok(phase)
}

/// Reads B from its beginning to its end: MiB/s and hit ratio.
fn stream(
    run: &mut Run,
    set: &PoisonSetup,
    bench_pool: &LabPool,
    file: &TestedFile,
    name: &str,
) -> Result<(f64, Option<f64>), Stop> {
    let mut out = vec![0; STREAM];
    let (stats, begin) = (bench_pool.stats(), rt::now());
    let mut at = 0;
    while at < set.b {
        run.step(name, at >> 20, set.b >> 20)?;
        let len = (set.b - at).min(STREAM as u64);
        file.read(at, &mut out[..len as usize])?;
        at += len;
    }
    let mib = set.b as f64 / f64::from(1 << 20) / begin.elapsed().as_secs_f64();
    Ok((mib, hit_ratio(&stats, &bench_pool.stats())))
}

fn tables() -> [ReportTable; 2] {
    [
        ReportTable::new(
            "tenths",
            &[
                ("policy", "POLICY"),
                ("way", "WAY"),
                ("phase", "PHASE"),
                ("tenth", "TENTH"),
                ("reads_per_second", "READS/S"),
                ("hit_ratio", "HITS"),
                ("ns_per_hit", "NS/HIT"),
                ("borrowed", "BORROWED"),
                ("copied", "COPIED"),
                ("decompressed", "DECOMPRESSED"),
            ],
        ),
        ReportTable::new(
            "scan",
            &[
                ("policy", "POLICY"),
                ("way", "WAY"),
                ("mib_per_second", "SCAN MiB/s"),
                ("hit_ratio", "HITS"),
            ],
        ),
    ]
}

/// Lines by name.
type Lines = Vec<(String, Vec<f64>)>;

/// Medians over the rounds, and the targets.
fn report(
    run: &mut Run,
    set: &PoisonSetup,
    tables: &mut [ReportTable; 2],
    pictures: &mut Vec<(String, Lines, Lines)>,
    (policy, way): (PolicyKind, ReadPath),
    rounds: &[Round],
) {
    let name = format!("{} {}", lab::word(policy), way.word());
    let (mut all_rates, mut all_hits) = (Vec::new(), Vec::new());
    for (p, phase) in PHASES.iter().enumerate() {
        let (mut rates, mut hits) = (Vec::new(), Vec::new());
        for t in 0..set.tenths as usize {
            let parts: Vec<PhaseResult> = rounds.iter().map(|r| r.phases[p].parts[t]).collect();
            let of = |f: &dyn Fn(&PhaseResult) -> Option<f64>| median(parts.iter().filter_map(f));
            let count = |f: fn(&PhaseResult) -> u64| {
                Cell::Count(of(&|x| Some(f(x) as f64)).unwrap_or(0.0) as u64)
            };
            let (rate, hit) = (of(&|x| Some(x.rate)), of(&|x| x.hit_ratio));
            tables[0].rows.push(vec![
                lab::word(policy).into(),
                way.word().into(),
                (*phase).into(),
                Cell::Count(t as u64 + 1),
                Cell::real(rate),
                Cell::ratio(hit),
                Cell::real(of(&|x| x.ns_a_hit)),
                count(|x| x.borrowed),
                count(|x| x.copied),
                count(|x| x.decompressed),
            ]);
            rates.push(rate.unwrap_or(f64::NAN));
            hits.push(hit.unwrap_or(f64::NAN));
        }
        all_rates.push(((*phase).to_owned(), rates));
        all_hits.push(((*phase).to_owned(), hits));
    }
    pictures.push((name.clone(), all_rates, all_hits));
    tables[1].rows.push(vec![
        lab::word(policy).into(),
        way.word().into(),
        Cell::real(median(rounds.iter().map(|r| r.stream_mib))),
        Cell::ratio(median(rounds.iter().filter_map(|r| r.stream_hits))),
    ]);
    let last = |r: &Round, p: usize| r.phases[p].parts.last().map_or(f64::NAN, |x| x.rate);
    let of = |f: &dyn Fn(&Round) -> f64| median(rounds.iter().map(f)).unwrap_or(f64::NAN);
    let report = &mut run.report;
    let what = format!("{name}: last tenth after the scan / before");
    report.at_least(what, of(&|r| last(r, 1) / last(r, 0)), 0.98);
    let what = format!("{name}: within one cache-size of reads after / before");
    report.at_least(what, of(&|r| r.phases[1].recovered / r.phases[0].recovered), 0.9);
    let what = format!("{name}: last tenth after arc_max moved a byte / before it");
    report.at_most(what, of(&|r| last(r, 2) / last(r, 1)), 1.02);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_repeat_and_stay_inside() {
        let zipf = Zipf::new(40, 0.99);
        for zipf in [None, Some(&zipf)] {
            for size in [1u64, 1000, READ_MAX, 10 << 20] {
                let new = || ReadSequence { rng: XorShift::new(3), size, zipf };
                let (mut one, mut two) = (new(), new());
                for _ in 0..2000 {
                    let (offset, len) = one.next();
                    assert_eq!(two.next(), (offset, len));
                    assert!(len >= 1 && offset + len as u64 <= size, "{offset} {len} {size}");
                }
            }
        }
    }
}
