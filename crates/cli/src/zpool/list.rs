//! `zpool list` (chapter 09 §4.2).

use std::ffi::OsString;

use base::Result;
use cenote::props::{PropData, format, nicebytes, nicenum, pool_column, pool_prop};
use commands::getopt::Parsed;
use proto::{Pool, PropertyEntry, Vdev, VdevRole};
use ui::Exit;
use ui::json::Json;
use ui::table::{self, Column};

use super::json::{self, PoolForm};
use super::status::{JSON_CLASSES, Numbers, identity};
use super::vdevs::{self, Naming, VdevLine, spare_word};
use super::{Pools, Repeat, misuse, no_such_pool, options};

const DEFAULT: &str = "name,size,allocated,free,checkpoint,expandsize,fragmentation,capacity,dedupratio,health,altroot";
/// Headings of classes with `-v`, in order.
const CLASSES: [(VdevRole, &str); 5] = [
    (VdevRole::Dedup, "dedup"),
    (VdevRole::Special, "special"),
    (VdevRole::Log, "logs"),
    (VdevRole::Cache, "cache"),
    (VdevRole::Spare, "spare"),
];

struct ListOptions {
    names: Vec<String>,
    columns: Vec<(String, Column)>,
    scripted: bool,
    parsable: bool,
    verbose: bool,
    naming: Naming,
    /// With `-j`.
    json: Option<PoolForm>,
}

/// `zpool list ...`
pub(super) fn main(argv: &[OsString]) -> Result<Exit> {
    let parsed = match options("list", argv) {
        Ok(parsed) => parsed,
        Err(exit) => return Ok(exit),
    };
    let mut names = parsed.words();
    let repeat = match Repeat::take(&mut names, parsed.last('T')) {
        Ok(repeat) => repeat,
        Err(message) => return Ok(misuse("list", Some(&message))),
    };
    let parsable = parsed.has('p');
    let list = parsed.last('o').unwrap_or_else(|| DEFAULT.to_owned());
    let columns = match columns(&list, parsable) {
        Ok(columns) => columns,
        Err(message) => return Ok(misuse("list", Some(&message))),
    };
    let naming =
        Naming { guid: parsed.has('g'), path: parsed.has('P'), links: parsed.has('L') }.with_env();
    let json = match json_form("list", &parsed) {
        Ok(json) => json,
        Err(exit) => return Ok(exit),
    };
    let options = ListOptions {
        names,
        columns,
        scripted: parsed.has('H'),
        parsable,
        verbose: parsed.has('v'),
        naming,
        json,
    };
    repeat.run(|| report(&options))
}

/// The form of JSON that the options ask for.
pub(super) fn json_form(
    command: &str,
    parsed: &Parsed,
) -> std::result::Result<Option<PoolForm>, Exit> {
    let json = parsed.has('j');
    for (letter, name) in [('J', "json-int"), ('K', "json-pool-key-guid")] {
        if parsed.has(letter) && !json {
            let text = format!("'--{name}' only works with '-j'");
            return Err(misuse(command, Some(&text)));
        }
    }
    let ints = parsed.has('J');
    let numbers = Numbers { exact: parsed.has('p') || ints, ints };
    Ok(json.then_some(PoolForm { numbers, key_guid: parsed.has('K') }))
}

/// The columns of a `-o` list.
fn columns(list: &str, parsable: bool) -> std::result::Result<Vec<(String, Column)>, String> {
    let mut out = Vec::new();
    for word in list.split(',') {
        let column = if word == "all" {
            let all = cenote::props::pool_props().iter().filter(|p| p.visible || p.name == "name");
            out.extend(all.map(|p| (p.name.to_owned(), Column::of(p, parsable))));
            continue;
        } else if let Some(prop) = pool_column(word) {
            (prop.name.to_owned(), Column::of(prop, parsable))
        } else if word.starts_with("feature@")
            || word.starts_with("unsupported@")
            || word.contains(':')
        {
            (word.to_owned(), Column::text(word.to_uppercase()))
        } else {
            return Err(format!("bad property list: invalid property '{word}'"));
        };
        out.push(column);
    }
    Ok(out)
}

/// The text of a pool property.
pub(super) fn text(name: &str, value: Option<&PropertyEntry>, parsable: bool) -> String {
    let data = value.map_or(PropData::None, |v| (&v.value).into());
    match (pool_prop(name), data) {
        (Some(prop), data) => format(prop, &data, parsable),
        (None, PropData::Str(s)) if !s.is_empty() => s,
        (None, PropData::Num(n)) => n.to_string(),
        (None, _) => "-".to_owned(),
    }
}

fn report(options: &ListOptions) -> Result<Exit> {
    let mut pools = Pools::connect()?;
    let names = pools.select(&options.names, no_such_pool)?;
    if let Some(form) = options.json {
        let wanted: Vec<String> = options.columns.iter().map(|c| c.0.clone()).collect();
        let mut out = Vec::new();
        for name in &names {
            let props = pools.props(name, Some(wanted.clone()))?;
            let value = |c: &String| props.iter().find(|p| &p.0 == c).map(|p| p.1.clone());
            let shown = wanted.iter().map(|c| (c.clone(), value(c))).collect();
            let pool = pools.status(name)?;
            let vdevs = if options.verbose { vdevs_json(&pool, options, form) } else { Vec::new() };
            out.push(json::pool(&pool, shown, vdevs, form));
        }
        let output = Json::output("zpool list", [("pools", Json::Object(out))]);
        ui::out(&format!("{output}\n"));
        return Ok(Exit::failed_if(pools.failed));
    }
    if names.is_empty() {
        if !options.scripted && !pools.failed {
            ui::out("no pools available\n");
        }
        return Ok(Exit::failed_if(pools.failed));
    }
    let wanted: Vec<String> = options.columns.iter().map(|c| c.0.clone()).collect();
    let mut rows = Vec::new();
    let mut trees = Vec::new();
    for name in &names {
        let props = pools.props(name, Some(wanted.clone()))?;
        let cell = |column: &String| match column.as_str() {
            "name" => name.clone(),
            c => text(c, props.iter().find(|p| p.0 == c).map(|p| &p.1), options.parsable),
        };
        rows.push(wanted.iter().map(cell).collect::<Vec<String>>());
        if options.verbose {
            trees.push(pools.status(name)?);
        }
    }
    let columns: Vec<Column> = options.columns.iter().map(|c| c.1.clone()).collect();
    if !options.verbose {
        ui::out(&table::render(&columns, &rows, options.scripted));
    } else {
        ui::out(&verbose(options, columns, &rows, &trees));
    }
    Ok(Exit::failed_if(pools.failed))
}

/// The vdevs of each class, as trees.
fn vdevs_json(pool: &Pool, options: &ListOptions, form: PoolForm) -> Vec<(String, Json)> {
    let classes = [(VdevRole::Normal, "vdevs")].into_iter().chain(JSON_CLASSES);
    let of_class = |(class, key): (VdevRole, &str)| {
        let tops = pool.root.children.iter().filter(|v| v.class == class && !vdevs::hidden(v));
        let all: Vec<(String, Json)> = tops.map(|v| vdev_json(v, 2, options, form)).collect();
        let shown = class == VdevRole::Normal || !all.is_empty();
        shown.then(|| (key.to_owned(), Json::Object(all)))
    };
    classes.filter_map(of_class).collect()
}

/// The key and the object of a vdev, with those below it: what the table has, by column.
fn vdev_json(v: &Vdev, depth: usize, options: &ListOptions, form: PoolForm) -> (String, Json) {
    let mut out = identity(v, options.naming, form.numbers);
    let exact = ListOptions {
        names: Vec::new(),
        columns: options.columns.clone(),
        parsable: form.numbers.exact,
        ..*options
    };
    let cells = vdev_row(v, 0, depth, &exact);
    let columns = options.columns.iter().map(|(name, _)| name.clone());
    let shown = columns.zip(cells).filter(|(name, _)| name != "name");
    let shown = shown.map(|(name, cell)| (name, json::cell(&cell, form.numbers)));
    out.push(("properties".to_owned(), Json::object(shown)));
    if !v.children.is_empty() && depth < vdevs::DEPTH_MAX {
        let below = v.children.iter().map(|c| vdev_json(c, depth + 2, options, form)).collect();
        out.push(("vdevs".to_owned(), Json::Object(below)));
    }
    (options.naming.of(v), Json::Object(out))
}

/// The table with vdevs below each pool.
fn verbose(
    options: &ListOptions,
    mut columns: Vec<Column>,
    rows: &[Vec<String>],
    trees: &[Pool],
) -> String {
    let lines: Vec<Vec<VdevLine<'_>>> =
        trees.iter().map(|t| vdevs::walk(&t.root, &CLASSES)).collect();
    if let Some(first) = columns.first_mut() {
        let widest = trees.iter().zip(&lines);
        let widest = widest.map(|(t, l)| vdevs::name_width(&t.root, l, options.naming, 9));
        first.min = first.min.max(widest.max().unwrap_or(9));
    }
    let widths = table::widths(&columns, rows);
    let mut out = String::new();
    let headers: Vec<String> = columns.iter().map(|c| c.header.clone()).collect();
    if !options.scripted {
        table::human_line(&mut out, &columns, &widths, &headers);
    }
    // Vdev rows are right-justified throughout, as OpenZFS has them.
    let right: Vec<Column> =
        columns.iter().enumerate().map(|(i, c)| Column { right: i > 0, ..c.clone() }).collect();
    for (row, lines) in rows.iter().zip(&lines) {
        if options.scripted {
            out.push_str(&row.join("\t"));
            out.push('\n');
        } else {
            table::human_line(&mut out, &columns, &widths, row);
        }
        for line in lines {
            let cells = match line {
                VdevLine::Class(heading) => heading_row(heading, &options.columns),
                VdevLine::Vdev(v, depth) if options.scripted => vdev_row(v, 0, *depth, options),
                VdevLine::Vdev(v, depth) => vdev_row(v, *depth, *depth, options),
            };
            match line {
                VdevLine::Vdev(..) if options.scripted => {
                    out.push('\t');
                    out.push_str(&cells.join("\t"));
                    out.push('\n');
                }
                _ => table::human_line(&mut out, &right, &widths, &cells),
            }
        }
    }
    out
}

fn heading_row(heading: &str, columns: &[(String, Column)]) -> Vec<String> {
    let rest = columns.iter().skip(1).map(|_| "-".to_owned());
    std::iter::once(heading.to_owned()).chain(rest).collect()
}

/// A vdev's used share in hundredths of a percent, with as many digits as fit.
fn capacity(v: &Vdev, parsable: bool) -> String {
    let share = (u128::from(v.allocated) * 10_000).checked_div(u128::from(v.size)).unwrap_or(0);
    if parsable {
        return (share / 100).to_string();
    }
    let (whole, rest) = (share / 100, share % 100);
    match share {
        0..1000 => format!("{whole}.{rest:02}%"),
        1000..10_000 => {
            // printf rounds half to even on the double; hundredths are exact enough.
            let tenths = (share + 5) / 10;
            format!("{}.{}%", tenths / 10, tenths % 10)
        }
        _ => format!("{whole:3}%"),
    }
}

fn vdev_row(v: &Vdev, indent: usize, depth: usize, options: &ListOptions) -> Vec<String> {
    let number = |n: u64| if options.parsable { n.to_string() } else { nicenum(n) };
    let top = depth <= 2;
    let sized = top && v.size > 0 && v.class != VdevRole::Spare;
    let or_dash = |shown: bool, text: String| if shown { text } else { "-".to_owned() };
    let cell = |(name, _): &(String, Column)| match name.as_str() {
        "name" => format!("{:indent$}{}", "", options.naming.of(v)),
        "size" if sized && !v.children.is_empty() => number(v.size),
        "size" => or_dash(v.psize > 0 || sized, number(if v.psize > 0 { v.psize } else { v.size })),
        "allocated" => or_dash(sized, number(v.allocated)),
        "free" => or_dash(sized, number(v.size.saturating_sub(v.allocated))),
        "expandsize" => or_dash(
            v.expandsize > 0,
            if options.parsable { v.expandsize.to_string() } else { nicebytes(v.expandsize) },
        ),
        "checkpoint" => or_dash(
            v.checkpoint > 0,
            if options.parsable { v.checkpoint.to_string() } else { nicebytes(v.checkpoint) },
        ),
        "fragmentation" => match v.fragmentation.filter(|_| sized) {
            Some(f) if options.parsable => f.to_string(),
            Some(f) => format!("{f}%"),
            None => "-".to_owned(),
        },
        "capacity" => or_dash(sized, capacity(v, options.parsable)),
        "health" => spare_word(v).unwrap_or_else(|| v.state.word()).to_owned(),
        _ => "-".to_owned(),
    };
    options.columns.iter().map(cell).collect()
}

#[cfg(test)]
mod tests {
    use super::super::vdevs::tests::{pool, vdev};
    use super::*;

    fn options(scripted: bool, parsable: bool) -> ListOptions {
        ListOptions {
            names: vec![],
            columns: columns(DEFAULT, parsable).unwrap(),
            scripted,
            parsable,
            verbose: true,
            naming: Naming::default(),
            json: None,
        }
    }

    /// `zpool list -v` of the golden pool `frag`.
    #[test]
    fn golden_frag() {
        let disk = Vdev {
            psize: 256 << 20,
            size: 240 << 20,
            allocated: 119_745_000,
            fragmentation: Some(75),
            ..vdev("file", "/tmp/w/disk1.img", VdevRole::Normal, vec![])
        };
        let tree = pool(vdev("root", "frag", VdevRole::Normal, vec![disk]));
        let row: Vec<String> =
            ["frag", "240M", "114M", "126M", "-", "-", "75%", "47%", "1.00x", "ONLINE", "-"]
                .map(str::to_owned)
                .to_vec();
        let a = options(false, false);
        let columns: Vec<Column> = a.columns.iter().map(|c| c.1.clone()).collect();
        assert_eq!(
            verbose(&a, columns.clone(), std::slice::from_ref(&row), std::slice::from_ref(&tree)),
            "NAME                 SIZE  ALLOC   FREE  CKPOINT  EXPANDSZ   FRAG    CAP  DEDUP    HEALTH  ALTROOT\n\
             frag                 240M   114M   126M        -         -    75%    47%  1.00x    ONLINE  -\n  \
             /tmp/w/disk1.img   256M   114M   126M        -         -    75%  47.6%      -    ONLINE        -\n"
        );
        let text = verbose(&options(true, true), columns, &[row], &[tree]);
        assert_eq!(
            text.lines().nth(1).unwrap(),
            "\t/tmp/w/disk1.img\t268435456\t119745000\t131913240\t-\t-\t75\t47\t-\tONLINE\t-"
        );
    }

    /// `zpool list -Hv` of OpenZFS 2.4.4: headings of classes stay in the form for people.
    #[test]
    fn golden_rows_of_classes() {
        let disk = |n: u32, class| vdev("file", &format!("/tmp/d{n}"), class, vec![]);
        let mirror = vdev("mirror", "mirror-0", VdevRole::Normal, vec![disk(1, VdevRole::Normal)]);
        let tree =
            pool(vdev("root", "tank", VdevRole::Normal, vec![mirror, disk(5, VdevRole::Log)]));
        let row: Vec<String> =
            ["tank", "384M", "198K", "384M", "-", "-", "0%", "0%", "1.00x", "ONLINE", "-"]
                .map(str::to_owned)
                .to_vec();
        let a = options(true, false);
        let columns: Vec<Column> = a.columns.iter().map(|c| c.1.clone()).collect();
        let text = verbose(&a, columns, &[row], &[tree]);
        let heading = "logs             -      -      -        -         -      -      -      -         -        -";
        assert_eq!(text.lines().nth(3), Some(heading), "{text}");
    }

    #[test]
    fn shares_have_as_many_digits_as_fit() {
        let share = |allocated| {
            let v = vdev("file", "x", VdevRole::Normal, vec![]);
            capacity(&Vdev { size: 10_000, allocated, ..v }, false)
        };
        assert_eq!(share(976), "9.76%");
        assert_eq!(share(1667), "16.7%");
        assert_eq!(share(2000), "20.0%");
        assert_eq!(share(0), "0.00%");
        assert_eq!(share(10_000), "100%");
    }

    #[test]
    fn property_lists() {
        assert!(columns("name,cap,feature@lz4_compress,ckpoint", true).is_ok());
        assert_eq!(
            columns("name,nope", false).unwrap_err(),
            "bad property list: invalid property 'nope'"
        );
    }
}
