//! Extended attributes through the mount: which names exist, and which callers see them.
//!
//! # Theory
//! The kernel checks access to the namespaces that it knows: `user.` like the file's content,
//! `trusted.` by `CAP_SYS_ADMIN`, `security.` by its security modules. For `system.` it relies
//! on the file system alone, and it does not filter lists. So this module has these rules:
//! * In `system.` only the two POSIX ACLs exist, and only if `acltype` says so; else they are
//!   neither listed nor returned, as in OpenZFS, read-only or not. Any other name in `system.`
//!   is `EOPNOTSUPP`, and is not listed even if it is on disk.
//! * `trusted.` names are listed only for root with `CAP_SYS_ADMIN`.
//! * A namespace that Linux does not know is `EOPNOTSUPP` (`ondisk::xattr`).

use std::io::Read;

use base::ObjectId;
use cenote::files::{Caller, SetAttrs};
use fuse::{Errno, Request};

use super::WAIT;
use super::write::stale;
use super::zfs::{FsResult, ZfsMount};

/// Attributes that hold POSIX ACLs.
pub(super) const ACL_NAMES: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];
const SYSTEM: &[u8] = b"system.";
const TRUSTED: &[u8] = b"trusted.";
const S_ISGID: u32 = 0o2000;
const CAP_SYS_ADMIN: u64 = 1 << 21;
/// Bytes of `/proc/PID/status` that are read.
const STATUS_MAX: u64 = 1 << 20;

/// `/proc/PID/status` of a process.
pub(super) fn status_of(pid: u32) -> Option<String> {
    let mut text = String::new();
    let file = std::fs::File::open(format!("/proc/{pid}/status")).ok()?;
    file.take(STATUS_MAX).read_to_string(&mut text).ok()?;
    Some(text)
}

/// Whether the caller is root with `CAP_SYS_ADMIN`. The user id counts, too, because any
/// process has that capability in a user namespace of its own. If `/proc` does not show the
/// process, its user id alone decides.
fn is_admin(req: &Request) -> bool {
    if req.uid != 0 {
        return false;
    }
    let Some(status) = (req.pid != 0).then(|| status_of(req.pid)).flatten() else { return true };
    let line = status.lines().find_map(|l| l.strip_prefix("CapEff:"));
    let caps = line.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    caps.is_none_or(|caps| caps & CAP_SYS_ADMIN != 0)
}

impl ZfsMount {
    /// Whether attributes with this name can exist here.
    pub(super) fn check_name(&self, name: &[u8]) -> FsResult<()> {
        let there = !name.starts_with(SYSTEM) || self.has_acls() && ACL_NAMES.contains(&name);
        if there { Ok(()) } else { Err(Errno::EOPNOTSUPP) }
    }

    /// The names that the caller may see, each with a NUL behind it.
    pub(super) fn listed_names(&self, req: &Request, all: Vec<Vec<u8>>) -> Vec<u8> {
        let mut admin = None;
        let mut names = Vec::new();
        for name in all {
            let is_shown = match name.starts_with(TRUSTED) {
                true => *admin.get_or_insert_with(|| is_admin(req)),
                false => self.check_name(&name).is_ok(),
            };
            if is_shown {
                names.extend_from_slice(&name);
                names.push(0);
            }
        }
        names
    }

    /// Removes a file's set-group-id bit.
    pub(super) fn drop_sgid(&self, by: &Caller, id: ObjectId) -> FsResult<()> {
        let now = self.fs().attrs(id, WAIT).map_err(stale)?;
        if now.mode & S_ISGID != 0 {
            let mode = Some(now.mode & !S_ISGID & 0o7777);
            let set = SetAttrs { mode, ..SetAttrs::default() };
            self.fs().set_attrs(by, id, &set).map_err(stale)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn administrators_are_root_with_the_capability() {
        let of = |uid, pid| {
            let mut req = Request::default();
            (req.uid, req.pid) = (uid, pid);
            is_admin(&req)
        };
        assert!(!of(1000, std::process::id()) && !of(1000, 0));
        assert!(of(0, 0));
        let status = status_of(std::process::id()).unwrap();
        let line = status.lines().find(|l| l.starts_with("CapEff:")).unwrap();
        let has = u64::from_str_radix(line[7..].trim(), 16).unwrap() & CAP_SYS_ADMIN != 0;
        assert_eq!(of(0, std::process::id()), has);
    }
}
