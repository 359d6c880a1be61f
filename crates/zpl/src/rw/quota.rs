//! Quotas of users, groups and projects (chapter 06 §14).
//!
//! The limit is compared with the account of the last written txgs, so enforcement lags by
//! a few txgs. The sync thread changes the accounts while they are read here. An account
//! that cannot be read is not a reason to refuse a change.

use base::{Error, ErrorKind, Result};
use dmu::{Zap, zaps};
use ondisk::ObjType;
use ondisk::zap::ZapValue;

use super::make::{DNODE_BLOCK, entry_cost};
use super::node::FileNode;
use crate::attrs::Attrs;
use crate::fs::FileSystem;
use crate::master::{MASTER_NODE, QuotaObjects};
use crate::userspace::SpaceKind;

/// Type of quota tables.
const TABLE: ObjType = ObjType(40);
/// First version with accounts.
const VERSION_ACCOUNTS: u64 = 4;
/// Bytes that a new table makes dirty.
const NEW_TABLE: u64 = 64 << 10;
const WHO: [&str; 3] = ["user", "group", "project"];
const KINDS: [SpaceKind; 3] = [SpaceKind::User, SpaceKind::Group, SpaceKind::Project];

/// The ids that are charged for an object.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QuotaOwner {
    pub(crate) uid: u64,
    pub(crate) gid: u64,
    /// `None`: not checked.
    pub(crate) project: Option<u64>,
}

impl QuotaOwner {
    pub(crate) fn of(attrs: &Attrs) -> QuotaOwner {
        QuotaOwner { uid: attrs.owner_fuid, gid: attrs.group_fuid, project: Some(attrs.project) }
    }
}

const NONE: QuotaObjects =
    QuotaObjects { bytes: None, objects: None, default_bytes: 0, default_objects: 0 };

fn over_quota() -> Error {
    Error::new(ErrorKind::Quota, "the owner's quota is exhausted")
}

impl FileSystem {
    /// Whether an id's bytes or objects reach its limit. False in a replay: a logged change
    /// was within the limits.
    fn is_over(&self, of: SpaceKind, id: u64, objects: bool) -> bool {
        if self.is_replaying() {
            return false;
        }
        let quotas = self.quota_objects(of);
        let (table, default) = if objects {
            (quotas.objects, quotas.default_objects)
        } else {
            (quotas.bytes, quotas.default_bytes)
        };
        if table.is_none() && default == 0 {
            return false;
        }
        let number = |object: Result<dmu::Object>, key: &str| -> Option<u64> {
            Zap::open(object.ok()?, self.io()).ok()?.lookup_u64(key).ok()?
        };
        let key = format!("{id:x}");
        let own = table.and_then(|t| {
            let look = || Ok(number(self.object(t, self.io()), &key));
            self.read_consistent(t, self.io(), look).ok().flatten()
        });
        let limit = own.filter(|n| *n != 0).unwrap_or(default);
        if limit == 0 {
            return false;
        }
        let key = if objects { format!("obj-{key}") } else { key };
        let Some(account) = self.objset().special(of.used_object()) else { return false };
        number(Ok(account), &key).unwrap_or(0) >= limit
    }

    fn check(&self, owner: &QuotaOwner, objects: bool) -> Result<()> {
        let ids = [Some(owner.uid), Some(owner.gid), owner.project];
        for (of, id) in KINDS.into_iter().zip(ids) {
            if let Some(id) = id.filter(|_| self.quota_objects(of) != NONE)
                && self.is_over(of, id, objects)
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
    pub(crate) fn check_new_quota(&self, owner: &QuotaOwner) -> Result<()> {
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
        old: &QuotaOwner,
    ) -> Result<()> {
        let over = |of, id: Option<u32>, had: u64| {
            let id = id.map(u64::from).filter(|id| *id != had);
            id.is_some_and(|id| self.is_over(of, id, false) || self.is_over(of, id, true))
        };
        if over(SpaceKind::User, uid, old.uid) || over(SpaceKind::Group, gid, old.gid) {
            return Err(over_quota());
        }
        Ok(())
    }

    /// Whether an object may be charged to a project.
    ///
    /// # Errors
    /// `Quota`.
    pub(crate) fn check_project_quota(&self, project: u64) -> Result<()> {
        let over = |objects| self.is_over(SpaceKind::Project, project, objects);
        if over(false) || over(true) { Err(over_quota()) } else { Ok(()) }
    }

    /// Whether such space is accounted here, and so can be limited.
    ///
    /// # Errors
    /// `Unsupported`.
    fn check_counted(&self, of: SpaceKind, objects: bool) -> Result<()> {
        let counted = self.os().props()?;
        let known = self.props().version >= VERSION_ACCOUNTS
            && (!objects || counted.count_objects)
            && (of != SpaceKind::Project || counted.count_projects);
        let none = || Error::unsupported("this is not accounted in this file system");
        known.then_some(()).ok_or_else(none)
    }

    /// Sets the limit of every user, group or project without one of its own; 0 removes it.
    ///
    /// # Errors
    /// As [`FileSystem::set_quota`].
    pub fn set_default_quota(&self, of: SpaceKind, objects: bool, limit: u64) -> Result<()> {
        let (rw, _) = self.rw()?;
        self.check_counted(of, objects)?;
        let _tables = rw.layouts.lock();
        let mut all = KINDS.map(|kind| self.quota_objects(kind));
        let quotas = &mut all[of as usize];
        let held = if objects { &mut quotas.default_objects } else { &mut quotas.default_bytes };
        if *held == limit {
            return Ok(());
        }
        *held = limit;
        let cost = entry_cost(&self.object(MASTER_NODE, self.io())?);
        let tx = self.begin_tx(cost + 2 * DNODE_BLOCK, limit == 0)?;
        let key = format!("default{}{}quota", WHO[of as usize], if objects { "obj" } else { "" });
        {
            let _turn = rw.seqlock.write(MASTER_NODE);
            match limit {
                0 => match zaps::remove(self.os(), &tx, MASTER_NODE, key.as_bytes()) {
                    Err(e) if e.kind() == ErrorKind::NotFound => {}
                    other => other?,
                },
                _ => {
                    let limit = ZapValue::from_u64(limit);
                    zaps::update(self.os(), &tx, MASTER_NODE, key.as_bytes(), &limit)?;
                }
            }
        }
        *rw.quotas.write() = Some(all);
        Ok(())
    }

    /// Sets the limit of a user, group or project, in bytes or in objects; 0 removes it.
    ///
    /// # Errors
    /// `Unsupported` where this is not accounted; `NoSpace`; `ReadOnly`; those of the
    /// tables.
    pub fn set_quota(&self, of: SpaceKind, id: u64, objects: bool, limit: u64) -> Result<()> {
        let (rw, _) = self.rw()?;
        self.check_counted(of, objects)?;
        let _tables = rw.layouts.lock();
        let mut all = KINDS.map(|kind| self.quota_objects(kind));
        let quotas = &mut all[of as usize];
        let table = if objects { &mut quotas.objects } else { &mut quotas.bytes };
        if table.is_none() && limit == 0 {
            return Ok(());
        }
        let cost = match *table {
            Some(id) => entry_cost(&self.object(id, self.io())?),
            None => NEW_TABLE,
        };
        let tx = self.begin_tx(cost + 2 * DNODE_BLOCK, limit == 0)?;
        let os = self.os();
        let table = match *table {
            Some(id) => id,
            None => {
                let id = zaps::create(os, &tx, TABLE, ObjType::NONE, &[], 0)?;
                let kind_name = WHO[of as usize];
                let key = format!("{kind_name}{}quota@", if objects { "obj" } else { "" });
                let _turn = rw.seqlock.write(MASTER_NODE);
                zaps::add(os, &tx, MASTER_NODE, key.as_bytes(), &ZapValue::from_u64(id.0))?;
                *table.insert(id)
            }
        };
        {
            let _turn = rw.seqlock.write(table);
            let key = format!("{id:x}");
            match limit {
                0 => match zaps::remove(os, &tx, table, key.as_bytes()) {
                    Err(e) if e.kind() == ErrorKind::NotFound => {}
                    other => other?,
                },
                _ => zaps::update(os, &tx, table, key.as_bytes(), &ZapValue::from_u64(limit))?,
            }
        }
        *rw.quotas.write() = Some(all);
        Ok(())
    }

    /// Whether more bytes may be charged to a file's owner.
    ///
    /// # Errors
    /// `Quota`.
    pub(crate) fn check_quota(&self, node: &FileNode) -> Result<()> {
        self.check(&QuotaOwner::of(&node.attrs), false)
    }
}
