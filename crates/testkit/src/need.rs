//! Checks that need a tool or a right, and the list of those that must not be left out.
//!
//! A check whose need is absent prints `SKIPPED:` and passes. `CENOTE_REQUIRE` names needs,
//! separated by commas, that the machine is known to satisfy (`CENOTE_REQUIRE=zdb,fuse,root`):
//! then the check fails instead. Crates below this one include this file by its path; it
//! uses the standard library alone.

#![allow(dead_code, unreachable_pub, reason = "each test uses some of the needs")]
#![allow(clippy::panic, reason = "a test fails by panicking")]

use std::path::PathBuf;

/// What a check needs of the machine it runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// OpenZFS's `zdb`.
    Zdb,
    /// OpenZFS's `ztest` and `raidz_test`, from the package of its tests.
    Ztest,
    /// `/dev/fuse`, and `fusermount3` where an ordinary user mounts.
    Fuse,
    /// FUSE over io_uring, which a parameter of the kernel's module allows.
    Uring,
    /// The tests run as root.
    Root,
    /// The tests run as an ordinary user.
    User,
    /// Loop devices.
    Loop,
    /// Clients of network block devices: `nbdinfo`, `nbdcopy`, `qemu-img`, `fio` with its
    /// engine `nbd`; and programs that make and check file systems.
    Nbd,
    /// zfs-fuse runs, and `CENOTE_ZFS_FUSE` names the directory of its commands.
    Peers,
    /// The golden pools that are not in the repository (`CENOTE_POOLS`, `../shared`).
    Shared,
    /// A directory of golden pools that are unpacked (`CENOTE_POOLS`), for tests of crates
    /// that do not unpack.
    Unpacked,
    /// A temporary file system that holds large extended attributes (`/dev/shm`).
    Xattrs,
    /// Common programs: shells, `setfacl`, `sqlite3`, `unshare` ...
    Programs,
}

impl Need {
    /// Every need, and its word in `CENOTE_REQUIRE`.
    pub const ALL: [(&'static str, Need); 13] = [
        ("zdb", Need::Zdb),
        ("ztest", Need::Ztest),
        ("fuse", Need::Fuse),
        ("uring", Need::Uring),
        ("root", Need::Root),
        ("user", Need::User),
        ("loop", Need::Loop),
        ("nbd", Need::Nbd),
        ("peers", Need::Peers),
        ("shared", Need::Shared),
        ("unpacked", Need::Unpacked),
        ("xattrs", Need::Xattrs),
        ("programs", Need::Programs),
    ];

    /// Its word in `CENOTE_REQUIRE`.
    pub fn word(self) -> &'static str {
        Need::ALL.iter().find(|(_, need)| *need == self).map_or("", |(word, _)| word)
    }
}

/// The needs that a list names.
///
/// # Errors
/// A message about the first unknown word.
pub fn required(list: &str) -> Result<Vec<Need>, String> {
    let words = list.split(',').map(str::trim).filter(|w| !w.is_empty());
    let need = |word: &str| {
        let found = Need::ALL.iter().find(|(name, _)| *name == word);
        let known = || Need::ALL.map(|(name, _)| name).join(", ");
        found
            .map(|(_, need)| *need)
            .ok_or_else(|| format!("CENOTE_REQUIRE: '{word}' is no need; known needs: {}", known()))
    };
    words.map(need).collect()
}

/// Prints that a check is left out, and why.
///
/// # Panics
/// If `CENOTE_REQUIRE` lists the need, or has an unknown word.
pub fn skip(need: Need, what: &str) {
    let list = std::env::var("CENOTE_REQUIRE").unwrap_or_default();
    match required(&list) {
        Ok(needs) if !needs.contains(&need) => eprintln!("SKIPPED: {what}"),
        Ok(_) => panic!("CENOTE_REQUIRE lists '{}', but {what}", need.word()),
        Err(e) => panic!("{e}"),
    }
}

/// A program in `PATH`.
pub fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file())
}

/// Whether a program is installed; [`skip`]s `what` if not.
pub fn has_program(need: Need, name: &str, what: &str) -> bool {
    let found = program(name).is_some();
    if !found {
        skip(need, &format!("{what}: {name} is not installed"));
    }
    found
}
