//! Operations on a pool that is open for writing, each recorded in the model.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use base::rt::{Mutex, plain};
use base::{Error, ErrorKind, Guid, ObjectId, Result, Txg};
use device::sim::SimDisks;
use dmu::{Io, ObjectSpec, Objset, ObjsetProps, Tx, zaps};
use dsl::stored::Stored;
use dsl::write::create::NewDataset;
use dsl::write::{create, destroy, snapshot};
use ondisk::ObjType;
use ondisk::objset::ObjsetType;
use ondisk::zap::ZapValue;
use spa::engine::{
    FreeSpaceTuning, JobKind, JobRecord, PoolChange, ScanLimits, ScanRequest, Taken, TaskCx,
    Writer, objset_props,
};

use crate::model::{Act, Dataset, DsId, History, Model, Snap};
use crate::ops::{Op, content};
use crate::pool::POOL;

/// The largest size of an object to which bytes are appended.
const END_MAX: u64 = 4 << 20;

/// An object that threads write.
#[derive(Clone)]
pub(crate) struct WriteTarget {
    pub(crate) ds: DsId,
    pub(crate) id: u64,
    pub(crate) zap: bool,
    /// The position of the next append; the lock orders changes by several threads.
    pub(crate) end: Arc<Mutex<u64>>,
    pub(crate) shared: bool,
}

/// The state of one thread: its own objects, datasets and snapshots.
pub struct Hand {
    pub(crate) thread: usize,
    pub(crate) objects: Vec<WriteTarget>,
    pub(crate) datasets: Vec<DsId>,
    pub(crate) snaps: Vec<usize>,
    pub(crate) made: usize,
}

/// A pool under a workload.
pub struct Driver {
    /// The pool.
    pub writer: Arc<Writer>,
    /// Its expected content.
    pub model: Arc<Model>,
    pub(crate) disks: SimDisks,
    pub(crate) heads: Mutex<BTreeMap<DsId, Arc<Objset>>>,
    shared: Mutex<Vec<WriteTarget>>,
    plant_wrong_txg: bool,
    /// Devices fail: an operation that fails leaves unknown content.
    pub faulty: bool,
    /// The block cache is emptied into its second tier before each operation.
    pub evicts: bool,
    /// Distinguishes this run's names from those of earlier runs.
    pub prefix: String,
    /// Threads have datasets of their own, whose lineage they change (`lineage`).
    pub lineage: bool,
    /// Those datasets begin with a clone, and clones are what most operations change.
    pub clones: bool,
    /// Blocks are deduplicated, by different checksum functions as this seed says.
    pub dedup: Option<u64>,
    /// Operations that were done, of those that a test counts, by kind.
    pub done: plain::Mutex<BTreeSet<&'static str>>,
}

fn words(seed: u32, count: usize) -> Vec<u64> {
    content(seed | 3, count * 8)
        .chunks_exact(8)
        .map(|c| c.iter().fold(0, |a, b| a << 8 | u64::from(*b)))
        .collect()
}

fn entry_name(seed: u32, i: u32) -> Vec<u8> {
    let n = seed.wrapping_mul(2_654_435_761).wrapping_add(i * 7) % 257;
    match n % 16 {
        0 => format!("a name that does not fit into a micro ZAP's entry, which is number {n}"),
        _ => format!("name-{n}"),
    }
    .into_bytes()
}

impl Driver {
    /// A request of a scrub. It may make no sense at the moment.
    fn scan(&self, seed: u32) -> Result<()> {
        self.writer.set_scan_limits(ScanLimits {
            memory: 1 << 20,
            slice_blocks: 1 + (seed >> 8) as usize % 64,
            checkpoint: std::time::Duration::from_millis(u64::from(seed >> 4) % 16),
            ..ScanLimits::default()
        });
        let request = match seed % 8 {
            0 => ScanRequest::Pause,
            1 => ScanRequest::Stop,
            2 => ScanRequest::ScrubFromLast,
            3 => ScanRequest::ScrubErrors,
            _ => ScanRequest::Scrub,
        };
        match self.writer.scan(request, None) {
            Err(e) if matches!(e.kind(), ErrorKind::Busy | ErrorKind::NotFound) => Ok(()),
            other => other,
        }
    }

    /// A driver of a new pool.
    ///
    /// # Errors
    /// Those of reading the root dataset.
    pub fn new(writer: Arc<Writer>, disks: &SimDisks, model: Arc<Model>) -> Result<Driver> {
        Ok(Driver {
            writer,
            model,
            disks: disks.clone(),
            heads: Mutex::default(),
            shared: Mutex::default(),
            plant_wrong_txg: false,
            faulty: false,
            evicts: false,
            prefix: String::new(),
            lineage: false,
            clones: false,
            dedup: None,
            done: plain::Mutex::default(),
        })
    }

    /// Plants the bug of the wrong txg in every object set from now on.
    pub fn plant_wrong_txg(&mut self) {
        self.plant_wrong_txg = true;
    }

    /// Records the root dataset of a new pool.
    ///
    /// # Errors
    /// Those of reading the MOS.
    pub(crate) fn add_root(&self) -> Result<()> {
        let root = dsl::DslDir::root(self.writer.mos(), POOL)?;
        let head = root.head()?.ok_or_else(|| Error::corrupt("no root dataset"))?.object();
        let (name, clone_of) = (History::new(POOL.to_owned()), History::new(None));
        let born = self.writer.published().uberblock.txg;
        let root = Dataset { name, head, origin: None, clone_of, born, died: None };
        self.model.add_dataset(root);
        self.disks.mark(born.0);
        Ok(())
    }

    /// Makes the objects that all threads change.
    ///
    /// # Errors
    /// Those of making them.
    pub(crate) fn share_objects(&self) -> Result<()> {
        let data = self.create(0, 3, 1, true)?;
        let zap = self.create_zap(0, true)?;
        *self.shared.lock() = vec![data, zap];
        Ok(())
    }

    /// The initial state of a thread.
    pub fn hand(&self, thread: usize) -> Hand {
        let objects = self.shared.lock().clone();
        Hand { thread, objects, datasets: vec![0], snaps: Vec::new(), made: 0 }
    }

    /// The initial state of a thread in a pool with content: all of it.
    pub(crate) fn hand_of(&self, txg: Txg) -> Hand {
        let state = self.model.state(txg);
        let mut datasets: Vec<DsId> = state.heads.values().map(|(ds, _)| *ds).collect();
        datasets.retain(|ds| *ds != 0 || !self.lineage);
        let snaps = self.model.snaps_in(txg);
        let mut objects = Vec::new();
        for &ds in &datasets {
            for (&id, obj) in self.model.content(ds, txg).iter().filter(|(_, o)| !o.unknown) {
                objects.push(WriteTarget {
                    ds,
                    id,
                    zap: obj.zap,
                    end: Arc::default(),
                    shared: false,
                });
            }
        }
        Hand { thread: 0, objects, datasets, snaps, made: 0 }
    }

    pub(crate) fn head(&self, ds: DsId) -> Result<Arc<Objset>> {
        if let Some(os) = self.heads.lock().get(&ds) {
            return Ok(Arc::clone(os));
        }
        let dataset = self.model.dataset(ds).ok_or_else(|| Error::bug("no such dataset"))?;
        let flags = self.writer.flags()?;
        let props = objset_props(&flags, &|_| Ok(None))?;
        let os = self.writer.open_head(dataset.head, props)?;
        if self.dedup.is_some() {
            os.set_props(self.dedup_props(ds, (*os.props()?).clone()))?;
        }
        self.heads.lock().insert(ds, Arc::clone(&os));
        Ok(os)
    }

    pub(crate) fn begin(&self, logical: u64, frees: bool) -> Result<Tx> {
        self.writer.begin_wait(logical, frees)
    }

    pub(crate) fn create(
        &self,
        ds: DsId,
        block: u8,
        seed: u32,
        shared: bool,
    ) -> Result<WriteTarget> {
        let os = self.head(ds)?;
        let bonus = content(seed | 3, (seed % 5) as usize * 40);
        let block_size = 512u32 << block;
        let spec = ObjectSpec {
            object_type: ObjType::PLAIN_FILE_CONTENTS,
            block_size,
            indirect_shift: if seed.is_multiple_of(3) { 12 } else { 0 },
            bonus_type: ObjType::OTN_UINT64_METADATA,
            bonus: bonus.clone(),
            slots: if seed.is_multiple_of(7) { 2 } else { 1 },
        };
        let tx = self.begin(64 << 10, false)?;
        let id = os.allocate(&tx, &spec)?.0;
        self.model.note(tx.txg(), ds, id, Act::Create { zap: false, block_size, bonus });
        Ok(WriteTarget { ds, id, zap: false, end: Arc::default(), shared })
    }

    fn create_zap(&self, ds: DsId, shared: bool) -> Result<WriteTarget> {
        let os = self.head(ds)?;
        let tx = self.begin(64 << 10, false)?;
        let id = zaps::create(&os, &tx, ObjType::DIRECTORY_CONTENTS, ObjType::NONE, &[], 0)?.0;
        let act = Act::Create { zap: true, block_size: 0, bonus: Vec::new() };
        self.model.note(tx.txg(), ds, id, act);
        Ok(WriteTarget { ds, id, zap: true, end: Arc::default(), shared })
    }

    /// Applies `change` to an object and records the change that it returns.
    pub(crate) fn change(
        &self,
        handle: &WriteTarget,
        logical: u64,
        frees: bool,
        change: impl FnOnce(&Arc<Objset>, &Tx, &mut u64) -> Result<Vec<Act>>,
    ) -> Result<()> {
        let os = self.head(handle.ds)?;
        // A ZAP's lock is taken before the transaction is opened (`dmu::zaps`). Bytes may
        // be written by an older txg after a newer one, so there the transaction is opened
        // first.
        let mut first = handle.zap.then(|| handle.end.lock());
        let tx = self.begin(logical, frees)?;
        let mut second = if first.is_none() { Some(handle.end.lock()) } else { None };
        let Some(end) = first.as_mut().or(second.as_mut()) else {
            return Err(Error::bug("an object without its lock"));
        };
        if self.plant_wrong_txg {
            os.plant_wrong_txg();
        }
        match change(&os, &tx, end) {
            Ok(acts) => {
                for act in acts {
                    self.model.note(tx.txg(), handle.ds, handle.id, act);
                }
                Ok(())
            }
            Err(e) => {
                self.model.note(tx.txg(), handle.ds, handle.id, Act::Unknown);
                Err(e)
            }
        }
    }

    pub(crate) fn write(
        &self,
        handle: &WriteTarget,
        at: Option<u64>,
        len: u32,
        seed: u32,
    ) -> Result<()> {
        // A small block takes a sector, too.
        let object = self.head(handle.ds)?.object(ObjectId(handle.id), Io::WAIT)?;
        let block = object.block_size();
        let logical = (u64::from(len) / block + 2) * block.max(4 << 10);
        self.change(handle, logical + (64 << 10), false, |os, tx, end| {
            let at = at.unwrap_or(*end).min(1 << 40);
            let data = Arc::new(content(seed, len as usize));
            os.write(tx, ObjectId(handle.id), at, &data)?;
            let new_end = at + u64::from(len);
            if new_end <= END_MAX {
                *end = new_end.max(*end);
            }
            Ok(vec![Act::Write { at, data }])
        })
    }

    fn zero(&self, handle: &WriteTarget, at: u64, len: Option<u64>) -> Result<()> {
        self.change(handle, 128 << 10, true, |os, tx, _| {
            os.free_range(tx, ObjectId(handle.id), at, len.unwrap_or(u64::MAX))?;
            Ok(vec![Act::Zero { at, len }])
        })
    }

    /// Sets a spill block of one to sixteen sectors, or removes it.
    fn spill(&self, handle: &WriteTarget, seed: u32) -> Result<()> {
        self.change(handle, 128 << 10, true, |os, tx, _| {
            let sectors = (seed >> 8) as usize % 17;
            let spill = (sectors > 0).then(|| content(seed | 3, sectors * 512));
            match os.set_spill(tx, ObjectId(handle.id), spill.as_deref()) {
                Ok(()) => Ok(vec![Act::Spill(spill)]),
                // The bonus leaves no room for its pointer, or the content is all zeros.
                Err(e) if e.kind() == ErrorKind::Invalid => Ok(Vec::new()),
                Err(e) => Err(e),
            }
        })
    }

    fn zap_put(&self, handle: &WriteTarget, count: u32, seed: u32) -> Result<()> {
        self.change(handle, 256 << 10, false, |os, tx, _| {
            let mut acts = Vec::new();
            for i in 0..count {
                let name = entry_name(seed, i);
                let n = if (seed ^ i).is_multiple_of(11) { 1 + (seed % 20) as usize } else { 1 };
                let value = words(seed.wrapping_add(i), n);
                let stored = ZapValue::from_u64s(&value).ok_or_else(|| Error::bug("a value"))?;
                zaps::update(os, tx, ObjectId(handle.id), &name, &stored)?;
                acts.push(Act::Put(name, value));
            }
            Ok(acts)
        })
    }

    fn zap_remove(&self, handle: &WriteTarget, count: u32, seed: u32) -> Result<()> {
        self.change(handle, 128 << 10, true, |os, tx, _| {
            let mut acts = Vec::new();
            for i in 0..count {
                let name = entry_name(seed, i);
                match zaps::remove(os, tx, ObjectId(handle.id), &name) {
                    Ok(()) => acts.push(Act::Remove(name)),
                    Err(e) if e.kind() == ErrorKind::NotFound => {}
                    Err(e) => return Err(e),
                }
            }
            Ok(acts)
        })
    }

    /// Runs a sync task. If the pool was suspended while the task's txg was written, the
    /// txg may be on disk or not: then the task's result is returned with the error.
    pub(crate) fn task<C: Send + 'static, T: Clone + Send + 'static>(
        &self,
        check: impl FnOnce(&mut TaskCx<'_>) -> Result<C> + Send + 'static,
        act: impl FnOnce(&mut TaskCx<'_>, C) -> Result<T> + Send + 'static,
    ) -> Result<(T, Txg, Result<()>)> {
        let ran: Arc<plain::Mutex<Option<(T, Txg)>>> = Arc::default();
        let note = Arc::clone(&ran);
        let noted = move |cx: &mut TaskCx<'_>, checked: C| {
            let value = act(cx, checked)?;
            *note.lock() = Some((value.clone(), cx.cx.txg));
            Ok(value)
        };
        match self.writer.sync_task(check, noted) {
            Ok((value, txg)) => {
                self.disks.mark(txg.0);
                Ok((value, txg, Ok(())))
            }
            Err(e) => match ran.lock().take() {
                Some((value, txg)) => Ok((value, txg, Err(e))),
                None => Err(e),
            },
        }
    }

    /// Creates a dataset below the root, empty or a clone of a snapshot.
    pub(crate) fn dataset(&self, hand: &mut Hand, origin: Option<usize>) -> Result<()> {
        hand.made += 1;
        let short = format!("{}d{}-{}", self.prefix, hand.thread, hand.made);
        let clone_of = History::new(origin);
        let origin = origin.and_then(|snap| self.model.snap(snap));
        let origin_object = origin.as_ref().map(|s| s.object);
        let name = short.clone();
        let act = move |cx: &mut TaskCx<'_>, ()| {
            let parent = cx.cx.read().required("root_dataset")?;
            let new = NewDataset { name: &name, case_insensitive: false, origin: origin_object };
            let made = create::dataset(cx.cx, parent, &new)?;
            if origin_object.is_none() {
                let props = objset_props(&cx.flags()?, &|_| Ok(None))?;
                let zio = Arc::clone(cx.writer.zio());
                cx.add_head(made.head, Objset::create(zio, made.head, ObjsetType::Zfs, props));
            }
            Ok(made.head)
        };
        let (head, txg, done) = self.task(|_| Ok(()), act)?;
        let origin = origin.map(|s| (s.ds, s.born));
        let name = History::new(format!("{POOL}/{short}"));
        let made = Dataset { name, head, origin, clone_of, born: txg, died: None };
        let ds = self.model.add_dataset(made);
        hand.datasets.push(ds);
        done
    }

    /// Records that `txg` destroyed a dataset.
    pub(crate) fn destroyed(&self, hand: &mut Hand, ds: DsId, txg: Txg) {
        self.model.destroy_dataset(ds, txg);
        self.heads.lock().remove(&ds);
        hand.datasets.retain(|d| *d != ds);
        hand.objects.retain(|o| o.ds != ds);
    }

    pub(crate) fn destroy(&self, hand: &mut Hand, which: u32) -> Result<()> {
        let ds = hand.datasets[which as usize % hand.datasets.len()];
        if ds == 0 {
            return Ok(());
        }
        let head = self.model.dataset(ds).ok_or_else(|| Error::bug("no such dataset"))?.head;
        let done = self.task(
            move |cx| destroy::check_head(cx.cx.read(), head),
            move |cx, ()| {
                destroy::head(cx.cx, head, cx.writer.zio())?;
                cx.drop_head(head);
                cx.free_in_background();
                Ok(())
            },
        );
        match done {
            Ok(((), txg, done)) => {
                self.destroyed(hand, ds, txg);
                done
            }
            Err(e) if matches!(e.kind(), ErrorKind::Busy | ErrorKind::Exists) => Ok(()),
            Err(e) => Err(e),
        }
    }

    fn snapshot(&self, hand: &mut Hand, which: u32) -> Result<()> {
        let ds = hand.datasets[which as usize % hand.datasets.len()];
        let head = self.model.dataset(ds).ok_or_else(|| Error::bug("no such dataset"))?.head;
        hand.made += 1;
        let name = format!("{}s{}-{}", self.prefix, hand.thread, hand.made);
        let (checked, taken) = (name.clone(), name.clone());
        let done = self.task(
            move |cx| snapshot::check(cx.cx, head, &checked),
            move |cx, ()| snapshot::take(cx.cx, head, &taken),
        );
        match done {
            Ok((object, txg, done)) => {
                hand.snaps.push(self.model.add_snap(Snap::new(ds, name, object, txg)));
                done
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(()),
            Err(e) => Err(e),
        }
    }

    fn destroy_snapshot(&self, hand: &mut Hand, which: u32) -> Result<()> {
        if hand.snaps.is_empty() {
            return Ok(());
        }
        let snap = hand.snaps[which as usize % hand.snaps.len()];
        let object = self.model.snap(snap).ok_or_else(|| Error::bug("no such snapshot"))?.object;
        let done = self.task(
            move |cx| destroy::check_snapshot(cx.cx.read(), object),
            move |cx, ()| {
                destroy::snapshot(cx.cx, object, false)?;
                cx.free_in_background();
                Ok(())
            },
        );
        match done {
            Ok(((), txg, done)) => {
                self.model.destroy_snap(snap, txg);
                hand.snaps.retain(|s| *s != snap);
                done
            }
            Err(e) if e.kind() == ErrorKind::Exists => Ok(()),
            Err(e) => Err(e),
        }
    }

    fn checkpoint(&self) -> Result<()> {
        match self.writer.take_checkpoint(None) {
            Ok(Taken { of, txg }) => {
                self.model.note_checkpoint(txg, Some(of));
                self.disks.mark(txg.0);
                Ok(())
            }
            Err(e) if e.kind() == ErrorKind::Busy => Ok(()),
            Err(e) => {
                self.model.lose_checkpoint();
                Err(e)
            }
        }
    }

    fn discard(&self) -> Result<()> {
        // A txg frees few ranges, so that crashes meet a discard in the middle.
        let tuning = self.writer.free_space_tuning();
        self.writer.set_free_space_tuning(FreeSpaceTuning { discard_memory: 1 << 10, ..tuning });
        match self.writer.discard_checkpoint(None) {
            Ok(txg) => {
                self.model.note_checkpoint(txg, None);
                self.disks.mark(txg.0);
                Ok(())
            }
            Err(e) if matches!(e.kind(), ErrorKind::Busy | ErrorKind::NotFound) => Ok(()),
            Err(e) => {
                self.model.lose_checkpoint();
                Err(e)
            }
        }
    }

    /// Starts work on the free space of a leaf, unless it is under way. Every range counts,
    /// however small, so that one that must not be touched is met.
    fn on_free_space(&self, kind: JobKind, leaf: u32) -> Result<()> {
        self.tune_free_space();
        let config = self.writer.published().config;
        let leaves: Vec<Guid> = config.vdev_tree.leaves().map(|leaf| leaf.guid).collect();
        let Some(leaf) = leaves.get(leaf as usize % leaves.len().max(1)) else { return Ok(()) };
        match self.writer.start_job(*leaf, kind, JobRecord::default(), None) {
            // It runs, the leaf is absent, or a spare without a device of its own.
            Err(e)
                if matches!(
                    e.kind(),
                    ErrorKind::Busy
                        | ErrorKind::DevicesMissing
                        | ErrorKind::NotFound
                        | ErrorKind::Unsupported
                ) =>
            {
                Ok(())
            }
            other => other,
        }
    }

    fn autotrim(&self, on: bool) -> Result<()> {
        self.tune_free_space();
        let change = PoolChange::Prop("autotrim".to_owned(), Some(Stored::Number(on.into())));
        self.writer.set_pool(vec![change], None)
    }

    fn tune_free_space(&self) {
        let all =
            FreeSpaceTuning { trim_min: 512, trim_batch: 2, ..self.writer.free_space_tuning() };
        self.writer.set_free_space_tuning(all);
    }

    fn props(&self, ds: DsId, seed: u32) -> Result<()> {
        use codec::compress::Compression;
        let os = self.head(ds)?;
        let old = os.props()?;
        let compression = match seed % 4 {
            0 => Compression::Off,
            1 => Compression::Lzjb,
            _ => Compression::ON,
        };
        let copies = [1, 1, 2, 3][(seed >> 8) as usize % 4];
        os.set_props(ObjsetProps { compression, copies, ..(*old).clone() })
    }

    /// Waits until all changes are on disk, and records that they are acknowledged.
    ///
    /// # Errors
    /// That of a suspension.
    pub fn sync(&self) -> Result<Txg> {
        let txg = self.writer.sync()?;
        self.disks.mark(txg.0);
        Ok(txg)
    }

    /// Runs one operation. An operation that is impossible in the present state is skipped.
    ///
    /// # Errors
    /// Those of the engine.
    pub fn run(&self, hand: &mut Hand, op: &Op) -> Result<()> {
        if self.faulty {
            // So that reads find damage on the disks, and repair it.
            self.writer.zio().cache().clear();
        }
        if self.evicts {
            self.writer.zio().cache().evict_all();
        }
        match self.run_op(hand, op) {
            Err(e) if e.kind() == ErrorKind::NoSpace => Ok(()),
            other => other,
        }
    }

    fn run_op(&self, hand: &mut Hand, op: &Op) -> Result<()> {
        if self.lineage {
            self.begin_lineage(hand)?;
        }
        if self.run_lineage(hand, op)? {
            return Ok(());
        }
        let pick_ds = |which: u32| hand.datasets[which as usize % hand.datasets.len()];
        let preferred = self.preferred(hand);
        let pick = |which: u32, zap: bool| {
            let fits = |o: &&WriteTarget| o.zap == zap;
            let fit: Vec<&WriteTarget> = hand.objects.iter().filter(fits).collect();
            let of_clones = |o: &&WriteTarget| fits(o) && preferred.contains(&o.ds);
            let own: Vec<&WriteTarget> = hand.objects.iter().filter(of_clones).collect();
            if !which.is_multiple_of(8) && !own.is_empty() {
                return Some(own[which as usize / 8 % own.len()].clone());
            }
            fit.get((which as usize).checked_rem(fit.len())?).map(|h| (*h).clone())
        };
        match op {
            Op::Create { ds, block, seed } => {
                // Blocks of few sizes are equal more often.
                let block = if self.dedup.is_some() { 3 + block % 2 * 2 } else { *block };
                let made = self.create(pick_ds(*ds), block, *seed, false)?;
                hand.objects.push(made);
            }
            Op::CreateZap { ds } => {
                let made = self.create_zap(pick_ds(*ds), false)?;
                hand.objects.push(made);
            }
            Op::Write { object, at, len, seed } => {
                if let Some(h) = pick(*object, false) {
                    self.write(&h, Some(*at), *len, *seed)?;
                }
            }
            Op::Append { object, len, seed } => {
                if let Some(h) = pick(*object, false) {
                    self.write(&h, None, *len, *seed)?;
                }
            }
            Op::Truncate { object, at } => {
                if let Some(h) = pick(*object, false) {
                    self.zero(&h, *at, None)?;
                }
            }
            Op::Punch { object, at, len } => {
                if let Some(h) = pick(*object, false) {
                    self.zero(&h, *at, Some(u64::from(*len)))?;
                }
            }
            Op::Free { object } => {
                let own: Vec<usize> =
                    (0..hand.objects.len()).filter(|i| !hand.objects[*i].shared).collect();
                if let Some(i) = (*object as usize).checked_rem(own.len()) {
                    let h = hand.objects.remove(own[i]);
                    self.change(&h, 64 << 10, true, |os, tx, _| {
                        os.free_object(tx, ObjectId(h.id))?;
                        Ok(vec![Act::Free])
                    })?;
                }
            }
            Op::BlockSize { object, block } => {
                if let Some(h) = pick(*object, false) {
                    self.change(&h, 256 << 10, false, |os, tx, _| {
                        let size = 512u32 << *block;
                        match os.set_block_size(tx, ObjectId(h.id), size, 0) {
                            Ok(()) => Ok(vec![Act::BlockSize(size)]),
                            Err(e) if e.kind() == ErrorKind::Invalid => Ok(Vec::new()),
                            Err(e) => Err(e),
                        }
                    })?;
                }
            }
            Op::Bonus { object, seed } => {
                if let Some(h) = pick(*object, false) {
                    self.change(&h, 64 << 10, false, |os, tx, _| {
                        let bonus = content(seed | 3, (seed % 9) as usize * 8);
                        os.set_bonus(tx, ObjectId(h.id), &bonus)?;
                        Ok(vec![Act::Bonus(bonus)])
                    })?;
                }
            }
            Op::Spill { object, seed } => {
                if let Some(h) = pick(*object, false) {
                    self.spill(&h, *seed)?;
                }
            }
            Op::ZapPut { object, count, seed } => {
                if let Some(h) = pick(*object, true) {
                    self.zap_put(&h, *count, *seed)?;
                }
            }
            Op::ZapRemove { object, count, seed } => {
                if let Some(h) = pick(*object, true) {
                    self.zap_remove(&h, *count, *seed)?;
                }
            }
            Op::Props { ds, seed } => self.props(pick_ds(*ds), *seed)?,
            Op::Dataset => self.dataset(hand, None)?,
            Op::Clone { snap } if !hand.snaps.is_empty() => {
                let snap = hand.snaps[*snap as usize % hand.snaps.len()];
                self.dataset(hand, Some(snap))?;
            }
            Op::Destroy { ds } if self.dedup.is_some() && ds & 256 != 0 => {
                self.destroy_written(hand, *ds, ds.rotate_left(9))?;
            }
            Op::Destroy { ds } => self.destroy(hand, *ds)?,
            Op::CloneBlocks { from, to, at, seed } => {
                self.clone_blocks(hand, *from, *to, (*at, *seed))?;
            }
            Op::DestroyCloned { ds, seed } => self.destroy_cloned(hand, *ds, *seed)?,
            Op::Snapshot { ds } => self.snapshot(hand, *ds)?,
            Op::DestroySnapshot { snap } => self.destroy_snapshot(hand, *snap)?,
            Op::WriteBlocks { object, at, count, seed } => {
                if let Some(h) = pick(*object, false) {
                    self.write_blocks(&h, (*at, *count), *seed, false)?;
                }
            }
            Op::DedupProps { ds, seed } => self.change_dedup(pick_ds(*ds), *seed)?,
            Op::DedupQuota { seed } => self.dedup_quota(*seed)?,
            Op::Prune { seed } => self.prune(*seed)?,
            Op::Reshape { seed } => self.reshape(*seed)?,
            Op::Move { seed } => self.empty_some(*seed)?,
            Op::Comment { seed } => {
                let text = format!("comment {seed}");
                let to = text.clone();
                let act = move |cx: &mut TaskCx<'_>, ()| {
                    cx.config().comment = Some(nvlist::NvStr::new(to.as_bytes())?);
                    Ok(())
                };
                let ((), txg, done) = self.task(|_| Ok(()), act)?;
                self.model.note_comment(txg, text);
                done?;
            }
            Op::Checkpoint => self.checkpoint()?,
            Op::Discard => self.discard()?,
            Op::Trim { leaf } => self.on_free_space(JobKind::Trim, *leaf)?,
            Op::Initialize { leaf } => self.on_free_space(JobKind::Initialize, *leaf)?,
            Op::Autotrim { on } => self.autotrim(*on)?,
            Op::Sync => {
                self.sync()?;
            }
            Op::Kick => self.writer.txgs().kick(self.writer.txgs().open_txg()),
            Op::Sleep { ms } => base::rt::sleep(std::time::Duration::from_millis(u64::from(*ms))),
            Op::Scan { seed } => self.scan(*seed)?,
            // Those of `lineage` are done, and there is nothing to clone.
            _ => {}
        }
        Ok(())
    }
}
