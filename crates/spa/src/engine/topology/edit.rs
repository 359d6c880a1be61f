//! Edits of a configuration's vdev tree.
//!
//! # Invariants
//! * Ids are positions after each edit.
//! * A node that changes its rank has no keys of the former one.

use base::{Guid, ObjectId};
use ondisk::config::{Top, VdevConfig, VdevType};

/// Keys that only top-level vdevs have (chapter 01 §4.2).
const TOP_KEYS: [&str; 14] = [
    "metaslab_array",
    "metaslab_shift",
    "ashift",
    "asize",
    "min_alloc",
    "is_log",
    "non_allocating",
    "removing",
    "com.delphix:indirect_object",
    "com.delphix:indirect_births",
    "com.delphix:prev_indirect_vdev",
    "com.delphix:vdev_zap_top",
    "expansion_time",
    "alloc_bias",
];

/// The node with this guid, to be changed.
pub(crate) fn find_mut(vdev: &mut VdevConfig, guid: Guid) -> Option<&mut VdevConfig> {
    if vdev.guid == guid {
        return Some(vdev);
    }
    vdev.children.iter_mut().find_map(|child| find_mut(child, guid))
}

/// The parent of the node with this guid, and the node's position.
pub(crate) fn parent_of(vdev: &VdevConfig, guid: Guid) -> Option<(&VdevConfig, usize)> {
    vdev.walk().find_map(|v| Some((v, v.children.iter().position(|c| c.guid == guid)?)))
}

fn parent_mut(vdev: &mut VdevConfig, guid: Guid) -> Option<(&mut VdevConfig, usize)> {
    let parent = parent_of(vdev, guid)?.0.guid;
    let parent = find_mut(vdev, parent)?;
    let at = parent.children.iter().position(|c| c.guid == guid)?;
    Some((parent, at))
}

/// The top-level vdev with this node.
pub(crate) fn top_of(root: &VdevConfig, guid: Guid) -> Option<&VdevConfig> {
    root.children.iter().find(|top| top.find(guid).is_some())
}

fn renumber(vdev: &mut VdevConfig) {
    for (id, child) in (0..).zip(&mut vdev.children) {
        child.id = id;
    }
}

/// Takes from a vdev what belongs to a top-level vdev.
fn take_top(vdev: &mut VdevConfig) -> Option<Top> {
    for key in TOP_KEYS {
        vdev.raw.remove(key);
    }
    vdev.top.take()
}

/// Adds `new` beside the vdev `old`: below its parent, if that is of this kind, else in a new
/// vdev of this kind with the guid `guid` that takes the place of `old`. False if there is no
/// `old`.
pub(crate) fn attach(
    root: &mut VdevConfig,
    old: Guid,
    kind: VdevType,
    guid: Guid,
    new: VdevConfig,
) -> bool {
    let Some((parent, at)) = parent_mut(root, old) else { return false };
    if parent.kind == kind {
        parent.children.push(new);
        renumber(parent);
        return true;
    }
    let child = &mut parent.children[at];
    let mut above = crate::write::topology::plain_node(kind, guid, child.create_txg);
    above.id = child.id;
    above.top = take_top(child);
    let old = std::mem::replace(child, above);
    child.children = vec![old, new];
    renumber(child);
    true
}

/// Removes a vdev from its mirror, `replacing` or `spare` vdev, and returns it. A parent
/// with one child left is replaced by that child.
pub(crate) fn detach(root: &mut VdevConfig, guid: Guid) -> Option<VdevConfig> {
    let (parent, at) = parent_mut(root, guid)?;
    let gone = parent.children.remove(at);
    renumber(parent);
    if let [_] = parent.children.as_slice() {
        let parent = parent.guid;
        collapse(root, parent)?;
    }
    Some(gone)
}

/// Puts the only child of a vdev in its place.
fn collapse(root: &mut VdevConfig, guid: Guid) -> Option<()> {
    let vdev = find_mut(root, guid)?;
    let mut child = vdev.children.pop()?;
    child.id = vdev.id;
    if let Some(top) = take_top(vdev) {
        child.top = Some(top);
        if child.kind.is_leaf() {
            child.orig_guid = Some(child.guid);
        }
        child.guid = vdev.guid;
    }
    *vdev = child;
    Some(())
}

/// Makes the one child that is left of a top-level mirror the top-level vdev of another pool: it
/// keeps its guid, and is in use.
pub(crate) fn reduce_top(top: &mut VdevConfig, gone: &[Guid]) -> Option<()> {
    let mut left: Vec<VdevConfig> =
        top.children.iter().filter(|child| !gone.contains(&child.guid)).cloned().collect();
    let mut child = left.pop().filter(|child| left.is_empty() && child.kind.is_leaf())?;
    child.id = top.id;
    child.top = Some(take_top(top)?);
    let leaf = &mut child.leaf;
    (leaf.offline, leaf.faulted, leaf.degraded, leaf.removed) = (false, false, false, false);
    (leaf.not_present, leaf.unspare, leaf.is_spare) = (false, false, false);
    leaf.resilver_deferred = false;
    leaf.aux_state = None;
    *top = child;
    Some(())
}

/// The objects of a leaf in the MOS: its ZAP and its DTL.
pub(crate) fn leaf_objects(leaf: &VdevConfig) -> (Option<ObjectId>, Option<ObjectId>) {
    let used = |object: Option<ObjectId>| object.filter(|o| o.0 != 0);
    (used(leaf.leaf.zap), used(leaf.leaf.dtl))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::write::topology::plain_node;
    use base::Txg;

    fn node(kind: VdevType, guid: u64, children: Vec<VdevConfig>) -> VdevConfig {
        let mut node = plain_node(kind, Guid(guid), Txg(4));
        node.children = children;
        renumber(&mut node);
        node
    }

    fn leaf(guid: u64) -> VdevConfig {
        node(VdevType::File, guid, Vec::new())
    }

    fn single() -> VdevConfig {
        let mut disk = leaf(10);
        disk.top = Some(Top { metaslab_array: 33, ashift: 9, asize: 1 << 27, ..Top::default() });
        disk.raw.add_u64("id", 0).add_u64("asize", 1 << 27).add_u64("ashift", 9);
        disk.leaf.zap = Some(ObjectId(7));
        node(VdevType::Root, 1, vec![disk])
    }

    #[test]
    fn a_disk_becomes_a_mirror_and_a_disk_again() {
        let mut root = single();
        let sum = root.guid_sum();
        assert!(attach(&mut root, Guid(10), VdevType::Mirror, Guid(99), leaf(11)));
        let top = &root.children[0];
        assert_eq!((top.kind, top.guid, top.children.len()), (VdevType::Mirror, Guid(99), 2));
        assert_eq!(top.top.as_ref().unwrap().metaslab_array, 33);
        let old = &top.children[0];
        assert!(old.top.is_none() && old.leaf.zap == Some(ObjectId(7)));
        assert!(!old.to_nvlist().contains("asize"), "keys of a top-level vdev are gone");
        assert_eq!(root.guid_sum(), sum + 99 + 11);
        assert!(attach(&mut root, Guid(11), VdevType::Mirror, Guid(98), leaf(12)));
        assert_eq!(root.children[0].children.len(), 3, "the mirror is wider");
        assert!(root.find(Guid(98)).is_none());
        assert_eq!(detach(&mut root, Guid(12)).unwrap().guid, Guid(12));
        assert_eq!(detach(&mut root, Guid(11)).unwrap().guid, Guid(11));
        let top = &root.children[0];
        assert_eq!((top.kind, top.guid), (VdevType::File, Guid(99)), "it has the mirror's guid");
        assert_eq!(top.orig_guid, Some(Guid(10)));
        assert_eq!(top.top.as_ref().unwrap().metaslab_array, 33);
        let list = top.to_nvlist();
        assert_eq!(list.u64("asize"), Some(1 << 27));
        assert!(VdevConfig::parse_root(&root.to_nvlist()).is_ok());
    }

    #[test]
    fn replacing_inside_a_mirror_keeps_guids() {
        let mirror = node(VdevType::Mirror, 5, vec![leaf(10), leaf(11)]);
        let mut root = node(VdevType::Root, 1, vec![mirror]);
        root.children[0].top = Some(Top { ashift: 12, ..Top::default() });
        assert!(attach(&mut root, Guid(11), VdevType::Replacing, Guid(6), leaf(12)));
        let inner = &root.children[0].children[1];
        assert_eq!((inner.kind, inner.id, inner.children.len()), (VdevType::Replacing, 1, 2));
        assert_eq!(parent_of(&root, Guid(12)).unwrap().0.guid, Guid(6));
        assert!(VdevConfig::parse_root(&root.to_nvlist()).is_ok());
        detach(&mut root, Guid(11)).unwrap();
        let new = &root.children[0].children[1];
        assert_eq!((new.guid, new.id, new.orig_guid), (Guid(12), 1, None));
        assert!(!attach(&mut root, Guid(77), VdevType::Mirror, Guid(8), leaf(13)));
        assert!(detach(&mut root, Guid(77)).is_none());
    }
}
