//! `zdb -l`: the labels of one device (chapter 01 §2).

use std::fmt::Write;

use base::Result;
use cenote::inspect::device::{Device, FileDevice, Lock, OpenOptions};
use cenote::inspect::ondisk::uberblock::Uberblock;
use cenote::inspect::spa::labels::{LABELS, LeafLabels};
use ui::Exit;

use super::config::uberblock_text;
use super::{DumpOptions, exit};

const RULE: &str = "------------------------------------\n";

/// Prints each different label once, with the numbers of the labels that have it.
pub(super) fn main(opts: &DumpOptions, words: &[String]) -> Result<Exit> {
    let [path] = words else {
        ui::err("zdb: -l needs one device");
        return Ok(exit::OPEN);
    };
    let options = OpenOptions { lock: Lock::None, ..OpenOptions::default() };
    let device = match FileDevice::open(path.as_ref(), &options) {
        Ok(device) => device,
        Err(e) => {
            ui::err(&format!("zdb: cannot open '{path}': {e}"));
            return Ok(exit::OPEN);
        }
    };
    let labels = match LeafLabels::read(&device as &dyn Device) {
        Ok(labels) => labels,
        Err(_) => {
            (0..LABELS).for_each(|l| ui::out(&format!("failed to read label {l}\n")));
            return Ok(Exit(2));
        }
    };
    let good = show(opts, &labels);
    Ok(if good { Exit::OK } else { Exit(2) })
}

/// Prints one device's labels; returns whether at least one could be read.
fn show(opts: &DumpOptions, labels: &LeafLabels) -> bool {
    let quiet = opts.has('q');
    let mut shown = [false; LABELS];
    let mut any = false;
    for i in 0..LABELS {
        let Some(config) = labels.labels.get(i).and_then(|l| l.config.as_ref()) else {
            if !quiet {
                ui::out(&format!("failed to unpack label {i}\n"));
            }
            continue;
        };
        any = true;
        let same: Vec<usize> = (0..LABELS)
            .filter(|&o| labels.labels.get(o).and_then(|l| l.config.as_ref()) == Some(config))
            .collect();
        let first = !shown.get(i).copied().unwrap_or(true);
        if quiet || !first {
            continue;
        }
        let bad =
            if labels.labels.get(i).is_some_and(|l| l.verified) { "" } else { "(Bad label cksum)" };
        let mut out = format!("{RULE}LABEL {i} {bad}\n{RULE}{}", config.indented(4));
        let numbers: String = same.iter().map(|o| format!("{o} ")).collect();
        let _ = writeln!(out, "    labels = {numbers}");
        for &o in &same {
            if let Some(flag) = shown.get_mut(o) {
                *flag = true;
            }
        }
        ui::out(&out);
    }
    if opts.has('u') && !quiet {
        uberblocks(labels);
    }
    any
}

/// Every uberblock of all labels; equal ones once.
fn uberblocks(labels: &LeafLabels) {
    let tree = labels.discovery_config().and_then(|(c, _)| c.list("vdev_tree"));
    let ashift = tree.and_then(|t| t.u64("ashift")).unwrap_or(9);
    let ashift = u32::try_from(ashift).ok().filter(|a| (9..=63).contains(a)).unwrap_or(9);
    let rings: Vec<Vec<(usize, Uberblock)>> =
        (0..LABELS).map(|l| labels.uberblocks_of(l, ashift)).collect();
    let mut done: Vec<(usize, &Uberblock)> = Vec::new();
    let mut all: Vec<(usize, &Uberblock)> = rings.iter().flatten().map(|(s, u)| (*s, u)).collect();
    all.sort_by_key(|(slot, _)| *slot);
    for (slot, ub) in all {
        if done.contains(&(slot, ub)) {
            continue;
        }
        done.push((slot, ub));
        let has = |ring: &Vec<(usize, Uberblock)>| ring.iter().any(|(s, u)| *s == slot && u == ub);
        let numbers: String = rings
            .iter()
            .enumerate()
            .filter(|(_, ring)| has(ring))
            .map(|(l, _)| format!("{l} "))
            .collect();
        ui::out(&format!(
            "    Uberblock[{slot}]\n{}        labels = {numbers}\n",
            uberblock_text(ub, true)
        ));
    }
}
