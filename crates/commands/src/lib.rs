//! The table of commands: names, options and words; with the parser of command lines
//! ([`getopt`]).
//!
//! # Theory
//! A command's options are written once, here. The parser ([`Command::parse`]), the usage text,
//! the completion scripts ([`complete`]) and the options of the manual pages ([`pages`]) are
//! made from the same rows, so they cannot differ.
//!
//! # Invariants
//! * No command has two flags with one letter or one long name.
//! * `dist/completions` and the generated parts of `man` agree with this table; a test of `cli`
//!   compares them.
//!
//! # What it must not know
//! The work of commands: this crate parses, describes and refuses. The benches have tables of
//! their own, which the caller of [`pages::pages`] passes.

mod bash;
pub mod complete;
mod fish;
pub mod getopt;
pub mod pages;
mod tools;
mod zfs;
mod zpool;
mod zsh;

use std::ffi::OsString;
use std::os::unix::process::CommandExt;

use base::{Error, Result};
use ui::Exit;

use crate::getopt::{Bad, Parsed};

/// The status of a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// It is documented and works.
    Shown,
    /// Accepted because OpenZFS's command has it; no effect.
    Ignored,
    /// Known, and refused with a message.
    Refused,
    /// Only for the program itself.
    Internal,
}

/// The possible values of a word or of a flag's argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// No completion.
    Any,
    /// A file.
    File,
    /// A directory.
    Dir,
    /// An imported pool.
    Pool,
    /// An imported pool or a vdev of one.
    PoolOrVdev,
    /// A file system or volume.
    Dataset,
    /// A file system, volume or snapshot.
    DatasetOrSnapshot,
    /// One of these words.
    One(&'static [&'static str]),
    /// Some of these words, separated by commas.
    Some(&'static [&'static str]),
    /// Names of pool properties, separated by commas.
    PoolProps,
    /// Names of dataset properties, separated by commas.
    DatasetProps,
    /// `property=value` of a pool.
    PoolAssign,
    /// `property=value` of a dataset.
    DatasetAssign,
}

/// One option.
#[derive(Clone, Copy, Debug)]
pub struct Flag {
    /// The parser's name for it.
    pub letter: char,
    /// Whether the letter may be written; else it only stands for the long name.
    pub(crate) short: bool,
    /// The long name, or an empty string.
    pub long: &'static str,
    /// The name of its argument; empty if it takes none.
    pub(crate) value: &'static str,
    /// The possible values of the argument.
    pub(crate) word: Word,
    /// Its effect, in one line that begins with a small letter and has no full stop.
    pub(crate) help: &'static str,
    /// Its status.
    pub usage: Use,
}

/// A letter without an argument.
const fn flag(letter: char, help: &'static str) -> Flag {
    let usage = Use::Shown;
    Flag { letter, short: true, long: "", value: "", word: Word::Any, help, usage }
}

/// A letter with an argument.
const fn arg(letter: char, value: &'static str, word: Word, help: &'static str) -> Flag {
    Flag { value, word, ..flag(letter, help) }
}

impl Flag {
    /// With a long name, too.
    const fn or(self, long: &'static str) -> Flag {
        Flag { long, ..self }
    }

    /// With a long name alone.
    const fn named(self, long: &'static str) -> Flag {
        Flag { long, short: false, ..self }
    }

    const fn refused(self) -> Flag {
        Flag { usage: Use::Refused, ..self }
    }

    const fn internal(self) -> Flag {
        Flag { usage: Use::Internal, ..self }
    }

    /// The ways to write it, without an argument.
    pub fn spellings(&self) -> Vec<String> {
        let short = self.short.then(|| format!("-{}", self.letter));
        let long = (!self.long.is_empty()).then(|| format!("--{}", self.long));
        short.into_iter().chain(long).collect()
    }

    /// Whether an argument follows.
    pub(crate) fn takes(&self) -> bool {
        !self.value.is_empty()
    }
}

/// A flag of OpenZFS's command without an effect here.
const fn ignored(letter: char) -> Flag {
    Flag { usage: Use::Ignored, ..flag(letter, "") }
}

/// One command.
#[derive(Debug)]
pub struct Command {
    /// `cenote`, `zpool` or `zfs`.
    pub(crate) program: &'static str,
    /// Its name below that.
    pub name: &'static str,
    /// Other names of it.
    pub(crate) aliases: &'static [&'static str],
    /// Its purpose, in a few words.
    pub(crate) about: &'static str,
    /// Its syntax, without the program's name; with the line breaks of usage texts.
    pub synopsis: &'static str,
    /// Its options.
    pub flags: &'static [Flag],
    /// The types of its words in order; the last one repeats.
    pub words: &'static [Word],
    /// It can also be called by its own name, which is the name of its page.
    pub(crate) alone: bool,
    /// Section of its manual page.
    pub(crate) section: u8,
}

/// The defaults of rows.
const COMMAND: Command = Command {
    program: "cenote",
    name: "",
    aliases: &[],
    about: "",
    synopsis: "",
    flags: &[],
    words: &[],
    alone: false,
    section: 1,
};

impl Command {
    /// Parses a command line (without the command's name).
    pub fn parse(&self, argv: &[OsString]) -> std::result::Result<Parsed, Bad> {
        getopt::parse(argv, self.flags)
    }

    /// The complaint about options that were given and that Cenote does not have yet.
    pub fn refusal(&self, parsed: &Parsed) -> Option<String> {
        let refused = |f: &&Flag| f.usage == Use::Refused && parsed.has(f.letter);
        let flag = self.flags.iter().find(refused)?;
        let spelling = flag.spellings().into_iter().next().unwrap_or_default();
        let what = if flag.help.is_empty() { "the option" } else { flag.help };
        let command = match self.alone {
            true => self.name.to_owned(),
            false => format!("{} {}", self.program, self.name),
        };
        Some(format!("cannot run '{command}' with {spelling}: {}", ui::not_yet(what)))
    }

    /// The name of its manual page.
    pub fn page(&self) -> String {
        let name = if self.alone {
            self.name.to_owned()
        } else {
            format!("{}-{}", self.program, self.name)
        };
        format!("{name}.{}", self.section)
    }
}

/// All commands, in the order of usage texts.
pub fn all() -> impl Iterator<Item = &'static Command> {
    zpool::COMMANDS.iter().chain(zfs::COMMANDS).chain(tools::COMMANDS)
}

/// The commands of a program.
pub fn of(program: &str) -> impl Iterator<Item = &'static Command> {
    all().filter(move |c| c.program == program)
}

/// The row for a missing command: it has no options.
static NONE: Command = COMMAND;

/// The row of a command.
pub fn find(program: &str, name: &str) -> &'static Command {
    of(program).find(|c| c.name == name || c.aliases.contains(&name)).unwrap_or(&NONE)
}

/// Complains about an unknown command, or, without a list of others, about one that only OpenZFS
/// has. Tools that probe for a command take exit code 2 for its absence.
pub fn unrecognized(program: &str, name: &str, missing: &[&str]) -> Exit {
    ui::err(&format!("unrecognized command '{name}'"));
    match missing.contains(&name) {
        true => ui::err(&ui::not_yet(&format!("'{program} {name}'"))),
        false => ui::err(usage(program).trim_end()),
    }
    Exit::USAGE
}

/// `version [-j]` of `zpool` and `zfs`: the program's version twice, as there is no kernel
/// module (chapter 09 §1.1, §1.6).
pub fn version(program: &str, argv: &[OsString]) -> Exit {
    let parsed = match find(program, "version").parse(argv) {
        Ok(parsed) if parsed.args.is_empty() => parsed,
        Ok(_) => return misuse(program, "version", Some("too many arguments")),
        Err(bad) => return misuse(program, "version", bad.message().as_deref()),
    };
    let v = env!("CARGO_PKG_VERSION");
    let (userland, kernel) = (format!("zfs-cenote-{v}"), format!("zfs-kmod-none-cenote-{v}"));
    ui::out(&match parsed.has('j') {
        true => format!(
            "{{\"output_version\":{{\"command\":\"{program} version\",\"vers_major\":0,\
             \"vers_minor\":1}},\"zfs_version\":{{\"userland\":\"{userland}\",\"kernel\":\
             \"{kernel}\"}}}}\n"
        ),
        false => format!("{userland}\n{kernel}\n"),
    });
    Exit::OK
}

/// Complains and shows the usage of a command; the exit code is 2.
pub fn misuse(program: &str, command: &str, message: Option<&str>) -> Exit {
    if let Some(message) = message {
        ui::err(message);
    }
    let synopsis = find(program, command).synopsis;
    ui::err(&format!("usage:\n\t{synopsis}"));
    Exit::USAGE
}

/// The usage text of `zpool` or `zfs`.
pub fn usage(program: &str) -> String {
    let mut text =
        format!("usage: {program} command args ...\nwhere 'command' is one of the following:\n\n");
    of(program).for_each(|c| text.push_str(&format!("\t{}\n", c.synopsis)));
    text
}

/// `help [topic]`: the manual page of a program, or of a command of it.
///
/// # Errors
/// There is no such command, or no `man`.
pub fn help(program: &str, argv: &[OsString]) -> Result<Exit> {
    let topic = argv.first().map(|t| t.to_string_lossy().into_owned());
    let page = match &topic {
        None => format!("{program}.{}", if program == "cenote" { 1 } else { 8 }),
        Some(topic) => {
            let found = of(program).find(|c| c.name == topic || c.aliases.contains(&&**topic));
            let none = || Error::not_found(format!("there is no command '{program} {topic}'"));
            found.ok_or_else(none)?.page()
        }
    };
    let (name, section) = page.rsplit_once('.').unwrap_or((&page, "8"));
    // Returns only if the program cannot be run.
    let e = std::process::Command::new("man").args([section, name]).exec();
    Err(Error::io("cannot run man", e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_whole_and_agree_with_themselves() {
        for c in all() {
            let shown = format!("{} {}", c.program, c.name);
            assert!(!c.about.is_empty() && c.about.len() < 72, "{shown}");
            assert!(c.synopsis.starts_with(c.name), "{shown}");
            let mut seen: Vec<String> = Vec::new();
            for f in c.flags {
                assert!(f.short || !f.long.is_empty(), "{shown} {}", f.letter);
                assert!(f.usage != Use::Shown || !f.help.is_empty(), "{shown} {}", f.letter);
                assert!(!f.help.ends_with('.') && f.help.len() < 90, "{shown}: {}", f.help);
                seen.push(format!("letter {}", f.letter));
                seen.extend(f.spellings());
            }
            let count = seen.len();
            seen.sort();
            seen.dedup();
            assert_eq!(seen.len(), count, "{shown}: an option twice");
            assert_eq!(find(c.program, c.name).name, c.name);
        }
    }

    /// Every option that a synopsis shows is in the table.
    #[test]
    fn synopses_show_options_that_exist() {
        for c in all() {
            for word in c.synopsis.split(|c: char| " \n\t[]()<>|".contains(c)) {
                if let Some(long) = word.strip_prefix("--") {
                    let long = long.split(['=', ',']).next().unwrap_or_default();
                    assert!(c.flags.iter().any(|f| f.long == long), "{}: {word}", c.synopsis);
                } else if let Some(letters) = word.strip_prefix('-') {
                    for letter in letters.chars().filter(|l| l.is_ascii_alphanumeric()) {
                        let has = |f: &Flag| f.short && f.letter == letter;
                        assert!(c.flags.iter().any(has), "{}: -{letter}", c.synopsis);
                    }
                }
            }
        }
    }
}
