//! The statistics of a walk: blocks by type and level, sizes, embedded payloads
//! (chapter 09 §8.3).

use ondisk::{BlkPtr, ObjType};

/// Rows of the table of types: the numbered types and three more.
pub const ROWS: usize = 57;
/// Row of blocks on lists of deferred frees.
pub(crate) const ROW_DEFERRED: usize = 54;
/// Row of dedup ditto blocks, which are no longer written.
pub(crate) const ROW_DITTO: usize = 55;
/// Row of all types without a number.
pub(crate) const ROW_OTHER: usize = 56;
/// Levels counted separately.
pub const LEVELS: usize = 13;
/// Buckets of the histogram of sizes: 512 bytes to 16 MiB.
pub const BUCKETS: usize = 16;
/// Payload sizes of embedded pointers.
const EMBEDDED: usize = 113;

/// Sums over some blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Blocks.
    pub count: u64,
    /// Logical bytes.
    pub lsize: u64,
    /// Bytes before parity.
    pub psize: u64,
    /// Bytes allocated.
    pub asize: u64,
}

impl Sums {
    /// Adds another sum.
    pub fn add(&mut self, other: &Sums) {
        self.count = self.count.saturating_add(other.count);
        self.lsize = self.lsize.saturating_add(other.lsize);
        self.psize = self.psize.saturating_add(other.psize);
        self.asize = self.asize.saturating_add(other.asize);
    }
}

/// Counts and bytes by size.
pub(crate) type SizeHistogram = [(u64, u64); BUCKETS];

/// All statistics.
#[derive(Clone, Debug)]
pub struct BlockStats {
    cells: Vec<Sums>,
    /// Embedded payloads by their bytes.
    pub embedded: [u64; EMBEDDED],
    /// Histograms of physical, logical and allocated sizes.
    pub sizes: [SizeHistogram; 3],
    /// Gang blocks.
    pub gangs: u64,
    /// Pointers two of whose copies share a vdev.
    pub same_vdev: u64,
    /// Bytes that would be allocated without dedup, beyond those that are.
    pub dedup_asize: u64,
    /// References beyond the first to dedup blocks.
    pub dedup_refs: u64,
    /// Bytes that would be allocated without cloning, beyond those that are.
    pub clone_asize: u64,
    /// References beyond the first to cloned blocks.
    pub clone_refs: u64,
}

impl Default for BlockStats {
    fn default() -> Self {
        BlockStats {
            cells: vec![Sums::default(); ROWS * LEVELS],
            embedded: [0; EMBEDDED],
            sizes: [[(0, 0); BUCKETS]; 3],
            gangs: 0,
            same_vdev: 0,
            dedup_asize: 0,
            dedup_refs: 0,
            clone_asize: 0,
            clone_refs: 0,
        }
    }
}

/// The row in which a type is counted.
pub(crate) fn row_of(kind: ObjType) -> usize {
    let n = usize::from(kind.0);
    if n < ROW_DEFERRED { n } else { ROW_OTHER }
}

fn bucket(size: u64) -> usize {
    (size.max(512).ilog2() as usize - 9).min(BUCKETS - 1)
}

impl BlockStats {
    /// Counts one pointer that is no hole.
    pub fn count(&mut self, bp: &BlkPtr, row: usize) {
        let head = bp.head();
        let mut sums = Sums { count: 1, lsize: head.lsize.0, ..Sums::default() };
        match bp {
            BlkPtr::Hole(_) => return,
            BlkPtr::Redacted(_) => {}
            BlkPtr::Embedded(e) => {
                if let Some(n) = self.embedded.get_mut(e.payload().len()) {
                    *n += 1;
                }
            }
            BlkPtr::Block(block) => {
                sums.psize = block.psize.0;
                sums.asize = block.dvas().map(|d| d.asize.0).sum();
                let sizes = [sums.psize, sums.lsize, sums.asize];
                for (histogram, size) in self.sizes.iter_mut().zip(sizes) {
                    if let Some(slot) = histogram.get_mut(bucket(size)) {
                        slot.0 += 1;
                        slot.1 += size;
                    }
                }
                self.gangs += u64::from(block.is_gang());
                let vdevs: Vec<_> = block.dvas().map(|d| d.vdev).collect();
                let repeats = |(i, v)| vdevs.iter().skip(i + 1).any(|other| other == v);
                self.same_vdev += u64::from(vdevs.iter().enumerate().any(repeats));
            }
        }
        let level = usize::from(head.level).min(LEVELS - 1);
        if let Some(cell) = self.cells.get_mut(row.min(ROWS - 1) * LEVELS + level) {
            cell.add(&sums);
        }
    }

    /// Adds the statistics of another walker.
    pub fn add(&mut self, other: &BlockStats) {
        for (mine, theirs) in self.cells.iter_mut().zip(&other.cells) {
            mine.add(theirs);
        }
        for (mine, theirs) in self.embedded.iter_mut().zip(&other.embedded) {
            *mine += theirs;
        }
        let theirs = other.sizes.iter().flatten();
        for (mine, theirs) in self.sizes.iter_mut().flatten().zip(theirs) {
            mine.0 += theirs.0;
            mine.1 = mine.1.saturating_add(theirs.1);
        }
        self.gangs += other.gangs;
        self.same_vdev += other.same_vdev;
        self.dedup_asize += other.dedup_asize;
        self.dedup_refs += other.dedup_refs;
        self.clone_asize += other.clone_asize;
        self.clone_refs += other.clone_refs;
    }

    /// One row at one level.
    pub fn cell(&self, row: usize, level: usize) -> Sums {
        self.cells.get(row * LEVELS + level).copied().unwrap_or_default()
    }

    /// One row over all levels.
    pub fn row(&self, row: usize) -> Sums {
        let mut out = Sums::default();
        (0..LEVELS).for_each(|level| out.add(&self.cell(row, level)));
        out
    }

    /// All rows at one level.
    pub fn level(&self, level: usize) -> Sums {
        let mut out = Sums::default();
        (0..ROWS).for_each(|row| out.add(&self.cell(row, level)));
        out
    }

    /// Metadata: indirect blocks, and all of types that are metadata. As in zdb, only
    /// numbered types count, and blocks without space do not.
    pub fn metadata(&self) -> Sums {
        let mut out = Sums::default();
        let kinds = (0..ROW_DEFERRED).filter_map(|row| u8::try_from(row).ok());
        for (row, kind) in kinds.map(ObjType).enumerate() {
            for level in 0..LEVELS {
                let cell = self.cell(row, level);
                if cell.asize > 0 && (level > 0 || kind.is_metadata()) {
                    out.add(&cell);
                }
            }
        }
        out
    }

    /// Everything.
    pub fn total(&self) -> Sums {
        let mut out = Sums::default();
        (0..ROWS).for_each(|row| out.add(&self.row(row)));
        out
    }
}

/// The name of a row.
pub fn row_name(row: usize) -> &'static str {
    match row {
        ROW_DEFERRED => "deferred free",
        ROW_DITTO => "dedup ditto",
        ROW_OTHER => "other",
        _ => u8::try_from(row).map_or("other", |n| ObjType(n).name()),
    }
}
