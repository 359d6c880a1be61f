//! The engine, as this program uses it: the one place that names its types.

use std::path::Path;

use base::{Error, ErrorKind};

pub(crate) use cenote::inspect::zpl::{
    Atime, Attrs, Caller, CaseSensitivity, Device, DirEntry, Falloc, FileType as FileKind, Groups,
    New, Rename, SetAttrs, SetHow, SetTime, Time, Whence, WritePosition,
};
pub(crate) use cenote::{
    ClassDetail, DataError, Dataset, DatasetKind, Engine, EngineConfig, Extent, FileSystem,
    FoundPool, ImportOptions, ImportReason, Io, Opening, Pool, PoolState, PoolStatus, ScanState,
    Search, VdevClass, VdevState, VdevStatus, Volume,
};

/// A line about a path that could not be looked at.
pub(crate) fn problem(path: &Path, e: &Error) -> String {
    match e.kind() {
        ErrorKind::Permission => format!("{}: {}", path.display(), e.message()),
        _ => format!("{}: {e}", path.display()),
    }
}
