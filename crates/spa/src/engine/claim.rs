//! Claiming intent logs when a pool is imported for writing (chapter 06 §19.1).
//!
//! # Theory
//! Blocks of a log may have been born in txgs that never synced, so no space map has them.
//! Before anything is allocated they are marked as allocated in the first txg, and the
//! log's header records up to where. A log with only older blocks needs no claim. Replay is
//! separate; until then the log's dataset is not written.
//!
//! A log without records, except records of txgs on disk, is useless. It is kept until its
//! dataset changes (`idle_logs`); one with blocks of txgs that never synced, or with references
//! to cloned blocks, is ended in the first txg.
//!
//! # Cloned blocks
//! A record of a cloned range names blocks that belong to files. While the log is unclaimed,
//! these are only names: the audit, zdb and frees know nothing of them. The claim takes a
//! reference to each pointer of such a record in the tables that count clones (chapter 08 §C.2), as
//! clones of the txg that claims; with it the blocks stay, whatever becomes of the files. Whatever
//! ends the log drops the references: the end of a replay, the destruction or the rollback of the
//! dataset (`datasets`). Until then the log may stay as long as it likes, through exports too; its
//! dataset is not written. So in each txg on disk either the header says *claimed* and the
//! references are counted, or neither.
//!
//! What counts is the pointer in a record that is claimed, so exactly the records that the header
//! counts must have references. A record of a txg on disk may name blocks that are free by now,
//! and must get none. A log with such a record is written anew without it (`unclone`).
//!
//! Until txg `first` every block that a record of a later txg names has its content. It was on
//! disk, and in a file, when it was cloned. The clone's note keeps it allocated in the txgs before
//! its own (`block_refs`). If the clone was replaced in the txg that made it, there is no note, and
//! one of the last txgs may have freed the block. Its space was not given away after so few txgs.
//! It has its content, but cannot be shared any more. So the claim reads and verifies each block,
//! and looks for it in the space maps. If one is not allocated, or cannot be counted for another
//! reason, the log is written anew, and its records become writes that carry the blocks' content.
//! The other reasons: the pool has no feature block_cloning; a scrub or resilver is under way, and
//! might have passed the target already; the block is encrypted; there are more
//! than [`SHARED_MAX`] of them.
//!
//! # Refusals
//! Nothing of a claim is on disk before its txg. An obstacle leaves the pool read-only,
//! with the reason, and the logs as they are.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use base::{Error, ErrorKind, Result, Txg};
use dmu::{Io, Objset, OutagePolicy};
use dsl::DslDir;
use metaslab::MsKey;
use ondisk::BlkPtr;
use ondisk::blkptr::{Block, Protection};
use ondisk::objset::ZIL_HEADER_SIZE;
use ondisk::zil::{CLAIM_LR_SEQ_VALID, LogPtr, REPLAY_NEEDED, Record, ZilHeader};
use zio::Zio;

use super::unclone::Uncloned;
use super::{TaskCx, Writer};
use crate::audit::log::{Kept, LogVisitor, log_header, walk_log};

const CLAIM_TXG_AT: usize = 0;
const BLK_SEQ_AT: usize = 144;
const FLAGS_AT: usize = 152;
const LR_SEQ_AT: usize = 160;
/// Most pointers of one log to which its claim refers.
const SHARED_MAX: usize = 1 << 20;
/// Record type that refers to blocks of other files.
pub(super) const CLONE_RANGE: u8 = 24;

/// The result of a walk of a log.
#[derive(Default)]
pub(super) struct LogFindings {
    pub(super) first: Txg,
    /// Records of older txgs, and those up to this sequence, are on disk and are ignored.
    counts_from: Txg,
    after: u64,
    blocks: u64,
    records: u64,
    pub(super) block_seq: u64,
    pub(super) record_seq: u64,
    /// Born in txgs that never synced.
    unborn: Vec<Block>,
    met: HashSet<(u32, u64)>,
    encrypted: bool,
    /// Records of cloned ranges that name blocks, and those of them whose txgs are on disk.
    clones: u64,
    old_clones: u64,
    /// The blocks of the others, and their bytes.
    shared: Vec<Block>,
    pub(super) clone_bytes: u64,
    /// One of these blocks cannot be counted, or there are too many.
    uncountable: bool,
}

impl LogFindings {
    fn note(&mut self, bp: &BlkPtr) {
        if let BlkPtr::Block(block) = bp
            && block.head.birth >= self.first
            && self.met.insert((block.dva().vdev.0, block.dva().offset))
        {
            self.unborn.push(*block);
        }
    }

    /// Notes a record of cloned blocks: they were on disk when it was made
    /// (chapter 06 §19.1).
    fn note_clone(&mut self, pointers: &[BlkPtr], txg: Txg) -> Result<()> {
        let blocks = pointers.iter().filter_map(BlkPtr::as_block);
        if blocks.clone().any(|b| b.effective_physical_birth() >= self.first) {
            return Err(Error::corrupt("a cloned block that was never written"));
        }
        if blocks.clone().next().is_none() {
            return Ok(());
        }
        self.clones += 1;
        if txg < self.first {
            self.old_clones += 1;
            return Ok(());
        }
        for block in blocks {
            self.clone_bytes = self.clone_bytes.saturating_add(block.head.lsize.0);
            if !is_countable(block) || self.shared.len() >= SHARED_MAX {
                self.uncountable = true;
            } else {
                self.shared.push(*block);
            }
        }
        Ok(())
    }
}

/// Whether the tables can count pointers to a block.
fn is_countable(block: &Block) -> bool {
    block.head.level == 0
        && !block.head.object_type.is_metadata()
        && block.protection == Protection::None
}

struct Claimer<'a> {
    zio: &'a Zio,
    seen: LogFindings,
}

impl LogVisitor for Claimer<'_> {
    fn block(&mut self, ptr: &LogPtr) -> Result<bool> {
        self.seen.note(&ptr.bp);
        self.seen.blocks += 1;
        self.seen.block_seq = ptr.seq();
        Ok(true)
    }

    fn record(&mut self, record: &Record<'_>, encrypted: bool) -> Result<()> {
        self.seen.encrypted |= encrypted;
        let pointers: Vec<BlkPtr> = record.pointers()?.collect::<Result<_>>()?;
        if record.header.txtype == CLONE_RANGE {
            self.seen.note_clone(&pointers, record.header.txg)?;
        } else {
            for bp in &pointers {
                // The record is valid only if its data was written.
                if bp.birth() >= self.seen.first {
                    self.zio.read(bp, Io::SCAN)?;
                }
                self.seen.note(bp);
            }
        }
        let (txg, seq) = (record.header.txg, record.header.seq);
        self.seen.records += u64::from(txg >= self.seen.counts_from && seq > self.seen.after);
        self.seen.record_seq = record.header.seq;
        Ok(())
    }
}

/// `opened`: the first txg since the pool was opened, if known.
fn walk(zio: &Zio, header: &ZilHeader, first: Txg, opened: Txg) -> LogFindings {
    let claimed = header.claim_txg;
    let counts_from = if claimed == Txg::ZERO { opened } else { claimed };
    let seen =
        LogFindings { first, counts_from, after: header.replay_seq, ..LogFindings::default() };
    let mut claimer = Claimer { zio, seen };
    // An error ends the log; blocks behind it are ignored.
    let _end = walk_log(zio, header, &mut claimer);
    claimer.seen
}

/// Whether there is a log, and it was not replayed if it was claimed.
fn may_hold_records(header: &ZilHeader) -> bool {
    !header.log.is_end() && (header.claim_txg == Txg::ZERO || header.flags & REPLAY_NEEDED != 0)
}

/// Whether a log has records that were not replayed.
///
/// # Errors
/// `Corrupt`.
pub(super) fn holds_records(os: &Objset) -> Result<bool> {
    let header = log_header(&os.phys())?;
    Ok(may_hold_records(&header) && walk(os.zio(), &header, Txg::MAX, Txg::ZERO).records > 0)
}

/// The allocated blocks of a log without records, and whether these are its whole chain.
///
/// The chain alone decides. A walk that looks for records ends at a record whose data a
/// power cut tore, although blocks of txgs that never synced may follow. Their pointers
/// would refer to free space as soon as newer txgs are on disk.
fn blocks_of(zio: &Zio, header: &ZilHeader, last_synced: Txg) -> Result<(Vec<BlkPtr>, bool)> {
    let mut blocks = Vec::new();
    let f = |bp: &BlkPtr, _| {
        blocks.push(*bp);
        Ok(())
    };
    let mut kept = Kept::new(header, last_synced, f);
    walk_log(zio, header, &mut kept)?;
    let whole = !kept.leads_on;
    Ok((blocks, whole))
}

/// Logs to be claimed, and datasets that must not be written because of them.
pub(crate) struct Claims {
    heads: Vec<(u64, LogFindings)>,
    /// Logs without records: head, allocated blocks, and whether these are the whole chain.
    empty: Vec<(u64, Vec<BlkPtr>, bool)>,
    /// Highest birth of what is claimed.
    pub(crate) highest: Txg,
}

/// Finds the logs to be claimed in txg `first`. After a rewind to txg `rewound` unclaimed
/// logs are dropped: their records belong to the discarded txgs.
///
/// # Errors
/// Those of reading the datasets; `Unsupported` for logs that cannot be claimed or dropped.
pub(crate) fn find(
    root: &DslDir,
    zio: &Arc<Zio>,
    first: Txg,
    rewound: Option<Txg>,
) -> Result<Claims> {
    let mut claims = Claims { heads: Vec::new(), empty: Vec::new(), highest: Txg::ZERO };
    root.walk(&mut |dir| {
        let Some(head) = dir.head()? else { return Ok(()) };
        if head.phys().is_inconsistent() {
            return Ok(());
        }
        let Some(os) = head.open_objset()? else { return Ok(()) };
        let header = log_header(&os.phys())?;
        if header.log.is_end() {
            return Ok(());
        }
        // The header of an encrypted dataset is covered by a MAC that needs the key.
        let encrypted =
            matches!(os.root_bp(), BlkPtr::Block(b) if b.protection != Protection::None);
        if let Some(rewound) = rewound.filter(|_| header.claim_txg == Txg::ZERO) {
            if encrypted {
                let why = "an intent log of an encrypted dataset must be dropped";
                return Err(Error::unsupported(why).in_dataset(head.name()));
            }
            let (blocks, _) = blocks_of(zio, &header, rewound)?;
            claims.empty.push((head.object(), blocks, false));
            return Ok(());
        }
        let seen = walk(zio, &header, first, first);
        if (!may_hold_records(&header) || seen.records == 0) && !encrypted {
            let (blocks, whole) = blocks_of(zio, &header, Txg(first.0 - 1))?;
            // References to cloned blocks that nobody needs any more are not kept.
            let refers = header.claim_txg != Txg::ZERO && seen.clones > 0;
            let idle = whole && seen.unborn.is_empty() && !refers;
            claims.empty.push((head.object(), blocks, idle));
            return Ok(());
        }
        if header.claim_txg != Txg::ZERO || seen.unborn.is_empty() && seen.records == 0 {
            return Ok(());
        }
        if seen.encrypted {
            let why = "an intent log of an encrypted dataset must be claimed";
            return Err(Error::unsupported(why).in_dataset(head.name()));
        }
        let births = seen.unborn.iter().map(|b| b.head.birth);
        claims.highest = births.fold(claims.highest, Txg::max);
        claims.heads.push((head.object(), seen));
        Ok(())
    })?;
    Ok(claims)
}

impl Writer {
    /// Marks the blocks of the logs as allocated in txg `first`, before that txg begins.
    ///
    /// # Errors
    /// `Corrupt` when a log's block is allocated already.
    pub(crate) fn claim(&self, claims: Claims, first: Txg) -> Result<()> {
        // All of them are claimed before anything is allocated.
        for block in claims.heads.iter().flat_map(|(_, seen)| &seen.unborn) {
            for dva in self.zio.dvas_to_free(block)? {
                while let Some(MsKey { vdev, ms }) = self.space.claim(first, dva)? {
                    self.space_io.load(MsKey { vdev, ms }, OutagePolicy::Fail)?;
                }
            }
        }
        for (head, seen) in claims.heads {
            let os = self.live_head(&self.mos, head, self.props_of(&self.mos, head)?)?;
            let shares = seen.clones > 0 && self.shares_clones(&seen)?;
            if shares && !self.options.unclaimed.load(Relaxed) {
                let refs: &dyn zio::BlockRefs = &*self.block_refs;
                seen.shared.iter().try_for_each(|block| refs.add(first, block))?;
            }
            if seen.old_clones > 0 || seen.clones > 0 && !shares {
                let Uncloned { header, old } = self.unclone(&os, &seen, shares)?;
                old.iter().try_for_each(|bp| self.free(first, bp))?;
                os.set_zil_header(header)?;
                continue;
            }
            let mut header = os.phys().zil_header;
            put(&mut header, CLAIM_TXG_AT, first.0);
            put(&mut header, BLK_SEQ_AT, seen.block_seq);
            put(&mut header, LR_SEQ_AT, seen.record_seq);
            let replay = seen.records > 0 || seen.blocks > 1;
            put(&mut header, FLAGS_AT, CLAIM_LR_SEQ_VALID | if replay { REPLAY_NEEDED } else { 0 });
            os.set_zil_header(header)?;
        }
        for (head, blocks, all) in claims.empty {
            if all {
                self.idle_logs.add(head, blocks);
                continue;
            }
            blocks.iter().try_for_each(|bp| self.free(first, bp))?;
            let os = self.live_head(&self.mos, head, self.props_of(&self.mos, head)?)?;
            os.set_zil_header([0; ZIL_HEADER_SIZE])?;
        }
        Ok(())
    }

    /// Whether all cloned blocks of a log can be counted; they have their content.
    ///
    /// # Errors
    /// Those of reading the blocks and the space maps.
    fn shares_clones(&self, seen: &LogFindings) -> Result<bool> {
        if seen.uncountable || !self.block_refs.can_add() {
            return Ok(false);
        }
        for block in &seen.shared {
            self.zio.read(&BlkPtr::Block(*block), Io::SCAN)?;
            for dva in self.zio.dvas_to_free(block)? {
                let Some(key) = self.space.key_of(dva) else { return Ok(false) };
                self.space_io.load(key, OutagePolicy::Fail)?;
                if !self.space.is_allocated(dva) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}

impl TaskCx<'_> {
    /// Refuses an operation that must wait for the replay of a head's log.
    ///
    /// # Errors
    /// `ReadOnly` if it has records; those of reading it.
    pub(super) fn check_replayed(&self, head: u64) -> Result<()> {
        let writer = self.writer;
        if writer.has_log(head) || writer.idle_logs.contains(head) {
            return Ok(());
        }
        let live = writer.heads.lock().get(&head).cloned();
        let os = match live {
            Some(os) => os,
            None => {
                let bp = self.read().dataset(head)?.bp;
                if bp.is_hole() {
                    return Ok(());
                }
                Objset::open(Arc::clone(&writer.zio), head, bp, Io::SYNC)?
            }
        };
        if holds_records(&os)? { Err(must_replay()) } else { Ok(()) }
    }
}

fn put(header: &mut [u8; ZIL_HEADER_SIZE], at: usize, word: u64) {
    header[at..at + 8].copy_from_slice(&word.to_le_bytes());
}

/// The refusal to change a dataset whose log must be replayed first.
pub(super) fn must_replay() -> Error {
    Error::new(ErrorKind::ReadOnly, "the dataset's intent log must be replayed first")
}
