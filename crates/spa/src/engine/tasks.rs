//! Sync tasks: changes of the MOS that callers request (chapter 04 §0).

use std::collections::BTreeMap;
use std::sync::Arc;

use base::rt::{Mutex, Sender, WriteGuard, oneshot};
use base::{Error, Result, Txg};
use dmu::{Objset, Pending};
use dsl::Mos;
use dsl::write::store::DIRECTORY;
use dsl::write::{MosRead, SyncCx, features, history};
use nvlist::NvList;
use ondisk::zap::ZapValue;
use zio::Writes;

use super::sync::{Flags, SyncPass};
use super::{SyncState, Writer};

/// The context of a task.
pub struct TaskCx<'a> {
    /// The pool.
    pub writer: &'a Writer,
    /// The DSL's context: MOS, txg, time.
    pub cx: &'a SyncCx<'a>,
    /// The txg's transaction.
    pub tx: &'a dmu::Tx,
    pub(crate) state: &'a mut SyncState,
    pub(super) sync: &'a SyncPass<'a>,
    pub(super) writes: &'a Writes,
    pub(super) pending: &'a mut Vec<Pending>,
    /// Keeps readers of names and properties from changes that are not whole.
    pub(super) names: Option<WriteGuard<'a, ()>>,
}

impl TaskCx<'_> {
    /// Waits for devices, perhaps for as long as the pool is suspended; others may read names
    /// and properties meanwhile. What the task has changed so far must be whole.
    pub(super) fn wait_for_devices<T>(&mut self, wait: impl FnOnce(&mut Self) -> T) -> T {
        let held = self.names.take().is_some();
        let out = wait(self);
        self.names = held.then(|| self.writer.names.write());
        out
    }

    /// The configuration, to be changed; labels and the configuration object are written
    /// with this txg.
    pub fn config(&mut self) -> &mut ondisk::config::PoolConfig {
        self.state.dirty = true;
        &mut self.state.config
    }

    /// A new dataset's object set; it is written with this txg.
    pub fn add_head(&self, head: u64, os: Arc<Objset>) {
        self.writer.heads.lock().insert(head, os);
    }

    /// A dataset was destroyed: its dirty state is dropped.
    pub fn drop_head(&self, head: u64) {
        self.writer.logs.lock().forget(head);
        self.writer.idle_logs.forget(head);
        let Some(os) = self.writer.heads.lock().remove(&head) else { return };
        let (dirty, written) = os.abandon();
        for (txg, bytes) in dirty {
            self.writer.txgs.undirty(txg, bytes);
        }
        self.writer.orphaned_blocks.lock().extend(written);
    }

    /// Ends the clones of blocks of a head that the task is about to free ([`Objset::end_clones`]).
    pub fn end_clones(&self, head: u64) {
        if let Some(os) = self.writer.heads.lock().get(&head) {
            os.end_clones();
        }
    }

    /// Ensures that all datasets' blocks of the txg are on the devices, and that the MOS
    /// refers to them. A task that reads trees, or takes over their roots, needs this. What it has
    /// changed so far must be whole.
    ///
    /// # Errors
    /// Those of writing; the txg cannot be committed then.
    pub fn settle(&mut self) -> Result<()> {
        self.wait_for_devices(|cx| {
            cx.writer.sync_heads(cx.state, cx.sync, cx.writes, cx.pending)?;
            cx.writer.show(cx.sync.txg, cx.writes, cx.pending)
        })
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

    /// Adds an action of the pool itself to its history; `dataset` is its name and object.
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
        self.history_event(&record);
        match history::append(self.cx, &record) {
            // A missing record is better than a suspended pool.
            Err(e) if e.kind() == base::ErrorKind::Limit => Ok(()),
            other => other,
        }
    }

    /// Posts a record of the history as an event; its names have underscores there.
    fn history_event(&self, record: &NvList) {
        let mut values = NvList::new();
        for (name, value) in record.iter() {
            let Some(name) = name.to_str() else { continue };
            let name = format!("history_{}", name.replace(' ', "_").replace("history_", ""));
            values.insert(&name, value.clone());
        }
        self.writer.sysevent("history_event", &values);
    }

    /// Marks a new dataset with the features that its accounting needs.
    ///
    /// # Errors
    /// Those of the store.
    pub(crate) fn mark_accounting(&self, head: u64, os: &Objset) -> Result<()> {
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

    /// The MOS with the changes of this txg, for reading.
    pub fn read(&self) -> &dyn MosRead {
        self.cx.read()
    }

    /// The sync thread's handle of the MOS.
    pub fn mos(&self) -> &Mos {
        self.sync.mos
    }

    /// The current feature states.
    ///
    /// # Errors
    /// Those of reading the MOS.
    pub fn flags(&self) -> Result<Flags> {
        let owners = self.state.config.version >= crate::VERSION_OWNERS;
        Ok(Flags { owners, ..Flags::load(self.cx.read())? })
    }

    /// Notes that there are blocks to free in the background.
    pub fn free_in_background(&mut self) {
        self.state.background = true;
    }
}

/// A command as a user typed it, for the pool's history.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Command {
    /// The command line; one without text is not recorded.
    pub text: String,
    /// The user's id. One who is not root gets the create-time permissions for datasets that
    /// the command makes.
    pub uid: u64,
}

impl Command {
    /// A command of root.
    pub fn new(text: impl Into<String>) -> Command {
        Command { text: text.into(), uid: 0 }
    }
}

type Check = Box<dyn FnOnce(&mut TaskCx<'_>) -> Result<Act> + Send>;
type Act = Box<dyn FnOnce(&mut TaskCx<'_>) -> Result<()> + Send>;

/// Tasks by txg.
type TaskQueue = Mutex<BTreeMap<Txg, Vec<SyncTask>>>;

/// A change that waits for its txg.
pub(crate) struct SyncTask {
    run: Check,
    refused: Sender<Option<Error>>,
}

impl SyncTask {
    /// Runs the task. A refusal is returned to the caller; an error fails the txg.
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
    /// Changes the MOS in syncing context, waits until the change is on disk, and returns
    /// its txg. `check` may refuse, and must not change anything; an error of `act` fails
    /// the txg.
    ///
    /// # Errors
    /// That of `check`; that of a suspension.
    pub fn sync_task<T: Send + 'static, C: Send + 'static>(
        &self,
        check: impl FnOnce(&mut TaskCx<'_>) -> Result<C> + Send + 'static,
        act: impl FnOnce(&mut TaskCx<'_>, C) -> Result<T> + Send + 'static,
    ) -> Result<(T, Txg)> {
        self.queue_task(&self.tasks, check, act)
    }

    /// Stores an array of numbers in the object directory, with the command that led to it.
    ///
    /// # Errors
    /// Those of the store; that of a suspension.
    pub fn store_directory_words(
        &self,
        name: &'static str,
        words: &[u64],
        command: Option<Command>,
    ) -> Result<()> {
        let value = ZapValue::from_u64s(words)
            .ok_or_else(|| Error::invalid("too many numbers for a ZAP entry"))?;
        let act = move |cx: &mut TaskCx<'_>, ()| {
            cx.cx.mos.zap_update(DIRECTORY, name.as_bytes(), &value)?;
            command.map_or(Ok(()), |command| cx.log_command(&command))
        };
        self.sync_task(|_| Ok(()), act).map(drop)
    }

    /// As [`Writer::sync_task`], but the task runs before the txg frees or writes anything:
    /// the state that it finds is that of the last synced txg.
    pub(super) fn early_task<T: Send + 'static, C: Send + 'static>(
        &self,
        check: impl FnOnce(&mut TaskCx<'_>) -> Result<C> + Send + 'static,
        act: impl FnOnce(&mut TaskCx<'_>, C) -> Result<T> + Send + 'static,
    ) -> Result<(T, Txg)> {
        self.queue_task(&self.early_tasks, check, act)
    }

    /// Queues a task for the open txg, without waiting for it.
    ///
    /// # Errors
    /// That of a suspension; `Interrupted` when the pool closes.
    pub(super) fn post_task(
        &self,
        act: impl FnOnce(&mut TaskCx<'_>) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        let (refused, _) = oneshot();
        let run: Check = Box::new(move |_| Ok(Box::new(act) as Act));
        let hold = self.txgs.hold()?;
        let txg = hold.txg();
        self.tasks.lock().entry(txg).or_default().push(SyncTask { run, refused });
        self.txgs.dirty(txg, 0);
        Ok(())
    }

    fn queue_task<T: Send + 'static, C: Send + 'static>(
        &self,
        queue: &TaskQueue,
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
        let task = SyncTask { run, refused: refusal };
        queue.lock().entry(txg).or_default().push(task);
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
