//! Volumes as byte ranges.
//!
//! # Theory
//! A volume is two objects: 1 holds the bytes, in blocks of one fixed size, and
//! 2 is a ZAP whose `size` is the volume's (chapter 06 §20). What was never
//! written reads as zeros. [`rw`] has the writing half and its crash argument, `replay` the
//! replay of the intent log.
//!
//! # Invariants
//! * A read never goes past the volume's size, whatever object 1 holds.
//! * Readers take no locks. Each block of a read is as some writer left it; a read of
//!   several blocks is not atomic, as on a disk.

pub mod create;
mod replay;
pub mod rw;

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, OnceLock, Weak};

use base::{Buf, Error, ObjectId, Result};
use dmu::zfetch::Zfetch;
use dmu::{Extent, Io, Object, Objset, OutagePolicy, PrefetchMode, Zap};
use ondisk::objset::ObjsetType;
use ondisk::objtype::ObjType;
use zio::Caching;

pub use replay::can_replay;
pub use rw::VolumeHost;

const DATA: ObjectId = ObjectId(1);
const PROPS: ObjectId = ObjectId(2);

/// An open volume. Handles of one volume share its state.
#[derive(Clone, Debug)]
pub struct Volume {
    state: Arc<VolumeState>,
    outage: OutagePolicy,
}

/// A reference that does not keep a volume open.
#[derive(Clone, Debug)]
pub struct WeakVolume(Weak<VolumeState>);

#[derive(Debug)]
struct VolumeState {
    os: Arc<Objset>,
    size: AtomicU64,
    block_size: u64,
    rw: Option<rw::Rw>,
    zfetch: Zfetch,
    counters: OnceLock<Arc<kstat::IoCounters>>,
}

impl WeakVolume {
    /// The volume, if it is still open.
    pub fn upgrade(&self, outage: OutagePolicy) -> Option<Volume> {
        self.0.upgrade().map(|state| Volume { state, outage })
    }

    /// Whether the volume is open.
    pub fn is_open(&self) -> bool {
        self.0.strong_count() > 0
    }
}

impl Volume {
    /// Opens the volume in `os` for reading. `prefetch` is its property of that name. The
    /// handle gets the policy of `io` for absent devices.
    ///
    /// # Errors
    /// `Invalid` when the object set holds no volume, `Locked` when it is
    /// encrypted, `Corrupt` when its objects are damaged, those of reading.
    pub fn open(os: Arc<Objset>, prefetch: PrefetchMode, io: Io) -> Result<Volume> {
        Volume::open_as(os, None, prefetch, io)
    }

    fn open_as(
        os: Arc<Objset>,
        rw: Option<rw::Rw>,
        prefetch: PrefetchMode,
        io: Io,
    ) -> Result<Volume> {
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
        let block_size = data.block_size();
        let size = check_size(size, block_size).map_err(|e| e.in_object(PROPS))?;
        let zfetch = Zfetch::new(os.zio().prefetch(), prefetch);
        let (size, counters) = (AtomicU64::new(size), OnceLock::new());
        let state = VolumeState { os, size, block_size, rw, zfetch, counters };
        Ok(Volume { state: Arc::new(state), outage: io.outage })
    }

    /// Sets the counters of reads and writes; only the first call has an effect.
    pub fn set_counters(&self, counters: Arc<kstat::IoCounters>) {
        let _first = self.state.counters.set(counters);
    }

    /// Another handle of the same volume, whose calls treat absent devices by this policy.
    #[must_use]
    pub fn with_outage(&self, outage: OutagePolicy) -> Volume {
        Volume { state: Arc::clone(&self.state), outage }
    }

    /// A reference that does not keep the volume open.
    pub fn downgrade(&self) -> WeakVolume {
        WeakVolume(Arc::downgrade(&self.state))
    }

    /// How calls through this handle read, if they take no [`Io`].
    fn io(&self) -> Io {
        Io::WAIT.with_outage(self.outage)
    }

    /// Bytes.
    pub fn size(&self) -> u64 {
        self.state.size.load(SeqCst)
    }

    /// Bytes of a block (`volblocksize`).
    pub fn block_size(&self) -> u64 {
        self.state.block_size
    }

    /// Its object set.
    pub fn objset(&self) -> &Arc<Objset> {
        &self.state.os
    }

    /// The object with the bytes, as it is now.
    ///
    /// # Errors
    /// Those of reading its dnode.
    pub fn object(&self, io: Io) -> Result<Object> {
        let object = self.state.os.object(DATA, io)?;
        // A hostile image cannot change it while it is open; only a bug could.
        match object.block_size() == self.state.block_size {
            true => Ok(object),
            false => Err(base::bug!("the block size of a volume changed")),
        }
    }

    /// Bytes from `offset`, clipped to the volume, as slices of cached blocks. One
    /// call yields at most 64 MiB; nothing at or behind the end.
    ///
    /// # Errors
    /// Those of [`Object::read_block`].
    pub fn read(&self, offset: u64, len: usize, io: Io) -> Result<Vec<Buf>> {
        let (object, size) = (self.object(io)?, self.size());
        let inside = (len as u64).min(size.saturating_sub(offset));
        let mut pieces = Vec::with_capacity((inside / self.block_size()).min(4096) as usize + 2);
        let ahead = object.dnode().max_blkid > 0 && io.caching != Caching::Bypass;
        let mut reported = !ahead;
        let before_wait = || {
            if ahead {
                self.state.zfetch.advance(&object, offset, inside, true, false);
                reported = true;
            }
        };
        object.read_pieces(size, offset, len, io, before_wait, |piece| pieces.push(piece))?;
        if !reported {
            self.state.zfetch.advance(&object, offset, inside, false, false);
        }
        if let Some(counters) = self.state.counters.get() {
            counters.read(pieces.iter().map(|p| p.len() as u64).sum());
        }
        Ok(pieces)
    }

    /// The run of data or of nothing that `offset` lies in; `None` behind the end.
    ///
    /// # Errors
    /// Those of reading the indirect blocks.
    pub fn extent(&self, offset: u64, io: Io) -> Result<Option<Extent>> {
        self.object(io)?.extent_at(offset, self.size(), io)
    }

    /// Reads a range into the cache in the background, as far as workers are free.
    ///
    /// # Errors
    /// Those of reading the dnode.
    pub fn prefetch(&self, offset: u64, len: u64) -> Result<()> {
        let len = len.min(self.size().saturating_sub(offset));
        self.object(self.io())?.prefetch(offset, len, Io::PREFETCH);
        Ok(())
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
