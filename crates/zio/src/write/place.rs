//! Allocating the addresses of a block.

use std::sync::Arc;

use base::{Asize, Dva, ErrorKind, Psize, Result, Txg};
use ondisk::blkptr::{BlkPtr, Block};

use super::gang::GangAllocator;
use super::{BlockLayout, Outcome, Placed, Prepared, PreparedForm, ReadyBlock, SpaceSource, Want};
use crate::{DedupMatch, DedupMode, DedupTables, Zio};

/// What is done with a block that may be shared.
enum Equal {
    /// There is an equal block: this pointer leads to it.
    Shared(Block),
    /// It is written, and others may be shared with it.
    New,
    /// It is written as any other.
    Ordinary,
}

impl Zio {
    /// Finds an equal block that a dedup table has, or allocates addresses, as a gang where no
    /// extent is large enough. The pointer is complete afterwards and may be stored before the
    /// bytes are written.
    ///
    /// # Errors
    /// `NoSpace`, or the error of the allocator; nothing stays allocated then. Those of the
    /// dedup tables.
    pub fn place(&self, p: Prepared) -> Result<Placed> {
        let mut ready = match p.form {
            PreparedForm::Done(bp, outcome) => {
                return Ok(Placed { bp, outcome, parts: None, allocated: None });
            }
            PreparedForm::Block(ready) => ready,
        };
        if let Some(layout) = ready.rewrite.take() {
            return Ok(placed(*ready, Outcome::Rewritten, layout));
        }
        if ready.dedup == DedupMode::Off {
            return self.place_new(ready);
        }
        let (copies, verifies) = (ready.copies, ready.dedup == DedupMode::Verify);
        let tables = match self.dedup() {
            None => None,
            Some(tables) => match self.find_equal(&*tables, &ready)? {
                Equal::Shared(block) => {
                    let (bp, outcome) = (BlkPtr::Block(block), Outcome::Shared);
                    return Ok(Placed { bp, outcome, parts: None, allocated: None });
                }
                Equal::New => Some(tables),
                Equal::Ordinary => None,
            },
        };
        let mut placed = self.place_new(ready)?;
        if let (Some(tables), BlkPtr::Block(block)) = (tables, &mut placed.bp) {
            block.dedup = true;
            let stored = placed.parts.as_ref().map(|(content, _)| content.stored.clone());
            tables.insert(block, copies, stored.filter(|_| verifies))?;
        }
        Ok(placed)
    }

    /// The equal block that the table has.
    fn find_equal(&self, tables: &dyn DedupTables, ready: &ReadyBlock) -> Result<Equal> {
        let (there, stored) = match tables.find(&ready.block, ready.copies)? {
            DedupMatch::Found { block, stored } => (block, stored),
            DedupMatch::Absent => return Ok(Equal::New),
            DedupMatch::Refused => return Ok(Equal::Ordinary),
        };
        let verifies = ready.dedup == DedupMode::Verify;
        if verifies && !self.has_content(&there, stored.as_ref(), &ready.content.stored) {
            return Ok(Equal::Ordinary);
        }
        tables.share(&ready.block, ready.copies)?;
        let dvas: Vec<Dva> = there.dvas().collect();
        let mut block = ready.block.with_dvas(&dvas);
        let birth = there.effective_physical_birth();
        block.dedup = true;
        block.physical_birth = if birth == block.head.birth { Txg::ZERO } else { birth };
        Ok(Equal::Shared(block))
    }

    /// Allocates addresses for a block that is to be written.
    fn place_new(&self, mut ready: Box<ReadyBlock>) -> Result<Placed> {
        let space = self.space()?;
        let want = Want {
            psize: ready.block.psize.0,
            record: if ready.in_run { ready.block.head.lsize.0 } else { 0 },
            copies: ready.copies,
            class: ready.class,
            txg: ready.block.effective_physical_birth(),
            hint: ready.hint,
            metadata: ready.metadata,
            gang_child: false,
            outage: ready.outage,
        };
        match self.allocate(&*space, &want) {
            Ok(dvas) => {
                ready.block = ready.block.with_dvas(&dvas);
                self.placed.add(Outcome::New);
                Ok(placed(*ready, Outcome::New, BlockLayout::Plain(dvas)))
            }
            Err(e) if e.kind() == ErrorKind::NoSpace && want.psize > space.limits().0 => {
                let node = GangAllocator::new(self, &*space, &want, ready.header_copies).run()?;
                let node = Arc::new(node);
                ready.block = ready.block.with_dvas(&node.dvas());
                if let Some(gangs) = &ready.gangs {
                    gangs.keep(self.key(&ready.block), &node);
                }
                self.placed.add(Outcome::Gang);
                Ok(placed(*ready, Outcome::Gang, BlockLayout::Gang(node)))
            }
            Err(e) => Err(e),
        }
    }

    /// Releases the allocation of a placed block that will not be written.
    pub fn unplace(&self, placed: Placed) {
        let Some((_, layout)) = placed.parts else { return };
        if placed.outcome == Outcome::Rewritten {
            return;
        }
        let mut dvas = Vec::new();
        match layout {
            BlockLayout::Plain(plain) => dvas = plain,
            BlockLayout::Gang(node) => node.allocated(&mut dvas),
        }
        if let (Ok(space), BlkPtr::Block(block)) = (self.space(), &placed.bp) {
            let txg = placed.allocated.unwrap_or(block.effective_physical_birth());
            space.unallocate(txg, &dvas);
        }
    }

    /// Allocates and checks the result: an error in it would otherwise be noticed only
    /// after it destroyed data.
    pub(super) fn allocate(&self, space: &dyn SpaceSource, want: &Want) -> Result<Vec<Dva>> {
        self.checked(space, want, space.allocate(want)?)
    }

    pub(super) fn checked(
        &self,
        space: &dyn SpaceSource,
        want: &Want,
        dvas: Vec<Dva>,
    ) -> Result<Vec<Dva>> {
        let tree = self.tree();
        let fits = |d: &Dva| {
            let needed = tree.asize(d.vdev, Psize(want.psize), want.txg);
            !d.gang && d.offset.is_multiple_of(512) && needed.is_ok_and(|n: Asize| d.asize >= n)
        };
        if dvas.len() == usize::from(want.copies) && dvas.iter().all(fits) {
            return Ok(dvas);
        }
        space.unallocate(want.txg, &dvas);
        Err(base::bug!("the space that was allocated does not fit its block"))
    }
}

pub(super) fn placed(ready: ReadyBlock, outcome: Outcome, layout: BlockLayout) -> Placed {
    let parts = Some((ready.content, layout));
    Placed { bp: BlkPtr::Block(ready.block), outcome, parts, allocated: None }
}
