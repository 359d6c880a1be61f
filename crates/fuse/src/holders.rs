//! Processes in whose mount namespaces a mount shows.
//!
//! # Theory
//! A mount namespace that is made while a file system is mounted gets a copy of the mount.
//! Where mounts do not propagate between the two (containers, services with mounts of their
//! own), unmounting in one leaves the copy in the other, and the file system alive.
//! `/proc/PID/mountinfo` lists what a process's namespace shows, to callers that may trace
//! the process: root sees all namespaces, an ordinary user those of own processes.

use std::collections::HashSet;
use std::path::PathBuf;

use crate::mountinfo::parse_table;

/// A process whose mount namespace shows a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its number.
    pub pid: u32,
    /// Its name, as `/proc/PID/comm` has it.
    pub command: String,
    /// Where the mount shows there.
    pub path: PathBuf,
}

/// One process for each mount namespace, but that of this process, which shows the FUSE mount
/// with a device number (`major:minor`); of several processes the oldest by number.
pub(crate) fn holders(device: &str) -> Vec<Holder> {
    let namespace = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
    let mut seen: HashSet<PathBuf> = namespace("self").into_iter().collect();
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let mut pids: Vec<u32> =
        entries.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    let mut found = Vec::new();
    for pid in pids {
        // A process that ended meanwhile holds nothing.
        let Some(own) = namespace(&pid.to_string()) else { continue };
        if !seen.insert(own) {
            continue;
        }
        let Ok(table) = std::fs::read(format!("/proc/{pid}/mountinfo")) else { continue };
        let Some(mount) = parse_table(&table).into_iter().find(|m| m.device == device) else {
            continue;
        };
        let command = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let command = command.trim_end().to_owned();
        found.push(Holder { pid, command, path: mount.path });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_namespace_is_no_holder() {
        let own = crate::fuse_mounts().unwrap_or_default();
        let me = std::process::id();
        for mount in own {
            assert!(holders(&mount.device).iter().all(|h| h.pid != me));
        }
        assert_eq!(holders("no:device"), Vec::new());
    }
}
