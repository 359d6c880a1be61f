//! Quotas of users, groups and projects (chapter 06 §14).
//!
//! What is compared is the account of the last written groups: enforcement lags by a few
//! groups. The sync thread changes the accounts while they are read here; what cannot be
//! read is no reason to refuse anything.

use base::{Error, ErrorKind, Result};
use dmu::{Io, Zap};

use super::node::Node;
use crate::attrs::Attrs;
use crate::fs::FileSystem;
use crate::master::QuotaObjects;

/// Who is charged for an object.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner {
    pub(crate) uid: u64,
    pub(crate) gid: u64,
    /// `None`: not of interest.
    pub(crate) project: Option<u64>,
}

impl Owner {
    pub(crate) fn of(attrs: &Attrs) -> Owner {
        Owner { uid: attrs.owner_fuid, gid: attrs.group_fuid, project: Some(attrs.project) }
    }
}

const NONE: QuotaObjects =
    QuotaObjects { bytes: None, objects: None, default_bytes: 0, default_objects: 0 };

fn over_quota() -> Error {
    Error::new(ErrorKind::Quota, "the owner's quota is exhausted")
}

impl FileSystem {
    /// Whether an id's bytes or objects reach its limit.
    fn is_over(&self, special: i64, quotas: &QuotaObjects, id: u64, objects: bool) -> bool {
        let (table, default) = if objects {
            (quotas.objects, quotas.default_objects)
        } else {
            (quotas.bytes, quotas.default_bytes)
        };
        if table.is_none() && default == 0 {
            return false;
        }
        let number = |object: Result<dmu::Object>, key: &str| -> Option<u64> {
            Zap::open(object.ok()?, Io::WAIT).ok()?.lookup_u64(key).ok()?
        };
        let key = format!("{id:x}");
        let own = table.and_then(|t| number(self.object(t, Io::WAIT), &key));
        let limit = own.filter(|n| *n != 0).unwrap_or(default);
        if limit == 0 {
            return false;
        }
        let key = if objects { format!("obj-{key}") } else { key };
        let Some(account) = self.objset().special(special) else { return false };
        number(Ok(account), &key).unwrap_or(0) >= limit
    }

    fn check(&self, owner: &Owner, objects: bool) -> Result<()> {
        let props = self.props();
        let all = [
            (-1, &props.user_quota, Some(owner.uid)),
            (-2, &props.group_quota, Some(owner.gid)),
            (-3, &props.project_quota, owner.project),
        ];
        for (special, quotas, id) in all {
            if let Some(id) = id.filter(|_| *quotas != NONE)
                && self.is_over(special, quotas, id, objects)
            {
                return Err(over_quota());
            }
        }
        Ok(())
    }

    /// Whether a new object may be charged to its owner.
    ///
    /// # Errors
    /// `Quota`.
    pub(crate) fn check_new_quota(&self, owner: &Owner) -> Result<()> {
        self.check(owner, false)?;
        self.check(owner, true)
    }

    /// Whether an object may be charged to a new owner or group.
    ///
    /// # Errors
    /// `Quota`.
    pub(crate) fn check_moved_quota(
        &self,
        uid: Option<u32>,
        gid: Option<u32>,
        old: &Owner,
    ) -> Result<()> {
        let quotas = self.props();
        let over = |special, quotas: &QuotaObjects, id: Option<u32>, had: u64| {
            let id = id.map(u64::from).filter(|id| *id != had);
            id.is_some_and(|id| {
                self.is_over(special, quotas, id, false) || self.is_over(special, quotas, id, true)
            })
        };
        if over(-1, &quotas.user_quota, uid, old.uid) || over(-2, &quotas.group_quota, gid, old.gid)
        {
            return Err(over_quota());
        }
        Ok(())
    }

    /// Whether an object may be charged to a project.
    ///
    /// # Errors
    /// `Quota`.
    pub(crate) fn check_project_quota(&self, project: u64) -> Result<()> {
        let quotas = &self.props().project_quota;
        let over = |objects| self.is_over(-3, quotas, project, objects);
        if over(false) || over(true) { Err(over_quota()) } else { Ok(()) }
    }

    /// Whether more bytes may be charged to a file's owner.
    ///
    /// # Errors
    /// `Quota`.
    pub(crate) fn check_quota(&self, node: &Node) -> Result<()> {
        self.check(&Owner::of(&node.attrs), false)
    }
}
