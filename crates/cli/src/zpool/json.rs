//! JSON of `zpool list` and `zpool get` (chapter 09 §1.6).

use cenote::props::{PropKind, pool_prop};
use proto::{Origin, Pool, PropertyEntry, PropertyValue};
use ui::json::Json;

use super::list::text;
use super::status::Numbers;

/// A property of a pool, and its value if it has one.
pub(super) type ShownProp = (String, Option<PropertyEntry>);

/// How a pool is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PoolForm {
    pub(super) numbers: Numbers,
    /// The guid is the key of a pool, not its name.
    pub(super) key_guid: bool,
}

/// The members of a pool's object before its properties.
fn members(p: &Pool, numbers: Numbers) -> Vec<(String, Json)> {
    let word = match &p.doing {
        _ if p.suspended => "SUSPENDED",
        Some(doing) => doing.as_str(),
        None => p.health.word(),
    };
    let all = [
        ("name", Json::str(&p.name)),
        ("type", Json::str("POOL")),
        ("state", Json::str(word)),
        ("pool_guid", numbers.plain(p.guid)),
        ("txg", numbers.plain(p.txg)),
        ("spa_version", numbers.plain(5000)),
        ("zpl_version", numbers.plain(5)),
    ];
    all.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

/// The key and the object of a pool with some of its properties, and its vdevs by class.
pub(super) fn pool(
    p: &Pool,
    props: Vec<ShownProp>,
    vdevs: Vec<(String, Json)>,
    form: PoolForm,
) -> (String, Json) {
    let mut out = members(p, form.numbers);
    let shown = props.into_iter().filter(|(name, _)| name != "name").map(|(name, value)| {
        let value = property(&name, value.as_ref(), form.numbers);
        (name, value)
    });
    out.push(("properties".to_owned(), Json::object(shown)));
    out.extend(vdevs);
    let key = if form.key_guid { p.guid.to_string() } else { p.name.clone() };
    (key, Json::Object(out))
}

fn source(kind: &str, data: &str) -> Json {
    Json::object([("type", Json::str(kind)), ("data", Json::str(data))])
}

/// A cell of a vdev's row, as a property.
pub(super) fn cell(text: &str, numbers: Numbers) -> Json {
    let number = text.parse::<u64>().ok().filter(|_| numbers.ints);
    let value = number.map_or_else(|| Json::str(text), |n| Json::Int(n.into()));
    Json::object([("value", value), ("source", source("NONE", "-"))])
}

fn property(name: &str, value: Option<&PropertyEntry>, numbers: Numbers) -> Json {
    let is_number = pool_prop(name).is_some_and(|p| p.kind() == PropKind::Number);
    let json = match value.map(|v| &v.value) {
        Some(PropertyValue::Num(n)) if numbers.ints && is_number => Json::Int((*n).into()),
        _ => Json::str(text(name, value, numbers.exact)),
    };
    let source = match value.map(|v| &v.source) {
        None | Some(Origin::None) => source("NONE", "-"),
        Some(Origin::Default) => source("DEFAULT", "-"),
        Some(Origin::Local) => source("LOCAL", "-"),
        Some(Origin::Temporary) => source("TEMPORARY", "-"),
        Some(Origin::Inherited(from)) => source("INHERITED", from),
        Some(Origin::Received) => source("RECEIVED", "-"),
    };
    Json::object([("value", json), ("source", source)])
}

/// The output about vdevs of a pool: rows of vdev, property, value and source, those of one
/// vdev together.
pub(super) fn vdevs(p: &Pool, rows: &[[String; 4]], numbers: Numbers) -> Json {
    let mut all: Vec<(String, Vec<(String, Json)>)> = Vec::new();
    for [vdev, name, value, from] in rows {
        let number = value.parse::<u64>().ok().filter(|_| numbers.ints);
        let json = number.map_or_else(|| Json::str(value), |n| Json::Int(n.into()));
        let from = match from.as_str() {
            "default" => source("DEFAULT", "-"),
            "local" => source("LOCAL", "-"),
            _ => source("NONE", "-"),
        };
        let entry = (name.clone(), Json::object([("value", json), ("source", from)]));
        match all.last_mut().filter(|last| last.0 == *vdev) {
            Some((_, props)) => props.push(entry),
            None => all.push((vdev.clone(), vec![entry])),
        }
    }
    let one = |(name, props): (String, Vec<(String, Json)>)| {
        let props = props.into_iter().filter(|(name, _)| name != "name");
        let object = Json::object([
            ("name", Json::str(&name)),
            ("type", Json::str("VDEV")),
            ("properties", Json::object(props)),
        ]);
        (name, object)
    };
    let vdevs = Json::object(all.into_iter().map(one));
    Json::output("zpool get", [("pool", Json::Object(members(p, numbers))), ("vdevs", vdevs)])
}

#[cfg(test)]
mod tests {
    use super::super::vdevs::tests::{pool as tree, vdev};
    use super::*;
    use proto::VdevRole;

    #[test]
    fn pools_have_the_chapters_form() {
        let p = Pool { guid: 7, txg: 9, ..tree(vdev("root", "tank", VdevRole::Normal, vec![])) };
        let props = || {
            vec![
                ("name".to_owned(), None),
                ("size".to_owned(), Some(PropertyEntry::fact(PropertyValue::Num(15 << 30)))),
                (
                    "comment".to_owned(),
                    Some(PropertyEntry {
                        source: Origin::Local,
                        ..PropertyEntry::fact(PropertyValue::Str("a \"b\"".into()))
                    }),
                ),
            ]
        };
        let (key, json) = pool(&p, props(), Vec::new(), PoolForm::default());
        assert_eq!(key, "tank");
        assert_eq!(
            json.to_string(),
            "{\"name\":\"tank\",\"type\":\"POOL\",\"state\":\"ONLINE\",\"pool_guid\":\"7\",\
             \"txg\":\"9\",\"spa_version\":\"5000\",\"zpl_version\":\"5\",\"properties\":{\
             \"size\":{\"value\":\"15G\",\"source\":{\"type\":\"NONE\",\"data\":\"-\"}},\
             \"comment\":{\"value\":\"a \\\"b\\\"\",\"source\":{\"type\":\"LOCAL\",\
             \"data\":\"-\"}}}}"
        );
        let numbers = Numbers { exact: true, ints: true };
        let (key, json) = pool(&p, props(), Vec::new(), PoolForm { numbers, key_guid: true });
        assert_eq!(key, "7");
        assert!(json.to_string().contains("\"size\":{\"value\":16106127360,"), "{json}");
        assert!(json.to_string().contains("\"pool_guid\":7,\"txg\":9,"), "{json}");
        let row = |name: &str, value: &str| ["mirror-0", name, value, "default"].map(str::to_owned);
        let json = vdevs(&p, &[row("name", "mirror-0"), row("ashift", "12")], numbers).to_string();
        let tail = "\"vdevs\":{\"mirror-0\":{\"name\":\"mirror-0\",\"type\":\"VDEV\",\
                    \"properties\":{\"ashift\":{\"value\":12,\"source\":{\"type\":\"DEFAULT\",\
                    \"data\":\"-\"}}}}}}";
        assert!(json.ends_with(tail), "{json}");
    }
}
