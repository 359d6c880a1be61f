//! Charts as SVG files, written without a library (rectangles, lines, text).

use std::fmt::Write;

use ui::xml::escape;

use super::chart::{Chart, Shape, short};
use super::frag_map::MapFigure;

const WIDTH: f64 = 800.0;
const HEIGHT: f64 = 360.0;
/// Room for the axes' texts.
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 60.0;
const BOTTOM: f64 = 40.0;
/// Colours that are distinguishable with colour blindness (Okabe and Ito).
const COLORS: [&str; 6] = ["#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9"];

/// Points of a line above which they are not marked one by one.
const MARKED: usize = 60;

/// A document with all pictures below each other, maps first.
pub(super) fn document(maps: &[MapFigure], charts: &[Chart]) -> String {
    let mapped: f64 = maps.iter().map(|m| m.size().1).sum();
    let width = maps.iter().map(|m| m.size().0).fold(WIDTH, f64::max);
    let height = match maps.is_empty() {
        true => HEIGHT * charts.len().max(1) as f64,
        false => mapped + HEIGHT * charts.len() as f64,
    };
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    let mut top = 0.0;
    for map in maps {
        let _ = writeln!(out, "<g transform=\"translate(0 {top})\">");
        map.svg(&mut out);
        out.push_str("</g>\n");
        top += map.size().1;
    }
    for (i, chart) in charts.iter().enumerate() {
        let _ = writeln!(out, "<g transform=\"translate(0 {})\">", top + HEIGHT * i as f64);
        draw(chart, &mut out);
        out.push_str("</g>\n");
    }
    out.push_str("</svg>\n");
    out
}

fn draw(chart: &Chart, out: &mut String) {
    let step = nice_step(chart.top());
    let top = (chart.top() / step).ceil() * step;
    let y = |value: f64| HEIGHT - BOTTOM - (value / top) * (HEIGHT - TOP - BOTTOM);
    let _ = writeln!(
        out,
        "<text x=\"{LEFT}\" y=\"22\" font-size=\"15\">{}</text>",
        escape(&chart.title)
    );
    let mut mark = 0.0;
    while mark <= top * 1.0001 {
        let at = y(mark);
        let right = WIDTH - RIGHT;
        let _ = writeln!(
            out,
            "<line x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{right}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 6.0,
            at + 4.0,
            short(mark)
        );
        mark += step;
    }
    legend(chart, out);
    names(chart, out);
    axes(chart, out);
    let (slot, middle) = slots(chart);
    for (n, series) in chart.series.iter().enumerate() {
        let color = COLORS[n % COLORS.len()];
        let points = series.values.iter().enumerate().filter(|(_, v)| v.is_finite());
        match chart.shape {
            Shape::Bars => {
                let width = slot * 0.8 / chart.series.len().max(1) as f64;
                for (i, &value) in points {
                    let left = middle(i) - slot * 0.4 + width * n as f64;
                    let _ = writeln!(
                        out,
                        "<rect x=\"{left:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"{:.1}\" \
                         fill=\"{color}\"/>",
                        y(value),
                        y(0.0) - y(value)
                    );
                }
            }
            Shape::Lines => {
                let places: Vec<_> = points.map(|(i, &v)| (middle(i), y(v))).collect();
                for (x, y) in places.iter().take_while(|_| places.len() <= MARKED) {
                    let _ = writeln!(
                        out,
                        "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{color}\"/>"
                    );
                }
                let path: Vec<String> =
                    places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
                let _ = writeln!(
                    out,
                    "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"2\"/>",
                    path.join(" ")
                );
            }
        }
    }
}

/// The width of each label's slot, and the middle of it.
fn slots(chart: &Chart) -> (f64, impl Fn(usize) -> f64) {
    let slot = (WIDTH - LEFT - RIGHT) / chart.labels.len().max(1) as f64;
    (slot, move |i| LEFT + slot * (i as f64 + 0.5))
}

/// The labels below the chart; those that would overlap are left out.
fn names(chart: &Chart, out: &mut String) {
    let (slot, middle) = slots(chart);
    let widest = chart.labels.iter().map(|l| l.chars().count()).max().unwrap_or(1);
    let every = ((widest as f64 * 7.0 + 6.0) / slot).ceil().max(1.0) as usize;
    for (i, label) in chart.labels.iter().enumerate().step_by(every) {
        let _ = writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            middle(i),
            HEIGHT - BOTTOM + 18.0,
            escape(label)
        );
    }
}

/// The texts of the axes, below the labels and along the left edge.
fn axes(chart: &Chart, out: &mut String) {
    if !chart.axes.across.is_empty() {
        let _ = writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            (LEFT + WIDTH - RIGHT) / 2.0,
            HEIGHT - 6.0,
            escape(chart.axes.across)
        );
    }
    if !chart.axes.up.is_empty() {
        let middle = (TOP + HEIGHT - BOTTOM) / 2.0;
        let _ = writeln!(
            out,
            "<text x=\"16\" y=\"{middle:.1}\" text-anchor=\"middle\" \
             transform=\"rotate(-90 16 {middle:.1})\">{}</text>",
            escape(chart.axes.up)
        );
    }
}

fn legend(chart: &Chart, out: &mut String) {
    let mut x = LEFT;
    for (n, series) in chart.series.iter().enumerate() {
        let _ = writeln!(
            out,
            "<rect x=\"{x:.1}\" y=\"34\" width=\"12\" height=\"12\" fill=\"{}\"/>\
             <text x=\"{:.1}\" y=\"44\">{}</text>",
            COLORS[n % COLORS.len()],
            x + 16.0,
            escape(&series.name)
        );
        x += 34.0 + 7.0 * series.name.chars().count() as f64;
    }
}

/// A step of 1, 2 or 5 times a power of ten that gives four to ten marks.
fn nice_step(top: f64) -> f64 {
    let power = 10f64.powf((top / 5.0).log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|m| m * power);
    steps.into_iter().find(|s| top / s <= 6.0).unwrap_or(top)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chart::{Axes, Series};

    fn lines_of(labels: &[&str]) -> Chart {
        let series = vec![Series { name: "a".into(), values: vec![1.0; labels.len()] }];
        let labels = labels.iter().map(|l| (*l).to_owned()).collect();
        Chart { title: String::new(), shape: Shape::Lines, labels, series, axes: Axes::default() }
    }

    #[test]
    fn a_small_picture() {
        let series = vec![
            Series { name: "a<b".into(), values: vec![10.0, 20.0] },
            Series { name: "c".into(), values: vec![f64::NAN, 5.0] },
        ];
        let labels = vec!["x".into(), "y".into()];
        let bars = Chart {
            title: "t & u".into(),
            shape: Shape::Bars,
            labels,
            series,
            axes: Axes::default(),
        };
        let lines = Chart { shape: Shape::Lines, ..bars.clone() };
        let text = document(&[], &[bars, lines]);
        assert!(text.starts_with("<svg ") && text.ends_with("</svg>\n"));
        assert!(text.contains("height=\"720\""));
        assert!(text.contains("<text x=\"70\" y=\"22\" font-size=\"15\">t &amp; u</text>"));
        assert!(text.contains("a&lt;b"));
        // Half and all of the height of 260 below 60.
        assert!(text.contains(
            "<rect x=\"105.5\" y=\"190.0\" width=\"142.0\" height=\"130.0\" fill=\"#0072b2\"/>"
        ));
        assert!(text.contains("<polyline points=\"247.5,190.0 602.5,60.0\""), "{text}");
        assert!(text.contains("<polyline points=\"602.5,255.0\""));
        assert_eq!(text.matches("<circle ").count(), 3);
        assert_eq!(text.matches("<rect x=").count(), 3 + 2 * 2);
        assert_eq!(text.matches("<g ").count(), text.matches("</g>").count());
        let axes = Axes { across: "time, s", up: "MB/s" };
        let named = Chart { axes, ..lines_of(&["x"]) };
        let text = document(&[], &[named]);
        assert!(text.contains(">time, s</text>"), "{text}");
        assert!(text.contains("transform=\"rotate(-90 16 190.0)\">MB/s</text>"), "{text}");
        assert!(document(&[], &[]).ends_with("</svg>\n"));
    }

    #[test]
    fn steps() {
        for (top, step) in [(20.0, 5.0), (1.0, 0.2), (0.93, 0.2), (123_456.0, 50_000.0)] {
            assert!((nice_step(top) - step).abs() < 1e-9, "{top}: {}", nice_step(top));
        }
    }
}
