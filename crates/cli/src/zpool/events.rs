//! `zpool events` (chapter 09 §4.7, §5).

use std::ffi::OsString;

use base::Result;
use proto::{EventInfo, EventsPage, Reply, Request};
use ui::Exit;
use ui::time::strftime;

use super::{Pools, misuse, options, unexpected_reply};

/// How long one request of a follower waits for events, milliseconds. It bounds how long the
/// program outlives a daemon that hangs.
const FOLLOW_MS: u64 = 10_000;

/// Time and class, with a tab between for scripts.
fn line(event: &EventInfo, scripted: bool) -> String {
    let time = strftime("%b %e %Y %H:%M:%S", event.seconds.max(0) as u64);
    let time = format!("{time}.{:09}", event.nanoseconds);
    if scripted {
        format!("{time}\t{}\n", event.class)
    } else {
        format!("{time:<30} {}\n", event.class)
    }
}

fn show(page: &EventsPage, pool: Option<&str>, scripted: bool, verbose: bool) {
    let wanted = page.events.iter().filter(|e| pool.is_none_or(|p| e.pool.as_deref() == Some(p)));
    for event in wanted {
        ui::out(&line(event, scripted));
        if verbose {
            ui::out(&event.values);
        }
    }
    if page.dropped > 0 {
        ui::out(&format!("dropped {} events\n", page.dropped));
    }
}

/// `zpool events [-vHf [pool]] | -c`
///
/// # Errors
/// Those of the daemon.
pub(super) fn main(argv: &[OsString]) -> Result<Exit> {
    let parsed = match options("events", argv) {
        Ok(parsed) => parsed,
        Err(exit) => return Ok(exit),
    };
    let words = parsed.words();
    let mut pools = Pools::connect()?;
    if parsed.has('c') {
        if !words.is_empty() {
            return Ok(misuse("events", Some("too many arguments")));
        }
        let cleared = match pools.request(&Request::ClearEvents)? {
            Reply::Count(cleared) => cleared,
            // No daemon runs.
            Reply::Names(_) => 0,
            _ => return Err(unexpected_reply()),
        };
        ui::out(&format!("cleared {cleared} events\n"));
        return Ok(Exit::OK);
    }
    let pool = match &words[..] {
        [] => None,
        [pool] => Some(pool.as_str()),
        _ => return Ok(misuse("events", Some("too many arguments"))),
    };
    let (scripted, verbose, follow) = (parsed.has('H'), parsed.has('v'), parsed.has('f'));
    if !scripted {
        ui::out(&format!("{:<30} {}\n", "TIME", "CLASS"));
    }
    let (mut after, mut wait_ms) = (0, 0);
    loop {
        let page = match pools.request(&Request::Events { after, wait_ms })? {
            Reply::Events(page) => page,
            Reply::Names(_) => return Ok(Exit::OK),
            _ => return Err(unexpected_reply()),
        };
        show(&page, pool, scripted, verbose);
        if !follow && !page.more {
            return Ok(Exit::OK);
        }
        after = page.last;
        wait_ms = if follow { FOLLOW_MS } else { 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_the_forms_of_openzfs() {
        let event = EventInfo {
            eid: 1,
            seconds: 1_700_000_000,
            nanoseconds: 42,
            class: "sysevent.fs.zfs.config_sync".to_owned(),
            pool: None,
            values: String::new(),
        };
        let text = line(&event, false);
        assert!(text.ends_with(".000000042 sysevent.fs.zfs.config_sync\n"), "{text:?}");
        assert_eq!(text.find("sysevent"), Some(31), "{text:?}");
        assert!(line(&event, true).ends_with("000000042\tsysevent.fs.zfs.config_sync\n"));
    }
}
