//! Replacement policies: pure state machines over numbered blocks.
//!
//! # Theory
//! A directory (the cache, or a simulator) gives every known block a small number, its
//! [`Id`]: dense, and reused after [`Policy::forget`] or [`Policy::remove`]. A policy
//! keeps its state in slabs indexed by that number, so it needs no hashing, and a hit
//! costs a few links. The policy decides which resident block is evicted next, and
//! which remembered ones are no longer worth their memory. It never sees a key, a byte
//! or a clock.
//!
//! # Invariants
//! * An id is resident (`Mru` or `Mfu`), remembered (`MruGhost` or `MfuGhost`),
//!   or unknown; only [`Policy::admit`] makes it resident.
//! * After [`Policy::evict`] returned `None`, resident bytes are at most the
//!   target, or everything else is held.
//! * After [`Policy::forget`] returned `None`, the remembered bytes are bounded by a
//!   small multiple of the target.

mod default;
mod lirs;
mod reference;
mod slab;

pub use default::Default;
pub use reference::Reference;

/// A policy of this kind with a target of `bytes`.
pub fn make(kind: crate::PolicyKind, bytes: u64) -> Box<dyn Policy> {
    match kind {
        crate::PolicyKind::Arc => Box::new(Reference::new(bytes)),
        crate::PolicyKind::Default => Box::new(Default::new(bytes)),
    }
}

/// Number of a block in its directory.
pub type Id = u32;

/// The kind of a cached block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CacheKind {
    /// File and volume contents.
    Data,
    /// Everything else.
    Metadata,
}

/// The state of a block in a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyState {
    /// Resident, used once, or not recently enough to count as used again.
    Mru,
    /// Resident, used again.
    Mfu,
    /// Evicted from `Mru` and remembered.
    MruGhost,
    /// Evicted from `Mfu` and remembered.
    MfuGhost,
    /// Not known.
    Unknown,
}

/// A replacement policy. One instance serves one kind of block in one partition of the
/// cache, under that partition's lock.
pub trait Policy: Send {
    /// Sets the target size, bytes; then call [`Policy::evict`] and [`Policy::forget`]
    /// until they return `None`.
    fn set_target(&mut self, bytes: u64);

    /// The target size, bytes.
    fn target(&self) -> u64;

    /// Records another use of block `id`, which is resident.
    fn hit(&mut self, id: Id);

    /// Makes block `id`, which is not resident, resident with `size` bytes. Returns the
    /// state in which it was remembered: `MruGhost`, `MfuGhost` or `Unknown`. Then call
    /// [`Policy::evict`] and [`Policy::forget`].
    fn admit(&mut self, id: Id, size: u32) -> PolicyState;

    /// Records a use of block `id` that a layer above keeps (the kernel's page cache).
    /// The block is entered as evicted, so that its next use counts as a ghost hit.
    fn remember(&mut self, id: Id, size: u32);

    /// Changes the size of a resident block.
    fn resize(&mut self, id: Id, size: u32);

    /// While more than the target is resident, the next block to evict. Blocks for
    /// which `held` returns true are skipped (a bounded number in each call).
    /// Afterwards the block is remembered or unknown; see [`Policy::state`].
    fn evict(&mut self, held: &mut dyn FnMut(Id) -> bool) -> Option<Id>;

    /// The next remembered block to forget; its id is unknown afterwards.
    fn forget(&mut self) -> Option<Id>;

    /// Removes block `id`, which was freed, without a trace.
    fn remove(&mut self, id: Id);

    /// The state of block `id`.
    fn state(&self, id: Id) -> PolicyState;

    /// Bytes in a state; for ghosts, the bytes that their blocks had. Zero for
    /// `Unknown`.
    fn bytes(&self, state: PolicyState) -> u64;

    /// Resident bytes.
    fn resident(&self) -> u64 {
        self.bytes(PolicyState::Mru) + self.bytes(PolicyState::Mfu)
    }

    /// Target bytes of the recency list (ARC's `p`).
    fn mru_target(&self) -> u64;

    /// Memory of the policy itself, bytes: its state for each known id.
    fn overhead(&self) -> u64;
}

#[cfg(test)]
mod tests;
