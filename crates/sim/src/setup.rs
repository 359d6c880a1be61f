//! The setup of a run: everything that decides it, so that it can be named and repeated.

use std::time::Duration;

use base::rt::sim::{Options, Rng};
use device::sim::{Latency, SimConfig};

/// The vdevs of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// One disk.
    Single,
    /// Two disks side by side.
    Stripe,
    /// Two copies.
    Mirror,
    /// Single parity over three disks.
    Raidz,
    /// Double parity over five disks.
    Raidz2,
    /// Two copies on each of three: data, metadata (a special vdev) and intent logs.
    Classes,
    /// Parity of so many disks over so many, for cases that depend on the width.
    Wide(u8, u8),
    /// Double parity over groups of five that are spread over seven disks, one of them
    /// spare.
    Draid,
    /// Two copies, single parity over five disks, and a single disk, side by side.
    Mixed,
    /// Two copies on each of two pairs of disks, side by side.
    Mirrors,
}

/// Names of [`Layout::Wide`], by parity and width.
const WIDE_NAMES: [[&str; 7]; 3] = [
    ["raidz1-3", "raidz1-4", "raidz1-5", "raidz1-6", "raidz1-7", "raidz1-8", "raidz1-9"],
    ["raidz2-3", "raidz2-4", "raidz2-5", "raidz2-6", "raidz2-7", "raidz2-8", "raidz2-9"],
    ["raidz3-3", "raidz3-4", "raidz3-5", "raidz3-6", "raidz3-7", "raidz3-8", "raidz3-9"],
];

impl Layout {
    /// The layouts drawn at random.
    pub const ALL: [Layout; 6] = [
        Layout::Single,
        Layout::Stripe,
        Layout::Mirror,
        Layout::Raidz,
        Layout::Raidz2,
        Layout::Classes,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Layout::Single => "single",
            Layout::Stripe => "stripe",
            Layout::Mirror => "mirror",
            Layout::Raidz => "raidz",
            Layout::Raidz2 => "raidz2",
            Layout::Classes => "classes",
            Layout::Wide(nparity, width) => {
                let names = WIDE_NAMES.get(usize::from(nparity).wrapping_sub(1));
                let name = names.and_then(|n| n.get(usize::from(width).wrapping_sub(3)));
                name.copied().unwrap_or("raidz")
            }
            Layout::Draid => "draid",
            Layout::Mixed => "mixed",
            Layout::Mirrors => "mirrors",
        }
    }

    /// Those in which a device can be removed, or a vdev expanded.
    pub const RESHAPED: [Layout; 6] = [
        Layout::Stripe,
        Layout::Raidz,
        Layout::Mirrors,
        Layout::Wide(2, 4),
        Layout::Wide(1, 4),
        Layout::Wide(3, 5),
    ];

    /// Every width of RAID-Z from three disks to nine, dRAID, and different vdevs side by
    /// side.
    pub fn wide() -> Vec<Layout> {
        let widths = (1..=3u8).flat_map(|p| (3..=9).filter(move |w| *w > p).map(move |w| (p, w)));
        let parity = widths.map(|(nparity, width)| Layout::Wide(nparity, width));
        parity.chain([Layout::Draid, Layout::Mixed]).collect()
    }

    /// Disks.
    pub fn disks(self) -> usize {
        match self {
            Layout::Single => 1,
            Layout::Stripe | Layout::Mirror => 2,
            Layout::Raidz => 3,
            Layout::Raidz2 => 5,
            Layout::Classes => 6,
            Layout::Wide(_, width) => usize::from(width),
            Layout::Draid => 7,
            Layout::Mixed => 8,
            Layout::Mirrors => 4,
        }
    }

    /// Whether any one disk may fail.
    pub(crate) fn is_redundant(self) -> bool {
        !matches!(self, Layout::Single | Layout::Stripe | Layout::Mixed)
    }
}

/// The operations of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// Everything.
    Mixed,
    /// Objects and their blocks.
    Files,
    /// ZAPs.
    Zaps,
    /// Datasets, snapshots and clones.
    Datasets,
    /// The same space written and freed repeatedly, with many syncs.
    Churn,
    /// Many writes to a small pool.
    Full,
    /// Everything, beside scrubs. Not drawn at random.
    Scans,
    /// Datasets of each thread: snapshots, clones, promotions, rollbacks, renames, holds,
    /// bookmarks. Not drawn at random.
    Lineage,
    /// The same, beginning with a clone: most operations write clones, over and over, roll
    /// them back and destroy them, so that they have long livelists. Not drawn at random.
    Clones,
    /// Objects and datasets whose blocks are clones of each other's. Not drawn at random.
    BlockClones,
    /// Blocks that are deduplicated. Not drawn at random.
    Dedup,
    /// Blocks that are deduplicated and cloned, while a device is removed or a vdev expanded. Not
    /// drawn at random.
    BlockSharing,
    /// Lineages whose blocks are moved to other places. Not drawn at random.
    Moves,
    /// As `Churn`, with checkpoints that are taken and discarded.
    Checkpoint,
    /// As `Churn`, with trims and initializations.
    Trim,
    /// One of the sequences of [`crate::short`]: the seed is its index.
    Short,
}

impl Workload {
    /// The workloads drawn at random.
    pub const ALL: [Workload; 6] = [
        Workload::Mixed,
        Workload::Files,
        Workload::Zaps,
        Workload::Datasets,
        Workload::Churn,
        Workload::Full,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Workload::Mixed => "mixed",
            Workload::Files => "files",
            Workload::Zaps => "zaps",
            Workload::Datasets => "datasets",
            Workload::Churn => "churn",
            Workload::Full => "full",
            Workload::Scans => "scans",
            Workload::Lineage => "lineage",
            Workload::Clones => "clones",
            Workload::BlockClones => "block-clones",
            Workload::Dedup => "dedup",
            Workload::BlockSharing => "block-sharing",
            Workload::Moves => "moves",
            Workload::Checkpoint => "checkpoint",
            Workload::Trim => "trim",
            Workload::Short => "short",
        }
    }

    /// Whether threads have datasets of their own, whose lineage they change.
    pub fn is_lineage(self) -> bool {
        matches!(self, Workload::Lineage | Workload::Clones | Workload::Moves)
    }

    /// Whether blocks are deduplicated.
    pub(crate) fn has_dedup(self) -> bool {
        matches!(self, Workload::Dedup | Workload::BlockSharing)
    }

    /// Whether it goes on after a crash as it began, instead of with any operations.
    pub(crate) fn goes_on(self) -> bool {
        self.is_lineage() || self.has_dedup() || self == Workload::BlockClones
    }
}

/// A bug to plant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlantedBug {
    /// The uberblock is written before the data that it refers to is durable.
    UberblockBeforeFlush,
    /// Labels in the wrong order.
    LabelOrder,
    /// Space that a pass frees is reused in the same txg.
    ReuseSameTxg,
    /// Space that a txg frees is reused before its uberblock.
    ReuseBeforeCommit,
    /// Frees are not deferred.
    NoDefer,
    /// The last entry of a list of allocations is not written.
    LoseEntry,
    /// A dirty record goes into the next txg.
    WrongTxg,
    /// Blocks of the checkpoint are freed like others.
    FreeKept,
    /// A discard of the checkpoint forgets a range.
    ForgetRange,
    /// Space that was freed in the last two txgs is trimmed like free space.
    TrimDeferred,
    /// A promotion does not count what the deadlists of the shared snapshots have.
    ForgottenDeadlist,
    /// A promotion leaves the other clones of the shared snapshots in their set.
    ForgottenClones,
    /// A promotion leaves the bookmarks where they are.
    LeftBookmarks,
    /// A rollback does not free what was written since the snapshot.
    KeptBlocks,
    /// A destroyed dataset frees the blocks of its origin, too.
    FreedOrigin,
    /// A snapshot that is renamed loses its holds.
    DroppedHolds,
    /// The last clone of a snapshot whose destruction is deferred does not destroy it.
    ForgottenDeferral,
    /// A block that dies in a clone is not noted in its livelist.
    LostEntry,
    /// A destroyed clone frees all blocks of its livelist, also those that it freed before.
    IgnoredFrees,
    /// A clone that is rolled back keeps its livelist.
    KeptLivelist,
    /// One dead pointer to a cloned block is not counted.
    LostDecrement,
    /// One clone of a block is not counted.
    LostIncrement,
    /// A txg counts its clones of blocks after its frees.
    CountedLate,
    /// A pointer that dies in the txg before the block's clone is forgotten.
    DroppedPointer,
    /// A pointer that dies while its dedup entry is in the flushing log is not noted in the other.
    DedupUnlogged,
    /// The flush of a dedup entry leaves the older count in the ZAP.
    DedupStaleFlush,
    /// Dedup logs that swap roles keep the checkpoint of the one that was flushed.
    DedupOldCheckpoint,
    /// The dedup entries that one txg changed are in no log.
    DedupLostRecords,
    /// A dedup entry stays whose block is freed in the txg that wrote it.
    DedupKeptNewborn,
    /// One dead pointer to a deduplicated block is not counted.
    DedupLostDecrement,
    /// One more pointer to a deduplicated block is not counted.
    DedupLostIncrement,
    /// A dedup entry without references frees its block, and stays.
    DedupKeptEntry,
    /// Copies of a removed device are one sector off in the mapping.
    RemovalOffByOne,
    /// The last entry of a mapping in each txg of a removal is not stored.
    RemovalLostEntry,
    /// An expansion skips the last row of each range.
    ExpansionSkippedRow,
    /// One entry of a deadlist goes on to name the old place of a block that moved.
    MoveLeftEntry,
    /// One snapshot goes on to name the old places.
    MoveLeftSnapshot,
    /// Roots of heads are those that were seen before the txg.
    MoveOldHeads,
    /// Open object sets do not learn of their new trees.
    MoveForgottenHandles,
}

impl PlantedBug {
    /// All of them.
    pub const ALL: [PlantedBug; 39] = [
        PlantedBug::UberblockBeforeFlush,
        PlantedBug::LabelOrder,
        PlantedBug::ReuseSameTxg,
        PlantedBug::ReuseBeforeCommit,
        PlantedBug::NoDefer,
        PlantedBug::LoseEntry,
        PlantedBug::WrongTxg,
        PlantedBug::FreeKept,
        PlantedBug::ForgetRange,
        PlantedBug::TrimDeferred,
        PlantedBug::ForgottenDeadlist,
        PlantedBug::ForgottenClones,
        PlantedBug::LeftBookmarks,
        PlantedBug::KeptBlocks,
        PlantedBug::FreedOrigin,
        PlantedBug::DroppedHolds,
        PlantedBug::ForgottenDeferral,
        PlantedBug::LostEntry,
        PlantedBug::IgnoredFrees,
        PlantedBug::KeptLivelist,
        PlantedBug::LostDecrement,
        PlantedBug::LostIncrement,
        PlantedBug::CountedLate,
        PlantedBug::DroppedPointer,
        PlantedBug::DedupUnlogged,
        PlantedBug::DedupStaleFlush,
        PlantedBug::DedupOldCheckpoint,
        PlantedBug::DedupLostRecords,
        PlantedBug::DedupKeptNewborn,
        PlantedBug::DedupLostDecrement,
        PlantedBug::DedupLostIncrement,
        PlantedBug::DedupKeptEntry,
        PlantedBug::RemovalOffByOne,
        PlantedBug::RemovalLostEntry,
        PlantedBug::ExpansionSkippedRow,
        PlantedBug::MoveLeftEntry,
        PlantedBug::MoveLeftSnapshot,
        PlantedBug::MoveOldHeads,
        PlantedBug::MoveForgottenHandles,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            PlantedBug::UberblockBeforeFlush => "uberblock-before-flush",
            PlantedBug::LabelOrder => "label-order",
            PlantedBug::ReuseSameTxg => "reuse-same-group",
            PlantedBug::ReuseBeforeCommit => "reuse-before-commit",
            PlantedBug::NoDefer => "no-defer",
            PlantedBug::LoseEntry => "lose-entry",
            PlantedBug::WrongTxg => "wrong-group",
            PlantedBug::FreeKept => "free-kept",
            PlantedBug::ForgetRange => "forget-range",
            PlantedBug::TrimDeferred => "trim-deferred",
            PlantedBug::ForgottenDeadlist => "forgotten-deadlist",
            PlantedBug::ForgottenClones => "forgotten-clones",
            PlantedBug::LeftBookmarks => "left-bookmarks",
            PlantedBug::KeptBlocks => "kept-blocks",
            PlantedBug::FreedOrigin => "freed-origin",
            PlantedBug::DroppedHolds => "dropped-holds",
            PlantedBug::ForgottenDeferral => "forgotten-deferral",
            PlantedBug::LostEntry => "lost-entry",
            PlantedBug::IgnoredFrees => "ignored-frees",
            PlantedBug::KeptLivelist => "kept-livelist",
            PlantedBug::LostDecrement => "lost-decrement",
            PlantedBug::LostIncrement => "lost-increment",
            PlantedBug::CountedLate => "counted-late",
            PlantedBug::DroppedPointer => "dropped-pointer",
            PlantedBug::DedupUnlogged => "dedup-unlogged",
            PlantedBug::DedupStaleFlush => "dedup-stale-flush",
            PlantedBug::DedupOldCheckpoint => "dedup-old-checkpoint",
            PlantedBug::DedupLostRecords => "dedup-lost-records",
            PlantedBug::DedupKeptNewborn => "dedup-kept-newborn",
            PlantedBug::DedupLostDecrement => "dedup-lost-decrement",
            PlantedBug::DedupLostIncrement => "dedup-lost-increment",
            PlantedBug::DedupKeptEntry => "dedup-kept-entry",
            PlantedBug::RemovalOffByOne => "removal-off-by-one",
            PlantedBug::RemovalLostEntry => "removal-lost-entry",
            PlantedBug::ExpansionSkippedRow => "expansion-skipped-row",
            PlantedBug::MoveLeftEntry => "move-left-entry",
            PlantedBug::MoveLeftSnapshot => "move-left-snapshot",
            PlantedBug::MoveOldHeads => "move-old-heads",
            PlantedBug::MoveForgottenHandles => "move-forgotten-handles",
        }
    }

    /// A workload that meets it.
    pub fn workload(self) -> Workload {
        match self {
            PlantedBug::FreeKept | PlantedBug::ForgetRange => Workload::Checkpoint,
            PlantedBug::TrimDeferred => Workload::Trim,
            PlantedBug::ForgottenDeadlist
            | PlantedBug::ForgottenClones
            | PlantedBug::LeftBookmarks
            | PlantedBug::KeptBlocks
            | PlantedBug::FreedOrigin
            | PlantedBug::DroppedHolds
            | PlantedBug::ForgottenDeferral => Workload::Lineage,
            PlantedBug::LostEntry | PlantedBug::IgnoredFrees | PlantedBug::KeptLivelist => {
                Workload::Clones
            }
            PlantedBug::LostDecrement
            | PlantedBug::LostIncrement
            | PlantedBug::CountedLate
            | PlantedBug::DroppedPointer => Workload::BlockClones,
            PlantedBug::DedupUnlogged
            | PlantedBug::DedupStaleFlush
            | PlantedBug::DedupOldCheckpoint
            | PlantedBug::DedupLostRecords
            | PlantedBug::DedupKeptNewborn
            | PlantedBug::DedupLostDecrement
            | PlantedBug::DedupLostIncrement
            | PlantedBug::DedupKeptEntry => Workload::Dedup,
            PlantedBug::RemovalOffByOne
            | PlantedBug::RemovalLostEntry
            | PlantedBug::ExpansionSkippedRow => Workload::BlockSharing,
            PlantedBug::MoveLeftEntry
            | PlantedBug::MoveLeftSnapshot
            | PlantedBug::MoveOldHeads
            | PlantedBug::MoveForgottenHandles => Workload::Moves,
            _ => Workload::Churn,
        }
    }
}

/// Faults of the disks besides power cuts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskFault {
    /// A disk fails in mid-run.
    Drop,
    /// A disk is absent for a while.
    Away,
    /// Writes to one disk fail.
    WriteErrors,
    /// Flushes of one disk fail.
    FlushErrors,
    /// Reads of one disk fail.
    ReadErrors,
    /// Reads of one disk return older content.
    StaleReads,
    /// Writes to one disk land elsewhere on it.
    Misdirected,
    /// One disk reports flushes that it did not make.
    LyingFlushes,
}

impl DiskFault {
    /// All of them.
    pub const ALL: [DiskFault; 8] = [
        DiskFault::Drop,
        DiskFault::Away,
        DiskFault::WriteErrors,
        DiskFault::FlushErrors,
        DiskFault::ReadErrors,
        DiskFault::StaleReads,
        DiskFault::Misdirected,
        DiskFault::LyingFlushes,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            DiskFault::Drop => "drop",
            DiskFault::Away => "away",
            DiskFault::WriteErrors => "write-errors",
            DiskFault::FlushErrors => "flush-errors",
            DiskFault::ReadErrors => "read-errors",
            DiskFault::StaleReads => "stale-reads",
            DiskFault::Misdirected => "misdirected",
            DiskFault::LyingFlushes => "lying-flushes",
        }
    }

    /// Whether a disk without redundancy loses data by it, whatever the engine does.
    pub(crate) fn needs_redundancy(self) -> bool {
        !matches!(
            self,
            DiskFault::WriteErrors
                | DiskFault::FlushErrors
                | DiskFault::ReadErrors
                | DiskFault::Drop
        )
    }
}

/// One run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    /// Decides everything that the other fields leave open.
    pub seed: u64,
    /// The vdevs.
    pub layout: Layout,
    /// The operations.
    pub workload: Workload,
    /// Threads of the workload.
    pub threads: usize,
    /// Operations of each thread.
    pub ops: usize,
    /// A bug.
    pub plant: Option<PlantedBug>,
    /// Faults of a disk.
    pub fault: Option<DiskFault>,
    /// Every block larger than a sector is a gang of single sectors.
    pub gangs: bool,
    /// Only these operations, by index; `None` is all.
    pub keep: Option<Vec<usize>>,
}

impl Setup {
    /// The usual run of a seed: vdevs, workload and threads follow from it.
    pub fn varied(seed: u64) -> Setup {
        let mut rng = Rng::stream(seed, 11);
        let mut pick = |n: usize| rng.below(n as u64) as usize;
        Setup {
            seed,
            layout: Layout::ALL[pick(Layout::ALL.len())],
            workload: Workload::ALL[pick(Workload::ALL.len())],
            threads: 1 + pick(3),
            ops: 12,
            plant: None,
            fault: None,
            gangs: false,
            keep: None,
        }
    }

    /// The seed of everything except the operations and the crashes. Short sequences with
    /// the same beginning share it, and so everything that happens until they differ.
    fn environment(&self) -> u64 {
        match self.workload {
            Workload::Short => crate::short::first(usize::try_from(self.seed).unwrap_or(0)),
            _ => self.seed,
        }
    }

    fn rng(&self) -> Rng {
        Rng::stream(self.environment(), 12)
    }

    /// Disks, with those that the pool gets later.
    pub fn disk_count(&self) -> usize {
        let grows = matches!(self.layout, Layout::Raidz | Layout::Raidz2 | Layout::Wide(..));
        let more = grows && self.workload == Workload::BlockSharing;
        self.layout.disks() + usize::from(more)
    }

    /// Bytes of a disk.
    pub fn disk_size(&self) -> u64 {
        match self.layout {
            Layout::Single => 128 << 20,
            _ => 64 << 20,
        }
    }

    /// Bytes of each disk that the pool uses, and log2 of a metaslab's size; `None` is the
    /// maximum for the disk's size. A small space is soon reused.
    pub fn space(&self) -> Option<(u64, u32)> {
        let few = [(6 << 20, 19), (8 << 20, 20), (12 << 20, 20), (24 << 20, 21)];
        let at = Rng::stream(self.environment(), 14).below(5) as usize;
        match self.workload {
            Workload::Churn | Workload::Checkpoint | Workload::Trim => few.get(at % 2).copied(),
            Workload::Full => few.first().copied(),
            Workload::BlockClones | Workload::Dedup => few.last().copied(),
            Workload::BlockSharing | Workload::Moves => None,
            _ => few.get(at).copied(),
        }
    }

    /// Which blocks are made gang blocks although there is space: those larger than so many
    /// bytes, one in so many; in a third of the runs.
    pub fn ganging(&self) -> Option<(u64, u64)> {
        if self.gangs {
            return Some((0, 1));
        }
        let mut rng = Rng::stream(self.seed, 16);
        let gangs = self.workload != Workload::Short && rng.one_in(3);
        let larger_than = 512 << rng.below(6);
        gangs.then(|| (larger_than, 2 + rng.below(8)))
    }

    /// log2 of the pool's sector.
    pub fn ashift(&self) -> u32 {
        if self.rng().one_in(2) { 12 } else { 9 }
    }

    /// The configuration of the disks.
    pub fn disks(&self) -> SimConfig {
        let mut rng = self.rng();
        rng.next_u64();
        let mut config = SimConfig::new(self.environment());
        if rng.one_in(2) {
            config.latency =
                Latency::Late { min: Duration::from_micros(20), max: Duration::from_millis(2) };
        }
        config
    }

    /// The schedule.
    pub fn schedule(&self) -> Options {
        Options { max_steps: 50_000_000, ..Options::varied(self.environment()) }
    }

    /// The options of the writer.
    pub fn writer(&self) -> spa::engine::WriterOptions {
        let mut rng = Rng::stream(self.environment(), 13);
        let mut limits = txg::Limits::for_memory(1 << 30);
        limits.timeout_s = 1 + rng.below(3);
        spa::engine::WriterOptions {
            threads: 2 + rng.below(3) as usize,
            max_ashift: self.ashift(),
            streams: 1 + rng.below(2) as usize,
            limits: Some(limits),
            resumes: false,
            ..spa::engine::WriterOptions::default()
        }
    }

    /// The command that repeats it.
    pub fn command(&self) -> String {
        let mut out = format!(
            "cenote sim --seed {} --vdevs {} --workload {} --threads {} --ops {}",
            self.seed,
            self.layout.name(),
            self.workload.name(),
            self.threads,
            self.ops
        );
        if let Some(plant) = self.plant {
            out += &format!(" --plant {}", plant.name());
        }
        if let Some(fault) = self.fault {
            out += &format!(" --fault {}", fault.name());
        }
        if self.gangs {
            out += " --gangs";
        }
        if let Some(keep) = &self.keep {
            let list: Vec<String> = keep.iter().map(ToString::to_string).collect();
            out += &format!(" --keep {}", list.join(","));
        }
        out
    }
}

/// A type whose values have names.
pub trait ByName: Sized {
    /// The value of that name; `None` if there is none.
    fn named(name: &str) -> Option<Self>;
}

macro_rules! named {
    ($($kind:ty),*) => {$(
        impl ByName for $kind {
            fn named(name: &str) -> Option<Self> {
                Self::ALL.into_iter().find(|x| x.name() == name)
            }
        }
    )*};
}
named!(PlantedBug, DiskFault);

impl ByName for Layout {
    fn named(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .chain(Layout::wide())
            .chain([Layout::Mirrors])
            .find(|x| x.name() == name)
    }
}

impl ByName for Workload {
    fn named(name: &str) -> Option<Self> {
        let more = [
            Workload::Lineage,
            Workload::Clones,
            Workload::BlockClones,
            Workload::Dedup,
            Workload::BlockSharing,
            Workload::Moves,
            Workload::Checkpoint,
            Workload::Trim,
            Workload::Short,
        ];
        Self::ALL.into_iter().chain(more).find(|x| x.name() == name)
    }
}
