//! Idle logs: intent logs without records that existed when the pool was imported.
//!
//! # Theory
//! OpenZFS leaves a stub of a log in each file system whose files were synced, also when it
//! exports the pool. A pool that crashed may have logs whose records all are in txgs on
//! disk. Such a log is kept as long as its dataset does not change. Ending it would write
//! the dataset's root block, and `written` and the newest snapshot's `used` would show a
//! change that no user made. The first txg that writes the dataset for another reason frees
//! the blocks and empties the header, or replaces it by this pool's own chain. A snapshot
//! ends the log as well, because the snapshot must not inherit it.
//!
//! # Invariants
//! * Every block reachable from the header is of a txg that was on disk at the import, so
//!   the chain has the same meaning after any later crash. Other chains are ended at once
//!   (`claim`).
//! * Header and frees are in one txg.
//! * An idle log is never replayed here, ended or not.
//!
//! Lock order: a leaf.

use std::collections::BTreeMap;

use base::Result;
use base::rt::Mutex;
use ondisk::BlkPtr;
use ondisk::objset::ZIL_HEADER_SIZE;

use super::{TaskCx, Writer};

/// Idle logs by head: the blocks, or `None` after a txg has ended the log.
#[derive(Default)]
pub(super) struct IdleLogs(Mutex<BTreeMap<u64, Option<Vec<BlkPtr>>>>);

impl IdleLogs {
    /// Registers the idle log of `head`.
    pub(super) fn add(&self, head: u64, blocks: Vec<BlkPtr>) {
        self.0.lock().insert(head, Some(blocks));
    }

    /// Whether the head had an idle log: the header at the import has no records.
    pub(super) fn contains(&self, head: u64) -> bool {
        self.0.lock().contains_key(&head)
    }

    /// The blocks to free in the txg that ends the log; `None` if there is no idle log any
    /// more.
    pub(super) fn end(&self, head: u64) -> Option<Vec<BlkPtr>> {
        self.0.lock().get_mut(&head).and_then(Option::take)
    }

    /// The dataset was destroyed.
    pub(super) fn forget(&self, head: u64) {
        self.0.lock().remove(&head);
    }

    /// Heads whose logs were not ended.
    fn heads(&self) -> Vec<u64> {
        let logs = self.0.lock();
        logs.iter().filter(|(_, blocks)| blocks.is_some()).map(|(&head, _)| head).collect()
    }
}

impl TaskCx<'_> {
    /// Ends the idle logs of `heads` in the task's txg; `settle` writes the headers.
    ///
    /// # Errors
    /// Those of reading the datasets.
    pub(super) fn end_idle_logs(&self, heads: impl IntoIterator<Item = u64>) -> Result<()> {
        let idle = self.writer.idle_logs.heads();
        for head in heads.into_iter().filter(|head| idle.contains(head)) {
            let (writer, mos) = (self.writer, self.mos());
            let os = writer.live_head(mos, head, writer.props_of(mos, head)?)?;
            os.set_zil_header([0; ZIL_HEADER_SIZE])?;
        }
        Ok(())
    }
}

impl Writer {
    /// Ends all idle logs: their blocks are free when this returns.
    ///
    /// # Errors
    /// That of a suspension; those of reading the datasets.
    pub(super) fn end_idle_logs(&self) -> Result<()> {
        let heads = self.idle_logs.heads();
        if heads.is_empty() {
            return Ok(());
        }
        let act = move |cx: &mut TaskCx<'_>, ()| {
            cx.end_idle_logs(heads)?;
            cx.settle()
        };
        self.sync_task(|_| Ok(()), act).map(drop)
    }
}
