//! `zpool get PROPERTY POOL VDEV ...`: properties of vdevs (chapter 09 §2.5).
//!
//! The list has what Cenote knows of its vdevs. Others of OpenZFS's can be asked for by
//! name, and have no value.

use base::Error;
use cenote::props::{is_user_prop, nicebytes, nicenum};

use super::vdevs::Naming;
use crate::proto::{Class, Pool, State, Vdev};

/// How a number is shown without `-p`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    /// A number with a unit, counts too.
    Num,
    /// The same, with `B` for bytes.
    Bytes,
    /// A percentage.
    Percent,
    /// All digits.
    Exact,
}

/// What a property is of a vdev.
enum Found {
    Number(u64, Shown),
    Text(String),
    /// It does not apply.
    None,
}

/// A property by its name, its other name for `-o` lists, and whether `all` lists it.
struct VdevProp {
    name: &'static str,
    column: &'static str,
    known: bool,
    /// Of those that can be set: the value that holds.
    default: Option<&'static str>,
}

const fn known(name: &'static str, column: &'static str) -> VdevProp {
    VdevProp { name, column, known: true, default: None }
}

const fn unknown(name: &'static str, column: &'static str) -> VdevProp {
    VdevProp { name, column, known: false, default: None }
}

const fn set(name: &'static str, column: &'static str, default: &'static str) -> VdevProp {
    VdevProp { name, column, known: false, default: Some(default) }
}

/// In the order of the listing.
const PROPS: &[VdevProp] = &[
    unknown("name", "name"),
    known("capacity", "cap"),
    known("state", "state"),
    known("guid", "guid"),
    known("asize", "asize"),
    known("psize", "psize"),
    known("ashift", "ashift"),
    known("size", "size"),
    known("free", "free"),
    known("allocated", "alloc"),
    set("comment", "comment", "-"),
    known("expandsize", "expandsz"),
    known("fragmentation", "frag"),
    unknown("bootsize", "bootsize"),
    known("parity", "parity"),
    known("path", "path"),
    unknown("devid", "devid"),
    unknown("physpath", "physpath"),
    unknown("encpath", "encpath"),
    unknown("fru", "fru"),
    known("parent", "parent"),
    known("children", "children"),
    known("numchildren", "numchild"),
    known("read_errors", "rderr"),
    known("write_errors", "wrerr"),
    known("checksum_errors", "ckerr"),
    unknown("initialize_errors", "initerr"),
    unknown("null_ops", "nullop"),
    known("read_ops", "readop"),
    known("write_ops", "writeop"),
    unknown("free_ops", "freeop"),
    unknown("claim_ops", "claimop"),
    unknown("trim_ops", "trimop"),
    unknown("null_bytes", "nullbyte"),
    known("read_bytes", "readbyte"),
    known("write_bytes", "writebyte"),
    unknown("free_bytes", "freebyte"),
    unknown("claim_bytes", "claimbyte"),
    unknown("trim_bytes", "trimbyte"),
    unknown("removing", "removing"),
    set("allocating", "allocating", "on"),
    set("failfast", "failfast", "on"),
    set("checksum_n", "cksum_n", "-"),
    set("checksum_t", "cksum_t", "-"),
    set("io_n", "io_n", "-"),
    set("io_t", "io_t", "-"),
    unknown("raidz_expanding", "raidz_expanding"),
    set("slow_io_n", "slow_io_n", "-"),
    set("slow_io_t", "slow_io_t", "-"),
    unknown("trim_support", "trimsup"),
    unknown("trim_errors", "trimerr"),
    known("slow_ios", "slow"),
];

/// A vdev and the one above it.
#[derive(Clone, Copy)]
struct Place<'a> {
    vdev: &'a Vdev,
    above: Option<&'a Vdev>,
}

fn places<'a>(vdev: &'a Vdev, above: Option<&'a Vdev>, out: &mut Vec<Place<'a>>) {
    if !matches!(vdev.kind.as_str(), "hole") {
        out.push(Place { vdev, above });
        vdev.children.iter().for_each(|child| places(child, Some(vdev), out));
    }
}

/// The names that a list of properties means; all that are known for `None`.
pub(super) fn wanted(list: &str) -> std::result::Result<Option<Vec<String>>, String> {
    if list == "all" {
        return Ok(None);
    }
    let one = |word: &str| match PROPS.iter().find(|p| p.name == word || p.column == word) {
        Some(prop) => Ok(prop.name.to_owned()),
        None if is_user_prop(word) => Ok(word.to_owned()),
        None => Err(format!("bad property list: invalid property '{word}'")),
    };
    list.split(',').map(one).collect::<std::result::Result<_, _>>().map(Some)
}

/// Rows of name, property, value and source; what is wrong with a name is an error.
pub(super) fn rows(
    pool: &Pool,
    vdevs: &[String],
    wanted: Option<&[String]>,
    parsable: bool,
) -> (Vec<[String; 4]>, Vec<Error>) {
    let mut all = Vec::new();
    places(&pool.root, None, &mut all);
    let (mut out, mut wrong) = (Vec::new(), Vec::new());
    for name in vdevs {
        if name == "all-vdevs" {
            for place in &all {
                listed(*place, wanted, parsable, &mut out);
            }
            continue;
        }
        match all.iter().find(|place| is_called(place.vdev, name)) {
            Some(place) => listed(*place, wanted, parsable, &mut out),
            None => wrong.push(Error::not_found(format!(
                "cannot find {name} in {}: no such device in pool",
                pool.name
            ))),
        }
    }
    (out, wrong)
}

/// The vdev of a pool by its name, path, last part of its path, or guid.
pub(super) fn find<'a>(pool: &'a Pool, name: &str) -> Option<&'a Vdev> {
    let mut all = Vec::new();
    places(&pool.root, None, &mut all);
    all.iter().find(|place| is_called(place.vdev, name)).map(|place| place.vdev)
}

fn is_called(v: &Vdev, name: &str) -> bool {
    if v.kind == "root" {
        return name == "root" || name == "root-0";
    }
    let path = v.path.as_ref().and_then(|p| p.to_str());
    let last = path.and_then(|p| p.rsplit('/').next());
    shown_name(v) == name || path == Some(name) || last == Some(name) || name.parse() == Ok(v.guid)
}

fn shown_name(v: &Vdev) -> String {
    if v.kind == "root" { "root-0".to_owned() } else { Naming::default().with_env().of(v) }
}

fn listed(place: Place<'_>, wanted: Option<&[String]>, parsable: bool, out: &mut Vec<[String; 4]>) {
    let name = shown_name(place.vdev);
    let row = |prop: &str, value: String, source: &str| {
        [name.clone(), prop.to_owned(), value, source.to_owned()]
    };
    let one = |prop: &VdevProp| match prop.default {
        Some(default) => row(prop.name, default.to_owned(), "default"),
        None => row(prop.name, text(value(place, prop.name), parsable), "-"),
    };
    match wanted {
        None => out.extend(PROPS.iter().filter(|p| p.known || p.default.is_some()).map(one)),
        Some(list) => out.extend(list.iter().map(|word| {
            let found = PROPS.iter().find(|p| p.name == word);
            found.map_or_else(|| row(word, "-".to_owned(), "-"), one)
        })),
    }
}

fn text(found: Found, parsable: bool) -> String {
    match found {
        Found::None => "-".to_owned(),
        Found::Text(text) => text,
        Found::Number(n, Shown::Exact) => n.to_string(),
        Found::Number(n, Shown::Percent) if !parsable => format!("{n}%"),
        Found::Number(n, _) if parsable => n.to_string(),
        Found::Number(n, Shown::Bytes) => nicebytes(n),
        Found::Number(n, _) => nicenum(n),
    }
}

fn value(Place { vdev: v, above }: Place<'_>, name: &str) -> Found {
    use Shown::{Bytes, Exact, Num, Percent};
    let leaf = v.children.is_empty() && v.kind != "root";
    let sized = v.size > 0;
    let size = |n: u64| if sized { Found::Number(n, Num) } else { Found::None };
    match name {
        "name" => Found::Text(shown_name(v)),
        "capacity" if sized => {
            let share = u128::from(v.allocated) * 100 / u128::from(v.size);
            Found::Number(u64::try_from(share).unwrap_or(u64::MAX), Percent)
        }
        "state" if v.class == Class::Spare && v.state == State::Online => {
            Found::Text("AVAIL".to_owned())
        }
        "state" => Found::Text(v.state.word().to_owned()),
        "guid" => Found::Number(v.guid, Exact),
        "asize" if v.asize > 0 => Found::Number(v.asize, Num),
        "psize" if v.psize > 0 => Found::Number(v.psize, Num),
        "ashift" if v.ashift > 0 => Found::Number(u64::from(v.ashift), Exact),
        "size" => size(v.size),
        "free" => size(v.size.saturating_sub(v.allocated)),
        "allocated" => size(v.allocated),
        "expandsize" if v.expandsize > 0 => Found::Number(v.expandsize, Bytes),
        "fragmentation" => {
            v.fragmentation.filter(|_| sized).map_or(Found::None, |f| Found::Number(f, Percent))
        }
        "parity" if matches!(v.kind.as_str(), "raidz" | "draid") => {
            Found::Number(u64::from(v.nparity), Exact)
        }
        "path" if leaf => match &v.path {
            Some(path) => Found::Text(path.display().to_string()),
            None => Found::None,
        },
        "parent" => above.map_or(Found::None, |above| Found::Text(shown_name(above))),
        "children" if !v.children.is_empty() => {
            let names: Vec<String> = v.children.iter().map(shown_name).collect();
            Found::Text(names.join(","))
        }
        "numchildren" => Found::Number(v.children.len() as u64, Exact),
        "read_errors" => Found::Number(v.read_errors, Num),
        "write_errors" => Found::Number(v.write_errors, Num),
        "checksum_errors" => Found::Number(v.checksum_errors, Num),
        "read_ops" => Found::Number(v.io.reads, Num),
        "write_ops" => Found::Number(v.io.writes, Num),
        "read_bytes" => Found::Number(v.io.nread, Num),
        "write_bytes" => Found::Number(v.io.nwritten, Num),
        "slow_ios" if leaf => Found::Number(v.slow_ios, Num),
        _ => Found::None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::vdevs::tests::{pool, vdev};
    use super::*;

    fn tank() -> Pool {
        let disk = |n: u32| Vdev {
            psize: 200 << 20,
            ashift: 12,
            read_errors: 3,
            guid: u64::from(n),
            ..vdev("file", &format!("/tmp/d{n}"), Class::Normal, vec![])
        };
        let mirror = Vdev {
            size: 160 << 20,
            allocated: 40 << 20,
            ..vdev("mirror", "mirror-0", Class::Normal, vec![disk(1), disk(2)])
        };
        pool(vdev("root", "tank", Class::Normal, vec![mirror]))
    }

    /// What the user did: `zpool get all tank /tmp/d1`, and got the whole pool.
    #[test]
    fn a_vdev_has_properties_of_its_own() {
        let list = |vdevs: &[&str], props: &str, parsable| {
            let vdevs: Vec<String> = vdevs.iter().map(|v| (*v).to_owned()).collect();
            let wanted = wanted(props).unwrap();
            let (rows, wrong) = rows(&tank(), &vdevs, wanted.as_deref(), parsable);
            let wrong: Vec<String> = wrong.iter().map(|e| e.message().to_owned()).collect();
            (rows.iter().map(|r| r.join(" ")).collect::<Vec<_>>(), wrong)
        };
        let (rows, wrong) =
            list(&["mirror-0", "/tmp/d1"], "size,cap,state,parent,rderr,a:b", false);
        assert!(wrong.is_empty());
        assert_eq!(
            rows,
            [
                "mirror-0 size 160M -",
                "mirror-0 capacity 25% -",
                "mirror-0 state ONLINE -",
                "mirror-0 parent root-0 -",
                "mirror-0 read_errors 0 -",
                "mirror-0 a:b - -",
                "/tmp/d1 size - -",
                "/tmp/d1 capacity - -",
                "/tmp/d1 state ONLINE -",
                "/tmp/d1 parent mirror-0 -",
                "/tmp/d1 read_errors 3 -",
                "/tmp/d1 a:b - -",
            ]
        );
        let (rows, _) = list(&["d2"], "psize,ashift,path", true);
        assert_eq!(
            rows,
            ["/tmp/d2 psize 209715200 -", "/tmp/d2 ashift 12 -", "/tmp/d2 path /tmp/d2 -"]
        );
        let (rows, _) = list(&["all-vdevs"], "children,numchildren", false);
        assert_eq!(rows[..2], ["root-0 children mirror-0 -", "root-0 numchildren 1 -"]);
        assert_eq!(rows[2], "mirror-0 children /tmp/d1,/tmp/d2 -");
        assert_eq!(rows.len(), 8);
        let (rows, wrong) = list(&["nosuch"], "size", false);
        assert!(rows.is_empty());
        assert_eq!(wrong, ["cannot find nosuch in tank: no such device in pool"]);
        let (rows, _) = list(&["/tmp/d1"], "all", false);
        assert!(rows.iter().any(|r| r == "/tmp/d1 allocating on default"));
        assert!(wanted("size,nope").unwrap_err().contains("'nope'"));
    }
}
