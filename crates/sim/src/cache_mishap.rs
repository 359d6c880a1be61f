//! What may be on a cache device after a crash, besides what the crash left.

use base::rt::sim::Rng;
use base::{Guid, Result};
use codec::checksum::fletcher::fletcher4;
use codec::compress::Compression;
use device::sim::Image;
use ondisk::l2::{DeviceHeader, HEADER_OFFSET, LOG_BLOCK_SIZE, LogBlock, LogPtr, header_size};

/// The content of the cache devices when the pool is imported again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CacheMishap {
    /// What the crash left.
    Nothing,
    /// One device is absent.
    Missing,
    /// One device has the content of an earlier moment.
    Older,
    /// One device has another pool's content.
    Foreign,
    /// One device has another pool's content under this pool's and device's guids.
    Forged,
    /// The content of two devices is exchanged; with one device as [`CacheMishap::Foreign`].
    Exchanged,
    /// Bits of one device are flipped.
    Flipped,
    /// The newest log block of one device names other blocks, with right checksums.
    Relabelled,
}

impl CacheMishap {
    /// All of them.
    pub const ALL: [CacheMishap; 8] = [
        CacheMishap::Nothing,
        CacheMishap::Missing,
        CacheMishap::Older,
        CacheMishap::Foreign,
        CacheMishap::Forged,
        CacheMishap::Exchanged,
        CacheMishap::Flipped,
        CacheMishap::Relabelled,
    ];

    /// The mishap in the crash of that seed; none in the two extreme crashes.
    pub fn of(seed: u64) -> CacheMishap {
        if seed <= 1 {
            return CacheMishap::Nothing;
        }
        let n = Rng::stream(seed, 71).below(CacheMishap::ALL.len() as u64);
        CacheMishap::ALL[n as usize]
    }

    /// Whether the device belongs to another pool or is another device: nothing may be
    /// restored from it.
    pub fn is_foreign(self) -> bool {
        matches!(self, CacheMishap::Foreign | CacheMishap::Exchanged)
    }
}

/// Flips up to 40 bits of an image, most of them behind the header.
///
/// # Errors
/// Those of the image.
pub(crate) fn flip(image: &mut Image, seed: u64) -> Result<()> {
    let mut rng = Rng::stream(seed, 72);
    for _ in 0..1 + rng.below(40) {
        let from = if rng.one_in(20) { 0 } else { HEADER_OFFSET };
        let at = from + rng.below(image.size() - from);
        let mut byte = [0];
        image.read(at, &mut byte)?;
        image.write(at / 512 * 512 + at % 512, &[byte[0] ^ 1 << rng.below(8)])?;
    }
    Ok(())
}

fn header(image: &Image, ashift: u32) -> Option<DeviceHeader> {
    let mut raw = vec![0; header_size(ashift)];
    image.read(HEADER_OFFSET, &mut raw).ok()?;
    DeviceHeader::parse(&raw).ok()
}

fn set_header(image: &mut Image, header: &DeviceHeader, ashift: u32) -> Option<()> {
    image.write(HEADER_OFFSET, &header.encode(ashift).ok()?).ok()
}

/// Gives another pool's content the guids and the shape of this device; `false` if it has
/// none.
pub(crate) fn forge(image: &mut Image, ours: &Image, guids: [Guid; 2], ashift: u32) -> bool {
    let Some((theirs, like)) = header(image, ashift).zip(header(ours, ashift)) else {
        return false;
    };
    let [pool_guid, vdev_guid] = guids;
    let forged = DeviceHeader {
        pool_guid,
        vdev_guid,
        log_entries: like.log_entries,
        start: like.start,
        end: like.end,
        ..theirs
    };
    set_header(image, &forged, ashift).is_some()
}

/// Exchanges the places of the blocks in the newest log block, and their births; `false` if
/// there is none.
pub(crate) fn relabel(image: &mut Image, ashift: u32, seed: u64) -> bool {
    relabelled(image, ashift, seed).is_some()
}

fn relabelled(image: &mut Image, ashift: u32, seed: u64) -> Option<()> {
    let header = header(image, ashift)?;
    let [newest, second] = header.newest;
    if newest == LogPtr::default() || newest.asize() > LOG_BLOCK_SIZE as u64 {
        return None;
    }
    let mut raw = vec![0; newest.asize() as usize];
    image.read(newest.daddr, &mut raw).ok()?;
    let mut bytes = raw.clone();
    if raw.len() < LOG_BLOCK_SIZE {
        bytes = vec![0; LOG_BLOCK_SIZE];
        codec::compress::decompress(newest.compression(), &raw, &mut bytes).ok()?;
    }
    let mut block = LogBlock::parse(&bytes, header.log_entries, header.endian).ok()?;
    // The entries keep their places and sizes, and get each other's identities: each names
    // the content of another block.
    let mut rng = Rng::stream(seed, 73);
    let by = 1 + rng.below(block.entries.len().max(2) as u64 - 1) as usize;
    let names: Vec<_> = block.entries.iter().map(|e| (e.dva, e.birth, e.facts())).collect();
    let count = names.len();
    for (at, entry) in block.entries.iter_mut().enumerate() {
        let (dva, birth, _) = names[(at + by) % count];
        (entry.dva, entry.birth) = (dva, birth);
    }
    let mut packed = vec![0; raw.len()];
    let plain = block.encode();
    let packed_len = codec::compress::compress(Compression::Lz4, &plain, &mut packed)?;
    packed[packed_len..].fill(0);
    image.write(newest.daddr, &packed).ok()?;
    let mut ptr =
        LogPtr::new(newest.daddr, newest.asize(), newest.compression(), fletcher4(&packed, false));
    (ptr.payload_asize, ptr.payload_start) = (newest.payload_asize, newest.payload_start);
    set_header(image, &DeviceHeader { newest: [ptr, second], ..header }, ashift)
}
