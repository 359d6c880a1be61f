//! `zpool checkpoint`, `trim` and `initialize` (chapter 09 §4).

use std::ffi::OsString;

use base::Result;
use proto::{Change, JobAction, Pool, Vdev};
use ui::Exit;
use ui::progress::Progress;

use super::change::{one_pool, request_change};
use super::{Pools, command, misuse, options, vdev_props, wait};

/// `zpool checkpoint [-d [-w]] <pool>`
pub(super) fn checkpoint(argv: &[OsString]) -> Result<Exit> {
    let parsed = match options("checkpoint", argv) {
        Ok(parsed) => parsed,
        Err(exit) => return Ok(exit),
    };
    let (discard, waits) = (parsed.has('d'), parsed.has('w'));
    if waits && !discard {
        return Ok(misuse("checkpoint", Some("--wait only valid when --discard also specified")));
    }
    let name = match one_pool("checkpoint", parsed.words(), "missing pool argument")? {
        Ok(name) => name,
        Err(exit) => return Ok(exit),
    };
    let change = if discard { Change::DiscardCheckpoint } else { Change::Checkpoint };
    let exit = request_change(&name, change, command("checkpoint", argv))?;
    if waits && exit == Exit::OK {
        wait_until(&name, &|pool| wait::discard_left(pool))?;
    }
    Ok(exit)
}

/// A line of `zpool trim` or `initialize`.
#[derive(Debug, PartialEq, Eq)]
struct JobLine {
    action: JobAction,
    pool: String,
    devices: Vec<String>,
    waits: bool,
}

/// The line, or the message before the usage.
fn job_line(what: &str, parsed: &commands::getopt::Parsed) -> std::result::Result<JobLine, String> {
    // In a trim `-d` is secure; an initialization has neither that nor a rate.
    let secure = parsed.has('d');
    let rate = match parsed.last('r') {
        None => 0,
        Some(text) => cenote::props::parse_size(&text)
            .map_err(|why| format!("invalid value for rate '{text}': {why}"))?,
    };
    let chosen: Vec<(char, JobAction)> =
        [('c', JobAction::Cancel), ('s', JobAction::Suspend), ('u', JobAction::Forget)]
            .into_iter()
            .filter(|(letter, _)| parsed.has(*letter))
            .collect();
    let action = match chosen.as_slice() {
        [] => JobAction::Start { rate, secure },
        [(_, action)] if !secure && !parsed.has('r') => *action,
        [(letter, _), ..] => {
            return Err(format!("-{letter} cannot be combined with other options"));
        }
    };
    let waits = parsed.has('w');
    if waits && let [(letter, _), ..] = chosen.as_slice() {
        return Err(match what {
            "initialize" => "-w cannot be used with -c, -s or -u".to_owned(),
            _ => format!("-w cannot be used with -{letter}"),
        });
    }
    let mut words = parsed.words();
    if words.is_empty() {
        return Err("missing pool name argument".to_owned());
    }
    let devices = words.split_off(1);
    Ok(JobLine { action, pool: words.remove(0), devices, waits })
}

/// `zpool trim [-dw] [-r rate] [-c | -s] <pool> [device] ...`
pub(super) fn trim(argv: &[OsString]) -> Result<Exit> {
    job("trim", argv, Change::Trim)
}

/// `zpool initialize [-c | -s | -u] [-w] <pool> [device] ...`
pub(super) fn initialize(argv: &[OsString]) -> Result<Exit> {
    job("initialize", argv, Change::Initialize)
}

fn job(
    what: &str,
    argv: &[OsString],
    change: fn(JobAction, Vec<String>) -> Change,
) -> Result<Exit> {
    let parsed = match options(what, argv) {
        Ok(parsed) => parsed,
        Err(exit) => return Ok(exit),
    };
    let line = match job_line(what, &parsed) {
        Ok(line) => line,
        Err(message) => return Ok(misuse(what, Some(&message))),
    };
    let name = match one_pool(what, vec![line.pool], "missing pool name argument")? {
        Ok(name) => name,
        Err(exit) => return Ok(exit),
    };
    let wish = change(line.action, line.devices.clone());
    let exit = request_change(&name, wish, command(what, argv))?;
    if line.waits && exit == Exit::OK {
        let trims = what == "trim";
        wait_until(&name, &|pool| {
            if line.devices.is_empty() {
                return wait::job_left(&pool.root, trims);
            }
            let named = line.devices.iter().filter_map(|device| vdev_props::find(pool, device));
            named.map(|v: &Vdev| wait::job_left(v, trims)).fold(0, u64::saturating_add)
        })?;
    }
    Ok(exit)
}

/// Waits until nothing is left; a terminal shows the progress.
fn wait_until(name: &str, left: &dyn Fn(&Pool) -> u64) -> Result<()> {
    let mut pools = Pools::connect()?;
    let mut bar: Option<(Progress, u64)> = None;
    loop {
        let rest = left(&pools.status(name)?);
        if rest == 0 {
            return Ok(());
        }
        let (progress, all) = bar.get_or_insert_with(|| (Progress::new(name, Some(rest)), rest));
        progress.at(all.saturating_sub(rest));
        base::rt::sleep(wait::PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(what: &str, line: &str) -> std::result::Result<JobLine, String> {
        let argv: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        job_line(what, &commands::find("zpool", what).parse(&argv).unwrap())
    }

    #[test]
    fn lines() {
        let start = |rate, secure| JobAction::Start { rate, secure };
        let of = |what, line: &str| parse(what, line).unwrap();
        let plain =
            JobLine { action: start(0, false), pool: "tank".into(), devices: vec![], waits: false };
        assert_eq!(of("trim", "tank"), plain);
        let all = of("trim", "-d -w -r 5M tank sda sdb");
        assert_eq!((all.action, all.waits), (start(5 << 20, true), true));
        assert_eq!(all.devices, ["sda", "sdb"]);
        assert_eq!(of("trim", "--suspend tank").action, JobAction::Suspend);
        assert_eq!(of("initialize", "-c tank").action, JobAction::Cancel);
        assert_eq!(of("initialize", "--uninit tank sda").action, JobAction::Forget);
    }

    #[test]
    fn complaints() {
        for (what, line, text) in [
            ("trim", "", "missing pool name argument"),
            ("trim", "-c -s tank", "-c cannot be combined with other options"),
            ("trim", "-s -r 5M tank", "-s cannot be combined with other options"),
            ("trim", "-c -d tank", "-c cannot be combined with other options"),
            ("trim", "-w -s tank", "-w cannot be used with -s"),
            ("initialize", "-w -u tank", "-w cannot be used with -c, -s or -u"),
            ("initialize", "-s -u tank", "-s cannot be combined with other options"),
        ] {
            assert_eq!(parse(what, line), Err(text.to_owned()), "{what} {line}");
        }
        assert!(parse("trim", "-r x tank").unwrap_err().starts_with("invalid value for rate"));
    }
}
