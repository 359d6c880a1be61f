//! `zpool scrub` and `zpool resilver` (chapter 09 §4).

use std::ffi::OsString;

use base::Result;
use proto::{Change, ScanCommand};
use ui::Exit;

use super::change::request_change;
use super::wait::until_over;
use super::{Pools, command, misuse, no_such_pool, options};

/// Letters that exclude each other, with the words of the complaint.
const EXCLUSIVE: [(char, char, &str); 6] = [
    ('s', 'p', "invalid option combination: -s and -p are mutually exclusive"),
    ('s', 'e', "invalid option combination: -s and -e are mutually exclusive"),
    ('s', 'C', "invalid option combination: -s and -C are mutually exclusive"),
    ('p', 'e', "invalid option combination: -p and -e are mutually exclusive"),
    ('p', 'C', "invalid option combination: -p and -C are mutually exclusive"),
    ('e', 'C', "invalid option combination: -e and -C are mutually exclusive"),
];

/// `zpool scrub [-e|-s|-p|-C] [-w] <pool> ...`
pub(super) fn scrub(argv: &[OsString]) -> Result<Exit> {
    let parsed = match options("scrub", argv) {
        Ok(parsed) => parsed,
        Err(exit) => return Ok(exit),
    };
    let both = |(a, b, _): &&(char, char, &str)| parsed.has(*a) && parsed.has(*b);
    if let Some((_, _, text)) = EXCLUSIVE.iter().find(both) {
        return Ok(misuse("scrub", Some(text)));
    }
    let (stops, pauses) = (parsed.has('s'), parsed.has('p'));
    if parsed.has('w') && (stops || pauses) {
        let text = "invalid option combination: -w cannot be used with -p or -s";
        return Ok(misuse("scrub", Some(text)));
    }
    let request = match (stops, pauses, parsed.has('e'), parsed.has('C')) {
        (true, ..) => ScanCommand::Stop,
        (_, true, ..) => ScanCommand::Pause,
        (_, _, true, _) => ScanCommand::ScrubErrors,
        (_, _, _, true) => ScanCommand::ScrubFromLast,
        _ => ScanCommand::Scrub,
    };
    let names = parsed.words();
    if names.is_empty() {
        return Ok(misuse("scrub", Some("missing pool name argument")));
    }
    each(&names, request, &command("scrub", argv), parsed.has('w'))
}

/// `zpool resilver <pool> ...`
pub(super) fn resilver(argv: &[OsString]) -> Result<Exit> {
    let parsed = match options("resilver", argv) {
        Ok(parsed) => parsed,
        Err(exit) => return Ok(exit),
    };
    let names = parsed.words();
    if names.is_empty() {
        return Ok(misuse("resilver", Some("missing pool name argument")));
    }
    each(&names, ScanCommand::Resilver, &command("resilver", argv), false)
}

/// Sends the request for each pool, and waits for all of them afterwards.
fn each(names: &[String], request: ScanCommand, command: &str, wait: bool) -> Result<Exit> {
    let mut pools = Pools::connect()?;
    let found = pools.select(names, no_such_pool)?;
    let mut failed = pools.failed;
    let mut begun = Vec::new();
    for name in found {
        match request_change(&name, Change::Scan(request), command.to_owned()) {
            Ok(_) => begun.push(name),
            Err(e) => {
                ui::err(e.message());
                failed = true;
            }
        }
    }
    for name in begun.iter().filter(|_| wait) {
        // A paused scrub is not waited for, as in OpenZFS.
        until_over(name, &["scrub"])?;
    }
    Ok(Exit::failed_if(failed))
}
