//! `zfs userspace`, `groupspace` and `projectspace` (chapter 09 §3.6).

use std::cmp::Ordering;
use std::ffi::OsString;

use base::{Error, Result};
use cenote::accounts::AccountNames;
use cenote::props::{nicebytes, nicenum};
use proto::client::Client;
use proto::runtime::Runtime;
use proto::{OwnerKind, OwnerUsage, Reply, Request};
use ui::Exit;
use ui::table::{self, Column};

use super::{misuse, options, select};

/// Exit code of OpenZFS's functions that return -1.
const MINUS_ONE: Exit = Exit(255);
const FIELDS: [&str; 6] = ["type", "name", "used", "quota", "objused", "objquota"];

/// The types of accounts, in the order in which they are sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Type {
    PosixUser,
    PosixGroup,
    SmbUser,
    SmbGroup,
    Project,
}

impl Type {
    fn word(self) -> &'static str {
        match self {
            Type::PosixUser => "POSIX User",
            Type::PosixGroup => "POSIX Group",
            Type::SmbUser => "SMB User",
            Type::SmbGroup => "SMB Group",
            Type::Project => "Project",
        }
    }
}

/// One account as it is shown.
struct Account {
    kind: Type,
    name: String,
    usage: OwnerUsage,
    counts_objects: bool,
}

/// What a command shows.
struct Show {
    types: Vec<Type>,
    fields: Vec<usize>,
    /// Fields to sort by, and whether descending.
    keys: Vec<(usize, bool)>,
    scripted: bool,
    exact: bool,
    numeric: bool,
}

fn field(word: &str) -> Option<usize> {
    FIELDS.iter().position(|f| *f == word)
}

fn types(list: &str) -> std::result::Result<Vec<Type>, String> {
    let mut out = Vec::new();
    for word in list.split(',') {
        match word {
            "posixuser" => out.push(Type::PosixUser),
            "smbuser" => out.push(Type::SmbUser),
            "posixgroup" => out.push(Type::PosixGroup),
            "smbgroup" => out.push(Type::SmbGroup),
            "all" => {
                out.extend([Type::PosixUser, Type::PosixGroup, Type::SmbUser, Type::SmbGroup]);
            }
            other => return Err(format!("invalid type '{other}' for -t option")),
        }
    }
    Ok(out)
}

/// `zfs userspace ...`, `zfs groupspace ...` and `zfs projectspace ...`
pub(super) fn main(called: &str, argv: &[OsString]) -> Result<Exit> {
    let parsed = match options(called, argv) {
        Ok(parsed) => parsed,
        Err(exit) => return Ok(exit),
    };
    let words = parsed.words();
    let name = match words.as_slice() {
        [] => return Ok(misuse(called, Some("missing dataset name"))),
        [name] => name.clone(),
        _ => return Ok(misuse(called, Some("too many arguments"))),
    };
    let complain = |why: String| {
        ui::err(&why);
        Ok(MINUS_ONE)
    };
    let fields = match parsed.last('o') {
        None => Ok((0..FIELDS.len()).collect()),
        Some(list) => list.split(',').map(|w| field(w).ok_or_else(|| w.to_owned())).collect(),
    };
    let fields: Vec<usize> = match fields {
        Ok(fields) => fields,
        Err(word) => return complain(format!("invalid type '{word}' for -o option")),
    };
    let mut keys = Vec::new();
    for o in parsed.opts.iter().filter(|o| "sS".contains(o.letter)) {
        match field(&o.text()) {
            Some(field) => keys.push((field, o.letter == 'S')),
            None => {
                return complain(format!("invalid field '{}' for -{} option", o.text(), o.letter));
            }
        }
    }
    let types = match (called, parsed.last('t')) {
        ("projectspace", _) => Ok(vec![Type::Project]),
        (_, Some(list)) => types(&list),
        ("groupspace", None) => Ok(vec![Type::PosixGroup, Type::SmbGroup]),
        _ => Ok(vec![Type::PosixUser, Type::SmbUser]),
    };
    let types = match types {
        Ok(types) => types,
        Err(why) => return complain(why),
    };
    let show = Show {
        types,
        fields,
        keys,
        scripted: parsed.has('H'),
        exact: parsed.has('p'),
        numeric: parsed.has('n'),
    };
    let runtime = Runtime::from_env()?;
    let missing = || Error::not_found(format!("cannot open '{name}': dataset does not exist"));
    let mut client = Client::connect_for_query(&runtime)?.ok_or_else(missing)?;
    let dataset = if name.starts_with('/') || name.starts_with("./") || name == "." {
        let found = select::by_path(&mut client, &name)?;
        found
            .ok_or_else(|| Error::invalid(format!("cannot open '{name}': not a ZFS filesystem")))?
    } else {
        select::check_name(&name).map_err(Error::invalid)?;
        name.clone()
    };
    let accounts = fetch(&mut client, &dataset, &show)?;
    ui::out(&render(accounts, &show));
    Ok(Exit::failed_if(client.failed))
}

/// The accounts of the wanted types.
fn fetch(client: &mut Client, dataset: &str, show: &Show) -> Result<Vec<Account>> {
    let mut out = Vec::new();
    let kinds = [
        (OwnerKind::User, [Type::PosixUser, Type::SmbUser]),
        (OwnerKind::Group, [Type::PosixGroup, Type::SmbGroup]),
        (OwnerKind::Project, [Type::Project, Type::Project]),
    ];
    for (kind, [posix, smb]) in kinds {
        if !show.types.contains(&posix) && !show.types.contains(&smb) {
            continue;
        }
        let names = match kind {
            _ if show.numeric => AccountNames::default(),
            OwnerKind::User => AccountNames::users(),
            OwnerKind::Group => AccountNames::groups(),
            OwnerKind::Project => AccountNames::default(),
        };
        let mut after = None;
        loop {
            let request = Request::OwnerSpace { dataset: dataset.to_owned(), kind, after };
            let Reply::OwnerSpace { rows, counts_objects, more } = client.request(&request)? else {
                return Err(crate::zpool::unexpected_reply());
            };
            after = rows.last().map(|row| row.id);
            for usage in rows {
                // Ids of a domain are those of SMB users; their SIDs are not stored here.
                let foreign = kind != OwnerKind::Project && usage.id >> 32 != 0;
                let kind = if foreign { smb } else { posix };
                if !show.types.contains(&kind) {
                    continue;
                }
                let id = if foreign { usage.id & u64::from(u32::MAX) } else { usage.id };
                let known = names.name(usage.id).map(str::to_owned);
                let name = known.unwrap_or_else(|| id.to_string());
                out.push(Account { kind, name, usage, counts_objects });
            }
            if !more || after.is_none() {
                break;
            }
        }
    }
    Ok(out)
}

/// Order by one field.
fn by_field(a: &Account, b: &Account, field: usize) -> Ordering {
    match field {
        0 => a.kind.cmp(&b.kind),
        1 => match (a.name.parse::<u64>(), b.name.parse::<u64>()) {
            (Ok(a), Ok(b)) => a.cmp(&b),
            _ => a.name.cmp(&b.name),
        },
        2 => a.usage.used.cmp(&b.usage.used),
        3 => a.usage.quota.cmp(&b.usage.quota),
        4 => a.usage.objects.cmp(&b.usage.objects),
        _ => a.usage.object_quota.cmp(&b.usage.object_quota),
    }
}

fn cell(account: &Account, field: usize, exact: bool) -> String {
    let bytes = |n: u64| if exact { n.to_string() } else { nicebytes(n) };
    let count = |n: u64| if exact { n.to_string() } else { nicenum(n) };
    match field {
        0 => account.kind.word().to_owned(),
        1 => account.name.clone(),
        2 => bytes(account.usage.used),
        3 if account.usage.quota == 0 && !exact => "none".to_owned(),
        3 => bytes(account.usage.quota),
        _ if !account.counts_objects => "-".to_owned(),
        4 => count(account.usage.objects),
        _ if account.usage.object_quota == 0 && !exact => "none".to_owned(),
        _ => count(account.usage.object_quota),
    }
}

fn render(mut accounts: Vec<Account>, show: &Show) -> String {
    accounts.sort_by(|a, b| {
        let by_keys = show.keys.iter().map(|(field, down)| {
            let order = by_field(a, b, *field);
            if *down { order.reverse() } else { order }
        });
        let usual = [0, 1].into_iter().map(|field| by_field(a, b, field));
        let mut all = by_keys.chain(usual);
        all.find(|order| order.is_ne()).unwrap_or_else(|| a.usage.id.cmp(&b.usage.id))
    });
    let column = |field: &usize| {
        let header = FIELDS.get(*field).copied().unwrap_or_default().to_uppercase();
        Column { right: *field > 1, ..Column::text(header) }
    };
    let columns: Vec<Column> = show.fields.iter().map(column).collect();
    let row = |a: &Account| show.fields.iter().map(|f| cell(a, *f, show.exact)).collect();
    let rows: Vec<Vec<String>> = accounts.iter().map(row).collect();
    table::render(&columns, &rows, show.scripted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(kind: Type, name: &str, used: u64, objects: u64) -> Account {
        let usage = OwnerUsage { id: 0, used, quota: 0, objects, object_quota: 7 };
        Account { kind, name: name.to_owned(), usage, counts_objects: true }
    }

    fn show(fields: &[usize], keys: &[(usize, bool)], exact: bool) -> Show {
        let (fields, keys) = (fields.to_vec(), keys.to_vec());
        Show { types: Vec::new(), fields, keys, scripted: exact, exact, numeric: false }
    }

    #[test]
    fn tables_of_accounts() {
        let all = || {
            vec![
                account(Type::PosixGroup, "wheel", 5, 1),
                account(Type::PosixUser, "root", 1536, 3),
                account(Type::PosixUser, "1000", 0, 2000),
                account(Type::PosixUser, "200", 1 << 20, 0),
            ]
        };
        let every: Vec<usize> = (0..6).collect();
        assert_eq!(
            render(all(), &show(&every, &[], false)),
            "TYPE         NAME    USED  QUOTA  OBJUSED  OBJQUOTA\n\
             POSIX User   200       1M   none        0         7\n\
             POSIX User   1000      0B   none    1.95K         7\n\
             POSIX User   root   1.50K   none        3         7\n\
             POSIX Group  wheel     5B   none        1         7\n"
        );
        let sorted = render(all(), &show(&[1, 2, 3], &[(2, true)], true));
        assert_eq!(sorted, "200\t1048576\t0\nroot\t1536\t0\nwheel\t5\t0\n1000\t0\t0\n");
        let sorted = render(all(), &show(&[1], &[(4, false), (1, false)], true));
        assert_eq!(sorted, "200\nwheel\nroot\n1000\n");
    }

    #[test]
    fn lists_of_types() {
        assert_eq!(types("posixuser,smbgroup"), Ok(vec![Type::PosixUser, Type::SmbGroup]));
        assert_eq!(types("all").unwrap().len(), 4);
        assert_eq!(types("x"), Err("invalid type 'x' for -t option".to_owned()));
    }
}
