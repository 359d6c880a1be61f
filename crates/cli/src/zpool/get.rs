//! `zpool get` (chapter 09 §4.7).

use std::ffi::OsString;

use base::Result;
use cenote::props::{is_user_prop, pool_column};
use proto::{Origin, PropertyEntry};
use ui::Exit;
use ui::json::Json;
use ui::table::{self, Column};

use super::list::{json_form, text};
use super::{Pools, json, misuse, options, vdev_props};

const FIELDS: [&str; 4] = ["name", "property", "value", "source"];

/// `zpool get ...`
pub(super) fn main(argv: &[OsString]) -> Result<Exit> {
    let parsed = match options("get", argv) {
        Ok(parsed) => parsed,
        Err(exit) => return Ok(exit),
    };
    let words = parsed.words();
    let Some((list, names)) = words.split_first() else {
        return Ok(misuse("get", Some("missing property argument")));
    };
    let fields = match fields(parsed.last('o').as_deref().unwrap_or("all")) {
        Ok(fields) => fields,
        Err(message) => return Ok(misuse("get", Some(&message))),
    };
    let json = match json_form("get", &parsed) {
        Ok(json) => json,
        Err(exit) => return Ok(exit),
    };
    let parsable = parsed.has('p') || json.is_some_and(|form| form.numbers.exact);
    let mut pools = Pools::connect()?;
    if let Some((pool, vdevs)) = of_vdevs(&mut pools, names)? {
        let wanted = match vdev_props::wanted(list) {
            Ok(wanted) => wanted,
            Err(message) => return Ok(misuse("get", Some(&message))),
        };
        let set = pools.vdev_props(pool)?;
        let pool = pools.status(pool)?;
        return Ok(match vdev_props::rows(&pool, vdevs, wanted.as_deref(), &set, parsable) {
            Ok(rows) => {
                if let Some(form) = json {
                    ui::out(&format!("{}\n", json::vdevs(&pool, &rows, form.numbers)));
                    return Ok(Exit::OK);
                }
                show(&rows, &fields, 0, parsed.has('H'));
                Exit::OK
            }
            Err(message) => misuse("get", Some(&message)),
        });
    }
    let wanted = match wanted(list) {
        Ok(wanted) => wanted,
        Err(message) => return Ok(misuse("get", Some(&message))),
    };
    let missing = |n: &str| format!("Cannot get properties of {n}: no such pool available.");
    let names = pools.select(names, missing)?;
    if let Some(form) = json {
        let mut out = Vec::new();
        for name in &names {
            let props = pools.props(name, wanted.clone())?;
            let shown = match &wanted {
                None => props.into_iter().map(|(n, v)| (n, Some(v))).collect(),
                Some(list) => list
                    .iter()
                    .map(|n| (n.clone(), props.iter().find(|p| &p.0 == n).map(|p| p.1.clone())))
                    .collect(),
            };
            out.push(json::pool(&pools.status(name)?, shown, Vec::new(), form));
        }
        let output = Json::output("zpool get", [("pools", Json::Object(out))]);
        ui::out(&format!("{output}\n"));
        return Ok(Exit::failed_if(pools.failed));
    }
    let mut rows = Vec::new();
    for name in &names {
        let props = pools.props(name, wanted.clone())?;
        match &wanted {
            None => rows.extend(props.iter().map(|(n, v)| full_row(name, n, Some(v), parsable))),
            Some(list) => rows.extend(list.iter().map(|n| {
                let value = props.iter().find(|p| &p.0 == n).map(|p| &p.1);
                full_row(name, n, value, parsable)
            })),
        }
    }
    let width = value_width(rows.iter().map(|r| r[1].as_str()));
    show(&rows, &fields, width, parsed.has('H'));
    Ok(Exit::failed_if(pools.failed))
}

/// A pool and vdevs of it, if the operands have that form: a pool first, and then not only
/// pools.
fn of_vdevs<'a>(pools: &mut Pools, names: &'a [String]) -> Result<Option<(&'a str, &'a [String])>> {
    let Some((first, rest)) = names.split_first().filter(|(_, rest)| !rest.is_empty()) else {
        return Ok(None);
    };
    let all = pools.select(&[], |_| String::new())?;
    let vdevs = all.contains(first) && !rest.iter().all(|name| all.contains(name));
    Ok(vdevs.then_some((first.as_str(), rest)))
}

fn show(rows: &[[String; 4]], fields: &[usize], value_width: usize, scripted: bool) {
    let mut columns = FIELDS.map(|f| Column::text(f.to_uppercase()));
    columns[2].min = value_width;
    let pick = |row: &[String; 4]| fields.iter().filter_map(|&f| row.get(f).cloned()).collect();
    let rows: Vec<Vec<String>> = rows.iter().map(pick).collect();
    let columns: Vec<Column> = fields.iter().filter_map(|&f| columns.get(f).cloned()).collect();
    if !rows.is_empty() {
        ui::out(&table::render(&columns, &rows, scripted));
    }
}

/// The value column is as wide as the widest column of these properties in `zpool list`.
fn value_width<'a>(names: impl Iterator<Item = &'a str>) -> usize {
    names.filter_map(pool_column).map(cenote::props::Prop::min_width).max().unwrap_or(0)
}

fn fields(list: &str) -> std::result::Result<Vec<usize>, String> {
    if list == "all" {
        return Ok((0..FIELDS.len()).collect());
    }
    let one = |w: &str| {
        FIELDS.iter().position(|f| *f == w).ok_or_else(|| format!("invalid column name '{w}'"))
    };
    list.split(',').map(one).collect()
}

fn wanted(list: &str) -> std::result::Result<Option<Vec<String>>, String> {
    if list == "all" {
        return Ok(None);
    }
    let one = |w: &str| match pool_column(w) {
        Some(prop) => Ok(prop.name.to_owned()),
        None if w.starts_with("feature@") || w.starts_with("unsupported@") => Ok(w.to_owned()),
        None if is_user_prop(w) => Ok(w.to_owned()),
        None => Err(format!("bad property list: invalid property '{w}'")),
    };
    list.split(',').map(one).collect::<std::result::Result<_, _>>().map(Some)
}

fn full_row(pool: &str, name: &str, value: Option<&PropertyEntry>, parsable: bool) -> [String; 4] {
    let shown = if name == "name" { pool.to_owned() } else { text(name, value, parsable) };
    let source = match value.map(|v| &v.source) {
        None | Some(Origin::None) => "-".to_owned(),
        Some(Origin::Default) => "default".to_owned(),
        Some(Origin::Local) => "local".to_owned(),
        Some(Origin::Temporary) => "temporary".to_owned(),
        Some(Origin::Inherited(from)) => format!("inherited from {from}"),
        Some(Origin::Received) => "received".to_owned(),
    };
    [pool.to_owned(), name.to_owned(), shown, source]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::PropertyValue;

    /// Chapter 09 §4.7, golden; `health` among the properties makes the column 8 wide.
    #[test]
    fn rows() {
        let v = |d| PropertyEntry::fact(d);
        let size = v(PropertyValue::Num(15 << 30));
        assert_eq!(full_row("tank", "size", Some(&size), false), ["tank", "size", "15G", "-"]);
        let feature =
            PropertyEntry { source: Origin::Local, ..v(PropertyValue::Str("active".into())) };
        assert_eq!(
            full_row("tank", "feature@lz4_compress", Some(&feature), true)[2..],
            ["active", "local"]
        );
        assert_eq!(full_row("tank", "a:b", None, true)[2..], ["-", "-"]);
        assert_eq!(value_width(["size", "health"].into_iter()), 8);
        assert_eq!(wanted("cap,nope").unwrap_err(), "bad property list: invalid property 'nope'");
        assert_eq!(fields("value,name"), Ok(vec![2, 0]));
        assert_eq!(fields("x"), Err("invalid column name 'x'".into()));
    }
}
