//! The tunables of the cache and their valid ranges.

use base::{Error, Result};

/// The replacement policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum PolicyKind {
    /// Cenote's own: ARC where recency and frequency work well, LIRS where loops would
    /// defeat ARC.
    #[default]
    Default,
    /// ARC as published.
    Arc,
}

/// Smallest target size, bytes: a few of the largest blocks.
pub const ARC_MIN_FLOOR: u64 = 1 << 20;

/// The cache's tunables (chapter 09 §9, chapter 10 §2 and §4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Largest target size, bytes (`zfs_arc_max`).
    pub arc_max: u64,
    /// Least target size, bytes (`zfs_arc_min`).
    pub arc_min: u64,
    /// The policy (`zfs_arc_policy`).
    pub policy: PolicyKind,
    /// Weight of a metadata ghost hit against a data ghost hit, percent
    /// (`zfs_arc_meta_balance`).
    pub meta_balance: u32,
    /// Keep blocks as they are stored, decompressing on use
    /// (`zfs_compressed_arc_enabled`).
    pub compressed: bool,
    /// A shrink takes 1/2^n of the target (`zfs_arc_shrink_shift`).
    pub shrink_shift: u32,
    /// No growth while free memory is below 1/2^n of the target (`zfs_arc_no_grow_shift`).
    pub no_grow_shift: u32,
    /// Seconds without growth after a shrink (`zfs_arc_grow_retry`).
    pub grow_retry: u32,
    /// Memory to leave free, bytes; 0 computes it (`zfs_arc_sys_free`).
    pub sys_free: u64,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            arc_max: 256 << 20,
            arc_min: 32 << 20,
            policy: PolicyKind::Default,
            meta_balance: 500,
            compressed: true,
            shrink_shift: 5,
            no_grow_shift: 5,
            grow_retry: 5,
            sys_free: 0,
        }
    }
}

impl Config {
    /// A cache between these sizes, with default values for the rest.
    pub fn sized(arc_min: u64, arc_max: u64) -> Config {
        Config { arc_min, arc_max, ..Config::default() }
    }

    /// Checks that the values are consistent.
    ///
    /// # Errors
    /// `Invalid` naming the value.
    pub fn check(&self) -> Result<()> {
        let bad = |text: String| Err(Error::invalid(text));
        if self.arc_min < ARC_MIN_FLOOR {
            return bad(format!("zfs_arc_min must be at least {ARC_MIN_FLOOR} bytes"));
        }
        if self.arc_max < self.arc_min {
            return bad("zfs_arc_max must not be less than zfs_arc_min".to_owned());
        }
        if !(1..=10_000).contains(&self.meta_balance) {
            return bad("zfs_arc_meta_balance must lie between 1 and 10000".to_owned());
        }
        if !(1..=16).contains(&self.shrink_shift) || !(1..=16).contains(&self.no_grow_shift) {
            return bad("a shift must lie between 1 and 16".to_owned());
        }
        Ok(())
    }
}
