//! The cache devices of one pool: the queue of blocks to be written, the feed thread, and
//! reads.
//!
//! # Theory
//! [`CachePool::offer`] puts admitted blocks into a queue. The feed thread sleeps while the
//! queue is empty. Otherwise it writes, `l2arc_feed_secs` after its last turn, or after
//! `l2arc_feed_min_ms` if more than half a turn's bytes wait: to one device a turn, the
//! devices in rotation. A block stays readable in the queue until the device has it.
//!
//! # Invariants
//! * A block that is forgotten while it is being written is removed from the device when the
//!   write has ended.
//! * The queue has at most a turn's bytes, and at most 1/32 of the first tier.
//! * An idle pool wakes no thread.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use arc::CacheKind;
use arc::stats::SecondTierStats;
use arc::tier::{LeavingBlock, Offered};
use base::rt::{self, Condvar, JoinHandle, Mutex, RwLock};
use base::{Buf, Dva, Guid, Result};
use ondisk::l2::EntryFacts;

use crate::admission::{Admission, L2Policy};
use crate::device::{CacheDevice, Health, NewBlock};
use crate::index::BlockId;
use crate::level::{LevelShared, SecondLevel, Tunables};

/// What the feed needs to know of the pool's own vdevs.
pub trait Geometry: Send + Sync {
    /// The first address of a block, as its pointer has it; `None` if it is not known.
    fn address(&self, id: &BlockId, psize: u64, gang: bool) -> Option<Dva>;
    /// Whether the vdev is a special one.
    fn is_special(&self, vdev: u32) -> bool;
}

/// Blocks of this many bytes are assumed until some were offered.
const BLOCK_GUESS: u64 = 64 << 10;
/// The queue has at most 1/32 of the first tier.
const QUEUE_SHIFT: u32 = 5;

#[derive(Clone)]
struct WaitingBlock {
    stored: Buf,
    dva: Dva,
    facts: EntryFacts,
}

struct FeedQueue {
    order: VecDeque<BlockId>,
    blocks: HashMap<BlockId, WaitingBlock>,
    /// Those being written.
    writing: HashMap<BlockId, WaitingBlock>,
    /// Forgotten while they were being written.
    dropped: HashSet<BlockId>,
    /// Bytes in `blocks` and `writing`.
    bytes: u64,
    /// Bytes offered since the last turn.
    considered: u64,
    admission: Admission,
    /// Average bytes of an offered block.
    average: u64,
    hasher: foldhash::fast::FixedState,
    rotor: usize,
    stop: bool,
}

/// The cache devices of a pool.
pub struct CachePool {
    level: Arc<SecondLevel>,
    shared: Arc<LevelShared>,
    load: u32,
    geometry: Arc<dyn Geometry>,
    devices: RwLock<Vec<Arc<CacheDevice>>>,
    queue: Mutex<FeedQueue>,
    wake: Condvar,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Held for a turn of the feed.
    feeding: Mutex<()>,
    /// Memory of this pool, as it was added to the level's.
    charged: Mutex<u64>,
}

impl CachePool {
    /// The devices, none yet, of the pool with this load.
    pub fn new(level: &Arc<SecondLevel>, load: u32, geometry: Arc<dyn Geometry>) -> Arc<CachePool> {
        let queue = FeedQueue {
            order: VecDeque::new(),
            blocks: HashMap::new(),
            writing: HashMap::new(),
            dropped: HashSet::new(),
            bytes: 0,
            considered: 0,
            admission: Admission::new(L2Policy::Default, 0),
            average: BLOCK_GUESS,
            hasher: foldhash::fast::FixedState::with_seed(rt::random_u64().unwrap_or(1)),
            rotor: 0,
            stop: false,
        };
        Arc::new(CachePool {
            level: Arc::clone(level),
            shared: Arc::clone(level.shared()),
            load,
            geometry,
            devices: RwLock::new(Vec::new()),
            queue: Mutex::new(queue),
            wake: Condvar::new(),
            threads: Mutex::new(Vec::new()),
            feeding: Mutex::new(()),
            charged: Mutex::new(0),
        })
    }

    /// The devices.
    pub fn devices(&self) -> Vec<Arc<CacheDevice>> {
        self.devices.read().clone()
    }

    /// The device with this guid.
    pub fn device(&self, guid: Guid) -> Option<Arc<CacheDevice>> {
        self.devices.read().iter().find(|d| d.spec().guid == guid).map(Arc::clone)
    }

    /// The tunables in effect.
    pub fn tunables(&self) -> Tunables {
        *self.shared.tunables.read()
    }

    /// Takes a device into use. With `rebuild` its content is restored first, by a thread of
    /// its own; otherwise it begins empty.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub fn add(self: &Arc<Self>, device: CacheDevice, rebuild: bool) -> Result<Arc<CacheDevice>> {
        let device = Arc::new(device);
        let rebuild = rebuild && self.tunables().rebuild_enabled;
        device.rebuilding.store(true, Relaxed);
        {
            let mut devices = self.devices.write();
            devices.retain(|d| d.spec().guid != device.spec().guid);
            devices.push(Arc::clone(&device));
        }
        self.level.enter(self.load, Arc::clone(self));
        let (pool, own) = (Arc::clone(self), Arc::clone(&device));
        let restore = rt::spawn("l2arc-rebuild", move || pool.prepare(&own, rebuild))?;
        let mut threads = self.threads.lock();
        threads.push(restore);
        if device.device().caps().writable && threads.len() == 1 {
            let pool = Arc::clone(self);
            threads.push(rt::spawn("l2arc-feed", move || pool.feed_thread())?);
        }
        Ok(device)
    }

    fn prepare(&self, device: &CacheDevice, rebuild: bool) {
        if rebuild {
            let others = self.shared.memory.load(Relaxed);
            let most = self.shared.index_max();
            let end = device.restore_or_clear(&|own| others.saturating_add(own) > most);
            self.shared.count_rebuild(&end);
        } else {
            device.start_anew();
        }
        self.charge();
        device.rebuilding.store(false, Relaxed);
    }

    /// Takes a device out of use for good.
    pub fn remove(&self, guid: Guid) -> Option<Arc<CacheDevice>> {
        let mut devices = self.devices.write();
        let at = devices.iter().position(|d| d.spec().guid == guid)?;
        let device = devices.remove(at);
        drop(devices);
        device.retire();
        self.charge();
        Some(device)
    }

    /// Ends the threads and forgets all devices. The content on the devices stays.
    pub fn close(&self) {
        self.level.leave(self.load);
        for device in self.devices.read().iter() {
            device.retire();
        }
        {
            let mut queue = self.queue.lock();
            queue.stop = true;
            (queue.bytes, queue.order, queue.blocks) = (0, VecDeque::new(), HashMap::new());
        }
        self.wake.notify_all();
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in threads {
            thread.join();
        }
        self.devices.write().clear();
        self.charge();
    }

    /// Updates the level's memory.
    fn charge(&self) {
        let devices: u64 = self.devices.read().iter().map(|d| d.memory()).sum();
        let (waiting, history) = {
            let queue = self.queue.lock();
            (queue.bytes, queue.admission.memory())
        };
        let now = devices + waiting + if devices > 0 || waiting > 0 { history } else { 0 };
        let mut charged = self.charged.lock();
        let before = std::mem::replace(&mut *charged, now);
        self.shared.memory.fetch_add(now.wrapping_sub(before), Relaxed);
    }

    /// Bytes of one turn.
    fn turn(&self, tunables: &Tunables, filling: bool) -> u64 {
        tunables.write_max + if filling { tunables.write_boost } else { 0 }
    }

    /// See [`arc::SecondTier::offer`].
    pub(crate) fn offer<K>(&self, id: BlockId, block: &LeavingBlock<'_, K>) -> Offered {
        let tunables = self.tunables();
        let metadata = block.kind == CacheKind::Metadata;
        let again = block.again || block.returned;
        let unwanted = match tunables.mfuonly {
            0 => false,
            1 => !again,
            _ => !again && !metadata,
        };
        let psize = block.stored.len() as u64;
        if !block.usage.eligible
            || block.prefetched && tunables.noprefetch
            || unwanted
            || psize == 0
        {
            return Offered::Ineligible;
        }
        let Some(dva) = self.geometry.address(&id, psize, block.usage.gang) else {
            return Offered::Ineligible;
        };
        let (mut present, mut usable, mut filling, mut bytes) = (false, false, false, 0);
        for device in self.devices.read().iter() {
            present |= device.contains(&id);
            usable |= device.is_writable();
            filling |= device.is_filling();
            bytes += device.capacity();
        }
        if present {
            return Offered::Cached;
        }
        if !usable {
            return Offered::Ineligible;
        }
        let turn = self.turn(&tunables, filling);
        let most = turn.min(self.shared.first_tier() >> QUEUE_SHIFT);
        let mut queue = self.queue.lock();
        if queue.blocks.contains_key(&id) || queue.writing.contains_key(&id) {
            return Offered::Cached;
        }
        queue.average = queue.average - queue.average / 64 + psize / 64;
        let blocks = bytes / queue.average.max(512);
        queue.admission.follow(tunables.policy, blocks);
        let hash = queue.hasher.hash_one(id);
        let wanted = queue.admission.wants(hash, block.returned, filling);
        let room = queue.bytes + psize <= most && !queue.stop;
        let near =
            tunables.headroom == 0 || queue.considered < turn.saturating_mul(tunables.headroom);
        queue.considered = queue.considered.saturating_add(psize);
        let admitted = wanted && room && near;
        if admitted {
            let facts = EntryFacts {
                lsize: u64::from(block.lsize),
                psize,
                compression: block.tag,
                metadata,
                prefetch: block.prefetched,
                protected: block.usage.protected,
                mfu: again,
            };
            queue.bytes += psize;
            queue.order.push_back(id);
            queue.blocks.insert(id, WaitingBlock { stored: block.stored.clone(), dva, facts });
            if queue.order.len() == 1 || queue.bytes > most / 2 {
                self.wake.notify_all();
            }
        }
        drop(queue);
        self.shared.count(|c| {
            c.offered += 1;
            c.admitted += u64::from(admitted);
        });
        if admitted { Offered::Cached } else { Offered::Eligible }
    }

    /// Drops a block that was freed.
    pub fn forget(&self, id: &BlockId) {
        let mut queue = self.queue.lock();
        if let Some(block) = queue.blocks.remove(id) {
            queue.bytes -= block.stored.len() as u64;
        }
        let while_written = queue.writing.contains_key(id);
        if while_written {
            queue.dropped.insert(*id);
        }
        drop(queue);
        for device in self.devices.read().iter() {
            device.forget(id);
        }
        if while_written {
            self.shared.count(|c| c.free_on_write += 1);
        }
    }

    /// Whether the block is on a device, or waits to be written to one.
    pub fn contains(&self, id: &BlockId) -> bool {
        let waits = {
            let queue = self.queue.lock();
            queue.blocks.contains_key(id) || queue.writing.contains_key(id)
        };
        waits || self.devices.read().iter().any(|device| device.contains(id))
    }

    /// The block's bytes as stored, if they are here and `verify` accepts them. Everything
    /// else is a miss.
    pub fn read(&self, id: &BlockId, psize: u64, verify: &dyn Fn(&[u8]) -> bool) -> Option<Buf> {
        let devices = self.devices();
        if devices.is_empty() {
            return None;
        }
        let waiting = {
            let queue = self.queue.lock();
            let found = match queue.dropped.contains(id) {
                true => None,
                false => queue.blocks.get(id).or_else(|| queue.writing.get(id)),
            };
            found.map(|b| b.stored.clone()).filter(|b| b.len() as u64 == psize)
        };
        let norw = self.tunables().norw;
        let found = waiting.filter(|b| verify(b)).or_else(|| {
            let clashes = |device: &&Arc<CacheDevice>| {
                let clash = norw && device.is_writing() && device.contains(id);
                self.shared.count(|c| c.rw_clash += u64::from(clash));
                !clash
            };
            devices.iter().filter(clashes).find_map(|device| match device.read(id, psize) {
                Ok(Some(bytes)) if verify(&bytes) || device.bugs.unverified.load(Relaxed) => {
                    self.shared.count(|c| c.read_bytes += psize);
                    Some(bytes)
                }
                Ok(Some(_)) => {
                    device.reject(id);
                    self.shared.count(|c| c.cksum_bad += 1);
                    None
                }
                Ok(None) => None,
                Err(_) => {
                    self.shared.count(|c| c.io_error += 1);
                    None
                }
            })
        });
        self.shared.count(|c| match found {
            Some(_) => c.hits += 1,
            None => c.misses += 1,
        });
        found
    }

    fn feed_thread(&self) {
        let mut last = rt::now();
        loop {
            {
                let mut queue = self.queue.lock();
                while queue.order.is_empty() && !queue.stop {
                    self.wake.wait(&mut queue);
                }
                loop {
                    if queue.stop {
                        return;
                    }
                    let tunables = self.tunables();
                    let much = tunables.feed_again && queue.bytes > tunables.write_max / 2;
                    let pause = match much {
                        true => Duration::from_millis(tunables.feed_min_ms),
                        false => Duration::from_secs(tunables.feed_secs),
                    };
                    let left = pause.saturating_sub(last.elapsed());
                    if left.is_zero() {
                        break;
                    }
                    self.wake.wait_timeout(&mut queue, left);
                }
            }
            last = rt::now();
            self.feed();
        }
    }

    /// One turn: writes what waits to one device.
    pub fn feed(&self) {
        let _turn = self.feeding.lock();
        let tunables = self.tunables();
        let devices = self.devices();
        let index: u64 = devices.iter().map(|d| d.memory()).sum();
        let short = index > self.shared.index_max();
        let usable: Vec<_> = devices.iter().filter(|d| d.is_writable()).collect();
        let mut queue = self.queue.lock();
        queue.considered = 0;
        queue.rotor = queue.rotor.wrapping_add(1);
        let device = (!short).then(|| usable.get(queue.rotor % usable.len().max(1))).flatten();
        let Some(device) = device else {
            (queue.bytes, queue.order, queue.blocks) = (0, VecDeque::new(), HashMap::new());
            drop(queue);
            self.charge();
            return self.shared.count(|c| c.abort_lowmem += u64::from(short));
        };
        let turn = self.turn(&tunables, device.is_filling());
        let mut batch = Vec::new();
        let mut bytes = 0;
        while bytes < turn {
            let Some(id) = queue.order.pop_front() else { break };
            let Some(block) = queue.blocks.remove(&id) else { continue };
            bytes += block.stored.len() as u64;
            queue.writing.insert(id, block.clone());
            batch.push((id, block));
        }
        drop(queue);
        let new = batch.into_iter().filter_map(|(id, WaitingBlock { stored, dva, facts })| {
            let excluded = tunables.exclude_special && self.geometry.is_special(id.vdev);
            (!excluded).then_some(NewBlock { id, dva, facts, stored })
        });
        let ahead = turn.saturating_mul(tunables.trim_ahead) / 100;
        let counts = device.feed(new.collect(), ahead);
        self.shared.count_feed(&counts);
        let mut queue = self.queue.lock();
        let dropped = std::mem::take(&mut queue.dropped);
        for id in &dropped {
            device.forget(id);
        }
        queue.writing.clear();
        queue.bytes = queue.blocks.values().map(|b| b.stored.len() as u64).sum();
        drop(queue);
        self.charge();
    }

    /// Writes everything that waits, without pauses.
    pub fn drain(&self) {
        while !self.queue.lock().order.is_empty() {
            self.feed();
        }
    }

    /// Whether a device's content is still being restored.
    pub fn is_rebuilding(&self) -> bool {
        self.devices.read().iter().any(|d| d.rebuilding.load(Relaxed))
    }

    pub(crate) fn add_stats(&self, out: &mut SecondTierStats) {
        for device in self.devices.read().iter() {
            let sums = device.sums();
            let [lb_asize, lb_count] = device.logs();
            out.ndev += u64::from(device.health() == Health::Online);
            out.evict_reading += device.counts().overwritten;
            out.size += sums.lsize;
            out.asize += sums.asize;
            out.prefetch_asize += sums.prefetch;
            out.mru_asize += sums.mru;
            out.mfu_asize += sums.mfu;
            out.bufc_data_asize += sums.data;
            out.bufc_metadata_asize += sums.metadata;
            out.log_blk_asize += lb_asize;
            out.log_blk_count += lb_count;
        }
        out.waiting += self.queue.lock().bytes;
    }
}

#[cfg(test)]
mod tests;
