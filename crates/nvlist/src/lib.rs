//! Name/value lists, packed in XDR and native encoding.
//!
//! # Theory
//! An [`NvList`] is an ordered list of (name, typed value) pairs; values nest. Two
//! packings exist on disk (chapter 01 §9). XDR is always big-endian; labels, the MOS
//! configuration and extended attributes use it. Native packing has the writer's byte
//! order; the cache file, the pool's history and send streams use it. A 4-byte header
//! in front of the outermost list names the packing.
//!
//! # Invariants
//! * Names and strings contain no NUL; names are at most [`NAME_MAX`] bytes. They are
//!   bytes, not UTF-8, because extended attributes contain whatever a user wrote.
//! * Unpacking trusts no input. Depth, pair count and size are limited
//!   (`base::limits`). Memory stays within a small multiple of the input, because an
//!   element count is accepted only after the bytes that it claims were found in the
//!   input.
//! * Packing a list that was unpacked yields the same bytes, except for padding and the
//!   informational byte-order mark.
//!
//! # Departures
//! A native list of the other byte order is also read (the kernel refuses it), because
//! the history of a pool that moved between machines contains such records. Two pairs
//! with the same name are kept; look-ups return the first.

mod display;
mod native;
mod value;
mod xdr;

pub use display::Indented;
pub use value::{NAME_MAX, NvStr, Value};

use base::{Error, Result};

/// Byte order of a native packing, and the mark in the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Most significant byte first.
    Big,
    /// Least significant byte first.
    Little,
}

/// A packing (byte 0 of the header, chapter 01 §9.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// In the writer's byte order.
    Native(Order),
    /// Big-endian, 4-byte aligned.
    Xdr,
}

/// nvflag: no two pairs share a name. All lists in pools have it.
pub(crate) const UNIQUE_NAME: u32 = 1;
/// Bytes in front of the outermost list.
pub const HEADER_SIZE: usize = 4;

/// An ordered list of names and values.
#[derive(Clone, Debug, PartialEq)]
pub struct NvList {
    flags: u32,
    pairs: Vec<(NvStr, Value)>,
}

impl Default for NvList {
    fn default() -> Self {
        NvList { flags: UNIQUE_NAME, pairs: Vec::new() }
    }
}

macro_rules! getters {
    ($($(#[$doc:meta])* $name:ident: $variant:ident => $ty:ty),* $(,)?) => {
        $($(#[$doc])*
        pub fn $name(&self, name: &str) -> Option<$ty> {
            match self.get(name) {
                Some(Value::$variant(v)) => Some(v.clone().into()),
                _ => None,
            }
        })*
    };
}

macro_rules! slice_getters {
    ($($(#[$doc:meta])* $name:ident: $variant:ident => $ty:ty),* $(,)?) => {
        $($(#[$doc])*
        pub fn $name(&self, name: &str) -> Option<$ty> {
            match self.get(name) {
                Some(Value::$variant(v)) => Some(v),
                _ => None,
            }
        })*
    };
}

impl NvList {
    /// An empty list with unique names.
    pub fn new() -> NvList {
        NvList::default()
    }

    /// The list's nvflag word.
    pub fn flags(&self) -> u32 {
        self.flags
    }

    /// An empty list with the given nvflag word.
    pub(crate) fn with_flags(flags: u32) -> NvList {
        NvList { flags, pairs: Vec::new() }
    }

    /// Number of pairs, nested ones not included.
    pub fn len(&self) -> usize {
        self.pairs.len()
    }

    /// Whether there is no pair.
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// The pairs in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&NvStr, &Value)> + DoubleEndedIterator {
        self.pairs.iter().map(|(name, value)| (name, value))
    }

    /// The value of the first pair called `name`.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.get_bytes(name.as_bytes())
    }

    /// As [`NvList::get`], for names that need not be UTF-8.
    pub fn get_bytes(&self, name: &[u8]) -> Option<&Value> {
        self.pairs.iter().find(|(n, _)| n.as_bytes() == name).map(|(_, v)| v)
    }

    /// Whether a pair with this name exists, of any type.
    pub fn contains(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    getters! {
        /// A 64-bit unsigned value.
        u64: Uint64 => u64,
        /// A 64-bit signed value.
        i64: Int64 => i64,
        /// A 32-bit unsigned value.
        u32: Uint32 => u32,
        /// A 32-bit signed value.
        i32: Int32 => i32,
        /// A boolean with a value; see [`NvList::flag`] for those without.
        bool: BooleanValue => bool,
    }

    slice_getters! {
        /// A nested list.
        list: List => &NvList,
        /// An array of nested lists.
        lists: ListArray => &[NvList],
        /// An array of 64-bit unsigned values.
        u64s: Uint64Array => &[u64],
        /// A byte array.
        bytes: ByteArray => &[u8],
        /// A string, as bytes.
        string: String => &NvStr,
        /// An array of strings.
        strings: StringArray => &[NvStr],
    }

    /// A string, if it is UTF-8.
    pub fn str(&self, name: &str) -> Option<&str> {
        self.string(name)?.to_str()
    }

    /// Whether the boolean without value `name` is present.
    pub fn flag(&self, name: &str) -> bool {
        matches!(self.get(name), Some(Value::Boolean))
    }

    fn required<T>(value: Option<T>, name: &str, what: &str) -> Result<T> {
        value.ok_or_else(|| Error::corrupt(format!("configuration lacks {what} \"{name}\"")))
    }

    /// As [`NvList::u64`], for a pair that must exist.
    ///
    /// # Errors
    /// `Corrupt` if it is absent or of another type.
    pub fn need_u64(&self, name: &str) -> Result<u64> {
        Self::required(self.u64(name), name, "the number")
    }

    /// As [`NvList::str`], for a pair that must exist.
    ///
    /// # Errors
    /// `Corrupt` if it is absent, of another type or not UTF-8.
    pub fn need_str(&self, name: &str) -> Result<&str> {
        Self::required(self.str(name), name, "the string")
    }

    /// As [`NvList::list`], for a pair that must exist.
    ///
    /// # Errors
    /// `Corrupt` if it is absent or of another type.
    pub fn need_list(&self, name: &str) -> Result<&NvList> {
        Self::required(self.list(name), name, "the list")
    }

    /// Sets `name`, in place if it exists, otherwise at the end.
    ///
    /// # Panics
    /// If the name contains a NUL or exceeds [`NAME_MAX`] bytes. For names that are not
    /// constants of the program, use [`NvList::try_insert`].
    pub fn insert(&mut self, name: &str, value: impl Into<Value>) -> &mut NvList {
        let fits = self.try_insert(name.as_bytes(), value.into());
        assert!(fits.is_ok(), "the program's own name for a pair is valid: {name:?}");
        self
    }

    /// Sets `name`, in place if it exists, otherwise at the end.
    ///
    /// # Errors
    /// `Invalid` if the name holds a NUL or exceeds [`NAME_MAX`] bytes.
    pub fn try_insert(&mut self, name: &[u8], value: Value) -> Result<()> {
        let name = NvStr::new(name)?;
        if name.as_bytes().len() > NAME_MAX {
            return Err(Error::invalid("a pair's name is too long"));
        }
        match self.pairs.iter_mut().find(|(n, _)| *n == name) {
            Some((_, old)) => *old = value,
            None => self.pairs.push((name, value)),
        }
        Ok(())
    }

    /// Adds a boolean without value.
    pub fn add_flag(&mut self, name: &str) -> &mut NvList {
        self.insert(name, Value::Boolean)
    }

    /// Adds a 64-bit unsigned value.
    pub fn add_u64(&mut self, name: &str, value: u64) -> &mut NvList {
        self.insert(name, Value::Uint64(value))
    }

    /// Adds a string.
    ///
    /// # Panics
    /// If `value` holds a NUL.
    pub fn add_str(&mut self, name: &str, value: &str) -> &mut NvList {
        self.insert(name, value)
    }

    /// Adds a nested list.
    pub fn add_list(&mut self, name: &str, value: NvList) -> &mut NvList {
        self.insert(name, value)
    }

    /// Adds an array of nested lists.
    pub fn add_lists(&mut self, name: &str, value: Vec<NvList>) -> &mut NvList {
        self.insert(name, value)
    }

    /// Removes every pair called `name`; returns the first one's value, if any.
    pub fn remove(&mut self, name: &str) -> Option<Value> {
        let at = self.pairs.iter().position(|(n, _)| n.as_bytes() == name.as_bytes())?;
        let (_, value) = self.pairs.remove(at);
        self.pairs.retain(|(n, _)| n.as_bytes() != name.as_bytes());
        Some(value)
    }

    /// The encoding named in a packed list's header.
    ///
    /// # Errors
    /// `Corrupt` for an unknown header.
    pub fn encoding(bytes: &[u8]) -> Result<Encoding> {
        match bytes {
            [0, 0, ..] => Ok(Encoding::Native(Order::Big)),
            [0, 1, ..] => Ok(Encoding::Native(Order::Little)),
            [1, 0 | 1, ..] => Ok(Encoding::Xdr),
            _ => Err(Error::corrupt("not a packed name/value list")),
        }
    }

    /// Unpacks a list by its header; bytes after the list are ignored.
    ///
    /// # Errors
    /// `Corrupt` for bytes that violate chapter 01 §9, `Limit` for a list larger
    /// or deeper than `base::limits` allows.
    pub fn unpack(bytes: &[u8]) -> Result<NvList> {
        Self::unpack_prefix(bytes).map(|(list, _)| list)
    }

    /// As [`NvList::unpack`]; also returns the number of bytes of the list.
    ///
    /// # Errors
    /// As [`NvList::unpack`].
    pub(crate) fn unpack_prefix(bytes: &[u8]) -> Result<(NvList, usize)> {
        let encoding = Self::encoding(bytes)?;
        let body = bytes
            .get(HEADER_SIZE..)
            .ok_or_else(|| Error::corrupt("a packed list ends inside its header"))?;
        let (list, used) = match encoding {
            Encoding::Xdr => xdr::unpack(body)?,
            Encoding::Native(order) => native::unpack(body, order)?,
        };
        Ok((list, used + HEADER_SIZE))
    }

    /// Packs in XDR, header included.
    pub fn pack_xdr(&self) -> Vec<u8> {
        xdr::pack(self)
    }

    /// Packs in native encoding, header included.
    pub fn pack_native(&self, order: Order) -> Vec<u8> {
        native::pack(self, order)
    }

    /// Bytes that [`NvList::pack_xdr`] yields.
    pub fn xdr_size(&self) -> usize {
        HEADER_SIZE + xdr::list_size(self)
    }

    /// A printable form whose lines are indented by `indent` additional spaces.
    pub fn indented(&self, indent: usize) -> Indented<'_> {
        Indented { list: self, indent }
    }

    fn push_raw(&mut self, name: NvStr, value: Value) {
        self.pairs.push((name, value));
    }
}

impl<'a> FromIterator<(&'a str, Value)> for NvList {
    fn from_iter<I: IntoIterator<Item = (&'a str, Value)>>(iter: I) -> NvList {
        let mut list = NvList::new();
        for (name, value) in iter {
            list.insert(name, value);
        }
        list
    }
}

#[cfg(test)]
mod tests;
