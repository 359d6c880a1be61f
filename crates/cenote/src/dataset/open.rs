//! Opening file systems and volumes: for writing where that is possible, shared by all callers.

use std::sync::Arc;

use base::{Error, ErrorKind, Result};
use dmu::PrefetchMode;
use ondisk::objset::ObjsetType;
use ondisk::zil::Record;
use zpl::{FileSystem, WeakFileSystem};
use zvol::{Volume, WeakVolume};

use super::{Dataset, DatasetKind};

/// What a log is replayed into.
enum ReplayTarget {
    Filesystem(Arc<FileSystem>),
    Volume(Volume),
}

impl ReplayTarget {
    fn replay(&self, record: &Record<'_>) -> Result<()> {
        match self {
            ReplayTarget::Filesystem(fs) => fs.replay(record),
            ReplayTarget::Volume(volume) => volume.replay(record),
        }
    }
}

impl Dataset {
    /// Checks whether [`Dataset::open_fs`] or [`Dataset::open_volume`] gives write access. An
    /// intent log that a crash left is replayed first, which may take a while.
    ///
    /// # Errors
    /// `ReadOnly` for snapshots, pools imported read-only, and datasets whose intent log
    /// cannot be replayed; `Invalid` for bookmarks; those of reading.
    pub fn check_writable(&self) -> Result<()> {
        match self.writable_now() {
            // Perhaps because of its log: then it is not open for writing anywhere.
            Err(e) if e.kind() == ErrorKind::ReadOnly => {
                if self.core.writer.is_none() {
                    return Err(e);
                }
                match self.kind {
                    DatasetKind::Filesystem => {
                        let _alone = self.core.files.lock();
                        self.replay_log()?;
                    }
                    DatasetKind::Volume => {
                        let _alone = self.core.volumes.lock();
                        self.replay_log()?;
                    }
                    DatasetKind::Snapshot | DatasetKind::Bookmark => return Err(e),
                }
                self.writable_now()
            }
            other => other,
        }
    }

    fn writable_now(&self) -> Result<()> {
        match self.kind {
            DatasetKind::Filesystem | DatasetKind::Volume => {}
            DatasetKind::Snapshot => {
                let text = "a snapshot does not change";
                return Err(Error::new(ErrorKind::ReadOnly, text).in_dataset(self.name()));
            }
            DatasetKind::Bookmark => {
                return Err(Error::invalid("a bookmark has no content").in_dataset(self.name()));
            }
        }
        let writer = self.core.writer().map_err(|e| e.in_dataset(self.name()))?;
        let _checked = self.objset()?;
        writer.open_dataset(self.name()).map(|_| ())
    }

    /// Replays the intent log that a crash, or another program, left, if there is one. Its
    /// changes are made when this returns, and the log is empty.
    ///
    /// # Errors
    /// `ReadOnly` as [`Dataset::check_writable`], and where the log cannot be replayed:
    /// nothing was changed then, unless reading or writing failed during the replay.
    fn replay_log(&self) -> Result<()> {
        let writer = self.core.writer()?;
        let os = writer.read_dataset(self.name())?;
        let Some(log) = writer.log(&os)?.filter(|log| log.is_replaying()) else { return Ok(()) };
        let refused = |e: Error| {
            let text = "the dataset's intent log cannot be replayed";
            Error::new(ErrorKind::ReadOnly, text).caused_by(e).in_dataset(self.name())
        };
        // All records are checked first.
        let can_replay = match os.kind() {
            ObjsetType::Zvol => zvol::can_replay,
            _ => zpl::rw::can_replay,
        };
        writer.for_each_record(&os, &mut |record| can_replay(record)).map_err(refused)?;
        let host = self.core.host(self.name(), self.object(), os.kind(), Some(Arc::clone(&log)))?;
        let target = if os.kind() == ObjsetType::Zvol {
            let opened = Volume::open_rw(Arc::clone(&os), host, PrefetchMode::None, self.io());
            ReplayTarget::Volume(opened.map_err(refused)?)
        } else {
            let fs = FileSystem::open_rw(Arc::clone(&os), host, self.io()).map_err(refused)?;
            self.set_up(&fs)?;
            ReplayTarget::Filesystem(fs)
        };
        let done = writer.for_each_record(&os, &mut |record| {
            log.replaying(record.header.seq);
            target.replay(record).or_else(|_| {
                // Perhaps only space was missing that a txg frees.
                writer.sync()?;
                target.replay(record)
            })
        });
        log.replaying(0);
        // The changes are on disk, and the header records it.
        writer.sync()?;
        done.map_err(refused)?;
        log.end_replay(writer.blocks_of_log(&os)?)
    }

    /// Opens the file system: for writing if that is possible, shared by all callers
    /// ([`Dataset::check_writable`] gives the reason if it is not).
    ///
    /// # Errors
    /// `Invalid` for volumes, `Locked` when the key is not loaded, those of reading.
    pub fn open_fs(&self) -> Result<Arc<FileSystem>> {
        match self.check_writable() {
            Ok(()) => self.open_to_write(),
            Err(e) if matches!(e.kind(), ErrorKind::ReadOnly) => self.read_fs(),
            Err(e) => Err(e),
        }
    }

    /// The file system, open only for reading.
    pub(crate) fn read_fs(&self) -> Result<Arc<FileSystem>> {
        let os = self.objset()?;
        if let (DatasetKind::Snapshot, Some(writer)) = (self.kind, &self.core.writer) {
            writer.allow_clones_of(&os, self.ds().phys().guid);
        }
        let fs = FileSystem::open(os, self.io()).map_err(|e| e.in_dataset(self.name()))?;
        self.set_up(&fs)?;
        Ok(fs)
    }

    /// All writers of a file system share its in-memory state.
    fn open_to_write(&self) -> Result<Arc<FileSystem>> {
        let head = self.object();
        let mut open = self.core.files.lock();
        let os = self.core.writer()?.open_dataset(self.name())?;
        // The file system of a dataset that was rolled back has another object set.
        if let Some(fs) = open.get(&head).and_then(WeakFileSystem::upgrade)
            && Arc::ptr_eq(fs.objset(), &os)
        {
            return Ok(fs.with_outage(self.outage()));
        }
        open.retain(|_, fs| fs.is_open());
        let log = self.core.writer()?.log(&os)?;
        let host = self.core.host(self.name(), head, ObjsetType::Zfs, log)?;
        let fs = FileSystem::open_rw(os, host, self.io()).map_err(|e| e.in_dataset(self.name()))?;
        self.set_up(&fs)?;
        open.insert(head, fs.downgrade());
        Ok(fs)
    }

    /// Opens the volume, or the volume's snapshot: for writing if that is possible, shared by
    /// all callers ([`Dataset::check_writable`] gives the reason if it is not).
    ///
    /// # Errors
    /// `Invalid` for file systems, `Locked` when the key is not loaded, those of reading.
    pub fn open_volume(&self) -> Result<Arc<Volume>> {
        if self.owner != DatasetKind::Volume {
            return Err(not_a_volume().in_dataset(self.name()));
        }
        match self.check_writable() {
            Ok(()) => self.volume_to_write().map(Arc::new),
            Err(e) if matches!(e.kind(), ErrorKind::ReadOnly) => self.read_volume().map(Arc::new),
            Err(e) => Err(e),
        }
    }

    /// The volume, open only for reading.
    pub(crate) fn read_volume(&self) -> Result<Volume> {
        if self.owner != DatasetKind::Volume {
            return Err(not_a_volume().in_dataset(self.name()));
        }
        let opened = Volume::open(self.objset()?, self.prefetch_mode()?, self.io());
        let volume = opened.map_err(|e| e.in_dataset(self.name()))?;
        if let Some(counters) = self.counters() {
            volume.set_counters(counters);
        }
        Ok(volume)
    }

    /// All users of a volume share its in-memory state.
    pub(crate) fn volume_to_write(&self) -> Result<Volume> {
        let head = self.object();
        let mut open = self.core.volumes.lock();
        let os = self.core.writer()?.open_dataset(self.name())?;
        // The volume of a dataset that was rolled back has another object set.
        if let Some(volume) = open.get(&head).and_then(|v| v.upgrade(self.outage()))
            && Arc::ptr_eq(volume.objset(), &os)
        {
            return Ok(volume);
        }
        open.retain(|_, v: &mut WeakVolume| v.is_open());
        let log = self.core.writer()?.log(&os)?;
        let host = self.core.host(self.name(), head, ObjsetType::Zvol, log)?;
        let volume = Volume::open_rw(os, host, self.prefetch_mode()?, self.io())
            .map_err(|e| e.in_dataset(self.name()))?;
        if let Some(counters) = self.counters() {
            volume.set_counters(counters);
        }
        open.insert(head, volume.downgrade());
        Ok(volume)
    }

    /// Property `prefetch`.
    fn prefetch_mode(&self) -> Result<PrefetchMode> {
        let stored = self.ds().stored("prefetch", true)?.and_then(|(v, _)| v.number());
        Ok(stored.map_or(PrefetchMode::All, PrefetchMode::from_number))
    }

    /// Applies properties and the pool's state to a file system.
    fn set_up(&self, fs: &FileSystem) -> Result<()> {
        if self.ds().attribute("org.zfsonlinux:longname")?.is_some() {
            fs.set_long_names(true);
        }
        let prefetch = self.ds().stored("prefetch", true)?.and_then(|(v, _)| v.number());
        if let Some(mode) = prefetch {
            fs.set_prefetch(dmu::PrefetchMode::from_number(mode));
        }
        if let Some(counters) = self.counters() {
            fs.set_counters(counters);
        }
        Ok(())
    }
}

fn not_a_volume() -> Error {
    Error::invalid("the dataset is not a volume")
}
