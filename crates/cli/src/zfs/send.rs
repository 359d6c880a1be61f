//! `zfs send` (chapter 09 §3.4).

use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::time::Duration;

use base::{Error, Result, rt};
use cenote::props::nicebytes;
use proto::client::Client;
use proto::runtime::Runtime;
use proto::{Reply, Request, SendArgs, SendSize};
use ui::{Exit, time};

use super::{misuse, options};

/// `zfs send ...`
pub(super) fn main(argv: &[OsString]) -> Result<Exit> {
    let parsed = match options("send", argv) {
        Ok(parsed) => parsed,
        Err(exit) => return Ok(exit),
    };
    let words = parsed.words();
    let snapshot = match words.as_slice() {
        [] => return Ok(misuse("send", Some("missing snapshot argument"))),
        [snapshot] => snapshot.clone(),
        _ => return Ok(misuse("send", Some("too many arguments"))),
    };
    let (from, all) = match (parsed.last('i'), parsed.last('I')) {
        (None, None) => (None, false),
        (Some(from), None) => (Some(from), false),
        (None, Some(from)) => (Some(from), true),
        (Some(_), Some(_)) => {
            return Ok(misuse("send", Some("-i and -I cannot be used together")));
        }
    };
    let (dry_run, parsable) = (parsed.has('n'), parsed.has('P'));
    if !dry_run && std::io::stdout().is_terminal() {
        ui::err(
            "Error: Stream can not be written to a terminal.\nYou must redirect standard output.",
        );
        return Ok(Exit::FAILURE);
    }
    let raw = parsed.has('w');
    let args = SendArgs {
        from: from.map(|from| full_name(&snapshot, &from)),
        snapshot,
        all,
        large_blocks: raw || parsed.has('L'),
        embedded: raw || parsed.has('e'),
        compressed: raw || parsed.has('c'),
        dry_run,
    };
    let mut client = Client::connect(&Runtime::from_env()?)?;
    if dry_run || parsed.has('v') {
        let request = SendArgs { dry_run: true, ..args.clone() };
        let Reply::SendSizes(sizes) = client.request(&Request::Send(Box::new(request)))? else {
            return Err(Error::invalid("the daemon answered something else"));
        };
        // Those of a dry run are the command's output.
        let text = estimates(&sizes, parsable);
        if dry_run && (parsed.has('v') || parsable) {
            ui::out(&text);
        } else if !dry_run {
            ui::err(text.trim_end());
        }
    }
    if dry_run {
        return Ok(Exit::OK);
    }
    stream(&mut client, &args, parsed.has('v').then_some(parsable))
}

/// The full name of a source, of which `@` and `#` alone mean the dataset that is sent.
fn full_name(snapshot: &str, from: &str) -> String {
    let fs = snapshot.split('@').next().unwrap_or(snapshot);
    match from.starts_with(['@', '#']) {
        true => format!("{fs}{from}"),
        // A name without either is a snapshot's.
        false if !from.contains(['@', '#', '/']) => format!("{fs}@{from}"),
        false => from.to_owned(),
    }
}

fn estimates(sizes: &[SendSize], parsable: bool) -> String {
    let mut out = String::new();
    for SendSize { snapshot, from, bytes } in sizes {
        let line = match (from, parsable) {
            (None, true) => format!("full\t{snapshot}\t{bytes}\n"),
            (Some(from), true) => {
                format!("incremental\t{}\t{snapshot}\t{bytes}\n", short(from, snapshot))
            }
            (None, false) => {
                format!("full send of {snapshot} estimated size is {}\n", nicebytes(*bytes))
            }
            (Some(from), false) => format!(
                "send from {} to {snapshot} estimated size is {}\n",
                short(from, snapshot),
                nicebytes(*bytes)
            ),
        };
        out.push_str(&line);
    }
    let sum: u64 = sizes.iter().map(|size| size.bytes).sum();
    match parsable {
        true => out.push_str(&format!("size\t{sum}\n")),
        false => out.push_str(&format!("total estimated size is {}\n", nicebytes(sum))),
    }
    out
}

/// A source without the name of the dataset, if it is that of the snapshot.
fn short<'a>(from: &'a str, snapshot: &str) -> &'a str {
    let fs = snapshot.split('@').next().unwrap_or(snapshot);
    from.strip_prefix(fs).filter(|rest| rest.starts_with(['@', '#'])).unwrap_or(from)
}

/// Writes the stream to standard output; `progress`: each second what was sent, for programs if
/// true.
fn stream(client: &mut Client, args: &SendArgs, progress: Option<bool>) -> Result<Exit> {
    let mut output = std::io::stdout().lock();
    let (mut sent, mut shown) = (0u64, rt::now());
    let name = args.snapshot.as_str();
    if progress == Some(false) {
        let fs = name.split('@').next().unwrap_or(name);
        ui::err(&format!("TIME        SENT   SNAPSHOT {fs}"));
    }
    client.request_stream(&Request::Send(Box::new(args.clone())), |bytes| {
        output.write_all(bytes).map_err(|e| Error::io("cannot write the stream", e))?;
        sent += bytes.len() as u64;
        if let Some(parsable) = progress
            && shown.elapsed() >= Duration::from_secs(1)
        {
            shown = rt::now();
            let now = time::strftime("%T", rt::wall_clock().as_secs());
            ui::err(&match parsable {
                true => format!("{now}\t{sent}\t{name}"),
                false => format!("{now}   {:>5}   {name}", nicebytes(sent)),
            });
        }
        Ok(())
    })?;
    output.flush().map_err(|e| Error::io("cannot write the stream", e))?;
    Ok(Exit::OK)
}
