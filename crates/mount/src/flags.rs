//! A file's flags and project for `lsattr`, `chattr` and `xfs_io`, by ioctl.
//!
//! # Theory
//! The kernel turns `FS_IOC_GETFLAGS`, `FS_IOC_SETFLAGS`, `FS_IOC_FSGETXATTR` and
//! `FS_IOC_FSSETXATTR` of a file or directory into ioctl requests of fixed sizes. Four flags
//! exist in ZFS (chapter 06 §5): immutable, append only, no dump, inherit the project. Others
//! are refused; one of them is `noatime`, which is a property in ZFS.
//!
//! # Permissions
//! Since Linux 5.13 the kernel checks permissions before it sends the request: the caller owns
//! the file or has `CAP_FOWNER`, and has `CAP_LINUX_IMMUTABLE` if one of the first two flags
//! changes. A kernel that may be older (protocol before 7.34) is not trusted with that: only
//! the owner or root may change flags and project, and only root the first two flags. The
//! caller's capabilities are not read from `/proc`, because its process id may be another
//! process's by then.

use cenote::files::{Attrs, Caller, SetAttrs};
use cenote::files::{ZFS_APPENDONLY, ZFS_IMMUTABLE, ZFS_NODUMP, ZFS_PROJINHERIT};
use fuse::{Data, Errno, IoctlArgs, Request};

use super::io;
use super::node::NodeTarget;
use super::write::stale;
use super::zfs::{FsResult, ZfsMount};

/// The ioctl commands, of `linux/fs.h`.
const GET_FLAGS: u32 = 0x8008_6601;
const SET_FLAGS: u32 = 0x4008_6602;
pub(super) const GET_FSX: u32 = 0x801c_581f;
pub(super) const SET_FSX: u32 = 0x401c_5820;
/// Bytes of `struct fsxattr`.
pub(super) const FSX_SIZE: usize = 28;
/// Each flag in ZFS's, `FS_*_FL`'s and `FS_XFLAG_*`'s encoding.
const FLAGS: [(u64, u32, u32); 4] = [
    (ZFS_IMMUTABLE, 0x10, 0x8),
    (ZFS_APPENDONLY, 0x20, 0x10),
    (ZFS_NODUMP, 0x40, 0x80),
    (ZFS_PROJINHERIT, 0x2000_0000, 0x200),
];

/// Selects one of the kernel's two encodings of flags.
type FlagEncoding = fn(&(u64, u32, u32)) -> u32;

fn shown(pflags: u64, form: FlagEncoding) -> u32 {
    FLAGS.iter().filter(|f| pflags & f.0 != 0).fold(0, |all, f| all | form(f))
}

/// ZFS's flags after a request that sets these of the four and clears the others.
fn updated_flags(old: u64, requested: u32, form: FlagEncoding) -> FsResult<u64> {
    let known = FLAGS.iter().fold(0, |all, f| all | form(f));
    if requested & !known != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let ours = FLAGS.iter().fold(0, |all, f| all | f.0);
    let on = FLAGS.iter().filter(|f| requested & form(f) != 0).fold(0, |all, f| all | f.0);
    Ok(old & !ours | on)
}

fn word(input: &[u8], at: usize) -> FsResult<u32> {
    let bytes = input.get(at..).and_then(|rest| rest.first_chunk::<4>());
    bytes.map(|b| u32::from_ne_bytes(*b)).ok_or(Errno::EINVAL)
}

impl ZfsMount {
    /// Serves an ioctl; `ENOTTY` for others than the four.
    pub(super) fn control(&self, req: &Request, args: &IoctlArgs<'_>) -> FsResult<(i32, Data)> {
        if ![GET_FLAGS, SET_FLAGS, GET_FSX, SET_FSX].contains(&args.cmd) {
            return Err(Errno::ENOTTY);
        }
        let NodeTarget::Object(space, id) = self.node(args.node)? else {
            return Err(Errno::ENOTTY);
        };
        let now = self.space(space)?.attrs(id, io(fuse::BlockingMode::Blocking)).map_err(stale)?;
        match args.cmd {
            GET_FLAGS => {
                let bytes = shown(now.pflags, |f| f.1).to_ne_bytes();
                Ok((0, Data::copy_of(&bytes)))
            }
            GET_FSX => {
                let mut out = [0; FSX_SIZE];
                out[..4].copy_from_slice(&shown(now.pflags, |f| f.2).to_ne_bytes());
                // Projects have 32 bits, but a damaged disk may have more.
                let project = u32::try_from(now.project).unwrap_or(u32::MAX);
                out[12..16].copy_from_slice(&project.to_ne_bytes());
                Ok((0, Data::copy_of(&out)))
            }
            SET_FLAGS => {
                let flags = updated_flags(now.pflags, word(args.input, 0)?, |f| f.1)?;
                self.set_flags(req, args.node, &now, flags, None)
            }
            _ => {
                let flags = updated_flags(now.pflags, word(args.input, 0)?, |f| f.2)?;
                let (extent, cow) = (word(args.input, 4)?, word(args.input, 16)?);
                if extent != 0 || cow != 0 {
                    return Err(Errno::EOPNOTSUPP);
                }
                let project = word(args.input, 12)?;
                let moved = (u64::from(project) != now.project).then_some(project);
                self.set_flags(req, args.node, &now, flags, moved)
            }
        }
    }

    fn set_flags(
        &self,
        req: &Request,
        node: u64,
        now: &Attrs,
        flags: u64,
        project: Option<u32>,
    ) -> FsResult<(i32, Data)> {
        let id = self.changeable(node)?;
        if !self.kernel_checks_flags() && req.uid != 0 && req.uid != now.uid {
            return Err(Errno::EPERM);
        }
        let privileged = self.kernel_checks_flags() || req.uid == 0;
        let (uid, gid, thread) = (req.uid, req.gid, req.pid);
        let by = Caller { uid, gid, privileged, thread, ..Caller::default() };
        let set = SetAttrs { flags: Some(flags), project, ..SetAttrs::default() };
        self.fs().set_attrs(&by, id, &set).map_err(stale)?;
        self.attrs_changed(node);
        Ok((0, Data::empty()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_mapped_both_ways_and_others_refused() {
        let other = 0x8_0000_0000;
        for form in [(|f| f.1) as FlagEncoding, |f| f.2] {
            for f in FLAGS {
                let set = updated_flags(other, form(&f), form).unwrap();
                assert_eq!(set, other | f.0);
                assert_eq!(shown(set, form), form(&f));
                assert_eq!(updated_flags(set, 0, form), Ok(other));
            }
        }
        // FS_NOATIME_FL, FS_XFLAG_NOATIME, FS_COMPR_FL.
        assert_eq!(updated_flags(0, 0x80, |f| f.1), Err(Errno::EOPNOTSUPP));
        assert_eq!(updated_flags(0, 0x40, |f| f.2), Err(Errno::EOPNOTSUPP));
        assert_eq!(updated_flags(0, 0x4, |f| f.1), Err(Errno::EOPNOTSUPP));
    }

    #[test]
    fn short_arguments_are_refused() {
        assert_eq!(word(&[1, 0, 0], 0), Err(Errno::EINVAL));
        assert_eq!(word(&[0; 12], 12), Err(Errno::EINVAL));
        assert_eq!(word(&[0, 0, 0, 0, 7, 0, 0, 0], 4), Ok(7));
    }
}
