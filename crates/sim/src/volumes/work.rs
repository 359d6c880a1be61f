//! The threads of a run: a writer and an administrator for each volume.

use std::sync::Arc;
use std::time::Duration;

use base::rt::sim::Rng;
use base::rt::{Mutex, plain};
use base::{Error, ErrorKind, Result, Txg};
use device::sim::SimDisks;
use ondisk::objset::ObjsetType;
use spa::engine::{NewClone, NewDataset, Writer};
use zvol::Volume;
use zvol::create::NewVolume;

use super::content::{Effect, GenerationId, Operation, SECTOR, bytes, origin};
use super::{
    BEGUN, GenerationBase, SharedRecording, VolumeHistory, VolumeSetup, VolumeSnapshot, open,
};
use crate::pool::POOL;

/// Least and most bytes of a volume.
const SIZES: [u64; 2] = [64 << 10, 256 << 10];
/// Operations of an administrator.
const ADMIN_OPS: usize = 12;
/// How often a writer looks for the volume that a rollback restored.
const LOOKS_MAX: usize = 100_000;

/// A generation of a volume's content, and the handle to it.
pub(super) struct Current {
    generation: GenerationId,
    volume: Volume,
}

/// A volume of the run.
pub(super) struct SimVolume {
    /// Its place in the recording.
    index: usize,
    name: String,
    current: plain::Mutex<Arc<Current>>,
}

impl SimVolume {
    fn current(&self) -> Arc<Current> {
        Arc::clone(&self.current.lock())
    }
}

/// A thread's view of the run.
#[derive(Clone)]
struct Worker {
    setup: VolumeSetup,
    writer: Arc<Writer>,
    disks: SimDisks,
    shared: SharedRecording,
}

/// A new generation of the recording.
fn begin(shared: &SharedRecording, base: GenerationBase) -> GenerationId {
    let mut recording = shared.lock();
    recording.bases.push(base);
    recording.operations.push(Vec::new());
    recording.bases.len() - 1
}

pub(super) fn make_volumes(
    setup: &VolumeSetup,
    writer: &Arc<Writer>,
    shared: &SharedRecording,
) -> Result<Vec<Arc<SimVolume>>> {
    let mut out = Vec::new();
    for index in 0..setup.run.threads {
        let name = format!("{POOL}/v{index}");
        let block_size = u32::try_from(setup.block).unwrap_or(8192);
        let new = NewVolume { size: SIZES[1], block_size };
        let wanted = NewDataset {
            name: name.clone(),
            kind: ObjsetType::Zvol,
            case_insensitive: false,
            props: Vec::new(),
            content: Box::new(move |os, tx| zvol::create::fill(os, tx, &new)),
        };
        let born = writer.create_dataset(wanted, None)?;
        let generation = begin(shared, GenerationBase { of: None, size: SIZES[1] });
        let volume = open(writer, &name, setup)?;
        let (generations, snapshots) = (vec![(born, generation)], Vec::new());
        let history =
            VolumeHistory { name: name.clone(), born, died: None, generations, snapshots };
        shared.lock().volumes.push(history);
        let current = plain::Mutex::new(Arc::new(Current { generation, volume }));
        out.push(Arc::new(SimVolume { index, name, current }));
    }
    Ok(out)
}

/// A range of sectors that fits into a volume.
fn range(rng: &mut Rng, size: u64) -> std::ops::Range<u64> {
    let most = match rng.below(8) {
        0..=3 => 16,
        4..=5 => 64,
        6 => 128,
        _ => 240,
    };
    let len = (1 + rng.below(most)).min(size);
    let at = match rng.below(3) {
        // Whole blocks, often.
        0 => rng.below(size - len + 1) / 32 * 32,
        // The same place, often.
        1 => rng.below((size - len + 1).min(32)),
        _ => rng.below(size - len + 1),
    };
    at..at + len
}

impl Worker {
    /// Makes a change; false if the volume was rolled back.
    fn change(&self, of: &Current, effect: Effect) -> Result<bool> {
        let number = self.shared.lock().operations[of.generation].len();
        BEGUN.with(|g| g.set(None));
        let span = |range: &std::ops::Range<u64>| {
            (range.start * SECTOR, (range.end - range.start) * SECTOR)
        };
        let (what, done) = match &effect {
            Effect::Write(range) => {
                let from = origin(of.generation, number);
                let data: Vec<u8> = range.clone().flat_map(|at| bytes(from, at)).collect();
                ("write", of.volume.write(range.start * SECTOR, &data))
            }
            Effect::Zero(range) => {
                let (at, len) = span(range);
                let whole =
                    at.is_multiple_of(self.setup.block) && len.is_multiple_of(self.setup.block);
                match whole {
                    true => ("discard", of.volume.discard(at, len)),
                    false => ("zero", of.volume.zero(at, len)),
                }
            }
            Effect::Size(size) => ("size", of.volume.set_size(size * SECTOR)),
        };
        let begun = BEGUN.with(std::cell::Cell::take);
        if let Some((first, last)) = begun {
            let last = if done.is_ok() { last } else { Txg::MAX };
            self.shared.lock().operations[of.generation].push(Operation { effect, first, last });
        }
        match done {
            Ok(()) => {
                self.shared.lock().done.insert(what);
                if self.setup.always {
                    self.acknowledge(of.generation, number + usize::from(begun.is_some()));
                }
                Ok(true)
            }
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
            Err(e) if e.kind() == ErrorKind::NoSpace && begun.is_none() => Ok(true),
            Err(e) => Err(Error::new(e.kind(), format!("{what}: {e}"))),
        }
    }

    fn acknowledge(&self, generation: GenerationId, count: usize) {
        self.disks.mark((generation as u64) << 32 | count as u64);
    }

    /// Makes the changes so far durable; false if the volume was rolled back.
    fn flush(&self, of: &Current, thread: u32) -> Result<bool> {
        let count = self.shared.lock().operations[of.generation].len();
        match of.volume.flush_for(thread) {
            Ok(()) => {
                self.acknowledge(of.generation, count);
                self.shared.lock().done.insert("flush");
                Ok(true)
            }
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
            Err(e) => Err(Error::new(e.kind(), format!("flush: {e}"))),
        }
    }

    fn random_change(&self, rng: &mut Rng, of: &Current) -> Result<bool> {
        let (block, size) = (self.setup.block / SECTOR, of.volume.size() / SECTOR);
        let range = range(rng, size);
        let effect = match rng.below(16) {
            0..=8 => Effect::Write(range),
            9..=12 => {
                let whole = range.start / block * block..range.end.div_ceil(block) * block;
                Effect::Zero(whole.start..whole.end.min(size))
            }
            13..=14 => Effect::Zero(range),
            _ => {
                let blocks = SIZES.map(|bytes| bytes / self.setup.block);
                Effect::Size((blocks[0] + rng.below(blocks[1] - blocks[0] + 1)) * block)
            }
        };
        self.change(of, effect)
    }

    fn write(&self, volume: &SimVolume) -> Result<()> {
        let mut rng = Rng::stream(self.setup.run.seed, 800 + volume.index as u64);
        for _ in 0..self.setup.run.ops {
            let current = volume.current();
            let there = match rng.below(12) {
                0 => {
                    self.writer.sync()?;
                    true
                }
                1 => self.flush(&current, 1)?,
                _ => {
                    self.random_change(&mut rng, &current)?
                        && (rng.one_in(2) || self.flush(&current, 1)?)
                }
            };
            let mut looks = 0;
            while !there && volume.current().generation == current.generation {
                looks += 1;
                if looks > LOOKS_MAX {
                    return Err(Error::bug("the volume is gone, and was not rolled back"));
                }
                base::rt::sleep(Duration::from_millis(1));
            }
        }
        self.flush(&volume.current(), 1).map(drop)
    }

    fn administrate(&self, volume: &SimVolume) -> Result<()> {
        let mut rng = Rng::stream(self.setup.run.seed, 900 + volume.index as u64);
        let (mut made, mut clones) = (0, Vec::<SimVolume>::new());
        for _ in 0..ADMIN_OPS {
            made += 1;
            match rng.below(16) {
                0..=2 => drop(self.flush(&volume.current(), 2)?),
                3..=5 => self.snapshot(volume, format!("s{made}"))?,
                6..=8 => self.roll_back(volume)?,
                9..=10 => {
                    let name = format!("{POOL}/c{}-{made}", volume.index);
                    clones.extend(self.make_clone(&mut rng, volume, name)?);
                }
                11 => {
                    if let Some(clone) = clones.last() {
                        let current = clone.current();
                        for _ in 0..3 {
                            self.random_change(&mut rng, &current)?;
                        }
                        self.flush(&current, 2)?;
                    }
                }
                12..=13 => {
                    if let Some(clone) = clones.pop() {
                        let died = self.writer.destroy_dataset(&clone.name, false, None)?;
                        let mut recording = self.shared.lock();
                        recording.volumes[clone.index].died = Some(died);
                        recording.done.insert("destroy");
                    }
                }
                14 => self.destroy_snapshot(volume)?,
                _ => base::rt::sleep(Duration::from_millis(rng.below(40))),
            }
        }
        Ok(())
    }

    fn snapshot(&self, volume: &SimVolume, name: String) -> Result<()> {
        let full = format!("{}@{name}", volume.name);
        let born = self.writer.snapshot(&[full], &[], None)?;
        let generation = volume.current().generation;
        let mut recording = self.shared.lock();
        recording.done.insert("snapshot");
        let snapshots = &mut recording.volumes[volume.index].snapshots;
        snapshots.push(VolumeSnapshot { name, generation, born, died: None });
        Ok(())
    }

    /// The newest snapshot that is there.
    fn newest(&self, volume: &SimVolume) -> Option<VolumeSnapshot> {
        let recording = self.shared.lock();
        let snapshots = &recording.volumes[volume.index].snapshots;
        snapshots.iter().rfind(|s| s.died.is_none()).cloned()
    }

    fn roll_back(&self, volume: &SimVolume) -> Result<()> {
        let Some(snap) = self.newest(volume) else { return Ok(()) };
        let full = format!("{}@{}", volume.name, snap.name);
        let since = match self.writer.rollback(&full, None) {
            Err(e) if e.kind() == ErrorKind::NoSpace => return Ok(()),
            other => other?,
        };
        let base = GenerationBase { of: Some((snap.generation, snap.born)), size: 0 };
        let generation = begin(&self.shared, base);
        {
            let mut recording = self.shared.lock();
            recording.volumes[volume.index].generations.push((since, generation));
            recording.done.insert("rollback");
        }
        let opened = open(&self.writer, &volume.name, &self.setup)?;
        let new = Arc::new(Current { generation, volume: opened });
        // The old handle is dropped without the lock, which is invisible to the scheduler.
        let old = std::mem::replace(&mut *volume.current.lock(), new);
        drop(old);
        Ok(())
    }

    fn make_clone(
        &self,
        rng: &mut Rng,
        volume: &SimVolume,
        name: String,
    ) -> Result<Option<SimVolume>> {
        let there: Vec<VolumeSnapshot> = {
            let recording = self.shared.lock();
            let all = recording.volumes[volume.index].snapshots.iter();
            all.filter(|s| s.died.is_none()).cloned().collect()
        };
        if there.is_empty() {
            return Ok(None);
        }
        let snap = &there[rng.below(there.len() as u64) as usize];
        let origin = format!("{}@{}", volume.name, snap.name);
        let new = NewClone { origin, name: name.clone(), props: Vec::new() };
        let born = self.writer.clone_snapshot(new, None)?;
        let base = GenerationBase { of: Some((snap.generation, snap.born)), size: 0 };
        let generation = begin(&self.shared, base);
        let index = {
            let mut recording = self.shared.lock();
            let (generations, snapshots) = (vec![(born, generation)], Vec::new());
            let name = name.clone();
            let history = VolumeHistory { name, born, died: None, generations, snapshots };
            recording.volumes.push(history);
            recording.done.insert("clone");
            recording.volumes.len() - 1
        };
        let opened = open(&self.writer, &name, &self.setup)?;
        let current = plain::Mutex::new(Arc::new(Current { generation, volume: opened }));
        Ok(Some(SimVolume { index, name, current }))
    }

    /// Destroys the oldest snapshot, unless it has clones.
    fn destroy_snapshot(&self, volume: &SimVolume) -> Result<()> {
        let oldest = {
            let recording = self.shared.lock();
            let snapshots = &recording.volumes[volume.index].snapshots;
            snapshots.iter().position(|s| s.died.is_none()).map(|at| (at, snapshots[at].clone()))
        };
        let Some((at, snap)) = oldest else { return Ok(()) };
        let full = format!("{}@{}", volume.name, snap.name);
        match self.writer.destroy_snapshots(&[full], false, None) {
            Ok(died) => {
                let mut recording = self.shared.lock();
                recording.volumes[volume.index].snapshots[at].died = Some(died);
                recording.done.insert("destroy snapshot");
                Ok(())
            }
            Err(e) if e.kind() == ErrorKind::Exists => Ok(()),
            Err(e) => Err(e),
        }
    }
}

/// Runs all threads to their end.
pub(super) fn run(
    setup: &VolumeSetup,
    writer: &Arc<Writer>,
    disks: &SimDisks,
    shared: &SharedRecording,
    volumes: Vec<Arc<SimVolume>>,
) -> Result<(), String> {
    let (setup, writer) = (setup.clone(), Arc::clone(writer));
    let worker = Worker { setup, writer, disks: disks.clone(), shared: Arc::clone(shared) };
    let wrong: Arc<Mutex<Option<String>>> = Arc::default();
    let mut threads = Vec::new();
    for volume in volumes {
        for is_writer in [true, false] {
            let (worker, volume, wrong) = (worker.clone(), Arc::clone(&volume), Arc::clone(&wrong));
            let name = format!("{}-{}", if is_writer { "writer" } else { "admin" }, volume.index);
            let of = name.clone();
            let body = move || {
                let done =
                    if is_writer { worker.write(&volume) } else { worker.administrate(&volume) };
                if let Err(e) = done {
                    wrong.lock().get_or_insert(format!("{of}: {e}"));
                }
            };
            threads.push(base::rt::spawn(&name, body).map_err(|e| e.to_string())?);
        }
    }
    threads.into_iter().for_each(|t| {
        t.join();
    });
    let wrong = wrong.lock().take();
    wrong.map_or(Ok(()), Err)
}
