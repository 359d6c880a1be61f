//! Block pointers in all their forms (chapter 02 §1-3).
//!
//! # Theory
//! 128 bytes represent one of four things: a [`Hole`], an [`Embedded`] payload, a
//! *redacted* block, or a [`Block`] on disk. Parsing determines which (chapter 02 §2.3)
//! and checks everything that does not need the vdev tree (§2.6). Whether an address
//! lies inside its vdev is checked by the code that has the tree.
//!
//! # Invariants
//! * `parse(encode(bp)) == bp`, for every `bp` that parsed.
//! * A [`Block`] has 1 to 3 valid DVAs, filled from index 0; sizes are multiples
//!   of 512 and at most 16 MiB.

mod relocate;

use std::fmt;

use base::limits::BLOCK_SIZE_MAX;
use base::{Asize, Dva, Error, Lsize, Psize, Result, Txg, VdevId};

use crate::endian::Endian;
use crate::objtype::ObjType;

pub use relocate::{BlockPlace, relocate_pointer};

/// Bytes of a block pointer.
pub const BLKPTR_SIZE: usize = 128;
/// Most bytes that an embedded block pointer carries.
pub const EMBEDDED_MAX: usize = 112;
/// Compression id "off".
pub const COMPRESS_OFF: u8 = 2;
/// Checksum ids from here on are invalid.
const CHECKSUM_FUNCTIONS: u8 = 15;
/// Compression ids from here on are invalid.
const COMPRESS_FUNCTIONS: u8 = 17;
/// Words of an embedded pointer that carry payload, in payload order (§3).
const PAYLOAD_WORDS: [usize; 14] = [0, 1, 2, 3, 4, 5, 7, 8, 9, 11, 12, 13, 14, 15];

/// The fields that every form has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Head {
    /// Type of the object the block belongs to; `NONE` in gang members.
    pub object_type: ObjType,
    /// Indirection level; 0 is data.
    pub level: u8,
    /// Logical size, bytes.
    pub lsize: Lsize,
    /// Txg in which the content last changed; zero for holes that were never written.
    pub birth: Txg,
}

/// A block without content: reads as zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Hole {
    /// Type, level, size and birth; all zero for a hole that was never written.
    pub head: Head,
}

/// A block whose payload is inside the pointer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Embedded {
    /// Type, level, size and birth.
    pub head: Head,
    /// Compression id of the payload.
    pub compression: u8,
    /// Bit 63 of the properties: byte order of the decompressed contents.
    pub endian: Endian,
    payload: [u8; EMBEDDED_MAX],
    psize: u8,
}

impl Embedded {
    /// A little-endian payload of 1 to [`EMBEDDED_MAX`] bytes, compressed by
    /// `compression` (chapter 02 §3). `None` for other lengths, and for logical sizes
    /// that cannot be encoded.
    pub fn new(head: Head, compression: u8, payload: &[u8]) -> Option<Embedded> {
        let psize = u8::try_from(payload.len()).ok().filter(|&n| n > 0)?;
        if !(1..=BLOCK_SIZE_MAX).contains(&head.lsize.0) {
            return None;
        }
        let mut bytes = [0; EMBEDDED_MAX];
        bytes.get_mut(..payload.len())?.copy_from_slice(payload);
        Some(Embedded { head, compression, endian: Endian::Little, payload: bytes, psize })
    }

    /// The payload, compressed by [`Embedded::compression`].
    pub fn payload(&self) -> &[u8] {
        self.payload.get(..usize::from(self.psize)).unwrap_or_default()
    }
}

impl fmt::Debug for Embedded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Embedded({:?}, {} bytes)", self.head, self.psize)
    }
}

/// The meaning of a block's X bit (chapter 02 §2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// Not part of an encrypted dataset.
    None,
    /// Data and its MAC: words 4, 5 and the high half of 11 hold salt and IV.
    Encrypted,
    /// Plain data with a MAC.
    Authenticated,
    /// An indirect block whose last two checksum words are the MAC of the MACs below.
    IndirectMac,
}

/// What a block of an encrypted dataset has besides its content (chapter 08 §A.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seal {
    /// Of the block's key; unused unless the content is encrypted.
    pub salt: [u8; 8],
    /// Likewise.
    pub iv: [u8; 12],
    /// The message authentication code; unused in object sets, which have theirs inside.
    pub mac: [u8; 16],
    /// Byte order of the content.
    pub endian: Endian,
}

impl Seal {
    /// That of a block that has no MAC, or whose MAC is set later.
    pub const NONE: Seal = Seal { salt: [0; 8], iv: [0; 12], mac: [0; 16], endian: Endian::Little };
}

/// A block on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Type, level, size and birth.
    pub head: Head,
    /// Bytes on disk before parity.
    pub psize: Psize,
    /// Compression id (chapter 02 §7).
    pub compression: u8,
    /// Checksum id (chapter 02 §5).
    pub checksum: u8,
    /// Byte order of the contents.
    pub endian: Endian,
    /// Reference-counted in a dedup table.
    pub dedup: bool,
    /// Encryption state.
    pub protection: Protection,
    /// Re-allocated without logical change (2.4+).
    pub rewritten: bool,
    /// Physical birth word: zero means "same as the logical birth".
    pub physical_birth: Txg,
    /// Non-hole children, dnodes or 1 (chapter 02 §2.5).
    pub fill: u64,
    /// Checksum words; of encrypted blocks words 2 and 3 are the MAC.
    pub words: [u64; 4],
    /// Raw DVA words: (size word, offset word); of encrypted blocks the third is (salt, IV).
    raw: [(u64, u64); 3],
    /// High half of word 11 of an encrypted block.
    iv_tail: u32,
    copies: u8,
}

/// A parsed block pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
// Pointers live in short-lived arrays; boxing the large form would cost more than it saves.
#[allow(clippy::large_enum_variant)]
pub enum BlkPtr {
    /// Reads as zeros.
    Hole(Hole),
    /// Payload inside the pointer.
    Embedded(Embedded),
    /// Content removed by a redacted send; reading it is an error.
    Redacted(Head),
    /// On disk.
    Block(Block),
}

impl Default for BlkPtr {
    fn default() -> Self {
        BlkPtr::Hole(Hole::default())
    }
}

fn bits(word: u64, low: u32, count: u32) -> u64 {
    (word >> low) & ((1u64 << count) - 1)
}

fn dva_of((size, place): (u64, u64)) -> Dva {
    Dva {
        vdev: VdevId(bits(size, 32, 24) as u32),
        offset: bits(place, 0, 63) << 9,
        asize: Asize(bits(size, 0, 24) << 9),
        gang: place >> 63 == 1,
    }
}

fn words_of(dva: Dva) -> (u64, u64) {
    (
        (dva.asize.0 >> 9) | u64::from(dva.vdev.0) << 32,
        (dva.offset >> 9) | u64::from(dva.gang) << 63,
    )
}

impl Block {
    /// The addresses of its copies: one to three, the first always valid.
    pub fn dvas(&self) -> impl ExactSizeIterator<Item = Dva> + Clone + '_ {
        self.raw.iter().take(usize::from(self.copies)).map(|&raw| dva_of(raw))
    }

    /// The first address.
    pub fn dva(&self) -> Dva {
        dva_of(self.raw[0])
    }

    /// Whether the addresses hold gang headers.
    pub fn is_gang(&self) -> bool {
        self.dva().gang
    }

    /// Txg in which the referenced bytes were written (chapter 02 §2.5).
    pub fn effective_physical_birth(&self) -> Txg {
        if self.physical_birth == Txg::ZERO { self.head.birth } else { self.physical_birth }
    }

    /// Salt (8 bytes), IV (12 bytes) and MAC (16 bytes) of an encrypted block, as stored words.
    pub fn crypt_params(&self) -> Option<([u64; 2], u32, [u64; 2])> {
        (self.protection == Protection::Encrypted)
            .then(|| ([self.raw[2].0, self.raw[2].1], self.iv_tail, [self.words[2], self.words[3]]))
    }

    /// Salt, IV and MAC as byte strings; salt and IV are zero for blocks that are only
    /// authenticated.
    pub fn seal(&self) -> Seal {
        let bytes = |word: u64| match self.endian {
            Endian::Little => word.to_le_bytes(),
            Endian::Big => word.to_be_bytes(),
        };
        let mut of = Seal { endian: self.endian, ..Seal::NONE };
        of.mac[..8].copy_from_slice(&bytes(self.words[2]));
        of.mac[8..].copy_from_slice(&bytes(self.words[3]));
        if self.protection == Protection::Encrypted {
            of.salt = bytes(self.raw[2].0);
            of.iv[..8].copy_from_slice(&bytes(self.raw[2].1));
            of.iv[8..].copy_from_slice(&match self.endian {
                Endian::Little => self.iv_tail.to_le_bytes(),
                Endian::Big => self.iv_tail.to_be_bytes(),
            });
        }
        of
    }

    /// Makes it a block of an encrypted dataset, of the class that its type and level have
    /// (§2.3). The checksum words are computed before: those of an object set stay whole, of all
    /// others the last two become the MAC.
    #[must_use]
    pub fn sealed(mut self, seal: &Seal) -> Block {
        let word = |at: &[u8]| seal.endian.u64(at, 0).unwrap_or_default();
        self.protection = match self.head.level {
            0 if self.head.object_type.is_encrypted() => Protection::Encrypted,
            0 => Protection::Authenticated,
            _ => Protection::IndirectMac,
        };
        self.endian = seal.endian;
        if self.protection == Protection::Encrypted {
            self.raw[2] = (word(&seal.salt), word(&seal.iv[..8]));
            self.iv_tail = seal.endian.u32(&seal.iv, 8).unwrap_or_default();
            self.copies = self.copies.min(2);
        }
        if self.head.object_type != ObjType::OBJSET {
            (self.words[2], self.words[3]) = (word(&seal.mac[..8]), word(&seal.mac[8..]));
        }
        self
    }
}

impl BlkPtr {
    /// Parses a pointer stored in byte order `endian`.
    ///
    /// # Errors
    /// `Corrupt`, by the rules of chapter 02 §2.6.
    pub fn parse(bytes: &[u8; BLKPTR_SIZE], endian: Endian) -> Result<BlkPtr> {
        let mut w = [0u64; 16];
        for (word, chunk) in w.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = endian.u64(chunk, 0).unwrap_or_default();
        }
        Self::from_words(&w)
    }

    /// The pointer at `index` in an array of pointers.
    ///
    /// # Errors
    /// `Corrupt` when the array is shorter, or as [`BlkPtr::parse`].
    pub fn parse_nth(bytes: &[u8], index: usize, endian: Endian) -> Result<BlkPtr> {
        let raw = index
            .checked_mul(BLKPTR_SIZE)
            .and_then(|off| bytes.get(off..))
            .and_then(|b| b.first_chunk())
            .ok_or_else(|| Error::corrupt("block pointer outside its block"))?;
        Self::parse(raw, endian)
    }

    fn from_words(w: &[u64; 16]) -> Result<BlkPtr> {
        let prop = w[6];
        let head = Head {
            object_type: ObjType(bits(prop, 48, 8) as u8),
            level: bits(prop, 56, 5) as u8,
            lsize: Lsize((bits(prop, 0, 16) + 1) << 9),
            birth: Txg(w[10]),
        };
        let embedded = bits(prop, 39, 1) == 1;
        if !embedded && w[0] == 0 && w[1] == 0 {
            let never = prop == 0 && w[10] == 0;
            return Ok(BlkPtr::Hole(Hole { head: if never { Head::default() } else { head } }));
        }
        let compression = bits(prop, 32, 7) as u8;
        let bad = |what: &str| Err(Error::corrupt(format!("invalid block pointer: {what}")));
        if !head.object_type.is_valid() {
            return bad("object type");
        }
        if compression >= COMPRESS_FUNCTIONS {
            return bad("compression");
        }
        let endian = if prop >> 63 == 1 { Endian::Little } else { Endian::Big };
        if embedded {
            return Self::parse_embedded(w, head, compression, endian);
        }
        if head.lsize.0 > BLOCK_SIZE_MAX {
            return bad("logical size");
        }
        let checksum = bits(prop, 40, 8) as u8;
        if checksum >= CHECKSUM_FUNCTIONS {
            return bad("checksum");
        }
        let psize = Psize((bits(prop, 16, 16) + 1) << 9);
        if psize.0 > BLOCK_SIZE_MAX {
            return bad("physical size");
        }
        if compression == COMPRESS_OFF && psize.0 != head.lsize.0 {
            return bad("uncompressed, yet of two sizes");
        }
        let protection = match (bits(prop, 61, 1), head.level) {
            (0, _) => Protection::None,
            (_, 0) if head.object_type.is_encrypted() => Protection::Encrypted,
            (_, 0) => Protection::Authenticated,
            _ => Protection::IndirectMac,
        };
        let crypt = protection == Protection::Encrypted;
        let raw = [(w[0], w[1]), (w[2], w[3]), (w[4], w[5])];
        let usable = if crypt { 2 } else { 3 };
        let copies = raw.iter().take(usable).take_while(|r| bits(r.0, 0, 24) != 0).count();
        if copies == 0 {
            return bad("no address");
        }
        let (fill, iv_tail) =
            if crypt { (bits(w[11], 0, 32), (w[11] >> 32) as u32) } else { (w[11], 0) };
        Ok(BlkPtr::Block(Block {
            head,
            psize,
            compression,
            checksum,
            endian,
            dedup: bits(prop, 62, 1) == 1,
            protection,
            rewritten: w[7] >> 63 == 1,
            physical_birth: Txg(w[9]),
            fill,
            words: [w[12], w[13], w[14], w[15]],
            raw,
            iv_tail,
            copies: copies as u8,
        }))
    }

    fn parse_embedded(
        w: &[u64; 16],
        mut head: Head,
        compression: u8,
        endian: Endian,
    ) -> Result<BlkPtr> {
        let prop = w[6];
        head.lsize = Lsize(bits(prop, 0, 25) + 1);
        match bits(prop, 40, 8) {
            0 => {}
            2 => return Ok(BlkPtr::Redacted(head)),
            _ => return Err(Error::corrupt("invalid block pointer: embedded type")),
        }
        let psize = bits(prop, 25, 7) as usize + 1;
        if psize > EMBEDDED_MAX {
            return Err(Error::corrupt("invalid block pointer: embedded size"));
        }
        if head.lsize.0 > BLOCK_SIZE_MAX {
            return Err(Error::corrupt("invalid block pointer: logical size"));
        }
        let mut payload = [0; EMBEDDED_MAX];
        for (chunk, &i) in payload.chunks_exact_mut(8).zip(&PAYLOAD_WORDS) {
            chunk.copy_from_slice(&w[i].to_le_bytes());
        }
        Ok(BlkPtr::Embedded(Embedded { head, compression, endian, payload, psize: psize as u8 }))
    }

    /// The pointer as Cenote writes it: little-endian. `None` for a size that no pointer can
    /// have.
    pub fn encode(&self) -> Option<[u8; BLKPTR_SIZE]> {
        let mut w = [0u64; 16];
        let head = self.head();
        let tail = |e: Endian| {
            u64::from(head.object_type.0) << 48
                | u64::from(head.level) << 56
                | u64::from(e == Endian::Little) << 63
        };
        w[10] = head.birth.0;
        match self {
            BlkPtr::Hole(_) if head == Head::default() => {}
            BlkPtr::Hole(_) => {
                w[6] = tail(Endian::Big) | ((head.lsize.0 >> 9).wrapping_sub(1) & 0xffff);
            }
            BlkPtr::Redacted(_) => {
                let lsize = head.lsize.0.checked_sub(1).filter(|n| *n < BLOCK_SIZE_MAX)?;
                w[6] = tail(Endian::Little) | lsize | 1 << 39 | 2 << 40;
            }
            BlkPtr::Embedded(e) => {
                for (chunk, &i) in e.payload.chunks_exact(8).zip(&PAYLOAD_WORDS) {
                    w[i] = Endian::Little.u64(chunk, 0).unwrap_or_default();
                }
                w[6] = tail(e.endian)
                    | (head.lsize.0 - 1)
                    | u64::from(e.psize - 1) << 25
                    | u64::from(e.compression) << 32
                    | 1 << 39;
            }
            BlkPtr::Block(b) => {
                for (i, raw) in b.raw.iter().enumerate() {
                    (w[2 * i], w[2 * i + 1]) = *raw;
                }
                w[6] = tail(b.endian)
                    | ((head.lsize.0 >> 9) - 1)
                    | ((b.psize.0 >> 9) - 1) << 16
                    | u64::from(b.compression) << 32
                    | u64::from(b.checksum) << 40
                    | u64::from(b.protection != Protection::None) << 61
                    | u64::from(b.dedup) << 62;
                w[7] = u64::from(b.rewritten) << 63;
                w[9] = b.physical_birth.0;
                w[11] = b.fill;
                if b.protection == Protection::Encrypted {
                    w[11] |= u64::from(b.iv_tail) << 32;
                }
                w[12..].copy_from_slice(&b.words);
            }
        }
        let mut out = [0; BLKPTR_SIZE];
        for (chunk, word) in out.chunks_exact_mut(8).zip(w) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        Some(out)
    }

    /// Type, level, size and birth.
    pub fn head(&self) -> Head {
        match self {
            BlkPtr::Hole(h) => h.head,
            BlkPtr::Embedded(e) => e.head,
            BlkPtr::Redacted(h) => *h,
            BlkPtr::Block(b) => b.head,
        }
    }

    /// The block on disk, if it is one.
    pub fn as_block(&self) -> Option<&Block> {
        match self {
            BlkPtr::Block(b) => Some(b),
            _ => None,
        }
    }

    /// Whether it reads as zeros.
    pub fn is_hole(&self) -> bool {
        matches!(self, BlkPtr::Hole(_))
    }

    /// Logical birth.
    pub fn birth(&self) -> Txg {
        self.head().birth
    }

    /// The birth used in all comparisons of txgs (chapter 04 §0): the physical one for a
    /// block that was moved without logical change, else the logical one.
    pub fn allocation_birth(&self) -> Txg {
        match self {
            BlkPtr::Block(block) if block.rewritten => block.effective_physical_birth(),
            _ => self.birth(),
        }
    }

    /// The fill count of this child in its parent (chapter 03 §3.5).
    pub fn fill(&self) -> u64 {
        match self {
            BlkPtr::Hole(_) => 0,
            BlkPtr::Embedded(_) | BlkPtr::Redacted(_) => 1,
            BlkPtr::Block(b) => b.fill,
        }
    }

    /// Byte order of the contents; holes are all zero in either.
    pub fn endian(&self) -> Endian {
        match self {
            BlkPtr::Embedded(e) => e.endian,
            BlkPtr::Block(b) => b.endian,
            BlkPtr::Hole(_) | BlkPtr::Redacted(_) => Endian::Little,
        }
    }
}

/// Constructors of new pointers: for gang members and blocks being written.
impl Block {
    /// A plain little-endian block at `dvas` (one to three) whose physical birth equals
    /// its logical birth.
    pub fn new(head: Head, psize: Psize, compression: u8, dvas: &[Dva]) -> Block {
        Block {
            head,
            psize,
            compression,
            checksum: 0,
            endian: Endian::Little,
            dedup: false,
            protection: Protection::None,
            rewritten: false,
            physical_birth: Txg::ZERO,
            fill: 1,
            words: [0; 4],
            raw: [(0, 0); 3],
            iv_tail: 0,
            copies: 0,
        }
        .with_dvas(dvas)
    }

    /// A block at `dvas` (one to three, of encrypted content one or two); everything else as in
    /// `self`.
    #[must_use]
    pub fn with_dvas(mut self, dvas: &[Dva]) -> Block {
        let most = if self.protection == Protection::Encrypted { 2 } else { 3 };
        self.raw[..most].fill((0, 0));
        for (raw, dva) in self.raw[..most].iter_mut().zip(dvas) {
            *raw = words_of(*dva);
        }
        self.copies = dvas.len().min(most) as u8;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hex(s: &str) -> Vec<u8> {
        let digits: Vec<u8> =
            s.bytes().filter_map(|b| (b as char).to_digit(16)).map(|d| d as u8).collect();
        digits.chunks(2).map(|d| d[0] << 4 | d[1]).collect()
    }

    /// Chapter 01 §3, the root block pointer at 0x28.
    const ROOT_BP: &str = "
        02000000 04000000 d8020a00 00000000 02000000 03000000 d8021200 00000000
        02000000 04000000 06010c00 00000000 07000000 0f070b80 00000000 00000000
        00000000 00000000 00000000 00000000 c3010000 00000000 9c010000 00000000
        1e2fd083 0c000000 a9993e42 08050000 ddac8074 e4070100 4e08cff8 54ba2400";

    /// Chapter 02 §2.7.
    const EMBEDDED: &str = "
        00000017 21030001 00418079 73010900 0f0200ff d9500000 00000000 00000000
        00000000 00000000 00000000 00000000 ff010034 8f000d80 00000000 00000000
        00000000 00000000 00000000 00000000 70000000 00000000 00000000 00000000
        00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000";

    #[test]
    fn parses_the_root_block_pointer_of_the_specification() {
        let raw: [u8; 128] = hex(ROOT_BP).try_into().unwrap();
        let bp = BlkPtr::parse(&raw, Endian::Little).unwrap();
        let b = bp.as_block().unwrap();
        assert_eq!(b.head.object_type, ObjType::OBJSET);
        assert_eq!((b.head.lsize, b.psize), (Lsize(4096), Psize(512)));
        assert_eq!((b.compression, b.checksum, b.endian), (15, 7, Endian::Little));
        assert_eq!((b.head.birth, b.fill), (Txg(451), 412));
        let dvas: Vec<String> = b.dvas().map(|d| d.to_string()).collect();
        assert_eq!(dvas, ["<4:1405b000:400>", "<3:2405b000:400>", "<4:18020c00:400>"]);
        assert_eq!(b.words[0], 0x0c_83d0_2f1e);
        assert_eq!(bp.encode().unwrap(), raw);

        let mut swapped = raw;
        swapped.chunks_exact_mut(8).for_each(<[u8]>::reverse);
        assert_eq!(BlkPtr::parse(&swapped, Endian::Big).unwrap(), bp);
    }

    #[test]
    fn parses_the_embedded_block_pointer_of_the_specification() {
        let raw: [u8; 128] = hex(EMBEDDED).try_into().unwrap();
        let bp = BlkPtr::parse(&raw, Endian::Little).unwrap();
        let BlkPtr::Embedded(e) = bp else { panic!("{bp:?}") };
        assert_eq!((e.head.lsize, e.payload().len(), e.compression), (Lsize(512), 27, 15));
        assert_eq!((e.head.object_type, e.head.birth), (ObjType(13), Txg(112)));
        assert_eq!(
            e.payload(),
            hex("00000017 21 0300 0100 41 80797301 0900 0f 0200 ffd9 50 0000000000")
        );
        assert_eq!(bp.encode().unwrap(), raw);
        assert_eq!(Embedded::new(e.head, 15, e.payload()), Some(e));
        assert_eq!(Embedded::new(e.head, 15, &[]), None);
        assert!(Embedded::new(e.head, 15, &[1; EMBEDDED_MAX]).is_some());
        assert_eq!(Embedded::new(e.head, 15, &[1; EMBEDDED_MAX + 1]), None);
        let head = Head { lsize: Lsize(0), ..e.head };
        assert_eq!(Embedded::new(head, 15, &[1]), None);
    }

    #[test]
    fn holes_keep_their_birth() {
        assert_eq!(BlkPtr::parse(&[0; 128], Endian::Little).unwrap(), BlkPtr::default());
        assert_eq!(BlkPtr::default().encode().unwrap(), [0; 128]);
        let mut raw = [0; 128];
        raw[0x30] = 7;
        raw[0x36] = 26;
        raw[0x50] = 15;
        let bp = BlkPtr::parse(&raw, Endian::Little).unwrap();
        assert!(bp.is_hole());
        assert_eq!((bp.birth(), bp.head().lsize), (Txg(15), Lsize(4096)));
        assert_eq!(bp.encode().unwrap(), raw);
    }

    #[test]
    fn a_new_block_is_read_as_it_was_made() {
        let head = Head {
            object_type: ObjType::PLAIN_FILE_CONTENTS,
            level: 0,
            lsize: Lsize(131_072),
            birth: Txg(4),
        };
        let dva = |offset| Dva { vdev: VdevId(3), offset, asize: Asize(8192), gang: false };
        for dvas in [vec![dva(512)], vec![dva(1 << 40), dva(0)], vec![dva(0), dva(8), dva(4096)]] {
            let dvas: Vec<Dva> =
                dvas.iter().map(|d| Dva { offset: d.offset / 512 * 512, ..*d }).collect();
            let mut block = Block::new(head, Psize(4608), 15, &dvas);
            (block.checksum, block.words) = (7, [1, 2, 3, 4]);
            let bp = BlkPtr::Block(block);
            assert_eq!(BlkPtr::parse(&bp.encode().unwrap(), Endian::Little).unwrap(), bp);
            assert_eq!(block.dvas().collect::<Vec<_>>(), dvas);
        }
    }

    #[test]
    fn salt_iv_and_mac_of_the_specification() {
        // Chapter 08 §A.7.
        let raw: [u8; 128] = hex("
            08000000000000005801000000000000 00000000000000000000000000000000
            5551e19437f72a8a b6d663c6095196c6 0f0007000f0717a0
            00000000000000000000000000000000
            0000000000000000 0600000000000000 010000004b478907
            95a2f8d0c2635705 6ddd567b9810135b 4a75fff048628a74 cb7d469f4a5df544")
        .try_into()
        .unwrap();
        let bp = BlkPtr::parse(&raw, Endian::Little).unwrap();
        let block = *bp.as_block().unwrap();
        let seal = block.seal();
        assert_eq!(seal.salt[..], hex("5551e19437f72a8a"));
        assert_eq!(seal.iv[..], hex("b6d663c6095196c64b478907"));
        assert_eq!(seal.mac[..], hex("4a75fff048628a74cb7d469f4a5df544"));
        let dvas: Vec<Dva> = block.dvas().collect();
        let mut made = Block::new(block.head, block.psize, block.compression, &[]);
        (made.checksum, made.words) = (block.checksum, [block.words[0], block.words[1], 1, 2]);
        for endian in [Endian::Little, Endian::Big] {
            let seal = Seal { endian, ..seal };
            let bp = BlkPtr::Block(made.sealed(&seal).with_dvas(&dvas));
            let again = BlkPtr::parse(&bp.encode().unwrap(), Endian::Little).unwrap();
            assert_eq!(again, bp);
            assert_eq!(again.as_block().unwrap().seal(), seal);
            assert_eq!(bp.encode().unwrap() == raw, endian == Endian::Little);
        }
        // Object sets keep their checksum; indirect blocks have three addresses.
        let root = Head { object_type: ObjType::OBJSET, ..block.head };
        let made = Block { head: root, words: [1, 2, 3, 4], ..made }.sealed(&seal);
        assert_eq!((made.words, made.protection), ([1, 2, 3, 4], Protection::Authenticated));
        let head = Head { level: 1, ..block.head };
        let three = [dvas[0]; 3];
        let made = Block { head, ..made }.sealed(&seal).with_dvas(&three);
        assert_eq!((made.protection, made.dvas().len()), (Protection::IndirectMac, 3));
    }

    proptest! {
        #[test]
        fn whatever_parses_survives_a_round_trip(
            mut words in prop::array::uniform16(any::<u64>()), easy in any::<bool>(),
        ) {
            if easy {
                // Most random properties are refused; generate some that are not.
                words[6] &= 0xf9ff_0e8f_7fff_7fff;
                words[6] &= !(1 << 52 | 1 << 53);
            }
            let mut raw = [0; 128];
            for (chunk, w) in raw.chunks_exact_mut(8).zip(words) {
                chunk.copy_from_slice(&w.to_le_bytes());
            }
            if let Ok(bp) = BlkPtr::parse(&raw, Endian::Little)
                && let Some(again) = bp.encode()
            {
                prop_assert_eq!(BlkPtr::parse(&again, Endian::Little).unwrap(), bp);
            }
        }
    }
}
