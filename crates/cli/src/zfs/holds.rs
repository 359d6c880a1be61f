//! `zfs hold`, `release`, `holds` and `bookmark` (chapter 09 §3, §3.3).

use std::ffi::OsString;

use base::{Error, Result};
use proto::client::Client;
use proto::runtime::Runtime;
use proto::{BookmarkArgs, DatasetChange, HeldSnapshot, HoldArgs, RedactArgs, Reply, Request};
use ui::Exit;
use ui::table::{self, Column};

use super::{command_line, misuse, options, request_change, select};

/// The form of a hold's time.
const TIME: &str = "%a %b %e %k:%M %Y";

/// `zfs hold ...` and `zfs release ...`
pub(super) fn hold(called: &str, argv: &[OsString]) -> Result<Exit> {
    let parsed = match options(called, argv) {
        Ok(parsed) => parsed,
        Err(exit) => return Ok(exit),
    };
    let words = parsed.words();
    let (tag, snapshots) = match words.split_first() {
        None => return Ok(misuse(called, Some("missing tag argument"))),
        Some((_, [])) => return Ok(misuse(called, Some("missing snapshot argument"))),
        Some((tag, snapshots)) => (tag.clone(), snapshots.to_vec()),
    };
    let holding = called == "hold";
    if holding && tag.starts_with('.') {
        ui::err("tag may not start with '.'");
        return Ok(misuse(called, None));
    }
    for name in &snapshots {
        select::check_name(name).map_err(Error::invalid)?;
        if !name.contains('@') {
            ui::err(&format!("'{name}' is not a snapshot"));
            return Ok(Exit::FAILURE);
        }
    }
    let recursive = parsed.has('r');
    let args = HoldArgs { tag, snapshots, recursive, command: command_line(called, argv) };
    let change = if holding { DatasetChange::Hold(args) } else { DatasetChange::Release(args) };
    let (_, failed) = request_change(change)?;
    Ok(Exit::failed_if(failed))
}

/// `zfs holds ...`
pub(super) fn holds(argv: &[OsString]) -> Result<Exit> {
    let parsed = match options("holds", argv) {
        Ok(parsed) => parsed,
        Err(exit) => return Ok(exit),
    };
    let snapshots = parsed.words();
    if snapshots.is_empty() {
        return Ok(misuse("holds", None));
    }
    for name in &snapshots {
        select::check_name(name).map_err(Error::invalid)?;
        if !name.contains('@') {
            ui::err(&format!("'{name}' is not a snapshot"));
            return Ok(Exit::FAILURE);
        }
    }
    let Some(mut client) = Client::connect_for_query(&Runtime::from_env()?)? else {
        let name = snapshots.first().map_or("", String::as_str);
        let text = format!("cannot open '{name}': dataset does not exist");
        return Err(Error::not_found(text));
    };
    let request = Request::Holds { snapshots, recursive: parsed.has('r') };
    let Reply::Holds(held) = client.request(&request)? else {
        return Err(crate::zpool::unexpected_reply());
    };
    // Where a snapshot was not found, its message is the answer.
    if !client.failed || !held.is_empty() {
        ui::out(&render(&held, parsed.has('H'), parsed.has('p')));
    }
    Ok(Exit::failed_if(client.failed))
}

fn render(held: &[HeldSnapshot], scripted: bool, parsable: bool) -> String {
    let time = |seconds: u64| match parsable {
        true => seconds.to_string(),
        false => ui::time::strftime(TIME, seconds),
    };
    let rows: Vec<Vec<String>> = held
        .iter()
        .flat_map(|s| s.tags.iter().map(|(tag, t)| vec![s.name.clone(), tag.clone(), time(*t)]))
        .collect();
    let columns = ["NAME", "TAG", "TIMESTAMP"].map(Column::text);
    table::render(&columns, &rows, scripted)
}

/// The full names of a bookmark command's operands: `#mark` and `@snap` belong to the dataset
/// of the other one.
fn full_names(source: &str, name: &str) -> Result<(String, String)> {
    let fail = |why: String| Error::invalid(format!("cannot create bookmark '{name}': {why}"));
    if !source.contains(['@', '#']) {
        return Err(fail(format!("invalid source name '{source}': must contain a '@' or '#'")));
    }
    if !name.contains('#') {
        return Err(fail(format!("invalid bookmark name '{name}': must contain a '#'")));
    }
    let dataset = |name: &str| name.split(['@', '#']).next().unwrap_or_default().to_owned();
    let source = match source.starts_with(['@', '#']) {
        true => format!("{}{source}", dataset(name)),
        false => source.to_owned(),
    };
    let name = match name.starts_with('#') {
        true => format!("{}{name}", dataset(&source)),
        false => name.to_owned(),
    };
    Ok((source, name))
}

/// `zfs bookmark ...`
pub(super) fn bookmark(argv: &[OsString]) -> Result<Exit> {
    let parsed = match options("bookmark", argv) {
        Ok(parsed) => parsed,
        Err(exit) => return Ok(exit),
    };
    let words = parsed.words();
    let (source, name) = match words.as_slice() {
        [] => return Ok(misuse("bookmark", Some("missing source argument"))),
        [_] => return Ok(misuse("bookmark", Some("missing bookmark argument"))),
        [source, name] => full_names(source, name)?,
        _ => return Ok(misuse("bookmark", Some("too many arguments"))),
    };
    select::check_name(&source).map_err(Error::invalid)?;
    if let Err(message) = select::check_name(&name) {
        return Err(Error::invalid(message.replacen("cannot open", "cannot create bookmark", 1)));
    }
    let args = BookmarkArgs { source, name, command: command_line("bookmark", argv) };
    let (_, failed) = request_change(DatasetChange::Bookmark(args))?;
    Ok(Exit::failed_if(failed))
}

/// `zfs redact ...`
pub(super) fn redact(argv: &[OsString]) -> Result<Exit> {
    let parsed = match options("redact", argv) {
        Ok(parsed) => parsed,
        Err(exit) => return Ok(exit),
    };
    let words = parsed.words();
    let (snapshot, bookmark, redactions) = match words.as_slice() {
        [] => return Ok(misuse("redact", Some("missing snapshot argument"))),
        [_] => return Ok(misuse("redact", Some("missing bookmark argument"))),
        [_, _] => return Ok(misuse("redact", Some("missing redaction snapshot argument"))),
        [snapshot, bookmark, rest @ ..] => (snapshot.clone(), bookmark.clone(), rest.to_vec()),
    };
    if !snapshot.contains('@') {
        return Err(Error::invalid(format!("'{snapshot}' is not a snapshot")));
    }
    select::check_name(&snapshot).map_err(Error::invalid)?;
    let fs = snapshot.split('@').next().unwrap_or_default().to_owned();
    // Its dataset is that of the snapshot.
    let bookmark = bookmark.rsplit('#').next().unwrap_or_default().to_owned();
    let full = |name: &String| match name.starts_with('@') {
        true => format!("{fs}{name}"),
        false => name.clone(),
    };
    let redactions = redactions.iter().map(full).collect();
    let args = RedactArgs { snapshot, bookmark, redactions, command: command_line("redact", argv) };
    let (_, failed) = request_change(DatasetChange::Redact(args))?;
    Ok(Exit::failed_if(failed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_bookmarks() {
        let full = |a: &str, b: &str| full_names(a, b).map_err(|e| e.message().to_owned());
        let both = |a: &str, b: &str| Ok((a.to_owned(), b.to_owned()));
        assert_eq!(full("t/a@s", "t/a#b"), both("t/a@s", "t/a#b"));
        assert_eq!(full("t/a@s", "#b"), both("t/a@s", "t/a#b"));
        assert_eq!(full("@s", "t/a#b"), both("t/a@s", "t/a#b"));
        assert_eq!(full("#c", "t/a#b"), both("t/a#c", "t/a#b"));
        assert!(full("t/a", "t/a#b").unwrap_err().ends_with("must contain a '@' or '#'"));
        assert!(full("t/a@s", "t/b").unwrap_err().ends_with("must contain a '#'"));
    }

    #[test]
    fn holds_have_openzfs_form() {
        let held = [HeldSnapshot {
            name: "t/a@s".into(),
            tags: vec![("keep".into(), 1_700_000_000), ("x".into(), 1_700_000_060)],
        }];
        let text = render(&held, true, true);
        assert_eq!(text, "t/a@s\tkeep\t1700000000\nt/a@s\tx\t1700000060\n");
        let text = render(&held, false, true);
        assert_eq!(
            text,
            "NAME   TAG   TIMESTAMP\nt/a@s  keep  1700000000\nt/a@s  x     1700000060\n"
        );
        assert_eq!(render(&[], false, false), "NAME  TAG  TIMESTAMP\n");
        assert_eq!(render(&[], true, false), "");
    }
}
