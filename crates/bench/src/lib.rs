//! `cenote bench`: measurements of the engine and its cache on this machine.
//!
//! A bench is one file with one `Bench` in it, listed in `ALL`. It fills in a `Report`; the
//! frame makes tables, charts, JSON and progress of it. Targets are reported and never make a
//! bench fail, because a figure depends on the machine.
//!
//! # What it must not know
//! The daemon and its protocol, and the table of commands: a bench opens its own pools in this
//! process, and has a parser of its own ([`Opt`]).

mod aged;
mod aged_history;
mod aged_report;
mod aged_target;
mod aged_tree;
mod args;
mod atime;
mod cache;
mod cached;
mod chart;
mod clone;
mod codecs;
mod dedup;
mod defrag;
mod du;
mod expansion;
mod frag;
mod frag_defrag;
mod frag_load;
mod frag_map;
mod frag_model;
mod frag_report;
mod frag_target;
mod frame;
mod fuse_null;
mod l2arc;
mod lab;
mod metaslabs;
mod oltp;
mod poison;
mod removal;
mod sample;
mod scrub;
mod scrub_pool;
mod send;
mod send_peers;
mod snapshots;
mod stress;
mod svg;
mod sync;
mod sync_pool;
mod tidy;
mod write;
mod write_pool;
mod zil_sticky;

use std::ffi::OsString;
use std::time::Duration;

use args::{Args, opt};
use base::rt::{self, Instant};
use base::{Error, Result};
use frame::Report;

pub use args::Opt;
use ui::Exit;
use ui::progress::Progress;

/// All benches, in the order of the list.
const ALL: &[Bench] = &[
    cached::BENCH,
    poison::BENCH,
    du::BENCH,
    stress::BENCH,
    write::BENCH,
    sync::BENCH,
    zil_sticky::BENCH,
    oltp::BENCH,
    frag::BENCH,
    aged::BENCH,
    atime::BENCH,
    l2arc::BENCH,
    metaslabs::BENCH,
    scrub::BENCH,
    removal::BENCH,
    expansion::BENCH,
    defrag::BENCH,
    dedup::BENCH,
    clone::BENCH,
    snapshots::BENCH,
    send::BENCH,
    codecs::BENCH,
    fuse_null::BENCH,
];

/// A bench with a command line of its own.
struct StandaloneBench {
    name: &'static str,
    about: &'static str,
    /// For its usage text and its manual page; the bench parses them itself.
    options: &'static [Opt],
    main: fn(&[&str]) -> Result<Exit>,
}

/// Benches that measure no pool and have their own output.
const OWN: &[StandaloneBench] = &[StandaloneBench {
    name: "cache",
    about: cache::ABOUT,
    options: cache::OPTIONS,
    main: cache::main,
}];

/// Options that every bench has.
const COMMON: &[Opt] = &[
    opt("--json", "FILE", "write the figures as JSON (- is standard output)"),
    opt("--svg", "FILE", "write the pictures"),
    opt("--help", "", "this text"),
];

/// One bench.
struct Bench {
    name: &'static str,
    /// One line.
    about: &'static str,
    /// Words that are not options, for the usage text.
    words: &'static str,
    options: &'static [&'static [Opt]],
    run: fn(&mut Run) -> std::result::Result<(), Stop>,
}

/// A bench in progress.
struct Run {
    args: Args,
    report: Report,
    progress: Progress,
    drawn: Option<Instant>,
    /// Standard output is only for JSON or a chart.
    quiet: bool,
}

/// The reason for a bench's early end.
#[derive(Debug)]
enum Stop {
    /// The command line is wrong.
    Usage(String),
    /// Something failed.
    Failed(Error),
    /// A signal arrived.
    Interrupted,
}

/// What a step of a bench returns.
type BenchResult<T> = std::result::Result<T, Stop>;

impl From<Error> for Stop {
    fn from(e: Error) -> Stop {
        Stop::Failed(e)
    }
}

impl Stop {
    fn usage(text: impl Into<String>) -> Stop {
        Stop::Usage(text.into())
    }

    #[cfg(test)]
    fn text(self) -> String {
        match self {
            Stop::Usage(text) => text,
            Stop::Failed(e) => e.to_string(),
            Stop::Interrupted => "interrupted".to_owned(),
        }
    }
}

impl Run {
    /// Shows the present step, and ends the bench if a signal has arrived.
    fn step(&mut self, what: &str, done: u64, total: u64) -> std::result::Result<(), Stop> {
        if tidy::interrupted() {
            return Err(Stop::Interrupted);
        }
        if self.drawn.is_none_or(|t| t.elapsed() >= Duration::from_millis(100)) {
            self.drawn = Some(rt::now());
            self.progress.step(what, done, total);
        }
        Ok(())
    }

    /// Prints a text at once.
    fn say(&mut self, text: &str) {
        if !self.quiet {
            self.progress.finish();
            ui::out(text);
        }
    }
}

/// `cenote bench ...`
///
/// # Errors
/// The bench failed; its measurements are lost.
pub fn main(argv: &[OsString]) -> Result<Exit> {
    let words: Vec<String> = argv.iter().map(|a| a.to_string_lossy().into_owned()).collect();
    let Some((name, rest)) = words.split_first() else {
        ui::out(&list());
        return Ok(Exit::OK);
    };
    if let Some(own) = OWN.iter().find(|b| b.name == name) {
        if rest.iter().any(|word| word == "--help") {
            ui::out(&usage(own.name, "", own.about, own.options.iter()));
            return Ok(Exit::OK);
        }
        return (own.main)(&rest.iter().map(String::as_str).collect::<Vec<_>>());
    }
    let Some(bench) = ALL.iter().find(|b| b.name == name) else {
        if matches!(name.as_str(), "--help" | "-h" | "help") {
            ui::out(&list());
            return Ok(Exit::OK);
        }
        ui::err(&format!("bench: no bench named '{name}'"));
        ui::err(list().trim_end());
        return Ok(Exit::USAGE);
    };
    match bench.start(rest) {
        Ok(()) => Ok(Exit::OK),
        Err(Stop::Usage(text)) => {
            ui::err(&format!("bench {name}: {text}"));
            ui::err(bench.usage().trim_end());
            Ok(Exit::USAGE)
        }
        Err(Stop::Failed(e)) => Err(e),
        Err(Stop::Interrupted) => {
            ui::err(&format!("bench {name}: interrupted"));
            Ok(tidy::INTERRUPTED)
        }
    }
}

/// The description of a bench.
pub struct BenchInfo {
    /// Its name.
    pub name: &'static str,
    /// One line.
    pub about: &'static str,
    /// Its options.
    pub options: Vec<&'static Opt>,
}

/// All benches with their options, for the manual page.
pub fn catalogue() -> Vec<BenchInfo> {
    let usual = ALL.iter().map(|b| BenchInfo {
        name: b.name,
        about: b.about,
        options: b.options.iter().copied().flatten().chain(COMMON).collect(),
    });
    let own = OWN.iter().map(|b| BenchInfo {
        name: b.name,
        about: b.about,
        options: b.options.iter().collect(),
    });
    usual.chain(own).collect()
}

/// One line for each bench.
fn list() -> String {
    let all = ALL.iter().map(|b| (b.name, b.about)).chain(OWN.iter().map(|b| (b.name, b.about)));
    let lines: String = all.map(|(name, about)| format!("  {name:<13} {about}\n")).collect();
    format!(
        "usage: bench NAME [--json FILE] [--svg FILE] [options]; options: bench NAME --help\n{lines}"
    )
}

/// The usage of a bench.
fn usage(
    name: &str,
    words: &str,
    about: &str,
    options: impl Iterator<Item = &'static Opt>,
) -> String {
    let blank = if words.is_empty() { "" } else { " " };
    let mut out = format!("usage: bench {name}{blank}{words} [options]\n{about}\n");
    for o in options {
        let left = format!("{} {}", o.name, o.value);
        out.push_str(&format!("  {left:<22} {}\n", o.help));
    }
    out
}

impl Bench {
    fn usage(&self) -> String {
        let options = self.options.iter().copied().flatten().chain(COMMON);
        usage(self.name, self.words, self.about, options)
    }

    fn start(&self, words: &[String]) -> std::result::Result<(), Stop> {
        let known: Vec<&'static [Opt]> = self.options.iter().copied().chain([COMMON]).collect();
        let args = Args::parse(&known, words)?;
        if args.flag("--help") {
            ui::out(&self.usage());
            return Ok(());
        }
        let target = |name| args.text(name).map(str::to_owned);
        let (json, svg) = (target("--json"), target("--svg"));
        if json.as_deref() == Some("-") && svg.as_deref() == Some("-") {
            return Err(Stop::usage("only one of --json and --svg can be standard output"));
        }
        let quiet = [&json, &svg].into_iter().flatten().any(|path| path == "-");
        let report = Report { bench: self.name, ..Report::default() };
        let progress = Progress::new(self.name, None);
        let machine = frame::machine();
        let mut run = Run { args, report, progress, drawn: None, quiet };
        tidy::watch()?;
        (self.run)(&mut run)?;
        run.progress.finish();
        let text = run.report.text(chart::style_of_stdout());
        run.say(&text);
        if let Some(path) = json {
            frame::write_json(&path, &run.report.json(machine))?;
        }
        if let Some(path) = svg {
            frame::write_file(&path, &svg::document(&run.report.maps, &run.report.charts))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The README's tour shows the list; once it lacked a bench.
    #[test]
    fn the_readme_shows_the_list() {
        let readme = include_str!("../../../README.md");
        assert!(readme.contains(&list()), "README.md: the list of benches is\n{}", list());
    }

    #[test]
    fn every_bench_explains_itself() {
        for bench in ALL {
            assert!(list().contains(bench.about), "{}", bench.name);
            assert!(bench.about.chars().count() <= 70, "{}", bench.name);
            let usage = bench.usage();
            for o in bench.options.iter().copied().flatten().chain(COMMON) {
                assert!(usage.contains(o.name) && !o.help.is_empty(), "{}", o.name);
                assert!(o.name.starts_with("--"));
            }
            let mut names: Vec<_> =
                bench.options.iter().copied().flatten().map(|o| o.name).collect();
            names.extend(COMMON.iter().map(|o| o.name));
            let count = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), count, "{}: an option twice", bench.name);
        }
    }
}
