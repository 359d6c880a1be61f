//! A temporary directory that is removed when the test ends.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A temporary directory.
pub struct Scratch(PathBuf);

impl Scratch {
    /// A new, empty directory; `name` helps to find it.
    pub fn new(name: &str) -> Scratch {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let root =
            std::env::var_os("CENOTE_TEST_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
        let dir = root.join(format!("cenote-test-{}-{n}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Scratch(dir)
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // The files of a failed test can be kept for inspection.
        if std::thread::panicking() && std::env::var_os("CENOTE_KEEP").is_some() {
            return;
        }
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
