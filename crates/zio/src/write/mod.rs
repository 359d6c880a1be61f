//! Writing a block, in three steps (chapter 02 §4).
//!
//! # Theory
//! [`Zio::prepare`] looks at the content alone: zero test, compression, checksum. It is
//! where the processor's time goes, and any number of threads do it at once.
//! [`Zio::place`] gives the block its addresses, and with them its whole pointer;
//! [`crate::Turnstile`] lets the jobs of a wave pass it in their order, so that a
//! file's blocks lie in order on the devices. [`Zio::submit`] hands the bytes to the vdev
//! tree and the content to the cache; nobody waits for a device until [`Writes::wait`].
//!
//! Where no single place is large enough, a block is scattered over smaller ones below a
//! *gang header* (§9). Placing decides the sizes and addresses of the members; their
//! checksums and the headers are made when the block is submitted, outside the
//! turnstile, for the leader's pointer does not depend on them.
//!
//! A block that is on its way to its devices may leave the cache. Until all its
//! writes ended, reads find it in a table of what is [under way](under_way).
//!
//! # Departures from OpenZFS
//! No tree of asynchronous I/Os. A block's failed writes are repeated once by the
//! thread that submits or waits, never by the device's completion.
//!
//! # Invariants
//! * What `place` returned is allocated whole, or nothing of it is: a failure half-way
//!   gives everything back.
//! * Uncompressed content is never copied: cache, mirrors and copies share one buffer.
//! * A block is rewritten in place only in the group of its birth; the caller has
//!   waited for the writes of the earlier pass. A gang block is too, if its tree was kept
//!   ([`Gangs`]): then rewriting a block of the same size never allocates.
//! * Bytes under way through one [`Writes`] are bounded.

mod free;
mod gang;
mod place;
mod prepare;
mod submit;
#[cfg(test)]
mod tests;
pub(crate) mod under_way;

use std::sync::Arc;

use base::{Buf, Dva, Error, ErrorKind, Psize, Result, Txg};
use codec::checksum::Checksum;
use codec::compress::Compression;
use ondisk::ObjType;
use ondisk::blkptr::{BlkPtr, Block};

use crate::Zio;

pub use gang::Gangs;
pub(crate) use submit::Sink;
pub use submit::{Lost, WriteCounts, Writes};

/// Which vdevs a block is for (chapter 05).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Class {
    /// Ordinary vdevs.
    #[default]
    Normal,
    /// Special vdevs: metadata and small blocks.
    Special,
    /// Vdevs for dedup tables.
    Dedup,
    /// Intent log vdevs.
    Log,
}

/// Space that a block asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want {
    /// Bytes to store, before parity.
    pub psize: u64,
    /// Addresses to find, each with room for `psize`.
    pub copies: u8,
    /// Where.
    pub class: Class,
    /// The group that allocates.
    pub txg: Txg,
    /// What the block belongs to: blocks of one hint should lie together.
    pub hint: u64,
    /// A gang header or a member of a gang: the larger block found no place.
    pub gang_child: bool,
}

/// Gives and takes back space; the pool's metaslabs.
pub trait SpaceSource: Send + Sync {
    /// `want.copies` places, each of at least the asize that its vdev needs
    /// for `want.psize` bytes in group `want.txg`, and no gang bit.
    ///
    /// # Errors
    /// `NoSpace` if there is no place so large: smaller ones will be tried.
    fn allocate(&self, want: &Want) -> Result<Vec<Dva>>;

    /// Takes back places that were never written.
    fn unallocate(&self, txg: Txg, dvas: &[Dva]);

    /// (`min_alloc`, `gcd_alloc`) of chapter 02 §4, bytes.
    fn limits(&self) -> (u64, u64);
}

/// How a block is to be stored (chapter 03 §9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteProps {
    /// Compression to try; `Off` keeps even zeros as data.
    pub compression: Compression,
    /// Checksum, not an embedded one.
    pub checksum: Checksum,
    /// Addresses, 1 to 3.
    pub copies: u8,
    /// Addresses of gang headers; at least `copies` are used.
    pub header_copies: u8,
    /// Feature `embedded_data` is on.
    pub embed: bool,
    /// Feature `hole_birth` is active.
    pub hole_birth: bool,
    /// Allocation class.
    pub class: Class,
}

impl Default for WriteProps {
    /// A pool's usual user data.
    fn default() -> Self {
        WriteProps {
            compression: Compression::ON,
            checksum: Checksum::Fletcher4,
            copies: 1,
            header_copies: 2,
            embed: true,
            hole_birth: true,
            class: Class::Normal,
        }
    }
}

/// A block to write.
#[derive(Clone, Copy)]
pub struct Write<'a> {
    /// Type of its object.
    pub object_type: ObjType,
    /// Indirection level; 0 is data.
    pub level: u8,
    /// Logical content, little-endian: a multiple of 512 bytes, at most 16 MiB.
    pub data: &'a Buf,
    /// Fill count of the new pointer (chapter 03 §3.5).
    pub fill: u64,
    /// The group that writes.
    pub txg: Txg,
    /// How.
    pub props: &'a WriteProps,
    /// The pointer that is replaced.
    pub old: &'a BlkPtr,
    /// Rewrite the old block's place if it was born in this group and its size did not
    /// change; its earlier write must have ended.
    pub in_place: bool,
    /// Where the trees of gang blocks are kept that a later pass may rewrite. Without it
    /// a gang block gets new places each time.
    pub gangs: Option<&'a Arc<Gangs>>,
    /// [`Want::hint`].
    pub hint: u64,
    /// Keep the content in the cache.
    pub cache: bool,
}

/// What became of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All zeros: a hole.
    Hole,
    /// Inside the pointer.
    Embedded,
    /// The old block has this content already, and its pointer stays (nopwrite): the old
    /// block must not be freed.
    Same,
    /// At the old block's place: the old block must not be freed.
    Rewritten,
    /// At a new place.
    New,
    /// At new places, below a gang header.
    Gang,
}

/// A block that is compressed and has its checksum.
pub struct Prepared {
    form: Form,
}

enum Form {
    /// The pointer is complete.
    Done(BlkPtr, Outcome),
    Block(Box<Ready>),
}

/// Everything of a block but its place.
struct Ready {
    /// The pointer; with its addresses if it has a place already.
    block: Block,
    /// The place to rewrite, if it has one.
    rewrite: Option<Layout>,
    gangs: Option<Arc<Gangs>>,
    copies: u8,
    header_copies: u8,
    class: Class,
    hint: u64,
    content: Content,
}

/// A block's bytes.
struct Content {
    /// Logical; empty if it is not for the cache.
    whole: Buf,
    /// As on disk, `psize` bytes.
    stored: Buf,
    cache: bool,
}

/// A block with its pointer, not yet written.
pub struct Placed {
    /// The new pointer.
    pub bp: BlkPtr,
    /// What kind of write it is.
    pub outcome: Outcome,
    parts: Option<(Content, Layout)>,
}

/// Where a block's bytes go.
enum Layout {
    /// The pointer's addresses.
    Plain(Vec<Dva>),
    Gang(Arc<gang::Node>),
}

impl Prepared {
    /// Bytes on disk before parity; 0 for what needs no space.
    pub fn psize(&self) -> Psize {
        match &self.form {
            Form::Done(..) => Psize(0),
            Form::Block(ready) => ready.block.psize,
        }
    }

    /// The old block has this content already; its pointer stays.
    pub fn is_same(&self) -> bool {
        matches!(self.form, Form::Done(_, Outcome::Same))
    }
}

impl Zio {
    /// Where space comes from; a pool without it is read-only.
    pub fn set_space(&self, space: Arc<dyn SpaceSource>) {
        *self.space.write() = Some(space);
    }

    fn space(&self) -> Result<Arc<dyn SpaceSource>> {
        let space = self.space.read().clone();
        space.ok_or_else(|| Error::new(ErrorKind::ReadOnly, "the pool is open read-only"))
    }
}
