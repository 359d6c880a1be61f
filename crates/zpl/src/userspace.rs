//! Space and objects by user, group and project (chapter 06 §14).

use std::collections::BTreeMap;

use base::{Error, ObjectId, Result};
use dmu::{Io, Object, Zap};

use crate::fs::FileSystem;
use crate::master::QuotaObjects;

/// Ids in one table.
const IDS_MAX: usize = 1 << 22;
/// Prefix of the keys that count objects.
const OBJECTS: &str = "obj-";

/// The kind of ids that space is accounted to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpaceKind {
    /// Users.
    User,
    /// Groups.
    Group,
    /// Projects.
    Project,
}

impl SpaceKind {
    pub(crate) fn used_object(self) -> i64 {
        match self {
            SpaceKind::User => -1,
            SpaceKind::Group => -2,
            SpaceKind::Project => -3,
        }
    }
}

/// One id's account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceEntry {
    /// User or group (as FUID) or project.
    pub id: u64,
    /// Bytes used.
    pub used: u64,
    /// The id's own limit in bytes; 0 = none (see [`QuotaObjects::default_bytes`]).
    pub quota: u64,
    /// Objects used.
    pub objects: u64,
    /// The id's own limit in objects; 0 = none.
    pub object_quota: u64,
}

type UsageTable = BTreeMap<u64, SpaceEntry>;

fn parse_id(key: &str) -> Option<u64> {
    u64::from_str_radix(key, 16).ok()
}

fn add_used(table: &mut UsageTable, key: &str, value: u64) {
    let (digits, objects) = match key.strip_prefix(OBJECTS) {
        Some(rest) => (rest, true),
        None => (key, false),
    };
    let Some(id) = parse_id(digits) else { return };
    let entry = table.entry(id).or_insert(SpaceEntry { id, ..SpaceEntry::default() });
    if objects {
        entry.objects = value;
    } else {
        entry.used = value;
    }
}

fn add_quota(table: &mut UsageTable, key: &str, value: u64, objects: bool) {
    let Some(id) = parse_id(key) else { return };
    let entry = table.entry(id).or_insert(SpaceEntry { id, ..SpaceEntry::default() });
    if objects {
        entry.object_quota = value;
    } else {
        entry.quota = value;
    }
}

impl FileSystem {
    /// The current quota tables of one kind.
    pub(crate) fn quota_objects(&self, kind: SpaceKind) -> QuotaObjects {
        let set = self.rw_part().and_then(|rw| *rw.quotas.read());
        let props = self.props();
        let all = set.unwrap_or([props.user_quota, props.group_quota, props.project_quota]);
        all[kind as usize]
    }

    /// The accounts of every user, group or project that has used something or
    /// has a quota, by ascending id. Empty where nothing is accounted.
    ///
    /// # Errors
    /// `Limit` beyond four million ids, `Corrupt`, those of reading.
    pub fn userspace(&self, kind: SpaceKind, io: Io) -> Result<Vec<SpaceEntry>> {
        let mut table = UsageTable::new();
        if let Some(used) = self.objset().special(kind.used_object()) {
            fold(used, &mut table, io, add_used)?;
        }
        let quotas = self.quota_objects(kind);
        let mut quota = |id: Option<ObjectId>, objects| match id {
            Some(id) => self.read_consistent(id, io, || {
                fold(self.object(id, io)?, &mut table, io, |t, key, value| {
                    add_quota(t, key, value, objects);
                })
            }),
            None => Ok(()),
        };
        quota(quotas.bytes, false)?;
        quota(quotas.objects, true)?;
        Ok(table.into_values().collect())
    }
}

fn fold(
    object: Object,
    table: &mut UsageTable,
    io: Io,
    add: impl Fn(&mut UsageTable, &str, u64),
) -> Result<()> {
    let id = object.id();
    Zap::open(object, io)?.for_each(|e| {
        let pair = std::str::from_utf8(&e.name).ok().zip(e.value.as_u64());
        // Keys of another form may come from a newer version and are ignored.
        if let Some((key, value)) = pair {
            add(table, key, value);
        }
        if table.len() > IDS_MAX {
            return Err(Error::limit("too many ids in an accounting table").in_object(id));
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_hexadecimal() {
        let mut t = UsageTable::new();
        add_used(&mut t, "3e8", 1536);
        add_used(&mut t, "obj-3e8", 3);
        add_used(&mut t, "0", 7);
        add_used(&mut t, "odd", 7);
        add_quota(&mut t, "3e8", 1 << 20, false);
        add_quota(&mut t, "3e9", 9, true);
        let all: Vec<_> = t.into_values().collect();
        assert_eq!(all.len(), 3);
        let want = SpaceEntry { id: 1000, used: 1536, quota: 1 << 20, objects: 3, object_quota: 0 };
        assert_eq!(all[1], want);
        assert_eq!((all[2].id, all[2].object_quota, all[2].used), (1001, 9, 0));
    }
}
