//! Sync tasks: changes of the MOS that callers ask for (chapter 04 §0).

use std::sync::Arc;

use base::rt::{Sender, oneshot};
use base::{Error, Result, Txg};
use dmu::{Objset, Pending};
use dsl::write::{MosRead, SyncCx, features, history};
use nvlist::NvList;
use zio::Writes;

use super::sync::{Flags, Group};
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
    pub(super) group: &'a Group<'a>,
    pub(super) writes: &'a Writes,
    pub(super) pending: &'a mut Vec<Pending>,
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

    /// A dataset is no more: what is dirty of it is forgotten.
    pub fn drop_head(&self, head: u64) {
        self.writer.logs.lock().remove(&head);
        self.writer.idle_logs.forget(head);
        let Some(os) = self.writer.heads.lock().remove(&head) else { return };
        let (dirty, written) = os.abandon();
        for (txg, bytes) in dirty {
            self.writer.txgs.undirty(txg, bytes);
        }
        self.writer.strays.lock().extend(written);
    }

    /// Everything that the group has of datasets is on the devices, and the MOS refers
    /// to it: needed before a task that reads trees, or takes over their roots.
    ///
    /// # Errors
    /// Those of writing; the group cannot be committed then.
    pub fn settle(&mut self) -> Result<()> {
        self.writer.sync_heads(self.state, self.group, self.writes, self.pending)?;
        self.writer.show(self.group.txg, self.writes, self.pending)
    }

    /// Adds a command to the pool's history (chapter 04 §16).
    ///
    /// # Errors
    /// Those of the store.
    pub fn log_command(&self, command: &Command) -> Result<()> {
        let mut record = NvList::new();
        record.add_str("history command", &command.text);
        record.add_u64("history who", command.uid);
        self.log(record)
    }

    /// Adds what the pool did to its history; `dataset` is its name and object.
    ///
    /// # Errors
    /// Those of the store.
    pub fn log_internal(&self, name: &str, dataset: Option<(&str, u64)>, text: &str) -> Result<()> {
        let mut record = NvList::new();
        record.add_str("history internal str", text);
        record.add_str("internal_name", name);
        record.add_u64("history txg", self.cx.txg.0);
        if let Some((name, object)) = dataset {
            record.add_str("dsname", name);
            record.add_u64("dsid", object);
        }
        self.log(record)
    }

    fn log(&self, mut record: NvList) -> Result<()> {
        record.add_u64("history time", self.cx.now.0);
        let host = self.state.config.hostname.as_ref().and_then(|h| h.to_str());
        record.add_str("history hostname", host.unwrap_or_default());
        match history::append(self.cx, &record) {
            // Better without the record than without the pool.
            Err(e) if e.kind() == base::ErrorKind::Limit => Ok(()),
            other => other,
        }
    }

    /// Marks a new dataset with the features that its accounting needs.
    ///
    /// # Errors
    /// Those of the store.
    pub fn mark_accounting(&self, head: u64, os: &Objset) -> Result<()> {
        let marks = [
            (ondisk::objset::FLAG_USEROBJ_ACCOUNTED, "org.zfsonlinux:userobj_accounting"),
            (ondisk::objset::FLAG_PROJECT_ACCOUNTED, "org.zfsonlinux:project_quota"),
        ];
        let flags = os.flags();
        let mut wanted = marks.iter().filter(|(bit, _)| flags & bit != 0);
        wanted.try_for_each(|(_, guid)| features::activate(self.cx, head, guid))
    }

    /// Marks a dataset with a feature that none of its pointers shows.
    ///
    /// # Errors
    /// Those of the store.
    pub fn activate(&self, head: u64, guid: &str) -> Result<()> {
        features::activate(self.cx, head, guid)
    }

    /// The MOS, for reading.
    pub fn read(&self) -> &dyn MosRead {
        self.cx.read()
    }

    /// Feature states as of now.
    ///
    /// # Errors
    /// Those of reading the MOS.
    pub fn flags(&self) -> Result<Flags> {
        Flags::load(self.cx.read())
    }

    /// Something waits to be freed in the background.
    pub fn free_in_background(&mut self) {
        self.state.background = true;
    }
}

/// A command as users typed it, for the pool's history.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Command {
    /// The line.
    pub text: String,
    /// Who.
    pub uid: u64,
}

impl Command {
    /// As root.
    pub fn new(text: impl Into<String>) -> Command {
        Command { text: text.into(), uid: 0 }
    }
}

type Check = Box<dyn FnOnce(&mut TaskCx<'_>) -> Result<Act> + Send>;
type Act = Box<dyn FnOnce(&mut TaskCx<'_>) -> Result<()> + Send>;

/// A change that waits for its group.
pub(crate) struct Task {
    run: Check,
    refused: Sender<Option<Error>>,
}

impl Task {
    /// Runs the task. Its refusal is told to the caller; an error is the group's.
    pub(super) fn run(self, cx: &mut TaskCx<'_>) -> Result<()> {
        match (self.run)(cx) {
            Ok(act) => {
                let done = act(cx);
                self.refused.send(None);
                done
            }
            Err(e) => {
                self.refused.send(Some(e));
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
        let (out, value) = oneshot();
        let (refusal, refused) = oneshot();
        let run: Check = Box::new(move |cx| {
            let checked = check(cx)?;
            Ok(Box::new(move |cx: &mut TaskCx<'_>| {
                out.send(act(cx, checked)?);
                Ok(())
            }) as Act)
        });
        self.check_running()?;
        let hold = self.txgs.hold()?;
        let txg = hold.txg();
        let task = Task { run, refused: refusal };
        self.tasks.lock().entry(txg).or_default().push(task);
        self.txgs.dirty(txg, 0);
        drop(hold);
        self.txgs.kick(txg);
        self.txgs.wait_synced(txg)?;
        match refused.wait()? {
            Some(e) => Err(e),
            None => Ok((value.wait()?, txg)),
        }
    }
}
