//! Nested datasets in one mount.
//!
//! # Theory
//! `fusermount3` mounts for an ordinary user on directories that it may enter itself, and it
//! may not enter that user's FUSE mounts. So a dataset whose mountpoint is inside a mounted
//! dataset of the same pool becomes a *member* of that mount: the mount shows it in place of
//! the directory that it *covers*, as the kernel shows a mount in place of its mountpoint.
//!
//! Each member has its own spaces of node ids. [`Ids`] gives each pair of a member and one of
//! its spaces ([`super::node`]) a number of 16 bits that is not reused during the session; the
//! ids of the topmost dataset are unchanged. Inode numbers get a tag in the same bits, made of
//! the dataset's object id, because programs take two files with one device and inode number
//! for the same file.
//!
//! The kernel learns by lookups which directory is covered: the entry under its name is that of
//! the member's root. Names are invalidated when a member is added or removed, and a check of
//! the path shows whether the kernel has the right entry. The lookups that the kernel has not
//! taken back show which nodes it knows. A member without such lookups, after its name was
//! invalidated, is not in use and can be removed.
//!
//! # Invariants
//! * A covered directory is neither removed nor renamed.
//! * The lookups of a member are counted before the kernel gets the reply.
//!
//! # Departures from kernel mounts
//! All members have one device number. Settings that the kernel fixes for a whole mount
//! (`exec`, POSIX ACLs, the transport) are those of the topmost dataset; `readonly` is each
//! member's own. Files cannot be moved or linked from member to member (`EXDEV`), as between
//! mounts.
//!
//! Lock order: `MountTree::members`, `Ids::table`, `NodeIdMap::outs` and `Covers` are leaves;
//! no file system is called under them.

use std::collections::{BTreeMap, HashMap};
use std::path::{Component, Path};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{AcqRel, Acquire};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use base::rt::{Condvar, Mutex, RwLock};
use base::{Error, ErrorKind, Result};
use fuse::{
    Attr, BlockingMode, Errno, Filesystem, LookupEntry, Negotiated, Notifier, Outward, ROOT_ID,
};

use super::zfs::{FsResult, ZfsMount};

const SPACE_SHIFT: u32 = 48;
const LOW: u64 = (1 << SPACE_SHIFT) - 1;
const S_IFMT: u32 = 0o170_000;
const S_IFDIR: u32 = 0o040_000;
/// How long the kernel may take to forget nodes that are not in use.
const FORGET_TIMEOUT: Duration = Duration::from_millis(500);
/// Checks of a path until the kernel shows the right entry.
const PATH_CHECKS_MAX: usize = 100;

/// The node id spaces of all members.
#[derive(Default)]
struct Ids {
    /// A member and its own space, by the kernel's number of the space.
    table: RwLock<Vec<(usize, u16)>>,
}

impl Ids {
    fn add(&self, member: usize, space: u16) -> Option<u16> {
        let mut table = self.table.write();
        let number = u16::try_from(table.len()).ok()?;
        table.push((member, space));
        Some(number)
    }
}

/// Members by the node that they cover.
#[derive(Default)]
struct Covers {
    by_node: RwLock<HashMap<u64, usize>>,
    count: AtomicUsize,
}

impl Covers {
    fn get(&self, node: u64) -> Option<usize> {
        if self.count.load(Acquire) == 0 {
            return None;
        }
        self.by_node.read().get(&node).copied()
    }

    fn change(&self, change: impl FnOnce(&mut HashMap<u64, usize>)) {
        let mut by_node = self.by_node.write();
        change(&mut by_node);
        self.count.store(by_node.len(), std::sync::atomic::Ordering::Release);
    }

    fn is_empty(&self) -> bool {
        self.count.load(Acquire) == 0
    }
}

/// Translates a member's node and inode numbers to those of the mount, and back.
struct NodeIdMap {
    ids: Arc<Ids>,
    covers: Arc<Covers>,
    member: usize,
    /// In the upper bits of inode numbers; the topmost dataset has 0.
    tag: u64,
    /// The kernel's numbers of its spaces, by its own.
    outs: RwLock<BTreeMap<u16, u16>>,
    /// Lookups that the kernel has not taken back.
    lookups: Mutex<u64>,
    forgotten: Condvar,
}

impl NodeIdMap {
    /// A member's own node id, from its own space and the kernel's node id.
    fn inward(space: u16, node: u64) -> u64 {
        match (space, node & LOW) {
            (0, low) => low,
            (space, low) => u64::from(space) << SPACE_SHIFT | low,
        }
    }

    fn forget(&self, count: u64) {
        let mut lookups = self.lookups.lock();
        *lookups = lookups.saturating_sub(count);
        if *lookups == 0 {
            self.forgotten.notify_all();
        }
    }

    /// Whether the kernel has forgotten all its nodes, or does so within a time.
    fn is_forgotten(&self, time: Duration) -> bool {
        let begin = base::rt::now();
        let mut lookups = self.lookups.lock();
        while *lookups > 0 {
            let left = time.saturating_sub(begin.elapsed());
            if left.is_zero() {
                return false;
            }
            self.forgotten.wait_timeout(&mut lookups, left);
        }
        true
    }

    fn attr(&self, attr: Attr) -> Attr {
        Attr { ino: self.ino(attr.ino), ..attr }
    }
}

impl Outward for NodeIdMap {
    fn ino(&self, ino: u64) -> u64 {
        // A number that is too large, which only a damaged disk has, is unchanged.
        if ino <= LOW { ino | self.tag << SPACE_SHIFT } else { ino }
    }

    fn node(&self, node: u64) -> Option<u64> {
        let space = u16::try_from(node >> SPACE_SHIFT).ok()?;
        let known = self.outs.read().get(&space).copied();
        let number = match known {
            Some(number) => number,
            None => {
                let mut outs = self.outs.write();
                match outs.get(&space) {
                    Some(number) => *number,
                    None => {
                        let number = self.ids.add(self.member, space)?;
                        outs.insert(space, number);
                        number
                    }
                }
            }
        };
        Some(u64::from(number) << SPACE_SHIFT | node & LOW)
    }

    fn entry(&self, entry: &LookupEntry) -> Option<LookupEntry> {
        let node = self.node(entry.node)?;
        // Another member covers it: the kernel looks that one up by name.
        let covered = self.covers.get(node).is_some();
        (!covered).then(|| LookupEntry { node, attr: self.attr(entry.attr), ..*entry })
    }

    fn granted(&self, _: u64) {
        *self.lookups.lock() += 1;
    }
}

/// The position of a member in the mount.
#[derive(Clone)]
struct MemberMountpoint {
    /// The kernel's node ids of the parent directory and of the covered directory.
    parent: u64,
    covered: u64,
    name: Vec<u8>,
}

/// A dataset of the mount.
pub(super) struct Member {
    shown: Arc<NodeIdMap>,
    /// `None` once it was removed.
    fs: RwLock<Option<Arc<ZfsMount>>>,
    opens: AtomicUsize,
    /// `None` for the topmost dataset.
    mountpoint: Option<MemberMountpoint>,
}

impl Member {
    /// Its file system.
    pub(super) fn fs(&self) -> Option<Arc<ZfsMount>> {
        self.fs.read().clone()
    }

    /// An entry as the kernel gets it; counts a lookup.
    fn counted(&self, entry: LookupEntry) -> FsResult<LookupEntry> {
        if entry.node == 0 {
            return Ok(entry);
        }
        let node = self.shown.node(entry.node).ok_or(Errno::ENOMEM)?;
        self.shown.granted(node);
        Ok(LookupEntry { node, attr: self.shown.attr(entry.attr), ..entry })
    }
}

/// A node: its member, the member's file system, and its node id there.
pub(super) struct MemberNode {
    pub(super) member: Arc<Member>,
    pub(super) fs: Arc<ZfsMount>,
    pub(super) node: u64,
}

impl MemberNode {
    /// An entry of a new object.
    pub(super) fn made(&self, entry: LookupEntry) -> FsResult<LookupEntry> {
        self.member.counted(entry)
    }

    pub(super) fn attr(&self, attr: Attr) -> Attr {
        self.member.shown.attr(attr)
    }

    /// The translation for listings.
    pub(super) fn outward(&self) -> Arc<dyn Outward> {
        Arc::clone(&self.member.shown) as _
    }

    /// Fails if another node is not of the same member.
    pub(super) fn same(&self, other: &MemberNode) -> FsResult<()> {
        match Arc::ptr_eq(&self.member, &other.member) {
            true => Ok(()),
            false => Err(Errno::EXDEV),
        }
    }

    pub(super) fn opened(&self) {
        self.member.opens.fetch_add(1, AcqRel);
    }
}

/// The datasets of one mount.
pub(super) struct MountTree {
    ids: Arc<Ids>,
    covers: Arc<Covers>,
    /// By number; `None` for a member that was removed.
    members: RwLock<Vec<Option<Arc<Member>>>>,
    notifier: OnceLock<Notifier>,
    negotiated: OnceLock<Negotiated>,
    /// The kernel checks POSIX ACLs.
    pub(super) acls: bool,
}

impl MountTree {
    /// A tree with the topmost dataset alone; `acls`: the kernel checks POSIX ACLs.
    pub(super) fn new(top: Arc<ZfsMount>, acls: bool) -> MountTree {
        let tree = MountTree {
            ids: Arc::default(),
            covers: Arc::default(),
            members: RwLock::default(),
            notifier: OnceLock::new(),
            negotiated: OnceLock::new(),
            acls,
        };
        let shown = tree.shown(0, 0);
        // The first one gets number 0, so its ids are the kernel's.
        let _root = shown.node(ROOT_ID);
        let (fs, opens) = (RwLock::new(Some(top)), AtomicUsize::new(0));
        tree.members.write().push(Some(Arc::new(Member { shown, fs, opens, mountpoint: None })));
        tree
    }

    fn shown(&self, member: usize, tag: u64) -> Arc<NodeIdMap> {
        Arc::new(NodeIdMap {
            ids: Arc::clone(&self.ids),
            covers: Arc::clone(&self.covers),
            member,
            tag,
            outs: RwLock::default(),
            lookups: Mutex::default(),
            forgotten: Condvar::default(),
        })
    }

    /// Sets the notifier of all members.
    pub(super) fn attach(&self, notifier: Notifier) {
        for member in self.all() {
            attach_notifier(&member, &notifier);
        }
        let _attached_once = self.notifier.set(notifier);
    }

    pub(super) fn set_negotiated(&self, negotiated: &Negotiated) {
        let _agreed_once = self.negotiated.set(*negotiated);
        self.all().iter().filter_map(|m| m.fs()).for_each(|fs| Filesystem::init(&*fs, negotiated));
    }

    pub(super) fn all(&self) -> Vec<Arc<Member>> {
        self.members.read().iter().flatten().cloned().collect()
    }

    /// Whether there are members besides the topmost dataset.
    pub(super) fn has_members(&self) -> bool {
        !self.covers.is_empty()
    }

    /// Drops all members; the session has ended.
    pub(super) fn end(&self) {
        let members = std::mem::take(&mut *self.members.write());
        for member in members.into_iter().flatten() {
            *member.fs.write() = None;
        }
    }

    fn member(&self, number: usize) -> FsResult<Arc<Member>> {
        self.members.read().get(number).cloned().flatten().ok_or(Errno::EIO)
    }

    /// The member and node that a kernel's node id stands for.
    pub(super) fn at(&self, node: u64) -> FsResult<MemberNode> {
        let number = usize::try_from(node >> SPACE_SHIFT).unwrap_or(usize::MAX);
        let known = self.ids.table.read().get(number).copied();
        let (member, space) = known.ok_or(Errno::ESTALE)?;
        let member = self.member(member)?;
        let fs = member.fs().ok_or(Errno::EIO)?;
        Ok(MemberNode { member, fs, node: NodeIdMap::inward(space, node) })
    }

    /// The kernel took back lookups of a node.
    pub(super) fn forget(&self, node: u64, count: u64) {
        let number = usize::try_from(node >> SPACE_SHIFT).unwrap_or(usize::MAX);
        let Some((member, space)) = self.ids.table.read().get(number).copied() else { return };
        let Ok(member) = self.member(member) else { return };
        if let Some(fs) = member.fs() {
            fs.forget(NodeIdMap::inward(space, node), count);
        }
        member.shown.forget(count);
    }

    /// Records that a file was closed.
    pub(super) fn released(at: &MemberNode) {
        let _at_most = at.member.opens.fetch_update(AcqRel, Acquire, |n| n.checked_sub(1));
    }

    /// The entry of a name as the kernel gets it: that of the member that covers it, if one
    /// does.
    pub(super) fn entry(
        &self,
        mode: BlockingMode,
        parent: &MemberNode,
        found: LookupEntry,
    ) -> FsResult<LookupEntry> {
        let mut member = Arc::clone(&parent.member);
        let mut entry = found;
        while entry.node != 0 {
            let node = member.shown.node(entry.node).ok_or(Errno::ENOMEM)?;
            let Some(number) = self.covers.get(node) else { break };
            member = self.member(number)?;
            let fs = member.fs().ok_or(Errno::EIO)?;
            entry = fs.find(mode, ROOT_ID, b".")?;
            // The name's target changes when the member is removed.
            entry.entry_ttl = found.entry_ttl;
        }
        member.counted(entry)
    }

    /// Fails if a member covers the name's directory, which is about to be removed.
    pub(super) fn check_free(&self, parent: &MemberNode, name: &[u8]) -> FsResult<()> {
        if self.covers.is_empty() {
            return Ok(());
        }
        let found = match parent.fs.find(BlockingMode::Blocking, parent.node, name) {
            Ok(found) => found,
            Err(Errno::ENOENT) => return Ok(()),
            Err(e) => return Err(e),
        };
        let node = parent.member.shown.node(found.node).ok_or(Errno::ENOMEM)?;
        if self.covers.get(node).is_some() { Err(Errno::EBUSY) } else { Ok(()) }
    }

    /// The position of the directory at a path below the mount.
    fn mountpoint(&self, below: &Path) -> FsResult<MemberMountpoint> {
        let mut at = self.at(ROOT_ID)?;
        let mut mountpoint =
            MemberMountpoint { parent: ROOT_ID, covered: ROOT_ID, name: Vec::new() };
        for part in below.components() {
            let Component::Normal(name) = part else { return Err(Errno::EINVAL) };
            let name = std::os::unix::ffi::OsStrExt::as_bytes(name);
            let entry = at.fs.find(BlockingMode::Blocking, at.node, name)?;
            if entry.attr.mode & S_IFMT != S_IFDIR {
                return Err(Errno::ENOTDIR);
            }
            // `.zfs` and snapshots cannot be mounted on.
            if entry.node >> SPACE_SHIFT != 0 {
                return Err(Errno::EROFS);
            }
            let number = |at: &MemberNode, node| at.member.shown.node(node).ok_or(Errno::ENOMEM);
            mountpoint = MemberMountpoint {
                parent: number(&at, at.node)?,
                covered: number(&at, entry.node)?,
                name: name.to_vec(),
            };
            at.node = entry.node;
            while let Some(member) = self.covers.get(number(&at, at.node)?) {
                let member = self.member(member)?;
                let fs = member.fs().ok_or(Errno::EIO)?;
                at = MemberNode { member, fs, node: ROOT_ID };
                mountpoint.covered = number(&at, ROOT_ID)?;
            }
        }
        if mountpoint.name.is_empty() { Err(Errno::EBUSY) } else { Ok(mountpoint) }
    }

    /// The tag for a dataset's inode numbers, derived from its object id, so that it is the
    /// same each time unless another member has it.
    fn tag(&self, object: u64) -> Option<u64> {
        let used: Vec<u64> = self.all().iter().map(|m| m.shown.tag).collect();
        let max = u64::from(u16::MAX);
        (0..max).map(|n| (object.wrapping_add(n)) & max).find(|tag| !used.contains(tag))
    }

    /// Adds a file system, whose dataset has this object id, at the path `below` the mount;
    /// this process sees it at `whole`.
    ///
    /// # Errors
    /// There is no such directory; it cannot be covered; the kernel does not show the member.
    pub(super) fn add(
        &self,
        fs: &Arc<ZfsMount>,
        object: u64,
        below: &Path,
        whole: &Path,
    ) -> Result<Arc<Member>> {
        let failed =
            |e: Errno| Error::io("cannot mount", std::io::Error::from_raw_os_error(e.raw()));
        let mountpoint = self.mountpoint(below).map_err(failed)?;
        let full = || Error::limit("too many datasets were mounted in this mount");
        let tag = self.tag(object).ok_or_else(full)?;
        if let Some(negotiated) = self.negotiated.get() {
            Filesystem::init(&**fs, negotiated);
        }
        let member = {
            let mut members = self.members.write();
            let shown = self.shown(members.len(), tag);
            shown.node(ROOT_ID).ok_or_else(full)?;
            let held = RwLock::new(Some(Arc::clone(fs)));
            let opens = AtomicUsize::new(0);
            let member =
                Arc::new(Member { shown, fs: held, opens, mountpoint: Some(mountpoint.clone()) });
            members.push(Some(Arc::clone(&member)));
            member
        };
        if let Some(notifier) = self.notifier.get() {
            attach_notifier(&member, notifier);
        }
        self.covers.change(|c| {
            c.insert(mountpoint.covered, member.shown.member);
        });
        let root = member.shown.ino(fs.root().0);
        if self.shows(&mountpoint, whole, |ino| ino == root) {
            return Ok(member);
        }
        self.remove(&member, true, whole)?;
        Err(Error::new(ErrorKind::Io, "the kernel does not show what is mounted"))
    }

    /// Makes the kernel look a name up again until it shows the right node.
    fn shows(
        &self,
        mountpoint: &MemberMountpoint,
        whole: &Path,
        right: impl Fn(u64) -> bool,
    ) -> bool {
        use std::os::unix::fs::MetadataExt;
        let Some(notifier) = self.notifier.get() else { return false };
        for _ in 0..PATH_CHECKS_MAX {
            let _unknown = notifier.inval_entry(mountpoint.parent, &mountpoint.name);
            // Answers in flight may be outdated.
            let _old_kernel = notifier.inc_epoch();
            if std::fs::symlink_metadata(whole).is_ok_and(|meta| right(meta.ino())) {
                return true;
            }
        }
        false
    }

    /// Removes a member; without `force` only if it is not in use.
    ///
    /// # Errors
    /// `Busy` if it is in use.
    pub(super) fn remove(&self, member: &Arc<Member>, force: bool, whole: &Path) -> Result<()> {
        let Some(mountpoint) = &member.mountpoint else {
            return Err(Error::bug("the mount's own root"));
        };
        let busy = || Error::busy("in use");
        let number = member.shown.member;
        // Another member covers a directory of this one.
        let contains = |m: &Arc<Member>| {
            let covered = m.mountpoint.as_ref().and_then(|s| self.at(s.covered).ok());
            covered.is_some_and(|at| Arc::ptr_eq(&at.member, member))
        };
        let around = self.all().iter().any(contains);
        if !force && (around || member.opens.load(Acquire) > 0) {
            return Err(busy());
        }
        self.covers.change(|c| {
            c.remove(&mountpoint.covered);
        });
        if let Some(notifier) = self.notifier.get() {
            let _unknown = notifier.inval_entry(mountpoint.parent, &mountpoint.name);
        }
        if !member.shown.is_forgotten(if force { Duration::ZERO } else { FORGET_TIMEOUT }) && !force
        {
            self.covers.change(|c| {
                c.insert(mountpoint.covered, number);
            });
            let root = member.fs().map(|fs| member.shown.ino(fs.root().0));
            self.shows(mountpoint, whole, |ino| Some(ino) == root);
            return Err(busy());
        }
        if let Some(slot) = self.members.write().get_mut(number) {
            *slot = None;
        }
        *member.fs.write() = None;
        Ok(())
    }
}

/// Gives a member its notifier.
fn attach_notifier(member: &Member, notifier: &Notifier) {
    if let Some(fs) = member.fs() {
        fs.attach(notifier.showing_as(Arc::clone(&member.shown) as _));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shown(ids: &Arc<Ids>, member: usize, tag: u64) -> NodeIdMap {
        NodeIdMap {
            ids: Arc::clone(ids),
            covers: Arc::default(),
            member,
            tag,
            outs: RwLock::default(),
            lookups: Mutex::default(),
            forgotten: Condvar::default(),
        }
    }

    proptest! {
        #[test]
        fn numbers_are_unique_and_invertible(
            nodes in prop::collection::vec((0usize..4, any::<u16>(), 1u64..LOW), 1..60),
        ) {
            let ids = Arc::<Ids>::default();
            let all: Vec<NodeIdMap> = (0..4).map(|m| shown(&ids, m, m as u64)).collect();
            prop_assert_eq!(all[0].node(ROOT_ID), Some(ROOT_ID));
            for &(m, space, low) in &nodes {
                let node = u64::from(space) << SPACE_SHIFT | low;
                let out = all[m].node(node).unwrap();
                let number = (out >> SPACE_SHIFT) as usize;
                let (member, own) = ids.table.read()[number];
                prop_assert_eq!((member, NodeIdMap::inward(own, out)), (m, node));
                prop_assert_eq!(all[0].node(low), Some(low), "the topmost dataset's stay");
            }
        }
    }

    #[test]
    fn numbers_end_and_inodes_are_apart() {
        let ids = Arc::<Ids>::default();
        let (a, b) = (shown(&ids, 0, 0), shown(&ids, 1, 0x81));
        assert_eq!((a.ino(34), b.ino(34)), (34, 0x81 << 48 | 34));
        assert_eq!(b.ino(u64::MAX), u64::MAX);
        for space in 0..=u16::MAX {
            assert!(a.node(u64::from(space) << SPACE_SHIFT | 7).is_some());
        }
        assert_eq!(b.node(7), None);
        assert!(a.node(9).is_some());
    }

    #[test]
    fn lookups_are_counted() {
        let s = shown(&Arc::default(), 0, 0);
        s.granted(1);
        s.granted(1);
        s.forget(1);
        assert!(!s.is_forgotten(Duration::ZERO));
        s.forget(1);
        assert!(s.is_forgotten(Duration::ZERO));
    }
}
