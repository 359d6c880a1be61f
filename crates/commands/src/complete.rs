//! `cenote completion`: scripts that complete commands, options and names in a shell.
//!
//! # Theory
//! A script consists of data from the table and a small engine in the shell's own language.
//! Names of pools and datasets are read when they are needed, by `zpool list` and `zfs list` of
//! the program that is being completed.

use std::ffi::OsString;

use base::Result;
use cenote::props::{Attr, Prop, dataset_props, pool_props};
use ui::Exit;

use super::{Command, Flag, Use, Word};

/// `cenote completion bash|zsh|fish`
pub fn main(argv: &[OsString]) -> Result<Exit> {
    let command = super::find("cenote", "completion");
    let words = command.parse(argv).map(|parsed| parsed.words()).unwrap_or_default();
    let script = match &words[..] {
        [shell] => script(shell),
        _ => None,
    };
    match script {
        Some(script) => {
            ui::out(&script);
            Ok(Exit::OK)
        }
        None => {
            ui::err(&format!("usage:\n\t{}", command.synopsis));
            Ok(Exit::USAGE)
        }
    }
}

/// The script of a shell.
pub fn script(shell: &str) -> Option<String> {
    match shell {
        "bash" => Some(super::bash::script()),
        "zsh" => Some(super::zsh::script()),
        "fish" => Some(super::fish::script()),
        _ => None,
    }
}

/// Programs that have commands, and tools of `cenote` with a name of their own.
pub(super) fn programs() -> Vec<&'static str> {
    let mut out = vec!["cenote", "zpool", "zfs"];
    for tool in super::of("cenote").filter(|c| c.alone) {
        out.push(tool.name);
        out.extend(tool.aliases);
    }
    out
}

/// Names of the commands of a program; those of `cenote` include the other two programs.
pub(super) fn names(program: &str) -> Vec<(&'static str, &'static str)> {
    let mut out: Vec<(&str, &str)> = Vec::new();
    if program == "cenote" {
        out.push(("zpool", "pools"));
        out.push(("zfs", "datasets"));
    }
    for c in super::of(program) {
        out.push((c.name, c.about));
        // A tool's aliases are programs, not commands.
        out.extend(c.aliases.iter().filter(|_| !c.alone).map(|alias| (*alias, c.about)));
    }
    if program == "cenote" {
        out.push(("help", "how cenote is used"));
        out.push(("version", "show the version"));
    }
    out
}

/// The flags that are proposed.
pub(super) fn flags(command: &Command) -> impl Iterator<Item = &'static Flag> + use<> {
    command.flags.iter().filter(|f| f.usage == Use::Shown)
}

fn list(props: &[Prop], wanted: impl Fn(&Prop) -> bool) -> Vec<&'static str> {
    props.iter().filter(|p| p.visible && wanted(p)).map(|p| p.name).collect()
}

/// The property names that complete a word.
pub(super) fn props(word: Word) -> Vec<&'static str> {
    let settable = |p: &Prop| p.attr != Attr::ReadOnly;
    let mut out = match word {
        Word::PoolProps => list(pool_props(), |_| true),
        Word::PoolAssign => list(pool_props(), settable),
        Word::DatasetProps => list(dataset_props(), |_| true),
        Word::DatasetAssign => list(dataset_props(), settable),
        _ => return Vec::new(),
    };
    if matches!(word, Word::PoolProps | Word::DatasetProps) {
        out.extend(["all", "name"]);
    }
    out.sort_unstable();
    out.dedup();
    out
}

/// The scripts' name for a type of word.
pub(super) fn kind(word: Word) -> String {
    match word {
        Word::Any => "any".to_owned(),
        Word::File => "file".to_owned(),
        Word::Dir => "dir".to_owned(),
        Word::Pool => "pool".to_owned(),
        Word::PoolOrVdev => "vdev".to_owned(),
        Word::Dataset => "dataset".to_owned(),
        Word::DatasetOrSnapshot => "snapshot".to_owned(),
        Word::One(words) => format!("one {}", words.join(" ")),
        Word::Some(words) => format!("some {}", words.join(" ")),
        Word::PoolProps => "pool_props".to_owned(),
        Word::DatasetProps => "dataset_props".to_owned(),
        Word::PoolAssign => "pool_assign".to_owned(),
        Word::DatasetAssign => "dataset_assign".to_owned(),
    }
}

/// The lists of properties that scripts carry.
pub(super) const LISTS: [Word; 4] =
    [Word::PoolProps, Word::PoolAssign, Word::DatasetProps, Word::DatasetAssign];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_have_lists() {
        assert!(props(Word::PoolAssign).contains(&"comment"));
        assert!(!props(Word::PoolAssign).contains(&"guid"));
        assert!(props(Word::DatasetProps).contains(&"used"));
        assert!(props(Word::DatasetAssign).contains(&"compression"));
        assert!(props(Word::Any).is_empty());
    }
}
