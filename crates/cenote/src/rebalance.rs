//! `zpool rebalance`: vdevs get equal shares of what is used, or blocks change to the special
//! class and back; [`mover::balance`] and [`mover::special`] have the theory.

use base::{Error, Result, VdevId};
use mover::job::{MoveRequest, MoveWork};
use mover::special::SpecialMove;
use mover::{balance, special};
use spa::engine::{Command, Writer};
use spa::status::VdevClass;

use crate::SpecialEstimate;
use crate::pool::Pool;

/// What `zpool rebalance` moves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RebalanceKind {
    /// Blocks, from fuller vdevs to emptier ones.
    #[default]
    Vdevs,
    /// What the special class takes, to special vdevs.
    ToSpecial,
    /// Everything on special vdevs, to normal ones.
    FromSpecial,
}

impl RebalanceKind {
    fn work(self) -> MoveWork {
        match self {
            RebalanceKind::Vdevs => MoveWork::Rebalance,
            RebalanceKind::ToSpecial => MoveWork::ToSpecial,
            RebalanceKind::FromSpecial => MoveWork::FromSpecial,
        }
    }

    fn way(self) -> Option<SpecialMove> {
        match self {
            RebalanceKind::Vdevs => None,
            RebalanceKind::ToSpecial => Some(SpecialMove::To),
            RebalanceKind::FromSpecial => Some(SpecialMove::From),
        }
    }

    fn check(self, writer: &Writer) -> Result<()> {
        match self.way() {
            None => balance::check(writer).map(drop),
            Some(_) => special::check(writer),
        }
    }
}

/// A vdev before and after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RebalancedVdev {
    /// Its name, as `zpool status` shows it.
    pub name: String,
    /// Its class.
    pub class: VdevClass,
    /// Bytes, parity included.
    pub capacity: u64,
    /// Bytes in use.
    pub used: u64,
    /// Bytes in use afterwards.
    pub after: u64,
}

/// What a rebalance would do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RebalancePlan {
    /// The vdevs that can exchange blocks.
    Vdevs(Vec<RebalancedVdev>),
    /// The blocks that are to change their class.
    Special(SpecialEstimate),
}

/// Whether a job is one of `zpool rebalance`.
pub(crate) fn is_rebalance(work: MoveWork) -> bool {
    matches!(work, MoveWork::Rebalance | MoveWork::ToSpecial | MoveWork::FromSpecial)
}

impl Pool {
    /// Begins a rebalance in the background, or continues a paused one; [`Pool::move_job`] tells
    /// how far it is.
    ///
    /// # Errors
    /// `ReadOnly`; `Invalid` with a reason if nothing can be moved; those of
    /// [`mover::job::MoveJob::start`].
    pub fn rebalance(&self, kind: RebalanceKind, command: Option<&str>) -> Result<()> {
        let writer = self.writer()?;
        kind.check(writer)?;
        let request = MoveRequest { work: kind.work(), ..MoveRequest::default() };
        self.core.move_job.start(writer, &request, command.map(Command::new))
    }

    /// What a rebalance would do; nothing is changed.
    ///
    /// # Errors
    /// As [`Pool::rebalance`]; those of reading the MOS.
    pub fn estimate_rebalance(&self, kind: RebalanceKind) -> Result<RebalancePlan> {
        let writer = self.writer()?;
        kind.check(writer)?;
        writer.check_relocation()?;
        if let Some(way) = kind.way() {
            return special::estimate(writer, way).map(RebalancePlan::Special);
        }
        let status = self.status()?;
        let name = |VdevId(id): VdevId| {
            let top = status.root.children.iter().find(|top| {
                top.id == u64::from(id)
                    && matches!(top.class, VdevClass::Normal | VdevClass::Special)
            });
            top.map_or_else(|| format!("vdev {id}"), |top| top.name.clone())
        };
        let mut out = Vec::new();
        for group in balance::groups(writer)? {
            let stays = group.is_balanced();
            let class = match group.class {
                metaslab::SpaceClass::Special => VdevClass::Special,
                _ => VdevClass::Normal,
            };
            out.extend(group.vdevs.iter().map(|share| RebalancedVdev {
                name: name(share.vdev),
                class,
                capacity: share.capacity,
                used: share.used,
                after: if stays { share.used } else { share.aim },
            }));
        }
        Ok(RebalancePlan::Vdevs(out))
    }

    /// Pauses the rebalance.
    ///
    /// # Errors
    /// `ReadOnly`; `NotFound` if none is active; that of a suspension.
    pub fn pause_rebalance(&self, command: Option<&str>) -> Result<()> {
        let writer = self.writer()?;
        self.check_move_job(is_rebalance, "there is no active rebalance")?;
        self.core.move_job.pause(writer, command.map(Command::new))
    }

    /// Stops the rebalance; what was moved stays moved.
    ///
    /// # Errors
    /// `ReadOnly`; `NotFound` if none is active or paused; that of a suspension.
    pub fn cancel_rebalance(&self, command: Option<&str>) -> Result<()> {
        let writer = self.writer()?;
        self.check_move_job(is_rebalance, "there is no active rebalance")?;
        self.core.move_job.cancel(writer, command.map(Command::new))
    }

    /// Refuses what is meant for a job of another kind.
    ///
    /// # Errors
    /// `NotFound` with `none`.
    pub(crate) fn check_move_job(&self, is: fn(MoveWork) -> bool, none: &str) -> Result<()> {
        match self.move_job().is_some_and(|job| is(job.record.work)) {
            true => Ok(()),
            false => Err(Error::not_found(none)),
        }
    }
}
