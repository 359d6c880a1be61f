//! Blocks are shared while the vdevs change (chapter 08 §B to §E): cloning and deduplication
//! beside the removal of a device or the expansion of a RAID-Z vdev.
//!
//! # Theory
//! A removal needs a pool without RAID-Z, and an expansion needs a RAID-Z vdev; so there are two
//! kinds of pools, and the layout decides. Both copy in small steps, so that txgs, with clones,
//! shares and frees of the blocks that are copied, come between them, and crashes meet every
//! stage. A crashed pool is imported for writing, and what was under way is continued to its end
//! beside further changes.
//!
//! An expansion moves sectors over places that earlier txgs used, and a removed device has no
//! labels any more. So only the newest txg must be complete, unlike elsewhere.

use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use base::{Error, ErrorKind, Result};
use ondisk::config::{VdevConfig, VdevType};
use spa::engine::{AttachMode, ExpansionTuning, NewMember, RemovalTuning};
use spa::write::topology::{LeafFacts, NewKind, NewVdev, build_member};
use spa::{Leaves, Purpose};

use crate::driver::Driver;
use crate::pool::{SimLeaves, path_of};
use crate::setup::Setup;

/// Space that a pool keeps back, bytes. Of so small a pool it would be half.
const SLOP: u64 = 4 << 20;
/// Txgs after which a removal or an expansion must have ended.
const TXGS_MAX: u64 = 20_000;

/// Makes the steps of removals and expansions small.
pub(crate) fn tune(setup: &Setup, driver: &Driver) {
    let writer = &driver.writer;
    writer.plants.slop.store(SLOP, Relaxed);
    let segment = 4096 << (setup.seed % 4 * 2);
    writer.set_removal_tuning(RemovalTuning {
        segment,
        limit: segment * (1 + setup.seed / 4 % 8),
        ignore_errors: false,
    });
    let copy = (64 << 10) << (setup.seed % 4 * 2);
    let tuning = ExpansionTuning { copy, pause: 0, rows: 1 + setup.seed % 4, scrub: false };
    writer.set_expansion_tuning(tuning);
}

impl Driver {
    /// Whether the vdevs are being changed.
    fn is_reshaping(&self) -> bool {
        self.writer.removal().is_some() || self.writer.expansion().is_some()
    }

    /// Begins the removal of a device, or the expansion of a vdev by one of the disks that the
    /// pool does not have yet, unless something is under way.
    pub(crate) fn reshape(&self, seed: u32) -> Result<()> {
        if self.is_reshaping() {
            return Ok(());
        }
        let tops = self.writer.published().config.vdev_tree.children.clone();
        let raidz = tops.iter().find(|top| top.kind == VdevType::Raidz);
        let (what, done) = match raidz {
            Some(raidz) => ("expand", self.expand(raidz)),
            None => ("remove", self.remove(&tops, seed)),
        };
        match done {
            Ok(true) => drop(self.done.lock().insert(what)),
            Ok(false) => {}
            // Another thread was faster, a scrub is under way, or there is no space for it.
            Err(e) if matches!(e.kind(), ErrorKind::Busy | ErrorKind::NoSpace) => {}
            Err(e) => return Err(e),
        }
        Ok(())
    }

    /// Whether there was a disk for it.
    fn expand(&self, raidz: &VdevConfig) -> Result<bool> {
        let next = raidz.children.len();
        if next >= self.disks.count() {
            return Ok(false);
        }
        let leaves = SimLeaves::new(&self.disks, &[]);
        let device = leaves.open(&path_of(next), Purpose::Write)?.device;
        let facts = |_: &Path| Ok(LeafFacts::of(&*device, false));
        let taken: Vec<_> = raidz.children.iter().map(|leaf| leaf.guid).collect();
        let vdev = NewVdev::new(NewKind::File(path_of(next)));
        let (vdev, facts) = build_member(&vdev, self.writer.txgs().open_txg(), taken, &facts)?;
        let new = NewMember {
            vdev,
            device: Some(device),
            facts: Some(facts),
            ashift: None,
            sequential: false,
        };
        self.writer.attach(raidz.guid, new, AttachMode::Attach, None)?;
        Ok(true)
    }

    /// Whether there was a vdev to remove, beside another one.
    fn remove(&self, tops: &[VdevConfig], seed: u32) -> Result<bool> {
        let data = |top: &&VdevConfig| {
            !matches!(top.kind, VdevType::Indirect | VdevType::Hole | VdevType::Missing)
        };
        let data: Vec<&VdevConfig> = tops.iter().filter(data).collect();
        if data.len() < 2 {
            return Ok(false);
        }
        self.writer.begin_vdev_removal(data[seed as usize % data.len()].guid, None)?;
        Ok(true)
    }

    /// Waits for the end of what is under way.
    pub(crate) fn end_reshaping(&self) -> Result<()> {
        for _ in 0..TXGS_MAX {
            if !self.is_reshaping() {
                self.sync()?;
                return Ok(());
            }
            base::rt::sleep(Duration::from_millis(20));
        }
        Err(Error::bug("a removal or an expansion does not end"))
    }
}
