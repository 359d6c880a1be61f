//! The map as an SVG file, written without a library.

use std::fmt::Write;

use cenote::space_map::{PoolMap, SegmentHistogram, VdevMap, percent};

use super::{
    COLORS, DARK, Grid, STEPS, bytes, class_word, count, counts, digits, facts, share, step,
};
use crate::xml::escape;

/// Width of the picture, pixels.
pub const SVG_WIDTH: u64 = 880;
const WIDTH: u64 = SVG_WIDTH;
const MARGIN: u64 = 16;
/// Room for the index of a line's first metaslab.
const INDEX: u64 = 56;
/// Distance of cells, across and down.
const CELL: (u64, u64) = (24, 18);
const COLUMNS: usize = 32;
/// Lines of cells of a vdev, at most.
const LINES: usize = 64;
/// Height of a line of text, and of a row of a histogram.
const LINE: u64 = 18;
/// Left end of a histogram's bars, and their greatest length.
const BARS: (u64, u64) = (INDEX + 210, 560);

/// A document with all pools below each other.
pub fn svg(pools: &[PoolMap]) -> String {
    let (elements, height) = svg_elements(pools, true);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{elements}</svg>\n"
    )
}

/// The elements of a part of a document, from its upper left corner, with their height in
/// pixels; they are [`SVG_WIDTH`] pixels wide. Without `histograms`, free segments are left out.
pub fn svg_elements(pools: &[PoolMap], histograms: bool) -> (String, u64) {
    let mut body = SvgBody { text: String::new(), y: MARGIN, histograms };
    body.legend();
    for pool in pools {
        body.pool(pool);
    }
    (body.text, body.y + MARGIN)
}

/// The elements so far, and where the next line begins.
struct SvgBody {
    text: String,
    y: u64,
    histograms: bool,
}

impl SvgBody {
    fn line(&mut self, size: u64, text: &str) {
        self.y += LINE;
        let _ = writeln!(
            self.text,
            "<text x=\"{MARGIN}\" y=\"{}\" font-size=\"{size}\">{}</text>",
            self.y - 4,
            escape(text)
        );
    }

    /// One cell with its text and a tooltip.
    fn cell(&mut self, x: u64, step: usize, text: &str, tip: &str) {
        let front = if DARK.contains(&step) { "white" } else { "black" };
        let (w, h) = (CELL.0 - 2, CELL.1 - 2);
        let _ = writeln!(
            self.text,
            "<g><title>{}</title><rect x=\"{x}\" y=\"{}\" width=\"{w}\" height=\"{h}\" \
             fill=\"{}\"/><text x=\"{}\" y=\"{}\" text-anchor=\"middle\" \
             fill=\"{front}\">{}</text></g>",
            escape(tip),
            self.y,
            COLORS[step].1,
            x + w / 2,
            self.y + 12,
            escape(text)
        );
    }

    fn legend(&mut self) {
        let mut x = MARGIN;
        for step in 0..STEPS {
            let from = step * 10;
            self.cell(x, step, &from.to_string(), &format!("{from} percent allocated or more"));
            x += CELL.0;
        }
        let _ = writeln!(
            self.text,
            "<text x=\"{}\" y=\"{}\">percent allocated, from these values on; a cell's number: \
             fragmentation of its free space in percent (!! 100, -- unknown)</text>",
            x + 8,
            self.y + 12
        );
        self.y += CELL.1;
    }

    fn pool(&mut self, pool: &PoolMap) {
        self.y += LINE;
        let mut phrases = facts(pool.size, pool.allocated, pool.fragmentation, false);
        phrases.push(format!("txg {}", pool.txg));
        self.line(15, &format!("{}: {}", pool.name, phrases.join(", ")));
        for vdev in &pool.vdevs {
            self.vdev(vdev);
        }
        if pool.vdevs.len() > 1 && self.histograms {
            self.y += LINE / 2;
            self.line(12, &format!("{}: free segments of all vdevs but logs", pool.name));
            self.histogram(&pool.segments);
        }
    }

    fn vdev(&mut self, v: &VdevMap) {
        self.y += LINE / 2;
        let grid = Grid::new(&v.metaslabs, COLUMNS * LINES);
        let mut phrases = counts(v, &grid, false);
        phrases.extend(facts(v.size, v.allocated, v.fragmentation, false));
        self.line(12, &format!("{} ({}): {}", v.name, class_word(v.class), phrases.join(", ")));
        for line in grid.cells.chunks(COLUMNS) {
            let first = line.first().map_or(0, |m| m.id);
            let _ = writeln!(
                self.text,
                "<text x=\"{INDEX}\" y=\"{}\" text-anchor=\"end\" fill=\"#666\">{first}</text>",
                self.y + 12
            );
            let mut x = INDEX + 6;
            for m in line {
                let tip = format!(
                    "metaslab {}: {} free of {}, {}% allocated, fragmentation {}",
                    m.id,
                    bytes(m.free(), false),
                    bytes(m.size, false),
                    percent(m.allocated, m.size),
                    share(m.fragmentation)
                );
                self.cell(x, step(m), digits(m).trim(), &tip);
                x += CELL.0;
            }
            self.y += CELL.1;
        }
        if self.histograms {
            self.histogram(&v.segments);
        }
    }

    fn histogram(&mut self, segments: &SegmentHistogram) {
        let rows: Vec<(u32, u64)> = segments.rows().collect();
        if rows.is_empty() {
            self.line(11, "no free segments recorded");
            return;
        }
        let of = |(class, n): (u32, u64)| SegmentHistogram::bytes(class, n);
        let top = rows.iter().map(|r| of(*r)).max().unwrap_or(0).max(1);
        self.y += 4;
        for row in rows {
            let (class, n) = row;
            let length = u128::from(of(row)) * u128::from(BARS.1) / u128::from(top);
            let size = bytes(SegmentHistogram::bytes(class, 1), false);
            let shown = [
                (INDEX, size),
                (INDEX + 90, count(n, false)),
                (BARS.0 - 10, bytes(of(row), false)),
            ];
            for (x, text) in shown {
                let _ = write!(
                    self.text,
                    "<text x=\"{x}\" y=\"{}\" text-anchor=\"end\">{text}</text>",
                    self.y + 11
                );
            }
            let _ = writeln!(
                self.text,
                "<rect x=\"{}\" y=\"{}\" width=\"{length}\" height=\"{}\" fill=\"#0072b2\"/>",
                BARS.0,
                self.y + 2,
                LINE - 6
            );
            self.y += LINE - 4;
        }
    }
}
