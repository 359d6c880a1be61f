//! A dataset inside the mount of another: it has no entry in the kernel's table of mounts, but
//! is one for the user.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::rt::Mutex;
use base::{Error, Result};
use cenote::Dataset;

use super::tree::{Member, MountTree};
use super::zfs::ZfsMount;
use super::{FuseMount, RELEASE_TIMEOUT, pool_of};
use crate::{MountOptions, MountedFs, UnmountOutcome};

/// A member of a tree.
pub(super) struct MemberMount {
    host: Arc<FuseMount>,
    tree: Arc<MountTree>,
    member: Arc<Member>,
    fs: Arc<ZfsMount>,
    at: PathBuf,
    /// The options in effect.
    now: Mutex<MountOptions>,
}

impl MemberMount {
    /// Shows a dataset at a directory inside `host`.
    ///
    /// # Errors
    /// The mount is another pool's; the dataset cannot be opened; those of [`MountTree::add`].
    pub(super) fn new(
        host: Arc<FuseMount>,
        dataset: &Dataset,
        at: &Path,
        options: &MountOptions,
    ) -> Result<MemberMount> {
        let own = host.session.mount_point().unwrap_or_default();
        let (Some(tree), Ok(below)) = (host.tree.clone(), at.strip_prefix(&own)) else {
            return Err(Error::bug("a mount that others cannot be members of"));
        };
        if pool_of(dataset.name()) != pool_of(&host.name) {
            let text = format!(
                "'{}' is mounted around it, and one pool's datasets cannot be mounted inside of \
                 another's by an ordinary user",
                host.name
            );
            return Err(Error::permission(text));
        }
        // ACL support as negotiated for the topmost dataset applies to all members.
        let options = MountOptions { posix_acl: options.posix_acl && tree.acls, ..options.clone() };
        let fs = Arc::new(ZfsMount::new(dataset, &options)?);
        let member = tree.add(&fs, dataset.object(), below, at)?;
        fs.empty_delete_queue();
        let (at, now) = (at.to_owned(), Mutex::new(options));
        Ok(MemberMount { host, tree, member, fs, at, now })
    }
}

impl MountedFs for MemberMount {
    fn unmount(&self, force: bool) -> Result<UnmountOutcome> {
        self.tree.remove(&self.member, force, &self.at)?;
        // Operations in flight still use it.
        let begin = base::rt::now();
        while Arc::strong_count(&self.fs) > 1 && !self.fs.is_suspended() {
            if begin.elapsed() > RELEASE_TIMEOUT {
                return Err(Error::busy("requests are under way"));
            }
            base::rt::sleep(std::time::Duration::from_millis(5));
        }
        Ok(UnmountOutcome::Ended)
    }

    fn is_present(&self, present: &HashSet<String>) -> bool {
        self.host.is_present(present)
    }

    fn settle(&self) -> bool {
        !self.is_alive()
    }

    fn holders(&self) -> Vec<String> {
        self.host.holders()
    }

    fn put_back(&self, _: &Path, _: &MountOptions) -> Result<bool> {
        Ok(false)
    }

    fn is_own_mount(&self) -> bool {
        false
    }

    fn abort(&self) {
        // All members are of one pool.
        self.host.abort();
    }

    fn is_alive(&self) -> bool {
        self.host.is_alive() && self.member.fs().is_some()
    }

    fn remount(&self, options: &MountOptions) -> Result<bool> {
        let mut now = self.now.lock();
        let options =
            MountOptions { posix_acl: options.posix_acl && self.tree.acls, ..options.clone() };
        if now.posix_acl != options.posix_acl {
            return Ok(false);
        }
        self.fs.follow(&options);
        *now = options;
        Ok(true)
    }

    fn snapshots_changed(&self, names: &[&str]) {
        self.fs.snapshots_changed(names);
    }

    fn renamed(&self, dataset: &Dataset) {
        self.fs.renamed(dataset);
    }
}
