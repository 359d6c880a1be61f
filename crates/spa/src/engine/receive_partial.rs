//! What interrupted receives leave, and its end (chapter 07 §12, §13.5).

use base::{Error, Result};
use dsl::write::{MosRead, destroy, receive as dsl_receive};
use dsl::{DslDir, Mos};

use super::Writer;
use super::datasets::log;
use super::tasks::{Command, TaskCx};

impl Writer {
    /// Destroys the partial state of an interrupted, resumable receive into `dataset`
    /// (`zfs receive -A`).
    ///
    /// # Errors
    /// `NotFound` without the dataset; `Invalid` without such state; `Busy` while it is being
    /// received; those of a suspension.
    pub fn discard_partial(&self, dataset: &str, command: Option<Command>) -> Result<()> {
        let name = dataset.to_owned();
        let check = move |cx: &mut TaskCx<'_>| {
            let (dir, mos) = (cx.dir(&name)?, cx.read());
            let own = mos.dir(dir)?.head_dataset_obj;
            let head = dsl_receive::hidden_head(mos, dir)?.unwrap_or(own);
            let partial = dsl_receive::resume_state(mos, head)?.is_some()
                && mos.dataset(head)?.is_inconsistent();
            if !partial {
                let text = format!("'{name}' does not have any resumable receive state to abort");
                return Err(Error::invalid(text));
            }
            if cx.is_received(head) {
                return Err(Error::busy("dataset is busy").in_dataset(&name));
            }
            destroy::check_head(mos, head).map_err(|e| e.in_dataset(name.as_str()))?;
            Ok(head)
        };
        let act = move |cx: &mut TaskCx<'_>, head: u64| {
            cx.abandon_receive(head)?;
            log(cx, command.as_ref())
        };
        self.sync_task(check, act).map(drop)
    }

    /// Destroys heads that a receive left incomplete before the import, unless it is resumable.
    ///
    /// # Errors
    /// Those of reading the MOS; those of a suspension.
    pub fn destroy_incomplete(&self) -> Result<()> {
        let found = incomplete(&self.mos, self.name())?;
        if found.is_empty() {
            return Ok(());
        }
        let act = move |cx: &mut TaskCx<'_>, ()| {
            for head in found {
                // One with datasets below stays: nothing else can be done with these.
                if destroy::check_head(cx.read(), head).is_ok() {
                    cx.abandon_receive(head)?;
                }
            }
            Ok(())
        };
        self.sync_task(|_| Ok(()), act).map(drop)
    }
}

/// Inconsistent heads without resumable state, those below others first.
fn incomplete(mos: &Mos, pool: &str) -> Result<Vec<u64>> {
    let (read, mut found): (&dyn MosRead, Vec<u64>) = (mos, Vec::new());
    DslDir::root(mos, pool)?.walk_all(&mut |dir| {
        if let Some(head) = dir.head()?
            && head.phys().is_inconsistent()
            && dsl_receive::resume_state(read, head.object())?.is_none()
        {
            found.push(head.object());
        }
        Ok(())
    })?;
    found.reverse();
    Ok(found)
}
