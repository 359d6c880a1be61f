//! Deduplicated blocks (chapter 08 §B).
//!
//! # Theory
//! Whole blocks are written that have one of few contents, in few sizes, so that most of them are
//! there already; and they die by overwriting, truncation, and with objects, datasets and
//! snapshots. The checksum function, with it the table, and whether blocks are shared at all,
//! change meanwhile, as do the quota and what pruning takes away. None of that changes content:
//! the model knows the bytes alone.
//!
//! Logs are short: entries are flushed by twos and threes, and the roles of the logs swap every few
//! txgs. So an entry that changes is often in the log that is being flushed, or in both.
//!
//! A dataset is destroyed in the txg that wrote blocks of it which no other has, if the schedule
//! permits it: their entries come and go in one txg.
//!
//! The audit of each crash compares every entry with the pointers that it finds, and the statistics
//! with the entries.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use base::{ErrorKind, Result};
use codec::checksum::Checksum;
use dmu::ObjsetProps;
use dsl::stored::Stored;
use spa::engine::{PoolChange, PruneAmount};
use zio::DedupMode;

use crate::driver::{Driver, Hand, WriteTarget};
use crate::model::{Act, DsId};
use crate::ops::content;
use crate::setup::Setup;

/// Seeds of the contents that blocks share. One is compressed, and one has nothing but the same
/// word.
const CONTENTS: [u32; 6] = [3, 8, 13, 5, 4, 12];
/// Most blocks that one operation writes.
const BLOCKS_MAX: u64 = 6;

/// How new blocks are recognised: by each kind of checksum function, or not at all.
fn mode(seed: u64) -> Option<(Checksum, DedupMode)> {
    match seed % 8 {
        0 => None,
        1 => Some((Checksum::Sha512, DedupMode::Trust)),
        2 => Some((Checksum::Skein, DedupMode::Verify)),
        3 => Some((Checksum::Blake3, DedupMode::Trust)),
        4 => Some((Checksum::Sha256, DedupMode::Verify)),
        _ => Some((Checksum::Sha256, DedupMode::Trust)),
    }
}

/// Makes the logs of the tables short.
pub(crate) fn tune(setup: &Setup, driver: &Driver) {
    let plants = driver.writer.dedup_plants();
    plants.flushed.store(2 + setup.seed % 3, Relaxed);
    plants.log_txgs.store(1 + setup.seed / 3 % 3, Relaxed);
    plants.batch.store(setup.seed % 4 * 3, Relaxed);
}

impl Driver {
    /// The properties of a dataset that is opened first.
    pub(crate) fn dedup_props(&self, ds: DsId, props: ObjsetProps) -> ObjsetProps {
        match self.dedup {
            Some(seed) => ObjsetProps { dedup: mode(seed + 5 + ds as u64 % 4), ..props },
            None => props,
        }
    }

    /// Changes how new blocks of a dataset are recognised.
    pub(crate) fn change_dedup(&self, ds: DsId, seed: u32) -> Result<()> {
        let os = self.head(ds)?;
        let old = os.props()?;
        os.set_props(ObjsetProps { dedup: mode(seed.into()), ..(*old).clone() })
    }

    /// Writes whole blocks of an object: those that others have, or with `fresh` of new content.
    pub(crate) fn write_blocks(
        &self,
        target: &WriteTarget,
        (at, count): (u32, u32),
        seed: u32,
        fresh: bool,
    ) -> Result<()> {
        let size = self.block_size(target)?;
        let (first, count) = (u64::from(at) % 12, 1 + u64::from(count) % BLOCKS_MAX);
        let of = |n: u64| match fresh {
            true => content(seed.wrapping_add(n as u32 * 5) | 3, size as usize),
            false => {
                let which = (seed as usize).wrapping_add(n as usize) % CONTENTS.len();
                content(CONTENTS[which], size as usize)
            }
        };
        let data: Arc<Vec<u8>> = Arc::new((0..count).flat_map(of).collect());
        self.change(target, count * size.max(4 << 10) + (64 << 10), false, |os, tx, end| {
            let at = first * size;
            os.write(tx, base::ObjectId(target.id), at, &data)?;
            *end = (*end).max(at + data.len() as u64);
            Ok(vec![Act::Write { at, data }])
        })?;
        self.done.lock().insert("write blocks");
        if self.writer.dedup_tally().1 > 0 {
            self.done.lock().insert("share blocks");
        }
        Ok(())
    }

    /// Changes the space that the tables may take.
    pub(crate) fn dedup_quota(&self, seed: u32) -> Result<()> {
        let bytes = match seed % 4 {
            0 => 1,
            1 => 64 << 10,
            2 => 0,
            _ => u64::MAX,
        };
        let change = ("dedup_table_quota".to_owned(), Some(Stored::Number(bytes)));
        self.writer.set_pool(vec![PoolChange::Prop(change.0, change.1)], None)
    }

    /// Prunes some of the entries of unshared blocks.
    pub(crate) fn prune(&self, seed: u32) -> Result<()> {
        let percent = [30, 60, 100][seed as usize % 3];
        match self.writer.prune_dedup(PruneAmount::Percent(percent), None) {
            Ok(pruned) => {
                if pruned > 0 {
                    self.done.lock().insert("prune");
                }
                Ok(())
            }
            // The table is a legacy one, or another thread prunes.
            Err(e) if matches!(e.kind(), ErrorKind::Unsupported | ErrorKind::Busy) => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// Writes blocks of a dataset that no other has, and destroys it with the same txg.
    pub(crate) fn destroy_written(&self, hand: &mut Hand, which: u32, seed: u32) -> Result<()> {
        let fit: Vec<DsId> = hand.datasets.iter().copied().filter(|ds| *ds != 0).collect();
        let Some(&ds) = (which as usize).checked_rem(fit.len()).and_then(|at| fit.get(at)) else {
            return Ok(());
        };
        let own = |o: &&WriteTarget| o.ds == ds && !o.zap && !o.shared;
        let target = hand.objects.iter().find(own).cloned();
        let target = match target {
            Some(target) => target,
            None => self.create(ds, 3, seed, false)?,
        };
        self.write_blocks(&target, (0, 2), seed, true)?;
        self.destroy(hand, which_of(hand, ds))
    }
}

/// The number by which an operation picks a dataset.
fn which_of(hand: &Hand, ds: DsId) -> u32 {
    hand.datasets.iter().position(|d| *d == ds).unwrap_or(0) as u32
}
