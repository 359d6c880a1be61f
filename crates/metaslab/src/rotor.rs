//! Turns of the vdevs of one class (§12.4).

use base::rt::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::Totals;
use crate::group::Group;

/// Bytes for each data disk of a vdev before the next vdev's turn.
pub(crate) const ALIQUOT: u64 = 2 << 20;
/// A vdev's share is at most this many times more or less than the mean.
const BIAS_MAX: u64 = 8;

#[derive(Debug, Default)]
struct Rotor {
    at: AtomicUsize,
    /// Bytes since arrival.
    used: AtomicU64,
}

/// The vdevs of one class in turn, for each stream.
#[derive(Debug)]
pub(crate) struct Ring {
    /// Indices of groups.
    pub(crate) members: Vec<usize>,
    rotors: Vec<Rotor>,
    /// Move on after each block: intent logs.
    always: bool,
}

impl Ring {
    pub(crate) fn new(streams: usize, always: bool) -> Ring {
        let rotors = (0..streams).map(|_| Rotor::default()).collect();
        Ring { members: Vec::new(), rotors, always }
    }

    /// The member whose turn it is.
    pub(crate) fn turn(&self, stream: usize) -> usize {
        let at = self.rotors.get(stream).map_or(0, |r| r.at.load(Ordering::Relaxed));
        if at < self.members.len() { at } else { 0 }
    }

    /// `bytes` were taken from a member. Races lose a few bytes of a turn.
    pub(crate) fn took(&self, stream: usize, member: usize, bytes: u64, aliquot: u64) {
        let n = self.members.len();
        let Some(rotor) = self.rotors.get(stream).filter(|_| n > 1) else { return };
        let same = rotor.at.load(Ordering::Relaxed) == member;
        let used = if same { rotor.used.load(Ordering::Relaxed) + bytes } else { bytes };
        let done = self.always || used >= aliquot;
        rotor.at.store(if done { (member + 1) % n } else { member }, Ordering::Relaxed);
        rotor.used.store(if done { 0 } else { used }, Ordering::Relaxed);
    }

    /// Shares by free space, so that vdevs become full together.
    pub(crate) fn balance(&self, groups: &[Group]) {
        let members: Vec<&Group> = self.members.iter().filter_map(|&i| groups.get(i)).collect();
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
