//! The rotor over the vdevs of one class (§12.4).

use base::rt::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::Totals;
use crate::group::MetaslabGroup;

/// Bytes for each data disk of a vdev before the rotor moves to the next vdev.
pub(crate) const ALIQUOT: u64 = 2 << 20;
/// A vdev's share is at most this many times larger or smaller than the mean.
const BIAS_MAX: u64 = 8;

#[derive(Debug, Default)]
struct Rotor {
    at: AtomicUsize,
    /// Bytes allocated since the rotor arrived at this vdev.
    used: AtomicU64,
}

/// The vdevs of one class, with a rotor for each stream.
#[derive(Debug)]
pub(crate) struct VdevRing {
    /// Indices of metaslab groups.
    pub(crate) members: Vec<usize>,
    rotors: Vec<Rotor>,
    /// Move on after each block (intent logs).
    always: bool,
}

impl VdevRing {
    pub(crate) fn new(streams: usize, always: bool) -> VdevRing {
        let rotors = (0..streams).map(|_| Rotor::default()).collect();
        VdevRing { members: Vec::new(), rotors, always }
    }

    /// The current member of a stream.
    pub(crate) fn current(&self, stream: usize) -> usize {
        let at = self.rotors.get(stream).map_or(0, |r| r.at.load(Ordering::Relaxed));
        if at < self.members.len() { at } else { 0 }
    }

    /// Counts `bytes` allocated from a member. Races may lose a few bytes of the count.
    pub(crate) fn took(&self, stream: usize, member: usize, bytes: u64, aliquot: u64) {
        let n = self.members.len();
        let Some(rotor) = self.rotors.get(stream).filter(|_| n > 1) else { return };
        let same = rotor.at.load(Ordering::Relaxed) == member;
        let used = if same { rotor.used.load(Ordering::Relaxed) + bytes } else { bytes };
        let done = self.always || used >= aliquot;
        rotor.at.store(if done { (member + 1) % n } else { member }, Ordering::Relaxed);
        rotor.used.store(if done { 0 } else { used }, Ordering::Relaxed);
    }

    /// Sets the shares by free space, so that vdevs become full together.
    pub(crate) fn balance(&self, groups: &[MetaslabGroup]) {
        let members: Vec<&MetaslabGroup> =
            self.members.iter().filter_map(|&i| groups.get(i)).collect();
        let free: Vec<u64> = members.iter().map(|g| Totals::free(&g.totals())).collect();
        let mean = free.iter().sum::<u64>() / (free.len() as u64).max(1);
        for (group, free) in members.iter().zip(free) {
            let base = ALIQUOT * group.data_disks;
            let share = u128::from(base) * u128::from(free) / u128::from(mean.max(1));
            let share = u64::try_from(share).unwrap_or(u64::MAX);
            let share = share.clamp(base / BIAS_MAX, base * BIAS_MAX);
            group.aliquot.store(share, Ordering::Relaxed);
        }
    }
}
