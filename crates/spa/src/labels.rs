//! The four labels of one leaf device (chapter 01 §2, §5.2).

use base::{BufMut, Error, Result, Txg};
use device::Device;
use nvlist::NvList;
use ondisk::label::{
    LABEL_SIZE, RING_OFFSET, RING_SIZE, VDEV_PHYS_OFFSET, VDEV_PHYS_SIZE, choose_label,
    label_offset, parse_vdev_phys, parse_vdev_phys_unverified, uberblocks, usable_size,
};
use ondisk::uberblock::Uberblock;

/// Labels on a device.
pub const LABELS: usize = 4;

/// One label, as far as it could be read.
#[derive(Debug, Default)]
pub struct Label {
    /// The configuration, if its region unpacks.
    pub config: Option<NvList>,
    /// Whether the region's checksum verifies.
    pub verified: bool,
    ring: Option<(BufMut, u64)>,
}

/// The contents of all labels of a device.
#[derive(Debug, Default)]
pub struct LeafLabels {
    /// The four labels in order.
    pub labels: [Label; LABELS],
}

impl LeafLabels {
    /// Reads all four labels; unreadable ones stay empty.
    ///
    /// # Errors
    /// `Invalid` when the device is too small to have labels.
    pub fn read(device: &dyn Device) -> Result<LeafLabels> {
        let psize = usable_size(device.size());
        let mut out = LeafLabels::default();
        if label_offset(psize, 0).is_none() {
            return Err(Error::invalid("the device is smaller than 64 MiB"));
        }
        let offsets: Vec<u64> = (0..LABELS).filter_map(|l| label_offset(psize, l)).collect();
        let reads = offsets.iter().map(|&o| device::Io::read(o, LABEL_SIZE as usize)).collect();
        let done = device::submit_and_wait(device, reads);
        for ((label, completion), offset) in out.labels.iter_mut().zip(done).zip(offsets) {
            let Ok(bytes) = completion.into_read() else { continue };
            *label = Label::parse(&bytes, offset);
        }
        Ok(out)
    }

    /// Verified configurations, by label.
    fn verified(&self) -> [Option<NvList>; LABELS] {
        std::array::from_fn(|i| {
            let label = self.labels.get(i)?;
            label.config.clone().filter(|_| label.verified)
        })
    }

    /// The configuration in effect no later than `limit`.
    pub fn config_at(&self, limit: Txg) -> Option<NvList> {
        let mut verified = self.verified();
        choose_label(&verified, limit).and_then(|i| verified.get_mut(i)?.take())
    }

    /// The configuration used for discovery: the first valid one (chapter 01 §8.1),
    /// verified ones first; and how many labels agree with it.
    pub fn discovery_config(&self) -> Option<(&NvList, usize)> {
        let counts = |l: &&Label| l.config.as_ref().is_some_and(identifies_member);
        let good = self.labels.iter().filter(counts);
        let first =
            good.clone().find(|l| l.verified).or_else(|| good.clone().next())?.config.as_ref()?;
        let guid = first.u64("guid");
        let same = good.filter(|l| l.config.as_ref().is_some_and(|c| c.u64("guid") == guid));
        Some((first, same.count()))
    }

    /// Every valid uberblock of every label, for a leaf of this ashift.
    pub fn uberblocks(&self, ashift: u32) -> Vec<Uberblock> {
        let rings = self.labels.iter().filter_map(|l| l.ring.as_ref());
        rings.flat_map(|(ring, at)| uberblocks(ring, ashift, *at).map(|(_, ub)| ub)).collect()
    }

    /// Valid uberblocks of one label with their slots (`zdb -lu`).
    pub fn uberblocks_of(&self, label: usize, ashift: u32) -> Vec<(usize, Uberblock)> {
        match self.labels.get(label).and_then(|l| l.ring.as_ref()) {
            Some((ring, at)) => uberblocks(ring, ashift, *at).collect(),
            None => Vec::new(),
        }
    }
}

/// Rule 2 of chapter 01 §8.1.
fn identifies_member(config: &NvList) -> bool {
    let state = config.u64("state");
    config.u64("guid").is_some_and(|g| g != 0)
        && state.is_some_and(|s| s <= 4)
        && (matches!(state, Some(3 | 4)) || config.u64("txg").is_some_and(|t| t != 0))
}

impl Label {
    fn parse(bytes: &[u8], offset: u64) -> Label {
        let part = |at: u64, len: usize| bytes.get(at as usize..at as usize + len);
        let mut label = Label::default();
        if let Some(region) = part(VDEV_PHYS_OFFSET, VDEV_PHYS_SIZE) {
            let verified = parse_vdev_phys(region, offset + VDEV_PHYS_OFFSET).ok();
            label.verified = verified.is_some();
            label.config = verified.or_else(|| parse_vdev_phys_unverified(region).ok());
        }
        label.ring =
            part(RING_OFFSET, RING_SIZE).map(|ring| (BufMut::copy_of(ring), offset + RING_OFFSET));
        label
    }
}
