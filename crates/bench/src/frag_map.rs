//! A figure of a pool's metaslabs in several states, drawn by [`ui::map`].

use std::fmt::Write;

use cenote::VdevClass;
use cenote::space_map::{MetaslabMap, PoolMap};
use ui::map::{self, MapStyle, SVG_WIDTH};
use ui::terminal::TerminalStyle;

/// Lines of cells of a vdev in a terminal.
const LINES: usize = 4;
/// Height of the title, pixels.
const HEAD: f64 = 28.0;

/// States of a pool below each other; the name of a map is that of the state.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct MapFigure {
    pub(super) title: String,
    pub(super) states: Vec<PoolMap>,
}

/// The metaslabs of a pool, without those of logs, each with the number of its vdev.
pub(super) fn metaslabs(pool: &PoolMap) -> impl Iterator<Item = (u64, &MetaslabMap)> {
    let vdevs = pool.vdevs.iter().filter(|v| v.class != VdevClass::Log);
    vdevs.flat_map(|v| v.metaslabs.iter().map(|m| (v.id, m)))
}

impl MapFigure {
    /// The figure as text.
    pub(super) fn draw(&self, terminal: TerminalStyle) -> String {
        let style = MapStyle { terminal, exact: false, lines: LINES, histograms: false };
        let mut out = format!("{}\n", self.title);
        for state in &self.states {
            out.push_str(&map::text(state, style));
        }
        out.push_str(&map::legend(style));
        out
    }

    /// Its width and height in an SVG document, pixels.
    pub(super) fn size(&self) -> (f64, f64) {
        (SVG_WIDTH as f64, HEAD + map::svg_elements(&self.states, false).1 as f64)
    }

    /// Adds the figure to an SVG document, from its upper left corner.
    pub(super) fn svg(&self, out: &mut String) {
        let title = ui::xml::escape(&self.title);
        let _ = writeln!(out, "<text x=\"16\" y=\"22\" font-size=\"15\">{title}</text>");
        let (elements, _) = map::svg_elements(&self.states, false);
        let _ = writeln!(out, "<g transform=\"translate(0 {HEAD})\" font-size=\"11\">");
        out.push_str(&elements);
        out.push_str("</g>\n");
    }
}

#[cfg(test)]
pub(super) mod tests {
    use base::{Guid, Txg};
    use cenote::VdevState;
    use cenote::space_map::{SegmentHistogram, VdevMap};

    use super::*;

    fn vdev(class: VdevClass, full: &[u64]) -> VdevMap {
        let metaslab = |(id, full): (u64, &u64)| MetaslabMap {
            id,
            size: 100 << 20,
            allocated: full << 20,
            fragmentation: Some(*full),
            ..MetaslabMap::default()
        };
        VdevMap {
            name: "disk".into(),
            id: 0,
            guid: Guid(1),
            class,
            ashift: 12,
            metaslab_size: 100 << 20,
            size: (full.len() as u64) * (100 << 20),
            allocated: full.iter().sum::<u64>() << 20,
            fragmentation: Some(1),
            segments: SegmentHistogram::new([0, 5]),
            metaslabs: (0..).zip(full).map(metaslab).collect(),
        }
    }

    /// A pool with a data vdev and a log.
    pub(in super::super) fn pool(name: &str, full: &[u64]) -> PoolMap {
        PoolMap {
            name: name.into(),
            guid: Guid(1),
            state: VdevState::Online,
            txg: Txg(9),
            version: 5000,
            size: 1,
            allocated: 0,
            fragmentation: Some(1),
            segments: SegmentHistogram::default(),
            vdevs: vec![vdev(VdevClass::Normal, full), vdev(VdevClass::Log, &[1])],
        }
    }

    #[test]
    fn states_of_a_pool() {
        let states = vec![pool("10%", &[5, 20]), pool("50%", &[60, 70])];
        let figure = MapFigure { title: "fig. 1: a < b".into(), states };
        let terminal = TerminalStyle { width: 80, color: false, unicode: false };
        let text = figure.draw(terminal);
        assert!(text.starts_with("fig. 1: a < b\n10%: "), "{text}");
        assert!(text.contains("\n50%: ") && text.contains(". 5 :20"), "{text}");
        assert!(!text.contains("SIZE"), "histograms: {text}");
        let mut out = String::new();
        figure.svg(&mut out);
        assert!(out.contains("fig. 1: a &lt; b") && out.contains("60% allocated"), "{out}");
        assert!(figure.size().1 > MapFigure::default().size().1);
        let found: Vec<_> = metaslabs(&figure.states[1]).map(|(_, m)| m.allocated >> 20).collect();
        assert_eq!(found, [60, 70], "logs are left out");
    }
}
