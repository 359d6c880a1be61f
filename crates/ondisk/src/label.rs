//! Vdev labels: geometry, the packed configuration, the boot environment and the
//! ring of uberblocks (chapter 01 §1, §2, §5, §10).
//!
//! # Theory
//! A leaf has four copies of a 256 KiB label, two at each end. Each region of a label
//! has its own checksum, salted with its offset on the device, so a label that was
//! copied elsewhere does not verify.
//!
//! # Invariants
//! Regions are passed as a whole; a function that takes a region checks its size.
//! `*_unverified` functions read content without checking the checksum, as pool
//! discovery does (chapter 01 §8.1). Everything that opens a pool verifies.

use base::limits::LEAF_SIZE_MIN;
use base::{Error, ErrorKind, Result, Txg};
use codec::checksum::Checksum;
use codec::checksum::embedded::{ECK_SIZE, compute_embedded, is_swapped, verify_embedded};
use nvlist::NvList;

use crate::endian::Endian;
use crate::uberblock::{ScratchState, UBERBLOCK_SIZE, Uberblock};

/// Bytes of one label.
pub const LABEL_SIZE: u64 = 256 << 10;
/// Labels of one leaf.
pub const LABELS: usize = 4;
/// Device offset of the boot area, behind label 1.
pub const BOOT_OFFSET: u64 = 2 * LABEL_SIZE;
/// Bytes of the boot area; scratch space while a RAID-Z expands.
pub const BOOT_SIZE: u64 = 7 << 19;
/// Device offset of the allocatable area: labels 0 and 1 and the boot area come before.
pub const LABEL_START_SIZE: u64 = BOOT_OFFSET + BOOT_SIZE;
/// Bytes behind the allocatable area: labels 2 and 3.
pub(crate) const LABEL_END_SIZE: u64 = 2 * LABEL_SIZE;
/// Smallest size that a non-leaf vdev may provide (chapter 01 §1, rule 5).
pub const ASIZE_MIN: u64 = LEAF_SIZE_MIN - LABEL_START_SIZE - LABEL_END_SIZE;

/// Offset of the boot environment block in a label.
pub const BOOTENV_OFFSET: u64 = 0x2000;
/// Bytes of the boot environment block, its checksum included.
pub const BOOTENV_SIZE: usize = 0x2000;
/// Offset of the packed configuration in a label.
pub const VDEV_PHYS_OFFSET: u64 = 0x4000;
/// Bytes of the configuration region, its checksum included.
pub const VDEV_PHYS_SIZE: usize = 112 << 10;
/// Longest packed configuration.
pub(crate) const VDEV_PHYS_NVLIST_MAX: usize = VDEV_PHYS_SIZE - ECK_SIZE;
/// Offset of the uberblock ring in a label.
pub const RING_OFFSET: u64 = 0x20000;
/// Bytes of the uberblock ring.
pub const RING_SIZE: usize = 128 << 10;

/// The part of a device that is used: a multiple of the label size (chapter 01 §1, rule
/// 1).
pub fn usable_size(device_size: u64) -> u64 {
    device_size / LABEL_SIZE * LABEL_SIZE
}

/// Device offset of label `label` (0 to 3) on a leaf of `psize` usable bytes.
/// `None` if there is no such label or the leaf is too small for its labels.
pub fn label_offset(psize: u64, label: usize) -> Option<u64> {
    let within = u64::try_from(label).ok()?.checked_mul(LABEL_SIZE)?;
    match label {
        0 | 1 if psize >= LEAF_SIZE_MIN => Some(within),
        2 | 3 if psize >= LEAF_SIZE_MIN => psize.checked_sub(4 * LABEL_SIZE)?.checked_add(within),
        _ => None,
    }
}

/// Allocatable bytes of a leaf of `psize` usable bytes; `None` if it is too small.
pub fn leaf_asize(psize: u64) -> Option<u64> {
    (psize >= LEAF_SIZE_MIN).then(|| psize - LABEL_START_SIZE - LABEL_END_SIZE)
}

/// log2 of an uberblock slot on a leaf below a top-level vdev of this ashift.
fn slot_shift(ashift: u32) -> u32 {
    ashift.clamp(10, 13)
}

/// Bytes of an uberblock slot (chapter 01 §2.2).
pub fn slot_size(ashift: u32) -> usize {
    1 << slot_shift(ashift)
}

/// Number of uberblock slots in a ring.
pub fn slot_count(ashift: u32) -> usize {
    RING_SIZE >> slot_shift(ashift)
}

/// Offset of slot `n` in a label; `None` behind the ring.
pub fn slot_offset(ashift: u32, n: usize) -> Option<u64> {
    (n < slot_count(ashift)).then(|| RING_OFFSET + ((n as u64) << slot_shift(ashift)))
}

/// The slot for the uberblock of `txg` (chapter 01 §2.2). With multihost on, the last
/// slot is reserved for heartbeats.
pub fn slot_of_txg(ashift: u32, txg: Txg, multihost: bool, scratch: ScratchState) -> usize {
    let slots = slot_count(ashift) as u64 - u64::from(multihost);
    // While the scratch area is in use, the same txg is written twice and must not
    // overwrite itself.
    let back = u64::from(scratch == ScratchState::Valid);
    (txg.0.wrapping_sub(back) % slots) as usize
}

/// Checks the checksum of a label region that starts at device byte `offset`.
/// Returns the writer's byte order.
///
/// # Errors
/// `Checksum` if there is no magic or the checksum does not match.
pub(crate) fn verify_region(region: &[u8], offset: u64) -> Result<Endian> {
    let eck = region
        .len()
        .checked_sub(ECK_SIZE)
        .ok_or_else(|| Error::corrupt("a label region is too short"))?;
    verify_embedded(Checksum::Label, region, eck, [offset, 0, 0, 0])
        .map_err(|e| Error::checksum("a vdev label region is damaged").caused_by(e))?;
    let swapped = is_swapped(region, eck).unwrap_or_default();
    Ok(if swapped { Endian::Big } else { Endian::Little })
}

/// Stores the checksum for device byte `offset` at the end of a label region.
///
/// # Errors
/// `Invalid` if the region is too short to hold one.
pub fn seal_region(region: &mut [u8], offset: u64) -> Result<()> {
    let eck = region
        .len()
        .checked_sub(ECK_SIZE)
        .ok_or_else(|| Error::invalid("a label region is too short"))?;
    compute_embedded(Checksum::Label, region, eck, [offset, 0, 0, 0])
        .map_err(|e| Error::invalid("cannot checksum a label region").caused_by(e))
}

fn sized(region: &[u8], size: usize) -> Result<()> {
    if region.len() != size {
        return Err(Error::invalid(format!("a label region must be {size} bytes")));
    }
    Ok(())
}

/// The configuration in a label, its checksum verified. `offset` is the device
/// byte at which the region starts.
///
/// # Errors
/// `Checksum` if the region is damaged, `Corrupt` if it holds no list.
pub fn parse_vdev_phys(region: &[u8], offset: u64) -> Result<NvList> {
    sized(region, VDEV_PHYS_SIZE)?;
    verify_region(region, offset)?;
    parse_vdev_phys_unverified(region)
}

/// The configuration in a label, without verifying the checksum.
///
/// # Errors
/// `Corrupt` if the region holds no list.
pub fn parse_vdev_phys_unverified(region: &[u8]) -> Result<NvList> {
    let packed = region.get(..region.len().min(VDEV_PHYS_NVLIST_MAX)).unwrap_or_default();
    NvList::unpack(packed)
}

/// Fills the configuration region that is written at device byte `offset`.
///
/// # Errors
/// `NameTooLong` if the list does not fit (chapter 01 §5.3), `Invalid` if
/// `region` is not [`VDEV_PHYS_SIZE`] bytes.
pub fn encode_vdev_phys(config: &NvList, region: &mut [u8], offset: u64) -> Result<()> {
    sized(region, VDEV_PHYS_SIZE)?;
    let packed = config.pack_xdr();
    let Some((head, rest)) =
        region.split_at_mut_checked(packed.len()).filter(|_| packed.len() <= VDEV_PHYS_NVLIST_MAX)
    else {
        return Err(Error::new(
            ErrorKind::NameTooLong,
            "the vdev's configuration does not fit its label; use shorter paths",
        ));
    };
    head.copy_from_slice(&packed);
    rest.fill(0);
    seal_region(region, offset)
}

/// Chooses among a device's four labels, in order, with limit `limit`
/// (chapter 01 §5.2): its index. `None` is "bad label".
pub fn choose_label(labels: &[Option<NvList>; LABELS], limit: Txg) -> Option<usize> {
    let mut best: Option<(usize, u64)> = None;
    for (i, label) in labels.iter().enumerate() {
        let Some(label) = label else { continue };
        let txg = label.u64("txg").unwrap_or(0);
        if txg == 0 {
            if best.is_none() {
                return Some(i);
            }
        } else if txg <= limit.0 && best.is_none_or(|(_, t)| txg > t) {
            best = Some((i, txg));
        }
    }
    best.map(|(i, _)| i)
}

/// The uberblock in a slot at device byte `offset`; `None` if the slot holds no
/// valid one (empty and damaged slots are normal).
pub fn parse_slot(slot: &[u8], offset: u64) -> Option<Uberblock> {
    let endian = verify_region(slot, offset).ok()?;
    Uberblock::parse(slot).ok().filter(|ub| ub.endian == endian)
}

/// Every valid uberblock of a ring, with its slot. `offset` is the device byte
/// at which the ring starts.
pub fn uberblocks(
    ring: &[u8],
    ashift: u32,
    offset: u64,
) -> impl Iterator<Item = (usize, Uberblock)> {
    let ring = ring.get(..RING_SIZE.min(ring.len())).unwrap_or_default();
    let size = slot_size(ashift);
    ring.chunks_exact(size).enumerate().filter_map(move |(n, slot)| {
        let at = offset.checked_add((n * size) as u64)?;
        Some((n, parse_slot(slot, at)?))
    })
}

/// Fills the slot that is written at device byte `offset`.
///
/// # Errors
/// `Invalid` if the slot is too small or the uberblock cannot be written.
pub fn encode_slot(ub: &Uberblock, slot: &mut [u8], offset: u64) -> Result<()> {
    if slot.len() < UBERBLOCK_SIZE + ECK_SIZE {
        return Err(Error::invalid("an uberblock slot is too small"));
    }
    let bytes = ub.encode()?;
    let (head, rest) = slot.split_at_mut(UBERBLOCK_SIZE);
    head.copy_from_slice(&bytes);
    rest.fill(0);
    seal_region(slot, offset)
}

const VBE_RAW: u64 = 0;
const VBE_NVLIST: u64 = 1;
const VBE_PAYLOAD: std::ops::Range<usize> = 8..BOOTENV_SIZE - ECK_SIZE;

/// The content of the boot environment block, as the list that administrators see
/// (chapter 01 §10). The region's checksum is verified.
///
/// # Errors
/// `Checksum` if the region is damaged, `Corrupt` if its list is.
pub fn parse_bootenv(region: &[u8], offset: u64) -> Result<NvList> {
    sized(region, BOOTENV_SIZE)?;
    verify_region(region, offset)?;
    parse_bootenv_unverified(region)
}

/// As [`parse_bootenv`], without verifying the checksum.
///
/// # Errors
/// `Corrupt` if the region is too short or its list is damaged.
pub(crate) fn parse_bootenv_unverified(region: &[u8]) -> Result<NvList> {
    let short = || Error::corrupt("a boot environment block is too short");
    let version = Endian::Big.u64(region, 0).ok_or_else(short)?;
    let payload = region.get(VBE_PAYLOAD).ok_or_else(short)?;
    let text = |bytes: &[u8]| {
        let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
        nvlist::NvStr::new(bytes.get(..end).unwrap_or_default())
    };
    let mut env = NvList::new();
    match version {
        VBE_RAW => {
            env.add_u64("version", VBE_RAW);
            env.insert("grub:envmap", text(payload)?);
        }
        VBE_NVLIST => env = NvList::unpack(payload)?,
        _ if region.first().is_some_and(|&b| b != 0) => {
            // An old FreeBSD command string over the whole block.
            let all = region.get(..VBE_PAYLOAD.end).ok_or_else(short)?;
            env.add_u64("version", VBE_NVLIST);
            env.insert("freebsd:bootonce", text(all)?);
        }
        _ => {
            env.add_u64("version", VBE_NVLIST);
        }
    }
    Ok(env)
}

/// Fills the boot environment block that is written at device byte `offset`.
///
/// # Errors
/// `Limit` if the environment does not fit, `Invalid` for a list without a known
/// version or a region that is not [`BOOTENV_SIZE`] bytes.
pub fn encode_bootenv(env: &NvList, region: &mut [u8], offset: u64) -> Result<()> {
    sized(region, BOOTENV_SIZE)?;
    let version = env.u64("version");
    let payload = match version {
        Some(VBE_RAW) => {
            let text = env.string("grub:envmap").map(|s| s.as_bytes()).unwrap_or_default();
            [text, &[0]].concat()
        }
        Some(VBE_NVLIST) => env.pack_xdr(),
        _ => return Err(Error::invalid("a boot environment needs version 0 or 1")),
    };
    if payload.len() >= VBE_PAYLOAD.len() {
        return Err(Error::limit("the boot environment does not fit its block"));
    }
    region.fill(0);
    let bytes = version.unwrap_or_default().to_be_bytes().into_iter().chain(payload);
    region.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
    seal_region(region, offset)
}

#[cfg(test)]
mod tests;
