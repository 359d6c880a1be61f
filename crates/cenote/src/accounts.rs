//! Names and numbers of users and groups, as in `/etc/passwd` and `/etc/group`.
//!
//! # Departures from OpenZFS
//! Other sources of names (NSS) are not asked; their users and groups are given as numbers.

use std::collections::BTreeMap;
use std::io::Read;

/// Bytes of a table of names that are read.
const TABLE_MAX: u64 = 16 << 20;
const USERS: &str = "/etc/passwd";
const GROUPS: &str = "/etc/group";

fn table(path: &str) -> String {
    let mut text = String::new();
    let read = std::fs::File::open(path).map(|f| f.take(TABLE_MAX).read_to_string(&mut text));
    // A table that cannot be read has no names.
    if !matches!(read, Ok(Ok(_))) {
        text.clear();
    }
    text
}

/// Names with their numbers, in the order of the table.
fn rows(text: &str) -> impl Iterator<Item = (&str, u32)> {
    text.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next().filter(|name| !name.is_empty())?;
        Some((name, fields.nth(1)?.parse().ok()?))
    })
}

fn id_in(text: &str, name: &str) -> Option<u32> {
    rows(text).find(|row| row.0 == name).map(|row| row.1)
}

/// The number of a user's name.
pub fn user_id(name: &str) -> Option<u32> {
    id_in(&table(USERS), name)
}

/// The number of a group's name.
pub fn group_id(name: &str) -> Option<u32> {
    id_in(&table(GROUPS), name)
}

/// The names of all users or groups, for many look-ups.
#[derive(Debug, Default)]
pub struct AccountNames(BTreeMap<u32, String>);

impl AccountNames {
    /// Those of users.
    pub fn users() -> AccountNames {
        AccountNames::of(&table(USERS))
    }

    /// Those of groups.
    pub fn groups() -> AccountNames {
        AccountNames::of(&table(GROUPS))
    }

    fn of(text: &str) -> AccountNames {
        let mut names = BTreeMap::new();
        for (name, id) in rows(text) {
            names.entry(id).or_insert_with(|| name.to_owned());
        }
        AccountNames(names)
    }

    /// The name of an id: the first one that the table has.
    pub fn name(&self, id: u64) -> Option<&str> {
        self.0.get(&u32::try_from(id).ok()?).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_accounts() {
        let text = "root:x:0:0:root:/root:/bin/sh\n\n:x:5:5\nodd\nbin:x:2:2::/bin:/bin/sh\n\
                    toor:x:0:0::/root:/bin/sh\nbad:x:many:1:::\n";
        assert_eq!((id_in(text, "bin"), id_in(text, "toor")), (Some(2), Some(0)));
        assert_eq!((id_in(text, "bad"), id_in(text, ""), id_in(text, "bi")), (None, None, None));
        let names = AccountNames::of(text);
        assert_eq!(
            (names.name(0), names.name(2), names.name(5)),
            (Some("root"), Some("bin"), None)
        );
        assert_eq!(names.name(u64::MAX), None);
    }
}
