//! The event log, and what a crash may leave of it; pure functions.

use std::sync::Arc;

use base::rt::sim::Rng;
use base::{Buf, Error, Result};

use super::image::Image;

/// The content of a write.
#[derive(Clone, Debug)]
pub enum Data {
    /// Bytes, gathered in order.
    Bytes(Arc<[Buf]>),
    /// This many zero bytes: a trim.
    Zeros(u64),
}

impl Data {
    /// Size in bytes.
    pub fn len(&self) -> u64 {
        match self {
            Data::Bytes(bufs) => bufs.iter().map(|b| b.len() as u64).sum(),
            Data::Zeros(len) => *len,
        }
    }

    /// Whether [`Data::len`] is zero.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes the bytes `from..from + len` of this data; `at` is the offset of its
    /// first byte.
    pub(super) fn apply(&self, image: &mut Image, at: u64, from: u64, len: u64) -> Result<()> {
        let bufs = match self {
            Data::Zeros(_) => return image.zero(at + from, len as usize),
            Data::Bytes(bufs) => bufs,
        };
        let (mut start, end) = (0, from + len);
        for buf in bufs.iter() {
            let (first, last) = (from.max(start), end.min(start + buf.len() as u64));
            if first < last {
                let part = &buf[(first - start) as usize..(last - start) as usize];
                image.write(at + first, part)?;
            }
            start += buf.len() as u64;
        }
        Ok(())
    }
}

/// An event; its number is its position in the log.
#[derive(Clone, Debug)]
pub enum Event {
    /// A write, or a trim, was submitted.
    Write {
        /// Disk number.
        disk: usize,
        /// First byte.
        offset: u64,
        /// Content.
        data: Data,
    },
    /// A write completed; its data may still be in the volatile cache.
    Done {
        /// Disk number.
        disk: usize,
        /// Event number of the write.
        write: u64,
    },
    /// A flush was submitted.
    Flush {
        /// Disk number.
        disk: usize,
    },
    /// A flush completed.
    Flushed {
        /// Disk number.
        disk: usize,
        /// Event number of the flush.
        flush: u64,
        /// Nothing became durable, although the device reported success.
        lied: bool,
    },
    /// A disk disappeared.
    Dropped {
        /// Disk number.
        disk: usize,
    },
    /// A lost disk returned with its previous content.
    Returned {
        /// Disk number.
        disk: usize,
    },
    /// A mark of the simulator, such as "this was acknowledged".
    Mark(u64),
}

/// A write that a crash may lose.
#[derive(Clone, Debug)]
pub struct Pending {
    /// Event number of the write.
    pub write: u64,
    /// First byte.
    pub offset: u64,
    /// Content.
    pub data: Data,
    /// Event number of its completion.
    pub done: Option<u64>,
    /// The first flush submitted after that.
    pub(super) covered: Option<u64>,
}

/// What a crash does to a pending write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CrashFate {
    /// Nothing of it arrived.
    Lost,
    /// All of it arrived.
    Kept,
    /// Its first sectors arrived.
    Prefix(u64),
    /// Some of its sectors arrived; the seed determines which.
    Torn(u64),
}

/// Options of a crash. Rates mean one in this many writes, 0 for never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CrashOptions {
    /// Bytes that arrive atomically; 512 if 0.
    pub sector: u32,
    /// Writes arrive whole or not at all.
    pub whole: bool,
    /// Pending writes to one sector arrive in any order: an older one may win.
    pub stale: bool,
    /// A pending write arrives at a different offset of its disk.
    pub misdirected: u64,
    /// The only disk with misdirected writes; `None` for all.
    pub astray: Option<usize>,
}

#[derive(Clone, Debug)]
pub(super) struct SimDisk {
    pub(super) durable: Image,
    pub(super) pending: Vec<Pending>,
    pub(super) dropped: bool,
}

impl SimDisk {
    fn write(&mut self, id: u64) -> Option<&mut Pending> {
        let i = self.pending.binary_search_by_key(&id, |p| p.write).ok()?;
        self.pending.get_mut(i)
    }

    /// Makes durable what flush `flush` covers, in the order of completion.
    fn flushed(&mut self, flush: u64) -> Result<()> {
        let safe = |p: &Pending| p.covered.is_some_and(|c| c <= flush);
        let mut now: Vec<_> = self.pending.iter().filter(|p| safe(p)).cloned().collect();
        self.pending.retain(|p| !safe(p));
        now.sort_by_key(|p| p.done);
        now.iter().try_for_each(|p| p.data.apply(&mut self.durable, p.offset, 0, p.data.len()))
    }
}

/// The disks at one moment: durable and pending data.
#[derive(Clone, Debug)]
pub struct CrashPoint {
    pub(super) disks: Vec<SimDisk>,
}

impl CrashPoint {
    pub(super) fn new(images: Vec<Image>) -> CrashPoint {
        let disk = |durable| SimDisk { durable, pending: Vec::new(), dropped: false };
        CrashPoint { disks: images.into_iter().map(disk).collect() }
    }

    pub(super) fn apply(&mut self, n: u64, event: &Event) -> Result<()> {
        let none = || Error::bug("an event of a disk that does not exist");
        let disks = &mut self.disks;
        match event {
            Event::Write { disk, offset, data } => {
                let (offset, data) = (*offset, data.clone());
                let new = Pending { write: n, offset, data, done: None, covered: None };
                disks.get_mut(*disk).ok_or_else(none)?.pending.push(new);
            }
            Event::Done { disk, write } => {
                if let Some(p) = disks.get_mut(*disk).ok_or_else(none)?.write(*write) {
                    p.done = Some(n);
                }
            }
            Event::Flush { disk } => {
                for p in &mut disks.get_mut(*disk).ok_or_else(none)?.pending {
                    if p.done.is_some() {
                        p.covered.get_or_insert(n);
                    }
                }
            }
            Event::Flushed { disk, flush, lied } => {
                if !lied {
                    disks.get_mut(*disk).ok_or_else(none)?.flushed(*flush)?;
                }
            }
            Event::Dropped { disk } => disks.get_mut(*disk).ok_or_else(none)?.dropped = true,
            Event::Returned { disk } => disks.get_mut(*disk).ok_or_else(none)?.dropped = false,
            Event::Mark(_) => {}
        }
        Ok(())
    }

    /// Writes that a crash may lose, disk by disk.
    pub fn pending(&self, disk: usize) -> &[Pending] {
        self.disks.get(disk).map_or(&[], |d| &d.pending)
    }

    /// Whether the disk is lost.
    pub(crate) fn is_dropped(&self, disk: usize) -> bool {
        self.disks.get(disk).is_some_and(|d| d.dropped)
    }

    /// The durable data: the least that a crash leaves.
    pub fn durable(&self) -> Vec<Image> {
        self.disks.iter().map(|d| d.durable.clone()).collect()
    }

    /// The disks after a crash as `seed` determines it. Seed 0 loses all pending writes
    /// and seed 1 keeps them.
    ///
    /// # Errors
    /// `Bug` if a write lies outside its disk.
    pub fn image(&self, seed: u64, options: &CrashOptions) -> Result<Vec<Image>> {
        let mut rng = Rng::stream(seed, 7);
        let total = self.disks.iter().map(|d| d.pending.len() as u64).sum();
        let manner = Manner::draw(seed, total, &mut rng);
        let mut nth = 0;
        let mut images = Vec::with_capacity(self.disks.len());
        for (disk, d) in self.disks.iter().enumerate() {
            let astray = options.astray.is_none_or(|only| only == disk);
            let misdirected = if astray { options.misdirected } else { 0 };
            let whole_disk = rng.one_in(2);
            let mut image = d.durable.clone();
            let mut order: Vec<(u64, u64, u64, &Pending)> = Vec::new();
            for p in &d.pending {
                // Writes in flight together may arrive in any order.
                let tie = if p.done.is_none() { rng.next_u64() } else { 0 };
                order.push((p.done.unwrap_or(u64::MAX), tie, nth, p));
                nth += 1;
            }
            if options.stale {
                rng.shuffle(&mut order);
            } else {
                order.sort_by_key(|(done, tie, n, _)| (*done, *tie, *n));
            }
            for (_, _, n, p) in order {
                let mut fate = manner.fate(n, whole_disk, p, &mut rng, sector_of(options));
                if options.whole && !matches!(fate, CrashFate::Lost) {
                    fate = CrashFate::Kept;
                }
                let mut at = p.offset;
                if rng.one_in(misdirected) {
                    at = elsewhere(&mut rng, image.size(), p.data.len(), sector_of(options));
                }
                arrive(&mut image, p, at, fate, options.sector)?;
            }
            images.push(image);
        }
        Ok(images)
    }
}

fn sector_of(options: &CrashOptions) -> u64 {
    if options.sector == 0 { 512 } else { u64::from(options.sector) }
}

/// A random offset on the disk at which `len` bytes fit.
pub(super) fn elsewhere(rng: &mut Rng, size: u64, len: u64, sector: u64) -> u64 {
    rng.below(size.saturating_sub(len) / sector + 1) * sector
}

/// The pattern of one crash: different patterns find different bugs.
enum Manner {
    /// Each write independently: this many in eight arrive, one in this many is torn.
    Each { keep: u64, tear: u64 },
    /// All but one arrive, or one alone.
    One { which: u64, lost: bool },
    /// The writes submitted first arrive.
    First(u64),
    /// All writes of a disk arrive, or none.
    Disk,
}

impl Manner {
    fn draw(seed: u64, total: u64, rng: &mut Rng) -> Manner {
        match (seed, rng.below(8)) {
            (0, _) => Manner::Each { keep: 0, tear: 0 },
            (1, _) => Manner::Each { keep: 8, tear: 0 },
            (_, 0) => Manner::One { which: rng.below(total), lost: true },
            (_, 1) => Manner::One { which: rng.below(total), lost: false },
            (_, 2) => Manner::First(rng.below(total + 1)),
            (_, 3) => Manner::Disk,
            _ => Manner::Each { keep: 1 + rng.below(7), tear: [0, 1, 2, 8][rng.below(4) as usize] },
        }
    }

    fn fate(&self, nth: u64, disk: bool, p: &Pending, rng: &mut Rng, sector: u64) -> CrashFate {
        let kept = match *self {
            Manner::Each { keep, .. } => rng.below(8) < keep,
            Manner::One { which, lost } => (nth == which) != lost,
            Manner::First(n) => nth < n,
            Manner::Disk => disk,
        };
        let tear = if let Manner::Each { tear, .. } = *self { tear } else { 0 };
        match kept {
            false => CrashFate::Lost,
            true if !rng.one_in(tear) => CrashFate::Kept,
            true if rng.one_in(2) => {
                CrashFate::Prefix(rng.below(p.data.len().div_ceil(sector) + 1))
            }
            true => CrashFate::Torn(rng.next_u64()),
        }
    }
}

/// Applies to the image what the fate leaves of a write.
pub(super) fn arrive(
    image: &mut Image,
    p: &Pending,
    at: u64,
    fate: CrashFate,
    sector: u32,
) -> Result<()> {
    let sector = if sector == 0 { 512 } else { u64::from(sector) };
    let len = p.data.len();
    match fate {
        CrashFate::Lost => Ok(()),
        CrashFate::Kept => p.data.apply(image, at, 0, len),
        CrashFate::Prefix(sectors) => {
            p.data.apply(image, at, 0, len.min(sectors.saturating_mul(sector)))
        }
        CrashFate::Torn(seed) => {
            let mut rng = Rng::new(seed);
            let mut from = 0;
            while from < len {
                let n = sector.min(len - from);
                if rng.one_in(2) {
                    p.data.apply(image, at, from, n)?;
                }
                from += n;
            }
            Ok(())
        }
    }
}
