//! The search for a block's content in the cells that were read, and the detection of
//! wrong cells.
//!
//! # Theory
//! [`Solver::each`] produces candidate contents of a shape in order of likelihood until
//! its caller accepts one. A mirror's candidates are the different contents of its
//! children. The candidates of a parity stripe follow from treating 0, 1, .. nparity
//! columns as missing (chapter 02 §10.6): first the same children in all stripes; then,
//! after an expansion, the children as they were at each older width; then each of two
//! stripes separately. The candidates of a split block are all combinations of its
//! pieces. Stale copies take part only in a second round.
//!
//! [`audit`] is the inverse: it encodes the columns of the accepted content and
//! compares them with what every leaf returned.
//!
//! # Invariants
//! * Candidates are bounded by `limits`; a candidate is never used unaccepted.

use std::collections::HashSet;

use base::{Buf, BufMut};

use crate::limits::{COMBINATIONS_MAX, COMBINATIONS_MIN, SPLITS_MAX, VERSIONS_MAX};
use crate::map::{BlockMap, Col};
use crate::parity;
use crate::plan::PlanShape;

/// The bytes of each cell; `None` if it could not be read.
pub(crate) type Cells = [Option<Buf>];

/// Candidate search.
pub(crate) struct Solver<'a> {
    pub(crate) cells: &'a Cells,
    /// Whether copies that missed the block's txg take part.
    pub(crate) stale: bool,
    /// Whether to try more than the candidates that follow from known failures.
    pub(crate) exhaustive: bool,
}

/// One column's contents.
enum Versions {
    /// Not stored (or padding): zeros.
    Zero,
    /// The contents of the copies; if empty, the column is missing.
    Known(Vec<Buf>),
}

impl Versions {
    fn count(&self) -> usize {
        match self {
            Versions::Zero => 1,
            Versions::Known(all) => all.len(),
        }
    }
}

type Accept<'f> = &'f mut dyn FnMut(&Buf) -> bool;

impl Solver<'_> {
    /// Calls `accept` with candidates of `len` bytes until it accepts one.
    pub(crate) fn each(&self, shape: &PlanShape, len: u64, accept: Accept<'_>) -> Option<Buf> {
        match shape {
            PlanShape::Dead => None,
            PlanShape::Cell { stale: true, .. } if !self.stale => None,
            PlanShape::Cell { index, .. } => {
                let buf = self.cells.get(*index)?.as_ref()?;
                accept(buf).then(|| buf.clone())
            }
            PlanShape::Mirror(children) => {
                let mut seen: Vec<Buf> = Vec::new();
                for child in children {
                    let found = self.each(child, len, &mut |buf| {
                        if seen.contains(buf) || seen.len() >= VERSIONS_MAX {
                            return false;
                        }
                        seen.push(buf.clone());
                        accept(buf)
                    });
                    if found.is_some() {
                        return found;
                    }
                }
                None
            }
            PlanShape::Split(parts) => self.each_split(parts, len, accept),
            PlanShape::Raid { map, cols } => self.each_raid(map, cols, len, accept),
        }
    }

    /// The different contents of a shape.
    fn versions(&self, shape: &PlanShape, len: u64) -> Vec<Buf> {
        let mut all: Vec<Buf> = Vec::new();
        let most = if self.exhaustive { VERSIONS_MAX } else { 1 };
        self.each(shape, len, &mut |buf| {
            if !all.contains(buf) {
                all.push(buf.clone());
            }
            all.len() >= most
        });
        all
    }

    fn each_split(
        &self,
        parts: &[(u64, u64, PlanShape)],
        len: u64,
        accept: Accept<'_>,
    ) -> Option<Buf> {
        let choices: Vec<Vec<Buf>> = parts.iter().map(|(_, n, s)| self.versions(s, *n)).collect();
        let counts: Vec<usize> = choices.iter().map(Vec::len).collect();
        let mut picks = Odometer::new(&counts)?;
        for _ in 0..SPLITS_MAX {
            let mut block = BufMut::alloc(len as usize);
            for (i, (start, n, _)) in parts.iter().enumerate() {
                let start = *start as usize;
                let to = block.get_mut(start..start + *n as usize)?;
                to.copy_from_slice(choices[i][picks.at[i]].get(..to.len())?);
            }
            let block = block.freeze();
            if accept(&block) {
                return Some(block);
            }
            if !self.exhaustive || !picks.next() {
                break;
            }
        }
        None
    }

    fn each_raid(
        &self,
        map: &BlockMap,
        shapes: &[Vec<Option<PlanShape>>],
        len: u64,
        accept: Accept<'_>,
    ) -> Option<Buf> {
        let mut versions = Vec::with_capacity(map.stripes.len());
        for (stripe, shapes) in map.stripes.iter().zip(shapes) {
            let column = |(i, col): (usize, &Col)| {
                let data = i >= map.nparity;
                match shapes.get(i).and_then(Option::as_ref) {
                    _ if col.child.is_none() || (data && col.len == 0) => Versions::Zero,
                    Some(shape) => Versions::Known(self.versions(shape, col.stored)),
                    None => Versions::Known(Vec::new()),
                }
            };
            versions.push(stripe.cols.iter().enumerate().map(column).collect::<Vec<_>>());
        }
        let floor = (1u64 << 34) / len.max(1);
        let budget = (floor as usize).clamp(COMBINATIONS_MIN, COMBINATIONS_MAX);
        let mut search =
            Search { map, versions: &versions, len, budget, tried: HashSet::new(), accept };
        search.run(self.exhaustive)
    }
}

/// Iterates over all choices, the last digit fastest.
struct Odometer {
    limits: Vec<usize>,
    at: Vec<usize>,
}

impl Odometer {
    /// `None` if some digit has no value.
    fn new(limits: &[usize]) -> Option<Odometer> {
        let possible = limits.iter().all(|&n| n > 0);
        possible.then(|| Odometer { limits: limits.to_vec(), at: vec![0; limits.len()] })
    }

    fn next(&mut self) -> bool {
        for (digit, limit) in self.at.iter_mut().zip(&self.limits).rev() {
            *digit += 1;
            if *digit < *limit {
                return true;
            }
            *digit = 0;
        }
        false
    }
}

/// All ascending choices of `k` out of `0..n`; `f` returns true to stop.
fn choose(n: usize, k: usize, f: &mut dyn FnMut(&[usize]) -> bool) -> bool {
    if k > n {
        return false;
    }
    let mut at: Vec<usize> = (0..k).collect();
    loop {
        if f(&at) {
            return true;
        }
        let Some(i) = (0..k).rev().find(|&i| at[i] < n - k + i) else { return false };
        at[i] += 1;
        for j in i + 1..k {
            at[j] = at[j - 1] + 1;
        }
    }
}

/// The search for one parity block.
struct Search<'s, 'f> {
    map: &'s BlockMap,
    versions: &'s [Vec<Versions>],
    len: u64,
    budget: usize,
    /// Combinations already tried: missing and used columns and the versions picked.
    tried: HashSet<Vec<u32>>,
    accept: Accept<'f>,
}

impl Search<'_, '_> {
    fn run(&mut self, exhaustive: bool) -> Option<Buf> {
        // Choices of versions: usually every column has one.
        let versions = self.versions;
        let flat: Vec<usize> = versions.iter().flatten().map(|v| v.count().max(1)).collect();
        let mut picks = Odometer::new(&flat)?;
        loop {
            let at = picks.at.clone();
            if let Some(block) = self.attempt(&at, &|_, _| false) {
                return Some(block);
            }
            if !exhaustive {
                return None;
            }
            if let Some(block) = self.with_missing(&at) {
                return Some(block);
            }
            if self.budget == 0 || !picks.next() {
                return None;
            }
        }
    }

    fn with_missing(&mut self, picks: &[usize]) -> Option<Buf> {
        let map = self.map;
        let children: std::collections::BTreeSet<u32> =
            map.stripes.iter().flat_map(|s| s.cols.iter().filter_map(|c| c.child)).collect();
        let children: Vec<u32> = children.into_iter().collect();
        let mut found = None;
        for t in 1..=map.nparity {
            choose(children.len(), t, &mut |set| {
                let suspect = |s: usize, c: usize| {
                    let child = map.stripes[s].cols[c].child;
                    set.iter().any(|&i| Some(children[i]) == child)
                };
                found = self.attempt(picks, &suspect);
                found.is_some() || self.budget == 0
            });
            if found.is_some() {
                return found;
            }
        }
        for &width in &map.widths {
            for t in 1..=map.nparity {
                choose(width as usize, t, &mut |set| {
                    let suspect = |s: usize, c: usize| {
                        let home = map.stripes[s].cols[c].sector % u64::from(width);
                        set.iter().any(|&k| k as u64 == home)
                    };
                    found = self.attempt(picks, &suspect);
                    found.is_some() || self.budget == 0
                });
                if found.is_some() {
                    return found;
                }
            }
        }
        self.each_stripe_alone(picks)
    }

    /// A block across two groups: different children may be bad in each.
    fn each_stripe_alone(&mut self, picks: &[usize]) -> Option<Buf> {
        let map = self.map;
        let [first, second] = &map.stripes[..] else { return None };
        if !map.widths.is_empty() {
            return None;
        }
        let (p, mut found) = (map.nparity, None);
        for total in 2..=2 * p {
            for t in total.saturating_sub(p).max(1)..=p.min(total - 1) {
                choose(first.cols.len(), t, &mut |a| {
                    choose(second.cols.len(), total - t, &mut |b| {
                        let suspect = |s: usize, c: usize| {
                            if s == 0 { a.contains(&c) } else { b.contains(&c) }
                        };
                        found = self.attempt(picks, &suspect);
                        found.is_some() || self.budget == 0
                    })
                });
                if found.is_some() {
                    return found;
                }
            }
        }
        None
    }

    /// The block that results if the suspects are treated as missing, if it is
    /// accepted.
    fn attempt(&mut self, picks: &[usize], suspect: &dyn Fn(usize, usize) -> bool) -> Option<Buf> {
        if self.budget == 0 {
            return None;
        }
        self.budget -= 1;
        let (map, p) = (self.map, self.map.nparity);
        let mut signature = Vec::new();
        let mut block = BufMut::alloc(self.len as usize);
        let mut losses = Vec::new();
        let mut pick = picks.iter();
        for (s, (stripe, versions)) in map.stripes.iter().zip(self.versions).enumerate() {
            let mut cols: Vec<Option<&[u8]>> = Vec::with_capacity(versions.len());
            for (c, column) in versions.iter().enumerate() {
                let chosen = *pick.next()?;
                cols.push(match column {
                    Versions::Zero => Some(&[]),
                    Versions::Known(_) if suspect(s, c) => None,
                    Versions::Known(all) => all.get(chosen).map(|b| &b[..]),
                });
                signature.push(chosen as u32);
            }
            let (parity, data) = cols.split_at(p.min(cols.len()));
            let mut data = data.to_vec();
            for (col, bytes) in stripe.cols.iter().skip(p).zip(&mut data) {
                // Padding behind the data is zero by definition, whatever is stored.
                *bytes = bytes.and_then(|b| b.get(..col.len as usize));
            }
            let lost = data.iter().filter(|d| d.is_none()).count();
            let have: Vec<(usize, &[u8])> = parity
                .iter()
                .enumerate()
                .filter_map(|(row, b)| b.map(|b| (row, b)))
                .take(lost)
                .collect();
            if have.len() < lost {
                return None;
            }
            signature.extend(have.iter().map(|h| h.0 as u32 | 1 << 30));
            signature.extend(
                data.iter().enumerate().filter(|d| d.1.is_none()).map(|d| d.0 as u32 | 1 << 31),
            );
            losses.push((have, data));
        }
        if map.stripes.len() <= 2 && !self.tried.insert(signature) {
            return None;
        }
        for ((have, data), stripe) in losses.iter().zip(&map.stripes) {
            let cols = stripe.cols.get(p..).unwrap_or(&[]);
            for (col, bytes) in cols.iter().zip(data) {
                if let Some(bytes) = bytes {
                    copy_column(&mut block, col, bytes)?;
                }
            }
            for (index, bytes) in parity::recover(have, data, stripe.colsize as usize)? {
                copy_column(&mut block, cols.get(index)?, &bytes)?;
            }
        }
        let block = block.freeze();
        (self.accept)(&block).then_some(block)
    }
}

fn copy_column(block: &mut [u8], col: &Col, bytes: &[u8]) -> Option<()> {
    let start = col.start as usize;
    let to = block.get_mut(start..start + col.len as usize)?;
    to.copy_from_slice(bytes.get(..to.len())?);
    Some(())
}

/// A cell with wrong bytes, and the right ones.
pub(crate) struct WrongCell {
    pub(crate) cell: usize,
    pub(crate) stale: bool,
    pub(crate) good: Buf,
    /// The bytes were read and differ; otherwise they could not be read.
    pub(crate) differs: bool,
}

/// Compares every cell of a shape with the content it should have.
pub(crate) fn audit(
    shape: &PlanShape,
    cells: &Cells,
    truth: &Buf,
    parity: bool,
    out: &mut Vec<WrongCell>,
) {
    match shape {
        PlanShape::Dead => {}
        PlanShape::Cell { index, stale } => {
            let read = cells.get(*index).and_then(Option::as_ref);
            // A quick plan reads less than a column with its padding.
            let same = read.is_some_and(|b| truth.get(..b.len()) == Some(&b[..]));
            if !same {
                let good = match read {
                    Some(b) if b.len() < truth.len() => truth.slice(0..b.len()),
                    _ => truth.clone(),
                };
                out.push(WrongCell { cell: *index, stale: *stale, good, differs: read.is_some() });
            }
        }
        PlanShape::Mirror(children) => {
            for child in children {
                audit(child, cells, truth, parity, out);
            }
        }
        PlanShape::Split(parts) => {
            for (start, len, part) in parts {
                let (start, end) = (*start as usize, (*start + *len) as usize);
                if end <= truth.len() {
                    audit(part, cells, &truth.slice(start..end), parity, out);
                }
            }
        }
        PlanShape::Raid { map, cols } => audit_raid(map, cols, cells, truth, parity, out),
    }
}

fn audit_raid(
    map: &BlockMap,
    shapes: &[Vec<Option<PlanShape>>],
    cells: &Cells,
    truth: &Buf,
    check_parity: bool,
    out: &mut Vec<WrongCell>,
) {
    for (columns, shapes) in encode(map, truth).into_iter().zip(shapes) {
        for (i, (column, shape)) in columns.into_iter().zip(shapes).enumerate() {
            if let (Some(column), Some(shape)) = (column, shape)
                && (check_parity || i >= map.nparity)
            {
                audit(shape, cells, &column, check_parity, out);
            }
        }
    }
}

/// The content of every column of a block, padding included; `None` where nothing is
/// stored.
pub(crate) fn encode(map: &BlockMap, block: &Buf) -> Vec<Vec<Option<Buf>>> {
    let mut stripes = Vec::with_capacity(map.stripes.len());
    for stripe in &map.stripes {
        let p = map.nparity.min(stripe.cols.len());
        let data: Vec<Buf> = stripe.cols[p..]
            .iter()
            .map(|col| {
                let (start, end) = (col.start as usize, (col.start + col.len) as usize);
                if end <= block.len() { block.slice(start..end) } else { Buf::default() }
            })
            .collect();
        let mut parity: Vec<BufMut> =
            (0..p).map(|_| BufMut::alloc(stripe.colsize as usize)).collect();
        let mut out: Vec<&mut [u8]> = parity.iter_mut().map(|b| &mut b[..]).collect();
        let slices: Vec<&[u8]> = data.iter().map(|b| &b[..]).collect();
        if parity::generate(&mut out, &slices).is_none() {
            // No stripe of a checked geometry has such a shape.
            stripes.push(Vec::new());
            continue;
        }
        let parity = parity.into_iter().map(BufMut::freeze);
        let columns = parity.chain(data).zip(&stripe.cols).map(|(bytes, col)| {
            col.child?;
            if bytes.len() as u64 >= col.stored {
                return Some(bytes);
            }
            let mut padded = BufMut::zeroed(col.stored as usize);
            padded[..bytes.len()].copy_from_slice(&bytes);
            Some(padded.freeze())
        });
        stripes.push(columns.collect());
    }
    stripes
}
