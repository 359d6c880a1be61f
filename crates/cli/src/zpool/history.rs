//! `zpool history` (chapter 09 §4.7; forms as OpenZFS 2.3.2 prints them).

use std::collections::HashMap;
use std::ffi::OsString;

use base::Result;
use proto::{HistoryEvent, HistoryRecord, Reply, Request};
use ui::Exit;
use ui::time::strftime;

use super::{Pools, no_such_pool, options, unexpected_reply};

/// Names of the event codes in old pools.
const EVENTS: [&str; 41] = [
    "invalid event",
    "pool create",
    "vdev add",
    "pool remove",
    "pool destroy",
    "pool export",
    "pool import",
    "vdev attach",
    "vdev replace",
    "vdev detach",
    "vdev online",
    "vdev offline",
    "vdev upgrade",
    "pool clear",
    "pool scrub",
    "pool property set",
    "create",
    "clone",
    "destroy",
    "destroy_begin_sync",
    "inherit",
    "property set",
    "quota set",
    "permission update",
    "permission remove",
    "permission who remove",
    "promote",
    "receive",
    "rename",
    "reservation set",
    "replay_inc_sync",
    "replay_full_sync",
    "rollback",
    "snapshot",
    "filesystem version upgrade",
    "refquota set",
    "refreservation set",
    "pool scrub done",
    "user hold",
    "user release",
    "pool split",
];

/// Names of users by id, as far as the system's file has them.
type Users = HashMap<u64, String>;

fn users() -> Users {
    let text = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let one = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next()?.to_owned();
        Some((fields.nth(1)?.parse().ok()?, name))
    };
    text.lines().rev().filter_map(one).collect()
}

/// The text that `-l` adds: user, host and zone.
fn origin(record: &HistoryRecord, users: &Users) -> String {
    let mut out = " [".to_owned();
    if let Some(who) = record.who {
        out.push_str(&format!("user {who} "));
        if let Some(name) = users.get(&who) {
            out.push_str(&format!("({name}) "));
        }
    }
    if let Some(host) = &record.host {
        out.push_str(&format!("on {host}"));
        if let Some(zone) = &record.zone {
            out.push_str(&format!(":{zone}"));
        }
    }
    out + "]"
}

/// A record as it is listed; `None` if only `-i` lists it.
fn line(record: &HistoryRecord, internal: bool, long: Option<&Users>) -> Option<String> {
    let time = strftime("%F.%T", record.time);
    let is_command = matches!(record.event, HistoryEvent::Command(_));
    if !internal && !is_command {
        return None;
    }
    let text = match &record.event {
        HistoryEvent::Command(command) => format!("{time} {command}"),
        HistoryEvent::Internal { txg, name, dataset, text } => {
            let dataset =
                dataset.as_ref().map_or_else(String::new, |(n, id)| format!(" {n} ({id})"));
            format!("{time} [txg:{txg}] {name}{dataset} {text}")
        }
        HistoryEvent::Numbered { txg, event, text } => {
            let name =
                usize::try_from(*event).ok().and_then(|e| EVENTS.get(e)).unwrap_or(&"unknown");
            format!("{time} [internal {name} txg:{txg}] {text}")
        }
        HistoryEvent::Ioctl { name, input, output, errno } => {
            let mut text = format!("{time} ioctl {name}\n");
            for (title, list) in [("input", input), ("output", output)] {
                if let Some(list) = list {
                    text.push_str(&format!("    {title}:\n{list}"));
                }
            }
            if let Some(errno) = errno {
                text.push_str(&format!("    errno: {errno}\n"));
            }
            text
        }
        HistoryEvent::Unknown(list) => format!("{time} unrecognized record:\n{list}"),
    };
    let origin = long.map(|users| origin(record, users)).unwrap_or_default();
    Some(format!("{text}{origin}\n"))
}

/// `zpool history [-il] [<pool>] ...`
pub(super) fn main(argv: &[OsString]) -> Result<Exit> {
    let parsed = match options("history", argv) {
        Ok(parsed) => parsed,
        Err(exit) => return Ok(exit),
    };
    let mut pools = Pools::connect()?;
    let names = pools.select(&parsed.words(), no_such_pool)?;
    let users = parsed.has('l').then(users);
    for name in names {
        ui::out(&format!("History for '{name}':\n"));
        let mut from = 0;
        loop {
            let request = Request::History { name: name.clone(), from };
            let Reply::History(records, more) = pools.request(&request)? else {
                return Err(unexpected_reply());
            };
            let lines = records.iter().filter_map(|r| line(r, parsed.has('i'), users.as_ref()));
            ui::out(&lines.collect::<String>());
            from += records.len() as u64;
            if !more || records.is_empty() {
                break;
            }
        }
        ui::out("\n");
    }
    Ok(Exit::failed_if(pools.failed))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(event: HistoryEvent, who: Option<u64>) -> HistoryRecord {
        HistoryRecord {
            time: 1_700_000_000,
            event,
            who,
            host: Some("vm".into()),
            zone: who.map(|_| "linux".into()),
        }
    }

    fn shown(record: &HistoryRecord, internal: bool, long: bool) -> String {
        let users = Users::from([(0, "root".to_owned())]);
        let text = line(record, internal, long.then_some(&users)).unwrap_or_default();
        // The date depends on the time zone, and is strftime's.
        let date = strftime("%F.%T", record.time);
        text.replace(&date, "DATE")
    }

    /// Recorded from OpenZFS 2.3.2's `zpool history`.
    #[test]
    fn forms() {
        let command = record(HistoryEvent::Command("zpool create tank sda".into()), Some(0));
        assert_eq!(shown(&command, false, false), "DATE zpool create tank sda\n");
        assert_eq!(
            shown(&command, false, true),
            "DATE zpool create tank sda [user 0 (root) on vm:linux]\n"
        );
        let nobody = HistoryRecord { who: None, host: None, ..command.clone() };
        assert_eq!(shown(&nobody, true, true), "DATE zpool create tank sda []\n");
        let internal = record(
            HistoryEvent::Internal {
                txg: 5,
                name: "create".into(),
                dataset: Some(("tank/fs".into(), 68)),
                text: " ".into(),
            },
            None,
        );
        assert_eq!(shown(&internal, false, true), "");
        assert_eq!(shown(&internal, true, false), "DATE [txg:5] create tank/fs (68)  \n");
        assert_eq!(shown(&internal, true, true), "DATE [txg:5] create tank/fs (68)   [on vm]\n");
        let old = HistoryEvent::Numbered { txg: 9, event: 5, text: "old".into() };
        assert_eq!(
            shown(&record(old, None), true, false),
            "DATE [internal pool export txg:9] old\n"
        );
        let ioctl = HistoryEvent::Ioctl {
            name: "create".into(),
            input: Some("        type: 2\n".into()),
            output: None,
            errno: Some(5),
        };
        assert_eq!(
            shown(&record(ioctl.clone(), None), true, false),
            "DATE ioctl create\n    input:\n        type: 2\n    errno: 5\n\n"
        );
        assert!(
            shown(&record(ioctl, Some(0)), true, true)
                .ends_with("\n [user 0 (root) on vm:linux]\n")
        );
        let unknown = HistoryEvent::Unknown("    what: 3\n".into());
        assert_eq!(
            shown(&record(unknown, None), true, false),
            "DATE unrecognized record:\n    what: 3\n\n"
        );
    }
}
