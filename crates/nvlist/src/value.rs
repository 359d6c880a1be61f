//! Values and their types (chapter 01 §9.3).

use std::fmt;

use base::{Error, Result};

use crate::NvList;

/// Longest name of a pair, in bytes (chapter 01 §9.3: below 32767 with its NUL).
pub const NAME_MAX: usize = 32_765;

/// A byte string without NUL.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct NvStr(Box<[u8]>);

impl NvStr {
    /// A copy of `bytes`.
    ///
    /// # Errors
    /// `Invalid` if there is a NUL in them.
    pub fn new(bytes: &[u8]) -> Result<NvStr> {
        if bytes.contains(&0) {
            return Err(Error::invalid("a NUL inside a string"));
        }
        Ok(NvStr(bytes.into()))
    }

    /// The bytes, without terminator.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The string, if it is UTF-8.
    pub fn to_str(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()
    }
}

impl From<&str> for NvStr {
    /// # Panics
    /// If there is a NUL in the string; for strings from outside the program, use
    /// [`NvStr::new`].
    fn from(s: &str) -> NvStr {
        assert!(!s.as_bytes().contains(&0), "no NUL in the program's own strings");
        NvStr(s.as_bytes().into())
    }
}

impl PartialEq<str> for NvStr {
    fn eq(&self, other: &str) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl fmt::Display for NvStr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

impl fmt::Debug for NvStr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(&self.0))
    }
}

/// A typed value; the comment is its type code.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Value {
    /// 1: present, without value
    Boolean,
    /// 2
    Byte(u8),
    /// 3
    Int16(i16),
    /// 4
    Uint16(u16),
    /// 5
    Int32(i32),
    /// 6
    Uint32(u32),
    /// 7
    Int64(i64),
    /// 8
    Uint64(u64),
    /// 9
    String(NvStr),
    /// 10
    ByteArray(Vec<u8>),
    /// 11
    Int16Array(Vec<i16>),
    /// 12
    Uint16Array(Vec<u16>),
    /// 13
    Int32Array(Vec<i32>),
    /// 14
    Uint32Array(Vec<u32>),
    /// 15
    Int64Array(Vec<i64>),
    /// 16
    Uint64Array(Vec<u64>),
    /// 17
    StringArray(Vec<NvStr>),
    /// 18: nanoseconds
    Hrtime(i64),
    /// 19
    List(NvList),
    /// 20
    ListArray(Vec<NvList>),
    /// 21
    BooleanValue(bool),
    /// 22
    Int8(i8),
    /// 23
    Uint8(u8),
    /// 24
    BooleanArray(Vec<bool>),
    /// 25
    Int8Array(Vec<i8>),
    /// 26
    Uint8Array(Vec<u8>),
    /// 27
    Double(f64),
}

impl Value {
    /// The type code (chapter 01 §9.3).
    pub(crate) fn type_code(&self) -> u32 {
        match self {
            Value::Boolean => 1,
            Value::Byte(_) => 2,
            Value::Int16(_) => 3,
            Value::Uint16(_) => 4,
            Value::Int32(_) => 5,
            Value::Uint32(_) => 6,
            Value::Int64(_) => 7,
            Value::Uint64(_) => 8,
            Value::String(_) => 9,
            Value::ByteArray(_) => 10,
            Value::Int16Array(_) => 11,
            Value::Uint16Array(_) => 12,
            Value::Int32Array(_) => 13,
            Value::Uint32Array(_) => 14,
            Value::Int64Array(_) => 15,
            Value::Uint64Array(_) => 16,
            Value::StringArray(_) => 17,
            Value::Hrtime(_) => 18,
            Value::List(_) => 19,
            Value::ListArray(_) => 20,
            Value::BooleanValue(_) => 21,
            Value::Int8(_) => 22,
            Value::Uint8(_) => 23,
            Value::BooleanArray(_) => 24,
            Value::Int8Array(_) => 25,
            Value::Uint8Array(_) => 26,
            Value::Double(_) => 27,
        }
    }

    /// Number of elements: 0 for a boolean without value, 1 for scalars.
    pub fn count(&self) -> usize {
        match self {
            Value::Boolean => 0,
            Value::ByteArray(v) | Value::Uint8Array(v) => v.len(),
            Value::Int8Array(v) => v.len(),
            Value::Int16Array(v) => v.len(),
            Value::Uint16Array(v) => v.len(),
            Value::Int32Array(v) => v.len(),
            Value::Uint32Array(v) => v.len(),
            Value::Int64Array(v) => v.len(),
            Value::Uint64Array(v) => v.len(),
            Value::StringArray(v) => v.len(),
            Value::ListArray(v) => v.len(),
            Value::BooleanArray(v) => v.len(),
            _ => 1,
        }
    }

    /// Unpadded size in native encoding, nested pairs excluded (chapter 01 §9.3).
    pub(crate) fn native_size(&self) -> usize {
        match self {
            Value::Boolean => 0,
            Value::Byte(_) | Value::Int8(_) | Value::Uint8(_) => 1,
            Value::Int16(_) | Value::Uint16(_) => 2,
            Value::Int32(_) | Value::Uint32(_) | Value::BooleanValue(_) => 4,
            Value::Int64(_) | Value::Uint64(_) | Value::Hrtime(_) | Value::Double(_) => 8,
            Value::String(s) => s.as_bytes().len() + 1,
            Value::ByteArray(_) | Value::Int8Array(_) | Value::Uint8Array(_) => self.count(),
            Value::Int16Array(_) | Value::Uint16Array(_) => 2 * self.count(),
            Value::Int32Array(_) | Value::Uint32Array(_) | Value::BooleanArray(_) => {
                4 * self.count()
            }
            Value::Int64Array(_) | Value::Uint64Array(_) => 8 * self.count(),
            Value::StringArray(v) => v.iter().map(|s| 8 + s.as_bytes().len() + 1).sum(),
            Value::List(_) => 24,
            Value::ListArray(v) => 32 * v.len(),
        }
    }
}

/// `n` rounded up to a multiple of 8.
pub(crate) fn align8(n: usize) -> usize {
    n.next_multiple_of(8)
}

/// The error for a packed list that ends before its stated size.
pub(crate) fn short() -> Error {
    Error::corrupt("a packed list is cut short")
}

/// Reads `n` elements of at least `size` bytes each, of which `left` bytes remain. An
/// impossible count allocates nothing.
pub(crate) fn elements<T>(
    n: usize,
    size: usize,
    left: usize,
    mut read: impl FnMut() -> Result<T>,
) -> Result<Vec<T>> {
    if n.checked_mul(size).is_none_or(|bytes| bytes > left) {
        return Err(short());
    }
    let mut out = Vec::with_capacity(n);
    for _ in 0..n {
        out.push(read()?);
    }
    Ok(out)
}

macro_rules! from {
    ($($ty:ty => $variant:ident),* $(,)?) => {
        $(impl From<$ty> for Value {
            fn from(v: $ty) -> Value {
                Value::$variant(v)
            }
        })*
    };
}

from! {
    bool => BooleanValue,
    i16 => Int16, u16 => Uint16, i32 => Int32, u32 => Uint32, i64 => Int64, u64 => Uint64,
    NvStr => String, NvList => List,
    Vec<NvList> => ListArray, Vec<u64> => Uint64Array, Vec<NvStr> => StringArray,
    Vec<u8> => ByteArray,
}

impl From<&str> for Value {
    fn from(v: &str) -> Value {
        Value::String(v.into())
    }
}

impl From<&[u64]> for Value {
    fn from(v: &[u64]) -> Value {
        Value::Uint64Array(v.to_vec())
    }
}
