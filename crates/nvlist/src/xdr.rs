//! XDR packing (chapter 01 §9.4): big-endian words, everything 4-byte aligned.

use base::limits::{NVLIST_DEPTH_MAX, NVLIST_PAIRS_MAX, NVLIST_SIZE_MAX};
use base::{Error, Result};

use crate::value::{NAME_MAX, NvStr, Value, align8, elements, short};
use crate::{HEADER_SIZE, NvList};

/// A checked reader over the packed bytes.
struct XdrReader<'a> {
    rest: &'a [u8],
    pairs: usize,
}

impl<'a> XdrReader<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8]> {
        let (head, tail) = self.rest.split_at_checked(n).ok_or_else(short)?;
        self.rest = tail;
        Ok(head)
    }

    fn word(&mut self) -> Result<u32> {
        let (head, tail) = self.rest.split_first_chunk::<4>().ok_or_else(short)?;
        self.rest = tail;
        Ok(u32::from_be_bytes(*head))
    }

    fn long(&mut self) -> Result<u64> {
        let (head, tail) = self.rest.split_first_chunk::<8>().ok_or_else(short)?;
        self.rest = tail;
        Ok(u64::from_be_bytes(*head))
    }

    /// `n` bytes and their padding to a whole word; the padding must be zero.
    fn padded(&mut self, n: usize) -> Result<&'a [u8]> {
        let bytes = self.take(n)?;
        let pad = n.next_multiple_of(4) - n;
        if self.take(pad)?.iter().any(|&b| b != 0) {
            return Err(Error::corrupt("padding in a packed list is not zero"));
        }
        Ok(bytes)
    }

    fn string(&mut self) -> Result<NvStr> {
        let len = self.word()? as usize;
        let bytes = self.padded(len)?;
        NvStr::new(bytes).map_err(|_| Error::corrupt("a NUL inside a packed string"))
    }

    /// `n` elements of at least `size` bytes each; an empty array has no count word.
    fn array<T>(
        &mut self,
        n: usize,
        size: usize,
        read: impl Fn(&mut Self) -> Result<T>,
    ) -> Result<Vec<T>> {
        if n == 0 {
            return Ok(Vec::new());
        }
        if self.word()? as usize != n {
            return Err(Error::corrupt("a packed array has two different counts"));
        }
        elements(n, size, self.rest.len(), || read(self))
    }
}

fn out_of_range() -> Error {
    Error::corrupt("a packed number exceeds its type")
}

fn byte(r: &mut XdrReader<'_>) -> Result<u8> {
    u8::try_from(r.word()?).map_err(|_| out_of_range())
}

fn half(r: &mut XdrReader<'_>) -> Result<u16> {
    u16::try_from(r.word()?).map_err(|_| out_of_range())
}

/// Small signed numbers are written zero-extended; a sign-extended one is unambiguous
/// and accepted as well.
fn signed_byte(r: &mut XdrReader<'_>) -> Result<i8> {
    let word = r.word()?;
    i8::try_from(word.cast_signed())
        .or_else(|_| u8::try_from(word).map(u8::cast_signed))
        .map_err(|_| out_of_range())
}

fn signed_half(r: &mut XdrReader<'_>) -> Result<i16> {
    let word = r.word()?;
    i16::try_from(word.cast_signed())
        .or_else(|_| u16::try_from(word).map(u16::cast_signed))
        .map_err(|_| out_of_range())
}

fn boolean(r: &mut XdrReader<'_>) -> Result<bool> {
    match r.word()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(out_of_range()),
    }
}

/// Unpacks a list without the 4-byte header; also returns the bytes that it used.
pub(crate) fn unpack(bytes: &[u8]) -> Result<(NvList, usize)> {
    if bytes.len() > NVLIST_SIZE_MAX {
        return Err(Error::limit("a packed list exceeds the size limit"));
    }
    let mut r = XdrReader { rest: bytes, pairs: 0 };
    let list = unpack_list(&mut r, 0)?;
    Ok((list, bytes.len() - r.rest.len()))
}

fn unpack_list(r: &mut XdrReader<'_>, depth: usize) -> Result<NvList> {
    if depth > NVLIST_DEPTH_MAX {
        return Err(Error::limit("a packed list is nested too deeply"));
    }
    if r.word()? != 0 {
        return Err(Error::corrupt("a packed list has an unknown version"));
    }
    let mut list = NvList::with_flags(r.word()?);
    loop {
        let _encoded = r.word()?;
        let decoded = r.word()? as usize;
        if decoded == 0 {
            return Ok(list);
        }
        r.pairs += 1;
        if r.pairs > NVLIST_PAIRS_MAX {
            return Err(Error::limit("a packed list has too many pairs"));
        }
        let name = r.string()?;
        if name.as_bytes().len() > NAME_MAX {
            return Err(Error::corrupt("the name of a packed pair is too long"));
        }
        let code = r.word()?;
        let n = r.word()?;
        let value = unpack_value(r, code, n, depth)?;
        if decoded != decoded_size(&name, &value) {
            return Err(Error::corrupt("a packed pair states a wrong size"));
        }
        list.push_raw(name, value);
    }
}

fn unpack_value(r: &mut XdrReader<'_>, code: u32, n: u32, depth: usize) -> Result<Value> {
    if n > i32::MAX.cast_unsigned() {
        return Err(Error::corrupt("a packed array has a negative count"));
    }
    let scalar = matches!(code, 2..=9 | 18 | 19 | 21..=23 | 27);
    if (scalar && n != 1) || (code == 1 && n != 0) {
        return Err(Error::corrupt("a packed scalar has a wrong count"));
    }
    let n = n as usize;
    Ok(match code {
        1 => Value::Boolean,
        2 => Value::Byte(byte(r)?),
        3 => Value::Int16(signed_half(r)?),
        4 => Value::Uint16(half(r)?),
        5 => Value::Int32(r.word()?.cast_signed()),
        6 => Value::Uint32(r.word()?),
        7 => Value::Int64(r.long()?.cast_signed()),
        8 => Value::Uint64(r.long()?),
        9 => Value::String(r.string()?),
        10 => Value::ByteArray(r.padded(n)?.to_vec()),
        11 => Value::Int16Array(r.array(n, 4, signed_half)?),
        12 => Value::Uint16Array(r.array(n, 4, half)?),
        13 => Value::Int32Array(r.array(n, 4, |r| Ok(r.word()?.cast_signed()))?),
        14 => Value::Uint32Array(r.array(n, 4, XdrReader::word)?),
        15 => Value::Int64Array(r.array(n, 8, |r| Ok(r.long()?.cast_signed()))?),
        16 => Value::Uint64Array(r.array(n, 8, XdrReader::long)?),
        17 => Value::StringArray(elements(n, 4, r.rest.len(), || r.string())?),
        18 => Value::Hrtime(r.long()?.cast_signed()),
        19 => Value::List(unpack_list(r, depth + 1)?),
        20 => Value::ListArray(elements(n, 16, r.rest.len(), || unpack_list(r, depth + 1))?),
        21 => Value::BooleanValue(boolean(r)?),
        22 => Value::Int8(signed_byte(r)?),
        23 => Value::Uint8(byte(r)?),
        24 => Value::BooleanArray(r.array(n, 4, boolean)?),
        25 => Value::Int8Array(r.array(n, 4, signed_byte)?),
        26 => Value::Uint8Array(r.array(n, 4, byte)?),
        27 => Value::Double(f64::from_bits(r.long()?)),
        _ => return Err(Error::corrupt(format!("a packed pair has the unknown type {code}"))),
    })
}

fn decoded_size(name: &NvStr, value: &Value) -> usize {
    align8(16 + name.as_bytes().len() + 1) + align8(value.native_size())
}

fn padded_size(len: usize) -> usize {
    len.next_multiple_of(4)
}

/// Bytes of a list, its two leading words and its end marker included.
pub(crate) fn list_size(list: &NvList) -> usize {
    8 + list.iter().map(|(name, value)| pair_size(name, value)).sum::<usize>() + 8
}

fn pair_size(name: &NvStr, value: &Value) -> usize {
    8 + 4 + padded_size(name.as_bytes().len()) + 8 + value_size(value)
}

fn value_size(value: &Value) -> usize {
    match value {
        Value::Boolean => 0,
        Value::Int64(_) | Value::Uint64(_) | Value::Hrtime(_) | Value::Double(_) => 8,
        Value::String(s) => 4 + padded_size(s.as_bytes().len()),
        Value::ByteArray(v) => padded_size(v.len()),
        Value::StringArray(v) => v.iter().map(|s| 4 + padded_size(s.as_bytes().len())).sum(),
        Value::List(l) => list_size(l),
        Value::ListArray(v) => v.iter().map(list_size).sum(),
        // The count word is part of the stated size even for an empty array, which is
        // written without it.
        Value::Int64Array(_) | Value::Uint64Array(_) => 4 + 8 * value.count(),
        Value::Int8Array(_)
        | Value::Uint8Array(_)
        | Value::Int16Array(_)
        | Value::Uint16Array(_)
        | Value::Int32Array(_)
        | Value::Uint32Array(_)
        | Value::BooleanArray(_) => 4 + 4 * value.count(),
        _ => 4,
    }
}

/// Sizes and counts are 32-bit words on disk. A list that does not fit them exceeds
/// every limit long before.
fn word(out: &mut Vec<u8>, value: usize) {
    out.extend_from_slice(&(value as u32).to_be_bytes());
}

fn padded(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(bytes);
    out.resize(out.len().next_multiple_of(4), 0);
}

fn string(out: &mut Vec<u8>, s: &NvStr) {
    word(out, s.as_bytes().len());
    padded(out, s.as_bytes());
}

fn array<const N: usize>(out: &mut Vec<u8>, items: impl ExactSizeIterator<Item = [u8; N]>) {
    // Special case: an empty array has no count word.
    if items.len() > 0 {
        word(out, items.len());
    }
    items.for_each(|bytes| out.extend_from_slice(&bytes));
}

fn words(out: &mut Vec<u8>, items: impl ExactSizeIterator<Item = u32>) {
    array(out, items.map(u32::to_be_bytes));
}

/// The packed list with its header.
pub(crate) fn pack(list: &NvList) -> Vec<u8> {
    let size = HEADER_SIZE + list_size(list);
    let mut out = Vec::with_capacity(size);
    out.extend_from_slice(&[1, 1, 0, 0]);
    pack_list(&mut out, list);
    // The words that empty arrays counted but did not write are zeros at the end.
    out.resize(size, 0);
    out
}

fn pack_list(out: &mut Vec<u8>, list: &NvList) {
    word(out, 0);
    word(out, list.flags() as usize);
    for (name, value) in list.iter() {
        word(out, pair_size(name, value));
        word(out, decoded_size(name, value));
        string(out, name);
        word(out, value.type_code() as usize);
        word(out, value.count());
        pack_value(out, value);
    }
    word(out, 0);
    word(out, 0);
}

fn pack_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Boolean => {}
        Value::Byte(v) | Value::Uint8(v) => word(out, usize::from(*v)),
        Value::Int8(v) => word(out, usize::from(v.cast_unsigned())),
        Value::Int16(v) => word(out, usize::from(v.cast_unsigned())),
        Value::Uint16(v) => word(out, usize::from(*v)),
        Value::Int32(v) => out.extend_from_slice(&v.to_be_bytes()),
        Value::Uint32(v) => out.extend_from_slice(&v.to_be_bytes()),
        Value::BooleanValue(v) => word(out, usize::from(*v)),
        Value::Int64(v) | Value::Hrtime(v) => out.extend_from_slice(&v.to_be_bytes()),
        Value::Uint64(v) => out.extend_from_slice(&v.to_be_bytes()),
        Value::Double(v) => out.extend_from_slice(&v.to_bits().to_be_bytes()),
        Value::String(s) => string(out, s),
        Value::ByteArray(v) => padded(out, v),
        Value::Int8Array(v) => words(out, v.iter().map(|x| u32::from(x.cast_unsigned()))),
        Value::Uint8Array(v) => words(out, v.iter().map(|&x| u32::from(x))),
        Value::Int16Array(v) => words(out, v.iter().map(|x| u32::from(x.cast_unsigned()))),
        Value::Uint16Array(v) => words(out, v.iter().map(|&x| u32::from(x))),
        Value::Int32Array(v) => words(out, v.iter().map(|x| x.cast_unsigned())),
        Value::Uint32Array(v) => words(out, v.iter().copied()),
        Value::BooleanArray(v) => words(out, v.iter().map(|&x| u32::from(x))),
        Value::Int64Array(v) => array(out, v.iter().map(|x| x.to_be_bytes())),
        Value::Uint64Array(v) => array(out, v.iter().map(|x| x.to_be_bytes())),
        Value::StringArray(v) => v.iter().for_each(|s| string(out, s)),
        Value::List(l) => pack_list(out, l),
        Value::ListArray(v) => v.iter().for_each(|l| pack_list(out, l)),
    }
}
