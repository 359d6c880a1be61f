//! `zpool status -j` (chapter 09 §1.6, §4.4).

use cenote::props::{nicebytes, nicenum};
use proto::{
    Checkpoint, Defrag, Expand, LeafJob, MoveKind, Pool, RebuildScan, Removal, Scan, Vdev,
    VdevHealth, VdevRole,
};
use ui::json::Json;
use ui::time::strftime;

use super::super::scripts::ScriptColumns;
use super::super::vdevs::{Naming, hidden, spare_word};
use super::advice::{any, status_of};
use super::{SITE, StatusOptions, unwell};

/// Keys of the classes, beside that of normal vdevs.
pub(in super::super) const CLASSES: [(VdevRole, &str); 5] = [
    (VdevRole::Dedup, "dedup"),
    (VdevRole::Special, "special"),
    (VdevRole::Log, "logs"),
    (VdevRole::Cache, "l2cache"),
    (VdevRole::Spare, "spares"),
];
/// Limit of the nesting of trees from the socket.
const DEPTH_MAX: usize = 64;

type Members = Vec<(String, Json)>;

/// How numbers are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Numbers {
    /// `-p`: exact.
    pub(in super::super) exact: bool,
    /// `--json-int`: not as strings.
    pub(in super::super) ints: bool,
}

impl Numbers {
    /// A number that is never abbreviated.
    pub(in super::super) fn plain(self, n: u64) -> Json {
        if self.ints { Json::Int(n.into()) } else { Json::str(n.to_string()) }
    }

    fn shown(self, n: u64, nice: impl Fn(u64) -> String) -> Json {
        if self.exact { self.plain(n) } else { Json::str(nice(n)) }
    }

    pub(in super::super) fn count(self, n: u64) -> Json {
        self.shown(n, nicenum)
    }

    pub(in super::super) fn bytes(self, n: u64) -> Json {
        self.shown(n, nicebytes)
    }

    fn time(self, seconds: u64) -> Json {
        let date = |seconds| match seconds {
            0 => "-".to_owned(),
            seconds => strftime("%a %b %e %H:%M:%S %Z %Y", seconds),
        };
        self.shown(seconds, date)
    }
}

/// A report on one pool.
pub(super) struct JsonReport<'a> {
    pub(super) options: &'a StatusOptions,
    pub(super) columns: Option<&'a ScriptColumns>,
}

fn put(members: &mut Members, key: &str, value: Json) {
    members.push((key.to_owned(), value));
}

fn scan_state(state: u8) -> &'static str {
    match state {
        1 => "SCANNING",
        2 => "FINISHED",
        3 => "CANCELED",
        _ => "NONE",
    }
}

/// The word for a remark's reason, in the engine's terms; `None` for remarks that are no
/// problem.
fn aux_word(v: &Vdev) -> Option<&'static str> {
    Some(match v.aux.as_deref()? {
        "cannot open" => "OPEN_FAILED",
        "corrupted data" => "CORRUPT_DATA",
        "invalid label" => "BAD_LABEL",
        "insufficient replicas" => "NO_REPLICAS",
        "too many errors" => "ERR_EXCEEDED",
        "external device fault" => "EXTERNAL",
        other if other == "currently in use" || other.starts_with("in use by pool") => "SPARED",
        _ => return None,
    })
}

fn class_word(v: &Vdev) -> &'static str {
    match v.class {
        VdevRole::Normal => "normal",
        VdevRole::Dedup => "dedup",
        VdevRole::Special => "special",
        VdevRole::Log => "log",
        VdevRole::Cache => "l2cache",
        VdevRole::Spare => "spare",
    }
}

/// What a vdev is, and its state.
pub(in super::super) fn identity(v: &Vdev, naming: Naming, numbers: Numbers) -> Members {
    let is_root = v.kind == "root";
    let is_leaf = v.children.is_empty() && !is_root;
    let name = if is_root { v.name.clone() } else { naming.of(v) };
    let state = match v.state {
        VdevHealth::Unavail => "CANT_OPEN",
        state => state.word(),
    };
    let mut out: Members = Vec::new();
    put(&mut out, "name", Json::str(name));
    put(&mut out, "vdev_type", Json::str(&v.kind));
    put(&mut out, "guid", numbers.plain(v.guid));
    if let Some(path) = v.path.as_ref().filter(|_| is_leaf) {
        put(&mut out, "path", Json::str(path.display().to_string()));
    }
    put(&mut out, "class", Json::str(class_word(v)));
    put(&mut out, "state", Json::str(spare_word(v).unwrap_or(state)));
    out
}

impl JsonReport<'_> {
    fn numbers(&self) -> Numbers {
        self.options.numbers
    }

    /// The key and the object of a pool.
    pub(super) fn pool(&self, p: &Pool) -> (String, Json) {
        let n = self.numbers();
        let word = match &p.doing {
            _ if p.suspended => "SUSPENDED",
            Some(doing) => doing.as_str(),
            None => p.health.word(),
        };
        let mut out: Members = Vec::new();
        put(&mut out, "name", Json::str(&p.name));
        put(&mut out, "state", Json::str(word));
        put(&mut out, "pool_guid", n.plain(p.guid));
        put(&mut out, "txg", n.plain(p.txg));
        put(&mut out, "spa_version", n.plain(5000));
        put(&mut out, "zpl_version", n.plain(5));
        if let Some(advice) = status_of(p) {
            put(&mut out, "status", Json::str(advice.status));
            put(&mut out, "action", Json::str(advice.action));
            if let Some(id) = advice.id {
                put(&mut out, "msgid", Json::str(format!("ZFS-8000-{id}")));
                put(&mut out, "moreinfo", Json::str(format!("{SITE}ZFS-8000-{id}")));
            }
        }
        if p.scan.is_some() || p.error_scrub.is_some() || !p.rebuilds.is_empty() {
            put(&mut out, "scan_stats", self.scan(p));
        }
        out.extend(p.defrag.as_ref().map(|d| {
            let key = if d.kind.is_rebalance() { "rebalance_stats" } else { "defrag_stats" };
            (key.to_owned(), self.defrag(d))
        }));
        out.extend(p.removal.as_ref().map(|r| ("removal_stats".to_owned(), self.removal(r))));
        let checkpoint = p.checkpoint.as_ref();
        out.extend(checkpoint.map(|c| ("checkpoint_stats".to_owned(), self.checkpoint(c))));
        let expand = p.expand.as_ref();
        out.extend(expand.map(|e| ("raidz_expand_stats".to_owned(), self.expansion(e))));
        self.trees(p, &mut out);
        put(&mut out, "error_count", n.count(p.error_count));
        if self.options.verbose && !p.errors.is_empty() {
            let list = p.errors.iter().map(Json::str).collect();
            put(&mut out, "errlist", Json::Array(list));
        }
        let key = if self.options.key_guid { p.guid.to_string() } else { p.name.clone() };
        (key, Json::Object(out))
    }

    fn scan(&self, p: &Pool) -> Json {
        let n = self.numbers();
        let none = Scan::default();
        let s = p.scan.as_ref().unwrap_or(&none);
        let function = match &p.scan {
            None => "NONE",
            Some(s) if s.resilver => "RESILVER",
            Some(_) => "SCRUB",
        };
        let mut out: Members = Vec::new();
        put(&mut out, "function", Json::str(function));
        put(&mut out, "state", Json::str(scan_state(s.state)));
        put(&mut out, "start_time", n.time(s.start));
        put(&mut out, "end_time", n.time(s.end));
        put(&mut out, "to_examine", n.bytes(s.to_examine));
        put(&mut out, "examined", n.bytes(s.examined));
        put(&mut out, "skipped", n.bytes(s.skipped));
        put(&mut out, "processed", n.bytes(s.processed));
        put(&mut out, "errors", n.count(s.errors));
        put(&mut out, "bytes_per_scan", n.bytes(s.pass_examined));
        put(&mut out, "pass_start", n.time(s.pass_start));
        put(&mut out, "scrub_pause", n.time(s.paused));
        put(&mut out, "scrub_spent_paused", n.plain(s.spent_paused));
        put(&mut out, "issued_bytes_per_scan", n.bytes(s.pass_issued));
        put(&mut out, "issued", n.bytes(s.issued));
        if let Some(e) = &p.error_scrub {
            let state = if e.state == 1 { "ERRORSCRUBBING" } else { scan_state(e.state) };
            put(&mut out, "err_scrub_func", Json::str("ERRORSCRUB"));
            put(&mut out, "err_scrub_state", Json::str(state));
            put(&mut out, "err_scrub_start_time", n.time(e.start));
            put(&mut out, "err_scrub_end_time", n.time(e.end));
            put(&mut out, "err_scrub_examined", n.count(e.examined));
            put(&mut out, "err_scrub_to_examine", n.count(e.to_examine));
            put(&mut out, "err_scrub_errors", n.count(e.errors));
            put(&mut out, "err_scrub_pause", n.time(e.paused));
        }
        if !p.rebuilds.is_empty() {
            let rebuilds = p.rebuilds.iter().map(|r| (r.name.clone(), self.rebuild(r)));
            put(&mut out, "rebuild_stats", Json::Object(rebuilds.collect()));
        }
        Json::Object(out)
    }

    /// The last sequential resilver of a top-level vdev.
    fn rebuild(&self, r: &RebuildScan) -> Json {
        let n = self.numbers();
        let state = match r.state {
            1 => "ACTIVE",
            2 => "CANCELED",
            3 => "COMPLETE",
            _ => "NONE",
        };
        Json::object([
            ("state", Json::str(state)),
            ("start_time", n.time(r.start)),
            ("end_time", n.time(r.end)),
            ("scan_time_ms", n.plain(r.time_ms)),
            ("bytes_est", n.bytes(r.estimated)),
            ("bytes_scanned", n.bytes(r.scanned)),
            ("bytes_issued", n.bytes(r.issued)),
            ("bytes_rebuilt", n.bytes(r.rebuilt)),
            ("errors", n.count(r.errors)),
            ("pass_time_ms", n.plain(r.pass_ms)),
            ("pass_bytes_scanned", n.bytes(r.pass_scanned)),
            ("pass_bytes_issued", n.bytes(r.pass_issued)),
        ])
    }

    fn removal(&self, r: &Removal) -> Json {
        let n = self.numbers();
        let mut out: Members = Vec::new();
        put(&mut out, "name", Json::str(&r.name));
        put(&mut out, "state", Json::str(scan_state(r.state)));
        if r.shrinks {
            put(&mut out, "function", Json::str("SHRINK"));
        }
        put(&mut out, "removing_vdev", n.plain(r.vdev));
        put(&mut out, "start_time", n.time(r.start));
        put(&mut out, "end_time", n.time(r.end));
        put(&mut out, "to_copy", n.bytes(r.to_copy));
        put(&mut out, "copied", n.bytes(r.copied));
        put(&mut out, "mapping_memory", n.bytes(r.mapping_memory));
        Json::Object(out)
    }

    fn defrag(&self, d: &Defrag) -> Json {
        let n = self.numbers();
        let state = match d.state {
            4 => "PAUSED",
            5 => "FAILED",
            other => scan_state(other),
        };
        let mut out: Members = Vec::new();
        put(&mut out, "state", Json::str(state));
        if d.kind.is_rebalance() {
            let to = match d.kind {
                MoveKind::ToSpecial => "SPECIAL",
                MoveKind::FromSpecial => "NORMAL",
                MoveKind::Rebalance | MoveKind::Defrag | MoveKind::Unmap => "EMPTIER",
            };
            put(&mut out, "to", Json::str(to));
        }
        if d.kind == MoveKind::Unmap {
            put(&mut out, "function", Json::str("UNMAP"));
        }
        put(&mut out, "start_time", n.time(d.start));
        put(&mut out, "end_time", n.time(d.end));
        put(&mut out, "to_move", n.bytes(d.to_move.unwrap_or(0)));
        put(&mut out, "moved", n.bytes(d.moved));
        put(&mut out, "metadata", n.bytes(d.metadata));
        put(&mut out, "files", n.count(d.files));
        put(&mut out, "metaslabs", n.count(d.metaslabs));
        put(&mut out, "blocks_kept", n.count(d.kept));
        if let Some((before, after)) = d.scores {
            put(&mut out, "score_before", Json::str(super::score(before)));
            put(&mut out, "score_after", Json::str(super::score(after)));
        }
        Json::Object(out)
    }

    fn checkpoint(&self, c: &Checkpoint) -> Json {
        let n = self.numbers();
        Json::object([
            ("state", Json::str(if c.discarding { "DISCARDING" } else { "EXISTS" })),
            ("start_time", n.time(c.taken)),
            ("space", n.bytes(c.space)),
        ])
    }

    fn expansion(&self, e: &Expand) -> Json {
        let n = self.numbers();
        Json::object([
            ("name", Json::str(&e.name)),
            ("state", Json::str(scan_state(e.state))),
            ("start_time", n.time(e.start)),
            ("end_time", n.time(e.end)),
            ("to_reflow", n.bytes(e.to_copy)),
            ("reflowed", n.bytes(e.copied)),
        ])
    }

    /// The vdevs of each class: as trees, or all in one map.
    fn trees(&self, p: &Pool, out: &mut Members) {
        let mut root = Vdev { children: Vec::new(), ..p.root.clone() };
        root.state = p.health;
        let tops = |class: VdevRole| {
            p.root.children.iter().filter(move |v| v.class == class && !hidden(v) && self.shows(v))
        };
        if self.options.flat {
            let mut all: Members = vec![(p.name.clone(), Json::Object(self.vdev(&root)))];
            for class in [VdevRole::Normal].into_iter().chain(CLASSES.map(|c| c.0)) {
                tops(class).for_each(|v| self.flat(v, &p.name, 0, &mut all));
            }
            return put(out, "vdevs", Json::Object(all));
        }
        let of_class = |class| tops(class).map(|v| self.tree(v, 0)).collect::<Members>();
        let mut members = self.vdev(&root);
        put(&mut members, "vdevs", Json::Object(of_class(VdevRole::Normal)));
        put(out, "vdevs", Json::object([(&*p.name, Json::Object(members))]));
        for (class, key) in CLASSES {
            let vdevs = of_class(class);
            if !vdevs.is_empty() {
                put(out, key, Json::Object(vdevs));
            }
        }
    }

    /// Whether the options ask for this vdev.
    fn shows(&self, v: &Vdev) -> bool {
        !self.options.errors_only || any(v, &unwell)
    }

    fn tree(&self, v: &Vdev, depth: usize) -> (String, Json) {
        let mut members = self.vdev(v);
        if !v.children.is_empty() && depth < DEPTH_MAX {
            let children = v.children.iter().filter(|v| self.shows(v));
            let children = children.map(|v| self.tree(v, depth + 1)).collect();
            put(&mut members, "vdevs", Json::Object(children));
        }
        (self.options.naming.of(v), Json::Object(members))
    }

    fn flat(&self, v: &Vdev, parent: &str, depth: usize, out: &mut Members) {
        let name = self.options.naming.of(v);
        let mut members = self.vdev(v);
        put(&mut members, "parent", Json::str(parent));
        out.push((name.clone(), Json::Object(members)));
        if depth < DEPTH_MAX {
            let children = v.children.iter().filter(|v| self.shows(v));
            children.for_each(|v| self.flat(v, &name, depth + 1, out));
        }
    }

    /// What is known of one vdev, without those below it.
    fn vdev(&self, v: &Vdev) -> Members {
        let n = self.numbers();
        let is_leaf = v.children.is_empty() && v.kind != "root";
        let mut out = identity(v, self.options.naming, n);
        let sizes = [
            ("alloc_space", v.allocated),
            ("total_space", v.size),
            ("def_space", v.def_space),
            ("rep_dev_size", v.asize),
            ("ex_dev_size", v.expandsize),
            ("phys_space", if is_leaf { v.psize } else { 0 }),
        ];
        let sizes = sizes.into_iter().filter(|size| size.1 > 0);
        out.extend(sizes.map(|(key, size)| (key.to_owned(), n.bytes(size))));
        put(&mut out, "read_errors", n.count(v.read_errors));
        put(&mut out, "write_errors", n.count(v.write_errors));
        put(&mut out, "checksum_errors", n.count(v.checksum_errors));
        if v.checkpoint > 0 {
            put(&mut out, "checkpoint_space", n.bytes(v.checkpoint));
        }
        if v.deferred {
            put(&mut out, "resilver_deferred", n.plain(1));
        }
        if self.options.slow && is_leaf {
            put(&mut out, "slow_ios", n.count(v.slow_ios));
        }
        out.extend(aux_word(v).map(|word| ("aux".to_owned(), Json::str(word))));
        if is_leaf && v.class != VdevRole::Spare && v.state == VdevHealth::Online {
            self.jobs(v, &mut out);
        }
        let cells = self.columns.map_or(&[][..], |columns| columns.cells(v));
        // A value without a heading is a script's complaint.
        let known = |out: &Members, key: &str| out.iter().any(|member| member.0 == key);
        for (heading, value) in cells {
            if !heading.is_empty() && !known(&out, heading) {
                put(&mut out, heading, Json::str(value));
            }
        }
        out
    }

    fn jobs(&self, v: &Vdev, out: &mut Members) {
        let words = |job: &LeafJob, never: &'static str| match job.state {
            1 => "ACTIVE",
            2 => "CANCELED",
            3 => "SUSPENDED",
            4 => "COMPLETE",
            _ => never,
        };
        let n = self.numbers();
        let mut one = |prefix: &str, job: Option<&LeafJob>, never: &'static str| {
            let state = job.map_or(never, |job| words(job, never));
            put(out, &format!("{prefix}_state"), Json::str(state));
            if let Some(job) = job {
                put(out, &format!("{prefix}_time"), n.time(job.time));
                put(out, &format!("{prefix}_bytes_done"), n.bytes(job.done));
                put(out, &format!("{prefix}_bytes_est"), n.bytes(job.total));
            }
        };
        if self.options.initialize {
            one("init", v.initialize.as_ref(), "UNINITIALIZED");
        }
        if self.options.trim {
            let never = if v.can_discard { "UNTRIMMED" } else { "UNSUPPORTED" };
            one("trim", v.trim.as_ref().filter(|_| v.can_discard), never);
        }
    }
}
