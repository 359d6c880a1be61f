//! `zfs clone`, `promote`, `rollback` and `rename` (chapter 09 §3).

use std::ffi::OsString;

use base::{Error, Result};
use commands::getopt::Parsed;
use proto::{CloneArgs, DatasetChange, PromoteArgs, RenameArgs, RollbackArgs};
use ui::Exit;

use super::{command_line, misuse, options, property, request_change, select};

/// `zfs clone ...`
pub(super) fn clone(argv: &[OsString]) -> Result<Exit> {
    let parsed = match options("clone", argv) {
        Ok(parsed) => parsed,
        Err(exit) => return Ok(exit),
    };
    let mut props = Vec::new();
    for given in parsed.opts.iter().filter(|o| o.letter == 'o') {
        if let Err(message) = property(&mut props, &given.text()) {
            ui::err(&message);
            return Ok(Exit::FAILURE);
        }
    }
    let words = parsed.words();
    let (snapshot, name) = match words.as_slice() {
        [] => return Ok(misuse("clone", Some("missing source dataset argument"))),
        [_] => return Ok(misuse("clone", Some("missing target dataset argument"))),
        [snapshot, name] => (snapshot.clone(), name.clone()),
        _ => return Ok(misuse("clone", Some("too many arguments"))),
    };
    select::check_name(&snapshot).map_err(Error::invalid)?;
    if !snapshot.contains('@') {
        let text = format!("cannot open '{snapshot}': missing '@' delimiter in snapshot name");
        return Err(Error::invalid(text));
    }
    if let Err(message) = select::check_name(&name) {
        return Err(Error::invalid(message.replacen("cannot open", "cannot create", 1)));
    }
    let args = CloneArgs {
        snapshot,
        name,
        parents: parsed.has('p'),
        no_mount: parsed.has('u'),
        props,
        command: command_line("clone", argv),
    };
    let (_, failed) = request_change(DatasetChange::Clone(args))?;
    Ok(Exit::failed_if(failed))
}

/// `zfs promote ...`
pub(super) fn promote(argv: &[OsString]) -> Result<Exit> {
    let parsed = match options("promote", argv) {
        Ok(parsed) => parsed,
        Err(exit) => return Ok(exit),
    };
    let words = parsed.words();
    let name = match words.as_slice() {
        [] => return Ok(misuse("promote", Some("missing clone filesystem argument"))),
        [name] => name.clone(),
        _ => return Ok(misuse("promote", Some("too many arguments"))),
    };
    select::check_name(&name).map_err(Error::invalid)?;
    let args = PromoteArgs { name, command: command_line("promote", argv) };
    let (_, failed) = request_change(DatasetChange::Promote(args))?;
    Ok(Exit::failed_if(failed))
}

/// `zfs rollback ...`
pub(super) fn rollback(argv: &[OsString]) -> Result<Exit> {
    let parsed = match options("rollback", argv) {
        Ok(parsed) => parsed,
        Err(exit) => return Ok(exit),
    };
    let words = parsed.words();
    let snapshot = match words.as_slice() {
        [] => return Ok(misuse("rollback", Some("missing dataset argument"))),
        [snapshot] => snapshot.clone(),
        _ => return Ok(misuse("rollback", Some("too many arguments"))),
    };
    select::check_name(&snapshot).map_err(Error::invalid)?;
    if !snapshot.contains('@') {
        let text = format!("cannot open '{snapshot}': missing '@' delimiter in snapshot name");
        return Err(Error::invalid(text));
    }
    let args = RollbackArgs {
        snapshot,
        recursive: parsed.has('r'),
        clones: parsed.has('R'),
        force: parsed.has('f'),
        command: command_line("rollback", argv),
    };
    let (_, failed) = request_change(DatasetChange::Rollback(args))?;
    Ok(Exit::failed_if(failed))
}

/// The request of `zfs rename`, or the message before the usage.
fn rename_args(parsed: &Parsed) -> std::result::Result<RenameArgs, String> {
    let has = |flag| parsed.has(flag);
    for (a, b) in [('p', 'r'), ('u', 'p'), ('u', 'r')] {
        if has(a) && has(b) {
            return Err(format!("-{a} and -{b} options are mutually exclusive"));
        }
    }
    let words = parsed.words();
    let (from, to) = match words.as_slice() {
        [] => return Err("missing source dataset argument".to_owned()),
        [_] => return Err("missing target dataset argument".to_owned()),
        [from, to] => (from.clone(), to.clone()),
        _ => return Err("too many arguments".to_owned()),
    };
    let snapshot = from.split_once('@');
    if has('r') && snapshot.is_none() {
        return Err("source dataset for recursive rename must be a snapshot".to_owned());
    }
    // The new name of a snapshot may be its last part alone.
    let to = match snapshot {
        Some((fs, _)) if to.starts_with('@') => format!("{fs}{to}"),
        Some((fs, _)) if !to.contains(['@', '/']) => format!("{fs}@{to}"),
        _ => to,
    };
    Ok(RenameArgs {
        from,
        to,
        parents: has('p'),
        no_remount: has('u'),
        recursive: has('r'),
        force: has('f'),
        command: String::new(),
    })
}

/// `zfs rename ...`
pub(super) fn rename(argv: &[OsString]) -> Result<Exit> {
    let parsed = match options("rename", argv) {
        Ok(parsed) => parsed,
        Err(exit) => return Ok(exit),
    };
    let mut args = match rename_args(&parsed) {
        Ok(args) => args,
        Err(message) => return Ok(misuse("rename", Some(&message))),
    };
    select::check_name(&args.from).map_err(Error::invalid)?;
    if let Err(message) = select::check_name(&args.to) {
        return Err(Error::invalid(message.replacen("cannot open", "cannot rename to", 1)));
    }
    args.command = command_line("rename", argv);
    let (_, failed) = request_change(DatasetChange::Rename(args))?;
    Ok(Exit::failed_if(failed))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> std::result::Result<RenameArgs, String> {
        let argv: Vec<OsString> = words.iter().map(OsString::from).collect();
        rename_args(&commands::find("zfs", "rename").parse(&argv).unwrap())
    }

    #[test]
    fn renames() {
        let to = |words: &[&str]| parse(words).map(|args| args.to);
        assert_eq!(to(&["t/a", "t/b"]), Ok("t/b".into()));
        assert_eq!(to(&["t/a@s", "@n"]), Ok("t/a@n".into()));
        assert_eq!(to(&["-r", "t/a@s", "n"]), Ok("t/a@n".into()));
        assert_eq!(to(&["t/a@s", "t/a@n"]), Ok("t/a@n".into()));
        assert!(to(&["-r", "t/a", "t/b"]).unwrap_err().contains("must be a snapshot"));
        assert!(to(&["-pr", "t/a@s", "n"]).unwrap_err().contains("mutually exclusive"));
        assert_eq!(to(&["t/a"]).unwrap_err(), "missing target dataset argument");
        let args = parse(&["-uf", "t/a", "t/b"]).unwrap();
        assert!(args.no_remount && args.force && !args.parents);
    }
}
