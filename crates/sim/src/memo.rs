//! What was judged already.
//!
//! # Theory
//! A verdict follows from the bytes that were read to reach it, and from nothing else.
//! So an image that has the same bytes in all those places gets the same verdict
//! without being imported. Most crashes tear up what nobody refers to yet; the places
//! that matter differ only around a commit.
//!
//! # Invariants
//! * Only good verdicts are kept: a bad one ends the run.
//!
//! Lock order: a leaf that no scheduler sees.

use std::sync::Arc;

use base::Txg;
use base::rt::plain;
use device::sim::Image;
use ondisk::BlkPtr;

use crate::image::Range;

/// Verdicts that an image is compared with before anything of it is read.
const RECENT: usize = 12;

/// How disks are judged: what was found good in one manner may not be in another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manner {
    /// These disks are not there.
    pub without: Vec<usize>,
    /// Copies and columns may be wrong.
    pub damage: bool,
}

impl Manner {
    /// Whether what is good in this manner is so in the other.
    fn implies(&self, other: &Manner) -> bool {
        self.without == other.without && (!self.damage || other.damage)
    }
}

/// A good verdict and what it was based on.
struct GoodVerdict {
    manner: Manner,
    images: Vec<Image>,
    txg: Txg,
    root: BlkPtr,
    /// Labels: which group counts.
    labels: Vec<Range>,
    /// Everything else.
    body: Vec<Range>,
}

/// Good verdicts of one run.
#[derive(Default)]
pub struct Memo(plain::Mutex<Vec<Arc<GoodVerdict>>>);

fn same(entry: &GoodVerdict, images: &[Image], ranges: &[Range]) -> bool {
    alike(&entry.images, images, ranges)
}

/// Whether two sets of disks have the same bytes in all these places.
pub(crate) fn alike(one: &[Image], other: &[Image], ranges: &[Range]) -> bool {
    let same_in = |r: &Range| match (one.get(r.disk), other.get(r.disk)) {
        (Some(a), Some(b)) => a.same(b, r.offset, r.len),
        _ => false,
    };
    ranges.iter().all(same_in)
}

/// Ranges in order, those that touch as one.
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

/// What earlier verdicts say of a group in an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PriorVerdict {
    /// It was judged, and nothing of it changed.
    Good,
    /// It was judged, and something of it is different here.
    Changed,
    /// Nothing.
    Nothing,
}

impl Memo {
    fn entries(&self, manner: &Manner) -> Vec<Arc<GoodVerdict>> {
        let entries = self.0.lock();
        entries.iter().rev().filter(|e| e.manner.implies(manner)).cloned().collect()
    }

    /// The group that an import would find, if all that matters is as it was.
    pub fn whole(&self, images: &[Image], manner: &Manner) -> Option<Txg> {
        let good = |e: &&Arc<GoodVerdict>| same(e, images, &e.labels) && same(e, images, &e.body);
        self.entries(manner).iter().take(RECENT).find(good).map(|e| e.txg)
    }

    /// If the state behind `root` is as it was: what was read to judge it.
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

    /// Groups judged, from `from` up to but not including `to`.
    pub fn groups(&self, from: Txg, to: Txg) -> Vec<Txg> {
        let mut out: Vec<Txg> = self.0.lock().iter().map(|e| e.txg).collect();
        out.retain(|t| *t >= from && *t < to);
        out.sort_unstable();
        out.dedup();
        out
    }

    /// What is known of group `txg` in this image, where nothing may be damaged.
    pub fn group(&self, images: &[Image], txg: Txg) -> PriorVerdict {
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

    /// Keeps a good verdict.
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
