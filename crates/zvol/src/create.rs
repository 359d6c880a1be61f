//! What a new volume contains (chapter 06 §20).

use std::sync::Arc;

use base::{Error, Result};
use dmu::{ObjectSpec, Objset, Tx, zaps};
use ondisk::ObjType;
use ondisk::zap::ZapValue;

use crate::{DATA, PROPS};

/// Blocks of a volume unless asked for otherwise.
pub const BLOCK_SIZE_DEFAULT: u32 = 16 << 10;

/// A volume that is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewVolume {
    /// Bytes: a multiple of `block_size`, not 0.
    pub size: u64,
    /// Bytes of a block, for life.
    pub block_size: u32,
}

impl NewVolume {
    /// Whether this can be made. Blocks above 128 KiB need feature `large_blocks`, which
    /// is the caller's to know.
    ///
    /// # Errors
    /// `Invalid`, in OpenZFS's words.
    pub fn check(&self) -> Result<()> {
        let block = u64::from(self.block_size);
        if !block.is_power_of_two() || !(512..=16 << 20).contains(&block) {
            return Err(Error::invalid("'volblocksize' must be power of 2 from 512B to 16M"));
        }
        if self.size == 0 {
            return Err(Error::invalid("'volsize' cannot be zero"));
        }
        if !self.size.is_multiple_of(block) {
            return Err(Error::invalid("'volsize' must be a multiple of volume block size"));
        }
        Ok(())
    }
}

/// Bytes that a full volume takes: its data in `copies`, and the metadata above it
/// (`refreservation=auto`). The formula is that of the golden pool of volumes: 128 KiB for each
/// block of 1,024 pointers and seven more, in one copy more than the data.
pub fn full_reservation(size: u64, block_size: u64, copies: u64) -> u64 {
    let (mut level, mut metadata) = (size / block_size.max(1), 7u64);
    while level > 1 {
        level = level.div_ceil(1024);
        metadata += level;
    }
    let metadata = metadata.saturating_mul(128 << 10).saturating_mul((copies + 1).min(3));
    size.saturating_mul(copies).saturating_add(metadata)
}

/// Fills an empty object set with a new volume.
///
/// # Errors
/// As [`NewVolume::check`]; those of the object set.
pub fn fill(os: &Arc<Objset>, tx: &Tx, new: &NewVolume) -> Result<()> {
    new.check()?;
    let spec =
        |object_type, block_size| ObjectSpec { object_type, block_size, ..ObjectSpec::default() };
    os.claim(tx, DATA, &spec(ObjType::ZVOL, new.block_size))?;
    os.claim(tx, PROPS, &spec(ObjType::ZVOL_PROP, 0))?;
    zaps::init(os, tx, PROPS, 0)?;
    zaps::add(os, tx, PROPS, b"size", &ZapValue::from_u64(new.size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_volume_is_as_the_golden_pool_says() {
        assert_eq!(full_reservation(64 << 20, 8 << 10, 1), 71_303_168);
        assert_eq!(full_reservation(64 << 20, 8 << 10, 3), (192 << 20) + (16 << 17) * 3);
        assert_eq!(full_reservation(u64::MAX, 512, 3), u64::MAX);
    }
}
