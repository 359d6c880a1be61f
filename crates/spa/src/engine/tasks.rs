//! Sync tasks: changes of the MOS that callers ask for (chapter 04 §0).

use std::sync::Arc;

use base::rt::OneShot;
use base::{Error, Result, Txg};
use dmu::Objset;
use dsl::write::SyncCx;

use super::{State, Writer};

/// What a task works with.
pub struct TaskCx<'a> {
    /// The pool.
    pub writer: &'a Writer,
    /// The DSL's context: MOS, group, time.
    pub cx: &'a SyncCx<'a>,
    /// The group's transaction.
    pub tx: &'a dmu::Tx,
    pub(crate) state: &'a mut State,
}

impl TaskCx<'_> {
    /// The configuration, to be changed; labels and the configuration object are
    /// written with this group.
    pub fn config(&mut self) -> &mut ondisk::config::PoolConfig {
        self.state.dirty = true;
        &mut self.state.config
    }

    /// A new dataset's object set; it is written with this group.
    pub fn add_head(&self, head: u64, os: Arc<Objset>) {
        self.writer.heads.lock().insert(head, os);
    }

    /// A dataset is no more.
    pub fn drop_head(&self, head: u64) {
        self.writer.heads.lock().remove(&head);
    }

    /// Something waits to be freed in the background.
    pub fn free_in_background(&mut self) {
        self.state.background = true;
    }
}

type Check = Box<dyn FnOnce(&mut TaskCx<'_>) -> Result<Act> + Send>;
type Act = Box<dyn FnOnce(&mut TaskCx<'_>) -> Result<()> + Send>;

/// A change that waits for its group.
pub(crate) struct Task {
    run: Check,
    refused: Arc<OneShot<Option<Error>>>,
}

impl Task {
    /// Runs the task. Its refusal is told to the caller; an error is the group's.
    pub(super) fn run(self, cx: &mut TaskCx<'_>) -> Result<()> {
        match (self.run)(cx) {
            Ok(act) => {
                let done = act(cx);
                self.refused.set(None);
                done
            }
            Err(e) => {
                self.refused.set(Some(e));
                Ok(())
            }
        }
    }
}

impl Writer {
    /// Changes the MOS in syncing context and waits until that is on disk. `check` may
    /// refuse, and must not change anything; an error of `act` fails the group. The
    /// group that it ran in.
    ///
    /// # Errors
    /// That of `check`; that of a suspension.
    pub fn sync_task<T: Send + 'static, C: Send + 'static>(
        &self,
        check: impl FnOnce(&mut TaskCx<'_>) -> Result<C> + Send + 'static,
        act: impl FnOnce(&mut TaskCx<'_>, C) -> Result<T> + Send + 'static,
    ) -> Result<(T, Txg)> {
        let value = Arc::new(OneShot::new());
        let refused = Arc::new(OneShot::new());
        let out = Arc::clone(&value);
        let run: Check = Box::new(move |cx| {
            let checked = check(cx)?;
            Ok(Box::new(move |cx: &mut TaskCx<'_>| {
                out.set(act(cx, checked)?);
                Ok(())
            }) as Act)
        });
        let hold = self.txgs.hold()?;
        let txg = hold.txg();
        let task = Task { run, refused: Arc::clone(&refused) };
        self.tasks.lock().entry(txg).or_default().push(task);
        self.txgs.dirty(txg, 0);
        drop(hold);
        self.txgs.kick(txg);
        self.txgs.wait_synced(txg)?;
        match refused.wait() {
            Some(e) => Err(e),
            None => Ok((value.wait(), txg)),
        }
    }
}
