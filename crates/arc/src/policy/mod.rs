//! Replacement policies: pure state machines over numbered blocks.
//!
//! # Theory
//! A directory (the cache, or a simulator) gives every block it knows a small
//! number, its [`Id`]: dense, and used again after [`Policy::forget`] or
//! [`Policy::remove`]. A policy keeps what it needs in slabs indexed by that
//! number, so that it hashes nothing and a hit costs a few links. It says which
//! resident block goes next, and which remembered ones are not worth their
//! memory any more; it never sees a key, a byte or a clock.
//!
//! # Invariants
//! * An id is resident (`Mru` or `Mfu`), remembered (`MruGhost` or `MfuGhost`),
//!   or unknown; only [`Policy::admit`] makes it resident.
//! * After [`Policy::evict`] returned `None`, resident bytes are at most the
//!   target, or everything else is held.
//! * After [`Policy::forget`] returned `None`, what is remembered is bounded by a
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

/// A block's number in its directory.
pub type Id = u32;

/// What a cached block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// File and volume contents.
    Data,
    /// Everything else.
    Metadata,
}

/// Where a policy has a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Resident, used once, or not lately enough to be trusted.
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

/// A replacement policy. One instance serves one kind of block in one partition
/// of the cache, under that partition's lock.
pub trait Policy: Send {
    /// Sets the target size, bytes; then call [`Policy::evict`] and [`Policy::forget`]
    /// until they say `None`.
    fn set_target(&mut self, bytes: u64);

    /// The target size, bytes.
    fn target(&self) -> u64;

    /// Block `id`, which is resident, was used again.
    fn hit(&mut self, id: Id);

    /// Block `id`, which is not resident, becomes so with `size` bytes. Returns where
    /// it was remembered: `MruGhost`, `MfuGhost` or `Unknown`. Follow with
    /// [`Policy::evict`] and [`Policy::forget`].
    fn admit(&mut self, id: Id, size: u32) -> State;

    /// Block `id` was used, but somebody else keeps it (the kernel's page cache): it
    /// enters as evicted at once, so that its next use is a return.
    fn remember(&mut self, id: Id, size: u32);

    /// A resident block takes another number of bytes now.
    fn resize(&mut self, id: Id, size: u32);

    /// While more than the target is resident, the next block to evict; blocks for
    /// which `held` says true are passed over (a bounded number of them in a call).
    /// The block is remembered or unknown afterwards: ask [`Policy::state`].
    fn evict(&mut self, held: &mut dyn FnMut(Id) -> bool) -> Option<Id>;

    /// The next remembered block to forget; its id is unknown afterwards.
    fn forget(&mut self) -> Option<Id>;

    /// Block `id` is gone (freed): no trace of it stays.
    fn remove(&mut self, id: Id);

    /// Where block `id` is.
    fn state(&self, id: Id) -> State;

    /// Bytes in a state; for the ghosts, the bytes their blocks had. Zero for `Unknown`.
    fn bytes(&self, state: State) -> u64;

    /// Bytes resident.
    fn resident(&self) -> u64 {
        self.bytes(State::Mru) + self.bytes(State::Mfu)
    }

    /// Bytes that this policy would like recency to have (ARC's `p`).
    fn mru_target(&self) -> u64;

    /// Memory that the policy itself takes, bytes: what it holds for each id it knows.
    fn overhead(&self) -> u64;
}

#[cfg(test)]
mod tests;
