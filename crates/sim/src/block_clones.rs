//! Clones of blocks between objects and datasets (chapter 08 §C).
//!
//! # Theory
//! A clone gives a block of one object the content that a block of another one has, as the model
//! knows it, if the engine says that it made the clone. The source is on disk, else the engine
//! refuses, and the thread waits for the txg and asks again.
//!
//! [`Op::DestroyCloned`](crate::ops::Op) meets the one case in which a block is freed in a txg
//! before that of its clone: in the middle of the txg that destroys the source's dataset, blocks
//! of it are cloned in the open one. A crash between the two txgs must leave no block without a
//! pointer, and no crash may find a clone without its block.
//!
//! The audit of each crash compares every entry of the block reference tables with the
//! pointers that it finds.

use std::sync::Arc;

use base::{Error, ErrorKind, ObjectId, Result, Txg};
use dmu::{CloneOutcome, Io, Objset, OutagePolicy, Tx};
use dsl::write::destroy;
use spa::engine::TaskCx;

use crate::driver::{Driver, Hand, WriteTarget};
use crate::model::{Act, CHUNK, Model};

/// Bytes that a transaction may write besides the clones.
const POINTERS: u64 = 192 << 10;

/// Blocks of one object that become blocks of another.
struct BlockCopies {
    model: Arc<Model>,
    from: (Arc<Objset>, WriteTarget),
    to: (Arc<Objset>, WriteTarget),
    /// Bytes of a block of both.
    size: u64,
    /// Numbers of blocks, in the source and in the target.
    pairs: Vec<(u64, u64)>,
}

impl BlockCopies {
    /// Clones until a block cannot be; returns how many were, and whether one is only not on
    /// disk yet. `synced` is the last txg on disk.
    fn make(&self, tx: &Tx, synced: Txg) -> Result<(usize, bool)> {
        let (from, to) = (&self.from.1, &self.to.1);
        let mut made = 0;
        for &(theirs, own) in &self.pairs {
            if (from.ds, from.id, theirs) == (to.ds, to.id, own) {
                continue;
            }
            let source = (ObjectId(from.id), theirs);
            let (outcome, _) =
                self.to.0.clone_block(tx, (ObjectId(to.id), own), &self.from.0, source, synced)?;
            match outcome {
                CloneOutcome::Cloned => {
                    let content = self.model.content(from.ds, tx.txg());
                    let source = content.get(&from.id);
                    let source = source.ok_or_else(|| Error::bug("a clone of a freed object"))?;
                    let data = Arc::new(source.bytes(theirs * self.size, self.size));
                    let act = Act::Write { at: own * self.size, data };
                    self.model.note(tx.txg(), to.ds, to.id, act);
                    made += 1;
                }
                CloneOutcome::Hole => {}
                other => return Ok((made, other == CloneOutcome::Dirty)),
            }
        }
        Ok((made, false))
    }
}

impl Driver {
    pub(crate) fn block_size(&self, of: &WriteTarget) -> Result<u64> {
        Ok(self.head(of.ds)?.object(ObjectId(of.id), Io::WAIT)?.block_size())
    }

    /// The blocks of an object that have data.
    fn blocks_of(&self, of: &WriteTarget, size: u64) -> Vec<u64> {
        let content = self.model.content(of.ds, Txg::MAX);
        let Some(object) = content.get(&of.id).filter(|o| !o.unknown) else { return Vec::new() };
        let mut blocks: Vec<u64> = object.chunks.keys().map(|n| n * CHUNK / size).collect();
        blocks.dedup();
        blocks
    }

    fn copies(
        &self,
        from: &WriteTarget,
        to: &WriteTarget,
        size: u64,
        pairs: Vec<(u64, u64)>,
    ) -> Result<BlockCopies> {
        let (model, source) = (Arc::clone(&self.model), (self.head(from.ds)?, from.clone()));
        Ok(BlockCopies { model, from: source, to: (self.head(to.ds)?, to.clone()), size, pairs })
    }

    fn new_target(&self, hand: &mut Hand, ds: usize, size: u64, seed: u32) -> Result<WriteTarget> {
        let shift = (size / 512).checked_ilog2().unwrap_or(0);
        let made = self.create(ds, shift as u8, seed, false)?;
        hand.objects.push(made.clone());
        Ok(made)
    }

    /// Clones blocks of one of the thread's objects.
    pub(crate) fn clone_blocks(
        &self,
        hand: &mut Hand,
        from: u32,
        to: u32,
        (at, seed): (u32, u32),
    ) -> Result<()> {
        let own: Vec<WriteTarget> =
            hand.objects.iter().filter(|o| !o.zap && !o.shared).cloned().collect();
        let Some(source) = (from as usize).checked_rem(own.len()).map(|n| own[n].clone()) else {
            return Ok(());
        };
        let size = self.block_size(&source)?;
        let blocks = self.blocks_of(&source, size);
        if blocks.is_empty() {
            return Ok(());
        }
        let mut fit = Vec::new();
        for target in own {
            if self.block_size(&target)? == size {
                fit.push(target);
            }
        }
        let target = match to.is_multiple_of(3) {
            true => {
                let ds = hand.datasets[(to / 3) as usize % hand.datasets.len()];
                self.new_target(hand, ds, size, seed)?
            }
            false => fit[to as usize % fit.len()].clone(),
        };
        let (count, first) = (1 + u64::from(seed) % 8, u64::from(seed >> 8) % 12);
        let nth = |n: u64| blocks[(u64::from(at) + n) as usize % blocks.len()];
        let pairs = (0..count).map(|n| (nth(n), first + n)).collect();
        let copies = self.copies(&source, &target, size, pairs)?;
        for _ in 0..2 {
            let tx = self.begin(POINTERS, false)?;
            let made = copies.make(&tx, self.writer.txgs().synced_txg());
            if made.is_err() {
                self.model.note(tx.txg(), target.ds, target.id, Act::Unknown);
            }
            drop(tx);
            match made? {
                (0, true) => drop(self.sync()?),
                (0, false) => break,
                _ => {
                    self.done.lock().insert("clone blocks");
                    break;
                }
            }
        }
        Ok(())
    }

    /// Destroys a dataset while blocks of it are cloned in a later txg.
    pub(crate) fn destroy_cloned(&self, hand: &mut Hand, which: u32, seed: u32) -> Result<()> {
        let fit: Vec<usize> = hand.datasets.iter().copied().filter(|ds| *ds != 0).collect();
        let Some(ds) = (which as usize).checked_rem(fit.len()).map(|at| fit[at]) else {
            return Ok(());
        };
        let own = |o: &&WriteTarget| o.ds == ds && !o.zap && !o.shared;
        let own: Vec<WriteTarget> = hand.objects.iter().filter(own).cloned().collect();
        let Some(source) = (seed as usize).checked_rem(own.len()).map(|n| own[n].clone()) else {
            return self.destroy(hand, which);
        };
        let Some(&other) = hand.datasets.iter().find(|other| **other != ds) else {
            return Ok(());
        };
        let size = self.block_size(&source)?;
        let target = self.new_target(hand, other, size, seed)?;
        self.sync()?;
        let first = u64::from(seed >> 8) % 4;
        let pairs = self.blocks_of(&source, size).into_iter().take(3).zip(first..).collect();
        let copies = self.copies(&source, &target, size, pairs)?;
        let head = self.model.dataset(ds).ok_or_else(|| Error::bug("no such dataset"))?.head;
        let act = move |cx: &mut TaskCx<'_>, ()| {
            let wait = OutagePolicy::WaitAlways;
            let made = match cx.writer.begin_for(None, POINTERS, false, wait) {
                Ok(tx) => copies.make(&tx, cx.writer.txgs().synced_txg())?.0,
                Err(e) if e.kind() == ErrorKind::NoSpace => 0,
                Err(e) => return Err(e),
            };
            destroy::head(cx.cx, head, cx.writer.zio())?;
            cx.drop_head(head);
            cx.free_in_background();
            Ok(made)
        };
        match self.task(move |cx| destroy::check_head(cx.cx.read(), head), act) {
            Ok((made, txg, done)) => {
                self.destroyed(hand, ds, txg);
                if made > 0 {
                    self.done.lock().insert("destroy cloned");
                }
                done
            }
            Err(e) if matches!(e.kind(), ErrorKind::Busy | ErrorKind::Exists) => Ok(()),
            Err(e) => Err(e),
        }
    }
}
