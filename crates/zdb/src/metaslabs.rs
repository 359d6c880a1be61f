//! `zdb -m`: metaslabs, their space maps and histograms (chapter 09 §8.2).
//!
//! `free` is computed from the metaslab's own space map, as in zdb; changes that are still in
//! the logs are not included.

use std::fmt::Write;

use base::{Result, VdevId};
use cenote::inspect::ondisk::config::VdevType;
use cenote::inspect::ondisk::spacemap::{Header, Kind, Params};
use cenote::inspect::spa::Spa;
use cenote::inspect::spa::audit::maps::{self, Replayed};
use cenote::inspect::spa::space::{Metaslab, PoolSpace, VdevSpace};
use ui::Exit;

use super::bptext::{histogram, size};
use super::{DumpOptions, exit};

/// Maximum number of words read from an object of births.
const BIRTHS_MAX: u64 = 1 << 20;
/// Free segments below this are not counted.
const SEGMENT_MIN: u64 = 16 << 10;

/// Prints the metaslabs; operands choose a vdev and metaslabs of it.
pub(super) fn main(opts: &DumpOptions, spa: &Spa, operands: &[String]) -> Result<Exit> {
    let level = opts.level('m');
    let numbers: Vec<u64> = operands.iter().filter_map(|o| o.parse().ok()).collect();
    if numbers.len() != operands.len() {
        ui::err("zdb: vdev and metaslabs are given by number");
        return Ok(exit::OPEN);
    }
    let space = spa.load_space()?;
    let replayed =
        if level >= 3 && !opts.has('L') { Some(maps::replay_own(spa, &space)?) } else { None };
    ui::out("\nMetaslabs:\n");
    for config in &spa.config().vdev_tree.children {
        let chosen = numbers.first().is_none_or(|&v| v == u64::from(config.id));
        if !chosen {
            continue;
        }
        if config.kind == VdevType::Indirect {
            let none = VdevSpace { vdev: VdevId(config.id), ..VdevSpace::default() };
            MetaslabView { opts, spa, vdev: &none, level, replayed: None }.header(None);
            indirect(spa, config.id)?;
        }
        let Some(vdev) = space.vdev(VdevId(config.id)) else { continue };
        let of = MetaslabView { opts, spa, vdev, level, replayed: replayed.as_ref() };
        let zap = config.top.as_ref().and_then(|t| t.zap).filter(|z| z.0 != 0);
        let unflushed = match zap {
            Some(zap) => spa.mos().zap(zap.0)?.lookup_u64("com.delphix:ms_unflushed_phys_txgs")?,
            None => None,
        };
        of.header(unflushed);
        for m in &vdev.metaslabs {
            let wanted = numbers.get(1..).filter(|l| !l.is_empty());
            if wanted.is_none_or(|l| l.contains(&m.id)) {
                of.metaslab(m)?;
            }
        }
    }
    logs(spa, &space)?;
    Ok(Exit::OK)
}

fn indirect(spa: &Spa, id: u32) -> Result<()> {
    let config = spa.config().vdev_tree.children.iter().find(|c| c.id == id);
    let keys = config.and_then(|c| c.top.as_ref()).map(|t| t.indirect.clone()).unwrap_or_default();
    let mut out = String::new();
    if let Some(births) = keys.births {
        let object = spa.mos().object(births.0)?;
        let count = object.dnode().endian.u64(&object.dnode().bonus, 0).unwrap_or(0);
        let _ = writeln!(out, "indirect births obj {}:\n    vib_count = {count}", births.0);
        let words = spa.mos().words(births.0, count.saturating_mul(2), BIRTHS_MAX)?;
        for pair in words.chunks_exact(2) {
            if let [offset, txg] = pair {
                let _ = writeln!(out, "\toffset {offset:x} -> txg {txg}");
            }
        }
        out.push('\n');
    }
    if let Some(mapping) = keys.mapping {
        let object = spa.mos().object(mapping.0)?;
        let (dnode, bonus) = (object.dnode(), &object.dnode().bonus);
        let word = |at| dnode.endian.u64(bonus, at).unwrap_or(0);
        let _ = writeln!(out, "indirect mapping obj {}:", mapping.0);
        let _ = writeln!(out, "    vim_max_offset = 0x{:x}", word(0));
        let _ = writeln!(out, "    vim_bytes_mapped = 0x{:x}", word(8));
        let _ = writeln!(out, "    vim_count = {}\n", word(16));
    }
    ui::out(&out);
    Ok(())
}

/// The logs of changes, with the number of entries in each that still apply.
fn logs(spa: &Spa, space: &PoolSpace) -> Result<()> {
    ui::out("\n");
    if space.logs.is_empty() {
        return Ok(());
    }
    let mut out = "\nLog Space Maps in Pool:\n".to_owned();
    for (txg, &object) in &space.logs {
        let header = spa.space_map_header(object)?;
        let _ = writeln!(out, "Log Spacemap object {object} txg {txg}");
        object_lines(object, &header, &mut out);
    }
    out.push_str("\nLog Space Map Obsolete Entry Statistics:\n");
    let (mut all, mut all_valid) = (0u64, 0u64);
    for (&txg, &object) in &space.logs {
        let (mut total, mut valid) = (0u64, 0u64);
        spa.for_each_entry(object, Params::log(), &mut |r| {
            let vdev = space.vdev(r.vdev);
            let m = vdev.and_then(|v| v.metaslabs.get((r.offset >> v.metaslab_shift) as usize));
            total += 1;
            valid += u64::from(m.is_some_and(|m| m.unflushed_txg.0 > 0 && m.unflushed_txg <= txg));
            Ok(())
        })?;
        let _ = writeln!(out, "{valid:<8} valid entries out of {total:<8} - txg {txg}");
        all += total;
        all_valid += valid;
    }
    let _ = writeln!(out, "{all_valid:<8} valid entries out of {all:<8} - total\n");
    ui::out(&out);
    Ok(())
}

fn object_lines(object: u64, header: &Header, out: &mut String) {
    let _ = writeln!(out, "space map object {object}:");
    let _ = writeln!(out, "  smp_length = 0x{:x}", header.length);
    let _ = writeln!(out, "  smp_alloc = 0x{:x}", header.alloc);
}

struct MetaslabView<'a> {
    opts: &'a DumpOptions,
    spa: &'a Spa,
    vdev: &'a VdevSpace,
    level: usize,
    replayed: Option<&'a Replayed>,
}

impl MetaslabView<'_> {
    fn header(&self, unflushed: Option<u64>) {
        let mut out = format!("\tvdev {:10}   ", self.vdev.vdev.0);
        if let Some(object) = unflushed {
            let _ = write!(out, "   ms_unflushed_phys object {object}");
        }
        let _ = write!(
            out,
            "\n\t{:<10}{:5}   {:<19}   {:<15}   {:<12}\n",
            "metaslabs",
            self.vdev.metaslabs.len(),
            "offset",
            "spacemap",
            "free"
        );
        let _ = writeln!(
            out,
            "\t{:15}   {:19}   {:15}   {:12}",
            "---------------", "-------------------", "---------------", "------------"
        );
        ui::out(&out);
    }

    fn metaslab(&self, m: &Metaslab) -> Result<()> {
        let own = m.header.alloc.max(0) as u64;
        let free = size(m.size.saturating_sub(own), self.opts.has('P'));
        let mut out = format!(
            "\tmetaslab {:6}   offset {:12x}   spacemap {:6}   free {free:>8}\n",
            m.id, m.start, m.space_map
        );
        if let Some(replayed) = self.replayed {
            self.in_memory(m, replayed, &mut out);
        }
        if self.level >= 2
            && let Some(histogram_) = m.header.histogram.filter(|_| m.space_map != 0)
        {
            let _ = writeln!(
                out,
                "\tOn-disk histogram:\t\tfragmentation {}",
                m.fragmentation(self.vdev.ashift).unwrap_or(u64::MAX)
            );
            let shift = self.vdev.ashift as usize;
            let rows: Vec<_> =
                histogram_.iter().enumerate().map(|(i, &n)| (i + shift, n)).collect();
            out.push_str(&histogram(&rows));
        }
        if m.space_map != 0 {
            object_lines(m.space_map, &m.header, &mut out);
            if self.level >= 4 {
                self.entries(m, &mut out)?;
            }
        }
        let _ = writeln!(out, "\tFlush data:\n\tunflushed txg={}\n", m.unflushed_txg);
        ui::out(&out);
        Ok(())
    }

    /// The free segments and their sizes after loading the metaslab.
    fn in_memory(&self, m: &Metaslab, replayed: &Replayed, out: &mut String) {
        let (mut segments, mut largest, mut total) = (0u64, 0u64, 0u64);
        let mut rows: Vec<(usize, u64)> = (0..64).map(|i| (i, 0)).collect();
        replayed.bits.free_in(self.vdev.vdev, m.id, &mut |_, len| {
            // zdb's size-sorted tree has only segments of this size or more.
            segments += u64::from(len >= SEGMENT_MIN);
            largest = largest.max(len);
            total += len;
            if let Some(row) = rows.get_mut(len.max(1).ilog2() as usize) {
                row.1 += 1;
            }
        });
        let percent = total.saturating_mul(100).checked_div(m.size).unwrap_or(0);
        let _ = writeln!(
            out,
            "\t {:>25} {segments:10}   maxsize {:>7}   freepct {percent:4}%",
            "segments",
            size(largest, self.opts.has('P'))
        );
        let _ = writeln!(out, "\tIn-memory histogram:");
        out.push_str(&histogram(&rows));
    }

    fn entries(&self, m: &Metaslab, out: &mut String) -> Result<()> {
        let mut index = 0;
        let mut sum = 0i128;
        self.spa.for_each_metaslab_entry(self.vdev, m, &mut |r| {
            let (letter, sign) = if r.kind == Kind::Alloc { ('A', 1) } else { ('F', -1) };
            let end = r.offset.saturating_add(r.len);
            let _ = writeln!(
                out,
                "\t    [{index:6}]    {letter}  range: {:010x}-{end:010x}  size: {:06x}",
                r.offset, r.len
            );
            sum += sign * i128::from(r.len);
            index += 1;
            Ok(())
        })?;
        if sum != i128::from(m.header.alloc) {
            let _ = writeln!(
                out,
                "space_map_object alloc ({}) INCONSISTENT with space map summary ({sum})",
                m.header.alloc
            );
        }
        Ok(())
    }
}
