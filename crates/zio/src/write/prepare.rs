//! The first step of a write: everything that does not depend on the address (chapter
//! 02 §4.1).

use std::sync::OnceLock;

use base::limits::BLOCK_SIZE_MAX;
use base::{Buf, BufMut, Error, Lsize, Psize, Result, Txg};
use codec::checksum::{Checksum, SaltTemplate, Words, compute};
use codec::compress::{Compression, compress, decompress, is_zero};
use ondisk::blkptr::{BlkPtr, Block, COMPRESS_OFF, EMBEDDED_MAX, Embedded, Head, Hole, Protection};
use ondisk::{Endian, ObjType};

use super::{
    BlockChange, BlockContent, BlockLayout, Outcome, PackedForm, Prepared, PreparedForm,
    ReadyBlock, Write,
};
use crate::{DedupMode, Zio};

const SECTOR: usize = 512;

/// The result of compressing.
enum CompressResult {
    Hole,
    /// Fits into a pointer.
    Embedded(BufMut),
    /// Zero-padded to `psize`.
    Smaller(Buf),
    /// Stored uncompressed.
    No,
}

impl Zio {
    /// Determines the form of a block: zero test, compression, checksum. Allocates
    /// nothing and waits for nothing.
    ///
    /// # Errors
    /// `ReadOnly` without a [`super::SpaceSource`]; `Invalid` for impossible sizes, copies
    /// or checksums, and for a salted checksum in a pool without a salt; `Corrupt` for packed
    /// content that does not decompress.
    pub fn prepare(&self, w: &Write<'_>) -> Result<Prepared> {
        check(w)?;
        let limits = self.space()?.limits();
        if w.packed.is_some_and(|form| form.redacted) {
            let (object_type, level, birth) = (w.object_type, w.level, w.txg);
            let head = Head { object_type, level, lsize: Lsize(logical_size(w)), birth };
            let form = PreparedForm::Done(BlkPtr::Redacted(head), Outcome::Embedded);
            return Ok(Prepared { form });
        }
        if let Some(form) = w.packed
            && !stays_packed(w, form, limits)
        {
            let mut whole = BufMut::alloc(form.lsize as usize);
            decompress(form.compression, w.data, &mut whole)?;
            return self.prepare(&Write { data: &whole.freeze(), packed: None, ..*w });
        }
        let head = Head {
            object_type: w.object_type,
            level: w.level,
            lsize: Lsize(logical_size(w)),
            birth: w.txg,
        };
        let done = |bp, outcome| Ok(Prepared { form: PreparedForm::Done(bp, outcome) });
        let form = w.packed.map_or(w.props.compression.id(), |form| form.compression);
        let (stored, compression) = match compress_block(w, limits) {
            CompressResult::Hole => {
                // The birth tells sends that the hole replaced something (§2.4).
                let born = w.props.hole_birth && w.old.birth() != Txg::ZERO;
                let head = if born { head } else { Head::default() };
                return done(BlkPtr::Hole(Hole { head }), Outcome::Hole);
            }
            CompressResult::Embedded(payload) => {
                let e = Embedded::new(head, form, &payload)
                    .ok_or_else(|| base::bug!("a payload does not fit its pointer"))?;
                return done(BlkPtr::Embedded(e), Outcome::Embedded);
            }
            CompressResult::Smaller(stored) => (stored, form),
            CompressResult::No => (w.data.clone(), COMPRESS_OFF),
        };
        let psize = Psize(stored.len() as u64);
        let mut block = Block::new(head, psize, compression, &[]);
        block.checksum = w.props.checksum.id();
        block.fill = w.fill;
        // Readers sum content of the other byte order as its writer would have.
        let swapped = w.seal.is_some_and(|seal| seal.endian == Endian::Big);
        block.words = self.checksum_of(w.props.checksum, &stored, swapped)?;
        if let Some(seal) = &w.seal {
            if !w.props.checksum.is_dedup_strong() && w.object_type != ObjType::OBJSET {
                // The other two words are the MAC's (§5.11).
                block.words[0] ^= block.words[2];
                block.words[1] ^= block.words[3];
            }
            block = block.sealed(seal);
        }
        let born = w.old.birth();
        if w.change == BlockChange::MovedPhysically && Txg::ZERO < born && born < w.txg {
            (block.head.birth, block.physical_birth, block.rewritten) = (born, w.txg, true);
        }
        if let BlkPtr::Block(old) = w.old {
            if !w.in_place && self.is_same(w, old, &block) {
                return done(*w.old, Outcome::Same);
            }
            if let Some(layout) = self.reusable_layout(w, old, &block) {
                let dvas: Vec<_> = old.dvas().collect();
                return Ok(ready(w, block.with_dvas(&dvas), Some(layout), stored));
            }
        }
        if w.props.dedup != DedupMode::Off
            && let Some(tables) = self.dedup()
        {
            // So that `place` finds the table's blocks in the cache; it sees errors as well.
            let _again_later = tables.find(&block, w.props.copies);
        }
        Ok(ready(w, block, None, stored))
    }

    /// The checksum of bytes in their on-disk form.
    pub(super) fn checksum_of(
        &self,
        checksum: Checksum,
        bytes: &[u8],
        swapped: bool,
    ) -> Result<Words> {
        static UNSALTED: OnceLock<SaltTemplate> = OnceLock::new();
        let salt = match self.salt.get() {
            Some(salt) => salt,
            None if checksum.is_salted() => {
                return Err(Error::invalid("salted checksum in a pool without a salt"));
            }
            None => UNSALTED.get_or_init(|| SaltTemplate::new(&[0; 32])),
        };
        Ok(compute(checksum, bytes, salt, swapped))
    }

    /// nopwrite: a strong checksum proves that the old block has the same content
    /// (§4.1).
    fn is_same(&self, w: &Write<'_>, old: &Block, new: &Block) -> bool {
        w.level == 0
            && w.seal.is_none()
            && w.change == BlockChange::Content
            && !w.object_type.is_metadata()
            && w.props.checksum.is_nopwrite()
            && !matches!(w.props.compression, Compression::Off | Compression::Empty)
            && !old.dedup
            && old.protection == Protection::None
            && old.endian == new.endian
            && (old.checksum, old.compression) == (new.checksum, new.compression)
            && (old.psize, old.head.lsize) == (new.psize, new.head.lsize)
            && (old.head.object_type, old.head.level) == (new.head.object_type, 0)
            && old.dvas().len() == usize::from(w.props.copies)
            && old.words == new.words
            && !self.on_indirect(old)
    }

    /// The old addresses, if they can be used again: the block was born in this txg,
    /// and its size and copies are unchanged.
    fn reusable_layout(&self, w: &Write<'_>, old: &Block, new: &Block) -> Option<BlockLayout> {
        let own = w.in_place
            && old.head.birth == w.txg
            && old.effective_physical_birth() == w.txg
            && old.psize == new.psize
            && !old.dedup
            && old.protection == Protection::None
            && w.seal.is_none();
        if !own {
            return None;
        }
        let copies = usize::from(w.props.copies);
        if !old.is_gang() {
            return (old.dvas().len() == copies).then(|| BlockLayout::Plain(old.dvas().collect()));
        }
        let node = w.gangs?.find(&self.key(old))?;
        (node.psize() == new.psize && node.copies() == copies).then_some(BlockLayout::Gang(node))
    }

    fn on_indirect(&self, block: &Block) -> bool {
        let tree = self.tree();
        block.dvas().any(|d| match tree.top(d.vdev) {
            Ok(top) => !writable(top.kind()),
            Err(_) => true,
        })
    }
}

fn writable(kind: &vdev::VdevKind) -> bool {
    !matches!(kind, vdev::VdevKind::Indirect | vdev::VdevKind::Hole | vdev::VdevKind::Missing)
}

fn logical_size(w: &Write<'_>) -> u64 {
    w.packed.map_or(w.data.len() as u64, |form| form.lsize.into())
}

/// Bytes that compressed content takes on disk, padding included.
fn padded(len: usize, (min, gcd): (u64, u64)) -> usize {
    let (min, gcd) = (min.max(1) as usize, gcd.max(1) as usize);
    if len > min { len.next_multiple_of(gcd) } else { min }
}

/// Whether content that is compressed already can be stored as it is.
fn stays_packed(w: &Write<'_>, form: PackedForm, limits: (u64, u64)) -> bool {
    match form.embedded {
        // Nobody can unpack it, and its MAC is one of exactly these bytes.
        _ if form.seal.is_some() => true,
        true => w.props.embed && w.data.len() <= EMBEDDED_MAX,
        false => padded(w.data.len(), limits) < form.lsize as usize,
    }
}

fn check(w: &Write<'_>) -> Result<()> {
    let len = logical_size(w) as usize;
    if len == 0 || !len.is_multiple_of(SECTOR) || len as u64 > BLOCK_SIZE_MAX {
        return Err(Error::invalid(format!("a block of {len} bytes cannot be written")));
    }
    if !(1..=3).contains(&w.props.copies) {
        return Err(Error::invalid("a block has one to three copies"));
    }
    if w.props.checksum.is_embedded() {
        return Err(Error::invalid("an embedded checksum is not for ordinary blocks"));
    }
    if !w.object_type.is_valid() || w.level >= 32 {
        return Err(Error::invalid("no block has such a type or level"));
    }
    if let Some(form) = w.packed.filter(|form| form.seal.is_some()) {
        let off = form.compression == COMPRESS_OFF;
        let sizes = match w.data.len() {
            0 => false,
            n if !n.is_multiple_of(SECTOR) || n > len => false,
            n => !off || n == len,
        };
        if !sizes || form.embedded || w.seal != form.seal {
            return Err(Error::invalid("no block is stored in this form"));
        }
    }
    let encrypted = w.level == 0 && w.object_type.is_encrypted() && w.seal.is_some();
    if encrypted && (w.props.copies > 2 || w.props.header_copies > 2) {
        return Err(Error::invalid("an encrypted block has at most two copies"));
    }
    Ok(())
}

fn ready(w: &Write<'_>, block: Block, rewrite: Option<BlockLayout>, stored: Buf) -> Prepared {
    // The cache has no use for content without its plain form.
    let plain = w.packed.is_none() && block.protection != Protection::Encrypted;
    let cache = w.cache && plain;
    let whole = if cache { w.data.clone() } else { Buf::default() };
    Prepared {
        form: PreparedForm::Block(Box::new(ReadyBlock {
            block,
            rewrite,
            gangs: w.gangs.cloned(),
            copies: w.props.copies,
            header_copies: w.props.header_copies,
            class: w.props.class,
            dedup: w.props.dedup,
            hint: w.hint,
            in_run: w.in_run,
            metadata: w.level > 0 || w.object_type.is_metadata(),
            outage: w.outage,
            content: BlockContent { whole, stored, cache, tiers: w.props.tiers },
        })),
    }
}

/// The most bytes that compression may leave (§4.1 b).
pub(super) fn compressed_max(alg: Compression, lsize: usize, (min, gcd): (u64, u64)) -> usize {
    let (min, gcd) = (min.max(1) as usize, gcd.max(1) as usize);
    let most = lsize - (lsize >> 3);
    match alg {
        Compression::Zle => most,
        _ if most - most % gcd < min => EMBEDDED_MAX,
        _ => most - most % gcd,
    }
}

fn compress_block(w: &Write<'_>, limits: (u64, u64)) -> CompressResult {
    if let Some(form) = w.packed {
        if form.seal.is_some() {
            return CompressResult::Smaller(w.data.clone());
        }
        let mut bytes = BufMut::copy_of(w.data);
        if form.embedded {
            return CompressResult::Embedded(bytes);
        }
        let (len, psize) = (bytes.len(), padded(bytes.len(), limits));
        if psize > len {
            let mut room = BufMut::alloc(psize);
            room[..len].copy_from_slice(&bytes);
            bytes = room;
        }
        return CompressResult::Smaller(fit(bytes, len, psize));
    }
    let (alg, lsize) = (w.props.compression, w.data.len());
    if alg == Compression::Off {
        return CompressResult::No;
    }
    if is_zero(w.data) {
        return CompressResult::Hole;
    }
    if alg == Compression::Empty {
        return CompressResult::No;
    }
    let embed = w.props.embed
        && w.seal.is_none()
        && w.level == 0
        && !matches!(w.object_type, ObjType::DNODE | ObjType::OBJSET);
    let min = limits.0.max(1) as usize;
    let most = compressed_max(alg, lsize, limits);
    if most <= EMBEDDED_MAX && !embed && min >= lsize {
        return CompressResult::No;
    }
    let mut out = BufMut::alloc(most);
    let Some(len) = compress(alg, w.data, &mut out) else { return CompressResult::No };
    if len <= EMBEDDED_MAX && embed {
        out.truncate(len);
        return CompressResult::Embedded(out);
    }
    let psize = padded(len, limits);
    if psize >= lsize {
        return CompressResult::No;
    }
    CompressResult::Smaller(fit(out, len, psize))
}

/// The first `len` bytes, padded with zeros to `psize`, in no more memory than needed,
/// because the cache will hold it.
fn fit(mut out: BufMut, len: usize, psize: usize) -> Buf {
    if out.len() >= psize && out.footprint() - psize <= psize / 8 {
        out.truncate(psize);
    } else {
        let mut small = BufMut::alloc(psize);
        small[..len].copy_from_slice(&out[..len]);
        out = small;
    }
    out[len..].fill(0);
    out.freeze()
}
