//! The map of a pool's metaslabs: how full each is, and how fragmented its free space.
//!
//! One bar for each metaslab: its height is the allocated share, its colour the fragmentation
//! metric of the free space. In a terminal a metaslab is one column of two lines.

use std::fmt::Write;

use base::Result;
use cenote::Pool;
use cenote::inspect::vdev::AllocClass;

use ui::terminal::TerminalStyle;

/// One metaslab.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct MapCell {
    /// Top-level vdev.
    pub(super) vdev: u32,
    /// Position on it.
    pub(super) metaslab: u64,
    /// Allocated share, 0 to 1.
    pub(super) fill: f64,
    /// Fragmentation of its free space, percent; `None` without a histogram.
    pub(super) fragmentation: Option<u64>,
}

/// One state of a pool.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct MapRow {
    pub(super) name: String,
    pub(super) cells: Vec<MapCell>,
}

/// A figure: states of a pool, one below the other.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct MetaslabMap {
    pub(super) title: String,
    pub(super) rows: Vec<MapRow>,
}

/// The metaslabs of a pool as of its last txg, without those of logs.
///
/// # Errors
/// Those of reading the space maps.
pub(super) fn cells(pool: &Pool) -> Result<Vec<MapCell>> {
    let space = pool.spa().load_space_of(&pool.writer()?.published().config)?;
    let mut out = Vec::new();
    for vdev in space.vdevs.iter().filter(|v| v.class != AllocClass::Log) {
        out.extend((0..).zip(&vdev.metaslabs).map(|(metaslab, m)| MapCell {
            vdev: vdev.vdev.0,
            metaslab,
            fill: m.allocated() as f64 / m.size.max(1) as f64,
            fragmentation: m.fragmentation(vdev.ashift),
        }));
    }
    Ok(out)
}

/// Width of the picture, as of charts.
const WIDTH: f64 = 800.0;
const LEFT: f64 = 70.0;
/// Height of the title and of the line below the last row.
const HEAD: f64 = 36.0;
const FOOT: f64 = 44.0;
/// Largest width of a bar, height of a bar, and the gap between lines.
const BAR: f64 = 24.0;
const TALL: f64 = 40.0;
const GAP: f64 = 14.0;
/// Bars of one line.
const LINE: usize = 100;

impl MapRow {
    fn lines(&self) -> usize {
        self.cells.len().div_ceil(LINE).max(1)
    }
}

impl MetaslabMap {
    /// The picture as text.
    pub(super) fn draw(&self, look: TerminalStyle) -> String {
        let names = self.rows.iter().map(|r| r.name.chars().count()).max().unwrap_or(0);
        let room = look.width.saturating_sub(names + 12).max(16);
        let mut out = format!("{}\n", self.title);
        for row in &self.rows {
            for (n, cells) in row.cells.chunks(room).enumerate() {
                let name = if n == 0 { row.name.as_str() } else { "" };
                let fill: String = cells.iter().map(|c| glyph(c.fill, look)).collect();
                let _ = writeln!(out, "  {name:<names$} used  {fill}");
                let _ = writeln!(out, "  {:<names$} frag  {}", "", fragments(cells, look));
            }
        }
        let scale = match look.unicode {
            true => "▁ to █: the used share of a metaslab",
            false => "0 to 9: tenths of a metaslab that are used",
        };
        let _ = writeln!(out, "  {scale}; frag: 0 to 9, tenths of the fragmentation metric");
        out
    }

    /// Height of the picture in an SVG document, pixels.
    pub(super) fn height(&self) -> f64 {
        let lines: usize = self.rows.iter().map(MapRow::lines).sum();
        HEAD + lines as f64 * (TALL + GAP) + FOOT
    }

    /// Adds the picture to an SVG document, from its upper left corner.
    pub(super) fn svg(&self, out: &mut String) {
        let title = ui::xml::escape(&self.title);
        let _ = writeln!(out, "<text x=\"{LEFT}\" y=\"22\" font-size=\"15\">{title}</text>");
        let mut top = HEAD;
        for row in &self.rows {
            let _ = writeln!(
                out,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                LEFT - 6.0,
                top + TALL * 0.6,
                ui::xml::escape(&row.name)
            );
            let longest = row.cells.len().clamp(1, LINE) as f64;
            let wide = ((WIDTH - LEFT - 20.0) / longest).min(BAR);
            for line in row.cells.chunks(LINE) {
                for (i, cell) in line.iter().enumerate() {
                    bar(cell, LEFT + wide * i as f64, top, wide, out);
                }
                top += TALL + GAP;
            }
            if row.cells.is_empty() {
                top += TALL + GAP;
            }
        }
        for (n, percent) in [0, 25, 50, 75, 100].into_iter().enumerate() {
            let x = LEFT + 130.0 * n as f64;
            let _ = writeln!(
                out,
                "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"12\" height=\"12\" fill=\"{}\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\">fragmentation {percent}%</text>",
                top + 8.0,
                color(Some(percent)),
                x + 16.0,
                top + 18.0,
            );
        }
    }
}

/// A metaslab's bar in its frame.
fn bar(cell: &MapCell, x: f64, top: f64, wide: f64, out: &mut String) {
    let high = TALL * cell.fill.clamp(0.0, 1.0);
    let text = cell.fragmentation.map_or("unknown".to_owned(), |f| format!("{f}%"));
    let _ = writeln!(
        out,
        "<rect x=\"{x:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{TALL}\" fill=\"#eee\"/>\
         <rect x=\"{x:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{high:.1}\" fill=\"{}\">\
         <title>vdev {}, metaslab {}: {:.0}% used, fragmentation {text}</title></rect>",
        (wide - 1.0).max(0.5),
        top + TALL - high,
        (wide - 1.0).max(0.5),
        color(cell.fragmentation),
        cell.vdev,
        cell.metaslab,
        cell.fill * 100.0,
    );
}

/// Blue for free space in one piece, orange for free space in sectors; grey if unknown.
fn color(fragmentation: Option<u64>) -> String {
    let Some(percent) = fragmentation else { return "#999999".to_owned() };
    let share = percent.min(100) as f64 / 100.0;
    let mix = |from: f64, to: f64| (from + (to - from) * share).round() as u8;
    format!("#{:02x}{:02x}{:02x}", mix(0.0, 213.0), mix(114.0, 94.0), mix(178.0, 0.0))
}

/// A share from 0 to 1 as one character.
fn glyph(share: f64, look: TerminalStyle) -> char {
    const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let share = share.clamp(0.0, 1.0);
    match look.unicode {
        true => BLOCKS[(share * 8.0).ceil() as usize],
        false => tenth(share),
    }
}

fn tenth(share: f64) -> char {
    char::from(b'0' + (share * 10.0).min(9.0) as u8)
}

/// The tenths of fragmentation, coloured from green to red.
fn fragments(cells: &[MapCell], look: TerminalStyle) -> String {
    let mut out = String::new();
    for cell in cells {
        let Some(percent) = cell.fragmentation else {
            out.push('-');
            continue;
        };
        let mark = tenth(percent as f64 / 100.0);
        let color = [32, 33, 31][(percent / 34).min(2) as usize];
        match look.color {
            true => out.push_str(&format!("\x1b[{color}m{mark}\x1b[0m")),
            false => out.push(mark),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(count: usize) -> MetaslabMap {
        let cell = |n: usize| MapCell {
            vdev: 0,
            metaslab: n as u64,
            fill: n as f64 / count as f64,
            fragmentation: (n > 0).then_some(n as u64 * 100 / count as u64),
        };
        let row = MapRow { name: "50%".into(), cells: (0..count).map(cell).collect() };
        MetaslabMap { title: "fig. 1: a < b".into(), rows: vec![row] }
    }

    #[test]
    fn as_text() {
        let plain = TerminalStyle { width: 80, color: false, unicode: false };
        assert_eq!(
            map(10).draw(plain),
            "fig. 1: a < b\n  50% used  0123456789\n      frag  -123456789\n  \
             0 to 9: tenths of a metaslab that are used; \
             frag: 0 to 9, tenths of the fragmentation metric\n"
        );
        let blocks = map(4).draw(TerminalStyle { width: 40, color: true, unicode: true });
        assert!(blocks.contains("used   ▂▄▆") && blocks.contains("\x1b[31m7"), "{blocks}");
        // More metaslabs than columns.
        assert_eq!(map(200).draw(plain).matches(" used  ").count(), 4);
    }

    #[test]
    fn as_a_picture() {
        let mut out = String::new();
        map(150).svg(&mut out);
        assert!(out.contains("fig. 1: a &lt; b"));
        assert_eq!(out.matches("<title>").count(), 150);
        assert_eq!(out.matches("<title>").count(), out.matches("</title></rect>").count());
        assert_eq!(map(150).height(), HEAD + 2.0 * (TALL + GAP) + FOOT);
        assert_eq!((color(Some(0)), color(Some(100))), ("#0072b2".into(), "#d55e00".into()));
        assert!(MetaslabMap::default().height() > 0.0);
    }
}
