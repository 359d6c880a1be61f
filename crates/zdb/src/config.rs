//! `zdb -C`, `-u`, `-h`: the pool's configuration, uberblock and history.

use std::fmt::Write;

use base::Result;
use cenote::inspect::nvlist::NvList;
use cenote::inspect::ondisk::uberblock::{ScratchState, Uberblock};
use cenote::inspect::spa::Spa;
use ui::time::strftime;

use super::{DumpOptions, bptext};

/// The configuration in the MOS.
pub(super) fn mos_config(spa: &Spa) -> Result<()> {
    let Some(object) = spa.mos().lookup("config")? else { return Ok(()) };
    let list = spa.mos().packed_nvlist(object)?;
    ui::out(&format!("\nMOS Configuration:\n{}", list.indented(8)));
    Ok(())
}

/// The fields of an uberblock, each line indented by a tab.
pub(super) fn uberblock_text(ub: &Uberblock, with_bp: bool) -> String {
    let mut out = String::new();
    let date = strftime("%a %b %e %H:%M:%S %Y", ub.timestamp);
    let zone = strftime("%Z", ub.timestamp);
    let _ = writeln!(out, "\tmagic = 0000000000bab10c");
    let _ = writeln!(out, "\tversion = {}", ub.version);
    let _ = writeln!(out, "\ttxg = {}", ub.txg);
    let _ = writeln!(out, "\tguid_sum = {}", ub.guid_sum);
    let _ = writeln!(out, "\ttimestamp = {} {zone} = {date}", ub.timestamp);
    if with_bp {
        let _ = writeln!(out, "\tbp = {}", bptext::long(&ub.root_bp));
    }
    if let Some(mmp) = &ub.mmp {
        let config = mmp.config;
        let _ = writeln!(out, "\tmmp_magic = 00000000a11cea11");
        let _ = writeln!(out, "\tmmp_delay = {}", mmp.delay);
        let _ = writeln!(out, "\tmmp_valid = {}", config & 7);
        for (bit, name, value) in [
            (1, "mmp_write_interval", config >> 8 & 0xff_ffff),
            (2, "mmp_seq", config >> 32 & 0xffff),
            (4, "mmp_fail_intervals", config >> 48),
        ] {
            if config & bit != 0 {
                let _ = writeln!(out, "\t{name} = {value}");
            }
        }
    }
    let _ = writeln!(out, "\tcheckpoint_txg = {}", ub.checkpoint_txg);
    let (state, offset) = match ub.reflow() {
        Ok(r) => (scratch(r.scratch), r.offset),
        Err(_) => (ub.raidz_reflow_info >> 55, ub.raidz_reflow_info),
    };
    let _ = writeln!(out, "\traidz_reflow state={state} off={offset}");
    out
}

fn scratch(state: ScratchState) -> u64 {
    match state {
        ScratchState::Unused => 0,
        ScratchState::Valid => 1,
        ScratchState::InvalidSynced => 2,
        ScratchState::InvalidSyncedOnImport => 3,
        ScratchState::InvalidSyncedReflow => 4,
    }
}

/// The uberblock that the pool was opened from.
pub(super) fn uberblock(_ask: &DumpOptions, spa: &Spa) {
    ui::out(&format!("\nUberblock:\n{}\n", uberblock_text(spa.uberblock(), true)));
}

/// The history, one line for each record, with the input and output of ioctls.
pub(super) fn history(spa: &Spa) -> Result<()> {
    let mut out = "\nHistory:\n".to_owned();
    for record in spa.history()? {
        line(&record, &mut out);
    }
    ui::out(&out);
    Ok(())
}

fn line(record: &NvList, out: &mut String) {
    let time = strftime("%F.%T", record.u64("history time").unwrap_or(0));
    if let Some(command) = record.str("history command") {
        let _ = writeln!(out, "{time} {command}");
    } else if let Some(name) = record.str("internal_name") {
        let txg = record.u64("history txg").unwrap_or(0);
        let text = record.str("history internal str").unwrap_or_default();
        let dataset = record.str("dsname");
        let subject = dataset
            .map_or_else(String::new, |d| format!(" {d} ({})", record.u64("dsid").unwrap_or(0)));
        let _ = writeln!(out, "{time} [txg:{txg}] {name}{subject} {text}");
    } else if let Some(ioctl) = record.str("ioctl") {
        let _ = writeln!(out, "{time} ioctl {ioctl}");
        for (key, title) in [("in_nvl", "input"), ("out_nvl", "output")] {
            if let Some(list) = record.list(key) {
                let _ = write!(out, "    {title}:\n{}", list.indented(8));
            }
        }
        if let Some(errno) = record.get("errno") {
            let _ = writeln!(out, "    errno: {errno:?}");
        }
    } else {
        let _ = write!(out, "{time} unrecognized record:\n{}", record.indented(4));
    }
}
