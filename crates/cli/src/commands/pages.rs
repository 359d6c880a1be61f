//! Manual pages: what of them the table knows.
//!
//! # Theory
//! A page in `man` is written by hand but for the parts between `.\" BEGIN name` and
//! `.\" END name`: head, synopsis, options, commands. [`renew`] makes those anew from the
//! table and leaves the rest alone; a test compares, and writes with `CENOTE_BLESS` set.

use std::fmt::Write;

use super::{Command, Flag, Use, all, of};
use crate::bench;

/// The day that pages carry.
const DATE: &str = "November 21, 2026";

/// A page, without what is written by hand.
pub(crate) struct Page {
    /// File name in `man`.
    pub(crate) file: String,
    /// Names of the parts in order, and their content.
    parts: Vec<(&'static str, String)>,
}

/// All pages.
pub(crate) fn pages() -> Vec<Page> {
    let programs = [
        ("cenote", 1, "ZFS in user space"),
        ("zpool", 8, "manage the pools of Cenote"),
        ("zfs", 8, "manage the datasets of Cenote"),
    ];
    let mut out: Vec<Page> = programs.map(|(n, section, about)| program(n, section, about)).into();
    out.extend(all().map(command));
    out
}

/// Text with what roff would take for its own escaped.
fn plain(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}

/// Text as arguments of a macro: words that would be macros or punctuation are not.
fn argument(text: &str) -> String {
    format!("\"{}\"", plain(text).replace('"', "\\(dq"))
}

fn head(page: &str, section: u8, about: &str) -> String {
    let title = page.to_uppercase();
    format!(
        ".Dd {DATE}\n.Dt {title} {section}\n.Os Cenote\n.Sh NAME\n.Nm {page}\n.Nd {}\n",
        plain(about)
    )
}

/// How it is written: names and options in bold.
fn synopsis(program: &str, text: &str) -> String {
    let mut out = ".Sh SYNOPSIS\n.Bd -unfilled\n".to_owned();
    for line in text.lines() {
        let continued = line.trim_start_matches('\t').starts_with("    ");
        let line = line.trim();
        let mut bold = !continued;
        let mut shown = String::new();
        for (i, word) in line.split(' ').enumerate() {
            let cut = word.find(|c: char| !"[<(".contains(c)).unwrap_or(0);
            let (open, rest) = word.split_at(cut);
            let end = rest.find(|c: char| "]>|)".contains(c)).unwrap_or(rest.len());
            let (name, close) = rest.split_at(end);
            // The command's own name, words like it before the first operand, options.
            bold =
                bold && open.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
            let strong = bold && i == 0 || name.starts_with('-');
            let name = plain(name);
            let name = if strong { format!("\\fB{name}\\fR") } else { name };
            let _ = write!(shown, "{}{open}{name}{}", if i > 0 { " " } else { "" }, plain(close));
        }
        let program = if continued { "    ".to_owned() } else { format!("\\fB{program}\\fR ") };
        let program = if program == "\\fB\\fR " { String::new() } else { program };
        let _ = writeln!(out, "{program}{shown}");
    }
    out + ".Ed\n"
}

/// An option's names and argument, as macros.
fn names(f: &Flag) -> String {
    let spell = |name: &String| format!("Fl {}", plain(name.strip_prefix('-').unwrap_or(name)));
    let mut out = f.spellings().iter().map(spell).collect::<Vec<_>>().join(" , ");
    if f.takes() {
        let _ = write!(out, " Ar {}", argument(f.value));
    }
    out
}

fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|c| c.to_uppercase().to_string()).unwrap_or_default();
    plain(&format!("{first}{}.", letters.as_str()))
}

fn options(c: &Command) -> String {
    let of = |usage: Use| c.flags.iter().filter(move |f| f.usage == usage);
    let mut out = String::new();
    if of(Use::Shown).next().is_some() {
        out.push_str(".Sh OPTIONS\n.Bl -tag -width Ds\n");
        for f in of(Use::Shown) {
            let _ = writeln!(out, ".It {}\n{}", names(f), sentence(f.help));
        }
        out.push_str(".El\n");
    }
    let kinds = [
        (Use::Ignored, "Accepted because OpenZFS's command has them, and without effect:"),
        (Use::Refused, "Known, and refused in this version:"),
    ];
    for (usage, text) in kinds {
        let list: Vec<String> = of(usage)
            .map(|f| {
                let names = f.spellings();
                let spell = |n: &String| format!("Fl {}", plain(n.strip_prefix('-').unwrap_or(n)));
                names.iter().map(spell).collect::<Vec<_>>().join(" , ")
            })
            .collect();
        if list.is_empty() {
            continue;
        }
        if out.is_empty() {
            out.push_str(".Sh OPTIONS\n");
        } else {
            out.push_str(".Pp\n");
        }
        let _ = writeln!(out, "{text}\n.{} .", list.join(" , "));
    }
    out
}

fn command(c: &'static Command) -> Page {
    let page = c.page();
    let name = page.rsplit_once('.').map_or(page.as_str(), |p| p.0).to_owned();
    let program = if c.alone { "" } else { c.program };
    let mut parts = vec![
        ("head", head(&name, c.section, c.about)),
        ("synopsis", synopsis(program, c.synopsis)),
    ];
    let options = if c.name == "bench" { benches() } else { options(c) };
    if !options.is_empty() {
        parts.push(("options", options));
    }
    Page { file: page, parts }
}

fn program(name: &'static str, section: u8, about: &str) -> Page {
    let usage = ".Sh SYNOPSIS\n.Nm\n.Ar command\n.Op Ar options\n.Op Ar words\n".to_owned();
    let mut list = ".Sh COMMANDS\n.Bl -tag -width Ds\n".to_owned();
    let mut item = |page: &str, about: &str| {
        if let Some((name, section)) = page.rsplit_once('.') {
            let _ = writeln!(list, ".It Xr {name} {section}\n{}", sentence(about));
        }
    };
    if name == "cenote" {
        item("zpool.8", "pools: create, import, export, list, status and more");
        item("zfs.8", "datasets: create, snapshot, mount, list and more");
    }
    of(name).for_each(|c| item(&c.page(), c.about));
    list.push_str(".El\n");
    let parts = vec![("head", head(name, section, about)), ("synopsis", usage), ("commands", list)];
    Page { file: format!("{name}.{section}"), parts }
}

/// Every bench with its options.
fn benches() -> String {
    let mut out = ".Sh BENCHES\n".to_owned();
    for b in bench::catalogue() {
        let _ = writeln!(out, ".Ss {}\n{}", b.name, sentence(b.about));
        out.push_str(".Bl -tag -width Ds\n");
        for o in &b.options {
            let name = plain(o.name.strip_prefix('-').unwrap_or(o.name));
            let value = if o.value.is_empty() {
                String::new()
            } else {
                format!(" Ar {}", argument(o.value))
            };
            let _ = writeln!(out, ".It Fl {name}{value}\n{}", sentence(o.help));
        }
        out.push_str(".El\n");
    }
    out
}

impl Page {
    /// The page with its generated parts made anew. `old` is what there is; a part that it
    /// lacks is put at its end.
    pub(crate) fn renew(&self, old: &str) -> String {
        let mut text = old.to_owned();
        for (name, content) in &self.parts {
            let (begin, end) = (format!(".\\\" BEGIN {name}\n"), format!(".\\\" END {name}\n"));
            let part = format!("{begin}{content}{end}");
            let from = text.find(&begin);
            let to = text.find(&end).map(|at| at + end.len());
            match (from, to) {
                (Some(from), Some(to)) if from < to => text.replace_range(from..to, &part),
                _ => text.push_str(&part),
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command as Process;

    const DIR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../man");

    /// In this order: with `CENOTE_BLESS` set, the first writes what the others read.
    #[test]
    fn pages_are_current_whole_and_sound() {
        they_are_current();
        every_option_is_in_its_page();
        formatters_do_not_complain();
    }

    /// What the repository holds is what the table says, and nothing is left over.
    fn they_are_current() {
        let pages = pages();
        for page in &pages {
            let path = format!("{DIR}/{}", page.file);
            let old = std::fs::read_to_string(&path).unwrap_or_default();
            super::super::tests::current(&path, &page.renew(&old));
        }
        for entry in std::fs::read_dir(DIR).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            assert!(pages.iter().any(|p| p.file == name), "{name}: a page of no command");
            let text = std::fs::read_to_string(format!("{DIR}/{name}")).unwrap();
            assert!(text.contains(".Sh DESCRIPTION\n"), "{name}: no description");
        }
    }

    /// Every option that can be given is in its command's page, as text.
    fn every_option_is_in_its_page() {
        for c in all() {
            let text = std::fs::read_to_string(format!("{DIR}/{}", c.page())).unwrap();
            for f in c.flags.iter().filter(|f| f.usage != Use::Internal) {
                for name in f.spellings() {
                    let roff = format!("Fl {}", plain(&name[1..]));
                    let has = |l: &str| l.split(" , ").any(|p| p.contains(&roff));
                    assert!(text.lines().any(has), "{}: {name}", c.page());
                }
            }
        }
        let bench = std::fs::read_to_string(format!("{DIR}/cenote-bench.1")).unwrap();
        for b in bench::catalogue() {
            assert!(bench.contains(&format!(".Ss {}\n", b.name)), "{}", b.name);
        }
    }

    /// No formatter that is installed has anything to say.
    fn formatters_do_not_complain() {
        let files: Vec<String> = pages().iter().map(|p| format!("{DIR}/{}", p.file)).collect();
        let mut tried = 0;
        let tools = [
            ("mandoc", &["-Tlint", "-Wwarning"][..]),
            ("man", &["--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z"][..]),
        ];
        for (tool, args) in tools {
            let out = Process::new(tool).args(args).args(&files).env("LC_ALL", "C").output();
            let Ok(out) = out else {
                println!("SKIPPED: pages through {tool}: it is not installed");
                continue;
            };
            tried += 1;
            let text = String::from_utf8_lossy(&out.stderr).into_owned()
                + if tool == "mandoc" { std::str::from_utf8(&out.stdout).unwrap() } else { "" };
            assert_eq!(text, "", "{tool}");
        }
        println!("pages went through {tried} formatters");
    }

    #[test]
    fn parts_are_renewed_in_place() {
        let page = program("zpool", 8, "x");
        let first = page.renew("");
        assert_eq!(page.renew(&first), first);
        let written = first.replace(".\\\" BEGIN commands\n", "by hand\n.\\\" BEGIN commands\n");
        let stale = written.replace("zpool\\-list", "gone").replace("zpool-list", "gone");
        assert_eq!(page.renew(&stale), written);
    }
}
