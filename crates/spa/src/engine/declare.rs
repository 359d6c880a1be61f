//! Declaring leaves degraded or faulted, by diagnosis.

use base::Guid;
use vdev::{Aux, State, Tree, Verdict};

use super::Writer;

impl Writer {
    /// Declares a leaf DEGRADED or FAULTED because of its errors. Returns false, and changes
    /// nothing, if the leaf is in that state or a worse one, or if the pool or a vdev would be
    /// unavailable without it. It lasts until the leaf is cleared.
    pub fn declare(&self, leaf: Guid, state: State) -> bool {
        self.change_tree(|now| {
            let node = now.find(leaf).filter(|n| n.kind().is_device())?;
            if node.state() <= state {
                return None;
            }
            let verdict = Verdict { guid: leaf, state, aux: Aux::TooManyErrors };
            let without = now.with_verdicts(&[verdict]);
            survives(now, &without, leaf).then_some(without)
        })
    }
}

/// Whether every vdev but `leaf` that is readable in `now` is so in `without`.
pub(super) fn survives(now: &Tree, without: &Tree, leaf: Guid) -> bool {
    without.nodes().all(|(id, n)| n.readable() || !now.node(id).readable() || n.guid() == leaf)
}
