//! `zfs snapshot`, `zfs set` and `zfs inherit` (chapter 09 §3).

use std::ffi::OsString;

use base::{Error, Result};
use cenote::props::{Attr, dataset_prop, is_space_prop, is_user_prop};
use proto::{Assign, DatasetChange, PropsArgs, SnapshotArgs};
use ui::Exit;

use super::{command_line, misuse, options, property, request_change, select};

/// Complains about invalid names.
fn check_names(names: &[String], snapshots: bool) -> Result<()> {
    for name in names {
        let action = if snapshots { "cannot create snapshot" } else { "cannot open" };
        if snapshots && !name.contains('@') {
            let text = format!("{action} '{name}': missing '@' delimiter in snapshot name");
            return Err(Error::invalid(text));
        }
        select::check_name(name)
            .map_err(|why| Error::invalid(why.replacen("cannot open", action, 1)))?;
    }
    Ok(())
}

/// `zfs snapshot ...`
pub(super) fn snapshot(called: &str, argv: &[OsString]) -> Result<Exit> {
    let parsed = match options("snapshot", argv) {
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
    let names = parsed.words();
    if names.is_empty() {
        return Ok(misuse("snapshot", Some("missing snapshot argument")));
    }
    check_names(&names, true)?;
    let recursive = parsed.has('r');
    let args = SnapshotArgs { names, recursive, props, command: command_line(called, argv) };
    let (_, failed) = request_change(DatasetChange::Snapshot(args))?;
    Ok(Exit::failed_if(failed))
}

/// `zfs set ...`
pub(super) fn set(argv: &[OsString]) -> Result<Exit> {
    let parsed = match options("set", argv) {
        Ok(parsed) => parsed,
        Err(exit) => return Ok(exit),
    };
    let words = parsed.words();
    let count = words.iter().take_while(|w| w.contains('=')).count();
    let (assigned, names) = words.split_at(count);
    let wrong = match (words.is_empty(), assigned.is_empty(), names.is_empty()) {
        (true, ..) => Some("missing arguments"),
        (_, true, _) => Some("missing property=value argument(s)"),
        (_, _, true) => Some("missing dataset name(s)"),
        _ if names.iter().any(|n| n.contains('=')) => Some("invalid argument order"),
        _ => None,
    };
    if let Some(wrong) = wrong {
        return Ok(misuse("set", Some(wrong)));
    }
    let mut props = Vec::new();
    for text in assigned {
        if let Err(message) = property(&mut props, text) {
            return Ok(misuse("set", Some(&message)));
        }
    }
    check_names(names, false)?;
    let args = PropsArgs {
        names: names.to_vec(),
        assign: Assign::Set(props),
        recursive: false,
        no_remount: parsed.has('u'),
        command: command_line("set", argv),
    };
    let (_, failed) = request_change(DatasetChange::Props(args))?;
    Ok(Exit::failed_if(failed))
}

/// Whether a property can be inherited; else the message, and whether the usage follows.
fn check_inherit(name: &str, received: bool) -> std::result::Result<(), (String, bool)> {
    if is_user_prop(name) {
        return Ok(());
    }
    if is_space_prop(name) {
        return Err((format!("'{name}' property cannot be inherited"), false));
    }
    let Some(prop) = dataset_prop(name) else {
        return Err((format!("invalid property '{name}'"), true));
    };
    match prop.attr {
        Attr::ReadOnly | Attr::Once | Attr::OnceLocal => {
            Err((format!("{name} property is read-only"), false))
        }
        Attr::Settable if !received && !matches!(name, "quota" | "refquota" | "canmount") => {
            Err((format!("'{name}' property cannot be inherited"), false))
        }
        Attr::Settable if !received => {
            Err((format!("'{name}' property cannot be inherited\n{}", hint(name)), false))
        }
        Attr::Settable | Attr::Inherit => Ok(()),
    }
}

/// The hint at the end of the message.
fn hint(name: &str) -> String {
    match name {
        "canmount" => "use 'zfs set canmount=on' to clear".to_owned(),
        _ => format!("use 'zfs set {name}=none' to clear"),
    }
}

/// `zfs inherit ...`
pub(super) fn inherit(argv: &[OsString]) -> Result<Exit> {
    let parsed = match options("inherit", argv) {
        Ok(parsed) => parsed,
        Err(exit) => return Ok(exit),
    };
    let words = parsed.words();
    let Some((prop, names)) = words.split_first() else {
        return Ok(misuse("inherit", Some("missing property argument")));
    };
    if names.is_empty() {
        return Ok(misuse("inherit", Some("missing dataset argument")));
    }
    let received = parsed.has('S');
    if let Err((message, usage)) = check_inherit(prop, received) {
        if usage {
            return Ok(misuse("inherit", Some(&message)));
        }
        ui::err(&message);
        return Ok(Exit::FAILURE);
    }
    check_names(names, false)?;
    let assign = match received {
        true => Assign::Revert(prop.clone()),
        false => Assign::Inherit(prop.clone()),
    };
    let args = PropsArgs {
        names: names.to_vec(),
        assign,
        recursive: parsed.has('r'),
        no_remount: false,
        command: command_line("inherit", argv),
    };
    let (_, failed) = request_change(DatasetChange::Props(args))?;
    Ok(Exit::failed_if(failed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_inherited() {
        assert_eq!(check_inherit("compression", false), Ok(()));
        assert_eq!(check_inherit("com.example:x", false), Ok(()));
        assert_eq!(check_inherit("quota", true), Ok(()));
        assert_eq!(check_inherit("used", false).unwrap_err().0, "used property is read-only");
        assert!(check_inherit("quota", false).unwrap_err().0.contains("cannot be inherited"));
        assert!(check_inherit("nope", false).unwrap_err().1);
    }

    #[test]
    fn names_are_checked_before_anything_is_asked() {
        let names = |list: &[&str]| list.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
        assert!(check_names(&names(&["t@a", "t/b@c"]), true).is_ok());
        let e = check_names(&names(&["t"]), true).unwrap_err();
        assert_eq!(
            e.message(),
            "cannot create snapshot 't': missing '@' delimiter in snapshot name"
        );
        assert!(check_names(&names(&["t//b"]), false).is_err());
    }
}
