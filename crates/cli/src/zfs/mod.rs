//! `zfs`: datasets, with the output of OpenZFS's command (chapter 09 §3).

mod allow;
mod change;
mod clones;
mod create;
mod destroy;
mod diff;
mod get;
pub(crate) mod helper;
mod holds;
mod json;
mod list;
mod mount;
mod project;
mod receive;
mod rewrite;
mod select;
mod send;
mod upgrade;
mod userspace;

use std::ffi::OsString;

use base::Result;
use commands::getopt::{Bad, Parsed};
use proto::client::Client;
use proto::runtime::Runtime;
use proto::{DatasetChange, Reply, Request};
use ui::Exit;

/// Commands of OpenZFS's that Cenote does not have yet.
const MISSING: [&str; 9] = [
    "program",
    "share",
    "unshare",
    "load-key",
    "unload-key",
    "change-key",
    "wait",
    "zone",
    "unzone",
];

/// Complains and shows the usage of a command; the exit code is 2.
fn misuse(command: &str, message: Option<&str>) -> Exit {
    commands::misuse("zfs", command, message)
}

fn options(command: &str, argv: &[OsString]) -> std::result::Result<Parsed, Exit> {
    let row = commands::find("zfs", command);
    let parsed = row.parse(argv).map_err(|bad: Bad| misuse(command, bad.message().as_deref()))?;
    match row.refusal(&parsed) {
        Some(why) => {
            ui::err(&why);
            Err(Exit::FAILURE)
        }
        None => Ok(parsed),
    }
}

/// The command in the form of the pool's history.
fn command_line(name: &str, argv: &[OsString]) -> String {
    let words = argv.iter().map(|w| w.to_string_lossy().into_owned());
    std::iter::once(format!("zfs {name}")).chain(words).collect::<Vec<_>>().join(" ")
}

/// One `-o property=value`; each may be given once.
fn property(list: &mut Vec<(String, String)>, text: &str) -> std::result::Result<(), String> {
    let Some((name, value)) = text.split_once('=') else {
        return Err("missing '=' for property=value argument".to_owned());
    };
    if list.iter().any(|(n, _)| n == name) {
        return Err(format!("property '{name}' specified multiple times"));
    }
    list.push((name.to_owned(), value.to_owned()));
    Ok(())
}

/// Requests a change. A refusal is the whole message.
fn request_change(change: DatasetChange) -> Result<(Reply, bool)> {
    let mut client = match Client::connect_for_query(&Runtime::from_env()?)? {
        Some(client) => client,
        // No daemon runs and no pool is stored: start one, for its error message.
        None => Client::connect(&Runtime::from_env()?)?,
    };
    let reply = client.request(&Request::ChangeDatasets(Box::new(change)))?;
    Ok((reply, client.failed))
}

/// `zfs ...`
pub(crate) fn main(argv: &[OsString]) -> Result<Exit> {
    let Some((first, rest)) = argv.split_first() else {
        ui::err("missing command");
        ui::err(commands::usage("zfs").trim_end());
        return Ok(Exit::USAGE);
    };
    let command = first.to_string_lossy();
    match command.as_ref() {
        "list" => list::main(rest),
        "get" => get::main(rest),
        "create" => create::main(rest),
        "destroy" => destroy::main(rest),
        "snapshot" | "snap" => change::snapshot(&command, rest),
        "set" => change::set(rest),
        "inherit" => change::inherit(rest),
        "clone" => clones::clone(rest),
        "promote" => clones::promote(rest),
        "rollback" => clones::rollback(rest),
        "rename" => clones::rename(rest),
        "bookmark" => holds::bookmark(rest),
        "redact" => holds::redact(rest),
        "hold" | "release" => holds::hold(&command, rest),
        "holds" => holds::holds(rest),
        "allow" | "unallow" => allow::main(&command, rest),
        "userspace" | "groupspace" | "projectspace" => userspace::main(&command, rest),
        "mount" => mount::mount(rest),
        "unmount" | "umount" => mount::unmount(rest),
        "diff" => diff::main(rest),
        "upgrade" => upgrade::main(rest),
        "project" => project::main(rest),
        "rewrite" => rewrite::main(rest),
        "send" => send::main(rest),
        "receive" | "recv" => receive::main(&command, rest),
        "version" | "-V" | "--version" => Ok(commands::version("zfs", rest)),
        "help" => commands::help("zfs", rest),
        "-?" | "--help" => {
            ui::out(&commands::usage("zfs"));
            Ok(Exit::OK)
        }
        // `zfs property=value dataset` means `zfs set`.
        c if c.contains('=') => change::set(argv),
        c => Ok(commands::unrecognized("zfs", c, &MISSING)),
    }
}
