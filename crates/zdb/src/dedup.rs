//! `zdb -D`: the dedup tables in zdb's format (chapter 09 §8.3).

use std::collections::BTreeSet;
use std::fmt::Write;

use base::Result;
use cenote::inspect::ondisk::BlkPtr;
use cenote::inspect::ondisk::ddt::{Class, Entry, Key, STAT_BUCKETS, StatBucket, zap_key};
use cenote::inspect::spa::Spa;
use cenote::inspect::spa::dedup_report::{DedupClass, DedupLog, DedupTable};
use ui::dedup::{histogram, sum};

use super::DumpOptions;
use super::bptext;

/// Prints the tables; each letter after the first adds something: the histogram of all, the
/// histograms of each, the entries of shared blocks, those of others.
pub(super) fn main(opts: &DumpOptions, spa: &Spa) -> Result<()> {
    let level = opts.level('D');
    let mut all = [StatBucket::default(); STAT_BUCKETS];
    for mut table in spa.dedup_tables()? {
        keep_newest(&mut table);
        ui::out(&heading(&table));
        for class in table.classes.iter().filter(|class| class.entries > 0) {
            ui::out(&class_text(&table, class, level));
            if level >= 5 || level == 4 && class.class != Class::Unique {
                contents(spa, &table, class)?;
            }
        }
        table.logs.iter().for_each(|log| ui::out(&log_text(&table, log, level)));
        all.iter_mut().zip(spa.dedup_histogram(&table).iter()).for_each(|(to, from)| to.add(from));
    }
    let total = sum(&all);
    if total.blocks[0] == 0 {
        ui::out("All DDTs are empty\n");
        return Ok(());
    }
    if level >= 2 {
        ui::out(&format!("\nDDT histogram (aggregated over all DDTs):\n{}", histogram(&all, true)));
    } else {
        ui::out("\n");
    }
    ui::out(&ratios(&total));
    Ok(())
}

/// Leaves an entry that both logs have in the active one, where it is newer.
fn keep_newest(table: &mut DedupTable) {
    let active = table.logs.iter().filter(|log| !log.header.flushing);
    let newer: BTreeSet<Key> = active.flat_map(|log| &log.entries).map(|entry| entry.0).collect();
    for log in table.logs.iter_mut().filter(|log| log.header.flushing) {
        log.entries.retain(|entry| !newer.contains(&entry.0));
    }
}

fn heading(table: &DedupTable) -> String {
    let name = table.checksum.name();
    let Some(directory) = table.directory else {
        return format!("DDT-{name}: version=0 [LEGACY]; flags=0x00; rootobj=1\n");
    };
    let mut flags = Vec::new();
    for (bit, word) in [(1, "FLAT"), (2, "LOG")] {
        if table.flags & bit != 0 {
            flags.push(word);
        }
    }
    format!(
        "DDT-{name}: version={} [FDT]; flags=0x{:02x} [{}]; rootobj={directory}\n",
        table.version,
        table.flags,
        flags.join(" ")
    )
}

fn class_text(table: &DedupTable, class: &DedupClass, level: usize) -> String {
    let name = zap_key(table.checksum, class.class);
    let mut out = format!(
        "{name}: dspace={}; mspace={}; entries={}\n",
        class.on_disk, class.in_core, class.entries
    );
    if level >= 3 {
        let _ =
            write!(out, "{name}: object={}\n{}", class.object, histogram(&*class.histogram, false));
    }
    out
}

/// A log; OpenZFS's zdb 2.3.2 shows zeros instead of the checkpoint.
fn log_text(table: &DedupTable, log: &DedupLog, level: usize) -> String {
    let (flushing, checkpoint) = (log.header.flushing, log.header.checkpoint.is_some());
    let flags = u8::from(flushing) | u8::from(checkpoint) << 1;
    let words: Vec<&str> = [(flushing, "FLUSHING"), (checkpoint, "CHECKPOINT")]
        .into_iter()
        .filter_map(|(set, word)| set.then_some(word))
        .collect();
    let words = match words.is_empty() {
        true => String::new(),
        false => format!(" [{}]", words.join(" ")),
    };
    let mut out = format!(
        "DDT-log-{}-{}: flags=0x{flags:02x}{words}; obj={}; len={}; txg={}; entries={}\n",
        table.checksum.name(),
        log.number,
        log.object,
        log.header.length,
        log.header.first_txg,
        log.entries.len()
    );
    if let Some(key) = log.header.checkpoint {
        let words: Vec<String> = key.to_words().iter().map(|word| format!("{word:016x}")).collect();
        let _ = writeln!(out, "    checkpoint: {}", words.join(":"));
    }
    if level >= 4 {
        for (index, (key, entry, _)) in (0u64..).zip(&log.entries) {
            out.push_str(&entry_text(table, index, *key, entry));
        }
    }
    out
}

/// The entries of a class.
fn contents(spa: &Spa, table: &DedupTable, class: &DedupClass) -> Result<()> {
    ui::out(&format!("{} contents:\n\n", zap_key(table.checksum, class.class)));
    spa.for_each_dedup_entry(table, class, |index, key, entry| {
        ui::out(&entry_text(table, index, key, &entry));
        Ok(())
    })?;
    ui::out("\n");
    Ok(())
}

/// One line for each physical block that has references.
fn entry_text(table: &DedupTable, index: u64, key: Key, entry: &Entry) -> String {
    let mut out = String::new();
    for (number, phys) in entry.phys().iter().enumerate() {
        let block = match phys.birth.0 {
            0 => None,
            _ => key.block(table.checksum, phys),
        };
        let Some(mut block) = block else { continue };
        (block.dedup, block.fill) = (true, 1);
        let _ = writeln!(
            out,
            "index {index:x} refcnt {} phys {number} {}",
            phys.refcnt,
            bptext::long(&BlkPtr::Block(block))
        );
    }
    out
}

/// The line with the ratios.
fn ratios(total: &StatBucket) -> String {
    let [_, lsize, psize, dsize] = total.referenced;
    let of = |a: u64, b: u64| if b == 0 { 1.0 } else { a as f64 / b as f64 };
    let dedup = of(dsize, total.blocks[3]);
    let compress = of(lsize, psize);
    let copies = of(dsize, psize);
    let effective = if copies == 0.0 { 0.0 } else { dedup * compress / copies };
    format!(
        "dedup = {dedup:.2}, compress = {compress:.2}, copies = {copies:.2}, dedup * compress / \
         copies = {effective:.2}\n\n"
    )
}
