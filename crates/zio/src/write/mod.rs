//! Writing a block, in three steps (chapter 02 §4).
//!
//! # Theory
//! [`Zio::prepare`] processes only the content: zero test, compression, checksum. Most
//! processor time is spent there, and any number of threads run it concurrently.
//! [`Zio::place`] allocates the block's addresses, which completes its pointer.
//! [`crate::TicketLock`] lets the jobs of a wave run it in their order, so that a file's
//! blocks lie in order on the devices. [`Zio::submit`] passes the bytes to the vdev
//! tree and the content to the cache. No thread waits for a device before
//! [`Writes::wait`].
//!
//! Where no single extent is large enough, a block is scattered over smaller ones below
//! a *gang header* (§9). `place` determines the sizes and addresses of the members.
//! Their checksums and the headers are computed when the block is submitted, outside
//! the ordered section, because the leader's pointer does not depend on them.
//!
//! A block that is written again without a change of its content ([`BlockChange`]) always
//! moves, and may keep its logical birth: then the physical birth says when it was allocated,
//! and everything that concerns its addresses goes by that.
//!
//! A block may leave the cache before its writes have ended. Until then, reads find it
//! in the table of blocks [in flight](in_flight).
//!
//! # Departures from OpenZFS
//! There is no tree of asynchronous I/Os. A block's failed writes are repeated once by
//! the thread that submits or waits, never by the device's completion.
//!
//! # Invariants
//! * `place` allocates the whole block or nothing: a failure half-way releases
//!   everything.
//! * Uncompressed content is never copied: cache, mirrors and copies share one buffer.
//! * A block is rewritten in place only in the txg of its birth, after the caller has
//!   waited for the writes of the earlier pass. This includes gang blocks whose tree
//!   was kept ([`Gangs`]); rewriting a block of the same size then never allocates.
//! * The bytes in flight through one [`Writes`] are bounded.

mod copy;
mod free;
mod gang;
pub(crate) mod in_flight;
mod place;
mod prepare;
mod submit;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use base::{Buf, Dva, Error, ErrorKind, Psize, Result, Txg, VdevId};
use codec::checksum::Checksum;
use codec::compress::Compression;
use ondisk::ObjType;
use ondisk::blkptr::{BlkPtr, Block, Seal};

use crate::{CacheTiers, DedupMode, OutagePolicy, Zio};

pub use copy::CopyPolicy;
pub use gang::Gangs;
pub(crate) use submit::Sink;
pub use submit::{Lost, WriteCounts, Writes};

/// The allocation class of a block (chapter 05).
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

/// A request for space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want {
    /// Bytes to store, before parity.
    pub psize: u64,
    /// Bytes before compression, if the block is part of a run ([`Write::in_run`]); otherwise 0.
    pub record: u64,
    /// Addresses to find, each with room for `psize`.
    pub copies: u8,
    /// Allocation class.
    pub class: Class,
    /// The allocating txg.
    pub txg: Txg,
    /// Identifies the block's owner: blocks with the same hint should be adjacent.
    pub hint: u64,
    /// Metadata, and intent logs: short-lived blocks, kept apart from data.
    pub metadata: bool,
    /// A gang header or a member of a gang: no extent was large enough for the whole
    /// block.
    pub gang_child: bool,
    /// What to do when devices with a space map are absent.
    pub outage: OutagePolicy,
}

/// Allocates and releases space; implemented by the pool's metaslabs.
pub trait SpaceSource: Send + Sync {
    /// Allocates `want.copies` addresses without gang bit, each with at least the asize
    /// that its vdev needs for `want.psize` bytes in txg `want.txg`.
    ///
    /// # Errors
    /// `NoSpace` if there is no extent of that size; the caller then tries smaller
    /// ones.
    fn allocate(&self, want: &Want) -> Result<Vec<Dva>>;

    /// As [`SpaceSource::allocate`], but only on vdevs for which `fits` is true.
    ///
    /// # Errors
    /// As there.
    fn allocate_on(&self, want: &Want, fits: &dyn Fn(VdevId) -> bool) -> Result<Vec<Dva>> {
        let dvas = self.allocate(want)?;
        if dvas.iter().all(|dva| fits(dva.vdev)) {
            return Ok(dvas);
        }
        self.unallocate(want.txg, &dvas);
        Err(Error::new(ErrorKind::NoSpace, "no space on these vdevs"))
    }

    /// Releases addresses that were never written.
    fn unallocate(&self, txg: Txg, dvas: &[Dva]);

    /// Whether the address is allocated, so that a block may be written there.
    fn is_allocated(&self, dva: Dva) -> bool;

    /// (`min_alloc`, `gcd_alloc`) of chapter 02 §4, bytes.
    fn limits(&self) -> (u64, u64);
}

/// How a block is to be stored (chapter 03 §9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteProps {
    /// Compression to try; with `Off`, even zeros are stored as data.
    pub compression: Compression,
    /// Checksum; not an embedded one.
    pub checksum: Checksum,
    /// Number of addresses, 1 to 3.
    pub copies: u8,
    /// Number of addresses of gang headers; at least `copies` are used.
    pub header_copies: u8,
    /// Feature `embedded_data` is on.
    pub embed: bool,
    /// Feature `hole_birth` is active.
    pub hole_birth: bool,
    /// Allocation class.
    pub class: Class,
    /// Whether an equal block is used instead.
    pub dedup: DedupMode,
    /// Which tiers of the cache may keep the block.
    pub tiers: CacheTiers,
}

impl Default for WriteProps {
    /// The usual properties of user data.
    fn default() -> Self {
        WriteProps {
            compression: Compression::ON,
            checksum: Checksum::Fletcher4,
            copies: 1,
            header_copies: 2,
            embed: true,
            hole_birth: true,
            class: Class::Normal,
            dedup: DedupMode::Off,
            tiers: CacheTiers::ALL,
        }
    }
}

/// The relation of a write's content to the block that it replaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BlockChange {
    /// The content may differ.
    #[default]
    Content,
    /// The content is the same: the block moves and gets the present properties. An
    /// identical block is not kept (no nopwrite).
    Moved,
    /// As `Moved`, and the pointer keeps the old logical birth: it gets the rewrite flag, and
    /// the txg becomes the physical birth (chapter 02 §2.5). Holes and embedded blocks have
    /// no physical birth, so they are born in the txg.
    MovedPhysically,
}

/// The form of content that is compressed already, as a received stream may bring it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedForm {
    /// Compression function, as in block pointers.
    pub compression: u8,
    /// Bytes after decompression: a multiple of 512, at most 16 MiB.
    pub lsize: u32,
    /// It is stored in the block pointer, if the pool allows that.
    pub embedded: bool,
    /// It is the content of a block of an encrypted dataset, perhaps encrypted, and stored as it
    /// is whatever the properties say: `compression` may be "off".
    pub seal: Option<Seal>,
    /// There is no content: a redacted stream left it out. The pointer says so, and nothing else
    /// is stored.
    pub redacted: bool,
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
    /// `data` is the compressed form of the content, which decompresses without error. It is
    /// stored as it is, unless it would take as much space as the content itself.
    pub packed: Option<PackedForm>,
    /// The block is one of an encrypted dataset; without `packed`, `data` is in the form in which
    /// it is stored, except for compression.
    pub seal: Option<Seal>,
    /// Fill count of the new pointer (chapter 03 §3.5).
    pub fill: u64,
    /// The txg that writes.
    pub txg: Txg,
    /// How to store it.
    pub props: &'a WriteProps,
    /// The pointer that it replaces.
    pub old: &'a BlkPtr,
    /// Whether the content differs from that of `old`.
    pub change: BlockChange,
    /// Rewrite the old block in place if it was born in this txg and its size did not
    /// change; its earlier write must have ended.
    pub in_place: bool,
    /// Where to keep the trees of gang blocks that a later pass may rewrite. Without it
    /// a gang block gets new addresses each time.
    pub gangs: Option<&'a Arc<Gangs>>,
    /// [`Want::hint`].
    pub hint: u64,
    /// A block of the same object beside this one is placed right before or behind it. The
    /// blocks of a run are kept together whatever sizes compression gives them.
    pub in_run: bool,
    /// Keep the content in the cache.
    pub cache: bool,
    /// [`Want::outage`].
    pub outage: OutagePolicy,
}

/// Blocks that got new addresses since the pool was opened.
#[derive(Debug, Default)]
pub(crate) struct PlacedCounts {
    whole: AtomicU64,
    gangs: AtomicU64,
}

impl PlacedCounts {
    fn add(&self, outcome: Outcome) {
        match outcome {
            Outcome::New => self.whole.fetch_add(1, Relaxed),
            Outcome::Gang => self.gangs.fetch_add(1, Relaxed),
            _ => 0,
        };
    }
}

/// What kind of write a block became.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All zeros: a hole.
    Hole,
    /// Stored in the pointer itself.
    Embedded,
    /// The old block already has this content, and its pointer stays (nopwrite): the
    /// old block must not be freed.
    Same,
    /// Written in place of the old block, which must not be freed.
    Rewritten,
    /// At new addresses.
    New,
    /// At new addresses, below a gang header.
    Gang,
    /// Not written: an equal block has these addresses, and the dedup table counts the pointer.
    Shared,
    /// A copy of the old block, which keeps its logical birth.
    Copied,
}

/// A compressed block with its checksum.
pub struct Prepared {
    form: PreparedForm,
}

enum PreparedForm {
    /// The pointer is complete.
    Done(BlkPtr, Outcome),
    Block(Box<ReadyBlock>),
}

/// Everything of a block except its addresses.
struct ReadyBlock {
    /// The pointer; it has its addresses already if the block is rewritten in place.
    block: Block,
    /// The addresses to rewrite, if it is rewritten in place.
    rewrite: Option<BlockLayout>,
    gangs: Option<Arc<Gangs>>,
    copies: u8,
    header_copies: u8,
    class: Class,
    dedup: DedupMode,
    hint: u64,
    in_run: bool,
    metadata: bool,
    outage: OutagePolicy,
    content: BlockContent,
}

/// A block's bytes.
struct BlockContent {
    /// Logical content; empty if it is not for the cache.
    whole: Buf,
    /// Content as on disk, `psize` bytes.
    stored: Buf,
    cache: bool,
    tiers: CacheTiers,
}

/// A block with its pointer, not yet written.
pub struct Placed {
    /// The new pointer.
    pub bp: BlkPtr,
    /// The kind of write.
    pub outcome: Outcome,
    parts: Option<(BlockContent, BlockLayout)>,
    /// The txg that allocated it, if that is not its birth.
    allocated: Option<Txg>,
}

/// The addresses of a block's bytes.
enum BlockLayout {
    /// The pointer's addresses.
    Plain(Vec<Dva>),
    Gang(Arc<gang::GangNode>),
}

impl Prepared {
    /// Bytes on disk before parity; 0 for a block that needs no space.
    pub fn psize(&self) -> Psize {
        match &self.form {
            PreparedForm::Done(..) => Psize(0),
            PreparedForm::Block(ready) => ready.block.psize,
        }
    }

    /// Whether the old block already has this content and its pointer stays.
    #[cfg(test)]
    pub(crate) fn is_same(&self) -> bool {
        matches!(self.form, PreparedForm::Done(_, Outcome::Same))
    }
}

impl Zio {
    /// Blocks that got new addresses since the pool was opened: all of them, and those that
    /// became gangs.
    pub fn placed_counts(&self) -> (u64, u64) {
        let gangs = self.placed.gangs.load(Relaxed);
        (self.placed.whole.load(Relaxed) + gangs, gangs)
    }

    /// Sets the allocator; a pool without one is read-only.
    pub fn set_space(&self, space: Arc<dyn SpaceSource>) {
        *self.space.write() = Some(space);
    }

    fn space(&self) -> Result<Arc<dyn SpaceSource>> {
        let space = self.space.read().clone();
        space.ok_or_else(|| Error::new(ErrorKind::ReadOnly, "the pool is open read-only"))
    }
}
