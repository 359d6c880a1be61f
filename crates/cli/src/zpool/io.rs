//! `cenote io`: the sizes and latencies of each device's operations.
//!
//! # Theory
//! For each leaf and direction it shows the sizes of operations by powers of two, in the form
//! in which tracers show distributions, and a line with mean latency, operations and bytes a
//! second. The first report covers the time since the pool was opened, or since the vdev was
//! added; each later one the time since the report before.

use std::collections::HashMap;
use std::ffi::OsString;

use base::Result;
use cenote::props::nicenum;
use proto::{ClassIo, Vdev, VdevIoCounts};
use ui::Exit;

use super::iohist::{self, READS, WRITES, nicetime};
use super::{Pools, Repeat, no_such_pool};

/// Width of the widest bar.
const BAR: u64 = 40;

/// Counters at the report before, by guid and name.
type PreviousCounters = HashMap<(u64, String), (VdevIoCounts, Vec<ClassIo>)>;

fn misuse(message: Option<&str>) -> Exit {
    if let Some(message) = message {
        ui::err(message);
    }
    ui::err(&format!("usage:\n\t{}", commands::find("cenote", "io").synopsis));
    Exit::USAGE
}

/// `cenote io [pool ...] [interval [count]]`
pub(crate) fn main(argv: &[OsString]) -> Result<Exit> {
    let parsed = match commands::find("cenote", "io").parse(argv) {
        Ok(parsed) => parsed,
        Err(bad) => return Ok(misuse(bad.message().as_deref())),
    };
    let mut words = parsed.words();
    let repeat = match Repeat::take(&mut words, parsed.last('T')) {
        Ok(repeat) => repeat,
        Err(message) => return Ok(misuse(Some(&message))),
    };
    let mut before = PreviousCounters::new();
    repeat.run(|| {
        let mut pools = Pools::connect()?;
        let names = pools.select(&words, no_such_pool)?;
        if names.is_empty() && words.is_empty() {
            ui::out("no pools available\n");
        }
        for name in names {
            let pool = pools.status(&name)?;
            let mut text = String::new();
            leaves(&pool.root, &mut |leaf| text.push_str(&report(&name, leaf, &mut before)));
            ui::out(&text);
        }
        Ok(Exit::failed_if(pools.failed))
    })
}

fn leaves(v: &Vdev, f: &mut impl FnMut(&Vdev)) {
    if v.children.is_empty() && v.kind != "root" {
        f(v);
    }
    v.children.iter().for_each(|child| leaves(child, f));
}

fn report(pool: &str, leaf: &Vdev, before: &mut PreviousCounters) -> String {
    let key = (leaf.guid, leaf.name.clone());
    let earlier = before.insert(key, (leaf.io, leaf.io_classes.clone()));
    let earlier = earlier.filter(|(done, _)| done.age <= leaf.io.age);
    let (was, classes) = earlier.unzip();
    let (was, now) = (was.unwrap_or_default(), leaf.io);
    let io = iohist::since(&leaf.io_classes, classes.as_deref());
    let nanos = u128::from(now.age - was.age).max(1);
    let rate = |now: u64, was: u64| {
        let delta = u128::from(now.saturating_sub(was)) * 1_000_000_000;
        u64::try_from(delta / nanos).unwrap_or(u64::MAX)
    };
    let mut out = format!("{pool}  {}\n", leaf.name);
    let mut table = format!("{:28}avg latency         iops   throughput\n", "");
    let directions = [
        ("read", &READS[..], rate(now.reads, was.reads), rate(now.nread, was.nread)),
        ("write", &WRITES[..], rate(now.writes, was.writes), rate(now.nwritten, was.nwritten)),
    ];
    for (name, classes, ops, bytes) in directions {
        let sizes =
            [iohist::sum(&io, classes, |c| &c.single), iohist::sum(&io, classes, |c| &c.merged)];
        out.push_str(&distribution(name, &add(&sizes)));
        let mean = iohist::average(&iohist::sum(&io, classes, |c| &c.disk));
        let mean = mean.map_or("-".to_owned(), nicetime);
        let (ops, bytes) = (format!("{}/s", nicenum(ops)), format!("{}/s", nicenum(bytes)));
        table.push_str(&format!("    {name:24}{mean:>11}{ops:>13}{bytes:>13}\n"));
    }
    out + &table + "\n"
}

fn add(histograms: &[Vec<u64>]) -> Vec<u64> {
    let len = histograms.iter().map(Vec::len).max().unwrap_or(0);
    (0..len).map(|j| histograms.iter().filter_map(|h| h.get(j)).sum()).collect()
}

/// Sizes from the smallest to the largest that occurred, with one empty row before and after.
fn distribution(name: &str, sizes: &[u64]) -> String {
    let all: u64 = sizes.iter().sum();
    let (Some(first), Some(last)) =
        (sizes.iter().position(|n| *n > 0), sizes.iter().rposition(|n| *n > 0))
    else {
        return String::new();
    };
    let mut out =
        format!("\n  {name}\n{:>16}  ------------- Distribution ------------- count\n", "value");
    for j in first.saturating_sub(1)..=last + 1 {
        let n = sizes.get(j).copied().unwrap_or(0);
        let filled = (u128::from(n) * u128::from(BAR) + u128::from(all) / 2) / u128::from(all);
        let bar = "@".repeat(usize::try_from(filled).unwrap_or(0));
        out.push_str(&format!("{:>16} |{bar:40} {n}\n", 1u64 << j));
    }
    out + "\n"
}

#[cfg(test)]
mod tests {
    use super::super::vdevs::tests::vdev;
    use super::*;
    use proto::VdevRole;

    const SECOND: u64 = 1_000_000_000;

    fn leaf(age: u64, reads: u64) -> Vdev {
        let mut single = vec![0; 14];
        (single[12], single[13]) = (reads / 4, reads - reads / 4);
        let mut disk = vec![0; 21];
        disk[20] = reads;
        let class = ClassIo { single, disk, ..ClassIo::default() };
        Vdev {
            io: VdevIoCounts { age, reads, nread: reads * 8192, ..VdevIoCounts::default() },
            io_classes: vec![class],
            ..vdev("file", "/disk", VdevRole::Normal, vec![])
        }
    }

    #[test]
    fn a_distribution_and_a_line() {
        let mut before = PreviousCounters::new();
        assert_eq!(
            report("tank", &leaf(2 * SECOND, 40), &mut before),
            "tank  /disk\n\
             \n  read\n           \
             value  ------------- Distribution ------------- count\n            \
             2048 |                                         0\n            \
             4096 |@@@@@@@@@@                               10\n            \
             8192 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@           30\n           \
             16384 |                                         0\n\
             \n                            avg latency         iops   throughput\n    \
             read                            1ms         20/s       160K/s\n    \
             write                             -          0/s          0/s\n\n"
        );
        let next = report("tank", &leaf(4 * SECOND, 42), &mut before);
        assert!(next.contains("  1/s         8K/s\n"), "{next}");
        // The vdev was reopened.
        let next = report("tank", &leaf(SECOND, 8), &mut before);
        assert!(next.contains("  8/s        64K/s\n"), "{next}");
    }

    #[test]
    fn whoever_did_nothing_has_no_distribution() {
        let mut before = PreviousCounters::new();
        let text = report("tank", &vdev("file", "/disk", VdevRole::Normal, vec![]), &mut before);
        assert!(!text.contains("Distribution") && text.contains("write "), "{text}");
    }
}
