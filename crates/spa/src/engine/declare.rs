//! Declaring leaves degraded or faulted, by diagnosis.

use base::Guid;
use vdev::{Aux, State, Verdict};

use super::Writer;

impl Writer {
    /// Declares a leaf DEGRADED or FAULTED because of its errors. Returns false, and changes
    /// nothing, if the leaf is in that state or a worse one, or if the pool or a vdev would be
    /// unavailable without it. It lasts until the leaf is cleared.
    pub fn declare(&self, leaf: Guid, state: State) -> bool {
        let now = self.zio.tree();
        let Some(node) = now.find(leaf).filter(|n| n.kind().is_device()) else { return false };
        if node.state() <= state {
            return false;
        }
        let verdict = Verdict { guid: leaf, state, aux: Aux::TooManyErrors };
        let without = now.with_verdicts(&[verdict]);
        let survives = without
            .nodes()
            .all(|(id, n)| n.readable() || !now.node(id).readable() || n.guid() == leaf);
        if survives {
            self.zio.set_tree(without);
        }
        survives
    }
}
