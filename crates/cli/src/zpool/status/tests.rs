use super::super::vdevs::tests::{self as trees, vdev};
use super::*;
use proto::{Checkpoint, ErrorScrub, Expand, LeafJob, RebuildScan, Removal};
use ui::time::ctime;

fn text(p: &Pool, options: &StatusOptions) -> String {
    text_with(p, options, None)
}
fn disk(n: u32, class: VdevRole) -> Vdev {
    vdev("file", &format!("/tmp/w/disk{n}.img"), class, vec![])
}
fn mirror(id: u32, class: VdevRole, disks: [u32; 2]) -> Vdev {
    let leaves = disks.iter().map(|&d| disk(d, class)).collect();
    vdev("mirror", &format!("mirror-{id}"), class, leaves)
}
fn pool(name: &str, tops: Vec<Vdev>) -> Pool {
    trees::pool(vdev("root", name, VdevRole::Normal, tops))
}

const KITCHEN: &str = include_str!("../../../tests/fixtures/kitchen.status.txt");
const REMOVED: &str = include_str!("../../../tests/fixtures/removed.status.txt");
const EXPANDED: &str = include_str!("../../../tests/fixtures/expanded.status.txt");
const DRAID: &str = include_str!("../../../tests/fixtures/gdraid2w8.status.txt");

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

/// The words of chapter 09 §4.3.
#[test]
fn an_expansion_in_progress() {
    let mib = |n: u64| n << 20;
    let running = Expand {
        state: 1,
        name: "raidz1-0".into(),
        start: 1000,
        end: 0,
        copied: mib(1024),
        to_copy: mib(4096),
    };
    let since = ctime(1000);
    let begin = format!("expand: expansion of raidz1-0 in progress since {since}\n\t");
    assert_eq!(
        expand_lines(&running, 1100),
        format!("{begin}1G / 4G copied at 10.2M/s, 25.00% done, 00:05:00 to go\n")
    );
    let slow = Expand { copied: 1 << 10, ..running.clone() };
    assert_eq!(
        expand_lines(&slow, 2024),
        format!("{begin}1K / 4G copied at 1B/s, 0.00% done, (copy is slow, no estimated time)\n")
    );
    // More may be moved than is in use.
    let nearly = Expand { copied: mib(5000), ..running };
    assert!(expand_lines(&nearly, 1000).ends_with(", 100.00% done, 00:00:00 to go\n"));
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
    assert!(
        lines.ends_with(
            "\t512M / 1G scanned at 51.2M/s, 256M / 1G issued at 25.6M/s\n\t1M repaired, 25.00% \
         done, 00:00:30 to go\n"
        ),
        "{lines}"
    );
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

#[test]
fn error_scrubs() {
    let mut p = pool("tank", vec![disk(1, VdevRole::Normal)]);
    p.scan = Some(Scan { state: 2, start: 5, end: 9, ..Scan::default() });
    let scrub =
        ErrorScrub { state: 1, start: 7, to_examine: 24, examined: 3, ..Default::default() };
    p.error_scrub = Some(scrub);
    let shown = |p: &Pool| {
        let text = text(p, &StatusOptions::default());
        text.split_once(" state: ONLINE\n").unwrap().1.split_once("config:").unwrap().0.to_owned()
    };
    let [start, pause, end] = [7, 8, 90_007].map(ctime);
    let progress = "\t3 / 24 error blocks read, 12.50% done\n";
    let line = format!(" scrub: error scrub in progress since {start}\n{progress}");
    assert_eq!(shown(&p), line, "the scrub before it is not shown");
    let terminal = StatusOptions { terminal: true, ..StatusOptions::default() };
    assert!(text(&p, &terminal).contains("done\n\t[###---------------------]\n"));
    p.error_scrub = Some(ErrorScrub { paused: 8, ..scrub });
    let line = format!(
        " scrub: error scrub paused since {pause}\n\terror scrub started on {start}\n{progress}"
    );
    assert_eq!(shown(&p), line);
    p.error_scrub = Some(ErrorScrub { state: 3, end: 90_007, ..scrub });
    assert_eq!(shown(&p), format!(" scrub: error scrub canceled on {end}\n"));
    p.error_scrub = Some(ErrorScrub { state: 2, end: 90_007, examined: 24, ..scrub });
    let line = format!(" scrub: scrubbed 24 error blocks in 1 days 01:00:00 on {end}\n");
    assert_eq!(shown(&p), line);
    p.scan = Some(Scan { state: 3, resilver: true, start: 5, end: 9, ..Scan::default() });
    assert!(shown(&p).starts_with(&line) && shown(&p).contains("  scan: resilver canceled"));
    p.scan = Some(Scan { state: 3, start: 8, end: 9, ..Scan::default() });
    assert!(shown(&p).contains("  scan: scrub canceled"), "a later scrub is shown");
}
