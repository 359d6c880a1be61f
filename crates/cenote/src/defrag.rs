//! The defragmentation of a pool (`zpool defrag`); [`mover::defrag`] has its theory.

use base::{Error, Result};
use mover::defrag::{DefragEstimate, DefragRequest, DefragStatus, TARGET, WHOLE_SCORE};
use spa::engine::Command;

use crate::DatasetKind;
use crate::pool::Pool;

/// What is to be defragmented.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DefragTargets {
    /// Files with a lower layout score are laid out, in thousandths; `None`: [`TARGET`].
    pub score: Option<u64>,
    /// File systems and volumes; none: all of the pool, and its free space.
    pub datasets: Vec<String>,
}

impl Pool {
    fn defrag_request(&self, targets: &DefragTargets) -> Result<DefragRequest> {
        let target = targets.score.unwrap_or(TARGET);
        if target > WHOLE_SCORE {
            return Err(Error::invalid("a layout score is at most 1"));
        }
        let head = |name: &String| {
            let dataset = self.dataset(name)?;
            match dataset.kind() {
                DatasetKind::Filesystem | DatasetKind::Volume => Ok(dataset.object()),
                _ => Err(Error::invalid(format!("'{name}' is no file system or volume"))),
            }
        };
        let datasets = targets.datasets.iter().map(head).collect::<Result<_>>()?;
        Ok(DefragRequest { target, datasets })
    }

    /// Begins a defragmentation in the background, or continues a paused one;
    /// [`Pool::defragmentation`] tells how far it is.
    ///
    /// # Errors
    /// `ReadOnly`; `NotFound` and `Invalid` for datasets; those of
    /// [`mover::defrag::Defragmenter::start`].
    pub fn defrag(&self, targets: &DefragTargets, command: Option<&str>) -> Result<()> {
        let writer = self.writer()?;
        let request = self.defrag_request(targets)?;
        self.core.defrag.start(writer, &request, command.map(Command::new))
    }

    /// What a defragmentation would do; nothing is changed.
    ///
    /// # Errors
    /// As [`Pool::defrag`].
    pub fn estimate_defrag(&self, targets: &DefragTargets) -> Result<DefragEstimate> {
        let writer = self.writer()?;
        self.core.defrag.estimate(writer, &self.defrag_request(targets)?)
    }

    /// Pauses the defragmentation.
    ///
    /// # Errors
    /// `ReadOnly`; `NotFound` if none is active; that of a suspension.
    pub fn pause_defrag(&self, command: Option<&str>) -> Result<()> {
        self.core.defrag.pause(self.writer()?, command.map(Command::new))
    }

    /// Stops the defragmentation; what was moved stays moved.
    ///
    /// # Errors
    /// `ReadOnly`; `NotFound` if none is active or paused; that of a suspension.
    pub fn cancel_defrag(&self, command: Option<&str>) -> Result<()> {
        self.core.defrag.cancel(self.writer()?, command.map(Command::new))
    }

    /// The defragmentation under way, or the last one.
    pub fn defragmentation(&self) -> Option<DefragStatus> {
        self.core.defrag.status()
    }
}
