//! The tree of vdevs: an immutable snapshot with shared live parts.
//!
//! # Theory
//! Nodes are stored in one vector, parents before children. State that changes while a
//! snapshot is in use (error counters, missing ranges, the mapping of a removed vdev,
//! queue lengths) is in [`LiveState`], which successive snapshots share by guid. Queues are
//! shared by guid and device.
//!
//! # Invariants
//! * `nodes[0]` is the root; depth and count were checked, so recursion is bounded.
//! * A readable leaf has a device; a parity vdev's geometry was checked.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use base::limits::VDEV_COUNT_MAX;
use base::rt::RwLock;
use base::{Asize, Error, ErrorKind, Guid, Psize, Result, Txg, VdevId};
use device::Device;

use crate::age::TreeAge;
use crate::draid::{self, DraidGeometry};
use crate::dtl::{MissingTxgs, TxgRanges};
use crate::indirect::IndirectMap;
use crate::iostat::IoStats;
use crate::map::{RaidzGeometry, whole_sectors};
use crate::queue::{LeafQueue, Tuning};
use crate::range_lock::RangeLocks;
use crate::reflow::{ReflowState, is_expanding};
use crate::sitout::SitOutState;
use crate::spec::{AllocClass, Persistent, Spec, VdevKind};

/// Bytes before the allocatable area of a leaf: two labels and the boot region
/// (chapter 01 §1).
pub const LABEL_START: u64 = 4 << 20;
/// Bytes behind the allocatable area: two labels.
pub const LABEL_END: u64 = 512 << 10;

/// A node's index in one tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub(crate) u32);

/// The state of a vdev, as `zpool status` prints it; later variants are better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum State {
    /// Taken offline.
    Offline,
    /// Physically removed.
    Removed,
    /// Cannot be opened, or too few of its children can.
    Unavail,
    /// Declared faulted.
    Faulted,
    /// Works without its full redundancy.
    Degraded,
    /// Works normally.
    Online,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            State::Offline => "OFFLINE",
            State::Removed => "REMOVED",
            State::Unavail => "UNAVAIL",
            State::Faulted => "FAULTED",
            State::Degraded => "DEGRADED",
            State::Online => "ONLINE",
        })
    }
}

/// The reason why a vdev is not online.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Aux {
    /// No reason.
    None,
    /// The device cannot be opened; the message is the reason.
    OpenFailed(String),
    /// The label or content of the device belongs to another vdev; the message is the
    /// reason.
    CorruptData(String),
    /// Too few children work.
    NoReplicas,
    /// The device is smaller than a leaf can be.
    TooSmall,
    /// Too many errors occurred.
    TooManyErrors,
    /// Set by a flag in the configuration.
    Persistent,
    /// Faulted on request.
    External,
}

impl fmt::Display for Aux {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Aux::None => Ok(()),
            Aux::OpenFailed(why) => write!(f, "cannot open: {why}"),
            Aux::CorruptData(why) => write!(f, "corrupted data: {why}"),
            Aux::NoReplicas => f.write_str("insufficient replicas"),
            Aux::TooSmall => f.write_str("the device is too small"),
            Aux::TooManyErrors => f.write_str("too many errors"),
            Aux::Persistent => f.write_str("marked so by the administrator or by fault handling"),
            Aux::External => f.write_str("external device fault"),
        }
    }
}

/// A decision of the layer above about a leaf, for example after reading its labels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The leaf.
    pub guid: Guid,
    /// Its state from now on.
    pub state: State,
    /// The reason.
    pub aux: Aux,
}

/// What is needed to open a leaf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeafSpec {
    /// The leaf.
    pub guid: Guid,
    /// Disk or file.
    pub kind: VdevKind,
    /// Path as configured.
    pub path: Option<String>,
    /// The top-level vdev it belongs to.
    pub top: VdevId,
    /// log2 of the sector size of its top-level vdev.
    pub ashift: u32,
}

/// A vdev's errors since the pool was opened or cleared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ErrorCounts {
    /// Failed reads.
    pub read: u64,
    /// Failed writes.
    pub write: u64,
    /// Wrong bytes.
    pub cksum: u64,
}

/// State of one vdev that successive snapshots share.
#[derive(Default)]
pub(crate) struct LiveState {
    pub(crate) read_errors: AtomicU64,
    pub(crate) write_errors: AtomicU64,
    pub(crate) cksum_errors: AtomicU64,
    /// Operations that took long.
    pub(crate) slow: AtomicU64,
    /// Bytes of a leaf that were rewritten because they were wrong.
    pub(crate) healed: AtomicU64,
    /// Counters of a leaf.
    pub(crate) io: IoStats,
    /// Operations in flight on a leaf, and reads that wait for it.
    pub(crate) in_flight: AtomicU32,
    /// Position of the round robin among a mirror's children.
    pub(crate) rotor: AtomicU32,
    /// Whether it is too slow for reads.
    pub(crate) sit_out: SitOutState,
    /// What the vdev misses.
    pub(crate) missing: MissingTxgs,
    /// The progress of a raidz vdev's expansion.
    pub(crate) reflow: ReflowState,
    map: RwLock<Option<Arc<IndirectMap>>>,
}

impl LiveState {
    pub(crate) fn map(&self) -> Option<Arc<IndirectMap>> {
        self.map.read().clone()
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Geometry {
    /// Blocks are stored contiguously as they are.
    Plain,
    Raidz(RaidzGeometry),
    Draid(DraidGeometry),
}

/// One vdev of a snapshot.
#[derive(Clone)]
pub struct Node {
    pub(crate) spec: Spec,
    pub(crate) parent: Option<NodeId>,
    pub(crate) children: Vec<NodeId>,
    pub(crate) top: VdevId,
    pub(crate) ashift: u32,
    pub(crate) geometry: Geometry,
    pub(crate) device: Option<Arc<dyn Device>>,
    /// The queue of an open leaf.
    pub(crate) queue: Option<Arc<LeafQueue>>,
    pub(crate) state: State,
    pub(crate) aux: Aux,
    pub(crate) live: Arc<LiveState>,
}

impl Node {
    /// The type.
    pub fn kind(&self) -> &VdevKind {
        &self.spec.kind
    }
    /// The guid.
    pub fn guid(&self) -> Guid {
        self.spec.guid
    }
    /// The index below the parent.
    pub fn id(&self) -> u64 {
        self.spec.id
    }
    /// The path, if it is a leaf that has one.
    pub fn path(&self) -> Option<&str> {
        self.spec.path.as_deref()
    }
    /// The parent; `None` for the root.
    pub fn parent(&self) -> Option<NodeId> {
        self.parent
    }
    /// The children in order.
    pub fn children(&self) -> &[NodeId] {
        &self.children
    }
    /// The top-level vdev it belongs to (0 for the root).
    pub fn top(&self) -> VdevId {
        self.top
    }
    /// log2 of the sector size of its top-level vdev.
    pub fn ashift(&self) -> u32 {
        self.ashift
    }
    /// Allocatable bytes as configured (top-level vdevs).
    pub fn asize(&self) -> u64 {
        self.spec.asize
    }
    /// Whether it holds intent logs only.
    pub fn is_log(&self) -> bool {
        self.spec.is_log
    }
    /// Allocation class.
    pub fn class(&self) -> AllocClass {
        self.spec.class
    }
    /// Flags of the configuration.
    pub fn persistent(&self) -> Persistent {
        self.spec.persistent
    }
    /// The state in this snapshot.
    pub fn state(&self) -> State {
        self.state
    }
    /// The reason why it is not online.
    pub fn aux(&self) -> &Aux {
        &self.aux
    }
    /// The device, if it is an open leaf.
    pub fn device(&self) -> Option<&Arc<dyn Device>> {
        self.device.as_ref()
    }
    /// Errors so far.
    pub fn errors(&self) -> ErrorCounts {
        ErrorCounts {
            read: self.live.read_errors.load(Relaxed),
            write: self.live.write_errors.load(Relaxed),
            cksum: self.live.cksum_errors.load(Relaxed),
        }
    }
    /// Resets the error counters (`zpool clear`).
    pub fn clear_errors(&self) {
        let live = &self.live;
        for counter in [&live.read_errors, &live.write_errors, &live.cksum_errors, &live.slow] {
            counter.store(0, Relaxed);
        }
    }
    /// The missing transaction groups.
    pub fn dtl(&self) -> Arc<TxgRanges> {
        self.live.missing.get()
    }
    /// Whether it is a leaf: with a device of its own, or a distributed spare.
    pub fn is_leaf(&self) -> bool {
        self.kind().is_device() || matches!(self.kind(), VdevKind::DraidSpare { .. })
    }
    /// Whether it is a readable leaf that lacks data of some txgs.
    pub fn is_behind(&self) -> bool {
        self.is_leaf() && self.readable() && !self.live.missing.get().ranges().is_empty()
    }
    /// Whether it can be read at all.
    pub fn readable(&self) -> bool {
        self.state >= State::Degraded
    }
    /// The device and queue for writes, if it is a leaf that can be written.
    pub(crate) fn writable(&self) -> Option<(&Arc<dyn Device>, &Arc<LeafQueue>)> {
        let open = self.device.as_ref().zip(self.queue.as_ref())?;
        (self.readable() && open.0.caps().writable).then_some(open)
    }
}

/// A snapshot of a pool's vdevs.
pub struct Tree {
    pub(crate) nodes: Vec<Node>,
    pub(crate) tops: Vec<Option<NodeId>>,
    pub(crate) by_guid: HashMap<Guid, NodeId>,
    pub(crate) tuning: Arc<Tuning>,
    pub(crate) locks: Arc<RangeLocks>,
    /// Its age among the pool's snapshots.
    pub(crate) age: TreeAge,
}

/// The function that opens a leaf.
pub type Opener<'a> = &'a dyn Fn(&LeafSpec) -> Result<Arc<dyn Device>>;

impl Tree {
    /// Builds a tree. If the opener refuses a leaf, that is no error: the leaf becomes
    /// UNAVAIL with the opener's message (for `Corrupt`, as corrupted data), and the
    /// states above it follow.
    ///
    /// # Errors
    /// `Corrupt`, `Limit` or `Unsupported` for an impossible description.
    pub fn build(spec: &Spec, opener: Opener<'_>) -> Result<Arc<Tree>> {
        Tree::build_from(None, spec, opener)
    }

    /// As [`Tree::build`]; counters, missing ranges and mappings of vdevs that
    /// `previous` also has are shared with it.
    ///
    /// # Errors
    /// As [`Tree::build`].
    pub fn build_from(
        previous: Option<&Tree>,
        spec: &Spec,
        opener: Opener<'_>,
    ) -> Result<Arc<Tree>> {
        spec.check()?;
        let tuning = previous.map(|p| Arc::clone(&p.tuning)).unwrap_or_default();
        let locks = previous.map(|p| Arc::clone(&p.locks)).unwrap_or_default();
        let age = previous.map_or_else(TreeAge::default, |p| p.age.next());
        let (nodes, tops, by_guid) = (Vec::new(), Vec::new(), HashMap::new());
        let mut tree = Tree { nodes, tops, by_guid, tuning, locks, age };
        tree.add(previous, spec, None, None, 0, opener)?;
        tree.propagate();
        Ok(Arc::new(tree))
    }

    fn add(
        &mut self,
        previous: Option<&Tree>,
        spec: &Spec,
        parent: Option<NodeId>,
        top: Option<(VdevId, u32)>,
        min_asize: u64,
        opener: Opener<'_>,
    ) -> Result<NodeId> {
        let id = NodeId(self.nodes.len() as u32);
        let (top_id, ashift) = top.unwrap_or((VdevId(0), spec.ashift));
        let geometry = geometry(spec, ashift).map_err(|e| e.on_vdev(spec.guid))?;
        let before = previous.and_then(|p| p.find(spec.guid)).filter(|_| spec.guid != Guid(0));
        let live = before.map(|node| Arc::clone(&node.live)).unwrap_or_default();
        if let Geometry::Raidz(RaidzGeometry { reflow: Some(view), .. }) = &geometry
            && !before.is_some_and(is_expanding)
        {
            live.reflow.reset(*view);
        }
        if spec.guid != Guid(0) && self.by_guid.insert(spec.guid, id).is_some() {
            return Err(Error::corrupt("two vdevs have the same guid").on_vdev(spec.guid));
        }
        let mut own = spec.clone();
        own.children = Vec::new();
        let (device, state, aux) = open_leaf(spec, top_id, ashift, min_asize, opener);
        let queue = device.as_ref().map(|device| {
            let same = before.and_then(|b| b.queue.as_ref()).filter(|q| q.is_of(device));
            same.cloned().unwrap_or_else(|| {
                let (device, live) = (Arc::clone(device), Arc::clone(&live));
                LeafQueue::new(device, spec.guid, live, Arc::clone(&self.tuning))
            })
        });
        if spec.kind.is_device() && state < State::Degraded {
            live.missing.note_absence();
        }
        self.nodes.push(Node {
            spec: own,
            parent,
            children: Vec::new(),
            top: top_id,
            ashift,
            geometry,
            device,
            queue,
            state,
            aux,
            live,
        });
        let mut children = Vec::with_capacity(spec.children.len());
        for child in &spec.children {
            let below = match (parent, top) {
                (None, None) => Some((top_index(child)?, child.ashift)),
                _ => top,
            };
            let least = match parent {
                None => child.min_asize,
                Some(_) => child_min_asize(spec, min_asize),
            };
            let child_id = self.add(previous, child, Some(id), below, least, opener)?;
            if let (None, Some((VdevId(index), _))) = (parent, below) {
                self.add_top(index, child_id, child.guid)?;
            }
            children.push(child_id);
        }
        self.nodes[id.0 as usize].children = children;
        Ok(id)
    }

    fn add_top(&mut self, index: u32, node: NodeId, guid: Guid) -> Result<()> {
        let index = index as usize;
        if self.tops.len() <= index {
            self.tops.resize(index + 1, None);
        }
        match self.tops[index].replace(node) {
            None => Ok(()),
            Some(_) => Err(Error::corrupt("two top-level vdevs have the same id").on_vdev(guid)),
        }
    }

    /// Derives the states of interior vdevs from their children's, bottom up.
    fn propagate(&mut self) {
        // Distributed spares follow their dRAID, which follows its own leaves. A spare
        // in use improves its parent's state, so a second pass settles both.
        for _ in 0..2 {
            for index in (0..self.nodes.len()).rev() {
                if let Some((state, aux)) = self.judged(index) {
                    (self.nodes[index].state, self.nodes[index].aux) = (state, aux);
                }
            }
        }
    }

    fn judged(&self, index: usize) -> Option<(State, Aux)> {
        let node = &self.nodes[index];
        let lost = |n: &&NodeId| !self.node(**n).readable();
        let failed = node.children.iter().filter(lost).count();
        let degraded = node.children.iter().any(|&c| self.node(c).state != State::Online);
        let tolerated = match node.kind() {
            VdevKind::Root => {
                let fatal = |n: &&NodeId| lost(n) && !self.node(**n).is_log();
                if node.children.iter().any(|c| fatal(&c)) { 0 } else { failed }
            }
            VdevKind::Mirror | VdevKind::Replacing | VdevKind::Spare => {
                node.children.len().saturating_sub(1)
            }
            VdevKind::Raidz { nparity, .. } => usize::from(*nparity),
            VdevKind::Draid(params) => params.nparity as usize,
            VdevKind::DraidSpare { draid, .. } => {
                if node.spec.persistent.keeps_closed() {
                    return None;
                }
                return Some(match self.find(*draid) {
                    Some(found) if matches!(found.kind(), VdevKind::Draid(_)) => {
                        (State::Online, Aux::None)
                    }
                    _ => (State::Unavail, Aux::OpenFailed("its dRAID is not there".to_owned())),
                });
            }
            _ => return None,
        };
        Some(if failed > tolerated {
            (State::Unavail, Aux::NoReplicas)
        } else if degraded {
            (State::Degraded, Aux::None)
        } else {
            (State::Online, Aux::None)
        })
    }

    /// A new snapshot that does not differ.
    pub(crate) fn same(&self) -> Tree {
        Tree {
            nodes: self.nodes.clone(),
            tops: self.tops.clone(),
            by_guid: self.by_guid.clone(),
            tuning: Arc::clone(&self.tuning),
            locks: Arc::clone(&self.locks),
            age: self.age.next(),
        }
    }

    /// A new snapshot in which these leaves have the given states.
    pub fn with_verdicts(&self, verdicts: &[Verdict]) -> Arc<Tree> {
        let mut tree = self.same();
        for verdict in verdicts {
            if let Some(id) = tree.by_guid.get(&verdict.guid) {
                let node = &mut tree.nodes[id.0 as usize];
                if node.children.is_empty()
                    && (node.device.is_some() || verdict.state < State::Degraded)
                {
                    (node.state, node.aux) = (verdict.state, verdict.aux.clone());
                    if verdict.state < State::Degraded {
                        node.live.missing.note_absence();
                    }
                }
            }
        }
        tree.propagate();
        Arc::new(tree)
    }

    /// The description of the tree.
    pub fn spec(&self) -> Spec {
        self.spec_of(self.root())
    }

    fn spec_of(&self, node: &Node) -> Spec {
        let children = node.children.iter().map(|&c| self.spec_of(self.node(c)));
        node.spec.clone().with_children(children.collect())
    }

    /// The root vdev.
    pub fn root(&self) -> &Node {
        &self.nodes[0]
    }

    /// A node.
    ///
    /// # Panics
    /// If the id comes from another, larger tree.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0 as usize]
    }

    /// The node with this guid.
    pub fn find(&self, guid: Guid) -> Option<&Node> {
        self.by_guid.get(&guid).map(|&id| self.node(id))
    }

    /// All nodes, parents before children.
    pub fn nodes(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        self.nodes.iter().enumerate().map(|(i, n)| (NodeId(i as u32), n))
    }

    /// The leaves with their own device, open or not.
    pub fn leaves(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        self.nodes().filter(|(_, n)| n.kind().is_device())
    }

    /// The ids of all top-level vdevs, holes included.
    pub fn top_ids(&self) -> impl Iterator<Item = VdevId> + '_ {
        let used = self.tops.iter().enumerate().filter(|(_, t)| t.is_some());
        used.map(|(i, _)| VdevId(i as u32))
    }

    /// A top-level vdev.
    ///
    /// # Errors
    /// `Corrupt` if there is none with this id (an address that names it is damaged).
    pub fn top(&self, vdev: VdevId) -> Result<&Node> {
        self.top_node(vdev).map(|id| self.node(id))
    }

    pub(crate) fn top_node(&self, vdev: VdevId) -> Result<NodeId> {
        self.tops.get(vdev.0 as usize).copied().flatten().ok_or_else(|| {
            Error::corrupt(format!("an address names vdev {vdev}, which does not exist"))
        })
    }

    /// Sets the mapping of a removed vdev.
    ///
    /// # Errors
    /// `Corrupt` if the vdev does not exist or is not indirect.
    pub fn set_indirect(&self, vdev: VdevId, map: Arc<IndirectMap>) -> Result<()> {
        let node = self.top(vdev)?;
        if *node.kind() != VdevKind::Indirect {
            return Err(Error::corrupt(format!("vdev {vdev} has a mapping but was not removed")));
        }
        *node.live.map.write() = Some(map);
        Ok(())
    }

    /// The mapping of a removed vdev; `None` for any other one, and before it is loaded.
    pub fn indirect(&self, vdev: VdevId) -> Option<Arc<IndirectMap>> {
        let node = self.top(vdev).ok()?;
        (*node.kind() == VdevKind::Indirect).then(|| node.live.map()).flatten()
    }

    /// Bytes that a block takes from a top-level vdev (chapter 02 §10.1, 10.2, 11.1).
    ///
    /// # Errors
    /// `Corrupt` for an unknown vdev or an impossible size.
    pub fn asize(&self, vdev: VdevId, psize: Psize, birth: Txg) -> Result<Asize> {
        let node = self.top(vdev)?;
        whole_sectors(psize.0, node.ashift)?;
        Ok(Asize(node.asize_of(psize.0, birth)))
    }

    /// Allocatable bytes that the open devices of a vdev provide (chapter 01 §1,
    /// chapter 02 §11.1); `None` if no child is open. The configured size
    /// ([`Node::asize`]) is the one in force; this value shows whether devices became
    /// too small or could provide more.
    pub fn available(&self, id: NodeId) -> Option<u64> {
        let node = self.node(id);
        if let Some(device) = node.device() {
            return Some(leaf_asize(&**device));
        }
        let smallest = node.children.iter().filter_map(|&c| self.available(c)).min()?;
        let total = match &node.geometry {
            Geometry::Draid(draid) => draid.vdev_asize(smallest),
            Geometry::Raidz(raidz) => {
                let width = raidz.width - u32::from(raidz.reflow.is_some());
                smallest.saturating_mul(u64::from(width))
            }
            Geometry::Plain => smallest,
        };
        Some(total >> 18 << 18)
    }

    /// The deflate ratio: accounted bytes for each 512 allocated ones (chapter 02 §13).
    ///
    /// # Errors
    /// `Corrupt` for an unknown vdev.
    pub fn deflate_ratio(&self, vdev: VdevId) -> Result<u64> {
        let node = self.top(vdev)?;
        Ok(131_072 / (node.asize_of(131_072, Txg::ZERO) >> 9).max(1))
    }

    /// The smallest allocation, in bytes.
    ///
    /// # Errors
    /// `Corrupt` for an unknown vdev.
    pub fn min_alloc(&self, vdev: VdevId) -> Result<Asize> {
        Ok(Asize(self.top(vdev)?.asize_of(1, Txg::MAX)))
    }
}

impl Node {
    pub(crate) fn asize_of(&self, psize: u64, birth: Txg) -> u64 {
        match &self.geometry {
            Geometry::Plain => psize.next_multiple_of(1 << self.ashift),
            Geometry::Raidz(raidz) => raidz.asize(psize, birth),
            Geometry::Draid(draid) => draid.asize(psize),
        }
    }
}

fn top_index(spec: &Spec) -> Result<VdevId> {
    match u32::try_from(spec.id) {
        Ok(id) if (id as usize) < VDEV_COUNT_MAX => Ok(VdevId(id)),
        _ => Err(Error::limit("a top-level vdev's id is too large").on_vdev(spec.guid)),
    }
}

fn geometry(spec: &Spec, ashift: u32) -> Result<Geometry> {
    let width = spec.children.len();
    Ok(match &spec.kind {
        VdevKind::Raidz { nparity, expand_txgs, reflow } => Geometry::Raidz(RaidzGeometry {
            ashift,
            nparity: u32::from(*nparity),
            width: width as u32,
            expand_txgs: expand_txgs.clone(),
            reflow: *reflow,
        }),
        VdevKind::Draid(params) => Geometry::Draid(DraidGeometry::new(params, width, ashift)?),
        _ => Geometry::Plain,
    })
}

/// Bytes of a device that are available for data (chapter 01 §1).
fn leaf_asize(device: &dyn Device) -> u64 {
    (device.size() >> 18 << 18).saturating_sub(LABEL_START + LABEL_END)
}

/// Bytes that a child needs so that its parent has `min` bytes (chapter 01 §1).
fn child_min_asize(parent: &Spec, min: u64) -> u64 {
    let children = parent.children.len().max(1) as u64;
    match parent.kind {
        // The child that is being attached adds no space yet.
        VdevKind::Raidz { reflow, .. } => {
            min.div_ceil((children - u64::from(reflow.is_some())).max(1))
        }
        VdevKind::Draid(_) if min > 0 => {
            let rows = min.div_ceil(children).div_ceil(draid::ROW);
            draid::RESERVED.saturating_add(rows.saturating_mul(draid::ROW))
        }
        _ => min,
    }
}

/// The device and state of a node before its children are known.
fn open_leaf(
    spec: &Spec,
    top: VdevId,
    ashift: u32,
    min_asize: u64,
    opener: Opener<'_>,
) -> (Option<Arc<dyn Device>>, State, Aux) {
    let flags = spec.persistent;
    let marked = [
        (flags.removed, State::Removed),
        (flags.faulted, State::Faulted),
        (flags.offline, State::Offline),
    ];
    if let Some((_, state)) = marked.into_iter().find(|(set, _)| *set) {
        let aux = match state {
            State::Faulted if flags.external => Aux::External,
            State::Faulted if flags.err_exceeded => Aux::TooManyErrors,
            _ => Aux::Persistent,
        };
        return (None, state, aux);
    }
    match &spec.kind {
        VdevKind::Missing => {
            return (None, State::Unavail, Aux::OpenFailed("the device is missing".to_owned()));
        }
        kind if !kind.is_device() => return (None, State::Online, Aux::None),
        _ => {}
    }
    let leaf =
        LeafSpec { guid: spec.guid, kind: spec.kind.clone(), path: spec.path.clone(), top, ashift };
    match opener(&leaf) {
        Ok(device) if device.size() < LABEL_START + LABEL_END + (1 << ashift) => {
            (None, State::Unavail, Aux::TooSmall)
        }
        Ok(device) if leaf_asize(&*device) < min_asize => {
            let why = format!(
                "the device has {} bytes for data, its vdev needs {min_asize}",
                leaf_asize(&*device)
            );
            (None, State::Unavail, Aux::OpenFailed(why))
        }
        Ok(device) if flags.degraded => (Some(device), State::Degraded, Aux::Persistent),
        Ok(device) => (Some(device), State::Online, Aux::None),
        Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Checksum) => {
            (None, State::Unavail, Aux::CorruptData(error.to_string()))
        }
        Err(error) => (None, State::Unavail, Aux::OpenFailed(error.to_string())),
    }
}

#[cfg(test)]
#[path = "tree_tests.rs"]
mod tests;
