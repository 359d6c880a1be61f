//! The pool's configuration while it is written: vdev ZAPs, metaslab arrays, missing
//! txgs, the configuration object, labels and uberblock (chapter 01 §4, §6;
//! chapter 04 §1.1; chapter 05 §1.2, §3, §8).

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use base::{Error, Guid, ObjectId, Result, Txg, VdevId};
use dmu::ObjectSpec;
use dsl::write::features;
use dsl::write::store::DIRECTORY;
use ondisk::config::{PoolConfig, VdevConfig, VdevType};
use ondisk::dtl::Dtl;
use ondisk::features::FEATURES;
use ondisk::label::usable_size;
use ondisk::spacemap::{HEADER_SIZE, HEADER_V0_SIZE, HISTOGRAM_SIZE, Header};
use ondisk::uberblock::{Uberblock, VERSION_FEATURES};
use ondisk::zap::ZapValue;
use ondisk::{BlkPtr, ObjType};
use vdev::{Tree, TxgRanges};

use super::maps::{HISTOGRAM, SPACEMAP_V2};
use super::sync::SyncPass;
use super::{Published, SyncState, Writer};
use crate::write::commit::{Commit, CommitLeaf, CommitTop, LabelDevices, LeafWrite, commit};
use crate::write::config::{PoolFacts, members};
use crate::write::uberblock::{Synced, next};

pub(super) const ZAP_MAP: &str = "com.delphix:vdev_zap_map";
const BIAS: &[u8] = b"org.zfsonlinux:allocation_bias";
const ROOT_ZAPS: &str = "com.klarasystems:vdev_zaps_v2";
const CLASSES: &str = "org.zfsonlinux:allocation_classes";
const DRAID: &str = "org.openzfs:draid";
const CONFIG_BLOCK: usize = 16 << 10;
const DTL_BLOCK: u32 = 4 << 10;

/// Whether a vdev has data, and labels somewhere below it.
pub(super) fn is_concrete(vdev: &VdevConfig) -> bool {
    !matches!(vdev.kind, VdevType::Hole | VdevType::Missing | VdevType::Indirect)
}

pub(super) fn top_zaps(config: &PoolConfig) -> Vec<(VdevId, u64)> {
    let zap = |v: &VdevConfig| Some((VdevId(v.id), v.top.as_ref()?.zap?.0));
    config.vdev_tree.children.iter().filter_map(zap).filter(|(_, zap)| *zap != 0).collect()
}

/// The devices of a tree, for the commit.
struct Labels(Arc<Tree>);

impl LabelDevices for Labels {
    fn write_leaves(&self, writes: Vec<LeafWrite>) -> Vec<Result<()>> {
        let writes = writes.into_iter().map(|w| (w.leaf, w.offset, w.data)).collect();
        self.0.write_leaves(writes).into_iter().map(|(_, result)| result).collect()
    }
    fn flush(&self, tops: &[VdevId]) -> Vec<(Guid, Result<()>)> {
        self.0.flush(tops)
    }
}

impl Writer {
    /// Creates a vdev's objects in the MOS before anything is allocated from it, and stores
    /// the txgs that leaves missed.
    pub(super) fn sync_vdevs(&self, state: &mut SyncState, sync: &SyncPass<'_>) -> Result<()> {
        self.make_zaps(state, sync)?;
        let tops: Vec<u32> = state.config.vdev_tree.children.iter().map(|v| v.id).collect();
        for id in tops {
            self.make_array(state, sync, id)?;
        }
        let mut missed = std::mem::take(&mut state.missed);
        missed.extend(self.zio.tree().take_missing());
        let plants = &self.plants.topology;
        if plants.lost_dtl.load(Relaxed) {
            missed.clear();
        }
        for (guid, mut ranges) in missed {
            if let Some(first) = ranges.first().filter(|_| plants.forgotten_range.load(Relaxed)) {
                ranges.remove(first);
            }
            self.store_missing(state, sync, guid, &ranges)?;
        }
        Ok(())
    }

    fn make_zaps(&self, state: &mut SyncState, sync: &SyncPass<'_>) -> Result<()> {
        if state.config.version != VERSION_FEATURES {
            // Old pools have no vdev ZAPs, and so no place to record roles.
            state.new_vdevs.clear();
            return Ok(());
        }
        let root_wanted = features::is_enabled(sync.cx.read(), ROOT_ZAPS).unwrap_or(false);
        let lacks = |v: &VdevConfig| {
            is_concrete(v)
                && (v.top.as_ref().is_some_and(|t| t.zap.is_none())
                    || v.leaves().any(|l| l.leaf.zap.is_none()))
        };
        let root_lacks = root_wanted && state.config.vdev_tree.root_zap.is_none();
        if !root_lacks && !state.config.vdev_tree.children.iter().any(lacks) {
            return Ok(());
        }
        let map = match sync.cx.read().directory(ZAP_MAP)? {
            Some(map) => map,
            None => {
                let map = new_zap(sync)?;
                put(sync, DIRECTORY, ZAP_MAP, map)?;
                map
            }
        };
        let mut tree = state.config.vdev_tree.clone();
        if root_lacks {
            tree.root_zap = Some(ObjectId(listed_zap(sync, map)?));
            features::add(sync.cx, ROOT_ZAPS, 1)?;
        }
        for top in tree.children.iter_mut().filter(|v| is_concrete(v)) {
            let id = VdevId(top.id);
            if let Some(space) = &mut top.top
                && space.zap.is_none()
            {
                let zap = listed_zap(sync, map)?;
                space.zap = Some(ObjectId(zap));
                self.note_role(state, sync, id, zap, top.kind)?;
            }
            leaf_zaps(sync, map, top)?;
        }
        state.config.vdev_tree = tree;
        state.config.has_per_vdev_zaps = true;
        state.dirty = true;
        Ok(())
    }

    /// Stores the role of a new vdev, which only its ZAP records (chapter 05 §3.1).
    fn note_role(
        &self,
        state: &mut SyncState,
        sync: &SyncPass<'_>,
        id: VdevId,
        zap: u64,
        kind: VdevType,
    ) -> Result<()> {
        let Some(bias) = state.new_vdevs.remove(&id) else { return Ok(()) };
        if kind == VdevType::Draid {
            features::add(sync.cx, DRAID, 1)?;
        }
        let Some(bias) = bias else { return Ok(()) };
        let mut text = bias.as_bytes().to_vec();
        text.push(0);
        let value = ZapValue::from_bytes(&text).ok_or_else(|| base::bug!("a role's name"))?;
        sync.cx.mos.zap_update(zap, BIAS, &value)?;
        if bias != "log" {
            features::add(sync.cx, CLASSES, 1)?;
        }
        Ok(())
    }

    fn make_array(&self, state: &mut SyncState, sync: &SyncPass<'_>, id: u32) -> Result<()> {
        let tops = &mut state.config.vdev_tree.children;
        let Some(top) = tops.iter_mut().find(|v| v.id == id && is_concrete(v)) else {
            return Ok(());
        };
        let Some(space) = &mut top.top else { return Ok(()) };
        if space.metaslab_array == 0 {
            let array = sync.mos.objset().allocate(
                sync.tx,
                &ObjectSpec { object_type: ObjType::OBJECT_ARRAY, ..ObjectSpec::default() },
            )?;
            space.metaslab_array = array.0;
            state.dirty = true;
        }
        state.maps.arrays.insert(VdevId(id), space.metaslab_array);
        Ok(())
    }

    /// Rewrites the DTL of a leaf (chapter 05 §8).
    fn store_missing(
        &self,
        state: &mut SyncState,
        sync: &SyncPass<'_>,
        guid: Guid,
        ranges: &TxgRanges,
    ) -> Result<()> {
        let mut dtl = Dtl::default();
        for (first, last) in ranges.ranges() {
            dtl.add(*first, last.next());
        }
        let os = sync.mos.objset();
        let mut tree = state.config.vdev_tree.clone();
        let Some(leaf) = find_mut(&mut tree, guid) else { return Ok(()) };
        let object = match leaf.leaf.dtl.filter(|o| o.0 != 0) {
            Some(object) => {
                os.free_range(sync.tx, object, 0, u64::MAX)?;
                object
            }
            None => {
                let size = if sync.flags.histogram { HEADER_SIZE } else { HEADER_V0_SIZE };
                let object = os.allocate(
                    sync.tx,
                    &ObjectSpec {
                        object_type: ObjType::SPACE_MAP,
                        block_size: DTL_BLOCK,
                        indirect_shift: 14,
                        bonus_type: ObjType::SPACE_MAP_HEADER,
                        bonus: vec![0; size],
                        ..ObjectSpec::default()
                    },
                )?;
                if sync.flags.histogram {
                    features::add(sync.cx, HISTOGRAM, 1)?;
                }
                leaf.leaf.dtl = Some(object);
                state.config.vdev_tree = tree;
                state.dirty = true;
                object
            }
        };
        let info = sync.cx.read().info(object.0)?;
        let v2 = features::is_active(sync.cx.read(), SPACEMAP_V2)?;
        let block = u32::try_from(info.block_size).unwrap_or(DTL_BLOCK);
        let bytes = dtl.encode(block, v2, sync.pass, sync.txg)?;
        os.write(sync.tx, object, 0, &bytes)?;
        let alloc: u64 = ranges.ranges().iter().map(|(a, b)| b.0 - a.0 + 1).sum();
        let long = info.bonus.len() > HEADER_V0_SIZE;
        let header = Header {
            object: object.0,
            length: bytes.len() as u64,
            alloc: alloc as i64,
            histogram: long.then_some([0; HISTOGRAM_SIZE]),
        };
        os.set_bonus(sync.tx, object, &header.encode())
    }

    /// Writes the configuration object, if this txg has not written the same content yet.
    pub(super) fn write_config(&self, state: &mut SyncState, sync: &SyncPass<'_>) -> Result<()> {
        state.config.txg = sync.txg;
        state.config.features_for_read = features_for_read(sync)?;
        state.config.vdev_children = u32::try_from(state.config.vdev_tree.children.len()).ok();
        let packed = state.config.to_nvlist().pack_xdr();
        if state.packed.as_ref() == Some(&packed) {
            return Ok(());
        }
        let object = sync
            .cx
            .read()
            .directory("config")?
            .ok_or_else(|| Error::corrupt("the pool has no configuration object"))?;
        let mut padded = packed.clone();
        padded.resize(packed.len().next_multiple_of(CONFIG_BLOCK), 0);
        let os = sync.mos.objset();
        os.write(sync.tx, ObjectId(object), 0, &padded)?;
        os.set_bonus(sync.tx, ObjectId(object), &(packed.len() as u64).to_le_bytes())?;
        state.packed = Some(packed);
        Ok(())
    }

    /// Makes the txg durable (chapter 05 §9.4), on the leaves of `tree`: what each of them
    /// missed of the txg by the time that it was current is in the MOS.
    pub(super) fn commit(
        &self,
        state: &mut SyncState,
        txg: Txg,
        root: Option<BlkPtr>,
        now: u64,
        tree: Arc<Tree>,
    ) -> Result<()> {
        state.packed = None;
        let mut tree = Some(tree);
        let synced = Synced {
            txg,
            root_bp: root.unwrap_or(state.uberblock.root_bp),
            guid_sum: state.config.guid_sum(),
            now,
            multihost: None,
        };
        let mut uberblock = next(&state.uberblock, &synced);
        self.mark_expansion(&mut uberblock);
        let _writing = self.outages.begin_commit(&uberblock);
        loop {
            self.read_back(txg, root.as_ref())?;
            // After an outage the present one.
            let tree = tree.take().unwrap_or_else(|| self.zio.tree());
            match self.try_commit(state, &tree, &uberblock) {
                Ok(failed) => {
                    for guid in &failed {
                        tree.add_missing(*guid, txg);
                    }
                    *self.outages.unlabelled.lock() = failed;
                    break;
                }
                Err(e) if self.zio.wait_for_retry(&e) => {}
                Err(e) => return Err(e),
            }
        }
        state.uberblock = uberblock;
        self.expansion_recorded();
        state.dirty = false;
        self.ledger.vdevs_changed();
        *self.published.write() = Published {
            config: Arc::new(state.config.clone()),
            uberblock: state.uberblock.clone(),
        };
        Ok(())
    }

    /// Writes labels and uberblock to the current devices; returns the leaves that failed.
    fn try_commit(
        &self,
        state: &SyncState,
        tree: &Arc<Tree>,
        uberblock: &Uberblock,
    ) -> Result<Vec<Guid>> {
        let tops = commit_tops(tree, &state.config, state.dirty);
        let written: Vec<VdevId> = tops.iter().map(|t| t.id).collect();
        let plants = &self.plants.commit;
        let done = commit(
            &Labels(Arc::clone(tree)),
            &Commit {
                uberblock,
                tops: &tops,
                written: &written,
                start: self.rotor.fetch_add(1, Relaxed),
                everywhere: self.expansion.is_active(),
                plants,
            },
        )?;
        Ok(done.failed)
    }
}

impl Writer {
    /// Writes the uberblock of a txg that is committed already once more, to the leaves of all
    /// vdevs; returns those that failed.
    pub(super) fn commit_again(
        &self,
        config: &PoolConfig,
        tree: &Arc<Tree>,
        uberblock: &Uberblock,
    ) -> Result<Vec<Guid>> {
        let tops = commit_tops(tree, config, false);
        let plants = &self.plants.commit;
        let (start, written) = (0, tops.iter().map(|top| top.id).collect::<Vec<_>>());
        let what =
            Commit { uberblock, tops: &tops, written: &written, start, everywhere: true, plants };
        Ok(commit(&Labels(Arc::clone(tree)), &what)?.failed)
    }
}

/// The devices of a commit: the leaves that are open now, with labels if `dirty`.
fn commit_tops<'a>(tree: &Tree, config: &'a PoolConfig, dirty: bool) -> Vec<CommitTop<'a>> {
    let facts = PoolFacts::of(config);
    let mut tops = Vec::new();
    for top in config.vdev_tree.children.iter().filter(|v| is_concrete(v)) {
        let labels = if dirty { members(&facts, top) } else { Vec::new() };
        let leaves = top.leaves().filter_map(|leaf| {
            let device = tree.find(leaf.guid)?.device()?;
            let label = labels.iter().find(|(g, _)| *g == leaf.guid).map(|(_, l)| l.clone());
            Some(CommitLeaf { guid: leaf.guid, psize: usable_size(device.size()), label })
        });
        let id = VdevId(top.id);
        tops.push(CommitTop { id, config: top, dirty, leaves: leaves.collect() });
    }
    tops
}

/// Commits an uberblock over a tree of blocks that is on disk already, with the labels of
/// all leaves; returns the leaves that failed.
///
/// # Errors
/// Those of [`commit`].
pub(crate) fn commit_labels(
    tree: &Arc<Tree>,
    config: &PoolConfig,
    uberblock: &Uberblock,
) -> Result<Vec<Guid>> {
    let tops = commit_tops(tree, config, true);
    let plants = Default::default();
    let (start, everywhere) = (0, false);
    let what = Commit { uberblock, tops: &tops, written: &[], start, everywhere, plants: &plants };
    Ok(commit(&Labels(Arc::clone(tree)), &what)?.failed)
}

fn put(sync: &SyncPass<'_>, zap: u64, name: &str, value: u64) -> Result<()> {
    sync.cx.mos.zap_update(zap, name.as_bytes(), &ZapValue::from_u64(value))
}

fn new_zap(sync: &SyncPass<'_>) -> Result<u64> {
    let os = sync.mos.objset();
    let zap = dmu::zaps::create(os, sync.tx, ObjType::OTN_ZAP_METADATA, ObjType::NONE, &[], 0)?;
    Ok(zap.0)
}

/// A new vdev ZAP, listed in the ZAP of all of them.
fn listed_zap(sync: &SyncPass<'_>, map: u64) -> Result<u64> {
    let zap = new_zap(sync)?;
    put(sync, map, &format!("{zap:x}"), zap)?;
    Ok(zap)
}

fn leaf_zaps(sync: &SyncPass<'_>, map: u64, vdev: &mut VdevConfig) -> Result<()> {
    if vdev.kind.is_leaf() {
        if vdev.leaf.zap.is_none() && is_concrete(vdev) {
            vdev.leaf.zap = Some(ObjectId(listed_zap(sync, map)?));
        }
        return Ok(());
    }
    vdev.children.iter_mut().try_for_each(|child| leaf_zaps(sync, map, child))
}

fn find_mut(vdev: &mut VdevConfig, guid: Guid) -> Option<&mut VdevConfig> {
    if vdev.guid == guid && vdev.kind.is_leaf() {
        return Some(vdev);
    }
    vdev.children.iter_mut().find_map(|child| find_mut(child, guid))
}

/// Active features that are necessary for reading the MOS (chapter 01 §4.5).
fn features_for_read(sync: &SyncPass<'_>) -> Result<Vec<String>> {
    let Some(zap) = sync.cx.read().directory("features_for_read")? else {
        return Ok(Vec::new());
    };
    let counts = sync.cx.read().numbers(zap)?;
    let active = |guid: &str| counts.iter().any(|(g, n)| g == guid && *n > 0);
    let mos = FEATURES.iter().filter(|f| f.is_mos() && active(f.guid));
    Ok(mos.map(|f| f.guid.to_owned()).collect())
}
