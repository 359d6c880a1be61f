//! The map in a terminal.

use std::fmt::Write;

use cenote::space_map::{MetaslabMap, PoolMap, SegmentHistogram, VdevMap};

use super::{COLORS, DARK, Grid, MapStyle, STEPS, bytes, class_word, count, counts, digits, facts};
use crate::terminal::{TerminalStyle, bar};

/// Characters for the steps of fullness, for a terminal without colours.
const RAMP: [char; STEPS] = ['.', ',', ':', '-', '=', '+', '*', '#', '%', '@'];
/// Columns of a cell with the blank behind it, with colours and without.
const COLOR_PITCH: usize = 3;
const PLAIN_PITCH: usize = 4;
/// Histograms are indented from this width on.
const INDENT_FROM: usize = 40;
/// Minimum width of a histogram's bars.
const BAR_MIN: usize = 4;

/// A pool: its totals, then each vdev with its cells and its free segments, then the free
/// segments of all.
pub fn text(pool: &PoolMap, style: MapStyle) -> String {
    let width = style.terminal.width;
    let mut out = String::new();
    let mut phrases = facts(pool.size, pool.allocated, pool.fragmentation, style.exact);
    phrases.push(format!("txg {}", pool.txg));
    wrap(&mut out, width, &format!("{}:", pool.name), &phrases);
    if pool.vdevs.is_empty() {
        wrap(&mut out, width, "no vdevs with metaslabs", &[]);
    }
    for vdev in &pool.vdevs {
        out.push('\n');
        vdev_text(&mut out, vdev, style);
    }
    if pool.vdevs.len() > 1 && style.histograms {
        out.push('\n');
        wrap(&mut out, width, &format!("{}: free segments of all vdevs but logs", pool.name), &[]);
        histogram(&mut out, &pool.segments, style);
    }
    out
}

fn vdev_text(out: &mut String, v: &VdevMap, style: MapStyle) {
    let TerminalStyle { width, color, .. } = style.terminal;
    let pitch = if color { COLOR_PITCH } else { PLAIN_PITCH };
    let digits_of_index = v.metaslabs.len().saturating_sub(1).to_string().len();
    // Without room for an index and a cell the index is left out.
    let index = if digits_of_index + pitch <= width { digits_of_index } else { 0 };
    let room = width.saturating_sub(if index > 0 { index + 1 } else { 0 });
    let columns = ((room + 1) / pitch).max(1);
    let grid = Grid::new(&v.metaslabs, columns.saturating_mul(style.lines.max(1)));
    let mut phrases = counts(v, &grid, style.exact);
    phrases.extend(facts(v.size, v.allocated, v.fragmentation, style.exact));
    wrap(out, width, &format!("{} ({}):", v.name, class_word(v.class)), &phrases);
    for line in grid.cells.chunks(columns) {
        if index > 0 {
            let first = line.first().map_or(0, |m| m.id);
            let _ = write!(out, "{first:>index$} ");
        }
        let cells: Vec<String> = line.iter().map(|m| cell(m, color)).collect();
        let _ = writeln!(out, "{}", cells.join(" "));
    }
    if style.histograms {
        histogram(out, &v.segments, style);
    }
}

fn cell(m: &MetaslabMap, color: bool) -> String {
    let step = super::step(m);
    if color { paint(&digits(m), step) } else { format!("{}{}", RAMP[step], digits(m)) }
}

/// Text on the colour of a step.
fn paint(text: &str, step: usize) -> String {
    let front = if DARK.contains(&step) { 231 } else { 16 };
    format!("\x1b[38;5;{front};48;5;{}m{text}\x1b[0m", COLORS[step].0)
}

/// The meaning of colours, characters and digits.
pub fn legend(style: MapStyle) -> String {
    let mut out = String::new();
    let width = style.terminal.width;
    if style.terminal.color {
        let steps = (0..STEPS).map(|step| (format!("{:2}", step * 10), step));
        let mut at = 0;
        for (text, step) in steps {
            let gap = usize::from(at > 0);
            if at > 0 && at + gap + 2 > width {
                out.push('\n');
                at = 0;
            } else if gap > 0 {
                out.push(' ');
                at += gap;
            }
            out.push_str(&paint(&text, step));
            at += 2;
        }
        out.push('\n');
        wrap(&mut out, width, "colour: percent allocated, from these values on", &[]);
        wrap(&mut out, width, "digits: fragmentation of the free space in percent", &[]);
    } else {
        let ramp: String = RAMP.iter().collect();
        wrap(&mut out, width, &format!("{ramp} allocated, in steps of 10 percent"), &[]);
        wrap(&mut out, width, "digits: fragmentation of the free space in percent", &[]);
    }
    wrap(&mut out, width, "!! 100 percent, -- unknown", &[]);
    out
}

/// The free segments by size: from each size to below the next one. The bars show the bytes.
fn histogram(out: &mut String, segments: &SegmentHistogram, style: MapStyle) {
    let TerminalStyle { width, unicode, .. } = style.terminal;
    let indent = if width >= INDENT_FROM { 2 } else { 0 };
    let rows: Vec<(String, String, u64)> = segments
        .rows()
        .map(|(class, n)| {
            let size = bytes(SegmentHistogram::bytes(class, 1), style.exact);
            (size, count(n, style.exact), SegmentHistogram::bytes(class, n))
        })
        .collect();
    if rows.is_empty() {
        wrap(out, width, "no free segments recorded", &[]);
        return;
    }
    let heading = ("SIZE".to_owned(), "FREE".to_owned(), "BYTES".to_owned());
    let shown =
        rows.iter().map(|(size, n, all)| (size.clone(), n.clone(), bytes(*all, style.exact)));
    let lines: Vec<_> = std::iter::once(heading).chain(shown).collect();
    let widest =
        |of: fn(&(String, String, String)) -> usize| lines.iter().map(of).max().unwrap_or(0);
    let (a, b, c) = (widest(|l| l.0.len()), widest(|l| l.1.len()), widest(|l| l.2.len()));
    let room = width.saturating_sub(indent + a + b + c + 3);
    let top = rows.iter().map(|r| r.2).max().unwrap_or(0).max(1);
    for (i, (size, n, total)) in lines.iter().enumerate() {
        let mut line = format!("{:indent$}{size:>a$} {n:>b$} {total:>c$}", "");
        let all = i.checked_sub(1).and_then(|i| rows.get(i)).map_or(0, |r| r.2);
        if room >= BAR_MIN && all > 0 {
            #[expect(clippy::cast_precision_loss, reason = "the length of a bar")]
            let length = all as f64 / top as f64 * room as f64;
            // Segments that exist have a visible bar.
            let length = length.max(if unicode { 0.125 } else { 1.0 });
            let _ = write!(line, " {}", bar(length, unicode));
        }
        let _ = writeln!(out, "{line}");
    }
}

/// A title and phrases separated by commas, broken at blanks. A longer word is broken where the
/// line ends.
fn wrap(out: &mut String, width: usize, title: &str, phrases: &[String]) {
    let width = width.max(1);
    let text = match phrases {
        [] => title.to_owned(),
        _ => format!("{title} {}", phrases.join(", ")),
    };
    let mut at = 0;
    for word in text.split(' ') {
        let mut rest: Vec<char> = word.chars().filter(|c| !c.is_control()).collect();
        if at > 0 && at + 1 + rest.len() <= width {
            out.push(' ');
            at += 1;
        } else if at > 0 {
            out.push('\n');
            at = 0;
        }
        while rest.len() > width - at {
            let tail = rest.split_off(width - at);
            out.extend(rest);
            out.push('\n');
            rest = tail;
            at = 0;
        }
        at += rest.len();
        out.extend(rest);
    }
    out.push('\n');
}
