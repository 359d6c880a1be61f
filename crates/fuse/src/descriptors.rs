//! File descriptors of the process: how many there may be, and which are kept in reserve.
//!
//! # Theory
//! A mount holds a descriptor for as long as it lasts. Unmounting one, exporting its pool and
//! answering the command that asks for it need a few for a moment: the table of mounts, a
//! socket, the helper's pipes, the files that list pools and mounts. So a mount is refused
//! while [`RESERVE`] descriptors are left, and what is mounted can always be undone.

use base::{Error, ErrorKind, Result};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors that no mount takes.
pub const RESERVE: usize = 48;

/// Raises the soft limit on open files to the hard one, and returns what holds then; `None`
/// is no limit.
pub fn raise_limit() -> Option<u64> {
    let now = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: now.maximum, maximum: now.maximum };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => now.maximum,
        Err(_) => now.current,
    }
}

/// Whether a mount may be made: [`RESERVE`] descriptors would be left.
///
/// # Errors
/// [`ErrorKind::Limit`] when they would not.
pub(crate) fn check_reserve() -> Result<()> {
    // Held together, all are free at once.
    let held: rustix::io::Result<Vec<_>> =
        (0..RESERVE).map(|_| rustix::io::fcntl_dupfd_cloexec(std::io::stderr(), 0)).collect();
    match held {
        Err(Errno::MFILE) => {
            let limit = getrlimit(Resource::Nofile).current;
            let limit = limit.map_or_else(|| "unlimited".to_owned(), |n| n.to_string());
            let text = format!(
                "too many open files: the limit of {limit} descriptors (ulimit -n) leaves no room \
                 for another mount"
            );
            Err(Error::new(ErrorKind::Limit, text))
        }
        // Where standard error is closed, opening the device tells.
        _ => Ok(()),
    }
}
