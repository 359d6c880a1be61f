//! `zfs upgrade`: versions of file systems (chapter 09 §3).

use std::ffi::OsString;

use base::{Error, Result};
use proto::{Assign, DatasetChange, DatasetRow, DatasetType, ListArgs, PropertyValue, PropsArgs};
use ui::Exit;

use super::{command_line, misuse, options, request_change, select};

/// The newest version.
const CURRENT: u64 = 5;
/// The change of each version.
const VERSIONS: [&str; 5] = [
    "Initial ZFS filesystem version",
    "Enhanced directory entries",
    "Case insensitive and filesystem user identifier (FUID)",
    "userquota, groupquota properties",
    "System attributes",
];

fn supported() -> String {
    let mut out = format!(
        "The following filesystem versions are supported:\n\nVER  DESCRIPTION\n---  {}\n",
        "-".repeat(56)
    );
    for (version, text) in (1..).zip(VERSIONS) {
        out.push_str(&format!(" {version}   {text}\n"));
    }
    out.push_str(
        "\nFor more information on a particular version, including supported releases,\nsee the \
         ZFS Administration Guide.\n\n",
    );
    out
}

/// A row's version.
fn version(row: &DatasetRow) -> u64 {
    match row.prop("version").map(|v| &v.value) {
        Some(PropertyValue::Num(n)) => *n,
        _ => CURRENT,
    }
}

fn report(rows: &[DatasetRow]) -> String {
    let mut out = format!("This system is currently running ZFS filesystem version {CURRENT}.\n\n");
    let old: Vec<&DatasetRow> = rows.iter().filter(|row| version(row) < CURRENT).collect();
    if old.is_empty() {
        out.push_str("All filesystems are formatted with the current version.\n");
        return out;
    }
    out.push_str(
        "The following filesystems are out of date, and can be upgraded.  After being\nupgraded, \
         these filesystems (and any 'zfs send' streams generated from\nsubsequent snapshots) will \
         no longer be accessible by older software versions.\n\n\nVER  FILESYSTEM\n---  \
         ------------\n",
    );
    old.iter().for_each(|row| out.push_str(&format!("{:2}   {}\n", version(row), row.name)));
    out
}

/// `zfs upgrade ...`
pub(super) fn main(argv: &[OsString]) -> Result<Exit> {
    let parsed = match options("upgrade", argv) {
        Ok(parsed) => parsed,
        Err(exit) => return Ok(exit),
    };
    let words = parsed.words();
    let (all, below) = (parsed.has('a'), parsed.has('r'));
    let wanted = match parsed.last('V').as_deref() {
        None | Some("current") => CURRENT,
        Some(text) => match text.parse::<u64>() {
            Ok(n) if (1..=CURRENT).contains(&n) => n,
            _ => {
                let text = format!("invalid version '{text}'");
                return Ok(misuse("upgrade", Some(&text)));
            }
        },
    };
    let changes = all || !words.is_empty() || below || parsed.has('V');
    let wrong = match (parsed.has('v'), all, words.is_empty()) {
        (true, _, _) if changes => Some("invalid options combination"),
        (_, true, false) => Some("too many arguments"),
        (_, false, true) if changes => Some("missing filesystem argument"),
        _ => None,
    };
    if let Some(wrong) = wrong {
        return Ok(misuse("upgrade", Some(wrong)));
    }
    if parsed.has('v') {
        ui::out(&supported());
        return Ok(Exit::OK);
    }
    let args = ListArgs {
        depth: if below || words.is_empty() { None } else { Some(0) },
        roots: words,
        types: vec![DatasetType::Filesystem],
        props: Some(vec!["version".to_owned()]),
        named_any_kind: false,
    };
    let (rows, mut failed) = select::fetch(args)?;
    if !changes {
        ui::out(&report(&rows));
        return Ok(Exit::failed_if(failed));
    }
    let (mut upgraded, mut already) = (0, 0);
    let command = command_line("upgrade", argv);
    for row in &rows {
        let now = version(row);
        if now > wanted {
            let text = format!("can not be downgraded; it is already at version {now}");
            ui::err(&format!("{}: {text}", row.name));
            failed = true;
        } else if now == wanted {
            already += 1;
        } else {
            match set(&row.name, wanted, &command) {
                Ok(false) => upgraded += 1,
                Ok(true) => failed = true,
                Err(e) => {
                    ui::err(e.message());
                    failed = true;
                }
            }
        }
    }
    let mut out = format!("{upgraded} filesystems upgraded\n");
    if already > 0 {
        out.push_str(&format!("{already} filesystems already at this version\n"));
    }
    ui::out(&out);
    Ok(Exit::failed_if(failed))
}

/// Sets the version of one file system; whether that failed.
fn set(name: &str, version: u64, command: &str) -> std::result::Result<bool, Error> {
    let args = PropsArgs {
        names: vec![name.to_owned()],
        assign: Assign::Set(vec![("version".to_owned(), version.to_string())]),
        recursive: false,
        no_remount: false,
        command: command.to_owned(),
    };
    request_change(DatasetChange::Props(args)).map(|(_, failed)| failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::PropertyEntry;

    #[test]
    fn versions_are_listed() {
        let text = supported();
        assert!(text.contains("\n 1   Initial ZFS filesystem version\n"), "{text}");
        assert!(text.contains("\n 5   System attributes\n\nFor more"), "{text}");
        let row = |name: &str, version| DatasetRow {
            name: name.to_owned(),
            kind: DatasetType::Filesystem,
            createtxg: 1,
            props: vec![("version".to_owned(), PropertyEntry::fact(PropertyValue::Num(version)))],
        };
        let head = "This system is currently running ZFS filesystem version 5.\n\n";
        let none = "All filesystems are formatted with the current version.\n";
        assert_eq!(report(&[row("t", 5)]), format!("{head}{none}"));
        let text = report(&[row("t", 5), row("t/old", 4)]);
        assert!(text.starts_with(head), "{text}");
        assert!(text.ends_with("\nVER  FILESYSTEM\n---  ------------\n 4   t/old\n"), "{text}");
    }
}
