//! Judging the disks after a crash: import, replay of all logs, comparison.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::rt::sim::{Options, Rng, run_with};
use base::{Error, ErrorKind, Result, Txg};
use device::sim::{Image, SimDisks};
use dmu::{Io, Objset, PrefetchMode};
use dsl::DslDir;
use spa::engine::Writer;
use spa::{ImportOptions, Spa};
use zio::BlockCache;
use zvol::Volume;

use super::content::{GenerationId, Possible, SECTOR, VolumeContent, origin_of};
use super::{RecordedVolumes, VolumeSetup, open};
use crate::check;
use crate::fs::ended;
use crate::image::{Range, Tap};
use crate::log_end::end_of_log;
use crate::memo::{Manner, alike, tidy};
use crate::model::alive;
use crate::pool::{CACHE, POOL, SimLeaves, find, import};

/// Images that others are compared with before they are read.
const RECENT: usize = 12;

/// The initial state of a replay: the txg, and each log's identity, last block and last record.
pub(super) type StartKey = (Txg, Vec<([u64; 2], u64, u64)>);

/// The result of reading an image.
pub(super) struct ImageReading {
    images: Vec<Image>,
    ranges: Vec<Range>,
    key: StartKey,
}

/// What a replay leaves.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Replayed {
    /// The txg that was imported.
    txg: Txg,
    volumes: BTreeMap<String, VolumeContent>,
    /// By full name.
    snapshots: BTreeMap<String, VolumeContent>,
}

fn read(volume: &Volume, name: &str) -> Result<VolumeContent> {
    let bytes = volume.size();
    let (mut sectors, mut at) = (BTreeMap::new(), 0);
    for piece in volume.read(0, usize::try_from(bytes).unwrap_or(0), Io::WAIT)? {
        for data in piece.chunks(SECTOR as usize) {
            let found = origin_of(data, at);
            let from = found.ok_or_else(|| {
                let part = |from: usize| data.get(from..from + 8).unwrap_or_default().to_vec();
                Error::corrupt(format!(
                    "{name}: sector {at} has bytes that were never written: {:x?}, {:x?}, {:x?}",
                    part(0),
                    part(8),
                    part(504)
                ))
            })?;
            if from != super::content::ZERO {
                sectors.insert(at, from);
            }
            at += 1;
        }
    }
    Ok(VolumeContent { size: bytes / SECTOR, sectors })
}

/// Replays the log of a volume, as `cenote` does.
fn replay(writer: &Arc<Writer>, volume: &Volume) -> Result<()> {
    let os = volume.objset();
    let Some(log) = writer.log(os)?.filter(|log| log.is_replaying()) else { return Ok(()) };
    writer.for_each_record(os, &mut |record| zvol::can_replay(record))?;
    writer.for_each_record(os, &mut |record| {
        log.replaying(record.header.seq);
        volume.replay(record)
    })?;
    log.replaying(0);
    writer.sync()?;
    log.end_replay(writer.blocks_of_log(os)?)
}

/// The object set of a snapshot.
fn snapshot_of(ds: &dsl::DslDataset) -> Result<Arc<Objset>> {
    ds.open_objset()?.ok_or_else(|| Error::corrupt("a snapshot without an object set"))
}

fn open_to_write(setup: &VolumeSetup, leaves: &SimLeaves) -> Result<(Arc<Writer>, Txg), String> {
    let fail = |what: &str, e: &dyn std::fmt::Display| format!("{what}, after a crash: {e}");
    let found = find(leaves).map_err(|e| fail("looking for the pool", &e))?;
    let found = found.ok_or_else(|| "the pool is gone".to_owned())?;
    let cache = Arc::new(BlockCache::of(CACHE).map_err(|e| fail("cache", &e))?);
    let options = ImportOptions { force: true, ..ImportOptions::default() };
    let spa = Spa::open_in(&found, &options, &cache, leaves)
        .map_err(|f| fail("import for writing", &f.error))?;
    let txg = spa.uberblock().txg;
    let writer = spa.start_writer(setup.run.writer()).map_err(|e| fail("writing", &e))?;
    Ok((writer, txg))
}

/// Names of the volumes, and of their snapshots.
fn names(writer: &Writer) -> Result<Vec<(String, Vec<dsl::DslDataset>)>> {
    let mut all = Vec::new();
    DslDir::root(writer.mos(), POOL)?.walk(&mut |dir| {
        if let Some(head) = dir.head()?.filter(|_| dir.name() != POOL) {
            all.push((dir.name().to_owned(), head.snapshots()?));
        }
        Ok(())
    })?;
    Ok(all)
}

/// The pool on the disks has no leaks, and all its sums are right.
fn is_sound(leaves: &SimLeaves) -> Result<(), String> {
    let found = find(leaves).map_err(|e| format!("looking for the pool: {e}"))?;
    let found = found.ok_or_else(|| "the pool is gone".to_owned())?;
    let cache = Arc::new(BlockCache::of(CACHE).map_err(|e| e.to_string())?);
    let spa = import(leaves, &found, &cache, None).map_err(|e| format!("import: {e}"))?;
    let expect = check::Expect::default();
    check::audit(&spa, &expect).and_then(|()| check::books(&spa)).map_err(|bad| bad.to_string())
}

/// Imports the disks for writing, replays all logs, and reads the result.
fn mount(setup: &VolumeSetup, disks: &SimDisks) -> Result<Replayed, String> {
    let leaves = SimLeaves::new(disks, &[]);
    let (writer, txg) = open_to_write(setup, &leaves)?;
    let mut out = Replayed { txg, volumes: BTreeMap::new(), snapshots: BTreeMap::new() };
    let mut all = || {
        for (name, snapshots) in names(&writer)? {
            let volume = open(&writer, &name, setup)?;
            replay(&writer, &volume)?;
            out.volumes.insert(name.clone(), read(&volume, &name)?);
            for snap in snapshots {
                let opened = Volume::open(snapshot_of(&snap)?, PrefetchMode::None, Io::WAIT)?;
                out.snapshots.insert(snap.name().to_owned(), read(&opened, snap.name())?);
            }
        }
        writer.sync()
    };
    all().map_err(|e| format!("replay, after a crash: {e}"))?;
    writer.stop();
    is_sound(&leaves).map_err(|e| format!("after a replay: {e}"))?;
    Ok(out)
}

/// Imports the disks for writing, and rolls each volume back that has a snapshot, without a
/// replay. Destroys the others. Then nothing of the logs is left.
fn mount_back(setup: &VolumeSetup, disks: &SimDisks) -> Result<Replayed, String> {
    let leaves = SimLeaves::new(disks, &[]);
    let (writer, txg) = open_to_write(setup, &leaves)?;
    writer
        .plants
        .kept_log
        .store(setup.plant == super::VolumePlant::KeptLog, std::sync::atomic::Ordering::Relaxed);
    let mut out = Replayed { txg, volumes: BTreeMap::new(), snapshots: BTreeMap::new() };
    let mut all = || {
        for (name, snapshots) in names(&writer)? {
            let Some(newest) = snapshots.iter().max_by_key(|s| s.phys().creation_txg) else {
                writer.destroy_dataset(&name, false, None)?;
                continue;
            };
            writer.rollback(newest.name(), None)?;
            let volume = open(&writer, &name, setup)?;
            replay(&writer, &volume)?;
            let found = read(&volume, &name)?;
            let snap = Volume::open(snapshot_of(newest)?, PrefetchMode::None, Io::WAIT)?;
            if read(&snap, newest.name())? != found {
                let text = format!("{name} was rolled back to another content than its snapshot's");
                return Err(Error::corrupt(text));
            }
            out.volumes.insert(name, found);
        }
        writer.sync().map(drop)
    };
    match all() {
        // Space that a full pool lacks.
        Err(e) if e.kind() != ErrorKind::NoSpace => {
            return Err(format!("rollback, after a crash: {e}"));
        }
        _ => {}
    }
    writer.stop();
    is_sound(&leaves).map_err(|e| format!("after rollbacks: {e}"))?;
    Ok(out)
}

impl RecordedVolumes {
    fn run(
        &self,
        images: Vec<Image>,
        seed: u64,
        mount: fn(&VolumeSetup, &SimDisks) -> Result<Replayed, String>,
    ) -> Result<(Replayed, SimDisks), String> {
        let disks = SimDisks::new(self.setup.run.disks(), images);
        let (setup, d) = (self.setup.clone(), disks.clone());
        let schedule = Options { max_steps: 50_000_000, ..Options::varied(seed) };
        let run = run_with(schedule, move || mount(&setup, &d));
        Ok((ended(run.outcome)?, disks))
    }

    pub(super) fn mount_once(
        &self,
        images: Vec<Image>,
        seed: u64,
    ) -> Result<(Replayed, SimDisks), String> {
        self.run(images, seed, mount)
    }

    /// The txg that an import finds, and the ends of its logs. The txg is audited.
    fn key(&self, images: &[Image], cache: &Arc<BlockCache>) -> Result<StartKey, String> {
        let seen: Vec<Arc<ImageReading>> = self.seen.lock().iter().cloned().collect();
        if let Some(old) = seen.iter().find(|s| alike(&s.images, images, &s.ranges)) {
            return Ok(old.key.clone());
        }
        let tap = Arc::new(Tap::default());
        let leaves = SimLeaves::of_images(images, &[], None, &tap);
        let found = find(&leaves).map_err(|e| format!("looking for the pool: {e}"))?;
        let found = found.ok_or_else(|| "there is no pool".to_owned())?;
        let spa = import(&leaves, &found, cache, None).map_err(|e| format!("import: {e}"))?;
        let (txg, root) = (spa.uberblock().txg, spa.uberblock().root_bp);
        let manner = Manner::default();
        let body = match self.memo.body(images, &manner, txg, &root) {
            Some(known) => known,
            None => {
                let expect = check::Expect::default();
                check::audit(&spa, &expect)
                    .and_then(|()| check::books(&spa))
                    .map_err(|bad| format!("txg {txg}: {bad}"))?;
                let (in_labels, read) = check::split(images, tap.take());
                let all = in_labels.iter().chain(&read).copied().collect();
                self.memo.keep(images, &manner, txg, root, in_labels, read);
                all
            }
        };
        let mut ends = Vec::new();
        let mut walk = || {
            spa.root_dir()?.walk(&mut |dir| {
                let head = dir.head()?.filter(|_| dir.name() != POOL);
                if let Some(os) = head.map(|head| head.open_objset()).transpose()?.flatten() {
                    let end = end_of_log(spa.zio(), txg, &os)?;
                    ends.push((end.id, end.block, end.record));
                }
                Ok(())
            })
        };
        walk().map_err(|e| format!("txg {txg}: {e}"))?;
        let key = (txg, ends);
        let ranges = tidy(body.into_iter().chain(tap.take()).collect());
        let mut seen = self.seen.lock();
        let reading = ImageReading { images: images.to_vec(), ranges, key: key.clone() };
        seen.push_front(Arc::new(reading));
        seen.truncate(RECENT);
        Ok(key)
    }

    /// Replays an image that was not replayed before; some replays are cut, and some volumes
    /// rolled back instead.
    fn replay(&self, images: Vec<Image>, seed: u64) -> Result<Arc<Replayed>, String> {
        let mut rng = Rng::stream(seed, 710);
        if rng.one_in(3) {
            self.run(images.clone(), rng.next_u64(), mount_back)?;
        }
        let (found, disks) = self.run(images, seed, mount)?;
        if rng.one_in(2) {
            let points = disks.crash_points();
            let (at, cut) = (points[rng.below(points.len() as u64) as usize], rng.below(4));
            let fail = |e: String| format!("replay cut at {at}:{cut}: {e}");
            let images = disks.crash_image(at, cut).map_err(|e| fail(e.to_string()))?;
            let (again, _) = self.run(images, rng.next_u64(), mount).map_err(fail)?;
            if (&again.volumes, &again.snapshots) != (&found.volumes, &found.snapshots) {
                return Err(fail("the next replay has another result".to_owned()));
            }
        }
        Ok(Arc::new(found))
    }

    /// Crashes at one event and judges the result of a replay from scratch.
    ///
    /// # Errors
    /// The error found.
    pub fn crash_once(&self, event: u64, seed: u64) -> Result<(), String> {
        let cache = Arc::new(BlockCache::of(CACHE).map_err(|e| e.to_string())?);
        self.crash(event, seed, &cache)
    }

    /// Crashes at one event and judges the result of a replay.
    ///
    /// # Errors
    /// The error found.
    pub fn crash(&self, event: u64, seed: u64, cache: &Arc<BlockCache>) -> Result<(), String> {
        let images = self.disks.crash_image(event, seed).map_err(|e| e.to_string())?;
        let key = self.key(&images, cache)?;
        let known = self.found.lock().get(&key).cloned();
        let found = match known {
            Some(found) => found,
            None => {
                let found = self.replay(images, self.setup.run.seed ^ event << 20 ^ seed)?;
                self.found.lock().insert(key, Arc::clone(&found));
                found
            }
        };
        self.compare(&found, event)
    }

    /// The content at the beginning of a generation; `None` if it is not known, because an
    /// operation was partly in the txg of the snapshot.
    fn base(&self, generation: GenerationId) -> Option<VolumeContent> {
        let base = &self.recording.bases[generation];
        let Some((of, txg)) = base.of else {
            return Some(VolumeContent { size: base.size / SECTOR, ..VolumeContent::default() });
        };
        let operations = &self.recording.operations[of];
        if operations.iter().any(|op| op.first <= txg && txg < op.last) {
            return None;
        }
        Some(self.possible(of, txg, None)?.exact())
    }

    fn possible(
        &self,
        generation: GenerationId,
        txg: Txg,
        acknowledged: Option<usize>,
    ) -> Option<Possible<'_>> {
        let base = self.base(generation)?;
        let operations = &self.recording.operations[generation];
        let block = self.setup.block / SECTOR;
        Some(Possible { generation, base, operations, txg, acknowledged, block })
    }

    fn compare(&self, found: &Replayed, event: u64) -> Result<(), String> {
        let txg = found.txg;
        let marks = self.disks.marks(event);
        let acknowledged = |generation: GenerationId| {
            let mine = marks.iter().filter(|m| **m >> 32 == generation as u64);
            mine.map(|m| (m & u64::from(u32::MAX)) as usize).max().unwrap_or(0)
        };
        let (mut volumes, mut snapshots) = (0, 0);
        for volume in &self.recording.volumes {
            if !alive(volume.born, volume.died, txg) {
                continue;
            }
            volumes += 1;
            let gone = || format!("txg {txg}: {} is not there", volume.name);
            let content = found.volumes.get(&volume.name).ok_or_else(gone)?;
            let generation = volume.generation(txg).ok_or_else(gone)?;
            if let Some(due) = self.possible(generation, txg, Some(acknowledged(generation))) {
                due.compare(content).map_err(|e| format!("{}: {e}", volume.name))?;
            }
            for snap in volume.snapshots.iter().filter(|s| alive(s.born, s.died, txg)) {
                snapshots += 1;
                let full = format!("{}@{}", volume.name, snap.name);
                let content = found.snapshots.get(&full);
                let content = content.ok_or_else(|| format!("txg {txg}: {full} is not there"))?;
                if let Some(due) = self.possible(snap.generation, snap.born, None) {
                    due.compare(content).map_err(|e| format!("{full}: {e}"))?;
                }
            }
        }
        if (volumes, snapshots) != (found.volumes.len(), found.snapshots.len()) {
            let names: Vec<_> = found.volumes.keys().chain(found.snapshots.keys()).collect();
            return Err(format!("txg {txg}: {names:?} are there, which are too many"));
        }
        Ok(())
    }
}
