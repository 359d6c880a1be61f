//! `zfs destroy` (chapter 09 §3).

use std::ffi::OsString;

use base::{Error, Result};
use cenote::props::nicebytes;
use proto::{DatasetChange, DestroyArgs, Reply};
use ui::Exit;

use super::{command_line, misuse, options, request_change, select};

/// `zfs destroy ...`
pub(super) fn main(argv: &[OsString]) -> Result<Exit> {
    let parsed = match options("destroy", argv) {
        Ok(parsed) => parsed,
        Err(exit) => return Ok(exit),
    };
    let words = parsed.words();
    let target = match words.as_slice() {
        [] => return Ok(misuse("destroy", Some("missing dataset argument"))),
        [target] => target.clone(),
        _ => return Ok(misuse("destroy", Some("too many arguments"))),
    };
    if let Err(message) = check_target(&target) {
        return Err(Error::invalid(message));
    }
    let args = DestroyArgs {
        target: target.clone(),
        recursive: parsed.has('r'),
        clones: parsed.has('R'),
        defer: parsed.has('d'),
        force: parsed.has('f'),
        dry_run: parsed.has('n'),
        sizes: parsed.has('v') || parsed.has('p'),
        command: command_line("destroy", argv),
    };
    let (reply, failed) = match request_change(DatasetChange::Destroy(args)) {
        // Every failure was reported already.
        Ok((Reply::Done, _)) => return Ok(Exit::FAILURE),
        other => other?,
    };
    let Reply::Destroyed(names, reclaim) = reply else {
        return Err(crate::zpool::unexpected_reply());
    };
    let parsable = parsed.has('p');
    if parsed.has('v') || parsable {
        let reclaim = target.contains('@').then_some(reclaim);
        ui::out(&report(&names, reclaim, parsed.has('n'), parsable));
    }
    Ok(Exit::failed_if(failed))
}

/// The error in an operand; the list of snapshots has a grammar of its own.
fn check_target(target: &str) -> std::result::Result<(), String> {
    let Some((fs, list)) = target.split_once('@') else { return select::check_name(target) };
    select::check_name(fs)?;
    for part in list.split([',', '%']).filter(|p| !p.is_empty()) {
        select::check_name(&format!("{fs}@{part}"))?;
    }
    if list.split(',').any(str::is_empty) {
        let why = "empty component or misplaced '@' or '#' delimiter in name";
        return Err(format!("cannot open '{target}': {why}"));
    }
    Ok(())
}

fn report(names: &[String], reclaim: Option<u64>, dry_run: bool, parsable: bool) -> String {
    let mut out = String::new();
    let verb = if dry_run { "would" } else { "will" };
    for name in names {
        match parsable {
            true => out.push_str(&format!("destroy\t{name}\n")),
            false => out.push_str(&format!("{verb} destroy {name}\n")),
        }
    }
    match (reclaim, parsable) {
        (None, _) => {}
        (Some(bytes), true) => out.push_str(&format!("reclaim\t{bytes}\n")),
        (Some(bytes), false) => out.push_str(&format!("{verb} reclaim {}\n", nicebytes(bytes))),
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_have_a_grammar() {
        for good in ["tank/a", "tank/a@b", "tank/a@b,c%d,%e", "tank/a@%", "tank@b%"] {
            assert_eq!(check_target(good), Ok(()), "{good}");
        }
        for bad in ["tank/a@", "tank/a@b,,c", "/tank", "tank/a@b@c"] {
            assert!(check_target(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_report_has_openzfs_format() {
        let names = ["t@a".to_owned(), "t@b".to_owned()];
        assert_eq!(
            report(&names, Some(1 << 20), true, false),
            "would destroy t@a\nwould destroy t@b\nwould reclaim 1M\n"
        );
        assert_eq!(report(&names[..1], Some(5), false, true), "destroy\tt@a\nreclaim\t5\n");
        assert_eq!(report(&names[..1], None, false, false), "will destroy t@a\n");
    }
}
