//! Tests that the repository's completion scripts and manual pages agree with the table of
//! commands. With `CENOTE_BLESS` set, they write them (`make pages`).

use std::process::Command as Process;

use commands::pages::{Line, Page, Section, plain};
use commands::{Use, Word, all, complete, find};
use testkit::{Need, skip};

const MAN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../man");

/// The file has this text; with `CENOTE_BLESS` set, it is written.
fn current(path: &str, wanted: &str) {
    if std::env::var_os("CENOTE_BLESS").is_some() {
        std::fs::create_dir_all(std::path::Path::new(path).parent().unwrap()).unwrap();
        std::fs::write(path, wanted).unwrap();
    }
    let found = std::fs::read_to_string(path).unwrap_or_default();
    assert!(found == wanted, "{path} is not current: 'make pages' writes it anew");
}

/// All pages, with every bench.
fn pages() -> Vec<Page> {
    let line = |o: &&bench::Opt| Line { name: o.name, value: o.value, help: o.help };
    let section = |b: &bench::BenchInfo| Section {
        name: b.name,
        about: b.about,
        options: b.options.iter().map(line).collect(),
    };
    commands::pages::pages(&bench::catalogue().iter().map(section).collect::<Vec<_>>())
}

/// The table has all benches.
#[test]
fn benches_are_those_that_there_are() {
    let there: Vec<&str> = bench::catalogue().iter().map(|b| b.name).collect();
    let Some(Word::One(known)) = find("cenote", "bench").words.first() else {
        panic!("the first word is a bench");
    };
    assert_eq!(*known, there);
}

#[test]
fn the_scripts_are_current() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../dist/completions");
    for (shell, file) in [("bash", "cenote.bash"), ("zsh", "_cenote"), ("fish", "cenote.fish")] {
        current(&format!("{dir}/{file}"), &complete::script(shell).unwrap());
    }
}

/// In this order: with `CENOTE_BLESS` set, the first writes what the others read.
#[test]
fn pages_are_current_whole_and_sound() {
    they_are_current();
    every_option_is_in_its_page();
    formatters_do_not_complain();
}

/// The files agree with the table, and no file is left over.
fn they_are_current() {
    let pages = pages();
    for page in &pages {
        let path = format!("{MAN}/{}", page.file);
        let old = std::fs::read_to_string(&path).unwrap_or_default();
        current(&path, &page.renew(&old));
    }
    for entry in std::fs::read_dir(MAN).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(pages.iter().any(|p| p.file == name), "{name}: a page of no command");
        let text = std::fs::read_to_string(format!("{MAN}/{name}")).unwrap();
        assert!(text.contains(".Sh DESCRIPTION\n"), "{name}: no description");
    }
}

/// Every option that can be given is in its command's page, as text.
fn every_option_is_in_its_page() {
    for c in all() {
        let text = std::fs::read_to_string(format!("{MAN}/{}", c.page())).unwrap();
        for f in c.flags.iter().filter(|f| f.usage != Use::Internal) {
            for name in f.spellings() {
                let roff = format!("Fl {}", plain(&name[1..]));
                let has = |l: &str| l.split(" , ").any(|p| p.contains(&roff));
                assert!(text.lines().any(has), "{}: {name}", c.page());
            }
        }
    }
    let bench = std::fs::read_to_string(format!("{MAN}/cenote-bench.1")).unwrap();
    for b in bench::catalogue() {
        assert!(bench.contains(&format!(".Ss {}\n", b.name)), "{}", b.name);
    }
}

/// The installed formatters report no problem.
fn formatters_do_not_complain() {
    let files: Vec<String> = pages().iter().map(|p| format!("{MAN}/{}", p.file)).collect();
    let mut tried = 0;
    let tools = [
        ("mandoc", &["-Tlint", "-Wwarning"][..]),
        ("man", &["--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z"][..]),
    ];
    for (tool, args) in tools {
        let out = Process::new(tool).args(args).args(&files).env("LC_ALL", "C").output();
        let Ok(out) = out else {
            skip(Need::Programs, &format!("pages through {tool}: it is not installed"));
            continue;
        };
        tried += 1;
        let text = String::from_utf8_lossy(&out.stderr).into_owned()
            + if tool == "mandoc" { std::str::from_utf8(&out.stdout).unwrap() } else { "" };
        assert_eq!(text, "", "{tool}");
    }
    println!("pages went through {tried} formatters");
}
