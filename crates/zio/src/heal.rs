//! Reads that heal: the content of a good copy is written over the wrong bytes on a
//! leaf.
//!
//! # Theory
//! A read may succeed although the bytes of some leaf were wrong or unreadable, or
//! although an earlier address failed completely. Such a read leaves a [`DamagedCopy`]. A few
//! threads of low priority process damaged copies one after the other: they pin the address,
//! read all copies and columns there again, overwrite wrong bytes with right ones, and
//! compare ([`vdev::Tree::heal`]). Where nothing can be read at an address any more,
//! the content from another address of the block is written there
//! ([`vdev::Tree::rewrite`]).
//!
//! # Why no other block is overwritten
//! Between the read and the write the block may be freed and its space given to another
//! block. Checksums do not exclude that: a leaf that silently missed the new block
//! still holds the old one, and healing from it would destroy the new one. So it must
//! be certain that the space still belongs to the block, and that it stays so until the
//! write has ended:
//! * *The reader knows when its pointer was valid.* [`crate::Io::origin`] describes how
//!   it obtained the pointer. [`Origin::Tree`] names a txg T, loaded
//!   ([`Zio::healing_since`]) before the reader fetched the tree from which it walked
//!   to the pointer. The trees of a txg are published to readers before T is announced.
//!   So the tree is that of T or of a later txg, and if the block was freed, it was
//!   freed in a txg after T. [`Origin::Root`] is for object sets that do not change.
//!   All their pointers are valid as long as the pool has the dataset with that root,
//!   which is looked up when the copy is processed. Pointers of unknown origin are not
//!   healed.
//! * *The pin refuses space that may have been reallocated.* Space freed in a metaslab
//!   becomes allocatable when a later txg ends, in `metaslab`'s `Space::synced`. The
//!   pin is refused if that happened in the block's metaslab since T. So no space freed
//!   after T was released there, and the block's space was not allocated again. A block
//!   born after T is refused, too, because its first write may be in flight.
//! * *The pin keeps it so.* While a metaslab is pinned, space freed in it does not
//!   become allocatable. Only space that was allocatable before is allocated, and the
//!   block's space was not. If the block is freed meanwhile, the write goes to unused
//!   space.
//! * *No write of the block itself is in flight*, because its txg was committed. Other
//!   healing of the same address is excluded by a table of addresses that are being
//!   healed.
//! * *Missing txgs.* A leaf that missed the block's txg is not healed here, because a
//!   resilver considers only its missing txgs.
//!
//! A crash during healing leaves wrong bytes only where the bytes were wrong before;
//! all others are untouched.
//!
//! # Invariants
//! * Nothing is written to a pool that is read-only, suspended, or being closed:
//!   [`Zio::stop_healing`] returns after the last write has ended.
//! * At most [`THREADS`] damaged copies are being healed, and at most [`WAITING_MAX`] with
//!   [`BYTES_MAX`] bytes wait. Further ones are dropped: the next read of the block, or
//!   a scrub, finds them again. So readers never wait for a broken leaf.
//!
//! # Departures
//! Not healed are blocks without a checksum, blocks on a vdev that was removed, blocks whose pointer has no known origin (intent logs, traversals,
//! `zdb`), and blocks that an import reads before its first txg.
//!
//! Lock order: the lock of the state is a leaf.

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use base::limits::GANG_DEPTH_MAX;
use base::rt::{Condvar, Mutex, RwLock, spawn};
use base::{Buf, Dva, ErrorKind, Psize, Result, Txg};
use codec::checksum::Checksum;
use codec::checksum::embedded::verify_embedded;
use ondisk::blkptr::{Block, BlockPlace};
use vdev::{Priority, ReadReq};

use crate::Zio;
use crate::gang::ECK_SIZE;
use crate::read::Verifier;

/// Wounds that are healed concurrently.
const THREADS: usize = 2;
/// Limits on waiting damaged copies: their number and their bytes.
const WAITING_MAX: usize = 4096;
const BYTES_MAX: u64 = 64 << 20;

/// How a reader obtained a block pointer. It determines whether the block is known to
/// be in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// Unknown.
    #[default]
    Unknown,
    /// From the tree of a live object set that was fetched after this txg was
    /// announced.
    Tree(Txg),
    /// From an object set that does not change, with this id and this place of its root.
    Root(u64, BlockPlace),
}

/// Keeps an address from being allocated to another block as long as the value lives.
pub type Pin = Box<dyn Send>;

/// The pool's knowledge of which blocks are in use.
pub trait InUse: Send + Sync {
    /// Pins the address of a block whose pointer has this origin. Returns `None` if the
    /// space may belong to another block by now, or if nothing may be written.
    fn pin(&self, dva: Dva, birth: Txg, origin: Origin) -> Option<Pin>;
}

/// An address with wrong bytes, and how to verify the right ones.
pub(crate) struct DamagedCopy {
    pub(crate) dva: Dva,
    pub(crate) psize: Psize,
    pub(crate) birth: Txg,
    pub(crate) check: Check,
    /// The right content, `psize` bytes.
    pub(crate) good: Buf,
}

/// How bytes at an address are verified.
pub(crate) enum Check {
    /// The checksum of a block.
    Block(Box<Block>),
    /// The embedded checksum of a gang header, with this verifier.
    Header([u64; 4]),
}

/// The damaged copies found by one read.
#[derive(Default)]
pub(crate) struct DamageList {
    pub(crate) list: Vec<DamagedCopy>,
    /// Addresses of gang headers from which the block could not be read. The wrong
    /// bytes may be in a member, so a header is read again and healed only if it is
    /// wrong itself.
    pub(crate) headers: Vec<Dva>,
}

impl DamageList {
    /// Records that some leaf has wrong bytes of a block, at an address that could be
    /// read.
    pub(crate) fn note(&mut self, block: &Block, dva: Dva, good: &Buf) {
        // Without a checksum it is unknown which bytes are right.
        let checksum = Checksum::from_id(block.checksum);
        if matches!(checksum, None | Some(Checksum::Off | Checksum::NoParity)) {
            return;
        }
        self.list.push(DamagedCopy {
            dva,
            psize: block.psize,
            birth: block.effective_physical_birth(),
            check: Check::Block(Box::new(*block)),
            good: good.clone(),
        });
    }

    /// Records that these addresses of a block could not be read, but another one
    /// could.
    pub(crate) fn failed(&mut self, block: &Block, dvas: &[Dva], good: &Buf) {
        dvas.iter().filter(|dva| !dva.gang).for_each(|dva| self.note(block, *dva, good));
    }
}

/// Results of healing since the pool was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HealCounts {
    /// Addresses with wrong bytes that reads found.
    pub found: u64,
    /// Pieces of leaves that were rewritten and are right now.
    pub healed: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Pieces that could not be written, or are still wrong.
    pub failed: u64,
    /// Addresses that were not healed: too many, or not known to be in use.
    pub skipped: u64,
}

#[derive(Default)]
struct HealQueue {
    waiting: VecDeque<(DamagedCopy, Origin)>,
    bytes: u64,
    /// Addresses that wait or are being healed.
    addresses: HashSet<(u32, u64)>,
    threads: usize,
    /// Callers of [`Zio::correct`] that write now.
    correcting: usize,
    stopped: bool,
}

/// The healing state of one pool.
#[derive(Default)]
pub(crate) struct Healing {
    in_use: RwLock<Option<Arc<dyn InUse>>>,
    own: RwLock<Weak<Zio>>,
    /// The last announced txg; 0 if healing is off.
    since: AtomicU64,
    state: Mutex<HealQueue>,
    /// Signalled when a thread ended.
    changed: Condvar,
    found: AtomicU64,
    healed: AtomicU64,
    bytes: AtomicU64,
    failed: AtomicU64,
    skipped: AtomicU64,
}

/// Verifies bytes.
type Accepts<'a> = Box<dyn Fn(&[u8]) -> bool + 'a>;

impl DamagedCopy {
    fn accepts(&self, zio: &Zio) -> Result<Accepts<'_>> {
        match &self.check {
            Check::Block(block) => {
                // The salt is set once and lives as long as the pipeline.
                let block = Block::clone(block);
                let salt = zio.salt.get().cloned();
                Verifier::new(&block, salt.as_ref())?;
                Ok(Box::new(move |bytes| {
                    Verifier::new(&block, salt.as_ref()).is_ok_and(|v| v.accepts(bytes))
                }))
            }
            Check::Header(verifier) => Ok(Box::new(|bytes| header_is_right(bytes, *verifier))),
        }
    }
}

/// Whether the checksum of a gang header is right.
pub(crate) fn header_is_right(bytes: &[u8], verifier: [u64; 4]) -> bool {
    bytes
        .len()
        .checked_sub(ECK_SIZE)
        .is_some_and(|at| verify_embedded(Checksum::GangHeader, bytes, at, verifier).is_ok())
}

impl Zio {
    /// Turns healing on, for blocks that `in_use` can pin.
    pub fn set_healing(self: &Arc<Self>, in_use: Arc<dyn InUse>) {
        *self.healing.own.write() = Arc::downgrade(self);
        *self.healing.in_use.write() = Some(in_use);
    }

    /// Announces a txg: readers now find the trees of all txgs up to this one, and the
    /// frees of these txgs have been processed.
    pub fn announce(&self, txg: Txg) {
        self.healing.since.store(txg.0, Ordering::Release);
    }

    /// The last announced txg; `None` if healing is off. Call it before fetching the
    /// tree ([`Origin::Tree`]).
    pub fn healing_since(&self) -> Option<Txg> {
        let since = self.healing.since.load(Ordering::Acquire);
        (since != 0).then_some(Txg(since))
    }

    /// Whether reads of this pool may heal.
    pub(crate) fn heals(&self) -> bool {
        self.healing.since.load(Ordering::Relaxed) != 0
    }

    /// Turns healing off and waits until running healing has ended.
    pub fn stop_healing(&self) {
        self.healing.since.store(0, Ordering::Release);
        let mut state = self.healing.state.lock();
        state.stopped = true;
        state.waiting.clear();
        state.bytes = 0;
        while state.threads > 0 || state.correcting > 0 {
            self.healing.changed.wait(&mut state);
        }
        state.addresses.clear();
        drop(state);
        *self.healing.in_use.write() = None;
    }

    /// Waits until all waiting damaged copies are healed (for tests, and for commands that show
    /// errors).
    pub fn settle_healing(&self) {
        let mut state = self.healing.state.lock();
        while state.threads > 0 {
            self.healing.changed.wait(&mut state);
        }
    }

    /// The results of healing.
    pub fn heal_counts(&self) -> HealCounts {
        let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
        let h = &self.healing;
        HealCounts {
            found: get(&h.found),
            healed: get(&h.healed),
            bytes: get(&h.bytes),
            failed: get(&h.failed),
            skipped: get(&h.skipped),
        }
    }

    /// Queues the damaged copies that a successful read found.
    pub(crate) fn heal(&self, damage: DamageList, origin: Origin) {
        if damage.list.is_empty() || origin == Origin::Unknown || !self.heals() {
            return;
        }
        let healing = &self.healing;
        let Some(own) = healing.own.read().upgrade() else { return };
        let mut state = healing.state.lock();
        for damaged in damage.list {
            healing.found.fetch_add(1, Ordering::Relaxed);
            let address = (damaged.dva.vdev.0, damaged.dva.offset);
            let bytes = state.bytes + damaged.psize.0;
            let full = state.waiting.len() >= WAITING_MAX || bytes > BYTES_MAX;
            if state.stopped || full || !state.addresses.insert(address) {
                healing.skipped.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            state.bytes = bytes;
            state.waiting.push_back((damaged, origin));
        }
        while state.threads < THREADS.min(state.waiting.len()) {
            let zio = Arc::clone(&own);
            state.threads += 1;
            if spawn("heal", move || zio.heal_all()).is_err() {
                state.threads -= 1;
                if state.threads == 0 {
                    let left = std::mem::take(&mut state.waiting);
                    healing.skipped.fetch_add(left.len() as u64, Ordering::Relaxed);
                    (state.bytes, state.addresses) = (0, HashSet::new());
                }
                return;
            }
        }
    }

    /// Heals until no damaged copy waits.
    fn heal_all(&self) {
        let healing = &self.healing;
        let mut state = healing.state.lock();
        while let Some((damaged, origin)) = state.waiting.pop_front() {
            state.bytes -= damaged.psize.0;
            drop(state);
            let address = (damaged.dva.vdev.0, damaged.dva.offset);
            let healed = self.heal_one(&damaged, origin);
            match healed {
                Some(done) => {
                    healing.healed.fetch_add(done.pieces, Ordering::Relaxed);
                    healing.bytes.fetch_add(done.bytes, Ordering::Relaxed);
                    healing.failed.fetch_add(done.failed, Ordering::Relaxed);
                }
                None => {
                    healing.skipped.fetch_add(1, Ordering::Relaxed);
                }
            }
            drop(damaged);
            state = healing.state.lock();
            state.addresses.remove(&address);
        }
        state.threads -= 1;
        drop(state);
        healing.changed.notify_all();
    }

    /// Writes the right bytes of a block, `good`, over whatever is at its addresses where that is
    /// wrong, and waits. Returns whether the block can be read afterwards. Members of a gang are
    /// written if their headers can be read.
    pub fn correct(&self, block: &Block, good: &Buf, origin: Origin) -> bool {
        for dva in block.dvas() {
            self.correct_at(block, dva, good, origin, 0);
        }
        self.read_physical(block).is_ok()
    }

    fn correct_at(&self, block: &Block, dva: Dva, good: &Buf, origin: Origin, depth: usize) {
        if good.len() as u64 != block.psize.0 || depth > GANG_DEPTH_MAX {
            return;
        }
        if dva.gang {
            let mut at = 0;
            for member in self.gang_members(block, dva).unwrap_or_default() {
                let end = at + member.psize.0 as usize;
                if end > good.len() {
                    return;
                }
                let part = good.slice(at..end);
                for place in member.dvas() {
                    self.correct_at(&member, place, &part, origin, depth + 1);
                }
                at = end;
            }
            return;
        }
        let mut list = DamageList::default();
        list.note(block, dva, good);
        let Some(damaged) = list.list.pop() else { return };
        let address = (dva.vdev.0, dva.offset);
        let mut state = self.healing.state.lock();
        while !state.stopped && !state.addresses.insert(address) {
            // Another thread heals it; it says so when it ends.
            self.healing.changed.wait(&mut state);
        }
        if state.stopped {
            return;
        }
        state.correcting += 1;
        drop(state);
        let healed = self.heal_one(&damaged, origin);
        if let Some(done) = healed {
            self.healing.healed.fetch_add(done.pieces, Ordering::Relaxed);
            self.healing.bytes.fetch_add(done.bytes, Ordering::Relaxed);
            self.healing.failed.fetch_add(done.failed, Ordering::Relaxed);
        }
        let mut state = self.healing.state.lock();
        state.addresses.remove(&address);
        state.correcting -= 1;
        drop(state);
        self.healing.changed.notify_all();
    }

    /// Returns `None` if the address is not healed.
    fn heal_one(&self, damaged: &DamagedCopy, origin: Origin) -> Option<vdev::Healed> {
        let in_use = self.healing.in_use.read().clone()?;
        let _pin = in_use.pin(damaged.dva, damaged.birth, origin)?;
        let tree = self.tree();
        let accepts = damaged.accepts(self).ok()?;
        let (vdev, offset) = (damaged.dva.vdev, damaged.dva.offset);
        // The reader has already counted the errors.
        let req = ReadReq {
            speculative: true,
            ..ReadReq::new(vdev, offset, damaged.psize, damaged.birth)
                .with_priority(Priority::Scrub)
        };
        let outcome = tree.scrub(&req, &*accepts);
        match outcome.data {
            Ok(data) if tree.is_expanding(vdev) => {
                let bad = &outcome.report.bad;
                tree.heal_moved(vdev, offset, &data, damaged.birth, bad).ok()
            }
            Ok(_) => Some(tree.heal(&outcome.report.bad, damaged.birth)),
            Err(e) if matches!(e.kind(), ErrorKind::Checksum | ErrorKind::Io) => {
                tree.rewrite(vdev, offset, &damaged.good, damaged.birth).ok()
            }
            Err(_) => None,
        }
    }
}
