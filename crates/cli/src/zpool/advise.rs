//! `zpool advise`: what hurts imported pools, and what to do.
//!
//! The figures come from the daemon by the requests of other commands, except for the sizes of
//! physical sectors, which the system knows. The rules are `cenote::advise`.

use std::collections::HashMap;
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use base::Result;
use cenote::advise::{
    Advice, CacheFacts, DatasetFacts, DeviceFacts, Figure, PoolFacts, TopFacts, advise,
};
use cenote::kstat::{Kstat, KstatBody};
use cenote::props::{nicebytes, nicenum, nicetime};
use proto::{
    BATCH_MAX, DatasetRow, DatasetType, ListArgs, Origin, PropertyValue, Reply, Request, Vdev,
};
use ui::Exit;
use ui::json::Json;

use super::vdevs::Naming;
use super::{Pools, misuse, no_such_pool, options, unexpected_reply};

/// Width of the text.
const WIDTH: usize = 78;
/// The classes of requests that count for a device's latency: all but scrubs.
const LATENCY_CLASSES: usize = 4;
/// The value of property `compression` for `off`.
const COMPRESSION_OFF: u64 = 2;
/// Properties of datasets that rules use.
const PROPS: [&str; 7] =
    ["mountpoint", "mounted", "referenced", "recordsize", "atime", "relatime", "compression"];

/// `zpool advise ...`
pub(super) fn main(argv: &[OsString]) -> Result<Exit> {
    let parsed = match options("advise", argv) {
        Ok(parsed) => parsed,
        Err(exit) => return Ok(exit),
    };
    let names = parsed.words();
    if names.iter().any(String::is_empty) {
        return Ok(misuse("advise", Some("empty pool name")));
    }
    let (exact, json) = (parsed.has('p'), parsed.has('j'));
    let mut pools = Pools::connect()?;
    let found = pools.select(&names, no_such_pool)?;
    let mut all = Vec::with_capacity(found.len());
    for name in found {
        let facts = facts(&mut pools, &name)?;
        all.push((name, advise(&facts)));
    }
    if json {
        ui::out(&format!("{}\n", output(&all, exact)));
    } else if all.is_empty() && !pools.failed {
        ui::out("no pools available\n");
    } else {
        let texts: Vec<String> = all.iter().map(|(name, list)| text(name, list, exact)).collect();
        ui::out(&texts.join("\n"));
    }
    Ok(Exit::failed_if(pools.failed))
}

fn shown(figure: Figure, exact: bool) -> String {
    match figure {
        Figure::Count(n) if exact => n.to_string(),
        Figure::Bytes(n) | Figure::Percent(n) | Figure::Time(n) if exact => n.to_string(),
        Figure::Count(n) => nicenum(n),
        Figure::Bytes(n) => nicebytes(n),
        Figure::Percent(n) => format!("{n}%"),
        Figure::Time(n) => nicetime(n),
    }
}

/// The figure as a part of a sentence, with its unit.
fn in_words(figure: Figure, exact: bool) -> String {
    let number = shown(figure, exact);
    match figure {
        Figure::Percent(_) if exact => format!("{number}%"),
        Figure::Time(_) if exact => format!("{number} ns"),
        Figure::Bytes(_) if exact => format!("{number} bytes"),
        _ => number,
    }
}

fn problem(advice: &Advice, exact: bool) -> String {
    advice.problem.replacen("{}", &in_words(advice.figure, exact), 1)
}

fn output(pools: &[(String, Vec<Advice>)], exact: bool) -> Json {
    let one = |advice: &Advice| {
        Json::object([
            ("rule", Json::str(advice.rule.name())),
            ("about", Json::str(&*advice.about)),
            ("figure", Json::str(shown(advice.figure, exact))),
            ("problem", Json::str(problem(advice, exact))),
            ("gain", Json::str(&*advice.gain)),
            ("command", Json::str(&*advice.command)),
        ])
    };
    let pool = |(name, list): &(String, Vec<Advice>)| {
        let list = Json::Array(list.iter().map(one).collect());
        (name.clone(), Json::object([("name", Json::str(&**name)), ("advice", list)]))
    };
    Json::output("zpool advise", [("pools", Json::object(pools.iter().map(pool)))])
}

/// A label, and text beside it in lines that are not too long.
fn paragraph(label: &str, text: &str) -> String {
    let mut out = format!("{label:<10}");
    let mut width = 0;
    for word in text.split(' ') {
        let len = word.chars().count();
        if width > 0 && 10 + width + 1 + len > WIDTH {
            out.push_str(&format!("\n{:<10}", ""));
            width = 0;
        }
        if width > 0 {
            out.push(' ');
            width += 1;
        }
        out.push_str(word);
        width += len;
    }
    out + "\n"
}

fn text(pool: &str, list: &[Advice], exact: bool) -> String {
    let mut out = paragraph("   pool:", pool);
    if list.is_empty() {
        return out + &paragraph(" advice:", "none; nothing hurts this pool");
    }
    for advice in list {
        out.push('\n');
        out.push_str(&paragraph("  about:", &advice.about));
        out.push_str(&paragraph("problem:", &problem(advice, exact)));
        out.push_str(&paragraph("   gain:", &advice.gain));
        // A command is one line, to be copied.
        out.push_str(&format!("{:<10}{}\n", "    run:", advice.command));
    }
    out
}

/// Gathers what the rules want to know.
fn facts(pools: &mut Pools, name: &str) -> Result<PoolFacts> {
    let status = pools.status(name)?;
    let tops: Vec<&Vdev> = status.root.children.iter().filter(|v| !is_gone(v)).collect();
    let vdevs: Vec<TopFacts> = tops.iter().map(|v| top(v)).collect();
    let sum = |of: fn(&TopFacts) -> u64| {
        let normal = vdevs.iter().filter(|v| v.class == cenote::VdevClass::Normal);
        normal.fold(0u64, |sum, v| sum.saturating_add(of(v)))
    };
    let (size, allocated) = (sum(|v| v.size), sum(|v| v.allocated));
    let props = pools.props(name, Some(vec!["fragmentation".to_owned()]))?;
    let fragmentation = props.iter().find_map(|(prop, entry)| match entry.value {
        PropertyValue::Num(n) if prop == "fragmentation" && n <= 100 => Some(n),
        _ => None,
    });
    let stats = Stats::read(pools, name)?;
    let datasets = datasets(pools, name)?.iter().map(|row| stats.dataset(row)).collect();
    let alloc = |row| stats.number(&format!("{name}/cenote_alloc"), row);
    let arc = |row| stats.number("arcstats", row);
    let (expected, expected_with_device) = expectations(pools)?;
    Ok(PoolFacts {
        name: name.to_owned(),
        size,
        allocated,
        fragmentation,
        data_errors: status.error_count,
        disabled_features: status.disabled_features,
        vdevs,
        datasets,
        blocks: alloc("blocks"),
        gang_blocks: alloc("gang_blocks"),
        sync_times: stats.sync_times(&format!("{name}/txgs")),
        cache: CacheFacts {
            size: arc("size"),
            max: arc("c_max"),
            metadata_hits: arc("demand_metadata_hits"),
            metadata_misses: arc("demand_metadata_misses"),
            data_hits: arc("demand_data_hits"),
            data_misses: arc("demand_data_misses"),
            device_hits: arc("l2_hits"),
            device_misses: arc("l2_misses"),
            device_index: arc("l2_hdr_size"),
            expected,
            expected_with_device,
        },
    })
}

/// The expected share of requests for data that memory answers, and with cache devices of
/// multiples of its size; in percent.
type Expectations = (Option<u64>, Vec<(u64, u64)>);

fn expectations(pools: &mut Pools) -> Result<Expectations> {
    let Reply::WhatIf { sizes, devices } = pools.request(&Request::WhatIf)? else {
        return Err(unexpected_reply());
    };
    let percent = |share: f64| (share.clamp(0.0, 1.0) * 100.0).round() as u64;
    let now = sizes.iter().find(|p| p.multiple == 1.0).and_then(|p| p.data);
    let with = devices.iter().filter_map(|p| Some((p.multiple as u64, percent(p.data?))));
    Ok((now.map(percent), with.collect()))
}

fn is_gone(v: &Vdev) -> bool {
    matches!(v.kind.as_str(), "indirect" | "hole" | "missing")
}

fn top(v: &Vdev) -> TopFacts {
    let mut leaves = Vec::new();
    let mut todo = vec![v];
    while let Some(v) = todo.pop() {
        if v.children.is_empty() {
            leaves.push(leaf(v));
        }
        todo.extend(v.children.iter().rev());
    }
    TopFacts {
        name: Naming::default().of(v),
        class: v.class.into(),
        size: v.size,
        allocated: v.allocated,
        ashift: v.ashift,
        leaves,
    }
}

fn leaf(v: &Vdev) -> DeviceFacts {
    let mut latency: Vec<u64> = Vec::new();
    for class in v.io_classes.iter().take(LATENCY_CLASSES) {
        latency.resize(latency.len().max(class.disk.len()), 0);
        for (sum, n) in latency.iter_mut().zip(&class.disk) {
            *sum = sum.saturating_add(*n);
        }
    }
    DeviceFacts {
        name: Naming::default().of(v),
        sector: v.path.as_deref().and_then(physical_sector),
        read_errors: v.read_errors,
        write_errors: v.write_errors,
        checksum_errors: v.checksum_errors,
        latency,
    }
}

/// The physical sector size of a block device; `None` for files, and where the system does not
/// know.
fn physical_sector(path: &Path) -> Option<u64> {
    use std::os::unix::fs::FileTypeExt;
    let found = std::fs::metadata(path).ok().filter(|m| m.file_type().is_block_device())?;
    let (major, minor) = (rustix::fs::major(found.rdev()), rustix::fs::minor(found.rdev()));
    let device = std::fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    // A partition has its disk's queue.
    let text = [Some(&*device), device.parent()]
        .into_iter()
        .flatten()
        .find_map(|dir| std::fs::read_to_string(dir.join("queue/physical_block_size")).ok())?;
    text.trim().parse().ok()
}

/// File systems and volumes of a pool.
fn datasets(pools: &mut Pools, name: &str) -> Result<Vec<DatasetRow>> {
    let args = ListArgs {
        roots: vec![name.to_owned()],
        depth: None,
        types: vec![DatasetType::Filesystem, DatasetType::Volume],
        props: Some(PROPS.iter().map(|p| (*p).to_owned()).collect()),
        named_any_kind: false,
    };
    let mut rows = Vec::new();
    if let Some(client) = &mut pools.client {
        client.request_rows(&Request::Datasets(args), |row| rows.push(row))?;
    }
    Ok(rows)
}

/// The kstats of the cache and of one pool.
struct Stats {
    by_path: HashMap<String, Kstat>,
    /// Those of datasets, by name.
    by_dataset: HashMap<String, Kstat>,
}

impl Stats {
    fn read(pools: &mut Pools, pool: &str) -> Result<Stats> {
        let Reply::Names(mut paths) = pools.request(&Request::KstatNames)? else {
            return Err(unexpected_reply());
        };
        let below = format!("{pool}/");
        paths.retain(|path| path == "arcstats" || path.starts_with(&below));
        let (mut by_path, mut by_dataset) = (HashMap::new(), HashMap::new());
        for batch in paths.chunks(BATCH_MAX) {
            let request = Request::Kstats { paths: batch.to_vec() };
            let Reply::Kstats(stats) = pools.request(&request)? else {
                return Err(unexpected_reply());
            };
            for (path, kstat) in stats.into_iter().map(proto::Stat::into_kstat) {
                match kstat.get("dataset_name") {
                    Some(cenote::kstat::Value::Str(name)) => {
                        by_dataset.insert(name.clone(), kstat);
                    }
                    _ => drop(by_path.insert(path, kstat)),
                }
            }
        }
        Ok(Stats { by_path, by_dataset })
    }

    fn number(&self, path: &str, row: &str) -> u64 {
        self.by_path.get(path).and_then(|kstat| kstat.number(row)).unwrap_or(0)
    }

    /// The times that the committed txgs of `POOL/txgs` took to be written, nanoseconds.
    fn sync_times(&self, path: &str) -> Vec<u64> {
        let Some(KstatBody::Text(text)) = self.by_path.get(path).map(|k| &k.body) else {
            return Vec::new();
        };
        let one = |line: &str| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let written = fields.get(2) == Some(&"C");
            fields.get(11).filter(|_| written).and_then(|time| time.parse().ok())
        };
        text.lines().filter_map(one).collect()
    }

    fn dataset(&self, row: &DatasetRow) -> DatasetFacts {
        let kstat = self.by_dataset.get(&row.name);
        let counter = |name: &str| kstat.and_then(|k| k.number(name)).unwrap_or(0);
        let number = |name: &str| match row.prop(name).map(|p| &p.value) {
            Some(PropertyValue::Num(n)) => Some(*n),
            _ => None,
        };
        let is_inherited =
            |name: &str| row.prop(name).is_some_and(|p| matches!(p.source, Origin::Inherited(_)));
        let mountpoint = match row.prop("mountpoint").map(|p| &p.value) {
            Some(PropertyValue::Str(path)) if path.starts_with('/') => Some(path.clone()),
            _ => None,
        };
        let logged = ["indirect", "copied", "needcopy"];
        DatasetFacts {
            name: row.name.clone(),
            mountpoint: mountpoint.filter(|_| number("mounted") == Some(1)),
            referenced: number("referenced").unwrap_or(0),
            record_size: number("recordsize").unwrap_or(0),
            every_access: (number("atime"), number("relatime")) == (Some(1), Some(0)),
            // The property that differs from the default decides.
            access_inherited: is_inherited("relatime"),
            uncompressed: number("compression") == Some(COMPRESSION_OFF),
            compression_inherited: is_inherited("compression"),
            writes: counter("writes"),
            written: counter("nwritten"),
            read_modify_writes: counter("cenote_read_modify_writes"),
            commits: counter("zil_commit_count"),
            logged: logged.iter().fold(0u64, |sum, kind| {
                sum.saturating_add(counter(&format!("zil_itx_{kind}_bytes")))
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote::advise::Rule;

    fn advice() -> Advice {
        Advice {
            rule: Rule::Capacity,
            about: "tank".into(),
            problem: "{} of the pool are in use: new blocks are written into ever smaller gaps."
                .into(),
            figure: Figure::Percent(83),
            gain: "With less than 80 % in use, fragmentation stops growing.".into(),
            command: "zfs list -r tank".into(),
        }
    }

    #[test]
    fn text_for_people() {
        assert_eq!(
            text("tank", &[advice()], false),
            "   pool:  tank\n\n  about:  tank\n\
             problem:  83% of the pool are in use: new blocks are written into ever smaller\n\
             \u{20}         gaps.\n\
             \u{20}  gain:  With less than 80 % in use, fragmentation stops growing.\n\
             \u{20}   run:  zfs list -r tank\n"
        );
        assert_eq!(
            text("tank", &[], false),
            "   pool:  tank\n advice:  none; nothing hurts this pool\n"
        );
    }

    #[test]
    fn figures_are_short_or_exact() {
        let both = |figure| (in_words(figure, false), in_words(figure, true));
        assert_eq!(both(Figure::Bytes(1536)), ("1.50K".into(), "1536 bytes".into()));
        assert_eq!(both(Figure::Percent(7)), ("7%".into(), "7%".into()));
        assert_eq!(both(Figure::Time(2_500_000)), ("2ms".into(), "2500000 ns".into()));
        assert_eq!(both(Figure::Count(1999)), ("1.95K".into(), "1999".into()));
    }

    #[test]
    fn json_of_a_schema() {
        let pools = [("tank".to_owned(), vec![advice()]), ("other".to_owned(), Vec::new())];
        let text = output(&pools, true).to_string();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        let one = &value["pools"]["tank"]["advice"][0];
        assert_eq!((&one["rule"], &one["figure"]), (&"capacity".into(), &"83".into()));
        assert!(one["problem"].as_str().unwrap().starts_with("83% of the pool"));
        assert_eq!(value["pools"]["other"]["advice"], serde_json::json!([]));
        assert_eq!(value["output_version"]["command"], "zpool advise");
    }

    #[test]
    fn times_of_txgs_are_those_that_are_written() {
        let text = "txg birth state ndirty nread nwritten reads writes otime qtime wtime stime\n\
                    4 1 C 0 0 0 0 0 1 2 3 700\n5 1 S 0 0 0 0 0 1 2 3 9\nbroken\n6 1 C 1\n";
        let kstat = Kstat::new("misc", KstatBody::Text(text.into()));
        let stats = Stats {
            by_path: HashMap::from([("tank/txgs".to_owned(), kstat)]),
            by_dataset: HashMap::new(),
        };
        assert_eq!(stats.sync_times("tank/txgs"), [700]);
        assert!(stats.sync_times("none/txgs").is_empty());
    }
}
