//! Kstats as Prometheus's text, under the names of node_exporter's collector `zfs`:
//! `node_zfs_<sub>_<counter>`. So dashboards work regardless of which program exports
//! them.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::{Kstat, KstatBody, Value};

/// Pool states; for each, a sample says whether the pool is in it.
const STATES: [&str; 7] =
    ["degraded", "faulted", "offline", "online", "removed", "suspended", "unavail"];

/// The metric of the pool states.
const STATE: &str = "node_zfs_zpool_state";

/// Letters, digits and underscores.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
}

/// A label's value, quoted.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '\\' | '"' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// A metric: its help and its samples, each with its labels.
type Metrics = BTreeMap<String, (String, Vec<(String, i128)>)>;

fn add(to: &mut Metrics, name: String, help: String, labels: String, value: i128) {
    to.entry(name).or_insert_with(|| (help, Vec::new())).1.push((labels, value));
}

/// `arcstats` is `arc`, `vdev_mirror_stats` is `vdev_mirror`.
fn subsystem(file: &str) -> String {
    let stem = file.strip_suffix("stats").unwrap_or(file);
    plain(stem.strip_suffix('_').unwrap_or(stem))
}

fn state(to: &mut Metrics, pool: &str, text: &str) {
    let is = text.trim().to_ascii_lowercase();
    for state in STATES {
        let labels = format!("{{state=\"{state}\",zpool={}}}", quoted(pool));
        let help = "kstat.zfs.misc.state".to_owned();
        add(to, STATE.to_owned(), help, labels, i128::from(is == state));
    }
}

fn one(to: &mut Metrics, path: &str, kstat: &Kstat) {
    let (pool, file) = path.rsplit_once('/').unwrap_or(("", path));
    if let (true, KstatBody::Text(text)) = (file == "state" && !pool.is_empty(), &kstat.body) {
        return state(to, pool, text);
    }
    let dataset = kstat.get("dataset_name").map(Value::to_string);
    for (name, value) in kstat.entries() {
        let (Some(number), Value::U64(_) | Value::I64(_)) = (value.as_i128(), value) else {
            continue;
        };
        let counter = plain(name);
        let (metric, help, labels) = match (&dataset, pool) {
            (Some(dataset), _) => (
                format!("node_zfs_zpool_dataset_{counter}"),
                format!("kstat.zfs.misc.objset.{name}"),
                format!("{{dataset={},zpool={}}}", quoted(dataset), quoted(pool)),
            ),
            (None, "") => (
                format!("node_zfs_{}_{counter}", subsystem(file)),
                format!("kstat.zfs.misc.{file}.{name}"),
                String::new(),
            ),
            (None, pool) => (
                format!("node_zfs_zpool_{}_{counter}", subsystem(file)),
                format!("kstat.zfs.misc.{file}.{name}"),
                format!("{{zpool={}}}", quoted(pool)),
            ),
        };
        add(to, metric, help, labels, number);
    }
}

/// Renders all kstats as one page.
pub fn render(kstats: &[(String, Kstat)]) -> String {
    let mut metrics = Metrics::new();
    for (path, kstat) in kstats {
        one(&mut metrics, path, kstat);
    }
    let mut out = String::new();
    for (name, (help, samples)) in &metrics {
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        let kind = if name == STATE { "gauge" } else { "untyped" };
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, value) in samples {
            let _ = writeln!(out, "{name}{labels} {value}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_node_exporters() {
        let objset = Kstat::named(vec![
            ("dataset_name".into(), Value::Str("tank/a \"b\"".into())),
            ("nread".into(), Value::U64(4096)),
        ]);
        let page = render(&[
            ("arcstats".into(), Kstat::numbers([("hits", 7)])),
            ("fm".into(), Kstat::numbers([("erpt-dropped", 0)])),
            ("vdev_mirror_stats".into(), Kstat::numbers([("rotating_linear", 1)])),
            ("tank/objset-0x36".into(), objset),
            ("tank/state".into(), Kstat::new("misc", KstatBody::Text("ONLINE\n".into()))),
            ("tank/dmu_tx_assign".into(), Kstat::numbers([("16 ns", 2)])),
        ]);
        for line in [
            "# HELP node_zfs_arc_hits kstat.zfs.misc.arcstats.hits\n\
             # TYPE node_zfs_arc_hits untyped\nnode_zfs_arc_hits 7\n",
            "node_zfs_fm_erpt_dropped 0\n",
            "node_zfs_vdev_mirror_rotating_linear 1\n",
            "node_zfs_zpool_dataset_nread{dataset=\"tank/a \\\"b\\\"\",zpool=\"tank\"} 4096\n",
            "node_zfs_zpool_state{state=\"online\",zpool=\"tank\"} 1\n",
            "node_zfs_zpool_state{state=\"degraded\",zpool=\"tank\"} 0\n",
            "node_zfs_zpool_dmu_tx_assign_16_ns{zpool=\"tank\"} 2\n",
        ] {
            assert!(page.contains(line), "{line}\n{page}");
        }
    }
}
