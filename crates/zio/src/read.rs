//! Reading a block: cache, addresses, verification, decompression.

use std::ops::Range;
use std::sync::OnceLock;

use arc::{Access, CacheKind, Fill, Lookup, LookupRequest, ResidentBlock, SlotRef};
use base::limits::BLOCK_SIZE_MAX;
use base::{Buf, BufMut, Dva, Error, ErrorKind, Result};
use codec::checksum::{Checksum, SaltTemplate, Words};
use ondisk::blkptr::{BlkPtr, Block, COMPRESS_OFF, Embedded, Protection};
use ondisk::endian::Endian;
use vdev::{Priority, ReadReq};

use crate::heal::DamageList;
use crate::{BlockKey, Caching, Io, Mode, Origin, Zio};

/// An address of a block that could not be read, and the error.
#[derive(Debug)]
pub struct BlockFault {
    /// The address.
    pub dva: Dva,
    /// The error.
    pub error: Error,
}

fn is_metadata(block: &Block) -> bool {
    block.head.level > 0 || block.head.object_type.is_metadata()
}

pub(crate) fn kind_of(block: &Block) -> CacheKind {
    if is_metadata(block) { CacheKind::Metadata } else { CacheKind::Data }
}

fn not_in_memory() -> Error {
    Error::new(ErrorKind::WouldBlock, "the block is not in memory")
}

impl Zio {
    /// The logical content of a block: `lsize` bytes, decompressed, in the byte
    /// order `bp.endian()`.
    ///
    /// # Errors
    /// `Locked` for encrypted blocks, `WouldBlock` if `io` forbids waiting,
    /// `Checksum` or `Io` when no copy could be read, `Corrupt` when a verified
    /// block does not decompress or was redacted.
    pub fn read(&self, bp: &BlkPtr, io: Io) -> Result<Buf> {
        match bp {
            BlkPtr::Hole(hole) => Ok(Buf::zeros(hole.head.lsize.0.min(BLOCK_SIZE_MAX) as usize)),
            BlkPtr::Redacted(_) => Err(Error::new(
                ErrorKind::Io,
                "block was left out by a redacted send; its content is not in this pool",
            )),
            BlkPtr::Embedded(e) => expand_embedded(e),
            BlkPtr::Block(block) => self.read_block(block, io),
        }
    }

    pub(crate) fn key(&self, block: &Block) -> BlockKey {
        let dva = block.dva();
        BlockKey {
            load: self.load,
            vdev: dva.vdev.0,
            offset: dva.offset,
            birth: block.effective_physical_birth().0,
        }
    }

    /// Records that a layer above keeps the block's content: [`arc::Cache::hand_over`].
    pub fn hand_over(&self, bp: &BlkPtr) {
        if let BlkPtr::Block(block) = bp {
            self.cache.hand_over(&self.key(block));
        }
    }

    /// Records that the block was freed: its content will not be requested again.
    pub fn freed(&self, block: &Block) {
        self.cache.remove(&self.key(block));
        self.forget_gang(block);
    }

    fn read_block(&self, block: &Block, io: Io) -> Result<Buf> {
        let lsize = block.head.lsize.0 as usize;
        Ok(self.read_part(block, 0..lsize, io)?.0)
    }

    /// Bytes `range` of a block's logical content, and the cache slot of the block.
    ///
    /// # Errors
    /// As [`Zio::read`]; `Corrupt` when the block is shorter than the range.
    pub fn read_range(
        &self,
        bp: &BlkPtr,
        range: Range<usize>,
        io: Io,
    ) -> Result<(Buf, Option<SlotRef>)> {
        let lsize = bp.head().lsize.0;
        if range.start > range.end || range.end as u64 > lsize {
            return Err(Error::corrupt("block is too short"));
        }
        match bp {
            BlkPtr::Block(block) => self.read_part(block, range, io),
            _ => Ok((self.read(bp, io)?.slice(range), None)),
        }
    }

    fn read_part(
        &self,
        block: &Block,
        range: Range<usize>,
        io: Io,
    ) -> Result<(Buf, Option<SlotRef>)> {
        crate::outage::check_context(io)?;
        loop {
            match self.try_part(block, range.clone(), io) {
                Err(e) if self.retries(&e, io.outage) => {}
                other => return other,
            }
        }
    }

    fn try_part(
        &self,
        block: &Block,
        range: Range<usize>,
        io: Io,
    ) -> Result<(Buf, Option<SlotRef>)> {
        if block.protection == Protection::Encrypted {
            return match io.mode {
                Mode::MemoryOnly if io.stored => Err(not_in_memory()),
                Mode::MayWait if io.stored => {
                    Ok((self.read_and_expand(block, io)?.1.slice(range), None))
                }
                _ => Err(Error::new(
                    ErrorKind::Locked,
                    "the dataset is encrypted and its key is not loaded",
                )),
            };
        }
        let (key, lsize) = (self.key(block), block.head.lsize.0);
        let (kind, access, copies) = (kind_of(block), io.access, io.copies);
        let keep = io.tiers.first.keeps(kind);
        let ask = LookupRequest { kind, access, copies, keep };
        if io.caching == Caching::Bypass {
            return Ok((self.read_and_expand(block, io)?.1.slice(range), None));
        }
        let found = if io.mode == Mode::MemoryOnly {
            self.cache.peek(&key, ask).ok_or_else(not_in_memory)?
        } else {
            match self.cache.lookup(key, ask) {
                Lookup::Hit(found) => found,
                Lookup::Miss(ticket) => return self.fill(ticket, block, range, io),
            }
        };
        let at = found.slot();
        // On an intact pool, two pointers to one address never disagree.
        if found.lsize() != lsize || found.tag().is_some_and(|t| t != block.compression) {
            return match io.mode {
                Mode::MemoryOnly => Err(not_in_memory()),
                Mode::MayWait => Ok((self.read_and_expand(block, io)?.1.slice(range), None)),
            };
        }
        let last = range.end as u64 == lsize;
        let part = self.part_of(found, range, keep).map_err(|e| e.at_dva(block.dva()))?;
        if !keep && kind == CacheKind::Data && last && access == Access::Demand {
            // Its reader is done with it.
            self.cache.discard(&key);
        }
        Ok((part, keep.then_some(at)))
    }

    /// Reads the block for its fill ticket.
    fn fill(
        &self,
        ticket: Fill<'_, BlockKey>,
        block: &Block,
        range: Range<usize>,
        io: Io,
    ) -> Result<(Buf, Option<SlotRef>)> {
        let (stored, whole) = self.read_and_expand(block, io)?;
        // The kernel will hold the block itself if it gets all of it.
        let all = range.start == 0 && range.end == whole.len();
        let keep = io.tiers.first.keeps(kind_of(block));
        if !keep && !is_metadata(block) && io.access == Access::Demand && range.end == whole.len() {
            return Ok((whole.slice(range), None));
        }
        let remember = io.caching == Caching::Remember && all;
        let at = self.insert_read(ticket, block, (stored, whole.clone()), remember, io);
        Ok((whole.slice(range), at.filter(|_| keep)))
    }

    /// Inserts a block that was read; `remember` if a layer above will hold all of it.
    pub(crate) fn insert_read(
        &self,
        ticket: Fill<'_, BlockKey>,
        block: &Block,
        (stored, whole): (Option<Buf>, Buf),
        remember: bool,
        io: Io,
    ) -> Option<SlotRef> {
        let keep = io.tiers.first.keeps(kind_of(block));
        ticket.complete(arc::Block {
            stored,
            tag: block.compression,
            whole,
            remember: keep && remember && !is_metadata(block),
            usage: self.tier_use(io.tiers, block),
        })
    }

    /// Bytes of the block in slot `at`, if the cache still has it there.
    ///
    /// # Errors
    /// `Corrupt` when the stored form does not decompress.
    pub fn read_slot(
        &self,
        at: SlotRef,
        lsize: u64,
        range: Range<usize>,
        io: Io,
    ) -> Result<Option<Buf>> {
        let (access, copies) = (io.access, io.copies);
        let ask = LookupRequest { kind: CacheKind::Data, access, copies, keep: true };
        match self.cache.peek_at(at, ask) {
            Some(found) if found.lsize() == lsize && range.end as u64 <= lsize => {
                self.part_of(found, range, true).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Cuts a range out of the cached block, decompressing no more than needed.
    fn part_of(&self, found: ResidentBlock, range: Range<usize>, front: bool) -> Result<Buf> {
        let (at, stored, lsize, tag, again) = match found {
            ResidentBlock::Whole { whole, .. } if range == (0..whole.len()) => return Ok(whole),
            ResidentBlock::Whole { whole, .. } => return Ok(whole.slice(range)),
            ResidentBlock::Stored { at, stored, lsize, tag, again } => {
                (at, stored, lsize, tag, again)
            }
        };
        let keep = front && self.cache.wants_front(at, again);
        if !keep && range.end < lsize as usize && codec::compress::has_head(tag) {
            let mut out = BufMut::alloc(range.end);
            codec::compress::decompress_head(tag, &stored, &mut out)?;
            return Ok(out.freeze().slice(range));
        }
        let began = base::rt::now();
        let whole = expand(tag, stored, lsize as usize)?;
        if keep {
            self.cache.install(at, whole.clone(), began.elapsed());
        }
        Ok(whole.slice(range))
    }

    /// The block as stored, if it is compressed, and its logical content.
    fn read_and_expand(&self, block: &Block, io: Io) -> Result<(Option<Buf>, Buf)> {
        let why = match io.access {
            Access::Demand => Priority::SyncRead,
            Access::Prefetch | Access::Prescient => Priority::AsyncRead,
        };
        let raw = match self.read_second(block, io) {
            Some(raw) => raw,
            None => self
                .read_copies(block, why, io.origin, false)
                .map_err(|faults| summarize(block, faults))?,
        };
        expand_block(block, raw)
    }

    /// A block of dnodes, for a caller that only walks block pointers. For an encrypted
    /// block this is the stored form: dnode cores and pointers are in the clear there,
    /// bonus buffers are ciphertext (chapter 08 §A.10).
    ///
    /// # Errors
    /// As [`Zio::read`].
    pub fn read_dnodes(&self, bp: &BlkPtr, io: Io) -> Result<Buf> {
        match bp {
            BlkPtr::Block(block)
                if block.protection == Protection::Encrypted && io.mode == Mode::MayWait =>
            {
                Ok(self.read_and_expand(block, io)?.1)
            }
            _ => self.read(bp, io),
        }
    }

    /// The block's bytes as stored (`psize`), verified; tries every address.
    ///
    /// # Errors
    /// The errors of each address.
    pub fn read_physical(&self, block: &Block) -> Result<Buf, Vec<BlockFault>> {
        self.read_copies(block, Priority::SyncRead, Origin::Unknown, false)
    }

    /// As [`Zio::read_physical`], at the priority of a scrub.
    ///
    /// # Errors
    /// As [`Zio::read_physical`].
    pub fn read_in_background(&self, block: &Block) -> Result<Buf, Vec<BlockFault>> {
        self.read_copies(block, Priority::Scrub, Origin::Unknown, false)
    }

    /// The block's bytes as stored; `suspect` if wrong ones were met already.
    pub(crate) fn read_copies(
        &self,
        block: &Block,
        why: Priority,
        origin: Origin,
        suspect: bool,
    ) -> Result<Buf, Vec<BlockFault>> {
        if let Some(bytes) = self.in_flight.stored(&self.key(block))
            && bytes.len() as u64 == block.psize.0
        {
            return Ok(bytes);
        }
        let (mut faults, mut damage) = (Vec::new(), DamageList::default());
        for dva in block.dvas() {
            let read = match dva.gang {
                true => self.read_gang(block, dva, 0, &mut damage),
                false => self.read_dva(block, dva, (why, suspect), &mut damage),
            };
            match read {
                Ok(buf) => {
                    let failed: Vec<Dva> = faults.iter().map(|f: &BlockFault| f.dva).collect();
                    damage.failed(block, &failed, &buf);
                    self.heal(damage, origin);
                    return Ok(buf);
                }
                Err(error) => {
                    damage.headers.extend(dva.gang.then_some(dva));
                    faults.push(BlockFault { dva, error });
                }
            }
        }
        Err(faults)
    }

    /// Reads one plain address and verifies the block's checksum.
    pub(crate) fn read_dva(
        &self,
        block: &Block,
        dva: Dva,
        (why, suspect): (Priority, bool),
        damage: &mut DamageList,
    ) -> Result<Buf> {
        let verifier = Verifier::new(block, self.salt.get())?;
        let birth = block.effective_physical_birth();
        let mut req = ReadReq::new(dva.vdev, dva.offset, block.psize, birth).with_priority(why);
        (req.no_parity, req.suspect) = (verifier.checksum == Checksum::NoParity, suspect);
        let read = self.tree().read_verbose(&req, &|bytes| verifier.accepts(bytes));
        let good = read.data.map_err(|e| e.at_dva(dva))?;
        if read.report.needs_healing() {
            damage.note(block, dva, &good);
        }
        Ok(good)
    }
}

/// Combines the errors of all failed addresses.
fn summarize(block: &Block, faults: Vec<BlockFault>) -> Error {
    let n = faults.len();
    let mut faults = faults.into_iter();
    match faults.next() {
        Some(first) if n == 1 => first.error,
        Some(first) => {
            let kind = first.error.kind();
            Error::new(kind, format!("none of the block's {n} copies could be read"))
                .at_dva(block.dva())
                .caused_by(first.error)
        }
        None => Error::bug("a block without addresses").at_dva(block.dva()),
    }
}

/// Verifies bytes against the checksum of a block.
pub(crate) struct Verifier<'a> {
    pub(crate) checksum: Checksum,
    salt: &'a SaltTemplate,
    swapped: bool,
    expected: Words,
    /// Only words 0 and 1 are checksum, the rest is a MAC (chapter 02 §5.11).
    mac: bool,
}

impl<'a> Verifier<'a> {
    pub(crate) fn new(block: &Block, salt: Option<&'a SaltTemplate>) -> Result<Verifier<'a>> {
        static UNSALTED: OnceLock<SaltTemplate> = OnceLock::new();
        let checksum = Checksum::from_id(block.checksum)
            .filter(|c| !c.is_embedded())
            .ok_or_else(|| Error::corrupt("block pointer with an embedded checksum"))?;
        if checksum.is_salted() && salt.is_none() {
            return Err(Error::corrupt("salted checksum in a pool without a salt"));
        }
        let salt = salt.unwrap_or_else(|| UNSALTED.get_or_init(|| SaltTemplate::new(&[0; 32])));
        let objset = block.head.object_type == ondisk::ObjType::OBJSET;
        Ok(Verifier {
            checksum,
            salt,
            swapped: block.endian != Endian::Little,
            expected: block.words,
            mac: block.protection != Protection::None && !objset,
        })
    }

    pub(crate) fn accepts(&self, bytes: &[u8]) -> bool {
        if matches!(self.checksum, Checksum::Off | Checksum::NoParity) {
            return true;
        }
        let mut words = codec::checksum::compute(self.checksum, bytes, self.salt, self.swapped);
        if !self.mac {
            return words == self.expected;
        }
        if !self.checksum.is_dedup_strong() {
            words[0] ^= words[2];
            words[1] ^= words[3];
        }
        words[..2] == self.expected[..2]
    }
}

/// The block as stored, if it is compressed, and its logical content.
pub(crate) fn expand_block(block: &Block, raw: Buf) -> Result<(Option<Buf>, Buf)> {
    let stored = (block.compression != COMPRESS_OFF).then(|| raw.clone());
    let whole = expand(block.compression, raw, block.head.lsize.0 as usize)
        .map_err(|e| e.at_dva(block.dva()))?;
    Ok((stored, whole))
}

/// Decompresses `raw` to exactly `lsize` bytes.
fn expand(compression: u8, raw: Buf, lsize: usize) -> Result<Buf> {
    if compression == COMPRESS_OFF {
        return match raw.len() {
            n if n == lsize => Ok(raw),
            n if n > lsize => Ok(raw.slice(0..lsize)),
            _ => Err(Error::corrupt("uncompressed block is shorter than its logical size")),
        };
    }
    let mut out = BufMut::alloc(lsize);
    codec::compress::decompress(compression, &raw, &mut out)?;
    Ok(out.freeze())
}

fn expand_embedded(e: &Embedded) -> Result<Buf> {
    let lsize = e.head.lsize.0 as usize;
    let mut out = BufMut::alloc(lsize);
    if e.compression == COMPRESS_OFF {
        let payload = e.payload();
        let n = payload.len().min(lsize);
        out[..n].copy_from_slice(&payload[..n]);
        out[n..].fill(0);
    } else {
        codec::compress::decompress(e.compression, e.payload(), &mut out)?;
    }
    Ok(out.freeze())
}
