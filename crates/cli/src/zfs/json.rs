//! JSON of `zfs list` and `zfs get` (chapter 09 §1.6).

use cenote::props::{PropKind, dataset_prop};
use proto::{DatasetRow, DatasetType, Origin, PropertyEntry, PropertyValue};
use ui::json::Json;

use super::list::text;

/// How numbers are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Numbers {
    /// `-p`: exact.
    pub(super) exact: bool,
    /// `--json-int`: not as strings.
    pub(super) ints: bool,
}

/// A property of a row, and its value if it applies.
pub(super) type Shown = (String, Option<PropertyEntry>);

/// The whole output of a command; `shown` gives the properties of a row.
pub(super) fn output(
    command: &str,
    rows: &[DatasetRow],
    numbers: Numbers,
    shown: impl Fn(&DatasetRow) -> Vec<Shown>,
) -> String {
    let one = |row: &DatasetRow| (row.name.clone(), dataset(row, shown(row), numbers));
    let datasets = Json::object(rows.iter().map(one));
    format!("{}\n", Json::output(command, [("datasets", datasets)]))
}

fn dataset(row: &DatasetRow, shown: Vec<Shown>, numbers: Numbers) -> Json {
    let kind = match row.kind {
        DatasetType::Filesystem => "FILESYSTEM",
        DatasetType::Volume => "VOLUME",
        DatasetType::Snapshot => "SNAPSHOT",
        DatasetType::Bookmark => "BOOKMARK",
    };
    let pool = row.name.split(['/', '@', '#']).next().unwrap_or_default();
    let createtxg = match numbers.ints {
        true => Json::Int(row.createtxg.into()),
        false => Json::str(row.createtxg.to_string()),
    };
    let mut members = vec![
        ("name", Json::str(&row.name)),
        ("type", Json::str(kind)),
        ("pool", Json::str(pool)),
        ("createtxg", createtxg),
    ];
    if let Some((fs, snap)) = row.name.split_once('@') {
        members.push(("dataset", Json::str(fs)));
        members.push(("snapshot_name", Json::str(snap)));
    }
    let one = |(name, value): Shown| {
        let value = property(&name, value.as_ref(), numbers);
        (name, value)
    };
    let properties = shown.into_iter().filter(|(name, _)| name != "name").map(one);
    members.push(("properties", Json::object(properties)));
    Json::object(members)
}

fn property(name: &str, value: Option<&PropertyEntry>, numbers: Numbers) -> Json {
    let shown = |value: Option<&PropertyEntry>| text(name, value, numbers.exact || numbers.ints);
    let is_number = dataset_prop(name).is_none_or(|p| p.kind() == PropKind::Number);
    let json = match value.map(|v| &v.value) {
        Some(PropertyValue::Num(n)) if numbers.ints && is_number => Json::Int((*n).into()),
        _ => Json::str(shown(value)),
    };
    let received = || {
        let received = value.and_then(|v| v.received.clone()).map(PropertyEntry::fact);
        received.map_or_else(|| "-".to_owned(), |r| shown(Some(&r)))
    };
    let (kind, data) = match value.map(|v| &v.source) {
        None | Some(Origin::None) => ("NONE", "-".to_owned()),
        Some(Origin::Default) => ("DEFAULT", "-".to_owned()),
        Some(Origin::Local) => ("LOCAL", "-".to_owned()),
        Some(Origin::Temporary) => ("TEMPORARY", "-".to_owned()),
        Some(Origin::Inherited(from)) => ("INHERITED", from.clone()),
        Some(Origin::Received) => ("RECEIVED", received()),
    };
    let source = Json::object([("type", Json::str(kind)), ("data", Json::str(data))]);
    Json::object([("value", json), ("source", source)])
}

#[cfg(test)]
mod tests {
    use super::super::list::tests::golden_rows;
    use super::*;

    #[test]
    fn datasets_have_the_chapters_form() {
        let rows = golden_rows(include_str!("../../tests/fixtures/snaps.props.txt"));
        let one = |names: &'static [&'static str], numbers| {
            output("zfs list", &rows[..2], numbers, |row| {
                names.iter().map(|n| ((*n).to_owned(), row.prop(n).cloned())).collect()
            })
        };
        let json = one(&["name", "quota", "compression"], Numbers::default());
        let txg = rows[1].createtxg;
        let fs = "{\"value\":\"none\",\"source\":{\"type\":\"DEFAULT\",\"data\":\"-\"}}";
        let none = "{\"value\":\"-\",\"source\":{\"type\":\"NONE\",\"data\":\"-\"}}";
        assert_eq!(
            json,
            format!(
                "{{\"output_version\":{{\"command\":\"zfs list\",\"vers_major\":0,\"vers_minor\":1}},\
                 \"datasets\":{{\"snaps\":{{\"name\":\"snaps\",\"type\":\"FILESYSTEM\",\"pool\":\"snaps\",\
                 \"createtxg\":\"{}\",\"properties\":{{\"quota\":{fs},\"compression\":{{\"value\":\"on\",\
                 \"source\":{{\"type\":\"DEFAULT\",\"data\":\"-\"}}}}}}}},\"snaps@all\":{{\"name\":\
                 \"snaps@all\",\"type\":\"SNAPSHOT\",\"pool\":\"snaps\",\"createtxg\":\"{txg}\",\"dataset\":\
                 \"snaps\",\"snapshot_name\":\"all\",\"properties\":{{\"quota\":{none},\"compression\":\
                 {none}}}}}}}}}\n",
                rows[0].createtxg
            )
        );
        let exact = Numbers { exact: true, ints: true };
        let json = one(&["quota", "compression"], exact);
        assert!(json.contains("\"quota\":{\"value\":0,"), "{json}");
        assert!(json.contains("\"compression\":{\"value\":\"on\","), "{json}");
        assert!(json.contains(&format!("\"createtxg\":{txg},")), "{json}");
    }
}
