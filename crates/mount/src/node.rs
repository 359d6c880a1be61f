//! Node ids of one mount.
//!
//! The upper 16 bits of a node id select the file system of the object: 0 is the dataset
//! itself, others are its snapshots in the order of their opening, and one value is for the
//! control directory `.zfs`. The lower 48 bits are the object id. So no table of nodes is
//! needed, and forgets need no work. FUSE calls the root 1; object 1 is the master node, never
//! a file, so no object loses its id.

use base::ObjectId;

const SPACE_SHIFT: u32 = 48;
const OBJECT_MASK: u64 = (1 << SPACE_SHIFT) - 1;
const CONTROL: u16 = u16::MAX;

/// Inode numbers of `.zfs`, `.zfs/shares` and `.zfs/snapshot`: at the top of the range, which
/// no object uses (chapter 06 §9).
pub(super) const CTL_INO: u64 = 0x0000_ffff_ffff_ffff;
pub(super) const SHARES_INO: u64 = 0x0000_ffff_ffff_fffe;
pub(super) const SNAPDIR_INO: u64 = 0x0000_ffff_ffff_fffd;
/// A snapshot's root directory has this inode number minus its object set's id, as the golden
/// pools' manifests show. With the object's own number, tools would take the walk from the
/// dataset's root into `.zfs` for a cycle.
pub(super) const SNAPROOT_INO: u64 = 0x0000_ffff_ffff_fffc;
/// File systems in one mount: the dataset and its snapshots.
pub(super) const SPACES_MAX: usize = CONTROL as usize;

/// The target of a node id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeTarget {
    /// An object of the dataset (0) or of a snapshot.
    Object(u16, ObjectId),
    /// `.zfs`.
    Control,
    /// `.zfs/snapshot`.
    Snapdir,
    /// `.zfs/shares`, which is empty: Linux's OpenZFS keeps nothing there.
    Shares,
}

impl NodeTarget {
    /// The target of a node id; `root` is the dataset's root directory.
    pub(super) fn from_id(id: u64, root: ObjectId) -> Option<NodeTarget> {
        if id == fuse::ROOT_ID {
            return Some(NodeTarget::Object(0, root));
        }
        let object = id & OBJECT_MASK;
        match u16::try_from(id >> SPACE_SHIFT).ok()? {
            CONTROL if object == CTL_INO & OBJECT_MASK => Some(NodeTarget::Control),
            CONTROL if object == SNAPDIR_INO & OBJECT_MASK => Some(NodeTarget::Snapdir),
            CONTROL if object == SHARES_INO & OBJECT_MASK => Some(NodeTarget::Shares),
            CONTROL => None,
            _ if object == 0 => None,
            space => Some(NodeTarget::Object(space, ObjectId(object))),
        }
    }

    /// Its node id; `None` for an object id that is too large, which only a damaged disk has.
    pub(super) fn id(self, root: ObjectId) -> Option<u64> {
        let pack = |space: u16, low: u64| (u64::from(space) << SPACE_SHIFT) | low;
        match self {
            NodeTarget::Object(0, object) if object == root => Some(fuse::ROOT_ID),
            NodeTarget::Object(space, object) if object.0 <= OBJECT_MASK && object.0 > 0 => {
                Some(pack(space, object.0)).filter(|id| *id != fuse::ROOT_ID)
            }
            NodeTarget::Object(..) => None,
            NodeTarget::Control => Some(pack(CONTROL, CTL_INO & OBJECT_MASK)),
            NodeTarget::Snapdir => Some(pack(CONTROL, SNAPDIR_INO & OBJECT_MASK)),
            NodeTarget::Shares => Some(pack(CONTROL, SHARES_INO & OBJECT_MASK)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_are_unique_and_invertible(space in 0u16..u16::MAX, object in any::<u64>(), root in 2u64..100) {
            let root = ObjectId(root);
            let node = NodeTarget::Object(space, ObjectId(object));
            if let Some(id) = node.id(root) {
                prop_assert_eq!(NodeTarget::from_id(id, root), Some(node));
            }
        }

        #[test]
        fn every_number_is_its_nodes(id in any::<u64>(), root in 2u64..100) {
            let root = ObjectId(root);
            if let Some(node) = NodeTarget::from_id(id, root) {
                let back = node.id(root);
                prop_assert!(back == Some(id) || (id == root.0 && back == Some(fuse::ROOT_ID)));
            }
        }
    }

    #[test]
    fn special_nodes() {
        let root = ObjectId(34);
        assert_eq!(NodeTarget::from_id(1, root), Some(NodeTarget::Object(0, root)));
        assert_eq!(NodeTarget::Object(0, root).id(root), Some(1));
        assert_eq!(NodeTarget::Object(0, ObjectId(1)).id(root), None);
        for node in [NodeTarget::Control, NodeTarget::Snapdir, NodeTarget::Shares] {
            assert_eq!(NodeTarget::from_id(node.id(root).unwrap(), root), Some(node));
        }
        assert_eq!(NodeTarget::Object(3, root).id(root), Some((3 << 48) | 34));
    }
}
