//! The state of a pool's devices for `zpool status` and `zpool import`.

use std::path::PathBuf;
use std::time::Duration;

use base::Guid;
use vdev::{AllocClass, Aux, Node, NodeId, Tree, VdevKind};

use crate::engine::JobStatus;

pub use vdev::{ClassDetail, IoClass, IoCount, IoCounts, IoDetail, State as VdevState};

/// The heading under which a vdev is listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum VdevClass {
    /// Ordinary data.
    #[default]
    Normal,
    /// Dedup tables.
    Dedup,
    /// Metadata and small blocks.
    Special,
    /// Intent logs.
    Log,
    /// Second-level cache.
    Cache,
    /// Hot spares.
    Spare,
}

/// Reasons why a pool is not healthy, in order of precedence (chapter 09 §4.3).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ImportReason {
    /// Last used by another host.
    HostidMismatch,
    /// A newer on-disk version.
    VersionNewer,
    /// Features that this version cannot read.
    UnsupportedFeaturesRead,
    /// Features that allow read-only access only.
    UnsupportedFeaturesWrite,
    /// The available devices do not add up to the pool.
    BadGuidSum,
    /// A log device is missing or damaged.
    BadLog,
    /// Metadata cannot be read.
    CorruptPool,
    /// Devices are missing and there is not enough redundancy.
    MissingDevicesNoReplicas,
    /// Devices have wrong labels and there is not enough redundancy.
    CorruptLabelsNoReplicas,
    /// Devices are missing, but the pool works.
    MissingDevices,
    /// Devices have wrong labels, but the pool works.
    CorruptLabels,
    /// Devices returned errors.
    FailingDevices,
    /// Devices were declared faulted.
    FaultedDevices,
    /// Devices were taken offline.
    OfflineDevices,
    /// Files are known to be damaged.
    CorruptData,
    /// An older on-disk version.
    VersionOlder,
    /// Some supported features are not enabled.
    FeaturesDisabled,
}

/// One vdev and what is below it.
#[derive(Clone, Debug, Default)]
pub struct VdevStatus {
    /// Unique id.
    pub guid: Guid,
    /// The format's type word (`mirror`, `raidz`, `disk`, ...).
    pub kind: String,
    /// The name listed: a path, or `mirror-0`, `raidz2-1`, `draid2:4d:11c:1s-0`.
    pub name: String,
    /// Path of a leaf.
    pub path: Option<PathBuf>,
    /// Position below its parent.
    pub id: u64,
    /// Heading.
    pub class: VdevClass,
    /// State.
    pub state: Option<VdevState>,
    /// The remark behind the counters, in OpenZFS's words.
    pub aux: Option<String>,
    /// The exact problem, for `-v`.
    pub detail: Option<String>,
    /// Reads that failed.
    pub read_errors: u64,
    /// Writes that failed.
    pub write_errors: u64,
    /// Wrong bytes.
    pub checksum_errors: u64,
    /// Slow operations.
    pub slow_ios: u64,
    /// A leaf that is too slow for reads now.
    pub sits_out: bool,
    /// Operations and bytes since [`VdevStatus::age`], with those of the vdevs below.
    pub io: IoCounts,
    /// Latencies and sizes of these operations, and those in flight.
    pub io_detail: IoDetail,
    /// How long `io` has been counting.
    pub age: Duration,
    /// O_DIRECT is in effect (leaves).
    pub direct_io: bool,
    /// Capacity in bytes, of top-level vdevs and the root.
    pub size: u64,
    /// Allocated bytes, likewise.
    pub allocated: u64,
    /// Bytes that files can take in [`VdevStatus::size`], likewise: without parity.
    pub def_space: u64,
    /// Fragmentation of free space, percent.
    pub fragmentation: Option<u64>,
    /// Bytes the vdev could grow by.
    pub expandsize: u64,
    /// Bytes of a top-level vdev that only the checkpoint keeps.
    pub checkpoint: u64,
    /// A leaf's device discards.
    pub can_discard: bool,
    /// A leaf's resilver waits for the running one to end.
    pub deferred: bool,
    /// The last trim of a leaf.
    pub trim: Option<JobStatus>,
    /// The last initialization of a leaf.
    pub initialize: Option<JobStatus>,
    /// log2 of the sector.
    pub ashift: u32,
    /// Parity columns.
    pub nparity: u32,
    /// Allocatable bytes.
    pub asize: u64,
    /// Bytes of the device.
    pub psize: u64,
    /// Vdevs below.
    pub children: Vec<VdevStatus>,
}

impl VdevStatus {
    /// The state; a vdev without one counts as unavailable.
    pub fn state(&self) -> VdevState {
        self.state.unwrap_or(VdevState::Unavail)
    }

    /// This vdev and all below it.
    pub fn for_each<'a>(&'a self, f: &mut impl FnMut(&'a VdevStatus)) {
        f(self);
        self.children.iter().for_each(|c| c.for_each(f));
    }
}

/// The remark on a leaf that misses txgs, where no scan says more: the pool is read-only.
pub const OUT_OF_DATE: &str = "out of date";

/// Describes a whole tree.
pub fn describe(tree: &Tree, pool: &str) -> VdevStatus {
    let root = tree.nodes().next().map(|(id, _)| id);
    let mut status = root.map(|id| one(tree, id)).unwrap_or_default();
    pool.clone_into(&mut status.name);
    status
}

fn one(tree: &Tree, id: NodeId) -> VdevStatus {
    let node = tree.node(id);
    let errors = node.errors();
    let nparity = match node.kind() {
        VdevKind::Raidz { nparity, .. } => u32::from(*nparity),
        VdevKind::Draid(params) => params.nparity,
        _ => 0,
    };
    VdevStatus {
        guid: node.guid(),
        kind: node.kind().name().to_owned(),
        name: name_of(tree, id),
        path: node.path().map(PathBuf::from),
        id: node.id(),
        class: match node.class() {
            AllocClass::Normal => VdevClass::Normal,
            AllocClass::Log => VdevClass::Log,
            AllocClass::Special => VdevClass::Special,
            AllocClass::Dedup => VdevClass::Dedup,
        },
        state: Some(node.state()),
        aux: remark(tree, node),
        detail: detail(node.aux()),
        read_errors: errors.read,
        write_errors: errors.write,
        checksum_errors: errors.cksum,
        slow_ios: node.slow(),
        sits_out: node.sits_out(),
        io: tree.io(id),
        io_detail: tree.io_detail(id),
        age: tree.io_age(id),
        deferred: node.is_deferred(),
        direct_io: node.device().is_some_and(|d| d.caps().direct),
        ashift: node.ashift(),
        nparity,
        asize: node.asize(),
        psize: node.device().map_or(0, |d| d.size()),
        children: node.children().iter().map(|&c| one(tree, c)).collect(),
        ..VdevStatus::default()
    }
}

fn name_of(tree: &Tree, id: NodeId) -> String {
    let node = tree.node(id);
    match node.kind() {
        VdevKind::Disk | VdevKind::File | VdevKind::DraidSpare { .. } => {
            node.path().map_or_else(|| node.guid().to_string(), str::to_owned)
        }
        VdevKind::Raidz { nparity, .. } => format!("raidz{nparity}-{}", node.id()),
        VdevKind::Draid(p) => format!(
            "draid{}:{}d:{}c:{}s-{}",
            p.nparity,
            p.ndata,
            node.children().len(),
            p.nspares,
            node.id()
        ),
        kind => format!("{}-{}", kind.name(), node.id()),
    }
}

/// The words of chapter 09 §4.3.
fn remark(tree: &Tree, node: &Node) -> Option<String> {
    // A successor or spare is not out of date: it is being filled.
    let joins = node.parent().is_some_and(|parent| {
        matches!(tree.node(parent).kind(), VdevKind::Replacing | VdevKind::Spare)
    });
    Some(
        match node.aux() {
            Aux::None if node.is_behind() && !joins => OUT_OF_DATE,
            Aux::None | Aux::Persistent => return None,
            Aux::External => "external device fault",
            Aux::OpenFailed(_) => "cannot open",
            Aux::CorruptData(why) if why.contains("label") => "invalid label",
            Aux::CorruptData(_) => "corrupted data",
            Aux::NoReplicas => "insufficient replicas",
            Aux::TooSmall => "cannot open",
            Aux::TooManyErrors => "too many errors",
        }
        .to_owned(),
    )
}

fn detail(aux: &Aux) -> Option<String> {
    match aux {
        Aux::OpenFailed(why) | Aux::CorruptData(why) => Some(why.clone()),
        Aux::TooSmall => Some("the device is smaller than 64 MiB".to_owned()),
        Aux::None | Aux::NoReplicas | Aux::Persistent | Aux::TooManyErrors | Aux::External => None,
    }
}
