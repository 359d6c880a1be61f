//! The attributes of a file for `stat`, from either stored form.
//!
//! # Theory
//! One pass over the bonus fills an [`Attrs`], without allocation. The spill block is read
//! only when an attribute that this kind of file must have is not in the bonus.

use base::{Error, ObjectId, Result};
use dmu::{Io, Object};
use ondisk::objtype::ObjType;
use ondisk::sa::{SaBuffer, SaItem, SaTables, ZplAttr};
use ondisk::znode::{FileType, Time, ZFS_XATTR, ZnodeAttrs, missing_attr};

use crate::fs::FileSystem;

/// Links that Linux shows at most (chapter 06 §5.1).
const LINKS_MAX: u64 = i32::MAX as u64;
const NSEC_MAX: u64 = 999_999_999;

/// A device number, independent of the platform that wrote it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Device {
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
}

impl Device {
    /// From the attribute. Linux writes `major << 20 | minor` in 32 bits, illumos
    /// and FreeBSD `major << 32 | minor` (chapter 06 §5.1); a number beyond 32
    /// bits can only be the latter.
    pub(crate) fn from_rdev(rdev: u64) -> Device {
        if rdev >> 32 != 0 {
            return Device { major: (rdev >> 32) as u32, minor: rdev as u32 };
        }
        Device { major: (rdev >> 20) as u32, minor: (rdev & 0xf_ffff) as u32 }
    }

    /// `st_rdev` as Linux's C libraries encode it; FUSE's 32 bits are the low half.
    pub fn linux_dev(self) -> u64 {
        let (major, minor) = (u64::from(self.major), u64::from(self.minor));
        (minor & 0xff) | (major & 0xfff) << 8 | (minor & !0xff) << 12 | (major & !0xfff) << 32
    }
}

/// The attributes of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attrs {
    /// Object id: `st_ino`.
    pub id: ObjectId,
    /// Type of the file.
    pub kind: FileType,
    /// `st_mode`, type bits included.
    pub mode: u32,
    /// User id as Linux shows it: the low half of the owner's FUID.
    pub uid: u32,
    /// Group id, likewise.
    pub gid: u32,
    /// The owner's FUID (chapter 06 §12).
    pub owner_fuid: u64,
    /// The group's FUID.
    pub group_fuid: u64,
    /// Bytes; for a directory its number of entries, `.` and `..` included.
    pub size: u64,
    /// Links; for a directory 2 and its subdirectories.
    pub nlink: u32,
    /// Last access.
    pub atime: Time,
    /// Last change of the content.
    pub mtime: Time,
    /// Last change of the attributes.
    pub ctime: Time,
    /// Creation.
    pub crtime: Time,
    /// Transaction group of creation; with `id` it identifies the file forever.
    pub generation: u64,
    /// The directory it is in; stale for a file that lost one of several links.
    pub parent: ObjectId,
    /// Number of a character or block device.
    pub device: Option<Device>,
    /// Allocated space in units of 512 bytes, its dnode included: `st_blocks`.
    pub blocks: u64,
    /// Bytes of a data block.
    pub block_size: u32,
    /// Flags: `ondisk::znode::ZFS_*`.
    pub pflags: u64,
    /// Project id.
    pub project: u64,
    /// Whether there may be extended attributes; false is certain.
    pub may_have_xattrs: bool,
}

impl Attrs {
    /// Whether the object is an extended-attribute directory or a file in one.
    pub fn is_xattr(&self) -> bool {
        self.pflags & ZFS_XATTR != 0
    }

    /// The attributes that the dnode alone provides.
    fn of_dnode(object: &Object) -> Attrs {
        let dnode = object.dnode();
        Attrs {
            blocks: blocks(dnode.used, dnode.slots),
            block_size: dnode.data_block_size,
            ..Attrs::empty(object.id(), FileType::Unknown)
        }
    }

    pub(crate) fn empty(id: ObjectId, kind: FileType) -> Attrs {
        Attrs {
            id,
            kind,
            mode: 0,
            uid: 0,
            gid: 0,
            owner_fuid: 0,
            group_fuid: 0,
            size: 0,
            nlink: 0,
            atime: Time::default(),
            mtime: Time::default(),
            ctime: Time::default(),
            crtime: Time::default(),
            generation: 0,
            parent: ObjectId(0),
            device: None,
            blocks: 0,
            block_size: 0,
            pflags: 0,
            project: 0,
            may_have_xattrs: false,
        }
    }

    /// From a znode of a version before 5.
    fn fill_from_znode(&mut self, z: &ZnodeAttrs) {
        self.set_mode(z.mode);
        self.set_owner(z.uid);
        self.set_group(z.gid);
        self.size = z.size;
        self.nlink = links(z.links);
        self.atime = clamped(z.atime);
        self.mtime = clamped(z.mtime);
        self.ctime = clamped(z.ctime);
        self.crtime = clamped(z.crtime);
        self.generation = z.generation;
        self.parent = ObjectId(z.parent);
        self.device = z.rdev.map(Device::from_rdev);
        self.pflags = z.flags;
        self.project = z.projid.unwrap_or(0);
        self.may_have_xattrs = z.xattr.is_some();
    }

    /// Copies the attributes in `buffer`; sets the bits of those found in `seen`.
    fn fill(&mut self, buffer: &SaBuffer<'_, '_>, seen: &mut u32) -> Result<()> {
        for item in buffer.iter() {
            if let Some(attr) = item.attr {
                self.set(attr, &item)?;
                *seen |= 1 << attr as u32;
            }
        }
        Ok(())
    }

    fn set(&mut self, attr: ZplAttr, item: &SaItem<'_>) -> Result<()> {
        let word = || word(item);
        match attr {
            ZplAttr::Atime => self.atime = time(item)?,
            ZplAttr::Mtime => self.mtime = time(item)?,
            ZplAttr::Ctime => self.ctime = time(item)?,
            ZplAttr::Crtime => self.crtime = time(item)?,
            ZplAttr::Gen => self.generation = word()?,
            ZplAttr::Mode => self.set_mode(word()?),
            ZplAttr::Size => self.size = word()?,
            ZplAttr::Parent => self.parent = ObjectId(word()?),
            ZplAttr::Links => self.nlink = links(word()?),
            ZplAttr::Xattr => self.may_have_xattrs |= word()? != 0,
            ZplAttr::Rdev => self.device = Some(Device::from_rdev(word()?)),
            ZplAttr::Flags => self.pflags = word()?,
            ZplAttr::Uid => self.set_owner(word()?),
            ZplAttr::Gid => self.set_group(word()?),
            ZplAttr::Dxattr => self.may_have_xattrs = true,
            ZplAttr::Projid => self.project = word()?,
            _ => {}
        }
        Ok(())
    }

    fn set_mode(&mut self, mode: u64) {
        self.kind = FileType::of_mode(mode);
        self.mode = (mode & 0xffff) as u32;
    }

    fn set_owner(&mut self, fuid: u64) {
        (self.owner_fuid, self.uid) = (fuid, fuid as u32);
    }

    fn set_group(&mut self, fuid: u64) {
        (self.group_fuid, self.gid) = (fuid, fuid as u32);
    }

    /// The attributes that this file must have (chapter 06 §4.5) beyond `seen`.
    fn missing(&self, seen: u32) -> Option<ZplAttr> {
        missing_attr(seen, self.kind, self.pflags)
    }
}

fn cut_off() -> Error {
    Error::corrupt("a system attribute is too short")
}

fn word(item: &SaItem<'_>) -> Result<u64> {
    item.endian.u64(item.bytes, 0).ok_or_else(cut_off)
}

fn time(item: &SaItem<'_>) -> Result<Time> {
    let nanoseconds = item.endian.u64(item.bytes, 8).ok_or_else(cut_off)?;
    Ok(clamped(Time { seconds: word(item)? as i64, nanoseconds }))
}

/// A damaged fraction must not reach callers that rely on it.
fn clamped(time: Time) -> Time {
    Time { nanoseconds: time.nanoseconds.min(NSEC_MAX), ..time }
}

fn links(links: u64) -> u32 {
    links.min(LINKS_MAX) as u32
}

/// `st_blocks`: an empty file shows the slots of its dnode.
fn blocks(used: u64, slots: u8) -> u64 {
    used.div_ceil(512).saturating_add(u64::from(slots))
}

/// Whether the attributes are a legacy znode; `NotFound` for an object that is no file.
fn is_legacy(object: &Object) -> Result<bool> {
    match object.dnode().bonus_type {
        ObjType::SA => Ok(false),
        ObjType::ZNODE => Ok(true),
        _ => Err(Error::not_found("the object is not a file").in_object(object.id())),
    }
}

/// The znode of an object from before version 5.
pub(crate) fn legacy(object: &Object) -> Result<Option<ZnodeAttrs>> {
    if !is_legacy(object)? {
        return Ok(None);
    }
    let dnode = object.dnode();
    let znode = ZnodeAttrs::from_legacy(&dnode.bonus, dnode.endian);
    znode.map(Some).map_err(|e| e.in_object(object.id()))
}

/// Attributes from the bonus, and from what `spill` reads if they are not there. Also
/// returns which ones the bonus has, one bit each.
fn from_sa<S: AsRef<[u8]>>(
    mut attrs: Attrs,
    bonus: &[u8],
    has_spill: bool,
    tables: &SaTables,
    spill: impl FnOnce() -> Result<Option<S>>,
) -> Result<(Attrs, u32)> {
    let mut seen = 0;
    attrs.fill(&SaBuffer::parse(bonus, tables)?, &mut seen)?;
    let in_bonus = seen;
    if attrs.missing(seen).is_none() {
        attrs.may_have_xattrs |= has_spill;
    } else if let Some(spill) = spill()? {
        attrs.fill(&SaBuffer::parse(spill.as_ref(), tables)?, &mut seen)?;
    }
    if let Some(missing) = attrs.missing(seen) {
        let name = missing.name();
        return Err(Error::corrupt(format!("the file lacks the attribute {name}")));
    }
    if attrs.generation == 0 {
        return Err(Error::corrupt("the file has no generation"));
    }
    Ok((attrs, in_bonus))
}

impl FileSystem {
    /// The attributes of the file `id`.
    ///
    /// # Errors
    /// `NotFound` when there is no such object or it is no file; `Corrupt` when its
    /// attributes are damaged or incomplete; those of reading.
    pub fn attrs(&self, id: ObjectId, io: Io) -> Result<Attrs> {
        let mut attrs =
            self.read_consistent(id, io, || self.attrs_of(&self.object(id, io)?, io))?;
        if let Some(time) = self.rw_part().and_then(|rw| rw.times.of(id)) {
            attrs.atime = time;
        }
        Ok(attrs)
    }

    pub(crate) fn attrs_of(&self, object: &Object, io: Io) -> Result<Attrs> {
        self.attrs_in(object, io).map(|(attrs, _)| attrs)
    }

    /// The same, with a bit for each attribute that the bonus has; no bits before version
    /// 5.
    pub(crate) fn attrs_in(&self, object: &Object, io: Io) -> Result<(Attrs, u32)> {
        let mut attrs = Attrs::of_dnode(object);
        if let Some(znode) = legacy(object)? {
            attrs.fill_from_znode(&znode);
            return Ok((attrs, 0));
        }
        let dnode = object.dnode();
        let spill = || Ok(object.spill(io)?.map(|(buf, _)| buf));
        from_sa(attrs, &dnode.bonus, object.has_spill(io)?, &self.tables(), spill)
            .map_err(|e| e.in_object(object.id()))
    }

    /// Calls `f` with a system attribute of `object`, wherever it is.
    pub(crate) fn with_attr<T>(
        &self,
        object: &Object,
        attr: ZplAttr,
        io: Io,
        f: impl FnOnce(&SaItem<'_>) -> Result<T>,
    ) -> Result<Option<T>> {
        let tables = self.tables();
        let find = |bytes| -> Result<Option<SaItem<'_>>> {
            Ok(SaBuffer::parse(bytes, &tables)?.iter().find(|i| i.attr == Some(attr)))
        };
        let place = |e: Error| e.in_object(object.id());
        if let Some(item) = find(&object.dnode().bonus).map_err(place)? {
            return f(&item).map(Some).map_err(place);
        }
        let Some((spill, _)) = object.spill(io)? else { return Ok(None) };
        match find(&spill).map_err(place)? {
            Some(item) => f(&item).map(Some).map_err(place),
            None => Ok(None),
        }
    }

    /// A system attribute that is a number.
    pub(crate) fn u64_attr(&self, object: &Object, attr: ZplAttr, io: Io) -> Result<Option<u64>> {
        self.with_attr(object, attr, io, word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::ErrorKind;
    use ondisk::Endian;
    use ondisk::sa::encode_buffer;
    use proptest::prelude::*;

    const FULL: [u16; 15] = [5, 6, 4, 12, 13, 7, 11, 0, 1, 2, 3, 8, 21, 16, 19];

    fn tables() -> SaTables {
        let mut t = SaTables::standard();
        t.add_layout(2, &FULL).unwrap();
        t.add_layout(3, &[20]).unwrap();
        t.add_layout(4, &FULL[..12]).unwrap();
        t.add_layout(5, &[21, 16, 19, 9]).unwrap();
        t
    }

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
        let byte = |c: &[u8]| u8::from_str_radix(std::str::from_utf8(c).unwrap(), 16).unwrap();
        digits.chunks(2).map(byte).collect()
    }

    /// The worked example of §4.6, as a little-endian and a big-endian host write it.
    fn example() -> [Vec<u8>; 2] {
        let little = hex("5a502f0002041800 a481000000000000 0b00000000000000 0900000000000000 \
            e803000000000000 0000000000000000 2200000000000000 0400000008840000 \
            b9e6ca690000000084cd9c0e00000000 b9e6ca690000000084cd9c0e00000000 \
            b9e6ca690000000084cd9c0e00000000 b9e6ca690000000084cd9c0e00000000 \
            0100000000000000 0700000000000000 0300000000000000 000000109f011e00 \
            0000402089001200 0000004089001200");
        let mut big = little.clone();
        big[..8].copy_from_slice(&hex("002f505a04020018"));
        big[8..0x98].chunks_mut(8).for_each(<[u8]>::reverse);
        [little, big]
    }

    fn parse(bonus: &[u8], spill: Option<&[u8]>) -> Result<Attrs> {
        let attrs = Attrs::empty(ObjectId(128), FileType::Unknown);
        from_sa(attrs, bonus, spill.is_some(), &tables(), || Ok(spill)).map(|(attrs, _)| attrs)
    }

    #[test]
    fn the_worked_example_in_both_byte_orders() {
        for raw in example() {
            let a = parse(&raw, None).unwrap();
            assert_eq!((a.mode, a.kind, a.size), (0o100_644, FileType::Regular, 11));
            assert_eq!((a.uid, a.gid, a.project, a.nlink), (1000, 0, 7, 1));
            assert_eq!((a.generation, a.parent), (9, ObjectId(34)));
            assert_eq!(a.crtime, Time { seconds: 1_774_905_017, nanoseconds: 245_157_252 });
            assert!(!a.may_have_xattrs && a.device.is_none() && !a.is_xattr());
        }
    }

    #[test]
    fn the_spill_block_is_read_only_when_needed() {
        let [raw, _] = example();
        let unread = || -> Result<Option<Vec<u8>>> { Err(Error::bug("not to be read")) };
        let empty = Attrs::empty(ObjectId(1), FileType::Unknown);
        let (a, _) = from_sa(empty, &raw, true, &tables(), unread).unwrap();
        assert!(a.may_have_xattrs);
        let words: Vec<&[u8]> = vec![&[7, 0, 0, 0, 0, 0, 0, 0], &[0; 8], &[], &[0; 8]];
        let spill = encode_buffer(&tables(), 5, &words).unwrap();
        let mut short = raw;
        short[4..6].copy_from_slice(&[4, 1 << 2]);
        let a = parse(&short, Some(&spill)).unwrap();
        assert_eq!((a.project, a.may_have_xattrs), (7, false));
        assert_eq!(parse(&short, None).unwrap_err().kind(), ErrorKind::Corrupt);
    }

    #[test]
    fn incomplete_attributes_are_refused() {
        let [raw, _] = example();
        let mut no_generation = raw.clone();
        no_generation[0x18] = 0;
        let mut device = raw.clone();
        device[9] = 0x21;
        for bad in [no_generation, device, raw[..170].to_vec(), Vec::new()] {
            assert_eq!(parse(&bad, None).unwrap_err().kind(), ErrorKind::Corrupt);
        }
        let xattrs = encode_buffer(&tables(), 3, &[b"abc"]).unwrap();
        assert!(parse(&xattrs, Some(&xattrs)).is_err());
    }

    #[test]
    fn legacy_znodes() {
        let mut raw = vec![0u8; 264];
        for o in (0..152).step_by(8) {
            raw[o..o + 8].copy_from_slice(&(o as u64).to_be_bytes());
        }
        raw[72..80].copy_from_slice(&0o020_600u64.to_be_bytes());
        raw[112..120].copy_from_slice(&(5u64 << 20 | 300).to_be_bytes());
        let mut a = Attrs::empty(ObjectId(9), FileType::Unknown);
        a.fill_from_znode(&ZnodeAttrs::from_legacy(&raw, Endian::Big).unwrap());
        assert_eq!((a.mode, a.device), (0o020_600, Some(Device { major: 5, minor: 300 })));
        assert_eq!((a.uid, a.gid, a.size, a.nlink), (128, 136, 80, 96));
        assert_eq!((a.generation, a.parent, a.may_have_xattrs), (64, ObjectId(88), true));
        assert_eq!(a.ctime, Time { seconds: 32, nanoseconds: 40 });
    }

    #[test]
    fn device_numbers_of_both_platforms() {
        let linux = Device::from_rdev(259 << 20 | 70_000);
        assert_eq!(linux, Device { major: 259, minor: 70_000 });
        assert_eq!(Device::from_rdev(259 << 32 | 70_000), linux);
        // makedev(259, 70000) as the C library computes it.
        assert_eq!(linux.linux_dev(), 0x1111_0370);
        assert_eq!(Device { major: 5, minor: 1 }.linux_dev(), 0x501);
    }

    #[test]
    fn extremes() {
        let t = clamped(Time { seconds: -1, nanoseconds: u64::MAX });
        assert_eq!(t, Time { seconds: -1, nanoseconds: 999_999_999 });
        assert_eq!((blocks(0, 1), blocks(513, 2), blocks(u64::MAX, 1)), (1, 4, (1 << 55) + 1));
        assert_eq!((links(2), links(u64::MAX)), (2, 0x7fff_ffff));
    }

    proptest! {
        /// Attributes parsed from any bytes are valid.
        #[test]
        fn random_buffers(
            cuts in prop::collection::vec((0usize..176, any::<u8>()), 0..6),
            spill in prop::collection::vec(any::<u8>(), 0..64),
            len in 0usize..=176,
        ) {
            let [mut raw, _] = example();
            for (at, value) in cuts {
                raw[at] = value;
            }
            raw.truncate(len.max(170));
            if let Ok(a) = parse(&raw, Some(&spill)) {
                prop_assert!(a.generation != 0 && a.ctime.nanoseconds <= NSEC_MAX);
                let device = matches!(a.kind, FileType::Char | FileType::Block);
                prop_assert!(!device || a.device.is_some());
            }
        }
    }
}
