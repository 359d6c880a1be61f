//! Space that is kept or given back: the pool's checkpoint, and work on the free space of
//! devices (`zpool checkpoint`, `trim`, `initialize`).
//!
//! # Theory
//! The engine works on leaves. This module chooses them by the names that a user gives. A
//! command that names no device concerns all devices for data, metadata and logs; then devices
//! to which it does not apply are left out, as long as it applies to one.

use base::{Error, ErrorKind, Guid, Result};
use spa::engine::{CheckpointStatus, Command, JobKind, JobRecord, JobState, Writer};
use spa::status::VdevStatus;

use crate::outage::is_called;
use crate::pool::Pool;

/// What to do with the work on the free space of devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobAction {
    /// Start it, or continue it where it was suspended.
    Start {
        /// Bytes a second; 0 is no limit. Of a trim.
        rate: u64,
        /// With secure discards. Of a trim.
        secure: bool,
    },
    /// Give it up.
    Cancel,
    /// Interrupt it.
    Suspend,
    /// Forget that it ever ran. Of an initialization.
    Forget,
}

/// The verb of a command for messages: `cannot VERB 'device': ...`.
fn verb(kind: JobKind, action: JobAction) -> &'static str {
    match (kind, action) {
        (JobKind::Trim, JobAction::Start { .. }) => "trim",
        (JobKind::Trim, JobAction::Suspend) => "suspend trimming",
        (JobKind::Trim, _) => "cancel trimming",
        (JobKind::Initialize, JobAction::Start { .. }) => "initialize",
        (JobKind::Initialize, JobAction::Suspend) => "suspend initializing",
        (JobKind::Initialize, JobAction::Cancel) => "cancel initializing",
        (JobKind::Initialize, JobAction::Forget) => "uninitialize",
    }
}

/// Whether a failure only says that the action does not apply to the device.
fn does_not_apply(action: JobAction, e: &Error) -> bool {
    match action {
        JobAction::Start { secure, .. } => e.kind() == ErrorKind::Unsupported && !secure,
        JobAction::Cancel | JobAction::Suspend => e.kind() == ErrorKind::NotFound,
        JobAction::Forget => false,
    }
}

fn apply(
    writer: &Writer,
    leaf: Guid,
    kind: JobKind,
    action: JobAction,
    command: Option<Command>,
) -> Result<()> {
    match action {
        JobAction::Start { rate, secure } => {
            let partial = kind == JobKind::Trim && writer.free_space_tuning().trim_skip;
            let wanted = JobRecord { rate, secure, partial, ..JobRecord::default() };
            writer.start_job(leaf, kind, wanted, command)
        }
        JobAction::Cancel => writer.cancel_job(leaf, kind, command),
        JobAction::Suspend => writer.suspend_job(leaf, kind, command),
        JobAction::Forget => writer.forget_job(leaf, kind, command),
    }
}

fn leaves_of(v: &VdevStatus, out: &mut Vec<(Guid, String)>) {
    match v.children.is_empty() {
        true => out.push((v.guid, v.name.clone())),
        false => v.children.iter().for_each(|c| leaves_of(c, out)),
    }
}

impl Pool {
    /// Takes a checkpoint of the pool.
    ///
    /// # Errors
    /// As [`Writer::take_checkpoint`]; `ReadOnly`.
    pub fn take_checkpoint(&self, command: Option<&str>) -> Result<()> {
        self.writer()?.take_checkpoint(command.map(Command::new)).map(drop)
    }

    /// Discards the checkpoint. Its space becomes free over the following txgs.
    ///
    /// # Errors
    /// As [`Writer::discard_checkpoint`]; `ReadOnly`.
    pub fn discard_checkpoint(&self, command: Option<&str>) -> Result<()> {
        self.writer()?.discard_checkpoint(command.map(Command::new)).map(drop)
    }

    /// The checkpoint, if there is one or one is being discarded.
    ///
    /// # Errors
    /// Those of reading a pool that is only read.
    pub fn checkpoint_status(&self) -> Result<Option<CheckpointStatus>> {
        match &self.core.writer {
            Some(writer) => Ok(writer.checkpoint_status()),
            None => self.core.spa.checkpoint_status(),
        }
    }

    /// Starts, suspends or ends the work on the free space of some devices, or of all. Names
    /// are those of leaves, with the forms that `zpool online` accepts.
    ///
    /// # Errors
    /// `ReadOnly`; one error with a line for each device that failed: those of
    /// [`Writer::start_job`] and its neighbours.
    pub fn on_free_space(
        &self,
        kind: JobKind,
        action: JobAction,
        devices: &[String],
        command: Option<&str>,
    ) -> Result<()> {
        let writer = self.writer()?;
        let verb = verb(kind, action);
        let (mut leaves, mut failed) = (Vec::new(), Vec::new());
        let root = self.spa().vdev_status();
        if devices.is_empty() {
            let tops = root.children.iter();
            let tops = tops.filter(|v| !matches!(v.kind.as_str(), "hole" | "indirect"));
            tops.for_each(|top| leaves_of(top, &mut leaves));
        }
        for name in devices {
            let mut found = None;
            root.for_each(&mut |v: &VdevStatus| {
                if v.children.is_empty() && is_called(v, name) {
                    found.get_or_insert((v.guid, name.clone()));
                }
            });
            match found {
                Some(leaf) => leaves.push(leaf),
                None => {
                    let text = format!("cannot {verb} '{name}': no such device in pool");
                    failed.push(Error::not_found(text));
                }
            }
        }
        // Nothing begins if a name is wrong.
        if let Some(error) = joined(failed) {
            return Err(error);
        }
        let (mut failed, mut left_out, mut done) = (Vec::new(), Vec::new(), 0);
        let mut command = command.map(Command::new);
        for (leaf, name) in &leaves {
            match apply(writer, *leaf, kind, action, command.clone()) {
                // One record of the history is enough.
                Ok(()) => (done, command) = (done + 1, None),
                Err(e) => {
                    let skip = devices.is_empty() && does_not_apply(action, &e);
                    let text = format!("cannot {verb} '{name}': {}", e.message());
                    let list = if skip { &mut left_out } else { &mut failed };
                    list.push(Error::new(e.kind(), text));
                }
            }
        }
        if done == 0 && failed.is_empty() {
            failed = match (kind, action) {
                (JobKind::Trim, JobAction::Start { .. }) if !left_out.is_empty() => {
                    let text = format!("cannot {verb}: no devices in pool support trim operations");
                    vec![Error::unsupported(text)]
                }
                _ => left_out,
            };
        }
        joined(failed).map_or(Ok(()), Err)
    }

    /// Fills in the work on the free space of leaves.
    pub(crate) fn add_jobs(&self, root: &mut VdevStatus) -> Result<()> {
        let read = match &self.core.writer {
            Some(_) => Vec::new(),
            None => self.core.spa.job_statuses()?,
        };
        let tree = self.spa().zio().tree();
        self.add_jobs_below(root, &tree, &read);
        Ok(())
    }

    fn add_jobs_below(&self, v: &mut VdevStatus, tree: &vdev::Tree, read: &Jobs) {
        if v.children.is_empty() {
            v.can_discard = tree.can_discard(v.guid);
            let of = |kind| match &self.core.writer {
                Some(writer) => writer.job_status(v.guid, kind),
                None => {
                    let known = read.iter().find(|(leaf, k, _)| (*leaf, *k) == (v.guid, kind));
                    known.map(|(_, _, status)| *status).unwrap_or_default()
                }
            };
            let (trim, initialize) = (of(JobKind::Trim), of(JobKind::Initialize));
            let known = |status: spa::engine::JobStatus| {
                Some(status).filter(|s| s.record.state != JobState::None)
            };
            (v.trim, v.initialize) = (known(trim), known(initialize));
        }
        v.children.iter_mut().for_each(|child| self.add_jobs_below(child, tree, read));
    }
}

type Jobs = [(Guid, JobKind, spa::engine::JobStatus)];

/// One error for all; `None` for none.
fn joined(errors: Vec<Error>) -> Option<Error> {
    let kind = errors.first()?.kind();
    let lines: Vec<&str> = errors.iter().map(Error::message).collect();
    Some(Error::new(kind, lines.join("\n")))
}
