//! Reads that heal: what a good copy gave is written back to the leaf that was wrong.
//!
//! # Theory
//! A read that succeeds although some leaf's bytes were wrong or could not be read, or although
//! an address before failed altogether, leaves a [`Wound`]. A few threads of low priority take
//! wounds one after the other: pin the place, read all copies and columns there again, write
//! right bytes over those that are wrong, and compare ([`vdev::Tree::heal`]). Where nothing can
//! be read at an address any more, what another address of the block gave is written there
//! ([`vdev::Tree::rewrite`]).
//!
//! # Why no other block is overwritten
//! Between the read and the write the block may be freed and its place given to another block.
//! Checksums do not exclude that: a leaf that missed the new block silently still has the old
//! one, and healing from it would destroy the new one. So the engine must know that the place
//! still is the block's, and keep it so until the write is over:
//! * *The reader knows when its pointer held.* [`crate::Io::origin`] says how it came to the pointer.
//!   [`Origin::Tree`] names a group T, loaded ([`Zio::healing_since`]) before the reader fetched
//!   the tree from which it walked to the pointer. A group's trees are published to readers
//!   before T is announced. So the tree is that of T or of a later group, and whatever freed
//!   the block, if it was freed, did so in a group after T. [`Origin::Root`] is for object sets
//!   that do not change: all their pointers hold as long as the pool has the dataset with that
//!   root, which is looked up when the wound is taken. Pointers of unknown origin are not healed.
//! * *The pin refuses places that may have changed hands.* What was freed in a metaslab becomes
//!   allocatable when a later group ends, at `metaslab`'s `Space::synced`. The pin is refused
//!   if that happened in the block's metaslab since T. So no free after T was released there,
//!   and the place was not handed out. A block born after T is refused, too: its first write
//!   may be under way.
//! * *The pin keeps it so.* While a metaslab is pinned, nothing that was freed in it becomes
//!   allocatable. Only what was allocatable before is handed out, and the place is not. If the
//!   block is freed meanwhile, the write goes to space that nobody uses.
//! * *No write of the block itself is under way:* its group was committed. Other healing of the
//!   same place is excluded by a table of what is being healed.
//! * *Missing groups.* A leaf that missed the block's group is not healed here, for a resilver
//!   looks at its missing groups alone.
//!
//! A crash in the middle leaves wrong bytes where wrong bytes were; all others are untouched.
//!
//! # Invariants
//! * Nothing is written to a pool that is read-only, suspended, or being closed:
//!   [`Zio::stop_healing`] returns when the last write is over.
//! * At most [`THREADS`] wounds are being healed, and at most [`WAITING_MAX`] of
//!   [`BYTES_MAX`] bytes wait. More are dropped: the next read of the block, or a scrub, finds
//!   them again. So readers never wait for a leaf that is broken.
//!
//! # Departures
//! Blocks without a checksum, or on a vdev that was removed or is being expanded, are not
//! healed. Neither are those that a reader came to by an unknown way, as intent logs,
//! traversals and `zdb` do, nor what an import reads before its first group.
//!
//! Lock order: the state's lock is a leaf.

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use base::rt::{Condvar, Mutex, RwLock, spawn};
use base::{Buf, Dva, ErrorKind, Psize, Result, Txg};
use codec::checksum::Checksum;
use codec::checksum::embedded::verify_embedded;
use ondisk::blkptr::Block;
use vdev::{Priority, ReadReq};

use crate::Zio;
use crate::gang::ECK_SIZE;
use crate::read::Verifier;

/// Wounds that are being healed at once.
const THREADS: usize = 2;
/// Wounds that wait, and their bytes.
const WAITING_MAX: usize = 4096;
const BYTES_MAX: u64 = 64 << 20;

/// How a reader came to a block pointer: what tells that the block is in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// Nothing is known.
    #[default]
    Unknown,
    /// From the tree of a live object set that was fetched after this group was announced.
    Tree(Txg),
    /// From an object set that does not change, with this number and this birth of its root.
    Root(u64, Txg),
}

/// Keeps a place from being given to another block as long as it lives.
pub type Pin = Box<dyn Send>;

/// What knows which blocks are in use: the pool.
pub trait InUse: Send + Sync {
    /// A pin on the place of a block that a reader came to in this way; `None` if it may be
    /// another's by now, or nothing is to be written.
    fn pin(&self, dva: Dva, birth: Txg, origin: Origin) -> Option<Pin>;
}

/// A place with wrong bytes, and how to tell right ones.
pub(crate) struct Wound {
    pub(crate) dva: Dva,
    pub(crate) psize: Psize,
    pub(crate) birth: Txg,
    pub(crate) check: Check,
    /// What belongs there, `psize` bytes.
    pub(crate) good: Buf,
}

/// What bytes at a place must fulfil.
pub(crate) enum Check {
    /// The checksum of a block.
    Block(Box<Block>),
    /// The embedded checksum of a gang header, with this verifier.
    Header([u64; 4]),
}

/// The wounds that one read left.
#[derive(Default)]
pub(crate) struct Wounds {
    pub(crate) list: Vec<Wound>,
    /// Addresses of gang headers from which the block could not be read. What was wrong may be
    /// a member, so the header is healed only if it is (it is read again).
    pub(crate) headers: Vec<Dva>,
}

impl Wounds {
    /// Some leaf has wrong bytes of a block at an address that could be read.
    pub(crate) fn note(&mut self, block: &Block, dva: Dva, good: &Buf) {
        // Without a checksum nobody knows which bytes are right.
        let checksum = Checksum::from_id(block.checksum);
        if matches!(checksum, None | Some(Checksum::Off | Checksum::NoParity)) {
            return;
        }
        self.list.push(Wound {
            dva,
            psize: block.psize,
            birth: block.effective_physical_birth(),
            check: Check::Block(Box::new(*block)),
            good: good.clone(),
        });
    }

    /// These addresses of a block could not be read, and another one could.
    pub(crate) fn failed(&mut self, block: &Block, dvas: &[Dva], good: &Buf) {
        dvas.iter().filter(|dva| !dva.gang).for_each(|dva| self.note(block, *dva, good));
    }
}

/// What healing came to since the pool was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HealCounts {
    /// Places with wrong bytes that reads met.
    pub found: u64,
    /// Pieces of leaves that were written anew and are right now.
    pub healed: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Pieces that could not be written, or are still wrong.
    pub failed: u64,
    /// Places that were left as they are: too many, or not known to be in use.
    pub skipped: u64,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<(Wound, Origin)>,
    bytes: u64,
    /// What waits or is being healed.
    places: HashSet<(u32, u64)>,
    threads: usize,
    stopped: bool,
}

/// The healing of one pool.
#[derive(Default)]
pub(crate) struct Healing {
    in_use: RwLock<Option<Arc<dyn InUse>>>,
    own: RwLock<Weak<Zio>>,
    /// The group that was announced last; 0: nothing is healed.
    since: AtomicU64,
    state: Mutex<State>,
    /// A thread ended.
    changed: Condvar,
    found: AtomicU64,
    healed: AtomicU64,
    bytes: AtomicU64,
    failed: AtomicU64,
    skipped: AtomicU64,
}

/// Tells right bytes.
type Accepts<'a> = Box<dyn Fn(&[u8]) -> bool + 'a>;

impl Wound {
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

/// Whether a gang header has its checksum.
pub(crate) fn header_is_right(bytes: &[u8], verifier: [u64; 4]) -> bool {
    bytes
        .len()
        .checked_sub(ECK_SIZE)
        .is_some_and(|at| verify_embedded(Checksum::GangHeader, bytes, at, verifier).is_ok())
}

impl Zio {
    /// Reads heal from now on: of blocks that `in_use` pins.
    pub fn set_healing(self: &Arc<Self>, in_use: Arc<dyn InUse>) {
        *self.healing.own.write() = Arc::downgrade(self);
        *self.healing.in_use.write() = Some(in_use);
    }

    /// The trees of all groups up to this one are what readers find, and what the groups freed
    /// has been moved on.
    pub fn announce(&self, txg: Txg) {
        self.healing.since.store(txg.0, Ordering::Release);
    }

    /// The group that was announced last; `None` where nothing is healed. To be asked before
    /// the tree is fetched ([`Origin::Tree`]).
    pub fn healing_since(&self) -> Option<Txg> {
        let since = self.healing.since.load(Ordering::Acquire);
        (since != 0).then_some(Txg(since))
    }

    /// Whether reads of this pool may heal.
    pub(crate) fn heals(&self) -> bool {
        self.healing.since.load(Ordering::Relaxed) != 0
    }

    /// No read heals any more; waits until what is being healed is over.
    pub fn stop_healing(&self) {
        self.healing.since.store(0, Ordering::Release);
        let mut state = self.healing.state.lock();
        state.stopped = true;
        state.waiting.clear();
        state.bytes = 0;
        while state.threads > 0 {
            self.healing.changed.wait(&mut state);
        }
        state.places.clear();
        drop(state);
        *self.healing.in_use.write() = None;
    }

    /// Waits until everything that waits is healed (tests, and commands that show errors).
    pub fn settle_healing(&self) {
        let mut state = self.healing.state.lock();
        while state.threads > 0 {
            self.healing.changed.wait(&mut state);
        }
    }

    /// What healing came to.
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

    /// A read that succeeded left wounds.
    pub(crate) fn heal(&self, wounds: Wounds, origin: Origin) {
        if wounds.list.is_empty() || origin == Origin::Unknown || !self.heals() {
            return;
        }
        let healing = &self.healing;
        let Some(own) = healing.own.read().upgrade() else { return };
        let mut state = healing.state.lock();
        for wound in wounds.list {
            healing.found.fetch_add(1, Ordering::Relaxed);
            let place = (wound.dva.vdev.0, wound.dva.offset);
            let bytes = state.bytes + wound.psize.0;
            let full = state.waiting.len() >= WAITING_MAX || bytes > BYTES_MAX;
            if state.stopped || full || !state.places.insert(place) {
                healing.skipped.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            state.bytes = bytes;
            state.waiting.push_back((wound, origin));
        }
        while state.threads < THREADS.min(state.waiting.len()) {
            let zio = Arc::clone(&own);
            state.threads += 1;
            if spawn("heal", move || zio.heal_all()).is_err() {
                state.threads -= 1;
                if state.threads == 0 {
                    let left = std::mem::take(&mut state.waiting);
                    healing.skipped.fetch_add(left.len() as u64, Ordering::Relaxed);
                    (state.bytes, state.places) = (0, HashSet::new());
                }
                return;
            }
        }
    }

    /// Heals until nothing waits.
    fn heal_all(&self) {
        let healing = &self.healing;
        let mut state = healing.state.lock();
        while let Some((wound, origin)) = state.waiting.pop_front() {
            state.bytes -= wound.psize.0;
            drop(state);
            let place = (wound.dva.vdev.0, wound.dva.offset);
            let healed = self.heal_one(&wound, origin);
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
            drop(wound);
            state = healing.state.lock();
            state.places.remove(&place);
        }
        state.threads -= 1;
        drop(state);
        healing.changed.notify_all();
    }

    /// `None`: it is left as it is.
    fn heal_one(&self, wound: &Wound, origin: Origin) -> Option<vdev::Healed> {
        let in_use = self.healing.in_use.read().clone()?;
        let _pin = in_use.pin(wound.dva, wound.birth, origin)?;
        let tree = self.tree();
        if !tree.can_heal(wound.dva.vdev) {
            return None;
        }
        let accepts = wound.accepts(self).ok()?;
        let (vdev, offset) = (wound.dva.vdev, wound.dva.offset);
        // The reader has counted what is wrong.
        let req = ReadReq {
            speculative: true,
            ..ReadReq::new(vdev, offset, wound.psize, wound.birth).with_priority(Priority::Scrub)
        };
        let outcome = tree.scrub(&req, &*accepts);
        match outcome.data {
            Ok(_) => Some(tree.heal(&outcome.report.bad, wound.birth)),
            Err(e) if matches!(e.kind(), ErrorKind::Checksum | ErrorKind::Io) => {
                tree.rewrite(vdev, offset, &wound.good, wound.birth).ok()
            }
            Err(_) => None,
        }
    }
}
