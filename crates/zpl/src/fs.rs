//! An open file system.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};

use base::limits::FILE_NAME_MAX;
use base::rt::RwLock;
use base::{Error, ObjectId, Result};
use dmu::{Io, Object, Objset, OutagePolicy, Zap};
use ondisk::fuid::FuidTable;
use ondisk::objset::{FLAG_PROJECT_ACCOUNTED, FLAG_USEROBJ_ACCOUNTED, ObjsetType};
use ondisk::sa::SaTables;

use crate::master::{MASTER_NODE, Props};
use crate::rw::Rw;
use crate::tables::read_tables;

/// Bytes in a name under feature longname (chapter 06 §7.1).
const LONG_NAME_MAX: usize = 1023;
/// Bytes of a FUID domain table.
const FUID_TABLE_MAX: u64 = 16 << 20;

/// A handle of a file system that is open for reading or for writing. All handles of an
/// open file system share its state. Each has its own policy for absent devices, which
/// applies to the reads of calls that take no [`Io`].
#[derive(Debug)]
pub struct FileSystem {
    state: Arc<FsState>,
    outage: OutagePolicy,
}

/// A reference that does not keep a file system open.
#[derive(Clone, Debug)]
pub struct WeakFileSystem(Weak<FsState>);

impl WeakFileSystem {
    /// Whether a handle of the file system exists.
    pub fn is_open(&self) -> bool {
        self.0.strong_count() > 0
    }

    /// Another handle of the file system, if it is still open. Its calls fail when devices
    /// are absent.
    pub fn upgrade(&self) -> Option<Arc<FileSystem>> {
        let state = self.0.upgrade()?;
        Some(Arc::new(FileSystem { state, outage: OutagePolicy::Fail }))
    }
}

/// An open file system.
#[derive(Debug)]
struct FsState {
    os: Arc<Objset>,
    props: Props,
    sa: RwLock<Arc<SaTables>>,
    rw: Option<Rw>,
    long_names: AtomicBool,
    zfetch: dmu::ZfetchFiles,
    walks: dmu::zfetch::Walks,
    drop_behind: AtomicBool,
    counters: OnceLock<Arc<kstat::IoCounters>>,
}

impl FileSystem {
    /// Opens the file system in `os`: the master node and the tables of system
    /// attributes. The handle gets the policy of `io` for absent devices.
    ///
    /// # Errors
    /// `Invalid` when the object set holds no file system, `Unsupported` for a
    /// version above 5, `Locked` when it is encrypted, `Corrupt` when the tables
    /// are damaged, those of reading.
    pub fn open(os: Arc<Objset>, io: Io) -> Result<Arc<FileSystem>> {
        FileSystem::open_as(os, None, io)
    }

    pub(crate) fn open_as(os: Arc<Objset>, rw: Option<Rw>, io: Io) -> Result<Arc<FileSystem>> {
        if os.kind() != ObjsetType::Zfs {
            return Err(Error::invalid("the dataset is not a file system"));
        }
        let master = Zap::open(os.object(MASTER_NODE, io)?, io)?;
        let props = Props::read(&master).map_err(|e| e.in_object(MASTER_NODE))?;
        let sa = match props.sa_attrs {
            Some(id) => read_tables(&os, id, io)?,
            None => SaTables::default(),
        };
        let long_names = AtomicBool::new(false);
        let zfetch = dmu::ZfetchFiles::new(os.zio().prefetch());
        let state = FsState {
            os,
            props,
            sa: RwLock::new(Arc::new(sa)),
            rw,
            long_names,
            zfetch,
            walks: dmu::zfetch::Walks::new(),
            drop_behind: AtomicBool::new(false),
            counters: OnceLock::new(),
        };
        Ok(Arc::new(FileSystem { state: Arc::new(state), outage: io.outage }))
    }

    /// Another handle of the same file system, whose calls treat absent devices by this
    /// policy.
    #[must_use]
    pub fn with_outage(&self, outage: OutagePolicy) -> Arc<FileSystem> {
        Arc::new(FileSystem { state: Arc::clone(&self.state), outage })
    }

    /// A reference that does not keep the file system open.
    pub fn downgrade(&self) -> WeakFileSystem {
        WeakFileSystem(Arc::downgrade(&self.state))
    }

    /// What calls through this handle do when devices are absent.
    pub fn outage(&self) -> OutagePolicy {
        self.outage
    }

    /// How calls through this handle read, if they take no [`Io`].
    pub(crate) fn io(&self) -> Io {
        Io::WAIT.with_outage(self.outage)
    }

    pub(crate) fn zfetch(&self) -> &dmu::ZfetchFiles {
        &self.state.zfetch
    }

    pub(crate) fn walks(&self) -> &dmu::zfetch::Walks {
        &self.state.walks
    }

    /// The current tables of system attributes. A reader gets the buffer first and the
    /// tables afterwards, so the buffer's layout is included.
    pub(crate) fn tables(&self) -> Arc<SaTables> {
        Arc::clone(&self.state.sa.read())
    }

    pub(crate) fn set_tables(&self, tables: SaTables) {
        *self.state.sa.write() = Arc::new(tables);
    }

    /// The state for writing, if the file system is open for it.
    pub(crate) fn rw_part(&self) -> Option<&Rw> {
        self.state.rw.as_ref()
    }

    /// The result of `f`, which reads `id`, without intermediate states of any change.
    pub(crate) fn read_consistent<T>(
        &self,
        id: ObjectId,
        io: Io,
        mut f: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        match &self.state.rw {
            Some(rw) => rw.seqlock.read(id, io, f),
            None => f(),
        }
    }

    /// Its object set.
    pub fn objset(&self) -> &Arc<Objset> {
        &self.state.os
    }

    /// The properties in its master node.
    pub fn props(&self) -> &Props {
        &self.state.props
    }

    /// The root directory.
    pub fn root(&self) -> ObjectId {
        self.state.props.root
    }

    /// Allows names of up to 1023 bytes: the dataset has feature `longname` active.
    pub fn set_long_names(&self, on: bool) {
        self.state.long_names.store(on, Relaxed);
    }

    /// The caller caches what it reads through [`FileSystem::read`] (the kernel's page
    /// cache): uncompressed file data stays in Cenote's cache only if it is read again.
    pub fn set_drop_behind(&self, on: bool) {
        self.state.drop_behind.store(on, Relaxed);
    }

    /// Sets what is prefetched for files opened from now on, and for walks over
    /// directories: the property `prefetch`.
    pub fn set_prefetch(&self, mode: dmu::PrefetchMode) {
        self.state.zfetch.set_mode(mode);
    }

    /// Sets the counters for reads of file content; only the first call has an effect.
    pub fn set_counters(&self, counters: Arc<kstat::IoCounters>) {
        let _first = self.state.counters.set(counters);
    }

    pub(crate) fn counters(&self) -> Option<&Arc<kstat::IoCounters>> {
        self.state.counters.get()
    }

    pub(crate) fn drops_behind(&self) -> bool {
        self.state.drop_behind.load(Relaxed)
    }

    /// Bytes that a name may have.
    pub fn name_max(&self) -> usize {
        if self.state.long_names.load(Relaxed) { LONG_NAME_MAX } else { FILE_NAME_MAX }
    }

    /// Number of allocated objects: `f_files` less the free ones.
    pub fn object_count(&self) -> u64 {
        self.state.os.object_count()
    }

    /// Whether objects are counted by user and group; in old pools they are not.
    pub fn counts_objects(&self) -> bool {
        self.state.os.flags() & FLAG_USEROBJ_ACCOUNTED != 0
    }

    /// Whether space and objects are counted by project; in old pools they are not.
    pub fn counts_projects(&self) -> bool {
        self.state.os.flags() & FLAG_PROJECT_ACCOUNTED != 0
    }

    /// Whether the object has changes that are not on disk yet.
    pub fn is_dirty(&self, id: ObjectId) -> bool {
        self.state.os.is_object_dirty(id)
    }

    pub(crate) fn object(&self, id: ObjectId, io: Io) -> Result<Object> {
        self.state.os.object(id, io)
    }

    /// The domains of ids beyond 32 bits; Linux and FreeBSD make none.
    ///
    /// # Errors
    /// `Corrupt` when the table is damaged, those of reading.
    pub fn fuid_domains(&self, io: Io) -> Result<FuidTable> {
        let Some(id) = self.fuid_table() else { return Ok(FuidTable::default()) };
        let object = self.object(id, io)?;
        let dnode = object.dnode();
        // The bonus has the length of the packed list in the blocks.
        let size = dnode.endian.u64(&dnode.bonus, 0).filter(|n| *n <= FUID_TABLE_MAX);
        let size = size.ok_or_else(|| Error::corrupt("FUID table of odd size").in_object(id))?;
        let mut packed = vec![0; size as usize];
        object.read_into(0, &mut packed, io)?;
        FuidTable::parse(&packed).map_err(|e| e.in_object(id))
    }
}
