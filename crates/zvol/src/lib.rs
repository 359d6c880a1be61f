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

pub mod create;

use std::sync::Arc;

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
    counters: Option<Arc<kstat::IoCounters>>,
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
        Ok(Volume { data, size, counters: None })
    }

    /// The same volume, its reads counted here.
    #[must_use]
    pub fn with_counters(self, counters: Arc<kstat::IoCounters>) -> Volume {
        Volume { counters: Some(counters), ..self }
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
    /// Those of [`Object::read_block`].
    pub fn read(&self, offset: u64, len: usize, io: Io) -> Result<Vec<Buf>> {
        let pieces = self.data.read_clipped(self.size, offset, len, io)?;
        if let Some(counters) = &self.counters {
            counters.read(pieces.iter().map(|p| p.len() as u64).sum());
        }
        Ok(pieces)
    }

    /// The run of data or of nothing that `offset` lies in; `None` behind the end.
    ///
    /// # Errors
    /// Those of reading the indirect blocks.
    pub fn extent(&self, offset: u64, io: Io) -> Result<Option<Extent>> {
        self.data.extent_at(offset, self.size, io)
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
