//! Cache of verdicts.
//!
//! # Theory
//! A verdict depends only on the bytes that were read to reach it. So an image that has the
//! same bytes in all those places gets the same verdict without being imported. Most
//! crashes tear data that nothing refers to yet; the relevant bytes differ only around a
//! commit.
//!
//! # Invariants
//! * Only good verdicts are stored: a bad one ends the run.
//!
//! Lock order: a leaf, invisible to the scheduler.

use std::sync::Arc;

use base::Txg;
use base::rt::plain;
use device::sim::Image;
use ondisk::BlkPtr;

use crate::image::Range;

/// Verdicts with which an image is compared before it is read.
const RECENT: usize = 12;

/// How disks are judged: a good verdict in one manner may not apply in another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manner {
    /// These disks are missing.
    pub without: Vec<usize>,
    /// Copies and columns may be wrong.
    pub damage: bool,
}

impl Manner {
    /// Whether a good verdict in this manner implies one in the other.
    fn implies(&self, other: &Manner) -> bool {
        self.without == other.without && (!self.damage || other.damage)
    }
}

/// A good verdict and the bytes that it is based on.
struct GoodVerdict {
    manner: Manner,
    images: Vec<Image>,
    txg: Txg,
    root: BlkPtr,
    /// Ranges in labels, which determine the txg.
    labels: Vec<Range>,
    /// All other ranges.
    body: Vec<Range>,
}

/// Good verdicts of one run.
#[derive(Default)]
pub struct Memo(plain::Mutex<Vec<Arc<GoodVerdict>>>);

fn same(entry: &GoodVerdict, images: &[Image], ranges: &[Range]) -> bool {
    alike(&entry.images, images, ranges)
}

/// Whether two sets of disks have the same bytes in all these ranges.
pub(crate) fn alike(one: &[Image], other: &[Image], ranges: &[Range]) -> bool {
    let same_in = |r: &Range| match (one.get(r.disk), other.get(r.disk)) {
        (Some(a), Some(b)) => a.same(b, r.offset, r.len),
        _ => false,
    };
    ranges.iter().all(same_in)
}

/// Sorts ranges, and merges those that touch.
pub(crate) fn tidy(mut ranges: Vec<Range>) -> Vec<Range> {
    ranges.sort_unstable();
    let mut out: Vec<Range> = Vec::with_capacity(ranges.len());
    for r in ranges {
        match out.last_mut() {
            Some(last) if last.disk == r.disk && r.offset <= last.offset + last.len => {
                last.len = last.len.max(r.offset + r.len - last.offset);
            }
            _ => out.push(r),
        }
    }
    out
}

/// The relation of earlier verdicts to a txg in an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PriorVerdict {
    /// It was judged, and none of its bytes changed.
    Good,
    /// It was judged, and some of its bytes differ here.
    Changed,
    /// There is no verdict.
    Nothing,
}

impl Memo {
    fn entries(&self, manner: &Manner) -> Vec<Arc<GoodVerdict>> {
        let entries = self.0.lock();
        entries.iter().rev().filter(|e| e.manner.implies(manner)).cloned().collect()
    }

    /// The txg that an import would find, if all relevant bytes are unchanged.
    pub(crate) fn import_verdict(&self, images: &[Image], manner: &Manner) -> Option<Txg> {
        let good = |e: &&Arc<GoodVerdict>| same(e, images, &e.labels) && same(e, images, &e.body);
        self.entries(manner).iter().take(RECENT).find(good).map(|e| e.txg)
    }

    /// The verdict, if the state below `root` is unchanged; or the bytes read to judge it.
    pub fn body(
        &self,
        images: &[Image],
        manner: &Manner,
        txg: Txg,
        root: &BlkPtr,
    ) -> Option<Vec<Range>> {
        let good =
            |e: &&Arc<GoodVerdict>| e.txg == txg && e.root == *root && same(e, images, &e.body);
        self.entries(manner).iter().find(good).map(|e| e.body.clone())
    }

    /// Txgs judged, from `from` up to but not including `to`.
    pub fn txgs(&self, from: Txg, to: Txg) -> Vec<Txg> {
        let mut out: Vec<Txg> = self.0.lock().iter().map(|e| e.txg).collect();
        out.retain(|t| *t >= from && *t < to);
        out.sort_unstable();
        out.dedup();
        out
    }

    /// The earlier verdict about `txg` in this image, where no damage is allowed.
    pub(crate) fn txg_verdict(&self, images: &[Image], txg: Txg) -> PriorVerdict {
        let entries = self.entries(&Manner::default());
        let mut of = entries.iter().filter(|e| e.txg == txg).peekable();
        if of.peek().is_none() {
            return PriorVerdict::Nothing;
        }
        if of.any(|e| same(e, images, &e.body)) {
            PriorVerdict::Good
        } else {
            PriorVerdict::Changed
        }
    }

    /// Stores a good verdict.
    pub fn keep(
        &self,
        images: &[Image],
        manner: &Manner,
        txg: Txg,
        root: BlkPtr,
        labels: Vec<Range>,
        body: Vec<Range>,
    ) {
        let (labels, body) = (tidy(labels), tidy(body));
        let manner = manner.clone();
        let entry = GoodVerdict { manner, images: images.to_vec(), txg, root, labels, body };
        self.0.lock().push(Arc::new(entry));
    }
}
