//! Use and limits by owner: the pseudo properties `userused@U`, `userquota@U` and their
//! like (chapter 09 §2.1, chapter 06 §14).
//!
//! # Departures from OpenZFS
//! Names are those of `/etc/passwd` and `/etc/group`; others, and those of domains, are
//! given as numbers.

use base::{Error, Result};
use dmu::Io;
use dsl::props::{PropData, PropValue, Source};
use zpl::SpaceKind;

use crate::dataset::{Dataset, DatasetKind};
use crate::pool::Pool;

/// Bytes of a table of names that are read.
const TABLE_MAX: u64 = 16 << 20;

/// A pseudo property.
struct OwnerProp<'a> {
    of: SpaceKind,
    objects: bool,
    quota: bool,
    owner: &'a str,
}

fn parse(name: &str) -> Option<OwnerProp<'_>> {
    let (word, owner) = name.split_once('@')?;
    let kinds =
        [("user", SpaceKind::User), ("group", SpaceKind::Group), ("project", SpaceKind::Project)];
    let (of, rest) = kinds.into_iter().find_map(|(k, of)| Some((of, word.strip_prefix(k)?)))?;
    let (objects, rest) = rest.strip_prefix("obj").map_or((false, rest), |rest| (true, rest));
    let quota = match rest {
        "quota" => true,
        "used" => false,
        _ => return None,
    };
    Some(OwnerProp { of, objects, quota, owner })
}

/// The id for a name in a table such as `/etc/passwd`.
fn number_in(table: &str, name: &str) -> Option<u64> {
    use std::io::Read;
    let mut text = String::new();
    std::fs::File::open(table).ok()?.take(TABLE_MAX).read_to_string(&mut text).ok()?;
    let mut lines = text.lines();
    lines.find_map(|line| {
        let mut fields = line.split(':');
        let is_it = fields.next() == Some(name);
        fields.nth(1).filter(|_| is_it)?.parse().ok()
    })
}

impl OwnerProp<'_> {
    fn id(&self) -> Option<u64> {
        let number = self.owner.parse::<u32>().ok().map(u64::from);
        let table = match self.of {
            SpaceKind::User => "/etc/passwd",
            SpaceKind::Group => "/etc/group",
            SpaceKind::Project => return number,
        };
        number.or_else(|| number_in(table, self.owner))
    }
}

/// Whether a property limits an owner.
pub(crate) fn is_owner_quota(name: &str) -> bool {
    parse(name).is_some_and(|p| p.quota) || default_quota(name).is_some()
}

/// The kind of owner of `defaultuserquota` and its like, and whether objects are counted.
fn default_quota(name: &str) -> Option<(SpaceKind, bool)> {
    Some(match name {
        "defaultuserquota" => (SpaceKind::User, false),
        "defaultgroupquota" => (SpaceKind::Group, false),
        "defaultprojectquota" => (SpaceKind::Project, false),
        "defaultuserobjquota" => (SpaceKind::User, true),
        "defaultgroupobjquota" => (SpaceKind::Group, true),
        "defaultprojectobjquota" => (SpaceKind::Project, true),
        _ => return None,
    })
}

/// Checks a limit; as [`crate::create::dataset_setting`].
pub(crate) fn quota_setting(name: &str, value: &str) -> Result<(String, PropData), String> {
    let prop = parse(name).filter(|p| p.quota).ok_or_else(|| format!("'{name}' is readonly"))?;
    if prop.id().is_none() {
        return Err(format!("unable to lookup user or group of '{name}'"));
    }
    let limit = if value == "none" { 0 } else { dsl::props::parse_size(value)? };
    Ok((name.to_owned(), PropData::Num(limit)))
}

impl Dataset {
    /// A pseudo property's value; `None` where there is no such owner, or no account.
    ///
    /// # Errors
    /// Those of reading.
    pub(crate) fn owner_prop(&self, name: &str) -> Result<Option<PropValue>> {
        let Some(prop) = parse(name) else { return Ok(None) };
        let Some(id) = prop.id().filter(|_| self.kind() == DatasetKind::Filesystem) else {
            return Ok(None);
        };
        let fs = self.open_fs()?;
        let counted = match (prop.of, prop.objects) {
            (SpaceKind::Project, _) => fs.counts_projects(),
            (_, true) => fs.counts_objects(),
            _ => true,
        };
        if !counted {
            return Ok(None);
        }
        let all = fs.userspace(prop.of, Io::WAIT)?;
        let found = all.iter().find(|e| e.id == id).copied().unwrap_or_default();
        let value = match (prop.quota, prop.objects) {
            (true, false) => found.quota,
            (true, true) => found.object_quota,
            (false, false) => found.used,
            (false, true) => found.objects,
        };
        Ok(Some(PropValue { value: PropData::Num(value), source: Source::Local, received: None }))
    }
}

impl Pool {
    /// Limits an owner, or each one without a limit of their own, in a file system, mounted
    /// or not; 0 is no limit. The limit is stored in the file system, not in the dataset.
    ///
    /// # Errors
    /// `Invalid` for a property that is no limit; `NotFound`; those of
    /// [`zpl::FileSystem::set_quota`].
    pub(crate) fn set_owner_quota(&self, dataset: &str, name: &str, limit: u64) -> Result<()> {
        if let Some((of, objects)) = default_quota(name) {
            let fs = self.dataset(dataset)?.open_fs()?;
            fs.set_default_quota(of, objects, limit)?;
            return fs.sync_all();
        }
        let prop = parse(name).filter(|p| p.quota);
        let prop = prop.ok_or_else(|| Error::invalid(format!("'{name}' is readonly")))?;
        let id = prop.id().ok_or_else(|| Error::not_found("no such user or group"))?;
        let fs = self.dataset(dataset)?.open_fs()?;
        fs.set_quota(prop.of, id, prop.objects, limit)?;
        // Without a mount no other thread would sync it.
        fs.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_limits() {
        let ids = |name| parse(name).map(|p| (p.of as u8, p.objects, p.quota, p.id()));
        assert_eq!(ids("userquota@1000"), Some((0, false, true, Some(1000))));
        assert_eq!(ids("groupobjused@0"), Some((1, true, false, Some(0))));
        assert_eq!(ids("projectobjquota@7"), Some((2, true, true, Some(7))));
        assert_eq!(ids("projectquota@root"), Some((2, false, true, None)));
        assert!(ids("quota").is_none() && ids("userlimit@1").is_none());
        assert!(is_owner_quota("userquota@x") && !is_owner_quota("userused@x"));
        assert!(is_owner_quota("defaultgroupobjquota") && !is_owner_quota("defaultquota"));
        assert_eq!(
            quota_setting("userquota@5", "10M"),
            Ok(("userquota@5".into(), PropData::Num(10 << 20)))
        );
        assert_eq!(
            quota_setting("userquota@5", "none"),
            Ok(("userquota@5".into(), PropData::Num(0)))
        );
        assert!(quota_setting("userused@5", "1").is_err());
    }
}
