//! Shows simulated pools to OpenZFS's zdb.

#[path = "../../../testkit/src/need.rs"]
mod need;

use std::path::Path;
use std::process::Command;

use device::sim::Image;
use need::{Need, skip};

fn is_whole(dir: &Path) -> bool {
    let out = Command::new("zdb").args(["-e", "-p"]).arg(dir).args(["-bcc", "sim"]).output();
    let Ok(out) = out else {
        skip(Need::Zdb, "zdb is not installed; crashed pools were not shown to it");
        return false;
    };
    let text =
        String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && text.contains("No leaks"), "{}: {text}", dir.display());
    true
}

/// Whether zdb finds no error in the pool on these disks; false if there is no zdb. `name` is
/// that of a directory.
pub(crate) fn finds_whole(images: &[Image], name: &str) -> bool {
    let dir = std::env::temp_dir().join(format!("cenote-sim-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    device::sim::write_files(images, &dir).unwrap();
    let done = is_whole(&dir);
    std::fs::remove_dir_all(&dir).unwrap();
    done
}
