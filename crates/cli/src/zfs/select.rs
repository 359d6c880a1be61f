//! Selection of datasets: operands, types, depth; and the check of names (chapter 09 §1.2,
//! §3.1).

use base::Result;
use proto::client::Client;
use proto::runtime::Runtime;
use proto::{DatasetRow, DatasetType, ListArgs, Request};

/// The kinds in a `-t` list. An error is the message before the usage.
pub(super) fn types(list: &str) -> std::result::Result<Vec<DatasetType>, String> {
    let mut out = Vec::new();
    for word in list.split(',') {
        match word {
            "filesystem" | "fs" => out.push(DatasetType::Filesystem),
            "volume" | "vol" => out.push(DatasetType::Volume),
            "snapshot" | "snap" => out.push(DatasetType::Snapshot),
            "bookmark" => out.push(DatasetType::Bookmark),
            "all" => {
                out.extend([
                    DatasetType::Filesystem,
                    DatasetType::Volume,
                    DatasetType::Snapshot,
                    DatasetType::Bookmark,
                ]);
            }
            other => return Err(format!("invalid type '{other}'")),
        }
    }
    Ok(out)
}

/// The error in a dataset's name, in OpenZFS's words.
pub(super) fn check_name(name: &str) -> std::result::Result<(), String> {
    let wrong = |why: &str| Err(format!("cannot open '{name}': {why}"));
    if name.len() > 255 {
        return wrong("name is too long");
    }
    if name.starts_with('/') {
        return wrong("leading slash in name");
    }
    if name.ends_with('/') {
        return wrong("trailing slash in name");
    }
    if name.matches(['@', '#']).count() > 1 {
        return wrong("multiple '@' and/or '#' delimiters in name");
    }
    for part in name.split(['/', '@', '#']) {
        match part {
            "" => return wrong("empty component or misplaced '@' or '#' delimiter in name"),
            "." => return wrong("self reference, '.' is found in name"),
            ".." => return wrong("parent reference, '..' is found in name"),
            _ => {}
        }
    }
    let legal = |c: char| c.is_ascii_alphanumeric() || "-_.: /@#".contains(c);
    if let Some(c) = name.chars().find(|c| !legal(*c)) {
        return wrong(&format!("invalid character '{c}' in name"));
    }
    if !name.starts_with(|c: char| c.is_ascii_alphabetic()) {
        return wrong("pool doesn't begin with a letter");
    }
    Ok(())
}

/// The dataset that is mounted at a path or above it, by the daemon's table.
pub(super) fn by_path(client: &mut Client, path: &str) -> Result<Option<String>> {
    let Ok(real) = std::fs::canonicalize(path) else { return Ok(None) };
    let proto::Reply::Mounts(mounts) = client.request(&Request::Mounts)? else {
        return Err(crate::zpool::unexpected_reply());
    };
    let inside = mounts.into_iter().filter(|m| real.starts_with(&m.mountpoint));
    Ok(inside.max_by_key(|m| m.mountpoint.len()).map(|m| m.dataset))
}

/// Rows, sorted as in `zfs list`, and whether an operand failed.
pub(super) fn fetch(mut args: ListArgs) -> Result<(Vec<DatasetRow>, bool)> {
    let mut failed = false;
    let client = Client::connect_for_query(&Runtime::from_env()?)?;
    let named = !args.roots.is_empty();
    let mut roots = Vec::new();
    let mut client = client;
    for root in std::mem::take(&mut args.roots) {
        if root.starts_with('/') || root.starts_with("./") || root == "." {
            let found = match &mut client {
                Some(client) => by_path(client, &root)?,
                None => None,
            };
            match found {
                Some(name) => roots.push(name),
                None => {
                    ui::err(&format!("cannot open '{root}': not a ZFS filesystem"));
                    failed = true;
                }
            }
        } else if let Err(message) = check_name(&root) {
            ui::err(&message);
            failed = true;
        } else {
            roots.push(root);
        }
    }
    if named && roots.is_empty() {
        return Ok((Vec::new(), true));
    }
    let mut rows = Vec::new();
    match &mut client {
        Some(client) => {
            args.roots = roots;
            client.request_rows(&Request::Datasets(args), |row| rows.push(row))?;
            failed |= client.failed;
        }
        None => {
            for root in &roots {
                ui::err(&format!("cannot open '{root}': dataset does not exist"));
                failed = true;
            }
        }
    }
    rows.sort_by(|a, b| order(a).cmp(&order(b)));
    Ok((rows, failed))
}

/// Order by name, byte by byte: a dataset before its snapshots (by creation) and bookmarks, and
/// those before its children.
fn order(row: &DatasetRow) -> (&str, u8, u64, &str) {
    let cut = row.name.find(['@', '#']).unwrap_or(row.name.len());
    let (dataset, _) = row.name.split_at(cut);
    let (rank, txg) = match row.kind {
        DatasetType::Filesystem | DatasetType::Volume => (0, 0),
        DatasetType::Snapshot => (1, row.createtxg),
        DatasetType::Bookmark => (2, row.createtxg),
    };
    (dataset, rank, txg, &row.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_with_the_chapters_words() {
        let wrong = |n: &str| check_name(n).unwrap_err();
        for good in ["tank", "tank/a b", "tank/a-b_c.d:e@s", "p#m"] {
            assert_eq!(check_name(good), Ok(()));
        }
        for (name, why) in [
            ("/tank", "leading slash in name"),
            ("tank/", "trailing slash in name"),
            ("tank//a", "empty component or misplaced '@' or '#' delimiter in name"),
            ("tank@", "empty component or misplaced '@' or '#' delimiter in name"),
            ("a@b#c", "multiple '@' and/or '#' delimiters in name"),
            ("tank/./a", "self reference, '.' is found in name"),
            ("tank/..", "parent reference, '..' is found in name"),
            ("tank/a*", "invalid character '*' in name"),
            ("1tank", "pool doesn't begin with a letter"),
        ] {
            assert_eq!(wrong(name), format!("cannot open '{name}': {why}"));
        }
        assert!(wrong(&"a".repeat(256)).ends_with("name is too long"));
    }

    #[test]
    fn snapshots_follow_their_dataset_by_creation() {
        let row = |name: &str, kind, createtxg| DatasetRow {
            name: name.into(),
            kind,
            createtxg,
            props: vec![],
        };
        let mut rows = [
            row("p/a-b", DatasetType::Filesystem, 3),
            row("p/a/c", DatasetType::Filesystem, 4),
            row("p/a#m", DatasetType::Bookmark, 9),
            row("p/a@z", DatasetType::Snapshot, 5),
            row("p/a@y", DatasetType::Snapshot, 7),
            row("p/a", DatasetType::Filesystem, 2),
            row("p", DatasetType::Filesystem, 1),
        ];
        rows.sort_by(|a, b| order(a).cmp(&order(b)));
        let names: Vec<&str> = rows.iter().map(|r| r.name.as_str()).collect();
        assert_eq!(names, ["p", "p/a", "p/a@z", "p/a@y", "p/a#m", "p/a-b", "p/a/c"]);
    }

    #[test]
    fn type_lists() {
        assert_eq!(types("fs,snap"), Ok(vec![DatasetType::Filesystem, DatasetType::Snapshot]));
        assert_eq!(types("all").unwrap().len(), 4);
        assert_eq!(types("x"), Err("invalid type 'x'".into()));
    }
}
