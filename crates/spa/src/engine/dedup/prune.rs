//! Pruning a fast table: entries of blocks with one pointer are forgotten (chapter 08 §B.3,
//! zpool-ddtprune(8)).
//!
//! # Theory
//! An entry of a block that nothing shares only makes the table larger. A pruned block keeps its
//! place and its pointer, with the D bit; no entry counts it any more, so its death frees the
//! space like that of an ordinary block ([`Writer::settle_dedup`]). Equal content that is written
//! later becomes a new block with a new entry.
//!
//! The oldest entries go, by the time at which they entered their class: those up to a time, or
//! a share of all. Each step is a task of a txg of its own:
//!
//! 1. The logs are flushed completely. From then on the newest state of an entry is the ZAP's,
//!    unless it is in memory because it changed since. Nor does a log on disk have a record of
//!    it that an import could take for newer.
//! 2. For a share, the ages of the entries are counted, a part of the ZAP in each txg.
//! 3. The entries that are old enough are removed, a part of the ZAP in each txg. One that
//!    changed since step 1 is left alone.
//!
//! The ZAP is read in syncing context, because it must not change while a leaf is looked for.
//!
//! # Crash argument
//! The txg that removes an entry lowers the statistics, too; the block is allocated and has one
//! pointer before and after it. A crash ends the pruning; what was done stays.
//!
//! # Invariants
//! * Only an entry whose newest state has exactly one reference is pruned: with two, the first
//!   pointer that dies would free the block of the other.
//! * No entry comes back for a pruned block, because entries are made for new blocks only.
//!
//! # Memory
//! The keys of a part, and at most [`AGES_MAX`] counts of ages. When there are more ages,
//! neighbours are counted together, so that the oldest entries are found less precisely.
//!
//! # Hostile tables
//! A count of one for a block with two pointers fails the txg in which the second one dies, as
//! every count that is too low does. Times may be any numbers.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use base::{Error, ObjectId, Result};
use dmu::zaps;
use dsl::write::features;
use ondisk::ddt::{Class, Entry, Key, StatBucket};
use ondisk::zap::Cursor;

use super::super::Writer;
use super::super::sync::SyncPass;
use super::super::tasks::{Command, TaskCx};
use super::table::LiveTable;
use crate::dedup::{FAST_DEDUP, decode, in_table, key_of};

/// Entries that one txg reads, about.
const PART: usize = 1 << 15;
/// Pointers of the ZAP that one txg follows.
const STEPS_MAX: usize = 1 << 12;
/// Ages that are counted apart.
const AGES_MAX: usize = 1 << 16;

/// Entries to prune.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PruneAmount {
    /// Those that entered their class up to this time, in seconds since 1970.
    UpTo(u64),
    /// This share of all unique entries, in percent, the oldest first.
    Percent(u8),
}

/// Entries by age.
#[derive(Debug, Default)]
struct Ages {
    /// log2 of the seconds that are counted together.
    shift: u32,
    counts: BTreeMap<u64, u64>,
    total: u64,
}

impl Ages {
    fn add(&mut self, start: u64) {
        *self.counts.entry(start >> self.shift).or_default() += 1;
        self.total += 1;
        while self.counts.len() > AGES_MAX && self.shift < 63 {
            self.shift += 1;
            for (start, count) in std::mem::take(&mut self.counts) {
                *self.counts.entry(start >> 1).or_default() += count;
            }
        }
    }

    /// The oldest `wanted` entries.
    fn oldest(&self, wanted: u64) -> PruneLimit {
        let mut left = wanted;
        for (&start, &count) in &self.counts {
            if count > left {
                let from = start << self.shift;
                let to = from.saturating_add((1 << self.shift) - 1);
                return PruneLimit { below: from, to, budget: left };
            }
            left -= count;
        }
        PruneLimit { below: u64::MAX, to: u64::MAX, budget: u64::MAX }
    }
}

/// Which entries are old enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PruneLimit {
    /// Those that entered their class before this time.
    below: u64,
    /// And so many of those that entered it up to this time.
    to: u64,
    budget: u64,
}

impl PruneLimit {
    fn up_to(time: u64) -> PruneLimit {
        PruneLimit { below: time, to: time, budget: u64::MAX }
    }

    /// Whether an entry goes.
    fn takes(&mut self, start: u64) -> bool {
        if start < self.below {
            return true;
        }
        let takes = start <= self.to && self.budget > 0;
        if takes && self.budget != u64::MAX {
            self.budget -= 1;
        }
        takes
    }
}

/// What is left to read of the ZAPs: ids of checksum functions, and the position in the ZAP of
/// the first one.
#[derive(Clone, Debug)]
struct Rest {
    tables: Vec<u8>,
    at: Cursor,
}

/// An entry that may go.
type Unique = (u8, Key, Entry);

/// Keeps a second pruning from beginning.
struct Turn<'a>(&'a AtomicBool);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.store(false, Relaxed);
    }
}

impl Writer {
    /// Prunes the fast dedup tables; returns how many entries went.
    ///
    /// # Errors
    /// `Busy` while they are pruned already; `Unsupported` for a pool that has no fast tables,
    /// nor will have; those of reading the tables; those of a suspension.
    pub fn prune_dedup(&self, amount: PruneAmount, command: Option<Command>) -> Result<u64> {
        if self.dedup.pruning.swap(true, Relaxed) {
            return Err(Error::busy("a prune operation is already in progress"));
        }
        let _turn = Turn(&self.dedup.pruning);
        let check = |cx: &mut TaskCx<'_>| {
            let tables = cx.writer.dedup.tables.lock();
            let fast = |(id, table): (&u8, &LiveTable)| table.is_fast().then_some(*id);
            let found: Vec<u8> = tables.iter().filter_map(fast).collect();
            let may_come = tables.is_empty() && features::is_enabled(cx.read(), FAST_DEDUP)?;
            match found.is_empty() && !may_come {
                true => Err(Error::unsupported("operation not supported on this type of pool")),
                false => Ok(found),
            }
        };
        let act = |cx: &mut TaskCx<'_>, tables| {
            cx.writer.dedup.flush_all.store(true, Relaxed);
            Ok(tables)
        };
        let (tables, _) = self.sync_task(check, act)?;
        let all = Rest { tables, at: Cursor::default() };
        let mut limit = match amount {
            PruneAmount::UpTo(time) => PruneLimit::up_to(time),
            PruneAmount::Percent(percent) => {
                let ages = self.count_ages(all.clone())?;
                let wanted = u128::from(ages.total) * u128::from(percent.min(100)) / 100;
                ages.oldest(wanted as u64)
            }
        };
        let (mut rest, mut pruned) = (Some(all), 0);
        while let Some(now) = rest {
            let read = move |cx: &mut TaskCx<'_>| {
                let (mut part, next) = cx.unique_part(now)?;
                part.retain(|(_, _, entry)| limit.takes(class_start(entry)));
                Ok((part, next, limit))
            };
            let act = |cx: &mut TaskCx<'_>, (part, next, limit): (Vec<Unique>, _, _)| {
                cx.prune(&part)?;
                Ok((part.len() as u64, next, limit))
            };
            let ((count, next, after), _) = self.sync_task(read, act)?;
            pruned += count;
            (rest, limit) = (next, after);
        }
        if let Some(command) = command {
            self.sync_task(|_| Ok(()), move |cx, ()| cx.log_command(&command))?;
        }
        Ok(pruned)
    }

    fn count_ages(&self, all: Rest) -> Result<Ages> {
        let (mut rest, mut ages) = (Some(all), Ages::default());
        while let Some(now) = rest {
            let read = move |cx: &mut TaskCx<'_>| cx.unique_part(now);
            let ((part, next), _) = self.sync_task(read, |_, part| Ok(part))?;
            part.iter().for_each(|(_, _, entry)| ages.add(class_start(entry)));
            rest = next;
        }
        Ok(ages)
    }
}

fn class_start(entry: &Entry) -> u64 {
    match entry {
        Entry::Flat(flat) => flat.class_start,
        Entry::Legacy(_) => u64::MAX,
    }
}

impl TaskCx<'_> {
    /// The next entries of the tables' unique ZAPs whose newest state is there and has one
    /// reference, and what is left behind them.
    fn unique_part(&self, mut rest: Rest) -> Result<(Vec<Unique>, Option<Rest>)> {
        let Some(&id) = rest.tables.first() else { return Ok((Vec::new(), None)) };
        let tables = self.writer.dedup.tables.lock();
        let table = tables.get(&id).filter(|table| table.is_fast());
        let zap = table.and_then(|table| Some((table, table.zap_of(Class::Unique)?)));
        let (mut out, mut at) = (Vec::new(), zap.map(|_| rest.at));
        if let Some((table, object)) = zap {
            let zap = self.sync.mos.zap(object)?;
            for _ in 0..STEPS_MAX {
                let Some(from) = at.filter(|_| out.len() < PART) else { break };
                let (batch, next) = zap.list_from(from, usize::MAX)?;
                for entry in batch {
                    let key = key_of(&entry.name)?;
                    let entry = decode(&entry.value, true).map_err(|e| in_table(e, object))?;
                    if entry.total_refcnt() == 1 && table.held(&key).is_none() {
                        out.push((id, key, entry));
                    }
                }
                at = next;
            }
        }
        drop(tables);
        match at {
            Some(at) => rest.at = at,
            None => (rest.at, _) = (Cursor::default(), rest.tables.remove(0)),
        }
        Ok((out, (!rest.tables.is_empty()).then_some(rest)))
    }

    /// Removes entries that [`TaskCx::unique_part`] found in this txg.
    fn prune(&self, part: &[Unique]) -> Result<()> {
        let dedup = &self.writer.dedup;
        // Nothing is looked up meanwhile.
        let mut tables = std::mem::take(&mut *dedup.tables.lock());
        let mut one = |(id, key, entry): &Unique| match tables.get_mut(id) {
            Some(table) => table.prune(self.sync, *key, entry),
            None => Ok(()),
        };
        let done = part.iter().try_for_each(&mut one);
        *dedup.tables.lock() = tables;
        done
    }
}

impl LiveTable {
    /// Removes a unique entry that is only in its ZAP.
    fn prune(&mut self, sync: &SyncPass<'_>, key: Key, entry: &Entry) -> Result<()> {
        let zap = self.zap_of(Class::Unique);
        let zap = zap.ok_or_else(|| base::bug!("an entry of a class without a ZAP"))?;
        self.count(sync, Class::Unique, key, entry, StatBucket::subtract);
        zaps::remove_words(sync.mos.objset(), sync.tx, ObjectId(zap), &key.to_words())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(ages: &[u64], wanted: u64) -> Vec<u64> {
        let mut all = Ages::default();
        ages.iter().for_each(|age| all.add(*age));
        let mut limit = all.oldest(wanted);
        let mut out: Vec<u64> = ages.iter().copied().filter(|age| limit.takes(*age)).collect();
        out.sort_unstable();
        out
    }

    #[test]
    fn the_oldest_entries_go() {
        assert!(taken(&[], 5).is_empty());
        assert!(taken(&[7, 3, 5, 3, 9], 0).is_empty());
        assert_eq!(taken(&[7, 3, 5, 3, 9], 1), [3]);
        assert_eq!(taken(&[7, 3, 5, 3, 9], 3), [3, 3, 5]);
        assert_eq!(taken(&[7, 3, u64::MAX, 3, 9], 5), [3, 3, 7, 9, u64::MAX]);
        let mut limit = PruneLimit::up_to(5);
        assert_eq!([4, 5, 6, 5].map(|age| limit.takes(age)), [true, true, false, true]);
    }

    #[test]
    fn many_ages_are_counted_together() {
        let mut ages = Ages::default();
        (0..4 * AGES_MAX as u64).rev().for_each(|age| ages.add(age * 1000));
        assert!(ages.counts.len() <= AGES_MAX && ages.shift > 0);
        let wanted = AGES_MAX as u64 + 17;
        let mut limit = ages.oldest(wanted);
        let (mut count, mut youngest) = (0, 0);
        for age in (0..4 * AGES_MAX as u64).map(|age| age * 1000) {
            if limit.takes(age) {
                (count, youngest) = (count + 1, age);
            }
        }
        assert_eq!(count, wanted);
        assert!(youngest < (wanted + 64) * 1000, "{youngest}");
    }
}
