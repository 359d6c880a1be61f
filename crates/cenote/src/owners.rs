//! Use and limits by owner: the pseudo properties `userused@U`, `userquota@U` and their
//! like (chapter 09 §2.1, chapter 06 §14).
//!
//! # Departures from OpenZFS
//! Names are those of [`crate::accounts`]; others, and those of domains, are given as numbers.

use base::{Error, Result};
use dmu::Io;
use dsl::props::{PropData, PropValue, Source};
use zpl::{SpaceEntry, SpaceKind};

use crate::accounts;
use crate::dataset::{Dataset, DatasetKind};
use crate::pool::Pool;

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

impl OwnerProp<'_> {
    fn id(&self) -> Option<u64> {
        let named = || match self.of {
            SpaceKind::User => accounts::user_id(self.owner),
            SpaceKind::Group => accounts::group_id(self.owner),
            SpaceKind::Project => None,
        };
        self.owner.parse::<u32>().ok().or_else(named).map(u64::from)
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

/// What the owners of one kind use in a file system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnerSpace {
    /// By ascending id.
    pub entries: Vec<SpaceEntry>,
    /// Whether objects are counted.
    pub counts_objects: bool,
}

/// The owner whose use or limit a property such as `userused@root` tells.
pub fn owner_of_prop(name: &str) -> Option<(SpaceKind, u64)> {
    let prop = parse(name)?;
    Some((prop.of, prop.id()?))
}

impl Dataset {
    /// What users, groups or projects use in this file system or snapshot of one, and their
    /// own limits.
    ///
    /// # Errors
    /// `Unsupported` where this is not accounted; those of reading.
    pub fn space_by_owner(&self, of: SpaceKind) -> Result<OwnerSpace> {
        let fs = self.open_fs()?;
        if of == SpaceKind::Project && !fs.counts_projects() {
            return Err(Error::unsupported("unsupported version or feature"));
        }
        let entries = fs.userspace(of, Io::WAIT)?;
        Ok(OwnerSpace { entries, counts_objects: fs.counts_objects() })
    }

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
