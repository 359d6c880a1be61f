//! The results of a bench: tables, charts, targets; as text and as JSON.
//!
//! JSON is one object: `bench`, `version`, `machine`, `settings`, `tables` (by name, each a
//! list of objects), `targets` and `notes`. Ratios are between 0 and 1, sizes are in bytes,
//! names of times contain their unit.

use std::fmt::Write as _;
use std::io::Write as _;

use base::{Error, Result, rt};
use serde_json::{Map, Value, json};
use ui::table;
use ui::terminal::TerminalStyle;

use super::chart::{Axes, Chart, Series, Shape};
use super::frag_map::MapFigure;

/// One value of a table.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Cell {
    Text(String),
    Count(u64),
    Bytes(u64),
    Real(f64),
    /// Between 0 and 1; shown as a percentage.
    Ratio(f64),
    /// Did not happen or does not apply.
    Nothing,
}

impl From<&str> for Cell {
    fn from(text: &str) -> Cell {
        Cell::Text(text.to_owned())
    }
}

impl Cell {
    /// A number, or nothing.
    pub(super) fn real(value: Option<f64>) -> Cell {
        value.filter(|v| v.is_finite()).map_or(Cell::Nothing, Cell::Real)
    }

    /// A ratio, or nothing.
    pub(super) fn ratio(value: Option<f64>) -> Cell {
        value.filter(|v| v.is_finite()).map_or(Cell::Nothing, Cell::Ratio)
    }

    fn show(&self) -> String {
        match self {
            Cell::Text(text) => text.clone(),
            Cell::Count(n) => grouped(*n),
            Cell::Bytes(n) => cenote::props::nicebytes(*n),
            Cell::Real(v) if !v.is_finite() => "n/a".to_owned(),
            Cell::Real(v) if v.abs() >= 1000.0 => {
                let sign = if *v < 0.0 { "-" } else { "" };
                format!("{sign}{}", grouped(v.abs().round() as u64))
            }
            Cell::Real(v) if v.abs() >= 100.0 => format!("{v:.0}"),
            Cell::Real(v) if v.abs() >= 10.0 => format!("{v:.1}"),
            Cell::Real(v) => format!("{v:.2}"),
            Cell::Ratio(v) => format!("{:.1}%", v * 100.0),
            Cell::Nothing => "n/a".to_owned(),
        }
    }

    fn json(&self) -> Value {
        match self {
            Cell::Text(text) => json!(text),
            Cell::Count(n) | Cell::Bytes(n) => json!(n),
            Cell::Real(v) | Cell::Ratio(v) if v.is_finite() => json!(v),
            Cell::Real(_) | Cell::Ratio(_) | Cell::Nothing => Value::Null,
        }
    }
}

/// A number with separators between thousands.
fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A table: columns have a key for JSON and a heading for people.
#[derive(Clone, Debug)]
pub(super) struct ReportTable {
    pub(super) name: &'static str,
    pub(super) columns: Vec<(&'static str, &'static str)>,
    pub(super) rows: Vec<Vec<Cell>>,
    /// Already printed during the measurement; only JSON still needs it.
    pub(super) shown: bool,
}

impl ReportTable {
    pub(super) fn new(name: &'static str, columns: &[(&'static str, &'static str)]) -> ReportTable {
        ReportTable { name, columns: columns.to_vec(), rows: Vec::new(), shown: false }
    }

    fn text(&self) -> String {
        let is_text = |i: usize| {
            let mut values = self.rows.iter().filter_map(|r| r.get(i));
            values.all(|c| matches!(c, Cell::Text(_)))
        };
        let column = |(i, c): (usize, &(&str, &str))| table::Column {
            right: !is_text(i),
            ..table::Column::text(c.1)
        };
        let columns: Vec<_> = self.columns.iter().enumerate().map(column).collect();
        let rows: Vec<Vec<String>> =
            self.rows.iter().map(|r| r.iter().map(Cell::show).collect()).collect();
        table::render(&columns, &rows, false)
    }

    fn json(&self) -> Value {
        let row = |r: &Vec<Cell>| -> Value {
            let fields = self.columns.iter().zip(r).map(|(c, v)| (c.0.to_owned(), v.json()));
            Value::Object(fields.collect::<Map<_, _>>())
        };
        Value::Array(self.rows.iter().map(row).collect())
    }
}

/// A target and the measured figure.
#[derive(Clone, Debug)]
pub(super) struct TargetFigure {
    pub(super) what: String,
    pub(super) value: f64,
    pub(super) bound: f64,
    /// The value must be at least the bound; else at most.
    pub(super) at_least: bool,
}

impl TargetFigure {
    /// Whether it is reached; a figure that could not be measured is not.
    pub(super) fn reached(&self) -> bool {
        if self.at_least { self.value >= self.bound } else { self.value <= self.bound }
    }

    fn text(&self) -> String {
        let number = |v: f64| Cell::Real(v).show();
        // Enough digits to distinguish values that are nearly equal.
        let near = |v: f64| if v.abs() < 10.0 { format!("{v:.3}") } else { number(v) };
        let value = if self.value.is_finite() { near(self.value) } else { "n/a".to_owned() };
        let sign = if self.at_least { ">=" } else { "<=" };
        let word = if self.reached() { "reached" } else { "missed" };
        format!("target {word}: {}: {value} ({sign} {})", self.what, near(self.bound))
    }
}

/// The whole report of a bench.
#[derive(Clone, Debug, Default)]
pub(super) struct Report {
    pub(super) bench: &'static str,
    pub(super) settings: Vec<(&'static str, Cell)>,
    pub(super) tables: Vec<ReportTable>,
    /// Figures before the charts.
    pub(super) maps: Vec<MapFigure>,
    pub(super) charts: Vec<Chart>,
    pub(super) targets: Vec<TargetFigure>,
    /// Parts that were skipped, with the reasons.
    pub(super) notes: Vec<String>,
}

impl Report {
    pub(super) fn set(&mut self, name: &'static str, value: Cell) {
        self.settings.push((name, value));
    }

    pub(super) fn at_least(&mut self, what: impl Into<String>, value: f64, bound: f64) {
        self.targets.push(TargetFigure { what: what.into(), value, bound, at_least: true });
    }

    pub(super) fn at_most(&mut self, what: impl Into<String>, value: f64, bound: f64) {
        self.targets.push(TargetFigure { what: what.into(), value, bound, at_least: false });
    }

    pub(super) fn chart(
        &mut self,
        shape: Shape,
        title: &str,
        labels: Vec<String>,
        series: Vec<(String, Vec<f64>)>,
    ) {
        let series = series.into_iter().map(|(name, values)| Series { name, values }).collect();
        let axes = Axes::default();
        self.charts.push(Chart { title: title.to_owned(), shape, labels, series, axes });
    }

    /// The report for people.
    pub(super) fn text(&self, look: TerminalStyle) -> String {
        let mut blocks = Vec::new();
        if !self.settings.is_empty() {
            let one = |(name, value): &(&str, Cell)| format!("{name} {}", value.show());
            let all: Vec<String> = self.settings.iter().map(one).collect();
            blocks.push(format!("{}: {}\n", self.bench, all.join(", ")));
        }
        let tables = self.tables.iter().filter(|t| !t.shown && !t.rows.is_empty());
        blocks.extend(tables.map(ReportTable::text));
        blocks.extend(self.maps.iter().map(|m| m.draw(look)));
        blocks.extend(self.charts.iter().map(|c| c.draw(look)));
        let mut last = String::new();
        for target in &self.targets {
            let _ = writeln!(last, "{}", target.text());
        }
        for note in &self.notes {
            let _ = writeln!(last, "note: {note}");
        }
        blocks.push(last);
        blocks.retain(|b| !b.is_empty());
        blocks.join("\n")
    }

    /// The report for programs.
    pub(super) fn json(&self, machine: Value) -> Value {
        let settings: Map<_, _> =
            self.settings.iter().map(|(name, v)| (name.replace(' ', "_"), v.json())).collect();
        let tables: Map<_, _> = self.tables.iter().map(|t| (t.name.to_owned(), t.json())).collect();
        let target = |t: &TargetFigure| {
            let value = if t.value.is_finite() { json!(t.value) } else { Value::Null };
            let bound = if t.at_least { "at_least" } else { "at_most" };
            json!({ "what": t.what, "value": value, bound: t.bound, "reached": t.reached() })
        };
        json!({
            "bench": self.bench,
            "version": env!("CARGO_PKG_VERSION"),
            "machine": machine,
            "settings": settings,
            "tables": tables,
            "targets": self.targets.iter().map(target).collect::<Vec<_>>(),
            "notes": self.notes,
        })
    }
}

/// The machine of the measurements: processors, memory, kernel, load.
pub(super) fn machine() -> Value {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let load = read("/proc/loadavg");
    let load = load.split(' ').next().and_then(|w| w.parse::<f64>().ok());
    let kib = |line: &str| line.trim().strip_suffix(" kB")?.parse::<u64>().ok();
    let memory = read("/proc/meminfo");
    let memory = memory.lines().find_map(|l| l.strip_prefix("MemTotal:")).and_then(kib);
    let model = read("/proc/cpuinfo");
    let model = model.lines().find_map(|l| l.strip_prefix("model name")?.split_once(": "));
    json!({
        "time": rt::wall_clock().as_secs(),
        "processors": rt::parallelism(),
        "processor": model.map(|m| m.1.to_owned()),
        "memory": memory.map(|kib| kib << 10),
        "kernel": read("/proc/sys/kernel/osrelease").trim(),
        "load": load,
    })
}

/// Writes JSON to a file, or to standard output for `-`.
///
/// # Errors
/// The file cannot be written.
pub(super) fn write_json(path: &str, value: &Value) -> Result<()> {
    let text = serde_json::to_string_pretty(value).map_err(|e| Error::bug(e.to_string()))? + "\n";
    write_file(path, &text)
}

/// Writes a text to a file, or to standard output for `-`.
///
/// # Errors
/// The file cannot be written.
pub(super) fn write_file(path: &str, text: &str) -> Result<()> {
    if path == "-" {
        ui::out(text);
        return Ok(());
    }
    let io = |e| Error::io("cannot write", e).on_path(path);
    let mut file = std::fs::File::create(path).map_err(io)?;
    file.write_all(text.as_bytes()).map_err(io)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let mut table =
            ReportTable::new("rates", &[("name", "NAME"), ("rate", "READS/S"), ("hit", "HIT")]);
        table.rows.push(vec!["a".into(), Cell::Real(1_234_567.8), Cell::ratio(Some(0.5))]);
        table.rows.push(vec!["bcd".into(), Cell::Real(2.0), Cell::ratio(Some(f64::NAN))]);
        let mut report = Report { bench: "try", tables: vec![table], ..Report::default() };
        report.set("the cache", Cell::Bytes(3 << 29));
        report.at_least("more is better", 0.979, 0.98);
        report.at_most("less is better", 0.979, 0.98);
        report.at_least("never measured", f64::NAN, 0.0);
        report.notes.push("the rest was left out".into());
        report
    }

    #[test]
    fn for_people() {
        let look = TerminalStyle { width: 80, color: false, unicode: false };
        assert_eq!(
            report().text(look),
            "try: the cache 1.50G\n\n\
             NAME    READS/S    HIT\n\
             a     1,234,568  50.0%\n\
             bcd        2.00    n/a\n\n\
             target missed: more is better: 0.979 (>= 0.980)\n\
             target reached: less is better: 0.979 (<= 0.980)\n\
             target missed: never measured: n/a (>= 0.000)\n\
             note: the rest was left out\n"
        );
    }

    #[test]
    fn for_programs() {
        let value = report().json(Value::Null);
        assert_eq!(
            value,
            json!({
                "bench": "try",
                "version": env!("CARGO_PKG_VERSION"),
                "machine": null,
                "settings": { "the_cache": 1_610_612_736 },
                "tables": { "rates": [
                    { "name": "a", "rate": 1_234_567.8, "hit": 0.5 },
                    { "name": "bcd", "rate": 2.0, "hit": null },
                ] },
                "targets": [
                    { "what": "more is better", "value": 0.979, "at_least": 0.98, "reached": false },
                    { "what": "less is better", "value": 0.979, "at_most": 0.98, "reached": true },
                    { "what": "never measured", "value": null, "at_least": 0.0, "reached": false },
                ],
                "notes": ["the rest was left out"],
            })
        );
        let machine = machine();
        assert!(machine["processors"].as_u64() >= Some(1));
        assert!(machine["memory"].as_u64() > Some(1 << 20));
    }

    #[test]
    fn thousands() {
        assert_eq!(Cell::Real(-1234.4).show(), "-1,234");
        for (n, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(grouped(n), text);
        }
    }
}
