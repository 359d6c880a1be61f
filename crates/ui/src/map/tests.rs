//! Tests of the map at many widths.

use base::{Guid, Txg};
use cenote::space_map::{PoolMap, SegmentHistogram, VdevMap};
use cenote::{VdevClass, VdevState};

use super::*;

fn metaslab(id: u64, full: u64, fragmentation: Option<u64>) -> MetaslabMap {
    let size = 16 << 20;
    MetaslabMap {
        id,
        size,
        allocated: (size * full).div_ceil(100),
        unflushed: 0,
        fragmentation,
        segments: SegmentHistogram::default(),
    }
}

fn vdev(name: &str, class: VdevClass, metaslabs: Vec<MetaslabMap>) -> VdevMap {
    let mut counts = vec![0; 18];
    (counts[9], counts[10], counts[13], counts[17]) = (1, 0, 186, 12_345);
    let sum = |of: fn(&MetaslabMap) -> u64| metaslabs.iter().map(of).sum();
    VdevMap {
        name: name.to_owned(),
        id: 0,
        guid: Guid(1),
        class,
        ashift: 9,
        metaslab_size: 16 << 20,
        size: sum(|m| m.size),
        allocated: sum(|m| m.allocated),
        fragmentation: Some(75),
        segments: SegmentHistogram::new(counts),
        metaslabs,
    }
}

fn pool(vdevs: Vec<VdevMap>) -> PoolMap {
    let mut segments = SegmentHistogram::default();
    vdevs.iter().for_each(|v| segments.merge(&v.segments));
    PoolMap {
        name: "tank".into(),
        guid: Guid(1),
        state: VdevState::Online,
        txg: Txg(12067),
        version: 5000,
        size: vdevs.iter().map(|v| v.size).sum(),
        allocated: vdevs.iter().map(|v| v.allocated).sum(),
        fragmentation: Some(75),
        segments,
        vdevs,
    }
}

/// Fifteen metaslabs, of which one has no histogram, one is empty, one is full, and one has
/// only free segments of 512 bytes.
fn small() -> PoolMap {
    let mut all: Vec<MetaslabMap> = (0..15).map(|i| metaslab(i, i * 7, Some(80 - i))).collect();
    (all[1], all[2]) = (metaslab(1, 40, None), metaslab(2, 100, Some(0)));
    all[3] = metaslab(3, 55, Some(100));
    pool(vec![vdev("/disk", VdevClass::Normal, all)])
}

fn style(width: usize, color: bool) -> MapStyle {
    let terminal = TerminalStyle { width, color, unicode: color };
    MapStyle { terminal, exact: false, lines: 16, histograms: true }
}

/// A line as it appears: without control sequences.
fn visible(line: &str) -> String {
    let mut out = String::new();
    let mut letters = line.chars();
    while let Some(c) = letters.next() {
        if c == '\u{1b}' {
            letters.by_ref().take_while(|c| *c != 'm').for_each(drop);
        } else {
            out.push(c);
        }
    }
    out
}

fn fits(text: &str, width: usize) {
    for line in text.lines() {
        assert!(visible(line).chars().count() <= width, "{width}: {line:?}\n{text}");
    }
}

#[test]
fn twenty_columns_without_colour() {
    assert_eq!(
        text(&small(), style(20, false)),
        "tank: 240M, 142M\n\
         allocated, 97.9M\n\
         free, FRAG 75%, CAP\n\
         59%, txg 12067\n\
         \n\
         /disk (normal): 15\n\
         metaslabs of 16M,\n\
         240M, 142M\n\
         allocated, 97.9M\n\
         free, FRAG 75%, CAP\n\
         59%\n \
         0 .80 =-- @ 0 +!!\n \
         4 :76 -75 =74 =73\n \
         8 +72 *71 #70 #69\n\
         12 %68 @67 @66\n\
         SIZE  FREE BYTES\n\
         512B     1  512B\n  \
         1K     0    0B\n  \
         2K     0    0B\n  \
         4K     0    0B\n  \
         8K   186 1.45M\n \
         16K     0    0B\n \
         32K     0    0B\n \
         64K     0    0B\n\
         128K 12.1K 1.51G\n"
    );
}

#[test]
fn eighty_columns_without_colour() {
    let shown = text(&small(), style(80, false));
    assert!(
        shown.starts_with(
            "tank: 240M, 142M allocated, 97.9M free, FRAG 75%, CAP 59%, txg 12067\n\n"
        )
    );
    assert!(
        shown.contains(
            "\n 0 .80 =-- @ 0 +!! :76 -75 =74 =73 +72 *71 #70 #69 %68 @67 @66\n  SIZE  FREE BYTES\n"
        ),
        "{shown}"
    );
    let bars = format!("\n  128K 12.1K 1.51G {}\n", "#".repeat(61));
    assert!(shown.ends_with(&bars[..]), "{shown}");
    // Segments that exist have a bar.
    assert!(shown.contains("\n  512B     1  512B #\n"), "{shown}");
}

#[test]
fn colours_show_fullness_and_digits_fragmentation() {
    let shown = text(&small(), style(80, true));
    // Empty and blue, full and red, and unknown fragmentation.
    for cell in ["231;48;5;18m80", "231;48;5;160m 0", "16;48;5;72m--", "16;48;5;149m!!"] {
        assert!(shown.contains(&format!("\x1b[38;5;{cell}\x1b[0m")), "{cell}: {shown}");
    }
    let plain: String = shown.lines().map(|l| visible(l) + "\n").collect();
    assert!(plain.contains("\n 0 80 --  0 !! 76 75 74 73 72 71 70 69 68 67 66\n"), "{plain}");
    assert!(shown.contains('█'), "{shown}");
    let keys: String = legend(style(80, true)).lines().map(|l| visible(l) + "\n").collect();
    assert!(keys.starts_with(" 0 10 20 30 40 50 60 70 80 90\ncolour: percent allocated"), "{keys}");
}

#[test]
fn two_hundred_columns() {
    let many = (0..100).map(|i| metaslab(i, i, Some(i))).collect();
    let pool = pool(vec![vdev("mirror-0", VdevClass::Special, many)]);
    let plain = text(&pool, style(200, false));
    // 200 columns hold 49 cells of four behind an index of two.
    assert!(plain.contains("\n 0 . 0 . 1 "), "{plain}");
    assert!(plain.contains("\n49 =49 +50"), "{plain}");
    assert!(plain.contains("\n98 @98 @99\n"), "{plain}");
    let color = text(&pool, style(200, true));
    assert!(color.lines().any(|l| visible(l).starts_with("66 66 67 68")), "{color}");
    fits(&plain, 200);
    fits(&color, 200);
}

#[test]
fn several_metaslabs_in_a_cell() {
    let many: Vec<MetaslabMap> = (0..1000).map(|i| metaslab(i, 50, Some(i % 100))).collect();
    let pool = pool(vec![vdev("raidz1-0", VdevClass::Normal, many)]);
    let few = MapStyle { lines: 4, ..style(80, false) };
    let shown = text(&pool, few);
    // 19 cells a line, 76 in all.
    assert!(
        shown.contains("raidz1-0 (normal): 1000 metaslabs of 16M, 14 in each cell,"),
        "{shown}"
    );
    let cells: usize = shown.lines().map(|l| l.matches(" +").count()).sum();
    assert_eq!(cells, 1000usize.div_ceil(14), "{shown}");
    // The mean of 0 to 13, and the index of the second line's first metaslab.
    assert!(shown.contains("\n  0 + 6 +20 +34"), "{shown}");
    assert!(shown.contains("\n266 +"), "{shown}");
    let all = MapStyle { lines: 0, ..few };
    assert!(text(&pool, all).contains("53 in each cell"));
}

#[test]
fn every_width_is_accepted_and_from_twenty_on_kept() {
    let huge = MetaslabMap {
        allocated: u64::MAX,
        fragmentation: Some(u64::MAX),
        segments: SegmentHistogram::new([u64::MAX; 64]),
        ..metaslab(0, 0, None)
    };
    let long = "/dev/disk/by-id/".to_owned() + &"x".repeat(300) + "\x1b[31m\n";
    let evil = VdevMap {
        segments: huge.segments.clone(),
        metaslabs: vec![huge; 3],
        size: u64::MAX,
        ..vdev(&long, VdevClass::Log, Vec::new())
    };
    let pools = [
        small(),
        pool(Vec::new()),
        pool(vec![evil]),
        pool(vec![small().vdevs.remove(0), vdev("b", VdevClass::Dedup, Vec::new())]),
    ];
    for pool in &pools {
        for width in (0..=200).chain([1000, usize::MAX]) {
            for color in [false, true] {
                // The bars of a terminal that wide take no part in this.
                let style = style(width.min(100_000), color);
                let all = text(pool, style) + &legend(style);
                if width >= 20 {
                    fits(&all, width);
                }
                assert!(!all.contains("\x1b[31m"), "{all:?}");
            }
        }
    }
    assert!(text(&pools[1], style(80, false)).ends_with("\nno vdevs with metaslabs\n"));
    let two = text(&pools[3], style(80, false));
    assert!(two.contains("b (dedup): no metaslabs, 0B"), "{two}");
    assert!(two.contains("\ntank: free segments of all vdevs but logs\n  SIZE"), "{two}");
}

#[test]
fn exact_numbers() {
    let shown = text(&small(), MapStyle { exact: true, ..style(120, false) });
    assert!(shown.starts_with("tank: 251658240, 148"), "{shown}");
    assert!(shown.contains("\n  131072 12345 1618083840 #"), "{shown}");
}

#[test]
fn a_picture() {
    let mut named = small();
    named.name = "a<b>&\"".into();
    named.vdevs.push(vdev(
        "log",
        VdevClass::Log,
        (0..5000).map(|i| metaslab(i, 5, Some(1))).collect(),
    ));
    let shown = svg(&[named, pool(Vec::new())]);
    assert!(shown.starts_with("<svg ") && shown.ends_with("</svg>\n"));
    assert!(shown.contains("a&lt;b&gt;&amp;&quot;: "), "{shown}");
    assert!(
        shown.contains(
            "<title>metaslab 0: 16M free of 16M, 0% allocated, fragmentation 80%</title>"
        )
    );
    assert!(shown.contains("5000 metaslabs of 16M, 3 in each cell"));
    // The steps of the legend, fifteen metaslabs, and the cells of the log.
    assert_eq!(shown.matches("<title>").count(), 10 + 15 + 5000usize.div_ceil(3));
    for tag in ["g", "text", "title", "svg"] {
        let (open, close) = (format!("<{tag}"), format!("</{tag}>"));
        let opened = shown
            .match_indices(&open)
            .filter(|(at, _)| shown[at + open.len()..].starts_with([' ', '>']));
        assert_eq!(opened.count(), shown.matches(&close).count(), "{tag}");
    }
    assert!(svg(&[]).ends_with("</svg>\n"));
}

/// A part of another document, without free segments.
#[test]
fn elements_of_a_part() {
    let pools = [small()];
    let (whole, part) = (svg_elements(&pools, true), svg_elements(&pools, false));
    assert!(svg(&pools).contains(&whole.0) && !part.0.contains("<svg"));
    assert_eq!(part.0.matches("<title>").count(), whole.0.matches("<title>").count());
    assert!(part.1 < whole.1, "{} {}", part.1, whole.1);
    let bars = MapStyle { histograms: false, ..style(80, false) };
    assert!(text(&small(), style(80, false)).contains("SIZE"));
    assert!(!text(&small(), bars).contains("SIZE"));
}
