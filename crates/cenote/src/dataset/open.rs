//! Opening file systems: for writing where that is possible, one for all who ask.

use std::sync::{Arc, Weak};

use base::{Error, ErrorKind, Result};
use dmu::Io;
use zpl::FileSystem;

use super::{Dataset, DatasetKind};

impl Dataset {
    /// Why nothing can be changed here through [`Dataset::open_fs`], if so.
    ///
    /// # Errors
    /// `ReadOnly` for snapshots, pools imported so, and datasets with an intent log to
    /// replay; `Invalid` for what is no file system; those of reading.
    pub fn check_writable(&self) -> Result<()> {
        match self.kind {
            DatasetKind::Filesystem => {}
            DatasetKind::Snapshot => {
                let text = "a snapshot does not change";
                return Err(Error::new(ErrorKind::ReadOnly, text).in_dataset(self.name()));
            }
            _ => return Err(Error::invalid("not a file system").in_dataset(self.name())),
        }
        let writer = self.core.writer().map_err(|e| e.in_dataset(self.name()))?;
        let _checked = self.objset()?;
        writer.open_dataset(self.name()).map(|_| ())
    }

    /// Opens the file system: for writing if that is possible, one for all who ask
    /// ([`Dataset::check_writable`] tells why not).
    ///
    /// # Errors
    /// `Invalid` for volumes, `Locked` when the key is not loaded, those of
    /// reading.
    pub fn open_fs(&self) -> Result<Arc<FileSystem>> {
        match self.check_writable() {
            Ok(()) => self.open_to_write(),
            Err(e) if matches!(e.kind(), ErrorKind::ReadOnly) => self.read_fs(),
            Err(e) => Err(e),
        }
    }

    /// The file system, open for reading alone.
    pub(crate) fn read_fs(&self) -> Result<Arc<FileSystem>> {
        let fs =
            FileSystem::open(self.objset()?, Io::WAIT).map_err(|e| e.in_dataset(self.name()))?;
        self.set_up(&fs)?;
        Ok(fs)
    }

    /// Those who change a file system share what they know of it.
    fn open_to_write(&self) -> Result<Arc<FileSystem>> {
        let head = self.object();
        let mut open = self.core.files.lock();
        if let Some(fs) = open.get(&head).and_then(Weak::upgrade) {
            return Ok(fs);
        }
        open.retain(|_, fs| fs.strong_count() > 0);
        let os = self.core.writer()?.open_dataset(self.name())?;
        let host = self.core.host(self.name(), head)?;
        let fs = FileSystem::open_rw(os, host, Io::WAIT).map_err(|e| e.in_dataset(self.name()))?;
        self.set_up(&fs)?;
        open.insert(head, Arc::downgrade(&fs));
        Ok(fs)
    }

    /// What properties and the pool say of a file system.
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
