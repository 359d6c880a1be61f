//! The option parser of `zpool` and `zfs`: getopt, permuting as GNU's does
//! (chapter 09 §1.1). Options cluster (`-Hp`), take their argument attached or
//! as the next word (`-oname`, `-o name`), repeat, and may follow operands;
//! `--` ends them.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use crate::Flag;

/// One option given.
#[derive(Debug, PartialEq, Eq)]
pub struct Opt {
    /// Its letter.
    pub letter: char,
    /// Its argument; empty if it takes none.
    pub arg: OsString,
}

impl Opt {
    /// The argument as text; bytes that are not UTF-8 are replaced.
    pub fn text(&self) -> String {
        self.arg.to_string_lossy().into_owned()
    }
}

/// A parsed command line.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Parsed {
    /// Options in the order given.
    pub opts: Vec<Opt>,
    /// Operands in the order given.
    pub args: Vec<OsString>,
}

impl Parsed {
    /// Whether the option was given.
    pub fn has(&self, letter: char) -> bool {
        self.opts.iter().any(|o| o.letter == letter)
    }

    /// The last argument given to the option.
    pub fn last(&self, letter: char) -> Option<String> {
        self.opts.iter().rev().find(|o| o.letter == letter).map(Opt::text)
    }

    /// The operands as text.
    pub fn words(&self) -> Vec<String> {
        self.args.iter().map(|a| a.to_string_lossy().into_owned()).collect()
    }
}

/// An error in a command line.
#[derive(Debug, PartialEq, Eq)]
pub enum Bad {
    /// `-?` or `--help`.
    Help,
    /// No such option.
    Invalid(String),
    /// The option lacks its argument.
    Missing(String),
}

impl Bad {
    /// The message before the usage text; `None` for a request for help.
    pub fn message(&self) -> Option<String> {
        match self {
            Bad::Help => None,
            Bad::Invalid(o) => Some(format!("invalid option '{o}'")),
            Bad::Missing(o) => Some(format!("missing argument for '{o}' option")),
        }
    }
}

/// Parses `argv` (without the command's name) with the command's flags.
pub fn parse(argv: &[OsString], flags: &[Flag]) -> Result<Parsed, Bad> {
    let mut out = Parsed::default();
    let mut words = argv.iter();
    while let Some(word) = words.next() {
        let bytes = word.as_bytes();
        if bytes == b"--" {
            out.args.extend(words.by_ref().cloned());
        } else if let Some(name) = bytes.strip_prefix(b"--") {
            long_option(name, flags, &mut words, &mut out)?;
        } else if bytes.len() > 1 && bytes.first() == Some(&b'-') {
            cluster(&bytes[1..], flags, &mut words, &mut out)?;
        } else {
            out.args.push(word.clone());
        }
    }
    Ok(out)
}

fn long_option<'a>(
    name: &[u8],
    flags: &[Flag],
    words: &mut impl Iterator<Item = &'a OsString>,
    out: &mut Parsed,
) -> Result<(), Bad> {
    let cut = name.iter().position(|&b| b == b'=');
    let (key, value) = match cut {
        Some(i) => (&name[..i], Some(OsStr::from_bytes(&name[i + 1..]).to_owned())),
        None => (name, None),
    };
    let shown = || format!("--{}", String::from_utf8_lossy(key));
    let named = |f: &&Flag| !f.long.is_empty() && f.long.as_bytes() == key;
    let Some(flag) = flags.iter().find(named) else {
        return Err(if key == b"help" { Bad::Help } else { Bad::Invalid(shown()) });
    };
    let arg = match (flag.takes(), value) {
        (false, None) => OsString::new(),
        (false, Some(_)) => return Err(Bad::Invalid(shown())),
        (true, Some(value)) => value,
        (true, None) => words.next().cloned().ok_or_else(|| Bad::Missing(shown()))?,
    };
    out.opts.push(Opt { letter: flag.letter, arg });
    Ok(())
}

fn cluster<'a>(
    letters: &[u8],
    flags: &[Flag],
    words: &mut impl Iterator<Item = &'a OsString>,
    out: &mut Parsed,
) -> Result<(), Bad> {
    let mut rest = letters;
    while let Some((&first, tail)) = rest.split_first() {
        let letter = char::from(first);
        let Some(flag) = flags.iter().find(|f| f.short && f.letter == letter) else {
            return Err(if letter == '?' { Bad::Help } else { Bad::Invalid(letter.into()) });
        };
        if !flag.takes() {
            out.opts.push(Opt { letter, arg: OsString::new() });
            rest = tail;
            continue;
        }
        let arg = if tail.is_empty() {
            words.next().cloned().ok_or_else(|| Bad::Missing(letter.into()))?
        } else {
            OsString::from_vec(tail.to_vec())
        };
        out.opts.push(Opt { letter, arg });
        return Ok(());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Use, Word};
    use proptest::prelude::*;

    fn argv(words: &[&str]) -> Vec<OsString> {
        words.iter().map(|w| (*w).into()).collect()
    }
    /// Flags of a getopt string, and two long names.
    fn flags(short: &str) -> Vec<Flag> {
        let one = |letter: char, long: &'static str, value: &'static str| Flag {
            letter,
            short: long.is_empty(),
            long,
            value,
            word: Word::Any,
            help: "",
            usage: Use::Shown,
        };
        let takes = |i: usize, c: char| short[i + c.len_utf8()..].starts_with(':');
        let letters = short.char_indices().filter(|(_, c)| *c != ':');
        let mut all: Vec<Flag> =
            letters.map(|(i, c)| one(c, "", if takes(i, c) { "x" } else { "" })).collect();
        all.extend([one('j', "json", ""), one('X', "exclude", "x")]);
        all
    }
    fn run(words: &[&str], short: &str) -> Result<(String, Vec<String>), Bad> {
        let p = parse(&argv(words), &flags(short))?;
        let opts = p.opts.iter().map(|o| format!("{}={};", o.letter, o.text())).collect();
        Ok((opts, p.words()))
    }

    #[test]
    fn options_cluster_permute_and_repeat() {
        let (opts, args) =
            run(&["tank", "-Hpo", "name,used", "-ored", "x", "--", "-H"], "Hpo:").unwrap();
        assert_eq!(opts, "H=;p=;o=name,used;o=red;");
        assert_eq!(args, ["tank", "x", "-H"]);
        let (opts, args) = run(&["--json", "-", "--exclude=a", "--exclude", "b"], "H").unwrap();
        assert_eq!(opts, "j=;X=a;X=b;");
        assert_eq!(args, ["-"]);
    }

    #[test]
    fn what_is_wrong_is_said_as_openzfs_says_it() {
        let message = |words: &[&str]| run(words, "Ho:").unwrap_err().message();
        assert_eq!(message(&["-Hz"]).unwrap(), "invalid option 'z'");
        assert_eq!(message(&["-H:"]).unwrap(), "invalid option ':'");
        assert_eq!(message(&["-Ho"]).unwrap(), "missing argument for 'o' option");
        assert_eq!(message(&["--nope"]).unwrap(), "invalid option '--nope'");
        assert_eq!(message(&["-?"]), None);
        assert_eq!(message(&["--help"]), None);
    }

    proptest! {
        /// Permutation: operands keep their order wherever the options are.
        #[test]
        fn operands_keep_their_order(
            words in prop::collection::vec(prop_oneof!["[a-z]{1,5}", Just("-H".to_owned()), Just("-p".to_owned())], 0..12)
        ) {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let (opts, args) = run(&words, "Hp").unwrap();
            let model: Vec<&str> = words.iter().copied().filter(|w| !w.starts_with('-')).collect();
            prop_assert_eq!(opts.len() / 3, words.len() - model.len());
            prop_assert_eq!(args, model);
        }

        #[test]
        fn no_input_panics(words in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..6), 0..6)) {
            let argv: Vec<OsString> = words.into_iter().map(OsString::from_vec).collect();
            let _ = parse(&argv, &flags("Ho:é"));
        }
    }
}
