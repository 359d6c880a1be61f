//! Native packing (chapter 01 §9.5): the writer's byte order, pairs of whole 8-byte
//! units, nested pairs after the pair that contains them.

use base::limits::{NVLIST_DEPTH_MAX, NVLIST_PAIRS_MAX, NVLIST_SIZE_MAX};
use base::{Error, Result};

use crate::value::{NAME_MAX, NvStr, Value, align8, elements, short};
use crate::{NvList, Order};

/// Bytes of a pair before its name.
const PAIR_HEADER: usize = 16;
/// Bytes of a nested list's header inside a value.
const LIST_HEADER: usize = 24;

struct NativeReader<'a> {
    rest: &'a [u8],
    order: Order,
    pairs: usize,
}

impl<'a> NativeReader<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8]> {
        let (head, tail) = self.rest.split_at_checked(n).ok_or_else(short)?;
        self.rest = tail;
        Ok(head)
    }

    fn chunk<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (head, tail) = self.rest.split_first_chunk::<N>().ok_or_else(short)?;
        self.rest = tail;
        let mut bytes = *head;
        // From here on every number is treated as little-endian.
        if self.order == Order::Big {
            bytes.reverse();
        }
        Ok(bytes)
    }

    fn u8(&mut self) -> Result<u8> {
        Ok(u8::from_le_bytes(self.chunk()?))
    }

    fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_le_bytes(self.chunk()?))
    }

    fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.chunk()?))
    }

    fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.chunk()?))
    }

    fn boolean(&mut self) -> Result<bool> {
        match self.u32()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Error::corrupt("a packed boolean is neither 0 nor 1")),
        }
    }

    /// A NUL-terminated string.
    fn string(&mut self) -> Result<NvStr> {
        let len = self.rest.iter().position(|&b| b == 0).ok_or_else(short)?;
        let bytes = self.take(len)?;
        self.take(1)?;
        NvStr::new(bytes)
    }

    fn array<T>(
        &mut self,
        n: usize,
        size: usize,
        read: impl Fn(&mut Self) -> Result<T>,
    ) -> Result<Vec<T>> {
        elements(n, size, self.rest.len(), || read(self))
    }
}

/// Unpacks a list without the 4-byte header; also returns the bytes that it used.
pub(crate) fn unpack(bytes: &[u8], order: Order) -> Result<(NvList, usize)> {
    if bytes.len() > NVLIST_SIZE_MAX {
        return Err(Error::limit("a packed list exceeds the size limit"));
    }
    let mut r = NativeReader { rest: bytes, order, pairs: 0 };
    if r.u32()? != 0 {
        return Err(Error::corrupt("a packed list has an unknown version"));
    }
    let mut list = NvList::with_flags(r.u32()?);
    unpack_pairs(&mut r, &mut list, 0)?;
    Ok((list, bytes.len() - r.rest.len()))
}

fn unpack_pairs(r: &mut NativeReader<'_>, list: &mut NvList, depth: usize) -> Result<()> {
    if depth > NVLIST_DEPTH_MAX {
        return Err(Error::limit("a packed list is nested too deeply"));
    }
    loop {
        let size = r.u32()? as usize;
        if size == 0 {
            return Ok(());
        }
        r.pairs += 1;
        if r.pairs > NVLIST_PAIRS_MAX {
            return Err(Error::limit("a packed list has too many pairs"));
        }
        let (name, value) = unpack_pair(r, size, depth)?;
        list.push_raw(name, value);
    }
}

fn unpack_pair(r: &mut NativeReader<'_>, size: usize, depth: usize) -> Result<(NvStr, Value)> {
    let wrong = || Error::corrupt("a packed pair states a wrong size");
    // The pair's own bytes, its nested payload excluded.
    let own = r.take(size.checked_sub(4).ok_or_else(wrong)?)?;
    let mut p = NativeReader { rest: own, order: r.order, pairs: 0 };
    let name_size = p.u16()? as usize;
    let _reserved = p.u16()?;
    let n = p.u32()?;
    let code = p.u32()?;
    let name = p.take(name_size)?;
    let Some((0, name)) = name.split_last() else {
        return Err(Error::corrupt("the name of a packed pair has no end"));
    };
    if name.len() > NAME_MAX {
        return Err(Error::corrupt("the name of a packed pair is too long"));
    }
    let name = NvStr::new(name).map_err(|_| Error::corrupt("a NUL inside a packed name"))?;
    p.take(align8(PAIR_HEADER + name_size) - PAIR_HEADER - name_size)?;
    let value = unpack_value(&mut p, r, code, n, depth)?;
    if size != align8(PAIR_HEADER + name_size) + align8(value.native_size()) {
        return Err(wrong());
    }
    Ok((name, value))
}

fn list_header(p: &mut NativeReader<'_>) -> Result<NvList> {
    if p.u32()? != 0 {
        return Err(Error::corrupt("a packed list has an unknown version"));
    }
    let list = NvList::with_flags(p.u32()?);
    p.take(LIST_HEADER - 8)?;
    Ok(list)
}

/// Reads the value from the pair's own bytes `p`, nested pairs from `r` behind it.
fn unpack_value(
    p: &mut NativeReader<'_>,
    r: &mut NativeReader<'_>,
    code: u32,
    n: u32,
    depth: usize,
) -> Result<Value> {
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
        2 => Value::Byte(p.u8()?),
        3 => Value::Int16(p.u16()?.cast_signed()),
        4 => Value::Uint16(p.u16()?),
        5 => Value::Int32(p.u32()?.cast_signed()),
        6 => Value::Uint32(p.u32()?),
        7 => Value::Int64(p.u64()?.cast_signed()),
        8 => Value::Uint64(p.u64()?),
        9 => Value::String(p.string()?),
        10 => Value::ByteArray(p.take(n)?.to_vec()),
        11 => Value::Int16Array(p.array(n, 2, |p| Ok(p.u16()?.cast_signed()))?),
        12 => Value::Uint16Array(p.array(n, 2, NativeReader::u16)?),
        13 => Value::Int32Array(p.array(n, 4, |p| Ok(p.u32()?.cast_signed()))?),
        14 => Value::Uint32Array(p.array(n, 4, NativeReader::u32)?),
        15 => Value::Int64Array(p.array(n, 8, |p| Ok(p.u64()?.cast_signed()))?),
        16 => Value::Uint64Array(p.array(n, 8, NativeReader::u64)?),
        17 => {
            p.take(n.checked_mul(8).ok_or_else(short)?)?;
            Value::StringArray(p.array(n, 1, NativeReader::string)?)
        }
        18 => Value::Hrtime(p.u64()?.cast_signed()),
        19 => {
            let mut list = list_header(p)?;
            unpack_pairs(r, &mut list, depth + 1)?;
            Value::List(list)
        }
        20 => {
            p.take(n.checked_mul(8).ok_or_else(short)?)?;
            let mut lists = p.array(n, LIST_HEADER, list_header)?;
            for list in &mut lists {
                unpack_pairs(r, list, depth + 1)?;
            }
            Value::ListArray(lists)
        }
        21 => Value::BooleanValue(p.boolean()?),
        22 => Value::Int8(p.u8()?.cast_signed()),
        23 => Value::Uint8(p.u8()?),
        24 => Value::BooleanArray(p.array(n, 4, NativeReader::boolean)?),
        25 => Value::Int8Array(p.array(n, 1, |p| Ok(p.u8()?.cast_signed()))?),
        26 => Value::Uint8Array(p.take(n)?.to_vec()),
        27 => Value::Double(f64::from_bits(p.u64()?)),
        _ => return Err(Error::corrupt(format!("a packed pair has the unknown type {code}"))),
    })
}

struct Writer {
    out: Vec<u8>,
    order: Order,
}

impl Writer {
    fn put<const N: usize>(&mut self, mut le: [u8; N]) {
        if self.order == Order::Big {
            le.reverse();
        }
        self.out.extend_from_slice(&le);
    }

    /// Sizes and counts are 32-bit words on disk. A list that does not fit them exceeds
    /// every limit long before.
    fn word(&mut self, value: usize) {
        self.put((value as u32).to_le_bytes());
    }

    fn zeros(&mut self, n: usize) {
        self.out.resize(self.out.len() + n, 0);
    }

    fn string(&mut self, s: &NvStr) {
        self.out.extend_from_slice(s.as_bytes());
        self.out.push(0);
    }

    fn list_header(&mut self, list: &NvList) {
        self.word(0);
        self.word(list.flags() as usize);
        self.zeros(LIST_HEADER - 8);
    }

    fn pairs(&mut self, list: &NvList) {
        for (name, value) in list.iter() {
            let name_size = name.as_bytes().len() + 1;
            let head = align8(PAIR_HEADER + name_size);
            let value_size = value.native_size();
            self.word(head + align8(value_size));
            self.put((name_size as u16).to_le_bytes());
            self.put(0u16.to_le_bytes());
            self.word(value.count());
            self.word(value.type_code() as usize);
            self.string(name);
            self.zeros(head - PAIR_HEADER - name_size);
            self.value(value);
            self.zeros(align8(value_size) - value_size);
            match value {
                Value::List(nested) => self.pairs(nested),
                Value::ListArray(nested) => nested.iter().for_each(|list| self.pairs(list)),
                _ => {}
            }
        }
        self.word(0);
    }

    fn value(&mut self, value: &Value) {
        match value {
            Value::Boolean => {}
            Value::Byte(v) | Value::Uint8(v) => self.out.push(*v),
            Value::Int8(v) => self.out.push(v.cast_unsigned()),
            Value::Int16(v) => self.put(v.to_le_bytes()),
            Value::Uint16(v) => self.put(v.to_le_bytes()),
            Value::Int32(v) => self.put(v.to_le_bytes()),
            Value::Uint32(v) => self.put(v.to_le_bytes()),
            Value::BooleanValue(v) => self.put(u32::from(*v).to_le_bytes()),
            Value::Int64(v) | Value::Hrtime(v) => self.put(v.to_le_bytes()),
            Value::Uint64(v) => self.put(v.to_le_bytes()),
            Value::Double(v) => self.put(v.to_bits().to_le_bytes()),
            Value::String(s) => self.string(s),
            Value::ByteArray(v) | Value::Uint8Array(v) => self.out.extend_from_slice(v),
            Value::Int8Array(v) => self.out.extend(v.iter().map(|x| x.cast_unsigned())),
            Value::Int16Array(v) => v.iter().for_each(|x| self.put(x.to_le_bytes())),
            Value::Uint16Array(v) => v.iter().for_each(|x| self.put(x.to_le_bytes())),
            Value::Int32Array(v) => v.iter().for_each(|x| self.put(x.to_le_bytes())),
            Value::Uint32Array(v) => v.iter().for_each(|x| self.put(x.to_le_bytes())),
            Value::BooleanArray(v) => v.iter().for_each(|x| self.put(u32::from(*x).to_le_bytes())),
            Value::Int64Array(v) => v.iter().for_each(|x| self.put(x.to_le_bytes())),
            Value::Uint64Array(v) => v.iter().for_each(|x| self.put(x.to_le_bytes())),
            Value::StringArray(v) => {
                self.zeros(8 * v.len());
                v.iter().for_each(|s| self.string(s));
            }
            Value::List(l) => self.list_header(l),
            Value::ListArray(v) => {
                self.zeros(8 * v.len());
                v.iter().for_each(|l| self.list_header(l));
            }
        }
    }
}

/// The packed list with its header.
pub(crate) fn pack(list: &NvList, order: Order) -> Vec<u8> {
    let mark = u8::from(order == Order::Little);
    let mut w = Writer { out: vec![0, mark, 0, 0], order };
    w.word(0);
    w.word(list.flags() as usize);
    w.pairs(list);
    w.out
}
