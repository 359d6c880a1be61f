//! `zfs allow` and `zfs unallow` (chapter 09 §3.7).

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;

use base::{Error, Result};
use cenote::accounts::{self, AccountNames};
use commands::getopt::Parsed;
use proto::client::Client;
use proto::runtime::Runtime;
use proto::{AllowArgs, DatasetChange, DelegatedAt, PermissionHolder, Reply, Request};
use ui::Exit;

use super::{command_line, misuse, options, request_change, select};

/// Names of permissions.
type Names = BTreeSet<String>;

/// Columns of a heading.
const WIDTH: usize = 70;

/// The holders that a word names, by the options.
fn holders(list: &str, parsed: &Parsed) -> std::result::Result<Vec<PermissionHolder>, String> {
    let number = |word: &str| word.parse::<u32>().ok();
    let user = |word: &str| accounts::user_id(word).or_else(|| number(word));
    let group = |word: &str| accounts::group_id(word).or_else(|| number(word));
    let one = |word: &str| match (parsed.has('u'), parsed.has('g')) {
        (true, false) => user(word)
            .map(|id| PermissionHolder::User(id.into()))
            .ok_or_else(|| format!("invalid user '{word}'")),
        (false, true) => group(word)
            .map(|id| PermissionHolder::Group(id.into()))
            .ok_or_else(|| format!("invalid group '{word}'")),
        _ if word == "everyone" => Ok(PermissionHolder::Everyone),
        _ => user(word)
            .map(|id| PermissionHolder::User(id.into()))
            .or_else(|| group(word).map(|id| PermissionHolder::Group(id.into())))
            .ok_or_else(|| format!("invalid user/group '{word}'")),
    };
    list.split(',').map(one).collect()
}

/// The names in a list of permissions.
fn permissions(list: &str) -> Vec<String> {
    list.split(',').map(str::to_owned).collect()
}

/// The request that a command line stands for; an error is the message before the usage, or
/// without it.
fn parse(
    called: &str,
    parsed: &Parsed,
    argv: &[OsString],
) -> std::result::Result<AllowArgs, (String, bool)> {
    let usage = |text: &str| Err((text.to_owned(), true));
    let has = |letter| parsed.has(letter);
    let kinds = [has('c'), has('s'), has('e'), has('u') || has('g')];
    let reach = has('l') || has('d');
    if kinds.iter().filter(|on| **on).count() > 1 || has('u') && has('g') {
        return usage("invalid options combination");
    }
    if reach && (has('c') || has('s')) {
        return usage("invalid options combination");
    }
    let words = parsed.words();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let named = !(has('c') || has('e'));
    let (who, rest) = match words.split_first() {
        Some((who, rest)) if named => (*who, rest),
        _ => ("", words.as_slice()),
    };
    let grant = called == "allow";
    let (list, dataset) = match rest {
        [list, dataset] => (Some(*list), *dataset),
        [dataset] if !grant => (None, *dataset),
        [] | [_] => return usage("missing dataset argument"),
        _ => return usage("too many arguments"),
    };
    let holders = if has('c') {
        vec![PermissionHolder::CreateTime]
    } else if has('e') {
        vec![PermissionHolder::Everyone]
    } else if has('s') {
        if !who.starts_with('@') {
            return usage(&format!("invalid permission set name '{who}': missing '@'"));
        }
        vec![PermissionHolder::Set(who.to_owned())]
    } else {
        holders(who, parsed).map_err(|why| (why, false))?
    };
    if let Err(message) = select::check_name(dataset) {
        return Err((message, false));
    }
    let permissions = list.map(permissions);
    for name in permissions.iter().flatten() {
        let known = name.starts_with('@') || cenote::delegation::is_permission(name);
        if grant && !known || name.is_empty() {
            let text = format!("cannot set permissions on '{dataset}': invalid permission");
            return Err((format!("{text} '{name}'"), false));
        }
    }
    Ok(AllowArgs {
        dataset: dataset.to_owned(),
        holders,
        local: has('l'),
        descendent: has('d'),
        permissions,
        recursive: has('r'),
        command: command_line(called, argv),
    })
}

/// `zfs allow ...` and `zfs unallow ...`
pub(super) fn main(called: &str, argv: &[OsString]) -> Result<Exit> {
    let parsed = match options(called, argv) {
        Ok(parsed) => parsed,
        Err(exit) => return Ok(exit),
    };
    let words = parsed.words();
    if words.is_empty() {
        return Ok(misuse(called, Some("missing dataset argument")));
    }
    if called == "allow" && parsed.opts.is_empty() && words.len() == 1 {
        return show(words.first().map_or("", String::as_str));
    }
    let args = match parse(called, &parsed, argv) {
        Ok(args) => args,
        Err((message, true)) => return Ok(misuse(called, Some(&message))),
        Err((message, false)) => return Err(Error::invalid(message)),
    };
    let change = match called {
        "allow" => DatasetChange::Allow(args),
        _ => DatasetChange::Unallow(args),
    };
    let (_, failed) = request_change(change)?;
    Ok(Exit::failed_if(failed))
}

fn show(name: &str) -> Result<Exit> {
    select::check_name(name).map_err(Error::invalid)?;
    let Some(mut client) = Client::connect_for_query(&Runtime::from_env()?)? else {
        return Err(Error::not_found(format!("cannot open '{name}': dataset does not exist")));
    };
    let request = Request::Permissions { dataset: name.to_owned() };
    let Reply::Permissions(all) = client.request(&request)? else {
        return Err(crate::zpool::unexpected_reply());
    };
    ui::out(&render(&all, &AccountNames::users(), &AccountNames::groups()));
    Ok(Exit::failed_if(client.failed))
}

fn list(names: &BTreeSet<String>) -> String {
    names.iter().map(String::as_str).collect::<Vec<_>>().join(",")
}

/// The order of holders, and their text.
fn label(
    holder: &PermissionHolder,
    users: &AccountNames,
    groups: &AccountNames,
) -> (u8, String, u64, String) {
    let named = |word: &str, id: u64, names: &AccountNames| match names.name(id) {
        Some(name) => (name.to_owned(), format!("{word} {name} ")),
        None => (format!("(unknown: {id})"), format!("{word} (unknown: {id}) ")),
    };
    match holder {
        PermissionHolder::User(id) => {
            let (name, text) = named("user", *id, users);
            (0, name, *id, text)
        }
        PermissionHolder::Group(id) => {
            let (name, text) = named("group", *id, groups);
            (1, name, *id, text)
        }
        PermissionHolder::Everyone => (2, String::new(), 0, "everyone ".to_owned()),
        PermissionHolder::CreateTime => (3, String::new(), 0, String::new()),
        PermissionHolder::Set(name) => (4, name.clone(), 0, format!("{name} ")),
    }
}

fn render(all: &[DelegatedAt], users: &AccountNames, groups: &AccountNames) -> String {
    let mut out = String::new();
    for at in all {
        let head = format!("---- Permissions on {} ", at.dataset);
        out.push_str(&format!("{head:-<WIDTH$}\n"));
        let mut sets = BTreeMap::new();
        let mut created = BTreeSet::new();
        // By holder: local permissions, and those of descendants.
        let mut held: BTreeMap<_, [BTreeSet<String>; 2]> = BTreeMap::new();
        for entry in &at.entries {
            let names: BTreeSet<String> = entry.permissions.iter().cloned().collect();
            let key = label(&entry.holder, users, groups);
            match &entry.holder {
                PermissionHolder::Set(_) => {
                    sets.insert(key, names);
                }
                PermissionHolder::CreateTime => created.extend(names),
                _ => {
                    let [local, below] = held.entry(key).or_default();
                    if entry.local {
                        local.extend(names.iter().cloned());
                    }
                    if entry.descendent {
                        below.extend(names);
                    }
                }
            }
        }
        let mut block = |title: &str, lines: Vec<String>| {
            if !lines.is_empty() {
                out.push_str(&format!("{title}:\n"));
                lines.iter().for_each(|line| out.push_str(&format!("\t{line}\n")));
            }
        };
        let line = |label: &(u8, String, u64, String), names: &BTreeSet<String>| {
            (!names.is_empty()).then(|| format!("{}{}", label.3, list(names)))
        };
        block("Permission sets", sets.iter().filter_map(|(key, names)| line(key, names)).collect());
        let creators = Some(list(&created)).filter(|text| !text.is_empty());
        block("Create time permissions", creators.into_iter().collect());
        let part = |pick: fn(&Names, &Names) -> Names| {
            held.iter().filter_map(|(key, [local, below])| line(key, &pick(local, below))).collect()
        };
        block("Local permissions", part(|local, below| local - below));
        block("Descendent permissions", part(|local, below| below - local));
        block("Local+Descendent permissions", part(|local, below| local & below));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::PermissionEntry;

    fn args(called: &str, line: &str) -> std::result::Result<AllowArgs, (String, bool)> {
        let argv: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        let parsed = commands::find("zfs", called).parse(&argv).map_err(|_| ("".into(), true))?;
        parse(called, &parsed, &argv)
    }

    #[test]
    fn all_forms_are_understood() {
        let a = args("allow", "-u 7,root create,@x tank/a").unwrap();
        assert_eq!(a.holders, [PermissionHolder::User(7), PermissionHolder::User(0)]);
        assert_eq!(a.permissions, Some(vec!["create".to_owned(), "@x".to_owned()]));
        assert_eq!((a.local, a.descendent, a.recursive), (false, false, false));
        assert_eq!(a.command, "zfs allow -u 7,root create,@x tank/a");
        let a = args("allow", "-l everyone mount tank").unwrap();
        assert_eq!((a.holders, a.local), (vec![PermissionHolder::Everyone], true));
        let a = args("allow", "tank/x -ge mount");
        assert_eq!(a, Err(("invalid options combination".to_owned(), true)));
        let a = args("allow", "-de mount tank").unwrap();
        assert_eq!((a.holders, a.descendent), (vec![PermissionHolder::Everyone], true));
        let a = args("allow", "-c mount,quota tank").unwrap();
        assert_eq!(a.holders, [PermissionHolder::CreateTime]);
        let a = args("allow", "-s @set mount,@other tank").unwrap();
        assert_eq!(a.holders, [PermissionHolder::Set("@set".into())]);
        let a = args("unallow", "-r -g 5 tank").unwrap();
        assert_eq!((a.permissions, a.recursive), (None, true));
        let a = args("unallow", "-s @set tank").unwrap();
        assert_eq!((a.permissions, a.holders), (None, vec![PermissionHolder::Set("@set".into())]));
        let a = args("unallow", "-c mount tank").unwrap();
        assert_eq!(a.permissions, Some(vec!["mount".to_owned()]));
    }

    #[test]
    fn wrong_arguments_are_named() {
        for (line, wrong, usage) in [
            ("-u root create", "missing dataset argument", true),
            ("root create tank more", "too many arguments", true),
            ("-cl create tank", "invalid options combination", true),
            ("-ug root create tank", "invalid options combination", true),
            ("-s set create tank", "invalid permission set name 'set': missing '@'", true),
            ("-u no-such create tank", "invalid user 'no-such'", false),
            ("-g no-such create tank", "invalid group 'no-such'", false),
            ("no-such create tank", "invalid user/group 'no-such'", false),
            ("root foo tank", "cannot set permissions on 'tank': invalid permission 'foo'", false),
            ("root create, tank", "cannot set permissions on 'tank': invalid permission ''", false),
            ("root create /tank", "cannot open '/tank': leading slash in name", false),
        ] {
            assert_eq!(args("allow", line), Err((wrong.to_owned(), usage)), "{line}");
        }
        assert_eq!(args("unallow", "-c"), Err(("missing dataset argument".to_owned(), true)));
    }

    /// As OpenZFS showed the golden pool `delegated`.
    #[test]
    fn permissions_have_openzfs_form() {
        let entry = |holder, (local, descendent), names: &str| PermissionEntry {
            holder,
            local,
            descendent,
            permissions: permissions(names),
        };
        let user = |id| PermissionHolder::User(id);
        let all = [DelegatedAt {
            dataset: "delegated/a".into(),
            entries: vec![
                entry(user(1000), (true, false), "create,destroy,mount,snapshot"),
                entry(user(1000), (false, true), "create,destroy,mount,snapshot"),
                entry(user(1001), (true, false), "rollback,userprop"),
                entry(PermissionHolder::Everyone, (false, true), "compression,quota"),
                entry(PermissionHolder::CreateTime, (false, false), "destroy,mount"),
                entry(PermissionHolder::Set("@mine".into()), (false, false), "clone"),
            ],
        }];
        let none = AccountNames::default();
        assert_eq!(
            render(&all, &none, &none),
            "---- Permissions on delegated/a --------------------------------------\n\
             Permission sets:\n\t@mine clone\n\
             Create time permissions:\n\tdestroy,mount\n\
             Local permissions:\n\tuser (unknown: 1001) rollback,userprop\n\
             Descendent permissions:\n\teveryone compression,quota\n\
             Local+Descendent permissions:\n\
             \tuser (unknown: 1000) create,destroy,mount,snapshot\n"
        );
        assert_eq!(render(&[], &none, &none), "");
    }
}
