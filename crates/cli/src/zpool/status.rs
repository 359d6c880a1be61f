//! `zpool status` (chapter 09 §4.3).

use std::ffi::OsString;
use std::fmt::Write;

use base::Result;
use cenote::props::{nicebytes, nicenum};
use proto::{Checkpoint, Expand, LeafJob, Pool, Removal, Vdev, VdevHealth, VdevRole};
use ui::Exit;
use ui::progress::bar;
use ui::time::{ctime, duration};

use super::scan_text::{rebuild_lines, scan_lines};
use super::vdevs::{self, Naming, VdevLine, spare_word};
use super::{Pools, Repeat, misuse, no_such_pool, options};

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
    initialize: bool,
    trim: bool,
    /// Bars are drawn.
    terminal: bool,
    naming: Naming,
}

/// `zpool status ...`
pub(super) fn main(argv: &[OsString]) -> Result<Exit> {
    let parsed = match options("status", argv) {
        Ok(parsed) => parsed,
        Err(exit) => return Ok(exit),
    };
    let mut names = parsed.words();
    let repeat = match Repeat::take(&mut names, parsed.last('T')) {
        Ok(repeat) => repeat,
        Err(message) => return Ok(misuse("status", Some(&message))),
    };
    let options = StatusOptions {
        names,
        parsable: parsed.has('p'),
        slow: parsed.has('s'),
        direct: parsed.has('d'),
        unhealthy_only: parsed.has('x'),
        errors_only: parsed.has('e'),
        verbose: parsed.has('v'),
        initialize: parsed.has('i'),
        trim: parsed.has('t'),
        terminal: std::io::IsTerminal::is_terminal(&std::io::stdout()),
        naming: Naming { guid: parsed.has('g'), path: parsed.has('P'), links: parsed.has('L') }
            .with_env(),
    };
    repeat.run(|| report(&options))
}

fn report(options: &StatusOptions) -> Result<Exit> {
    let mut pools = Pools::connect()?;
    let names = pools.select(&options.names, no_such_pool)?;
    let mut shown = 0;
    for name in &names {
        let pool = pools.status_with(name, options.verbose)?;
        if options.unhealthy_only && status_of(&pool).is_none() {
            if !options.names.is_empty() {
                ui::out(&format!("pool '{name}' is healthy\n"));
            }
            continue;
        }
        let gap = if shown > 0 { "\n" } else { "" };
        ui::out(&format!("{gap}{}", text(&pool, options)));
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

/// The status of a pool with a problem: text for `status:` and `action:`, and the message id.
struct StatusAdvice {
    status: &'static str,
    action: &'static str,
    id: Option<&'static str>,
}

fn any(v: &Vdev, f: &impl Fn(&Vdev) -> bool) -> bool {
    f(v) || v.children.iter().any(|c| any(c, f))
}

/// Facts about a tree that decide a pool's status.
pub(super) struct Facts {
    unavailable: bool,
    whole_gone: bool,
    missing: bool,
    corrupt: bool,
    faulted: bool,
    errors: bool,
    offline: bool,
    removed: bool,
}

impl Facts {
    /// Collects them from the leaves; a spare or cache device counts as much as in OpenZFS.
    pub(super) fn of(root: &Vdev, health: VdevHealth) -> Facts {
        let leaf = |v: &Vdev| v.children.is_empty() && v.kind != "root";
        let aux = |v: &Vdev, words: &[&str]| v.aux.as_deref().is_some_and(|a| words.contains(&a));
        Facts {
            unavailable: matches!(health, VdevHealth::Unavail | VdevHealth::Faulted),
            whole_gone: any(root, &|v| !leaf(v) && aux(v, &["insufficient replicas"])),
            missing: any(root, &|v| {
                leaf(v)
                    && v.state == VdevHealth::Unavail
                    && !aux(v, &["corrupted data", "invalid label"])
            }),
            corrupt: any(root, &|v| leaf(v) && aux(v, &["corrupted data", "invalid label"])),
            faulted: any(root, &|v| leaf(v) && v.state == VdevHealth::Faulted),
            errors: any(root, &|v| {
                leaf(v) && v.read_errors + v.write_errors + v.checksum_errors > 0
            }),
            offline: any(root, &|v| v.state == VdevHealth::Offline),
            removed: any(root, &|v| v.state == VdevHealth::Removed),
        }
    }

    /// The text for a pool that is not imported.
    pub(super) fn import_status(&self) -> &'static str {
        if self.missing {
            "One or more devices are missing from the system."
        } else if self.corrupt {
            "One or more devices contains corrupted data."
        } else if self.faulted {
            "One or more devices were being resilvered or are faulted."
        } else if self.offline {
            "One or more devices are offlined."
        } else {
            "The pool metadata is corrupted."
        }
    }
}

/// The first problem that applies, in OpenZFS's order.
fn status_of(p: &Pool) -> Option<StatusAdvice> {
    let f = Facts::of(&p.root, p.health);
    let t = |status, action, id| Some(StatusAdvice { status, action, id });
    let rebuilding = p.rebuilds.iter().any(|r| r.state == 1);
    if rebuilding || p.scan.as_ref().is_some_and(|s| s.resilver && s.state == 1) {
        return t(
            "One or more devices is currently being resilvered.  The pool will\n\tcontinue to \
             function, possibly in a degraded state.",
            "Wait for the resilver to complete.",
            None,
        );
    }
    if is_scrub_recommended(p) {
        return t(
            "One or more devices have been sequentially resilvered, scrubbing\n\tthe pool is \
             recommended.",
            "Use 'zpool scrub' to verify all data checksums.",
            None,
        );
    }
    if p.suspended {
        return t(
            "One or more devices are faulted in response to IO failures.",
            "Make sure the affected devices are connected, then run 'zpool clear'.",
            Some("HC"),
        );
    }
    if let Some(trouble) = device_trouble(&f) {
        return Some(trouble);
    }
    if p.error_count > 0 {
        return t(
            "One or more devices has experienced an error resulting in data\n\tcorruption.  \
             Applications may be affected.",
            "Restore the file in question if possible.  Otherwise restore the\n\tentire pool from \
             backup.",
            Some("8A"),
        );
    }
    if let Some(trouble) = minor_trouble(&f) {
        return Some(trouble);
    }
    if p.disabled_features {
        return t(
            "Some supported and requested features are not enabled on the pool.\n\tThe pool can \
             still be used, but some features are unavailable.",
            "Enable all features using 'zpool upgrade'. Once this is done,\n\tthe pool may no \
             longer be accessible by software that does not support\n\tthe features. See \
             zpool-features(7) for details.",
            None,
        );
    }
    None
}

/// Whether the last scrub ended before the last rebuild.
fn is_scrub_recommended(p: &Pool) -> bool {
    let complete = p.rebuilds.iter().filter(|r| r.state == 3);
    let scrubbed_before =
        |end: u64| p.scan.as_ref().is_none_or(|s| s.state == 2 && !s.resilver && end > s.end);
    complete.map(|r| r.end).max().is_some_and(scrubbed_before)
}

/// Problems of devices that make the pool unavailable.
fn device_trouble(f: &Facts) -> Option<StatusAdvice> {
    if !f.unavailable && !f.whole_gone {
        return None;
    }
    Some(if f.missing {
        StatusAdvice {
            status: "One or more devices could not be opened.  There are insufficient\n\treplicas \
                     for the pool to continue functioning.",
            action: "Attach the missing device and online it using 'zpool online'.",
            id: Some("3C"),
        }
    } else if f.corrupt {
        StatusAdvice {
            status: "One or more devices could not be used because the label is missing\n\tor \
                     invalid.  There are insufficient replicas for the pool to \
                     continue\n\tfunctioning.",
            action: "Destroy and re-create the pool from\n\ta backup source.",
            id: Some("5E"),
        }
    } else {
        StatusAdvice {
            status: "The pool metadata is corrupted and the pool cannot be opened.",
            action: "Destroy and re-create the pool from\n\ta backup source.",
            id: Some("72"),
        }
    })
}

/// Problems of devices that the pool tolerates.
fn minor_trouble(f: &Facts) -> Option<StatusAdvice> {
    let t = |status, action, id| Some(StatusAdvice { status, action, id });
    if f.faulted {
        return t(
            "One or more devices are faulted in response to persistent errors.\n\tSufficient \
             replicas exist for the pool to continue functioning in a\n\tdegraded state.",
            "Replace the faulted device, or use 'zpool clear' to mark the device\n\trepaired.",
            None,
        );
    }
    if f.missing {
        return t(
            "One or more devices could not be opened.  Sufficient replicas exist for\n\tthe pool \
             to continue functioning in a degraded state.",
            "Attach the missing device and online it using 'zpool online'.",
            Some("2Q"),
        );
    }
    if f.corrupt {
        return t(
            "One or more devices could not be used because the label is missing or\n\tinvalid.  \
             Sufficient replicas exist for the pool to continue\n\tfunctioning in a degraded state.",
            "Replace the device using 'zpool replace'.",
            Some("4J"),
        );
    }
    if f.errors {
        return t(
            "One or more devices has experienced an unrecoverable error.  An\n\tattempt was made \
             to correct the error.  Applications are unaffected.",
            "Determine if the device needs to be replaced, and clear the errors\n\tusing 'zpool \
             clear' or replace the device with 'zpool replace'.",
            Some("9P"),
        );
    }
    if f.offline {
        return t(
            "One or more devices has been taken offline by the administrator.\n\tSufficient \
             replicas exist for the pool to continue functioning in a\n\tdegraded state.",
            "Online the device using 'zpool online' or replace the device with\n\t'zpool replace'.",
            None,
        );
    }
    if f.removed {
        return t(
            "One or more devices have been removed.\n\tSufficient replicas exist for the pool to \
             continue functioning in a\n\tdegraded state.",
            "Online the device using zpool online' or replace the device with\n\t'zpool replace'.",
            None,
        );
    }
    None
}

/// The whole report on one pool.
fn text(p: &Pool, options: &StatusOptions) -> String {
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
    let now = base::rt::wall_clock().as_secs();
    let rebuilds = rebuild_lines(p, now);
    if let Some(scan) = p.scan.as_ref().filter(|s| !s.resilver || rebuilds.is_empty()) {
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
        out.push_str(&expand_lines(expand));
        if options.terminal && expand.state == 1 {
            out.push_str(&bar_line(expand.copied, expand.to_copy));
        }
    }
    out.push_str("config:\n\n");
    out.push_str(&config(&p.root, p.health, options));
    out.push('\n');
    out.push_str(&errors(p, options.verbose));
    out
}

fn errors(p: &Pool, verbose: bool) -> String {
    if p.error_count == 0 {
        return "errors: No known data errors\n".to_owned();
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

fn config(root: &Vdev, health: VdevHealth, options: &StatusOptions) -> String {
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
    out.push('\n');
    let top = Vdev { state: health, ..root.clone() };
    row(&mut out, &top, 0, w, options);
    for line in &lines {
        match line {
            VdevLine::Class(heading) => {
                let _ = writeln!(out, "\t{heading}");
            }
            VdevLine::Vdev(v, _) if options.errors_only && !any(v, &unwell) => {}
            VdevLine::Vdev(v, depth) => row(&mut out, v, *depth, w, options),
        }
    }
    out
}

fn unwell(v: &Vdev) -> bool {
    v.state != VdevHealth::Online || v.read_errors + v.write_errors + v.checksum_errors > 0
}

fn row(out: &mut String, v: &Vdev, depth: usize, width: usize, options: &StatusOptions) {
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

/// Words of remarks: while it runs, when it never ran, and behind the percentage.
type JobWords = [&'static str; 3];
const INITIALIZE_WORDS: JobWords = ["initializing", "uninitialized", "initialized"];
const TRIM_WORDS: JobWords = ["trimming", "untrimmed", "trimmed"];

/// The remark on the work on a leaf's free space; `whole`: that on request.
fn job_remark(job: Option<&LeafJob>, whole: bool, words: &JobWords) -> String {
    let [runs, never, done] = words;
    // An empty device is done.
    let percent = |job: &LeafJob| {
        let all = u128::from(job.done.min(job.total)) * 100;
        all.checked_div(u128::from(job.total)).unwrap_or(100)
    };
    match job {
        Some(job) if job.state == 1 && !whole => format!("  ({runs})"),
        _ if !whole => String::new(),
        Some(job) if matches!(job.state, 1 | 3 | 4) => {
            let how = match job.state {
                1 => "started at",
                3 => "suspended, started at",
                _ => "completed at",
            };
            format!("  ({}% {done}, {how} {})", percent(job), ctime(job.time))
        }
        _ => format!("  ({never})"),
    }
}

fn checkpoint_line(checkpoint: &Checkpoint) -> String {
    let space = nicebytes(checkpoint.space);
    match checkpoint.discarding {
        true => format!("checkpoint: discarding, {space} remaining.\n"),
        false => {
            format!("checkpoint: created {}, consumes {space}\n", ctime(checkpoint.taken))
        }
    }
}

/// A progress bar for terminals, below the text about a scan or removal.
fn bar_line(done: u64, total: u64) -> String {
    format!("\t{}\n", bar(done, total))
}

/// A duration as removal lines show it.
fn hours_minutes(seconds: u64) -> String {
    format!("{}h{}m", seconds / 3600, seconds / 60 % 60)
}

fn removal_lines(r: &Removal) -> String {
    let took = r.end.saturating_sub(r.start);
    match r.state {
        2 => {
            let mut out = format!(
                "remove: Removal of vdev {} copied {} in {}, completed on {}\n",
                r.vdev,
                nicebytes(r.copied),
                hours_minutes(took),
                ctime(r.end)
            );
            if r.mapping_memory > 0 {
                let _ = writeln!(
                    out,
                    "\t{} memory used for removed device mappings",
                    nicenum(r.mapping_memory)
                );
            }
            out
        }
        3 => format!("remove: Removal of {} canceled on {}\n", r.name, ctime(r.end)),
        1 => format!(
            "remove: Evacuation of {} in progress since {}\n\t{} copied out of {}\n",
            r.name,
            ctime(r.start),
            nicebytes(r.copied),
            nicebytes(r.to_copy)
        ),
        _ => String::new(),
    }
}

fn expand_lines(e: &Expand) -> String {
    match e.state {
        2 => format!(
            "expand: expanded {} copied {} in {}, on {}\n",
            e.name,
            nicebytes(e.copied),
            duration(e.end.saturating_sub(e.start)),
            ctime(e.end)
        ),
        1 => format!(
            "expand: expansion of {} in progress since {}\n\t{} / {} copied\n",
            e.name,
            ctime(e.start),
            nicebytes(e.copied),
            nicebytes(e.to_copy)
        ),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::vdevs::tests::vdev;
    use super::*;
    use proto::{RebuildScan, Scan};

    fn disk(n: u32, class: VdevRole) -> Vdev {
        vdev("file", &format!("/tmp/w/disk{n}.img"), class, vec![])
    }
    fn mirror(id: u32, class: VdevRole, disks: [u32; 2]) -> Vdev {
        let leaves = disks.iter().map(|&d| disk(d, class)).collect();
        vdev("mirror", &format!("mirror-{id}"), class, leaves)
    }
    fn pool(name: &str, tops: Vec<Vdev>) -> Pool {
        super::vdevs::tests::pool(vdev("root", name, VdevRole::Normal, tops))
    }

    const KITCHEN: &str = include_str!("../../tests/fixtures/kitchen.status.txt");
    const REMOVED: &str = include_str!("../../tests/fixtures/removed.status.txt");
    const EXPANDED: &str = include_str!("../../tests/fixtures/expanded.status.txt");
    const DRAID: &str = include_str!("../../tests/fixtures/gdraid2w8.status.txt");

    #[test]
    fn golden_kitchen() {
        let p = pool(
            "kitchen",
            vec![
                mirror(0, VdevRole::Normal, [1, 2]),
                mirror(1, VdevRole::Normal, [3, 4]),
                disk(5, VdevRole::Log),
                mirror(3, VdevRole::Special, [8, 9]),
                disk(6, VdevRole::Cache),
                disk(7, VdevRole::Spare),
            ],
        );
        assert_eq!(text(&p, &StatusOptions::default()), KITCHEN);
    }

    #[test]
    fn golden_draid_with_a_distributed_spare() {
        let leaves = (1..=8).map(|n| disk(n, VdevRole::Normal)).collect();
        let mut spare = vdev("dspare", "draid2-0-0", VdevRole::Spare, vec![]);
        spare.path = None;
        let top = vdev("draid", "draid2:3d:8c:1s-0", VdevRole::Normal, leaves);
        assert_eq!(text(&pool("gdraid2w8", vec![top, spare]), &StatusOptions::default()), DRAID);
    }

    /// The lines about earlier work have dates, which are right if the time zone is the golden
    /// pools', UTC.
    #[test]
    fn golden_removal_and_expansion() {
        if ui::time::strftime("%Z", 0) != "UTC" {
            println!("local zone is not UTC: skipped");
            return;
        }
        let mut p = pool("removed", vec![disk(2, VdevRole::Normal)]);
        p.removal = Some(Removal {
            state: 2,
            start: 1_795_262_454,
            end: 1_795_262_454,
            copied: 1_363_149,
            mapping_memory: 192,
            ..Removal::default()
        });
        assert_eq!(text(&p, &StatusOptions::default()), REMOVED);
        let leaves = (1..=4).map(|n| disk(n, VdevRole::Normal)).collect();
        let mut p = pool("expanded", vec![vdev("raidz", "raidz1-0", VdevRole::Normal, leaves)]);
        let end = 1_795_262_134;
        p.scan = Some(Scan { state: 2, start: end, end, ..Scan::default() });
        p.expand = Some(Expand {
            state: 2,
            name: "raidz1-0".into(),
            start: end - 2,
            end,
            copied: 470 << 10,
            to_copy: 0,
        });
        assert_eq!(text(&p, &StatusOptions::default()), EXPANDED);
    }

    #[test]
    fn troubles_in_order_and_remarks() {
        let mut p = pool("tank", vec![mirror(0, VdevRole::Normal, [1, 2])]);
        assert!(status_of(&p).is_none());
        p.health = VdevHealth::Degraded;
        let leaf = &mut p.root.children[0].children[1];
        leaf.state = VdevHealth::Unavail;
        leaf.aux = Some("cannot open".into());
        leaf.read_errors = 1239;
        let out = text(&p, &StatusOptions::default());
        assert!(out.contains("status: One or more devices could not be opened.  Sufficient"));
        assert!(out.contains("   see: https://openzfs.github.io/openzfs-docs/msg/ZFS-8000-2Q\n"));
        assert!(
            out.contains("\t    /tmp/w/disk2.img  UNAVAIL  1.21K     0     0  cannot open\n"),
            "{out}"
        );
        p.root.children[0].aux = Some("insufficient replicas".into());
        assert_eq!(status_of(&p).unwrap().id, Some("3C"));
        p.root.children.clear();
        p.error_count = 2;
        p.errors = vec!["/tank/f".into()];
        assert_eq!(status_of(&p).unwrap().id, Some("8A"));
        assert_eq!(errors(&p, false), "errors: 2 data errors, use '-v' for a list\n");
        assert!(errors(&p, true).ends_with("files:\n\n        /tank/f\n"));
    }

    #[test]
    fn running_scans() {
        let s = Scan {
            state: 1,
            start: 0,
            to_examine: 1 << 30,
            examined: 512 << 20,
            issued: 256 << 20,
            processed: 1 << 20,
            ..Scan::default()
        };
        let lines = scan_lines(&s, 10);
        assert!(lines.ends_with(
            "\t512M / 1G scanned at 51.2M/s, 256M / 1G issued at 25.6M/s\n\t1M repaired, 25.00% \
             done, 00:00:30 to go\n"
        ), "{lines}");
        assert!(scan_lines(&s, 1000).ends_with("no estimated completion time\n"));
        let mut p = pool("tank", vec![disk(1, VdevRole::Normal)]);
        p.scan = Some(s);
        let terminal = StatusOptions { terminal: true, ..StatusOptions::default() };
        let shown = text(&p, &terminal);
        assert!(
            shown.contains("to go\n\t[######------------------]\nconfig:")
                || shown.contains("time\n\t[######------------------]\nconfig:"),
            "{shown}"
        );
        assert!(!text(&p, &StatusOptions::default()).contains("[#"), "for eyes alone");
    }

    /// Recorded from OpenZFS 2.4.4, without the dates.
    #[test]
    fn rebuilds() {
        let mut p = pool("rebuilt", vec![mirror(0, VdevRole::Normal, [1, 2])]);
        let running = RebuildScan {
            name: "mirror-0".into(),
            state: 1,
            estimated: 76_526_080,
            scanned: 43_200_000,
            issued: 43_186_000,
            rebuilt: 35_442_688,
            pass_ms: 12_950,
            pass_scanned: 43_200_000,
            pass_issued: 43_186_000,
            ..RebuildScan::default()
        };
        p.rebuilds = vec![running.clone()];
        let shown = text(&p, &StatusOptions::default());
        let since = ctime(0);
        let lines = format!(
            "action: Wait for the resilver to complete.\n  scan: resilver (mirror-0) in progress \
             since {since}\n\t41.2M / 73.0M scanned at 3.18M/s, 41.2M / 73.0M issued at \
             3.18M/s\n\t33.8M resilvered, 56.43% done, no estimated completion time\nconfig:"
        );
        assert!(shown.contains(&lines), "{shown}");
        // The scrub that follows is newer.
        let (end, name) = (100, "draid1:3d:8c:1s-0".to_owned());
        let done = RebuildScan { name, state: 3, end, rebuilt: 98 << 10, time_ms: 298, ..running };
        p.rebuilds = vec![done];
        p.scan = Some(Scan { state: 2, start: end, end, ..Scan::default() });
        let when = ctime(end);
        let lines = format!(
            " state: ONLINE\n  scan: scrub repaired 0B in 00:00:00 with 0 errors on {when}\n  scan: \
             resilvered (draid1:3d:8c:1s-0) 98K in 00:00:00 with 0 errors on {when}\nconfig:"
        );
        let shown = text(&p, &StatusOptions::default());
        assert!(shown.contains(&lines), "{shown}");
        // A scrub is missing.
        p.rebuilds[0].end += 1;
        let shown = text(&p, &StatusOptions::default());
        assert!(shown.contains("have been sequentially resilvered, scrubbing\n\tthe pool"));
        // A later resilver hides the rebuild, an earlier one does not.
        p.scan = Some(Scan { resilver: true, state: 2, start: 7, end: 7, ..Scan::default() });
        let count = |p: &Pool| text(p, &StatusOptions::default()).matches("resilvered (").count();
        assert_eq!((count(&p), status_of(&p).is_none()), (1, true));
        p.scan = Some(Scan { resilver: true, state: 2, start: 200, end: 200, ..Scan::default() });
        assert_eq!(count(&p), 0);
        p.rebuilds[0].state = 2;
        p.scan = None;
        let canceled = format!("  scan: resilver (draid1:3d:8c:1s-0) canceled on {}\n", ctime(101));
        assert!(text(&p, &StatusOptions::default()).contains(&canceled));
    }

    #[test]
    fn remarks_on_request() {
        let mut p = pool("tank", vec![disk(1, VdevRole::Normal)]);
        let options = StatusOptions { initialize: true, trim: true, ..StatusOptions::default() };
        let row =
            "  /tmp/w/disk1.img  ONLINE       0     0     0  (uninitialized)  (trim unsupported)\n";
        assert!(text(&p, &options).contains(row), "{}", text(&p, &options));
        let leaf = &mut p.root.children[0];
        leaf.can_discard = true;
        leaf.trim = Some(LeafJob { state: 1, time: 7, done: 57, total: 99 });
        let shown = |p: &Pool, options: &StatusOptions| {
            let text = text(p, options);
            let row = text.lines().find(|l| l.contains("disk1.img")).unwrap();
            row.split_once("0     0     0").unwrap().1.to_owned()
        };
        let when = ctime(7);
        let trim = StatusOptions { trim: true, ..StatusOptions::default() };
        assert_eq!(shown(&p, &StatusOptions::default()), "  (trimming)");
        assert_eq!(shown(&p, &trim), format!("  (57% trimmed, started at {when})"));
        for (state, words) in [
            (3, format!("  (57% trimmed, suspended, started at {when})")),
            (4, format!("  (57% trimmed, completed at {when})")),
            (2, "  (untrimmed)".to_owned()),
        ] {
            p.root.children[0].trim = Some(LeafJob { state, time: 7, done: 57, total: 99 });
            assert_eq!(shown(&p, &trim), words);
            assert_eq!(shown(&p, &StatusOptions::default()), "", "only on request");
        }
    }

    #[test]
    fn checkpoints() {
        let mut p = pool("tank", vec![disk(1, VdevRole::Normal)]);
        let space = 248 << 10;
        p.checkpoint = Some(Checkpoint { discarding: false, taken: 7, space });
        let line = format!("\ncheckpoint: created {}, consumes 248K\nconfig:", ctime(7));
        assert!(text(&p, &StatusOptions::default()).contains(&line));
        p.checkpoint = Some(Checkpoint { discarding: true, taken: 0, space });
        let line = "\ncheckpoint: discarding, 248K remaining.\nconfig:";
        assert!(text(&p, &StatusOptions::default()).contains(line));
    }
}
