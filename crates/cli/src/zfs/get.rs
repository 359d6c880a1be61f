//! `zfs get` (chapter 09 §3.2).

use std::ffi::OsString;

use base::Result;
use cenote::props::dataset_prop;
use proto::{DatasetRow, DatasetType, ListArgs, Origin, PropertyEntry, PropertyValue};
use ui::Exit;
use ui::table::{self, Column};

use super::list::{canonical, text};
use super::{json, misuse, options, select};

const FIELDS: [&str; 5] = ["name", "property", "value", "received", "source"];
const SOURCES: [&str; 6] = ["local", "default", "inherited", "received", "temporary", "none"];

struct GetOptions {
    /// `None`: all.
    props: Option<Vec<String>>,
    fields: Vec<usize>,
    /// Empty: all.
    sources: Vec<usize>,
    parsable: bool,
}

/// `zfs get ...`
pub(super) fn main(argv: &[OsString]) -> Result<Exit> {
    let parsed = match options("get", argv) {
        Ok(parsed) => parsed,
        Err(exit) => return Ok(exit),
    };
    if parsed.has('J') && !parsed.has('j') {
        return Ok(misuse("get", Some("'--json-int' only works with '-j'")));
    }
    let words = parsed.words();
    let Some((list, roots)) = words.split_first() else {
        return Ok(misuse("get", Some("missing property argument")));
    };
    let opts = parse_options(
        list,
        parsed.last('o').as_deref(),
        parsed.last('s').as_deref(),
        parsed.has('p'),
    );
    let opts = match opts {
        Ok(opts) => opts,
        Err(message) => return Ok(misuse("get", Some(&message))),
    };
    let kinds = match parsed.last('t').map(|t| select::types(&t)).transpose() {
        Ok(kinds) => kinds,
        Err(message) => return Ok(misuse("get", Some(&message))),
    };
    let depth = match parsed.last('d').map(|d| d.parse::<u32>()) {
        Some(Ok(depth)) => Some(depth),
        Some(Err(_)) => return Ok(misuse("get", Some("depth must be a non-negative integer"))),
        None if parsed.has('r') || roots.is_empty() => None,
        None => Some(0),
    };
    let datasets = || vec![DatasetType::Filesystem, DatasetType::Volume];
    let all = || {
        vec![
            DatasetType::Filesystem,
            DatasetType::Volume,
            DatasetType::Snapshot,
            DatasetType::Bookmark,
        ]
    };
    let types = kinds.unwrap_or_else(|| if roots.is_empty() { datasets() } else { all() });
    let args = ListArgs {
        roots: roots.to_vec(),
        depth,
        types,
        props: opts.props.clone(),
        named_any_kind: false,
    };
    let (mut rows, failed) = select::fetch(args)?;
    if depth == Some(0) {
        // Without -r the order of the operands is kept.
        let place = |r: &DatasetRow| roots.iter().position(|n| *n == r.name);
        rows.sort_by_key(place);
    }
    if parsed.has('j') {
        let numbers = json::Numbers { exact: opts.parsable, ints: parsed.has('J') };
        ui::out(&json::output("zfs get", &rows, numbers, |row| wanted(row, &opts)));
        return Ok(Exit::failed_if(failed));
    }
    ui::out(&render(&rows, &opts, parsed.has('H')));
    Ok(Exit::failed_if(failed))
}

fn parse_options(
    list: &str,
    fields: Option<&str>,
    sources: Option<&str>,
    parsable: bool,
) -> std::result::Result<GetOptions, String> {
    let props = match list {
        "all" => None,
        list => Some(list.split(',').map(canonical).collect::<std::result::Result<_, _>>()?),
    };
    let position = |table: &[&str], word: &str, what: &str| {
        table.iter().position(|f| *f == word).ok_or_else(|| format!("invalid {what} '{word}'"))
    };
    let fields = match fields {
        None => vec![0, 1, 2, 4],
        Some("all") => (0..FIELDS.len()).collect(),
        Some(list) => list
            .split(',')
            .map(|w| position(&FIELDS, w, "column name"))
            .collect::<std::result::Result<_, _>>()?,
    };
    let sources = match sources {
        None => Vec::new(),
        Some(list) => list
            .split(',')
            .map(|w| position(&SOURCES, w, "source"))
            .collect::<std::result::Result<_, _>>()?,
    };
    Ok(GetOptions { props, fields, sources, parsable })
}

fn source(value: Option<&PropertyEntry>) -> (usize, String) {
    match value.map(|v| &v.source) {
        None | Some(Origin::None) => (5, "-".to_owned()),
        Some(Origin::Default) => (1, "default".to_owned()),
        Some(Origin::Local) => (0, "local".to_owned()),
        Some(Origin::Temporary) => (4, "temporary".to_owned()),
        Some(Origin::Inherited(from)) => (2, format!("inherited from {from}")),
        Some(Origin::Received) => (3, "received".to_owned()),
    }
}

/// The properties of a row that are shown.
fn wanted(row: &DatasetRow, opts: &GetOptions) -> Vec<json::Shown> {
    let all: Vec<json::Shown> = match &opts.props {
        None => row.props.iter().map(|(n, v)| (n.clone(), Some(v.clone()))).collect(),
        Some(names) => names.iter().map(|n| (n.clone(), row.prop(n).cloned())).collect(),
    };
    let from = |shown: &json::Shown| {
        opts.sources.is_empty() || opts.sources.contains(&source(shown.1.as_ref()).0)
    };
    all.into_iter().filter(from).collect()
}

fn render(rows: &[DatasetRow], opts: &GetOptions, scripted: bool) -> String {
    let mut lines: Vec<Vec<String>> = Vec::new();
    let mut width = 0;
    let name_value = |row: &DatasetRow| PropertyEntry::fact(PropertyValue::Str(row.name.clone()));
    for row in rows {
        let mut add = |name: &str, value: Option<&PropertyEntry>| {
            let (kind, source) = source(value);
            if !opts.sources.is_empty() && !opts.sources.contains(&kind) {
                return;
            }
            width = width.max(dataset_prop(name).map_or(0, cenote::props::Prop::min_width));
            let received = value.and_then(|v| v.received.clone());
            let received =
                received.map(|r| text(name, Some(&PropertyEntry::fact(r)), opts.parsable));
            let all = [
                row.name.clone(),
                name.to_owned(),
                text(name, value, opts.parsable),
                received.unwrap_or_else(|| "-".to_owned()),
                source,
            ];
            lines.push(opts.fields.iter().filter_map(|&f| all.get(f).cloned()).collect());
        };
        match &opts.props {
            None => row.props.iter().for_each(|(n, v)| add(n, Some(v))),
            Some(names) => names.iter().for_each(|n| match n.as_str() {
                "name" => add(n, Some(&name_value(row))),
                n => add(n, row.prop(n)),
            }),
        }
    }
    if lines.is_empty() {
        return String::new();
    }
    let column = |&f: &usize| {
        let header = FIELDS.get(f).copied().unwrap_or_default().to_uppercase();
        let min = if f == 2 { width } else { 0 };
        Column { min, ..Column::text(header) }
    };
    let columns: Vec<Column> = opts.fields.iter().map(column).collect();
    table::render(&columns, &lines, scripted)
}

#[cfg(test)]
mod tests {
    use super::super::list::tests::golden_rows;
    use super::*;

    const SNAPS: &str = include_str!("../../tests/fixtures/snaps.props.txt");
    const ZVOL: &str = include_str!("../../tests/fixtures/zvol.props.txt");
    const CRYPT: &str = include_str!("../../tests/fixtures/crypt.props.txt");

    /// The texts survive the conversion to raw values and back, byte for byte.
    #[test]
    fn golden_get_all() {
        for golden in [SNAPS, ZVOL, CRYPT] {
            let opts = parse_options("all", None, None, true).unwrap();
            assert_eq!(render(&golden_rows(golden), &opts, true), golden);
        }
    }

    #[test]
    fn tables_sources_and_what_does_not_apply() {
        let rows = golden_rows(SNAPS);
        let show = |list: &str, fields, sources| {
            render(&rows[..2], &parse_options(list, fields, sources, false).unwrap(), false)
        };
        assert_eq!(
            show("compression,quota", None, None),
            "NAME       PROPERTY     VALUE           SOURCE\n\
             snaps      compression  on              default\n\
             snaps      quota        none            default\n\
             snaps@all  compression  -               -\n\
             snaps@all  quota        -               -\n"
        );
        let tag = show("com.example:tag", Some("name,value,source"), Some("local,inherited"));
        assert_eq!(tag.lines().count(), 3, "{tag}");
        assert!(tag.contains("snaps@all  hello  inherited from snaps\n"));
        assert_eq!(show("name", Some("value"), None), "VALUE\nsnaps\nsnaps@all\n");
    }

    #[test]
    fn bad_lists_are_named() {
        let message = |l: &str, f, s| parse_options(l, f, s, false).err().unwrap();
        assert_eq!(message("foo", None, None), "bad property list: invalid property 'foo'");
        assert_eq!(message("all", Some("x"), None), "invalid column name 'x'");
        assert_eq!(message("all", None, Some("x")), "invalid source 'x'");
    }
}
