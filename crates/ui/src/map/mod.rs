//! The space map of a pool as a picture: a heat map of its metaslabs and histograms of free
//! segments, in a terminal ([`text()`], [`legend`]) and as SVG ([`svg()`]).
//!
//! # Theory
//! A cell is one metaslab, or several consecutive ones if more do not fit (`Grid`). Its colour
//! says how full it is, its digits are the fragmentation of its free space in percent. Without
//! colours a character before the digits says how full it is.
//!
//! # Invariants
//! * From a width of 20 columns on, no line is wider than the terminal, unless exact numbers
//!   were requested. Any width is accepted.

mod svg;
#[cfg(test)]
mod tests;
mod text;

use cenote::VdevClass;
use cenote::props::{nicebytes, nicenum};
use cenote::space_map::{MetaslabMap, combine, percent};

pub use svg::{SVG_WIDTH, svg, svg_elements};
pub use text::{legend, text};

use crate::terminal::TerminalStyle;

/// The form of a map in a terminal.
#[derive(Clone, Copy, Debug)]
pub struct MapStyle {
    /// The terminal.
    pub terminal: TerminalStyle,
    /// Numbers are exact.
    pub exact: bool,
    /// Lines of cells for each vdev, at most.
    pub lines: usize,
    /// Free segments by size are shown, too.
    pub histograms: bool,
}

/// Steps of fullness: one for each ten percent.
const STEPS: usize = 10;
/// Colours of these steps, of the cube of 256 colours and as SVG writes them: from blue, empty,
/// through yellow to red, full.
const COLORS: [(u8, &str); STEPS] = [
    (18, "#000087"),
    (25, "#005faf"),
    (31, "#0087af"),
    (37, "#00afaf"),
    (72, "#5faf87"),
    (149, "#afd75f"),
    (221, "#ffd75f"),
    (214, "#ffaf00"),
    (202, "#ff5f00"),
    (160, "#d70000"),
];
/// Steps whose text is white; that of the others is black.
const DARK: [usize; 4] = [0, 1, 2, 9];

/// The step of a metaslab.
fn step(m: &MetaslabMap) -> usize {
    let full = percent(m.allocated, m.size).min(99);
    usize::try_from(full / 10).unwrap_or(0)
}

/// The fragmentation in two characters.
fn digits(m: &MetaslabMap) -> String {
    match m.fragmentation {
        None => "--".to_owned(),
        Some(f) if f > 99 => "!!".to_owned(),
        Some(f) => format!("{f:2}"),
    }
}

/// The cells of a vdev.
struct Grid {
    cells: Vec<MetaslabMap>,
    /// Metaslabs in each cell but the last.
    per_cell: usize,
}

impl Grid {
    /// At most `most` cells.
    fn new(metaslabs: &[MetaslabMap], most: usize) -> Grid {
        let per_cell = metaslabs.len().div_ceil(most.max(1)).max(1);
        Grid { cells: metaslabs.chunks(per_cell).map(combine).collect(), per_cell }
    }
}

/// The words for a class.
fn class_word(class: VdevClass) -> &'static str {
    match class {
        VdevClass::Normal => "normal",
        VdevClass::Dedup => "dedup",
        VdevClass::Special => "special",
        VdevClass::Log => "log",
        VdevClass::Cache => "cache",
        VdevClass::Spare => "spare",
    }
}

fn bytes(n: u64, exact: bool) -> String {
    if exact { n.to_string() } else { nicebytes(n) }
}

fn count(n: u64, exact: bool) -> String {
    if exact { n.to_string() } else { nicenum(n) }
}

/// A percentage, or a dash if it is unknown.
fn share(percent: Option<u64>) -> String {
    percent.map_or("-".to_owned(), |p| format!("{p}%"))
}

/// The facts about a pool or vdev, as phrases.
fn facts(size: u64, allocated: u64, fragmentation: Option<u64>, exact: bool) -> Vec<String> {
    let free = size.saturating_sub(allocated);
    vec![
        bytes(size, exact),
        format!("{} allocated", bytes(allocated, exact)),
        format!("{} free", bytes(free, exact)),
        format!("FRAG {}", share(fragmentation)),
        format!("CAP {}%", percent(allocated, size)),
    ]
}

/// How many metaslabs a vdev has, and how many of them are in a cell.
fn counts(v: &cenote::space_map::VdevMap, grid: &Grid, exact: bool) -> Vec<String> {
    let mut out = match v.metaslabs.len() {
        0 => vec!["no metaslabs".to_owned()],
        1 => vec![format!("1 metaslab of {}", bytes(v.metaslab_size, exact))],
        n => vec![format!("{n} metaslabs of {}", bytes(v.metaslab_size, exact))],
    };
    if grid.per_cell > 1 {
        out.push(format!("{} in each cell", grid.per_cell));
    }
    out
}
