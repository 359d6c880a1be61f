//! Records: their fields, as chapter 07 §2 to §5 lays them out, and their limits (§13.3).

use base::{Error, ErrorKind, Result};
use codec::compress::Compression;
use ondisk::endian::Endian;

/// Bytes of a record's header.
pub const HEADER_SIZE: usize = 312;
/// Offset of the running checksum in every header but BEGIN's.
pub(crate) const CHECKSUM_AT: usize = 280;
/// The value of [`Begin::magic`].
pub(crate) const MAGIC: u64 = 0x2_F5BA_CBAC;
/// [`Free::length`] of a range that ends with its object.
pub const TO_THE_END: u64 = u64::MAX;

/// The largest block.
pub(crate) const BLOCK_MAX: u64 = 16 << 20;
/// The largest block without LARGE_BLOCKS.
pub(crate) const OLD_BLOCK_MAX: u64 = 128 << 10;
/// The smallest block.
const BLOCK_MIN: u64 = 512;
/// The largest payload of a BEGIN, bytes (§3.1).
const BEGIN_PAYLOAD_MAX: u64 = 64 << 20;
/// The largest bonus area: a dnode of 32 slots without its core and one pointer.
const BONUS_MAX: u64 = 32 * 512 - 64 - 128;
/// Bytes of an embedded block pointer that hold data.
const EMBEDDED_MAX: u64 = 112;
/// Dnodes of a block.
const DNODES: u64 = 32;
/// One past the last checksum function (chapter 02 §5).
const CHECKSUMS: u8 = 15;
/// The last compression function (chapter 02 §7).
const ZSTD: u8 = 16;
/// One past the largest object number.
const OBJECTS: u64 = 1 << 48;

/// A value in a header.
trait Field: Sized {
    fn get(endian: Endian, header: &[u8; HEADER_SIZE], at: usize) -> Self;
    fn put(&self, endian: Endian, header: &mut [u8; HEADER_SIZE], at: usize);
}

fn array<const N: usize>(header: &[u8; HEADER_SIZE], at: usize) -> [u8; N] {
    header.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
}

fn store(header: &mut [u8; HEADER_SIZE], at: usize, bytes: &[u8]) {
    if let Some(to) = header.get_mut(at..at + bytes.len()) {
        to.copy_from_slice(bytes);
    }
}

macro_rules! integer_fields {
    ($($ty:ty),*) => {$(
        impl Field for $ty {
            fn get(endian: Endian, header: &[u8; HEADER_SIZE], at: usize) -> Self {
                match endian {
                    Endian::Little => <$ty>::from_le_bytes(array(header, at)),
                    Endian::Big => <$ty>::from_be_bytes(array(header, at)),
                }
            }

            fn put(&self, endian: Endian, header: &mut [u8; HEADER_SIZE], at: usize) {
                match endian {
                    Endian::Little => store(header, at, &self.to_le_bytes()),
                    Endian::Big => store(header, at, &self.to_be_bytes()),
                }
            }
        }
    )*};
}

integer_fields!(u8, u32, u64);

/// A byte string, which has no byte order.
impl<const N: usize> Field for [u8; N] {
    fn get(_: Endian, header: &[u8; HEADER_SIZE], at: usize) -> Self {
        array(header, at)
    }

    fn put(&self, _: Endian, header: &mut [u8; HEADER_SIZE], at: usize) {
        store(header, at, self);
    }
}

impl Field for [u64; 4] {
    fn get(endian: Endian, header: &[u8; HEADER_SIZE], at: usize) -> Self {
        [0, 8, 16, 24].map(|i| u64::get(endian, header, at + i))
    }

    fn put(&self, endian: Endian, header: &mut [u8; HEADER_SIZE], at: usize) {
        self.iter().enumerate().for_each(|(i, word)| word.put(endian, header, at + 8 * i));
    }
}

/// Declares a record's struct together with the places of its fields.
macro_rules! layout {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $ty:ty, $at:literal;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $ty,)*
        }

        impl $name {
            fn parse(endian: Endian, header: &[u8; HEADER_SIZE]) -> $name {
                $name { $($field: Field::get(endian, header, $at),)* }
            }

            fn encode(&self, endian: Endian, header: &mut [u8; HEADER_SIZE]) {
                $(Field::put(&self.$field, endian, header, $at);)*
            }
        }

        impl Default for $name {
            /// All zero.
            fn default() -> $name {
                $name::parse(Endian::Little, &[0; HEADER_SIZE])
            }
        }
    };
}

layout! {
    /// BEGIN (§3).
    Begin {
        /// Bytes of the payload, a packed list.
        payload_len: u32, 4;
        /// 0x2F5BACBAC; its byte order is the stream's.
        magic: u64, 8;
        /// Kind of header and features; see [`Begin::kind`], [`Begin::features`].
        version_info: u64, 16;
        /// When the snapshot was taken, seconds since 1970.
        creation_time: u64, 24;
        /// Type of the object set: 2 file system, 3 volume.
        objset_type: u32, 32;
        /// See [`begin_flags`].
        flags: u32, 36;
        /// Guid of the snapshot.
        to_guid: u64, 40;
        /// Guid of the snapshot that the stream is incremental to, or 0.
        from_guid: u64, 48;
        /// Name of the snapshot, NUL-terminated; see [`Begin::to_name`].
        name: [u8; 256], 56;
    }
}

layout! {
    /// OBJECT: an object and its bonus buffer (§4).
    Object {
        /// Its number.
        object: u64, 8;
        /// Type of its content.
        object_type: u32, 16;
        /// Type of its bonus buffer.
        bonus_type: u32, 20;
        /// Bytes of a data block.
        block_size: u32, 24;
        /// Bytes of the bonus buffer that are in use.
        bonus_len: u32, 28;
        /// Checksum function, 0 inherits.
        checksum: u8, 32;
        /// Compression function, 0 inherits.
        compress: u8, 33;
        /// Dnode slots; 0 means 1.
        slots: u8, 34;
        /// See [`record_flags`].
        flags: u8, 35;
        /// Raw streams: bytes of the bonus area.
        raw_bonus_len: u32, 36;
        /// Guid of the snapshot.
        to_guid: u64, 40;
        /// Raw streams: log2 of an indirect block's size.
        indirect_shift: u8, 48;
        /// Raw streams: levels of the block tree.
        levels: u8, 49;
        /// Raw streams: block pointers in the dnode.
        pointers: u8, 50;
        /// Raw streams: the last block.
        max_block: u64, 56;
    }
}

layout! {
    /// FREEOBJECTS: numbers without an object (§4).
    FreeObjects {
        /// The first number.
        first: u64, 8;
        /// How many.
        count: u64, 16;
        /// Guid of the snapshot.
        to_guid: u64, 24;
    }
}

layout! {
    /// WRITE: one block (§4).
    Write {
        /// Number of the object.
        object: u64, 8;
        /// Type of its content.
        object_type: u32, 16;
        /// Byte offset in the object.
        offset: u64, 24;
        /// Bytes of the block.
        logical_size: u64, 32;
        /// Guid of the snapshot.
        to_guid: u64, 40;
        /// Checksum function of the sender's block.
        checksum_type: u8, 48;
        /// See [`record_flags`].
        flags: u8, 49;
        /// Compression function of the payload, 0 for plain bytes.
        compression: u8, 50;
        /// The checksum of the sender's block pointer, or 0.
        key_checksum: [u64; 4], 56;
        /// Sizes, compression and encryption in the sender's block pointer, or 0.
        key_prop: u64, 88;
        /// Bytes of a compressed payload, else 0.
        compressed_size: u64, 96;
        /// Raw streams.
        salt: [u8; 8], 104;
        /// Raw streams.
        iv: [u8; 12], 112;
        /// Raw streams.
        mac: [u8; 16], 124;
    }
}

layout! {
    /// FREE, a hole, and REDACT, a range that is withheld (§4).
    Free {
        /// Number of the object.
        object: u64, 8;
        /// Byte offset in the object.
        offset: u64, 16;
        /// Bytes, or [`TO_THE_END`].
        length: u64, 24;
        /// Guid of the snapshot.
        to_guid: u64, 32;
    }
}

layout! {
    /// END (§4); that behind a package is all zero.
    End {
        /// The sum of what precedes this record.
        checksum: [u64; 4], 8;
        /// Guid of the snapshot.
        to_guid: u64, 40;
    }
}

layout! {
    /// WRITE_BYREF: a block that an earlier WRITE carried (§4, obsolete).
    WriteByRef {
        /// Number of the object.
        object: u64, 8;
        /// Byte offset in the object.
        offset: u64, 16;
        /// Bytes of the block.
        length: u64, 24;
        /// Guid of the snapshot.
        to_guid: u64, 32;
        /// Guid of the snapshot in whose substream the WRITE is.
        ref_guid: u64, 40;
        /// Object of that WRITE.
        ref_object: u64, 48;
        /// Offset of that WRITE.
        ref_offset: u64, 56;
        /// Checksum function of the block.
        checksum_type: u8, 64;
        /// See [`record_flags`].
        flags: u8, 65;
        /// Checksum of the block.
        key_checksum: [u64; 4], 72;
        /// Sizes and compression.
        key_prop: u64, 104;
    }
}

layout! {
    /// SPILL: the content of a spill block (§4).
    Spill {
        /// Number of the object.
        object: u64, 8;
        /// Bytes of the block.
        length: u64, 16;
        /// Guid of the snapshot.
        to_guid: u64, 24;
        /// See [`record_flags`].
        flags: u8, 32;
        /// Raw streams: compression function.
        compression: u8, 33;
        /// Raw streams: bytes of the payload.
        compressed_size: u64, 40;
        /// Raw streams.
        salt: [u8; 8], 48;
        /// Raw streams.
        iv: [u8; 12], 56;
        /// Raw streams.
        mac: [u8; 16], 68;
        /// Ignored.
        object_type: u32, 84;
    }
}

layout! {
    /// WRITE_EMBEDDED: a block inside a block pointer (§4).
    WriteEmbedded {
        /// Number of the object.
        object: u64, 8;
        /// Byte offset in the object.
        offset: u64, 16;
        /// Bytes of a block of the object.
        length: u64, 24;
        /// Guid of the snapshot.
        to_guid: u64, 32;
        /// Compression function of the payload.
        compression: u8, 40;
        /// Kind of embedding; 0 is data.
        embedded_type: u8, 41;
        /// Bytes after decompression.
        logical_size: u32, 48;
        /// Bytes of the payload, without its padding.
        physical_size: u32, 52;
    }
}

layout! {
    /// OBJECT_RANGE: encryption parameters of one block of dnodes (§4, raw streams).
    ObjectRange {
        /// The first object of the block.
        first: u64, 8;
        /// Slots of the block, 32.
        slots: u64, 16;
        /// Guid of the snapshot.
        to_guid: u64, 24;
        /// Of the block.
        salt: [u8; 8], 32;
        /// Of the block.
        iv: [u8; 12], 40;
        /// Of the block.
        mac: [u8; 16], 52;
        /// See [`record_flags`].
        flags: u8, 68;
    }
}

/// Bits of [`Begin::flags`] (§3).
pub mod begin_flags {
    /// The stream is incremental to a snapshot of another dataset: its target is a clone.
    pub const CLONE: u32 = 1;
    /// Names of the dataset are looked up without regard to case.
    pub const CI_DATA: u32 = 2;
    /// All FREE and FREEOBJECTS records are there, so it can be received as a clone.
    pub const FREE_RECORDS: u32 = 4;
    /// [`super::record_flags::OBJECT_SPILL`] and `SPILL_UNMODIFIED` have a meaning.
    pub const SPILL_BLOCK: u32 = 8;
}

/// Bits of the `flags` of other records (§4.1).
pub mod record_flags {
    /// WRITE: the checksum function is collision resistant.
    pub const CHECKSUM_DEDUP: u8 = 1;
    /// WRITE, SPILL, OBJECT_RANGE: the payload's byte order is not the stream's.
    pub const RAW_BYTESWAP: u8 = 2;
    /// OBJECT: the object has a spill block.
    pub const OBJECT_SPILL: u8 = 4;
    /// SPILL: the block is as in the snapshot to which the stream is incremental.
    pub const SPILL_UNMODIFIED: u8 = 4;
}

/// The two kinds of BEGIN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderKind {
    /// One snapshot follows.
    Substream,
    /// A list of datasets, and their substreams.
    Package,
}

/// Feature flags of a stream (§3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features(pub u64);

impl Features {
    /// WRITE_BYREF records; obsolete.
    pub const DEDUP: Features = Features(1);
    /// Checksums for [`Features::DEDUP`]; obsolete.
    pub const DEDUP_PROPS: Features = Features(2);
    /// Spill blocks hold system attributes.
    pub const SA_SPILL: Features = Features(1 << 2);
    /// WRITE_EMBEDDED records.
    pub const EMBED_DATA: Features = Features(1 << 16);
    /// lz4 payloads.
    pub const LZ4: Features = Features(1 << 17);
    /// Blocks above 128 KiB.
    pub const LARGE_BLOCKS: Features = Features(1 << 19);
    /// A resumed stream.
    pub const RESUMING: Features = Features(1 << 20);
    /// REDACT records.
    pub const REDACTED: Features = Features(1 << 21);
    /// Compressed payloads.
    pub const COMPRESSED: Features = Features(1 << 22);
    /// Dnodes of several slots.
    pub const LARGE_DNODE: Features = Features(1 << 23);
    /// Encrypted payloads.
    pub const RAW: Features = Features(1 << 24);
    /// zstd payloads.
    pub const ZSTD: Features = Features(1 << 25);
    /// A package that lists holds.
    pub const HOLDS: Features = Features(1 << 26);
    /// Never set today.
    pub const SWITCH_TO_LARGE_BLOCKS: Features = Features(1 << 27);
    /// Names of up to 1,023 bytes.
    pub const LONGNAME: Features = Features(1 << 28);
    /// Micro ZAPs above 128 KiB.
    pub const LARGE_MICROZAP: Features = Features(1 << 29);
    /// What a receiver accepts.
    pub const ACCEPTED: Features = Features((1 << 2) | (0b11 << 16) | (0x7FF << 19));

    /// Whether all of `other` are set.
    pub fn has(self, other: Features) -> bool {
        self.0 & other.0 == other.0
    }

    /// Both.
    #[must_use]
    pub fn with(self, other: Features) -> Features {
        Features(self.0 | other.0)
    }

    /// `other` if `condition` holds, and these.
    #[must_use]
    pub fn with_if(self, other: Features, condition: bool) -> Features {
        if condition { self.with(other) } else { self }
    }

    /// Whether payloads may have this compression function.
    pub(crate) fn allows(self, compression: u8) -> bool {
        match Compression::from_id(compression) {
            None => false,
            Some(Compression::Zstd(_)) => self.has(Features::ZSTD),
            Some(Compression::Lz4) => self.has(Features::LZ4),
            Some(_) => true,
        }
    }
}

impl Begin {
    /// A substream's or a package's.
    ///
    /// # Errors
    /// `NameTooLong` above 255 bytes.
    pub fn new(kind: HeaderKind, features: Features, to_name: &str) -> Result<Begin> {
        let mut name = [0; 256];
        match name.get_mut(..to_name.len()) {
            Some(to) if to_name.len() < 256 => to.copy_from_slice(to_name.as_bytes()),
            _ => return Err(Error::new(ErrorKind::NameTooLong, "the snapshot's name is too long")),
        }
        let kind = match kind {
            HeaderKind::Substream => 1,
            HeaderKind::Package => 2,
        };
        let version_info = kind | features.0 << 2;
        Ok(Begin { magic: MAGIC, version_info, name, ..Begin::default() })
    }

    /// Its kind.
    ///
    /// # Errors
    /// `Corrupt` for a kind that does not exist.
    pub fn kind(&self) -> Result<HeaderKind> {
        match self.version_info & 3 {
            1 => Ok(HeaderKind::Substream),
            2 => Ok(HeaderKind::Package),
            kind => Err(Error::corrupt(format!("a stream's header is of unknown kind {kind}"))),
        }
    }

    /// Its features.
    pub fn features(&self) -> Features {
        Features(self.version_info >> 2 & ((1 << 56) - 1))
    }

    /// The snapshot's name.
    ///
    /// # Errors
    /// `Corrupt` for a name without an end, or that is not UTF-8.
    pub fn to_name(&self) -> Result<&str> {
        let end = self.name.iter().position(|&b| b == 0);
        let name = end.and_then(|end| self.name.get(..end));
        name.and_then(|name| std::str::from_utf8(name).ok())
            .ok_or_else(|| Error::corrupt("the snapshot's name in the stream is no name"))
    }
}

/// A record's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each has the documentation of its struct")]
pub enum StreamRecord {
    Begin(Begin),
    Object(Object),
    FreeObjects(FreeObjects),
    Write(Write),
    Free(Free),
    End(End),
    WriteByRef(WriteByRef),
    Spill(Spill),
    WriteEmbedded(WriteEmbedded),
    ObjectRange(ObjectRange),
    Redact(Free),
}

impl StreamRecord {
    /// Number of types.
    pub(crate) const TYPES: usize = 11;

    /// Its `drr_type` (§2).
    pub fn type_id(&self) -> u32 {
        match self {
            StreamRecord::Begin(_) => 0,
            StreamRecord::Object(_) => 1,
            StreamRecord::FreeObjects(_) => 2,
            StreamRecord::Write(_) => 3,
            StreamRecord::Free(_) => 4,
            StreamRecord::End(_) => 5,
            StreamRecord::WriteByRef(_) => 6,
            StreamRecord::Spill(_) => 7,
            StreamRecord::WriteEmbedded(_) => 8,
            StreamRecord::ObjectRange(_) => 9,
            StreamRecord::Redact(_) => 10,
        }
    }

    /// The name of its type, as in `DRR_WRITE`.
    pub fn name(&self) -> &'static str {
        match self {
            StreamRecord::Begin(_) => "BEGIN",
            StreamRecord::Object(_) => "OBJECT",
            StreamRecord::FreeObjects(_) => "FREEOBJECTS",
            StreamRecord::Write(_) => "WRITE",
            StreamRecord::Free(_) => "FREE",
            StreamRecord::End(_) => "END",
            StreamRecord::WriteByRef(_) => "WRITE_BYREF",
            StreamRecord::Spill(_) => "SPILL",
            StreamRecord::WriteEmbedded(_) => "WRITE_EMBEDDED",
            StreamRecord::ObjectRange(_) => "OBJECT_RANGE",
            StreamRecord::Redact(_) => "REDACT",
        }
    }

    /// The record in a header, whose checksum is not looked at.
    ///
    /// # Errors
    /// `Corrupt` for a type that does not exist.
    pub fn parse(endian: Endian, header: &[u8; HEADER_SIZE]) -> Result<StreamRecord> {
        Ok(match u32::get(endian, header, 0) {
            0 => StreamRecord::Begin(Begin::parse(endian, header)),
            1 => StreamRecord::Object(Object::parse(endian, header)),
            2 => StreamRecord::FreeObjects(FreeObjects::parse(endian, header)),
            3 => StreamRecord::Write(Write::parse(endian, header)),
            4 => StreamRecord::Free(Free::parse(endian, header)),
            5 => StreamRecord::End(End::parse(endian, header)),
            6 => StreamRecord::WriteByRef(WriteByRef::parse(endian, header)),
            7 => StreamRecord::Spill(Spill::parse(endian, header)),
            8 => StreamRecord::WriteEmbedded(WriteEmbedded::parse(endian, header)),
            9 => StreamRecord::ObjectRange(ObjectRange::parse(endian, header)),
            10 => StreamRecord::Redact(Free::parse(endian, header)),
            other => {
                return Err(Error::corrupt(format!("the stream has a record of type {other}")));
            }
        })
    }

    /// The header of this record, without its checksum.
    pub fn encode(&self, endian: Endian) -> [u8; HEADER_SIZE] {
        let mut header = [0; HEADER_SIZE];
        self.type_id().put(endian, &mut header, 0);
        let to = &mut header;
        match self {
            StreamRecord::Begin(r) => r.encode(endian, to),
            StreamRecord::Object(r) => r.encode(endian, to),
            StreamRecord::FreeObjects(r) => r.encode(endian, to),
            StreamRecord::Write(r) => r.encode(endian, to),
            StreamRecord::Free(r) | StreamRecord::Redact(r) => r.encode(endian, to),
            StreamRecord::End(r) => r.encode(endian, to),
            StreamRecord::WriteByRef(r) => r.encode(endian, to),
            StreamRecord::Spill(r) => r.encode(endian, to),
            StreamRecord::WriteEmbedded(r) => r.encode(endian, to),
            StreamRecord::ObjectRange(r) => r.encode(endian, to),
        }
        header
    }

    /// Bytes that follow the header (§5).
    ///
    /// # Errors
    /// `Corrupt` for more than the type may have, or for a length that is no multiple of 4.
    pub fn payload_len(&self) -> Result<usize> {
        let up = |bytes: u32| u64::from(bytes).next_multiple_of(8);
        let (bytes, most) = match self {
            StreamRecord::Begin(r) => (u64::from(r.payload_len), BEGIN_PAYLOAD_MAX),
            StreamRecord::Object(r) if r.raw_bonus_len != 0 => (r.raw_bonus_len.into(), BONUS_MAX),
            StreamRecord::Object(r) => (up(r.bonus_len), BONUS_MAX),
            StreamRecord::Write(r) if r.compression != 0 => (r.compressed_size, BLOCK_MAX),
            StreamRecord::Write(r) => (r.logical_size, BLOCK_MAX),
            StreamRecord::Spill(r) if r.compressed_size != 0 => (r.compressed_size, BLOCK_MAX),
            StreamRecord::Spill(r) => (r.length, BLOCK_MAX),
            StreamRecord::WriteEmbedded(r) => (up(r.physical_size), EMBEDDED_MAX),
            StreamRecord::FreeObjects(_)
            | StreamRecord::Free(_)
            | StreamRecord::Redact(_)
            | StreamRecord::End(_)
            | StreamRecord::WriteByRef(_)
            | StreamRecord::ObjectRange(_) => (0, 0),
        };
        if bytes > most || bytes % 4 != 0 {
            let name = self.name();
            return Err(Error::corrupt(format!("a {name} record has {bytes} bytes of payload")));
        }
        Ok(bytes as usize)
    }

    /// Holds the record against the limits of a stream with these features and flags of its
    /// BEGIN (§13.3), as far as they do not depend on the receiving pool.
    ///
    /// # Errors
    /// `Corrupt`, with the record's type and object.
    pub fn check(&self, features: Features, flags: u32) -> Result<()> {
        let fine = match self {
            StreamRecord::Begin(_) | StreamRecord::End(_) => Ok(()),
            StreamRecord::Object(r) => r.check(features, flags),
            StreamRecord::FreeObjects(r) => want(r.first.checked_add(r.count).is_some(), "range"),
            StreamRecord::Write(r) => r.check(features),
            StreamRecord::Free(r) | StreamRecord::Redact(r) => want(is_object(r.object), "number")
                .and_then(|()| {
                    let ends = r.offset.checked_add(r.length).is_some();
                    want(ends || r.length == TO_THE_END, "range")
                }),
            StreamRecord::WriteByRef(_) => Err("type"),
            StreamRecord::Spill(r) => want(is_object(r.object), "number")
                .and_then(|()| want((BLOCK_MIN..=BLOCK_MAX).contains(&r.length), "length"))
                .and_then(|()| {
                    want(features.has(Features::RAW) == (r.compressed_size != 0), "encryption")
                }),
            StreamRecord::WriteEmbedded(r) => r.check(features),
            StreamRecord::ObjectRange(r) => {
                want(features.has(Features::RAW), "type").and_then(|()| {
                    let whole = r.slots == DNODES && r.first % DNODES == 0;
                    want(whole && r.first < OBJECTS, "range")
                })
            }
        };
        fine.map_err(|what| {
            let (name, object) = (self.name(), self.object().unwrap_or(0));
            let message = format!("the stream has a {name} record of a bad {what}");
            Error::corrupt(message).in_object(base::ObjectId(object))
        })
    }

    /// The object that it is about.
    pub fn object(&self) -> Option<u64> {
        match self {
            StreamRecord::Object(r) => Some(r.object),
            StreamRecord::Write(r) => Some(r.object),
            StreamRecord::Free(r) | StreamRecord::Redact(r) => Some(r.object),
            StreamRecord::WriteByRef(r) => Some(r.object),
            StreamRecord::Spill(r) => Some(r.object),
            StreamRecord::WriteEmbedded(r) => Some(r.object),
            StreamRecord::Begin(_)
            | StreamRecord::End(_)
            | StreamRecord::FreeObjects(_)
            | StreamRecord::ObjectRange(_) => None,
        }
    }
}

/// What of a record violates a limit.
type Checked = std::result::Result<(), &'static str>;

fn want(condition: bool, what: &'static str) -> Checked {
    if condition { Ok(()) } else { Err(what) }
}

fn is_object(object: u64) -> bool {
    (1..OBJECTS).contains(&object)
}

impl Object {
    /// Slots of its dnode.
    pub fn slot_count(&self) -> u64 {
        u64::from(self.slots.max(1))
    }

    fn check(&self, features: Features, flags: u32) -> Checked {
        let (slots, block) = (self.slot_count(), u64::from(self.block_size));
        want(is_object(self.object) && self.object + slots <= OBJECTS, "number")?;
        want(slots <= DNODES, "size of dnode")?;
        want(slots == 1 || features.has(Features::LARGE_DNODE), "size of dnode")?;
        want(self.object_type != 0, "type of content")?;
        // System attributes (44) and arrays of 64-bit integers (0xC3) may have no bonus.
        let may_be_empty = matches!(self.bonus_type, 44 | 0xC3);
        want(may_be_empty || (self.bonus_type == 0) == (self.bonus_len == 0), "bonus")?;
        let largest = if features.has(Features::LARGE_BLOCKS) { BLOCK_MAX } else { OLD_BLOCK_MAX };
        want(block % BLOCK_MIN == 0 && (BLOCK_MIN..=largest).contains(&block), "block size")?;
        want(self.checksum < CHECKSUMS, "checksum function")?;
        want(self.compress <= ZSTD, "compression function")?;
        let capacity = 512 * slots - 192;
        want(u64::from(self.bonus_len) <= capacity, "bonus")?;
        let raw = features.has(Features::RAW);
        want(self.flags & !record_flags::OBJECT_SPILL == 0, "flag")?;
        let has_spill = self.flags & record_flags::OBJECT_SPILL != 0;
        if !raw {
            want(!has_spill || flags & begin_flags::SPILL_BLOCK != 0, "flag")?;
            let shape = [self.indirect_shift, self.levels, self.pointers];
            return want(self.raw_bonus_len == 0 && shape == [0; 3], "encryption");
        }
        want(self.indirect_shift == 0 || (12..=17).contains(&self.indirect_shift), "shape")?;
        want((1..=12).contains(&self.levels) && (1..=3).contains(&self.pointers), "shape")?;
        let spill = if has_spill { 128 } else { 0 };
        let area = (512 * slots - 64).checked_sub(128 * u64::from(self.pointers) + spill);
        let bonus = u64::from(self.bonus_len)..=area.ok_or("shape")?;
        want(bonus.contains(&u64::from(self.raw_bonus_len)), "bonus")?;
        want(u64::from(self.pointers) == self.pointers_of(), "shape")
    }

    /// The block pointers that a dnode of this bonus has room for (§13.3).
    pub fn pointers_of(&self) -> u64 {
        match self.bonus_type {
            44 => 1,
            _ => {
                let free =
                    (512 * self.slot_count() - 192).saturating_sub(u64::from(self.bonus_len));
                (1 + (free >> 7)).min(3)
            }
        }
    }
}

impl Write {
    fn check(&self, features: Features) -> Checked {
        want(is_object(self.object), "number")?;
        let largest = if features.has(Features::LARGE_BLOCKS) { BLOCK_MAX } else { OLD_BLOCK_MAX };
        want((BLOCK_MIN..=largest).contains(&self.logical_size), "length")?;
        want(self.object_type != 0, "type of content")?;
        want(self.checksum_type < CHECKSUMS, "checksum function")?;
        want(self.offset.checked_add(self.logical_size).is_some(), "range")?;
        if features.has(Features::RAW) {
            want(features.allows(self.compression), "compression")?;
            let bytes = 1..=self.logical_size;
            return want(self.compression != 0 && bytes.contains(&self.compressed_size), "length");
        }
        if self.compression == 0 {
            return want(self.compressed_size == 0, "length");
        }
        want(features.has(Features::COMPRESSED), "compression")?;
        want(features.allows(self.compression), "compression")?;
        want((1..=self.logical_size).contains(&self.compressed_size), "length")
    }
}

impl WriteEmbedded {
    fn check(&self, features: Features) -> Checked {
        want(is_object(self.object), "number")?;
        let allowed = features.has(Features::EMBED_DATA) && !features.has(Features::RAW);
        want(allowed, "type")?;
        want(u64::from(self.physical_size) <= EMBEDDED_MAX, "length")?;
        want(u64::from(self.logical_size) <= self.length && self.length <= BLOCK_MAX, "length")?;
        want(self.embedded_type <= 1, "kind of embedding")?;
        want(features.allows(self.compression), "compression")?;
        let off = self.compression == Compression::Off.id();
        let sizes = match off {
            true => self.physical_size == self.logical_size,
            false => self.physical_size <= self.logical_size,
        };
        want(sizes, "length")?;
        want(self.is_spill() || self.offset.checked_add(self.length).is_some(), "range")
    }

    /// Whether it stands for a spill block (§8.5): OpenZFS sends small ones so, at an offset
    /// that no block has.
    pub fn is_spill(&self) -> bool {
        self.length != 0 && self.offset == 0u64.wrapping_sub(2 * self.length)
    }
}
