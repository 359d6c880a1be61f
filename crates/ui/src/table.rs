//! Tables as `zfs list` and `zpool list` print them (chapter 09 §1.5): columns
//! two blanks apart, numbers to the right, the last column not padded when it is
//! left-justified; or, for scripts, one TAB between fields and nothing else.

use std::fmt::Write;

use cenote::props::{Prop, PropKind};

/// One column.
#[derive(Clone, Debug)]
pub struct Column {
    /// Heading.
    pub header: String,
    /// Right-justified.
    pub right: bool,
    /// Minimum width; the heading's width counts too.
    pub min: usize,
    /// Longer values exceed the column instead of widening it.
    pub fixed: bool,
}

impl Column {
    /// A left-justified column as wide as its longest value.
    pub fn text(header: impl Into<String>) -> Column {
        Column { header: header.into(), right: false, min: 0, fixed: false }
    }

    /// The column of a native property.
    pub fn of(prop: &Prop, parsable: bool) -> Column {
        Column {
            header: prop.header.to_owned(),
            right: prop.kind() == PropKind::Number,
            min: prop.min_width(),
            fixed: prop.has_fixed_width() && !parsable,
        }
    }
}

/// Characters, not bytes: names may hold UTF-8.
fn width(s: &str) -> usize {
    s.chars().count()
}

/// The widths of all columns.
pub fn widths(columns: &[Column], rows: &[Vec<String>]) -> Vec<usize> {
    let widest = |i: usize| rows.iter().filter_map(|r| r.get(i)).map(|v| width(v)).max();
    let one = |(i, c): (usize, &Column)| {
        let values = if c.fixed { 0 } else { widest(i).unwrap_or(0) };
        values.max(c.min).max(width(&c.header))
    };
    columns.iter().enumerate().map(one).collect()
}

/// Appends one line of a human-readable table.
pub fn human_line(out: &mut String, columns: &[Column], widths: &[usize], cells: &[String]) {
    for (i, (column, cell)) in columns.iter().zip(cells).enumerate() {
        if i > 0 {
            out.push_str("  ");
        }
        let pad = widths.get(i).copied().unwrap_or(0).saturating_sub(width(cell));
        if column.right {
            let _ = write!(out, "{:pad$}{cell}", "");
        } else if i + 1 == columns.len() {
            out.push_str(cell);
        } else {
            let _ = write!(out, "{cell}{:pad$}", "");
        }
    }
    out.push('\n');
}

/// The whole table.
pub fn render(columns: &[Column], rows: &[Vec<String>], scripted: bool) -> String {
    let mut out = String::new();
    if scripted {
        for row in rows {
            out.push_str(&row.join("\t"));
            out.push('\n');
        }
        return out;
    }
    let widths = widths(columns, rows);
    let headers: Vec<String> = columns.iter().map(|c| c.header.clone()).collect();
    human_line(&mut out, columns, &widths, &headers);
    for row in rows {
        human_line(&mut out, columns, &widths, row);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote::props::{dataset_column, pool_column};

    fn row(cells: &[&str]) -> Vec<String> {
        cells.iter().map(|c| (*c).to_owned()).collect()
    }

    /// Chapter 09 §4.2, golden.
    #[test]
    fn zpool_list() {
        let mut columns = vec![Column::text("NAME")];
        for name in
            ["size", "alloc", "free", "ckpoint", "expandsz", "frag", "cap", "dedup", "health"]
        {
            columns.push(Column::of(pool_column(name).unwrap(), false));
        }
        columns.push(Column::text("ALTROOT"));
        let rows = [row(&[
            "tank", "15G", "2.50G", "12.5G", "-", "-", "7%", "16%", "1.00x", "ONLINE", "-",
        ])];
        assert_eq!(
            render(&columns, &rows, false),
            "NAME   SIZE  ALLOC   FREE  CKPOINT  EXPANDSZ   FRAG    CAP  DEDUP    HEALTH  ALTROOT\n\
             tank    15G  2.50G  12.5G        -         -     7%    16%  1.00x    ONLINE  -\n"
        );
    }

    /// A ratio wider than its column exceeds it; `-p` widens the column.
    #[test]
    fn fixed_columns_let_values_stick_out() {
        let prop = dataset_column("ratio").unwrap();
        let rows = [row(&["a", "10.39x", "x"])];
        let table = |p| {
            let columns = [Column::text("NAME"), Column::of(prop, p), Column::text("TYPE")];
            render(&columns, &rows, false)
        };
        assert_eq!(table(false), "NAME  RATIO  TYPE\na     10.39x  x\n");
        assert_eq!(table(true), "NAME   RATIO  TYPE\na     10.39x  x\n");
        let columns = [Column::text("NAME"), Column::of(prop, true)];
        assert_eq!(render(&columns, &[row(&["a", "1.00"])], true), "a\t1.00\n");
    }
}
