//! What users, groups and projects use: `zfs userspace` and its like (chapter 09 §3.6).
//!
//! # Invariants
//! * A user other than the daemon's owner sees their own account and those of their groups;
//!   others, and those of projects, with the permissions for the properties that show the same
//!   (`userused` and its like).

use base::{Error, Result};
use cenote::files::{SpaceEntry, SpaceKind};
use cenote::{Dataset, DatasetKind, owner_of_prop};
use proto::{OWNERS_PAGE, OwnerKind, OwnerUsage, Reply};

use super::access::Caller;
use super::datasets::{cannot, pool_of};
use super::state::DaemonState;

fn is_own(by: &Caller, kind: SpaceKind, id: u64) -> bool {
    match kind {
        SpaceKind::User => id == u64::from(by.uid()),
        SpaceKind::Group => by.is_in(id),
        SpaceKind::Project => false,
    }
}

/// Whether a user may see a property.
///
/// # Errors
/// Those of reading.
pub(super) fn may_see(
    state: &DaemonState,
    by: &Caller,
    dataset: &Dataset,
    prop: &str,
) -> Result<bool> {
    if by.is_owner() || !cenote::props::is_space_prop(prop) {
        return Ok(true);
    }
    let Some((kind, id)) = owner_of_prop(prop) else { return Ok(true) };
    if is_own(by, kind, id) {
        return Ok(true);
    }
    let Some(pool) = pool_of(state, dataset.name()) else { return Ok(false) };
    let word = prop.split('@').next().unwrap_or(prop);
    Ok(by.require(&pool, dataset.name(), &[word]).is_ok())
}

/// Serves the commands: a page of accounts by ascending id, those after `after`.
///
/// # Errors
/// The whole message for the user.
pub(super) fn of_owners(
    state: &DaemonState,
    name: &str,
    kind: OwnerKind,
    after: Option<u64>,
    by: &Caller,
) -> Result<Reply> {
    let (pool, dataset) = state.open(name)?;
    let fail = |e: Error| cannot("cannot get used/quota for", name, &e);
    let fs = match dataset.kind() {
        DatasetKind::Filesystem => true,
        DatasetKind::Snapshot => pool
            .dataset(name.split('@').next().unwrap_or(name))
            .is_ok_and(|head| head.kind() == DatasetKind::Filesystem),
        DatasetKind::Volume | DatasetKind::Bookmark => false,
    };
    if !fs {
        let text = "operation not applicable to datasets of this type";
        return Err(fail(Error::invalid(text)));
    }
    let (kind, word) = match kind {
        OwnerKind::User => (SpaceKind::User, "user"),
        OwnerKind::Group => (SpaceKind::Group, "group"),
        OwnerKind::Project => (SpaceKind::Project, "project"),
    };
    let space = dataset.space_by_owner(kind).map_err(fail)?;
    let may = |what: &str| by.require(&pool, name, &[&format!("{word}{what}")]).is_ok();
    let sees = [may("used"), may("quota"), may("objused"), may("objquota")];
    let shown = |e: &SpaceEntry| {
        let own = is_own(by, kind, e.id);
        if !own && sees == [false; 4] {
            return None;
        }
        let value =
            |which: usize, n: u64| if own || sees.get(which) == Some(&true) { n } else { 0 };
        Some(OwnerUsage {
            id: e.id,
            used: value(0, e.used),
            quota: value(1, e.quota),
            objects: value(2, e.objects),
            object_quota: value(3, e.object_quota),
        })
    };
    let rest = space.entries.iter().filter(|e| after.is_none_or(|after| e.id > after));
    let mut rows: Vec<OwnerUsage> = rest.filter_map(shown).take(OWNERS_PAGE + 1).collect();
    let more = rows.len() > OWNERS_PAGE;
    rows.truncate(OWNERS_PAGE);
    Ok(Reply::OwnerSpace { rows, counts_objects: space.counts_objects, more })
}
