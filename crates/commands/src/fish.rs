//! The completion script of fish.

use std::fmt::Write;

use super::complete::{LISTS, flags, kind, names, programs, props};
use super::{Command, Word, all};

/// The engine: finds the position of the cursor on the line.
const ENGINE: &str = r#"
# The command line as "program command" and the words behind it.
function __cenote_split
    set -l words (commandline -opc)
    set -l name (string replace -r '.*/' '' -- $words[1])
    switch $name
        case cenote
            if contains -- "$words[2]" zpool zfs
                printf '%s\n' $words[2] "$words[3]" $words[4..-1]
            else
                printf '%s\n' cenote "$words[2]" $words[3..-1]
            end
        case zpool zfs
            printf '%s\n' $name "$words[2]" $words[3..-1]
        case '*'
            printf '%s\n' cenote $name $words[2..-1]
    end
end

# Whether a command of this program is wanted.
function __cenote_wants
    set -l split (__cenote_split)
    test "$split[1]" = $argv[1] -a -z "$split[2]"
end

# Whether the cursor is at this command, and, with a number, at this word of it; with +
# before the number, there or behind it.
function __cenote_at
    set -l split (__cenote_split)
    test "$split[1]" = $argv[1]; and contains -- "$split[2]" (string split , -- $argv[2]); or return 1
    set -q argv[3]; or return 0
    set -l count 0
    set -l value no
    for word in $split[3..-1]
        if test $value = yes
            set value no
        else if string match -q -- '-*' $word
            set -l last $word
            string match -q -- '--*' $word; or set last -(string sub -s -1 -- $word)
            contains -- $last (__cenote_takes $argv[1] $split[2]); and set value yes
        else
            set count (math $count + 1)
        end
    end
    switch $argv[3]
        case '+*'
            test $count -ge (string sub -s 2 -- $argv[3])
        case '*'
            test $count -eq $argv[3]
    end
end

# The zpool or zfs that belongs to what is being completed.
function __cenote_ask
    set -l called (commandline -opc)[1]
    if test (string replace -r '.*/' '' -- $called) = cenote
        command $called $argv 2>/dev/null
    else
        set -l program (string replace -r '[^/]*$' '' -- $called)$argv[1]
        command $program $argv[2..-1] 2>/dev/null
    end
end
function __cenote_pools
    __cenote_ask zpool list -H -o name
end
function __cenote_vdevs
    __cenote_ask zpool list -H -o name
    __cenote_ask zpool list -H -v -o name | string match -r '^\t.*' | string trim
end
function __cenote_datasets
    __cenote_ask zfs list -H -o name -t filesystem,volume
end
function __cenote_snapshots
    set -l word (commandline -ct)
    if string match -q '*@*' -- $word
        __cenote_ask zfs list -H -o name -t snapshot -d 1 (string replace -r '@.*' '' -- $word)
    else
        __cenote_datasets
    end
end
# The last part of a list with commas.
function __cenote_list
    set -l done (string replace -rf '(.*,).*' '$1' -- (commandline -ct))
    printf '%s\n' "$done"$argv
end
"#;

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"))
}

/// The completion of a word for fish: a list of candidates, or files.
fn proposes(word: Word) -> String {
    match word {
        Word::Any => "-f".to_owned(),
        Word::File => "-F".to_owned(),
        Word::Dir => "-f -a '(__fish_complete_directories)'".to_owned(),
        Word::Pool => "-f -a '(__cenote_pools)'".to_owned(),
        Word::PoolOrVdev => "-f -a '(__cenote_vdevs)'".to_owned(),
        Word::Dataset => "-f -a '(__cenote_datasets)'".to_owned(),
        Word::DatasetOrSnapshot => "-f -a '(__cenote_snapshots)'".to_owned(),
        Word::One(words) => format!("-f -a {}", quoted(&words.join(" "))),
        Word::Some(words) => format!("-f -a '(__cenote_list {})'", words.join(" ")),
        Word::PoolAssign | Word::DatasetAssign => {
            format!("-f -a '(string replace -r \\'$\\' = -- $__cenote_{})'", kind(word))
        }
        Word::PoolProps | Word::DatasetProps => {
            format!("-f -a '(__cenote_list $__cenote_{})'", kind(word))
        }
    }
}

fn command(out: &mut String, c: &Command) {
    let names: Vec<&str> = std::iter::once(&c.name).chain(c.aliases).copied().collect();
    let at = format!("__cenote_at {} {}", c.program, names.join(","));
    for f in flags(c) {
        let mut line = format!("__cenote_complete -n '{at}'");
        if f.short {
            let _ = write!(line, " -s {}", f.letter);
        }
        if !f.long.is_empty() {
            let _ = write!(line, " -l {}", f.long);
        }
        let _ = write!(line, " -d {}", quoted(f.help));
        if f.takes() {
            let _ = write!(line, " -r {}", proposes(f.word));
        }
        let _ = writeln!(out, "{line}");
    }
    let last = c.words.len().saturating_sub(1);
    for (i, word) in c.words.iter().enumerate() {
        let plus = if i == last { "+" } else { "" };
        let _ = writeln!(out, "__cenote_complete -n '{at} {plus}{i}' {}", proposes(*word));
    }
}

/// The script.
pub(super) fn script() -> String {
    let mut out = "# Completion of cenote, zpool, zfs and their tools for fish.\n\
                   # Generated by 'cenote completion fish'.\n\n"
        .to_owned();
    for word in LISTS {
        let _ = writeln!(out, "set -g __cenote_{} {}", kind(word), props(word).join(" "));
    }
    out.push_str(
        "\n# Options that take an argument.\nfunction __cenote_takes\n    switch \"$argv\"\n",
    );
    for c in all().filter(|c| c.flags.iter().any(|f| f.takes())) {
        let names: Vec<String> = std::iter::once(&c.name)
            .chain(c.aliases)
            .map(|name| format!("'{} {name}'", c.program))
            .collect();
        let flags = c.flags.iter().filter(|f| f.takes()).flat_map(|f| f.spellings());
        let flags: Vec<String> = flags.collect();
        let _ = write!(
            out,
            "        case {}\n            printf '%s\\n' {}\n",
            names.join(" "),
            flags.join(" ")
        );
    }
    out.push_str("    end\nend\n");
    out.push_str(ENGINE);
    let programs: Vec<&str> = programs().into_iter().filter(|p| *p != "cenote").collect();
    let _ = write!(
        out,
        "\n# The other names may be OpenZFS's, whose completion stays.\n\
         set -g __cenote_programs cenote\nfor program in {}\n    \
         string match -q '*/cenote' -- (realpath (command -s $program) 2>/dev/null)\n    \
         and set -a __cenote_programs $program\nend\nfunction __cenote_complete\n    \
         for program in $__cenote_programs\n        complete -c $program $argv\n    end\nend\n\
         __cenote_complete -f\n",
        programs.join(" ")
    );
    for program in ["cenote", "zpool", "zfs"] {
        for (name, about) in names(program) {
            let _ = writeln!(
                out,
                "__cenote_complete -n '__cenote_wants {program}' -a {name} -d {}",
                quoted(about)
            );
        }
    }
    all().for_each(|c| command(&mut out, c));
    out
}
