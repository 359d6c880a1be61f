//! The project of a file, as its caller reads and sets it by ioctl.
//!
//! # Theory
//! The requests are Linux's `FS_IOC_FSGETXATTR` and `FS_IOC_FSSETXATTR`, which every file
//! system with projects has; [`super::flags`] serves them. The kernel checks who may set them.

use std::os::fd::AsFd;

use super::flags::{FSX_SIZE, GET_FSX, SET_FSX};

/// The flag by which new files get their directory's project (`FS_XFLAG_PROJINHERIT`).
const INHERIT: u32 = 0x200;

/// The project of a file or directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileProject {
    /// Its id.
    pub id: u32,
    /// New files in the directory get the same project.
    pub inherits: bool,
}

fn word(bytes: &[u8; FSX_SIZE], at: usize) -> u32 {
    let found = bytes.get(at..).and_then(|rest| rest.first_chunk::<4>());
    found.map_or(0, |b| u32::from_ne_bytes(*b))
}

/// The project of an open file or directory.
///
/// # Errors
/// The error number of the file system's refusal.
pub fn project_of(file: impl AsFd) -> std::io::Result<FileProject> {
    let mut argument = [0; FSX_SIZE];
    fuse::control_one_way(file, GET_FSX, &mut argument)?;
    Ok(FileProject { id: word(&argument, 12), inherits: word(&argument, 0) & INHERIT != 0 })
}

/// Sets the project of an open file or directory; other flags stay.
///
/// # Errors
/// The error number of the file system's refusal.
pub fn set_project(file: impl AsFd, project: FileProject) -> std::io::Result<()> {
    let file = file.as_fd();
    let mut argument = [0; FSX_SIZE];
    fuse::control_one_way(file, GET_FSX, &mut argument)?;
    let flags = word(&argument, 0) & !INHERIT | if project.inherits { INHERIT } else { 0 };
    argument[..4].copy_from_slice(&flags.to_ne_bytes());
    argument[12..16].copy_from_slice(&project.id.to_ne_bytes());
    fuse::control_one_way(file, SET_FSX, &mut argument)
}
