//! `zpool status` (chapter 09 §4.3).

mod advice;
mod json;
mod work;

use std::ffi::OsString;
use std::fmt::Write;

use base::Result;
use cenote::props::nicenum;
use commands::getopt::Bad;
use proto::{Pool, Scan, Vdev, VdevHealth, VdevRole};
use ui::Exit;
use ui::json::Json;

use super::dedup::{status_json, status_text};
use super::scan_text::{rebuild_lines, scan_lines};
use super::scripts::{self, ScriptColumns, Scripts};
use super::vdevs::{self, Naming, VdevLine, spare_word};
use super::{Pools, Repeat, misuse, no_such_pool, options};
pub(super) use advice::Facts;
use advice::{any, problem_of, status_of};
use json::JsonReport;
pub(super) use json::{CLASSES as JSON_CLASSES, Numbers, identity};
pub(super) use work::score;
use work::{INITIALIZE_WORDS, TRIM_WORDS};
use work::{
    bar_line, checkpoint_line, defrag_lines, error_scrub_lines, expand_lines, job_remark,
    removal_lines,
};

/// Class headings in order; those of the first three end with a TAB.
pub(super) const CLASSES: [(VdevRole, &str); 5] = [
    (VdevRole::Dedup, "dedup\t"),
    (VdevRole::Special, "special\t"),
    (VdevRole::Log, "logs\t"),
    (VdevRole::Cache, "cache"),
    (VdevRole::Spare, "spares"),
];
const SITE: &str = "https://openzfs.github.io/openzfs-docs/msg/";

#[derive(Default)]
struct StatusOptions {
    names: Vec<String>,
    parsable: bool,
    slow: bool,
    direct: bool,
    unhealthy_only: bool,
    errors_only: bool,
    verbose: bool,
    /// The dedup tables, too.
    dedup: bool,
    initialize: bool,
    trim: bool,
    /// Bars are drawn.
    terminal: bool,
    naming: Naming,
    /// `-c`.
    scripts: Option<Scripts>,
    numbers: Numbers,
    /// `--json-flat-vdevs`.
    flat: bool,
    /// `--json-pool-key-guid`.
    key_guid: bool,
}

/// Long options that say how JSON looks, with their letters in the table.
const JSON_FORMS: [(char, &str); 3] =
    [('J', "json-int"), ('F', "json-flat-vdevs"), ('K', "json-pool-key-guid")];

/// `zpool status ...`
pub(super) fn main(argv: &[OsString]) -> Result<Exit> {
    // As in OpenZFS, the option without scripts lists them.
    let alone = commands::find("zpool", "status").parse(argv) == Err(Bad::Missing("c".to_owned()));
    if alone {
        return Ok(match scripts::permitted() {
            Ok(()) => {
                ui::out(&scripts::list());
                Exit::OK
            }
            Err(why) => complaint(&why),
        });
    }
    let parsed = match options("status", argv) {
        Ok(parsed) => parsed,
        Err(exit) => return Ok(exit),
    };
    let json = parsed.has('j');
    if let Some((_, name)) = JSON_FORMS.iter().find(|(letter, _)| parsed.has(*letter) && !json) {
        return Ok(misuse("status", Some(&format!("'--{name}' only works with '-j'"))));
    }
    let mut names = parsed.words();
    let repeat = match Repeat::take(&mut names, parsed.last('T')) {
        Ok(repeat) => repeat,
        Err(message) => return Ok(misuse("status", Some(&message))),
    };
    let scripts = parsed.last('c').map(|names| {
        scripts::permitted()?;
        Scripts::find(&names)
    });
    let scripts = match scripts.transpose() {
        Ok(scripts) => scripts,
        Err(why) => return Ok(complaint(&why)),
    };
    let (exact, ints) = (parsed.has('p'), parsed.has('J'));
    let options = StatusOptions {
        names,
        parsable: exact,
        slow: parsed.has('s'),
        direct: parsed.has('d'),
        unhealthy_only: parsed.has('x'),
        errors_only: parsed.has('e'),
        verbose: parsed.has('v'),
        dedup: parsed.has('D'),
        initialize: parsed.has('i'),
        trim: parsed.has('t'),
        terminal: std::io::IsTerminal::is_terminal(&std::io::stdout()),
        naming: Naming { guid: parsed.has('g'), path: parsed.has('P'), links: parsed.has('L') }
            .with_env(),
        scripts,
        numbers: Numbers { exact: exact || ints, ints },
        flat: parsed.has('F'),
        key_guid: parsed.has('K'),
    };
    repeat.run(|| if json { json_report(&options) } else { report(&options) })
}

fn complaint(why: &str) -> Exit {
    ui::err(why);
    Exit::FAILURE
}

impl StatusOptions {
    /// Runs the scripts for the leaves of a pool.
    fn run_scripts(&self, pool: &Pool) -> Option<ScriptColumns> {
        self.scripts.as_ref().map(|scripts| scripts.run(&pool.name, &pool.root))
    }
}

fn report(options: &StatusOptions) -> Result<Exit> {
    let mut pools = Pools::connect()?;
    let names = pools.select(&options.names, no_such_pool)?;
    let mut shown = 0;
    for name in &names {
        let pool = pools.status_with(name, options.verbose)?;
        if options.unhealthy_only && problem_of(&pool).is_none() {
            if !options.names.is_empty() {
                ui::out(&format!("pool '{name}' is healthy\n"));
            }
            continue;
        }
        let gap = if shown > 0 { "\n" } else { "" };
        let columns = options.run_scripts(&pool);
        let dedup = if options.dedup { status_text(&pools.dedup(name)?) } else { String::new() };
        ui::out(&format!("{gap}{}{dedup}", text_with(&pool, options, columns.as_ref())));
        shown += 1;
    }
    if options.unhealthy_only && shown == 0 && options.names.is_empty() && !pools.failed {
        let all = if names.is_empty() { "no pools available\n" } else { "all pools are healthy\n" };
        ui::out(all);
    } else if names.is_empty() && !pools.failed {
        ui::err("no pools available");
    }
    Ok(Exit::failed_if(pools.failed))
}

/// One line of JSON about all pools.
fn json_report(options: &StatusOptions) -> Result<Exit> {
    let mut pools = Pools::connect()?;
    let mut out = Vec::new();
    for name in pools.select(&options.names, no_such_pool)? {
        let pool = pools.status_with(&name, options.verbose)?;
        if !options.unhealthy_only || problem_of(&pool).is_some() {
            let columns = options.run_scripts(&pool);
            let mut report = JsonReport { options, columns: columns.as_ref() }.pool(&pool);
            if let (true, Json::Object(members)) = (options.dedup, &mut report.1) {
                let dedup = status_json(&pools.dedup(&name)?, options.numbers);
                let at = members.iter().position(|m| m.0 == "error_count");
                members.insert(at.unwrap_or(members.len()), ("dedup_stats".to_owned(), dedup));
            }
            out.push(report);
        }
    }
    let output = Json::output("zpool status", [("pools", Json::Object(out))]);
    ui::out(&format!("{output}\n"));
    Ok(Exit::failed_if(pools.failed))
}

/// The whole report on one pool.
fn text_with(p: &Pool, options: &StatusOptions, columns: Option<&ScriptColumns>) -> String {
    let mut out = String::new();
    let word = match &p.doing {
        _ if p.suspended => "SUSPENDED",
        Some(doing) => doing.as_str(),
        None => p.health.word(),
    };
    let _ = writeln!(out, "  pool: {}\n state: {word}", p.name);
    if let Some(t) = status_of(p) {
        let _ = writeln!(out, "status: {}\naction: {}", t.status, t.action);
        if let Some(id) = t.id {
            let _ = writeln!(out, "   see: {SITE}ZFS-8000-{id}");
        }
    }
    let error_scrub = p.error_scrub.as_ref();
    // A scrub that an error scrub followed is not shown, as in OpenZFS.
    let hidden = |scan: &Scan| !scan.resilver && error_scrub.is_some_and(|e| e.start >= scan.start);
    if let Some(scrub) = error_scrub {
        out.push_str(&error_scrub_lines(scrub));
        if options.terminal && scrub.state == 1 {
            out.push_str(&bar_line(scrub.examined, scrub.to_examine));
        }
    }
    let now = base::rt::wall_clock().as_secs();
    let rebuilds = rebuild_lines(p, now);
    let shown = |scan: &&Scan| !hidden(scan) && (!scan.resilver || rebuilds.is_empty());
    if let Some(scan) = p.scan.as_ref().filter(shown) {
        out.push_str(&scan_lines(scan, now));
        if options.terminal && scan.state == 1 {
            out.push_str(&bar_line(scan.issued, scan.to_examine.saturating_sub(scan.skipped)));
        }
    }
    out.push_str(&rebuilds);
    for running in p.rebuilds.iter().filter(|r| options.terminal && r.state == 1) {
        out.push_str(&bar_line(running.issued, running.estimated));
    }
    if let Some(removal) = &p.removal {
        out.push_str(&removal_lines(removal));
        if options.terminal && removal.state == 1 {
            out.push_str(&bar_line(removal.copied, removal.to_copy));
        }
    }
    if let Some(checkpoint) = &p.checkpoint {
        out.push_str(&checkpoint_line(checkpoint));
    }
    if let Some(expand) = &p.expand {
        out.push_str(&expand_lines(expand, now));
        if options.terminal && expand.state == 1 {
            out.push_str(&bar_line(expand.copied, expand.to_copy));
        }
    }
    if let Some(defrag) = &p.defrag {
        out.push_str(&defrag_lines(defrag, base::rt::wall_clock().as_secs()));
        let total = defrag.to_move.filter(|_| options.terminal && defrag.state == 1);
        out.extend(total.map(|total| bar_line(defrag.moved, total)));
    }
    out.push_str("config:\n\n");
    out.push_str(&config(&p.root, p.health, options, columns));
    out.push('\n');
    out.push_str(&errors(p, options.verbose));
    out
}

fn errors(p: &Pool, verbose: bool) -> String {
    if p.error_count == 0 {
        return "errors: No known data errors\n".to_owned();
    }
    let unavailable = p.errors.first().filter(|e| e.starts_with("List of errors unavailable"));
    if let Some(why) = unavailable.filter(|_| verbose) {
        return format!("errors: {why}\n");
    }
    if !verbose || p.errors.is_empty() {
        return format!("errors: {} data errors, use '-v' for a list\n", p.error_count);
    }
    let mut out =
        "errors: Permanent errors have been detected in the following files:\n\n".to_owned();
    for e in &p.errors {
        let _ = writeln!(out, "        {e}");
    }
    out
}

fn config(
    root: &Vdev,
    health: VdevHealth,
    options: &StatusOptions,
    columns: Option<&ScriptColumns>,
) -> String {
    let lines = vdevs::walk(root, &CLASSES);
    let w = vdevs::name_width(root, &lines, options.naming, 10);
    let mut out = String::new();
    let _ =
        write!(out, "\t{:w$}  {:8} {:>5} {:>5} {:>5}", "NAME", "STATE", "READ", "WRITE", "CKSUM");
    for (on, head) in [(options.slow, "SLOW"), (options.direct, "DIO")] {
        if on {
            let _ = write!(out, " {head:>5}");
        }
    }
    out.push_str(&columns.map(ScriptColumns::heading_line).unwrap_or_default());
    out.push('\n');
    let top = Vdev { state: health, ..root.clone() };
    row(&mut out, &top, (0, w), options, columns);
    for line in &lines {
        match line {
            VdevLine::Class(heading) => {
                let _ = writeln!(out, "\t{heading}");
            }
            VdevLine::Vdev(v, _) if options.errors_only && !any(v, &unwell) => {}
            VdevLine::Vdev(v, depth) => row(&mut out, v, (*depth, w), options, columns),
        }
    }
    out
}

fn unwell(v: &Vdev) -> bool {
    v.state != VdevHealth::Online || v.read_errors + v.write_errors + v.checksum_errors > 0
}

/// A line of the table; `place`: its depth, and the width of the names.
fn row(
    out: &mut String,
    v: &Vdev,
    place: (usize, usize),
    options: &StatusOptions,
    columns: Option<&ScriptColumns>,
) {
    let (depth, width) = place;
    let name = if v.kind == "root" { v.name.clone() } else { options.naming.of(v) };
    let pad = width.saturating_sub(depth);
    let word = spare_word(v).unwrap_or_else(|| v.state.word());
    let _ = write!(out, "\t{:depth$}{name:pad$}  {word:8}", "");
    if v.class != VdevRole::Spare {
        let number = |n: u64| if options.parsable { n.to_string() } else { nicenum(n) };
        for n in [v.read_errors, v.write_errors, v.checksum_errors] {
            let _ = write!(out, " {:>5}", number(n));
        }
        if options.slow {
            let slow = if v.children.is_empty() { number(v.slow_ios) } else { "-".to_owned() };
            let _ = write!(out, " {slow:>5}");
        }
        if options.direct {
            let _ = write!(out, " {:>5}", 0);
        }
    }
    if let Some(aux) = &v.aux {
        let _ = write!(out, "  {aux}");
    }
    // Cenote reads through the page cache only where a file system refuses O_DIRECT.
    if options.verbose && v.path.is_some() && v.state == VdevHealth::Online && !v.direct_io {
        out.push_str("  (buffered)");
    }
    out.push_str(&columns.map(|columns| columns.row(v)).unwrap_or_default());
    let device = v.path.is_some() && v.state == VdevHealth::Online && v.class != VdevRole::Spare;
    if device {
        out.push_str(&job_remark(v.initialize.as_ref(), options.initialize, &INITIALIZE_WORDS));
        if options.trim && !v.can_discard {
            out.push_str("  (trim unsupported)");
        } else {
            out.push_str(&job_remark(v.trim.as_ref(), options.trim, &TRIM_WORDS));
        }
    }
    out.push('\n');
}

#[cfg(test)]
mod tests;
