//! The generated parts of manual pages.
//!
//! # Theory
//! A page in `man` is written by hand except for the parts between `.\" BEGIN name` and `.\"
//! END name`: head, synopsis, options, commands. [`Page::renew`] generates those from the table
//! and leaves the rest unchanged. A test of `cli` compares the pages, and writes them if
//! `CENOTE_BLESS` is set.

use std::fmt::Write;

use super::{Command, Flag, Use, all, of};

/// The date of the pages.
const DATE: &str = "November 21, 2026";

/// A bench with options of its own, which has a section in the page of `bench`.
pub struct Section {
    /// Its name.
    pub name: &'static str,
    /// What it does, in one line.
    pub about: &'static str,
    /// Its options.
    pub options: Vec<Line>,
}

/// An option of a [`Section`].
pub struct Line {
    /// With its dashes.
    pub name: &'static str,
    /// The name of its argument; empty if it takes none.
    pub value: &'static str,
    /// What it does, in one line.
    pub help: &'static str,
}

/// The generated parts of a page.
pub struct Page {
    /// File name in `man`.
    pub file: String,
    /// Names of the parts in order, with their content.
    parts: Vec<(&'static str, String)>,
}

/// All pages; that of `bench` has these sections.
pub fn pages(benches: &[Section]) -> Vec<Page> {
    let programs = [
        ("cenote", 1, "ZFS in user space"),
        ("zpool", 8, "manage the pools of Cenote"),
        ("zfs", 8, "manage the datasets of Cenote"),
    ];
    let mut out: Vec<Page> = programs.map(|(n, section, about)| program(n, section, about)).into();
    out.extend(all().map(|c| command(c, benches)));
    out
}

/// Text with roff's special characters escaped.
pub fn plain(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}

/// Text as arguments of a macro: words that would be macros or punctuation are escaped.
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

/// The syntax, with names and options in bold.
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
            // Bold: the command's own name, words like it before the first operand, options.
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

/// An option's names and argument as macros.
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

fn command(c: &'static Command, benches: &[Section]) -> Page {
    let page = c.page();
    let name = page.rsplit_once('.').map_or(page.as_str(), |p| p.0).to_owned();
    let program = if c.alone { "" } else { c.program };
    let mut parts = vec![
        ("head", head(&name, c.section, c.about)),
        ("synopsis", synopsis(program, c.synopsis)),
    ];
    let options = if c.name == "bench" { sections(benches) } else { options(c) };
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
fn sections(benches: &[Section]) -> String {
    let mut out = ".Sh BENCHES\n".to_owned();
    for b in benches {
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
    /// The page with its generated parts made again. `old` is the present page; a part that it
    /// lacks is appended.
    pub fn renew(&self, old: &str) -> String {
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
