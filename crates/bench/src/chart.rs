//! Charts in the terminal: bars and lines over labelled steps.
//!
//! A capable terminal gets eighths of blocks, braille dots and colours; any other output gets
//! plain characters in 80 columns.

use std::fmt::Write;

use ui::terminal::{TerminalStyle, bar};

/// The form of a chart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// One bar for each value.
    Bars,
    /// One line for each series.
    Lines,
}

/// Values of one kind.
#[derive(Clone, Debug)]
pub(super) struct Series {
    pub(super) name: String,
    /// One for each label; not a number where a value is missing.
    pub(super) values: Vec<f64>,
}

/// A chart.
#[derive(Clone, Debug)]
pub(super) struct Chart {
    pub(super) title: String,
    pub(super) shape: Shape,
    pub(super) labels: Vec<String>,
    pub(super) series: Vec<Series>,
    pub(super) axes: Axes,
}

/// What the axes show, with units; empty texts are left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Axes {
    /// The labels.
    pub(super) across: &'static str,
    /// The values.
    pub(super) up: &'static str,
}

/// Height of a chart with lines.
const HEIGHT: usize = 10;
/// Marks of series without dots and colours.
const MARKS: [char; 6] = ['*', 'o', '+', 'x', '#', '@'];
const COLORS: [u8; 6] = [36, 33, 35, 32, 31, 34];
/// Bits of a braille character's dots, by column and row.
const DOTS: [[u32; 4]; 2] = [[0x01, 0x02, 0x04, 0x40], [0x08, 0x10, 0x20, 0x80]];

/// The capabilities of standard output. Charts are 40 to 160 columns wide.
pub(super) fn style_of_stdout() -> TerminalStyle {
    let style = TerminalStyle::of_stdout();
    TerminalStyle { width: style.width.clamp(40, 160), ..style }
}

/// Three digits and a suffix of thousands: `1.23M`, `45.6k`, `0.917`.
pub(super) fn short(value: f64) -> String {
    if !value.is_finite() {
        return "n/a".to_owned();
    }
    let size = value.abs();
    let (scaled, suffix) = match size {
        _ if size >= 999.5e6 => (value / 1e9, "G"),
        _ if size >= 999.5e3 => (value / 1e6, "M"),
        _ if size >= 9_999.5 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let digits = match scaled.abs() {
        s if s >= 99.95 || s == 0.0 => 0,
        s if s >= 9.995 => 1,
        s if s >= 0.9995 => 2,
        _ => 3,
    };
    format!("{scaled:.digits$}{suffix}")
}

impl Chart {
    /// The largest value, or a small positive number.
    pub(super) fn top(&self) -> f64 {
        let values = self.series.iter().flat_map(|s| &s.values);
        let top = values.copied().filter(|v| v.is_finite()).fold(0.0, f64::max);
        if top > 0.0 { top } else { 1.0 }
    }

    /// The picture as text.
    pub(super) fn draw(&self, look: TerminalStyle) -> String {
        let mut out = format!("{}\n", self.title);
        match self.shape {
            Shape::Bars => self.bars(look, &mut out),
            Shape::Lines => self.lines(look, &mut out),
        }
        out
    }

    fn bars(&self, look: TerminalStyle, out: &mut String) {
        let many = self.series.len() > 1;
        let mut rows = Vec::new();
        for (i, label) in self.labels.iter().enumerate() {
            for (n, series) in self.series.iter().enumerate() {
                let name = match (many, n) {
                    (false, _) => label.clone(),
                    (true, 0) => format!("{label}  {}", series.name),
                    (true, _) => format!("{:w$}  {}", "", series.name, w = label.chars().count()),
                };
                let value = series.values.get(i).copied().unwrap_or(f64::NAN);
                rows.push((n, name, value));
            }
        }
        let names = rows.iter().map(|r| r.1.chars().count()).max().unwrap_or(0);
        let room = look.width.saturating_sub(names + 10).max(8);
        let top = self.top();
        for (n, name, value) in rows {
            let share = if value.is_finite() { (value / top).clamp(0.0, 1.0) } else { 0.0 };
            let bar = paint(&bar(share * room as f64, look.unicode), n, look);
            let _ = writeln!(out, "  {name:<names$} {bar} {}", short(value));
        }
    }

    fn lines(&self, look: TerminalStyle, out: &mut String) {
        let top = self.top();
        let room = look.width.saturating_sub(10).max(16);
        let canvas = self.canvas(room, top, look.unicode);
        if !self.axes.up.is_empty() {
            let _ = writeln!(out, "{:9}{}", "", self.axes.up);
        }
        for (row, cells) in canvas.chunks(room).enumerate() {
            let axis = match row {
                0 => short(top),
                r if r + 1 == HEIGHT => "0".to_owned(),
                _ => String::new(),
            };
            let _ = write!(out, "{axis:>7} {}", if look.unicode { '┤' } else { '|' });
            let used = cells.iter().rposition(|c| c.0 != ' ').map_or(0, |at| at + 1);
            for run in cells[..used].chunk_by(|a, b| a.1 == b.1) {
                let text: String = run.iter().map(|c| c.0).collect();
                out.push_str(&paint(&text, run[0].1, look));
            }
            out.push('\n');
        }
        let first = self.labels.first().map_or("", String::as_str);
        let last = self.labels.last().map_or("", String::as_str);
        let gap = room.saturating_sub(first.chars().count());
        let _ = writeln!(out, "{:9}{first}{last:>gap$}", "");
        if !self.axes.across.is_empty() {
            let _ = writeln!(out, "{:9}{:^room$}", "", self.axes.across);
        }
        let legend = self.series.iter().enumerate().map(|(n, s)| {
            let mark = if look.unicode { '━' } else { MARKS[n % MARKS.len()] };
            format!("{} {}", paint(&mark.to_string(), n, look), s.name)
        });
        let _ = writeln!(out, "{:9}{}", "", legend.collect::<Vec<_>>().join("   "));
    }

    /// Characters with the index of their series, row by row.
    fn canvas(&self, room: usize, top: f64, dots: bool) -> Vec<(char, usize)> {
        let (across, down) = if dots { (2, 4) } else { (1, 1) };
        let (columns, rows) = (room * across, HEIGHT * down);
        let mut bits = vec![(0u32, 0usize); room * HEIGHT];
        for (n, series) in self.series.iter().enumerate() {
            let mut before: Option<usize> = None;
            for x in 0..columns {
                let Some(value) = at(&series.values, x as f64 / (columns - 1).max(1) as f64) else {
                    before = None;
                    continue;
                };
                let height = (value / top).clamp(0.0, 1.0) * (rows - 1) as f64;
                let y = rows - 1 - height.round() as usize;
                let from = if dots { before.unwrap_or(y) } else { y };
                for y in from.min(y)..=from.max(y) {
                    let cell = &mut bits[y / down * room + x / across];
                    *cell = (cell.0 | DOTS[x % across][y % down], n);
                }
                before = Some(y);
            }
        }
        let mark = |(bits, n): (u32, usize)| match bits {
            0 => (' ', n),
            _ if dots => (char::from_u32(0x2800 + bits).unwrap_or(' '), n),
            _ => (MARKS[n % MARKS.len()], n),
        };
        bits.into_iter().map(mark).collect()
    }
}

/// The value at a fraction of the distance from the first to the last, interpolated between two
/// values; `None` next to a gap.
fn at(values: &[f64], share: f64) -> Option<f64> {
    let place = share * values.len().saturating_sub(1) as f64;
    let left = *values.get(place.floor() as usize)?;
    let right = *values.get(place.ceil() as usize)?;
    let value = left + (right - left) * place.fract();
    value.is_finite().then_some(value)
}

fn paint(text: &str, series: usize, look: TerminalStyle) -> String {
    if !look.color || text.trim().is_empty() {
        return text.to_owned();
    }
    format!("\x1b[{}m{text}\x1b[0m", COLORS[series % COLORS.len()])
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: TerminalStyle = TerminalStyle { width: 40, color: false, unicode: false };

    fn chart(shape: Shape) -> Chart {
        let series =
            |name: &str, values: &[f64]| Series { name: name.into(), values: values.into() };
        Chart {
            title: "reads/s".into(),
            shape,
            labels: vec!["one".into(), "three".into()],
            series: vec![series("a", &[10.0, 20.0]), series("b", &[f64::NAN, 5.0])],
            axes: Axes::default(),
        }
    }

    #[test]
    fn bars() {
        assert_eq!(
            chart(Shape::Bars).draw(PLAIN),
            "reads/s\n\
             \x20 one  a   ########### 10.0\n\
             \x20      b    n/a\n\
             \x20 three  a ###################### 20.0\n\
             \x20        b ###### 5.00\n"
        );
        let mut one = chart(Shape::Bars);
        one.series.truncate(1);
        let look = TerminalStyle { unicode: true, color: true, width: 30 };
        assert_eq!(
            one.draw(look),
            "reads/s\n  one   \x1b[36m███████▌\x1b[0m 10.0\n  three \x1b[36m███████████████\x1b[0m 20.0\n"
        );
    }

    #[test]
    fn lines() {
        let text = chart(Shape::Lines).draw(PLAIN);
        let rows: Vec<&str> = text.lines().collect();
        assert_eq!(rows.len(), 1 + HEIGHT + 2);
        assert_eq!(rows[1], format!("   20.0 |{}****", " ".repeat(26)));
        assert!(rows[10].starts_with("      0 |"), "{text}");
        assert_eq!(rows[11], format!("{:9}one{:>27}", "", "three"));
        assert_eq!(rows[12], "         * a   o b");
        // A value next to a gap is a point of its own, at a quarter of the height.
        assert!(rows[8].ends_with('o'), "{text}");
        assert_eq!(rows[1..11].concat().matches('o').count(), 1, "{text}");
        let dots =
            chart(Shape::Lines).draw(TerminalStyle { unicode: true, color: false, width: 40 });
        assert!(dots.contains('⣀') || dots.contains('⠤') || dots.contains('⠒'), "{dots}");
    }

    #[test]
    fn nothing_to_draw_is_no_trouble() {
        for shape in [Shape::Bars, Shape::Lines] {
            let empty = Chart {
                title: String::new(),
                shape,
                labels: Vec::new(),
                series: Vec::new(),
                axes: Axes::default(),
            };
            assert!(empty.draw(PLAIN).ends_with('\n'));
        }
    }

    #[test]
    fn short_numbers() {
        for (value, text) in [
            (0.0, "0"),
            (0.9174, "0.917"),
            (1.0, "1.00"),
            (99.96, "100"),
            (1234.0, "1234"),
            (12_345.0, "12.3k"),
            (999_600.0, "1.00M"),
            (2_500_000.0, "2.50M"),
            (1.5e9, "1.50G"),
            (f64::NAN, "n/a"),
        ] {
            assert_eq!(short(value), text);
        }
    }
}
