//! Writing and clearing whole labels of devices that no committed pool has
//! (chapter 01 §2.2, §5.4, §11).
//!
//! # Invariants
//! * `vl_pad1`, the first 8 KiB of each label, is never touched.
//! * Every function flushes its writes before it returns.

use base::{BufMut, Error, Guid, Result, Txg};
use device::{Device, Io, submit_and_wait};
use nvlist::NvList;
use ondisk::label::{
    BOOTENV_OFFSET, BOOTENV_SIZE, LABEL_SIZE, LABEL_START_SIZE, LABELS, RING_OFFSET, RING_SIZE,
    VDEV_PHYS_OFFSET, VDEV_PHYS_SIZE, encode_bootenv, encode_slot, encode_vdev_phys, label_offset,
    seal_region, slot_offset, slot_size, usable_size,
};
use ondisk::uberblock::{UBERBLOCK_SIZE, VERSION_FEATURES};

use super::uberblock::template;
use crate::labels::LeafLabels;

/// Bytes of a label that the pool owns: all but `vl_pad1`.
const OWNED: usize = (LABEL_SIZE - BOOTENV_OFFSET) as usize;
/// Bytes of the L2ARC device header, at the start of the allocatable area.
const L2_HEADER: usize = 512;

/// The boot environment, configuration and ring of one label that starts at device
/// byte `at`: no txg is committed, every slot is invalid (chapter 01 §2.2).
///
/// # Errors
/// `NameTooLong` if the configuration does not fit.
fn fresh(config: &NvList, at: u64) -> Result<BufMut> {
    let mut out = BufMut::zeroed(OWNED);
    let (bootenv, rest) = out.split_at_mut(BOOTENV_SIZE);
    let (phys, ring) = rest.split_at_mut(VDEV_PHYS_SIZE);
    let mut env = NvList::new();
    env.add_u64("version", 0);
    encode_bootenv(&env, bootenv, at + BOOTENV_OFFSET)?;
    encode_vdev_phys(config, phys, at + VDEV_PHYS_OFFSET)?;
    let version = config.u64("version").unwrap_or(VERSION_FEATURES);
    let blank = template(version, Txg::ZERO).encode()?;
    ring.get_mut(..UBERBLOCK_SIZE)
        .ok_or_else(|| base::bug!("the ring is shorter than an uberblock"))?
        .copy_from_slice(&blank);
    seal_region(ring, at + RING_OFFSET)?;
    Ok(out)
}

const _: () = assert!(BOOTENV_SIZE + VDEV_PHYS_SIZE + RING_SIZE == OWNED);

/// Writes `config` into all four labels of a device, with blank boot environment and ring.
/// `config` has txg 0, or is that of a spare or cache device.
///
/// # Errors
/// `Invalid` for a device too small for labels or a configuration with a committed txg,
/// `NameTooLong` for one that does not fit, the device's errors: all four labels must be
/// written.
pub fn init(device: &dyn Device, config: &NvList) -> Result<()> {
    if config.u64("txg").is_some_and(|txg| txg != 0) {
        return Err(Error::invalid("a fresh label cannot claim a committed txg"));
    }
    let mut writes = Vec::with_capacity(LABELS);
    for at in offsets(device)? {
        writes.push(Io::Write {
            offset: at + BOOTENV_OFFSET,
            bufs: vec![fresh(config, at)?.freeze()],
        });
    }
    run(device, writes)
}

/// Writes the uberblocks of the first label into the rings of the last two, whose place moved
/// because the device grew (chapter 01 §1); `ashift` is that of its vdev.
///
/// # Errors
/// The device's.
pub(crate) fn copy_rings(device: &dyn Device, ashift: u32) -> Result<()> {
    let labels = LeafLabels::read(device)?;
    let known = labels.uberblocks_of(0, ashift);
    let mut writes = Vec::new();
    for at in offsets(device)?.into_iter().skip(2) {
        let mut ring = BufMut::zeroed(RING_SIZE);
        for (slot, uberblock) in &known {
            let Some(within) = slot_offset(ashift, *slot) else { continue };
            let start = within.saturating_sub(RING_OFFSET) as usize;
            let size = slot_size(ashift);
            let place = ring.get_mut(start..start + size);
            let place = place.ok_or_else(|| base::bug!("a slot outside of the ring"))?;
            encode_slot(uberblock, place, at + within)?;
        }
        writes.push(Io::Write { offset: at + RING_OFFSET, bufs: vec![ring.freeze()] });
    }
    run(device, writes)
}

/// Offsets of the four labels.
fn offsets(device: &dyn Device) -> Result<Vec<u64>> {
    let psize = usable_size(device.size());
    let offsets: Option<Vec<u64>> = (0..LABELS).map(|l| label_offset(psize, l)).collect();
    offsets.ok_or_else(|| {
        Error::invalid("the device is smaller than 64 MiB").on_path(device.describe())
    })
}

fn run(device: &dyn Device, writes: Vec<Io>) -> Result<()> {
    for done in submit_and_wait(device, writes) {
        done.result?;
    }
    for done in submit_and_wait(device, vec![Io::Flush]) {
        done.result?;
    }
    Ok(())
}

/// Wipes all labels with content: configuration and uberblocks become zero, a cache
/// device's header too. Returns how many labels there were; 0 is a device without labels,
/// and nothing was written.
///
/// The caller has made sure that the device is not in use.
///
/// # Errors
/// `Invalid` for a device too small for labels, the device's.
pub fn clear(device: &dyn Device) -> Result<usize> {
    let labels = LeafLabels::read(device)?;
    let says_something = |config: &NvList| {
        config.u64("guid").is_some_and(|g| g != 0) && config.u64("state").is_some_and(|s| s <= 4)
    };
    let mut writes = Vec::new();
    let mut was_cache = false;
    for (label, at) in labels.labels.iter().zip(offsets(device)?) {
        let Some(config) = label.config.as_ref().filter(|c| says_something(c)) else { continue };
        was_cache |= config.u64("state") == Some(4);
        let zeros = BufMut::zeroed(VDEV_PHYS_SIZE + RING_SIZE).freeze();
        writes.push(Io::Write { offset: at + VDEV_PHYS_OFFSET, bufs: vec![zeros] });
    }
    let count = writes.len();
    if count == 0 {
        return Ok(0);
    }
    if was_cache {
        let zeros = BufMut::zeroed(L2_HEADER).freeze();
        writes.push(Io::Write { offset: LABEL_START_SIZE, bufs: vec![zeros] });
    }
    run(device, writes)?;
    Ok(count)
}

/// The pool and guid that a device's label names, for messages; `None` without
/// labels.
pub fn named(labels: &LeafLabels) -> Option<(Option<String>, Guid)> {
    let (config, _) = labels.discovery_config()?;
    Some((config.str("name").map(str::to_owned), Guid(config.u64("guid").unwrap_or(0))))
}

#[cfg(test)]
mod tests;
