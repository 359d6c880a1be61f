//! Which form each write of a batch takes, and getting what that needs.
//!
//! # Theory
//! Before a group is held, indirect writes are cut at the boundaries of blocks, and the data
//! of all others is fetched ([`Source::read`] takes locks of files). Then a group is held and
//! the blocks are placed; they are under way while the log's own blocks are filled. What
//! could not be placed needs its data after all: the group is let go first, with the placed
//! blocks flushed, for they are the group's now and not the batch's.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use base::{ObjectId, Result, Txg, VdevId};
use ondisk::BlkPtr;

use crate::pending::{Indirect, Itx, What};
use crate::stats::{Stats, bump};
use crate::{Hold, Place, Source, Store};

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

/// Writes and their bytes, by their forms.
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

/// A group that is held, and the blocks that are being written to their places in it.
pub(crate) struct Held {
    // Dropped before the hold: it waits for what is under way.
    place: Option<Box<dyn Place>>,
    hold: Hold,
}

impl Held {
    pub(crate) fn empty(hold: Hold) -> Held {
        Held { place: None, hold }
    }

    pub(crate) fn txg(&self) -> Txg {
        self.hold.txg
    }

    /// As [`Place::wait`].
    pub(crate) fn wait(&mut self) -> Result<Vec<VdevId>> {
        self.place.as_mut().map_or(Ok(Vec::new()), |place| place.wait())
    }

    /// Lets the group go; `flushed`: what was placed is on the devices.
    pub(crate) fn end(mut self, flushed: bool) {
        if let Some(place) = self.place.take_if(|_| flushed) {
            place.keep();
        }
    }
}

/// Records that can be put into blocks.
pub(crate) struct Ready {
    pub(crate) records: Vec<Itx>,
    pub(crate) held: Option<Held>,
}

/// Gets what the records need. `None` if some data is not there any more, and no record
/// says why; or if a block could not be written: their groups are to be waited for.
pub(crate) fn make_ready(
    store: &dyn Store,
    source: &dyn Source,
    records: Vec<Itx>,
    forms: &mut Forms,
) -> Result<Option<Ready>> {
    for itx in &records {
        if let What::Data { data, .. } = &itx.what {
            Forms::add(&mut forms.copied, data.len() as u64);
        }
    }
    let records = cut_up(source, records);
    let Some(records) = fetch(source, records, forms)? else { return Ok(None) };
    let indirect = |itx: &Itx| matches!(itx.what, What::Range { .. });
    if !records.iter().any(indirect) {
        return Ok(Some(Ready { records, held: None }));
    }
    let hold = store.hold()?;
    let mut held = Held { place: source.place(hold.txg), hold };
    let records = place_all(store, &mut held, records, forms)?;
    if !records.iter().any(indirect) {
        return Ok(Some(Ready { records, held: Some(held) }));
    }
    let flushed = held.wait().and_then(|vdevs| store.flush(&vdevs));
    held.end(flushed.is_ok());
    if flushed.is_err() {
        return Ok(None);
    }
    let records = fetch(source, records, forms)?;
    Ok(records.map(|records| Ready { records, held: None }))
}

/// Cuts indirect writes at the boundaries of blocks; pieces that are not to be indirect are
/// writes of their own.
fn cut_up(source: &dyn Source, records: Vec<Itx>) -> Vec<Itx> {
    let mut out = Vec::with_capacity(records.len());
    let mut sizes: HashMap<ObjectId, Option<u64>> = HashMap::new();
    for itx in records {
        let What::Range { object, offset, len, indirect } = itx.what else {
            out.push(itx);
            continue;
        };
        if indirect == Indirect::No {
            out.push(itx);
            continue;
        }
        let size = *sizes.entry(object).or_insert_with(|| source.block_size(object));
        let Some(size) = size.filter(|s| *s > 0) else {
            let what = What::Range { object, offset, len, indirect: Indirect::No };
            out.push(Itx { what, ..itx });
            continue;
        };
        let (mut at, end) = (offset, offset.saturating_add(len));
        while at < end {
            let to = (at / size + 1).saturating_mul(size).min(end);
            let poor = indirect == Indirect::Large && to - at < size.div_ceil(2);
            let indirect = if poor { Indirect::No } else { indirect };
            let what = What::Range { object, offset: at, len: to - at, indirect };
            out.push(Itx { what, order: itx.order, txg: itx.txg });
            at = to;
        }
    }
    out
}

/// Has indirect writes' blocks written; those where that cannot be done become writes with
/// data.
fn place_all(
    store: &dyn Store,
    held: &mut Held,
    records: Vec<Itx>,
    forms: &mut Forms,
) -> Result<Vec<Itx>> {
    let txg = held.txg();
    let mut out = Vec::with_capacity(records.len());
    // Blocks that a record of the batch names, with nothing else of their file behind it: their
    // pointers, and the group of the last record with each.
    let mut named: HashMap<ObjectId, HashMap<u64, (Txg, BlkPtr)>> = HashMap::new();
    for itx in records {
        let (object, offset, len) = match itx.what {
            What::Range { object, offset, len, .. } => (object, offset, len),
            What::Data { object, .. } | What::Cut { object, .. } => {
                named.remove(&object);
                out.push(itx);
                continue;
            }
            _ => {
                out.push(itx);
                continue;
            }
        };
        let size = held.place.as_ref().and_then(|p| p.block_size(object)).filter(|s| *s > 0);
        let block = size.map(|s| (offset / s, (offset + len - 1) / s, s));
        let before = block
            .filter(|(block, last, _)| block == last)
            .and_then(|(block, ..)| named.get_mut(&object)?.get_mut(&block));
        let what = match (block, &mut held.place) {
            _ if let Some((last, bp)) = before => {
                // A replay skips records of groups on disk: one of a later group must not rely
                // on what they name.
                let again = (*last != itx.txg).then(|| Box::new(*bp));
                *last = itx.txg;
                What::Placed { object, offset, len, block: again }
            }
            (Some((block, last, size)), Some(place))
                if block == last && store.reserve(txg, size) =>
            {
                match place.block(object, block)?.filter(|bp| bp.encode().is_some()) {
                    Some(bp) => {
                        named.entry(object).or_default().insert(block, (itx.txg, bp));
                        What::Placed { object, offset, len, block: Some(Box::new(bp)) }
                    }
                    None => What::Range { object, offset, len, indirect: Indirect::No },
                }
            }
            _ => What::Range { object, offset, len, indirect: Indirect::No },
        };
        match &what {
            What::Placed { .. } => Forms::add(&mut forms.indirect, len),
            _ => drop(named.remove(&object)),
        }
        out.push(Itx { what, ..itx });
    }
    Ok(out)
}

/// Gets data that was not copied. `None` if some of it is not there any more, and no record
/// says why: the change that took it away would be missing.
fn fetch(source: &dyn Source, records: Vec<Itx>, forms: &mut Forms) -> Result<Option<Vec<Itx>>> {
    let mut out = Vec::with_capacity(records.len());
    let mut cuts = HashMap::new();
    for itx in &records {
        if let What::Cut { object, .. } = &itx.what {
            cuts.insert(*object, itx.order);
        }
    }
    let cut = |object, order| cuts.get(&object).is_some_and(|cut| *cut > order);
    for itx in records {
        let What::Range { object, offset, len, indirect: Indirect::No } = itx.what else {
            out.push(itx);
            continue;
        };
        match source.read(object, offset, len)? {
            Some(data) if data.len() as u64 == len || cut(object, itx.order) => {
                Forms::add(&mut forms.fetched, len);
                out.push(Itx { what: What::Data { object, offset, data }, ..itx });
            }
            None if cut(object, itx.order) => {}
            _ => return Ok(None),
        }
    }
    Ok(Some(out))
}
