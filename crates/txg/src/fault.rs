//! Bugs for the model tests to find: a checker that finds nothing must be shown to find
//! something. Without `--cfg shuttle` they do not exist.

/// A bug that can be planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A group syncs while it is held.
    NoDrain,
    /// A holder does not look at the open group again after it was counted.
    NoRecheck,
    /// The last holder of a closed group tells nobody.
    SilentRelease,
    /// Who waits at the limit for dirty data is not told of room.
    SilentRoom,
}

/// What is planted: nothing.
#[cfg(not(shuttle))]
#[derive(Clone, Copy, Debug)]
pub struct Faults;

#[cfg(not(shuttle))]
impl Faults {
    /// No bug.
    pub const NONE: Faults = Faults;

    pub(crate) fn has(self, _: Fault) -> bool {
        false
    }
}

/// What is planted.
#[cfg(shuttle)]
#[derive(Clone, Copy, Debug)]
pub struct Faults(pub Option<Fault>);

#[cfg(shuttle)]
impl Faults {
    /// No bug.
    pub const NONE: Faults = Faults(None);

    pub(crate) fn has(self, fault: Fault) -> bool {
        self.0 == Some(fault)
    }
}
