//! Who a client is, and what they may do: delegated permissions (chapter 04 §13, chapter 09
//! §3.7).
//!
//! # Theory
//! The kernel tells user and groups of a client's process (the socket's peer credentials). Root
//! and the daemon's own user are its owners and may do everything. Other users reach a root
//! daemon through its shared socket. Most of their requests are refused at once ([`check`]);
//! what is left either shows what OpenZFS shows to all users, or needs permissions that were
//! delegated to them. For changes of datasets these are looked up under the lock of the pool,
//! after the names are resolved and before anything changes, so that no rename comes in
//! between.
//!
//! The daemon never mounts for other users, as on Linux with OpenZFS: a path below a directory
//! of theirs may lead elsewhere when the daemon uses it. It unmounts and remounts for them only
//! at places that no other user can move (`is_fixed_place`).
//!
//! # Invariants
//! * A request that this module does not know is refused.
//! * A refused request has changed nothing.
//! * A change for another user is in the pool's history with the user's id.

use std::collections::BTreeSet;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;

use base::{Error, ErrorKind, Result};
use cenote::delegation::{Actor, GrantPlace, Subject, permission_to_set};
use cenote::{Dataset, Pool};
use proto::{Change, MountArgs, Request};
use rustix::process::geteuid;

use super::datasets::cannot;
use super::remount::inside;
use super::state::DaemonState;

/// Socket option: the groups of the process at the other end (Linux 4.13).
const SO_PEERGROUPS: libc::c_int = 59;
/// Groups that a process can have.
const GROUPS_MAX: usize = 65_536;
/// Modes that let others than the owner change a directory, and the mode that keeps them from
/// renaming what is not theirs.
const WRITABLE: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// The user for whom a request is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    uid: u32,
    gid: u32,
    /// All groups.
    groups: Vec<u64>,
    owner: bool,
}

fn denied() -> Error {
    Error::permission("permission denied")
}

/// The supplementary groups of the process that connected.
fn peer_groups(stream: &UnixStream) -> Result<Vec<u32>> {
    let mut groups = vec![0 as libc::gid_t; 64];
    loop {
        let bytes = groups.len() * size_of::<libc::gid_t>();
        let mut len = libc::socklen_t::try_from(bytes).unwrap_or(0);
        // SAFETY: the buffer has `len` bytes, and the kernel writes no more than that; the
        // descriptor is open as long as the stream is borrowed.
        let done = unsafe {
            libc::getsockopt(
                stream.as_raw_fd(),
                libc::SOL_SOCKET,
                SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &mut len,
            )
        };
        let count = usize::try_from(len).unwrap_or(0) / size_of::<libc::gid_t>();
        if done == 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        let e = std::io::Error::last_os_error();
        if e.raw_os_error() != Some(libc::ERANGE) || count <= groups.len() || count > GROUPS_MAX {
            return Err(Error::io("cannot tell the groups of who connects", e));
        }
        groups.resize(count, 0);
    }
}

impl Caller {
    /// The process at the other end of a connection.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub(crate) fn of(stream: &UnixStream) -> Result<Caller> {
        let peer = rustix::net::sockopt::socket_peercred(stream)
            .map_err(|e| Error::io("cannot tell who connects", e.into()))?;
        let (uid, gid) = (peer.uid.as_raw(), peer.gid.as_raw());
        let owner = peer.uid.is_root() || peer.uid == geteuid();
        let mut groups = if owner { Vec::new() } else { peer_groups(stream)? };
        groups.push(gid);
        Ok(Caller { uid, gid, groups: groups.into_iter().map(u64::from).collect(), owner })
    }

    /// Root, or the daemon's own user.
    pub(crate) fn is_owner(&self) -> bool {
        self.owner
    }

    /// User id.
    pub(crate) fn uid(&self) -> u32 {
        self.uid
    }

    /// Whether the user is in a group.
    pub(crate) fn is_in(&self, group: u64) -> bool {
        self.groups.contains(&group)
    }

    /// The pool, to be changed for this user.
    pub(crate) fn acting(&self, pool: &Arc<Pool>) -> Arc<Pool> {
        match self.owner {
            true => Arc::clone(pool),
            false => Arc::new(pool.acting_for(Actor { uid: self.uid, gid: self.gid })),
        }
    }

    /// The permissions at a place of a dataset.
    ///
    /// # Errors
    /// `Unsupported` while the pool does not delegate; those of reading.
    pub(crate) fn permissions(
        &self,
        pool: &Pool,
        dataset: &str,
        place: GrantPlace,
    ) -> Result<BTreeSet<String>> {
        if !pool.delegates()? {
            let text = "delegated administration is disabled on pool";
            return Err(Error::unsupported(text));
        }
        let who = Subject { uid: u64::from(self.uid), groups: &self.groups };
        pool.permissions_for(dataset, place, who)
    }

    /// Whether the user has all of these permissions for a dataset, snapshot or bookmark.
    ///
    /// # Errors
    /// `Permission`; as [`Caller::permissions`].
    pub(crate) fn require(&self, pool: &Pool, name: &str, wanted: &[&str]) -> Result<()> {
        let (dataset, place) = match name.split_once(['@', '#']) {
            Some((dataset, _)) => (dataset, GrantPlace::Snapshot),
            None => (name, GrantPlace::Dataset),
        };
        self.require_at(pool, dataset, place, wanted)
    }

    /// Whether the user has all of these permissions at a place of a dataset.
    ///
    /// # Errors
    /// As [`Caller::require`].
    pub(crate) fn require_at(
        &self,
        pool: &Pool,
        dataset: &str,
        place: GrantPlace,
        wanted: &[&str],
    ) -> Result<()> {
        if self.owner {
            return Ok(());
        }
        let have = self.permissions(pool, dataset, place)?;
        let all = wanted.iter().all(|p| have.contains(*p));
        all.then_some(()).ok_or_else(denied)
    }

    /// Whether the user may make a dataset, with these properties, below an existing one. Of
    /// the datasets above it, `above` are made first.
    ///
    /// # Errors
    /// As [`Caller::require`].
    pub(crate) fn require_create(
        &self,
        pool: &Pool,
        name: &str,
        above: &[&str],
        props: &[(String, String)],
    ) -> Result<()> {
        if self.owner {
            return Ok(());
        }
        let highest = above.last().copied().unwrap_or(name);
        let parent = highest.rsplit_once('/').map_or(highest, |(parent, _)| parent);
        let needed = ["create", "mount"];
        self.require(pool, parent, &needed)?;
        if !above.is_empty() {
            self.require_at(pool, parent, GrantPlace::New, &needed)?;
        }
        let wanted: Vec<&str> = props.iter().map(|(prop, _)| permission_to_set(prop)).collect();
        self.require_at(pool, parent, GrantPlace::New, &wanted)
    }

    /// Whether the user may send a snapshot. `send` is for all streams; `send:raw` only for raw
    /// ones, `send:encrypted` for those of encrypted datasets among them.
    ///
    /// # Errors
    /// As [`Caller::require`].
    pub(crate) fn require_send(&self, pool: &Pool, of: &Dataset, raw: bool) -> Result<()> {
        let mut enough = vec!["send"];
        if raw {
            enough.push("send:raw");
            enough.extend(of.is_locked().then_some("send:encrypted"));
        }
        let tried = |permission: &&str| self.require(pool, of.name(), &[permission]);
        let mut last = Err(denied());
        for permission in &enough {
            last = tried(permission);
            if last.is_ok() {
                break;
            }
        }
        last
    }

    /// Whether the user may receive a stream into a dataset, which need not exist yet. The
    /// properties are set or excluded by the command. `receive:append` does for a stream that
    /// discards nothing; `force` also needs `rollback`, if there is something to discard.
    ///
    /// # Errors
    /// As [`Caller::require`].
    pub(crate) fn require_receive(
        &self,
        pool: &Pool,
        name: &str,
        is_there: bool,
        props: &[&str],
        force: bool,
    ) -> Result<()> {
        if self.owner {
            return Ok(());
        }
        let parent = name.rsplit_once('/').map_or(name, |(parent, _)| parent);
        let (at, place) = match is_there {
            true => (name, GrantPlace::Dataset),
            false => (parent, GrantPlace::New),
        };
        let of = if is_there { name } else { parent };
        let have = self.permissions(pool, of, GrantPlace::Dataset)?;
        let receives = have.contains("receive") || (have.contains("receive:append") && !force);
        let discards = !(force && is_there) || have.contains("rollback");
        let all = ["mount", "create"].iter().all(|p| have.contains(*p));
        if !receives || !discards || !all {
            return Err(denied());
        }
        let wanted: Vec<&str> = props.iter().map(|prop| permission_to_set(prop)).collect();
        self.require_at(pool, at, place, &wanted)
    }

    /// Refuses if one of these datasets is mounted at a place that another user could move.
    ///
    /// # Errors
    /// `Permission`, with the whole message.
    pub(crate) fn require_fixed_mounts(
        &self,
        state: &DaemonState,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<()> {
        self.refuse_mounts(state, wanted, |at| !is_fixed_place(at))
    }

    /// Refuses if one of these datasets is mounted: the daemon does not mount for other users.
    ///
    /// # Errors
    /// As [`Caller::require_fixed_mounts`].
    pub(crate) fn require_unmounted(
        &self,
        state: &DaemonState,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<()> {
        self.refuse_mounts(state, wanted, |_| true)
    }

    fn refuse_mounts(
        &self,
        state: &DaemonState,
        wanted: impl Fn(&str) -> bool,
        refused: impl Fn(&Path) -> bool,
    ) -> Result<()> {
        if self.owner {
            return Ok(());
        }
        match state.mounted_below(wanted).into_iter().find(|(_, at, _)| refused(at)) {
            None => Ok(()),
            Some((_, at, _)) => {
                let text = format!("cannot unmount '{}': permission denied", at.display());
                Err(Error::permission(text))
            }
        }
    }
}

/// Whether no user but root can make a path lead elsewhere: every directory above its last
/// component is root's, and others cannot rename what is in it.
fn is_fixed_place(path: &Path) -> bool {
    path.is_absolute()
        && path.ancestors().skip(1).all(|dir| {
            std::fs::symlink_metadata(dir).is_ok_and(|meta| {
                let closed = meta.mode() & WRITABLE == 0 || meta.mode() & STICKY != 0;
                meta.is_dir() && meta.uid() == 0 && closed
            })
        })
}

/// The command's line for a refused request.
fn refusal(request: &Request) -> String {
    let (action, name) = match request {
        Request::Import(args) => ("import", args.name.as_str()),
        Request::Export { name, .. } => ("export", name.as_str()),
        Request::Create(args) => ("create", args.name.as_str()),
        Request::Add(args) => ("add to", args.name.as_str()),
        Request::History { name, .. } => ("get history for", name.as_str()),
        Request::Change { pool, change, .. } => return refused_change(pool, change),
        Request::Mount(args) => ("mount", args.target.as_deref().unwrap_or_default()),
        Request::Unmount(args) => ("unmount", args.target.as_deref().unwrap_or_default()),
        _ => return "permission denied".to_owned(),
    };
    match name {
        "" => format!("cannot {action}: permission denied"),
        name => format!("cannot {action} '{name}': permission denied"),
    }
}

/// The same for a change of a pool.
fn refused_change(pool: &str, change: &Change) -> String {
    let (action, quoted) = match change {
        Change::Destroy { .. } => ("cannot destroy", true),
        Change::Sync => return format!("sync '{pool}' failed: permission denied"),
        Change::Reguid(_) => ("cannot reguid", true),
        Change::Upgrade(_) => ("cannot upgrade", true),
        Change::Set(..) | Change::SetVdev(..) => ("cannot set property for", true),
        Change::Clear(_) => ("cannot clear errors for", false),
        Change::Remove(_) | Change::EstimateRemoval(_) => ("cannot remove device from", false),
        Change::CancelRemoval => ("cannot cancel removal on", false),
        Change::Offline { .. } => ("cannot offline device of", false),
        Change::Online { .. } => ("cannot online device of", false),
        Change::Attach(_) => ("cannot attach device to", false),
        Change::Detach(_) => ("cannot detach device from", false),
        Change::Reopen => ("cannot reopen", true),
        Change::Split(_) => ("cannot split", true),
        Change::Scan(_) => ("cannot scrub", false),
        Change::Checkpoint => ("cannot checkpoint", true),
        Change::DiscardCheckpoint => ("cannot discard checkpoint in", true),
        Change::Trim(..) => ("cannot trim", true),
        Change::Initialize(..) => ("cannot initialize", true),
        Change::PruneDedup(_) => ("cannot prune dedup table on", true),
        Change::PrefetchDedup => ("cannot prefetch ddt in", true),
        Change::Defrag(_) | Change::EstimateDefrag(_) => ("cannot defragment", true),
        Change::Unmap | Change::EstimateUnmap => {
            ("cannot erase the mappings of removed devices in", true)
        }
        Change::PauseDefrag => ("cannot pause defragmenting", true),
        Change::CancelDefrag => ("cannot cancel defragmenting", true),
        Change::Rebalance(_) | Change::EstimateRebalance(_) => ("cannot rebalance", true),
        Change::PauseRebalance => ("cannot pause rebalancing", true),
        Change::CancelRebalance => ("cannot cancel rebalancing", true),
        Change::Shrink(_) | Change::EstimateShrink(_) => ("cannot shrink device of", false),
        Change::CancelShrink => ("cannot cancel shrinking on", false),
    };
    match quoted {
        true => format!("{action} '{pool}': permission denied"),
        false => format!("{action} {pool}: permission denied"),
    }
}

/// Refuses what users other than the owner may not request at all. Of the rest, those that
/// change something check their permissions where the names are resolved.
///
/// # Errors
/// `Permission`, with the whole message.
pub(super) fn check(by: &Caller, request: &Request) -> Result<()> {
    let is_for_all = match request {
        Request::PoolNames
        | Request::PoolStatus { .. }
        | Request::DedupReport { .. }
        | Request::PoolProps { .. }
        | Request::Datasets(_)
        | Request::Mounts
        | Request::Holds { .. }
        | Request::Permissions { .. }
        | Request::OwnerSpace { .. }
        | Request::VdevProps { .. }
        | Request::KstatNames
        | Request::Kstats { .. }
        | Request::Send(_)
        | Request::Receive(_)
        | Request::Diff(_)
        | Request::ChangeDatasets(_) => true,
        Request::Unmount(args) => args.target.is_some(),
        _ => false,
    };
    match by.owner || is_for_all {
        true => Ok(()),
        false => Err(Error::new(ErrorKind::Permission, refusal(request))),
    }
}

/// Whether a user may unmount what a request names: the permission `mount` for the dataset and
/// for those mounted below it.
///
/// # Errors
/// The whole message.
pub(super) fn check_unmount(state: &DaemonState, args: &MountArgs, by: &Caller) -> Result<()> {
    let Some(target) = args.target.as_deref().filter(|_| !by.owner) else { return Ok(()) };
    let mut name = target.to_owned();
    if target.starts_with('/') {
        match state.mounts().into_iter().find(|m| m.mountpoint == target) {
            Some(mount) => name = mount.dataset,
            // The request finds the same.
            None => return Ok(()),
        }
    }
    let (pool, _) = state.open(&name)?;
    let mounted = state.mounted_below(|n| inside(n, &name)).into_iter().map(|m| m.0);
    for one in mounted.chain([name.clone()]) {
        let may = by.require(&pool, &one, &["mount"]);
        may.map_err(|e| cannot("cannot unmount", target, &e))?;
    }
    by.require_fixed_mounts(state, |n| inside(n, &name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_other_end_of_a_socket_is_known() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let caller = Caller::of(&ours).unwrap();
        assert!(caller.is_owner());
        assert_eq!(caller.uid(), geteuid().as_raw());
        let mut own: Vec<u32> = rustix::process::getgroups()
            .unwrap()
            .into_iter()
            .map(rustix::process::Gid::as_raw)
            .collect();
        let mut told = peer_groups(&ours).unwrap();
        own.sort_unstable();
        told.sort_unstable();
        assert_eq!(own, told);
    }

    #[test]
    fn places_that_can_be_moved() {
        assert!(is_fixed_place(Path::new("/tank")));
        assert!(!is_fixed_place(Path::new("tank/a")));
        assert!(!is_fixed_place(Path::new("/absent/tank")));
        assert!(!is_fixed_place(Path::new("/proc/self/tank")), "a link leads there");
    }
}
