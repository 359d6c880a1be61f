//! The cache: buffers under keys, one read for each miss, within a target size.
//!
//! # Theory
//! The directory is divided into stripes by the key's hash, and the stripes are grouped into
//! partitions of about [`PARTITION`] bytes. A **hit** takes only its stripe's lock: it clones the
//! buffer and records the use in the stripe's log. A **miss** gives one reader a [`Fill`] ticket;
//! other readers of the same key wait for it. When the ticket is filled, the partition's core
//! lock is taken, the stripes' logs are applied to the policies, the block is inserted, and
//! others are evicted until the partition fits.
//!
//! A block is held **as stored** if that is smaller, with its decompressed form (the *front*)
//! beside it as long as that is used. The share of fronts follows the time that a larger one
//! would have saved. Prefetched blocks wait in a queue of their own, outside the policies, until
//! a reader uses them. The share of that queue grows with useful prefetches and shrinks with
//! wasted ones.
//!
//! # Invariants
//! * A key is resident, remembered, being read (with one ticket), or unknown.
//! * After a block was inserted, a partition's size (buffers' footprints, fronts, directory) is
//!   at most its target, or the excess is held by readers.
//! * A [`SlotRef`] never leads to a block other than the one it was made for, because stamps are
//!   unique.
//! * A block that was removed while it was being read is not kept.
//! * A ticket that is dropped without a buffer leaves no trace, and every waiter retries.
//!
//! # Locks
//! Order: a partition's core, then one of its stripes, then the division. Under them, only
//! policies and the second tier's `offer` are called. A hit whose log is full only tries the
//! core's lock while it holds its stripe, and never waits for it.

mod account;
mod core;
mod evict_all;
mod fill;
mod line;
mod sample;
mod stripe;

use std::hash::{BuildHasher, Hash};
use std::sync::Arc;
use std::time::Duration;

use base::rt::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use base::rt::{Mutex, MutexGuard, RwLock};
use base::{Buf, Result};

pub use self::fill::Fill;

use self::core::{CacheCore, CoreContext, Incoming};
use self::sample::Sampler;
use self::stripe::{CacheStripe, LOG_MAX, PendingRead};
use crate::balance::{Division, META_START};
use crate::config::ARC_MIN_FLOOR;
use crate::policy::CacheKind;
use crate::tier::{NoSecondTier, SecondTier, TierUse};
use crate::{Access, Config, Copies};

/// Target bytes of each partition.
pub(crate) const PARTITION: u64 = 1 << 30;
const PARTITIONS_MAX: u64 = 16;
/// Most free arena memory that is kept for reuse before pages are returned to the system.
const FREE_WARM_MAX: u64 = 16 << 20;
/// Most bytes by which dirty data may exceed the target before the cache evicts for it.
const RESERVE_SLACK_MAX: u64 = 16 << 20;
/// The target grows when less than this is left of it (chapter 10 §2.2).
const GROW_SLACK: u64 = 32 << 20;
/// The target grows by at least this.
const GROW_MIN: u64 = 128 << 10;
/// A stored form is kept if it saves at least an eighth.
const SAVES_SHIFT: usize = 3;
const FILL_NS_START: u64 = 100_000;
const EXPAND_NS_START: u64 = 20_000;

type Hasher = foldhash::quality::FixedState;

/// Identifies the slot in which a block was found; a later lookup needs no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotRef {
    /// Index of the stripe.
    pub stripe: u32,
    /// Index of the slot in the stripe.
    pub slot: u32,
    /// Identifies one of the blocks that the slot has held; never 0.
    pub stamp: u64,
}

/// A lookup of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LookupRequest {
    /// Kind of the block.
    pub kind: CacheKind,
    /// Kind of access.
    pub access: Access,
    /// Whether the bytes will be copied (for the counters).
    pub copies: Copies,
    /// Whether the block is to be kept. If not, it has a place among unread prefetches for
    /// as long as that has room, however often it is used.
    pub keep: bool,
}

impl LookupRequest {
    /// A lookup by a reader that waits for the block.
    pub fn demand(kind: CacheKind) -> LookupRequest {
        LookupRequest { kind, access: Access::Demand, copies: Copies::No, keep: true }
    }
}

/// A resident block.
#[derive(Clone, Debug)]
pub enum ResidentBlock {
    /// The logical block.
    Whole {
        /// Its slot.
        at: SlotRef,
        /// Its bytes.
        whole: Buf,
    },
    /// The block as stored; the reader decompresses the part it needs.
    Stored {
        /// Its slot.
        at: SlotRef,
        /// Its bytes as on the device.
        stored: Buf,
        /// Logical size of the block, bytes.
        lsize: u32,
        /// [`Block::tag`].
        tag: u8,
        /// The decompressed form was also missed a short while ago, so it is worth
        /// [`Cache::install`]ing.
        again: bool,
    },
}

impl ResidentBlock {
    /// Its slot.
    pub fn slot(&self) -> SlotRef {
        match self {
            ResidentBlock::Whole { at, .. } | ResidentBlock::Stored { at, .. } => *at,
        }
    }

    /// Logical size of the block, bytes.
    pub fn lsize(&self) -> u64 {
        match self {
            ResidentBlock::Whole { whole, .. } => whole.len() as u64,
            ResidentBlock::Stored { lsize, .. } => u64::from(*lsize),
        }
    }

    /// [`Block::tag`] of a block that must be decompressed.
    pub fn tag(&self) -> Option<u8> {
        match self {
            ResidentBlock::Whole { .. } => None,
            ResidentBlock::Stored { tag, .. } => Some(*tag),
        }
    }
}

/// The result of a lookup.
pub enum Lookup<'a, K: Copy + Eq + Hash> {
    /// The block is resident.
    Hit(ResidentBlock),
    /// The block is not resident: the caller reads it and fills the ticket.
    Miss(Fill<'a, K>),
}

/// A block that was read.
#[derive(Clone, Debug, Default)]
pub struct Block {
    /// The stored form, if the block is compressed.
    pub stored: Option<Buf>,
    /// A number of the caller's that a reader needs to decompress the block.
    pub tag: u8,
    /// The logical block.
    pub whole: Buf,
    /// A layer above keeps the block: remember it, and keep it only if it is requested again.
    pub remember: bool,
    /// What the second tier may do with it.
    pub usage: TierUse,
}

impl Block {
    /// An uncompressed block.
    pub fn plain(whole: Buf) -> Block {
        Block { whole, ..Block::default() }
    }
}

struct Partition<K> {
    core: Mutex<CacheCore>,
    stripes: Box<[Mutex<CacheStripe<K>>]>,
    /// As the core last published it.
    size: AtomicU64,
    front_room: AtomicBool,
    unread_room: AtomicU64,
}

/// A cache of immutable blocks.
pub struct Cache<K> {
    partitions: Box<[Partition<K>]>,
    stripes_each: u32,
    hasher: Hasher,
    config: RwLock<Config>,
    c: AtomicU64,
    no_grow: AtomicBool,
    division: Mutex<Division>,
    meta: AtomicU64,
    /// Dirty data in the layers above.
    anon: AtomicU64,
    /// Recent maximum of dirty data.
    anon_peak: AtomicU64,
    entries_max: AtomicU64,
    fill_ns: AtomicU64,
    expand_ns: AtomicU64,
    sampler: Sampler,
    tier: Arc<dyn SecondTier<K>>,
}

impl<K: Copy + Eq + Hash> Cache<K> {
    /// A cache with these tunables and an initial target of `c` bytes.
    ///
    /// # Errors
    /// Those of [`Config::check`].
    pub fn new(config: Config, c: u64) -> Result<Self> {
        Cache::with_tier(config, c, Arc::new(NoSecondTier))
    }

    /// As [`Cache::new`], in front of a second tier.
    ///
    /// # Errors
    /// As there.
    pub fn with_tier(config: Config, c: u64, tier: Arc<dyn SecondTier<K>>) -> Result<Self> {
        config.check()?;
        let cores = base::rt::parallelism().next_power_of_two();
        let most = (cores as u64).min(PARTITIONS_MAX);
        let partitions = (config.arc_max / PARTITION).clamp(1, most);
        let partitions = (partitions + 1).next_power_of_two() / 2;
        let stripes_each = (16 * cores / partitions as usize).clamp(8, 64) as u32;
        let c = c.clamp(config.arc_min, config.arc_max);
        let make = |n: u64| Partition {
            core: Mutex::new(CacheCore::new(config.policy, c / partitions)),
            stripes: (0..stripes_each)
                .map(|i| Mutex::new(CacheStripe::new(n as u32 * stripes_each + i)))
                .collect(),
            size: AtomicU64::new(0),
            front_room: AtomicBool::new(true),
            unread_room: AtomicU64::new(core::unread_room_at_first(c / partitions)),
        };
        let cache = Cache {
            partitions: (0..partitions).map(make).collect(),
            stripes_each,
            hasher: Hasher::with_seed(base::rt::random_u64()?),
            config: RwLock::new(config),
            c: AtomicU64::new(c),
            no_grow: AtomicBool::new(false),
            division: Mutex::new(Division::default()),
            meta: AtomicU64::new(META_START),
            anon: AtomicU64::new(0),
            anon_peak: AtomicU64::new(0),
            entries_max: AtomicU64::new(0),
            fill_ns: AtomicU64::new(FILL_NS_START),
            expand_ns: AtomicU64::new(EXPAND_NS_START),
            sampler: Sampler::new(config.policy),
            tier,
        };
        cache.sampler.start([c / 2, c / 2]);
        Ok(cache)
    }

    /// A cache of constant size `bytes`, with default tunables.
    ///
    /// # Errors
    /// As [`Cache::new`].
    pub fn of(bytes: u64) -> Result<Self> {
        let bytes = bytes.max(ARC_MIN_FLOOR);
        Cache::new(Config::sized((bytes / 8).clamp(ARC_MIN_FLOOR, 32 << 20), bytes), bytes)
    }

    fn stripe_of(&self, hash: u64) -> u32 {
        let stripes = self.partitions.len() as u64 * u64::from(self.stripes_each);
        // The middle bits, because a stripe's own table uses both ends.
        (((hash >> 24 & 0xffff_ffff) * stripes) >> 32) as u32
    }

    fn partition(&self, stripe: u32) -> &Partition<K> {
        &self.partitions[(stripe / self.stripes_each) as usize]
    }

    fn stripe(&self, stripe: u32) -> &Mutex<CacheStripe<K>> {
        &self.partition(stripe).stripes[(stripe % self.stripes_each) as usize]
    }

    fn context<'a>(&'a self, partition: &'a Partition<K>) -> CoreContext<'a, K> {
        CoreContext {
            stripes: &partition.stripes,
            hasher: &self.hasher,
            division: &self.division,
            meta: &self.meta,
            tier: &*self.tier,
            balance: self.config.read().meta_balance,
            fill_ns: self.fill_ns.load(Relaxed),
            expand_ns: self.expand_ns.load(Relaxed),
        }
    }

    /// The block if it is in memory; never waits for a read.
    pub fn peek(&self, key: &K, req: LookupRequest) -> Option<ResidentBlock> {
        let hash = self.hasher.hash_one(key);
        let at = self.stripe_of(hash);
        let mut stripe = self.stripe(at).lock();
        let i = stripe.find(hash, key)?;
        let found = self.hit(&mut stripe, at, i, req)?;
        drop(stripe);
        self.sample(mark_of(hash), req, &found);
        Some(found)
    }

    /// The block for which `slot` was made, if it is still there.
    pub fn peek_at(&self, slot: SlotRef, req: LookupRequest) -> Option<ResidentBlock> {
        if slot.stripe as usize >= self.partitions.len() * self.stripes_each as usize {
            return None;
        }
        let mut stripe = self.stripe(slot.stripe).lock();
        let i = stripe.at(slot)?;
        let (mark, kind) = (stripe.mark(i), stripe.slots[i as usize].kind);
        let found = self.hit(&mut stripe, slot.stripe, i, req)?;
        drop(stripe);
        self.sample(mark, LookupRequest { kind, ..req }, &found);
        Some(found)
    }

    /// Reports a hit to the what-if estimator.
    fn sample(&self, mark: u64, req: LookupRequest, found: &ResidentBlock) {
        if req.access == Access::Demand && self.sampler.wants(req.kind, mark) {
            let size = match found {
                ResidentBlock::Whole { whole, .. } => whole.footprint(),
                ResidentBlock::Stored { stored, .. } => stored.footprint(),
            };
            self.record(mark, req.kind, size);
        }
    }

    fn record(&self, mark: u64, kind: CacheKind, size: usize) {
        let size = u32::try_from(size).unwrap_or(u32::MAX);
        self.sampler.record(kind, mark, size, || self.references(), || self.kind_bytes());
    }

    /// Demand lookups so far, by kind.
    fn references(&self) -> [u64; 2] {
        let mut out = [0; 2];
        for stripe in self.partitions.iter().flat_map(|p| &p.stripes) {
            let counts = stripe.lock().counts.access;
            for (sum, kind) in out.iter_mut().zip(counts) {
                *sum += kind[0].hits + kind[0].misses;
            }
        }
        out
    }

    /// Bytes of the cache for data and for metadata: the target, divided in the ratio of the
    /// resident bytes.
    fn kind_bytes(&self) -> [u64; 2] {
        let mut sum = [0; 2];
        for partition in &self.partitions {
            let bytes = partition.core.lock().held_bytes();
            sum = [sum[0] + bytes[0], sum[1] + bytes[1]];
        }
        let all = (sum[0] + sum[1]).max(1);
        sum.map(|s| (u128::from(self.target()) * u128::from(s) / u128::from(all)) as u64)
    }

    /// The expected hit ratios at other sizes, and with cache devices
    /// ([`crate::whatif::WhatIf::devices`]).
    pub fn what_if(&self) -> [Vec<crate::whatif::Point>; 2] {
        self.sampler.curves(|| self.references())
    }

    fn hit(
        &self,
        stripe: &mut MutexGuard<'_, CacheStripe<K>>,
        at: u32,
        i: u32,
        req: LookupRequest,
    ) -> Option<ResidentBlock> {
        if !stripe.slots[i as usize].resident() {
            return None;
        }
        let found = stripe.hit(at, i, req);
        if stripe.log.len() >= LOG_MAX {
            match self.partition(at).core.try_lock() {
                Some(mut core) => core.drain(stripe),
                None => stripe.counts.log_busy += 1,
            }
        }
        Some(found)
    }

    /// The block, or the obligation to read it. Waits while another thread reads it.
    pub fn lookup(&self, key: K, req: LookupRequest) -> Lookup<'_, K> {
        let hash = self.hasher.hash_one(key);
        let at = self.stripe_of(hash);
        loop {
            let pending = {
                let mut stripe = self.stripe(at).lock();
                let slot = stripe.find(hash, &key);
                if let Some(found) = slot.and_then(|i| self.hit(&mut stripe, at, i, req)) {
                    drop(stripe);
                    self.sample(mark_of(hash), req, &found);
                    return Lookup::Hit(found);
                }
                match stripe.join(&key, req.kind, req.access) {
                    Some(pending) => pending,
                    None => {
                        let pending = Some(stripe.begin(key, req.kind, req.access));
                        let began = base::rt::now();
                        return Lookup::Miss(Fill { cache: self, key, hash, req, began, pending });
                    }
                }
            };
            pending.wait();
        }
    }

    /// The logical block, read by `fill` if it is not in memory; for blocks that are never
    /// compressed.
    ///
    /// # Errors
    /// Those of `fill`.
    pub fn get(&self, key: K, kind: CacheKind, fill: impl FnOnce() -> Result<Buf>) -> Result<Buf> {
        match self.lookup(key, LookupRequest::demand(kind)) {
            Lookup::Hit(ResidentBlock::Whole { whole, .. }) => Ok(whole),
            Lookup::Hit(ResidentBlock::Stored { .. }) => fill(),
            Lookup::Miss(ticket) => {
                let buf = fill()?;
                ticket.complete(Block::plain(buf.clone()));
                Ok(buf)
            }
        }
    }

    /// Whether a decompressed form is worth keeping.
    pub fn wants_front(&self, at: SlotRef, again: bool) -> bool {
        again || self.partition(at.stripe).front_room.load(Relaxed)
    }

    /// Keeps the decompressed form of a block beside its stored one; `took` is the duration of
    /// the decompression.
    pub fn install(&self, at: SlotRef, whole: Buf, took: Duration) {
        average(&self.expand_ns, took);
        let partition = self.partition(at.stripe);
        let mut core = partition.core.lock();
        {
            let mut stripe = self.stripe(at.stripe).lock();
            let Some(i) = stripe.at(at) else { return };
            core.drain(&mut stripe);
            core.install(&mut stripe, i, whole);
        }
        self.settle_in(partition, &mut core);
    }

    /// Inserts a block that was just written, as a new one.
    pub fn insert(&self, key: K, kind: CacheKind, block: Block) {
        let hash = self.hasher.hash_one(key);
        self.move_in(key, hash, LookupRequest::demand(kind), block, None);
    }

    /// As [`Cache::insert`], for several blocks; each partition is locked once.
    pub fn insert_all(&self, blocks: Vec<(K, CacheKind, Block)>) {
        let mut parts: Vec<Vec<_>> = self.partitions.iter().map(|_| Vec::new()).collect();
        for (key, kind, block) in blocks {
            let hash = self.hasher.hash_one(key);
            let part = self.stripe_of(hash) / self.stripes_each;
            let req = LookupRequest::demand(kind);
            let incoming = self.prepare(hash, req, block, None);
            if let Some(part) = parts.get_mut(part as usize) {
                part.push((key, hash, kind, incoming));
            }
        }
        self.sampler.resume(|| self.references(), || self.kind_bytes());
        for (partition, blocks) in self.partitions.iter().zip(parts) {
            if blocks.is_empty() {
                continue;
            }
            let mut core = self.enter(partition);
            for (key, hash, kind, incoming) in blocks {
                let at = self.stripe_of(hash);
                let mut stripe = self.stripe(at).lock();
                let i = self.slot_for(&mut core, &mut stripe, key, hash, kind);
                core.put(&mut stripe, at % self.stripes_each, i, incoming);
            }
            self.settle_in(partition, &mut core);
        }
    }

    /// Removes a key whose block was freed or proved wrong. The result of a read in flight will
    /// not be kept.
    pub fn remove(&self, key: &K) {
        self.change(key, |core, stripe, slot| {
            stripe.cancel(key);
            if let Some(i) = slot {
                core.remove(stripe, &self.hasher, i);
            }
        });
        self.tier.forget(key);
    }

    /// Drops a block that is in the cache only because it was not to be kept
    /// ([`LookupRequest::keep`]). It stays in the second tier.
    pub fn discard(&self, key: &K) {
        self.change(key, |core, stripe, slot| {
            if let Some(i) = slot.filter(|&i| stripe.slots[i as usize].fresh.is_some()) {
                core.remove(stripe, &self.hasher, i);
            }
        });
    }

    /// Records that a layer above (the kernel's page cache) keeps the block. Its logical form is
    /// dropped, and the block is remembered, so that it stays if it is requested again. A stored
    /// form, which no other layer has, stays.
    pub fn hand_over(&self, key: &K) {
        self.change(key, |core, stripe, slot| {
            if let Some(i) = slot {
                core.hand_over(&*self.tier, stripe, i);
            }
        });
    }

    /// Changes the entry of a key, if there is one, under its core's and stripe's locks; the
    /// change must not enlarge anything.
    fn change(&self, key: &K, f: impl FnOnce(&mut CacheCore, &mut CacheStripe<K>, Option<u32>)) {
        let hash = self.hasher.hash_one(key);
        let at = self.stripe_of(hash);
        let partition = self.partition(at);
        let mut core = partition.core.lock();
        let mut stripe = self.stripe(at).lock();
        core.drain(&mut stripe);
        let slot = stripe.find(hash, key);
        f(&mut core, &mut stripe, slot);
        drop(stripe);
        partition.size.store(core.size::<K>(), Relaxed);
    }

    fn move_in(
        &self,
        key: K,
        hash: u64,
        req: LookupRequest,
        block: Block,
        pending: Option<&PendingRead>,
    ) -> Option<SlotRef> {
        let at = self.stripe_of(hash);
        let partition = self.partition(at);
        let index = at % self.stripes_each;
        let incoming = self.prepare(hash, req, block, pending);
        self.sampler.resume(|| self.references(), || self.kind_bytes());
        let mut core = self.enter(partition);
        let mut found = None;
        {
            let mut stripe = self.stripe(at).lock();
            if pending.is_some() {
                stripe.end(&key);
            }
            if pending.is_none_or(|p| !p.cancelled.load(Relaxed)) {
                let i = self.slot_for(&mut core, &mut stripe, key, hash, req.kind);
                core.put(&mut stripe, index, i, incoming);
                let slot = &stripe.slots[i as usize];
                found =
                    slot.resident().then_some(SlotRef { stripe: at, slot: i, stamp: slot.stamp });
            }
        }
        self.settle_in(partition, &mut core);
        found
    }

    /// Chooses the forms of a block to insert, grows the target, and reports to the estimator.
    fn prepare(
        &self,
        hash: u64,
        req: LookupRequest,
        block: Block,
        pending: Option<&PendingRead>,
    ) -> Incoming {
        let incoming = self.form(block, req, pending);
        let bytes = incoming.whole.footprint().max(incoming.stored.footprint());
        self.grow(bytes as u64);
        if req.access == Access::Demand && self.sampler.wants(req.kind, mark_of(hash)) {
            let form = if incoming.stored.is_empty() { &incoming.whole } else { &incoming.stored };
            self.record(mark_of(hash), req.kind, form.footprint());
        }
        incoming
    }

    /// A partition's core, after all hits so far were applied to it.
    fn enter<'a>(&self, partition: &'a Partition<K>) -> MutexGuard<'a, CacheCore> {
        let mut core = partition.core.lock();
        core.set_c_if(self.partition_target());
        for stripe in &partition.stripes {
            core.drain(&mut stripe.lock());
        }
        core
    }

    /// An empty slot for `key`.
    fn slot_for(
        &self,
        core: &mut CacheCore,
        stripe: &mut CacheStripe<K>,
        key: K,
        hash: u64,
        kind: CacheKind,
    ) -> u32 {
        if let Some(i) = stripe.find(hash, &key) {
            let slot = &stripe.slots[i as usize];
            if !slot.resident() && slot.kind == kind {
                return i;
            }
            // Rewritten under its old key, or two pointers of a hostile pool disagree.
            core.remove(stripe, &self.hasher, i);
        }
        stripe.add(hash, &self.hasher, key, kind)
    }

    /// The forms of a block to keep.
    fn form(&self, block: Block, req: LookupRequest, pending: Option<&PendingRead>) -> Incoming {
        let keep_stored = self.config.read().compressed;
        let saves = |stored: &Buf| {
            let whole = block.whole.footprint();
            stored.footprint() <= whole - (whole >> SAVES_SHIFT)
        };
        let compressed = block.stored.is_some();
        let stored = block.stored.filter(|s| keep_stored && saves(s)).unwrap_or_default();
        // The second tier needs the bytes as on the pool.
        let eligible = block.usage.eligible && (!compressed || !stored.is_empty());
        let demanded = pending.is_none_or(|p| p.demanded.load(Relaxed));
        let lsize = u32::try_from(block.whole.len()).unwrap_or(u32::MAX);
        Incoming {
            lsize,
            tag: block.tag,
            access: match (req.keep, demanded, req.access) {
                (false, _, _) => Access::Prefetch,
                (true, true, _) => Access::Demand,
                (true, false, access) => access,
            },
            // A form that the kernel keeps decompressed is not kept decompressed here as well.
            whole: if block.remember && !stored.is_empty() { Buf::default() } else { block.whole },
            remember: block.remember && stored.is_empty(),
            usage: TierUse { eligible, ..block.usage },
            stored,
        }
    }

    /// Evicts to fit the target, and publishes the core's values.
    fn settle_in(&self, partition: &Partition<K>, core: &mut CacheCore) {
        core.make_room_unless_stuck(&self.context(partition));
        partition.publish(core);
        let warm = base::buf::stats().free_warm as u64;
        if warm > 2 * self.warm_max() {
            base::buf::trim(self.warm_max() as usize);
        }
    }

    /// Free memory to keep: memory freed by one txg's dirty data is reused by the next.
    fn warm_max(&self) -> u64 {
        let own = (self.target() >> 4).clamp(1 << 20, FREE_WARM_MAX);
        own + self.anon_peak.load(Relaxed)
    }

    /// The target size, bytes.
    pub fn target(&self) -> u64 {
        self.c.load(Relaxed)
    }

    /// Bytes of the cache, including dirty data in the layers above and the memory of the
    /// second tier.
    pub fn size(&self) -> u64 {
        let parts: u64 = self.partitions.iter().map(|p| p.size.load(Relaxed)).sum();
        parts + self.anon.load(Relaxed) + self.tier.memory()
    }

    /// Target of each partition.
    fn partition_target(&self) -> u64 {
        let others = self.anon.load(Relaxed) + self.tier.memory();
        let free = self.target().saturating_sub(others);
        // Dirty data may shrink the cache, but not to nothing.
        free.max(self.target() >> 3) / self.partitions.len() as u64
    }

    /// Grows the target if needed for `bytes` of new content (chapter 10 §2.2).
    fn grow(&self, bytes: u64) {
        let (c, most) = (self.target(), self.config.read().arc_max);
        if c >= most || self.no_grow.load(Relaxed) || self.size() + GROW_SLACK < c {
            return;
        }
        let more = (c + bytes.max(GROW_MIN)).min(most);
        let _raced = self.c.compare_exchange(c, more, Relaxed, Relaxed);
    }

    /// Sets whether growth is forbidden; called by the memory monitor.
    pub fn set_no_grow(&self, no: bool) {
        self.no_grow.store(no, Relaxed);
    }

    /// Sets the target size within `arc_min` and `arc_max`, and evicts down to it at once.
    /// Returns the bytes evicted.
    pub fn set_target(&self, c: u64) -> u64 {
        let (least, most) = {
            let config = self.config.read();
            (config.arc_min, config.arc_max)
        };
        self.c.store(c.clamp(least, most), Relaxed);
        let before = self.size();
        self.fit(CacheCore::make_room);
        self.anon_peak.store(0, Relaxed);
        base::buf::trim(self.warm_max() as usize);
        before.saturating_sub(self.size())
    }

    /// Makes every partition fit its target by `make_room`.
    fn fit(&self, make_room: impl Fn(&mut CacheCore, &CoreContext<'_, K>)) {
        for partition in &self.partitions {
            let mut core = partition.core.lock();
            core.set_c_if(self.partition_target());
            for stripe in &partition.stripes {
                core.drain(&mut stripe.lock());
            }
            make_room(&mut core, &self.context(partition));
            partition.publish(&core);
        }
    }

    /// The tunables.
    pub fn config(&self) -> Config {
        *self.config.read()
    }

    /// Changes the tunables; sizes are in effect when this returns. A change of the policy
    /// empties the cache, because another policy cannot use the state of the old one.
    ///
    /// # Errors
    /// Those of [`Config::check`]; nothing has changed then.
    pub fn configure(&self, config: Config) -> Result<()> {
        config.check()?;
        let old = std::mem::replace(&mut *self.config.write(), config);
        if old.policy != config.policy {
            self.clear();
        }
        let c = self.target();
        self.set_target(c.clamp(config.arc_min, config.arc_max));
        Ok(())
    }

    /// Reserves `bytes` for dirty data in the layers above; the cache evicts for it.
    pub fn reserve(&self, bytes: u64) {
        let anon = self.anon.fetch_add(bytes, Relaxed) + bytes;
        if anon > self.anon_peak.load(Relaxed) {
            self.anon_peak.store(anon, Relaxed);
        }
        // This visits all partitions, so it is not done for every block.
        let target = self.target();
        if self.size() > target + (target >> 6).min(RESERVE_SLACK_MAX) {
            self.fit(CacheCore::make_room_unless_stuck);
        }
    }

    /// Releases `bytes` of dirty data in the layers above.
    pub fn release(&self, bytes: u64) {
        let anon = self.anon.fetch_sub(bytes, Relaxed).saturating_sub(bytes);
        let peak = self.anon_peak.load(Relaxed);
        self.anon_peak.store(anon.max(peak.saturating_sub(bytes >> 4)), Relaxed);
    }

    /// Removes everything that is resident or remembered.
    pub fn clear(&self) {
        let policy = self.config.read().policy;
        for partition in &self.partitions {
            let mut core = partition.core.lock();
            for stripe in &partition.stripes {
                stripe.lock().clear();
            }
            core.reset(policy, self.partition_target());
            partition.publish(&core);
        }
        base::buf::trim(0);
    }
}

/// The what-if estimator's identifier of a block: a slot has space for half a hash.
fn mark_of(hash: u64) -> u64 {
    hash >> 32 << 32
}

/// Moves a running average by an eighth towards the last value.
fn average(to: &AtomicU64, seen: Duration) {
    let seen = u64::try_from(seen.as_nanos()).unwrap_or(u64::MAX).min(1 << 40);
    let was = to.load(Relaxed);
    to.store(was - was / 8 + seen / 8, Relaxed);
}

#[cfg(test)]
mod tests;
