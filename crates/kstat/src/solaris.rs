//! Kstats in the output format of Solaris's `kstat`.
//!
//! The directory of a path is part of the module, as in Linux: `arcstats` is
//! `zfs:0:arcstats`, `tank/objset-0x36` is `zfs/tank:0:objset-0x36`. Values are sorted
//! by name, together with `class`, `crtime` and `snaptime` (seconds). A text is one
//! value, `raw`.

use std::fmt::Write;

use crate::{Kstat, KstatBody};

/// The module and the name of a path.
pub fn split(path: &str) -> (String, &str) {
    match path.rsplit_once('/') {
        Some((dir, name)) => (format!("zfs/{dir}"), name),
        None => ("zfs".to_owned(), path),
    }
}

/// Whether `text` matches `pattern`; `*` stands for any characters, `?` for one.
pub fn matches(pattern: &str, text: &str) -> bool {
    let (p, t): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    let (mut i, mut j) = (0, 0);
    // Where to continue when the text no longer matches: behind the last star.
    let mut back: Option<(usize, usize)> = None;
    while j < t.len() {
        match p.get(i) {
            Some('*') => {
                back = Some((i + 1, j));
                i += 1;
            }
            Some(&c) if c == '?' || c == t[j] => {
                i += 1;
                j += 1;
            }
            _ => {
                let Some((star, from)) = back else { return false };
                back = Some((star, from + 1));
                (i, j) = (star, from + 1);
            }
        }
    }
    p[i..].iter().all(|c| *c == '*')
}

/// Whether a path belongs to a module (`zfs` includes all pools) and has a name.
pub fn wanted(path: &str, module: Option<&str>, name: Option<&str>) -> bool {
    let (of, called) = split(path);
    let first = of.split('/').next().unwrap_or(&of);
    module.is_none_or(|m| matches(m, &of) || matches(m, first))
        && name.is_none_or(|n| matches(n, called))
}

fn seconds(nanos: u64) -> String {
    format!("{}.{:09}", nanos / 1_000_000_000, nanos % 1_000_000_000)
}

fn rows(kstat: &Kstat) -> Vec<(String, String)> {
    let mut rows: Vec<(String, String)> = match &kstat.body {
        KstatBody::Named(list) => {
            list.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect()
        }
        KstatBody::Raw(text) | KstatBody::Text(text) => {
            vec![("raw".to_owned(), text.trim_end().replace('\n', "\n\t"))]
        }
    };
    rows.push(("crtime".to_owned(), seconds(kstat.crtime)));
    rows.push(("snaptime".to_owned(), seconds(kstat.snaptime)));
    rows.sort();
    rows
}

/// The format for people.
pub fn render(path: &str, kstat: &Kstat) -> String {
    let (module, name) = split(path);
    let mut out = format!("module: {module:<30}  instance: 0\n");
    let _ = writeln!(out, "name:   {name:<30}  class:    {}", kstat.class);
    for (key, value) in rows(kstat) {
        let _ = writeln!(out, "\t{key:<30}  {value}");
    }
    out.push('\n');
    out
}

/// The format for programs: `module:instance:name:statistic`, a TAB, the value.
pub fn parsable(path: &str, kstat: &Kstat) -> String {
    let (module, name) = split(path);
    let mut rows = rows(kstat);
    rows.push(("class".to_owned(), kstat.class.to_string()));
    rows.sort();
    let mut out = String::new();
    for (key, value) in rows {
        let _ = writeln!(out, "{module}:0:{name}:{key}\t{value}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Value;

    #[test]
    fn both_forms() {
        let mut kstat = Kstat::numbers([("reads", 3), ("nread", 4096)]);
        (kstat.crtime, kstat.snaptime) = (1_500_000_000, 12_000_000_001);
        assert_eq!(
            render("tank/objset-0x36", &kstat),
            "module: zfs/tank                        instance: 0\n\
             name:   objset-0x36                     class:    misc\n\
             \tcrtime                          1.500000000\n\
             \tnread                           4096\n\
             \treads                           3\n\
             \tsnaptime                        12.000000001\n\n"
        );
        assert_eq!(
            parsable("arcstats", &kstat),
            "zfs:0:arcstats:class\tmisc\nzfs:0:arcstats:crtime\t1.500000000\n\
             zfs:0:arcstats:nread\t4096\nzfs:0:arcstats:reads\t3\n\
             zfs:0:arcstats:snaptime\t12.000000001\n"
        );
        let word = Kstat::named(vec![("dataset_name".into(), Value::Str("tank/a".into()))]);
        assert!(parsable("x", &word).contains("zfs:0:x:dataset_name\ttank/a\n"));
    }

    #[test]
    fn patterns() {
        for (pattern, text, is) in [
            ("zfs", "zfs", true),
            ("zfs", "zfs2", false),
            ("arc*", "arcstats", true),
            ("*stats", "arcstats", true),
            ("a*s*s", "arcstats", true),
            ("?rcstats", "arcstats", true),
            ("*", "", true),
            ("?", "", false),
            ("a*b", "aab", true),
        ] {
            assert_eq!(matches(pattern, text), is, "{pattern} {text}");
        }
        assert!(wanted("tank/state", Some("zfs"), None));
        assert!(wanted("tank/state", Some("zfs/tank"), Some("st*")));
        assert!(!wanted("arcstats", Some("zfs/tank"), None));
        assert!(!wanted("arcstats", None, Some("zil")));
        // A pattern of many stars must not take exponential time.
        assert!(!matches(&"*a".repeat(30), &"a".repeat(29)));
    }
}
