//! Statistics of the cache and the pools, for people and scripts: `arcstat`, `arc_summary`,
//! `zilstat`, `cenote kstat`, `cenote trace`, `cenote arc`, `cenote tune` (chapter 09 §6, §7).
//!
//! They are read from the daemon, or from a directory in the layout of `/proc/spl/kstat/zfs`
//! (`source`).
//!
//! # What it must not know
//! How anything is counted, and the effect of a tunable: it reads and shows kstats, and sets
//! tunables by their names.

mod arc;
mod arcstat;
mod fields;
mod kstat;
mod number;
mod source;
mod summary;
mod trace;
mod tune;
mod zilstat;

use std::ffi::OsString;
use std::time::Duration;

use base::{Error, Result};
use commands::getopt::Bad;
use ui::Exit;

/// `arcstat`, `arc_summary`, `kstat`, `arc`, `tune`, `zilstat` and `trace`, by their names.
///
/// # Errors
/// The statistics cannot be read, or the command line is wrong.
pub fn main(name: &str, argv: &[OsString]) -> Result<Exit> {
    match name {
        "arcstat" | "zarcstat" => arcstat::main(argv, false),
        "arcstat.pl" => arcstat::main(argv, true),
        "arc_summary" | "zarcsummary" => summary::main(argv),
        "kstat" => kstat::main(argv),
        "trace" => trace::main(argv),
        "zilstat" => zilstat::main(argv),
        "arc" => arc::main(argv),
        _ => tune::main(argv),
    }
}

/// Prints the error in a command line, then the usage.
fn usage(bad: &Bad, text: &str, code: Exit) -> Exit {
    if let Some(message) = bad.message() {
        ui::err(&message);
        ui::err(text.trim_end());
        return code;
    }
    ui::out(text);
    Exit::OK
}

/// Longest interval, a year; a longer one is a mistake.
const INTERVAL_MAX: f64 = 365.0 * 86_400.0;

/// `[interval [count]]`: fractions of seconds are accepted.
fn interval(words: &[String]) -> Result<(Option<Duration>, Option<u64>)> {
    let Some(text) = words.first() else { return Ok((None, None)) };
    let seconds: f64 = text
        .parse()
        .map_err(|_| Error::invalid(format!("invalid interval '{text}': it is a number")))?;
    if seconds == 0.0 {
        return Err(Error::invalid("interval cannot be zero"));
    }
    if !(0.001..=INTERVAL_MAX).contains(&seconds) {
        return Err(Error::invalid(format!("invalid interval '{text}'")));
    }
    let count = words.get(1).map(|text| match text.parse::<u64>() {
        Ok(n) if n > 0 => Ok(n),
        _ => Err(Error::invalid(format!("invalid count '{text}'"))),
    });
    if let Some(extra) = words.get(2) {
        return Err(Error::invalid(format!("too many arguments: '{extra}'")));
    }
    Ok((Some(Duration::from_secs_f64(seconds)), count.transpose()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals() {
        let of = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|w| (*w).to_owned()).collect();
            interval(&words)
        };
        assert_eq!(of(&[]).unwrap(), (None, None));
        assert_eq!(of(&["0.5", "3"]).unwrap(), (Some(Duration::from_millis(500)), Some(3)));
        assert_eq!(of(&["0"]).unwrap_err().message(), "interval cannot be zero");
        for bad in
            [&["x"][..], &["-1"], &["nan"], &["inf"], &["1", "0"], &["1", "x"], &["1", "2", "3"]]
        {
            assert!(of(bad).is_err(), "{bad:?}");
        }
    }
}
