//! The pool's list of spares, and which of them are in use (chapter 01 §4.7).
//!
//! # Theory
//! The MOS has a list of the spares. A spare is in use when a leaf of the tree has its guid
//! and the mark `is_spare`. Several pools may list a spare, and one may use it. An unused spare
//! is not open: only its label is looked at, when its state is asked for and when it is taken.
//!
//! # Invariants
//! * A spare in use is not removed from the list.
//! * A spare that became a member for good is in no list.

use base::{ErrorKind, Guid, Result};
use ondisk::config::{VdevConfig, parse_aux_list};

use super::super::Writer;
use super::super::tasks::TaskCx;

impl TaskCx<'_> {
    /// Takes a spare off the list, because it is an ordinary member now.
    pub(super) fn unlist_spare(&mut self, guid: Guid) -> Result<()> {
        match self.listed(guid) {
            Ok(listed) => self.drop_aux(listed),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
            Err(e) => Err(e),
        }
    }
}

impl Writer {
    /// The pool's spares, each with whether this pool uses it.
    ///
    /// # Errors
    /// Those of reading the MOS.
    pub fn spares(&self) -> Result<Vec<(VdevConfig, bool)>> {
        let Some(object) = self.mos.lookup("spares")? else { return Ok(Vec::new()) };
        let list = self.mos.packed_nvlist(object)?;
        let config = self.published().config;
        let used = |guid: Guid| config.vdev_tree.leaves().any(|l| l.guid == guid);
        let spares = parse_aux_list(&list, "spares")?;
        Ok(spares.into_iter().map(|spare| (used(spare.guid), spare)).map(|(u, s)| (s, u)).collect())
    }
}
