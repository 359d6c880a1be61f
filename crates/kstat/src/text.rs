//! Renders and parses the text of `/proc/spl/kstat/zfs/*` (chapter 09 §6.1).

use std::fmt::Write;

use base::{Error, Result};

use crate::{Kstat, KstatBody, Name, Value};

/// Bytes that the kernel counts for one named value.
const NAMED_SIZE: usize = 272;
/// Largest file that is parsed, bytes.
pub const FILE_MAX: usize = 16 << 20;
/// Width of the column of names.
const NAME_WIDTH: usize = 31;

/// The file's text.
pub fn render(kstat: &Kstat) -> String {
    let mut out = String::new();
    let (kid, made, read) = (kstat.kid, kstat.crtime, kstat.snaptime);
    match &kstat.body {
        KstatBody::Named(entries) => {
            let n = entries.len();
            let _ = writeln!(out, "{kid} 1 0x01 {n} {} {made} {read}", n * NAMED_SIZE);
            let _ = writeln!(out, "{:<31} {:<4} data", "name", "type");
            for (name, value) in entries {
                let _ = writeln!(out, "{name:<31} {:<4} {value}", value.type_number());
            }
        }
        KstatBody::Raw(text) => {
            let _ = writeln!(out, "{kid} 0 0x01 -1 0 {made} {read}");
            out.push_str(text);
        }
        KstatBody::Text(text) => out.push_str(text),
    }
    out
}

fn value(kind: &str, text: &str) -> Option<Value> {
    Some(match kind {
        "1" => Value::I32(text.parse().ok()?),
        "2" => Value::U32(text.parse().ok()?),
        "3" | "5" => Value::I64(text.parse().ok()?),
        "4" | "6" => Value::U64(text.parse().ok()?),
        "0" | "7" => Value::Str(text.to_owned()),
        _ => return None,
    })
}

/// Parses one line of a named kstat. Names and strings may contain blanks (`2 ns`); the
/// part left of the column of types is the name.
fn row(line: &str) -> Option<(Name, Value)> {
    let in_columns = line.as_bytes().get(NAME_WIDTH) == Some(&b' ');
    let (name, rest) = match line.split_at_checked(NAME_WIDTH) {
        Some((name, rest)) if in_columns => (name, rest),
        _ => line.split_once(char::is_whitespace)?,
    };
    let (kind, text) = rest.trim_start().split_once(char::is_whitespace)?;
    let name = name.trim_end();
    if name.is_empty() {
        return None;
    }
    Some((name.to_owned().into(), value(kind, text.trim())?))
}

/// Parses the text of a file. Content without a line of numbers is a text.
///
/// # Errors
/// `Corrupt` for a named kstat with an invalid line, `Limit` for a file of more than
/// [`FILE_MAX`] bytes.
pub fn parse(text: &str) -> Result<Kstat> {
    if text.len() > FILE_MAX {
        return Err(Error::limit(format!("a kstat of {} bytes", text.len())));
    }
    let whole = || Kstat::new("misc", KstatBody::Text(text.to_owned()));
    let (first, rest) = text.split_once('\n').unwrap_or((text, ""));
    let fields: Vec<&str> = first.split_ascii_whitespace().collect();
    let &[kid, kind, flags, _, _, made, read] = fields.as_slice() else { return Ok(whole()) };
    let (Ok(kid), Ok(crtime), Ok(snaptime)) = (kid.parse(), made.parse(), read.parse()) else {
        return Ok(whole());
    };
    if !flags.starts_with("0x") {
        return Ok(whole());
    }
    let body = if kind == "1" {
        let mut lines = rest.lines();
        let header: Vec<&str> = lines.next().unwrap_or("").split_ascii_whitespace().collect();
        if header != ["name", "type", "data"] {
            return Err(Error::corrupt("the second line is not 'name type data'"));
        }
        let rows = lines.filter(|l| !l.trim().is_empty()).map(|line| {
            row(line).ok_or_else(|| {
                let shown: String = line.chars().take(80).collect();
                Error::corrupt(format!("'{shown}' is not a named value"))
            })
        });
        KstatBody::Named(rows.collect::<Result<_>>()?)
    } else {
        KstatBody::Raw(rest.to_owned())
    };
    Ok(Kstat { class: "misc".into(), body, kid, crtime, snaptime })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Chapter 09 §6.1, golden but for the number of rows.
    #[test]
    fn the_chapters_example() {
        let mut kstat = Kstat::numbers([("hits", 1_834_213), ("iohits", 1021), ("misses", 52_213)]);
        (kstat.kid, kstat.crtime, kstat.snaptime) = (13, 4_128_633_472, 9_871_273_643_811);
        let text = "\
13 1 0x01 3 816 4128633472 9871273643811
name                            type data
hits                            4    1834213
iohits                          4    1021
misses                          4    52213
";
        assert_eq!(render(&kstat), text);
        assert_eq!(parse(text).unwrap(), kstat);
        // The header line of the chapter itself has 147 values in 39984 bytes.
        assert_eq!(147 * NAMED_SIZE, 39_984);
    }

    #[test]
    fn blanks_in_names_and_words_and_long_names() {
        let long = "a_name_of_more_than_thirty_one_characters";
        let kstat = Kstat::named(vec![
            ("16 ns".into(), Value::U64(1)),
            ("dataset_name".into(), Value::Str("tank/my files".into())),
            ("memory_available_bytes".into(), Value::I64(-5)),
            (long.into(), Value::U32(7)),
        ]);
        let text = render(&kstat);
        assert!(text.contains("16 ns                           4    1\n"));
        assert!(text.contains("dataset_name                    7    tank/my files\n"));
        assert!(text.contains("a_name_of_more_than_thirty_one_characters 2    7\n"));
        assert_eq!(parse(&text).unwrap(), kstat);
    }

    #[test]
    fn texts_stay_texts() {
        assert_eq!(parse("ONLINE\n").unwrap().body, KstatBody::Text("ONLINE\n".into()));
        assert_eq!(parse("").unwrap().body, KstatBody::Text(String::new()));
        let raw = Kstat::new("misc", KstatBody::Raw("implementation   native\n".into()));
        assert_eq!(render(&raw), "0 0 0x01 -1 0 0 0\nimplementation   native\n");
        assert_eq!(parse(&render(&raw)).unwrap(), raw);
        let head = "1 1 0x01 1 272 1 1\n";
        for bad in ["", "name type\n", "name type data\nhits 4\n", "name type data\nhits 4 x\n"] {
            assert!(parse(&format!("{head}{bad}")).is_err(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_rendered_parses(
            rows in prop::collection::vec(("[a-z_0-9]{1,50}", any::<u64>(), any::<i64>()), 0..20)
        ) {
            let entries = rows.into_iter().flat_map(|(n, u, i)| {
                [(n.clone().into(), Value::U64(u)), (n.into(), Value::I64(i))]
            });
            let kstat = Kstat::named(entries.collect());
            prop_assert_eq!(parse(&render(&kstat)).unwrap(), kstat);
        }

        #[test]
        fn hostile_files_do_no_harm(
            head in prop_oneof![Just("1 1 0x01 1 272 1 1\nname type data\n"), Just("")],
            text in "[ a-zé\\n0-9\\t-]{0,200}"
        ) {
            let _ = parse(&format!("{head}{text}"));
        }
    }
}
