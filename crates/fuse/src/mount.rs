//! Mounting and unmounting.
//!
//! # Theory
//! Root mounts by itself: it opens `/dev/fuse` and names the descriptor in the
//! mount's options. Anyone else asks `fusermount3`, which is set-user-id,
//! checks that the caller owns the mount point, mounts, and passes the
//! descriptor back over a socket.

use std::fmt::Write as _;
use std::io::{IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use base::rt::Mutex;
use base::{Error, ErrorKind, Result};
use rustix::fs::CWD;
use rustix::mount::{MountFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags};
use rustix::net::{AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use rustix::net::{SocketFlags, SocketType};

use crate::holders::{Holder, holders};
use crate::mountinfo::top_at;
use crate::transport::open_device;

const HELPER: &str = "fusermount3";
/// Bytes of the helper's complaints that are kept.
const COMPLAINT_MAX: u64 = 4096;

/// How a file system is mounted.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// What is mounted, as shown by `mount(8)`: a dataset's name.
    pub fsname: String,
    /// The type shown is `fuse.` and this; empty: plain `fuse`.
    pub subtype: String,
    /// Read-only.
    pub read_only: bool,
    /// Ignore set-user-id bits. Always so for an ordinary user.
    pub nosuid: bool,
    /// Ignore device files. Always so for an ordinary user.
    pub nodev: bool,
    /// Nothing can be executed.
    pub noexec: bool,
    /// Access times are not updated.
    pub noatime: bool,
    /// Other users may use it. An ordinary user needs `user_allow_other` in
    /// `/etc/fuse.conf` for that.
    pub allow_other: bool,
    /// The kernel checks permissions.
    pub default_permissions: bool,
    /// Most bytes in one read; `None`: as negotiated.
    pub max_read: Option<u32>,
    /// Use `fusermount3` even as root.
    pub use_helper: bool,
}

impl Default for MountOptions {
    fn default() -> MountOptions {
        MountOptions {
            fsname: "cenote".to_owned(),
            subtype: "zfs".to_owned(),
            read_only: false,
            nosuid: false,
            nodev: false,
            noexec: false,
            noatime: false,
            allow_other: false,
            default_permissions: true,
            max_read: None,
            use_helper: false,
        }
    }
}

/// How a file system is unmounted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnmountOptions {
    /// Detach it now, end it when its last user is gone.
    pub lazy: bool,
    /// Abort what is under way: the mount is dead afterwards, even if it stays
    /// because it is in use. An ordinary user can do so to a session's own mount,
    /// where fusectl is mounted.
    pub force: bool,
}

/// A mount made by this process.
#[derive(Debug)]
pub(crate) struct Mount {
    path: Mutex<PathBuf>,
    device: Option<String>,
}

/// A mounted file system that shows nowhere in this namespace: it lives as long as this
/// does, and can be shown again.
#[derive(Debug)]
pub struct Kept(OwnedFd);

impl Mount {
    /// Mounts at `point` and returns the device descriptor to serve it with.
    pub(crate) fn make(point: &Path, options: &MountOptions) -> Result<(Mount, OwnedFd)> {
        let path = std::fs::canonicalize(point).map_err(|e| {
            let stale = e.raw_os_error() == Some(rustix::io::Errno::NOTCONN.raw_os_error());
            let message = if stale {
                "a dead file system is mounted here; unmount it first (umount -l)"
            } else {
                "cannot use the mount point"
            };
            Error::io(message, e).on_path(point.display().to_string())
        })?;
        if !path.is_dir() {
            return Err(Error::new(ErrorKind::NotDir, "the mount point is not a directory")
                .on_path(path.display().to_string()));
        }
        crate::descriptors::check_reserve()?;
        let root = rustix::process::geteuid().is_root();
        let fd = if root && !options.use_helper {
            mount_directly(&path, options)?
        } else {
            mount_with_helper(&path, options)?
        };
        let device = device_at(&path);
        Ok((Mount { path: Mutex::new(path), device }, fd))
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.path.lock().clone()
    }

    /// `major:minor`, if the table of mounts told it.
    pub(crate) fn device(&self) -> Option<&str> {
        self.device.as_deref()
    }

    /// That it is still mounted, and on top.
    fn check_mounted(&self) -> Result<()> {
        // A table that cannot be read says nothing of the mount.
        let path = self.path();
        if self.device.is_some() && top_at(&path)?.map(|m| m.device) == self.device {
            return Ok(());
        }
        Err(Error::not_found("not mounted (or hidden under another mount)")
            .on_path(path.display().to_string()))
    }

    /// Whether it is still mounted, and on top; a table that cannot be read says no.
    pub(crate) fn is_mounted(&self) -> bool {
        self.check_mounted().is_ok()
    }

    /// Processes in whose mount namespaces it shows, this one's aside.
    pub(crate) fn holders(&self) -> Vec<Holder> {
        self.device.as_deref().map(holders).unwrap_or_default()
    }

    /// What can be shown again once it is unmounted. Only root can, from Linux 5.2 on.
    pub(crate) fn keep(&self) -> Option<Kept> {
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        if !self.is_mounted() {
            return None;
        }
        rustix::mount::open_tree(CWD, self.path(), flags).ok().map(Kept)
    }

    /// Shows at `point` what was kept of this mount.
    pub(crate) fn put_back(&self, kept: &Kept, point: &Path) -> Result<()> {
        let place = || point.display().to_string();
        let path = std::fs::canonicalize(point)
            .map_err(|e| Error::io("cannot use the mount point", e).on_path(place()))?;
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        rustix::mount::move_mount(&kept.0, "", CWD, &path, flags)
            .map_err(|e| Error::io("cannot mount", e.into()).on_path(place()))?;
        *self.path.lock() = path;
        Ok(())
    }

    /// Unmounts it, unless it is gone already.
    pub(crate) fn unmount(&self, options: UnmountOptions) -> Result<()> {
        self.check_mounted()?;
        if options.force && !rustix::process::geteuid().is_root() {
            self.abort();
        }
        unmount(&self.path(), options)
    }

    /// Changes the flags of the mount; the rest of the options stays. Only root can.
    pub(crate) fn remount(&self, options: &MountOptions) -> Result<()> {
        self.check_mounted()?;
        rustix::mount::mount_remount(self.path(), flags(options), "").map_err(|e| {
            Error::io("cannot remount", e.into()).on_path(self.path().display().to_string())
        })
    }

    /// Where else it shows in this process's name space: bound, or under another mount.
    pub(crate) fn elsewhere(&self) -> Vec<PathBuf> {
        let all = crate::mountinfo::fuse_mounts().unwrap_or_default();
        let same = all.into_iter().filter(|m| Some(&m.device) == self.device.as_ref());
        same.map(|m| m.path).collect()
    }

    /// Ends the connection: wherever it shows, what is open fails from now on.
    pub(crate) fn cut(&self) {
        for path in self.elsewhere() {
            let _gone = unmount(&path, UnmountOptions { lazy: true, force: true });
        }
        self.abort();
    }

    /// Aborts the connection through fusectl, whose files belong to the mount's
    /// owner: `fusermount3` has no such option.
    fn abort(&self) {
        let number = self.device.as_deref().and_then(|d| d.strip_prefix("0:"));
        let Some(number) = number else { return };
        let path = format!("/sys/fs/fuse/connections/{number}/abort");
        if std::fs::write(path, "1").is_err() && rustix::process::geteuid().is_root() {
            abort_as_root(number);
        }
    }
}

/// The device number, `major:minor`, of what is mounted at a path, without asking whatever
/// serves it; the table of mounts is long where there are thousands.
fn device_at(path: &Path) -> Option<String> {
    use rustix::fs::{AtFlags, StatxFlags};
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    let stat = rustix::fs::statx(rustix::fs::CWD, path, flags, StatxFlags::empty()).ok()?;
    Some(format!("{}:{}", stat.stx_dev_major, stat.stx_dev_minor))
}

/// Aborts a connection where fusectl is not mounted.
fn abort_as_root(number: &str) {
    let dir = std::env::temp_dir().join(format!("fusectl-{}-{number}", std::process::id()));
    if std::fs::create_dir(&dir).is_err() {
        return;
    }
    if rustix::mount::mount("none", &dir, "fusectl", MountFlags::NOSUID, None).is_ok() {
        let _best_effort = std::fs::write(dir.join(number).join("abort"), "1");
        let _gone = rustix::mount::unmount(&dir, UnmountFlags::DETACH);
    }
    let _gone = std::fs::remove_dir(&dir);
}

fn flags(options: &MountOptions) -> MountFlags {
    [
        (options.read_only, MountFlags::RDONLY),
        (options.nosuid, MountFlags::NOSUID),
        (options.nodev, MountFlags::NODEV),
        (options.noexec, MountFlags::NOEXEC),
        (options.noatime, MountFlags::NOATIME),
    ]
    .into_iter()
    .filter(|&(on, _)| on)
    .fold(MountFlags::empty(), |all, (_, flag)| all | flag)
}

fn mount_directly(path: &Path, options: &MountOptions) -> Result<OwnedFd> {
    let device = open_device()?;
    let mut data = format!(
        "fd={},rootmode=40000,user_id={},group_id={}",
        device.as_raw_fd(),
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
    );
    for (on, word) in [
        (options.allow_other, ",allow_other"),
        (options.default_permissions, ",default_permissions"),
    ] {
        if on {
            data.push_str(word);
        }
    }
    if let Some(max) = options.max_read {
        let _infallible = write!(data, ",max_read={max}");
    }
    let flags = flags(options);
    let kind = match options.subtype.as_str() {
        "" => "fuse".to_owned(),
        sub => format!("fuse.{sub}"),
    };
    let data = std::ffi::CString::new(data)
        .map_err(|_| Error::bug("mount options hold a NUL although they are numbers and words"))?;
    rustix::mount::mount(options.fsname.as_str(), path, kind.as_str(), flags, data.as_c_str())
        .map_err(|e| Error::io("cannot mount", e.into()).on_path(path.display().to_string()))?;
    Ok(device)
}

/// The helper's option string; commas and backslashes in names are escaped.
fn helper_options(options: &MountOptions) -> String {
    let escape = |text: &str| text.replace('\\', "\\\\").replace(',', "\\,");
    let mut out = format!("fsname={}", escape(&options.fsname));
    if !options.subtype.is_empty() {
        let _infallible = write!(out, ",subtype={}", escape(&options.subtype));
    }
    let words = [
        (options.read_only, "ro"),
        (options.nosuid, "nosuid"),
        (options.nodev, "nodev"),
        (options.noexec, "noexec"),
        (options.noatime, "noatime"),
        (options.allow_other, "allow_other"),
        (options.default_permissions, "default_permissions"),
    ];
    for (_, word) in words.into_iter().filter(|&(on, _)| on) {
        out.push(',');
        out.push_str(word);
    }
    if let Some(max) = options.max_read {
        let _infallible = write!(out, ",max_read={max}");
    }
    out
}

fn mount_with_helper(path: &Path, options: &MountOptions) -> Result<OwnedFd> {
    let (ours, theirs) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(|e| Error::io("cannot make a socket for fusermount3", e.into()))?;
    // The helper finds the socket as its standard input: that needs no
    // descriptor that other children could inherit.
    let mut child = Command::new(HELPER)
        .arg("-o")
        .arg(helper_options(options))
        .arg("--")
        .arg(path)
        .env("_FUSE_COMMFD", "0")
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| Error::io("cannot run fusermount3; is fuse3 installed?", e))?;
    let received = receive_fd(&ours);
    let mut complaint = String::new();
    if let Some(stderr) = child.stderr.take() {
        let _partial = stderr.take(COMPLAINT_MAX).read_to_string(&mut complaint);
    }
    let status = child.wait().map_err(|e| Error::io("cannot wait for fusermount3", e))?;
    match received {
        Ok(Some(fd)) if status.success() => Ok(fd),
        Err(e) if status.success() => Err(e),
        _ => Err(Error::new(ErrorKind::Permission, "fusermount3 refused")
            .caused_by(std::io::Error::other(complaint.trim().to_owned()))
            .on_path(path.display().to_string())),
    }
}

/// A descriptor sent over `socket`; `None` if it was closed without one.
fn receive_fd(socket: &OwnedFd) -> Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(
            socket.as_fd(),
            &mut [IoSliceMut::new(&mut byte)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        )
    })
    .map_err(|e| Error::io("cannot receive from fusermount3", e.into()))?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut fds) = message {
            return Ok(fds.next());
        }
    }
    Ok(None)
}

/// Unmounts what is on top at `path`: directly as root, else with `fusermount3`.
///
/// # Errors
/// `Busy` when it is in use (and neither lazy nor forced), others as they come.
pub fn unmount(path: &Path, options: UnmountOptions) -> Result<()> {
    if rustix::process::geteuid().is_root() {
        let mut flags = UnmountFlags::NOFOLLOW;
        flags.set(UnmountFlags::DETACH, options.lazy);
        flags.set(UnmountFlags::FORCE, options.force);
        return rustix::mount::unmount(path, flags).map_err(|e| {
            let message = if e == rustix::io::Errno::BUSY {
                "cannot unmount: in use (lsof shows by whom)"
            } else {
                "cannot unmount"
            };
            Error::io(message, e.into()).on_path(path.display().to_string())
        });
    }
    let output = Command::new(HELPER)
        .arg("-u")
        .args(options.lazy.then_some("-z"))
        .arg("--")
        .arg(path)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .output()
        .map_err(|e| Error::io("cannot run fusermount3", e))?;
    if output.status.success() {
        return Ok(());
    }
    let complaint = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let busy = complaint.contains("busy");
    Err(Error::new(if busy { ErrorKind::Busy } else { ErrorKind::Io }, "cannot unmount")
        .caused_by(std::io::Error::other(complaint))
        .on_path(path.display().to_string()))
}

/// Raises the kernel's own read-ahead for a mount, as far as sysfs lets us.
pub(crate) fn set_readahead(device: &str, bytes: u32) {
    // Not allowed in many containers: the mount works without.
    let _best_effort = std::fs::write(
        format!("/sys/class/bdi/{device}/read_ahead_kb"),
        format!("{}", bytes / 1024),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn helper_options_escape_names() {
        let options = MountOptions {
            fsname: "tank/a,b\\c".into(),
            read_only: true,
            max_read: Some(131_072),
            ..MountOptions::default()
        };
        assert_eq!(
            helper_options(&options),
            "fsname=tank/a\\,b\\\\c,subtype=zfs,ro,default_permissions,max_read=131072"
        );
    }
}
