//! The predictor of one file: which blocks will be read next.
//!
//! # Theory
//! An access that no stream expected becomes a *try*, one of the last few. A later access
//! that continues a try makes it a stream: one that begins where the try ended (forward),
//! one that ends where it began (backward, when it happens twice), or one as far from the
//! try as the try was from an earlier one (strided). The number of streams is limited.
//!
//! A stream expects unit `next` of its course. A *hit* is an access that covers it. An
//! access up to `reorder` bytes ahead is remembered as a *future* range; when few enough
//! holes are below, the stream passes them (*stride*). An access as far behind is *past*
//! and is ignored.
//!
//! With each hit the look-ahead doubles, from `FIRST` (512 KiB) up to `min_distance`. It
//! grows further only when reads still had to wait for requested blocks. Data is requested
//! only for streams that ever had to wait: data in memory needs no prefetch. Behind a
//! stream, blocks may be dropped ([`Plan::behind`]).
//!
//! # Invariants
//! * `behind ≤ next ≤ requested` in units, once something was requested. A stream requests
//!   no block twice, except those that were [`Table::refused`].
//! * Nothing at or behind the file's end is requested, nor more than the distance or one
//!   unit.
//!
//! # Departures from OpenZFS (chapter 10 §6.3)
//! * Tries are separate from streams and are replaced first in, first out: random reads
//!   cannot displace established streams.
//! * Backward and strided readers are streams. In OpenZFS, a stride is followed only where
//!   it leaves out at most a quarter.
//! * Among many unexpected accesses one continuation may be chance. Then two are required
//!   (`NOISY`), and a hit after very many others requests nothing (`CHANCE`).
//! * Streams are limited by the file's size over `min_distance`, not over `max_distance`.
//! * The distance grows beyond `min_distance` after a hit that had to wait for a requested
//!   block, not at the end of that block's read.

use std::ops::Range;
use std::time::Duration;

use zio::prefetch::ZfetchStats;

use super::course::Course;
pub use super::course::StridedRuns;

/// Look-ahead at the second hit of a stream, bytes.
pub(super) const FIRST: u64 = 512 << 10;
/// Blocks are kept this far behind the reader. The kernel has several requests in flight at
/// once, and dropping a block that one of them still needs would cause a second read.
pub(super) const DROP_LAG: u64 = 16 << 20;
/// Bytes dropped at a time.
const DROP_PIECE: u64 = 512 << 10;
/// Tries remembered.
const TRIES: usize = 16;
/// Future ranges remembered by a stream.
const FUTURES: usize = 9;
/// The largest distance of two accesses of a strided reader is at least this many blocks.
const STRIDE_MAX: u64 = 64;
/// Largest reordering, blocks.
const REORDER_MAX: u64 = 65_535;
/// More unexpected accesses than this, less four for each hit, are noise.
const NOISY: u32 = 64;
/// After accesses to this part of a file's blocks, or [`NOISY`], a hit is chance.
const CHANCE: u64 = 32;

/// Parameters of the predictor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Params {
    /// Bytes of a block.
    pub block_size: u64,
    /// Blocks of the file.
    pub blocks: u64,
    /// Bits of a block number below its level-1 block's; 0 if there is none.
    pub l1_shift: u32,
    /// Streams.
    pub max_streams: usize,
    /// Bytes up to which the look-ahead doubles.
    pub min_distance: u64,
    /// Largest look-ahead, bytes.
    pub max_distance: u64,
    /// Largest look-ahead for indirect blocks, bytes of data.
    pub max_idistance: u64,
    /// Bytes by which accesses may overtake each other.
    pub reorder: u64,
    /// Age at which a stream may be replaced.
    pub min_reap: Duration,
    /// Age at which a stream ends.
    pub max_reap: Duration,
    /// Share of holes that a stream may pass: 1/2^n.
    pub hole_shift: u32,
}

impl Params {
    fn reorder_units(&self, unit: u64) -> u64 {
        (self.reorder / self.block_size.saturating_mul(unit).max(1) + 1).min(REORDER_MAX)
    }

    fn stream_limit(&self) -> usize {
        let bytes = self.blocks.saturating_mul(self.block_size);
        let room = usize::try_from(bytes / self.min_distance.max(1)).unwrap_or(usize::MAX);
        self.max_streams.min(room).max(1)
    }
}

/// The actions after an access.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The stream, for [`Table::refused`].
    pub stream: u64,
    /// Blocks to read ahead.
    pub data: Option<StridedRuns>,
    /// Level-1 blocks to prefetch.
    pub indirect: Option<Range<u64>>,
    /// Blocks well behind the reader.
    pub behind: Option<StridedRuns>,
}

impl Plan {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.data.is_none() && self.indirect.is_none() && self.behind.is_none()
    }
}

/// An access that may be the beginning of a stream.
#[derive(Clone, Copy, Debug)]
struct Try {
    first: u64,
    end: u64,
    /// Distance from an earlier access to this one; 0 if none was near.
    delta: i64,
    /// Times this continued another one upwards and downwards.
    ups: u8,
    downs: u8,
    missed: bool,
}

/// A reader with a detected course.
#[derive(Clone, Debug)]
struct Stream {
    id: u64,
    course: Course,
    next: u64,
    /// Units below this one were dropped, or read before the stream was detected.
    behind: u64,
    /// Units below this one were requested.
    requested: u64,
    /// Level-1 blocks that were requested.
    l1: Range<u64>,
    distance: u64,
    idistance: u64,
    futures: Vec<(u64, u64)>,
    seen: Duration,
    /// The access count of the file at the last hit.
    tick: u64,
    missed: bool,
}

/// How an access relates to a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Near {
    Hit,
    Future,
    Past,
}

impl Stream {
    fn relate(&self, b: u64, e: u64, p: &Params) -> Option<(Near, u64, u64)> {
        let (u, v) = self.course.units(b, e, p.blocks)?;
        let reorder = p.reorder_units(self.course.unit());
        if u <= self.next && self.next < v {
            Some((Near::Hit, u, v))
        } else if u > self.next && v <= self.next.saturating_add(reorder) {
            Some((Near::Future, u, v))
        } else if v <= self.next && v.saturating_add(reorder) > self.next {
            Some((Near::Past, u, v))
        } else {
            None
        }
    }

    /// The blocks that an access must touch to be related to the stream, or a few more.
    fn zone(&self, p: &Params) -> Range<u64> {
        let reorder = p.reorder_units(self.course.unit());
        let (from, to) = (self.next.saturating_sub(reorder), self.next.saturating_add(reorder));
        let span = self.course.span(from, to.max(from + 1), p.blocks);
        let slack = self.course.pace();
        span.start.saturating_sub(slack)..span.end.saturating_add(slack)
    }

    /// Remembers `[u, v)` ahead of `next`. Returns the unit up to which the stream may
    /// pass, if any.
    fn remember(&mut self, u: u64, v: u64, hole_shift: u32) -> Option<u64> {
        let (mut u, mut v) = (u, v);
        self.futures.retain(|&(from, to)| {
            let apart = to < u || v < from;
            if !apart {
                (u, v) = (u.min(from), v.max(to));
            }
            apart
        });
        if self.futures.len() >= FUTURES {
            return None;
        }
        let at = self.futures.partition_point(|r| r.0 < u);
        self.futures.insert(at, (u, v));
        let (mut holes, mut at, mut pass) = (0, self.next, None);
        for &(from, to) in &self.futures {
            holes += from - at;
            at = to;
            if holes <= (to - self.next).checked_shr(hole_shift).unwrap_or(0) {
                pass = Some(to);
            }
        }
        pass
    }

    /// Advances to unit `to` after an access at unit `at`, and plans. No data is requested
    /// if the hit was `chance`.
    fn advance(
        &mut self,
        (at, to): (u64, u64),
        waited: bool,
        chance: bool,
        now: Duration,
        p: &Params,
    ) -> Plan {
        let unit = p.block_size.saturating_mul(self.course.unit()).max(1);
        let bytes = (to - self.next).saturating_mul(unit);
        // A read had to wait for a requested block: request earlier.
        let late = waited && self.requested > self.next;
        self.next = to;
        while let Some(&(from, end)) = self.futures.first() {
            if from > self.next {
                break;
            }
            self.next = self.next.max(end);
            self.futures.remove(0);
        }
        self.seen = now;
        self.missed |= waited;
        self.distance = match self.distance {
            _ if chance => 0,
            0 => bytes,
            d if d < p.min_distance => (d * 2).max(bytes).max(FIRST.min(p.min_distance)),
            d if late => d + d / 8,
            d => d.max(bytes),
        }
        .min(p.max_distance);
        self.idistance = (self.idistance * 2).max(bytes).max(unit).min(p.max_idistance);
        self.plan(at, unit, p)
    }

    fn plan(&mut self, at: u64, unit: u64, p: &Params) -> Plan {
        let total = self.course.total(p.blocks);
        let mut plan = Plan { stream: self.id, ..Plan::default() };
        let from = self.requested.max(self.next);
        // One unit at least, however large.
        let ahead = if self.distance > 0 { (self.distance / unit).max(1) } else { 0 };
        let to = self.next.saturating_add(ahead).min(total);
        // In pieces of a useful size, except the last.
        let piece = (ahead / 4).max(1).min(total.saturating_sub(from).max(1));
        if self.missed && to.saturating_sub(from) >= piece {
            plan.data = Some(self.course.runs_of(from, to, p.blocks));
            self.requested = to;
        }
        // Indirect blocks are useful also where the data is in memory.
        let pace = p.block_size.saturating_mul(self.course.pace()).max(1);
        let ito = to.saturating_add(self.idistance / pace).min(total);
        if p.l1_shift > 0 && ito > to {
            plan.indirect = self.new_l1(self.course.span(to, ito, p.blocks), p.l1_shift);
        }
        let done = self.next.min(at).saturating_sub((DROP_LAG / unit).max(1));
        if done.saturating_sub(self.behind) >= (DROP_PIECE / unit).max(1) {
            plan.behind = Some(self.course.runs_of(self.behind, done, p.blocks));
            self.behind = done;
        }
        plan
    }
}

impl Stream {
    /// The level-1 blocks of `blocks` that were not requested yet. All of them are on one
    /// side of those that were, because a course has one direction.
    fn new_l1(&mut self, blocks: Range<u64>, shift: u32) -> Option<Range<u64>> {
        let want = blocks.start >> shift..((blocks.end - 1) >> shift) + 1;
        if self.l1.is_empty() {
            self.l1 = want.clone();
            return Some(want);
        }
        let new = if want.start < self.l1.start {
            want.start..self.l1.start
        } else {
            self.l1.end.max(want.start)..want.end
        };
        self.l1 = self.l1.start.min(want.start)..self.l1.end.max(want.end);
        (!new.is_empty()).then_some(new)
    }
}

/// The streams and tries of one file.
#[derive(Debug)]
pub struct Table {
    params: Params,
    streams: Vec<Stream>,
    /// The zones of the streams, in the same order.
    zones: Vec<Range<u64>>,
    tries: [Option<Try>; TRIES],
    /// The ends of the tries, modulo 2^32.
    ends: [u32; TRIES],
    /// The largest distance of accesses of one strided reader, blocks.
    reach: u64,
    next_try: usize,
    noise: u32,
    ticks: u64,
    serial: u64,
    /// Counted since the last [`Table::take_stats`].
    stats: ZfetchStats,
}

impl Table {
    /// A file without reads yet.
    pub fn new(params: Params) -> Table {
        Table {
            params,
            streams: Vec::new(),
            zones: Vec::new(),
            tries: [None; TRIES],
            ends: [0; TRIES],
            reach: params.reorder_units(1).max(STRIDE_MAX),
            next_try: 0,
            noise: 0,
            ticks: 0,
            serial: 0,
            stats: ZfetchStats::default(),
        }
    }

    /// Changes the parameters. If the shape of the file changed, its streams are dropped.
    pub(crate) fn set_params(&mut self, params: Params) {
        let shape = |p: &Params| (p.block_size, p.blocks);
        if shape(&params) != shape(&self.params) {
            self.streams.clear();
            self.tries = [None; TRIES];
        }
        self.streams.truncate(params.stream_limit());
        self.reach = params.reorder_units(1).max(STRIDE_MAX);
        self.params = params;
        self.rezone();
    }

    /// The parameters.
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// The events counted since the last call.
    pub(crate) fn take_stats(&mut self) -> ZfetchStats {
        std::mem::take(&mut self.stats)
    }

    /// Number of events counted since the last [`Table::take_stats`].
    pub fn pending(&self) -> u64 {
        let s = &self.stats;
        s.hits + s.future + s.past + s.misses + s.io_issued
    }

    /// Counts reads that were started as planned.
    pub(crate) fn count_issued(&mut self, n: u64) {
        self.stats.io_issued += n;
    }

    /// Blocks `[first, first + blocks)` are read; `waited` if not from memory. `clock` is
    /// called only where a stream is concerned, because random reads need no time.
    pub fn access(
        &mut self,
        clock: impl Fn() -> Duration,
        first: u64,
        blocks: u64,
        waited: bool,
    ) -> Plan {
        let (b, e) = (first, first.saturating_add(blocks).min(self.params.blocks));
        if b >= e {
            return Plan::default();
        }
        self.ticks += 1;
        let Some((i, how, u, v)) = self.nearest(b, e) else {
            let known = self.serial;
            let plan = self.try_access(&clock, b, e, waited, true);
            if known == self.serial {
                self.stats.misses += 1;
                self.noise = (self.noise + 1).min(2 * NOISY);
            }
            return plan;
        };
        match how {
            Near::Hit => {
                self.stats.hits += 1;
                self.hit(i, (u, v), waited, clock())
            }
            Near::Future => self.future(i, (u, v), (b, e), waited, &clock),
            Near::Past => {
                self.stats.past += 1;
                let now = clock();
                let s = &mut self.streams[i];
                let young = now.saturating_sub(s.seen) < self.params.max_reap;
                // No second stream in the same direction is started behind an existing one.
                let up = s.course != Course::Up || !young;
                if young {
                    s.seen = now;
                }
                self.try_access(&clock, b, e, waited, up)
            }
        }
    }

    /// The stream that is closest to an access, and how they relate.
    fn nearest(&self, b: u64, e: u64) -> Option<(usize, Near, u64, u64)> {
        let inside = |z: &Range<u64>| u32::from((b < z.end) & (e > z.start));
        if self.zones.iter().map(inside).sum::<u32>() == 0 {
            return None;
        }
        let mut near: Option<(usize, Near, u64, u64)> = None;
        for (i, s) in self.streams.iter().enumerate() {
            let Some((how, u, v)) = s.relate(b, e, &self.params) else { continue };
            let exact = how == Near::Hit && u == s.next;
            // Exact is preferred to overlapping, that to future, that to past.
            if near.is_none_or(|n| (how as u8) < n.1 as u8) || exact {
                near = Some((i, how, u, v));
            }
            if exact {
                break;
            }
        }
        near
    }

    fn rezone(&mut self) {
        self.zones.clear();
        self.zones.extend(self.streams.iter().map(|s| s.zone(&self.params)));
    }

    /// Ends streams without a hit for a long time.
    pub fn reap(&mut self, now: Duration) {
        let max = self.params.max_reap;
        self.streams.retain(|s| now.saturating_sub(s.seen) <= max);
        self.rezone();
    }

    /// Whether all recent accesses are random.
    pub(crate) fn is_random(&self) -> bool {
        self.noise > NOISY && self.streams.is_empty()
    }

    fn hit(&mut self, i: usize, (at, to): (u64, u64), waited: bool, now: Duration) -> Plan {
        self.noise = self.noise.saturating_sub(4);
        let s = &mut self.streams[i];
        // Random accesses hit once in as many as the file has blocks. A hit after so many
        // accesses says nothing about the next.
        let chance = self.ticks - s.tick > (self.params.blocks / CHANCE).max(u64::from(NOISY));
        s.tick = self.ticks;
        let plan = s.advance((at, to), waited, chance, now, &self.params);
        if s.next >= s.course.total(self.params.blocks) {
            self.streams.swap_remove(i);
        }
        self.rezone();
        plan
    }

    fn future(
        &mut self,
        i: usize,
        (u, v): (u64, u64),
        (b, e): (u64, u64),
        waited: bool,
        clock: &impl Fn() -> Duration,
    ) -> Plan {
        let now = clock();
        let s = &mut self.streams[i];
        s.seen = now;
        s.missed |= waited;
        if let Some(to) = s.remember(u, v, self.params.hole_shift) {
            self.stats.stride += 1;
            return self.hit(i, (u, to), waited, now);
        }
        self.stats.future += 1;
        if v <= s.requested {
            return Plan::default();
        }
        self.try_access(clock, b, e, waited, true)
    }

    /// Handles an access that no stream expected: it continues a try, or is a new one.
    /// `up`: a forward stream may begin here.
    fn try_access(
        &mut self,
        clock: &impl Fn() -> Duration,
        b: u64,
        e: u64,
        waited: bool,
        up: bool,
    ) -> Plan {
        let need = if self.noise > NOISY { 2 } else { 1 };
        let mut new = Try { first: b, end: e, delta: 0, ups: 0, downs: 0, missed: waited };
        let reach = self.reach;
        if !self.any_near(b, e) {
            return self.remember(new);
        }
        let mut nearest = reach + 1;
        let mut known = None;
        for (i, t) in self.tries.iter().enumerate() {
            let Some(t) = t else { continue };
            if t.first <= b && e <= t.end {
                return Plan::default();
            }
            if t.first <= b && b <= t.end {
                new.ups = new.ups.max(t.ups.saturating_add(1));
                if up && new.ups >= need {
                    known = Some((i, *t, Course::Up));
                    break;
                }
            } else if b < t.first && t.first <= e {
                new.downs = new.downs.max(t.downs.saturating_add(1));
                if new.downs >= 2 {
                    known = Some((i, *t, Course::Down));
                }
            } else if t.first.abs_diff(b) <= reach {
                let delta = (b as i64).wrapping_sub(t.first as i64);
                if delta == t.delta {
                    let len = (e - b).max(t.end - t.first).min(delta.unsigned_abs());
                    // The try was as far from a block that was read.
                    let origin = (t.first as i64).wrapping_sub(delta) as u64;
                    known = Some((i, *t, Course::Strided { origin, step: delta, len }));
                } else if delta.unsigned_abs() < nearest {
                    nearest = delta.unsigned_abs();
                    new.delta = delta;
                }
            }
        }
        if let Some((i, t, course)) = known
            && self.admit(clock)
        {
            self.tries[i] = None;
            return self.begin(course, t, (b, e), waited, clock());
        }
        self.remember(new)
    }

    fn remember(&mut self, new: Try) -> Plan {
        self.tries[self.next_try] = Some(new);
        self.ends[self.next_try] = new.end as u32;
        self.next_try = (self.next_try + 1) % TRIES;
        Plan::default()
    }

    /// Whether an access may be related to any try. The common answer is no, and costs a
    /// few vector instructions. A yes may be wrong; a no may be wrong for accesses larger
    /// than the reach.
    fn any_near(&self, b: u64, e: u64) -> bool {
        let reach = self.reach.saturating_add(e - b).min(1 << 30) as u32;
        let low = (b as u32).wrapping_sub(reach);
        let near = |end: &u32| u32::from(end.wrapping_sub(low) <= 2 * reach);
        self.ends.iter().map(near).sum::<u32>() > 0
    }

    /// Makes room for one more stream.
    fn admit(&mut self, clock: &impl Fn() -> Duration) -> bool {
        let p = self.params;
        if self.streams.len() < p.stream_limit() {
            return true;
        }
        let now = clock();
        let age = |s: &Stream| now.saturating_sub(s.seen);
        self.reap(now);
        if self.streams.len() < p.stream_limit() {
            return true;
        }
        let oldest = (0..self.streams.len()).max_by_key(|&i| age(&self.streams[i]));
        match oldest.filter(|&i| age(&self.streams[i]) > p.min_reap) {
            Some(i) => {
                self.streams.swap_remove(i);
                self.rezone();
                true
            }
            None => {
                self.stats.max_streams += 1;
                false
            }
        }
    }

    fn begin(
        &mut self,
        course: Course,
        t: Try,
        (b, e): (u64, u64),
        waited: bool,
        now: Duration,
    ) -> Plan {
        let end = self.params.blocks;
        let (Some((from, next)), Some((at, to))) =
            (course.units(t.first, t.end, end), course.units(b, e, end))
        else {
            return Plan::default();
        };
        self.serial += 1;
        self.stats.hits += 1;
        self.streams.push(Stream {
            id: self.serial,
            course,
            next,
            behind: from,
            requested: 0,
            l1: 0..0,
            distance: 0,
            idistance: 0,
            futures: Vec::new(),
            seen: now,
            tick: self.ticks,
            missed: t.missed,
        });
        self.hit(self.streams.len() - 1, (at, to), waited, now)
    }

    /// Block `block` of `plan`'s data, and those behind it, could not be prefetched: the
    /// stream requests them again.
    pub fn refused(&mut self, plan: &Plan, block: u64) {
        let end = self.params.blocks;
        let Some(s) = self.streams.iter_mut().find(|s| s.id == plan.stream) else { return };
        let start = match s.course {
            // A block within a record: the whole record is requested again.
            Course::Strided { origin, step, .. } if step > 0 => {
                block.saturating_sub(origin) / step.unsigned_abs()
            }
            Course::Strided { origin, step, .. } => {
                origin.saturating_sub(block).div_ceil(step.unsigned_abs())
            }
            course => course.units(block, block + 1, end).map_or(s.requested, |u| u.0),
        };
        s.requested = s.requested.min(start);
    }
}

#[cfg(test)]
#[path = "stream_tests.rs"]
mod tests;
