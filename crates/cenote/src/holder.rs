//! The process that has a pool's devices open, found by the system's table of locks.

use std::collections::BTreeSet;
use std::io::Read;
use std::os::unix::fs::MetadataExt;

/// Bytes of `/proc/locks`, and of a process's command, that are read.
const LOCKS_MAX: u64 = 4 << 20;
const COMMAND_MAX: u64 = 4096;
/// Characters of a command that are printed.
const SHOWN_MAX: usize = 80;

fn text(path: &str, max: u64) -> Option<String> {
    let mut text = Vec::new();
    std::fs::File::open(path).ok()?.take(max).read_to_end(&mut text).ok()?;
    Some(String::from_utf8_lossy(&text).into_owned())
}

/// The processes that have a lock on one of these files (major, minor, inode). A line of
/// `/proc/locks` is `1: FLOCK  ADVISORY  WRITE 1234 08:01:5678 0 EOF`, device numbers in
/// hexadecimal.
fn holders(table: &str, files: &BTreeSet<(u32, u32, u64)>) -> BTreeSet<u32> {
    let of = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().filter(|w| *w != "->").collect();
        let [_, "FLOCK", _, _, pid, file, ..] = words[..] else { return None };
        let mut parts = file.split(':');
        let major = u32::from_str_radix(parts.next()?, 16).ok()?;
        let minor = u32::from_str_radix(parts.next()?, 16).ok()?;
        let inode = parts.next()?.parse().ok()?;
        files.contains(&(major, minor, inode)).then(|| pid.parse().ok()).flatten()
    };
    table.lines().filter(|line| !line.contains("->")).filter_map(of).collect()
}

/// A description of a process for users.
fn process(pid: u32) -> String {
    let command = text(&format!("/proc/{pid}/cmdline"), COMMAND_MAX).unwrap_or_default();
    let command: String = command
        .trim_end_matches('\0')
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(SHOWN_MAX)
        .collect();
    match command.is_empty() {
        true => format!("process {pid}"),
        false => format!("process {pid} ({command})"),
    }
}

/// The other process that has a pool open, if any.
pub(crate) fn of(pool: &spa::FoundPool) -> Option<String> {
    let leaves = pool.tops.values().flat_map(|top| top.leaves());
    let places = leaves.filter_map(|leaf| pool.locations.get(&leaf.guid)).flatten();
    let files = places.filter_map(|place| std::fs::metadata(&place.path).ok()).map(|meta| {
        let device = meta.dev();
        (rustix::fs::major(device), rustix::fs::minor(device), meta.ino())
    });
    let files: BTreeSet<_> = files.collect();
    let table = text("/proc/locks", LOCKS_MAX)?;
    let all: Vec<String> = holders(&table, &files)
        .into_iter()
        .filter(|pid| *pid != std::process::id())
        .map(|pid| match pid {
            // The process is invisible to this one: in another container.
            0 => "a process of another container".to_owned(),
            pid => process(pid),
        })
        .collect();
    (!all.is_empty()).then(|| format!("it is in use by {}", all.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_locks() {
        let table = "1: FLOCK  ADVISORY  WRITE 1234 fe:00:5678 0 EOF\n\
                     1: -> FLOCK  ADVISORY  WRITE 99 fe:00:5678 0 EOF\n\
                     2: POSIX  ADVISORY  READ 7 fe:00:5678 128 128\n\
                     3: FLOCK  ADVISORY  READ 8 fe:00:5679 0 EOF\nnonsense\n";
        let files = BTreeSet::from([(0xfe, 0, 5678)]);
        assert_eq!(holders(table, &files), BTreeSet::from([1234]));
        assert!(holders(table, &BTreeSet::new()).is_empty());
        assert!(process(std::process::id()).contains(" ("));
    }
}
