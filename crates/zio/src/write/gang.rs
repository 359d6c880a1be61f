//! Writing gang blocks (chapter 02 §9): dividing a block over smaller extents.
//!
//! # Theory
//! A node is a header with up to three members, each of which is a plain piece or
//! another node. The tree is built while space is allocated. [`GangNode::pieces`] then cuts
//! the content along it, from the leaves up, because a header contains the pointers of
//! its members.
//!
//! A gang block can be rewritten in the txg of its birth, like any block: the same tree
//! and the same addresses with other content. The tree cannot be derived from the
//! pointer, so the caller keeps the trees of its txg in a [`Gangs`].

use std::collections::HashMap;
use std::sync::Arc;

use base::limits::GANG_DEPTH_MAX;
use base::rt::Mutex;
use base::{Asize, Buf, BufMut, Dva, Error, ErrorKind, Lsize, Psize, Result, Txg};
use codec::checksum::Checksum;
use codec::checksum::embedded::{ECK_SIZE, compute_embedded};
use ondisk::ObjType;
use ondisk::blkptr::{BLKPTR_SIZE, BlkPtr, Block, COMPRESS_OFF, Head};

use super::{SpaceSource, Want};
use crate::{BlockKey, Zio};

/// Bytes of a header. Headers with feature `dynamic_gang_header` may be larger, but
/// need not be.
pub(super) const HEADER_SIZE: usize = 512;
/// Members below one header.
const MEMBERS_MAX: u64 = 3;

/// A gang header with everything below it.
pub(super) struct GangNode {
    psize: Psize,
    /// Addresses of the header alone.
    header: Vec<Dva>,
    members: Vec<GangMember>,
}

/// The trees of the gang blocks that a txg placed and may rewrite. It lives as long as
/// the txg and belongs to the caller, which passes it with each [`super::Write`].
#[derive(Default)]
pub struct Gangs {
    trees: Mutex<HashMap<BlockKey, Arc<GangNode>>>,
}

impl Gangs {
    /// No trees yet.
    pub fn new() -> Arc<Gangs> {
        Arc::default()
    }

    pub(super) fn keep(&self, key: BlockKey, tree: &Arc<GangNode>) {
        self.trees.lock().insert(key, Arc::clone(tree));
    }

    pub(super) fn find(&self, key: &BlockKey) -> Option<Arc<GangNode>> {
        self.trees.lock().get(key).cloned()
    }
}

enum GangMember {
    Plain(Psize, Vec<Dva>),
    Gang(GangNode),
}

/// Bytes to write to one or more addresses.
pub(super) struct GangPiece {
    pub(super) dvas: Vec<Dva>,
    pub(super) bytes: Buf,
}

/// A header that may be read before it is on a device.
pub(super) struct Header {
    /// The first address of the pointer that refers to it.
    pub(super) at: Dva,
    pub(super) bytes: Buf,
}

impl GangMember {
    fn psize(&self) -> Psize {
        match self {
            GangMember::Plain(psize, _) => *psize,
            GangMember::Gang(node) => node.psize,
        }
    }

    fn dvas(&self) -> Vec<Dva> {
        match self {
            GangMember::Plain(_, dvas) => dvas.clone(),
            GangMember::Gang(node) => node.dvas(),
        }
    }
}

impl GangNode {
    /// The addresses in the pointer to this node; their asize covers everything below
    /// them.
    pub(super) fn dvas(&self) -> Vec<Dva> {
        let below: Vec<Vec<Dva>> = self.members.iter().map(GangMember::dvas).collect();
        let total = |(i, header): (usize, &Dva)| {
            let members: u64 = below.iter().filter_map(|d| d.get(i)).map(|d| d.asize.0).sum();
            Dva { asize: Asize(header.asize.0 + members), gang: true, ..*header }
        };
        self.header.iter().enumerate().map(total).collect()
    }

    /// Bytes of the block.
    pub(super) fn psize(&self) -> Psize {
        self.psize
    }

    /// Number of copies of the content; headers may have more.
    pub(super) fn copies(&self) -> usize {
        match self.members.first() {
            Some(GangMember::Plain(_, dvas)) => dvas.len(),
            Some(GangMember::Gang(node)) => node.copies(),
            None => 0,
        }
    }

    /// Adds every allocated address to `to`.
    pub(super) fn allocated(&self, to: &mut Vec<Dva>) {
        to.extend(&self.header);
        for member in &self.members {
            match member {
                GangMember::Plain(_, dvas) => to.extend(dvas),
                GangMember::Gang(node) => node.allocated(to),
            }
        }
    }

    /// The pieces to write for this node, whose content is `bytes`; members come before
    /// their header.
    pub(super) fn pieces(
        &self,
        zio: &Zio,
        leader: &Block,
        bytes: &Buf,
        pieces: &mut Vec<GangPiece>,
        headers: &mut Vec<Header>,
    ) -> Result<()> {
        let checksum = Checksum::from_id(leader.checksum)
            .ok_or_else(|| base::bug!("a block was prepared without a checksum"))?;
        let mut header = BufMut::zeroed(HEADER_SIZE);
        let mut at = 0;
        for (slot, member) in header.chunks_exact_mut(BLKPTR_SIZE).zip(&self.members) {
            let end = at + member.psize().0 as usize;
            if end > bytes.len() {
                return Err(base::bug!("gang members exceed their block"));
            }
            let part = bytes.slice(at..end);
            let bp = member_pointer(leader, member, zio.checksum_of(checksum, &part, false)?);
            slot.copy_from_slice(
                &BlkPtr::Block(bp).encode().ok_or_else(|| base::bug!("no such pointer"))?,
            );
            match member {
                GangMember::Plain(_, dvas) => {
                    pieces.push(GangPiece { dvas: dvas.clone(), bytes: part })
                }
                GangMember::Gang(node) => node.pieces(zio, leader, &part, pieces, headers)?,
            }
            at = end;
        }
        if at != bytes.len() {
            return Err(base::bug!("gang members do not make up their block"));
        }
        let first = self.header[0];
        let verifier =
            [u64::from(first.vdev.0), first.offset, leader.effective_physical_birth().0, 0];
        compute_embedded(Checksum::GangHeader, &mut header, HEADER_SIZE - ECK_SIZE, verifier)
            .map_err(|e| Error::bug("a gang header has no room for its checksum").caused_by(e))?;
        let bytes = header.freeze();
        headers.push(Header { at: first, bytes: bytes.clone() });
        pieces.push(GangPiece { dvas: self.header.clone(), bytes });
        Ok(())
    }
}

/// A member's pointer describes only the member's bytes; type, level and fill are the
/// leader's.
fn member_pointer(leader: &Block, member: &GangMember, words: [u64; 4]) -> Block {
    let psize = member.psize();
    let head = Head {
        object_type: ObjType::NONE,
        level: 0,
        lsize: Lsize(psize.0),
        birth: leader.effective_physical_birth(),
    };
    let mut bp = Block::new(head, psize, COMPRESS_OFF, &member.dvas());
    (bp.checksum, bp.words, bp.fill) = (leader.checksum, words, 0);
    bp
}

/// Allocates one gang block.
pub(super) struct GangAllocator<'a> {
    zio: &'a Zio,
    space: &'a dyn SpaceSource,
    want: Want,
    header_copies: u8,
    /// Everything allocated so far, to be released after a failure.
    taken: Vec<Dva>,
}

impl<'a> GangAllocator<'a> {
    pub(super) fn new(
        zio: &'a Zio,
        space: &'a dyn SpaceSource,
        want: &Want,
        header_copies: u8,
    ) -> GangAllocator<'a> {
        let header_copies = header_copies.max(want.copies).min(3);
        let want = Want { gang_child: true, ..*want };
        GangAllocator { zio, space, want, header_copies, taken: Vec::new() }
    }

    pub(super) fn run(mut self) -> Result<GangNode> {
        let made = self.node(self.want.psize, 0);
        if made.is_err() && !self.taken.is_empty() {
            self.space.unallocate(self.want.txg, &self.taken);
        }
        made
    }

    fn take(&mut self, psize: u64, copies: u8) -> Result<Vec<Dva>> {
        let want = Want { psize, copies, ..self.want };
        let dvas = self.zio.allocate(self.space, &want)?;
        self.taken.extend(&dvas);
        Ok(dvas)
    }

    fn node(&mut self, psize: u64, depth: usize) -> Result<GangNode> {
        if depth >= GANG_DEPTH_MAX {
            return Err(Error::new(ErrorKind::NoSpace, "free space is in too small pieces"));
        }
        let header = self.header()?;
        let (min, gcd) = self.space.limits();
        let mut members = Vec::new();
        let mut rest = psize;
        for slots in (1..=MEMBERS_MAX).rev() {
            if rest == 0 {
                break;
            }
            let share = rest.div_ceil(slots).next_multiple_of(gcd.max(512)).max(min).min(rest);
            members.push(self.member(share, depth)?);
            rest -= share;
        }
        Ok(GangNode { psize: Psize(psize), header, members })
    }

    /// A header may have more copies than its members, because without it all of them
    /// are lost.
    fn header(&mut self) -> Result<Vec<Dva>> {
        let header = match self.take(HEADER_SIZE as u64, self.header_copies) {
            Err(e) if e.kind() == ErrorKind::NoSpace && self.header_copies > self.want.copies => {
                self.take(HEADER_SIZE as u64, self.want.copies)
            }
            other => other,
        }?;
        // The code that frees the header derives its size from the vdev alone.
        let tree = self.zio.tree();
        for dva in &header {
            if tree.asize(dva.vdev, Psize(HEADER_SIZE as u64), self.want.txg)? != dva.asize {
                return Err(Error::bug("a gang header has an odd size").at_dva(*dva));
            }
        }
        Ok(header)
    }

    fn member(&mut self, psize: u64, depth: usize) -> Result<GangMember> {
        match self.take(psize, self.want.copies) {
            Ok(dvas) => Ok(GangMember::Plain(Psize(psize), dvas)),
            Err(e) if e.kind() == ErrorKind::NoSpace && psize > self.space.limits().0 => {
                self.node(psize, depth + 1).map(GangMember::Gang)
            }
            Err(e) => Err(e),
        }
    }
}

/// Bytes that a header with birth `birth` takes from its vdev.
pub(super) fn header_asize(zio: &Zio, dva: Dva, birth: Txg) -> Result<Asize> {
    zio.tree().asize(dva.vdev, Psize(HEADER_SIZE as u64), birth)
}
