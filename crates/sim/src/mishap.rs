//! Further disk failures in a crash, besides losing and tearing unflushed writes.
//!
//! # Theory
//! The seed of a crash decides. One disk has the mishap. If the pool is redundant, all of
//! its content must still be there; if not, the damage must be detected (see
//! [`crate::check`]).

use base::rt::sim::Rng;
use device::sim::CrashOptions;

use crate::image::BadSectors;
use crate::setup::{DiskFault, Setup};

/// A mishap of one disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mishap {
    /// No further failure.
    Nothing,
    /// Unflushed writes arrive in any order: an older one to the same address may win.
    Reordered,
    /// Unflushed writes land elsewhere on the disk, one in so many.
    Misdirected {
        /// The disk.
        disk: usize,
        /// One in so many.
        often: u64,
    },
    /// The disk is missing.
    Missing {
        /// The disk.
        disk: usize,
    },
    /// Some of its sectors cannot be read.
    BadSectors {
        /// The disk.
        disk: usize,
        /// One in so many.
        often: u64,
    },
}

impl Mishap {
    /// The mishap of a crash; `victim` is the disk with the faults of the run, if any.
    /// Seeds 0 and 1, which lose and keep all unflushed writes, have none, and neither do
    /// half of the others.
    pub fn of(setup: &Setup, victim: Option<usize>, seed: u64) -> Mishap {
        let redundant = setup.layout.is_redundant();
        let mut rng = Rng::stream(seed, 51);
        let kind = rng.below(8);
        let disk = victim.unwrap_or(rng.below(setup.layout.disks() as u64) as usize);
        let often = 1 + rng.below(16);
        match kind {
            _ if seed < 2 => Mishap::Nothing,
            0 => Mishap::Reordered,
            // A single disk has its faults already.
            1..=3 if setup.fault.is_some() && !redundant => Mishap::Nothing,
            1 => Mishap::Misdirected { disk, often },
            2 if redundant => Mishap::Missing { disk },
            2 | 3 => Mishap::BadSectors { disk, often: 8 * often },
            _ => Mishap::Nothing,
        }
    }

    /// The disks' behaviour in the crash.
    pub fn options(self, sector: u32) -> CrashOptions {
        let usual = CrashOptions { sector, ..CrashOptions::default() };
        match self {
            Mishap::Reordered => CrashOptions { stale: true, ..usual },
            Mishap::Misdirected { disk, often } => {
                CrashOptions { misdirected: often, astray: Some(disk), ..usual }
            }
            _ => usual,
        }
    }

    /// The missing disk.
    pub fn missing(self) -> Option<usize> {
        match self {
            Mishap::Missing { disk } => Some(disk),
            _ => None,
        }
    }

    /// The sectors that cannot be read.
    pub(crate) fn bad_sectors(self, seed: u64) -> Option<BadSectors> {
        match self {
            Mishap::BadSectors { disk, often } => Some(BadSectors { disk, often, seed }),
            _ => None,
        }
    }

    /// Whether flushed bytes are lost.
    pub fn damages(self) -> bool {
        !matches!(self, Mishap::Nothing | Mishap::Reordered)
    }
}

impl DiskFault {
    /// Whether a disk without redundancy may even lose data after a successful flush.
    pub fn forgets(self) -> bool {
        matches!(self, DiskFault::Misdirected | DiskFault::LyingFlushes | DiskFault::Away)
    }
}
