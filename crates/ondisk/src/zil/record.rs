//! Intent log records (chapter 06 §17).

use base::{Error, ObjectId, Result, Txg};

use crate::blkptr::{BLKPTR_SIZE, BlkPtr};
use crate::endian::{Endian, Reader};

const HEADER_SIZE: usize = 32;
const WRITE_SIZE: usize = 192;
const XVATTR_SIZE: usize = 72;
/// Bit of the type: the request ignored case.
const CASE_INSENSITIVE: u64 = 1 << 63;
/// Longest record accepted (chapter 06 §17.2).
const RECORD_MAX: u64 = 32 << 20;
/// Bits of an object field that hold the object id; the dnode's slots are above.
const OBJECT_MASK: u64 = (1 << 48) - 1;
/// SETATTR mask bits that indicate extended attributes: Linux, and others.
const MASK_XVATTR: [u64; 2] = [0x8000_0000, 0x1_0000];
/// Bit of an xvattr section: the project.
pub const XAT_PROJID: u32 = 0x4_0000;

/// The header of every record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// Type, 1 to 24.
    pub txtype: u8,
    /// The request ignored case.
    pub case_insensitive: bool,
    /// Txg in which the change was made.
    pub txg: Txg,
    /// Sequence; ascends along the chain, with gaps.
    pub seq: u64,
}

/// A record: its header, and all its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// The common header.
    pub header: RecordHeader,
    /// The whole record, header included.
    pub bytes: &'a [u8],
    pub(super) endian: Endian,
}

/// Lengths of an ACL's parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AclInfo {
    /// Number of entries.
    pub count: u64,
    /// Number of FUIDs.
    pub fuids: u64,
    /// 1 auto-inherit, 2 protected, 4 defaulted.
    pub flags: u64,
}

/// Attributes beyond POSIX, as they were set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Xvattr {
    /// The attributes that the record sets.
    pub requested: [u32; 3],
    /// Their values, by the bits of `requested[0]`.
    pub values: u64,
    /// Creation time: seconds, nanoseconds.
    pub crtime: [u64; 2],
    /// Anti-virus stamp, or the project id in its first 8 bytes, little endian.
    pub scanstamp: [u8; 32],
}

/// A new file, directory, symbolic link or attribute directory.
#[derive(Clone, Debug, PartialEq)]
pub struct Create<'a> {
    /// Directory, or owner of the attribute directory.
    pub directory: ObjectId,
    /// The new object.
    pub object: ObjectId,
    /// Its dnode's slots.
    pub dnode_slots: u32,
    /// Mode, type bits included.
    pub mode: u64,
    /// Owner.
    pub uid: u64,
    /// Group.
    pub gid: u64,
    /// Generation.
    pub generation: u64,
    /// Creation time: seconds, nanoseconds.
    pub crtime: [u64; 2],
    /// Device number; garbage for symbolic links.
    pub rdev: u64,
    /// Attributes, in the types that have them.
    pub xvattr: Option<Xvattr>,
    /// ACL, in the types that have one: its entries' bytes and FUIDs.
    pub acl: Option<(AclInfo, &'a [u8])>,
    /// FUID domains.
    pub domains: Vec<&'a [u8]>,
    /// Name in the directory; empty for attribute directories.
    pub name: &'a [u8],
    /// Target of a symbolic link.
    pub target: Option<&'a [u8]>,
}

/// Written bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Write<'a> {
    /// File.
    pub object: ObjectId,
    /// Byte offset of the write.
    pub offset: u64,
    /// Bytes written.
    pub length: u64,
    /// The block that holds the bytes, if the record does not.
    pub block: Option<BlkPtr>,
    /// The bytes, if the record holds them: `length` bytes.
    pub data: Option<&'a [u8]>,
}

/// Changed attributes.
#[derive(Clone, Debug, PartialEq)]
pub struct SetAttr<'a> {
    /// File.
    pub object: ObjectId,
    /// The changed attributes; the bits are those of the writing platform (chapter 06
    /// §17).
    pub mask: u64,
    /// Mode.
    pub mode: u64,
    /// Owner.
    pub uid: u64,
    /// Group.
    pub gid: u64,
    /// Size.
    pub size: u64,
    /// Access time: seconds, nanoseconds.
    pub atime: [u64; 2],
    /// Modification time: seconds, nanoseconds.
    pub mtime: [u64; 2],
    /// Attributes beyond POSIX.
    pub xvattr: Option<Xvattr>,
    /// FUID domains.
    pub domains: Vec<&'a [u8]>,
}

/// Two directories and two names.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Names<'a> {
    /// Directory of the old name.
    pub from_dir: ObjectId,
    /// Directory of the new name.
    pub to_dir: ObjectId,
    /// Old name.
    pub from: &'a [u8],
    /// New name.
    pub to: &'a [u8],
}

/// The whiteout left behind by a rename.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Whiteout {
    /// The whiteout's object.
    pub object: ObjectId,
    /// Its dnode's slots.
    pub dnode_slots: u32,
    /// Mode.
    pub mode: u64,
    /// Owner.
    pub uid: u64,
    /// Group.
    pub gid: u64,
    /// Generation.
    pub generation: u64,
    /// Creation time: seconds, nanoseconds.
    pub crtime: [u64; 2],
    /// Device number.
    pub rdev: u64,
}

/// Cloned blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CloneRange<'a> {
    /// File.
    pub object: ObjectId,
    /// Byte offset of the first block.
    pub offset: u64,
    /// Bytes cloned.
    pub length: u64,
    /// Bytes of a block.
    pub block_size: u64,
    raw: &'a [u8],
    endian: Endian,
}

impl<'a> CloneRange<'a> {
    /// Takes pointers as in a little-endian record: 128 bytes for each block of the
    /// range.
    ///
    /// # Errors
    /// `Corrupt` unless there is one for each block.
    pub fn new(
        object: ObjectId,
        (offset, length): (u64, u64),
        block_size: u64,
        raw: &'a [u8],
    ) -> Result<CloneRange<'a>> {
        let range = CloneRange { object, offset, length, block_size, raw, endian: Endian::Little };
        range.checked((raw.len() / BLKPTR_SIZE) as u64)
    }

    /// Checks that there is one pointer for each block of the range, and that the range
    /// does not exceed the largest file size.
    fn checked(self, count: u64) -> Result<CloneRange<'a>> {
        let whole = self.raw.len() as u64 == count.saturating_mul(BLKPTR_SIZE as u64);
        let covers = self.block_size != 0 && self.length.div_ceil(self.block_size) == count;
        if !whole || !covers || self.offset.checked_add(self.length).is_none() {
            return Err(corrupt("the range of a clone"));
        }
        Ok(self)
    }

    /// The pieces of the range, in order: offset and bytes in the file, and the block
    /// whose first bytes they are.
    pub fn pieces(&self) -> impl ExactSizeIterator<Item = Result<(u64, u64, BlkPtr)>> + '_ {
        let (start, length, block) = (self.offset, self.length, self.block_size);
        self.pointers().enumerate().map(move |(i, bp)| {
            // Cannot overflow: the range was checked against the number of pointers.
            let at = i as u64 * block;
            Ok((start + at, block.min(length - at), bp?))
        })
    }
}

impl CloneRange<'_> {
    /// The source blocks, in order.
    pub fn pointers(&self) -> impl ExactSizeIterator<Item = Result<BlkPtr>> + '_ {
        self.raw.chunks_exact(BLKPTR_SIZE).map(|raw| BlkPtr::parse_nth(raw, 0, self.endian))
    }
}

/// The content of a record, by type.
#[derive(Clone, Debug, PartialEq)]
pub enum RecordBody<'a> {
    /// 1 to 4, 14 to 19: see [`RecordHeader::txtype`].
    Create(Create<'a>),
    /// 5, 6: a name is removed.
    Remove {
        /// Directory.
        directory: ObjectId,
        /// Name.
        name: &'a [u8],
    },
    /// 7: another name.
    Link {
        /// Directory.
        directory: ObjectId,
        /// The linked object.
        object: ObjectId,
        /// Name.
        name: &'a [u8],
    },
    /// 8, 22: renamed, or exchanged.
    Rename(Names<'a>),
    /// 23: renamed, a whiteout left behind.
    RenameWhiteout(Names<'a>, Whiteout),
    /// 9: written.
    Write(Write<'a>),
    /// 20: covered by an earlier record; it can only increase the file size.
    Write2(Write<'a>),
    /// 10: truncated, or a range freed.
    Truncate {
        /// File.
        object: ObjectId,
        /// First byte.
        offset: u64,
        /// Bytes; 0 truncates the file at `offset`.
        length: u64,
    },
    /// 11: attributes.
    SetAttr(SetAttr<'a>),
    /// 12, 13: a new ACL.
    Acl {
        /// File.
        object: ObjectId,
        /// Lengths and flags.
        info: AclInfo,
        /// Entries, as the record holds them (`ace_t`), then FUIDs.
        aces: &'a [u8],
        /// FUID domains.
        domains: Vec<&'a [u8]>,
    },
    /// 21: an extended attribute kept in the file's own attributes.
    SetSaXattr {
        /// File.
        object: ObjectId,
        /// Name.
        name: &'a [u8],
        /// Value; `None` removes it.
        value: Option<&'a [u8]>,
    },
    /// 24: cloned blocks.
    CloneRange(CloneRange<'a>),
}

/// Type of a rename that exchanges two names.
pub const RENAME_EXCHANGE: u8 = 22;
/// Type of a rename that leaves a whiteout.
pub const RENAME_WHITEOUT: u8 = 23;

fn corrupt(what: &str) -> Error {
    Error::corrupt(format!("invalid intent log record: {what}"))
}

fn size(value: u64) -> Result<usize> {
    usize::try_from(value).map_err(|_| corrupt("a length"))
}

fn object(field: u64) -> ObjectId {
    ObjectId(field & OBJECT_MASK)
}

fn slots(field: u64) -> u32 {
    (field >> 56) as u32 + 1
}

/// A NUL-terminated string.
fn string<'a>(r: &mut Reader<'a>) -> Result<&'a [u8]> {
    let len =
        r.remaining().iter().position(|&b| b == 0).ok_or_else(|| corrupt("no end of name"))?;
    let name = r.take(len)?;
    r.skip(1)?;
    Ok(name)
}

fn name<'a>(r: &mut Reader<'a>) -> Result<&'a [u8]> {
    let name = string(r)?;
    if name.is_empty() {
        return Err(corrupt("an empty name"));
    }
    Ok(name)
}

/// `count` strings; each takes at least a byte, which bounds the count.
fn strings<'a>(r: &mut Reader<'a>, count: u64) -> Result<Vec<&'a [u8]>> {
    if count > r.remaining().len() as u64 {
        return Err(corrupt("a count of domains"));
    }
    (0..count).map(|_| string(r)).collect()
}

/// Owners that are log FUIDs refer to domains by index, from 1.
fn domain_count(uid: u64, gid: u64) -> u64 {
    (uid >> 32).max(gid >> 32)
}

fn xvattr(r: &mut Reader<'_>) -> Result<Xvattr> {
    if r.u32()? != 3 {
        return Err(corrupt("the size of its attribute mask"));
    }
    let requested = [r.u32()?, r.u32()?, r.u32()?];
    let values = r.u64()?;
    let crtime = r.u64s()?;
    let mut scanstamp = [0; 32];
    scanstamp.copy_from_slice(r.take(32)?);
    if requested[0] & XAT_PROJID != 0 && r.endian() == Endian::Big {
        // A number where the stamp would otherwise be bytes.
        scanstamp[..8].reverse();
    }
    Ok(Xvattr { requested, values, crtime, scanstamp })
}

/// The bytes of entries (padded to words) and of FUIDs.
fn acl_bytes<'a>(r: &mut Reader<'a>, bytes: u64, fuids: u64) -> Result<&'a [u8]> {
    let aces = bytes.checked_next_multiple_of(8).ok_or_else(|| corrupt("a length"))?;
    let fuids = fuids.checked_mul(8).ok_or_else(|| corrupt("a length"))?;
    r.take(size(aces.checked_add(fuids).ok_or_else(|| corrupt("a length"))?)?)
}

impl<'a> Record<'a> {
    /// The first record of `bytes`.
    pub(super) fn split(bytes: &'a [u8], endian: Endian) -> Result<Record<'a>> {
        let [txtype, reclen, txg, seq] = endian.reader(bytes, "intent log record").u64s()?;
        let case_insensitive = txtype & CASE_INSENSITIVE != 0;
        let txtype = u8::try_from(txtype & !CASE_INSENSITIVE)
            .ok()
            .filter(|t| (1..=24).contains(t))
            .ok_or_else(|| corrupt("an unknown type"))?;
        let fits = reclen >= HEADER_SIZE as u64 && reclen <= RECORD_MAX && reclen % 8 == 0;
        let bytes = size(reclen)
            .ok()
            .filter(|_| fits)
            .and_then(|len| bytes.get(..len))
            .ok_or_else(|| corrupt("its length"))?;
        let header = RecordHeader { txtype, case_insensitive, txg: Txg(txg), seq };
        Ok(Record { header, bytes, endian })
    }

    /// The byte order of its integers.
    pub fn endian(&self) -> Endian {
        self.endian
    }

    /// Parses the record.
    ///
    /// # Errors
    /// `Corrupt` if its content does not fit its length or type.
    pub fn body(&self) -> Result<RecordBody<'a>> {
        let mut r = self.endian.reader(self.bytes, "intent log record");
        r.skip(HEADER_SIZE)?;
        let r = &mut r;
        Ok(match self.header.txtype {
            1..=4 | 14..=19 => RecordBody::Create(self.create(r)?),
            5 | 6 => RecordBody::Remove { directory: ObjectId(r.u64()?), name: name(r)? },
            7 => {
                let [directory, link] = r.u64s()?.map(ObjectId);
                RecordBody::Link { directory, object: link, name: name(r)? }
            }
            8 | RENAME_EXCHANGE => {
                let [from_dir, to_dir] = r.u64s()?.map(ObjectId);
                RecordBody::Rename(Names { from_dir, to_dir, from: name(r)?, to: name(r)? })
            }
            9 => RecordBody::Write(self.write(r)?),
            10 => {
                let [foid, offset, length] = r.u64s()?;
                RecordBody::Truncate { object: ObjectId(foid), offset, length }
            }
            11 => RecordBody::SetAttr(Self::setattr(r)?),
            12 => {
                let [foid, count] = r.u64s()?;
                let bytes = count.checked_mul(12).ok_or_else(|| corrupt("a count"))?;
                let aces = r.take(size(bytes)?)?;
                let info = AclInfo { count, ..AclInfo::default() };
                RecordBody::Acl { object: ObjectId(foid), info, aces, domains: Vec::new() }
            }
            13 => {
                let [foid, count, domains, fuids, bytes, flags] = r.u64s()?;
                let aces = acl_bytes(r, bytes, fuids)?;
                let info = AclInfo { count, fuids, flags };
                RecordBody::Acl {
                    object: ObjectId(foid),
                    info,
                    aces,
                    domains: strings(r, domains)?,
                }
            }
            20 => RecordBody::Write2(self.write(r)?),
            21 => {
                let [foid, len] = r.u64s()?;
                let name = name(r)?;
                let value = if len == 0 { None } else { Some(r.take(size(len)?)?) };
                RecordBody::SetSaXattr { object: ObjectId(foid), name, value }
            }
            RENAME_WHITEOUT => Self::whiteout(r)?,
            24 => RecordBody::CloneRange(self.clone_range(r)?),
            _ => return Err(corrupt("an unknown type")),
        })
    }

    /// The blocks to which the record refers, which claiming the log must keep. They
    /// are in the clear even if the body is encrypted (chapter 08 §A.12).
    ///
    /// # Errors
    /// `Corrupt` if the record is too short for its pointers.
    pub fn pointers(&self) -> Result<impl ExactSizeIterator<Item = Result<BlkPtr>> + use<'a>> {
        let endian = self.endian;
        let (at, count) = match self.header.txtype {
            9 if self.bytes.len() == WRITE_SIZE => (WRITE_SIZE - BLKPTR_SIZE, 1),
            24 => {
                let count = endian.u64(self.bytes, 64).ok_or_else(|| corrupt("its length"))?;
                (72, size(count)?)
            }
            _ => (0, 0),
        };
        let raw = count
            .checked_mul(BLKPTR_SIZE)
            .and_then(|len| self.bytes.get(at..)?.get(..len))
            .ok_or_else(|| corrupt("a count of pointers"))?;
        Ok(raw.chunks_exact(BLKPTR_SIZE).map(move |raw| BlkPtr::parse_nth(raw, 0, endian)))
    }

    fn create(&self, r: &mut Reader<'a>) -> Result<Create<'a>> {
        let [directory, foid, mode, uid, gid, generation] = r.u64s()?;
        let crtime = r.u64s()?;
        let rdev = r.u64()?;
        let kind = self.header.txtype;
        let mut acl_head = None;
        if matches!(kind, 14 | 16 | 17 | 19) {
            let [count, domains, fuids, bytes, flags] = r.u64s()?;
            acl_head = Some((AclInfo { count, fuids, flags }, domains, bytes));
        }
        let xvattr = if matches!(kind, 15 | 16 | 18 | 19) { Some(xvattr(r)?) } else { None };
        let (acl, domains) = match acl_head {
            Some((info, domains, bytes)) => {
                (Some((info, acl_bytes(r, bytes, info.fuids)?)), strings(r, domains)?)
            }
            None => (None, strings(r, domain_count(uid, gid))?),
        };
        // Attribute directories have no name of their own.
        let name = if kind == 3 { string(r)? } else { name(r)? };
        let target = if kind == 4 { Some(string(r)?) } else { None };
        Ok(Create {
            directory: ObjectId(directory),
            object: object(foid),
            dnode_slots: slots(foid),
            mode,
            uid,
            gid,
            generation,
            crtime,
            rdev,
            xvattr,
            acl,
            domains,
            name,
            target,
        })
    }

    fn write(&self, r: &mut Reader<'a>) -> Result<Write<'a>> {
        let [foid, offset, length, _blkoff] = r.u64s()?;
        let raw = r.take(BLKPTR_SIZE)?;
        if offset.checked_add(length).is_none() {
            return Err(corrupt("a write beyond the end of files"));
        }
        let (mut block, mut data) = (None, None);
        if self.header.txtype == 20 {
            // Neither block nor data.
        } else if self.bytes.len() == WRITE_SIZE {
            block = Some(BlkPtr::parse_nth(raw, 0, self.endian)?);
        } else {
            data = Some(r.take(size(length)?)?);
        }
        Ok(Write { object: ObjectId(foid), offset, length, block, data })
    }

    fn setattr(r: &mut Reader<'a>) -> Result<SetAttr<'a>> {
        let [foid, mask, mode, uid, gid, size] = r.u64s()?;
        let (atime, mtime) = (r.u64s()?, r.u64s()?);
        let extended = MASK_XVATTR.iter().any(|bit| mask & bit != 0);
        let xvattr =
            if extended && r.remaining().len() >= XVATTR_SIZE { Some(xvattr(r)?) } else { None };
        let domains = strings(r, domain_count(uid, gid))?;
        let object = ObjectId(foid);
        Ok(SetAttr { object, mask, mode, uid, gid, size, atime, mtime, xvattr, domains })
    }

    fn whiteout(r: &mut Reader<'a>) -> Result<RecordBody<'a>> {
        let [from_dir, to_dir] = r.u64s()?.map(ObjectId);
        let [foid, mode, uid, gid, generation] = r.u64s()?;
        let crtime = r.u64s()?;
        let rdev = r.u64()?;
        let whiteout = Whiteout {
            object: object(foid),
            dnode_slots: slots(foid),
            mode,
            uid,
            gid,
            generation,
            crtime,
            rdev,
        };
        let names = Names { from_dir, to_dir, from: name(r)?, to: name(r)? };
        Ok(RecordBody::RenameWhiteout(names, whiteout))
    }

    fn clone_range(&self, r: &mut Reader<'a>) -> Result<CloneRange<'a>> {
        let [foid, offset, length, block_size, count] = r.u64s()?;
        let bytes =
            count.checked_mul(BLKPTR_SIZE as u64).ok_or_else(|| corrupt("a count of pointers"))?;
        let raw = r.take(size(bytes)?)?;
        let endian = self.endian;
        let object = ObjectId(foid);
        CloneRange { object, offset, length, block_size, raw, endian }.checked(count)
    }
}
