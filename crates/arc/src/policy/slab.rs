//! Intrusive doubly linked lists over one slab of nodes.
//!
//! A node holds the links of `F` families of lists: in each family a block is on
//! at most one list. One slab for all families keeps what a hit touches on one
//! cache line or two. Heads are new, tails old.

use super::Id;

/// No block.
pub(super) const NIL: Id = Id::MAX;
/// Held blocks that one search for a victim passes over.
pub(super) const HELD_MAX: usize = 64;

#[derive(Clone, Copy)]
struct Link {
    newer: Id,
    older: Id,
}

#[derive(Clone, Copy)]
struct Node<const F: usize> {
    links: [Link; F],
    size: u32,
    /// What each family's owner notes about the block; 0 = unknown.
    tags: [u8; F],
}

/// Nodes by block number.
pub(super) struct Slab<const F: usize> {
    nodes: Vec<Node<F>>,
}

/// One list.
#[derive(Clone, Copy, Debug)]
pub(super) struct List {
    /// The newest block.
    pub(super) head: Id,
    /// The oldest block.
    pub(super) tail: Id,
    /// Blocks on it.
    pub(super) blocks: u32,
    /// Their bytes.
    pub(super) bytes: u64,
}

impl List {
    pub(super) const EMPTY: List = List { head: NIL, tail: NIL, blocks: 0, bytes: 0 };
}

impl<const F: usize> Slab<F> {
    pub(super) const fn new() -> Self {
        Slab { nodes: Vec::new() }
    }

    /// Memory of a block's node, bytes.
    pub(super) const NODE_BYTES: u64 = size_of::<Node<F>>() as u64;

    /// Memory of the nodes in use or used before, bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.nodes.len() as u64 * Self::NODE_BYTES
    }

    /// Makes sure that the node exists.
    pub(super) fn touch(&mut self, id: Id) {
        let at = id as usize;
        if at >= self.nodes.len() {
            let link = Link { newer: NIL, older: NIL };
            self.nodes.resize(at + 1, Node { links: [link; F], size: 0, tags: [0; F] });
        }
    }

    pub(super) fn size(&self, id: Id) -> u32 {
        self.nodes[id as usize].size
    }

    pub(super) fn set_size(&mut self, id: Id, size: u32) {
        self.nodes[id as usize].size = size;
    }

    /// A family's note; 0 for blocks never seen.
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

    pub(super) fn push_head(&mut self, family: usize, list: &mut List, id: Id) {
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

    pub(super) fn push_tail(&mut self, family: usize, list: &mut List, id: Id) {
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

    pub(super) fn unlink(&mut self, family: usize, list: &mut List, id: Id) {
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

    /// The block becomes its list's newest.
    pub(super) fn renew(&mut self, family: usize, list: &mut List, id: Id) {
        if list.head != id {
            self.unlink(family, list, id);
            self.push_head(family, list, id);
        }
    }

    /// The oldest block that is not held. Held ones in its way are in use, hence
    /// renewed, so that the next search does not meet them again; after
    /// [`HELD_MAX`] of them the search gives up.
    pub(super) fn victim(
        &mut self,
        family: usize,
        list: &mut List,
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
