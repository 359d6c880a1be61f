//! Stories of POSIX through the mount: each has a daemon, a pool and mounts of its own,
//! and ends with OpenZFS's `zdb` looking at every block.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, clippy::unwrap_used, clippy::panic)]

#[path = "../common/mod.rs"]
mod common;

mod content;
mod cuts;
mod guards;
mod limits;
mod marks;
mod names;
mod outage;
mod rewrite;
mod wild;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Said, Sandbox, can_mount, judge, new_pool, said};

/// A mounted pool `tank`.
struct World {
    s: Sandbox,
}

impl World {
    /// A pool of `mib` MiB, mounted; `None` where nothing can be mounted.
    fn new(name: &str, mib: u64, options: &[&str]) -> Option<World> {
        if !can_mount(name) {
            return None;
        }
        let s = Sandbox::new(&format!("posix-{name}"));
        new_pool(&s, mib, options);
        Some(World { s })
    }

    /// A path in the mount.
    fn path(&self, name: &str) -> PathBuf {
        self.s.path("mnt").join(name)
    }

    fn zfs(&self, args: &[&str]) -> String {
        self.s.ok(&[&["zfs"], args].concat())
    }

    /// Unmounts and mounts the root file system: what the kernel remembers is gone.
    fn again(&self) {
        self.zfs(&["unmount", "tank"]);
        self.zfs(&["mount", "tank"]);
    }

    /// Exported, and judged.
    fn end(self) {
        judge(&self.s);
    }
}

/// The error number of what must fail.
fn errno<T>(result: std::io::Result<T>) -> i32 {
    match result {
        Ok(_) => panic!("it did not fail"),
        Err(e) => e.raw_os_error().unwrap(),
    }
}

/// As [`errno`], of a system call.
fn refused<T>(result: rustix::io::Result<T>) -> rustix::io::Errno {
    result.err().expect("it did not fail")
}

/// Whether a program is there; says so if not.
fn has(program: &str) -> bool {
    use testkit::Need;
    let need = if program == "fusermount3" { Need::Fuse } else { Need::Programs };
    testkit::has_program(need, program, "a part of a test")
}

/// Runs a program, as `user` if there is one.
fn run(program: &str, args: &[&str], user: Option<u32>) -> Said {
    use std::os::unix::process::CommandExt;
    let mut command = Command::new(program);
    command.args(args).current_dir("/");
    if let Some(id) = user {
        command.uid(id).gid(id);
    }
    said(&command.output().unwrap())
}

/// Bytes that differ everywhere and do not compress.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = testkit::Rng::new(seed);
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        out.extend_from_slice(&rng.number().to_le_bytes());
    }
    out.truncate(len);
    out
}

/// Writes a whole file and sees that it is on disk.
fn put(path: &Path, bytes: &[u8]) {
    let mut file = std::fs::File::create(path).unwrap();
    file.write_all(bytes).unwrap();
    file.sync_all().unwrap();
}
