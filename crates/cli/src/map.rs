//! The output of `zpool map` and `cenote map`: text, JSON or a picture, once or repeatedly.
//!
//! On a terminal, repeated reports replace each other in place, cut to the terminal's height.
//! Otherwise an empty line separates them. JSON has one line for each report.

use base::{Error, Result};
use cenote::VdevClass;
use cenote::props::nicenum;
use cenote::space_map::{MetaslabMap, PoolMap, SegmentHistogram, VdevMap, percent};
use commands::getopt::Parsed;
use ui::Exit;
use ui::json::Json;
use ui::map::{self, MapStyle};
use ui::terminal::{TerminalStyle, can_redraw};

use crate::zpool::Repeat;

/// Lines of cells for all vdevs where the terminal's height is unknown, and the limits for
/// each vdev.
const LINES: usize = 48;
const VDEV_LINES: std::ops::RangeInclusive<usize> = 3..=32;

/// The form of numbers in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JsonNumbers {
    /// Strings such as `1.50G`.
    Short,
    /// Strings of digits.
    Exact,
    /// Numbers.
    Int,
}

/// The options of both commands.
#[derive(Clone, Debug)]
pub(crate) struct MapOptions {
    /// The command, for JSON.
    command: &'static str,
    names: Vec<String>,
    exact: bool,
    json: Option<JsonNumbers>,
    /// The file of the picture; `-` is standard output.
    picture: Option<String>,
    repeat: Repeat,
}

impl MapOptions {
    /// The options of a command line; an error is the message before the usage.
    pub(crate) fn of(
        command: &'static str,
        parsed: &Parsed,
    ) -> std::result::Result<MapOptions, String> {
        let mut names = parsed.words();
        let repeat = Repeat::take(&mut names, parsed.last('T'))?;
        if names.is_empty() {
            return Err("missing pool argument".to_owned());
        }
        let exact = parsed.has('p');
        let json = match (parsed.has('J'), parsed.has('j'), exact) {
            (true, ..) => Some(JsonNumbers::Int),
            (_, true, true) => Some(JsonNumbers::Exact),
            (_, true, false) => Some(JsonNumbers::Short),
            (false, false, _) => None,
        };
        let picture = parsed.last('o');
        if picture.as_deref() == Some("") {
            return Err("missing file name for 'o' option".to_owned());
        }
        if json.is_some() && picture.as_deref() == Some("-") {
            return Err("only one of -j and '-o -' can write to standard output".to_owned());
        }
        Ok(MapOptions { command, names, exact, json, picture, repeat })
    }
}

/// The maps of the pools that a command names.
#[derive(Debug, Default)]
pub(crate) struct SpaceMaps {
    pub(crate) maps: Vec<PoolMap>,
    /// A pool was left out, after a message.
    pub(crate) failed: bool,
}

/// Reports as often as the options say; `read` reads the maps of the named pools.
///
/// # Errors
/// Those of `read`; the picture cannot be written.
pub(crate) fn run(
    options: MapOptions,
    mut read: impl FnMut(&[String]) -> Result<SpaceMaps>,
) -> Result<Exit> {
    let MapOptions { command, names, exact, json, picture, repeat } = options;
    let redraw = repeat.repeats() && can_redraw();
    let mut first = true;
    repeat.run_stamped(|stamp| {
        let found = read(&names)?;
        let exit = Exit::failed_if(found.failed);
        if found.maps.is_empty() {
            return Ok(exit);
        }
        if let Some(path) = &picture {
            write_picture(path, &map::svg(&found.maps))?;
        }
        if let Some(numbers) = json {
            ui::out(&format!("{}\n", output(command, &found.maps, numbers)));
        } else if picture.is_none() {
            let terminal = TerminalStyle::of_stdout();
            let rows = ui::rows();
            let lines = lines(rows, &found.maps);
            let page =
                page(stamp, &found.maps, MapStyle { terminal, exact, lines, histograms: true });
            ui::out(&match (redraw, first) {
                (true, _) => frame(&page, rows, first),
                (false, true) => page,
                (false, false) => format!("\n{page}"),
            });
        }
        first = false;
        Ok(exit)
    })
}

fn write_picture(path: &str, svg: &str) -> Result<()> {
    if path == "-" {
        ui::out(svg);
        return Ok(());
    }
    std::fs::write(path, svg).map_err(|e| Error::io("cannot write", e).on_path(path))
}

/// Lines of cells for each vdev: two thirds of the terminal are for cells.
fn lines(rows: Option<usize>, maps: &[PoolMap]) -> usize {
    let vdevs: usize = maps.iter().map(|map| map.vdevs.len()).sum();
    let all = rows.map_or(LINES, |rows| rows * 2 / 3);
    (all / vdevs.max(1)).clamp(*VDEV_LINES.start(), *VDEV_LINES.end())
}

/// One report as text.
fn page(stamp: &str, maps: &[PoolMap], style: MapStyle) -> String {
    let mut out = stamp.to_owned();
    for map in maps {
        out.push_str(&map::text(map, style));
        out.push('\n');
    }
    out + &map::legend(style)
}

/// A page that replaces the one before it on a terminal of that many rows.
fn frame(page: &str, rows: Option<usize>, first: bool) -> String {
    // The first frame clears the terminal. The others overwrite line by line: no flicker. A
    // line is erased before it is written, because an erasure behind a line as wide as the
    // terminal takes its last character away.
    let mut out = if first { "\x1b[2J\x1b[H" } else { "\x1b[H" }.to_owned();
    let all = page.lines().count();
    // The cursor is in the last row after the page.
    let room = rows.map_or(all, |rows| rows - 1).max(1);
    let shown = if all > room { room - 1 } else { all };
    for line in page.lines().take(shown) {
        out.push_str(&format!("\x1b[K{line}\n"));
    }
    if shown < all {
        out.push_str(&format!("\x1b[K({} more lines)\n", all - shown));
    }
    out + "\x1b[J"
}

/// The whole output as JSON.
fn output(command: &str, maps: &[PoolMap], numbers: JsonNumbers) -> Json {
    let pools = maps.iter().map(|map| (map.name.clone(), numbers.pool(map)));
    Json::output(command, [("pools", Json::object(pools))])
}

impl JsonNumbers {
    /// A number that is exact in each form.
    fn exact(self, n: u64) -> Json {
        if self == JsonNumbers::Int { Json::Int(n.into()) } else { Json::str(n.to_string()) }
    }

    /// A number of bytes or segments.
    fn number(self, n: u64) -> Json {
        if self == JsonNumbers::Short { Json::str(nicenum(n)) } else { self.exact(n) }
    }

    fn percent(self, percent: Option<u64>) -> Json {
        match (self, percent) {
            (_, None) => Json::str("-"),
            (JsonNumbers::Short, Some(p)) => Json::str(format!("{p}%")),
            (_, Some(p)) => self.exact(p),
        }
    }

    /// The properties of a pool, vdev or metaslab, with their names in `zpool list`.
    fn space(
        self,
        size: u64,
        allocated: u64,
        fragmentation: Option<u64>,
        segments: &SegmentHistogram,
    ) -> [(&'static str, Json); 6] {
        [
            ("size", self.number(size)),
            ("allocated", self.number(allocated)),
            ("free", self.number(size.saturating_sub(allocated))),
            ("capacity", self.percent(Some(percent(allocated, size)))),
            ("fragmentation", self.percent(fragmentation)),
            ("segments", self.segments(segments)),
        ]
    }

    /// Counts by the bytes of the smallest segment of the class.
    fn segments(self, segments: &SegmentHistogram) -> Json {
        let rows = segments.rows().filter(|(_, n)| *n > 0);
        Json::object(
            rows.map(|(class, n)| (SegmentHistogram::bytes(class, 1).to_string(), self.number(n))),
        )
    }

    fn pool(self, map: &PoolMap) -> Json {
        let mut out = vec![
            ("name", Json::str(&*map.name)),
            ("type", Json::str("POOL")),
            ("state", Json::str(map.state.to_string())),
            ("pool_guid", self.exact(map.guid.0)),
            ("txg", self.exact(map.txg.0)),
            ("spa_version", self.exact(map.version)),
            ("zpl_version", self.exact(5)),
        ];
        out.extend(self.space(map.size, map.allocated, map.fragmentation, &map.segments));
        let vdevs = map.vdevs.iter().map(|v| (v.name.clone(), self.vdev(v)));
        out.push(("vdevs", Json::object(vdevs)));
        Json::object(out)
    }

    fn vdev(self, v: &VdevMap) -> Json {
        let class = match v.class {
            VdevClass::Normal => "normal",
            VdevClass::Dedup => "dedup",
            VdevClass::Special => "special",
            VdevClass::Log => "log",
            VdevClass::Cache => "l2cache",
            VdevClass::Spare => "spare",
        };
        let mut out = vec![
            ("name", Json::str(&*v.name)),
            ("guid", self.exact(v.guid.0)),
            ("id", self.exact(v.id)),
            ("class", Json::str(class)),
            ("ashift", self.exact(v.ashift.into())),
            ("metaslab_size", self.number(v.metaslab_size)),
        ];
        out.extend(self.space(v.size, v.allocated, v.fragmentation, &v.segments));
        let metaslabs = v.metaslabs.iter().map(|m| self.metaslab(m)).collect();
        out.push(("metaslabs", Json::Array(metaslabs)));
        Json::object(out)
    }

    fn metaslab(self, m: &MetaslabMap) -> Json {
        let unflushed = match self {
            JsonNumbers::Int => Json::Int(m.unflushed.into()),
            _ => Json::str(m.unflushed.to_string()),
        };
        let mut out = vec![("id", self.exact(m.id))];
        out.extend(self.space(m.size, m.allocated, m.fragmentation, &m.segments));
        out.push(("unflushed", unflushed));
        Json::object(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::{Guid, Txg};
    use cenote::VdevState;
    use serde_json::{Value, json};

    fn pool() -> PoolMap {
        let segments = SegmentHistogram::new([0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 2000]);
        let metaslab = |id| MetaslabMap {
            id,
            size: 16 << 20,
            allocated: 12 << 20,
            unflushed: -512,
            fragmentation: Some(80).filter(|_| id == 0),
            segments: segments.clone(),
        };
        let vdev = VdevMap {
            name: "mirror-0".into(),
            id: 0,
            guid: Guid(u64::MAX),
            class: VdevClass::Normal,
            ashift: 9,
            metaslab_size: 16 << 20,
            size: 32 << 20,
            allocated: 24 << 20,
            fragmentation: Some(80),
            segments: segments.clone(),
            metaslabs: vec![metaslab(0), metaslab(1)],
        };
        PoolMap {
            name: "tank".into(),
            guid: Guid(7),
            state: VdevState::Online,
            txg: Txg(12),
            version: 5000,
            size: 32 << 20,
            allocated: 24 << 20,
            fragmentation: Some(80),
            segments,
            vdevs: vec![vdev],
        }
    }

    fn parsed(numbers: JsonNumbers) -> Value {
        serde_json::from_str(&output("zpool map", &[pool()], numbers).to_string()).unwrap()
    }

    /// The keys and types of the output, in each form of numbers.
    #[test]
    fn the_schema_of_json() {
        let text = output("zpool map", &[pool()], JsonNumbers::Short).to_string();
        assert!(text.starts_with(
            "{\"output_version\":{\"command\":\"zpool map\",\"vers_major\":0,\"vers_minor\":1},\
             \"pools\":{\"tank\":{\"name\":\"tank\",\"type\":\"POOL\",\"state\":\"ONLINE\","
        ));
        let segments = |few: Value, many: Value| json!({ "512": few, "2048": many });
        let exact = parsed(JsonNumbers::Int);
        let [few, many] = [json!(3), json!(2000)];
        let metaslab = |id: u64, fragmentation: Value| {
            json!({
                "id": id, "size": 16 << 20, "allocated": 12 << 20, "free": 4 << 20,
                "capacity": 75, "fragmentation": fragmentation,
                "segments": segments(few.clone(), many.clone()), "unflushed": -512,
            })
        };
        let wanted = json!({
            "name": "tank", "type": "POOL", "state": "ONLINE", "pool_guid": 7, "txg": 12,
            "spa_version": 5000, "zpl_version": 5, "size": 32 << 20, "allocated": 24 << 20,
            "free": 8 << 20, "capacity": 75, "fragmentation": 80,
            "segments": segments(few.clone(), many.clone()),
            "vdevs": { "mirror-0": {
                "name": "mirror-0", "guid": u64::MAX, "id": 0, "class": "normal", "ashift": 9,
                "metaslab_size": 16 << 20, "size": 32 << 20, "allocated": 24 << 20,
                "free": 8 << 20, "capacity": 75, "fragmentation": 80,
                "segments": segments(few.clone(), many.clone()),
                "metaslabs": [metaslab(0, json!(80)), metaslab(1, json!("-"))],
            } },
        });
        assert_eq!(exact["pools"]["tank"], wanted);
        let short = &parsed(JsonNumbers::Short)["pools"]["tank"];
        assert_eq!(short["size"], "32M");
        assert_eq!(short["fragmentation"], "80%");
        assert_eq!(short["segments"], segments(json!("3"), json!("1.95K")));
        let strings = &parsed(JsonNumbers::Exact)["pools"]["tank"];
        assert_eq!(strings["vdevs"]["mirror-0"]["metaslabs"][1]["unflushed"], "-512");
        assert_eq!(strings["capacity"], "75");
    }

    #[test]
    fn frames_are_cut_to_the_terminal() {
        assert_eq!(frame("a\nb\n", Some(5), true), "\x1b[2J\x1b[H\x1b[Ka\n\x1b[Kb\n\x1b[J");
        assert_eq!(
            frame("a\nb\nc\nd\n", Some(4), false),
            "\x1b[H\x1b[Ka\n\x1b[Kb\n\x1b[K(2 more lines)\n\x1b[J"
        );
        assert_eq!(frame("a\nb\nc\n", Some(4), false).matches('\n').count(), 3);
    }

    #[test]
    fn vdevs_share_the_terminal() {
        assert_eq!(lines(Some(24), &[pool()]), 16);
        assert_eq!(lines(Some(24), &vec![pool(); 8]), 3);
        assert_eq!((lines(None, &[pool()]), lines(None, &[])), (32, 32));
    }

    #[test]
    fn command_lines() {
        let of = |words: &[&str]| {
            let argv: Vec<_> = words.iter().map(|w| (*w).into()).collect();
            MapOptions::of("zpool map", &commands::find("zpool", "map").parse(&argv).unwrap())
        };
        let numbers = |words: &[&str]| of(words).unwrap().json;
        assert_eq!(numbers(&["a", "-p"]), None);
        assert_eq!(numbers(&["a", "-j"]), Some(JsonNumbers::Short));
        assert_eq!(numbers(&["a", "-jp"]), Some(JsonNumbers::Exact));
        assert_eq!(numbers(&["a", "--json-int"]), Some(JsonNumbers::Int));
        let refused = |words: &[&str], message: &str| assert_eq!(of(words).unwrap_err(), message);
        refused(&[], "missing pool argument");
        refused(&["1", "2"], "missing pool argument");
        refused(&["a", "0"], "interval cannot be zero");
        refused(&["a", "-T", "x"], "invalid time format");
        refused(&["a", "-o", ""], "missing file name for 'o' option");
        refused(&["a", "-j", "-o", "-"], "only one of -j and '-o -' can write to standard output");
        let both = of(&["a", "b", "-o", "x.svg", "2", "3"]).unwrap();
        assert_eq!((both.names.join(" "), both.picture.as_deref()), ("a b".into(), Some("x.svg")));
        assert!(both.repeat.repeats() && !of(&["a", "2", "1"]).unwrap().repeat.repeats());
    }
}
