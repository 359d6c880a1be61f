//! States that the code holds to be impossible: loud in debug builds, survivable in release
//! builds.
//!
//! [`bug!`](crate::bug!) stands in every branch that an invariant excludes. In debug builds,
//! and so in every test, it panics. In release builds it counts, reports each place in the
//! code once, and makes an [`Error`] of kind `Bug`, so that a request fails and the daemon
//! lives. It is never for what a disk or a caller can cause: that is `Corrupt`, `Invalid` or
//! another kind.
//!
//! **Invariant:** nothing here takes a lock that the engine takes, so the macro can be used
//! anywhere.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crate::Error;

/// How often [`bug!`](crate::bug!) was reached in this process (kstat `cenote_bugs`).
static COUNT: AtomicU64 = AtomicU64::new(0);
static REPORT: OnceLock<fn(&str)> = OnceLock::new();

/// A place in the code with a [`bug!`](crate::bug!).
#[derive(Debug)]
pub struct BugSite {
    file: &'static str,
    line: u32,
    reported: AtomicBool,
}

impl BugSite {
    /// The macro's own.
    pub const fn new(file: &'static str, line: u32) -> BugSite {
        BugSite { file, line, reported: AtomicBool::new(false) }
    }

    /// Counts, reports the first time, and makes the error.
    ///
    /// # Panics
    /// Always, in debug builds.
    #[cold]
    #[expect(clippy::panic, reason = "debug builds alone")]
    pub fn reached(&self, what: fmt::Arguments<'_>) -> Error {
        COUNT.fetch_add(1, Relaxed);
        let text = format!("{what} ({}:{})", self.file, self.line);
        if cfg!(debug_assertions) && !std::thread::panicking() {
            panic!("bug: {text}");
        }
        if !self.reported.swap(true, Relaxed)
            && let Some(report) = REPORT.get()
        {
            report(&format!("bug: {text}; please report it"));
        }
        Error::bug(text)
    }
}

/// Sets the function that prints or logs a bug, once for each place in the code; the first
/// call counts.
pub fn report_with(report: fn(&str)) {
    let _first = REPORT.set(report);
}

/// How many bugs were met since the process began.
pub fn count() -> u64 {
    COUNT.load(Relaxed)
}

/// For tests: whether a call meets a bug, which panics in debug builds and is an error of
/// kind `Bug` in release builds.
pub fn is_met<T>(call: impl FnOnce() -> crate::Result<T>) -> bool {
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)) {
        Ok(result) => result.is_err_and(|e| e.kind() == crate::ErrorKind::Bug),
        Err(_) => cfg!(debug_assertions),
    }
}

/// An [`Error`] for a state that an invariant excludes; takes the arguments of
/// `format!`. See [`mod@crate::bug`].
#[macro_export]
macro_rules! bug {
    ($($what:tt)+) => {{
        static SITE: $crate::bug::BugSite = $crate::bug::BugSite::new(file!(), line!());
        SITE.reached(format_args!($($what)+))
    }};
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bug_panics_in_debug_builds_and_is_counted() {
        let before = count();
        let met = std::panic::catch_unwind(|| crate::bug!("{} of {}", 3, 2));
        assert_eq!(count(), before + 1);
        assert!(is_met(|| Err::<(), _>(crate::bug!("again"))) && !is_met(|| Ok(())));
        let text = met.unwrap_err();
        let text = text.downcast_ref::<String>().unwrap();
        assert!(text.starts_with("bug: 3 of 2 (") && text.contains("bug.rs:"), "{text}");
    }
}
