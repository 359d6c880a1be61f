//! `cenote kstat`: kstats in the format of Solaris's `kstat`.

use std::ffi::OsString;
use std::time::Duration;

use base::{Result, rt};
use cenote::kstat::{json, prometheus, solaris};
use commands::getopt::Bad;
use ui::Exit;

use super::source::StatSource;

const USAGE: &str = "\
usage: kstat [-pj] [-m MODULE] [-n NAME] [--prometheus] [--path DIR] [interval [count]]
	 -p : module:instance:name:statistic, a TAB, the value
	 -j : JSON
	 -m : of this module only: zfs, zfs/POOL; * and ? stand for other characters
	 -n : of this name only: arcstats, objset-*
	 --prometheus : as /metrics shows them
	 --path : a directory such as /proc/spl/kstat/zfs instead of the daemon
Measurements (*_bench) are made and shown only when -n names them.
";

/// Whether a path is shown. Benchmark kstats are shown only if they are named, because the
/// first reading takes time.
fn is_wanted(path: &str, module: Option<&str>, name: Option<&str>) -> bool {
    let named = name.is_some_and(|n| n != "*");
    solaris::wanted(path, module, name) && (named || !path.ends_with("_bench"))
}

/// `cenote kstat`.
///
/// # Errors
/// No statistics can be had.
pub(super) fn main(argv: &[OsString]) -> Result<Exit> {
    let parsed = match commands::find("cenote", "kstat").parse(argv) {
        Ok(parsed) if !parsed.has('h') => parsed,
        Ok(_) => return Ok(super::usage(&Bad::Help, USAGE, Exit::OK)),
        Err(bad) => return Ok(super::usage(&bad, USAGE, Exit::USAGE)),
    };
    let (interval, count) = super::interval(&parsed.words())?;
    let (module, name) = (parsed.last('m'), parsed.last('n'));
    let mut source = StatSource::open(parsed.last('P'))?;
    let last = if interval.is_some() { count.unwrap_or(u64::MAX) } else { 1 };
    let mut found = false;
    for done in 0..last {
        let mut names = source.names()?;
        names.retain(|n| is_wanted(n, module.as_deref(), name.as_deref()));
        let kstats = source.read(&names)?;
        found |= !kstats.is_empty();
        let text = if parsed.has('j') {
            json::render(&kstats) + "\n"
        } else if parsed.has('M') {
            prometheus::render(&kstats)
        } else if parsed.has('p') {
            kstats.iter().map(|(path, k)| solaris::parsable(path, k)).collect()
        } else {
            kstats.iter().map(|(path, k)| solaris::render(path, k)).collect()
        };
        ui::out(&text);
        if done + 1 < last {
            rt::sleep(interval.unwrap_or(Duration::ZERO));
        }
    }
    // As in Solaris, it is a failure if nothing is found.
    Ok(Exit::failed_if(!found))
}

#[cfg(test)]
mod tests {
    use super::is_wanted;

    #[test]
    fn benchmarks_must_be_asked_for() {
        assert!(!is_wanted("chksum_bench", Some("zfs"), None));
        assert!(!is_wanted("chksum_bench", None, Some("*")));
        assert!(is_wanted("chksum_bench", None, Some("*_bench")));
        assert!(is_wanted("tank/state", Some("zfs"), None));
    }
}
