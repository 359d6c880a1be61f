//! Byte order of stored structures, and checked readers for it.

use base::{Error, Result};

/// Byte order of a structure's integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Endian {
    /// Least significant byte first; what Cenote writes.
    #[default]
    Little,
    /// Most significant byte first.
    Big,
}

impl Endian {
    /// The other order.
    pub fn swapped(self) -> Endian {
        match self {
            Endian::Little => Endian::Big,
            Endian::Big => Endian::Little,
        }
    }

    /// The 16-bit integer at `off`, if it lies inside `bytes`.
    pub fn u16(self, bytes: &[u8], off: usize) -> Option<u16> {
        let b = *bytes.get(off..)?.first_chunk()?;
        Some(match self {
            Endian::Little => u16::from_le_bytes(b),
            Endian::Big => u16::from_be_bytes(b),
        })
    }

    /// The 32-bit integer at `off`, if it lies inside `bytes`.
    pub fn u32(self, bytes: &[u8], off: usize) -> Option<u32> {
        let b = *bytes.get(off..)?.first_chunk()?;
        Some(match self {
            Endian::Little => u32::from_le_bytes(b),
            Endian::Big => u32::from_be_bytes(b),
        })
    }

    /// The 64-bit integer at `off`, if it lies inside `bytes`.
    pub fn u64(self, bytes: &[u8], off: usize) -> Option<u64> {
        let b = *bytes.get(off..)?.first_chunk()?;
        Some(self.u64_of(b))
    }

    /// The 64-bit integer of these bytes.
    pub(crate) fn u64_of(self, bytes: [u8; 8]) -> u64 {
        match self {
            Endian::Little => u64::from_le_bytes(bytes),
            Endian::Big => u64::from_be_bytes(bytes),
        }
    }

    /// The bytes of `value` in this order.
    pub fn bytes_of(self, value: u64) -> [u8; 8] {
        match self {
            Endian::Little => value.to_le_bytes(),
            Endian::Big => value.to_be_bytes(),
        }
    }

    /// A cursor over `bytes`; `what` names the structure in errors.
    pub fn reader<'a>(self, bytes: &'a [u8], what: &'static str) -> Reader<'a> {
        Reader { bytes, off: 0, endian: self, what }
    }
}

/// Reads integers one after the other; running out of bytes is `Corrupt`.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    off: usize,
    endian: Endian,
    what: &'static str,
}

impl<'a> Reader<'a> {
    fn short(&self) -> Error {
        Error::corrupt(format!("{} is cut off at byte {}", self.what, self.bytes.len()))
    }

    /// The byte order in which it reads.
    pub fn endian(&self) -> Endian {
        self.endian
    }

    /// Byte offset of the next read.
    pub fn offset(&self) -> usize {
        self.off
    }

    /// The bytes that were not yet read.
    pub(crate) fn remaining(&self) -> &'a [u8] {
        self.bytes.get(self.off..).unwrap_or_default()
    }

    /// Skips `n` bytes.
    ///
    /// # Errors
    /// `Corrupt` when fewer remain.
    pub fn skip(&mut self, n: usize) -> Result<()> {
        self.take(n).map(|_| ())
    }

    /// The next `n` bytes.
    ///
    /// # Errors
    /// `Corrupt` when fewer remain.
    pub fn take(&mut self, n: usize) -> Result<&'a [u8]> {
        let (head, _) = self.remaining().split_at_checked(n).ok_or_else(|| self.short())?;
        self.off += n;
        Ok(head)
    }

    /// The next byte.
    ///
    /// # Errors
    /// `Corrupt` at the end.
    pub fn u8(&mut self) -> Result<u8> {
        self.take(1).map(|b| b.first().copied().unwrap_or_default())
    }

    /// The next 16-bit integer.
    ///
    /// # Errors
    /// `Corrupt` when fewer bytes remain.
    pub fn u16(&mut self) -> Result<u16> {
        let v = self.endian.u16(self.bytes, self.off).ok_or_else(|| self.short())?;
        self.off += 2;
        Ok(v)
    }

    /// The next 32-bit integer.
    ///
    /// # Errors
    /// `Corrupt` when fewer bytes remain.
    pub fn u32(&mut self) -> Result<u32> {
        let v = self.endian.u32(self.bytes, self.off).ok_or_else(|| self.short())?;
        self.off += 4;
        Ok(v)
    }

    /// The next 64-bit integer.
    ///
    /// # Errors
    /// `Corrupt` when fewer bytes remain.
    pub fn u64(&mut self) -> Result<u64> {
        let v = self.endian.u64(self.bytes, self.off).ok_or_else(|| self.short())?;
        self.off += 8;
        Ok(v)
    }

    /// The next `N` 64-bit integers.
    ///
    /// # Errors
    /// `Corrupt` when fewer bytes remain.
    pub fn u64s<const N: usize>(&mut self) -> Result<[u64; N]> {
        let mut out = [0; N];
        for v in &mut out {
            *v = self.u64()?;
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_both_orders_and_stops_at_the_end() {
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8, 9];
        assert_eq!(Endian::Little.u64(&bytes, 0), Some(0x0807_0605_0403_0201));
        assert_eq!(Endian::Big.u64(&bytes, 1), Some(0x0203_0405_0607_0809));
        assert_eq!(Endian::Big.u64(&bytes, 2), None);
        assert_eq!(Endian::Big.u16(&bytes, usize::MAX), None);
        let mut r = Endian::Big.reader(&bytes, "test");
        assert_eq!((r.u16().unwrap(), r.u32().unwrap(), r.u8().unwrap()), (0x102, 0x0304_0506, 7));
        assert!(r.u32().is_err());
        assert_eq!(r.remaining(), [8, 9]);
        assert_eq!(r.take(2).unwrap(), [8, 9]);
        assert!(r.u8().is_err());
    }
}
