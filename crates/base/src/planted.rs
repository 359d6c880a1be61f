//! Planted bugs: switches with which a test makes the engine wrong, to prove that it would
//! find such a bug.
//!
//! They exist only with the feature `planted-bugs`, which the tests of the workspace and the
//! simulator's tests enable. In the shipped program a switch has no size, is always off, and
//! [`AVAILABLE`] says so.

use std::sync::atomic::Ordering;
#[cfg(feature = "planted-bugs")]
use std::sync::atomic::{AtomicBool, AtomicU64};

/// Whether this build has planted bugs.
pub const AVAILABLE: bool = cfg!(feature = "planted-bugs");

/// A switch for a planted bug; off by default.
#[derive(Debug, Default)]
pub struct BugSwitch(#[cfg(feature = "planted-bugs")] AtomicBool);

/// A value that a test sets in place of the engine's own; 0 by default, which means none.
#[derive(Debug, Default)]
pub struct TestValue(#[cfg(feature = "planted-bugs")] AtomicU64);

#[cfg(feature = "planted-bugs")]
impl BugSwitch {
    /// Whether the bug is there.
    pub fn load(&self, order: Ordering) -> bool {
        self.0.load(order)
    }

    /// Plants the bug, or removes it.
    pub fn store(&self, on: bool, order: Ordering) {
        self.0.store(on, order);
    }

    /// Removes the bug; whether it was there.
    pub fn take(&self, order: Ordering) -> bool {
        self.0.swap(false, order)
    }
}

#[cfg(not(feature = "planted-bugs"))]
impl BugSwitch {
    /// Never.
    #[inline(always)]
    pub fn load(&self, _: Ordering) -> bool {
        false
    }

    /// Nothing: see [`AVAILABLE`].
    #[inline(always)]
    pub fn store(&self, _: bool, _: Ordering) {}

    /// Never.
    #[inline(always)]
    pub fn take(&self, _: Ordering) -> bool {
        false
    }
}

#[cfg(feature = "planted-bugs")]
impl TestValue {
    /// The value, or 0.
    pub fn load(&self, order: Ordering) -> u64 {
        self.0.load(order)
    }

    /// Sets the value.
    pub fn store(&self, value: u64, order: Ordering) {
        self.0.store(value, order);
    }
}

#[cfg(not(feature = "planted-bugs"))]
impl TestValue {
    /// 0.
    #[inline(always)]
    pub fn load(&self, _: Ordering) -> u64 {
        0
    }

    /// Nothing: see [`AVAILABLE`].
    #[inline(always)]
    pub fn store(&self, _: u64, _: Ordering) {}
}
