//! System attributes: a file system's tables, and where each attribute lies in a
//! buffer (chapter 06 §4).
//!
//! # Theory
//! The registry maps names to numbers and lengths, a layout is an ordered list of
//! numbers. Both are resolved once, when the file system is opened, into lists of
//! [`Field`]s; parsing a bonus is then one pass over a short list, without
//! allocation.
//!
//! # Invariants
//! * Every [`Places`] range lies inside the buffer it was made from.
//! * A layout that names an unknown attribute is left out: its objects are
//!   `Corrupt`, all others read.

use std::collections::HashMap;

use base::{Error, Result};
use dmu::{Io, Objset, Zap, ZapEntry};
use ondisk::Endian;
use std::sync::Arc;

use base::ObjectId;

/// First word of a buffer.
const MAGIC: u32 = 0x002f_505a;
/// Attributes in one registry.
const REGISTRY_MAX: usize = 4096;
/// Attributes in one layout; OpenZFS knows 23.
const LAYOUT_LEN_MAX: usize = 512;
/// Layout numbers are 10 bits.
const LAYOUT_MAX: u16 = 1023;
const LAYOUT_BITS: u16 = 0x3ff;
/// The layout without attributes.
const LAYOUT_EMPTY: u16 = 1;

macro_rules! attributes {
    ($($variant:ident $name:literal $len:literal;)*) => {
        /// The attributes that a ZPL object set registers, in the order of their
        /// usual numbers (chapter 06 §4.1).
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(dead_code, reason = "all the format's attributes are recognised, few are read")]
        pub(crate) enum Attr { $($variant,)* }

        static ATTRS: &[(Attr, &str, u16)] = &[$((Attr::$variant, $name, $len),)*];
        const KNOWN: usize = [$($len,)*].len();
    };
}

attributes! {
    Atime "ZPL_ATIME" 16;
    Mtime "ZPL_MTIME" 16;
    Ctime "ZPL_CTIME" 16;
    Crtime "ZPL_CRTIME" 16;
    Gen "ZPL_GEN" 8;
    Mode "ZPL_MODE" 8;
    Size "ZPL_SIZE" 8;
    Parent "ZPL_PARENT" 8;
    Links "ZPL_LINKS" 8;
    Xattr "ZPL_XATTR" 8;
    Rdev "ZPL_RDEV" 8;
    Flags "ZPL_FLAGS" 8;
    Uid "ZPL_UID" 8;
    Gid "ZPL_GID" 8;
    Pad "ZPL_PAD" 32;
    ZnodeAcl "ZPL_ZNODE_ACL" 88;
    DaclCount "ZPL_DACL_COUNT" 8;
    Symlink "ZPL_SYMLINK" 0;
    Scanstamp "ZPL_SCANSTAMP" 32;
    DaclAces "ZPL_DACL_ACES" 0;
    Dxattr "ZPL_DXATTR" 0;
    Projid "ZPL_PROJID" 8;
    Seq "ZPL_SEQ" 8;
}

/// Attributes whose numbers are fixed even without a registry.
const FIXED: usize = 16;

/// One attribute of a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Field {
    /// Which, if it is one of ours.
    attr: Option<Attr>,
    /// Bytes; 0 = variable.
    len: u16,
}

/// A resolved layout.
#[derive(Clone, Debug, Default)]
struct Layout {
    fields: Box<[Field]>,
    variable: usize,
}

impl Layout {
    fn new(fields: Vec<Field>) -> Layout {
        let variable = fields.iter().filter(|f| f.len == 0).count();
        Layout { fields: fields.into(), variable }
    }

    /// Bytes of the header of a buffer of this layout (§4.3).
    fn header_size(&self) -> usize {
        8 + (self.variable.saturating_sub(1) * 2).next_multiple_of(8)
    }
}

/// The registry and the layouts of one file system.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    layouts: HashMap<u16, Layout>,
}

/// What a registry entry says: number and length.
fn registry_value(value: u64) -> (u16, u16) {
    (value as u16, (value >> 24) as u16)
}

/// The registry: number → attribute.
struct Registry(HashMap<u16, Field>);

impl Registry {
    fn fixed() -> Registry {
        let fixed = ATTRS.iter().take(FIXED).enumerate();
        Registry(fixed.map(|(i, a)| (i as u16, Field { attr: Some(a.0), len: a.2 })).collect())
    }

    fn add(&mut self, name: &[u8], value: u64) -> Result<()> {
        let (number, len) = registry_value(value);
        let known = ATTRS.iter().find(|a| a.1.as_bytes() == name);
        if let Some((_, name, want)) = known
            && *want != len
        {
            return Err(Error::corrupt(format!("attribute {name} is registered with {len} bytes")));
        }
        self.0.insert(number, Field { attr: known.map(|a| a.0), len });
        Ok(())
    }

    fn resolve(&self, numbers: &[u16]) -> Option<Layout> {
        if numbers.len() > LAYOUT_LEN_MAX {
            return None;
        }
        let fields = numbers.iter().map(|n| self.0.get(n).copied()).collect::<Option<Vec<_>>>()?;
        Some(Layout::new(fields))
    }
}

fn layout_number(entry: &ZapEntry) -> Option<u16> {
    let number: u16 = std::str::from_utf8(&entry.name).ok()?.parse().ok()?;
    (number > LAYOUT_EMPTY && number <= LAYOUT_MAX).then_some(number)
}

impl Tables {
    /// Reads the tables below the SA master node (§4.1, §4.2).
    pub(crate) fn open(os: &Arc<Objset>, master: ObjectId, io: Io) -> Result<Tables> {
        let zap = Zap::open(os.object(master, io)?, io)?;
        let mut registry = Registry::fixed();
        if let Some(id) = zap.lookup_u64("REGISTRY")? {
            let entries = bounded_entries(os, id, io)?;
            if entries.is_empty() {
                return Err(Error::corrupt("empty attribute registry").in_object(ObjectId(id)));
            }
            for e in entries {
                let value = e.value.as_u64().ok_or_else(|| Error::corrupt("attribute registry"));
                value
                    .and_then(|v| registry.add(&e.name, v))
                    .map_err(|e| e.in_object(ObjectId(id)))?;
            }
        }
        let mut layouts = HashMap::from([(LAYOUT_EMPTY, Layout::default())]);
        if let Some(id) = zap.lookup_u64("LAYOUTS")? {
            for e in bounded_entries(os, id, io)? {
                let numbers = layout_number(&e).zip(e.value.u16s());
                if let Some((number, list)) = numbers
                    && let Some(layout) = registry.resolve(&list)
                {
                    layouts.insert(number, layout);
                }
            }
        }
        Ok(Tables { layouts })
    }

    /// Finds the attributes in a bonus or spill buffer.
    ///
    /// # Errors
    /// `Corrupt` when the buffer breaks chapter 06 §4.3.
    pub(crate) fn parse<'a>(&self, bytes: &'a [u8]) -> Result<Buffer<'a>> {
        let endian = match Endian::Little.u32(bytes, 0) {
            Some(0) => return Ok(Buffer { bytes, endian: Endian::Little, places: NONE }),
            Some(MAGIC) => Endian::Little,
            Some(m) if m == MAGIC.swap_bytes() => Endian::Big,
            Some(_) => return Err(Error::corrupt("system attributes without their mark")),
            None => return Err(cut_off()),
        };
        let info = endian.u16(bytes, 4).ok_or_else(cut_off)?;
        let number = (info & LAYOUT_BITS).max(LAYOUT_EMPTY);
        let layout = self.layouts.get(&number).ok_or_else(|| {
            Error::corrupt(format!("system attributes of unknown layout {number}"))
        })?;
        let header = usize::from(info >> 10) * 8;
        if header != layout.header_size() {
            return Err(Error::corrupt("system attributes with a header of odd size"));
        }
        let mut places = NONE;
        let (mut at, mut lengths_at) = (header, 6);
        for field in &layout.fields {
            at = at.next_multiple_of(8);
            let mut len = usize::from(field.len);
            if len == 0 {
                len = usize::from(endian.u16(bytes, lengths_at).ok_or_else(cut_off)?);
                lengths_at += 2;
            }
            if at + len > bytes.len() {
                return Err(cut_off());
            }
            if let Some(place) = field.attr.and_then(|a| places.get_mut(a as usize)) {
                // Bounded by LAYOUT_LEN_MAX fields of 64 KiB: 25 bits.
                *place = Some((at as u32, len as u32));
            }
            at += len;
        }
        Ok(Buffer { bytes, endian, places })
    }
}

fn bounded_entries(os: &Arc<Objset>, id: u64, io: Io) -> Result<Vec<ZapEntry>> {
    let zap = Zap::open(os.object(ObjectId(id), io)?, io)?;
    let mut all = Vec::new();
    zap.for_each(|e| {
        if all.len() >= REGISTRY_MAX {
            return Err(Error::limit("too many system attributes or layouts"));
        }
        all.push(e);
        Ok(())
    })
    .map_err(|e| e.in_object(ObjectId(id)))?;
    Ok(all)
}

fn cut_off() -> Error {
    Error::corrupt("system attributes are cut off")
}

type Places = [Option<(u32, u32)>; KNOWN];
const NONE: Places = [None; KNOWN];

/// The attributes of one buffer.
pub(crate) struct Buffer<'a> {
    bytes: &'a [u8],
    endian: Endian,
    places: Places,
}

impl<'a> Buffer<'a> {
    /// The bytes of an attribute; `None` if it is not here.
    pub(crate) fn bytes(&self, attr: Attr) -> Option<&'a [u8]> {
        let (at, len) = self.places.get(attr as usize).copied().flatten()?;
        self.bytes.get(at as usize..)?.get(..len as usize)
    }

    /// An attribute that is a number.
    pub(crate) fn u64(&self, attr: Attr) -> Option<u64> {
        self.endian.u64(self.bytes(attr)?, 0)
    }

    /// A time: seconds and nanoseconds.
    pub(crate) fn pair(&self, attr: Attr) -> Option<(u64, u64)> {
        let bytes = self.bytes(attr)?;
        Some((self.endian.u64(bytes, 0)?, self.endian.u64(bytes, 8)?))
    }

    /// Whether the attribute is here.
    pub(crate) fn has(&self, attr: Attr) -> bool {
        self.places.get(attr as usize).is_some_and(Option::is_some)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The registry and layouts of §4.1 and §4.5.
    pub(crate) fn tables() -> Tables {
        let mut registry = Registry::fixed();
        for (i, (_, name, len)) in ATTRS.iter().enumerate() {
            registry.add(name.as_bytes(), u64::from(*len) << 24 | i as u64).unwrap();
        }
        let lists: [(u16, &[u16]); 5] = [
            (1, &[]),
            (2, &[5, 6, 4, 12, 13, 7, 11, 0, 1, 2, 3, 8, 21, 16, 19]),
            (3, &[20]),
            (4, &[5, 6, 4, 12, 13, 7, 11, 0, 1, 2, 3, 8, 21, 16, 19, 17]),
            (5, &[17, 20, 19]),
        ];
        let resolve = |list: &[u16]| registry.resolve(list).unwrap();
        Tables { layouts: lists.iter().map(|(n, list)| (*n, resolve(list))).collect() }
    }

    /// The worked example of §4.6.
    pub(crate) fn example() -> Vec<u8> {
        let hex = "5a502f0002041800 a481000000000000 0b00000000000000 0900000000000000 \
            0000000000000000 0000000000000000 2200000000000000 0400000008840000 \
            b9e6ca690000000084cd9c0e00000000 b9e6ca690000000084cd9c0e00000000 \
            b9e6ca690000000084cd9c0e00000000 b9e6ca690000000084cd9c0e00000000 \
            0100000000000000 0000000000000000 0300000000000000 000000109f011e00 \
            0000402089001200 0000004089001200";
        let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
        let byte = |c: &[u8]| u8::from_str_radix(std::str::from_utf8(c).unwrap(), 16).unwrap();
        digits.chunks(2).map(byte).collect()
    }

    /// The same as a big-endian host writes it.
    pub(crate) fn example_big() -> Vec<u8> {
        let mut raw = example();
        raw[..8].copy_from_slice(&[0x00, 0x2f, 0x50, 0x5a, 0x04, 0x02, 0x00, 0x18]);
        for word in raw[8..0x98].chunks_mut(8) {
            word.reverse();
        }
        raw
    }

    #[test]
    fn the_worked_example_in_both_byte_orders() {
        let tables = tables();
        for raw in [example(), example_big()] {
            assert_eq!(raw.len(), 176);
            let sa = tables.parse(&raw).unwrap();
            assert_eq!(sa.u64(Attr::Mode), Some(0o100644));
            assert_eq!(sa.u64(Attr::Size), Some(11));
            assert_eq!(sa.u64(Attr::Parent), Some(34));
            assert_eq!(sa.u64(Attr::Flags), Some(0x8408_0000_0004));
            assert_eq!(sa.pair(Attr::Crtime), Some((1_774_905_017, 245_157_252)));
            assert_eq!(sa.bytes(Attr::DaclAces).map(<[u8]>::len), Some(24));
            assert!(!sa.has(Attr::Symlink) && sa.has(Attr::Projid));
        }
    }

    #[test]
    fn registry_values_of_the_table() {
        assert_eq!(registry_value(0x1000_0003), (3, 16));
        assert_eq!(registry_value(0x5803_000f), (15, 88));
        assert_eq!(registry_value(0x4_0013), (19, 0));
    }

    #[test]
    fn header_sizes() {
        let t = tables();
        let sizes: Vec<usize> = (1..=5).map(|n| t.layouts[&n].header_size()).collect();
        assert_eq!(sizes, [8, 8, 8, 16, 16]);
    }

    #[test]
    fn variable_lengths_follow_the_layout() {
        let mut raw = vec![0x5a, 0x50, 0x2f, 0, 5, 2 << 2, 3, 0, 0, 0, 8, 0, 0, 0, 0, 0];
        raw.extend(b"abc\0\0\0\0\0ACESACES");
        let t = tables();
        let sa = t.parse(&raw).unwrap();
        assert_eq!(sa.bytes(Attr::Symlink), Some(&b"abc"[..]));
        assert_eq!(sa.bytes(Attr::Dxattr), Some(&b""[..]));
        assert_eq!(sa.bytes(Attr::DaclAces), Some(&b"ACESACES"[..]));
    }

    #[test]
    fn refuses_what_lies() {
        let t = tables();
        assert!(t.parse(&example()[..170]).is_err());
        assert!(t.parse(&[]).is_err());
        for (at, value) in [(0, 1), (4, 9), (5, 8), (6, 25), (7, 255)] {
            let mut raw = example();
            raw[at] = value;
            assert!(t.parse(&raw).is_err(), "byte {at} = {value}");
        }
        let mut none = example();
        none[..4].fill(0);
        assert!(!t.parse(&none).unwrap().has(Attr::Mode));
        let mut registry = Registry::fixed();
        assert!(registry.add(b"ZPL_MODE", 0x1000_0005).is_err());
        assert!(registry.resolve(&[5, 99]).is_none());
    }

    proptest! {
        #[test]
        fn places_stay_inside(mut raw in prop::collection::vec(any::<u8>(), 8..400), n in 0u8..7, h in 0u8..4) {
            raw[..4].copy_from_slice(&[0x5a, 0x50, 0x2f, 0]);
            raw[4..6].copy_from_slice(&[n, h << 2]);
            if let Ok(sa) = tables().parse(&raw) {
                for (attr, ..) in ATTRS {
                    prop_assert_eq!(sa.bytes(*attr).is_some(), sa.has(*attr));
                }
            }
        }
    }
}
