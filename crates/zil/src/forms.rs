//! Selects the form of each write in a batch, and gets the data that it needs.
//!
//! # Theory
//! Before a txg is held, indirect writes are cut at block boundaries, and the data of
//! all other writes is fetched ([`Source::read`] takes locks of files). Then a txg is
//! held and the blocks are written to their final places; they are in flight while the
//! log's own blocks are filled. A write whose block could not be placed needs its data
//! after all. In that case the txg is first released, with the placed blocks flushed,
//! because these belong to the txg then and no longer to the batch.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use base::{ObjectId, Result, Txg, VdevId};
use ondisk::BlkPtr;

use crate::pending::{Indirect, Itx, ItxPayload};
use crate::stats::{Stats, bump};
use crate::{EarlyBlocks, Hold, Source, Store};

/// Default of `zfs_immediate_write_sz`, bytes.
pub const IMMEDIATE_WRITE: u64 = 32 << 10;

static IMMEDIATE: AtomicU64 = AtomicU64::new(IMMEDIATE_WRITE);

/// Bytes from which on a write may be recorded by pointers to its blocks.
pub fn immediate_write() -> u64 {
    IMMEDIATE.load(Relaxed)
}

/// Sets [`immediate_write`] for all logs of the process.
pub fn set_immediate_write(bytes: u64) {
    IMMEDIATE.store(bytes, Relaxed);
}

/// Numbers of writes and their bytes, by form.
#[derive(Default)]
pub(crate) struct Forms {
    copied: [u64; 2],
    fetched: [u64; 2],
    indirect: [u64; 2],
}

impl Forms {
    fn add(form: &mut [u64; 2], bytes: u64) {
        form[0] += 1;
        form[1] += bytes;
    }

    pub(crate) fn count(&self, stats: &Stats) {
        let forms = [
            (&stats.copied, self.copied),
            (&stats.fetched, self.fetched),
            (&stats.indirect, self.indirect),
        ];
        for (counters, counts) in forms {
            counters.iter().zip(counts).for_each(|(c, n)| bump(c, n));
        }
    }
}

/// A held txg, and the early blocks that are being written in it.
pub(crate) struct HeldTxg {
    // Dropped before the hold, because it waits for blocks in flight.
    early: Option<Box<dyn EarlyBlocks>>,
    hold: Hold,
}

impl HeldTxg {
    pub(crate) fn empty(hold: Hold) -> HeldTxg {
        HeldTxg { early: None, hold }
    }

    pub(crate) fn txg(&self) -> Txg {
        self.hold.txg
    }

    /// As [`EarlyBlocks::wait`].
    pub(crate) fn wait(&mut self) -> Result<Vec<VdevId>> {
        self.early.as_mut().map_or(Ok(Vec::new()), |early| early.wait())
    }

    /// Releases the txg; `flushed` says whether the placed blocks are on the devices.
    pub(crate) fn end(mut self, flushed: bool) {
        if let Some(early) = self.early.take_if(|_| flushed) {
            early.keep();
        }
    }
}

/// Records that can be put into blocks.
pub(crate) struct ReadyRecords {
    pub(crate) records: Vec<Itx>,
    pub(crate) held: Option<HeldTxg>,
}

/// Gets the data that the records need. Returns `None` if some data no longer exists
/// and no record explains why, or if a block could not be written. The caller must then
/// wait for the txgs of the records.
pub(crate) fn make_ready(
    store: &dyn Store,
    source: &dyn Source,
    records: Vec<Itx>,
    forms: &mut Forms,
) -> Result<Option<ReadyRecords>> {
    for itx in &records {
        if let ItxPayload::Data { data, .. } = &itx.payload {
            Forms::add(&mut forms.copied, data.len() as u64);
        }
    }
    let records = cut_up(source, records);
    let Some(records) = fetch(source, records, forms)? else { return Ok(None) };
    let indirect = |itx: &Itx| matches!(itx.payload, ItxPayload::Range { .. });
    if !records.iter().any(indirect) {
        return Ok(Some(ReadyRecords { records, held: None }));
    }
    let hold = store.hold()?;
    let mut held = HeldTxg { early: source.early_blocks(hold.txg), hold };
    let records = place_early_blocks(store, source, &mut held, records, forms)?;
    if !records.iter().any(indirect) {
        return Ok(Some(ReadyRecords { records, held: Some(held) }));
    }
    let flushed = held.wait().and_then(|vdevs| store.flush(&vdevs));
    held.end(flushed.is_ok());
    if flushed.is_err() {
        return Ok(None);
    }
    let records = fetch(source, records, forms)?;
    Ok(records.map(|records| ReadyRecords { records, held: None }))
}

/// Cuts indirect writes at block boundaries; pieces that are not to be indirect become
/// separate writes.
fn cut_up(source: &dyn Source, records: Vec<Itx>) -> Vec<Itx> {
    let mut out = Vec::with_capacity(records.len());
    let mut sizes: HashMap<ObjectId, Option<u64>> = HashMap::new();
    for itx in records {
        let ItxPayload::Range { object, offset, len, indirect } = itx.payload else {
            out.push(itx);
            continue;
        };
        if indirect == Indirect::No {
            out.push(itx);
            continue;
        }
        let size = *sizes.entry(object).or_insert_with(|| source.block_size(object));
        let Some(size) = size.filter(|s| *s > 0) else {
            let payload = ItxPayload::Range { object, offset, len, indirect: Indirect::No };
            out.push(Itx { payload, ..itx });
            continue;
        };
        let (mut at, end) = (offset, offset.saturating_add(len));
        while at < end {
            let to = (at / size + 1).saturating_mul(size).min(end);
            let poor = indirect == Indirect::Large && to - at < size.div_ceil(2);
            let indirect = if poor { Indirect::No } else { indirect };
            let payload = ItxPayload::Range { object, offset: at, len: to - at, indirect };
            out.push(Itx { payload, order: itx.order, txg: itx.txg });
            at = to;
        }
    }
    out
}

/// Starts writing the blocks of indirect writes to their places; writes for which that
/// is impossible become writes with data.
fn place_early_blocks(
    store: &dyn Store,
    source: &dyn Source,
    held: &mut HeldTxg,
    records: Vec<Itx>,
    forms: &mut Forms,
) -> Result<Vec<Itx>> {
    let txg = held.txg();
    let mut out = Vec::with_capacity(records.len());
    // Blocks that a record of the batch names, without later records of their file:
    // their pointers, and the txg of the last record for each.
    let mut named: HashMap<ObjectId, HashMap<u64, (Txg, BlkPtr)>> = HashMap::new();
    for itx in records {
        let (object, offset, len) = match itx.payload {
            ItxPayload::Range { object, offset, len, .. } => (object, offset, len),
            ItxPayload::Data { object, .. } | ItxPayload::Cut { object, .. } => {
                named.remove(&object);
                out.push(itx);
                continue;
            }
            _ => {
                out.push(itx);
                continue;
            }
        };
        let size = held.early.as_ref().and_then(|p| p.block_size(object)).filter(|s| *s > 0);
        let block = size.map(|s| (offset / s, (offset + len - 1) / s, s));
        let before = block
            .filter(|(block, last, _)| block == last)
            .and_then(|(block, ..)| named.get_mut(&object)?.get_mut(&block));
        let payload = match (block, &mut held.early) {
            _ if let Some((last, bp)) = before => {
                // A replay skips records of txgs on disk, so a record of a later txg
                // must not depend on blocks that they name.
                let again = (*last != itx.txg || !source.has_write2()).then(|| Box::new(*bp));
                *last = itx.txg;
                ItxPayload::Placed { object, offset, len, block: again }
            }
            (Some((block, last, size)), Some(early))
                if block == last && store.reserve(txg, size) =>
            {
                match early.block(object, block)?.filter(|bp| !matches!(bp, BlkPtr::Redacted(_))) {
                    Some(bp) => {
                        named.entry(object).or_default().insert(block, (itx.txg, bp));
                        ItxPayload::Placed { object, offset, len, block: Some(Box::new(bp)) }
                    }
                    None => ItxPayload::Range { object, offset, len, indirect: Indirect::No },
                }
            }
            _ => ItxPayload::Range { object, offset, len, indirect: Indirect::No },
        };
        match &payload {
            ItxPayload::Placed { .. } => Forms::add(&mut forms.indirect, len),
            _ => drop(named.remove(&object)),
        }
        out.push(Itx { payload, ..itx });
    }
    Ok(out)
}

/// Gets data that was not copied. Returns `None` if some of it no longer exists and no
/// record explains why: the change that removed it would be missing from the log.
fn fetch(source: &dyn Source, records: Vec<Itx>, forms: &mut Forms) -> Result<Option<Vec<Itx>>> {
    let mut out = Vec::with_capacity(records.len());
    let mut cuts = HashMap::new();
    for itx in &records {
        if let ItxPayload::Cut { object, .. } = &itx.payload {
            cuts.insert(*object, itx.order);
        }
    }
    let cut = |object, order| cuts.get(&object).is_some_and(|cut| *cut > order);
    for itx in records {
        let ItxPayload::Range { object, offset, len, indirect: Indirect::No } = itx.payload else {
            out.push(itx);
            continue;
        };
        match source.read(object, offset, len)? {
            Some(data) if data.len() as u64 == len || cut(object, itx.order) => {
                Forms::add(&mut forms.fetched, len);
                out.push(Itx { payload: ItxPayload::Data { object, offset, data }, ..itx });
            }
            None if cut(object, itx.order) => {}
            _ => return Ok(None),
        }
    }
    Ok(Some(out))
}
