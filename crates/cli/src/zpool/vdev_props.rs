//! `zpool get PROPERTY POOL VDEV ...`: properties of vdevs (chapter 09 §2.5).
//!
//! Names, order, values and sources are OpenZFS 2.4.4's, as its kernel module printed them.

use cenote::props::{is_user_prop, nicenum};
use proto::{Pool, Vdev, VdevHealth};

use super::vdevs::{Naming, spare_word};

/// The format of a number without `-p`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NumberFormat {
    /// A number with a unit; also for counts.
    Num,
    /// A percentage.
    Percent,
    /// All digits.
    Exact,
}

/// The value of a vdev's property.
enum VdevPropValue {
    Number(u64, NumberFormat),
    Text(String),
    /// It does not apply.
    None,
    /// It is not set; the default value applies.
    Default(&'static str),
}

/// Properties that are set, by the guid of the vdev: name and value.
pub(super) type SetProps = std::collections::BTreeMap<u64, Vec<(String, String)>>;

/// Properties in the order of the listing, each with its name in headings. `all` is all but
/// the first.
const PROPS: &[(&str, &str)] = &[
    ("name", "name"),
    ("capacity", "cap"),
    ("state", "state"),
    ("guid", "guid"),
    ("asize", "asize"),
    ("psize", "psize"),
    ("ashift", "ashift"),
    ("size", "size"),
    ("free", "free"),
    ("allocated", "alloc"),
    ("comment", "comment"),
    ("expandsize", "expandsz"),
    ("fragmentation", "frag"),
    ("bootsize", "bootsize"),
    ("parity", "parity"),
    ("path", "path"),
    ("devid", "devid"),
    ("physpath", "physpath"),
    ("encpath", "encpath"),
    ("fru", "fru"),
    ("parent", "parent"),
    ("children", "children"),
    ("numchildren", "numchild"),
    ("read_errors", "rderr"),
    ("write_errors", "wrerr"),
    ("checksum_errors", "ckerr"),
    ("initialize_errors", "initerr"),
    ("null_ops", "nullop"),
    ("read_ops", "readop"),
    ("write_ops", "writeop"),
    ("free_ops", "freeop"),
    ("claim_ops", "claimop"),
    ("trim_ops", "trimop"),
    ("null_bytes", "nullbyte"),
    ("read_bytes", "readbyte"),
    ("write_bytes", "writebyte"),
    ("free_bytes", "freebyte"),
    ("claim_bytes", "claimbyte"),
    ("trim_bytes", "trimbyte"),
    ("removing", "removing"),
    ("allocating", "allocating"),
    ("failfast", "failfast"),
    ("checksum_n", "cksum_n"),
    ("checksum_t", "cksum_t"),
    ("io_n", "io_n"),
    ("io_t", "io_t"),
    ("slow_io_n", "slow_io_n"),
    ("slow_io_t", "slow_io_t"),
    ("trim_support", "trimsup"),
    ("trim_errors", "trimerr"),
    ("slow_ios", "slow"),
    ("slow_io_events", "slow_io_events"),
];

/// Properties of OpenZFS 2.4 that `all` does not list.
const BY_NAME: [(&str, &str); 2] = [("sit_out", "sit_out"), ("autosit", "autosit")];

/// A vdev and its parent.
#[derive(Clone, Copy)]
struct VdevWithParent<'a> {
    vdev: &'a Vdev,
    above: Option<&'a Vdev>,
}

fn with_parents<'a>(vdev: &'a Vdev, above: Option<&'a Vdev>, out: &mut Vec<VdevWithParent<'a>>) {
    if !matches!(vdev.kind.as_str(), "hole") {
        out.push(VdevWithParent { vdev, above });
        vdev.children.iter().for_each(|child| with_parents(child, Some(vdev), out));
    }
}

/// The property names in a list; all for `None`.
pub(super) fn wanted(list: &str) -> std::result::Result<Option<Vec<String>>, String> {
    if list == "all" {
        return Ok(None);
    }
    let one = |word: &str| match PROPS.iter().chain(&BY_NAME).find(|p| p.0 == word || p.1 == word) {
        Some(prop) => Ok(prop.0.to_owned()),
        None if is_user_prop(word) => Ok(word.to_owned()),
        None => Err(format!("bad property list: invalid property '{word}'")),
    };
    list.split(',').map(one).collect::<std::result::Result<_, _>>().map(Some)
}

/// Rows of name, property, value and source.
///
/// # Errors
/// The complaint about names that are not vdevs of the pool, in OpenZFS's words.
pub(super) fn rows(
    pool: &Pool,
    vdevs: &[String],
    wanted: Option<&[String]>,
    set: &SetProps,
    parsable: bool,
) -> std::result::Result<Vec<[String; 4]>, String> {
    let mut all = Vec::new();
    with_parents(&pool.root, None, &mut all);
    let found = |name: &String| all.iter().find(|place| is_called(place.vdev, name));
    let whole = |name: &String| name == "all-vdevs" && vdevs.len() == 1;
    if vdevs.iter().any(|name| !whole(name) && found(name).is_none()) {
        let mut text = format!("Expected a list of vdevs in \"{}\", but got:", pool.name);
        for name in vdevs {
            let what = if found(name).is_some() { "vdev in this pool" } else { "unknown" };
            text.push_str(&format!("\n\t{name} ({what})"));
        }
        return Err(text);
    }
    let mut out = Vec::new();
    for name in vdevs {
        let one = found(name).into_iter();
        let chosen: Vec<&VdevWithParent<'_>> =
            if whole(name) { all.iter().collect() } else { one.collect() };
        chosen.into_iter().for_each(|place| listed(*place, wanted, set, parsable, &mut out));
    }
    Ok(out)
}

/// The vdev of a pool by its name, path, last part of its path, or guid.
pub(super) fn find<'a>(pool: &'a Pool, name: &str) -> Option<&'a Vdev> {
    let mut all = Vec::new();
    with_parents(&pool.root, None, &mut all);
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

fn listed(
    place: VdevWithParent<'_>,
    wanted: Option<&[String]>,
    set: &SetProps,
    parsable: bool,
    out: &mut Vec<[String; 4]>,
) {
    let name = shown_name(place.vdev);
    let own = set.get(&place.vdev.guid).map_or(&[][..], Vec::as_slice);
    let mut row = |prop: &str| {
        if let Some((_, value)) = own.iter().find(|(name, _)| name == prop) {
            out.push([name.clone(), prop.to_owned(), value.clone(), "local".to_owned()]);
            return;
        }
        let (value, source) = text(value(place, prop, parsable), parsable);
        out.push([name.clone(), prop.to_owned(), value, source.to_owned()]);
    };
    match wanted {
        None => {
            PROPS.iter().skip(1).for_each(|p| row(p.0));
            own.iter().filter(|(name, _)| is_user_prop(name)).for_each(|(name, _)| row(name));
        }
        Some(list) => list.iter().for_each(|prop| row(prop)),
    }
}

/// A value's text, and its source.
fn text(found: VdevPropValue, parsable: bool) -> (String, &'static str) {
    let text = match found {
        VdevPropValue::Default(text) => return (text.to_owned(), "default"),
        VdevPropValue::None => "-".to_owned(),
        VdevPropValue::Text(text) => text,
        VdevPropValue::Number(n, NumberFormat::Exact) => n.to_string(),
        VdevPropValue::Number(n, _) if parsable => n.to_string(),
        VdevPropValue::Number(n, NumberFormat::Percent) => format!("{n}%"),
        VdevPropValue::Number(n, NumberFormat::Num) => nicenum(n),
    };
    (text, "-")
}

/// The number that OpenZFS prints for a state with `-p`.
fn state_number(state: VdevHealth) -> u64 {
    match state {
        VdevHealth::Offline => 2,
        VdevHealth::Removed => 3,
        VdevHealth::Unavail => 4,
        VdevHealth::Faulted => 5,
        VdevHealth::Degraded => 6,
        VdevHealth::Online => 7,
    }
}

/// The value in OpenZFS 2.4.4, including zeros; also zero for operations that Cenote never
/// does.
fn value(
    VdevWithParent { vdev: v, above }: VdevWithParent<'_>,
    name: &str,
    parsable: bool,
) -> VdevPropValue {
    use NumberFormat::{Exact, Num, Percent};
    let root = v.kind == "root";
    let leaf = v.children.is_empty() && !root;
    let number = |n: u64| VdevPropValue::Number(n, Num);
    match name {
        "name" => VdevPropValue::Text(shown_name(v)),
        "capacity" => {
            let share = (u128::from(v.allocated) * 100).checked_div(u128::from(v.size));
            VdevPropValue::Number(u64::try_from(share.unwrap_or(0)).unwrap_or(u64::MAX), Percent)
        }
        "state" if parsable => VdevPropValue::Number(state_number(v.state), Exact),
        "state" => VdevPropValue::Text(spare_word(v).unwrap_or_else(|| v.state.word()).to_owned()),
        "guid" => VdevPropValue::Number(v.guid, Exact),
        "asize" => number(v.asize),
        "psize" => number(v.psize),
        "ashift" => VdevPropValue::Number(u64::from(v.ashift), Exact),
        "size" => number(v.size),
        "free" => number(v.size.saturating_sub(v.allocated)),
        "allocated" => number(v.allocated),
        "expandsize" if v.expandsize > 0 => number(v.expandsize),
        "expandsize" => VdevPropValue::None,
        "fragmentation" => VdevPropValue::Number(v.fragmentation.unwrap_or(0), Percent),
        "bootsize" => VdevPropValue::Default("0"),
        "parity" => VdevPropValue::Number(u64::from(v.nparity), Exact),
        "path" => match v.path.as_ref().filter(|_| leaf) {
            Some(path) => VdevPropValue::Text(path.display().to_string()),
            None => VdevPropValue::Default("-"),
        },
        "parent" => match above {
            Some(above) if above.kind == "root" => VdevPropValue::Text(above.name.clone()),
            Some(above) => VdevPropValue::Text(shown_name(above)),
            None => VdevPropValue::Default("-"),
        },
        "children" if v.children.is_empty() => VdevPropValue::Default("-"),
        "children" => {
            let names: Vec<String> = v.children.iter().map(shown_name).collect();
            VdevPropValue::Text(names.join(","))
        }
        "numchildren" => VdevPropValue::Number(v.children.len() as u64, Exact),
        "read_errors" => number(v.read_errors),
        "write_errors" => number(v.write_errors),
        "checksum_errors" => number(v.checksum_errors),
        "read_ops" => number(v.io.reads),
        "write_ops" => number(v.io.writes),
        "read_bytes" => number(v.io.nread),
        "write_bytes" => number(v.io.nwritten),
        "slow_ios" => number(v.slow_ios),
        "sit_out" if leaf => VdevPropValue::Default(if v.sits_out { "on" } else { "off" }),
        "autosit" if matches!(v.kind.as_str(), "raidz" | "draid") => VdevPropValue::Default("off"),
        "initialize_errors" | "null_ops" | "free_ops" | "claim_ops" | "trim_ops" | "null_bytes"
        | "free_bytes" | "claim_bytes" | "trim_bytes" | "trim_errors" => number(0),
        "removing" => VdevPropValue::Text("off".to_owned()),
        "trim_support" if leaf => VdevPropValue::Text("off".to_owned()),
        // Only top-level vdevs take part in allocation.
        "allocating" if above.is_some_and(|above| above.kind != "root") => VdevPropValue::None,
        "allocating" | "failfast" | "slow_io_events" => VdevPropValue::Default("on"),
        "comment" | "devid" | "physpath" | "encpath" | "fru" | "checksum_n" | "checksum_t"
        | "io_n" | "io_t" | "slow_io_n" | "slow_io_t" => VdevPropValue::Default("-"),
        _ => VdevPropValue::None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::vdevs::tests::{pool, vdev};
    use super::*;
    use proto::VdevRole;

    fn tank() -> Pool {
        let disk = |n: u32| Vdev {
            psize: 200 << 20,
            ashift: 12,
            read_errors: 3,
            guid: u64::from(n),
            ..vdev("file", &format!("/tmp/d{n}"), VdevRole::Normal, vec![])
        };
        let mirror = Vdev {
            size: 160 << 20,
            allocated: 40 << 20,
            ..vdev("mirror", "mirror-0", VdevRole::Normal, vec![disk(1), disk(2)])
        };
        pool(vdev("root", "tank", VdevRole::Normal, vec![mirror]))
    }

    /// A user ran `zpool get all tank /tmp/d1`, and got the properties of the whole pool.
    #[test]
    fn a_vdev_has_properties_of_its_own() {
        let list = |vdevs: &[&str], props: &str, parsable| {
            let vdevs: Vec<String> = vdevs.iter().map(|v| (*v).to_owned()).collect();
            let wanted = wanted(props).unwrap();
            let rows = rows(&tank(), &vdevs, wanted.as_deref(), &SetProps::new(), parsable)?;
            Ok::<_, String>(rows.iter().map(|r| r.join(" ")).collect::<Vec<_>>())
        };
        assert_eq!(
            list(&["mirror-0", "/tmp/d1"], "size,cap,state,parent,rderr,a:b,allocating", false),
            Ok([
                "mirror-0 size 160M -",
                "mirror-0 capacity 25% -",
                "mirror-0 state ONLINE -",
                "mirror-0 parent tank -",
                "mirror-0 read_errors 0 -",
                "mirror-0 a:b - -",
                "mirror-0 allocating on default",
                "/tmp/d1 size 0 -",
                "/tmp/d1 capacity 0% -",
                "/tmp/d1 state ONLINE -",
                "/tmp/d1 parent mirror-0 -",
                "/tmp/d1 read_errors 3 -",
                "/tmp/d1 a:b - -",
                "/tmp/d1 allocating - -",
            ]
            .map(str::to_owned)
            .to_vec())
        );
        assert_eq!(
            list(&["d2"], "psize,ashift,path,state,children", true).unwrap(),
            [
                "/tmp/d2 psize 209715200 -",
                "/tmp/d2 ashift 12 -",
                "/tmp/d2 path /tmp/d2 -",
                "/tmp/d2 state 7 -",
                "/tmp/d2 children - default"
            ]
        );
        let rows = list(&["all-vdevs"], "children,numchildren", false).unwrap();
        assert_eq!(rows[..2], ["root-0 children mirror-0 -", "root-0 numchildren 1 -"]);
        assert_eq!(rows[2], "mirror-0 children /tmp/d1,/tmp/d2 -");
        assert_eq!(rows.len(), 8);
        assert_eq!(
            list(&["/tmp/d1", "nosuch"], "size", false).unwrap_err(),
            "Expected a list of vdevs in \"tank\", but got:\n\t/tmp/d1 (vdev in this pool)\n\tnosuch \
             (unknown)"
        );
        assert_eq!(list(&["/tmp/d1"], "all", false).unwrap().len(), 51);
        assert!(wanted("size,nope").unwrap_err().contains("'nope'"));
    }
}
