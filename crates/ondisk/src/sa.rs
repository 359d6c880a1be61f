//! System attributes: registry, layouts, buffers (chapter 06 §4).
//!
//! # Theory
//! The attributes of an object are packed into the dnode's bonus buffer and, if they do
//! not fit, a spill block, in the order of a numbered *layout*. The *registry* maps
//! names to numbers, lengths and byte-swap classes. Both are ZAPs of the object set.
//! Numbers are looked up by name, because an older file system may have them in another
//! order.
//!
//! # Invariants
//! * A buffer's byte order comes from its own magic, not from the block that
//!   holds it.
//! * An [`SaBuffer`] was walked once when it was created: each attribute of its layout
//!   lies within it.
//! * Layouts list registered attributes only, and none twice.
//!
//! # Departures
//! A registry that assigns one number twice is refused.

use std::collections::BTreeMap;

use base::{Error, ErrorKind, Result};

use crate::endian::Endian;
use crate::zapleaf::{u16_at, u32_at};

pub use crate::znode::ZnodeAttrs;

/// `sa_magic`.
pub const SA_MAGIC: u32 = 0x002F_505A;
/// Attributes that a registry may hold; numbers have 16 bits, but there are far fewer
/// attributes.
pub const SA_ATTRS_MAX: usize = 4096;
/// Layout numbers are 10 bits.
pub const SA_LAYOUTS_MAX: usize = 1024;
/// Attributes of one layout.
pub(crate) const SA_LAYOUT_ATTRS_MAX: usize = 4096;
/// Largest spill block.
pub(crate) const SA_SPILL_MAX: usize = 131_072;
/// The layout of legacy znodes, never stored in a buffer.
pub(crate) const SA_LAYOUT_LEGACY: u16 = 0;
/// The layout without attributes.
pub(crate) const SA_LAYOUT_EMPTY: u16 = 1;
const HEADER: usize = 8;

/// How an attribute is converted between byte orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwapClass {
    /// Array of 64-bit words.
    U64,
    /// Array of 32-bit words.
    U32,
    /// Array of 16-bit words.
    U16,
    /// Bytes.
    Bytes,
    /// Access control entries.
    Acl,
}

macro_rules! attrs {
    ($($variant:ident = $name:literal, $len:literal, $class:ident;)*) => {
        /// The attributes that a file system knows, numbered as OpenZFS registers
        /// them in a new one (§4.1); numbers on disk come from the registry.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u16)]
        pub enum ZplAttr {
            $(#[doc = $name] $variant),*
        }

        impl ZplAttr {
            /// All of them, in order.
            pub const ALL: &[ZplAttr] = &[$(ZplAttr::$variant),*];

            /// The name in the registry.
            pub fn name(self) -> &'static str {
                match self { $(ZplAttr::$variant => $name),* }
            }

            /// Bytes; 0 for variable length.
            pub fn length(self) -> u16 {
                match self { $(ZplAttr::$variant => $len),* }
            }

            /// Byte-swap class.
            pub fn class(self) -> SwapClass {
                match self { $(ZplAttr::$variant => SwapClass::$class),* }
            }
        }
    };
}

attrs! {
    Atime = "ZPL_ATIME", 16, U64;
    Mtime = "ZPL_MTIME", 16, U64;
    Ctime = "ZPL_CTIME", 16, U64;
    Crtime = "ZPL_CRTIME", 16, U64;
    Gen = "ZPL_GEN", 8, U64;
    Mode = "ZPL_MODE", 8, U64;
    Size = "ZPL_SIZE", 8, U64;
    Parent = "ZPL_PARENT", 8, U64;
    Links = "ZPL_LINKS", 8, U64;
    Xattr = "ZPL_XATTR", 8, U64;
    Rdev = "ZPL_RDEV", 8, U64;
    Flags = "ZPL_FLAGS", 8, U64;
    Uid = "ZPL_UID", 8, U64;
    Gid = "ZPL_GID", 8, U64;
    Pad = "ZPL_PAD", 32, U64;
    ZnodeAcl = "ZPL_ZNODE_ACL", 88, Bytes;
    DaclCount = "ZPL_DACL_COUNT", 8, U64;
    Symlink = "ZPL_SYMLINK", 0, Bytes;
    Scanstamp = "ZPL_SCANSTAMP", 32, Bytes;
    DaclAces = "ZPL_DACL_ACES", 0, Acl;
    Dxattr = "ZPL_DXATTR", 0, Bytes;
    Projid = "ZPL_PROJID", 8, U64;
    Seq = "ZPL_SEQ", 8, U64;
}

/// Attributes with fixed numbers, which exist without a registry.
const FIXED: usize = 16;

/// A registered attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SaAttr {
    /// Name.
    pub name: Box<[u8]>,
    /// Number.
    pub number: u16,
    /// Bytes; 0 for variable length.
    pub length: u16,
    /// Byte-swap class.
    pub class: SwapClass,
    /// The attribute's identity, if this version knows it.
    pub known: Option<ZplAttr>,
}

impl SaAttr {
    /// From an entry of the registry ZAP.
    ///
    /// # Errors
    /// `Corrupt` for an unknown byte-swap class or stray bits.
    pub fn decode(name: &[u8], value: u64) -> Result<SaAttr> {
        let class = match (value >> 16) as u8 {
            0 => SwapClass::U64,
            1 => SwapClass::U32,
            2 => SwapClass::U16,
            3 => SwapClass::Bytes,
            4 => SwapClass::Acl,
            _ => return Err(Error::corrupt("SA registry: unknown byte-swap class")),
        };
        if value >> 40 != 0 {
            return Err(Error::corrupt("SA registry: stray bits"));
        }
        let length = (value >> 24) as u16;
        let known = ZplAttr::ALL.iter().copied().find(|a| a.name().as_bytes() == name);
        if known.is_some_and(|k| k.length() != length) {
            return Err(Error::corrupt("SA registry: an attribute has the wrong length"));
        }
        Ok(SaAttr { name: name.into(), number: value as u16, length, class, known })
    }

    /// The value of the registry entry.
    pub fn encode(&self) -> u64 {
        let class = match self.class {
            SwapClass::U64 => 0,
            SwapClass::U32 => 1,
            SwapClass::U16 => 2,
            SwapClass::Bytes => 3,
            SwapClass::Acl => 4,
        };
        u64::from(self.number) | class << 16 | u64::from(self.length) << 24
    }

    fn of_known(attr: ZplAttr) -> SaAttr {
        SaAttr {
            name: attr.name().as_bytes().into(),
            number: attr as u16,
            length: attr.length(),
            class: attr.class(),
            known: Some(attr),
        }
    }
}

/// The registry and layouts of an object set.
#[derive(Clone, Debug, Default)]
pub struct SaTables {
    attrs: Vec<Option<SaAttr>>,
    numbers: [Option<u16>; ZplAttr::ALL.len()],
    layouts: BTreeMap<u16, Box<[u16]>>,
}

impl SaTables {
    /// From the entries of the two ZAPs: names and numbers of the registry;
    /// names and 16-bit arrays of the layouts.
    ///
    /// # Errors
    /// `Corrupt` when either is empty, a number is used twice, or a layout has
    /// an impossible number or unregistered attributes.
    pub fn new<'n>(
        registry: impl IntoIterator<Item = (&'n [u8], u64)>,
        layouts: impl IntoIterator<Item = (&'n [u8], Vec<u16>)>,
    ) -> Result<SaTables> {
        let mut tables = SaTables::default();
        for (name, value) in registry {
            tables.register(SaAttr::decode(name, value)?)?;
        }
        if tables.attrs.is_empty() {
            return Err(Error::corrupt("the SA registry is empty"));
        }
        for &attr in ZplAttr::ALL.iter().take(FIXED) {
            if tables.numbers[attr as usize].is_none() {
                tables.register(SaAttr::of_known(attr))?;
            }
        }
        for (name, attrs) in layouts {
            let number = parse_decimal(name)
                .ok_or_else(|| Error::corrupt("SA layouts: a name is not a number"))?;
            tables.add_layout(number, &attrs)?;
        }
        if tables.layouts.is_empty() {
            return Err(Error::corrupt("there are no SA layouts"));
        }
        Ok(tables)
    }

    /// The attributes that a new file system registers, without layouts.
    pub fn standard() -> SaTables {
        let mut tables = SaTables::default();
        for &attr in ZplAttr::ALL {
            let registered = tables.register(SaAttr::of_known(attr));
            debug_assert!(registered.is_ok(), "the standard numbers are distinct");
        }
        tables
    }

    fn register(&mut self, attr: SaAttr) -> Result<()> {
        let n = usize::from(attr.number);
        if n >= SA_ATTRS_MAX {
            return Err(Error::corrupt("SA registry: a number is too large"));
        }
        if self.attrs.len() <= n {
            self.attrs.resize(n + 1, None);
        }
        if self.attrs[n].is_some() {
            return Err(Error::corrupt("SA registry: two attributes have one number"));
        }
        if let Some(known) = attr.known {
            self.numbers[known as usize] = Some(attr.number);
        }
        self.attrs[n] = Some(attr);
        Ok(())
    }

    /// Adds a layout.
    ///
    /// # Errors
    /// `Corrupt` as [`SaTables::new`].
    pub fn add_layout(&mut self, number: u16, attrs: &[u16]) -> Result<()> {
        if usize::from(number) >= SA_LAYOUTS_MAX || number <= SA_LAYOUT_EMPTY {
            return Err(Error::corrupt("SA layouts: impossible number"));
        }
        if attrs.len() > SA_LAYOUT_ATTRS_MAX || attrs.iter().any(|a| self.attr(*a).is_none()) {
            return Err(Error::corrupt("an SA layout has unregistered attributes"));
        }
        let mut sorted = attrs.to_vec();
        sorted.sort_unstable();
        if sorted.windows(2).any(|w| w[0] == w[1]) {
            return Err(Error::corrupt("an SA layout lists an attribute twice"));
        }
        self.layouts.insert(number, attrs.into());
        Ok(())
    }

    /// Registers an attribute that this version knows and the object set does not. Its
    /// number is the count of attributes registered so far (§4.1).
    ///
    /// # Errors
    /// `Corrupt` when there are too many, or numbers were assigned with gaps.
    pub fn add_known(&mut self, attr: ZplAttr) -> Result<SaAttr> {
        let number = self.attrs().count();
        let number = u16::try_from(number).map_err(|_| Error::corrupt("SA registry: full"))?;
        let attr = SaAttr { number, ..SaAttr::of_known(attr) };
        self.register(attr.clone())?;
        Ok(attr)
    }

    /// A registered attribute.
    pub fn attr(&self, number: u16) -> Option<&SaAttr> {
        self.attrs.get(usize::from(number))?.as_ref()
    }

    /// Every registered attribute, by number.
    pub fn attrs(&self) -> impl Iterator<Item = &SaAttr> {
        self.attrs.iter().flatten()
    }

    /// The number of a known attribute, if registered.
    pub fn number(&self, attr: ZplAttr) -> Option<u16> {
        self.numbers[attr as usize]
    }

    /// The attributes of a layout, in order.
    pub fn layout(&self, number: u16) -> Option<&[u16]> {
        match number {
            // A buffer that claims the legacy layout has no attributes (§4.3).
            SA_LAYOUT_LEGACY | SA_LAYOUT_EMPTY => Some(&[]),
            n => self.layouts.get(&n).map(AsRef::as_ref),
        }
    }

    /// The number of the layout with exactly this list.
    pub fn find_layout(&self, attrs: &[u16]) -> Option<u16> {
        if attrs.is_empty() {
            return Some(SA_LAYOUT_EMPTY);
        }
        self.layouts.iter().find(|(_, l)| l.as_ref() == attrs).map(|(n, _)| *n)
    }

    /// The number for a new layout: the count of known layouts, 0 and 1 included.
    pub fn next_layout(&self) -> Option<u16> {
        u16::try_from(self.layouts.len() + 2).ok().filter(|n| usize::from(*n) < SA_LAYOUTS_MAX)
    }
}

fn parse_decimal(name: &[u8]) -> Option<u16> {
    std::str::from_utf8(name).ok()?.parse().ok()
}

/// One attribute in a buffer.
#[derive(Clone, Copy, Debug)]
pub struct SaItem<'a> {
    /// Number.
    pub number: u16,
    /// Its identity, if known.
    pub attr: Option<ZplAttr>,
    /// Byte order of the content.
    pub endian: Endian,
    /// The content.
    pub bytes: &'a [u8],
    /// Its offset in the buffer.
    pub offset: usize,
}

/// A bonus buffer or spill block with attributes.
#[derive(Clone, Copy, Debug)]
pub struct SaBuffer<'a, 't> {
    bytes: &'a [u8],
    endian: Endian,
    tables: &'t SaTables,
    layout: &'t [u16],
    header: usize,
}

impl<'a, 't> SaBuffer<'a, 't> {
    /// Parses a buffer: the bonus up to its length, or a whole spill block.
    ///
    /// # Errors
    /// `Corrupt` for a wrong magic, an unknown layout, a header of the wrong
    /// size, or attributes that exceed the buffer.
    pub fn parse(bytes: &'a [u8], tables: &'t SaTables) -> Result<SaBuffer<'a, 't>> {
        let empty = SaBuffer { bytes, endian: Endian::Little, tables, layout: &[], header: HEADER };
        if bytes.len() < 4 {
            // A bonus without bytes has no attributes.
            return if bytes.is_empty() { Ok(empty) } else { Err(Error::corrupt("SA: too short")) };
        }
        let endian = match u32_at(bytes, 0, Endian::Little)? {
            0 => return Ok(empty),
            SA_MAGIC => Endian::Little,
            m if m.swap_bytes() == SA_MAGIC => Endian::Big,
            _ => return Err(Error::corrupt("SA: wrong magic number")),
        };
        let info = u16_at(bytes, 4, endian)?;
        let layout_number = info & 0x3ff;
        let header = usize::from(info >> 10) * 8;
        let layout = tables
            .layout(layout_number)
            .ok_or_else(|| Error::corrupt(format!("SA: there is no layout {layout_number}")))?;
        let variable = layout.iter().filter(|a| length_of(tables, **a) == Some(0)).count();
        if layout.is_empty() {
            return Ok(SaBuffer { endian, ..empty });
        }
        if header != header_size(variable) {
            return Err(Error::corrupt("SA: the header has the wrong size"));
        }
        let buffer = SaBuffer { bytes, endian, tables, layout, header };
        if buffer.iter().count() != layout.len() {
            return Err(Error::corrupt("SA: the attributes exceed their buffer"));
        }
        Ok(buffer)
    }

    /// Byte order of the buffer.
    pub fn endian(&self) -> Endian {
        self.endian
    }

    /// The attributes, in order.
    pub fn iter(&self) -> impl Iterator<Item = SaItem<'a>> + use<'a, 't> {
        let SaBuffer { bytes, endian, tables, layout, header, .. } = *self;
        let mut off = header;
        let mut variable = 0;
        layout.iter().map_while(move |&number| {
            let attr = tables.attr(number)?;
            let mut len = usize::from(attr.length);
            if len == 0 {
                len = endian.u16(bytes, 6 + 2 * variable)?.into();
                variable += 1;
            }
            let (offset, content) = (off, bytes.get(off..off + len)?);
            off = (off + len).next_multiple_of(8);
            Some(SaItem { number, attr: attr.known, endian, bytes: content, offset })
        })
    }
}

fn length_of(tables: &SaTables, number: u16) -> Option<u16> {
    tables.attr(number).map(|a| a.length)
}

/// Header bytes of a buffer with this many attributes of variable length.
fn header_size(variable: usize) -> usize {
    HEADER + (2 * variable.saturating_sub(1)).next_multiple_of(8)
}

/// The attributes of an object: its bonus and, if it has one, its spill block.
#[derive(Clone, Copy, Debug)]
pub struct Sa<'a, 't> {
    /// The bonus buffer.
    pub bonus: SaBuffer<'a, 't>,
    /// The spill block.
    pub spill: Option<SaBuffer<'a, 't>>,
}

impl<'a, 't> Sa<'a, 't> {
    /// Parses both buffers.
    ///
    /// # Errors
    /// As [`SaBuffer::parse`].
    pub fn parse(bonus: &'a [u8], spill: Option<&'a [u8]>, tables: &'t SaTables) -> Result<Self> {
        Ok(Sa {
            bonus: SaBuffer::parse(bonus, tables)?,
            spill: spill.map(|s| SaBuffer::parse(s, tables)).transpose()?,
        })
    }

    /// Every attribute, those of the bonus first.
    pub fn iter(&self) -> impl Iterator<Item = SaItem<'a>> + use<'a, 't> {
        let spill = self.spill;
        self.bonus.iter().chain(spill.into_iter().flat_map(|s| s.iter()))
    }

    /// An attribute that this version knows.
    pub fn get(&self, attr: ZplAttr) -> Option<SaItem<'a>> {
        self.iter().find(|i| i.attr == Some(attr))
    }

    /// The first word of an attribute.
    pub fn u64(&self, attr: ZplAttr) -> Option<u64> {
        let item = self.get(attr)?;
        item.endian.u64(item.bytes, 0)
    }
}

/// How an ordered list of attributes is divided (§4.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// This many attributes stay in the bonus, the others go to the spill block.
    pub in_bonus: usize,
    /// Bytes of the bonus.
    pub bonus_len: usize,
}

/// Divides attributes, given as (length, variable) in order, between a bonus of
/// `full` bytes (slots·512 − 192) and a spill block, as OpenZFS does (§4.4).
///
/// # Errors
/// `Limit` when they exceed the largest spill block (EFBIG).
pub fn place(attrs: &[(usize, bool)], full: usize) -> Result<Placement> {
    let mut hdr = HEADER;
    let mut index = None;
    let (mut total, mut extra, mut variable) = (0usize, 0, 0);
    let mut spill = false;
    for (i, &(len, var)) in attrs.iter().enumerate() {
        total = total.next_multiple_of(8).saturating_add(len);
        if total > SA_SPILL_MAX {
            return Err(Error::limit("the attributes of an object exceed 128 KiB"));
        }
        if spill {
            continue;
        }
        variable += usize::from(var);
        let more = var && variable > 1;
        let tmp = hdr + if more { 2 } else { 0 };
        let might = index.is_none() && total + tmp.next_multiple_of(8) > full.saturating_sub(128);
        if more {
            if tmp + total < full {
                hdr = tmp;
                if index.is_some() || might {
                    extra += 2;
                }
            } else {
                index.get_or_insert(i);
                spill = true;
                continue;
            }
        }
        if might {
            index = Some(i);
        }
        if total + hdr.next_multiple_of(8) > full {
            spill = true;
        }
    }
    if spill {
        hdr -= extra;
    }
    hdr = hdr.next_multiple_of(8);
    Ok(if spill {
        Placement {
            in_bonus: index.unwrap_or(attrs.len()),
            bonus_len: (total + hdr).min(full.saturating_sub(128)),
        }
    } else {
        Placement { in_bonus: attrs.len(), bonus_len: total + hdr }
    })
}

/// Encodes a buffer of layout `number`, little endian; `values` are the contents
/// of the layout's attributes in order.
///
/// # Errors
/// `Invalid` when a content has the wrong length or the layout is unknown.
pub fn encode_buffer(tables: &SaTables, number: u16, values: &[&[u8]]) -> Result<Vec<u8>> {
    let bad = |what: &str| Error::new(ErrorKind::Invalid, format!("SA buffer: {what}"));
    let layout = tables.layout(number).ok_or_else(|| bad("unknown layout"))?;
    if layout.len() != values.len() {
        return Err(bad("wrong number of attributes"));
    }
    let mut lengths = Vec::new();
    for (attr, value) in layout.iter().zip(values) {
        match length_of(tables, *attr) {
            Some(0) => {
                lengths.push(u16::try_from(value.len()).map_err(|_| bad("attribute too long"))?);
            }
            Some(n) if usize::from(n) == value.len() => {}
            _ => return Err(bad("attribute of the wrong length")),
        }
    }
    let header = header_size(lengths.len());
    let info = u16::try_from(header / 8)
        .ok()
        .filter(|h| *h < 64)
        .map(|h| h << 10 | number)
        .ok_or_else(|| bad("too many variable attributes"))?;
    let mut out = Vec::with_capacity(header + values.iter().map(|v| v.len() + 8).sum::<usize>());
    out.extend_from_slice(&SA_MAGIC.to_le_bytes());
    out.extend_from_slice(&info.to_le_bytes());
    out.extend(lengths.iter().flat_map(|l| l.to_le_bytes()));
    out.resize(header, 0);
    for value in values {
        out.resize(out.len().next_multiple_of(8), 0);
        out.extend_from_slice(value);
    }
    Ok(out)
}

#[cfg(test)]
mod tests;
