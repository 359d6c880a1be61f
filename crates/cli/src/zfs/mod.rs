//! `zfs`: datasets, as OpenZFS's command shows them (chapter 09 §3).

mod get;
mod list;
mod mount;
mod select;

use std::ffi::OsString;

use base::{Error, Result};

use crate::getopt::{self, Bad, Long, Parsed};
use crate::ui::{self, Exit};
use crate::zpool::version;

const COMMANDS: [(&str, &str); 5] = [
    (
        "list",
        "list [-Hp] [-r|-d max] [-o property[,...]] [-s property]...\n\t    [-S property]... [-t \
         type[,...]] [filesystem|volume|snapshot] ...",
    ),
    (
        "get",
        "get [-rHp] [-d max] [-o \"all\" | field[,...]]\n\t    [-t type[,...]] [-s source[,...]]\n\t    \
         <\"all\" | property[,...]> [filesystem|volume|snapshot|bookmark] ...",
    ),
    ("mount", "mount\n\tmount [-flvO] [-o opts] <-a|-R filesystem|filesystem>"),
    ("unmount", "unmount [-fu] <-a | filesystem|mountpoint>"),
    ("version", "version"),
];

/// Commands of OpenZFS's that Cenote does not have: they fail, but are no misuse.
const MISSING: [&str; 36] = [
    "create",
    "destroy",
    "snapshot",
    "snap",
    "rollback",
    "clone",
    "promote",
    "rename",
    "bookmark",
    "program",
    "set",
    "inherit",
    "upgrade",
    "userspace",
    "groupspace",
    "projectspace",
    "project",
    "share",
    "unshare",
    "send",
    "receive",
    "recv",
    "redact",
    "allow",
    "unallow",
    "hold",
    "holds",
    "release",
    "diff",
    "load-key",
    "unload-key",
    "change-key",
    "wait",
    "zone",
    "unzone",
    "rewrite",
];

fn usage_text() -> String {
    let mut text =
        "usage: zfs command args ...\nwhere 'command' is one of the following:\n\n".to_owned();
    for (_, synopsis) in COMMANDS {
        text.push_str(&format!("\t{synopsis}\n"));
    }
    text
}

/// Complains and shows how the command is used; the exit code is 2.
fn misuse(command: &str, message: Option<&str>) -> Exit {
    if let Some(message) = message {
        ui::err(message);
    }
    let synopsis = COMMANDS.iter().find(|c| c.0 == command).map_or("", |c| c.1);
    ui::err(&format!("usage:\n\t{synopsis}"));
    Exit::USAGE
}

fn options(
    command: &str,
    argv: &[OsString],
    short: &str,
    long: &[Long],
) -> std::result::Result<Parsed, Exit> {
    let parsed = getopt::parse(argv, short, long)
        .map_err(|bad: Bad| misuse(command, bad.message().as_deref()))?;
    if parsed.has('j') || parsed.has('J') {
        ui::err(&format!("cannot run 'zfs {command}' with -j: JSON output is not supported"));
        return Err(Exit::FAILURE);
    }
    Ok(parsed)
}

/// `zfs ...`
pub(crate) fn main(argv: &[OsString]) -> Result<Exit> {
    let Some((first, rest)) = argv.split_first() else {
        ui::err("missing command");
        ui::err(usage_text().trim_end());
        return Ok(Exit::USAGE);
    };
    let command = first.to_string_lossy();
    match command.as_ref() {
        "list" => list::main(rest),
        "get" => get::main(rest),
        "mount" => mount::mount(rest),
        "unmount" | "umount" => mount::unmount(rest),
        "version" | "-V" | "--version" => {
            ui::out(&version());
            Ok(Exit::OK)
        }
        "-?" | "--help" => {
            ui::out(&usage_text());
            Ok(Exit::OK)
        }
        c if MISSING.contains(&c) || c.contains('=') => {
            Err(Error::unsupported(format!("cannot run 'zfs {c}': Cenote reads pools only")))
        }
        c => {
            ui::err(&format!("unrecognized command '{c}'"));
            ui::err(usage_text().trim_end());
            Ok(Exit::USAGE)
        }
    }
}
