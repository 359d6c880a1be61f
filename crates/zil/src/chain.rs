//! The chain of log blocks, and the header that each txg writes. No I/O.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use base::{Dva, Result, Txg};
use codec::checksum::Checksum;
use ondisk::BlkPtr;
use ondisk::objset::ZIL_HEADER_SIZE;
use ondisk::zil::{LogPtr, ZilHeader};

/// The header of an unused log.
pub(crate) fn empty_header() -> ZilHeader {
    ZilHeader {
        claim_txg: Txg::ZERO,
        replay_seq: 0,
        log: LogPtr::end([0; 4]),
        claim_blk_seq: 0,
        flags: 0,
        claim_lr_seq: 0,
    }
}

/// A block of the chain.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    pub(crate) ptr: LogPtr,
    pub(crate) dva: Dva,
    pub(crate) size: u64,
    /// The txg in which it was allocated.
    pub(crate) alloc: Txg,
    /// The newest txg of its records.
    pub(crate) newest: Txg,
    pub(crate) flushed: bool,
}

/// The changes of the log in a txg.
#[derive(Debug)]
pub struct Moved {
    /// The header for the txg's object set block.
    pub header: [u8; ZIL_HEADER_SIZE],
    /// Blocks to free in the txg.
    pub free: Vec<BlkPtr>,
}

/// Progress of a replay.
#[derive(Debug)]
struct Replay {
    header: ZilHeader,
    /// The record that is being replayed.
    seq: u64,
    /// The last replayed record of each txg.
    done: BTreeMap<Txg, u64>,
    /// All records are replayed: the txg from which on there is no log, and the log's
    /// blocks.
    ended: Option<(Txg, Vec<BlkPtr>)>,
}

/// The chain.
#[derive(Debug)]
pub(crate) struct Chain {
    objset: u64,
    checksum: Checksum,
    id: [u64; 2],
    links: VecDeque<Link>,
    /// Sequence number of the last record.
    pub(crate) record_seq: u64,
    /// The chain is abandoned from this txg on: a batch failed, or the log is closed.
    ending: Option<Txg>,
    /// Txgs that must write the header.
    dirty: BTreeSet<Txg>,
    /// The header as last written.
    written: Option<[u8; ZIL_HEADER_SIZE]>,
    replay: Option<Replay>,
}

impl Chain {
    pub(crate) fn new(objset: u64, checksum: Checksum) -> Chain {
        Chain {
            objset,
            checksum,
            id: [0; 2],
            links: VecDeque::new(),
            record_seq: 0,
            ending: None,
            dirty: BTreeSet::new(),
            written: None,
            replay: None,
        }
    }

    pub(crate) fn checksum(&self) -> Checksum {
        self.checksum
    }

    /// The stub; `None` if there is no chain.
    pub(crate) fn stub(&self) -> Option<&Link> {
        self.links.back()
    }

    pub(crate) fn is_replaying(&self) -> bool {
        self.replay.is_some()
    }

    /// Whether nothing can be added to the chain.
    pub(crate) fn is_ending(&self) -> bool {
        self.ending.is_some() || self.replay.is_some()
    }

    fn link(&self, dva: Dva, size: u64, alloc: Txg, seq: u64) -> Link {
        let [a, b] = self.id;
        let verifier = [a, b, self.objset, seq];
        let ptr = LogPtr::to(dva, size, alloc, self.checksum, verifier);
        Link { ptr, dva, size, alloc, newest: Txg::ZERO, flushed: false }
    }

    /// Begins a chain with its first stub.
    pub(crate) fn begin(&mut self, id: [u64; 2], dva: Dva, size: u64, txg: Txg) {
        self.id = id;
        self.record_seq = 0;
        let link = self.link(dva, size, txg, 1);
        self.links = VecDeque::from([link]);
        self.dirty.insert(txg);
    }

    /// Adds the blocks that follow the stub, allocated in `txg`. The stub and all but
    /// the last of them become issued, with records as new as `newest`. Returns the
    /// issued blocks.
    pub(crate) fn extend(
        &mut self,
        blocks_allocated: &[(Dva, u64)],
        txg: Txg,
        newest: &[Txg],
    ) -> Vec<Link> {
        let Some(stub) = self.links.back() else { return Vec::new() };
        let (first, seq) = (self.links.len() - 1, stub.ptr.seq());
        for (i, (dva, size)) in blocks_allocated.iter().enumerate() {
            let link = self.link(*dva, *size, txg, seq + 1 + i as u64);
            self.links.push_back(link);
        }
        for (link, newest) in self.links.iter_mut().skip(first).zip(newest) {
            link.newest = *newest;
        }
        self.dirty.insert(txg);
        self.links.iter().skip(first).cloned().collect()
    }

    /// Marks everything except the stub as being on the devices. Unflushed blocks are
    /// at the end, so the loop starts there: the chain of a txg may have tens of
    /// thousands of blocks.
    pub(crate) fn flushed(&mut self) {
        let issued = self.links.iter_mut().rev().skip(1);
        issued.take_while(|link| !link.flushed).for_each(|link| link.flushed = true);
    }

    /// Abandons the chain in `txg`, which the caller holds.
    pub(crate) fn end(&mut self, txg: Txg) {
        self.ending = Some(txg);
        self.dirty.insert(txg);
    }

    /// Whether `txg` must write the header.
    pub(crate) fn is_dirty(&self, txg: Txg) -> bool {
        self.dirty.first().is_some_and(|first| *first <= txg)
    }

    /// The header and the frees of `txg`; `None` if the header does not change.
    pub(crate) fn sync(&mut self, txg: Txg) -> Option<Moved> {
        self.dirty = self.dirty.split_off(&txg.next());
        let (header, free) = match self.replay.take() {
            Some(replay) => self.sync_replay(replay, txg),
            None => self.sync_chain(txg),
        };
        let header = header.encode();
        if self.written.is_none() && self.links.is_empty() && free.is_empty() {
            return None;
        }
        if self.written == Some(header) && free.is_empty() {
            return None;
        }
        self.written = Some(header);
        Some(Moved { header, free })
    }

    fn sync_chain(&mut self, txg: Txg) -> (ZilHeader, Vec<BlkPtr>) {
        let mut free = Vec::new();
        if self.ending.is_some_and(|from| from <= txg) {
            self.ending = None;
            free.extend(self.links.drain(..).map(|link| link.ptr.bp));
        }
        while let Some(link) = self.links.front()
            && link.flushed
            && link.alloc <= txg
            && link.newest <= txg
        {
            free.push(link.ptr.bp);
            self.links.pop_front();
        }
        let log = self.links.front().map_or(LogPtr::end([0; 4]), |link| link.ptr);
        (ZilHeader { log, ..empty_header() }, free)
    }

    fn sync_replay(&mut self, mut replay: Replay, txg: Txg) -> (ZilHeader, Vec<BlkPtr>) {
        if let Some((_, free)) = replay.ended.take_if(|(from, _)| *from <= txg) {
            // A missing header equals an empty one.
            self.written = Some(replay.header.encode());
            return (empty_header(), free);
        }
        let newer = replay.done.split_off(&txg.next());
        if let Some((_, seq)) = replay.done.pop_last() {
            replay.header.replay_seq = replay.header.replay_seq.max(seq);
        }
        replay.done = newer;
        let header = replay.header.clone();
        self.written.get_or_insert_with(|| header.encode());
        self.replay = Some(replay);
        (header, Vec::new())
    }

    /// Begins the replay of a log with this header.
    ///
    /// # Errors
    /// `Bug` if there is a chain.
    pub(crate) fn begin_replay(&mut self, header: ZilHeader) -> Result<()> {
        if !self.links.is_empty() || self.replay.is_some() {
            return Err(base::bug!("a log that is in use is to be replayed"));
        }
        self.written = Some(header.encode());
        self.replay = Some(Replay { header, seq: 0, done: BTreeMap::new(), ended: None });
        Ok(())
    }

    /// Record `seq` is replayed next.
    pub(crate) fn replaying(&mut self, seq: u64) {
        if let Some(replay) = &mut self.replay {
            replay.seq = seq;
        }
    }

    /// Records that the replay of the record is done, in `txg`.
    pub(crate) fn replayed(&mut self, txg: Txg) {
        if let Some(replay) = &mut self.replay
            && replay.seq != 0
        {
            replay.done.insert(txg, replay.seq);
            self.dirty.insert(txg);
        }
    }

    /// Records that all records are replayed, in txgs before `txg`, which the caller
    /// holds.
    pub(crate) fn end_replay(&mut self, txg: Txg, free: Vec<BlkPtr>) {
        if let Some(replay) = &mut self.replay {
            replay.ended = Some((txg, free));
            self.dirty.insert(txg);
        }
    }
}
