//! Intrusive doubly linked lists over one slab of nodes.
//!
//! A node holds the links of `F` families of lists; in each family a block is on at
//! most one list. One slab for all families keeps the data of a hit on one or two cache
//! lines. Heads are new, tails old.

use super::Id;

/// No block.
pub(super) const NIL: Id = Id::MAX;
/// Held blocks that one search for a victim skips.
pub(super) const HELD_MAX: usize = 64;

#[derive(Clone, Copy)]
struct Link {
    newer: Id,
    older: Id,
}

#[derive(Clone, Copy)]
struct SlabNode<const F: usize> {
    links: [Link; F],
    size: u32,
    /// A note of each family's owner about the block; 0 = unknown.
    tags: [u8; F],
}

/// Nodes by block number.
pub(super) struct NodeSlab<const F: usize> {
    nodes: Vec<SlabNode<F>>,
}

/// One list.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockList {
    /// The newest block.
    pub(super) head: Id,
    /// The oldest block.
    pub(super) tail: Id,
    /// Number of blocks on the list.
    pub(super) blocks: u32,
    /// Their bytes.
    pub(super) bytes: u64,
}

impl BlockList {
    pub(super) const EMPTY: BlockList = BlockList { head: NIL, tail: NIL, blocks: 0, bytes: 0 };
}

impl<const F: usize> NodeSlab<F> {
    pub(super) const fn new() -> Self {
        NodeSlab { nodes: Vec::new() }
    }

    /// Memory of a block's node, bytes.
    pub(super) const NODE_BYTES: u64 = size_of::<SlabNode<F>>() as u64;

    /// Memory of the nodes in use or used before, bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.nodes.len() as u64 * Self::NODE_BYTES
    }

    /// Creates the node if it does not exist.
    pub(super) fn touch(&mut self, id: Id) {
        let at = id as usize;
        if at >= self.nodes.len() {
            let link = Link { newer: NIL, older: NIL };
            self.nodes.resize(at + 1, SlabNode { links: [link; F], size: 0, tags: [0; F] });
        }
    }

    pub(super) fn size(&self, id: Id) -> u32 {
        self.nodes[id as usize].size
    }

    pub(super) fn set_size(&mut self, id: Id, size: u32) {
        self.nodes[id as usize].size = size;
    }

    /// The note of a family; 0 for unknown blocks.
    pub(super) fn tag(&self, family: usize, id: Id) -> u8 {
        self.nodes.get(id as usize).map_or(0, |n| n.tags[family])
    }

    pub(super) fn set_tag(&mut self, family: usize, id: Id, tag: u8) {
        self.nodes[id as usize].tags[family] = tag;
    }

    /// The next newer block on the list.
    pub(super) fn newer(&self, family: usize, id: Id) -> Id {
        self.nodes[id as usize].links[family].newer
    }

    pub(super) fn push_head(&mut self, family: usize, list: &mut BlockList, id: Id) {
        let old = list.head;
        let node = &mut self.nodes[id as usize];
        node.links[family] = Link { newer: NIL, older: old };
        list.bytes += u64::from(node.size);
        list.blocks += 1;
        list.head = id;
        if old == NIL {
            list.tail = id;
        } else {
            self.nodes[old as usize].links[family].newer = id;
        }
    }

    pub(super) fn push_tail(&mut self, family: usize, list: &mut BlockList, id: Id) {
        let old = list.tail;
        let node = &mut self.nodes[id as usize];
        node.links[family] = Link { newer: old, older: NIL };
        list.bytes += u64::from(node.size);
        list.blocks += 1;
        list.tail = id;
        if old == NIL {
            list.head = id;
        } else {
            self.nodes[old as usize].links[family].older = id;
        }
    }

    pub(super) fn unlink(&mut self, family: usize, list: &mut BlockList, id: Id) {
        let node = &self.nodes[id as usize];
        let Link { newer, older } = node.links[family];
        list.bytes -= u64::from(node.size);
        list.blocks -= 1;
        if newer == NIL {
            list.head = older;
        } else {
            self.nodes[newer as usize].links[family].older = older;
        }
        if older == NIL {
            list.tail = newer;
        } else {
            self.nodes[older as usize].links[family].newer = newer;
        }
    }

    /// Makes the block the newest of its list.
    pub(super) fn renew(&mut self, family: usize, list: &mut BlockList, id: Id) {
        if list.head != id {
            self.unlink(family, list, id);
            self.push_head(family, list, id);
        }
    }

    /// The oldest block that is not held. Held blocks found on the way are in use, so
    /// they are moved to the head, and the next search does not meet them again. After
    /// [`HELD_MAX`] of them the search gives up.
    pub(super) fn victim(
        &mut self,
        family: usize,
        list: &mut BlockList,
        held: &mut dyn FnMut(Id) -> bool,
    ) -> Option<Id> {
        for _ in 0..HELD_MAX.min(list.blocks as usize) {
            let id = list.tail;
            if !held(id) {
                return Some(id);
            }
            self.renew(family, list, id);
        }
        None
    }
}
