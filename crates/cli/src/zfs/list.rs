//! `zfs list` (chapter 09 §3.1).

use std::cmp::Ordering;
use std::ffi::OsString;

use base::Result;
use cenote::props::{
    PropData, dataset_column, dataset_prop, format_local_date, is_space_prop, is_user_prop,
    is_written_prop, nicebytes, nicenum,
};
use proto::{DatasetRow, DatasetType, ListArgs, PropertyEntry, PropertyValue};
use ui::table::{self, Column};
use ui::{Exit, time};

use super::{json, misuse, options, select};

const DEFAULT: &str = "name,used,available,referenced,mountpoint";
const SPACE: &str =
    "name,available,used,usedbysnapshots,usedbydataset,usedbyrefreservation,usedbychildren";

/// `zfs list ...`
pub(super) fn main(argv: &[OsString]) -> Result<Exit> {
    let parsed = match options("list", argv) {
        Ok(parsed) => parsed,
        Err(exit) => return Ok(exit),
    };
    let roots = parsed.words();
    let kinds = match parsed.last('t').map(|t| select::types(&t)).transpose() {
        Ok(kinds) => kinds,
        Err(message) => return Ok(misuse("list", Some(&message))),
    };
    let only =
        |k| kinds.as_deref().is_some_and(|list| !list.is_empty() && list.iter().all(|x| *x == k));
    let depth = match parsed.last('d').map(|d| d.parse::<u32>()) {
        Some(Ok(depth)) => Some(depth),
        Some(Err(_)) => return Ok(misuse("list", Some("depth must be a non-negative integer"))),
        None if parsed.has('r') || roots.is_empty() => None,
        None if only(DatasetType::Snapshot) || only(DatasetType::Bookmark) => Some(1),
        None => Some(0),
    };
    if parsed.has('J') && !parsed.has('j') {
        return Ok(misuse("list", Some("'--json-int' only works with '-j'")));
    }
    let parsable = parsed.has('p');
    let list = parsed.last('o').unwrap_or_else(|| DEFAULT.to_owned());
    let columns = match columns(&list, parsable) {
        Ok(columns) => columns,
        Err(message) => return Ok(misuse("list", Some(&message))),
    };
    let keys: Vec<(String, bool)> = parsed
        .opts
        .iter()
        .filter(|o| "sS".contains(o.letter))
        .map(|o| (o.text(), o.letter == 'S'))
        .collect();
    let keys = match sort_keys(&keys) {
        Ok(keys) => keys,
        Err(message) => return Ok(misuse("list", Some(&message))),
    };
    let mut props: Vec<String> = columns.iter().map(|c| c.0.clone()).collect();
    props.extend(keys.iter().map(|k| k.0.clone()));
    props.sort();
    props.dedup();
    let named_any_kind = kinds.is_none() && !roots.is_empty();
    let types = kinds.unwrap_or_else(|| vec![DatasetType::Filesystem, DatasetType::Volume]);
    let args = ListArgs { roots, depth, types, props: Some(props), named_any_kind };
    let (mut rows, failed) = select::fetch(args)?;
    rows.sort_by(|a, b| compare(a, b, &keys));
    if parsed.has('j') {
        let numbers = json::Numbers { exact: parsable, ints: parsed.has('J') };
        let shown = |row: &DatasetRow| {
            columns.iter().map(|(name, _)| (name.clone(), row.prop(name).cloned())).collect()
        };
        ui::out(&json::output("zfs list", &rows, numbers, shown));
        return Ok(Exit::failed_if(failed));
    }
    if rows.is_empty() {
        if !parsed.has('H') && !failed {
            ui::err("no datasets available");
        }
        return Ok(Exit::failed_if(failed));
    }
    ui::out(&render(&rows, &columns, parsed.has('H'), parsable));
    Ok(Exit::failed_if(failed))
}

/// The canonical name of a column, or OpenZFS's complaint.
pub(super) fn canonical(word: &str) -> std::result::Result<String, String> {
    if let Some(prop) = dataset_column(word) {
        return Ok(prop.name.to_owned());
    }
    if is_user_prop(word) || is_space_prop(word) || is_written_prop(word) {
        return Ok(word.to_owned());
    }
    Err(format!("bad property list: invalid property '{word}'"))
}

fn columns(list: &str, parsable: bool) -> std::result::Result<Vec<(String, Column)>, String> {
    let mut out = Vec::new();
    for word in list.split(',') {
        let names: Vec<String> = match word {
            "space" => SPACE.split(',').map(str::to_owned).collect(),
            "all" => {
                let all = cenote::props::dataset_props().iter().filter(|p| p.visible);
                std::iter::once("name").chain(all.map(|p| p.name)).map(str::to_owned).collect()
            }
            word => vec![canonical(word)?],
        };
        for name in names {
            let column = match dataset_prop(&name) {
                Some(prop) => Column::of(prop, parsable),
                None if is_user_prop(&name) => Column::text(name.to_uppercase()),
                None => Column { right: true, min: 5, ..Column::text(name.to_uppercase()) },
            };
            out.push((name, column));
        }
    }
    Ok(out)
}

/// The text of a dataset's property.
pub(super) fn text(name: &str, value: Option<&PropertyEntry>, parsable: bool) -> String {
    let data = value.map_or(PropData::None, |v| (&v.value).into());
    if let Some(prop) = dataset_prop(name) {
        return format_local_date(prop, &data, parsable, time::strftime);
    }
    match data {
        PropData::Str(s) if !s.is_empty() => s,
        PropData::Num(n) if parsable => n.to_string(),
        PropData::Num(0) if name.contains("quota@") => "none".to_owned(),
        PropData::Num(n) if name.contains("obj") => nicenum(n),
        PropData::Num(n) => nicebytes(n),
        _ => "-".to_owned(),
    }
}

fn render(
    rows: &[DatasetRow],
    columns: &[(String, Column)],
    scripted: bool,
    parsable: bool,
) -> String {
    let cell = |row: &DatasetRow, name: &str| match name {
        "name" => row.name.clone(),
        name => text(name, row.prop(name), parsable),
    };
    let cells: Vec<Vec<String>> =
        rows.iter().map(|r| columns.iter().map(|c| cell(r, &c.0)).collect()).collect();
    let columns: Vec<Column> = columns.iter().map(|c| c.1.clone()).collect();
    table::render(&columns, &cells, scripted)
}

type Key = (String, bool);

fn sort_keys(given: &[(String, bool)]) -> std::result::Result<Vec<Key>, String> {
    given
        .iter()
        .map(|(word, down)| match canonical(word) {
            Ok(name) => Ok((name, *down)),
            Err(_) => Err(format!("invalid property '{word}'")),
        })
        .collect()
}

/// Order by the keys; a row without a value is last. Equal rows keep the default order.
fn compare(a: &DatasetRow, b: &DatasetRow, keys: &[Key]) -> Ordering {
    for (name, down) in keys {
        let by = |o: Ordering| if *down { o.reverse() } else { o };
        if name == "name" {
            match by(a.name.cmp(&b.name)) {
                Ordering::Equal => continue,
                other => return other,
            }
        }
        let get = |r: &DatasetRow| {
            r.prop(name).map(|v| v.value.clone()).filter(|d| *d != PropertyValue::None)
        };
        let ord = match (get(a), get(b)) {
            (None, None) => Ordering::Equal,
            (Some(_), None) => return Ordering::Less,
            (None, Some(_)) => return Ordering::Greater,
            (Some(PropertyValue::Num(x)), Some(PropertyValue::Num(y))) => by(x.cmp(&y)),
            (Some(PropertyValue::Str(x)), Some(PropertyValue::Str(y))) => by(x.cmp(&y)),
            (Some(_), Some(_)) => Ordering::Equal,
        };
        if ord != Ordering::Equal {
            return ord;
        }
    }
    Ordering::Equal
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use cenote::props::Unit;
    use proto::Origin;

    /// Rows from a golden `zfs get -Hp all`, with raw values parsed from the texts.
    pub(crate) fn golden_rows(props: &str) -> Vec<DatasetRow> {
        let mut rows: Vec<DatasetRow> = Vec::new();
        for line in props.lines() {
            let f: Vec<&str> = line.split('\t').collect();
            if rows.last().is_none_or(|r| r.name != f[0]) {
                let kind = match f[2] {
                    "volume" => DatasetType::Volume,
                    "snapshot" => DatasetType::Snapshot,
                    "bookmark" => DatasetType::Bookmark,
                    _ => DatasetType::Filesystem,
                };
                rows.push(DatasetRow { name: f[0].into(), kind, createtxg: 0, props: vec![] });
            }
            let row = rows.last_mut().unwrap();
            let value = match dataset_prop(f[1]) {
                None => PropertyValue::Str(f[2].into()),
                Some(p) => match p.unit {
                    Unit::Text => PropertyValue::Str(f[2].into()),
                    Unit::Words => PropertyValue::Num(p.index(f[2]).unwrap()),
                    Unit::Ratio => PropertyValue::Num(f[2].replace('.', "").parse().unwrap()),
                    Unit::Limit if f[2] == "none" => PropertyValue::Num(u64::MAX),
                    _ => PropertyValue::Num(f[2].parse().unwrap()),
                },
            };
            if f[1] == "createtxg" {
                row.createtxg = f[2].parse().unwrap();
            }
            let source = match f[3] {
                "default" => Origin::Default,
                "local" => Origin::Local,
                "received" => Origin::Received,
                "-" => Origin::None,
                s => Origin::Inherited(s.strip_prefix("inherited from ").unwrap().into()),
            };
            row.props.push((f[1].into(), PropertyEntry { value, source, received: None }));
        }
        rows
    }

    const COLUMNS: &str =
        "name,used,refer,lused,ratio,type,origin,recsize,compress,checksum,encryption";

    /// What the kernel module printed for the golden pools, from their properties.
    #[test]
    fn golden_tables() {
        for (props, list) in [
            (
                include_str!("../../tests/fixtures/snaps.props.txt"),
                include_str!("../../tests/fixtures/snaps.list.txt"),
            ),
            (
                include_str!("../../tests/fixtures/zvol.props.txt"),
                include_str!("../../tests/fixtures/zvol.list.txt"),
            ),
            (
                include_str!("../../tests/fixtures/crypt.props.txt"),
                include_str!("../../tests/fixtures/crypt.list.txt"),
            ),
        ] {
            let rows = golden_rows(props);
            assert_eq!(render(&rows, &columns(COLUMNS, false).unwrap(), false, false), list);
        }
    }

    #[test]
    fn scripts_get_tabs_and_exact_numbers() {
        let rows = golden_rows(include_str!("../../tests/fixtures/zvol.props.txt"));
        let text =
            render(&rows[..1], &columns("name,used,origin,quota", true).unwrap(), true, true);
        assert_eq!(text, "zvol\t73610752\t-\t0\n");
        let text = render(&rows[..1], &columns("space", false).unwrap(), false, false);
        assert!(
            text.starts_with("NAME  AVAIL   USED  USEDSNAP  USEDDS  USEDREFRESERV  USEDCHILD\n"),
            "{text}"
        );
    }

    #[test]
    fn sorting_puts_what_lacks_the_property_last() {
        let mut rows = golden_rows(include_str!("../../tests/fixtures/zvol.props.txt"));
        let mut by = |keys: &[(&str, bool)]| {
            let keys: Vec<Key> = keys.iter().map(|(k, d)| ((*k).to_owned(), *d)).collect();
            rows.sort_by(|a, b| compare(a, b, &keys));
            rows.iter().map(|r| r.name.clone()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(by(&[("volsize", true)]), "zvol/sparse zvol/v8 zvol");
        assert_eq!(by(&[("used", false)]), "zvol/sparse zvol/v8 zvol");
        assert_eq!(by(&[("name", true)]), "zvol/v8 zvol/sparse zvol");
        assert_eq!(
            columns("name,foo", false).unwrap_err(),
            "bad property list: invalid property 'foo'"
        );
    }
}
