//! Planted bugs for the model tests: they show that the tests can find bugs. Without
//! `--cfg shuttle` they do not exist.

/// A bug that can be planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A txg syncs while it is held.
    NoDrain,
    /// A holder does not check the open txg again after it was counted.
    NoRecheck,
    /// The last holder of a closed txg notifies no thread.
    SilentRelease,
    /// A writer that waits at the limit for dirty data is not notified of room.
    SilentRoom,
}

/// The planted bugs: none.
#[cfg(not(shuttle))]
#[derive(Clone, Copy, Debug)]
pub struct PlantedFaults;

#[cfg(not(shuttle))]
impl PlantedFaults {
    /// No bug.
    pub const NONE: PlantedFaults = PlantedFaults;

    pub(crate) fn has(self, _: Fault) -> bool {
        false
    }
}

/// The planted bugs.
#[cfg(shuttle)]
#[derive(Clone, Copy, Debug)]
pub struct PlantedFaults(pub Option<Fault>);

#[cfg(shuttle)]
impl PlantedFaults {
    /// No bug.
    pub const NONE: PlantedFaults = PlantedFaults(None);

    pub(crate) fn has(self, fault: Fault) -> bool {
        self.0 == Some(fault)
    }
}
