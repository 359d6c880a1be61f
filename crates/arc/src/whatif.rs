//! What-if estimates: the expected hit ratio at multiples of the cache's size.
//!
//! # Theory
//! Miniature simulation (Waldspurger et al., ATC 2017): a cache of `R·c` bytes that
//! sees only the blocks whose hash falls into a share `R` of the hash space has nearly
//! the hit ratio of a cache of `c` bytes that sees all, whatever the policy. For each
//! multiple and each kind, the policy in use is simulated at a rate such that the
//! simulation knows at most [`KNOWN_MAX`] blocks, so memory is bounded for any cache
//! size. A simulation that outgrows the bound halves its rate and drops the blocks
//! outside of it. Rates are shares of one hash, so nearly every reference costs one
//! comparison ([`Filter::wants`]).
//!
//! A few hot blocks inside or outside the sample shift its hit ratio more than its size
//! suggests. As in SHARDS-adj (FAST 2015), the difference between the expected
//! references (`R` times all) and the observed ones counts as hits, because the blocks
//! of which a sample has too few or too many are the hottest ones, and these hit.
//!
//! What cache devices would give is estimated in the same way: behind one more simulation of
//! the present size are miniature devices ([`tiers`]), which get what it evicts. It knows
//! fewer blocks, because the devices hold many times as many.
//!
//! # Invariants
//! A simulation knows at most [`KNOWN_MAX`] blocks. Its hits and references refer to
//! its present rate (they are halved with it). It gives no estimate before [`WARM`]
//! references.
//!
//! Lock order: [`Filter`] needs none; the owner locks [`WhatIf`], a leaf.

mod tiers;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::PolicyKind;
use crate::policy::{CacheKind, Id, Policy, PolicyState, make};
use tiers::MiniDevice;

/// Multiples of the present size that are simulated.
pub(crate) const MULTIPLES: [f64; 6] = [0.25, 0.5, 1.0, 2.0, 4.0, 8.0];
/// Sizes of cache devices that are simulated, as multiples of the present size.
pub(crate) const DEVICES: [f64; 4] = [1.0, 2.0, 4.0, 8.0];
/// Blocks that one simulation knows, resident or remembered. Each costs about 56 bytes;
/// twelve simulations use less than 1 MiB.
pub(crate) const KNOWN_MAX: usize = 1400;
/// Blocks that the simulation before the cache devices knows. These hold up to 15 times
/// those that are resident, and know twice as many that left: less than 1 MiB for both
/// kinds.
pub(crate) const KNOWN_MAX_DEVICES: usize = 700;
/// References that a simulation must have seen before it gives a ratio.
pub(crate) const WARM: f64 = 256.0;
/// Counts are halved beyond this value, so that old references lose weight.
const FADE: f64 = 1e6;
/// The block size assumed for the first rate; smaller blocks soon halve the rate.
const BLOCK_BYTES: f64 = 65536.0;
/// Slots of a simulation's table: a power of two, at most 70 % full.
const SLOTS: usize = 2048;
const EMPTY: Id = Id::MAX;

/// Decides without a lock whether a reference is in any sample.
#[derive(Debug, Default)]
pub struct Filter {
    below: [AtomicU64; 2],
}

impl Filter {
    /// Whether [`WhatIf::record`] needs the block with this hash. The hash must be well
    /// mixed and the same at every reference.
    pub fn wants(&self, kind: CacheKind, hash: u64) -> bool {
        hash < self.below[kind as usize].load(Relaxed)
    }
}

/// The expected hit ratios at one multiple of the size, between 0 and 1; `None` with
/// too few references.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Multiple of the present size.
    pub multiple: f64,
    /// File and volume contents.
    pub data: Option<f64>,
    /// Metadata.
    pub metadata: Option<f64>,
}

/// A miniature cache.
struct Mini {
    policy: Box<dyn Policy>,
    /// Bytes of the cache that it represents.
    full: f64,
    /// Most blocks that it knows.
    most: usize,
    /// Cache devices behind it.
    devices: Vec<MiniDevice>,
    /// By number: bytes, and whether the block was known when it was read.
    facts: Vec<(u32, bool)>,
    /// Share of the blocks that it sees, and the upper bound of their hashes.
    rate: f64,
    below: u64,
    /// Open addressing with linear probing: block numbers by hash.
    table: Box<[Id]>,
    hashes: Vec<u64>,
    free: Vec<Id>,
    references: f64,
    hits: f64,
    /// References expected up to `mark`, a count of all references.
    expected: f64,
    mark: u64,
}

impl Mini {
    fn new(kind: PolicyKind, full: f64, seen: u64, devices: &[f64]) -> Mini {
        let policy = make(kind, 0);
        let most = if devices.is_empty() { KNOWN_MAX } else { KNOWN_MAX_DEVICES };
        let mut mini = Mini {
            policy,
            full,
            most,
            devices: devices.iter().map(|multiple| MiniDevice::new(*multiple)).collect(),
            facts: Vec::new(),
            rate: 0.0,
            below: 0,
            table: vec![EMPTY; SLOTS].into(),
            hashes: Vec::new(),
            free: Vec::new(),
            references: 0.0,
            hits: 0.0,
            expected: 0.0,
            mark: seen,
        };
        mini.set_rate((most as f64 / 2.5 * BLOCK_BYTES / full.max(1.0)).min(1.0));
        mini
    }

    fn set_rate(&mut self, rate: f64) {
        self.rate = rate;
        // Saturates: at rate 1 every hash except the largest is below the bound.
        self.below = (rate * 2f64.powi(64)) as u64;
        self.policy.set_target((self.full * rate) as u64);
        let bytes = self.full * rate;
        self.devices.iter_mut().for_each(|device| device.resize(bytes));
        self.settle();
    }

    fn slot(&self, hash: u64) -> usize {
        // The high bits are those that the rate cuts off.
        let mut at = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) as usize >> 40 & (SLOTS - 1);
        while self.table[at] != EMPTY && self.hashes[self.table[at] as usize] != hash {
            at = (at + 1) & (SLOTS - 1);
        }
        at
    }

    fn known(&self) -> usize {
        self.hashes.len() - self.free.len()
    }

    fn record(&mut self, hash: u64, size: u32, seen: u64) {
        if hash >= self.below {
            return;
        }
        self.references += 1.0;
        let at = self.slot(hash);
        let mut id = self.table[at];
        if id != EMPTY && matches!(self.policy.state(id), PolicyState::Mru | PolicyState::Mfu) {
            self.hits += 1.0;
            self.policy.hit(id);
        } else {
            let known = id != EMPTY;
            self.devices.iter_mut().for_each(|device| device.read(hash));
            if id == EMPTY {
                id = self.free.pop().unwrap_or(self.hashes.len() as Id);
                if id as usize == self.hashes.len() {
                    self.hashes.push(hash);
                }
                self.hashes[id as usize] = hash;
                self.table[at] = id;
            }
            if !self.devices.is_empty() {
                self.facts.resize(self.facts.len().max(id as usize + 1), (0, false));
                self.facts[id as usize] = (size, known);
            }
            self.policy.admit(id, size);
        }
        self.settle();
        while self.known() >= self.most {
            self.halve(seen);
        }
        if self.references > FADE {
            self.advance(seen);
            self.references /= 2.0;
            self.hits /= 2.0;
            self.expected /= 2.0;
            self.devices.iter_mut().for_each(|device| device.hits /= 2.0);
        }
    }

    /// Evicts and forgets as the policy decides.
    fn settle(&mut self) {
        while let Some(id) = self.policy.evict(&mut |_| false) {
            if let Some(&(size, returned)) = self.facts.get(id as usize) {
                let hash = self.hashes[id as usize];
                self.devices.iter_mut().for_each(|device| device.offer(hash, size, returned));
            }
            if self.policy.state(id) == PolicyState::Unknown {
                self.release(id);
            }
        }
        while let Some(id) = self.policy.forget() {
            self.release(id);
        }
    }

    /// Removes the block from the table; later entries of its run move up.
    fn release(&mut self, id: Id) {
        let mut hole = self.slot(self.hashes[id as usize]);
        self.table[hole] = EMPTY;
        self.free.push(id);
        loop {
            hole = (hole + 1) & (SLOTS - 1);
            let next = self.table[hole];
            if next == EMPTY {
                return;
            }
            self.table[hole] = EMPTY;
            let at = self.slot(self.hashes[next as usize]);
            self.table[at] = next;
        }
    }

    /// Counts the references expected until now at the present rate.
    fn advance(&mut self, seen: u64) {
        self.expected += self.rate * seen.saturating_sub(self.mark) as f64;
        self.mark = seen;
    }

    /// Halves the rate and drops the blocks outside of it.
    fn halve(&mut self, seen: u64) {
        self.advance(seen);
        let rate = self.rate / 2.0;
        let below = (rate * 2f64.powi(64)) as u64;
        let out: Vec<Id> = self.table.iter().copied().filter(|&id| id != EMPTY).collect();
        for id in out {
            if self.hashes[id as usize] >= below {
                self.policy.remove(id);
                self.release(id);
            }
        }
        self.references /= 2.0;
        self.hits /= 2.0;
        self.expected /= 2.0;
        self.devices.iter_mut().for_each(|device| device.halve(below));
        self.set_rate(rate);
    }

    fn ratio(&self, seen: u64) -> Option<f64> {
        self.ratio_of(self.hits, seen)
    }

    /// The share that the cache or the device of this index answers.
    fn ratio_with(&self, device: usize, seen: u64) -> Option<f64> {
        self.ratio_of(self.hits + self.devices.get(device)?.hits, seen)
    }

    fn ratio_of(&self, hits: f64, seen: u64) -> Option<f64> {
        let expected = self.expected + self.rate * seen.saturating_sub(self.mark) as f64;
        if self.references < WARM || expected < WARM {
            return None;
        }
        let adjusted = hits + expected - self.references;
        Some((adjusted / expected).clamp(0.0, 1.0))
    }

    /// Memory in bytes.
    fn memory(&self) -> u64 {
        let own = self.table.len() * size_of::<Id>()
            + self.hashes.capacity() * size_of::<u64>()
            + self.free.capacity() * size_of::<Id>()
            + self.facts.capacity() * size_of::<(u32, bool)>();
        let devices: u64 = self.devices.iter().map(MiniDevice::memory).sum();
        own as u64 + devices + self.policy.overhead() + size_of::<Mini>() as u64
    }
}

/// The estimator of one pool's cache.
pub struct WhatIf {
    kind: PolicyKind,
    filter: Arc<Filter>,
    /// By [`CacheKind`] and multiple; empty before the size is known.
    minis: [Vec<Mini>; 2],
    /// Before cache devices, by [`CacheKind`].
    before_devices: [Option<Mini>; 2],
    sizes: [u64; 2],
}

impl WhatIf {
    /// An estimator for a policy. It records nothing before [`WhatIf::set_size`].
    pub fn new(kind: PolicyKind) -> WhatIf {
        let minis = [Vec::new(), Vec::new()];
        let before_devices = [None, None];
        WhatIf { kind, filter: Arc::default(), minis, before_devices, sizes: [0; 2] }
    }

    /// The filter to check before [`WhatIf::record`].
    pub fn filter(&self) -> Arc<Filter> {
        Arc::clone(&self.filter)
    }

    /// Sets the cache's present sizes, bytes, by [`CacheKind`], and the references of each
    /// kind so far. A size within a quarter of the last one changes the simulations'
    /// targets; any other restarts them.
    pub fn set_size(&mut self, sizes: [u64; 2], seen: [u64; 2]) {
        for kind in 0..2 {
            let (new, old) = (sizes[kind], self.sizes[kind]);
            if new == old && !self.minis[kind].is_empty() {
                continue;
            }
            let near = old > 0 && new.abs_diff(old) <= old / 4;
            if near {
                for (mini, multiple) in self.minis[kind].iter_mut().zip(MULTIPLES) {
                    mini.full = new as f64 * multiple;
                    mini.set_rate(mini.rate);
                }
                if let Some(mini) = &mut self.before_devices[kind] {
                    mini.full = new as f64;
                    mini.set_rate(mini.rate);
                }
                continue;
            }
            self.sizes[kind] = new;
            let mini = |m: f64| Mini::new(self.kind, new as f64 * m, seen[kind], &[]);
            self.minis[kind] = MULTIPLES.map(mini).into();
            let before = Mini::new(self.kind, new as f64, seen[kind], &DEVICES);
            self.before_devices[kind] = Some(before);
            self.publish(kind);
        }
    }

    fn publish(&self, kind: usize) {
        let minis = self.minis[kind].iter().chain(&self.before_devices[kind]);
        let below = minis.map(|m| m.below).max().unwrap_or(0);
        self.filter.below[kind].store(below, Relaxed);
    }

    /// Records a reference that the filter accepts: the block's hash, kind and size,
    /// and the number of references of its kind so far.
    pub fn record(&mut self, hash: u64, kind: CacheKind, size: u32, seen: u64) {
        let before = self.before_devices[kind as usize].iter_mut();
        for mini in self.minis[kind as usize].iter_mut().chain(before) {
            mini.record(hash, size, seen);
        }
        self.publish(kind as usize);
    }

    /// The expected hit ratios, after `seen` references of each [`CacheKind`].
    pub fn curve(&self, seen: [u64; 2]) -> Vec<Point> {
        let ratio = |kind: CacheKind, at: usize| {
            self.minis[kind as usize].get(at).and_then(|m| m.ratio(seen[kind as usize]))
        };
        let point = |(at, multiple)| Point {
            multiple,
            data: ratio(CacheKind::Data, at),
            metadata: ratio(CacheKind::Metadata, at),
        };
        MULTIPLES.into_iter().enumerate().map(point).collect()
    }

    /// The expected share of references that memory of the present size or a cache device
    /// behind it answers; [`Point::multiple`] is the device's size.
    pub fn devices(&self, seen: [u64; 2]) -> Vec<Point> {
        let ratio = |kind: CacheKind, at: usize| {
            let mini = self.before_devices[kind as usize].as_ref()?;
            mini.ratio_with(at, seen[kind as usize])
        };
        let point = |(at, multiple)| Point {
            multiple,
            data: ratio(CacheKind::Data, at),
            metadata: ratio(CacheKind::Metadata, at),
        };
        DEVICES.into_iter().enumerate().map(point).collect()
    }

    /// Memory of the estimator, bytes.
    pub fn memory(&self) -> u64 {
        let minis = self.minis.iter().flatten();
        minis.chain(self.before_devices.iter().flatten()).map(Mini::memory).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u32 = 8192;

    fn mix(mut x: u64) -> u64 {
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    struct StreamRng(u64);

    impl StreamRng {
        fn next(&mut self) -> u64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            mix(self.0)
        }

        fn unit(&mut self) -> f64 {
            (self.next() >> 11) as f64 / (1u64 << 53) as f64
        }
    }

    /// Zipf-like with exponent near 1 over `keys` keys, by inversion.
    fn zipf(rng: &mut StreamRng, keys: f64) -> u64 {
        keys.powf(rng.unit()) as u64
    }

    /// Hit ratio of the policy over the whole stream, without sampling.
    fn replay(kind: PolicyKind, stream: &[u64], bytes: u64) -> f64 {
        let mut policy = make(kind, bytes);
        let mut hits = 0;
        // Keys are dense here, so a block's number is its key.
        for &key in stream {
            let id = key as Id;
            if matches!(policy.state(id), PolicyState::Mru | PolicyState::Mfu) {
                hits += 1;
                policy.hit(id);
            } else {
                policy.admit(id, BLOCK);
                while policy.evict(&mut |_| false).is_some() {}
            }
            while policy.forget().is_some() {}
        }
        f64::from(hits) / stream.len() as f64
    }

    /// The largest difference between estimate and replay, in percentage points.
    fn worst(kind: PolicyKind, stream: &[u64], blocks: u64, which: CacheKind) -> f64 {
        let size = blocks * u64::from(BLOCK);
        let mut whatif = WhatIf::new(kind);
        whatif.set_size([size; 2], [0; 2]);
        let filter = whatif.filter();
        let mut recorded = 0;
        for (n, &key) in stream.iter().enumerate() {
            let hash = mix(key.wrapping_add(77));
            if filter.wants(which, hash) {
                recorded += 1;
                whatif.record(hash, which, BLOCK, n as u64 + 1);
            }
        }
        assert!(whatif.memory() <= 2 << 20, "{} bytes", whatif.memory());
        assert!(recorded < stream.len() / 2, "{recorded} of {} recorded", stream.len());
        let mut worst: f64 = 0.0;
        for point in whatif.curve([stream.len() as u64; 2]) {
            let (ours, other) = match which {
                CacheKind::Data => (point.data, point.metadata),
                CacheKind::Metadata => (point.metadata, point.data),
            };
            assert_eq!(other, None);
            let real = replay(kind, stream, (size as f64 * point.multiple) as u64);
            let difference = (ours.unwrap() - real).abs() * 100.0;
            println!("{kind:?} x{}: {ours:?} {real:.4}", point.multiple);
            worst = worst.max(difference);
        }
        worst
    }

    #[test]
    fn a_zipf_stream_is_foretold() {
        let mut rng = StreamRng(7);
        let stream: Vec<u64> = (0..1_500_000).map(|_| zipf(&mut rng, 400_000.0)).collect();
        for kind in [PolicyKind::Arc, PolicyKind::Default] {
            let worst = worst(kind, &stream, 8000, CacheKind::Data);
            assert!(worst <= 2.0, "{kind:?}: {worst:.2} points");
        }
    }

    #[test]
    fn loops_beside_zipf_are_foretold() {
        let mut rng = StreamRng(8);
        let stream: Vec<u64> = (0..1_500_000u64)
            .map(|n| if n % 3 == 0 { 300_000 + n / 3 % 30_000 } else { zipf(&mut rng, 200_000.0) })
            .collect();
        for kind in [PolicyKind::Arc, PolicyKind::Default] {
            let worst = worst(kind, &stream, 12_000, CacheKind::Metadata);
            assert!(worst <= 2.0, "{kind:?}: {worst:.2} points");
        }
    }

    #[test]
    fn a_small_cache_is_simulated_whole() {
        let stream: Vec<u64> = (0..40_000).map(|n| n % 50).collect();
        let mut whatif = WhatIf::new(PolicyKind::Arc);
        whatif.set_size([100 * u64::from(BLOCK); 2], [0; 2]);
        let filter = whatif.filter();
        for (n, &key) in stream.iter().enumerate() {
            assert!(filter.wants(CacheKind::Data, mix(key)));
            whatif.record(mix(key), CacheKind::Data, BLOCK, n as u64 + 1);
        }
        for point in whatif.curve([stream.len() as u64, 0]) {
            let size = (100.0 * point.multiple) as u64 * u64::from(BLOCK);
            let real = replay(PolicyKind::Arc, &stream, size);
            assert!((point.data.unwrap() - real).abs() < 0.0001, "{point:?} {real}");
            assert_eq!(point.metadata, None);
        }
    }

    /// Replays a stream through the policy and a whole device behind it, which is what a
    /// miniature stands for; the shares answered by memory and by both.
    fn replay_device(kind: PolicyKind, stream: &[u64], bytes: u64, times: f64) -> (f64, f64) {
        let mut policy = make(kind, bytes);
        let mut device = MiniDevice::new(times);
        device.resize(bytes as f64);
        let keys = stream.iter().max().map_or(0, |key| *key as usize + 1);
        let mut known = vec![false; keys];
        let mut hits = 0;
        for &key in stream {
            let id = key as Id;
            if matches!(policy.state(id), PolicyState::Mru | PolicyState::Mfu) {
                hits += 1;
                policy.hit(id);
            } else {
                device.read(mix(key));
                known[key as usize] = policy.state(id) != PolicyState::Unknown;
                policy.admit(id, BLOCK);
                while let Some(id) = policy.evict(&mut |_| false) {
                    device.offer(mix(u64::from(id)), BLOCK, known[id as usize]);
                }
            }
            while policy.forget().is_some() {}
        }
        let all = stream.len() as f64;
        (f64::from(hits) / all, (f64::from(hits) + device.hits) / all)
    }

    #[test]
    fn what_cache_devices_would_give_is_foretold() {
        let mut rng = StreamRng(9);
        let zipf: Vec<u64> = (0..1_500_000).map(|_| zipf(&mut rng, 300_000.0)).collect();
        // A loop of 2.5 times the memory, which a device of twice its size holds with it.
        let cycle: Vec<u64> = (0..600_000).map(|n| n % 20_000).collect();
        let scan: Vec<u64> = (0..600_000).collect();
        let size = 8000 * u64::from(BLOCK);
        for (name, stream) in [("zipf", zipf), ("loop", cycle), ("scan", scan)] {
            let mut whatif = WhatIf::new(PolicyKind::Default);
            whatif.set_size([size; 2], [0; 2]);
            for (n, &key) in stream.iter().enumerate() {
                if whatif.filter().wants(CacheKind::Data, mix(key)) {
                    whatif.record(mix(key), CacheKind::Data, BLOCK, n as u64 + 1);
                }
            }
            assert!(whatif.memory() <= 2 << 20, "{} bytes", whatif.memory());
            for point in whatif.devices([stream.len() as u64, 0]) {
                let (alone, real) =
                    replay_device(PolicyKind::Default, &stream, size, point.multiple);
                let estimate = point.data.unwrap();
                println!("{name} x{}: {estimate:.4}, {real:.4}, alone {alone:.4}", point.multiple);
                assert!((estimate - real).abs() < 0.04, "{name}: {point:?}, {real:.4}");
                assert_eq!(point.metadata, None);
                assert_eq!(real > alone + 0.03, name != "scan", "{name}: {real} {alone}");
            }
        }
    }

    #[test]
    fn a_changed_size_is_followed() {
        let mut whatif = WhatIf::new(PolicyKind::Default);
        assert!(!whatif.filter().wants(CacheKind::Data, 0));
        whatif.set_size([1 << 30; 2], [0; 2]);
        let before = whatif.filter().below[0].load(Relaxed);
        whatif.set_size([1 << 34, 1 << 30], [0; 2]);
        assert!(whatif.filter().below[0].load(Relaxed) < before / 8);
        assert!(whatif.curve([0; 2]).iter().all(|p| p.data.is_none() && p.metadata.is_none()));
    }
}
