//! The stored state of a scrub or resilver, and what changes of the dataset graph do to it
//! (chapter 04 §17).
//!
//! # Theory
//! The state has a position: the dataset being visited with a bookmark in it, and a queue of
//! datasets that are visited next. What follows these in the graph is found later, when its
//! predecessor has been visited. So the position leads to every dataset that is not visited
//! yet, and a change of the graph must keep that true ([`ScanPosition::apply`]):
//! * A snapshot of a head that is being visited, or is queued, takes the head's place: it
//!   has the old blocks, and leads to the head.
//! * A destroyed snapshot is replaced by the next one, which has the blocks that are left.
//!   If it was being visited, the next one is visited from its beginning: its own blocks
//!   before the bookmark were not visited.
//! * A destroyed head disappears.
//! * Heads that exchange their content exchange their places.
//!
//! Each such change edits the stored position in its txg, and is listed in the context
//! ([`SyncCx::take_scan_events`]), for the position of a running scan, which is ahead of the
//! stored one.
//!
//! # Invariants
//! * A stored scan that is not running has no queue object.

use std::collections::BTreeMap;

use base::{ObjectId, Result, Txg};
use ondisk::ObjType;
use ondisk::dslphys::BookmarkPlace;
use ondisk::scan::{ERROR_SCRUB_WORDS, ErrorScrub, SCAN_WORDS, Scan, ScanState};
use ondisk::zap::ZapValue;

use super::SyncCx;
use super::store::{DIRECTORY, MosRead};

/// The object set of a bookmark in no dataset: the next one of the queue follows.
pub const NO_DATASET: u64 = u64::MAX;
/// Entries of a queue that are read: more than a pool has datasets.
const QUEUE_MAX: usize = 1 << 24;
const SCAN: &[u8] = b"scan";
const ERROR_SCRUB: &[u8] = b"error_scrub";

/// A change of the dataset graph that concerns a running scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanEvent {
    /// A snapshot was made: head and snapshot.
    Snapshotted(u64, u64),
    /// A snapshot was destroyed: it, and the next one or the head.
    SnapshotDestroyed(u64, u64),
    /// A head was destroyed.
    HeadDestroyed(u64),
    /// Two heads exchanged their content.
    Swapped(u64, u64),
}

/// The datasets that a scan has still to visit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanPosition {
    /// The next block to visit; object set 0 is the MOS, with which a scan begins, and
    /// [`NO_DATASET`] none.
    pub bookmark: BookmarkPlace,
    /// Datasets to visit after that one, with the txg after which their own blocks were
    /// born.
    pub queue: BTreeMap<u64, Txg>,
}

impl ScanPosition {
    /// The position before everything.
    pub fn start() -> ScanPosition {
        ScanPosition { bookmark: BookmarkPlace::default(), queue: BTreeMap::new() }
    }

    /// The position after everything.
    pub fn at_end() -> ScanPosition {
        ScanPosition { bookmark: ScanPosition::first_of(NO_DATASET), queue: BTreeMap::new() }
    }

    /// The position of a dataset's first block.
    pub fn first_of(objset: u64) -> BookmarkPlace {
        BookmarkPlace { objset, ..BookmarkPlace::default() }
    }

    /// Whether nothing is left to visit.
    pub fn is_end(&self) -> bool {
        self.bookmark.objset == NO_DATASET && self.queue.is_empty()
    }

    /// Adapts the position to a change; returns whether it differs.
    pub fn apply(&mut self, event: &ScanEvent) -> bool {
        let before = (self.bookmark, self.queue.len());
        match *event {
            ScanEvent::Snapshotted(head, snapshot) => {
                if self.bookmark.objset == head {
                    self.bookmark.objset = snapshot;
                }
                if let Some(min) = self.queue.remove(&head) {
                    self.queue.insert(snapshot, min);
                    return true;
                }
            }
            ScanEvent::SnapshotDestroyed(snapshot, next) => {
                if self.bookmark.objset == snapshot {
                    self.queue.remove(&next);
                    self.bookmark = ScanPosition::first_of(next);
                }
                if let Some(min) = self.queue.remove(&snapshot) {
                    if self.bookmark.objset == next {
                        // It has blocks now that were not its own.
                        self.bookmark = ScanPosition::first_of(next);
                    } else {
                        self.queue.insert(next, min);
                    }
                    return true;
                }
            }
            ScanEvent::HeadDestroyed(head) => {
                if self.bookmark.objset == head {
                    self.bookmark = ScanPosition::first_of(NO_DATASET);
                }
                self.queue.remove(&head);
            }
            ScanEvent::Swapped(a, b) => {
                let at = &mut self.bookmark.objset;
                *at = if *at == a { b } else { [*at, a][usize::from(*at == b)] };
                let (of_a, of_b) = (self.queue.remove(&a), self.queue.remove(&b));
                self.queue.extend(of_a.map(|min| (b, min)));
                self.queue.extend(of_b.map(|min| (a, min)));
                return true;
            }
        }
        before != (self.bookmark, self.queue.len())
    }
}

/// The stored state of the last or current scan; `None` if there was none, and for an entry
/// of another length, which is to be ignored (chapter 04 §1.2).
///
/// # Errors
/// Those of reading the MOS; `Corrupt`.
pub fn load(mos: &dyn MosRead) -> Result<Option<Scan>> {
    let Some(value) = mos.zap_lookup(DIRECTORY, SCAN)? else { return Ok(None) };
    let words = value.u64s().and_then(|w| <[u64; SCAN_WORDS]>::try_from(w).ok());
    words.map(|words| Scan::from_words(&words)).transpose()
}

/// The stored state of the last or current error scrub.
///
/// # Errors
/// As [`load`].
pub fn load_error_scrub(mos: &dyn MosRead) -> Result<Option<ErrorScrub>> {
    let Some(value) = mos.zap_lookup(DIRECTORY, ERROR_SCRUB)? else { return Ok(None) };
    let words = value.u64s().and_then(|w| <[u64; ERROR_SCRUB_WORDS]>::try_from(w).ok());
    words.map(|words| ErrorScrub::from_words(&words)).transpose()
}

/// The position of a stored scan.
///
/// # Errors
/// Those of reading the MOS; `Corrupt`.
pub fn position(mos: &dyn MosRead, scan: &Scan) -> Result<ScanPosition> {
    let mut queue = BTreeMap::new();
    let entries = mos.numbers(scan.queue.map_or(0, |o| o.0))?;
    for (name, min) in entries.into_iter().take(QUEUE_MAX) {
        // The scan does without an entry that names no object.
        if let Ok(dataset) = u64::from_str_radix(&name, 16) {
            queue.insert(dataset, Txg(min));
        }
    }
    Ok(ScanPosition { bookmark: scan.bookmark, queue })
}

/// Stores the state of a scan and its position. The queue's object is made anew, or freed
/// if the scan does not run.
///
/// # Errors
/// Those of the store.
pub fn store(cx: &SyncCx<'_>, scan: &mut Scan, position: &ScanPosition) -> Result<()> {
    if let Some(old) = scan.queue.take() {
        // A damaged state may name an object that does not exist.
        match cx.mos.free_object(old.0) {
            Err(e) if e.kind() != base::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
    }
    if scan.state == ScanState::Scanning {
        let queue = cx.new_zap(ObjType::SCAN_QUEUE, 0)?;
        for (dataset, min) in &position.queue {
            cx.put_number(queue, &format!("{dataset:x}"), min.0)?;
        }
        scan.queue = Some(ObjectId(queue));
    }
    scan.bookmark = position.bookmark;
    put_words(cx, SCAN, &scan.to_words())
}

/// Stores the state of an error scrub.
///
/// # Errors
/// Those of the store.
pub fn store_error_scrub(cx: &SyncCx<'_>, scrub: &ErrorScrub) -> Result<()> {
    put_words(cx, ERROR_SCRUB, &scrub.to_words())
}

fn put_words(cx: &SyncCx<'_>, name: &[u8], words: &[u64]) -> Result<()> {
    let value = ZapValue::from_u64s(words);
    let value = value.ok_or_else(|| base::bug!("a scan's state is a value"))?;
    cx.mos.zap_update(DIRECTORY, name, &value)
}

/// Adapts the stored position of a running scan to a change of the graph, and lists the
/// change in the context.
pub(crate) fn changed(cx: &SyncCx<'_>, event: ScanEvent) -> Result<()> {
    let Some(mut scan) = load(cx.read())? else { return Ok(()) };
    if scan.state != ScanState::Scanning {
        return Ok(());
    }
    let mut position = position(cx.read(), &scan)?;
    if position.apply(&event) {
        // The range of another dataset is unknown here; that of the whole scan is right for
        // each of them.
        (scan.cur_min_txg, scan.cur_max_txg) = (scan.min_txg, scan.max_txg);
        store(cx, &mut scan, &position)?;
    }
    cx.scan_events.borrow_mut().push(event);
    Ok(())
}

/// Adapts the stored position to the exchange of two heads' content.
///
/// # Errors
/// Those of the store; `Corrupt`.
pub fn swapped(cx: &SyncCx<'_>, a: u64, b: u64) -> Result<()> {
    changed(cx, ScanEvent::Swapped(a, b))
}

/// Stores the numbers of a scan; its position stays as it is.
///
/// # Errors
/// Those of the store.
pub fn store_numbers(cx: &SyncCx<'_>, scan: &Scan) -> Result<()> {
    put_words(cx, SCAN, &scan.to_words())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(objset: u64, object: u64, queue: &[u64]) -> ScanPosition {
        let bookmark = BookmarkPlace { object, ..ScanPosition::first_of(objset) };
        ScanPosition { bookmark, queue: queue.iter().map(|&d| (d, Txg(d))).collect() }
    }

    /// Every change of the graph leaves a position that leads to all that is not visited yet.
    #[test]
    fn changes_of_the_graph() {
        use ScanEvent::{HeadDestroyed, SnapshotDestroyed, Snapshotted, Swapped};
        let cases = [
            // A snapshot of the head that is visited has its blocks, and leads to it.
            (at(10, 7, &[]), Snapshotted(10, 20), at(20, 7, &[])),
            (at(10, 7, &[30]), Snapshotted(30, 20), at(10, 7, &[20])),
            (at(10, 7, &[30]), Snapshotted(40, 20), at(10, 7, &[30])),
            // The next one has what is left of a destroyed snapshot: from its beginning, because
            // its own blocks were not visited.
            (at(10, 7, &[]), SnapshotDestroyed(10, 11), at(11, 0, &[])),
            (at(10, 7, &[11]), SnapshotDestroyed(10, 11), at(11, 0, &[])),
            (at(10, 7, &[30]), SnapshotDestroyed(30, 31), at(10, 7, &[31])),
            (at(31, 7, &[30]), SnapshotDestroyed(30, 31), at(31, 0, &[])),
            (at(10, 7, &[30]), SnapshotDestroyed(40, 41), at(10, 7, &[30])),
            (at(10, 7, &[30]), HeadDestroyed(10), at(NO_DATASET, 0, &[30])),
            (at(10, 7, &[30]), HeadDestroyed(30), at(10, 7, &[])),
            (at(10, 7, &[30]), Swapped(10, 30), at(30, 7, &[10])),
            (at(10, 7, &[]), Swapped(10, 30), at(30, 7, &[])),
            (at(30, 7, &[40]), Swapped(10, 30), at(10, 7, &[40])),
        ];
        for (mut position, event, wanted) in cases {
            let differs = position != wanted;
            let changed = position.apply(&event);
            let keys = |p: &ScanPosition| p.queue.keys().copied().collect::<Vec<_>>();
            assert_eq!(position.bookmark, wanted.bookmark, "{event:?}");
            assert_eq!(keys(&position), keys(&wanted), "{event:?}");
            assert!(changed || !differs, "{event:?}");
        }
        assert!(ScanPosition::at_end().is_end() && !ScanPosition::start().is_end());
    }
}
