//! Volumes as byte ranges.
//!
//! # Theory
//! A volume is two objects: 1 holds the bytes, in blocks of one fixed size, and
//! 2 is a ZAP whose `size` is the volume's (chapter 06 §20). What was never
//! written reads as zeros.
//!
//! # Invariants
//! * A read never goes past the volume's size, whatever object 1 holds.
//! * As in `zpl`, every operation takes [`dmu::Io`] and keeps no state.

use std::sync::Arc;

use base::limits::BUF_SIZE_MAX;
use base::{Buf, Error, ObjectId, Result};
use dmu::{Extent, Io, Object, Objset, Zap};
use ondisk::objset::ObjsetType;
use ondisk::objtype::ObjType;

const DATA: ObjectId = ObjectId(1);
const PROPS: ObjectId = ObjectId(2);

/// An open volume.
#[derive(Clone, Debug)]
pub struct Volume {
    data: Object,
    size: u64,
}

impl Volume {
    /// Opens the volume in `os`.
    ///
    /// # Errors
    /// `Invalid` when the object set holds no volume, `Locked` when it is
    /// encrypted, `Corrupt` when its objects are damaged, those of reading.
    pub fn open(os: Arc<Objset>, io: Io) -> Result<Volume> {
        if os.kind() != ObjsetType::Zvol {
            return Err(Error::invalid("the dataset is not a volume"));
        }
        let props = os.object(PROPS, io)?;
        if props.object_type() != ObjType::ZVOL_PROP {
            return Err(Error::corrupt("object 2 does not tell a volume's size").in_object(PROPS));
        }
        let size = Zap::open(props, io)?.lookup_u64("size")?;
        let data = os.object(DATA, io)?;
        if data.object_type() != ObjType::ZVOL {
            return Err(Error::corrupt("object 1 is not a volume's data").in_object(DATA));
        }
        let size = check_size(size, data.block_size()).map_err(|e| e.in_object(PROPS))?;
        Ok(Volume { data, size })
    }

    /// Bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Bytes of a block (`volblocksize`).
    pub fn block_size(&self) -> u64 {
        self.data.block_size()
    }

    /// The object with the bytes.
    pub fn object(&self) -> &Object {
        &self.data
    }

    /// Bytes from `offset`, clipped to the volume, as slices of cached blocks. One
    /// call yields at most 64 MiB; nothing at or behind the end.
    ///
    /// # Errors
    /// Those of [`Object::read_bufs`].
    pub fn read(&self, offset: u64, len: usize, io: Io) -> Result<Vec<Buf>> {
        let (stored, zeros) = split_read(self.size, self.blocks_end(), offset, len);
        let mut out = self.data.read_bufs(offset, stored, io)?;
        if zeros > 0 {
            out.push(Buf::zeros(zeros));
        }
        Ok(out)
    }

    /// The run of data or of nothing that `offset` lies in; `None` behind the end.
    ///
    /// # Errors
    /// Those of reading the indirect blocks.
    pub fn extent(&self, offset: u64, io: Io) -> Result<Option<Extent>> {
        self.data.extent_at(offset, self.size, io)
    }

    fn blocks_end(&self) -> u64 {
        self.data.dnode().max_blkid.saturating_add(1).saturating_mul(self.block_size())
    }
}

/// A volume is not empty and a whole number of blocks, as the format demands.
fn check_size(size: Option<u64>, block_size: u64) -> Result<u64> {
    let size = size.ok_or_else(|| Error::corrupt("volume without a size"))?;
    if !block_size.is_power_of_two() || size == 0 || size % block_size != 0 || size >> 63 != 0 {
        return Err(Error::corrupt(format!("volume of {size} bytes in blocks of {block_size}")));
    }
    Ok(size)
}

/// How much of a read comes from blocks, and how much lies behind the last one.
fn split_read(size: u64, blocks_end: u64, offset: u64, len: usize) -> (usize, usize) {
    let len = size.saturating_sub(offset).min(len.min(BUF_SIZE_MAX) as u64);
    let stored = blocks_end.saturating_sub(offset).min(len);
    (stored as usize, (len - stored) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes() {
        assert_eq!(check_size(Some(1 << 30), 16_384).unwrap(), 1 << 30);
        for (size, block) in [
            (None, 512),
            (Some(0), 512),
            (Some(1000), 512),
            (Some(1536), 1536),
            (Some(1 << 63), 512),
        ] {
            assert!(check_size(size, block).is_err(), "{size:?} {block}");
        }
    }

    proptest! {
        /// Against counting bytes one by one.
        #[test]
        fn reads_are_clipped(size in 0u64..64, end in 0u64..96, offset in 0u64..96, len in 0usize..96) {
            let bytes = (offset..offset + len as u64).filter(|b| *b < size);
            let (stored, zeros): (Vec<u64>, Vec<u64>) = bytes.partition(|b| *b < end);
            prop_assert_eq!(split_read(size, end, offset, len), (stored.len(), zeros.len()));
        }
    }

    #[test]
    fn reads_at_the_far_end() {
        assert_eq!(split_read(1 << 62, u64::MAX, u64::MAX, usize::MAX), (0, 0));
        assert_eq!(split_read(1 << 62, 0, 0, usize::MAX), (0, BUF_SIZE_MAX));
    }
}
