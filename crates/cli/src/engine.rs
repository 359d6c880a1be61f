//! The engine, as this program uses it: the one place that names its types.

pub(crate) use cenote::inspect::zpl::{Attrs, DirEntry, FileType as FileKind, Time, Whence};
pub(crate) use cenote::{
    Dataset, DatasetKind, Engine, EngineConfig, Extent, FileSystem, FoundPool, ImportOptions,
    ImportReason, Io, Pool, PoolState, PoolStatus, ScanState, Search, VdevClass, VdevState,
    VdevStatus, Volume,
};
