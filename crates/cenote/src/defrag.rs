//! The defragmentation of a pool (`zpool defrag`); [`mover::defrag`] has its theory.

use base::{Error, Result};
use mover::defrag::{DefragEstimate, TARGET};
use mover::job::{MoveRequest, MoveStatus, MoveWork, WHOLE_SCORE};
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

/// Whether a job is one of `zpool defrag`.
fn is_defrag(work: MoveWork) -> bool {
    matches!(work, MoveWork::Defrag | MoveWork::Unmap)
}

impl Pool {
    fn defrag_request(&self, targets: &DefragTargets) -> Result<MoveRequest> {
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
        Ok(MoveRequest { work: MoveWork::Defrag, target, datasets })
    }

    /// Begins a defragmentation in the background, or continues a paused one;
    /// [`Pool::move_job`] tells how far it is.
    ///
    /// # Errors
    /// `ReadOnly`; `NotFound` and `Invalid` for datasets; those of
    /// [`mover::job::MoveJob::start`].
    pub fn defrag(&self, targets: &DefragTargets, command: Option<&str>) -> Result<()> {
        let writer = self.writer()?;
        let request = self.defrag_request(targets)?;
        self.core.move_job.start(writer, &request, command.map(Command::new))
    }

    /// What a defragmentation would do; nothing is changed.
    ///
    /// # Errors
    /// As [`Pool::defrag`].
    pub fn estimate_defrag(&self, targets: &DefragTargets) -> Result<DefragEstimate> {
        let writer = self.writer()?;
        self.core.move_job.estimate(writer, &self.defrag_request(targets)?)
    }

    /// Moves, in the background, all blocks that pointers find by the mappings of removed devices, and
    /// erases these (`zpool defrag --unmap`); or continues that. [`Pool::move_job`] tells how far
    /// it is.
    ///
    /// # Errors
    /// `ReadOnly`; those of [`mover::evacuate::check`] and [`mover::job::MoveJob::start`].
    pub fn unmap(&self, command: Option<&str>) -> Result<()> {
        let writer = self.writer()?;
        mover::evacuate::check(writer, MoveWork::Unmap)?;
        let request = MoveRequest { work: MoveWork::Unmap, ..MoveRequest::default() };
        self.core.move_job.start(writer, &request, command.map(Command::new))
    }

    /// Bytes that would move then; nothing is changed.
    ///
    /// # Errors
    /// As [`Pool::unmap`].
    pub fn estimate_unmap(&self) -> Result<u64> {
        mover::evacuate::check(self.writer()?, MoveWork::Unmap).map(|rest| rest.bytes)
    }

    /// Pauses the defragmentation.
    ///
    /// # Errors
    /// `ReadOnly`; `NotFound` if none is active; that of a suspension.
    pub fn pause_defrag(&self, command: Option<&str>) -> Result<()> {
        let writer = self.writer()?;
        self.check_move_job(is_defrag, "there is no active defragmentation")?;
        self.core.move_job.pause(writer, command.map(Command::new))
    }

    /// Stops the defragmentation; what was moved stays moved.
    ///
    /// # Errors
    /// `ReadOnly`; `NotFound` if none is active or paused; that of a suspension.
    pub fn cancel_defrag(&self, command: Option<&str>) -> Result<()> {
        let writer = self.writer()?;
        self.check_move_job(is_defrag, "there is no active defragmentation")?;
        self.core.move_job.cancel(writer, command.map(Command::new))
    }

    /// The job that moves blocks, or the last one: a defragmentation, or one of its kin.
    pub fn move_job(&self) -> Option<MoveStatus> {
        self.core.move_job.status()
    }
}
